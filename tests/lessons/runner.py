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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import stage  # noqa: F401  adds the folder of sdk and stub to sys.path

# isort: split
import sdk
import stub
from stub import calls_in, reply, text_of

GRACE = 2  # seconds that a process gets to end by itself, once its time is up
OURS = {file.stem for file in Path(__file__).resolve().parents[1].rglob("*.py")}
ADDED = 2_000  # characters; a text with more around a prompt is a conversation
MOST_REFUSED = 5  # rejected requests; after that, the user types no more
SAME_AGAIN = 50  # refused requests in a row, or the same questions; more never stop
PAUSE = 0.002  # seconds; an agent that waits between requests waits no longer here
LARGEST = 20_000_000  # bytes of a file that is looked into
TOOLS = "bash", "read_file", "compact"
READS_STDIN = "It reads `sys.stdin`. Use `input()` for prompts and answers."
SAME_WORDS = "taken for a prompt, because it has the same words"
TURN_IS_OVER = "It sent another request, although the model had called no tool."
NO_TOOL = "Its request doesn't offer the tool `{}`, but {}."
NEVER_LEARNS = "It sent {} requests in a row that were rejected. The last: {}"
EXITED = "It ended its process without a word (`os._exit`)."
TOO_SLOW = "It did not finish within {} seconds."
TOO_LONG = "prompt is too long"
# A reminder to call the tool `compact` doesn't ask for a summary.
ASKS_AT_END = re.compile(  # here, rather than once in each process
    r"(?i)summar|compress|(?<!call )(?<!use )(?<!use the )compact|总结|摘要|压缩|要約"
)
# by its tag or its first word, a text asks for nothing
REMINDS = re.compile(
    r"(?i)\s*<[\w-]*(reminder|status|context|env|info)|\W*(reminder|note|todos?):"
)


class Play(NamedTuple):
    """What happens to an agent: what the user types, what the model and the API do."""

    what: str  # in words
    script: Callable[[], Iterable[Any]]  # writes its files; the model's replies
    typed: Sequence[str] = ("Go.", "Go on.")
    answer: str = "y"  # to the first question; "Ctrl-C" presses that instead
    summaries: Callable[[], Any] = partial(itertools.repeat, reply("It went well."))
    window: int = 200_000  # tokens
    enough: Callable[["Run"], bool] | None = None  # the user then goes away
    options: Sequence[str] = ()  # on the agent's command line
    before: "Play | None" = None  # the life before this one, in the same folder
    more: bool = True  # the model answers "Done." after its script
    seconds: float = 10  # time limit; on an idle computer, most take less than one


