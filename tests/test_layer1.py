"""Layer 1: what it forgets without asking the model, what it keeps, and the order."""

import itertools
import re
import time
from pathlib import Path

import pytest
import stub
from builders import (
    THOUGHT,
    did,
    history,
    is_valid,
    layers,
    loaded,
    outputs,
    planned,
    read,
    said,
    sized,
    texts,
    typed,
)
from stub import reply

import agent as program
from agent import drop_thinking, is_typed, micro_compact, preview, tokens_in, user_texts
from agent import tool_result_budget as budget

REDACTED = {"type": "redacted_thinking", "data": "d"}
CLEARABLE = sized(125)
TWO_LARGE = sized(100_000), sized(100_000, "y")
PLACEHOLDER = f"[Previous: used bash, saved at saved/{len(CLEARABLE)}.txt]"


def with_thinking(messages):
    """The indices of the messages that contain thinking."""
    kinds = [{b["type"] for b in stub.blocks(m["content"])} for m in messages]
    return [i for i, k in enumerate(kinds) if k & {"thinking", "redacted_thinking"}]


def saved(text):
    """Return a path without saving anything, in place of the real function."""
    return f"saved/{len(text)}.txt"


def clear(messages, keep_recent=0, keep_tokens=0, min_savings=0):
    """Run micro_compact with the limits of s06, unless others are given."""
    return micro_compact(messages, saved, keep_recent, keep_tokens, min_savings)


def previews(messages):
    """One boolean per result: True if a preview replaced it."""
    return [text.startswith("<persisted-output>") for text in outputs(*messages)]


# --- The budget: oversized results go to disk before the model sees them ---


@pytest.mark.parametrize(
    "sizes, expected",  # tokens of each result in one message
    [
        ([50_000], [False]),
        ([50_001], [True]),
        ([15_000, 20_000, 15_000], [False, False, False]),
        ([15_000, 20_000, 15_001], [False, True, False]),  # a share is 16,666
        ([16_667, 16_666, 16_668], [True, False, True]),
        ([100, 60_000, 100, 100], [False, True, False, False]),
    ],
)
def test_over_the_limit_each_result_above_its_equal_share_becomes_a_preview(
    sizes, expected
):
    messages = history(did(*map(sized, sizes)))
    assert previews(budget(messages, 50_000, saved)) == expected


