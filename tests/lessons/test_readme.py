"""README.md is true: its listings, names, numbers, commands and their promises."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import builders
import conftest
import costs
import faults
import own_policy
import pytest
import readme
import stub
from builders import LONG_TESTS
from figures import constants, figure, figures
from played import printed, printed_with
from readme import (
    MARKED,
    NUMBER,
    PAGES,
    PICTURE,
    QUOTED,
    TRY,
    definition,
    expected,
    holds,
    names,
    refreshed,
    words,
    written,
)
from stage import ROOT

import agent as program
from agent import EXIT_COMMANDS

SOURCES = [path.read_text("utf-8") for path in PAGES]
# what a reader sees, and the marks of the listings
PAGE, TESTS_PAGE, NAMES = (re.sub(r"<!--\S+?-->", "", text) for text in SOURCES)
COMMANDS = re.findall(r"(?m)^/\w+", program.HELP)
SOURCE = (ROOT / "agent.py").read_text("utf-8")
FENCE = r"(?ms)^```(\w*)\n(.*?)^```$"
PROSE = re.sub(FENCE, "", re.sub(r"(?s)<!--.*?-->", "", PAGE))
FENCES = re.findall(FENCE, PAGE)
HEADINGS = re.findall(r"(?m)^(#+ .+)$", PROSE)
CHAPTERS = dict(re.findall(r"(?ms)^### (\d+)\. (.*?)(?=^###? )", PAGE))
CODE = r"`([A-Za-z_]\w*(?:\.\w+)?)`"


def section(title):
    """The text below a heading, up to the next one of its rank or above."""
    rank, _, _ = title.partition(" ")
    end = rf"(?=^#{{1,{len(rank)}}} |\Z)"
    return re.search(rf"(?ms)^{re.escape(title)}\n(.*?){end}", PAGE)[1]


# --- The parts of the page ---

TITLES = """\
# A coding agent that forgets on purpose
## Where to start
## Part I. Build it
### 0. A model has no memory
### 1. An agent in forty lines
### 2. Three layers in a hundred lines
## Part II. Make it last
### 3. What the API rejects
### 4. Counting tokens
### 5. Layer 1: clear old results
### 6. Too much at once
### 7. Layer 2: the summary
### 8. What stays
### 9. Layer 3: on demand
### 10. Finding it again
## Part III. The price
### 11. What it costs, and what it loses
## Reference
### Installing
### Commands
### Settings
### Tools and permissions
### When something goes wrong
### How to change it
"""


def test_the_chapters_are_there_in_their_order():
    assert TITLES.splitlines() == HEADINGS


def test_the_page_is_not_longer_than_can_be_read():
    assert len(PAGE.splitlines()) <= 1_000


def test_the_reference_is_not_longer_than_can_be_searched():
    assert len(section("## Reference").splitlines()) <= 200


def test_no_line_of_code_has_to_be_scrolled():
    lines = [line for _, text in re.findall(FENCE, PAGE) for line in text.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


def test_lines_of_prose_are_short_but_for_tables_pictures_and_heads():
    long = [line for line in PROSE.splitlines() if len(line) > 120]
    free = ("|", "![")
    assert [line for line in long if not line.startswith(free)] == []


@pytest.mark.parametrize("chapter", ["3", "4", "5", "6", "7", "8", "9", "10"])
def test_a_chapter_has_the_parts_that_teach(chapter):
    text = CHAPTERS[chapter]
    parts = ["**Try it", "**Change it", "**What it can't do"]
    parts += ["| step | what changes"] if chapter in ("5", "7") else []
    assert [part for part in parts if part not in text] == []


# --- Quotations and names ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, what, quoted", [m.groups()[1:] for m in QUOTED.finditer(PAGE)]
)
def test_a_quotation_is_what_it_says(kind, what, quoted):
    assert holds(quoted, expected(kind, what)), "run tests/refresh.py"


FUNCTION = "def f():\n    one\n    two\n    three\n"
QUOTATIONS = {
    FUNCTION: True,
    "def f():\n    ...\n    three\n": True,
    "def f():\n    one\n    ...\n": True,
    "...\n    two\n...\n": True,
    "def f():\n    one\n    two\n": False,  # its last line is missing
    "    one\n    two\n    three\n": False,
    "def f():\n    two\n    three\n": False,
    "def f():\n    one\n    two\n    ...\n    three\n": False,  # nothing is left out
    "def f():\n    ...\n    tw\n    three\n": False,
    "def f():\n    two\n    ...\n    one\n": False,
    "def f():\n    ...\n    four\n": False,
    "...\n": False,
    "": False,
}


@pytest.mark.parametrize("quoted", QUOTATIONS)
def test_a_quotation_has_every_line_or_says_that_some_are_left_out(quoted):
    assert holds(quoted, FUNCTION) == QUOTATIONS[quoted]


QUOTES = "<!-- agent.py: TRANSCRIPT_DIR -->\n```python\n{}```\n"
LINE = 'TRANSCRIPT_DIR = Path(".transcripts")\n'


def test_a_whole_listing_that_is_out_of_date_is_refreshed():
    assert refreshed(QUOTES.format("old\n")) == (QUOTES.format(LINE), [])
    assert refreshed(QUOTES.format(LINE)) == (QUOTES.format(LINE), [])


@pytest.mark.parametrize("quoted, holds", [(LINE, True), ("...\nold\n", False)])
def test_an_abridged_listing_that_is_out_of_date_is_named_and_left_alone(
    tmp_path, monkeypatch, capsys, quoted, holds
):
    monkeypatch.chdir(tmp_path)
    (page := tmp_path / "README.md").write_text(f"\n{QUOTES.format(quoted)}", "utf-8")
    monkeypatch.setattr(readme, "PAGES", [page])
    assert readme.main() == (0 if holds else 1)
    assert page.read_text("utf-8") == f"\n{QUOTES.format(quoted)}"
    named = "README.md:2: abridge this listing again: agent.py: TRANSCRIPT_DIR\n"
    assert capsys.readouterr() == ("", "" if holds else named)


def test_several_definitions_and_a_whole_file_can_be_quoted():
    both = expected("tests/lessons/small.py", "agent_loop, micro_compact")
    file = expected("tests/lessons/small.py", "all")
    assert both in file and file.endswith("\n")
    assert both.count("\n\n\ndef ") == 1


def test_every_fence_of_python_is_a_quotation():
    assert PAGE.count("```python\n") == len(re.findall(r"-->\n```python\n", PAGE))


def test_the_line_above_each_listing_of_the_program_names_its_function():
    heads = re.findall(r"((?:.+\n)+)\n<!-- agent\.py: (\w+)", PAGE)
    assert len(heads) == PAGE.count("<!-- agent.py: ") > 3
    where = [(words(head), f"(*agent.py, `{name}`*):") for head, name in heads]
    assert [place for head, place in where if not head.endswith(place)] == []


def test_the_functions_that_the_tutorials_name_are_quoted_or_named():
    quoted = [m[3].split(", ") for m in QUOTED.finditer(PAGE) if m[2] == "agent.py"]
    assert {"micro_compact", "auto_compact_threshold"} <= {*itertools.chain(*quoted)}
    theirs = {"agent_loop", "tool_result_budget", "snip_compact", "auto_compact"}
    theirs |= {"manual_compact", "reactive_compact"}
    assert theirs <= {*re.findall(CODE, section("## Part II. Make it last"))}


WHOLE = {
    "first.py": "all",
    "small.py": "agent_loop micro_compact auto_compact ask log run_tools",
}


@pytest.mark.parametrize("path", WHOLE)
def test_the_first_agent_and_the_layers_of_the_second_are_whole_on_the_page(path):
    found = [m.groups() for m in QUOTED.finditer(PAGE) if m[2].endswith(f"/{path}")]
    named = {name for _, _, what, _ in found for name in what.split(", ")}
    assert {*WHOLE[path].split()} <= named
    assert all(quoted == expected(kind, what) for _, kind, what, quoted in found)


def test_every_function_in_where_to_change_it_exists():
    table = TESTS_PAGE.partition("## Where to change it")[2].partition("\n## ")[0]
    named = {*re.findall(CODE, table)} - {"ANTHROPIC_BASE_URL", "agent.approve"}
    assert named <= names("agent.py").keys() and len(named) > 10


def test_each_exercise_begins_at_a_function_of_the_program():
    part = TESTS_PAGE.partition("## Exercises")[2].partition("\n## ")[0]
    starts = re.findall(r"\[`(\w+)`", words(part))
    assert {*starts} <= names("agent.py").keys() and len(starts) == 3


# --- The five tutorials ---

TUTORIALS = dict(
    re.findall(r"(?ms)^### (s06 in .*?|v5|s08)\n(.*?)(?=^\[2\]|^###)", NAMES)
)
ROWS = [row.split("|") for row in NAMES.split("\n") if row.startswith("| `")]


def test_what_the_tables_of_the_tutorials_name_of_ours_is_in_the_source():
    here = {name for row in ROWS for name in re.findall(CODE, row[2])}
    settings = {name.upper() for name in conftest.LIMITS}
    assert here <= names("agent.py").keys() | settings and len(ROWS) > 15


def test_a_name_of_the_tutorials_leads_to_a_chapter():
    assert {row[3].strip() for row in ROWS} <= CHAPTERS.keys()
    left_out = [row[2] for row in ROWS if "left out" in row[2]]
    assert len(left_out) == 1 and "because" in left_out[0]


# --- Numbers ---


@pytest.mark.slow
@pytest.mark.parametrize("text", SOURCES, ids=lambda text: text.partition("\n")[0])
def test_every_mark_on_a_page_has_its_number_or_quotation(text):
    new, problems = refreshed(text)
    lines = zip(text.splitlines(), new.splitlines())
    old = [line for line, new_line in lines if line != new_line]
    assert (old, problems) == ([], []) and new == text, "run tests/lessons/readme.py"


def test_a_constant_and_what_follows_from_it_is_written_in_full():
    marks = [mark for text in SOURCES for mark in MARKED.findall(text)]
    marks = [(re.findall(NUMBER, text)[-1], n) for text, n in marks if n in constants()]
    read = [float(number.replace(",", "")) for number, _ in marks]
    assert read == pytest.approx([*map(constants().get, [name for _, name in marks])])
    assert len(read) > 20


@pytest.mark.parametrize(
    "value, old, new",
    [
        (0.7361, "9%", "74%"),
        (0.7361, "99.99%", "73.61%"),
        (0.7361, "9", "1"),
        (0.7361, "10.5", "0.7"),
        (7.0, "0.874", "7.000"),
        (28_000.0, "9", "28,000"),
        (28_000, "9,999", "28,000"),
        (28_000, "9999", "28000"),
        ("1.6.0", "9", "1.6.0"),
    ],
)
def test_a_figure_keeps_the_form_of_its_number(value, old, new):
    assert written(value, old) == new


NAIVE = "**Try it.** Run `python3\n  tests/lessons/naive.py 3` and look for "
MARKS = [  # texts that are out of date, and the same refreshed
    (
        "9 to 9<!--MIN_KEY--> or 9<!--MAX_PAGE-->.",
        "9 to 16<!--MIN_KEY--> or 12,500<!--MAX_PAGE-->.",
    ),
    (
        "| 9 | 1 | 1.0, 1 | 9,9 | 10%<!--japanese--> |",
        "| 9 | 3,500 | 875.0, 5,250 | 2,625 | 328,100%<!--japanese--> |",
    ),
    ("`MIN_KEY` =\n9,999 letters", "`MIN_KEY` =\n16 letters"),
    ("`dropped:\n9 of 9`<!--naive.3-->", "`dropped:\n6 of 12`<!--naive.3-->"),
    (f"{NAIVE}`kept: 1 of 9`.", f"{NAIVE}`kept: 12 of 12`."),
]


@pytest.mark.parametrize("old, new", MARKS)
def test_a_number_that_is_out_of_date_is_refreshed(old, new):
    assert refreshed(old) == refreshed(new) == (new, [])


NAMELESS = {  # a text whose mark has no source, and what is said about it
    "9<!--policies.ours.prize-->": "no figure is named policies.ours.prize",
    "9<!--policies-->": "no figure is named policies",
    "9<!--MIN_KEY.0-->": "no figure is named MIN_KEY.0",
    "`MIN_KEYS` = 9": "no figure is named MIN_KEYS",
    "nine<!--MIN_KEY-->": "MIN_KEY needs 1 number(s) right before it",
    "9 or so<!--MIN_KEY-->": "MIN_KEY needs 1 number(s) right before it",
    "9, 9<!--japanese-->": "japanese needs 5 number(s) right before it",
    "`9 of 9`<!--nave-->": "no program is named nave",
    "`nothing like 9`<!--naive.3-->": "doesn't print: nothing like 9",
    "`rejects 9 of 12`<!--naive.3-->": "12; only: rejects 0 of 12; only: rejects 12 of 12",
    "9<!-- MIN_KEY -->": "this mark names nothing",
    "<!-- agents.py: main -->\n```\n```": "this mark names nothing",
    "<!-- agent.py: mane -->\n```\n```": "nothing to quote: agent.py: mane",
    "<!-- tests/lessons/no.py: all -->\n```\n```": "nothing to quote: tests/lessons/no.",
    "<!-- run: python3 no.py -->\n```\n```": "nothing to quote: run: python3 no.py",
}


@pytest.mark.parametrize("text", NAMELESS)
def test_a_mark_without_a_source_is_reported_with_its_line_and_left_alone(text):
    new, [(line, problem)] = refreshed(f"\n{text}\n")
    assert (new, line) == (f"\n{text}\n", 2) and NAMELESS[text] in problem


def test_all_programs_keep_the_rules_that_a_careful_summary_repeats():
    careful = figures()["reading_100000_careful"].values()
    assert {(run["first"], run["second"]) for run in careful} == {(1, 1)}
    assert len(careful) == 4


def test_each_chapter_of_part_2_names_the_faults_that_its_report_lists():
    chapters = re.split(r"(?m)^### (\d+)\. ", PAGE)
    told = dict(zip(chapters[1::2], chapters[2::2]))
    for check in faults.FAULTS:
        if number := re.fullmatch(r"chapter (\d+)", check.place):
            [names] = re.findall(r"Faults:([^.]*)\.\n", told[number[1]])
            assert f"`{check.name}`" in names


def test_the_share_that_ours_costs_holds_at_other_prices_and_without_a_cache():
    prices, [cost] = figures()["session"]["prices"], figure("longest.ours.cost")
    assert {f"{share:.0%}" for share in prices["ours"]} == {f"{cost:.0%}"}
    assert "as it does costs a quarter of not clearing" in words(PROSE)
    assert prices["s06"][-1] == pytest.approx(1 / 4, abs=0.01)


# --- Rules of the reader's own ---

CHANGED_RULES = {  # a row of the table in tests/README.md, and the rule that it's about
    "keep ten results instead of three (`[:-10]`)": ("clears.py", {"[:-3]": "[:-10]"}),
    "three results, if that frees 80,000 characters: cheap, but edits miss {lost} lines": (
        "late.py",
        {"KEPT = 40_000": "KEPT = 0", "FULL = 300_000": "FULL = 0"},
    ),
    "keep as many as fit into 40,000 characters, at least three": (
        "late.py",
        {"FULL = 300_000": "FULL = 0"},
    ),
    "wait until `len(str(messages))` is 300,000, as well": ("late.py", {}),
    "": ("clears.py", {}),  # not in the table
}


@pytest.mark.skipif(not LONG_TESTS, reason="it replays four sessions")
@pytest.mark.parametrize("change", CHANGED_RULES)
def test_each_step_of_a_policy_costs_what_the_page_says(change, tmp_path):
    name, changes = CHANGED_RULES[change]
    code = (ROOT / "tests/agents" / name).read_text("utf-8")
    for old, new in changes.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    (path := tmp_path / "policy.py").write_text(code)
    runs = costs.runs(False, [], stub.CACHE_READ, path)
    runs = {rule: runs[rule] for rule in ("nothing", "ours", "mine")}
    rows = costs.measure(costs.read(costs.shapes(False)), runs)["rows"]
    found = {row["policy"]: row for row in rows}
    cells = {
        name: f"{row['cost']:.2f} | {row['R']:.3f} |" for name, row in found.items()
    }
    page, row = words(TESTS_PAGE), change.format(lost=found["mine"]["lost"])
    assert f"| ours | {cells['ours']}" in page
    in_table = re.search(
        rf"\| {re.escape(row)}[^|]* \| {re.escape(cells['mine'])}", page
    )
    in_text = "it costs {cost:.2f}, at R {R:.3f}".format(**found["mine"])
    assert in_table if change else in_text in page


@pytest.mark.skipif(not LONG_TESTS, reason="it replays four sessions")
def test_the_api_rejects_a_policy_that_never_forgets_as_often_as_the_page_says(
    tmp_path,
):
    (path := tmp_path / "policy.py").write_text("def forget(m):\n    return m\n")
    sessions = costs.read(costs.shapes(False))
    meters = [own_policy.run(session, path) for session in sessions]
    refused = sum(len(meter.refusals) for meter in meters)
    requests = sum(len(meter.contexts) for meter in meters)
    assert f"rejects {refused} of its {requests} requests" in words(TESTS_PAGE)


# --- Pictures ---


def test_each_picture_is_on_the_page_once_and_told_in_a_sentence_or_two():
    pictures = {path: told for told, path in PICTURE.findall(PAGE)}
    every = [f"tests/pictures/{p.name}" for p in ROOT.glob("tests/pictures/*.svg")]
    assert sorted(pictures) == sorted(every) and len(PICTURE.findall(PAGE)) == len(
        every
    )
    for told in pictures.values():
        assert told.endswith(".") and 1 <= told.count(". ") + 1 <= 2 and len(told) < 220


# --- The reference ---


def in_code(text):
    """The first word of each code span in a text."""
    return {span.split()[0] for span in re.findall(r"`([^`]+)`", text)}


def test_the_reference_has_each_command_and_no_other():
    named = {name for name in in_code(section("### Commands")) if name[0] == "/"}
    assert named == {name for name in (*COMMANDS, *EXIT_COMMANDS) if name[0] == "/"}
    assert {*EXIT_COMMANDS} <= in_code(section("### Commands"))


def test_the_reference_has_each_option(capsys):
    with pytest.raises(SystemExit):
        program.arguments(["--help"])
    options = re.findall(r"(?m)^  (--?[\w-]+)", capsys.readouterr().out)
    assert "--yes" in options and "-p" in options
    assert {*options} - {"-h"} - in_code(section("### Commands")) == set()


def test_the_reference_lists_each_tool():
    first, _, _ = section("### Tools and permissions").strip().partition("\n\n")
    assert program.TOOLS.keys() - in_code(first) == set()


def test_the_words_of_the_screen_are_those_of_the_program():
    told = re.findall("`([^`]+)`", words(section("### When something goes wrong")))
    told = [text.partition(" in line N")[0] for text in told] + [
        "nothing to compact yet"
    ]
    assert all(f"`{text}" in words(PAGE) for text in told) and len(told) > 6
    assert [text for text in told if text not in SOURCE] == []


@pytest.fixture
def install(tmp_path):
    """install(then): run the page's commands and `then` in a new home.

    The packages are on the network, so pip finds none of them.
    """
    (clone := tmp_path / "agent").mkdir()
    for name in ("agent.py", ".env.example", "requirements.txt"):
        shutil.copy(ROOT / name, clone)
    [commands] = [code for _, code in FENCES if "~/agent/agent.py" in code]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {"HOME": str(tmp_path), "PATH": path, "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(then):
        script = f"shopt -s expand_aliases\n{commands}\n{then}\n"
        options = {"capture_output": True, "text": True, "cwd": tmp_path, "env": env}
        return subprocess.run(["bash", "-c", script], check=False, **options)

    return run


@pytest.mark.skipif(not LONG_TESTS, reason="it makes a virtual environment")
def test_the_commands_of_installing_work_up_to_the_packages(install, tmp_path):
    done = install("agent --help")
    assert done.returncode == 0 and done.stdout.startswith("usage: agent.py"), done
    no_network = (
        r"ERROR: .*requirement anthropic.*\nERROR: No matching distribution.*\n"
    )
    assert re.fullmatch(no_network, done.stderr), done.stderr
    key = tmp_path / "agent/.env"
    assert key.read_text("utf-8") == EXAMPLE and key.stat().st_mode & 0o777 == 0o600


# --- Settings ---

EXAMPLE = (ROOT / ".env.example").read_text("utf-8")
OURS, _, THEIRS = EXAMPLE.partition("tutorials' own")


def test_the_settings_of_the_page_are_those_of_the_example_and_the_program():
    table = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", section("### Settings"))
    limits = {k.upper(): n for k, n in vars(program.configured_limits()).items()}
    for name, default in table:
        if re.fullmatch(r"\d+|`.*`", default):
            assert default.strip("`") == str({**vars(program), **limits}[name])
    named = {*re.findall(r"`([A-Z_]+)`", section("### Settings"))}
    assert named == {*re.findall(r"(?m)^#?(\w+)=", OURS)}


NUMBERS = re.findall(r"(?m)^#(\w+)=\d+$", OURS)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_program_knows_each_number_of_the_example(monkeypatch, name):
    monkeypatch.setenv(name, "many")
    with pytest.raises(program.AgentError, match=f"{name}=many"):
        program.configured_limits()


def test_no_setting_of_the_user_reaches_the_tests():
    read = {*re.findall(r'environ\.get\("(\w+)"', SOURCE), *program.KEY_NAMES}
    assert read | {*NUMBERS} <= conftest.SETTINGS | {"TERM"} and len(NUMBERS) > 8


def test_the_example_has_each_limit_with_its_usual_number():
    usual = vars(program.configured_limits())
    found = re.findall(r"(?m)^#(\w+)=(\d+)$", OURS)
    named = {name.lower(): int(number) for name, number in found}
    assert named == usual


# T of each tutorial, and the settings of its layer 1
PRESETS = {
    "s06": {"threshold": 50_000, "min_savings": 0},
    "v5": {"threshold": 170_616, "min_savings": 20_000},
    "s08": {"threshold": 50_000 // 4, "min_savings": 0, "max_messages": 50},
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_example_has_the_numbers_of_each_tutorial_as_settings(name, monkeypatch):
    preset = re.search(rf"(?ms)^# {name}[:,].*?(?=^# |\Z)", THEIRS)[0]
    for setting, value in re.findall(r"(?m)^#(\w+)=(\d+)$", preset):
        monkeypatch.setenv(setting, value)
    made = vars(program.configured_limits()) | {"keep_recent": program.KEEP_RECENT}
    theirs = {"clear_above": 0, "keep_tokens": 0, **PRESETS[name]}
    assert {**made, **theirs} == made == vars(program.configured_limits())


# --- Links ---


def anchors(page):
    """The anchors of the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(FENCE, "", page))
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize(
    "path", ["README.md", "tests/README.md", "tests/lessons/names.md"]
)
def test_links_lead_somewhere(path):
    page = (ROOT / path).read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)|(?m:^\[\d+\]: (\S+))", page):
        file, _, anchor = "".join(target).partition("#")
        if not file.startswith("https:"):
            linked = (ROOT / path).parent / file if file else ROOT / path
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked.read_text("utf-8")), target


