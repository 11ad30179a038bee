"""What forgetting costs, and what it loses, on your own recorded sessions.

    python tests/measure/costs.py .transcripts/*.jsonl ~/.claude/projects/*/*.jsonl
    python tests/measure/costs.py --set KEEP_RECENT=10 --set THRESHOLD=100000 FILE...

Replays recorded conversations under several policies, and prices and searches every
request that would have been sent. Under its table it says what the columns mean. No
key, no network, no SDK.

"ours" is agent.py itself, by the settings of the shell: its loop asks a client that
hands out the recorded replies, and calls tools that hand out the recorded results; its
clock is the session's. Thinking is left out, an image counts as the word [image], and
where the recorder compacted its own context the messages go on whole.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/standin")]

from charts import (
    BLUE,
    GREEN,
    ORANGE,
    TEXT,
    WAYS,
    Cost,
    Course,
    counted,
    three_ways,
    two_bars,
)
from policies import PEERS, READ_IN, SUMMARY, TUTORIALS
from prices import Meter, replay
from recorded import Measured, Message, Session, Unusable, read_gaps, read_messages
from stub import CACHE_READ, CACHE_WRITE, OUTPUT, Stream

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

    def coming(self) -> int:
        """The index of the message that comes next, of the last one at the end."""
        return min(self.next, len(self.session.messages) - 1)

    def clock(self) -> float:
        """The time in seconds: of the recorded request that comes next."""
        return self.session.times[self.coming()]

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
        self.meter.wait(self.coming())
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
        """Count what layer 1 says that it has cleared, or saved before it was seen."""
        if style == "layer":
            self.meter.clearings += text.startswith("[micro_compact]")
            self.meter.previews += text.startswith("[tool_result_budget]")


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


def drive(
    session: Session, fields: Mapping[str, Any], read: float = CACHE_READ
) -> Meter:
    """The meter after a session of agent.py's own with these fields of Agent."""
    meter = Meter(session, read=read)
    recording = Recording(session, meter)
    clock = SimpleNamespace(**vars(time) | {"time": recording.clock})
    world = {"approve": lambda *_: None, "emit": recording.listen}
    tools: Any = recording.tools()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        stack.enter_context(mock.patch.object(program, "time", clock))
        limits = program.Limits(**fields)
        agent = program.Agent(limits=limits, client=recording, tools=tools, **world)
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
        return vars(program.configured_limits())


# ---- what it comes to ----

Runs = dict[str, Callable[[Session], Meter]]


def runs(peers: bool, changes: list[str], read: float = CACHE_READ) -> Runs:
    """What to measure: a function from a session to a meter, for each policy."""
    own = {"summaries": limits({}) | {"clear_above": sys.maxsize}, "ours": limits({})}
    own |= {f"ours {change}": limits(changed(change)) for change in changes}
    loops = {name: partial(drive, fields=own[name], read=read) for name in own}
    rules = TUTORIALS | (PEERS if peers else {})
    theirs = {n: partial(replay, policy=rules[n], read=read) for n in rules}
    return theirs | loops


def changed(change: str) -> dict[str, str]:
    """The settings in NAME=VALUE[,NAME=VALUE...]."""
    pairs = [pair.partition("=") for pair in change.split(",")]
    settings = {name: value for name, _, value in pairs}
    if unknown := sorted(settings.keys() - SETTINGS):
        known = ", ".join(sorted(SETTINGS))
        raise Unusable(f"{unknown[0]}: no such setting; there are {known}")
    return settings


def measure(sessions: list[Session], runs: Runs) -> list[dict]:
    """A row for each policy, over all sessions, the cheapest first."""
    steps = itertools.product(runs, sessions)
    done = {name: [] for name in runs}
    for step, (name, session) in enumerate(steps):
        progress(step, len(runs) * len(sessions), name)
        done[name].append(runs[name](session))
    progress(0, 0, "")
    whole = sum(meter.cost for meter in done["nothing"])
    rows = [row(name, meters, whole) for name, meters in done.items()]
    return sorted(rows, key=lambda row: row["cost"])


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
        "previews": sum(meter.previews for meter in meters),
        "average": round(mean(contexts, 0)),
        "largest": round(max(contexts, default=0)),
        "E": round(edits, 4),
        "N": round(named, 4),
        "R": round((edits + named) / 2, 4),
        "requests": len(contexts),
    }


def courses(session: Session, runs: Runs, names: Iterable[str]) -> dict[str, Course]:
    """One session under these policies."""
    meters = {name: runs[name](session) for name in names}
    rows = {n: row(n, [meters[n]], meters["nothing"].cost) for n in meters}
    return {n: Course(rows[n]["cost"], rows[n]["R"], meters[n].steps) for n in meters}


