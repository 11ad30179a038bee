"""The program as a person meets it: on a real terminal, and in a pipe."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders import (
    BASH,
    LONG_TESTS,
    SUMMARY,
    TASK,
    did,
    lines_of,
    results,
    shown,
    texts,
    turn_into,
    turns,
    typed,
)
from pseudo import DRAWN, MARK, PATIENCE, PROMPT, Held, Person, below
from stub import api_error, reply, split

import agent as program
from agent import Terminal, laid_out, resume, run_command, show

HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end"  # title, clear, invert, reverse
RAW = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def bash(command):
    return reply(calls=[("bash", {"command": command})])


# --- Ctrl-C and leaving ---


def test_ctrl_c_at_an_empty_prompt_hints_at_the_way_out(person):
    while not select.select([person.keys], [], [], 0.2)[0]:
        person.press("\x03")  # Python misses one that comes as it begins to wait
    assert "Ctrl-D" in person.see(PROMPT)


def test_ctrl_c_keeps_what_a_command_had_written_as_it_was_seen(person):
    person.enqueue(bash(r"printf '\033[31mred 9%%\r100%%\n'; sleep 600"), reply("So."))
    person.say("wait", end="Run bash?")
    person.press("y\n")
    person.see_below(" s: 100%")
    person.stop()
    person.say("and now?", "So.")
    [result] = person.sent[2]["content"]
    assert result["is_error"] and result["content"].startswith("100%\n\nThe user inter")


def test_ctrl_c_while_the_model_answers_lets_the_next_message_go_on(person):
    held = Held(reply("Too late.", thinking="Hm."), events=4)
    person.enqueue(held, reply("In time."))
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.stop()
    held.may.set()
    person.say("second", "In time.")
    first, mark, second = person.sent
    assert (first, second) == (typed("first"), typed("second"))
    assert "Do not go on with it, unless\nthe user's next" in texts(mark)[0]


def test_ctrl_c_ever_so_often_leaves_the_prompt_and_no_traceback(person):
    person.queue.extend([reply("So it is. " * 200)] * 60)
    for n in range(0, 40, 4):  # at ever later moments, twice
        person.press("what?\n")
        select.select([], [], [], n * 0.004)
        person.press("\x03")
        select.select([], [], [], 0.002)
        person.press("\x03")
    while person.read(0.3):
        pass  # until it is quiet
    person.say("")  # or a Ctrl-C that Python missed, as above, takes what is typed
    person.queue.clear()
    person.enqueue(reply("Still here."))
    person.say("and now?", "Still here.")
    assert "Traceback" not in person.screen and "Exception" not in person.screen


def test_a_ctrl_c_within_0_3_s_of_one_is_that_one_and_a_hangup_ends_it_all(monkeypatch):
    handlers, now = {}, Mock()
    monkeypatch.setattr(program.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(program.time, "monotonic", now)
    program.handle_signals()
    for now.return_value, counts in [(9, 1), (9.2, 0), (9.29, 0), (9.31, 1), (9.7, 1)]:
        with pytest.raises(KeyboardInterrupt) if counts else nullcontext():
            handlers[signal.SIGINT](signal.SIGINT, None)
    monkeypatch.setattr(program.signal, "setitimer", timer := Mock())
    with pytest.raises(program.Terminated):
        handlers[signal.SIGHUP](signal.SIGHUP, None)
    now.return_value = 20
    for number in signal.SIGHUP, signal.SIGTERM, signal.SIGINT:
        handlers[number](number, None)  # so that no second one stops the clearing up
    with pytest.raises(program.Terminated):  # but it comes again if it was lost
        handlers[signal.SIGALRM](signal.SIGALRM, None)
    again = (signal.ITIMER_REAL, program.END_AGAIN)
    assert [call.args for call in timer.call_args_list] == [again, again]


def ended(process, number):
    """The exit status of a process that was sent this signal.

    It is sent again each few seconds, since Python misses one as it begins to wait.
    """
    for _ in range(PATIENCE // 5):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(5)
        process.send_signal(number)
    return "it lives on"


TIMES = 10 if LONG_TESTS else 1  # processes for each signal and each kind of work


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("works_on", ["a reply", "a command"])
def test_ctrl_c_and_at_once_a_hangup_or_sigterm_end_it(desk, number, works_on):
    command = reply(calls=[("bash", {"command": "echo up; sleep 600"})])
    for at in range(TIMES):
        held = Held(reply("Too late."), events=3)
        desk.stub.enqueue(held if works_on == "a reply" else command)
        with closing(Person(desk)) as person:
            person.see(PROMPT)
            person.press("go\n")
            if works_on == "a reply":
                assert held.asked.wait(PATIENCE)
            else:
                person.see("Run bash?")
                person.press("y\n")
                person.see_below(" s: up")
            person.press("\x03")
            select.select([], [], [], at / TIMES * 0.02)
            person.process.send_signal(number)
            held.may.set()
            assert ended(person.process, number) == 143, f"the process {at}"
    desk.stub.requests.clear()
    desk.stub.queue.clear()  # what one was ended before it asked for


def test_a_ctrl_c_that_comes_up_as_an_error_of_readline_is_one(monkeypatch):
    monkeypatch.setattr(
        "builtins.input", Mock(side_effect=SystemError("exception set"))
    )
    with pytest.raises(KeyboardInterrupt):
        program.read_prompt(Terminal(io.StringIO()), Mock())


def test_ctrl_c_while_the_program_is_loaded_ends_it_without_a_word(desk, tmp_path):
    stop = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "argparse.py").write_text(stop)
    options = {"env": desk.settings | {"PYTHONPATH": str(tmp_path)}, "input": b""}
    done = subprocess.run(desk.argv, check=False, capture_output=True, **options)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_the_prompt_does_not_wait_for_the_sdk_and_ctrl_c_ends_that_too(desk, tmp_path):
    (tmp_path / "anthropic.py").write_text("import time\ntime.sleep(600)\n")
    with closing(Person(desk, anew=True, PYTHONPATH=str(tmp_path))) as person:
        person.see("/help\n", PROMPT)
        person.press("hello\n")
        person.see_below(" s: waiting for the connection")
        person.stop()
        assert "stopped" in person.screen


# --- Approvals ---


@pytest.fixture
def asked(monkeypatch):
    """asked(agent, what, *answers): the terminal on which a tool asks for this.

    ToolError: it was a no.
    """

    def ask(agent, what, *answers, tool="bash"):
        given, terminal = iter(answers), Terminal(io.StringIO())

        def answer_to(terminal, question):
            show(terminal, "plain", question)
            return next(given)

        monkeypatch.setattr(program, "answer_to", answer_to)
        monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True))
        ask.terminal = terminal
        program.ask_person(terminal, agent, tool, what)
        assert [*given] == []
        return terminal

    return ask


YES = "y", "Y", "yes", "YES", "ok", "Ok", " y ", "yes please", "Yes, please!", "okay."


@pytest.mark.parametrize("answer", YES)
def test_y_yes_and_ok_are_a_yes_to_this_call_and_enter_alone_asks_again(asked, answer):
    terminal = asked(agent := program.Agent(), "ls", "", "", answer)
    assert (agent.allowed, terminal.heard) == (set(), [])
    assert terminal.out.getvalue().count("Run bash? y: yes") == 3


NO = {"n": [], "N": [], "no": [], "No!": []}
NO |= {why: [why] for why in ("yes and no", "v", "Not there!", "no, the other")}


@pytest.mark.parametrize("answer", NO)
def test_no_is_a_no_and_all_else_is_one_whose_reason_is_heard(asked, answer):
    with pytest.raises(
        program.ToolError,
        match=r"refused this call\. If they do not say why, ask them\.\Z",
    ):
        asked(program.Agent(), "ls", answer)
    assert asked.terminal.heard == NO[answer]


ALLOWED = {  # what an "always" allows, by what is asked for
    "git status": "git status ...",
    "git status -s": "git status ...",
    "ls": "ls ...",
    "echo $HOME": "echo $HOME ...",
}
COMPOUND = "ls; rm x", "ls && rm x", "ls & rm x", "ls | sh", "ls > x", "ls < x"
COMPOUND += (
    "ls `rm x`",
    "ls $(rm x)",
    "ls ${x:=y}",
    "ls\nrm x",
    "ls\rrm x",
    "ls <(rm x)",
)
ALLOWED |= dict.fromkeys(COMPOUND, "")


@pytest.mark.parametrize("command", ALLOWED)
def test_always_allows_commands_that_begin_so_and_never_a_compound_one(asked, command):
    agent, allowed = program.Agent(), ALLOWED[command]
    terminal = asked(agent, command, *["a"][: bool(allowed)], *["y"][bool(allowed) :])
    free = f"a: always for {allowed} until /clear, " if allowed else ""
    assert f"\nRun bash? y: yes, {free}n or why not\n" in terminal.out.getvalue()
    assert agent.allowed == {allowed} - {""}
    agent.allowed = {"bash", "ls ...", "ls rm ...", "git ..."} - {allowed}
    asked(agent, command, "always", "y") if not allowed else asked(agent, command, "y")
    agent.allowed = {allowed or "ls ..."}
    asked(agent, command) if allowed else asked(agent, command, "y")


@pytest.mark.parametrize("fields", [{}, {"unasked": True}, {"allowed": {"edit_file"}}])
def test_what_a_tool_is_to_do_is_shown_always_and_whole(asked, fields):
    lines = [f"echo {n} {'x' * 400}" for n in range(99)]
    what = "\n".join(["src/a.py", *lines, "rm -rf \x1b[2J\u202e\u200b"])
    answers = [] if fields else ["y"]
    terminal = asked(program.Agent(**fields), what, *answers, tool="edit_file")
    shown, *seen = terminal.out.getvalue().split("\n")
    assert shown == "  src/a.py" and seen[:99] == [f"  {line}" for line in lines]
    assert seen[99] == r"  rm -rf \x1b[2J\u202e\u200b"
    free = "a: always until /clear, "
    question = f"Run edit_file on src/a.py? y: yes, {free}n or why not"
    assert seen[100:] == ([""] if fields else [question, ""])


def test_after_always_the_question_alone_is_left_out_until_clear(person):
    (person.folder / "file").write_text("one\ntwo\n")
    edit = ("edit_file", {"path": "./file", "old_text": "two", "new_text": "2"})
    person.enqueue(bash("echo one"), bash("echo one more"), bash("echo one; true"))
    person.enqueue(reply(calls=[edit]), reply("First."), bash("echo one"))
    first = person.say("work", end="always for echo one ... until /clear, ")
    assert "\n[bash]\n  echo one\nRun bash?" in first
    person.press("a\n")
    then = person.see("Run bash? y: yes, n or")
    assert "> a\n  | one\n[bash]\n  echo one more\n  | one more\n[bash]\n" in then
    person.press("y\n")
    then = person.see("  | one\n", "Run edit_file on file? y: ")
    assert (
        "[edit_file] ./file\n  file\n  @@ -1,2 +1,2 @@\n   one\n  -two\n  +2\nRun"
        in then
    )
    assert b"\x1b[31m  -two\x1b[0m\r\n\x1b[32m  +2\x1b[0m" in person.raw
    person.press("n\n")
    person.see("refused", "First.", PROMPT)
    assert "not asked about: echo one ...\n" in person.say("/context")
    person.say("/clear")
    person.say("again", end="Run bash?")
    person.stop()


# --- Talking to it while it works ---


def lines_written(person):
    """The lines of the newest transcript."""
    paths = (person.folder / ".transcripts").glob("transcript_*.jsonl")
    return lines_of(max(paths, key=lambda path: path.stat().st_mtime_ns))


LASTING = bash("echo up; until [ -e go ]; do sleep 0.05; done")


@pytest.mark.parametrize("compacts", [False, True])
def test_what_is_typed_during_a_command_goes_along_after_its_results(person, compacts):
    calls = [*LASTING["content"], *reply(calls=[("compact", {})])["content"]]
    person.enqueue(reply() | {"content": calls[: 1 + compacts]}, *[SUMMARY] * compacts)
    person.enqueue(reply("So."))
    person.say("Go.", end="Run bash?")
    person.press("y\n")
    person.see_below(" s: up")
    person.press("Not so!\nAnd h\x7fsoon.\nha\x1b[D\x7fal")
    person.see_below("> Not so!\n> And soon.\n> hal")
    (person.folder / "go").touch()
    person.see("\n\n> Not so!\nAnd soon.\n", "So.", f"{PROMPT}hal")
    person.say("\x15/help")
    words = typed("Not so!\nAnd soon.")
    if compacts:
        first, newest, summary, *_ = lines_written(person)[-2]["messages"]
        assert (first, newest) == (typed("Go."), words)
        assert "The newest is still to be answered" in texts(summary)[0]
    else:
        _, _, answered, heard, _ = lines_written(person)
        assert heard == words and results(answered)[0]["content"] == "up\n"


def test_what_is_typed_during_the_last_answer_is_the_next_prompt(person):
    held = Held(reply("It is so."), events=4)
    person.enqueue(held, reply("Then not."), reply("Good."))
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.press("\n\nno,\nnot so\n/help\nthird\nhalf")
    person.see_below("> third\n> half")
    held.may.set()
    person.see("It is so.\n[", "\n\n> no,\nnot so\n", "Then not.\n[", "\n> /help\n")
    person.see("/compact [focus]", "\n> third\n", "Good.\n[", f"{PROMPT}half")
    asked = [message for message in person.sent if message["role"] == "user"]
    assert asked == [typed("first"), typed("no,\nnot so"), typed("third")]
    person.say("\x15")


def test_the_reason_of_a_no_and_what_was_typed_before_are_heard(person):
    held = Held(bash("touch file"))
    person.enqueue(held, reply("Then not."))
    person.press("touch it\n")
    assert held.asked.wait(PATIENCE)
    person.press("y\nand half a l")
    person.see_below("> y\n> and half a l")
    held.may.set()
    person.see("Run bash?")
    person.press("not here\n")
    person.see("> not here\n", "refused this call", "\n\n> y\nnot here\n", "Then not.")
    person.see(f"{PROMPT}and half a l")
    *_, answered, heard, _ = lines_written(person)
    assert heard == typed("y\nnot here")
    assert "not here" not in str(answered) and not (person.folder / "file").exists()
    person.say("\x15")


def test_words_that_were_heard_outlive_ten_compactions(make):
    agent = make(reply(calls=[BASH]), reply("Then not."))
    heard = [["Never touch a.py."]]
    agent.hear = lambda: "".join(heard.pop() if heard else [])
    turns(agent, "Go.")
    for number in range(10):
        agent.client.enqueue(SUMMARY, reply("Fine."))
        run_command(agent, "/compact")
        turns(agent, f"And {number}?")
    asked = [message for message in agent.messages if program.is_typed(message)]
    assert asked[:3] == [typed("Go."), typed("Never touch a.py."), typed("And 0?")]


def test_ctrl_c_keeps_what_was_typed(person):
    held = Held(reply("Too late."), events=4)
    person.enqueue(held, reply("In time."))
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.press("do this instead\nhalf")
    person.see_below("> do this instead\n> half")
    person.press("\x03")
    person.see("stopped", "> do this instead\n", "In time.", f"{PROMPT}half")
    held.may.set()
    person.stopped = time.monotonic()
    assert person.sent[-1] == typed("do this instead")
    person.say("\x15")


# --- Typing ---

KEYS = {
    "helo\x02l": "hello",  # Ctrl-B: back by one
    "\x1b[200~one\rtwo\rthree\x1b[201~": "one\ntwo\nthree",  # pasted
    "four\x1b\rfive": "four\nfive",  # Alt-Enter
    "read no\t, please": "read notes.txt, please",
    "list som\tx": "list some/x",
}


@pytest.mark.parametrize("keys", KEYS, ids=ascii)
def test_a_line_can_be_edited_while_it_is_typed(person, keys):
    (person.folder / "notes.txt").touch()
    (person.folder / "some").mkdir()
    person.enqueue(reply("I see."))
    person.say(keys, "I see.")
    assert person.sent[-1] == typed(KEYS[keys])
    assert b"\x1b[?2004h" in person.raw  # or no terminal marks what is pasted


def test_tab_completes_commands_help_lists_them_and_an_empty_line_is_none(person):
    assert person.say("  ").strip() == PROMPT.strip()
    names = "/compact /context /last /resume /clear /quit /exit quit exit Ctrl-C Tab"
    assert {*names.split(), "Alt-Enter"} <= {*re.split(r"[,.\s]+", person.say("/he\t"))}
    assert person.requests == []


def test_a_paste_taller_than_the_screen_is_counted_and_only_lines_are_history(person):
    paste = "\r".join(f"pasted {number}" for number in range(60))
    person.enqueue(reply("I see."))
    person.say(f"\x1b[200~{paste}\x1b[201~", "(60 lines)\n", "I see.")
    person.say("/help")
    assert person.sent[-1]["content"].count("pasted") == 60
    history = (person.folder / ".transcripts/history").read_text()
    assert history.endswith("/help\n") and "pasted" not in history


@pytest.mark.parametrize("what", ["../mine", "/dev/zero", "pipe", "folder"])
def test_a_history_that_is_no_plain_file_is_neither_read_nor_written(
    fresh, tmp_path, what
):
    (folder := tmp_path / "cloned/.transcripts").mkdir(parents=True)
    (mine := tmp_path / "mine").write_text("typed elsewhere\n")
    (folder / "history").touch()
    turn_into(folder / "history", mine if what == "../mine" else what)
    person = fresh(folder=folder.parent)
    person.press("\x10")
    person.say("/help")
    assert person.leave("\x04") == 0 and "typed elsewhere" not in person.screen
    assert mine.read_text() == "typed elsewhere\n"


def test_what_was_typed_can_be_called_back_in_another_run(person, desk):
    person.enqueue(reply("Yes."))
    person.say("the first prompt", "Yes.")
    person.say("/help")
    history = os.stat(person.folder / ".transcripts/history")
    assert history.st_mode & 0o777 == 0o600
    with closing(Person(desk)) as another:
        another.see(PROMPT)
        for text in "/help", "the first prompt":
            another.press("\x10")  # Ctrl-P: the one before
            another.see(text)
        assert another.leave("\x15\x04") == 0  # Ctrl-U: nothing is left of it; Ctrl-D


# --- Commands ---


def test_a_summary_keeps_what_was_asked_for_and_shows_its_first_lines(person):
    lines = "\n".join(f"{n}. line" for n in range(1, 9))
    summary = reply(f"<analysis>a</analysis>\n<summary>\n{lines}\n</summary>")
    person.enqueue(reply("So it is. " * 2000), summary)
    person.say("what is it?", "So it is.")
    seen = person.say("/compact the names of the files")
    assert "the names of the files" in str(person.sent[-1]["content"])
    assert re.search(rf" -> \S+ tokens\n(  \d\. line\n){{5}}{PROMPT}\Z", seen)
    assert all(code in person.raw for code in (b"\x1b[35m[compact]", b"\x1b[2m  1. l"))


LAST = {"": "new\n" * 99, "1": "new\n" * 99, "3": "[Previous: used bash]"}
LAST |= {"2": "old"} | dict.fromkeys("40", "There are 3 results of tools.")


@pytest.mark.parametrize("number", LAST)
def test_last_shows_a_result_whole_as_the_model_has_it(make, number):
    agent = make()
    run_command(agent, f"/last {number}")
    agent.messages = [*did("[Previous: used bash]", "old"), *did("new\n" * 99)]
    run_command(agent, f"/last {number}")
    assert shown(agent, "long") == ["There are 0 results of tools.", LAST[number]]
    assert laid_out("long", LAST[number]) == LAST[number]


def test_context_says_what_fills_the_window_and_what_was_sent(make):
    agent = make(reply("Let me see.", calls=[TASK]), reply("2."), reply("Two."))
    turns(agent, "How many?")
    *rows, whole, sent, where, free = program.context_table(agent).split("\n")
    parts = {row[:20].strip(): int(row[20:].replace(",", "")) for row in rows}
    names = ["system prompt", "tools", "your words", "replies and calls"]
    assert [*parts] == [*names, "results and notes"] and min(parts.values()) > 0
    total, bill = program.context_tokens(agent), agent.bill
    assert whole == f"{'in all':<20}{total:>9,} of 167,000, then a summary"
    assert 0 <= total - sum(parts.values()) < len(parts)
    share = f"{bill['read'] / bill['sent']:.0%}"
    assert sent == f"sent so far: {bill['sent']:,} tokens, {share} from the cache"
    assert where == f"transcript: {agent.transcript}" and free.endswith(": nothing")


@pytest.mark.parametrize("argv, free", [([], "nothing"), (["--yes"], "everything")])
def test_context_on_a_fresh_start_asks_nothing_and_knows_yes(run, api, argv, free):
    out = run(*argv, stdin="/context\n")[1]
    assert re.search(r"(?s)\nsystem prompt +\d.*\nin all +\d", out)
    assert f"\nnot asked about: {free}\n" in out
    assert api.requests == []


def test_the_status_line_measures_the_context_against_the_threshold():
    known = {"known": 1, "cached": 0.5, "messages": [typed("a")]}
    agent = program.Agent(limits=program.Limits(threshold=1_000), **known)
    for tokens, meter in (4, ".........."), (500, "#####....."), (3_000, "##########"):
        agent.counted = tokens
        share = f"{tokens:,} of 1,000 tokens, then a summary; 50% from the cache"
        assert program.status_line(agent) == f"[{meter}] {share}"


def talked(make, changed, *words):
    """The transcript of a conversation, last changed at this second."""
    agent = make(*[reply(f"To {word}.") for word in words])
    turns(agent, *words)
    os.utime(agent.transcript, (changed, changed))
    return agent.transcript


def test_resume_lists_first_and_last_words_each_line_when_found(make, monkeypatch):
    agent, load = make(), program.load
    monkeypatch.setenv("COLUMNS", "82")
    run_command(agent, "/resume")
    talked(make, 3e8, "one " * 20, "and", "so\non")
    talked(make, 2e8, "word " * 20)
    program.commit(other := make(), typed("alone"))
    os.utime(other.transcript, (1e8, 1e8))
    monkeypatch.setattr(program, "load", lambda p: agent.emit("read", "") or load(p))
    run_command(agent, "/resume")
    lines = [laid_out("listed", text) for text in shown(agent, "listed")]
    lines = [re.sub(r"\d{4}(-\d\d){2} \d\d:\d\d", "DATE", line) for line in lines]
    assert lines[0] == f"1. DATE, 6 messages: {'one ' * 6}o … so on"
    assert re.fullmatch("2. DATE, 2 messages: (word ){6,}w.*…", lines[1])
    assert lines[2] == "3. DATE, 1 message: alone"
    assert shown(agent, "plain") == ["none yet", "/resume NUMBER takes one up"]
    styles = [style for style, _ in agent.events]
    assert styles == ["plain", *["read", "listed"] * 3, "plain"]


def test_of_what_is_taken_up_one_sees_the_last_words_and_if_they_were_answered(make):
    path = talked(make, 9, "old", "new")
    resume(agent := make(), "1")
    taken = ("layer", f"[resume] {path}: the last request was answered")
    meter = ("note", program.status_line(agent))
    assert agent.events == [taken, ("plain", "\n> new"), ("text", "To new.\n"), meter]
    for message in typed("Delete it."), program.note(program.UNANSWERED):
        program.commit(agent, message)
    resume(other := make(), str(agent.transcript))
    was, words, _ = shown(other)  # and not the mark that it was stopped
    assert (was[-12:], words) == ("not answered", "\n> Delete it.")


def test_resume_on_the_command_line_takes_what_the_command_takes(run, api, make):
    paths = [talked(make, 9, "older"), talked(make, 1e10, "newer")]
    for argv, words in ([str(paths[0])], "older"), (["2"], "older"), ([], "newer"):
        api.enqueue(reply("Gone on."))
        assert run("-p", "and?", "--resume", *argv)[1] == "Gone on.\n"
        assert api.requests[-1]["messages"][0] == typed(words)


MEANT = ["/nonsense", "/hlep", "/compct the names", "/exit now", "/last two"]
MEANT += ["/clear the cache, please", "/quit smoking", "/help me"]
PROSE = ["/etc/hosts: what is it?", "/home is full, why?", "/usr/", "/tmp", "/"]


@pytest.mark.parametrize("line", [*MEANT, *PROSE, "exit the loop early", "quit it"])
def test_a_slash_and_a_word_are_meant_as_a_command_but_no_path_and_prose(make, line):
    program.work_on(agent := make(*[reply("I see.")] * (line not in MEANT)), line)
    assert ("/help lists them" in str(shown(agent, "error"))) is (line in MEANT)
    assert (agent.client.requests == []) is (line in MEANT)


# --- What it shows ---


def test_what_steers_hides_or_reorders_is_made_visible():
    text = f"{HOSTILE}\rnever\b\x7f\0\ud800\u200b \u2066d\u2069\u061c\u2028\U000e0041"
    seen = r"\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end\rnever\x08\x7f\x00"
    seen += r"\ud800\u200b \u2066d\u2069\u061c\u2028\U000e0041"
    assert program.visible(text) == seen


WRITTEN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 lines\n\tand tabs "
WRITTEN += "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f "
WRITTEN += "soft\u00adhyphen, 10\u202f000\xa0km\u3000\u65e5\u672c"


def test_an_answer_is_shown_and_printed_as_it_is_written(run, api):
    api.enqueue(reply(WRITTEN), reply(WRITTEN))
    assert run("-p", "Say it")[:2] == (0, f"{WRITTEN}\n")
    assert f"\n{WRITTEN}\n[" in run(stdin="Say it\n")[1]


def test_two_lines_say_first_what_works_where_and_what_it_knows(run):
    Path("AGENTS.md").write_text("Be brief.")
    for name in "ab":
        Path(".agents/skills", name).mkdir(parents=True)
        Path(".agents/skills", name, "SKILL.md").write_text("description: use")
    first, second, *_ = run("--yes", MODEL_ID="some-model")[1].split("\n")
    assert first == f"some-model in {Path.cwd()}"
    assert second == "AGENTS.md; skills: a, b; --yes: tools run unasked; /help"


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 24 columns; `at(seconds)`: what the clock draws below then."""
    monkeypatch.setenv("COLUMNS", "24")
    terminal, now = Terminal(io.StringIO(), live=True), Mock(return_value=0)

    def at(seconds):
        now.return_value = seconds
        with suppress(EOFError):
            program.clock(terminal)
        return below(terminal.out.getvalue())

    def text():
        return DRAWN.sub("", terminal.out.getvalue())

    monkeypatch.setattr(program.time, "monotonic", now)
    monkeypatch.setattr(program.time, "sleep", Mock(side_effect=[None, EOFError] * 9))
    return SimpleNamespace(terminal=terminal, at=at, text=text)


