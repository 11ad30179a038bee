"""The smallest agent there is: one tool, and a loop that answers one question."""

from pathlib import Path

from anthropic import Anthropic

MODEL = "claude-sonnet-5-5"
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [
    {"name": "read_file", "description": "Read a text file.", "input_schema": PATH},
]


def agent_loop(client, messages):
    while True:
        content = ask(client, messages)
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        results = []
        for call in calls:
            text = Path(call["input"]["path"]).read_text()
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            results.append(result)
        messages.append({"role": "user", "content": results})


def ask(client, messages):
    fixed = {"model": MODEL, "max_tokens": 16_000, "tools": TOOLS}
    reply = client.messages.create(messages=messages, **fixed)
    for block in reply.content:
        if block.type == "text":
            print(block.text)
    return [block.to_dict() for block in reply.content]


question = {"role": "user", "content": input("> ")}
agent_loop(Anthropic(), [question])
