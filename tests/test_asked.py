"""Asking for approval: only a line begun after the question answers it."""

import io
import os
import pty
import random
import re
import time
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders import (
    LONG_TESTS,
    bash,
    typed,
)
from pseudo import PATIENCE, PROMPT, Held, User
from stub import reply

import agent as program
from agent import Terminal, context_table, show


@pytest.fixture
def asked(monkeypatch):
    """asked(agent, what, *answers): the terminal, after the user approved this call.

    Raises ToolError if the user refused it.
    """

    def ask(agent, what, *answers, tool="bash"):
        given = iter(answers)
        terminal = Terminal(io.StringIO(), can_ask=True, editor=Mock())

        def read_answer(terminal, question):
            show(terminal, "plain", question)
            return next(given)

        monkeypatch.setattr(program, "read_answer", read_answer)
        ask.terminal = terminal
        program.ask_approval(terminal, agent, tool, what)
        assert [*given] == []
        return terminal

    return ask


YES = "y", "Y", "yes", "YES", "ok", "Ok", " y ", "yes please", "Yes, please!", "okay."
YES += "ｙ", "ＹＥＳ\u3000"  # typed with an input method


@pytest.mark.parametrize("answer", YES)
def test_y_yes_and_ok_approve_one_call_and_enter_alone_asks_again(asked, answer):
    terminal = asked(agent := program.Agent(), "ls", "", "", answer)
    assert (agent.allowed, terminal.queue) == (set(), [])
    assert terminal.out.getvalue().count("Run this command? [y]es") == 3


NO = {"n": [], "N": [], "no": [], "No!": [], "ｎ": []}
NO |= {why: [why] for why in ("Not there!", "no, the other", "why?")}
SENTENCES = "please use pytest instead", "do not run this", "ok but in /tmp"
NO |= {why: [why] for why in SENTENCES}


@pytest.mark.parametrize("answer", NO)
def test_no_refuses_and_any_other_text_refuses_with_a_reason(asked, answer):
    said = r" and said: " + re.escape(answer) if NO[answer] else ""
    with pytest.raises(program.ToolError, match=rf"refused this call.*{said}\Z"):
        asked(program.Agent(), "ls", answer)
    assert asked.terminal.queue == NO[answer]
    history = [call.args[0] for call in asked.terminal.editor.add_history.mock_calls]
    assert history == NO[answer]


ALMOST = "yes, go ahead", "Sure", "sure!", "1", "go", "Go on", "ok but b.py", "y n"
ALMOST += (
    "v",
    "2",
    "d",
    "always git",
    "a y",
    "yes and no",
    "...",
    "okay, and then?",
    "please do",
)


@pytest.mark.parametrize("answer", ALMOST)
def test_a_short_answer_that_is_almost_a_yes_is_asked_again_and_kept(asked, answer):
    terminal = asked(agent := program.Agent(), "ls", answer, "y")
    assert (agent.allowed, terminal.queue) == (set(), [])
    question = f"Run this command? {program.CHOICES}\n"
    seen = f"{question}Please answer y, a or n.\n{question}"
    assert terminal.out.getvalue() == f"  ls\n{seen}"
    terminal.editor.add_history.assert_called_once_with(answer)


OTHER_COMMANDS = (
    "git status -s",
    "git  status",
    "git statu",
    "git",
    "bash git status",
    "edit_file",
)


def test_always_allows_only_the_same_command(asked):
    agent = program.Agent()
    terminal = asked(agent, "git status", "a")
    question = "Run this command? [y]es, [a]lways, [n]o, or say what to do instead:"
    assert f"\n{question}\n" in terminal.out.getvalue()
    asked(agent, "git status")
    for other in OTHER_COMMANDS:
        asked(agent, other, "y")
    asked(agent, "git status\n", "y", tool="write_file")


BEGIN_SO = "git diff", "git diff --stat", "git diff --output=x a.py", 'git diff "a b"'
DIFFERENT = [
    "git difftool",
    "git log",
    "git  diff",
    "a git diff",
    "git diff\n",
    "edit_file",
]
DIFFERENT += [f"git diff a{operator}b" for operator in ";&|<>$`()\n"]


