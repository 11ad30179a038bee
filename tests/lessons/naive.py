"""Try the five tutorials' mechanisms, and then ours, on the same work.

    python3 tests/lessons/naive.py       all chapters
    python3 tests/lessons/naive.py 5     chapter 5 alone

It needs no key, network or package: the model follows a script, and the API is the
tests' own `stub`, which rejects what the real one rejects. We wrote the mechanisms
ourselves, after the tutorials' pages; names.md says where a page's code does better. Each
of them ends in an error or a number, and then `agent.py` does the same work.
"""

import json
import sys
import textwrap
from pathlib import Path

import stage  # adds the folder of stub to sys.path
import stub
from layer1 import step0 as s06
from stage import SUMMARY, bill, reads, refusal, results, scripted, use, user_said
from stub import reply

sys.path.append(str(stage.ROOT))  # last, because a file there can have any name

import agent as program

s06.tool_name_map = stage.NAMES

# --- What all chapters need: a naive agent's helpers, and ours ---


def say(lines):
    """Print lines like `who: what` in 79 columns."""
    for line in textwrap.dedent(lines).strip().split("\n"):
        who, _, what = line.partition(": ")
        indent = {"initial_indent": f"  {who:<8}", "subsequent_indent": " " * 10}
        print(textwrap.fill(what, 79, break_on_hyphens=False, **indent))


def rejection(messages):
    """The API's error for a request with these messages, "" if it accepts them."""
    return refusal(stub.check, {**stage.SETTINGS, "messages": messages})


def ours(model, *prompts, **limits):
    """Run our agent; returns it with the names of the layers that acted."""
    lines = []
    world = {"approve": lambda *_: None, "emit": lambda _, text: lines.append(text)}
    world |= {"client": model, "system": {"": "You write code."}}
    agent = program.Agent(limits=program.Limits(**limits), **world)
    for prompt in prompts:
        program.take_turn(agent, prompt)
    return agent, [line[1:].partition("]")[0] for line in lines if "->" in line]


PRICES = f"""\
price: writing a token to the prompt cache counts {stub.CACHE_WRITE}, reading one \
{stub.CACHE_READ}, any other input 1; output is left out."""


def understood(summary):
    """s06 and v5, on their pages: the new history ends with an assistant message."""
    return [user_said(summary), stage.model_said("Understood. Continuing.")]


def keep_newest(summary, messages, number):
    """A cut at a fixed number of messages."""
    return [user_said(summary), *messages[-number:]]


def keep_pairs(summary, messages, number):
    """s08: the same, but a result keeps its call."""
    first = -number - bool(results(messages[-number:][:1]))
    return [user_said(summary), *messages[first:]]


def chapter_3():
    """What the API rejects"""
    names, messages = stage.write_files(6, 800), [user_said("Read all files.")]
    stage.naive_loop(scripted(*reads(names, "Hm."), reply("All read.")), messages)
    del messages[-1]
    cuts = range(1, len(messages))
    bad = [n for n in cuts if rejection(keep_newest(SUMMARY, messages, n))]
    whole = [n for n in cuts if rejection(keep_pairs(SUMMARY, messages, n))]
    empty = stub.without_thinking({"messages": messages})["messages"]
    parted = [n for n in cuts if rejection(keep_newest(SUMMARY, empty, n))]
    safe = [program.pair_safe(messages, len(messages) - n) for n in cuts]
    kept = [program.drop_thinking(messages[cut:]) for cut in safe]
    left = [tail for tail in kept if rejection([user_said(SUMMARY), *tail])]
    say(f"""
        naive: a summary, then an assistant message that says it understood.
        API: {rejection(understood(SUMMARY))}
        naive: a summary and the newest 3 messages: a result without its call.
        API: {rejection(keep_newest(SUMMARY, messages, 3))}
        naive: a summary and the newest 4: whole pairs, but invalid thinking.
        API: {rejection(keep_newest(SUMMARY, messages, 4))}
        damage: cut between pairs, thinking kept, as in s08: the API rejects {len(whole)} of {len(cuts)} lists.
        damage: cut anywhere, thinking dropped: {len(parted)} of {len(cuts)}.
        damage: cut anywhere, thinking kept: {len(bad)} of {len(cuts)}.
        ours: the API rejects {len(left)} of {len(cuts)} lists.""")


