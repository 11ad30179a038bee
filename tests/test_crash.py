"""SIGKILL and Ctrl-C at many lines of a scripted life, with LONG_TESTS at all of them.

The life has everything that an agent does: it streams, runs tools, starts a subagent,
saves a large result, plans and compacts in all three ways. Its replies are cut off,
empty or refused, and in the middle it is resumed from its file.
"""

import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

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
from stub import StubClient, reply

import agent as program
from agent import (
    STOPPED,
    Agent,
    AgentError,
    drop_thinking,
    load,
    resume,
    still_needed,
    take_turn,
    user_texts,
)

pytestmark = pytest.mark.slow

TINY_LIMITS = {
    "threshold": 4_000,
    "context_window": 9_000,
    "max_output": 1_000,
    "min_savings": 0,
}
LONG_ANSWER = "A long answer. " * 700  # brings the context over that threshold
HALF = LONG_ANSWER[: len(LONG_ANSWER) // 5]
BIG = ("bash", {"command": "seq 2000"})
COMPACT_NOTES = ("compact", {"focus": "the notes"})
TURNS = 3  # of the script, before the conversation is resumed
KILLS = 1_000 if LONG_TESTS else 16  # about so many
MOST_STOPS = 1_000 if LONG_TESTS else 50
WRITERS = {"append", "commit", "replace_history", "save", "change_file"}


def script():
    """The messages of the user, each with the model's replies."""
    return {
        "Look at everything": [
            reply("Let me look.", thinking="a plan", calls=[READ, PLAN, WRITE]),
            reply("Then this.", thinking="more", calls=[BIG, READ]),
            reply("Help me.", calls=[TASK]),
            reply("I look.", calls=[READ], thinking="its own"),
            reply("Its answer."),
            reply("I write", calls=[WRITE], stop="max_tokens"),
            reply("Enough of that.", calls=[COMPACT_NOTES, READ], thinking="so"),
            SUMMARY,
            reply("Done with that.", thinking="so"),
        ],
        "Tell me all": [
            reply(LONG_ANSWER, calls=[READ], thinking="long"),
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


class Lines:
    """Trace the program's lines as (function, number, nth time), and act at one."""

    def __init__(self, act=None, at=None):
        self.act, self.at, self.passed, self.times = act, at, [], Counter()

    def __call__(self, frame, event, argument):
        code = frame.f_code
        is_traced = self.at is None or code.co_name == self.at[0]
        return self.line if is_traced and code.co_filename == program.__file__ else None

    def line(self, frame, event, argument):
        if event == "line":
            line = frame.f_code.co_name, frame.f_lineno
            self.times[line] += 1
            self.passed.append((*line, self.times[line]))
            if self.passed[-1] == self.at:
                self.act()
        return self.line


def life_in(folder, lines):
    """Run the script in a new folder, and return its agent, even after Ctrl-C.

    The file `acknowledged` lists the entries that the transcript must have.
    """
    folder.mkdir()
    os.chdir(folder)
    Path("acknowledged").touch()
    Path("notes.txt").write_text("these are the notes\n" * 60)
    small = program.Limits(**TINY_LIMITS)
    agent = Agent(limits=small, client=StubClient(), approve=lambda *_: None)
    with patch.object(program, "commit", acknowledging(program.commit)):
        sys.settrace(lines)
        try:
            play(agent)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
    return agent


def acknowledging(commit):
    """Wrap `commit` to note each entry of the main conversation after writing it."""

    def noting(agent, entry):
        commit(agent, entry)
        if not agent.is_subagent:
            with open("acknowledged", "ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")

    return noting


def play(agent):
    """Play all turns, even when one ends in an AgentError."""
    for number, (text, replies) in enumerate(script().items()):
        if number == TURNS:
            resume(agent, "1")
        agent.client.queue.clear()
        agent.client.enqueue(*replies)
        with suppress(AgentError):
            take_turn(agent, text)


def lines_in(folder):
    """The lines that a whole life passes, in order."""
    life_in(folder, lines := Lines())
    return lines.passed


def some(places, number):
    """Choose about this many of the places, evenly spread."""
    return places[:: max(1, len(places) // number)]


def send(number):
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def killed_at(place, folder):
    """Run a life in a new process, and return whether SIGKILL at this line ended it."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == signal.SIGKILL
    with suppress(BaseException):
        life_in(folder, Lines(partial(send, signal.SIGKILL), place))
    os._exit(0)


# ---- checks ----


def acknowledged(folder="."):
    """The entries that must be in the transcript in this folder."""
    return [*map(json.loads, Path(folder, "acknowledged").read_bytes().splitlines())]


def replay(lines):
    """The conversation after these transcript entries, without thinking."""
    messages = []
    for entry in lines:
        messages = entry.get("messages", [*messages, entry])
    return drop_thinking(messages)


def words_in(lines):
    """The typed messages in these entries, except those that a refusal removed."""
    words = []
    for entry in lines:
        if entry.get("event") == "refusal":
            words.pop()
        elif "event" not in entry and type(entry["content"]) is str:
            words.append(entry["content"])
    return words


def check(agent):
    """Check that nothing acknowledged is lost, and that another turn works."""
    lines = acknowledged()
    if shape(agent.messages) != shape(
        replay(lines)
    ):  # it was written, but not acknowledged yet
        lines.append(json.loads(agent.transcript.read_bytes().splitlines()[-1]))
        assert shape(agent.messages) == shape(replay(lines))
    agent.client = StubClient(any_answer, any_answer)
    assert take_turn(agent, "And now?") == "Fine." and not agent.client.refused
    words = [text.removeprefix(STOPPED) for text in user_texts(agent.messages)]
    assert words == [*words_in(lines), "And now?"]
    needed = {
        exchange.call["name"] for exchange in still_needed(agent.messages, agent.tools)
    }
    planned = "1 of 2 still to do" in str(
        lines
    )  # and the notes were read in the same turn
    assert needed >= ({"todo_write", "read_file"} if planned else set())
    assert shape(load(agent.transcript).messages) == shape(agent.messages)


def check_killed(folder):
    """Check the same after resuming, if there is a conversation to resume."""
    os.chdir(folder)
    agent = Agent(limits=program.Limits(**TINY_LIMITS))
    with suppress(AgentError):
        resume(agent, "1")
    check(agent)


# ---- the tests ----


def test_a_life_compacts_in_every_way_and_saves_a_result(tmp_path):
    life_in(tmp_path / "life", Lines())
    events = [line.get("event") for line in acknowledged(tmp_path / "life")]
    wanted = ["compact", "auto_compact", "refusal", "reactive_compact"]
    assert [event for event in events if event] == wanted
    assert [*tmp_path.glob("life/.task_outputs/tool-results/*.txt")]
    assert len([*tmp_path.glob("life/.transcripts/t*.jsonl")]) == 2


def test_the_conversation_can_be_resumed_after_sigkill_at_any_line_that_writes(
    tmp_path,
):
    places = [place for place in lines_in(tmp_path / "whole") if place[0] in WRITERS]
    assert {name for name, _, _ in places} == WRITERS
    for number, place in enumerate(some(places, KILLS)):
        print(place)  # if the test fails, pytest shows the last one
        assert killed_at(place, tmp_path / str(number))
        check_killed(tmp_path / str(number))


# Python ignores an interrupt in a generator that is being closed, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_line_leaves_a_valid_conversation(tmp_path):
    places = [place for place in lines_in(tmp_path / "whole") if place[2] == 1]
    press = Mock(side_effect=partial(send, signal.SIGINT))
    for number, place in enumerate(some(places, MOST_STOPS)):
        print(place)  # if the test fails, pytest shows the last one
        check(life_in(tmp_path / str(number), Lines(press, place)))
    assert press.call_count > number // 2  # not every life waits for a process
