"""What forgetting costs, and what it loses, on recorded sessions.

    python3 tests/measure/costs.py                 the work of `agent.py --demo`
    python3 tests/measure/costs.py .transcripts/*.jsonl ~/.claude/projects/*/*.jsonl
    python3 tests/measure/costs.py --set KEEP_RECENT=10 --set THRESHOLD=100000 FILE...

Replays recorded conversations under several policies, and prices and searches every
request that would have been sent. Under its table it says what the columns mean. No
key, no network, no SDK.

"ours" is agent.py itself, by the settings of the shell (see ours.py). Thinking is left
out, an image counts as the word [image], and where the recorder compacted its own
context the messages go on whole.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from operator import lt
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/standin")]

from charts import counted
from ours import MOST_LOOKUPS, drive
from policies import NEWER, PEERS, READ_IN, SUMMARY, TUTORIALS, WINDOW
from prices import Meter, replay
from recorded import Session, Unusable, read_messages
from stub import CACHE_READ, CACHE_WRITE, OUTPUT

import agent as program

SETTINGS = {"THRESHOLD", "CONTEXT_WINDOW", "MAX_OUTPUT", "KEEP_RECENT", "KEEP_TOKENS"}
SETTINGS |= {"CLEAR_ABOVE", "MIN_SAVINGS", "MAX_MESSAGES"}
NO_MATTER = 0.005  # differences of R below this mean nothing
THE_REST = f"""\
The rest: other agents, by their sources as of {READ_IN}, and clear_tool_uses, a
service of the API with its default numbers. Its page advises clear_at_least where a
cache is used."""
CAVEATS = """\
What this does not show: to have a line in sight is not to succeed; an agent that had
forgotten would have acted otherwise. Recorded agents re-read what their own compactions
took, so their need is under-counted. Differences of R below 0.005 mean nothing."""


def limits(changes: Mapping[str, str]) -> program.Limits:
    """The limits that the program itself makes of the settings."""
    with mock.patch.dict(os.environ, changes):
        return program.configured_limits()


# ---- what it comes to ----

Runs = dict[str, Callable[[Session], Meter]]
Done = dict[str, list[Meter]]


def runs(peers: bool, changes: list[str], read: float = CACHE_READ) -> Runs:
    """What to measure: a function from a session to a meter, for each policy."""
    own = {"summaries": limits({}), **ours(changes)}
    own["summaries"].clear_above = sys.maxsize
    loops: Runs = {name: partial(drive, limits=own[name], read=read) for name in own}
    rules = TUTORIALS | (PEERS if peers else {})
    theirs: Runs = {n: partial(replay, policy=rules[n], read=read) for n in rules}
    return theirs | loops


def uncached_runs(changes: list[str]) -> Runs:
    """The tutorials and ours without a prompt cache, for which no tutorial asks."""
    mine = ours(changes)
    loops: Runs = {n: partial(drive, limits=mine[n], cached=False) for n in mine}
    theirs: Runs = {
        n: partial(replay, policy=rule, cached=False) for n, rule in TUTORIALS.items()
    }
    return theirs | loops


def ours(changes: list[str]) -> dict[str, program.Limits]:
    """The limits of the shell, and those with each of the changes, by name."""
    named = {f"ours {change}": limits(changed(change)) for change in changes}
    return {"ours": limits({}), **named}


def changed(change: str) -> dict[str, str]:
    """The settings in NAME=VALUE[,NAME=VALUE...]."""
    pairs = [pair.partition("=") for pair in change.split(",")]
    settings = {name: value for name, _, value in pairs}
    if unknown := sorted(settings.keys() - SETTINGS):
        known = ", ".join(sorted(SETTINGS))
        raise Unusable(f"{unknown[0]}: no such setting; there are {known}")
    return settings


def replayed(sessions: list[Session], runs: Runs) -> Done:
    """The meters of all sessions, in their order, for each policy."""
    steps = itertools.product(runs, sessions)
    done: Done = {name: [] for name in runs}
    for step, (name, session) in enumerate(steps):
        progress(step, len(runs) * len(sessions), name)
        done[name].append(runs[name](session))
    progress(0, 0, "")
    return done


def measure(sessions: list[Session], runs: Runs, uncached: Runs) -> dict:
    """A row for each policy, the cheapest first, and what is to be known of them.

    All costs are parts of what doing nothing costs, in "sessions" of what it costs in
    that session.
    """
    done = replayed(sessions, runs)
    whole = total(done["nothing"])
    rows = [row(name, meters, whole) for name, meters in done.items()]
    refused = [refused_at(meter) for meter in done["nothing"]]
    pairs = zip(sessions, done["nothing"], refused)
    full = {n: total(m) / whole for n, m in replayed(sessions, uncached).items()}
    return {
        "requests": rows[0]["requests"],
        "rows": sorted(rows, key=lambda row: row["cost"]),
        "sessions": {name: by_session(done, name) for name in done},
        "uncached": {n: round(full[n], 4) for n in sorted(full, key=full.__getitem__)},
        "refused": [
            {"session": session.name, "request": at, "of": len(meter.contexts)}
            for session, meter, at in pairs
            if at
        ],
        "before": {
            name: round(cost_before(done[name], refused) / whole, 4)
            for name in ("nothing", "ours")
        },
    }


def by_session(done: Done, name: str) -> list[float]:
    """What a policy costs in each session."""
    pairs = zip(done[name], done["nothing"])
    return [round(meter.cost / nothing.cost, 3) for meter, nothing in pairs]


def cheaper(sessions: dict[str, list[float]]) -> dict[str, int]:
    """In how many sessions another policy than one of ours costs less than ours."""
    mine = sessions["ours"]
    others = {n: found for n, found in sessions.items() if not n.startswith("ours")}
    counts = {n: sum(map(lt, found, mine)) for n, found in others.items()}
    return {name: count for name, count in counts.items() if count}


def total(meters: list[Meter]) -> float:
    """What these cost together."""
    return sum(meter.cost for meter in meters)


def refused_at(meter: Meter) -> int:
    """The number of the first request that is over the window, 0 if none is."""
    over = (n for n, size in enumerate(meter.contexts, 1) if size > WINDOW)
    return next(over, 0)


def cost_before(meters: list[Meter], refused: list[int]) -> float:
    """What the requests before these cost; of a session that none refuses, all."""
    return sum(
        meter.spent[at - 2] if at else meter.cost for meter, at in zip(meters, refused)
    )


def progress(done: int, all: int, name: str) -> None:
    """Show how far it is, on a terminal only; none of none wipes it out."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // max(all, 1))
        line = f"[{bar:.<30}] {name}" if all else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def row(name: str, meters: list[Meter], whole: float) -> dict:
    """What a policy comes to: its cost in parts of `whole`, its means over replies."""
    contexts = [size for meter in meters for size in meter.contexts]
    edits = mean([share for meter in meters for share in meter.edits], 1)
    named = mean([share for meter in meters for share in meter.names], 1)
    return {
        "policy": name,
        "cost": round(total(meters) / whole, 4),
        "summaries": sum(meter.summaries for meter in meters),
        "clearings": sum(meter.clearings for meter in meters),
        "previews": sum(meter.previews for meter in meters),
        "average": round(mean(contexts, 0)),
        "largest": round(max(contexts, default=0)),
        "E": round(edits, 4),
        "N": round(named, 4),
        "R": round((edits + named) / 2, 4),
        "requests": len(contexts),
        "lost": sum(meter.lost for meter in meters),
        **found_again([lookup for meter in meters for lookup in meter.lookups]),
    }


