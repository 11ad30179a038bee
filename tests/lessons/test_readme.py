"""README.md is true: its listings, names, numbers, commands and their promises."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import conftest
import costs
import faults
import own_faults
import own_policy
import prices
import pytest
import readme
import stub
from builders import LONG_TESTS
from moment import NO_INDEX
from ours import MOST_LOOKUPS
from played import printed, printed_with
from readme import (
    PICTURE,
    QUOTED,
    README,
    ROOT,
    definition,
    expected,
    filled,
    holds,
    names,
)
from stub import BYTES_PER_TOKEN

import agent as program
from agent import EXIT_COMMANDS

PAGE = README.read_text("utf-8")
COMMANDS = re.findall(r"(?m)^/\w+", program.HELP)
TESTS_PAGE = (ROOT / "tests/README.md").read_text("utf-8")
SOURCE = (ROOT / "agent.py").read_text("utf-8")
FIGURES = json.loads((ROOT / "tests/measure/figures.json").read_text("utf-8"))
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


def words(text):
    """The text in one line, so that it can be compared wherever a line was broken."""
    return " ".join(text.split())


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Run the programs whose output the page quotes in this process."""
    monkeypatch.setattr(readme, "printed", printed)


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
    assert filled(QUOTES.format("old\n")) == QUOTES.format(LINE)
    assert filled(QUOTES.format(LINE)) == QUOTES.format(LINE)


@pytest.mark.parametrize("quoted, holds", [(LINE, True), ("...\nold\n", False)])
def test_an_abridged_listing_that_is_out_of_date_is_named_and_left_alone(
    tmp_path, monkeypatch, capsys, quoted, holds
):
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text(QUOTES.format(quoted), "utf-8")
    assert readme.main() == (0 if holds else 1)
    assert readme.README.read_text("utf-8") == QUOTES.format(quoted)
    named = "abridge this listing again: agent.py: TRANSCRIPT_DIR\n"
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
    assert len(heads) == PAGE.count("<!-- agent.py: ") > 4
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

NAMES = (ROOT / "tests/lessons/names.md").read_text("utf-8")
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

T = program.Limits().threshold
WRITE, READ = stub.CACHE_WRITE, stub.CACHE_READ
SHARE = {name: f"{share:.1%}" for name, share in FIGURES["shares"].items()}


def pays(read):
    """The factor before K / F if reading from the cache has this price."""
    return f"{(WRITE - read) / read:.3g}"


