"""How it is stopped: by Ctrl-C, signals, a closed terminal, and by Ctrl-Z for a while."""

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
    shown,
    texts,
    turns,
    typed,
)
from pseudo import PATIENCE, PROMPT, Held, Person
from stub import reply

import agent as program
from agent import Terminal


def bash(command):
    return reply(calls=[("bash", {"command": command})])


# --- Ctrl-C and leaving ---


def test_ctrl_c_at_an_empty_prompt_hints_at_the_way_out(person):
    person.watch(0.1)  # readline may miss a signal while it shows its prompt
    person.press("\x03")
    assert "Ctrl-D" in person.see(PROMPT)


def test_ctrl_c_keeps_what_a_command_had_written_as_it_was_seen(person):
    person.enqueue(bash(r"printf '\033[31mred 9%%\r100%%\n'; sleep 600"), reply("So."))
    person.ask("wait")
    person.press("y\n")
    person.see_below(" s: 100%")
    person.stop()
    person.say("and now?", "So.")
    [result] = person.sent[2]["content"]
    assert result["is_error"] and result["content"].startswith("100%\n\nThe user inter")


def test_ctrl_c_while_the_model_answers_lets_the_next_message_go_on(person):
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


def test_ctrl_c_ever_so_often_leaves_the_prompt_and_no_traceback(person):
    person.queue.extend([reply("So it is. " * 200)] * 60)
    for n in range(0, 40, 4):  # at ever later moments, twice
        person.press("what?\n")
        person.watch(n * 0.004)  # for at the prompt the kernel drops at a Ctrl-C
        person.press("\x03")  # what no terminal has taken yet
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
    """The handlers of signals, by their numbers, and what time it is for them."""
    found, now = {}, Mock()
    monkeypatch.setattr(program.signal, "signal", found.__setitem__)
    monkeypatch.setattr(program.time, "monotonic", now)
    terminal = Terminal(io.StringIO())
    program.handle_signals(terminal)
    return SimpleNamespace(found=found, now=now, terminal=terminal)


