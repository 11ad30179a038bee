"""What a reader's agent is judged by: one table of checks, at the end of this file.

A judge turns the `Run` of a play into a `Finding`, or into None if there is nothing to
say. To add a verdict, add a row to the table, a judge, and a play to plays.py if none of
them shows it.
"""

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import groupby, pairwise, starmap
from pathlib import Path
from typing import Any, NamedTuple

import plays  # adds the folder of stub to sys.path
import stub
from plays import ANSWER, CUT_OFF, LINES, work
from runner import SAME_WORDS, TOO_LONG, Play
from stage import bill, price
from stub import text_of

# tokens of small.py at the same work: new ones, written to the cache, read from it
OF_SMALL = 1_529, 396_955, 1_249_971
FEW = 5_000  # tokens; who clears fewer at a time, on average, clears too often
DEAR = 1.4  # times the price of small.py
CACHED = 0.75  # of all tokens; who gets so many from the cache pays for nothing again
OFTEN = 1 / 4  # requests for a summary per other request
LATER = 1.1  # times the tokens of the shortest request that led to a summary
SHORT = 2_000  # `max_tokens`; today's models may use that up by thinking
MOST_IN_A_ROW = 3  # summaries that fail before the agent has to do without
FAILED = {"": "without text", CUT_OFF: "that was cut off"}  # texts of summaries
ERROR = r"(?i)^(?! ).*(?:error|exception)\b"
# Words of a tool or a result that say how to get the rest of a text.
HINTS = r"(?i)\b(offset|pages?|sed|tail|head|grep|saved|redirect\w*|lines? \d+)\b|页"
# Words that tell the user that an answer isn't whole.
IS_CUT = r"(?i)\bcut\b|truncat|incomplete|unfinished|max_tokens|token limit|截断|途中"


class Finding(NamedTuple):
    """What a judge says about a run."""

    text: str
    is_right: bool | None = None  # None: a figure, neither right nor wrong
    place: str = ""  # the step or chapter that says how, if it isn't the check's


class Check(NamedTuple):
    """A row of the table."""

    name: str
    play: Play | tuple[Play, ...]  # of several, the first that goes wrong is told
    judge: Callable[[Any], Finding | None]  # of a Run, or of several
    place: str = ""  # the step of chapter 2, or the chapter, that says how
    always: bool = False  # even of an agent that stopped before its work was done
    any_of: bool = False  # it's enough if one of the plays goes well

    @property
    def plays(self):
        return self.play if isinstance(self.play[0], Play) else (self.play,)


# --- What stopped the work ---

EARLY = "It ended before the work was done."
BROKE_OFF = "Its turn ended, although the model had called `{}`."
NO_WORDS = "Its turn ended after the model's first call, for a file that doesn't exist."
ASKED_LAST = " Its last request asked for a summary, and no other one followed."
ONE_LINE = "here, a line is a prompt."
ONE_PROMPT = (
    "It ended after its first prompt, but two are typed: ask for another one (`input()`) "
    "after each turn."
)
FIXES = {  # words of what stopped an agent, and the part of the page about them
    rf"FileNotFoundError|{NO_WORDS}": "step 1",
    rf'role "system"|{ONE_PROMPT[:30]}': "step 2",
    r"tool_use\.input|non-whitespace": "step 3",
    "non-empty content": "step 6",
    "Unexpected role": "chapter 0",
    "must define tools|message prefill|has no attribute 'text'": "chapter 7",
    BROKE_OFF.format("compact"): "chapter 9",
    "blocks with cache_control": "chapter 5",
    "leaves the forgetting to the API": "chapter 11",
    "`tool_(use|result)`|Extra inputs|signature|cannot be modified": "chapter 3",
    'must be non-empty|must use the "user" role': "chapter 3",
    ASKED_LAST: "step 4",
}


@lru_cache(maxsize=1)
def stopped(run):
    """The reason why the work isn't finished, "" if it is."""
    if not run.replies:
        return run.ended
    if run.problem:
        return run.problem
    if run.accepted and run.accepted[0].typed > 1:
        return f"It read both prompts as one; {ONE_LINE}"
    if called := run.broke_off or run.calling:
        at_once = run.worked == 1  # the first call fails, because it has to
        return NO_WORDS if at_once else BROKE_OFF.format(called)
    return ONE_PROMPT if run.prompts else EARLY


def what_stopped(run):
    reason = stopped(run)
    text = f"{reason}{came_after(run, reason)}{printed(run, reason)}"
    place = place_for(run, reason) or place_for(run, text)
    return Finding(text or "no", not reason, place)


