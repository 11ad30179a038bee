"""agent.py's own function, which does all of this."""

from pathlib import Path

import agent


def micro_compact(messages: list) -> list:
    def save_text(text: str) -> Path:
        path = Path(f"{len(text)}.txt")
        path.write_text(text)
        return path

    return agent.micro_compact(messages, save_text, keep_recent=3, keep_tokens=0)