def test_a_ctrl_c_within_0_3_s_of_one_is_that_one(handlers):
    for at, counts in [(9, 1), (9.2, 0), (9.29, 0), (9.31, 1), (9.7, 1)]:
        handlers.now.return_value = at
        with pytest.raises(KeyboardInterrupt) if counts else nullcontext():
            handlers.found[signal.SIGINT](signal.SIGINT, None)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_hangup_or_sigterm_ends_it_whatever_comes_meanwhile(
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


def test_a_ctrl_c_that_python_loses_in_a_stream_stops_it_at_the_next_event(make):
    agent = make(reply("one " * 500))
    agent.stopped = lambda: len(shown(agent, "text")) > 2
    with pytest.raises(KeyboardInterrupt):
        turns(agent, "Go.")
    assert len(shown(agent, "text")) == 3
    agent.stopped = lambda: False
    agent.client.enqueue(reply("So."))
    turns(agent, "And now?")


def test_no_request_is_paid_after_a_ctrl_c_that_python_lost(make, monkeypatch):
    agent, pressed = make(reply(calls=[TASK])), []
    agent.stopped = lambda: bool(pressed)
    monkeypatch.setattr(program, "run_subagent", lambda *_: pressed.append("\x03"))
    with pytest.raises(KeyboardInterrupt):
        turns(agent, "Work.")
    assert len(agent.client.requests) == 1 and not program.open_calls(agent.messages)


def test_the_prompt_does_not_wait_for_the_sdk_and_ctrl_c_ends_that_too(fresh, tmp_path):
    (tmp_path / "anthropic.py").write_text("import time\ntime.sleep(600)\n")
    soon = {"constants": {"WAIT_SECONDS": 0.2}}
    person = fresh(forked=False, PYTHONPATH=str(tmp_path), **soon)
    person.press("hello\n")
    person.see_below(" s: connecting")
    person.stop()
    assert "stopped" in person.screen


# --- The terminal is left as it was ---


def modes(person):
    """The modes of the terminal."""
    return termios.tcgetattr(person.keys)


def ended(person):
    """The status with which the program ends by itself, within a second or so."""
    while person.read():
        pass
    return person.process.wait(PATIENCE)


ENDS = {  # how it ends in mid-work, and with which status
    "SIGTERM": (lambda person: person.process.terminate(), 143),
    "SIGHUP": (lambda person: person.process.send_signal(signal.SIGHUP), 129),
    "an error of its own": (lambda person: None, 1),
    "Ctrl-C, then Ctrl-D": (
        lambda person: person.stop() or person.leave("\x15\x04"),
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_in_mid_work_the_terminal_has_other_modes_and_in_the_end_those_it_had(
    fresh, end
):
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
    told = person.raw.decode()  # of pastes, and of rows that are too long
    for on, off in ("\x1b[?2004h", "\x1b[?2004l"), ("\x1b[?7l", "\x1b[?7h"):
        assert told.rindex(off) > told.rindex(on)


@pytest.mark.parametrize("settings", [{}, {"TERM": "dumb"}])
def test_a_signal_at_the_prompt_leaves_the_modes_as_they_were(fresh, settings):
    person = fresh(**settings)
    person.press("half")
    person.see("half")
    person.watch(0.1)
    assert modes(person) != person.usual  # but those of readline
    person.process.terminate()
    assert ended(person) == 143 and modes(person) == person.usual


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_kills_the_command_that_runs_and_what_that_started(fresh, number):
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


def test_a_closed_terminal_ends_it_in_mid_work(fresh):
    person = fresh(bash("echo up; sleep 600"), constants={"WAIT_SECONDS": 0.2})
    person.ask("go")
    person.press("y\n")
    person.see_below(" s: up")
    os.close(person.keys)
    person.keys = os.open(os.devnull, os.O_RDONLY)
    person.files = [person.keys]
    assert person.process.wait(PATIENCE) == 129


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(fresh):
    held = Held(bash("true"), events=4)
    person = fresh(held, reply("Done."), shell=True)
    person.press("begun")
    person.see("begun")
    stop_and_go(person)  # at the prompt, whose modes are readline's
    person.watch(0.3)
    person.press("\x15first\n")
    assert held.asked.wait(PATIENCE)
    person.press("half")
    person.see_below("> half")
    ours = modes(person)
    stop_and_go(person)
    person.see_below("> half")  # in mid-work
    assert modes(person) == ours != person.usual
    held.may.set()
    person.see("Run this command?")
    stop_and_go(person)
    person.see_below("> half")
    person.press("\x15y\n")
    person.see("> y\n", "Done.", PROMPT)
    assert person.leave("\x04") == 0


def stop_and_go(person):
    """Press Ctrl-Z, see that the terminal is as it was while it works, and say fg."""
    is_at_work = person.rows != ""
    person.press("\x1a")
    person.see("stopped\n")
    assert person.rows == "" and (modes(person) == person.usual or not is_at_work)
    person.press("fg\n")


def test_an_idle_prompt_uses_no_cpu(fresh):
    person = fresh()  # or it would load the SDK meanwhile
    while person.read(0.5):
        pass
    before = work_of(person.process.pid)
    assert not person.read(1)
    after = work_of(person.process.pid)
    assert after[0] - before[0] <= 2 and after[1] - before[1] <= 5


def work_of(pid):
    """For how many ticks of ten milliseconds it was at work, and how often it woke."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("there is no /proc here")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    told = "".join(thread.read_text() for thread in threads)
    wakes = re.findall(r"(?m)^voluntary_ctxt_switches:\s*(\d+)", told)
    return int(fields[11]) + int(fields[12]), sum(map(int, wakes))


INSTANTS = 200 if LONG_TESTS else 9


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_a_signal_at_any_instant_ends_it_all_and_leaves_the_terminal_as_it_was(
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
        if chance.random() < 0.7:  # another one, and this one soon after
            first = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
            person.process.send_signal(first)
            select.select([], [], [], chance.choice([0, 0.0003, 0.002, 0.02]))
        began = time.monotonic()
        with suppress(ProcessLookupError):  # the first was enough
            person.process.send_signal(number)
        person.watch(0.5)
        person.press(" ")  # for readline may miss a signal while it shows its prompt
        status, seconds = ended(person), time.monotonic() - began
        slow.may.set()
        assert status in (143, 129), person.screen[-2_000:]
        assert modes(person) == person.usual
        assert not running(command) and seconds < 5
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()


def running(command):
    """The processes whose arguments hold this."""
    ps = subprocess.run(
        ["ps", "-Ao", "args"], check=True, capture_output=True, text=True
    )
    return [line for line in ps.stdout.splitlines() if command in line]
