"""An agent made of classes: it streams, asks first, and sends replies back unchanged."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from anthropic import Anthropic, APIStatusError


class Tool:
    name = ""
    about = ""
    given = ""

    def schema(self):
        properties = {self.given: {"type": "string"}}
        shape = {"type": "object", "properties": properties, "required": [self.given]}
        return {"name": self.name, "description": self.about, "input_schema": shape}


class Bash(Tool):
    name, about, given = "bash", "Run a command.", "command"

    def __call__(self, command):
        print("Allow:", command)
        if input("(y/n) ") != "y":
            return "The user refused."
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        return done.stdout + done.stderr or "(empty)"


class ReadFile(Tool):
    name, about, given = "read_file", "Read a file.", "path"

    def __call__(self, path):
        return Path(path).read_text()[:40_000]


@dataclass
class Memory:
    """The messages, and a file for each conversation."""

    messages: list = field(default_factory=list)
    folder: Path = Path("history")

    def add(self, role, content):
        self.folder.mkdir(exist_ok=True)
        self.messages.append({"role": role, "content": content})
        with (self.folder / "all.jsonl").open("a") as file:
            file.write(json.dumps(self.messages[-1], default=lambda b: b.to_dict()))
            file.write("\n")

    def size(self):
        return len(json.dumps(self.messages, default=lambda b: b.to_dict())) // 4


class Agent:
    def __init__(self):
        self.client, self.memory = Anthropic(), Memory()
        self.tools = {tool.name: tool for tool in (Bash(), ReadFile())}

    def ask(self, messages):
        fixed = {"model": "claude-sonnet-5-5", "max_tokens": 20_000}
        schemas = [tool.schema() for tool in self.tools.values()]
        with self.client.messages.stream(
            messages=messages, tools=schemas, **fixed
        ) as stream:
            return stream.get_final_message()

    def compact(self):
        question = {"role": "user", "content": "Now write down all that matters."}
        reply = self.ask([*self.memory.messages, question])
        text = " ".join(block.text for block in reply.content if block.type == "text")
        typed = [m for m in self.memory.messages if isinstance(m["content"], str)]
        self.memory.messages = typed
        self.memory.add("user", [{"type": "text", "text": f"Notes: {text}"}])

    def result(self, block):
        try:
            text = self.tools[block.name](**block.input)
        except Exception as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {error}"
        return {"type": "tool_result", "tool_use_id": block.id, "content": text}

    def turn(self, prompt):
        self.memory.add("user", prompt)
        while True:
            if self.memory.size() > 60_000:
                self.compact()
            reply = self.ask(self.memory.messages)
            if reply.content:
                self.memory.add("assistant", reply.content)
            calls = [block for block in reply.content if block.type == "tool_use"]
            if reply.stop_reason != "tool_use":
                return
            self.memory.add("user", [self.result(block) for block in calls])


def main():
    agent = Agent()
    while prompt := input(f"[{agent.memory.size()} tokens] "):
        try:
            agent.turn(prompt)
        except APIStatusError as error:
            print("The API refused:", error)


if __name__ == "__main__":
    main()
