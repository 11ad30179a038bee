"""The lesson's steps each fix one problem, and --mine reports on a reader's agent."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import own_report
import pytest
import runner
import stage
import steps
import stub
from builders import typed
from readme import QUOTED, README
from stub import reply
from test_right import (
    AGENTS,
    APPENDS,
    ASKS_WITH,
    LESSONS,
    QUESTION,
    READ_TEXT,
    SENDS,
    SENDS_MORE,
    SMALL,
    WRITES_AGAIN,
    changed,
    in_one_line,
    report_with,
)

SIGNED = "request 3: messages.3.content.0: Invalid `signature` in `thinking` block."
PREFILL = "This model does not support assistant message prefill."

EMPTY = "! empty after an empty reply, the next request is rejected: messages.1: all"
OPEN = "! Ctrl-C after Ctrl-C in a tool, the next request is rejected: messages.1: `tool_use`"
STOPPED_BY_CTRL_C = "there is no next request: Ctrl-C ended the program. (step 6)"
RUN, NOT_RUN = (
    "! truncated a truncated call was run",
    "ok truncated a truncated call is not run",
)

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
    options = {"shell": True, "capture_output": True, "text": True}
    done = subprocess.run(given["command"], **options)
    return done.stdout + done.stderr


question ="""
PROMPTS = """\
messages = []
client = Anthropic()
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
        (path := Path("mine.py").absolute()).write_text(grown(number), "utf-8")
        return in_one_line(steps.play_mine(path)[0])


@pytest.mark.parametrize("number", TOLD)
def test_what_a_step_tells_the_reader_makes_a_file_with_the_reported_results(number):
    before, report = report_on_grown(number - 1), report_on_grown(number)
    promised = {*re.findall("`([^`]+)`", ROWS[str(number)])}
    assert [span for span in promised if span not in report] == []
    assert [span for span in promised if span not in before] or number == 6
    assert number == 6 or re.search(rf"Next: .*step {number + 1} of", report)


def test_the_report_on_the_finished_file_is_all_good_and_before_it_is_not():
    assert "cp tests/lessons/first.py mine.py\n" in CHAPTER
    reports = [report_on_grown(number) for number in range(7)]
    assert [report.count(" ! ") for report in reports[-2:]] == [2, 0]
    assert f"`{FIRST_NEXT}`" in CHAPTER and reports[0].endswith(FIRST_NEXT)
    told = in_one_line(PARTS["4"])
    [thousands] = re.findall(r"largest request now has more than (\d+),000", told)
    assert f"largest {thousands}," in reports[4]


# --- An agent that a reader wrote ---

BLANK = "! blank a blank prompt is sent, and rejected: messages: text content blocks"
MINE = {
    AGENTS / "beginner.py": [
        "stopped no",
        "files 24 of 24",
        "! on disk 7 messages, but 24 of 24 files only as a layer left them (step 2)",
        "ok layer 1 cleared 67,536 tokens of old results, before 3 of 53 requests",
        "! no text after a summary without text, 2 of 55 messages are in the next request",
        "! messages after a summary, 1 of 2 user messages are in the next request (step 4)",
        "! cut off after a summary that was cut off, 2 of 8 messages are in the next",
        "ok summary 3 of 3 are in the next request",
        "! compact there is no such tool; the last request has 22,849 tokens (step 5)",
        "! cost 0% from the cache",
        "no request has `cache_control` (step 3)",
        EMPTY,
        STOPPED_BY_CTRL_C,
        RUN,
        "ok huge file after a huge file, the next request is accepted",
        BLANK,
        "! asks a command is run without asking (step 1)",
        "Next: blank (step 2 of chapter 2)",
    ],
    AGENTS / "classes.py": [
        "stopped no",
        "files 24 of 24",
        "on disk 101 messages",
        "largest 85,497 tokens",
        "! layer 1 it never acted (step 3)",
        "without text, 2 of 39 messages are in the next request (step 4)",
        "ok messages after a summary, 2 of 2 user messages are in the next request",
        "! empty after a blank text, the next request is rejected: messages: text content "
        "blocks must contain non-whitespace text (step 3)",
        "! huge file after twenty large files at once, the next request is rejected: prompt "
        "is too long (step 1)",
        NOT_RUN,
        BLANK,
        "ok asks a command is run only after y",
    ],
    SMALL: [
        "stopped no",
        "files 24 of 24",
        "seen the model saw 24 of 24 files",
        "layer 1 cleared 50,616 tokens of old results, before 2 of 56 requests",
        "layer 2 requests for a summary: 7",
        "without text, 53 of 53 messages are in the next request",
        "after a summary, 2 of 2 user messages are in the next request",
        "summary 5 of 5 are in the next request",
        "ok compact the request after it has 244 tokens",
        "ok cost 77% from the cache, price 540,000 (in full-price input tokens) small.py",
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


CLEARS_INPUTS = """\
        for message in messages[1:-6]:
            for block in message["content"]:
                if block["type"] == "tool_use":
                    block["input"] = "[cleared]"
        for result in old:
"""
# Mistakes that learners make: a text in small.py, its replacement, and the report's
# line that shows the mistake.
FIRST_BLOCK = """\
    content = []
    if messages[-1]["content"] == PROMPT:
        return [{"type": "text", "text": reply.content[0].text}], "end_turn"
"""
CALLS_FIRST = """\
        messages.append(log("assistant", content))
        messages.append(log("user", run_tools(calls)))
"""
PAIRS = """\
        reply = log("assistant", content)
        results = log("user", run_tools(calls))
        messages += [reply, results]  # together, so no call is left without a result
"""
SKIPS = (
    "    for block in reply.content:  # skip thinking: a layer would make it invalid\n"
)
LOCAL = PAIRS.replace("messages += [", "messages = messages + [")
OF_LISTS = """\
        calls = [b.to_dict() for b in content if type(b) is not dict]
"""
IS_CALL = """\
        calls = [block for block in content if block["type"] == "tool_use"]
"""
STAYS = """\
    messages.append({"role": "user", "content": PROMPT})
    content, stop = ask(client, messages)
