"""Run first.py on a question it can answer, and on one that doesn't fit the window.

    python3 tests/lessons/first_run.py

It needs no key, network or package: the model follows a script, and a fake API checks
each request and counts its tokens.
"""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import stage  # adds the folder of stub to sys.path
import stub
from stub import reply

FIRST = Path(__file__).resolve().with_name("first.py")


class SizeTeller(stub.StubClient):
    """A fake API that prints the size of each request before it checks it."""

    def answer(self, request):
        tokens = stub.count("", request["tools"], request["messages"])
        print(f"request {len(self.requests) + 1}: {tokens:,} tokens")
        return super().answer(request)


def play(question, *replies):
    """Start first.py and ask it a question; returns the fake API."""
    print(f"> {question}")
    client = SizeTeller(*replies)
    sdk = SimpleNamespace(Anthropic=lambda: client)
    with patch.dict(sys.modules, anthropic=sdk):
        try:
            runpy.run_path(str(FIRST), {"input": lambda _: question})
        except stub.Refused as error:
            print(f"rejected by the API: {error}")
    return client


def main():
    """Ask a question that fits the window, and one that doesn't."""
    with stage.from_scratch():
        names = stage.write_files(24, 48_000)
        read = stage.use("read_file", names[0])
        play("How does file_01.txt begin?", read, reply("With its own name."))
        print()
        client = play("Compare all 24 files.", *stage.reads(names), reply("Alike."))
        read = stage.results(client.requests[-1]["messages"])
        print(f"{len(read)} of 24 files were read.")


if __name__ == "__main__":
    sys.exit(main())
