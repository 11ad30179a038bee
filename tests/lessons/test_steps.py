"""The lesson's steps each fix one problem, and --mine reports on a reader's agent."""

import ast
import re
import subprocess
import sys
from functools import cache

import checks
import plays
import pytest
import runner
import stage
import steps
import stub
from readme import QUOTED, README, ROOT
from test_judge import OPEN, SMALL, changed, in_one_line, reported

pytestmark = pytest.mark.slow

SIGNED = "request 3: messages.3.content.0: Invalid `signature` in `thinking` block."
PREFILL = "This model does not support assistant message prefill."

EMPTY = "! empty after an empty reply, the next request is rejected: messages.1: all"
NOT_RUN = "ok truncated a truncated call is not run"

# What each step prints that the one before doesn't.
SEEN = {
    ("small", 0): ["stopped FileNotFoundError", "files 0 of 24", "on disk 0 messages"],
    ("small", 1): ["stopped prompt is too long", "files 10 of 24", "disk 0 messages"],
    ("small", 2): ["stopped prompt is too long", "files 10 of 24", "disk 43 messages"],
    ("small", 3): ["stopped prompt is too long", "files 17 of 24", "disk 73 messages"],
    ("small", 4): [
        "stopped no",
        "24 of 24",
        "largest 70,939",
        "! compact there is no such tool; the last request has 60,745 tokens (step 5)",
    ],
    ("small", 5): [
        "ok compact the request after it has 192 tokens",
        EMPTY,
        OPEN,
        NOT_RUN,
    ],
    ("small", 6): [
        "ok empty after an empty reply, the next request is accepted",
        "ok Ctrl-C after Ctrl-C in a tool, the next request is accepted",
        "ok huge file after a huge file, the next request is accepted",
        NOT_RUN,
        "ok compact the request after it has 205 tokens",
    ],
    ("layer1", 0): ["seen 3 of the 6 results", f"rejected {SIGNED}"],
    ("layer1", 1): ["seen 6 of the 6 results", f"rejected {SIGNED}"],
    ("layer1", 2): [
        "rejected no",
        "0% from the cache, price 187,000",
        "before 14 of 16",
    ],
    ("layer1", 3): [
        "81% from the cache, price 94,000",
        "before 1 of 16",
        "word: False",
    ],
    ("layer1", 4): ["81% from the cache, price 94,000", "before 1 of 16", "word: True"],
    ("layer1", 5): ["81% from the cache, price 94,000", "before 1 of 16", "word: True"],
    ("layer2", 0): ["ended by AttributeError: 'Block' object has no attribute 'text'"],
    ("layer2", 1): ["summary 0 characters", f"rejected {PREFILL}"],
    ("layer2", 2): ["rejected no", "5 of 13 results, 0% from the cache, price 25,000"],
    ("layer2", 3): ["13 of 13 results, 92% from the cache", "0 of 13 results are left"],
    ("layer2", 4): ["13 of 13 results are left", "rule in the last request: False"],
    ("layer2", 5): ["13 of 13 results are left", "rule in the last request: True"],
}


def test_every_step_has_its_findings_here():
    every = [
        (layer, n) for layer in steps.STEPS for n in range(len(steps.STEPS[layer]))
    ]
    assert every == [*SEEN]


@pytest.mark.parametrize("layer, number", SEEN)
def test_each_step_prints_what_it_improves(layer, number):
    shown = " ".join(steps.play(layer, number).split())
    assert [words for words in SEEN[layer, number] if words not in shown] == []


# Maximum number of changed lines. The steps to small.py add whole functions.
MOST = {"small": 36, "layer1": 6, "layer2": 6}


@pytest.mark.parametrize(
    "layer, number", [key for key in SEEN if key[1] and key != ("layer1", 5)]
)
def test_a_step_changes_only_a_few_lines(layer, number):
    changed = re.findall(r"(?m)^[-+].+", steps.changes(layer, number))
    assert 1 <= len(changed) <= MOST[layer]


def patched(lines, changes):
    """Apply a step's changes to these lines, from top to bottom, as a reader would."""
    done, rest = [], lines
    for part in changes.split("\n...\n"):
        old = [line[1:] for line in part.split("\n") if line[:1] != "+"]
        new = [line[1:] for line in part.split("\n") if line[:1] != "-"]
        at = next(n for n in range(len(rest)) if rest[n : n + len(old)] == old)
        done += rest[:at] + new
        rest = rest[at + len(old) :]
    return done + rest


