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
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import stage  # adds the folder of stub to sys.path
import stub
from runner import life
from stage import bill, price, reads, results, use, write_files
from stub import reply

SMALL = Path(__file__).with_name("small.py")
TYPED = "Read all files. Never touch the tests.", "Translate each into four languages."
SUMMARY = "Summary {:02}: all files are read; names stay in English."
CUT_OFF = "Summary 02: all files are"
ANSWER = "All are read."  # at the end of the first turn
LINES = 23  # of each file
FOREIGN = {12: "語", 13: "の", 14: "读", 15: "文"}  # files in Japanese or Chinese
FEW = 5_000  # tokens; who clears fewer at a time, on average, clears too often
DEAR = 1.4  # times the price of small.py
OFTEN = 1 / 4  # requests for a summary per other request
LATER = 1.1  # times the tokens of the shortest request that led to a summary
SHORT = 2_000  # `max_tokens`; today's models may use that up by thinking


def work():
    """The model's replies."""
    names = write_files(24, 9_000)
    for at, character in FOREIGN.items():
        translated(names[at], "xxx", character)  # with as many bytes
    four = use("read_file", *names[:4], thinking="Four at once.")
    replies = [ask_for_list(), four, *reads(names[4:], thinking="Next.")]
    replies += [reply(ANSWER), *(write(name, 4) for name in names)]
    return [*replies, use("compact"), reply("All are translated.")]


def ask_for_list():
    """A call that fails, because its file doesn't exist."""
    return use("read_file", "words.txt", thinking="Is there a list of words?")


def translated(name, old, new):
    """Replace characters in a file."""
    file = Path(name)
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")


def write(name, times=1):
    """A call that writes a file's translation into this many languages."""
    text = Path(name).read_text("utf-8").replace("x", "y") * times
    return use("bash", command=f"cat > new_{name} <<'END'\n{text}END")


def script():
    """The user's prompts, and the replies to requests for a summary."""
    return {"typed": TYPED, "summaries": summaries()}


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
    client = life(path, *work(), **script())
    if reason := asks_nothing(client):
        return {"problem": Finding(reason, False)}
    return about_work(client) | ({} if stopped(client) else mishaps(path))


def about_work(client):
    """The findings about the work with 24 files."""
    facts = progress(client) | layer1(client) | layer2(client) | memory(client)
    if "memory" not in facts or facts["memory"].is_right:
        facts |= dropped_prompts(client)
    if stopped(client):
        return facts
    return facts | last_compact(client) | cost(client) | too_short(client)


def next_step(facts):
    """The place on the page to read next: first for what stopped the agent."""
    if "problem" in facts:
        return "fix this; chapter 1 has an agent to start from"
    wrong = [label for label in facts if facts[label].is_right is False]
    if not wrong:
        return "python3 tests/lessons/faults.py shows what this report doesn't check"
    is_stopped = not facts["stopped"].is_right  # other lines may be its consequences
    label = "stopped" if is_stopped else min(wrong, key=lambda at: rank(at, facts[at]))
    place = facts[label].fix
    if is_stopped and not place:
        lines = re.findall(OWN_LINE, facts[label].text)
        return "fix line {1} of {0}".format(*lines[-1]) if lines else LINE.format(label)
    if place.startswith("step"):
        more = NEVER_STARTS in facts["layer 2"].text and place == "step 4"
        place += f" of chapter 2{'; if it has a layer 2, chapter 4' * more}"
    if is_stopped:
        return place
    return f"{label} ({place})" if place else LINE.format(label)


def rank(label, fact):
    """The order in which to fix lines: by step, then by chapter, the least urgent last."""
    last = LEAST_URGENT.index(label) if label in LEAST_URGENT else -1
    return last, not fact.fix, not fact.fix.startswith("step"), fact.fix


