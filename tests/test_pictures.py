"""The tutorial's pictures: as on disk, readable on both backgrounds, and true."""

import inspect
import json
import re
from xml.etree import ElementTree

import charts
import pictures
import pytest
from builders import did, history

import agent as program

DRAWN = pictures.pictures()
SVG = "{http://www.w3.org/2000/svg}"
COLORS = {charts.TEXT, charts.BLUE, charts.ORANGE, charts.GREEN, charts.PURPLE}


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
    assert {*found} <= COLORS | {"none"}
    widths = [float(box.get("width")) for box in root.iter(f"{SVG}rect")]
    assert max(widths, default=0) < charts.WIDTH * 0.9


def brightness(color):
    """The relative luminance of "#rrggbb" as WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#0d1117"])
@pytest.mark.parametrize("color", sorted(COLORS))
def test_each_color_can_be_read_on_both_backgrounds(color, background):
    dark, light = sorted([brightness(color), brightness(background)])
    assert (light + 0.05) / (dark + 0.05) >= 3


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


def test_each_door_stands_in_the_loop_and_leads_to_one_function():
    loop = inspect.getsource(program.agent_loop)
    doors = "should_compact(agent)", "agent.focus is not None", "except PromptTooLong"
    assert all(door in loop for door in doors)
    for name in ("auto_compact", "manual_compact", "reactive_compact", "command"):
        assert f"{name} leads to compact_history" in told("doors")


def test_the_cut_and_the_prefixes_show_what_the_program_does():
    assert "message 6 of 9: allowed; a cut before message 7 of 9: parts" in told("cut")
    counts = re.findall(r": (\d) messages", told("transcript"))
    assert counts == list("12345123455")
