"""Run the programs for readers, each once, and return their output."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from readme import ROOT
from readme import printed as run

printed = cache(run)


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