def progress(client):
    """The progress with 24 files, and what stopped it, if anything did."""
    reason = stopped(client)
    done = len([*Path().glob("new_*.txt")])
    text = f"{reason}{came_after(client, reason)}{printed(client, reason)}"
    fix = fix_for(client, reason) or fix_for(client, text)
    facts = {
        "stopped": Finding(text or "no", not reason, fix),
        "files": Finding(
            f"{done} of 24 are translated",
            done == 24,
            "" if reason or done else "step 1",
        ),
        "on disk": transcript(client),
        "largest": Finding(f"{largest(client):,} tokens in a request"),
    }
    if reason:
        return facts
    refused = problem(client)
    if refused == TOO_LONG and done == 24:
        return facts | {"rejected": Finding(f"{refused}, but it recovered")}
    if refused:
        return facts | {"rejected": Finding(refused, False, fix_for(client, refused))}
    is_done = done == 24 and len(files_in(client)) == 24
    return facts if is_done else facts | reasons(client)


def largest(client):
    """The tokens of the largest request, accepted or refused."""
    sizes = [sum(usage) for usage in client.usages]
    accepted = [exchange.request for exchange in client.exchanges]
    known = {*map(id, accepted)}
    refused = [request for request in client.requests if id(request) not in known]
    longest = [accepted[sizes.index(max(sizes))]] if sizes else []
    return max(map(size, [*longest, *refused]))


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
    texts = [*saved_texts(client.elsewhere)]
    number, replies = messages_in(texts), len(client.exchanges)
    saw, saved = lines_of(first_results(client).values()), lines_of(texts)
    lost = [name for name in saw if len(saved[name]) < len(saw[name]) / 2]
    if saw and not number and not lost:  # in another format, which isn't JSON
        return Finding("all files as the model saw them, but no messages in JSON")
    text = f"{number} message{'s' * (number != 1)}"
    if number == 1 < replies:
        text += f" after {replies} replies: each one replaces the one before"
    elif number and lost:
        is_cleared = any("tool_result" in text for text in texts)
        how = f"only {LEFT}" if is_cleared else "missing: no result of a tool is there"
        text += f", but {len(lost)} of {len(saw)} files {how}"
    # one message for each reply, at least
    return Finding(text, number >= max(1, replies) and not lost, "step 2")


def messages_in(texts):
    """The number of messages in these texts, in any JSON format."""
    return sum(len(re.findall(ROLE, text)) for text in texts)


@lru_cache(maxsize=1)
def first_results(client):
    """Results as they came, by id; a later request may hold placeholders."""
    first = {}
    for exchange in client.exchanges:
        for result in results(exchange.request["messages"]):
            first.setdefault(result["tool_use_id"], str(result.get("content", "")))
    return first


def lines_of(texts):
    """The lines of each file that these texts hold, in any format: {name: numbers}."""
    lines = defaultdict(set)
    for text in texts:
        for name, number in re.findall(r"(file_\d\d)\.txt (\d{4})", text):
            lines[name].add(number)
    return lines


def files_in(client):
    """The files of which the model saw more than a small part."""
    lines = lines_of(first_results(client).values())
    return [name for name, numbers in lines.items() if len(numbers) > LINES / 4]


def layer1(client):
    """The files that the model saw, and the old results that layer 1 cleared."""
    freed = clearings(client)
    often = sum(map(bool, freed))
    cleared = (
        f"cleared {sum(freed):,} tokens of old results, before {often} of "
        f"{len(freed) + 1} requests"
    )
    is_rare = bool(often) and sum(freed) / often >= FEW
    is_judged = not (asks_often(client) or stopped_early(client))
    return {
        "seen": what_it_saw(client, often),
        "layer 1": Finding(
            cleared if often else "it never acted",
            is_rare if often or is_judged else None,
            "chapter 5" if often else "step 3",
        ),
    }


def too_late(client):
    """Check if the first request that was refused asked for a summary."""
    return bool(client.rejected) and client.rejected[1].asks


def stopped_early(client):
    """Check if something else than the length of a request stopped the work."""
    return stopped(client) not in ("", TOO_LONG)


