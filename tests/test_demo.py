"""The demonstration: its scenes in their order, without a key, a network or the SDK."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import demo
import pytest

import agent as program

PROGRAM = str(Path(program.__file__).resolve())
# the real program without a way out, which tells in the end what it has loaded
ALONE = f"""
import runpy, socket, sys
socket.socket = None
sys.path.insert(0, {str(Path(PROGRAM).parent)!r})
sys.argv = [{PROGRAM!r}, "--demo"]
try:
    runpy.run_path({PROGRAM!r}, run_name="__main__")
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What `python agent.py --demo` prints to a pipe, as a finished process."""
    folder = tmp_path_factory.mktemp("demo")
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
    options = {"capture_output": True, "encoding": "utf-8", "env": environment}
    argv = [sys.executable, "-c", ALONE]
    return subprocess.run(argv, check=False, cwd=folder, **options)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """play(tty) runs the demonstration in this process: (exit status, what it shows)."""

    def run(tty=False):
        out = io.StringIO()
        out.isatty = lambda: tty
        monkeypatch.setattr(sys, "stdout", out)
        return demo.main(), out.getvalue()

    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    return run


def scenes(shown):
    """What it prints, in parts: before the scenes, each scene, the closing."""
    return re.split(r"^--- ", shown.stdout, flags=re.MULTILINE)


def test_it_ends_well_without_a_key_a_network_or_the_sdk(shown):
    loaded = shown.stderr.split()
    assert (shown.returncode, "stub" in loaded) == (0, True), shown.stdout[-999:]
    assert not {"anthropic", "httpx2", "httpx"} & {*loaded}


def test_it_says_first_that_the_model_is_scripted(shown):
    assert "scripted" in shown.stdout.split("\n")[0]


@pytest.mark.parametrize(
    "scene, layer",
    [
        (1, "tool_result_budget"),
        (2, "micro_compact"),
        (3, "auto_compact"),
        (4, "compact"),
        (5, "compact"),
        (6, "reactive_compact"),
    ],
)
def test_each_scene_shows_its_layer_at_work_in_this_order(shown, scene, layer):
    part = scenes(shown)[scene]
    acted = re.search(
        rf"^\[{layer}\].* ([\d,]+) -> ([\d,]+) tokens", part, re.MULTILINE
    )
    before, after = (int(number.replace(",", "")) for number in acted.groups())
    assert part.startswith(f"{scene}. ") and f"Watch for [{layer}]" in part
    assert before > after


@pytest.mark.parametrize(
    "scene, words",
    [
        (1, "[grep] .task_outputs"),
        (3, "9. Next step"),
        (4, "[compact] the functions"),
        (5, "\n> /compact "),
        (6, "prompt is too long: "),
    ],
)
def test_what_is_told_of_a_scene_can_be_seen_in_it(shown, scene, words):
    assert words in scenes(shown)[scene]


def test_its_last_line_is_the_transcript_which_has_every_result_in_full(shown):
    path = Path(shown.stdout.split("\n")[-2])
    printed = (path.parent.parent / "agent.py").read_text(encoding="utf-8")
    as_json = json.dumps(printed, ensure_ascii=False)[1:-1]
    assert as_json in path.read_text(encoding="utf-8")


def test_it_works_on_a_copy_and_leaves_this_folder_alone(play, workspace):
    status, out = play()
    assert status == 0 and out.count("agent-demo-") == 2
    assert (Path.cwd(), [*workspace.iterdir()]) == (workspace, [])


def test_it_draws_each_request_as_a_bar_and_rules_the_threshold():
    sent = [(1, 2_500, "#"), (1, 10_001, "s"), (3, 11_000, "x"), (3, 0, "#")]
    assert [*demo.picture(sent)] == [
        " 11,000",
        " 10,000 --ssxx--",
        *(f"{row * 1_000:>7,}   ssxx" for row in range(9, 2, -1)),
        *(f"{row * 1_000:>7,} ##ssxx" for row in (2, 1, 0)),
        "  scene 1   3",
    ]


def test_all_it_draws_and_narrates_fits_80_columns(shown):
    wide = [line for line in shown.stdout.split("\n") if len(line) > 80]
    # what names the folder is as long as its path
    assert [
        line for line in wide if not re.search(r"\.transcripts/|/agent-demo-", line)
    ] == []


def test_a_pipe_gets_no_colors(shown):
    assert "\x1b" not in shown.stdout


def test_a_reader_who_has_seen_enough_gets_no_traceback(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    argv = [sys.executable, "-u", PROGRAM, "--demo"]
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, env=environment, **pipes) as process:
        process.stdout.close()  # as `| head` does
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("setting, colored", [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colors_unless_no_color_is_set(
    play, monkeypatch, setting, colored
):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    status, out = play(tty=True)
    assert (status, "\x1b[" in out) == (0, colored)


def test_it_fails_where_a_layer_did_not_act(play, monkeypatch):
    quiet = replace(demo.SCENES[0], layer="snip_compact")
    monkeypatch.setattr(demo, "SCENES", [quiet])
    status, out = play()
    assert status == 1 and "failed" in out.split("\n")[-2]


def test_it_fails_where_the_api_would_refuse_a_request(play, monkeypatch):
    monkeypatch.setattr(program, "drop_thinking", lambda messages, start=0: messages)
    status, out = play()
    assert status == 1 and "signature" in out.split("\n")[-2]