def came_after(run, reason):
    """The summary or clearing right before the request that was refused, in words."""
    asked = run.worked and run.accepted[run.worked - 1].asks
    if asked and run.broke_off != run.compact:
        return ASKED_LAST
    if not run.rejected or reason not in run.refused:
        return ""
    stop = "" if reason.endswith(".") else "."
    if run.rejected[0].asks:
        return f"{stop} This was the request after a summary."
    freed = clearings(run)[-1]
    cleared = f"{stop} Right before it, {freed:,} tokens of old results were cleared."
    return cleared if freed else ""


def place_for(run, reason):
    """The part of the page that explains what stopped an agent."""
    if reason != TOO_LONG:
        return next((at for words, at in FIXES.items() if re.search(words, reason)), "")
    if (summary := kept_summary(run)) and not summary.is_right:
        return "step 4"  # the summaries change nothing
    is_late = run.rejected and run.rejected[1].asks
    if summary or is_late or summaries(run) or counts_new(run):
        return "chapter 4"  # its threshold is too high, its count too low
    return "step 4" if any(clearings(run)) else "step 3"


def counts_new(run):
    """Check if an agent may count without what the API has in its cache."""
    return any(usage[2] for usage in usages(run.accepted)) and not is_of_chapter_2(run)


def is_of_chapter_2(run):
    """Check if an agent grows as chapter 2 tells, where what is missing comes next."""
    system = {"content": run.accepted and run.accepted[0].request.get("system")}
    return text_of(system).startswith("You write code in ")


def printed(run, reason=EARLY):
    """The first error that the program printed, or the last line, if one of them helps."""
    if not reason or reason == run.ended:
        return ""
    errors = errors_in(run)
    if reason != NO_WORDS:  # else every agent gets this one
        errors = [line for line in errors if "words.txt" not in line]
    is_known = run.broke_off or reason in (TOO_LONG, *run.refused)
    [line] = errors[:1] or ([""] if is_known else run.lines[-1:])
    when = "last" if line == run.lines[-1] else "first"
    is_told = not line or (errors and reason.removesuffix(".") in line)
    return "" if is_told else f' It printed {when}: "{line[:200]}"'


def errors_in(run):
    """The printed lines that look like an error."""
    return [line for line in run.lines if re.search(ERROR, line)]


def stopped_early(run):
    """Check if something else than the length of a request stopped the work."""
    return stopped(run) not in ("", TOO_LONG)


# --- The work with 24 files ---


def done(run):
    """The number of files that are translated."""
    return sum(Path(name).match("new_*.txt") for name in run.files)


def translated(run):
    number = done(run)
    place = "" if stopped(run) or number else "step 1"
    return Finding(f"{number} of 24 are translated", number == 24, place)


def on_disk(run):
    """Judge the messages on disk, and the files that aren't there as the model saw them."""
    names = [n for n in run.files if not re.match("file_|new_|large", n)]
    texts, replies = [run.files[name] for name in names], len(run.accepted)
    number = messages_in(texts)
    saw, saved = lines_of(run.results.values()), lines_of(texts)
    lost = [name for name in saw if len(saved[name]) < len(saw[name]) / 2]
    if saw and not number and not lost:  # in another format, which isn't JSON
        return Finding("all files as the model saw them, but no messages in JSON")
    if not number and any("\ufffd" in text for text in texts):
        return Finding("files that aren't text, so nobody knows what is in them")
    text = f"{number} message{'s' * (number != 1)}"
    if number == 1 < replies:
        text += f" after {replies} replies: each one replaces the one before"
    elif number and lost:
        is_cleared = any("tool_result" in text for text in texts)
        missing = "missing: no result of a tool is there"
        how = "only as a layer left them" if is_cleared else missing
        text += f", but {len(lost)} of {len(saw)} files {how}"
    # one message for each reply, at least
    return Finding(text, number >= max(1, replies) and not lost)


def messages_in(texts):
    """The number of messages in these texts, in any JSON format."""
    role = r'"role":\s*"(?:user|assistant)"'
    return sum(len(re.findall(role, text)) for text in texts)


def lines_of(texts):
    """The lines of each file that these texts hold, in any format: {name: numbers}."""
    lines = defaultdict(set)
    for text in texts:
        for name, number in re.findall(r"(file_\d\d)\.txt (\d{4})", text):
            lines[name].add(number)
    return lines


def files_in(run):
    """The files of which the model saw more than a small part."""
    lines = lines_of(run.results.values())
    return [name for name, numbers in lines.items() if len(numbers) > LINES / 4]


def largest(run):
    """The largest request, accepted or refused."""
    return Finding(f"{max(map(size, run.exchanges)):,} tokens in a request")


