"""README.md says what is so: quotations, names, numbers, commands and their promises."""

import inspect
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import naive
import policies
import prices
import pytest
from builders import SUMMARY, asks_for_summary, did, history, outputs, said, typed
from readme import QUOTED, README, ROOT, expected, filled, holds, names, printed
from stub import BYTES_PER_TOKEN, reply

import agent as program
from agent import micro_compact, snip_compact, tool_result_budget

PAGE = README.read_text("utf-8")
SOURCE = (ROOT / "agent.py").read_text("utf-8")
FIGURES = json.loads((ROOT / "tests/measure/figures.json").read_text("utf-8"))
FENCE = r"(?ms)^```(\w*)\n(.*?)^```$"
PROSE = re.sub(FENCE, "", re.sub(r"(?s)<!--.*?-->", "", PAGE))
HEADINGS = re.findall(r"(?m)^(#+ .+)$", PROSE)
CHAPTERS = dict(re.findall(r"(?ms)^### (\d+)\. (.*?)(?=^###? )", PAGE))
CODE = r"`([A-Za-z_]\w*(?:\.\w+)?)`"


def section(title):
    """What stands below a heading, up to the next one of its rank or above."""
    rank, _, _ = title.partition(" ")
    end = rf"(?=^#{{1,{len(rank)}}} |\Z)"
    return re.search(rf"(?ms)^{re.escape(title)}\n(.*?){end}", PAGE)[1]


def words(text):
    """The text in one line, so that it can be compared wherever a line was broken."""
    return " ".join(text.split())


# --- What the page is made of ---

TITLES = """\
# A coding agent that forgets on purpose
## Run it
## Find your chapter
## How it forgets
### 0. A model has no memory
#### Glossary
### 1. Three layers in one screen
### 2. What the API will not take
### 3. Counting, and when
### 4. Layer 1: old results
### 5. Layer 1: too much at once, too many messages
### 6. Windows of every size
### 7. Layer 2: the summary
### 8. What stays
### 9. Layer 3: on demand
### 10. Nothing is lost
### 11. What it costs, and what it loses
### 12. How others do it, and where to go on
## Reference
### On the command line, and at the prompt
### Settings
### Tools, and what they may do
### The rest of the file
### The five tutorials, name by name
### How to work on it
## Licence
"""


def test_the_chapters_are_there_in_their_order():
    assert HEADINGS == TITLES.splitlines()


def test_the_page_is_not_longer_than_can_be_read():
    assert len(PAGE.splitlines()) <= 1_500


