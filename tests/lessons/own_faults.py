"""Play the faults of small.py on an agent that you wrote.

    python3 tests/lessons/faults.py --mine FILE            all that can be seen
    python3 tests/lessons/faults.py --mine FILE 8 paste    chapter 8, and one by its name

Each life of the agent has a new folder and a process of its own, and is judged by what
can be seen from outside: the requests, the files, and what is printed. If the agent runs
no command although we answer y, it's started again with the option `--yes`.

A line begins with `ok`, with `!` if the fault is there, or with nothing if neither is
certain: there was nothing to judge, or the agent solves it in a way that may be right,
such as dropping all thinking. The names in brackets are the functions of agent.py that
fix the fault. `japanese` isn't played, because an agent's count can't be seen.

To add a fault, add it to FAULTS of faults.py, and a life to PLAYS: a function that runs
the agent with a script and returns a finding.

See `runner.py` for how the file is run and what it needs.
"""

import json
import os
import re
import select
import signal
import tempfile
import textwrap
import traceback
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import own_report
import runner
import sdk
import stage  # adds the folder of sdk and stub to sys.path
import stub
from own_report import Finding
from stage import reads, use, write_files
from stub import reply

SECONDS = 10  # time limit for a play; on an idle computer, most take less than one
RETRIES = 2  # that the SDK makes by itself
MOST_REFUSED = 5  # rejected requests; after that, the user types no more
MOST_IN_A_ROW = 3  # summaries that fail before the agent has to do without
FINISHED, OPEN = "Write a.py.", "Now write b.py."
SUMMARY = "The work goes on."
LAST = "That was the last one."
KEY = "sk-ant-not-a-real-key"
# Words of a tool or a result that say how to get the rest of a text.
HINTS = r"(?i)\b(offset|pages?|sed|tail|head|grep|saved|redirect\w*|lines? \d+)\b|页"
# Words that tell the user that an answer isn't whole.
IS_CUT = r"(?i)\bcut\b|truncat|incomplete|unfinished|max_tokens|token limit|截断|途中"
# Words by which a summary is asked to name files, or the request that is open.
OF_FILES = r"(?i)\bfiles?\b|文件|ファイル"
OF_REQUESTS = (
    r"(?i)\b(open|pending|in progress|unfinished|current|latest)\b|未完|进行中"
)
MINE = "python3 tests/lessons/{} --mine {} {}"
UNSEEN = "Not played: japanese, because an agent's count can't be seen from outside."
LEFT = "its prompt leaves that to the summary"
KILLED = "It killed its own process with {}."
ENDED = "It ended its process without a word (`os._exit`)."
TOO_SLOW = f"It did not finish within {SECONDS} seconds."
END_PROCESS = os._exit  # which `runner` may replace


class Model(runner.Model):
    """The API and the user, for one life of an agent."""

    def __init__(self, *replies, options=(), window=200_000, enough=None, **script):
        super().__init__(*replies, **script)
        self.options, self.window, self.retries = options, window, RETRIES
        self.is_enough = enough or (lambda client: False)
        self.is_accepted = False  # the last request
        self.always = reply("Done.")
        self.models = SimpleNamespace(retrieve=self.retrieve)

    def retrieve(self, model, **_):
        """Describe the model as the API does, even if a gateway accepts less."""
        return stub.as_object(self.model_info(model) | {"max_input_tokens": 200_000})

    def with_options(self, max_retries=None, **options):
        if isinstance(max_retries, int):
            self.retries = max_retries
        return super().with_options(**options)

    def take(self, request):
        for _ in range(self.retries):
            if self.queue and isinstance(self.queue[0], Exception):
                self.queue.popleft()  # the SDK tries again
        self.is_accepted = False
        try:
            given = super().take(request)
            self.is_accepted = True
            return given
        finally:
            if len(self.refused) + len(self.too_long) > MOST_REFUSED:
                self.prompts.clear()

    def answer(self, request):
        message = super().answer(request)
        if self.is_enough(self):
            self.queue.clear()
            self.prompts.clear()
        return message

    def answer_question(self):
        """Say yes even before Ctrl-C, which the command itself will press."""
        if self.approval != "Ctrl-C":
            return super().answer_question()
        self.calling = ""  # what it asks next is the next prompt
        return "y"


# --- What can be seen ---


def work(client):
    """The accepted requests for work, which are those that ask for no summary."""
    return [exchange for exchange in client.exchanges if not exchange.asks]


