"""Measure what forgetting costs and what it loses, on recorded sessions.

    python3 tests/measure/costs.py                 one session of each of four projects
    python3 tests/measure/costs.py --all           the six longest of each, in minutes
    python3 tests/measure/costs.py --mine FILE     and a policy of your own (see own_policy.py)
    python3 tests/measure/costs.py .transcripts/*.jsonl ~/.claude/projects/*/*.jsonl
    python3 tests/measure/costs.py --set KEEP_RECENT=10 --set THRESHOLD=100000 FILE...

It replays recorded conversations under several policies. Every request that a policy
would have sent is priced, and searched for what its reply needed. The last table shows
what is in sight right after a compaction (see moment.py). The columns are explained
below the tables. You need no key, no network and no SDK. Without files, it measures the
recordings in shapes/ (see shapes.py).

"ours" is agent.py itself, with the settings of your shell (see ours.py). Thinking is
left out, an image counts as the word [image], and compactions by the recorded agent are
ignored: its messages continue whole.
"""

import argparse
import json
import signal
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

import moment
import own_policy
from charts import counted
from ours import MOST_LOOKUPS, by_setting, drive, limits
from policies import (
    AT_LEAST,
    NEWER,
    PEERS,
    PLAIN,
    READ_IN,
    SUMMARIES,
    SUMMARY,
    TAIL,
    TUTORIALS,
    WINDOW,
)
from prices import Meter, replay
from recorded import SHAPES, Session, Unusable, read_messages
from stub import CACHE_READ, CACHE_WRITE, OUTPUT

import agent as program

ONE_EACH = "cipher_fc", "ctxeval_c8", "entire_ad", "posh_11"  # measured by default
MAIN = ("mine", "ours", "summaries", "s06", "s08", "v5", "pi", "opencode", "codex")
MAIN += ("OpenHands",)  # the policies that are compared by project
SLOW = 0.5  # seconds in one call of a policy
NO_MATTER = 0.005  # ignore differences below this, in cost and in R
FEW = 200  # requests; fewer aren't worth starting processes for
READS = (
    CACHE_READ,
    0.1,
)  # prices of reading a cached token: the default model's, others'
THE_REST = f"""\
The others are agents, by their sources as of {READ_IN}; Cliff is CliffCompaction,
by its description (arXiv 2609.26779). Only clear_tool_uses, a service of the API with
its default settings, follows its documentation. That doesn't say what the limit of
100,000 tokens is compared with: all that the client sends, or the "rest", what the
server left of it. clear_at_least is the same with this setting, which the documentation
recommends if there is a cache. It's {AT_LEAST:,} tokens here, the cheapest of those we
tried."""
CAVEATS = f"""\
What this can't show: seeing a line isn't succeeding, and an agent that had forgotten
something would have acted differently. Recorded agents read again what their own
compactions removed, so their needs are undercounted. The sessions in shapes/ are the
six longest of each project, so they say little about short ones. Ignore differences in
R below {NO_MATTER}."""


# ---- the measurements ----

Runs = dict[str, Callable[[Session], Meter]]
Done = dict[str, list[Meter]]


def runs(
    peers: bool,
    changes: list[str],
    read: float = CACHE_READ,
    mine: Path | None = None,
) -> Runs:
    """Return for each policy a function from a session to its meter."""
    own = {"summaries": limits({}), **by_setting(changes)}
    own["summaries"].clear_above = sys.maxsize
    loops: Runs = {name: partial(drive, limits=own[name], read=read) for name in own}
    policies = TUTORIALS | (PEERS if peers else {})
    theirs: Runs = {n: partial(replay, policy=policies[n], read=read) for n in policies}
    of_mine = {"mine": partial(own_policy.run, path=mine, read=read)} if mine else {}
    return theirs | loops | of_mine


