"""s06 of learn-claude-code, in our own short version: three layers, as it teaches them.

Its tools ask before a command runs; s06's don't. No request of s06 asks for a prompt
cache, and neither does this one.
"""

import json
import subprocess
import time
from pathlib import Path

from anthropic import Anthropic

MODEL = "claude-sonnet-5-5"
THRESHOLD = 50_000  # tokens
KEEP_RECENT = 3  # results
TRANSCRIPT_DIR = Path(".transcripts")
SYSTEM = f"You are a coding agent at {Path.cwd()}. Use tools to solve tasks."
TEXT = {"type": "string"}
INPUTS = {"bash": {"command": TEXT}, "read_file": {"path": TEXT}, "compact": {}}
TOOLS = [
    {
        "name": name,
        "description": name.replace("_", " "),
        "input_schema": {"type": "object", "properties": given, "required": [*given]},
    }
    for name, given in INPUTS.items()
]
client = Anthropic()


def estimate_tokens(messages):
    return len(str(messages)) // 4


def micro_compact(messages):
    """Layer 1, before each request: clear all results but the newest three."""
    names, results = {}, []
    for message in messages:
        for block in message["content"] if type(message["content"]) is list else []:
            if type(block) is dict:
                results.append(block)
            elif block.type == "tool_use":
                names[block.id] = block.name
    for result in results[:-KEEP_RECENT]:
        if len(result["content"]) > 100:
            name = names.get(result["tool_use_id"], "unknown")
            result["content"] = f"[Previous: used {name}]"


def auto_compact(messages):
    """Layer 2, over the threshold, and layer 3: save all, and go on from a summary."""
    TRANSCRIPT_DIR.mkdir(exist_ok=True)
    path = TRANSCRIPT_DIR / f"transcript_{int(time.time())}.jsonl"
    lines = [json.dumps(message, default=str) for message in messages]
    path.write_text("\n".join(lines))
    history = json.dumps(messages, default=str)[:80_000]
    ask = {"role": "user", "content": f"Summarize this conversation: {history}"}
    reply = client.messages.create(model=MODEL, messages=[ask], max_tokens=2_000)
    summary = reply.content[0].text
    messages[:] = [
        {"role": "user", "content": f"[Compressed]\n\n{summary}"},
        {"role": "assistant", "content": "Understood. Continuing."},
    ]


def run_tool(name, given):
    if name == "compact":
        return "Compressing."
    if name == "read_file":
        return Path(given["path"]).read_text()[:50_000]
    if input(f"Run {given['command'][:60]}? (y/n) ") != "y":
        return "The user said no."
    done = subprocess.run(
        given["command"], shell=True, capture_output=True, text=True, timeout=120
    )
    return (done.stdout + done.stderr)[:50_000] or "(no output)"


def agent_loop(messages):
    while True:
        micro_compact(messages)
        if estimate_tokens(messages) > THRESHOLD:
            auto_compact(messages)
        fixed = {"model": MODEL, "system": SYSTEM, "tools": TOOLS, "max_tokens": 8_000}
        reply = client.messages.create(messages=messages, **fixed)
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return
        results, manual_compact = [], False
        for block in reply.content:
            if block.type == "tool_use":
                manual_compact = manual_compact or block.name == "compact"
                try:
                    text = run_tool(block.name, block.input)
                except Exception as error:  # noqa: BLE001
                    text = f"Error: {error}"
                result = {"type": "tool_result", "tool_use_id": block.id}
                results.append({**result, "content": text})
        messages.append({"role": "user", "content": results})
        if manual_compact:
            auto_compact(messages)


history = []
while True:
    try:
        query = input("s06 >> ")
    except (EOFError, KeyboardInterrupt):
        break
    if query.strip() in ("q", "exit", ""):
        break
    history.append({"role": "user", "content": query})
    agent_loop(history)
    for block in history[-1]["content"]:
        if getattr(block, "type", "") == "text":
            print(block.text)
