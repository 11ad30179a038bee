"""Play an agent that a reader wrote, judge it, and put the findings into lines.

A line begins with `ok`, with `!` if something is wrong, or with nothing if it is only a
figure. A wrong one ends with the step of chapter 2, or the chapter, that fixes it.
"""

import re
import textwrap
from pathlib import Path

import checks
from checks import CHECKS, Finding
from plays import START, WORK
from runner import played

MARKS = {True: "ok", False: "!", None: ""}
KEEP_TOGETHER = "\N{NO-BREAK SPACE}"
LINE = "the line `{}`"
LEAST_URGENT = "on disk", "asks"
OWN_LINE = r"\(([^()]+), line (\d+)[^()]*\)"  # as `runner.where` writes it
OTHER_LANGUAGE = (
    "It isn't Python. For an agent in any other language, run: python3 "
    "tests/lessons/steps.py small --serve"
)
PROMPTS = "It has to get its prompts from `input()`: two, one after the other."
PACKAGES = (
    "Only Anthropic's client can be tested; other packages must be installed for the "
    "Python that runs this report."
)


class Runs:
    """The runs of an agent, each played once."""

    def __init__(self, path, options=(), done=()):
        self.path, self.options, self.done = path, options, dict(done)

    def __call__(self, play):
        if play not in self.done:
            self.done[play] = played(self.path, play, self.options)
        return self.done[play]


def finding(check, runs):
    """What a check says: of the first play that goes wrong, or that goes well."""
    found = None
    for play in check.plays:
        now = check.judge(runs(play))
        if now and now.is_right is check.any_of:
            return now
        found = found or now
    return found


def judged(runs, table):
    """The findings of these checks: {name: finding}."""
    found = {check: finding(check, runs) for check in table}
    return {
        check.name: one._replace(place=one.place or check.place)
        for check, one in found.items()
        if one
    }


def about_work(runs, table=CHECKS):
    """The findings about the work, and those that make sense once it's done."""
    is_stopped = checks.stopped(runs(WORK))
    return judged(runs, [c for c in table if c.always or not is_stopped])


def play_mine(path):
    """The report on the agent in this file, and if nothing is wrong."""
    return with_next(path.name, report(path))


def report(path):
    """Run the agent in this file and judge what it did: {name: finding}."""
    if reason := cannot_start(path):
        return {"problem": Finding(reason, False)}
    runs = Runs(path)
    if reason := asks_nothing(runs(WORK)):
        return {"problem": Finding(reason, False)}
    return about_work(runs)


def start(path):
    """Start an agent; returns why it can't be played, and its runs.

    If it runs no command although we answer y, it's started with the option `--yes`.
    """
    if reason := cannot_start(path):
        return reason, None
    for options in ((), ("--yes",)):
        run = (runs := Runs(path, options))(START)
        asked = asks_nothing(run)
        reason = asked or checks.stopped(run) or run.problem
        if reason or any("607" in text for text in run.results.values()):
            more = "" if asked else checks.printed(run, reason)
            return f"{reason}{more}", runs
    return "", Runs(path)


def cannot_start(path):
    """The reason why Python cannot start a file, "" if it can."""
    if Path(path).suffix not in ("", ".py"):
        return OTHER_LANGUAGE
    try:
        compile(Path(path).read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        return f"It cannot be read: {error.strerror}."
    except (SyntaxError, ValueError) as error:
        where = f" in line {error.lineno}" if getattr(error, "lineno", 0) else ""
        return f"It isn't valid Python{where}: {getattr(error, 'msg', error)}."
    return ""


def asks_nothing(run):
    """The reason why the program made no request, "" if it made one."""
    if any(exchange.purpose != "aside" for exchange in run.exchanges):
        return ""
    if run.exchanges:
        return "None of its requests offers a tool."
    if run.ended.startswith("It"):  # the runner's own words
        return run.ended
    if run.ended:
        why = f"It made no request, because it stopped with {run.ended}"
        if run.ended.startswith("ModuleNotFoundError"):
            return f"{why}. {PACKAGES}"
        return f"{why}. {PROMPTS}" if run.ended.startswith("IndexError") else why
    if not run.typed:
        return f"It made no request. {PROMPTS}{checks.printed(run)}"
    sends = "a client from `anthropic.Anthropic()`"
    return f"It got a prompt, but made no request with {sends}.{checks.printed(run)}"


def next_step(facts):
    """The place on the page to read next: first for what stopped the agent."""
    if "problem" in facts:
        return "fix this; chapter 1 has an agent to start from"
    wrong = [label for label in facts if facts[label].is_right is False]
    if not wrong:
        return "python3 tests/lessons/faults.py shows what this report doesn't check"
    is_stopped = not facts["stopped"].is_right  # other lines may be its consequences
    label = "stopped" if is_stopped else min(wrong, key=lambda at: rank(at, facts[at]))
    place = facts[label].place
    if is_stopped and not place:
        lines = re.findall(OWN_LINE, facts[label].text)
        return "fix line {1} of {0}".format(*lines[-1]) if lines else LINE.format(label)
    if place.startswith("step"):
        more = checks.NEVER_STARTS in facts["layer 2"].text and place == "step 4"
        place += f" of chapter 2{'; if it has a layer 2, chapter 4' * more}"
    if is_stopped:
        return place
    return f"{label} ({place})" if place else LINE.format(label)


def rank(label, fact):
    """The order in which to fix lines: by step, then by chapter, the least urgent last."""
    last = LEAST_URGENT.index(label) if label in LEAST_URGENT else -1
    return last, not fact.place, not fact.place.startswith("step"), fact.place


def with_next(name, facts):
    """A report with the next step in its last line; and if nothing is wrong."""
    lines = shown(f"{name}, given {WORK.what}", facts)
    is_right = all(fact.is_right is not False for fact in facts.values())
    return f"{lines}\nNext: {next_step(facts)}", is_right


def shown(title, facts):
    """Format a title and findings in lines of at most 79 columns."""
    lines = [fill(title)]
    for label, fact in facts.items():
        is_finding = isinstance(fact, Finding)
        lines.append(
            line(label, fact) if is_finding else fill(f"  {label:<10} {fact}", 13)
        )
    return "\n".join(lines)


def line(label, fact, width=10):
    """A finding's line: its mark, its label, what it says, and where to read on."""
    text = f"  {MARKS[fact.is_right]:<2} {label:<{width}} {fact.text}"
    if fact.place and fact.is_right is False:
        text += f" ({fact.place.replace(' ', KEEP_TOGETHER)})"
    return fill(text, width + 6)


def fill(text, indent=2):
    """Wrap a text in 79 columns; all lines but the first are indented."""
    text = text.encode(errors="replace").decode()
    options = {"break_on_hyphens": False, "break_long_words": False}
    start, rest = text[: len(text) - len(text.lstrip())], " " * indent
    options |= {"initial_indent": start, "subsequent_indent": rest}
    return textwrap.fill(text.strip(), 79, **options).replace(KEEP_TOGETHER, " ")
