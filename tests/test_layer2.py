"""Layer 2: when a summary is due, how it is asked for, and what a compaction leaves."""

import itertools
import json
import os
import re
from pathlib import Path

import pytest
import stub
from builders import (
    NO_SUMMARY,
    SUMMARY,
    TOO_LARGE,
    asks_for_summary,
    bash,
    call,
    did,
    fails,
    history,
    is_valid,
    layers,
    left,
    lines_of,
    loaded,
    planned,
    prompt,
    read,
    said,
    schemas,
    shown,
    sized,
    summaries,
    texts,
    turn_into,
    turns,
    typed,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import USER_TEXTS, examples
from stub import StubClient, api_error, reply

import agent as program
from agent import context_tokens, estimate_tokens, fixed_tokens, in_progress, tokens_in

COMPACT = ("compact", {})
TEST_COMMAND = "npm test -- --run src/orders.test.ts"
T = 10_000  # tokens; about 1,000 of them are system prompt and tools
WINDOW = {"threshold": T}
BODY = sized(15_000)  # over T, however it is counted
FIVE_NAMES = "abcde"


@pytest.fixture
def long(make):
    """long(*replies, before=messages): an agent whose conversation is over T."""

    def build(*replies, before=(), **fields):
        agent = make(*replies, **WINDOW | fields)
        for message in [typed("First request."), *before, said(BODY)]:
            program.commit(agent, message)
        return agent

    return build


@pytest.fixture
def compacted(long):
    """compacted(*before): an agent whose last turn began by summarising these."""

    def build(*before, summary=SUMMARY, **fields):
        agent = long(summary, reply("Done."), before=before, **fields)
        program.take_turn(agent, "Newest request.")
        assert len(summaries(agent)) == 1
        return agent

    return build


@pytest.fixture
def rebuilt(make):
    """rebuilt(*messages): the parts that a compaction of these messages leaves."""

    def build(*messages, summary="Short.", **fields):
        agent = make(messages=[*messages], **fields)
        return left(program.rebuild(agent, summary)[0])

    return build


def write_skill(name, text):
    """Write a skill into the workspace; only agents made afterwards have it."""
    path = Path(".agents/skills", name, "SKILL.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: For {name}.\n---\n{text}")


def estimate(agent):
    """Bytes / 4 of everything the next request sends."""
    sent = [m["content"] for m in agent.messages]
    return len(stub.encoded([prompt(agent), schemas(agent), *sent])) / 4


def room_of(agent):
    """The most tokens a compaction may leave: half of T beside the fixed parts."""
    return (agent.limits.threshold - fixed_tokens(agent)) // 2


# --- The threshold and the limits ---


@pytest.mark.parametrize(
    "own, window, threshold, expected",  # the model's own limits, the user's settings
    [
        ((1_000_000, 128_000), "", "", (200_000, 32_000, 167_000)),
        ((1_000_000, 128_000), "1000000", "", (1_000_000, 32_000, 967_000)),
        ((200_000, 64_000), "900000", "", (200_000, 32_000, 167_000)),
        ((200_000, 64_000), "60000", "", (60_000, 20_000, 30_000)),
        ((200_000, 4_096), "", "", (200_000, 4_096, 182_904)),  # the model's maximum
        ((30_000, 64_000), "", "", (30_000, 10_000, 15_000)),  # a third, half of it
        ((200_000, 64_000), "", "50000", (200_000, 32_000, 50_000)),
        ((200_000, 64_000), "", "199999", (200_000, 32_000, 168_000)),
        ((), "", "", (200_000, 32_000, 167_000)),  # unknown
    ],
)
def test_the_limits_are_the_models_own_capped_by_the_settings(
    monkeypatch, own, window, threshold, expected
):
    monkeypatch.setenv("CONTEXT_WINDOW", window)
    monkeypatch.setenv("THRESHOLD", threshold)
    limits = program.configured_limits(*own)
    assert (limits.context_window, limits.max_output, limits.threshold) == expected


def test_the_threshold_is_v5s_with_at_most_20000_tokens_for_the_reply():
    assert program.auto_compact_threshold(200_000, 16_384) == 200_000 - 16_384 - 13_000
    assert program.auto_compact_threshold(200_000, 32_000) == 200_000 - 20_000 - 13_000


def test_with_a_small_threshold_each_limit_is_a_share_of_it():
    default, small = (program.Limits(threshold=t) for t in (167_000, 40_000))
    assert (default.max_results, small.max_results) == (50_000, 13_333)
    assert (default.min_savings, small.min_savings) == (55_666, 13_333)
    assert (default.keep_tokens, small.keep_tokens) == (10_000, 2_500)


# --- Counting ---


@pytest.mark.parametrize("letters", ["x", "日", '"\n'])
def test_a_sized_text_has_so_many_tokens_by_the_programs_own_count(letters):
    for tokens in 1, 2, 50, 701, 20_000:
        text = sized(tokens, letters)
        assert tokens_in(text) == tokens < tokens_in(text + letters)


def test_before_the_first_reply_tokens_are_estimated_as_bytes_over_4(make):
    agent = make(messages=[typed("x" * 4_000), said("y" * 4_000), typed("あ" * 4_000)])
    assert context_tokens(agent) == pytest.approx(estimate(agent), rel=0.01)


def test_after_a_reply_the_count_and_the_cached_share_are_what_the_api_reported(make):
    long, other = reply(sized(10_000)), reply(sized(675, "日本語"), thinking="Well.")
    agent = make(long, other, reply("Well."))
    system, shares = [{"type": "text", "text": prompt(agent)}], []
    for text in ("Tell me.", "Again, in another language, please.", "Well?"):
        program.take_turn(agent, text)
        reported = stub.count(system, schemas(agent), agent.messages)
        assert context_tokens(agent) == pytest.approx(reported, abs=12)
        shares.append(agent.cached)
    assert shares[0] == 0 and 0 < shares[1] < 0.5 and 0.9 < shares[2] < 1


@pytest.mark.parametrize("text, tokens", [("x", 1_000), ("日", 3_000)])
def test_messages_after_the_last_reply_are_added_as_bytes_over_4(make, text, tokens):
    agent = make(reply(sized(2_250)))
    program.take_turn(agent, "Tell me.")
    before = context_tokens(agent)
    program.commit(agent, typed(text * 4_000))
    assert context_tokens(agent) - before == pytest.approx(tokens, abs=2)


def test_after_a_layer_acted_the_count_is_scaled_until_the_next_reply(make):
    agent = make(reply(BODY), reply("Yes."), SUMMARY, reply("Well."))
    turns(agent, "Tell me.", "Really?")
    factor = context_tokens(agent) / estimate(agent)
    assert factor > 1.2
    program.compact_history(agent, "compact")
    assert context_tokens(agent) == pytest.approx(factor * estimate(agent), rel=0.05)
    program.take_turn(agent, "And?")
    assert context_tokens(agent) == pytest.approx(
        stub.count(prompt(agent), schemas(agent), agent.messages), rel=0.02
    )


class Undercounter(StubClient):
    """An API that reports only a share of the tokens we estimate, or nothing."""

    def __init__(self, share, *replies):
        super().__init__(*replies)
        self.share = share

    def usage(self, body, content):
        sent = tokens_in([body["system"], body["tools"], body["messages"]])
        return {} if self.share is None else {"input_tokens": int(sent * self.share)}


@pytest.mark.parametrize(
    "share, is_believed",
    [(None, False), (0.0, False), (0.001, False), (0.33, False), (0.34, True)],
)
def test_a_reported_count_that_is_missing_or_below_a_third_of_ours_is_not_believed(
    make, share, is_believed
):
    agent = make(client=Undercounter(share, reply("Yes.")))
    program.take_turn(agent, sized(10_000))
    ours = fixed_tokens(agent) + estimate_tokens(agent.messages)
    assert (context_tokens(agent) == ours) is not is_believed
    assert is_believed or agent.counted_tokens == ours


# --- When a summary is due ---


def test_a_summary_is_due_above_the_threshold(make):
    agent = make(messages=[typed(BODY)], min_savings=0)
    agent.limits.threshold = context_tokens(agent)
    assert not program.should_compact(agent)
    agent.limits.threshold -= 1
    assert program.should_compact(agent)


def test_the_next_summary_is_due_once_min_savings_tokens_are_new(make):
    agent = make(tried_until=1, threshold=5_000, min_savings=600)
    new = typed(sized(200)), said("Yes.")
    least = 600 - estimate_tokens(new)
    for tokens, is_due in (0, False), (least - 1, False), (least, True):
        more = [*new, typed(sized(tokens))] if tokens else []
        agent.messages = [typed(BODY), *more]
        assert program.should_compact(agent) is is_due


def page_by_page(request):
    """Read the first page of a file that no request has contained so far."""
    if asks_for_summary(request):
        return SUMMARY
    PAGES.update(re.findall(r"line (\d+) of", str(request["messages"])))
    if len(PAGES) == 200:
        return reply("All read.")
    first = min({*range(1, 201)} - {*map(int, PAGES)})
    return reply(calls=[("read_file", {"path": "file", "offset": first, "limit": 20})])


PAGES = set()  # numbers of the lines that a request has contained


def test_with_the_smallest_threshold_a_file_can_still_be_read_page_by_page(make):
    Path("AGENTS.md").write_text(sized(650, "Be careful.\n"))
    text = "".join(
        f"line {n} of the file, and words beside it\n" for n in range(1, 201)
    )
    Path("file").write_text(text)
    PAGES.clear()
    agent = make(*[page_by_page] * 60, threshold=2_000, context_window=8_000)
    assert program.take_turn(agent, "Read it all.") == "All read."
    agent.client.queue.clear()


# --- The request for a summary ---


def test_the_request_for_a_summary_is_the_live_conversation_and_one_more_message(make):
    agent = make(reply(BODY, thinking="A thought."), SUMMARY, reply("Done."), **WINDOW)
    program.take_turn(agent, "First request.")
    before = [*agent.messages, typed("Second request.")]
    assert program.take_turn(agent, "Second request.") == "Done."
    [request] = summaries(agent)
    assert request["messages"][:-1] == before
    assert before[1]["content"][0]["type"] == "thinking"
    others = [r | {"messages": []} for r in agent.client.requests]
    assert others[0] == others[1] == others[2]


def test_the_prompt_forbids_tool_calls_at_both_ends_and_names_nine_sections(compacted):
    [text] = texts(summaries(compacted())[0]["messages"][-1])
    lines = text.strip().split("\n")
    assert "tool" in lines[0] and "tool" in lines[-1]
    assert re.findall(r"^(\d)\. \S", text, re.MULTILINE) == list("123456789")
    assert "<analysis>" in text and "<summary>" in text
    assert f"{T // 8:,}" in text and "earlier summary" in text


def test_half_of_a_reply_is_left_for_thinking_about_the_summary(compacted):
    [request] = summaries(compacted(max_output=1_000))
    assert "in at most\n500 tokens" in texts(request["messages"][-1])[0]


def test_the_prompt_asks_for_the_users_language(compacted):
    [text] = texts(summaries(compacted())[0]["messages"][-1])
    assert "in the language that the user writes in" in " ".join(text.split())


def test_section_6_asks_whether_each_message_is_done_stopped_or_still_open(compacted):
    [text] = texts(summaries(compacted())[0]["messages"][-1])
    [section] = re.findall(r"(?ms)^6\. (.*?)^7\. ", text)
    assert "each" in section and "done, stopped or still open" in section


@pytest.mark.parametrize("thinking", [True, False])
def test_the_prompt_asks_for_an_analysis_only_if_thinking_is_off(compacted, thinking):
    [request] = summaries(compacted(thinking=thinking))
    [text] = texts(request["messages"][-1])
    assert ("<analysis>" in text, "thinking" in request) == (not thinking, thinking)


LONG_THOUGHT = "I weigh it all. " * 4_000  # 20,000 tokens, as the API counts them


def test_20000_tokens_of_thinking_cut_off_neither_a_summary_nor_an_answer(long):
    assert stub.tokens([{"type": "text", "text": LONG_THOUGHT}]) > 20_000
    whole = reply("Done.", thinking=LONG_THOUGHT)
    agent = long(reply("<summary>All is well.</summary>", thinking=LONG_THOUGHT), whole)
    agent.thinking, agent.limits.max_output = True, program.Limits().max_output
    assert program.take_turn(agent, "Newest request.") == "Done."
    assert "All is well." in left(agent.messages).summary and agent.failures == 0
    assert {r["max_tokens"] for r in agent.client.requests} == {32_000}
    spent = stub.tokens(whole["content"])
    assert 20_000 < spent < min(r["max_tokens"] for r in agent.client.requests)


# --- Which replies are accepted as a summary ---

GOOD = "<summary>All is well.</summary>"
TOUCH = [("bash", {"command": "touch called"})]


@pytest.mark.parametrize(
    "text, more, summary",
    [
        (f"<analysis>a</analysis>\n\n{GOOD}\n", {}, "All is well."),
        (GOOD, {"stop": "stop_sequence"}, "All is well."),
        (GOOD, {"thinking": "a <summary>thought</summary>"}, "All is well."),
        (f"<analysis>a <summary> of it</analysis>{GOOD}", {}, "All is well."),
        (f"Well: <analysis>a <summary> of it</analysis>{GOOD}", {}, "All is well."),
        ("<summary><analysis> a </analysis></summary>", {}, "<analysis> a </analysis>"),
        ("<summary>\nTwo\n\nparts\n</summary>", {}, "Two\n\nparts"),
        ("<analysis>a</analysis><summary>b</analysis></summary>", {}, "b</analysis>"),
        ("<summary>a <summary> b</summary></summary>", {}, r"a <summary> b<\/summary>"),
    ],
)
def test_a_normal_reply_with_a_summary_is_accepted(compacted, text, more, summary):
    agent = compacted(summary=reply(text, **more))
    shown = left(agent.messages).summary
    assert f"\n{summary}\n" in shown and shown.count("<") == 2 + summary.count("<")
    assert agent.failures == 0


@pytest.mark.parametrize(
    "answer",
    [
        reply(GOOD, stop="refusal"),
        reply(GOOD, stop="max_tokens"),
        reply(GOOD, calls=TOUCH, stop="end_turn"),
        reply("All is well."),
        reply("<summary> \n </summary>"),
        reply("<summary>It went"),
        reply("<analysis><summary>All is well.</summary></analysis>"),
        reply("", thinking="Hm."),
    ],
    ids=lambda answer: str(answer)[:70],
)
def test_any_other_reply_is_a_failure_and_leaves_the_history_unchanged(long, answer):
    agent = long(answer, reply("Done."))
    before = [*agent.messages, typed("Newest request.")]
    assert program.take_turn(agent, "Newest request.") == "Done."
    assert agent.messages == [*before, said("Done.")]
    assert agent.failures == 1 and "[auto_compact]" in str(shown(agent, "error"))
    assert agent.client.requests[-1]["messages"] == before
    assert not Path("called").exists()


def test_a_declined_summary_shows_the_reason(long):
    details = {"type": "refusal", "category": None, "explanation": "It names a poison."}
    agent = long(reply(stop="refusal", details=details), reply("Done."))
    assert program.take_turn(agent, "Newest request.") == "Done."
    [error] = shown(agent, "error")
    assert error.endswith("(stop reason refusal). It names a poison.")


@pytest.mark.parametrize("fault", [529, 429, 401, 403])
def test_an_api_error_ends_the_turn_and_does_not_count_as_a_failed_summary(
    long, pauses, fault
):
    tries = program.MAX_TRIES if fault in (529, 429) else 1  # these are retried
    faults = [api_error(fault, "Not now.")] * 3 * tries
    agent = long(*faults, SUMMARY, reply("Done."))
    for _ in range(3):
        assert "Not now" in fails(agent, "Again.")
    assert agent.failures == 0 and program.take_turn(agent, "And now?") == "Done."
    assert "All is well." in left(agent.messages).summary


def test_an_interrupted_summary_is_asked_for_again_in_the_next_turn(long):
    agent = long(KeyboardInterrupt(), SUMMARY, reply("Done."))
    with pytest.raises(KeyboardInterrupt):
        program.take_turn(agent, "Newest request.")
    assert program.take_turn(agent, "Go on.") == "Done."
    assert len(summaries(agent)) == 2


# --- A compacted history is a history like any other ---

PLAN_ITEMS = ["[x] look", "[ ] fix it"]


SECOND = typed(
    "The second request, which is too long to answer a question of the model."
)


def needed():
    """A plan, a skill and two files, as messages; the files are on disk."""
    for name in "ab":
        Path(f"{name}.py").write_text(f"the text of {name}")
    write_skill("birds", "Count the birds.")
    return [*planned(*PLAN_ITEMS), *loaded("birds"), *read("a.py"), *read("b.py")]


def test_a_compaction_leaves_typed_messages_summary_and_calls_and_work_goes_on(
    compacted,
):
    agent = compacted(*needed(), typed("Second request."))
    kept, summary, calls, tail = left(agent.messages)
    assert kept == ["First request.", "Second request.", "Newest request."]
    assert summary.startswith(
        f"[Conversation compressed. Transcript: {agent.transcript}]"
    )
    assert "reference" in summary and "continue with what comes after it" in summary
    assert [asked for asked, _ in calls] == ["a.py", "b.py", "birds", PLAN_ITEMS]
    answer, *others = tail
    assert texts(answer)[0][:3] == "xxx" and tokens_in(answer) < T // 4
    assert others == [typed("Newest request."), said("Done.")]


@pytest.mark.parametrize("long", ["", BODY])
def test_with_no_request_in_progress_it_ends_with_the_last_answer_cut_if_long(
    rebuilt, long
):
    before = history(needed(), did(BODY), said(f"All done. {long}"))
    _, summary, calls, tail = rebuilt(*before, threshold=22_000)
    assert "which of their requests are done, stopped or still open" in summary
    assert texts(*tail)[0].startswith("All done.") and tokens_in(tail) < 5_100
    assert len(calls) == 4 and not in_progress(tail)


def test_a_message_is_a_role_and_a_content_in_memory_on_disk_and_on_the_wire(compacted):
    agent = compacted(*needed())
    *_, event, answer = lines_of(agent.transcript)
    assert [*event["messages"], answer] == agent.messages
    sent = agent.client.bodies[-1]["messages"]
    for message in [*agent.messages, *sent]:
        assert [*message] == ["role", "content"]
    whole = [m for m in lines_of(agent.transcript) if "event" not in m]
    assert whole[0] == typed("First request.") and {*map(len, whole)} == {2}


# --- The user's own messages ---

ODD = 'Keep  "two  spaces",\n\tthe tab & <tags>, 日本語 and it\'s end. '


def test_typed_messages_survive_several_compactions_unchanged(long):
    agent = long(*[SUMMARY, reply(BODY)] * 4)
    requests = [f"{ODD}{n}" for n in range(4)]
    turns(agent, *requests)
    assert len(summaries(agent)) == 4
    assert left(agent.messages).words == ["First request.", *requests]


@pytest.mark.slow
@pytest.mark.parametrize(
    "threshold, limit, tokens", [(T, T // 8, 72), (167_000, 20_000, 1_000)]
)
def test_the_first_and_the_newest_typed_messages_stay_within_their_limit(
    rebuilt, threshold, limit, tokens
):
    requests = [f"#{n}: {sized(tokens)}." for n in range(60)]
    asked = [*map(typed, requests)]
    asked.append(said(BODY))  # nothing else fits into the tail
    kept = rebuilt(*asked, threshold=threshold).words
    assert kept[0][:3] == "#0:" and kept[-1][:4] == "#59:" and len(kept) > 10
    assert 0.7 * limit < estimate_tokens(map(typed, kept)) <= limit


@pytest.mark.slow
def test_if_even_short_messages_do_not_fit_the_first_and_the_newest_stay(rebuilt):
    asked = ["Never delete a line.", *[f"go on {n}" for n in range(1_200)]]
    kept = rebuilt(*map(typed, asked), said(BODY), **WINDOW).words
    assert kept == [asked[0], *asked[1 - len(kept) :]]
    assert 1_000 < sum(map(tokens_in, map(typed, kept))) <= T // 4


@pytest.mark.parametrize("tokens", [2_250, 7_500, 22_500])
def test_a_pasted_log_does_not_push_out_short_rules(rebuilt, tokens):
    rules = [f"Rule {n}: never touch file {n}." for n in range(20)]
    logs = [sized(tokens, f"{n}") for n in range(3)]
    asked = [m for text in rules + logs for m in (typed(text), said("Yes."))]
    kept = rebuilt(*asked, context_window=32_000).words
    assert [rule for rule in rules if rule not in kept] == [] and len(kept) == 23


@pytest.mark.parametrize("threshold", [8_000, 167_000])
@pytest.mark.parametrize("more, is_whole", [(0, True), (1, False)])
def test_the_request_in_progress_stays_whole_up_to_half_the_room(
    make, threshold, more, is_whole
):
    agent = make(threshold=threshold)
    request = sized(room_of(agent) // 2 - 8 + 2 * more)  # 8: the message around it
    agent.messages = [typed("Go."), said("Yes."), typed(request)]
    kept = left(program.rebuild(agent, "Short.")[0]).words
    assert kept[0] == "Go." and (kept[1] == request) is is_whole


LOG = sized(60_000, '日本語 and a "log"\n')


def fit(texts, limit):
    kept = program.fit_typed([typed(text) for text in texts], limit)
    return [message["content"] for message in kept]


@pytest.mark.parametrize("letters", ["line\n", "日本語\n"])
def test_a_text_that_is_cut_again_and_again_claims_no_more_than_is_left_out(letters):
    cut = text = sized(5_000, letters)
    for limit in 4_000, 3_980, 2_000, 900, 100:
        cut = program.cut_text(cut, limit)
        head, number, tail = re.split(
            r"\n\[at least (.*?) bytes are left out .*\n", cut
        )
        gone = len(text.encode()) - len(f"{head}{tail}".encode())
        assert text.startswith(head) and text.endswith(tail)
        assert 0 < int(number.replace(",", "")) <= gone


@pytest.mark.parametrize("text", [sized(25_000), LOG, sized(45_000, "\x01")])
@pytest.mark.parametrize("limit", [200, 2_500, 20_000])
def test_a_single_long_text_may_use_the_whole_limit(text, limit):
    [shown] = fit([text], limit)
    assert text.startswith(shown[:20]) and text.endswith(shown[-5:])
    assert limit * 0.95 - 20 < tokens_in(typed(shown)) <= limit


@pytest.mark.parametrize("limit", [0, 40, 60])
def test_without_room_the_first_and_the_newest_are_cut_to_their_least(limit):
    kept = fit([sized(900, letter) for letter in "abc"], limit)
    assert [text[0] for text in kept] == ["a", "c"]
    assert all(is_short(text) for text in kept)


def test_twenty_short_rules_survive_and_a_log_gets_the_rest_of_the_room():
    rules = [f"Rule {n}: never touch file {n}." for n in range(20)]
    *kept, log = fit([*rules, LOG], 2_500)
    assert kept == rules and tokens_in(log) > 0.9 * (2_500 - as_typed(rules))


def as_typed(texts):
    """Tokens of these texts as typed messages."""
    return sum(tokens_in(typed(text)) for text in texts)


def is_short(text):
    """Tell whether a text is too short to be cut."""
    return tokens_in(typed(text)) <= program.MIN_USER_TOKENS


@pytest.mark.slow
@examples(300)
@given(USER_TEXTS, st.integers(2 * program.MIN_USER_TOKENS, 3_000))
def test_kept_messages_fit_and_the_first_and_the_newest_have_priority(
    typed_texts, limit
):
    kept = fit(typed_texts, limit)
    assert as_typed(kept) <= limit
    if as_typed(typed_texts) <= limit:
        assert kept == typed_texts
    assert len(kept) >= min(2, len(typed_texts))
    if kept:  # the first, then as many of the newest as there is room for
        newest = typed_texts[1 - len(kept) :] if len(kept) > 1 else []
        for text, whole in zip(kept, [typed_texts[0], *newest], strict=True):
            assert text == whole if is_short(whole) else text[:1] == whole[:1]


# --- A short answer keeps its question ---

FIRST = typed(
    "Build the shop as the specification says, one file after the other, please."
)
LONGER = "Take the second one, but keep the names of all of the columns."  # 16 tokens
ENDS = {  # of replies, what the user answers, and whether the reply's end stays
    "a question": (
        "Shall I drop the table?",
        "Yes, but make a copy of it before you do.",
        1,
    ),
    "a full-width question mark": (
        "表を消しますか？",
        "はい、ただし先に控えを取ってください",
        1,
    ),
    "a very short answer": ("Either of them works.", "2", 1),
    "no question, longer": ("Done.", "And now the same for the other files of it.", 0),
    "too long an answer": ("Which one?", LONGER, 0),
}


def kept_before(messages, text):
    """The text right before a typed message: a note's, if it keeps a question."""
    at = messages.index(typed(text))
    return program.text_of(messages[at - 1])


@pytest.mark.parametrize("ending, answer, stays", ENDS.values(), ids=ENDS)
def test_a_short_answer_keeps_the_end_of_the_reply_before_it(
    make, ending, answer, stays
):
    before = [FIRST, said(f"{sized(3_000)} {ending}"), typed(answer)]
    agent = make(messages=[*before, *did(sized(9_000)), said("So."), said("Yes.")])
    for _ in range(4):
        agent.messages = program.rebuild(agent, "Short.")[0]
        kept = kept_before(agent.messages, answer)
        assert kept.startswith(program.ANSWERED) is kept.endswith(ending) is bool(stays)
        assert tokens_in(kept) < 130 and is_valid([*agent.messages, FIRST])
        agent.messages += [*did(sized(9_000)), said("Yes.")]


NO_QUESTIONS = {
    "typed in mid-work": [FIRST, *did("a"), typed("2"), *did("b")],
    "after a call": [FIRST, did("Which one?")[0], did("-")[1], typed("2")],
    "the first message": [typed("2"), said("Which one?")],
    "after another answer": [FIRST, typed("1"), typed("2")],
}


@pytest.mark.parametrize("messages", NO_QUESTIONS.values(), ids=NO_QUESTIONS)
def test_only_a_reply_without_calls_right_before_it_is_a_question(messages):
    assert [*filter(program.is_typed, messages)] == program.fit_typed(messages, 9_000)


def test_a_question_in_the_tail_is_not_repeated_and_one_that_it_cut_off_stays(make):
    asked = [FIRST, said(sized(3_000)), typed("no!"), said("Which?"), typed("2")]
    agent = make(messages=[*asked, said("Fine.")], context_window=60_000)
    new = program.rebuild(agent, "Short.")[0]
    assert kept_before(new, "no!").startswith(program.ANSWERED)
    assert kept_before(new, "2") == "Which?" and is_valid([*new, FIRST])


def test_three_answers_in_a_row_each_keep_their_question():
    messages = [FIRST]
    for n in range(3):
        messages += [said(f"Is it {n}?"), typed(f"{n}, yes")]
    kept = program.fit_typed(messages, 9_000)
    assert [program.text_of(m)[-8:] for m in kept[1::2]] == [
        f"Is it {n}?" for n in range(3)
    ]


@pytest.mark.parametrize("room, questions", [(9_000, 10), (600, 3), (60, 0), (0, 0)])
def test_without_room_the_oldest_questions_go_before_any_message(room, questions):
    rounds = [[said(f"{sized(99)}?"), typed(f"no, {n}")] for n in range(10)]
    kept = program.fit_typed([FIRST, *itertools.chain(*rounds)], room)
    asked = [n for n, m in enumerate(kept) if not program.is_typed(m)]
    assert asked == [*range(len(kept))][::-1][1 : 2 * questions : 2][::-1]
    texts = program.user_texts(kept)
    assert len(texts) == 11 if room > 60 else texts[-1] == "no, 9"


def test_a_snip_keeps_the_question_of_each_answer_that_it_keeps():
    rounds = [[typed(f"no, {n}"), said(f"Shall I, {n}?")] for n in range(60)]
    messages = history(*rounds)
    snipped = program.snip_compact(messages, 40, None, program.TOOLS)
    answers = program.user_texts(snipped[3:-10])
    for text in answers:
        number = int(text.removeprefix("no, "))
        assert kept_before(snipped, text).endswith(f"Shall I, {number - 1}?")
    assert len(answers) == 5 and is_valid([*snipped, FIRST])


def test_in_ten_short_answers_each_stands_behind_its_question_after_compactions(make):
    agent = make(client=StubClient(always=reply("Fine.")))
    for n in range(10):
        agent.client.enqueue(reply(f"{sized(1_500)} Take {n} or {n + 1}?"))
        turns(agent, f"no, {n}")
        if n % 3 == 2:
            agent.client.enqueue(SUMMARY)
            program.run_command(agent, "/compact")
    take = [kept_before(agent.messages, f"no, {n}")[-13:] for n in range(1, 10)]
    assert take == [f" Take {n} or {n + 1}?" for n in range(9)]
    turns(agent, "And now?")


# --- The plan, the skills and the files ---


def test_files_skills_and_plan_keep_their_order_and_are_read_again(long):
    agent = long(*[SUMMARY, reply(BODY)] * 3, before=needed())
    write_skill("birds", "Count the birds twice.")
    for number in range(3):
        Path("a.py").write_text(f"version {number}")
        program.take_turn(agent, "Go on.")
        calls = left(agent.messages).calls
        assert [asked for asked, _ in calls] == ["a.py", "b.py", "birds", PLAN_ITEMS]
        assert calls[0][1] == f"version {number}" and "birds twice" in calls[2][1]


def test_a_deleted_file_is_reported_once_and_then_dropped(long):
    agent = long(*[SUMMARY, reply(BODY)] * 2, before=needed())
    Path("b.py").unlink()
    program.take_turn(agent, "Go on.")
    calls = dict(left(agent.messages).calls[:2])
    assert "no file b.py" in calls["b.py"] and "the text of a" in calls["a.py"]
    program.take_turn(agent, "Go on.")
    assert [asked for asked, _ in left(agent.messages).calls] == [
        "a.py",
        "birds",
        PLAN_ITEMS,
    ]


def test_the_eight_files_read_last_stay_each_once(rebuilt):
    order = [*range(10), 0, 5]
    names = [f"{'./' * (n == 0)}{n}.py" for n in order]
    calls = rebuilt(*history(*map(read, names), said(BODY), said("Done."))).calls
    newest = ["3.py", "4.py", "6.py", "7.py", "8.py", "9.py", "./0.py", "5.py"]
    assert [asked for asked, _ in calls] == newest


@pytest.mark.parametrize(
    "tool, given, failed",
    [
        ("write_file", {"path": "a.py", "content": "c"}, False),
        ("grep", {"pattern": "x", "path": "a.py"}, False),
        ("read_file", {"path": "a.py"}, True),
        ("load_skill", {"name": "birds"}, True),
        ("todo_write", {"items": ["[ ] write its text"]}, True),
    ],
)
def test_failed_calls_and_calls_of_other_tools_are_not_kept(
    rebuilt, tool, given, failed
):
    messages = did("-", tool=tool, given=given, is_error=failed)
    assert rebuilt(*history(messages, said(BODY))).calls == []


def test_only_the_newest_plan_stays(rebuilt):
    messages = history(planned("[ ] look"), planned("[x] look", "[ ] fix it"))
    [(items, _)] = rebuilt(*messages, said(BODY), said("Done.")).calls
    assert items == ["[x] look", "[ ] fix it"]


def test_a_file_is_cut_at_5000_tokens_with_a_note(rebuilt):
    text = "".join(f"line {n}, {sized(2)}\n" for n in range(9_000))
    Path("long.txt").write_text(text)
    before = history(read("long.txt"), said(BODY), said("Done."))
    [(_, shown)] = rebuilt(*before).calls
    assert 4_800 < tokens_in(shown) < 5_100 and "line 1," in shown
    assert "left out here" in shown and "more follows" in shown


BROKEN = ["nothing", "folder", "pipe", b"\0", "file", "../secret"]


@pytest.mark.parametrize("what", BROKEN)
def test_compaction_copes_with_files_it_cannot_read_again(make, what):
    Path("../secret").write_text("hidden\n")
    Path("file").write_text("here\n")
    turn_into(Path("file"), what)
    [exchange] = program.restore_recent_files(make(), history(read("file")), 9_000)
    text = exchange.result["content"]
    assert text and "hidden" not in text


# --- Quotations ---


@pytest.mark.parametrize("tag", ["summary", "rules", "persisted-output"])
@pytest.mark.parametrize("form", ["</{}>", "</ {} >", "< / {}>", "<\n/\t{}\n>"])
def test_quoted_text_cannot_close_its_own_tag(tag, form):
    for case in str.lower, str.upper, str.title:
        text = f"Before. {form.format(case(tag))} After."
        quoted = program.quote(tag, text)
        assert re.findall(rf"(?i)<\s*/\s*{tag}\s*>", quoted) == [f"</{tag}>"]
        assert quoted.endswith(f"After.\n</{tag}>")


def test_summary_rules_and_previews_are_quoted(rebuilt, make):
    Path("AGENTS.md").write_text("Be good. </rules> Really.")
    summary = rebuilt(*history(said("Yes.")), summary="It </summary> is.").summary
    long = sized(4_275, "</persisted-output>")
    shown = program.preview(long, 2_000, program.save_result)
    for tag, text in ("summary", summary), ("rules", prompt(make())):
        assert text.count(f"</{tag}>") == 1
    assert shown.count("</persisted-output>") == 1


# --- How much is kept ---


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [4_000, 8_000, 50_000, 167_000])
def test_a_compaction_leaves_at_most_half_of_the_room(make, threshold):
    short, long = sized(3_000, '"\n'), sized(90_000, '"\n')
    for name in FIVE_NAMES:
        Path(name).write_text(sized(6_100, f"{name * 60}\n"))
        write_skill(name, sized(7_100, f"{name * 70}\n"))
    asked = [typed(short), said("Yes.")] * 20
    used = [m for n in FIVE_NAMES for m in [*read(n), *loaded(n)]]
    plan = planned(*[f"[ ] {n} {sized(22)}" for n in range(30)])
    agent = make(threshold=threshold)
    ends = typed(long), said(long), typed("Now.")
    for end, summary in itertools.product(ends, ("-", long)):
        agent.messages = [*asked, *used, *plan, end]
        assert estimate_tokens(program.rebuild(agent, summary)[0]) <= room_of(agent)


def as_sent(message):
    """Tokens of a message's content."""
    return tokens_in(message["content"])


@pytest.mark.slow
def test_each_part_gets_at_most_half_of_the_remaining_room(make):
    asked = [typed(sized(2_250)), said("Yes.")] * 40
    messages = [*asked, typed(sized(9_000)), *needed(), *did(BODY)]
    agent = make(threshold=30_000, messages=messages)
    for name in "ab":
        Path(f"{name}.py").write_text(sized(3_050, f"{name * 60}\n"))
    room, new = room_of(agent), program.rebuild(agent, BODY)[0]
    *older, summary, request, calls, results, call, result = map(as_sent, new)
    for part in request, call + result, summary, sum(older), calls + results:
        assert 0.8 * (room // 2) < part <= room // 2 + 240  # the text around it
        room -= part
    asked = [call for call, _ in left(new).calls]
    assert asked == ["b.py", "birds", PLAN_ITEMS]  # the newest file, cut to a page


# --- The tail: the newest messages ---


@pytest.fixture
def tail_of(make):
    """tail_of(*messages): the tail that a compaction of these messages keeps."""

    def build(*messages, **fields):
        agent = make(messages=[*messages], **fields)
        return program.split_history(agent)[2]

    return build


@pytest.mark.parametrize("tokens, expected", [(300, 7), (1_500, 5)])
def test_the_tail_has_an_eighth_of_the_history_but_at_most_8000_tokens(
    tail_of, tokens, expected
):
    answers = [said(sized(tokens)) for _ in range(60)]
    tail = tail_of(typed("Go."), *answers, threshold=0, context_window=999_000)
    assert tail == answers[-expected:] and estimate_tokens(tail) <= 8_000


LONG_CALL = {"command": BODY}
TAILLESS = {
    "nothing": [],
    "a typed message": [typed(BODY)],
    "a call too long": [typed(BODY), *did("short", given=LONG_CALL)],
    "an open call too long": [typed("Go."), did(BODY, given=LONG_CALL)[0]],
}


@pytest.mark.parametrize("messages", TAILLESS.values(), ids=TAILLESS)
def test_without_room_for_the_newest_reply_there_is_no_tail(make, messages):
    agent = make(messages=messages, **WINDOW)
    room, gone, tail = program.split_history(agent)
    assert tail == [] and len(gone) == len(messages)
    assert sum(map(tokens_in, program.user_texts(gone))) <= room // 2


def test_without_a_tail_the_prompt_does_not_speak_of_newest_messages(make):
    agent = make(SUMMARY, messages=TAILLESS["a call too long"], **WINDOW)
    program.compact_history(agent, "compact")
    assert "newest messages" not in str(summaries(agent)[0]["messages"][-1])


CALL_AND_RESULT = did(BODY)
NEWEST = {
    "an answer": [said(BODY)],
    "an answer and a typed message": [said(BODY), typed(BODY)],
    "an answer, a command and a typed message": [
        said(BODY),
        program.note(f"{program.OWN_COMMAND}ls]\n{BODY}"),
        typed("Do the second of these."),
    ],
    "a result": CALL_AND_RESULT,
    "three results": did(BODY, "short", BODY),
    "a text and a result": [
        said(BODY) | {"content": said(BODY)["content"] + CALL_AND_RESULT[0]["content"]},
        CALL_AND_RESULT[1],
    ],
    "ten results of 5,000 tokens": did(*[sized(5_000)] * 10),
    "a reply that was cut off": [said(BODY), program.note(program.CUT_OFF)],
}


@pytest.mark.parametrize("newest", NEWEST.values(), ids=NEWEST)
def test_the_newest_reply_and_what_follows_it_stay_cut_to_fit(make, newest):
    newest = [*json.loads(json.dumps(newest))]
    agent = make(messages=history(did(BODY), newest), **WINDOW)
    room, gone, tail = program.split_history(agent)
    assert len(gone) == 3 and [*map(shape_of, tail)] == [*map(shape_of, newest)]
    others = [m for m in tail if not program.is_typed(m)]
    assert 0.3 * room // 2 < estimate_tokens(others) <= room // 2
    assert estimate_tokens(tail) <= room
    pairs = zip(program.sightings(newest), program.sightings(tail), strict=True)
    for (before, place), (after, same_place) in pairs:
        assert place == same_place and after[:3] == before[:3]
        assert len(after) <= len(before) and after[-3:] == before[-3:]


def shape_of(message):
    """A message without its texts: its role, and its blocks' types and calls."""
    content = stub.blocks(message["content"])
    return message["role"], [(b["type"], b.get("tool_use_id")) for b in content]


def test_results_that_fit_into_half_of_the_room_stay_whole(tail_of):
    newest = did(*[sized(12_000)] * 3)
    work = [m for _ in range(9) for m in did(sized(9_000))]
    assert tail_of(typed("Go."), *work, *newest) == newest


def test_an_open_call_may_stay_in_the_tail(tail_of):
    call = did("-")[0]
    assert tail_of(typed("Go."), said(BODY), call) == [call]


def test_what_the_tail_has_is_not_repeated_before_it(make):
    agent = make(messages=history(said(BODY), SECOND, needed()))
    new = program.rebuild(agent, "Short.")[0]
    assert new[0] == typed("Go.") and "Short." in texts(new[1])[0]
    assert new[2:] == agent.messages[2:]


def test_a_file_in_the_tail_is_not_read_again_even_if_it_was_cleared_there(make):
    cleared = read("a.py", "[Previous: used read_file]")
    agent = make(messages=history(needed(), said(BODY), did("-"), cleared))
    new = program.rebuild(agent, "Short.")[0]
    assert is_valid(new) and new[-2:] == cleared
    assert [asked for asked, _ in left(new).calls] == ["b.py", "birds", PLAN_ITEMS]


def test_the_note_of_a_command_after_a_long_answer_stays_in_the_tail(tail_of):
    ran = program.note(f"{program.OWN_COMMAND}ls]")
    answer, note = tail_of(typed("Go."), said(BODY), ran)
    assert program.text_of(answer)[:3] == "xxx" and note == ran


@pytest.mark.parametrize(
    "summary, said", [(NO_SUMMARY, "changed since you read it"), (SUMMARY, "Wrote 12")]
)
def test_a_file_counts_as_seen_only_if_a_compaction_has_read_it_again(
    make, summary, said
):
    Path("a.py").write_text("old")
    reads = reply(calls=[("read_file", {"path": "a.py"})])
    agent = make(reads, reply(sized(3_000)), reply("Yes."), summary)
    turns(agent, "Read it.", "Is it read?")
    Path("a.py").write_text("by the user")
    os.utime("a.py", (9, 9))
    program.run_command(agent, "/compact")
    write = call("write_file", path="a.py", content="by the model")
    assert said in program.run_tool(agent, write)["content"]


def test_a_compaction_says_what_it_kept(compacted):
    agent = compacted(*needed(), typed("Second request."))
    [line] = [text for text in shown(agent, "note") if text.startswith("kept: ")]
    assert line == (
        "kept: your 3 messages, the plan, 3 files read again, the newest 2 messages; "
        f"everything else is in {agent.transcript}"
    )


def test_a_compaction_says_how_many_typed_messages_are_cut_even_if_it_was_earlier(make):
    long = typed(sized(30_000, "[at least 9 bytes are left out here]\n"))
    agent = make(SUMMARY, SUMMARY, messages=[long, said("Read.")])
    for text in "Never push.", "Go on.":
        agent.messages += [typed(text), *did(sized(3_000)), said("Done.")]
        program.run_command(agent, "/compact")
    notes = [text for text in shown(agent, "note") if text.startswith("kept: ")]
    assert [re.match("kept: (.*?),", note)[1] for note in notes] == [
        "your 2 messages (1 cut)",
        "your 3 messages (1 cut)",
    ]


def test_three_compactions_in_a_row_keep_typed_messages_and_a_valid_list(make):
    work = [m for n in range(30) for m in did(f"{n} {sized(500)}")]
    agent = make(messages=history(*needed(), typed("Never push."), work), **WINDOW)
    sizes = [estimate_tokens(agent.messages)]
    for _ in range(3):
        agent.messages = program.rebuild(agent, "Short.")[0]
        assert (
            is_valid(agent.messages) and left(agent.messages).words[-1] == "Never push."
        )
        sizes.append(estimate_tokens(agent.messages))
    assert sizes == sorted(sizes, reverse=True)


# --- Never more than there was ---


def test_a_resumed_conversation_does_not_grow_by_compact(make):
    names = [f"{n}.py" for n in range(12)]
    for name in names:
        Path(name).write_text(sized(3_000, f"a line of {name}\n"))
    reads = [reply(calls=[("read_file", {"path": name})]) for name in names]
    agent = make(*reads, reply("Read."), reply("You are welcome."), SUMMARY)
    turns(agent, "Read them all.", "Thanks.")
    agent.last_request = 0.0  # the cache is cold, so layer 1 clears all it can
    program.layer_1(agent)
    before = context_tokens(agent)
    program.run_command(agent, "/compact")
    assert context_tokens(agent) < before


@pytest.mark.parametrize("times", [1, 3])
def test_if_a_summary_cannot_save_anything_the_model_is_not_asked(make, times):
    agent = make(reply("Yes."))
    program.take_turn(agent, "Is it?")
    for _ in range(times):
        program.run_command(agent, "/compact")
    assert shown(agent, "layer") == ["[compact] nothing to compact yet"] * times
    assert agent.messages == [typed("Is it?"), said("Yes.")]


def test_a_summary_longer_than_the_history_is_discarded_and_not_asked_for_again(make):
    long = reply(f"<summary>{sized(3_000)}</summary>")
    agent = make(reply(sized(2_000)), reply("Yes."), reply("Well."), long)
    turns(agent, "Tell me.", "Really?", "Sure?")
    before = agent.messages
    for _ in range(2):
        program.run_command(agent, "/compact")
    assert agent.messages is before and len(summaries(agent)) == 1
    assert "nothing changed" in shown(agent, "layer")[0]


# --- Nothing to compact, and what the user is told ---


def test_typed_messages_alone_cannot_be_compacted_and_the_user_is_told(make):
    requests = [typed(sized(3_900))] * 3
    agent = make(reply("Done."), messages=requests, threshold=12_000, min_savings=0)
    assert program.take_turn(agent, "Go on.") == "Done."
    assert shown(agent, "layer") == ["[auto_compact] nothing to compact yet"]
    assert agent.messages[:3] == requests and agent.failures == 0


def test_a_compaction_reports_the_tokens_before_and_after(compacted):
    line = shown(compacted(), "layer")[-1]
    counts = re.findall(r"\d[\d,]*", line)
    before, after = (int(count.replace(",", "")) for count in counts)
    assert line.startswith("[auto_compact]") and before > T > after > 0


def test_a_summary_whose_reply_a_gateway_ends_with_stop_counts(compacted):
    summary = reply("<summary>All is well.</summary>", stop="stop")
    assert "All is well." in left(compacted(summary=summary).messages).summary


# --- The breaker ---


def test_after_three_failures_in_a_row_it_writes_a_note_instead_and_says_so_once(long):
    bodies = [reply(BODY) for _ in range(3)]
    replies = [m for body in bodies for m in (NO_SUMMARY, body)]
    agent = long(*replies, reply("Done."), before=needed())
    turns(agent, "One.", "Two.", "Three.", "Four.")
    assert len(summaries(agent)) == 3 and agent.failures == 3
    hints = ["/compact" in text for text in shown(agent, "error")]
    assert hints == [False, False, True]
    kept, summary, calls, _ = left(agent.messages)
    assert context_tokens(agent) < T and kept[0] == "First request."
    assert "No summary could be made" in summary and len(calls) == 4


def test_with_max_failures_0_the_model_is_never_asked_for_a_summary(make):
    agent = make(TOO_LARGE, reply(calls=[COMPACT]), reply("Yes."), max_failures=0)
    for message in history(
        needed(), said(BODY), did("fine", given={"command": TEST_COMMAND})
    ):
        program.commit(agent, message)
    turns(agent, "And now, what else is there to be done, if anything at all?")
    agent.messages += [said(BODY), said("So.")]
    program.run_command(agent, "/compact")
    assert layers(agent) == ["reactive_compact", "compact", "compact"]
    assert not summaries(agent) and not shown(agent, "error")
    _, summary, calls, _ = left(agent.messages)
    assert "No summary could be made" in summary and calls[0][0] == "a.py"
    assert f"$ {TEST_COMMAND}" in str(agent.messages)


def test_the_screen_says_that_there_is_no_summary(make):
    agent = make(messages=history(said(BODY), said("So.")), max_failures=0)
    program.run_command(agent, "/compact")
    assert "replaced by a note, without a summary" in str(shown(agent, "layer"))


def test_a_failure_shows_the_beginning_of_what_the_model_wrote(long):
    agent = long(reply(f"I would rather talk.\nWell, {sized(999)}"), reply("So."))
    turns(agent, "One.")
    [error] = shown(agent, "error")
    assert "I would rather talk. Well, xxx" in error and len(error) < 400


def test_a_success_resets_the_failure_count(long):
    bad, good = [NO_SUMMARY, reply(BODY)], [SUMMARY, reply(BODY)]
    agent = long(*bad, *bad, *good, *bad)
    failures = [turns(agent, text) and agent.failures for text in "1234"]
    assert failures == [1, 2, 0, 1]


def test_after_a_failure_the_next_try_waits_for_enough_new_tokens(long):
    bodies = reply("Done."), reply(sized(3_400))
    agent = long(NO_SUMMARY, *bodies, SUMMARY, reply("Yes."))
    turns(agent, "One.", "Two.")
    assert len(summaries(agent)) == 1
    turns(agent, "Three.")
    assert len(summaries(agent)) == 2


def test_compact_tries_again_at_once_after_a_failed_summary(long):
    agent = long(NO_SUMMARY, SUMMARY)
    for failures in 1, 0:
        program.run_command(agent, "/compact")
        assert agent.failures == failures
    assert layers(agent) == ["compact"] and len(summaries(agent)) == 2


def test_after_a_failed_summary_max_messages_is_still_kept(long):
    work = [reply(calls=[("bash", {"command": "true"})])] * 9
    agent = long(NO_SUMMARY, *work, reply("Done."), max_messages=12)
    program.take_turn(agent, "Work.")
    assert agent.failures == 1 and "snip_compact" in layers(agent)
    assert len(agent.client.requests[-1]["messages"]) <= 14


def test_after_a_failure_and_a_snip_what_is_new_since_then_counts(make):
    steps = [message for n in range(30) for message in did(f"result {n}")]
    agent = make(messages=history(*steps, said("Yes.")), max_messages=8)
    agent.tried_until = len(agent.messages)
    program.layer_1(agent)
    agent.messages = [*agent.messages, *did(sized(program.MIN_NEW + 50))]
    assert len(agent.messages) < 30 and program.enough_is_new(agent)


# --- The request in progress ---

CUT_OFF = {
    "cut off": reply("Half of", stop="max_tokens"),
    "empty": reply(content=[]),
    "cut off in a call": reply(calls=[("bash", {"command": "ec"})], stop="max_tokens"),
}


@pytest.mark.parametrize("cut_off", CUT_OFF.values(), ids=CUT_OFF)
# at most the last of these pushes the request out of the tail
@pytest.mark.parametrize("more", [[], [bash("ls")], [bash("seq 3000")]])
def test_a_request_whose_reply_was_cut_off_still_follows_the_summary(
    make, cut_off, more
):
    compact = reply(calls=[("compact", {})])
    before = reply(sized(2_000))
    agent = make(before, cut_off, *more, compact, SUMMARY, reply("Done."))
    turns(agent, "Before.", SECOND["content"])
    at = ["Conversation compressed" in str(m) for m in agent.messages].index(True)
    assert program.user_texts(agent.messages[:at]) == ["Before."]
    assert agent.messages[at + 1] == SECOND


@pytest.mark.parametrize(
    "window, tokens", [(200_000, 30_000), (200_000, 6_000), (32_000, 3_000)]
)
@pytest.mark.parametrize("older", [0, 90])
@pytest.mark.parametrize("between", [[], ["And hurry."]])
def test_the_request_in_progress_stays_whole_over_two_compactions(
    make, window, tokens, older, between
):
    rules = sized(tokens, "Never touch this file.\n")
    before = [m for n in range(older) for m in (typed(f"{n}. Go on."), said("Yes."))]
    agent = make(messages=[*before, typed(rules)], context_window=window)
    for line in between, []:
        agent.messages += [*did("done"), *map(typed, line), *did("done again")]
        agent.messages = program.rebuild(agent, "Short.")[0]
    turn = agent.messages[program.turn_start(agent.messages) :]
    assert program.user_texts(turn) == [rules, *between] and turn[0] == typed(rules)


def test_a_compacted_list_is_older_messages_summary_request_calls_and_tail(make):
    asked = [SECOND, *needed(), typed("Hurry."), *did(BODY)]
    agent = make(messages=history(said("Yes."), asked, did("done")))
    older, summary, *request, calls, results, bash, done = program.rebuild(
        agent, "Ok."
    )[0]
    assert older == typed("Go.") and "Ok." in texts(summary)[0]
    assert request == [SECOND, typed("Hurry.")]
    assert calls["role"] == "assistant" and results["role"] == "user"
    assert [bash, done] == agent.messages[-2:]