@dataclass(eq=False)
class Exchange:
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
        return self.purpose == "summary"

    @property
    def messages(self):
        return self.request["messages"]

    @cached_property
    def sent(self):
        """The request as JSON."""
        return json.dumps(self.request)

    @cached_property
    def blocks(self):
        """The blocks of all messages; one that was refused may have others."""
        found = (m.get("content") for m in self.messages if isinstance(m, dict))
        blocks = itertools.chain(*map(stub.blocks, found))
        return [block for block in blocks if isinstance(block, dict)]

    @cached_property
    def results(self):
        """The texts of the results in it: {id of the call: text}."""
        found = [b for b in self.blocks if b.get("type") == "tool_result"]
        return {result["tool_use_id"]: text_of(result) for result in found}

    @property
    def texts(self):
        """Its texts in order: messages, and results of calls."""
        return [text_of(block) for block in self.blocks]

    def holds(self, words):
        return any(words in text for text in self.texts)


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
    retries: int = 2  # of a request that fails, which the SDK makes by itself
    elsewhere: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # their texts, by path

    # --- Requests ---

    @property
    def accepted(self):
        """The exchanges about the conversation whose request the API accepted."""
        return [e for e in self.exchanges if not e.error and e.purpose != "aside"]

    @cached_property
    def work(self):
        """The accepted requests for work, which are those that ask for no summary."""
        return [e for e in self.accepted if not e.asks]

    @property
    def refused(self):
        """The API's reasons for rejecting requests, in order."""
        return [e.error for e in self.exchanges if e.is_refused]

    @cached_property
    def rejected(self):
        """The first request that was rejected, after the accepted one before it."""
        pairs = itertools.pairwise(self.exchanges)
        firsts = (pair for pair in pairs if pair[1].is_refused and not pair[0].error)
        return next(firsts, None)

    @property
    def problem(self):
        """What stopped the work, an error of the API or of the program; or ""."""
        if any(error.startswith(TOO_LONG) for error in self.refused):
            return TOO_LONG
        return self.ended or "".join(self.refused[:1])

    def in_turn(self, number):
        """The accepted requests after this many prompts."""
        return [e for e in self.accepted if e.typed == number]

    @cached_property
    def compactions(self):
        """The requests for each summary between those for work: (before, asks, after)."""
        rows = [[*row] for _, row in itertools.groupby(self.accepted, lambda e: e.asks)]
        threes = [three for three in zip(rows, rows[1:], rows[2:]) if three[1][0].asks]
        return [(before[-1], asks, after[0]) for before, asks, after in threes]

    # --- Calls, results, texts and files ---

    @cached_property
    def results(self):
        """The text of each result as it first came, by the id of its call."""
        first = {}
        for exchange in self.accepted:
            first |= {c: t for c, t in exchange.results.items() if c not in first}
        return first

    @cached_property
    def since_clearing(self):
        """The requests for work since an old result was first cleared in one."""
        return [*itertools.dropwhile(lambda e: not self.cleared_in(e), self.work)]

    def cleared_in(self, exchange):
        """The results of a request that are a placeholder now: {id: text}."""
        now, first = exchange.results, self.results
        return {c: now[c] for c in now if len(now[c]) < len(first[c]) / 2}

    @cached_property
    def calls(self):
        """The input of each call, by its id."""
        blocks = itertools.chain(*(exchange.blocks for exchange in self.accepted))
        return {b["id"]: b["input"] for b in blocks if b["type"] == "tool_use"}

    def files_with(self, *lines):
        """The files that hold these lines: (path, as text rather than within JSON)."""
        wanted = ("\n".join(lines), "\\n".join(lines))
        for path, text in self.files.items():
            if any(words in text for words in wanted):
                yield Path(path), wanted[0] in text


# --- The API, the model and the user, for one life of an agent ---


