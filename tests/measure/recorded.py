"""Read recorded conversations, count their tokens, and find what each reply needed.

Our transcripts and Claude Code's sessions both have one JSON object per line; its keys
tell them apart. Thinking is left out, and an image becomes "[image]". Only Claude
Code's lines have times.
"""

import json
import lzma
import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

SHAPES = Path(__file__).with_name("shapes")  # of recorded sessions, see shapes.py
PER_MESSAGE, PER_BLOCK = 3, 2  # tokens of the JSON around them

# ---- reading: our transcripts and Claude Code's sessions ----

OUR_NAMES = {
    "read": "read_file",
    "edit": "edit_file",
    "multiedit": "edit_file",
    "write": "write_file",
    "bash": "bash",
    "glob": "glob",
    "grep": "grep",
    "task": "task",
    "agent": "task",
    "todowrite": "todo_write",
    "load_skill": "skill",  # renamed: a replay does not have the skill's file
}
NOT_SAID = ("isSidechain", "isMeta", "isCompactSummary", "isApiErrorMessage")


class Unusable(Exception):
    """A file or setting is unusable; the text is one line for the user."""


def read_messages(path: Path) -> list[dict]:
    """Read the conversation in a file: typed messages, replies and their results.

    If the lines have times, a reply has the "time" of its request, in seconds.
    """
    recorded: list[dict] = []
    for line in content_of(path).split(b"\n"):
        try:
            entry = json.loads(line)
            found = [parts_of(message) for message in messages_in(entry, recorded)]
            recorded += [message | {"time": time_of(entry)} for message in found]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # a damaged line, or one from another program
    messages = in_order(whole_replies(recorded))
    if not any(m["role"] == "assistant" for m in messages):
        raise Unusable(f"{path}: neither a transcript nor a session of Claude Code")
    return messages


def content_of(path: Path) -> bytes:
    """Read a file; decompress it if its name ends in .xz."""
    try:
        data = path.read_bytes()
        return lzma.decompress(data) if path.suffix == ".xz" else data
    except lzma.LZMAError as error:
        raise Unusable(f"{path}: {error}") from None


def messages_in(entry: dict, before: list) -> list[dict]:
    """Return the messages in a line; those of a compaction only if it comes first."""
    if "event" in entry:
        return [] if before else entry["messages"]
    if type(entry.get("message")) is dict:
        said = not any(entry.get(key) for key in NOT_SAID)
        entry = entry["message"] if said else {}
    return [entry] if entry.get("role") in ("user", "assistant") else []


def time_of(entry: dict) -> float | None:
    """Return when a line was written, in seconds, or None."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        stamp = entry["timestamp"].rstrip("Z") + "+00:00"  # Python 3.10 knows no Z
        return datetime.fromisoformat(stamp).timestamp()
    return None


def parts_of(message: dict) -> dict:
    """Convert a message: its content becomes a list of blocks in our form."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if type(content) is str else content
    kept = [part_of(p) for p in parts if "thinking" not in p["type"]]
    return {"role": message["role"], "id": message.get("id"), "content": kept}


def part_of(part: dict) -> dict:
    """Convert a block: our tools' names; results and images as text."""
    if part["type"] == "tool_use":
        given = {"path" if k == "file_path" else k: v for k, v in part["input"].items()}
        if type(given.get("todos")) is list:
            marks = (
                (" x"[t.get("status") == "completed"], t) for t in given.pop("todos")
            )
            given["items"] = [f"[{mark}] {todo.get('content')}" for mark, todo in marks]
        name = OUR_NAMES.get(part["name"].lower(), part["name"])
        return {"type": "tool_use", "id": str(part["id"]), "name": name, "input": given}
    if part["type"] == "tool_result":
        text = text_in(part.get("content") or "") or "(no output)"
        failed = {"is_error": True} if part.get("is_error") else {}
        return result_of(str(part["tool_use_id"]), text) | failed
    return {"type": "text", "text": text_in([part])}


def result_of(call: str, text: str) -> dict:
    """Return a tool_result block."""
    return {"type": "tool_result", "tool_use_id": call, "content": text}


def text_in(content: Any) -> str:
    """Return the text in some content, with a name for any other block."""
    if type(content) is str:
        return content
    named = (p["text"] if p["type"] == "text" else f"[{p['type']}]" for p in content)
    return "\n".join(named)


