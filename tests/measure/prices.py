"""What a request costs, and what still stands in it of what its reply needs.

Each request has two cache markers, on the system prompt and at its end; a marker finds
what an earlier one wrote if that lies at most 20 positions back (a run of blocks of one
type is one position, an assistant message one more). Where no request was sent for
CACHE_SECONDS, by the session's own clock, the cache is gone.
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
    """A message in the request that was sent last, and all that is before it."""

    message: Message
    prefix: int  # a hash
    tokens: float
    position: int


class Meter:
    """Prices the requests of one policy on one session, and searches them."""

    def __init__(
        self, session: Session, cached: bool = True, read: float = CACHE_READ
    ) -> None:
        self.session, self.cached = session, cached
        self.read, self.write = read, CACHE_WRITE if cached else 1
        self.now = float("-inf")  # seconds, of the last request
        self.request = ""  # what the person typed last
        self.known = 0.0  # tokens of the last request that came from the cache
        self.cost, self.summaries, self.clearings = 0.0, 0, 0
        self.previews = 0  # how often results went to disk that were too large to show
        self.contexts: list[float] = []
        self.spent: list[float] = []  # the cost so far, after each reply
        self.steps: list[list[int]] = []  # context, clearings, summaries so far
        self.edits: list[float] = []
        self.names: list[float] = []
        self.gone: list[str] = []  # lines that the last reply needed, out of sight
        self.lost = 0  # how many of these there were in all
        self.lookups: list[tuple[bool, float]] = []  # see `ours.look_up`
        self.sent: list[Sent] = []
        self.written: set[int] = set()
        self.standing: Counter[str] = Counter()

    def wait(self, at: int) -> None:
        """Let it be the time of the message with this index; the cache may be gone."""
        before, self.now = self.now, self.session.times[at]
        if self.now - before > CACHE_SECONDS:
            self.written.clear()

    def send(self, history: list[Message], output: float) -> float:
        """Price a request and its reply; returns the request's tokens."""
        self.follow(history)
        last = self.sent[-1]
        self.known = self.cached_tokens() if self.cached else 0
        self.cost += self.read * self.known + self.write * (last.tokens - self.known)
        self.cost += OUTPUT * output
        self.written.add(last.prefix)
        return last.tokens

    def follow(self, history: list[Message]) -> None:
        """Let `sent` be this history; only what changed is gone through."""
        same = 0
        while same < min(len(self.sent), len(history)):
            if self.sent[same].message != history[same]:
                break
            same += 1
        for gone in self.sent[same:]:
            self.standing.subtract(block.text for block in gone.message.blocks)
        self.standing = +self.standing if self.sent[same:] else self.standing
        del self.sent[same:]
        for new in history[same:]:
            self.sent.append(self.after_last(new))
            self.standing.update(block.text for block in new.blocks)

    def after_last(self, new: Message) -> Sent:
        """A message after those that are sent already."""
        start = Sent(new, 0, FIXED, 0)
        last = self.sent[-1] if self.sent else start
        types = [block.type for block in new.blocks]
        runs = sum(a != b for a, b in pairwise([None, *types]))
        position = last.position + runs + (new.role == "assistant")
        prefix = hash((last.prefix, new))
        return Sent(new, prefix, last.tokens + new.tokens, position)

    def cached_tokens(self) -> float:
        """How much of the request an earlier one wrote where a marker finds it."""
        for sent in reversed(self.sent):
            if self.sent[-1].position - sent.position > LOOK_BACK:
                break
            if sent.prefix in self.written:
                return sent.tokens
        return FIXED if self.written else 0

    def reply(self, history: list[Message], at: int) -> float:
        """Send a request that is answered by the recorded reply with this index."""
        size = self.send(history, self.session.measured[at].tokens)
        self.contexts.append(size)
        self.steps.append([round(size / 100) * 100, self.clearings, self.summaries])
        self.spent.append(self.cost)
        new = [text for text in self.standing if text not in self.session.texts]
        lines, named = self.session.needs[at]
        self.gone = [line for line in lines if not self.stands(line, new)]
        if lines:
            self.edits.append(1 - len(self.gone) / len(lines))
        if named:
            kept = sum(self.stands(name, new) for name in named)
            self.names.append(kept / len(named))
        return size

    def stands(self, needle: str, new: list[str]) -> bool:
        """Whether it is in the request, in a recorded text or in a `new` one."""
        recorded = self.session.stood[needle]
        found = any(block.text in self.standing for _, block in recorded)
        return found or any(needle in text for text in new)

    def summarise(self, size: float, calls: int = 1) -> None:
        """Price summaries by requests of their own, for which there is no cache."""
        self.summaries += 1
        self.cost += calls * (size + OUTPUT * SUMMARY)

    def summarise_live(self, history: list[Message]) -> float:
        """Price a summary by the conversation and one message more."""
        self.summaries += 1
        return self.send(history, SUMMARY)


def replay(
    session: Session, policy: Policy, read: float = CACHE_READ, cached: bool = True
) -> Meter:
    """The meter after a session under a rule, at this price of reading the cache."""
    meter = Meter(session, cached, read)
    history: list[Message] = []
    for at, recorded in enumerate(session.measured):
        if recorded.role == "assistant":
            meter.wait(at)
            sent = policy.rule(history, meter)
            history = sent if policy.lasting else history
            meter.reply(sent, at)
        elif is_typed(recorded):
            meter.request = recorded.blocks[0].text
        history = [*history, recorded]
    return meter
