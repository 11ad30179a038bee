"""Run an agent we know nothing about, with a scripted model and a scripted user.

    run = played(Path("agent.py"), WORK)    a `Play` of plays.py; returns a `Run`

The file is started as Python starts it. It has to call `input()` for each prompt, make
its client with `anthropic.Anthropic()`, and offer the tools `bash` and `read_file` with
one input each; `compact` is optional. Whatever it asks before it runs a tool is
answered with y. Its functions and classes can have any names.

Each life of an agent is a process of its own in a new folder, so nothing has to be put
back afterwards, and the agent may do to its process what it likes.
"""

import atexit
import builtins
import datetime
import io
import itertools
import json
import os
import re
import runpy
import select
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import stage  # noqa: F401  adds the folder of sdk and stub to sys.path

# isort: split
import sdk
import stub
from stub import reply

GRACE = 2  # seconds that a process gets to end by itself, once its time is up
TESTS = Path(__file__).resolve().parents[1]
ADDED = 2_000  # characters; a text with more around a prompt is a conversation
RETRIES = 2  # that the SDK makes by itself
MOST_REFUSED = 5  # rejected requests; after that, the user types no more
SAME_AGAIN = 50  # refused requests in a row, or the same questions; more never stop
PAUSE = 0.002  # seconds; an agent that waits between requests waits no longer here
LARGEST = 20_000_000  # bytes of a file that is looked into
MODELS = {"MODEL_ID": "none", "ANTHROPIC_MODEL": "none"}
SCREENS = (
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "ANTHROPIC_AUTH_TOKEN",
)  # an agent must do without
NEVER_ENDS = "It never ends: a bare `except:` swallows Ctrl-D and Ctrl-C."
READS_STDIN = "It reads `sys.stdin`. Use `input()` for prompts and answers."
UNSUPPORTED = "It uses `{}`, which isn't supported here."
SAME_WORDS = "taken for a prompt, because it has the same words"
TURN_IS_OVER = "It sent another request, although the model had called no tool."
ASKS_AGAIN = "It asks again and again: {}."
NO_TOOL = "Its request doesn't offer the tool `{}`, but {}."
NEVER_LEARNS = "It sent {} requests in a row that were rejected. The last: {}"
KILLED = "It killed its own process with {}."
EXITED = "It ended its process without a word (`os._exit`)."
BY_CTRL_C = "Ctrl-C ended the program."
TOO_SLOW = "It did not finish within {} seconds."
TOOLS = "bash", "read_file", "compact"
# A reminder to call the tool `compact` doesn't ask for a summary.
ASKS_AT_END = (
    r"(?i)summar|compress|(?<!call )(?<!use )(?<!use the )compact|总结|摘要|压缩|要約"
)
REMINDER = r"\s*<[\w-]*(reminder|status|context|env|info)"  # it asks for nothing
LONG_ENOUGH = "prompt is too long"


class Play(NamedTuple):
    """What happens to an agent: what the user types, what the model and the API do."""

    what: str  # in words
    script: Callable[[], Iterable[Any]]  # writes its files; the model's replies
    typed: Sequence[str] = ("Go.", "Go on.")
    answer: str = "y"  # to the first question; "Ctrl-C" presses that instead
    presses: bool = False  # the model's command presses Ctrl-C
    summaries: Callable[[], Iterable[Any]] = partial(itertools.repeat, "It went well.")
    window: int = 200_000  # tokens
    enough: Callable[["Run"], bool] | None = None  # the user then goes away
    options: Sequence[str] = ()  # on the agent's command line
    before: "Play | None" = None  # the life before this one, in the same folder
    more: bool = True  # the model answers "Done." after its script
    seconds: float = 10  # time limit; on an idle computer, most take less than one


class Exchange(NamedTuple):
    """A request, what it was for, and what came back."""

    request: dict[str, Any]
    purpose: str  # "work", "summary", or "aside"
    text: str  # of the reply, without tags
    typed: int  # how many prompts the user had typed by then
    content: Sequence[dict] = ()  # the blocks of the reply
    error: str = ""  # why there was none
    is_refused: bool = False  # the request was wrong; otherwise the API had failed
    usage: Sequence[int] = ()  # its tokens: new, written to the cache, read from it
    paused: float = 0  # seconds that the program slept before it

    @property
    def asks(self):
        """Whether it asked for a summary."""
        return self.purpose == "summary"


