"""A lesson in seven scenes that shows every layer at work.

    python3 agent.py --demo           all scenes; on a terminal, Enter plays the next
    python3 agent.py --demo 2         only scene 2
    python3 tests/lessons/demo.py     the same; takes a number too

It needs no key, no network and no packages. The model is the tests' `StubClient` with a
script, so every request is checked as the API would check it. Everything else is real.
The files are those of a made-up library (scenery.py), in a scratch folder.
"""

import io
import itertools
import json
import math
import os
import re
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests/standin"))
sys.path.append(str(ROOT))  # last, because a file there can have any name

import scenery
import stub
from stub import CACHE_READ, CACHE_WRITE, StubClient, count, reply

import agent as program
from agent import Agent, AgentError, Limits, Terminal, show

WINDOW, THRESHOLD, MAX_OUTPUT = 20_000, 10_000, 4_000  # so small that the layers act
ROW = 1_000  # tokens per row of the picture
LATE = 12  # a change that pays off after more requests than this needs an "only"
INDENT = {"initial_indent": "    ", "subsequent_indent": "    "}
fill = partial(textwrap.fill, width=79)


# --- The script ---


class Scene:
    """What the user types, one prompt a line, and what the model replies.

    A reply that is plain text ends its turn.
    """

    max_messages = 0
    is_too_long = False  # whether the API rejects a prompt as too long

    def __init__(self, title, about, why, typed, *replies, **more):
        self.layer = title.partition(":")[0]  # the only one that may act
        self.title, self.about, self.why = title, about, why
        self.typed, self.replies = typed.splitlines(), replies
        vars(self).update(more)


def use(tool, say="", thinking=None, **arguments):
    """Return a reply that calls a tool."""
    return reply(say, [(tool, arguments)], thinking)


def cat(path, thinking=None):
    """Return a reply that prints a file."""
    return use("bash", command=f"cat {path}", thinking=thinking)


def lines(path, first, last, thinking=None):
    """Return a reply that prints these lines of a file."""
    return use("bash", command=f"sed -n {first},{last}p {path}", thinking=thinking)


PLAN = ["[ ] write NOTES.md", "[ ] look at it once more"]
NOTES = "1. A renewal fails if its loan has no date.\n2. The letters have no tests.\n"
SHORTER = object()  # from here on the API accepts a third less than this request
REFUSAL = "Input is too long for requested model."  # in the words of Amazon Bedrock
REMEDIES = (  # after the first rejection, the second, and any later one
    "The fix: ask for a summary, and keep the newest messages as well.",
    "The request for the summary is too long, too. The fix: first ask for one of the "
    "older half.",
    "Still too long. The fix: put a note where the summary would be.",
)

