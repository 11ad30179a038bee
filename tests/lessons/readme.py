"""What README.md quotes, and from where; run, it brings the quotations up to date.

    python tests/lessons/readme.py

A quotation is a fence below one of these lines, which a reader of the page cannot see:

    <!-- agent.py: micro_compact -->   the source of that function or constant
    <!-- tests/lessons/naive.py: understood -->   the same, from there
    <!-- run: python3 tests/lessons/naive.py 4 -->   what this prints, without a key
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
QUOTED = re.compile(
    r"(<!-- (agent\.py|tests/lessons/\w+\.py|run): (.+?) -->\n```\w*\n)(.*?)```",
    re.DOTALL,
)


@cache
def names(path):
    """The top-level functions, classes and constants of a file: {name: syntax node}."""
    found = {}
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        for target in targets:
            name = getattr(target, "name", getattr(target, "id", None))
            found |= {name: node} if name else {}
    return found


def source(path, name):
    """The whole lines of a top-level definition, decorators included."""
    node = names(path)[name]
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    lines = (ROOT / path).read_text("utf-8").split("\n")
    return "\n".join(lines[first - 1 : node.end_lineno]) + "\n"


@cache
def printed(command):
    """What a command prints in an empty environment, run by this Python."""
    words = [w if w != "python3" else sys.executable for w in shlex.split(command)]
    settings = {"PATH": os.environ["PATH"], "COLUMNS": "80", "PYTHONUTF8": "1"}
    options = {"env": settings, "capture_output": True, "text": True}
    return subprocess.run(words, cwd=ROOT, check=False, **options).stdout


def expected(kind, what):
    return printed(what) if kind == "run" else source(kind, what)


def filled(text):
    """The page with every quotation as it should be."""
    return QUOTED.sub(lambda m: f"{m[1]}{expected(m[2], m[3])}```", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text("utf-8")), "utf-8")
