"""A second tool, and errors become results."""

import subprocess
from pathlib import Path

from anthropic import Anthropic

MODEL = "claude-sonnet-5-5"
MAX_CHARS = 40_000  # for all results of one reply together
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [
    {"name": "bash", "description": "Run a shell command.", "input_schema": COMMAND},
    {"name": "read_file", "description": "Read a text file.", "input_schema": PATH},
]


def agent_loop(client, messages):
    """Ask the model and run the tools it calls, until it calls none."""
    while True:
        content = ask(client, messages)
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        messages.append({"role": "user", "content": run_tools(calls)})


def ask(client, messages):
    fixed = {"model": MODEL, "max_tokens": 16_000, "tools": TOOLS}
    reply = client.messages.create(messages=messages, **fixed)
    for block in reply.content:
        if block.type == "text":
            print(block.text)
    return [block.to_dict() for block in reply.content]


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


question = {"role": "user", "content": input("> ")}
agent_loop(Anthropic(), [question])
