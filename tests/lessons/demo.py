"""Every layer at work, as a lesson in seven scenes: no key, no network, no package.

    python3 agent.py --demo           all scenes; on a terminal Enter goes on, q leaves
    python3 agent.py --demo 2         scene 2 alone
    python3 tests/lessons/demo.py     the same, with a number too

The model is the tests' own `StubClient` with a script, so each request is checked as
the API would check it. All else is real; the files are a scratch copy of this project.
"""

import io
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/standin")]

import stub
from stub import CACHE_READ, CACHE_WRITE, StubClient, count, reply

import agent as program
from agent import Agent, AgentError, Limits, Terminal, show

WINDOW, THRESHOLD, MAX_OUTPUT = 20_000, 10_000, 4_000  # so small that layers must act
ROW = 1_000  # tokens that a row of the picture stands for
INDENT = {"initial_indent": "    ", "subsequent_indent": "    "}
fill = partial(textwrap.fill, width=79)


# --- The script ---


class Scene:
    """A line of `typed` is a prompt; a reply that is a text ends a turn."""

    max_messages = 0
    is_too_long = False  # whether the API refuses a prompt for its length

    def __init__(self, title, about, why, typed, *replies, **more):
        self.layer = title.partition(":")[0]  # which must act, and no other
        self.title, self.about, self.why = title, about, why
        self.typed, self.replies = typed.splitlines(), replies
        vars(self).update(more)


def use(tool, say="", thinking=None, **arguments):
    """A reply that calls a tool."""
    return reply(say, [(tool, arguments)], thinking)


def head(path, size, thinking=None):
    """A reply that prints so many bytes of a file, whatever its length."""
    return use("bash", command=f"head -c {size} {path}", thinking=thinking)


PLAN = ["[ ] write NOTES.md", "[ ] look at it once more"]
NOTES = "1. Old tool results become placeholders.\n2. A summary replaces the rest.\n"
SHORTER = object()  # from here on the API takes a tenth less than this request
REFUSAL = "Input is too long for requested model."  # as Amazon's servers say it
REMEDIES = (  # after the first refusal, the second, and each one more
    "Remedy: ask for a summary of all but the newest messages.",
    "The request for the summary is too long as well. Remedy: leave out the oldest.",
    "Still too long. Remedy: leave out more of them.",
)

