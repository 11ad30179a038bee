"""Layer 3: a compaction that the model, the person or the API asks for."""

from pathlib import Path

import pytest
from builders import (
    NO_SUMMARY,
    READ,
    SUMMARY,
    TOO_LARGE,
    asks_for_summary,
    did,
    fails,
    goes_on,
    history,
    layers,
    left,
    on_disk,
    outputs,
    read,
    said,
    shown,
    sized,
    summaries,
    typed,
)
from stub import StubClient, api_error, reply

import agent as program
from agent import in_progress, run_command, take_turn

BODY = "x" * 20_000


def huge(tokens, maximum=16_000):
    """A refusal of so many tokens."""
    return api_error(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")


TOO_LONG = huge(14_310)
REFUSALS = {
    "too long": TOO_LONG,
    "other words": api_error(400, "Prompt is too long: it has 14310 tokens"),
    "megabytes": TOO_LARGE,
    "window, in a call": reply(
        "I was about",
        calls=[("bash", {"command": "touch ran"})],
        stop="model_context_window_exceeded",
    ),
}
REASONS = "prompt is too long: ", "Prompt is too long: ", "Request exceeds", "The reply"


@pytest.fixture
def worked(make):
    """worked(*replies): an agent with a history of 20 messages, 9 of them calls.

    That is 10,600 tokens by our count.
    """

    def build(*replies, **fields):
        fields = {
            "threshold": 12_000,
            "context_window": 14_000,
            "max_output": 2_000,
            "clear_above": 99_999,
        } | fields
        agent = make(*replies, **fields)
        steps = (did(f"result {n} " + "r" * 4_000) for n in range(9))
        for message in history(*steps, said("Well.")):
            program.commit(agent, message)
        return agent

    return build


# --- The model asks: the `compact` tool ---

COMPACT = reply(calls=[("compact", {})])
MORE = reply(BODY, calls=[("bash", {"command": "echo more"})])


def test_the_calls_beside_it_are_answered_and_the_work_goes_on(worked):
    calls = [
        ("bash", {"command": "echo one"}),
        ("compact", {"focus": "the birds"}),
        ("bash", {"command": "echo two"}),
    ]
    more = reply(calls=[("bash", {"command": "echo three"})])
    agent = worked(reply(calls=calls, thinking=""), SUMMARY, more, reply("Done."))
    assert take_turn(agent, "Count.") == "Done."
    [request] = summaries(agent)
    one, asked, two = outputs(request["messages"][-2])
    assert (one, two) == ("one\n", "two\n") and "summar" in asked
    sent = left(agent.client.requests[2]["messages"])
    assert sent.words == ["Go.", "Count."] and sent.tail == []
    assert "All is well." in sent.summary


@pytest.mark.parametrize("text, layer", [("", "compact"), (BODY, "auto_compact")])
def test_a_focus_is_of_one_compaction_whichever_layer_makes_it(worked, text, layer):
    first = reply(text, calls=[("compact", {"focus": "the birds"})])
    replies = first, SUMMARY, MORE, COMPACT, SUMMARY, reply("Done.")
    agent = worked(*replies, threshold=14_000, context_window=16_000)
    assert take_turn(agent, "Count.") == "Done."
    asked = ["the birds" in str(r["messages"][-1]) for r in summaries(agent)]
    assert asked == [True, False] and layers(agent)[0] == layer


def test_the_first_wish_is_carried_out_however_short_the_conversation_is(make):
    again = reply(calls=[("compact", {})])
    agent = make(COMPACT, SUMMARY, again, reply("Done."), threshold=100_000)
    assert take_turn(agent, "Hi.") == "Done." and len(summaries(agent)) == 1
    assert layers(agent)[-1] == "compact"  # MIN_SAVINGS counts from then on
    assert "too little is new" in shown(agent, "layer")[-1]


def test_the_models_wish_waits_until_min_savings_are_new(worked):
    few = [COMPACT, SUMMARY, *[COMPACT] * 9]
    agent = worked(*few, MORE, COMPACT, SUMMARY, reply("Done."))
    assert take_turn(agent, "Count.") == "Done." and len(summaries(agent)) == 2
    told = [text for text in shown(agent, "layer") if "skipped" in text]
    assert told == ["[compact] skipped: too little is new"] * 9


def test_the_models_wish_does_not_pass_an_open_breaker(worked):
    limits = {"threshold": 0, "context_window": 100_000, "min_savings": 0}
    agent = worked(COMPACT, reply("Done."), failures=3, **limits)
    assert take_turn(agent, "Count.") == "Done."
    assert summaries(agent) == [] and layers(agent) == ["compact"]
    assert shown(agent, "layer") == ["[compact] skipped: summaries keep failing"]


# --- The person asks: /compact ---


def test_after_compact_the_next_wish_follows_an_answer_as_in_any_history(worked):
    agent = worked(SUMMARY, reply("Done."))
    run_command(agent, "/compact the birds")
    assert "the birds" in str(agent.client.requests[-1]["messages"][-1])
    words, _, _, tail = left(agent.messages)
    assert words == ["Go."] and tail == [said("Well.")]
    assert take_turn(agent, "Second wish.") == "Done."
    assert agent.messages[-3:] == [*tail, typed("Second wish."), said("Done.")]


CLEAR_ALL = {"clear_above": 0, "keep_tokens": 0, "keep_recent": 0, "min_savings": 0}


@pytest.mark.parametrize("resumed", [False, True])
def test_files_that_were_restored_are_not_cleared_before_they_were_sent(
    make, notes, resumed
):
    agent = make(reply(calls=[READ]), reply("Read."), SUMMARY, **CLEAR_ALL)
    take_turn(agent, "Read the notes.")
    run_command(agent, "/compact")
    if resumed:
        program.resume(agent, str(agent.transcript))
    agent.client.enqueue(reply("Yes."), reply("And yes."))
    sent = []
    for text in "And?", "And now?":
        take_turn(agent, text)
        sent += outputs(*agent.client.requests[-1]["messages"])
    assert sent == [
        Path("notes.txt").read_text().rstrip("\n"),
        "[Previous: used read_file]",
    ]


def test_compact_asks_for_a_summary_whenever_anything_is_new(make):
    agent = make(reply("Yes."), SUMMARY, reply("Yes."), SUMMARY)
    for asked in 1, 2:
        take_turn(agent, "Hi.")
        run_command(agent, "/compact")
        run_command(agent, "/compact")  # nothing is new
        assert len(summaries(agent)) == asked
    assert agent.events[-1] == ("layer", "[compact] nothing to compact yet")


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_compact_asks_again_after_a_summary_that_failed(worked, failures):
    agent = worked(NO_SUMMARY, SUMMARY, failures=failures)
    before = agent.messages
    run_command(agent, "/compact")
    assert agent.messages is before and agent.failures == failures + 1
    run_command(agent, "/compact")
    assert agent.failures == 0 and "All is well." in left(agent.messages).summary


@pytest.mark.parametrize("refusal", [TOO_LARGE, TOO_LONG], ids=str)
def test_where_that_request_is_too_long_a_note_takes_the_summarys_place(
    worked, refusal
):
    agent = worked(*[refusal] * 2)  # with all messages, and with half of them
    run_command(agent, "/compact")
    words, note, _, tail = left(agent.messages)
    assert words == ["Go."] and "No summary could be made" in note
    assert tail[-1] == said("Well.") and not in_progress(agent.messages)
    assert agent.failures == 0 and on_disk(agent)
    assert shown(agent, "error") == []


@pytest.mark.parametrize("status, text", [(400, "reasoning extraction"), (422, "No")])
def test_where_the_api_refuses_it_otherwise_that_is_said_and_nothing_is_changed(
    worked, status, text
):
    agent = worked(api_error(status, text))
    before = agent.messages
    program.handle_line(agent, "/compact")
    [error] = shown(agent, "error")
    assert text in error and agent.messages is before and agent.failures == 0


def test_the_note_too_leaves_the_last_answer_however_long_it_is(worked):
    agent = worked(*[TOO_LARGE] * 2)
    for message in typed("Tell me a story."), said(f"Once {BODY}"):
        program.commit(agent, message)
    run_command(agent, "/compact")
    assert program.text_of(agent.messages[-1])[:5] == "Once "


FAULTS = [(529, "Overloaded"), (401, "invalid x-api-key")]
FAULTS += [(400, "Your credit balance is too low to access the API")]
FAULTS += [(400, "You have reached your specified API usage limits")]
FAULTS += [(400, "This organization has been disabled")]


@pytest.mark.parametrize("status, text", FAULTS)
def test_an_outage_or_an_empty_account_leaves_the_history_and_the_way_on(
    worked, status, text
):
    agent = worked(*[api_error(status, text)] * (7 if status == 529 else 1), SUMMARY)
    before = agent.messages
    with pytest.raises(program.AgentError, match=text):
        run_command(agent, "/compact")
    assert agent.messages is before and agent.failures == 0
    run_command(agent, "/compact")
    assert "All is well." in left(agent.messages).summary


# --- The API asks: the prompt is too long ---


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_request_that_is_too_long_is_compacted_and_goes_on(worked, refusal):
    agent = worked(refusal, SUMMARY, reply("Done."))
    assert take_turn(agent, "Second wish.") == "Done."
    assert layers(agent)[-1] == "reactive_compact" and len(summaries(agent)) == 1
    words, summary, _, tail = left(agent.client.requests[-1]["messages"])
    assert words == ["Go."] and "All is well." in summary
    assert tail[-1] == typed("Second wish.") and on_disk(agent)
    assert "I was about" not in str(agent.messages) and not Path("ran").exists()


@pytest.mark.parametrize(
    "later, kept",
    [
        ([], 6),  # the fifth from the end is a result: its call stays with it
        ([typed("a")], 6),
        ([typed("a"), said("b")], 6),
        ([typed("a"), *did("b"), said("c")], 5),
        ([*did("a"), *did("b")], 6),
    ],
)
def test_the_newest_five_messages_stay_and_no_pair_is_parted(worked, later, kept):
    agent = worked(TOO_LONG, SUMMARY, reply("Done."))
    for message in later:
        program.commit(agent, message)
    take_turn(agent, "Second wish.")
    asked, request = agent.client.requests[0], agent.client.requests[-1]
    newest = asked["messages"][-kept:]
    assert request["messages"][-kept:] == newest
    assert "[Conversation compressed" in str(request["messages"][-kept - 1])


def test_the_thinking_of_what_stays_goes(make):
    calls = [("bash", {"command": "echo " + "w" * 400})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(12)]
    agent = make(*steps, TOO_LARGE, SUMMARY, reply("Done.", thinking=""))
    assert take_turn(agent, "Work.") == "Done."
    tail = left(agent.client.requests[-1]["messages"]).tail
    assert 5 <= len(tail) <= 6 and "'thinking'" not in str(tail)


def test_a_request_older_than_the_newest_messages_follows_the_summary(make):
    agent = make(TOO_LARGE, SUMMARY, reply("Done."), keep_recent=99)
    steps = [*did(BODY), *did("a"), *did("b"), *did("c")]
    agent.messages = history(said("Yes."), typed("Count the birds."), steps)
    program.agent_loop(agent)
    older, _, request, *tail = agent.client.requests[-1]["messages"]
    assert (older, request) == (typed("Go."), typed("Count the birds."))
    assert tail == steps[2:]


def test_a_request_among_the_newest_messages_is_there_once(make):
    asked = typed("List the docs.")
    before = history(did(BODY), said("Yes."), asked, did("a"), said("Listed."))
    agent = make(TOO_LARGE, SUMMARY, reply("Done."), messages=before)
    take_turn(agent, "Count the birds.")
    sent = agent.client.requests[-1]["messages"]
    assert sent[0] == typed("Go.") and sent[2] == asked
    assert program.user_texts(sent).count("Count the birds.") == 1


@pytest.mark.parametrize("failures, tried", [(0, [NO_SUMMARY]), (3, [])])
def test_if_the_summary_fails_or_the_breaker_is_open_it_goes_without_the_model(
    worked, failures, tried
):
    agent = worked(TOO_LONG, *tried, reply("Done."), failures=failures)
    assert take_turn(agent, "Second wish.") == "Done."
    assert len(summaries(agent)) == len(tried)
    assert agent.failures == failures + len(tried)
    words, note, _, tail = left(agent.client.requests[-1]["messages"])
    assert words == ["Go."] and str(agent.transcript) in note and len(tail) == 6
    assert tail[-2:] == [said("Well."), typed("Second wish.")]


def test_a_smaller_window_a_summary_and_a_note_are_tried_in_this_order(worked):
    Path("a.py").write_text("its text")
    replies = huge(14_310, 13_000), TOO_LARGE, SUMMARY, TOO_LARGE, reply("Done.")
    agent = worked(*replies, context_window=16_000, max_output=4_000)
    for message in [*read("a.py"), *did("a" * 900), *did("b" * 900)]:
        program.commit(agent, message)
    assert take_turn(agent, "Second wish.") == "Done."
    asked = [asks_for_summary(request) for request in agent.client.requests]
    assert agent.limits.context_window == 13_000
    assert asked == [False, False, True, False, False]
    assert "No summary could be made" in left(agent.messages).summary


def test_after_a_reply_a_summary_and_a_note_can_be_tried_as_at_first(worked):
    Path("a.py").write_text("its text")
    look = reply(calls=[("read_file", {"path": "a.py"})])
    replies = look, TOO_LONG, SUMMARY, TOO_LONG, reply("Done.")
    agent = worked(*replies, threshold=13_500, context_window=16_000)
    assert take_turn(agent, "Second wish.") == "Done." and len(summaries(agent)) == 1
    assert "No summary could be made" in left(agent.messages).summary


@pytest.mark.parametrize("second", REFUSALS.values(), ids=REFUSALS)
def test_refused_whatever_is_left_out_it_is_one_clear_error_and_nothing_is_lost(
    worked, second
):
    agent = worked(TOO_LONG, SUMMARY, second, second)
    line = fails(agent, "Second wish.")
    assert "/clear" in line and line.startswith(REASONS)
    assert len(agent.client.requests) == 4 and not Path("ran").exists()
    assert program.user_texts(agent.messages) == ["Go.", "Second wish."]
    assert on_disk(agent) and goes_on(agent)


# --- A refusal that names a smaller window ---


def test_a_smaller_window_cuts_limits_rules_results_and_what_was_typed(make):
    Path("AGENTS.md").write_text("Be good and careful.\n" * 1_200)
    large = [typed(sized(6_000)), *did(sized(6_000)), *did("short")]
    agent = make(huge(30_000, 16_000), reply("Done."), messages=large)
    assert program.agent_loop(agent) == "Done." and summaries(agent) == []
    expected = vars(program.configured_limits(16_000, 5_333))
    assert vars(agent.limits) == expected and agent.limits.max_results == 2_666
    words, request = program.user_texts(agent.messages), outputs(*agent.messages)
    assert program.has_address(words[0]) and program.has_address(request[0])
    assert request[1] == "short"
    assert program.tokens_in(agent.system["AGENTS.md"]) < 1_100
    assert len(agent.client.requests) == 2


@pytest.mark.parametrize("maximum", [16_000, 64_000])
def test_the_maximum_that_a_refusal_names_is_the_window_from_then_on(
    make, monkeypatch, maximum
):
    monkeypatch.setenv("CLEAR_ABOVE", "999999")
    reads = (reply(calls=[READ]) for _ in range(40))

    def work(request):
        return SUMMARY if asks_for_summary(request) else next(reads, reply("Fine."))

    client = StubClient(always=work, window=maximum)
    Path("notes.txt").write_text("a line of notes\n" * (maximum // 100))
    agent = make(client=client)
    assert take_turn(agent, "Read it forty times.") == "Fine."
    asked = [r for r in client.requests if not asks_for_summary(r)]
    assert (agent.limits.context_window, len(asked)) == (maximum, 42)  # one was refused
    assert len(client.too_long) <= 2 and len(summaries(agent)) <= 8


# in the window there is no room for a reply of 32,000 tokens, but for a shorter one
NO_ROOM = (
    "This model's maximum context length is 32000 tokens and your request has 900 "
)
NO_ROOM += "input tokens (32000 > 32000 - 900)."
OLDER = "input length and `max_tokens` exceed context limit: 900 + 32000 > 32000"


@pytest.mark.parametrize("text", [NO_ROOM, OLDER])
def test_where_only_the_reply_has_no_room_a_shorter_one_is_asked_for(make, text):
    agent = make(api_error(400, text), reply("Done."))
    assert take_turn(agent, "Hi") == "Done."
    first, second = agent.client.requests
    assert first["messages"] == second["messages"]
    assert second["max_tokens"] < 32_000 and agent.limits.context_window == 32_000


# a size in megabytes, a window "of 32 k": no number of tokens
@pytest.mark.parametrize("maximum", [10, 32])
def test_a_maximum_that_no_window_has_is_not_believed(worked, maximum):
    refused = api_error(413, f"The body exceeds the limit of {maximum} MB")
    agent = worked(refused, SUMMARY, reply("Done."))
    window = agent.limits.context_window
    assert (
        take_turn(agent, "Go on.") == "Done." and agent.limits.context_window == window
    )


def test_a_note_has_the_last_summary_and_says_that_there_is_no_newer_one(worked):
    agent = worked(SUMMARY, reply(calls=[("bash", {"command": "echo one"})]), "Done.")
    run_command(agent, "/compact")
    for message in history(*(did("r" * 4_000) for _ in range(6)), said("Well."))[1:]:
        program.commit(agent, message)
    agent.client.queue.clear()
    program.compact_without_model(agent, "auto_compact")
    summary = left(agent.messages).summary
    assert "No summary could be made" in summary and "All is well." in summary


# --- The request for the summary is itself too long ---


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_summary_that_is_too_long_is_asked_for_of_the_newer_half(worked, refusal):
    agent = worked(refusal, SUMMARY)
    newest = agent.messages[-1]
    program.compact_history(agent, "compact")
    assert layers(agent)[-1] == "compact"
    whole, half = (request["messages"] for request in agent.client.requests)
    assert whole[-2] == half[-2] == newest and len(half) <= len(whole) // 2 + 3


def test_soon_after_a_compaction_a_refusal_is_answered_by_a_summary_as_well(worked):
    steps = [reply(calls=[("bash", {"command": f"echo {n}"})]) for n in range(2)]
    first = reply(f"<summary>{'word ' * 1_500}</summary>")
    agent = worked(first, *steps, TOO_LONG, SUMMARY, reply("Done."))
    run_command(agent, "/compact")
    assert take_turn(agent, "Count.") == "Done." and len(summaries(agent)) == 2
    assert "All is well." in left(agent.messages[:-1]).summary


def test_where_the_newer_half_is_too_long_a_note_takes_its_place(worked):
    agent = worked(*[TOO_LONG] * 2)
    program.compact_history(agent, "compact")
    assert len(agent.client.requests) == 2
    assert "No summary could be made" in left(agent.messages).summary
    assert agent.failures == 0  # no reply was a bad summary


def test_thinking_is_dropped_from_that_copy_and_from_no_other(make):
    calls = [("bash", {"command": "echo " + "w" * 3_000})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(6)]
    more = reply("More.", thinking="")
    agent = make(*steps, reply("Done."), TOO_LONG, NO_SUMMARY, more)
    take_turn(agent, "Work.")
    before = agent.messages
    program.compact_history(agent, "compact")
    whole, copy = ("'thinking'" in str(r["messages"]) for r in summaries(agent))
    assert (whole, copy) == (True, False) and agent.messages == before
    assert take_turn(agent, "Go on.") == "More."  # its thinking is still valid


def test_after_a_resume_too_a_note_quotes_the_last_summary(worked):
    agent = worked(SUMMARY)
    run_command(agent, "/compact")
    program.resume(agent, str(agent.transcript))
    agent.messages += [*did("r" * 9_000), typed("Go on.")]
    program.compact_without_model(agent, "auto_compact")
    assert "All is well." in left(agent.messages).summary
