"""The transcript: what is on disk, and what comes back from there."""

import json
import os
import resource
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from builders import (
    BASH,
    LONG,
    PLAN,
    READ,
    SMALL,
    SUMMARY,
    TASK,
    fails,
    lines_of,
    on_disk,
    one_line,
    outputs,
    results,
    typed,
)
from stub import reply

import agent as program
from agent import (
    AgentError,
    commit,
    compact_history,
    context_tokens,
    drop_thinking,
    load,
    remember,
    resume,
    take_turn,
)

FOLDER = Path(".transcripts")
pytestmark = pytest.mark.usefixtures("notes")


def work(*more):
    """Replies that call tools, with thinking, and end a turn."""
    return reply("I look.", calls=[READ, BASH, *more], thinking="hm"), reply("Done.")


def lines(agent):
    """The lines of its transcript, each parsed by itself."""
    return lines_of(agent.transcript)


def leave(agent):
    """What is left of an agent whose process has ended: its transcript."""
    agent.log.close()
    return agent.transcript


@pytest.fixture
def again(make):
    """again(path or None, *replies): an agent that took up a conversation."""

    def build(path, *replies, **fields):
        agent = make(*replies, **fields)
        resume(agent, path)
        return agent

    return build


# ---- what is written ----


def test_every_line_is_the_message_in_memory(make):
    agent = make(*work())
    take_turn(agent, "Work")
    assert lines(agent) == agent.messages and len(agent.messages) == 4


def test_at_each_request_the_file_is_already_the_conversation(make):
    agent, seen = make(**SMALL), []

    def checked(given):
        return lambda request: seen.append(on_disk(agent)) or given

    compacting = reply(calls=[PLAN, ("compact", {"focus": "notes"})], thinking="so")
    cut = reply("Half", calls=[READ], stop="max_tokens")
    story = reply(LONG, calls=[READ, BASH])
    agent.client.enqueue(*map(checked, [*work(TASK)[:1], reply("Its."), compacting]))
    agent.client.enqueue(*map(checked, [SUMMARY, cut, story, SUMMARY, reply("Done.")]))
    assert take_turn(agent, "Work") == "Done."
    assert seen == [True] * 8 and on_disk(agent)


def test_a_file_is_for_the_user_alone_and_so_is_the_folder(make):
    mask = os.umask(0)
    try:
        agent = make(reply(calls=[TASK]), reply("Its."), reply("Done."))
        take_turn(agent, "Work")
    finally:
        os.umask(mask)
    files = [stat.S_IMODE(p.stat().st_mode) for p in FOLDER.glob("*.jsonl")]
    assert files == [0o600, 0o600] and stat.S_IMODE(FOLDER.stat().st_mode) == 0o700


def test_a_folder_that_was_open_to_all_is_closed(make):
    FOLDER.mkdir(mode=0o755)
    take_turn(make(reply("Hello.")), "Hi")
    assert stat.S_IMODE(FOLDER.stat().st_mode) == 0o700


@pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
def test_git_sees_nothing_of_the_records_but_their_gitignore(make):
    agent = make(reply(calls=[("bash", {"command": "seq 9999"})]), reply("Done."))
    agent.threshold = 12_000
    take_turn(agent, "Work")
    assert list(Path(".task_outputs").rglob("*.txt")) and list(FOLDER.glob("*.jsonl"))
    subprocess.run(["git", "init", "-q"], check=True)
    listing = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    records = {name for name in seen.splitlines() if name.startswith(".")}
    assert records == {".transcripts/.gitignore", ".task_outputs/.gitignore"}


def test_names_are_unique_within_a_second(make):
    agents = [make(reply("Hello.")) for _ in range(30)]
    for agent in agents:
        take_turn(agent, "Hi")
    assert len({agent.transcript for agent in agents}) == 30
    assert all(agent.transcript.is_relative_to(FOLDER) for agent in agents)
    assert len(list(FOLDER.glob("transcript_*.jsonl"))) == 30