@pytest.mark.parametrize("always", ["a", "always", "A"])
def test_always_and_first_words_allow_plain_commands_that_begin_with_them(
    asked, always
):
    agent = program.Agent()
    terminal = asked(agent, "git diff a.py", f"{always} git diff")
    assert terminal.out.getvalue().endswith("[always] allowed now: git diff ...\n")
    for command in BEGIN_SO:
        asked(agent, command)
    for command in DIFFERENT:
        asked(agent, command, "y")
    asked(agent, "git diff", "y", tool="write_file")
    assert agent.allowed == set() and terminal.queue == []
    assert "runs without asking: bash git diff ...\n" in context_table(agent) + "\n"
    vars(agent).update(vars(program.Conversation()))
    asked(agent, "git diff", "y")


def test_help_says_that_an_allowed_beginning_allows_any_options(asked):
    assert '"a find" allows -delete' in program.HELP
    asked(agent := program.Agent(), "find . -name x", "a find")
    asked(agent, "find . -name x -delete")


READ_ON = [" | head", "| head -5", " | tail -n 20", " | wc -l | head", " 2>&1"]
READ_ON += [" 2>/dev/null", " 2>&1 | tail -3", " | grep -v x", " | grep -n 'a b'| wc"]
READ_ON += [' | grep -iE "x" | grep -A 3 y.py']


@pytest.mark.parametrize("end", READ_ON)
def test_a_command_is_still_a_plain_one_if_what_follows_only_reads_its_output(
    asked, end
):
    agent = program.Agent()
    asked(agent, f"git log{' ' * (end[0] != ' ')}{end}", "a git log")
    asked(agent, f"git log --oneline{end}")


NOT_ONLY = [
    " | sh",
    " 2>&1 > f",
    " | head; rm -rf y",
    " |head-evil",
    " | head f",
    "|| head",
]
NOT_ONLY += [
    " | grep x .env",
    " | grep -r .",
    " | grep -re.",
    " | grep -f .env x",
    " 2>f",
]
NOT_ONLY += [" | grep 'a'-re.", " ' | grep 'x; rm -rf y", ' | grep "-re."', " | grep *"]
NOT_ONLY += [
    " | grep {x,.env}",
    " | grep 3 x",
    " | wc --files0-from=f",
    " |& head",
    " 2>&1x",
]
NOT_ONLY += [
    " && head",
    " | xargs rm",
    " | head & rm y",
    " | grep $x",
    " | tail\nrm y",
    " |",
]
NOT_ONLY += [
    " | head | sh",
    " | /tmp/head",
    " | head -n 5 f",
    " | tee f",
    " | grep \\-re.",
]


@pytest.mark.parametrize("end", NOT_ONLY)
def test_whatever_else_follows_a_command_is_another_one_and_is_asked_about(asked, end):
    agent = program.Agent(beginnings={"bash git log "})
    asked(agent, f"git log x{end}", "y")
    terminal = asked(agent, f"git log x{end}", "a git log", "y")
    assert (
        "It doesn't begin so, or starts another command: y, a ("
        in terminal.out.getvalue()
    )


OTHER_WORDS = {  # a command, and words that it doesn't begin with, or that don't count
    "a git log": "git diff",
    "a git dif": "git diff",
    'a git "diff"': "git diff",
    "a git lgo --oneline -n 5": "git log --oneline -n 5",
    "a git diff": "git diff; rm -rf x",
    "always git diff --stat a.py": "git diff --stat a.py > f",
    "a git;": "git; rm -rf x",
    "a b.py": "b.py",
}


@pytest.mark.parametrize("answer", OTHER_WORDS)
def test_first_words_that_are_not_those_of_a_plain_command_allow_and_refuse_nothing(
    asked, answer
):
    tool = "edit_file" if answer == "a b.py" else "bash"
    agent = program.Agent()
    terminal = asked(agent, OTHER_WORDS[answer], answer, "y", tool=tool)
    assert agent.allowed | agent.beginnings == set() and terminal.queue == []