def what_it_saw(client, often):
    """The files that the model saw, and what it saw in their place."""
    first, saw = first_results(client), len(files_in(client))
    text = f"the model saw {saw} of 24 files"
    if part := len(lines_of(first.values())) - saw:
        text += f", and less than a quarter of {part}"
    if stopped_early(client):
        return Finding(text)
    if saw < 24:
        is_step_1 = not (often or stopped(client))
        return Finding(text, False, "step 1" if is_step_1 else "step 3" * bool(often))
    calls = calls_by_id(client)
    other = [call for call in first if lines_of([first[call]]).keys() - calls[call]]
    if other:
        text += f", but {len(other)} as the result of another file's call"
    return Finding(text, not other, "step 1")


def calls_by_id(client):
    """The files that each call names: {id of the call: names without an ending}."""
    contents = [block for e in client.exchanges for block in e.content]
    calls = [block for block in contents if block["type"] == "tool_use"]
    return {c["id"]: {*re.findall(r"file_\d\d", str(c["input"]))} for c in calls}


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
    asked = client.worked and client.exchanges[client.worked - 1].asks
    if asked and client.broke_off != client.compact:
        return ASKED_LAST
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
    return {r["tool_use_id"]: stub.tokens(r.get("content", "")) for r in sent}


def asks_often(client):
    """Check if a summary was asked for before nearly every request."""
    asked = sum(exchange.asks for exchange in client.exchanges)
    return asked > OFTEN * (len(client.exchanges) - asked)


def layer2(client):
    """The number of summaries, and what is left in the requests after them."""
    asked = sum(exchange.asks for exchange in client.exchanges)
    if not asked:
        text = "it never asked for a summary"
        if stopped_early(client):
            return {"layer 2": Finding(text)}
        if too_late(client):
            text = "its first request for a summary was too long itself"
            return {"layer 2": Finding(text, False, "chapter 4")}
        if number := dropped(client):
            text += (
                f"; its requests got shorter by dropping {number} messages: chapter 8"
            )
        elif any(clearings(client)):
            text += NEVER_STARTS
        return {"layer 2": Finding(text, False, "step 4")}
    shares = [*compactions(client)]
    text = f"requests for a summary: {asked}"
    if asks_often(client):
        text += f" of {len(client.exchanges)} requests: too often"
        facts = {"layer 2": Finding(text, False, "chapter 4")}
    elif cut := sum(itertools.starmap(begins_only, shares)):
        text += f", {cut} of them without the newest messages"
        facts = {"layer 2": Finding(text, False, "chapter 7")}
    elif later := later_in_japanese(client):
        text += f", {later}"
        facts = {"layer 2": Finding(text, False, "chapter 4")}
    else:
        facts = {"layer 2": Finding(text, True)}
    good = [three for three in shares if three[1].text not in FAILED]
    for before, ask, after in shares:
        if ask.text in FAILED:
            label, how = FAILED[ask.text]
            had, has = (len(e.request["messages"]) for e in (before, after))
            text = f"after a summary {how}, {min(had, has)} of {had} messages are in "
            facts[label] = Finding(f"{text}the next request", has >= had / 2, "step 4")
    return facts | (after_summaries(good) if good else {})


def dropped(client):
    """The number of messages with calls or results that were dropped within a turn."""
    number = 0
    for before, after in itertools.pairwise(client.exchanges):
        if before.typed == after.typed:
            left = {*itertools.chain(*map(ids_in, after.request["messages"]))}
            ids = filter(None, map(ids_in, before.request["messages"]))
            number += sum(left.isdisjoint(some) for some in ids)
    return number


def ids_in(message):
    """The ids of a message's calls and results."""
    parts = stub.blocks(message["content"])
    ids = [part.get("id") or part.get("tool_use_id") for part in parts]
    return [*filter(None, ids)]


