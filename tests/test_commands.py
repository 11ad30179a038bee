"""The /commands."""

import io
import os
import re
from unittest.mock import Mock

import pytest
from builders import (
    BASH,
    SUMMARY,
    TASK,
    bash,
    did,
    history,
    on_disk,
    planned,
    put_on_disk,
    read,
    said,
    shown,
    sized,
    texts,
    turns,
    typed,
)
from pseudo import PATIENCE, PROMPT, Held
from stub import api_error, blocks, reply

import agent as program
from agent import format_event, resume, run_command


def test_compact_passes_the_focus_on_and_shows_a_row_for_each_section(user):
    lines = "\n".join(f"{n}. line" for n in range(1, 9))
    summary = reply(f"<analysis>a</analysis>\n<summary>\n{lines}\n</summary>")
    user.enqueue(reply("So it is. " * 2000), reply("Yes."), summary)
    user.say("what is it?", "So it is.")
    user.say("is it?", "Yes.")
    seen = user.say("/compact the names of the files")
    assert "the names of the files" in str(user.sent[-1]["content"])
    kept = r"kept: your 2 messages, the newest 2 messages; .*\n"
    lines = r"(  \d\. line\n){8}"
    assert re.search(rf" -> \S+ tokens\n{kept}{lines}{PROMPT}\Z", seen)
    assert b"\x1b[35m[compact]" in user.raw


LAST = {"": "new\n" * 99, "1": "new\n" * 99, "3": "[Previous: used bash]"}
LAST |= {"2": "old"} | dict.fromkeys("40", "This conversation has 3 tool results.")


@pytest.mark.parametrize("number", LAST)
def test_last_shows_the_whole_result(make, number):
    agent = make()
    run_command(agent, f"/last {number}")
    put_on_disk(agent, *did("[Previous: used bash]", "old"), *did("new\n" * 99))
    run_command(agent, f"/last {number}")
    none, last = shown(agent, "plain")
    assert (none, last) == ("This conversation has 0 tool results.", LAST[number])
    assert format_event("plain", LAST[number]) == LAST[number]


def test_last_shows_the_whole_text_of_a_preview_and_of_a_placeholder(make):
    agent, whole = make(clear_above=0, keep_recent=0, keep_tokens=0), "long\n" * 60_000
    forged, old = "[Previous: used bash, saved at .env]", "old\n" * 99
    put_on_disk(agent, *history(did(forged), did(old), did(whole), said("So.")))
    program.layer_1(agent)
    assert len(str(agent.messages)) < 1_000
    for number, text in (1, whole), (2, old), (3, forged):
        assert program.result_from_end(agent, number) == text


@pytest.mark.parametrize("damage", [False, True])
def test_after_a_compaction_last_shows_what_came_last_and_no_file_read_again(
    make, damage
):
    agent, read_again = make(SUMMARY), read("notes.txt", "as it was read")
    put_on_disk(agent, *history(read_again, did("the output"), did(sized(3_000))))
    put_on_disk(agent, said("Done."))
    run_command(agent, "/compact")
    if damage:  # its length stays, so that no new file begins
        data = agent.transcript.read_bytes()
        agent.transcript.write_bytes(data.replace(b'{"role"', b'["role"', 1))
    assert "the output" not in str(agent.messages)
    found = [program.result_from_end(agent, number) for number in (1, 2, 3)]
    assert found == [sized(3_000), "the output", "as it was read"]


NINE = [
    f"{n}. {title}: said of it\n   1. one\n   2. two\n   3. three"
    for n, title in enumerate(["Request", "Concepts", "Files", "Errors", "Findings"], 1)
] + [f"{n}. and so on" for n in range(6, 10)]
FORMS = {  # of a summary's sections: how each is written, and its rows' beginnings
    "plain": ("{}", "1. Req"),
    "bold": ("**{}**", "**1. R"),
    "headings": ("## {}", "## 1. "),
}


