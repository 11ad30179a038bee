"""The loop: how each kind of reply changes the conversation.

The fixture `make` fails a test whose requests the API would reject. So each test that
starts another turn also shows that the conversation is still valid.
"""

import itertools
import re
import signal
import sys
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
    TASK,
    WRITE,
    bash,
    call,
    did,
    fails,
    goes_on,
    layers,
    left,
    on_disk,
    results,
    roles,
    said,
    shown,
    sized,
    texts,
    typed,
)
from stub import MARKER, EmptyQueue, StubClient, api_error, encoded, reply

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


def test_a_message_of_only_spaces_is_one_clear_error(make):
    agent = make()
    assert "say what to do" in fails(agent, " \n") and agent.messages == []


def test_an_unexpected_error_is_not_swallowed(make):
    with pytest.raises(EmptyQueue):
        take_turn(make(), "Hi")


# ---- empty replies ----

HM = {"type": "thinking", "thinking": "hm"}
EMPTY_REPLIES = {
    "no content": [],
    "an empty text": [{"type": "text", "text": ""}],
    "only spaces": [{"type": "text", "text": " \n"}],
    "only thinking": [HM],
    "only redacted thinking": [{"type": "redacted_thinking"}],
    "thinking and an empty text": [HM, {"type": "text", "text": ""}],
}


@pytest.mark.parametrize("case", EMPTY_REPLIES)
def test_an_empty_reply_is_dropped_and_requested_again_with_a_note(make, case):
    agent = make(reply(content=EMPTY_REPLIES[case]), reply("Here I am."))
    assert take_turn(agent, "Hi") == "Here I am."
    first, second = (request["messages"] for request in agent.client.requests)
    assert second[: len(first)] == first and len(second) == len(first) + 1
    assert second[-1] == stub.in_short(program.note(program.CUT_OFF))
    assert not program.is_typed(agent.messages[-2])
    assert roles(agent.messages).count("assistant") == 1 and goes_on(agent)


def test_empty_texts_beside_a_call_are_dropped_but_its_thinking_stays(make):
    empty = {"type": "text", "text": ""}
    given = reply(content=[HM, empty, call("bash", command="true")])
    agent = make(given, reply("Done."))
    assert take_turn(agent, "Work") == "Done." and goes_on(agent)
    kept = [block["type"] for block in agent.messages[1]["content"]]
    assert kept == ["thinking", "tool_use"]


# ---- replies that are cut off ----


def cut_off():
    """A reply that breaks off inside a call."""
    return reply("I write", calls=[WRITE], thinking="hm", stop="max_tokens")


def test_a_call_that_was_cut_off_gets_an_error_and_does_not_run(make):
    agent = make(cut_off(), cut_off(), cut_off(), reply("Done."))
    assert take_turn(agent, "Work") == "Done."
    errors = [(r["is_error"], r["content"]) for r in results(*agent.messages)]
    assert errors == [(True, program.CUT_OFF)] * 3
    assert not Path("made.txt").exists() and goes_on(agent)


