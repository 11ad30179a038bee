"""What a program for readers prints, in this process: to start it takes far longer.

With LONG_TESTS=1 each is started, as a reader does it.
"""

import os
import runpy
import shlex
import sys
import tempfile
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from types import ModuleType
from unittest.mock import patch

from builders import LONG_TESTS
from readme import ROOT
from readme import printed as started

LESSONS = (
    "demo",
    "faults",
    "mine",
    "naive",
    "runner",
    "small",
    "steps",
)  # which import the program


@cache
def printed(command):
    """What `python3 script ...` prints; any other command is started."""
    if LONG_TESTS or not command.startswith("python3 "):
        return started(command)
    status, text = play(*shlex.split(command)[1:])
    assert status == 0
    return text


def printed_with(source, command):
    """What it prints where this is the source of agent.py."""
    with patch.dict(sys.modules):
        for name in LESSONS:
            sys.modules.pop(name, None)
        sys.modules["agent"] = program = ModuleType("agent")
        program.__file__ = str(ROOT / "agent.py")
        exec(compile(source, program.__file__, "exec"), vars(program))
        return play(*shlex.split(command)[1:])[1]


def play(script, *given):
    """The exit status of a program, and what it prints."""
    settings = {"PATH": os.environ["PATH"], "COLUMNS": "80"}
    back, out = os.getcwd(), StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(tempfile, "tempdir", folder),
        patch.dict(os.environ, settings, clear=True),
        patch.object(sys, "path", [*sys.path]),
        patch.object(sys, "argv", [script, *given]),
        redirect_stdout(out),
    ):
        os.chdir(ROOT)
        try:
            return play_here(script, *given), out.getvalue()
        finally:
            os.chdir(back)


def play_here(script, *given):
    """The exit status of a program, after it was played."""
    if script == "agent.py":
        program = import_module("agent")
        option, scene, *_ = *given, "0"
        assert option == "--demo"  # all else needs a key
        return program.play_demo(int(scene), program.Terminal(sys.stdout))
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    except SystemExit as left:
        return left.code or 0
    return 0
