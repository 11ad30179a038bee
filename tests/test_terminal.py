"""The program as a person meets it: on a real terminal, and in a pipe."""

import fcntl
import io
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders import LONG_TESTS, TASK, did, results, said, typed
from builders import shown as shown_by
from stub import StubClient, api_error, reply
from wire import serve

import agent as program

PROMPT = "\n> "
KEY = "test-key-0123456789"
PATIENCE = 30  # seconds until something that does not come is missed
HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end"  # title, clear, invert, reverse
RAW = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# makes its terminal the one that Ctrl-C comes from, then becomes the program
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Person:
    """Somebody at a terminal in which the program runs."""

    def __init__(self, argv, folder, settings):
        self.raw, self.seen, self.folder = b"\r\n", 0, folder
        self.stopped = 0.0
        self.keys, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 300, 0, 0))
        options = {"stdin": slave, "stdout": slave, "stderr": slave, "env": settings}
        argv = [sys.executable, "-c", TAKE_TERMINAL, *argv]
        self.process = subprocess.Popen(
            argv, cwd=folder, start_new_session=True, **options
        )
        os.close(slave)

    @property
    def screen(self):
        """All that was shown so far, without the program's own colors."""
        text = self.raw.decode(errors="replace").replace("\r\n", "\n")
        return re.sub(r"\x1b\[(0|2|31|32|36)m|\x1b\[\?2004(h|l\r)", "", text)

    def read(self):
        """Whether anything more was shown, which `screen` has now."""
        more = b""
        with suppress(OSError):  # on Linux, when the program has ended
            if select.select([self.keys], [], [], PATIENCE)[0]:
                more = os.read(self.keys, 65_536)
        self.raw += more
        return more != b""

    def see(self, *texts):
        """Wait for these texts in this order; returns what was shown since the last."""
        start = self.seen
        for text in texts:
            end = time.monotonic() + PATIENCE  # for a clock is never silent
            while text not in self.screen[self.seen :]:
                more = time.monotonic() < end and self.read()
                assert more, f"{text!r} is missing in {self.screen[start:]!r}"
            self.seen = self.screen.index(text, self.seen) + len(text)
        return self.screen[start : self.seen]

    def press(self, keys):
        os.write(self.keys, keys.encode())

    def stop(self):
        """Press Ctrl-C, so late after the last that it is another one."""
        rest = self.stopped + program.SAME_CTRL_C + 0.1 - time.monotonic()
        select.select([], [], [], max(0, rest))
        self.press("\x03")
        self.stopped = time.monotonic()

    def say(self, line, *texts):
        """Type a line, see these texts and then the prompt; returns all that came."""
        self.press(line + "\n")
        return self.see(*texts, PROMPT)

    def asked(self, line):
        """Type a line and see what the program asks before it runs a command."""
        self.press(line + "\n")
        return self.see("Run bash?")

    def leave(self, keys):
        """The exit status after these keys."""
        self.press(keys)
        while self.read():
            pass
        return self.process.wait(PATIENCE)

    def end(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.keys)


class Desk:
    """A fresh install of the program, a workspace, and an API that answers."""

    def __init__(self, root, stub, url):
        self.stub, self.url = stub, url
        self.install, self.folder = root / "install", root / "workspace"
        self.install.mkdir(parents=True)
        self.folder.mkdir()
        shutil.copy(program.__file__, self.install / "agent.py")

    def argv(self, *options):
        return [sys.executable, str(self.install / "agent.py"), *options]

    def settings(self, **more):
        """The environment of the program; what is None in `more` is not in it."""
        own = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": self.url}
        usual = {"PATH": os.environ["PATH"], "TERM": "dumb", "NO_PROXY": "*"}
        return {k: v for k, v in (usual | own | more).items() if v is not None}

    def answer(self, *argv, **settings):
        """The finished program, its input empty."""
        options = {"cwd": self.folder, "env": self.settings(**settings), "input": ""}
        options |= {"capture_output": True, "timeout": PATIENCE}
        return subprocess.run(self.argv(*argv), check=False, text=True, **options)

    @contextmanager
    def person(self, *options, **settings):
        person = Person(self.argv(*options), self.folder, self.settings(**settings))
        try:
            person.see(PROMPT)
            yield person
        finally:
            person.end()


