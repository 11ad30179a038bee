"""Run an agent that you wrote, and report what its three layers do.

    python3 tests/lessons/steps.py small --mine FILE

At the first prompt, the model reads 24 files: four in one reply, the others one by one.
At the second, it translates each file into four languages, and then calls `compact`. The
reads give layer 1 old results to clear; the translations give layer 2 a conversation to
summarise. All summaries begin with thinking, and the first has no text.

A line of the report begins with `ok`, with `!` if something is wrong, or with nothing if
it is only a figure. A wrong one ends with the step of chapter 2, or the chapter, that
fixes it.

See `runner.py` for how the file is run and what it needs.
"""

import itertools
import json
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import naive  # adds the folder of stub to sys.path
import stub
from naive import bill, price, reads, results, use, write_files
from runner import life
from stub import reply

SMALL = Path(__file__).with_name("small.py")
TYPED = "Read all files. Never touch the tests.", "Translate each into four languages."
SUMMARY = "All files are read. Names of functions stay in English."
FEW = 5_000  # tokens; who clears fewer at a time, on average, clears too often
DEAR = 1.5  # times the price of small.py


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


class Finding(NamedTuple):
    """A line of the report."""

    text: str
    is_right: bool | None = None  # None: a figure, neither right nor wrong
    fix: str = ""  # the step of chapter 2, or the chapter, that says how


def report(path):
    """Run the agent in this file and report what it did."""
    if reason := cannot_start(path):
        return {"problem": Finding(reason, False)}
    client = life(path, *work(), typed=TYPED, summaries=summaries())
    if reason := asks_nothing(client):
        return {"problem": Finding(reason, False)}
    facts = progress(client) | layer1(client) | layer2(client)
    if stopped(client):
        return facts
    return facts | last_compact(client) | cost(client) | mishaps(path)


def next_step(facts):
    """The place on the page to read next: first for what stopped the agent."""
    if "problem" in facts:
        return "fix this; chapter 1 has an agent to start from"
    wrong = [fact for fact in facts.values() if fact.is_right is False]
    if not wrong:
        return "python3 tests/lessons/faults.py shows what this report doesn't check"
    steps = sorted(fact.fix for fact in wrong if fact.fix.startswith("step"))
    chapters = sorted(fact.fix for fact in wrong if fact.fix.startswith("chapter"))
    first = [facts["stopped"].fix] if not facts["stopped"].is_right else []
    place = [*filter(None, first), *steps, *chapters, "the lines with `!`"][0]
    return f"{place} of chapter 2" if place.startswith("step") else place


def progress(client):
    """The progress with 24 files, and what stopped it, if anything did."""
    reason = stopped(client)
    facts = {"stopped": Finding(reason or "no", not reason, fix_for(client, reason))}
    if reason and reason in client.refused:
        facts["stopped"] = facts["stopped"]._replace(text=reason + came_after(client))
    done, saved = len([*Path().glob("new_*.txt")]), on_disk()
    facts["files"] = Finding(f"{done} of 24 are translated", done == 24)
    is_saved = saved >= max(1, len(client.exchanges))  # one for each reply, at least
    facts["on disk"] = Finding(f"{saved} messages", is_saved, "step 2")
    sizes = [stub.count("", [], request["messages"]) for request in client.requests]
    facts["largest"] = Finding(f"{max(sizes):,} tokens in a request")
    if reason:
        return facts
    if refused := problem(client):
        return facts | {"refused": Finding(refused, False, fix_for(client, refused))}
    return facts | reasons(client) if done < 24 else facts


def layer1(client):
    """The files that the model saw, and the old results that layer 1 cleared."""
    sent = json.dumps([results(e.request["messages"]) for e in client.exchanges])
    saw = sum(f"file_{n:02}.txt 0000" in sent for n in range(1, 25))
    freed = clearings(client)
    often = sum(map(bool, freed))
    cleared = (
        f"cleared {sum(freed):,} tokens of old results, before {often} of "
        f"{len(freed) + 1} requests"
    )
    is_rare = bool(often) and sum(freed) / often >= FEW
    return {
        "seen": Finding(
            f"the model saw {saw} of 24 files",
            saw == 24,
            "step 3" if often or not stopped(client) else "",
        ),
        "layer 1": Finding(
            cleared if often else "it never acted",
            is_rare,
            "chapter 5" if often else "step 3",
        ),
    }