@pytest.mark.parametrize("form, start", FORMS.values(), ids=FORMS)
def test_the_receipt_has_a_row_for_each_section(make, form, start):
    sections = [form.format(section.replace("\n", "\n\n", 1)) for section in NINE]
    rows = program.outline("\n".join(sections))
    assert len(rows) == 9 and rows[0].startswith(start)
    assert all(f"{n}. " in row[:6] for n, row in enumerate(rows, 1))
    assert "1. one" in rows[4] and "3. three" in rows[4]


def test_a_summary_without_numbers_is_shown_by_its_first_lines():
    summary = "\n".join(f"- line {n}" for n in range(1, 10))
    assert program.outline(summary) == summary.split("\n")[:5]


def test_last_summary_shows_it_with_its_index_even_after_resume(make):
    agent = make(SUMMARY)
    run_command(agent, "/last summary")
    work = did("one_name", given={"command": "pytest -q tests/test_a.py"})
    put_on_disk(agent, *history(work, did(sized(3_000)), said("Done.")))
    run_command(agent, "/compact")
    run_command(agent, "/last summary")
    again = make()
    program.resume(again, str(agent.transcript))
    run_command(again, "/last summary")
    none, first = shown(agent, "plain")
    assert (none, first) == ("There's no summary yet.", shown(again, "plain")[-1])
    assert "All is well." in first and "\n$ pytest -q tests/test_a.py" in first


def test_last_summary_says_if_it_was_cut(make):
    long = reply(f"<summary>{sized(9_000)}</summary>")
    agent = make(long, long, context_window=16_000)
    put_on_disk(agent, *history(*(did(sized(3_000)) for _ in range(8)), said("So.")))
    run_command(agent, "/compact")
    run_command(agent, "/last summary")
    assert re.search(r"\[at least [\d,]+ bytes are left", shown(agent, "plain")[-1])


def test_context_shows_what_fills_the_window_and_what_was_sent(make):
    agent = make(reply("Let me see.", calls=[TASK]), reply("2."), reply("Two."))
    turns(agent, "How many?")
    *rows, whole, sent, where, free = program.context_table(agent).split("\n")
    parts = {row[:20].strip(): int(row[20:].replace(",", "")) for row in rows}
    names = ["system prompt", "tools", "your messages", "replies and calls"]
    assert [*parts] == [*names, "results and notes"] and min(parts.values()) > 0
    total, bill = program.context_tokens(agent), agent.usage
    assert whole == f"{'total':<20}{total:>9,}, summary at 167,000"
    assert 0 <= total - sum(parts.values()) < len(parts)
    share = f"{bill['read'] / bill['sent']:.0%}"
    assert (
        sent
        == f"sent since the program started: {bill['sent']:,} tokens, {share} cached"
    )
    assert where == f"transcript: {agent.transcript}" and free.endswith(": nothing")


@pytest.mark.parametrize("argv, free", [([], "nothing"), (["--yes"], "everything")])
def test_context_needs_no_request_and_shows_the_yes_flag(run, api, argv, free):
    out = run(*argv, stdin="/context\n")[1]
    assert re.search(r"(?s)\nsystem prompt +\d.*\ntotal +\d", out)
    assert f"\nruns without asking: {free}\n" in out
    assert api.requests == []


def test_yes_switches_approvals_off_and_on_and_context_shows_it(user):
    command = bash("touch file")
    user.enqueue(command, reply("So."), command, reply("So."))
    user.say("/yes", "[yes] tools run without asking until you type /yes again\n")
    user.say("/context", "\nruns without asking: everything\n")
    user.say("touch it", "touch file\n", "So.")
    assert (user.folder / "file").exists()
    user.say("/yes", "[yes] tools ask for approval until you type /yes again\n")
    user.say("/context", "\nruns without asking: nothing\n")
    user.ask("again")
    user.say("y", "So.")


def test_a_file_cannot_switch_approvals_off(run, api):
    out = run(stdin="/yes\n/context\n")[1]
    assert "Unknown command /yes" in out and "runs without asking: nothing" in out
    assert api.requests == []


@pytest.fixture
def own(monkeypatch):
    """own(agent, line): the user types a !command at a terminal."""
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    return program.handle_line