def test_the_diffs_turn_first_py_into_small_py():
    first, *between, small = steps.STEPS["small"]
    assert (first.name, small.name, len(between)) == ("first.py", "small.py", 5)
    _, lines = steps.source(first)
    for number in range(1, 7):
        lines = patched(lines, steps.changes("small", number))
    assert lines == steps.source(small)[1]


# --- The reader's file, as it grows by the page's own words ---

LESSONS, AGENTS = ROOT / "tests/lessons", ROOT / "tests/agents"
FIRST_NEXT = "Next: step 1 of chapter 2"
CHAPTER = re.search(r"(?ms)^### 2\. .*?^## Part II", README.read_text("utf-8"))[0]
PARTS = dict(
    re.findall(r"(?ms)^\*\*Step (\d)\. (.*?)(?=^\*\*Step|^\*\*Try it)", CHAPTER)
)
ROWS = dict(re.findall(r"(?m)^\| (\d) \| (.*) \|$", CHAPTER))
LOOPS_RESULTS = """\
        results = []
        for call in calls:
            text = Path(call["input"]["path"]).read_text()
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            results.append(result)
        messages.append({"role": "user", "content": results})
"""
RUN_TOOL = """\
def run_tool(name, given):
    if name == "read_file":
        return Path(given["path"]).read_text()
    if input(f"Run {given['command']}? ") != "y":
        return "No."
    return subprocess.getoutput(given["command"])


question ="""
PROMPTS = """\
client, messages = Anthropic(), []
while True:
    try:
        prompt = input("\\n> ")
        if not prompt.strip():
            break
        messages.append(log("user", prompt))
        agent_loop(client, messages)
    except EOFError:
        break
    except (Exception, KeyboardInterrupt) as error:
        print(error)
"""
SECOND_TOOL = 'TOOLS = [{"name": "bash", "input_schema": COMMAND},\n'
THIRD_TOOL = """\
{"name": "compact", "description": "Summarise all so far.", "input_schema": {"type": "object"}}\
"""
LAYER_2 = """\
        if estimate_tokens(messages) > THRESHOLD:
            auto_compact(client, messages)
        content, _ ="""
LAYER_3 = """\
        messages.append(log("user", run_tools(calls)))
        if any(call["name"] == "compact" for call in calls):
            auto_compact(client, messages)
"""
COMPACT = '    if name == "compact":\n        return "Summarised before you go on."\n'
TOLD = {  # besides the listings: what a step tells the reader, an old text, a new one
    1: [
        ("`MAX_CHARS = 40_000`", "PATH =", "MAX_CHARS = 40_000\nPATH ="),
        (
            '`messages.append({"role": "user", "content": run_tools(calls)})` replaces '
            "everything below `break`",
            LOOPS_RESULTS,
            '        messages.append({"role": "user", "content": run_tools(calls)})\n',
        ),
        (
            "with a schema like `PATH` whose property is `command`",
            "TOOLS = [\n",
            'COMMAND = {"type": "object", "properties": {"command": {}}}\nTOOLS = [\n',
        ),
        ("Add `bash` to `TOOLS`", "TOOLS = [\n", SECOND_TOOL),
        ("by `subprocess`", "from pathlib", "import subprocess\nfrom pathlib"),
        ("write `run_tool(name, given)` yourself", "question =", RUN_TOOL),
    ],
    2: [
        (
            '(log("assistant", content))`',
            '{"role": "assistant", "content": content}',
            'log("assistant", content)',
        ),
        (
            '(log("user", run_tools(calls)))`',
            '{"role": "user", "content": run_tools(calls)}',
            'log("user", run_tools(calls))',
        ),
        (
            'Put `"system": SYSTEM` into `fixed`',
            '"tools": TOOLS}',
            '"tools": TOOLS, "system": SYSTEM}',
        ),
        ("`import json`", "import subprocess\n", "import subprocess, json\n"),
        (
            "You write the end of the program yourself",
            'question = {"role": "user", "content": input("> ")}\n'
            "agent_loop(Anthropic(), [question])\n",
            PROMPTS,
        ),
    ],
    3: [
        ("`KEEP_RECENT = 3`", "PATH =", "KEEP_RECENT = 3\nPATH ="),
        ("`MIN_SAVINGS = 20_000`", "PATH =", "MIN_SAVINGS = 20_000\nPATH ="),
        (
            "Each round of the loop now begins with `micro_compact(messages)`",
            "        content = ask(",
            "        micro_compact(messages)\n        content = ask(",
        ),
        ("`content, _ = ask(client, messages)`", "content = ask", "content, _ = ask"),
    ],
    4: [
        ("`THRESHOLD = 50_000`", "PATH =", "THRESHOLD = 50_000\nPATH ="),
        (
            "write `if estimate_tokens(messages) > THRESHOLD:` and "
            "`auto_compact(client, messages)` before `ask`",
            "        content, _ =",
            LAYER_2,
        ),
    ],
    5: [
        (f"`{THIRD_TOOL}`", "TOOLS = [", f"TOOLS = [{THIRD_TOOL},"),
        (
            '`run_tool` returns `"Summarised before you go on."`',
            "    if input(f",
            f"{COMPACT}    if input(f",
        ),
        (
            "If any call has this name, the loop calls `auto_compact` after adding the "
            "results",
            '        messages.append(log("user", run_tools(calls)))\n',
            LAYER_3,
        ),
    ],
    6: [],
}


