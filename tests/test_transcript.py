"""The transcript: what is on disk, and how it is read back."""

import json
import os
import re
import resource
import stat
from pathlib import Path

import pytest
from builders import (
    BASH,
    EARLIER,
    LONG,
    PLAN,
    READ,
    SMALL,
    SUMMARY,
    TASK,
    any_answer,
    call,
    earlier_transcript,
    fails,
    layers,
    lines_of,
    on_disk,
    one_line,
    outputs,
    results,
    shown,
    texts,
    turn_into,
    turns,
    typed,
)
from stub import StubClient, reply

import agent as program
from agent import (
    Agent,
    AgentError,
    compact_history,
    conversations,
    drop_thinking,
    load,
    resume,
    take_turn,
    user_texts,
)

FOLDER, RESULTS = Path(".transcripts"), Path(".task_outputs")
BIG = ("bash", {"command": "seq 9999"})
TIGHT = {"min_savings": 0, "keep_tokens": 0, "clear_above": 0}
pytestmark = pytest.mark.usefixtures("notes")


@pytest.fixture
def resumed(make):
    """resumed(file or number, *replies): an agent with a resumed conversation."""

    def build(which, *replies, **fields):
        agent = make(*replies, **fields)
        resume(agent, str(which))
        return agent

    return build


# ---- writing ----


def test_before_each_request_the_file_already_has_the_whole_conversation(make):
    agent, seen = make(**SMALL, min_savings=0, clear_above=99_999), []

    def checked(answer):
        return lambda request: seen.append(on_disk(agent)) or answer

    started = reply("I look.", calls=[READ, BASH, TASK], thinking="hm")
    compacting = reply(calls=[PLAN, ("compact", {"focus": "notes"})], thinking="so")
    partial = reply("Half", calls=[READ], stop="max_tokens")
    story = reply(LONG, calls=[READ, BASH])
    agent.client.enqueue(*map(checked, [started, reply("Its."), compacting, SUMMARY]))
    agent.client.enqueue(*map(checked, [partial, story, SUMMARY, reply("Done.")]))
    assert take_turn(agent, "Work") == "Done."
    assert seen == [True] * 8 and on_disk(agent)


def test_files_and_folders_are_private_to_the_user(make):
    agent = make(reply(calls=[TASK, BIG]), reply("Its."), reply("Done."), **SMALL)
    mask = os.umask(0)
    try:
        take_turn(agent, "Work")
    finally:
        os.umask(mask)
    files = [*FOLDER.glob("*.jsonl"), *RESULTS.rglob("*.txt")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3
    folders = FOLDER, RESULTS, program.RESULTS_DIR
    assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o700] * 3


def test_git_ignores_our_folders_unless_they_have_a_gitignore(make):
    FOLDER.mkdir()
    (FOLDER / ".gitignore").write_text("mine\n")
    take_turn(make(reply(calls=[BIG]), reply("Done."), **SMALL), "Work")
    ignored = [(path / ".gitignore").read_text() for path in (FOLDER, RESULTS)]
    assert ignored == ["mine\n", "*\n"]


def test_file_names_are_unique_within_a_second(make):
    agents = [make(reply("Hello.")) for _ in range(30)]
    for agent in agents:
        take_turn(agent, "Hi")
    paths = {agent.transcript for agent in agents}
    assert len(paths) == 30 and paths == {*FOLDER.glob("transcript_*.jsonl")}


ODD_TEXTS = {
    "japanese": "日本語のメモ",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "line ends": "a\nb\r\nc\rd",
    "quotes and escapes": '"\\"\\n\\u2028 \\ud800',
    "control characters": "\0\x01\x1b[31m\x7f",
}


@pytest.mark.parametrize("case", ODD_TEXTS)
def test_every_line_is_a_message_as_in_memory_and_any_text_survives(make, case):
    agent = make(reply(ODD_TEXTS[case], calls=[PLAN], thinking="hm"), reply("Done."))
    take_turn(agent, ODD_TEXTS[case])
    lines = lines_of(agent.transcript)
    assert len(lines) == 4 and lines == agent.messages
    if case == "japanese":  # unescaped, so that grep finds it
        assert ODD_TEXTS[case].encode() in agent.transcript.read_bytes()
    typed, answered = load(agent.transcript).messages[:2]
    assert typed["content"] == answered["content"][0]["text"] == ODD_TEXTS[case]


