"""The measure: prices worked out by hand, what stays in sight, both file formats."""

import json
import lzma
import re
import shutil
import subprocess
import sys
from itertools import accumulate, pairwise
from unittest.mock import Mock

import costs
import moment
import ours
import own_policy
import pytest
from builders import did, history, read, typed
from ours import drive
from policies import (
    PEERS,
    SAYS_NOTHING,
    SUMMARIES,
    SUMMARY,
    TUTORIALS,
    archive_middle,
    cleared,
    history_in_budget,
    is_result,
    results,
    snip,
    total,
)
from prices import Meter, replay
from readme import ROOT
from recorded import Measured, Message, Session, note, read_messages, tokens
from stub import StubClient
from stub import reply as stub_reply

from agent import UNANSWERED, Limits

pytestmark = pytest.mark.slow  # they replay sessions

T31 = "x" * 31  # a text of 10 tokens, so a message of 15
POLICY_NAMES = [*TUTORIALS, "summaries", "ours"]


def said(*blocks):
    blocks = [{"type": "text", "text": b} if type(b) is str else b for b in blocks]
    return {"role": "assistant", "content": blocks}


def tool_use(id, name="read_file", **given):
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id, content):
    block = {"type": "tool_result", "tool_use_id": id, "content": content}
    return {"role": "user", "content": [block]}


def reading(count, chars=3_100):
    """A conversation that reads files of this length one by one, then answers."""
    texts = [f"value_{n:04} = {n}\n" + "y" * chars for n in range(count)]
    steps = [read(f"src/f_{n}.py", text) for n, text in enumerate(texts)]
    return history(*steps, said("Done."))