def size(exchange):
    """The tokens of a request, with its system prompt and tools.

    A temporary folder in the prompt counts the same, however long its name is.
    """
    request = exchange.request
    system = json.dumps(request.get("system"))
    same = re.sub(r"(/[\w.-]+)*/tmp\w{8}", "/tmp/tmp12345678", system)
    return stub.count(json.loads(same), request.get("tools"), exchange.messages)


def rejected(run):
    if not run.problem:
        return None
    if run.problem == TOO_LONG and done(run) == 24:
        return Finding(f"{TOO_LONG}, but it recovered")
    return Finding(run.problem, False, place_for(run, run.problem))


def asked(run):
    """The last question about a tool, if its answer may be why nothing is translated."""
    is_told = SAME_WORDS in run.last_question or not (run.refused or run.ended)
    is_told = is_told and run.last_question and not done(run)
    return Finding(run.last_question) if is_told else None


def same_results(run):
    """The most common result, of those that can explain what is missing."""
    number_done = done(run)
    if number_done == len(files_in(run)) == 24:
        return None
    writes = {call for call in run.calls if "new_file" in str(run.calls[call])}
    texts = [t for c, t in run.results.items() if not number_done or c not in writes]
    failed = [text for text in texts if not lines_of([text])]
    alike = Counter(re.sub(r"file_\d\d", "file_..", text) for text in failed)
    [(result, number)] = alike.most_common(1) or [("", 0)]
    if number < 2:
        return None
    return Finding(f'{number} were "{textwrap.shorten(result, 80)}"')


# --- Layer 1 ---


def seen(run):
    """Judge the files that the model saw, and what it saw in their place."""
    saw, often = len(files_in(run)), any(clearings(run))
    text = f"the model saw {saw} of 24 files"
    if part := len(lines_of(run.results.values())) - saw:
        text += f", and less than a quarter of {part}"
    if stopped_early(run):
        return Finding(text)
    if saw < 24:
        is_step_1 = not (often or stopped(run))
        return Finding(text, False, "step 1" if is_step_1 else "step 3" * often)
    named = {c: {*re.findall(r"file_\d\d", str(run.calls[c]))} for c in run.calls}
    first = run.results.items()
    other = sum(bool(lines_of([text]).keys() - named[call]) for call, text in first)
    text += f", but {other} as the result of another file's call" * bool(other)
    return Finding(text, not other, "step 1")


def layer_1(run):
    """Judge how often old results were cleared."""
    freed = clearings(run)
    if not (often := sum(map(bool, freed))):
        is_judged = not (asks_often(run) or stopped_early(run)) and is_of_chapter_2(run)
        return Finding("it never acted", False if is_judged else None, "step 3")
    cleared = f"cleared {sum(freed):,} tokens of old results"
    text = f"{cleared}, before {often} of {len(freed) + 1} requests"
    return Finding(text, sum(freed) / often >= FEW, "chapter 5")


@lru_cache(maxsize=1)
def clearings(run):
    """The tokens cleared before each request but the first, a refused one included."""
    pairs = [*pairwise(run.accepted), *filter(None, [run.rejected])]
    return [*starmap(freed_between, pairs)]


def freed_between(before, after):
    """Tokens of results that were cleared between one request and the next."""
    # A result that is missing was cleared as well, except around a summary or a prompt.
    is_step = before.typed == after.typed and not (before.asks or after.asks)
    pairs = [
        (old, after.results.get(c, "" if is_step else old))
        for c, old in before.results.items()
    ]
    freed = [stub.tokens(old) - stub.tokens(new) for old, new in pairs if old != new]
    return sum(tokens for tokens in freed if tokens > 0)


# --- Layer 2 ---


def summaries(run):
    """The number of summaries that were asked for, each in one request or in several."""
    return sum(asks for asks, _ in groupby(run.accepted, lambda e: e.asks))


def asks_often(run):
    """Check if a summary was asked for before nearly every request."""
    return summaries(run) > OFTEN * len(run.work)


def layer_2(run):
    """Judge how often summaries were asked for, and of what."""
    if not (times := sum(exchange.asks for exchange in run.accepted)):
        return no_summary(run)
    text = f"requests for a summary: {times}"
    if asks_often(run):
        text += f" of {len(run.accepted)} requests: too often"
        return Finding(text, False, "chapter 4")
    if cut := sum(starmap(begins_only, run.compactions)):
        text += f", {cut} of them without the newest messages"
        return Finding(text, False, "chapter 7")
    if later := later_in_japanese(run):
        return Finding(f"{text}, {later}", False, "chapter 4")
    return Finding(text, True)


NEVER_STARTS = "; if it has a layer 2, its threshold is too high or its count too low"


