"""Let real programs do one scripted job, and measure what each sends and still sees.

    python3 tests/measure/programs.py
    python3 tests/measure/programs.py --dir FOLDER --job outputs --window 100000

Each program talks to a stand-in for the API on this machine, has a home of its own, and
uses its own tools. The summaries say nothing, or repeat the rules and names that they
are shown (--careful), so what's in sight is what the program keeps. A run counts only
if all of the work was done; otherwise, the report says what failed.

    sent      tokens of all requests, rejected ones included; `fixed` is the size of
              system prompt and tools, which every request repeats
    price     in input tokens, if reading from the cache costs 0.05 or 0.1, and without
              a cache; by the API's rules: markers, a lookback of 20 blocks, at
              least 1,024 tokens. Nothing expires: a run takes less than five minutes
    names     of the functions in the eight files that were read last, or of the
              entries in the eight logs, the share that a request still shows
    typed     the share of requests that show the rule in the first and second prompt
    again     steps whose result wasn't in the next request, so that they were repeated
    side      requests for titles and the like

What this can't show: the model is scripted and asks for the same whatever it sees, so
nothing here says how well a real one would do the work. A program that gets along
without a summary keeps all that was typed; a smaller window shows what it does then.
And programs differ in more than what they forget: Claude Code's system prompt and tools
have 24,000 tokens (2.1.332) or 34,000 (2.1.197), and it pays for them every time.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))

import door
from launch import (
    PROGRAMS,
    Failed,
    Place,
    Run,
    command_of,
    environment,
    progress,
    version,
)
from scripted import JOBS, Worker
from stub import CACHE_READ, CACHE_WRITE, OUTPUT

SAVED = Path(__file__).with_suffix(".json")
LIMIT = 300  # seconds for one run


class Case(NamedTuple):
    """The circumstances that a program is measured in."""

    job: str
    window: int
    careful: bool = False


CASES = [  # of --all
    Case("reading", 200_000),
    Case("reading", 200_000, careful=True),
    Case("reading", 100_000),
    Case("reading", 100_000, careful=True),
    Case("reading", 50_000),
    Case("outputs", 200_000),
]

# --- The stand-in server ---


class Handler(door.Handler):
    """Also notes attempts to reach other addresses."""

    client: Worker

    def do_CONNECT(self):
        self.client.elsewhere.add(self.path)
        self.send(403, {})


# --- The measure ---


def measure(name: str, path: str, limit: float, case: Case) -> dict:
    """Let a program do a job, and return its figures, or why it has none."""
    program = PROGRAMS[name]
    command = command_of(program, path)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work, home = (Path(folder).resolve() / part for part in ("work", "home"))
        work.mkdir()
        home.mkdir()
        model = Worker(JOBS[case.job](), work, case.window, case.careful)
        with door.served(model, Handler) as url:
            env = environment(Place(home, url, case.window), program, path)
            row = {"program": name, "version": version(command, env)}
            row |= {**case._asdict(), "date": f"{date.today()}"}
            try:
                Run(command, program, env, model, limit).play()
            except Failed as error:
                return row | {"failed": str(error)}
    return row | figures(model)


def timed(name: str, path: str, limit: float, case: Case) -> dict:
    """Measure, and say on standard error what is measured and how long it took."""
    start = time.monotonic()
    print(f"{name}: {' '.join(map(str, case))}", file=sys.stderr, flush=True)
    row = measure(name, path, limit, case)
    progress(f"{time.monotonic() - start:.0f} s{'':20}\n")
    return row


def figures(model: Worker) -> dict:
    """The figures of a run."""
    shares = model.shares or [0]
    return {
        "requests": len(model.sizes),
        "rejected": model.rejected,
        "summaries": model.summary_count,
        "again": len(model.again),
        "side": model.side,
        "sent": sum(model.sizes),
        "largest": max(model.sizes, default=0),
        "fixed": model.fixed,
        "prices": [price(model, read) for read in (CACHE_READ, 2 * CACHE_READ, None)],
        "names": [round(sum(shares) / len(shares), 3), round(min(shares), 3)],
        "typed": [round(sum(t) / max(1, len(t)), 3) for t in model.typed],
        "problems": sorted(model.problems),
        "elsewhere": sorted(model.elsewhere),
    }


def price(model: Worker, read: float | None) -> int:
    """The price of all requests, in input tokens; without `read`, nothing is cached."""
    write, read = (CACHE_WRITE, read) if read else (1, 1)
    return round(
        sum(
            used["input_tokens"]
            + write * used["cache_creation_input_tokens"]
            + read * used["cache_read_input_tokens"]
            + OUTPUT * used["output_tokens"]
            for used in model.used
        )
    )


# --- The table ---

FIGURES = {
    "requests": lambda row: f"{row['requests']:,}",
    "rejected": lambda row: f"{row['rejected']:,}",
    "summaries": lambda row: f"{row['summaries']:,}",
    "again": lambda row: f"{row['again']:,}",
    "side": lambda row: f"{row['side']:,}",
    "sent": lambda row: f"{row['sent'] / 1e6:.2f} M",
    "fixed": lambda row: f"{row['fixed']:,}",
    "largest": lambda row: f"{row['largest']:,}",
    "price 0.05": lambda row: f"{row['prices'][0]:,}",
    "0.1": lambda row: f"{row['prices'][1]:,}",
    "no cache": lambda row: f"{row['prices'][2]:,}",
    "names": lambda row: f"{row['names'][0]:.2f}",
    "worst": lambda row: f"{row['names'][1]:.2f}",
    "typed": lambda row: " ".join(f"{share:.0%}" for share in row["typed"]),
}


def lines(rows: list[dict]) -> list[str]:
    """A table with a column for each program that has done the job."""
    done = [row for row in rows if "failed" not in row]
    cells = [["", *(f"{row['program']} {row['version']}".strip() for row in done)]]
    cells += [[name, *map(cell, done)] for name, cell in FIGURES.items()]
    widths = [max(map(len, column)) for column in zip(*cells)]
    table = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])])
        for first, *rest in cells
    ]
    return (table if done else []) + [note for row in rows for note in notes(row)]


def notes(row: dict) -> list[str]:
    """Remarks on a run, to go below the table."""
    told = [f"FAILED, so it has no figures: {row['failed']}"] if "failed" in row else []
    told += [f"the API would have rejected: {one}" for one in row.get("problems", [])]
    told += [f"wanted to reach {address}" for address in row.get("elsewhere", [])]
    return [f"{row['program']}: {text}" for text in told]


def title(row: dict) -> str:
    """The case that a row is of."""
    said = "repeat rules and names" if row["careful"] else "say nothing"
    return f"{row['job']}, window {row['window']:,}, summaries that {said}:"


def parser() -> argparse.ArgumentParser:
    """Return what parses the command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    tried = [program.tried for program in PROGRAMS.values() if program.tried]
    more += (
        "\nInstall the others with npm. These versions were tried; pi needs Node 22.19:"
    )
    more += "\n\n    npm install --prefix FOLDER"
    more += "".join(f" \\\n        {newest}" for newest, *_ in tried)
    more += (
        f"\n\nEarlier ones: {', '.join(old for _, *others in tried for old in others)}."
    )
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=style
    )
    add = parser.add_argument
    text = "where npm has installed programs, if they aren't on the PATH"
    add("--dir", type=Path, metavar="FOLDER", help=text)
    text = "run only this one; can be repeated"
    add("--program", action="append", choices=PROGRAMS, help=text)
    text = "read modules, or run commands with long outputs (default: reading)"
    add("--job", choices=JOBS, default="reading", help=text)
    text = "tokens (default: 200000)"
    add("--window", type=int, default=200_000, metavar="N", help=text)
    text = "summaries repeat the rules and names that they are shown"
    add("--careful", action="store_true", help=text)
    text = f"measure {len(CASES)} cases: both jobs, and smaller windows"
    add("--all", action="store_true", help=text)
    text = f"end a run after so many seconds (default: {LIMIT})"
    add("--limit", type=float, default=LIMIT, metavar="SECONDS", help=text)
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--save", action="store_true", help=f"also keep the figures in {SAVED.name}")
    return parser