@contextmanager
def open_desk(root):
    stub = StubClient()
    with serve(stub) as url:
        yield Desk(root, stub, url)
    assert (stub.refused, [*stub.queue]) == ([], [])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One program for all tests that need none of their own: loading the SDK is slow."""
    root = tmp_path_factory.mktemp("shared") / "desk"
    with open_desk(root) as desk, ExitStack() as running:
        yield SimpleNamespace(desk=desk, stub=desk.stub, running=running, idle=None)


@pytest.fixture
def stub(shared):
    """The API of `person`; in the end nothing may be left in it or have been refused."""
    shared.stub.requests.clear()
    yield shared.stub
    refused, left = [*shared.stub.refused], [*shared.stub.queue]
    shared.stub.refused.clear()
    shared.stub.queue.clear()
    assert (refused, left) == ([], [])


@pytest.fixture
def person(shared, stub):
    """Somebody before an empty prompt, in a new conversation."""
    if shared.idle is None:
        shared.idle = shared.running.enter_context(shared.desk.person())
    person, shared.idle = shared.idle, None
    person.say("/clear")
    yield person
    if person.screen.endswith(PROMPT):  # else a failure left it in the middle of things
        shared.idle = person
    for name in ("file", "old", "pipe"):
        (person.folder / name).unlink(missing_ok=True)


@pytest.fixture
def desk(tmp_path):
    with open_desk(tmp_path / "desk") as desk:
        yield desk


def bash(command, say=""):
    return reply(say, [("bash", {"command": command})])


class Held:
    """What a model answers, but not before it may: then the test is ready for it."""

    def __init__(self, answer):
        self.answer, self.asked, self.may = answer, threading.Event(), threading.Event()

    def __call__(self, request):
        self.asked.set()
        self.may.wait(PATIENCE)
        return self.answer


@pytest.fixture
def pipe(person):
    """The end to read from of a named pipe in the workspace."""
    os.mkfifo(person.folder / "pipe")
    reading = os.open(person.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield reading
    os.close(reading)


def is_held(pipe):
    """Whether a process has the pipe open to write to it."""
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True


def eventually(true):
    """Whether it becomes true within the patience of a test."""
    end = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < end:
        select.select([], [], [], 0.02)
    return true()


# --- Ctrl-C and leaving ---


def test_ctrl_c_at_an_empty_prompt_hints_at_the_way_out(person):
    while not select.select([person.keys], [], [], 0.2)[0]:
        person.press("\x03")  # Python misses one that comes as it begins to wait
    assert "Ctrl-D" in person.see(PROMPT)


def test_ctrl_c_ends_a_command_with_its_children_and_nothing_else(person, stub, pipe):
    stub.enqueue(bash("sleep 600 > pipe & wait"), reply("Still here."))
    person.asked("wait")
    person.press("y\n")
    assert eventually(lambda: is_held(pipe))
    person.stop()
    person.see(PROMPT)
    assert eventually(lambda: not is_held(pipe))
    person.say("and now?", "Still here.")
    (result,) = stub.requests[-1]["messages"][2]["content"]
    assert result["is_error"] and "nterrupted" in result["content"]


def test_ctrl_c_while_the_model_answers_keeps_nothing_of_the_answer(person, stub):
    held = Held(reply("Too late."))
    stub.enqueue(held, reply("In time."))
    person.press("first\n")
    assert held.asked.wait(PATIENCE)
    person.stop()
    person.see(PROMPT)
    held.may.set()
    person.say("second", "In time.")
    first, mark, second = [m["content"] for m in stub.requests[-1]["messages"]]
    assert (first, second) == ("first", "second") and "stopped" in mark


def test_ctrl_c_during_a_summary_leaves_the_conversation_as_it_was(person, stub):
    held = Held(reply("<summary>Too late.</summary>"))
    stub.enqueue(reply("So it is. " * 2000), held, reply("In time."))
    person.say("first", "So it is.")
    person.press("/compact\n")
    assert held.asked.wait(PATIENCE)
    person.stop()
    person.see(PROMPT)
    held.may.set()
    person.say("second", "In time.")
    roles = [message["role"] for message in stub.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_ctrl_c_at_a_question_answers_every_call(person, stub):
    calls = [("bash", {"command": f"touch {name}"}) for name in "ab"]
    stub.enqueue(reply(calls=calls), reply("As you like."))
    person.asked("two at once")
    person.stop()
    person.see(PROMPT)
    person.say("go on", "As you like.")
    answers = stub.requests[-1]["messages"][2]["content"]
    assert [block["is_error"] for block in answers] == [True, True]
    assert not (person.folder / "a").exists()


def test_ctrl_c_ever_so_often_leaves_the_prompt_and_no_traceback(desk):
    desk.stub.queue.extend([reply("So it is. " * 200)] * 60)
    with desk.person() as person:
        for n in range(0, 40, 1 if LONG_TESTS else 2):  # at ever later moments, twice
            person.press("what?\n")
            select.select([], [], [], n * 0.004)
            person.press("\x03")
            select.select([], [], [], 0.002)
            person.press("\x03")
        while select.select([person.keys], [], [], 1)[0] and person.read():
            pass  # until it is quiet
        person.say("")  # or a Ctrl-C that Python missed, as above, takes what is typed
        desk.stub.queue.clear()
        desk.stub.enqueue(reply("Still here."))
        shown = person.say("and now?", "Still here.")
    assert "Traceback" not in shown and "Exception" not in shown


def test_ctrl_c_counts_unless_it_comes_within_0_3_s_of_one_that_did(monkeypatch):
    handlers, now = {}, Mock()
    monkeypatch.setattr(program.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(program.time, "monotonic", now)
    program.handle_signals()
    for now.return_value, counts in [(9, 1), (9.2, 0), (9.29, 0), (9.31, 1), (9.7, 1)]:
        with pytest.raises(KeyboardInterrupt) if counts else nullcontext():
            handlers[signal.SIGINT](signal.SIGINT, None)


def test_a_ctrl_c_that_comes_up_as_an_error_of_readline_is_one(monkeypatch):
    come = Mock(side_effect=[SystemError("an exception set"), EOFError()])
    monkeypatch.setattr("builtins.input", come)
    shown = []
    program.repl(program.Agent(emit=lambda *event: shown.append(event)), "")
    assert "Ctrl-D" in str(shown)


# --- Approvals ---


@pytest.fixture
def ask(monkeypatch):
    """ask(agent, what, *answers, tool="bash"): the screen; ToolError: it was a no."""
    typed, out = [], io.StringIO()
    stdin = SimpleNamespace(isatty=lambda: True, readline=lambda: f"{typed.pop(0)}\n")
    monkeypatch.setattr(program.sys, "stdin", stdin)
    monkeypatch.setattr(program.termios, "tcflush", lambda *_: None)

    def ask(agent, what, *answers, tool="bash"):
        typed[:] = answers
        program.ask_person(program.Terminal(out), agent, tool, what)
        return out.getvalue()

    return ask


@pytest.mark.parametrize("answer", ["y", "Y", "yes", "YES", "ok", "Ok", " y "])
def test_y_yes_and_ok_are_a_yes_this_time(ask, answer):
    ask(agent := program.Agent(), "ls", answer)
    assert agent.allowed == set()


@pytest.mark.parametrize("answer", ["a", "A", "always"])
def test_always_is_a_yes_for_that_tool_and_context_says_so(ask, make, answer):
    ask(agent := make(), "ls", answer)
    ask(agent, "ls")  # no answer is waited for
    assert "not asked about: bash\n" in program.context_table(agent)
    with pytest.raises(program.ToolError):
        ask(agent, "a diff", "n", tool="edit_file")


@pytest.mark.parametrize("answer", ["", "n", "N", "no", "No"])
def test_enter_n_and_no_are_a_no_without_a_reason(ask, answer):
    with pytest.raises(program.ToolError, match=r"refused this call\. Ask what"):
        ask(program.Agent(), "ls", answer)


@pytest.mark.parametrize("answer", ["yes and no", "v", "Not there!"])
def test_any_other_answer_is_a_no_and_its_reason(ask, answer):
    with pytest.raises(program.ToolError, match=f"saying: {answer}"):
        ask(program.Agent(), "ls", answer)


@pytest.mark.parametrize("end", ["\n", "\x04"])
def test_enter_and_ctrl_d_at_a_question_are_a_no(person, stub, end):
    stub.enqueue(bash("touch file"), reply("Then not."))
    person.asked("touch it")
    person.press(end)
    person.see("refused", "Then not.", PROMPT)
    assert not (person.folder / "file").exists()


@pytest.mark.parametrize("tool", ["edit_file", "bash"])
def test_a_command_and_a_change_are_shown_whole_above_the_question(ask, tool):
    what = "\n".join(f"+{n}" for n in range(999)) + "\n"
    *lines, question, _ = ask(program.Agent(), what, "y", tool=tool).split("\n")
    assert lines == [f"  +{n}" for n in range(999)] and question.startswith("Run ")


def test_an_edit_is_asked_for_as_a_diff(person, stub):
    (person.folder / "file").write_text("one\ntwo\n")
    edit = {"path": "file", "old_text": "two", "new_text": "2"}
    stub.enqueue(reply(calls=[("edit_file", edit)]), reply("Then not."))
    person.press("edit it\n")
    assert "\n   one\n  -two\n  +2\nRun" in person.see("Run edit_file?")
    assert b"\x1b[31m  -two\x1b[0m\r\n\x1b[32m  +2\x1b[0m" in person.raw
    person.say("n", "Then not.")


def test_what_was_typed_before_the_question_is_no_answer(person, stub):
    held = Held(bash("touch file"))
    stub.enqueue(held, reply("Then not."))
    person.press("touch it\n")
    assert held.asked.wait(PATIENCE)
    person.press("y\n")
    person.see("y")
    held.may.set()
    person.see("Run bash?")
    person.say("n", "Then not.")
    assert not (person.folder / "file").exists()


def test_the_question_shows_the_whole_command_with_what_one_cannot_see(person, stub):
    lines = [f"echo {letter * 400}" for letter in "ab"]
    lines.append("echo \x1b[2J \u202e \u200b # end")
    stub.enqueue(bash("\n".join(lines)), reply("Then not."))
    question = person.asked("do")
    assert all(line in question for line in lines[:2])
    assert r"echo \x1b[2J \u202e \u200b # end" in question
    person.say("n", "Then not.")


def test_always_holds_for_that_tool_in_this_conversation_only(desk):
    write = reply(calls=[("write_file", {"path": "new", "content": "text"})])
    desk.stub.enqueue(bash("echo 1"), bash("echo 2"), write, reply("First."))
    desk.stub.enqueue(bash("echo 3"), reply("Second."))
    with desk.person(NO_COLOR="1") as person:
        person.asked("first")
        person.press("a\n")
        assert "Run bash?" not in person.see("Run write_file?")
        person.say("n", "First.")
        assert "not asked about: bash\n" in person.say("/context")
        person.say("/clear")
        person.asked("second")
        person.say("y", "Second.")
        assert not re.search(rb"\x1b\[[\d;]*m", person.raw)
        assert person.leave("/quit\n") == 0
    desk.stub.enqueue(bash("echo 4"), reply("Third."))
    with desk.person("--resume") as person:
        person.see("second\n\nSecond.", PROMPT)  # the last question, its answer
        person.asked("third")
        person.say("n", "Third.")
        assert person.leave("\x04") == 0  # Ctrl-D
    assert desk.stub.requests[-1]["messages"][0]["content"] == "second"


# --- Commands ---


def context_of(person):
    """The rows of /context: tokens by name."""
    row = re.compile(r"^(\w[\w. ]+?)  +([\d,]+) +\d+%", re.MULTILINE)
    rows = row.findall(person.say("/context"))
    return {name: int(number.replace(",", "")) for name, number in rows}


def test_context_says_what_fills_the_window_in_tokens(person, stub):
    stub.enqueue(bash("seq 2000"), reply("Counted."))
    person.asked("count")
    person.say("y", "Counted.")
    parts = context_of(person)
    names = "system prompt", "tools", "your words", "assistant", "results of bash"
    assert {*names, "in all"} == {*parts}
    assert parts["results of bash"] > parts["assistant"] > parts["your words"] > 0
    assert abs(sum(parts.values()) - 2 * parts["in all"]) < 10


def test_compact_summarises_with_the_focus_that_was_given(person, stub):
    summary = "<analysis>a</analysis><summary>Seen.</summary>"
    stub.enqueue(reply("So it is. " * 2000), reply(summary), reply("Go on."))
    person.say("what is it?", "So it is.")
    shown = person.say("/compact the names of the files")
    assert "[compact]" in shown and ".transcripts/transcript_" in shown
    assert "the names of the files" in str(stub.requests[-1]["messages"][-1])
    person.say("next", "Go on.")
    first, summary, answer, second = stub.requests[-1]["messages"]
    assert first == typed("what is it?") and "Seen." in str(summary)
    assert answer["role"] == "assistant" and second == typed("next")


def test_context_sums_up_what_was_sent(make):
    agent = make(reply("One."), reply("Two."))
    program.take_turn(agent, "first")
    program.take_turn(agent, "second")
    table = program.context_table(agent)
    sent, read = agent.bill["sent"], agent.bill["read"]
    assert f"sent so far: {sent:,} tokens, {read / sent:.0%} of them" in table
    assert table.endswith(f"transcript: {agent.transcript}")


def test_a_meter_has_twenty_places():
    meters = [program.meter(tokens, 100) for tokens in (0, 50, 100, 300)]
    assert meters == ["#" * n + "." * (20 - n) for n in (0, 10, 20, 20)]


def test_the_status_line_measures_the_context_against_the_threshold(make):
    agent = make(threshold=1_000, counted=500, known=0, cached=0.5, system="s")
    agent.messages, agent.known = [typed("a")], 1
    share = "500 tokens of the 1,000 threshold, 50% cached"
    line = f"[##########..........] {share}"
    assert program.status_line(agent) == line


def test_resume_lists_the_conversations_and_takes_up_the_one_with_the_number(
    person, stub
):
    for n in range(2):
        stub.enqueue(reply(f"Answer {n}."))
        person.say(f"question {n}", f"Answer {n}.")
        assert "/resume" in person.say("/clear")
    newest, oldest, *_ = person.say("/resume").split("\n")[1:]
    assert "question 1" in newest and "2 messages" in newest
    assert "question 0" in oldest and re.search(r"\d{4}-\d\d-\d\d", oldest)
    shown = person.say("/resume 2", "Answer 0.")
    assert "\n\n> question 0\n\nAnswer 0.\n\n> " in shown
    stub.enqueue(reply("Gone on."))
    person.say("and?", "Gone on.")
    assert person.say("/resume").count("question 0") == 1
    assert "no conversation 99" in person.say("/resume 99")
    assert stub.requests[-1]["messages"][0]["content"] == "question 0"


def test_the_numbers_in_the_list_are_those_that_resume_takes(make):
    program.command(agent := make(reply("Yes."), reply("Yes.")), "/resume")
    for word in "one", "two":
        program.take_turn(agent, word)
        program.command(agent, "/clear")
    program.command(agent, "/resume")
    listed = shown_by(agent, "listed")
    hints = ["none yet", "/resume NUMBER takes one up"]
    assert len(listed) == 2 and shown_by(agent, "plain") == hints
    for number, *_, word in map(str.split, listed):
        program.resume(agent, number.removesuffix("."))
        assert agent.messages[0]["content"] == word


def test_one_answer_is_shown_of_a_conversation_that_is_taken_up(make):
    parts = [typed("old"), said("Old."), typed("new"), said("I look."), *did("ok")]
    program.show_last(agent := make(messages=[*parts, said("New.")]))
    assert agent.events == [("plain", "\n> new"), ("text", "New.\n")]


def test_with_nothing_to_compact_compact_says_so_and_asks_nothing(make):
    agent = make(messages=[typed("Hi")])
    program.work_on(agent, "/compact")
    assert shown_by(agent, "layer") == ["[compact] nothing to compact"]
    assert agent.client.requests == []


def test_what_a_subagent_waits_for_is_shown_as_what_the_agent_waits_for(make):
    replies, events = [reply(calls=[TASK]), reply("Its."), reply("Done.")], []
    agent = make(*replies, emit=lambda *event: events.append(event))
    program.take_turn(agent, "Work")
    waits = [text for style, text in events if style == "wait"]
    assert waits == ["waiting for the model"] * 3


@pytest.mark.parametrize(
    "argv, said",
    [
        (["go on please"], "give a file, or a number of /resume"),
        (["3"], "There is no conversation 3"),
        (["0"], "There is no conversation 0"),
    ],
)
def test_resume_with_what_is_no_conversation_says_what_to_give(run, argv, said):
    status, out, err = run("-p", "and?", "--resume", *argv)
    assert (status, out) == (1, "") and said in the_line(err)


def test_help_lists_the_commands(person, stub):
    shown = person.say("/help")
    names = "/compact", "/context", "/resume", "/clear", "/quit", "exit", "Ctrl-C"
    assert all(name in shown for name in names) and stub.requests == []


@pytest.mark.parametrize("line", ["/nonsense", "/", "/hlep", "/compct the names"])
def test_what_is_no_command_gets_one_line_that_names_help(person, stub, line):
    _, said, *prompt = person.say(line).split("\n")
    assert "/help" in said and prompt == ["", "> "] and stub.requests == []


PROMPTS = ["/etc/hosts: what is it?", "/home is full, why?", "/usr/", "/tmp"]
PROMPTS += ["exit the loop early", "quit it"]


@pytest.mark.parametrize("line", PROMPTS)
def test_a_path_and_prose_are_no_commands(line):
    assert not program.is_command(line)


COMMANDS = ["/compact", "/compact all", "/context", "/resume 2", "/clear", "/help"]


@pytest.mark.parametrize("line", [*COMMANDS, "/exit now", "/hlep"])
def test_a_slash_and_a_word_are_a_command_or_meant_as_one(line):
    assert program.is_command(line) and not program.is_command(f"{line[1:]} it")


def test_an_empty_line_does_nothing(person, stub):
    assert person.say("  ").strip() == ">"
    assert stub.requests == []


def test_a_pasted_paragraph_is_one_prompt_and_alt_enter_begins_a_new_line(person, stub):
    stub.enqueue(reply("Pasted."), reply("Went on."))
    person.press("\x1b[200~one\rtwo\rthree\x1b[201~")
    person.say("", "Pasted.")
    person.say("four\x1b\rfive", "Went on.")
    said = [request["messages"][-1]["content"] for request in stub.requests]
    assert said == ["one\ntwo\nthree", "four\nfive"]
    assert b"\x1b[?2004h" in person.raw  # or no terminal marks what is pasted


def test_what_was_typed_can_be_called_back_in_another_run_commands_too(
    person, shared, stub
):
    stub.enqueue(*[reply("Yes.")] * 2)
    person.say("the first prompt", "Yes.")
    person.say("/help")
    history = person.folder / ".transcripts/history"
    assert history.stat().st_mode & 0o777 == 0o600
    with shared.desk.person() as another:
        another.say("\x10", "/compact")  # Ctrl-P: the one before
        another.say("\x10\x10", "Yes.")
    assert stub.requests[-1]["messages"][-1]["content"] == "the first prompt"


def test_a_line_can_be_edited_while_it_is_typed(person, stub):
    stub.enqueue(reply("Hello."))
    person.say("helo\x02l", "Hello.")  # Ctrl-B: back by one
    assert stub.requests[-1]["messages"][0]["content"] == "hello"


# --- What it shows ---


@pytest.mark.parametrize(
    "text, shown",
    [
        (HOSTILE, r"\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end"),
        ("sure\rnever\b\x7f\0", r"sure\rnever\x08\x7f\x00"),
        ("\u2066a\u2069\u061c\u2028\U000e0041", r"\u2066a\u2069\u061c\u2028\U000e0041"),
        ("a\ud800b\u200b", r"a\ud800b\u200b"),
    ],
)
def test_what_steers_hides_or_reorders_is_made_visible(text, shown):
    assert program.visible(text) == shown


WRITTEN = [
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "soft\u00adhyphen, 10\u202f000\xa0km\u3000\u65e5\u672c",
    "lines\n\tand tabs",
]


@pytest.mark.parametrize("text", WRITTEN, ids=ascii)
def test_an_answer_is_shown_and_printed_as_it_is_written(run, api, text):
    api.enqueue(reply(text), reply(text))
    assert run("-p", "Say it")[:2] == (0, f"{text}\n")
    assert f"\n{text}\n[" in run(stdin="Say it\n")[1]


def test_a_line_after_each_answer_says_how_full_the_context_is(person, stub):
    stub.enqueue(reply("Here."), reply("There."))
    person.say("where?", "Here.")
    *_, line, _, _ = person.say("and?", "There.").split("\n")
    used, most, cached = re.findall(r"\d[\d,]*", line)
    assert most == "170,616" and 0 < int(used.replace(",", "")) < 170_616
    assert int(cached) > 50


def test_two_lines_say_first_what_works_where_and_what_it_knows(run):
    Path("AGENTS.md").write_text("Be brief.")
    first, second, *_ = run(MODEL_ID="some-model")[1].split("\n")
    assert first == f"some-model in {Path.cwd()}"
    assert "170,616" in second and second.endswith("; AGENTS.md; /help")
    for name in "ab":
        (folder := Path(".agents/skills", name)).mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: use\n---\n"
        (folder / "SKILL.md").write_text(text)
    known = "; AGENTS.md; skills: a, b; --yes: tools run unasked; /help"
    assert run("--yes")[1].split("\n")[1].endswith(known)


def test_the_prompt_waits_neither_for_the_sdk_nor_for_the_network(desk):
    slow = desk.install / "anthropic.py"
    slow.write_text("import time\ntime.sleep(600)\n")
    with desk.person() as person:  # has seen the prompt
        assert "/help" in person.say("/help")
        person.press("hello\n")
        select.select([], [], [], 0.5)  # until it waits for the SDK
        person.stop()
        person.see("stopped", PROMPT)


def test_the_clock_counts_from_the_first_wait_whatever_is_waited_for(monkeypatch):
    terminal, now = program.Terminal(io.StringIO()), Mock()
    monkeypatch.setattr(program.time, "monotonic", now)
    monkeypatch.setattr(program.time, "sleep", Mock(side_effect=[None, EOFError]))
    for now.return_value, text in (5, "bash"), (8, "newest line\x1b"):
        program.show(terminal, "wait", text)
    now.return_value = 9.2
    with suppress(EOFError):
        program.clock(terminal)
    program.show(terminal, "note", "done")
    line = "\r\x1b[K4 s: newest line\\x1b"
    assert terminal.out.getvalue() == f"{line}\r\x1b[Kdone\n"


def test_after_anything_else_the_clock_draws_nothing(monkeypatch):
    terminal = program.Terminal(io.StringIO())
    monkeypatch.setattr(program.time, "sleep", Mock(side_effect=[None, EOFError]))
    for style in ("wait", "note"):
        program.show(terminal, style, "bash")
    with suppress(EOFError):
        program.clock(terminal)
    assert terminal.out.getvalue() == "bash\n"


def test_what_is_waited_for_is_a_line_that_goes_away_and_ctrl_c_ends_it(desk):
    desk.stub.model_info = first = Held(desk.stub.model_info("any"))
    desk.stub.enqueue(late := Held(reply("At last.")))
    with desk.person(TERM="xterm") as person:
        person.press("hello\n")
        assert first.asked.wait(PATIENCE)
        person.see("waiting for the connection")
        person.stop()
        person.see("stopped", PROMPT)  # neither this nor the client is lost
        first.may.set()
        person.press("hello again\n")
        person.see("1 s: waiting for the model")
        late.may.set()
        after = person.see("At last.", PROMPT)
    assert "\r\x1b[K\nAt last." in after


@pytest.mark.parametrize(
    "text, shown",
    [
        ("1\n2\n3\n", ["1", "2", "3"]),
        ("1\n2\n3\n4", ["1", "2", "3", "4"]),
        ("1\n2\n3\n4\n5", ["1", "(2 more lines)", "4", "5"]),
        ("1\n" * 2_000, ["1", "(1,997 more lines)", "1", "1"]),
        ("1\n\n\n\n\n(exit status 1)", ["1", "(exit status 1)"]),
    ],
)
def test_of_a_result_the_first_line_and_the_last_two_are_shown(text, shown):
    lines = [f"  | {line}" for line in shown]
    assert program.laid_out("result", text).split("\n") == lines


def test_what_failed_is_red(person, stub):
    (person.folder / "file").write_text("1\n\t2\n3\n")
    calls = [("read_file", {"path": "file"}), ("read_file", {"path": "none"})]
    stub.enqueue(reply(calls=calls), reply("Read."))
    assert "] file\n  | 1\n  |     2\n  | 3\n[" in person.say("read", "Read.")
    assert re.search(rb"\x1b\[31m  \| There is no .*none", person.raw)


def test_a_plan_is_a_list_and_what_a_subagent_does_has_its_name(person, stub):
    plan = {"items": ["[x] look", "[ ] act"]}
    task = ("task", {"description": "count", "prompt": "Look."})
    stub.enqueue(reply(calls=[("todo_write", plan), task]))
    stub.enqueue(reply(calls=[("glob", {"pattern": "file"})]), reply("It is\nempty."))
    stub.enqueue(reply("Done."))
    shown = person.say("go", "Done.")
    assert "\n  [x] look\n  [ ] act\n" in shown
    assert "\ncount: [glob] file\n  | count: " in shown
    assert "\n  It is\n  empty.\n" in shown


@pytest.mark.parametrize(
    "style, color", [("layer", "36"), ("note", "2"), ("error", "31")]
)
def test_styles_have_colors_of_their_own_and_none_with_no_color(
    monkeypatch, style, color
):
    out = io.StringIO()
    out.isatty = lambda: True
    program.show(program.Terminal(out), style, "this")
    monkeypatch.setenv("NO_COLOR", "1")
    program.show(program.Terminal(out), style, "that")
    assert out.getvalue() == f"\x1b[{color}mthis\x1b[0m\nthat\n"


@pytest.mark.parametrize("text", ["So.", "So.\n"])
def test_an_empty_line_stands_before_text_and_none_after_it(text):
    out = io.StringIO()
    terminal = program.Terminal(out)
    events = [("note", "a"), ("thinking", "Hm.\n"), *[("text", c) for c in text]]
    for event in [*events, ("tool", "[glob] *"), ("result", "b")]:
        program.show(terminal, *event)
    assert out.getvalue() == "a\nHm.\n\nSo.\n[glob] *\n  | b\n"


def test_of_thinking_three_lines_are_shown_when_it_ends(monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    out = io.StringIO()
    terminal = program.Terminal(out)
    for piece in ["12345\n", "6789", *["abc"] * 50]:
        program.show(terminal, "thinking", piece)
    assert out.getvalue() == ""
    program.show(terminal, "text", "So.")
    program.show(terminal, "text", " So.")
    assert out.getvalue() == f"12345 6789{'abc' * 8}\n\nSo. So."


def test_a_line_is_cut_to_the_columns_of_the_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    assert program.cut_to_screen("abcdefghijklm") == "abcdefghij"


def test_each_call_is_one_line_however_long_it_is(person, stub):
    pattern = "(a|\n" * 1000
    stub.enqueue(reply(calls=[("grep", {"pattern": pattern})]), reply("No."))
    shown = person.say("search", "No.")
    (line,) = [line for line in shown.split("\n") if "[grep]" in line]
    assert len(line) <= 300 and shown.count("(a|") == line.count("(a|")


def test_on_a_terminal_all_but_the_answer_is_dim(person, stub):
    stub.enqueue(reply("Plain.", [("glob", {"pattern": "*"})], thinking="Let me see."))
    stub.enqueue(reply("Done."))
    person.say("what?", "Let me see.\n\nPlain.\n", "Done.")
    assert b"\x1b[2m[glob] *\x1b[0m" in person.raw and b"\x1b[2mPlain" not in person.raw


@pytest.mark.parametrize(
    "replies",
    [
        [reply(HOSTILE)],
        [reply("end", thinking=HOSTILE)],
        [reply(calls=[("grep", {"pattern": HOSTILE})]), reply("end")],
        [reply(calls=[("todo_write", {HOSTILE: HOSTILE})]), reply("end")],
        [api_error(400, HOSTILE)],
    ],
    ids=["text", "thinking", "arguments", "names of arguments", "errors"],
)
def test_nothing_that_arrives_can_steer_the_terminal(person, stub, replies):
    stub.enqueue(*replies)
    assert RAW.findall(person.say("do", "end")) == []


def test_what_a_file_holds_cannot_steer_the_terminal(person, stub):
    (person.folder / "file").write_text(HOSTILE)
    stub.enqueue(bash("cat file"), reply("end"))
    shown = person.asked("show")
    assert RAW.findall(shown + person.say("y", "end")) == []


# --- Without a terminal: in this process, but for what only a process can show ---


def test_p_prints_the_answer_on_stdout_and_all_else_on_stderr(run, api):
    api.enqueue(reply("I look.", [("glob", {"pattern": "*"})]), reply("Nothing here."))
    status, out, err = run("-p", "what is here?")
    assert (status, out) == (0, "Nothing here.\n")
    assert "[glob] *" in err and "Nothing here." not in err
    assert api.requests[0]["messages"][0]["content"] == "what is here?"


@pytest.mark.parametrize(
    "argv, stdin, prompts",
    [
        (["-p", "What?"], "piped\ntext\n", ["piped\ntext\n\n\nWhat?"]),
        (["-p"], "first line\nsecond line", ["first line\nsecond line"]),
        (["question"], "and?\n", ["question", "and?"]),
    ],
)
def test_what_comes_on_standard_input_is_the_prompt_or_more_of_it(
    run, api, argv, stdin, prompts
):
    api.enqueue(*[reply("Good.")] * len(prompts))
    assert run(*argv, stdin=stdin)[0] == 0
    said = [request["messages"][-1]["content"] for request in api.requests]
    assert said == prompts


def test_a_pipe_is_read_to_its_end_and_what_it_waits_for_is_said(monkeypatch, make):
    reading, writing = os.pipe()
    late = threading.Timer(0.1, os.write, [writing, b" and late"])
    last = threading.Timer(0.2, os.close, [writing])
    waits = []
    agent = make(reply("Yes."), emit=lambda *event: waits.append(event))
    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        os.write(writing, b"soon\xff")  # no UTF-8
        late.start(), last.start()
        program.answer_once(agent, "What?")
    assert agent.messages[0]["content"] == "soon\ufffd and late\n\nWhat?"
    assert waits[0] == ("wait", "waiting for the end of what is piped in")


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_no_words_are_a_mistake(run, api, prompt):
    status, out, err = run("-p", prompt)
    assert (status, out, api.requests) == (1, "", []) and "empty" in the_line(err)


def test_two_prompts_of_which_one_would_be_lost_are_a_mistake(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("-p", "one", "two")
    assert "prompt" in capsys.readouterr().err


def test_a_command_that_removes_the_workspace_does_not_end_the_prompt(desk):
    desk.stub.enqueue(bash("rm -rf $PWD"))
    with desk.person() as person:
        person.asked("remove it")
        person.say("y")
        assert "cannot be written" in person.say("and now?")
        assert "Traceback" not in person.say("/clear") + person.say("/resume")
        assert person.leave("/quit\n") == 0
    desk.stub.queue.clear()


def test_git_shows_nothing_of_what_the_program_keeps(run, api):
    subprocess.run(["git", "init", "-q"], check=True)
    api.enqueue(bash("seq 1 60000"), reply("Done."))
    assert run("-p", "count", "--yes")[0] == 0 and Path(".task_outputs").is_dir()
    assert subprocess.check_output(["git", "status", "--porcelain"]) == b""


def test_a_hangup_ends_it_but_not_under_nohup(desk):
    with desk.person() as person:
        for _ in range(5 * PATIENCE):  # as for Ctrl-C
            person.process.send_signal(signal.SIGHUP)
            if select.select([person.keys], [], [], 0.2)[0]:
                break
        assert person.leave("") == 143
    argv = ["bash", "-c", 'trap "" HUP; exec "$0" "$@"', *desk.argv()]
    person = Person(argv, desk.folder, desk.settings())
    person.see(PROMPT)
    person.process.send_signal(signal.SIGHUP)
    assert "/help" in person.say("/help")
    person.end()


def test_escapes_in_an_answer_do_not_reach_a_pipe_raw(run, api):
    api.enqueue(reply(HOSTILE, thinking=HOSTILE))
    status, out, err = run("-p", "do")
    assert status == 0 and "end" in out and RAW.findall(out + err) == []


def test_without_a_terminal_to_ask_on_the_answer_is_no(run, api):
    api.enqueue(bash("touch file"), reply("Then not."))
    status, out, err = run("-p", "touch it", stdin="y\n")
    assert (status, out) == (0, "Then not.\n") and "--yes" in err
    assert (
        results(api.requests[-1]["messages"][-1])[0]["is_error"]
        and not Path("file").exists()
    )


def test_yes_runs_tools_without_asking(run, api):
    api.enqueue(bash("echo $((6 * 7))"), reply("Done."))
    assert run("-p", "count", "--yes")[:2] == (0, "Done.\n")
    assert results(api.requests[-1]["messages"][-1])[0]["content"].strip() == "42"


@pytest.mark.parametrize("leave", ["exit", "quit", "/quit"])
def test_without_a_terminal_lines_of_standard_input_are_prompts(run, api, leave):
    api.enqueue(reply("One."), reply("Two."))
    status, out, _ = run(stdin=f"first\n\nsecond\n{leave}\nthird\n")
    assert status == 0 and re.search("One.*Two.", out, re.DOTALL)
    assert len(api.requests) == 2


def test_a_reader_that_has_seen_enough_is_status_1_without_a_word(
    run, api, monkeypatch
):
    api.enqueue(reply("Done."))
    monkeypatch.setattr(sys, "stdout", Mock(flush=Mock(side_effect=BrokenPipeError)))
    monkeypatch.setattr(program.os, "dup2", left := Mock())
    assert run("-p", "do") == (1, "", "") and left.call_args.args[1] == 1


def test_ctrl_c_ends_p_with_status_130(run, api):
    api.enqueue(lambda _: os.kill(os.getpid(), signal.SIGINT) or reply("Too late."))
    assert run("-p", "do")[:2] == (130, "")


# --- Settings ---


def test_p_needs_only_the_env_file_beside_the_program_and_no_input(desk):
    good = f"ANTHROPIC_API_KEY={KEY}\nANTHROPIC_BASE_URL={desk.url}\nMODEL_ID=beside"
    (desk.install / ".env").write_text(good)
    bad = "ANTHROPIC_BASE_URL=http://127.0.0.1:9\nMODEL_ID=elsewhere\nTHRESHOLD=x"
    (desk.folder / ".env").write_text(bad)
    desk.stub.enqueue(reply("Here."))
    done = desk.answer("-p", "?", ANTHROPIC_API_KEY=None, ANTHROPIC_BASE_URL=None)
    assert (done.returncode, done.stdout) == (0, "Here.\n")
    assert desk.stub.requests[0]["model"] == "beside"


def test_the_command_line_wins_over_the_shell_and_that_over_the_env_file(
    run, api, tmp_path
):
    (tmp_path / ".env").write_text("MODEL_ID=beside\nTHRESHOLD=x")
    api.enqueue(reply("Good."), reply("Good."))
    run("-p", "a", MODEL_ID="shell", THRESHOLD="50000")
    run("-p", "a", "--model", "mine")
    assert [request["model"] for request in api.requests] == ["shell", "mine"]


def test_help_names_the_flags_without_loading_the_sdk():
    argv = [sys.executable, "-X", "importtime", program.__file__, "--help"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    flags = "-p", "--resume", "--model", "--yes", "--demo", "--help"
    assert all(flag in done.stdout for flag in flags)
    said = " ".join(done.stdout.split())
    assert "/help lists the /commands" in said and ".env beside agent.py" in said
    assert "argparse" in done.stderr and "anthropic" not in done.stderr


# --- Mistakes: one line that names what to change ---


def the_line(err):
    """The one line of what was said, beside those about waiting and the transcript."""
    (line,) = [line for line in err.splitlines() if not line.startswith("[")]
    return line


@pytest.mark.parametrize(
    "argv, settings, word",
    [
        ([], {"ANTHROPIC_API_KEY": ""}, "ANTHROPIC_API_KEY"),
        ([], {"THRESHOLD": "many"}, "THRESHOLD"),
        ([], {"CONTEXT_WINDOW": "-5"}, "CONTEXT_WINDOW"),
        ([], {"CONTEXT_WINDOW": "0"}, "CONTEXT_WINDOW"),
        ([], {"KEEP_RECENT": "3.5"}, "KEEP_RECENT"),
        ([], {"MIN_SAVINGS": "1e4"}, "MIN_SAVINGS"),
        ([], {"MAX_MESSAGES": "\uff15"}, "MAX_MESSAGES"),
        ([], {"ANTHROPIC_API_KEY": ""}, "/.env"),
        (["--resume"], {}, "transcript"),
        (["--resume", "no-such-file"], {}, "no-such-file"),
        (["--resume", "."], {}, "conversation"),
    ],
)
def test_a_mistake_of_the_person_is_one_line(run, api, argv, settings, word):
    status, out, err = run("-p", "hello", *argv, **settings)
    assert status in (1, 2) and out == ""
    assert word in the_line(err) and api.requests == []


def test_a_mistake_of_the_person_looks_like_an_error(run, monkeypatch):
    monkeypatch.setattr(program, "show", shown := Mock())
    assert run("-p", "hello", ANTHROPIC_API_KEY="")[0] == 1
    assert [called.args[1] for called in shown.call_args_list] == ["error"]


def test_a_missing_package_is_said_at_once_with_the_command(run, monkeypatch):
    monkeypatch.setattr(program, "PACKAGES", ("dotenv", "no_such_package"))
    status, _, err = run("-p", "hello")
    assert status == 1 and "pip install -r requirements.txt" in the_line(err)


def test_while_the_server_cannot_be_reached_it_says_that_it_waits(run, pauses):
    _, _, err = run("-p", "hello", ANTHROPIC_BASE_URL="http://127.0.0.1:9")
    assert pauses == sorted(pauses) and err.count("[retry]") == len(pauses) == 4


@pytest.mark.parametrize(
    "address", ["nonsense", "http://localhost:port", "http://127.0.0.1:9"]
)
def test_an_address_that_cannot_be_reached_is_named(run, address):
    status, out, err = run("-p", "hello", ANTHROPIC_BASE_URL=address)
    assert status in (1, 2) and out == ""
    assert "ANTHROPIC_BASE_URL" in the_line(err) and address in the_line(err)


# --- Resuming ---


def test_resume_goes_on_with_the_newest_conversation_or_the_one_named(run, api):
    for n in range(3):
        api.enqueue(reply(f"Answer {n}."))
        run("-p", f"question {n}")
    first = min(Path(".transcripts").glob("*.jsonl"), key=os.path.getmtime)
    api.enqueue(reply("Newest."), reply("Named."))
    run("-p", "and?", "--resume")
    run("-p", "and?", "--resume", str(first))
    begun = [request["messages"][0]["content"] for request in api.requests[-2:]]
    assert begun == ["question 2", "question 0"]


def test_resume_takes_the_numbers_of_the_list(run, api):
    for n in range(2):
        api.enqueue(reply(f"Answer {n}."))
        run("-p", f"question {n}")
    api.enqueue(reply("Gone on."))
    assert run("-p", "and?", "--resume", "2")[1] == "Gone on.\n"
    assert api.requests[-1]["messages"][0]["content"] == "question 0"


@pytest.mark.parametrize(
    "line", ["/clear the cache, please", "/quit smoking", "/help me"]
)
def test_a_command_that_takes_nothing_does_nothing_with_words_behind_it(make, line):
    agent = make(messages=[{"role": "user", "content": "Go."}])
    program.work_on(agent, line)
    assert len(agent.messages) == 1 and "/help lists" in shown_by(agent, "error")[0]
