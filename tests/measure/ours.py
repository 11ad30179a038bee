"""Run agent.py itself on a recorded session.

Its loop asks a client that returns the recorded replies, its tools return the recorded
results, and its clock is the session's. At the end, its own `grep` searches the
transcript for the lines that an edit needed but the context no longer had.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from policies import SAYS_NOTHING, SUMMARY
from prices import Meter
from recorded import Measured, Session, Unusable, tokens
from stub import CACHE_READ, Stream, asks_for_summary

import agent as program

MOST_LOOKUPS = 100  # per session, evenly spread, to save time

# ---- settings ----

# a recorded turn may have any number of requests
SETTINGS = {name.upper() for name in vars(program.Limits())} - {"MAX_REQUESTS"}


def limits(changes: Mapping[str, str]) -> program.Limits:
    """Return the limits that the program itself derives from these settings."""
    with mock.patch.dict(os.environ, {"MAX_REQUESTS": "0", **changes}):
        return program.configured_limits()


def by_setting(changes: list[str]) -> dict[str, program.Limits]:
    """Return the limits in force, and those after each of the changes, by name."""
    named = {f"ours {change}": limits(changed(change)) for change in changes}
    return {"ours": limits({}), **named}


def changed(change: str) -> dict[str, str]:
    """Parse the settings in NAME=VALUE[,NAME=VALUE...]."""
    pairs = [pair.partition("=") for pair in change.split(",")]
    settings = {name: value for name, _, value in pairs}
    if unknown := sorted(settings.keys() - SETTINGS):
        known = ", ".join(sorted(SETTINGS))
        raise Unusable(f"Unknown setting {unknown[0]}; choose from {known}")
    return settings


# ---- the client and the tools ----


class TurnOver(BaseException):
    """The next message was typed, so the turn ends; no `except Exception` stops it."""


class Lost(NamedTuple):
    """A line that an edit needed, but that was out of sight."""

    line: str
    held: int  # bytes of the transcript at that time


class Lookup(NamedTuple):
    """The search for such a line in the transcript, with one call of `grep` each."""

    by_words: bool  # found by two of its words
    by_line: bool  # found by the whole line
    tokens: float  # of the first answer


class Recording:
    """A client and tools that return the recorded replies and results."""

    def __init__(self, session: Session, meter: Meter, limits: program.Limits) -> None:
        self.session, self.meter = session, meter
        self.messages = SimpleNamespace(stream=lambda **sent: Stream(self, sent))
        self.next = 0  # the index of the message that comes next
        self.results: dict[str, deque[dict]] = defaultdict(deque)
        self.measured = Measured()
        self.lost: list[Lost] = []
        world = {"tools": self.tools(), "emit": self.listen, "limits": limits}
        self.agent: Any = program.Agent(client=self, approve=lambda *_: None, **world)

    def coming(self) -> int:
        """The index of the next message; at the end, of the last."""
        return min(self.next, len(self.session.messages) - 1)

    def clock(self) -> float:
        """The time of the next recorded request, in seconds."""
        return self.session.times[self.coming()]

    def typed(self) -> Iterator[str]:
        """Yield each message that the user typed, to the end of the recording."""
        while self.next < len(self.session.messages):
            content = self.session.messages[self.next]["content"]
            self.next += 1
            if type(content) is str:
                yield content

    def answer(self, request: dict) -> dict:
        """Return the next recorded reply, or a summary; else raise TurnOver."""
        history = self.measured.history(request["messages"])
        self.meter.wait(self.coming())
        if asks_for_summary(request):
            size = self.meter.summarise_live(history)
            text = f"<analysis></analysis><summary>{SAYS_NOTHING}</summary>"
            content = [{"type": "text", "text": text}]
            return finished(content, self.usage(size, SUMMARY))
        at, recorded = self.next, self.session.messages
        if at == len(recorded) or recorded[at]["role"] != "assistant":
            raise TurnOver
        reply = recorded[at]["content"]
        calls = [part for part in reply if part["type"] == "tool_use"]
        self.next += 2 if calls else 1
        for call, result in zip(calls, recorded[at + 1]["content"] if calls else ()):
            self.results[call["name"]].append(result)
        size = self.meter.reply(history, at)
        held = self.agent.transcript.stat().st_size
        self.lost += [Lost(line, held) for line in self.meter.gone]
        return finished(reply, self.usage(size, self.session.measured[at].tokens))

    def usage(self, size: float, output: float) -> dict:
        """The usage of the request that was priced last, as the API reports it.

        Without a cache, nothing is read from it or written to it.
        """
        read = int(self.meter.known)
        new = int(size) - read
        written = new if self.meter.cached else 0
        return {
            "input_tokens": new - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": int(output),
        }

    def tools(self) -> dict[str, Any]:
        """Return a tool for each name in the recording; it returns the next result.

        Layers treat it as ours of that name; other tools' results are never cleared.
        """
        sent = [m["content"] for m in self.session.messages if m["role"] == "assistant"]
        called = {p["name"] for parts in sent for p in parts if p["type"] == "tool_use"}
        anything = {"description": "Recorded.", "input_schema": {"type": "object"}}
        foreign = program.Tool(anything, str, clearable=False)
        return {
            name: program.TOOLS.get(name, foreign)._replace(
                schema={"name": name, **anything}, handler=partial(self.result, name)
            )
            for name in sorted(called)
        }

    def result(self, name: str, agent: Any, /, **given: Any) -> str:
        """Return what this tool returned in the recording, or fail as it did.

        A call that isn't in the last reply is repeated, because a compaction reads a
        file again; it returns the same as before.
        """
        queue = self.results[name]
        result = queue.popleft() if queue else self.repeated(name, given)
        if result.get("is_error"):
            raise program.ToolError(result["content"])
        return result["content"]

    def repeated(self, name: str, given: dict) -> dict:
        """Return the last recorded result of a call that was made before."""
        made = program.exchanges(self.session.messages[: self.next])
        calls = ((e.call["name"], e.call["input"], e.result) for e in made)
        same = [result for *call, result in calls if call == [name, given]]
        return same[-1]

    def listen(self, style: str, text: str) -> None:
        """Count how often layer 1 clears results, or saves oversized ones."""
        if style == "layer":
            self.meter.clearings += text.startswith("[micro_compact]")
            self.meter.previews += text.startswith("[tool_result_budget]")


def finished(content: list[dict], usage: dict) -> dict:
    """Return a reply in the API's form."""
    calls = any(part["type"] == "tool_use" for part in content)
    stop = "tool_use" if calls else "end_turn"
    return {"content": content, "stop_reason": stop, "usage": usage}