@dataclass(eq=False)
class Run:
    """What could be seen of an agent's life."""

    what: str = ""  # the play, in words
    path: str = ""  # of the agent
    options: Sequence[str] = ()  # that it was started with
    exchanges: list[Exchange] = field(default_factory=list)  # of all requests
    typed: list[str] = field(default_factory=list)  # by the user
    prompts: list[str] = field(default_factory=list)  # that the user couldn't type
    replies: int = 0  # that the model couldn't give
    ended: str = ""  # why the program stopped, "" if it ended by itself
    lines: list[str] = field(default_factory=lambda: [""])  # what it printed
    calling: str = ""  # the tool that the model waits for
    broke_off: str = ""  # the first tool that it waited for at the next prompt
    worked: int = 0  # the replies until then
    last_question: str = ""  # about a tool, and our answer
    pressed: bool = False  # Ctrl-C
    marked: bool = False  # a request asked for the prompt cache
    compact: str = "compact"  # the tool's name
    retries: int = RETRIES
    elsewhere: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # their texts, by path

    # --- Requests ---

    @cached_property
    def accepted(self):
        """The exchanges about the conversation whose request the API accepted."""
        return [e for e in self.exchanges if not e.error and e.purpose != "aside"]

    @cached_property
    def work(self):
        """The accepted requests for work, which are those that ask for no summary."""
        return [e for e in self.accepted if not e.asks]

    @cached_property
    def refused(self):
        """The API's reasons for rejecting requests, in order."""
        return [e.error for e in self.exchanges if e.is_refused]

    @cached_property
    def rejected(self):
        """The first request that was rejected, after the last accepted one before it."""
        first = next((n for n, e in enumerate(self.exchanges) if e.is_refused), 0)
        before = [e for e in self.exchanges[:first] if e in self.accepted]
        return (before[-1], self.exchanges[first]) if before else None

    @property
    def is_too_long(self):
        return any(error.startswith(LONG_ENOUGH) for error in self.refused)

    @property
    def problem(self):
        """What stopped the work, an error of the API or of the program; or ""."""
        if self.is_too_long:
            return LONG_ENOUGH
        return self.ended or "".join(self.refused[:1])

    @property
    def is_accepted(self):
        """Whether the last request was accepted."""
        return bool(self.exchanges) and not self.exchanges[-1].error

    def in_turn(self, number):
        """The accepted requests after this many prompts."""
        return [e for e in self.accepted if e.typed == number]

    @cached_property
    def compactions(self):
        """The requests for each summary between those for work: (before, asks, after)."""
        found, before, asks = [], None, []
        for exchange in self.accepted:
            if exchange.asks:
                asks.append(exchange)
                continue
            found += [(before, asks, exchange)] if before and asks else []
            before, asks = exchange, []
        return found

    # --- Calls, results, texts and files ---

    @cached_property
    def results(self):
        """The text of each result as it first came, by the id of its call."""
        first = {}
        for exchange in self.accepted:
            for call, text in results_of(exchange).items():
                first.setdefault(call, text)
        return first

    @cached_property
    def since_clearing(self):
        """The requests for work since an old result was first cleared in one."""
        starts = (n for n, e in enumerate(self.work) if cleared(e, self.results))
        return self.work[next(starts, len(self.work)) :]

    @cached_property
    def calls(self):
        """The input of each call, by its id."""
        blocks = itertools.chain(*(blocks_of(e) for e in self.accepted))
        return {b["id"]: b["input"] for b in blocks if b["type"] == "tool_use"}

    def files_with(self, *lines):
        """The files that hold these lines: (path, as text rather than within JSON)."""
        wanted = ("\n".join(lines), "\\n".join(lines))
        for path, text in self.files.items():
            if any(words in text for words in wanted):
                yield Path(path), wanted[0] in text


def blocks_of(exchange):
    """The blocks of a request's messages."""
    for message in exchange.request["messages"]:
        yield from stub.blocks(message["content"])