def test_first_words_at_a_subagents_question_are_allowed_for_its_parent_too(user):
    user.enqueue(SUBAGENT, bash("echo one | wc -l"), reply("Done."))
    user.enqueue(bash("echo two"), reply("So."))
    user.ask("go")
    user.say("a echo", "allowed now: echo ...", "  | 1\n", "echo two\n  | two\n", "So.")


def test_always_and_blanks_allow_only_the_same_command(asked):
    asked(agent := program.Agent(), "  ls", "a  ")
    assert (agent.allowed, agent.beginnings) == ({"bash   ls"}, set())


def test_a_sentence_that_begins_with_a_is_a_message(asked):
    with pytest.raises(program.ToolError, match=r"and said: a better way is pytest\Z"):
        asked(program.Agent(), "git diff", "a better way is pytest")


def test_always_allows_every_change_by_the_same_tool(asked):
    agent = program.Agent()
    terminal = asked(agent, "a.py\n+ a", "ａ", tool="edit_file")
    assert f"\nChange a.py (+1 -0)? {program.CHOICES}\n" in terminal.out.getvalue()
    asked(agent, "b.py\n- b", tool="edit_file")
    asked(agent, "b.py\n- b", "y", tool="write_file")
    asked(agent, "edit_file", "y")


QUESTIONS = {"Allow this call?": {}, "Deploy to prod?": {"question": "Deploy to {}?"}}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_tool_has_its_own_question_and_always_allows_only_the_same_call(
    asked, question
):
    deploy = program.Tool({}, print, **QUESTIONS[question])
    agent = program.Agent(tools={"deploy": deploy})
    terminal = asked(agent, "prod\n- at once", "always", tool="deploy")
    assert terminal.out.getvalue().endswith(f"once\n{question} {program.CHOICES}\n")
    asked(agent, "prod\n- at once", tool="deploy")
    asked(agent, "prod", "y", tool="deploy")
    assert agent.allowed == {"deploy prod\n- at once"}


@pytest.mark.parametrize(
    "fields", [{}, {"auto_approve": True}, {"allowed": {"edit_file"}}]
)
def test_the_whole_call_is_shown_even_if_it_needs_no_approval(asked, fields):
    lines = [f"echo {n} {'x' * 400}" for n in range(99)]
    what = "\n".join(["src/a.py", *lines, "rm -rf \x1b[2J\u202e\u200b"])
    answers = [] if fields else ["y"]
    terminal = asked(program.Agent(**fields), what, *answers, tool="edit_file")
    shown, *seen = terminal.out.getvalue().split("\n")
    assert shown == "  src/a.py" and seen[:99] == [f"  {line}" for line in lines]
    assert seen[99] == r"  rm -rf \x1b[2J\u202e\u200b"
    question = f"Change src/a.py (+0 -0)? {program.CHOICES}"
    assert seen[100:] == ([""] if fields else [question, ""])


def test_unchanged_lines_take_a_row_each_and_the_question_counts_the_changed_ones(
    asked, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "24")
    changes = [f"+{'y' * 99}"] * 3_000 + ["-- old"] * 12
    what = "\n".join(["-a.py", f" {'x' * 2_000}", *changes])
    terminal = asked(program.Agent(), what, "y", tool="edit_file")
    _, unchanged, *others = terminal.out.getvalue().split("\n")
    assert unchanged == f"   {'x' * 18}…"
    assert others[:3_012] == [f"  {line}" for line in changes]
    question = " ".join(others[3_012:])
    assert question.startswith("Change -a.py (+3,000 -12)? [y]es")


