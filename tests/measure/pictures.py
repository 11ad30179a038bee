"""The tutorial's pictures: of measured figures, and of the program's own runs.

    python tests/measure/pictures.py                       make them all again
    python tests/measure/pictures.py --measure SESSION...  measure before that; with
                                                           --gaps as costs.py has it

No key, no network, no SDK: in the runs the tests' `stub` is the model, and what is
drawn is what agent.py's functions made of them. Tokens of blocks: to the nearest 100.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import charts
import costs
from charts import BLUE, GREEN, ORANGE, TEXT, arrow, box, text
from costs import program
from lists import LETTERS, LOOKS, before_after, counted, cuts, rows, what_remains
from policies import total
from stub import StubClient, reply

FOLDER = Path(__file__).resolve().parent.with_name("pictures")
FIGURES = Path(__file__).with_name("figures.json")
SETTINGS = ["THRESHOLD=60000"]  # of ours, besides the default
KINDS = {
    "tool_result": ("tool results, older than the newest three", ORANGE),
    "newest": ("tool results, the newest three", ORANGE),
    "tool_use": ("tool calls", GREEN),
    "assistant": ("what the model wrote", GREEN),
    "user": ("what the person said", BLUE),
}

# ---- measured on recorded sessions: numbers, and nothing that was said in them ----


def measure(paths, gaps=None):
    """The figures of the pictures that are made from recorded sessions."""
    sessions, runs = costs.read(paths, gaps), costs.runs(True, SETTINGS)
    measured = costs.measure(sessions, runs)
    long = [s for s in sessions if total(s.measured) > charts.WALL] or sessions
    longest = max(long, key=lambda session: len(session.needs))
    return {
        "sessions": len(sessions),
        "read": program.CACHE_READ,
        "requests": measured[0]["requests"],
        "shares": shares(sessions),
        "policies": {row["policy"]: [row["cost"], row["R"]] for row in measured},
        "steps": {name: runs[name](longest).steps for name in charts.WAYS},
    }


def shares(sessions):
    """Where the tokens of all messages are: the share of each kind."""
    found = Counter()
    for session in sessions:
        results = [b.tokens for _, b in session.blocks if b.type == "tool_result"]
        found.update(newest=sum(results[-3:]), tool_result=-sum(results[-3:]))
        for at, block in session.blocks:
            role = session.measured[at].role
            found[role if block.type == "text" else block.type] += block.tokens
    return {kind: round(found[kind] / sum(found.values()), 4) for kind in KINDS}


def tokens_by_kind(figures):
    """Where the tokens go, a bar a kind."""
    share, told, body = figures["shares"], [], []
    for number, (kind, (name, color)) in enumerate(KINDS.items()):
        y, wide = 30 * number + 24, 310 * share[kind] / max(share.values())
        told.append(f"{name} {share[kind]:.1%}")
        body += [text(300, y, name, "end"), box(310, y - 14, wide, 18, color, 1)]
        body.append(text(318 + wide, y, f"{share[kind]:.1%}"))
    title = f"Where the tokens of {figures['sessions']} recorded sessions are"
    return charts.picture(title, body, told, 160)


# ---- the program's own runs, in a scratch folder ----

FILES = {"shop.py": 9_000, "shop.log": 8_000, "cart.py": 7_000, "price.py": 4_000}
FILES |= {"test.log": 3_000, "big.log": 45_000, "long.log": 30_000, "mid.log": 18_000}
FOUND = "Checkout is slow since each price is read anew. " * 78
SUMMARY = f"<summary>\n{FOUND}\n</summary>"


def use(tool, *more, **given):
    """A reply that thinks, and calls tools."""
    return reply(calls=[(tool, given), *more], thinking="...")


def read(*names):
    """Replies that each read one of these files."""
    return [use("read_file", path=name) for name in names]


SHOP = [
    "Never touch the tests.",
    reply("I will not."),
    "Why is checkout slow?",
    use("todo_write", items=["[ ] mend it"]),
    use("read_file", path="shop.py"),
    use("bash", command="cat shop.log"),
    *read("cart.py", "price.py"),
    use("write_file", path="fix.py", content="fixed = True"),
    use("bash", command="cat test.log"),
]
LOGS = [("bash", {"command": f"cat {name}.log"}) for name in ("big", "mid", "long")]


def begun():
    """An agent in a folder that holds these files."""
    for name, tokens in FILES.items():
        lines = [f"# {name}", *[""] * (tokens // 500 - 1)]
        Path(name).write_text("".join(f"{line:1999}\n" for line in lines))
    agent = program.Agent(client=StubClient(), approve=lambda name, what: None)
    program.begin(agent)
    return agent


def work(agent, *script):
    """The agent after this work, by the program's own functions, but no layer."""
    for step in script:
        if type(step) is str:
            program.commit(agent, {"role": "user", "content": step})
            continue
        agent.client.enqueue(step)
        calls = program.take_reply(agent, program.ask(agent, agent.messages))
        if calls:
            program.run_tools(agent, calls)
    return agent