def write(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def as_claude_code(messages, **more):
    kinds = ((m["role"], m) for m in messages)
    return [{"type": kind, "message": m, "uuid": "u", **more} for kind, m in kinds]


def at_times(messages, *seconds):
    """Lines of Claude Code, written so many seconds after the start."""
    stamps = [f"2026-11-01T12:{s // 60:02}:{s % 60:02}.500Z" for s in seconds]
    pairs = zip(as_claude_code(messages), stamps, strict=True)
    return [line | {"timestamp": stamp} for line, stamp in pairs]


def clocked(messages, *gaps):
    """A session whose requests come so many seconds after the one before."""
    times = iter(accumulate(gaps))
    for at, message in enumerate(messages := [*messages]):
        if message["role"] == "assistant":
            messages[at] = {**message, "time": next(times)}
    return Session(messages)


@pytest.fixture
def load(tmp_path):
    """load(entries) reads the messages from a file with these lines."""
    return lambda entries: read_messages(write(tmp_path / "session.jsonl", entries))


# ---- the price of a request ----


def price(histories, **more):
    """Cost of each of these requests in turn, without its reply of 100 tokens."""
    meter, spent = Meter(Session([]), **more), [0.0]
    for messages in histories:
        meter.send(messages, output=100)
        spent.append(meter.cost)
    return [after - before - 500 for before, after in pairwise(spent)]


def test_an_ascii_character_is_a_third_of_a_token_and_any_other_is_one():
    assert tokens(T31) == 10
    assert tokens("漢字" + T31) == pytest.approx(10 + 2 * 1.05)


def test_the_first_request_writes_the_cache_and_the_next_reads_it():
    one, two = [note(T31)], [note(T31), note(T31, "assistant"), note(T31)]
    first, second, same = price([one, two, two])
    assert first == pytest.approx(1.25 * 3_515)
    assert second == pytest.approx(0.05 * 3_515 + 1.25 * 30)
    assert same == pytest.approx(0.05 * 3_545)
    assert price([one, one], read=0.1)[1] == pytest.approx(0.1 * 3_515)
    assert price([one, one], cached=False) == pytest.approx([3_515, 3_515])


def test_what_requests_and_summaries_cost_without_a_cache_is_counted_beside_it():
    with_cache, without = Meter(Session([])), Meter(Session([]), cached=False)
    for meter in with_cache, without:
        for sent in [note(T31)], [note(T31), note(T31, "assistant"), note(T31)]:
            meter.send(sent, output=100)
        meter.summarise(20_000, calls=2)
        meter.summarise_live([note(T31)])
    assert with_cache.cost < with_cache.full == without.full == without.cost


def test_after_a_change_far_back_only_the_fixed_part_is_read():
    history = [note(T31, role) for role in ("user", "assistant") * 4]
    _, changed = price([history, [note("x" * 62), *history[1:]]])
    assert changed == pytest.approx(0.05 * 3_500 + 1.25 * (25 + 7 * 15))


LOOK_BACK = pytest.mark.parametrize("added, found", [(20, True), (21, False)])


@LOOK_BACK
def test_a_marker_looks_back_20_positions(added, found):
    start = [note(T31)]
    long = start + [note(T31)] * added  # one position each
    _, second = price([start, long])
    read = 3_515 if found else 3_500
    assert second == pytest.approx(0.05 * read + 1.25 * (3_515 + 15 * added - read))


@LOOK_BACK
def test_the_stub_looks_back_as_far(added, found):
    client = StubClient(cache_from=0)
    texts = [{"type": "text", "text": T31 * 99}] * (1 + added)
    for sent in texts[:1], texts:
        client.enqueue(stub_reply("ok"))
        request = {"messages": [{"role": "user", "content": sent}]}
        request |= {"cache_control": {"type": "ephemeral"}}
        usage = client.answer({"model": "m", "max_tokens": 9, **request})["usage"]
    assert (usage["cache_read_input_tokens"] > 0) == found


# ---- the clock ----

THREE = history(did("a" * 900), did("b" * 900), said("Done."))


@pytest.mark.parametrize("gap, alive", [(300, True), (301, False)])
@pytest.mark.parametrize("name", ["nothing", "ours"])
def test_the_cache_goes_cold_after_300_seconds_for_every_policy(name, gap, alive):
    run = costs.runs(False, [])[name]
    whole, session = run(Session(THREE)), clocked(THREE, 0, 10, gap)
    rewritten = run(session).cost - whole.cost
    assert (rewritten == pytest.approx(0)) == alive
    if not alive:
        assert rewritten == pytest.approx(1.2 * whole.contexts[1])


def test_ours_runs_by_the_recorded_clock():
    """With a cold cache, it clears over a quarter of the threshold: 2,500."""
    limits = Limits(20_000, 9, 10_000, clear_above=9_000, keep_tokens=0)
    work, gaps = reading(5), (0, 9, 9, 9, 9)
    assert drive(clocked(work, *gaps, 301), limits).clearings == 1
    assert drive(clocked(work, *gaps, 300), limits).clearings == 0
    assert drive(Session(work), limits).clearings == 0


@pytest.mark.parametrize("cached", [True, False])
def test_ours_sees_what_the_cache_read_and_wrote_and_zeros_without_one(
    monkeypatch, cached
):
    finished = Mock(wraps=ours.finished)
    monkeypatch.setattr(ours, "finished", finished)
    meter = drive(Session(THREE), Limits(), cached=cached)
    told = [usage for (_, usage), _ in finished.call_args_list]
    read = [usage["cache_read_input_tokens"] for usage in told]
    assert read == [0, *(int(n) * cached for n in meter.contexts[:-1])]
    sent = [sum(usage.values()) - usage["output_tokens"] for usage in told]
    assert sent == [int(size) for size in meter.contexts]
    written = [usage["cache_creation_input_tokens"] > 0 for usage in told]
    assert written == [cached] * len(told)


def test_without_a_cache_every_token_of_every_request_costs_1():
    session = Session(THREE)
    meter = drive(session, Limits(), cached=False)
    output = sum(m.tokens for m in session.measured if m.role == "assistant")
    assert meter.cost == pytest.approx(sum(meter.contexts) + 5 * output)


def test_a_request_is_sent_when_the_line_before_its_reply_was_written(load):
    messages = load(at_times(THREE, 0, 20, 400, 405, 406, 710))
    asked = [m["time"] for m in messages if m["role"] == "assistant"]
    assert [round(time - asked[0]) for time in asked] == [0, 400, 406]
    times = [round(time - asked[0]) for time in Session(messages).times]
    assert times == [0, 0, 0, 400, 400, 406]


@pytest.mark.parametrize("stamp", [None, 5, "", "yesterday"])
def test_a_line_without_a_time_is_still_read(load, stamp):
    messages = load([line | {"timestamp": stamp} for line in as_claude_code(THREE)])
    assert messages == THREE and not Session(messages).timed


def test_a_run_of_one_type_is_one_position_and_a_reply_one_more():
    blocks = ["a", "b", tool_use("1"), tool_use("2")]
    session = Session([typed("x"), said(*blocks)])
    meter = Meter(session)
    meter.follow(session.measured)
    assert [sent.position for sent in meter.sent] == [1, 4]


# ---- what stays in sight ----

LINE = "    total = sum(one_price for item in cart)"
EDIT = {"path": "src/shop.py", "old_text": f"{LINE}\n", "new_text": ""}
SHOP = history(
    read("src/shop.py", f"def checkout_all(cart):\n{LINE}\n" + "#" * 200),
    did("shop.py " * 20, given={"command": "ls"}),
    did("none " * 40, given={"command": "cat nothing_known.txt"}),
    did("ok", tool="edit_file", given=EDIT),
    said("I fixed checkout_all."),
)


def test_a_reply_needs_the_lines_it_quotes_and_the_names_it_saw():
    needs = Session(SHOP).needs
    assert needs[1] == needs[5] == ([], [])  # no result had shown these names
    assert needs[7] == ([LINE.strip()], ["one_price"])
    assert needs[9] == ([], ["checkout_all"])


def forget_first(history, meter):
    return cleared(history, results(history)[:1], meter, "[gone]")


def quote_names(history, meter):
    return [note("one_price, checkout_all"), *forget_first(history, meter)[1:]]


@pytest.mark.parametrize(
    "policy, edits, names",
    [
        (TUTORIALS["nothing"], [1], [1, 1]),
        (forget_first, [0], [0, 0]),
        (quote_names, [0], [1, 1]),
    ],
)
def test_what_a_policy_leaves_and_what_it_adds_is_in_sight(policy, edits, names):
    course = replay(Session(SHOP), policy)
    assert (course.edits, course.names) == (edits, names)


FORGETS = Limits(clear_above=0, keep_recent=0, keep_tokens=0, min_savings=0)


def test_a_line_out_of_sight_is_searched_for_in_the_transcript():
    meter = drive(Session(SHOP), FORGETS)
    assert meter.edits == [0] and meter.lost == 1
    [(by_words, by_line, size)] = meter.lookups
    assert by_words and by_line and 0 < size < 300


QUOTED = f'print("{LINE.strip()}", "\\t")  # $1 (one_price)'


def test_a_line_with_quotes_is_found_by_two_words_and_as_a_whole():
    work = json.loads(
        json.dumps(SHOP).replace(json.dumps(LINE)[1:-1], json.dumps(QUOTED)[1:-1])
    )
    assert drive(Session(work), FORGETS).lookups[0][:2] == (True, True)


def test_the_search_sees_the_transcript_as_it_was_when_the_line_was_needed(monkeypatch):
    held = []

    def grep(agent, pattern, path):
        held.append(agent.transcript.read_text().count("old_text"))
        return f"{path}: {pattern}" if len(held) == 1 else LINE

    monkeypatch.setattr(ours.program, "grep", grep)
    [(*shown, _)] = drive(Session(SHOP), FORGETS).lookups
    assert held == [0, 0]  # not even the edit itself
    assert shown == [False, True]


def test_of_many_lost_lines_an_even_sample_is_searched_for(monkeypatch):
    monkeypatch.setattr(ours, "MOST_LOOKUPS", 2)
    monkeypatch.setattr(ours.program, "grep", lambda *_: "")
    monkeypatch.setattr(ours.os, "truncate", lambda *_: None)
    agent = ours.SimpleNamespace(transcript=ours.Path(__file__))
    lost = [ours.Lost(f"line number {n}", 0) for n in range(5)]
    assert len([*ours.look_up(agent, lost)]) == 2


def test_a_line_is_searched_for_by_its_two_rarest_adjacent_words():
    text = "total = price * count; total = price"
    assert ours.rarest_words("total = price * count", text) == r"price\ \*\ count"
    assert ours.rarest_words("alone", "alone") == "alone"
    assert ours.rarest_words('a "b" a', r"a \"b \"b") == r'b"\ a'


@pytest.mark.parametrize("line", ["short = 1", "aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa"])
def test_short_or_repetitive_lines_do_not_count(line):
    messages = [typed(line), said(tool_use("e", "edit_file", old_text=line))]
    assert Session(messages).needs[1] == ([], [])


# ---- reading ----


CLAUDE_CODE = as_claude_code(SHOP)
NO_MESSAGES = ["isSidechain", "isMeta", "isCompactSummary"]
NO_MESSAGES = [
    e for key in NO_MESSAGES for e in as_claude_code([typed("no")], **{key: True})
]
NO_MESSAGES += [{"type": "progress"}, {"type": "system", "subtype": "compact_boundary"}]
EVENT = {"event": "auto_compact", "messages": [typed("A summary.")]}
SESSION_FILES = {
    "our format": SHOP,
    "Claude Code's": CLAUDE_CODE,
    "with lines of its own": [*CLAUDE_CODE[:3], *NO_MESSAGES, *CLAUDE_CODE[3:]],
    "with a compaction of ours": [*SHOP[:3], EVENT, *SHOP[3:]],
}
TORN = b'\xff\xfe{\n[1]\n"x"\n{"role": "user"}\n{"role": "assistant", "con'


@pytest.mark.parametrize("torn", [b"", TORN])
@pytest.mark.parametrize("name", SESSION_FILES)
def test_each_format_gives_the_same_conversation(tmp_path, name, torn):
    path = write(tmp_path / "session.jsonl", SESSION_FILES[name])
    path.write_bytes(path.read_bytes() + torn)
    assert read_messages(path) == SHOP


def test_a_compressed_file_is_read_as_well(tmp_path):
    lines = write(tmp_path / "session.jsonl", SHOP).read_bytes()
    (path := tmp_path / "session.jsonl.xz").write_bytes(lzma.compress(lines))
    assert read_messages(path) == SHOP


@pytest.mark.parametrize("cut", [0, 9])
def test_a_damaged_compressed_file_is_reported_in_one_line(tmp_path, capsys, cut):
    (path := tmp_path / "s.xz").write_bytes(lzma.compress(b"{}" * 99)[cut:-9])
    assert costs.main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}: ")