@pytest.mark.parametrize("name", ["a.py", "tests/" + "long-" * 9, "tests/" + "x" * 90])
@pytest.mark.parametrize("columns", [40, 80])
def test_no_word_of_the_choices_is_broken_at_the_edge_of_the_screen(
    asked, monkeypatch, name, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    seen = asked(program.Agent(), f"{name}\n+ a", "y", tool="edit_file").out.getvalue()
    rows = seen.split("\n  + a\n")[1].rstrip("\n").split("\n")
    assert max(map(len, rows)) <= columns and "".join(rows).startswith(f"Change {name}")
    assert " ".join(rows).endswith(program.CHOICES)


BLANKS = {  # the text, and what a question shows of it
    f"echo hi{' ' * 3_001}; rm -rf ~": ["echo hi [3,001 blanks] ; rm -rf ~"],
    "a" + "\u3000\t\xad\u200d" * 20 + "b": ["a [80 blanks] b"],
    "a" + " " * 79 + "b": ["a" + " " * 79 + "b"],
    "echo hi\n" + "\n \n" * 20 + "rm": ["echo hi", "[40 empty lines]", "rm"],
    "\n" * 3_000 + "rm": ["[3,000 empty lines]", "rm"],
    "a\n" + "\n" * 9 + "b": ["a", *[""] * 9, "b"],
    "a.py\n" + "+\n" * 5 + "+ \n" * 7 + "+b": ["a.py", "+[12 empty lines]", "+b"],
    "a.py\n" + "+\n" * 9 + "-\n" * 3: ["a.py", *"+" * 9, *"-" * 3],
}


@pytest.mark.parametrize("what", BLANKS, ids=range(len(BLANKS)))
def test_many_blanks_or_empty_lines_are_shown_as_their_number(asked, monkeypatch, what):
    monkeypatch.setenv("COLUMNS", "300")
    terminal = asked(program.Agent(), what, "y", tool="edit_file")
    *seen, question, _ = terminal.out.getvalue().split("\n")
    assert seen == [f"  {line}" for line in BLANKS[what]]
    assert f"(+{what.count('+')} -{what.count(chr(10) + '-')})?" in question


def test_a_command_is_not_colored_like_a_diff():
    terminal = Terminal(io.StringIO(), colored=True)
    agent = program.Agent(auto_approve=True)
    program.ask_approval(terminal, agent, "bash", "cat > a <<E\n- one\n+ two\nE")
    assert terminal.out.getvalue() == "  cat > a <<E\n  - one\n  + two\n  E\n"


def test_after_always_calls_are_shown_but_not_asked_until_clear(user):
    (user.folder / "file").write_text("one\ntwo\n")
    edit = ("edit_file", {"path": "./file", "old_text": "two", "new_text": "2"})
    user.enqueue(bash("echo one"), bash("echo one"), bash("echo one more"))
    user.enqueue(reply(calls=[edit]), reply("First."), bash("echo one"))
    user.ask("work", "[a]lways")
    user.press("a\n")
    first = user.see("[bash]\n  echo one more\n")
    assert "\n[bash]\n  echo one\nRun this command?" in first
    assert "\n> a\n  | one\n[bash]\n  echo one\n  | one\n[bash]\n" in first
    user.see("Run this command?")
    user.press("y\n")
    then = user.see("Change file (+1 -1)? [y]es")
    assert "[edit_file] ./file\n  file\n  @@ -1,2 +1,2 @@\n   one\n  -two\n  +2" in then
    assert b"\x1b[31m  -two\x1b[0m\r\n" in user.raw
    assert b"\x1b[32m  +2\x1b[0m\r\n" in user.raw
    user.press("n\n")
    user.see("refused", "First.", PROMPT)
    assert "runs without asking: bash echo one\n" in user.say("/context")
    user.say("/clear")
    user.ask("again")
    user.stop()


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_a_command_that_prints_nothing_has_a_clock(fresh, desk, options):
    user = fresh(
        bash("until [ -e go ]; do sleep 0.05; done"),
        reply("So."),
        argv=[*desk.argv, *options],
    )
    user.press("go\n")
    if not options:
        user.see_asked()
        user.press("y\n")
    user.see_below("2 s: bash")
    (user.folder / "go").touch()
    user.see("  | (no output)\n", "So.", PROMPT)


# --- A line that was begun before the question doesn't answer it ---

TOUCH = bash("touch made")
SUBAGENT = reply(calls=[("task", {"description": "it", "prompt": "Do it."})])
WAYS = {  # settings, arguments, and the API's replies up to the question
    "live": ({}, [], [TOUCH]),
    "dumb": ({"TERM": "dumb"}, [], [TOUCH]),
    "into a pipe": ({"piped": True}, [], [TOUCH]),
    "-p": ({}, ["-p", "go"], [TOUCH]),
    "-p into a pipe": ({"piped": True}, ["-p", "go"], [TOUCH]),
    "subagent": ({}, [], [SUBAGENT, TOUCH]),
}


@pytest.fixture
def asked_in(desk):
    """asked_in(way, *before): a user who typed these parts before a question came.

    Other arguments are those of `User`.
    """
    users = []

    def start(way, *before, **kind):
        given, more, (first, *others) = WAYS[way]
        held = Held(first)
        desk.stub.enqueue(held, *others)
        desk.stub.always = reply("So.")  # also for a request sent as the test ends
        own = SimpleNamespace(**vars(desk) | {"argv": [*desk.argv, *more]})
        users.append(user := User(own, **given, **kind))
        if not more:
            user.see("\n> " if given else PROMPT)
            user.press("go\n")
        assert held.asked.wait(PATIENCE)
        for part in before:
            user.press(part)
            user.read(0.1)
        held.may.set()
        user.see_asked()
        return user

    yield start
    for user in users:
        user.close()
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()
    (desk.folder / "made").unlink(missing_ok=True)


def wait_until(user, condition):
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, user.screen[-300:]
        user.read(0.1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("begun, rest", [("stop, and not", " please"), ("wh", "y")])
def test_finishing_an_earlier_line_is_a_message_rather_than_an_answer(
    asked_in, desk, way, begun, rest
):
    user = asked_in(way, begun)
    user.press(f"{rest}\n")
    user.read(0.3)
    user.press("n\n")
    message = typed(begun + rest)
    wait_until(user, lambda: message in desk.stub.requests[-1]["messages"])
    assert not (desk.folder / "made").exists()


@pytest.mark.parametrize("way", WAYS)
def test_only_a_line_begun_at_the_question_answers_it(asked_in, desk, way):
    user = asked_in(way, "not this\n", "no", "r this\n")
    user.press("sure\n")
    while user.read(0.3):
        pass  # until the question is repeated
    assert not (desk.folder / "made").exists()
    user.press("ye")
    user.read(0.2)
    user.press("s\n")
    wait_until(user, (desk.folder / "made").exists)


def test_the_user_can_answer_after_deleting_an_earlier_line(asked_in, desk):
    user = asked_in("live", "half a line")
    user.see_below("> half a line")
    user.press("\x15y\n")
    user.see("> y\n", "So.")
    assert (desk.folder / "made").exists()


def test_esc_at_a_question_is_a_no_and_keeps_the_line(asked_in, desk):
    user = asked_in("live", "half a ")
    user.press("\x1b")
    user.see("> n\n", "refused this call", "So.", f"{PROMPT}half a ")
    user.say("line")
    assert typed("half a line") in desk.stub.requests[-1]["messages"]
    assert not (desk.folder / "made").exists()


def test_esc_before_a_question_stops_the_work_instead_of_answering():
    keys, screen = pty.openpty()
    with closing(os.fdopen(os.dup(0))) as before:
        os.dup2(screen, 0)
        os.write(keys, b"\x1b")
        with pytest.raises(KeyboardInterrupt):
            program.read_answer(terminal := Terminal(io.StringIO()), "Sure?")
        os.dup2(before.fileno(), 0)
    assert terminal.answer == ""
    os.close(keys)
    os.close(screen)


UNSEEN = """
import os, sys
sys.path.insert(0, {!r})
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import agent
sys.exit(agent.main())
"""


def test_a_call_is_refused_if_the_user_could_not_see_the_question(desk, fresh):
    python, script = desk.argv
    code = UNSEEN.format(os.path.dirname(script))
    user = fresh(
        bash("touch made"), reply("So."), argv=[python, "-c", code, "-p", "go"]
    )
    user.press("y\n")
    user.see("So.\n")
    assert "use --yes" in str(user.sent) and not (desk.folder / "made").exists()


COMMAND_LINES = (
    "quit",
    "/quit",
    "exit",
    "/clear",
    "/context",
    "!git diff --stat",
    "!y",
    "!no",
)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_typed_at_a_question_isnt_run_but_kept_and_the_question_comes_again(
    asked, line, monkeypatch
):
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    terminal = asked(agent := program.Agent(), "ls", line, "a")
    said = terminal.out.getvalue()
    assert said.count("Run this command?") == 2 and agent.allowed == {"bash ls"}
    assert "Commands work at the prompt: Ctrl-C returns to it." in said
    terminal.editor.add_history.assert_called_once_with(line)


@pytest.mark.parametrize("of", ["the agent's", "a subagent's"])
def test_yes_as_a_command_at_a_question_approves_this_call_and_all_later_ones(user, of):
    calls = [("bash", {"command": "touch one"}), ("bash", {"command": "touch two"})]
    task = ("task", {"description": "look", "prompt": "Look."})
    before, after = ([task], [reply("Done.")]) if of == "a subagent's" else ([], [])
    first = [reply(calls=before)] if before else []
    user.enqueue(*first, reply(calls=calls), *after, reply("So."))
    user.ask("go")
    user.say("/yes", "run without asking", "So.", "not asking")
    assert (user.folder / "one").exists() and (user.folder / "two").exists()


KEYSTROKES = [
    "y",
    "a",
    "ye",
    "s",
    "n",
    "no",
    "why",
    " ",
    "please",
    "ok",
    "\x7f",
    "\x17",
]
KEYSTROKES += [
    "\x15",
    "\t",
    "\x1b[A",
    "\x1bOP",
    "\n",
    "\n",
    "\n",
    "\x1b[200~y\ry\x1b[201~",
]
TYPINGS = 200 if LONG_TESTS else 12


def fresh_lines(before, after):
    """The lines begun after a question, from the keys typed before and after it."""
    line, lines, is_begun = "", [], False
    for number, key in enumerate([*before, *after]):
        if number == len(before):
            is_begun = line != ""
        if key == "\n":
            lines += [] if is_begun or number < len(before) else [line]
            line = ""
        elif key in ("\x15", "\x17", "\x7f"):
            erased = {"\x15": ".+", "\x17": r"\S*\s*\Z", "\x7f": r".\Z"}[key]
            line = re.sub(f"(?s){erased}", "", line)
        else:
            line += re.sub(r"\x1b(\[200~|\[201~|O.|\[A)|\t", "", key).replace(
                "\r", "\n"
            )
        is_begun = is_begun and line != ""
    return lines


@pytest.mark.parametrize("number", range(TYPINGS))
def test_nothing_runs_unless_a_line_begun_at_the_question_approved_it(
    asked_in, desk, number
):
    chance = random.Random(number)
    before, after = (
        chance.choices(KEYSTROKES, k=chance.randrange(7)) for _ in range(2)
    )
    user = asked_in([*WAYS][number % len(WAYS)], *before)
    answered = len(desk.stub.requests)
    for key in after:
        user.press(key)
        user.read(chance.choice([0, 0.02, 0.1]))
    for key in "\n", *["n\n"] * 99:  # end the current line, then refuse
        user.press(key)
        user.read(0.2)
        if len(desk.stub.requests) > answered:
            break
    said = [
        re.findall(r"\w+", line.lower()) for line in fresh_lines(before, [*after, "\n"])
    ]
    is_approved = {*program.YES, "a", "always"} & {*map(" ".join, said)}
    assert is_approved or not (desk.folder / "made").exists()