def escaped_by_4(content):
    """v5: a token for four characters of escaped JSON; a Japanese one takes six."""
    return len(json.dumps(content)) // 4


def v5_threshold(context_window, max_output=16_384):
    """v5: the window minus a reply and a margin, however small the window is."""
    return context_window - min(max_output, 20_000) - 13_000


def summarise_over(messages):
    """v5: the context is over the threshold or not; nothing else counts."""
    over = escaped_by_4(messages) > v5_threshold(16_000, 5_333)
    return summary_alone(SUMMARY) if over else messages


def chapter_4():
    """Counting tokens"""
    text, late = "文脈は有限だ。" * 500, "文" * 200_000
    model = scripted(reply("はい。"), reply("はい。"))
    agent, _ = ours(model, text)
    agent.messages.append(user_said(text))
    guess = program.context_tokens(agent)
    agent.messages.pop()
    program.take_turn(agent, text)
    off = abs(guess / sum(model.usages[-1]) - 1)
    true, escaped = stub.tokens(text), escaped_by_4(text)
    say(f"""
        naive: {len(text):,} Japanese characters are {len(text) // 4} tokens (s06).
        damage: the API counts {true:,}; a threshold of 50,000 lets \
{stub.tokens(late):,} pass, in a window of 200,000.
        naive: v5 counts them as JSON escapes them: {escaped:,} tokens.
        damage: that is {escaped / true:.1f} times as many; its threshold of \
{v5_threshold(200_000):,} comes at {v5_threshold(200_000) * true // escaped:,}.
        ours: before any reply, by bytes: {program.estimate_tokens([user_said(text)]):,}.
        ours: after a reply, which has the true count: {off:.0%} off for the next.""")
    windows()