def no_summary(run):
    text = "it never asked for a summary"
    if stopped_early(run):
        return Finding(text)
    if run.rejected and run.rejected[1].asks:
        text = "its first request for a summary was too long itself"
        return Finding(text, False, "chapter 4")
    steps = [pair for pair in pairwise(run.accepted) if pair[0].typed == pair[1].typed]
    lost = [old.results.keys() - new.results.keys() for old, new in steps]
    if number := sum(map(len, lost)):
        text += f"; its requests got shorter by dropping {number} results"
    if not (stopped(run) or is_of_chapter_2(run)):
        return Finding(text)
    if number:
        return Finding(text, False, "chapter 8")
    if counts_new(run):
        text += " (`input_tokens` alone leaves out what comes from the cache)"
    return Finding(text + NEVER_STARTS, False, place_for(run, TOO_LONG))


def later_in_japanese(run):
    """Say when it asks for a summary, if that's later for Japanese and Chinese files.

    A program that counts bytes, or takes the API's count, sends no request that is
    longer than one that led to a summary. One that counts characters does, since one of
    these files has a third of the characters; but none with more characters.
    """
    went_on, asked_at, failed = {}, {}, False  # requests, by their tokens
    for before, now in pairwise(run.accepted):
        if now.asks and not before.asks and run.compact not in str(before.content):
            number = sum(before.usage) + stub.tokens(before.content)
            asked_at[number] = [before.messages, before.content]
        failed = now.text in FAILED if now.asks else failed
        if not now.asks and not failed:
            went_on[sum(now.usage)] = now.messages
    if not asked_at or not went_on or max(went_on) < LATER * min(asked_at):
        return ""
    longest = max(len(stub.to_json(messages)) for messages in went_on.values())
    if longest > min(len(stub.to_json(sent)) for sent in asked_at.values()):
        return ""
    at, not_at = f"{min(asked_at):,} tokens", f"{max(went_on):,}"
    return f"at {at}, but not at {not_at} of Japanese and Chinese: it counts characters"


def begins_only(before, asks, after):
    """Check if a summary was asked for without the newest file, which is now lost."""
    had = json.dumps([before.messages, before.content])
    given = json.dumps([exchange.messages for exchange in asks])
    reads, writes = (re.findall(rf"file_\d\d\.{end} 00", had) for end in ("txt", "tyt"))
    names = writes or reads  # a summary may leave out all inputs of calls
    lost = names and names[-1] not in given + json.dumps(after.messages)
    return bool(lost) and any(name in given for name in names)


def after_failed(text, run):
    """Judge what is left after a summary with this text, which failed."""
    found = [three for three in run.compactions if three[1][-1].text == text]
    if not found:
        return None
    before, (*_, ask), after = found[-1]
    if run.exchanges[run.exchanges.index(ask) + 1] is not after:
        return None  # a rejection came between them
    had, has = len(before.messages), len(after.messages)
    left = f"{min(had, has)} of {had} messages are in the next request"
    is_used = text != "" and text in after.sent
    left += ", and its text" * is_used
    is_kept = has >= had / 2 and not is_used
    return Finding(f"after a summary {FAILED[text]}, {left}", is_kept)


def good_summaries(run):
    """The whole summaries: the request for each, and the next one."""
    lasts = [(asks[-1], after) for _, asks, after in run.compactions]
    return [pair for pair in lasts if pair[0].text not in FAILED]


def kept_words(run):
    """Judge the user's words that are left after good summaries."""
    if not (good := good_summaries(run)):
        return None
    kept = [[w in after.sent for w in run.typed[: ask.typed]] for ask, after in good]
    least = min(kept, key=lambda texts: (sum(texts) / len(texts), -len(texts)))
    number = f"{sum(least)} of {len(least)} user messages"
    return Finding(f"after a summary, {number} are in the next request", all(least))


def kept_summary(run):
    """Judge the summaries that are in the next request."""
    if not (good := good_summaries(run)):
        return None
    there = [ask.text in after.sent for ask, after in good]
    text, more = f"{sum(there)} of {len(there)} are in the next request", ""
    if len(good) > 2 and all(there) and good[0][0].text in good[-1][1].sent:
        more = ", but each stays for ever, like what you typed"
    elif again := added_each_time(good):
        more = f', but "{textwrap.shorten(again, 40)}" is there once for each'
    return Finding(text + more, all(there) and not more)


def added_each_time(good):
    """A text in the last request after a summary that each one has added once more."""
    blocks = good[0][1].blocks, good[-1][1].blocks
    first, last = (Counter(b["text"] for b in some if "text" in b) for some in blocks)
    grown = (text for text in last if last[text] - first[text] >= len(good) - 1)
    return next(grown, "") if len(good) > 2 else ""


