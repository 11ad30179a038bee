"""Plays a program of others: it speaks the API, but its tools have names of their own.

    python3 foreign.py MODE

Each line of standard input is a prompt. MODE says what it does with it, see MODES.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

INPUTS = {
    "look_at": ["fileName"],
    "open_file": ["fileName", "why"],
    "shell": ["cmd"],
    "change": ["fileName", "old_text", "newText"],
}
TOOLS = [
    {
        "name": name,
        "description": name,
        "input_schema": {
            "type": "object",
            "properties": {key: {"type": "string"} for key in keys},
            "required": keys,
        },
    }
    for name, keys in INPUTS.items()
]
MARKED = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "You work with files. " * 300, **MARKED}]
UNKNOWN = {"betas": ["of-tomorrow"], "container": {"skills": []}, "effort": "high"}


def send(messages, tools=TOOLS, system=SYSTEM):
    """Send a request, and return the content of the reply."""
    body = {"model": "m", "max_tokens": 999, "tools": tools, "system": system}
    data = json.dumps({**body, **UNKNOWN, **MARKED, "messages": messages})
    url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages?beta=true"
    with urlopen(Request(url, data.encode())) as answer:
        return json.load(answer)["content"]


def ask_for_title(prompt):
    return send([{"role": "user", "content": f"A title: {prompt}"}], [], [])


def do(call):
    """Do what a call asks for, and return its result."""
    given = call["input"]
    if call["name"] == "shell":
        return subprocess.getoutput(given["cmd"])
    path = Path(given["fileName"])
    text = path.read_text()
    if call["name"] == "change":
        path.write_text(text.replace(given["old_text"], given["newText"]))
        return "Changed."
    return text


def work(prompt, messages, do=do):
    """Work until the model has answered; forget all but a summary when it must."""
    messages.append({"role": "user", "content": prompt})
    while True:
        try:
            content = send(messages)
        except HTTPError as error:
            if "too long" not in error.read().decode():
                raise
            asked = {"role": "user", "content": "Summarise what was done."}
            [summary] = send([*messages[:-2], asked])
            text = f"{summary['text']}\n{prompt}"
            messages[:] = [{"role": "user", "content": text}]
            continue
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return print(content[0]["text"], flush=True)
        given = {"type": "tool_result", "of_tomorrow": True}
        results = [given | {"tool_use_id": c["id"], "content": do(c)} for c in calls]
        messages.append({"role": "user", "content": results})


def works(prompt, messages):
    """Do the work, and ask for a title meanwhile."""
    with ThreadPoolExecutor() as pool:
        pool.submit(ask_for_title, prompt)
        work(prompt, messages)


def only_says_so(prompt, messages):
    """Claim that each call was done."""
    work(prompt, messages, lambda call: "Done.")


def hangs(prompt, messages):
    time.sleep(600)


def wants_a_login(prompt, messages):
    sys.exit("Please log in first.")


def never_ends(prompt, messages):
    """Start a process in a session of its own, and ask for titles for ever."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(child.pid, flush=True)
    while True:
        with suppress(HTTPError):
            ask_for_title(prompt)


def says_nothing(prompt, messages):
    """Send what the API would reject."""
    messages.append({"role": "user", "content": " "})
    works(prompt, messages)


def calls_home(prompt, messages):
    """Ask for another address first, by the proxy that the environment names."""
    with suppress(OSError):
        urlopen("https://home.invalid/")
    works(prompt, messages)


FAIL = only_says_so, hangs, wants_a_login, never_ends
MODES = works, *FAIL, says_nothing, calls_home

if __name__ == "__main__":
    mode = next(mode for mode in MODES if mode.__name__ == sys.argv[1])
    conversation = []
    for line in sys.stdin:
        mode(line.strip(), conversation)