def test_no_line_of_code_has_to_be_scrolled():
    lines = [line for _, text in re.findall(FENCE, PAGE) for line in text.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


def test_lines_of_prose_are_short_but_for_tables_pictures_and_heads():
    long = [line for line in PROSE.splitlines() if len(line) > 120]
    free = ("|", "![", "In the tutorials:", "* ")
    assert [line for line in long if not line.startswith(free)] == []


@pytest.mark.parametrize("chapter", ["4", "5", "6", "7", "8", "9", "10"])
def test_a_chapter_has_the_parts_that_teach(chapter):
    text = CHAPTERS[chapter]
    parts = ["**Problem", "**Try it", "**Change it", "**What it cannot do"]
    parts += ["**Step 1"] if chapter in ("4", "7") else ["**Idea"]
    assert [part for part in parts if part not in text] == []


# --- Quotations and names ---


@pytest.mark.parametrize(
    "kind, what, quoted", [m.groups()[1:] for m in QUOTED.finditer(PAGE)]
)
def test_a_quotation_is_what_it_says(kind, what, quoted):
    assert holds(quoted, expected(kind, what)), "run tests/lessons/readme.py"


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


def test_what_does_not_hold_any_more_is_replaced_by_the_whole():
    page = "<!-- agent.py: TRANSCRIPT_DIR -->\n```python\nold\n```\n"
    line = 'TRANSCRIPT_DIR = Path(".transcripts")\n'
    assert filled(page) == page.replace("old\n", line)
    assert filled(filled(page)) == filled(page)


def test_several_definitions_and_a_whole_file_can_be_quoted():
    both = expected("tests/lessons/small.py", "agent_loop, micro_compact")
    file = expected("tests/lessons/small.py", "all")
    assert both in file and file.endswith("\n")
    assert both.count("\n\n\ndef ") == 1


def test_every_fence_of_python_is_a_quotation():
    assert PAGE.count("```python\n") == len(re.findall(r"-->\n```python\n", PAGE))


def band_of(name):
    """The functions of a band of agent.py, in order; `name` begins its comment."""
    band = re.search(rf"(?ms)^# ---- {name}.*?(?=^# ---- |\Z)", SOURCE)[0]
    return re.findall(r"(?m)^def (\w+)", band)


@pytest.mark.parametrize(
    "band", ["the loop", "layer 1", "layer 2", "layer 3", "messages", "counting"]
)
def test_each_function_is_quoted_or_named(band):
    known = {n for m in QUOTED.finditer(PAGE) for n in m[3].split(", ")}
    known |= {*re.findall(CODE, PAGE)}
    assert [name for name in band_of(band) if name not in known] == []


def test_the_functions_that_the_tutorials_name_are_quoted():
    quoted = [m[3].split(", ") for m in QUOTED.finditer(PAGE) if m[2] == "agent.py"]
    theirs = {"agent_loop", "micro_compact", "compact_history", "reactive_compact"}
    theirs |= {"tool_result_budget", "snip_compact", "auto_compact_threshold"}
    assert theirs - {*itertools.chain(*quoted)} == set()


def test_each_exercise_begins_at_a_function_of_the_program():
    exercises = re.findall(r"(?m)^\d\. .*(?:\n   .*)*", CHAPTERS["12"])
    starts = [re.search(r"\[`(\w+)`", words(exercise))[1] for exercise in exercises]
    assert {*starts} <= names("agent.py").keys() and len(starts) > 5


def test_the_table_of_the_rest_keeps_the_order_of_the_file():
    order = [*names("agent.py")]
    for row in section("### The rest of the file").split("\n")[4:]:
        places = [order.index(name) for name in re.findall(CODE, row) if name in order]
        assert places == sorted(places), row


def test_what_the_table_of_the_rest_names_is_in_the_file():
    named = re.findall(r"`([A-Za-z_]\w*)`", section("### The rest of the file"))
    assert {*named} <= names("agent.py").keys()


# --- The five tutorials ---

TUTORIALS = section("### The five tutorials, name by name").partition("\nLeft out")[0]
HEADS = {n: re.search(r"(?m)^In the tutorials: .*$", c) for n, c in CHAPTERS.items()}


def tutorial_rows():
    for theirs, chapter in re.findall(r"(?m)^\| (`.*?) \| .*? \| (\d+) \|$", TUTORIALS):
        yield from ((name, chapter) for name in re.findall(r"`([^`]+)`", theirs))


@pytest.mark.parametrize("name, chapter", list(tutorial_rows()))
def test_the_head_of_a_chapter_has_the_names_that_send_readers_there(name, chapter):
    assert f"`{name}`" in HEADS[chapter][0]


def test_a_head_line_names_nothing_that_no_table_has():
    heads = [(n, head[0]) for n, head in HEADS.items() if head]
    named = {name for _, head in heads for name in re.findall(r"`([^`]+)`", head)}
    assert named == {name for name, _ in tutorial_rows()}


def test_what_the_tables_of_the_tutorials_name_of_ours_is_in_the_source():
    rows = [row.split("|") for row in TUTORIALS.split("\n") if row.startswith("| `")]
    here = {name for row in rows for name in re.findall(CODE, row[2])}
    assert here <= names("agent.py").keys() and len(rows) > 15


def test_what_is_left_out_says_why():
    rows = [row.split("|")[2] for row in TUTORIALS.split("\n") if "left out" in row]
    assert len(rows) == 1 and all("left out, because" in row for row in rows)


# --- Numbers ---

T = program.auto_compact_threshold()
WRITE, READ = program.CACHE_WRITE, program.CACHE_READ
COST = {name: f"{cost:.2f}" for name, (cost, _) in FIGURES["policies"].items()}
KEPT = {name: f"{kept:.3f}" for name, (_, kept) in FIGURES["policies"].items()}
SHARE = {name: f"{share:.1%}" for name, share in FIGURES["shares"].items()}


def pays(read):
    """What stands before K / F where reading from the cache has this price."""
    return f"{(WRITE - read) / read:.3g}"


def by_window(number):
    """A number of each window of the table of chapter 6, in its form."""
    windows = (8_000, 32_000, 100_000, 200_000, 1_000_000)
    limits = [program.Limits(w, min(program.MAX_OUTPUT, w // 3)) for w in windows]
    return " | ".join(f"{number(limit):,}" for limit in limits)


WINDOWS = [
    by_window(lambda limits: limits.window),
    by_window(lambda limits: limits.max_output),
    by_window(lambda limits: limits.threshold),
    by_window(lambda limits: limits.clear_above),
    by_window(lambda limits: limits.threshold // 4),
    by_window(lambda limits: min(program.MAX_RESULT_TOKENS, limits.threshold // 4)),
    by_window(lambda limits: min(program.MAX_READ, limits.threshold // 5)),
]
MISSING = f"{FIGURES['policies']['s06'][0] - FIGURES['policies']['s06 cached'][0]:.2f}"
PROMPTS = printed("python3 tests/lessons/prompts.py s06")
PLAYED = Counter()
for line in re.findall(r"(?m)^  s06 +(requests.*)$", PROMPTS):
    PLAYED.update({what: int(n) for what, n in re.findall(r"(\w+) (\d+)", line)})

# Sentences of the page, a blank line between them, with the numbers that they must have.
FACTS = f"""\
{FIGURES["shares"]["tool_result"] + FIGURES["shares"]["newest"]:.1%} of all tokens

{SHARE["tool_result"]} were tool results older than the newest three

What the person typed was {SHARE["user"]}

is read from the cache counts {READ}, one that is written counts {WRITE}

counts one token for every {BYTES_PER_TOKEN} bytes

lets {50_000 * 4 * 3 / BYTES_PER_TOKEN:,.0f} tokens pass if the text is Japanese;
if it is English, it lets {50_000 * 4 / BYTES_PER_TOKEN:,.0f} pass

called **T** from here on: {T:,} tokens in a window of {program.CONTEXT_WINDOW:,}

0.7 T is {T * 7 // 10:,} of {T:,} tokens

a new result is over {program.MAX_RESULT_TOKENS:,} tokens, or all of one reply are over
{program.MAX_RESULTS_CHARS:,} characters or {T // 3:,} tokens (T/3)

over {T // 4:,} tokens (T/4), and no request was sent for {program.CACHE_SECONDS} seconds

over {T * 7 // 10:,} tokens (0.7 T), and clearing frees {program.MIN_SAVINGS:,}

| the context is over {T:,} tokens (T) |

after {pays(READ)} K / F requests

By default that is {min(T, 4 * program.MAX_OUTPUT) // 8:,}

at {WRITE} of the price of an input token) instead of read (at {READ})

({WRITE} - {READ}) K / ({READ} F) = {pays(READ)} K / F requests.
Models that read at 0.1 need {pays(0.1)} K / F, those that read at 0.025 need
{pays(0.025)} K / F

written to the cache counts {WRITE}, one that is read from it {READ}, one of output
{prices.OUTPUT}

after {program.CACHE_SECONDS} seconds without a request the cache is gone

for a window of {policies.WINDOW:,} tokens

the nine sessions of chapter 0, with {FIGURES["requests"]:,} requests

Of the {COST["s06"]} for s06 as written, {MISSING} is the missing prompt cache

with a threshold of 60,000 ours costs {COST["ours THRESHOLD=60000"]}

never came over T/4 = {T // 4:,} tokens

{PLAYED["requests"]} requests, {PLAYED["clearings"]} clearings, no summary

old calls too, which are {SHARE["tool_use"]} of all tokens

For {T:,} tokens the live request pays {T * READ:,.0f} for its input, a model of a fifth
of the price {T / 5:,.0f}

an edit as a diff, {program.MAX_SHOWN} lines at once

({program.BASH_SECONDS} seconds; the model may ask for up to {program.MAX_BASH_SECONDS})

at most {program.MAX_LINES:,} lines and {4 * program.MAX_READ:,} characters

up to {program.MAX_RULES:,} tokens; the nearest one counts

A key of fewer than {program.MIN_KEY} characters
""".split("\n\n")
FACTS += [f"{name}: cost {COST[name]}, R {KEPT[name]}" for name in COST] + WINDOWS


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_follows_from_what_it_is_about(fact):
    assert words(fact) in words(PROSE)


def numbers(text):
    """The numbers in a text of over 20, and those with a point, without commas."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", text)
    plain = [number.rstrip(",").replace(",", "") for number in found]
    return {n for n in plain if "." in n or int(n) > 20}


def numbers_in(path):
    """The numbers of a picture's description and texts."""
    text = " ".join(ElementTree.parse(path).getroot().itertext())
    return numbers(re.sub(r"(\d)k\b", r"\g<1>,000", text))


def known_numbers(text):
    """What constants, figures, the runs and the pictures of a text give."""
    values = [*vars(program).values(), *vars(program.limits()).values()]
    known = {str(value) for value in values if type(value) in (int, float)}
    known |= numbers(" ".join(code for _, code in re.findall(FENCE, text)))
    for path in re.findall(r"\(tests/pictures/(\w+)\.svg\)", text):
        known |= numbers_in(ROOT / f"tests/pictures/{path}.svg")
    return known | numbers(" ".join(FACTS)) | {"2026"}


# Of each chapter the numbers that others have measured or set, and those that were seen
# when what it says was tried.
CITED = {
    "1": "9,000 0.25 1.5 1.6",
    "2": "4.6 5.5 31",
    "3": "0.49 1.8 1,157 543 95 13,000 64,000 120,000 1.2 72,000 32",
    "4": "57",
    "5": "47 680 200 52,000",
    "6": "208310 30000 15,000 6,000 12,000 24,000",
    "7": "170,000 92",
    "8": "72 44",
    "11": "90 168,000 15,000 50 70 240 117 0.005 0.98",  # the rows have a test below
    "12": "40 60 54.8 0.61 53.4 1.29 53.8 0.64 21 36 26 54 2025 150,000 "
    "0.52 0.54 0.918 0.950 0.67 0.991 0.82",
}


@pytest.mark.parametrize("title", [t for t in HEADINGS if t[:3] in ("###", "# A")])
def test_a_number_in_the_prose_is_known(title):
    whole = PAGE.partition("\n## How")[0] if title == HEADINGS[0] else section(title)
    text = re.sub(FENCE, "", re.sub(r"(?s)<!--.*?-->", "", whole))
    text = re.sub(r"\]\([^)]*\)|claude-[\w-]+", "]", text)
    cited = numbers(CITED.get(title.split()[1].strip(".,"), ""))
    assert numbers(text) - known_numbers(whole) - cited == set()


@pytest.mark.parametrize("name, number", re.findall(r"`([A-Z_]+)` = `?([\d,]+)", PAGE))
def test_a_number_beside_a_constant_is_its_value(name, number):
    assert getattr(program, name) == int(number.replace(",", ""))


def test_each_row_of_the_other_agents_has_the_numbers_of_its_rule():
    rows = re.findall(r"(?m)^\| `([\w, -]+)` \| (.*) \|$", CHAPTERS["11"])
    for name, text in rows:
        rule = policies.PEERS.get(name, policies.PEERS["opencode"]).rule
        source = inspect.getsource(rule).replace("_", "")
        percents = {f"{int(n) / 100:g}" for n in re.findall(r"(\d+)%", text)}
        text = re.sub(r"\d+%|\]\([^)]*\)", "", text)
        wanted = percents | numbers(text)
        assert [n for n in wanted if n not in source] == [], name
    assert {name for name, _ in rows} == {*policies.PEERS, "summaries"}


def test_a_picture_tells_in_words_the_numbers_that_it_shows():
    pictures = re.findall(r"!\[([^\]]+)\]\((tests/pictures/\w+\.svg)\)", PAGE)
    for told, path in pictures:
        assert numbers(told) <= numbers_in(ROOT / path), path
    assert len({path for _, path in pictures}) == len(pictures)
    every = {f"tests/pictures/{p.name}" for p in ROOT.glob("tests/pictures/*.svg")}
    assert {path for _, path in pictures} == every


# --- Settings ---

EXAMPLE = (ROOT / ".env.example").read_text("utf-8")
OURS, _, THEIRS = EXAMPLE.partition("tutorials' own")


def test_the_settings_of_the_page_are_those_of_the_example_and_the_program():
    table = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", section("### Settings"))
    for name, default in table:
        if re.fullmatch(r"\d+|`.*`", default):
            assert default.strip("`") == str(getattr(program, name)), name
    named = {*re.findall(r"`([A-Z_]+)`", section("### Settings"))}
    assert named == {*re.findall(r"(?m)^#?(\w+)=", OURS)}


def test_the_example_names_the_programs_own_numbers():
    usual = vars(program.limits())
    ours = re.findall(r"(?m)^#(\w+)=(\d+)$", OURS)
    found = {name.lower(): int(number) for name, number in ours}
    wanted = {**usual, "context_window": usual["window"]}
    assert found == {name: wanted[name] for name in found} and len(found) == 7


# of each tutorial: T, and what its rule of layer 1 is made of
PRESETS = {
    "s06": {"threshold": 50_000, "clear_above": 0, "keep_tokens": 0, "min_savings": 0},
    "v5": {"threshold": T, "clear_above": 0, "keep_tokens": 0, "min_savings": 20_000},
    "s08": {"clear_above": 0, "keep_tokens": 0, "min_savings": 0, "max_messages": 50},
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_example_has_the_numbers_of_each_tutorial_as_settings(name, monkeypatch):
    preset = re.search(rf"(?ms)^# {name}[:,].*?(?=^# |\Z)", THEIRS)[0]
    for setting, value in re.findall(r"(?m)^#(\w+)=(\d+)$", preset):
        monkeypatch.setenv(setting, value)
    made = vars(program.limits()) | {"keep_recent": program.KEEP_RECENT}
    assert {**made, **PRESETS[name]} == made == vars(program.limits())


# --- The order of the three steps, which chapter 5 has in a table ---

ORDERS = list(itertools.permutations(["budget", "snip", "micro"]))


def lost(steps, order):
    """How many of six new results are neither in the messages nor saved in this order."""
    new = [letter * 50_000 for letter in "abcdef"]
    messages, saved = history(did("old" * 5_000), did(*new)), []
    for name in order:
        messages = steps(saved)[name](messages)
    kept = [*outputs(*messages), *saved]
    return sum(text not in kept for text in new)


def s08(saved):
    """The rules of s08; results of over 200,000 characters are saved, the largest first."""

    def save(message):
        for block in message["content"]:
            if sum(len(b["content"]) for b in message["content"]) > 200_000:
                saved.append(block["content"])
                block["content"] = "<persisted-output>"

    def micro(messages):
        blocks = [b for m in messages for b in program.blocks(m, "tool_result")]
        for block in blocks[:-3]:
            block["content"] = "[Earlier tool result compacted.]"

    steps = {"budget": lambda m: save(m[-1]), "snip": naive.snip_to_50, "micro": micro}
    return {name: lambda m, step=step: step(m) or m for name, step in steps.items()}


def ours(saved):
    """The steps of agent.py, with limits so small that they act."""
    path = Path("saved.txt")
    return {
        "budget": lambda m: tool_result_budget(
            m, 40_000, lambda t: saved.append(t) or path
        ),
        "snip": lambda m: snip_compact(m, 4, path),
        "micro": lambda m: micro_compact(m, lambda t: path, 0, 0, 0),
    }


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_the_order_of_the_steps_loses_text_by_s08s_rules_and_none_here(order):
    too_late = order.index("micro") < order.index("budget")
    assert lost(s08, order) == (3 if too_late else 0)
    assert lost(ours, order) == 0


# --- Links ---


def test_links_lead_somewhere():
    titles = [title.lstrip("# ").lower() for title in HEADINGS]
    anchors = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("https://"):
            assert (ROOT / target).exists(), target


def test_a_link_to_a_chapter_shows_the_number_of_that_chapter():
    linked = re.findall(r"\[(?:chapter )?(\d+)\]\(#(\d+)-", PAGE)
    assert [pair for pair in linked if pair[0] != pair[1]] == [] and linked


def test_each_chapter_is_linked_from_find_your_chapter():
    found = {*re.findall(r"\]\(#(\d+)-", section("## Find your chapter"))}
    assert {"0", "1", "3", "4", "5", "7", "8", "9"} <= found


def test_what_was_read_elsewhere_has_its_month():
    for number, text in CHAPTERS.items():
        assert "](https://" not in text or re.search(r"(June|November) 2026", text), (
            number
        )


def test_no_line_of_a_file_is_named_by_its_number():
    assert not re.search(r"(?i)\blines? \d+ of `|\.py:\d|#L\d", PAGE)


# --- Every command to try shows what it promises ---

TRY = re.findall(r"```sh\n([^`]+?)\n```\n\nWatch for (`+)(.+?)\2", PAGE)
WITH_KEY = [(c, p) for c, _, p in TRY if "/agent.py " in c]
WITHOUT = [(c, p) for c, _, p in TRY if "/agent.py " not in c]


def read_all(names):
    """A model that reads these files one by one, uses `compact` if asked to, and ends."""
    left = list(names)

    def answer(request):
        if asks_for_summary(request):
            return SUMMARY
        if left:
            return reply(calls=[("read_file", {"path": left.pop(0)})])
        if "use the compact tool" in json.dumps(request["messages"]) and not used:
            used.append(True)
            return reply(calls=[("compact", {"focus": "the names of the functions"})])
        return reply("That is all.")

    used = []
    return answer


def shell(command, folder):
    """What a command of the page prints, run as a reader would in that folder."""
    here = f"{sys.executable} {ROOT}/"
    command = re.sub(r"\bpython3 (?=agent\.py|tests/)", lambda _: here, command)
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONUTF8": "1"}
    options = {"env": settings, "capture_output": True, "text": True}
    done = subprocess.run(
        ["bash", "-c", command], check=False, cwd=folder, input="", **options
    )
    return done.stdout + done.stderr


@pytest.fixture
def home(workspace):
    """A folder with one session of Claude Code, where that keeps them."""
    session = workspace / ".claude/projects/one/session.jsonl"
    session.parent.mkdir(parents=True)
    turns = [("user", typed("Read.")), ("assistant", said("It is read."))]
    lines = [json.dumps({"type": kind, "message": turn}) for kind, turn in turns]
    session.write_text("\n".join(lines))
    return workspace


@pytest.mark.parametrize("command, promise", WITHOUT)
def test_what_can_be_tried_without_a_key_shows_what_it_promises(command, promise, home):
    same = command.startswith("python3 tests/lessons/")  # wherever it runs
    shown = printed(command) if same else shell(command, home)
    assert words(promise) in words(shown)


@pytest.mark.parametrize("command, promise", WITH_KEY)
def test_what_is_tried_with_a_key_shows_what_it_promises(
    command, promise, workspace, run, api
):
    files = [f"part_{number}.py" for number in range(12)] + ["agent.py"]
    for name in files:
        code = "def work(x):\n    return x + 1  # as before\n"
        (workspace / name).write_text(code * 200)
    api.queue.extend([read_all(files)] * 60)
    *settings, python, script, prompt = shlex.split(command.replace("\\\n", ""))
    assert (python, script) == ("~/agent/.venv/bin/python", "~/agent/agent.py")
    status, out, _ = run(prompt, **dict(word.split("=") for word in settings))
    api.queue.clear()
    assert status == 0 and promise in out


def test_each_command_in_a_fence_is_tried_but_for_those_of_the_installation():
    fences = [text.strip() for kind, text in re.findall(FENCE, PAGE) if kind == "sh"]
    tried = {command for command, _, _ in TRY}
    assert [c for c in fences if c not in tried and c not in section("## Run it")] == []
    assert len(tried) >= 12


INLINE = {*re.findall(r"`(?:python3|\.venv/bin/python) ([^`]+)`", words(PROSE))}
QUICK = ("agent.py", "naive.py", "steps.py", "faults.py", "prompts.py")


@pytest.mark.parametrize("command", sorted(INLINE))
def test_a_command_in_a_sentence_is_one_that_there_is(command):
    path = command.split()[0]
    assert (ROOT / path).is_file()
    if path.endswith(QUICK):
        assert printed(f"python3 {command}")


def test_python_is_called_by_one_name():
    assert not re.search(r"(?<![/\w.])python (?=\S+\.py)", PAGE)


def test_there_is_something_to_try_in_each_chapter_with_a_simple_way():
    simple = {n for n, text in CHAPTERS.items() if "tests/lessons/naive.py: " in text}
    assert [n for n in simple if "Watch for" not in CHAPTERS[n]] == []
