"""Price each request, and search it for what its reply needs.

Each request has two cache markers: on the system prompt, and at its end. A marker finds
what an earlier one wrote if that is at most 20 positions back. A run of blocks of one
type is one position, and an assistant message is one more. After CACHE_SECONDS without
a request, by the session's own clock, the cache is cold.
"""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from policies import FIXED, SUMMARY, Policy, is_typed
from recorded import Message, Session
from stub import CACHE_READ, CACHE_WRITE, OUTPUT

from agent import CACHE_SECONDS

LOOK_BACK = 20  # positions that a cache marker looks back


class Sent(NamedTuple):
    """A message in the last request, and what comes before it."""

    message: Message
    prefix: int  # a hash of everything up to and including it
    tokens: float  # of the same
    position: int


class Meter:
    """Prices and searches the requests of one policy on one session."""

    def __init__(
        self, session: Session, cached: bool = True, read: float = CACHE_READ
    ) -> None:
        self.session, self.cached = session, cached
        self.read, self.write = read, CACHE_WRITE if cached else 1
        self.now = float("-inf")  # the time of the last request, in seconds
        self.request = ""  # the user's last message
        self.known = 0.0  # tokens of the last request that came from the cache
        self.hits = 0.0  # the same of all requests
        self.full = 0.0  # the cost if there were no cache
        self.cost, self.summaries, self.clearings = 0.0, 0, 0
        self.previews = 0  # how often oversized results went to disk
        self.contexts: list[float] = []
        self.spent: list[float] = []  # the total cost after each reply
        self.steps: list[list[int]] = []  # tokens; clearings, summaries so far
        self.at = 0  # the index of the last reply
        # of each clearing: old tokens that were written again, and tokens that went
        self.rewritten: list[tuple[float, float]] = []
        self.edits: list[float] = []
        self.names: list[float] = []
        self.gone: list[str] = []  # lines that the last reply needed, but could not see
        self.lost = 0  # the number of such lines in the session
        self.dropped: list[str] = []  # these lines, for a policy of your own
        # messages that the user typed: dropped by a policy of your own, and all
        self.typed: tuple[int, int] = 0, 0
        self.unseen = 0  # results that it cleared or cut before the model saw them
        self.printed: list[str] = []  # the lines that a policy of your own printed
        self.slowest = 0.0  # seconds in the slowest call of a policy of your own
        self.refusals: list[str] = []  # why the API would refuse each request
        self.moments: list[tuple] = []  # of the same policy, see moment.py
        self.lookups: list[tuple] = []  # from `ours.look_up`
        self.sent: list[Sent] = []
        self.written: set[int] = set()
        self.visible: Counter[str] = Counter()

    def wait(self, at: int) -> None:
        """Advance the clock to the message with this index; the cache may go cold."""
        before, self.now = self.now, self.session.times[at]
        if self.now - before > CACHE_SECONDS:
            self.written.clear()

    def send(self, history: list[Message], output: float) -> float:
        """Price a request and its reply; return the request's tokens."""
        self.follow(history)
        last = self.sent[-1]
        self.known = self.cached_tokens() if self.cached else 0
        self.hits += self.known
        self.cost += self.read * self.known + self.write * (last.tokens - self.known)
        self.cost += OUTPUT * output
        self.full += last.tokens + OUTPUT * output
        self.written.add(last.prefix)
        return last.tokens

    def cost_at(self, read: float) -> float:
        """Return the cost if reading a cached token had this price."""
        return self.cost + (read - self.read) * self.hits

    def follow(self, history: list[Message]) -> None:
        """Make `sent` equal to this history, beginning at the first difference."""
        same = 0
        for sent, new in zip(self.sent, history):
            if sent.message is not new and sent.message != new:
                break
            same += 1
        for gone in self.sent[same:]:
            self.visible.subtract(block.text for block in gone.message.blocks)
        self.visible = +self.visible if self.sent[same:] else self.visible
        del self.sent[same:]
        for new in history[same:]:
            self.sent.append(self.after_last(new))
            self.visible.update(block.text for block in new.blocks)

    def after_last(self, new: Message) -> Sent:
        """Return the entry for a message that follows those in `sent`."""
        start = Sent(new, 0, FIXED, 0)
        last = self.sent[-1] if self.sent else start
        types = [block.type for block in new.blocks]
        runs = sum(a != b for a, b in pairwise([None, *types]))
        position = last.position + runs + (new.role == "assistant")
        prefix = hash((last.prefix, new))
        return Sent(new, prefix, last.tokens + new.tokens, position)

    def cached_tokens(self) -> float:
        """Return how many tokens of the request a marker finds in the cache."""
        for sent in reversed(self.sent):
            if self.sent[-1].position - sent.position > LOOK_BACK:
                break
            if sent.prefix in self.written:
                return sent.tokens
        return FIXED if self.written else 0

    def reply(self, history: list[Message], at: int) -> float:
        """Send the request that the recorded reply with this index answers."""
        size = self.send(history, self.session.measured[at].tokens)
        if self.steps and self.clearings > self.steps[-1][1]:
            new = sum(m.tokens for m in self.session.measured[self.at : at])
            freed = self.contexts[-1] + new - size
            self.rewritten.append((size - self.known - new, freed))
        self.at = at
        self.contexts.append(size)
        self.steps.append([round(size / 100) * 100, self.clearings, self.summaries])
        self.spent.append(self.cost)
        new = [*(self.visible.keys() - self.session.texts)]
        lines, named = self.session.needs[at]
        self.gone = [line for line in lines if not self.sees(line, new)]
        if lines:
            self.edits.append(1 - len(self.gone) / len(lines))
        if named:
            kept = sum(self.sees(name, new) for name in named)
            self.names.append(kept / len(named))
        return size

    def sees(self, needle: str, new: list[str]) -> bool:
        """Return whether the request has it, in a recorded text or in a `new` one."""
        recorded = self.session.places[needle]
        found = any(block.text in self.visible for _, block in recorded)
        return found or any(needle in text for text in new)

    def close(self) -> "Meter":
        """Drop everything that only the next request needs."""
        self.session, self.sent = Session([]), []
        self.written, self.visible = set(), Counter()
        return self

    def summarise(self, size: float, calls: int = 1) -> None:
        """Price a summary that takes separate requests, without the cache."""
        self.summaries += 1
        self.cost += calls * (size + OUTPUT * SUMMARY)
        self.full += calls * (size + OUTPUT * SUMMARY)

    def summarise_live(self, history: list[Message]) -> float:
        """Price a summary that the live conversation is asked for."""
        self.summaries += 1
        return self.send(history, SUMMARY)


def replay(session: Session, policy: Policy, read: float = CACHE_READ) -> Meter:
    """Run a policy on a session, and return the meter."""
    meter = Meter(session, read=read)
    history: list[Message] = []
    for at, recorded in enumerate(session.measured):
        if recorded.role == "assistant":
            meter.wait(at)
            history = policy(history, meter)
            meter.reply(history, at)
        elif is_typed(recorded):
            meter.request = recorded.blocks[0].text
        history = [*history, recorded]
    return meter
