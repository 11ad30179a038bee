"""What small.py still gets wrong, each shown by a run, and what of agent.py mends it.

    python3 tests/lessons/faults.py            all
    python3 tests/lessons/faults.py resume     those whose lines have this word

They stand under the chapter that is about them. No key, no network, no package: small.py
works against the stand-in for the API.
"""

import importlib
import json
import sys
import textwrap
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import naive  # which finds the stand-in
import small
import stub
from naive import reads, results, use, write_files
from stub import reply

LONG = "A long answer. " * 2_000


class Model(naive.Model):
    """The stand-in; it gives small.py the summaries that it asks for."""

    def take(self, request):
        if request["messages"][-1]["content"] == small.PROMPT:
            self.asked.append(request)
            self.queue.appendleft(next(self.summaries))
        return stub.StubClient.take(self, request)


def live(*replies, typed=("Go.",), no_summary=None, **limits):
    """The client, the messages, and what stopped its turns, of a life of small.py."""
    summaries = [no_summary or reply("It went well.")]
    client = Model(*replies, summaries=summaries, **limits)
    messages, ends = [], []
    for text in typed:
        try:
            messages.append(small.log("user", text))
            small.agent_loop(client, messages)
        except (stub.Refused, OSError, ValueError, KeyboardInterrupt) as error:
            ends.append(str(error))
    return client, messages, ends


def yes(holds):
    """A truth in a word."""
    return "yes" if holds else "no"


# --- One function for each fault: it returns what is seen. Its docstring has the fault,
# --- what of agent.py mends it, and the chapter


def paste():
    """A paste is larger than the window | tool_result_budget, preview | 6"""
    _, _, ends = live(typed=["x" * 700_000, "Go on."])
    return f"{ends[0]}; at the next prompt again: {yes('too long' in ends[1])}"


def fixed_threshold():
    """T is fixed, the window is not | configured_limits, auto_compact_threshold | 4"""
    _, _, ends = live(*reads(write_files(20, 9_000)), window=16_000)
    return f"in a window of 16,000 {ends[0]}"


def no_summaries():
    """A model never summarises | auto_compact, compact_without_model | 7"""
    answers, typed = [reply(LONG)] * 20, ["Go on."] * 20
    client, _, _ = live(*answers, typed=typed, no_summary=reply(stop="refusal"))
    return f"{len(client.asked)} of {len(client.requests)} requests ask for one in vain"


def long_words():
    """The person's words are never shortened | fit_words, rebuild | 8"""
    client, _, _ = live(*[reply("Yes.")] * 9, typed=["x" * 40_000] * 9)
    return (
        f"9 pastes of 40,000 characters: {len(client.asked)} of "
        f"{len(client.requests)} requests ask for a summary, and none makes room"
    )


def open_request():
    """What is done and what is open look alike | in_progress, rebuild | 8"""
    compact = use("compact", focus="names"), reply("Done.")
    client, _, _ = live(reply("Done."), *compact, typed=["Write a.py.", "Now b.py."])
    last = client.requests[-1]["messages"]
    heads = [m["content"] if type(m["content"]) is str else "(summary)" for m in last]
    return f"after a summary the request is: {' | '.join(heads)}"


def files():
    """Files, plans, skills do not come back | still_needed, restore_recent_files | 8"""
    names = write_files(5, 9_000)
    client, _, _ = live(use("read_file", *names), use("compact"), reply("Done."))
    back = sum(name in str(client.requests[-1]["messages"]) for name in names)
    return f"of 5 files that were read {back} are there after a summary"


def cut_output():
    """The rest of a long output is nowhere | tool_result_budget, preview | 6"""
    _, messages, _ = live(use("bash", command="seq 20000"), reply("Done."))
    kept = "19999" in small.TRANSCRIPT.read_text()
    return f"{results(messages)[0]['content'][-24:].strip()}; the rest is on disk: {yes(kept)}"


def no_path():
    """A placeholder has no path | placeholder, save_result | 5"""
    files = write_files(16, 9_000)
    script = [use("bash", command=f"cat {name}") for name in files]
    client, _, _ = live(*script, reply("Done."))
    old = results(client.requests[-1]["messages"])[0]["content"]
    return f"what a command printed is now {old}"


def no_thinking():
    """Thinking is lost between two calls | drop_thinking | 3"""
    names = write_files(3, 160)
    client, _, _ = live(*reads(names, thinking="Hm."), reply("Done.", thinking="Hm."))
    sent = json.dumps(client.requests[-1]["messages"]).count('"thinking"')
    return f"of 3 thoughts {sent} are in the last request"


def japanese():
    """Japanese is escaped, and so counted 1.6 times | context_tokens | 4"""
    messages = [{"role": "user", "content": "文脈を圧縮する" * 500}]
    counted = stub.count("", [], messages)
    return f"{small.estimate_tokens(messages):,} tokens; the API counts {counted:,}"


