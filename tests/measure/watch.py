#!/usr/bin/env python3
"""Watch agent.py forget: replay a session, and see each of its requests.

    python3 tests/measure/watch.py [FILE]
    python3 tests/measure/watch.py --set CONTEXT_WINDOW=60000 --slow 0.2 FILE

A line has a request's number, its tokens as a bar (dark: read from the prompt cache) in
the window, and what the model called. Below it are what the layers did before the next
request, and each line that an edit needed but that was out of sight. FILE is a session
of Claude Code (~/.claude/projects/*/*.jsonl) or a transcript of agent.py
(.transcripts/*.jsonl); without it, a session is replayed whose words are made up.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

import costs
import ours
from charts import counted
from recorded import SHAPES, Session, Unusable, read_messages
from stub import asks_for_summary

import agent as program

SHAPE = SHAPES / "cipher_fc-71f7dc4708-1.jsonl.xz"
ABOUT = 6  # columns before what is said about a request
COLORS = {"gone": 31, "summary": 35, "layer": 36}


def paint(kind: str, text: str) -> str:
    """Cut a line to the screen, and color it if the screen is a terminal."""
    line = fitted(text)
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{COLORS[kind]}m{line}\x1b[0m" if colored else line


def fitted(text: str) -> str:
    """Cut a line to the screen, and escape what would control the terminal."""
    return program.cut_to_screen(program.visible(text))


def bar(tokens: float, read: float, window: int, width: int) -> str:
    """Return a bar of this width for a window, dark as far as the cache served it."""
    cells = min(width, round(width * tokens / window))
    dark = min(cells, round(width * read / window))
    return "█" * dark + "▒" * (cells - dark) + "·" * (width - cells)


class Watched(ours.Recording):
    """A recording that shows its requests."""

    pause, number = 0.0, 0

    def answer(self, request: dict) -> dict:
        reply = super().answer(request)
        usage, columns = reply["usage"], get_terminal_size().columns
        read = usage["cache_read_input_tokens"]
        size = usage["input_tokens"] + usage["cache_creation_input_tokens"] + read
        if asks_for_summary(request):
            share = f"{read / size:.0%} from the cache"
            told = f"a summary is asked for: {size:,} tokens, {share}"
            print(paint("summary", " " * ABOUT + told))
            return reply
        self.number += 1
        width = max(10, columns // 3)
        shown = bar(size, read, self.agent.limits.context_window, width)
        calls = [part for part in reply["content"] if part["type"] == "tool_use"]
        named = " ".join(map(called, calls)) or "(answers)"
        line = f"{self.number:5} {shown} {size:>8,} {' '.join(named.split())}"
        print(fitted(line))
        for gone in self.meter.gone:
            print(paint("gone", f"{'':{ABOUT}}needed, out of sight: {gone.strip()}"))
        time.sleep(self.pause)
        return reply

    def listen(self, style: str, text: str) -> None:
        super().listen(style, text)
        if style == "layer":
            print(paint("layer", " " * ABOUT + " ".join(text.split())))


def called(call: dict) -> str:
    """Return the name of a call and its path or command."""
    given = call["input"]
    what = given.get("path") or given.get("command") or given.get("pattern") or ""
    return f"{call['name']} {what}"


def main(argv: list[str] | None = None) -> int:
    """Replay the session, and return the exit status."""
    about, _, epilog = (__doc__ or "").partition("\n\n")
    raw: Any = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=epilog, formatter_class=raw
    )
    text = "a session of Claude Code, or a transcript of agent.py"
    parser.add_argument("file", nargs="?", type=Path, default=SHAPE, help=text)
    text = "replay it with these settings of agent.py"
    parser.add_argument("--set", default="", metavar="NAME=VALUE,...", help=text)
    text = "wait after each request"
    how: Any = {"type": costs.amount, "default": 0.0, "metavar": "SECONDS"}
    parser.add_argument("--slow", help=text, **how)
    options = parser.parse_args(argv)
    try:
        limits = ours.limits(ours.changed(options.set) if options.set else {})
        session = Session(read_messages(options.file), options.file.name)
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    Watched.pause = options.slow
    is_shape = options.file.resolve().parent == SHAPES.resolve()
    made_up = "; its words are made up" * is_shape
    window = f"{limits.context_window:,} tokens"
    print(f"{session.name}, in a window of {window}{made_up}:")
    meter = ours.drive(session, limits, recording=Watched)
    requests = counted(len(meter.contexts), "request", "requests")
    clearings = counted(meter.clearings, "clearing", "clearings")
    print(
        f"{requests}, {clearings}, {counted(meter.summaries, 'summary', 'summaries')}."
    )
    lost = counted(meter.lost, "line", "lines")
    found, tried = sum(whole for _, whole, _ in meter.lookups), len(meter.lookups)
    again = f" One grep finds {found} of {tried}." if tried else ""
    print(f"Needed by an edit, but out of sight: {lost}.{again}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)