SCENES = [
    Scene(
        "tool_result_budget: oversized results go to disk",
        "Layer 1, first step, no request. The results in one message may have at most 50,000 "
        "tokens or a third of the threshold, whichever is smaller. If they have more, "
        "each result over its equal share is saved to disk, and the model sees a "
        "preview instead. In learn-claude-code: s08's L3, and v5.",
        "the log alone would have filled the context. The preview shows its path, its "
        "beginning and its end, which is enough to search it.",
        "What went wrong last night? See night.log.",
        cat("night.log", "I'll look at the whole log."),
        use("grep", "It's on disk now.", path=".task_outputs", pattern="ERROR"),
        f"{scenery.FAILED} renewals failed: fees.py wants a date, `due`, that some "
        "loans don't have.",
    ),
    Scene(
        "micro_compact: placeholders replace old results",
        "Layer 1, third step, no request. It clears old results, but never the newest "
        f"{program.KEEP_RECENT}. While the prompt cache is warm, it waits until the "
        "context exceeds 0.7 of the threshold; once the cache is cold, a quarter is "
        "enough. In learn-claude-code: s06, v5, s08's L2.",
        "the model can read a file again. It can't get back what a command or a "
        "search printed, so that is saved first, and the placeholder says where. The "
        "preview stays, because it already names a file. The thinking after the first "
        "change is dropped: the API signs each thought together with everything "
        "before it, so it would now be rejected.",
        "How are fees made and loans renewed, and how is that tested?",
        use("read_file", "", "The fees.", path="fees.py"),
        cat("loans.py", "Now the loans."),
        lines("tests.py", 1, 70),
        lines("tests.py", 71, 140),
        "By a function for each case; the tests are tables of days and pence.",
    ),
    Scene(
        "snip_compact: too many messages, so the middle is cut out",
        "Layer 1, second step, no request. It's off by default, because it forgets without a "
        "summary; here, MAX_MESSAGES=20 switches it on. In learn-claude-code: s08's L1.",
        "the first messages say what the work is about, and the newest say how far it "
        "has got. From the middle, your own messages stay, and the calls whose results "
        "are still needed.",
        "How long is a loan, and how many may a member have?",
        use("grep", path="loans.py", pattern="^LOAN_DAYS"),
        use("grep", path="loans.py", pattern="^MAX_LOANS"),
        f"A loan is for {scenery.LOAN_DAYS} days, and a member may have "
        f"{scenery.MAX_LOANS}.",
        max_messages=20,
    ),
    Scene(
        "auto_compact: a summary replaces the history",
        "Layer 2, one request, over the threshold. It leaves, in this order: your "
        "older messages with the calls from before that are still needed, the summary with "
        "an index, your request in progress, calls of this turn that are still needed, "
        "and the newest messages. In learn-claude-code: s06, v5, s08's "
        "compact_history "
        "(L4).",
        "the large results were new, so layer 1 had nothing to clear. Your messages "
        "stay as you typed them, the newest call stays with its result, and the file "
        "that was read last is read again, because a summary would lose all of this.",
        "Now the catalogue: how does it rank books, and who asks for it?",
        cat("catalogue.py", "The catalogue itself."),
        cat("pages.py"),
        lines("tests.py", 1, 60, "One more, which may use it."),
        "It ranks them by title, subject, word, year or language, for pages.py.",
    ),
    Scene(
        "compact: the model asks for a summary",
        "Layer 3, one request. The model calls the tool `compact`, whose focus says "
        "what to keep. In learn-claude-code: s06, and s08, whose page ends the turn with "
        "it. Here the work goes on.",
        "a piece of work is done, and the model no longer needs its details.",
        "Which functions of the catalogue count?",
        lines("pages.py", 1, 40, "The pages name them."),
        lines("catalogue.py", 100, 200),
        use("compact", focus="what catalogue.py counts and ranks"),
        use("grep", path="catalogue.py", pattern="def count_"),
        "Ten, from count_books_by_title to count_authors_by_language.",
    ),
    Scene(
        "compact: you ask for a summary",
        "Layer 3, one request. The same, but this time you ask for it. In "
        "learn-claude-code: v5.",
        "new work begins that doesn't need all of the old, and you say what matters. "
        "Nobody is waiting for an answer, so the last one stays, at the end.",
        "How are the loans tested?\n/compact the catalogue\nAnd the letters?",
        cat("tests.py"),
        "By tables: after so many days, so many pence.",
        lines("pages.py", 1, 70, "Let me see."),
        "They aren't: tests.py has no letters.",
    ),
    Scene(
        "reactive_compact: the API rejects a prompt as too long",
        "Layer 3, one request, when the API says so. In learn-claude-code: s08. In this "
        "scene the API accepts less than the agent was told, and doesn't say how much. "
        "Even the request for a summary is too long, so a note takes its place.",
        "the work can only go on with less. The newest messages stay, because they're "
        "what the model is doing right now: as many as fit into an eighth of the history. "
        "They lose their thinking.",
        "Write what you found to NOTES.md, in a few lines.",
        lines("fees.py", 1, 50, "Once more, to quote it."),
        use("todo_write", items=PLAN),
        use("write_file", path="NOTES.md", content=NOTES, thinking="Now I write it."),
        use("todo_write", items=["[x] write NOTES.md", PLAN[1]]),
        SHORTER,
        use("bash", command="cat NOTES.md"),
        "NOTES.md is in place: what to fix, in two lines.",
        is_too_long=True,
    ),
]


SUMMARY = f"""\
1. Request, intent and constraints: find out why renewals failed last
   night, and how the program is built.
2. Key concepts: loans and their fees; a catalogue of books.
3. Files and code: fees.py and loans.py have a function for each case.
   catalogue.py finds, ranks, counts, merges and lists books and
   authors; pages.py shows, prints and sends letters.
4. Errors and fixes: night.log was too large to print; its text is in
   .task_outputs.
5. Findings: {scenery.FAILED} renewals failed, because a loan had no `due`; a loan is
   for {scenery.LOAN_DAYS} days, and a member may have {scenery.MAX_LOANS}.
6. All user messages: last night, the fees and their tests, the limits
   (answered); the catalogue (open).
7. Pending tasks: the question about the catalogue.
8. Current work: read catalogue.py, pages.py and tests.py.
9. Next step: say how books are ranked, and who asks for it."""


