"""An agent at the work of the six steps: a step, small.py, or one that a reader wrote.

    python3 tests/lessons/steps.py small --mine FILE

The file is started as Python starts it. It asks for prompts by `input()`, makes its
client by `anthropic.Anthropic()`, and has the tools `bash` and `read_file`, each with one
input; it may have `compact`. What else it asks, while the model has called a tool, is
answered by y. No name of a function or of a class is asked for.
"""

import io
import json
import os
import runpy
import signal
import sys
import textwrap
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import naive  # which finds the stand-in
import sdk
import stub
from stub import reply

SECONDS = 30  # that a program may take: the longest of the six steps takes two
KEYS = {"ANTHROPIC_API_KEY": "none", "MODEL_ID": "none", "ANTHROPIC_MODEL": "none"}
STAYS = "It does not end with its input: a bare `except:` swallows Ctrl-D and Ctrl-C."
STDIN = "It reads `sys.stdin`: prompts and answers are asked for by `input()`."
ASKS_BY = (
    "It asks by `{}`, which is not here: there is the client `Anthropic()`, with "
    "`messages.create` (without `stream=True`) and `messages.stream`."
)
WORKS = "The model called no tool, so the turn was over, and it asks again."


class Lacks(BaseException):
    """What a file lacks to be an agent; no `except Exception` of it can swallow this."""


class Left(BaseException):
    """The input has ended, and the program goes on asking for a prompt."""


def lacks_way(name, *_, **__):
    raise Lacks(ASKS_BY.format(name))


class Stdin(io.StringIO):
    """Nothing can be read here: the person answers `input()` alone."""

    def read(self, *_):
        raise Lacks(STDIN)

    readline = read  # which is also how a loop over the lines reads


class Model(naive.Model):
    """The stand-in for the API, and the person at the prompt.

    A summary is known by its place: where the last message of a request is neither what
    was typed nor a result, or where no tool is offered any more, the agent asks for it.
    """

    def __init__(self, *replies, typed=(), answer="y"):
        super().__init__(*replies)
        self.lines, self.said, self.answers = [*typed], [], answer
        self.questions, self.calling, self.summed = [], False, False
        self.answered = ""  # how a question was, that came while the model called
        self.ends = 0  # how often a prompt was asked for after the last one
        self.messages.count_tokens = self.count_tokens

    # --- the person ---

    def type_next(self, question="", *_):
        """The next prompt, or the answer to what is asked while the model calls."""
        self.questions.append(question := str(question))
        is_prompt = question and question == self.questions[0]
        if self.calling:
            how = f"answered by {self.answers}"
            how = "taken for a prompt, by its words" if is_prompt else how
            self.answered = f'"{textwrap.shorten(question, 80)}" was {how}'
        if self.calling and not is_prompt:
            if self.answers != "Ctrl-C":
                return self.answers
            self.calling = False
            raise KeyboardInterrupt
        if self.lines:
            self.said.append(self.lines.pop(0))
            return self.said[-1]
        self.ends += 1
        if self.ends > 2_000:
            give_up(STAYS)
        raise EOFError if self.ends < 1_000 else Left

    # --- the client ---

    def with_options(self, **_):
        return self

    @property
    def beta(self):
        return lacks_way("client.beta")

    def create(self, stream=False, **request):
        if stream is True:
            lacks_way("create(stream=True)")
        return super().create(**request)

    # --- the model ---

    def answer(self, request):
        """The message for a request, which may hold blocks of replies as they came."""
        request = as_json(request)
        self.calling = False
        answer = super().answer(request)
        self.calling = any(b["type"] == "tool_use" for b in answer["content"])
        return answer

    def take(self, request):
        with suppress(LookupError, TypeError, AttributeError):  # which is refused below
            self.prepare(request)
        try:
            return stub.StubClient.take(self, request)
        except stub.EmptyQueue as error:
            raise Lacks(WORKS) from error
        except Exception:
            if self.summed:
                self.queue.popleft()
            self.summed = False
            raise

    def prepare(self, request):
        """Let what comes next be a summary, or a reply that fits the request."""
        self.summed = not self.summed and self.wants_summary(request)
        if self.summed:
            self.asked.append(request)
            self.queue.appendleft(reply("It went well."))
        else:
            self.fit_next(request.get("tools") or [])

    def wants_summary(self, request):
        """Whether the agent asks for something that is not the person's work."""
        if not self.requests:
            return False
        last = stub.blocks(request["messages"][-1]["content"])
        texts = {block["text"].strip() for block in last if block["type"] == "text"}
        typed = not texts.isdisjoint(said.strip() for said in self.said)
        results = any(block["type"] == "tool_result" for block in last)
        without = self.requests[0].get("tools") and not request.get("tools")
        return bool(without) or not (typed or results)

    def fit_next(self, tools):
        """Let the next reply call only what the request offers, by its own input."""
        offered = {tool.get("name"): tool.get("input_schema") or {} for tool in tools}
        while self.queue and (wrong := [*self.missing(offered)]):
            if wrong != ["compact"]:
                raise Lacks(f"Its request offers the model no tool `{wrong[0]}`.")
            self.queue.popleft()
        if self.queue:
            calls = [b for b in self.queue[0]["content"] if b["type"] == "tool_use"]
            for call in calls:
                call["input"] = fitted(call["input"], offered[call["name"]])

    def missing(self, offered):
        """The tools that the next reply calls, and that are not offered."""
        content = self.queue[0]["content"]
        called = [block["name"] for block in content if block["type"] == "tool_use"]
        return (name for name in called if name not in offered)

    def count_tokens(self, **request):
        request = as_json(request)
        parts = [request.get(key) for key in ("system", "tools", "messages")]
        return SimpleNamespace(input_tokens=stub.count(*parts))


