"""What is typed while the program works, byte by byte."""

import io
import os
import signal
import termios
import threading
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from builders import typed

import agent as program
from agent import Terminal


@pytest.fixture
def keys():
    """Where to write what the person types, in place of standard input."""
    read, write = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)
    yield write
    os.dup2(before, 0)
    for number in read, write, before:
        os.close(number)


@pytest.fixture
def terminal():
    return Terminal(io.StringIO(), listening=True)


TYPED = {
    "caf\u00e9 \u65e5\u672c\n".encode(): "caf\u00e9 \u65e5\u672c",
    b"caf\xe9\nthen\n": "caf\ufffd\nthen",  # from a terminal that is set to Latin 1
}


@pytest.mark.parametrize("data", TYPED, ids=ascii)
def test_a_letter_may_come_in_parts_and_what_is_no_utf_8_ends_nothing(
    keys, terminal, data
):
    for byte in data:
        os.write(keys, bytes([byte]))
        program.take_typed(terminal)
    assert program.hear(terminal) == TYPED[data]


def started(endless, *given):
    """The thread of a function that ends by SystemExit alone."""

    def work():
        with suppress(SystemExit):
            endless(*given)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def asked(keys, terminal, monkeypatch):
    """asked(lines): let these be typed as soon as something is asked."""
    over, sleep = threading.Event(), time.sleep

    def tick(seconds):
        if over.is_set():
            raise SystemExit
        sleep(0.001)

    def press(lines):
        def show(terminal, style, text):
            if text.startswith("Run"):
                os.write(keys, lines.encode())

        monkeypatch.setattr(program, "show", show)

    monkeypatch.setattr(program.time, "sleep", tick)
    clock = started(program.clock, terminal)
    yield press
    over.set()
    clock.join()


def test_a_question_is_answered_while_the_cache_is_kept_warm(
    asked, terminal, monkeypatch
):
    began, over = threading.Event(), threading.Event()

    def hangs(agent):
        began.set()
        over.wait(30)
        raise SystemExit

    monkeypatch.setattr(program, "keep_warm", hangs)
    terminal.prompt = "> "
    attends = started(program.attend, None, terminal)
    assert began.wait(30)
    terminal.prompt = ""
    asked("y\n")
    assert program.answer_to(terminal, "Run bash?") == "y" and not over.is_set()
    over.set()
    attends.join()


def test_of_a_pasted_reason_no_line_is_lost_and_all_stay_in_order(
    asked, terminal, monkeypatch
):
    monkeypatch.setattr(program.sys, "stdin", Mock(isatty=lambda: True))
    terminal.heard, terminal.line = ["before"], "half "
    asked("no, since\nit is\nso")
    with pytest.raises(program.ToolError, match="refused"):
        program.ask_person(terminal, program.Agent(), "bash", "ls")
    assert program.hear(terminal) == "before\nno, since\nit is"
    assert terminal.line == "half so"


SEEMING = {  # what these commands are in truth
    "test -v $'a[\\x24\\x28touch made\\x29]'": "a substitution in other letters",
    'test -v $"x"': "a text that may be translated",
    "echo $[a]": "arithmetic, as $((a)) is",
    "git\xa0status": "a program of this whole name",
    "git\u3000status -s": "the same",
    "git status\x0bx": "git with one argument",
}


@pytest.mark.parametrize("command", SEEMING)
def test_a_command_that_is_not_what_it_seems_is_always_asked_about(command):
    assert program.allowance("bash", command) == ""


def test_a_terminal_that_is_gone_hides_no_signal_that_ends_the_program(
    keys, terminal, monkeypatch
):
    terminal.keyboard = True
    monkeypatch.setattr(program.termios, "tcgetattr", lambda number: [0] * 7)
    gone = Mock(side_effect=[None, termios.error(5, "Input/output error")])
    monkeypatch.setattr(program.termios, "tcsetattr", gone)
    with pytest.raises(program.Terminated), program.listening(terminal):
        raise program.Terminated
    assert gone.call_count == 2


def test_ctrl_c_just_as_words_are_heard_does_not_lose_them(make):
    def hear():
        signal.raise_signal(signal.SIGINT)
        return "Not so!"

    agent = make(hear=hear)
    with pytest.raises(KeyboardInterrupt):
        program.listen(agent)
    assert agent.messages == [typed("Not so!")]
