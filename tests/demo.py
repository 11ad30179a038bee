"""Every layer at work within seconds: no key, no network, and a scripted model.

The model is the tests' own `StubClient`, so each request is checked as the API would
check it. All else is real: the loop, the tools, the layers, the terminal, and the
files, which are a scratch copy of this project.
"""

import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from stub import StubClient, TooLong, count, reply

from agent import Agent, AgentError, Terminal, command, show, status_line, take_turn

WINDOW, THRESHOLD, MAX_OUTPUT = 20_000, 10_000, 6_000  # so small that layers must act
ROW = 1_000  # tokens that a row of the picture stands for
PAUSE = 0.3  # seconds before each prompt on a terminal, so that an eye can follow
TOO_LONG = "from here on the API takes less than this request"


@dataclass
class Scene:
    """What happens, the layer that must do it, and what each side says."""

    title: str
    layer: str
    watch: str
    typed: str  # a prompt a line
    work: list  # the model's replies but the last, without summaries
    answer: str  # its last reply, and what later summaries know of the scene


def use(tool, say="", thinking=None, **arguments):
    """A reply that calls a tool."""
    return reply(say, [(tool, arguments)], thinking)


def pages(path, *lines):
    """A reply that reads pages of a file, of 60 lines each."""
    options = [{"path": path, "offset": line, "limit": 60} for line in lines]
    return reply(calls=[("read_file", given) for given in options])


# --- The script ---

PLAN = ["[ ] write NOTES.md", "[ ] look at it once more"]
NOTES = """\
# How this agent keeps its context small

1. Old tool results become placeholders: free, before every request.
2. Over the threshold, one summary replaces the conversation.
3. The same on demand: the compact tool, /compact, or a prompt that is too long.
"""

SCENES = [
    Scene(
        "A result too big for the context goes to disk",
        "tool_result_budget",
        "a preview stays, the model can search the rest.",
        "Print agent.py. Which parts is it made of?",
        [
            use("bash", command="cat agent.py", thinking="A look at the whole."),
            use("grep", "It is on disk now.", path=".task_outputs", pattern="^# -+ "),
        ],
        "agent.py goes from settings and tools by way of three layers to the loop.",
    ),
    Scene(
        "Old results are cleared",
        "micro_compact",
        "how many tokens that frees. It needs no model.",
        "Read the first 300 lines, page by page.",
        [pages("agent.py", line) for line in range(1, 301, 60)],
        "Settings come first, then the state of a conversation, then its messages.",
    ),
    Scene(
        "Over the threshold, a summary replaces the conversation",
        "auto_compact",
        "the summary, and the transcript that keeps every word.",
        "Now the tests. What does their fake model check?",
        [
            use("bash", command="head -c 8800 tests/stub.py", thinking="One half."),
            use("bash", command="tail -c +8801 tests/stub.py | head -c 8800"),
            use("bash", command="head -c 7600 tests/wire.py"),
        ],
        "StubClient refuses what the API would: open tool calls, stale thinking ...",
    ),
    Scene(
        "The model asks for a summary itself",
        "compact",
        "the focus says what to keep, and the work goes on.",
        "Which functions turn a reply into a stream?",
        [
            pages("tests/wire.py", 1, 61),
            use("compact", focus="the functions of tests/wire.py that make a stream"),
            use("grep", path="tests/wire.py", pattern="^def (sse|parts|event)"),
        ],
        "In tests/wire.py sse does, with parts for its blocks and event for the bytes.",
    ),
    Scene(
        "You ask for a summary",
        "compact",
        "the same on your word, between two messages.",
        "How is the fake model itself tested?\n"
        "/compact what we know of the layers and of the fake model",
        [use("bash", command="head -c 8800 tests/test_stub.py")],
        "Its tests are tables of bad requests, each beside the API's own words.",
    ),
    Scene(
        "The API refuses a prompt as too long",
        "reactive_compact",
        "a summary and the newest messages go on with it.",
        "Write what you found to NOTES.md, in a few lines.",
        [
            pages("agent.py", 1, 61),
            use("todo_write", items=PLAN),
            use("write_file", path="NOTES.md", content=NOTES),
            use("todo_write", items=["[x] write NOTES.md", PLAN[1]]),
            TOO_LONG,
            use("bash", command="wc NOTES.md"),
        ],
        "NOTES.md is in place: the three layers, a line each.",
    ),
]


def bullets(lines):
    return "".join(f"\n   - {line}" for line in lines)


def summary(number):
    """The summary that the model gives in this scene, in nine sections."""
    typed = [scene.typed.splitlines()[0] for scene in SCENES[:number]]
    known = [scene.answer for scene in SCENES[: number - 1]]
    return reply(f"""\
<analysis>{number} messages of the user, all of them about this project.</analysis>
<summary>
1. Request, intent and constraints: learn how this agent forgets.
2. Key concepts: three layers before each request; a transcript of everything.
3. Files and code: agent.py; tests/stub.py and tests/wire.py, the fake model.
4. Errors and fixes: a result was too large; it is in a file in .task_outputs.
5. Findings:{bullets(known)}
6. All user messages:{bullets(typed)}
7. Pending tasks: none but the current work.
8. Current work: the newest of these messages; the reading for it is done.
9. Next step: answer it; if that is done, wait for the user.
</summary>""")


