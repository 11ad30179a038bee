"""SIGKILL and Ctrl-C at lines of a scripted life: at some, or at all (LONG_TESTS).

The life has all that an agent does: it streams, runs tools, hands work to a subagent,
saves a large result, plans, compacts in all three ways, is cut off, answered with
nothing, refused, and taken up from its file. Each is a process of its own, forked,
because starting Python anew for each would take minutes.
"""

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
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
    shape,
)
from stub import StubClient, count, reply, tokens

import agent as program
from agent import (
    Agent,
    AgentError,
    drop_thinking,
    load,
    resume,
    still_needed,
    take_turn,
    user_texts,
)

SMALL = {
    "threshold": 4_000,
    "context_window": 5_000,
    "max_output": 1_000,
    "min_savings": 0,
}
LONG = "A long answer. " * 700  # brings the context over that threshold
HALF = LONG[: len(LONG) * 2 // 5]
BIG = ("bash", {"command": "seq 2000"})
COMPACT = ("compact", {"focus": "the notes"})
TURNS = 3  # of the script, before the conversation is taken up from its file
KILLS = 1_000 if LONG_TESTS else 16  # about so many, evenly spread
EVERY = 1 if LONG_TESTS else 15  # how many lines make one at which Ctrl-C comes


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


class Unchecked(StubClient):
    """Each life ends in a check, so requests need none."""

    def take(self, request):
        given = self.queue.popleft()
        if isinstance(given, BaseException):
            raise given
        return given

    def usage(self, body, content):
        total = count(body["system"], body["tools"], body["messages"])
        return {"input_tokens": total, "output_tokens": tokens(content)}


def writes(function):
    """Whether it is given a path, or returns one, and nothing that stands there."""
    kinds = getattr(function, "__annotations__", {})
    return Path in kinds.values() and kinds.get("return", "") in (None, Path)


WRITERS = {name for name, value in vars(program).items() if writes(value)}


class Lines:
    """Traces the program's lines that act on an agent or a file; acts at one of them.

    How often a line that waits for a process is passed is left to chance: not these.
    """

    def __init__(self, act=None, at=-1):
        self.act, self.at, self.passed, self.stopped = act, at, [], False

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename != program.__file__:
            return None
        acts = "agent" in code.co_varnames[: code.co_argcount]
        return self.line if acts or code.co_name in WRITERS else None

    def line(self, frame, event, argument):
        if event == "line":
            self.passed.append((frame.f_code.co_name, frame.f_lineno))
            if len(self.passed) - 1 == self.at:
                self.act()
        return self.line


def life_in(folder, lines):
    """The agent after the script in a new folder, or until Ctrl-C came.

    What its transcript is known to have stands in the file `acknowledged`.
    """
    folder.mkdir()
    os.chdir(folder)
    Path("notes.txt").write_text("these are the notes\n" * 60)
    small = program.Limits(**SMALL)
    agent = Agent(limits=small, client=Unchecked(), approve=lambda *_: None)
    commit = program.commit
    with open("acknowledged", "ab", buffering=0) as file:

        def acknowledged(agent, entry):
            commit(agent, entry)
            if "task" in agent.tools:  # no subagent
                file.write(json.dumps(entry).encode() + b"\n")

        program.commit = acknowledged
        sys.settrace(lines)
        try:
            play(agent)
        except KeyboardInterrupt:
            lines.stopped = True
        finally:
            sys.settrace(None)
            program.commit = commit
    return agent


def play(agent):
    """All turns; what ends one with a clear line does not end the others."""
    for number, (text, replies) in enumerate(script().items()):
        if number == TURNS:
            resume(agent, "1")
        agent.client.queue.clear()
        agent.client.enqueue(*replies)
        with suppress(AgentError):
            take_turn(agent, text)


def signalled(number):
    """The function that sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def status_of(work, *given):
    """How `work` ends in a process of its own: 0, 1, or minus a signal."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        work(*given)
        status = 0
    except BaseException:  # noqa: BLE001  the parent shows it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """What is there before a fork is not looked through, and copied, in each child."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """The lines that the life passes, as (function, number), each as often as it is."""
    folder = tmp_path_factory.mktemp("whole")

    def survey():
        life_in(folder / "life", lines := Lines())
        (folder / "lines").write_text(json.dumps(lines.passed))

    assert status_of(survey) == 0
    return [tuple(place) for place in json.loads((folder / "lines").read_text())]


# ---- what must hold afterwards ----


def acknowledged(folder="."):
    """The lines that are known to be in a transcript of this folder."""
    return [*map(json.loads, Path(folder, "acknowledged").read_bytes().splitlines())]


def replay(lines):
    """The conversation that these lines of a transcript make, without thinking."""
    messages = []
    for entry in lines:
        messages = entry.get("messages", [*messages, entry])
    return drop_thinking(messages)


def words_in(lines):
    """What the person typed and did not take back, of these lines."""
    words = []
    for entry in lines:
        if entry.get("event") == "refusal":
            words.pop()
        elif "event" not in entry and type(entry["content"]) is str:
            words.append(entry["content"])
    return words


def check(agent):
    """Nothing that was acknowledged is lost, and the work can go on."""
    lines = acknowledged()
    if shape(agent.messages) != shape(replay(lines)):  # it came just after a line
        lines.append(json.loads(agent.transcript.read_bytes().splitlines()[-1]))
        assert shape(agent.messages) == shape(replay(lines))
    agent.client = StubClient(any_answer, any_answer)
    assert take_turn(agent, "And now?") == "Fine." and not agent.client.refused
    assert user_texts(agent.messages) == [*words_in(lines), "And now?"]
    needed = {
        exchange.call["name"] for exchange in still_needed(agent.messages, agent.tools)
    }
    planned = "1 of 2 still to do" in str(lines)  # and the notes were read beside it
    assert needed >= ({"todo_write", "read_file"} if planned else set())
    assert shape(load(agent.transcript).messages) == shape(agent.messages)


def check_killed(folder):
    """The same of another process, if there is anything that it can take up."""
    os.chdir(folder)
    agent = Agent(limits=program.Limits(**SMALL))
    with suppress(AgentError):
        resume(agent, "1")
    check(agent)


# ---- the tests ----


def test_the_life_compacts_in_every_way_and_saves_a_result(tmp_path):
    assert status_of(life_in, tmp_path / "life", Lines()) == 0
    events = [line.get("event") for line in acknowledged(tmp_path / "life")]
    wanted = ["compact", "auto_compact", "refusal", "reactive_compact"]
    assert [event for event in events if event] == wanted
    assert [*tmp_path.glob("life/.task_outputs/tool-results/*.txt")]
    assert len([*tmp_path.glob("life/.transcripts/t*.jsonl")]) == 2


def test_after_sigkill_at_any_line_the_conversation_goes_on(passed, tmp_path):
    kill = signalled(signal.SIGKILL)
    for at in range(0, len(passed), max(1, len(passed) // KILLS)):
        folder = tmp_path / str(at)
        assert status_of(life_in, folder, Lines(kill, at)) == -signal.SIGKILL, passed[
            at
        ]
        try:
            check_killed(folder)
        except BaseException as error:
            raise AssertionError(f"killed at {passed[at]}") from error


def test_ctrl_c_at_any_line_leaves_a_valid_conversation(passed, tmp_path):
    ends = "conversations"  # a generator: Python drops what comes as one is closed
    places = [place for place in dict.fromkeys(passed) if place[0] != ends]
    assert len(places) > 200

    def all_of_them():
        for place in places[::EVERY]:
            folder, at = tmp_path / f"{place[0]}{place[1]}", passed.index(place)
            lines = Lines(signalled(signal.SIGINT), at)
            try:
                check(life_in(folder, lines))
                assert lines.stopped
            except BaseException as error:
                raise AssertionError(f"stopped at {place}") from error

    assert status_of(all_of_them) == 0  # one process, for to fork takes its time