TEXTS = {
    "japanese": "日本語のメモ",
    "emoji": "\U0001f642 and e\u0301",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "line ends": "a\nb\r\nc\rd",
    "quotes and escapes": '"\\"\\n\\u2028 \\ud800',
    "control characters": "\0\x01\x1b[31m\x7f",
    "right to left": "\u202eabc\u202c",
}


@pytest.mark.parametrize("case", TEXTS)
def test_any_text_comes_back_as_it_was(make, case):
    agent = make(reply(TEXTS[case], calls=[PLAN]), reply("Done."))
    take_turn(agent, TEXTS[case])
    assert len(lines(agent)) == 4 and on_disk(agent)
    if case in ("japanese", "emoji"):  # not escaped, so that it can be searched
        assert TEXTS[case].encode() in agent.transcript.read_bytes()
    typed, answered = load(agent.transcript)[:2]
    assert typed["content"] == answered["content"][0]["text"] == TEXTS[case]


def test_lone_surrogates_are_replaced_wherever_they_come_from(make):
    printed = ("bash", {"command": "printf 'a\\355\\240\\200b'"})
    agent = make(reply("\ud83d alone", calls=[printed]), reply("\udc00"))
    take_turn(agent, "typed \ud800 here")
    agent.transcript.read_bytes().decode("utf-8", "strict")
    json.dumps(agent.messages, ensure_ascii=False).encode("utf-8", "strict")
    assert lines(agent) == agent.messages and on_disk(agent)


def compactions(agent):
    return [line for line in lines(agent) if "event" in line]


def test_a_compaction_is_one_line_with_what_replaced_the_history(make):
    agent = make(reply(LONG), SUMMARY, reply("Done."), **SMALL)
    take_turn(agent, "Tell me a story")
    take_turn(agent, "Go on")
    [event] = compactions(agent)
    assert event["event"] == "auto_compact" and event["before"] > event["after"] > 0
    assert event["messages"] == agent.messages[: len(event["messages"])]
    assert len(lines(agent)) == 5 and LONG in lines(agent)[1]["content"][0]["text"]


def test_a_snip_is_one_line_too(make):
    agent = make(*[reply(f"Answer {n}") for n in range(6)], max_messages=10)
    for number in range(6):
        take_turn(agent, f"Question {number}")
    assert [event["event"] for event in compactions(agent)] == ["snip_compact"]
    assert on_disk(agent) and len(agent.messages) < 10


def test_what_layer_1_clears_stays_whole_on_disk_and_writes_no_line(make):
    replies = [reply(calls=[READ], thinking="hm") for _ in range(6)]
    agent = make(*replies, reply("Done."), min_savings=0)
    take_turn(agent, "Work")
    assert "[Previous: used read_file]" in str(agent.messages)
    assert compactions(agent) == [] and len(lines(agent)) == 14
    whole = outputs(*load(agent.transcript))
    assert len(whole) == 6 and all(text.count("the notes") == 200 for text in whole)


def test_what_the_budget_cuts_stays_whole_on_disk(make):
    agent = make(reply(calls=[("bash", {"command": "seq 9999"})]), reply("Done."))
    agent.threshold = 12_000
    take_turn(agent, "Work")
    assert "<persisted-output>" in str(agent.messages) and compactions(agent) == []
    assert "9998\n9999" in outputs(*load(agent.transcript))[0]


# ---- taking up a conversation ----


def test_a_conversation_is_taken_up_and_written_on_in_the_same_file(make, again):
    take_turn(first := make(*work()), "Work")
    path = leave(first)
    agent = again(None, reply("Again."))
    assert agent.messages == drop_thinking(first.messages) and agent.transcript == path
    assert take_turn(agent, "Go on") == "Again."
    assert len(lines(agent)) == 6 and on_disk(agent)
    assert [p.name for p in FOLDER.glob("*.jsonl")] == [path.name]


def test_what_comes_back_is_without_thinking(make, again):
    take_turn(first := make(*work()), "Work")
    assert "thinking" in str(first.messages)
    agent = again(leave(first), reply("Again.", thinking="new"))
    assert "thinking" not in str(agent.messages)
    take_turn(agent, "Go on")
    assert "new" in str(agent.messages)


