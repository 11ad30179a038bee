"""Run an agent that you wrote, and report what its three layers do.

    python3 tests/lessons/steps.py small --mine FILE

At the first prompt, the model reads 24 files: four in one reply, the others one by one.
At the second, it translates each file into four languages, and then calls `compact`. The
reads give layer 1 old results to clear; the translations give layer 2 a conversation to
summarise. All summaries begin with thinking; the first has no text, and the third is cut
off.

A line of the report begins with `ok`, with `!` if something is wrong, or with nothing if
it is only a figure. A wrong one ends with the step of chapter 2, or the chapter, that
fixes it.

See `runner.py` for how the file is run and what it needs.
"""

import itertools
import json
import re
import textwrap
from collections import Counter, defaultdict
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
SUMMARY = "Summary {:02}: all files are read; names stay in English."
CUT_OFF = "Summary 02: all files are"
FEW = 5_000  # tokens; who clears fewer at a time, on average, clears too often
DEAR = 1.5  # times the price of small.py
OFTEN = 1 / 4  # requests for a summary per other request


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
    """The replies to requests for a summary, whose number is part of the text."""
    thinking = "What was it?"
    yield reply(thinking=thinking)
    yield reply(SUMMARY.format(1), thinking=thinking)
    yield reply(CUT_OFF, thinking=thinking, stop="max_tokens")
    yield from (reply(SUMMARY.format(n), thinking=thinking) for n in itertools.count(2))


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
    return about_work(client) | ({} if stopped(client) else mishaps(path))


def about_work(client):
    """The findings about the work with 24 files."""
    facts = progress(client) | layer1(client) | layer2(client)
    return facts if stopped(client) else facts | last_compact(client) | cost(client)


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
    done = len([*Path().glob("new_*.txt")])
    text = f"{reason}{came_after(client, reason)}{printed(client, reason)}"
    fix = fix_for(client, reason) or fix_for(client, text)
    facts = {
        "stopped": Finding(text or "no", not reason, fix),
        "files": Finding(f"{done} of 24 are translated", done == 24),
        "on disk": transcript(client),
        "largest": Finding(f"{max(map(size, client.requests)):,} tokens in a request"),
    }
    if reason:
        return facts
    refused = problem(client)
    if refused == TOO_LONG and done == 24:
        return facts | {"refused": Finding(f"{refused}, but it recovered")}
    if refused:
        return facts | {"refused": Finding(refused, False, fix_for(client, refused))}
    return facts | reasons(client) if done < 24 else facts


def size(request):
    """The tokens of a request, with its system prompt and tools.

    A temporary folder in the prompt counts the same, however long its name is.
    """
    try:
        system = json.dumps(request.get("system"))
        same = re.sub(r"(/[\w.-]+)*/tmp\w{8}", "/tmp/tmp12345678", system)
        return stub.count(json.loads(same), request.get("tools"), request["messages"])
    except (TypeError, ValueError):  # it isn't JSON, so it was refused
        return 0


def transcript(client):
    """The messages on disk, and the files that aren't there as the model saw them."""
    texts = [*saved_texts()]
    number = messages_in(texts)
    saw, saved = lines_of(first_results(client).values()), lines_of(texts)
    lost = [name for name in saw if len(saved[name]) < len(saw[name]) / 2]
    if saw and not number and not lost:  # in another format, which isn't JSON
        return Finding("all files as the model saw them, but no messages in JSON")
    text = f"{number} messages"
    if number and lost:
        text += f", but {len(lost)} of {len(saw)} files only as a layer left them"
    # one message for each reply, at least
    is_right = number >= max(1, len(client.exchanges)) and not lost
    return Finding(text, is_right, "step 2")


def messages_in(texts):
    """The number of messages in these texts, in any JSON format."""
    return sum(len(re.findall(ROLE, text)) for text in texts)


def first_results(client):
    """Results as they came, by id; a later request may hold placeholders."""
    first = {}
    for exchange in client.exchanges:
        for result in results(exchange.request["messages"]):
            first.setdefault(result["tool_use_id"], str(result["content"]))
    return first


