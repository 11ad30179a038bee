"""A session of thousands of turns, and conversations that no compaction can help."""

import gc
import itertools
import json
import os
import re
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import stub
from builders import LONG_TESTS, TOO_LARGE, did, said, typed
from stub import StubClient, reply

import agent as program

TURNS = 5_000 if LONG_TESTS else 1_000
WINDOW, OUTPUT = 60_000, 16_384
THRESHOLD = program.auto_compact_threshold(WINDOW, OUTPUT)
TRACED = 100  # the last turns, in which the memory is measured, which is slow
COMPACTIONS = ("auto_compact", "compact", "reactive_compact")

FIRST = "The first request: keep the notes in order, and never delete a line."
PLAN = "[ ] archive the notes at the very end"
DONE = "What was done so far."
SUMMARY = f"<analysis>-</analysis><summary>{f'{DONE} ' * 40}</summary>"


class Worker(StubClient):
    """Gives what is queued, and summaries besides; keeps figures, not requests.

    Every 20th request is checked as the API would, and its reply has signed thinking;
    the others are only measured, so that a long life is short to test.
    """

    def __init__(self, window=WINDOW):
        super().__init__(window=window)
        self.asked, self.newest, self.summing_up = 0, {}, False
        self.largest = {"work": 0, "summary": 0, "after a summary": 0}

    def answer(self, request):
        self.asked, self.newest = self.asked + 1, request
        size = stub.count(request["system"], request["tools"], request["messages"])
        self.measure(request, size)
        given = reply(SUMMARY) if self.summing_up else self.queue.popleft()
        if isinstance(given, Exception):
            raise given.with_traceback(None)
        if self.asked % 20 == 0:
            return self.check_and_sign(request, given)
        spoken = stub.tokens(given["content"])
        return given | {"usage": {"input_tokens": size, "output_tokens": spoken}}

    def measure(self, request, size):
        kinds = ["after a summary"] if self.summing_up else []
        self.summing_up = "<analysis>" in str(request["messages"][-1]["content"][-1])
        for kind in [*kinds, "summary" if self.summing_up else "work"]:
            self.largest[kind] = max(self.largest[kind], size)

    def check_and_sign(self, request, given):
        self.requests.clear()
        self.bodies.clear()
        self.cached.clear()
        thinking = {"type": "thinking", "thinking": "Let me see."}
        self.queue.appendleft(given | {"content": [thinking, *given["content"]]})
        return super().answer(request)


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
    if turn % 250 == 100:
        calls = [("compact", {"focus": "the notes"}), ("read_file", page)]
    if turn % 1_000 == 600:
        calls = [("bash", {"command": "seq 60000"})]
    called = [reply(calls=calls)] if calls else []
    refused = [TOO_LARGE] if turn % 700 == 350 else []
    return [*called, *refused, reply(f"Part {turn} is in order. " * 120)]


@dataclass
class Session:
    """A session that was lived through, and its figures."""

    agent: program.Agent
    client: Worker
    memory: list[int] = field(default_factory=list)  # bytes, after each late compaction
    compactions: list[dict] = field(default_factory=list)  # as they were written


def live():
    """A session in the current folder, its last turns traced."""
    for number in range(4):
        line = "All lines of the notes are alike. " * 8
        Path(f"notes{number}.txt").write_text(f"{line}\n" * 100)
    limits = {"window": WINDOW, "max_output": OUTPUT, "threshold": THRESHOLD}
    agent = program.Agent(client=Worker(), approve=lambda *_: None, **limits)
    session = Session(agent, agent.client)
    for turn in range(1, TURNS + 1):
        if turn == TURNS - TRACED:
            gc.freeze()  # what the tests before have left is not looked through again
            tracemalloc.start()
        agent.client.enqueue(*work(turn))
        before = len(agent.messages)
        program.take_turn(agent, words(turn))
        if tracemalloc.is_tracing() and len(agent.messages) < before:
            gc.collect()
            session.memory.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    gc.unfreeze()
    with agent.transcript.open(encoding="utf-8") as file:
        events = [json.loads(line) for line in file if '"event"' in line]
    session.compactions = [line for line in events if line["event"] in COMPACTIONS]
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The long session, which all its tests look at."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("long"))
    yield live()
    os.chdir(before)


def tokens(text):
    """The program's own measure: UTF-8 bytes / 4."""
    return len(text.encode()) / 4


def test_a_long_session_keeps_every_kind_of_compaction_busy(session):
    made = [line["event"] for line in session.compactions]
    assert made.count("auto_compact") > TURNS / 50
    assert made.count("compact") >= TURNS / 500
    assert made.count("reactive_compact") >= TURNS // 1_000