def test_a_reply_of_nothing_but_thinking_is_not_left_empty(make):
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    agent = make()
    for content in ["Hi"], [[thought]], ["Go on"]:
        role = "user" if type(content[0]) is str else "assistant"
        commit(agent, {"role": role, "content": content[0]})
    assert [m["content"] for m in load(leave(agent))] == ["Hi", "Go on"]


def test_a_compacted_conversation_comes_back_compacted(make, again):
    take_turn(first := make(reply(LONG)), "Tell me a story")
    first.client.enqueue(SUMMARY)
    assert compact_history(first, "compact", by_hand=True)
    agent = again(leave(first), reply("Fine."))
    assert agent.messages == first.messages and len(agent.messages) == 1
    assert context_tokens(agent) == context_tokens(first)
    assert take_turn(agent, "Go on") == "Fine." and on_disk(agent)


@pytest.mark.parametrize("compacted", [False, True])
def test_todos_files_and_words_come_back(make, again, compacted):
    first = make(reply(LONG, calls=[PLAN, READ]), reply("Done."), SUMMARY)
    take_turn(first, "Read the notes")
    if compacted:
        assert compact_history(first, "compact", by_hand=True)
    memory = remember(again(leave(first)).messages)
    assert memory["words"] == ["Read the notes"] and memory["files"] == ["notes.txt"]
    assert "[ ] go on" in memory["todos"]


def test_the_newest_conversation_is_taken_up_by_default(make, again):
    paths = []
    for number in range(3):
        take_turn(agent := make(reply("Yes.")), f"Conversation {number}")
        os.utime(leave(agent), (10 + number, 10 + number))
        paths.append(agent.transcript)
    os.utime(paths[1], (99, 99))
    assert again(None).messages[0]["content"] == "Conversation 1"


def test_the_newest_conversation_is_not_a_subagents(make, again):
    agent = make(reply(calls=[TASK]), reply("Its."), reply("Done."))
    take_turn(agent, "Work")
    [its] = FOLDER.glob("task_*.jsonl")
    os.utime(leave(agent), (10, 10))
    os.utime(its, (99, 99))
    assert again(None).messages[0]["content"] == "Work"


def test_a_subagents_transcript_can_be_taken_up_by_name(make, again):
    take_turn(make(reply(calls=[TASK]), reply("Its."), reply("Done.")), "Work")
    [its] = FOLDER.glob("task_*.jsonl")
    agent = again(its, reply("Again."))
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


@pytest.mark.parametrize("path", [None, Path("missing.jsonl"), Path(".")])
def test_no_such_transcript_is_one_clear_line(make, path):
    with pytest.raises(AgentError) as error:
        resume(make(), path)
    assert "transcript" in one_line(error)
    assert not Path("missing.jsonl").exists()


