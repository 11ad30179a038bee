"""Building blocks for tests: messages, their parts, and the work of an agent."""

import copy
import functools
import itertools
import json
import os
import re
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import pytest
import stub
from stub import api_error, asks_for_summary, reply

from agent import (
    AgentError,
    commit,
    drop_thinking,
    is_typed,
    load,
    take_turn,
    tokens_in,
    user_texts,
)

LONG_TESTS = os.environ.get("LONG_TESTS") == "1"  # run the tests that take minutes

SMALL = {"threshold": 12_000, "context_window": 30_000, "max_output": 8_000}
LONG = "A long answer. " * 2_600  # over that threshold, as the API counts it

READ = ("read_file", {"path": "notes.txt"})
WRITE = ("write_file", {"path": "made.txt", "content": "made"})
BASH = ("bash", {"command": "echo from bash"})
TASK = ("task", {"description": "look", "prompt": "Look at the notes."})
PLAN = ("todo_write", {"items": ["[x] begin", "[ ] go on"]})
SUMMARY = reply("<analysis>notes</analysis>\n<summary>All is well.</summary>")
NO_SUMMARY = reply("I would rather talk.")
TOO_LONG = api_error(400, "prompt is too long: 208310 tokens > 200000 maximum")
TOO_LARGE = api_error(413, "Request exceeds the maximum size")
# What agent.py wrote at commit 9f758d3 while its API was a StubClient: a file that goes
# on from an earlier one, with placeholders, a preview, a refused call, two compactions
# with an index each, cut messages, a stopped turn, and at the end two calls that a crash
# left without results.
EARLIER = Path(__file__).with_name("earlier.jsonl").read_bytes()
# title, clear, invert, reverse: what a terminal must not get to see
HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end"
NEEDED = {"todo_write", "load_skill", "read_file"}  # a compaction keeps these calls
THOUGHT = {"type": "thinking", "thinking": "", "signature": "s"}

numbers = itertools.count(1)


# --- Messages ---


def typed(text):
    """A message that the user typed."""
    return {"role": "user", "content": text}


def said(text, *thinking):
    """A reply of the model without a call, after these thinking blocks."""
    content = [*thinking, {"type": "text", "text": text}]
    return {"role": "assistant", "content": content}


