"""Draw lists of messages: one row per block, thinking to the left of its result."""

import re
from typing import NamedTuple

import charts
from charts import BLUE, GREEN, ORANGE, PURPLE, TEXT, circle, line, text

import agent as program

LOOKS = {  # the letter and the color of each kind of block
    "typed": ("u", BLUE),
    "assistant": ("m", GREEN),  # a text from the model
    "user": ("n", PURPLE),  # a text that the program added
    "thinking": ("t", PURPLE),
    "tool_use": ("c", GREEN),
    "tool_result": ("r", ORANGE),
}
LETTERS = "u: user, m: model, c: call, r: result, n: note or summary"
PARTS = {  # the parts of a compacted list before its tail
    "typed": "older messages",
    "user": "summary",
    "tool_use": "calls",
    "tool_result": "results",
}
REQUEST = "your request"  # the typed messages after the summary
TAIL = "tail"


class Row(NamedTuple):
    """A block, the index of its message, how to describe it, and its tokens."""

    block: dict
    at: int
    kind: str
    words: str
    tokens: int

    @property
    def color(self):
        return LOOKS[self.kind][1]


def rows(messages):
    """Return a row for each block, in order; tokens to the nearest 100."""
    found = []
    tools = {e.call["id"]: e.call["name"] for e in program.exchanges(messages)}
    for at, message in enumerate(messages):
        typed = {"type": "typed", "text": message["content"]}
        for block in [typed] if program.is_typed(message) else message["content"]:
            kind = message["role"] if block["type"] == "text" else block["type"]
            said = block.get("text", "") + block.get("content", "")
            tokens = round(program.tokens_in(said) / 100) * 100
            if kind in ("tool_use", "thinking"):
                given = [v for v in block.get("input", {}).values() if type(v) is str]
                said = " ".join([block.get("name", kind), *given])
            elif kind == "tool_result" and tokens and said[0] not in "[<":
                said = f"result of {tools[block['tool_use_id']]}"
            said = {"typed": "user: ", "assistant": "model: "}.get(kind, "") + said
            said = re.sub(r"\d{8}-\d{6}_\w{8}", "...", said)  # different in each run
            found.append(Row(block, at, kind, said, tokens))
    return found


def column(found, x, width):
    """Draw rows; return the parts of the drawing, and each row with its place."""
    body, places = [], []
    y, left, last = 34, x, 0
    for row in found:
        y += 4 * (row.at != last)
        places.append((row, y))
        beside = row.kind == "thinking"
        wide = 92 if beside else x + width - left
        body += charts.cell(left, y, wide, row.words, row.color, row.tokens)
        y, left, last = (y, x + 95, row.at) if beside else (y + 21, x, row.at)
    return body, places


def numbers(places, x):
    """Draw the index of each message, to the left of its first row."""
    first = {row.at: y for row, y in reversed(places)}
    return [text(x, y + 14, str(at), "end") for at, y in first.items()]


def kept_by(messages, cut):
    """Return what a cut leaves, after a note: the first message must be the user's."""
    tail = messages[program.pair_safe(messages, cut) :]
    note = {"type": "text", "text": "a summary, or a note"}
    return [{"role": "user", "content": [note]}, *program.drop_thinking(tail)]


def chained(messages, cut):
    """Draw what thinking is signed over, and so what a cut takes with it."""
    body, places = column(rows(messages), 44, 282)
    kept = kept_by(messages, cut)
    right, left = column(rows(kept), 392, 300)
    body += [*numbers(places, 38), *numbers(left, 386)]
    signed = [y + 10 for row, y in places if row.kind == "thinking"]
    body.append(line([(12, 34), (12, signed[-1])], PURPLE, 2, "4 3"))
    body += [circle((12, y), PURPLE) for y in signed]
    y = next(y for row, y in places if row.at == cut) - 3
    body += [line([(0, y), (330, y)], TEXT, 2), text(334, y + 4, f"cut {cut}")]
    body.append(text(44, 20, "before"))
    body.append(text(392, 20, "after the cut, no thinking is valid"))
    y = places[-1][1] + 42
    words = "each thought is signed together with everything above it"
    body += [circle((12, y - 4), PURPLE), text(24, y, words)]
    below = left[-1][1] + 56
    body.append(text(392, below, "This cut isn't ours:"))
    body.append(text(392, below + 20, "it drops the user's messages, too."))
    told = [f"before: {charts.counted(len(signed), 'thought', 'thoughts')}"]
    told.append(f"after a cut before message {cut}: {len(kept)} messages, no thoughts")
    title = "Thinking is signed together with everything above it"
    return charts.picture(title, [*body, *right], told, y + 10)


def what_remains(messages, tail_start, limits):
    """Draw the list that a compaction leaves, with the limit of each part.

    The tail begins at the message `tail_start`.
    """
    body, places = column(rows(messages), 258, 434)
    body += [text(8, 20, "part"), text(122, 20, "at most")]
    body.append(text(258, 20, "the list of messages"))
    body.append(text(686, 20, "tokens", "end"))
    told, last, summary = [], "", min(r.at for r, _ in places if r.kind == "user")
    for row, y in places:
        part = part_of(row, summary, tail_start)
        if part != last:
            body += [text(8, y + 14, part), text(122, y + 14, limits.get(part, ""))]
            told.append(f"{part}, at most {limits.get(part, '')}: ")
        size = f"{row.tokens:,}" if row.tokens else "under 100"
        told[-1] += f"{', ' * (part == last)}{row.words[:30]} ({size} tokens)"
        last = part
    y = places[-1][1] + 42
    told.append(f"together, at most {limits['together']}")
    body.append(text(8, y, told[-1]))
    title = "The list of messages after a compaction"
    return charts.picture(title, body, told, y + 10)


def part_of(row, summary, tail_start):
    """Name the part of a compacted list to which a row belongs."""
    if row.at >= tail_start:
        return TAIL
    return REQUEST if row.kind == "typed" and row.at > summary else PARTS[row.kind]
