"""Watching a session being forgotten, and continuing one with agent.py."""

import re
import subprocess
import sys
from pathlib import Path

import adopt
import costs
import pytest
import watch

import agent as program

LONGEST = costs.SHAPES / "entire_ad-ff0201aecb-0.jsonl.xz"


@pytest.fixture
def screen(monkeypatch):
    """screen(columns): make the screen this wide."""
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [80, 200])
def test_each_request_is_a_line_that_fits_and_has_its_bar(screen, capsys, columns):
    screen(columns)
    assert watch.main(["--set", "CONTEXT_WINDOW=60000"]) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert "in a window of 60000" in head and max(map(len, lines)) < columns
    requests = [line for line in lines if re.match(r" *\d+ [█▒·]{10,} +[\d,]+ ", line)]
    assert last.startswith(f"{len(requests)} requests, ")
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


def test_an_unknown_setting_is_named_in_one_line(capsys):
    assert watch.main(["--set", "X=1"]) == 1
    assert capsys.readouterr().err.startswith("Unknown setting X; choose from ")


def test_an_adopted_session_is_a_conversation_to_resume_and_to_watch(capsys, make):
    assert adopt.main([str(LONGEST)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    path = first.partition(":")[0]
    program.resume(agent := make(), "1")
    assert second == "agent --resume continues it." and str(agent.transcript) == path
    assert f"{len(agent.messages):,} messages" in first
    assert watch.main([path]) == 0 and capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["watch.py", "adopt.py"])
def test_it_says_how_it_is_used(name):
    path = Path(watch.__file__).with_name(name)
    command = [sys.executable, path, "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"python3 tests/measure/{name}" in told