def in_turn(client, turn):
    """The accepted requests of one turn."""
    return [e for e in client.exchanges if len(e.typed) == turn]


def texts(exchange):
    """The texts of a request in order: messages, and results of calls."""
    for message in exchange.request["messages"]:
        for block in stub.blocks(message["content"]):
            yield block.get("text") or text_of(block)


def text_of(result):
    """The text of a result, "" for another block."""
    return "".join(b.get("text", "") for b in stub.blocks(result.get("content")))


def holds(exchange, words):
    """Check if a text of a request has these words."""
    return any(words in text for text in texts(exchange))


def results(client):
    """The results of calls as the model first saw them, by the id of the call."""
    first = {}
    for exchange in client.exchanges:
        for result in stage.results(exchange.request["messages"]):
            first.setdefault(result["tool_use_id"], text_of(result))
    return first


def files_with(*lines):
    """The files that hold these lines, as text or within JSON."""
    wanted = ("\n".join(lines), "\\n".join(lines))
    for path in Path().rglob("*"):
        saved = path.read_text("utf-8", errors="replace") if path.is_file() else ""
        if any(text in saved for text in wanted):
            yield path, wanted[0] in saved


def why(client):
    """The reason why a turn or the program ended, in words."""
    said = re.split(r" except|\. ", own_report.problem(client))[0]
    return said or f"the program ended.{own_report.printed(client)}"


def last_prompt(client, prompts=2):
    """Judge by the last prompt: its last request was accepted, or not."""
    if in_turn(client, prompts) and client.is_accepted:
        return Finding("", True)
    said, again = why(client), "" if client.prompts else "; again at the next prompt"
    fixes = own_report.FIXES.items()
    fix = next((fix for words, fix in fixes if words in said), "")
    return Finding(f"{said}{again}", False, fix)


# --- The lives, in the order of the page. Each returns a finding, or one for each of
# --- its faults in PLAYS. ---


def old_outputs(run):
    names = write_files(24, 30_000)
    # what each command prints can't be had again
    once = "cat {0}; : > {0}"
    calls = [use("bash", command=once.format(n), thinking="Next.") for n in names]
    client = run(*calls, typed=["Go."], enough=lambda c: len(after_clearing(c)) > 2)
    return [thinking(client), way_back(client)]


def after_clearing(client):
    """The requests for work since an old result was first cleared in one."""
    first, requests = results(client), work(client)
    for number, exchange in enumerate(requests):
        if cleared(exchange, first):
            return requests[number:]
    return []


def cleared(exchange, first):
    """The results of a request that are a placeholder now: {id: text}."""
    sent = stage.results(exchange.request["messages"])
    now = {result["tool_use_id"]: text_of(result) for result in sent}
    return {call: now[call] for call in now if len(now[call]) < len(first[call]) / 2}


def thinking(client):
    if signed := [error for error in client.refused if "thinking" in error]:
        return Finding(signed[0].partition(". ")[0], False)
    counts = [str(e.request["messages"]).count("'signature'") for e in work(client)]
    if not any(counts):
        return Finding("no thought is ever sent back, so each call starts afresh")
    if problem := own_report.problem(client):
        return Finding(f"{problem}, so nothing can be said")
    return Finding(f"up to {max(counts)} thoughts are sent back", True)


def way_back(client):
    requests = after_clearing(client)
    if not requests:
        problem = own_report.problem(client)
        return Finding(f"no old result was cleared{problem and f': {problem}'}")
    first = results(client)
    call, text = next(iter(cleared(requests[0], first).items()))
    lines = first[call].split("\n")[20:22]
    shown = f"one is now `{textwrap.shorten(text, 80)}`"
    sent = f"{requests[0].request.get('system')} {[*texts(requests[0])]}"
    for path, is_text in files_with(*lines):
        names = {path.name, path.parent.name} - {""}
        if any(name in (sent if is_text else text) for name in names):
            return Finding(shown, True)
    return Finding(f"{shown}, which doesn't say where it is", False)


def small_window(run):
    names = write_files(20, 9_000)
    script = [*reads(names), reply(LAST)]
    client = run(*script, typed=["Read all files.", "Go on."], window=16_000)
    if any(exchange.text == LAST for exchange in in_turn(client, 1)):
        return Finding("", True)
    if not client.exchanges:
        text = "its system prompt and tools alone are longer than that"
        return Finding(text)
    text = f"{why(client)}, after {len(results(client))} of 20 files"
    return Finding(text, False, "chapters 4 and 9")


