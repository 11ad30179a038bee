"""Layer 2: when a summary is made, how it is asked for, and what it leaves behind."""

import itertools
import re
from pathlib import Path

import pytest
import stub
from builders import (
    NO_SUMMARY,
    SUMMARY,
    did,
    fails,
    layers,
    planned,
    prompt,
    read,
    said,
    schemas,
    shown,
    summaries,
    texts,
    turns,
    typed,
)
from stub import api_error, reply

import agent as program
from agent import size

T = 10_000  # tokens; an agent with this threshold has about 1,000 in its fixed parts
WINDOW = {"threshold": T}
BODY = "x" * 60_000  # over T by any count


@pytest.fixture
def long(make):
    """long(*replies, before=messages): an agent whose conversation is over T."""

    def build(*replies, before=(), **fields):
        agent = make(*replies, **WINDOW | fields)
        for message in [typed("First wish."), *before, said(BODY)]:
            program.commit(agent, message)
        return agent

    return build


@pytest.fixture
def compacted(long):
    """compacted(before, text): the message that a summary left of a conversation."""

    def build(*before, summary=SUMMARY, text="Newest wish.", **fields):
        agent = long(summary, reply("Done."), before=before, **fields)
        program.take_turn(agent, text)
        assert len(agent.messages) == 2 and len(summaries(agent)) == 1
        return agent

    return build


def head(agent):
    """All that stands for the history, as one text."""
    return "\n".join(texts(agent.messages[0]))


def bytes_4(agent):
    """Bytes / 4 of all that the next request sends."""
    sent = [m["content"] for m in agent.messages]
    return len(stub.encoded([prompt(agent), schemas(agent), *sent])) / 4


# --- The threshold and the limits ---


@pytest.mark.parametrize(
    "own, window, threshold, expected",  # the model's own, the person's settings
    [
        ((1_000_000, 128_000), "", "", (200_000, 16_384, 170_616)),
        ((1_000_000, 128_000), "1000000", "", (1_000_000, 16_384, 970_616)),
        ((200_000, 64_000), "900000", "", (200_000, 16_384, 170_616)),
        ((200_000, 64_000), "60000", "", (60_000, 16_384, 30_616)),
        ((200_000, 4_096), "", "", (200_000, 4_096, 182_904)),  # the model's maximum
        ((30_000, 64_000), "", "", (30_000, 10_000, 15_000)),  # a third, a half of it
        ((200_000, 64_000), "", "50000", (200_000, 16_384, 50_000)),
        ((200_000, 64_000), "", "199999", (200_000, 16_384, 183_616)),
        ((), "", "", (200_000, 16_384, 170_616)),  # unknown
    ],
)
def test_the_limits_are_the_models_own_within_the_settings(
    monkeypatch, own, window, threshold, expected
):
    monkeypatch.setenv("CONTEXT_WINDOW", window)
    monkeypatch.setenv("THRESHOLD", threshold)
    agent = program.Agent(**vars(program.limits(*own)))
    assert (agent.window, agent.max_output, agent.threshold) == expected


def test_the_threshold_is_that_of_v5_with_at_most_20000_for_the_reply():
    assert program.auto_compact_threshold() == 200_000 - 16_384 - 13_000
    assert program.auto_compact_threshold(200_000, 64_000) == 167_000


# --- Counting ---


def test_before_the_first_reply_all_that_is_sent_counts_as_bytes_4(make):
    agent = make(messages=[typed("x" * 4_000), said("y" * 4_000), typed("あ" * 4_000)])
    assert program.context_tokens(agent) == pytest.approx(bytes_4(agent), rel=0.01)


def test_after_a_reply_the_count_and_the_share_of_the_cache_are_the_apis(make):
    long, other = reply("x" * 40_000), reply("日本語" * 300, thinking="Well.")
    agent = make(long, other, reply("Well."))
    system, shares = [{"type": "text", "text": prompt(agent)}], []
    for text in ("Tell me.", "Again, in another language, please.", "Well?"):
        program.take_turn(agent, text)
        reported = stub.count(system, schemas(agent), agent.messages)
        assert program.context_tokens(agent) == pytest.approx(reported, abs=12)
        shares.append(agent.cached)
    assert shares[0] == 0 and 0 < shares[1] < 0.5 and 0.9 < shares[2] < 1