def ran(command, output, end="exit status 0"):
    """The note that a !command leaves."""
    output = f"<output>\n{output}\n</output>\n({end})"
    return program.note(f"[The user ran this command: {command}]\n{output}")


def sent_texts(user):
    """The texts of the user's messages in the newest request, notes included."""
    asked = [message for message in user.sent if message["role"] == "user"]
    return [
        block["text"]
        for m in asked
        for block in blocks(m["content"])
        if "text" in block
    ]


def test_an_own_command_runs_at_once_and_the_model_sees_it_with_the_next_prompt(user):
    user.enqueue(reply("First."), reply("Seven."))
    user.say("begin", "First.")
    shown = user.say("!seq 7; echo $HOME | wc -l", "1\n2\n3\n4\n5\n6\n7\n1\n")
    assert "more lines" not in shown and len(user.requests) == 1
    user.say("how many?", "Seven.")
    note = ran("seq 7; echo $HOME | wc -l", "1\n2\n3\n4\n5\n6\n7\n1")
    assert sent_texts(user) == ["begin", *texts(note), "how many?"]


# messages before a !command, and which note follows it before the next prompt, if any
OPEN_CALL = did("ls")[:1]
BEFORE = [([], False), ([typed("a"), said("b")], False), ([typed("a")], True)]
BEFORE += [([typed("a"), *OPEN_CALL], True), ([typed("a"), *did("text")], True)]


@pytest.mark.parametrize("before, is_open", BEFORE)
def test_the_note_of_an_own_command_is_not_a_request(make, own, before, is_open):
    agent = make(reply("Fine."), messages=before)
    own(agent, "!echo hi")
    assert agent.messages[-1] == ran("echo hi", "hi") and on_disk(agent)
    assert program.in_progress(agent.messages) is is_open
    own(agent, "And now?")
    after = agent.messages[agent.messages.index(ran("echo hi", "hi")) + 1 :]
    marks = [program.note(program.UNANSWERED)] * is_open
    assert after == [*marks, typed("And now?"), said("Fine.")]


def test_after_an_own_command_the_last_answer_is_still_known(make, own):
    answer = f"The answer. {sized(1_000)}"
    agent = make(reply(sized(1_000)), reply(answer), SUMMARY)
    turns(agent, "Go.", "And?")
    own(agent, "!echo hi")
    resume(other := make(), str(agent.transcript))
    assert ("text", f"{answer}\n") in other.events
    assert "was answered" in str(shown(other, "layer"))
    assert not program.in_progress(agent.messages)
    own(agent, "/compact")
    assert "The answer. x" in str(agent.messages[-2:])


def test_of_a_long_output_of_an_own_command_start_and_end_are_shown_and_all_is_saved(
    make, own
):
    own(agent := make(), "!seq 30000")
    [seen] = shown(agent, "plain")
    assert seen.startswith("1\n2\n") and seen.endswith("29999\n30000")
    assert "bytes are left out here" in seen and len(seen) < 51_000
    [text] = texts(agent.messages[-1])
    assert len(text) < 4_000 and "saved at .task_outputs" in text


def test_an_own_command_shows_how_it_ended(make, own, monkeypatch):
    monkeypatch.setattr(program, "MAX_BYTES", 10_000)
    own(agent := make(), "!exit 3")
    assert shown(agent, "plain") == ["(no output, exit status 3)"]
    assert agent.messages == [ran("exit 3", "", "exit status 3")]
    own(agent, "!seq 10000; sleep 60")
    assert "\n(too much output)" in texts(agent.messages[-1])[0]
    own(agent, "!kill -KILL $$")
    assert "\n(exit status 137, Killed" in texts(agent.messages[-1])[0]


def test_ctrl_c_ends_an_own_command_and_keeps_what_it_printed(user):
    user.press("!echo up; sleep 600\n")
    user.see_below(" s: up")
    user.stop()
    user.enqueue(reply("So."))
    user.say("and?", "So.")
    note = ran("echo up; sleep 600", "up", "stopped by Ctrl-C")
    assert sent_texts(user) == [*texts(note), "and?"]


