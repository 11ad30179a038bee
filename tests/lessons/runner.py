"""Run an agent we know nothing about, with a scripted model and a scripted user.

The file is started as Python starts it. It has to call `input()` for each prompt, make
its client with `anthropic.Anthropic()`, and offer the tools `bash` and `read_file` with
one input each; `compact` is optional. Whatever it asks before it runs a tool is
answered with y. Its functions and classes can have any names.
"""

import io
import os
import re
import runpy
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import sdk
import stage  # adds the folder of sdk and stub to sys.path
import stub
from stub import reply

SECONDS = 30  # time limit for a program; the slowest of the six steps takes two
TESTS = Path(__file__).resolve().parents[1]
ADDED = 2_000  # characters; a text with more around a prompt is a conversation
KEYS = {"ANTHROPIC_API_KEY": "none", "MODEL_ID": "none", "ANTHROPIC_MODEL": "none"}
NEVER_ENDS = "It never ends: a bare `except:` swallows Ctrl-D and Ctrl-C."
READS_STDIN = "It reads `sys.stdin`. Use `input()` for prompts and answers."
UNSUPPORTED = (
    "It uses `{}`, which isn't supported here. Test it with --serve, which works with "
    "any client: python3 tests/lessons/steps.py small --serve"
)
TAGS = "<summary>", "</summary>"
# A reminder to call the tool `compact` doesn't ask for a summary.
ASKS_AT_END = (
    r"(?i)summar|compress|(?<!call )(?<!use )(?<!use the )compact|总结|摘要|压缩|要約"
)
REMINDER = r"\s*<[\w-]*reminder"  # a message of its own that asks for nothing
SAME_WORDS = "taken for a prompt, because it has the same words"
TURN_IS_OVER = "It sent another request, although the model had called no tool."
SAME_AGAIN = 50  # refused requests in a row; an agent that sends more never stops
NEVER_LEARNS = "It sent {} requests in a row that were rejected. The last: {}"
INTERRUPTED = "It was interrupted."
KILLS = "It ends its process with `os.{}`. Let it come to its own end."
OWN_END = os._exit
PAUSE = 0.002  # seconds; an agent that waits between requests waits no longer here


class NotAnAgent(BaseException):
    """The reason we can't run a file; no `except Exception` can swallow it."""


class InputEnded(BaseException):
    """The end of a program that ignores EOFError and keeps asking for prompts."""


class Exchange(NamedTuple):
    """A request that the API accepted, and what it was for."""

    request: dict[str, Any]
    asks: bool  # for a summary, rather than for the next step of the work
    text: str  # of the reply
    typed: list[str]  # what the user had typed by then
    content: Sequence[dict] = ()  # the blocks of the reply


def unsupported(name, *_, **__):
    raise NotAnAgent(UNSUPPORTED.format(name))


class NoStdin(io.StringIO):
    """A standard input that cannot be read; the user only answers `input()`."""

    def read(self, *_):
        raise NotAnAgent(READS_STDIN)

    readline = read  # a loop over the lines calls this

    def reconfigure(self, **_):
        pass


class Printed(io.StringIO):
    """What a program prints, in any encoding that it sets."""

    def reconfigure(self, **_):
        pass


