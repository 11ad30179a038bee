"""Measure agent.py with other numbers than its own, on recorded sessions.

    python3 tests/measure/sweep.py [FILE...]    by default, all shapes, in minutes

MIN_SAVINGS and CLEAR_ABOVE: how many tokens layer 1 must free while the cache is warm,
and above how many it clears, in percent of T. Each is varied alone. (As a setting,
MIN_SAVINGS is at most T/3.)

ALWAYS_WARM: MIN_SAVINGS once more, where nothing else decides: the cache never goes
cold, and CLEAR_ABOVE is 0. A clearing costs (write - read) for each of the K tokens that
are written again, and then saves (read) for each of the F that went, in each request.
If c clearable tokens come with each request, there is a clearing every F / c requests,
and half of F is carried on average. So a request costs (write - read) K c / F for
clearings, and read F / 2 for what waits for the next one. Both are equal, and the sum is
least, if F is the root of 2 (write - read) / read K c: that's "best", in tokens, with
the K and c of that run. (Those who keep a stock find the size of an order like this.)

MAX_FAILURES: 3, the default, or 0. Then no model is asked for a summary, and a note
takes its place. "names" to "tokens" say what is in sight right after a compaction (see
moment.py), cost and R are explained by costs.py.
"""

import argparse
import sys
from collections.abc import Iterator
from copy import copy
from functools import partial
from math import sqrt
from pathlib import Path

import costs
import moment
from costs import program
from policies import TUTORIALS
from prices import Meter, replay
from recorded import Session, Unusable
from stub import CACHE_READ, CACHE_WRITE

SAVINGS = {8: 1 / 12, 17: 1 / 6, 33: 1 / 3, 50: 1 / 2, 67: 2 / 3}  # percent: share of T
ABOVE = 50, 60, 70, 80, 90  # percent of T
WINDOWS = 200_000, 60_000, 32_000  # tokens
FAILURES = 3, 0
SPENT = "cost", "R"
SEEN = "names", "lines", "commands", "typed", "tokens"


def clearing(session: Session, savings: int = 33, above: int = 70) -> Meter:
    """Run agent.py with these numbers of layer 1, in percent of T."""
    own = costs.limits({})
    own.min_savings = int(own.threshold * SAVINGS[savings])
    own.clear_above = round(own.threshold * above / 100)
    return costs.drive(session, own, search=False)


def alone(session: Session, savings: int) -> Meter:
    """Run agent.py with a cache that never goes cold and nothing but this number."""
    own = costs.limits({})
    own.min_savings, own.clear_above = int(own.threshold * SAVINGS[savings]), 0
    return costs.drive(always_warm(session), own, search=False)


def forgetting_nothing(session: Session, warm: bool) -> Meter:
    """Run a policy that forgets nothing."""
    return replay(always_warm(session) if warm else session, TUTORIALS["nothing"])


def always_warm(session: Session) -> Session:
    """Return the session as if all of it had been at one moment."""
    session = copy(session)
    session.times = [0.0] * len(session.times)
    return session


def best(meters: list[Meter]) -> float:
    """Return how many tokens a clearing should free, by its price alone."""
    clearings = [pair for meter in meters for pair in meter.rewritten]
    if not clearings:
        return 0
    written, freed = map(sum, zip(*clearings))
    clearable = freed / sum(len(meter.contexts) for meter in meters)  # per request
    ratio = (CACHE_WRITE - CACHE_READ) / CACHE_READ
    return sqrt(2 * ratio * written / len(clearings) * clearable)


def measure(sessions: list[Session]) -> dict[str, dict]:
    """Return {setting: {number: figures}}; for MAX_FAILURES, by window as well."""
    layer_1 = {("MIN_SAVINGS", n): partial(clearing, savings=n) for n in SAVINGS}
    layer_1 |= {("CLEAR_ABOVE", n): partial(clearing, above=n) for n in ABOVE}
    warm = {("ALWAYS_WARM", n): partial(alone, savings=n) for n in SAVINGS}
    own = {(n, window): in_window(window, n) for n in FAILURES for window in WINDOWS}
    layer_2 = {at: partial(costs.drive, limits=own[at], search=False) for at in own}
    seen = {("after", *at): partial(moment.measure, own=own[at]) for at in own}
    nothing = {n: partial(forgetting_nothing, warm=n) for n in (True, False)}
    done = costs.replayed(sessions, nothing | layer_1 | warm | layer_2 | seen)
    found: dict[str, dict] = {}
    for setting, number in [*layer_1, *warm]:
        meters = done[setting, number]
        pair = cost_and_r(meters, done[setting == "ALWAYS_WARM"])
        more = [best(meters)] if setting == "ALWAYS_WARM" else []
        found.setdefault(setting, {})[f"{number}"] = [*pair, *more]
    for number, window in own:
        one = dict(zip(SPENT, cost_and_r(done[number, window], done[False])))
        more = costs.summed_up(done["after", number, window])
        one |= {name: more[name] for name in SEEN if more}
        found.setdefault("MAX_FAILURES", {}).setdefault(f"{number}", {})[
            f"{window}"
        ] = one
    return found


def in_window(tokens: int, failures: int) -> program.Limits:
    """Return the limits in a window of this size, with this number of failures."""
    settings = {"CONTEXT_WINDOW": tokens, "MAX_FAILURES": failures}
    return costs.limits({name: f"{number}" for name, number in settings.items()})


def cost_and_r(meters: list[Meter], nothing: list[Meter]) -> list[float]:
    """Return the cost relative to doing nothing, and R."""
    row = costs.row("", meters, costs.total(nothing))
    return [row["cost"], row["R"]]


def told(found: dict[str, dict]) -> Iterator[str]:
    """Yield the lines of the tables."""
    for setting in "MIN_SAVINGS", "CLEAR_ABOVE", "ALWAYS_WARM":
        yield f"{setting}, % of T" + "".join(f"{n:>8}" for n in found[setting])
        for name, numbers in zip((*SPENT, "best"), zip(*found[setting].values())):
            yield f"{name:<19}" + "".join(map(cell, numbers))
        yield ""
    yield "MAX_FAILURES window" + "".join(f"{name:>10}" for name in (*SPENT, *SEEN))
    for number, windows in found["MAX_FAILURES"].items():
        for window, one in windows.items():
            yield f"{number:>12}{window:>7}" + "  ".join(["", *map(cell, one.values())])


def cell(number: float) -> str:
    """Return a share or a number of tokens."""
    return f"{number:>8.3f}" if number < 9 else f"{number:>8,.0f}"


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    about, _, more = (__doc__ or "").partition("\n\n")
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=style
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    files = parser.parse_args(argv).files
    try:
        print(*told(measure(costs.read(files or costs.shapes(all=True)))), sep="\n")
    except (Unusable, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
