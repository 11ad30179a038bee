"""Random conversations: invariants that hold after every turn and every layer."""

import itertools
import os
import re
from collections import deque
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import stub
from builders import (
    asks_for_summary,
    begins_with,
    did,
    is_valid,
    said,
    schemas,
    shape,
    typed,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import EXAMPLES, GOOD, NAMES_IN_TEXT, TURN, WORK
from stub import StubClient

import agent as program

pytestmark = pytest.mark.slow

COLD = float("-inf")


@pytest.fixture(autouse=True)
def small_world(monkeypatch, workspace):
    """Limits so small that short examples reach every layer, and scripted tools."""
    monkeypatch.setattr(program, "PREVIEW_TOKENS", 75)
    for name in ("bash", "grep"):
        scripted = program.TOOLS[name]._replace(handler=scripted_tool)
        monkeypatch.setitem(program.TOOLS, name, scripted)
    (workspace / "notes.txt").write_text("a line of notes\n" * 120)
    (workspace / "short.txt").write_text("日本語\n")
    skill = workspace / ".agents/skills/birds/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: birds\ndescription: For birds.\n---\nCount them.")


# how small a prompt the API caches, and whether usage says so
CACHES = [{"cache_from": 1_024}, {"cache_from": 4_096}, {"reports": 0}, {"reports": 3}]


class ScriptedModel(StubClient):
    """A model that gives the scripted replies and summaries, then ordinary ones."""

    def __init__(self, **settings):
        super().__init__(always=self.scripted, **settings)
        self.replies, self.outputs, self.written = deque(), deque(), deque()
        self.ids, self.system = itertools.count(), []
        self.last, self.changed = None, []  # a request; those that don't begin with it

    def follow(self, request):
        """Note whether a request of the main agent begins with its last one."""
        self.requests.clear()
        self.system = request["system"]
        is_main = "task" in [tool["name"] for tool in request["tools"]]
        if is_main and not asks_for_summary(request):
            if self.last and not begins_with(request, self.last):
                self.changed.append((self.last, request))
            self.last = stub.copied(request)

    def hear(self, style, text):
        """Forget the last request if a layer has changed the list, or the prompt is new."""
        if style == "layer" and re.search(r"-> [\d,]+ tokens$|^\[resume\]", text):
            self.last = None

    def scripted(self, request):
        self.follow(request)
        queue = self.written if asks_for_summary(request) else self.replies
        ordinary = (GOOD if queue is self.written else [("text", "Done.")], None)
        given = queue.popleft() if queue else ordinary
        if isinstance(given, BaseException):
            return given.with_traceback(None)
        parts, stop = given
        return stub.reply(content=[self.block(*part) for part in parts], stop=stop)

    def block(self, kind, value):
        if kind == "call":
            named = {"name": value[0], "input": value[1]}
            return {"type": "tool_use", "id": f"toolu_{next(self.ids):05}", **named}
        return {"type": kind} | ({} if kind == "redacted_thinking" else {kind: value})


def scripted_tool(agent, **_):
    """Return or raise the next scripted output; after the last one, start over."""
    output = agent.client.outputs[0]
    agent.client.outputs.rotate(-1)
    if isinstance(output, str):
        return output
    raise output("失敗 " * 40)


# --- The invariants ---


def assert_valid(agent, messages):
    """Check that the API accepts these messages, plus a typed one if it needs one."""
    answered = not messages or messages[-1]["role"] == "assistant"
    asked = [*messages, *[typed("Go on.")] * answered]
    sent = program.request_for(agent, asked)["messages"]
    settings = {"model": "m", "max_tokens": 1, "system": agent.client.system}
    stub.check(settings | {"tools": schemas(agent), "messages": sent})


def kept(messages):
    """The typed messages and the calls that a compaction must keep."""
    needed = program.still_needed(messages, program.TOOLS)
    words = [t.removeprefix(program.STOPPED) for t in program.user_texts(messages)]
    return words, [exchange.call for exchange in needed]


def assert_consistent(agent):
    """Check everything that must hold between two turns."""
    assert agent.client.refused == []
    assert_valid(agent, agent.messages)
    if agent.transcript and agent.transcript.is_file():
        assert shape(program.load(agent.transcript).messages) == shape(agent.messages)


# --- The layers that need no model ---

FREE = {
    "tool_result_budget": lambda m: program.tool_result_budget(
        m, 200, saved_at, program.first_unseen(m)
    ),
    "snip_compact": lambda m: program.snip_compact(
        m, 6, Path("t.jsonl"), program.TOOLS
    ),
    "micro_compact": lambda m: program.micro_compact(m, saved_at, 2, 100, 200),
    "micro_compact, all": lambda m: program.micro_compact(m, saved_at, 0, 0, 0),
    "drop_thinking": lambda m: program.drop_thinking(m),
    "drop_thinking from the third message": lambda m: program.drop_thinking(m, 3),
}


def saved_at(text):
    """Return a path without saving anything."""
    return Path(".task_outputs/tool-results/0123456789abcdef.txt")


