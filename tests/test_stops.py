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
from builders import LONG_TESTS, TASK, shown, texts, turns, typed
from pseudo import PATIENCE, PROMPT, Held, Person
from stub import reply

import agent as program
from agent import Terminal


def bash(command):
    """A reply that calls bash."""
    return reply(calls=[("bash", {"command": command})])


# --- Ctrl-C ---


def test_ctrl_c_at_an_empty_prompt_mentions_ctrl_d(person):
    person.watch(0.1)  # readline may miss a signal while it shows its prompt
    person.press("\x03")
    assert "Ctrl-D" in person.see(PROMPT)


def test_ctrl_c_keeps_the_output_that_a_command_had_shown(person):
    person.enqueue(bash(r"printf '\033[31mred 9%%\r100%%\n'; sleep 600"), reply("So."))
    person.ask("wait")
    person.press("y\n")
    person.see_below(" s: 100%")
    person.stop()
    person.say("and now?", "So.")
    [result] = person.sent[2]["content"]
    assert result["is_error"] and result["content"].startswith("100%\n\nThe user inter")


def test_after_ctrl_c_in_an_answer_the_next_message_decides(person):
    held = Held(reply("Too late.", thinking="Hm."), events=4)
    person.enqueue(held, reply("In time."))
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.stop()
    held.may.set()
    person.say("second", "In time.")
    first, mark, second = person.sent
    assert (first, second) == (typed("first"), typed("second"))
    assert "Do not continue with it unless\nthe next message" in texts(mark)[0]


