"""Watching a session being forgotten, and continuing one with agent.py."""

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import adopt
import costs
import pytest
import watch
from builders import did, history

import agent as program

pytestmark = pytest.mark.slow

LONGEST = costs.SHAPES / "entire_ad-ff0201aecb-0.jsonl.xz"
[SHORT] = costs.SHAPES.glob("entire_b7*")
[CLEARED] = costs.SHAPES.glob("ctxeval_8f*")


@pytest.fixture
def screen(monkeypatch):
    """screen(columns): make the screen this wide."""
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize(
    "columns, file, clearings", [(80, CLEARED, 2), (200, SHORT, 0)]
)
def test_each_request_is_a_line_that_fits_and_has_its_bar(
    screen, capsys, columns, file, clearings
):
    screen(columns)
    assert watch.main([str(file), "--set", "CONTEXT_WINDOW=60000"]) == 0
    head, *lines, total, last = capsys.readouterr().out.splitlines()
    assert "in a window of 60,000 tokens; its words are made up:" in head
    assert max(map(len, [*lines, total, last])) < columns
    requests = [line for line in lines if re.match(r" *\d+ [█▒·]{10,} +[\d,]+ ", line)]
    assert total.startswith(f"{len(requests)} requests, {clearings} clearing")
    assert last.startswith("Needed by an edit, but out of sight: ")
    others = {line.split()[0] for line in lines if line not in requests}
    layers = {"[tool_result_budget]", "[micro_compact]", "[auto_compact]"}
    assert others <= {"a", "needed,", *layers}
    assert "\x1b" not in "".join(lines)  # there is no terminal


@pytest.mark.parametrize("program", [watch, adopt])
@pytest.mark.parametrize("text", [None, "# notes\n", '{"a": 1}\n'])
def test_a_file_that_is_neither_is_named_in_one_line(capsys, program, text):
    if text is not None:
        Path("file").write_text(text)
    assert program.main(["file"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "file" in err and err.count("\n") == 1


WRONG_SETTINGS = {
    "X=1": "Unknown setting X; choose from ",
    "THRESHOLD=-1": "THRESHOLD=-1: give",
}


@pytest.mark.parametrize("setting", WRONG_SETTINGS)
def test_a_wrong_setting_is_named_in_one_line(capsys, setting):
    assert watch.main(["--set", setting]) == 1
    err = capsys.readouterr().err
    assert err.startswith(WRONG_SETTINGS[setting]) and err.count("\n") == 1


def test_a_negative_pause_is_rejected(capsys):
    with pytest.raises(SystemExit):
        watch.main(["--slow", "-1"])
    assert "--slow" in capsys.readouterr().err


def test_ctrl_c_ends_it_in_the_middle_of_a_turn(monkeypatch):
    stop = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(watch.time, "sleep", stop)
    with pytest.raises(KeyboardInterrupt):
        watch.main([])
    assert stop.call_count == 1


@pytest.mark.parametrize("read, dark", [(0, 0), (100, 5), (300, 10)])
def test_a_request_over_the_window_has_a_bar_as_wide_as_the_window(read, dark):
    assert watch.bar(300, read, 200, 10) == "█" * dark + "▒" * (10 - dark)


def command_shown(capsys, command):
    """The line that shows a request whose reply runs this command."""
    messages = history(did("ok", given={"command": command}))
    Path("session").write_text("\n".join(map(json.dumps, messages)))
    assert watch.main(["session"]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head == "session, in a window of 200,000 tokens:"
    return line


def test_a_command_cannot_control_the_terminal(screen, capsys):
    screen(200)
    assert r"bash clear \x1b[2J" in command_shown(capsys, "clear \x1b[2J")


@pytest.mark.parametrize(
    "tokens, read, drawn",
    [
        (50, 20, "██▒▒▒·····"),
        (100, 0, "▒▒▒▒▒▒▒▒▒▒"),
        (250, 220, "██████████"),
        (250, 50, "█████▒▒▒▒▒"),
    ],
)
def test_a_bar_is_as_wide_as_the_window_even_if_the_request_is_larger(
    tokens, read, drawn
):
    assert watch.bar(tokens, read, window=100, width=10) == drawn


@pytest.mark.parametrize("letter", ["a", "\u4f60", "e\u0301"])
def test_a_line_fits_whatever_the_width_of_its_letters(screen, capsys, letter):
    screen(80)
    line = command_shown(capsys, letter * 90)
    assert 75 < sum(map(program.columns_of, line)) < 80


@pytest.mark.parametrize("setting, colored", [("", True), ("1", False)])
def test_a_terminal_gets_colors_unless_told_otherwise(monkeypatch, setting, colored):
    monkeypatch.setattr(watch.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", setting)
    assert watch.paint("gone", "x").startswith("\x1b[31mx") == colored


def test_an_adopted_session_is_a_conversation_to_resume_and_to_watch(capsys, make):
    assert adopt.main([str(LONGEST)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    path = first.partition(":")[0]
    program.resume(agent := make(), "1")
    assert second == "agent --resume continues it." and str(agent.transcript) == path
    assert f"{len(agent.messages):,} messages" in first
    assert watch.main([path]) == 0 and capsys.readouterr().err == ""


def test_an_adopted_session_that_ends_in_a_call_gets_its_result(capsys):
    messages = history(did("x"), did("y"))
    Path("session").write_text("\n".join(map(json.dumps, messages[:-1])))
    assert adopt.main(["session"]) == 0
    transcript = Path(capsys.readouterr().out.partition(":")[0])
    last = json.loads(transcript.read_text("utf-8").splitlines()[-1])
    [result], [expected] = last["content"], messages[-1]["content"]
    assert result["tool_use_id"] == expected["tool_use_id"]


@pytest.mark.parametrize("name", ["watch.py", "adopt.py"])
def test_it_says_how_it_is_used(name):
    path = Path(watch.__file__).with_name(name)
    command = [sys.executable, path, "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"python3 tests/measure/{name}" in told