def with_definitions(source, code):
    """Put each definition in place of the one with its name, or above the loop."""
    for new in ast.parse(code).body:
        lines, text = source.split("\n"), ast.get_source_segment(code, new)
        name = getattr(new, "name", None) or new.targets[0].id
        same = [n for n in ast.parse(source).body if name == getattr(n, "name", "")]
        first, end = (same[0].lineno - 1, same[0].end_lineno) if same else (0, 0)
        first = first if same else lines.index("def agent_loop(client, messages):")
        lines[first : max(first, end)] = [text] if same else [text, ""]
        source = "\n".join(lines)
    return source


@cache
def grown(number):
    """The reader's file after a step."""
    if not number:
        return (LESSONS / "first.py").read_text("utf-8")
    source = grown(number - 1)
    for quotation in QUOTED.findall(PARTS[str(number)]):
        source = with_definitions(source, quotation[-1])
    for told, old, new in TOLD[number]:
        assert told in in_one_line(PARTS[str(number)])
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@cache
def report_on_grown(number):
    """The report on the reader's file after a step, in one line."""
    with stage.from_scratch():
        return reported(grown(number))


@pytest.mark.parametrize("number", TOLD)
def test_what_a_step_tells_the_reader_makes_a_file_with_the_reported_results(number):
    before, now = report_on_grown(number - 1), report_on_grown(number)
    promised = {*re.findall("`([^`]+)`", ROWS[str(number)])}
    assert [span for span in promised if span not in now] == []
    assert [span for span in promised if span not in before] or number == 6
    assert number == 6 or re.search(rf"Next: .*step {number + 1} of", now)


def test_the_report_on_the_finished_file_is_all_good_and_before_it_is_not():
    assert "cp tests/lessons/first.py mine.py\n" in CHAPTER
    reports = [report_on_grown(number) for number in range(7)]
    assert [told.count(" ! ") for told in reports[-2:]] == [2, 0]
    assert f"`{FIRST_NEXT}`" in CHAPTER and reports[0].endswith(FIRST_NEXT)
    told = in_one_line(PARTS["4"])
    [thousands] = re.findall(r"largest request now has more than (\d+),000", told)
    assert f"largest {thousands}," in reports[4]


# --- An agent that a reader wrote ---

MINE = {
    AGENTS / "beginner.py": [
        "stopped no",
        "files 24 of 24",
        "! on disk 7 messages, but 22 of 22 files only as a layer left them (step 2)",
        "! seen the model saw 22 of 24 files (step 3)",
        "ok layer 1 cleared 61,908 tokens of old results, before 2 of 47 requests",
        "! no text after a summary without text, 2 of 43 messages are in the next request",
        "! messages after a summary, 1 of 2 user messages are in the next request (step 4)",
        "! cut off after a summary that was cut off, 2 of 10 messages are in the next",
        "ok summary 3 of 3 are in the next request",
        " compact there is no such tool; the last request has 22,849 tokens (/compact isn't tried)",
        "! cost 0% from the cache",
        "no request has `cache_control` (step 3)",
        EMPTY,
        "there is no next request: Ctrl-C ended the program. (step 6)",
        "! truncated a truncated call was run",
        "ok huge file after a huge file, the next request is accepted",
        "! blank a blank prompt is sent, and rejected: messages: text content blocks",
        "! asks a command is run without asking (step 1)",
        "Next: Ctrl-C (step 6 of chapter 2)",
    ],
    AGENTS / "classes.py": [
        "stopped no",
        "files 24 of 24",
        "on disk 89 messages",
        "largest 79,888 tokens",
        " layer 1 it never acted",
        "without text, 2 of 31 messages are in the next request (step 4)",
        "ok messages after a summary, 2 of 2 user messages are in the next request",
        "! truncated a truncated call is not run, but the next request is rejected:",
        "ok asks a command is run only after y",
    ],
    SMALL: [
        "stopped no",
        "files 24 of 24",
        "seen the model saw 24 of 24 files",
        "layer 1 cleared 56,264 tokens of old results, before 2 of 49 requests",
        "layer 2 requests for a summary: 6",
        "without text, 43 of 43 messages are in the next request",
        "after a summary, 2 of 2 user messages are in the next request",
        "summary 4 of 4 are in the next request",
        "ok compact the request after it has 244 tokens",
        "ok cost 76% from the cache, price 560,000 (in full-price input tokens) small.py",
        *SEEN["small", 6][:-1],
        "Next: python3 tests/lessons/faults.py shows",
    ],
    LESSONS / "first.py": SEEN["small", 0],
}