def lines_of(texts):
    """The lines of each file that these texts hold, in any format: {name: numbers}."""
    lines = defaultdict(set)
    for text in texts:
        for name, number in re.findall(r"(file_\d\d)\.txt (\d{4})", text):
            lines[name].add(number)
    return lines


def layer1(client):
    """The files that the model saw, and the old results that layer 1 cleared."""
    saw = len(lines_of(first_results(client).values()))
    freed = clearings(client)
    often = sum(map(bool, freed))
    cleared = (
        f"cleared {sum(freed):,} tokens of old results, before {often} of "
        f"{len(freed) + 1} requests"
    )
    is_rare = bool(often) and sum(freed) / often >= FEW
    is_judged = often or not asks_often(client)  # a summary leaves nothing to clear
    return {
        "seen": Finding(
            f"the model saw {saw} of 24 files",
            saw == 24,
            "step 3" if often or not stopped(client) else "",
        ),
        "layer 1": Finding(
            cleared if often else "it never acted",
            is_rare if is_judged else None,
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


def came_after(client, reason):
    """The summary or clearing right before the request that was refused, in words."""
    if not client.rejected or reason not in client.refused:
        return ""
    stop = "" if reason.endswith(".") else "."
    if client.rejected[0].asks:
        return f"{stop} This was the request after a summary."
    freed = freed_before_refusal(client)
    cleared = f"{stop} Right before it, {freed:,} tokens of old results were cleared."
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


def asks_often(client):
    """Check if a summary was asked for before nearly every request."""
    asked = sum(exchange.asks for exchange in client.exchanges)
    return asked > OFTEN * (len(client.exchanges) - asked)


def layer2(client):
    """The number of summaries, and what is left in the requests after them."""
    asked = sum(exchange.asks for exchange in client.exchanges)
    if not asked:
        why = NEVER_STARTS if any(clearings(client)) else ""
        text = f"it never asked for a summary{why}"
        return {"layer 2": Finding(text, False, "step 4")}
    shares = [*compactions(client)]
    text = f"requests for a summary: {asked}"
    if asks_often(client):
        text += f" of {len(client.exchanges)} requests: too often"
        facts = {"layer 2": Finding(text, False, "chapter 4")}
    elif cut := sum(itertools.starmap(begins_only, shares)):
        text += f", {cut} of them without the newest messages"
        facts = {"layer 2": Finding(text, False, "chapter 7")}
    else:
        facts = {"layer 2": Finding(text, True)}
    good = [three for three in shares if three[1].text not in FAILED]
    for before, ask, after in shares:
        if ask.text in FAILED:
            label, how = FAILED[ask.text]
            had, has = (len(e.request["messages"]) for e in (before, after))
            text = f"after a summary {how}, {min(had, has)} of {had} messages are in "
            facts[label] = Finding(f"{text}the next request", has >= had, "step 4")
    return facts | (after_summaries(good) if good else {})


def begins_only(before, ask, after):
    """Check if a summary was asked for without the newest file, which is now lost."""
    had, given, left = (json.dumps(e.request["messages"]) for e in (before, ask, after))
    reads, writes = (re.findall(rf"file_\d\d\.{kind} 00", had) for kind in KINDS)
    names = writes or reads  # a summary may leave out all inputs of calls
    lost = names and names[-1] not in given + left
    return bool(lost) and any(name in given for name in names)


def after_summaries(good):
    """The user's texts and the summaries that are left after good summaries."""
    sent = [json.dumps(after.request) for _, _, after in good]
    kept = [
        [words in text for words in ask.typed] for (_, ask, _), text in zip(good, sent)
    ]
    least = min(kept, key=lambda texts: (sum(texts) / len(texts), -len(texts)))
    told = [ask.text in text for (_, ask, _), text in zip(good, sent)]
    summary = f"{sum(told)} of {len(told)} are in the next request"
    stays = len(good) > 2 and all(told) and good[0][1].text in sent[-1]
    if stays:
        summary += ", but each stays for ever, like what you typed"
    text = f"after a summary, {sum(least)} of {len(least)} user messages are in the "
    return {
        "messages": Finding(f"{text}next request", all(least), "step 4"),
        "summary": Finding(summary, all(told) and not stays, "step 4"),
    }


def compactions(client):
    """Each request for a summary with its neighbours, unless it was repeated at once."""
    exchanges = client.exchanges
    for before, ask, after in zip(exchanges, exchanges[1:], exchanges[2:]):
        if ask.asks and not after.asks:
            yield before, ask, after


def last_compact(client):
    """The size of the last request, which comes after the model calls `compact`."""
    tokens = f"{size(client.requests[-1]):,} tokens"
    offered = [tool["name"] for tool in client.requests[0]["tools"]]
    if client.compact not in offered:
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
    """The API's answers to the requests after accidents, and what an agent ran."""
    large = [f"large_{n}.txt" for n in range(20)]
    for name in large:
        Path(name).write_text("x" * 40_000)
    Path("large.txt").write_text("x" * 800_000)
    blank = use("read_file", "large_1.txt")
    blank["content"].insert(0, {"type": "text", "text": "\n\n"})
    stop = use("bash", command="kill -INT $PPID; sleep 1")  # if nothing is asked
    lives = {  # the first one of a label that goes wrong is reported
        "empty": {
            "an empty reply": play(path, reply(thinking="Hm.")),
            "a blank text": play(path, blank),
        },
        "Ctrl-C": {"Ctrl-C in a tool": play(path, stop, answer="Ctrl-C")},
        "huge file": {
            "a huge file": play(path, *reads(["large.txt"])),
            "twenty large files at once": play(path, use("read_file", *large)),
        },
    }
    facts = {label: after(lives[label], fix) for label, fix in LIVES.items()}
    said = problem(play(path, typed=[" ", "Go."]))
    text = f"a blank prompt is {f'sent, and refused: {said}' if said else 'not sent'}"
    return facts | commands(path) | {"blank": Finding(text, not said, "step 2")}


def play(path, *replies, typed=("Go.", "Go on."), **script):
    """Run an agent once more, with these replies and some that call nothing."""
    return life(path, *replies, *[reply("Done.")] * 3, typed=typed, **script)


def commands(path):
    """The commands that should not run: a truncated one, and one without a yes."""
    half = {**use("bash", command="touch half"), "stop_reason": "max_tokens"}
    play(path, half, typed=["Go."])
    truncated = Path("half").exists()
    client = play(
        path, use("bash", command="touch asked"), typed=["Go."], answer="maybe"
    )
    unasked = Path("asked").exists()
    how = "after the answer `maybe`" if client.last_question else "without asking"
    text = f"a truncated call {'was' if truncated else 'is not'} run"
    asks = f"a command is run {how if unasked else 'only after y'}"
    return {
        "truncated": Finding(text, not truncated, "step 3"),
        "asks": Finding(asks, not unasked, "step 1"),
    }


def after(accidents, fix):
    """The API's answer to the request after accidents: {accident: client}."""
    failed = [what for what, client in accidents.items() if not went_on(client)]
    what = [*failed, *accidents][0]
    client = accidents[what]
    if failed and "non-whitespace" in problem(client):
        fix = FIXES["non-whitespace"]
    return Finding(f"after {what}, {next_request(client)}", not failed, fix)


def went_on(client):
    """Check that the program came to its last prompt, and that nothing was refused."""
    return not problem(client) and not client.prompts


def next_request(client):
    """The API's answer to the request after an accident, in words."""
    if client.ended or (client.prompts and not problem(client)):
        why = client.ended or f"the program ended.{printed(client)}"
        return f"there is no next request: {why}"
    said = re.split(r" except|\. ", problem(client))[0]
    return f"the next request is {f'refused: {said}' if said else 'accepted'}"


# --- What went wrong ---

TOO_LONG = "prompt is too long"
EARLY = "It ended before the work was done."
BROKE_OFF = "Its turn ended, although the model had called `{}`."
NO_WORDS = "Its turn ended when the first tool failed: there is no file words.txt."
NEVER_STARTS = (
    "; if it has a layer 2, the threshold is too high or the count too low: chapter 4"
)
FAILED = {  # the text of a summary that failed: its label, and what is wrong with it
    "": ("no text", "without text"),
    CUT_OFF: ("cut off", "that was cut off"),
}
KINDS = "txt", "tyt"  # the ends of names in the texts that are read, and written
ROLE = r'"role":\s*"(?:user|assistant)"'
ERROR = r"(?i)^(?! ).*(?:error|exception)\b"
OTHER_LANGUAGE = (
    "It isn't Python. For an agent in any other language, run: python3 "
    "tests/lessons/steps.py small --serve"
)
ONE_PROMPT = (
    "It ended after its first prompt, but two are typed: ask for another one (`input()`) "
    "after each turn."
)
PROMPTS = "It has to get its prompts from `input()`: two, one after the other."
PACKAGES = (
    "Only Anthropic's client can be tested; other packages must be installed for the "
    "Python that runs this report."
)
FIXES = {  # words of what stopped an agent, and the part of the page about them
    "FileNotFoundError": "step 1",
    BROKE_OFF.format("compact"): "chapter 9",
    NO_WORDS: "step 1",
    ONE_PROMPT: "step 2",
    "Invalid `signature`": "chapter 3",
    "`tool_use`": "chapter 3",
    "`tool_result`": "chapter 3",
    "tool_use.input": "step 3",
    "non-whitespace": "step 3",
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
    if called := client.broke_off or client.calling:
        at_once = client.worked == 1  # the first call fails, because it has to
        return NO_WORDS if at_once else BROKE_OFF.format(called)
    return ONE_PROMPT if client.prompts else EARLY


def fix_for(client, reason):
    """The part of the page that explains what stopped an agent."""
    if reason == TOO_LONG:
        if any(exchange.asks for exchange in client.exchanges):
            return "chapter 4"  # too late: its threshold is too high, its count too low
        return "step 4" if any(clearings(client)) else "step 3"
    return next((fix for words, fix in FIXES.items() if words in reason), "")


def printed(client, reason=EARLY):
    """The first error that the program printed, or the last line, if one of them helps."""
    if not reason or reason == client.ended:
        return ""
    errors = [line for line in client.lines if re.search(ERROR, line)]
    if reason != NO_WORDS:  # else every agent gets this one
        errors = [line for line in errors if "words.txt" not in line]
    [first] = errors[:1] or [""]
    if reason.removesuffix(".") in first:
        return ""
    is_known = client.broke_off or reason in (TOO_LONG, *client.refused)
    line = first or ("" if is_known else client.lines[-1])
    when = "last" if line == client.lines[-1] else "first"
    return f' It printed {when}: "{line[:200]}"' if line else ""


def reasons(client):
    """Possible reasons why files are missing, though the model finished its script."""
    question = client.last_question
    facts = {"asked": Finding(question)} if question else {}
    every = Counter(first_results(client).values())
    [(result, number)] = every.most_common(1) or [("", 0)]
    if number > 1:
        text = f'{number} were "{textwrap.shorten(result, 80)}"'
        facts["results"] = Finding(text)
    return facts


def cannot_start(path):
    """The reason why Python cannot start a file, "" if it can."""
    if Path(path).suffix not in ("", ".py"):
        return OTHER_LANGUAGE
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
        return f"{why}. {PROMPTS}" if client.ended.startswith("IndexError") else why
    if not client.typed:
        return f"It made no request. {PROMPTS}{printed(client)}"
    sends = "a client from `anthropic.Anthropic()`"
    return f"It got a prompt, but made no request with {sends}.{printed(client)}"


def saved_texts():
    """The texts of all files that the program left on disk, but not the translations."""
    for file in Path().rglob("*"):
        if file.is_file() and not file.name.startswith(("file_", "new_", "large")):
            yield file.read_text("utf-8", errors="replace")
