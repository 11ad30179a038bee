"""Take the text of the reply, not its first block."""

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
    text = PROMPT + json.dumps(messages, default=str)[:80000]
    response = client.messages.create(
        model=settings["model"],
        messages=[{"role": "user", "content": text}],
        max_tokens=2000,
    )
    summary = "".join(b.text for b in response.content if b.type == "text")
    return [
        {"role": "user", "content": f"[Compressed]\n\n{summary}"},
        {"role": "assistant", "content": "Understood. Continuing."},
    ]
