"""The prompt cache is used again while the person thinks, where that is worth it."""

import time
from types import SimpleNamespace
from unittest import mock

import pytest
from builders import (
    BASH,
    SUMMARY,
    fails,
    history,
    layers,
    read,
    said,
    shown,
    sized,
    typed,
)
from stub import api_error, reply
from wire import mock_client

import agent as program
from agent import keep_warm, run_command, take_turn

WORK = [reply("Let me see.", [BASH], "Hm."), reply("Done.", thinking="So it is.")]


@pytest.fixture
def clock(monkeypatch):
    """The time of day, which stands still until `clock.now` is changed."""
    clock = SimpleNamespace(now=1_000_000.0)
    monkeypatch.setattr(time, "time", lambda: clock.now)
    return clock


@pytest.fixture
def paused(make, clock):
    """paused(seconds, *replies): an agent whose last request began so long ago.

    The context is larger than MIN_SAVINGS.
    """

    def build(seconds, *replies, **fields):
        fields = {"min_savings": 1_000, "thinking": True} | fields
        agent = make(*WORK, *replies, **fields)
        take_turn(agent, sized(2_000))
        clock.now += seconds
        return agent

    return build


def refreshed(agent):
    """How often the cache was used without a reply."""
    return sum(body["max_tokens"] == 0 for body in agent.client.bodies)


# --- When ---


@pytest.mark.parametrize(
    "seconds, is_due", [(10, 0), (275, 0), (275.1, 1), (299.9, 1), (300, 0), (9_999, 0)]
)
def test_it_is_due_in_the_last_25_of_the_300_seconds_that_the_cache_lives(
    paused, seconds, is_due
):
    agent = paused(seconds)
    keep_warm(agent)
    assert refreshed(agent) == is_due


def test_the_seconds_count_from_the_start_of_the_last_request(make, clock):
    def slow(request):
        clock.now += 200
        return reply("At last.")

    agent = make(slow, min_savings=1_000)
    take_turn(agent, sized(2_000))
    clock.now += 80
    keep_warm(agent)
    assert refreshed(agent) == 1


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_it_is_done_keep_warm_times_in_a_pause_and_again_in_the_next(
    paused, clock, most
):
    agent = paused(0, reply("Yes."), keep_warm=most)
    for pauses in 1, 2:
        for _ in range(7):
            clock.now += 280
            keep_warm(agent)
            keep_warm(agent)  # it was done just now
        assert refreshed(agent) == pauses * most
        if pauses == 1:
            take_turn(agent, "And?")


@pytest.mark.parametrize("more, is_worth_it", [(0, 0), (-1, 1)])
def test_it_is_worth_it_over_min_savings_only(paused, more, is_worth_it):
    agent = paused(280)
    agent.limits.min_savings = program.context_tokens(agent) + more
    keep_warm(agent)
    assert refreshed(agent) == is_worth_it


CHANGES = {
    "/compact": lambda agent: run_command(agent, "/compact"),
    "/clear": lambda agent: run_command(agent, "/clear"),
    "/resume": lambda agent: run_command(agent, f"/resume {agent.transcript}"),
    "a smaller window": program.make_ready,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_not_done_for_what_would_not_be_sent_again(paused, clock, change):
    agent = paused(0, *[SUMMARY] * (change is CHANGES["/compact"]))
    change(agent)
    agent.last_request = clock.now - 280
    keep_warm(agent)
    assert refreshed(agent) == 0


def test_it_is_not_done_for_what_a_layer_made_of_it_and_the_api_then_refused(
    paused, clock
):
    count = reply(calls=[("bash", {"command": "seq 500"})])
    agent = paused(0, count, reply("Seen."), api_error(401, "No."))
    take_turn(agent, "Count.")
    for limit in "clear_above", "min_savings", "keep_tokens", "keep_recent":
        setattr(agent.limits, limit, 0)
    fails(agent, "And?")
    assert layers(agent)[-1] == "micro_compact"
    clock.now += 280
    keep_warm(agent)
    assert refreshed(agent) == 0


NO_CACHE = {"input_tokens": 5_000, "output_tokens": 9}


@pytest.mark.parametrize("part", [None, "cache_read", "cache_creation"])
def test_it_is_done_only_where_the_last_reply_shows_a_cache(paused, part):
    usage = NO_CACHE | ({f"{part}_input_tokens": 1} if part else {})
    agent = paused(0)
    agent.client.usage = lambda *_: usage
    agent.client.enqueue(reply("Yes."))
    take_turn(agent, "And?")
    agent.last_request -= 280
    keep_warm(agent)
    assert refreshed(agent) == (part is not None)


# --- What is sent, and what comes of it ---


@pytest.mark.parametrize("thinking", [True, False])
def test_what_is_sent_is_the_last_request_for_no_tokens_and_in_one_piece(
    paused, thinking
):
    agent = paused(280, thinking=thinking, client=mock_client(*WORK))
    before = agent.messages
    keep_warm(agent)
    last, again = agent.client.stub.bodies[-2:]
    assert again == last | {"max_tokens": 0} and ("thinking" in again) is thinking
    assert agent.messages is before and agent.client.stub.refused == []


FAILED = {
    "refused": api_error(401, "No."),
    "stopped": KeyboardInterrupt(),
    "not answered": api_error(400, "No such block."),
}


@pytest.mark.parametrize("fault", FAILED.values(), ids=FAILED)
def test_after_a_request_that_failed_what_was_answered_last_is_sent(
    paused, clock, fault
):
    agent = paused(100, fault)
    answered = agent.client.bodies[-1]
    with pytest.raises((program.AgentError, KeyboardInterrupt)):
        take_turn(agent, "And?")
    clock.now += 180  # the cache was used 280 seconds ago
    keep_warm(agent)
    assert agent.client.bodies[-1] == answered | {"max_tokens": 0}
    assert agent.refreshes[0] > 2_000


def test_after_a_reply_that_was_stopped_the_cache_lives_from_its_request_on(
    paused, clock
):
    def stop(style, text):
        if style == "text":
            raise KeyboardInterrupt

    agent = paused(100, reply("A long answer."))
    agent.emit = stop
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "And?")
    clock.now += 180
    keep_warm(agent)
    assert refreshed(agent) == 0
    clock.now += 100
    keep_warm(agent)
    assert refreshed(agent) == 1 and agent.refreshes[0] > 2_000


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_it_read_is_in_the_bill_and_told_once_before_the_next_turn(
    paused, clock, times
):
    agent = paused(0, reply("Yes."), reply("So."))
    before, events = agent.bill.copy(), [*agent.events]
    for _ in range(times):
        clock.now += 280
        keep_warm(agent)
    spent = agent.bill - before
    assert agent.events == events and spent["kept_warm"] == times
    assert 2_000 * times <= spent["read"] <= spent["sent"] <= spent["read"] * 1.1
    each = " + ".join([f"{spent['read'] // max(1, times):,}"] * times)
    take_turn(agent, "And?")
    take_turn(agent, "And now?")
    told = f"[keep_warm] {each} tokens read, so the cache lived on"
    assert shown(agent, "note") == [told] * (times > 0)
    assert agent.events[len(events)][0] == ("note" if times else "text")