NOT_OURS = {
    "a text": b"some notes\nof mine\n",
    "a line without end": b"the only line of some notes",
    "json without end": b'{"name": "a configuration"}',
    "a list without end": b"[1, 2, 3]",
    "no text": b"\x89PNG\r\n\x1a\n\0\0",
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_a_file_that_is_no_transcript_is_refused_and_left_as_it_is(make, case):
    Path("mine").write_bytes(NOT_OURS[case])
    with pytest.raises(AgentError):
        resume(make(), Path("mine"))
    assert Path("mine").read_bytes() == NOT_OURS[case]


@pytest.mark.parametrize("written", [b"", b'{"role": "us', b'{"role": "user"'])
def test_a_first_line_that_was_never_finished_is_an_empty_conversation(
    make, again, written
):
    FOLDER.mkdir()
    path = FOLDER / "transcript_1.jsonl"
    path.write_bytes(written)
    agent = again(None, reply("Hello."))
    assert agent.messages == [] and path.read_bytes() == b""
    assert take_turn(agent, "Hi") == "Hello." and on_disk(agent)


def test_an_empty_transcript_comes_back_when_a_first_message_was_taken_back(
    make, again
):
    fails(first := make(reply(stop="refusal")), "Something forbidden")
    agent = again(leave(first), reply("Hello."))
    assert agent.messages == [] and take_turn(agent, "Hi") == "Hello."


# ---- torn and damaged files ----

NEXT = json.dumps(typed("日本語 and more"), ensure_ascii=False)
TORN = NEXT.encode()


@pytest.mark.parametrize("length", range(1, len(TORN) + 1))
def test_a_torn_last_line_is_cut_off_from_the_file_too(make, again, length):
    take_turn(first := make(reply("Hello.")), "Hi")
    path = leave(first)
    whole = path.read_bytes()
    path.write_bytes(whole + TORN[:length])
    agent = again(path, reply("Again."))
    assert agent.messages == first.messages and path.read_bytes() == whole
    take_turn(agent, "Go on")
    assert len(lines(agent)) == 4 and on_disk(agent)


GOOD = b'{"role": "user", "content": "Hi"}'
DAMAGE = {
    "nothing": b"",
    "spaces": b"  ",
    "no JSON": b"not json",
    "half a line": GOOD[:20],
    "two lines glued": GOOD + GOOD,
    "a torn line glued to the next": GOOD[:20] + GOOD,
    "no UTF-8": b'{"role": "user", "content": "\xff"}',
    "zeros": b"\0" * 40,
    "a number": b"5",
    "null": b"null",
    "a text": b'"event"',
    "a list": b'["event"]',
    "no role": b'{"content": "Hi"}',
    "no content": b'{"role": "user"}',
    "an event without messages": b'{"event": "compact"}',
    "an event with a text": b'{"event": "compact", "messages": "none"}',
    "an event with numbers": b'{"event": "compact", "messages": [5]}',
    "a block that is none": b'{"role": "user", "content": [5]}',
    "an empty content": b'{"role": "user", "content": []}',
    "an empty text": b'{"role": "user", "content": ""}',
}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_line_is_named_and_the_file_left_as_it_is(make, case, number):
    path = Path("damaged.jsonl")
    damaged = [GOOD] * 3
    damaged[number - 1] = DAMAGE[case]
    path.write_bytes(b"\n".join(damaged) + b"\n" + TORN[:9])
    before = path.read_bytes()
    with pytest.raises(AgentError, match=rf"line {number}\b") as error:
        resume(make(), path)
    assert one_line(error) and path.read_bytes() == before


def test_results_without_their_call_are_a_damaged_line(make):
    result = {"type": "tool_result", "tool_use_id": "toolu_gone", "content": "a"}
    orphan = json.dumps({"role": "user", "content": [result]}).encode()
    Path("damaged.jsonl").write_bytes(b"\n".join([GOOD, orphan, GOOD, b""]))
    with pytest.raises(AgentError, match=r"line 2\b"):
        resume(make(), Path("damaged.jsonl"))


# ---- calls without results ----


@pytest.fixture
def broken_off(make):
    """broken_off(*calls): the transcript of an agent that ended before the results."""

    def build(*calls):
        agent = make(reply(LONG, calls=calls, thinking="hm"), *[reply("Done.")] * 2)
        take_turn(agent, "Work")
        path = leave(agent)
        path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:2]))
        return path

    return build


@pytest.mark.parametrize("calls", [[READ], [READ, BASH, TASK]])
def test_calls_without_results_get_interrupted_ones(broken_off, again, calls):
    agent = again(broken_off(*calls), reply("Again."))
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)
    answers = results(*agent.messages)
    assert [answer["is_error"] for answer in answers] == [True] * len(calls)
    assert all("nterrupted" in answer["content"] for answer in answers)


def test_a_conversation_that_broke_off_can_be_compacted_at_once(broken_off, again):
    agent = again(broken_off(READ, BASH), SUMMARY, reply("Again."))
    assert compact_history(agent, "compact", by_hand=True)
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