def compactions(agent):
    """The compactions in its transcript, each as its line."""
    return [line for line in lines_of(agent.transcript) if "event" in line]


def test_a_compaction_is_one_line_with_the_new_history(make):
    agent = make(reply(LONG), SUMMARY, reply("Done."), **SMALL)
    take_turn(agent, "Tell me a story")
    take_turn(agent, "Go on")
    [event] = compactions(agent)
    assert event["event"] == "auto_compact" and event["before"] > event["after"] > 0
    assert event["messages"] == agent.messages[: len(event["messages"])]
    lines = lines_of(agent.transcript)
    assert len(lines) == 5 and LONG in lines[1]["content"][0]["text"]


@pytest.mark.parametrize(
    "call, settings, replacement, end",
    [
        (READ, TIGHT, "[Previous: used read_file]", "the notes"),
        (BIG, SMALL, "<persisted-output>", "9998\n9999\n"),
    ],
)
def test_layer_1_writes_no_line_and_the_whole_results_stay_on_disk(
    make, no_layer_2, call, settings, replacement, end
):
    replies = [reply(calls=[call]) for _ in range(6)]
    agent = make(*replies, reply("Done."), **settings)
    take_turn(agent, "Work")
    assert replacement in str(agent.messages)
    assert compactions(agent) == [] and len(lines_of(agent.transcript)) == 14
    whole = outputs(*load(agent.transcript).messages)
    assert len({*whole}) == 1 and whole[0].endswith(end)


# ---- resuming a conversation ----


def test_a_resumed_conversation_continues_in_its_own_file(make, resumed):
    replies = reply("I look.", calls=[READ, BASH], thinking="hm"), reply("Done.")
    take_turn(first := make(*replies), "Work")
    path, before = first.transcript, first.transcript.read_bytes()
    agent = resumed(1, reply("Again."))
    assert path.read_bytes() == before  # nothing was typed yet
    assert agent.messages == drop_thinking(first.messages)
    assert f"[resume] {path}: " in shown(agent, "layer")[0]
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)
    assert [*FOLDER.glob("*.jsonl")] == [path] == [agent.transcript]
    assert path.read_bytes().startswith(before)


def test_oversized_results_are_previews_again_after_a_resume(make, resumed, no_layer_2):
    fits = ("bash", {"command": "seq 2000"})
    settings = SMALL | {"keep_recent": 9}
    replies = [reply(calls=[call]) for call in (BIG, fits, fits, fits)]
    take_turn(first := make(*replies, reply("Done."), **settings), "Work")
    agent = resumed(1, reply("Again."), **settings)
    program.make_ready(agent)
    shown = ["<persisted-output>" in text for text in outputs(*agent.messages)]
    assert shown == [True, False, False, False]
    assert agent.messages == first.messages
    assert take_turn(agent, "Go on") == "Again."


def listed():
    """The paths that listing the conversations gives, and the errors that it shows."""
    errors = []
    agent = Agent(emit=lambda style, text: errors.append(text))
    return [path for path, _ in conversations(agent)], errors


def test_two_terminals_with_the_same_conversation_end_up_in_separate_files(
    make, resumed
):
    first = make(reply("Yes."), reply("Later."))
    take_turn(first, "One")
    path = first.transcript
    take_turn(second := resumed(path, reply("Again.")), "Go on")
    take_turn(first, "Later work")
    assert second.transcript == path != first.transcript
    assert {*listed()[0]} == {path, first.transcript}
    for agent, text in (first, "Later work"), (second, "Go on"):
        assert on_disk(agent) and user_texts(agent.messages) == ["One", text]


def test_a_resume_restores_how_far_the_conversation_was_compacted(make, resumed):
    agent = make(reply(LONG), SUMMARY, reply("Done."), **SMALL)
    take_turn(agent, "Tell me a story")
    take_turn(agent, "Go on")
    later = resumed(1)
    assert 0 < later.tried_until == agent.tried_until < len(later.messages)


OLD = {"event": "compact", "compacted": 1, "messages": [typed("a")] * 2}
EVENTS = [OLD | {"event": name} for name in ("auto_compact", "reactive_compact")]
OTHER_EVENTS = "refusal", "continued", "snip_compact", "thinking"