def as_json(value):
    """A request as JSON: the SDK takes the blocks of its replies as they are."""
    if isinstance(value, dict):
        given = {key: value[key] for key in value if value[key] is not sdk.NOT_GIVEN}
        return {key: as_json(given[key]) for key in given}
    if isinstance(value, list | tuple):
        return [*map(as_json, value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def fitted(given, schema):
    """One input by the name that the tool has for it, if it has another."""
    names = [*schema.get("properties", {})]
    if len(given) != 1 or not names or given.keys() & {*names}:
        return given
    [value], wanted = given.values(), schema.get("required") or names
    return {wanted[0]: value}


# --- The program, started as Python starts it ---


def life(path, *replies, typed=("Translate all files.",), answer="y"):
    """The stand-in after a program was at work, what stopped it, what it printed last."""
    client, printed, ended = (
        Model(*replies, typed=typed, answer=answer),
        io.StringIO(),
        "",
    )
    with started(path, client), redirect_stdout(printed), redirect_stderr(printed):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except (SystemExit, EOFError, Left, stub.Refused):
            pass  # the client knows of what was refused, also where the program goes on
        except Lacks as error:
            ended = str(error)
        except KeyboardInterrupt:
            ended = "none, since Ctrl-C ended the program"
        except Exception as error:  # noqa: BLE001  the reader is told, whatever it is
            ended = f"{type(error).__name__}: {error}"
    said = printed.getvalue().strip().split("\n")[-1]
    return client, ended, said


@contextmanager
def started(path, client):
    """What a program finds: its client, its prompts, its folder, and so many seconds."""
    loaded = sdk.package(client, partial(lacks_way, "AsyncAnthropic"))
    loaded["dotenv"] = ModuleType("dotenv")
    vars(loaded["dotenv"]).update(load_dotenv=lambda *_, **__: False)

    def stop(*_):
        late.append(f"It did not come to its end within {SECONDS} seconds.")
        if len(late) > 1:  # it has swallowed what was raised
            give_up(late[0])
        raise Lacks(late[0])

    late = []
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)
    back, keys = Path.cwd(), {k: v for k, v in KEYS.items() if k not in os.environ}
    try:
        with (
            patch.dict(sys.modules, loaded),
            patch.dict(os.environ, keys),
            patch("builtins.input", client.type_next),
            patch.object(sys, "stdin", Stdin()),
            patch.object(sys, "argv", [str(path)]),
            patch.object(sys, "path", [str(Path(path).parent), *sys.path]),
        ):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.chdir(back)


def give_up(why):
    """End this process, because the program cannot be stopped in any other way."""
    print(f"  lacks      {why}", file=sys.__stdout__, flush=True)
    os._exit(1)


def problem(client, ended):
    """What went wrong in a life, "" if nothing did."""
    if client.too_long:
        return "prompt is too long"
    return ended or "".join(client.refused[:1])


def stopped(client, ended, said):
    """Why a program did not come to its end, "" if it did."""
    if not client.queue:
        return ended
    early = f"The turn ended before the work was done.{last_words(said)}"
    return problem(client, ended) or early


def last_words(said):
    return f' It printed last: "{said[:200]}"' if said else ""


def undone(client):
    """What may be why work was not done, though nothing was refused: {what: words}."""
    if problem(client, ""):
        return {}
    facts = {"asked": client.answered} if client.answered else {}
    results = {}  # as they came: a later request can hold placeholders for them
    for request in client.requests:
        for result in naive.results(request["messages"]):
            results.setdefault(result["tool_use_id"], str(result["content"]))
    [(result, number)] = Counter(results.values()).most_common(1) or [("", 0)]
    if number > 1 and not client.queue:
        facts["results"] = f'{number} were "{textwrap.shorten(result, 80)}"'
    return facts


def lacks(path):
    """Why a file cannot be started, in a sentence; "" if it can."""
    try:
        compile(Path(path).read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        return f"It cannot be read: {error.strerror}."
    except (SyntaxError, ValueError) as error:
        where = f" in line {error.lineno}" if getattr(error, "lineno", 0) else ""
        return f"It is no Python{where}: {getattr(error, 'msg', error)}."
    return ""


def asks_nothing(client, ended, said):
    """Why no request was made, in a sentence; "" if there was one."""
    if client.requests:
        return ""
    if ended:
        early = f"It made no request, because it ended by {ended}"
        return ended if ended.startswith("It") else early  # which is what it lacks
    if not client.said:
        return "It made no request: it asks for no prompt by `input()`."
    sends = "the client that `anthropic.Anthropic()` makes"
    return f"It took a prompt and made no request by {sends}.{last_words(said)}"


def on_disk():
    """How many messages a program left on disk, whatever the names of its files."""
    found = 0
    for file in Path().rglob("*"):
        if file.is_file() and not file.name.startswith(("file_", "new_", "large.txt")):
            text = file.read_text("utf-8", errors="replace")
            found += sum(map(messages_in, values_in(text)))
    return found


def values_in(text):
    """The JSON in a text: the whole of it, or one value after another."""
    read, at = json.JSONDecoder().raw_decode, 0
    while at < len(text):
        try:
            value, at = read(text, at)
            yield value
        except ValueError:  # what begins here is none: go on in the next line
            at = text.find("\n", at) + 1 or len(text)


def messages_in(value):
    """How many messages there are in a value, however deep."""
    if isinstance(value, dict):
        if {"role", "content"} <= {*value}:
            return 1
        value = [*value.values()]
    return sum(map(messages_in, value)) if isinstance(value, list) else 0
