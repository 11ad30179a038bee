"""The demo: seven scenes, one layer each, without a key or a package."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import demo
import pytest
import scenery
from pseudo import PATIENCE

import agent as program

pytestmark = pytest.mark.slow

PROGRAM = str(Path(program.__file__).resolve())
LAYERS = ["tool_result_budget", "micro_compact", "snip_compact", "auto_compact"]
LAYERS += ["compact", "compact", "reactive_compact"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Output of `python3 -S agent.py --demo` in a pipe, without any packages."""
    return started(tmp_path_factory.mktemp("demo"), PROGRAM, "--demo")


def started(folder, *argv):
    """Run a program in this folder, without packages, and return its output."""
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
    """play(number) runs the demo in this process: (status, stdout, stderr)."""
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)

    def play(number=0):
        with open(os.devnull) as file:
            monkeypatch.setattr(sys, "stdin", file)
            return program.main(["--demo", str(number)]), *capsys.readouterr()

    return play


@pytest.fixture
def terminal(tmp_path):
    """terminal(*keys) presses a key at each prompt: (status, the screen)."""

    def run(*keys):
        master, slave = pty.openpty()
        where = {"env": {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}}
        argv = [sys.executable, PROGRAM, "--demo"]
        files = dict.fromkeys(["stdin", "stdout", "stderr"], slave)
        process = subprocess.Popen(argv, cwd=tmp_path, **files, **where)
        os.close(slave)
        screen = read_to(master, "to quit: ")
        for key in keys:
            stop = key == signal.SIGINT
            process.send_signal(key) if stop else os.write(master, key)
            if stop and not select.select([master], [], [], 5)[0]:
                process.send_signal(key)  # Python missed the first
            screen += read_to(master, "to quit: ")
        os.close(master)  # so that it ends, even if it is waiting
        return process.wait(PATIENCE), screen

    return run


def read_to(master, end):
    """Read the screen up to this text, or until the program has ended."""
    text, ready = "", partial(select.select, [master], [], [], 20)
    with suppress(OSError):  # on Linux, once the program has ended
        while not text.endswith(end) and ready()[0] and (new := os.read(master, 9_999)):
            text += new.decode(errors="replace")
    return text


def scenes(text):
    """Split the output: the opening, the scenes, the closing."""
    return re.split(r"^--- ", text, flags=re.MULTILINE)


def without_names(text):
    """Remove the names of the folder and the transcript, which change each time."""
    return re.sub(r"\S*agent-demo-\w+|transcript_[\w-]+", "", text)


# --- The narration ---


def test_it_opens_with_what_is_scripted_and_then_plays_all_scenes(printed):
    opening, *parts, _ = scenes(printed)
    assert "model is scripted" in opening and "you can delete" in " ".join(
        opening.split()
    )
    assert Path(opening.split()[-1]).name.startswith("agent-demo-")
    wanted = [f"Scene {n} of 7. {layer}" for n, layer in enumerate(LAYERS, 1)]
    assert [part.split(":")[0] for part in parts] == wanted


@pytest.mark.parametrize("number, layer", [*enumerate(LAYERS, 1)])
def test_each_scene_shows_one_layer_what_it_changed_why_and_the_bill(
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
        (1, "| (# more lines; /last shows all)"),
        (1, "+ preview bash #"),
        (1, "request: paid back at once, because even this request got cheaper."),
        (1, "The list is now: you typed; thinking + tool_use bash; preview bash."),
        (2, "+ [Previous: used read_file] #"),
        (2, "+ [Previous: used grep, saved at .../@.txt] #"),
        (2, "- 2 thinking #"),
        (2, "(# tokens were written to the cache again), and each request now saves"),
        (3, "+ note [snipped 13 messages. Transcript: .transcripts/@ #"),
        (4, "| 9. Next step: say how books are ranked, and who asks for it."),
        (4, "+ summary [Conversation compressed. Transcript: .transcripts/@ #"),
        (4, "summary + note; you typed; tool_use bash; tool_result bash."),
        (5, "summary + note; note; you typed; "),
        (
            6,
            "summary + note; ",
        ),
        (7, "note + note; you typed; tool_use todo_write; tool_result todo_write;"),
    ],
)
def test_the_narration_says_what_changed(printed, number, line):
    """In a line, # is a number, and @ a name."""
    narration, pattern = " ".join(scenes(printed)[number].split()), re.escape(line)
    pattern = pattern.replace(r"\#", r"[\d,]+").replace("@", r"\w+")
    assert re.search(pattern, narration)