def long_paste(run):
    return last_prompt(run(typed=["word " * 140_000, "Go on."]))


def long_output(run):
    command = use("bash", command="seq 130000")
    client = run(command, typed=["Count.", "Go on."])
    return rest_of_output(client)


def rest_of_output(client):
    if not (finding := last_prompt(client)).is_right:
        return finding
    if [*files_with("100000", "100001")]:
        return Finding("all of it is on disk", True)
    shown = [text for text in results(client).values() if "\n7\n8\n" in text]
    if not shown:
        return Finding("the model got nothing of it")
    if re.search(HINTS, re.sub(r"(?m)^\d+$", "", shown[0])):
        return Finding("the rest is lost, but the result says what to do")
    return Finding("what was cut off is in no file", False)


def never_a_summary(run):
    answer = reply("A long answer. " * 3_000)
    typed = [f"Write part {n}." for n in range(1, 17)]
    client = run(*[answer] * 16, typed=typed, summaries=[reply(thinking="Hm.")])
    asked = sum(exchange.asks for exchange in client.exchanges)
    if not asked:
        return Finding("it never asks for one")
    text = f"{asked} of {len(client.exchanges)} requests ask for one, for nothing"
    if not (finding := last_prompt(client, 16)).is_right:
        return Finding(f"{finding.text}; {text}", False)
    return Finding(text, in_a_row(client) <= MOST_IN_A_ROW)


def in_a_row(client):
    """Most requests for work in a row of which each needed a summary first."""
    asks = "".join("a" if exchange.asks else "w" for exchange in client.exchanges)
    return max(len(run.replace("a", "")) for run in re.findall("(?:a+w)*", asks))


def long_words(run):
    typed = [f"Paste {n}: {'word ' * 16_000}" for n in range(1, 11)]
    client = run(typed=typed)
    finding = last_prompt(client, 10)
    if not finding.is_right:
        number = len(client.exchanges[-1].typed) + 1 if client.exchanges else 1
        finding = Finding(f"{why(client)}, at paste {number}", False)
    return finding


def one_summary(run):
    names, lines = write_files(5, 4_000), f"# {'x' * 397}\n" * 150
    writes = [
        use("bash", command=f"cat > b{n}.py <<'END'\n{lines}END") for n in range(11)
    ]
    script = [reply("a.py is written."), use("read_file", *names), *writes]
    client = run(
        *script,
        typed=[FINISHED, OPEN],
        summaries=[SUMMARY],
        enough=lambda c: any(own_report.compactions(c)),
    )
    if not (found := [*own_report.compactions(client)]):
        problem = own_report.problem(client)
        nothing = Finding(f"there was no summary{problem and f': {problem}'}")
        return [nothing, nothing]
    _, ask, after = found[0]
    return [requests_in(ask, after), files_in(ask, after, names)]


def asked_for(ask, words):
    """Check if a request for a summary asks for something, by these words."""
    *_, last = texts(ask)
    return re.search(words, f"{last[:1_000]} {last[-1_000:]}")


def requests_in(ask, after):
    """Judge if the model can tell the request that is open from one that isn't."""
    sent = [*texts(after)]
    old, new = ([n for n, t in enumerate(sent) if w in t] for w in (FINISHED, OPEN))
    between = sent[old[-1] : new[-1] + 1] if old and new else []
    is_alike = " ".join(between).split() == f"{FINISHED} {OPEN}".split()
    if new and not (is_alike and not sent_by_model(after)):
        return Finding("", True)
    if asked_for(ask, OF_REQUESTS):
        return Finding(LEFT)
    text = "nothing tells them apart" if new else "the open one is gone"
    return Finding(f"after a summary, {text}", False)


def sent_by_model(exchange):
    """The messages of the model in a request."""
    return [m for m in exchange.request["messages"] if m["role"] == "assistant"]


def files_in(ask, after, names):
    """Judge if the model still has the files that it read, or their names."""
    there = sum(holds(after, f"{name} 0000") for name in names)
    named = sum(holds(after, name) for name in names)
    if there or named == len(names):
        return Finding(f"{there} are there after it, {named} named", True)
    if asked_for(ask, OF_FILES):
        return Finding(LEFT)
    return Finding("after it, the model has neither one of them nor its name", False)


