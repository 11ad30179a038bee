"""The five tutorials' mechanisms against today's API, and ours on the same work.

    python3 tests/naive.py       all chapters
    python3 tests/naive.py 4     chapter 4 alone

No key, no network, no package: the model is scripted, and the API is the tests' own
`stub`, which refuses what the real one refuses. The mechanisms are in our own words.
Each ends in a refusal or in a number; then `agent.py` is given the same work.
"""

import itertools
import json
import os
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import stub
from stub import Refused, StubClient, TooLong, count, reply, tokens

import agent as program

# --- The stage: files, a model with a script, and a line for who says what ---

NAMES = "read_file", "edit_file", "compact"
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
SUMMARY = "The files were read."


class Model(StubClient):
    """The stub; it gives our agent the summaries that it asks for, and keeps usages."""

    def __init__(self, *replies, summaries=(SUMMARY,), **limits):
        super().__init__(*replies, **limits)
        self.summaries, self.asked, self.usages = itertools.cycle(summaries), [], []

    def take(self, request):
        if "<analysis>" not in str(request["messages"][-1]["content"]):
            return super().take(request)
        self.asked.append(request)
        self.queue.appendleft(
            lambda _: reply(f"<summary>{next(self.summaries)}</summary>")
        )
        try:
            return super().take(request)
        except TooLong:
            self.queue.popleft()
            raise

    def finish(self, request, given):
        answer = super().finish(request, given)
        self.usages.append(answer["usage"])
        return answer


def say(who, text):
    """Print who speaks, and what, in 80 columns."""
    text = " ".join(text.split())
    indent = {"initial_indent": f"  {who:<8}", "subsequent_indent": " " * 10}
    print(textwrap.fill(text, 79, break_on_hyphens=False, **indent))