@functools.cache
def sized(tokens, letters="x"):
    """The longest text of so many tokens that repeats these letters.

    The program's own count decides, so a test holds for any estimate.
    """

    def text(length):
        return (letters * (length // len(letters) + 1))[:length]

    lengths = range(10 * tokens)  # in characters; none has that many per token
    return text(bisect_right(lengths, tokens, key=lambda n: tokens_in(text(n))) - 1)


def bash(command):
    """A reply that calls bash."""
    return reply(calls=[("bash", {"command": command})])


def call(name, /, **given):
    """A tool call for run_tool; its id is its name."""
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": given}


def did(*texts, tool="bash", given=None, thinking=(), **more):
    """Two messages: one call of a tool for each text, and these texts as results."""
    named = call(tool, **given or {})
    calls = [{**named, "id": f"toolu_did_{next(numbers)}"} for _ in texts]
    answers = [
        {"type": "tool_result", "tool_use_id": c["id"], "content": text, **more}
        for c, text in zip(calls, texts, strict=True)
    ]
    return [
        {"role": "assistant", "content": [*thinking, *calls]},
        {"role": "user", "content": answers},
    ]


def read(path, text="text", **more):
    """Two messages in which a file was read."""
    return did(text, tool="read_file", given={"path": path}, **more)


def planned(*items, **more):
    """Two messages in which a plan was written."""
    return did("ok", tool="todo_write", given={"items": [*items]}, **more)


def loaded(name, **more):
    """Two messages in which a skill was loaded."""
    return did("Its text.", tool="load_skill", given={"name": name}, **more)


def put_on_disk(agent, *messages):
    """Commit messages one by one, as the program does."""
    for message in messages:
        commit(agent, message)


def history(*parts):
    """A conversation that begins with a typed message; the parts are messages."""
    parts = [part if isinstance(part, list) else [part] for part in parts]
    return [typed("Go."), *itertools.chain(*parts)]


# --- Parts of messages ---


def results(*messages):
    """The tool results in these messages, in order."""
    content = [m["content"] for m in messages if isinstance(m["content"], list)]
    return [b for b in itertools.chain(*content) if b["type"] == "tool_result"]


def outputs(*messages):
    """The contents of the tool results in these messages, in order."""
    return [result["content"] for result in results(*messages)]


def texts(message):
    """The texts of a message, block by block."""
    return [block["text"] for block in stub.blocks(message["content"])]


def shape(messages):
    """The messages without results and thinking, which layer 1 may clear."""
    new = drop_thinking(copy.deepcopy(messages))
    for result in results(*new):
        del result["content"]
    return new


def roles(messages):
    """The role of each message."""
    return [message["role"] for message in messages]


def is_valid(messages):
    """Return True if all calls have results, in an order that the API accepts."""
    turns = stub.merge_turns(messages)
    return not [*stub.in_pairs(turns), *stub.in_order(turns, ["any"])]


class Left(NamedTuple):
    """The parts that a compaction leaves, in this order."""

    words: list[str]  # all that the user typed, in the tail as well
    summary: str  # the text of its message
    calls: list[tuple[str, str]]  # (the input, the result)
    tail: list[dict]  # what follows the calls or, without them, the request


def left(messages):
    """The parts of a history that begins with what a compaction left of it."""
    heads = [str(message["content"])[:60] for message in messages]
    at = ["[Conversation compressed" in head for head in heads].index(True)
    after = [*itertools.dropwhile(is_typed, messages[at + 1 :])]
    called = [m for m in messages[:at] if not is_typed(m)]  # before the request
    made = {b.get("name") for reply in after[:1] for b in stub.blocks(reply["content"])}
    end = 2 if made & {*NEEDED} and after[0]["role"] == "assistant" else 0
    called, tail = [*after[:end], *called], after[end:]
    calls = [b for m in called for b in m["content"] if b.get("name") in NEEDED]
    inputs = [next(iter(call["input"].values())) for call in calls]
    summary, *_ = texts(messages[at])
    words = user_texts(messages[:at] + messages[at + 1 :])
    return Left(words, summary, [*zip(inputs, outputs(*called), strict=True)], tail)


# --- What an agent does ---


def turns(agent, *texts):
    """Run a turn for each typed message, and return the answers."""
    return [take_turn(agent, text) for text in texts]


def prompt(agent):
    """The system prompt of an agent, as it is sent."""
    return "\n\n".join(agent.system.values())


def schemas(agent):
    """The schemas of an agent's tools, as they are sent."""
    return [tool.schema for tool in agent.tools.values()]


def shown(agent, *kinds):
    """The texts of an agent's events, of these kinds only if any are given."""
    return [text for kind, text in agent.events if kind in kinds or not kinds]


def layers(agent):
    """The names of the layers that acted, in order."""
    return re.findall(r"^\[(\w+)\]", "\n".join(shown(agent, "layer")), re.MULTILINE)


def begins_with(request, earlier):
    """Return True if a request begins with an earlier one, cache markers aside."""
    new, old = map(flat, (request, earlier))
    return new[: len(old)] == old


def flat(request):
    """System prompt, tools, and each block of the messages with its role."""
    messages = [(m["role"], b) for m in request["messages"] for b in m["content"]]
    parts = [request.get("thinking"), *request["system"], *request["tools"], *messages]
    return [json.loads(stub.unmarked(stub.encoded(part))) for part in parts]


def summaries(agent):
    """The requests for a summary that an agent sent."""
    return [r for r in agent.client.requests if asks_for_summary(r)]


def lines_of(path):
    """The lines of a transcript, each parsed by itself."""
    *whole, rest = path.read_bytes().split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in whole]


def earlier_transcript():
    """Put EARLIER where the program wrote it; return its path."""
    path = Path(
        re.search(rb"\.transcripts/transcript_[\w-]+\.jsonl", EARLIER)[0].decode()
    )
    path.parent.mkdir()
    path.write_bytes(EARLIER)
    return path


def on_disk(agent):
    """Return True if loading an agent's transcript gives its conversation."""
    return load(agent.transcript).messages == drop_thinking(agent.messages)


def any_answer(request):
    """Answer any request, with a summary if it asks for one."""
    return SUMMARY if asks_for_summary(request) else reply("Fine.")


def goes_on(agent):
    """Return True if another turn sends a valid request and gets its answer."""
    fake = getattr(
        agent.client, "stub", agent.client
    )  # behind the real SDK, or the client itself
    assert not fake.queue
    fake.always = any_answer  # there may be a summary before it
    answer = take_turn(agent, "And now?")
    fake.always = None
    return answer == "Fine." and on_disk(agent)


def fails(agent, text):
    """Run a turn that must fail, and return its one-line error."""
    with pytest.raises(AgentError) as error:
        take_turn(agent, text)
    return one_line(error)


def one_line(error):
    """Return the text of a caught error, which must be one line."""
    assert re.fullmatch(r"\S(?!.*Traceback).{,498}", str(error.value))
    return str(error.value)


def create_files(*paths):
    """Create a file at each of these paths."""
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("hidden\n")


def turn_into(path, what):
    """Replace a file with bytes, nothing, a folder, a pipe, or a link to `what`."""
    path.unlink()
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "nothing":
        path.symlink_to(what)
