"""Make the tutorial's pictures, from measured figures and from the program's own runs.

    .venv/bin/python tests/measure/pictures.py            make them all again
    .venv/bin/python tests/measure/pictures.py --measure  first measure all shapes again

The figures are in figures.json. They come from the recorded sessions whose shapes are
in shapes/; measuring them takes some minutes. You need no key, no network and no SDK: in the runs, the tests' `stub` plays the model, and
agent.py's own functions do the rest. Tokens of blocks are rounded to 100. The picture
of a terminal needs the package rich.
"""

import argparse
import io
import json
import os
import pty
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import charts
import costs
import moment
import stub
import sweep
from charts import BLUE, GREEN, ORANGE, PURPLE, TEXT, box, line, text
from costs import program
from lists import LETTERS, LOOKS, REQUEST, TAIL, chained, rows, what_remains
from policies import BY_DOCUMENTATION, PEERS, TUTORIALS
from screenshot import COLUMNS, screenshot
from stub import StubClient, reply

FOLDER = Path(__file__).resolve().parent.with_name("pictures")
FIGURES = Path(__file__).with_name("figures.json")
SETTINGS = [
    "THRESHOLD=60000",
    "CONTEXT_WINDOW=60000",
]  # to measure ours with, besides the default
WINDOWS = 100_000, 60_000, 32_000  # to measure the moment after a compaction in
SETTING_WORDS = {"THRESHOLD": "threshold", "CONTEXT_WINDOW": "window"}
KINDS = {
    "tool_result": ("older tool results", ORANGE),
    "newest": ("the newest three tool results", ORANGE),
    "tool_use": ("tool calls", GREEN),
    "assistant": ("the model's text", GREEN),
    "user": ("the user's messages", BLUE),
}

# ---- measured on recorded sessions: only numbers, none of their text ----


def measure(paths):
    """Measure the figures that the page and its pictures have of recorded sessions.

    Costs are relative to doing nothing. "policies" has the cost and R of each policy,
    "largest" the largest request that forgets nothing, in tokens, "over" for each
    policy the number of requests over 200,000 tokens and the largest, "before" the costs
    until the first rejection, "cheaper" the number of sessions in which a policy costs
    less than ours, "each" the costs in each session, "prices" the costs at other prices
    of a cached token and without a cache, each relative to doing nothing at that price,
    "moment" what is in sight after a compaction, "windows" the same of ours in smaller
    ones, "sweep" ours with other numbers (see sweep.py), and "session" the session with
    the most requests.
    """
    sessions, runs = costs.read(paths), costs.runs(True, SETTINGS)
    measured = costs.measure(sessions, runs)
    rows = {row["policy"]: row for row in measured["rows"]}
    longest = max(sessions, key=lambda session: len(session.needs))
    by_session = zip(*measured["sessions"].values())
    each = [dict(zip(measured["sessions"], found)) for found in by_session]
    return rounded(
        {
            "sessions": len(sessions),
            "read": stub.CACHE_READ,
            "requests": measured["requests"],
            "largest": rows["nothing"]["largest"],
            "refused": len(measured["refused"]),
            "before": measured["before"],
            "uncached": measured["uncached"],
            "prices": measured["prices"],
            "cheaper": costs.cheaper(measured["sessions"]),
            "shares": shares(sessions),
            "policies": {name: [rows[name]["cost"], rows[name]["R"]] for name in rows},
            "over": {n: [rows[n]["over"], rows[n]["largest"]] for n in rows},
            "projects": measured["projects"],
            "moment": measured["moment"],
            "windows": in_windows(sessions),
            "sweep": sweep.measure(sessions),
            "summaries": {name: rows[name]["summaries"] for name in rows},
            "again": {n: again(rows[n]) for n in rows if n.startswith("ours")},
            "each": {name_of(one): found for one, found in zip(sessions, each)},
            "session": one_session(longest, runs),
        }
    )


def name_of(session):
    """Return a session's name without the endings of its file."""
    return Path(session.name).name.partition(".")[0]


