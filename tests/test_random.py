"""Random conversations through random layers and turns: what holds after every step."""

import itertools
import json
import re
from collections import deque
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import stub
from builders import LONG_TESTS, TOO_LONG, asks_for_summary, results, schemas
from hypothesis import given, settings
from hypothesis import strategies as st
from stub import StubClient, api_error

import agent as program

# The same examples in every run; no limit of time for one, since machines are slow.
USUAL = settings(derandomize=True, deadline=None)
LIVES = settings(USUAL, max_examples=650 if LONG_TESTS else 60)
HISTORIES = settings(USUAL, max_examples=1_400 if LONG_TESTS else 300)

THINKING = ("thinking", "redacted_thinking")
COLD = float("-inf")


@pytest.fixture(autouse=True)
def small_world(monkeypatch, workspace):
    """Limits so small that short examples reach every layer, and scripted tools."""
    monkeypatch.setattr(program, "MAX_RESULT_TOKENS", 400)
    monkeypatch.setattr(program, "MAX_RESULTS_CHARS", 2_000)
    monkeypatch.setattr(program, "PREVIEW_CHARS", 300)
    for name in ("bash", "grep"):
        scripted = program.TOOLS[name]._replace(handler=scripted_tool)
        monkeypatch.setitem(program.TOOLS, name, scripted)
    (workspace / "notes.txt").write_text("a line of notes\n" * 120)


# --- What random conversations are made of ---

SAMPLES = ["yes", "", " \n", "日本語で話す", "🙂👍🏽", "\ud800", "a\u2028b\r\n\x00c"]
SAMPLES += ["</summary>", "line\n" * 40, "word " * 300, "要約" * 250, "🙂" * 150]
ANY_CHARACTER = st.characters(exclude_categories=[])  # lone surrogates included
TEXT = st.one_of(st.sampled_from(SAMPLES), st.text(ANY_CHARACTER, max_size=6))
ERRORS = [program.ToolError, ValueError, KeyboardInterrupt]
LARGE = ["word " * 400, "要約" * 400, "🙂\n" * 400, "x" * 700]
OUTPUT = st.sampled_from([*LARGE * 3, *ERRORS, *SAMPLES])
OUTPUTS = st.lists(OUTPUT, min_size=1, max_size=3)
WRONG_CALLS = [
    ("read_file", {"limit": "many"}),
    ("read_file", {"path": "gone.txt"}),
    ("todo_write", {"items": ["no box"]}),
    ("no_such_tool", {}),
]
CALLS = [
    ("bash", {"command": "make"}),
    ("bash", {"command": "make\udc80"}),
    ("grep", {"pattern": "図"}),
    ("read_file", {"path": "notes.txt"}),
    ("read_file", {"path": "./notes.txt", "offset": 3}),
    ("todo_write", {"items": ["[ ] 次の仕事", "[x] done"]}),
    ("todo_write", {"items": []}),
    ("compact", {"focus": "names"}),
    ("task", {"description": "look", "prompt": "Look around."}),
    *WRONG_CALLS,
]
TEXTS = [(kind, text) for kind in ("text", *THINKING) for text in SAMPLES]
PART = st.sampled_from([*TEXTS, *[("call", call) for call in CALLS] * 6])
NO_KEY = api_error(401, "invalid x-api-key")
REPLY = st.one_of(
    st.tuples(
        st.lists(PART, min_size=1, max_size=4),
        st.sampled_from([None, None, None, None, "max_tokens", "refusal"]),
    ),
    st.sampled_from([([], None), TOO_LONG, NO_KEY, ([("call", CALLS[0])], None)]),
)
GOOD = [("thinking", "hm"), ("text", "<analysis>a</analysis><summary>短い</summary>")]
SUMMARY = st.sampled_from(
    [
        (GOOD, None),
        ([("text", f"<summary>{'long ' * 600}</summary>")], None),
        ([("text", "<summary>cut off</summary>")], "max_tokens"),
        ([*GOOD, ("call", CALLS[0])], None),
        ([], "refusal"),
        NO_KEY,
        TOO_LONG,
    ]
)
REPLIES = st.lists(REPLY, min_size=1, max_size=3)
TURN = st.tuples(TEXT, REPLIES, OUTPUTS, st.lists(SUMMARY, max_size=2))


