"""The demo: seven scenes, each with its layer, without a key or a package."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import demo
import pytest
from pseudo import PATIENCE

import agent as program

PROGRAM = str(Path(program.__file__).resolve())
LAYERS = ["tool_result_budget", "micro_compact", "snip_compact", "auto_compact"]
LAYERS += ["compact", "compact", "reactive_compact"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What `python3 -S agent.py --demo` prints to a pipe; it has no package to load."""
    return started(tmp_path_factory.mktemp("demo"), PROGRAM, "--demo")


def started(folder, *argv):
    """What a program prints on Python alone, in this folder."""
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-S", *argv],
        check=False,
        capture_output=True,
        text=True,
        env=env,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-999:]
    return done.stdout


@pytest.fixture
def play(tmp_path, monkeypatch, capsys):
    """play(number) runs the demo in this process: (exit status, stdout, stderr)."""
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def play(number=0):
        status = program.play_demo(number, program.Terminal(sys.stdout))
        return status, *capsys.readouterr()

    return play


@pytest.fixture
def terminal(tmp_path):
    """terminal(*keys) gives them to the demo at its prompts: (status, the screen)."""

    def run(*keys):
        master, slave = pty.openpty()
        where = {"env": {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}}
        argv = [sys.executable, PROGRAM, "--demo"]
        files = dict.fromkeys(["stdin", "stdout", "stderr"], slave)
        process = subprocess.Popen(argv, cwd=tmp_path, **files, **where)
        os.close(slave)
        screen = read_to(master, "q: leave ")
        for key in keys:
            stop = key == signal.SIGINT
            process.send_signal(key) if stop else os.write(master, key)
            screen += read_to(master, "q: leave ")
        os.close(master)  # so that it ends, whatever it waits for
        return process.wait(PATIENCE), screen

    return run


def read_to(master, end):
    """What comes on the screen until this text, or until the program has left."""
    text, ready = "", partial(select.select, [master], [], [], 20)
    with suppress(OSError):  # on Linux, when the program has left
        while not text.endswith(end) and ready()[0] and (new := os.read(master, 9_999)):
            text += new.decode(errors="replace")
    return text


def scenes(text):  # after the opening, and the closing after them
    return re.split(r"^--- ", text, flags=re.MULTILINE)


def without_names(text):  # of its folder and its transcript
    return re.sub(r"\S*agent-demo-\w+|transcript_[\w-]+", "", text)


# --- What is told ---


def test_it_says_what_is_scripted_and_may_be_deleted_then_come_the_scenes(printed):
    opening, *parts, _ = scenes(printed)
    assert "model is scripted" in opening and "may be deleted" in opening
    assert Path(opening.split()[-1]).name.startswith("agent-demo-")
    wanted = [f"Scene {n} of 7. {layer}" for n, layer in enumerate(LAYERS, 1)]
    assert [part.split(":")[0] for part in parts] == wanted


@pytest.mark.parametrize("number, layer", [*enumerate(LAYERS, 1)])
def test_each_shows_its_layer_alone_what_changed_why_and_the_bill(
    printed, number, layer
):
    part = scenes(printed)[number]
    [(acted, *counts)] = re.findall(r"(?m)^\[(\w+)\] .* (\S+) -> (\S+) tokens", part)
    before, after = (int(count.replace(",", "")) for count in counts)
    assert acted == layer and before > after
    changes = r"->.*    - .*    \+ .* messages are unchanged.*    The list is now: "
    bill = r"request before.*request after.*without forgetting.* tokens less in each"
    assert re.search(f"(?s){changes}.*    Why: .*{bill} request: paid back ", part)


@pytest.mark.parametrize(
    "number, line",
    [
        (1, "| (# more lines)"),
        (1, "+ preview bash #"),
        (1, "The list is now: you typed; thinking + tool_use bash; preview bash."),
        (2, "+ [Previous: used read_file] #"),
        (2, "+ [Previous: used grep, saved at .../@.txt] #"),
        (2, "- 2 thinking #"),
        (3, "+ note [snipped 13 messages. Transcript: .transcripts/@ #"),
        (4, "| 9. Next step: answer that; if it is done, wait for the user."),
        (4, "+ summary [Conversation compressed. Transcript: .transcripts/@ #"),
        (4, "you typed (4); summary; tool_use read_file; tool_result read_file."),
        (6, "summary; tool_use read_file; tool_result read_file; answer."),
        (7, "summary; tool_use read_file; tool_result read_file; tool_use todo_write;"),
    ],
)
def test_what_changed_can_be_read(printed, number, line):
    words, pattern = " ".join(scenes(printed)[number].split()), re.escape(line)
    pattern = pattern.replace(r"\#", r"[\d,]+").replace("@", r"\w+")
    assert re.search(pattern, words)


def test_each_refusal_has_its_remedy_and_there_are_no_others(printed):
    words = " ".join(scenes(printed)[7].split())
    for remedy in demo.REMEDIES[:2]:
        assert f"(The API refuses it.) {remedy} [refused] {demo.REFUSAL}" in words
    assert printed.count("[refused]") == words.count("[refused]") > 1


