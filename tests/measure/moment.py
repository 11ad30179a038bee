"""Measure the moment after a compaction: what the next calls need, and still see.

    python3 tests/measure/moment.py FILE...

It compacts recorded sessions with agent.py's own `rebuild` and a summary that says
nothing: before the first reply whose history has 60,000 tokens by our estimate, if
nothing was forgotten before, and then before each 40th. It counts what the next 40
calls need, each name and line once: the names in their inputs, and the lines that edits
quote (see recorded.py). Only what was last seen before the compaction counts, because
what a later result or call shows needn't be in the list. The share of names is the mean
over all compactions; of the lines, which are few, it is the share of them all.

Two rows are there to compare with: "tail" is the user's messages, such a summary and
the newest 24,000 tokens, and "ours, no index" is what its name says. A summary has as
many tokens in all rows.
"""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

from ours import Recording, counting_once
from policies import PLAIN, SAYS_NOTHING, SUMMARIES
from prices import Meter
from recorded import Measured, Message, Session, Unusable, parts, read_messages

import agent as program

EVERY, FROM, CALLS = 40, 60_000, 40  # replies, tokens, calls
NO_INDEX = "ours, no index"


class Moment(NamedTuple):
    """Names and lines that were needed after a compaction, and those in the list."""

    names: int
    names_seen: int
    lines: int
    lines_seen: int
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
    session: Session, at: list[int], index_of: Callable = program.index_of
) -> Iterator[list[Message]]:
    """Yield the list that agent.py leaves at each of these points."""
    limits = program.configured_limits()
    recording = Recording(session, Meter(session), limits)
    agent = recording.agent
    agent.transcript = program.TRANSCRIPT_DIR / "recorded.jsonl"
    tokens_in = counting_once()
    for recording.next in at:
        sent = session.messages[: recording.next]
        agent.messages = [{"role": m["role"], "content": m["content"]} for m in sent]
        with mock.patch.multiple(program, index_of=index_of, tokens_in=tokens_in):
            kept, _ = program.rebuild(agent, SAYS_NOTHING)
        yield [*map(Measured().message, kept)]


def needed_after(session: Session, at: int) -> tuple[set[str], set[str]]:
    """Return the names and lines that the calls after a compaction need."""
    names, lines, calls = set(), set(), 0
    for reply, (needed_lines, needed_names) in session.needs.items():
        made = [*parts([session.messages[reply]], "tool_use")]
        if reply < at or calls >= CALLS or not made:
            continue
        calls += len(made)
        lines |= {n for n in needed_lines if not session.shown(n, at, reply)}
        names |= {n for n in needed_names if not session.shown(n, at, reply)}
    return names, lines


def left_by_policy(
    policy: str, session: Session, at: list[int]
) -> Iterator[list[Message]]:
    """Yield the list that another policy leaves at each of these points."""
    return (SUMMARIES[policy](session.measured[:i], Meter(session)) for i in at)


def measure(session: Session, policy: str = "ours") -> list[Moment]:
    """Measure a policy at all points of a session; NO_INDEX is ours without its index."""
    at = points(session)
    if policy == "ours":
        lists = left_by_ours(session, at)
    elif policy == NO_INDEX:
        lists = left_by_ours(session, at, lambda *_: [])
    else:
        lists = left_by_policy(policy, session, at)
    return [moment(session, i, kept) for i, kept in zip(at, lists)]


def moment(session: Session, at: int, kept: list[Message]) -> Moment:
    """Count what the calls after a point need, and how much of it is in the list."""
    texts = [block.text for message in kept for block in message.blocks]
    names, lines = needed_after(session, at)
    names_seen, lines_seen = (
        sum(any(needle in text for text in texts) for needle in needles)
        for needles in (names, lines)
    )
    size = sum(message.tokens for message in kept)
    return Moment(len(names), names_seen, len(lines), lines_seen, size)


def summed_up(moments: list[Moment]) -> dict:
    """Return the shares of names and lines in sight, and the tokens of a list."""
    names = [m.names_seen / m.names for m in moments if m.names]
    lines = sum(m.lines for m in moments)
    return {
        "points": len(moments),
        "names": sum(names) / len(names) if names else 1,
        "lines": sum(m.lines_seen for m in moments) / lines if lines else 1,
        "tokens": sum(m.tokens for m in moments) / len(moments),
    }


def main(paths: list[str]) -> int:
    """Measure the sessions in these files, and print a line."""
    start = time.perf_counter()
    found: dict[str, list[Moment]] = {PLAIN: [], NO_INDEX: [], "ours": []}
    for path in paths:
        try:
            session = Session(read_messages(Path(path)), path)
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
            continue
        for policy, moments in found.items():
            moments += measure(session, policy)
    if not found["ours"]:
        print("No session has 60,000 tokens.", file=sys.stderr)
        return 1
    for policy, moments in found.items():
        one = summed_up(moments)
        print(
            f"{policy}: names {one['names']:.1%}, lines {one['lines']:.1%},"
            f" {one['tokens']:,.0f} tokens, {one['points']} points"
        )
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
