"""What forgetting costs, and what it loses, on your own recorded sessions.

    python tests/measure/costs.py .transcripts/*.jsonl ~/.claude/projects/*/*.jsonl
    python tests/measure/costs.py --set KEEP_RECENT=10 --set THRESHOLD=100000 FILE...

Replays recorded conversations under several policies, and prices and searches every
request that would have been sent. No key, no network, no SDK.

cost    of all requests in input tokens, with prefix caching: read 0.1, written 1.25,
        output 5; the sum over all sessions, in parts of the sum for doing nothing
E       edits: the share of the lines that an edit must quote, and that had stood
        anywhere before, which still stand in the request; the mean over replies
N       names: the same of the names and paths in calls and final answers that a tool
        result had shown before
R       (E + N) / 2

"ours" is agent.py itself, by the settings of the shell: its loop asks a client that
hands out the recorded replies, and calls tools that hand out the recorded results.
Thinking is left out, an image counts as the word [image], and where the recorder
compacted its own context the messages go on whole.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/standin")]

from charts import BLUE, GREEN, ORANGE, TEXT, WAYS, Dot, scatter, three_ways
from policies import PEERS, SUMMARY, TUTORIALS
from prices import Meter, replay
from recorded import Measured, Message, Session, Unusable, read_messages
from stub import Stream

import agent as program

SETTINGS = {"THRESHOLD", "CONTEXT_WINDOW", "KEEP_RECENT", "KEEP_TOKENS"}
SETTINGS |= {"CLEAR_ABOVE", "MIN_SAVINGS", "MAX_MESSAGES"}
NO_MATTER = 0.005  # differences of R below this mean nothing
CAVEATS = """\
What this does not show: to have a line in sight is not to succeed; an agent that had
forgotten would have acted otherwise. Recorded agents re-read what their own compactions
took, so their need is under-counted. Differences of R below 0.005 mean nothing."""

# ---- ours: agent.py's own loop, between recorded replies and recorded results ----


class TurnOver(BaseException):
    """What comes next was typed: it ends a turn, and no `except Exception` stops it."""


class Recording:
    """A client that hands out the recorded replies, and their results as tools do."""

    def __init__(self, session: Session, meter: Meter) -> None:
        self.session, self.meter = session, meter
        self.messages = SimpleNamespace(stream=lambda **sent: Stream(self, sent))
        self.next = 0  # the index of the message that comes next
        self.results: dict[str, deque[dict]] = defaultdict(deque)
        self.measured = Measured()
        self.known: dict[int, tuple[Any, Message]] = {}

    def typed(self) -> Iterator[str]:
        """What the person typed, up to the end of the recording."""
        while self.next < len(self.session.messages):
            content = self.session.messages[self.next]["content"]
            self.next += 1
            if type(content) is str:
                yield content

    def answer(self, request: dict) -> dict:
        """The next recorded reply, or a summary; TurnOver if none comes next."""
        history = self.history(request["messages"])
        if wants_summary(request["messages"][-1]):
            size = self.meter.summarise_live(history)
            text = "word " * int(SUMMARY * 3.1 / 5)
            text = f"<analysis></analysis><summary>{text}</summary>"
            return finished([{"type": "text", "text": text}], size, SUMMARY)
        at, recorded = self.next, self.session.messages
        if at == len(recorded) or recorded[at]["role"] != "assistant":
            raise TurnOver
        reply = recorded[at]["content"]
        calls = [part for part in reply if part["type"] == "tool_use"]
        self.next += 2 if calls else 1
        for call, result in zip(calls, recorded[at + 1]["content"] if calls else ()):
            self.results[call["name"]].append(result)
        size = self.meter.reply(history, at)
        return finished(reply, size, self.session.measured[at].tokens)

    def history(self, messages: list[dict]) -> list[Message]:
        """The messages as they are measured; those of the last request are known."""
        known = {}
        for sent in messages:
            content = sent["content"]
            before = self.known.get(id(content))
            known[id(content)] = before or (content, self.measured.message(sent))
        self.known = known
        return [known[id(sent["content"])][1] for sent in messages]

    def tools(self) -> dict[str, Any]:
        """A tool for each name in the recording, which returns the next result."""
        sent = [m["content"] for m in self.session.messages if m["role"] == "assistant"]
        called = {p["name"] for parts in sent for p in parts if p["type"] == "tool_use"}
        anything = {"description": "Recorded.", "input_schema": {"type": "object"}}
        return {
            name: program.Tool({"name": name, **anything}, partial(self.result, name))
            for name in sorted(called)
        }

    def result(self, name: str, agent: Any, /, **_: Any) -> str:
        """What the tool of this name returned, or how it failed, when recorded."""
        result = self.results[name].popleft()
        if result.get("is_error"):
            raise program.ToolError(result["content"])
        return result["content"]

    def listen(self, style: str, text: str) -> None:
        """Count what layer 1 says that it has cleared."""
        cleared = text.startswith("[micro_compact]")
        self.meter.clearings += style == "layer" and cleared


def finished(content: list[dict], size: float, output: float) -> dict:
    """A reply as the API gives it."""
    calls = any(part["type"] == "tool_use" for part in content)
    return {
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {"input_tokens": int(size), "output_tokens": int(output)},
    }


def wants_summary(message: dict) -> bool:
    """Whether the loop asks for a summary: nothing else has both tags and one block."""
    content = message["content"]
    alone = type(content) is list and len(content) == 1
    text = content[0].get("text", "") if alone else ""
    return "<analysis>" in text and "<summary>" in text


def drive(session: Session, fields: Mapping[str, Any]) -> Meter:
    """The meter after a session of agent.py's own with these fields of Agent."""
    meter = Meter(session)
    recording = Recording(session, meter)
    world = {"approve": lambda *_: None, "emit": recording.listen}
    tools: Any = recording.tools()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        agent = program.Agent(client=recording, tools=tools, **world, **fields)
        for text in recording.typed():
            try:
                program.take_turn(agent, text)
            except TurnOver:
                continue
            except program.AgentError as error:  # go on with what was typed next
                print(f"A turn of ours is left out: {error}", file=sys.stderr)
    return meter


