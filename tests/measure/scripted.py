"""A scripted job, and a model that does it with the tools of any program.

The job goes through files in two halves, and the user types a prompt with a rule before
each. The model finds out from a request's tools which of them reads, edits and runs. It
repeats a step if the next request doesn't show its result, because a program may forget
it too early; if that doesn't help, the run has failed.
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from stub import (
    BLOCKS,
    TOOL_KEYS,
    Refused,
    StubClient,
    TooLong,
    blocks,
    check,
    count,
    encoded,
    reply,
)

MAX_OUTPUT = 32_000
NEWEST = 8  # files whose names are looked for
SUMMARY_NAMES = 700  # in a careful summary, about 4,000 tokens
MOST_REPEATS = 3  # of a step, whose results a program may forget too early
MOST_REQUESTS = 4  # for each step, before a program is taken for one that never ends

# --- The job ---

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
NAME = re.compile(r"[a-z]+_[a-z]+_\d{3}")
RULES = "never touch the folder vendor/", "keep the number in every name"
PROMPTS = (
    f"A rule for all of this: {RULES[0]}. Go through the first half of the files one "
    "by one, and rename what has to be renamed. Say so when you are done.",
    f"One more rule: {RULES[1]}. Now go through the other half in the same way.",
)
ANSWERS = "The first half is done.", "All of it is done."


class Step(NamedTuple):
    """A step of the work, and its result, which the next request must show."""

    kind: str  # "read", "run", "edit", or "say"
    what: str  # a file, a command, or an answer
    expected: tuple[str, ...] = ()  # in its result; the name that an edit changes
    names: tuple[str, ...] = ()  # that it shows first


@dataclass
class Job:
    """Files with random names in them, and the steps that go through them."""

    files: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def word(self) -> str:
        return "".join(self.rng.choices(SYLLABLES, k=self.rng.randint(2, 4)))

    def words(self, number: int) -> str:
        return " ".join(self.word() for _ in range(number))

    def function(self, name: str) -> str:
        does = f"{self.word()} = {self.word()}({self.rng.randint(1, 99)})"
        told = f'"""{self.words(9)}."""'
        return f"def {name}({self.word()}):\n    {told}\n    {does}\n    return 0\n\n"

    def entry(self, name: str) -> str:
        return f"INFO {name} took {self.rng.randint(100, 999)} ms: {self.words(6)}\n"

    def write(self, path: str, size: int, part: Callable) -> tuple[str, ...]:
        """Make a file of at least `size` characters; return the names in it."""
        parts, names = [], []
        while sum(map(len, parts)) < size:
            number = self.rng.randint(100, 999)
            names.append(f"{self.word()}_{self.word()}_{number}")
            parts.append(part(names[-1]))
        self.files[path] = "".join(parts)
        return (*names,)

    def add(self, *step: Any) -> None:
        self.steps.append(Step(*step))


def reading(files: int = 70, size: int = 12_000) -> Job:
    """Read modules; run a command after every fifth, and edit every seventh."""
    job = Job()
    for number in range(files):
        path = f"mod_{number:02}.py"
        names = job.write(path, size, job.function)
        job.add("read", path, names, names)
        if number % 5 == 4:
            command = f"head -c {size // 2} {path}; echo end-$((70{number:02} + 1))"
            job.add("run", command, (f"end-{7000 + number + 1}",))
        if number % 7 == 6:
            job.add("edit", path, names[3:4])
        if number == files // 2 - 1:
            job.add("say", ANSWERS[0])
    job.add("say", ANSWERS[1])
    return job


def outputs(files: int = 60, size: int = 8_000) -> Job:
    """Print logs, each fourth one five times as long; edit a module after each sixth."""
    job = Job()
    for number in range(files):
        path = f"run_{number:02}.log"
        names = job.write(path, size * (5 if number % 4 == 3 else 1), job.entry)
        job.add("run", f"cat {path}", names[:1], names)
        if number % 6 == 5:
            path = f"mod_{number:02}.py"
            names = job.write(path, size // 2, job.function)
            job.add("read", path, names)
            job.add("edit", path, names[3:4])
        if number == files // 2 - 1:
            job.add("say", ANSWERS[0])
    job.add("say", ANSWERS[1])
    return job


JOBS = {"reading": reading, "outputs": outputs}


def is_edited(step: Step, folder: Path) -> bool:
    return f"def {step.expected[0]}_x(" in (folder / step.what).read_text()


# --- The tools of a program ---

READS, RUNS = "read|view|open|cat", "bash|shell|run|exec|command"
EDITS = "edit|replace|change"
PATH, COMMAND = "(absolute_?|file_?)?(path|name)|file", "command|cmd|script"
OLD, NEW, MANY = "old.*|search|find", "new.*|replace(ment)?", "edits|changes"


class Tool(NamedTuple):
    """A tool, and the names of those of its inputs that were looked for."""

    name: str
    schema: dict
    keys: list[str]

    def call(self, *values: Any) -> tuple[str, dict]:
        """A call with these values; other inputs that it needs get any value."""
        given = dict(zip(self.keys, values))
        plain = {"string": "work", "integer": 1, "number": 1, "boolean": False}
        for key in self.schema.get("required", []):
            kind = self.schema["properties"].get(key, {}).get("type")
            given.setdefault(key, plain.get(kind, []))
        return self.name, given


def keys_like(schema: dict, *patterns: str) -> list[str]:
    """The inputs that match these patterns, or fewer if one isn't there."""
    keys = schema.get("properties", {})
    tests = [re.compile(pattern, re.IGNORECASE).fullmatch for pattern in patterns]
    return [key for test in tests for key in [*filter(test, keys)][:1]]


