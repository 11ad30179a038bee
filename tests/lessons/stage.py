"""The stage on which the lesson programs play: a scripted model, files, and prices.

Importing it adds the folder of the stand-in for the API to sys.path. It doesn't load
`agent.py`, so a program that needs nothing else works whatever state that is in.
"""

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))

import stub
from stub import StubClient, reply

NAMES = {}  # the tool's name for the id of each call
SUMMARY = "The files were read."


def scripted(*replies, summaries=(SUMMARY,), **options):
    """A fake API that gives our agent its summaries: replies, or texts for its tags."""
    tagged = "<summary>{}</summary>".format
    written = (reply(tagged(s)) if type(s) is str else s for s in summaries)
    own = {"asks": stub.asks_for_summary, "in_parts": False, "summaries": written}
    return StubClient(*replies, **own | options)


@contextmanager
def from_scratch():
    """Work in an empty folder with ids from 1, so that no run depends on another."""
    stub.tool_ids = stub.ids()
    back = os.getcwd()
    # a command of an interrupted program may still be writing
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(back)


def write_files(number, characters):
    """Write this many text files, in lines of up to 400 characters; returns the names."""
    names = [f"file_{n:02}.txt" for n in range(1, number + 1)]
    for name in names:
        starts = (f"{name} {n:04} " for n in range(1 + characters // 400))
        lines = [start.ljust(399, "x") for start in starts]
        Path(name).write_text("\n".join(lines)[: characters - 1] + "\n")
    return names


def use(tool, *names, thinking=None, **more):
    """A reply that calls a tool once, or once for each of these files."""
    calls = [(tool, {"path": name, **more}) for name in names] or [(tool, more)]
    return reply(calls=calls, thinking=thinking)


def refusal(step, *arguments, error=stub.Refused):
    """The API's error when this is called, "" if it accepts every request."""
    try:
        step(*arguments)
    except error as raised:
        return str(raised)
    return ""


def reads(names, thinking=None):
    """Replies that read these files one by one."""
    return [use("read_file", name, thinking=thinking) for name in names]


def user_said(content):
    return {"role": "user", "content": content}


def model_said(content):
    return {"role": "assistant", "content": content}


def settings(*tools):
    """A naive agent's settings; they ask for the prompt cache, though no tutorial does."""
    named = [{"name": name, "input_schema": {}} for name in tools]
    fixed = {"model": "m", "max_tokens": 16_000, "system": "You write code."}
    return {**fixed, "tools": named, "cache_control": {"type": "ephemeral"}}


SETTINGS = settings("read_file", "edit_file", "compact")


def ask(client, messages, settings=SETTINGS):
    """Ask the model; returns the calls in its reply."""
    answer = client.answer({**settings, "messages": messages})
    messages.append(model_said(answer["content"]))
    return stub.calls_in(answer)


def naive_loop(client, messages, before=list, settings=SETTINGS):
    """The loop of the tutorials, with a layer that acts `before` each request."""
    while True:
        messages[:] = before(messages)
        if not (calls := ask(client, messages, settings)):
            return
        messages.append(user_said([run(call) for call in calls]))


def run(call):
    """Run one of the naive agent's tools; returns the result block.

    A command is a test run, whose output cannot be read again.
    """
    given, text = call["input"], "done"
    NAMES[call["id"]] = call["name"]
    if call["name"] == "bash":
        text = "FAILED test_one: 1 is not 2\n" * 320
    if "path" in given:
        text = Path(given["path"]).read_text(encoding="utf-8")
    if "new_text" in given:
        text = text.replace(given["old_text"], given["new_text"])
        Path(given["path"]).write_text(text, encoding="utf-8")
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def results(messages):
    """The tool results, oldest first."""
    lists = [m["content"] for m in messages if type(m["content"]) is list]
    return [b for content in lists for b in content if b["type"] == "tool_result"]


def seen(sent):
    """The number of results in a request that are more than a placeholder."""
    return sum(len(result["content"]) > 100 for result in results(sent["messages"]))


def bill(usages):
    """The share of the input that came from the prompt cache, and the price of all."""
    new, written, known = map(sum, zip(*usages))
    share = known / (new + written + known)
    return f"{share:.0%} from the cache, price {round(price(usages), -3):,.0f}"


def price(usages):
    """The price of the input, in full-price input tokens."""
    new, written, known = map(sum, zip(*usages))
    return new + stub.CACHE_WRITE * written + stub.CACHE_READ * known
