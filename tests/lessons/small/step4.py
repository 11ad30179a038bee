"""Layer 2: replace all but the user's messages with a summary."""

import json
import subprocess
from pathlib import Path

MODEL = "claude-sonnet-5-5"
THRESHOLD = 50_000  # tokens; over it, layer 2 summarises
KEEP_RECENT = 3  # newest messages with results to keep; the model hasn't seen the last
MIN_SAVINGS = 20_000  # tokens; each clearing makes the API write its cache again
MAX_CHARS = 40_000  # for all results of one reply together
TRANSCRIPT = Path("transcript.jsonl")  # one message per line; every run adds to it
SYSTEM = f"You write code in {Path.cwd()}. All that was said is in {TRANSCRIPT}."
PROMPT = """Do not call a tool. Summarise this conversation, so that you can go on from
your summary and the user's messages: what was done, found, decided; what is next."""
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [
    {"name": "bash", "description": "Run a shell command.", "input_schema": COMMAND},
    {"name": "read_file", "description": "Read a text file.", "input_schema": PATH},
]


def agent_loop(client, messages):
    """Ask the model and run the tools it calls, until it calls none."""
    while True:
        micro_compact(messages)  # layer 1
        if estimate_tokens(messages) > THRESHOLD:
            auto_compact(client, messages)  # layer 2
        content, _ = ask(client, messages)
        messages.append(log("assistant", content))
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        messages.append(log("user", run_tools(calls)))


def micro_compact(messages):
    """Layer 1: replace old tool results with a placeholder, if that frees enough."""
    lists = [m for m in messages if m["role"] == "user" and type(m["content"]) is list]
    old = []
    for message in lists[:-KEEP_RECENT]:
        for block in message["content"]:
            if block["type"] == "tool_result" and len(block["content"]) > 100:
                old.append(block)
    if estimate_tokens(old) >= MIN_SAVINGS:
        for result in old:
            result["content"] = "[Old result, cleared]"


def auto_compact(client, messages):
    """Layer 2: replace all but the user's messages (strings) with a summary."""
    content, stop = ask(client, [*messages, {"role": "user", "content": PROMPT}])
    if not content or stop != "end_turn":  # no usable summary: keep everything
        return
    title = {"type": "text", "text": "[Conversation compressed] Go on from here:"}
    typed = [message for message in messages if type(message["content"]) is str]
    messages[:] = [*typed, log("user", [title, *content])]


def estimate_tokens(messages):
    return len(json.dumps(messages, ensure_ascii=False).encode()) // 4  # UTF-8 bytes


def ask(client, messages):
    """Ask the model; return the blocks to send back, and why the reply ended."""
    fixed = {"model": MODEL, "max_tokens": 16_000, "system": SYSTEM, "tools": TOOLS}
    cache = {"cache_control": {"type": "ephemeral"}}
    reply = client.messages.create(messages=messages, **fixed, **cache)
    content = []
    for block in reply.content:  # skip thinking: a layer would make it invalid
        if block.type == "text" and block.text.strip():
            print(block.text)
            content.append(block.to_dict())
        if block.type == "tool_use" and reply.stop_reason == "tool_use":  # not cut off
            given = block.input if type(block.input) is dict else {}
            content.append({**block.to_dict(), "input": given})
    return content, reply.stop_reason


def log(role, content):
    """Write a message to the transcript before any layer can touch it; return it."""
    message = {"role": role, "content": content}
    with TRANSCRIPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message, ensure_ascii=False, allow_nan=False) + "\n")
    return message


def run_tools(calls):
    """Run each call; return the results, with at most MAX_CHARS of text in all."""
    results = []
    for call in calls:
        try:
            text = run_tool(call["name"], call["input"]).rstrip() or "(no output)"
        except Exception as error:  # noqa: BLE001  tell the model, whatever it is
            text = f"{type(error).__name__}: {error}"
        if len(text) > MAX_CHARS // len(calls):
            text = f"{text[: MAX_CHARS // len(calls)]}\n[cut: {len(text):,} characters]"
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        results.append(result)
    return results


def run_tool(name, given):
    if name == "read_file":
        return Path(given["path"]).read_text(encoding="utf-8", errors="replace")
    if name != "bash":
        return f"There is no tool {name}."
    if input(f"Run {given['command']!r}? [y/N] ") != "y":
        return "The user said no."
    options = {"input": "", "capture_output": True, "errors": "replace", "timeout": 60}
    done = subprocess.run(given["command"], shell=True, check=False, **options)
    return f"{done.stdout}{done.stderr}\n(exit status {done.returncode})"


if __name__ == "__main__":
    from anthropic import Anthropic

    client, messages = Anthropic(), []
    while True:
        try:
            prompt = input("\n> ")
            if not prompt.strip():
                break
            messages.append(log("user", prompt))
            agent_loop(client, messages)
        except EOFError:
            break
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  ends the turn
            print(f"Stopped: {type(error).__name__}: {error}")