def found_again(lookups: list[tuple[bool, float]]) -> dict:
    """Of the lines that were looked up in the transcript, how many were shown."""
    answers = [size for _, size in lookups]
    share = mean([float(shown) for shown, _ in lookups], 0)
    return {
        "lookups": len(lookups),
        "again": round(share, 4) if lookups else None,
        "answer": round(statistics.median(answers)) if lookups else None,
    }


def mean(values: list[float], none: float) -> float:
    """The mean, or `none` of no values."""
    return sum(values) / len(values) if values else none


def table(measured: dict, legend: str) -> str:
    """The rows as text, what they come to and mean, and what they do not show."""
    rows = measured["rows"]
    width = max(len(row["policy"]) for row in rows)
    heads = "   cost  summaries  clearings  largest      E      N      R  again"
    lines = []
    for row in rows:
        again = "" if row["again"] is None else f"{row['again']:.3f}"
        lines.append(
            f"{row['policy']:<{width}}  {row['cost']:>5.3f}  {row['summaries']:>9,}"
            f"  {row['clearings']:>9,}  {row['largest']:>7,}"
            f"  {row['E']:.3f}  {row['N']:.3f}  {row['R']:.3f}  {again}".rstrip()
        )
    title = f"{measured['requests']:,} recorded requests, replayed under each policy:\n"
    parts = [title, f"{'':<{width}}{heads}", *lines, "", verdict(rows)]
    parts += [what_to_know(measured), "", legend, CAVEATS]
    return "\n".join(parts)


