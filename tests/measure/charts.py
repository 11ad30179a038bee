"""Pictures as SVG text: no background, colours that read on light and dark alike."""

from html import escape
from itertools import pairwise, takewhile
from math import cos, dist, log, pi, sin, sqrt
from typing import NamedTuple

TEXT, BLUE, ORANGE = "#6e7781", "#2f81f7", "#c2690a"
GREEN, PURPLE = "#2da44e", "#8957e5"
WIDTH, HEIGHT = 700, 440
LEFT, RIGHT, TOP, BOTTOM = 55, 685, 60, 385  # of the plot within the picture
FONT, LETTER = 13, 7.3  # pixels: the height of a letter, and the most of its width
FAMILY = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
COSTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)  # with a tick
KEPT = (1, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.25, 0)  # a line
WALL = 200_000  # tokens: the window
WAYS = {"nothing": TEXT, "s06": ORANGE, "ours": BLUE}

Point = tuple[float, float]


class Dot(NamedTuple):
    """A named value in a picture of costs."""

    name: str
    cost: float
    kept: float
    color: str = TEXT


class Box(NamedTuple):
    """What a name or a dot covers, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def wider(self, more: float) -> "Box":
        """The box with more room at both ends."""
        return self._replace(left=self.left - more, right=self.right + more)

    def meets(self, other: "Box") -> bool:
        """Whether two boxes overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def scatter(dots: list[Dot]) -> str:
    """Cost against what is kept, a dot a policy, its name beside it.

    The first on a logarithmic scale, the second on that of a root: both lie close.
    """
    low, high = min(d.cost for d in dots) / 1.3, max(d.cost for d in dots) * 1.3
    worst = min(d.kept for d in dots)
    least = next(mark for mark in KEPT[3:] if mark <= worst)

    def x(cost: float) -> float:
        return between(LEFT, RIGHT, log(cost / low) / log(high / low))

    def y(kept: float) -> float:
        return between(TOP, BOTTOM, sqrt((1 - kept) / (1 - least)))

    body = [rule(y(kept), f"{kept:.2f}") for kept in KEPT if kept >= least]
    body += [tick(x(cost), f"{cost:g}") for cost in COSTS if low < cost < high]
    body.append(text(LEFT, TOP - 38, "kept in sight of what was needed next (R)"))
    scale = "cost, doing nothing = 1 (logarithmic)"
    body.append(text(RIGHT, HEIGHT - 12, scale, "end"))
    places: dict[Point, list[Dot]] = {}
    for dot in dots:
        place = round(x(dot.cost), 0), round(y(dot.kept), 0)
        places.setdefault(place, []).append(dot)
    body += [circle(at, of_all(found)) for at, found in places.items()]
    body += names_beside(places)
    title = "What each policy costs, against what it keeps: "
    told = [f"{dot.name}: cost {dot.cost:.2f}, R {dot.kept:.3f}" for dot in dots]
    return picture(title + ", ".join(d.name for d in dots), body, told)


def of_all(dots: list[Dot]) -> str:
    """The color of dots in one place."""
    colors = {dot.color for dot in dots}
    return TEXT if len(colors) > 1 else dots[0].color


def names_beside(places: dict[Point, list[Dot]]) -> list[str]:
    """The dots' names, none over another or over a dot; a line leads to a far one."""
    taken = [Box(a - 6, b - 6, a + 6, b + 6) for a, b in places]
    parts = []
    for at, dots in sorted(places.items(), key=lambda place: place[0][1]):
        names, color = ", ".join(dot.name for dot in dots), of_all(dots)
        box = free_place(at, LETTER * len(names), taken)
        way = leader(at, box)
        taken += [box, *way]
        if len(way) > 1:
            parts.append(line([at, nearest(box, at)], color, 1))
        parts.append(name_in(box, at, names, color))
    return parts


def free_place(at: Point, width: float, taken: list[Box]) -> Box:
    """A place for a name of this width, as near to its dot as there is one."""
    box = beside(at, width, 9, 0)
    for away in range(9, 200, 6):
        for step in range(16):
            box = beside(at, width, away, step * pi / 8)
            inside = box.left > LEFT and box.right < WIDTH and 30 < box.top < BOTTOM
            covered = [box.wider(3), *leader(at, box)]
            if inside and not any(a.meets(b) for a in covered for b in taken):
                return box
    return box


def leader(at: Point, box: Box) -> list[Box]:
    """What the line from a dot to its name covers, if it is not right beside it."""
    end = nearest(box, at)
    shares = [share / 8 for share in range(1, 9)] if dist(at, end) > 14 else []
    points = [(between(at[0], end[0], s), between(at[1], end[1], s)) for s in shares]
    return [Box(x - 1, y - 1, x + 1, y + 1) for x, y in points if dist(at, (x, y)) > 8]


def name_in(box: Box, at: Point, name: str, color: str) -> str:
    """A name, held by the side of its box that is towards the dot."""
    if box.left >= at[0]:
        return text(box.left, box.bottom - 4, name, "start", color)
    if box.right <= at[0]:
        return text(box.right, box.bottom - 4, name, "end", color)
    return text((box.left + box.right) / 2, box.bottom - 4, name, "middle", color)


