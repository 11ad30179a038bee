#!/usr/bin/env python3
"""Continue a session of Claude Code with agent.py.

    python3 tests/measure/adopt.py ~/.claude/projects/FOLDER/SESSION.jsonl
    agent --resume

Run both in the folder that the session is about. It writes the session, without its
thinking and its compactions, as a new transcript into .transcripts there, so /context
and /compact can act on it. A transcript of agent.py can be given as well; without a
file, it's a session whose words are made up.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

from recorded import Unusable, read_messages
from watch import SHAPE

import agent as program


def main(argv: list[str] | None = None) -> int:
    """Write the transcript, say where it is, and return the exit status."""
    about, _, epilog = (__doc__ or "").partition("\n\n")
    raw: Any = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=about, epilog=epilog, formatter_class=raw
    )
    text = "a session of Claude Code, or a transcript of agent.py"
    parser.add_argument("file", nargs="?", type=Path, default=SHAPE, help=text)
    options = parser.parse_args(argv)
    agent = program.Agent()
    try:
        found = read_messages(options.file)
        for message in found:
            entry = {"role": message["role"], "content": message["content"]}
            program.commit(agent, entry)
    except (Unusable, OSError, program.AgentError) as error:
        print(error, file=sys.stderr)
        return 1
    count = program.plural(len(agent.messages), "message")
    tokens = program.estimate_tokens(agent.messages)
    print(f"{agent.transcript}: {count}, about {tokens:,} tokens.")
    print("agent --resume continues it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