def later_in_japanese(client):
    """Say when it asks for a summary, if that's later for Japanese and Chinese files.

    A program that counts bytes, or takes the API's count, sends no request that is
    longer than one that led to a summary. One that counts characters does, since one of
    these files has a third of the characters; but none with more characters.
    """
    exchanges = client.exchanges
    sizes = {id(e): sum(usage) for usage, e in zip(client.usages, exchanges)}
    went_on, asked, failed = {}, {}, False  # the messages of requests, by their tokens
    for before, now in itertools.pairwise(exchanges):
        if now.asks and not before.asks and client.compact not in str(before.content):
            reply = {"role": "assistant", "content": before.content}
            number = sizes[id(before)] + stub.tokens(before.content)
            asked[number] = [*before.request["messages"], reply]
        failed = now.text in FAILED if now.asks else failed
        if not now.asks and not failed:
            went_on[sizes[id(now)]] = now.request["messages"]
    if not asked or not went_on or max(went_on) < LATER * min(asked):
        return ""
    if max(map(characters, went_on.values())) > min(map(characters, asked.values())):
        return ""
    return (
        f"at {min(asked):,} tokens, but not at {max(went_on):,} of Japanese and "
        "Chinese: it counts characters"
    )


def characters(messages):
    return len(stub.to_json(messages))


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
    more = ""
    if len(good) > 2 and all(told) and good[0][1].text in sent[-1]:
        more = ", but each stays for ever, like what you typed"
    elif again := added_each_time(good):
        more = f', but "{textwrap.shorten(again, 40)}" is there once for each'
    text = f"after a summary, {sum(least)} of {len(least)} user messages are in the "
    return {
        "messages": Finding(f"{text}next request", all(least), "step 4"),
        "summary": Finding(summary + more, all(told) and not more, "step 4"),
    }


def added_each_time(good):
    """A text in the last request after a summary that each one has added once more."""
    first, last = (Counter(texts_in(good[n][2].request)) for n in (0, -1))
    grown = (text for text in last if last[text] - first[text] >= len(good) - 1)
    return next(grown, "") if len(good) > 2 else ""


def texts_in(request):
    """The texts of a request's messages."""
    parts = [stub.blocks(message["content"]) for message in request["messages"]]
    return [part["text"] for part in itertools.chain(*parts) if part["type"] == "text"]


def compactions(client):
    """Each request for a summary with its neighbours, unless it was repeated at once."""
    exchanges = client.exchanges
    for before, ask, after in zip(exchanges, exchanges[1:], exchanges[2:]):
        if ask.asks and not after.asks:
            yield before, ask, after


def memory(client):
    """The messages and the answer that are left of the first turn in the second."""
    for before, after in itertools.pairwise(client.exchanges):
        is_next = len(before.typed) < len(after.typed) and not after.asks
        if not is_next or before.asks or before.text != ANSWER:
            continue
        had, has = (len(e.request["messages"]) for e in (before, after))
        text = f"at the second prompt, {min(had, has)} of {had} messages are left"
        is_right = has >= had / 2
        if is_right and ANSWER not in json.dumps(after.request):
            text, is_right = f'{text}, but not the answer "{ANSWER}"', False
        return {"memory": Finding(text, is_right, "step 2")}
    return {}


def dropped_prompts(client):
    """The prompts that are in no request any more, though no summary replaced them.

    Their words may be anywhere: quoted, joined, or in the system prompt. What a summary
    leaves of them is in the line `messages`.
    """
    exchanges = client.exchanges
    sent = [json.dumps(exchange.request) for exchange in exchanges]
    lost = []
    for prompt in client.typed:
        number = max((n for n, text in enumerate(sent, 1) if prompt in text), default=0)
        around = exchanges[number - 1 : number + 1]  # the last with it, and the next
        if number and len(around) == 2 and not any(e.asks for e in around):
            lost.append(f'"{prompt}" is in no request after number {number}')
    text = "; ".join(lost)
    return {"prompts": Finding(text, False, "step 4")} if lost else {}


