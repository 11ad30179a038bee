"""agent.py's own function, which does all of this."""

from pathlib import Path

import agent


def micro_compact(messages: list) -> list:
    def save_text(text: str) -> Path:
        path = Path(f"{len(text)}.txt")
        path.write_text(text)
        return path

    at_least = {"keep_recent": 3, "keep_tokens": 0, "min_savings": 20_000}
    return agent.micro_compact(messages, save_text, **at_least)
