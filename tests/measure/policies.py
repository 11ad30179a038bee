"""How others forget: each policy takes a history and returns its replacement.

The tutorials' policies follow their pages. s08's limit of 50,000 characters is from its
code; its budget never acts in the page's sessions. s06 and s08 have changed since, so
there are newer policies, from the public code in NEWER. The other agents' policies follow
their sources and documents as of READ_IN, in a few lines each, for a window of 200,000
tokens. Tokens are counted as they are priced, and all policies have the same prompt cache.
A summary is asked for either in the live conversation, which is in the cache, or in a
separate request (see prices.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from recorded import Block, Message, message, note, text_block, tokens

READ_IN = "November 2026"
NEWER = {  # the commit that each newer policy follows, and the month it existed by
    "s06 newer": ("0de9c58", "June 2026"),
    "s08 newer": ("182c658", "September 2026"),
}
WINDOW = 200_000
FIXED = 3_500  # tokens of the system prompt and the tools, in every request
SUMMARY = 2_500  # tokens of a summary
SAYS_NOTHING = "word " * int(SUMMARY * 3.1 / 5)  # a summary of that length
# Tokens that `clear_at_least` must free. The documentation recommends enough to be worth
# the cache, and has 5,000 in an example; of 5,000 to 50,000, this costs least here.
AT_LEAST = 30_000
FRAME = 170  # characters of JSON around each text, on average in the recorded sessions


Policy = Callable[[list[Message], Any], list[Message]]

# ---- parts of the policies ----


def summary(*more: str) -> Message:
    """Return a message with a summary, and with more texts after it."""
    blocks = [Block("text", "(summary)", SUMMARY, "summary")]
    return message("user", [*blocks, *(text_block("text", text) for text in more)])


ASKED = Message("user", (Block("text", "(asks for a summary)", 500),), 503)


def total(history: list[Message]) -> float:
    """Count the tokens of a request with this history."""
    return FIXED + sum(m.tokens for m in history)


def characters(history: list[Message]) -> int:
    """Count the characters of all texts, calls and results."""
    return sum(len(b.text) for m in history for b in m.blocks)


def as_json(history: list[Message]) -> int:
    """Count the characters of the history as JSON, as the tutorials do."""
    return characters(history) + FRAME * sum(len(m.blocks) for m in history)


def is_result(message: Message) -> bool:
    """Return whether a message has results, which must follow their calls."""
    return message.blocks[0].type == "tool_result"


def is_typed(message: Message) -> bool:
    """Return whether the user typed a message."""
    plain = message.role == "user" and not is_result(message)
    return plain and message.blocks[0].name != "summary"


def before_pair(history: list[Message], cut: int) -> int:
    """Return `cut`, or one less if it would separate calls from their results."""
    return cut - is_result(history[cut])


def newest(history: list[Message], most: float) -> int:
    """Return where the newest messages begin that fit into `most` tokens."""
    cut = len(history)
    while cut and history[cut - 1].tokens <= most:
        cut -= 1
        most -= history[cut].tokens
    return before_pair(history, cut) if cut < len(history) else cut


Place = tuple[int, int]  # the index of a message, and of a block in it


def results(history: list[Message]) -> list[tuple[Place, Block]]:
    """Return all tool results, oldest first."""
    return [
        ((i, j), block)
        for i, message in enumerate(history)
        for j, block in enumerate(message.blocks)
        if block.type == "tool_result"
    ]


def beyond(history: list[Message], most: float) -> list[tuple[Place, Block]]:
    """Return the results older than the newest `most` tokens of results."""
    found = results(history)
    while found and (most := most - found[-1][1].tokens) >= 0:
        found.pop()
    return found


def rewritten(history: list[Message], texts: dict[Place, str]) -> list[Message]:
    """Return the history with other texts in these results."""
    new = list(history)
    for (i, j), text in texts.items():
        blocks = list(new[i].blocks)
        old = blocks[j]
        blocks[j] = text_block("tool_result", text, old.name, old.path, old.whole)
        new[i] = message(new[i].role, blocks)
    return new


def cleared(history: list[Message], old: list, meter: Any, text: str) -> list[Message]:
    """Replace these results by a placeholder; count it as one clearing."""
    meter.clearings += bool(old)
    return rewritten(history, {at: text.format(block.name) for at, block in old})


# ---- the tutorials ----

V5_CLEARS = {"bash", "read_file", "write_file", "edit_file", "glob", "grep"}


def nothing(history: list[Message], meter: Any) -> list[Message]:
    """Forget nothing."""
    return history


def s06(history: list[Message], meter: Any) -> list[Message]:
    """Clear old results at every request, even unseen ones; summarise at 50,000."""
    old = [r for r in results(history)[:-3] if len(r[1].text) > 100]
    history = cleared(history, old, meter, "[Previous: used {}]")
    return history if as_json(history) / 4 <= 50_000 else s06_summary(history, meter)


def s06_summary(history: list[Message], meter: Any) -> list[Message]:
    """Replace all messages with a summary, and let the model agree."""
    return [*s08_summary(history, meter), note("Understood. Continuing.", "assistant")]


def s08(history: list[Message], meter: Any) -> list[Message]:
    """Cut the middle, clear old results, and summarise over 50,000 characters."""
    history = snip(history, 50)
    old = [r for r in results(history)[:-3] if len(r[1].text) > 120]
    text = "[Earlier tool result compacted. Re-run if needed.]"
    history = cleared(history, old, meter, text)
    return history if as_json(history) <= 50_000 else s08_summary(history, meter)


def s08_summary(history: list[Message], meter: Any) -> list[Message]:
    """Replace all messages with a summary."""
    some_characters_only(history, meter)
    return [summary()]


def some_characters_only(history: list[Message], meter: Any) -> None:
    """Price a separate request that summarises 80,000 characters of it."""
    meter.summarise(min(total(history) - FIXED, 25_800) + 300)


def snip(history: list[Message], most: int) -> list[Message]:
    """Keep the first 3 messages and the newest `most` - 3; put a note between them."""
    if len(history) <= most:
        return history
    head, tail = 3, before_pair(history, len(history) - (most - 3))
    while is_result(history[head]):
        head += 1
    gone = note(f"[snipped {tail - head} messages from conversation middle]")
    return [*history[:head], gone, *history[tail:]]


def s06_newer(history: list[Message], meter: Any) -> list[Message]:
    """As s06, but keep the results of `read_file`, and summarise the newest part."""
    found = [r for r in results(history)[:-3] if len(r[1].text) > 100]
    old = [r for r in found if r[1].name != "read_file"]
    history = cleared(history, old, meter, "[Previous: used {}]")
    return history if as_json(history) / 4 <= 50_000 else s08_summary(history, meter)


SAVED = "/home/me/work/.task_outputs/tool-results/toolu_01ABCDEFGHJKLMNPQRSTUVWX.txt"
ARCHIVE = "/home/me/work/.transcripts/transcript_0123456789abcdef0123456789abcdef.jsonl"


def s08_newer(history: list[Message], meter: Any) -> list[Message]:
    """Over 50,000 characters, shorten the history to 40,000; below, only its middle.

    First replace old results that were seen by the path of a file, then the largest
    results by previews. The summary is the last resort; it begins with the request in
    progress.
    """
    history = archive_middle(history_in_budget(history), 50)
    if as_json(history) <= 50_000:
        return history
    last = max((i for i, m in enumerate(history) if m.role == "assistant"), default=-1)
    seen = [r for r in results(history) if r[0][0] <= last]
    old = [r for r in seen[:-3] if len(r[1].text) > 120]
    saved = f"[Earlier tool result saved at {SAVED}]"
    whole = history
    history = shortened_to(history, [(at, saved) for at, _ in old], 40_000)
    meter.clearings += history != whole
    if as_json(history) > 50_000:
        large = sorted(results(history), key=lambda r: -len(r[1].text))
        previews = [(at, preview(block, 1_000)) for at, block in large]
        history = shortened_to(history, previews, 40_000)
    if as_json(history) <= 50_000:
        return history
    some_characters_only(history, meter)
    return [summary(meter.request)]


def history_in_budget(history: list[Message], most: int = 200_000) -> list[Message]:
    """Replace oversized results in the last message by previews."""
    new = [r for r in results(history) if r[0][0] == len(history) - 1]
    size = sum(len(block.text) for _, block in new)
    texts = {}
    for at, block in sorted(new, key=lambda r: -len(r[1].text)):
        if size > most and len(block.text) > 30_000:
            texts[at] = preview(block, 2_000)
            size += len(texts[at]) - len(block.text)
    return rewritten(history, texts) if texts else history


def preview(block: Block, most: int) -> str:
    """Return the preview of a saved result: its path and its beginning."""
    head = f"<persisted-output>\nFull output: {SAVED}\nPreview:\n"
    return f"{head}{block.whole[:most]}\n</persisted-output>"


def shortened_to(
    history: list[Message], texts: list[tuple[Place, str]], most: int
) -> list[Message]:
    """Put these shorter texts in, one by one, until the history is short enough."""
    size, taken = as_json(history), {}
    for (i, j), text in texts:
        shorter = len(history[i].blocks[j].text) - len(text)
        if size > most and shorter > 0:
            taken[i, j] = text
            size -= shorter
    return rewritten(history, taken)


def archive_middle(history: list[Message], most: int) -> list[Message]:
    """Keep the first 3 messages, a note with a path, and the newest `most` - 4."""
    if len(history) <= most:
        return history
    head, tail = 3, before_pair(history, len(history) - (most - 4))
    while head < tail and is_result(history[head]):
        head += 1
    middle = history[head:tail]
    if not middle or [m.blocks[0].name for m in middle] == ["summary"]:
        return history  # empty, or only the note from last time
    said = f"[{tail - head} messages archived at {ARCHIVE}]"
    gone = message("user", [text_block("text", said, "summary")])
    return [*history[:head], gone, *history[tail:]]


def v5(history: list[Message], meter: Any) -> list[Message]:
    """Clear long old results once they reach 20,000 tokens; summarise near the end.

    A token is four characters here, and the end is that of the window.
    """
    found = [r for r in results(history) if r[1].name in V5_CLEARS]
    old = [r for r in found[:-3] if len(r[1].text) > 4_000]
    if sum(len(block.text) for _, block in old) >= 80_000:
        text = "[Old tool result content cleared]"
        history = cleared(history, old, meter, text)
    return history if as_json(history) / 4 <= 170_616 else v5_summary(history, meter)


def v5_summary(history: list[Message], meter: Any) -> list[Message]:
    """Replace all messages with a summary and the five files read last."""
    meter.summarise(total(history))
    reads = [b for _, b in results(history) if b.name == "read_file"]
    files = list({b.path: b.whole[:20_000] for b in reversed(reads)}.values())[:5]
    return [summary(*files)]


# ---- to compare with ----

PLAIN, TAIL = "tail", 24_000  # tokens, so that its list is about as large as ours


def plain_tail(history: list[Message], meter: Any) -> list[Message]:
    """Keep the user's messages and the newest TAIL tokens; summarise the rest."""
    cut = newest(history, TAIL)
    meter.summarise(total(history))
    return [*filter(is_typed, history[:cut]), summary(), *history[cut:]]