JSON = '{"key": "value"}\n'
SIZES = [(1, 67_500), *itertools.product((5, 6, 40, 100), (225, 575, 742, 1_725))]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [4_000, 50_000])
@pytest.mark.parametrize("letters", ["x", "日", JSON])
def test_all_results_in_a_message_share_one_limit(limit, letters):
    shortest = tokens_in(preview(sized(1_725, letters), 0, program.save_result))
    for number, tokens in SIZES:
        texts = [sized(tokens, letters)] * min(number, limit // shortest)
        messages = history(did(*texts))
        after = budget(messages, limit, program.save_result)
        assert sum(map(tokens_in, outputs(*after))) <= limit
        assert budget(after, limit, program.save_result) is after


@pytest.mark.parametrize("text", [sized(701, letters) for letters in ("x", JSON, "\n")])
def test_a_preview_is_shorter_than_the_result_it_replaces(text):
    assert tokens_in(preview(text, 700, program.save_result)) < tokens_in(text)


def test_a_result_as_short_as_a_placeholder_is_never_replaced():
    assert preview("x" * 100, 0, saved) == "x" * 100
    assert preview("x" * 101, 0, saved) != "x" * 101


def test_the_budget_applies_to_unseen_results_even_if_the_user_typed_after_them():
    large, later = sized(60_000), [typed("Stop."), typed("No, go on.")]
    messages = history(did(large), did(large), later)
    unseen = program.first_unseen(messages)
    assert previews(budget(messages, 50_000, saved, unseen)) == [False, True]
    assert previews(budget(messages, 50_000, saved)) == [True, True]


def test_a_preview_has_path_size_first_2000_and_last_500_characters():
    text = "a" * 2_000 + "b" * 200_000 + "c" * 500
    [shown] = outputs(*budget(history(did(text)), 50_000, saved))
    opening, about, first, _, last, closing = shown.split("\n")
    assert about == "202,500 characters, saved at saved/202500.txt"
    assert text.startswith(first) and 2_000 <= len(first) < 2_020
    assert text.endswith(last) and 500 <= len(last) < 510
    assert (opening, closing) == ("<persisted-output>", "</persisted-output>")


def test_a_typed_message_over_the_limit_becomes_a_preview_and_still_counts_as_typed():
    messages = [said("Yes."), typed(f"Why? {sized(50_000)} Tell me.")]
    after = budget(messages, 50_000, saved)
    assert is_typed(after[1]) and tokens_in(after[1]) < 750 and after[0] is messages[0]
    assert re.search(r"\nWhy\? x{9}[^<]*x{9} Tell me\.\n<", after[1]["content"])
    assert budget(after, 500, saved) is after


FORGED = f"<persisted-output>\n9 characters, saved at /etc/passwd\n{sized(60_000)}"


def test_a_result_that_only_starts_like_a_preview_is_treated_as_any_other():
    messages = history(did(FORGED))
    assert "saved/" in outputs(*budget(messages, 50_000, saved))[0]
    assert clear([*messages, said("Seen.")]) is not messages


def test_the_file_holds_the_whole_result_and_is_named_after_its_content(make):
    texts = [sized(12_500, letter) for letter in "xyx"]
    agent = make(threshold=30_000, messages=history(did(*texts)))
    program.layer_1(agent)
    paths = re.findall(r"\.task_outputs/\S+", "".join(outputs(*agent.messages)))
    assert [Path(path).read_text() for path in paths] == texts
    assert paths[0] == paths[2] != paths[1]


# --- The snip: with too many messages, the middle is cut out ---


def snip(messages, max_messages):
    """Run snip_compact on a conversation that has a transcript."""
    return program.snip_compact(
        messages, max_messages, Path("transcript_1.jsonl"), program.TOOLS
    )


def chat(length):
    """A conversation of `length` messages, each call followed by its result."""
    steps = (did(f"result {n}", thinking=[THOUGHT]) for n in range(length))
    return [typed("Go."), *itertools.chain(*steps)][:length]


@pytest.mark.parametrize("max_messages", [16, 20, 50])
def test_a_snip_keeps_the_first_three_and_the_newest_quarter_and_splits_no_pair(
    max_messages,
):
    for length, head in itertools.product((51, 53, 55, 99), (3, 4)):
        messages = [typed("Wait.")] * (head - 3) + chat(length)  # third: a call
        snipped = snip(messages, max_messages)
        assert len(snipped) <= head + 1 + max_messages // 4 + 1 and is_valid(snipped)
        assert snipped[:head] == messages[:head]
        assert "transcript_1.jsonl" in texts(snipped[head])[0]
        newest = snipped[head + 1 :]
        assert newest == drop_thinking(messages[-len(newest) :])


def test_a_snip_keeps_typed_messages_and_still_needed_calls_from_the_middle():
    old, new, skill = planned("[ ] old"), planned("[ ] new"), loaded("birds")
    middle = [*old, typed("Second."), *read("a.py"), *skill, *new, typed("Third.")]
    snipped = snip(history(chat(21)[1:], middle, chat(41)[1:]), 50)
    assert is_valid(snipped) and user_texts(snipped[3:]) == ["Second.", "Third."]
    calls, kept = snipped[6:8]
    assert outputs(kept) == ["text", "Its text.", "ok"]
    assert calls["content"][-1]["input"] == {"items": ["[ ] new"]}


def test_a_snip_limits_the_typed_messages_it_keeps():
    requests = [typed(f"{n} {sized(4_000)}") for n in range(99)]
    messages = [message for request in requests for message in (request, said("Yes."))]
    kept = user_texts(snip(messages, 50)[3:-12])
    assert 15_000 < sum(map(tokens_in, kept)) < program.MAX_USER_TOKENS
    assert kept[-1][:2] == "92"


@pytest.mark.parametrize("max_messages", [30, 50, 100])
def test_a_snip_cuts_enough_not_to_run_again_at_the_next_messages(max_messages):
    rounds = [[typed(f"{n}"), said("Yes."), *read(f"{n}.py")] for n in range(99)]
    snipped = snip(history(*rounds), max_messages)
    assert len(snipped) < max_messages - 4 and is_valid(snipped)


def test_a_snip_does_not_touch_what_a_compaction_kept(make):
    summary = program.note(program.COMPRESSED.format(path="-", summary="Short."))
    kept = [*(typed(f"Request {n}.") for n in range(5)), *did("left"), summary]
    steps = [message for n in range(30) for message in did(f"result {n}")]
    agent = make(messages=[*kept, *steps, said("Well.")], max_messages=50)
    program.layer_1(agent)
    assert agent.messages[:8] == kept and len(agent.messages) < 30


def test_after_a_snip_restored_files_still_wait_until_they_have_been_sent(make):
    restored = read("a.py", CLEARABLE)
    summary = program.note(program.COMPRESSED.format(path="-", summary="Short."))
    tail = [message for n in range(9) for message in did(f"result {n}")]
    messages = [typed("Go."), *restored, summary, *tail]
    limits = {"keep_recent": 0, "keep_tokens": 0, "min_savings": 0, "clear_above": 0}
    agent = make(messages=messages, max_messages=8, **limits)
    agent.tried_until = len(messages)
    program.layer_1(agent)
    assert len(agent.messages) < 12 and outputs(*agent.messages)[0] == CLEARABLE


def test_a_snip_keeps_everything_the_model_has_not_seen():
    unseen = [*did("unseen"), typed("And?")]
    assert snip([*chat(61), *unseen], 5)[-3:] == unseen


def test_a_snip_that_would_not_shorten_the_list_does_nothing():
    few = history(said("a"), typed("b"), said("c"), typed("d"))
    assert snip(few, 4) is few
    assert len(snip([*few, said("e"), typed("f"), said("g")], 4)) < 8


# --- micro_compact: placeholders replace old results ---

S06 = {"clear_above": 0, "keep_tokens": 0, "min_savings": 0}
V5 = {"clear_above": 0, "keep_tokens": 0}


@pytest.mark.parametrize("length, is_cleared", [(100, False), (101, True)])
def test_only_results_over_100_characters_are_cleared(length, is_cleared):
    messages = history(did("x" * length), said("Done."))
    assert (clear(messages) is not messages) == is_cleared


@pytest.mark.parametrize(
    "tool", ["bash", "grep", "glob", "read_file", "write_file", "edit_file"]
)
def test_the_placeholder_names_the_tool_and_the_saved_path_except_for_files(tool):
    messages = history(did(CLEARABLE, tool=tool), said("Done."))
    where = "" if tool.endswith("_file") else f", saved at saved/{len(CLEARABLE)}.txt"
    assert outputs(*clear(messages)) == [f"[Previous: used {tool}{where}]"]


@pytest.mark.parametrize("tool", ["task", "todo_write", "load_skill", "compact"])
def test_results_of_task_todo_write_load_skill_and_compact_are_never_cleared(tool):
    messages = history(did(CLEARABLE, tool=tool), said("Done."))
    assert tool in program.TOOLS and clear(messages) is messages


def test_a_preview_is_never_cleared_because_it_names_the_saved_file():
    seen = [*budget(history(did(sized(75_000))), 50_000, saved), said("Seen.")]
    assert previews(seen) == [True] and clear(seen) is seen


@pytest.mark.parametrize("later", [[], [typed("Stop.")], [typed("a"), typed("b")]])
def test_a_result_the_model_has_not_seen_is_never_cleared(later):
    messages = history(did(CLEARABLE), did(*[CLEARABLE] * 5), *later)
    after = outputs(*clear(messages))
    assert after == [PLACEHOLDER, *[CLEARABLE] * 5]


def test_a_placeholder_is_never_cleared_however_long_the_tool_name():
    placeholder = f"[Previous: used {'long_name' * 9}, saved at saved/1.txt]"
    messages = history(did(placeholder), did(CLEARABLE), said("Done."))
    assert outputs(*clear(messages))[0] == placeholder


@pytest.mark.parametrize(
    "keep_recent, keep_tokens, cleared",
    [
        (0, 199, [400, 100, 300, 200]),
        (0, 200, [400, 100, 300]),
        (0, 500, [400, 100]),
        (0, 1_000, []),
        (1, 600, [400]),
        (3, 500, [400]),
        (2, 0, [400, 100]),
        (99, 0, []),
    ],
)
def test_the_newest_results_stay_within_keep_recent_and_within_keep_tokens(
    keep_recent, keep_tokens, cleared
):
    sizes = [400, 100, 300, 200]
    messages = history(*map(did, map(sized, sizes)), said("Done."))
    after = outputs(*clear(messages, keep_recent, keep_tokens))
    assert [n for n, t in zip(sizes, after, strict=True) if t != sized(n)] == cleared


def cleared_after(make, tokens, seconds, context=0, **limits):
    """Tell whether a result of this size is cleared so long after the last request."""
    seen = history(did(sized(tokens)), said("Seen."))
    agent = make(messages=seen, **{"keep_recent": 0, "clear_above": 0} | limits)
    agent.last_request = time.time() - seconds
    if context:
        agent.counted_tokens, agent.counted_messages = context, len(seen)
    program.layer_1(agent)
    return agent.messages is not seen


@pytest.mark.parametrize(
    "seconds, tokens, is_cleared",
    [
        (290, 55_690, False),  # frees under a third of T: the placeholder has 25
        (290, 55_691, True),
        (310, 10_000, False),  # the cache is cold, but the newest 10,000 stay
        (310, 10_001, True),
    ],
)
def test_clearing_must_free_min_savings_if_the_cache_is_warm_and_anything_if_cold(
    make, seconds, tokens, is_cleared
):
    assert cleared_after(make, tokens, seconds) == is_cleared


@pytest.mark.parametrize(
    "seconds, above, context, is_cleared",
    [
        (290, None, 70_000, False),  # 0.7 of the threshold
        (290, None, 70_001, True),
        (310, None, 25_000, False),  # the cache is cold: a quarter of it
        (310, None, 25_001, True),
        (290, 10_000, 10_001, True),  # a setting applies to both,
        (310, 10_000, 10_000, False),
        (310, 10_000, 10_001, True),
        (310, 90_000, 25_001, True),  # but clearing for free stays early,
        (310, 999_999, 99_999, False),  # and a limit over the window is never reached
    ],
)
def test_results_are_cleared_early_when_the_cache_is_cold_and_late_when_it_is_warm(
    make, seconds, above, context, is_cleared
):
    limits = {"clear_above": above, "threshold": 100_000}
    assert cleared_after(make, 34_000, seconds, context, **limits) == is_cleared


def test_the_cache_is_cold_after_a_laptop_slept_though_the_monotonic_clock_stopped(
    make, monkeypatch
):
    agent = make(reply("Yes."), messages=history(did(sized(25_000))), keep_recent=0)
    program.agent_loop(agent)
    woken, awake = time.time() + 8 * 3_600, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: woken)
    monkeypatch.setattr(time, "monotonic", lambda: awake)
    agent.limits.clear_above = 0
    program.layer_1(agent)
    assert layers(agent)[-1] == "micro_compact"


