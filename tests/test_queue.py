"""Typing at the prompt, and queueing messages while the agent works."""

import io
import locale
import os
import re
import select
import signal
import threading
import time
from contextlib import closing

import pytest
from builders import (
    BASH,
    NO_SUMMARY,
    SMALL,
    SUMMARY,
    TASK,
    TOO_LARGE,
    TOO_LONG,
    bash,
    lines_of,
    on_disk,
    results,
    sized,
    texts,
    turn_into,
    turns,
    typed,
)
from pseudo import PATIENCE, PROMPT, Held, User
from stub import api_error, asks_for_summary, reply

import agent as program
from agent import Terminal, run_command, take_turn

# --- Messages typed during work ---


def lines_written(user):
    """The lines of the newest transcript."""
    paths = (user.folder / ".transcripts").glob("transcript_*.jsonl")
    return lines_of(max(paths, key=lambda path: path.stat().st_mtime_ns))


LASTING = bash("echo up; until [ -e go ]; do sleep 0.05; done")


@pytest.mark.parametrize("compacts", [False, True])
def test_text_typed_during_a_command_is_sent_after_its_results(user, compacts):
    calls = [*LASTING["content"], *reply(calls=[("compact", {})])["content"]]
    user.enqueue(reply(sized(9_000)))
    user.say("Hm?", "x")
    user.enqueue(reply() | {"content": calls[: 1 + compacts]}, *[SUMMARY] * compacts)
    user.enqueue(reply("So."))
    user.ask("Go.")
    user.press("y\n")
    user.see_below(" s: up")
    user.press("Not so!\nAnd h\x7fsoon.\n/help\nha\x1b[D\x7fal")
    user.see_below("3 queued: /help\n> hal")
    (user.folder / "go").touch()
    user.see("\n\n> Not so!\n> And soon.\n", "So.", "\n> /help\n", f"{PROMPT}hal")
    user.say("\x15")
    words = typed("Not so!\nAnd soon.")
    if compacts:
        older, summary, _, first, _, _, newest = lines_written(user)[-2]["messages"]
        assert (older, first, newest) == (typed("Hm?"), typed("Go."), words)
        assert "continue with what comes after it" in texts(summary)[0]
    else:
        *_, answered, heard, _ = lines_written(user)
        assert heard == words and results(answered)[0]["content"] == "up\n"


