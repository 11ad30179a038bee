"""Runs show the faults of small.py, and agent.py has the functions that fix them.

With --mine, the faults are played on other agents, too, and judged from outside.
"""

import re
import signal
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import faults
import pytest
from builders import LONG_TESTS
from test_judge import KEEPS_THINKING, SMALL, changed

import agent as program

pytestmark = pytest.mark.slow

# What the run of each fault shows.
SEEN = {
    "no_thinking": "no thought is ever sent back, so each call starts afresh",
    "same_id": "`tool_use` ids must be unique; again at the next prompt",
    "fixed_threshold": "prompt is too long, after 5 of 20 files",
    "japanese": "2,633 tokens; the API counts 3,293",
    "no_path": "one is now `[Old result, cleared]`, which doesn't say where it is",
    "paste": "prompt is too long; again at the next prompt",
    "cut_output": "what was cut off is in no file",
    "no_summaries": "10 of 25 requests ask for one, for nothing",
    "long_words": "prompt is too long, at paste 8",
    "open_request": "after a summary, nothing tells them apart",
    "files": "the model has neither one of them nor its name",
    "no_resume": "nothing of it is sent, not even after --resume, --continue or /resume",
    "passing_error": "it's overloaded, and after 3 tries the turn is over",
    "no_pages": "it gets 40,025 characters, and isn't told how to read on",
    "secrets": "the key in it is sent to the API",
    "stopped_call": "it had written a file, and the next request doesn't mention it",
    "surrogate": "can't encode character '\\udce9' in position 32: surrogates not allowed",
    "cut_answer": "it ends the turn, and the user isn't told",
    "refusal": "it's in the next request",
}
PARTS = [f"Chapter {n}" for n in (3, 4, 5, 6, 7, 8, 10)]
PARTS += ["The Reference", "In no chapter, only in agent.py"]


faults.of_small = cache(faults.of_small)  # each fault is played once


def test_each_fault_is_shown_by_a_run_and_fixed_in_agent_py():
    found = {check.name: (check, seen) for check, seen in faults.of_small()}
    assert [*found] == [*SEEN] == [*faults.TITLES]
    assert [name for name in SEEN if SEEN[name] not in found[name][1].text] == []
    fixes = ", ".join(faults.FIXES.values()).split(", ")
    assert [name for name in fixes if not hasattr(program, name)] == []


def test_faults_are_sorted_by_chapter(capsys):
    assert faults.main([]) == 0
    shown = capsys.readouterr().out
    head, *parts = shown.strip().split("\n\n")
    assert head.startswith("19 of 19 faults of small.py, each with the functions of")
    assert [part.partition("\n")[0] for part in parts] == PARTS
    assert re.findall(r"(?m)^  (\S.*)", shown) == [*faults.TITLES.values()]
    assert max(map(len, shown.split("\n"))) < 80