def test_a_conversation_that_broke_off_again_is_still_valid(broken_off, again):
    path = broken_off(READ)
    leave(again(path))
    agent = again(path, lambda request: KeyboardInterrupt(), reply("Again."))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Go on")
    leave(agent)
    agent = again(path, reply("Again."))
    assert take_turn(agent, "Now?") == "Again." and len(results(*agent.messages)) == 1


def test_a_compaction_that_was_asked_for_and_did_not_come_is_no_trouble(
    broken_off, again
):
    agent = again(broken_off(("compact", {"focus": "notes"})), reply("Again."))
    assert take_turn(agent, "Go on") == "Again." and on_disk(agent)


# ---- several agents ----


def test_a_transcript_in_use_cannot_be_taken_up(make):
    take_turn(first := make(reply("Hello."), *work()), "Hi")
    before = first.transcript.read_bytes()
    for path in None, first.transcript:
        with pytest.raises(AgentError, match="in use"):
            resume(make(), path)
    assert first.transcript.read_bytes() == before
    take_turn(first, "Work")
    assert lines(first) == first.messages and len(first.messages) == 6


def test_whoever_could_not_take_up_a_transcript_does_not_write_to_it(make):
    take_turn(first := make(reply("Hello.")), "Hi")
    second = make(reply("Hello."))
    with pytest.raises(AgentError, match="in use"):
        resume(second, None)
    before = first.transcript.read_bytes()
    take_turn(second, "Hi")
    assert first.transcript.read_bytes() == before


def test_what_its_agent_writes_while_it_is_taken_up_is_not_lost(make, monkeypatch):
    first, second = make(reply("Hello."), reply("Late.")), make()
    take_turn(first, "Hi")
    original = load

    def load_slowly(path):
        messages = original(path)
        if not first.log.closed:
            take_turn(first, "A last word")
            leave(first)
        return messages

    monkeypatch.setattr(program, "load", load_slowly)
    with suppress(AgentError):  # to be refused is as well
        resume(second, None)
    assert second.messages in ([], first.messages) and on_disk(first)


def test_a_transcript_is_free_again_when_its_agent_has_ended(make, again):
    take_turn(first := make(reply("Hello.")), "Hi")
    leave(first)
    assert again(None).messages == first.messages


def test_a_command_that_outlives_the_agent_does_not_hold_its_transcript(make, again):
    stays = ("bash", {"command": "setsid sleep 5 >/dev/null 2>&1 & echo $!"})
    take_turn(first := make(reply(calls=[stays]), reply("Done.")), "Work")
    leave(first)
    assert len(again(None).messages) == 4
    os.kill(int(outputs(*first.messages)[0]), 9)


# ---- a disk that is full, a folder that cannot be written ----


class Disk:
    """The disk, of which the tests can say how much room is left on it."""

    def __init__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, path=None, room=0):
        """Let no file grow, but for `path`, which has `room` bytes left."""
        size = path.stat().st_size + room if path else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self.limits[1]))

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.free()


@pytest.fixture
def refused(disk):
    """refused(agent, text): the one clear line that a turn ends with; frees the disk."""

    def turn(agent, text):
        try:
            with pytest.raises(AgentError) as error:
                take_turn(agent, text)
        finally:
            disk.free()
        return one_line(error)

    return turn


def test_a_full_disk_is_one_clear_line_before_anything_is_sent(make, disk, refused):
    agent = make(reply("Hello."))
    disk.fill()
    assert "written" in refused(agent, "Hi")
    assert agent.client.requests == agent.messages == []
    assert take_turn(agent, "Hi again") == "Hello." and on_disk(agent)


@pytest.mark.parametrize("room", [0, 1, 20, 44])
def test_a_line_without_room_leaves_nothing_to_be_glued_to(make, disk, refused, room):
    take_turn(agent := make(reply("Hello."), reply("Fine.")), "Hi")
    before, written = agent.messages, agent.transcript.read_bytes()
    disk.fill(agent.transcript, room)
    assert refused(agent, "There is no room for this message")
    assert agent.messages == before and agent.transcript.read_bytes() == written
    assert len(agent.client.requests) == 1
    assert take_turn(agent, "And now?") == "Fine." and lines(agent) == agent.messages