def progress():
    """A minute of a progress bar that is drawn ten times a second."""
    for n in range(600):
        bar, rest = "#" * (n // 20), " " * (30 - n // 20)
        yield f"\rloading {n // 6:3}%|{bar}{rest}| {n}/600 [00:{n // 10:02}, 10.0it/s]"


def cleaned(lines):
    """Rounded tokens of a command's output, before and after cleaning."""
    text = "".join(lines)
    sizes = (
        program.tokens_in(text),
        program.tokens_in(program.clean_output(text)),
    )
    return [f"{round(n, -2 if n > 100 else -1):,}" for n in sizes]


BAR = cleaned(progress())
CLEARING = (ROOT / "tests/pictures/requests.svg").read_text("utf-8")
KEPT, FREED, REQUESTS = re.search(
    r"K = ([\d,]+) .*?F = ([\d,]+) .* = ([\d.]+) requests", CLEARING
).groups()

UNCACHED, AFTER, EACH = FIGURES["uncached"], FIGURES["moment"], FIGURES["projects"]
SPENT, SEEN = FIGURES["policies"]["ours"]
LONGEST = FIGURES["session"]
LOW_COST, LOW_R = FIGURES["policies"]["ours THRESHOLD=60000"]


def clearings(rule):
    """The number of clearings in the longest session."""
    counts = [cleared for _, cleared, _ in LONGEST["courses"][rule][2]]
    return sum(now > before for before, now in itertools.pairwise(counts))


AGAIN = FIGURES["again"]["ours CONTEXT_WINDOW=60000"]
SAVED = [1 - EACH[project]["ours"][0] for project in EACH]
RULES = {  # in the table of tests/README.md
    "ours": "ours",
    "OpenHands": "OpenHands",
    "v5": "v5",
    "summaries": "ours without clearing (`summaries`)",
    "s06": "s06",
}
SMALL = FIGURES["windows"]
LESSON = SOURCE[: SOURCE.index("# ---- messages")].count("\n")


def by_project(rule):
    """A row of that table: cost and R over all, and of each project."""
    projects = [EACH[name][rule] for name in ("cipher", "ctxeval", "entire", "posh")]
    cells = [FIGURES["policies"][rule], *projects]
    return " | ".join(f"{cost:.2f}, {kept:.3f}" for cost, kept in cells)


def in_sight(rule):
    """What is in sight right after a compaction: shares of the names and lines."""
    return f"{AFTER[rule]['names']:.0%}", f"{AFTER[rule]['lines']:.0%}"


# Sentences of the page with the numbers they must have, separated by blank lines.
FACTS = f"""\

on {FIGURES["sessions"]} recorded ones, the longest of four projects, forgetting costs {SPENT:.0%} of what never forgetting would, and {SEEN:.1%} of what was needed next is still in sight

counts {BYTES_PER_TOKEN} bytes as one token

{FIGURES["shares"]["tool_result"] + FIGURES["shares"]["newest"]:.1%} of all tokens

{SHARE["tool_result"]} were tool results older than the newest three

The user's own messages were {SHARE["user"]}

It is {T:,} tokens in a window of {program.CONTEXT_WINDOW:,}

costs {WRITE} a token instead of {READ}, so the clearing costs {WRITE - READ:.3g} K, once.
From then on, each request saves {READ} F. So it has paid for itself after
{WRITE - READ:.3g} K / {READ} F requests, which is {pays(READ)} K / F: here, {REQUESTS}

the clearing leaves {KEPT} tokens of messages, which are written once more, and frees {FREED}

by default {min(T, 4 * program.MAX_OUTPUT) // 8:,} of {program.MAX_OUTPUT:,} tokens

the longest session we replayed, {LONGEST["requests"]} requests

Without forgetting, request {LONGEST["refused"]} no longer fits into a window of {program.CONTEXT_WINDOW:,} tokens

`agent.py` clears {clearings("ours")} times and costs {LONGEST["courses"]["ours"][0]:.0%} (the same with no cache

s06 clears {clearings("s06")} times and costs {LONGEST["courses"]["s06"][0]:.0%}

begins with the lesson, its first {LESSON} lines

at most `INDEX_TOKENS` = {program.INDEX_TOKENS} tokens

Ours saves between {min(SAVED):.0%} and {max(SAVED):.0%}

in {FIGURES["cheaper"]["v5"]} of the {FIGURES["sessions"]} sessions, v5 is cheaper

ours makes only {FIGURES["summaries"]["ours"]} summaries

the {FIGURES["sessions"]} recorded sessions of chapter 11 at {AFTER["ours"]["points"]} points

the API rejects {FIGURES["refused"]} of the {FIGURES["sessions"]} sessions

with `CONTEXT_WINDOW=60000`, ours costs {UNCACHED["ours CONTEXT_WINDOW=60000"]:.1f} instead of {UNCACHED["ours"]:.1f}

v5 costs {UNCACHED["v5"]:.1f}, ours {UNCACHED["ours"]:.1f} and never forgetting {UNCACHED["nothing"]:.1f} (*with* a cache: 1)

`THRESHOLD=60000` costs {LOW_COST:.2f}, with an R of {LOW_R:.3f}

edits needed {AGAIN[0]:,} lines that were out of sight. We looked for up to {MOST_LOOKUPS} of them per
session, each with one `grep` for two rare words of the line. That found {AGAIN[1]:.1%} of those; its output had a median of {AGAIN[2]} tokens

a minute of a progress bar shrinks from {BAR[0]} tokens to {BAR[1]}

time limit is {program.BASH_SECONDS} seconds, and the model may ask for up to
{program.MAX_BASH_SECONDS}

pages of at most {program.MAX_LINES:,} lines and {program.MAX_PAGE:,} tokens

leaves files over {program.MAX_BYTES // 1_000_000} MB to `bash`;

leave those over {program.MAX_CHANGED:,} characters or {program.MAX_CHANGED_LINES:,} lines

together up to {program.MAX_RULES:,} tokens or T/8, whichever is smaller

keys shorter than {program.MIN_KEY} characters

{program.MIN_WINDOW:,} at least
""".split("\n\n")


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_follows_from_what_it_is_about(fact):
    assert words(fact) in words(PROSE)


@pytest.mark.parametrize("rule", RULES)
def test_the_figures_by_project_are_those_that_were_measured(rule):
    assert f"| {RULES[rule]} | {by_project(rule)} |" in TESTS_PAGE


# Sentences of tests/README.md, with their numbers
ABOUT_COSTS = f"""\
v5 is cheaper than ours in {FIGURES["cheaper"]["v5"]} of {FIGURES["sessions"]}, OpenHands in
{FIGURES["cheaper"]["OpenHands"]} and gemini-cli in {FIGURES["cheaper"]["gemini-cli"]}.

s08 costs {UNCACHED["s08"]:.1f} (its newer code {UNCACHED["s08 newer"]:.1f}), s06
{UNCACHED["s06"]:.1f} ({UNCACHED["s06 newer"]:.1f}), ours {UNCACHED["ours"]:.1f}, v5
{UNCACHED["v5"]:.1f} and "nothing" {UNCACHED["nothing"]:.1f}.
""".split("\n\n")


@pytest.mark.parametrize("fact", ABOUT_COSTS)
def test_a_number_about_costs_is_the_one_that_was_measured(fact):
    assert words(fact) in words(TESTS_PAGE)


JAPANESE = "文脈を圧縮する" * 500
ESTIMATES = {  # rows of the page's tables, and their other cells
    "`len(text) // 4` (s06)": [f"{len(JAPANESE) // 4:,}"],
    "`len(json.dumps(text)) // 4` (v5), because `dumps` escapes 文 as `\\u6587`": [
        f"{len(json.dumps(JAPANESE)) // 4:,}"
    ],
    "`len(text.encode()) // 4` (ours)": [f"{len(JAPANESE.encode()) // 4:,}"],
    "our stand-in: bytes / 3.2; it counts bytes as well, so it can't be the judge": [
        f"{stub.tokens(JAPANESE):,}"
    ],
    "price": [f"{READ}", f"{WRITE}", "1", f"{prices.OUTPUT}"],
}
MOMENTS = {
    "only a summary (s06, s08)": AFTER["s06"],
    "the five files read last, too (v5)": AFTER["v5"],
    "a plain tail: your messages, a summary, the newest 24,000 tokens": AFTER["tail"],
    "what pi leaves": AFTER["pi"],
    "what OpenHands leaves": AFTER["OpenHands"],
    "ours, without its index": AFTER[NO_INDEX],
    "**ours**": AFTER["ours"],
    "ours, in a window of 60,000": SMALL["60000"],
}


def cells(moment):
    """Format shares of the names and lines in sight after a compaction, and its size."""
    rounded = round(moment["tokens"], -3)
    return [f"{moment['names']:.0%}", f"{moment['lines']:.0%}", f"{rounded:,.0f}"]


def real(run):
    """Format a run of a real program: its name, and the cells of its row."""
    named = {"claude": "Claude Code"}.get(run["program"], run["program"])
    prices = [f"{round(price, -3) // 1000:,}" for price in run["prices"]]
    mean, worst = (f"{share:.0%}" for share in run["names"])
    rules = ", ".join(f"{share:.0%}" for share in run["typed"])
    return f"{named} {run['version']}".strip(), [*prices, f"{mean}, {worst}", rules]


RUNS = json.loads((ROOT / "tests/measure/programs.json").read_text())
READING = [r for r in RUNS if r["job"] == "reading" and not r["careful"]]
REAL = dict(real(run) for run in READING if run["window"] == 200_000)
TABLES = ESTIMATES | {row: cells(moment) for row, moment in MOMENTS.items()} | REAL


def test_real_programs_keep_more_of_what_was_read_and_a_careful_summary_the_rules():
    names = {r["program"]: r["names"][0] for r in READING if r["window"] == 100_000}
    told = "pi has {pi:.0%} of the names, opencode {opencode:.0%}, ours {ours:.0%}"
    told = f"in a window of 100,000, {told} and Claude Code {{claude:.0%}}"
    assert told.format(ours=names["agent.py"], **names) in words(PAGE)
    dear = {r["program"]: r["prices"][0] for r in RUNS if r["job"] == "outputs"}
    dear = {name: round(price, -3) // 1000 for name, price in dear.items()}
    assert f"cheaper ({dear['claude']}, ours {dear['agent.py']})" in words(PAGE)
    careful = [run["typed"] for run in RUNS if run["careful"]]
    assert len(careful) == 4 and all(share == 1 for run in careful for share in run)


def test_each_chapter_of_part_2_names_the_faults_that_its_report_lists():
    chapters = re.split(r"(?m)^### (\d+)\. ", PAGE)
    told = dict(zip(chapters[1::2], chapters[2::2]))
    for fault in own_faults.PLAYS:
        place = faults.place(getattr(faults, fault))
        if number := re.fullmatch(r"Chapter (\d+)", place):
            [names] = re.findall(r"Faults:([^.]*)\.\n", told[number[1]])
            assert f"`{fault}`" in names


@pytest.mark.parametrize("row", TABLES)
def test_a_row_of_a_table_has_the_numbers_that_it_is_about(row):
    assert f"| {row} | {' | '.join(TABLES[row])} |\n" in PAGE


def test_the_share_that_ours_costs_holds_at_other_prices_and_without_a_cache():
    prices = FIGURES["session"]["prices"]
    assert {f"{share:.0%}" for share in prices["ours"]} == {"76%"}
    assert "as it does costs a quarter of not clearing" in words(PROSE)
    assert prices["s06"][-1] == pytest.approx(1 / 4, abs=0.01)


def test_the_demo_pays_for_itself_when_the_page_says():
    shown = printed("python3 agent.py --demo 2")
    [paid] = re.findall(r"paid back\s+after (\d+) more", shown)
    assert f"pays for itself only after {paid} more requests" in words(PROSE)


@pytest.mark.parametrize("name, number", re.findall(r"`([A-Z_]+)` = `?([\d,]+)", PAGE))
def test_a_number_beside_a_constant_is_its_value(name, number):
    assert getattr(program, name) == int(number.replace(",", ""))


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
    runs = costs.runs(False, [], READ, path)
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

TRY = re.findall(
    r"\*\*Try (?:it|the costs)\.\*\* Run `([^`]+)` and look for (`+)(.+?)\2",
    words(PAGE),
)
WITHOUT = [(command, promise) for command, _, promise in TRY]


@pytest.mark.parametrize("command, promise", WITHOUT)
def test_what_can_be_tried_without_a_key_shows_what_it_promises(command, promise):
    output = printed(command)
    assert words(promise) in words(output)
    is_lesson = command.startswith("python3 tests/lessons/")
    assert not is_lesson or max(map(len, output.split("\n"))) < 80


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


FAULTS = [fault.__doc__.split(" | ")[0] for fault in faults.FAULTS]


def test_the_page_says_how_many_faults_are_left_and_which_to_fix_first():
    left = CHAPTERS["2"].partition("**small.py isn't finished.**")[2]
    assert f"gets {len(FAULTS)} things wrong" in words(left)
    first = [
        title.strip(".").replace("`", "")
        for title in re.findall(r"\d\. \*\*(.+?)\*\*", left)
    ]
    assert {*first} <= {*FAULTS} and len(first) == 5


SHOWN = {  # what the text about an output quotes besides
    "python3 tests/lessons/naive.py 4": "-2,333",
    "python3 tests/lessons/naive.py 6": "51, 51, 51",
}


@pytest.mark.parametrize("command", SHOWN)
def test_what_the_page_explains_is_in_the_output(command):
    assert f"`{SHOWN[command]}`" in PAGE and SHOWN[command] in printed(command)


SAID = {
    "first_run.py": "With its own name.",
    "small_run.py": "requests: 35, rejected: 0",
}


@pytest.mark.parametrize("command", SAID)
def test_a_lesson_plays_to_its_end(command):
    assert SAID[command] in printed(f"python3 tests/lessons/{command}")


def test_each_chapter_with_a_problem_has_something_to_try():
    missing = [n for n, text in CHAPTERS.items() if "**Try it.**" not in text]
    assert missing == ["0"] and len(TRY) == 12


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


# --- The tool of the page ---


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
    page = (ROOT / "tests/README.md").read_text("utf-8").partition("## Add a tool")[2]
    code, *_ = re.findall(r"(?ms)^```py\n(.*?)^```", page)
    monkeypatch.setattr(program, "TOOLS", dict(program.TOOLS))
    monkeypatch.setattr(program, "COMPACTABLE_TOOLS", {**program.COMPACTABLE_TOOLS})
    exec(code, dict(vars(program)))
    (workspace / "words.txt").write_text("a few long words")
    call = {"id": "toolu_1", "name": "count_words", "input": {"path": "words.txt"}}
    assert program.run_tool(program.Agent(), call)["content"] == "4"
    assert "count_words" in program.COMPACTABLE_TOOLS
