"""Find the listings in README.md and their sources; as a program, refresh them.

    python tests/lessons/readme.py

A listing is a fence below one of these lines, which a reader of the page can't see:

    <!-- agent.py: micro_compact -->   the source of that function or constant
    <!-- tests/lessons/small.py: agent_loop, micro_compact -->   of these, from there
    <!-- tests/lessons/layer1/step0.py: all -->   the whole file
    <!-- run: python3 tests/lessons/naive.py 4 -->   what this prints, without a key

A listing has all lines of its source, or a line `...` (indented or not) in place of one
or more. An abridged listing that is out of date is named but not changed, and the exit
status is 1: only somebody who reads it knows which lines to leave out.
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
    r"(<!-- (agent\.py|tests/(?:lessons|agents)/[\w/]+\.py|run): (.+?) -->\n```\w*\n)(.*?)```",
    re.DOTALL,
)
PICTURE = re.compile(r"!\[([^]]*)\]\((tests/pictures/\w+\.svg)\)")


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
    """These top-level definitions, or "all" of a file; constants as close as there."""
    if what == "all":
        return (ROOT / path).read_text("utf-8")
    first, *others = what.split(", ")
    text = definition(path, first)
    for before, name in zip([first, *others], others):
        follows = names(path)[before].end_lineno + 1 == names(path)[name].lineno
        text += ("" if follows else "\n\n") + definition(path, name)
    return text


def definition(path, name):
    """The whole lines of a top-level definition, decorators included."""
    node = names(path)[name]
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    lines = (ROOT / path).read_text("utf-8").split("\n")
    return "\n".join(lines[first - 1 : node.end_lineno]) + "\n"


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


def expected(kind, what):
    return printed(what) if kind == "run" else source(kind, what)


def is_gap(line):
    """Return True if a line of a listing marks lines that are left out."""
    return line.strip() == "..."


def holds(quoted, whole):
    """Return True if a listing has every line, or marks where some are left out."""
    if quoted == whole:
        return True
    lines = quoted.splitlines()
    parts = [r"(?:.*\n)+" if is_gap(line) else re.escape(line + "\n") for line in lines]
    return not all(map(is_gap, lines)) and bool(re.fullmatch("".join(parts), whole))


def filled(text):
    """The page with every whole listing refreshed; abridged ones stay as they are."""

    def now(match):
        abridged = any(map(is_gap, match[4].splitlines()))
        return match[0] if abridged else f"{match[1]}{expected(match[2], match[3])}```"

    return QUOTED.sub(now, text)


def main():
    """Refresh the page; return 1 if a listing must be abridged again."""
    README.write_text(filled(README.read_text("utf-8")), "utf-8")
    status = 0
    for _, kind, what, quoted in QUOTED.findall(README.read_text("utf-8")):
        if not holds(quoted, expected(kind, what)):
            print(f"abridge this listing again: {kind}: {what}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