def beside(at: Point, width: float, away: float, angle: float) -> Box:
    """A name's box so far from its dot, in this direction; 0 is to the right."""
    height = FONT + 4
    x = at[0] + away * cos(angle) + (cos(angle) - 1) * width / 2
    y = at[1] + away * sin(angle) + (sin(angle) - 1) * height / 2
    return Box(x, y, x + width, y + height)


def nearest(box: Box, at: Point) -> Point:
    """The point of a box that is nearest to another point."""
    x = min(max(at[0], box.left), box.right)
    return x, min(max(at[1], box.top), box.bottom)


def three_ways(courses: dict[str, list[list[int]]]) -> str:
    """The context of one session under three policies, and what each forgot when."""
    low, high, count = 370, 55, len(courses["nothing"])

    def at(index: int, size: float) -> Point:
        return 55 + 580 * index / max(1, count - 1), low - (low - high) * size / WALL

    marks = {0: "0", 50_000: "50k", 100_000: "100k", 150_000: "150k", WALL: "200k"}
    body = [rule(at(0, size)[1], mark) for size, mark in marks.items()]
    body.append(line([(55, high), (685, high)], TEXT, 2))
    body.append(text(55, 18, f"tokens of context at each of {count} requests"))
    told, y = [], low
    for name, color in WAYS.items():
        sent = [step[0] for step in takewhile(lambda s: s[0] <= WALL, courses[name])]
        refused = len(sent) < len(courses[name])
        curve = [at(i, size) for i, size in enumerate([*sent, *[WALL] * refused])]
        x, top = curve[-1]
        body.append(line(curve, color, 2))
        body.append(text(x + 6, top + (18 if refused else 4), name, "start", color))
        told.append(f"{name}: at most {max(sent):,} tokens")
        if refused:
            body.append(text(x, high - 10, "prompt is too long", "end"))
            told.append(f"refused at request {len(curve)} of {count}")
            continue
        y += 20
        body.append(text(47, y + 4, name, "end", color))
        done = [list(pairwise(column)) for column in zip(*courses[name])][1:]
        cleared, summed = ([n for n, (a, b) in enumerate(d, 1) if a < b] for d in done)
        told.append(f"{len(cleared)} clearings, {len(summed)} summaries")
        ends = [(at(n, 0)[0], y) for n in cleared]
        body += [line([(a, b - 7), (a, b + 7)], color, 1.5) for a, b in ends]
        body += [circle((at(n, 0)[0], y), PURPLE) for n in summed]
    body.append(text(55, 434, "| old results cleared before this request"))
    body.append(text(685, 434, "● all summarised", "end", PURPLE))
    return picture("One recorded session, three ways", body, told)


# ---- the parts of a picture ----


def between(start: float, end: float, share: float) -> float:
    """The number that lies at this share of the way."""
    return start + (end - start) * share


def picture(title: str, body: list[str], told: list[str], height: int = HEIGHT) -> str:
    """An SVG document of these parts, with what it says in words."""
    name, words = escape(title), escape(" ".join("; ".join(told).split()))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{name}" font-family="{FAMILY}" font-size="{FONT}">'
    )
    about = [f"<title>{name}</title>", f"<desc>{words}</desc>"]
    return "\n".join([head, *about, *body, "</svg>", ""])


def text(
    x: float, y: float, words: str, anchor: str = "start", color: str = TEXT
) -> str:
    """A line of text."""
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"


def rule(y: float, label: str) -> str:
    """A thin line across the plot, with its value beside it."""
    ends = f'x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
    drawn = f'<line {ends} stroke="{TEXT}" stroke-opacity="0.3"/>'
    return drawn + text(LEFT - 8, y + 4, label, "end")


def tick(x: float, label: str) -> str:
    """A value under the plot."""
    ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 5}"'
    drawn = f'<line {ends} stroke="{TEXT}"/>'
    return drawn + text(x, BOTTOM + 20, label, "middle")


def circle(at: Point, color: str) -> str:
    """A dot."""
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5" fill="{color}"/>'


def line(points: list[Point], color: str, width: float) -> str:
    """A line through the points, of which near ones are left out."""
    kept = [points[0]]
    for point in points[1:-1]:
        if dist(point, kept[-1]) > 0.7:
            kept.append(point)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*kept, points[-1]])
    style = f'fill="none" stroke="{color}" stroke-width="{width}"'
    return f'<polyline points="{path}" {style}/>'


def box(
    x: float, y: float, wide: float, height: int, color: str, opacity: float = 0.15
) -> str:
    """A rectangle; its outline if nothing fills it."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height}" rx="3"'
    outline = f'fill="none" stroke="{color}"'
    style = f'fill="{color}" fill-opacity="{opacity}"' if opacity else outline
    return f"<rect {place} {style}/>"


def cell(
    x: float, y: float, wide: float, words: str, color: str, tokens: int = 0
) -> list[str]:
    """A box in a list, its text clipped, filled by its tokens in parts of 10,000."""
    words, count = " ".join(words.split()), f"{tokens:,}" if tokens else ""
    most = int((wide - 10 - 9 * len(count)) / LETTER)
    words = words if len(words) <= most else f"{words[: most - 1]}…"
    parts = [box(x, y, wide, 19, color, 0), text(x + 6, y + 14, words)]
    if tokens:
        parts.append(box(x, y, min(1, tokens / 10_000) * wide, 19, color))
        parts.append(text(x + wide - 6, y + 14, count, "end"))
    return parts