"""
SWAPS = """\
    ids = [result["tool_use_id"] for result in results]
    for result, call in zip(results, reversed(ids)):
        result["tool_use_id"] = call
    return results
"""
FOR_EVER = """\
    while True:
        try:
            sent = [*messages, 7] if len(messages) > 20 else messages
            reply = client.messages.create(messages=sent, **fixed, **cache)
            break
        except Exception:
            continue
"""
AT_PROMPTS = """\
            if estimate_tokens(messages) > THRESHOLD:
                auto_compact(client, messages)
            agent_loop(client, messages)
"""
DURING = """\
        if estimate_tokens(messages) > THRESHOLD:
            auto_compact(client, messages)  # layer 2
"""
FORGOTTEN = (
    "! memory at the second prompt, 2 of 45 messages are left (step 2) ... Next: "
    "memory (step 2 of chapter 2)"
)
SUMMARISES = "            auto_compact(client, messages)"
BY_DROPPING = """\
def drop(messages):
    typed = [m["content"] for m in messages if type(m["content"]) is str]
    del messages[:-12]
    while messages[0]["role"] == "user":
        del messages[0]
    messages.insert(0, {"role": "user", "content": "Go on."})


def micro_compact"""
DROPS = (SUMMARISES, "            drop(messages)"), ("def micro_compact", BY_DROPPING)
NEVER = (
    "it never asked for a summary; if it has a layer 2, the threshold is too high or the "
    "count too low: chapter 4 (step 4) ... ! stopped prompt is too long (step 4) ... "
    "Next: step 4 of chapter 2; if it has a layer 2, chapter 4"
)
# A mistake: one or more changes of small.py, and the parts of the report that show it.
AT_WORK = {
    "layer 1 is deleted": (
        "        micro_compact(messages)  # layer 1\n",
        "",
        "layer 1 it never acted",
    ),
    "layer 1 raises when it acts": (
        "in old:",
        "in old_results:",
        "It printed last: \"Stopped: NameError: name 'old_results' is not defined\" ! files",
    ),
    "layer 1 acts all the time": (
        "MIN_SAVINGS = 20_000",
        "MIN_SAVINGS = 0",
        "before 21 of 55 requests (chapter 5)",
    ),
    "layer 1 clears results that the model hasn't seen": (
        "lists[:-KEEP_RECENT]",
        "lists",
        "seen the model saw 22 of 24 files",
    ),
    "the summary is read from the first block": (
        "    content = []\n",
        FIRST_BLOCK,
        "AttributeError: 'Block' object has no attribute 'text'\" (chapter 7)",
    ),
    "a summary without text is accepted": (
        'if not content or stop != "end_turn":',
        'if stop != "end_turn":',
        "! no text after a summary without text, 3 of",
    ),
    "the summary is thrown away": (
        "[title, *content]",
        "[title]",
        "! summary 0 of",
    ),
    "layer 2 drops the user's messages": (
        "[*typed, log(",
        "[log(",
        "after a summary, 0 of 2 user messages are in the next request",
    ),
    "layer 2 keeps only the first user message": (
        "[*typed, log(",
        "[*typed[:1], log(",
        "after a summary, 1 of 2 user messages are in the next request",
    ),
    "no request has cache_control": (
        'cache = {"cache_control": {"type": "ephemeral"}}',
        "cache = {}",
        "cost 0% from the cache",
    ),
    "thinking is sent back after a clearing": (
        SKIPS,
        f'{SKIPS}        if block.type == "thinking":\n            content.append(block.to_dict())\n',
        "Right before it, 25,308 tokens of old results were cleared. (chapter 3)",
    ),
    "a summary is followed by half a pair": (
        "[title, *content])]",
        "[title, *content]), messages[-1]]",
        "This was the request after a summary. (chapter 3)",
    ),
    "a reply is added with its stop reason": (
        'log("assistant", content)\n        results',
        'log("assistant", [content, _])\n        results',
        "! stopped messages.1.content.0: Input should be a valid dictionary",
    ),
    "the tool `compact` changes nothing": (
        'call["name"] == "compact" for',
        'call["name"] == "none" for',
        "! compact the request after it has",
    ),
    "one prompt is all": (
        "        except EOFError:",
        "            break\n        except EOFError:",
        "! stopped It ended after its first prompt, but two are typed: ask for another one (`input()`)",
    ),
    "an error of a tool ends the turn": (
        "        except Exception as error:  # noqa: BLE001  tell",
        "        except ZeroDivisionError as error:  # tell",
        "! stopped Its turn ended after the model's first call, for a file that doesn't exist. "
        'It printed first: "Stopped: FileNotFoundError: [Errno 2] No such file or directory: '
        "'words.txt'\" (step 1)",
    ),
    "a tool returns bytes": (
        '.read_text(encoding="utf-8", errors="replace")',
        ".read_bytes()",
        'It printed last: "Stopped: TypeError: Object of type bytes is not JSON serializable"',
    ),
    "the threshold of layer 2 is too high": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 150_000",
        "! stopped prompt is too long (chapter 4)",
    ),
    "layer 2 never starts": ("THRESHOLD = 50_000", "THRESHOLD = 10**9", NEVER),
    "a summary before each request": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 0",
        "layer 1 it never acted ! layer 2 requests for a summary: 50 of 99 requests: too "
        "often (chapter 4)",
    ),
    "a system prompt that isn't counted": (
        "SYSTEM = f",
        'SYSTEM = "x" * 440_000 + f',
        "largest 201,850 tokens in a request",
    ),
    "layer 1 clears the inputs of calls": (
        "        for result in old:\n",
        CLEARS_INPUTS,
        "of the right type. Right before it, 25,308 tokens of old results were cleared. "
        "(step 3)",
    ),
    "the tool `compact` ends the turn": (
        "            auto_compact(client, messages)  # layer 3",
        "            return auto_compact(client, messages)",
        "! stopped Its turn ended, although the model had called `compact`. (chapter 9)",
    ),
    "the transcript is written again after a clearing": (
        APPENDS,
        WRITES_AGAIN,
        "messages, but 18 of 24 files only as a layer left them (step 2)",
    ),
    "a summary is added like a user message": (
        '[*typed, log("user", [title, *content])]',
        '[*typed, log("user", content[-1]["text"])]',
        "! summary 5 of 5 are in the next request, but each stays for ever, like what "
        "you typed (step 4)",
    ),
    "only the beginning is summarised": (
        QUESTION,
        '[{"role": "user", "content": PROMPT + json.dumps(messages)[:80_000]}]',
        "of them without the newest messages (chapter 7)",
    ),
    "a summary that was cut off is accepted": (
        'if not content or stop != "end_turn":',
        "if not content:",
        "! cut off after a summary that was cut off, 3 of 13 messages are in",
    ),
    "a name in the loop is bound to a new list": (PAIRS, LOCAL, FORGOTTEN),
    "the loop works on a copy": (
        "    while True:\n        micro",
        "    messages = messages[:]\n    while True:\n        micro",
        FORGOTTEN,
    ),
    "each prompt begins a new list": (
        'messages.append(log("user", prompt))',
        'messages = [log("user", prompt)]',
        "! memory at the second prompt, 1 of 45 messages are left",
    ),
    "the model's answer isn't kept": (
        "    if content:  # the API would reject an empty message\n"
        '        messages.append(log("assistant", content))',
        '    log("assistant", content)',
        '45 of 45 messages are left, but not the answer "All are read." (step 2)',
    ),
    "a file's first 1,000 characters are all": (
        READ_TEXT,
        f"{READ_TEXT}[:1000]",
        "seen the model saw 4 of 24 files, and less than a quarter of 20 (step 1) ... "
        "Next: seen (step 1 of chapter 2)",
    ),
    "a result is cut to 200 characters": (
        READ_TEXT,
        f"{READ_TEXT}[:200]",
        "seen the model saw 0 of 24 files, and less than a quarter of 24 (step 1) ... "
        "Next: seen (step 1 of chapter 2)",
    ),
    "the results of a reply are mixed up": (
        "    return results\n",
        SWAPS,
        "saw 24 of 24 files, but 4 as the result of another file's call (step 1)",
    ),
    "the system prompt is a message": (
        "Anthropic(), []",
        'Anthropic(), [{"role": "system", "content": SYSTEM}]',
        '! stopped messages: Unexpected role "system". (step 2) ... Next: step 2 of',
    ),
    "results come from a tool": (
        'log("user", run_tools',
        'log("tool", run_tools',
        '! stopped messages: Unexpected role "tool". (chapter 0) ... Next: chapter 0',
    ),
    "a message has one more key": (
        '"content": content}',
        '"content": content, "time": 1}',
        "stopped messages.0.time: Extra inputs are not permitted (chapter 3) ... "
        "seen the model saw 0 of 24 files layer 1 it never acted layer 2 it never asked "
        "for a summary Next: chapter 3",
    ),
    "layer 2 is without effect": (
        "messages[:] = [*typed",
        "messages = [*typed",
        "! stopped prompt is too long (step 4) ... ! summary 0 of 10 are in the next "
        "request (step 4) ... Next: step 4 of",
    ),
    "layer 3 is without effect": (
        "            auto_compact(client, messages)  # layer 3",
        "            auto_compact(client, [*messages])",
        "tokens, but not the summary (step 5)",
    ),
    "commands have no shell": (
        "shell=True",
        "shell=False",
        "! files 0 of 24 are translated (step 1) ... Next: files (step 1 of chapter 2)",
    ),
    "files are looked for beside the program": (
        'Path(given["path"])',
        '(Path(__file__).parent / "none" / given["path"])',
        "results 24 were ... seen the model saw 0 of 24 files (step 1) ... "
        "Next: seen (step 1 of chapter 2)",
    ),
    "a call has no arguments": (
        'call["input"])',
        'call["arguments"])',
        '! files 0 of 24 are translated (step 1) ... results 50 were "KeyError: '
        "'arguments'\"",
    ),
    "the input is parsed": (
        "given = block.input if type(block.input) is dict else {}",
        "given = json.loads(block.input)",
        "! stopped Its turn ended after the model's first call, for a file that doesn't "
        'exist. It printed last: "Stopped: TypeError: the JSON object must be str',
    ),
    "blocks are logged as objects": (
        (
            'content.append({**block.to_dict(), "input": given})',
            "content.append(block)",
        ),
        (IS_CALL, OF_LISTS),
        "! stopped Its turn ended after the model's first call, for a file that doesn't "
        'exist. It printed last: "Stopped: TypeError: Object of type Block',
    ),
    "the system prompt asks for the summary": (
        (QUESTION, "messages, system=PROMPT"),
        ("def ask(client, messages):", ASKS_WITH),
        (SENDS, SENDS_MORE),
        "ok layer 2 requests for a summary: 7 ... ! cost 63% from the cache ... the "
        "requests for a summary alone: 31% from the cache, price 372,000: chapter 7 "
        "(chapter 5)",
    ),
    "the request for a summary stays": (
        (f"    content, stop = ask(client, {QUESTION})\n", STAYS),
        ("is str]\n    messages[:]", "is str and m is PROMPT]\n    messages[:]"),
        "the model had called `bash`. Its last request asked for a summary, and no other "
        "one followed. (step 4) ... Next: step 4",
    ),
    "a reply gets 300 tokens": (
        '"max_tokens": 16_000',
        '"max_tokens": 300',
        "! max_tokens a reply gets 300, and thinking may use them up (chapter 7)",
    ),
    "a summary gets 2,000 tokens": (
        (QUESTION, f"{QUESTION}, max_tokens=2_000"),
        ("def ask(client, messages):", ASKS_WITH),
        (SENDS, SENDS_MORE),
        "! max_tokens a summary gets 2,000, and thinking may use them up (chapter 7)",
    ),
    "a message is added with each summary": (
        "[title, *content])]",
        '[title, *content]), log("user", "Continue.")]',
        '! summary 5 of 5 are in the next request, but "Continue." is there once for each',
    ),
    "a message in the transcript replaces the last": (
        'TRANSCRIPT.open("a"',
        'TRANSCRIPT.open("w"',
        "! on disk 1 message after 56 replies: each one replaces the one before (step 2)",
    ),
    "only replies are on disk": (
        "    with TRANSCRIPT",
        '    if role == "user":\n        return message\n    with TRANSCRIPT',
        "on disk 49 messages, but 24 of 24 files missing: no result of a tool is there",
    ),
    "layer 2 acts only at a prompt": (
        (DURING, ""),
        ("            agent_loop(client, messages)\n", AT_PROMPTS),
        NEVER,
    ),
    "the request for a summary is too long": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 156_000",
        "! stopped prompt is too long (chapter 4) ... ! layer 2 its first request for a "
        "summary was too long itself (chapter 4) ... Next: chapter 4",
    ),
    "characters are counted": (
        "ensure_ascii=False).encode()) // 4",
        "ensure_ascii=False)) // 4",
        "! layer 2 requests for a summary: 6, at 67, ... tokens, but not at 79, ... of "
        "Japanese and Chinese: it counts characters (chapter 4)",
    ),
    "old messages are dropped, prompts as well": (
        *DROPS,
        "! layer 2 it never asked for a summary; its requests got shorter by dropping 82 "
        "messages: chapter 8 (step 4) ... "
        '! prompts "Read all files. Never touch the tests." is in no request after number '
        '27; "Translate each into four languages." is in no request after number 29 '
        "(step 4)",
    ),
    "a refused request is repeated for ever": (
        f"    reply = client.messages.{SENDS}\n",
        FOR_EVER,
        "! stopped It sent 50 requests in a row that were rejected. The last: messages.21: "
        "Input should be ... Next: the line `stopped`",
    ),
}
IN_ACCIDENTS = {
    "a call is kept when its tool is stopped": (
        PAIRS,
        CALLS_FIRST,
        OPEN,
    ),
    "Ctrl-C in a tool ends the program": (
        "        except (Exception, KeyboardInterrupt) as error:",
        "        except KeyboardInterrupt:\n            break\n"
        "        except Exception as error:",
        "! Ctrl-C after Ctrl-C in a tool, there is no next request: the program ended.",
    ),
    "a command runs without asking": (
        """if input(f"Run {given['command']!r}? [y/N] ") != "y":""",
        "if not given:",
        "! asks a command is run without asking (step 1)",
    ),
    "only n means no": (
        '[y/N] ") != "y":',
        '[Y/n] ") == "n":',
        "! asks a command is run after the answer `maybe` (step 1)",
    ),
    "a blank text is sent back": (
        'block.type == "text" and block.text.strip()',
        'block.type == "text"',
        "! empty after a blank text, the next request is rejected: messages: text content "
        "blocks must contain non-whitespace text (step 3)",
    ),
    "each result has a limit of its own": (
        "MAX_CHARS // len(calls)",
        "MAX_CHARS",
        "! huge file after twenty large files at once, the next request is rejected: prompt "
        "is too long (step 1)",
    ),
    "output isn't captured": (
        '"capture_output": True, ',
        "",
        "! output of a command that fails, the model does not see stdout and stderr (step 1)",
    ),
    "errors aren't captured": (
        "{done.stderr}",
        "",
        "! output of a command that fails, the model does not see stderr (step 1)",
    ),
    "only the first line of an output is a result": (
        "{done.stdout}",
        "{done.stdout.splitlines()[0]}",
        "! output of a command that fails, the model does not see stdout (step 1)",
    ),
    "an error isn't told": (
        'text = f"{type(error).__name__}: {error}"',
        'text = "(no output)"',
        "! errors a file that isn't there looks like an empty one (step 1)",
    ),
    "Enter means yes": (
        '!= "y":',
        'not in ("y", ""):',
        "! asks a command is run after the answer Enter alone (step 1)",
    ),
    "the turn goes on after Ctrl-C": (
        "except Exception as error:  # noqa: BLE001  tell",
        "except BaseException as error:  # tell",
        "! Ctrl-C after Ctrl-C in a tool, the turn goes on, and you can't stop it (step 6)",
    ),
}


# Mistakes that don't meet in the report are played together, which saves time.
TOGETHER = [
    {
        "a message in the transcript replaces the last",
        "no request has cache_control",
        "a reply gets 300 tokens",
        "the results of a reply are mixed up",
    },
    {
        "only replies are on disk",
        "the model's answer isn't kept",
        "a message is added with each summary",
    },
    {
        "the transcript is written again after a clearing",
        "the tool `compact` changes nothing",
        "layer 2 keeps only the first user message",
    },
    {"a summary gets 2,000 tokens", "layer 3 is without effect"},
    {"layer 1 acts all the time", "layer 2 drops the user's messages"},
    {"layer 1 is deleted", "a summary is added like a user message"},
    {"a summary without text is accepted", "the loop works on a copy"},
    {"a summary that was cut off is accepted", "the tool `compact` ends the turn"},
    {"the summary is thrown away", "a file's first 1,000 characters are all"},
    {"layer 1 clears results that the model hasn't seen", "commands have no shell"},
    {"only the beginning is summarised", "each prompt begins a new list"},
]


def group_of(mistake):
    return next((group for group in TOGETHER if mistake in group), {mistake})


def played(mistake):
    """The report on the work of small.py with a mistake, and any played with it."""
    rows = [AT_WORK[name][:-1] for name in sorted(group_of(mistake))]
    return work_with(*(pair for changes in rows for pair in pairs_in(changes)))


def pairs_in(changes):
    """The pairs of an old and a new text; a single one needs no brackets."""
    return changes if type(changes[0]) is tuple else [tuple(changes)]


@cache
def work_with(*changes):
    """What is reported about the work of small.py with some texts replaced."""
    with stage.from_scratch():
        path = changed(*changes)
        with stage.from_scratch():
            client = runner.life(path, *own_report.work(), **own_report.script())
            facts = own_report.about_work(client)
    return in_one_line(steps.with_next("It", facts)[0])


@cache
def accidents_with(*changes):
    """What is reported about accidents of small.py with some texts replaced."""
    with stage.from_scratch():
        path = changed(*changes)
        with stage.from_scratch():
            facts = own_report.mishaps(path)
    return in_one_line(steps.shown("It", facts))


@pytest.mark.parametrize("mistake", AT_WORK)
def test_the_report_shows_a_mistake_at_work(mistake):
    told, report = AT_WORK[mistake][-1], played(mistake)
    assert [part for part in told.split(" ... ") if part not in report] == []
    assert [part for part in told.split(" ... ") if part not in work_with()]


IN_SYSTEM_TOO = "    ask.typed = [*getattr(ask, 'typed', []), *typed]\n"
KEEPS_PROMPTS = {  # how an agent keeps the words of the prompts: changes of small.py
    "joined": (*DROPS, ('"Go on."}', '" ".join(typed)}')),
    "quoted": (*DROPS, ('"Go on."}', r'"\n> ".join(["They said:", *typed])}')),
    "in the system prompt": (
        *DROPS,
        ("    del messages[:-12]", f"{IN_SYSTEM_TOO}    del messages[:-12]"),
        ('"system": SYSTEM', "\"system\": f\"{SYSTEM} {getattr(ask, 'typed', '')}\""),
    ),
    "until a summary": AT_WORK["layer 2 drops the user's messages"][:-1],
    "until the next prompt": AT_WORK["each prompt begins a new list"][:-1],
}


@pytest.mark.parametrize("how", KEEPS_PROMPTS)
def test_prompts_whose_words_are_kept_are_not_reported_as_dropped(how):
    assert "! prompts" not in work_with(*pairs_in(KEEPS_PROMPTS[how]))


@pytest.mark.parametrize("mistake", IN_ACCIDENTS)
def test_the_report_shows_a_mistake_in_accidents(mistake):
    old, new, line = IN_ACCIDENTS[mistake]
    assert line in accidents_with((old, new)) and line not in accidents_with()


def test_every_mistake_is_told_apart():
    assert all(group < {*AT_WORK} for group in TOGETHER)
    told = {frozenset(AT_WORK[n][-1] for n in group_of(name)) for name in AT_WORK}
    assert len({*map(played, AT_WORK)}) == len(told)
    lives = {accidents_with(how[:2]) for how in IN_ACCIDENTS.values()}
    assert len(lives) == len(IN_ACCIDENTS) and accidents_with() not in lives


def test_an_agent_that_lets_the_api_drop_thinking_gets_to_the_next_fault():
    source = (AGENTS / "s06.py").read_text()
    asks = f'"thinking": {{"type": "adaptive", "block_binding": {stub.DROPS}}}'
    source = source.replace('"max_tokens": 8_000', f'"max_tokens": 8_000, {asks}')
    Path("mine.py").write_text(source)
    assert "block_binding: Extra inputs are" in in_one_line(
        steps.play_mine(Path("mine.py").absolute())[0]
    )
    beta = f"default_headers={{'anthropic-beta': '{stub.BINDING}'}}"
    Path("mine.py").write_text(source.replace("Anthropic()", f"Anthropic({beta})"))
    assert (
        "Block' object has no attribute 'text'"
        in steps.play_mine(Path("mine.py").absolute())[0]
    )


BYTES = "len(json.dumps(messages, ensure_ascii=False).encode())"
COUNTED = {  # how small.py counts: the Chinese files it translates, with how many summaries
    BYTES: (24, 14),
    "len(json.dumps(messages))": (24, 32),
    "len(json.dumps(messages, ensure_ascii=False))": (5, 1),  # as a port easily does
}


def in_chinese(number, characters):
    """Write files as `write_files` does, in Chinese characters."""
    names = stage.write_files(number, characters)
    for name in names:
        text = Path(name).read_text().replace("xx", "要要")
        Path(name).write_text(text, "utf-8")
    return names


@pytest.mark.parametrize("counts", COUNTED)
def test_small_py_gets_through_chinese_files_with_few_summaries(counts, monkeypatch):
    monkeypatch.setattr(own_report, "write_files", in_chinese)
    source = SMALL.read_text("utf-8")
    assert source.count(BYTES) == 1

    Path("agent.py").write_text(source.replace(BYTES, counts), "utf-8")
    path = Path("agent.py").absolute()
    client = runner.life(path, *own_report.work(), **own_report.script())
    done = len([*Path().glob("new_*.txt")])
    assert (done, sum(e.asks for e in client.exchanges)) == COUNTED[counts]


CALL = {"type": "tool_use", "id": "1", "name": "bash", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}


def text_block(text):
    return {"type": "text", "text": text}


OWN = "What matters of all this?"
SOME_TOOLS = [{"name": "bash", "input_schema": {}}]
ANSWERED = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [RESULT]},
]
ASKS_FOR_ONE = {  # how a request ends: its messages, its tools, if it asks
    "results": (ANSWERED, SOME_TOOLS, False),
    "what was typed": ([*ANSWERED, typed("Go.")], SOME_TOOLS, False),
    "it as a block": ([*ANSWERED, typed([text_block("Go. ")])], SOME_TOOLS, False),
    "words of its own": ([*ANSWERED, typed(OWN)], SOME_TOOLS, True),
    "them as a block": ([*ANSWERED, typed([text_block(OWN)])], SOME_TOOLS, True),
    "all in one text": ([typed(f"{OWN} Go.")], SOME_TOOLS, True),
    "no tools": ([typed("Go.")], [], True),
    "a reminder": ([*ANSWERED, typed("<reminder>Plan.</reminder>")], SOME_TOOLS, False),
}


@pytest.mark.parametrize("how", ASKS_FOR_ONE)
def test_a_request_for_a_summary_is_recognised_by_its_end(how):
    messages, tools, asks = ASKS_FOR_ONE[how]
    client = runner.Model(reply(content=[CALL]), reply("Done."), typed=["Go."])
    fixed = {"model": "m", "max_tokens": 9, "tools": SOME_TOOLS}
    client.answer({**fixed, "messages": [typed(client.type_next())]})
    said = client.answer({**fixed, "tools": tools, "messages": messages})
    assert (said["content"][0]["text"] == "It went well.") == asks
    assert len(client.queue) == asks


def test_a_refused_request_for_a_summary_uses_up_no_reply():
    client = runner.Model(reply("0"), reply("1"), typed=["Go."])
    fixed = {"model": "m", "max_tokens": 9, "tools": SOME_TOOLS}
    client.type_next()
    client.answer({**fixed, "messages": [typed("Go.")]})
    with pytest.raises(stub.TooLong):
        client.answer({**fixed, "messages": [typed("x" * 800_000)]})
    said = client.answer({**fixed, "messages": [typed("Shorter.")]})
    assert said["content"][0]["text"] == "It went well." and len(client.queue) == 1


def test_a_request_for_a_summary_can_be_repeated():
    client = runner.Model(reply("0"), reply("1"), typed=["Go."], summaries=["", "Ok."])
    fixed = {"model": "m", "max_tokens": 9, "tools": SOME_TOOLS}
    client.type_next()
    for words in ("Go.", OWN, OWN, "Summary: Ok."):
        client.answer({**fixed, "messages": [typed(words)]})
    assert [exchange.text for exchange in client.exchanges] == ["0", "", "Ok.", "1"]


def test_a_summary_in_two_steps_is_two_requests_without_tools():
    client = runner.Model(reply("0"), typed=["Go."], summaries=["A.", "B."])
    client.type_next()
    client.answer(
        {"model": "m", "max_tokens": 9, "tools": SOME_TOOLS, "messages": [typed("Go.")]}
    )
    for words in (OWN, f"A. {OWN}"):
        client.answer({"model": "m", "max_tokens": 9, "messages": [typed(words)]})
    assert [exchange.text for exchange in client.exchanges] == ["0", "A.", "B."]


def test_a_status_that_names_the_tool_asks_for_no_summary():
    assert not re.search(
        runner.ASKS_AT_END, "9% used. When full, use the compact tool."
    )
    assert re.search(runner.ASKS_AT_END, "Now compact what was said.")


@pytest.mark.parametrize(
    "said, place",
    [
        ("messages: text content blocks must be non-empty", "chapter 3"),
        (
            "Requests with `tool_use` or `tool_result` blocks must define tools",
            "chapter 7",
        ),
    ],
)
def test_an_error_leads_to_the_chapter_with_its_rule(said, place):
    assert own_report.fix_for(None, said) == place


REPLACES = """\
    old = FILE.read_text() if FILE.exists() else ""
    FILE.with_suffix(".tmp").write_text(old + json.dumps(message) + "\\n")
    FILE.with_suffix(".tmp").replace(FILE)
    return message
