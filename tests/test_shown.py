"""The output on the screen, and its format."""

import io
import json
import re
import shutil
import termios
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders import (
    HOSTILE,
    did,
    turns,
    typed,
)
from pseudo import DRAWN, PATIENCE, Held, User, below
from stub import api_error, reply, split
from wire import Cut, mock_client

import agent as program
from agent import Terminal, format_event, show

RAW = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_characters_that_control_hide_or_reorder_text_are_made_visible():
    text = f"{HOSTILE}\rnever\b\x7f\0\ud800\u200b \u2066d\u2069\u061c\u2028\U000e0041"
    seen = r"\x1b]0;title\x07 \x1b[2J \x9b7m \u202e end\rnever\x08\x7f\x00"
    seen += r"\ud800\u200b \u2066d\u2069\u061c\u2028\U000e0041"
    assert program.visible(text) == seen


NOTHING = "\u034f\u115f\u1160\u2800\u3164\ufe00\uffa0\U000e0100\U000e01ef"


@pytest.mark.parametrize("letter", NOTHING, ids=ascii)
def test_letters_that_draw_nothing_are_made_visible(letter):
    assert program.visible(f"a{letter}b") == f"a{ascii(letter)[1:-1]}b"


PRINTABLE = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 lines\n\tand tabs "
PRINTABLE += "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f "
PRINTABLE += "soft\u00adhyphen, 10\u202f000\xa0km\u3000\u65e5\u672c"


def test_an_answer_keeps_printable_unicode(run, api):
    api.enqueue(reply(PRINTABLE), reply(PRINTABLE))
    assert run("-p", "Say it")[:2] == (0, f"{PRINTABLE}\n")
    assert f"\n{PRINTABLE}\n[" in run(stdin="Say it\n")[1]