@pytest.mark.parametrize(
    "event", [OLD, *EVENTS, *(OLD | {"event": n} for n in OTHER_EVENTS)]
)
def test_only_a_compaction_counts_as_a_try_to_compact(event):
    lines = [typed("one"), typed("two"), event, typed("b")]
    Path("one.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    is_compaction = event["event"] not in OTHER_EVENTS
    assert load(Path("one.jsonl")).tried_until == 2 * is_compaction


def test_what_was_tried_before_a_refusal_counts_at_most_for_what_is_left():
    kept = {"event": "refusal", "messages": [typed("a")]}
    lines = "".join(f"{json.dumps(line)}\n" for line in (OLD, kept, typed("b")))
    Path("one.jsonl").write_text(lines)
    assert load(Path("one.jsonl")).tried_until == 1


CONTINUED = b'{"event": "continued", "messages": []}\n'
DAMAGED = [b"", b"{", CONTINUED[:30], CONTINUED + b"5\n", b"[]\n"]
DAMAGED += [CONTINUED[:-20] + b"\n", b"[" * 99_999 + b"\n", b'{"from": 5}\n']


def write_damaged():
    """Put damaged files and a folder beside the transcripts, newer than any of them."""
    for number, data in enumerate(DAMAGED):
        path = FOLDER / f"transcript_{number}.jsonl"
        path.write_bytes(data)
        os.utime(path, (2e9, 2e9))
    (FOLDER / "transcript_folder.jsonl").mkdir()


def test_empty_or_damaged_files_and_folders_hide_no_other_conversation(make, resumed):
    take_turn(agent := make(reply("Yes.")), "One")
    write_damaged()
    paths, errors = listed()
    damaged = [error for error in errors if "is damaged in line" in error]
    [folder] = {*errors} - {*damaged}
    assert paths == [agent.transcript] and len(damaged) == 5
    assert "Is a directory: '.transcripts/transcript_folder.jsonl'" in folder
    assert resumed(1).messages == agent.messages


def test_resume_picks_the_newest_conversation_that_is_not_a_subagents(make, resumed):
    for changed in (10, 98, 12):
        agent = make(reply(calls=[TASK]), reply("Its."), reply("Done."))
        take_turn(agent, f"Changed at {changed}")
        os.utime(agent.transcript, (changed, changed))
    for task in FOLDER.glob("task_*.jsonl"):
        os.utime(task, (99, 99))
    assert resumed(1).messages[0]["content"] == "Changed at 98"


@pytest.mark.parametrize("which", ["1", "missing.jsonl", ".", "mine"])
def test_resuming_a_missing_conversation_is_one_clear_error(make, which):
    Path("mine").write_bytes(b'{"role": "user"')  # its only line is incomplete
    with pytest.raises(AgentError, match=f"conversation {which} in this") as error:
        resume(make(), which)
    assert one_line(error) and Path("mine").read_bytes() == b'{"role": "user"'
    assert not Path("missing.jsonl").exists()


# ---- torn and damaged files ----

NEXT = json.dumps(typed("日本語 and more"), ensure_ascii=False).encode()


@pytest.mark.slow
def test_a_torn_last_line_is_left_out_but_a_complete_one_counts(make, resumed):
    take_turn(first := make(reply("Hello.")), "Hi")
    path, whole = first.transcript, first.transcript.read_bytes()
    for length in range(1, len(NEXT) + 1):
        path.write_bytes(whole + NEXT[:length])
        agent = resumed(path, reply("Again."))
        more = [typed("日本語 and more")] if length == len(NEXT) else []
        assert agent.messages == first.messages + more
        take_turn(agent, "Go on")
        assert on_disk(agent) and path.read_bytes() == whole + NEXT[:length]


def line(content, role="user"):
    """A line of a transcript."""
    return json.dumps({"role": role, "content": content}).encode()


def a_call(**more):
    block = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
    return line([block | more], "assistant")


def a_result(*more, **fields):
    block = {"type": "tool_result", "tool_use_id": "t1", "content": "a"}
    return line([block | fields, *more])


HI = line("Hi")
SAID = line([{"type": "text", "text": "Hi"}], "assistant")
# For each case: the lines of a file, and the number of the bad one.
BAD_LINES = {
    "two lines glued": ([HI, HI + HI, HI], 2),
    "not UTF-8": ([HI, b'{"role": "user", "content": "\xff"}', HI], 2),
    "a text": ([HI, b'"event"'], 2),
    "deep nesting": ([HI, b"[" * 99_999, HI], 2),
    "no content": ([HI, b'{"role": "user"}'], 2),
    "an event without messages": ([HI, b'{"event": "compact"}'], 2),
    "another role": ([HI, line("Be good.", "system"), HI], 2),
    "a number as a block": ([HI, line([5])], 2),
    "a result without a call": ([HI, a_result(), HI], 2),
    "a deleted result": ([HI, a_call(), HI, SAID], 3),
    "a result of another call": ([HI, a_call(), a_result(tool_use_id="t2")], 3),
    "a text without text": ([HI, line([{"type": "text"}], "assistant"), HI], 2),
    "empty content": ([HI, line([])], 2),
    "a list as input": ([HI, a_call(input=["ls"])], 2),
    "a call without a name": ([HI, a_call(name=None)], 2),
    "a list as result": ([HI, a_call(), a_result(content=[])], 3),
    "an infinite number": (
        [HI, b'{"event": "x", "compacted": 1e999, "messages": [{"a": 1}]}'],
        2,
    ),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_damaged_line_is_named_and_the_file_stays_unchanged(make, case):
    lines, number = BAD_LINES[case]
    data = b"\n".join([*lines, NEXT[:9]])
    Path("damaged.jsonl").write_bytes(data)
    with pytest.raises(AgentError, match=rf"damaged in line {number}:") as error:
        resume(make(), "damaged.jsonl")
    assert one_line(error) and Path("damaged.jsonl").read_bytes() == data
    assert not FOLDER.exists()


def test_a_transcript_of_the_last_version_can_be_resumed(resumed):
    old = {"carried": {"words": ["Hi"]}, "waits": True, "saved": {"t1": "a.txt"}}
    lines = [json.dumps(json.loads(text) | old).encode() for text in (HI, SAID)]
    Path("old.jsonl").write_bytes(b"\n".join(lines))
    agent = resumed(Path("old.jsonl"), reply("Again."))
    assert agent.messages == [json.loads(HI), json.loads(SAID)]
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


def test_a_reply_written_as_a_string_is_loaded_as_a_block(resumed):
    Path("old.jsonl").write_bytes(b"\n".join([HI, line("Hi", "assistant")]))
    agent = resumed(Path("old.jsonl"), reply("Again."))
    assert agent.messages == [json.loads(HI), json.loads(SAID)]
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


# ---- calls without results ----


def broken_off():
    """A transcript that ends before the results of its three calls."""
    calls = reply("I look.", calls=[READ, TASK, ("compact", {})])["content"]
    told = line(reply(LONG)["content"], "assistant")
    lines = HI, told, HI, line(calls, "assistant")
    Path("broken.jsonl").write_bytes(b"\n".join(lines))
    return Path("broken.jsonl")


def test_of_a_block_only_the_keys_of_the_api_are_loaded(resumed):
    """A gateway's own keys would be rejected by the next, strict provider."""
    own = {"annotations": [], "extra_content": {"google": {"x": "y"}}, "index": 0}
    text = {"type": "text", "text": "Hi", **own}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s", **own}
    lines = (
        HI,
        line([thought, text, json.loads(a_call(**own))["content"][0]], "assistant"),
    )
    lines += a_result(**own), line([text], "assistant")
    Path("foreign.jsonl").write_bytes(b"\n".join([*lines, b""]))
    agent = resumed("foreign.jsonl", reply("Again."))
    assert not own.keys() & {*re.findall(r"'(\w+)':", str(agent.messages))}
    assert take_turn(agent, "Go on") == "Again."


def test_calls_without_results_are_answered_as_interrupted(resumed):
    agent = resumed(broken_off(), reply("Again."))
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)
    answers = results(*agent.messages)
    assert [answer["is_error"] for answer in answers] == [True] * 3
    assert all("nterrupted" in answer["content"] for answer in answers)


def test_a_conversation_that_broke_off_can_be_compacted_right_away(resumed):
    agent = resumed(broken_off(), SUMMARY, reply("Again."))
    program.run_command(agent, "/compact")
    assert layers(agent)[-1] == "compact" and "All is well." in str(agent.messages)
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


# ---- a transcript of an earlier version ----


def test_an_earlier_versions_transcript_goes_on_from_the_command_line(run, api):
    path = earlier_transcript()
    api.enqueue(reply("Searched."))
    assert run("--resume", "-p", "Go on.")[:2] == (0, "Searched.\n")
    [request] = api.requests
    earlier = str(request["messages"])
    for kept in "index of what was removed", "[Stopped before", "<persisted-output>":
        assert kept in earlier
    assert [r["is_error"] for r in results(*request["messages"])[-2:]] == [True, True]
    assert path.read_bytes().startswith(EARLIER)


GIVEN = {"defaults": {}, "a small window": SMALL, "snipped": {"max_messages": 12}}


@pytest.mark.parametrize("limits", GIVEN.values(), ids=GIVEN)
def test_an_earlier_versions_transcript_can_be_compacted_again(resumed, limits):
    client = StubClient(always=any_answer)
    agent = resumed(earlier_transcript(), client=client, **limits)
    assert turns(agent, "Go on.", "And then?") == ["Fine."] * 2
    program.run_command(agent, "/compact")
    assert layers(agent)[-1] == "compact" and on_disk(agent)
    assert turns(agent, "And now?") == ["Fine."] and on_disk(agent)


def test_an_earlier_versions_index_keeps_its_names_and_places(resumed):
    agent = resumed(earlier_transcript(), client=StubClient(always=any_answer))
    turns(agent, "Go on.")
    program.run_command(agent, "/compact")
    [note] = [m for m in agent.messages if "index of what was" in program.text_of(m)]
    [line] = re.findall("(?m)^warehouse/stock.py: .*", texts(note)[-1])
    names = "LOW_STOCK_LIMIT reorder_report UnknownItem level_of"
    assert {*names.split()} <= {*line.split()}


# ---- links and folders that a cloned project has in place of our files ----

PRIVATE = b'{"role": "user", "content": "a private file"}\n'
NOT_REGULAR = ["../mine", "/dev/zero", "../missing", "folder"]


def replace_file(path, what):
    """Put a folder at this path, or a link; of the targets only "../mine" is a file."""
    Path("../mine").write_bytes(PRIVATE)
    FOLDER.mkdir(exist_ok=True)
    path.touch()
    turn_into(path, Path(what).absolute() if "/" in what else what)
    os.utime(path, (2e9, 2e9), follow_symlinks=False)


def untouched():
    """Tell whether nothing was written through the links."""
    return Path("../mine").read_bytes() == PRIVATE and not Path("../missing").exists()


@pytest.mark.parametrize("what", NOT_REGULAR)
def test_a_transcript_that_is_not_a_regular_file_is_named_and_the_rest_are_listed(
    make, resumed, what
):
    take_turn(agent := make(reply("Yes.")), "One")
    replace_file(path := FOLDER / "transcript_brought.jsonl", what)
    paths, [error] = listed()
    assert paths == [agent.transcript] and f"'{path}'" in error
    assert resumed(1).messages == agent.messages
    program.handle_line(other := make(), f"/resume {path}")
    [error] = shown(other, "error")
    assert str(path) in error and other.messages == [] and untouched()


@pytest.mark.parametrize("what", NOT_REGULAR)
def test_nothing_is_written_to_anything_but_a_regular_file(make, what):
    take_turn(agent := make(reply("Yes."), reply("Fine.")), "One")
    agent.transcript.unlink()
    for path in agent.transcript, program.HISTORY:
        replace_file(path, what)
        with pytest.raises(AgentError, match=f"cannot be written: .*{path.name}"):
            program.append(path, b"words")
    assert take_turn(agent, "Two") == "Fine." and on_disk(agent) and untouched()


@pytest.mark.parametrize("what", NOT_REGULAR)
def test_a_saved_result_that_is_not_a_regular_file_is_replaced_or_rejected(make, what):
    path = program.save_result("text " * 999)
    replace_file(path, what)
    agent = make()
    given = {"path": str(path)}
    read = program.run_tool(agent, call("read_file", **given))
    assert read["is_error"] and "private" not in read["content"]
    if what == "folder":
        with pytest.raises(OSError, match="directory"):
            program.save_result("text " * 999)
        path.rmdir()
    assert program.save_result("text " * 999).read_text() == "text " * 999
    assert not path.is_symlink() and untouched()


# ---- full disks, and folders that cannot be written ----


FILE_SIZES = resource.getrlimit(resource.RLIMIT_FSIZE)


def fill_disk(path=None, room=0):
    """Let no file grow except `path`, which has `room` bytes left."""
    size = path.stat().st_size + room if path else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, FILE_SIZES[1]))


