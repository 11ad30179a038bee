"""Run an agent that you wrote, and report what its three layers do.

    python3 tests/lessons/steps.py small --mine FILE

At the first prompt, the model reads 24 files: four in one reply, the others one by one.
At the second, it translates each file into four languages, and then calls `compact`. The
reads give layer 1 old results to clear; the translations give layer 2 a conversation to
summarise. All summaries begin with thinking, and the first has no text.

See `runner.py` for how the file is run and what it needs.
"""

import itertools
import json
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path

import naive  # adds the folder of stub to sys.path
import stub
from naive import bill, reads, results, use, write_files
from runner import life
from stub import reply

SMALL = Path(__file__).with_name("small.py")
TYPED = "Read all files. Never touch the tests.", "Translate each into four languages."
SUMMARY = "All files are read. Names of functions stay in English."


def work():
    """The model's replies."""
    names = write_files(24, 9_000)
    four = use("read_file", *names[:4], thinking="Four at once.")
    script = [ask_for_list(), four, *reads(names[4:], thinking="Next.")]
    script += [reply("All are read."), *(write(name, 4) for name in names)]
    return [*script, use("compact"), reply("All are translated.")]


def ask_for_list():
    """A call that fails, because its file doesn't exist."""
    return use("read_file", "words.txt", thinking="Is there a list of words?")


def write(name, times=1):
    """A call that writes a file's translation into this many languages."""
    text = Path(name).read_text().replace("x", "y") * times
    return use("bash", command=f"cat > new_{name} <<'END'\n{text}END")


def summaries():
    """The replies to requests for a summary: one without text, then good ones."""
    yield reply(thinking="What was it?")
    yield from itertools.repeat(reply(SUMMARY, thinking="What was it?"))


# --- The report: {label: finding} ---


def report(path):
    """Run the agent in this file and report what it did."""
    if reason := cannot_start(path):
        return {"problem": reason}
    client = life(path, *work(), typed=TYPED, summaries=summaries())
    if reason := asks_nothing(client):
        return {"problem": reason}
    facts = progress(client) | layer1(client) | layer2(client)
    if stopped(client):
        return facts
    return facts | last_compact(client) | cost(client) | mishaps(path)


def progress(client):
    """The progress with 24 files, and what stopped it, if anything did."""
    facts = {"stopped": stopped(client) or "no"}
    done = len([*Path().glob("new_*.txt")])
    facts["files"] = f"{done} of 24 are translated"
    facts["on disk"] = f"{on_disk()} messages"
    sizes = [stub.count("", [], request["messages"]) for request in client.requests]
    facts["largest"] = f"{max(sizes):,} tokens in a request"
    if stopped(client):
        return facts
    if refused := problem(client):
        return facts | {"refused": refused}
    return facts | reasons(client) if done < 24 else facts


def layer1(client):
    """The files that the model saw, and the old results that layer 1 cleared."""
    sent = json.dumps([results(e.request["messages"]) for e in client.exchanges])
    saw = sum(f"file_{n:02}.txt 0000" in sent for n in range(1, 25))
    freed = [freed_between(*pair) for pair in itertools.pairwise(client.exchanges)]
    often = sum(map(bool, freed))
    cleared = (
        f"cleared {sum(freed):,} tokens of old results, before {often} of "
        f"{len(client.exchanges)} requests"
    )
    return {
        "seen": f"the model saw {saw} of 24 files",
        "layer 1": cleared if often else "it never acted",
    }


def freed_between(before, after):
    """Tokens of results that were cleared between one request and the next."""
    old, new = sizes_of_results(before), sizes_of_results(after)
    # A result that is missing was cleared as well, except around a summary.
    missing = None if before.asks or after.asks else 0
    pairs = [(size, new.get(call, missing)) for call, size in old.items()]
    return sum(size - now for size, now in pairs if now is not None and now < size)


def sizes_of_results(exchange):
    """Tokens of each result in a request, by the id of its call."""
    sent = results(exchange.request["messages"])
    return {result["tool_use_id"]: stub.tokens(result["content"]) for result in sent}


def layer2(client):
    """The number of summaries, and what is left in the requests after them."""
    asked = sum(exchange.asks for exchange in client.exchanges)
    if not asked:
        return {"layer 2": "it never asked for a summary"}
    facts = {"layer 2": f"requests for a summary: {asked}"}
    kept, told = [], []
    for before, ask, after in compactions(client):
        sent = json.dumps(after.request)
        if ask.text:
            kept.append([text in sent for text in ask.typed])
            told.append(ask.text in sent)
        else:
            had, has = (len(e.request["messages"]) for e in (before, after))
            facts["no text"] = (
                f"after a summary without text, {min(had, has)} of {had} messages "
                "are in the next request"
            )
    if kept:
        least = min(kept, key=lambda texts: (sum(texts) / len(texts), -len(texts)))
        facts["messages"] = (
            f"after a summary, {sum(least)} of {len(least)} user messages are in the "
            "next request"
        )
        facts["summary"] = f"{sum(told)} of {len(told)} are in the next request"
    return facts