WORDS = "Remember the number 42."
STARTS = [  # options, and what is typed
    ((), ["Which number?"]),
    (("--resume",), ["Which number?"]),
    (("--continue",), ["Which number?"]),
    ((), ["y", "Which number?"]),
    ((), ["/resume", "Which number?"]),
    ((), ["/resume 1", "Which number?"]),
]


def second_start(run):
    for number, (options, typed) in enumerate(STARTS):
        Path(str(number)).mkdir()
        os.chdir(str(number))
        run(typed=[WORDS])
        client = run(typed=typed, more_options=options)
        os.chdir("..")
        if any(holds(exchange, WORDS) for exchange in client.exchanges):
            how = " ".join([*options, *typed[:-1]])
            return Finding(f"it's there with `{how}`" if how else "", True)
    text = "nothing of it is sent, not even after --resume, --continue or /resume"
    has_words = re.search(r"(?i)resum|restor", Path(run.args[0]).read_text("utf-8"))
    return Finding(text, None if has_words else False)


def api_fails(run):
    busy = failure("OverloadedError", "Overloaded", status_code=529)
    lost = failure("APIConnectionError", "Connection error.")
    names = write_files(1, 900)
    script = *[busy] * 4, use("read_file", *names), *[lost] * 4, reply(LAST)
    client = run(*script, typed=["Read it.", "Go on."])
    if any(exchange.text == LAST for exchange in in_turn(client, 1)):
        return Finding("", True)
    tries = min(1 + client.retries, 4)
    error = "the connection is lost" if in_turn(client, 1) else "it's overloaded"
    text = f"{error}, and after {tries} tries the turn is over"
    return Finding(text, False)


def failure(name, text, **more):
    """An error of the SDK."""
    error = sdk.ERRORS[name](text)
    known = {"message": text, "body": None, "request": None, "request_id": None}
    if more:
        known["response"] = SimpleNamespace(headers={}, **more)
    vars(error).update(known, **more)
    return error