@pytest.mark.parametrize("text, tokens", [("x", 1_000), ("日", 3_000)])
def test_what_came_after_the_last_reply_is_added_as_bytes_4(make, text, tokens):
    agent = make(reply("x" * 9_000))
    program.take_turn(agent, "Tell me.")
    before = program.context_tokens(agent)
    program.commit(agent, typed(text * 4_000))
    assert program.context_tokens(agent) - before == pytest.approx(tokens, abs=2)


def test_right_after_a_compaction_bytes_4_count_by_the_factor_of_the_last_reply(make):
    agent = make(reply(BODY), SUMMARY)
    program.take_turn(agent, "Tell me.")
    factor = program.context_tokens(agent) / bytes_4(agent)
    assert factor > 1.2
    assert program.compact_history(agent, "compact")
    expected = factor * bytes_4(agent)
    assert program.context_tokens(agent) == pytest.approx(expected, rel=0.05)


def test_a_summary_is_due_above_the_threshold_once_between_two_replies(make):
    agent = make(messages=[typed(BODY)])
    agent.threshold = program.context_tokens(agent)
    assert not program.should_compact(agent)
    agent.threshold -= 1
    assert program.should_compact(agent)
    agent.tries = 1
    assert not program.should_compact(agent)


# --- The request for a summary ---


def test_it_is_the_live_conversation_with_its_settings_and_one_message_more(make):
    agent = make(reply(BODY, thinking="A thought."), SUMMARY, reply("Done."), **WINDOW)
    program.take_turn(agent, "First wish.")
    before = [*agent.messages, typed("Second wish.")]
    assert program.take_turn(agent, "Second wish.") == "Done."
    [request] = summaries(agent)
    assert request["messages"][:-1] == before
    assert before[1]["content"][0]["type"] == "thinking"
    settings = [r | {"messages": []} for r in agent.client.requests]
    assert settings[0] == settings[1] == settings[2]


def test_the_prompt_forbids_calls_first_and_last_and_names_nine_sections(compacted):
    [text] = texts(summaries(compacted())[0]["messages"][-1])
    lines = text.strip().split("\n")
    assert "tool" in lines[0] and "tool" in lines[-1]
    assert re.findall(r"^(\d)\. \S", text, re.MULTILINE) == list("123456789")
    assert "<analysis>" in text and "<summary>" in text
    assert f"{T // 8:,}" in text and "earlier summary" in text


# --- What is accepted as a summary ---

WELL = "<summary>All is well.</summary>"
CALL = [("bash", {"command": "touch called"})]


@pytest.mark.parametrize(
    "text, more, summary",
    [
        (f"<analysis>a</analysis>\n\n{WELL}\n", {}, "All is well."),
        (WELL, {"stop": "stop_sequence"}, "All is well."),
        (WELL, {"thinking": "a <summary>thought</summary>"}, "All is well."),
        (f"<analysis>a <summary> of it</analysis>{WELL}", {}, "All is well."),
        ("<summary>\nTwo\n\nparts\n</summary>", {}, "Two\n\nparts"),
        ("<analysis>a</analysis><summary>b</analysis></summary>", {}, "b</analysis>"),
        ("<summary>a <summary> b</summary></summary>", {}, r"a <summary> b<\/summary>"),
    ],
)
def test_a_normal_reply_with_a_summary_is_accepted(long, text, more, summary):
    agent = long(reply(text, **more), reply("Done."))
    assert program.take_turn(agent, "Newest wish.") == "Done."
    assert f"\n{summary}\n" in head(agent) and "<analysis>" not in head(agent)
    assert agent.failures == 0


