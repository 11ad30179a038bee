"""Draw charts as SVG, without a background, readable on white and on dark pages.

Whatever a color says, a word, a letter or a dashed line says too.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import accumulate, pairwise
from math import dist
from typing import NamedTuple

TEXT, BLUE, ORANGE = "#5b6570", "#0969da", "#b35309"
GREEN, PURPLE = "#1a7f37", "#8250df"
DARK = {  # the colors for readers who prefer a dark background
    TEXT: "#8b949e",
    BLUE: "#4090f5",
    ORANGE: "#d9772b",
    GREEN: "#31a350",
    PURPLE: "#a675f8",
}
FILL = 0.15  # the opacity of boxes behind text
WIDTH = 700
LEFT, RIGHT, TOP, BOTTOM = 55, 685, 40, 184  # the plot within the picture
FONT = 13  # pixels
FAMILY = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
LETTERS = {  # their width in DejaVu Sans, the widest of these fonts, relative to FONT
    0.32: "'ijlIJ ,.",
    0.42: "/:;\\|f-()[]t!r",
    0.54: '"*_`sz?',
    0.62: "cLFkvxyPTYoae",
    0.64: "EhnuSbdgpq0123456789${}",
    0.70: "KAVXZBRC",
    0.79: "UNHDG&OQ",
    0.88: "#+<=>^~wM●",
}
LETTER_WIDTHS = {letter: wide for wide in LETTERS for letter in LETTERS[wide]}
GROUPS = {
    BLUE: "this program",
    ORANGE: "tutorial",
    GREEN: "other agent",
    PURPLE: "API service*",
    TEXT: "baseline",
}
WALL = 200_000  # tokens: the window
WAYS = {"nothing": (TEXT, "2 3"), "s06": (ORANGE, "7 3"), "ours": (BLUE, "")}
POLICIES = [*WAYS, "s06 newer"]  # in the picture of one session; the last only in words
SCALE = {0: "0", 50_000: "50k", 100_000: "100k", 150_000: "150k", WALL: "200k"}

Point = tuple[float, float]


class Cost(NamedTuple):
    """The cost of a policy (doing nothing is 1), and how much it keeps (R)."""

    name: str
    cost: float
    kept: float
    color: str = TEXT


class Course(NamedTuple):
    """One session under a policy: its cost, how much is kept, and its requests.

    A step has the tokens of a request, and the clearings and summaries so far.
    """

    cost: float
    kept: float
    steps: list[list[int]]


class Box(NamedTuple):
    """The area of a text, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Return whether two boxes overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def two_bars(costs: list[Cost], uncached: dict[str, float], of: int) -> str:
    """Draw two bars per policy, in the given order: its cost, and how much it keeps.

    `uncached` has the costs of some policies without a prompt cache, and `of` is the
    number of sessions.
    """
    dearest = max(row.cost for row in costs)
    body = [text(8, 18, f"over {of} long recorded sessions")]
    body.append(text(298, 18, "cost (shorter is better)"))
    body.append(text(500, 18, "R (longer is better)"))
    told = []
    for number, row in enumerate(costs):
        y, wide = 30 + 24 * number, 140 * row.cost / dearest
        body += [text(8, y + 14, row.name), text(202, y + 14, GROUPS[row.color])]
        body.append(box(298, y, wide, 18, row.color, 1))
        body.append(text(306 + wide, y + 14, f"{row.cost:.2f}"))
        body.append(box(500, y, 140, 18, row.color, 0))
        body.append(box(500, y, 140 * row.kept, 18, row.color, 1))
        body.append(text(692, y + 14, f"{row.kept:.3f}", "end"))
        told.append(f"{row.name}: cost {row.cost:.2f}, R {row.kept:.3f}")
    full = ", ".join(f"{name} {cost:.1f}" for name, cost in uncached.items())
    notes = [
        "a cost of 1 is doing nothing; an R of 1 (a full frame) is everything in sight",
        "doing nothing is priced as if its window had no limit",
        f"all have a prompt cache; costs without one: {full}",
        "* by its documentation, which can be read in two ways: its limit counts all that",
        "is sent, or only the rest that isn't cleared; others by their code or description",
    ]
    y = 46 + 24 * len(costs)
    body += [text(8, y + 20 * n, words) for n, words in enumerate(notes)]
    title = f"What each policy costs, and how much it keeps, over {of} long sessions"
    return picture(title, body, told + notes, y + 92)


def refused_at(steps: list[list[int]]) -> int:
    """Return the number of the first request that exceeds the window, or 0."""
    over = (number for number, (size, *_) in enumerate(steps, 1) if size > WALL)
    return next(over, 0)