def rounded(value):
    """Round all numbers to three decimals."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 3) if isinstance(value, float) else value


def again(row):
    """Return how many lines were lost, and what grep finds of them.

    First the share that it finds by two words, with the tokens of its answer, then the
    share that it finds by the whole line.
    """
    return [row["lost"], row["again"], row["answer"], row["whole"]]


def one_session(session, runs):
    """Measure the policies in the picture of one session, also at other prices."""
    done = costs.replayed([session], {name: runs[name] for name in charts.POLICIES})
    [nothing] = done["nothing"]
    courses = {name: course(meter, nothing) for name, [meter] in done.items()}
    return {
        "requests": len(nothing.contexts),
        "refused": costs.refused_at(nothing),
        "prices": costs.by_price(done, costs.without_cache(done)),
        "courses": {
            name: [
                course.cost,
                course.kept,
                course.steps if name in charts.WAYS else [],
            ]
            for name, course in courses.items()
        },
    }


def course(meter, nothing):
    """Return what a policy costs in a session, how much it keeps, and its requests."""
    kept = costs.row("", [meter], nothing.cost)
    return charts.Course(kept["cost"], kept["R"], meter.steps)


def in_windows(sessions):
    """Measure the moment after a compaction of ours in windows of these sizes."""
    own = {size: costs.limits({"CONTEXT_WINDOW": str(size)}) for size in WINDOWS}
    runs = {size: partial(moment.measure, own=own[size]) for size in WINDOWS}
    return {n: costs.summed_up(m) for n, m in costs.replayed(sessions, runs).items()}


def shares(sessions):
    """Return each kind's share of all tokens."""
    found = Counter()
    for session in sessions:
        results = [b.tokens for _, b in session.blocks if b.type == "tool_result"]
        found.update(newest=sum(results[-3:]), tool_result=-sum(results[-3:]))
        for at, block in session.blocks:
            role = session.measured[at].role
            found[role if block.type == "text" else block.type] += block.tokens
    return {kind: round(found[kind] / sum(found.values()), 4) for kind in KINDS}


def tokens_by_kind(figures):
    """Draw where the tokens go, with a bar for each kind."""
    share, told, body = figures["shares"], [], []
    for number, (kind, (name, color)) in enumerate(KINDS.items()):
        y, wide = 30 * number + 24, 310 * share[kind] / max(share.values())
        told.append(f"{name} {share[kind]:.1%}")
        body += [text(300, y, name, "end"), box(310, y - 14, wide, 18, color, 1)]
        body.append(text(318 + wide, y, f"{share[kind]:.1%}"))
    title = f"Where the tokens go in {figures['sessions']} long recorded sessions"
    return charts.picture(title, body, told, 160)


# ---- the program's own runs, in a scratch folder ----

FILES = {"shop.py": 9_000, "shop.log": 8_000, "cart.py": 7_000, "price.py": 4_000}
FILES |= {"test.log": 3_000, "big.log": 45_000, "long.log": 30_000, "mid.log": 18_000}
FOUND = "Checkout is slow because every price is read again. " * 72
SUMMARY = f"<summary>\n{FOUND}\n</summary>"


def use(tool, *more, **given):
    """Return a reply that thinks and calls tools."""
    return reply(calls=[(tool, given), *more], thinking="...")


def read(*names):
    """Return replies that each read one of these files."""
    return [use("read_file", path=name) for name in names]


CACHE = {"old_text": "def prices", "new_text": "@cache\ndef prices"}
FIX = [
    reply(calls=[("bash", {"command": "cat times.log"})]),
    reply(
        calls=[("edit_file", {"path": "prices.py", **CACHE})],
        thinking="Every price reads the whole table again.",
    ),
    reply("Every price read the whole table again. Now it's read once."),
]
SHOP = [
    "Never touch the tests.",
    reply("I will not."),
    "Why is checkout slow?",
    use("todo_write", items=["[ ] fix it"]),
    use("read_file", path="shop.py"),
    use("bash", command="cat shop.log"),
    *read("cart.py", "price.py"),
    use("write_file", path="fix.py", content="fixed = True"),
    use("bash", command="cat test.log"),
]
LOGS = [
    use("bash", command=f"cat {name}.log") for name in ("big", "long", "mid", "long")
]
LONG = [*SHOP[:3], *LOGS, *SHOP[3:]]  # with some more to forget
ASKED = "Why is checkout slow? Fix it."
PRICES = '''\
"""The prices of all products."""

from functools import cache
from pathlib import Path


def prices():
    rows = Path("prices.csv").read_text().splitlines()
    return dict(row.split(",") for row in rows)
'''
TIMES = [f"0.02s call  tests/test_cart.py::test_cart[{n}]" for n in range(240)]
TIMES = ["9.81s call  tests/test_shop.py::test_checkout", *TIMES, "241 passed in 14.6s"]
TO_FIX = {"prices.py": PRICES, "times.log": "\n".join(TIMES)}