def memory(run):
    """Judge what is left of the first turn in the second: messages, and the answer."""
    for before, after in pairwise(run.accepted):
        is_next = before.typed < after.typed and not (before.asks or after.asks)
        if is_next and before.text == ANSWER:
            had, has = len(before.messages), len(after.messages)
            text = f"at the second prompt, {min(had, has)} of {had} messages are left"
            is_lost = has >= had / 2 and ANSWER not in after.sent
            text += f', but not the answer "{ANSWER}"' * is_lost
            return Finding(text, has >= had / 2 and not is_lost)
    return None


def dropped_prompts(run):
    """Judge if prompts are in no request any more, though no summary replaced them.

    Their words may be anywhere: quoted, joined, or in the system prompt. What a summary
    leaves of them is in the line `messages`.
    """
    if (kept := memory(run)) and not kept.is_right:
        return None
    lost = []
    for prompt in run.typed:
        numbers = range(len(run.accepted), 0, -1)
        number = next((n for n in numbers if prompt in run.accepted[n - 1].sent), 0)
        around = run.accepted[number - 1 : number + 1]  # the last with it, and the next
        if number and len(around) == 2 and not any(e.asks for e in around):
            lost.append(f'"{prompt}" is in no request after number {number}')
    return Finding("; ".join(lost), False) if lost else None


# --- Layer 3, and the price ---


def last_compact(run):
    """Judge the last request, which comes after the model calls `compact`."""
    tokens = f"{size(run.exchanges[-1]):,} tokens"
    if run.compact not in [tool["name"] for tool in run.accepted[0].request["tools"]]:
        text = f"there is no such tool; the last request has {tokens}"
        more = "" if (grows := is_of_chapter_2(run)) else " (/compact isn't tried)"
        return Finding(text + more, False if grows else None)
    before, ask, last = run.accepted[-3:]
    text = f"the request after it has {tokens}"
    if before.asks and not ask.asks:
        return Finding(f"{text}; the last summary came right before it")
    is_used = ask.asks and (ask.text in FAILED or ask.text in last.sent)
    text += ", but not the summary" * (ask.asks and not is_used)
    return Finding(text, is_used)


def usages(exchanges):
    return [exchange.usage for exchange in exchanges]


def of_model(run):
    """The requests to the agent's first model; another one has another price."""
    model = run.accepted[0].request["model"]
    return [e for e in run.accepted if e.request["model"] == model]


def cost(run):
    """Judge the price of the input by what small.py pays for the same work."""
    own = of_model(run)
    paid, asks = usages(own), usages(e for e in own if e.asks)
    text = f"{bill(paid)} (in full-price input tokens)"
    if others := len(run.accepted) - len(own):
        text += f", without {others} requests to another model"
    new, written, known = map(sum, zip(*paid))
    if not (is_cached := written or known):
        short = "; what its `cache_control` marks is too short to be cached"
        text += short if run.marked else "; no request has `cache_control`"
    most, place = DEAR * price([OF_SMALL]), "chapter 5" if is_cached else "step 3"
    if price(paid) <= most:
        return Finding(text, True)
    if asks and price(paid) - price(asks) <= most:
        text += f"; the requests for a summary alone: {bill(asks)}"
        place = "chapter 7"
    # with most from the cache, it only forgets late
    is_policy = known >= CACHED * (new + written + known)
    return Finding(text, None if is_policy else False, place)


def too_short(run):
    """Judge if a reply has too few tokens for today's models, which think first."""
    for asks, what in ((False, "a reply"), (True, "a summary")):
        few = [e.request["max_tokens"] for e in of_model(run) if e.asks == asks]
        if few and min(few) <= SHORT:
            text = f"{what} gets {min(few):,}, and thinking may use them up"
            return Finding(text, False)
    return None


# --- Accidents ---


def went_on(run):
    """Check that it came to its last prompt, and that its last request was accepted."""
    recovered = run.problem == TOO_LONG and not (run.ended or run.exchanges[-1].error)
    return not ((run.problem and not recovered) or run.prompts or kept_on(run))


def kept_on(run):
    """Check if the turn went on after Ctrl-C: the next request has no new prompt."""
    typed = [exchange.typed for exchange in run.accepted[:2]]
    return run.pressed and len({*typed}) < len(typed)


def why(run):
    """The reason why a turn or the program ended, in words."""
    said = re.split(r" except|\. ", run.problem)[0]
    return said or f"the program ended.{printed(run)}"


def next_request(run):
    """The API's answer to the request after an accident, in words."""
    if run.ended or (run.prompts and not run.problem):
        return f"there is no next request: {run.ended or why(run)}"
    if kept_on(run) and not run.problem:
        return "the turn goes on, and you can't stop it"
    how = f"rejected: {why(run)}" if run.problem else "accepted"
    return f"the next request is {how}"