def results_of(exchange):
    """The texts of the results in a request: {id of the call: text}."""
    found = [b for b in blocks_of(exchange) if b["type"] == "tool_result"]
    return {result["tool_use_id"]: text_of(result) for result in found}


def cleared(exchange, first):
    """The results of a request that are a placeholder now: {id: text}."""
    now = results_of(exchange)
    return {call: now[call] for call in now if len(now[call]) < len(first[call]) / 2}


def text_of(block):
    """The text of a block or a result."""
    inner = stub.blocks(block.get("content"))
    return block.get("text") or "".join(part.get("text", "") for part in inner)


def texts_of(exchange):
    """The texts of a request in order: messages, and results of calls."""
    return [text_of(block) for block in blocks_of(exchange)]


def holds(exchange, words):
    """Check if a text of a request has these words."""
    return any(words in text for text in texts_of(exchange))


# --- The API, the model and the user, for one life of an agent ---


class NotAnAgent(Exception):
    """The reason why an agent can't be played any further."""


class InputEnded(BaseException):
    """The end of a program that ignores EOFError and keeps asking for prompts."""


class Player(stub.StubClient):
    """The stand-in for the API, the user at the prompt, and a record of the life."""

    def __init__(self, play, names=()):
        always = reply("Done.") if play.more else None
        limits = {"window": play.window, "in_parts": False}
        super().__init__(*play.script(), always=always, **limits)
        self.play, self.exchanges, self.marked = play, [], False
        self.folder, self.again = Path.cwd(), Counter()
        self.closed = socket.socket()  # a port of this machine where nobody listens
        self.closed.bind(("127.0.0.1", 0))
        summaries = (reply(s) if isinstance(s, str) else s for s in play.summaries())
        self.summaries, self.purposes = summaries, Purposes()
        self.purpose, self.said, self.slept = "work", "", 0
        self.prompts, self.typed, self.approval = [*play.typed], [], play.answer
        self.calling = self.broke_off = ""
        self.worked = self.ends = self.in_a_row = 0
        self.first_question, self.last_question = None, ""
        self.pressed, self.retries = False, RETRIES
        self.elsewhere, self.headers, self.not_played = {}, {}, set()
        own = dict(zip(TOOLS, TOOLS)) | dict(zip(TOOLS, names))
        self.compact = own["compact"]
        for call in calls_in(given for given in self.queue if isinstance(given, dict)):
            call["name"] = own[call["name"]]
        self.models = SimpleNamespace(retrieve=self.retrieve)

    def give_up(self, why):
        """End the life, because nothing more can be learned from it."""
        raise NotAnAgent(why)

    def record(self, ended="", printed=""):
        """What could be seen of this life, as plain JSON."""
        names = {one.name for one in fields(Run)} & vars(self).keys()
        seen = {name: getattr(self, name) for name in names}
        messages, exchanges = {}, []
        for exchange in self.exchanges:
            request, parts = {**exchange.request}, exchange.request["messages"]
            texts = [json.dumps(part, default=repr, skipkeys=True) for part in parts]
            request["messages"] = [messages.setdefault(t, len(messages)) for t in texts]
            exchanges.append(exchange._replace(request=request))
        elsewhere = {str(path): size for path, size in self.elsewhere.items()}
        more = {"elsewhere": elsewhere, "messages": [*messages], "exchanges": exchanges}
        more |= {"ended": ended, "lines": printed.strip().split("\n")}
        return {**seen, **more, "what": self.play.what, "replies": len(self.queue)}

    # --- The user ---

    def type_next(self, question="", *_):
        """Return the next prompt, or the answer to a question about a tool."""
        question = str(question)
        if self.first_question is None:
            self.first_question = question
        is_prompt = question and question == self.first_question
        if self.pressed or (
            self.play.presses and self.folder.joinpath("pressed").exists()
        ):
            self.calling, self.pressed = "", True  # what it asks now is the next prompt
        if self.calling:
            how = SAME_WORDS if is_prompt else f"answered with {self.approval}"
            self.last_question = f'"{textwrap.shorten(question[:500], 80)}" was {how}'
        if self.calling and not is_prompt:
            return self.answer_question()
        if self.calling and not self.broke_off:
            self.broke_off, self.worked = self.calling, len(self.accepted)
        if self.prompts:
            self.typed.append(self.prompts.pop(0))
            return self.typed[-1]
        self.ends += 1
        if self.ends > 2_000:
            self.give_up(NEVER_ENDS)
        raise EOFError if self.ends < 1_000 else InputEnded

    def answer_question(self):
        """Approve the tool call, press Ctrl-C, or say anything else, and then no."""
        self.again[self.last_question] += 1
        if self.again[self.last_question] == SAME_AGAIN:
            self.give_up(ASKS_AGAIN.format(self.last_question))
        answer, self.approval = self.approval, "y" if self.approval == "y" else "n"
        if answer == "Ctrl-C":
            self.calling, self.pressed = "", True
            signal.raise_signal(signal.SIGINT)  # which the program may handle itself
            return "n"
        return answer

    # --- The client ---

    def with_options(self, default_headers=(), max_retries=None, **_):
        self.headers |= dict(default_headers or ())
        if isinstance(max_retries, int):
            self.retries = max_retries
        return self

    @property
    def beta(self):
        return self.unsupported("client.beta")

    def unsupported(self, name, *_, **__):
        self.give_up(UNSUPPORTED.format(name))

    def count_tokens(self, **request):
        return super().count_tokens(**as_json(request))

    def retrieve(self, model, **_):
        """Describe the model as the API does, even if a gateway accepts less."""
        return stub.as_object(self.model_info(model) | {"max_input_tokens": 200_000})

    # --- The model ---

    @property
    def accepted(self):
        return Run(exchanges=self.exchanges).accepted

    def answer(self, request):
        """Answer a request, which may hold blocks of replies as objects."""
        waiting, self.calling = self.calling, ""
        headers = self.headers | dict(request.get("extra_headers") or {})
        request = as_json({**request, "extra_headers": headers})
        self.purpose = "work"
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            self.prepare(request)  # if it can't be read, it is refused below
        try:
            message = super().answer(request)
        except stub.EmptyQueue:
            return self.give_up(TURN_IS_OVER)
        except Exception as error:
            self.note_error(error)
            raise
        # it does without what couldn't be played
        self.exchanges = [e for e in self.exchanges if e.error not in self.not_played]
        content, purpose = message["content"], self.purpose
        if purpose == "work":
            self.said = "".join(block.get("text", "") for block in content)
        calls = [call["name"] for call in calls_in([message])]
        self.calling = "".join(calls[:1]) if purpose == "work" else waiting
        self.note(self.said, content=content, usage=self.usages[-1])
        self.purposes.note(purpose, request, self.typed, message, self.said)
        self.in_a_row = 0
        if self.play.enough and self.play.enough(Run(exchanges=self.exchanges)):
            self.queue.clear()
            self.prompts.clear()
        return message

    def note(self, text, **more):
        """Add the newest request to the record."""
        known = self.purpose, text, len(self.typed)
        self.marked = self.marked or "cache_control" in str(self.bodies[-1])
        more["paused"], self.slept = self.slept, 0
        self.exchanges.append(Exchange(self.requests[-1], *known, **more))

    def note_error(self, error):
        """Add a request that failed, and give up if the program never learns from it."""
        is_refused = isinstance(error, stub.Refused | TypeError | ValueError)
        if isinstance(error, stub.Unplayed):
            self.not_played.add(str(error))
        self.note("", error=str(error), is_refused=is_refused)
        if self.purpose != "work":
            self.queue.popleft()
        self.in_a_row += is_refused
        if self.in_a_row == SAME_AGAIN:
            self.give_up(NEVER_LEARNS.format(SAME_AGAIN, error))
        if (
            len(self.play.typed) > 2
            and sum(e.is_refused for e in self.exchanges) > MOST_REFUSED
        ):
            self.prompts.clear()

    def prepare(self, request):
        """Put a summary at the head of the queue, or fit the next reply's calls."""
        self.purpose = self.purposes.of(request, self.typed)
        if self.purpose != "work":
            given = (
                next(self.summaries) if self.purpose == "summary" else reply("A title.")
            )
            self.said = "".join(block.get("text", "") for block in given["content"])
            self.queue.appendleft(as_asked(given, request))
            return
        for _ in range(self.retries):
            if self.queue and isinstance(self.queue[0], Exception):
                self.queue.popleft()  # the SDK tries again
        if self.queue and isinstance(self.queue[0], dict):
            self.fit_next(request.get("tools") or [])

    def fit_next(self, tools):
        """Make the next reply call only tools that are offered, by their own input."""
        offered = {tool.get("name"): tool.get("input_schema") or {} for tool in tools}
        while self.queue and (wrong := [*self.missing(offered)]):
            if wrong != [self.compact]:
                names = ", ".join(map(str, offered))
                self.give_up(NO_TOOL.format(wrong[0], names))
            self.queue.popleft()
        for call in calls_in([*self.queue][:1]):
            call["input"] = fitted(call["input"], offered[call["name"]])

    def missing(self, offered):
        """The tools that the next reply calls but the request doesn't offer."""
        names = [call["name"] for call in calls_in([*self.queue][:1])]
        return (name for name in names if name not in offered)


