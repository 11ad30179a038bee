"""programs.py lets programs do a job with their own tools, and measures them.

The real ones aren't here, so `agent.py` and a small foreign program do a small job.
"""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import foreign
import launch
import programs
import pytest
import scripted
from builders import LONG_TESTS, typed
from scripted import NOTHING, PROMPTS, Step, call_for

pytestmark = pytest.mark.slow

FOREIGN = replace(launch.PROGRAMS["agent.py"], binary=foreign.__file__)
SMALL_JOBS = {
    "reading": partial(scripted.reading, files=14, size=5_000),
    "outputs": partial(scripted.outputs, files=12, size=3_000),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make the jobs small, and add a program for each mode of the foreign one."""
    monkeypatch.setattr(programs, "JOBS", SMALL_JOBS)
    monkeypatch.setattr(launch, "FAREWELL", 2)
    for mode in foreign.MODES:
        argv = partial(lambda mode, prompt, number: [mode], mode.__name__)
        added = replace(FOREIGN, argv=argv, prepare=lambda place: {})
        monkeypatch.setitem(programs.PROGRAMS, mode.__name__, added)


def rows(capsys, *argv):
    """The rows that programs.py prints as JSON."""
    assert programs.main(["--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


SMALL_RUNS = [("works", "reading"), ("works", "outputs")]


@pytest.mark.parametrize(
    "name, job", [*SMALL_RUNS, *[("agent.py", "reading")] * LONG_TESTS]
)
def test_the_figures_are_the_same_twice(name, job, capsys):
    argv = ["--program", name, "--job", job, "--window", "20000"]
    [row] = rows(capsys, *argv)
    [again] = rows(capsys, *argv) if name != "agent.py" else [row]  # it loads the SDK
    assert {**row, "date": ""} == {**again, "date": ""}
    assert row["elsewhere"] == row["problems"] == []
    assert row["summaries"] and row["names"][1] < row["names"][0] < 1


def test_a_careful_summary_keeps_the_rules_and_names(capsys):
    argv = ["--program", "works", "--window", "20000"]
    [plain], [careful] = rows(capsys, *argv), rows(capsys, *argv, "--careful")
    assert plain["typed"][0] < careful["typed"][0] == 1
    assert plain["names"][0] < careful["names"][0]


def test_titles_rejections_and_repeated_steps_are_counted(capsys):
    [row] = rows(capsys, "--program", "works", "--window", "20000")
    steps = len(SMALL_JOBS["reading"]().steps)
    assert row["side"] == 2 and row["rejected"] == row["summaries"] == row["again"] > 0
    extra = row["side"] + row["rejected"] + row["summaries"] + row["again"]
    assert row["requests"] == steps + extra


FAILURES = {
    "only_says_so": r"no result of read mod_00.py, but .*Done\.",
    "hangs": "no request for 1 s before the model's last answer",
    "wants_a_login": "ended with status 1 .*; it said: Please log in first.",
    "never_ends": r"it sent \d+ requests and isn't done",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_a_run_without_the_work_has_no_figures(mode, capsys, monkeypatch):
    monkeypatch.setattr(launch, "QUIET", 1 if mode == "hangs" else 60)
    assert programs.main(["--program", mode]) == 1
    told = capsys.readouterr().out
    words = f"\n{mode}: FAILED, so it has no figures: {FAILURES[mode]}"
    assert re.search(words, told) and "price" not in told


def test_a_run_has_a_time_limit(capsys):
    assert programs.main(["--program", "hangs", "--limit", "0.5"]) == 1
    assert "0.5 s passed before the model's last answer" in capsys.readouterr().out


def test_everything_that_a_program_started_is_ended(capsys):
    programs.main(["--program", "never_ends"])
    pid = re.search(r"it said: (\d+)", capsys.readouterr().out)[1]
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or ") Z " in state.read_text()


def test_a_message_inside_json_is_quoted():
    said = {"type": "result", "seconds": 3, "result": "Cannot go on."}
    assert launch.in_words(json.dumps(said)) == "Cannot go on."
    assert launch.in_words("[1]") == "[1]" and launch.in_words("{") == "{"


NOTES = {
    "says_nothing": "the API would have rejected: messages: text content blocks must",
    "calls_home": "wanted to reach home.invalid:443",
}


@pytest.mark.parametrize("mode", NOTES)
def test_what_is_unusual_is_noted_below_the_table(mode, capsys):
    assert programs.main(["--program", mode]) == 0
    assert f"\n{mode}: {NOTES[mode]}" in capsys.readouterr().out


def test_a_program_that_is_not_there_is_named(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert programs.main(["--program", "pi"]) == 0
    named = (
        "pi isn't there: npm install --prefix FOLDER @earendil-works/pi-coding-agent@"
    )
    assert named in capsys.readouterr().err


def test_a_window_that_a_program_cannot_have_is_left_out(capsys, monkeypatch):
    large = replace(programs.PROGRAMS["works"], least_window=30_000)
    monkeypatch.setitem(programs.PROGRAMS, "works", large)
    assert rows(capsys, "--program", "works", "--window", "20000") == []


def test_ctrl_c_ends_a_run():
    argv = [sys.executable, programs.__file__, "--program", "agent.py"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith("agent.py: reading")
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait()) == ("", 130)


def test_help_needs_no_package_and_says_how_to_install():
    argv = [sys.executable, "-S", "-E", programs.__file__, "--help"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, env={})
    for name in ("pi", "opencode", "claude"):
        assert all(tried in said.stdout for tried in launch.PROGRAMS[name].tried)


def test_saved_rows_replace_those_of_the_same_case(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "SAVED", tmp_path / "saved.json")
    case = {"job": "reading", "careful": False, "version": "1", "program": "a"}
    old, other = {**case, "window": 2, "sent": 1}, {**case, "window": 3, "sent": 2}
    programs.save([other, old])
    programs.save([{**old, "sent": 9}])
    assert json.loads(programs.SAVED.read_text()) == [{**old, "sent": 9}, other]


# --- The scripted model ---

STRINGS = {"type": "string"}
ITEMS = {"properties": {"oldText": STRINGS, "newText": STRINGS}}
EDITS = {"path": STRINGS, "edits": {"type": "array", "items": ITEMS}}
TOOLS = {  # inputs of a tool that edits, and the call's inputs
    "edit": (EDITS, {"path": "/w/f.py", "edits": [{"oldText": "A", "newText": "B"}]}),
    "Edit": (
        dict.fromkeys(
            ["file_path", "old_string", "new_string", "replace_all"], STRINGS
        ),
        {"file_path": "/w/f.py", "old_string": "A", "new_string": "B"},
    ),
    "str_replace": (
        dict.fromkeys(["filePath", "search", "replace"], STRINGS),
        {"filePath": "/w/f.py", "search": "A", "replace": "B"},
    ),
}


@pytest.mark.parametrize("name", TOOLS)
def test_an_editing_tool_is_used_whatever_its_inputs_are_called(name):
    inputs, expected = TOOLS[name]
    tools = [
        {"name": "NotebookEdit", "input_schema": {"properties": {"path": STRINGS}}},
        {"name": name, "input_schema": {"properties": inputs}},
    ]
    call = call_for(Step("edit", "f.py", ("f",)), tools, Path("/w"))
    said = json.dumps(call).replace("def f(", "A").replace("def f_x(", "B")
    assert json.loads(said) == [name, expected]


ASKED_FOR = {  # a system prompt, the last text, whether there are tools: a summary?
    "in the conversation": ("", "Write a summary of all this.", True, True),
    "by another agent": ("You summarize.", "read ba_bo_123", False, True),
    "to go on from one": ("", f"Summary: {NOTHING} Go on.", True, False),
    "to work": ("Old work is summarized.", PROMPTS[0], True, False),
    "for a title": ("Summarize in a title.", PROMPTS[0], False, False),
}


@pytest.mark.parametrize("case", ASKED_FOR)
def test_a_request_for_a_summary_is_recognised(case):
    system, last, works, expected = ASKED_FOR[case]
    request = {"system": system, "messages": [typed(last)]}
    text = json.dumps(request)
    assert scripted.asks_for_summary(request, text, works) == expected


def model(tmp_path, **more):
    return scripted.Worker(SMALL_JOBS["reading"](), tmp_path, 20_000, False, **more)


CACHED = {  # words of a system prompt with a marker: tokens read the second time
    "too short": (1_000, 0),
    "long enough": (4_000, 1_000),
}


@pytest.mark.parametrize("case", CACHED)
def test_a_short_beginning_is_not_cached(case, tmp_path):
    size, least = CACHED[case]
    stub = model(tmp_path)
    system = [{"type": "text", "text": "x" * size, **foreign.MARKED}]
    body = {"model": "m", "max_tokens": 9, "system": system}
    used = [stub.answer({**body, "messages": [typed(p)]})["usage"] for p in "ab"]
    assert bool(least) == (used[1]["cache_read_input_tokens"] > least)


def test_prices_follow_what_was_read_written_and_said(tmp_path):
    stub = model(tmp_path)
    names = "input", "cache_creation_input", "cache_read_input", "output"
    used = {f"{name}_tokens": tokens for name, tokens in zip(names, (1, 100, 1000, 7))}
    stub.used = [used, used]
    assert programs.figures(stub)["prices"] == [422, 522, 2272]


# --- The figures that are kept ---


def test_kept_figures_say_when_they_were_made_and_with_what():
    for row in json.loads(programs.SAVED.read_text()):
        assert row["date"] and (row["version"] or row["program"] == "agent.py")
        assert ("failed" in row) != ("prices" in row)
        assert (
            programs.Case(row["job"], row["window"], row["careful"]) in programs.CASES
        )
