"""What is typed while the program works, byte by byte."""

import io
import os
import threading
import time

import pytest

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


@pytest.fixture
def asked(keys, terminal, monkeypatch):
    """asked(lines): what is answered if these lines are typed after a question."""
    over, sleep = threading.Event(), time.sleep

    def tick(seconds):
        if over.is_set():
            raise SystemExit  # which ends a thread without a word
        sleep(0.001)

    def answer(lines):
        monkeypatch.setattr(program, "show", lambda *_: os.write(keys, lines.encode()))
        return program.answer_to(terminal, "Run bash?")

    monkeypatch.setattr(program.time, "sleep", tick)
    clock = threading.Thread(target=program.clock, args=(terminal,))
    clock.start()
    yield answer
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
    attends = threading.Thread(target=program.attend, args=(None, terminal))
    attends.start()
    assert began.wait(30)
    terminal.prompt = ""
    assert asked("y\n") == "y" and not over.is_set()
    over.set()
    attends.join()