def test_a_link_to_a_chapter_shows_the_number_of_that_chapter():
    linked = re.findall(r"\[(?:chapter )?(\d+)\]\(#(\d+)-", PAGE)
    assert [pair for pair in linked if pair[0] != pair[1]] == [] and linked


def test_each_tutorial_is_sent_to_the_chapters_that_fix_it():
    to = dict(re.findall(r"(?m)^\[(\d+)\]: \.\./\.\./README\.md#(\d+)-", NAMES))
    assert {"3", "4", "5", "6", "7", "8", "9", "10"} <= to.keys()
    assert [*to] == [*to.values()] and len(TUTORIALS) == 5
    found = [{*re.findall(r"\[(\d+)\](?!\.)", text)} for text in TUTORIALS.values()]
    assert all(found) and {*itertools.chain(*found)} == to.keys()
    assert "(tests/lessons/names.md)" in section("## Where to start")


def test_what_was_read_elsewhere_has_its_month():
    for number, text in CHAPTERS.items():
        assert "](https://" not in text or re.search(
            r"(June|November) 2026", words(text)
        ), number


def test_no_line_of_a_file_is_named_by_its_number():
    assert not re.search(r"(?i)\blines? \d+ of `|\.py:\d|#L\d", PAGE)


# --- Every command to try shows what it promises ---

