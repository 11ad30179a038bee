"""Every layer at work, as a lesson in seven scenes: no key, no network, no package.

    python3 agent.py --demo       all scenes; on a terminal Enter goes on, q leaves
    python3 agent.py --demo 2     scene 2 alone

The model is the tests' own `StubClient` with a script, so each request is checked as
the API would check it. All else is real; the files are a scratch copy of this project.
"""

import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter, defaultdict, namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from stub import BYTES_PER_TOKEN, EmptyQueue, StubClient, TooLong, count, reply, tokens

from agent import (
    CACHE_READ,
    CACHE_WRITE,
    Agent,
    AgentError,
    Terminal,
    begin,
    blocks,
    part_of,
    pays_after,
    show,
    work_on,
)

WINDOW, THRESHOLD, MAX_OUTPUT = 20_000, 10_000, 4_000  # so small that layers must act
OUTPUT = 5  # the price of a token of a summary, in those of an input token
ROW = 1_000  # tokens that a row of the picture stands for
INDENT = {"initial_indent": "    ", "subsequent_indent": "    "}
fill = partial(textwrap.fill, width=79)

# a request, priced; its mark: "#" work, "s" for a summary, "x" refused as too long
Sent = namedtuple("Sent", "scene tokens read price mark")


def scene(title, about, why, typed, *replies, max_messages=0, refused=""):
    """The title begins with the layer that must act; a line of `typed` is a prompt, a
    reply that is a text ends a turn, a line of `refused` explains a refusal."""
    return SimpleNamespace(layer=title.partition(":")[0], **locals())


def use(tool, say="", thinking=None, **arguments):
    return reply(say, [(tool, arguments)], thinking)


def head(path, size, thinking=None):
    """A reply that prints so many bytes of a file, whatever its length."""
    return use("bash", command=f"head -c {size} {path}", thinking=thinking)


# --- The script ---

PLAN = ["[ ] write NOTES.md", "[ ] look at it once more"]
NOTES = "1. Old tool results become placeholders.\n2. A summary replaces the rest.\n"
TOO_LONG = object()  # from here on the API takes a tenth less than this request
REFUSED = """\
It is over the API's limit. Remedy: one summary of all but the newest messages.
The summary's request is as long. Remedy: leave out the oldest quarter of its messages.
That quarter was short: still too long. Remedy: leave out the older half. Now it fits.
"""

