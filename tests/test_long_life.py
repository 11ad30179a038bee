"""A session with hundreds of turns, a tiny threshold, and layers with nothing to do."""

import gc
import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import stub
from builders import (
    LONG_TESTS,
    SUMMARY,
    TOO_LARGE,
    asks_for_summary,
    did,
    said,
    typed,
)
from stub import StubClient, reply

import agent as program

pytestmark = pytest.mark.slow

TURNS = 5_000 if LONG_TESTS else 320
WINDOW, OUTPUT, THRESHOLD = 24_000, 8_000, 12_000
TINY_LIMITS = {"context_window": WINDOW, "max_output": OUTPUT, "threshold": THRESHOLD}

FIRST_REQUEST = "The first request: keep the notes in order, and never delete a line."
PLAN_ITEM = "[ ] archive the notes at the very end"


class Worker(StubClient):
    """A model that gives the queued replies, and summaries; it keeps only figures.

    It checks every 10th request as the API would, and signs thinking in its reply. It
    only measures the others, to keep the test of a long session short.
    """

    def __init__(self):
        super().__init__(window=WINDOW)
        self.asked = self.largest = 0
        self.newest = {}

    def answer(self, request):
        self.asked, self.newest = self.asked + 1, request
        sent = stub.count(request["system"], request["tools"], request["messages"])
        self.largest = max(self.largest, sent)
        given = SUMMARY if asks_for_summary(request) else self.queue.popleft()
        if isinstance(given, Exception):
            raise given.with_traceback(None)
        if self.asked % 10 == 0:
            return self.check_and_sign(request, given)
        output = stub.tokens(given["content"])
        return given | {"usage": {"input_tokens": sent, "output_tokens": output}}

    def check_and_sign(self, request, given):
        self.forget()
        thinking = {"type": "thinking", "thinking": "Let me see."}
        self.queue.appendleft(given | {"content": [thinking, *given["content"]]})
        return super().answer(request)

    def forget(self):
        for kept in self.requests, self.bodies, self.cached:
            kept.clear()


# --- The long session ---


def user_text(turn):
    """The text that the user types in this turn."""
    return (
        FIRST_REQUEST
        if turn == 1
        else f"Request {turn}: look at part {turn % 9} again."
    )


def replies_in(turn):
    """The replies in this turn: calls and a text, or at times something unusual."""
    page = {"path": f"notes{turn % 4}.txt", "offset": 1 + turn % 90, "limit": 5}
    calls = []
    if turn % 3 == 0:
        calls = [("read_file", page), ("todo_write", {"items": ["no box"]})]
    if turn == 1:
        calls = [("todo_write", {"items": [PLAN_ITEM]})]
    if 10 <= turn % 100 < 55:  # it works once enough is new
        calls = [("compact", {"focus": "the notes"}), ("read_file", page)]
    if turn % 100 == 60:
        calls = [("bash", {"command": "seq 60000"})]
    called = [reply(calls=calls)] if calls else []
    rejected = [TOO_LARGE] if turn == 80 else []  # it lowers the threshold for good
    return [*called, *rejected, reply(f"Part {turn} is in order. " * 30)]


@dataclass
class Session:
    """A finished session and its figures."""

    agent: program.Agent
    objects: list[int] = field(default_factory=list)  # in memory, at each compaction
    characters: list[int] = field(default_factory=list)  # of the agent's fields
    compactions: list[dict] = field(default_factory=list)  # as in the transcript


def run_session():
    """Run a session in the current folder, and measure what it keeps in memory."""
    for number in range(4):
        line = "All lines of the notes are alike. " * 8
        Path(f"notes{number}.txt").write_text(f"{line}\n" * 100)
    limits = program.Limits(**TINY_LIMITS)
    agent = program.Agent(limits=limits, client=Worker(), approve=lambda *_: None)
    session = Session(agent)
    gc.freeze()  # counts only objects made from here on, also in later tests
    for turn in range(1, TURNS + 1):
        agent.client.enqueue(*replies_in(turn))
        before = len(agent.messages)
        program.take_turn(agent, user_text(turn))
        if len(agent.messages) < before:
            agent.client.forget()
            gc.collect()
            session.objects.append(len(gc.get_objects()))
            session.characters.append(len(repr(vars(agent) | {"client": None})))
    with agent.transcript.open(encoding="utf-8") as file:
        session.compactions = [json.loads(line) for line in file if '"event"' in line]
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The long session, shared by all its tests."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("long"))
    yield run_session()
    os.chdir(before)


def test_every_kind_of_compaction_happens_and_summaries_are_rare(session):
    made = [line["event"] for line in session.compactions]
    # the rejection in turn 80 has lowered the threshold, so there are some more
    assert TURNS / 80 < made.count("auto_compact") < TURNS / 8
    assert made.count("compact") >= 1 and made.count("reactive_compact") >= 1


def test_no_request_is_rejected_and_a_compaction_leaves_under_half_the_threshold(
    session,
):
    client = session.agent.client
    for line in session.compactions:
        assert program.estimate_tokens(line["messages"]) < THRESHOLD // 2
    assert client.refused == client.too_long == []
    assert THRESHOLD < client.largest <= WINDOW - OUTPUT


def test_the_plan_and_the_typed_messages_are_in_the_last_request(session):
    sent = str(session.agent.client.newest["messages"])
    # a rejection has lowered the threshold, and so the room for typed messages
    newest = [user_text(turn) for turn in range(TURNS - 24, TURNS + 1)]
    assert [
        text for text in (FIRST_REQUEST, PLAN_ITEM, *newest) if text not in sent
    ] == []


def test_memory_stays_flat(session):
    # In the last third, the typed messages have filled the room they may use.
    objects = session.objects[len(session.objects) * 2 // 3 :]
    assert max(objects) - objects[0] < TURNS / 2
    assert max(session.characters) < 100_000


# --- A threshold that no compaction can reach ---


def test_with_a_threshold_below_the_fixed_parts_it_asks_for_no_summary(run, api):
    calls = [reply(calls=[("glob", {"pattern": "*"})]) for _ in range(3)]
    api.enqueue(*calls, reply("Done."))
    status, out, err = run("--yes", "-p", "Look around.", THRESHOLD="500")
    assert (status, out, len(api.requests)) == (0, "Done.\n", 4)
    assert "compact" not in err


# --- The cost of having nothing to do ---


def test_idle_layers_read_at_most_a_third_of_the_conversation(make, monkeypatch):
    """Count the bytes of JSON that they read of 1,000 messages."""
    agent = make(context_window=1_000_000, keep_tokens=0, min_savings=0)
    steps = ([typed("Go."), *did("a line\n" * 350), said("Done.")] for _ in range(250))
    agent.messages = [*itertools.chain(*steps)][:-1]
    whole = len(program.to_bytes(agent.messages))
    agent.counted_tokens, agent.counted_messages = whole // 4, len(agent.messages)
    read, to_bytes = [], program.to_bytes

    def counted(value):
        read.append(len(data := to_bytes(value)))
        return data

    monkeypatch.setattr(program, "to_bytes", counted)
    before = agent.messages
    program.layer_1(agent)
    assert not program.should_compact(agent) and agent.messages is before
    assert whole > 4 * 150_000 and 0 < sum(read) < whole / 3