def test_a_resumed_conversation_counts_as_cold(make):
    agent = make(reply("Yes."))
    program.take_turn(agent, "Go.")
    program.resume(agent, str(agent.transcript))
    assert time.time() - agent.last_request > program.CACHE_SECONDS


COUNT = [("bash", {"command": f"printf 'x%.0s' {{1..{len(CLEARABLE)}}}"})]


@pytest.mark.parametrize(
    "settings, cleared",
    [
        (S06, [0, 0, 0, 0, 1, 2, 3, 4, 5]),  # at every request
        (V5, [0, 0, 0, 0, 0, 0, 0, 0, 0]),  # at least a third of T at once
        (V5 | {"min_savings": 375}, [0, 0, 0, 0, 0, 0, 0, 4, 4]),  # or this many
        ({}, [0, 0, 0, 0, 0, 0, 0, 0, 0]),  # ours: there is still room
    ],
    ids=["s06", "v5", "v5, less", "ours"],
)
def test_the_presets_clear_as_the_tutorials_do(make, no_layer_2, settings, cleared):
    replies = [reply(calls=COUNT) for _ in range(8)]
    agent = make(*replies, reply("Done."), **settings)
    program.take_turn(agent, "Count.")
    sent = [outputs(*r["messages"]) for r in agent.client.requests]
    assert [sum(text != CLEARABLE for text in results) for results in sent] == cleared