# --- The stage ---


class ScriptedModel(StubClient):
    """The stub, which gives summaries when asked, and takes less from TOO_LONG on."""

    def __init__(self, tell):
        super().__init__(window=WINDOW, max_output=MAX_OUTPUT)
        self.tell, self.scene = tell, 0
        self.sent = []  # (scene, tokens, mark in the picture) of each request

    def take(self, request):
        tokens = count(request["system"], request["tools"], request["messages"])
        last = request["messages"][-1]["content"][-1]
        asked = isinstance(last, dict) and "<analysis>" in last.get("text", "")
        if self.queue and self.queue[0] is TOO_LONG:
            self.queue.popleft()
            self.window = tokens // ROW * ROW
        mark = "x" if tokens > self.window else "s" if asked else "#"
        self.sent.append((self.scene, tokens, mark))
        if mark == "s":
            self.queue.appendleft(summary(self.scene))
        try:
            return super().take(request)
        except TooLong as error:
            self.tell(f"(the API answers: {error})")
            raise


def scratch_copy():
    """A new folder with a copy of this project's files."""
    project = Path(__file__).resolve().parent.parent
    folder = Path(tempfile.mkdtemp(prefix="agent-demo-")).resolve()
    (folder / "tests").mkdir()
    for pattern in ("*.py", "*.md", "tests/*.py"):
        for path in project.glob(pattern):
            shutil.copy(path, folder / path.relative_to(project))
    return folder


def play(scene, agent, terminal):
    """Play a scene; returns the agent to go on with, or raises AgentError."""
    model, acted = agent.client, []
    show(terminal, "plain", f"\n--- {model.scene}. {scene.title} ".ljust(79, "-"))
    show(terminal, "plain", f"Watch for [{scene.layer}]: {scene.watch}")

    def emit(kind, text):
        show(terminal, kind, text)
        if text.startswith(f"[{scene.layer}]") and "->" in text:
            acted.append(text)
            if scene.layer == "auto_compact":
                now = agent.messages[0]["content"][0]["text"]
                show(terminal, "layer", textwrap.indent(now, "| "))

    agent.emit = emit
    model.enqueue(*scene.work, reply(scene.answer))
    for line in scene.typed.splitlines():
        time.sleep(PAUSE * terminal.out.isatty())
        show(terminal, "plain", f"\n> {line}")
        if line.startswith("/"):
            agent = command(agent, terminal, line)
        else:
            take_turn(agent, line)
        show(terminal, "layer", status_line(agent))
    if model.refused or model.queue or not acted:
        raise AgentError(f"not all of this scene came to pass. {model.refused or ''}")
    return agent


def picture(sent):
    """The lines of a drawing: the context's size, request by request."""
    wide = 2 if len(sent) <= 35 else 1
    most = max(tokens for _, tokens, _ in sent) // ROW * ROW
    for row in range(most, -1, -ROW):
        empty = "-" if row == THRESHOLD else " "
        bars = [mark if tokens > row else empty for _, tokens, mark in sent]
        yield f"{row:>7,} {''.join(bar * wide for bar in bars)}".rstrip()
    scenes = [scene for scene, _, _ in sent]
    first = [n if n != before else "" for n, before in zip(scenes, [0, *scenes])]
    yield "  scene " + "".join(f"{n:<{wide}}" for n in first).rstrip()


def closing(agent, folder):
    """The picture, what was spared, and where everything stands."""
    sent, last = agent.client.sent, agent.client.requests[-1]
    lines = agent.transcript.read_text(encoding="utf-8").split("\n")[:-1]
    messages = [m for m in map(json.loads, lines) if "event" not in m]
    whole = count(last["system"], last["tools"], messages)
    drawing = "\n".join(picture(sent))
    return f"""
--- The size of the context, in tokens, request by request -------------------

{drawing}

        # request   s summary   x refused as too long   - threshold

The whole conversation is {whole:,} tokens long; no request had more than
{max(tokens for _, tokens, _ in sent):,}. Not a word of it is lost, the transcript has them all:
{folder / agent.transcript}"""


def main():
    """Play all scenes in a scratch copy; returns 0, or 1 where one did not happen."""
    terminal, back, folder = Terminal(sys.stdout), Path.cwd(), scratch_copy()

    def tell(text):
        show(terminal, "plain", text)

    def approve(name, arguments):
        tell(f"Run {name}? y   (the script says yes)")
        return True

    model = ScriptedModel(tell)
    more = {"keep_recent": 4, "thinking": True, "approve": approve}
    agent = Agent(model, "scripted", WINDOW, MAX_OUTPUT, THRESHOLD, **more)
    tell(f"""\
The model in this demonstration is scripted: no key is needed, nothing is sent.
All else is real: the loop, the tools, the layers, and the files, a copy in
{folder}
The context may grow to {THRESHOLD:,} tokens here, so that there is something to see.""")
    os.chdir(folder)
    try:
        for model.scene, scene in enumerate(SCENES, 1):
            agent = play(scene, agent, terminal)
        tell(closing(agent, folder))
    except AgentError as error:
        show(terminal, "error", f"The demonstration failed: {error}")
        return 1
    finally:
        os.chdir(back)
    return 0


if __name__ == "__main__":
    sys.exit(main())
