"""Show what small.py still gets wrong, and which functions of agent.py fix it.

    python3 tests/lessons/faults.py            all faults
    python3 tests/lessons/faults.py resume     the faults whose lines have this word
    python3 tests/lessons/faults.py --mine FILE [CHAPTER or NAME ...]

They are sorted by chapter. Each one is shown by a run of small.py against a fake API,
without a key, network or package. With --mine, it's an agent of your own that is run;
see own_faults.py.
"""

import argparse
import importlib
import json
import sys
import textwrap
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import own_faults
import small
import stage  # adds the folder of stub to sys.path
import stub
from stage import reads, results, use, write_files
from stub import reply

LONG = "A long answer. " * 2_000


class Model(stage.Model):
    """A fake API that gives small.py the summaries it asks for."""

    def take(self, request):
        if request["messages"][-1]["content"] == small.PROMPT:
            self.asked.append(request)
            self.queue.appendleft(next(self.summaries))
        return stub.StubClient.take(self, request)


def live(*replies, typed=("Go.",), no_summary=None, **limits):
    """Run small.py; returns the client, the messages and the errors that ended turns."""
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
    """A condition as a word."""
    return "yes" if holds else "no"


# --- One function for each fault: it returns what a run shows. Its docstring has the
# --- fault, the functions of agent.py that fix it, and the chapter.


def paste():
    """A paste can be larger than the window | tool_result_budget, preview | 6"""
    _, _, ends = live(typed=["x" * 700_000, "Go on."])
    return f"{ends[0]}; again at the next prompt: {yes('too long' in ends[1])}"


def fixed_threshold():
    """The threshold ignores the window | configured_limits, auto_compact_threshold | 4"""
    _, _, ends = live(*reads(write_files(20, 9_000)), window=16_000)
    return f"in a window of 16,000: {ends[0]}"


def no_summaries():
    """A model that never summarises is asked again and again | auto_compact, compact_without_model | 7"""
    answers, typed = [reply(LONG)] * 20, ["Go on."] * 20
    client, _, _ = live(*answers, typed=typed, no_summary=reply(stop="refusal"))
    return f"{len(client.asked)} of {len(client.requests)} requests ask for a summary, for nothing"


def long_words():
    """User messages are never shortened | fit_typed, rebuild | 8"""
    client, _, _ = live(*[reply("Yes.")] * 9, typed=["x" * 40_000] * 9)
    return (
        f"9 pastes of 40,000 characters: {len(client.asked)} of "
        f"{len(client.requests)} requests ask for a summary, and none makes room"
    )


def open_request():
    """Finished and unfinished requests look alike | in_progress, rebuild | 8"""
    compact = use("compact", focus="names"), reply("Done.")
    client, _, _ = live(reply("Done."), *compact, typed=["Write a.py.", "Now b.py."])
    last = client.requests[-1]["messages"]
    heads = [m["content"] if type(m["content"]) is str else "(summary)" for m in last]
    return f"after a summary the request is: {' | '.join(heads)}"


def files():
    """Files, plans and skills are lost after a summary | still_needed, restore_recent_files | 8"""
    names = write_files(5, 9_000)
    client, _, _ = live(use("read_file", *names), use("compact"), reply("Done."))
    back = sum(name in str(client.requests[-1]["messages"]) for name in names)
    return f"{back} of 5 files that were read are there after a summary"


def cut_output():
    """The rest of a long output is not saved | tool_result_budget, preview | 6"""
    _, messages, _ = live(use("bash", command="seq 20000"), reply("Done."))
    kept = "19999" in small.TRANSCRIPT.read_text()
    return f"{results(messages)[0]['content'][-24:].strip()}; the rest is on disk: {yes(kept)}"


def no_path():
    """A placeholder has no path | micro_compact, save_result | 5"""
    files = write_files(16, 9_000)
    script = [use("bash", command=f"cat {name}") for name in files]
    client, _, _ = live(*script, reply("Done."))
    old = results(client.requests[-1]["messages"])[0]["content"]
    return f"the output of a command is now {old}"


def no_thinking():
    """Thinking is lost between calls | drop_thinking | 3"""
    names = write_files(3, 160)
    client, _, _ = live(*reads(names, thinking="Hm."), reply("Done.", thinking="Hm."))
    sent = json.dumps(client.requests[-1]["messages"]).count('"thinking"')
    return f"{sent} of 3 thoughts are in the last request"


def japanese():
    """Japanese is counted as bytes / 4, 1.25 times too low | context_tokens | 4"""
    messages = [{"role": "user", "content": "文脈を圧縮する" * 500}]
    counted = stub.count("", [], messages)
    return f"{small.estimate_tokens(messages):,} tokens; the API counts {counted:,}"