def write_files(number, characters):
    """The names of so many new text files, in lines of 80 characters."""
    names = [f"file_{n:02}.txt" for n in range(1, number + 1)]
    for name in names:
        lines = (f"{name} {n:04} ".ljust(79, "x") for n in range(characters // 80))
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


def read(*names, thinking=None, **more):
    """A reply of the model that reads these files."""
    return reply(
        calls=[("read_file", {"path": n, **more}) for n in names], thinking=thinking
    )


def request(messages):
    """What a naive agent sends."""
    settings = {"model": "m", "max_tokens": 16_000, "system": "You write code."}
    marker = {"cache_control": {"type": "ephemeral"}}
    return {**settings, "tools": TOOLS, "messages": messages, **marker}


def ask(client, messages):
    """The content of the model's answer; raises Refused."""
    return client.answer(request(messages))["content"]


def refusal(messages):
    """What the API says to these messages, "" if it takes them."""
    try:
        stub.check(request(messages))
    except Refused as error:
        return str(error)
    return ""


def person(text):
    return {"role": "user", "content": text}


def calls_in(content):
    return [block for block in content if block["type"] == "tool_use"]


def run(call):
    """The answer to a call of one of the naive agent's tools."""
    given, text = call["input"], "done"
    path = Path(given.get("path", ""))
    if call["name"] != "compact":
        text = path.read_text(encoding="utf-8")
    if call["name"] == "edit_file":
        text = text.replace(given["old_text"], given["new_text"])
        path.write_text(text, encoding="utf-8")
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def results(messages):
    """All tool results, oldest first."""
    lists = [m["content"] for m in messages if type(m["content"]) is list]
    return [b for content in lists for b in content if b["type"] == "tool_result"]


def whole(sent):
    """How many tool results of a request are more than a placeholder."""
    return sum(len(result["content"]) > 100 for result in results(sent["messages"]))


def ours(model, *prompts, **limits):
    """Our agent after these prompts, and the names of the layers that acted."""
    acted = []

    def emit(kind, text):
        acted.extend([text[1:].partition("]")[0]] * ("->" in text))

    agent = program.Agent(model, emit=emit, approve=lambda *_: True, **limits)
    for prompt in prompts:
        program.take_turn(agent, prompt)
    return agent, acted


PARTS = "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"


def spent(usages):
    """(The share that came from the prompt cache, the price in tokens) of requests."""
    new, written, known = (sum(usage[part] for usage in usages) for part in PARTS)
    price = round(new + 1.25 * written + 0.1 * known, -3)
    return f"{known / (new + written + known):.0%}", f"{price:,.0f}"


# --- 1 ---


def append_for_ever(client, messages, before=list):
    """The loop of all tutorials, with what a layer does `before` each request."""
    while True:
        messages[:] = before(messages)
        content = ask(client, messages)
        messages.append({"role": "assistant", "content": content})
        if not calls_in(content):
            return
        answers = [run(call) for call in calls_in(content)]
        messages.append({"role": "user", "content": answers})


def chapter_1():
    """The loop, and the wall"""
    names = write_files(24, 40_000)
    script = [*map(read, names), reply("All read.")]
    model, messages = Model(*script), [person("Read all files.")]
    say("naive", "24 files of 40,000 characters are read, nothing is forgotten.")
    try:
        append_for_ever(model, messages)
    except TooLong as error:
        say("API", str(error))
    sent = sum(count("", [], request["messages"]) for request in model.requests)
    say(
        "damage",
        f"""file {len(results(messages))} of 24 is the last, after {sent:,}
        tokens sent: every request sends all again.""",
    )
    model = Model(*script)
    agent, acted = ours(model, "Read all files.")
    most = max(count("", [], request["messages"]) for request in model.requests)
    say(
        "ours",
        f"""all 24 are read, {len(acted)} times old results were cleared, and no
        request had more than {round(most, -3):,} tokens of messages.""",
    )


# --- 2 ---


def understood(summary):
    """s06 and v5: what replaces the history ends in words of the assistant's."""
    return [
        {"role": "user", "content": summary},
        {"role": "assistant", "content": "Understood. Continuing."},
    ]


def keep_newest(summary, messages, number):
    """A cut by number alone."""
    return [{"role": "user", "content": summary}, *messages[-number:]]


def keep_newest_whole(summary, messages, number):
    """The same cut with two helpers of agent.py."""
    cut = program.pair_safe(messages, len(messages) - number)
    newest = program.drop_thinking(messages[cut:])
    return [{"role": "user", "content": summary}, *newest]


def chapter_2():
    """What the API will not take"""
    script = [read(name, thinking="Hm.") for name in write_files(6, 800)]
    messages = [person("Read all files.")]
    append_for_ever(Model(*script, reply("All read.")), messages)
    messages.pop()
    say("naive", "a summary, and an assistant message that says it is understood.")
    say("API", refusal(understood(SUMMARY)))
    say("naive", "a summary and the newest 3 messages: the cut parts a pair.")
    say("API", refusal(keep_newest(SUMMARY, messages, 3)))
    say("naive", "a summary and the newest 4: pairs are whole, the thinking is not.")
    say("API", refusal(keep_newest(SUMMARY, messages, 4)))
    cuts = range(1, len(messages))
    for who, keep in ("damage", keep_newest), ("ours", keep_newest_whole):
        refused = [n for n in cuts if refusal(keep(SUMMARY, messages, n))]
        say(who, f"of {len(cuts)} places to cut, {len(refused)} are refused.")


# --- 3 ---


def characters_by_4(text):
    """All five: a token is four characters."""
    return len(text) // 4


def chapter_3():
    """Counting"""
    text = "文脈は有限だ。" * 500
    say(
        "naive",
        f"{len(text):,} Japanese characters are {characters_by_4(text)} tokens.",
    )
    late = "文" * 200_000
    say(
        "damage",
        f"""the API counts {tokens(text):,}. A threshold of 50,000 such tokens
        fires at {tokens(late):,}, in a window of 200,000.""",
    )
    model = Model(reply("はい。"), reply("はい。"))
    agent, _ = ours(model, text)
    guess = program.estimate_tokens([person(text)])
    say("ours", f"before any reply, by bytes: {guess:,} tokens.")
    agent.messages.append(person(text))
    guess = program.context_tokens(agent)
    agent.messages.pop()
    program.take_turn(agent, text)
    true = sum(model.usages[-1][part] for part in PARTS)
    say(
        "ours",
        f"""after a reply, whose count sets it right: {abs(guess / true - 1):.0%} off
        for a request with twice the text.""",
    )


# --- 4 ---


def micro_compact_every_turn(messages, names, keep_recent=3):
    """s06: before each request, all results but three; `names` by a call's id."""
    for result in results(messages)[:-keep_recent]:
        if len(result["content"]) > 100:
            name = names.get(result["tool_use_id"], "unknown")
            result["content"] = f"[Previous: used {name}]"
    return messages


def forget(messages):
    """The above, while the program that made the calls still runs."""
    lists = [m["content"] for m in messages if m["role"] == "assistant"]
    names = {
        call["id"]: call["name"] for content in lists for call in calls_in(content)
    }
    return micro_compact_every_turn(messages, names)


def chapter_4():
    """Layer 1: old results"""
    names = write_files(20, 9_000)
    six = read(*names[:6], thinking="All six."), read(names[6], thinking="One more.")
    model = Model(*six, reply("Done."))
    say("naive", "one reply reads six files; all results but the newest 3 are cleared.")
    try:
        append_for_ever(model, [person("Compare six files.")], before=forget)
    except Refused as error:
        say("damage", f"of 6 files the model sees {whole(model.requests[1])}.")
        say("naive", "it thinks, reads one file more, and one more result is cleared.")
        say("API", str(error))
    saved = json.loads(json.dumps(model.requests[1]["messages"]))
    micro_compact_every_turn(saved, {}, keep_recent=1)
    say("damage", f"after a reload the map is empty: {results(saved)[4]['content']}")
    script = [*map(read, names), reply("Done.")]
    model = Model(*script)
    append_for_ever(model, [person("Read them.")], before=forget)
    say(
        "damage",
        """20 reads: {} of what was sent came from the cache, at a price of {}
        tokens.""".format(*spent(model.usages)),
    )
    model = Model(*six, reply("Done."))
    ours(model, "Compare six files.")
    say(
        "ours",
        f"""of 6 files the model sees {whole(model.requests[1])}, and
        {len(model.refused)} requests are refused.""",
    )
    model = Model(*script)
    ours(model, "Read them.")
    say(
        "ours",
        """20 reads: {} from the cache, at a price of {} tokens, system prompt and
        tools included.""".format(*spent(model.usages)),
    )


# --- 5 ---


def budget_then_threshold(messages, budget=200_000, threshold=50_000):
    """s08: a message's results go to disk over one limit, all is lost over another."""
    new = results(messages[-1:])
    if sum(len(result["content"]) for result in new) > budget:
        new[0]["content"] = new[0]["content"][:2_000] + "(the rest is on disk)"
    if len(json.dumps(messages)) > threshold:
        return summary_alone("The file was read.")
    return messages


def snip_to_50(messages, most=50):
    """s08: over 50 messages, the first 3 and the newest 47 stay."""
    if len(messages) <= most:
        return messages
    tail = len(messages) - (most - 3)
    tail -= bool(results(messages[tail : tail + 1]))  # with the call that it answers
    note = {"role": "user", "content": f"({tail - 3} messages are left out)"}
    return [*messages[:3], note, *messages[tail:]]


def chapter_5():
    """Layer 1: too much at once, too many messages"""
    (name,) = write_files(1, 60_000)
    model = Model(*[read(name)] * 5, reply("I give up."))
    append_for_ever(model, [person("Read it.")], before=budget_then_threshold)
    say(
        "naive",
        """a file of 60,000 characters: within the budget of 200,000, over the
        threshold of 50,000.""",
    )
    say(
        "damage",
        f"""read 5 times, summarised 5 times before a request, seen
        {sum(map(whole, model.requests))} times.""",
    )
    model = Model(read(name), read(name, offset=1 + 50_000 // 80), reply("Done."))
    _, acted = ours(model, "Read it.")
    say(
        "ours",
        f"""read in 2 pages, {len(acted)} summaries, seen
        {whole(model.requests[-1])} of 2.""",
    )
    chat, after = [person("Hello.")], []
    for _ in range(44):
        chat += [{"role": "assistant", "content": "Yes."}, person("Go on.")]
        if (shorter := snip_to_50(chat)) is not chat:
            chat = shorter
            after.append(len(chat))
    say("naive", f"a snip to 50 messages leaves {', '.join(map(str, after[:3]))} ...")
    script = [read(n, thinking="Hm.") for n in write_files(45, 160)]
    try:
        append_for_ever(Model(*script), [person("Read all.")], before=snip_to_50)
    except Refused as error:
        say("API", str(error))
    say("damage", f"{len(after)} cuts in 44 turns, each loses the cache.")
    model = Model(*[reply("Yes.")] * 44, *script, reply("Done."))
    _, acted = ours(model, *["Go on."] * 44, max_messages=50)
    chat_cuts = len(acted)
    _, acted = ours(model, "Read all.", max_messages=50)
    say(
        "ours",
        f"""{chat_cuts} cuts in 44 turns; {len(acted)} in 45 reads with thinking,
        {len(model.refused)} refused.""",
    )


# --- 6 ---


def v5_threshold(context_window, max_output=16_384):
    """v5: what the window leaves after a reply and a margin, however small it is."""
    return context_window - min(max_output, 20_000) - 13_000


def summarise_over(threshold, messages):
    """v5: whether it is time is a comparison with the threshold, and nothing else."""
    over = characters_by_4(json.dumps(messages)) > threshold
    return summary_alone(SUMMARY) if over else messages


def chapter_6():
    """When"""
    print(f"  {'window':>11} {'naive':>9} {'ours':>9}   (T, in tokens)")
    for window in 8_000, 16_000, 32_000, 200_000, 1_000_000:
        mine = program.auto_compact_threshold(window, min(16_384, window // 3))
        print(f"  {window:>11,} {v5_threshold(window):>9,} {mine:>9,}")
    script = [*map(read, write_files(10, 160)), reply("Done.")]
    model = Model(*script)
    before = partial(summarise_over, v5_threshold(16_000))
    append_for_ever(model, [person("Read ten files.")], before=before)
    lost = [
        sent for sent in model.requests if sent["messages"] == summary_alone(SUMMARY)
    ]
    say(
        "damage",
        f"""ten small files in a window of 16,000: {len(lost)} of
        {len(model.requests)} requests are a summary, and nothing else.""",
    )
    limits = {"window": 16_000, "max_output": 5_333}
    limits["threshold"] = program.auto_compact_threshold(*limits.values())
    model = Model(*script)
    ours(model, "Read ten files.", **limits)
    say("ours", f"{len(model.asked)} summaries in {len(model.requests)} requests.")


# --- 7 ---


def summary_of_its_own(client, messages, part=slice(80_000)):
    """s06, v5: a request of its own about a part of the history, as JSON."""
    text = "Summarise this.\n\n" + json.dumps(messages)[part]
    more = {"model": "m", "max_tokens": 2_000}
    with client.messages.stream(messages=[person(text)], **more) as stream:
        answer = stream.get_final_message()
    return answer.content[0].text


def pay_and_forget(client, messages):
    """s06 in TypeScript: the answer is awaited, and not used."""
    summary_of_its_own(client, messages)
    return [{"role": "user", "content": "The whole is in transcript_1.jsonl."}]


def summary_alone(summary):
    """s08: one message replaces all."""
    return [{"role": "user", "content": f"Summary of all before:\n{summary}"}]


def chapter_7():
    """Layer 2: the summary"""
    names, task = write_files(60, 3_280), "Find the file that differs."
    script = [read(*names[n : n + 10]) for n in range(0, 60, 10)]
    messages = [person(task)]
    append_for_ever(Model(*script, reply("None.")), messages)
    for end, part in ("head", slice(80_000)), ("tail", slice(-80_000, None)):
        sent = json.dumps(messages)[part]
        kept = sum(f"{name} 0000" in sent for name in names)
        say(
            "naive",
            f"""of 80,000 characters of JSON the {end} has {kept} of 60 results,
            {"and" if task in sent else "not"} the task.""",
        )
    nothing = reply(content=[{"type": "text", "text": ""}])
    thought = reply(thinking="Well.", stop="max_tokens")
    model = Model(thought, nothing, reply("A long summary. " * 300))
    try:
        summary_of_its_own(model, messages)
    except AttributeError as error:
        say("damage", f"thinking ate max_tokens=2000; content[0].text: {error}")
    empty = summary_alone(summary_of_its_own(model, messages))
    say(
        "damage",
        f"""an empty answer replaces {count("", [], messages):,} tokens by
        {count("", [], empty)}.""",
    )
    left = str(pay_and_forget(model, messages)).count("long summary")
    paid = model.usages[-1]["output_tokens"]
    say(
        "damage",
        f"""TypeScript: a summary of {paid:,} tokens is paid for, {left} of
        them are used; {spent(model.usages)[0]} of its request came from the cache.""",
    )
    model = Model(*script, reply("None."), summaries=[""])
    agent, _ = ours(model, task, threshold=60_000, keep_recent=100)
    usage = model.usages[model.requests.index(model.asked[0])]
    say(
        "ours",
        f"""in the conversation itself: {whole(model.asked[0])} of 60 results and
        the task, {spent([usage])[0]} from the cache. The answer was empty:
        {len(results(agent.messages))} of 60 results are still there.""",
    )


# --- 8 ---

RULE, MORE = "Never touch the tests. Rename apple to pear.", "Rename plum to fig, too."
PARAPHRASES = "apple is renamed; mind the tests", "renaming goes on", "work was done"


def chapter_8():
    """What stays"""
    say("naive", "each summary is made of the one before (the model is scripted):")
    messages = [person(RULE)]
    for paraphrase in PARAPHRASES:
        messages = summary_alone(paraphrase)
        say("", messages[0]["content"])
    kept = [text for text in (RULE, MORE) if text in str(messages)]
    say(
        "damage",
        f"""of 2 things that the person said {len(kept)} are left; that one of
        them is not done, nothing says.""",
    )
    names, compact = write_files(6, 30_000), reply(calls=[("compact", {})])
    first = read(*names[:2]), compact, reply("Done.")
    then = read(*names[2:4]), compact, read(*names[4:]), compact, reply("Done.")
    agent, acted = ours(Model(*first, *then, summaries=PARAPHRASES), RULE, MORE)
    blocks = [block["text"] for block in agent.messages[0]["content"]]
    kept = [text for text in (RULE, MORE) if text in "".join(blocks)]
    say(
        "ours",
        f"""after {len(acted)} summaries {len(kept)} of 2 stand word for word, and
        the message ends:""",
    )
    say("", blocks[-1])


# --- 9 ---


def loop_that_ends_with_compact(client, messages):
    """s06: the tool `compact` leaves the loop, and its focus is read by nobody."""
    while True:
        content = ask(client, messages)
        messages.append({"role": "assistant", "content": content})
        calls = calls_in(content)
        if calls and calls[0]["name"] == "compact":
            messages[:] = summary_alone(SUMMARY)
        if not calls or calls[0]["name"] == "compact":
            return
        messages.append({"role": "user", "content": [run(call) for call in calls]})


def answer_after_the_summary(call):
    """s08: the summary takes the call away, then the call is answered."""
    return [*summary_alone(SUMMARY), {"role": "user", "content": [run(call)]}]


def is_too_long(error):
    """s08, by the name of its exception."""
    return "prompt_too_long" in str(error)


def edit(name):
    """A reply that edits the first line of a file."""
    given = {"path": name, "old_text": f"{name} 0000", "new_text": "edited"}
    return reply(calls=[("edit_file", given)])


def edited(names):
    return sum("edited" in Path(n).read_text(encoding="utf-8") for n in names)


def chapter_9():
    """Layer 3: on demand"""
    names, focus = write_files(5, 9_000), "which files are still to do"
    compact = reply(calls=[("compact", {"focus": focus})])
    edits = [edit(name) for name in names]
    script = [read(*names), *edits[:2], compact, *edits[2:], reply("Done.")]
    loop_that_ends_with_compact(Model(*script), [person("Edit five files.")])
    say("naive", "five files are to be edited; after two the model calls `compact`.")
    say("damage", f"the loop ends: {edited(names)} of 5 are edited.")
    say("naive", "or the call is answered after the summary took it away.")
    say("API", refusal(answer_after_the_summary(compact["content"][0])))
    say("naive", "or the API asks for it, in its own words.")
    try:
        ask(Model(window=20_000), [person("x" * 70_000)])
    except TooLong as error:
        say("API", str(error))
        say("damage", f"is it prompt_too_long? {is_too_long(error)}: the program ends.")
    names, model = write_files(5, 9_000), Model(*script)
    ours(model, "Edit five files.")
    asked = str(model.asked[0]["messages"][-1])
    say(
        "ours",
        f"""{edited(names)} of 5 are edited; the focus is in the request for the
        summary: {focus in asked}.""",
    )
    names = write_files(12, 9_000)
    model = Model(*map(read, names), reply("Done."), window=30_000)
    _, acted = ours(model, "Read twelve files.")
    say(
        "ours",
        f"""{len(model.too_long)} times too long, {len(acted)} times [{acted[0]}], and
        all {len(names) - len(model.queue)} of 12 files are read.""",
    )


# --- 10 ---


def save_by_the_second(messages, now):
    """s06: a transcript is named by the second, an object is written by `str`."""
    path = Path(f"transcript_{int(now)}.jsonl")
    lines = [json.dumps(message, default=str) for message in messages]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def chapter_10():
    """Nothing is lost"""
    first, second = [person("The first task.")] * 9, [person("The second.")] * 5
    path, again = (save_by_the_second(m, t) for m, t in ((first, 7.2), (second, 7.9)))
    left = path.read_text(encoding="utf-8").count("first")
    say("naive", f"two compactions in a second, files {path} and {again}.")
    say("damage", f"of 9 messages before the first compaction {left} are left.")
    with Model(reply("Done.")).messages.stream(**request(second)) as stream:
        content = stream.get_final_message().content
    talk = [*second, {"role": "assistant", "content": content}, person("Go on.")]
    lines = save_by_the_second(talk, 8.0).read_text(encoding="utf-8").split("\n")
    say("naive", f"`default=str` writes: {json.loads(lines[-2])['content'][0]}")
    say("API", refusal([json.loads(line) for line in lines]))
    names, compact = write_files(4, 30_000), reply(calls=[("compact", {})])
    script = read(*names[:2]), compact, read(*names[2:]), compact, reply("Done.")
    agent, acted = ours(Model(*script), "Read four files.")
    text = agent.transcript.read_text(encoding="utf-8")
    kept = sum(f"{name} 0000" in text for name in names)
    files = [*agent.transcript.parent.glob("*.jsonl")]
    say(
        "ours",
        f"""{len(acted)} compactions in a second, {len(files)} file, and {kept} of 4
        files read are in it.""",
    )
    back = program.load(agent.transcript)
    sent = [{"role": m["role"], "content": m["content"]} for m in back]
    problem = refusal([*sent, person("Go on.")])
    say(
        "ours",
        f"""read back it is what the agent held: {back == agent.messages}; the API
        takes it: {not problem}.""",
    )


# --- Which chapter ---


def main(arguments):
    """Play these chapters, all if none; returns 0, or 2 where there is no such one."""
    named = {name[8:]: play for name, play in globals().items() if "chapter_" in name}
    if wrong := [name for name in arguments if name not in named]:
        print(f"No chapter {wrong[0]} here, only {', '.join(named)}.", file=sys.stderr)
        return 2
    back = Path.cwd()
    for name in arguments or named:
        print(f"{name}. {named[name].__doc__}")
        stub.tool_ids = map("toolu_{:04}".format, itertools.count(1))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                named[name]()
            finally:
                os.chdir(back)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