# ---- other agents ----


def pi(history: list[Message], meter: Any) -> list[Message]:
    """Near the window's end, summarise."""
    return history if total(history) <= WINDOW - 16_384 else pi_summary(history, meter)


def pi_summary(history: list[Message], meter: Any) -> list[Message]:
    """Summarise all but the newest 20,000 tokens; keep the files' names."""
    cut = newest(history, 20_000)
    meter.summarise(shortened(history[:cut], 2_000))
    files = {b.path for m in history[:cut] for b in m.blocks if b.path}
    return [summary("\n".join(sorted(files))), *history[cut:]]


def shortened(history: list[Message], most: int) -> float:
    """Count the tokens of a history with results cut to `most` characters."""
    long = {at: b.text[:most] for at, b in results(history) if len(b.text) > most}
    return total(rewritten(history, long)) - FIXED


def opencode(history: list[Message], meter: Any) -> list[Message]:
    """Near the window's end, summarise."""
    return history if total(history) <= 168_000 else opencode_summary(history, meter)


def opencode_summary(history: list[Message], meter: Any) -> list[Message]:
    """Summarise all but the newest 15,000 tokens."""
    meter.summarise(total(history))
    return [summary(), *history[newest(history, 15_000) :]]


def opencode_pruning(history: list[Message], meter: Any) -> list[Message]:
    """As opencode, with the setting that also clears old results between turns.

    The newest two turns stay, and before them the newest 40,000 tokens of results.
    """
    typed = [i for i, m in enumerate(history) if is_typed(m)]
    if typed[-1:] == [len(history) - 1] and len(typed) > 2:
        old = beyond(history[: typed[-3]], 40_000)
        old = [r for r in old if len(r[1].text) > 100]
        if sum(block.tokens for _, block in old) >= 20_000:
            text = "[Old tool result content cleared]"
            history = cleared(history, old, meter, text)
    return opencode(history, meter)


