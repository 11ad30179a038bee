"""The prompt cache is used once more while the person thinks, where that is worth it."""

import time
from types import SimpleNamespace

import pytest
from builders import BASH, SUMMARY, history, layers, read, said, shown, sized, typed
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
    "a layer": lambda agent: setattr(agent, "messages", agent.messages[2:]),
    "no thinking": lambda agent: setattr(
        agent, "messages", program.drop_thinking(agent.messages)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_not_done_for_what_would_not_be_sent_again(paused, clock, change):
    agent = paused(0, *[SUMMARY] * (change is CHANGES["/compact"]))
    change(agent)
    agent.last_request = clock.now - 280
    keep_warm(agent)
    assert refreshed(agent) == 0


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


def test_nearly_all_of_it_is_read_from_the_cache_told_and_in_the_bill(paused):
    agent = paused(280)
    before = agent.bill.copy()
    keep_warm(agent)
    spent = agent.bill - before
    assert 2_000 < spent["read"] <= spent["sent"] < spent["read"] * 1.1
    tokens = f"{spent['sent']:,} tokens stay in the prompt cache"
    assert agent.events[-1] == ("warm", f"[keep_warm] {tokens}")


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


FAULTS = [
    api_error(400, "max_tokens: must be at least 1"),
    api_error(529, "Overloaded"),
]
FAULTS += [ConnectionError("gone"), api_error(400, "prompt is too long: 9 > 8 maximum")]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_refusal_or_an_outage_ends_it_for_this_run_without_a_word(
    paused, clock, pauses, fault
):
    agent = paused(280, fault)
    told, before = [*agent.events], agent.limits.context_window
    for _ in range(3):
        keep_warm(agent)
        clock.now = agent.last_request + 280
    assert (refreshed(agent), agent.events, pauses) == (1, told, [])
    run_command(agent, "/clear")
    agent.client.enqueue(reply("Yes."))
    assert (
        take_turn(agent, sized(2_000)) == "Yes."
        and agent.limits.context_window == before
    )
    clock.now += 280
    keep_warm(agent)
    assert refreshed(agent) == 1 and shown(agent, "error") == []