SCENES = [
    Scene(
        "tool_result_budget: results that are too large go to disk",
        "Layer 1, first step, free. The results of one message may have 50,000 tokens "
        "together, or a third of the threshold if that is less. If they have more, "
        "each that is over its equal share is saved, and the model gets a preview of "
        "it. In the tutorials: s08's L3, and v5.",
        "the file alone would have filled the context. The preview has its beginning, "
        "its end and its path, which is enough to search it.",
        "Print agent.py. Which parts is it made of?",
        use("bash", command="cat agent.py", thinking="I look at the whole file."),
        use("grep", "It is on disk now.", path=".task_outputs", pattern="^# -+ "),
        "It has settings, the loop, three layers, and what these stand on.",
    ),
    Scene(
        "micro_compact: old results give way to placeholders",
        "Layer 1, third step, free. While the prompt cache is warm it acts over 0.7 of "
        "the threshold; when the cache has gone cold, over a quarter. It clears old "
        "results, but never the newest three. In the tutorials: s06, v5, s08's L2.",
        "a file can be read again. What a command printed is saved first, and the "
        "placeholder says where. The preview stays, because it has the path already. "
        "The thinking after the first change goes, because the API signs it together "
        "with all that stands before it, and would refuse it now.",
        "Read on: the settings, the state, and how the tests are built.",
        use("read_file", "", "Settings.", path="agent.py", offset=45, limit=90),
        head("tests/builders.py", 3_400, thinking="Now the tests."),
        head("tests/test_loop.py", 3_400),
        head("tests/test_layer1.py", 3_400),
        "Settings come first, then the state; tests are tables over builders.",
    ),
    Scene(
        "snip_compact: too many messages, so the middle is cut out",
        "Layer 1, second step, free. It is off by default, because it forgets without "
        "a summary; here MAX_MESSAGES=20 switches it on. In the tutorials: s08's L1.",
        "the first messages say what the work is, and the newest where it stands. Of "
        "the middle stay your words, and the calls whose results are still needed.",
        "How much stays of a large result, and how many of the newest results?",
        use("grep", path="agent.py", pattern="^PREVIEW_TOKENS"),
        use("grep", path="agent.py", pattern="^KEEP_RECENT"),
        "625 tokens stay of a large result, and the newest 3 results.",
        max_messages=20,
    ),
    Scene(
        "auto_compact: over the threshold, a summary replaces it all",
        "Layer 2, one request. What is left, in this order: your words, the summary, "
        "and the calls whose results are still needed. In the tutorials: s06, v5, s08's "
        "compact_history (L4).",
        "the three large results were new, so layer 1 had nothing to clear. Your words "
        "stay as you typed them, and the file that was read last is read again, "
        "because a summary loses both.",
        "Now the fake model: what does it check, and who uses it?",
        head("tests/conftest.py", 2_500, thinking="First a small one."),
        head("tests/standin/stub.py", 8_900, thinking="The fake model itself."),
        head("tests/standin/wire.py", 8_900),
        head("tests/measure/costs.py", 8_900, thinking="One more that uses it."),
        "It refuses what the API would: open tool calls, stale thinking and more.",
    ),
    Scene(
        "compact: the model asks for a summary itself",
        "Layer 3, one request: the tool `compact`, whose focus says what to keep. In "
        "the tutorials: s06, and s08, whose page ends the turn with it. Here it goes on.",
        "a piece of work was done, and the model does not need its details any more.",
        "Which functions of the fake model count tokens?",
        head("tests/test_stub.py", 5_000, thinking="Its tests name them."),
        head("tests/standin/stub.py", 5_000),
        use("compact", focus="count, tokens and usage in tests/standin/stub.py"),
        use("grep", path="tests/standin/stub.py", pattern="def (count|tokens)"),
        "In tests/standin/stub.py: tokens, and count for a whole request.",
    ),
    Scene(
        "compact: you ask for a summary",
        "Layer 3, one request: the same on your word. In the tutorials: v5.",
        "new work begins and need not carry all of the old, and you say what matters. "
        "Nobody waits for an answer here, so the last answer stays, at the end.",
        "How is the fake model tested?\n/compact the fake model\nAnd the tools?",
        head("tests/test_stub.py", 8_000),
        "By tables of bad requests, each beside the API's own words.",
        head("tests/test_tools.py", 6_000, thinking="Let me see."),
        "By calls, one at a time, in an empty folder: tests/test_tools.py.",
    ),
    Scene(
        "reactive_compact: the API refuses a prompt as too long",
        "Layer 3, one request, when the API says so. In the tutorials: s08. Here it "
        "takes less than the agent was told, and does not say how much. So the agent "
        f"takes its context for a full window, {WINDOW:,} tokens, until a reply counts it.",
        "work can go on only with less. The newest five messages stay, and the call to "
        "which the first of them belongs, because they are what the model is doing "
        "right now. They lose their thinking.",
        "Write what you found to NOTES.md, in a few lines.",
        head("tests/standin/stub.py", 3_000, thinking="Once more, to quote it."),
        use("todo_write", items=PLAN),
        use("write_file", path="NOTES.md", content=NOTES, thinking="I write it."),
        use("todo_write", items=["[x] write NOTES.md", PLAN[1]]),
        SHORTER,
        use("bash", command="cat NOTES.md"),
        "NOTES.md is in place: the layers in two lines.",
        is_too_long=True,
    ),
]


def summary(number):
    """What the model replies in this scene when it is asked for a summary."""
    known = "\n".join(f"   - {scene.replies[-1]}" for scene in SCENES[: number - 1])
    return reply(f"""\
<summary>
1. Request, intent and constraints: learn how this agent forgets.
2. Key concepts: three layers before each request; a transcript of it all.
3. Files and code: agent.py; the fake model in tests/standin; its tests.
4. Errors and fixes: a result was too large; it is in .task_outputs.
5. Findings:
{known}
6. All user messages: they stand above, word for word.
7. Pending tasks: none but the current work.
8. Current work: {SCENES[number - 1].typed[0]}
9. Next step: answer that; if it is done, wait for the user.
</summary>""")


