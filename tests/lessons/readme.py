"""What README.md quotes, and from where; run, it brings the quotations up to date.

    python tests/lessons/readme.py

A quotation is a fence below one of these lines, which a reader of the page cannot see:

    <!-- agent.py: micro_compact -->   the source of that function or constant
    <!-- tests/lessons/small.py: agent_loop, micro_compact -->   of these, from there
    <!-- tests/lessons/layer1/step0.py: all -->   the whole file
    <!-- run: python3 tests/lessons/naive.py 4 -->   what this prints, without a key

It has all lines of that, or a line `...`, indented or not, in place of one line or more.
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
    r"(<!-- (agent\.py|tests/lessons/[\w/]+\.py|run): (.+?) -->\n```\w*\n)(.*?)```",
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


def source(path, what):
    """These top-level definitions, or "all" of a file."""
    if what == "all":
        return (ROOT / path).read_text("utf-8")
    return "\n\n".join(definition(path, name) for name in what.split(", "))


def definition(path, name):
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


def holds(quoted, whole):
    """Whether a quotation has the lines of the whole, or says where some are left out."""
    left_out, lines = r"(?:.*\n)+", [line + "\n" for line in quoted.split("\n")[:-1]]
    gaps = [line.strip() == "..." for line in lines]
    parts = [left_out if gap else re.escape(line) for line, gap in zip(lines, gaps)]
    return (
        quoted == whole or not all(gaps) and bool(re.fullmatch("".join(parts), whole))
    )


def filled(text):
    """The page with the whole in place of each quotation that does not hold."""

    def now(match):
        whole = expected(match[2], match[3])
        return f"{match[1]}{match[4] if holds(match[4], whole) else whole}```"

    return QUOTED.sub(now, text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text("utf-8")), "utf-8")