def test_the_summary_is_broken_into_lines_once(printed):
    lines = re.findall(r"(?m)^    \| (.*)", scenes(printed)[4])
    told = lines.index("<summary>")
    assert all(len(line) > 50 for line in lines[2 : told - 1])
    begins = r"</?summary>|\d\. |   - | +\S"  # or the rest of a long line, indented
    assert [line for line in lines[told:] if not re.match(begins, line)] == []


@pytest.mark.parametrize("setting", ["LOAN_DAYS", "MAX_LOANS"])
def test_the_model_answers_with_the_numbers_that_the_file_has(printed, setting):
    scene = scenes(printed)[3]
    [number] = re.findall(rf"loans\.py:\d+:{setting} = (\d+)", scene)
    answer = scene.split("\n\n")[-2].replace(",", "")
    assert number in re.findall(r"\d+", answer)


def test_each_rejection_has_its_fix_and_there_are_no_others(printed):
    narration = " ".join(scenes(printed)[7].split())
    for fix in demo.REMEDIES:
        told = re.escape(f"(The API rejects it.) {fix} ") + r"\[[\w ]+\] "
        assert re.search(told + re.escape(demo.REFUSAL), narration)
    assert printed.count(demo.REFUSAL) == len(demo.REMEDIES)


def sent(tokens, read, price, mark="#"):
    return demo.Sent(1, mark, tokens, tokens, read, price)


AGAIN = "600 tokens were written to the cache again"


@pytest.mark.parametrize(
    "after, summary, pays",
    [
        # 1,100 tokens, 1,000 of them read, would cost 175; 400 tokens less are 20
        # less in each later request
        (
            sent(700, 0, 225),
            [],
            f"3 more requests, because forgetting cost 50 ({AGAIN})",
        ),
        (
            sent(700, 0, 195),
            [],
            f"1 more request, because forgetting cost 20 ({AGAIN})",
        ),
        (
            sent(700, 0, 195),
            [sent(1_200, 1_000, 100, "s")],
            "6 more requests, because forgetting cost 120 (the summary cost 100, "
            f"{AGAIN})",
        ),
        (
            sent(700, 600, 165),
            [sent(1_200, 1_000, 260, "s")],
            "13 more requests, because forgetting cost 250 (the summary cost 260, "
            "this request costs 10 less), and each request now saves only",
        ),
        (sent(700, 0, 175), [], "at once, because even this request got cheaper."),
        (sent(700, 0, 99), [], "at once, because even this request got cheaper."),
    ],
)
def test_the_bill_says_when_a_change_has_paid_for_itself_and_why(after, summary, pays):
    *_, whole, told = demo.bill([sent(1_000, 0, 1_250), *summary, after], 400)
    assert whole.split()[-3:] == ["1,100", "1,000", "175"]
    told = " ".join(told.split()).replace("paid back after ", "paid back ")
    assert told.startswith(f"400 tokens less in each request: paid back {pays}")


def test_the_picture_has_a_bar_for_each_request_and_names_its_axes():
    sizes = [(1, "#", 2_500), (1, "s", 10_001), (2, "x", 11_000)]
    lines = [*demo.picture([demo.Sent(*size) for size in sizes])]
    assert lines[:3] == [" tokens", " 11,000 |", " 10,000 |-sx threshold"]
    assert lines[-4] == "      0 |#sx" and lines[-2] == "  scene  1 2"
    assert lines[-3].endswith("+---> requests, in order")


def test_without_forgetting_each_request_reads_the_one_before_it_from_the_cache():
    work = [demo.Sent(1, "#", 1_000, 1_000), demo.Sent(2, "#", 400, 1_200)]
    first = 1.25 * 1_000
    assert demo.uncut(work) == first + 0.05 * 1_000 + 1.25 * 200
    assert demo.uncut(work, 100) == first + 0.05 * 1_000 + 1.25 * 100


def test_the_closing_names_prices_of_which_its_words_are_true(printed):
    told = " ".join(scenes(printed)[-1].split())
    found = re.findall(r"(?:cost|would have been) ([\d,]+\d)", told)
    ours, whole, file = (int(price.replace(",", "")) for price in found)
    assert whole - file > whole / 2 and "most of that is scene 1's file" in told
    assert file < ours < whole and "haven't paid for themselves yet" in told


# --- Playing it ---


