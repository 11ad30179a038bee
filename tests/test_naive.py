"""Each tutorial's mechanism fails as `naive.py` says it does, and ours does not."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import naive
import pytest
import stub

import agent as program

SCRIPT = Path(naive.__file__)
FUNCTIONS = {
    node.name: node
    for node in ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}
CHAPTERS = [name[8:] for name in FUNCTIONS if name.startswith("chapter_")]


def play(*chapters, **more):
    """naive.py on Python alone: no package, no setting, whatever the folder."""
    program = [sys.executable, "-S", "-E", str(SCRIPT), *chapters]
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "env": {}}
    return subprocess.run(program, check=False, **options, **more)


@pytest.fixture(scope="module")
def output():
    """What all chapters print, which takes seconds and not minutes."""
    done = play(timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def played(output):
    """The lines of each chapter, each paragraph as one line."""
    parts = re.split(r"(?m)^(\d+)\. .*\n", output)[1:]
    whole = [re.sub(r"\n {10}", " ", part) for part in parts[1::2]]
    return dict(zip(parts[::2], whole))


def test_the_output_is_narrow_and_the_same_wherever_it_runs(output, tmp_path):
    assert max(map(len, output.split("\n"))) < 80
    (deep := tmp_path / ("long" * 20)).mkdir()
    program = [sys.executable, "-X", "utf8", "-S", str(SCRIPT)]
    env = {"TMPDIR": str(deep), "LC_ALL": "C"}
    elsewhere = subprocess.check_output(program, env=env, cwd=deep).decode()
    assert elsewhere == output and play("4").stdout in output


# what each chapter ends in: the API's words, a number of damage, a number of ours
ENDINGS = {
    "1": ["prompt is too long: ", " tokens > 200000 maximum", "file 14 is the last"],
    "2": ["does not support assistant message prefill", "unexpected `tool_use_id`"],
    "3": ["3,500 Japanese characters are 875 tokens", "counts 3,281", "187,500"],
    "4": [
        "the model sees 3.",
        "used unknown]",
        "5% from the cache",
        "sees 6, refused: 0",
    ],
    "5": ["summarised 5 times, seen 0 times", "leaves 51, 51, 51", "20 cuts in 44"],
    "6": ["-21,384", "11 of 11 requests are a summary", "0 of 11 requests ask"],
    "7": ["23 of 60 results, the task: True", "23 of 60 results, the task: False"],
    "8": ["0 are left", "2 of 2 stand word for word", "Rename plum to fig"],
    "9": ["2 of 5 are edited", "5 of 5 are edited", "prompt is too long: "],
    "10": [
        "of 9 messages in the first 0 are left",
        "it has 4 of 4 results",
        "takes it: True",
    ],
}
SIGNED = "Invalid `signature` in `thinking` block. The block is bound to a different"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_ends_in_what_the_tutorial_says(played, chapter):
    for words in [*ENDINGS[chapter], *[SIGNED] * (chapter in ("2", "4", "5"))]:
        assert words in played[chapter]
    who = re.findall(r"(?m)^  (\w+)", played[chapter])
    assert who.index("naive") < who.index("damage") < len(who) - 1
    assert who[-1] in ("ours", "Go")


@pytest.mark.parametrize("chapter", ["4", "7"])
def test_prices_are_those_that_the_program_reckons_with_and_are_said(played, chapter):
    words = f"counts {program.CACHE_WRITE}, one that is read from it "
    assert f"{words}{program.CACHE_READ}," in played[chapter]
    [[new, written, known]] = usages = [[1_000, 20_000, 300_000]]
    cached = program.CACHE_WRITE * written + program.CACHE_READ * known
    assert naive.bill(usages) == f"93% from the cache, price {new + cached:,.0f}"


def test_what_is_printed_as_the_api_is_what_the_stub_says(played):
    printed = re.findall(r"(?m)^  API +(.*)", "".join(played.values()))
    source = Path(stub.__file__).read_text(encoding="utf-8")
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    said = "".join(str(node.value) for node in nodes)
    assert len(printed) == 9
    for line in printed:
        words = re.sub(r"^messages\S+: |\d+ tokens.*", "", line)
        assert words[:24] in said


def test_what_the_tutorial_quotes_has_at_most_12_lines_and_says_whose_it_is():
    tutorials = r"(The loop of the tutorials|A cut|s06|s08|v5)\b"
    first = list(FUNCTIONS).index("append_for_ever")
    others = ("chapter_", "main", "edited")
    names = [n for n in list(FUNCTIONS)[first:] if not n.startswith(others)]
    assert len(names) >= 16
    for node in map(FUNCTIONS.get, names):
        assert node.end_lineno - node.lineno < 12
        assert re.match(tutorials, ast.get_docstring(node))


def test_a_chapter_that_does_not_exist_is_one_clear_line():
    done = play("4", "12")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"No chapter 12, only {', '.join(CHAPTERS)}.\n"