def moments(names: Mapping[str, Any]) -> dict[str, Callable]:
    """Return for each policy that can summarise a function from a session to moments."""
    changes = [name.removeprefix("ours ") for name in names if name.startswith("ours ")]
    own = by_setting(changes) if "ours" in names else {}
    found = {n: partial(moment.measure, own=own[n]) for n in own}
    known = [moment.NO_INDEX, PLAIN] if own else []
    known += [name for name in SUMMARIES if name in names]
    return found | {name: partial(moment.measure, policy=name) for name in known}


def replayed(sessions: list[Session], runs: Mapping[Any, Callable]) -> dict:
    """Run everything on all sessions, on all processors; return lists of results."""
    done: dict[Any, list] = {name: [] for name in runs}
    with ExitStack() as stack:
        each: Callable = map
        if sum(len(session.needs) for session in sessions) > FEW:
            silent = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
            pool = stack.enter_context(ProcessPoolExecutor(initializer=silent))
            stack.callback(pool.shutdown, cancel_futures=True)
            each = pool.map
        found = each(partial(run_all, runs=runs), sessions)
        for number, session in enumerate(sessions):
            progress(number, len(sessions), session.name)
            for name, result in next(found).items():
                done[name].append(result)
    progress(0, 0, "")
    return done


def run_all(session: Session, runs: Mapping[Any, Callable]) -> dict:
    """Run everything on one session."""
    found = {name: run(session) for name, run in runs.items()}
    return {n: x.close() if isinstance(x, Meter) else x for n, x in found.items()}


def measure(sessions: list[Session], runs: Runs) -> dict:
    """Return a row for each policy, the cheapest first, and facts about them all.

    Costs are relative to doing nothing. In "sessions", each is relative to what doing
    nothing costs in that session, and in "prices" at that price.
    """
    all = {"cost": runs, "moment": moments(runs)}
    pairs = {(kind, n): run for kind, group in all.items() for n, run in group.items()}
    found = replayed(sessions, pairs)
    done, after = ({n: found[k, n] for n in all[k]} for k in all)
    whole = total(done["nothing"])
    rows = [row(name, meters, whole) for name, meters in done.items()]
    refused = [refused_at(meter) for meter in done["nothing"]]
    trios = zip(sessions, done["nothing"], refused)
    uncached_costs = without_cache(done)
    costs = {n: cost / whole for n, cost in uncached_costs.items() if n != "mine"}
    by_name = {name: by_session(done, name) for name in done}
    if "mine" in done:
        after["mine"] = [meter.moments for meter in done["mine"]]
    return {
        "requests": rows[0]["requests"],
        "rows": sorted(rows, key=lambda row: row["cost"]),
        "sessions": by_name,
        "projects": by_project(sessions, done),
        "moment": {n: m for n in after if (m := summed_up(after[n]))},
        "mine": about_mine(sessions, done, by_name),
        "uncached": {
            n: round(costs[n], 4) for n in sorted(costs, key=costs.__getitem__)
        },
        "prices": by_price(done, uncached_costs),
        "refused": [
            {"session": session.name, "request": at, "of": len(meter.contexts)}
            for session, meter, at in trios
            if at
        ],
        "before": {
            name: round(cost_before(done[name], refused) / whole, 4)
            for name in ("nothing", "ours")
        },
    }


def summed_up(sessions: list[list[moment.Moment]]) -> dict:
    """Sum up the moments of one policy, or return nothing if there are none."""
    found = [one for session in sessions for one in session]
    if not found:
        return {}
    return {name: round(n, 4) for name, n in moment.summed_up(found).items()}


def by_project(sessions: list[Session], done: Done) -> dict[str, dict[str, list]]:
    """Return cost and R of the main policies for each project, if there are several."""
    places: dict[str, list[int]] = {}
    for at, session in enumerate(sessions):
        places.setdefault(project(session.name), []).append(at)
    found: dict[str, dict[str, list]] = {}
    for name, at in places.items() if all(places) else ():
        some = {n: [done[n][i] for i in at] for n in ("nothing", *MAIN) if n in done}
        rows = [row(n, meters, total(some["nothing"])) for n, meters in some.items()]
        found[name] = {r["policy"]: [r["cost"], r["R"]] for r in rows}
    return found if len(found) > 1 else {}