def assert_pure(agent, name):
    """Check that a layer changes nothing in place, and that twice equals once."""
    messages, before = agent.messages, deepcopy(agent.messages)
    after = FREE[name](messages)
    assert messages == before, "messages were changed in place"
    assert (after == before) == (after is messages), "it made an equal copy"
    assert FREE[name](after) is after, "twice is not once"
    assert_valid(agent, after)
    assert kept(after)[1] == kept(before)[1]
    if "micro_compact" in name:
        assert kept(after) == kept(before)
        new = messages[program.first_unseen(messages) :]
        assert after[len(after) - len(new) :] == new


# --- The steps ---


def turn(agent, text, replies, outputs, summaries):
    """Run one turn: the user types this text, and the model follows the script."""
    queues = agent.client.replies, agent.client.outputs, agent.client.written
    for queue, script in zip(queues, (replies, outputs, summaries), strict=True):
        queue.clear()
        queue.extend(script)
    with suppress(program.AgentError, KeyboardInterrupt):
        program.take_turn(agent, text)


def layer_1(agent, **only):
    """Run layer 1 once with these limits and a cold prompt cache."""
    only |= {"clear_above": 0, "keep_tokens": 0}
    before, agent.last_request = agent.limits, COLD
    agent.limits = replace(before, **only)
    program.layer_1(agent)
    agent.limits = before


def automatic(agent):
    if program.should_compact(agent):
        program.auto_compact(agent)


def asked_for(agent):
    agent.focus = "names"
    program.manual_compact(agent)


def without_model(agent):
    if agent.messages:
        program.compact_without_model(agent, "auto_compact")


def reactive(agent):
    if agent.messages:
        with suppress(program.AgentError):
            program.reactive_compact(agent, program.PromptTooLong("too long"))


def resumed(agent):
    """Resume the conversation as another run of the program would."""
    if agent.messages and agent.transcript and agent.transcript.is_file():
        program.resume(agent, str(agent.transcript))
        program.make_ready(agent)


SUMMARIES = {
    "/compact": partial(program.run_command, line="/compact"),
    "compact": asked_for,
    "auto_compact": automatic,
}
LAYERS = SUMMARIES | {
    "none": lambda agent: None,
    "without a model": without_model,
    "reactive_compact": reactive,
    "tool_result_budget": partial(layer_1, keep_recent=99, max_messages=0),
    "snip_compact": partial(layer_1, keep_recent=99, max_messages=6),
    "micro_compact": partial(layer_1, keep_recent=1, max_messages=0),
    "resume": resumed,
}
# Steps that may do more the second time. The first two leave out more each time; a snip
# puts several results into one message, which may then exceed the budget.
NOT_IDEMPOTENT = {"without a model", "reactive_compact", "snip_compact"}
STEPS = st.tuples(TURN, st.sampled_from([*FREE]), st.sampled_from([*LAYERS]))


def act(agent, step):
    """Run one step twice, and check that the second time changes nothing.

    Once is enough after a failed summary, because /compact would ask for one again.
    """
    old = agent.messages
    with suppress(program.AgentError):  # an outage while a summary is asked for
        LAYERS[step](agent)
    again = step not in NOT_IDEMPOTENT and agent.failures == 0
    if (once := agent.messages) is not old and again:
        with suppress(program.AgentError):
            LAYERS[step](agent)
        assert agent.messages == once, f"{step} twice is not {step} once"


@EXAMPLES
@given(
    st.lists(STEPS, min_size=3, max_size=5),
    st.sampled_from([1_000, 3_000, 100_000]),
    st.sampled_from([0, 2]),
    st.sampled_from([0, 8]),
    st.sampled_from(CACHES),
)
def test_every_step_leaves_a_valid_conversation_and_what_was_sent_stays_as_it_was(
    steps, room, keep_recent, max_messages, cache
):
    client = ScriptedModel(**cache)
    agent = program.Agent(client=client, approve=lambda *_: None, emit=client.hear)
    agent.thinking = True
    program.make_ready(agent)
    agent.limits.threshold = program.context_tokens(agent) + room
    agent.limits.keep_recent, agent.limits.max_messages = keep_recent, max_messages
    agent.limits.min_savings = 300
    for script, free, step in steps:
        turn(agent, *script)
        assert_consistent(agent)
        assert_pure(agent, free)
        before = agent.messages, deepcopy(agent.messages)
        act(agent, step)
        assert_consistent(agent)
        assert before[0] == before[1], "messages were changed in place"
        is_note = program.NO_SUMMARY.split("\n")[0] in str(agent.messages)
        is_roomy = agent.limits.threshold > 100_000  # no rejection has lowered it
        if is_roomy and step in SUMMARIES and not is_note:
            words, calls = kept(agent.messages)
            old_words, old_calls = kept(before[0])
            # of the calls, those that fit into half of what was freed
            assert words == old_words and [c for c in old_calls if c in calls] == calls
    assert client.changed == [] and agent.thinking