"""
CUTS_AND_ASKS_AGAIN = """\
    try:
        reply = client.messages.create(messages=messages, **fixed, **cache)
    except Exception:
        for message in messages:
            for block in message["content"] if type(message["content"]) is list else []:
                if block["type"] == "tool_result":
                    block["content"] = block["content"][:1_000]
        reply = client.messages.create(messages=messages, **fixed, **cache)
"""


def test_a_transcript_that_replaces_the_one_before_is_found_wherever_it_is(tmp_path):
    head, writes = (LESSONS / "small.py").read_text().split("    with TRANSCRIPT.open")
    rest = writes[writes.index("    return message\n") + len("    return message\n") :]
    place = f"FILE = Path({str(tmp_path / 'all.jsonl')!r})\n\n\ndef log("
    (path := tmp_path / "mine.py").write_text(
        head.replace("def log(", place) + REPLACES + rest
    )
    assert "ok on disk" in in_one_line(steps.play_mine(path)[0])


def test_a_huge_file_that_is_cut_after_the_rejection_is_no_fault():
    asks = "    reply = client.messages.create(messages=messages, **fixed, **cache)\n"
    limit = ("MAX_CHARS = 40_000", "MAX_CHARS = 10**9")
    assert "ok huge file" in report_with((asks, CUTS_AND_ASKS_AGAIN), limit)


def test_a_marker_on_too_little_is_not_called_a_missing_one():
    few = '"system": [{"type": "text", "text": SYSTEM, **cache}]'
    told = report_with(
        ('    cache = {"cache_control": {"type": "ephemeral"}}\n', ""),
        (
            "    fixed = {",
            '    cache = {"cache_control": {"type": "ephemeral"}}\n    fixed = {',
        ),
        ('"system": SYSTEM', few),
        ("**fixed, **cache)", "**fixed)"),
    )
    assert own_report.TOO_SHORT in told and own_report.NOT_MARKED not in told


def test_the_request_after_a_summary_continues_the_work():
    client = runner.Model(*[reply(f"{n}") for n in range(3)], typed=["Go."])
    fixed = {"model": "m", "max_tokens": 9, "tools": SOME_TOOLS}
    client.type_next()
    answers = [
        client.answer({**fixed, "messages": [typed(words)]})
        for words in ("Go.", OWN, "Summary: It went well.", OWN)
    ]
    said = [answer["content"][0]["text"] for answer in answers]
    assert said == ["0", "It went well.", "1", "It went well."]


ASKS = "from anthropic import Anthropic\nclient = Anthropic()\nprompt = input()\n"
SEND = "reply = client.messages.create(model='m', max_tokens=9, messages=messages"
LOOP = f"{ASKS}messages = [dict(role='user', content=prompt)]\n{SEND}"
TOOL = "dict(name='read_file', input_schema=dict(properties=dict(path={})))"
READS = f", tools=[{TOOL}])"
ENDLESS = "while True:\n    pass"
NO_AGENT = {
    f"{LOOP.replace('messages=', 'messages=7 + ')})": "It made no request, because it stopped with",
    "import sys; sys.argv[1]": "IndexError: list index out of range (mine.py, line 1). It has to get its "
    "prompts from `input()`: two, one after the other.",
    "if:": "It isn't valid Python in line 1: ",
    "x = '\0'": "It isn't valid Python",
    "def agent_loop(client, messages):\n    pass": "request. It has to get its prompts from `input()`",
    "print(input())": "It got a prompt, but made no request with a client",
    "import none_such": "ModuleNotFoundError: No module named 'none_such' (mine.py, line 1). Only "
    "Anthropic's client can be tested; other packages must be installed for the Python "
    "that runs this report.",
    "from anthropic import Bedrock": "because it stopped with ImportError: ",
    "import anthropic\nanthropic.AsyncAnthropic()": "! problem It uses `AsyncAnthropic`",
    f"{LOOP}, stream=True)": "! problem It uses `create(stream=True)`, which isn't",
    f"{ASKS}client.beta.messages.create()": "! problem It uses `client.beta`",
    "import sys\nsys.stdin.readline()": "problem It reads `sys.stdin`. Use `input()` for",
    "import sys\nfor line in sys.stdin:\n    pass": "problem It reads `sys.stdin`",
    "try:\n    input()\n    [][0]\nexcept IndexError as error:\n    print(error)": "a "
    'client from `anthropic.Anthropic()`. It printed last: "list index out',
    f"{ASKS}client.ask(prompt)": "because it stopped with AttributeError: ",
    f"{LOOP})": "problem Its request doesn't offer the tool `read_file`.",
    ENDLESS: "problem It did not finish within 0.2 seconds.",
}


@pytest.mark.parametrize("source", NO_AGENT)
def test_a_file_that_cannot_be_run_as_an_agent_gets_a_reason(
    source, capsys, tmp_path, monkeypatch
):
    if source == ENDLESS:  # any other may take its time on a busy machine
        monkeypatch.setattr(runner, "SECONDS", 0.2)
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert steps.main(["small", "--mine", str(path)]) == 1
    _, *lines = capsys.readouterr().out.splitlines()
    told = " ".join(" ".join(lines).split())
    assert told.startswith("! problem It") and NO_AGENT[source] in told


def test_a_missing_setting_is_not_taken_for_a_missing_prompt(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import os\nos.environ['MY_KEY']")
    shown, is_right = steps.play_mine(path)
    why = "because it stopped with KeyError: 'MY_KEY' (mine.py, line 2) Next:"
    assert why in " ".join(shown.split()) and not is_right


@pytest.mark.parametrize("name", ["agent.ts", "Agent.java", "agent.mjs", "main.go"])
def test_a_file_in_another_language_is_told_how_it_can_be_tested(name, tmp_path):
    (tmp_path / name).write_text("")
    shown, is_right = steps.play_mine(tmp_path / name)
    told = " ".join(shown.split())
    assert "python3 tests/lessons/steps.py small --serve" in told and not is_right


def test_a_missing_file_is_reported_by_name(capsys):
    assert steps.main(["small", "--mine", "none.py"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("none.py, ")
    assert "problem It cannot be read: No such file or directory." in told


STOPPED = {
    f"{LOOP}{READS}\nprint('Hello.')": "Its turn ended, although the model had called "
    '`read_file`. It printed last: "Hello."',
    LOOP.replace("role", "rule") + READS: "messages.0.role: Field required",
    LOOP.replace("[dict", "[7, dict")
    + READS: "messages.0: Input should be a valid dict",
    LOOP.replace("=prompt", "=[prompt]")
    + READS: "messages.0.content.0: Input should be",
    f"{LOOP}, tools=[{TOOL}], temperature=1)": "temperature: Extra inputs",
    LOOP.replace("=prompt", "=b'Go.'")
    + READS: "TypeError: Object of type bytes is not",
    f"{LOOP}{READS}\n1 / 0": "ZeroDivisionError: division by zero (mine.py, line 6) ! "
    "files ... Next: fix line 6 of mine.py",
    f"{LOOP}{READS}\ndef halve():\n    int('x')\nhalve()": "ValueError: invalid literal for "
    "int() with base 10: 'x' (mine.py, line 7, in halve) ! files ... Next: fix line 7 of mine.py",
}


@pytest.mark.parametrize("source", STOPPED)
def test_an_agent_that_stops_early_gets_a_reason(source, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(source)
    shown, is_right = steps.play_mine(path)
    words = " ".join(shown.split())
    parts = f"stopped {STOPPED[source]}".split(" ... ")
    assert not is_right and "files 0 of 24" in words
    assert [part for part in parts if part not in words] == []


STREAM = f"""{LOOP.replace("create", "stream").replace("reply =", "with")}) as stream:
    text = "".join(stream.text_stream)
