"""The smallest agent there is: one tool, and a loop that answers one question."""

from pathlib import Path

from anthropic import Anthropic

READ_FILE = {
    "name": "read_file",
    "description": "Read the text file that has this path.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def agent_loop(client, messages):
    request = {"model": "claude-sonnet-5-5", "max_tokens": 16_000, "tools": [READ_FILE]}
    while True:
        reply = client.messages.create(messages=messages, **request)
        content = [block.to_dict() for block in reply.content]
        messages.append({"role": "assistant", "content": content})
        for block in content:
            if block["type"] == "text":
                print(block["text"])
        if reply.stop_reason != "tool_use":
            return
        results = []
        for block in content:
            if block["type"] == "tool_use":
                result = {"type": "tool_result", "tool_use_id": block["id"]}
                result["content"] = Path(block["input"]["path"]).read_text()
                results.append(result)
        messages.append({"role": "user", "content": results})


question = {"role": "user", "content": input("> ")}
agent_loop(Anthropic(), [question])