def find_tool(tools: list[dict], names: str, *inputs: str) -> Tool | None:
    """Find a tool by parts of its name, and by its inputs."""
    for tool in tools:
        schema = tool.get("input_schema") or {}
        keys = keys_like(schema, *inputs)
        if re.search(names, tool["name"], re.IGNORECASE) and len(keys) == len(inputs):
            return Tool(tool["name"], schema, keys)
    return None


def call_for(step: Step, tools: list[dict], folder: Path) -> tuple[str, dict] | None:
    """The call that does this step with one of these tools, if one can."""
    path = str(folder / step.what)
    if step.kind == "read":
        reads = find_tool(tools, READS, PATH)
        return reads and reads.call(path)
    if step.kind == "run":
        runs = find_tool(tools, RUNS, COMMAND)
        return runs and runs.call(step.what)
    texts = [f"def {name}(" for name in (step.expected[0], step.expected[0] + "_x")]
    if edits := find_tool(tools, EDITS, PATH, OLD, NEW):
        return edits.call(path, *texts)
    if edits := find_tool(tools, EDITS, PATH, MANY):
        item = edits.schema["properties"][edits.keys[1]].get("items", {})
        return edits.call(path, [dict(zip(keys_like(item, OLD, NEW), texts))])
    return None


# --- The model ---

NOTHING = "The work goes on."
SUMMARY = re.compile("summar", re.IGNORECASE)


def asks_for_summary(request: dict, text: str, works: bool) -> bool:
    """Tell a request for a summary from one for work, or for a title."""
    end = blocks(request["messages"][-1]["content"])[-1].get("text", "")
    if works:  # one that begins with a summary is for work
        return bool(SUMMARY.search(end)) and NOTHING not in end
    return bool(SUMMARY.search(text) and NAME.search(text))


def known(request: dict) -> dict:
    """Leave out the settings, keys and blocks that the stand-in doesn't know."""
    tools = [tool for tool in request.get("tools") or [] if "input_schema" in tool]
    return {
        "model": request["model"],
        "max_tokens": request["max_tokens"],
        "system": [*map(known_block, blocks(request.get("system")))],
        "tools": [{k: tool[k] for k in tool if k in TOOL_KEYS} for tool in tools],
        "messages": [
            {"role": m["role"], "content": [*map(known_block, blocks(m["content"]))]}
            for m in request["messages"]
        ],
    }


def known_block(block: dict) -> dict:
    if block.get("type") not in BLOCKS:
        return {"type": "text", "text": f"({block.get('type')})"}
    required, optional, _ = BLOCKS[block["type"]]
    keys = {"type", "cache_control", *required, *optional}
    kept = {key: block[key] for key in block if key in keys}
    if isinstance(block.get("content"), list):
        kept["content"] = [*map(known_block, block["content"])]
    return kept