TO_TRY = {words(m[1]): words(m[2].strip("`")) for m in TRY.finditer(PAGE)}


@pytest.mark.slow
@pytest.mark.parametrize("command", TO_TRY)
def test_what_can_be_tried_without_a_key_shows_what_it_promises(command):
    if command.endswith("costs.py") and not LONG_TESTS:
        pytest.skip("it replays four sessions")
    output = printed(command)
    assert TO_TRY[command] in words(output)
    is_lesson = command.startswith("python3 tests/lessons/")
    assert not is_lesson or max(map(len, output.split("\n"))) < 80


@pytest.mark.slow
def test_the_first_commands_show_what_the_page_says_to_look_for():
    first = next(code for kind, code in FENCES if kind == "sh").strip()
    assert first.endswith("--mine tests/agents/s06.py")
    assert "before 1 of 4 requests" in printed(first)  # "its fourth request"
    steps = printed("python3 tests/lessons/steps.py layer1").split("layer1 ")[1:]
    refused = [re.findall(r"rejected +request (\d)", step) for step in steps]
    assert refused == [["3"], ["3"], [], [], [], []]
    costs = [re.findall(r"([\d,]+) tokens sent.*price ([\d,]+)", s) for s in steps[2:]]
    (sent, price), (all, whole) = (
        [float(n.replace(",", "")) for n in c] for c in costs[0]
    )
    assert 0.2 < sent / all < 0.3 and 1.7 < price / whole < 2
    assert costs[1][0][1] < costs[1][1][1] and "word: True" in steps[-1]


