"""Runs show the faults of small.py, and agent.py has the functions that fix them.

With --mine, the faults are played on other agents, too, and judged from outside.
"""

import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import faults
import pytest
from readme import ROOT

import agent as program

# What the run of each fault shows.
SEEN = {
    "paste": "prompt is too long: 218946 tokens > 200000 maximum; again at the next prompt: yes",
    "fixed_threshold": "in a window of 16,000: prompt is too long",
    "no_summaries": "13 of 33 requests ask for a summary, for nothing",
    "long_words": "5 of 14 requests ask for a summary, and none makes room",
    "open_request": "Write a.py. | Now b.py. | (summary)",
    "files": "0 of 5 files that were read are there after a summary",
    "cut_output": "cut: 108,910 characters]; the rest is on disk: no",
    "no_path": "is now [Old result, cleared]",
    "no_thinking": "0 of 3 thoughts are in the last request",
    "japanese": "2,633 tokens; the API counts 3,293",
    "passing_error": "the connection broke: the turn is over after 1 request",
    "stopped_call": "half.txt was written: yes; the model knows: no",
    "surrogate": "surrogates not allowed",
    "cut_answer": '"The answer is" ends the turn',
    "refusal": "it is in the next request: yes",
    "same_id": "`tool_use` ids must be unique; again at the next prompt: yes",
    "no_pages": "a second read shows the same 40,000 characters: yes",
    "secrets": "the key is in the request: yes",
    "no_resume": "the second start sends 1 message",
}

SHOWN = cache(faults.shown)


@pytest.fixture(autouse=True)
def play_each_fault_once(monkeypatch):
    monkeypatch.setattr(faults, "shown", SHOWN)


def test_every_fault_is_listed_here():
    assert {fault.__name__ for fault in faults.FAULTS} == {*SEEN}
    assert len(faults.FAULTS) == len(SEEN)


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_run_shows_the_fault_and_agent_py_has_the_fix(fault):
    text = " ".join(faults.shown(fault).split())
    title, fix, _ = fault.__doc__.split(" | ")
    assert text.startswith(title) and SEEN[fault.__name__] in text
    assert [name for name in fix.split(", ") if not hasattr(program, name)] == []


def test_faults_are_sorted_by_chapter(capsys):
    assert faults.main([]) == 0
    shown = capsys.readouterr().out
    head, *parts = shown.strip().split("\n\n")
    assert (
        head
        == "19 of 19 faults of small.py, each with the functions of agent.py that fix it"
    )
    places = [part.partition("\n")[0] for part in parts]
    chapters = [f"Chapter {n}" for n in (3, 4, 5, 6, 7, 8, 10)]
    assert places == [*chapters, "The Reference", faults.PLACES["none"]]
    for fault in faults.FAULTS:
        [part] = [
            part for part in parts if f"\n  {fault.__doc__.split(' | ')[0]}\n" in part
        ]
        assert part.startswith(faults.place(fault))
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
    3: {
        '        if block.type == "text" and': """\
        if block.type == "thinking":
            content.append(block.to_dict())
        if block.type == "text" and""",
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

SMALL, AGENTS = Path(faults.small.__file__), ROOT / "tests/agents"
PLAYED = {fault.__name__ for fault in faults.FAULTS} - {"japanese"}
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


def changed(source, changes):
    """Replace texts, each of which must be there."""
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    return source


def source_of(agent):
    """The source of an agent, by its name here."""
    if agent == "agent":
        return Path(program.__file__).read_text("utf-8")
    source, last = SMALL.read_text("utf-8"), int(agent[-1]) if agent[-1] in "59" else 0
    for chapter in range(3, last + 1):
        source = changed(source, CHANGES[chapter])
    return source


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


@pytest.mark.parametrize("agent", OK)
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
    chapters = [f"Chapter {n}" for n in (3, 4, 5, 6, 7, 8, 10)]
    places = [part.partition("\n")[0] for part in parts]
    assert places == [*chapters, "The Reference", faults.PLACES["none"]]
    assert total.startswith(
        "ok: 0 of 18; `!`: 17; can't be judged: 1\nTo run one again: "
    )
    assert "faults.py --mine mine.py same_id" in total and "japanese" in total


# Words of what small.py is told, and where it's sent.
TOLD = """
prompt is too long, after 5 of 20 files (chapters 4 and 9)
one is now `[Old result, cleared]`, which doesn't say where it is (agent.py: micro_compact,
a paste of 700,000 characters: prompt is too long; again at the next prompt
what was cut off is in no file (agent.py: tool_result_budget, preview)
again at the next prompt; 10 of 25 requests ask for one, for nothing
prompt is too long, at paste 8
after a summary, nothing tells them apart
the model has neither one of them nor its name
nothing of it is sent, not even after --resume, --continue or /resume
it's overloaded, and after 3 tries the turn is over (agent.py: ask)
it gets 40,025 of them, and isn't told how to read on
the key in it is sent to the API
it had written a file, and the next request doesn't mention it
can't encode character '\\udce9' in position 32: surrogates not allowed" (agent.py: to_bytes)
it ends the turn, and the user isn't told
a prompt that the model declines: it's in the next request
`tool_use` ids must be unique; again at the next prompt (agent.py: sanitize_calls)
"""


def test_small_py_is_told_what_happened_and_where_that_is_explained(listed):
    _, text = listed("small")
    text = " ".join(text.split())
    assert [line for line in TOLD.strip().split("\n") if line not in text] == []


# Agents that solve a fault in another way: changes of small.py, and the verdict.


# An agent that can't be played, and why.
BAD = {
    "": "It made no request.",
    "import nowhere": "No module named 'nowhere'",
    "input(": "It isn't valid Python in line 1",
    "import os\ninput()\nos.killpg(0, 9)": "It killed its own process with SIGKILL",
    "import os\ninput()\nos._exit(0)": "its process with",
    "while 1:\n try: input()\n except: pass": "It never ends: a bare `except:`",
    "import threading\nthreading.Event().wait()": "It did not finish within 0.5 seconds",
}
STARTED = """
import sys, own_faults
own_faults.SECONDS = 0.5
for name in sys.argv[1:]:
    print(own_faults.start(own_faults.Path(name))[0].replace("\\n", " "))
"""


def test_an_agent_that_cannot_work_gets_one_reason(tmp_path):
    names = [tmp_path / f"bad_{number}.py" for number in range(len(BAD))]
    for name, source in zip(names, BAD):
        name.write_text(source, "utf-8")
    command = [sys.executable, "-S", "-c", STARTED, *map(str, names)]
    where = {"cwd": Path(faults.__file__).parent, "text": True}
    reasons = subprocess.check_output(command, **where).splitlines()
    assert len(reasons) == len(BAD)
    assert [why for why, said in zip(BAD.values(), reasons) if why not in said] == []


def test_such_an_agent_is_sent_to_the_report_of_chapter_2(tmp_path):
    (tmp_path / "mine.py").write_text("")
    status, text = started(tmp_path, "--mine", "mine.py")
    assert status == 1 and text.startswith(
        "mine.py can't be played: It made no request."
    )
    assert text.endswith(
        "\nNext: python3 tests/lessons/steps.py small --mine mine.py\n"
    )


def test_an_agent_may_die_in_one_play_and_go_on_in_the_next(tmp_path):
    goes = '            messages.append(log("user", prompt))'
    dies = f'            if "bad" in prompt: __import__("os").killpg(0, 9)\n{goes}'
    (tmp_path / "mine.py").write_text(changed(SMALL.read_text(), {goes: dies}))
    status, text = started(tmp_path, "--mine", "mine.py", "refusal", "3")
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