def test_the_clock_counts_from_the_first_wait_until_something_is_shown(screen):
    screen.at(5)
    show(screen.terminal, "wait", "bash")
    assert screen.at(5.9) == "" and screen.at(8) == "3 s: bash"
    show(screen.terminal, "wait", "\x1b is an odd letter")
    assert screen.at(9.2) == "4 s: \\x1b is an od…"
    show(screen.terminal, "note", "done")
    assert screen.text() == "done\n" and screen.at(99) == ""


def test_a_text_that_stalls_is_waited_for_after_five_seconds(screen):
    show(screen.terminal, "wait", "the model")
    screen.at(1)
    show(screen.terminal, "text", "So it")
    assert screen.at(5.9) == "" and screen.at(7) == "6 s: the model"
    show(screen.terminal, "text", " is.")
    assert screen.at(8) == "" and screen.at(12.1) == "5 s: the model"
    show(screen.terminal, "note", "done")
    assert screen.text() == "\nSo it is.\ndone\n"


def painted(output, columns, lines):
    """The rows of a screen on which this was printed.

    It forgets that a full row waits for the next when the cursor is moved.
    """
    rows, x, y, saved = [""] * lines, 0, 0, (0, 0)
    for token in re.findall(r"(?s)\x1b\[\d*[A-Zm]|\x1b[D78]|.", output):
        wide = program.columns_of(token) if token.isprintable() else 0
        feeds = token in ("\n", "\x1bD") or x + wide > columns  # a new row
        if feeds and y + 1 == lines:
            rows, y = [*rows[1:], ""], y - 1
        y += feeds or (token == "\x1b[1B")
        x = 0 if token in ("\r", "\n") or x + wide > columns else x
        if token == "\x1b7":
            saved = min(x, columns - 1), y
        elif token == "\x1b8":
            x, y = saved
        elif token == "\x1b[K":
            rows[y] = rows[y][:x]
        elif token == "\x1b[J":
            rows[y:] = [rows[y][: min(x, columns - 1)], *[""] * (lines - y - 1)]
        elif token.endswith("A") and wide == 0:
            y -= int(token[2:-1])
        elif wide:
            cells = f"{rows[y]:{columns}}"
            rows[y] = (
                f"{cells[:x]}{token}{' ' * (wide - 1)}{cells[x + wide :]}".rstrip()
            )
            x += wide
    return rows


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize("words", ["word {} ", "{}\n", "日本{}語", "{} " + "x" * 59])
def test_text_and_what_is_typed_stand_apart_and_no_letter_is_lost(
    monkeypatch, words, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal, text = Terminal(io.StringIO(), live=True), ""
    show(terminal, "note", "a note")
    for number in range(60):
        show(terminal, "text", new := words.format(number))
        terminal.line, text = f"typed 日本 {text.split()}", text + new
        program.draw(terminal)
        rows = painted(terminal.out.getvalue(), columns, 30)
        assert [*filter(None, rows)][-1].startswith("> ")
    terminal.line = ""
    show(terminal, "note", "the end")
    rows = painted(terminal.out.getvalue(), columns, 500)
    wrapped = painted(f"a note\n\n{text.rstrip(chr(10))}\nthe end\n", columns, 500)
    assert rows == wrapped


def test_while_the_model_thinks_and_writes_a_call_that_is_said(person):
    call = ("write_file", {"path": "file", "content": "text"})
    thinks = Held(reply(calls=[call], thinking="I look at it now."), events=4)
    writes = Held(reply(calls=[call]), events=3)
    person.enqueue(thinks, writes, reply("At last."))
    person.press("write it\n")
    person.see_below(" s: I look at")
    thinks.may.set()
    person.see("[thinking] I look at it now.\n[write_file] file\n", "Run write_file on")
    person.press("n\n")
    size = len(split(json.dumps(call[1]), 2)[0])
    person.see_below(f" s: writing file, {size} characters")
    writes.may.set()
    person.see("[write_file] file\n", "Run write_file on file?")
    person.say("y", "At last.")


LONG = "12345\n6789 " + "abc" * 50
CUT = dict.fromkeys(["plain", "command", "added", "text"], LONG)
CUT |= dict.fromkeys(["tool", "listed"], f"12345 6789 {'abc' * 3}a…")
CUT |= dict.fromkeys(["result", "failed"], f"  | 12345\n  | 6789 {'abc' * 4}…")
CUT["thinking"] = f"12345 6789 {'abc' * 19}a…"


@pytest.mark.parametrize("style", CUT)
def test_a_line_that_is_cut_to_the_screen_says_so(screen, style):
    assert laid_out(style, LONG) == CUT[style]


RESULTS = {"1\n2\n3\n4\n": "1|2|3|4", "1\n\n\n\n\n(exit)": "1|(exit)"}
RESULTS |= {"1\n2\n3\n4\n5": "1|(2 more lines)|4|5"}


@pytest.mark.parametrize("text", RESULTS)
def test_of_a_result_the_first_line_and_the_last_two_are_shown(text):
    lines = laid_out("result", text).split("\n")
    assert lines == [f"  | {line}" for line in RESULTS[text].split("|")]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_blank_line_stands_before_text_and_none_after_it(screen, end):
    for event in "thinking  \n", "note a", "thinking H", "thinking m.\n", "text S":
        show(screen.terminal, *event.split(" ", maxsplit=1))
    for style, text in (
        ("text", "o."),
        ("text", end),
        ("tool", "[glob]"),
        ("result", "b"),
    ):
        show(screen.terminal, style, text)
    assert screen.text() == "a\n[thinking] Hm.\n\nSo.\n[glob]\n  | b\n"


@pytest.mark.parametrize("settings", [{}, {"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_has_colors_if_it_knows_them_and_no_no_color(desk, settings):
    with closing(Person(desk, ANTHROPIC_API_KEY="", **settings)) as person:
        assert person.leave("") == 1 and "\nNo API key" in person.screen
        assert (b"\x1b[31mNo API key" in person.raw) is (settings == {})


def test_a_turn_can_be_read(person):
    (person.folder / "file").write_text("1\n\t2\n3\n")
    plan = ("todo_write", {"items": ["[x] look", "[ ] act"]})
    reads = [("read_file", {"path": name}) for name in ("file", "none")]
    task = ("task", {"description": "count", "prompt": "Look."})
    person.enqueue(reply("I plan.", [plan, *reads, task], thinking="Let me see."))
    person.enqueue(reply("I look.", [("glob", {"pattern": "file"})]))
    person.enqueue(reply("It is\nthere."), reply("Done."))
    seen = person.say("go", "\n\nDone.\n[")
    assert "\n[thinking] Let me see.\n\nI plan.\n[todo_write]\n  [x] look\n" in seen
    assert "\n  [ ] act\n[read_file] file\n[read_file] none\n  | There is no" in seen
    assert "\n[task] count\ncount: [glob] file\n  | file\n  It is\n  there.\n" in seen
    colored = rb"(?s)\x1b\[2m\[thinking\] .*\x1b\[2m\[task\] count\x1b\[0m"
    assert re.search(colored, person.raw) and b"mI plan" not in person.raw
    assert re.search(rb"\x1b\[31m  \| There is no .*none", person.raw)
    assert person.raw.endswith(b"\r\n%b\x1b[1m> \x1b[0m" % MARK.encode())


def test_nothing_that_arrives_can_steer_the_terminal(person):
    (person.folder / "file").write_text(HOSTILE)
    calls = [("grep", {"pattern": HOSTILE}), ("todo_write", {HOSTILE: HOSTILE})]
    calls += [("todo_write", {"items": [HOSTILE]}), ("read_file", {"path": "file"})]
    person.enqueue(reply(HOSTILE, calls, thinking=HOSTILE))
    person.enqueue(api_error(400, HOSTILE))
    seen = person.say("do", "[read_file]", "end. If it")
    assert RAW.findall(seen) == [] and seen.count("u202e end") == 6


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colors_no_prompt_is_marked_and_a_dumb_terminal_only_gets_text(
    fresh, settings
):
    held = Held(reply("It is so."), events=4)
    person = fresh(held, reply("Then not."), **settings)
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.press("not so\nha")
    person.see("not so\nha") if "TERM" in settings else person.see_below("> ha")
    is_canonical = termios.tcgetattr(person.keys)[3] & termios.ICANON
    held.may.set()
    person.see("so.\n[", "\n\n> not so\n", "Then not.\n[", "\n> ")
    assert MARK.encode() not in person.raw and b"m>" not in person.raw
    assert (b"\x1b" not in person.raw) == bool(is_canonical) == ("TERM" in settings)
    person.press("\x15")
    assert person.leave("\x04") == 0


def test_a_bell_calls_after_ten_seconds_of_work(screen):
    for screen.terminal.live in (True, False):
        for screen.terminal.worked in (5, 15, 14.9):
            screen.at(25)
            program.ring(screen.terminal)
    assert screen.text() == "\a\a"  # after 20 seconds, and after 10.1


def test_a_bell_calls_at_a_question_and_at_the_prompt(fresh):
    person = fresh(bash("true"), reply("Done."), constants={"BELL_SECONDS": -1})
    person.say("go", end="Run bash?")
    person.say("y", "Done.")
    assert person.raw.replace(MARK.encode(), b"").count(b"\a") == 3


def test_at_the_prompt_the_cache_is_kept_warm_without_a_word_into_a_begun_line(
    desk, fresh, monkeypatch
):
    take, asked, may = desk.stub.take, threading.Event(), threading.Event()

    def slowly(request):
        if request["max_tokens"]:
            return take(request)
        asked.set()
        may.wait(PATIENCE)
        asked.clear()
        may.clear()
        return reply(stop="max_tokens")

    monkeypatch.setattr(desk.stub, "take", slowly)
    due_at_once = {"WARM_SECONDS": program.CACHE_SECONDS}
    settings = {"MIN_SAVINGS": "0", "KEEP_WARM": "2"}
    person = fresh(reply("Hello."), constants=due_at_once, **settings)
    person.say("Hi", "Hello.")
    assert asked.wait(PATIENCE)
    may.set()
    person.see("[keep_warm] ", f" tokens stay in the prompt cache\n{PROMPT}")
    assert b"\r\x1b[K\x1b[2m[keep_warm] " in person.raw
    assert asked.wait(PATIENCE)
    person.press("begun")
    person.see("begun")  # at once, though the API takes its time
    may.set()
    while person.read(0.3):
        pass
    assert person.screen.endswith(f"{PROMPT}begun")
    assert person.screen.count("[keep_warm]") == 1


def test_seven_tries_are_told_in_one_line_that_counts_down_and_go_on_goes_on(make):
    said = []
    agent = make(*[api_error(529, "Overloaded")] * 7)
    agent.emit = lambda *event: said.append(event)
    program.work_on(agent, "Go.")
    waits = [text for style, text in said if style == "wait" and "try" in text]
    assert waits[:4] == [
        f"try {n} of 7 in {s} s" for n, s in ((2, 1), (3, 2), (3, 1), (4, 4))
    ]
    assert len(waits) == 63 and waits[-1] == "try 7 of 7 in 1 s"
    told = [event for event in said if event[0] != "wait"]
    assert told == [
        ("layer", "[retry] Overloaded. It is tried 7 times."),
        ("error", "Overloaded."),
        ("note", 'Nothing is lost: "go on" goes on with it.'),
    ]


def test_a_long_last_result_goes_through_a_pager_on_a_terminal_alone(
    screen, monkeypatch
):
    paged = Mock()
    monkeypatch.setattr("pydoc.pager", paged)
    for screen.terminal.live, lines in (True, 9), (True, 99), (False, 99):
        show(screen.terminal, "long", "line\n" * lines)
    assert screen.text() == "line\n" * 9 + "\n" + "line\n" * 99 + "\n"
    paged.assert_called_once_with("line\n" * 99)


# --- The terminal is left as it was ---


def modes(person):
    """The modes of the terminal."""
    return termios.tcgetattr(person.keys)


ENDS = {  # how it ends in mid-work, and with which status
    "SIGTERM": (lambda person: person.process.terminate(), 143),
    "SIGHUP": (lambda person: person.process.send_signal(signal.SIGHUP), 143),
    "an error of its own": (lambda person: None, 1),
    "Ctrl-C, then Ctrl-D": (
        lambda person: person.stop() or person.leave("\x15\x04"),
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_in_mid_work_the_terminal_has_other_modes_and_in_the_end_those_it_had(
    fresh, end
):
    act, status = ENDS[end]
    held = Held(reply("It is so."), events=4)
    slave = {"status_line": None} if "error" in end else None
    person = fresh(held, constants=slave)
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.press("half")
    person.see_below("> half")
    assert modes(person) != person.usual
    act(person)
    held.may.set()
    while person.read():
        pass
    assert person.process.wait(PATIENCE) == status and modes(person) == person.usual


def test_a_closed_terminal_ends_it_in_mid_work(fresh):
    person = fresh(LASTING)
    person.say("go", end="Run bash?")
    person.press("y\n")
    person.see_below(" s: up")
    os.close(person.keys)
    person.keys = os.open(os.devnull, os.O_RDONLY)
    assert person.process.wait(PATIENCE) in (120, 143)  # 120: no output can be flushed


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(fresh):
    held = Held(reply("It is so."), events=4)
    person = fresh(held, shell=True)
    for begun in "", "begun", "half":  # twice at the prompt, then in mid-work
        if begun == "half":
            person.press("\x15first\n")
            assert held.asked.wait(PATIENCE)
        person.press(begun)
        see = person.see_below if begun == "half" else person.see
        see(begun)
        ours = modes(person)
        for _ in range(PATIENCE):  # Python misses what comes as it begins to wait
            person.press("\x1a")
            while modes(person) == ours and person.read(1):
                pass
            if modes(person) != ours:
                break
        person.see("stopped\n")
        assert modes(person) == person.usual
        person.press("fg\n")
        end = time.monotonic() + PATIENCE
        while modes(person) != ours and time.monotonic() < end:
            person.read(0.05)
        assert modes(person) == ours
        see("> half" if begun == "half" else f"{PROMPT}{begun}")
    held.may.set()
    person.see("so.\n[", f"{PROMPT}half")
    assert person.leave("\x15\x04") == 0


# --- Without a terminal: in this process ---


def test_p_prints_the_answer_on_stdout_and_all_else_on_stderr(run, api):
    api.enqueue(reply("I look.", [("glob", {"pattern": "*"})]), reply(f"No {HOSTILE}"))
    status, out, err = run("-p", "what is here?")
    assert (status, out) == (0, f"No {program.visible(HOSTILE)}\n")
    assert "[glob] *" in err and "end" not in err


PIPED = [
    (["-p", "What?"], "piped\ntext\n", ["piped\ntext\n\n\nWhat?"]),
    (["-p"], "first line\nsecond line", ["first line\nsecond line"]),
    (["question"], "and?\n", ["question", "and?"]),
    ([], "first\n\nsecond\nexit\nthird\n", ["first", "second"]),
    ([], "first\n/quit\nthird\n", ["first"]),
]


@pytest.mark.parametrize("argv, stdin, prompts", PIPED)
def test_what_is_piped_in_is_prompts_or_more_of_one(run, api, argv, stdin, prompts):
    api.enqueue(*[reply("Good.")] * len(prompts))
    status, out, _ = run(*argv, stdin=stdin)
    assert (status, out.count("Good.\n")) == (0, len(prompts))
    assert [r["messages"][-1]["content"] for r in api.requests] == prompts


def test_a_pipe_may_hold_no_utf_8_and_is_said_to_be_waited_for(run, api, monkeypatch):
    waits = []
    monkeypatch.setattr(program, "show", lambda _, *event: waits.append(event))
    api.enqueue(reply("Yes."))
    run("-p", "What?", stdin="soon\udcff")
    assert api.requests[0]["messages"][0]["content"] == "soon\ufffd\n\nWhat?"
    assert waits[0] == ("wait", "waiting for the end of what is piped in")


def test_without_a_terminal_to_ask_on_the_answer_is_no_but_with_yes(run, api):
    for argv, done in ([], False), (["--yes"], True):
        api.enqueue(bash("touch file"), reply("So."))
        status, out, err = run("-p", "touch it", *argv, stdin="y\n")
        assert (status, out) == (0, "So.\n") and "[bash]\n  touch file\n" in err
        [result] = results(api.requests[-1]["messages"][-1])
        assert Path("file").exists() == done != result.get("is_error", False)
        assert ("only --yes would allow it" in result["content"]) is not done


def test_a_command_that_would_open_an_editor_ends(use):
    git = "git -c user.name=me -c user.email=me@here commit --allow-empty"
    use("bash", command=f"git init -q; {git} -m one")
    assert "] one\n" in use("bash", command=f"{git} --amend", timeout=9)


# --- Settings, and mistakes: one line that names what to change ---


def test_settings_come_from_the_env_file_beside_the_program(run, api, tmp_path):
    (tmp_path / ".env").write_text("MODEL_ID=beside\nTHRESHOLD=50000  # T")
    Path(".env").write_text("MODEL_ID=mine\nKEEP_RECENT=x")
    api.enqueue(*[reply("Good.")] * 3)
    assert "50,000 tokens, then" in run(stdin="a\n")[1]
    run("-p", "a", MODEL_ID="shell")
    run("-p", "a", "--model", "given")
    assert [r["model"] for r in api.requests] == ["beside", "shell", "given"]


@pytest.mark.parametrize("name", program.KEY_NAMES)
def test_an_empty_key_in_the_shell_does_not_hide_that_of_the_env_file(
    run, api, tmp_path, monkeypatch, name
):
    monkeypatch.setenv(name, "")  # is removed again after the test
    (tmp_path / ".env").write_text(f"{name}=key-of-the-env-file")
    api.enqueue(reply("Good."))
    empty = dict.fromkeys(program.KEY_NAMES, " ")
    assert run("-p", "a", **empty)[:2] == (0, "Good.\n")
    assert os.environ[name] == "key-of-the-env-file"


def test_help_names_the_flags_without_loading_the_sdk():
    argv = [sys.executable, "-X", "importtime", program.__file__, "--help"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    parts = r"-p .*print the answer and leave;.* --resume .*take up an earlier conv"
    parts += r".* --model .* --yes .* --demo .*/help lists the /commands.* \.env beside"
    assert re.search(parts, " ".join(done.stdout.split()))
    assert "argparse" in done.stderr and "anthropic" not in done.stderr


MISTAKES = [
    ("Hi", {"ANTHROPIC_API_KEY": ""}, "set ANTHROPIC_API_KEY in the shell or in /"),
    ("Hi", {"THRESHOLD": "many"}, "THRESHOLD=many: give a whole number"),
    ("Hi", {"MAX_MESSAGES": "\uff15"}, "MAX_MESSAGES"),
    ("Hi --resume go", {}, "no conversation go: give a file, or a number of /resume"),
    ("", {}, "empty"),
]


@pytest.mark.parametrize("argv, settings, named", MISTAKES)
def test_a_mistake_of_the_person_is_one_line(run, api, argv, settings, named):
    status, out, err = run("-p", *argv.split(), **settings)
    assert (status, out, api.requests) == (1, "", [])
    assert named in err and err.count("\n") == 1


def test_a_missing_package_is_said_at_once_with_the_commands(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr(program, "PACKAGES", ("dotenv", "no_such_package"))
    first, second, end = run("-p", "hello")[2].split("\n")
    assert first.endswith(
        f"package is missing: start it by: uv run {tmp_path}/agent.py"
    )
    venv = f"{tmp_path}/.venv"
    pip = f"{venv}/bin/pip install -r {tmp_path}/requirements.txt"
    start = (
        f"python3 -m venv {venv} && {pip}, then {venv}/bin/python {tmp_path}/agent.py"
    )
    assert (second, end) == (f"or install it: {start}", "")


def test_an_error_ends_as_a_sentence_does(make):
    for said in "It ended.", "Why?":
        assert program.sentence_for(make(), api_error(400, said)) == said