def test_a_compaction_counts_only_at_the_start_of_a_file(load):
    assert load([EVENT, said("Yes.")])[0] == typed("A summary.")


IN_LINES = [
    typed("Go."),
    said("I look.") | {"id": "m1"},
    said(tool_use("1", "Read", file_path="a.py")) | {"id": "m1"},
    result("1", "A"),
    said(tool_use("2", "Bash", command="ls")) | {"id": "m1"},
    result("2", [{"type": "text", "text": "B"}]),
]


def test_a_reply_recorded_in_several_lines_is_joined(load):
    _, reply, answer = load(as_claude_code(IN_LINES))
    read, ran = tool_use("1", path="a.py"), tool_use("2", "bash", command="ls")
    assert reply == said("I look.", read, ran)
    assert [block["content"] for block in answer["content"]] == ["A", "B"]


def test_a_call_whose_result_was_not_recorded_has_failed(load):
    messages = load(SHOP[:4])
    assert messages[-1]["content"][0]["is_error"] is True
    assert len(replay(Session(messages), TUTORIALS["nothing"]).contexts) == 2


def test_images_and_thinking_are_left_out(load):
    image = {"type": "image", "source": {"data": "A" * 9_000}}
    thinking = {"type": "thinking", "thinking": "...", "signature": "s"}
    asked, read = said("Look:", image) | {"role": "user"}, tool_use("1", path="a.png")
    messages = load([asked, said(thinking, read), result("1", [image])])
    whole = [typed("Look:\n\n[image]"), said(read), result("1", "[image]")]
    assert messages == whole


