"""Look up the figures that the pages' marks name.

    KEEP_RECENT          a constant of agent.py or of the stand-in
    policies.v5.cost     a measured figure: most have the names of measure/figures.json
    small_run.price      a number in a text: a file, or what a program prints
    after.v5             several figures in their order, those of a row in a table

A new figure needs a line in one of the functions below, or in IN_TEXTS.
"""

import json
import re
import sys
from functools import cache
from itertools import chain, pairwise

import stage  # adds the folder of stub to sys.path
import stub
from played import printed

sys.path.append(str(stage.ROOT))  # last, because a file there can have any name

import faults

import agent

ROOT = stage.ROOT
PROGRAMS = {
    "demo": "python3 agent.py --demo",
    "layer1": "python3 tests/lessons/steps.py layer1",
    "layer2": "python3 tests/lessons/steps.py layer2",
    "naive": "python3 tests/lessons/naive.py",
    "small_run": "python3 tests/lessons/small_run.py",
    "on_small": "python3 tests/lessons/faults.py --mine tests/lessons/small.py",
}
IN_TEXTS = {  # a program or file, and the number in its text
    "lookups": ("tests/measure/ours.py", r"\nMOST_LOOKUPS = (\d+)"),
    "clearing.K": ("tests/pictures/requests.svg", r"K = ([\d,]+)"),
    "clearing.F": ("tests/pictures/requests.svg", r"F = ([\d,]+)"),
    "clearing.pays": ("tests/pictures/requests.svg", r"K / F = ([\d.]+) requests"),
    "demo.pays": ("demo.2", r"paid back\s+after (\d+) more"),
    "demo.summarised": ("demo.4", r"- 2 tool_result bash +([\d,]+)"),
    "layer1.price": ("layer1.2", r"sent.*, price ([\d,]+)"),
    "layer1.without": ("layer1.2", r"without .* price ([\d,]+)"),
    "layer1.without_sent": ("layer1.2", r"without .* ([\d,]+) tokens"),
    "small_run.price": ("small_run", r"in all: .* price ([\d,]+)"),
    "small_run.without": ("small_run", r"without .* price ([\d,]+)"),
    "on_small.judged": ("on_small", r"ok: \d+ of (\d+)"),
    "on_small.wrong": ("on_small", r"`!`: (\d+)"),
}
IN_SIGHT = "typed", "names", "lines", "commands", "tokens"
SURVIVES = "s06", "tail", "pi", "OpenHands", "Cliff", "ours"  # a table's columns
PROJECTS = "cipher", "ctxeval", "entire", "posh"  # in the order of a table's columns
COLUMNS = "price", "dearer", "uncached", "names", "worst", "first", "second"
JAPANESE = "文脈を圧縮する" * 500


def figure(name):
    """Return the figures of this name, usually one; raise LookupError if none."""
    if name in IN_TEXTS:
        return [in_text(*IN_TEXTS[name])]
    found = figures()
    for part in name.split("."):
        found = found.get(part) if type(found) is dict else None
    values = [*found.values()] if type(found) is dict else found
    values = values if type(values) is list else [values]
    if {*map(type, values)} - {int, float, str}:
        raise LookupError(f"no figure is named {name}")
    return values


def in_text(source, pattern):
    """Return the number that a pattern finds in a file, or in what a program prints."""
    is_file = (ROOT / source).is_file()
    text = (ROOT / source).read_text("utf-8") if is_file else printed(program(source))
    found = re.search(pattern, text)
    if not found:
        raise LookupError(f"{source} has nothing like {pattern}")
    return found[1]


def program(name):
    """Return the command of this name, as in layer1, or layer1.2 for step 2."""
    name, _, argument = name.partition(".")
    if name not in PROGRAMS:
        raise LookupError(f"no program is named {name}")
    return f"{PROGRAMS[name]} {argument}".strip()


@cache
def figures():
    """Return the figures by name, in dictionaries of dictionaries."""
    return constants() | measured() | of_programs() | counted()


