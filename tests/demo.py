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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent import Agent, AgentError, Terminal, auto_compact_threshold
from agent import command, show, status_line, take_turn
from stub import StubClient, count, reply

WINDOW, MAX_OUTPUT = 20_000, 6_000  # tokens; so small that the layers have work to do
THRESHOLD = auto_compact_threshold(WINDOW, MAX_OUTPUT)
ROW = 1_000  # tokens that a line of the picture stands for
PAUSE = 0.3  # seconds before each prompt, so that an eye can follow
TOO_LONG = "the API takes less than this request, from here on"


@dataclass
class Scene:
    """What happens, the layer that must do it, and what each side says."""

    title: str
    layer: str
    watch: str
    typed: list[str]
    replies: list  # of the model; summaries come from `summary`
    learned: str  # what a summary in this scene or a later one knows
    doing: str = ""  # what a summary in this scene says of the work; "": there is none
    then: str = ""


# --- The script ---


def use(tool, say="", thinking=None, **arguments):
    """A reply that calls a tool."""
    return reply(say, [(tool, arguments)], thinking)


def pages(path, *lines):
    """A reply that reads pages of a file, each of 60 lines."""
    return reply(
        calls=[("read_file", {"path": path, "offset": n, "limit": 60}) for n in lines]
    )


NOTES = """\
# How this agent keeps its context small

1. Old tool results become placeholders: free, before every request.
2. Over the threshold, one summary replaces the conversation.
3. The same on demand: the compact tool, /compact, or a prompt that is too long.

Whatever leaves the context stays in the transcript, and grep finds it there.
"""

SCENES = [
    Scene(
        "A result too big for the context goes to disk",
        "tool_result_budget",
        "the model gets the first lines and a path, and searches the file there.",
        ["Print agent.py. Which parts is it made of?"],
        [
            use("bash", "I print the file.", command="cat agent.py"),
            use(
                "grep",
                thinking="Too large for the context, but it is on disk: I search it.\n",
                pattern="^# -+ ",
                path=".task_outputs",
            ),
            reply(
                "It begins with settings, messages and tools; then come the three\n"
                "layers, the loop and the terminal. The headings say so."
            ),
        ],
        "agent.py is one file in titled bands: settings, messages, tools, the three\n"
        "  layers, the loop, the terminal.",
    ),
    Scene(
        "Old results are cleared",
        "micro_compact",
        "how many tokens it frees. It needs no model.",
        ["Read the first 300 lines, page by page."],
        [
            *(pages("agent.py", line) for line in range(1, 301, 60)),
            reply(
                "Settings come first, then the state of a conversation, helpers for\n"
                "messages, and the counting of tokens. My first pages are\n"
                "placeholders by now; I can still see that I read them, and where."
            ),
        ],
        "The state is one dataclass, Agent. Tokens are counted as bytes / 4, set right\n"
        "  by what the API reports with each reply.",
    ),
    Scene(
        "Over the threshold, a summary replaces the conversation",
        "auto_compact",
        "the summary itself, and the transcript that keeps every word.",
        ["Now the tests. What does their fake model check?"],
        [
            use("bash", command="head -c 8800 tests/stub.py"),
            use("bash", command="tail -c +8801 tests/stub.py | head -c 8800"),
            use("bash", command="head -c 7600 tests/wire.py"),
            reply(
                "It refuses what the API would refuse: a tool call without its result,\n"
                "an empty text, a key it does not know, thinking whose past was\n"
                "changed. A layer that breaks a conversation fails its test."
            ),
        ],
        "StubClient (tests/stub.py) queues replies, keeps requests and refuses what the\n"
        "  API would: open tool calls, empty texts, thinking whose past was changed.",
        "reading tests/stub.py and tests/wire.py, the fake model and its server.",
        "say what the fake model checks.",
    ),
    Scene(
        "The model asks for a summary itself",
        "compact",
        "the focus, which says what to keep. The work goes on by itself.",
        ["Which functions turn a reply into a stream?"],
        [
            pages("tests/wire.py", 1, 61),
            use(
                "compact",
                "I know where to look, and make room before I go on.",
                focus="the functions of tests/wire.py that make a stream",
            ),
            use("grep", pattern="^def (sse|parts|event)", path="tests/wire.py"),
            reply(
                "Three: sse gives the events of a reply, parts those of one block,\n"
                "and event writes each as bytes."
            ),
        ],
        "tests/wire.py: sse, parts and event turn a reply into a stream; serve offers\n"
        "  it to another process.",
        "looking for the functions of tests/wire.py that make a stream.",
        "find them with grep, and answer.",
    ),
    Scene(
        "You ask for a summary",
        "compact",
        "the same on your word, between two of your messages.",
        [
            "How is the fake model itself tested?",
            "/compact what we know of the layers and of the fake model",
        ],
        [
            use("bash", command="head -c 8800 tests/test_stub.py"),
            reply("With tables of bad requests, each beside the API's own words."),
        ],
        "tests/test_stub.py: tables of bad requests, beside the API's own words.",
        "none; all questions are answered.",
        "wait for the user.",
    ),
    Scene(
        "The API refuses a prompt as too long",
        "reactive_compact",
        "the same request goes on with a summary and the newest messages.",
        ["Write what you found to NOTES.md, in a few lines."],
        [
            pages("agent.py", 1, 61),
            use("todo_write", items=["[ ] write NOTES.md", "[ ] look at it once more"]),
            use("write_file", path="NOTES.md", content=NOTES),
            use("todo_write", items=["[x] write NOTES.md", "[ ] look at it once more"]),
            TOO_LONG,
            use("bash", command="wc NOTES.md"),
            reply("NOTES.md is in place: the three layers, a line each."),
        ],
        "NOTES.md says in a line each what the three layers do.",
        "NOTES.md is written; one item of the plan is left.",
        "look at NOTES.md once more.",
    ),
]