@pytest.mark.parametrize(
    "answer",
    [
        reply(WELL, stop="refusal"),
        reply(WELL, stop="max_tokens"),
        reply(WELL, calls=CALL, stop="end_turn"),
        reply("All is well."),
        reply("<summary> \n </summary>"),
        reply("<summary>It went"),
        reply("<analysis><summary>All is well.</summary></analysis>"),
        reply("", thinking="Hm."),
    ],
    ids=lambda answer: str(answer)[:70],
)
def test_anything_else_is_a_failure_that_leaves_the_history_as_it_was(long, answer):
    agent = long(answer, reply("Done."))
    before = [*agent.messages, typed("Newest wish.")]
    assert program.take_turn(agent, "Newest wish.") == "Done."
    assert agent.messages == [*before, said("Done.")]
    assert agent.failures == 1 and "[auto_compact]" in str(shown(agent, "error"))
    assert agent.client.requests[-1]["messages"] == before
    assert not Path("called").exists()


@pytest.mark.parametrize("fault", [529, 429, 401, 400])
def test_a_fault_of_the_api_ends_the_turn_and_is_no_failed_summary(long, pauses, fault):
    agent = long(*[api_error(fault, "Not now.")] * 15, SUMMARY, reply("Done."))
    for _ in range(3):
        assert "Not now" in fails(agent, "Again.")
    agent.client.queue = type(agent.client.queue)([SUMMARY, reply("Done.")])
    assert agent.failures == 0 and program.take_turn(agent, "And now?") == "Done."
    assert "All is well." in head(agent)


def test_a_summary_that_is_longer_than_a_third_of_its_room_is_cut_there(
    long, monkeypatch
):
    monkeypatch.setattr(program, "half_room", lambda agent: 3_000)
    agent = long(reply(f"<summary>{BODY}{BODY}</summary>"), reply("Done."))
    assert program.take_turn(agent, "Newest wish.") == "Done."
    [text, *_] = texts(agent.messages[0])
    assert "cut here" in text and 950 < size(text) < 1_100
    assert agent.failures == 0 and texts(agent.messages[0])[-1].endswith("Newest wish.")


# --- What replaces the history ---


def test_it_has_summary_words_plan_files_and_request_in_this_order(compacted):
    for name in "ab":
        Path(f"{name}.py").write_text(f"the text of {name}")
    plan = planned("[x] look", "[ ] mend it")
    agent = compacted(*plan, *read("a.py"), *read("b.py"), typed("Second wish."))
    first, words, todo, *files, last = texts(agent.messages[0])
    assert first.startswith(
        f"[Conversation compressed. Transcript: {agent.transcript}]"
    )
    assert "reference" in first and "All is well." in first
    assert words.index("First wish.") < words.index("Second wish.")
    assert "[ ] mend it" in todo and "look" not in todo
    assert ["the text of" in text for text in files] == [True, True]
    assert last.endswith("Newest wish.")


# --- The person's own words ---

ODD = 'Keep  "two  spaces",\n\tthe tab & <tags>, 日本語 and it\'s end. '


def words_of(agent):
    return program.remember(agent.messages)["words"]


def test_the_persons_words_are_kept_letter_by_letter(compacted):
    agent = compacted(typed(ODD), said("Yes."), typed("Third."), text=ODD + "!")
    assert head(agent).count(ODD) == 2
    assert words_of(agent) == ["First wish.", ODD, "Third.", ODD + "!"]


def test_words_are_carried_over_several_compactions(long):
    agent = long(*[SUMMARY, reply(BODY)] * 4)
    wishes = [f"Wish number {n}." for n in range(4)]
    turns(agent, *wishes)
    assert len(summaries(agent)) == 4
    assert words_of(agent) == ["First wish.", *wishes]
    places = [head(agent).index(wish) for wish in words_of(agent)]
    assert places == sorted(places) and head(agent).count("First wish.") == 1