OPENING = f"""\
A lesson in {len(SCENES)} scenes: how this agent forgets. The model is scripted, so no
key is needed and nothing is sent; the loop, the tools and the layers are real.
The threshold is {THRESHOLD:,} tokens, so that there is something to see; all tools may
run unasked. Prices are in input tokens: writing a token to the prompt cache
costs {CACHE_WRITE}, reading one from it {CACHE_READ}, a token of a summary {stub.OUTPUT}.
A layer's own line has the program's estimate (bytes / 4, corrected by the
replies); tables and bills count as the fake API does (bytes / {stub.BYTES_PER_TOKEN}).
The work is done in a scratch copy of this project, which may be deleted then:"""

# --- The stage ---


class Sent(NamedTuple):
    """A request as it is priced; `whole`: its tokens if nothing had been forgotten."""

    scene: int
    mark: str  # "#" work, "s" for a summary, "x" refused as too long
    tokens: int
    whole: int = 0
    read: int = 0
    price: float = 0


class WatchedAgent(Agent):
    """An agent that knows which messages it had before the last change of them."""

    def __setattr__(self, name, value):
        if name == "messages":
            vars(self)["before"] = vars(self).get("messages", [])
        super().__setattr__(name, value)


class Lesson(StubClient):
    """The scripted model, its agent, and what is told of them; summaries when asked."""

    def __init__(self):
        super().__init__(window=WINDOW, max_output=MAX_OUTPUT)
        self.sent, self.forgotten, self.bill = [], 0, None
        more = {"thinking": True, "approve": self.show_call, "emit": self.emit}
        limits = Limits(WINDOW, MAX_OUTPUT, THRESHOLD)
        more["unasked"] = True
        self.agent = WatchedAgent(limits=limits, client=self, model="scripted", **more)
        program.make_ready(self.agent)
        # the same numbers wherever the scratch copy is
        for part, text in self.agent.system.items():
            self.agent.system[part] = text.replace(os.getcwd(), "/demo")

    def show_call(self, *call):
        program.ask_person(self.out, self.agent, *call)

    def tell(self, text):
        show(self.out, "plain", text)

    def play(self, number, out):
        """Play a scene; raises AgentError where it is not what the script says."""
        scene, self.scene, self.out = SCENES[number - 1], number, out
        self.too_long, self.acted = [], []
        self.agent.limits.max_messages = scene.max_messages
        self.agent.last_request = time.time()  # no cache goes cold between two scenes
        self.enqueue(*(reply(r) if type(r) is str else r for r in scene.replies))
        title = f"--- Scene {number} of {len(SCENES)}. {scene.title} ".ljust(79, "-")
        self.tell(f"\n{title}\n{fill(scene.about)}")
        for line in scene.typed:
            self.tell("\n" + fill(f"> {line}", subsequent_indent="  "))
            program.work_on(self.agent, line)
        self.check(scene)

    def check(self, scene):
        """Raise AgentError where something else happened than the scene is about."""
        acted, left = ", ".join(self.acted) or "nothing", len(self.queue)
        wrong = [f"the API refused: {text}" for text in self.refused]
        wrong += [f"what acted: {acted}"] if acted != scene.layer else []
        wrong += [f"replies left over: {left}"] if left else []
        if bool(self.too_long) != scene.is_too_long:
            wrong.append(f"prompts that were too long: {len(self.too_long)}")
        if wrong:
            raise AgentError("; ".join(wrong))

    def emit(self, style, text):
        """Show an event; where a layer acted also what it changed, why, and a bill."""
        show(self.out, style, text)
        acted = re.match(r"\[(\w+)\] .* -> [\d,]+ tokens", text)
        if style != "layer" or not acted:
            return
        self.acted.append(acted[1])
        scene, old, new = SCENES[self.scene - 1], self.agent.before, self.agent.messages
        if acted[1] != scene.layer:
            return
        if scene.layer == "auto_compact":
            self.tell("\n".join(summary_in(new)))
        self.tell("\n".join(changed(old, new)))
        self.tell(fill(f"Why: {scene.why}", **INDENT))
        freed = count("", [], old) - count("", [], new)
        self.forgotten += freed
        start = max(i for i, sent in enumerate(self.sent) if sent.mark == "#")
        self.bill = lambda: bill(self.sent[start:], freed)

    def answer(self, request):
        """The message for `request`, which is noted in `sent`."""
        last = request["messages"][-1]["content"][-1]
        asked = "these nine sections:" in last.get("text", "")
        length = count(request["system"], request["tools"], request["messages"])
        if self.queue and self.queue[0] is SHORTER:
            self.queue.popleft()
            self.window = length * 9 // 10
        if asked and length <= self.window:
            self.queue.appendleft(summary(self.scene))
        try:
            answer = super().answer(request)
        except stub.TooLong as error:
            remedy = REMEDIES[min(len(self.too_long), len(REMEDIES)) - 1]
            self.sent.append(Sent(self.scene, "x", length))
            self.tell(f"(The API refuses it.)\n{fill(remedy, **INDENT)}")
            raise stub.TooLong(REFUSAL) from error
        read = answer["usage"]["cache_read_input_tokens"]
        price = CACHE_READ * read + CACHE_WRITE * (length - read)
        price += stub.OUTPUT * answer["usage"]["output_tokens"] * asked
        mark, whole = "s" if asked else "#", length + self.forgotten
        self.sent.append(Sent(self.scene, mark, length, whole, read, price))
        if self.bill and not asked:
            self.tell("\n".join(self.bill()))
            self.bill = None
        return answer


