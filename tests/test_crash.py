"""SIGKILL at points of a scripted run, Ctrl-C at its lines: some, or all (LONG_TESTS).

The run does all that an agent does: it streams, runs tools, hands work to a subagent,
saves a large result, plans, compacts in all three ways, is cut off, answered with
nothing, refused, and taken up by a second agent. A point is whatever the world could
notice: an event, a piece of a stream, a question, an operation on a file or a process,
a line of the transcript. Each run is a process of its own, forked, because starting
Python anew for each would take minutes.
"""

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from builders import (
    LONG_TESTS,
    PLAN,
    READ,
    SUMMARY,
    TASK,
    TOO_LARGE,
    WRITE,
    any_answer,
    results,
)
from stub import Stream, StubClient, count, reply, tokens

import agent as program
from agent import (
    Agent,
    AgentError,
    drop_thinking,
    load,
    resume,
    still_needed,
    take_turn,
    words_of,
)

SMALL = {"threshold": 4_000, "window": 5_000, "max_output": 1_000, "min_savings": 0}
LONG = "A long answer. " * 700  # brings the context over that threshold
HALF = LONG[: len(LONG) * 2 // 5]
BIG = ("bash", {"command": "seq 2000"})
COMPACT = ("compact", {"focus": "the notes"})
NOTES = "these are the notes\n" * 60
TURNS = 3  # of the script, before a second agent takes the conversation up
FOLDER = Path(".transcripts")
EVERY = 1 if LONG_TESTS else 5  # how many points, or lines, make one that is tried


def script():
    """What the person types, and what the model answers to it."""
    return {
        "Look at everything": [
            reply("Let me look.", thinking="a plan", calls=[READ, PLAN, WRITE]),
            reply("Then this.", thinking="more", calls=[BIG, READ]),
            reply("Help me.", calls=[TASK]),
            reply("I look.", calls=[READ], thinking="its own"),
            reply("Its answer."),
            reply("I write", calls=[WRITE], stop="max_tokens"),
            reply("Enough of that.", calls=[COMPACT, READ], thinking="so"),
            SUMMARY,
            reply("Done with that.", thinking="so"),
        ],
        "Tell me all": [
            reply(LONG, calls=[READ], thinking="long"),
            SUMMARY,
            reply(content=[]),
            reply("Told.", thinking="so"),
        ],
        "Something forbidden": [reply("I", stop="refusal")],
        "Is it all there?": [
            reply("Yes.", calls=[READ], thinking="so"),
            reply("It is."),
        ],
        "Tell me half": [reply(HALF)],
        "And the end": [TOO_LARGE, SUMMARY, reply("The end.")],
    }


# ---- points, and what happens at them ----


class Points:
    """Counts the points that a run passes, and acts at some of them."""

    def __init__(self, act=None, at=()):
        self.act, self.at, self.passed = act, at, []

    def __call__(self, name):
        self.passed.append(name)
        if len(self.passed) in self.at:
            self.act()


class WatchedStream(Stream):
    """A stream with a point at its beginning, before each part, and at its end."""

    def __enter__(self):
        self.client.point("request")
        super().__enter__()
        self.client.point("answer")
        return self

    def __iter__(self):
        for event in super().__iter__():
            if event.type == "content_block_start":
                self.client.point("part")
            yield event

    def get_final_message(self):
        self.client.point("end")
        return super().get_final_message()


class WatchedClient(StubClient):
    """Its streams are watched. Each run ends in a check, so requests need none."""

    def __init__(self, point):
        super().__init__()
        self.point = point
        self.messages.stream = lambda **request: WatchedStream(self, request)

    def take(self, request):
        given = self.queue.popleft()
        if isinstance(given, BaseException):
            raise given
        return given

    def usage(self, body, content):
        total = count(body["system"], body["tools"], body["messages"])
        return {"input_tokens": total, "output_tokens": tokens(content)}


def act_on(point):
    """An agent whose every step is a point."""

    def approve(name, what):
        point("approval")

    agent = Agent(client=WatchedClient(point), approve=approve, **SMALL)
    often = ("text", "thinking", "wait")  # and how often is left to chance
    agent.emit = lambda style, text: style in often or point("event")
    return agent


AUDITED = {"open", "os.mkdir", "os.chmod", "os.rename", "os.remove"}
AUDITED |= {"subprocess.Popen"}


@contextmanager
def watched(point, acknowledge=lambda agent, entry: None):
    """Let what the program does to files, processes and transcripts be points too."""
    before = program.commit, AUDIT["point"]

    def commit(agent, entry):
        point("before a line")
        before[0](agent, entry)
        acknowledge(agent, entry)
        point("after a line")

    program.commit, AUDIT["point"] = commit, point
    try:
        yield
    finally:
        program.commit, AUDIT["point"] = before


AUDIT = {"point": lambda name: None}


def audit(name, arguments):
    """An audit hook stays for good: one is enough, and that in children alone."""
    if name in AUDITED:
        AUDIT["point"](name)


def play(agent, turns):
    """Run these turns; what ends one with a clear line does not end the run."""
    for text, replies in turns.items():
        agent.client.queue.clear()
        agent.client.enqueue(*replies)
        with suppress(AgentError):
            take_turn(agent, text)


# ---- processes ----


def child(work):
    """Do `work()` in a process of its own; returns its pid."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 1
    sys.addaudithook(audit)
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the parent is told
        Path("traceback").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def ended(pid):
    """How a child ended: its exit status, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fill(folder):
    """Make a workspace and go there."""
    folder.mkdir()
    os.chdir(folder)
    Path("notes.txt").write_text(NOTES)


def run_script(folder, act=None, at=()):
    """The whole script in a new folder; writes there which points it passed."""
    fill(folder)
    point, turns = Points(act, at), [*script().items()]
    with open("acknowledged", "ab", buffering=0) as file:

        def acknowledge(agent, entry):
            main = "task" in agent.tools  # no subagent
            file.write(json.dumps([main, entry]).encode() + b"\n")

        with watched(point, acknowledge):
            play(act_on(point), dict(turns[:TURNS]))
            resume(second := act_on(point), "1")
            play(second, dict(turns[TURNS:]))
    Path("points").write_text(json.dumps(point.passed))


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """What is there before a fork is not looked through, and copied, in each child."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    status = ended(child(partial(run_script, folder)))
    assert status == 0, (folder / "traceback").read_text()
    return folder


# ---- what must hold afterwards ----


def replay(lines):
    """The conversation that these lines of a transcript make, without thinking."""
    messages = []
    for entry in map(json.loads, lines):
        messages = entry["messages"] if "event" in entry else [*messages, entry]
    return drop_thinking(messages)


def shape(messages):
    """Messages without the texts of results, which layer 1 clears in memory alone."""
    new = [{**m, "saved": None} for m in json.loads(json.dumps(messages))]
    for result in results(*new):
        del result["content"]
    return new


def typed(lines):
    """What the person typed and did not take back, of these lines."""
    words = []
    for entry in map(json.loads, lines):
        if entry.get("event") == "refusal":
            words.pop()
        elif "event" not in entry and type(entry["content"]) is str:
            words.append(entry["content"])
    return words


def planned(lines):
    """Whether the plan was made, and the notes read beside it, in these lines."""
    return b"1 of 2 still to do" in b"".join(lines)


def acknowledged():
    """The lines that were acknowledged in this folder."""
    given = map(json.loads, Path("acknowledged").read_bytes().splitlines())
    return [entry for main, entry in given if main]


def written(folder):
    """The lines of all transcripts in a folder, as if one run had written them."""
    lines = []
    for path in sorted(folder.glob("transcript_*.jsonl"), key=os.path.getmtime):
        own = path.read_bytes().splitlines(keepends=True)
        if lines and own:
            assert json.loads(own[0])["event"] == "continued"
            assert shape(replay(own[:1])) == shape(replay(lines))
        lines += own[1:] if lines else own
    return lines


def check_resumed(lines):
    """Take up the newest conversation, which is what these lines say, and go on."""
    before = {path: path.read_bytes() for path in FOLDER.glob("*.jsonl")}
    agent = Agent(client=StubClient(any_answer, any_answer), **SMALL)
    resume(agent, "1")
    assert shape(agent.messages) == shape(replay(lines))
    assert take_turn(agent, "And now?") == "Fine." and not agent.client.refused
    assert words_of(agent.messages) == [*typed(lines), "And now?"]
    needed = {exchange.call["name"] for exchange in still_needed(agent.messages)}
    assert needed == ({"todo_write", "read_file"} if planned(lines) else set())
    assert shape(load(agent.transcript)) == shape(drop_thinking(agent.messages))
    assert before == {path: path.read_bytes() for path in before}
    assert agent.transcript not in before
    agent.transcript.unlink()


def check_killed():
    """Nothing that was acknowledged is lost, and the work can go on."""
    given, lines = acknowledged(), written(FOLDER)
    assert [json.loads(line) for line in lines[: len(given)]] == given
    assert len(lines) <= len(given) + 1
    if lines:
        check_resumed(lines)
    return len(lines)


# ---- SIGKILL ----


def test_the_script_passes_every_kind_of_point(whole):
    kinds = set(json.loads((whole / "points").read_text()))
    streamed = {"request", "answer", "part", "end"}
    others = {"event", "approval", "before a line", "after a line"}
    assert kinds == AUDITED | streamed | others


def test_the_script_compacts_in_every_way(whole):
    events = [json.loads(line).get("event") for line in written(whole / FOLDER)]
    wanted = ["compact", "auto_compact", "refusal", "reactive_compact"]
    assert [event for event in events if event] == wanted
    assert len(list(whole.glob(".transcripts/transcript_*.jsonl"))) == 2
    assert list(whole.glob(".task_outputs/tool-results/*.txt"))
    assert list(whole.glob(".transcripts/task_*.jsonl"))


def test_after_sigkill_at_any_point_the_conversation_goes_on(whole, tmp_path):
    points, seen = json.loads((whole / "points").read_text()), set()
    for number, name in [*enumerate(points, 1)][::EVERY]:
        folder = tmp_path / str(number)
        pid = child(partial(run_script, folder, kill, [number]))
        assert ended(pid) == -signal.SIGKILL, f"point {number}, {name}"
        os.chdir(folder)
        try:
            seen.add(check_killed())
        except BaseException as error:
            raise AssertionError(f"killed at point {number}, {name}") from error
    lines = set(range(len(written(whole / FOLDER)) + 1))
    assert seen == lines if LONG_TESTS else len(seen) > len(lines) / 2


# ---- Ctrl-C ----


def in_batches(tmp_path, work, cases):
    """Do `work(case)` for each in one child; the tracebacks of those that failed."""
    report = tmp_path / "report"

    def batch():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        failed = {}
        for case in cases:
            try:
                work(case)
            except BaseException:  # noqa: BLE001  the parent is told
                failed[str(case)] = traceback.format_exc()
        report.write_text(json.dumps(failed))

    assert ended(child(batch)) == 0
    return json.loads(report.read_text())


def interrupted_turns(agent, turns):
    """Run the script until Ctrl-C comes, then one more turn; how often it came out."""
    times = 0
    try:
        play(agent, turns)
    except KeyboardInterrupt:
        times = 1
        with watched(lambda name: None):
            on_disk(agent, more=1)
    agent.client = StubClient(any_answer, any_answer)
    try:
        take_turn(agent, "Again")
    except KeyboardInterrupt:
        times += 1
    return times


def check_interrupted(agent):
    """The conversation is valid, on disk, and the next turn and Ctrl-C still work."""
    again, agent.client = agent.client, StubClient(any_answer, any_answer)
    agent.emit = lambda style, text: None
    assert take_turn(agent, "And now?") == "Fine."
    assert again.refused == agent.client.refused == []
    on_disk(agent)


def on_disk(agent, more=0):
    """What was written is what is in memory, but for what layer 1 clears there.

    After Ctrl-C the file may hold one line more: it is not gone on with.
    """
    path = agent.transcript
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    known = [shape(replay(lines[: len(lines) - n])) for n in range(more + 1)]
    assert shape(drop_thinking(agent.messages)) in known


class Lines:
    """Traces the lines of the program's functions that act on an agent."""

    def __init__(self, act=None, at=None):
        self.act, self.at, self.passed = act, at, {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename != program.__file__:
            return None
        return self.line if "agent" in code.co_varnames[: code.co_argcount] else None

    def line(self, frame, event, argument):
        if event == "line":
            place = frame.f_code.co_name, frame.f_lineno
            if place == self.at and place not in self.passed:
                self.passed[place] = True
                self.act()
            self.passed[place] = True
        return self.line


def traced_run(folder, lines):
    """An agent after the script, with its lines traced, and how often Ctrl-C came."""
    fill(folder)
    agent, before = act_on(lambda name: None), sys.gettrace()
    sys.settrace(lines)
    try:
        return agent, interrupted_turns(agent, script())
    finally:
        sys.settrace(before)


@pytest.fixture
def places(tmp_path):
    """All lines that the script passes, as (function, number of the line)."""

    def survey():
        traced_run(tmp_path / "survey", lines := Lines())
        (tmp_path / "lines").write_text(json.dumps(list(lines.passed)))

    assert ended(child(survey)) == 0
    return [tuple(place) for place in json.loads((tmp_path / "lines").read_text())]


def test_ctrl_c_at_any_line_leaves_a_valid_conversation(places, tmp_path):
    def work(place):
        folder = tmp_path / f"{place[0]}{place[1]}"
        agent, times = traced_run(folder, Lines(interrupt, place))
        assert times == 1
        check_interrupted(agent)

    assert len(places) > 100
    assert in_batches(tmp_path, work, places[::EVERY]) == {}