def sent(tokens, read, price, mark="#"):
    return demo.Sent(1, mark, tokens, tokens, read, price)


@pytest.mark.parametrize(
    "after, summary, pays",
    [
        # without it 1,100 tokens, 1,000 of them read, cost 175; 50 more at once,
        # and 400 tokens less are 20 less at each request
        (sent(700, 0, 225), [], "after 3 more requests"),
        (sent(700, 0, 195), [], "after 1 more request"),
        (sent(700, 0, 195), [sent(1_200, 1_000, 100, "s")], "after 6 more requests"),
        (sent(700, 0, 175), [], "at once"),
        (sent(700, 0, 99), [], "at once"),
    ],
)
def test_the_bill_says_when_what_it_cost_more_is_paid_back(after, summary, pays):
    *_, whole, last = demo.bill([sent(1_000, 0, 1_250), *summary, after], 400)
    assert whole.split()[-3:] == ["1,100", "1,000", "175"]
    assert last.strip() == f"400 tokens less in each request: paid back {pays}"


def test_the_picture_has_a_bar_for_each_request_and_says_what_its_axes_are():
    sizes = [(1, "#", 2_500), (1, "s", 10_001), (2, "x", 11_000)]
    lines = [*demo.picture([demo.Sent(*size) for size in sizes])]
    assert lines[:3] == [" tokens", " 11,000 |", " 10,000 |-sx threshold"]
    assert lines[-4] == "      0 |#sx" and lines[-2] == "  scene  1 2"
    assert lines[-3].endswith("+---> requests, in their order")


# --- How it is played ---


def test_a_pipe_gets_no_prompt_no_colors_and_80_columns(printed):
    assert "q: leave" not in printed and "\x1b" not in printed
    wide = [line for line in printed.split("\n") if len(line) > 80]
    program_own = r"\[\w+\] .* -> .* tokens(; .*)?|.*/agent-demo-.*"
    assert not [line for line in wide if not re.fullmatch(program_own, line)]


@pytest.mark.parametrize(
    "keys, status, parts",  # parts: the opening, the scenes, and maybe the closing
    [
        ([b"\n"] * 6, 0, 9),
        ([b"\n", b"q\n"], 0, 3),
        ([b"\n", b"\x04"], 0, 3),
        ([b"\n", signal.SIGINT], 130, 3),
    ],
)
def test_on_a_terminal_enter_goes_on_and_one_can_leave(terminal, keys, status, parts):
    left, screen = terminal(*keys)
    assert (left, len(scenes(screen)), "Traceback" in screen) == (status, parts, False)
    asked = re.findall(r"Enter: scene (\d)", screen)
    assert asked == [*"234567"][: len(keys)] and program.COLORS["layer"] in screen


def test_another_run_differs_in_names_alone_and_touches_no_file_here(
    printed, play, workspace, monkeypatch
):
    def read_for_hours(number):  # which lets no cache go cold
        clock.append(clock[-1] + 9_999)
        return True

    clock = [0]
    monkeypatch.setattr(demo.time, "time", lambda: clock[-1])
    monkeypatch.setattr(demo, "goes_on", read_for_hours)
    assert without_names(play()[1]) == without_names(printed)
    assert (Path.cwd(), [*workspace.iterdir()]) == (workspace, [])


@pytest.mark.parametrize("argv", [(PROGRAM, "--demo", "7"), (demo.__file__, "2")])
def test_one_scene_is_played_as_it_is_among_all_by_either_program(
    printed, tmp_path, argv
):
    number, text = int(argv[-1]), without_names(started(tmp_path, *argv))
    _, alone = scenes(text.partition("\n\nOn: ")[0])
    assert alone == scenes(without_names(printed))[number].rstrip("\n")


def test_a_reader_who_has_seen_enough_gets_no_traceback(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes["env"] = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    argv = sys.executable, "-u", PROGRAM, "--demo"
    with subprocess.Popen(argv, **pipes) as process:
        process.stdout.close()  # as `| head` does
        assert b"Traceback" not in process.stderr.read()


# --- What is wrong is said ---


def test_it_fails_where_a_scene_came_out_otherwise(play, monkeypatch):
    monkeypatch.setattr(demo.SCENES[0], "layer", "snip_compact")
    status, out, _ = play(1)
    assert status == 1 and "Scene 1 came out otherwise" in out
    assert out.endswith(": what acted: tool_result_budget\n")


def test_it_fails_where_the_api_would_refuse_a_request(play, monkeypatch):
    monkeypatch.setattr(program, "drop_thinking", lambda messages, start=0: messages)
    assert "signature" in play(2)[1].split("\n")[-2]


def test_of_a_copy_of_agent_py_alone_it_says_what_is_missing(run, tmp_path):
    status, out, _ = run("--demo")
    missing = tmp_path / "tests/lessons"
    assert (status, out) == (1, f"--demo needs {missing}: clone the whole project.\n")


@pytest.mark.parametrize("number", [-1, 8, 99])
def test_a_number_that_is_no_scene_is_one_line_and_status_2(play, number):
    assert play(number) == (2, "", f"There is no scene {number}: give 1 to 7.\n")