# --- What changed, and what it costs ---

SHOWN = ("you typed", "summary", "note", "answer")  # kinds whose beginning is shown


def parts(messages):
    """(What it is, its text) of each block, in a list a message."""
    names = {e.call["id"]: e.call["name"] for e in program.exchanges(messages)}
    for message in messages:
        if program.is_typed(message):
            yield [("you typed", message["content"])]
        else:
            yield [described(b, message["role"], names) for b in message["content"]]


def described(block, role, names):
    """What a block is, and its text."""
    match block["type"]:
        case "tool_use":
            return f"tool_use {block['name']}", json.dumps(block["input"])
        case "tool_result":
            text = block["content"].replace(".task_outputs/tool-results", "...")
            if text.startswith("[Previous"):
                return text, text
            is_preview = text.startswith("<persisted-output>")
            kind = "preview" if is_preview else "tool_result"
            return f"{kind} {names[block['tool_use_id']]}", text
        case "text" if role == "assistant":
            return "answer", block["text"]
        case "text":
            is_summary = block["text"].startswith("[Conversation compressed.")
            return "summary" if is_summary else "note", block["text"]
    return block["type"], block[block["type"]]


def summary_in(messages):
    """The lines of the summary in a list of messages."""
    blocks = itertools.chain(*parts(messages))
    text = next(text for kind, text in blocks if kind == "summary")
    margin = {"initial_indent": "    | ", "subsequent_indent": "    | "}
    return [fill(line, **margin) for line in text.split("\n")]


def changed(old, new):
    """The lines that show what of the list of messages went, came and stayed."""
    before, after = (Counter(itertools.chain(*parts(some))) for some in (old, new))
    yield "    blocks taken out (-) and put in (+)".ljust(73) + "tokens"
    for sign, some in ("-", before - after), ("+", after - before):
        rows = defaultdict(list)
        for kind, text in some.elements():
            rows[kind].append(text)
        for kind, texts in rows.items():
            one = f"{kind} {texts[0]}" if kind in SHOWN else kind
            label = f"{len(texts)} {kind}" if len(texts) > 1 else one
            size = sum(map(stub.tokens, texts))
            yield f"    {sign} {' '.join(label.split()):<64.64} {size:>8,}"
    same = sum(message in new for message in old)
    yield f"      {same} of {len(old)} messages are unchanged"
    yield fill(f"The list is now: {in_order(new)}.", **INDENT)


def in_order(messages):
    """What each message is, in their order; neighbours of a kind are counted."""
    kinds = (" + ".join(kind for kind, _ in blocks) for blocks in parts(messages))
    short = (re.sub(r"\[Previous.*?\]", "placeholder", kind) for kind in kinds)
    runs = ((kind, len([*run])) for kind, run in itertools.groupby(short))
    return "; ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in runs)