def verdict(rows: list[dict]) -> str:
    """What was cheapest, what of those that forget kept most, and what ours costs."""
    ways = "summaries", "clearings", "previews"
    forgetting = [row for row in rows if any(row[way] for way in ways)] or rows
    best = max(row["R"] for row in forgetting)
    keeping = [row for row in forgetting if row["R"] > best - NO_MATTER]
    most = min(keeping, key=lambda row: row["cost"])
    ours = next(row for row in rows if row["policy"] == "ours")
    lines = [
        f"Cheapest was {figures(rows[0])}.",
        f"Of what forgets, most was kept, for the least, by {figures(most)}.",
        f"The settings in force: {figures(ours)}.",
    ]
    if times := ours["previews"]:
        lines.append(
            f"Results too large to be shown went to disk in ours: {counted(times, 'time', 'times')}."
        )
    return "\n".join([*lines, again_in_words(ours)])


def again_in_words(row: dict) -> str:
    """How many lines were out of sight when they were needed, and what grep shows."""
    name, lost = row["policy"], row["lost"]
    told = f"Out of sight in {name} when an edit needed them: {lost:,} lines."
    if row["lookups"]:
        share, answer = f"{row['again']:.0%}", f"{row['answer']:,} tokens (median)"
        told += f"\nOne call of grep shows {share} of them, by {answer}."
    return told


def what_to_know(measured: dict) -> str:
    """Where doing nothing would have ended, by session, and without a prompt cache."""
    lines = ['"nothing" is priced as if the window had no end.']
    for one in measured["refused"]:
        at = f"request {one['request']} of {one['of']}"
        lines.append(f"It would be refused at {at} of {one['session']}.")
    if measured["refused"]:
        nothing, ours = (measured["before"][name] for name in ("nothing", "ours"))
        whole = 1 - next(r["cost"] for r in measured["rows"] if r["policy"] == "ours")
        lines.append(
            f"Up to there it costs {nothing:.2f}, and ours {ours:.2f}: of the"
            f" {whole:.2f} that ours saves {nothing - ours:.2f} lie before that."
        )
    lines += in_how_many(measured["sessions"])
    full = measured["uncached"].items()
    costs = ", ".join(f"{name} {cost:.2f}" for name, cost in full)
    lines.append(f"Without a prompt cache, in the same unit: {costs}.")
    wrap = textwrap.TextWrapper(88, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrap.fill, lines))


def in_how_many(sessions: dict[str, list[float]]) -> list[str]:
    """In how many sessions another rule costs less than ours, if there are several."""
    of = len(sessions["ours"])
    less = [f"{name} in {count}" for name, count in cheaper(sessions).items()]
    told = (
        f"Of {of} sessions, another costs less than ours: {', '.join(less) or 'none'}."
    )
    return [told] if of > 1 else []