FAULTS = [*faults.TITLES.values()]


def test_the_page_says_which_faults_to_fix_first():
    left = CHAPTERS["2"].partition("**small.py isn't finished.**")[2]
    first = [
        title.strip(".").replace("`", "")
        for title in re.findall(r"\d\. \*\*(.+?)\*\*", left)
    ]
    assert {*first} <= {*FAULTS} and len(first) == 5


SAID = {
    "first_run.py": "With its own name.",
    "small_run.py": "requests: 35, rejected: 0",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", SAID)
def test_a_lesson_plays_to_its_end(command):
    assert SAID[command] in printed(f"python3 tests/lessons/{command}")


def test_each_chapter_with_a_problem_has_something_to_try():
    missing = [n for n, text in CHAPTERS.items() if "**Try it.**" not in text]
    assert missing == ["0"] and len(TO_TRY) == 12


INLINE = {
    command
    for page in (PROSE, TESTS_PAGE, NAMES)
    for command in re.findall(r"`(?:python3|\.venv/bin/python) (\w[^`]+)`", words(page))
}
# Arguments that may follow a program's name, if there are only a few
TAKES = {
    "agent.py": "( --demo( [1-7])?)?",
    "naive.py": "( ([3-9]|10))?",
    "steps.py": "( (small|layer[12])( [0-6])?)?( --diff)?| small --mine (FILE|tests/agents/s06.py|[a-z0-9_]+.py)| small --serve( --tools.*)?",
}


@pytest.mark.parametrize("command", sorted(INLINE))
def test_a_command_in_a_sentence_is_one_that_there_is(command):
    path = command.split()[0]
    assert (ROOT / path).is_file()
    assert re.fullmatch(TAKES.get(path.split("/")[-1], ".*"), command[len(path) :])


@pytest.mark.parametrize("path", ["README.md", "tests/README.md"])
def test_lines_to_paste_have_no_comments_which_zsh_would_take_for_words(path):
    text = (ROOT / path).read_text("utf-8")
    lines = "".join(code for kind, code in re.findall(FENCE, text) if kind == "sh")
    assert lines and "#" not in lines


def test_python_is_called_by_one_name():
    assert not re.search(r"(?<![/\w.])python (?=\S+\.py)", PAGE)


# --- Every "Change it" is played ---


class Change(NamedTuple):
    """A change a chapter suggests in agent.py, and its effect.

    A code span in the chapter's words names a part of the change, or else it is printed
    after the change and not before. If the page has no such span, or the span was
    printed before too, `told` is the page's sentence, and `was` and `then` its meaning.
    """

    chapter: str
    old: str
    new: str
    command: str
    told: str = ""
    was: str = ""
    then: str = ""


CHANGES = [
    Change(
        "3",
        "    kept = messages[:start]\n",
        "    return messages\n",
        "python3 tests/lessons/naive.py 3",
        told="Now the last line says `the API rejects 12 of 12 lists`",
        was="ours the API rejects 0 of 12 lists",
        then="ours the API rejects 12 of 12 lists",
    ),
    Change(
        "4",
        "    return max(context_window - reserve, context_window // 2)\n",
        "    return context_window * 6 // 10\n",
        "python3 tests/lessons/naive.py 4",
    ),
    Change(
        "5",
        'f"[Previous: used {name}{where}]"',
        'f"[Previous: used {name}, {len(text):,} characters{where}]"',
        "python3 agent.py --demo 2",
        told="Scene 2 of the demo then shows two placeholders with their lengths",
        then="characters, saved at",
    ),
    Change(
        "6",
        "PREVIEW_TOKENS = 640",
        "PREVIEW_TOKENS = 60",
        "python3 agent.py --demo 1",
        told="the preview shrinks from some 800 tokens to some 100",
        was="+ preview bash 8",
        then="+ preview bash 1",
    ),
    Change("7", "not summary or ", "", "python3 tests/lessons/naive.py 7"),
    Change(
        "8",
        "    older = fit_typed(gone[:start], min(MAX_USER_TOKENS, room // 2))  # part 1\n",
        '    older = [typed("Go.")]\n',
        "python3 tests/lessons/naive.py 8",
    ),
    Change(
        "9",
        "    messages = mark_stopped(drop_thinking(agent.messages))\n    room",
        "    messages = agent.messages\n    room",
        "python3 agent.py --demo 4",
    ),
    Change(
        "10",
        "    append(path, line)\n    agent.transcript",
        '    if "event" in entry: append(path, line)\n    agent.transcript',
        "python3 tests/lessons/naive.py 10",
    ),
]


def is_of(change, span):
    """Return True if a code span names part of a change, its place or command."""
    if span in names("agent.py") and change.old in definition("agent.py", span):
        return True
    part = re.escape(span).replace(re.escape("..."), ".*")
    return any(re.search(part, text) for text in ("agent.py", *change[1:4]))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.chapter)