def passing_error():
    """An error that would pass ends the turn | ask | reference"""
    client, _, ends = live(ConnectionError("the connection broke"), reply("Done."))
    return f"{ends[0]}: the turn is over after {len(client.requests)} request"


def stopped_call():
    """What Ctrl-C stops is forgotten | run_tools, close_calls | none"""

    def half_done(name, given):
        Path("half.txt").touch()
        raise KeyboardInterrupt

    small.run_tool = half_done
    client, _, _ = live(use("bash"), reply("Done."), typed=["Go.", "And?"])
    told = "bash" in str(client.requests[-1]["messages"])
    there = yes(Path("half.txt").exists())
    return f"half.txt was written: {there}; the model knows of it: {yes(told)}"


def surrogate():
    """A lone surrogate cannot be sent | to_bytes | none"""
    _, _, ends = live(reply("Done."), typed=["caf\udce9"])
    return ends[0]


def cut_answer():
    """A cut answer passes for whole | nudge | none"""
    client, _, _ = live(reply("The answer is", stop="max_tokens"))
    return f'"The answer is" ends the turn, after {len(client.requests)} request'


def refusal():
    """What the model refused stays | drop_refused | none"""
    client, _, _ = live(reply(stop="refusal"), reply("No."), typed=["(bad)", "Go."])
    return f"it is in the next request: {yes('(bad)' in str(client.requests[1]))}"


def same_id():
    """A gateway gives an id twice | make_fit | none"""
    call = {"type": "tool_use", "name": "read_file", "input": {}}
    twice = [reply(content=[{**call, "id": "functions.read:0"}], stop="tool_use")] * 2
    _, _, ends = live(*twice, typed=["Go.", "Go on."])
    return f"{ends[0]}; at the next prompt again: {yes(len(ends) == 2)}"


def no_pages():
    """read_file has no pages | read_file | reference"""
    name = write_files(1, 100_000)
    _, messages, _ = live(use("read_file", *name), use("read_file", *name), reply("."))
    first, second = (result["content"] for result in results(messages))
    same = yes(first == second)
    return f"a second read shows the same 40,000 characters: {same}"


def secrets():
    """read_file sends .env | inside, read_file | reference"""
    Path(".env").write_text("KEY=very-secret")
    client, _, _ = live(use("read_file", ".env"), reply("Done."))
    return f"the key is in the request: {yes('very-secret' in str(client.requests[1]))}"


def no_resume():
    """A second start knows nothing of the first | load, resume | 10"""
    live(reply("Done."), typed=["Remember 42."])
    importlib.reload(small)
    client, _, _ = live(reply("What?"), typed=["Which number?"])
    return f"it sends {len(client.requests[0]['messages'])} message"


FAULTS = [
    no_thinking,
    fixed_threshold,
    japanese,
    no_path,
    paste,
    cut_output,
    no_summaries,
    long_words,
    open_request,
    files,
    no_resume,
    passing_error,
    no_pages,
    secrets,
    stopped_call,
    surrogate,
    cut_answer,
    refusal,
    same_id,
]
PLACES = {"reference": "The Reference", "none": "In no chapter; agent.py tells of them"}


def shown(fault) -> str:
    """A fault, what a run shows of it, and what mends it, in lines of 79 columns."""
    title, mended, _ = fault.__doc__.split(" | ")
    with naive.from_scratch():
        importlib.reload(small)
        small.SYSTEM, small.input = "You write code.", lambda _: "y"
        with redirect_stdout(StringIO()):
            seen = fault()
    lines = [("seen", seen), ("mended", f"by {mended.replace(', ', ' and ')}")]
    indent = {"subsequent_indent": " " * 12, "break_on_hyphens": False}
    wrapped = (
        textwrap.fill(f"    {who:<7} {what}", 79, **indent) for who, what in lines
    )
    return "\n".join([f"  {title}", *wrapped])


def place(fault) -> str:
    """Where a fault is told of: a chapter, or another part of the page."""
    _, _, chapter = fault.__doc__.split(" | ")
    return PLACES.get(chapter, f"Chapter {chapter}")


def main(words) -> int:
    """Show the faults that have these words; 2 where there is none."""
    texts = [(place(fault), shown(fault)) for fault in FAULTS]
    chosen = [one for one in texts if all(word in one[1] for word in words)]
    if not chosen:
        print(f"Nothing has {' and '.join(words)}.")
        return 2
    many = f"{len(chosen)} of {len(texts)} faults of small.py"
    print(f"{many}, each with what of agent.py mends it")
    for where, some in groupby(chosen, key=itemgetter(0)):
        print(f"\n{where}", *(text for _, text in some), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