def disk_error(agent, text):
    """The one clear error that ends a turn; afterwards the disk is free again."""
    try:
        return fails(agent, text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, FILE_SIZES)


def test_a_full_disk_is_one_clear_error_before_anything_is_sent(make):
    agent = make(reply("Hello."))
    fill_disk()
    assert "written" in disk_error(agent, "Hi")
    assert agent.client.requests == agent.messages == []
    assert take_turn(agent, "Hi again") == "Hello." and on_disk(agent)


@pytest.mark.parametrize("room", [0, 1, 20, 44])
def test_if_a_line_does_not_fit_a_new_file_gets_the_whole_conversation(make, room):
    take_turn(agent := make(reply("Hello."), reply("Fine.")), "Hi")
    path, before, written = agent.transcript, agent.messages, agent.transcript_bytes
    fill_disk(path, room)
    assert disk_error(agent, "This message does not fit")
    assert agent.messages == before and path.stat().st_size == written + room
    assert len(agent.client.requests) == 1 and load(path).messages == before
    assert take_turn(agent, "And now?") == "Fine." and on_disk(agent)
    assert (agent.transcript == path) is (room == 0)
    assert {*listed()[0]} == {path, agent.transcript}


LAST_REPLIES = {
    "at a reply": [reply("Hello.")],
    "at a reply with calls": [reply(calls=[READ, PLAN])],
    "at a summary": [reply(LONG, calls=[READ]), SUMMARY],
    "at a refusal": [reply(stop="refusal")],
}