SCENES = [
    scene(
        "tool_result_budget: a result that is too large goes to disk",
        "Layer 1, first step, free: a new result over a quarter of the threshold is "
        "saved, and the model gets a preview. In the tutorials: s08's L3, and v5.",
        "it would have filled the context; the preview is enough to search it.",
        "Print agent.py. Which parts is it made of?",
        use("bash", command="cat agent.py", thinking="I look at the whole file."),
        use("grep", "It is on disk now.", path=".task_outputs", pattern="^# -+ "),
        "It has settings, the loop, three layers, and what these stand on.",
    ),
    scene(
        "micro_compact: old results give way to placeholders",
        "Layer 1, third step, free: over 0.7 of the threshold, or a quarter of it when "
        "the prompt cache has gone cold anyway, old results are cleared, all but the "
        "newest three. In the tutorials: s06, v5, s08's L2.",
        "a file can be read again; what a command printed is saved first, and the "
        "placeholder says where. The thinking behind the first change goes too: it is "
        "signed over all that stood before it, so the API would refuse it.",
        "Read on: the settings, the state, and how the tests are built.",
        use("read_file", path="agent.py", offset=45, limit=90, thinking="Settings."),
        head("tests/builders.py", 3_400, thinking="Now the tests."),
        head("tests/test_loop.py", 3_400),
        head("tests/test_layer1.py", 3_400),
        "Settings come first, then the state; tests are tables over builders.",
    ),
    scene(
        "snip_compact: too many messages, so the middle is cut out",
        "Layer 1, second step, free, and off by default since it forgets without a "
        "summary: here over 20 messages (MAX_MESSAGES=20). In the tutorials: s08's L1.",
        "the first messages say what the work is, the newest where it stands.",
        "How much stays of a large result, and how many of the newest results?",
        use("grep", path="agent.py", pattern="^PREVIEW_CHARS"),
        use("grep", path="agent.py", pattern="^KEEP_RECENT"),
        "2,000 characters stay of a large result, and the newest 3 results.",
        max_messages=20,
    ),
    scene(
        "auto_compact: over the threshold, a summary replaces it all",
        "Layer 2, one request. In the tutorials: s06, v5, s08's compact_history (L4).",
        "the three large results were new, so layer 1 had nothing to clear. Your words "
        "stay as they are, and the file read last is put back: a summary loses both.",
        "Now the fake model: what does it check, and who uses it?",
        head("tests/conftest.py", 2_500, thinking="First a small one."),
        head("tests/standin/stub.py", 8_900, thinking="The fake model itself."),
        head("tests/lessons/naive.py", 8_900),
        head("tests/measure/costs.py", 8_900, thinking="One more that uses it."),
        "It refuses what the API would: open tool calls, stale thinking and more.",
    ),
    scene(
        "compact: the model asks for a summary itself",
        "Layer 3, one request: the tool `compact`, whose focus says what to keep. In "
        "the tutorials: s06, s08, whose loop ends with it; here the work goes on.",
        "a piece of work was done, its details are needed no more: the model knows.",
        "Which functions of the fake model count tokens?",
        head("tests/test_stub.py", 5_000, thinking="Its tests name them."),
        head("tests/standin/stub.py", 5_000),
        use("compact", focus="count, tokens and usage in tests/standin/stub.py"),
        use("grep", path="tests/standin/stub.py", pattern="def (count|tokens|usage)"),
        "In tests/standin/stub.py: tokens, count, and usage for the cache.",
    ),
    scene(
        "compact: you ask for a summary",
        "Layer 3, one request: the same on your word. In the tutorials: v5.",
        "new work begins and need not carry all of the old; you say what matters.",
        "How is the fake model tested?\n/compact the fake model\nAnd the tools?",
        head("tests/test_stub.py", 8_000),
        "By tables of bad requests, each beside the API's own words.",
        head("tests/test_tools.py", 6_000, thinking="Let me see."),
        "By calls, one at a time, in an empty folder: tests/test_tools.py.",
    ),
    scene(
        "reactive_compact: the API refuses a prompt as too long",
        "Layer 3, one request, when the API says so. In the tutorials: s08. Here its "
        "limit is suddenly less than the agent was told, as after a change of model.",
        "work can go on only with less. The newest messages stay as they are, but for "
        "their thinking: they are what the model is doing right now.",
        "Write what you found to NOTES.md, in a few lines.",
        head("tests/standin/stub.py", 3_000, thinking="Once more, to quote it."),
        use("todo_write", items=PLAN),
        use("write_file", path="NOTES.md", content=NOTES, thinking="I write it."),
        use("todo_write", items=["[x] write NOTES.md", PLAN[1]]),
        TOO_LONG,
        use("bash", command="cat NOTES.md"),
        "NOTES.md is in place: the layers in two lines.",
        refused=REFUSED,
    ),
]


def summary(number):
    known = "\n".join(f"   - {scene.replies[-1]}" for scene in SCENES[: number - 1])
    return reply(f"""\
<analysis>{number} pieces of work, all of them about this project.</analysis>
<summary>
1. Request, intent and constraints: learn how this agent forgets.
2. Key concepts: three layers before each request; a transcript of it all.
3. Files and code: agent.py; the fake model in tests/standin; its tests.
4. Errors and fixes: a result was too large; it is in .task_outputs.
5. Findings:
{known}
6. All user messages: they stand below, word for word.
7. Pending tasks: none but the current work.
8. Current work: {SCENES[number - 1].typed.splitlines()[0]}
9. Next step: answer that; if it is done, wait for the user.
</summary>""")


OPENING = f"""\
A lesson in {len(SCENES)} scenes: how this agent forgets. The model is scripted, so no
key is needed and nothing is sent; the loop, the tools and the layers are real.
The threshold is {THRESHOLD:,} tokens, so that there is something to see; all tools may
run unasked. Prices are in those of an input token: {CACHE_WRITE} for one written to
the prompt cache, {CACHE_READ} for one read from it, {OUTPUT} for one of a summary.
A layer's own line has the program's estimate (bytes / 4, corrected by the
replies); tables and bills count as the fake API does (bytes / {BYTES_PER_TOKEN}).
The work is done in a scratch copy of this project, which may be deleted then:"""