@pytest.mark.parametrize(
    "threshold, budget, length", [(T, T // 8, 590), (170_616, 20_000, 3_990)]
)
def test_of_many_words_the_first_and_the_newest_stay_within_the_budget(
    make, threshold, budget, length
):
    wishes = [f"#{n}: {'w' * length}." for n in range(60)]
    history = [*map(typed, wishes), said("x" * 400_000)]
    agent = make(SUMMARY, messages=history, threshold=threshold)
    program.compact_history(agent, "compact")
    kept = words_of(agent)
    assert kept[0] == wishes[0] and kept[2:] == wishes[-len(kept[2:]) :]
    assert kept[1].startswith("#")  # some of its own text, where it was cut
    assert 0.95 * budget < program.estimate_tokens(map(typed, kept)) <= budget
    assert all(f"\n{wish}" in head(agent) for wish in kept)


@pytest.mark.parametrize(
    "wishes, kept",
    [
        (["a" * 3_200, "b"], ["a" * 3_200, "b"]),  # 800 of 1,250 tokens
        (["a", "b" * 3_200], ["a", "b" * 3_200]),
        (["a" * 90_000, "b" * 800, "c" * 800], ["a" * 80, "c" * 800]),
        (["a" * 8_000, *["b" * 4_000] * 40, "c" * 4_000], ["a" * 80, "c" * 80]),
    ],
)
def test_a_long_wish_stays_whole_or_leaves_room_for_the_newest(make, wishes, kept):
    history = [*map(typed, wishes), said(BODY), typed("Now.")]
    agent = make(SUMMARY, messages=history, **WINDOW)
    assert program.auto_compact(agent)
    assert all(f"\n{wish}" in head(agent) for wish in kept)


# --- The plan ---


@pytest.mark.parametrize("items", [[], ["[x] look", "[x] mend it"]])
def test_a_plan_that_is_done_is_not_brought_back(compacted, items):
    agent = compacted(*planned("[ ] mend it"), *planned(*items))
    assert "mend it" not in head(agent)


def test_of_two_plans_the_newer_counts_though_it_is_in_the_newest_messages(make):
    old, new = planned("[ ] look"), planned("[x] look", "[ ] mend it")
    agent = make(messages=[typed("Go."), *old, said(BODY), *new])
    [first, *_] = program.rebuild(agent, "Short.", 2)
    assert "[ ] mend it" in str(texts(first)) and "[ ] look" not in str(texts(first))


# --- The files ---


def test_five_files_come_back_those_read_last_each_once(compacted):
    for n in range(7):
        Path(f"{n}.py").write_text(f"text of {n}")
    order = [0, 1, 2, 3, 4, 5, 6, 0, 5]
    agent = compacted(*itertools.chain(*(read(f"{n}.py") for n in order)))
    found = re.findall(r"text of (\d)", head(agent))
    assert sorted(found) == ["0", "3", "4", "5", "6"]
    assert re.findall(r"(\d)\.py", head(agent)) == found


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
def test_only_what_was_read_comes_back(compacted, skill, tool, given, failed):
    Path("a.py").write_text("its text")
    skill("birds", "its text")
    agent = compacted(*did("-", tool=tool, given=given, is_error=failed))
    assert "its text" not in head(agent)


def test_each_file_is_cut_at_5000_tokens_with_a_note(make):
    text = "".join(f"line {n}, and so on\n" for n in range(9_000))
    Path("long.txt").write_text(text)
    [restored] = program.restore_recent_files(make(), ["long.txt"])
    assert 4_800 < size(restored) < 5_100
    assert "line 1," in restored and "line 8999" not in restored
    assert re.search("cut|more", restored[-200:])


def test_all_files_together_are_within_a_quarter_of_the_threshold(make):
    for name in "abcde":
        Path(name).write_text(name * 16_000)
    agent = make(threshold=40_000)
    restored = program.restore_recent_files(agent, list("abcde"))
    assert 9_000 < sum(map(len, restored)) / 4 < 10_100
    assert "e" * 15_000 in restored[0]  # the one read last comes first


def test_a_file_and_a_skill_are_put_back_after_this_compaction_and_the_next(
    long, skill
):
    Path("a.py").write_text("its text")
    skill("birds", "Count the birds twice.")
    skill("fish", "Never count fish.")
    before = [*read("a.py"), *loaded("birds")]
    agent = long(*[SUMMARY, reply(BODY)] * 3, before=before)
    for text in ("One.", "Two.", "Three."):
        program.take_turn(agent, text)
        whole = head(agent)
        counts = map(whole.count, ("its text", "the birds twice", "Never count"))
        assert [*counts] == [1, 1, 0]


# --- The skills ---


@pytest.fixture
def skill():
    """skill(name, text): a skill of the workspace, which an agent made later knows."""

    def write(name, text):
        path = Path(".agents/skills", name, "SKILL.md")
        path.parent.mkdir(parents=True)
        path.write_text(f"---\nname: {name}\ndescription: For {name}.\n---\n{text}")

    return write


def loaded(name):
    """A skill was loaded, as two messages."""
    return did("Its text.", tool="load_skill", given={"name": name})


def test_a_skill_that_leaves_no_room_goes_before_a_summary_is_given_up(long, skill):
    skill("birds", "Count the birds.\n" * 400)
    agent = long(SUMMARY, reply("Done."), before=loaded("birds"), threshold=1_500)
    program.take_turn(agent, "Go on.")
    assert len(summaries(agent)) == 1 and "Count the birds" not in head(agent)


# --- Quotations ---


@pytest.mark.parametrize("tag", ["file", "summary", "message", "skill", "rules"])
@pytest.mark.parametrize("form", ["</{}>", "</ {} >", "< / {}>", "<\n/\t{}\n>"])
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_what_is_quoted_cannot_close_its_quotation(compacted, skill, tag, form, case):
    said_by = {tag: f"Before. {form.format(case(tag))} After."}
    Path("a.py").write_text(said_by.get("file", "-"))
    Path("AGENTS.md").write_text(said_by.get("rules", "-"))
    skill("birds", said_by.get("skill", "-"))
    before = [*read("a.py"), *loaded("birds"), typed(said_by.get("message", "-"))]
    summary = reply(f"<summary>{said_by.get('summary', '-')}</summary>")
    agent = compacted(*before, summary=summary)
    whole = prompt(agent) + head(agent)
    ends = re.findall(rf"(?i)<\s*/\s*{tag}\s*>", whole)
    assert ends == [f"</{tag}>"] * len(re.findall(f"<{tag}[ >]", whole))
    assert "After." in whole


def test_what_is_cut_is_closed_all_the_same(compacted, skill):
    Path("a.py").write_text("a</file>\n" * 9_000)
    skill("birds", "b</skill>\n" * 9_000)
    wish = typed("c</message>\n" * 9_000)
    agent = compacted(*read("a.py"), *loaded("birds"), wish, threshold=40_000)
    for tag in ("file", "skill", "message"):
        [text] = [t for t in texts(agent.messages[0]) if f"<{tag}" in t]
        assert re.search("cut here|more follows", text) and text.endswith(f"</{tag}>")
        assert text.count(f"</{tag}>") == len(re.findall(f"<{tag}[ >]", text))


# --- What to do next, and how much is kept ---


FILE, OLD, TAIL, WORDS = "ffff", "bbbb", "tttt", "wwww"


@pytest.mark.parametrize(
    "room, kept",  # in tokens, for a file of 2,000, a tail of 1,500, words of 1,000
    [
        (5_500, {FILE, TAIL, WORDS}),
        (3_500, {TAIL, WORDS}),
        (2_000, {WORDS}),
        (200, set()),
    ],
)
def test_to_fit_files_go_first_then_the_newest_messages_then_older_words(
    make, monkeypatch, room, kept
):
    Path("a.py").write_text(FILE * 2_000)
    monkeypatch.setattr(program, "half_room", lambda agent: room)
    old = [typed(WORDS * 1_000), said("Yes."), *read("a.py"), said(OLD * 15_000)]
    newest = [typed("Newest wish."), *did("1"), *did(TAIL * 1_500)]
    agent = make(messages=[*old, *newest], threshold=20_000)
    new = program.rebuild(agent, "Short.", 5)
    assert {part for part in (FILE, OLD, TAIL, WORDS) if part in str(new)} == kept
    assert program.estimate_tokens(new) <= room and "Newest wish." in str(new)


@pytest.mark.parametrize("threshold", [4_000, 8_000, 50_000, 170_616])
def test_what_a_compaction_leaves_is_half_of_the_room_at_most(make, skill, threshold):
    for name in "abcde":
        Path(name).write_text(f"{name * 60}\n" * 2_000)
        skill(name, f"{name * 70}\n" * 2_000)
    asked = [typed("w" * 9_000), said("Yes.")] * 40
    used = [*(m for n in "abcde" for m in [*read(n), *loaded(n)]), said(BODY * 40)]
    plan = planned(*[f"[ ] {n} {'p' * 90}" for n in range(300)])
    agent = make(messages=[*asked, *used, *plan, typed("Now.")], threshold=threshold)
    for summary in ("Short.", BODY * 4):
        new = program.rebuild(agent, summary, 5)
        spare = threshold - program.tokens_with(agent, [])
        assert program.tokens_with(agent, new) <= threshold - spare // 2
        assert "Now." in str(new)


@pytest.mark.parametrize("threshold", [4_000, 8_000, 50_000])
def test_summary_plan_and_request_fit_together_however_long_each_is(make, threshold):
    plan = planned(*[f"[ ] {n} {'p' * 90}" for n in range(900)])
    asked = typed("\u65e5" * 90_000)
    agent = make(messages=[said(BODY * 40), *plan, asked], threshold=threshold)
    assert program.rebuild(agent, BODY * 4, 0) is not None


@pytest.mark.parametrize("tokens, is_whole", [(2_000, True), (2_001, False)])
def test_a_request_of_at_most_a_quarter_of_the_room_stays_whole(
    make, monkeypatch, tokens, is_whole
):
    monkeypatch.setattr(program, "half_room", lambda agent: 4_000)
    request = "w" * (4 * tokens - 2)  # 2: of its quotes
    agent = make(messages=[said(BODY), typed(request)])
    [new] = program.rebuild(agent, "Short.", 0)
    assert (request in texts(new)[-1]) is is_whole


def test_a_request_of_half_the_room_is_saved_and_stands_as_a_preview(long):
    paste = "a line of the log\n" * 1_300
    agent = long(SUMMARY, reply("Done."))
    assert program.take_turn(agent, f"Explain this: {paste}") == "Done."
    last = texts(agent.messages[0])[-1]
    [path] = re.findall(r"saved at (\S+)", last)
    assert Path(path).read_text() == f"Explain this: {paste}" and "Explain this" in last


def test_a_small_conversation_keeps_the_persons_words_and_is_not_compacted(make):
    compact = reply(calls=[("compact", {})])
    look = reply(calls=[("bash", {"command": "seq 900"})])
    agent = make(compact, look, compact, SUMMARY, reply("Done."))
    asked = "A specification. " * 500
    assert program.take_turn(agent, asked) == "Done."
    assert asked in str(agent.messages) and agent.failures == 0
    told = [t for t in shown(agent, "layer") if t.startswith("[compact]")]
    assert "nothing" in told[0] and "summarised" in told[-1]


def test_a_summary_that_saves_nothing_is_asked_for_once_and_is_no_failure(make):
    useless = reply(f"<summary>{'s' * 4_000}</summary>")
    asks = [reply(calls=[("compact", {})]) for _ in range(3)]
    first = reply("x" * 2_000, calls=[("compact", {})])
    agent = make(first, useless, *asks, reply("Done."))
    assert program.take_turn(agent, "Go.") == "Done."
    assert len(summaries(agent)) == 1 and agent.failures == 0
    told = [t for t in shown(agent, "layer") if "nothing to compact" in t]
    assert ["no smaller" in text for text in told] == [True, False, False, False]


@pytest.mark.parametrize("length", [9_000, 30_000, 100_000])
def test_a_pasted_log_does_not_push_out_short_rules(make, length):
    rules = [f"Rule {n}: never touch file {n}." for n in range(20)]
    said_so = [m for rule in rules for m in (typed(rule), said("Yes."))]
    logs = [m for n in range(3) for m in (typed(f"{n}" * length), said("Seen."))]
    agent = make(SUMMARY, messages=[*said_so, *logs], window=32_000)
    assert program.compact_history(agent, "compact")
    assert [rule for rule in rules if rule not in head(agent)] == []


@pytest.mark.parametrize(
    "text, name, replies",
    [
        ("w" * 60_000, "auto_compact", []),
        ("Hello.", "compact", [reply(calls=[("compact", {})])]),
    ],
)
def test_where_there_is_nothing_to_compact_it_is_said_and_is_no_failure(
    make, text, name, replies
):
    agent = make(*replies, reply("Done."), **WINDOW)
    assert program.take_turn(agent, text) == "Done."
    assert summaries(agent) == [] and agent.failures == 0
    assert f"[{name}] nothing to compact" in shown(agent, "layer")
    assert agent.messages[0] == typed(text)


def test_without_the_model_too_it_is_said_that_there_is_nothing_to_compact(make):
    agent = make(failures=3, messages=[typed("Hello.")])
    assert not program.auto_compact(agent)
    assert agent.events == [("layer", "[auto_compact] nothing to compact")]


def test_a_summary_is_told_with_tokens_before_and_after_and_the_transcript(compacted):
    agent = compacted()
    line = shown(agent, "layer")[-1]
    counts = re.findall(r"\d[\d,]*", line.split(str(agent.transcript))[0])
    before, after = (int(count.replace(",", "")) for count in counts[-2:])
    assert line.startswith("[auto_compact]") and str(agent.transcript) in line
    assert before > T > after > 0


# --- The breaker ---


def test_after_three_failures_in_a_row_it_goes_without_the_model_and_says_so_once(long):
    Path("a.py").write_text("its text")
    before = [*planned("[ ] mend it"), *read("a.py")]
    agent = long(*[NO_SUMMARY, reply("Done.")] * 3, reply("Done."), before=before)
    assert turns(agent, "One.", "Two.", "Three.", "Four.") == ["Done."] * 4
    assert len(summaries(agent)) == 3 and agent.failures == 3
    told = ["/compact" in text for text in shown(agent, "error")]
    assert told == [False, False, True]
    assert program.context_tokens(agent) < T
    kept = str(agent.client.requests[-1]["messages"])
    for part in (str(agent.transcript), "First wish.", "[ ] mend it", "its text"):
        assert part in kept


def test_a_success_in_between_begins_the_count_anew(long):
    bad, good = [NO_SUMMARY, reply("Done.")], [SUMMARY, reply(BODY)]
    agent = long(*bad, *bad, *good, *bad)
    failures = [turns(agent, text) and agent.failures for text in "1234"]
    assert failures == [1, 2, 0, 1]


def test_compact_by_hand_passes_an_open_breaker_and_closes_it(long):
    agent = long(SUMMARY, reply(BODY), SUMMARY, reply("Done."), failures=3)
    assert program.compact_history(agent, "compact")
    assert agent.failures == 0 and "All is well." in head(agent)
    turns(agent, "Four.", "Five.")
    assert len(summaries(agent)) == 2


def test_the_compact_tool_does_not_pass_an_open_breaker_and_is_told_so_once(long):
    asks, looks = reply(calls=[("compact", {})]), reply(calls=LOOK)
    agent = long(asks, looks, reply("Done."), threshold=100_000, failures=3)
    assert program.take_turn(agent, "Four.") == "Done."
    assert summaries(agent) == [] and layers(agent).count("compact") == 1


# --- Never two summaries without a reply in between ---

LOOK = [("glob", {"pattern": "*"})]


def test_a_reply_and_a_new_turn_each_allow_another_summary(long):
    interrupted = KeyboardInterrupt()
    again = reply(BODY, calls=LOOK)
    agent = long(interrupted, SUMMARY, again, SUMMARY, reply("Done."))
    with pytest.raises(KeyboardInterrupt):
        program.take_turn(agent, "Newest wish.")
    assert program.take_turn(agent, "Go on.") == "Done."
    assert len(summaries(agent)) == 3


@pytest.mark.parametrize("first", [SUMMARY, NO_SUMMARY], ids=["made", "failed"])
def test_the_second_remedy_between_two_replies_is_the_one_without_the_model(
    long, first
):
    before = [message for n in range(9) for message in did(f"{n}")]
    too_long = api_error(400, "prompt is too long: 18310 tokens > 18000 maximum")
    agent = long(first, too_long, reply("Done."), before=before, window=18_000)
    if first is SUMMARY:  # a request too long for the API, though we count it as short
        agent.client.queue[0] = reply(f"<summary>{'s' * 9_000}</summary>")
    assert program.take_turn(agent, "Newest wish.") == "Done."
    assert len(summaries(agent)) == 1 and len(agent.client.requests) == 3
    assert "Newest wish." in str(agent.client.requests[-1]["messages"])
