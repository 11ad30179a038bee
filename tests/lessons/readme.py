"""Find the listings and figures in the pages and their sources, and refresh them.

    python tests/lessons/readme.py

What a page takes from elsewhere has a mark, a comment that its readers can't see. A
listing is a fence below one of these lines:

    <!-- agent.py: micro_compact -->   the source of that function or constant
    <!-- tests/lessons/small.py: agent_loop, micro_compact -->   of these, from there
    <!-- tests/lessons/layer1/step0.py: all -->   the whole file
    <!-- run: python3 tests/lessons/naive.py 4 -->   what this prints, without a key

A listing has all lines of its source, or a line `...` (indented or not) in place of one
or more. An abridged listing that is out of date is named but not changed: only somebody
who reads it knows which lines to leave out.

A figure is a number right before its mark, which has its name in figures.py. It keeps
its form: the decimals, the percent sign, the commas. A name with several figures is for
as many numbers before it in its line. A code span right before a mark quotes a program:

    costs 74%<!--policies.ours.cost--> of what never forgetting would
    | v5 | 25% | 28% | 12,000<!--after.v5--> |
    the history was rewritten `before 14 of 16 requests`<!--layer1.2-->

A number after its constant, as in "`KEEP_RECENT` = 3", needs no mark, and neither do
numbers in the code span of "**Try it.** Run `...` and look for `...`". If something has
no source, its line is printed, and the exit status is 1.
"""

import ast
import os
import re
import subprocess
import sys
from functools import cache

from figures import figure, program
from played import printed
from stage import ROOT

README = ROOT / "README.md"
PAGES = README, ROOT / "tests/README.md", ROOT / "tests/lessons/names.md"
QUOTED = re.compile(
    r"(<!-- (agent\.py|tests/(?:lessons|agents)/[\w/]+\.py|run): (.+) -->\n```\w*\n)"
    r"((?s:.*?))```"
)
NUMBER = r"\d+(?:[.,]\d+)*%?"
MARKED = re.compile(r"(?m)(?:^|(?<=-->))((?:(?!<!--).)*)(?<!`)<!--(\S+?)-->")
MARKED_SPAN = re.compile(r"(`[^`]+`)<!--(\S+?)-->")
CONSTANT = re.compile(rf"(`([A-Z_]+)`\s=\s)({NUMBER})")
TRY = re.compile(r"\*\*Try [^*]+\*\*\sRun\s`([^`]+)`\sand\slook\sfor\s((?s:(`+).+?\3))")
PICTURE = re.compile(r"!\[([^]]*)\]\((tests/pictures/\w+\.svg)\)")


def words(text):
    """The text in one line, so that it can be compared wherever a line was broken."""
    return " ".join(text.split())


# --- Listings ---


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


def expected(kind, what):
    """The whole source of a listing; raise LookupError if there's none."""
    try:
        return printed(what) if kind == "run" else source(kind, what)
    except (KeyError, OSError, subprocess.CalledProcessError) as error:
        raise LookupError(f"nothing to quote: {kind}: {what}") from error


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


def new_listing(match):
    """Refresh a whole listing; an abridged one must hold."""
    head, kind, what, quoted = match.groups()
    whole = expected(kind, what)
    if not any(map(is_gap, quoted.splitlines())):
        return f"{head}{whole}```"
    if not holds(quoted, whole):
        raise LookupError(f"abridge this listing again: {kind}: {what}")
    return match[0]


# --- Figures ---


def written(value, old):
    """Write a figure in the form of the number that it replaces."""
    if type(value) is str:
        return value
    number = old.removesuffix("%")
    decimals, sign = len(number.partition(".")[2]), "%" if number != old else "f"
    comma = "" if re.fullmatch(r"\d{4,}", number) else ","
    return f"{value:{comma}.{decimals}{sign}}"


def new_figures(match):
    """Refresh the numbers before a mark."""
    before, name = match.groups()
    values = figure(name)
    numbers = [*re.finditer(NUMBER, before)][-len(values) :]
    if len(numbers) < len(values) or numbers[-1].end() < len(before):
        raise LookupError(f"{name} needs {len(values)} number(s) right before it")
    start, new = numbers[0].start(), map(written, values, [n[0] for n in numbers])
    return f"{before[:start]}{with_numbers(before[start:], new)}<!--{name}-->"


def with_numbers(text, numbers):
    """Put these in place of the numbers in a text."""
    numbers = iter(numbers)
    return re.sub(NUMBER, lambda _: next(numbers), text)


def new_constant(match):
    """Refresh the number after the name of a constant."""
    head, name, number = match.groups()
    return head + written(*figure(name), number)


def new_span(match):
    """Refresh the code span before the mark of a program."""
    span, name = match.groups()
    return f"{quotation(span, program(name))}<!--{name}-->"


def new_promise(match):
    """Refresh the numbers in what a command to try is said to show, if there are any."""
    command, promise, _ = match.groups()
    new = quotation(promise, words(command)) if re.search(NUMBER, promise) else promise
    return match[0].removesuffix(promise) + new


def quotation(span, command):
    """Refresh the numbers in a code span, if the output has them in only one way."""
    said, output = words(span.strip("`")), words(expected("run", command))
    same_words = f"({NUMBER})".join(map(re.escape, re.split(NUMBER, said)))
    found = {match.groups() for match in re.finditer(same_words, output)}
    if tuple(re.findall(NUMBER, said)) in found:
        return span
    if len(found) != 1:
        others = ["", *sorted({with_numbers(said, numbers) for numbers in found})]
        raise LookupError(f"{command} doesn't print: {said}{'; only: '.join(others)}")
    return with_numbers(span, found.pop())


# --- Pages ---

CHANGES = {
    QUOTED: new_listing,
    MARKED: new_figures,
    MARKED_SPAN: new_span,
    CONSTANT: new_constant,
    TRY: new_promise,
}


def refreshed(text):
    """Return the page with what can be refreshed, and its problems: (line, words)."""
    problems = []
    for pattern, change in CHANGES.items():
        done, end = "", 0
        for match in pattern.finditer(text):
            done, new, end = done + text[end : match.start()], match[0], match.end()
            try:
                new = change(match)
            except LookupError as error:
                problems.append((done.count("\n") + 1, str(error)))
            done += new
        text = done + text[end:]
    for comment in re.finditer("<!--", text):
        at = comment.start()
        if not QUOTED.match(text, at) and not re.match(r"<!--\S+?-->", text[at:]):
            problems.append((text[:at].count("\n") + 1, "this mark names nothing"))
    return text, sorted(problems)


def main():
    """Refresh the pages; return 1 if there are problems."""
    status = 0
    for path in PAGES:
        text, problems = refreshed(path.read_text("utf-8"))
        path.write_text(text, "utf-8")
        for line, problem in problems:
            print(f"{os.path.relpath(path)}:{line}: {problem}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