def compactions(client):
    """Each request for a summary with its neighbours, unless it was repeated at once."""
    exchanges = client.exchanges
    for before, ask, after in zip(exchanges, exchanges[1:], exchanges[2:]):
        if ask.asks and not after.asks:
            yield before, ask, after


def last_compact(client):
    """The size of the last request, which comes after the model calls `compact`."""
    last = client.requests[-1]
    tokens = stub.count("", [], last["messages"])
    offered = [tool["name"] for tool in client.requests[0]["tools"]]
    after = "after it a" if "compact" in offered else "there is none; the last"
    return {"compact": f"{after} request has {tokens:,} tokens"}


def cost(client):
    """The price of the input, and what small.py pays for the same work."""
    _, written, known = map(sum, zip(*client.usages))
    facts = {"cost": f"{bill(client.usages)} (in full-price input tokens)"}
    if not written + known:
        facts["cost"] += "; no request has `cache_control`"
    return facts | {"small.py": f"at the same work: {bill_of_small()}"}


@cache
def bill_of_small():
    with naive.from_scratch():
        client = life(SMALL, *work(), typed=TYPED, summaries=summaries())
    return bill(client.usages)


# --- Accidents ---


def mishaps(path):
    """The API's answers to the prompts after five accidents."""
    done, typed = reply("Done."), ["Go.", "Go on."]
    Path("large.txt").write_text("x" * 800_000)
    command, read = use("bash", command="touch half"), reads(["large.txt"])
    stop = use("bash", command="kill -INT $PPID; sleep 1")  # if nothing is asked
    lives = {
        "empty": life(path, reply(thinking="Hm."), done, typed=typed),
        "Ctrl-C": life(path, stop, done, typed=typed, answer="Ctrl-C"),
        "cut off": life(path, {**command, "stop_reason": "max_tokens"}, done, done),
        "large": life(path, *read, done, done, typed=typed),
        "blank": life(path, done, done, typed=[" ", "Go."]),
    }
    said = {name: problem(client) for name, client in lives.items()}
    empty, stopped = said["empty"].partition(" except"), said["Ctrl-C"].partition(". ")
    blank = said["blank"] and f"refused: {said['blank']}"
    return {
        "empty": f"reply; the next request: {empty[0] or 'accepted'}",
        "Ctrl-C": f"in a tool; the next request: {stopped[0] or 'accepted'}",
        "cut off": f"in a call; it was run: {Path('half').exists()}",
        "large": f"file; the next request: {said['large'] or 'accepted'}",
        "blank": f"prompt; it is {blank or 'not sent'}",
    }


# --- What went wrong ---


def problem(client):
    """The error that stopped the work, the API's or the program's; "" if there is none."""
    if client.too_long:
        return "prompt is too long"
    return client.ended or "".join(client.refused[:1])


def stopped(client):
    """The reason why the work isn't finished, "" if it is."""
    if not client.queue:
        return client.ended
    early = f"It ended before the work was done.{printed_last(client)}"
    return problem(client) or early


def printed_last(client):
    return f' It printed last: "{client.last_line[:200]}"' if client.last_line else ""


def reasons(client):
    """Possible reasons why files are missing, though the model finished its script."""
    facts = {"asked": client.last_question} if client.last_question else {}
    first = {}  # results as they came; a later request may hold placeholders
    for exchange in client.exchanges:
        for result in results(exchange.request["messages"]):
            first.setdefault(result["tool_use_id"], str(result["content"]))
    [(result, number)] = Counter(first.values()).most_common(1) or [("", 0)]
    if number > 1:
        facts["results"] = f'{number} were "{textwrap.shorten(result, 80)}"'
    return facts


def cannot_start(path):
    """The reason why Python cannot start a file, "" if it can."""
    try:
        compile(Path(path).read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        return f"It cannot be read: {error.strerror}."
    except (SyntaxError, ValueError) as error:
        where = f" in line {error.lineno}" if getattr(error, "lineno", 0) else ""
        return f"It isn't valid Python{where}: {getattr(error, 'msg', error)}."
    return ""


def asks_nothing(client):
    """The reason why the program made no request, "" if it made one."""
    if client.requests:
        return ""
    if client.ended.startswith("It"):  # a NotAnAgent
        return client.ended
    if client.ended:
        return f"It made no request, because it stopped with {client.ended}"
    if not client.typed:
        return "It made no request, because it never called `input()` for a prompt."
    sends = "a client from `anthropic.Anthropic()`"
    return f"It got a prompt, but made no request with {sends}.{printed_last(client)}"


def on_disk():
    """The number of messages that the program left on disk, in any JSON format."""
    found = 0
    for file in Path().rglob("*"):
        if file.is_file() and not file.name.startswith(("file_", "new_", "large.txt")):
            text = file.read_text("utf-8", errors="replace")
            found += len(re.findall(r'"role":\s*"(?:user|assistant)"', text))
    return found