def summary(number):
    """Return the model's reply to the request for a summary in this scene."""
    if number == 4:  # the page shows this one
        return reply(f"<summary>\n{SUMMARY}\n</summary>")
    known = "\n".join(f"   - {scene.replies[-1]}" for scene in SCENES[: number - 1])
    return reply(f"""\
<summary>
1. Request, intent and constraints: learn how the library's program works.
2. Key concepts: loans and their fees; a catalogue of books.
3. Files and code: fees.py, loans.py, catalogue.py, pages.py; tests.py.
4. Errors and fixes: the log was too large; it is in .task_outputs.
5. Findings:
{known}
6. All user messages: kept with this summary, word for word.
7. Pending tasks: none besides the current work.
8. Current work: {SCENES[number - 1].typed[0]}
9. Next step: answer that; if it is answered, wait for the user.
</summary>""")


OPENING = (
    f"A lesson in {len(SCENES)} scenes: how this agent forgets. The model is scripted, "
    "so you need no key, and nothing is sent. The loop, the tools and the layers are "
    f"real. The threshold is only {THRESHOLD:,} tokens, so that there is something to "
    "see, and no tool asks for approval.",
    "Prices are in full-price input tokens: writing a token to the prompt cache costs "
    f"{CACHE_WRITE}, reading it from there {CACHE_READ}, and each token of a summary "
    f"{stub.OUTPUT}. A layer's own line shows the program's estimate (bytes / 4, "
    "corrected by what the replies report). Tables and bills count as the stand-in for "
    f"the API does (bytes / {stub.BYTES_PER_TOKEN}): tables only texts, bills also the "
    "JSON around them.",
    "The work happens in a folder with the files of a made-up library, which you can "
    "delete afterwards:",
)

# --- The stage ---


class Sent(NamedTuple):
    """A request, and what it cost."""

    scene: int
    mark: str  # "#" work, "s" for a summary, "x" rejected as too long
    tokens: int
    whole: int = 0  # its tokens if nothing had been forgotten
    read: int = 0  # tokens that came from the prompt cache
    price: float = 0


class WatchedAgent(Agent):
    """An agent that remembers its messages from before their last change."""

    def __setattr__(self, name, value):
        if name == "messages":
            vars(self)["before"] = vars(self).get("messages", [])
        super().__setattr__(name, value)