def constants():
    """The numbers that the stand-in and agent.py set, and what follows from them."""
    limits = vars(agent.Limits())
    found = {**vars(stub), **vars(agent)}
    found |= {name.upper(): limit for name, limit in limits.items()}
    found = {name: n for name, n in found.items() if type(n) in (int, float)}
    rewrite = stub.CACHE_WRITE - stub.CACHE_READ
    return found | {
        "MAX_MB": agent.MAX_BYTES / 1_000_000,
        "summary": min(limits["threshold"] // 8, limits["max_output"] // 2),  # tokens
        "rewrite": rewrite,  # the price of writing to the cache instead of reading
        "rewrite_by_read": rewrite / stub.CACHE_READ,
    }


def measured():
    """The figures of figures.json, with `_` for blanks in their names."""
    text = (ROOT / "tests/measure/figures.json").read_text("utf-8")
    found = json.loads(text, object_pairs_hook=without_blanks)
    costs, grep = found["policies"], found["again"]["ours_CONTEXT_WINDOW=60000"]
    projects = [found["projects"][name] for name in PROJECTS]
    moments, courses = found["moment"] | found["windows"], found["session"]["courses"]
    rows = {name: [each[name] for each in (costs, *projects)] for name in projects[0]}
    saved = [1 - project["ours"][0] for project in projects]
    return found | {
        "results": found["shares"]["tool_result"] + found["shares"]["newest"],
        "policies": {n: pair_of(row) for n, row in costs.items()},
        "by_project": {name: [*chain(*rows[name])] for name in rows},
        "saved": {"least": min(saved), "most": max(saved)},
        "after": {name: in_sight(moment) for name, moment in moments.items()},
        "longest": {name: in_session(*course) for name, course in courses.items()},
        "longest_request": {name: most for name, (_, most) in found["over"].items()},
        "survives": {
            key: [in_sight(moments[n])[key] for n in SURVIVES] for key in IN_SIGHT
        },
        "swept": {
            key: {name: [*column] for name, column in zip(("cost", "R"), zip(*rows))}
            for key, rows in swept(found["sweep"])
        },
        "warm": {n: pair_of(row) for n, row in found["sweep"]["ALWAYS_WARM"].items()},
        "fair": found["before"]["ours"] / found["before"]["nothing"],
        "worth": worth(found["sweep"]["MAX_FAILURES"]),
        "grep": dict(zip(("lines", "found", "tokens", "whole"), grep)),
    }


def swept(sweep):
    """Yield the name and the rows of each number of layer 1 that was varied."""
    for name in "MIN_SAVINGS", "CLEAR_ABOVE":
        yield name, [row[:2] for row in sweep[name].values()]


def pair_of(row):
    """The cost and R that a row of the sweep begins with."""
    return dict(zip(("cost", "R"), row))


def worth(failures):
    """What is kept with summaries and without, by window, as in less_60000."""
    kinds = ("with", failures["3"]), ("less", failures["0"])
    return {f"{kind}_{n}": row for kind, rows in kinds for n, row in rows.items()}


def without_blanks(pairs):
    return {name.replace(" ", "_"): value for name, value in pairs}


def in_sight(moment):
    """What is in sight after a compaction, as shares, and its rounded tokens."""
    return {key: moment[key] for key in IN_SIGHT} | {
        "tokens": round(moment["tokens"], -3)
    }


def in_session(cost, _, steps):
    """The cost of a policy in the longest session, and the number of clearings."""
    counts = [cleared for _, cleared, _ in steps]
    return {"cost": cost, "clearings": sum(a < b for a, b in pairwise(counts))}


def of_programs():
    """The figures of programs.json, by job and window, and then by program."""
    found = {"version": {}, "fixed": {}, "prompts": {}}
    for run in json.loads((ROOT / "tests/measure/programs.json").read_text("utf-8")):
        name = run["program"].partition(".")[0]  # of agent.py
        job = f"{run['job']}_{run['window']}" + "_careful" * run["careful"]
        row = [price / 1_000 for price in run["prices"]]
        row += [*run["names"], *run["typed"]]
        found.setdefault(job, {})[name] = dict(zip(COLUMNS, row))
        found["version"][name] = run["version"]
        found["fixed"][name] = float(f"{run['fixed']:.2g}")  # system prompt and tools
        read = run["fixed"] * run["requests"] * stub.CACHE_READ / 1_000  # their price
        found["prompts"].setdefault(job, {})[name] = read
    return found


def counted():
    """What can be counted in files and texts."""
    source = (ROOT / "agent.py").read_text("utf-8")
    bar = "".join(progress_bar())
    return {
        "lesson": source[: source.index("# ---- messages")].count("\n"),
        "lines": {
            "agent": round(source.count("\n"), -2),
            "small": (ROOT / "tests/lessons/small.py").read_text("utf-8").count("\n"),
        },
        "faults": len(faults.TITLES),
        "japanese": {
            "characters": len(JAPANESE),
            "s06": len(JAPANESE) // 4,
            "v5": len(json.dumps(JAPANESE)) // 4,
            "ours": len(JAPANESE.encode()) // 4,
            "api": stub.tokens(JAPANESE),
        },
        "bar": {
            "printed": round(agent.tokens_in(bar), -2),
            "seen": round(agent.tokens_in(agent.clean_output(bar.encode())), -1),
        },
    }


def progress_bar():
    """Yield a minute of a progress bar that is drawn ten times a second."""
    for n in range(600):
        bar, rest = "#" * (n // 20), " " * (30 - n // 20)
        yield f"\rloading {n // 6:3}%|{bar}{rest}| {n}/600 [00:{n // 10:02}, 10.0it/s]"