def test_the_first_two_lines_name_the_model_folder_rules_and_skills(run):
    Path("AGENTS.md").write_text("Be brief.")
    for name in "ab":
        Path(".agents/skills", name).mkdir(parents=True)
        Path(".agents/skills", name, "SKILL.md").write_text("description: use")
    first, second, *_ = run("--yes", MODEL_ID="some-model")[1].split("\n")
    assert first == f"some-model in {Path.cwd()}"
    assert (
        second
        == "AGENTS.md; skills: a, b; --yes: tools run without asking; /help lists the commands"
    )


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 24 columns; `at(seconds)`: the region at the bottom then."""
    monkeypatch.setenv("COLUMNS", "24")
    terminal, now = Terminal(io.StringIO(), live=True), Mock(return_value=0)
    terminal.working.set()

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


def test_the_clock_counts_from_the_first_wait_until_the_next_output(screen):
    screen.at(5)
    show(screen.terminal, "wait", "bash")
    assert screen.at(5.9) == "" and screen.at(8) == "3 s: bash"
    show(screen.terminal, "wait", "this letter is odd: \x1b")
    assert screen.at(9.2) == "4 s: …ter is odd: \\x1b"
    show(screen.terminal, "note", "done")
    assert screen.text() == "done\n" and screen.at(99) == ""


def test_the_clock_returns_when_an_answer_stalls(screen):
    show(screen.terminal, "wait", "the model")
    screen.at(1)
    show(screen.terminal, "text", "So it")
    assert screen.at(1.9) == "So it" and screen.at(7) == "So it\n6 s: the model"
    show(screen.terminal, "text", " is.")
    assert screen.at(8) == "So it is."
    assert screen.at(12.1) == "So it is.\n5 s: the model"
    show(screen.terminal, "note", "done")
    assert screen.text() == "\nSo it is.\ndone\n"


def test_a_new_region_replaces_the_old_one_in_one_synchronised_update(screen):
    screen.at(5)
    show(screen.terminal, "wait", "bash")
    screen.at(7)
    screen.at(8)
    first, new = (f"\x1b[?7l{n} s: bash\x1b[?7h\x1b[?2026l" for n in (2, 3))
    written = f"{first}\x1b[?2026h\r\x1b[J{new}"
    assert screen.terminal.out.getvalue() == written


NAME = "\x1b[2Jone\ntwo"


def test_the_clock_stays_on_one_row_and_never_steers_the_terminal(screen):
    show(screen.terminal, "wait", f"writing {NAME}")
    assert (
        screen.at(3) == "" and "\n" not in screen.at(5) and "\x1b" not in screen.at(5)
    )


def test_the_clock_says_how_much_of_a_summary_is_written(make):
    said = []
    text = "<summary>All is well.</summary>"
    agent = make(
        api_error(529, "Overloaded"),
        reply(text, thinking="What was it?"),
        reply("So."),
        messages=[typed("Go."), *did("old" * 900), *did("new")],
    )
    agent.emit = lambda style, text: said.append((style, text))
    agent.focus = ""
    turns(agent, "Go on.")
    first, again, second, *written, last = [t for style, t in said if style == "wait"]
    assert re.fullmatch(r"summarising, context [\d,]+ of 167,000 tokens", first)
    assert (again, second) == ("try 2 of 7 in 1 s", first)
    sizes = [int(re.sub(r"\D", "", line)) for line in written]
    assert sizes == sorted({*sizes}) and sizes[-1] == len("What was it?" + text)
    assert written[-1] == f"summarising, {sizes[-1]} characters written"
    full = r"waiting for the model, context [\d,]+ of 167,000 tokens"
    assert re.fullmatch(full, last)
    assert "".join(text for style, text in said if style in program.DELTAS) == "So."


def test_an_answer_that_breaks_off_is_marked_as_discarded(screen, make):
    agent = make()
    agent.client = mock_client(Cut(reply("It is so, says one."), 4), reply("It is so."))
    agent.emit = partial(show, screen.terminal)
    turns(agent, "Is it?")
    seen = screen.text()
    assert re.search(
        r"(?s)\A\nIt is.*\n\(The reply broke off and was discarded\.\).*\[retry\] ",
        seen,
    )
    show(screen.terminal, "note", "end")
    show(screen.terminal, "void", "nothing was written")
    assert screen.text().endswith("\n\nIt is so.\nend\n")


def test_the_clock_shows_thinking_and_the_size_of_a_growing_call(user):
    call = ("write_file", {"path": "file", "content": "text"})
    thinks = Held(reply(calls=[call], thinking="I look at it now."), events=4)
    writes = Held(reply(calls=[call]), events=3)
    user.enqueue(thinks, writes, reply("At last."))
    user.press("write it\n")
    user.see_below(" s: I look at")
    thinks.may.set()
    user.see("[thinking] I look at it now.\n[write_file] file\n")
    user.see("Change file")
    user.press("n\n")
    size = len(split(json.dumps(call[1]), 2)[0])
    user.see_below(f" s: writing a call, {size} characters")
    writes.may.set()
    user.see("[write_file] file\n")
    user.see("Change file (+1 -0)?")
    user.say("y", "At last.")


TOO_WIDE = "12345\n6789 " + "abc" * 50
CUT = dict.fromkeys(["plain", "command", "added", "text"], TOO_WIDE)
CUT |= dict.fromkeys(["tool", "listed", "context"], f"12345 6789 {'abc' * 3}a…")
CUT |= dict.fromkeys(["result", "failed"], f"  | 12345\n  | 6789 {'abc' * 4}…")
CUT["thinking"] = f"12345 6789 {'abc' * 19}a…"


@pytest.mark.parametrize("style", CUT)
def test_a_line_cut_to_the_screens_width_ends_in_an_ellipsis(screen, style):
    assert format_event(style, TOO_WIDE) == CUT[style]


def test_a_wide_letter_counts_as_two_columns(screen):
    room = len(format_event("tool", "e" * 99)) - 1  # without the ellipsis
    assert format_event("tool", "文" * 99) == "文" * (room // 2) + "…"


SHOWN_RESULTS = {
    "1\n2\n3\n4\n": "1|2|3|4",
    "1\n\n\n\n\n(exit)": "1|(3 more lines; /last shows all)||(exit)",
}
SHOWN_RESULTS |= {"1\n2\n3\n4\n5": "1|(2 more lines; /last shows all)|4|5"}


@pytest.mark.parametrize("text", SHOWN_RESULTS)
def test_a_result_is_shortened_to_its_first_and_last_two_lines(text):
    lines = format_event("result", text).split("\n")
    assert lines == [f"  | {line}" for line in SHOWN_RESULTS[text].split("|")]


@pytest.mark.parametrize("end", ["", "\n"])
def test_text_has_a_blank_line_before_it_and_none_after(screen, end):
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
def test_colors_are_off_on_a_dumb_terminal_or_with_no_color(desk, settings):
    with closing(User(desk, ANTHROPIC_API_KEY="", **settings)) as user:
        assert user.leave("") == 1 and "\nNo API key" in user.screen
        assert (b"\x1b[31mNo API key" in user.raw) is (settings == {})


def test_no_color_can_be_set_in_the_env_file(desk, tmp_path):
    (tmp_path / ".env").write_text("NO_COLOR=yes\n")
    script = shutil.copy(desk.argv[1], tmp_path)
    own = SimpleNamespace(**vars(desk) | {"argv": [desk.argv[0], script]})
    with closing(User(own)) as user:
        user.see("\n> ")
        assert not re.search(rb"\x1b\[\d*m", user.raw)


def test_a_whole_turn_is_readable(user):
    (user.folder / "file").write_text("1\n\t2\n3\n")
    plan = ("todo_write", {"items": ["[x] look", "[ ] act"]})
    reads = [("read_file", {"path": name}) for name in ("file", "none")]
    task = ("task", {"description": "count", "prompt": "Look."})
    user.enqueue(reply("I plan.", [plan, *reads, task], thinking="Let me see."))
    user.enqueue(reply("I look.", [("glob", {"pattern": "file"})]))
    user.enqueue(reply("It is\nthere."), reply("Done."))
    seen = user.say("go", "\n\nDone.\n[")
    assert "\n[thinking] Let me see.\n\nI plan.\n[todo_write]\n  [x] look\n" in seen
    assert "\n  [ ] act\n[read_file] file\n[read_file] none\n  | There is no" in seen
    assert "\n[task] count\ncount: [glob] file\n  | file\n  It is\n  there.\n" in seen
    colored = rb"(?s)\x1b\[2m\[thinking\] .*\x1b\[2m\[task\] count\x1b\[0m"
    assert re.search(colored, user.raw) and b"mI plan" not in user.raw
    assert re.search(rb"\x1b\[31m  \| There is no .*none", user.raw)
    assert user.raw.endswith(b"\r\n\x1b[1m> \x1b[0m")


def test_nothing_from_the_model_or_a_tool_can_steer_the_terminal(user):
    (user.folder / "file").write_text(HOSTILE)
    calls = [("grep", {"pattern": HOSTILE}), ("todo_write", {HOSTILE: HOSTILE})]
    calls += [("todo_write", {"items": [HOSTILE]}), ("read_file", {"path": "file"})]
    user.enqueue(reply(HOSTILE, calls, thinking=HOSTILE))
    user.enqueue(api_error(400, HOSTILE))
    seen = user.say("do", "[read_file]", "and go on")
    assert RAW.findall(seen) == [] and seen.count("u202e end") == 6


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_dumb_terminal_gets_only_text_and_no_color_means_no_colors(fresh, settings):
    held = Held(reply("It is so."), events=4)
    user = fresh(held, reply("Then not."), **settings)
    user.press("first\n")
    assert held.asked.wait(PATIENCE)
    user.press("not so\nha")
    if "TERM" in settings:
        user.see("not so\nha")
    else:
        user.see_below("> ha")
    is_canonical = termios.tcgetattr(user.keys)[3] & termios.ICANON
    held.may.set()
    user.see("so.\n[", "\n\n> not so\n", "Then not.\n[", "\n> ")
    assert b"m" not in re.findall(rb"\x1b\[[\d;?]*(.)", user.raw)
    assert (b"\x1b" not in user.raw) == bool(is_canonical) == ("TERM" in settings)
    user.press("\x15")
    assert user.leave("\x04") == 0


def test_seven_tries_share_one_line_with_a_countdown(make):
    said = []
    agent = make(*[api_error(529, "Overloaded")] * 7)
    agent.emit = lambda *event: said.append(event)
    program.handle_line(agent, "Go.")
    waits = [text for style, text in said if style == "wait" and "try" in text]
    assert waits[:4] == [
        f"try {n} of 7 in {s} s" for n, s in ((2, 1), (3, 2), (3, 1), (4, 4))
    ]
    assert len(waits) == 63 and waits[-1] == "try 7 of 7 in 1 s"
    told = [event for event in said if event[0] not in ("wait", "void")]
    assert told == [
        ("layer", "[retry] Overloaded. Trying up to 7 times."),
        ("error", "Overloaded."),
        ("note", 'Your request is kept: when ready, type "go on".'),
    ]