class Lesson(StubClient):
    """The scripted model, its agent, and the narration."""

    def __init__(self):
        summaries = [lambda request: summary(self.scene)]
        own = {"asks": stub.asks_for_summary, "summaries": summaries}
        super().__init__(window=WINDOW, max_output=MAX_OUTPUT, **own)
        self.sent, self.forgotten, self.bill = [], 0, None
        more = {"thinking": True, "approve": self.show_call, "emit": self.emit}
        limits = Limits(WINDOW, MAX_OUTPUT, THRESHOLD, min_savings=THRESHOLD // 8)
        more["auto_approve"] = True
        self.agent = WatchedAgent(limits=limits, client=self, model="scripted", **more)
        program.make_ready(self.agent)
        # the same numbers wherever the scratch folder is, and on any day
        today, day = time.strftime("%A, %Y-%m-%d"), "Saturday, 2026-11-28"
        for part, text in self.agent.system.items():
            text = text.replace(os.getcwd(), "/demo").replace(today, day)
            self.agent.system[part] = text

    def show_call(self, *call):
        program.ask_approval(self.out, self.agent, *call)

    def tell(self, text):
        show(self.out, "plain", text)

    def play(self, number, out):
        """Play a scene; raise AgentError if it does not go as scripted."""
        scene, self.scene, self.out = SCENES[number - 1], number, out
        self.too_long, self.acted = [], []
        self.agent.limits.max_messages = scene.max_messages
        self.agent.last_request = time.time()  # the cache stays warm between two scenes
        self.enqueue(*(reply(r) if type(r) is str else r for r in scene.replies))
        title = f"--- Scene {number} of {len(SCENES)}. {scene.title} ".ljust(79, "-")
        self.tell(f"\n{title}\n{fill(scene.about)}")
        for line in scene.typed:
            self.tell("\n" + fill(f"> {line}", subsequent_indent="  "))
            program.handle_line(self.agent, line)
        self.check(scene)

    def check(self, scene):
        """Raise AgentError if anything happened that the scene is not about."""
        acted, left = ", ".join(self.acted) or "nothing", len(self.queue)
        wrong = [f"the API rejected a request: {text}" for text in self.refused]
        wrong += [f"layers that acted: {acted}"] if acted != scene.layer else []
        wrong += [f"replies left over: {left}"] if left else []
        if bool(self.too_long) != scene.is_too_long:
            wrong.append(f"prompts too long: {len(self.too_long)}")
        if wrong:
            raise AgentError("; ".join(wrong))

    def emit(self, style, text):
        """Show an event; if a layer acted, also show what it changed and why."""
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
        """Answer `request` from the script, and note it in `sent`."""
        asked = stub.asks_for_summary(request)
        length = count(request["system"], request["tools"], request["messages"])
        if self.queue and self.queue[0] is SHORTER:
            self.queue.popleft()
            self.window = length * 2 // 3
        try:
            answer = super().answer(request)
        except stub.TooLong as error:
            remedy = REMEDIES[min(len(self.too_long), len(REMEDIES)) - 1]
            self.sent.append(Sent(self.scene, "x", length))
            self.tell(f"(The API rejects it.)\n{fill(remedy, **INDENT)}")
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

SHOWN = (
    "you typed",
    "summary",
    "note",
    "answer",
)  # kinds that are shown with their first words


def parts(messages):
    """Yield, for each message, the kind and the text of its blocks."""
    names = {e.call["id"]: e.call["name"] for e in program.exchanges(messages)}
    for message in messages:
        if program.is_typed(message):
            yield [("you typed", message["content"])]
        else:
            yield [described(b, message["role"], names) for b in message["content"]]


def described(block, role, names):
    """Return the kind of a block, and its text."""
    match block["type"]:
        case "tool_use":
            return f"tool_use {block['name']}", json.dumps(block["input"])
        case "tool_result":
            text = block["content"].replace(str(program.RESULTS_DIR), "...")
            if text.startswith("[Previous"):
                return text, text
            is_preview = text.startswith("<persisted-output>")
            kind = "preview" if is_preview else "tool_result"
            return f"{kind} {names[block['tool_use_id']]}", text
        case "text" if role == "assistant":
            return "answer", block["text"]
        case "text":
            is_compressed = block["text"].startswith(program.COMPRESSED.split("{")[0])
            is_summary = is_compressed and program.NO_SUMMARY not in block["text"]
            return "summary" if is_summary else "note", block["text"]
    return block["type"], block[block["type"]]


def summary_in(messages):
    """Return the summary in a list of messages, or the note instead, line by line.

    The program's words before it were already broken into lines, for the model.
    """
    blocks = itertools.chain(*parts(messages))
    text = next((text for kind, text in blocks if kind in ("summary", "note")), "")
    before, tag, written = text.partition("<summary>")
    title, _, told = before.partition("\n")
    lines = [title, " ".join(told.split()), *f"{tag}{written}".split("\n")]
    return [
        fill(line, initial_indent="    | ", subsequent_indent=f"    | {depth(line)}  ")
        for line in lines
    ]


def depth(line):
    """Return the blanks at the beginning of a line."""
    return line[: len(line) - len(line.lstrip())]


def changed(old, new):
    """Yield lines that show which blocks left the list, and which joined it."""
    before, after = (Counter(itertools.chain(*parts(some))) for some in (old, new))
    yield "    blocks removed (-) and added (+)".ljust(73) + "tokens"
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
    """Name the messages in order; count neighbours of one kind."""
    kinds = (" + ".join(kind for kind, _ in blocks) for blocks in parts(messages))
    short = (re.sub(r"\[Previous.*?\]", "placeholder", kind) for kind in kinds)
    runs = ((kind, len([*run])) for kind, run in itertools.groupby(short))
    return "; ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in runs)


def bill(sent, freed):
    """Yield a bill for the requests around a change, and when the change pays off."""
    yield "    the bill, in tokens       sent    from the cache       price"
    before, *_, after = sent
    summaries = [("the summary", s) for s in sent if s.mark == "s"]
    whole, known = after.tokens + freed, before.tokens
    price = CACHE_READ * known + CACHE_WRITE * (whole - known)
    without = after._replace(tokens=whole, read=known, price=price)
    rows = ("request before", before), *summaries, ("request after", after)
    for name, s in *rows, ("without forgetting", without):
        yield f"    {name:<20}{s.tokens:>10,}{s.read:>18,}{s.price:>12,.0f}"
    again = (after.tokens - after.read) - (whole - known)  # tokens written again
    costs = sum(s.price for _, s in summaries), after.price - without.price, again
    told = paid_back(*costs, saved=CACHE_READ * freed)
    yield fill(f"{freed:,} tokens less in each request: {told}", **INDENT)


def paid_back(summary, more, again, saved):
    """Say when a change has paid for itself, and why that is soon or late.

    Its price is that of the summary, if there is one, and what the next request costs
    `more`, where `again` tokens had to be written to the cache again.
    """
    if summary + more <= 0:
        return "paid back at once, because even this request got cheaper."
    pays = math.ceil((summary + more) / saved)
    causes = [f"the summary cost {summary:,.0f}"] if summary else []
    if more < 0:
        causes.append(f"this request costs {-more:,.0f} less")
    elif again > 0:
        causes.append(f"{again:,} tokens were written to the cache again")
    only = "only " if pays > LATE else ""
    return (
        f"paid back after {pays} more request{'s' * (pays > 1)}, because forgetting "
        f"cost {summary + more:,.0f} ({', '.join(causes)}), and each request now saves "
        f"{only}{saved:,.0f}."
    )


# --- The closing, and the command line ---


def picture(sent):
    """Yield a bar chart of the requests, in the order they were sent."""
    yield " tokens"
    for row in range(max(s.tokens for s in sent) // ROW * ROW, -1, -ROW):
        empty = "-" if row == THRESHOLD else " "
        bars = "".join(s.mark if s.tokens > row else empty for s in sent)
        yield f"{row:>7,} |{bars}".rstrip() + " threshold" * (empty == "-")
    yield " " * 8 + "+" + "-" * len(sent) + "> requests, in order"
    scenes = [s.scene for s in sent]
    first = [n if n != before else " " for n, before in zip(scenes, [0, *scenes])]
    yield "  scene  " + "".join(map(str, first)).rstrip()
    yield "\n         # work   s request for a summary   x rejected as too long"


def uncut(work, forgotten=0):
    """Return the price of these requests if only so many tokens had been forgotten."""
    sizes = [max(s.tokens, s.whole - forgotten) for s in work]
    pairs = zip([0, *sizes], sizes)  # the cache has all of the request before
    return sum(CACHE_READ * old + CACHE_WRITE * (new - old) for old, new in pairs)


def closing(lesson):
    """Return the picture, the prices, and the path of the transcript."""
    work = [s for s in lesson.sent if s.mark == "#"]
    file = next(s.whole - s.tokens for s in work if s.whole > s.tokens)
    told = (
        f"All requests cost {sum(s.price for s in lesson.sent):,.0f}, in full-price "
        f"input tokens. Without forgetting, it would have been {uncut(work):,.0f}, but "
        "most of that is scene 1's file. With a preview of it and nothing else "
        f"forgotten, it would have been {uncut(work, file):,.0f}: the other scenes "
        "haven't paid for themselves yet, because the demo is short. Nothing is lost: "
        "the transcript has every word."
    )
    title = "--- The size of the context, request by request ".ljust(79, "-")
    drawing = "\n".join(picture(lesson.sent))
    path = lesson.agent.transcript.resolve()
    return f"\n{title}\n\n{drawing}\n\n{fill(told)}\n{path}"


def scratch_folder():
    """Write the files that the scenes use to a new folder, and return it."""
    folder = Path(tempfile.mkdtemp(prefix="agent-demo-")).resolve()
    for name, text in scenery.files().items():
        (folder / name).write_text(text, "utf-8")
    return folder


def wants_scene(number):
    """Return whether to play this scene: on a terminal, ask the user."""
    if number == 1 or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    print(
        f"\nPress Enter for scene {number} of {len(SCENES)}, or q to quit: ",
        end="",
        flush=True,
    )
    return sys.stdin.readline() == "\n"


def main(scene, out):
    """Play one scene, or all if it is 0; return the exit status."""
    if not 0 <= scene <= len(SCENES):
        print(f"There is no scene {scene}; choose 1 to {len(SCENES)}.", file=sys.stderr)
        return 2
    silent = Terminal(io.StringIO())
    back, folder = Path.cwd(), scratch_folder()
    os.chdir(folder)
    try:
        lesson = Lesson()
        show(out, "plain", "\n".join([*map(fill, OPENING), str(folder)]))
        for number in range(1, (scene or len(SCENES)) + 1):
            if scene == 0 and not wants_scene(number):
                return 0
            lesson.play(number, out if scene in (0, number) else silent)
        after = f"\nNext: python3 agent.py --demo {scene % len(SCENES) + 1}"
        show(out, "plain", after if scene else closing(lesson))
    except (AgentError, stub.EmptyQueue) as error:
        text = f"Scene {lesson.scene} did not go as scripted"
        show(out, "error", f"{text}: {error}")
        return 1
    finally:
        os.chdir(back)
    return 0


if __name__ == "__main__":
    sys.exit(program.main(["--demo", *sys.argv[1:]]))