def failure(name, text, **more):
    """An error of the SDK."""
    error = sdk.ERRORS[name](text)
    known = {"message": text, "body": None, "request": None, "request_id": None}
    if more:
        known["response"] = SimpleNamespace(headers={}, **more)
    vars(error).update(known, **more)
    return error


class Purposes:
    """What each request of a program is for: the user's work, a summary, or an aside.

    It's for the work if the user's side ends with results, or with a new prompt. Words of
    the program's own at its end are a question, which asks for a summary, unless they came
    with the work before, numbers aside. Nobody can work without tools; without a word of
    the conversation, there is nothing to summarise.
    """

    def __init__(self):
        self.known, self.questions = set(), set()  # texts that came with either
        self.said, self.summaries = [], []  # words of the model's replies and calls
        self.after_summary, self.system = False, None
        self.typed = self.works = 0  # prompts and requests for work that were answered

    def of(self, request, typed):
        """Tell what a request is for."""
        last = stub.blocks(request["messages"][-1]["content"])
        texts = [block["text"] for block in last if block["type"] == "text"]
        sent, end = str(request["messages"]), "".join(texts[-1:])
        if not request.get("tools"):
            known = [*self.said, *self.summaries, *typed[: self.typed]]
            told = any(words in sent for words in known)
            return "summary" if told else "aside"
        if self.system is None:  # it's the first request for work, or after a resume
            is_new = any(repr(prompt)[1:-1] in sent for prompt in typed) or not typed
            asks = len(request["messages"]) > 1 and (
                self.asks(end, typed) or not is_new
            )
            return "summary" if asks else "work"
        chosen = (request.get("tool_choice") or {}).get("type")
        if chosen == "none" or self.asks_in_system(request):
            return "summary"
        results = any(block["type"] == "tool_result" for block in last)
        if self.after_summary and not results:  # which may be in this one
            return "summary" if self.bare(end, typed) in self.questions else "work"
        if self.asks(end, typed) and not (results and self.works < 2):
            return "summary"
        reminds = self.bare(end, typed) in self.known or re.match(REMINDER, end)
        is_new = any(self.is_new(text, typed) for text in texts)
        works = results or reminds or is_new
        return "work" if works else "summary"

    def bare(self, text, typed):
        """A text without numbers and prompts."""
        for prompt in typed:
            text = text.replace(prompt, "")
        return re.sub(r"[-\d.,:%]+", "", text).strip()

    def asks(self, end, typed):
        """Check if a text asks for a summary, rather than holds one or reminds."""
        bare = self.bare(end, typed)
        if not bare or bare in self.questions:
            return bool(bare)
        holds = any(text in end for text in self.summaries)
        reminds = bare in self.known or re.match(REMINDER, end)
        return bool(re.search(ASKS_AT_END, bare)) and not (holds or reminds)

    def asks_in_system(self, request):
        """Check if the system prompt now asks for a summary, rather than holds one."""
        system = str(request.get("system"))
        if any(text in system for text in self.summaries):
            return False
        return bool(re.search(ASKS_AT_END, system)) > bool(
            re.search(ASKS_AT_END, self.system)
        )

    def is_new(self, text, typed):
        """Check if a text holds the newest prompt, rather than the conversation."""
        is_short = len(text) < sum(map(len, typed[-1:])) + ADDED
        told = not is_short and any(
            words in text for words in [*typed[:-1], *self.said]
        )
        return len(typed) > self.typed and typed[-1] in text and not told

    def note(self, purpose, request, typed, reply, text):
        """Remember a request that was answered."""
        texts = [b.get("text", "") for b in last_turn(request["messages"])]
        if purpose == "work":
            self.known |= {self.bare(text, typed) for text in texts}
            self.typed, self.after_summary = len(typed), False
            self.works += 1
            self.system = self.system or str(request.get("system"))
            inputs = [[*call["input"].values()] for call in calls_in([reply])]
            self.said += [str(given[0])[:12] for given in inputs if given]
            self.said += [text] * bool(text)
        if purpose == "summary":
            self.questions |= {
                self.bare(text, typed) for text in texts[-1:]
            } - self.known
            self.after_summary = True
            self.summaries += [text] * bool(text)