def test_repeated_ctrl_c_always_returns_to_the_prompt(person):
    person.queue.extend([reply("So it is. " * 200)] * 60)
    for n in range(0, 40, 4):  # twice each time, a little later every time
        person.press("what?\n")
        person.watch(n * 0.004)  # because a Ctrl-C at the prompt makes the kernel
        person.press("\x03")  # drop input that nobody has read yet
        person.watch(0.002)
        person.press("\x03")
    while person.read(0.5):
        pass  # until it is quiet
    person.say("\x15")
    person.queue.clear()
    person.enqueue(reply("Still here."))
    person.say("and now?", "Still here.")
    assert "Traceback" not in person.screen and "Exception" not in person.screen


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


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_sighup_and_sigterm_end_the_program_despite_other_faults(
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
    person = fresh(forked=False, PYTHONPATH=str(tmp_path), **soon)
    person.press("hello\n")
    person.see_below(" s: connecting")
    person.stop()
    assert "stopped" in person.screen


# --- The terminal is restored ---


def modes(person):
    """The terminal's modes."""
    return termios.tcgetattr(person.keys)


def ended(person):
    """Wait for the program to end; return its exit status."""
    while person.read():
        pass
    return person.process.wait(PATIENCE)


ENDS = {  # how the program ends during work, and its exit status
    "SIGTERM": (lambda person: person.process.terminate(), 143),
    "SIGHUP": (lambda person: person.process.send_signal(signal.SIGHUP), 129),
    "internal error": (lambda person: None, 1),
    "Ctrl-C, then Ctrl-D": (
        lambda person: person.stop() or person.leave("\x15\x04"),
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_terminal_is_restored_however_the_program_ends(fresh, end):
    act, status = ENDS[end]
    held = Held(reply("It is so."), events=4)
    person = fresh(held, constants={"status_line": None} if "error" in end else None)
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.press("half")
    person.see_below("> half")
    assert modes(person) != person.usual
    act(person)
    held.may.set()
    assert ended(person) == status and modes(person) == person.usual
    told = person.raw.decode()  # whether to mark pastes, and to wrap long rows
    for on, off in ("\x1b[?2004h", "\x1b[?2004l"), ("\x1b[?7l", "\x1b[?7h"):
        assert told.rindex(off) > told.rindex(on)


@pytest.mark.parametrize("settings", [{}, {"TERM": "dumb"}])
def test_a_signal_at_the_prompt_restores_the_terminal(fresh, settings):
    person = fresh(**settings)
    person.press("half")
    person.see("half")
    person.watch(0.1)
    assert modes(person) != person.usual  # they're readline's
    person.process.terminate()
    assert ended(person) == 143 and modes(person) == person.usual


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_kills_the_running_command_and_its_children(fresh, number):
    beat = "while :; do echo x >> beats; sleep 0.05; done"
    work = bash(f"({beat}) & echo up; sleep 600 | cat")
    person = fresh(work, constants={"WAIT_SECONDS": 0.2})
    person.ask("go")
    person.press("y\n")
    person.see_below(" s: up")
    person.process.send_signal(number)
    assert ended(person) == 128 + number and modes(person) == person.usual
    size = (person.folder / "beats").stat().st_size
    assert not select.select([], [], [], 0.3)[0]
    assert (person.folder / "beats").stat().st_size == size > 0


def test_closing_the_terminal_ends_the_program_during_work(fresh):
    person = fresh(bash("echo up; sleep 600"), constants={"WAIT_SECONDS": 0.2})
    person.ask("go")
    person.press("y\n")
    person.see_below(" s: up")
    os.close(person.keys)
    person.keys = os.open(os.devnull, os.O_RDONLY)
    person.files = [person.keys]
    assert person.process.wait(PATIENCE) == 129


def test_ctrl_z_restores_the_terminal_until_fg(fresh):
    held = Held(bash("true"), events=4)
    person = fresh(held, reply("Done."), shell=True)
    person.press("begun")
    person.see("begun")
    suspend_and_resume(person)  # at the prompt, where the modes are readline's
    person.watch(0.3)
    person.press("\x15first\n")
    assert held.asked.wait(PATIENCE)
    person.press("half")
    person.see_below("> half")
    ours = modes(person)
    suspend_and_resume(person)
    person.see_below("> half")  # during work
    assert modes(person) == ours != person.usual
    held.may.set()
    person.see("Run this command?")
    suspend_and_resume(person)
    person.see_below("> half")
    person.press("\x15y\n")
    person.see("> y\n", "Done.", PROMPT)
    assert person.leave("\x04") == 0


def suspend_and_resume(person):
    """Press Ctrl-Z, check that a busy program restored the terminal, type fg."""
    is_at_work = person.rows != ""
    person.press("\x1a")
    person.see("stopped\n")
    assert person.rows == "" and (modes(person) == person.usual or not is_at_work)
    person.press("fg\n")


def test_an_idle_prompt_uses_no_cpu(fresh):
    person = fresh()  # its SDK is already loaded
    while person.read(0.5):
        pass
    before = activity(person.process.pid)
    assert not person.read(1)
    after = activity(person.process.pid)
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
    number = [signal.SIGTERM, signal.SIGHUP][instant % 2]
    slow = Held(reply("So it is. " * 100), events=chance.randrange(3, 60))
    work = [bash(f"({command}) & {command} | cat"), slow][instant // 2 % 2]
    desk.stub.enqueue(*[reply("Well."), work][chance.randrange(2) :], work)
    with closing(Person(desk)) as person:
        person.see(PROMPT)
        person.press("go\n")
        person.read(chance.random() * 0.3)
        person.press(chance.choice(["", "y\n", "half", "\x03", "y\nha"]))
        person.read(chance.random() * 0.3)
        if chance.random() < 0.7:  # another signal, just before this one
            first = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
            person.process.send_signal(first)
            select.select([], [], [], chance.choice([0, 0.0003, 0.002, 0.02]))
        began = time.monotonic()
        with suppress(ProcessLookupError):  # the first one was enough
            person.process.send_signal(number)
        person.watch(0.5)
        person.press(" ")  # readline may miss a signal while it shows its prompt
        status, seconds = ended(person), time.monotonic() - began
        slow.may.set()
        assert status in (143, 129), person.screen[-2_000:]
        assert modes(person) == person.usual
        assert not running(command) and seconds < 5
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()


def running(command):
    """The processes whose arguments contain this command."""
    ps = subprocess.run(
        ["ps", "-Ao", "args"], check=True, capture_output=True, text=True
    )
    return [line for line in ps.stdout.splitlines() if command in line]
