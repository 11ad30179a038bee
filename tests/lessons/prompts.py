"""The prompts with which the tutorials end, played by a scripted reader.

    python3 tests/lessons/prompts.py         all
    python3 tests/lessons/prompts.py s06     those of s06, in Python and in TypeScript

No key, no network, no package. Each prompt is given to the rule of its tutorial, with its
numbers, and to agent.py as it comes. The reader does not think: if it did, as models do
today, the third request of s06 would be refused (naive.py 5).
"""

import json
import sys
from collections import Counter

import naive  # which finds the stand-in
import stub
from naive import Model, ask, characters_by_4, person, reads, results, say, use
from stub import reply

# --- What the model does at a prompt ---


def files(number, size):
    """So many files of so many characters are read, one by one."""
    return [*reads(naive.write_files(number, size)), reply("All of them are read.")]


def compact():
    """The tool `compact` is called."""
    return [use("compact", focus="the names"), reply("It is compact.")]


def answer():
    """A few lines are answered."""
    return [reply("It is as you say. " * 20)]


# --- The rules of the tutorials, before each request; `did` counts what they do ---


def s06(messages, did):
    """All results but three are cleared; over 50,000 tokens all is summarised."""
    before = placeholders(messages)
    naive.micro_compact_every_turn(messages, naive.NAMES)
    did["clearings"] += placeholders(messages) > before
    return over(messages, 50_000, did)


def v5(messages, did):
    """Results of over 1,000 tokens where that frees 20,000; a summary over 170,616."""
    old = [r for r in results(messages)[:-3] if len(r["content"]) > 4_000]
    if sum(len(result["content"]) for result in old) // 4 >= 20_000:
        did["clearings"] += 1
        for result in old:
            result["content"] = "[Old tool result content cleared]"
    return over(messages, naive.v5_threshold(200_000), did)


def java(messages, did):
    """Nothing within a turn: the client that it uses hides the loop."""
    return messages


def s08(messages, did):
    """Over 200,000 characters to disk, over 50 messages a snip, then as s06."""
    new = results(messages[-1:])
    did["saved"] += sum(len(result["content"]) for result in new) > 200_000
    did["snips"] += len(messages) > 50
    return s06(naive.snip_to_50(messages), did)


def over(messages, threshold, did):
    """Over the threshold a summary in place of the messages."""
    did["most"] = max(did["most"], characters_by_4(json.dumps(messages)))
    if did["most"] <= threshold:
        return messages
    did["summaries"] += 1
    return naive.summary_alone(naive.SUMMARY)


def placeholders(messages):
    """How many results are a placeholder."""
    return sum(r["content"].startswith("[Previous") for r in results(messages))


# --- The prompts ---

READ = "Read every Python file in the agents/ directory one by one"
JAVA = READ.replace("Python", "Java").replace("agents", "src")
MORE = "Keep reading files until compression triggers automatically"
TOOL = "Use the compact tool to manually compress the conversation"
THREE = "Read the file README.md, then read code.py, then read ..."
EVERY = "Read every file in s08_context_compact/"

# of each tutorial: the prompts, how often each is typed, what the model does, and why
# what the tutorial promises comes, or does not come
PROMPTS = {
    "s06": [
        (READ, 1, lambda: files(12, 9_000), "agent.py has room for all of them."),
        (MORE, 1, lambda: files(53, 9_000), "With 3 results left T never comes."),
        (
            TOOL,
            1,
            compact,
            'It ends in "Understood. Continuing.": no turn of the user.',
        ),
    ],
    "v5": [("(60 calls)", 1, lambda: files(60, 12_000), "Both clear much at once.")],
    "java": [
        (JAVA, 1, lambda: files(60, 12_000), "A turn can be longer than the window."),
        (MORE, 1, answer, "It counts what was said, and no result of a tool."),
        (
            TOOL,
            1,
            compact,
            "Theirs comes after the turn; ours waits until 20,000 tokens are new.",
        ),
    ],
    "s08": [
        (THREE, 1, lambda: files(3, 15_000), "Three results are never cleared."),
        (EVERY, 1, lambda: files(8, 15_000), "Read one by one, none is over 200,000."),
        ("(20 short turns)", 20, answer, "Short turns are small."),
    ],
}
RULES = {"s06": s06, "v5": v5, "java": java, "s08": s08}


def turn(client, messages, rule, did):
    """The loop of a tutorial for one prompt; s06 goes on after `compact`."""
    while True:
        messages[:] = rule(messages, did)
        did["requests"] += 1
        calls = ask(client, messages)
        messages += [person([naive.run(call) for call in calls])] if calls else []
        if any(call["name"] == "compact" for call in calls):
            did["summaries"] += 1
            if rule is s06:
                messages[:] = naive.understood(naive.SUMMARY)
        if not calls:
            return


def theirs(name, prompts):
    """What the tutorial's rule did at each of the prompts, in words."""
    messages = []
    for prompt, times, work, _ in prompts:
        did, problem, before = Counter(), "", len(messages)
        for _ in range(times):
            history = [] if name == "java" else messages
            history.append(person(prompt))
            try:
                turn(Model(*work()), history, RULES[name], did)
            except stub.Refused as error:
                problem = f"API: {error}"
                del history[before:]
        yield problem or counted(did)


def ours(prompts, **limits):
    """What agent.py did at each of the prompts, in words; `limits` as a user sets them."""
    acted, requests, script, typed = Counter(), 0, [], []
    for prompt, times, work, _ in prompts:
        script += [one for _ in range(times) for one in work()]
        typed += [prompt] * times
        model = Model(*script)
        _, names = naive.ours(model, *typed, **limits)
        now = Counter(names) - acted
        did = {"clearings": now["micro_compact"], "requests": len(model.requests)}
        did["summaries"] = now["auto_compact"] + now["compact"]
        did["requests"] -= requests
        acted, requests = acted + now, len(model.requests)
        yield counted(did)


def counted(did):
    """What was done, in words."""
    rare = [what for what in ("saved", "snips", "most") if did.get(what)]
    parts = ["requests", "clearings", "summaries", *rare]
    words = ", ".join(f"{part} {did[part]:,}" for part in parts)
    return words.replace("most", "most tokens")


def play(name):
    """Play the prompts of a tutorial, in a folder of their own."""
    print(f"{name}: {RULES[name].__doc__}")
    with naive.from_scratch():
        prompts = PROMPTS[name]
        for row, they, we in zip(prompts, theirs(name, prompts), ours(prompts)):
            say(f"prompt: {row[0]}\n{name}: {they}\nours: {we}\nwhy: {row[3]}")
        if name == "s06":
            *_, last = ours(prompts[:2], threshold=50_000, keep_recent=1_000)
            say(f"ours: the second with THRESHOLD=50000 KEEP_RECENT=1000: {last}")


def main(names):
    """Play these tutorials, all if none; returns 0, or 2 where there is no such one."""
    if wrong := [name for name in names if name not in PROMPTS]:
        print(f"No tutorial {wrong[0]}, only {', '.join(PROMPTS)}.", file=sys.stderr)
        return 2
    for name in names or PROMPTS:
        play(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