def last_compact(client):
    """The size of the last request, which comes after the model calls `compact`."""
    tokens = f"{size(client.requests[-1]):,} tokens"
    offered = [tool["name"] for tool in client.requests[0]["tools"]]
    if client.compact not in offered:
        text = f"there is no such tool; the last request has {tokens}"
        return {"compact": Finding(text, False, "step 5")}
    asked, last = client.exchanges[-2:]
    text = f"the request after it has {tokens}"
    is_used = asked.asks and (
        asked.text in FAILED or asked.text in json.dumps(last.request)
    )
    if asked.asks and not is_used:
        text += ", but not the summary"
    return {"compact": Finding(text, is_used, "step 5")}


def cost(client):
    """The price of the input, and what small.py pays for the same work.

    Another model, to which a program may leave its summaries, has another price.
    """
    model = client.requests[0].get("model")
    pairs = [*zip(client.usages, client.exchanges)]
    own = [(usage, e.asks) for usage, e in pairs if e.request["model"] == model]
    usages = [usage for usage, _ in own]
    text = f"{bill(usages)} (in full-price input tokens)"
    if others := len(pairs) - len(own):
        text += f", without {others} requests to another model"
    is_cached = any(written + known for _, written, known in usages)
    if not is_cached:
        text += NOT_MARKED if "cache_control" not in str(client.bodies) else TOO_SHORT
    try:
        small = usages_of_small()
    except (KeyboardInterrupt, Unfinished) as error:
        how = "came to no end" if str(error) else "was interrupted"
        told = f"its run at the same work {how}, so there is no price to compare with"
        return {"cost": Finding(text), "small.py": Finding(told)}
    most = DEAR * price(small)
    is_cheap = price(usages) <= most
    if not is_cheap and price([usage for usage, asks in own if not asks]) <= most:
        share = bill([usage for usage, asks in own if asks])
        text += f"; the requests for a summary alone: {share}: chapter 7"
    return {
        "cost": Finding(text, is_cheap, "chapter 5" if is_cached else "step 3"),
        "small.py": Finding(f"at the same work: {bill(small)}"),
    }


class Unfinished(Exception):
    """The run of small.py came to no end; the machine may be busy."""


@cache
def usages_of_small():
    with stage.from_scratch():
        client = life(SMALL, *work(), **script())
    if client.ended:
        raise Unfinished(client.ended)
    return client.usages


def too_short(client):
    """The replies that have too few tokens for today's models, which think first."""
    for asks, what in ((False, "a reply"), (True, "a summary")):
        model = client.requests[0].get("model")
        sent = [e.request for e in client.exchanges if e.asks == asks]
        few = [r["max_tokens"] for r in sent if r["model"] == model]
        if few and min(few) <= SHORT:
            text = f"{what} gets {min(few):,}, and thinking may use them up"
            return {"max_tokens": Finding(text, False, "chapter 7")}
    return {}


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
    text = f"a blank prompt is {f'sent, and rejected: {said}' if said else 'not sent'}"
    return facts | commands(path) | {"blank": Finding(text, not said, "step 2")}


def play(path, *replies, typed=("Go.", "Go on."), **script):
    """Run an agent once more, with these replies and some that call nothing."""
    return life(path, *replies, *[reply("Done.")] * 3, typed=typed, **script)


def commands(path):
    """Findings about a truncated command, those without a yes, and the output of one."""
    half = {**use("bash", command="touch half"), "stop_reason": "max_tokens"}
    play(path, half, typed=["Go."])
    truncated = Path("half").exists()
    for answer in ("maybe", ""):  # the second is Enter alone
        asks = use("bash", command="touch asked")
        client = play(path, asks, typed=["Go."], answer=answer)
        if unasked := Path("asked").exists():
            break
    given = f"`{answer}`" if answer else "Enter alone"
    how = f"after the answer {given}" if client.last_question else "without asking"
    text = f"a truncated call {'was' if truncated else 'is not'} run"
    asks = f"a command is run {how if unasked else 'only after y'}"
    return {
        "truncated": Finding(text, not truncated, "step 3"),
        "asks": Finding(asks, not unasked, "step 1"),
        **outputs(path),
    }


