"""No text is lost on the screen, whatever the user does while it is shown.

The programs run in pseudo-terminals. An emulator renders what the user would see, and
wraps lines again after a resize, as real terminals do.
"""

import io
import random
import re
import threading
import time

import pytest
from builders import LONG_TESTS
from door import sse
from emulator import Emulator
from pseudo import PATIENCE, User
from stub import StubClient, reply

from agent import ESCAPE, Terminal, redraw

pytestmark = pytest.mark.slow

PAUSE = threading.Event()  # instead of time.sleep, which tests replace
RUNS, PACE = (40, 1) if LONG_TESTS else (6, 0.5)  # PACE scales all durations
WORDS = [
    "word",
    "日本語",
    "cafe\u0301",
    "x" * 59,
    "0123456789",
    "かな",
    "-",
    "a",
    "漢" * 29,
]


class Slow(list):
    """A reply that arrives slowly, with small pauses between its events."""

    def __init__(self, answer, seconds):
        self.answer, self.seconds = answer, seconds

    def __call__(self, request):
        self[:] = sse(StubClient().finish(request, self.answer))
        return self

    def __iter__(self):
        pause = self.seconds / len(self)
        for event in super().__iter__():
            end = time.monotonic() + pause
            yield event
            while time.monotonic() < end:
                PAUSE.wait(0.005)


class Desktop:
    """The program in an emulated terminal, and the user in front of it."""

    def __init__(self, user, columns, lines):
        self.user, self.fed = user, 0
        self.emulator = Emulator(columns, lines)
        user.resize(columns, lines)

    def watch(self, seconds):
        self.user.watch(seconds)
        self.show()

    def show(self):
        data = self.user.raw[self.fed :].decode(errors="ignore")
        self.fed += len(data.encode())
        self.emulator.feed(data)

    def resize(self, columns, lines):
        while self.user.read(0):  # what was drawn for the old size
            pass
        self.show()
        self.user.resize(columns, lines)
        self.emulator.resize(columns, lines)


def some_text(chance):
    """Lines of all lengths; some fill their last row on the screen exactly."""
    lines = []
    for _ in range(chance.randrange(3, 9)):
        words = chance.choices(WORDS, k=chance.randrange(1, 40))
        lines.append(chance.choice([" ", ""]).join(words))
        lines += chance.choice([[], [""], ["y" * chance.choice([60, 80, 120, 240])]])
    return "\n".join(lines).rstrip()


def act(desktop, chance, may_resize, may_suspend):
    """Type, paste, resize or suspend, as a waiting user might."""
    user, what = desktop.user, chance.randrange(10)
    typed = ""
    if what < 4:
        typed = chance.choice(["a", "日本", "half a line ", "\x7f", "\x17", "\x1b[A"])
    elif what == 4:
        typed = "\x1b[200~pasted\r行\rend\x1b[201~"
    elif what == 5:
        typed = chance.choice(["\n", "\x15", "\x1b\r"])
    elif what < 8 and may_resize:
        desktop.resize(chance.randrange(30, 130), chance.randrange(8, 45))
    elif may_suspend:
        user.press("\x1a")
        end = time.monotonic() + PATIENCE
        seen = user.raw.count(b"stopped\r\n")
        while user.raw.count(b"stopped\r\n") == seen:
            assert time.monotonic() < end
            user.read(0.1)
        user.press("fg\n")
    user.press(typed)


def is_within(lines, shown):
    """True if these lines are shown in this order, perhaps with others in between.

    A line may start with what a resize left of the region at the bottom.
    """
    rest = iter(shown)
    return all(any(one.endswith(line) for one in rest) for line in lines)


@pytest.fixture
def desktop(desk):
    """desktop(text, columns, lines): a desktop on which this reply is arriving."""
    users = []

    def start(text, columns, lines):
        desk.stub.enqueue(
            Slow(reply(text, thinking="Hm."), 2 * PACE), *[reply("So.")] * 9
        )
        users.append(user := User(desk, shell=True))
        desktop = Desktop(user, columns, lines)
        user.see("/help lists the commands\n", "> ")
        user.press("go\n")
        user.see_below("> ")
        return desktop

    yield start
    for user in users:
        user.close()
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()


@pytest.fixture
def draw(monkeypatch):
    """draw(*widths): the lines seen and the region, after a line at each width."""
    parts = {"text": "漢字 " * 19, "queue": ["x" * 99], "line": "typed " * 30}
    emulator = Emulator(80, 24)

    def at(*widths):
        terminal = Terminal(io.StringIO(), live=True, keyboard=True, **parts)
        terminal.colored = True
        terminal.working.set()
        for width in widths:
            monkeypatch.setenv("COLUMNS", str(width))
            emulator.resize(width, 24)
            redraw(terminal, f"finished at {width}\n")
            emulator.feed(terminal.out.getvalue().replace("\n", "\r\n"))
            terminal.out.seek(terminal.out.truncate(0))
        rows = [re.sub(ESCAPE, "", row).rstrip() for row in terminal.rows]
        return [*filter(None, emulator.text)], [*filter(None, rows)]

    return at


@pytest.mark.parametrize("width", [120, 80, 79, 45, 31, 24])
def test_a_narrower_window_leaves_nothing_of_the_region_behind(draw, width):
    seen, region = draw(80, width)
    assert seen == ["finished at 80", f"finished at {width}", *region]


@pytest.mark.parametrize("run", range(RUNS))
def test_no_text_is_lost_whatever_the_user_does_meanwhile(desktop, run):
    chance = random.Random(run)
    text = some_text(chance)
    at = desktop(text, chance.choice([60, 80, 120]), chance.choice([20, 24, 40]))
    stops = run % 5 == 4
    may_resize, may_suspend = run % 2 == 1, run % 4 > 1 and not stops
    end = time.monotonic() + chance.choice([0.8, 1.5, 9]) * PACE
    while at.user.rows and time.monotonic() < end:
        act(at, chance, may_resize, may_suspend)
        at.watch(chance.random() * 0.2 * PACE)
    if stops:
        at.user.press("\x03")
    while at.user.rows or at.user.read(0.5):
        at.watch(0.1)
    at.show()
    shown = at.emulator.text
    lines = [line.rstrip() for line in text.split("\n")]
    stopped = [n for n, line in enumerate(shown) if line.startswith("stopped")]
    if stops and stopped:
        last = shown[stopped[0] - 2]  # with a blank line in between
        ended = [n for n, line in enumerate(lines) if last and line.startswith(last)]
        lines = lines[: ended[0] if ended else 0]
    missing = [line for line in lines if line not in shown]
    assert is_within(lines, shown), f"{missing} in\n" + "\n".join(shown)
    if not (may_resize or may_suspend or stops):
        start = shown.index("[thinking] Hm.")
        whole = [*shown[start : start + 2], *lines]
        assert shown[start : start + len(whole)] == whole
        assert shown[start + len(whole)].startswith("[....")
