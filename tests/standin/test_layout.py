"""The programs beside the tests: their imports, and how they start."""

import ast
import os
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from readme import ROOT

TESTS = ROOT / "tests"
TEST_FILES = {path.name for path in TESTS.rglob("test_*.py")}
OUR_FILES = [*sorted(TESTS.glob("*/*.py")), *TESTS.glob("*.py")]
FOLDERS = {path.stem: path.parent.name for path in OUR_FILES}
PROGRAMS = [p for p in OUR_FILES if p.parent != TESTS and p.name not in TEST_FILES]


def imported(path):
    """The names of our files in tests/ that a file imports anywhere."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    plain = [node.names for node in nodes if isinstance(node, ast.Import)]
    return (names | {alias.name for some in plain for alias in some}) & FOLDERS.keys()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_imports_only_from_its_folder_and_the_stand_in(path):
    assert {FOLDERS[name] for name in imported(path)} <= {path.parent.name, "standin"}


@pytest.mark.slow
def test_imports_have_no_cycle():
    TopologicalSorter({path.stem: imported(path) for path in PROGRAMS}).prepare()


def run_alone(command):
    """Run a program with Python alone, in any folder."""
    script, *given = command.split()
    argv = [sys.executable, "-S", "-E", TESTS / script, *given]
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "env": {}}
    return subprocess.run(argv, check=False, **options)


# the programs that the README does not run, and part of their output
STARTED = {
    "measure/pictures.py --help": "usage: ",
    "lessons/faults.py Japanese": "the API counts 3,293",
    "lessons/faults.py --help": "usage: faults.py ",
    "lessons/naive.py --help": "usage: naive.py [CHAPTER ...]",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", STARTED)
def test_a_program_needs_no_package_and_prints_narrow_lines(command):
    done = run_alone(command)
    assert (done.returncode, done.stderr) == (0, "") and STARTED[command] in done.stdout
    most = 79 if command.startswith("lessons/") else 88
    assert max(map(len, done.stdout.split("\n"))) <= most


NOT_THERE = {
    "naive.py 5 12": "There is no chapter 12, only 3, 4, 5, 6, 7, 8, 9, 10.",
    "steps.py layer1 6": "layer1 has the steps 0 to 5",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", NOT_THERE)
def test_a_missing_chapter_or_step_is_reported_in_one_line(command):
    done = run_alone(f"lessons/{command}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{NOT_THERE[command]}\n")


# --- Files that a reader puts into the root ---

OUR_NAMES = {name for name in FOLDERS if not re.match("test_|conftest", name)}
BAD = "input()\nraise SystemExit('a file in the root was imported')\n"
IN_ROOT = OUR_NAMES | {
    "mine",
    "rule",
    "anthropic",
}  # what a reader's files may be called
USES = "-m pytest -q -n0 --collect-only", "tests/lessons/steps.py layer1 0"
USES += "tests/measure/costs.py --help", "-S tests/lessons/demo.py 4"


# Compiled files are copied too, but for those that another process is writing.
BEING_WRITTEN = "*.pyc.*"


def importing_all():
    """The paths of few test files that import all of our files that any of them imports."""
    missing = {path: imported(path) for path in TESTS.rglob("test_*.py")}
    while any(missing.values()):
        path = max(missing, key=lambda path: len(missing[path]))
        yield str(path.relative_to(ROOT))
        missing = {other: names - missing[path] for other, names in missing.items()}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the project, whose root a reader may fill."""
    copy = tmp_path_factory.mktemp("project") / "copy"
    others = shutil.ignore_patterns(BEING_WRITTEN, ".*_cache", ".[hvt]*", ".git", "tmp")
    return shutil.copytree(ROOT, copy, ignore=others)


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_file_in_the_root_changes_no_import(use, copied):
    for name in IN_ROOT:
        (copied / f"{name}.py").write_text(BAD, "utf-8")
    collected = importing_all() if "--collect-only" in use else ()
    argv = [sys.executable, *use.split(), *collected]
    # what one use has compiled, the next ones need not compile again
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    options = {"capture_output": True, "text": True, "cwd": copied, "env": env}
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, **options)
    for name in IN_ROOT:
        (copied / f"{name}.py").unlink()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-999:]
