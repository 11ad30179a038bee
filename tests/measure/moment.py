"""Measure the moment after a compaction: what the next calls need, and still see.

    python3 tests/measure/moment.py [FILE...]
    python3 tests/measure/moment.py --set CONTEXT_WINDOW=60000 --set CONTEXT_WINDOW=32000

It compacts recorded sessions (by default, all shapes) with agent.py's own `rebuild` and
a summary that says nothing: before the first reply whose history has 60,000 tokens by
our estimate, if nothing was forgotten before, and then before each 40th. It counts what
the next 40 calls need, each once:

names     in the calls' inputs (see recorded.py)
lines     that edits quote (see there, too)
commands  of bash, of 8 characters or more, that had run before, word for word

It also counts what the user typed so far, and how much of it is left word for word.
A name or line that a later result or call shows needn't be in the list, so it counts
only if it was last seen before the compaction. The share of names is the mean over all
compactions; lines and commands are few, so theirs is the share of them all.

Two rows are there to compare with: "tail" is the user's messages, such a summary and
the newest 24,000 tokens, and "ours, no index" is what its name says. A summary has as
many tokens in all rows.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

from ours import Recording, by_setting, counting_once, limits
from policies import PLAIN, SAYS_NOTHING, SUMMARIES
from prices import Meter
from recorded import (
    SHAPES,
    Measured,
    Message,
    Session,
    Unusable,
    parts,
    read_messages,
)

import agent as program

EVERY, FROM, CALLS = 40, 60_000, 40  # replies, tokens, calls
LONG = 8  # characters of a command; a shorter one is quickly found again
NO_INDEX = "ours, no index"


class Moment(NamedTuple):
    """Numbers of things that were needed after a compaction, and of those in the list."""

    names: int
    names_seen: int
    lines: int
    lines_seen: int
    commands: int
    commands_seen: int
    typed: int  # the user's messages so far
    typed_seen: int  # those that are whole
    tokens: float  # of the list


def points(session: Session) -> list[int]:
    """Return the indexes of the replies before which a compaction is measured."""
    sizes = (program.tokens_in(m["content"]) for m in session.messages)
    before = accumulate(sizes, initial=0)
    long = [
        at for at, size in enumerate(before) if size >= FROM and at in session.needs
    ]
    return long[::EVERY]


def left_by_ours(
    session: Session,
    at: list[int],
    own: program.Limits,
    index_of: Callable = program.index_of,
) -> Iterator[list[Message]]:
    """Yield the list that agent.py leaves within these limits at each of these points."""
    summary = SAYS_NOTHING if own.max_failures else program.NO_SUMMARY
    recording = Recording(session, Meter(session), own)
    agent = recording.agent
    agent.transcript = program.TRANSCRIPT_DIR / "recorded.jsonl"
    tokens_in = counting_once()
    for recording.next in at:
        sent = session.messages[: recording.next]
        agent.messages = [{"role": m["role"], "content": m["content"]} for m in sent]
        with mock.patch.multiple(program, index_of=index_of, tokens_in=tokens_in):
            kept, _ = program.rebuild(agent, summary)
        yield [*map(Measured().message, kept)]


def needed_after(session: Session, at: int) -> tuple[set[str], set[str], set[str]]:
    """Return the names, lines and commands that the calls after a compaction need."""
    names, lines, commands, calls = set(), set(), set(), 0
    for reply, (needed_lines, needed_names) in session.needs.items():
        made = [*parts([session.messages[reply]], "tool_use")]
        if reply < at or calls >= CALLS or not made:
            continue
        calls += len(made)
        lines |= {n for n in needed_lines if not session.shown(n, at, reply)}
        names |= {n for n in needed_names if not session.shown(n, at, reply)}
        commands |= commands_in(made)
    replies = [m for m in session.messages[:at] if m["role"] == "assistant"]
    return names, lines, commands & commands_in(parts(replies, "tool_use"))


def commands_in(calls: Iterable[dict]) -> set[str]:
    """Return the commands in calls of bash that are long enough."""
    given = (call["input"].get("command") for call in calls if call["name"] == "bash")
    return {text for text in given if type(text) is str and len(text) >= LONG}


def left_by_policy(
    policy: str, session: Session, at: list[int]
) -> Iterator[list[Message]]:
    """Yield the list that another policy leaves at each of these points."""
    return (SUMMARIES[policy](session.measured[:i], Meter(session)) for i in at)


def measure(
    session: Session, policy: str = "ours", own: program.Limits | None = None
) -> list[Moment]:
    """Measure a policy at all points of a session; NO_INDEX is ours without its index.

    `own` has the limits of ours; without it, those of the shell's settings hold.
    """
    at = points(session)
    if policy in SUMMARIES:
        lists = left_by_policy(policy, session, at)
    else:
        index_of = no_index if policy == NO_INDEX else program.index_of
        lists = left_by_ours(session, at, own or limits({}), index_of)
    return [moment(session, i, kept) for i, kept in zip(at, lists)]


def no_index(*_: Any) -> list[str]:
    """Return no index."""
    return []


def moment(session: Session, at: int, kept: list[Message]) -> Moment:
    """Count what the calls after a point need, and how much of it is in the list."""
    texts = [block.text for message in kept for block in message.blocks]
    counts: list[float] = []
    typed = {m["content"] for m in session.messages[:at] if type(m["content"]) is str}
    for needles in (*needed_after(session, at), typed):
        seen = sum(any(needle in text for text in texts) for needle in needles)
        counts += [len(needles), seen]
    return Moment._make([*counts, sum(message.tokens for message in kept)])


def summed_up(moments: list[Moment]) -> dict:
    """Return the shares of what is in sight, and the tokens of a list.

    "repeated" is the number of commands of which "commands" is the share.
    """
    names = [m.names_seen / m.names for m in moments if m.names]
    _, _, lines, lines_seen, commands, commands_seen, typed, typed_seen, size = (
        sum(numbers) for numbers in zip(*moments)
    )
    return {
        "points": len(moments),
        "names": sum(names) / len(names) if names else 1,
        "lines": lines_seen / lines if lines else 1,
        "commands": commands_seen / commands if commands else 1,
        "repeated": commands,
        "typed": typed_seen / typed,
        "tokens": size / len(moments),
    }


def told(policy: str, one: dict) -> str:
    """Return a line about a policy."""
    seen = round(one["commands"] * one["repeated"])
    return (
        f"{policy}: names {one['names']:.1%}, lines {one['lines']:.1%},"
        f" {seen} of {one['repeated']} commands, typed {one['typed']:.1%},"
        f" {one['tokens']:,.0f} tokens, {one['points']} points"
    )


def main(argv: list[str]) -> int:
    """Measure sessions, and print a line for each policy."""
    start, parser = time.perf_counter(), argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    change = {"default": [], "metavar": "NAME=VALUE,..."}
    parser.add_argument("--set", action="append", **change)
    options = parser.parse_args(argv)
    try:
        own = by_setting(options.set)
    except (Unusable, program.AgentError) as error:
        parser.error(f"{error}")
    found: dict[str, list[Moment]] = {name: [] for name in (PLAIN, NO_INDEX, *own)}
    for path in options.files or sorted(SHAPES.glob("*.xz")):
        try:
            session = Session(read_messages(path), path.name)
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
            continue
        for policy, moments in found.items():
            moments += measure(session, policy, own.get(policy))
    if not found["ours"]:
        print("No session has 60,000 tokens.", file=sys.stderr)
        return 1
    for policy, moments in found.items():
        print(told(policy, summed_up(moments)))
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