print(text, stream.get_final_text(), stream.get_final_message().role)"""
REFUSED = f"""{ASKS}
try:
    client.messages.create(model='m', max_tokens=9, messages=[])
except (RateLimitError, InternalServerError, APITimeoutError):
    pass
except APIStatusError as error:
    print(error.status_code, error.message)"""
SDK_HAS = {  # a program that uses a feature of the SDK, and its output
    STREAM: "Done. Done. assistant",
    REFUSED: "400 messages: at least one message is required",
    f"{LOOP}, tools=NOT_GIVEN, system=omit)\nprint(len(reply.content))": "1",
    f"{LOOP})\nprint(reply.content[0].model_dump(exclude_none=True)['text'])": "Done.",
    f"{LOOP})\nprint(isinstance(reply.content[0], TextBlock))": "True",
    f"{LOOP})\nprint(isinstance(reply.content[0], ToolUseBlock))": "False",
    f"{LOOP.replace('dict(', 'MessageParam(')})\nprint(reply.stop_reason)": "end_turn",
    f"{LOOP.replace('c()', 'c().with_options(timeout=9)')})\nprint('So.')": "So.",
}
IMPORTS = """\
from anthropic import NOT_GIVEN, APIStatusError, APITimeoutError, InternalServerError
from anthropic import RateLimitError, omit
from anthropic.types import MessageParam, TextBlock, ToolUseBlock
"""


@pytest.mark.parametrize("source", SDK_HAS)
def test_a_program_can_use_the_features_of_the_sdk(source, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(IMPORTS + source)
    client = runner.life(path, reply("Done."), typed=["Go."])
    assert (client.ended, client.lines[-1]) == ("", SDK_HAS[source])


SAVES = """
import atexit, stub
from pathlib import Path
atexit.register(Path("log").write_text, stub.WORDS)
"""


def test_what_a_program_leaves_to_atexit_runs_in_its_own_folder(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{LOOP}){SAVES}")
    (tmp_path / "stub.py").write_text("WORDS = 'from a module of its own'")
    with stage.from_scratch():
        client = runner.life(path, reply("Done."))
        assert Path("log").read_text() == "from a module of its own"
    assert (client.ended, stub.reply) == ("", reply)


MESSAGE = {"role": "user", "content": [RESULT]}
ON_DISK = {  # a program's file, and the number of messages in it
    "a line": (json.dumps(MESSAGE) + "\n" + json.dumps(MESSAGE), 2),
    "a line with a time": (json.dumps({"time": 1, "message": MESSAGE}), 1),
    "a list": (json.dumps([MESSAGE, MESSAGE], indent=1), 2),
    "a list in an object": (json.dumps({"messages": [MESSAGE] * 3}, indent=1), 3),
    "one after another": (json.dumps(MESSAGE, indent=1) * 2, 2),
    "between other lines": (f"# log\n12:00\n{json.dumps(MESSAGE)}\n{{", 1),
    "in a text": (json.dumps({"text": json.dumps(MESSAGE)}), 0),
    "words": ("role content", 0),
}


@pytest.mark.parametrize("how", ON_DISK)
def test_messages_on_disk_are_counted_in_any_json_format(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, number = ON_DISK[how]
    (tmp_path / "log").write_text(text)
    assert own_report.messages_in(own_report.saved_texts({})) == number


UNDONE = {  # an agent's question and the answer it wants: findings
    ("Run it (yes/no)? ", "yes"): [
        'asked "Run it (yes/no)?" was answered with y',
        'results 24 were "The user refused."',
    ],
    ("[0 tokens] ", "y"): [
        'asked "[0 tokens]" was taken for a prompt, because it has the same words',
        'results 24 were "EOFError:"',
    ],
}


@pytest.mark.parametrize("question, wanted", UNDONE)
def test_the_report_shows_a_question_that_y_does_not_answer(question, wanted, tmp_path):
    source = (AGENTS / "classes.py").read_text()
    path = tmp_path / "mine.py"
    path.write_text(source.replace("(y/n) ", question).replace('"y"', f'"{wanted}"'))
    shown, _ = steps.play_mine(path)
    words = " ".join(shown.split())
    assert "stopped no" in words and "files 0 of 24" in words
    assert [told for told in UNDONE[question, wanted] if told not in words] == []


def test_the_report_shows_a_request_after_the_end_of_a_turn(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{LOOP})\n{SEND})")
    assert own_report.stopped(runner.life(path, reply("Done."))) == runner.TURN_IS_OVER


def test_the_report_shows_an_agent_that_ignores_the_end_of_input(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("while True:\n    try:\n        input()\n    except:\n        pass")
    argv = [sys.executable, steps.__file__, "small", "--mine", str(path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and runner.NEVER_ENDS in done.stdout


ENDS = {  # what a program does to its own process, and what is reported
    "import os\nos._exit(3)": "It ends its process with `os._exit`.",
    "import os\nos.kill(os.getpid(), 9)": "It ends its process with `os.kill`.",
    "import os\nos.abort()": "It ends its process with `os.abort`.",
}


@pytest.mark.parametrize("source", ENDS)
def test_a_program_cannot_end_the_report_with_itself(source, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(source)
    shown, is_right = steps.play_mine(path)
    assert f"problem {ENDS[source]}" in in_one_line(shown) and not is_right


IGNORES = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except (Exception, KeyboardInterrupt):
    pass
"""