# --- The stage ---


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
        self.sent, self.bill = [], None
        more = {"thinking": True, "approve": lambda name, what: None, "emit": self.emit}
        limits = {"window": WINDOW, "max_output": MAX_OUTPUT, "threshold": THRESHOLD}
        self.agent = WatchedAgent(client=self, model="scripted", **limits, **more)
        begin(self.agent)
        # the same numbers wherever the scratch copy is
        for part, text in self.agent.system.items():
            self.agent.system[part] = text.replace(os.getcwd(), "/demo")

    def tell(self, text):
        show(self.out, "plain", text)

    def play(self, number, out):
        """Play a scene; raises AgentError where it is not what the script says."""
        scene, self.scene, self.out = SCENES[number - 1], number, out
        self.reasons = iter(scene.refused.splitlines())
        self.agent.max_messages, self.too_long, self.acted = scene.max_messages, [], []
        self.enqueue(*(reply(r) if type(r) is str else r for r in scene.replies))
        title = f"--- Scene {number} of {len(SCENES)}. {scene.title} ".ljust(79, "-")
        self.tell(f"\n{title}\n{fill(scene.about)}")
        for line in scene.typed.splitlines():
            self.tell("\n" + fill(f"> {line}", subsequent_indent="  "))
            work_on(self.agent, line)
        came = self.acted, len(self.too_long), self.refused, [*self.queue]
        if came != ([scene.layer], len(scene.refused.splitlines()), [], []):
            raise AgentError(f"scene {number} came out otherwise: {came}")

    def emit(self, style, text):
        """Show an event; where a layer acted also what it changed, why, and a bill."""
        show(self.out, style, text)
        acted = re.match(r"\[(\w+)\] .*?([\d,]+) -> ([\d,]+) tokens", text)
        if style != "layer" or not acted:
            return
        scene, old, new = SCENES[self.scene - 1], self.agent.before, self.agent.messages
        self.acted.append(acted[1])
        if scene.layer == "auto_compact":
            said = new[0]["content"][0]["text"].partition("\n")[2]
            self.tell(textwrap.indent(said, "    | "))
        self.tell("\n".join(changed(old, new)))
        self.tell(fill(f"Why: {scene.why}", **INDENT))
        before, after = (int(number.replace(",", "")) for number in acted.groups()[1:])
        start = max(i for i, sent in enumerate(self.sent) if sent.mark == "#")
        rewrites, freed = pays_after(old, new), before - after
        self.bill = lambda: bill(self.sent[start:], rewrites, freed)

    def answer(self, request):
        """The message for `request`, which is noted in `sent`."""
        last = request["messages"][-1]["content"][-1]
        asked = isinstance(last, dict) and "<analysis>" in last.get("text", "")
        length = count(request["system"], request["tools"], request["messages"])
        if self.queue and self.queue[0] is TOO_LONG:
            self.queue.popleft()
            self.window = length * 9 // 1_000 * 100
        if asked and length <= self.window:
            self.queue.appendleft(summary(self.scene))
        try:
            answer = super().answer(request)
        except TooLong as error:
            self.sent.append(Sent(self.scene, length, 0, 0, "x"))
            why = fill(next(self.reasons, ""), **INDENT)
            self.tell(f"(refused by the API: {error})\n{why}")
            raise
        read = answer["usage"]["cache_read_input_tokens"]
        price = CACHE_READ * read + CACHE_WRITE * (length - read)
        price += OUTPUT * answer["usage"]["output_tokens"] * asked
        self.sent.append(Sent(self.scene, length, read, price, "s" if asked else "#"))
        if self.bill and not asked:
            self.tell("\n".join(self.bill()))
            self.bill = None
        return answer


# --- What changed, and what it costs ---


def parts(messages):
    """(What it is, its beginning, its text) of each block, in a list a message."""
    names = {b["id"]: b["name"] for m in messages for b in blocks(m, "tool_use")}
    for message in messages:
        if isinstance(message["content"], str):
            yield [("you typed", message["content"], message["content"])]
        else:
            yield [described(block, message, names) for block in message["content"]]