@pytest.mark.parametrize("room", [0, 7])
@pytest.mark.parametrize("case", LAST_REPLIES)
def test_a_disk_that_fills_up_ends_the_turn_and_keeps_the_conversation(
    make, case, room
):
    *first, last = LAST_REPLIES[case]
    agent = make(*first, **SMALL)
    agent.client.enqueue(lambda request: fill_disk(agent.transcript, room) or last)
    assert disk_error(agent, "Work")
    assert on_disk(agent) and "Work" in str(agent.messages)
    agent.client.enqueue(*[SUMMARY] * (case == "at a summary"), reply("Fine."))
    assert take_turn(agent, "And now?") == "Fine." and on_disk(agent)


@pytest.mark.parametrize("what", [b"a file", "a link"])
@pytest.mark.parametrize("folder, written", [(FOLDER, 0), (RESULTS, 3)])
def test_a_file_or_a_link_in_place_of_our_folder_is_one_clear_error(
    make, folder, written, what, tmp_path
):
    agent = make(reply(calls=[BIG]), reply("Fine."), **SMALL)
    folder.touch()
    turn_into(folder, what if what == b"a file" else tmp_path)
    before = sorted(tmp_path.iterdir())
    program.handle_line(agent, "Work")
    [line] = shown(agent, "error")
    assert ("symbolic link" in line) == (what == "a link")
    assert len(agent.messages) == written and sorted(tmp_path.iterdir()) == before
    assert len(agent.client.requests) == bool(written)
    folder.unlink()
    assert take_turn(agent, "And now?") == "Fine."
    assert "9998\n9999" in outputs(*load(agent.transcript).messages)[0]