def mean(values: list[float], none: float) -> float:
    """The mean, or `none` of no values."""
    return sum(values) / len(values) if values else none


def table(rows: list[dict], legend: str) -> str:
    """The rows as text, what they come to and mean, and what they do not show."""
    width = max(len(row["policy"]) for row in rows)
    heads = "   cost  summaries  clearings  average  largest      E      N      R"
    lines = [
        f"{row['policy']:<{width}}  {row['cost']:>5.3f}  {row['summaries']:>9,}"
        f"  {row['clearings']:>9,}  {row['average']:>7,}  {row['largest']:>7,}"
        f"  {row['E']:.3f}  {row['N']:.3f}  {row['R']:.3f}"
        for row in rows
    ]
    title = f"{rows[0]['requests']:,} recorded requests, replayed under each policy:\n"
    parts = [title, f"{'':<{width}}{heads}", *lines, "", verdict(rows), "", legend]
    parts.append(CAVEATS)
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
    return "\n".join(lines)


def legend(sessions: list[Session], read: float, peers: bool) -> str:
    """What the columns and the rows of a table mean, its prices and its clock."""
    write, usual = CACHE_WRITE, CACHE_READ
    whose = "the default model's; --read sets another" if read == usual else "by --read"
    rest = (
        f"\nThe rest: other agents, by their sources as of {READ_IN}." if peers else ""
    )
    return f"""\
cost       of all requests and replies, in parts of the cost of "nothing". Prices: of an
           input token 1, {write:g} if it is written to the prompt cache, {read:g} if
           it is read from there ({whose}); of output {OUTPUT}
clock      {clock(sessions)}
summaries  how often a summary, which is one more request, replaced old messages
clearings  how often placeholders replaced old results of tools
average    tokens of a request on average, and of the largest
E          edits: of the lines that an edit must quote, and that had stood anywhere
           before, the share that still stood in the request; the mean over replies
N          names: the same of the names and paths in calls and final answers that a
           result of a tool had shown before
R          (E + N) / 2: how much of what was needed next was still in sight. What went
           to disk does not count, even if it is one read away from there

"nothing" forgets nothing; s06, s08 and v5 are the tutorials' rules, "s06 cached" with a
prompt cache; "ours" is agent.py, and "summaries" is agent.py without clearing.{rest}
"""


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


# ---- pictures, and the command line ----


def color(name: str) -> str:
    """Ours, the tutorials', the other agents' and what is no policy, told apart."""
    if name.startswith("ours"):
        return BLUE
    tutorial = name in TUTORIALS and name != "nothing"
    return ORANGE if tutorial else GREEN if name in PEERS else TEXT


def read(paths: list[Path], gaps: Path | None = None) -> list[Session]:
    """The sessions in files; one line for each file that holds none."""
    sessions, known = [], read_gaps(gaps) if gaps else {}
    for path in paths:
        try:
            sessions.append(Session(read_messages(path, known.get(path.stem))))
        except (Unusable, OSError) as error:
            print(error, file=sys.stderr)
    if not sessions:
        raise Unusable("There is nothing to measure.")
    return sessions


def price(text: str) -> float:
    """A price on the command line: a number from 0 on."""
    if not 0 <= (number := float(text)) < float("inf"):
        raise ValueError
    return number


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
    text = "of a token from the prompt cache, in that of an input token"
    parser.add_argument("--read", type=price, default=CACHE_READ, help=text)
    text = "the seconds between requests, of files without times"
    parser.add_argument("--gaps", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--svg", type=Path, help="draw cost and what is kept")
    parser.add_argument("--session", type=Path, help="draw the longest session")
    options = parser.parse_args(argv)
    try:
        wanted = runs(options.peers, options.set, options.read)
        report(options, read(options.files, options.gaps), wanted)
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def report(options: argparse.Namespace, sessions: list[Session], wanted: Runs) -> None:
    """Print the rows and write the pictures that were asked for."""
    rows = measure(sessions, wanted)
    about = legend(sessions, options.read, options.peers)
    print(json.dumps(rows, indent=1) if options.json else table(rows, about))
    if options.svg:
        found = [Cost(n := r["policy"], r["cost"], r["R"], color(n)) for r in rows]
        options.svg.write_text(two_bars(found))
    if options.session:
        longest = max(sessions, key=lambda session: len(session.messages))
        options.session.write_text(three_ways(courses(longest, wanted, WAYS)))


if __name__ == "__main__":
    sys.exit(main())