def limits(changes: Mapping[str, str]) -> dict[str, Any]:
    """The fields of Agent that the program itself makes of the settings."""
    with mock.patch.dict(os.environ, changes):
        return vars(program.limits())


# ---- what it comes to ----

Runs = dict[str, Callable[[Session], Meter]]


def runs(peers: bool, changes: list[str]) -> Runs:
    """What to measure: a function from a session to a meter, for each policy."""
    own = {"summaries": limits({}) | {"clear_above": sys.maxsize}, "ours": limits({})}
    own |= {f"ours {change}": limits(changed(change)) for change in changes}
    loops = {name: partial(drive, fields=own[name]) for name in own}
    theirs = {n: partial(replay, policy=rule) for n, rule in TUTORIALS.items()}
    others = {n: partial(replay, policy=rule) for n, rule in PEERS.items() if peers}
    return theirs | loops | others


def changed(change: str) -> dict[str, str]:
    """The settings in NAME=VALUE[,NAME=VALUE...]."""
    pairs = [pair.partition("=") for pair in change.split(",")]
    settings = {name: value for name, _, value in pairs}
    if unknown := sorted(settings.keys() - SETTINGS):
        known = ", ".join(sorted(SETTINGS))
        raise Unusable(f"{unknown[0]}: no such setting; there are {known}")
    return settings