def test_a_read_only_folder_is_one_clear_error_before_anything_is_sent(make, workspace):
    agent, user = make(), os.geteuid()
    workspace.chmod(0o555)
    try:
        if user == 0:  # root may write anywhere
            os.seteuid(65_534)
        line = fails(agent, "Hi")
    finally:
        os.seteuid(user)
    assert "written" in line and agent.client.requests == agent.messages == []


def test_after_a_transcript_is_deleted_a_new_one_gets_the_whole_conversation(make):
    agent = make(reply(LONG), reply("The end."), SUMMARY)
    take_turn(agent, "Tell me a story")
    take_turn(agent, "And then?")
    (gone := agent.transcript).unlink()
    before = agent.messages
    compact_history(agent, "compact")
    assert layers(agent) == ["compact"] and not gone.exists()
    first, event = lines_of(agent.transcript)
    assert (first["event"], first["messages"]) == ("continued", before)
    assert event["messages"] == agent.messages and on_disk(agent)


def test_transcripts_in_a_linked_folder_are_not_listed(make):
    take_turn(make(reply("Hello.")), "Hi")
    Path(".transcripts").rename("elsewhere")
    Path(".transcripts").symlink_to("elsewhere")
    agent = make()
    assert [*program.conversations(agent)] == []
    assert "is a symbolic link" in shown(agent, "error")[0]