def goes_on(run):
    """Judge by the request after an accident."""
    place = "step 3" if "non-whitespace" in run.problem else ""
    return Finding(f"after {run.what}, {next_request(run)}", went_on(run), place)


def blank_prompt(run):
    said = run.problem
    text = f"a blank prompt is {f'sent, and rejected: {said}' if said else 'not sent'}"
    return Finding(text, not said)


def truncated(run):
    if "half" in run.files:
        return Finding("a truncated call was run", False)
    is_kept = "`tool_use`" in run.problem
    more = f", but {next_request(run)}" if is_kept else ""
    return Finding(f"a truncated call is not run{more}", not is_kept)


def asks_first(run):
    if "--yes" in run.options:
        return Finding("a command is run without asking, because of --yes")
    if {"asked", "asked_too"} & {*run.files}:
        how = f"after {run.what}" if run.last_question else "without asking"
        return Finding(f"a command is run {how}", False)
    more = "" if (fine := went_on(run)) else f"; after a no, {next_request(run)}"
    return Finding(f"a command is run only after y{more}", fine, "step 6")


def shows_output(run):
    text = [*run.results.values(), ""][0]
    parts = {"stdout": ("607", "809"), "stderr": ("cat:",)}
    lost = [name for name in parts if not all(words in text for words in parts[name])]
    of = f"of a command that fails, the model {'does not see' if lost else 'sees'}"
    return Finding(f"{of} {' and '.join(lost or parts)}", not lost)


def shows_error(run):
    _, empty, missing, *_ = [*run.results.values(), "", "", ""]
    hidden = "looks like an empty one" if empty == missing else ""
    hidden = "gets no result" if len(run.results) < 3 else hidden
    text = f"a file that isn't there {hidden or 'is reported as missing'}"
    return Finding(text, not hidden)


# --- What small.py gets wrong ---


def last_prompt(run):
    """Judge by the last prompt: its last request was accepted, or not."""
    if run.in_turn(len(run.typed) + len(run.prompts)) and not run.exchanges[-1].error:
        return Finding("", True)
    said, again = why(run), "" if run.prompts else "; again at the next prompt"
    place = place_for(run, said) if said != TOO_LONG else ""
    return Finding(f"{said}{again}", False, place)


def thinking(run):
    if signed := [error for error in run.refused if "thinking" in error]:
        return Finding(signed[0].partition(". ")[0], False)
    counts = [str(e.messages).count("'signature'") for e in run.work]
    if not any(counts):
        return Finding("no thought is ever sent back, so each call starts afresh")
    if run.problem:
        return Finding(f"{run.problem}, so nothing can be said")
    return Finding(f"up to {max(counts)} thoughts are sent back", True)


def way_back(run):
    if not run.since_clearing:
        return Finding(f"no old result was cleared{run.problem and f': {run.problem}'}")
    request = run.since_clearing[0]
    now = run.cleared_in(request)
    call = next(iter(now))
    shown = f"one is now `{textwrap.shorten(now[call], 80)}`"
    sent = f"{request.request.get('system')} {request.texts}"
    for path, is_text in run.files_with(*run.results[call].split("\n")[20:22]):
        names = {path.name, path.parent.name} - {""}
        if any(name in (sent if is_text else now[call]) for name in names):
            return Finding(shown, True)
    return Finding(f"{shown}, which doesn't say where it is", False)


def small_window(run):
    if any(exchange.text == plays.LAST for exchange in run.in_turn(1)):
        return Finding("", True)
    if not run.accepted:
        return Finding("its system prompt and tools alone are longer than that")
    text = f"{why(run)}, after {len(run.results)} of 20 files"
    return Finding(text, False, "chapters 4 and 9")


def rest_of_output(run):
    if not (finding := last_prompt(run)).is_right:
        return finding
    if [*run.files_with("100000", "100001")]:
        return Finding("all of it is on disk", True)
    shown = [text for text in run.results.values() if "\n7\n8\n" in text]
    if not shown:
        return Finding("the model got nothing of it")
    if re.search(HINTS, re.sub(r"(?m)^\d+$", "", shown[0])):
        return Finding("the rest is lost, but the result says what to do")
    return Finding("what was cut off is in no file", False)


def never_a_summary(run):
    """Judge by the requests for work in a row of which each needed a summary first."""
    if not (times := sum(exchange.asks for exchange in run.accepted)):
        return Finding("it never asks for one")
    text = f"{times} of {len(run.accepted)} requests ask for one, for nothing"
    if not (finding := last_prompt(run)).is_right:
        return Finding(f"{finding.text}; {text}", False)
    asks = "".join("a" if exchange.asks else "w" for exchange in run.accepted)
    rows = [part.count("w") for part in re.findall("(?:a+w)*", asks)]
    return Finding(text, max(rows) <= MOST_IN_A_ROW)


