"""Commands: their output, time limit, children and environment, and how they end."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import (
    LONG_TESTS,
    bash,
    call,
    create_files,
    lines_of,
    outputs,
    shown,
)
from stub import reply

import agent as program
from agent import run_tool, take_turn

pytestmark = [pytest.mark.usefixtures("no_hang"), pytest.mark.slow]


# --- Output and exit status ---


@pytest.mark.parametrize(
    "command, output",
    [
        ("echo out; echo err >&2", "out\nerr\n"),
        ("echo said; exit 3", "said\n(exit status 3)"),
        ("exit 3", "(exit status 3)"),
        ("kill -SEGV $$", f"(exit status 139, {signal.strsignal(signal.SIGSEGV)})"),
        ("echo 'caf\u00e9 \u65e5\u672c'", "caf\u00e9 \u65e5\u672c\n"),
    ],
)
def test_bash_returns_output_and_exit_status(use, command, output):
    assert use("bash", command=command) == output


def test_each_command_starts_in_the_workspace_and_the_model_is_told_so(use, workspace):
    Path("build").mkdir()
    use("bash", command="cd build && export MODE=debug && f() { :; }")
    assert use("bash", command='echo "$PWD $MODE"; f') == (
        f"{workspace} \nbash: line 1: f: command not found\n(exit status 127)"
    )
    told = program.TOOLS["bash"].schema["description"]
    assert "from the workspace each time" in told
    assert "cd, export and functions don't last" in told


def test_the_latest_output_line_is_shown_while_a_command_runs(make):
    waited, seen = [], "printf 'one\n'; sleep 0.3; printf 'two\rthree'; sleep 0.3"
    agent = make(emit=lambda *event: waited.append(event))
    run_tool(agent, call("bash", command=seen))
    lines = [text for style, text in waited if style == "wait"]
    assert [*dict.fromkeys(lines)][-2:] == ["one", "three"]


def test_a_command_that_looks_like_an_option_is_run_as_a_command(use):
    assert "--version: command not found" in use("bash", command="--version")


ODD_OUTPUT = {
    "NUL byte": (r"a\0b", "a\0b"),
    "invalid UTF-8": (r"a\377b", "a\ufffdb"),
    "colors": (r"\033[1;31mred\033[0m \033]0;title\007a", "red a"),
    "unfinished title": (r"\033]0;title\nso\n", "\nso\n"),
    "overwritten line": (r"10%%\r 50%%\r100%%\r\nso\r\n", "100%\nso\n"),
}


@pytest.mark.parametrize("bytes, text", ODD_OUTPUT.values(), ids=ODD_OUTPUT)
def test_odd_output_reaches_the_model_and_the_transcript_as_text(make, bytes, text):
    command = ("bash", {"command": f"printf '{bytes}'"})
    agent = make(reply(calls=[command]), reply("Done."))
    take_turn(agent, "Go.")
    assert outputs(*agent.client.requests[1]["messages"]) == [text]
    assert lines_of(agent.transcript) == agent.messages


def test_bash_keeps_the_start_and_end_of_long_output(use, tight_limits):
    filling = "head -c 900000 /dev/zero | tr '\\0' x"
    content = use("bash", command=f"echo first; {filling}; echo last", timeout=600)
    assert content.startswith("first\nxxx") and content.endswith("xxxlast\n")
    assert re.search(r"\n\[at least 80\d,\d{3} bytes are left out here\]\n", content)
    assert 99_000 < len(content) < 101_000


@pytest.mark.parametrize("command", ["yes more", "yes more | head -c 1002000"])
def test_a_command_that_writes_too_much_is_killed_and_its_output_kept(
    use, tight_limits, command
):
    content = use("bash", command=f"echo first; {command}", timeout=600)
    *lines, end = content.split("\n")
    assert lines[:2] == ["first", "more"] and len(content) > 80_000
    assert end == "(killed: more than 10 MB of output)"


def test_writing_to_dev_stderr_does_not_erase_earlier_output(use):
    said = use("bash", command="echo one; echo two >/dev/stderr; echo three")
    assert said == "one\ntwo\nthree\n"


# --- Output that comes from our own records ---


FOUND = "a.py:1:needle\n"
OWN_RECORDS = ".transcripts/t.jsonl:1:needle", ".task_outputs/tool-results/a.txt-2-near"
OWN_LINES = {  # the output of a command, and what is left of it
    "grep": (f"./{OWN_RECORDS[0]}\n./{FOUND}./{OWN_RECORDS[1]}\n", f"./{FOUND}"),
    "rg": (f"{FOUND}{OWN_RECORDS[0]}\n{OWN_RECORDS[1]}\n", FOUND),
    "absolute": (
        f"/my own/code/{OWN_RECORDS[0]}\n/my own/code/{FOUND}",
        f"/my own/code/{FOUND}",
    ),
    "find": (
        "./.transcripts\n./.transcripts/history\n./a.py\n",
        "./.transcripts\n./a.py\n",
    ),
    "no newline": (f"{FOUND}{OWN_RECORDS[0]}", FOUND),
    "nothing else": (f"{OWN_RECORDS[0]}\n", ""),
}
KEPT = [".transcripts/\n.task_outputs/*\n", "a.py:1:see ./.transcripts/t.jsonl\n"]
KEPT += ['x = ["sub/../.transcripts/file"]\n', "?? .transcripts/\n", ".transcripts:\n"]
KEPT += ["my.transcripts/a.jsonl\n", "two words/.transcripts/t.jsonl\n"]


@pytest.mark.parametrize("output, kept", OWN_LINES.values(), ids=OWN_LINES)
def test_output_has_no_lines_from_our_own_records_and_says_so(make, output, kept):
    Path("output").write_text(output)
    result = program.run_tool(agent := make(), call("bash", command="cat output"))
    assert result["content"] == f"{kept}{program.LEFT_OUT}"
    assert agent.events[1:] == [("result", result["content"])]


@pytest.mark.parametrize("output", KEPT)
def test_lines_that_only_mention_our_records_stay(use, output):
    Path("output").write_text(output)
    assert use("bash", command="cat output") == output


def test_a_folder_of_records_that_the_command_names_stays_in_its_output(use):
    Path("output").write_text(f"{OWN_RECORDS[0]}\n{OWN_RECORDS[1]}\n")
    named = use("bash", command="cat output # .transcripts")
    assert named == f"{OWN_RECORDS[0]}\n{program.LEFT_OUT}"
    both = "cat output # .task_outputs and .transcripts"
    assert use("bash", command=both) == f"{OWN_RECORDS[0]}\n{OWN_RECORDS[1]}\n"


def test_the_exit_status_follows_the_line_on_what_is_left_out(make):
    Path("output").write_text(f"{FOUND}{OWN_RECORDS[0]}\n")
    agent = make()
    program.run_tool(agent, call("bash", command="cat output; exit 3"))
    lines = f"{FOUND}{program.LEFT_OUT}\n(exit status 3)"
    assert agent.events[1:] == [("failed", lines)]


def test_the_same_search_by_bash_costs_the_same_every_time(make):
    create_files("a.py", "b.py")
    search = ("bash", {"command": "grep -rn hidden . | sort"})
    agent = make(*[reply(calls=[search])] * 4, reply("Done."))
    take_turn(agent, "Where is it hidden?")
    found = f"./a.py:1:hidden\n./b.py:1:hidden\n{program.LEFT_OUT}"
    assert outputs(*agent.messages) == [found] * 4


# --- The time limit ---


TIMEOUTS = [({}, 120), ({"timeout": 1}, 1), ({"timeout": 9_999}, 600)]
TIMEOUTS += [({"timeout": 0}, 600), ({"timeout": -1}, 600)]  # meant as "no limit"
TIMEOUTS += [({"timeout": 10_000}, 10), ({"timeout": 20_999}, 20)]  # in milliseconds


@pytest.mark.parametrize("given, seconds", TIMEOUTS)
def test_the_timeout_is_two_minutes_by_default_and_ten_at_most(
    use, monkeypatch, given, seconds
):
    monkeypatch.setattr(program, "run_process", lambda _, seconds, *__: seconds)
    assert use("bash", command="true", **given) == f"(exit status {seconds})"


def test_a_command_that_takes_longer_is_killed(use):
    assert "killed after 1 seconds" in use("bash", command="sleep 60", timeout=1)


NEVER_ENDING = {
    "busy loop": "while :; do :; done",
    "ignores signals": "trap '' HUP INT QUIT TERM; while :; do sleep 600; done",
    "closes its output": "exec >&- 2>&-; sleep 600",
    "keeps printing": "while :; do echo on; sleep 0.02; done",
    "waits for a child": "sleep 600 & wait",
}


@pytest.mark.parametrize("command", NEVER_ENDING.values(), ids=NEVER_ENDING)
def test_a_command_is_killed_at_its_timeout(command):
    output = bytearray()
    status = program.run_process(f"echo begun; {command}", 0.3, output, str)
    assert status is None and output.startswith(b"begun\n")


def test_bash_says_when_a_command_was_killed(use):
    content = use("bash", command="echo begun; sleep 600", timeout=1)
    assert content == "begun\n(killed after 1 seconds)"


# --- What a command leaves running ---


@pytest.fixture
def writers():
    """writers(): all that was written to the pipe `alive`, once its writers have ended.

    This works without /proc, and even if nobody reaps the processes.
    """
    os.mkfifo("alive")
    reader = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)

    def wait_for_end():
        with os.fdopen(os.dup(reader)) as pipe:
            return pipe.read()

    yield wait_for_end
    os.close(reader)


CHILD = "(echo up >&9; touch up; exec sleep 600) 9>alive"
CHILDREN = {
    "in the background": f"{CHILD} & ",
    "grandchild": f"({CHILD} & ) & ",
    "ignores signals": f"(trap '' HUP INT TERM; {CHILD}) & ",
    "own process group": f"set -m; {CHILD} & ",
    "nohup": "nohup bash -c 'echo up; touch up; exec sleep 600' >alive 2>&1 & ",
}
ENDED = "\n(What was left running has been ended; setsid would keep it.)"
IS_UP = "until [ -e up ]; do sleep 0.02; done; "


@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN)
def test_a_child_that_holds_the_output_open_ends_with_its_command(
    use, tight_limits, writers, child
):
    said = use("bash", command=child + IS_UP + "echo done", timeout=600)
    assert said == f"done\n{ENDED}"
    assert writers() == "up\n"


def test_a_child_that_keeps_writing_does_not_keep_the_tool_waiting(use, tight_limits):
    begun = time.monotonic()
    use("bash", command="yes & sleep 0.1; exit 0", timeout=6)
    assert time.monotonic() - begun < 5


@pytest.mark.skipif(not shutil.which("setsid"), reason="no setsid here")
@pytest.mark.parametrize("end", ["&", "& true", "", "& exit 0"])
def test_a_process_started_with_setsid_outlives_its_command(use, writers, end):
    child = "setsid bash -c 'sleep 0.1; echo on' >alive 2>&1"
    for _ in range(5):
        use("bash", command=f"{child} {end}")
    assert writers() == "on\n" * 5


# --- Ctrl-C, and time to clean up ---


@pytest.mark.parametrize("jobs", ["", "set -m; "])
def test_ctrl_c_kills_the_command_and_its_children(make, writers, jobs):
    interrupt = f"{jobs}{CHILD} & {IS_UP} kill -INT $PPID; sleep 600"
    agent = make(bash(interrupt), reply("Yes."))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Work.")
    assert writers() == "up\n"
    assert agent.messages[-1]["content"][0]["is_error"] is True
    assert take_turn(agent, "Are you there?") == "Yes."


# Start commands, interrupt each within its first ten milliseconds, and print how many
# were stopped. Each command holds the pipe `alive` open while it lives.
INTERRUPTED = """
import os, signal, sys, threading, time
import agent as program

