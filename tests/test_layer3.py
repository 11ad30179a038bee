"""Layer 3: a compaction that the model, the person or the API asks for."""

import itertools
import json
import re
from pathlib import Path

import pytest
import stub
from builders import (
    NO_SUMMARY,
    READ,
    SMALL,
    SUMMARY,
    TOO_LARGE,
    any_answer,
    asks_for_summary,
    did,
    fails,
    history,
    layers,
    on_disk,
    outputs,
    said,
    shown,
    summaries,
    texts,
    turns,
    typed,
)
from stub import StubClient, api_error, reply

import agent as program

BODY = "x" * 20_000


def huge(tokens, maximum=16_000):
    """A refusal of so many tokens."""
    return api_error(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")


TOO_LONG = huge(14_310)
REFUSALS = {
    "too long": TOO_LONG,
    "other words": api_error(400, "Prompt is too long: it has 14310 tokens"),
    "older models": api_error(
        400,
        "input length and `max_tokens` exceed context limit: 13240 + 1333 > 14000, "
        "decrease input length or `max_tokens` and try again",
    ),
    "megabytes": TOO_LARGE,
    "window, in a call": reply(
        "I was about",
        calls=[("bash", {"command": "touch ran"})],
        stop="model_context_window_exceeded",
    ),
}


@pytest.fixture
def worked(make):
    """worked(*replies): an agent with a history of 20 messages, 9 of them calls.

    That is 10,600 tokens by our count.
    """

    def build(*replies, **fields):
        fields = {"threshold": 12_000, "window": 14_000, "clear_above": 99_999} | fields
        agent = make(*replies, **fields)
        steps = (did(f"result {n} " + "r" * 4_000) for n in range(9))
        for message in [typed("First wish."), *itertools.chain(*steps), said("Well.")]:
            program.commit(agent, message)
        return agent

    return build


# --- The model asks: the `compact` tool ---


def test_the_calls_beside_it_are_answered_and_the_work_goes_on(worked):
    calls = [
        ("bash", {"command": "echo one"}),
        ("compact", {"focus": "the birds"}),
        ("bash", {"command": "echo two"}),
    ]
    more = reply(calls=[("bash", {"command": "echo three"})])
    agent = worked(reply(calls=calls, thinking=""), SUMMARY, more, reply("Done."))
    assert program.take_turn(agent, "Count.") == "Done."
    [request] = summaries(agent)
    one, asked, two = outputs(request["messages"][-2])
    assert (one, two) == ("one\n", "two\n") and "summar" in asked
    [sent] = agent.client.requests[2]["messages"]
    assert "All is well." in texts(sent)[0]
    assert texts(sent)[-1].endswith("Count.")  # the request is still in progress
    assert agent.messages[0] == {**agent.messages[0], **sent}


@pytest.mark.parametrize("text, layer", [("", "compact"), (BODY, "auto_compact")])
def test_a_focus_is_of_one_compaction_whichever_layer_makes_it(worked, text, layer):
    first = reply(text, calls=[("compact", {"focus": "the birds"})])
    again = reply(BODY, calls=[("compact", {})])
    replies = first, SUMMARY, again, SUMMARY, reply("Done.")
    agent = worked(*replies, threshold=14_000)
    assert program.take_turn(agent, "Count.") == "Done."
    asked = ["the birds" in str(r["messages"][-1]) for r in summaries(agent)]
    assert asked == [True, False] and layers(agent)[1] == layer


# --- The person asks: /compact ---


def test_after_compact_the_agent_waits_and_the_next_wish_is_answered(worked):
    agent = worked(SUMMARY, reply("Done."))
    program.command(agent, "/compact")
    assert "First wish." not in texts(agent.messages[0])[-1]
    assert program.take_turn(agent, "Second wish.") == "Done."
    sent = agent.client.requests[-1]["messages"]
    assert len(sent) == 2 and sent[1] == typed("Second wish.")


# --- The API asks: the prompt is too long ---


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_request_that_is_too_long_is_compacted_and_goes_on(worked, refusal):
    agent = worked(refusal, SUMMARY, reply("Done."))
    assert program.take_turn(agent, "Second wish.") == "Done."
    assert "[reactive_compact]" in str(shown(agent)) and len(summaries(agent)) == 1
    assert "All is well." in texts(agent.messages[0])[0]
    assert "I was about" not in str(agent.messages) and not Path("ran").exists()
    head, *_, last = agent.client.requests[-1]["messages"]
    assert last == typed("Second wish.") and on_disk(agent)
    assert any("First wish." in text for text in texts(head)[:-1])
    assert "First wish." not in texts(head)[-1]  # it is done, not in progress


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
    open_end = [program.user(program.UNANSWERED)] * program.in_progress(agent.messages)
    newest = [*agent.messages, *open_end, typed("Second wish.")][-kept:]
    program.take_turn(agent, "Second wish.")
    assert agent.client.requests[-1]["messages"][1:] == [*map(stub.in_short, newest)]
    assert summaries(agent)[0]["messages"][-2] not in newest


def test_the_thinking_of_what_stays_goes(make):
    calls = [("bash", {"command": "echo " + "w" * 400})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(6)]
    refused = huge(30_000, maximum=29_000)
    agent = make(*steps, refused, SUMMARY, reply("Done.", thinking=""))
    assert program.take_turn(agent, "Work.") == "Done."
    sent = agent.client.requests[-1]["messages"]
    assert 5 <= len(sent[1:]) <= 6 and '"thinking"' not in str(sent).replace("'", '"')


def test_a_request_older_than_the_newest_five_messages_is_named_as_in_progress(make):
    agent = make(TOO_LONG, SUMMARY, reply("Done."), keep_recent=99)
    steps = [*did(BODY), *did("a"), *did("b"), *did("c")]
    for message in [typed("Count the birds."), *steps]:
        program.commit(agent, message)
    program.agent_loop(agent)
    head, *tail = agent.client.requests[-1]["messages"]
    assert texts(head)[-1].endswith("Count the birds.")
    assert tail == steps[2:]


@pytest.mark.parametrize("failures, tried", [(0, [NO_SUMMARY]), (3, [])])
def test_if_the_summary_fails_or_the_breaker_is_open_it_goes_without_the_model(
    worked, failures, tried
):
    agent = worked(TOO_LONG, *tried, reply("Done."), failures=failures)
    newest = agent.messages[-3:]
    assert program.take_turn(agent, "Second wish.") == "Done."
    assert len(summaries(agent)) == len(tried)
    assert agent.failures == failures + len(tried)
    head, *tail = agent.client.requests[-1]["messages"]
    assert str(agent.transcript) in texts(head)[0] and "First wish." in str(head)
    assert tail[-4:] == [*newest, typed("Second wish.")] and len(tail) <= 6


def test_a_history_of_a_few_huge_messages_goes_with_a_note_of_what_was_not_seen(make):
    long = {"command": f"printf 'x%.0s' {{1..30000}} # {'why ' * 99}"}
    calls = [("bash", long), ("glob", {"pattern": "*"})]
    agent = make(reply(calls=calls), huge(210_000), reply("Done."))
    assert program.take_turn(agent, "Print it.") == "Done."
    [sent] = agent.client.requests[-1]["messages"]
    summary, note, *_ = texts(sent)
    assert "<summary>" in summary and note.startswith("For want of room")
    lost = [f"bash {json.dumps(long)[:200]}", 'glob {"pattern": "*"}']
    assert note.split("\n")[1:] == lost
    assert texts(sent)[-1].endswith("Print it.") and summaries(agent) == []


def test_a_note_names_no_call_whose_result_was_seen(worked, no_layer_2):
    agent = worked(huge(30_000), SUMMARY, reply("Done."), threshold=6_000)
    program.take_turn(agent, "Second wish.")
    [note] = [t for t in texts(agent.messages[0]) if "want of room" in t]
    assert "transcript" in note and "bash" not in note and "saw no result" not in note


@pytest.mark.parametrize("second", REFUSALS.values(), ids=REFUSALS)
def test_refused_after_both_remedies_it_is_one_clear_error_and_nothing_is_lost(
    worked, second
):
    agent = worked(TOO_LONG, SUMMARY, second, second, reply("Done."))
    assert "/clear" in fails(agent, "Second wish.")
    assert len(agent.client.requests) == 4 and not Path("ran").exists()
    assert on_disk(agent)
    assert texts(agent.messages[-1])[-1].endswith("Second wish.")
    assert program.remember(agent.messages)["words"] == ["First wish.", "Second wish."]
    assert program.take_turn(agent, "Third wish.") == "Done."


def test_two_remedies_between_two_replies_are_all_however_small_the_window(worked):
    first, *later = [huge(n + 1, n) for n in (14_000, 12_000, 6_000, 4_000)]
    agent = worked(first, SUMMARY, *later)
    for message in [typed("w" * 2_000), said("Yes.")] * 3:
        program.commit(agent, message)
    line = fails(agent, "Second wish.")
    assert line.startswith("prompt is too long: 6001 tokens > 6000 maximum, and")


# --- What was typed, or the newest results, are too large by the API's count alone ---

DENSE = "\u2042" * 3_333  # 2,500 tokens by our count, 10,000 by the API's


def count_dense(request):
    """An answer, if the request is within 16,000 tokens by a count that knows DENSE."""
    length = stub.count(request["system"], request["tools"], request["messages"])
    length += 2 * str(request["messages"]).count("\u2042")
    answer = SUMMARY if asks_for_summary(request) else reply("Done.")
    return answer if length <= 16_000 else huge(length)


@pytest.mark.parametrize("words", [[], ["One.", "Two.", "Three."]])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_message_that_is_too_large_becomes_a_preview(make, words, resumed):
    agent = make(*[reply("x" * 400) for _ in words], *[count_dense] * 3, **SMALL)
    turns(agent, *words)
    if resumed and words:
        program.resume(agent, str(agent.transcript))
    assert program.take_turn(agent, f"Look: {3 * DENSE}") == "Done."
    last = texts(agent.messages[0])[-1]
    [path] = re.findall(r"saved at (\S+)", last)
    assert Path(path).read_text() == f"Look: {3 * DENSE}" and on_disk(agent)
    assert all(word in str(agent.messages) for word in words)


@pytest.mark.parametrize("maximum", [16_000, 32_000, 64_000])
def test_the_maximum_that_a_refusal_names_is_the_window_from_then_on(make, maximum):
    client = StubClient(*[reply(calls=[READ])] * 40, window=maximum)
    client.queue.extend([any_answer] * 40)
    Path("notes.txt").write_text("a line of notes\n" * (maximum // 100))
    agent = make(client=client, clear_above=999_999)
    assert program.take_turn(agent, "Read it forty times.") == "Fine."
    assert agent.window == maximum and agent.threshold < maximum
    assert len(client.too_long) <= 2 and len(summaries(agent)) < 30
    seen = [r for r in client.requests if not asks_for_summary(r)]
    assert len(seen) == 41


# in the window there is no room for a reply of 16,384 tokens, but for a shorter one
NO_ROOM = (
    "This model's maximum context length is 16384 tokens and your request has 900 "
)
NO_ROOM += "input tokens (16384 > 16384 - 900)."
OLDER = "input length and `max_tokens` exceed context limit: 900 + 16384 > 16384"


@pytest.mark.parametrize("text", [NO_ROOM, OLDER])
def test_where_only_the_reply_has_no_room_a_shorter_one_is_asked_for(make, text):
    client = StubClient(api_error(400, text), reply("Done."))
    agent = make(client=client)
    assert program.take_turn(agent, "Hi") == "Done."
    assert [r["messages"] for r in client.requests[1:]] == [
        client.requests[0]["messages"]
    ]
    assert client.requests[1]["max_tokens"] < 16_384 and agent.window == 16_384


def test_rules_that_a_smaller_window_cannot_hold_are_cut_anew(make):
    Path("AGENTS.md").write_text("Be good and careful.\n" * 1_600)
    client = StubClient(*[reply(thinking="Hm.", calls=[READ])] * 12, window=16_000)
    client.queue.extend([any_answer] * 12)
    Path("notes.txt").write_text("a line of notes\n" * 400)
    agent = make(client=client, system={})
    assert program.take_turn(agent, "Read it.") == "Fine."
    assert client.too_long and agent.window == 16_000


def test_of_a_request_that_is_too_large_the_end_is_shown_too(make):
    client = StubClient(reply("Done."))
    agent = make(client=client, window=200_000, threshold=100_000)
    program.take_turn(agent, "a line of a log\n" * 60_000 + "\nWhy does it fail?")
    assert "Why does it fail?" in str(client.requests[-1]["messages"])


# a size in megabytes, a window "of 32 k": no number of tokens
@pytest.mark.parametrize("maximum", [10, 32])
def test_a_maximum_that_no_window_has_is_not_believed(worked, maximum):
    refused = api_error(413, f"The body exceeds the limit of {maximum} MB")
    agent = worked(refused, SUMMARY, reply("Done."))
    window = agent.window
    assert program.take_turn(agent, "Go on.") == "Done." and agent.window == window


def test_a_short_message_after_a_long_history_is_not_what_is_too_large(worked):
    agent = worked(TOO_LONG, SUMMARY, reply("Done."))
    program.commit(agent, said("Well."))
    program.resume(agent, str(agent.transcript))  # nothing is counted any more
    assert program.take_turn(agent, "Go on.") == "Done."


def test_newest_results_that_are_too_large_cost_two_refusals_at_most(make):
    Path("dense.txt").write_text(DENSE)
    Path("plain.txt").write_text("x" * 4_000)
    steps = [reply(calls=[("read_file", {"path": "plain.txt"})]) for _ in range(4)]
    dense = reply(calls=[("bash", {"command": "cat dense.txt"})])
    agent = make(*steps, dense, *[count_dense] * 4, **SMALL, clear_above=99_999)
    assert program.take_turn(agent, "Read them.") == "Done."
    assert len(agent.client.requests) <= 5 + 2 + 1 + 1  # refused, the summary, done
    head = "\n".join(texts(agent.messages[0]))
    assert 'bash {"command": "cat dense.txt"}' in head and "Read them." in head


@pytest.mark.parametrize("window", [6_000, 8_000, 11_000])
def test_a_window_that_is_smaller_than_we_think_is_recovered_from(worked, window):
    client = StubClient(SUMMARY, reply("Done."), window=window)
    agent = worked(client=client)
    assert program.take_turn(agent, "Second wish.") == "Done."
    assert client.too_long and len(client.too_long) < len(client.requests)
    assert "All is well." in texts(agent.messages[0])[0]


# --- The request for the summary is itself too long ---


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_the_oldest_exchanges_are_left_out_until_it_fits(worked, times, refusal):
    agent = worked(*[refusal] * times, SUMMARY)
    newest = agent.messages[-1]
    assert program.compact_history(agent, "compact")  # no pair was parted
    sent = [request["messages"] for request in agent.client.requests]
    assert [messages[-2] for messages in sent] == [newest] * (times + 1)
    lengths = [*map(len, sent)]
    assert lengths == sorted(set(lengths), reverse=True)


def test_at_most_three_times_and_then_it_has_failed(worked):
    agent = worked(*[TOO_LONG] * 4, SUMMARY)
    before = agent.messages
    assert not program.compact_history(agent, "compact")
    assert len(agent.client.requests) == 4 and agent.messages == before
    last = agent.client.requests[-1]["messages"]
    assert len(last) <= len(before) // 4 + 3  # the first, one to pair, and the prompt
    assert agent.failures == 0  # no reply was a bad summary


def test_thinking_is_dropped_from_that_copy_and_from_no_other(make):
    calls = [("bash", {"command": "echo " + "w" * 3_000})]
    steps = [reply(f"{n}", calls=calls, thinking="") for n in range(6)]
    more = reply("More.", thinking="")
    agent = make(*steps, reply("Done."), TOO_LONG, NO_SUMMARY, more)
    program.take_turn(agent, "Work.")
    before = agent.messages
    program.compact_history(agent, "compact")
    whole, copy = ("'thinking'" in str(r["messages"]) for r in summaries(agent))
    assert (whole, copy) == (True, False) and agent.messages == before
    assert program.take_turn(agent, "Go on.") == "More."  # its thinking is still valid


def test_a_summary_that_is_too_long_is_not_asked_for_again_as_it_was(make):
    refused = api_error(400, "prompt is too long: 9 tokens > 8 maximum")
    agent = make(*[refused] * 2)
    prompt = program.user("Summarise.")
    with pytest.raises(program.AgentError, match="too long to be summarised"):
        program.ask_for_less(agent, history(did("x" * 500)), prompt)
    sent = [json.dumps(request["messages"]) for request in agent.client.requests]
    assert len(sent) == len(set(sent)) <= 2


def test_what_a_subagent_learns_of_the_window_holds_for_its_agent_too(make):
    Path("notes.txt").write_text("a line of notes\n" * 2_000)
    reads = [reply(calls=[READ]) for _ in range(3)]
    task = reply(calls=[("task", {"description": "look", "prompt": "Read it thrice."})])
    client = StubClient(task, *reads, *[any_answer] * 9, window=20_000)
    agent = make(client=client, clear_above=999_999)
    assert program.take_turn(agent, "Have it read.") == "Fine."
    assert agent.window == 20_000 and len(client.too_long) == 1