def without_cache(done: Done) -> dict[str, float]:
    """Return what ours, the tutorials' policies and yours cost without a prompt cache."""
    names = [name for name in done if name in (*TUTORIALS, "mine") or "ours" in name]
    return {name: sum(meter.full for meter in done[name]) for name in names}


def by_price(done: Done, uncached: Mapping[str, float]) -> dict[str, list[float]]:
    """Return what policies cost at READS and without a prompt cache."""
    costs = {
        name: [*(sum(m.cost_at(read) for m in done[name]) for read in READS), full]
        for name, full in uncached.items()
    }
    return {
        name: [round(cost / one, 4) for cost, one in zip(found, costs["nothing"])]
        for name, found in costs.items()
    }


def about_mine(sessions: list[Session], done: Done, costs: dict) -> dict:
    """Return what to know about a policy of your own, if there is one."""
    if "mine" not in done:
        return {}
    pairs = [*zip(sessions, done["mine"])]
    refusals = [f"{why} ({s.name})" for s, meter in pairs for why in meter.refusals]
    dropped = [line for _, meter in pairs for line in meter.dropped]
    typed = [sum(meter.typed[i] for _, meter in pairs) for i in (0, 1)]
    printed = [line for _, meter in pairs for line in meter.printed]
    slow = max((meter.slowest for _, meter in pairs), default=0)
    return {
        "typed": typed,
        "unseen": sum(meter.unseen for _, meter in pairs),
        "slow": round(slow, 2),
        "printed": len(printed),
        "output": printed[:3],
        "refused": len(refusals),
        "why": refusals[0] if refusals else "",
        "cheaper": cheaper(costs).get("mine", 0),
        "dropped": len(dropped),
        "lines": dropped[:3],
    }


def by_session(done: Done, name: str) -> list[float]:
    """Return what a policy costs in each session."""
    pairs = zip(done[name], done["nothing"])
    return [round(meter.cost / nothing.cost, 3) for meter, nothing in pairs]


def cheaper(sessions: dict[str, list[float]]) -> dict[str, int]:
    """Count the sessions in which another policy costs less than ours."""
    counts = {}
    for name, costs in sessions.items():
        saved = [ours - cost for ours, cost in zip(sessions["ours"], costs)]
        counts[name] = sum(round(difference, 3) >= NO_MATTER for difference in saved)
    others = (name for name in counts if not name.startswith("ours"))
    return {name: counts[name] for name in others if counts[name]}


def total(meters: list[Meter]) -> float:
    """Return the total cost."""
    return sum(meter.cost for meter in meters)


def refused_at(meter: Meter) -> int:
    """Return the number of the first request that exceeds the window, or 0."""
    over = (n for n, size in enumerate(meter.contexts, 1) if size > WINDOW)
    return next(over, 0)


def cost_before(meters: list[Meter], refused: list[int]) -> float:
    """Return the cost of the requests before these, or of all if the number is 0."""
    return sum(
        meter.spent[at - 2] if at else meter.cost for meter, at in zip(meters, refused)
    )