def summary(number):
    """The summary that the model gives in this scene, in nine sections."""
    past, now = SCENES[:number], SCENES[number - 1]
    said = [line for scene in past for line in scene.typed if line[0] != "/"]
    findings = "".join(f"\n- {scene.learned}" for scene in past)
    messages = "".join(f"\n- {line}" for line in said)
    return reply(f"""\
<analysis>{len(said)} messages of the user, all of them about this project.</analysis>
<summary>
1. Request, intent and constraints: understand how this agent keeps its context small.
2. Key concepts: three layers before each request; a transcript that keeps everything.
3. Files and code: agent.py, the program; tests/stub.py and tests/wire.py, a fake model.
4. Errors and fixes: one result was too large; it is in a file under .task_outputs.
5. Findings:{findings}
6. All user messages:{messages}
7. Pending tasks: what the newest message asks for.
8. Current work: {now.doing}
9. Next step: {now.then}
</summary>""")


# --- The stage ---


class PromptTooLong(Exception):
    """The API's refusal, as far as the program reads the SDK's exception."""

    status_code = 400


@dataclass
class ScriptedModel(StubClient):
    """The stub, with a queue of its own for summaries and a limit that can be staged."""

    tell: Callable[[str], None]
    scene: int = 0
    limit: int = WINDOW
    summaries: list = field(default_factory=list)
    sent: list = field(default_factory=list)  # (scene, tokens, mark) of each request

    def __post_init__(self):
        super().__init__(window=WINDOW, max_output=MAX_OUTPUT)

    def take(self, request):
        tokens = count(request["system"], request["tools"], request["messages"])
        last = request["messages"][-1]["content"][-1]
        summary = isinstance(last, dict) and "<analysis>" in last.get("text", "")
        if not summary and self.queue and self.queue[0] is TOO_LONG:
            self.queue.popleft()
            self.limit = tokens // ROW * ROW
        mark = "x" if tokens > self.limit else "s" if summary else "#"
        self.sent.append((self.scene, tokens, mark))
        if mark == "x":
            text = f"prompt is too long: {tokens} tokens > {self.limit} maximum"
            self.tell(f"(the API answers: {text})")
            raise PromptTooLong(text)
        if summary and self.summaries:
            self.queue.appendleft(self.summaries.pop(0))
        return super().take(request)


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
    show(terminal, "plain", f"\n--- {model.scene}. {scene.title} ".ljust(78, "-"))
    show(terminal, "plain", f"Watch for [{scene.layer}]: {scene.watch}")

    def emit(kind, text):
        show(terminal, kind, text)
        if text.startswith(f"[{scene.layer}]") and "->" in text:
            acted.append(text)
            if scene.layer == "auto_compact":
                now = agent.messages[0]["content"][0]["text"]
                show(terminal, "layer", textwrap.indent(now, "  | "))

    agent.emit = emit
    for line in scene.typed:
        time.sleep(PAUSE * terminal.out.isatty())
        show(terminal, "plain", f"\n> {line}")
        if line.startswith("/"):
            agent = command(agent, terminal, line)
        else:
            take_turn(agent, line)
        show(terminal, "layer", status_line(agent))
    if model.refused or model.queue or model.summaries or not acted:
        raise AgentError(f"scene {model.scene} did not happen. {model.refused or ''}")
    return agent


def picture(sent, threshold):
    """The lines of a drawing: the context's size, request by request."""
    wide = 2 if len(sent) <= 30 else 1
    for row in range(max(tokens for _, tokens, _ in sent) // ROW, -1, -1):
        ruler, note = ("-", " threshold") if row == threshold // ROW else (" ", "")
        bars = [mark if tokens > row * ROW else ruler for _, tokens, mark in sent]
        line = "".join(bar * wide for bar in bars)
        yield f"{row * ROW:>7,} {line}{note}".rstrip()
    scenes = [scene for scene, _, _ in sent]
    first = [n if n != before else "" for n, before in zip(scenes, [0, *scenes])]
    yield ("  scene " + "".join(f"{n:<{wide}}" for n in first)).rstrip()


def closing(agent, folder):
    """The picture, what was spared, and where everything stands."""
    sent, last = agent.client.sent, agent.client.requests[-1]
    lines = agent.transcript.read_text(encoding="utf-8").split("\n")[:-1]
    messages = [m for m in map(json.loads, lines) if "event" not in m]
    whole = count(last["system"], last["tools"], messages)
    drawing = "\n".join(picture(sent, agent.threshold))
    return f"""
--- The context's size in tokens, request by request {"-" * 25}

{drawing}

        # a request   s one for a summary   x refused as too long

The whole conversation is {whole:,} tokens long, and the largest request was
{max(tokens for _, tokens, _ in sent):,}. Not a word is lost; the transcript has it all:
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
    agent = Agent(model, "scripted", WINDOW, MAX_OUTPUT, THRESHOLD, approve=approve)
    agent.thinking = True
    tell(f"""\
The model in this demonstration is scripted: no key is needed, nothing is sent.
All else is real: the loop, the tools, the layers, and the files, a copy in
{folder}
The context may grow to {THRESHOLD:,} tokens here, so that there is something to see.""")
    os.chdir(folder)
    try:
        for model.scene, scene in enumerate(SCENES, 1):
            model.enqueue(*scene.replies)
            model.summaries = [summary(model.scene)] * bool(scene.doing)
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