def test_what_is_changed_shows_what_the_page_promises(change):
    told = words(CHAPTERS[change.chapter].partition("**Change it.**")[2])
    told = told.partition(" **")[0]
    assert change.told in told and SOURCE.count(change.old) == 1
    before = words(printed(change.command))
    source = SOURCE.replace(change.old, change.new)
    after = words(printed_with(source, change.command))
    promised = [
        span for span in re.findall("`([^`]+)`", told) if not is_of(change, span)
    ]
    assert [span for span in promised if span not in after] == []
    new = [change.then] if change.then else promised
    assert new and [text for text in new if text not in after or text in before] == []
    assert change.was in before and (not change.was or change.was not in after)


def test_every_change_of_the_page_is_played():
    told = [n for n, text in CHAPTERS.items() if "**Change it" in text]
    assert told == [change.chapter for change in CHANGES]


# --- The tests' page ---


def test_the_readme_lists_every_test_file():
    named = {*re.findall(r"`(test_\w+\.py)`", TESTS_PAGE.partition("## Add a test")[0])}
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert files - {"test_mine.py"} == named


def test_the_tests_page_names_the_source_of_every_shape():
    projects = {path.name.partition("_")[0] for path in costs.SHAPES.glob("*.xz")}
    assert {*re.findall(r"\| `(\w+)_\*` \| \[", TESTS_PAGE)} == projects


EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", TESTS_PAGE)
[MINE] = [code for code in EXAMPLES if code.startswith('"""')]
[IN_LAYER_1] = [code for code in EXAMPLES if code.startswith("def test_")]
[IN_THE_LOOP] = [code for code in EXAMPLES if code.startswith("from stub")]
LEFT_OVER = """\
from stub import reply

from agent import take_turn


def test_it(make):
    assert take_turn(make(reply("One."), reply("Two.")), "Hi") == "One."
"""
OWN = {  # a reader's test files, and the result that pytest reports
    "test_mine.py": (MINE, "PASSED"),
    "test_in_the_loop.py": (IN_THE_LOOP, "PASSED"),
    "test_left_over.py": (LEFT_OVER, "ERROR"),
    "test_in_its_queue.py": (
        MINE.replace('reply("It is 4200.")', 'reply("It is 4200."), reply()'),
        "FAILED",
    ),
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The report of pytest on these files, in a copy of the tests."""
    copy = tmp_path_factory.mktemp("copy")
    others = shutil.ignore_patterns("*.pyc.*", "test_*")
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=others)
    for name in (".pytest.ini", ".env.example", "agent.py"):
        shutil.copy(ROOT / name, copy)
    for name, (text, _) in OWN.items():
        (copy / "tests" / name).write_text(text, "utf-8")
    argv = [sys.executable, "-m", "pytest", "-q", "-n0", "-rA"]
    options = {"capture_output": True, "text": True, "cwd": copy}
    options["env"] = {"PATH": os.environ["PATH"]}
    return subprocess.run(argv, check=False, **options).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_reply_left_in_the_queue_fails_a_readers_test(reported, name):
    assert re.findall(rf"(?m)^([A-Z]+) tests/{name}", reported)[-1:] == [OWN[name][1]]


def test_the_readmes_test_file_is_short_and_uses_the_stand_in():
    assert "StubClient" in MINE and len(MINE.splitlines()) < 20


def test_the_example_of_how_to_add_a_test_passes():
    parts = {"micro_compact": program.micro_compact, "Path": Path}
    exec(IN_LAYER_1, space := {**vars(builders), **parts})
    space["test_a_placeholder_replaces_an_old_result"]()


def test_the_test_that_the_page_gives_to_other_agents_passes(tmp_path, monkeypatch):
    part = TESTS_PAGE.partition("## Test your own agent in CI")[2]
    code, *_ = re.findall(r"(?ms)^```py\n(.*?)^```", part)
    exec(code, space := {})
    test = space["test_my_agent_survives_its_own_forgetting"]
    test(tmp_path, monkeypatch)
    monkeypatch.setattr(space["small"], "MIN_SAVINGS", 10**9)  # it never clears
    with pytest.raises(AssertionError):
        test(tmp_path, monkeypatch)


def test_the_tool_that_the_page_adds_is_one(monkeypatch, workspace):
    page = TESTS_PAGE.partition("## Add a tool")[2]
    code, *_ = re.findall(r"(?ms)^```py\n(.*?)^```", page)
    monkeypatch.setattr(program, "TOOLS", dict(program.TOOLS))
    monkeypatch.setattr(program, "COMPACTABLE_TOOLS", {**program.COMPACTABLE_TOOLS})
    exec(code, dict(vars(program)))
    (workspace / "words.txt").write_text("a few long words")
    call = {"id": "toolu_1", "name": "count_words", "input": {"path": "words.txt"}}
    assert program.run_tool(program.Agent(), call)["content"] == "4"
    assert "count_words" in program.COMPACTABLE_TOOLS