def progress(done: int, all: int, name: str) -> None:
    """Show a progress bar, if there is a terminal; 0 of 0 removes it."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // max(all, 1))
        line = f"[{bar:.<30}] {name}" if all else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def row(name: str, meters: list[Meter], whole: float) -> dict:
    """Sum up a policy: its cost relative to `whole`, and means over its replies."""
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
        "over": sum(size > WINDOW for size in contexts),
        "E": round(edits, 4),
        "N": round(named, 4),
        "R": round((edits + named) / 2, 4),
        "requests": len(contexts),
        "lost": sum(meter.lost for meter in meters),
        **found_again([lookup for meter in meters for lookup in meter.lookups]),
    }


def found_again(lookups: list[tuple]) -> dict:
    """Sum up the searches in the transcript: how many found their line."""
    if not lookups:
        return {"lookups": 0, "again": None, "whole": None, "answer": None}
    by_words, by_line, sizes = zip(*lookups)
    return {
        "lookups": len(lookups),
        "again": round(mean(by_words, 0), 4),
        "whole": round(mean(by_line, 0), 4),
        "answer": round(statistics.median(sizes)),
    }


def mean(values: Sequence[float], none: float) -> float:
    """Return the mean, or `none` if there are no values."""
    return sum(values) / len(values) if values else none


def table(measured: dict, legend: str) -> str:
    """Return the rows as text, with conclusions, explanations and caveats."""
    rows = measured["rows"]
    width = max(len(row["policy"]) for row in rows)
    heads = "   cost  summaries  clearings  largest      E      N      R  again"
    lines = []
    for row in rows:
        again = f"{'-':>5}" if row["again"] is None else f"{row['again']:.3f}"
        lines.append(
            f"{row['policy']:<{width}}  {row['cost']:>5.3f}  {row['summaries']:>9,}"
            f"  {row['clearings']:>9,}  {row['largest']:>7,}"
            f"  {row['E']:.3f}  {row['N']:.3f}  {row['R']:.3f}  {again}".rstrip()
        )
    title = f"{measured['requests']:,} recorded requests, replayed under each policy:\n"
    parts = [title, f"{'':<{width}}{heads}", *lines]
    parts += [*project_table(measured["projects"], rows, width)]
    parts += [*price_table(measured["prices"], rows, width)]
    parts += [*moment_table(measured, width), ""]
    parts += [verdict(rows, measured["mine"])]
    parts += [*told_of_mine(measured), what_to_know(measured), "", legend, CAVEATS]
    return "\n".join(parts)


def project_table(
    projects: dict[str, dict[str, list]], rows: list[dict], width: int
) -> Iterator[str]:
    """Yield the lines of a table with cost and R of the main policies by project."""
    if not projects:
        return
    yield "\nCost and R by project:\n"
    yield " " * width + "".join(f"{name:>15}" for name in projects)
    for name in [row["policy"] for row in rows]:
        pairs = [found[name] for found in projects.values() if name in found]
        cells = "".join(f"{cost:>9.3f} {kept:.3f}" for cost, kept in pairs)
        yield from [f"{name:<{width}}{cells}"] if cells else []


def price_table(
    prices: dict[str, list[float]], rows: list[dict], width: int
) -> Iterator[str]:
    """Yield the lines of a table with the costs at other prices."""
    yield '\nThe same costs at other prices, each relative to "nothing" at that price:\n'
    heads = [f"read at {read:g}" for read in READS]
    yield " " * width + "".join(f"{head:>14}" for head in [*heads, "no cache"])
    for name in [row["policy"] for row in rows if row["policy"] in prices]:
        yield f"{name:<{width}}" + "".join(f"{cost:>14.3f}" for cost in prices[name])


def moment_table(measured: dict, width: int) -> Iterator[str]:
    """Yield the lines of a table of what is in sight right after a compaction."""
    if not (moments := measured["moment"]):
        return
    made = next(r["summaries"] for r in measured["rows"] if r["policy"] == "ours")
    summaries = counted(made, "summary", "summaries")
    sessions = counted(len(measured["sessions"]["ours"]), "session", "sessions")
    points, repeated = (next(iter(moments.values()))[n] for n in ("points", "repeated"))
    yield f"\nThe moment after: of what the next {moment.CALLS} calls need, in sight after"
    yield f"{counted(points, 'compaction', 'compactions')} with summaries that say nothing."
    yield "R, a mean over all requests, hides compactions, because they're rare:"
    yield f"ours made {summaries} in {sessions}."
    again = counted(repeated, "command", "commands")
    yield f"The calls repeat {again} of bash word for word, and"
    yield '"typed" is the share of the user\'s messages that are left whole.\n'
    yield f"{'':<{width}}   names   lines  commands   typed   tokens"
    for name in sorted(moments, key=lambda name: -moments[name]["names"]):
        one = moments[name]
        shares = f"{one['names']:>8.1%}{one['lines']:>8.1%}{one['commands']:>10.1%}"
        yield f"{name:<{width}}{shares}{one['typed']:>8.1%}{one['tokens']:>9,.0f}"


def told_of_mine(measured: dict) -> Iterator[str]:
    """Yield what to know about a policy of your own."""
    if mine := measured["mine"]:
        requests, of = measured["requests"], len(measured["sessions"]["mine"])
        yield f"mine: the API would reject {mine['refused']:,} of {requests:,} requests."
        if mine["refused"]:
            yield textwrap.fill(f"The first: {mine['why']}", 88)
            yield "So it isn't compared with the other policies."
        gone, all = mine["typed"]
        yield f"Typed by the user, but dropped or changed: {gone:,} of {all:,} messages."
        cut = f"Results cleared or cut before the model saw them: {mine['unseen']:,}."
        yield cut + " Its cost says little." * bool(mine["unseen"])
        if mine["slow"] > SLOW:
            yield f"It's slow: one call of forget took {mine['slow']:.1f} s."
        if not mine["refused"]:
            yield f"It's cheaper than ours in {mine['cheaper']} of {of} sessions."
        yield f"Needed by an edit, but out of sight in mine: {mine['dropped']:,} lines."
        yield from (f"    {line[:80]}" for line in mine["lines"])
        if mine["printed"]:
            yield f"It printed {counted(mine['printed'], 'line', 'lines')}. The first:"
            yield from (f"    {line}" for line in mine["output"])


def verdict(rows: list[dict], mine: Mapping[str, Any]) -> str:
    """Say which policy is cheapest, which one keeps most, and what ours does.

    A policy of your own isn't compared if the API would reject requests of it.
    """
    if mine.get("refused"):
        rows = [row for row in rows if row["policy"] != "mine"]
    ways = "summaries", "clearings", "previews"
    forgetting = [row for row in rows if any(row[way] for way in ways)] or rows
    best = max(row["R"] for row in forgetting)
    keeping = [row for row in forgetting if row["R"] > best - NO_MATTER]
    most = min(keeping, key=lambda row: row["cost"])
    ours = next(row for row in rows if row["policy"] == "ours")
    cheapest = [row for row in rows if row["cost"] < rows[0]["cost"] + NO_MATTER]
    cheap = " and ".join(figures(row, mine) for row in cheapest)
    keeps = figures(most, mine)
    own = [row for row in rows if row["policy"].split()[0] == "ours"]
    yours = " and ".join(figures(row, mine) for row in own)
    lines = [
        textwrap.fill(f"The cheapest: {cheap}.", 88),
        textwrap.fill(
            f"Of those with the best R (within {NO_MATTER}), the cheapest: {keeps}.", 88
        ),
        textwrap.fill(f"Your settings: {yours}.", 88),
    ]
    if times := ours["previews"]:
        said = counted(times, "time", "times")
        lines.append(f"ours saved oversized results to disk {said}.")
    return "\n".join([*lines, *map(again_in_words, own)])


def again_in_words(row: dict) -> str:
    """Say how many needed lines were out of sight, and how many grep finds."""
    name, lost = row["policy"], row["lost"]
    told = f"Needed by an edit, but out of sight in {name}: {lost:,} lines."
    if row["lookups"]:
        told += f" One call of grep finds {row['again']:.1%} of them by two words, in"
        told += (
            f" {row['answer']:,} tokens (median), and {row['whole']:.1%} by the line."
        )
    return textwrap.fill(told, 88)


def what_to_know(measured: dict) -> str:
    """Say where doing nothing would end, and what all cost without a cache."""
    lines = ['"nothing" is priced as if its window had no limit.']
    lines += too_large(measured["rows"])
    for one in measured["refused"]:
        at = f"request {one['request']} of {one['of']}"
        lines.append(f"Without forgetting, the API rejects {at} of {one['session']}.")
    if measured["refused"]:
        nothing, ours = (measured["before"][name] for name in ("nothing", "ours"))
        whole = 1 - next(r["cost"] for r in measured["rows"] if r["policy"] == "ours")
        lines.append(
            f'Up to there, "nothing" costs {nothing:.2f} and ours {ours:.2f}, so'
            f" {nothing - ours:.2f} of the {whole:.2f} that ours saves come before it."
        )
    sessions = dict(measured["sessions"])
    if measured["mine"].get("refused"):
        del sessions["mine"]
    lines += in_how_many(sessions)
    full = measured["uncached"].items()
    costs = ", ".join(f"{name} {cost:.2f}" for name, cost in full)
    lines.append(f"Costs without a prompt cache, in the same unit: {costs}.")
    wrap = textwrap.TextWrapper(88, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrap.fill, lines))


def too_large(rows: list[dict]) -> Iterator[str]:
    """Say which policies sent requests that the API would have rejected, if any did."""
    over = [row for row in rows if row["over"] and row["policy"] != "nothing"]
    each = [
        f"{row['over']} of {row['policy']}, up to {row['largest']:,}" for row in over
    ]
    if each:
        yield (
            f"Some other requests are larger than {WINDOW:,} tokens, but priced as if they"
            f" were accepted: {'; '.join(each)}."
        )


def in_how_many(sessions: dict[str, list[float]]) -> list[str]:
    """Say in how many sessions another policy costs less, if there are several."""
    of = len(sessions["ours"])
    less = [f"{name} in {count}" for name, count in cheaper(sessions).items()]
    told = (
        f"Cheaper than ours in some of the {of} sessions: {', '.join(less) or 'none'}."
    )
    return [told] if of > 1 else []


def legend(sessions: list[Session], read: float, peers: bool) -> str:
    """Explain the columns and rows of a table, its prices and its clock."""
    whose = "the default model's price" if read == CACHE_READ else "your price"
    rest = f"\n{THE_REST}" if peers else ""
    return f"""\