class Model(stage.Model):
    """The stand-in for the API, the user at the prompt, and a record of the run.

    We recognise a request for a summary by its end: its last message is neither a
    typed message nor a tool result, or it no longer offers any tools. A typed message
    may have other words around it, when it's new; and a request for a summary can be
    joined to the message before it, or be made in the system prompt.
    """

    compact = "compact"  # the tool's name
    options = ()  # on the command line

    def __init__(self, *replies, typed=(), answer="y", summaries=("It went well.",)):
        summaries = (reply(s) if isinstance(s, str) else s for s in summaries)
        no = {"asks": lambda request: False}  # `wants_summary` finds out
        super().__init__(*replies, summaries=summaries, **no)
        self.prompts, self.typed, self.approval = [*typed], [], answer
        self.calling = ""  # the tool that the model waits for
        self.broke_off = ""  # the first tool that it waited for at the next prompt
        self.worked = 0  # the replies until then
        self.first_question = None  # which is the program's prompt
        self.last_question = ""  # about a tool, and our answer
        self.prompts_after_end = 0
        self.asked_with = ""  # the last message, if the last request was for a summary
        self.exchanges: list[Exchange] = []
        # the first request that was refused, after the one before it
        self.rejected: tuple[Exchange, Exchange] | None = None
        self.ended = ""  # why the program stopped, "" if it ended by itself
        self.lines = [""]  # what it printed
        self.pressed = False  # Ctrl-C, in the script
        self.interrupted = False  # by the reader
        self.in_a_row = 0  # refused requests since the last one that was accepted
        # files it wrote outside of its folder, with their bytes before that
        self.elsewhere: dict[Path, int] = {}
        self.messages.count_tokens = self.count_tokens
        self.headers: dict[str, str] = {}  # that it sends with each request

    # --- The user ---

    def type_next(self, question="", *_):
        """Return the next prompt, or the answer to a question about a tool."""
        question = str(question)
        if self.first_question is None:
            self.first_question = question
        is_prompt = question and question == self.first_question
        if self.calling:
            how = SAME_WORDS if is_prompt else f"answered with {self.approval}"
            self.last_question = f'"{textwrap.shorten(question[:500], 80)}" was {how}'
        if self.calling and not is_prompt:
            return self.answer_question()
        if self.calling and not self.broke_off:
            self.broke_off, self.worked = self.calling, len(self.exchanges)
        if self.prompts:
            self.typed.append(self.prompts.pop(0))
            return self.typed[-1]
        self.prompts_after_end += 1
        if self.prompts_after_end > 2_000:
            give_up(NEVER_ENDS)
        raise EOFError if self.prompts_after_end < 1_000 else InputEnded

    def answer_question(self):
        """Approve the tool call, press Ctrl-C, or say anything else, and then no."""
        answer = self.approval
        if answer == "Ctrl-C":
            self.calling = ""
            self.pressed = True
            raise KeyboardInterrupt
        self.approval = "y" if answer == "y" else "n"
        return answer

    # --- The client ---

    def with_options(self, default_headers=(), **_):
        self.headers |= dict(default_headers or ())
        return self

    @property
    def beta(self):
        return unsupported("client.beta")

    def create(self, stream=False, **request):
        if stream is True:
            unsupported("create(stream=True)")
        return super().create(**request)

    def count_tokens(self, **request):
        request = as_json(request)
        parts = [request.get(key) for key in ("system", "tools", "messages")]
        return SimpleNamespace(input_tokens=stub.count(*parts))

    # --- The model ---

    def answer(self, request):
        """Answer a request, which may hold blocks of replies as objects."""
        waiting, self.calling = self.calling, ""
        headers = self.headers | dict(request.get("extra_headers") or {})
        answer = super().answer(as_json({**request, "extra_headers": headers}))
        content = answer["content"]
        calls = [block["name"] for block in content if block["type"] == "tool_use"]
        text = "".join(block.get("text", "") for block in content)
        text = text.removeprefix(TAGS[0]).removesuffix(TAGS[1])
        asks, typed = bool(self.asked_with), [*self.typed]
        self.calling = waiting if asks else "".join(calls[:1])
        self.in_a_row = 0
        self.exchanges.append(Exchange(self.requests[-1], asks, text, typed, content))
        return answer

    def take(self, request):
        with suppress(LookupError, TypeError, AttributeError):  # it is refused below
            self.prepare(request)
        try:
            return stub.StubClient.take(self, request)
        except stub.EmptyQueue as error:
            raise NotAnAgent(TURN_IS_OVER) from error
        except Exception:
            asks, typed = bool(self.asked_with), [*self.typed]
            if self.exchanges and not self.rejected:
                refused = Exchange(self.requests[-1], asks, "", typed)
                self.rejected = self.exchanges[-1], refused
            if self.asked_with:
                self.queue.popleft()
            self.asked_with = ""
            self.in_a_row += 1
            if self.in_a_row == SAME_AGAIN:
                said = [*self.refused, *self.too_long, *self.unplayed][-1]
                raise NotAnAgent(NEVER_LEARNS.format(SAME_AGAIN, said)) from None
            raise

    def prepare(self, request):
        """Put a summary at the head of the queue, or fit the next reply's calls."""
        last = str(request["messages"][-1])
        # two in a row: a retry, or a second step, which offers no tools either
        again = self.asked_with in ("", last) or not request.get("tools")
        if self.wants_summary(request) and again:
            self.asked_with = last
            self.queue.appendleft(tagged(next(self.summaries), str(request)))
        else:
            self.asked_with = ""
            self.fit_next(request.get("tools") or [])

    def wants_summary(self, request):
        """Tell a request for a summary from one for the user's work."""
        last = stub.blocks(request["messages"][-1]["content"])
        texts = {block["text"].strip() for block in last if block["type"] == "text"}
        end = last[-1].get("text", "") if len(last) > 1 else ""
        if re.search(ASKS_AT_END, end) and not self.is_reminder(end, request):
            return True  # it is joined to a typed message or to results
        if self.has_new_prompt(texts):
            return False
        if not self.requests:
            known = not self.typed or self.typed[0] in str(last)
            return len(request["messages"]) > 1 and not known
        if self.asks_in_system(str(request.get("system"))):
            return True
        typed = not texts.isdisjoint(text.strip() for text in self.typed)
        results = any(block["type"] == "tool_result" for block in last)
        without = self.requests[0].get("tools") and not request.get("tools")
        reminds = any(re.match(REMINDER, text) for text in texts)
        return bool(without) or not (typed or results or reminds)

    def asks_in_system(self, system):
        """Check if the system prompt now asks for a summary, rather than holds one."""
        first = str(self.requests[0].get("system"))
        known = [e.text for e in self.exchanges if e.asks and e.text]
        if system == first or any(text in system for text in known):
            return False
        asks = [re.search(ASKS_AT_END, text) for text in (first, system)]
        return bool(asks[1]) and not asks[0]

    def is_reminder(self, end, request):
        """Check if a text is a prompt, or one that the program adds to all results."""
        is_usual = len(self.exchanges) < 2 or end in str(request["messages"][:-1])
        return is_usual or self.has_new_prompt({end})

    def has_new_prompt(self, texts):
        """Check if texts hold the newest prompt, to which a program may add a bit."""
        [known] = [e.typed for e in self.exchanges if not e.asks][-1:] or [[]]
        prompts = self.typed[len(known) :][-1:]
        short = [t for t in texts if len(t) < sum(map(len, prompts)) + ADDED]
        return any(prompt in text for prompt in prompts for text in short)

    def fit_next(self, tools):
        """Make the next reply call only tools that are offered, by their own input."""
        offered = {tool.get("name"): tool.get("input_schema") or {} for tool in tools}
        while self.queue and (wrong := [*self.missing(offered)]):
            if wrong != [self.compact]:
                raise NotAnAgent(f"Its request doesn't offer the tool `{wrong[0]}`.")
            self.queue.popleft()
        if self.queue:
            calls = [b for b in self.queue[0]["content"] if b["type"] == "tool_use"]
            for call in calls:
                call["input"] = fitted(call["input"], offered[call["name"]])

    def missing(self, offered):
        """The tools that the next reply calls but the request doesn't offer."""
        content = self.queue[0]["content"]
        called = [block["name"] for block in content if block["type"] == "tool_use"]
        return (name for name in called if name not in offered)


