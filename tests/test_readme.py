"""README.md says what is so: quotations, names, numbers, commands and their promises."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import naive
import pytest
from builders import SUMMARY, asks_for_summary, did, history, outputs, said, typed
from readme import QUOTED, README, ROOT, expected, filled, holds, names, printed
from stub import reply

import agent as program
from agent import micro_compact, snip_compact, tool_result_budget

PAGE = README.read_text("utf-8")
SOURCE = (ROOT / "agent.py").read_text("utf-8")
HEADINGS = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?s)```.*?```", "", PAGE))
CHAPTERS = dict(re.findall(r"(?ms)^### (\d+)\. (.*?)(?=^###? )", PAGE))
CODE = r"`([A-Za-z_]\w*(?:\.\w+)?)`"


def band_of(name):
    """The functions of a band of agent.py, in order; `name` begins its comment."""
    band = re.search(rf"(?ms)^# ---- {name}.*?(?=^# ---- |\Z)", SOURCE)[0]
    return re.findall(r"(?m)^def (\w+)", band)


# --- Quotations and names ---


@pytest.mark.parametrize(
    "kind, what, quoted", [m.groups()[1:] for m in QUOTED.finditer(PAGE)]
)
def test_a_quotation_is_what_it_says(kind, what, quoted):
    assert holds(quoted, expected(kind, what)), "run tests/lessons/readme.py"
    assert kind == "run" or quoted.split("\n")[0].strip() != "..."


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


@pytest.mark.parametrize(
    "band", ["the loop", "layer 1", "layer 2", "layer 3", "messages", "counting"]
)
def test_each_function_is_quoted_or_named(band):
    known = {n for m in QUOTED.finditer(PAGE) for n in m[3].split(", ")}
    known |= {*re.findall(CODE, PAGE)}
    assert [name for name in band_of(band) if name not in known] == []


def test_the_table_of_the_rest_keeps_the_order_of_the_file():
    table = re.search(r"(?s)### The rest of the file\n(.*?)\n###", PAGE)[1]
    order = [*names("agent.py")]
    for row in table.split("\n")[4:]:
        places = [order.index(name) for name in re.findall(CODE, row) if name in order]
        assert places == sorted(places), row


def test_the_names_that_the_page_uses_are_in_the_source():
    table = re.search(r"(?s)### The five tutorials.*?\nLeft out", PAGE)[0]
    rows = [row.split("|") for row in table.split("\n") if row.startswith("| `")]
    here = {name for row in rows for name in re.findall(CODE, row[2])}
    assert here <= names("agent.py").keys()


# --- The five tutorials ---


def tutorial_rows():
    table = re.search(r"(?s)### The five tutorials.*?\nLeft out", PAGE)[0]
    for theirs, chapter in re.findall(r"(?m)^\| (`.*?) \| .*? \| (\d+) \|$", table):
        yield from ((name, chapter) for name in re.findall(r"`([^`]+)`", theirs))


@pytest.mark.parametrize("name, chapter", list(tutorial_rows()))
def test_the_head_of_a_chapter_has_the_names_that_send_readers_there(name, chapter):
    head = re.search(r"(?m)^In the tutorials: (.*)$", CHAPTERS[chapter])[1]
    assert f"`{name}`" in head


def test_a_head_line_names_nothing_that_no_table_has():
    heads = re.findall(r"(?m)^In the tutorials: (.*)$", PAGE)
    named = {name for head in heads for name in re.findall(r"`([^`]+)`", head)}
    assert named == {name for name, _ in tutorial_rows()}


# --- Numbers ---


@pytest.mark.parametrize("name, number", re.findall(r"`([A-Z_]+)` = `?([\d,]+)", PAGE))
def test_a_number_beside_a_constant_is_its_value(name, number):
    assert getattr(program, name) == int(number.replace(",", ""))


def test_the_settings_of_the_page_are_those_of_the_example_and_the_program():
    table = re.search(r"(?s)### Settings\n(.*?)\n###", PAGE)[1]
    example = (ROOT / ".env.example").read_text("utf-8")
    for name, default in re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", table):
        assert re.search(rf"(?m)^#?{name}=", example), name
        if default.isdecimal():
            assert int(default) == getattr(program, name), name


def test_the_example_names_the_programs_own_numbers():
    text = (ROOT / ".env.example").read_text("utf-8")
    usual = vars(program.limits())
    ours = re.findall(r"(?m)^#(\w+)=(\d+)$", text.partition("tutorials' own")[0])
    limits = {name.lower(): int(number) for name, number in ours}
    wanted = {**usual, "context_window": usual["window"]}
    assert limits == {name: wanted[name] for name in limits} and len(limits) == 7


def test_the_default_threshold_and_where_clearing_starts():
    threshold = program.auto_compact_threshold()
    page = " ".join(PAGE.split())
    assert f"{threshold * 7 // 10:,} of {threshold:,} tokens" in page
    assert f"from the window: {threshold} " in page


def test_the_table_of_costs_is_what_was_measured():
    figures = json.loads((ROOT / "tests/measure/figures.json").read_text())
    rows = re.findall(r"(?m)^\| ([\w =-]+) \| (\d\.\d\d) \| (\d\.\d{3}) \|$", PAGE)
    for policy, cost, kept in rows:
        measured = figures["policies"][policy]
        assert [f"{measured[0]:.2f}", f"{measured[1]:.3f}"] == [cost, kept], policy
    assert len(rows) > 9


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
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in HEADINGS}
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_no_line_of_a_file_is_named_by_its_number():
    assert not re.search(r"(?i)\blines? \d|\.py:\d|#L\d", PAGE)


# --- Every command to try shows what it promises ---

TRY = re.findall(r"```sh\n([^`]+?)\n```\n\nWatch for (`+)(.+?)\2", PAGE)


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


@pytest.mark.parametrize(
    "command, promise", [(c, p) for c, _, p in TRY if 'agent.py "' not in c]
)
def test_what_can_be_tried_without_a_key_shows_what_it_promises(
    command, promise, workspace
):
    if command.startswith("python3 tests/lessons/naive.py"):
        shown = printed(command)  # the same wherever it runs
    else:
        folder = workspace / ".claude/projects/one"
        folder.mkdir(parents=True)
        turns = [
            {"type": "user", "message": typed("Read.")},
            {"type": "assistant", "message": said("It is read.")},
        ]
        (folder / "session.jsonl").write_text("\n".join(map(json.dumps, turns)))
        shown = shell(command, workspace)
    assert " ".join(promise.split()) in " ".join(shown.split())


@pytest.mark.parametrize(
    "command, promise", [(c, p) for c, _, p in TRY if 'agent.py "' in c]
)
def test_what_is_tried_with_a_key_shows_what_it_promises(
    command, promise, workspace, run, api
):
    files = [f"part_{number}.py" for number in range(12)] + ["agent.py"]
    for name in files:
        code = "def work(x):\n    return x + 1  # as before\n"
        (workspace / name).write_text(code * 200)
    api.queue.extend([read_all(files)] * 60)
    *settings, python, script, prompt = shlex.split(command)
    assert (python, script) == ("~/agent/.venv/bin/python", "~/agent/agent.py")
    status, out, _ = run(prompt, **dict(word.split("=") for word in settings))
    api.queue.clear()
    assert status == 0 and promise in out


def test_there_is_something_to_try_in_each_chapter_with_a_simple_way():
    simple = {n for n, text in CHAPTERS.items() if "tests/lessons/naive.py: " in text}
    assert [n for n in simple if "Watch for" not in CHAPTERS[n]] == []
    assert len(TRY) >= 14