def windows():
    """Print v5's threshold and ours for windows of every size."""
    sizes = 8_000, 16_000, 32_000, 200_000, 1_000_000
    print("  window  " + "".join(f"{window:>10,}" for window in sizes))
    both = [(window, min(program.MAX_OUTPUT, window // 3)) for window in sizes]
    theirs = [v5_threshold(*one) for one in both]
    mine = [program.auto_compact_threshold(*one) for one in both]
    script = [*reads(stage.write_files(10, 160)), reply("Done.")]
    model, second = scripted(*script), scripted(*script)
    stage.naive_loop(model, [user_said("Read ten files.")], summarise_over)
    alone = [r["messages"] == summary_alone(SUMMARY) for r in model.requests]
    limits = {"context_window": 16_000, "max_output": 5_333, "threshold": mine[1]}
    ours(second, "Read ten files.", **limits)
    say(f"""
        naive: {"".join(f"{threshold:>10,}" for threshold in theirs)}
        ours: {"".join(f"{threshold:>10,}" for threshold in mine)}
        damage: in 16,000 {sum(alone)} of {len(alone)} requests are a summary alone.
        ours: {len(second.asked)} of {len(second.requests)} requests ask for one.""")


def chapter_5():
    """Layer 1: clear old results"""
    names = stage.write_files(20, 9_000)
    six = use("read_file", *names[:6], thinking="Six."), *reads(names[6:7], "One more.")
    first, mine = scripted(*six), scripted(*six, reply("Done."))
    forget = s06.micro_compact
    problem = refusal(stage.naive_loop, first, [user_said("Compare six.")], forget)
    ours(mine, "Compare six.")
    saw = stage.seen(mine.requests[1])
    script = [*reads(names), reply("Done.")]
    every_turn, seldom = scripted(*script), scripted(*script)
    stage.naive_loop(every_turn, [user_said("Read them.")], forget)
    _, acted = ours(seldom, "Read them.", threshold=50_000)
    say(f"""
        {PRICES}
        naive: one reply reads six files, and all but the newest 3 results are cleared.
        damage: the model sees {stage.seen(first.requests[1])} of 6 files.
        naive: it thinks, reads one more file, and one more result is cleared.
        API: {problem}
        damage: 20 reads: {bill(every_turn.usages)}.
        ours: the model sees {saw} of 6 files; requests rejected: {len(mine.refused)}.
        ours: 20 reads, with s06's threshold: {bill(seldom.usages)}.
        ours: old results were cleared before {acted.count("micro_compact")} of \
{len(seldom.requests)} requests.""")


def budget_then_threshold(messages, budget=200_000, threshold=50_000):
    """s08 in June 2026: a limit for new results, and a lower one for a summary."""
    new = results(messages[-1:])
    if sum(len(result["content"]) for result in new) > budget:
        new[0]["content"] = new[0]["content"][:2_000] + "(the rest is on disk)"
    if len(json.dumps(messages)) > threshold:
        return summary_alone(SUMMARY)
    return messages


def snip_to_50(messages, most=50):
    """s08: over 50 messages, the first 3 and the newest 47 stay."""
    if len(messages) <= most:
        return messages
    tail = len(messages) - (most - 3)
    tail -= bool(results(messages[tail : tail + 1]))  # with the call that it answers
    note = f"({tail - 3} messages are left out)"
    return [*messages[:3], user_said(note), *messages[tail:]]


def chapter_6():
    """Too much at once"""
    (name,) = stage.write_files(1, 60_000)
    model = scripted(*reads([name] * 5), reply("I give up."))
    stage.naive_loop(model, [user_said("Read it.")], budget_then_threshold)
    lost = [r for r in model.requests if r["messages"] == summary_alone(SUMMARY)]
    times = sum(map(stage.seen, model.requests))
    pages = use("read_file", name), use("read_file", name, offset=1 + 50_000 // 400)
    paged = scripted(*pages, reply("Done."))
    _, acted = ours(paged, "Read it.")
    saw = stage.seen(paged.requests[-1])
    chat, after = [user_said("Hello.")], []
    for _ in range(44):
        chat += [stage.model_said("Yes."), user_said("Go on.")]
        chat, before = snip_to_50(chat), chat
        after += [len(chat)] * (chat is not before)
    script = reads(stage.write_files(44, 160), "Hm.")
    theirs, mine = scripted(*script), scripted(*script, reply("Done."))
    problem = refusal(stage.naive_loop, theirs, [user_said("Go.")], snip_to_50)
    _, cuts = ours(mine, "Go.", max_messages=50)
    say(f"""
        naive: a file of 60,000 characters. s08 accepts results of up to 200,000, but \
summarises over 50,000, so the file is only in the request for the summary.
        damage: read 5 times, summarised {len(lost)} times, seen {times} times.
        ours: read in 2 pages, {len(acted)} summaries, seen {saw} of 2.
        naive: a snip to 50 messages leaves {after[0]}, {after[1]}, {after[2]} ...
        damage: {len(after)} cuts in 44 turns, and each rewrites the cache.
        API: {problem}
        ours: {len(cuts)} cuts in 44 reads, rejected: {len(mine.refused)}.""")


def summary_of_its_own(client, messages, part=slice(80_000)):
    """s06, and v5 in short: a separate request, with part of the history."""
    text = "Summarise this.\n\n" + json.dumps(messages)[part]
    more = {"model": "m", "max_tokens": 2_000, "messages": [user_said(text)]}
    with client.messages.stream(**more) as stream:
        return stream.get_final_message().content[0].text


def pay_and_forget(client, messages):
    """s06 in TypeScript, on its page: it waits for the answer but doesn't use it."""
    summary_of_its_own(client, messages)
    return [user_said("The whole is in transcript_1.jsonl.")]


def summary_alone(summary):
    """s08: one message replaces everything."""
    return [user_said(f"Summary of all before: {summary}")]


def chapter_7():
    """Layer 2: the summary"""
    names, task = stage.write_files(60, 3_280), "Find the file that differs."
    script = [use("read_file", *names[n : n + 10]) for n in range(0, 60, 10)]
    messages = [user_said(task)]
    stage.naive_loop(scripted(*script, reply("None.")), messages)
    parts = json.dumps(messages)[:80_000], json.dumps(messages)[-80_000:]
    head, tail = (sum(f"{name} 0000" in part for name in names) for part in parts)
    first, last = (task in part for part in parts)
    thought = reply(thinking="Well.", stop="max_tokens")
    empty = reply(content=[{"type": "text", "text": ""}])
    model = scripted(thought, empty, reply("A long summary. " * 300))
    problem = refusal(summary_of_its_own, model, messages, error=AttributeError)
    nothing = summary_alone(summary_of_its_own(model, messages))
    before = stub.tokens(messages)
    left = str(pay_and_forget(model, messages)).count("long summary")
    mine = scripted(*script, reply("None."), summaries=[""])
    agent, _ = ours(mine, task, threshold=60_000, keep_recent=100)
    asked, usage = mine.asked[0], mine.usages[mine.bodies.index(mine.asked[0])]
    whole = task in str(asked)
    say(f"""
        {PRICES}
        naive: the first 80,000 characters: {head} of 60 results, the task: {first}.
        naive: or the last 80,000 (newer code of s06): {tail} of 60 results, \
the task: {last}.
        damage: max_tokens=2000 went into thinking: {problem}
        damage: an empty answer: {before:,} tokens become {stub.tokens(nothing)}.
        damage: an unused one (s06 in TypeScript, its page): {bill(model.usages[2:])}; \
{left} of it is kept.
        ours: {stage.seen(asked)} of 60 results, the task: {whole}; {bill([usage])}.
        ours: an empty answer: {len(results(agent.messages))} of 60 results stay.""")


RULE, MORE = "Never touch the tests. Rename apple to pear.", "Rename plum to fig, too."
PARAPHRASES = "apple is renamed, mind the tests", "renaming goes on", "work was done"


def chapter_8():
    """What stays"""
    left = sum(text in PARAPHRASES[-1] for text in (RULE, MORE))
    names, compact = stage.write_files(6, 48_000), use("compact")
    first = use("read_file", *names[:2]), compact, reply("Done.")
    more = use("read_file", *names[2:4]), compact, use("read_file", *names[4:]), compact
    model = scripted(*first, *more, reply("Done."), summaries=PARAPHRASES)
    agent, acted = ours(model, RULE, MORE)
    at = [PARAPHRASES[-1] in str(message) for message in agent.messages].index(True)
    kept = sum(user_said(text) in agent.messages for text in (RULE, MORE))
    read = sum(f"{name} 0000" in str(agent.messages) for name in names)
    say(f"""
        naive: three summaries, each of the one before (scripted here):
        : {PARAPHRASES[0]} > {PARAPHRASES[1]} > {PARAPHRASES[2]}
        damage: {left} of the user's 2 requests are left, and one isn't done yet.
        ours: after {len(acted)} summaries {kept} of 2 survive word for word.
        ours: message {at + 1} is the last summary; around it are {read} of \
{len(names)} files, as they are now.""")


def loop_that_ends_with_compact(client, messages):
    """s08, on its page, and newer code of s06: the tool `compact` ends the turn."""
    while True:
        calls = stage.ask(client, messages)
        if any(call["name"] == "compact" for call in calls):
            messages[:] = summary_alone(SUMMARY)
            return
        messages.append(user_said([stage.run(call) for call in calls]))


def answer_after_the_summary(call):
    """s08: the summary removes the call, then its result is added."""
    return [*summary_alone(SUMMARY), user_said([stage.run(call)])]


def is_too_long(problem):
    """s08 in June 2026: the words by which it recognises the error."""
    return "prompt_too_long" in problem or "too many tokens" in problem


def edited(names):
    return sum("edited" in Path(n).read_text(encoding="utf-8") for n in names)


def chapter_9():
    """Layer 3: on demand"""
    names, focus = stage.write_files(5, 24_000), "which files are still to do"
    compact = use("compact", focus=focus)
    change = {"old_text": "0000", "new_text": "edited"}
    edits = [use("edit_file", name, **change) for name in names]
    script = [use("read_file", *names), *edits[:2], compact, *edits[2:], reply("Done.")]
    loop_that_ends_with_compact(scripted(*script), [user_said("Edit five files.")])
    done, orphan = edited(names), answer_after_the_summary(compact["content"][0])
    small, long = scripted(window=20_000), [user_said("x" * 70_000)]
    problem = refusal(stage.naive_loop, small, long)
    names, model = stage.write_files(5, 24_000), scripted(*script)
    ours(model, "Edit five files.")
    mine = edited(names)
    asked = focus in str(model.asked[0]["messages"][-1])
    script = [*reads(stage.write_files(12, 9_000)), reply("Done.")]
    tight = scripted(*script, window=30_000)
    _, acted = ours(tight, "Read twelve files.")
    read = 12 - len(tight.queue)
    say(f"""
        naive: five files are to be edited; after two the model calls `compact`.
        damage: the loop ends: {done} of 5 are edited.
        naive: and the call gets a result after the summary has removed it.
        API: {rejection(orphan)}
        naive: or it reacts to the API, which says:
        API: {problem}
        damage: is that "prompt_too_long"? {is_too_long(problem)}: the program ends.
        ours: {mine} of 5 are edited; the request for a summary has the focus: {asked}.
        ours: {" and ".join(dict.fromkeys(acted))} acted; {read} of 12 files are read.""")


def save_by_the_second(messages, now):
    """s06 in Python, s08 in June 2026: a file for each second, objects as `str`."""
    path = Path(f"transcript_{int(now)}.jsonl")
    lines = [json.dumps(message, default=str) for message in messages]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def chapter_10():
    """Finding it again"""
    first, second = [user_said("The first task.")] * 9, [user_said("The second.")] * 5
    path, again = (save_by_the_second(m, t) for m, t in ((first, 7.2), (second, 7.9)))
    left = path.read_text(encoding="utf-8").count("first")
    sent = {**stage.SETTINGS, "messages": second}
    with scripted(reply("Done.")).messages.stream(**sent) as stream:
        answer = stage.model_said(stream.get_final_message().content)
    third = save_by_the_second([*second, answer, user_said("Go on.")], 8.0)
    back = [json.loads(line) for line in third.read_text(encoding="utf-8").split("\n")]
    six = [*map(stage.run, use("read_file", *stage.write_files(6, 900))["content"])]
    third = save_by_the_second(s06.micro_compact([user_said(six)]), 9.0)
    whole = stage.seen({"messages": [json.loads(third.read_text(encoding="utf-8"))]})
    names, compact = stage.write_files(4, 48_000), use("compact")
    one, two = use("read_file", *names[:2]), use("read_file", *names[2:])
    model = scripted(one, compact, two, compact, reply("Done."))
    agent, acted = ours(model, "Read four files.")
    files = [*agent.transcript.parent.glob("*.jsonl")]
    text = agent.transcript.read_text(encoding="utf-8")
    kept = sum(f"{name} 0000" in text for name in names)
    mine = program.load(agent.transcript).messages
    say(f"""
        naive: two agents in one folder and second (s06 in Python): {path} and {again}.
        damage: {left} of 9 messages of the first are left.
        naive: layer 1 clears in the list that layer 2 then saves.
        damage: {whole} of 6 results are in the file.
        naive: `default=str` writes {back[-2]["content"][0]}
        API: {rejection(back)}
        ours: {len(acted)} compactions, {len(files)} file{"s" * (len(files) > 1)}; it has {kept} of 4 results.
        ours: the file gives back the agent's messages: {mine == agent.messages}; the API \
accepts it: {not rejection([*mine, user_said("Go on.")])}.""")


# --- Which chapter ---


def main(arguments):
    """Play these chapters, or all; returns 0, or 2 if one doesn't exist."""
    if {"-h", "--help"} & {*arguments}:
        print("usage: naive.py [CHAPTER ...]")
        return 0
    chapters = {name[8:]: f for name, f in globals().items() if "chapter_" in name}
    if wrong := [name for name in arguments if name not in chapters]:
        names = ", ".join(chapters)
        print(f"There is no chapter {wrong[0]}, only {names}.", file=sys.stderr)
        return 2
    for name in arguments or chapters:
        print(f"{name}. {chapters[name].__doc__}")
        with stage.from_scratch():
            chapters[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