def tagged(summary, request):
    """A summary with tags around its text, if the request names them."""
    if TAGS[0] not in request:
        return summary
    end = TAGS[1] if summary["stop_reason"] == "end_turn" else ""
    content = stub.copied(summary["content"])
    for block in content:
        if block["type"] == "text":
            block["text"] = f"{TAGS[0]}{block['text']}{end}"
    return {**summary, "content": content}


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


# --- The program, started as Python starts it ---


def life(path, *replies, typed=("Translate all files.",), played_by=Model, **script):
    """Run a program to its end, and return the model with the record of the run.

    If the reader presses Ctrl-C, it raises KeyboardInterrupt, whatever the program does.
    """
    client, printed = played_by(*replies, typed=typed, **script), Printed()
    with (
        uninterrupted(client),
        started(path, client) as at_exit,
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        client.ended = why_ended(runpy.run_path, str(path), run_name="__main__")
        while at_exit:
            call = at_exit.pop()
            print(why_ended(call), end="")  # as Python does, and goes on
    client.lines = printed.getvalue().strip().split("\n")
    return client


@contextmanager
def uninterrupted(client):
    """Raise KeyboardInterrupt if the reader has pressed Ctrl-C."""
    with suppress(NotAnAgent):  # between two lines of ours
        yield
    if client.interrupted:
        raise KeyboardInterrupt


def why_ended(program, *given, **more):
    """Call a program; return what ended it, or "" if it came to its own end."""
    try:
        program(*given, **more)
    except SystemExit as error:
        print(error.code if isinstance(error.code, str) else "")  # as Python does
    except (EOFError, InputEnded, stub.Refused):
        pass  # the client knows of a refusal, even if the program goes on
    except NotAnAgent as error:
        return str(error)
    except KeyboardInterrupt:
        return "Ctrl-C ended the program."
    except Exception as error:  # noqa: BLE001  the reader is told, whatever it is
        return f"{type(error).__name__}: {error}{where(error)}"
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


@contextmanager
def started(path, client):
    """Give a program its client, prompts, settings and folder, and a time limit.

    Yields a list of what it leaves to `atexit`, to be called while it has all this.
    """
    loaded = sdk.package(client, partial(unsupported, "AsyncAnthropic"))
    loaded["dotenv"] = sdk.module("dotenv", load_dotenv=lambda *_, **__: False)

    def stop(*_):
        late.append(f"It did not finish within {SECONDS} seconds.")
        if len(late) > 1:  # it swallowed the first exception
            give_up(late[0])
        raise NotAnAgent(late[0])

    def interrupt(*_):
        if client.approval == "Ctrl-C" and not client.pressed:  # by a command
            client.pressed = True
            raise KeyboardInterrupt
        client.interrupted = True
        raise NotAnAgent(INTERRUPTED)

    def register(function, *given, **more):
        at_exit.append(partial(function, *given, **more))
        return function

    late, at_exit, folder = [], [], Path(path).parent
    before = signal.signal(signal.SIGALRM, stop)
    before_that = signal.signal(signal.SIGINT, interrupt)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)
    back, keys = Path.cwd(), {k: v for k, v in KEYS.items() if k not in os.environ}
    try:
        with (
            patch.dict(sys.modules, loaded),
            patch.dict(os.environ, keys),
            patch("atexit.register", register),
            patch("builtins.input", client.type_next),
            patch("time.sleep", partial(shortly, time.sleep)),
            patch("os._exit", partial(ends_itself, "_exit")),
            patch("os.abort", partial(ends_itself, "abort")),
            patch("os.kill", partial(kill, os.kill)),
            patch.object(sys, "stdin", NoStdin()),
            patch.object(sys, "argv", [str(path), *client.options]),
            patch.object(sys, "path", [str(folder), *sys.path]),
            noted(client.elsewhere),
        ):
            for name in namesakes(folder):
                del sys.modules[name]
            yield at_exit
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, before_that)
        os.chdir(back)


