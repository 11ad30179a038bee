"""A session of hundreds of turns, and conversations that no compaction can help."""

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

TURNS = 5_000 if LONG_TESTS else 320
WINDOW, OUTPUT, THRESHOLD = 24_000, 8_000, 12_000
LIMITS = {"context_window": WINDOW, "max_output": OUTPUT, "threshold": THRESHOLD}

FIRST = "The first request: keep the notes in order, and never delete a line."
PLAN = "[ ] archive the notes at the very end"


class Worker(StubClient):
    """Gives what is queued, and summaries besides; keeps figures, not requests.

    Every 10th request is checked as the API would, and its reply has signed thinking;
    the others are only measured, so that a long life is short to test.
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
        spoken = stub.tokens(given["content"])
        return given | {"usage": {"input_tokens": sent, "output_tokens": spoken}}

    def check_and_sign(self, request, given):
        self.forget()
        thinking = {"type": "thinking", "thinking": "Let me see."}
        self.queue.appendleft(given | {"content": [thinking, *given["content"]]})
        return super().answer(request)

    def forget(self):
        for kept in self.requests, self.bodies, self.cached:
            kept.clear()


# --- The long session ---


def words(turn):
    return FIRST if turn == 1 else f"Request {turn}: look at part {turn % 9} again."


def work(turn):
    """What the model does in this turn: some calls, and a text; at times a surprise."""
    page = {"path": f"notes{turn % 4}.txt", "offset": 1 + turn % 90, "limit": 5}
    calls = []
    if turn % 3 == 0:
        calls = [("read_file", page), ("todo_write", {"items": ["no box"]})]
    if turn == 1:
        calls = [("todo_write", {"items": [PLAN]})]
    if turn % 100 == 40:
        calls = [("compact", {"focus": "the notes"}), ("read_file", page)]
    if turn % 100 == 60:
        calls = [("bash", {"command": "seq 60000"})]
    called = [reply(calls=calls)] if calls else []
    refused = [TOO_LARGE] if turn % 100 == 80 else []
    return [*called, *refused, reply(f"Part {turn} is in order. " * 30)]


@dataclass
class Session:
    """A session that was lived through, and its figures."""

    agent: program.Agent
    objects: list[int] = field(default_factory=list)  # in memory, at each compaction
    known: list[int] = field(default_factory=list)  # characters of the agent's fields
    compactions: list[dict] = field(default_factory=list)  # as they were written


def live():
    """A session in the current folder; what it keeps in memory is counted."""
    for number in range(4):
        line = "All lines of the notes are alike. " * 8
        Path(f"notes{number}.txt").write_text(f"{line}\n" * 100)
    limits = program.Limits(**LIMITS)
    agent = program.Agent(limits=limits, client=Worker(), approve=lambda *_: None)
    session = Session(agent)
    gc.freeze()  # what was there before is not counted, here or in any test after it
    for turn in range(1, TURNS + 1):
        agent.client.enqueue(*work(turn))
        before = len(agent.messages)
        program.take_turn(agent, words(turn))
        if len(agent.messages) < before:
            agent.client.forget()
            gc.collect()
            session.objects.append(len(gc.get_objects()))
            session.known.append(len(repr(vars(agent) | {"client": None})))
    with agent.transcript.open(encoding="utf-8") as file:
        session.compactions = [json.loads(line) for line in file if '"event"' in line]
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The long session, which all its tests look at."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("long"))
    yield live()
    os.chdir(before)


def test_every_kind_of_compaction_is_needed_and_summaries_are_few(session):
    made = [line["event"] for line in session.compactions]
    assert TURNS / 80 < made.count("auto_compact") < TURNS / 12
    assert made.count("compact") >= 1 and made.count("reactive_compact") >= 1


def test_nothing_is_refused_and_no_context_is_over_the_threshold_after_a_compaction(
    session,
):
    client = session.agent.client
    for line in session.compactions:
        assert program.estimate_tokens(line["messages"]) < THRESHOLD // 2
    assert client.refused == client.too_long == []
    assert THRESHOLD < client.largest <= WINDOW - OUTPUT


def test_the_plan_and_the_words_are_in_the_last_request(session):
    sent = str(session.agent.client.newest["messages"])
    newest = [words(turn) for turn in range(TURNS - 39, TURNS + 1)]
    assert [text for text in (FIRST, PLAN, *newest) if text not in sent] == []


def test_memory_stays_flat(session):
    objects = session.objects[
        len(session.objects) * 2 // 3 :
    ]  # the words fill their share
    assert max(objects) - objects[0] < TURNS / 2
    assert max(session.known) < 100_000


# --- What no compaction can help ---


def test_with_a_threshold_below_the_fixed_parts_no_summary_is_asked_for(run, api):
    calls = [reply(calls=[("glob", {"pattern": "*"})]) for _ in range(3)]
    api.enqueue(*calls, reply("Done."))
    status, out, err = run("--yes", "-p", "Look around.", THRESHOLD="500")
    assert (status, out, len(api.requests)) == (0, "Done.\n", 4)
    assert "compact" not in err


# --- What it costs to have nothing to do ---


def test_with_nothing_to_do_the_layers_read_a_third_of_the_conversation_at_most(
    make, monkeypatch
):
    """Counted in bytes of JSON: the conversation has 1,000 messages."""
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
