"""Run small.py until each of its three layers has acted.

    python3 tests/lessons/small_run.py

It needs no key, network or package: the model follows a script, and a fake API checks
each request. The model reads 24 files of 9,000 characters one by one, writes six files of
40,000, calls `compact`, reads one more file and answers.
"""

import importlib
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

import small
import stage  # adds the folder of stub to sys.path
from stub import reply


def asks_for_summary(request):
    """Return True if small.py asks for a summary with this request."""
    return request["messages"][-1]["content"] == small.PROMPT


fake_api = partial(
    stage.scripted, asks=asks_for_summary, summaries=[reply("It went well.")]
)


def script():
    """The model's replies."""
    names = stage.write_files(24, 9_000)
    text = "A line of code.\n" * 2_500
    write = {"command": f"cat > new.py <<'END'\n{text}END"}
    return [
        *stage.reads(names),
        *(stage.use("bash", **write) for _ in range(6)),
        stage.use("compact"),
        *stage.reads(names[:1]),
        reply("Done."),
    ]


def watch(name, lines):
    """Make a layer of small.py add a line whenever it shortens the messages."""
    layer = getattr(small, name)

    def act(*arguments):
        messages = arguments[-1]
        before = small.estimate_tokens(messages)
        layer(*arguments)
        after = small.estimate_tokens(messages)
        number = 1 if name == "micro_compact" else 3 - (before > small.THRESHOLD)
        if after < before:
            lines.append(f"layer {number}: {name}, {before:,} -> {after:,} tokens")

    setattr(small, name, act)


def life(lines, **settings):
    """Play the script; returns the client and the number of results on disk."""
    importlib.reload(small)
    vars(small).update(settings, input=lambda _: "y")
    watch("micro_compact", lines)
    watch("auto_compact", lines)
    with stage.from_scratch():
        with redirect_stdout(StringIO()):
            client = fake_api(*script())
            small.agent_loop(client, [small.log("user", "Read them all.")])
        return client, small.TRANSCRIPT.read_text("utf-8").count('"tool_result"')


def main():
    """Print what each layer does, what survives, and what it costs."""
    lines, none = [], {"THRESHOLD": 10**9, "MIN_SAVINGS": 10**9}
    client, saved = life(lines)
    whole, _ = life([], **none)
    first = [request["messages"][0]["content"] for request in client.requests]
    print(*lines, sep="\n")
    print(f"requests: {len(first)}, rejected: {len(client.refused)}")
    print(f"requests with the user's message: {first.count('Read them all.')}")
    print(f"results on disk: {saved} of 32")
    print(f"in all: {stage.bill(client.usages)}")
    print(f"without layers 1 and 2: {stage.bill(whole.usages)}")


if __name__ == "__main__":
    sys.exit(main())