# ---- a whole session ----


def drive(
    session: Session,
    limits: program.Limits,
    read: float = CACHE_READ,
    cached: bool = True,
    recording: type[Recording] = Recording,
    search: bool = True,
) -> Meter:
    """Run agent.py on a session, within these limits, and return the meter.

    At the end, `search` for the lines that an edit needed in the transcript.
    """
    meter = Meter(session, cached, read)
    replayed = recording(session, meter, limits)
    clock = SimpleNamespace(**vars(time) | {"time": replayed.clock})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        stack.enter_context(mock.patch.object(program, "time", clock))
        once = mock.patch.object(program, "tokens_in", counting_once())
        stack.enter_context(once)
        for text in replayed.typed():
            try:
                program.take_turn(replayed.agent, text)
            except TurnOver:
                continue
            except program.AgentError as error:  # continue with the next typed message
                print(f"ours skipped a turn: {error}", file=sys.stderr)
        meter.lost = len(replayed.lost)
        if cached and search:  # the table shows this only for the runs with a cache
            meter.lookups = [*look_up(replayed.agent, replayed.lost)]
    return meter


def counting_once() -> Callable[[Any], int]:
    """Return `tokens_in`, but remember what it counted: twice as fast in all.

    Messages are never changed, so their content is the same as long as it is kept.
    """
    count, known = program.tokens_in, {}

    def tokens_in(value: Any) -> int:
        key = value if isinstance(value, str) else id(value)
        if key not in known:
            known[key] = count(value), value
        return known[key][0]

    return tokens_in


def look_up(agent: Any, lost: list[Lost]) -> Iterator[Lookup]:
    """Search the transcript for lines, once for two of its words and once for all of it.

    The last line comes first, because the transcript is cut to what it held then.
    """
    step = max(1, -(-len(lost) // MOST_LOOKUPS))  # rounded up
    for line, held in reversed(lost[::step]):
        os.truncate(agent.transcript, held)
        words = rarest_words(line, agent.transcript.read_text("utf-8"))
        answer, *more = (found(agent, n) for n in (words, re.escape(line)))
        shown = [line in text or in_json(line) in text for text in (answer, *more)]
        yield Lookup._make([*shown, tokens(answer)])


def found(agent: Any, pattern: str) -> str:
    """Return the answer of one call of `grep` for a pattern in the transcripts."""
    try:
        return program.grep(agent, pattern, str(program.TRANSCRIPT_DIR))
    except program.ToolError as error:
        return str(error)


def rarest_words(line: str, text: str) -> str:
    """Return a pattern for the two adjacent words of a line that are rarest in a text.

    That's how one would search for it. If the line is one word, it's that word. The
    text is JSON.
    """
    pairs = re.findall(r"(?=(\b\w+\W+\w+\b))", line) or re.findall(r"\w+", line)
    return re.escape(min(pairs, key=lambda pair: text.count(in_json(pair))))


def in_json(text: str) -> str:
    """Return a text as it's written within a text of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