class Model(StubClient):
    """Gives the scripted replies and summaries, then usual ones."""

    def __init__(self):
        super().__init__()
        self.replies, self.outputs, self.summaries = deque(), deque(), deque()
        self.ids, self.system = itertools.count(), []

    def take(self, request):
        self.requests.clear()
        self.queue, self.system = deque([self.scripted]), request["system"]
        return super().take(request)

    def scripted(self, request):
        queue = self.summaries if asks_for_summary(request) else self.replies
        usual = (GOOD if queue is self.summaries else [("text", "Done.")], None)
        given = queue.popleft() if queue else usual
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
    """A tool whose outputs, or errors, are scripted; after the last come all again."""
    output = agent.client.outputs[0]
    agent.client.outputs.rotate(-1)
    if isinstance(output, str):
        return output
    raise output("失敗 " * 40)


# --- What must hold ---


def assert_valid(messages, system, tools):
    """The API takes these messages, and what the person says next if need be."""
    sent = [{"role": m["role"], "content": m["content"]} for m in messages]
    if not sent or sent[-1]["role"] == "assistant":
        sent.append({"role": "user", "content": "Go on."})
    settings = {"model": "m", "max_tokens": 1, "system": system, "tools": tools}
    stub.check(settings | {"messages": sent})


def shape(messages):
    """Messages without what layer 1 changes in memory alone: results and thinking."""
    new = [{**m, "saved": None} for m in program.drop_thinking(deepcopy(messages))]
    for result in results(*new):
        del result["content"]
    return new


def assert_sound(agent):
    """What holds whenever the agent is not at work."""
    assert agent.client.refused == []
    assert_valid(agent.messages, agent.client.system, schemas(agent))
    if agent.transcript.is_file():
        assert shape(program.load(agent.transcript)) == shape(agent.messages)


# --- The steps ---


def turn(agent, typed, replies, outputs, summaries):
    """The person types, and the model does what is scripted."""
    queues = agent.client.replies, agent.client.outputs, agent.client.summaries
    for queue, script in zip(queues, (replies, outputs, summaries), strict=True):
        queue.clear()
        queue.extend(script)
    with suppress(program.AgentError, KeyboardInterrupt):
        program.take_turn(agent, typed)


def layer_1(agent, **only):
    """Layer 1 with these settings for once, and the prompt cache cold."""
    only |= {"clear_above": 0, "keep_tokens": 0}
    usual = {name: getattr(agent, name) for name in only}
    vars(agent).update(only, last_request=COLD)
    program.layer_1(agent)
    vars(agent).update(usual)


def automatic(agent):
    if program.should_compact(agent):
        program.auto_compact(agent)


def asked_for(agent):
    agent.focus = "names"
    program.manual_compact(agent)


def without_model(agent):
    if agent.messages and not agent.tries:  # as a second remedy it leaves less
        program.compact_without_model(agent, "auto_compact")


def reactive(agent):
    """Once between two replies; a second time it goes without the model, or fails."""
    if agent.messages and not agent.tries:
        with suppress(program.AgentError):
            program.reactive_compact(agent, program.PromptTooLong("too long"))


def resumed(agent):
    """The agent as another run of the program would take it up."""
    if agent.messages and agent.transcript.is_file():
        path, agent.messages, agent.failures, agent.tries = agent.transcript, [], 0, 0
        program.resume(agent, str(path))
        program.begin(agent)


LAYERS = {
    "tool_result_budget": partial(layer_1, keep_recent=99, max_messages=0),
    "snip_compact": partial(layer_1, keep_recent=99, max_messages=6),
    "micro_compact": partial(layer_1, keep_recent=1, max_messages=0),
    "/compact": partial(program.compact_history, name="compact"),
    "compact": asked_for,
    "without a model": without_model,
    "auto_compact": automatic,
    "reactive_compact": reactive,
    "resume": resumed,
}
STEP = st.one_of(TURN, TURN, st.sampled_from(sorted(LAYERS)))


