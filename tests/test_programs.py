"""The programs beside the tests: which of them may import which, and how they start."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PROGRAMS = sorted(TESTS.glob("*/*.py"))
FOLDERS = {path.stem: path.parent.name for path in [*PROGRAMS, *TESTS.glob("*.py")]}


def imported(path):
    """The names of our files in tests/ that a file imports, wherever in it."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    plain = [node.names for node in nodes if isinstance(node, ast.Import)]
    return (names | {alias.name for some in plain for alias in some}) & FOLDERS.keys()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_imports_of_its_own_folder_and_of_the_stand_in_alone(path):
    assert {FOLDERS[name] for name in imported(path)} <= {path.parent.name, "standin"}


def test_imports_have_no_circle():
    TopologicalSorter({path.stem: imported(path) for path in PROGRAMS}).prepare()


def started(command):
    """A program that is started on Python alone, whatever the folder."""
    script, *given = command.split()
    argv = [sys.executable, "-S", "-E", TESTS / script, *given]
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "env": {}}
    return subprocess.run(argv, check=False, **options)


# each program, and what it prints
STARTED = {
    "measure/costs.py --help": "usage: ",
    "measure/pictures.py --help": "usage: ",
    "lessons/first_run.py": "With its own name.",
    "lessons/small_run.py": "requests: 35, refused: 0",
    "lessons/faults.py Japanese": "the API counts 3,293",
    "lessons/steps.py layer1": "layer1 5: ",
    "lessons/steps.py small": "small 6: ",
}


@pytest.mark.parametrize("command", STARTED)
def test_a_program_needs_no_package_and_its_lines_are_narrow(command):
    done = started(command)
    assert (done.returncode, done.stderr) == (0, "") and STARTED[command] in done.stdout
    most = 79 if command.startswith("lessons/") else 88
    assert max(map(len, done.stdout.split("\n"))) <= most


NOT_THERE = {
    "naive.py 5 12": "No chapter 12, only 3, 4, 5, 6, 7, 8, 9, 10.",
    "steps.py layer1 6": "layer1 has the steps 0 to 5",
}


@pytest.mark.parametrize("command", NOT_THERE)
def test_what_a_lesson_does_not_have_is_one_clear_line(command):
    done = started(f"lessons/{command}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{NOT_THERE[command]}\n")


def test_the_program_names_its_own_packages_as_requirements_txt_does():
    script = (TESTS.parent / "agent.py").read_text("utf-8")
    head = re.search(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$", script)[1]
    fields = dict(line[2:].split(" = ", 1) for line in head.splitlines())
    required = (TESTS.parent / "requirements.txt").read_text("utf-8").split()
    assert ast.literal_eval(fields["dependencies"]) == required
    assert fields["requires-python"] == '">=3.10"'


SAY_IT = {"MODEL_ID", "COMPACTABLE_TOOLS", "TRANSCRIPT_DIR"}


def test_each_constant_is_set_once_and_used_and_each_setting_is_explained():
    source = (TESTS.parent / "agent.py").read_text("utf-8")
    names = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    found = re.findall(r"(?m)^([A-Z][A-Z_0-9]*)(?:: .*)? = ", source)
    assert [name for name in found if name not in used] == []
    assert len(found) == len({*found}) > 80
    settings = re.search(r"(?ms)^# ---- settings.*?(?=^# ---- the state)", source)[0]
    for before, line in pairwise(settings.splitlines()):
        if re.match(r"[A-Z]\w+ = ", line) and line.split()[0] not in SAY_IT:
            assert "  # " in line or before.startswith("# "), line