def three_ways(courses: dict[str, Course], of: int, read: float) -> str:
    """Draw the context of the longest session under three policies.

    `of` is the number of sessions, and `read` the price of reading a cached token.
    """
    count = len(courses["nothing"].steps)
    at = partial(place, count)
    body = [rule(at(1, size)[1], mark) for size, mark in SCALE.items()]
    body.append(line([(LEFT, TOP), (RIGHT, TOP)], TEXT, 2))
    which = f"each of {count} requests of the longest of {of} sessions"
    body.append(text(LEFT, 14, f"tokens of context at {which}"))
    told, marks, y = [], [1, count], BOTTOM + 36
    for name in WAYS:
        body += growth(name, courses[name], at)
        told += [*in_words(name, courses[name])]
        if last := refused_at(courses[name].steps):
            marks.append(last)
        else:
            body += [*forgotten(name, courses[name], y, at)]
            y += 40
    if 0 < count - marks[-1] < 30:  # no room for both
        marks.remove(count)
    free = [n for n in range(100, count, 100) if all(abs(n - m) > 15 for m in marks)]
    body += [tick(at(n, 0)[0], str(n)) for n in [*marks, *free]]
    body.append(text(LEFT, y + 2, "| old results are cleared before this request"))
    body.append(text(RIGHT, y + 2, "● a summary", "end", PURPLE))
    newer = what_it_costs(courses["s06 newer"])
    told.append(f"cost: 1 is doing nothing; all with a prompt cache, read at {read}")
    told.append(f"in sight: what was needed next (R); s06's newer code: {newer}")
    body += [text(LEFT, y + 20, told[-2]), text(LEFT, y + 38, told[-1])]
    title = f"The longest of {of} recorded sessions, three ways"
    return picture(title, body, told, y + 48)


def place(count: int, request: int, size: float) -> Point:
    """Return where a request of so many is in the plot, by its tokens."""
    step = 580 / max(1, count - 1)  # pixels
    return LEFT + step * (request - 1), between(BOTTOM, TOP, size / WALL)


def growth(name: str, course: Course, at: Callable[..., Point]) -> list[str]:
    """Draw how the context grows and shrinks, up to a request that is too long."""
    (color, dashes), last = WAYS[name], refused_at(course.steps)
    sent = accepted(course)
    curve = [at(*point) for point in enumerate([*sent, *[WALL] * bool(last)], 1)]
    x, top = curve[-1]
    drawn = [line(curve, color, 2, dashes)]
    drawn.append(text(x + 6, top + (18 if last else 4), name, "start", color))
    if last:
        refusal = f"request {last}: prompt is too long"
        return [*drawn, text(x, TOP - 7, refusal, "end")]
    x, top = at(sent.index(max(sent)) + 1, max(sent))
    near_end = x > RIGHT - 100  # where the curve has its name
    anchor = "end" if near_end else "start"
    return [
        *drawn,
        text(x + (-5 if near_end else 5), top - 6, f"{max(sent):,}", anchor, color),
    ]


def accepted(course: Course) -> list[int]:
    """Return the sizes of the requests before one is too long."""
    last = refused_at(course.steps)
    return [size for size, *_ in course.steps][: last - 1 if last else None]


def forgotten(
    name: str, course: Course, y: float, at: Callable[..., Point]
) -> Iterator[str]:
    """Draw when a policy forgot, with its numbers below."""
    color, _ = WAYS[name]
    yield text(LEFT - 8, y + 4, name, "end", color)
    yield text(LEFT, y + 21, how_often(course))
    cleared, summed = ([at(n, 0)[0] for n in s] for s in when_forgotten(course))
    yield from (line([(x, y - 6), (x, y + 6)], color, 1.5) for x in cleared)
    yield from (circle((x, y), PURPLE) for x in summed)


def in_words(name: str, course: Course) -> Iterator[str]:
    """Describe the context of a policy, and what it forgot."""
    yield f"{name}: at most {max(accepted(course)):,} tokens"
    last, count = refused_at(course.steps), len(course.steps)
    yield f"too long at request {last} of {count}" if last else how_often(course)


def how_often(course: Course) -> str:
    """Say how often a policy forgot, what that cost, and how much stayed."""
    cleared, summed = map(len, when_forgotten(course))
    clearings = counted(cleared, "clearing", "clearings")
    summaries = counted(summed, "summary", "summaries")
    return f"{clearings} and {summaries}: {what_it_costs(course)}"


def what_it_costs(course: Course) -> str:
    """Say what a policy costs in a session, and how much stays in sight."""
    return f"cost {course.cost:.2f}, in sight {course.kept:.3f}"