def take(agent, step):
    """One step; a layer is run twice, and the second time changes nothing."""
    if not isinstance(step, str):
        return turn(agent, *step)
    old = agent.messages
    with suppress(program.AgentError):  # an outage while a summary is asked for
        LAYERS[step](agent)
    if (once := agent.messages) is not old:
        with suppress(program.AgentError):
            LAYERS[step](agent)
        assert agent.messages == once, f"{step} twice is not {step} once"


@LIVES
@given(
    st.lists(STEP, min_size=2, max_size=7),
    st.sampled_from([1_000, 3_000, 100_000]),
    st.sampled_from([0, 2]),
    st.sampled_from([0, 8]),
)
def test_every_step_leaves_a_sound_conversation(steps, room, keep_recent, max_messages):
    agent = program.Agent(client=Model(), approve=lambda *_: None, min_savings=300)
    agent.threshold = program.context_tokens(agent) + room
    agent.keep_recent, agent.max_messages = keep_recent, max_messages
    for step in steps:
        before = agent.messages, deepcopy(agent.messages)
        take(agent, step)
        assert before[0] == before[1], "messages were changed in place"
        assert_sound(agent)


# --- The layers that need no model, on histories that need not be of our making ---

SYSTEM, TOOLS = "Be brief.", [{"name": "bash", "input_schema": {"type": "object"}}]
EXCHANGE = st.tuples(st.lists(PART, min_size=1, max_size=4), OUTPUTS, TEXT)
CARRIED = {"words": ["前の話"], "files": ["notes.txt"], "todos": ["[ ] 次"]}
COMPACTED = {
    "role": "user",
    "content": [{"type": "text", "text": "[Conversation compressed.]"}],
    "carried": CARRIED,
}
BEGINNINGS = [COMPACTED, {"role": "user", "content": "始めよう"}]
FREE = {
    "tool_result_budget": lambda m: program.tool_result_budget(m, 3_000, saved_at),
    "snip_compact to 6": lambda m: program.snip_compact(m, 6, Path("t.jsonl")),
    "micro_compact": lambda m: program.micro_compact(m, saved_at, 2, 100, 200),
    "micro_compact of all": lambda m: program.micro_compact(m, saved_at, 0, 0, 0),
    "drop_thinking": lambda m: program.drop_thinking(m),
    "drop_thinking from 3 on": lambda m: program.drop_thinking(m, 3),
}


def saved_at(text):
    return Path(".task_outputs/tool-results/0123456789abcdef.txt")


def result_of(call, output):
    result = {"type": "tool_result", "tool_use_id": call["id"]}
    if isinstance(output, type) or (call["name"], call["input"]) in WRONG_CALLS:
        return result | {"content": "失敗 " * 40, "is_error": True}
    return result | {"content": output.strip() or "(no output)"}


def conversation(beginning, exchanges):
    """A history with signed thinking, of (parts of a reply, outputs, what is typed)."""
    messages, model = [deepcopy(beginning)], Model()
    for parts, outputs, typed in exchanges:
        blank = [("text", ""), ("text", " \n")]
        said = [model.block(*part) for part in parts if part not in blank]
        calls = [block for block in said if block["type"] == "tool_use"]
        results = map(result_of, calls, itertools.cycle(outputs))
        messages += [{"role": "assistant", "content": said}] if said else []
        messages += [{"role": "user", "content": list(results)}] if calls else []
        messages += [{"role": "user", "content": typed}] if typed.strip() else []
    return signed(json.loads(stub.encoded(messages, errors="replace")))


def signed(messages):
    """The messages, their thinking signed in place."""
    chain = stub.Chain({"system": SYSTEM, "tools": TOOLS})
    for message in messages:
        content = stub.blocks(message["content"])
        if message["role"] == "assistant":
            chain.extend(content)
        else:
            for block in content:
                chain.follow("user", block)
    return messages


