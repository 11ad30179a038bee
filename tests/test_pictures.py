"""The tutorial's pictures: as on disk, readable on both backgrounds, and true."""

import json
import re
from xml.etree import ElementTree

import charts
import lists
import pictures
import pytest
import stub
from builders import did, history, is_valid, said, typed

import agent as program

DRAWN = pictures.pictures()
SVG = "{http://www.w3.org/2000/svg}"
WHITE, NIGHT = "#ffffff", "#0d1117"
SHOWN = {WHITE: {color: color for color in charts.DARK}, NIGHT: charts.DARK}


def parsed(name):
    return ElementTree.fromstring(DRAWN[name])


def told(name):
    """What a picture says in words, but for its title."""
    root = parsed(name)
    title = root.find(f"{SVG}title").text
    return root.find(f"{SVG}desc").text.removeprefix(f"{title}. ").removesuffix(".")


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
    assert re.search(r"\d", told(name)) and not re.search(r"[][<>\n]", told(name))
    assert charts.on_dark() in DRAWN[name]
    found = re.findall(r'(?:fill|stroke)="([^"]+)"', DRAWN[name])
    assert {*found} <= charts.DARK.keys() | {"none"}
    widths = [float(box.get("width")) for box in root.iter(f"{SVG}rect")]
    assert max(widths, default=0) < charts.WIDTH * 0.9


