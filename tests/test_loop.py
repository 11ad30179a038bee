"""The loop: what each answer of the model does to the conversation.

The fixture `make` fails a test whose requests the API would not have taken, so each
test that begins another turn shows as well that the conversation was left valid.
"""

import itertools
import re
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import stub
from builders import (
    BASH,
    LONG,
    PLAN,
    READ,
    SMALL,
    SUMMARY,
    WRITE,
    call,
    fails,
    goes_on,
    layers,
    left,
    on_disk,
    results,
    roles,
    shown,
    texts,
    typed,
)
from stub import MARKER, EmptyQueue, api_error, encoded, reply

import agent as program
from agent import configured_limits, take_turn

pytestmark = pytest.mark.usefixtures("notes")


# ---- a turn ----


@pytest.mark.parametrize("stop", ["end_turn", "stop_sequence"])
def test_an_answer_without_calls_ends_the_turn(make, stop):
    agent = make(reply("Hello.", thinking="a greeting", stop=stop))
    assert take_turn(agent, "Hi") == "Hello."
    assert agent.messages[0] == typed("Hi")
    assert roles(agent.messages) == ["user", "assistant"] and goes_on(agent)


def test_text_and_thinking_are_shown_as_they_stream(make):
    agent = make(reply("Three little pieces.", thinking="a thought"))
    take_turn(agent, "Hi")
    for kind, whole in ("text", "Three little pieces."), ("thinking", "a thought"):
        pieces = shown(agent, kind)
        assert len(pieces) > 1 and "".join(pieces) == whole


def test_a_message_of_nothing_but_spaces_is_one_clear_line(make):
    agent = make()
    assert "say what to do" in fails(agent, " \n") and agent.messages == []


def test_an_error_that_nobody_foresaw_is_not_swallowed(make):
    with pytest.raises(EmptyQueue):
        take_turn(make(), "Hi")


# ---- empty replies ----

HM = {"type": "thinking", "thinking": "hm"}
EMPTY = {
    "no content": [],
    "an empty text": [{"type": "text", "text": ""}],
    "only spaces": [{"type": "text", "text": " \n"}],
    "only thinking": [HM],
    "only redacted thinking": [{"type": "redacted_thinking"}],
    "thinking and an empty text": [HM, {"type": "text", "text": ""}],
}


@pytest.mark.parametrize("case", EMPTY)
def test_an_empty_reply_is_not_kept_and_is_asked_for_with_a_new_message(make, case):
    agent = make(reply(content=EMPTY[case]), reply("Here I am."))
    assert take_turn(agent, "Hi") == "Here I am."
    first, second = (request["messages"] for request in agent.client.requests)
    assert second[: len(first)] == first and len(second) == len(first) + 1
    assert second[-1] == stub.in_short(program.note(program.CUT_OFF))
    assert not program.is_typed(agent.messages[-2])
    assert roles(agent.messages).count("assistant") == 1 and goes_on(agent)


def test_empty_texts_beside_a_call_are_left_out_and_its_thinking_stays(make):
    empty = {"type": "text", "text": ""}
    given = reply(content=[HM, empty, call("bash", command="true")])
    agent = make(given, reply("Done."))
    assert take_turn(agent, "Work") == "Done." and goes_on(agent)
    kept = [block["type"] for block in agent.messages[1]["content"]]
    assert kept == ["thinking", "tool_use"]


# ---- replies that are cut off ----


def cut_off():
    return reply("I write", calls=[WRITE], thinking="hm", stop="max_tokens")


def test_a_call_that_was_cut_off_is_answered_but_not_run(make):
    agent = make(cut_off(), cut_off(), cut_off(), reply("Done."))
    assert take_turn(agent, "Work") == "Done."
    told = [(r["is_error"], r["content"]) for r in results(*agent.messages)]
    assert told == [(True, program.CUT_OFF)] * 3
    assert not Path("made.txt").exists() and goes_on(agent)


