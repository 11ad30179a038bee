"""Recorded conversations: read, measured in tokens, and asked what each reply needed.

Our transcripts and Claude Code's sessions have one JSON object a line, and are told
apart by what stands in it. Thinking is left out, and an image becomes "[image]".
Claude Code's lines have times.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

PER_MESSAGE, PER_BLOCK = 3, 2  # tokens of their frames

# ---- reading: our transcripts and Claude Code's sessions, one JSON object a line ----

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
    "load_skill": "skill",  # there are none where the recording is replayed
}
NOT_SAID = ("isSidechain", "isMeta", "isCompactSummary", "isApiErrorMessage")


class Unusable(Exception):
    """A file or a setting that cannot be used; the text is one line for the person."""


def read_messages(path: Path) -> list[dict]:
    """The conversation in a file: typed texts, replies, and the results of each.

    A reply has the "time" of its request, in seconds, where the lines have times.
    """
    recorded: list[dict] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
            found = [parts_of(message) for message in messages_in(entry, recorded)]
            recorded += [message | {"time": time_of(entry)} for message in found]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # a damaged line, or one of another program's
    messages = in_order(whole_replies(recorded))
    if not any(m["role"] == "assistant" for m in messages):
        raise Unusable(f"{path}: neither a transcript nor a session of Claude Code")
    return messages


def messages_in(entry: dict, before: list) -> list[dict]:
    """The messages in a line; a compaction's own count only at a file's beginning."""
    if "event" in entry:
        return [] if before else entry["messages"]
    if type(entry.get("message")) is dict:
        said = not any(entry.get(key) for key in NOT_SAID)
        entry = entry["message"] if said else {}
    return [entry] if entry.get("role") in ("user", "assistant") else []


def time_of(entry: dict) -> float | None:
    """When a line was written, in seconds, if it says so."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        stamp = entry["timestamp"].rstrip("Z") + "+00:00"  # Python 3.10 knows no Z
        return datetime.fromisoformat(stamp).timestamp()
    return None


def parts_of(message: dict) -> dict:
    """A message whose content is a list of texts, calls and results, in our terms."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if type(content) is str else content
    kept = [part_of(p) for p in parts if "thinking" not in p["type"]]
    return {"role": message["role"], "id": message.get("id"), "content": kept}


def part_of(part: dict) -> dict:
    """A block in our terms: our tools' names, results and images as text."""
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
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": call, "content": text}


def text_in(content: Any) -> str:
    """The text of some content; what is no text is named."""
    if type(content) is str:
        return content
    named = (p["text"] if p["type"] == "text" else f"[{p['type']}]" for p in content)
    return "\n".join(named)


def whole_replies(recorded: list[dict]) -> list[dict]:
    """The messages with each reply in one piece, which may stand in several lines.

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
    """Messages as the API has them: every call answered, what was typed on its own."""
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
    """All blocks of a type."""
    return (p for m in messages for p in m["content"] if p["type"] == type)


def answered(reply: dict, found: dict[str, dict]) -> list[dict]:
    """A reply, and the message with its results; nothing if it is empty."""
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


# ---- messages as they are priced and searched ----


class Block(NamedTuple):
    """A block of a message: what can be searched in it, and what it counts for."""

    type: str
    text: str
    tokens: float
    name: str = ""  # of the tool; "summary" where the text stands for other messages
    path: str = ""  # the file that a call names
    whole: str = ""  # what a result was before any rule changed it


class Message(NamedTuple):
    """A message as it is priced and searched."""

    role: str
    blocks: tuple[Block, ...]
    tokens: float


def tokens(text: str) -> float:
    """One token for 3.1 ASCII characters, 1.05 for each other one."""
    if text.isascii():
        return len(text) / 3.1
    ascii_only = len(text.encode("ascii", "ignore"))
    return ascii_only / 3.1 + 1.05 * (len(text) - ascii_only)


def text_block(type: str, text: str, *about: str) -> Block:
    """A block that counts for its text; `about`: its name, path and whole text."""
    return Block(type, text, PER_BLOCK + tokens(text), *about)


def message(role: str, blocks: Iterable[Block]) -> Message:
    """A message of these blocks."""
    blocks = tuple(blocks)
    return Message(role, blocks, PER_MESSAGE + sum(b.tokens for b in blocks))


def note(text: str, role: str = "user") -> Message:
    """A message that a rule puts in."""
    return message(role, [text_block("text", text)])


class Measured:
    """Turns messages into what is priced and searched; knows the calls it has seen."""

    def __init__(self) -> None:
        self.calls: dict[str, Block] = {}

    def message(self, sent: dict) -> Message:
        """A message as it is sent."""
        if type(sent["content"]) is str:
            return note(sent["content"], sent["role"])
        return message(sent["role"], map(self.block, sent["content"]))

    def block(self, part: dict) -> Block:
        """A block of a message as it is sent."""
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


# ---- what the recorded agent needed, and where it had stood ----

OLD_TEXTS = {"old_text", "old_string", "old_str", "oldText"}
NAME = re.compile(r"[\w./-]{8,}")
TELLING = re.compile(r"[\d_/]|\w\.\w|[a-z][A-Z]")


def strings(value: Any) -> Iterator[str]:
    """All texts within an input."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def quoted(value: Any) -> Iterator[str]:
    """The lines that an edit must quote, and that are long and telling enough."""
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
    """The names and paths in a text that are long enough to be told from words."""
    found = (name.strip("./-") for name in NAME.findall(text))
    return (name for name in found if len(name) >= 8 and TELLING.search(name))


class Session:
    """A recorded conversation, and for each reply the lines and names it needed.

    `times`: for each message the seconds at which the request before it was sent, its
    own if it is a reply; all the same where no reply has a time.
    """

    def __init__(self, messages: list[dict], name: str = "") -> None:
        self.messages, self.name = messages, name
        asked = [m["time"] for m in messages if "time" in m]
        self.timed, start = bool(asked), min(asked, default=0.0)
        self.times = [*accumulate((m.get("time", start) for m in messages), max)]
        self.measured = [*map(Measured().message, messages)]
        self.blocks = [(i, b) for i, m in enumerate(self.measured) for b in m.blocks]
        self.texts = {block.text for _, block in self.blocks}
        self.stood: dict[str, list[tuple[int, Block]]] = {}
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        self.needs = {i: self.needed(i, messages[i]) for i in replies}

    def needed(self, at: int, reply: dict) -> tuple[list[str], list[str]]:
        """The lines and the names that a reply needed and could have seen."""
        given = [part["input"] for part in parts([reply], "tool_use")]
        said = [*strings(given)] or [p["text"] for p in parts([reply], "text")]
        lines, known = {*quoted(given)}, {n for text in said for n in names(text)}
        anywhere = ("text", "tool_use", "tool_result")
        return (
            sorted(line for line in lines if self.seen(line, at, anywhere)),
            sorted(name for name in known if self.seen(name, at, anywhere[2:])),
        )

    def seen(self, needle: str, at: int, types: tuple[str, ...]) -> bool:
        """Whether blocks of these types had shown it before a message."""
        if needle not in self.stood:
            found = [(i, b) for i, b in self.blocks if needle in b.text]
            self.stood[needle] = found
        return any(i < at and b.type in types for i, b in self.stood[needle])
