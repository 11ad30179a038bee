"""Subagents: what they are told, may do and answer, and how they end."""

from pathlib import Path

import pytest
from builders import (
    BASH,
    NO_SUMMARY,
    SUMMARY,
    TASK,
    lines_of,
    outputs,
    roles,
    shown,
    sized,
    typed,
)
from stub import api_error, reply

from agent import take_turn

ALWAYS = {"read_file", "write_file", "edit_file", "glob", "grep", "bash"}
ALWAYS |= {"todo_write", "compact", "task"}  # load_skill needs a skill


def subtranscript():
    """The path of the only subagent's transcript."""
    [path] = Path(".transcripts").glob("task_*.jsonl")
    return path


def test_a_subagent_starts_with_only_the_prompt(make):
    work = reply("Looking.", calls=[("bash", {"command": "echo detail"})])
    agent = make(reply(calls=[TASK]), work, reply("There are 3."), reply("Thanks."))
    assert take_turn(agent, "How many?") == "Thanks."
    assert outputs(*agent.messages) == ["There are 3."]
    assert lines_of(agent.transcript) == agent.messages and len(agent.messages) == 4
    assert roles(lines_of(subtranscript())) == ["user", "assistant"] * 2
    sent = agent.client.requests
    assert sent[1]["messages"] == [typed(TASK[1]["prompt"])]
    given = [{tool["name"] for tool in request["tools"]} for request in sent]
    assert given == [ALWAYS, ALWAYS - {"task"}, ALWAYS - {"task"}, ALWAYS]


SEQ = ("bash", {"command": "seq 1100"})
COMPACTING = {
    "auto_compact": ([[SEQ]] * 3, {"threshold": 6_000, "keep_recent": 9}),
    "compact": ([[SEQ, SEQ], [("compact", {})]], {"min_savings": 0}),
}


@pytest.mark.parametrize("event", COMPACTING)
def test_a_subagent_is_compacted_without_touching_its_parent(make, event):
    work, limits = COMPACTING[event]
    replies = [reply(calls=calls) for calls in [[TASK], *work]]
    answers = SUMMARY, reply("There are 3."), reply("Thanks.")
    agent = make(*replies, *answers, **limits)
    assert take_turn(agent, "How many?") == "Thanks."
    assert shown(agent, "error") == [] and agent.focus is None
    events = [e["event"] for e in lines_of(subtranscript()) if "event" in e]
    assert events == [event] and len(agent.messages) == 4


def test_a_failed_compaction_in_a_subagent_names_the_subagent(make):
    first, second = reply(sized(1_000), calls=[BASH]), reply(calls=[("compact", {})])
    work = first, second, NO_SUMMARY, reply("There are 3.")
    agent = make(reply(calls=[TASK]), *work, reply("Thanks."), min_savings=0)
    assert take_turn(agent, "How many?") == "Thanks."
    [error] = shown(agent, "error")
    assert error.startswith("look: [compact] failed")


FAILURES = {
    "no such thing": ("Look.", [reply(calls=[BASH]), api_error(400, "no such thing")]),
    "declined to answer": ("Look.", [reply(stop="refusal")]),
    "message is empty": (" \n", []),
}


@pytest.mark.parametrize("why", FAILURES)
def test_a_failed_subagent_gives_the_reason_and_its_transcript(make, why):
    prompt, failure = FAILURES[why]
    task = ("task", {"description": "count", "prompt": prompt})
    agent = make(reply(calls=[task]), *failure, reply("I see."))
    assert take_turn(agent, "How many?") == "I see."
    [result] = agent.messages[-2]["content"]
    assert result["is_error"] is True and why in result["content"]
    where = f"Its transcript is {subtranscript()}" if failure else "say what to do."
    assert where in result["content"]
    assert len(agent.client.requests) == 2 + len(failure)


def test_ctrl_c_in_a_subagent_keeps_both_conversations_valid(make, broken_glob):
    work = reply(calls=[("glob", {"pattern": "*"})])
    agent = make(reply(calls=[TASK, TASK]), work, reply("Yes."))
    broken_glob(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "How many?")
    assert lines_of(subtranscript())[-1]["content"][0]["is_error"] is True
    assert [b["is_error"] for b in agent.messages[-1]["content"]] == [True, True]
    assert take_turn(agent, "Are you there?") == "Yes."


def test_a_subagents_calls_need_approval_and_are_shown_with_its_name(make):
    work = reply("Let me see.", calls=[BASH])
    answers = reply(calls=[TASK]), work, reply("There are 3."), reply("Thanks.")
    asked = []
    agent = make(*answers, approve=lambda *question: asked.append(question))
    take_turn(agent, "How many?")
    assert asked == [("bash", "echo from bash")]
    own, its = shown(agent, "tool")
    assert own.startswith("[task]") and its.startswith("look: [bash]")
    assert shown(agent, "result") == ["from bash\n"]
    assert shown(agent, "answer") == ["There are 3."]
    assert "".join(shown(agent, "text")) == "Thanks."


def test_an_interrupted_subagent_names_its_transcript(make, broken_glob):
    work = reply(calls=[("glob", {"pattern": "*"})])
    agent = make(reply(calls=[TASK]), work)
    broken_glob(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "How many?")
    [result] = agent.messages[-1]["content"]
    assert f"Its transcript is {subtranscript()}." in result["content"]
    assert "The user interrupted the work" in result["content"]