def legend(sessions: list[Session], read: float, peers: bool) -> str:
    """What the columns and the rows of a table mean, its prices and its clock."""
    write, usual = CACHE_WRITE, CACHE_READ
    whose = "the default model's; --read sets another" if read == usual else "by --read"
    rest = f"\n{THE_REST}" if peers else ""
    return f"""\
cost       of all requests and replies, in parts of the cost of "nothing". Prices: of an
           input token 1, {write:g} if it is written to the prompt cache, {read:g} if
           it is read from there ({whose}); of output {OUTPUT}
clock      {clock(sessions)}
summaries  how often a summary, which is one more request, replaced old messages
clearings  how often placeholders replaced old results of tools
largest    tokens of the largest request
E          edits: of the lines that an edit must quote, and that had stood anywhere
           before, the share that still stood in the request; the mean over replies
N          names: the same of the names and paths in calls and final answers that a
           result of a tool had shown before
R          (E + N) / 2: how much of what was needed next was still in sight. What went
           to disk does not count, even if it is one read away from there
again      of the lines that an edit must quote, and that were out of sight, the share
           that one call of our grep shows in the transcript, asked for the two words
           of it, side by side, that are rarest; {MOST_LOOKUPS} in a session at most

"nothing" forgets nothing, and is never refused here, though the window of all others is
{WINDOW:,}. v5 is by its page, s06 by its page in Python, whose rule its code in
TypeScript has as well, s08 by its page and code of June 2026. Two have gone on:
{newer()}
"summaries" is agent.py without clearing. All have a prompt cache at the same prices,
which no tutorial asks for. A summary has {SUMMARY:,} tokens.{rest}
"""


def newer() -> str:
    """By which code the newer rules are, a line each."""
    told = (
        f"{name}: its code at {at}, there by {by}" for name, (at, by) in NEWER.items()
    )
    return "\n".join(told)


def clock(sessions: list[Session]) -> str:
    """By which clock the prompt cache lives, in one line or two."""
    gone = f"after {program.CACHE_SECONDS} s without a request the cache is gone"
    timed, all = sum(session.timed for session in sessions), len(sessions)
    if timed == all:
        return f"the recorded one: {gone}"
    if timed:
        rest = "in the others, it counts as alive"
        return f"the recorded one in {timed} of {all} sessions: {gone};\n{'':11}{rest}"
    return "no times are recorded: the cache counts as alive all the time"


def figures(row: dict) -> str:
    """A policy, and the two numbers that count."""
    return f"{row['policy']} (cost {row['cost']:.2f}, R {row['R']:.3f})"


# ---- the command line ----


def read(paths: list[Path]) -> list[Session]:
    """The sessions in files; one line for each file that holds none."""
    sessions = []
    for path in paths:
        try:
            sessions.append(Session(read_messages(path), str(path)))
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
    if not sessions:
        raise Unusable("There is nothing to measure.")
    return sessions


def of_the_demo() -> list[Session]:
    """The work that `agent.py --demo` plays, from the transcript that it leaves."""
    demo = [sys.executable, str(ROOT / "agent.py"), "--demo"]
    with tempfile.TemporaryDirectory() as folder:
        world = {**os.environ, "TMPDIR": folder}
        no = subprocess.DEVNULL
        if subprocess.run(demo, env=world, stdin=no, stdout=no, check=False).returncode:
            raise Unusable("The demo did not come to its end: see agent.py --demo.")
        return read([*Path(folder).glob(f"*/{program.TRANSCRIPT_DIR}/*.jsonl")])


def price(text: str) -> float:
    """A price on the command line: a number from 0 on."""
    if not 0 <= (number := float(text)) < float("inf"):
        raise ValueError
    return number


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    about, _, more = (__doc__ or "").partition("\n\n")
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=style
    )
    text = "a recorded session; without any, the work of agent.py --demo"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=text)
    parser.add_argument("--peers", action="store_true", help="other agents' rules too")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,...")
    text = "of a token from the prompt cache, in that of an input token"
    parser.add_argument("--read", type=price, default=CACHE_READ, help=text)
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    options = parser.parse_args(argv)
    try:
        wanted = runs(options.peers, options.set, options.read)
        sessions = read(options.files) if options.files else of_the_demo()
        measured = measure(sessions, wanted, uncached_runs(options.set))
        about = legend(sessions, options.read, options.peers)
        print(
            json.dumps(measured, indent=1) if options.json else table(measured, about)
        )
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
