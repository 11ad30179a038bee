"""Play an agent that a reader wrote, judge it, and put the findings into lines.

A line begins with `ok`, with `!` if something is wrong, or with nothing if it is only a
figure. A wrong one ends with the step of chapter 2, or the chapter, that fixes it.
"""

import os
import re
import sys
import textwrap
from functools import cache
from itertools import starmap
from pathlib import Path

import checks
from checks import CHECKS, Finding
from plays import work
from runner import CannotPlay, played

MARKS = {True: "ok", False: "!", None: ""}
KEEP_TOGETHER = "\N{NO-BREAK SPACE}"
# what loses the conversation comes first; then what is lost or done behind one's back
HARM = "memory", "stopped", "Ctrl-C", "asks", "empty", "huge file", "truncated", "blank"
HARM += "messages", "summary", "no text", "cut off", "prompts", "rejected", "seen"
LEAST_URGENT = "on disk", "asks"
OWN_LINE = r"\(([^()]+), line (\d+)[^()]*\)"  # as `runner.where` writes it
STEPS = "python3 tests/lessons/steps.py small"
OVER_HTTP = "isn't supported here|It isn't Python|no request with"
ELSEWHERE = {  # words of a problem, and what to do about it; "" for any
    "offer the tool": "name its tools, in the order bash, read_file, compact: "
    f"{STEPS} --mine FILE --tools NAME NAME",
    OVER_HTTP: f"test it over HTTP, with any client: {STEPS} --serve",
    "": "fix this; chapter 1 has an agent to start from",
}
PROMPTS = "It has to get its prompts from `input()`: two, one after the other."
PACKAGES = (
    "Only Anthropic's client can be tested; other packages must be installed for the "
    "Python that runs this report."
)


def runs_of(path, options=(), names=(), instead=None):
    """A function that plays each play once on an agent, or another one instead of it."""
    other = instead or {}
    return cache(lambda play: played(path, other.get(play, play), options, names))


def finding(check, runs):
    """What a check says: of the first play that goes wrong, or of all."""
    if check.any_of:
        return check.judge(map(runs, check.plays))
    found = None
    for play in check.plays:
        now = check.judge(runs(play))
        if now and now.is_right is False:
            return now
        found = found or now
    return found


def judged(runs, table):
    """The findings of these checks: {name: finding}."""
    found = ((check, finding(check, runs)) for check in table)
    return {c.name: one._replace(place=one.place or c.place) for c, one in found if one}


def about_work(runs, table=CHECKS):
    """The findings about the work, and those that make sense once it's done."""
    is_stopped = checks.stopped(runs(work))
    return judged(runs, [c for c in table if c.always or not is_stopped])


def play_mine(path, names=()):
    """The report on the agent in this file, and if nothing is wrong."""
    problem, name, runs = start(path, names)
    if problem:
        return with_next(name, {"problem": Finding(problem, False)})
    return with_next(name, about_work(runs), runs(work))


def start(path, names=(), play=None):
    """Start an agent with a play; returns why it can't be judged, its name, and its runs.

    If it runs no command although nobody said no, it's started with the option `--yes`.
    """
    runs, play = runs_of(path, (), names), play or work
    if reason := cannot_start(path) or asks_nothing(run := runs(play)):
        return reason, path.name, runs
    if not (checks.done(run) or run.last_question or checks.stopped(run)):
        agreed = runs_of(path, ("--yes",), names)
        if checks.done(agreed(play)):
            return "", f"{path.name}, started with --yes", agreed
    return "", path.name, runs


def cannot_start(path):
    """The reason why Python cannot start a file, "" if it can."""
    if Path(path).suffix not in ("", ".py"):
        return "It isn't Python."
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
    if run.exchanges:
        asides = all(exchange.purpose == "aside" for exchange in run.exchanges)
        return "None of its requests offers a tool." if asides else ""
    if run.ended.startswith("It"):  # the runner's own words
        return run.ended
    if run.ended:
        why = f"It made no request, because it stopped with {run.ended}"
        more = {"ModuleNotFoundError": f". {PACKAGES}", "IndexError": f". {PROMPTS}"}
        return why + more.get(run.ended.partition(":")[0], "")
    if not run.typed:
        return f"It made no request. {PROMPTS}{checks.printed(run)}"
    if not (run.prompts or checks.errors_in(run)):
        return f"It read both prompts before its first request; {checks.ONE_LINE}"
    sends = "a client from `anthropic.Anthropic()`"
    return f"It got a prompt, but made no request with {sends}.{checks.printed(run)}"


def next_step(facts, run):
    """What to do next: first about what stopped the agent, then what does most harm."""
    if "problem" in facts:
        said = facts["problem"].text
        return next(how for words, how in ELSEWHERE.items() if re.search(words, said))
    wrong = [label for label in facts if facts[label].is_right is False]
    if not wrong:
        return "python3 tests/lessons/faults.py shows what this report doesn't check"
    grows = checks.is_of_chapter_2(run)
    label = min(wrong, key=lambda one: rank(one, facts[one], grows))
    if not (place := facts[label].place):
        if own := re.findall(OWN_LINE, facts[label].text):
            return "fix line {1} of {0}".format(*own[-1])
        return f"the line `{label}`"
    if place.startswith("step"):
        more = checks.NEVER_STARTS in facts["layer 2"].text and place == "step 4"
        place += f" of chapter 2{'; if it has a layer 2, chapter 4' * more}"
    return place if facts["stopped"].is_right is False else f"{label} ({place})"


def rank(label, fact, grows):
    """The order in which to fix lines: by harm, or by step in an agent that grows.

    Other lines may be consequences of what stopped it, but not that it forgets a turn.
    """
    harm = HARM.index(label) if label in HARM else len(HARM)
    if harm < 2 or not grows:
        return harm, label in LEAST_URGENT, fact.place
    is_step = fact.place.startswith("step")
    return 2, label in LEAST_URGENT, not fact.place, not is_step, fact.place


def with_next(name, facts, run=None):
    """A report with the next step in its last line; and if nothing is wrong."""
    lines = shown(f"{name}, given {work.what} (the API checks each thought)", facts)
    is_right = all(fact.is_right is not False for fact in facts.values())
    return f"{lines}\nNext: {next_step(facts, run)}", is_right


def shown(title, facts):
    """Format a title and findings in lines of at most 79 columns."""
    return "\n".join([fill(title), *starmap(line, facts.items())])


def line(label, fact, width=10):
    """A finding's line: its mark, its label, what it says, and where to read on."""
    if type(fact) is str:  # what a layer's step does is neither right nor wrong
        return fill(f"  {label:<{width}} {fact}", width + 3)
    text = f"  {MARKS[fact.is_right]:<2} {label:<{width}} {fact.text}"
    if fact.place and fact.is_right is False:
        text += f" ({fact.place.replace(' ', KEEP_TOGETHER)})"
    return fill(text, width + 6)


def fill(text, indent=2):
    """Wrap a text in 79 columns; all lines but the first are indented."""
    text = text.encode(errors="replace").decode()
    options = {"break_on_hyphens": False, "break_long_words": False}
    filled = textwrap.fill(text.rstrip(), 79, subsequent_indent=" " * indent, **options)
    return filled.replace(KEEP_TOGETHER, " ")


def status_of(main, interrupted=""):
    """Run a program of ours; returns its exit status, whatever stops it."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except CannotPlay as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, end="", file=sys.stderr)
        return 130