MESSAGES = [
    "\uff01重要：先写测试",
    " \uff01ls",
    "!!",
    "!! stop that",
    "!!ls",
    "\uff01\uff01",
]


@pytest.mark.parametrize("line", MESSAGES)
def test_only_one_ascii_exclamation_mark_runs_a_command(monkeypatch, line):
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    assert program.clean_line(line) == line.rstrip() and not program.is_command(line)
    assert program.is_command(program.clean_line(" !ls !!"))


# what nobody typed as a line of its own is text
NOT_OWN = [
    "see\n!touch file",
    "!touch file\n!touch more",
    "\x1b[200~!touch file\ra\x1b[201~",
]


@pytest.mark.parametrize("line", NOT_OWN, ids=ascii)
def test_a_paste_of_several_lines_never_runs_as_a_command(user, line):
    line = line.replace("\n", "\x16\n")  # Ctrl-V: a newline within the line
    user.enqueue(reply("I see."))
    user.say(line, "I see.")
    assert "!" in user.sent[-1]["content"] and not (user.folder / "file").exists()


def test_an_own_command_as_an_answer_never_runs_and_the_question_comes_again(user):
    user.enqueue(reply(calls=[BASH]), reply("So."))
    user.ask("go")
    user.say("!touch file", "Commands work at the prompt", end="instead:")
    user.say("n", "refused this call", "So.")
    assert not (user.folder / "file").exists() and "  | from bash" not in user.screen


def test_a_file_cannot_run_a_command(run, api):
    api.enqueue(reply("I see."))
    run(stdin="!touch file\n")
    assert api.requests[-1]["messages"] == [typed("!touch file")]
    assert not os.path.exists("file")