def last_turn(messages):
    """The blocks of the user's side since the last reply."""
    last = itertools.takewhile(lambda m: m["role"] != "assistant", reversed(messages))
    return [*itertools.chain(*(stub.blocks(m["content"]) for m in [*last][::-1]))]


def calls_in(replies):
    """The calls of these replies."""
    for block in itertools.chain(*(given["content"] for given in replies)):
        if block["type"] == "tool_use":
            yield block


def as_asked(given, request):
    """A summary in the form that is asked for: in each tag, or under each key."""
    end = "".join(text_of(block) for block in last_turn(request["messages"])[-1:])
    asked = f"{end[:1_000]} {end[-1_000:]} {request.get('system')}"
    keys = re.findall(r'"(\w+)":', asked) if "JSON" in asked else []
    tags = re.findall(r"<([a-z][\w-]*)>", asked)
    is_whole, content = (
        given["stop_reason"] == "end_turn",
        stub.copied(given["content"]),
    )
    for block in content:
        if block["type"] == "text" and keys and is_whole:
            block["text"] = json.dumps(dict.fromkeys(keys, block["text"]))
        elif block["type"] == "text" and tags:
            parts = [f"<{tag}>{block['text']}" for tag in dict.fromkeys(tags)]
            ends = [f"</{tag}>" * is_whole for tag in dict.fromkeys(tags)]
            block["text"] = "\n".join(map("".join, zip(parts, ends)))
    return {**given, "content": content}