def codex(history: list[Message], meter: Any) -> list[Message]:
    """Summarise at 90% of the window.

    This is what other models get; for OpenAI's own models, the server does it.
    """
    return history if total(history) <= 0.9 * WINDOW else codex_summary(history, meter)


def codex_summary(history: list[Message], meter: Any) -> list[Message]:
    """Summarise all but the newest of the user's messages."""
    meter.summarise_live([*history, ASKED])
    said = [m for m in history if is_typed(m)]
    return [*said[newest(said, 20_000) :], summary()]


def gemini_cli(history: list[Message], meter: Any) -> list[Message]:
    """Summarise at 50% of the window."""
    half = 0.5 * WINDOW
    return history if total(history) <= half else gemini_cli_summary(history, meter)


def gemini_cli_summary(history: list[Message], meter: Any) -> list[Message]:
    """Summarise the older 70% in two calls, up to a message that the user typed.

    Results older than the newest 50,000 tokens of results are cut to 40,000 characters.
    """
    turns = [i for i, m in enumerate(history) if is_typed(m)]
    most = 0.7 * characters(history)
    late = (i for i in turns if characters(history[:i]) >= most)
    cut = next(late, turns[-1] if turns else 0)
    if cut == 0:
        return history  # there is only one turn
    old = [(at, b.text) for at, b in beyond(history, 50_000) if len(b.text) > 40_000]
    ends = {at: f"{text[:8_000]}\n...\n{text[-32_000:]}" for at, text in old}
    history = rewritten(history, ends)
    if total(history[:cut]) - FIXED <= summary().tokens:
        return history  # a summary that frees nothing is discarded
    meter.summarise(total(history[:cut]), calls=2)
    return [summary(), *history[cut:]]


