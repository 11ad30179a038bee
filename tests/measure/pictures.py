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
import re
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import charts
import costs
from charts import BLUE, GREEN, ORANGE, PURPLE, TEXT, box, circle, line, text
from costs import program
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
        y, wide = 30 * number + 24, 340 * share[kind] / max(share.values())
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


SHOP = [
    "Never touch the tests.",
    reply("I will not."),
    "Why is checkout slow?",
    use("todo_write", items=["[ ] mend it"]),
    use("read_file", path="shop.py"),
    use("bash", command="cat shop.log"),
    use("read_file", path="cart.py"),
    use("read_file", path="price.py"),
    use("write_file", path="fix.py", content="fixed = True"),
    use("bash", command="cat test.log"),
]
LOGS = [("bash", {"command": f"cat {name}.log"}) for name in ("big", "mid", "long")]


def worked(script):
    """An agent that has done all this, by the program's own functions, but no layer."""
    for name, tokens in FILES.items():
        Path(name).write_text(f"{('price ' * 350)[:1_999]}\n" * (tokens // 500))
    agent = program.Agent(client=StubClient(), approve=lambda name, what: None)
    program.begin(agent)
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
    agent, save = worked(SHOP), program.save_result
    old, too_long = agent.messages, program.PromptTooLong("prompt is too long", 210_000)
    new = worked(["Why?", use("read_file", *LOGS, path="price.py")]).messages
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


# ---- lists of messages: a row a block, thinking at the left of what it led to ----

COLORS = {"thinking": PURPLE, "tool_use": GREEN, "tool_result": ORANGE}
COLORS |= {"typed": BLUE, "assistant": GREEN, "user": PURPLE}  # the latter two: texts


class Row(NamedTuple):
    """A block, the index of its message, and how it is drawn."""

    block: dict
    at: int
    words: str
    tokens: int
    color: str


def rows(messages):
    """All blocks of the messages, in order."""
    found = []
    tools = {e.call["id"]: e.call["name"] for e in program.exchanges(messages)}
    for at, message in enumerate(messages):
        typed = {"type": "typed", "text": message["content"]}
        for block in [typed] if program.is_typed(message) else message["content"]:
            kind = message["role"] if block["type"] == "text" else block["type"]
            said = block.get("text", "") + block.get("content", "")
            tokens = round(program.size(said) / 100) * 100
            if kind in ("tool_use", "thinking"):
                given = [v for v in block.get("input", {}).values() if type(v) is str]
                said = " ".join([block.get("name", kind), *given])
            elif kind == "tool_result" and tokens and said[0] not in "[<":
                said = f"result of {tools[block['tool_use_id']]}"
            said = {"typed": "person: ", "assistant": "model: "}.get(kind, "") + said
            said = re.sub(r"\d{8}-\d{6}_\w{8}", "...", said)  # another at each run
            found.append(Row(block, at, said, tokens, COLORS[kind]))
    return found


def column(messages, x, width, other=(), sign=""):
    """The parts of a list of messages, and (row, height) of each block.

    What `other` has too is gray, what it has not begins with a sign.
    """
    same, body, places = [row.block for row in rows(other)], [], []
    y, left, last = 34, x, 0
    for row in rows(messages):
        y += 4 * (row.at != last)
        places.append((row, y))
        thinking, known = row.block["type"] == "thinking", row.block in same
        words, color = (row.words, TEXT) if known else (sign + row.words, row.color)
        wide = 92 if thinking else x + width - left
        body += charts.cell(left, y, wide, words, color, row.tokens)
        y, left, last = (y, x + 95, row.at) if thinking else (y + 21, x, row.at)
    return body, places


def before_after(name, before, after):
    """The list of messages before and after a layer; what is gone and what is new."""
    body, places = column(before, 8, 336, after, "– ")
    right, more = column(after, 356, 336, before, "+ ")
    told = []
    for when, x, messages in ("before", 8, before), ("after", 356, after):
        tokens = sum(row.tokens for row in rows(messages))
        told.append(f"{when}: {len(messages)} messages, {tokens:,} tokens")
        body.append(text(x, 20, told[-1]))
    old = [row.block for row in rows(before)]
    told += [f"new: {row.words[:60]}" for row in rows(after) if row.block not in old]
    title = f"The list of messages before and after {name}"
    height = max(y for _, y in places + more) + 30
    return charts.picture(title, [*body, *right], told, height)


def cuts(messages):
    """Pairs joined, thinking chained; a cut that parts no pair, and one that does."""
    body, places = column(messages, 24, 280)
    cut = 5
    kept = program.drop_thinking(messages[program.pair_safe(messages, cut) :])
    body += column(kept, 412, 280)[0]
    body.append(text(412, 20, "kept by the cut that is allowed"))
    middle = {id(row.block): y + 10 for row, y in places}
    for pair in program.exchanges(messages):
        a, b = middle[id(pair.call)], middle[id(pair.result)]
        body.append(line([(304, a), (312, a), (312, b), (304, b)], ORANGE, 2))
    signed = [y + 10 for row, y in places if row.block["type"] == "thinking"]
    body.append(line([(12, 34), (12, signed[-1])], PURPLE, 2))
    body += [circle((12, y), PURPLE) for y in signed]
    told = []
    for at in cut, cut + 1:
        fine = program.pair_safe(messages, at) == at
        words, color = ("allowed", GREEN) if fine else ("parts a pair", ORANGE)
        y = next(y for row, y in places if row.at == at) - 3
        body += [line([(0, y), (320, y)], color, 2)]
        body.append(text(323, y + 4, words, "start", color))
        told.append(f"a cut before message {at + 1} of {len(messages)}: {words}")
    told.append("the cut that is allowed takes the thinking behind it")
    title = "A history: pairs joined, thinking chained to all before it"
    return charts.picture(title, body, told, places[-1][1] + 30)


def what_remains(message):
    """The message that stands for a conversation, block by block, and its limits."""
    each = program.MAX_RESTORE_TOKENS_PER_FILE
    limits = {
        "summary": "asked for in T/8",
        "words": f"{program.MAX_SAID:,} tokens or T/8",
        "plan": "what is still to do",
        "notes": "who goes on, and with what",
        "files": f"{program.MAX_RESTORE_FILES} of {each:,} tokens",
    }
    body, places = column([message], 230, 462)
    body += [text(8, 20, "block"), text(80, 20, "at most")]
    told = []
    for (row, y), part in zip(places, map(program.part_of, message["content"])):
        body += [text(8, y + 14, part), text(80, y + 14, limits[part])]
        size = row.tokens or "under 100"
        told.append(f"{part}: {size} tokens; at most: {limits[part]}")
    title = "The one message that remains, block by block"
    return charts.picture(title, body, told, places[-1][1] + 30)


def doors():
    """The loop's doors into one function: what calls what, by the program itself."""
    inner = "compact_history", "compact_without_model"
    asked = {
        "should_compact(agent)": "auto_compact",
        "agent.focus is not None": "manual_compact",
        "except PromptTooLong": "reactive_compact",
        "/compact": "command",
    }
    body = [text(8, 18, "agent_loop"), text(8, 193, "the person")]
    ends, edges = {}, list(asked.items())
    columns = (8, 180, asked), (236, 140, asked.values()), (506, 186, inner)
    for x, wide, names in columns:
        for number, name in enumerate(names):
            y = 28 + 57 * number + 57 * (names is inner)
            ends[name] = (x, y + 13), (x + wide, y + 13)
            color = BLUE if name == inner[0] else TEXT
            body += [box(x, y, wide, 26, color, 0), text(x + 8, y + 18, name)]
    for caller in asked.values():
        used = getattr(program, caller).__code__.co_names
        edges += [(caller, name) for name in inner if name in used]
    for caller, name in edges:
        (x, y), start = ends[name][0], ends[caller][1]
        body.append(line([start, (x - 12, y), (x, y)], TEXT, 1.5))
        body.append(line([(x - 6, y - 4), (x, y), (x - 6, y + 4)], TEXT, 1.5))
    told = [f"{caller} leads to {name}" for caller, name in edges]
    return charts.picture("The loop's three doors into one function", body, told, 240)


def transcript():
    """A transcript's lines, and the history that the lines up to each replay to."""
    agent, told = worked([]), []
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
        *_, (_, _, words, _, color) = rows(history)
        if b'"event"' in lines[n - 1]:
            event = json.loads(lines[n - 1])["event"]
            words = f"event {event}: a summary of all before"
        if not lines[n - 1].endswith(b"\n"):
            words, color = "(torn off: left out)", TEXT
        body += [
            text(30, y + 14, str(n), "end"),
            *charts.cell(36, y, 344, words, color),
        ]
        for at in range(len(history)):
            shade = rows(history[: at + 1])[-1].color
            body.append(box(400 + 22 * at, y, 18, 19, shade, 1))
        told.append(f"{n}. {words}: {len(history)} messages")
        body.append(text(406 + 22 * len(history), y + 14, str(len(history))))
    title = "A transcript's lines, and what those up to each replay to"
    return charts.picture(title, body, told, 40 + 25 * len(lines))


# ---- all of them ----


def pictures():
    """All pictures by name."""
    figures = json.loads(FIGURES.read_text())
    measured = figures["policies"].items()
    dots = [charts.Dot(n, cost, R, costs.color(n)) for n, (cost, R) in measured]
    drawn = {
        "tokens": tokens_by_kind(figures),
        "session": charts.three_ways(figures["steps"]),
        "frontier": charts.scatter(dots),
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
