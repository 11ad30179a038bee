"""A user at a pseudo-terminal, and the program that runs in it."""

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
from door import sse
from stub import StubClient

import agent as program

MARK = "\x1b[1m> \x1b[0m"  # of the prompt
PROMPT = "\n\u00a7> "  # as `User.screen` shows it, unlike anything else
PATIENCE = 30  # seconds to wait for something before the test fails
# the region drawn at the bottom, and the sequence that erases it
DRAWN = re.compile(
    r"(?s)\x1b\[\?7l(.*?)(?:\x1b\[\?7h(?:\x1b\[\?2026l)?|\Z)"
    r"|(?:\x1b\[\?2026h)?(?:\x1b\[A)*\r\x1b\[J"
)
# colors, the bell, and bracketed paste switched on or off
OUR_SEQUENCES = r"\x1b\[(0|1|2|31|32|35)m|\a|\x1b\[\?2004(h|l\r?)"


def below(output):
    """The region as it was drawn last, one line per row, without colors."""
    drawn = [*DRAWN.finditer(output)]
    last = drawn[-1][1] or "" if drawn else ""
    return re.sub(OUR_SEQUENCES, "", last.replace("\r", ""))


def with_constants(desk, **constants):
    """Return a desk whose program has these constants instead of its own."""
    python, script, *given = desk.argv
    code = (
        f"import sys\nsys.path.insert(0, {os.path.dirname(script)!r})\nimport agent\n"
    )
    code += f"vars(agent).update({constants!r})\nsys.exit(agent.main())"
    argv = [python, "-c", code, *given] if constants else desk.argv
    return SimpleNamespace(**vars(desk) | {"argv": argv})


class User:
    """A user at a terminal in which the program runs.

    `forked` and `shell` are those of `forks.Program`. With `piped` its output
    goes into a pipe, and `stdin` is a file to read instead of the keyboard.
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
        """The output so far, without the region and the control sequences."""
        text = DRAWN.sub("", self.raw.decode(errors="replace"))
        text = text.replace("\r\n", "\n").replace(MARK, PROMPT[1:])
        return re.sub(OUR_SEQUENCES, "", text)

    @property
    def rows(self):
        """The region at the bottom, as it is now."""
        return below(self.raw.decode(errors="replace"))

    def read(self, seconds=PATIENCE):
        """Read new output into `screen`; return whether there was any."""
        more = b""
        for file in select.select(self.files, [], [], seconds)[0]:
            with suppress(OSError):  # Linux raises it when the program has ended
                more += os.read(file, 65_536)
        self.raw += more
        return more != b""

    def watch(self, seconds):
        """Read the output for this long, or until the program has ended."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0 and self.read(rest):
            pass

    def wait_for(self, text):
        """Wait until this text appears after the text that was seen before."""
        end = time.monotonic() + PATIENCE  # reads succeed for ever while a clock ticks
        while text not in self.screen[self.seen :]:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.screen[self.seen :]!r}"

    def see_below(self, text):
        """Wait until this text appears in the region."""
        end = time.monotonic() + PATIENCE
        while text not in self.rows:
            more = time.monotonic() < end and self.read()
            assert more, f"{text!r} is missing in {self.rows!r}, {self.screen[-300:]!r}"

    def ask(self, line, question="Run this command?"):
        """Type a line, and wait for the question that follows."""
        self.press(line + "\n")
        self.see_asked(question)

    def see_asked(self, question="Run this command?"):
        """Wait until this question appears in the region or on the screen."""
        end = time.monotonic() + PATIENCE
        while question not in self.rows + self.screen[self.seen :]:
            assert time.monotonic() < end and self.read(), f"{self.screen[-300:]!r}"

    def see(self, *texts):
        """Wait for these texts in order; return all output up to the last of them."""
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
        """Press Ctrl-C, late enough to count as a new one, and wait for the prompt."""
        rest = self.stopped + program.SAME_CTRL_C + 0.1 - time.monotonic()
        select.select([], [], [], max(0, rest))
        self.press("\x03")
        self.stopped = time.monotonic()
        self.see(PROMPT)

    def say(self, line, *texts, end=PROMPT):
        """Type a line, wait for these texts and then the prompt; return the output."""
        self.press(line + "\n")
        return self.see(*texts, end)

    def leave(self, keys):
        """Press these keys, and return the exit status."""
        self.press(keys)
        while self.read():
            pass
        return self.process.wait(PATIENCE)


class Held(list):
    """A reply that stops after so many events until the test sets `may`."""

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