@pytest.mark.parametrize("text", ["", "hello\n", '{"a": 1}\n', "[]\n"])
def test_any_other_file_is_reported_in_one_line(tmp_path, capsys, text):
    other, good = tmp_path / "other", write(tmp_path / "good", SHOP)
    other.write_text(text)
    assert costs.main([str(other), str(good), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"{other}: neither a transcript nor a session of Claude Code\n"
    assert {row["requests"] for row in json.loads(out)["rows"]} == {5}
    assert costs.main([str(other)]) == 1


# ---- the policies, and ours ----


def test_s06_clears_all_but_three_at_every_request_and_pays_for_it():
    session = Session(reading(12))
    s06, whole = (replay(session, TUTORIALS[name]) for name in ("s06", "nothing"))
    assert s06.clearings == 9 and s06.summaries == 0
    assert s06.contexts[-1] < 3_500 + 4 * 1_100 < whole.contexts[-1]
    assert s06.cost > whole.cost


def test_of_a_clearing_one_knows_what_was_written_again_and_what_went():
    session = Session(reading(150))
    meter = replay(session, PEERS["clear_at_least"])
    (written, freed), _ = meter.rewritten
    at = next(n for n, size in enumerate(meter.contexts) if size > 99_000) + 1
    result = session.measured[2].tokens - note("[cleared]").tokens
    assert freed == pytest.approx((at - 3) * result, rel=0.01)  # the newest 3 stay
    assert written == pytest.approx(meter.contexts[at - 1] - 3_500 - freed)


def test_all_policies_have_the_same_prompt_cache():
    meters = [replay(Session(THREE), policy) for policy in (TUTORIALS | PEERS).values()]
    [same] = {(round(meter.cost, 6), round(meter.full, 6)) for meter in meters}
    assert same[0] < same[1]


def test_the_tutorials_count_the_json_of_the_messages():
    turns = [m for n in range(200) for m in history(typed("x" * 700), said("y"))]
    before, after = forget("s06", turns)
    assert total(before) * 3.1 / 4 < 50_000 and len(after) == 2


def test_v5_clears_only_results_of_its_own_tools():
    long = "x" * 9_000
    seen = [did(long, tool=name) for name in ["bash", "task"] * 12]
    _, after = forget("v5", history(*seen))
    left = [b.name for _, b in results(after) if b.text == long]
    assert left == ["task"] * 9 + ["bash", "task"] * 3


def test_newer_s06_keeps_the_results_of_read_file():
    long = "x" * 9_000
    seen = [did(long, tool=name) for name in ["bash", "read_file"] * 6]
    _, after = forget("s06 newer", history(*seen))
    left = [b.name for _, b in results(after) if b.text == long]
    assert left == ["read_file"] * 5 + ["bash", "read_file"]


def test_newer_s08_forgets_only_over_50000_characters_and_then_down_to_40000():
    """Old results that were seen go first; if that's not enough, even the newest."""
    before, after = forget("s08 newer", history(*[did("x" * 9_000)] * 5))
    assert before == after
    _, after = forget("s08 newer", history(*[did("x" * 9_000)] * 6))
    sizes = [len(b.text) for _, b in results(after)]
    assert sizes[0] == sizes[1] < 200 and sizes[2:] == [9_000] * 4
    _, after = forget("s08 newer", history(*[did("x" * 20_000)] * 4))
    *previews, newest = [b.text for _, b in results(after)]
    assert [text.count("x" * 1_000) for text in previews] == [1, 1, 1]
    assert newest == "x" * 20_000


def test_newer_s08_saves_oversized_results_at_once():
    calls = measured(history(did("x" * 150_000), did("y" * 60_000)))
    both = Message("user", tuple(m.blocks[0] for m in calls if is_result(m)), 9)
    [large, small] = history_in_budget([both])[0].blocks
    assert "x" * 2_000 in large.text and len(large.text) < 2_200
    assert small.text == "y" * 60_000


def test_newer_s08_archives_the_middle_but_not_its_own_note():
    lines = measured([typed(str(n)) for n in range(51)])
    left = archive_middle(lines, 50)
    assert len(left) == 50 and [*left[:3], *left[4:]] == [*lines[:3], *lines[5:]]
    assert left[3].blocks[0].text.startswith("[2 messages archived at /")
    pair = measured(history(did("ok")))[-2:]
    same = [*left[:4], *pair, *left[5:]]
    assert len(same) == 51 and archive_middle(same, 50) is same


def test_newer_s08_begins_its_summary_with_the_request_in_progress():
    talk = [m for n in range(20) for m in (typed(f"{n:02}" * 2_000), said("Yes."))]
    meter = replay(Session(talk), TUTORIALS["s08 newer"])
    assert meter.summaries == 1 and meter.request == "19" * 2_000
    _, [left] = forget("s08 newer", talk)
    assert [b.text for b in left.blocks] == ["(summary)", "the request"]


def test_s08_keeps_the_first_three_messages_a_note_and_the_newest_47():
    history = measured([typed(str(n)) for n in range(60)])
    short = [m.blocks[0].text for m in snip(history, 50)]
    middle = "[snipped 10 messages from conversation middle]"
    assert short == ["0", "1", "2", middle, *map(str, range(13, 60))]


def measured(messages):
    return [*map(Measured().message, messages)]


class Free:
    """A meter for which everything is free."""

    clearings, request = 0, "the request"

    def summarise(self, *_, **__):
        pass


def forget(name, messages):
    """Return the messages, and what a policy leaves of them."""
    history = measured(messages)
    return history, (TUTORIALS | PEERS)[name](history, Free())


@pytest.mark.parametrize("count, stay", [(240, 240), (241, 120), (300, 120)])
def test_openhands_keeps_2_and_117_events_once_there_are_over_240(count, stay):
    said = [typed(str(n)) for n in range(count)]
    history, left = forget("OpenHands", said)
    assert len(left) == stay and left[:2] == history[:2]
    assert left[-117:] == history[-117:]


def test_gemini_cli_summarises_over_half_the_window_and_cuts_old_results():
    turns = [m for _ in range(5) for m in history(did("x" * 58_000), said("Seen."))]
    assert len(forget("gemini-cli", turns)[1]) == len(turns)  # 100,000 tokens or so
    more = [*turns, *history(did("y" * 99_000), said("Seen.")), typed("Go on.")]
    before, after = forget("gemini-cli", more)
    assert total(before) > 100_000 > total(after) and len(after) < len(before)


def test_gemini_cli_discards_a_summary_that_frees_nothing():
    """If the newest turn alone fills half the window, there is nothing to summarise."""
    work = [*history(did("x" * 31_000), said("Seen.")), *reading(40, 9_000)]
    assert replay(Session(work), PEERS["gemini-cli"]).summaries == 1


@pytest.mark.parametrize("name, clears", [("opencode", 0), ("opencode, pruning", 1)])
@pytest.mark.parametrize("count, much", [(59, 0), (61, 1)])
def test_opencode_can_prune_results_older_than_two_turns_and_40000_tokens(
    name, clears, count, much
):
    old = history(*(did("x" * 3_090) for _ in range(count)))  # 1,000 tokens each
    newer = [*history(did("y" * 90_000)), *history(did("z" * 90_000))]
    before, after = forget(name, [*old, *newer, typed("And now?")])
    assert (before != after) == clears * much


CLEARINGS = {"clear_tool_uses": 56, "clear_at_least": 2}
CLEARINGS |= {"clear_tool_uses (rest)": 1, "clear_at_least (rest)": 1}


@pytest.mark.parametrize("name", CLEARINGS)
def test_the_api_clears_over_100000_tokens_and_what_it_cleared_stays(name):
    """If all that is sent counts, each new result clears another, or 30,000 tokens."""
    session = Session(reading(150))
    meter = replay(session, PEERS[name])
    whole = replay(session, TUTORIALS["nothing"])
    at = sum(size <= 100_000 for size in whole.contexts)
    assert meter.clearings == CLEARINGS[name] and meter.contexts[at] < 10_000
    assert meter.contexts[:at] == whole.contexts[:at]
    assert meter.cost < whole.cost


def test_if_only_the_rest_counts_the_api_clears_again_once_that_is_over_100000_tokens():
    meter = replay(Session(reading(250)), PEERS["clear_tool_uses (rest)"])
    assert meter.clearings == 2 and 95_000 < max(meter.contexts) < 105_000


def test_cliff_logs_all_but_the_newest_three_replies_and_what_the_user_typed():
    long, short = did("x" * 501), did("fine " * 100)
    talk = history(said("I look."), typed("And now?"), long, short, *[did("new")] * 3)
    left = SUMMARIES["Cliff"](measured(talk), Free())
    assert [m.blocks[0].text for m in left[:2]] == ["Go.", "And now?"]
    assert left[2].blocks[0].text == f"I look.\nbash\nbash\n{'fine ' * 100}"
    assert left[3:] == measured(talk)[-6:] and left[2].blocks[0].name == "summary"


def test_cliff_shortens_calls_but_not_its_own_log():
    work = [did("ok", given={"command": f"echo {n} {'y' * 200}"}) for n in range(9)]
    once = SUMMARIES["Cliff"](measured(history(*work)), Free())
    twice = SUMMARIES["Cliff"]([*once, *measured(history(*work[:3]))[1:]], Free())
    [log, more] = (m[1].blocks[0].text for m in (once, twice))
    assert {len(line) for line in log.split("\n")} == {2, 150}
    assert more.startswith(log + "\n") and more.count("\n") == log.count("\n") + 6


def test_cliff_keeps_a_history_of_three_replies():
    few = measured(history(did("x"), did("y"), said("Done.")))
    assert SUMMARIES["Cliff"](few, Free()) is few


def test_cliff_writes_its_log_near_the_end_of_the_window_and_asks_no_model():
    meter = replay(Session(reading(280)), PEERS["Cliff"])
    assert (meter.clearings, meter.summaries) == (1, 0)
    assert 160_000 < max(meter.contexts) < 167_500


@pytest.mark.parametrize("name", [*TUTORIALS, *PEERS])
def test_no_policy_leaves_a_result_without_its_call(name):
    policy, seen = (TUTORIALS | PEERS)[name], []

    def watched(history, meter):
        seen.append(policy(history, meter))
        return seen[-1]

    turns = [m for _ in range(4) for m in reading(30, 9_000)]
    replay(Session(turns), watched)
    for messages in seen:
        for before, after in pairwise([note(""), *messages]):
            answers = after.blocks[0].type == "tool_result"
            assert not answers or before.blocks[-1].type == "tool_use"


def test_ours_answers_every_request_and_starts_a_turn_at_each_typed_message():
    interrupted = reading(3)
    interrupted.insert(3, typed("And quickly."))
    meter = drive(Session(interrupted), Limits())
    assert len(meter.contexts) == 4 and meter.cost > 0
    added = said(UNANSWERED, "\n\nAnd quickly.")["content"]  # joined with the results
    joined = {"role": "user", "content": [*interrupted[2]["content"], *added]}
    sent = [*interrupted[:2], joined, *interrupted[4:]]
    whole = replay(Session(sent), TUTORIALS["nothing"])
    assert meter.contexts == pytest.approx(whole.contexts)
    assert meter.cost == pytest.approx(whole.cost)


def test_ours_clears_and_summarises_as_its_settings_say():
    session = Session(reading(40))
    early = Limits(clear_above=0, keep_tokens=0, min_savings=5_000)
    clears = drive(session, early)
    assert clears.clearings > 2 and clears.summaries == 0
    sums = drive(session, Limits(clear_above=10**9, threshold=20_000))
    assert sums.summaries > 0 and max(sums.contexts) < 22_000


@pytest.mark.parametrize(
    "tool, cleared",
    [("bash", True), ("task", False), ("todo_write", False), ("WebFetch", False)],
)
def test_ours_clears_only_what_the_program_itself_would_clear(tool, cleared):
    eager = Limits(clear_above=0, keep_recent=0, keep_tokens=0, min_savings=0)
    work = history(did("x" * 9_000, tool=tool), did("y" * 9_000), said("Done."))
    assert (drive(Session(work), eager).contexts[2] < 3_500 + 3_000) == cleared


def test_a_file_that_a_compaction_reads_again_returns_what_was_recorded():
    sums = Limits(clear_above=10**9, threshold=20_000)
    long = history(*(did("y" * 20_000) for _ in range(4)))[1:]
    meter = drive(Session([*SHOP[:3], *long, *SHOP[3:]]), sums)
    assert meter.summaries == 1 and meter.edits == [1]


# ---- the moment after a compaction ----

FAR, NEAR = "far_away = sum(all the others)", "near_by = sum(all the others)"


def need(*lines):
    """A call for an edit that quotes these lines, each with one name."""
    given = {"path": "any.py", "old_text": "\n".join(lines), "new_text": ""}
    return did("ok", tool="edit_file", given=given)


@pytest.mark.parametrize(
    "work, counts",
    [
        ([need(FAR, NEAR)], (1, 1, 2, 1)),  # the index has the name
        ([need(FAR), need(FAR)], (1, 1, 1, 0)),  # the first one shows it to the second
        ([did(FAR), need(FAR)], (0, 0, 0, 0)),
        ([*(did("ok") for _ in range(40)), need(NEAR)], (0, 0, 0, 0)),  # too late
        ([need("never_seen = sum(all the others)")], (0, 0, 0, 0)),
    ],
)
def test_the_moment_counts_once_what_the_next_40_calls_need(work, counts):
    """Both lines were shown long ago; the near one also in the file read last."""
    old = [did(FAR), *(did("x" * 6_000) for _ in range(38))]
    session = Session(history(*old, read("near.py", NEAR + "y" * 8_000), *work))
    assert moment.measure(session)[0][:4] == counts


RUN = "go test ./internal/..."


def ran(command, tool="bash"):
    return did("ok", tool=tool, given={"command": command})


@pytest.mark.parametrize(
    "later, needed",
    [
        ([ran(RUN)], 1),
        ([ran(RUN), ran(RUN)], 1),
        ([ran(f"{RUN} -v")], 0),
        ([ran("ls -la")], 0),  # so short that it needn't be remembered
        ([ran("make lint"), ran("make lint")], 0),  # it had not run before
        ([ran(RUN, "task")], 0),
        ([*(ran("make lint") for _ in range(40)), ran(RUN)], 0),  # too late
    ],
)
def test_a_command_of_bash_counts_if_the_next_40_calls_repeat_it(later, needed):
    before = history(ran(RUN), ran("ls -la"), did("x" * 6_000))
    session, at = Session([*before, *history(*later)[1:]]), len(before)
    assert moment.moment(session, at, [])[4:6] == (needed, 0)
    assert moment.moment(session, at, [note(f"$ {RUN}")])[4:6] == (needed, needed)


def test_a_compaction_is_measured_at_each_40th_reply_from_60000_tokens_on():
    first, second = moment.points(Session(work := reading(130)))
    assert second == first + 80  # a reply and its results each
    assert moment.program.estimate_tokens(work[: first - 2]) < 60_000
    assert moment.program.estimate_tokens(work[:first]) >= 60_000


def test_a_summary_that_says_nothing_is_as_long_in_ours_as_in_the_other_rows():
    session = Session(reading(130))
    at = moment.points(session)[:1]
    [ours] = moment.left_by_ours(session, at, Limits())
    [about] = [b for m in ours for b in m.blocks if SAYS_NOTHING.strip() in b.text]
    assert SUMMARY < about.tokens < SUMMARY + 300


def test_a_plain_tail_is_what_the_user_typed_a_summary_and_the_newest_24000_tokens():
    work = [*reading(20), typed("Go on."), *reading(30)]
    before, after = measured(work), SUMMARIES["tail"](measured(work), Free())
    start = next(n for n, m in enumerate(after) if m.blocks[0].name == "summary") + 1
    asked = [m.blocks[0].text for m in after[: start - 1]]
    assert asked == ["Go.", "Go on.", "Go."]
    assert after[start:] == before[len(before) - len(after[start:]) :]
    assert 22_900 < sum(m.tokens for m in after[start:]) <= 24_000


SEEING = {"ours": 1, "v5": 1, "pi": 1, "opencode": 1, "OpenHands": 1, "mine": 1}
SEEING |= {"s06": 0, "s08": 0, "codex": 0, "ours, no index": 1, "tail": 1}
SEEING |= {"gemini-cli": 1, "Cliff": 1}


def test_every_policy_that_can_summarise_has_its_moment(tmp_path, capsys):
    near = read("near.py", NEAR + "y" * 8_000)
    old = [did(FAR), *(did("x" * 6_000) for _ in range(38))]
    path = write(tmp_path / "s", history(*old, near, need(NEAR), said("Done.")))
    options = [str(path), "--peers", "--json", "--mine", str(AGENTS / "newest.py")]
    assert costs.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: one["lines"] for name, one in found["moment"].items()} == SEEING
    words = " ".join(costs.table(found, "").split())
    assert "1 compaction with summaries that say nothing" in words


def test_the_moment_says_what_was_in_sight_and_how_long_it_took(tmp_path, capsys):
    files = [str(write(tmp_path / "s", reading(130))), str(tmp_path / "none")]
    assert moment.main([*files, "--set", "CONTEXT_WINDOW=32000"]) == 0
    out, err = capsys.readouterr()
    line = r"{}: names \S+%, lines \S+%, 0 of 0 commands, typed 100.0%,"
    line += r" [\d,]+ tokens, 2 points\n"
    policies = "tail", "ours, no index", "ours", "ours CONTEXT_WINDOW=32000"
    assert re.fullmatch("".join(map(line.format, policies)) + r"\d+ s\n", out)
    assert "none" in err
    assert moment.main([str(write(tmp_path / "short", THREE))]) == 1


def test_ours_leaves_less_in_a_smaller_window():
    session = Session(reading(130))
    small = costs.limits({"CONTEXT_WINDOW": "32000"})
    sizes = [
        sum(m.tokens for m in moment.measure(session, own=own)) for own in (None, small)
    ]
    assert sizes[1] < sizes[0] / 2


# ---- a policy of your own ----

AGENTS = ROOT / "tests/agents"


@pytest.fixture
def mine(tmp_path, capsys, monkeypatch):
    """mine(code, *sessions) measures a policy and returns the table, or its one error.

    The tutorials' policies are left out, to save time.
    """
    few = {"nothing": TUTORIALS["nothing"]}
    monkeypatch.setattr(costs, "TUTORIALS", few)

    def run(code, *sessions):
        (path := tmp_path / "mine.py").write_text(code)
        files = [write(tmp_path / f"{n}", lines) for n, lines in enumerate(sessions)]
        failed = costs.main([*map(str, files or [path]), "--mine", str(path)])
        out, err = capsys.readouterr()
        assert failed == bool(err) and err.count("\n") == failed
        return " ".join((err or out).replace(str(path), "mine.py").split())

    return run


DROP = "def forget(messages):\n    return [messages[0], *messages[max(1, {}):]]\n"
KEEP = "def forget(messages):\n    return list(messages)\n"


def test_a_policy_of_your_own_has_a_row_beside_the_others(mine):
    words = mine(KEEP, SHOP, THREE)
    assert re.search(r"mine 1\.000 0 0 [\d,]+ 1\.000 1\.000 1\.000", words)
    assert "mine: the API would reject 0 of 8 requests." in words
    assert "It's cheaper than ours in 0 of 2 sessions." in words
    assert "Needed by an edit, but out of sight in mine: 0 lines." in words


def test_it_is_told_what_the_api_would_reject_and_what_an_edit_needed(mine):
    words = mine(DROP.format("len(messages) - 1"), SHOP)
    assert "mine: the API would reject 4 of 5 requests." in words
    assert "The first: messages.0.content.1: unexpected `tool_use_id` found" in words
    assert f"out of sight in mine: 1 lines. {LINE.strip()}" in words
    words = mine(KEEP, reading(66, 9_300))
    assert "The first: prompt is too long: 200" in words and "reject 2 of 67" in words


def test_what_a_policy_returns_is_what_it_gets_next(tmp_path):
    """It removes a result once, and the next list is without it."""
    code = "def forget(messages):\n    assert len(messages) < 5\n"
    (path := tmp_path / "mine.py").write_text(code + "    return messages[-2:]\n")
    assert len(
        own_policy.run(Session(history(*[said("y"), typed("x")] * 9)), path).contexts
    )


def test_a_policy_is_cheaper_where_it_saves_something(mine):
    few, many = [typed("Go."), said("Yes.")], [*reading(70, 9_300), *THREE]
    code = "def forget(messages):\n    long = len(str(messages)) > 200_000\n"
    code += "    return [messages[0], *messages[-2:]] if long else messages\n"
    assert "It's cheaper than ours in 1 of 2 sessions." in mine(code, few, many)


NO_FILE, ENDLESS = "no such file", "while True: pass"
WRONG_POLICIES = {
    "x = 1": "mine.py has no function forget(messages).",
    "def forget(:": "mine.py can't be loaded: SyntaxError: invalid syntax (mine.py, line 1)",
    "import no_such": "mine.py can't be loaded: ModuleNotFoundError: No module named",
    ENDLESS: "mine.py can't be loaded: it took more than 0.2 s.",
    f"def forget(messages):\n    {ENDLESS}": "0: it took more than 0.2 s.",
    "def forget(messages):\n    try:\n        while True: pass\n    "
    "except Exception: pass": "0: it took more than 0.2 s.",
    "def forget(messages):\n    1 / 0": "0: ZeroDivisionError: division by zero (line 2)",
    "def forget():\n    1": "0: TypeError: forget() takes 0 positional arguments",
    "def forget(messages):\n    exit()": "0: SystemExit: None (line 2)",
    "def forget(messages):\n    messages": "0, returned NoneType, not a list",
    "def forget(messages):\n    return []": "0, returned an empty list, not a list of",
    "def forget(messages):\n    return ['x']": "0, returned no message at index 0.",
    "def forget(messages):\n    messages.clear()": "0, changed the list that it got;",
    "def forget(messages):\n    messages[0]['content'] = 'x'\n    return messages": (
        "0, changed the list that it got; return a new one."
    ),
    "def forget(messages):\n    return [{'role': 'user', 'content': [{}]}]": (
        "0, returned what can't be sent: KeyError: 'type'"
    ),
}


@pytest.mark.parametrize("code", WRONG_POLICIES)
def test_a_wrong_policy_is_reported_in_one_line(monkeypatch, mine, code):
    monkeypatch.setattr(own_policy, "SECONDS", 0.2)
    assert WRONG_POLICIES[code] in mine(code, SHOP)


def test_a_policy_that_is_not_there_is_reported_in_one_line(capsys):
    assert costs.main(["--mine", "none.py"]) == 1
    assert capsys.readouterr().err == (
        "none.py can't be loaded: No such file or directory.\n"
    )


def test_the_example_that_clears_forgets_what_s06_forgets():
    session = Session(reading(30, 1_000))
    mine = own_policy.run(session, AGENTS / "clears.py")
    s06 = replay(session, TUTORIALS["s06"])
    assert mine.refusals == [] and mine.clearings == s06.clearings == 27
    assert mine.contexts == pytest.approx(s06.contexts, rel=0.02)


def test_the_example_that_keeps_the_newest_leaves_a_list_that_the_api_accepts():
    turns = [m for _ in range(2) for m in reading(60, 6_000)]
    meter = own_policy.run(Session(turns), AGENTS / "newest.py")
    assert meter.refusals == [] and meter.clearings == 2
    assert max(meter.contexts) < 140_000


def test_the_policy_in_the_readme_leaves_a_list_that_the_api_accepts(mine):
    text = (ROOT / "tests/README.md").read_text("utf-8")
    [code] = [c for c in text.split("```") if "def forget" in c]
    words = mine(code.removeprefix("python\n"), reading(90, 6_000))
    assert re.search(r"mine 0\.\d+ 0 1 ", words) and "reject 0 of 91" in words


# ---- the output ----


def test_json_has_a_row_for_each_policy(tmp_path, capsys):
    path = write(tmp_path / "s", reading(8))
    assert costs.main([str(path), "--json", "--set", "KEEP_RECENT=1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    named = {row["policy"]: row for row in rows}
    assert {*named} == {*POLICY_NAMES, "ours KEEP_RECENT=1"}
    keys = "policy cost summaries clearings previews average largest over E N R"
    keys += " requests lost lookups again whole answer"
    assert {" ".join(row) for row in rows} == {keys}
    assert named["nothing"]["cost"] == named["nothing"]["R"] == 1
    assert rows == sorted(rows, key=lambda row: row["cost"])


def test_json_has_costs_per_session_and_without_a_cache(tmp_path, capsys):
    paths = [write(tmp_path / f"{n}", reading(n)) for n in (8, 40)]
    options = ["--json", "--set", "CLEAR_ABOVE=0"]
    assert costs.main([*map(str, paths), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {*found["sessions"]} == {*POLICY_NAMES, "ours CLEAR_ABOVE=0"}
    few, many = found["sessions"]["s06"]
    assert found["sessions"]["nothing"] == [1, 1] and 1 < few < many
    full = found["uncached"]
    assert {*full} == {*TUTORIALS, "ours", "ours CLEAR_ABOVE=0"}
    assert [*full.values()] == sorted(full.values()) and full["nothing"] > 1


def test_it_counts_the_sessions_in_which_another_policy_is_cheaper():
    sessions = {"ours": [0.6, 0.7, 1], "v5": [0.5, 0.695, 0.996], "s06": [1, 1, 2]}
    assert costs.cheaper({**sessions, "ours KEEP_RECENT=1": [0, 0, 0]}) == {"v5": 2}


@pytest.mark.parametrize("setting", ["KEEP=1", "KEEP_RECENT=few", "THRESHOLD=-1"])
def test_a_wrong_setting_is_reported_in_one_line(tmp_path, capsys, setting):
    path = write(tmp_path / "s", SHOP)
    assert costs.main([str(path), "--set", setting]) == 1
    out, err = capsys.readouterr()
    assert out == "" and setting.split("=")[0] in err and err.count("\n") == 1


@pytest.fixture
def told(tmp_path, capsys):
    """told(*sessions, options=()) returns the table for these sessions as one line."""

    def run(*sessions, options=()):
        files = [write(tmp_path / f"{n}", lines) for n, lines in enumerate(sessions)]
        assert costs.main([*map(str, files), *options]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_the_table_fits_88_columns_and_explains_itself(tmp_path, capsys):
    assert costs.main([str(write(tmp_path / "s", reading(30))), "--peers"]) == 0
    title, _, head, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("31 recorded requests")
    rows = [line.split("  ")[0] for line in lines[: lines.index("")]]
    assert sorted(rows) == sorted([*POLICY_NAMES, *PEERS])
    assert max(map(len, lines)) < 89
    explained = {line.split(" ")[0] for line in lines[len(rows) :]}
    assert {*head.split()} - {"largest"} <= explained
    assert "as of November 2026" in "\n".join(lines)
    assert "\n".join(lines).endswith(costs.CAVEATS)


def test_the_verdict_names_the_settings_of_the_command_line(told):
    words = told(reading(30), options=["--set", "CONTEXT_WINDOW=16000"])
    yours = words.partition("Your settings: ")[2]
    assert re.match(r"ours( CONTEXT_WINDOW=16000)? \(.*?\) and ours", yours)
    assert "ours CONTEXT_WINDOW=16000 (cost" in yours


@pytest.fixture(scope="module")
def outgrown():
    """What is measured on a session that outgrows the window."""
    sessions = [Session(reading(24, 27_900), "long")]
    return costs.measure(sessions, costs.runs(False, []))


def test_the_table_says_when_doing_nothing_would_be_rejected(outgrown):
    words = " ".join(costs.table(outgrown, "").split())
    assert "Without forgetting, the API rejects request 23 of 25 of long." in words
    assert re.search(
        r'Up to there, "nothing" costs 0\.[5-9]\d and ours 0\.\d\d, so', words
    )


def test_the_table_names_requests_that_are_larger_than_the_window():
    rows = [{"policy": "nothing", "over": 3, "largest": 240_000}]
    rows += [{"policy": "v5", "over": 2, "largest": 212_071, "cost": 0.8}]
    told = " ".join(costs.too_large(rows))
    assert "2 of v5, up to 212,071." in told and "nothing" not in told
    assert not [*costs.too_large(rows[:1])]


def test_savings_before_that_rejection_are_counted_separately(outgrown):
    whole = replay(Session(reading(24, 27_900)), TUTORIALS["nothing"])
    at = next(n for n, size in enumerate(whole.contexts) if size > 200_000)
    refused = {"session": "long", "request": at + 1, "of": 25}
    assert outgrown["refused"] == [refused]
    before = whole.spent[at - 1] / whole.cost
    assert outgrown["before"]["nothing"] == pytest.approx(before, abs=1e-4)
    assert outgrown["before"]["ours"] < before < 1


def test_without_files_it_measures_one_session_of_each_project(monkeypatch, told):
    projects = sorted({costs.project(path.name) for path in costs.shapes(True)})
    assert [costs.project(path.name) for path in costs.shapes(False)] == projects
    monkeypatch.setattr(costs, "ONE_EACH", ("entire_b7",))
    words = told()
    assert words.startswith("23 recorded requests") and "OpenHands" in words
    assert costs.project("of/a_reader.jsonl") == ""


def test_cost_and_r_of_the_main_policies_are_shown_by_project(monkeypatch, told):
    assert "by project" not in told(THREE, THREE)
    monkeypatch.setattr(costs, "project", lambda name: f"project{name[-1]}")
    words = told(reading(9), THREE, THREE, options=["--peers"])
    assert "project: project0 project1 project2 " in words
    assert "nothing 1.000 1.000 1.000 1.000 1.000 1.000" in words
    table = words.partition("by project:")[2].partition("The cheapest")[0]
    assert "OpenHands 1" in table and "gemini" not in table


def test_several_processes_measure_the_same(monkeypatch, told):
    alone = told(reading(9), THREE)
    monkeypatch.setattr(costs, "FEW", 0)
    assert told(reading(9), THREE) == alone


TIMED, ONE_LARGE = at_times(THREE, *range(6)), reading(1, 300_000)


@pytest.mark.parametrize(
    "sessions, words",
    [
        ([THREE], "none was recorded, so the cache is always warm"),
        ([TIMED], "as recorded: after 300 s without"),
        ([TIMED, THREE], "as recorded in 1 of 2 sessions"),
        ([THREE], "there costs 0.05 (the default model's price; --read changes it)"),
        ([THREE], '"nothing" is priced as if its window had no limit.'),
        ([THREE], 'and "tail", in the last table, what the user typed, a summary'),
        ([THREE], "Costs without a prompt cache, in the same unit: "),
        ([THREE, TIMED], "Cheaper than ours in some of the 2 sessions: none."),
        ([THREE], "Needed by an edit, but out of sight in ours: 0 lines."),
        ([ONE_LARGE], "ours saved oversized results to disk 1 time."),
        ([ONE_LARGE], "that went to disk doesn't count, even if it's one read away"),
    ],
)
def test_the_table_explains_its_clock_its_prices_and_its_limits(told, sessions, words):
    assert words in told(*sessions)


def test_another_price_for_reading_is_shown_and_changes_the_costs(told):
    cheap, dear = (
        told(reading(30), options=["--read", price]) for price in ("0.05", "1")
    )
    assert "there costs 1 (your price; --read changes it)" in dear
    assert cheap.split()[:50] != dear.split()[:50]


def test_costs_at_other_prices_are_those_of_a_run_at_that_price():
    """Each is relative to doing nothing at the same price."""
    sessions = [Session(reading(30)), Session(THREE)]
    dear = costs.measure(sessions, costs.runs(False, [], read=0.1))
    found = costs.measure(sessions, costs.runs(False, []))
    rows = {row["policy"]: row["cost"] for row in dear["rows"]}
    full, prices = found["uncached"], found["prices"]
    for name in {*TUTORIALS, "ours"}:
        again = [rows[name], full[name] / full["nothing"]]
        assert prices[name][1:] == pytest.approx(again, abs=1e-4)
    assert prices["s06"][0] > prices["s06"][1] > 1 > prices["s06"][2]


def test_the_moment_says_how_often_ours_summarised_in_all_sessions():
    one = dict.fromkeys(("names", "lines", "commands", "typed", "tokens"), 0.5)
    moments = {"ours": one | {"points": 77, "repeated": 53}}
    rows, sessions = [{"policy": "ours", "summaries": 2}], {"ours": [0.7] * 24}
    measured = {"moment": moments, "rows": rows, "sessions": sessions}
    told = " ".join(costs.moment_table(measured, 8))
    assert "because they're rare: ours made 2 summaries in 24 sessions." in told
    assert "The calls repeat 53 commands of bash word for word, and" in told


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "cheap"])
def test_an_invalid_price_is_rejected(capsys, text):
    with pytest.raises(SystemExit):
        costs.main(["file", "--read", text])
    assert "--read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["policies.py", "prices.py"])
def test_a_policy_may_have_the_name_of_a_module_of_the_measure(tmp_path, name):
    for folder in "measure", "standin":
        left_out = shutil.ignore_patterns("shapes", "__pycache__")
        copy = tmp_path / "tests" / folder
        shutil.copytree(ROOT / "tests" / folder, copy, ignore=left_out)
    shutil.copy(ROOT / "agent.py", tmp_path)
    (tmp_path / name).write_text("raise SystemExit('this is the policy')\n")
    command = [sys.executable, "tests/measure/costs.py", "--help"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


# --- What a policy of one's own drops, and what isn't its fault ---

TYPED = [m for n in range(30) for m in (typed(f"Rule {n}."), *did("x" * 900))]


def measured_with(tmp_path, capsys, messages, code):
    """What costs.py prints about a policy with this code, on these messages."""
    path = write(tmp_path / "s", history(*TYPED, said("Yes."), *messages))
    (policy := tmp_path / "mine.py").write_text(code)
    assert costs.main([str(path), "--mine", str(policy)]) == 0
    return capsys.readouterr().out


KEEPS_FIRST = "def forget(m):\n    return [m[0], *[x for x in m[1:] if type(x['content']) is not str]]"
ORPHANS = "def forget(m):\n    return [x for x in m if x['role'] == 'user']"
SLOW = """\
import time
def forget(m):
    end = time.perf_counter() + 0.6 * (len(m) < 4)
    while time.perf_counter() < end:
        pass
    return m
"""


def test_the_typed_messages_that_a_policy_drops_are_counted(tmp_path, capsys):
    out = measured_with(tmp_path, capsys, [], KEEPS_FIRST)
    assert "Typed by the user, but dropped or changed: 30 of 31 messages." in out


CUTS = (
    "def forget(m):\n    return [{**x, 'content': cut(x['content'], %s)} for x in m]\n"
)
CUTS += """\
def cut(content, most):
    if type(content) is str:
        return content
    return [{**b, 'content': b['content'][:most]} if 'tool_use_id' in b else b for b in content]
"""


@pytest.mark.parametrize("most, unseen", [(0, 30), (500, 30), (900, 0)])
def test_results_that_a_policy_cuts_before_the_model_sees_them_are_counted(
    tmp_path, capsys, most, unseen
):
    out = measured_with(tmp_path, capsys, [], CUTS % most)
    told = f"Results cleared or cut before the model saw them: {unseen}."
    assert f"{told} Its cost" in out if unseen else f"{told}\n" in out


def test_a_policy_that_drops_typed_messages_is_not_simply_called_the_cheapest():
    rows = [{"policy": "mine", "cost": 0.5, "R": 1, "previews": 0, "summaries": 1}]
    rows += [rows[0] | {"policy": "ours", "cost": 0.7}]
    more = {"clearings": 0, "lost": 0, "lookups": 0}
    words = costs.verdict([row | more for row in rows], {"typed": [25, 61]})
    mine = "mine (cost 0.50, R 1.000; it drops 25 of 61 typed messages)."
    heads = (
        "The cheapest",
        f"Of those with the best R (within {costs.NO_MATTER}), the cheapest",
    )
    assert all(f"{head}: {mine}" in " ".join(words.split()) for head in heads)


def test_the_verdict_says_of_each_setting_what_grep_finds():
    rows = [
        {"policy": name, "cost": 1, "R": 1, "lost": 9} for name in ("ours", "ours T=1")
    ]
    rows[0] |= {"lookups": 9, "again": 0.999, "answer": 177, "whole": 0.5}
    more = dict.fromkeys(("previews", "summaries", "clearings", "lookups"), 0)
    words = " ".join(costs.verdict([more | row for row in rows], {}).split())
    assert (
        "in ours: 9 lines. One call of grep finds 99.9% of them by two words, in"
        in words
    )
    assert "177 tokens (median), and 50.0% by the line. Needed by" in words
    assert words.endswith("out of sight in ours T=1: 9 lines.")


def test_a_policy_whose_requests_are_rejected_is_not_compared(tmp_path, capsys):
    out = measured_with(tmp_path, capsys, [], ORPHANS)
    assert "the API would reject 0 of" not in out
    verdict = out.partition("The cheapest: ")[2].partition("Your settings")[0]
    assert "mine" not in verdict and "It's cheaper than ours" not in out
    assert "So it isn't compared with the other policies." in out


def test_nor_is_it_counted_among_the_cheaper_ones(mine):
    words = mine(DROP.format("len(messages) - 1"), SHOP, THREE)
    assert "So it isn't compared with the other policies." in words
    assert "mine in" not in words.partition("Cheaper than ours in some")[2]


@pytest.mark.parametrize("count, code", [(0, "m"), (1, "m[:3] + m[4:]")])
def test_only_what_the_recording_has_wrong_is_not_the_policys_fault(
    tmp_path, capsys, count, code
):
    """The second policy drops a call, which is in the list after the wrong name."""
    wrong = did("y", tool="a name with blanks")
    path = write(tmp_path / "s", history(*wrong, did("x"), said("Done.")))
    (policy := tmp_path / "mine.py").write_text(f"def forget(m): return {code}")
    assert costs.main([str(path), "--mine", str(policy)]) == 0
    assert f"the API would reject {count} of 3" in capsys.readouterr().out


def test_a_slow_policy_is_named(tmp_path, capsys):
    out = measured_with(tmp_path, capsys, [], SLOW)
    assert "It's slow: one call of forget took 0." in out


PRINTS = """\
print("loaded")
def forget(messages):
    print(len(messages))
    return messages
"""


def test_what_a_policy_prints_is_shown_below_the_tables(tmp_path, capsys):
    out = measured_with(tmp_path, capsys, [], PRINTS)
    assert out.startswith("31 recorded requests, ")
    assert "\nIt printed 31 lines. The first:\n    2\n    5\n    8\n" in out


def test_what_a_policy_prints_is_no_part_of_the_json(tmp_path, capsys):
    path = write(tmp_path / "s", SHOP)
    (policy := tmp_path / "mine.py").write_text(PRINTS)
    assert costs.main([str(path), "--json", "--mine", str(policy)]) == 0
    assert json.loads(capsys.readouterr().out)["mine"]["printed"] == 5


def test_a_policy_without_a_transcript_has_a_dash_in_the_last_column(told):
    words = told(THREE)
    assert re.search(r" again nothing 1\.000 .* 1\.000 1\.000 1\.000 - ", words)
    assert "A dash means that there was no such line" in words


CHECKS = """\
def forget(messages):
    calls = {b["name"]: {*b["input"]} for m in messages if m["role"] == "assistant"
             for b in m["content"] if b["type"] == "tool_use"}
    want = {"read_file": {"path"}, "edit_file": {"path", "old_string", "new_string"}}
    assert len(messages) < 5 or calls == want, calls
    return messages
"""


def test_a_policy_sees_claude_codes_calls_with_the_names_of_agent_py(mine):
    given = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    seen = did("x", tool="Read", given={"file_path": "a.py"})
    edit = did("ok", tool="Edit", given=given)
    lines = as_claude_code(history(seen, edit, said("Done.")))
    assert "mine: the API would reject 0 of 3 requests." in mine(CHECKS, lines)