def outputs(path):
    """Findings about the output of a command that fails, and about a missing file."""
    Path("two_lines.txt").write_text("One is 607.\nTwo is 809.\n")
    Path("empty.txt").write_text("")
    calls = [use("bash", command="cat two_lines.txt none.txt")]
    client = play(path, *calls, *reads(["empty.txt", "none.txt"]), typed=["Go."])
    texts = [*first_results(client).values(), "", "", ""]
    parts = {"stdout": ("607", "809"), "stderr": ("cat:",)}
    lost = [name for name in parts if not all(w in texts[0] for w in parts[name])]
    of = f"of a command that fails, the model {'does not see' if lost else 'sees'}"
    is_hidden = len(first_results(client)) > 2 and texts[1] == texts[2]
    looks = "looks like an empty one" if is_hidden else "is reported as missing"
    return {
        "output": Finding(f"{of} {' and '.join(lost or parts)}", not lost, "step 1"),
        "errors": Finding(f"a file that isn't there {looks}", not is_hidden, "step 1"),
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
    """Check that it came to its last prompt, and that its last request was accepted."""
    accepted = client.exchanges and client.exchanges[-1].request is client.requests[-1]
    recovered = problem(client) == TOO_LONG and not client.ended and accepted
    is_bad = problem(client) and not recovered
    return not is_bad and not client.prompts and not kept_on(client)


def kept_on(client):
    """Check if the turn went on after Ctrl-C: the next request has no new prompt."""
    typed = [len(exchange.typed) for exchange in client.exchanges[:2]]
    return client.pressed and len({*typed}) < len(typed)


def next_request(client):
    """The API's answer to the request after an accident, in words."""
    if client.ended or (client.prompts and not problem(client)):
        why = client.ended or f"the program ended.{printed(client)}"
        return f"there is no next request: {why}"
    if kept_on(client) and not problem(client):
        return "the turn goes on, and you can't stop it"
    said = re.split(r" except|\. ", problem(client))[0]
    return f"the next request is {f'rejected: {said}' if said else 'accepted'}"


# --- What went wrong ---

NOT_MARKED = "; no request has `cache_control`"
TOO_SHORT = "; what its `cache_control` marks is too short to be cached"
TOO_LONG = "prompt is too long"
EARLY = "It ended before the work was done."
BROKE_OFF = "Its turn ended, although the model had called `{}`."
NO_WORDS = "Its turn ended after the model's first call, for a file that doesn't exist."
ASKED_LAST = " Its last request asked for a summary, and no other one followed."
LEFT = "as a layer left them"
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
LINE = "the line `{}`"
LEAST_URGENT = "on disk", "asks"
OWN_LINE = r"\(([^()]+), line (\d+)[^()]*\)"  # as `runner.where` writes it
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
    "must define tools": "chapter 7",
    "text content blocks must be non-empty": "chapter 3",
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
    'role "system"': "step 2",
    "Unexpected role": "chapter 0",
    "Extra inputs": "chapter 3",
    "cannot be modified": "chapter 3",
    ASKED_LAST: "step 4",
}


def problem(client):
    """The error that stopped the work, the API's or the program's; "" if there is none."""
    if client.too_long:
        return TOO_LONG
    return client.ended or "".join((client.unplayed or client.refused)[:1])


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
        good = [three for three in compactions(client) if three[1].text not in FAILED]
        if good and not after_summaries(good)["summary"].is_right:
            return "step 4"  # the summaries change nothing
        if too_late(client) or any(exchange.asks for exchange in client.exchanges):
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


def saved_texts(elsewhere):
    """The texts of all files that the program wrote, but not the translations.

    Of a file outside of its folder, only what it added.
    """
    for file in Path().rglob("*"):
        if file.is_file() and not file.name.startswith(("file_", "new_", "large")):
            yield file.read_text("utf-8", errors="replace")
    for file, before in elsewhere.items():
        if file.is_file():
            data = file.read_bytes()
            yield data[before if len(data) > before else 0 :].decode(errors="replace")