def test_in_a_pipe_it_prints_80_columns_without_prompts_or_colors(printed):
    assert "to quit:" not in printed and "\x1b" not in printed
    wide = [line for line in printed.split("\n") if len(line) > 80]
    program_own = r"\[\w+\] .* -> .* tokens(; .*)?|.*/agent-demo-.*|kept: .*"
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
def test_on_a_terminal_enter_plays_the_next_scene_and_q_quits(
    terminal, keys, status, parts
):
    left, screen = terminal(*keys)
    assert (left, len(scenes(screen)), "Traceback" in screen) == (status, parts, False)
    asked = re.findall(r"Enter for scene (\d)", screen)
    assert asked == [*"234567"][: len(keys)] and program.COLORS["layer"] in screen


def test_a_second_run_differs_only_in_names_and_leaves_this_folder_alone(
    printed, play, workspace, monkeypatch
):
    def read_for_hours(number):  # the cache stays warm all the same
        clock.append(clock[-1] + 9_999)
        return True

    clock = [0]
    monkeypatch.setattr(demo.time, "time", lambda: clock[-1])
    monkeypatch.setattr(demo, "wants_scene", read_for_hours)
    assert without_names(play()[1]) == without_names(printed)
    assert (Path.cwd(), [*workspace.iterdir()]) == (workspace, [])


def test_its_files_are_made_up_and_no_file_of_ours_is_among_them(play, tmp_path):
    assert play()[0] == 0
    [folder] = tmp_path.glob("agent-demo-*")
    left = {path.name for path in folder.iterdir()} - {".transcripts", ".task_outputs"}
    assert left == scenery.files().keys() | {"NOTES.md"}
    for path in folder.glob("*.py"):
        compile(path.read_text("utf-8"), path.name, "exec")


@pytest.mark.parametrize("day", ["Friday, 2027-01-01", "Wednesday, 2026-12-30"])
def test_a_scene_has_the_same_numbers_on_any_day(monkeypatch, play, printed, day):
    given = demo.time.strftime
    monkeypatch.setattr(
        demo.time, "strftime", lambda f, *at: day if f[:2] == "%A" else given(f, *at)
    )
    _, alone = scenes(without_names(play(2)[1]).partition("\n\nNext: ")[0])
    assert alone == scenes(without_names(printed))[2].rstrip("\n")


@pytest.mark.parametrize("argv", [(PROGRAM, "--demo", "7"), (demo.__file__, "2")])
def test_one_scene_alone_looks_as_it_does_among_all_from_either_program(
    printed, tmp_path, argv
):
    number, text = int(argv[-1]), without_names(started(tmp_path, *argv))
    _, alone = scenes(text.partition("\n\nNext: ")[0])
    assert alone == scenes(without_names(printed))[number].rstrip("\n")


def test_a_reader_who_closes_the_pipe_gets_no_traceback(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes["env"] = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    argv = sys.executable, "-u", PROGRAM, "--demo"
    with subprocess.Popen(argv, **pipes) as process:
        process.stdout.close()  # as `| head` does
        assert b"Traceback" not in process.stderr.read()


# --- When something goes wrong ---


def test_it_fails_if_a_scene_does_not_go_as_scripted(play, monkeypatch):
    monkeypatch.setattr(demo.SCENES[0], "layer", "snip_compact")
    status, out, _ = play(1)
    assert status == 1 and "Scene 1 did not go as scripted" in out
    assert out.endswith(": layers that acted: tool_result_budget\n")


def test_without_summaries_scene_4_shows_the_note_that_replaces_the_history(
    play, monkeypatch
):
    monkeypatch.setattr(demo, "Limits", partial(program.Limits, max_failures=0))
    _, out, _ = play(4)
    assert "    | No summary could be made. The transcript has everything" in out


def test_it_fails_if_the_api_would_reject_a_request(play, monkeypatch):
    monkeypatch.setattr(program, "drop_thinking", lambda messages, start=0: messages)
    assert "signature" in play(2)[1].split("\n")[-2]


def test_a_copy_of_agent_py_alone_says_what_is_missing(tmp_path):
    alone = shutil.copy(program.__file__, tmp_path)
    argv = [sys.executable, alone, "--demo"]
    done = subprocess.run(argv, capture_output=True, text=True)
    missing = tmp_path / "tests/lessons"
    assert done.returncode == 1
    assert done.stdout == f"--demo needs {missing}; clone the whole project.\n"


@pytest.mark.parametrize("number", [-1, 8, 99])
def test_an_unknown_scene_is_one_line_and_status_2(play, number):
    assert play(number) == (2, "", f"There is no scene {number}; choose 1 to 7.\n")