def shortly(sleep, seconds):
    """Sleep, but not as long as a program that waits between its requests."""
    sleep(min(seconds, PAUSE))


def ends_itself(how, *_):
    raise NotAnAgent(KILLS.format(how))


def kill(really, pid, sign):
    """Send a signal, but not one that would end this report."""
    if pid in (0, -1, os.getpid()):
        ends_itself("kill")
    really(pid, sign)


@contextmanager
def noted(files):
    """Note the size of each file outside of this folder before it is opened to write.

    Python calls an audit hook for each file that is opened, and never removes the hook.
    """
    if not NOTED:
        sys.addaudithook(note)
    NOTED[:] = [Path.cwd(), files]
    try:
        yield
    finally:
        NOTED[:] = [None, None]


NOTED: list[Any] = []  # the folder of the program that runs, and what is noted


# what puts words into a file, and which of the event's arguments is its path
WRITES = {"open": 0, "sqlite3.connect": 0, "os.rename": 1}


def note(event, given):
    """Note a file that is opened to write or append, or that replaces another."""
    path = given[WRITES[event]] if event in WRITES else None
    if not NOTED[0] or not isinstance(path, str | bytes | os.PathLike):
        return
    path = os.fsdecode(path)
    file = Path(path).absolute()
    is_own = (
        NOTED[0] in file.parents or "__pycache__" in file.parts or path == os.devnull
    )
    is_read = event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR)
    if not is_read and not is_own:
        NOTED[1].setdefault(file, file.stat().st_size if file.is_file() else 0)


def namesakes(folder):
    """Names of our modules that the program's folder has modules of its own for."""
    own = {file.stem for file in folder.glob("*.py")} & {*sys.modules}
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in own}
    return [name for name in own if TESTS in Path(files[name]).parents]


def give_up(why):
    """End this process, because nothing else stops the program."""
    print(f"  problem    {why}", file=sys.__stdout__, flush=True)
    OWN_END(1)