class Player(stub.StubClient):
    """The stand-in for the API, and the user at the prompt; together they fill a Run."""

    def __init__(self, play, names=()):
        more = {"always": reply("Done.") if play.more else None, "window": play.window}
        super().__init__(*play.script(), in_parts=False, **more)
        own = dict(zip(TOOLS, TOOLS)) | dict(zip(TOOLS, names))
        self.run = Run(play.what, prompts=[*play.typed], compact=own["compact"])
        self.play, self.summaries, self.folder = play, play.summaries(), Path.cwd()
        self.purposes, self.purpose, self.said = Purposes(self.run.typed), "work", ""
        self.headers, self.approval, self.first_question = {}, play.answer, None
        self.asked_times, self.ends, self.in_a_row, self.slept = Counter(), 0, 0, 0
        for call in itertools.chain(*map(calls_in, self.queue)):
            call["name"] = own[call["name"]]
        self.models = SimpleNamespace(retrieve=self.retrieve)

    def give_up(self, why):
        """End the life, because nothing more can be learned from it."""
        self.run.ended = why
        raise stub.Refused(why)

    def record(self, printed=""):
        """The Run as JSON; messages that the request before had are only counted."""
        exchanges, before = [], []
        for exchange in self.run.exchanges:
            pairs = zip(before, before := exchange.messages)
            same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
            request = {**exchange.request, "messages": [same, before[same:]]}
            exchanges.append(vars(replace(exchange, request=request)))
        marked = any("'cache_control': {" in str(body) for body in self.bodies)
        seen = {"replies": len(self.queue), "lines": printed.strip().split("\n")}
        run = replace(self.run, exchanges=exchanges, marked=marked, **seen)
        return json.dumps(vars(run), default=repr, skipkeys=True)

    # --- The user ---

    def type_next(self, question="", *_):
        """Return the next prompt, or the answer to a question about a tool."""
        run, question = self.run, str(question)
        if self.first_question is None:
            self.first_question = question
        is_prompt = question and question == self.first_question
        run.pressed |= (self.folder / "pressed").exists()  # by a command of the model
        if run.pressed:
            run.calling = ""  # what it asks now is the next prompt
        if run.calling:
            how = SAME_WORDS if is_prompt else f"answered with {self.approval}"
            run.last_question = f'"{textwrap.shorten(question[:500], 80)}" was {how}'
        if run.calling and not is_prompt:
            return self.answer_question()
        if run.calling and not run.broke_off:
            run.broke_off, run.worked = run.calling, len(run.accepted)
        if run.prompts:
            run.typed.append(run.prompts.pop(0))
            return run.typed[-1]
        self.ends += 1
        if self.ends > 2_000:
            self.give_up("It never ends: a bare `except:` swallows Ctrl-D and Ctrl-C.")
        raise EOFError if self.ends < 1_000 else SystemExit

    def answer_question(self):
        """Approve the tool call, press Ctrl-C, or say anything else, and then no."""
        question = self.run.last_question
        self.asked_times[question] += 1
        if self.asked_times[question] == SAME_AGAIN:
            self.give_up(f"It asks again and again: {question}.")
        answer, self.approval = self.approval, "y" if self.approval == "y" else "n"
        if answer != "Ctrl-C":
            return answer
        self.run.pressed = True
        signal.raise_signal(signal.SIGINT)  # which the program may handle itself
        return "n"

    # --- The client ---

    def with_options(self, default_headers=(), max_retries=None, **_):
        self.headers |= dict(default_headers or ())
        if isinstance(max_retries, int):
            self.run.retries = max_retries
        return self

    @property
    def beta(self):
        return self.unsupported("client.beta")

    def unsupported(self, name, *_, **__):
        self.give_up(f"It uses `{name}`, which isn't supported here.")

    def count_tokens(self, **request):
        return super().count_tokens(**sdk.as_json(request))

    def retrieve(self, model, **_):
        """Describe the model as the API does, even if a gateway accepts less."""
        return stub.as_object(self.model_info(model) | {"max_input_tokens": 200_000})

    # --- The model ---

    def answer(self, request):
        """Answer a request, which may hold blocks of replies as objects."""
        run, waiting, unplayed = self.run, self.run.calling, [*self.unplayed]
        run.calling, self.purpose = "", "work"
        headers = self.headers | dict(request.get("extra_headers") or {})
        request = sdk.as_json({**request, "extra_headers": headers})
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            self.prepare(request)  # if it can't be read, it is refused below
        try:
            message = super().answer(request)
        except stub.EmptyQueue:
            return self.give_up(TURN_IS_OVER)
        except Exception as error:
            self.note_error(error)
            raise
        if is_work := self.purpose == "work":
            self.said = text_of(message)
        calls = [call["name"] for call in calls_in(message)]
        run.calling = "".join(calls[:1]) if is_work else waiting
        # it does without what couldn't be played
        run.exchanges = [e for e in run.exchanges if e.error not in unplayed]
        self.note(self.said, content=message["content"], usage=self.usages[-1])
        self.purposes.note(self.purpose, request, message, self.said)
        self.in_a_row = 0
        if self.play.enough and self.play.enough(replace(run)):
            self.queue.clear()
            run.prompts.clear()
        return message

    def note(self, text, **more):
        """Add the newest request to the record."""
        known = self.requests[-1], self.purpose, text, len(self.run.typed)
        more["paused"], self.slept = self.slept, 0
        self.run.exchanges.append(Exchange(*known, **more))

    def note_error(self, error):
        """Add a request that failed, and give up if the program never learns from it."""
        is_refused = isinstance(error, stub.Refused | TypeError | ValueError)
        self.note("", error=str(error), is_refused=is_refused)
        if self.purpose != "work":
            self.queue.popleft()
        self.in_a_row += is_refused
        if self.in_a_row == SAME_AGAIN:
            self.give_up(NEVER_LEARNS.format(SAME_AGAIN, error))
        if len(self.run.refused) > MOST_REFUSED and len(self.play.typed) > 2:
            self.run.prompts.clear()

    def prepare(self, request):
        """Put a summary at the head of the queue, or fit the next reply's calls."""
        self.purpose = self.purposes.of(request)
        if self.purpose != "work":
            asks = self.purpose == "summary"
            given = next(self.summaries) if asks else reply("A title.")
            self.said = text_of(given)
            return self.queue.appendleft(as_asked(given, request))
        for _ in range(self.run.retries):
            if self.queue and isinstance(self.queue[0], Exception):
                self.queue.popleft()  # the SDK tries again
        while self.queue and not self.fits_next(request.get("tools") or []):
            self.queue.popleft()

    def fits_next(self, tools):
        """Give the next reply's calls the tools' own input; skip one of `compact`."""
        offered = {tool.get("name"): tool.get("input_schema") or {} for tool in tools}
        for call in calls_in(self.queue[0]):
            if (name := call["name"]) not in offered and name == self.run.compact:
                return False
            if name not in offered:
                self.give_up(NO_TOOL.format(name, ", ".join(map(str, offered))))
            call["input"] = fitted(call["input"], offered[name])
        return True