def test_no_context_is_over_the_threshold_after_a_compaction_or_ever_over_the_window(
    session,
):
    assert max(line["after"] for line in session.compactions) <= THRESHOLD
    assert 0 < session.client.largest["after a summary"] <= THRESHOLD
    assert max(session.client.largest.values()) + OUTPUT <= WINDOW
    assert session.client.refused == session.client.too_long == []


def test_the_plan_and_the_words_are_in_the_last_request(session):
    sent = str(session.client.newest["messages"])
    newest = [words(turn) for turn in range(TURNS - 99, TURNS + 1)]
    assert [text for text in (FIRST, PLAN, *newest) if text not in sent] == []


def test_what_a_compaction_restores_stays_under_the_sizes_promised(session):
    for line in session.compactions:
        texts = [block["text"] for block in line["messages"][0]["content"]]
        files = [tokens(text) for text in texts if text.startswith("<file ")]
        said = [tokens(text) for text in line["messages"][0]["carried"]["words"]]
        assert len(files) <= program.MAX_RESTORE_FILES
        assert max(files, default=0) <= program.MAX_RESTORE_TOKENS_PER_FILE + 50
        assert sum(files) <= THRESHOLD / 4 and sum(said) <= THRESHOLD / 8 + 50


def test_memory_stays_flat(session):
    # A reply alone is 3 kB. What varies is in the interpreter's own caches.
    assert len(session.memory) > 5
    assert max(session.memory) - session.memory[0] < 250_000


# --- What no compaction can help ---


def test_a_threshold_below_the_fixed_parts_is_one_warning(run, api):
    """With one warning, no summary is asked for, and the work is done."""
    calls = [reply(calls=[("glob", {"pattern": "*"})]) for _ in range(3)]
    api.enqueue(*calls, reply("Done."))
    status, out, err = run("--yes", "-p", "Look around.", THRESHOLD="500")
    assert (status, out, len(api.requests)) == (0, "Done.\n", 4)
    warnings = [s for s in err.split("\n") if "THRESHOLD" in s or "compact" in s]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "text",
    ["word " * 60_000, "漢字" * 40_000 + "🙂", "\n" * 130_000],
    ids=["English", "Chinese", "empty lines"],
)
def test_a_message_larger_than_the_window_is_saved_and_stands_as_a_preview(make, text):
    client = StubClient(reply("Hello."), reply("Seen."), window=WINDOW)
    agent = make(client=client, window=WINDOW, max_output=OUTPUT)
    program.take_turn(agent, "Hi.")
    assert program.take_turn(agent, f"Look: {text}") == "Seen."
    *_, last = agent.client.requests[-1]["messages"][0]["content"]
    [path] = re.findall(r"saved at (\S+)", last["text"])
    assert Path(path).read_text() == f"Look: {text}" and "Look:" in last["text"]


def test_many_short_messages_of_the_person_stay_within_their_share(make):
    agent = make(window=24_000, max_output=8_000, threshold=12_000)
    for text in (FIRST, *["go on"] * 1_200, "and now the last"):
        agent.messages += [typed(text), said("Yes.")]
    assert program.compact_without_model(agent, "auto_compact")
    content = agent.messages[0]["content"]
    share = sum(tokens(block["text"]) for block in content if FIRST in block["text"])
    assert 100 < share <= agent.threshold / 8 + 50
    assert "and now the last" in str(agent.messages)


# --- What it costs to have nothing to do ---


def test_with_nothing_to_do_the_layers_read_a_third_of_the_conversation_at_most(
    make, monkeypatch
):
    """Counted in bytes of JSON: the conversation has 1,000 messages."""
    agent = make(window=1_000_000, keep_tokens=0, min_savings=0)
    steps = ([typed("Go."), *did("a line\n" * 350), said("Done.")] for _ in range(250))
    agent.messages = [*itertools.chain(*steps)]
    whole = len(program.to_bytes(agent.messages))
    agent.counted, agent.known = whole // 4, len(agent.messages) - 1
    agent.messages = agent.messages[:-1]
    read, to_bytes = [], program.to_bytes

    def counted(value):
        read.append(len(data := to_bytes(value)))
        return data

    monkeypatch.setattr(program, "to_bytes", counted)
    before = agent.messages
    program.layer_1(agent)
    assert not program.should_compact(agent) and agent.messages is before
    assert whole > 4 * 150_000 and 0 < sum(read) < whole / 3