def clearings(client):
    """The tokens cleared before each request but the first, a refused one included."""
    freed = [freed_between(*pair) for pair in itertools.pairwise(client.exchanges)]
    return [*freed, freed_before_refusal(client)] if client.rejected else freed


def freed_before_refusal(client):
    """The tokens cleared between the first refused request and the one before it."""
    try:
        return freed_between(*client.rejected)
    except (LookupError, TypeError, AttributeError):  # it isn't a list of messages
        return 0


def came_after(client):
    """The summary or clearing right before the request that was refused, in words."""
    if not client.rejected:
        return ""
    if client.rejected[0].asks:
        return " This was the request after a summary."
    freed = freed_before_refusal(client)
    cleared = f" Right before it, {freed:,} tokens of old results were cleared."
    return cleared if freed else ""


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
        return {"layer 2": Finding("it never asked for a summary", False, "step 4")}
    is_rare = asked <= len(client.exchanges) / 2
    facts = {
        "layer 2": Finding(f"requests for a summary: {asked}", is_rare, "chapter 7")
    }
    kept, told = [], []
    for before, ask, after in compactions(client):
        sent = json.dumps(after.request)
        if ask.text:
            kept.append([text in sent for text in ask.typed])
            told.append(ask.text in sent)
        else:
            had, has = (len(e.request["messages"]) for e in (before, after))
            text = (
                f"after a summary without text, {min(had, has)} of {had} messages "
                "are in the next request"
            )
            facts["no text"] = Finding(text, has >= had, "step 4")
    if kept:
        least = min(kept, key=lambda texts: (sum(texts) / len(texts), -len(texts)))
        text = (
            f"after a summary, {sum(least)} of {len(least)} user messages are in the "
            "next request"
        )
        facts["messages"] = Finding(text, all(least), "step 4")
        text = f"{sum(told)} of {len(told)} are in the next request"
        facts["summary"] = Finding(text, all(told), "step 4")
    return facts


def compactions(client):
    """Each request for a summary with its neighbours, unless it was repeated at once."""
    exchanges = client.exchanges
    for before, ask, after in zip(exchanges, exchanges[1:], exchanges[2:]):
        if ask.asks and not after.asks:
            yield before, ask, after


def last_compact(client):
    """The size of the last request, which comes after the model calls `compact`."""
    tokens = f"{stub.count('', [], client.requests[-1]['messages']):,} tokens"
    offered = [tool["name"] for tool in client.requests[0]["tools"]]
    if "compact" not in offered:
        text = f"there is no such tool; the last request has {tokens}"
        return {"compact": Finding(text, False, "step 5")}
    acted = client.exchanges[-2].asks
    return {"compact": Finding(f"the request after it has {tokens}", acted, "step 5")}


def cost(client):
    """The price of the input, and what small.py pays for the same work."""
    _, written, known = map(sum, zip(*client.usages))
    text = f"{bill(client.usages)} (in full-price input tokens)"
    if not written + known:
        text += "; no request has `cache_control`"
    small = usages_of_small()
    is_cheap = price(client.usages) <= DEAR * price(small)
    fix = "chapter 5" if written + known else "step 3"
    return {
        "cost": Finding(text, is_cheap, fix),
        "small.py": Finding(f"at the same work: {bill(small)}"),
    }


@cache
def usages_of_small():
    with naive.from_scratch():
        client = life(SMALL, *work(), typed=TYPED, summaries=summaries())
    return client.usages


# --- Accidents ---

LIVES = {"empty": "step 6", "Ctrl-C": "step 6", "huge file": "step 1"}