UNFINISHED = {
    **{case: reply(content=content) for case, content in EMPTY_REPLIES.items()},
    "a call cut off": cut_off(),
    "a text cut off": reply("more ", stop="max_tokens"),
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_too_many_empty_or_cut_off_replies_in_a_row_end_the_turn(make, case):
    agent = make(*[UNFINISHED[case]] * 4)
    assert "cut off" in fails(agent, "Work")
    assert len(agent.client.requests) == 4
    assert not Path("made.txt").exists() and goes_on(agent)


def test_cut_off_and_empty_replies_count_together(make):
    part = UNFINISHED["a text cut off"]
    agent = make(*[part] * 2, *[reply(content=[])] * 2)
    assert "cut off" in fails(agent, "Work")
    assert len(agent.client.requests) == 4 and goes_on(agent)


# For each case: the replies, of which only the last is whole, and the answer.
TWO = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two."}]
WHOLE_ANSWERS = {
    "a text": ([reply("One, ", stop="max_tokens"), reply("two.")], "One, two."),
    "four parts": ([*[reply("a", stop="max_tokens")] * 3, reply("b")], "aaab"),
    "nothing, then a text": ([reply(content=[]), reply("two.")], "two."),
    "before a call": (
        [reply("I look.", calls=[READ]), reply(content=TWO)],
        "One, two.",
    ),
    "before a call cut off": ([cut_off(), reply("Done.")], "Done."),
    "as other APIs say it": (
        [reply("One, ", stop="length"), reply("two.")],
        "One, two.",
    ),
    "cut off, then a call": (
        [reply("I ", stop="max_tokens"), reply("look.", calls=[READ]), reply("Done.")],
        "Done.",
    ),
}


@pytest.mark.parametrize("case", WHOLE_ANSWERS)
def test_the_answer_is_all_text_since_the_last_call(make, case):
    replies, whole = WHOLE_ANSWERS[case]
    agent = make(*replies)
    assert take_turn(agent, "Tell") == whole and goes_on(agent)
    first = next(b["text"] for r in replies for b in r["content"] if "text" in b)
    assert first in str(agent.client.requests[-1]["messages"])


def test_thinking_in_a_cut_off_reply_is_not_kept(make):
    agent = make(reply(thinking="and then", stop="max_tokens"), cut_off(), reply("Yes"))
    take_turn(agent, "Hi")
    assert "'thinking'" not in str(agent.messages) and goes_on(agent)


def test_a_tool_call_resets_the_count_of_cut_off_replies(make):
    turns = [(*[cut_off()] * 3, reply(calls=[READ])) for _ in range(3)]
    agent = make(*itertools.chain(*turns), reply("Done."))
    assert take_turn(agent, "Work") == "Done."


# ---- refusals by the model ----

REASON = {
    "type": "refusal",
    "category": "cyber",
    "explanation": "It looks like malware.",
}
REFUSALS = {
    "empty": reply(content=[], stop="refusal"),
    "within a text": reply("First you", stop="refusal"),
    "within a call": reply("I", calls=[WRITE], thinking="h", stop="refusal"),
    "with a reason": reply(stop="refusal", details=REASON),
}


@pytest.mark.parametrize("before", [[], [reply("Hello.", thinking="hm")]])
@pytest.mark.parametrize("case", REFUSALS)
def test_neither_a_refusal_nor_the_message_that_caused_it_is_kept(make, case, before):
    agent = make(*before, REFUSALS[case])
    assert [take_turn(agent, "Hi") for _ in before] == ["Hello."] * len(before)
    kept = agent.messages
    fails(agent, "Something forbidden")
    assert agent.messages == kept and on_disk(agent)
    assert not Path("made.txt").exists() and goes_on(agent)
    assert "forbidden" not in str(agent.client.requests[-1])


NO = REFUSALS["empty"]


def test_a_refusal_after_tool_results_drops_their_calls_too(make):
    Path("notes.txt").write_text("a forbidden recipe")
    agent = make(reply("I look.", calls=[READ, BASH]), NO)
    fails(agent, "Read the notes")
    assert agent.messages == [typed("Read the notes")]
    assert on_disk(agent) and goes_on(agent)
    assert "forbidden" not in str(agent.client.requests[-1])


@pytest.mark.parametrize(
    "before", [[], [reply("I begin", stop="max_tokens")], [reply(content=[])]]
)
def test_a_refusal_soon_after_a_compaction_never_drops_the_summary(make, before):
    agent = make(reply(LONG), SUMMARY, *before, NO, **SMALL)
    take_turn(agent, "Tell me a story")
    fails(agent, "Something forbidden")
    kept, summary, calls, [story] = left(agent.messages)
    assert kept == ["Tell me a story"] and calls == []
    assert texts(story)[0].startswith("A long answer.")
    assert "All is well." in summary and goes_on(agent)


def test_a_refusal_right_after_a_compaction_drops_the_newest_results(make, notes):
    work = [("compact", {}), READ]
    agent = make(reply(calls=[READ]), reply(LONG, calls=work), SUMMARY, NO, **SMALL)
    fails(agent, "Read the notes")
    kept, summary, calls, tail = left(agent.messages)
    assert kept == ["Read the notes"] and (calls, tail) == ([], [])
    assert "All is well." in summary and goes_on(agent)


@pytest.mark.parametrize("number", [1, 2])
def test_a_request_declined_right_after_a_compaction_leaves_the_summary(make, number):
    agent = make(reply(LONG), SUMMARY, *[NO] * number, **SMALL)
    take_turn(agent, "Tell me a story")
    program.run_command(agent, "/compact")
    agent.messages = [m for m in agent.messages if m["role"] == "user"]  # no tail
    program.replace_history(agent, "compact", "", [*agent.messages], on_disk=True)
    for _ in range(number):
        fails(agent, "Something forbidden")
    assert program.summary_end(agent.messages) == len(agent.messages) == 2
    assert on_disk(agent) and goes_on(agent)


def test_after_a_refusal_the_conversation_can_still_be_summarised(make):
    agent = make(reply(LONG), reply("Hello."), NO, SUMMARY)
    for text in ("Hi", "Really?"):
        take_turn(agent, text)
    fails(agent, "Something forbidden")
    program.run_command(agent, "/compact")
    assert left(agent.messages).words == ["Hi", "Really?"]


@pytest.mark.parametrize("details, expected", [(REASON, "malware"), ({}, "declined")])
def test_a_refusal_is_shown_with_its_reason_if_it_has_one(make, details, expected):
    details = dict.fromkeys(REASON) | details | {"type": "refusal"}
    agent = make(reply(stop="refusal", details=details))
    line = fails(agent, "Something forbidden")
    assert expected in f"{line} {agent.events}" and "None" not in line


@pytest.mark.parametrize("details", [None, {"type": "refusal"}, dict.fromkeys(REASON)])
def test_a_refusal_without_a_reason_is_shown_without_one(make, details):
    agent = make(reply(stop="refusal", details=details))
    line = fails(agent, "Something forbidden")
    assert line.strip() == "The model declined to answer." and agent.messages == []


# ---- other reasons to stop ----


def test_a_reply_with_an_unknown_stop_reason_is_accepted(make):
    agent = make(reply("Yes.", stop="something_new"))
    assert take_turn(agent, "Work") == "Yes." and goes_on(agent)


# ---- what is sent ----


def long_work(agent):
    """The requests of work with tools, a plan, a cut-off reply and two compactions."""
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
def test_only_the_messages_change_from_request_to_request(make, thinking):
    agent = make(thinking=thinking, model="some-model", **SMALL)
    requests = long_work(agent)
    first = requests[0]
    assert (first["model"], first["max_tokens"]) == ("some-model", 8_000)
    assert not {"tool_choice", "temperature", "top_p", "top_k"} & first.keys()
    assert ("thinking" in first) is thinking
    for request in requests:
        assert request | {"messages": []} == first | {"messages": []}


@pytest.mark.parametrize("thinking", [True, False])
def test_cache_markers_are_on_the_system_prompt_and_on_the_last_block(make, thinking):
    agent = make(thinking=thinking, **SMALL)
    [system] = long_work(agent)[0]["system"]
    assert system["cache_control"] == {"type": "ephemeral"}
    bodies = agent.client.bodies
    assert [encoded(body).count(MARKER) for body in bodies] == [2] * 8
    last = [body["messages"][-1]["content"][-1] for body in bodies]
    assert all(block["cache_control"] == {"type": "ephemeral"} for block in last)


def test_each_request_starts_with_the_previous_one_except_for_cache_markers(make):
    agent = make(reply("I look.", calls=[READ], thinking="hm"), reply("Done."))
    take_turn(agent, "Work")
    assert goes_on(agent)
    for earlier, later in itertools.pairwise(agent.client.bodies):
        before = [*map(stub.blocks, (m["content"] for m in earlier["messages"]))]
        after = [m["content"] for m in later["messages"]][: len(before)]
        assert [[*map(stub.without_marker, c)] for c in before] == after
        assert all("cache_control" not in block for c in after for block in c)


def test_it_works_in_a_folder_whose_name_is_not_valid_text(make, tmp_path, monkeypatch):
    folder = bytes(tmp_path) + b"/\xff"
    try:
        program.os.mkdir(folder)
    except OSError:
        pytest.skip("this file system only allows valid text as names")
    monkeypatch.chdir(folder)
    agent = make(reply("Hello."))
    assert take_turn(agent, "Hi") == "Hello." and goes_on(agent)


# ---- interrupted and failed turns ----


def unanswered(make, how):
    """An agent that was asked to delete the logs and never answered."""
    call = reply(calls=[BASH])
    faults = {
        "interrupted": [KeyboardInterrupt()],
        "invalid key": [api_error(401, "No.")],
        "after a call": [call, KeyboardInterrupt()],
        "cut off": [reply(content=[])] * 4,
    }
    agent = make(*faults[how])
    with pytest.raises((KeyboardInterrupt, program.AgentError)):
        take_turn(agent, "Delete all the logs.")
    return agent


@pytest.mark.parametrize(
    "how", ["interrupted", "invalid key", "after a call", "cut off"]
)
@pytest.mark.parametrize("resumed", [False, True])
def test_an_unanswered_message_is_marked_in_the_next_request(make, how, resumed):
    agent = unanswered(make, how)
    if resumed:
        program.resume(agent, str(agent.transcript))
    assert goes_on(agent)
    *before, mark, last = agent.client.requests[-1]["messages"]
    assert before[0] == typed("Delete all the logs.") and last == typed("And now?")
    assert "was stopped or failed before" in texts(mark)[0]


def test_a_compaction_keeps_an_interrupted_request_among_the_older_messages(make):
    agent = unanswered(make, "interrupted")
    agent.messages += [program.note(program.UNANSWERED), typed("And now?")]
    older, _, request = program.rebuild(agent, "Short.")[0]
    marked = typed(f"{program.STOPPED}Delete all the logs.")
    assert older == marked and request == typed("And now?")


def test_a_stopped_order_keeps_its_mark_over_any_number_of_compactions(make):
    agent = unanswered(make, "after a call")
    agent.messages += [program.note(program.UNANSWERED)]
    for n in range(3):
        agent.messages += [typed(f"Go on {n}."), *did(sized(9_000)), said("Done.")]
        agent.messages = program.rebuild(agent, "Short.")[0]
        stopped, *others = program.user_texts(agent.messages)
        assert stopped == f"{program.STOPPED}Delete all the logs."
        assert program.STOPPED not in str(others)


def test_a_stopped_order_keeps_its_mark_when_the_middle_is_cut_out():
    first = [typed("Hi."), typed("Are you there?"), said("Yes.")]
    asked = [typed("Delete all the logs."), program.note(program.UNANSWERED)]
    after = [typed("Go on."), *did("one"), *did("two"), *did("three"), said("Done.")]
    messages = program.snip_compact([*first, *asked, *after], 8, None, {})
    assert messages[3] == typed(f"{program.STOPPED}Delete all the logs.")
    assert messages[5] == typed("Go on.") and asked[1] not in messages


def test_of_a_stopped_order_that_is_cut_the_mark_stays(make):
    agent = unanswered(make, "interrupted")
    agent.messages = [typed(LONG * 9), program.note(program.UNANSWERED)]
    agent.messages += [typed("And now?"), *did(sized(9_000)), said("Done.")]
    for _ in range(3):
        agent.limits.threshold = 8_000
        agent.messages = program.rebuild(agent, "Short.")[0]
        [stopped, _] = program.user_texts(agent.messages)
        assert stopped.startswith(program.STOPPED) and "bytes are left out" in stopped


def test_all_that_was_typed_in_a_stopped_turn_is_marked_and_nothing_else():
    stopped = [typed("Drop the tables."), *did("one"), typed("And the views.")]
    note = program.note(program.UNANSWERED)
    messages = [typed("Hi"), said("Hi."), *stopped, note, typed("Why?"), said("So.")]
    marked = program.user_texts(program.mark_stopped(messages))
    assert [text.startswith(program.STOPPED) for text in marked] == [0, 1, 1, 0]
    again = [*program.mark_stopped(messages)[:-2], typed("Go on."), note]
    assert str(program.mark_stopped(again)).count(program.STOPPED) == 3


def test_a_stopped_request_is_marked_though_a_command_of_the_user_follows_it():
    ran = program.note(f"{program.OWN_COMMAND}git status]\nclean")
    messages = [typed("Hi"), said("Hi."), typed("Do it."), *did("a"), ran]
    messages += [program.note(program.UNANSWERED), typed("Why?"), said("So.")]
    assert program.turn_start(messages[:6]) == 2
    marked = program.user_texts(program.mark_stopped(messages))
    assert marked == ["Hi", f"{program.STOPPED}Do it.", "Why?"]


def test_nothing_untrue_is_sent_about_a_request_that_was_corrected(make):
    work = reply(LONG, calls=[BASH]), reply(calls=[("compact", {})])
    agent = make(KeyboardInterrupt(), *work, SUMMARY, reply("Done."))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Write the parser in Python 3.8.")
    assert take_turn(agent, "Use 3.10 for it.") == "Done."
    kept, summary, _, _ = left(agent.messages)
    stopped = f"{program.STOPPED}Write the parser in Python 3.8."
    assert kept == [stopped, "Use 3.10 for it."]
    assert "which of their requests are done, stopped or still open" in summary
    untrue = "were answered|was answered|was stopped|dropped|Do not go on|not to be"
    assert not re.search(untrue, str(agent.client.requests[-1]["messages"]))


def test_answered_messages_are_not_marked_as_unanswered(make):
    agent = make(reply(LONG), reply("Yes."), SUMMARY, reply("Yes."), reply("Yes."))
    take_turn(agent, "Tell me a story")
    take_turn(agent, "Is that all?")
    program.run_command(agent, "/compact")
    assert [take_turn(agent, text) for text in ("And?", "And?")] == ["Yes."] * 2
    assert program.UNANSWERED not in str(agent.client.requests)


# ---- settings ----

HUGE = "1000000"
LAYER_1, LAYER_2 = "micro_compact", "auto_compact"
SMALL_WINDOW = {"CONTEXT_WINDOW": "24000", "MIN_SAVINGS": "1500"}


@pytest.mark.parametrize(
    "settings, acting",  # the layers that act, of these two
    [
        ({}, {LAYER_1, LAYER_2}),
        ({"THRESHOLD": "0"}, {LAYER_1}),
        ({"KEEP_RECENT": HUGE}, {LAYER_2}),
        ({"CLEAR_ABOVE": HUGE}, {LAYER_2}),
        ({"THRESHOLD": "0", "CLEAR_ABOVE": HUGE}, set()),
    ],
)
def test_settings_can_switch_layers_off(make, monkeypatch, settings, acting):
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
def test_each_field_of_limits_is_a_setting_of_the_same_name(monkeypatch, name):
    monkeypatch.setenv(name.upper(), str(NUMBERS[name]))
    assert vars(configured_limits())[name] == NUMBERS[name]


@pytest.mark.parametrize(
    "given, threshold",
    [("1", 2_000), ("500", 2_000), ("1999", 2_000), ("2001", 2_001), ("0", 200_000)],
)
def test_the_smallest_threshold_is_2000_and_0_means_the_whole_window(
    monkeypatch, given, threshold
):
    monkeypatch.setenv("THRESHOLD", given)
    assert configured_limits().threshold == threshold


def test_a_reply_gets_at_most_a_third_of_a_small_window(
    monkeypatch,
):
    monkeypatch.setenv("MAX_OUTPUT", "100000")
    assert configured_limits(24_000).max_output == 8_000
    assert configured_limits(200_000, 64_000).max_output == 64_000
    monkeypatch.setenv("MAX_OUTPUT", "0")  # as if it were not set
    assert configured_limits().max_output == program.MAX_OUTPUT


def test_threshold_0_changes_no_other_limit_except_shares_of_it(monkeypatch):
    default = configured_limits()
    monkeypatch.setenv("THRESHOLD", "0")
    limits, window = configured_limits(), default.context_window
    assert (limits.threshold, limits.clear_above) == (window, window * 7 // 10)
    assert limits.min_savings == window // 3
    shares = {"clear_above": limits.clear_above, "min_savings": limits.min_savings}
    assert limits == replace(default, threshold=0, **shares)
    assert default.clear_above == default.threshold * 7 // 10


@pytest.mark.parametrize("window", [5_000, 4_000, 3_999, 1])
def test_the_smallest_window_is_4000_tokens(monkeypatch, window):
    monkeypatch.setenv("CONTEXT_WINDOW", str(window))
    assert program.configured_limits().context_window == max(window, 4_000)


@pytest.mark.parametrize("maximum, expected", [(sys.maxsize, 200_000), (8_000, 8_000)])
def test_a_window_of_0_is_the_default_or_the_models_own(monkeypatch, maximum, expected):
    monkeypatch.setenv("CONTEXT_WINDOW", "0")
    assert program.configured_limits(maximum).context_window == expected
    assert program.Limits(context_window=0) == program.Limits()


def test_an_agent_without_tools_and_system_prompt_divides_nothing_by_zero():
    agent = program.Agent(tools={})
    program.replace_history(agent, "test", "replaced", [typed("Hi")])
    assert "[test]" not in program.context_table(agent)


# ---- signals, ids and the number of requests ----


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGINT"])
def test_ignored_signals_stay_ignored_as_under_nohup(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    program.handle_signals(Mock())
    assert signal.signal(number, before) == signal.SIG_IGN


def test_a_call_with_a_repeated_id_gets_a_new_one(make):
    again = call("glob", pattern="*")
    same = reply(content=[again]), reply(content=[again, again])
    agent = make(*same, reply("Done."))
    assert take_turn(agent, "Look twice.") == "Done."
    assert program.load(agent.transcript).messages == agent.messages


def test_a_turn_ends_after_max_requests_and_go_on_continues(make):
    again = [bash("echo noop")] * 3
    agent = make(*again, reply("Done."), max_requests=3)
    assert "3 requests (MAX_REQUESTS)" in fails(agent, "Work.")
    assert len(agent.client.requests) == 3 and program.in_progress(agent.messages)
    assert take_turn(agent, "Go on.") == "Done."


def test_all_agents_of_a_turn_share_its_limit(make):
    tasks = reply(calls=[TASK] * 3)
    agent = make(client=StubClient(always=tasks), max_requests=5)
    assert "5 requests (MAX_REQUESTS)" in fails(agent, "Work.")
    assert len(agent.client.requests) == 5
    fails(agent, "Go on.")
    assert len(agent.client.requests) == 10


def test_with_max_requests_0_a_turn_may_make_any_number_of_requests(make):
    again = [bash("true")] * 9
    assert take_turn(make(*again, reply("Done."), max_requests=0), "Work.") == "Done."
