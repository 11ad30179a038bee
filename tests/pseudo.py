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
from types import SimpleNamespace

import forks
from stub import StubClient
from wire import sse

import agent as program

MARK = "\x1b[1m> \x1b[0m"  # of the prompt
PROMPT = "\n\u00a7> "  # on `Person.screen`, where it is told from all else
PATIENCE = 30  # seconds until something that does not come is missed
# the region that is drawn at the bottom, and what takes it away; colors, a bell, and what
# the program or readline tells the terminal of pastes
DRAWN = re.compile(r"(?s)\x1b\[\?7l(.*?)(?:\x1b\[\?7h|\Z)|(?:\x1b\[\d+A)?\r\x1b\[J")
OURS = r"\x1b\[(0|1|2|31|32|35)m|\a|\x1b\[\?2004(h|l\r?)"


def below(output):
    """The region as it stands there in the end, without colors, a line a row."""
    drawn = [*DRAWN.finditer(output)]
    last = drawn[-1][1] or "" if drawn else ""
    return re.sub(OURS, "", last.replace("\r", ""))


def changed(desk, **constants):
    """A desk at which these stand in the place of constants of the program."""
    python, script, *given = desk.argv
    code = (
        f"import sys\nsys.path.insert(0, {os.path.dirname(script)!r})\nimport agent\n"
    )
    code += f"vars(agent).update({constants!r})\nsys.exit(agent.main())"
    argv = [python, "-c", code, *given] if constants else desk.argv
    return SimpleNamespace(**vars(desk) | {"argv": argv})


class Person:
    """Somebody at a terminal in which the program runs.

    `forked` and `shell` are those of `forks.Program`. `piped`: its output goes into a
    pipe; `stdin`: a file that it has instead of the keyboard.
    """

    def __init__(
        self,
        desk,
        forked=True,
        shell=False,
        piped=False,
        stdin=None,
        **settings,
    ):
        self.folder, self.enqueue = desk.folder, desk.stub.enqueue
        self.queue, self.requests = desk.stub.queue, desk.stub.requests
        self.raw, self.seen, self.stopped = b"\r\n", 0, 0.0
        self.keys, slave = pty.openpty()
        self.usual = termios.tcgetattr(slave)  # the terminal's modes
        self.resize(300, 50)
        where = {"env": desk.settings | settings, "cwd": desk.folder}
        kind = {"forked": forked, "shell": shell}
        more, out = os.pipe() if piped else (None, slave)
        self.files = [self.keys, more] if piped else [self.keys]
        given = slave if stdin is None else stdin
        self.process = forks.Program(desk.argv, given, out, slave, **where, **kind)
        for end in {slave, out, given}:
            os.close(end)

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for file in {self.keys, *self.files}:
            os.close(file)

    @property
    def sent(self):
        """The messages of the newest request."""
        return self.requests[-1]["messages"]

    @property
    def screen(self):
        """All that was shown so far, without what the program adds of its own."""
        text = DRAWN.sub("", self.raw.decode(errors="replace"))
        text = text.replace("\r\n", "\n").replace(MARK, PROMPT[1:])
        return re.sub(OURS, "", text)

    @property
    def rows(self):
        """The region at the bottom as it is now."""
        return below(self.raw.decode(errors="replace"))

    def read(self, seconds=PATIENCE):
        """Whether anything more was shown, which `screen` has now."""
        more = b""
        for file in select.select(self.files, [], [], seconds)[0]:
            with suppress(OSError):  # on Linux, when the program has ended
                more += os.read(file, 65_536)
        self.raw += more
        return more != b""

    def watch(self, seconds):
        """Take in what is shown for so long."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            self.read(rest)

    def wait_for(self, text):
        """Wait until this text is shown, after what was seen already."""
        end = time.monotonic() + PATIENCE  # for a clock is never silent
        while text not in self.screen[self.seen :]:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.screen[self.seen :]!r}"

    def see_below(self, text):
        """Wait until this text stands in the region."""
        end = time.monotonic() + PATIENCE
        while text not in self.rows:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.rows!r}, {self.screen[-300:]!r}"

    def ask(self, line, question="Run bash?"):
        """Type a line, and see the question that comes of it."""
        self.press(line + "\n")
        self.see_asked(question)

    def see_asked(self, question="Run bash?"):
        """Wait until this question stands in the region, or on the screen without one."""
        end = time.monotonic() + PATIENCE
        while question not in self.rows + self.screen[self.seen :]:
            assert time.monotonic() < end and self.read(), f"{self.screen[-300:]!r}"

    def see(self, *texts):
        """Wait for these texts in this order; returns what was shown since the last."""
        start = self.seen
        for text in texts:
            self.wait_for(text)
            self.seen = self.screen.index(text, self.seen) + len(text)
        return self.screen[start : self.seen]

    def resize(self, columns, lines):
        size = struct.pack("4H", lines, columns, 0, 0)
        fcntl.ioctl(self.keys, termios.TIOCSWINSZ, size)

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