def two_reads(run):
    lines = [f"line {number:05} ".ljust(39, "x") for number in range(2_500)]
    Path("long.txt").write_text("\n".join(lines) + "\n")
    Path(".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    script = use("read_file", "long.txt"), use("read_file", ".env")
    client = run(*script, typed=["Read both."])
    got = [*results(client).values(), "", ""]
    return [pages(client, got[0]), secret(client, got[1])]


def pages(client, text):
    if "line 00000" not in text:
        return Finding(f"the model got `{textwrap.shorten(text, 80)}`")
    if len(re.findall("line [0-9]{5}", text)) == 2_500:
        return Finding("the model got all of it", True)
    request = client.requests[0]
    [tool] = [tool for tool in request["tools"] if tool["name"] == "read_file"]
    said = re.sub("line [0-9]{5}.*", "", text)
    about = f"{said} {tool.get('description')} {request.get('system')}"
    if len(tool["input_schema"]["properties"]) > 1 or re.search(HINTS, about):
        return Finding("the model can read on", True)
    text = f"it gets {len(text):,} of them, and isn't told how to read on"
    return Finding(text, False)


def secret(client, text):
    if KEY not in text:
        return Finding("", True)
    if client.last_question:
        return Finding("after a question to the user", True)
    return Finding("the key in it is sent to the API", False)


def interrupted(run):
    command = "touch half.txt; kill -INT $PPID; sleep 1"
    script = use("bash", command=command)
    client = run(script, typed=["Go.", "What happened?"], answer="Ctrl-C")
    if not Path("half.txt").exists():
        return Finding("it ran no command")
    if not (finding := last_prompt(client)).is_right:
        return finding._replace(fix=finding.fix or "step 6")
    if "half.txt" in str(client.exchanges[-1].request["messages"]):
        return Finding("", True)
    text = "it had written a file, and the next request doesn't mention it"
    return Finding(text, False)


def lone_surrogate(run):
    client = run(typed=["caf\udce9", "Go on."])
    if in_turn(client, 1):
        return Finding("", True)
    if not (finding := last_prompt(client)).is_right:
        return finding
    printed = own_report.printed(client)
    if "surrogate" in printed:  # Python's words, not the program's
        return Finding(f"it isn't sent.{printed}", False)
    return Finding("it isn't sent, but the next prompt is")


def answer_is_cut(run):
    cut = reply("The answer is", stop="max_tokens")
    client = run(cut, reply("42."), typed=["What is 6 * 7?"])
    if len(client.exchanges) > 1:
        return Finding("", True)
    if re.search(IS_CUT, " ".join(client.lines)):
        return Finding("the user is told", True)
    text = "it ends the turn, and the user isn't told"
    return Finding(text, False)


def declined(run):
    typed = ["(bad)", "Go on."]
    client = run(reply(stop="refusal"), typed=typed)
    if not (finding := last_prompt(client)).is_right:
        return finding
    is_there = holds(client.exchanges[-1], "(bad)")
    return Finding("it's in the next request" * is_there, not is_there)


def one_id(run):
    [name] = write_files(1, 900)
    call = use("read_file", name)
    client = run(call, stub.copied(call), typed=["Go.", "Go on."])
    if client.refused:
        return last_prompt(client)._replace(is_right=False, fix="")
    return last_prompt(client)


PLAYS = {  # each fault: what happens to the agent, and the life in which it does
    "no_thinking": ("a model that thinks before each call", old_outputs),
    "fixed_threshold": ("a window of 16,000 that only a rejection names", small_window),
    "no_path": ("long outputs of commands, until old ones are cleared", old_outputs),
    "paste": ("a paste of 700,000 characters", long_paste),
    "cut_output": ("an output of 800,000 characters", long_output),
    "no_summaries": ("a model that never writes a summary", never_a_summary),
    "long_words": ("ten pastes of 80,000 characters each", long_words),
    "open_request": ("a request that is finished, and an open one", one_summary),
    "files": ("five files, read before a summary", one_summary),
    "no_resume": ("a second start, after a conversation", second_start),
    "passing_error": ("an API that fails four times in a row", api_fails),
    "no_pages": ("a file of 100,000 characters", two_reads),
    "secrets": ("a model that reads .env", two_reads),
    "stopped_call": ("Ctrl-C while a command runs", interrupted),
    "surrogate": ("a prompt with a byte that isn't UTF-8", lone_surrogate),
    "cut_answer": ("an answer that is cut off by max_tokens", answer_is_cut),
    "refusal": ("a prompt that the model declines", declined),
    "same_id": ("a gateway that uses an id twice", one_id),
}


# --- A process for each life ---


def basics(path, run):
    """Say why an agent can't work at all, "" if it can; and whether it runs a command."""
    if reason := own_report.cannot_start(path):
        return Finding(reason)
    names = write_files(1, 900)
    count = use("bash", command="echo $((600 + 7))")
    replies = use("read_file", *names), count, reply("It is 607."), reply("Yes.")
    client = run(*replies, typed=["Read it.", "Go on."])
    asked = own_report.asks_nothing(client)
    reason = asked or own_report.stopped(client) or own_report.problem(client)
    more = "" if asked else own_report.printed(client, reason)
    runs = any("607" in text for text in results(client).values())
    return Finding(f"{reason}{more}" if reason else "", runs)


def start(path):
    """Start an agent; returns why it can't be played, and the options it needs."""
    for options in ((), ("--yes",)):
        [found] = in_a_process(partial(basics, path), path, options)
        if found.text or found.is_right:
            return found.text, options
    return "", ()


def in_a_process(life, path, options):
    """Live in a process of its own, whatever becomes of it; returns the findings."""
    reading, writing = os.pipe()
    with stage.from_scratch():
        # Python would drop a Ctrl-C that comes while it forks
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if not (child := os.fork()):
            tell(writing, partial(alone, life, path, options, writing))
        try:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            ready, _, _ = select.select([reading], [], [], SECONDS + 2)
            said = os.read(reading, 99_999) if ready else b""
        finally:
            for kill in os.killpg, os.kill:  # what it started, and itself
                with suppress(OSError):  # it has ended
                    kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            os.close(reading)
    if not said:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return [Finding(how_it_ended(ready, number), False)]
    found = json.loads(said)
    if isinstance(found, str):
        raise RuntimeError(found)
    return [Finding(*three) for three in found]


def how_it_ended(in_time, number):
    """Say how a process ended that told us nothing."""
    if not in_time:
        return TOO_SLOW
    return KILLED.format(signal.Signals(number).name) if number else ENDED


def tell(writing, found):
    """Send the findings to the parent, or a fault of ours as text; end this process."""
    try:
        said = found()
    except BaseException:  # noqa: BLE001  the parent raises it
        said = traceback.format_exc()
    os.write(writing, json.dumps(said).encode())
    END_PROCESS(0)


def give_up(writing, why):
    """End this process, because nothing else stops the program."""
    tell(writing, lambda: [Finding(why, False)])


def alone(life, path, options, writing):
    """Live in this process, which nothing else needs; returns the findings."""
    os.setpgid(0, 0)
    for number in range(3):  # what its commands read and print
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    tempfile.tempdir = None  # see TMPDIR
    runner.SECONDS = SECONDS
    with patch.object(runner, "give_up", partial(give_up, writing)):
        found = life(partial(run, path, options))
    return found if isinstance(found, list) else [found]


def run(path, options, *replies, more_options=(), **script):
    """Run the agent with the user's home in this folder."""
    (temporary := Path("tmp").absolute()).mkdir(exist_ok=True)
    where = {"HOME": os.getcwd(), "TMPDIR": str(temporary)}
    script["options"] = (*options, *more_options)
    with patch.dict(os.environ, where):
        return runner.life(path, *replies, played_by=Model, **script)


# --- The list ---

MARKS = {True: "ok", False: "!", None: ""}


def chosen(faults, words):
    """The faults that these words name: a chapter, or a part of a name."""
    for fault in faults:
        name, [*_, chapter] = fault.__name__, fault.__doc__.split(" | ")
        is_named = any(word == chapter or word in name for word in words)
        if name in PLAYS and (is_named or not words):
            yield fault


def fill(text, first="", others="  "):
    """Wrap a text in 79 columns."""
    indent = {"initial_indent": first, "subsequent_indent": others}
    options = {"break_on_hyphens": False, "break_long_words": False}
    return textwrap.fill(text, 79, **indent, **options)


def line(fault, finding):
    """A line of the list, wrapped."""
    name, [_, fix, _] = fault.__name__, fault.__doc__.split(" | ")
    text = f"{MARKS[finding.is_right]:<2} {name:<15} {PLAYS[name][0]}"
    text += f": {finding.text}" * bool(finding.text)
    if not finding.is_right:
        where = re.sub("^step .*", r"\g<0> of chapter 2", finding.fix)
        text += f" ({where or f'agent.py: {fix}'})"
    return fill(text.encode(errors="replace").decode(), " " * 2, " " * 21)


def main(file, words, faults, place):
    """List which of the faults an agent has; returns 1 if it has any, 0 if not."""
    if unknown := [word for word in words if not [*chosen(faults, [word])]]:
        print(fill(f"No fault is called {unknown[0]}, only {', '.join(PLAYS)}."))
        return 2
    path, faults = Path(file).absolute(), [*chosen(faults, words)]
    problem, options = start(path)
    if problem:
        print(fill(f"{path.name} can't be played: {problem}"))
        print(fill(f"Next: {MINE.format('steps.py small', file, '')}"))
        return 1
    how = "".join(f", started with {option}" for option in options)
    print(f"{path.name}{how}, and the faults that can be seen from outside", flush=True)
    found = {}
    for where, some in groupby(faults, key=place):
        print(f"\n{where}")
        for fault in some:
            if fault.__name__ not in found:
                found |= played(fault.__name__, path, options)
            print(line(fault, found[fault.__name__]), flush=True)
    marks = {fault.__name__: found[fault.__name__].is_right for fault in faults}
    wrong = [name for name, is_right in marks.items() if is_right is False]
    right = [*marks.values()].count(True)
    total = f"ok: {right} of {len(marks)}; `!`: {len(wrong)}"
    neither = len(marks) - right - len(wrong)
    rest = f"; can't be judged: {neither}" if neither else ""
    print(f"\n{total}{rest}")
    if wrong and len(faults) > 1:
        print(fill(f"To run one again: {MINE.format('faults.py', file, wrong[0])}"))
    if not words:
        print(UNSEEN)
    return 1 if wrong else 0


def played(name, path, options):
    """The findings of the life in which this fault is played, by fault."""
    _, life = PLAYS[name]
    return by_fault(life, in_a_process(life, path, options))


def by_fault(life, found):
    """The findings of a life by fault; a single one is about all of its faults."""
    names = [name for name in PLAYS if PLAYS[name][1] is life]
    return dict(zip(names, found if len(found) == len(names) else found * len(names)))