def as_json(value):
    """A request as JSON: like the SDK, accept the blocks of a reply as objects."""
    if isinstance(value, str):  # as most values are
        return value
    if isinstance(value, dict):
        given = {key: value[key] for key in value if value[key] is not sdk.NOT_GIVEN}
        return {key: as_json(given[key]) for key in given}
    if isinstance(value, list | tuple):
        return [*map(as_json, value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def fitted(given, schema):
    """A call's single input, under the name that the agent's tool has for it."""
    names = [*schema.get("properties", {})]
    if len(given) != 1 or not names or given.keys() & {*names}:
        return given
    [value], wanted = given.values(), schema.get("required") or names
    return {wanted[0]: value}


# --- A process for each life, which nothing else needs ---


class CannotPlay(Exception):
    """The reason why this machine can't run an agent at all."""


def played(path, play, options=(), names=()):
    """Play this on an agent and return the Run, whatever becomes of its process.

    The options are for its command line; the names are those of its tools.
    """
    try:
        # a command of a life that was interrupted may still be writing
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    except OSError as error:
        raise CannotPlay(f"No folder can be made for it: {error}") from error
    with folder as where:
        for one in [play.before, play] if play.before else [play]:
            run = live(path, one, where, [*options, *one.options], names)
        return run


def live(path, play, folder, options, names):
    """Live in a process of its own."""
    reading, writing = os.pipe()
    # Python would drop a Ctrl-C that comes while it forks
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if not (child := os.fork()):
            in_the_process(writing, path, play, folder, options, names)
    except OSError as error:
        raise CannotPlay(f"No process can be started for it: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.close(writing)
    said, status = [], None
    try:
        status = read_all(reading, child, time.monotonic() + play.seconds + GRACE, said)
    finally:
        for kill in os.killpg, os.kill:  # what it started, and itself
            with suppress(OSError):  # it has ended
                kill(child, signal.SIGKILL)
        if status is None:
            _, status = os.waitpid(child, 0)
        os.close(reading)
    said = b"".join(said)
    if not said.endswith(b"\n"):
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        how = KILLED.format(signal.Signals(number).name) if number else EXITED
        return Run(play.what, ended=how, typed=[*play.typed])
    if isinstance(record := json.loads(said), str):
        raise RuntimeError(record)
    return run_of({**record, "path": str(path), "options": options}, Path(folder))


def read_all(pipe, child, until, said):
    """Add what a process sends to a list, to its end; returns how it ended, if it has."""
    while time.monotonic() < until:
        # a process that it left behind may keep the pipe open, so look before reading
        ended, status = os.waitpid(child, os.WNOHANG)
        while select.select([pipe], [], [], 0 if ended else 0.05)[0]:
            said.append(os.read(pipe, 1 << 20))
            if not said[-1] or said[-1].endswith(b"\n"):
                return status if ended else None
        if ended:
            return status
    return None


def run_of(record, folder):
    """Turn a record into a Run, with the files in this folder."""
    messages = [*map(json.loads, record.pop("messages"))]
    exchanges = [Exchange(*one) for one in record.pop("exchanges")]
    for exchange in exchanges:
        numbers = exchange.request["messages"]
        exchange.request["messages"] = [messages[number] for number in numbers]
    run = Run(exchanges=exchanges, **record)
    run.files |= saved_in(folder, run.elsewhere)
    return run


def saved_in(folder, elsewhere):
    """The texts of all files in a folder, and what was added to those elsewhere."""
    files = dict.fromkeys(folder.rglob("*"), 0)
    files |= {Path(name): before for name, before in elsewhere.items()}
    for file, before in files.items():
        with suppress(OSError):
            if file.is_file() and file.stat().st_size < LARGEST:
                data = file.read_bytes()
                data = data[before if len(data) > before else 0 :]
                name = file.relative_to(folder) if folder in file.parents else file
                yield str(name), data.decode(errors="replace")


# --- In this process ---

END = os._exit


def in_the_process(writing, path, play, folder, options, names):
    """Run an agent to its end, and send the record of its life."""
    printed = Printed()
    try:
        os.setsid()
        os.chdir(folder)
        for number in range(3):  # what its commands read and print
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        stub.tool_ids = stub.ids()
        player = Player(play, names)
        finish = partial(send, writing, player, printed, os.getpid())
        player.give_up = finish
        set_up(path, player, finish, [str(path), *options])
        with redirect_stdout(printed), redirect_stderr(printed):
            finish(why_ended(path))
    except BaseException:  # noqa: BLE001  a fault of ours, which the parent raises
        os.write(writing, json.dumps(traceback.format_exc()).encode() + b"\n")
        END(1)


def send(writing, player, printed, process, ended=""):
    """Send the record to the parent, and end this process."""
    if os.getpid() == process:  # not a process that the agent has forked
        signal.setitimer(signal.ITIMER_REAL, 0)
        record = player.record(ended, printed.getvalue())
        with open(writing, "wb") as pipe:
            pipe.write(json.dumps(record, default=repr, skipkeys=True).encode() + b"\n")
    END(0)


def set_up(path, player, finish, argv):
    """Give a program its client, prompts, settings and folder, and a time limit."""
    temporary = Path("tmp").absolute()
    temporary.mkdir(exist_ok=True)
    os.environ |= MODELS | os.environ | {"ANTHROPIC_API_KEY": "none"}
    os.environ |= {"HOME": os.getcwd(), "TMPDIR": str(temporary)}
    # a client of its own reaches nobody
    os.environ["ANTHROPIC_BASE_URL"] = (
        f"http://127.0.0.1:{player.closed.getsockname()[1]}"
    )
    for name in os.environ.keys() & {*SCREENS}:
        del os.environ[name]
    tempfile.tempdir = None  # see TMPDIR
    sys.modules |= sdk.package(player, partial(player.unsupported, "AsyncAnthropic"))
    sys.modules["dotenv"] = sdk.module("dotenv", load_dotenv=lambda *_, **__: False)
    builtins.input = player.type_next
    set_clock(player)
    os._exit = lambda *_: finish("" if player.ends else EXITED)
    sys.stdin, sys.argv = NoStdin(player.give_up), argv
    sys.path.insert(0, str(Path(path).parent))
    sys.addaudithook(partial(note, Path.cwd(), player.elsewhere))
    for name in namesakes(Path(path).parent):
        del sys.modules[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGALRM, lambda *_: finish(too_slow(player)))
    signal.setitimer(signal.ITIMER_REAL, player.play.seconds)


def too_slow(player):
    asked = f" It asked: {player.last_question}." * bool(player.last_question)
    return TOO_SLOW.format(player.play.seconds) + asked


def why_ended(path):
    """Run a program; return what ended it, or "" if it came to its own end."""
    atexit._clear()  # what is registered there isn't its own
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        print(error.code if isinstance(error.code, str) else "")  # as Python does
    except (EOFError, InputEnded, stub.Refused):
        pass  # the record has a refusal, even if the program goes on
    except KeyboardInterrupt:
        return BY_CTRL_C
    except Exception as error:  # noqa: BLE001  the reader is told, whatever it is
        return f"{type(error).__name__}: {error}{where(error)}"
    finally:  # as Python does
        for thread in threading.enumerate():
            if not (thread.daemon or thread is threading.main_thread()):
                thread.join()
        atexit._run_exitfuncs()
    return ""


def where(error):
    """The innermost line of the program's file that an error passed, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == sys.argv[0]]
    if not own:
        return ""
    _, line, name, _ = own[-1]
    function = "" if name == "<module>" else f", in {name}"
    return f" ({Path(sys.argv[0]).name}, line {line}{function})"


class Printed(io.StringIO):
    """What a program prints, in any encoding that it sets."""

    def reconfigure(self, **_):
        pass


class NoStdin(io.StringIO):
    """A standard input that cannot be read; the user only answers `input()`."""

    def __init__(self, give_up):
        super().__init__()
        self.read = self.readline = lambda *_: give_up(READS_STDIN)

    def __next__(self):  # a loop over the lines
        return self.readline()

    def reconfigure(self, **_):
        pass


def set_clock(player):
    """Let each request take a minute, and note how long the program sleeps."""

    def sleep(seconds, really=time.sleep):
        player.slept += seconds
        really(min(seconds, PAUSE))

    def now(really=time.time):
        return really() + 60 * len(player.exchanges)

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now(), tz)

    time.sleep, time.time, datetime.datetime = sleep, now, Datetime
    for name in "localtime", "gmtime":
        made = partial(at_that_time, getattr(time, name), now)
        setattr(time, name, made)
    shown = time.strftime
    time.strftime = lambda how, at=None: shown(how, at or time.localtime())


def at_that_time(make, now, seconds=None):
    return make(now() if seconds is None else seconds)


# what puts words into a file, and which of the event's arguments is its path
WRITES = {"open": 0, "sqlite3.connect": 0, "os.rename": 1}


def note(folder, elsewhere, event, given):
    """Note the size of each file outside of this folder before it is written to."""
    path = given[WRITES[event]] if event in WRITES else None
    if not isinstance(path, str | bytes | os.PathLike):
        return
    file = Path(path := os.fsdecode(path)).absolute()
    is_own = folder in file.parents or "__pycache__" in file.parts or path == os.devnull
    is_read = event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR)
    if not is_read and not is_own:
        elsewhere.setdefault(file, file.stat().st_size if file.is_file() else 0)


def namesakes(folder):
    """Names of our modules that the program's folder has modules of its own for."""
    own = {file.stem for file in folder.glob("*.py")} & {*sys.modules}
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in own}
    return [name for name in own if TESTS in Path(files[name]).parents]
