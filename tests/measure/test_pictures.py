"""The tutorial's pictures: up to date, and readable on light and dark pages."""

import json
import re
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import charts
import costs
import pictures
import pytest
import screenshot
import stub
from builders import LONG_TESTS, did, history, said
from policies import BY_DOCUMENTATION

PICTURES = sorted(path.stem for path in pictures.FOLDER.glob("*.svg"))
CHARTS = [name for name in PICTURES if name != "work"]  # that one is a terminal
SHORT = "entire_b7-e34f589b03-0"  # a recorded session of 23 requests
SVG = "{http://www.w3.org/2000/svg}"
WHITE, NIGHT = "#ffffff", "#0d1117"
SHOWN = {WHITE: {color: color for color in charts.DARK}, NIGHT: charts.DARK}


@cache
def drawn():
    """Draw all pictures again, once, and only if a test needs them."""
    return pictures.pictures()


def parsed(name):
    return ElementTree.parse(pictures.FOLDER / f"{name}.svg").getroot()


def boxes(root):
    """Yield the area that each text covers at most, in pixels."""
    for element in root.iter(f"{SVG}text"):
        x, y = float(element.get("x")), float(element.get("y"))
        wide = charts.width(element.text)
        start = {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")]
        left = x - start * wide
        yield charts.Box(left, y - 11, left + wide, y + 3)


@pytest.mark.slow
def test_every_picture_on_disk_is_made_by_the_program():
    assert sorted(drawn()) == PICTURES


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_on_disk_is_up_to_date(name):
    on_disk = (pictures.FOLDER / f"{name}.svg").read_bytes()
    assert on_disk == drawn()[name].encode(), "run tests/refresh.py"


@pytest.mark.slow
def test_the_parts_of_a_compacted_list_get_their_room_in_the_order_of_rebuild():
    _, _, parts = pictures.compacted()
    order = [pictures.REQUEST, pictures.TAIL, "summary", "older messages", "calls"]
    limit, size, left = parts[pictures.REQUEST]
    assert [*parts] == order and limit == (size + left) // 2


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_title_and_describes_its_numbers(name):
    root = parsed(name)
    assert root.get("role") == "img" and root.findtext(f"{SVG}title")
    assert re.search(r"\d", words := root.findtext(f"{SVG}desc"))
    assert not re.search(r"[][<>\n]", words)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_loads_nothing_from_the_network(name):
    source = (pictures.FOLDER / f"{name}.svg").read_text("utf-8")
    assert re.findall(r"\w+://[^\s\"]+", source) == [SVG.strip("{}")]
    assert "@font-face" not in source and "@import" not in source


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_has_no_background_and_only_known_colors(name):
    root, source = parsed(name), (pictures.FOLDER / f"{name}.svg").read_text("utf-8")
    assert charts.on_dark() in source
    found = re.findall(r'(?:fill|stroke)="([^"]+)"', source)
    assert {*found} <= charts.DARK.keys() | {"none"}
    widths = [float(box.get("width")) for box in root.iter(f"{SVG}rect")]
    assert max(widths, default=0) < charts.WIDTH * 0.9


# --- The program at work ---


def shown():
    """Yield the color and the text of each row of the terminal."""
    source = (pictures.FOLDER / "work.svg").read_text("utf-8")
    colors = dict(re.findall(r"\.(terminal-r\d+) \{ fill: (#\w+)", source))
    [rows] = [g for g in parsed("work").iter(f"{SVG}g") if g.get("class")]
    for text in rows:
        if said := text.text.replace("\xa0", " ").strip():
            yield colors[text.get("class")], said


def hex_of(color):
    return "#{:02x}{:02x}{:02x}".format(*color)


def test_the_terminal_shows_tools_approvals_a_layer_the_answer_and_the_meter():
    colors, lines = zip(*shown())
    heads = [re.match(r"\[\w+\]|> \w+|\+|\[#", line) for line in lines]
    found = " ".join(head[0] for head in heads if head)
    order = "> Why [bash] > y [micro_compact] [thinking] [edit_file] + > y [#"
    assert found == order
    assert colors[lines.index("+@cache")] == hex_of(screenshot.ANSI[2])
    [layer] = [n for n, line in enumerate(lines) if "micro_compact" in line]
    assert colors[layer] == hex_of(screenshot.ANSI[5])
    assert lines[-2] == pictures.FIX[-1]["content"][0]["text"]


def test_each_question_fits_on_a_line_and_is_answered_below_it():
    _, lines = zip(*shown())
    asked = [question for question, answer in pairwise(lines) if answer == "> y"]
    assert ["prices.py" in question for question in asked] == [False, True]


def test_the_description_of_the_terminal_has_every_line():
    told = parsed("work").findtext(f"{SVG}desc")
    for _, line in shown():
        line = line.replace("->", "to").translate(dict.fromkeys(map(ord, "[]<>")))
        assert " ".join(line.split()) in told


def test_the_terminal_is_readable_on_its_background():
    background = hex_of(screenshot.BACKGROUND)
    for color, line in shown():
        assert contrast(color, background) >= 4.5, line


# --- Colors and letters ---


def channels(color):
    """Return red, green and blue of "#rrggbb", from 0 to 1."""
    return [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def brightness(parts):
    """Return the relative luminance of a color, as WCAG 2 defines it."""
    red, green, blue = (
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color, background, share=1.0, over=""):
    """Return the contrast of a color with a background, as WCAG 2 defines it.

    If `over` is given, that color covers the background with this opacity.
    """
    pairs = zip(channels(background), channels(over or background))
    behind = [charts.between(a, b, share) for a, b in pairs]
    dark, light = sorted([brightness(channels(color)), brightness(behind)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("background, other", [(WHITE, NIGHT), (NIGHT, WHITE)])
@pytest.mark.parametrize("color", charts.DARK)
def test_text_is_readable_on_its_page_over_boxes_and_on_the_other_page(
    color, background, other
):
    shown = SHOWN[background]
    assert contrast(shown[color], background) >= 4.5
    gray = shown[charts.TEXT]
    assert contrast(gray, background, charts.FILL, shown[color]) >= 4.5
    assert (
        contrast(shown[color], other) >= 3
    )  # if the page is not what the reader prefers


@pytest.mark.parametrize("name", CHARTS)
def test_text_is_large_enough_inside_the_picture_and_does_not_overlap(name):
    root = parsed(name)
    _, _, width, height = map(int, root.get("viewBox").split())
    assert width == 700 and int(root.get("font-size")) >= 12
    found = list(boxes(root))
    assert all(b.left >= 0 and b.right <= width + 1 for b in found)
    assert max(b.bottom for b in found) < height
    crowd = [a for n, a in enumerate(found) if any(a.meets(b) for b in found[:n])]
    assert crowd == []


def test_the_first_picture_leaves_room_for_the_first_command():
    """GitHub shows a README up to 900 pixels wide, and a picture as wide as that."""
    _, _, width, height = map(int, parsed("session").get("viewBox").split())
    assert 900 * height / width <= 450


def test_the_first_picture_says_under_which_condition_it_holds():
    told = parsed("session").findtext(f"{SVG}desc")
    assert "all with a prompt cache, read at 0.05" in told


def test_a_rule_written_after_a_documentation_is_marked_in_the_picture():
    words = [element.text for element in parsed("policies").iter(f"{SVG}text")]
    marked = {name for name, kind in pairwise(words) if kind.endswith("*")}
    assert marked == {*BY_DOCUMENTATION}
    assert sum(text.startswith("* by its documentation") for text in words)


LABELS = {
    "ours CONTEXT_WINDOW=60000": "ours, window 60,000",
    "ours THRESHOLD=60000": "ours, threshold 60,000",
    "s06 newer": "s06 newer",
}


@pytest.mark.parametrize("name", LABELS)
def test_a_setting_is_named_in_words(name):
    assert pictures.label(name) == LABELS[name]


@pytest.mark.parametrize(
    "tokens, shown", [(0, "a text that is long…"), (1_500, "a text that i…")]
)
def test_a_cell_shows_as_much_of_a_text_as_fits_beside_its_tokens(tokens, shown):
    def drawn(words):
        row = charts.cell(0, 0, 150, words, charts.BLUE, tokens)
        return ElementTree.fromstring(row[1]).text

    assert drawn("a text that is longer than its cell") == shown
    assert drawn("a text") == "a text"


def test_the_figures_are_only_numbers_and_names_of_policies():
    text = pictures.FIGURES.read_text()
    assert json.loads(text)["sessions"] == 24 and len(text) < 60_000
    assert max(map(len, re.findall(r'"([^"]*)"', text))) < 30
    assert not re.search(r"\.\d{4}", text)


def test_the_figures_have_everything_that_the_page_needs(measured):
    on_disk = json.loads(pictures.FIGURES.read_text())
    assert on_disk.keys() == measured.keys()
    same = ("policies", "summaries", "again", "uncached", "prices", "before", "shares")
    same += ("over", "sweep")
    for name in same:
        assert on_disk[name].keys() == measured[name].keys()
    ours = [name for name in on_disk["policies"] if name.startswith("ours")]
    assert sorted(ours) == sorted(on_disk["again"])


@pytest.mark.slow
def test_the_costs_of_a_short_session_are_still_those_of_the_figures():
    [path] = [p for p in costs.shapes(all=True) if p.name.startswith(SHORT)]
    found = pictures.measure([path])["each"][SHORT]
    assert found == json.loads(pictures.FIGURES.read_text())["each"][SHORT]


@pytest.mark.skipif(not LONG_TESTS, reason="takes minutes")
def test_all_figures_come_from_the_shapes():
    measured = json.dumps(pictures.measure(costs.shapes(all=True)))
    assert json.loads(measured) == json.loads(pictures.FIGURES.read_text())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Figures measured on a session of three requests."""
    lines = map(json.dumps, history(did("x" * 3_100), did("ok"), said("Done.")))
    path = tmp_path_factory.mktemp("measured") / "session"
    path.write_text("\n".join(lines))
    return pictures.measure([path])


def test_newly_measured_figures_can_be_drawn(measured):
    assert measured["read"] == stub.CACHE_READ and measured["requests"] == 3
    assert measured["shares"]["newest"] > 0.9 and measured["shares"]["tool_result"] == 0
    courses = measured["session"]["courses"].items()
    lengths = {name: len(steps) for name, (*_, steps) in courses}
    assert lengths == dict.fromkeys(charts.POLICIES, 0) | dict.fromkeys(charts.WAYS, 3)
    assert measured["session"]["prices"].keys() == {*charts.POLICIES}
    assert len(pictures.of_figures(measured)) == 3