def bill(sent, freed):
    """The requests around what a layer did, in lines, and when it has paid."""
    yield "    the bill, in tokens       sent    from the cache       price"
    before, *_, after = sent
    summaries = [("the summary", s) for s in sent if s.mark == "s"]
    whole, known = after.tokens + freed, before.tokens
    price = CACHE_READ * known + CACHE_WRITE * (whole - known)
    without = after._replace(tokens=whole, read=known, price=price)
    rows = ("request before", before), *summaries, ("request after", after)
    for name, s in *rows, ("without forgetting", without):
        yield f"    {name:<20}{s.tokens:>10,}{s.read:>18,}{s.price:>12,.0f}"
    extra = after.price + sum(s.price for _, s in summaries) - without.price
    pays = math.ceil(extra / (CACHE_READ * freed))
    later = f"after {pays} more request{'s' * (pays > 1)}" if pays > 0 else "at once"
    yield f"    {freed:,} tokens less in each request: paid back {later}"


# --- The closing, and the command line ---


def picture(sent):
    """The lines of a drawing: the size of each request, in the order they were sent."""
    yield " tokens"
    for row in range(max(s.tokens for s in sent) // ROW * ROW, -1, -ROW):
        empty = "-" if row == THRESHOLD else " "
        bars = "".join(s.mark if s.tokens > row else empty for s in sent)
        yield f"{row:>7,} |{bars}".rstrip() + " threshold" * (empty == "-")
    yield " " * 8 + "+" + "-" * len(sent) + "> requests, in their order"
    scenes = [s.scene for s in sent]
    first = [n if n != before else " " for n, before in zip(scenes, [0, *scenes])]
    yield "  scene  " + "".join(map(str, first)).rstrip()
    yield "\n         # request   s asks for a summary   x refused as too long"


def closing(lesson):
    """The picture, what was spared, and where everything stands."""
    answered = [s for s in lesson.sent if s.mark != "x"]
    sent, most = sum(s.tokens for s in answered), max(s.tokens for s in answered)
    whole = sum(s.whole for s in answered if s.mark == "#")
    told = (
        f"{sent:,} tokens were sent, {most:,} at most at once, "
        f"{sum(s.read for s in answered) / sent:.0%} of them from the cache. Without "
        f"forgetting it would have been {whole:,}. Not a word is lost, the transcript "
        "has them all:"
    )
    title = "--- The size of the context, request by request ".ljust(79, "-")
    drawing = "\n".join(picture(lesson.sent))
    path = lesson.agent.transcript.resolve()
    return f"\n{title}\n\n{drawing}\n\n{fill(told)}\n{path}"


def scratch_copy():
    """A new folder with a copy of the files that the scenes are about."""
    folder = Path(tempfile.mkdtemp(prefix="agent-demo-")).resolve()
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "agent.py", folder)
    return folder


def goes_on(number):
    """Whether to play this scene: on a terminal the person says so, by Enter."""
    if number == 1 or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    print(f"\nEnter: scene {number} of {len(SCENES)}   q: leave ", end="", flush=True)
    return sys.stdin.readline() == "\n"


def main(scene, out):
    """Play all scenes, or one; returns 0, 1 if it fails, 2 if there is none such."""
    if not 0 <= scene <= len(SCENES):
        print(f"There is no scene {scene}: give 1 to {len(SCENES)}.", file=sys.stderr)
        return 2
    silent = Terminal(io.StringIO())
    back, folder = Path.cwd(), scratch_copy()
    os.chdir(folder)
    try:
        lesson = Lesson()
        show(out, "plain", f"{OPENING}\n{folder}")
        for number in range(1, (scene or len(SCENES)) + 1):
            if scene == 0 and not goes_on(number):
                return 0
            lesson.play(number, out if scene in (0, number) else silent)
        on = f"\nOn: python3 agent.py --demo {scene % len(SCENES) + 1}"
        show(out, "plain", on if scene else closing(lesson))
    except (AgentError, stub.EmptyQueue) as error:
        text = f"Scene {lesson.scene} came out otherwise than its script says"
        show(out, "error", f"{text}: {error}")
        return 1
    finally:
        os.chdir(back)
    return 0


if __name__ == "__main__":
    sys.exit(program.main(["--demo", *sys.argv[1:]]))