class Purposes:
    """What each request of a program is for: the user's work, a summary, or an aside.

    It's for the work if the user's side ends with results, or with a new prompt. Words of
    the program's own at its end are a question, which asks for a summary, unless they came
    with the work before, numbers aside. Nobody can work without tools; without a word of
    the conversation, there is nothing to summarise.
    """

    def __init__(self, typed):
        self.typed, self.known, self.questions = typed, set(), set()
        self.said, self.summaries = [], []  # words of the model's replies and calls
        self.after_summary, self.system = False, None
        self.prompts = self.works = 0  # that were answered; requests for work

    def of(self, request):
        """Tell what a request is for."""
        last = stub.blocks(request["messages"][-1]["content"])
        texts = [block["text"] for block in last if block["type"] == "text"]
        end = "".join(texts[-1:])
        if not request.get("tools"):
            words = [*self.said, *self.summaries, *self.typed[: self.prompts]]
            sent = str(request["messages"])
            return "summary" if any(word in sent for word in words) else "aside"
        if self.system is None:  # it's the first request for work, or after a resume
            sent = str(request["messages"])
            is_new = any(repr(prompt)[1:-1] in sent for prompt in self.typed)
            asks = self.asks(end) or not (is_new or not self.typed)
            return "summary" if asks and len(request["messages"]) > 1 else "work"
        chosen = (request.get("tool_choice") or {}).get("type")
        if chosen == "none" or self.asks_in_system(str(request.get("system"))):
            return "summary"
        has_results = any(block["type"] == "tool_result" for block in last)
        if self.after_summary and not has_results:  # which may be in this one
            return "summary" if self.bare(end) in self.questions else "work"
        if self.asks(end) and not (has_results and self.works < 2):
            return "summary"
        is_new = self.reminds(end) or any(map(self.holds_prompt, texts))
        return "work" if has_results or is_new else "summary"

    def bare(self, text):
        """A text without numbers and prompts."""
        for prompt in self.typed:
            text = text.replace(prompt, "")
        return re.sub(r"[-\d.,:%]+", "", text).strip()

    def reminds(self, end):
        """Check if a text came with the work before, or is a reminder by its tag."""
        return self.bare(end) in self.known or bool(re.match(REMINDS, end))

    def asks(self, end):
        """Check if a text asks for a summary, rather than holds one or reminds."""
        if not (bare := self.bare(end)) or bare in self.questions:
            return bool(bare)
        holds = self.reminds(end) or any(text in end for text in self.summaries)
        return bool(re.search(ASKS_AT_END, bare)) and not holds

    def asks_in_system(self, system):
        """Check if the system prompt now asks for a summary, rather than holds one."""
        before, now = (bool(re.search(ASKS_AT_END, s)) for s in (self.system, system))
        return now > before and not any(text in system for text in self.summaries)

    def holds_prompt(self, text):
        """Check if a text holds the newest prompt, rather than the conversation."""
        *older, newest = self.typed
        is_long = len(text) >= len(newest) + ADDED
        told = is_long and any(words in text for words in [*older, *self.said])
        return len(self.typed) > self.prompts and newest in text and not told

    def note(self, purpose, request, message, text):
        """Remember a request that was answered."""
        _, blocks = stub.merge_turns(request["messages"])[-1]
        texts = [self.bare(text_of(block)) for block in blocks]
        if purpose == "work":
            self.known |= {*texts}
            self.prompts, self.after_summary = len(self.typed), False
            self.works += 1
            self.system = self.system or str(request.get("system"))
            inputs = [[*call["input"].values()] for call in calls_in(message)]
            self.said += [str(given[0])[:12] for given in inputs if given]
            self.said += [text] * bool(text)
        if purpose == "summary":
            self.questions |= {*texts[-1:]} - self.known
            self.after_summary = True
            self.summaries += [text] * bool(text)