UNFINISHED = {
    **{case: reply(content=content) for case, content in EMPTY.items()},
    "a call cut off": cut_off(),
    "a text cut off": reply("more ", stop="max_tokens"),
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_a_reply_that_is_empty_or_cut_off_again_and_again_ends_the_turn(make, case):
    agent = make(*[UNFINISHED[case]] * 4)
    assert "cut off" in fails(agent, "Work")
    assert len(agent.client.requests) == 4
    assert not Path("made.txt").exists() and goes_on(agent)


def test_parts_and_empty_replies_are_counted_together(make):
    part = UNFINISHED["a text cut off"]
    agent = make(*[part] * 2, *[reply(content=[])] * 2)
    assert "cut off" in fails(agent, "Work")
    assert len(agent.client.requests) == 4 and goes_on(agent)


# each row: the replies, the last of them whole, and the answer that they make
TWO = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two."}]
HALVES = {
    "a text": ([reply("One, ", stop="max_tokens"), reply("two.")], "One, two."),
    "four parts": ([*[reply("a", stop="max_tokens")] * 3, reply("b")], "aaab"),
    "nothing, then a text": ([reply(content=[]), reply("two.")], "two."),
    "before a call": (
        [reply("I look.", calls=[READ]), reply(content=TWO)],
        "One, two.",
    ),
    "before a call cut off": ([cut_off(), reply("Done.")], "Done."),
    "cut off, then a call": (
        [reply("I ", stop="max_tokens"), reply("look.", calls=[READ]), reply("Done.")],
        "Done.",
    ),
}


@pytest.mark.parametrize("case", HALVES)
def test_the_answer_is_every_word_since_the_last_call(make, case):
    replies, whole = HALVES[case]
    agent = make(*replies)
    assert take_turn(agent, "Tell") == whole and goes_on(agent)
    first = next(b["text"] for r in replies for b in r["content"] if "text" in b)
    assert first in str(agent.client.requests[-1]["messages"])


def test_thinking_that_was_cut_off_is_not_kept(make):
    agent = make(reply(thinking="and then", stop="max_tokens"), cut_off(), reply("Yes"))
    take_turn(agent, "Hi")
    assert "'thinking'" not in str(agent.messages) and goes_on(agent)


def test_work_in_between_makes_a_cut_off_reply_the_first_one_again(make):
    turns = [(*[cut_off()] * 3, reply(calls=[READ])) for _ in range(3)]
    agent = make(*itertools.chain(*turns), reply("Done."))
    assert take_turn(agent, "Work") == "Done."


# ---- refusals ----

WHY = {"type": "refusal", "category": "cyber", "explanation": "It looks like malware."}
REFUSALS = {
    "without a word": reply(content=[], stop="refusal"),
    "in the middle of a text": reply("First you", stop="refusal"),
    "in the middle of a call": reply("I", calls=[WRITE], thinking="h", stop="refusal"),
    "with a reason": reply(stop="refusal", details=WHY),
}


@pytest.mark.parametrize("before", [[], [reply("Hello.", thinking="hm")]])
@pytest.mark.parametrize("case", REFUSALS)
def test_neither_a_refusal_nor_what_drew_it_is_kept(make, case, before):
    agent = make(*before, REFUSALS[case])
    assert [take_turn(agent, "Hi") for _ in before] == ["Hello."] * len(before)
    kept = agent.messages
    fails(agent, "Something forbidden")
    assert agent.messages == kept and on_disk(agent)
    assert not Path("made.txt").exists() and goes_on(agent)
    assert "forbidden" not in str(agent.client.requests[-1])


NO = REFUSALS["without a word"]


def test_a_refusal_of_results_takes_their_calls_back_too(make):
    Path("notes.txt").write_text("a forbidden recipe")
    agent = make(reply("I look.", calls=[READ, BASH]), NO)
    fails(agent, "Read the notes")
    assert agent.messages == [typed("Read the notes")]
    assert on_disk(agent) and goes_on(agent)
    assert "forbidden" not in str(agent.client.requests[-1])


@pytest.mark.parametrize(
    "before", [[], [reply("I begin", stop="max_tokens")], [reply(content=[])]]
)
def test_a_refusal_soon_after_a_compaction_never_takes_the_summary_back(make, before):
    agent = make(reply(LONG), SUMMARY, *before, NO, **SMALL)
    take_turn(agent, "Tell me a story")
    fails(agent, "Something forbidden")
    words, summary, calls, tail = left(agent.messages)
    assert words == ["Tell me a story"] and (calls, tail) == ([], [])
    assert "All is well." in summary and goes_on(agent)


def test_a_refusal_right_after_a_compaction_takes_the_restored_files_back(make):
    replies = reply(calls=[READ]), reply(LONG), SUMMARY, NO
    agent = make(*replies, **SMALL)
    take_turn(agent, "Read the notes")
    fails(agent, "Something")
    words, summary, calls, tail = left(agent.messages)
    assert words == ["Read the notes", "Something"] and (calls, tail) == ([], [])
    assert "All is well." in summary and goes_on(agent)


def test_after_a_refusal_all_can_still_be_summarised(make):
    agent = make(reply("Hello."), reply("Yes."), NO, SUMMARY)
    for text in ("Hi", "Really?"):
        take_turn(agent, text)
    fails(agent, "Something forbidden")
    program.run_command(agent, "/compact")
    assert left(agent.messages).words == ["Hi", "Really?"]


@pytest.mark.parametrize("details, told", [(WHY, "malware"), ({}, "declined")])
def test_a_refusal_is_told_with_its_reason_if_there_is_one(make, details, told):
    details = dict.fromkeys(WHY) | details | {"type": "refusal"}
    agent = make(reply(stop="refusal", details=details))
    line = fails(agent, "Something forbidden")
    assert told in f"{line} {agent.events}" and "None" not in line


@pytest.mark.parametrize("details", [None, {"type": "refusal"}, dict.fromkeys(WHY)])
def test_a_refusal_without_a_reason_is_told_without_one(make, details):
    agent = make(reply(stop="refusal", details=details))
    line = fails(agent, "Something forbidden")
    assert line.strip() == "The model declined to answer." and agent.messages == []


# ---- other reasons to stop ----


def test_a_reply_with_an_unknown_stop_reason_is_a_reply(make):
    agent = make(reply("Yes.", stop="something_new"))
    assert take_turn(agent, "Work") == "Yes." and goes_on(agent)


# ---- what is sent ----


def long_work(agent):
    """The requests of a conversation with tools, a plan, a cut and two compactions."""
    agent.client.enqueue(
        reply("I plan.", calls=[PLAN, READ], thinking="first"),
        reply(LONG, calls=[("compact", {})], thinking="second"),
        SUMMARY,
        cut_off(),
        reply("Half.", thinking="third"),
        reply(LONG, thinking="fourth"),
        SUMMARY,
        reply("Done.", thinking="fifth"),
    )
    for text in "Begin", "Go on", "End it":
        take_turn(agent, text)
    return agent.client.requests


@pytest.mark.parametrize("thinking", [True, False])
def test_nothing_but_the_messages_changes_from_request_to_request(make, thinking):
    agent = make(thinking=thinking, model="some-model", **SMALL)
    requests = long_work(agent)
    first, [system] = requests[0], requests[0]["system"]
    assert (first["model"], first["max_tokens"]) == ("some-model", 8_000)
    assert not {"tool_choice", "temperature", "top_p", "top_k"} & first.keys()
    assert ("thinking" in first) is thinking
    assert system["cache_control"] == {"type": "ephemeral"}
    bodies = agent.client.bodies
    assert [encoded(body).count(MARKER) for body in bodies] == [2] * 8
    last = [request["messages"][-1]["content"][-1] for request in agent.client.bodies]
    assert all(block["cache_control"] == {"type": "ephemeral"} for block in last)
    for request in requests:
        assert request | {"messages": []} == first | {"messages": []}


def test_each_request_begins_with_the_one_before_but_for_the_marker(make):
    agent = make(reply("I look.", calls=[READ], thinking="hm"), reply("Done."))
    take_turn(agent, "Work")
    assert goes_on(agent)
    for earlier, later in itertools.pairwise(agent.client.bodies):
        before = [*map(stub.blocks, (m["content"] for m in earlier["messages"]))]
        after = [m["content"] for m in later["messages"]][: len(before)]
        assert [[*map(stub.without_marker, c)] for c in before] == after
        assert all("cache_control" not in block for c in after for block in c)


def test_a_folder_whose_name_is_no_text_can_be_worked_in(make, tmp_path, monkeypatch):
    folder = bytes(tmp_path) + b"/\xff"
    try:
        program.os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    monkeypatch.chdir(folder)
    agent = make(reply("Hello."))
    assert take_turn(agent, "Hi") == "Hello." and goes_on(agent)


# ---- what was stopped or failed ----


def unanswered(make, how):
    """An agent that was asked to delete the logs, and did not come to an answer."""
    call = reply(calls=[BASH])
    faults = {
        "stopped": [KeyboardInterrupt()],
        "refused key": [api_error(401, "No.")],
        "after a call": [call, KeyboardInterrupt()],
        "cut off": [reply(content=[])] * 4,
    }
    agent = make(*faults[how])
    with pytest.raises((KeyboardInterrupt, program.AgentError)):
        take_turn(agent, "Delete all the logs.")
    return agent


@pytest.mark.parametrize("how", ["stopped", "refused key", "after a call", "cut off"])
@pytest.mark.parametrize("resumed", [False, True])
def test_what_was_not_answered_is_marked_as_such_in_what_is_sent_next(
    make, how, resumed
):
    agent = unanswered(make, how)
    if resumed:
        program.resume(agent, str(agent.transcript))
    assert goes_on(agent)
    *before, mark, last = agent.client.requests[-1]["messages"]
    assert before[0] == typed("Delete all the logs.") and last == typed("And now?")
    assert "stopped, or it failed" in texts(mark)[0]


def test_what_was_stopped_is_known_as_such_after_a_compaction_too(make):
    agent = unanswered(make, "stopped")
    agent.messages += [program.note(program.UNANSWERED), typed("And now?")]
    stopped, _, request = program.rebuild(agent, "Short.")
    assert stopped == typed("Delete all the logs.") and request == typed("And now?")


def test_of_a_request_that_was_corrected_the_next_one_says_nothing_untrue(make):
    agent = make(KeyboardInterrupt(), reply(calls=[("compact", {})]), SUMMARY)
    agent.client.enqueue(reply("Done."))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Write the parser in Python 3.8.")
    assert take_turn(agent, "Use 3.10 for it.") == "Done."
    words, state, _, _ = left(agent.client.requests[-1]["messages"])
    assert words == ["Write the parser in Python 3.8.", "Use 3.10 for it."]
    assert "which of them are done, stopped or still open" in state
    untrue = "were answered|was answered|was stopped|dropped|Do not go on|not to be"
    assert not re.search(untrue, str(agent.client.requests[-1]["messages"]))


def test_what_was_answered_or_waits_is_not_marked(make):
    agent = make(reply(LONG), SUMMARY, reply("Yes."), reply("Yes."))
    take_turn(agent, "Tell me a story")
    program.run_command(agent, "/compact")
    assert [take_turn(agent, text) for text in ("And?", "And?")] == ["Yes."] * 2
    assert program.UNANSWERED not in str(agent.client.requests)


# ---- settings ----

NEVER = "1000000"
LAYER_1, LAYER_2 = "micro_compact", "auto_compact"
SMALL_WINDOW = {"CONTEXT_WINDOW": "24000", "MIN_SAVINGS": "1500"}


@pytest.mark.parametrize(
    "settings, acting",  # which of two layers act in the same work
    [
        ({}, {LAYER_1, LAYER_2}),
        ({"THRESHOLD": "0"}, {LAYER_1}),
        ({"KEEP_RECENT": NEVER}, {LAYER_2}),
        ({"CLEAR_ABOVE": NEVER}, {LAYER_2}),
        ({"THRESHOLD": "0", "CLEAR_ABOVE": NEVER}, set()),
    ],
)
def test_a_setting_switches_a_layer_off(make, monkeypatch, settings, acting):
    for name, value in {**SMALL_WINDOW, **settings}.items():
        monkeypatch.setenv(name, value)
    reads = [reply(calls=[READ]) for _ in range(5)]
    agent = make(*reads, reply(LONG), limits=configured_limits())
    take_turn(agent, "Read")
    agent.client.enqueue(*[SUMMARY] * (LAYER_2 in acting), reply("Done."))
    assert take_turn(agent, "And?") == "Done."
    assert {*layers(agent)} & {LAYER_1, LAYER_2} == acting


NUMBERS = dict.fromkeys(vars(program.Limits()), 7)
NUMBERS |= {"context_window": 7_000, "threshold": 7_000}


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_each_field_of_the_limits_is_a_setting_of_that_name(monkeypatch, name):
    monkeypatch.setenv(name.upper(), str(NUMBERS[name]))
    assert vars(configured_limits())[name] == NUMBERS[name]


@pytest.mark.parametrize(
    "given, threshold",
    [("1", 2_000), ("500", 2_000), ("1999", 2_000), ("2001", 2_001), ("0", 200_000)],
)
def test_a_threshold_that_nothing_fits_is_2000_and_0_is_the_window(
    monkeypatch, given, threshold
):
    monkeypatch.setenv("THRESHOLD", given)
    assert configured_limits().threshold == threshold


def test_a_reply_has_a_third_of_a_small_window_at_most_whatever_is_asked_for(
    monkeypatch,
):
    monkeypatch.setenv("MAX_OUTPUT", "100000")
    assert configured_limits(24_000).max_output == 8_000
    assert configured_limits(200_000, 64_000).max_output == 64_000
    monkeypatch.setenv("MAX_OUTPUT", "0")  # as if it were not set
    assert configured_limits().max_output == program.MAX_OUTPUT


def test_no_threshold_leaves_the_other_numbers_as_they_are(monkeypatch):
    usual = configured_limits()
    monkeypatch.setenv("THRESHOLD", "0")
    made, window = configured_limits(), usual.context_window
    assert (made.threshold, made.clear_above) == (window, window * 7 // 10)
    assert made == replace(usual, threshold=0, clear_above=made.clear_above)
    assert usual.clear_above == usual.threshold * 7 // 10


@pytest.mark.parametrize("window", [5_000, 4_000, 3_999, 0])
def test_a_window_of_4000_tokens_is_the_smallest(monkeypatch, window):
    monkeypatch.setenv("CONTEXT_WINDOW", str(window))
    assert program.configured_limits().context_window == max(window, 4_000)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGINT"])
def test_a_signal_that_is_ignored_stays_so_as_under_nohup(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    program.handle_signals(Mock())
    assert signal.signal(number, before) == signal.SIG_IGN


def test_a_call_with_an_id_that_was_given_before_gets_one_of_its_own(make):
    again = call("glob", pattern="*")
    same = reply(content=[again]), reply(content=[again, again])
    agent = make(*same, reply("Done."))
    assert take_turn(agent, "Look twice.") == "Done."
    assert program.load(agent.transcript).messages == agent.messages


def test_a_turn_ends_after_max_requests_and_go_on_continues(make):
    again = [reply(calls=[("bash", {"command": "echo noop"})])] * 3
    agent = make(*again, reply("Done."), max_requests=3)
    assert "3 requests (MAX_REQUESTS)" in fails(agent, "Work.")
    assert len(agent.client.requests) == 3 and program.in_progress(agent.messages)
    assert take_turn(agent, "Go on.") == "Done."


def test_without_max_requests_a_turn_may_make_any_number(make):
    again = [reply(calls=[("bash", {"command": "true"})])] * 9
    assert take_turn(make(*again, reply("Done."), max_requests=0), "Work.") == "Done."