def measure(sessions: list[Session], runs: Runs) -> list[dict]:
    """A row for each policy, over all sessions."""
    steps = itertools.product(runs, sessions)
    done = {name: [] for name in runs}
    for step, (name, session) in enumerate(steps):
        progress(step, len(runs) * len(sessions), name)
        done[name].append(runs[name](session))
    progress(0, 0, "")
    whole = sum(meter.cost for meter in done["nothing"])
    return [row(name, meters, whole) for name, meters in done.items()]


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
        "cost": round(sum(meter.cost for meter in meters) / whole, 4),
        "summaries": sum(meter.summaries for meter in meters),
        "clearings": sum(meter.clearings for meter in meters),
        "average": round(mean(contexts, 0)),
        "largest": round(max(contexts, default=0)),
        "E": round(edits, 4),
        "N": round(named, 4),
        "R": round((edits + named) / 2, 4),
        "requests": len(contexts),
    }


def mean(values: list[float], none: float) -> float:
    """The mean, or `none` of no values."""
    return sum(values) / len(values) if values else none


def table(rows: list[dict]) -> str:
    """The rows as text, what they come to, and what they do not show."""
    width = max(len(row["policy"]) for row in rows)
    heads = "   cost  summaries  clearings  average  largest      E      N      R"
    lines = [
        f"{row['policy']:<{width}}  {row['cost']:>5.3f}  {row['summaries']:>9,}"
        f"  {row['clearings']:>9,}  {row['average']:>7,}  {row['largest']:>7,}"
        f"  {row['E']:.3f}  {row['N']:.3f}  {row['R']:.3f}"
        for row in rows
    ]
    return "\n".join([f"{'':<{width}}{heads}", *lines, "", verdict(rows), "", CAVEATS])


def verdict(rows: list[dict]) -> str:
    """One sentence: what was cheapest, what kept most, what ours costs between them."""
    forgetting = [row for row in rows if row["summaries"] + row["clearings"]] or rows
    best = max(row["R"] for row in forgetting)
    keeping = [row for row in forgetting if row["R"] > best - NO_MATTER]
    cheapest = min(forgetting, key=lambda row: row["cost"])
    most = min(keeping, key=lambda row: row["cost"])
    ours = next(row for row in rows if row["policy"] == "ours")
    return (
        f"Cheapest was {cheapest['policy']} ({figures(cheapest)}), most was kept for "
        f"the least by {most['policy']} ({figures(most)});\n"
        f"the settings in force come to {figures(ours)}."
    )


def figures(row: dict) -> str:
    """The two numbers that count."""
    return f"cost {row['cost']:.2f}, R {row['R']:.3f}"


# ---- pictures, and the command line ----


def color(name: str) -> str:
    """Ours, the tutorials', the other agents' and what is no policy, told apart."""
    if name.startswith("ours"):
        return BLUE
    tutorial = name in TUTORIALS and name != "nothing"
    return ORANGE if tutorial else GREEN if name in PEERS else TEXT


def read(paths: list[Path]) -> list[Session]:
    """The sessions in files; one line for each file that holds none."""
    sessions = []
    for path in paths:
        try:
            sessions.append(Session(read_messages(path)))
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
    if not sessions:
        raise Unusable("There is nothing to measure.")
    return sessions


def main(argv: list[str] | None = None) -> int:
    """Measure, print, draw; returns the exit status."""
    about, _, more = (__doc__ or "").partition("\n\n")
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=style
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--peers", action="store_true", help="other agents' rules too")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,...")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--svg", type=Path, help="draw cost against what is kept")
    parser.add_argument("--session", type=Path, help="draw the longest session")
    options = parser.parse_args(argv)
    try:
        wanted = runs(options.peers, options.set)
        report(options, read(options.files), wanted)
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def report(options: argparse.Namespace, sessions: list[Session], wanted: Runs) -> None:
    """Print the rows and write the pictures that were asked for."""
    rows = measure(sessions, wanted)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    if options.svg:
        dots = [Dot(n := r["policy"], r["cost"], r["R"], color(n)) for r in rows]
        options.svg.write_text(scatter(dots))
    if options.session:
        longest = max(sessions, key=lambda session: len(session.messages))
        courses = {name: wanted[name](longest).steps for name in WAYS}
        options.session.write_text(three_ways(courses))


if __name__ == "__main__":
    sys.exit(main())