def long_words(run):
    if (finding := last_prompt(run)).is_right:
        return finding
    number = run.accepted[-1].typed + 1 if run.accepted else 1
    return Finding(f"{why(run)}, at paste {number}", False)


def after_summary(judge, words, run):
    """Judge the request after a summary, unless its prompt asks for it by these words."""
    if not run.compactions:
        return Finding(f"there was no summary{run.problem and f': {run.problem}'}")
    _, (*_, ask), after = run.compactions[0]
    *_, last = ask.texts
    asks = re.search(words, f"{last[:1_000]} {last[-1_000:]}")
    finding = judge(after)
    is_left = asks and not finding.is_right
    return Finding("its prompt leaves that to the summary") if is_left else finding


def told_apart(after):
    """Judge if the model can tell the request that is open from one that isn't."""
    sent, both = after.texts, (plays.FINISHED, plays.OPEN)
    old, new = ([n for n, t in enumerate(sent) if w in t] for w in both)
    between = sent[old[-1] : new[-1] + 1] if old and new else []
    is_alike = " ".join(between).split() == " ".join(both).split()
    replies = [m for m in after.messages if m["role"] == "assistant"]
    if new and not (is_alike and not replies):
        return Finding("", True)
    text = "nothing tells them apart" if new else "the open one is gone"
    return Finding(f"after a summary, {text}", False)


def files_left(after):
    """Judge if the model still has the files that it read, or their names."""
    names = [f"file_{number:02}.txt" for number in range(1, 6)]
    there = sum(after.holds(f"{name} 0000") for name in names)
    named = sum(after.holds(name) for name in names)
    if there or named == len(names):
        return Finding(f"{there} are there after it, {named} named", True)
    return Finding("after it, the model has neither one of them nor its name", False)


# with the words by which a summary is asked for these
OPEN = r"(?i)\b(open|pending|in progress|unfinished|current|latest)\b|未完|进行中"
open_request = partial(after_summary, told_apart, OPEN)
files = partial(after_summary, files_left, r"(?i)\bfiles?\b|文件|ファイル")


def second_start(runs):
    """Judge if one of the ways to start again brings the conversation back."""
    for run in runs:
        if any(exchange.holds(plays.WORDS) for exchange in run.exchanges):
            if run.refused:
                return Finding(f"it's sent, and rejected: {why(run)}", False)
            how = " ".join([*run.options, *run.typed[:-1]]).removeprefix("--yes ")
            return Finding(f"it's there with `{how}`" if how else "", True)
    text = "nothing of it is sent, not even after --resume, --continue or /resume"
    has_words = re.search(r"(?i)resum|restor", Path(run.path).read_text("utf-8"))
    return Finding(text, None if has_words else False)


def recovers(run):
    """Judge if it asks again until the API answers, after pauses that grow."""
    failed = [e for e in run.exchanges if e.error and not e.is_refused]
    if not any(exchange.text == plays.LAST for exchange in run.in_turn(1)):
        error = "the connection is lost" if run.in_turn(1) else "it's overloaded"
        tries = sum(e.typed == 1 and e.error == failed[-1].error for e in failed)
        text = f"{error}, and after {tries * (1 + run.retries)} tries the turn is over"
        return Finding(text, False)
    pauses = [e.paused for before, e in pairwise(run.exchanges) if before in failed]
    if pauses and not any(pauses):
        return Finding("it asks again at once", False)
    if len(pauses) > 2 and len({*pauses}) == 1:
        return Finding(f"all its pauses are alike, {pauses[0]:g} seconds", False)
    return Finding("", True)


def pages(run):
    text = [*run.results.values(), ""][0]
    if "line 00000" not in text:
        return Finding(f"the model got `{textwrap.shorten(text, 80)}`")
    if len(re.findall("line [0-9]{5}", text)) == 2_500:
        return Finding("the model got all of it", True)
    request = run.accepted[0].request
    [tool] = [tool for tool in request["tools"] if tool["name"] == "read_file"]
    said = re.sub("line [0-9]{5}.*", "", text)
    about = f"{said} {tool.get('description')} {request.get('system')}"
    if len(tool["input_schema"]["properties"]) > 1 or re.search(HINTS, about):
        return Finding("the model can read on", True)
    text = f"it gets {len(text):,} characters, and isn't told how to read on"
    return Finding(text, False)