def test_text_typed_during_the_last_answer_is_the_next_prompt(user):
    held = Held(reply("It is so."), events=4)
    user.enqueue(held, reply("Then not."), reply("Thirdly."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("\n\nno,\nnot so\n/help\nthird\nhalf")
    user.see_below("4 queued: third\n> half")
    held.may.set()
    user.see("It is so.\n[", "\n\n> no,\n> not so\n", "Then not.\n[")
    user.see("\n> /help\n", "/compact [focus]", "\n> third\n", f"{PROMPT}half")
    asked = [message for message in user.sent if message["role"] == "user"]
    assert asked == [typed("first"), typed("no,\nnot so"), typed("third")]
    user.say("\x15")


def test_the_reason_for_a_refusal_joins_the_text_typed_before(user):
    held = Held(bash("touch file"))
    user.enqueue(held, reply("Then not."))
    user.press("touch it\n")
    assert held.asked.wait(PATIENCE)
    user.press("y\nand half a l")
    user.see_below("1 queued: y\n> and half a l")
    held.may.set()
    user.see("Run this command?")
    user.press("ine\n")
    user.see_below("2 queued: and half a line\n> ")
    user.press("not here\n")
    user.see("do instead:\n> not here\n", "refused this call")
    user.see("\n\n> y\n> and half a line\n> not here\n", "Then not.", PROMPT)
    *_, answered, heard, _ = lines_written(user)
    assert heard == typed("y\nand half a line\nnot here")
    assert "not here" in str(answered) and not (user.folder / "file").exists()


def test_what_is_typed_while_a_subagent_works_is_for_its_parent(make):
    task = ("task", {"description": "look", "prompt": "Look."})
    agent = make(reply(calls=[task]), reply(calls=[BASH]), reply("3."), reply("So."))
    heard = ["Never touch a.py."]
    agent.take_queued = lambda: heard.pop() if heard else ""
    turns(agent, "Go.")
    mine, its, again, last = agent.client.requests
    assert "Never touch" not in str(
        [mine["messages"], its["messages"], again["messages"]]
    )
    assert last["messages"][-1] == typed("Never touch a.py.")


LONG_WORK = reply(sized(5_000), calls=[BASH])
CALLERS = {  # what asks for a summary within a turn: the replies before it
    "auto_compact": [reply(sized(14_000), calls=[BASH])],
    "compact": [LONG_WORK, reply(calls=[("compact", {})])],
    "reactive_compact": [LONG_WORK, TOO_LARGE],
}
WRITTEN = {
    "a summary": [SUMMARY],
    "none": [NO_SUMMARY],
    "two steps": [TOO_LONG, SUMMARY, SUMMARY],
    "no answer": [TOO_LONG, TOO_LONG],
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("before", CALLERS.values(), ids=CALLERS)
def test_text_typed_during_a_summary_is_in_the_next_request(make, before, written):
    heard = []

    def summary(request):
        heard.append("Stop: don't touch a.py.")
        return written[0]

    agent = make(*before, summary, *written[1:], reply("So."), **SMALL)
    agent.take_queued = lambda: heard.pop() if heard else ""
    assert take_turn(agent, "Go.") == "So."
    asked = [r for r in agent.client.requests if not asks_for_summary(r)]
    assert asked[-1]["messages"][-1]["content"] == "Stop: don't touch a.py."
    assert "touch" not in str(asked[:-1]) and on_disk(agent)


@pytest.mark.parametrize("before", CALLERS.values(), ids=CALLERS)
def test_a_paste_typed_during_a_summary_passes_layer_1(make, before):
    heard = []

    def summary(request):
        heard.append(sized(100_000))
        return SUMMARY

    agent = make(*before, summary, reply("So."), **SMALL)
    agent.take_queued = lambda: heard.pop() if heard else ""
    take_turn(agent, "Go.")
    newest = agent.client.requests[-1]["messages"][-1]["content"]
    assert "<persisted-output>" in newest and len(newest) < 4_000


def test_text_typed_while_a_subagent_summarises_is_for_its_parent(make):
    heard = []

    def summary(request):
        heard.append("Never touch a.py.")
        return SUMMARY

    its = [reply(sized(14_000), calls=[BASH]), summary, reply("3.")]
    agent = make(reply(calls=[TASK]), *its, reply("So."), **SMALL)
    agent.take_queued = lambda: heard.pop() if heard else ""
    take_turn(agent, "Go.")
    *others, last = agent.client.requests
    assert last["messages"][-1] == typed("Never touch a.py.")
    assert "Never touch" not in str([r["messages"] for r in others])


@pytest.mark.slow
def test_a_message_typed_during_work_survives_ten_compactions(make):
    agent = make(reply(calls=[BASH]), reply("Then not."))
    heard = [["Never touch a.py."]]
    agent.take_queued = lambda: "".join(heard.pop() if heard else [])
    turns(agent, "Go.")
    for number in range(10):
        agent.client.enqueue(reply(sized(1_000)), reply("Yes."), SUMMARY)
        turns(agent, f"And {number}?", "Really?")
        run_command(agent, "/compact")
    asked = [message for message in agent.messages if program.is_typed(message)]
    assert asked[:3] == [typed("Go."), typed("Never touch a.py."), typed("And 0?")]


def test_ctrl_c_returns_queued_text_to_the_prompt_unsent(user):
    held = Held(reply("Too late."), events=4)
    user.enqueue(held, reply("In time."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("do this\n/clear\nand that\nhalf")
    user.see_below("3 queued: and that\n> half")
    asked = len(user.requests)
    user.press("\x03")
    seen = user.see("stopped", f"{PROMPT}do this\n", "half").replace("\r", "")
    held.may.set()
    assert seen.count("half") == 1 and seen.endswith("do this\n/clear\nand that\nhalf")
    user.stopped = time.monotonic()
    assert user.rows == "" and len(user.requests) == asked
    user.say(" a line", "In time.")
    assert user.sent[-1] == typed("do this\n/clear\nand that\nhalf a line")


@pytest.mark.parametrize(
    "keys", ["\x1b\x1b", "\x1b[99;5u"], ids=["Esc", "kitty's Ctrl-C"]
)
@pytest.mark.parametrize("is_asking", [True, False])
def test_esc_or_ctrl_c_as_an_escape_stops_the_work_and_the_next_key_is_not_lost(
    user, keys, is_asking
):
    work = Held(reply("Late."), events=4) if is_asking else bash("sleep 600")
    user.enqueue(work, reply("I stopped."))
    user.press("go\n")
    if isinstance(work, Held):
        assert work.asked.wait(PATIENCE)
    else:
        user.see_asked()
        user.press("y\n")
        user.see_below(" s: bash")
    user.press(keys)
    user.see("\nstopped", PROMPT)
    user.say("stop that", "I stopped.")
    assert user.sent[-1] == typed("stop that")


# keys after an Esc too many, and what is then in the line
AFTER_ESC = {"no, use it": "no, use it", "\x1bplease": "please", "\x1b\x1b7": "7"}
AFTER_ESC |= {"/a?b": "/a?b", "pst": "pst", "Use it": "Use it", "dull": "dull"}
AFTER_ESC |= {"x b\x1bbY": "x Yb", "x b\x1b[1;3DY": "x Yb", "\rx": "\nx"}


@pytest.mark.parametrize("keys", AFTER_ESC, ids=ascii)
def test_at_the_prompt_an_esc_too_many_does_not_take_the_next_key(user, keys):
    user.enqueue(reply("I see."))
    user.press("a\x1b")
    user.read(0.2)
    user.say(keys, "I see.")
    assert user.sent[-1] == typed(f"a{AFTER_ESC[keys]}")


CONTROLS = {"\x15no": "no", "\x17no": "no", "\x01b": "ba", "\x01\x1b\x05b": "ab"}
CONTROLS |= {"\x01\x1b\x0bno": "no", "\x0cb": "ab", "\x10b": "earlierb"}


@pytest.mark.parametrize("keys", CONTROLS, ids=ascii)
def test_at_the_prompt_an_esc_too_many_does_not_take_the_next_control_key(user, keys):
    user.enqueue(reply("Yes."), reply("I see."))
    user.say("earlier", "Yes.")
    user.press("a\x1b")
    user.read(0.2)
    user.say(keys, "I see.")
    assert user.sent[-1] == typed(CONTROLS[keys])


def test_in_vi_mode_esc_still_starts_a_command(desk, fresh):
    (desk.folder / "inputrc").write_text("set editing-mode vi\n")
    user = fresh(reply("I see."), INPUTRC=str(desk.folder / "inputrc"))
    user.say("no!\x1b0xA?", "I see.")
    assert user.sent[-1] == typed("o!?")


def test_an_error_returns_queued_text_to_the_prompt(user):
    refused = threading.Event()

    def refuses(request):
        refused.wait(PATIENCE)
        raise api_error(401, "no key")

    user.enqueue(refuses)
    user.press("first\n")
    user.see_below("> ")
    user.press("more\nha")
    user.see_below("1 queued: more\n> ha")
    refused.set()
    user.see("no key", f"{PROMPT}more\n", "ha")
    user.enqueue(reply("Good."))
    user.say("lf", "Good.")
    assert user.sent[-1] == typed("more\nhalf")


def test_text_queued_behind_a_command_waits_for_it(user):
    held = Held(bash("true"))
    user.enqueue(held, reply("Old."), reply("New."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("more\n/clear\nafter it\n")
    user.see_below("3 queued: ")
    held.may.set()
    user.see_asked()
    user.say("n", "> more\n", "Old.", "\n> /clear\n", "\n> after it\n", "New.")
    assert user.sent == [typed("after it")]


# --- Typing at the prompt ---


EDITED = {
    "helo\x02l": "hello",  # Ctrl-B: one character back
    "\x1b[200~one\rtwo\rthree\x1b[201~": "one\ntwo\nthree",  # pasted
    "four\x1b\rfive": "four\nfive",  # Alt-Enter
    "six\x1b[27;2;13~seven\x1b[13;2u": "six\nseven",  # Shift-Enter, in two forms
    "read no\t, please": "read notes.txt, please",
    "list som\tx": "list some/x",
    "\x1b[200~\r\r  def f(self):\r    pass\r\r\x1b[201~": "  def f(self):\n    pass",
}


@pytest.mark.parametrize("keys", EDITED, ids=ascii)
def test_the_prompt_supports_editing_pasting_and_completion(user, keys):
    (user.folder / "notes.txt").touch()
    (user.folder / "some").mkdir()
    user.enqueue(reply("I see."))
    user.say(keys, "I see.")
    assert user.sent[-1] == typed(EDITED[keys])
    assert b"\x1b[?2004h" in user.raw  # asks the terminal to mark pastes


def test_help_lists_commands_and_keys_and_an_empty_line_does_nothing(user):
    assert user.say("  ").strip() == PROMPT.strip()
    names = "/compact /context /last /resume /clear /quit /exit quit exit Ctrl-C Ctrl-W"
    names += " Backspace Ctrl-U Alt-Enter Up"
    assert {*names.split()} <= {*re.split(r"[,.;\s]+", user.say("/help"))}
    assert user.requests == []


def test_a_command_may_be_typed_in_full_width(fresh):
    user = fresh(forked=False, LC_ALL="C.UTF-8")
    assert "/compact [focus]" in user.say(" ／ｈｅｌｐ")
    assert user.leave("ｅｘｉｔ\n") == 0 and user.requests == []


def test_a_paste_is_one_prompt_and_stays_out_of_the_history(user):
    paste = "\r".join(f"pasted {number}" for number in range(60))
    user.enqueue(reply("I see."))
    user.say(f"\x1b[200~{paste}\x1b[201~", "I see.")
    user.say("/help")
    assert user.sent[-1]["content"].count("pasted") == 60
    history = (user.folder / ".transcripts/history").read_text()
    assert history.endswith("/help\n") and "pasted" not in history


@pytest.mark.parametrize("what", ["../mine", "/dev/zero", "pipe", "folder"])
def test_a_history_that_isnt_a_plain_file_is_neither_read_nor_written(
    fresh, tmp_path, what
):
    (folder := tmp_path / "cloned/.transcripts").mkdir(parents=True)
    (mine := tmp_path / "mine").write_text("typed elsewhere\n")
    (folder / "history").touch()
    turn_into(folder / "history", mine if what == "../mine" else what)
    user = fresh(folder=folder.parent)
    user.press("\x10")
    user.say("/help")
    assert user.leave("\x04") == 0 and "typed elsewhere" not in user.screen
    assert mine.read_text() == "typed elsewhere\n"


def test_the_history_is_available_in_the_next_run(user, desk):
    user.enqueue(reply("Yes."))
    user.say("the first prompt", "Yes.")
    user.say("/help")
    history = os.stat(user.folder / ".transcripts/history")
    assert history.st_mode & 0o777 == 0o600
    with closing(User(desk)) as another:
        another.see(PROMPT)
        for text in "/help", "the first prompt":
            another.press("\x10")  # Ctrl-P: the previous line
            another.see(text)
        assert another.leave("\x15\x04") == 0  # Ctrl-U deletes it


@pytest.mark.parametrize("name", ["C", "xx_XX.UTF-8"])
def test_accents_are_typed_and_remembered_although_the_locale_has_none(
    fresh, desk, name
):
    (desk.folder / ".transcripts").mkdir()
    (desk.folder / ".transcripts/history").write_text("sp\u00e4ter\n")
    user = fresh(reply("So."), reply("Yes."), forked=False, LC_ALL=name)
    user.say("Gr\u00fc\u00dfe", "So.")
    user.press("\x10\x10")  # Ctrl-P twice
    user.see("sp\u00e4ter")
    user.say(" \u00e9\u65e5", "Yes.")
    sent = [
        message["content"] for message in user.sent if type(message["content"]) is str
    ]
    assert sent == ["Gr\u00fc\u00dfe", "sp\u00e4ter \u00e9\u65e5"]


def test_a_locale_that_the_system_lacks_is_not_passed_on_to_commands(monkeypatch):
    def setlocale(category, name=None):
        if name:
            raise locale.Error("unsupported locale setting")
        return "C"

    monkeypatch.setattr(program.locale, "setlocale", setlocale)
    monkeypatch.setenv("LC_ALL", "C")
    with pytest.raises(locale.Error):  # `repl` does without a line editor then
        program.line_editor()
    assert os.environ["LC_ALL"] == "C"


# --- The prompt with libedit, as on macOS ---


@pytest.fixture
def mac_user(fresh):
    """mac_user(*replies): a user at an empty prompt that libedit has drawn."""
    if not (folder := os.environ.get("LIBEDIT")):
        pytest.skip("LIBEDIT must name the folder that .ci/libedit has built")

    def start(*replies):
        settings = {"PYTHONPATH": folder, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
        return fresh(*replies, forked=False, **settings)

    return start


MAC_KEYS = {
    "helo\x02l": "hello",
    "one\ntwo\r  three": "one\ntwo\n  three",  # pasted, without a mark
    "  def f(self):\n\n    pass\n": "  def f(self):\n\n    pass",
    "read no\t, please": "read notes.txt, please",
    "caf\u00e9 \u65e5\u672c": "caf\u00e9 \u65e5\u672c",
}


@pytest.mark.parametrize("keys", MAC_KEYS, ids=ascii)
def test_libedit_supports_editing_pasting_and_completion(mac_user, keys):
    user = mac_user(reply("I see."))
    (user.folder / "notes.txt").touch()
    user.watch(0.2)
    user.say(keys, "I see.", end="> ")
    assert [message["content"] for message in user.sent] == [MAC_KEYS[keys]]
    user.press("\x10")  # Ctrl-P: the previous line
    user.see(MAC_KEYS[keys].split("\n")[-1])
    assert user.leave("\x15\x04") == 0


def test_text_typed_during_work_stands_before_the_prompt_of_libedit(mac_user):
    held = Held(reply("Too late."), events=4)
    user = mac_user(held, reply("In time."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("do this\n/clear\nhalf")
    user.see_below("2 queued: /clear\n> half")
    user.press("\x03")
    user.see("stopped", "\n> do this\n/clear\nhalf")
    held.may.set()
    user.say(" a line", "In time.", end="> ")
    assert user.sent[-1] == typed("do this\n/clear\nhalf a line")


def test_a_hangup_ends_the_program_at_the_prompt_of_libedit(mac_user):
    user = mac_user()
    user.watch(0.2)
    with open(os.devnull) as other:
        os.dup2(other.fileno(), user.keys)  # closes the terminal
    assert user.process.wait(PATIENCE) == -signal.SIGHUP


# --- Typing during work, key by key ---


@pytest.fixture
def keys(monkeypatch):
    """keys(data, ...): the terminal after it has read these parts one by one."""
    read, write = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)
    monkeypatch.setattr(program, "ESC_SECONDS", PATIENCE)

    def write_all(parts):
        for part in parts:
            os.write(write, part.encode() if isinstance(part, str) else part)
            while select.select([read], [], [], 0)[0]:
                time.sleep(0.001)  # until it has been read

    def press(*parts):
        terminal = Terminal(io.StringIO())
        writer = threading.Thread(target=write_all, args=[parts])
        writer.start()
        while writer.is_alive():
            program.read_keys(terminal)
        return terminal

    yield press
    os.dup2(before, 0)
    for number in read, write, before:
        os.close(number)


# em space, left-to-right mark, zero-width space, BOM, a private icon, a flag's tag
PRINTABLE = ["a\u2003b", "a\u200eb", "a\u200bb", "a\ufeffb", "a\ue0b0b", "a\U000e0067b"]
TYPED_LINES = {
    "one\ntwo": (["one"], "two"),
    "one two \x17": ([], "one "),
    "one two\x17\x17x": ([], "x"),
    "one\x15two\b\x7fo": ([], "to"),
    "one\x1b\rtwo\x1b\nthree\n": (["one\ntwo\nthree"], ""),
    "one\x1b[27;2;13~two\x1b[13;2uthree\n": (["one\ntwo\nthree"], ""),
    "a\x1b[200~one\r\ttwo\nthree\x1b[201~z\n": (["aone\n\ttwo\nthreez"], ""),
    "\x1b[200~\x1b[31mred\x07\x9b\x1b[201~": ([], "[31mred"),
    "\x1b[200~left\u202eout\u2066\x1b[201~": ([], "leftout"),
    **{f"{char}\n": ([char], "") for char in PRINTABLE},
    "caf\u00e9 \u65e5\u672c \U0001f468\u200d\U0001f469\n": (
        ["caf\u00e9 \u65e5\u672c \U0001f468\u200d\U0001f469"],
        "",
    ),
    "  \n\n": ([], ""),
    "one\ntwo\n\x1b[A": (["one"], "two"),
    "one\ntwo\n\x1bOA\b\b\bt\x1b[A\n": (["one", "t"], ""),
    "one\n\x1b[A\x15\x1b[Ax": ([], "x"),
    "\x1b[200~\n  def f(self):\n    pass\n\x1b[201~\n": (
        ["  def f(self):\n    pass"],
        "",
    ),
    " ／ＨＥＬＰ\u3000\n／compact\u3000Ａ ½\n/a\x1b\nb\n": (
        ["/HELP", "/compact Ａ ½", "/a\nb"],
        "",
    ),
}
# ignored keys: arrows, Home, Delete, F1 to F5 of several terminals, Alt and Ctrl
IGNORED_KEYS = [
    "\x1b[A",
    "\x1b[1;5D",
    "\x1bOH",
    "\x1b[3~",
    "\x1bOP",
    "\x1b[[A",
    "\x1b[15~",
]
IGNORED_KEYS += [
    "\x1bb",
    "\x1b\x1b[A",
    "\x01",
    "\x0b",
    "\x1bO5P",
    "\x1b[<0;3;4M",
    "\x04",
]


@pytest.mark.parametrize("data", TYPED_LINES, ids=ascii)
def test_keys_may_arrive_byte_by_byte(keys, data):
    heard, line = TYPED_LINES[data]
    for parts in [data], [bytes([byte]) for byte in data.encode()]:
        terminal = keys(*parts)
        assert (terminal.queue, terminal.line) == (heard, line)


@pytest.mark.parametrize("key", IGNORED_KEYS, ids=ascii)
def test_other_keys_are_ignored_wherever_they_are_split(keys, key):
    for at in range(len(key)):
        terminal = keys("on", key[:at], key[at:], "e")
        assert (terminal.line, terminal.queue) == ("one", [])


TERMINAL_ANSWERS = [
    "\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    "\x1b]11;rgb:00/00/00\x07",
]  # OSC
TERMINAL_ANSWERS += ["\x1bP>|tmux 3.4\x1b\\", "\x1bP1$r0m\x1b\\", "\x1b_Gi=31;OK\x1b\\"]
TERMINAL_ANSWERS += [
    "\x1b[24;80R",
    "\x1b[?62;22c",
    "\x1b[?2026;2$y",
    "\x1b[8;24;80t",
]  # CSI


@pytest.mark.parametrize("answer", TERMINAL_ANSWERS, ids=ascii)
def test_an_answer_of_the_terminal_is_no_text(keys, answer):
    assert keys(f"on{answer}e").line == "one"
    assert keys("on", answer, "e").line == "one"


def test_at_the_prompt_some_answers_of_the_terminal_are_no_text(user):
    user.enqueue(reply("I see."))
    user.say(
        "on" + "".join(TERMINAL_ANSWERS[-4:]) + "\x1b[H\x1b[Cf\x1b[F\x1b[De", "I see."
    )
    assert user.sent[-1] == typed("ofen")


def test_input_that_isnt_utf_8_is_replaced(keys):
    assert keys(b"caf\xe9\nthen\n").queue == ["caf\ufffd", "then"]


def test_ctrl_c_while_queued_text_is_taken_does_not_lose_it(make):
    def take():
        signal.raise_signal(signal.SIGINT)
        return "Not so!"

    agent = make(take_queued=take)
    with pytest.raises(KeyboardInterrupt):
        program.send_queued(agent)
    assert agent.messages == [typed("Not so!")]


@pytest.mark.parametrize("stopped", [False, True])
def test_an_unfinished_paste_is_not_sent_until_it_is_complete(user, stopped):
    held = Held(reply("So."), events=4)
    user.enqueue(held, reply("All of it."))
    user.press("go\n")
    assert held.asked.wait(PATIENCE)
    user.press("\x1b[200~one\rtwo\r")
    user.watch(0.2)
    if stopped:
        user.press("\x03")
    else:
        held.may.set()
    user.watch(0.3)
    user.press("three\rfour\x1b[201~")
    user.see(PROMPT, "four")
    held.may.set()
    assert len(user.requests) == 1
    user.say("", "All of it.")
    assert user.sent[-1] == typed("one\ntwo\nthree\nfour")


def test_lines_typed_during_work_are_in_the_history(user):
    held = Held(bash("true"), events=4)
    user.enqueue(held, reply("So."))
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("typed meanwhile\n\x1b[200~pasted\rlines\x1b[201~\n")
    user.see_below("2 queued: ")
    held.may.set()
    user.see_asked()
    user.press("y\n")
    user.see("> typed meanwhile\n> pasted\n> lines\n", "So.", PROMPT)
    history = (user.folder / ".transcripts/history").read_text()
    assert history.endswith("first\ntyped meanwhile\n")
    user.press("\x10\x10")
    user.see("typed meanwhile")
    user.say("\x15")
