"""Run the programs for readers, each once, and return their output."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from stage import ROOT


@cache
def printed(command):
    """The output of a command in an empty environment, run by this Python alone.

    A report on a reader's agent (--mine) exits with 1 if something is wrong with it.
    """
    words = shlex.split(command)
    words = [sys.executable, "-S", *words[1:]] if words[0] == "python3" else words
    settings = {"PATH": os.environ["PATH"], "COLUMNS": "80", "PYTHONUTF8": "1"}
    options = {"env": settings, "stdout": subprocess.PIPE, "text": True}
    done = subprocess.run(words, cwd=ROOT, **options)
    if done.returncode > ("--mine" in words):
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout)
    return done.stdout


def printed_with(source, command):
    """Run a command in a copy of the project that has this source of agent.py.

    A change may make it fail, so its exit status does not matter.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "tests", Path(folder, "tests"))
        Path(folder, "agent.py").write_text(source, "utf-8")
        argv = [sys.executable, "-S", *shlex.split(command)[1:]]
        env = {"PATH": os.environ["PATH"], "COLUMNS": "80", "PYTHONUTF8": "1"}
        options = {"cwd": folder, "env": env, "stdout": subprocess.PIPE, "text": True}
        return subprocess.run(argv, check=False, **options).stdout
