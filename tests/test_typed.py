"""What is typed while the program works, byte by byte."""

import io
import os

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