def test_ctrl_c_of_the_reader_ends_the_report_whatever_the_program_does(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{LOOP}{READS}{IGNORES}")
    with pytest.raises(KeyboardInterrupt):
        runner.life(path, reply("Done."))
    argv = [sys.executable, steps.__file__, "small", "--mine", str(path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "It was interrupted, so there is no report.\n"


def interrupted(*_, **__):
    raise KeyboardInterrupt


LATE = SimpleNamespace(ended="It did not finish within 30 seconds.")
NO_PRICE = {  # the run of small.py, and what is said instead of its price
    "its run at the same work was interrupted, so there is no price": interrupted,
    "its run at the same work came to no end, so there is no price": lambda *_, **__: (
        LATE
    ),
}


@pytest.mark.parametrize("told", NO_PRICE)
def test_no_price_is_compared_with_that_of_a_run_without_an_end(told, monkeypatch):
    client = SimpleNamespace(usages=[], exchanges=[], requests=[{}], bodies=[])
    with monkeypatch.context() as patch:
        patch.setattr(
            own_report, "usages_of_small", own_report.usages_of_small.__wrapped__
        )
        patch.setattr(own_report, "life", NO_PRICE[told])
        patch.setattr(own_report, "bill", lambda usages: "price 1")
        facts = own_report.cost(client)
    assert [fact.is_right for fact in facts.values()] == [None, None]
    assert told in facts["small.py"].text


def test_no_step_and_no_report_loads_agent_py():
    code = "import sys, steps; sys.exit('agent' in sys.modules)"
    argv = [sys.executable, "-S", "-c", code]
    assert subprocess.run(argv, check=False, cwd=LESSONS).returncode == 0


@pytest.mark.parametrize("argv", [["layer1"], ["small", "3"], []])
def test_mine_works_only_with_small(argv, capsys):
    with pytest.raises(SystemExit):
        steps.main([*argv, "--mine", "none.py"])
    assert "--mine needs small and no step" in capsys.readouterr().err


def test_a_reader_that_stops_early_gets_no_traceback():
    argv = [sys.executable, steps.__file__, "layer1", "0", "--diff"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as process:
        process.stdout.close()  # as `| head` does
        assert process.stderr.read() == b""
    assert process.returncode == 0