class Worker(StubClient):
    """Does the job, whatever it sees, and notes what each request shows."""

    def __init__(self, job: Job, folder: Path, window: int, careful: bool) -> None:
        super().__init__(window=window, max_output=MAX_OUTPUT)
        for path, text in job.files.items():
            (folder / path).write_text(text)
        self.steps, self.folder, self.careful = [*job.steps], folder, careful
        self.at = 0  # the next step
        self.over = threading.Event()  # the last answer of a turn was given
        self.failed = ""
        self.asked_at = 0.0  # when the last request came
        self.sizes: list[int] = []
        self.used: list[dict] = []
        self.shares: list[float] = []  # of the newest names, in each request of the job
        self.typed: list[list[bool]] = [[] for _ in RULES]  # is the rule in sight?
        self.rejected = self.summary_count = self.side = self.fixed = 0
        self.again: list[Step] = []
        self.problems: set[str] = set()
        self.elsewhere: set[str] = set()  # other addresses that were asked for
        self.one_by_one = threading.Lock()

    def answer(self, request: dict) -> dict:
        """Answer a request as the API would, but accept what we don't know."""
        with self.one_by_one:
            self.asked_at = time.monotonic()
            system, tools = request.get("system"), request.get("tools")
            self.sizes.append(size := count(system, tools, request["messages"]))
            if len(self.sizes) > MOST_REQUESTS * len(self.steps):
                self.fail(f"it sent {len(self.sizes)} requests and isn't done")
            if size > self.window:
                self.rejected += 1
                most = f"{size} tokens > {self.window} maximum"
                raise TooLong(f"prompt is too long: {most}")
            try:
                check(known(request), self.window)
            except Refused as error:
                self.problems.add(str(error))
            message = self.finish(request, self.next_reply(request))
            message["id"] = f"msg_{len(self.sizes):04}"  # some join those of one id
            self.used.append(message["usage"])
            return message

    def fail(self, why: str) -> NoReturn:
        self.failed = self.failed or why
        raise Refused(f"The run is over: {self.failed}")

    def next_reply(self, request: dict) -> dict:
        system, tools = request.get("system"), request.get("tools") or []
        text = encoded([system, request["messages"]]).decode()
        works = all(call_for(step, tools, self.folder) for step in KINDS)
        if asks_for_summary(request, text, works):
            self.summary_count += 1
            return reply(self.summary(text))
        if not works:  # a title, or a question beside the work
            self.side += 1
            return reply('{"title": "The work"}')
        self.fixed = self.fixed or count(system, tools, [])
        return self.work(text, tools, request["messages"][-1])

    def summary(self, text: str) -> str:
        """A summary that says nothing, or that repeats the rules and names in sight."""
        kept = [NOTHING]
        if self.careful:
            seen = {*NAME.findall(text)}
            kept += [rule for rule in RULES if rule in text]
            names = [n for step in reversed(self.shown()) for n in step.names]
            kept += [name for name in names if name in seen][:SUMMARY_NAMES]
        return f"<summary>\n{' '.join(kept)}\n</summary>"

    def shown(self) -> list[Step]:
        """The steps so far that showed names for the first time."""
        return [step for step in self.steps[: self.at] if step.names]

    def work(self, text: str, tools: list[dict], last: dict) -> dict:
        """Do the next step, or the last one again if its result isn't there."""
        before = self.steps[self.at - 1] if self.at else Step("say", "")
        waits = self.at == len(self.steps) or RULES[1] not in text
        if self.at and before.kind == "say" and waits:
            return reply(before.what)
        self.look(text)
        if not self.is_done(before, text):
            self.repeat(before, last)
        step = self.steps[self.at]
        self.at += 1
        if step.kind == "say":
            self.over.set()
            return reply(step.what)
        return reply(f"Step {self.at}.", [call_for(step, tools, self.folder)])

    def repeat(self, step: Step, last: dict) -> None:
        """Go back to this step, which had no result, unless that was to no avail."""
        if self.again.count(step) == MOST_REPEATS:
            shown = json.dumps(last, ensure_ascii=False)[-300:]
            self.fail(f"no result of {step.kind} {step.what}, but {shown}")
        self.again.append(step)
        self.at -= 1
        if step.kind == "edit":  # it may have to be read first
            self.steps.insert(self.at, Step("read", step.what))

    def is_done(self, step: Step, text: str) -> bool:
        if step.kind == "edit":
            return is_edited(step, self.folder)
        return all(name in text for name in step.expected)

    def look(self, text: str) -> None:
        """Note what this request shows."""
        seen = {*NAME.findall(text)}
        names = [name for step in self.shown()[-NEWEST:] for name in step.names]
        if names:
            self.shares.append(sum(n in seen for n in names) / len(names))
        halfway = self.steps.index(Step("say", ANSWERS[0]))
        for rule, typed in zip(RULES, self.typed[: 1 + (self.at > halfway)]):
            typed.append(rule in text)


KINDS = [Step(kind, "x", ("x",)) for kind in ("read", "run", "edit")]