def test_faults_can_be_selected_by_a_word(capsys):
    assert faults.main(["resume"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1 of 19 faults") and "load and resume" in shown
    assert faults.main(["resume", "paste"]) == 2
    assert capsys.readouterr().out == "No fault mentions resume and paste.\n"


# --- On an agent of the reader's own ---

# How chapters 3 to 9 change small.py, as briefly as possible.
CHANGES = {
    3: dict([KEEPS_THINKING])
    | {
        '"input": given}': '"input": given, "id": unique(block.id, messages)}',
        "    return content, reply.stop_reason": """\
    return content if without_thinking(content) else [], reply.stop_reason


def unique(number, messages):
    return unique(f"{number}_", messages) if number in str(messages) else number


def without_thinking(content):
    if type(content) is str:
        return content
    return [block for block in content if block["type"] != "thinking"]""",
        '            result["content"] = "[Old result, cleared]"': """\
            result["content"] = "[Old result, cleared]"
        for message in messages:
            message["content"] = without_thinking(message["content"])""",
        "[title, *content]": "[title, *without_thinking(content)]",
    },
    4: {
        "THRESHOLD = 50_000": "THRESHOLD = max(100_000 - 33_000, 100_000 // 2)",
        "    content = []\n": """\
    used = reply.usage
    sent = used.input_tokens + used.cache_read_input_tokens
    sent += used.cache_creation_input_tokens
    fixed["scale"] = SCALE[:] = [sent / estimate_tokens(messages) * SCALE[0]]
    content = []
""",
        ".encode()) // 4": ".encode()) / 4 * SCALE[0]",
        "TRANSCRIPT = ": "SCALE = [1.0]  # the API's count of a request / ours\nTRANSCRIPT = ",
    },
    5: {
        '"[Old result, cleared]"': 'f"[Old result, saved as {save(result)}]"',
        "def estimate_tokens(": """\
def save(result):
    path = Path(f"{result['tool_use_id']}.txt")
    if not path.exists():
        path.write_text(result["content"])
    return path


def estimate_tokens(""",
    },
    6: {
        '            text = f"{text[: MAX_CHARS // len(calls)]}\\n[cut: {len(text):,} characters]"': "            text = preview(text)",
        "def run_tool(name": """\
def preview(text):
    path = Path(f"saved_{hash(text)}.txt")
    path.write_text(text, errors="replace")
    return f"[{len(text):,} characters, saved as {path}]\\n{text[:500]} ... {text[-500:]}"


def run_tool(name""",
        '            messages.append(log("user", prompt))': """\
            prompt = preview(prompt) if len(prompt) > 3 * MAX_CHARS else prompt
            messages.append(log("user", prompt))""",
    },
    7: {
        "    content, stop = ask(client, [*messages,": """\
    if len(FAILURES) == 3:
        content, stop = NOTE, "end_turn"
    else:
        content, stop = ask(client, [*messages,""",
        "keep everything\n        return\n": """keep everything
        FAILURES.append(stop)
        return
""",
        "PROMPT = ": """FAILURES = []
NOTE = [{"type": "text", "text": f"There is no summary; read {TRANSCRIPT}."}]
PROMPT = """,
    },
    8: {
        '    messages[:] = [*typed, log("user", [title, ': """\
    *older, newest = typed
    while len(str(older)) > MAX_CHARS:
        del older[0]
    calls = [block for m in messages for block in m["content"] if type(block) is dict]
    read = [c["input"]["path"] for c in calls if c.get("name") == "read_file"]
    content = [*content, {"type": "text", "text": f"Files read: {read[-5:]}"}]
    messages[:] = [*older, log("user", [title, """,
        "content)])]": "content)]), newest]",
    },
    9: {
        "        content, _ = ask(client, messages)\n": """\
        try:
            content, _ = ask(client, messages)
        except Exception as error:
            window = re.search(r"> (\\d+) maximum", str(error))
            if not window:
                raise
            globals()["THRESHOLD"] = int(window[1]) // 2
            FAILURES[:] = [error] * 3  # a note will do
            auto_compact(client, messages)
            continue
""",
        "import json": "import json\nimport re",
    },
}

PLAYED = {*SEEN} - {"japanese"}
CHAPTERS_3_TO_5 = {"no_thinking", "same_id", "no_path"}
CHAPTERS_6_TO_9 = {"fixed_threshold", "paste", "cut_output", "no_pages"}
CHAPTERS_6_TO_9 |= {"no_summaries", "long_words", "open_request", "files"}
# The faults that an agent doesn't have.
OK = {
    "small": set(),
    "small with chapters 3 to 5": CHAPTERS_3_TO_5,
    "small with chapters 3 to 9": CHAPTERS_3_TO_5 | CHAPTERS_6_TO_9,
    "agent": PLAYED,
}


def source_of(agent):
    """The source of an agent, by its name here."""
    if agent == "agent":
        return Path(program.__file__).read_text("utf-8")
    last = int(agent[-1]) if agent[-1] in "59" else 0
    chapters = [CHANGES[chapter].items() for chapter in range(3, last + 1)]
    return changed(*chain(*chapters)).read_text("utf-8")


def started(folder, *argv):
    """Run faults.py without packages in this folder: (status, its output)."""
    command = [sys.executable, "-S", faults.__file__, *map(str, argv)]
    options = {"capture_output": True, "text": True, "cwd": folder}
    done = subprocess.run(command, check=False, **options)
    assert done.stderr == ""
    assert max(map(len, done.stdout.split("\n"))) < 80
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """listed(agent): what `faults.py --mine` prints about it, and its exit status."""

    @cache
    def play(agent):
        folder = tmp_path_factory.mktemp("mine")
        (folder / "mine.py").write_text(source_of(agent), "utf-8")
        played = started(folder, "--mine", "mine.py")
        assert [file.name for file in folder.iterdir()] == ["mine.py"]
        return played

    return play


def marked(text, mark):
    """The names of the faults with this mark."""
    return {*re.findall(rf"(?m)^  {mark:<2} (\w+) ", text)}


@pytest.mark.parametrize("agent", [*OK] if LONG_TESTS else [*OK][:-1])  # no agent.py
def test_an_agent_has_the_faults_whose_chapters_it_has_not_applied(listed, agent):
    status, text = listed(agent)
    neither = {"no_thinking"} - OK[agent]  # it's valid to drop all thinking
    assert marked(text, "ok") == OK[agent] and marked(text, "") == neither
    assert marked(text, "!") == PLAYED - OK[agent] - neither
    assert status == (0 if OK[agent] == PLAYED else 1)


def test_the_list_is_by_chapter_and_says_how_to_play_one_again(listed):
    _, text = listed("small")
    head, *parts, total = text.strip().split("\n\n")
    assert head == "mine.py, and the faults that can be seen from outside"
    assert [part.partition("\n")[0] for part in parts] == PARTS
    assert total.startswith(
        "ok: 0 of 18; `!`: 17; can't be judged: 1\nTo run one again: "
    )
    assert "faults.py --mine mine.py same_id" in total and "japanese" in total


def test_small_py_is_told_what_happened_and_where_that_is_explained(listed):
    text = " ".join(listed("small")[1].split())
    assert [seen for name, seen in SEEN.items() if seen not in text] == [
        SEEN["japanese"]
    ]
    assert "after 5 of 20 files (chapters 4 and 9)" in text
    assert "again at the next prompt (agent.py: sanitize_calls)" in text


def test_such_an_agent_is_sent_to_the_report_of_chapter_2(tmp_path):
    (tmp_path / "mine.py").write_text("")
    status, text = started(tmp_path, "--mine", "mine.py")
    assert status == 1 and text.startswith(
        "mine.py can't be played: It made no request."
    )
    assert text.endswith(
        "\nNext: python3 tests/lessons/steps.py small --mine mine.py\n"
    )


def test_an_agent_may_die_in_one_play_and_go_on_in_the_next():
    goes = '            messages.append(log("user", prompt))'
    dies = f'            if "bad" in prompt: __import__("os").killpg(0, 9)\n{goes}'
    path = changed((goes, dies))
    status, text = started(path.parent, "--mine", path.name, "refusal", "3")
    assert marked(text, "!") == {"refusal", "same_id"} and status == 1
    assert "declines: It killed its own process with" in " ".join(text.split())
    assert "\nChapter 3\n" in text and "Not played" not in text


def test_a_word_must_name_a_chapter_or_a_fault(tmp_path):
    status, text = started(tmp_path, "--mine", SMALL, "8", "tea")
    assert status == 2 and text.startswith("No fault is called tea, only no_thinking,")


def test_ctrl_c_ends_it_at_once(tmp_path):
    command = [sys.executable, "-S", faults.__file__, "--mine", str(SMALL)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline().startswith("small.py, and the faults")
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == "" and process.returncode == 130