def interrupt(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)

stopped, times = 0, int(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in range(times):
    later = threading.Thread(target=interrupt, args=[number % 50 / 5_000])
    try:
        later.start()
        program.run_process("exec 9>alive; sleep 600 & sleep 600", 60, bytearray(), str)
    except KeyboardInterrupt:
        stopped += 1
    later.join()
print(stopped)
"""


def test_the_user_sees_the_output_of_an_interrupted_command(make):
    command = "echo begun; kill -INT $PPID; sleep 600"
    agent = make(bash(command))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Work.")
    assert shown(agent, "result") == ["begun\n"]


def test_a_command_that_cannot_be_killed_does_not_block_the_program(use, monkeypatch):
    monkeypatch.setattr(program.os, "killpg", Mock(side_effect=PermissionError))
    begun = time.monotonic()
    content = use("bash", command="echo begun; exec sleep 4", timeout=1)
    assert time.monotonic() - begun < 3
    assert content.startswith("begun\n") and "Part of it is still running" in content


def test_an_interrupt_while_a_command_starts_leaves_no_process(writers):
    times = 600 if LONG_TESTS else 40
    signal.alarm(15 + times // 4)
    env = os.environ | {"PYTHONPATH": str(Path(program.__file__).parent)}
    argv = [sys.executable, "-c", INTERRUPTED, str(times)]
    assert int(subprocess.check_output(argv, env=env)) == times
    assert writers() == ""  # waits for every process that still lives


@pytest.fixture
def patient(monkeypatch):
    """As much time to clean up as it takes, once a command is being ended."""
    end_session = program.end_session

    def end_patiently(*given):
        monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
        end_session(*given)

    monkeypatch.setattr(program, "end_session", end_patiently)


STOP = "kill -INT $PPID; while :; do sleep 0.02; done"
CLEANING = {
    "stopped": f"trap 'echo cleaned; exit' TERM; {STOP}",
    "in a group of its own": f"set -m; (trap 'echo cleaned; exit' TERM; {STOP}); true",
    "more than a pipe holds": f"trap 'yes cleaned | head -n 50000; exit' TERM; {STOP}",
}


@pytest.mark.parametrize("command", CLEANING.values(), ids=CLEANING)
def test_a_command_that_is_stopped_can_clean_up_first(patient, command):
    output = bytearray()
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, output, str)
    assert output.count(b"cleaned\n") == (50_000 if "yes" in command else 1)


def test_a_process_left_in_the_background_can_clean_up_first(use, patient, monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 0.1)
    child = "trap 'touch cleaned; exit' TERM; touch up; while :; do sleep 0.02; done"
    said = use("bash", command=f"({child}) >&- 2>&- & {IS_UP} echo done")
    assert said == f"done\n{ENDED}"
    assert Path("cleaned").exists()


def test_a_stopped_commit_leaves_no_lock_in_the_repository(patient, monkeypatch):
    monkeypatch.setenv("TESTS", str(os.getpid()))
    create_files("a.py", "hooks/pre-commit")
    Path("hooks/pre-commit").write_text("#!/bin/sh\nkill -INT $TESTS\nsleep 600\n")
    Path("hooks/pre-commit").chmod(0o755)
    git = "git -c user.name=a -c user.email=a@b -c core.hooksPath=hooks"
    commit = f"git init -q && git add a.py && {git} commit -qam a"
    with pytest.raises(KeyboardInterrupt):
        program.run_process(commit, 600, bytearray(), str)
    subprocess.run(["git", "add", "a.py"], check=True)
    assert not [*Path(".git").rglob("*.lock")]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_the_shells_own_process_group_is_signalled_first_and_each_only_once(
    monkeypatch,
):
    killpg, sent = os.killpg, []
    monkeypatch.setattr(os, "killpg", lambda *to: sent.append(to) or killpg(*to))
    command = "set -m; " + "sleep 600 | sleep 600 & " * 9 + "kill -INT $PPID; wait"
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, bytearray(), str)
    for number, count in {signal.SIGTERM: 10, signal.SIGKILL: 1}.items():
        groups = [group for group, given in sent if given == number]
        assert groups[0] == sent[0][0] and len(groups) == len({*groups}) >= count


def test_a_process_that_nobody_reaps_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
    orphan = "bash -c 'sleep 600 & sleep 0 & exec sleep 600'"
    process = program.start_session(f"{orphan} & wait")
    program.end_session(process, bytearray())
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(not shutil.which("timeout"), reason="no timeout here")
def test_a_stop_does_not_start_the_next_command():
    for _ in range(9):
        stopped = "timeout 60 sleep 600; touch next"
        assert program.run_process(stopped, 0.05, bytearray(), str) is None
    assert not Path("next").exists()


def test_what_a_python_program_printed_is_kept_when_it_is_stopped(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    stop = "import os, time; print('begun'); os.kill({}, 2); time.sleep(600)"
    command = f'{sys.executable} -c "{stop.format(os.getpid())}"'
    output = bytearray()
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, output, str)
    assert output == b"begun\n"


def test_output_written_just_after_a_command_ends_is_read(use, monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
    rest = "(until [ -e ended ]; do sleep 0.02; done; yes x | head -n 50000) & "
    said = use("bash", command=f"{rest} touch ended; exit 0")
    assert said.count("x\n") == 50_000


def test_ctrl_c_after_a_command_kills_its_background_processes(
    use, writers, monkeypatch
):
    kill, faults = program.kill_session, [KeyboardInterrupt]

    def look(*given):
        if faults:
            raise faults.pop()
        return kill(*given)

    monkeypatch.setattr(program, "kill_session", look)
    with pytest.raises(KeyboardInterrupt):
        use("bash", command=CHILD + " & " + IS_UP)
    assert writers() == "up\n"


# --- Standard input, and the environment ---


@pytest.fixture
def standard_input():
    """Text waiting on the program's own standard input."""
    reader, writer = os.pipe()
    os.write(writer, b"waiting\n" * 9)
    before = os.dup(0)
    os.dup2(reader, 0)
    yield
    os.dup2(before, 0)
    for file in (reader, writer, before):
        os.close(file)


READING = [("cat", "(no output)"), ("head -c 5; echo end", "end\n")]
READING += [("read line </dev/tty || echo no terminal", "no terminal\n")]


@pytest.mark.parametrize("command, output", READING)
def test_a_command_cannot_read_the_programs_standard_input(
    use, standard_input, command, output
):
    content = use("bash", command=command, timeout=600)
    assert content.endswith(output) and "waiting" not in content


OUR_BIN, THEIR_BIN = f"{sys.prefix}/bin:", "/their/venv/bin:"
ENVIRONMENTS = {  # settings, and what a command sees of the last two
    "uv run": (("1", sys.prefix, OUR_BIN), ("", "")),
    "uv run in an activated environment": (
        ("1", sys.prefix, f"{OUR_BIN}{THEIR_BIN}"),
        ("", THEIR_BIN),
    ),
    "activated": (("", sys.prefix, OUR_BIN), (sys.prefix, OUR_BIN)),
    "uv run of another program": (
        ("1", "/their/venv", THEIR_BIN),
        ("/their/venv", THEIR_BIN),
    ),
}


@pytest.mark.parametrize("settings, seen", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_commands_see_the_users_python_environment(use, monkeypatch, settings, seen):
    depth, folder, path = settings
    if depth:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", depth)
    monkeypatch.setenv("VIRTUAL_ENV", folder)
    monkeypatch.setenv("PATH", f"{path}/usr/bin:/bin")
    said = use("bash", command='echo "$VIRTUAL_ENV $PATH"')
    assert said == f"{seen[0]} {seen[1]}/usr/bin:/bin\n"


def test_git_shows_names_as_they_are_unless_the_user_says_otherwise(use, monkeypatch):
    Path("\u6587.md").touch()
    look = "git init -q; git status --short"
    assert use("bash", command=look) == "?? \u6587.md\n"
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.quotepath=true'")
    assert use("bash", command=look) == '?? "\\346\\226\\207.md"\n'


def test_gpg_is_not_told_about_our_terminal(use, monkeypatch):
    monkeypatch.setenv("GPG_TTY", "/dev/pts/7")
    assert "GPG_TTY" not in use("bash", command="env")
