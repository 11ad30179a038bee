"""Stopping the program: Ctrl-C, signals, a closed terminal, and Ctrl-Z."""

import io
import os
import random
import re
import select
import signal
import subprocess
import termios
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders import (
    LONG_TESTS,
    TASK,
    bash,
    shown,
    texts,
    turns,
    typed,
)
from pseudo import PATIENCE, PROMPT, Held, User
from stub import reply

import agent as program
from agent import Terminal

# --- Ctrl-C ---


def test_ctrl_c_at_an_empty_prompt_mentions_ctrl_d(user):
    user.watch(0.1)  # readline may miss a signal while it shows its prompt
    user.press("\x03")
    assert "Ctrl-D" in user.see(PROMPT)


def test_ctrl_c_keeps_the_output_that_a_command_had_shown(user):
    user.enqueue(bash(r"printf '\033[31mred 9%%\r100%%\n'; sleep 600"), reply("So."))
    user.ask("wait")
    user.press("y\n")
    user.see_below(" s: 100%")
    user.stop()
    user.say("and now?", "So.")
    [result] = user.sent[2]["content"]
    assert result["is_error"] and result["content"].startswith("100%\n\nThe user inter")


def test_after_ctrl_c_in_an_answer_the_next_message_decides(user):
    held = Held(reply("Too late.", thinking="Hm."), events=4)
    user.enqueue(held, reply("In time."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.stop()
    held.may.set()
    user.say("second", "In time.")
    first, mark, second = user.sent
    assert (first, second) == (typed("first"), typed("second"))
    assert "Do not continue it\nunless the next message" in texts(mark)[0]


def test_repeated_ctrl_c_always_returns_to_the_prompt(user):
    user.queue.extend([reply("So it is. " * 200)] * 60)
    for n in range(0, 40, 4):  # twice each time, a little later every time
        user.press("what?\n")
        user.watch(n * 0.004)  # because a Ctrl-C at the prompt makes the kernel
        user.press("\x03")  # drop input that nobody has read yet
        user.watch(0.002)
        user.press("\x03")
    reach_the_prompt(user)
    user.queue.clear()
    user.enqueue(reply("Still here."))
    user.say("and now?", "Still here.")
    assert "Traceback" not in user.screen and "Exception" not in user.screen


def reach_the_prompt(user):
    """Wait until the program has read all keys: a command that only the prompt runs.

    The last Ctrl-C may come later than a command and discard it, so type another.
    """
    for n in range(PATIENCE):
        user.press(f"\x15/here-{n}\n")
        end = time.monotonic() + 1
        while (rest := end - time.monotonic()) > 0:
            if f"Unknown command /here-{n};" in user.screen:
                return user.see(f"Unknown command /here-{n};", PROMPT)
            user.read(rest)
    raise AssertionError(user.screen[-2_000:])


def test_two_interrupts_at_once_at_the_prompt_do_not_end_the_program(make, monkeypatch):
    """Python may call the handler while input() returns from the first.

    A parent that sends a Ctrl-C on makes it arrive twice within a millisecond.
    """
    twice = SystemError("<monotonic> returned a result with an exception set")
    monkeypatch.setattr(program, "read_prompt", Mock(side_effect=[twice, EOFError]))
    program.repl(agent := make(), Terminal(io.StringIO()), "")
    assert "Press Ctrl-D or type /quit" in str(agent.events)


@pytest.fixture
def handlers(monkeypatch):
    """The signal handlers by number, the clock they read, and their terminal."""
    found, now = {}, Mock()
    monkeypatch.setattr(program.signal, "signal", found.__setitem__)
    monkeypatch.setattr(program.time, "monotonic", now)
    terminal = Terminal(io.StringIO())
    program.handle_signals(terminal)
    return SimpleNamespace(found=found, now=now, terminal=terminal)


def test_a_ctrl_c_within_0_3_s_of_the_last_one_is_ignored(handlers):
    for at, counts in [(9, 1), (9.2, 0), (9.29, 0), (9.31, 1), (9.7, 1)]:
        handlers.now.return_value = at
        with pytest.raises(KeyboardInterrupt) if counts else nullcontext():
            handlers.found[signal.SIGINT](signal.SIGINT, None)


ENDING = [signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT]  # Ctrl-\ sends the last


@pytest.mark.parametrize("number", ENDING)
def test_sighup_sigterm_and_sigquit_end_the_program_despite_other_faults(
    handlers, number, monkeypatch
):
    def kill(leader):
        handlers.now.return_value = 20
        handlers.found[signal.SIGINT](signal.SIGINT, None)
        raise OSError("what nobody thought of")

    monkeypatch.setattr(program, "SESSIONS", {1})
    monkeypatch.setattr(program, "kill_session", kill)
    monkeypatch.setattr(program.os, "_exit", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        handlers.found[number](number, None)
    program.os._exit.assert_called_once_with(128 + number)


def test_a_ctrl_c_that_python_loses_stops_the_stream_at_the_next_event(make):
    agent = make(reply("one " * 500))
    agent.stopped = lambda: len(shown(agent, "text")) > 2
    with pytest.raises(KeyboardInterrupt):
        turns(agent, "Go.")
    assert len(shown(agent, "text")) == 3
    agent.stopped = lambda: False
    agent.client.enqueue(reply("So."))
    turns(agent, "And now?")


def test_after_a_ctrl_c_that_python_lost_no_request_is_sent(make, monkeypatch):
    agent, pressed = make(reply(calls=[TASK])), []
    agent.stopped = lambda: bool(pressed)
    monkeypatch.setattr(program, "run_subagent", lambda *_: pressed.append("\x03"))
    with pytest.raises(KeyboardInterrupt):
        turns(agent, "Work.")
    assert len(agent.client.requests) == 1 and not program.open_calls(agent.messages)


def test_ctrl_c_interrupts_a_slow_import_of_the_sdk(fresh, tmp_path):
    (tmp_path / "anthropic.py").write_text("import time\ntime.sleep(600)\n")
    soon = {"constants": {"WAIT_SECONDS": 0.2}}
    user = fresh(forked=False, PYTHONPATH=str(tmp_path), **soon)
    user.press("hello\n")
    user.see_below(" s: connecting")
    user.stop()
    assert "stopped" in user.screen


# --- The terminal is restored ---


def modes(user):
    """The terminal's modes."""
    return termios.tcgetattr(user.keys)


def ended(user):
    """Wait for the program to end; return its exit status."""
    while user.read():
        pass
    return user.process.wait(PATIENCE)


ENDS = {  # how the program ends during work, and its exit status
    "SIGTERM": (lambda user: user.process.terminate(), 143),
    "SIGHUP": (lambda user: user.process.send_signal(signal.SIGHUP), 129),
    "Ctrl-\\": (lambda user: user.press("\x1c"), 131),
    "internal error": (lambda user: None, 1),
    "Ctrl-C, then Ctrl-D": (
        lambda user: user.stop() or user.leave("\x15\x04"),
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_terminal_is_restored_however_the_program_ends(fresh, end):
    act, status = ENDS[end]
    held = Held(reply("It is so."), events=4)
    user = fresh(held, constants={"status_line": None} if "error" in end else None)
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("half")
    user.see_below("> half")
    assert modes(user) != user.usual
    act(user)
    held.may.set()
    assert ended(user) == status and modes(user) == user.usual
    told = user.raw.decode()  # whether to mark pastes, and to wrap long rows
    for on, off in ("\x1b[?2004h", "\x1b[?2004l"), ("\x1b[?7l", "\x1b[?7h"):
        assert told.rindex(off) > told.rindex(on)


@pytest.mark.parametrize("settings", [{}, {"TERM": "dumb"}])
def test_a_signal_at_the_prompt_restores_the_terminal(fresh, settings):
    user = fresh(**settings)
    user.press("half")
    user.see("half")
    user.watch(0.1)
    assert modes(user) != user.usual  # they're readline's
    user.process.terminate()
    assert ended(user) == 143 and modes(user) == user.usual


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_kills_the_running_command_and_its_children(fresh, number):
    beat = "while :; do echo x >> beats; sleep 0.05; done"
    work = bash(f"({beat}) & echo up; sleep 600 | cat")
    user = fresh(work, constants={"WAIT_SECONDS": 0.2})
    user.ask("go")
    user.press("y\n")
    user.see_below(" s: up")
    user.process.send_signal(number)
    assert ended(user) == 128 + number and modes(user) == user.usual
    size = (user.folder / "beats").stat().st_size
    assert not select.select([], [], [], 0.3)[0]
    assert (user.folder / "beats").stat().st_size == size > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_does_not_wait_for_a_command_to_clean_up(fresh, number):
    stubborn = "trap 'touch cleaning; sleep 600' TERM; echo up; sleep 600"
    times = {"WAIT_SECONDS": 0.2, "SETTLE_SECONDS": 600}
    user = fresh(bash(stubborn), constants=times)
    user.ask("go")
    user.press("y\n")
    user.see_below(" s: up")
    user.press("\x03")
    while not (user.folder / "cleaning").exists():
        user.watch(0.05)
    user.process.send_signal(number)
    assert ended(user) == 128 + number
    tries = 100  # a killed process may take a moment to disappear
    while running(stubborn) and (tries := tries - 1):
        time.sleep(0.05)
    assert tries


def test_after_ctrl_c_the_output_has_what_a_command_said_while_it_cleaned_up(user):
    slow = "trap 'echo cleaned; exit' TERM; echo up; sleep 600"
    user.enqueue(bash(slow), reply("So."))
    user.ask("wait")
    user.press("y\n")
    user.see_below(" s: up")
    user.stop()
    user.say("and now?", "So.")
    [result] = user.sent[2]["content"]
    assert "cleaned\n" in result["content"] and not running("echo cleaned; exit")


def test_a_command_may_print_more_than_a_pipe_holds_while_it_cleans_up(workspace):
    noisy = "trap 'seq 30000; touch cleaned; exit' TERM; echo up; sleep 600 & wait"
    process = program.start_session(noisy)
    output = bytearray()
    while b"up" not in output:
        output += process.stdout.read(9) or b""
    program.end_session(process, output)
    assert Path("cleaned").exists() and b"\n30000\n" in output


def test_closing_the_terminal_ends_the_program_during_work(fresh):
    user = fresh(bash("echo up; sleep 600"), constants={"WAIT_SECONDS": 0.2})
    user.ask("go")
    user.press("y\n")
    user.see_below(" s: up")
    os.close(user.keys)
    user.keys = os.open(os.devnull, os.O_RDONLY)
    user.files = [user.keys]
    assert user.process.wait(PATIENCE) == 129


def test_ctrl_z_restores_the_terminal_until_fg(fresh):
    held = Held(bash("true"), events=4)
    user = fresh(held, reply("Done."), shell=True)
    user.press("begun")
    user.see("begun")
    suspend_and_resume(user)  # at the prompt, where the modes are readline's
    user.watch(0.3)
    user.press("\x15first\n")
    assert held.asked.wait(PATIENCE)
    user.press("half")
    user.see_below("> half")
    ours = modes(user)
    suspend_and_resume(user)
    user.see_below("> half")  # during work
    assert modes(user) == ours != user.usual
    held.may.set()
    user.see("Run this command?")
    suspend_and_resume(user)
    user.see_below("> half")
    user.press("\x15y\n")
    user.see("> y\n", "Done.", PROMPT)
    assert user.leave("\x04") == 0


def suspend_and_resume(user):
    """Press Ctrl-Z, check that a busy program restored the terminal, type fg."""
    is_at_work = user.rows != ""
    user.press("\x1a")
    user.see("stopped\n")
    assert user.rows == "" and (modes(user) == user.usual or not is_at_work)
    user.press("fg\n")


def test_an_idle_prompt_uses_no_cpu(fresh):
    user = fresh()  # its SDK is already loaded
    while user.read(0.5):
        pass
    before = activity(user.process.pid)
    assert not user.read(1)
    after = activity(user.process.pid)
    assert after[0] - before[0] <= 2 and after[1] - before[1] <= 5


def activity(pid):
    """The CPU time of a process, in ticks of 10 ms, and how often it woke up."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("no /proc here")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    told = "".join(thread.read_text() for thread in threads)
    wakes = re.findall(r"(?m)^voluntary_ctxt_switches:\s*(\d+)", told)
    return int(fields[11]) + int(fields[12]), sum(map(int, wakes))


INSTANTS = 200 if LONG_TESTS else 9


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_a_signal_at_any_moment_ends_everything_and_restores_the_terminal(
    desk, instant
):
    chance, command = random.Random(instant), f"sleep 6{instant:03}"
    number = ENDING[instant % 3]
    slow = Held(reply("So it is. " * 100), events=chance.randrange(3, 60))
    work = [bash(f"({command}) & {command} | cat"), slow][instant // 2 % 2]
    desk.stub.enqueue(*[reply("Well."), work][chance.randrange(2) :], work)
    desk.stub.always = reply("Well.")  # for a request sent as the test ends
    with closing(User(desk)) as user:
        user.see(PROMPT)
        user.press("go\n")
        user.read(chance.random() * 0.3)
        user.press(chance.choice(["", "y\n", "half", "\x03", "y\nha"]))
        user.read(chance.random() * 0.3)
        if chance.random() < 0.7:  # another signal, just before this one
            first = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
            user.process.send_signal(first)
            select.select([], [], [], chance.choice([0, 0.0003, 0.002, 0.02]))
        began = time.monotonic()
        with suppress(ProcessLookupError):  # the first one was enough
            user.process.send_signal(number)
        user.watch(0.5)
        user.press("\n")  # readline may miss a signal while it shows its prompt
        status, seconds = ended(user), time.monotonic() - began
        slow.may.set()
        assert status in (143, 129, 131), user.screen[-2_000:]
        assert modes(user) == user.usual
        assert not running(command) and seconds < 5
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()


def running(command):
    """The processes whose arguments contain this command."""
    ps = subprocess.run(
        ["ps", "-Ao", "args"], check=True, capture_output=True, text=True
    )
    return [line for line in ps.stdout.splitlines() if command in line]