def test_an_own_command_typed_during_work_waits_for_the_prompt(user):
    held = Held(reply("So.", calls=[BASH]), events=4)
    user.enqueue(held, reply("Then."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("and\n!echo $((600*7))\n")
    user.see_below("2 queued: !echo")
    held.may.set()
    user.see_asked()
    user.say("y", "> and\n", "Then.", "\n> !echo $((600*7))\n", "4200\n")
    assert sent_texts(user)[-1] == "and"


def test_after_clear_context_says_since_when_it_counts_and_names_no_transcript(make):
    turns(agent := make(reply("Two.")), "How many?")
    run_command(agent, "/clear")
    table = program.context_table(agent)
    assert "\nsent since the program started: " in table and "transcript" not in table


CLOCK = {2.9: "2 s", 59.9: "59 s", 60: "1 min 0 s", 754: "12 min 34 s"}


@pytest.mark.parametrize("seconds", CLOCK)
def test_the_clock_counts_minutes(monkeypatch, seconds):
    monkeypatch.setattr(program.time, "monotonic", lambda: 9 + seconds)
    terminal = program.Terminal(io.StringIO(), live=True, since=9.0, waiting="bash")
    terminal.working.set()
    assert program.region(terminal) == [f"{CLOCK[seconds]}: bash"]


def test_a_paste_that_is_too_large_says_what_the_model_sees_and_where_the_rest_is(make):
    agent = make(reply("I see."))
    agent.system = {}
    program.take_turn(agent, "pasted\n" * 40_000)
    [line] = shown(agent, "layer")
    words = "texts saved in .task_outputs/tool-results: "
    assert line.startswith(f"[tool_result_budget] {words}")


def test_the_status_line_shows_the_context_relative_to_the_threshold():
    known = {"counted_messages": 1, "cached": 0.5, "messages": [typed("a")]}
    agent = program.Agent(limits=program.Limits(threshold=2_000), **known)
    for tokens, meter in (
        (4, ".........."),
        (1_000, "#####....."),
        (3_000, "##########"),
    ):
        agent.counted_tokens = tokens
        share = f"context {tokens:,} tokens, summary at 2,000, 50% cached"
        assert program.status_line(agent) == f"[{meter}] {share}"


def conversation(make, changed, *words):
    """Hold a conversation; return its transcript, with this time of its last change."""
    agent = make(*[reply(f"To {word}.") for word in words])
    turns(agent, *words)
    os.utime(agent.transcript, (changed, changed))
    return agent.transcript


def test_resume_lists_each_conversation_as_soon_as_it_is_read(make, monkeypatch):
    agent, load = make(), program.load
    monkeypatch.setenv("COLUMNS", "82")
    run_command(agent, "/resume")
    conversation(make, 3e8, "one " * 20, "and", "so\non")
    conversation(make, 2e8, "word " * 20)
    program.commit(other := make(), typed("alone"))
    os.utime(other.transcript, (1e8, 1e8))
    monkeypatch.setattr(program, "load", lambda p: agent.emit("read", "") or load(p))
    run_command(agent, "/resume")
    lines = [format_event("listed", text) for text in shown(agent, "listed")]
    lines = [re.sub(r"\d{4}(-\d\d){2} \d\d:\d\d", "DATE", line) for line in lines]
    assert lines[0] == f"1. DATE, 6 messages: {'one ' * 6}o … so on"
    assert re.fullmatch("2. DATE, 2 messages: (word ){6,}w.*…", lines[1])
    assert lines[2] == "3. DATE, 1 message: alone"
    none, hint = "No conversations yet.", "/resume NUMBER continues one."
    assert shown(agent, "plain") == [none, hint]
    styles = [style for style, _ in agent.events]
    assert styles == ["plain", *["read", "listed"] * 3, "plain"]


def test_resume_shows_the_last_exchange_and_whether_it_was_answered(make):
    path = conversation(make, 9, "old", "new")
    resume(agent := make(), "1")
    resumed = ("layer", f"[resume] {path}: the last request was answered")
    meter = ("note", program.status_line(agent))
    assert agent.events == [resumed, ("plain", "\n> new"), ("text", "To new.\n"), meter]
    for message in typed("Delete it."), program.note(program.UNANSWERED):
        program.commit(agent, message)
    resume(other := make(), str(agent.transcript))
    was, words, advice = shown(other)  # without the note that it was stopped
    assert (was[-19:], words) == (" isn't answered yet", "\n> Delete it.")
    assert advice == f'{program.status_line(other)}\nType "go on" to continue it.'


@pytest.mark.parametrize("is_running", [False, True])
def test_resume_shows_the_plan_and_the_last_call_of_work_cut_off(make, is_running):
    agent = make()
    last = did("tests failed", given={"command": "pytest -q"})
    plan = [*planned("[x] find", "[ ] fix"), *planned("[>] fix", is_error=True)]
    work = history(plan, last[: 2 - is_running])
    for message in work:
        program.commit(agent, message)
    resume(other := make(), "1")
    [_, _, call, tool, plan, advice] = other.events
    assert tool == ("tool", "[todo_write]")
    assert (call, plan) == (("tool", "[bash] pytest -q"), ("plan", "[x] find\n[ ] fix"))
    assert advice[1].endswith('\nType "go on" to continue it.')


def test_resume_shows_no_call_of_an_earlier_request_and_no_finished_plan(make):
    agent = make()
    for message in history(planned("[x] find", "[x] fix"), did("ok"), said("Done.")):
        program.commit(agent, message)
    program.commit(agent, typed("Now the other one."))
    resume(other := make(), "1")
    assert [style for style, _ in other.events] == ["layer", "plain", "note"]


def test_resume_says_how_many_conversations_it_does_not_list(make, monkeypatch):
    monkeypatch.setattr(program, "MAX_LISTED", 2)
    for number in range(5):
        conversation(make, number, f"word {number}")
    run_command(agent := make(), "/resume")
    assert [text[:2] for text in shown(agent, "listed")] == ["1.", "2."]
    assert shown(agent, "plain") == ["(3 more)\n/resume NUMBER continues one."]


def test_the_resume_flag_accepts_the_same_arguments_as_the_command(run, api, make):
    paths = [conversation(make, 9, "older"), conversation(make, 1e10, "newer")]
    for argv, words in (
        (["--resume", str(paths[0])], "older"),
        (["-r", "2"], "older"),
        (["--resume"], "newer"),
    ):
        api.enqueue(reply("Gone on."))
        assert run("-p", "and?", *argv)[1] == "Gone on.\n"
        assert api.requests[-1]["messages"][0] == typed(words)


@pytest.mark.parametrize("which", ["1", "9", "absent.jsonl"])
def test_a_conversation_that_is_missing_is_said_to_be_missing_in_this_folder(
    make, workspace, monkeypatch, which
):
    conversation(make, 9, "older")
    (workspace / "below").mkdir()
    monkeypatch.chdir(workspace / "below")
    with pytest.raises(
        program.AgentError, match=f"{which} in this folder; give a file"
    ):
        run_command(make(), f"/resume {which}")


@pytest.mark.parametrize("flag", ["-c", "--continue"])
@pytest.mark.parametrize("prompt", ["what did I say?", "2", "", "file.jsonl"])
def test_continue_takes_the_newest_conversation_and_what_follows_is_the_prompt(
    run, api, make, flag, prompt
):
    conversation(make, 9, "older")
    conversation(make, 1e10, "newer")
    api.enqueue(reply("Gone on."))
    assert run("-p", flag, *filter(None, [prompt]), stdin="and?")[1] == "Gone on.\n"
    first, _, *asked = api.requests[-1]["messages"]
    assert first == typed("newer") and asked[-1] == typed(prompt or "and?")


WRONG_COMMANDS = ["/nonsense", "/hlep", "/compct the names", "/exit now", "/last two"]
WRONG_COMMANDS += ["/clear the cache, please", "/quit smoking", "/help me"]
WRONG_COMMANDS += ["/add-dir ..", "/-", "!"]
PROSE = ["/etc/hosts: what is it?", "/home is full, why?", "/usr/", "/tmp", "/"]


@pytest.mark.parametrize(
    "line", [*WRONG_COMMANDS, *PROSE, "exit the loop early", "quit it"]
)
def test_a_mistyped_command_is_an_error_but_a_path_or_prose_is_sent(
    make, line, monkeypatch
):
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    program.handle_line(
        agent := make(*[reply("I see.")] * (line not in WRONG_COMMANDS)), line
    )
    assert ("Unknown command" in str(shown(agent, "error"))) is (line in WRONG_COMMANDS)
    assert (agent.client.requests == []) is (line in WRONG_COMMANDS)


# --- Errors, and what to do about them ---


def test_after_results_are_removed_only_the_request_is_said_to_be_kept(make):
    agent = make(reply(calls=[BASH]), reply(stop="refusal"))
    program.handle_line(agent, "Look.")
    assert agent.messages == [typed("Look.")]
    kept = 'Your request is kept: when ready, type "go on".'
    assert shown(agent, "note") == [kept]


def test_ctrl_c_in_an_answer_says_that_it_was_discarded(user):
    held = Held(reply("Half an answer, and half."), events=4)
    user.enqueue(held)
    user.press("first\n")
    user.see_below("Half")
    user.stop()
    held.may.set()
    assert "\nstopped; the unfinished answer was discarded\n" in user.screen


# an error of the API, and whether "go on" helps without a restart
API_ERRORS = [(401, "no such key", False), (403, "not allowed", False)]
API_ERRORS += [(404, "no such model", False), (400, "Your credit is used up", True)]
API_ERRORS += [(402, "Insufficient Balance", True), (403, "Check your billing", True)]


@pytest.mark.parametrize("status, text, helps", API_ERRORS)
def test_going_on_is_advised_unless_a_setting_has_to_change(make, status, text, helps):
    agent = make(api_error(status, text))
    assert not program.handle_line(agent, "Look.")
    assert ("go on" in str(shown(agent, "note"))) is helps
    assert ("--resume" in str(shown(agent, "error"))) is not helps
    assert ("/clear" in str(agent.events)) is (text == "not allowed")
    assert agent.messages == [typed("Look.")]