def when_forgotten(course: Course) -> list[list[int]]:
    """Return the requests before which results were cleared, and those of summaries."""
    _, *done = zip(*course.steps)
    return [
        [n for n, (before, now) in enumerate(pairwise(counts), 2) if before < now]
        for counts in done
    ]


# ---- the parts of a picture ----


def width(words: str) -> float:
    """Return the width of a text in pixels, at most."""
    return FONT * sum(LETTER_WIDTHS.get(letter, 1) for letter in words)


def between(start: float, end: float, share: float) -> float:
    """Return the number at this fraction of the way."""
    return start + (end - start) * share


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def picture(title: str, body: list[str], told: list[str], height: float) -> str:
    """Return an SVG document with these parts, and its description."""
    name, words = escape(title), escape(alt_text(title, told))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'role="img" aria-label="{name}" font-family="{FAMILY}" font-size="{FONT}">'
    )
    about = [f"<title>{name}</title>", f"<desc>{words}</desc>", on_dark()]
    return "\n".join([head, *about, *body, "</svg>", ""])


def alt_text(title: str, told: list[str]) -> str:
    """Return the description that the page has too, so without brackets."""
    words = f"{title}. {'; '.join(told)}."
    return " ".join(words.translate(dict.fromkeys(map(ord, "[]<>"))).split())


def on_dark() -> str:
    """Return the CSS that replaces each color on a dark page."""
    rules = [
        f'[{part}="{color}"] {{ {part}: {other} }}'
        for color, other in DARK.items()
        for part in ("fill", "stroke")
    ]
    wanted = "@media (prefers-color-scheme: dark)"
    return "\n".join(["<style>", f"{wanted} {{", *rules, "}", "</style>"])


def text(
    x: float, y: float, words: str, anchor: str = "start", color: str = TEXT
) -> str:
    """Return a line of text."""
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"


def rule(y: float, label: str) -> str:
    """Return a thin line across the plot, with its value."""
    ends = f'x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
    drawn = f'<line {ends} stroke="{TEXT}" stroke-opacity="0.3"/>'
    return drawn + text(LEFT - 8, y + 4, label, "end")


def tick(x: float, label: str) -> str:
    """Return a tick under the plot, with its value."""
    ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 5}"'
    drawn = f'<line {ends} stroke="{TEXT}"/>'
    return drawn + text(x, BOTTOM + 18, label, "middle")


def circle(at: Point, color: str) -> str:
    """Return a dot."""
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5" fill="{color}"/>'


def mark(x: float, y: float) -> str:
    """Return a small arrowhead that points up to (x, y)."""
    return line([(x - 5, y + 7), (x, y), (x + 5, y + 7)], TEXT, 2)


def line(points: Sequence[Point], color: str, width: float, dashes: str = "") -> str:
    """Return a line through the points, without those too close to see."""
    kept = [points[0]]
    for point in points[1:-1]:
        if dist(point, kept[-1]) > 0.7:
            kept.append(point)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*kept, points[-1]])
    style = f'fill="none" stroke="{color}" stroke-width="{width}"'
    return f'<polyline points="{path}" {style}{dashed(dashes)}/>'


def dashed(dashes: str) -> str:
    """Return the attribute for a dashed line, or nothing."""
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def box(
    x: float,
    y: float,
    wide: float,
    height: float,
    color: str,
    opacity: float = FILL,
    dashes: str = "",
) -> str:
    """Return a rectangle, or its outline if the opacity is 0."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height}" rx="3"'
    outline = f'fill="none" stroke="{color}"{dashed(dashes)}'
    style = f'fill="{color}" fill-opacity="{opacity}"' if opacity else outline
    return f"<rect {place} {style}/>"


def badge(x: float, y: float, letter: str, color: str) -> list[str]:
    """Return a small square with a letter in it."""
    square = [box(x, y, 18, 19, color), box(x, y, 18, 19, color, 0)]
    return [*square, text(x + 9, y + 14, letter, "middle")]


def cell(
    x: float,
    y: float,
    wide: float,
    words: str,
    color: str,
    tokens: int = 0,
) -> list[str]:
    """Return a row of a list: its text, clipped, and its tokens."""
    words, count = " ".join(words.split()), f"{tokens:,}" if tokens else ""
    room = wide - 12 - (width(count) + 6) * bool(count)
    if width(words) > room:
        sizes = accumulate(map(width, words), initial=width("…"))
        words = f"{words[: sum(size <= room for size in sizes) - 1]}…"
    parts = [box(x, y, wide, 19, color, 0), text(x + 6, y + 14, words)]
    if tokens:
        parts.append(text(x + wide - 6, y + 14, count, "end"))
    return parts
