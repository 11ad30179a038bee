"""Turn first.py into small.py, and the layers of s06 into ours, step by step.

    python3 tests/lessons/steps.py                    all steps
    python3 tests/lessons/steps.py small              from first.py to small.py
    python3 tests/lessons/steps.py layer1             the steps of layer 1
    python3 tests/lessons/steps.py layer1 2           one of them
    python3 tests/lessons/steps.py layer1 2 --diff    its changes to the one before
    python3 tests/lessons/steps.py small --mine FILE  an agent of your own (see plays.py)
    python3 tests/lessons/steps.py small --serve      one in any language (see serving.py)

It needs no key, network or package: every step does the same work against a fake API and
prints the outcome. A step is a file such as layer1/step2.py; the first and last steps of
`small` are first.py and small.py.
"""

import argparse
import difflib
import itertools
import json
import sys
from importlib import import_module
from pathlib import Path

import checks
import plays
import report
import stage  # adds the folder of stub to sys.path
import stub
from stage import bill, naive_loop, reads, results, user_said, write_files
from stub import reply

sys.path.append(str(stage.ROOT))  # for agent.py; last, as files there have any name

FOLDER = Path(__file__).resolve().parent
SETTINGS = stage.settings("bash", "read_file")
RULE = "Read all files. Never touch the tests."
SUMMARY = "The files were read; all of them are alike."
THRESHOLD = 50_000  # tokens; s06 takes four characters for one
READ, WRITE = stub.CACHE_READ, stub.CACHE_WRITE
PRICE = f"Prices are in full-price input tokens: cache write {WRITE}, read {READ}."


# --- From first.py to small.py: translate 24 files ---

OF_WORK = {"stopped", "files", "on disk", "largest", "rejected", "asked", "results"}
OF_WORK |= {"compact"}


def small(path):
    """Play a step from first.py to small.py; returns {label: finding}."""
    runs = report.runs_of(path, instead={plays.work: plays.translate})
    table = [c for c in checks.CHECKS if c.play is not plays.work or c.name in OF_WORK]
    return report.about_work(runs, table)


# --- Layer 1: six results in one reply, then fourteen one by one ---


def read_twenty(micro_compact):
    """Do the work for layer 1; returns the client, the messages and any refusal."""
    names = write_files(19, 9_000)
    calls = [("bash", {"command": "pytest"})]
    calls += [("read_file", {"path": name}) for name in names[:5]]
    six = reply(calls=calls, thinking="A test, and five files.")
    script = [six, *reads(names[5:], thinking="One more."), reply("Done.")]
    client, messages = stage.scripted(*script), [user_said(RULE)]
    problem = stage.refusal(naive_loop, client, messages, micro_compact, SETTINGS)
    return client, messages, problem


def rewrites(client):
    """The number of requests that don't begin with all of the one before."""
    pairs = itertools.pairwise(r["messages"] for r in client.requests)
    return sum(after[: len(before)] != before for before, after in pairs)


def layer1(path):
    """Play a step of layer 1; returns {label: finding}."""
    step = import_module(f"layer1.{path.stem}")
    step.tool_name_map = stage.NAMES
    client, messages, problem = read_twenty(step.micro_compact)
    sees, number = stage.seen(client.requests[1]), len(client.requests)
    facts = {"seen": f"{sees} of the 6 results of the first reply"}
    facts["rejected"] = f"request {number}: {problem}" if problem else "no"
    if not problem:
        nothing, _, _ = read_twenty(list)
        facts |= {"cost": spent(client), "without": f"forgetting: {spent(nothing)}"}
        facts["rewritten"] = f"before {rewrites(client)} of {number} requests"
        facts["test run"] = f"can be recovered word for word: {again(messages)}"
    return facts


def spent(client):
    """Say how many tokens were sent in all requests, and their price."""
    sent = round(sum(map(sum, client.usages)), -3)
    return f"{sent:,} tokens sent, {bill(client.usages)}"


def again(messages):
    """Check that the test run is still there, in its result or in a file."""
    text = results(messages)[0]["content"]
    _, _, path = text.rstrip("]").partition("saved at ")
    return "FAILED" in (Path(path).read_text() if path else text)


# --- Layer 2: thirteen files, a summary, four files more ---


def asks_for_summary(request):
    """Recognise s06's request for a summary."""
    last = request["messages"][-1]["content"]
    return type(last) is str and last.startswith("Summarize this conversation")


def summarise(request):
    """Write a summary, after thinking that takes all 2,000 tokens of s06's limit."""
    few = request["max_tokens"] <= 2_000
    text, stop = ("", "max_tokens") if few else (SUMMARY, "end_turn")
    return reply(text, thinking="What was it?", stop=stop)


OF_S06 = {"asks": asks_for_summary, "summaries": [summarise]}