def described(block, message, names):
    kind = block["type"]
    ours = kind == "text" and "carried" in message
    text = next(filter(None, map(block.get, ("content", "text", kind))), "")
    if kind == "tool_use":
        return f"tool_use {block['name']}", "", json.dumps(block["input"])
    short = text.replace(".task_outputs/tool-results", "...")
    if text.startswith("[Previous"):
        return short, "", text
    if text.startswith("<persisted-output>"):
        return "preview", short.split("\n")[1], text
    name = f" {names[block['tool_use_id']]}" if kind == "tool_result" else ""
    return (
        f"{part_of(block) if ours else kind}{name}",
        text if kind == "text" else "",
        text,
    )


def changed(old, new):
    """The lines that show what of the list of messages went, came and stayed."""
    was, now = [*parts(old)], [*parts(new)]
    before, after = Counter(itertools.chain(*was)), Counter(itertools.chain(*now))
    yield "    messages before (-) and after (+)".ljust(73) + "tokens"
    for sign, some in ("-", before - after), ("+", after - before):
        rows = defaultdict(list)
        for kind, detail, text in some.elements():
            rows[kind, detail * (sign == "+")].append((detail, tokens(text)))
        for (kind, _), row in rows.items():
            label = f"{len(row)} {kind}" if len(row) > 1 else f"{kind} {row[0][0]}"
            size = sum(size for _, size in row)
            yield f"    {sign} {' '.join(label.split()):<64.64} {size:>8,}"
    same = [message in new for message in old]
    ends = {"the first": same.index(False), "the newest": same[::-1].index(False)}
    where = "".join(f", {place} {n}" for place, n in ends.items() if n)
    yield f"      {sum(same)} of {len(old)} messages unchanged{where}"
    stay = [b[0] for some in now if some not in was for b in some if b in before]
    if stay:
        yield f"      in the others stay: {', '.join(dict.fromkeys(stay))}"


def bill(sent, rewrites, freed):
    """The requests around what a layer did, in lines, and when it has paid."""
    yield "    the bill, in tokens       sent    from the cache       price"
    summaries = [("the summary", s) for s in sent if s.mark == "s"]
    rows = ("request before", sent[0]), *summaries, ("request after", sent[-1])
    for name, s in rows:
        yield f"    {name:<20}{s.tokens:>10,}{s.read:>18,}{s.price:>12,.0f}"
    extra = sum(s.price for _, s in summaries)
    pays = round(rewrites + extra / (CACHE_READ * freed))
    after = f"after {pays} request{'s' * (pays > 1)}" if pays else "at once"
    yield f"    {freed:,} tokens less in each request: paid back {after}"


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
    agent, most = lesson.agent, max(s.tokens for s in lesson.sent)
    sent, read, whole = (agent.bill[name] for name in ("sent", "read", "unforgotten"))
    told = (
        f"{sent:,} tokens were sent, {most:,} at most at once, {read / sent:.0%} "
        f"of them from the cache; without forgetting it would be {whole:,}. Not a "
        "word is lost, the transcript has them all:"
    )
    title = "--- The size of the context, request by request ".ljust(79, "-")
    drawing = "\n".join(picture(lesson.sent))
    return f"\n{title}\n\n{drawing}\n\n{fill(told)}\n{agent.transcript.resolve()}"


def scratch_copy():
    """A new folder with a copy of the files that the scenes are about."""
    project = Path(__file__).resolve().parents[2]
    folder = Path(tempfile.mkdtemp(prefix="agent-demo-")).resolve()
    shutil.copytree(project / "tests", folder / "tests")
    shutil.copy(project / "agent.py", folder)
    return folder


def goes_on(number):
    """Whether to play this scene: on a terminal the person says so, by Enter."""
    if number == 1 or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    print(f"\nEnter: scene {number} of {len(SCENES)}   q: leave ", end="", flush=True)
    return sys.stdin.readline() == "\n"


def main(scene):
    """Play all scenes, or one; returns 0, 1 if it fails, 2 if there is none such."""
    if not 0 <= scene <= len(SCENES):
        print(f"There is no scene {scene}: give 1 to {len(SCENES)}.", file=sys.stderr)
        return 2
    out, silent = Terminal(sys.stdout), Terminal(io.StringIO())
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
    except (AgentError, EmptyQueue) as error:
        show(out, "error", f"The demonstration failed: {error}")
        return 1
    finally:
        os.chdir(back)
    return 0