def secret(run):
    if plays.KEY not in [*run.results.values(), "", ""][1]:
        return Finding("", True)
    if run.last_question:
        return Finding("after a question to the user", True)
    return Finding("the key in it is sent to the API", False)


def stopped_command(run):
    if "half.txt" not in run.files:
        return Finding("it ran no command")
    if not (finding := last_prompt(run)).is_right:
        return finding._replace(place=finding.place or "step 6")
    if "half.txt" in str(run.accepted[-1].request["messages"]):
        return Finding("", True)
    text = "it had written a file, and the next request doesn't mention it"
    return Finding(text, False)


def lone_surrogate(run):
    if run.in_turn(1):
        return Finding("", True)
    if not (finding := last_prompt(run)).is_right:
        return finding
    if "surrogate" in (words := printed(run)):  # Python's words, not the program's
        return Finding(f"it isn't sent.{words}", False)
    return Finding("it isn't sent, but the next prompt is")


def answer_is_cut(run):
    if len(run.accepted) > 1:
        return Finding("", True)
    if re.search(IS_CUT, " ".join(run.lines)):
        return Finding("the user is told", True)
    return Finding("it ends the turn, and the user isn't told", False)


def declined(run):
    if not (finding := last_prompt(run)).is_right:
        return finding
    is_there = run.accepted[-1].holds("(bad)")
    return Finding("it's in the next request" * is_there, not is_there)


def one_id(run):
    finding = last_prompt(run)
    return finding._replace(is_right=False, place="") if run.refused else finding


# --- The table ---

CHECKS = [
    # the work, whatever stopped it
    Check("stopped", work, what_stopped, always=True),
    Check("files", work, translated, always=True),
    Check("on disk", work, on_disk, "step 2", always=True),
    Check("largest", work, largest, always=True),
    Check("rejected", work, rejected),
    Check("asked", work, asked, always=True),
    Check("results", work, same_results, always=True),
    Check("seen", work, seen, always=True),
    Check("layer 1", work, layer_1, always=True),
    Check("layer 2", work, layer_2, always=True),
    Check("no text", work, partial(after_failed, ""), "step 4", always=True),
    Check("cut off", work, partial(after_failed, CUT_OFF), "step 4", always=True),
    Check("messages", work, kept_words, "step 4", always=True),
    Check("summary", work, kept_summary, "step 4", always=True),
    Check("memory", work, memory, "step 2", always=True),
    Check("prompts", work, dropped_prompts, "step 4", always=True),
    # the work, once it's done
    Check("compact", work, last_compact, "step 5"),
    Check("cost", work, cost),
    Check("small.py", work, lambda _: Finding(f"at the same work: {bill([OF_SMALL])}")),
    Check("max_tokens", work, too_short, "chapter 7"),
    # accidents
    Check("empty", (plays.empty_reply, plays.blank_text), goes_on, "step 6"),
    Check("Ctrl-C", plays.stop_tool, goes_on, "step 6"),
    Check("huge file", (plays.huge_file, plays.twenty_files), goes_on, "step 1"),
    Check("truncated", plays.truncated, truncated, "step 3"),
    Check("asks", (plays.maybe, plays.enter), asks_first, "step 1"),
    Check("output", plays.failing, shows_output, "step 1"),
    Check("errors", plays.failing, shows_error, "step 1"),
    Check("blank", plays.blank_prompt, blank_prompt, "step 2"),
]
FAULTS = [  # what small.py gets wrong
    Check("no_thinking", plays.old_outputs, thinking, "chapter 3"),
    Check("same_id", plays.same_id, one_id, "chapter 3"),
    Check("fixed_threshold", plays.small_window, small_window, "chapter 4"),
    Check("no_path", plays.old_outputs, way_back, "chapter 5"),
    Check("paste", plays.paste, last_prompt, "chapter 6"),
    Check("cut_output", plays.long_output, rest_of_output, "chapter 6"),
    Check("no_summaries", plays.never, never_a_summary, "chapter 7"),
    Check("long_words", plays.pastes, long_words, "chapter 8"),
    Check("open_request", plays.one_summary, open_request, "chapter 8"),
    Check("files", plays.one_summary, files, "chapter 8"),
    Check("no_resume", plays.second_starts, second_start, "chapter 10", any_of=True),
    Check("passing_error", plays.api_fails, recovers, "reference"),
    Check("no_pages", plays.two_reads, pages, "reference"),
    Check("secrets", plays.two_reads, secret, "reference"),
    Check("stopped_call", plays.stop_command, stopped_command),
    Check("surrogate", plays.surrogate, lone_surrogate),
    Check("cut_answer", plays.cut_answer, answer_is_cut),
    Check("refusal", plays.declined, declined),
]
