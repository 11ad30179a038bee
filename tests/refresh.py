#!/usr/bin/env python3
"""Refresh everything that is measured and printed: pictures, listings and figures.

.venv/bin/python tests/refresh.py              the pictures, and what the pages quote
.venv/bin/python tests/refresh.py --measure    the figures first, in some minutes

What the other programs of `measure/programs.py` do isn't measured again: they would have
to be installed.
"""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
OURS = ["--program", "agent.py", "--all", "--save"]


def main(options: list[str]) -> int:
    """Run the programs, and return the sum of their exit statuses."""
    programs = [["measure/pictures.py", *options], ["lessons/readme.py"]]
    if options:
        programs.insert(0, ["measure/programs.py", *OURS])
    runs = [[sys.executable, TESTS / name, *more] for name, *more in programs]
    return sum(subprocess.run(command).returncode for command in runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