def whole_replies(recorded: list[dict]) -> list[dict]:
    """Join each reply that was recorded in several lines.

    Its request was sent when the line before it was written.
    """
    messages: list[dict] = []
    reply = None
    for message in recorded:
        again = reply and message["id"] and message["id"] == reply["id"]
        if message["role"] == "user":
            messages.append(message)
        elif reply and (again or reply is messages[-1]):
            reply["content"] += message["content"]
            reply["id"] = message["id"]
        else:
            reply = message
            reply["time"] = messages[-1]["time"] if messages else None
            messages.append(reply)
    return messages


def in_order(recorded: list[dict]) -> list[dict]:
    """Put messages in the API's order: typed ones alone, each call with its result."""
    found = {p["tool_use_id"]: p for p in parts(recorded, "tool_result")}
    messages: list[dict] = []
    for message in recorded:
        said = "\n\n".join(p["text"] for p in parts([message], "text"))
        if message["role"] == "user" and said.strip():
            messages.append({"role": "user", "content": said})
        elif message["role"] == "assistant" and messages:
            messages += answered(message, found)
    return messages


def parts(messages: list[dict], type: str) -> Iterator[dict]:
    """Yield all blocks of a type."""
    return (p for m in messages for p in m["content"] if p["type"] == type)


def answered(reply: dict, found: dict[str, dict]) -> list[dict]:
    """Return a reply and the message with its results, or nothing if it is empty."""
    said = reply["content"]
    content = [p for p in said if p["type"] == "tool_use" or p["text"].strip()]
    time = {} if reply["time"] is None else {"time": reply["time"]}
    reply = {"role": "assistant", "content": content} | time
    calls = [part["id"] for part in parts([reply], "tool_use")]
    cut_off = "(no result was recorded)"
    missing = {c: result_of(c, cut_off) | {"is_error": True} for c in calls}
    results = [found.get(call) or missing[call] for call in calls]
    both = [reply, {"role": "user", "content": results}]
    return [m for m in both if m["content"]]


# ---- messages that can be priced and searched ----


class Block(NamedTuple):
    """A block of a message: its searchable text, and its tokens."""

    type: str
    text: str
    tokens: float
    name: str = ""  # the tool's; "summary" if the text replaces other messages
    path: str = ""  # the file that a call names
    whole: str = ""  # the text of a result before any policy changed it


class Message(NamedTuple):
    """A message: its blocks, and their tokens."""

    role: str
    blocks: tuple[Block, ...]
    tokens: float


def tokens(text: str) -> float:
    """Estimate tokens: 1 for 3.1 ASCII characters, 1.05 for any other character."""
    if text.isascii():
        return len(text) / 3.1
    ascii_only = len(text.encode("ascii", "ignore"))
    return ascii_only / 3.1 + 1.05 * (len(text) - ascii_only)


def text_block(type: str, text: str, *about: str) -> Block:
    """Return a block with this text; `about` is its name, path and whole text."""
    return Block(type, text, PER_BLOCK + tokens(text), *about)


def message(role: str, blocks: Iterable[Block]) -> Message:
    """Return a message with these blocks."""
    blocks = tuple(blocks)
    return Message(role, blocks, PER_MESSAGE + sum(b.tokens for b in blocks))


def note(text: str, role: str = "user") -> Message:
    """Return a message that a policy adds."""
    return message(role, [text_block("text", text)])


class Measured:
    """Measures messages; remembers their calls, so that results get names."""

    def __init__(self) -> None:
        self.calls: dict[str, Block] = {}
        self.known: dict[tuple[int, ...], tuple[Any, Message]] = {}

    def history(self, messages: list[dict]) -> list[Message]:
        """Measure the messages; those of the last request are already measured.

        Each request has new lists of the same blocks, so a message is known by those.
        """
        known, keys = {}, []
        for sent in messages:
            content = sent["content"]
            parts = content if type(content) is list else [content]
            keys.append(key := tuple(map(id, parts)))
            known[key] = self.known.get(key) or (content, self.message(sent))
        self.known = known
        return [known[key][1] for key in keys]

    def message(self, sent: dict) -> Message:
        """Measure a message that is sent."""
        if type(sent["content"]) is str:
            return note(sent["content"], sent["role"])
        return message(sent["role"], map(self.block, sent["content"]))

    def block(self, part: dict) -> Block:
        """Measure a block of such a message."""
        if part["type"] == "text":
            return text_block("text", part["text"])
        if part["type"] == "tool_result":
            call, text = self.calls[part["tool_use_id"]], text_in(part["content"])
            return text_block("tool_result", text, call.name, call.path, text)
        given = json.dumps(part["input"], ensure_ascii=False)
        about = part["name"], str(part["input"].get("path", ""))
        priced = text_block("tool_use", part["name"] + given, *about)
        call = priced._replace(text="\n".join(strings(part["input"])))
        self.calls[part["id"]] = call
        return call