def cleared_early(agent):
    """Whether layer 1 takes the cache for cold, and clears an old result."""
    work = history(read("a.py", sized(4_000)), said("Seen."), typed("And?"))
    agent.messages, agent.limits.clear_above = work, 90_000
    agent.limits.threshold, agent.limits.keep_recent = 10_000, 0
    agent.limits.keep_tokens = agent.known = agent.compacted = 0
    program.layer_1(agent)
    return "micro_compact" in layers(agent)


@pytest.mark.parametrize("is_refused", [False, True])
def test_layer_1_takes_the_cache_as_warm_afterwards_if_it_is(paused, clock, is_refused):
    agent = paused(280, *[api_error(400, "No.")] * is_refused)
    keep_warm(agent)
    clock.now += 280
    assert cleared_early(agent) is is_refused


def again_and_again(agent, clock):
    """Let it be due three times; how often it was done."""
    before = refreshed(agent)
    for _ in range(3):
        clock.now = agent.last_request + 280
        keep_warm(agent)
    return refreshed(agent) - before


LASTING = ["max_tokens: must be at least 1", "prompt is too long: 9 > 8 maximum"]


@pytest.mark.parametrize("text", LASTING)
def test_a_refusal_ends_it_for_this_run_without_a_word(paused, clock, pauses, text):
    agent = paused(280, api_error(400, text), keep_warm=9)
    told, window = [*agent.events], agent.limits.context_window
    assert again_and_again(agent, clock) == 1
    assert (agent.events, pauses, agent.limits.context_window) == (told, [], window)
    run_command(agent, "/clear")
    agent.limits = program.Limits(min_savings=1_000)  # as if a window was learnt
    agent.client.enqueue(reply("Yes."), reply("And so."))
    assert take_turn(agent, sized(2_000)) == "Yes."
    take_turn(agent, "And?")
    assert again_and_again(agent, clock) == 0 and shown(agent, "error") == []


PASSING = [api_error(529, "Overloaded"), api_error(500, "Oh."), api_error(429, "Wait.")]
PASSING += [ConnectionError("gone")]


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_a_fault_that_passes_costs_one_try_of_the_pause_and_ends_nothing(
    paused, clock, pauses, fault
):
    agent = paused(280, fault)
    told = [*agent.events]
    keep_warm(agent)
    assert agent.last_request == clock.now - 280  # so a second one is due
    assert again_and_again(agent, clock) == 1 and agent.refreshes[0] == 0
    assert (agent.events, pauses, agent.bill["kept_warm"]) == (told, [], 1)
    agent.client.enqueue(reply("Yes."))
    take_turn(agent, "And?")
    assert again_and_again(agent, clock) == 2


# the usage of an answer that shows that there is nothing to keep
FOR_NOTHING = {
    "output": NO_CACHE | {"cache_read_input_tokens": 5_000},
    "nothing was read": {"input_tokens": 5_000, "output_tokens": 0},
    "it was written": {"cache_creation_input_tokens": 5_000},
    "it does not say": {},
}


@pytest.mark.parametrize("usage", FOR_NOTHING.values(), ids=FOR_NOTHING)
def test_an_answer_that_shows_nothing_to_keep_ends_it_for_this_run(
    paused, clock, usage
):
    agent = paused(280, reply("Yes."), keep_warm=9)
    before, used = agent.bill.copy(), agent.last_request
    with mock.patch.object(agent.client, "usage", return_value=usage):
        assert again_and_again(agent, clock) == 1
    assert (agent.bill - before)["kept_warm"] == 1
    assert (agent.last_request > used) == ("cache_read_input_tokens" in usage)
    take_turn(agent, "And?")
    assert agent.has_cache and again_and_again(agent, clock) == 0


def test_who_goes_on_meanwhile_is_not_taken_for_one_who_thinks(paused, clock):
    agent = paused(280, reply("Yes."))

    def slow(**request):
        clock.now += 5
        take_turn(agent, "And?")
        clock.now += 9
        return SimpleNamespace(usage=SimpleNamespace(cache_read_input_tokens=5_000))

    agent.client.messages.create = slow
    keep_warm(agent)
    assert agent.last_request == clock.now - 9 and agent.refreshes == []
