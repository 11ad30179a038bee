"""Keep the user's messages."""

import json
import time
from pathlib import Path

TRANSCRIPT_DIR = Path(".transcripts")
PROMPT = "Summarize this conversation for continuity..."


def auto_compact(client, settings: dict, messages: list) -> list:
    TRANSCRIPT_DIR.mkdir(exist_ok=True)
    transcript_path = TRANSCRIPT_DIR / f"transcript_{int(time.time())}.jsonl"
    with open(transcript_path, "w") as f:
        f.writelines(json.dumps(msg, default=str) + "\n" for msg in messages)
    response = client.messages.create(
        **settings,
        messages=[*messages, {"role": "user", "content": PROMPT}],
    )
    summary = "".join(b.text for b in response.content if b.type == "text")
    if response.stop_reason != "end_turn" or not summary.strip():
        return messages
    block = {"type": "text", "text": f"[Compressed]\n\n{summary}"}
    return [
        *[msg for msg in messages if isinstance(msg["content"], str)],
        {"role": "user", "content": [block]},
    ]
