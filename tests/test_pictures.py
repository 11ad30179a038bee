"""The tutorial's pictures: as on disk, readable on both backgrounds, and true."""

import inspect
import json
import re
from xml.etree import ElementTree

import charts
import lists
import pictures
import pytest
from builders import did, history, is_valid, said, typed

import agent as program

DRAWN = pictures.pictures()
SVG = "{http://www.w3.org/2000/svg}"
WHITE, NIGHT = "#ffffff", "#0d1117"
SHOWN = {WHITE: {color: color for color in charts.DARK}, NIGHT: charts.DARK}


def parsed(name):
    return ElementTree.fromstring(DRAWN[name])


def told(name):
    return parsed(name).find(f"{SVG}desc").text


def boxes(root):
    """What each text covers at most, in pixels."""
    for element in root.iter(f"{SVG}text"):
        x, y = float(element.get("x")), float(element.get("y"))
        wide = len(element.text)
        start = {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")]
        left = x - start * wide * charts.LETTER
        yield charts.Box(left, y - 11, left + wide * charts.LETTER, y + 3)


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_made_again_is_the_one_on_disk(name):
    on_disk = (pictures.FOLDER / f"{name}.svg").read_bytes()
    assert on_disk == DRAWN[name].encode(), "run tests/measure/pictures.py"


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_a_title_its_numbers_in_words_and_no_background(name):
    root = parsed(name)
    assert root.get("role") == "img" and root.find(f"{SVG}title").text
    assert name == "doors" or re.search(r"\d", told(name))
    found = re.findall(r'(?:fill|stroke)="([^"]+)"', DRAWN[name])
    assert {*found} <= charts.DARK.keys() | {"none"}
    widths = [float(box.get("width")) for box in root.iter(f"{SVG}rect")]
    assert max(widths, default=0) < charts.WIDTH * 0.9


def brightness(color):
    """The relative luminance of "#rrggbb" as WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(color, background):
    """The contrast of two colors as WCAG 2 defines it; text needs 4.5."""
    dark, light = sorted([brightness(color), brightness(background)])
    return (light + 0.05) / (dark + 0.05)


def filled(color, background):
    """The color of what lies behind text, over a background."""
    parts = [[int(c[at : at + 2], 16) for at in (1, 3, 5)] for c in (color, background)]
    mixed = (charts.between(b, a, charts.FILL) for a, b in zip(*parts))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


@pytest.mark.parametrize("background", SHOWN)
@pytest.mark.parametrize("color", charts.DARK)
def test_text_can_be_read_on_its_background_and_on_all_that_fills_it(color, background):
    shown = SHOWN[background]
    assert contrast(shown[color], background) >= 4.5
    fill = filled(shown[color], background)
    assert contrast(shown[charts.TEXT], fill) >= 4.5


@pytest.mark.parametrize("background, other", [(WHITE, NIGHT), (NIGHT, WHITE)])
@pytest.mark.parametrize("color", charts.DARK)
def test_text_is_still_seen_where_page_and_reader_differ(color, background, other):
    assert contrast(SHOWN[background][color], other) >= 3


@pytest.mark.parametrize("name", DRAWN)
def test_each_color_has_another_where_the_reader_prefers_dark(name):
    rules = parsed(name).find(f"{SVG}style").text
    assert rules.strip().startswith("@media (prefers-color-scheme: dark)")
    for color, other in charts.DARK.items():
        assert f'[fill="{color}"] {{ fill: {other} }}' in rules
        assert f'[stroke="{color}"] {{ stroke: {other} }}' in rules


@pytest.mark.parametrize("name", DRAWN)
def test_text_lies_on_a_light_fill_only_and_is_gray_there(name):
    root = parsed(name)
    fills = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") != "none"]
    for rect in fills:
        x, y, wide, high = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        area = charts.Box(x, y, x + wide, y + high)
        over = [
            t for t, b in zip(root.iter(f"{SVG}text"), boxes(root)) if b.meets(area)
        ]
        assert not over or float(rect.get("fill-opacity")) == charts.FILL
        assert {text.get("fill") for text in over} <= {charts.TEXT}


@pytest.mark.parametrize("name", DRAWN)
def test_text_is_large_enough_inside_the_picture_and_not_over_other_text(name):
    root = parsed(name)
    _, _, width, height = map(int, root.get("viewBox").split())
    assert width == 700 and int(root.get("font-size")) >= 12
    found = list(boxes(root))
    assert all(0 <= b.left and b.right <= width + 1 for b in found)
    assert max(b.bottom for b in found) < height
    crowd = [a for n, a in enumerate(found) if any(a.meets(b) for b in found[:n])]
    assert crowd == []


def test_the_figures_are_numbers_and_names_of_policies():
    text = pictures.FIGURES.read_text()
    assert json.loads(text)["sessions"] == 9 and len(text) < 20_000
    assert max(map(len, re.findall(r'"([^"]*)"', text))) < 30


def test_measuring_anew_gives_figures_that_can_be_drawn(tmp_path):
    lines = map(json.dumps, history(did("x" * 3_100)))
    (tmp_path / "session").write_text("\n".join(lines))
    figures = pictures.measure([tmp_path / "session"])
    assert figures["read"] == program.CACHE_READ and figures["requests"] == 1
    assert figures["shares"]["newest"] > 0.9 and figures["shares"]["tool_result"] == 0
    assert [len(course) for course in figures["steps"].values()] == [1, 1, 1]
    pictures.tokens_by_kind(figures), charts.three_ways(figures["steps"])


def test_the_figures_are_by_the_clock_of_the_gaps(tmp_path):
    lines = map(json.dumps, history(did("x" * 3_100), did("ok")))
    (path := tmp_path / "session").write_text("\n".join(lines))
    (gaps := tmp_path / "gaps").write_text('{"session": {"3": 400}}')
    alive, gone = (
        pictures.measure([path], clock)["policies"] for clock in (None, gaps)
    )
    assert gone["s06"][0] < alive["s06"][0]  # it has no cache to lose


def test_the_policies_stand_in_the_order_of_their_cost():
    found = [float(cost) for cost in re.findall(r": cost ([\d.]+)", told("policies"))]
    assert len(found) > 10 and found == sorted(found)


def test_the_sessions_peaks_and_the_requests_that_matter_are_named():
    figures = json.loads(pictures.FIGURES.read_text())
    words = {element.text for element in parsed("session").iter(f"{SVG}text")}
    assert {"1", str(len(figures["steps"]["ours"]))} <= words
    for name in ("s06", "ours"):
        assert f"{max(step[0] for step in figures['steps'][name]):,}" in words


def test_each_door_stands_in_the_loop_and_leads_to_one_function():
    loop = inspect.getsource(program.agent_loop)
    assert all(door in loop for door in pictures.DOORS if door != "/compact")
    for caller in pictures.DOORS.values():
        assert f"{caller} leads to compact_history" in told("doors")
    for caller, when in pictures.WITHOUT_SUMMARY.items():
        assert f"{caller} leads to compact_without_model, {when}" in told("doors")


def test_the_cut_and_the_prefixes_show_what_the_program_does():
    assert "message 6 of 9: allowed; a cut before message 7 of 9: parts" in told("cut")
    counts = re.findall(r": (\d) message", told("transcript"))
    assert counts == list("12345123455")


def test_what_a_cut_keeps_is_a_history_that_the_api_takes():
    messages = history(did("a"), said("b"), typed("c"), did("d", "e"))
    for cut in range(1, len(messages)):
        assert is_valid(lists.kept_by(messages, cut))


def test_one_of_a_thing_is_not_called_by_its_plural():
    assert "after: 1 message, " in told("auto_compact")
    for name in DRAWN:
        assert not re.search(r"\b1 (messages|summaries|clearings)", told(name))


def test_what_is_unchanged_is_one_row_and_of_much_that_goes_the_ends_are_shown():
    messages = [typed(str(n)) for n in range(20)]
    shown = lists.differing(messages, messages[:4], "- ")
    words = [row.words for row in shown]
    assert words[0] == "4 blocks unchanged" and words[4] == "- 10 blocks more"
    assert len(words) == 8 and words[-1] == "- person: 19"


def test_a_result_comes_back_whole_or_page_by_page():
    usual, large = told("life").split("called for again: ")[1:]
    assert usual.startswith("the whole text, 8,000 tokens")
    assert large.startswith("its first page")
    assert "the model sees: <persisted-output>" in told("life")


def test_a_clearing_is_read_anew_once_and_cheap_from_then_on():
    found = re.findall(r"read ([\d,]+), written ([\d,]+)", told("requests"))
    before, last, cleared, after = [[int(n.replace(",", "")) for n in p] for p in found]
    assert cleared[0] < 2_000 and cleared[1] > 10 * last[1]
    assert after[0] > cleared[1] and sum(after) < sum(before)


def test_the_lines_cross_where_the_program_says_that_a_clearing_is_paid_back():
    root = parsed("paid_back")
    dot = root.find(f"{SVG}circle")
    lines = root.findall(f"{SVG}polyline")[:2]
    for line in lines:
        points = [map(float, pair.split(",")) for pair in line.get("points").split()]
        (x, y), (end, high) = points
        share = (float(dot.get("cx")) - x) / (end - x)
        assert abs(charts.between(y, high, share) - float(dot.get("cy"))) < 0.5


def test_the_thresholds_are_those_of_the_program():
    limits = vars(program.limits())
    for tokens in (limits["clear_above"], limits["threshold"], limits["window"]):
        assert f"{tokens:,}: " in told("thresholds")
    assert f"{program.MAX_RESULT_TOKENS:,}: one result" in told("thresholds")