FILLED = {
    "at a reply": [reply("Hello.")],
    "at a reply with calls": [reply(calls=[READ, PLAN])],
    "at a summary": [reply(LONG, calls=[READ]), SUMMARY],
    "at a refusal": [reply(stop="refusal")],
}


@pytest.mark.parametrize("room", [0, 7])
@pytest.mark.parametrize("case", FILLED)
def test_a_disk_that_fills_up_ends_the_turn_and_keeps_the_conversation(
    make, disk, refused, case, room
):
    *first, last = FILLED[case]
    agent = make(*first, **SMALL)
    agent.client.enqueue(lambda request: disk.fill(agent.transcript, room) or last)
    assert refused(agent, "Work")
    assert on_disk(agent) and "Work" in str(agent.messages)
    agent.client.enqueue(*[SUMMARY] * (case == "at a summary"), reply("Fine."))
    assert take_turn(agent, "And now?") == "Fine." and on_disk(agent)


def test_results_without_room_are_answered_as_interrupted_later(make, disk, refused):
    agent = make(reply(calls=[READ, PLAN]), reply("Fine."))
    agent.emit = lambda kind, text: disk.fill() if kind == "tool" else None
    assert refused(agent, "Work")
    assert agent.messages[-1]["role"] == "assistant" and on_disk(agent)
    agent.emit = lambda kind, text: None
    assert take_turn(agent, "And now?") == "Fine."
    assert [answer["is_error"] for answer in results(*agent.messages)] == [True] * 2


BIG = ("bash", {"command": "seq 9999"})


def test_large_results_without_room_end_the_turn_in_one_clear_line(make, refused):
    agent = make(reply(calls=[BIG]), reply("Fine."), **SMALL)
    Path(".task_outputs").write_text("a file where the folder should be")
    assert refused(agent, "Work") and on_disk(agent)
    Path(".task_outputs").unlink()
    assert take_turn(agent, "And now?") == "Fine."
    assert "9998\n9999" in outputs(*load(agent.transcript))[0]


def test_a_folder_that_cannot_be_made_is_one_clear_line_before_anything_is_sent(
    make, refused
):
    FOLDER.write_text("a file where the folder should be")
    agent = make(reply("Hello."))
    assert refused(agent, "Hi") and agent.client.requests == []
    FOLDER.unlink()
    assert take_turn(agent, "Hi") == "Hello." and len(agent.messages) == 2


@pytest.fixture
def unprivileged():
    """Root may write anywhere, so a test of what one may not write is somebody else."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    yield
    if root:
        os.seteuid(0)


def test_a_read_only_folder_is_one_clear_line_before_anything_is_sent(
    make, refused, workspace, unprivileged
):
    agent = make(reply("Hello."))
    with suppress(PermissionError):  # it is root's, and so it is read-only already
        workspace.chmod(0o500)
    assert "written" in refused(agent, "Hi")
    assert agent.client.requests == agent.messages == []


def test_with_p_a_folder_that_cannot_be_written_is_one_line_and_status_1(run):
    FOLDER.write_text("a file where the folder should be")
    status, out, err = run("-p", "Hi")
    assert (status, out, err.count("\n")) == (1, "", 1) and ".transcripts" in err


def test_a_transcript_that_was_deleted_is_begun_anew_with_all_that_is_known(make):
    agent = make(reply("One."), reply("Two."))
    take_turn(agent, "First")
    agent.transcript.unlink()
    take_turn(agent, "Second")
    assert load(agent.transcript) == agent.messages and len(agent.messages) == 4


def test_a_folder_that_is_a_symbolic_link_is_not_written_to(make, tmp_path):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    FOLDER.symlink_to(elsewhere)
    assert "symbolic link" in fails(make(reply("Hello.")), "Hi")
    assert list(elsewhere.iterdir()) == []