def layer2(path):
    """Play a step of layer 2; returns {label: finding}."""
    step = import_module(f"layer2.{path.stem}")
    names, messages = write_files(17, 16_000), [user_said(RULE)]
    client = stage.scripted(*reads(names, thinking="Next."), reply("Done."), **OF_S06)

    def before(messages):
        if len(json.dumps(messages)) // 4 <= THRESHOLD:
            return messages
        return step.auto_compact(client, SETTINGS, messages)

    try:
        problem = stage.refusal(naive_loop, client, messages, before, SETTINGS)
    except AttributeError as error:
        return {"ended by": f"AttributeError: {error}"}
    asked = client.asked[0]
    included = sum(f"{name} 0000" in json.dumps(asked["messages"]) for name in names)
    share = bill([client.usages[client.bodies.index(asked)]])
    written = len(SUMMARY) if SUMMARY in str(messages) else 0
    facts = {"asked": f"about {included} of 13 results, {share}"}
    facts |= {"summary": f"{written} characters", "rejected": problem or "no"}
    if not problem:
        facts["cost"] = bill(client.usages)
        facts["rule"] = f"in the last request: {RULE in str(client.requests[-1])}"
        facts["no text"] = f"if that is the reply, {left(step)} of 13 results are left"
    return facts


def left(step):
    """The number of results that are left if the model refuses to summarise."""
    client = stage.scripted(*reads(write_files(13, 160)), reply("Done."))
    naive_loop(client, messages := [user_said(RULE)], settings=SETTINGS)
    refuses = stage.scripted(reply(stop="refusal"))
    return len(results(step.auto_compact(refuses, SETTINGS, messages)))


# --- Which step ---

LAYERS = {"small": small, "layer1": layer1, "layer2": layer2}
STEPS = {layer: sorted((FOLDER / layer).glob("step*.py")) for layer in LAYERS}
STEPS["small"] = [FOLDER / "first.py", *STEPS["small"], FOLDER / "small.py"]
# Readers who build small.py step by step need to see where a line belongs.
CONTEXT = {"small": 1, "layer1": 0, "layer2": 0}


def play(layer: str, number: int) -> str:
    """Play a step, and format its findings."""
    path = STEPS[layer][number]
    title, _ = source(path)
    with stage.from_scratch():
        facts = LAYERS[layer](path)
    return report.shown(f"{layer} {number}: {title}", facts)


def changes(layer: str, number: int) -> str:
    """The lines that a step changes in the one before, or all lines of the first."""
    _, new = source(STEPS[layer][number])
    if number > 0:
        _, old = source(STEPS[layer][number - 1])
        new = difflib.unified_diff(old, new, n=CONTEXT[layer], lineterm="")
        new = ["..." if line.startswith("@@") else line.rstrip() for line in new][3:]
    return "\n".join(new)


def source(path: Path) -> tuple[str, list[str]]:
    """The title of a step, and the lines below it."""
    title, _, code = path.read_text("utf-8").partition("\n\n")
    return title.strip('"'), code.rstrip().split("\n")


def main(argv=None) -> int:
    """Play the chosen steps; returns 0, or 1 if something is wrong with an agent."""
    about = "Play small.py and the layers step by step, or an agent of your own."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("layer", nargs="?", choices=LAYERS)
    parser.add_argument("step", nargs="?", type=int)
    add, is_given = parser.add_argument, {"action": "store_true"}
    add("--diff", help="show what the step changes", **is_given)
    add("--mine", type=Path, metavar="FILE", help="report on your own agent")
    add("--serve", help="report on an agent in any language", **is_given)
    names = {"nargs": "+", "default": [], "metavar": "NAME"}
    add("--tools", help="how its tools are called", **names)
    given = parser.parse_args(argv)
    if given.mine or given.serve:
        how = "--serve" if given.serve else "--mine"
        if given.mine and given.serve:
            parser.error("--mine starts the agent itself; with --serve, you start it")
        if given.layer != "small" or given.step is not None:
            parser.error(f"{how} needs small and no step, as in: steps.py small {how}")
        if given.serve:
            from serving import report_on  # loads an HTTP server, which takes a while

            told, is_right = report_on(given.tools)
        else:
            told, is_right = report.play_mine(given.mine.absolute(), given.tools)
        print(told)
        return 0 if is_right else 1
    numbers = {layer: range(len(STEPS[layer])) for layer in LAYERS}
    numbers = {given.layer: numbers[given.layer]} if given.layer else numbers
    for layer, steps in numbers.items():
        if given.step not in [None, *steps]:
            parser.error(f"{layer} has the steps 0 to {steps[-1]}")
    if not given.diff and given.layer != "small":
        print(PRICE)
    for layer, steps in numbers.items():
        for number in steps if given.step is None else [given.step]:
            print((changes if given.diff else play)(layer, number))
    return 0


if __name__ == "__main__":
    sys.exit(report.status_of(main, "It was interrupted, so there is no report.\n"))