def openhands(history: list[Message], meter: Any) -> list[Message]:
    """Summarise over 240 events."""
    return history if len(history) <= 240 else openhands_summary(history, meter)


def openhands_summary(history: list[Message], meter: Any) -> list[Message]:
    """Summarise all but the first 2 events and the newest 117, or half if fewer."""
    head = 2 + is_result(history[2])
    tail = before_pair(history, len(history) - min(117, len(history) // 2 - 3))
    meter.summarise(shortened(history[head:tail], 10_000))
    return [*history[:head], summary(), *history[tail:]]


def cliff(history: list[Message], meter: Any) -> list[Message]:
    """Write a log where agent.py would ask for a summary.

    This follows the description of CliffCompaction (arXiv 2609.26779), not its code.
    """
    return history if total(history) <= 167_000 else cliff_log(history, meter)


def cliff_log(history: list[Message], meter: Any) -> list[Message]:
    """Log all but the newest three replies and the user's messages; ask no model.

    The log has what the model said, 150 characters of each call, and each result of up
    to 500 characters.
    """
    replies = [i for i, m in enumerate(history) if m.role == "assistant"]
    if len(replies) <= 3:
        return history
    meter.clearings += 1
    older, newer = history[: replies[-3]], history[replies[-3] :]
    log = [logged(b) for m in older if not is_typed(m) for b in m.blocks]
    text = "\n".join(line for line in log if line)
    made = message("user", [text_block("text", text, "summary")])
    return [*filter(is_typed, older), made, *newer]


def logged(block: Block) -> str:
    """Return what the log has of a block, which may be an earlier log."""
    if block.type == "tool_use":
        return " ".join(f"{block.name} {block.text}".split())[:150]
    is_long = block.type == "tool_result" and len(block.text) > 500
    return "" if is_long else block.text


CLEARED = "[cleared]"


def clear_tool_uses(
    history: list[Message], meter: Any, at_least: int = 0, rest: bool = False
) -> list[Message]:
    """Clear all results but the newest 3, once there are over 100,000 tokens.

    The client goes on sending what the server cleared. The documentation doesn't say if
    that still counts, or only the `rest`, which the server left.
    """
    found = results(history)
    gone = sum(tokens(block.whole) for _, block in found if block.text == CLEARED)
    old = [r for r in found[:-3] if r[1].text != CLEARED]
    freed = sum(block.tokens for _, block in old)
    counted = total(history) + (0 if rest else gone)
    if counted <= 100_000 or freed < at_least:
        return history
    return cleared(history, old, meter, CLEARED)


# Their source isn't public. The documentation can be read in two ways.
BY_DOCUMENTATION: dict[str, Policy] = {
    "clear_tool_uses": clear_tool_uses,
    "clear_tool_uses (rest)": partial(clear_tool_uses, rest=True),
    "clear_at_least": partial(clear_tool_uses, at_least=AT_LEAST),
    "clear_at_least (rest)": partial(clear_tool_uses, at_least=AT_LEAST, rest=True),
}
TUTORIALS: dict[str, Policy] = {
    "nothing": nothing,
    "s06": s06,
    "s08": s08,
    "v5": v5,
    "s06 newer": s06_newer,
    "s08 newer": s08_newer,
}
PEERS: dict[str, Policy] = {
    "pi": pi,
    "opencode": opencode,
    "opencode, pruning": opencode_pruning,
    "codex": codex,
    "gemini-cli": gemini_cli,
    "OpenHands": openhands,
    "Cliff": cliff,
    **BY_DOCUMENTATION,
}
SUMMARIES: dict[str, Policy] = {  # how some of them summarise, whenever they do
    "s06": s06_summary,
    "s08": s08_summary,
    "v5": v5_summary,
    "pi": pi_summary,
    "opencode": opencode_summary,
    "codex": codex_summary,
    "gemini-cli": gemini_cli_summary,
    "OpenHands": openhands_summary,
    "Cliff": cliff_log,
    PLAIN: plain_tail,
}