# --- The index ---


@EXAMPLES
@given(
    st.lists(st.lists(WORK, min_size=4, max_size=9), min_size=1, max_size=4),
    NAMES_IN_TEXT,
)
def test_an_index_has_names_that_were_seen_and_are_out_of_sight(rounds, text):
    for name in "ab":
        Path(f"{name}_file.py").write_text(text)
    agent = program.Agent(limits=program.Limits(threshold=60_000))
    agent.messages = [typed("Go.")]
    for work in rounds:
        agent.messages += [*itertools.chain(*work), *did("word " * 9_000), said("So.")]
        before = "\n".join(text for text, _ in program.sightings(agent.messages))
        agent.messages = program.rebuild(agent, "Short.")[0]
        assert is_valid([*agent.messages, typed("And now?")])
        names, in_sight = index_and_rest(agent.messages)
        assert len(names) == len({*names}), "a name is in the index twice"
        assert [name for name in names if name not in before or name in in_sight] == []


def index_and_rest(messages):
    """The names in the index of a list, and the list's other texts."""
    notes = [m for m in messages if program.INDEX in program.text_of(m)]
    indexes = [note["content"][1]["text"] for note in notes]
    assert len(indexes) <= 1
    assert all(program.tokens_in(text) <= program.INDEX_TOKENS for text in indexes)
    listed = re.findall(r"(?m)^(?!\$ ).+:((?: \S+)*)$", "".join(indexes))
    others = [message for message in messages if message not in notes]
    in_sight = "\n".join(text for text, _ in program.sightings(others))
    return " ".join(listed).split(), in_sight


# --- Short answers and their questions ---

SHORT_ANSWER = st.sampled_from(
    ["2", "no!", "ja, bitte", "好", "go on", "Yes, but not now."]
)
STEP = st.sampled_from(["none", "none", "without a model", "resume"])
ROUND = st.tuples(SHORT_ANSWER, st.integers(0, 2), STEP)


@EXAMPLES
@given(st.lists(ROUND, min_size=6, max_size=16))
def test_each_short_answer_stands_behind_its_question(rounds):
    agent = program.Agent(emit=lambda *_: None, approve=lambda *_: None)
    program.make_ready(agent)
    program.commit(agent, typed("Begin."))
    for number, (answer, calls, step) in enumerate(rounds):
        for message in did(*["word " * 4_000] * calls) * (calls > 0):
            program.commit(agent, message)
        program.commit(agent, said(f"{'long ' * 900} Is it {number}?"))
        program.commit(agent, typed(f"{answer} #{number}"))
        program.commit(agent, said("Fine."))
        LAYERS[step](agent)
        assert is_valid([*agent.messages, typed("And?")])
        for before, message in itertools.pairwise(agent.messages):
            if program.is_typed(message) and "#" in message["content"]:
                asked = f" Is it {message['content'].partition('#')[2]}?"
                assert program.text_of(before).endswith(asked)


# --- The user's messages, with limits too small for anything ---


def limits_of(**settings):
    """The limits that follow from these settings."""
    with patch.dict(os.environ, {name: str(n) for name, n in settings.items()}):
        return program.configured_limits()


def has_number(text, number):
    """Tell whether a text, or the file that its preview names, has this number."""
    named = re.findall(r"tool-results/\w{16}", text)[:1]
    files = [Path(".task_outputs", f"{name}.txt") for name in named]
    whole = text + "".join(file.read_text(errors="replace") for file in files)
    return f"#{number}: " in whole


@EXAMPLES
@given(
    st.lists(st.tuples(TURN, st.sampled_from([*LAYERS])), min_size=3, max_size=6),
    st.sampled_from([1, 500, 3_000]),
    st.sampled_from([1, 40, 2_000]),
)
def test_the_first_and_the_newest_typed_message_are_never_lost(steps, threshold, times):
    events = []
    agent = program.Agent(
        client=ScriptedModel(), emit=lambda *event: events.append(event)
    )
    agent.limits = limits_of(THRESHOLD=threshold, CONTEXT_WINDOW=9_000)
    agent.approve = lambda *_: None
    program.make_ready(agent)
    kept = []  # the numbers of the messages that were not dropped
    for number, ((text, *script), step) in enumerate(steps):
        events.clear()
        plain = "".join(letter for letter in text if letter.isprintable())
        turn(agent, f"#{number}: {plain * times}", *script)
        is_refused = "[refusal]" in str(events)
        texts = program.user_texts(agent.messages)
        if texts and has_number(texts[-1], number):
            kept.append(number)
        else:
            assert is_refused, "the newest message is lost"
            kept = [n for n in kept if any(has_number(text, n) for text in texts)]
        act(agent, step)
        assert agent.client.refused == []
        assert_valid(agent, agent.messages)
        texts = program.user_texts(agent.messages)
        if kept:
            assert has_number(texts[0], kept[0]), "the first message is lost"
            assert has_number(texts[-1], kept[-1]), "the newest message is lost"