def mishaps(path):
    """The API's answers to the prompts after five accidents."""
    done, typed = reply("Done."), ["Go.", "Go on."]
    Path("large.txt").write_text("x" * 800_000)
    command, read = use("bash", command="touch half"), reads(["large.txt"])
    stop = use("bash", command="kill -INT $PPID; sleep 1")  # if nothing is asked
    lives = {
        "an empty reply": life(path, reply(thinking="Hm."), done, typed=typed),
        "Ctrl-C in a tool": life(path, stop, done, typed=typed, answer="Ctrl-C"),
        "a huge file": life(path, *read, done, done, typed=typed),
    }
    facts = {
        label: Finding(
            f"after {what}, {next_request(client)}", not problem(client), fix
        )
        for (label, fix), (what, client) in zip(LIVES.items(), lives.items())
    }
    life(path, {**command, "stop_reason": "max_tokens"}, done, done)
    was_run = Path("half").exists()
    text = f"a truncated call {'was' if was_run else 'is not'} run"
    facts["truncated"] = Finding(text, not was_run, "step 3")
    said = problem(life(path, done, done, typed=[" ", "Go."]))
    text = f"a blank prompt is {f'sent, and refused: {said}' if said else 'not sent'}"
    return facts | {"blank": Finding(text, not said, "step 2")}


def next_request(client):
    """The API's answer to the request after an accident, in words."""
    if client.ended:
        return f"there is no next request: {client.ended}"
    said = re.split(r" except|\. ", problem(client))[0]
    return f"the next request is {f'refused: {said}' if said else 'accepted'}"


# --- What went wrong ---

TOO_LONG = "prompt is too long"
EARLY = "It ended before the work was done."
ONE_PROMPT = (
    "It ended after its first prompt, but two are typed: call `input()` again after each "
    "turn."
)
PROMPTS = "It has to get its prompts from `input()`: two, one after the other."
PACKAGES = (
    "Only Anthropic's client can be tested; other packages must be installed for the "
    "Python that runs this report."
)
FIXES = {  # words of what stopped an agent, and the part of the page about them
    "FileNotFoundError": "step 1",
    ONE_PROMPT: "step 2",
    "Invalid `signature`": "chapter 3",
    "`tool_use`": "chapter 3",
    "`tool_result`": "chapter 3",
    "non-empty content": "step 6",
    "assistant message prefill": "chapter 7",
    "has no attribute 'text'": "chapter 7",
}


def problem(client):
    """The error that stopped the work, the API's or the program's; "" if there is none."""
    if client.too_long:
        return TOO_LONG
    return client.ended or "".join(client.refused[:1])


def stopped(client):
    """The reason why the work isn't finished, "" if it is."""
    if not client.queue:
        return client.ended
    if reason := problem(client):
        return reason
    early = ONE_PROMPT if client.prompts and not client.calling else EARLY
    return f"{early}{printed_last(client)}"


def fix_for(client, reason):
    """The part of the page that explains what stopped an agent."""
    if reason == TOO_LONG:
        asked = any(exchange.asks for exchange in client.exchanges)
        acted = any(clearings(client))
        return "chapter 6" if asked and acted else "step 4" if acted else "step 3"
    return next((fix for words, fix in FIXES.items() if words in reason), "")


def printed_last(client):
    return f' It printed last: "{client.last_line[:200]}"' if client.last_line else ""


def reasons(client):
    """Possible reasons why files are missing, though the model finished its script."""
    question = client.last_question
    facts = {"asked": Finding(question)} if question else {}
    first = {}  # results as they came; a later request may hold placeholders
    for exchange in client.exchanges:
        for result in results(exchange.request["messages"]):
            first.setdefault(result["tool_use_id"], str(result["content"]))
    [(result, number)] = Counter(first.values()).most_common(1) or [("", 0)]
    if number > 1:
        text = f'{number} were "{textwrap.shorten(result, 80)}"'
        facts["results"] = Finding(text)
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
        why = f"It made no request, because it stopped with {client.ended}"
        if client.ended.startswith("ModuleNotFoundError"):
            return f"{why}. {PACKAGES}"
        return why if client.typed else f"{why}. {PROMPTS}"
    if not client.typed:
        return f"It made no request. {PROMPTS}"
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