def layers():
    """What each layer makes of the messages: (before, after), by its name."""
    agent, save = work(begun(), *SHOP), program.save_result
    old, too_long = agent.messages, program.PromptTooLong("prompt is too long", 210_000)
    new = work(begun(), "Why?", use("read_file", *LOGS, path="price.py")).messages
    auto, reactive = (replace(agent, client=StubClient(reply(SUMMARY))) for _ in "ab")
    program.auto_compact(auto)
    program.reactive_compact(reactive, too_long)
    budget = program.tool_result_budget(new, agent.threshold, save)
    return {
        "tool_result_budget": (new, budget),
        "snip_compact": (old, program.snip_compact(old, 12, agent.transcript)),
        "micro_compact": (old, program.micro_compact(old, save)),
        "auto_compact": (old, auto.messages),
        "reactive_compact": (old, reactive.messages),
    }


# ---- pictures of these runs ----

DOORS = {  # what stands in the loop, or what the person types, and what that calls
    "agent.focus is not None": "manual_compact",
    "/compact": "command",
    "should_compact(agent)": "auto_compact",
    "except PromptTooLong": "reactive_compact",
}
WITHOUT_SUMMARY = {
    "auto_compact": f"auto: after {program.MAX_FAILURES} failed summaries",
    "reactive_compact": "reactive: no summary, or still too long",
}


def doors():
    """The loop's doors into one function: what calls what, by the program itself."""
    inner, other = "compact_history", "compact_without_model"
    body = [text(8, 18, "in agent_loop; /compact is typed"), text(244, 18, "calls")]
    body += [box(540, 30, 152, 134, BLUE, 0), text(552, 102, inner)]
    body += [box(396, 184, 296, 78, TEXT, 0, "5 4"), text(404, 204, other)]
    ways = {"auto_compact": [(376, 122), (381, 122)], "reactive_compact": [(306, 164)]}
    told, below = [], 204
    for number, (asked, caller) in enumerate(DOORS.items()):
        y = 30 + 36 * number
        body += [box(8, y, 192, 26, TEXT, 0), text(16, y + 18, asked)]
        body += [box(236, y, 140, 26, TEXT, 0), text(244, y + 18, caller)]
        body += arrow([(200, y + 13), (234, y + 13)])
        used = getattr(program, caller).__code__.co_names
        if inner in used:
            body += arrow([(376, y + 13), (538, y + 13)])
            told.append(f"{caller} leads to {inner}")
        if other in used:
            below += 22
            start = ways[caller]
            body += arrow([*start, (start[-1][0], below - 4), (394, below - 4)], "5 4")
            body.append(text(404, below, WITHOUT_SUMMARY[caller]))
            told.append(f"{caller} leads to {other}, {WITHOUT_SUMMARY[caller]}")
    return charts.picture("The loop's three doors into one function", body, told, 272)


def transcript():
    """A transcript's lines, and the history that the lines up to each replay to."""
    agent, told = begun(), []
    agent.client.enqueue(use("bash", command="cat shop.log"), use("compact"))
    agent.client.enqueue(reply(SUMMARY), reply("Each price is read anew."))
    agent.client.enqueue(use("read_file", path="cart.py"), reply("It is fine."))
    program.take_turn(agent, "Why is checkout slow?")
    program.take_turn(agent, "And the cart?")
    lines = agent.transcript.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1][:40]
    body = [text(36, 20, "the lines of the file")]
    body.append(text(400, 20, "what they replay to, in messages"))
    for n in range(1, len(lines) + 1):
        Path("prefix").write_bytes(b"".join(lines[:n]))
        history, y = program.load(Path("prefix")), 5 + 25 * n
        words, color = (last := rows(history)[-1]).words, last.color
        if b'"event"' in lines[n - 1]:
            event = json.loads(lines[n - 1])["event"]
            words = f"event {event}: a summary of all before"
        if not lines[n - 1].endswith(b"\n"):
            words, color = "(torn off: left out)", TEXT
        body.append(text(30, y + 14, str(n), "end"))
        body += charts.cell(36, y, 344, words, color)
        for at in range(len(history)):
            kind = rows(history[: at + 1])[-1].kind
            body += charts.badge(400 + 22 * at, y, *LOOKS[kind])
        told.append(f"{n}. {words}: {counted(len(history), 'message')}")
        body.append(text(406 + 22 * len(history), y + 14, str(len(history))))
    y = 50 + 25 * len(lines)
    body.append(text(36, y, LETTERS))
    title = "A transcript's lines, and what those up to each replay to"
    return charts.picture(title, body, told, y + 10)


# ---- all of them ----


def pictures():
    """All pictures by name."""
    figures = json.loads(FIGURES.read_text())
    measured = figures["policies"].items()
    prices = [
        charts.Cost(name, cost, kept, costs.color(name))
        for name, (cost, kept) in measured
    ]
    drawn = {
        "tokens": tokens_by_kind(figures),
        "session": charts.three_ways(figures["steps"]),
        "policies": charts.two_bars(prices),
        "doors": doors(),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        made = layers()
        drawn |= {name: before_after(name, *both) for name, both in made.items()}
        drawn["cut"] = cuts(made["micro_compact"][0][:9])
        drawn["remains"] = what_remains(made["auto_compact"][1][0])
        drawn["transcript"] = transcript()
    return drawn


def main(argv=None):
    """Make the pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", nargs="+", type=Path, metavar="SESSION")
    parser.add_argument("--gaps", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    if options.measure:
        figures = measure(options.measure, options.gaps)
        FIGURES.write_text(json.dumps(figures) + "\n")
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
