# my agent. reads files, runs commands, and forgets

import json
import subprocess

import anthropic
from dotenv import load_dotenv

load_dotenv()

client = anthropic.Anthropic()
MODEL = "claude-sonnet-5-5"
LIMIT = 40000
LOG = "log.json"

tools = [
    {
        "name": "bash",
        "description": "run a command in the shell",
        "input_schema": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}},
            "required": ["cmd"],
        },
    },
    {
        "name": "read_file",
        "description": "read a file",
        "input_schema": {
            "type": "object",
            "properties": {"filename": {"type": "string"}},
            "required": ["filename"],
        },
    },
]


def count(messages):
    return len(json.dumps(messages)) / 4


def save(messages):
    with open(LOG, "w") as f:
        json.dump(messages, f)


def bash(cmd):
    p = subprocess.run(cmd, shell=True, capture_output=True, text=True, timeout=120)
    return p.stdout + p.stderr


def read_file(filename):
    with open(filename) as f:
        return f.read()


def run(block):
    try:
        if block.name == "bash":
            text = bash(block.input["cmd"])
        elif block.name == "read_file":
            text = read_file(block.input["filename"])
        else:
            text = "unknown tool"
    except Exception as e:  # noqa: BLE001
        text = f"error: {e}"
    if text == "":
        text = "ok"
    return text[:30000]


def clear_old(messages):
    # the last two results stay
    results = []
    for m in messages:
        if m["role"] == "user" and isinstance(m["content"], list):
            for b in m["content"]:
                if b["type"] == "tool_result":
                    results.append(b)
    for b in results[:-2]:
        if len(b["content"]) > 500:
            b["content"] = "(old result removed)"


def summarize(messages):
    text = json.dumps(messages)
    r = client.messages.create(
        model=MODEL,
        max_tokens=8000,
        messages=[
            {"role": "user", "content": "Summarize what was done so far:\n" + text}
        ],
    )
    summary = "".join(b.text for b in r.content if b.type == "text")
    return [messages[0], {"role": "user", "content": "What was done: " + summary}]


def turn(messages):
    while True:
        if count(messages) > LIMIT:
            clear_old(messages)
        if count(messages) > LIMIT:
            messages[:] = summarize(messages)
        r = client.messages.create(
            model=MODEL, max_tokens=8000, tools=tools, messages=messages
        )
        # thinking cannot be sent back after a change, so it never is
        content = [b.to_dict() for b in r.content if b.type != "thinking"]
        messages.append({"role": "assistant", "content": content})
        calls = [b for b in r.content if b.type == "tool_use"]
        results = []
        for b in calls:
            print("tool:", b.name)
            result = {"type": "tool_result", "tool_use_id": b.id, "content": run(b)}
            results.append(result)
        if len(calls) == 0:
            print("".join(b.text for b in r.content if b.type == "text"))
            save(messages)
            return
        messages.append({"role": "user", "content": results})
        save(messages)


messages = []
while True:
    try:
        text = input("you: ")
    except EOFError:
        break
    if text == "quit":
        break
    messages.append({"role": "user", "content": text})
    turn(messages)