def as_asked(given, request):
    """A summary in the form that is asked for: in each tag, or under each key."""
    _, blocks = stub.merge_turns(request["messages"])[-1]
    end = "".join(map(text_of, blocks[-1:]))
    asked = f"{end[:1_000]} {end[-1_000:]} {request.get('system')}"
    keys = re.findall(r'"(\w+)":', asked) if "JSON" in asked else []
    tags = dict.fromkeys(re.findall(r"<([a-z][\w-]*)>", asked))
    is_whole, given = given["stop_reason"] == "end_turn", stub.copied(given)
    for block in given["content"]:
        if block["type"] == "text" and keys and is_whole:
            block["text"] = json.dumps(dict.fromkeys(keys, block["text"]))
        elif block["type"] == "text" and tags:
            texts = [f"<{tag}>{block['text']}" + f"</{tag}>" * is_whole for tag in tags]
            block["text"] = "\n".join(texts)
    return given


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
    """Live in a process of its own, which leaves its record in a file."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        # Python would drop a Ctrl-C that comes while it forks
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            child = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            raise CannotPlay(f"No process can be started for it: {error}") from error
        if not child:
            in_the_process(file, path, play, folder, options, names)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            how = how_it_ended(child, play.seconds)
        finally:
            with suppress(OSError):  # there is nothing left of what it started
                os.killpg(child, signal.SIGKILL)
            with suppress(OSError):  # it has ended
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        file.seek(0)
        record = file.read()
    if not record.endswith("\n"):
        return Run(play.what, ended=how, typed=[*play.typed])
    if isinstance(known := json.loads(record), str):
        raise RuntimeError(known)
    return run_of({**known, "path": str(path), "options": options}, Path(folder))


def how_it_ended(child, seconds):
    """Wait for a process; returns in words how it ended, if it left no record."""
    until = time.monotonic() + seconds + GRACE
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended and os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"It killed its own process with {name}."
        if ended:
            return EXITED
        time.sleep(0.002)
    return TOO_SLOW.format(seconds)


def run_of(record, folder):
    """Turn a record into a Run, with the files in this folder."""
    run, before = Run(**record), []
    run.exchanges = [Exchange(**one) for one in run.exchanges]
    for exchange in run.exchanges:
        same, rest = exchange.messages
        before = exchange.request["messages"] = [*before[:same], *rest]
    run.files = dict(saved_in(folder, run.elsewhere))
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


def in_the_process(file, path, play, folder, options, names):
    """Run an agent to its end, and write the record of its life to a file."""
    printed, process = Printed(), os.getpid()

    def finish(ended=""):
        if os.getpid() == process:  # not a process that the agent has forked
            signal.setitimer(signal.ITIMER_REAL, 0)
            player.run.ended = ended
            text = printed.getvalue().decode(errors="replace")
            print(player.record(text), file=file, flush=True)
        END(0)

    try:
        os.setsid()
        os.chdir(folder)
        for number in range(3):  # what its commands read and print
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        stub.tool_ids = stub.ids()
        player = Player(play, names)
        player.give_up = finish
        set_up(path, player, finish, [str(path), *options])
        how = {"errors": "backslashreplace", "write_through": True}
        sys.stdout = sys.stderr = io.TextIOWrapper(printed, "utf-8", **how)
        finish(why_ended(path))
    except BaseException:  # noqa: BLE001  a fault of ours, which the parent raises
        print(json.dumps(traceback.format_exc()), file=file, flush=True)
    finally:
        END(1)  # even if the record can't be written


def set_up(path, player, finish, argv):
    """Give a program its client, prompts, settings and folder, and a time limit."""
    run = player.run

    def stop(*_):
        asked = f" It asked: {run.last_question}." * bool(run.last_question)
        finish(TOO_SLOW.format(player.play.seconds) + asked)

    temporary, nobody = Path("tmp").absolute(), socket.socket()
    temporary.mkdir(exist_ok=True)
    nobody.bind(("127.0.0.1", 0))  # and listens to no client of the program's own
    player.nobody = nobody  # as long as it lives
    address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    own = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": address}
    own |= {"HOME": os.getcwd(), "TMPDIR": str(temporary)}
    os.environ |= {"MODEL_ID": "none", "ANTHROPIC_MODEL": "none"} | os.environ | own
    for name in "DISPLAY", "WAYLAND_DISPLAY", "ANTHROPIC_AUTH_TOKEN":
        os.environ.pop(name, None)
    tempfile.tempdir = None  # see TMPDIR
    sys.modules |= sdk.package(player, partial(player.unsupported, "AsyncAnthropic"))
    sys.modules["dotenv"] = sdk.module("dotenv", load_dotenv=lambda *_, **__: False)
    builtins.input = player.type_next
    set_clock(player)
    os._exit = lambda *_: finish(EXITED * bool(run.calling or not run.typed))
    stdin = io.BufferedReader(NoStdin(player.give_up))
    sys.stdin, sys.argv = io.TextIOWrapper(stdin), argv
    sys.path.insert(0, str(Path(path).parent))  # where modules may be called like ours
    for name in OURS & sys.modules.keys():
        del sys.modules[name]
    sys.addaudithook(partial(note, Path.cwd(), run.elsewhere))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the caller may have another
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, player.play.seconds)


def set_clock(player):
    """Let each request take a minute, and note how long the program sleeps."""

    def sleep(seconds, really=time.sleep):
        player.slept += seconds
        really(min(seconds, PAUSE))

    def now(really=time.time):
        return really() + 60 * len(player.run.exchanges)

    def strftime(how, moment=None, really=time.strftime):
        return really(how, moment or time.localtime(now()))

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now(), tz)

    time.sleep, time.time, time.strftime = sleep, now, strftime
    datetime.datetime = Datetime


def why_ended(path):
    """Run a program; return what ended it, or "" if it came to its own end."""
    atexit._clear()  # what is registered there isn't its own
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        print(error.code if isinstance(error.code, str) else "")  # as Python does
    except (EOFError, stub.Refused):
        pass  # the record has a refusal, even if the program goes on
    except KeyboardInterrupt:
        return "Ctrl-C ended the program."
    except Exception as error:  # noqa: BLE001  the reader is told, whatever it is
        return f"{type(error).__name__}: {error}{where(error)}"
    finally:  # as Python does
        threading._shutdown()
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


class Printed(io.BytesIO):
    def close(self):
        pass  # the program may do that, but we haven't read it yet


class NoStdin(io.RawIOBase):
    """A standard input that cannot be read; the user only answers `input()`."""

    def __init__(self, give_up):
        self.readinto = lambda *_: give_up(READS_STDIN)

    def readable(self):
        return True


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
        elsewhere.setdefault(str(file), file.stat().st_size if file.is_file() else 0)
