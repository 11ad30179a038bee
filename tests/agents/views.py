"""An agent whose history never changes: each request is a view of it.

It keeps its messages in a database, streams, saves large results to files, asks for a
summary in tags, and asks again after an empty reply.
"""

import json
import re
import sqlite3
import subprocess
from pathlib import Path

import anthropic

PROMPT = "Stop here. Write what the next request needs to know in <summary> tags."
ONE = {"type": "string"}
LIMIT = 45_000  # tokens


def tool(name, given=None):
    properties = {given: ONE} if given else {}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"name": name, "description": name, "input_schema": schema}


TOOLS = [tool("bash", "script"), tool("read_file", "file_path"), tool("compact")]


class History:
    """All messages, and from which one on the model sees them."""

    def __init__(self):
        self.rows = sqlite3.connect("history.db", isolation_level=None)
        self.rows.execute("CREATE TABLE IF NOT EXISTS messages (json TEXT)")
        self.messages, self.summary, self.start, self.cleared = [], "", 0, 0

    def add(self, role, content):
        self.messages.append({"role": role, "content": content})
        text = json.dumps(self.messages[-1])
        self.rows.execute("INSERT INTO messages VALUES (?)", [text])

    def view(self):
        """The messages to send: the typed ones, the summary, and all since then."""
        typed = [m for m in self.messages if isinstance(m["content"], str)]
        if not self.summary:
            return [self.shortened(n) for n in range(len(self.messages))]
        before = [m for m in typed if m in self.messages[: self.start]]
        text = {"type": "text", "text": f"Until now: {self.summary}"}
        rest = [self.shortened(n) for n in range(self.start, len(self.messages))]
        return [*before, {"role": "user", "content": [text]}, *rest]

    def shortened(self, number):
        message = self.messages[number]
        if number >= self.cleared or isinstance(message["content"], str):
            return message
        return {**message, "content": [*map(without_text, message["content"])]}

    def clear(self):
        """Clear old results, once that's worth it."""
        until = len(self.messages) - 6
        old = self.messages[max(self.start, self.cleared) : max(0, until)]
        if size([m for m in old if "tool_result" in str(m["content"])[:40]]) > 25_000:
            self.cleared = until


def without_text(block):
    if block["type"] != "tool_result" or size(block["content"]) < 50:
        return block
    return {**block, "content": [{"type": "text", "text": "(cleared)"}]}


def size(value):
    return len(json.dumps(value, ensure_ascii=False).encode()) // 4


def ask(client, messages):
    cache = {"cache_control": {"type": "ephemeral"}}
    fixed = {"model": "claude-sonnet-5-5", "max_tokens": 20_000, "tools": TOOLS}
    with client.messages.stream(messages=messages, **fixed, **cache) as stream:
        return stream.get_final_message()


def compact(client, history):
    """Replace all but typed messages, if the model writes a whole summary."""
    reply = ask(client, [*history.view(), {"role": "user", "content": PROMPT}])
    text = "".join(block.text for block in reply.content if block.type == "text")
    if found := re.search(r"(?s)<summary>(.+?)</summary>", text):
        history.summary, history.start = found[1], len(history.messages)


def run(call, number):
    given = [*call["input"].values()]
    if call["name"] == "compact":
        return "Done."
    if call["name"] == "read_file":
        text = Path(given[0]).read_text()
    elif input(f"{given[0]}\nRun this? ") != "y":
        return "The user doesn't want this."
    else:
        done = subprocess.run(given[0], shell=True, capture_output=True, text=True)
        text = done.stdout + done.stderr
    if len(text) > 40_000 // number:
        Path(f"saved_{call['id']}").write_text(text)
        return f"{text[:2_000]}\n... the rest is in saved_{call['id']}"
    return text


def result(call, number):
    try:
        text, error = run(call, number), False
    except Exception as problem:  # noqa: BLE001
        text, error = repr(problem), True
    content = [{"type": "text", "text": text or "(empty)"}]
    known = {"tool_use_id": call["id"], "is_error": error}
    return {"type": "tool_result", "content": content, **known}


def turn(client, history, tries=3):
    while tries:
        history.clear()
        if size(history.view()) > LIMIT:
            compact(client, history)
        reply = ask(client, history.view())
        calls = [b.to_dict() for b in reply.content if b.type == "tool_use"]
        texts = [b.to_dict() for b in reply.content if b.type == "text"]
        said = [block for block in texts if block["text"].strip()]
        if calls and reply.stop_reason == "tool_use":
            answers = [result(call, len(calls)) for call in calls]
            history.add("assistant", said + calls)
            history.add("user", answers)
            if "compact" in [call["name"] for call in calls]:
                compact(client, history)
        elif said:
            print(said[0]["text"])
            return history.add("assistant", said)
        else:
            tries -= 1


def main():
    client, history = anthropic.Anthropic(), History()
    while True:
        try:
            if prompt := input(">>> ").strip():
                history.add("user", prompt)
                turn(client, history)
        except EOFError:
            return
        except (anthropic.APIError, KeyboardInterrupt) as error:
            print("Interrupted:", repr(error))


if __name__ == "__main__":
    main()