@pytest.mark.parametrize("path", MINE, ids=lambda path: path.stem)
def test_the_report_shows_progress_and_what_each_layer_did(path, capsys):
    status = steps.main(["small", "--mine", str(path)])
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    assert status == (" ! " in words) == (path != SMALL)
    assert words.startswith(f"{path.name}, given 24 files to read and translate")
    assert [said for said in MINE[path] if said not in words] == []
    assert max(map(len, shown.split("\n"))) < 80


def test_an_agent_that_lets_the_api_drop_thinking_gets_to_the_next_fault():
    asks = f'"thinking": {{"type": "adaptive", "block_binding": {stub.DROPS}}}'
    source = (AGENTS / "s06.py").read_text()
    source = source.replace('"max_tokens": 8_000', f'"max_tokens": 8_000, {asks}')
    assert "block_binding: Extra inputs are" in reported(source)
    beta = f"default_headers={{'anthropic-beta': '{stub.BINDING}'}}"
    source = source.replace("Anthropic()", f"Anthropic({beta})")
    assert "Block' object has no attribute 'text'" in reported(source)


BYTES = "len(json.dumps(messages, ensure_ascii=False).encode())"
COUNTED = {  # how small.py counts: the Chinese files it translates, with how many summaries
    BYTES: (24, 15),
    "len(json.dumps(messages))": (24, 32),
    "len(json.dumps(messages, ensure_ascii=False))": (6, 1),  # as a port easily does
}


@pytest.mark.parametrize("counts", COUNTED)
def test_small_py_gets_through_chinese_files_with_few_summaries(counts, monkeypatch):
    monkeypatch.setattr(plays, "FOREIGN", dict.fromkeys(range(24), "要"))
    monkeypatch.setattr(plays, "REPLACED", "x")
    run = runner.played(changed((BYTES, counts)), plays.work)
    assert (checks.done(run), sum(e.asks for e in run.accepted)) == COUNTED[counts]


def test_no_step_and_no_report_loads_agent_py():
    code = "import sys, steps; sys.exit('agent' in sys.modules)"
    argv = [sys.executable, "-S", "-c", code]
    assert subprocess.run(argv, check=False, cwd=LESSONS).returncode == 0


MISTAKES = {
    f"{steps} {how}": f"{how[:7].strip()} needs small and no step"
    for steps in ("layer1", "small 3", "")
    for how in ("--mine none.py", "--serve")
}
MISTAKES["small --mine none.py --serve"] = "with --serve, you start it"


@pytest.mark.parametrize("argv", MISTAKES)
def test_an_agent_is_started_in_one_way_for_all_steps_of_small(argv, capsys):
    with pytest.raises(SystemExit):
        steps.main(argv.split())
    assert MISTAKES[argv] in capsys.readouterr().err


def test_tools_can_be_named_and_agent_py_agrees_to_its_commands(capsys):
    names = [("bash", "run"), ("read_file", "view"), ("compact", "sum_up")]
    path = changed(*((f'"{old}"', f'"{new}"') for old, new in names))
    tools = ["--tools", "run", "view", "sum_up"]
    assert steps.main(["small", "--mine", str(path), *tools]) == 0
    assert steps.main(["small", "--mine", str(ROOT / "agent.py")]) == 0
    assert "agent.py, started with --yes, given 24 files" in capsys.readouterr().out


def test_a_reader_that_stops_early_gets_no_traceback():
    argv = [sys.executable, steps.__file__, "layer1", "0", "--diff"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as process:
        process.stdout.close()  # as `| head` does
        assert process.stderr.read() == b""
    assert process.returncode == 0
