"""A coding agent that forgets on purpose, small and whole: copy it into your own.

Install `anthropic`, set ANTHROPIC_API_KEY, run python3 small.py; an empty line ends it.
`bash` asks before it runs a command, which may do all that you may; `read_file` reads
whatever you can. What the person typed is a string, all other content is a list.
"""

import json
import time
from pathlib import Path
from subprocess import TimeoutExpired, run

MODEL = "claude-sonnet-5-5"
THRESHOLD = 50_000  # tokens; over it, layer 2 summarises
KEEP_RECENT = 3  # results that layer 1 leaves as they are; at least 1
MIN_SAVINGS = 20_000  # tokens; each clearing makes the API write its cache anew
MAX_CHARS = 40_000  # of all results of one reply together
TRANSCRIPT = Path(f".transcripts/transcript_{time.time_ns()}.jsonl")
SYSTEM = f"""You write code in {Path.cwd()}. Old tool results are cleared; the tool
`compact` has the conversation summarised; {TRANSCRIPT} keeps all of it, for grep."""
PROMPT = """Do not call a tool. Summarise this conversation, so that you can go on from
your summary and the user's own messages: what was done, found, decided; what is next."""
STRING = {"type": "string"}
TOOLS = [
    {"name": name, "input_schema": {"type": "object", "properties": {key: STRING}}}
    for name, key in [("bash", "command"), ("read_file", "path"), ("compact", "focus")]
]


def agent_loop(client, messages):
    """Work until no tool is called; a call joins the messages only with its result."""
    while True:
        if estimate_tokens(messages) > THRESHOLD:
            auto_compact(client, messages)  # layer 2
        reply, _ = ask(client, messages)
        micro_compact(messages)  # layer 1: by now the model has seen all of them
        calls = [block for block in reply if block["type"] == "tool_use"]
        if not calls:
            messages += [log("assistant", reply)] if reply else []
            return
        messages += [log("assistant", reply), log("user", [*run_tools(calls)])]
        if any(call["name"] == "compact" for call in calls):
            auto_compact(client, messages)  # layer 3


def micro_compact(messages):
    """Layer 1: old tool results become placeholders, if that frees enough."""
    blocks = [b for m in messages if type(m["content"]) is list for b in m["content"]]
    names = {b["id"]: b["name"] for b in blocks if b["type"] == "tool_use"}
    results = [b for b in blocks if b["type"] == "tool_result"]
    old = [r for r in results[:-KEEP_RECENT] if len(r["content"]) > 100]
    if estimate_tokens(old) >= MIN_SAVINGS:
        for result in old:
            result["content"] = f"[Previous: used {names[result['tool_use_id']]}]"


def auto_compact(client, messages):
    """Layer 2: a summary takes the place of all but what the person typed."""
    reply, stop = ask(client, [*messages, {"role": "user", "content": PROMPT}])
    if reply and stop == "end_turn":  # else there is no summary, and all stays
        title = {"type": "text", "text": "[Conversation compressed] Go on from here:"}
        typed = [m for m in messages if type(m["content"]) is str]
        messages[:] = [*typed, log("user", [title, *reply])]


def estimate_tokens(messages):
    """A token is about four characters."""
    return len(json.dumps(messages)) // 4


def ask(client, messages):
    """The reply without thinking, which a layer would make invalid; why it stopped."""
    fixed = {"model": MODEL, "max_tokens": 16_000, "system": SYSTEM, "tools": TOOLS}
    cache = {"cache_control": {"type": "ephemeral"}}
    with client.messages.stream(messages=messages, **fixed, **cache) as stream:
        reply = stream.get_final_message()
    kept = "text", reply.stop_reason  # a call counts in a reply that stopped for it
    blocks = [block.to_dict() for block in reply.content if block.type in kept]
    print(*[b["text"] for b in blocks if b["type"] == "text"])
    return [b for b in blocks if b.get("text", "call").strip()], reply.stop_reason


def log(role, content):
    """A message, which is a line on disk before any layer can touch it."""
    message = {"role": role, "content": content}
    TRANSCRIPT.parent.mkdir(exist_ok=True)
    with TRANSCRIPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message, ensure_ascii=False) + "\n")
    return message


def run_tools(calls):
    """The result of each call, an error too; together they have at most MAX_CHARS."""
    for call in calls:
        try:
            text = run_tool(call["name"], call["input"]).rstrip() or "(no output)"
        except (KeyError, OSError, TypeError, ValueError, TimeoutExpired) as error:
            text = f"Error: {error!r}"
        if len(text) > MAX_CHARS // len(calls):
            text = f"{text[: MAX_CHARS // len(calls)]}\n[cut: {len(text):,} characters]"
        yield {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def run_tool(name, given):
    if name == "read_file":
        return Path(given["path"]).read_text(encoding="utf-8", errors="replace")
    if name == "compact":
        return "Summarised before you go on."
    if input(f"Run {given['command']!r}? [y/N] ") != "y":
        return "The user said no."
    options = {"input": "", "capture_output": True, "errors": "replace", "timeout": 60}
    done = run(given["command"], shell=True, check=False, **options)
    return f"{done.stdout}{done.stderr}\n(exit status {done.returncode})"


if __name__ == "__main__":
    from anthropic import Anthropic, AnthropicError

    client, messages = Anthropic(), []
    while (prompt := input("\n> ")).strip():
        try:
            messages.append(log("user", prompt))
            agent_loop(client, messages)
        except (AnthropicError, KeyboardInterrupt, OSError, ValueError) as error:
            print(f"Stopped: {error!r}")
