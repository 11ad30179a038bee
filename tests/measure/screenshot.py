"""Draw the program's output as a picture of a terminal, with the package `rich`.

You need that package only to make the pictures. Its own template loads a font from the
network. This one loads none, and sets the width of the text, whatever the font.
"""

import io
from html import escape

from charts import alt_text

COLUMNS = 88  # so that a question fits on one line
# the colors of GitHub's dark pages; any page shows them on this background
BACKGROUND, LETTERS = (13, 17, 23), (230, 237, 243)
ANSI = [BACKGROUND, (255, 123, 114), (63, 185, 80), (210, 153, 34)]
ANSI += [(88, 166, 255), (210, 168, 255), (57, 197, 207), LETTERS]
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" role="img" \
aria-label="{title}">
<title>{title}</title>
<desc>{words}</desc>
<style>
.{{unique_id}}-matrix {{{{ font-family: {fonts}; font-size: {{char_height}}px }}}}
.{{unique_id}}-title {{{{ font-family: sans-serif; font-size: 18px }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal">
<rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/>
</clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" \
clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def screenshot(title: str, printed: str) -> str:
    """Draw what was printed, with its colors, in a terminal of COLUMNS columns."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    text = Text.from_ansi(printed.rstrip("\n"))
    lines = [line.strip() for line in text.plain.split("\n") if line.strip()]
    told = alt_text(title, [line.replace("->", "to") for line in lines])
    words = escape(told).replace("{", "{{").replace("}", "}}")
    template = TEMPLATE.format(title=title, words=words, fonts=FONTS)
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(text, overflow="fold")
    theme = TerminalTheme(BACKGROUND, LETTERS, ANSI)
    look = {"theme": theme, "code_format": template, "unique_id": "terminal"}
    drawn = console.export_svg(title="agent.py", **look).splitlines()
    return "\n".join([*map(str.rstrip, drawn), ""])