def channels(color):
    """Red, green and blue of "#rrggbb", from 0 to 1."""
    return [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def brightness(parts):
    """The relative luminance of a color as WCAG 2 defines it."""
    red, green, blue = (
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color, background, share=1.0, over=""):
    """The contrast of a color, as WCAG 2 defines it, with a background.

    `over`: with this color, which fills the background by its share.
    """
    pairs = zip(channels(background), channels(over or background))
    behind = [charts.between(a, b, share) for a, b in pairs]
    dark, light = sorted([brightness(channels(color)), brightness(behind)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("background, other", [(WHITE, NIGHT), (NIGHT, WHITE)])
@pytest.mark.parametrize("color", charts.DARK)
def test_text_can_be_read_on_a_page_on_what_fills_it_and_on_the_other(
    color, background, other
):
    shown = SHOWN[background]
    assert contrast(shown[color], background) >= 4.5
    gray = shown[charts.TEXT]
    assert contrast(gray, background, charts.FILL, shown[color]) >= 4.5
    assert contrast(shown[color], other) >= 3  # where page and reader differ


def test_each_color_has_another_where_the_reader_prefers_dark():
    rules = charts.on_dark()
    assert "@media (prefers-color-scheme: dark)" in rules
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
        found = zip(root.iter(f"{SVG}text"), boxes(root))
        over = [text for text, box in found if box.meets(area)]
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
    assert json.loads(text)["sessions"] == 6 and len(text) < 20_000
    assert max(map(len, re.findall(r'"([^"]*)"', text))) < 30
    assert not re.search(r"\.\d{4}", text)


def test_the_figures_are_all_that_the_page_needs(measured):
    on_disk = json.loads(pictures.FIGURES.read_text())
    assert on_disk.keys() == measured.keys()
    for name in ("policies", "again", "warm", "uncached", "before", "shares"):
        assert on_disk[name].keys() == measured[name].keys()
    ours = [name for name in on_disk["policies"] if name.startswith("ours")]
    assert sorted(ours) == sorted(on_disk["again"])
    assert on_disk["warm"]["2"][:2] == on_disk["policies"]["ours"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The figures of a session of three requests."""
    lines = map(json.dumps, history(did("x" * 3_100), did("ok"), said("Done.")))
    path = tmp_path_factory.mktemp("measured") / "session"
    path.write_text("\n".join(lines))
    return pictures.measure([path])


def test_measuring_anew_gives_figures_that_can_be_drawn(measured):
    assert measured["read"] == stub.CACHE_READ and measured["requests"] == 3
    assert measured["shares"]["newest"] > 0.9 and measured["shares"]["tool_result"] == 0
    rules = measured["session"]["rules"].items()
    lengths = {name: len(steps) for name, (*_, steps) in rules}
    assert lengths == {"nothing": 3, "s06": 3, "ours": 3, "summaries": 0}
    assert len(pictures.of_figures(measured)) == 4


def test_the_policies_stand_in_the_order_of_their_cost():
    found = [float(cost) for cost in re.findall(r": cost ([\d.]+)", told("policies"))]
    assert len(found) > 10 and found == sorted(found)


def session():
    """{rule: [cost, R, steps]} in the session that is drawn."""
    return json.loads(pictures.FIGURES.read_text())["session"]["rules"]


def test_the_first_picture_has_the_cost_of_each_rule_beside_what_it_keeps():
    named = [name for name, _ in charts.RULES.values()]
    rows = re.findall(r"([^;]+): cost ([\d.]+), in sight ([\d.]+)", told("first"))
    assert [name.strip() for name, *_ in rows] == named
    for (_, cost, kept), (wanted, R, _) in zip(rows, map(session().get, charts.RULES)):
        assert (cost, kept) == (f"{wanted:.2f}", f"{R:.3f}")
    costs = {rule: cost for rule, (cost, *_) in session().items()}
    assert costs["ours"] < costs["nothing"] < costs["s06"]


def test_the_session_says_the_peaks_and_what_each_way_costs():
    words = {element.text for element in parsed("session").iter(f"{SVG}text")}
    assert {"1", str(len(session()["ours"][2]))} <= words
    for name in ("s06", "ours"):
        cost, kept, steps = session()[name]
        assert f"{max(size for size, *_ in steps):,}" in words
        assert f": cost {cost:.2f}, in sight {kept:.3f}" in told("session")


def test_the_cut_and_the_prefixes_show_what_the_program_does():
    words = "a cut before message 5: allowed; a cut before message 6: parts a pair"
    assert words in told("cut")
    counts = re.findall(r": (\d) message", told("transcript"))
    assert counts == list("12345234566")


def test_what_remains_is_words_summary_calls_and_results_each_with_its_limit():
    found = re.findall(r"(?:^|; )([^;,]+), at most ([^;:]+): ", told("remains"))
    parts = [part for part, _ in found]
    assert parts == ["your words", "summary", "calls", "results"]
    shown = " ".join(limit for _, limit in found)
    limits = program.MAX_WORDS, program.MAX_RESTORE_TOKENS_PER_FILE
    assert all(f"{limit:,} tokens" in shown for limit in limits)


def test_what_a_cut_keeps_is_a_history_that_the_api_takes():
    messages = history(did("a"), said("b"), typed("c"), did("d", "e"))
    for cut in range(1, len(messages)):
        assert is_valid(lists.kept_by(messages, cut))


def test_one_of_a_thing_is_not_called_by_its_plural():
    for name in DRAWN:
        assert not re.search(r"\b1 (messages|summaries|clearings)", told(name))


def test_what_is_unchanged_is_one_row_and_of_much_that_goes_the_ends_are_shown():
    messages = [typed(str(n)) for n in range(20)]
    shown = lists.differing(messages, messages[:4], "- ")
    words = [row.words for row in shown]
    assert words[3:5] == ["person: 3", "- person: 4"]
    assert words[7:9] == ["- 10 blocks more", "- person: 17"] and len(words) == 11
    [one] = lists.differing(messages, messages, "- ")
    assert one.words == "20 blocks unchanged"


@pytest.mark.parametrize("wide", [100, 336])
def test_a_bar_is_as_long_as_its_tokens_in_a_cell_of_any_width(wide):
    _, _, bar, _ = charts.cell(0, 0, wide, "result", charts.BLUE, 10_000)
    _, scale, _ = charts.bar_scale(0)
    assert f'width="{10_000 / charts.PER_PIXEL:.1f}"' in bar
    assert re.search(r'width="\S+"', bar)[0] == re.search(r'width="\S+"', scale)[0]


def test_a_result_is_saved_before_it_goes_and_comes_back_whole_or_page_by_page():
    usual, large = told("life").split("called for again: ")[1:]
    assert usual.startswith("the whole text, 8,000 tokens")
    assert large.startswith("its first page")
    at = [told("life").index(f"{stage}: ") for stage, _ in pictures.STAGES]
    assert at == sorted(at)
    for words in ("the model sees: a preview", "much later: a placeholder"):
        assert words in told("life")


def test_a_clearing_is_read_anew_once_and_cheap_from_then_on():
    found = re.findall(r"read ([\d,]+), written ([\d,]+)", told("requests"))
    before, last, cleared, after = [[int(n.replace(",", "")) for n in p] for p in found]
    assert cleared[0] < 2_000 and cleared[1] > 10 * last[1]
    assert after[0] > cleared[1] and sum(after) < sum(before)
    *_, last = told("requests").split("; ")
    anew, freed, wait = re.findall(r"\d[\d,.]*", last.replace(",", ""))
    assert float(wait) == round(24 * int(anew) / int(freed), 1)


def test_the_thresholds_are_those_of_the_program():
    limits = program.configured_limits()
    cold = int(limits.threshold * program.CLEAR_COLD)
    for tokens in (cold, limits.clear_above, limits.threshold, limits.window):
        assert f"{tokens:,}: " in told("thresholds")
