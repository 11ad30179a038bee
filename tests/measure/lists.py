"""Lists of messages, drawn: a row a block, thinking at the left of what it led to."""

import re
from itertools import groupby
from typing import NamedTuple

import charts
from charts import BLUE, GREEN, ORANGE, PURPLE, TEXT, circle, line, text

import agent as program

LOOKS = {  # of each kind of block: its letter and its color
    "typed": ("p", BLUE),
    "assistant": ("m", GREEN),  # a text of the model
    "user": ("n", PURPLE),  # a text of ours
    "thinking": ("t", PURPLE),
    "tool_use": ("c", GREEN),
    "tool_result": ("r", ORANGE),
    "same": ("", TEXT),  # in both of two lists
    "many": ("", TEXT),  # stands for several rows
}
LETTERS = "p: person, m: model, c: call, r: result, n: note or summary"
ENDS = 3  # rows at each end of a long run that are shown one by one


class Row(NamedTuple):
    """A block and the index of its message; what is said of it, and its tokens."""

    block: dict
    at: int
    kind: str
    words: str
    tokens: int

    @property
    def color(self):
        return LOOKS[self.kind][1]


def rows(messages):
    """All blocks of the messages, in order; tokens to the nearest 100."""
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
            found.append(Row(block, at, kind, said, tokens))
    return found


def differing(messages, other, sign):
    """The rows that `other` lacks, with a sign; those that both have are one row.

    Of many that it lacks the first and the last few are shown.
    """
    same, found = [row.block for row in rows(other)], []
    for known, run in groupby(rows(messages), lambda row: row.block in same):
        shown, ends = [*run], 0 if known else ENDS
        if known:
            shown = [row._replace(kind="same") for row in shown]
        middle = shown[ends : len(shown) - ends]
        if len(middle) > 1:
            words = f"{len(middle)} blocks {'unchanged' if known else 'more'}"
            tokens = sum(row.tokens for row in middle)
            one = middle[0]._replace(kind="many", words=words, tokens=tokens)
            shown[ends : len(shown) - ends] = [one]
        mark = "" if known else sign
        found += [row._replace(words=mark + row.words) for row in shown]
    return found


def column(found, x, width, full):
    """The parts of a list of rows, each filled by its share of `full` tokens.

    And (row, height) of each.
    """
    body, places = [], []
    y, left, last = 34, x, 0
    for row in found:
        y += 4 * (row.at != last)
        places.append((row, y))
        beside = row.block["type"] == "thinking" and row.kind != "many"
        wide = 92 if beside else x + width - left
        scale = 0 if row.kind == "many" else full
        body += charts.cell(left, y, wide, row.words, row.color, row.tokens, scale)
        y, left, last = (y, x + 95, row.at) if beside else (y + 21, x, row.at)
    return body, places


def largest(*histories):
    """The most tokens of one block: they fill a row."""
    return max(row.tokens for messages in histories for row in rows(messages))


def before_after(name, before, after):
    """What a layer takes out of the list of messages, and what it puts in."""
    old, new = differing(before, after, "– "), differing(after, before, "+ ")
    full = largest(before, after)
    body, places = column(old, 8, 336, full)
    right, more = column(new, 356, 336, full)
    told = []
    for when, x, messages in ("before", 8, before), ("after", 356, after):
        tokens = sum(row.tokens for row in rows(messages))
        told.append(
            f"{when}: {charts.counted(len(messages), 'message', 'messages')}, {tokens:,} tokens"
        )
        body.append(text(x, 20, told[-1]))
    told += [f"new: {row.words[2:60]}" for row in new if row.words[0] == "+"]
    y = max(y for _, y in places + more) + 42
    body.append(text(8, y, "– taken out, + put in"))
    body.append(text(692, y, f"a full bar: {full:,} tokens", "end"))
    title = f"The list of messages before and after {name}"
    return charts.picture(title, [*body, *right], told, y + 10)


def kept_by(messages, cut):
    """What a cut leaves: a note in front, since the first message is the user's."""
    tail = messages[program.pair_safe(messages, cut) :]
    note = program.user("a summary, or a note, of all before")
    return [note, *program.drop_thinking(tail)]


def cuts(messages, cut=5):
    """Pairs joined, thinking chained; a cut that parts no pair, and one that does."""
    full = largest(messages)
    body, places = column(rows(messages), 24, 280, full)
    body += column(rows(kept_by(messages, cut)), 412, 280, full)[0]
    body.append(text(412, 20, "kept by the cut that is allowed"))
    body.append(text(412, 172, "(its thinking goes)"))
    middle = {id(row.block): y + 10 for row, y in places}
    for pair in program.exchanges(messages):
        a, b = middle[id(pair.call)], middle[id(pair.result)]
        body.append(line([(304, a), (312, a), (312, b), (304, b)], ORANGE, 2))
    signed = [y + 10 for row, y in places if row.kind == "thinking"]
    body.append(line([(12, 34), (12, signed[-1])], PURPLE, 2, "4 3"))
    body += [circle((12, y), PURPLE) for y in signed]
    told = []
    for at in cut, cut + 1:
        fine = program.pair_safe(messages, at) == at
        words, dashes = ("allowed", "") if fine else ("parts a pair", "8 4")
        y = next(y for row, y in places if row.at == at) - 3
        body.append(line([(0, y), (320, y)], TEXT, 2, dashes))
        body.append(text(323, y + 4, words))
        told.append(f"a cut before message {at + 1} of {len(messages)}: {words}")
    told.append("the cut that is allowed takes the thinking behind it")
    y = places[-1][1] + 42
    chained = "each thinking is signed over all that is above it"
    body += [circle((12, y - 4), PURPLE), text(24, y, chained)]
    body.append(text(692, y, f"a full bar: {full:,} tokens", "end"))
    title = "A history: pairs joined, thinking chained to all before it"
    return charts.picture(title, body, told, y + 10)


def what_remains(message):
    """The message that stands for a conversation, block by block, and its limits."""
    each = program.MAX_RESTORE_TOKENS_PER_FILE
    limits = {
        "summary": "asked for in T/8",
        "your words": f"{program.MAX_SAID:,} tokens or T/8",
        "plan": "what is still to do",
        "notes": "what to go on with",
        "files": f"{program.MAX_RESTORE_FILES} of {each:,} tokens",
    }
    full = largest([message])
    body, places = column(rows([message]), 230, 462, full)
    body += [text(8, 20, "block"), text(84, 20, "at most")]
    body.append(text(692, 20, f"a full bar: {full:,} tokens", "end"))
    told = []
    for (row, y), part in zip(places, map(program.part_of, message["content"])):
        body += [text(8, y + 14, part), text(84, y + 14, limits[part])]
        size = f"{row.tokens:,}" if row.tokens else "under 100"
        told.append(f"{part}: {size} tokens; at most: {limits[part]}")
    title = "The one message that remains, block by block"
    return charts.picture(title, body, told, places[-1][1] + 30)