# ---- which lines and names each reply needed ----

OLD_TEXTS = {"old_text", "old_string", "old_str", "oldText"}
NAME = re.compile(r"[\w./-]{8,}")
TELLING = re.compile(r"[\d_/]|\w\.\w|[a-z][A-Z]")


def strings(value: Any) -> Iterator[str]:
    """Yield all texts in the input of a call."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def quoted(value: Any) -> Iterator[str]:
    """Yield the lines that an edit must quote, if they are long and distinctive."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            if key not in OLD_TEXTS:
                yield from quoted(inner)
            else:
                lines = map(str.strip, str(inner).split("\n"))
                long = (line for line in lines if len(line) >= 24)
                yield from (n for n in long if len({*re.findall(r"\w+", n)}) >= 3)


def names(text: str) -> Iterator[str]:
    """Yield names and paths in a text that cannot be ordinary words."""
    found = (name.strip("./-") for name in NAME.findall(text))
    return (name for name in found if len(name) >= 8 and TELLING.search(name))


class Session:
    """A recorded conversation, and the lines and names that each reply needed.

    `times` has the time of each message, in seconds: for a reply, when its request was
    sent; for any other message, when the last request before it was sent.
    """

    def __init__(self, messages: list[dict], name: str = "") -> None:
        self.messages, self.name = messages, name
        asked = [m["time"] for m in messages if "time" in m]
        self.timed, start = bool(asked), min(asked, default=0.0)
        self.times = [*accumulate((m.get("time", start) for m in messages), max)]
        self.measured = [*map(Measured().message, messages)]
        self.blocks = [(i, b) for i, m in enumerate(self.measured) for b in m.blocks]
        self.texts = {block.text for _, block in self.blocks}
        self.whole = "\n".join(block.text for _, block in self.blocks)
        sizes = (len(block.text) + 1 for _, block in self.blocks)
        self.starts = [*accumulate(sizes, initial=0)]  # where each begins in the whole
        self.places: dict[str, list[tuple[int, Block]]] = {}
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        self.needs = {i: self.needed(i, messages[i]) for i in replies}

    def needed(self, at: int, reply: dict) -> tuple[list[str], list[str]]:
        """Return the lines and names that a reply needed and could have seen."""
        given = [part["input"] for part in parts([reply], "tool_use")]
        said = [*strings(given)] or [p["text"] for p in parts([reply], "text")]
        lines, known = {*quoted(given)}, {n for text in said for n in names(text)}
        anywhere = ("text", "tool_use", "tool_result")
        return (
            sorted(line for line in lines if self.seen(line, at, anywhere)),
            sorted(name for name in known if self.seen(name, at, anywhere[2:])),
        )

    def seen(self, needle: str, at: int, types: tuple[str, ...]) -> bool:
        """Return whether blocks of these types had it before a message."""
        if needle not in self.places:
            self.places[needle] = [*self.having(needle)]
        return any(i < at and b.type in types for i, b in self.places[needle])

    def having(self, needle: str) -> Iterator[tuple[int, Block]]:
        """Yield the blocks with this part of a line, and the indexes of their messages.

        Searching all texts at once is twice as fast as one by one.
        """
        at = self.whole.find(needle)
        while at >= 0:
            number = bisect(self.starts, at) - 1
            yield self.blocks[number]
            at = self.whole.find(needle, self.starts[number + 1])

    def shown(self, needle: str, start: int, end: int) -> bool:
        """Return whether a message from `start` to before `end` had a needed text."""
        return any(start <= i < end for i, _ in self.places[needle])
