"""Layer 3: compactions that the model, the user or the API asks for."""

import itertools
import re
from pathlib import Path

import pytest
import stub
from builders import (
    NO_SUMMARY,
    READ,
    SUMMARY,
    TOO_LARGE,
    asks_for_summary,
    bash,
    did,
    fails,
    goes_on,
    history,
    is_valid,
    layers,
    left,
    on_disk,
    outputs,
    read,
    said,
    shown,
    sized,
    summaries,
    texts,
    typed,
)
from stub import StubClient, api_error, reply

import agent as program
from agent import in_progress, run_command, take_turn, tokens_in

BODY = sized(5_000)


def too_long(tokens, maximum=16_000):
    """The API error for a request with this many tokens."""
    return api_error(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")


SLIGHTLY_TOO_LONG = too_long(14_310)
LENGTH_ERRORS = {
    "too long": SLIGHTLY_TOO_LONG,
    "other words": api_error(400, "Prompt is too long: it has 14310 tokens"),
    "megabytes": TOO_LARGE,
    "window exceeded": reply(
        "I was about",
        calls=[("bash", {"command": "touch ran"})],
        stop="model_context_window_exceeded",
    ),
}
STARTS = "prompt is too long: ", "Prompt is too long: ", "Request exceeds", "The reply"


@pytest.fixture
def worked(make):
    """worked(*replies): an agent with 20 messages so far, 9 of them calls.

    By our estimate, they have 10,600 tokens.
    """

    def build(*replies, **fields):
        fields = {
            "threshold": 12_000,
            "context_window": 14_000,
            "max_output": 2_000,
            "clear_above": 99_999,
        } | fields
        agent = make(*replies, **fields)
        steps = (did(f"result {n} {sized(1_000)}") for n in range(9))
        for message in history(*steps, said("Well.")):
            program.commit(agent, message)
        return agent

    return build


# --- The model asks: the `compact` tool ---

CALLS_COMPACT = reply(calls=[("compact", {})])
MORE = reply(BODY, calls=[("bash", {"command": "echo more"})])


BESIDE = [
    ("bash", {"command": "echo one"}),
    ("compact", {"focus": "the birds"}),
    ("bash", {"command": "echo two"}),
]


def test_calls_beside_the_compact_tool_are_answered_and_the_work_goes_on(worked):
    more = bash("echo three")
    agent = worked(reply(calls=BESIDE, thinking=""), SUMMARY, more, reply("Done."))
    assert take_turn(agent, "Count.") == "Done."
    [request] = summaries(agent)
    one, asked, two = outputs(request["messages"][-2])
    assert (one, two) == ("one\n", "two\n") and "summar" in asked
    sent = left(agent.client.requests[2]["messages"])
    assert sent.words == ["Go.", "Count."] and "All is well." in sent.summary
    assert outputs(*sent.tail[-1:]) == ["one\n", asked, "two\n"]


@pytest.mark.parametrize(
    "text, layer", [("", "compact"), (sized(10_000), "auto_compact")]
)
def test_a_focus_applies_to_one_compaction_only_in_whichever_layer(worked, text, layer):
    first = reply(text, calls=[("compact", {"focus": "the birds"})])
    replies = first, SUMMARY, MORE, CALLS_COMPACT, SUMMARY, reply("Done.")
    limits = {"threshold": 17_000, "context_window": 40_000, "min_savings": 2_000}
    agent = worked(*replies, **limits)
    assert take_turn(agent, "Count.") == "Done."
    asked = ["the birds" in str(r["messages"][-1]) for r in summaries(agent)]
    assert asked == [True, False] and layers(agent)[0] == layer


@pytest.mark.parametrize("size, is_asked", [(100, False), (1_000, True)])
def test_the_first_compact_call_works_if_there_is_anything_to_gain(
    make, size, is_asked
):
    replies = [CALLS_COMPACT, *[SUMMARY] * is_asked, CALLS_COMPACT, reply("Done.")]
    agent = make(*replies, messages=history(said(sized(size))), threshold=100_000)
    assert take_turn(agent, "Hi.") == "Done."
    assert len(summaries(agent)) == is_asked
    first, second = shown(agent, "layer")
    assert ("nothing to compact yet" in first) is not is_asked
    assert "too little new text" in second  # MIN_NEW counts after the first call


def test_further_compact_calls_wait_until_min_savings_tokens_are_new(worked):
    few = [CALLS_COMPACT, SUMMARY, *[CALLS_COMPACT] * 9]
    agent = worked(*few, MORE, CALLS_COMPACT, SUMMARY, reply("Done."))
    assert take_turn(agent, "Count.") == "Done." and len(summaries(agent)) == 2
    skipped = [text for text in shown(agent, "layer") if "skipped" in text]
    assert skipped == ["[compact] skipped: there is too little new text"] * 9


def test_the_compact_tool_is_skipped_after_three_failures(worked):
    limits = {"threshold": 0, "context_window": 100_000, "min_savings": 0}
    agent = worked(CALLS_COMPACT, reply("Done."), failures=3, **limits)
    assert take_turn(agent, "Count.") == "Done."
    assert summaries(agent) == [] and layers(agent) == ["compact"]
    assert shown(agent, "layer") == ["[compact] skipped: summaries keep failing"]


# --- The user asks: /compact ---


def test_after_compact_the_next_request_follows_an_answer_as_in_any_history(worked):
    agent = worked(SUMMARY, reply("Done."))
    run_command(agent, "/compact the birds")
    assert "the birds" in str(agent.client.requests[-1]["messages"][-1])
    kept, _, _, tail = left(agent.messages)
    assert kept == ["Go."] and tail[-1] == said("Well.")
    assert take_turn(agent, "Second request.") == "Done."
    assert agent.messages[-3:] == [tail[-1], typed("Second request."), said("Done.")]


CLEAR_ALL = {"clear_above": 0, "keep_tokens": 0, "keep_recent": 0, "min_savings": 0}


@pytest.mark.parametrize("resumed", [False, True])
def test_restored_files_are_not_cleared_before_they_have_been_sent(
    make, notes, resumed
):
    agent = make(reply(calls=[READ]), reply(BODY), reply("Yes."), **CLEAR_ALL)
    for text in "Read the notes.", "Have you?":
        take_turn(agent, text)
    agent.client.enqueue(SUMMARY)
    run_command(agent, "/compact")
    if resumed:
        program.resume(agent, str(agent.transcript))
    agent.client.enqueue(reply("Yes."), reply("And yes."))
    sent = []
    for text in "And?", "And now?":
        take_turn(agent, text)
        sent += outputs(*agent.client.requests[-1]["messages"])
    text = Path("notes.txt").read_text().rstrip("\n")
    assert sent == [text, "[Previous: used read_file]"]


def test_compact_asks_for_a_summary_whenever_anything_is_new(make):
    agent = make(*[reply(BODY), reply("Yes."), SUMMARY] * 2)
    for asked in 1, 2:
        take_turn(agent, "Hi.")
        take_turn(agent, "Really?")
        run_command(agent, "/compact")
        run_command(agent, "/compact")  # nothing is new
        assert len(summaries(agent)) == asked
    assert agent.events[-1] == ("layer", "[compact] nothing to compact yet")


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_compact_tries_again_after_a_failed_summary(worked, failures):
    agent = worked(NO_SUMMARY, SUMMARY, failures=failures)
    before = agent.messages
    run_command(agent, "/compact")
    assert agent.messages is before and agent.failures == failures + 1
    run_command(agent, "/compact")
    assert agent.failures == 0 and "All is well." in left(agent.messages).summary


@pytest.mark.parametrize("error", [TOO_LARGE, SLIGHTLY_TOO_LONG], ids=str)
def test_if_the_request_for_a_summary_is_too_long_a_note_replaces_the_summary(
    worked, error
):
    agent = worked(*[error] * 2)  # with all messages, and with the older half
    run_command(agent, "/compact")
    kept, note, _, tail = left(agent.messages)
    assert kept == ["Go."] and "No summary could be made" in note
    assert tail[-1] == said("Well.") and not in_progress(agent.messages)
    assert agent.failures == 0 and on_disk(agent)
    assert shown(agent, "error") == []


@pytest.mark.parametrize("status, text", [(400, "reasoning extraction"), (422, "No")])
def test_a_rejected_request_for_a_summary_is_a_failed_summary(worked, status, text):
    agent = worked(*[api_error(status, text)] * 3)
    before = agent.messages
    for failures in 1, 2, 3:
        program.handle_line(agent, "/compact")
        assert text in shown(agent, "error")[-1]
        assert agent.messages is before and agent.failures == failures


@pytest.mark.slow
def test_a_turn_ends_though_the_provider_rejects_each_request_for_a_summary(make):
    def answer(request):
        if asks_for_summary(request):
            return api_error(400, "The request looks like an attack.")
        return next(replies)

    calls = (bash("seq 3000") for _ in range(16))
    replies = itertools.chain(calls, [reply("Done.")])
    agent = make(client=StubClient(always=answer), threshold=20_000, clear_above=10**9)
    assert take_turn(agent, "Count.") == "Done."
    assert agent.failures == 3 and "replaced by a note" in str(shown(agent, "layer"))


def test_a_note_keeps_the_last_answer_too_however_long(worked):
    agent = worked(TOO_LARGE)  # the half; the whole is larger than the window
    for message in typed("Tell me a story."), said(f"Once {BODY}"):
        program.commit(agent, message)
    run_command(agent, "/compact")
    assert program.text_of(agent.messages[-1])[:5] == "Once "


OTHER_ERRORS = [(529, "Overloaded"), (401, "invalid x-api-key")]
OTHER_ERRORS += [(400, "Your credit balance is too low to access the API")]
OTHER_ERRORS += [(400, "You have reached your specified API usage limits")]
OTHER_ERRORS += [(400, "This organization has been disabled")]


@pytest.mark.parametrize("status, text", OTHER_ERRORS)
def test_after_an_outage_or_an_empty_account_the_history_is_intact_and_compact_works(
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


@pytest.mark.parametrize("error", LENGTH_ERRORS.values(), ids=LENGTH_ERRORS)
def test_a_request_that_is_too_long_is_compacted_and_sent_again(worked, error):
    agent = worked(error, SUMMARY, reply("Done."))
    assert take_turn(agent, "Second request.") == "Done."
    assert layers(agent)[-1] == "reactive_compact" and len(summaries(agent)) == 1
    kept, summary, _, tail = left(agent.client.requests[-1]["messages"])
    assert kept == ["Go.", "Second request."] and "All is well." in summary
    assert tail[-1] == typed("Second request.") and on_disk(agent)
    assert "I was about" not in str(agent.messages) and not Path("ran").exists()


LARGE_CALL = {"command": sized(2_000)}
TAILS = {
    "an answer": ([said("b")], ["b"]),
    "a turn": ([typed("a"), said("b")], ["a", "b"]),
    "a pair": ([*did("a"), said("b")], ["tool_use", "a", "b"]),
    "two calls": ([*did("a", "b"), said("c")], ["tool_use", "a", "c"]),
    "no half of a pair": ([*did(sized(1_000), given=LARGE_CALL), said("b")], ["b"]),
}


def first_words(message):
    """The typed text, or that of the first block, or its type."""
    block = stub.blocks(message["content"])[0]
    return block.get("text", block.get("content", block["type"]))


@pytest.mark.parametrize("later, stays", TAILS.values(), ids=TAILS)
def test_the_newest_messages_that_fit_stay_and_no_pair_is_split(worked, later, stays):
    agent = worked(
        TOO_LARGE, SUMMARY, reply("Done."), context_window=60_000, threshold=0
    )
    for message in [typed(sized(2_100)), *later]:  # an eighth of all is 1,600 to 2,000
        program.commit(agent, message)
    take_turn(agent, "Second request.")
    at = ["Conversation compressed" in str(m) for m in agent.messages].index(True)
    tail = agent.messages[at + 1 :]
    assert [*map(first_words, tail)] == [*stays, "Second request.", "Done."]


@pytest.mark.slow
def test_thinking_in_the_messages_that_stay_is_dropped(make):
    calls = [("bash", {"command": f"echo {sized(100)}"})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(30)]
    agent = make(*steps, TOO_LARGE, SUMMARY, reply("Done.", thinking=""))
    assert take_turn(agent, "Work.") == "Done."
    tail = left(agent.client.requests[-1]["messages"]).tail
    assert 6 <= len(tail) <= 8 and "'thinking'" not in str(tail)


COUNT = "Count the birds in all of the notes, and write their number into a new file."


def test_a_request_older_than_the_newest_messages_follows_the_summary(make):
    agent = make(TOO_LARGE, SUMMARY, reply("Done."), keep_recent=99)
    steps = [*did(BODY), *did("a"), *did("b"), *did("c")]
    agent.messages = history(said("Yes."), typed(COUNT), steps)
    program.agent_loop(agent)
    older, _, request, *tail = agent.client.requests[-1]["messages"]
    assert (older, request) == (typed("Go."), typed(COUNT))
    assert tail == steps[2:]


def test_a_request_among_the_newest_messages_appears_only_once(make):
    asked = typed("List the docs.")
    before = history(did(BODY), said("Yes."), asked, did("a"), said("Listed."))
    agent = make(TOO_LARGE, SUMMARY, reply("Done."), messages=before)
    take_turn(agent, "Count the birds.")
    sent = agent.client.requests[-1]["messages"]
    assert sent[0] == typed("Go.") and asked in sent[2:]
    assert program.user_texts(sent).count("Count the birds.") == 1


@pytest.mark.parametrize("failures, tried", [(0, [NO_SUMMARY]), (3, [])])
def test_if_summaries_fail_a_note_replaces_the_older_messages(worked, failures, tried):
    agent = worked(SLIGHTLY_TOO_LONG, *tried, reply("Done."), failures=failures)
    assert take_turn(agent, "Second request.") == "Done."
    assert len(summaries(agent)) == len(tried)
    assert agent.failures == failures + len(tried)
    kept, note, _, tail = left(agent.client.requests[-1]["messages"])
    assert kept == ["Go.", "Second request."] and str(agent.transcript) in note
    assert outputs(*tail)[-1].startswith("result 8 ")
    assert tail[-2:] == [said("Well."), typed("Second request.")]


def test_it_tries_a_smaller_window_then_a_summary_then_a_note(worked):
    Path("a.py").write_text("its text")
    replies = too_long(14_310, 13_000), TOO_LARGE, SUMMARY, TOO_LARGE, reply("Done.")
    agent = worked(*replies, context_window=16_000, max_output=4_000)
    for message in [*read("a.py"), *did(sized(225)), *did(sized(225))]:
        program.commit(agent, message)
    assert take_turn(agent, "Second request.") == "Done."
    asked = [asks_for_summary(request) for request in agent.client.requests]
    assert agent.limits.context_window == 13_000
    assert asked == [False, False, True, False, False]
    assert "No summary could be made" in left(agent.messages).summary


def test_after_a_reply_all_remedies_can_be_tried_again(worked):
    Path("a.py").write_text("its text")
    look = reply(calls=[("read_file", {"path": "a.py"})])
    error = too_long(18_310, 20_000)
    replies = look, error, SUMMARY, error, reply("Done.")
    limits = {"threshold": 17_000, "context_window": 20_000, "min_savings": 2_000}
    agent = worked(*replies, **limits)
    assert take_turn(agent, "Second request.") == "Done." and len(summaries(agent)) == 1
    assert "No summary could be made" in left(agent.messages).summary


@pytest.mark.parametrize("second", LENGTH_ERRORS.values(), ids=LENGTH_ERRORS)
def test_if_no_remedy_helps_there_is_one_clear_error_and_nothing_is_lost(
    worked, second
):
    agent = worked(SLIGHTLY_TOO_LONG, SUMMARY, second, second)
    line = fails(agent, "Second request.")
    assert "/clear" in line and line.startswith(STARTS)
    assert len(agent.client.requests) == 4 and not Path("ran").exists()
    assert program.user_texts(agent.messages) == ["Go.", "Second request."]
    assert on_disk(agent) and goes_on(agent)


@pytest.mark.slow
def test_after_three_tries_to_get_shorter_the_turn_ends(make):
    def rejects(request):
        return SUMMARY if asks_for_summary(request) else TOO_LARGE

    talk = ((typed(f"{n} {sized(2_000)}"), said(sized(2_000))) for n in range(40))
    agent = make(client=StubClient(always=rejects), messages=[*itertools.chain(*talk)])
    assert "/clear" in fails(agent, "Go on.")
    sent = [asks_for_summary(request) for request in agent.client.requests]
    assert sent.count(False) == 4


def test_neighbours_of_one_role_are_joined_on_the_wire_for_strict_templates(worked):
    more = bash("true")
    agent = worked(
        TOO_LARGE, SUMMARY, more, reply("Half", stop="max_tokens"), reply(".")
    )
    agent.take_queued = lambda: "And hurry."
    take_turn(agent, "Second request.")
    for body in agent.client.bodies:
        roles = [message["role"] for message in body["messages"]]
        assert all(a != b for a, b in itertools.pairwise(roles))
        assert stub.encoded(body["messages"][:-1]).count(stub.MARKER) == 0
        assert "cache_control" in body["messages"][-1]["content"][-1]


@pytest.mark.slow
def test_what_is_left_after_a_refusal_has_at_most_three_quarters_of_it(make):
    requests = [typed(sized(9_000)) for _ in range(3)]
    agent = make(messages=[*requests, said("Yes."), *requests, *did(sized(6_000))])
    for _ in range(3):
        agent.rejected = program.estimate_tokens(agent.messages)
        program.compact_without_model(agent, "-")
        left = program.estimate_tokens(agent.messages)
        assert left <= agent.rejected * 3 / 4 and is_valid(agent.messages)


def test_only_the_list_right_after_a_refusal_is_held_to_three_quarters_of_it(worked):
    agent = worked(SLIGHTLY_TOO_LONG, SUMMARY, reply("Done."))
    assert take_turn(agent, "Go on.") == "Done."
    room = agent.limits.threshold - program.fixed_tokens(agent)
    assert program.split_history(agent)[0] == room // 2


def small_server(window, answers_summaries):
    """A server that refuses what exceeds its window, which it doesn't name.

    Its model reads five files in each turn.
    """

    def answer(request):
        parts = [request[key] for key in ("system", "tools", "messages")]
        is_summary = asks_for_summary(request)
        if stub.count(*parts) > window or (is_summary and not answers_summaries):
            return api_error(400, "Prompt is too long.")
        text = str(request["messages"]).rpartition("Turn ")[2]
        read = max([0, *map(int, re.findall(r"file (\d)", text))])
        more = re.findall(r"file \d|with offset=(\d+)", text)[-1:]
        given = {"path": f"{read + 1}.txt", "offset": int((more or ["1"])[0] or 1)}
        calls = [("read_file", given)] if read < 5 else []
        return (
            SUMMARY if is_summary else reply("Done." if not calls else "", calls=calls)
        )

    return StubClient(always=answer)


@pytest.mark.slow
@pytest.mark.parametrize("window", [8_000, 12_000, 16_000, 24_000])
@pytest.mark.parametrize("answers_summaries", [True, False])
def test_no_turn_fails_in_a_small_window_that_nobody_names(
    make, window, answers_summaries
):
    for number in range(1, 6):
        text = "x" * (window // 3 * number)  # at most 52%, as the API counts
        Path(f"{number}.txt").write_text(f"{text}\nfile {number}")
    agent = make(client=small_server(window, answers_summaries))
    for turn in range(6):
        assert take_turn(agent, f"Turn {turn}") == "Done."
    assert on_disk(agent)


# --- The API's error names a smaller window ---


def test_a_smaller_window_cuts_limits_rules_results_and_typed_messages(make):
    Path("AGENTS.md").write_text(sized(6_600, "Be good and careful.\n"))
    large = [typed(sized(6_000)), *did(sized(6_000)), *did("short")]
    agent = make(too_long(30_000, 16_000), reply("Done."), messages=large)
    assert program.agent_loop(agent) == "Done." and summaries(agent) == []
    expected = vars(program.configured_limits(16_000, 5_333))
    assert vars(agent.limits) == expected and agent.limits.max_results == 2_666
    [request], results = program.user_texts(agent.messages), outputs(*agent.messages)
    assert all(t.startswith("<persisted-output>") for t in (request, results[0]))
    assert results[1] == "short"
    assert program.tokens_in(agent.system["AGENTS.md"]) < 1_100
    assert len(agent.client.requests) == 2


def reads_notes(times):
    """A model that reads the notes so many times, and writes summaries if asked to."""
    reads = (reply(calls=[READ]) for _ in range(times))
    return lambda request: (
        SUMMARY if asks_for_summary(request) else next(reads, reply("Fine."))
    )


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [16_000, 64_000])
def test_the_maximum_named_in_an_error_is_the_window_from_then_on(
    make, monkeypatch, maximum
):
    monkeypatch.setenv("CLEAR_ABOVE", "999999")
    client = StubClient(always=reads_notes(40), window=maximum)
    Path("notes.txt").write_text(sized(maximum // 23, "a line of notes\n"))
    agent = make(client=client)
    assert take_turn(agent, "Read it forty times.") == "Fine."
    asked = [r for r in client.requests if not asks_for_summary(r)]
    assert agent.limits.context_window == maximum
    assert len(asked) == 42  # one of them was too long
    assert len(client.too_long) <= 2 and len(summaries(agent)) <= 8


def test_a_smaller_window_makes_no_reply_longer(worked):
    agent = worked(too_long(14_310, 9_000), SUMMARY, reply("Done."), max_output=1_000)
    assert take_turn(agent, "Go on.") == "Done."
    limits = agent.limits
    assert (limits.context_window, limits.max_output) == (9_000, 1_000)


# Errors that say a reply of 32,000 tokens doesn't fit; a shorter one would.
NEWER = "This model's maximum context length is 32000 tokens and your request has 900 "
NEWER += "input tokens (32000 > 32000 - 900)."
OLDER = "input length and `max_tokens` exceed context limit: 900 + 32000 > 32000"


@pytest.mark.parametrize("text", [NEWER, OLDER])
def test_if_only_the_reply_does_not_fit_a_shorter_one_is_requested(make, text):
    agent = make(api_error(400, text), reply("Done."))
    assert take_turn(agent, "Hi") == "Done."
    first, second = agent.client.requests
    assert first["messages"] == second["messages"]
    assert second["max_tokens"] < 32_000 and agent.limits.context_window == 32_000


# Megabytes, or a window of "32 k": neither is a number of tokens.
@pytest.mark.parametrize("maximum", [10, 32, 2013])
def test_a_maximum_too_small_for_any_window_is_not_believed(worked, maximum):
    error = api_error(413, f"The body exceeds the limit of {maximum} MB")
    agent = worked(error, SUMMARY, reply("Done."))
    window = agent.limits.context_window
    assert take_turn(agent, "Go on.") == "Done."
    assert agent.limits.context_window == window


def test_a_note_quotes_the_last_summary_and_says_that_no_new_one_could_be_made(worked):
    agent = worked(SUMMARY)
    run_command(agent, "/compact")
    for message in history(*(did(sized(1_000)) for _ in range(6)), said("Well."))[1:]:
        program.commit(agent, message)
    program.compact_without_model(agent, "auto_compact")
    summary = left(agent.messages).summary
    assert "No summary could be made" in summary and "All is well." in summary


# --- The request for the summary is itself too long ---


@pytest.mark.parametrize("error", LENGTH_ERRORS.values(), ids=LENGTH_ERRORS)
def test_if_it_is_too_long_the_older_half_is_summarised_and_then_the_rest_with_it(
    worked, error
):
    agent = worked(error, reply("<summary>The first half.</summary>"), SUMMARY)
    before = agent.messages
    program.compact_history(agent, "compact")
    whole, older, rest = (request["messages"] for request in agent.client.requests)
    middle = len(older) - 1
    assert whole[:-1] == before and older[:-1] == before[:middle]  # from the cache
    assert rest[0] == before[0] and rest[2:-1] == before[middle:]
    assert "The first half." in texts(rest[1])[0]
    follows = [
        "followed by the newest" in texts(m[-1])[0] for m in (whole, older, rest)
    ]
    assert follows == [True, False, True]
    assert "All is well." in left(agent.messages).summary


def test_a_request_that_the_known_window_cannot_hold_is_not_sent_whole(worked):
    agent = worked(reply("<summary>The first half.</summary>"), SUMMARY)
    agent.limits.context_window = 9_000  # learned from a server that cuts silently
    before = agent.messages
    program.compact_history(agent, "compact")
    older, rest = (request["messages"] for request in agent.client.requests)
    middle = len(older) - 1
    assert older[:-1] == before[:middle] and rest[2:-1] == before[middle:]


def test_a_first_message_of_over_half_the_list_is_cut_in_the_second_step(make):
    begin = [typed(sized(9_000)), said("Yes.")]
    first = reply("<summary>The first half.</summary>")
    agent = make(
        SLIGHTLY_TOO_LONG, first, SUMMARY, messages=[*begin, *did(sized(6_000))]
    )
    agent.messages += [said("So."), typed("And?"), said("Yes.")]
    program.compact_history(agent, "compact")
    _, older, rest = (request["messages"] for request in agent.client.requests)
    assert older[0] == begin[0] and len(older) == 2  # the message and the prompt
    assert tokens_in(rest[0]) < 2_500 and rest[2]["role"] == "assistant"


def test_after_a_rejection_without_a_number_pages_of_files_get_smaller(worked):
    agent = worked(SLIGHTLY_TOO_LONG, SUMMARY, reply("Done."), threshold=90_000)
    before = agent.limits.max_results
    assert take_turn(agent, "Go on.") == "Done."
    Path("long.txt").write_text("a line\n" * 9_000)
    page = program.read_file(agent, "long.txt")
    assert tokens_in(page) <= agent.limits.max_results < before


def test_a_too_long_error_soon_after_a_compaction_still_leads_to_a_summary(worked):
    steps = [bash(f"echo {n}") for n in range(2)]
    first = reply(f"<summary>{sized(1_875)}</summary>")
    agent = worked(first, *steps, SLIGHTLY_TOO_LONG, SUMMARY, reply("Done."))
    run_command(agent, "/compact")
    assert take_turn(agent, "Count.") == "Done." and len(summaries(agent)) == 2
    assert "All is well." in left(agent.messages[:-1]).summary


HALF = reply("<summary>The first half.</summary>")


@pytest.mark.parametrize("second, kept", [([], False), ([HALF], True)])
def test_if_a_half_is_too_long_as_well_a_note_replaces_the_summary(
    worked, second, kept
):
    agent = worked(SLIGHTLY_TOO_LONG, *second, SLIGHTLY_TOO_LONG)
    program.compact_history(agent, "compact")
    summary = left(agent.messages).summary
    assert "No summary could be made" in summary
    assert ("The first half." in summary) is kept  # better than none
    assert agent.failures == 0  # because no reply was a bad summary


@pytest.mark.parametrize("replies", [[NO_SUMMARY], [HALF, NO_SUMMARY]])
def test_if_a_half_has_no_summary_nothing_changes_and_that_counts_as_a_failure(
    worked, replies
):
    agent = worked(SLIGHTLY_TOO_LONG, *replies)
    before = agent.messages
    program.compact_history(agent, "compact")
    assert agent.messages is before and agent.failures == 1


def test_thinking_is_dropped_from_the_shortened_copy_only(make):
    calls = [("bash", {"command": f"echo {sized(750)}"})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(6)]
    more = reply("More.", thinking="")
    agent = make(*steps, reply("Done."), SLIGHTLY_TOO_LONG, HALF, NO_SUMMARY, more)
    take_turn(agent, "Work.")
    before = agent.messages
    program.compact_history(agent, "compact")
    has_thinking = ["'thinking'" in str(r["messages"]) for r in summaries(agent)]
    assert has_thinking == [True, True, False] and agent.messages == before
    assert take_turn(agent, "Go on.") == "More."  # its thinking is still valid


def test_a_note_quotes_the_last_summary_after_a_resume_too(worked):
    agent = worked(SUMMARY)
    run_command(agent, "/compact")
    program.resume(agent, str(agent.transcript))
    agent.messages += [*did(sized(2_250)), typed("Go on.")]
    program.compact_without_model(agent, "auto_compact")
    assert "All is well." in left(agent.messages).summary