def passing_error():
    """A temporary error ends the turn | ask | reference"""
    client, _, ends = live(ConnectionError("the connection broke"), reply("Done."))
    return f"{ends[0]}: the turn is over after {len(client.requests)} request"


def stopped_call():
    """The model never hears of a call that Ctrl-C stopped | run_tools, close_calls | none"""

    def half_done(name, given):
        Path("half.txt").touch()
        raise KeyboardInterrupt

    small.run_tool = half_done
    client, _, _ = live(use("bash"), reply("Done."), typed=["Go.", "And?"])
    told = "bash" in str(client.requests[-1]["messages"])
    there = yes(Path("half.txt").exists())
    return f"half.txt was written: {there}; the model knows: {yes(told)}"


def surrogate():
    """A lone surrogate cannot be sent | to_bytes | none"""
    _, _, ends = live(reply("Done."), typed=["caf\udce9"])
    return ends[0]


def cut_answer():
    """A truncated answer counts as complete | nudge | none"""
    client, _, _ = live(reply("The answer is", stop="max_tokens"))
    return f'"The answer is" ends the turn, after {len(client.requests)} request'


def refusal():
    """A prompt that the model declined stays | drop_declined | none"""
    client, _, _ = live(reply(stop="refusal"), reply("No."), typed=["(bad)", "Go."])
    return f"it is in the next request: {yes('(bad)' in str(client.requests[1]))}"


def same_id():
    """A gateway can use an id twice | sanitize_calls | 3"""
    call = {"type": "tool_use", "name": "read_file", "input": {}}
    twice = [reply(content=[{**call, "id": "functions.read:0"}], stop="tool_use")] * 2
    _, _, ends = live(*twice, typed=["Go.", "Go on."])
    return f"{ends[0]}; again at the next prompt: {yes(len(ends) == 2)}"


def no_pages():
    """read_file has no pages | read_file | reference"""
    name = write_files(1, 100_000)
    _, messages, _ = live(use("read_file", *name), use("read_file", *name), reply("."))
    first, second = (result["content"] for result in results(messages))
    same = yes(first == second)
    return f"a second read shows the same 40,000 characters: {same}"


def secrets():
    """read_file reads .env | inside, read_file | reference"""
    Path(".env").write_text("KEY=very-secret")
    client, _, _ = live(use("read_file", ".env"), reply("Done."))
    return f"the key is in the request: {yes('very-secret' in str(client.requests[1]))}"


def no_resume():
    """A conversation cannot be resumed | load, resume | 10"""
    live(reply("Done."), typed=["Remember 42."])
    importlib.reload(small)
    client, _, _ = live(reply("What?"), typed=["Which number?"])
    return f"the second start sends {len(client.requests[0]['messages'])} message"


FAULTS = [
    no_thinking,
    same_id,
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
]
PLACES = {"reference": "The Reference", "none": "In no chapter, only in agent.py"}


def shown(fault) -> str:
    """Play a fault; returns its title, its effect and its fix, 79 columns wide."""
    title, fix, _ = fault.__doc__.split(" | ")
    with stage.from_scratch():
        importlib.reload(small)
        small.SYSTEM, small.input = "You write code.", lambda _: "y"
        with redirect_stdout(StringIO()):
            seen = fault()
    lines = [("seen", seen), ("fixed", f"by {fix.replace(', ', ' and ')}")]
    indent = {"subsequent_indent": " " * 12, "break_on_hyphens": False}
    wrapped = (
        textwrap.fill(f"    {who:<7} {what}", 79, **indent) for who, what in lines
    )
    return "\n".join([f"  {title}", *wrapped])


def place(fault) -> str:
    """The part of the page that explains a fault."""
    _, _, chapter = fault.__doc__.split(" | ")
    return PLACES.get(chapter, f"Chapter {chapter}")


def main(argv) -> int:
    """Show the faults whose lines have these words; returns 2 if there are none."""
    parser = argparse.ArgumentParser(
        description="Show what small.py, or an agent of your own, gets wrong."
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="words to look for")
    mine = "play the faults on your own agent; then a WORD is a chapter or a name"
    parser.add_argument("--mine", metavar="FILE", help=mine)
    given = parser.parse_args(argv)
    words = given.words
    if given.mine:
        return own_faults.main(given.mine, words, FAULTS, place)
    texts = [(place(fault), shown(fault)) for fault in FAULTS]
    chosen = [one for one in texts if all(word in one[1] for word in words)]
    if not chosen:
        print(f"No fault mentions {' and '.join(words)}.")
        return 2
    many = f"{len(chosen)} of {len(texts)} faults of small.py"
    print(f"{many}, each with the functions of agent.py that fix it")
    for where, some in groupby(chosen, key=itemgetter(0)):
        print(f"\n{where}", *(text for _, text in some), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