cost       of all requests and replies, relative to "nothing". An input token costs 1,
           or {CACHE_WRITE:g} if it's written to the prompt cache; one that's read from
           there costs {read:g} ({whose}; --read changes it).
           An output token costs {OUTPUT}
clock      {clock(sessions)}
summaries  how often a summary, which takes a request, replaced old messages
clearings  how often placeholders replaced old tool results
largest    tokens of the largest request
E          edits: of the lines that an edit must quote, and that had appeared before,
           the share that the request still had; averaged over replies
N          names: the same for names and paths in calls and final answers that a tool
           result had shown before
R          (E + N) / 2: how much of what was needed next was still in sight. A result
           that went to disk doesn't count, even if it's one read away
again      of the lines that an edit needed, but that were out of sight, the share that
           one call of our grep finds in the transcript, if it searches for the line's
           two rarest adjacent words ("by the line": for all of it); at most
           {MOST_LOOKUPS} lines per session. A dash means that there was no such line, or
           that the policy has no transcript

"nothing" never forgets, and no request of it is rejected here, though everyone else has
a window of {WINDOW:,} tokens. v5 follows its page, s06 its page in Python (its code in
TypeScript has the same policy), s08 its page and code of June 2026. Two have changed:
{newer()}
"summaries" is agent.py without clearing, and "tail", in the last table, what the user
typed, a summary and the newest {TAIL:,} tokens. All policies have a prompt cache at the
same prices, though no tutorial asks for one. A summary has {SUMMARY:,} tokens.{rest}
"""


def newer() -> str:
    """Say which code the newer policies follow, one per line."""
    told = (f"{name}: its code at {at}, by {by}" for name, (at, by) in NEWER.items())
    return "\n".join(told)


def clock(sessions: list[Session]) -> str:
    """Say by which clock the prompt cache goes cold, in one line or two."""
    gone = f"after {program.CACHE_SECONDS} s without a request, the cache is cold"
    timed, all = sum(session.timed for session in sessions), len(sessions)
    if timed == all:
        return f"as recorded: {gone}"
    if timed:
        rest = "in the others, it is always warm"
        return f"as recorded in {timed} of {all} sessions: {gone};\n{'':11}{rest}"
    return "none was recorded, so the cache is always warm"


def figures(row: dict, mine: Mapping[str, Any]) -> str:
    """Return a policy with its cost, its R, and the typed messages that yours drops."""
    gone, of = mine.get("typed", (0, 0)) if row["policy"] == "mine" else (0, 0)
    but = f"; it drops {gone:,} of {of:,} typed messages" if gone else ""
    return f"{row['policy']} (cost {row['cost']:.2f}, R {row['R']:.3f}{but})"


# ---- the command line ----


def read(paths: list[Path]) -> list[Session]:
    """Read the sessions in files; print a line for each file without one."""
    sessions = []
    for path in paths:
        try:
            name = path.name if path.parent == SHAPES else str(path)
            sessions.append(Session(read_messages(path), name))
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
    if not sessions:
        raise Unusable("No sessions to measure.")
    return sessions


def project(path: str) -> str:
    """Return the project of a shape, from the name of its file; of others, nothing."""
    name, _, more = Path(path).name.partition("_")
    return name if more and (SHAPES / Path(path).name).exists() else ""


def shapes(all: bool) -> list[Path]:
    """Return the shapes of recorded sessions: all, or one of each project."""
    paths = sorted(SHAPES.glob("*.xz"))
    return [path for path in paths if all or path.name.startswith(ONE_EACH)]


def amount(text: str) -> float:
    """Parse a price, or seconds, on the command line: a number, at least 0."""
    if not 0 <= (number := float(text)) < float("inf"):
        raise ValueError
    return number


def parser() -> argparse.ArgumentParser:
    """Return what parses the command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=style
    )
    text = "a recorded session (default: four of those in shapes/)"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=text)
    text = "measure all sessions in shapes/"
    parser.add_argument("--all", action="store_true", help=text)
    text = "include a policy of your own: a file with a function forget(messages)"
    text += ". Tools have agent.py's names: read_file with path, edit_file with"
    text += " old_string, bash with command. Recordings have no thinking"
    parser.add_argument("--mine", type=Path, metavar="FILE", help=text)
    text = "include other agents, as without files"
    parser.add_argument("--peers", action="store_true", help=text)
    text = "also measure agent.py with these settings"
    change = {"default": [], "metavar": "NAME=VALUE,...", "help": text}
    parser.add_argument("--set", action="append", **change)
    text = "price of reading a cached token, relative to an input token"
    parser.add_argument("--read", type=amount, default=CACHE_READ, help=text)
    text = "print JSON instead of a table"
    parser.add_argument("--json", action="store_true", help=text)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    options = parser().parse_args(argv)
    try:
        if options.mine:
            own_policy.load(options.mine)  # so that a mistake is found at once
        peers = options.peers or not options.files
        wanted = runs(peers, options.set, options.read, options.mine)
        sessions = read(options.files or shapes(options.all))
        measured = measure(sessions, wanted)
        if options.json:
            print(json.dumps(measured, indent=1))
        else:
            print(table(measured, legend(sessions, options.read, peers)))
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