@HISTORIES
@given(
    st.sampled_from(BEGINNINGS),
    st.lists(EXCHANGE, min_size=1, max_size=6),
    st.lists(st.sampled_from(sorted(FREE)), min_size=1, max_size=5),
)
def test_layers_without_a_model_settle_at_once(beginning, exchanges, layers):
    messages = conversation(beginning, exchanges)
    for name in layers:
        before, after = deepcopy(messages), FREE[name](messages)
        assert messages == before, "messages were changed in place"
        assert (after == before) == (after is messages), "it is a copy of the same"
        assert FREE[name](after) is after, "twice is not once"
        assert_valid(after, SYSTEM, TOOLS)
        assert program.remember(after) == program.remember(before)
        if "micro_compact" in name:
            new = len(messages) - program.unseen(messages)
            assert not new or after[-new:] == messages[-new:]
        messages = after


# --- A transcript that was damaged ---

CALLED = [("text", "a"), ("call", CALLS[0]), ("call", CALLS[3]), ("thinking", "hm")]
LINES = [
    json.dumps(message)
    for message in conversation(
        BEGINNINGS[1], [(CALLED, ["out"], "more"), (CALLED[1:], ["out"], "日本語")]
    )
]
LINES.insert(5, json.dumps({"event": "compact", "messages": [COMPACTED]}))
LINES.insert(6, json.dumps({"role": "user", "content": "And then?"}))
VALUES = [None, True, 5, -1.5, "", " ", "a", "\ud800", [], ["a"], [[]], {}, {"a": 5}]
VALUES += [float("nan"), float("inf"), {"type": "text", "text": "a"}, CARRIED]
KEYS = ["role", "content", "type", "id", "name", "input", "is_error", "text", "path"]
KEYS += ["tool_use_id", "carried", "event", "messages", "parts", "todos", "more"]
VALUE = st.one_of(
    st.sampled_from(VALUES), st.sampled_from([json.loads(line) for line in LINES])
)
NUMBER = st.integers(0, 99)
EDIT = st.one_of(
    st.tuples(st.sampled_from(["drop", "twice", "swap"]), NUMBER, NUMBER),
    st.tuples(st.just("cut"), NUMBER, st.integers(0, 300)),
    st.tuples(st.just("set"), NUMBER, NUMBER, st.sampled_from(KEYS), VALUE),
    st.tuples(st.just("replace"), NUMBER, NUMBER, VALUE),
    st.tuples(st.just("remove"), NUMBER, NUMBER),
)


def edited(lines, do, at, which, *value):
    """The lines after one of them was damaged."""
    at, lines = at % len(lines), [*lines]
    if do in ("drop", "twice"):
        lines[at : at + 1] = [lines[at]] * (2 * (do == "twice"))
    elif do == "swap":
        lines[at], lines[which % len(lines)] = lines[which % len(lines)], lines[at]
    elif do == "cut":
        lines[at] = lines[at][:which]
    else:
        with suppress(ValueError):  # it was cut before
            entry = json.loads(lines[at])
            damage(places(entry), do, which, *value)
            lines[at] = json.dumps(entry)
    return lines


def places(value):
    """Each (list or object, index or key) in a value, from the outside in."""
    if isinstance(value, (dict, list)):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from places(value[key])


def damage(found, do, which, *value):
    """Set a key, or replace or remove a value, at one of these places."""
    found = list(found)
    for inside, key in [found[which % len(found)]] if found else []:
        if do == "remove":
            del inside[key]
        elif do == "replace":
            inside[key] = deepcopy(value[0])
        elif isinstance(inside, dict):
            inside[value[0]] = deepcopy(value[1])


@settings(USUAL, max_examples=4_000 if LONG_TESTS else 600)
@given(st.lists(EDIT, min_size=1, max_size=3))
def test_what_a_damaged_transcript_gives_the_api_takes_or_one_line_says_where(edits):
    lines = LINES
    for edit in edits:
        lines = edited(lines, *edit) or [""]
    Path("damaged.jsonl").write_text("\n".join(lines))
    agent = program.Agent(client=StubClient(*[stub.reply("Fine.")] * 2))
    try:
        program.resume(agent, "damaged.jsonl")
    except program.AgentError as error:
        assert re.search(r"damaged in line \d+: |There is no conv", str(error))
        assert len(str(error)) < 300
        return
    assert program.take_turn(agent, "Go on") == "Fine." and not agent.client.refused
    assert program.load(agent.transcript) == agent.messages
    program.context_table(agent)