def begun():
    """Return an agent in a folder with these files."""
    for name, tokens in FILES.items():
        lines = [f"# {name}", *[""] * (tokens // 500 - 1)]
        Path(name).write_text("".join(f"{line:1999}\n" for line in lines))
    agent = program.Agent(client=StubClient(), approve=lambda name, what: None)
    program.make_ready(agent)
    today, day = time.strftime("%A, %Y-%m-%d"), "Friday, 2026-11-27"
    for part, said in agent.system.items():  # the same numbers anywhere, on any day
        said = said.replace(os.getcwd(), "/shop").replace(today, day)
        agent.system[part] = said.replace(
            f"system is {sys.platform}", "system is linux"
        )
    return agent


def work(agent, *script):
    """Let the agent do this work with the program's own functions, but no layers."""
    for step in script:
        if type(step) is str:
            program.commit(agent, {"role": "user", "content": step})
            continue
        agent.client.enqueue(step)
        calls = program.take_reply(agent, program.ask(agent, agent.messages))
        if calls:
            program.run_tools(agent, calls)
    return agent


class Approving(program.Terminal):
    """A terminal whose user types "y" at every question; `far_end` takes the keys."""

    far_end = -1

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "answer" and value is None:
            os.write(self.far_end, b"y\n")


@contextmanager
def keyboard():
    """Make standard input a terminal; yield the file that takes its keys."""
    far_end, terminal = pty.openpty()
    before = os.dup(0)
    os.dup2(terminal, 0)
    try:
        yield far_end
    finally:
        os.dup2(before, 0)
        for file in far_end, terminal, before:
            os.close(file)


def at_work():
    """Return what the program prints while it fixes something."""
    agent, out = begun(), io.StringIO()
    for name, written in TO_FIX.items():
        Path(name).write_text(written)
    before = read("shop.py") * 10 + read("prices.py")
    work(agent, "What does this shop do?", *before, reply("It sells."))
    terminal = Approving(out, colored=True, live=True, keyboard=True, can_ask=True)
    agent.emit = partial(program.show, terminal)
    agent.approve = partial(program.ask_approval, terminal, agent)
    agent.client.enqueue(*FIX)
    wide = mock.patch.dict(os.environ, COLUMNS=f"{COLUMNS}")
    with wide, keyboard() as terminal.far_end:
        program.handle_line(agent, ASKED)
    return f"{program.BOLD}> {ASKED}{program.PLAIN}\n{out.getvalue()}"


# ---- pictures of these runs ----


def transcript():
    """Draw the lines of a transcript, and the messages after replaying up to each."""
    lines, told = recorded_lines(), []
    body = [text(36, 20, "the lines of the file")]
    body.append(text(400, 20, "the messages after replaying them"))
    for n in range(1, len(lines) + 1):
        Path("prefix").write_bytes(b"".join(lines[:n]))
        history, y = program.load(Path("prefix")).messages, 5 + 25 * n
        words, color = about_line(lines[n - 1], rows(history)[-1])
        body.append(text(30, y + 14, str(n), "end"))
        body += charts.cell(36, y, 344, words, color)
        for at in range(len(history)):
            kind = rows(history[: at + 1])[-1].kind
            body += charts.badge(400 + 22 * at, y, *LOOKS[kind])
        size = charts.counted(len(history), "message", "messages")
        told.append(f"{n}. {words}: {size}")
        body.append(text(406 + 22 * len(history), y + 14, str(len(history))))
    y = 50 + 25 * len(lines)
    body.append(text(36, y, LETTERS))
    title = "The lines of a transcript, and the messages after replaying them"
    return charts.picture(title, body, told, y + 10)


def recorded_lines():
    """Return the lines of a transcript with a compaction, the last line torn."""
    agent = begun()
    agent.client.enqueue(use("bash", command="cat long.log"), use("compact"))
    agent.client.enqueue(reply(SUMMARY), reply("Every price is read again."))
    agent.client.enqueue(use("read_file", path="cart.py"), reply("It is fine."))
    program.take_turn(agent, "Why is checkout slow?")
    program.take_turn(agent, "And the cart?")
    *lines, last = Path(str(agent.transcript)).read_bytes().splitlines(keepends=True)
    return [*lines, last[:40]]


def about_line(line, newest):
    """Return what to write on a line of a transcript, and its color."""
    if not line.endswith(b"\n"):
        return "(incomplete, so it is ignored)", TEXT
    if b'"event"' in line:
        event = json.loads(line)["event"]
        return f"event {event}: a summary replaces the history", newest.color
    return newest.words, newest.color


# ---- the program's own numbers: the price of a clearing, the thresholds ----


def around_a_clearing():
    """Send four requests, with a clearing in the middle.

    Return the number of the first, and for each the tokens that were read, written, and
    cleared just before it.
    """
    agent, code = work(begun(), "Why is checkout slow?"), "fixed = True\n" * 1_500
    for name in ["shop.py", "cart.py", "shop.log"] * 3:
        work(agent, *read(name), use("write_file", path="fix.py", content=code))
    sent = [(*asked(agent), 0), (*asked(agent), 0)]
    old = agent.messages
    new = program.micro_compact(old, program.save_result)
    cleared = program.context_tokens(agent)
    program.replace_history(agent, "micro_compact", "", new)
    cleared -= program.context_tokens(agent)
    sent += [(*asked(agent), cleared), (*asked(agent), 0)]
    return len(old) // 2 - 1, sent


def asked(agent):
    """Send a request; return the tokens that it reads from the cache and writes."""
    agent.client.enqueue(*read("price.py"))
    answer = program.ask(agent, agent.messages)
    program.run_tools(agent, program.take_reply(agent, answer))
    known = round(agent.cached * answer.sent)
    return known, answer.sent - known


def requests(sent, first):
    """Draw what requests read from the cache and write to it, around a clearing."""
    columns = {"read": 530, "written": 605, "price": 692}
    scale, told = 340 / max(map(sum, sent)), []
    body = [text(x, 20, name, "end") for name, x in columns.items()]
    for number, (known, written, cleared) in enumerate(sent, first):
        y, wide = 32 + 46 * (number - first), scale * known
        end = 90 + wide + scale * written
        price = stub.CACHE_READ * known + stub.CACHE_WRITE * written
        body += [text(8, y + 15, f"request {number}"), *was_read(90, y, wide)]
        body.append(box(90 + wide, y, scale * written, 20, ORANGE, 1))
        body.append(charts.mark(end, y + 24))
        for value, x in zip((known, written, price), columns.values()):
            body.append(text(x, y + 15, f"{value:,.0f}", "end"))
        told.append(f"request {number}: read {known:,}, written {written:,} tokens")
        if cleared:
            body.append(box(end, y, scale * cleared, 20, TEXT, 0, "4 3"))
            body.append(text(end + 8, y + 15, f"cleared: {cleared:,}"))
            told.append(f"cleared before it: {cleared:,} tokens")
    told.append(paid_back(sent))
    y = 48 + 46 * len(sent)
    body.append(text(8, y - 2, told[-1]))
    y += 18
    body += [*was_read(90, y, 18), box(320, y, 18, 20, ORANGE, 1)]
    body.append(text(114, y + 15, f"read from the cache ({stub.CACHE_READ})"))
    body.append(text(344, y + 15, f"written ({stub.CACHE_WRITE})"))
    body += [charts.mark(478, y + 6), text(490, y + 15, "mark: cached up to here")]
    title = "What requests read from the prompt cache and write to it"
    return charts.picture(title, body, told, y + 30)


def paid_back(sent):
    """Say after how many requests the clearing has paid for itself.

    This is the page's formula. New tokens don't count: they're written in any case.
    """
    sizes = [known + written for known, written, _ in sent]
    freed = sent[2][2]
    new = sizes[2] + freed - sizes[1]
    kept = sent[2][1] - new
    price = (stub.CACHE_WRITE - stub.CACHE_READ) / stub.CACHE_READ
    wait = f"{price:.3g} K / F = {price * kept / freed:.1f} requests"
    return f"K = {kept:,} written again, F = {freed:,} cleared: paid back after {wait}"


def was_read(x, y, wide):
    """Draw the part of a request that comes from the cache."""
    return [box(x, y, wide, 20, BLUE, opacity) for opacity in (charts.FILL, 0)]


def thresholds():
    """Draw what happens between an empty context and a full window."""
    limits = costs.limits({})
    window, most, clear = limits.context_window, limits.threshold, limits.clear_above
    cold = int(most * program.CLEAR_COLD)
    marks = {
        window: "(the window): the API rejects anything larger",
        most: "(T): a summary replaces the history",
        clear: f"({clear / most:.1f} T): old results are cleared from here on",
        cold: f"(T/{most / cold:.0f}): with a cold cache, they're cleared from here on",
    }
    told = [f"{tokens:,} {words}" for tokens, words in marks.items()]
    places = [20 + 660 * tokens / window for tokens in marks]
    *above, below = zip(places, told)
    body = [line([(below[0], 126), (below[0], 148)], TEXT, 1.5)]
    body.append(text(below[0] + 6, 148, below[1]))
    for number, (x, said) in enumerate(above):
        y = 20 + 26 * number
        body += [line([(x, y - 12), (x, 126)], TEXT, 1.5), text(x - 6, y, said, "end")]
    parts = {
        "the reply": PURPLE,
        "clearing": ORANGE,
        "clearing if the cache is cold": BLUE,
        "nothing is removed": GREEN,
    }
    for (words, color), start, end in zip(parts.items(), [*places[1:], 20], places):
        body.append(box(start, 100, end - start, 26, color))
        body.append(text((start + end) / 2, 118, words, "middle"))
    body.append(text(20, 174, "tokens of context, from 0 to a full window"))
    return charts.picture("What happens at which context size", body, told, 186)


def compacted():
    """Return a compacted agent, the index of its tail, and what `budget` says of it."""
    agent = work(begun(), *LONG)
    agent.client = StubClient(reply(SUMMARY))
    before = agent.messages
    room, _, tail = program.split_history(agent)
    program.auto_compact(agent)
    start = len(agent.messages) - len(tail)
    return agent, start, budget(agent, before, room, start)


def budget(agent, before, room, start):
    """Return the parts of the compacted list in the order in which they get room.

    {part: (the tokens it may take, those it takes, the room that is left)}, with the
    arithmetic of agent.py's `rebuild`.
    """
    after, tail = agent.messages[:start], agent.messages[start:]
    at = next(n for n, message in enumerate(after) if not program.is_typed(message))
    request, older = program.user_texts(after[at:]), program.user_texts(after[:at])
    calls = [*program.exchanges(after)]
    share = program.estimate_tokens(before) // program.TAIL_DIVISOR
    most = {TAIL: min(program.KEEP_TAIL, share)}
    most["older messages"] = program.MAX_USER_TOKENS
    sizes = {
        REQUEST: sum(map(program.tokens_in, request)),
        TAIL: program.estimate_tokens(tail),
        "summary": program.tokens_in(after[at]["content"][0]["text"]),
        "older messages": sum(map(program.tokens_in, older)),
        "calls": sum(program.tokens_in([e.call, e.result]) for e in calls),
    }
    found = {}
    for part, size in sizes.items():
        limit = min(room // 2, most[part]) if part in most else room // 2
        found[part] = limit, size, room - size
        room -= size
    return found


def limits_of_parts(parts):
    """Return the limit of each part of a compacted list, in words."""
    limits = {part: f"{limit:,} tokens" for part, (limit, *_) in parts.items()}
    limits["results"] = f"{program.MAX_RESTORE_TOKENS_PER_FILE:,} tokens each"
    room = sum(next(iter(parts.values()))[1:])
    together = f"half of T less system prompt and tools: {room:,} tokens"
    return limits | {"together": together}


# ---- all of them ----


def color(name):
    """Return the color of a policy: ours, a tutorial's, another agent's or other."""
    if name.startswith("ours"):
        return BLUE
    if name in BY_DOCUMENTATION:
        return PURPLE
    tutorial = name in TUTORIALS and name != "nothing"
    return ORANGE if tutorial else GREEN if name in PEERS else TEXT


def label(name):
    """Return the name of a policy, with its setting, if any, in words."""
    name, _, setting = name.partition("=")
    for variable, words in SETTING_WORDS.items():
        name = name.replace(f" {variable}", f", {words}")
    return f"{name} {int(setting):,}" if setting else name


def of_figures(figures):
    """Draw the measured figures; return the pictures by name."""
    prices = [
        charts.Cost(label(name), cost, kept, color(name))
        for name, (cost, kept) in figures["policies"].items()
    ]
    session, of = figures["session"], figures["sessions"]
    courses = {name: charts.Course(*one) for name, one in session["courses"].items()}
    return {
        "tokens": tokens_by_kind(figures),
        "session": charts.three_ways(courses, of, figures["read"]),
        "policies": charts.two_bars(prices, without_a_cache(figures["uncached"]), of),
    }


def without_a_cache(uncached):
    """Return the costs of ours and the pages' policies."""
    return {name: cost for name, cost in uncached.items() if " " not in name}


def of_runs():
    """Draw the program's own runs; return the pictures by name."""
    agent = work(begun(), *SHOP)
    drawn = {"thinking": chained(agent.messages[:9], 5)}
    agent, start, parts = compacted()
    drawn["remains"] = what_remains(agent.messages, start, limits_of_parts(parts))
    drawn["transcript"] = transcript()
    first, sent = around_a_clearing()
    drawn["requests"] = requests(sent, first)
    drawn["work"] = screenshot("The program at work in a terminal", at_work())
    return drawn | {"thresholds": thresholds()}


def pictures():
    """Draw all pictures; return them by name."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        return of_figures(json.loads(FIGURES.read_text())) | of_runs()


def main(argv=None):
    """Make the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args(argv).measure:
        FIGURES.write_text(json.dumps(measure(costs.shapes(all=True))) + "\n")
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
