"""Somebody at a pseudo-terminal, and the program that runs in it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from contextlib import suppress

import forks
from stub import StubClient
from wire import sse

import agent as program

MARK = "\x1b]133;A\x07"  # tells the terminal that a prompt begins
PROMPT = "\n§> "  # on `Person.screen`, where that is a letter
PATIENCE = 30  # seconds until something that does not come is missed
# The rows that are drawn below the text, and what takes them away; colors; a bell; what
# readline tells the terminal; and how a text goes on in the next row.
DRAWN = re.compile(r"(?s)(?:\x1bD)*(?:\x1b\[\d+A)?\x1b7(.*?)\x1b8|\x1b\[J")
OURS = r"\x1b\[(0|1|2|31|32|35)m|\a|\x1b\[\?2004(h|l\r)| \r"


def below(output):
    """What stands below the text in the end, without colors, a line a row."""
    drawn = [*DRAWN.finditer(output)]
    last = drawn[-1][1] or "" if drawn else ""
    return re.sub(OURS, "", re.sub(r"(\x1b\[1B)?\r\x1b\[K", "\n", last))[1:]


class Person:
    """Somebody at a terminal in which the program runs.

    `anew` and `shell` are those of `forks.start`.
    """

    def __init__(self, desk, anew=forks.LONG_TESTS, shell=False, **settings):
        self.folder, self.enqueue = desk.folder, desk.stub.enqueue
        self.queue, self.requests = desk.stub.queue, desk.stub.requests
        self.raw, self.seen, self.stopped = b"\r\n", 0, 0.0
        self.keys, slave = pty.openpty()
        self.usual = termios.tcgetattr(slave)  # the terminal's modes
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 300, 0, 0))
        where = {"env": desk.settings | settings, "cwd": desk.folder}
        kind = {"anew": anew, "shell": shell}
        self.process = forks.start(desk.argv, slave, slave, slave, **where, **kind)
        os.close(slave)

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.keys)

    @property
    def sent(self):
        """The messages of the newest request."""
        return self.requests[-1]["messages"]

    @property
    def screen(self):
        """All that was shown so far, without what the program adds of its own."""
        text = DRAWN.sub("", self.raw.decode(errors="replace"))
        text = text.replace("\r\n", "\n").replace(MARK, "§")
        return re.sub(OURS, "", text)

    @property
    def rows(self):
        """What stands below the text now."""
        return below(self.raw.decode(errors="replace"))

    def read(self, seconds=PATIENCE):
        """Whether anything more was shown, which `screen` has now."""
        more = b""
        with suppress(OSError):  # on Linux, when the program has ended
            if select.select([self.keys], [], [], seconds)[0]:
                more = os.read(self.keys, 65_536)
        self.raw += more
        return more != b""

    def wait_for(self, text):
        """Wait until this text is shown, after what was seen already."""
        end = time.monotonic() + PATIENCE  # for a clock is never silent
        while text not in self.screen[self.seen :]:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.screen[self.seen :]!r}"

    def see_below(self, text):
        """Wait until this text stands below the text."""
        end = time.monotonic() + PATIENCE
        while text not in self.rows:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.rows!r}, {self.screen[-300:]!r}"

    def see(self, *texts):
        """Wait for these texts in this order; returns what was shown since the last."""
        start = self.seen
        for text in texts:
            self.wait_for(text)
            self.seen = self.screen.index(text, self.seen) + len(text)
        return self.screen[start : self.seen]

    def press(self, keys):
        os.write(self.keys, keys.encode())

    def stop(self):
        """Press Ctrl-C, so late after the last that it is another one; see the prompt."""
        rest = self.stopped + program.SAME_CTRL_C + 0.1 - time.monotonic()
        select.select([], [], [], max(0, rest))
        self.press("\x03")
        self.stopped = time.monotonic()
        self.see(PROMPT)

    def say(self, line, *texts, end=PROMPT):
        """Type a line, see these texts and then the prompt; returns all that came."""
        self.press(line + "\n")
        return self.see(*texts, end)

    def leave(self, keys):
        """The exit status after these keys."""
        self.press(keys)
        while self.read():
            pass
        return self.process.wait(PATIENCE)


class Held(list):
    """A reply of which so many events come, and the rest when the test is ready."""

    def __init__(self, answer, events=0):
        self.answer, self.events = answer, events
        self.asked, self.may = threading.Event(), threading.Event()

    def __call__(self, request):
        self[:] = sse(StubClient().finish(request, self.answer))
        return self

    def __iter__(self):
        yield from self[: self.events]
        self.asked.set()
        self.may.wait(PATIENCE)
        yield from self[self.events :]
