"""Show what small.py still gets wrong, and which functions of agent.py fix it.

    python3 tests/lessons/faults.py            all faults
    python3 tests/lessons/faults.py resume     the faults whose lines have this word
    python3 tests/lessons/faults.py --mine FILE            all that can be seen
    python3 tests/lessons/faults.py --mine FILE 8 paste    chapter 8, and one by its name

They are sorted by chapter. Each one is shown by a run of small.py against a fake API,
without a key, network or package. With --mine, it's an agent of your own that is run. If
it runs no command although we answer y, it's started again with the option `--yes`.

Of your own agent, a line begins with `ok`, with `!` if the fault is there, or with
nothing if neither is certain: there was nothing to judge, or the agent solves it in a way
that may be right, such as dropping all thinking. `japanese` isn't played, because an
agent's count can't be seen.

See `runner.py` for how the file is run and what it needs.
"""

import argparse
import re
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import checks
import plays
import report
import small
import stub
from checks import FAULTS, Check, Finding

JAPANESE = "文脈を圧縮する" * 500
TEXTS = """\
no_thinking | Thinking is lost between calls | drop_thinking
same_id | A gateway can use an id twice | sanitize_calls
fixed_threshold | The threshold ignores the window | configured_limits, auto_compact_threshold
japanese | Japanese is counted as bytes / 4, 1.25 times too low | context_tokens
no_path | A placeholder has no path | micro_compact, save_result
paste | A paste can be larger than the window | tool_result_budget, preview
cut_output | The rest of a long output is not saved | tool_result_budget, preview
no_summaries | A model that never summarises is asked again and again | auto_compact, compact_without_model
long_words | User messages are never shortened | fit_typed, rebuild
open_request | Finished and unfinished requests look alike | in_progress, rebuild
files | Files, plans and skills are lost after a summary | still_needed, restore_recent_files
no_resume | A conversation cannot be resumed | load, resume
passing_error | A temporary error ends the turn | ask
no_pages | read_file has no pages | read_file
secrets | read_file reads .env | inside, read_file
stopped_call | The model never hears of a call that Ctrl-C stopped | run_tools, close_calls
surrogate | A lone surrogate cannot be sent | to_bytes
cut_answer | A truncated answer counts as complete | nudge
refusal | A prompt that the model declined stays | drop_declined"""
LINES = [line.split(" | ") for line in TEXTS.split("\n")]
# for each fault of small.py its title, and the functions of agent.py that fix it
TITLES, FIXES = ({line[0]: line[at] for line in LINES} for at in (1, 2))
PLACES = {"reference": "The Reference", "": "In no chapter, only in agent.py"}
MINE = "python3 tests/lessons/{} --mine {} {}"
UNSEEN = "Not played: japanese, because an agent's count can't be seen from outside."


def count_japanese(_):
    messages = [{"role": "user", "content": JAPANESE}]
    counted = stub.count("", [], messages)
    says = small.estimate_tokens(messages)
    return Finding(f"{says:,} tokens; the API counts {counted:,}", False)


def of_small():
    """The faults of small.py, in the order of the page: [(check, finding)]."""
    runs = report.runs_of(Path(small.__file__))
    by_hand = Check("japanese", plays.cut_answer, count_japanese, "chapter 4")
    table = [*FAULTS[:3], by_hand, *FAULTS[3:]]
    return [(check, report.finding(check, runs)) for check in table]


def shown(check, found) -> str:
    """A fault's title, what its run shows, and its fix, 79 columns wide."""
    seen, by = found.text, FIXES[check.name].replace(", ", " and ")
    lines = f"    seen    {seen}", f"    fixed   by {by}"
    return "\n".join([f"  {TITLES[check.name]}", *(report.fill(t, 12) for t in lines)])


def place(check) -> str:
    """The part of the page that explains a fault."""
    return PLACES.get(check.place) or check.place.capitalize()


def list_small(words) -> int:
    """List the faults of small.py whose lines have these words; 2 if there are none."""
    texts = [(place(check), shown(check, found)) for check, found in of_small()]
    some = [one for one in texts if all(word in one[1] for word in words)]
    if not some:
        print(f"No fault mentions {' and '.join(words)}.")
        return 2
    many = f"{len(some)} of {len(texts)} faults of small.py"
    print(f"{many}, each with the functions of agent.py that fix it")
    for where, group in groupby(some, key=itemgetter(0)):
        print(f"\n{where}", *(text for _, text in group), sep="\n")
    return 0


# --- On an agent of the reader's own ---


def chosen(words):
    """The faults that these words name: a chapter, or a part of a name."""
    for check in FAULTS:
        names = [w for w in words if w in check.name or check.place == f"chapter {w}"]
        if names or not words:
            yield check


def line(check, found) -> str:
    """A line of the list, wrapped."""
    text = check.plays[0].what + f": {found.text}" * bool(found.text)
    where = re.sub("^step .*", r"\g<0> of chapter 2", found.place)
    text += f" ({where or f'agent.py: {FIXES[check.name]}'})" * (not found.is_right)
    return report.line(check.name, Finding(text, found.is_right), 15)


def list_mine(file, words) -> int:
    """List which of the faults an agent has; 1 if it has any, 0 if not."""
    if unknown := [word for word in words if not [*chosen([word])]]:
        names = ", ".join(check.name for check in FAULTS)
        print(report.fill(f"No fault is called {unknown[0]}, only {names}."))
        return 2
    path, table = Path(file).absolute(), [*chosen(words)]
    problem, name, runs = report.start(path, play=plays.start)
    run = runs(plays.start) if not problem else None
    if run and (reason := checks.stopped(run) or run.problem):
        problem = reason + checks.printed(run, reason)
    if problem:
        print(report.fill(f"{path.name} can't be played: {problem}"))
        print(report.fill(f"Next: {MINE.format('steps.py small', file, '')}"))
        return 1
    print(f"{name}, and the faults that can be seen from outside", flush=True)
    marks = {}
    for where, some in groupby(table, key=place):
        print(f"\n{where}")
        for check in some:
            found = report.finding(check, runs)
            marks[check.name] = found.is_right
            print(line(check, found), flush=True)
    every = (True, None, False)
    right, neither, wrong = ([n for n in marks if marks[n] is mark] for mark in every)
    rest = f"; can't be judged: {len(neither)}" if neither else ""
    print(f"\nok: {len(right)} of {len(marks)}; `!`: {len(wrong)}{rest}")
    if wrong and len(table) > 1:
        again = MINE.format("faults.py", file, wrong[0])
        print(report.fill(f"To run one again: {again}"))
    if not words:
        print(UNSEEN)
    return 1 if wrong else 0


def main(argv=None) -> int:
    """List the faults of small.py, or those of a reader's agent."""
    about = "Show what small.py, or an agent of your own, gets wrong."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("words", nargs="*", metavar="WORD", help="words to look for")
    mine = "play the faults on your own agent; then a WORD is a chapter or a name"
    parser.add_argument("--mine", metavar="FILE", help=mine)
    given = parser.parse_args(argv)
    return list_mine(given.mine, given.words) if given.mine else list_small(given.words)


if __name__ == "__main__":
    sys.exit(report.status_of(main))