def save(rows: list[dict]) -> None:
    """Keep these rows, in place of earlier ones of the same program and case."""
    earlier = json.loads(SAVED.read_text()) if SAVED.exists() else []
    keys = "job", "window", "careful", "program", "version"
    kept = {tuple(row[key] for key in keys): row for row in [*earlier, *rows]}
    text = ",\n".join(json.dumps(kept[key]) for key in sorted(kept))
    SAVED.write_text(f"[\n{text}\n]\n")


def search_path(folder: Path | None) -> str:
    """The PATH, with npm's folder in front."""
    own = [f"{folder.absolute()}/node_modules/.bin"] if folder else []
    return os.pathsep.join([*own, os.environ.get("PATH", os.defpath)])


def present(names: Iterable[str], path: str) -> Iterator[str]:
    """Yield the programs that are there, and say how to get the others."""
    for name in names:
        if command_of(PROGRAMS[name], path):
            yield name
        else:
            how = f"npm install --prefix FOLDER {PROGRAMS[name].tried[0]}"
            print(f"{name} isn't there: {how}, then --dir FOLDER", file=sys.stderr)


def large_enough(window: int, names: Iterable[str]) -> Iterator[str]:
    """Yield the programs that let one set this window, and name the others."""
    for name in names:
        if (least := PROGRAMS[name].least_window) <= window:
            yield name
        else:
            print(f"{name} has no window under {least:,} tokens", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the programs, print, and return the exit status."""
    options = parser().parse_args(argv)
    path, rows = search_path(options.dir), []
    names = [*present(options.program or PROGRAMS, path)]
    one = Case(options.job, options.window, options.careful)
    for case in CASES if options.all else [one]:
        able = large_enough(case.window, names)
        found = [timed(name, path, options.limit, case) for name in able]
        if found and not options.json:
            print("\n".join([title(found[0]), *lines(found), ""]))
        rows += found
    if options.json:
        print(json.dumps(rows, indent=1))
    if options.save:
        save(rows)
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)
