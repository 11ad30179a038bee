"""What tests are made of: messages, what is in them, and what an agent does."""

import copy
import itertools
import json
import os
import re
from typing import NamedTuple

import pytest
import stub
from stub import api_error, reply

from agent import AgentError, drop_thinking, is_typed, load, take_turn

LONG_TESTS = os.environ.get("LONG_TESTS") == "1"  # all of what takes minutes

SMALL = {"threshold": 12_000, "context_window": 30_000, "max_output": 8_000}
LONG = "A long answer. " * 2_600  # brings the context over that threshold

READ = ("read_file", {"path": "notes.txt"})
WRITE = ("write_file", {"path": "made.txt", "content": "made"})
BASH = ("bash", {"command": "echo from bash"})
TASK = ("task", {"description": "look", "prompt": "Look at the notes."})
PLAN = ("todo_write", {"items": ["[x] begin", "[ ] go on"]})
SUMMARY = reply("<analysis>notes</analysis>\n<summary>All is well.</summary>")
NO_SUMMARY = reply("I would rather talk.")
TOO_LONG = api_error(400, "prompt is too long: 208310 tokens > 200000 maximum")
TOO_LARGE = api_error(413, "Request exceeds the maximum size")
NEEDED = {"todo_write", "load_skill", "read_file"}  # a compaction keeps these calls
THOUGHT = {"type": "thinking", "thinking": "", "signature": "s"}

numbers = itertools.count(1)


# --- Messages ---


def typed(text):
    """What the person typed."""
    return {"role": "user", "content": text}


def said(text, *thinking):
    """A reply of the model that calls no tool, after these blocks of thinking."""
    content = [*thinking, {"type": "text", "text": text}]
    return {"role": "assistant", "content": content}


def sized(tokens):
    """A text of so many tokens, by `tokens_in`: with the quotes of its JSON."""
    return "x" * (4 * tokens - 2)


def call(name, /, **given):
    """A call of a tool, as run_tool takes it; its id is its name."""
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": given}


def did(*texts, tool="bash", given=None, thinking=(), **more):
    """Two messages: calls of a tool, one for each text, and these as their results."""
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
    """A file was read, as two messages."""
    return did(text, tool="read_file", given={"path": path}, **more)


def planned(*items, **more):
    """A plan was written, as two messages."""
    return did("ok", tool="todo_write", given={"items": [*items]}, **more)


def loaded(name, **more):
    """A skill was loaded, as two messages."""
    return did("Its text.", tool="load_skill", given={"name": name}, **more)


def history(*parts):
    """A conversation that begins with what the person typed; the parts are messages."""
    parts = [part if isinstance(part, list) else [part] for part in parts]
    return [typed("Go."), *itertools.chain(*parts)]


# --- What is in messages ---


def results(*messages):
    """The tool results in these messages, in order."""
    content = [m["content"] for m in messages if isinstance(m["content"], list)]
    return [b for b in itertools.chain(*content) if b["type"] == "tool_result"]


def outputs(*messages):
    """What the tool results in these messages say, in order."""
    return [result["content"] for result in results(*messages)]


def texts(message):
    """The texts of a message, block by block."""
    return [block["text"] for block in stub.blocks(message["content"])]


def shape(messages):
    """Messages without what layer 1 changes in memory alone: results and thinking."""
    new = drop_thinking(copy.deepcopy(messages))
    for result in results(*new):
        del result["content"]
    return new


def roles(messages):
    """Who speaks, message by message."""
    return [message["role"] for message in messages]


def is_valid(messages):
    """Whether all calls are paired and the order is one that the API takes."""
    turns = stub.merge_turns(messages)
    return not [*stub.in_pairs(turns), *stub.in_order(turns, ["any"])]


class Left(NamedTuple):
    """What a compaction leaves, in this order."""

    words: list[str]  # of the person, the request in progress last
    summary: str  # the text of its message
    calls: list[tuple[str, str]]  # (what was asked for, what it returned)
    tail: list[dict]


def left(messages):
    """The parts of a history that begins with what a compaction left of it.

    Its words are the user's older messages and the request in progress.
    """
    heads = [str(message["content"])[:60] for message in messages]
    at = ["[Conversation compressed" in head for head in heads].index(True)
    after = [*itertools.dropwhile(is_typed, messages[at + 1 :])]
    request = messages[at + 1 : len(messages) - len(after)]
    replies = [stub.blocks(message["content"]) for message in after[:1]]
    calls = [b for reply in replies for b in reply if b.get("name") in NEEDED]
    tail = after[2 if calls else 0 :]
    asked = [next(iter(call["input"].values())) for call in calls]
    returned = outputs(*after[1:2]) if calls else []
    words = [message["content"] for message in messages[:at] + request]
    [summary] = texts(messages[at])
    return Left(words, summary, [*zip(asked, returned, strict=True)], tail)


# --- What an agent does ---


def turns(agent, *texts):
    """Its answers to what the person types, one after another."""
    return [take_turn(agent, text) for text in texts]


def prompt(agent):
    """Its system prompt, as it is sent."""
    return "\n\n".join(agent.system.values())


def schemas(agent):
    """What is sent of its tools."""
    return [tool.schema for tool in agent.tools.values()]


def shown(agent, *kinds):
    """The texts of its events of these kinds, of all if none is named."""
    return [text for kind, text in agent.events if kind in kinds or not kinds]


def layers(agent):
    """The names of the layers that acted, in order."""
    return re.findall(r"^\[(\w+)\]", "\n".join(shown(agent, "layer")), re.MULTILINE)


def asks_for_summary(request):
    """Whether a request asks for a summary."""
    return "these nine sections:" in str(request["messages"][-1]["content"])


def summaries(agent):
    """Its requests for a summary."""
    return [r for r in agent.client.requests if asks_for_summary(r)]


def lines_of(path):
    """The lines of a transcript, each parsed by itself."""
    *whole, rest = path.read_bytes().split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in whole]


def on_disk(agent):
    """Whether its transcript, loaded back, is its conversation."""
    return load(agent.transcript).messages == drop_thinking(agent.messages)


def any_answer(request):
    """An answer to any request: to the one for a summary, a summary."""
    return SUMMARY if asks_for_summary(request) else reply("Fine.")


def goes_on(agent):
    """Whether another turn is a valid request that gets its answer."""
    fake = getattr(agent.client, "stub", agent.client)  # of the real SDK, or itself
    assert not fake.queue
    fake.always = any_answer  # there may be a summary before it
    answer = take_turn(agent, "And now?")
    fake.always = None
    return answer == "Fine." and on_disk(agent)


def fails(agent, text):
    """The one clear line with which this turn ends."""
    with pytest.raises(AgentError) as error:
        take_turn(agent, text)
    return one_line(error)


def one_line(error):
    """The text of a caught error, which is one clear line."""
    assert re.fullmatch(r"\S(?!.*Traceback).{,498}", str(error.value))
    return str(error.value)


def turn_into(path, what):
    """Let a file be bytes, nothing, a folder or a pipe, or else a link to `what`."""
    path.unlink()
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "nothing":
        path.symlink_to(what)