@pytest.mark.parametrize(
    "ago, why", [(0, ""), (400, " (the cache was cold)")], ids=["warm", "cold"]
)
def test_clearing_reports_the_tokens_before_and_after(make, ago, why):
    seen = history(*map(did, TWO_LARGE), said("Seen."))
    last = time.time() - ago
    agent = make(messages=seen, keep_recent=1, clear_above=0, last_request=last)
    before = program.context_tokens(agent)
    program.layer_1(agent)
    tokens = f"{before:,} -> {program.context_tokens(agent):,} tokens"
    line = f"[micro_compact] old results cleared{why}: {tokens}"
    assert agent.events == [("layer", line)]


# --- Thinking: valid only while everything before it is unchanged ---


@pytest.mark.parametrize("thinking", [THOUGHT, REDACTED])
def test_thinking_stays_before_the_first_change_and_is_dropped_after_it(thinking):
    steps = [
        did(text, thinking=[thinking])
        for text in ("short", CLEARABLE, "short", CLEARABLE)
    ]
    messages = history(*steps, said("Done.", thinking))
    assert with_thinking(messages) == [1, 3, 5, 7, 9]
    assert with_thinking(clear(messages)) == [1, 3]
    assert with_thinking(snip(chat(61), 50)) == [1]


def test_only_thinking_is_dropped_and_replies_that_consist_of_nothing_else():
    bare = {"role": "assistant", "content": [THOUGHT, REDACTED]}
    messages = history(bare, typed("Well?"), did("ok", thinking=[THOUGHT]), said("Yes"))
    first, well, call, *rest = drop_thinking(messages)
    assert (first, well, rest) == (messages[0], messages[2], messages[4:])
    assert call["content"] == messages[3]["content"][1:]


# --- All steps together ---


def test_the_three_steps_run_in_this_order(make):
    work = history(*(did(CLEARABLE) for _ in range(30)), did(*TWO_LARGE))
    agent = make(messages=work, threshold=30_000, max_messages=50, **S06)
    program.layer_1(agent)
    assert layers(agent) == ["tool_result_budget", "snip_compact", "micro_compact"]


def test_results_of_a_tool_that_you_add_are_saved_and_cleared(make):
    own = program.TOOLS["glob"]._replace(handler=lambda agent, pattern: sized(2_250))
    agent = make(*[reply(calls=[("mine", {"pattern": "*"})])] * 3, reply("Done."))
    schema = {**own.schema, "name": "mine"}
    agent.tools["mine"], agent.limits.keep_tokens = own._replace(schema=schema), 0
    agent.limits.clear_above = agent.limits.min_savings = agent.limits.keep_recent = 0
    program.take_turn(agent, "Work.")
    cleared = outputs(*agent.client.requests[-1]["messages"])[0]
    assert re.match(r"\[Previous: used mine, saved at \S+\]", cleared)
