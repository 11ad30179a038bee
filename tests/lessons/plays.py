"""What happens to a reader's agent: its work with 24 files, and the accidents.

Each `Play` has a script: a function that writes the files and returns the model's replies.
"""

import itertools
from functools import partial
from pathlib import Path

from runner import Play, failure  # adds the folder of stub to sys.path
from stage import reads, use, write_files

# isort: split
import stub
from stub import reply

# --- The work: at the first prompt, the model reads 24 files: four in one reply, twelve
# --- one by one, some of these with a command, and then twice four in one reply. At the
# --- second, it translates each file into four languages, and then calls `compact`. The
# --- reads give layer 1 old results to clear, and new ones that the model hasn't seen; the
# --- translations give layer 2 a conversation to summarise. It thinks before each call. ---

TYPED = "Read all files. Never touch the tests.", "Translate each into four languages."
SUMMARY = "Summary {:02}: all files are read; names stay in English."
CUT_OFF = "Summary 02: all files are"
ANSWER = "All are read."  # at the end of the first turn
LINES = 23  # of each file
FOREIGN = {15: "語", 16: "の", 17: "读", 18: "文"}  # files in Japanese or Chinese
REPLACED = "xxx"  # in these, which has as many bytes as one such character


def work():
    """The model's replies."""
    names = write_files(24, 9_000)
    for at, character in FOREIGN.items():
        file = Path(names[at])
        file.write_text(file.read_text().replace(REPLACED, character), "utf-8")
    fours = [names[:4], names[16:20], names[20:]]
    first, *last = [use("read_file", *four, thinking="Four at once.") for four in fours]
    ones = [read(name, number) for number, name in enumerate(names[4:16], 5)]
    replies = [ask_for_list(), first, *ones, *last, reply(ANSWER)]
    replies += [write(name, 4) for name in names]
    return [*replies, use("compact"), reply("All are translated.")]


def ask_for_list():
    """A call that fails, because its file doesn't exist."""
    return use("read_file", "words.txt", thinking="Is there a list of words?")


def read(name, number):
    """A call that reads a file, every third one with a command."""
    if number % 3:
        return use("read_file", name, thinking="Next.")
    return use("bash", command=f"cat {name}", thinking="Next.")


def write(name, times=1):
    """A call that writes a file's translation into this many languages."""
    text = Path(name).read_text("utf-8").replace("x", "y") * times
    command = f"cat > new_{name} <<'END'\n{text}END"
    return use("bash", command=command, thinking="Now.")


def summaries():
    """The replies to requests for a summary, whose number is part of the text.

    All begin with thinking; the first has no text, and the third is cut off.
    """
    thinking = "What was it?"
    yield reply(thinking=thinking)
    yield reply(SUMMARY.format(1), thinking=thinking)
    yield reply(CUT_OFF, thinking=thinking, stop="max_tokens")
    yield from (reply(SUMMARY.format(n), thinking=thinking) for n in itertools.count(2))


def translate():
    """The replies for the steps of chapter 2: read and write one after another."""
    script = [ask_for_list()]
    for name in write_files(24, 32_000):
        script += [*reads([name], thinking="Next."), write(name)]
    return [*script, use("compact"), reply("All are translated.")]


only = partial(Play, more=False, seconds=30)
WORK = only("24 files to read and translate", work, TYPED, summaries=summaries)
ONE_TURN = only("24 files to translate", translate, ("Translate all files.",))


# --- Accidents ---


def blank_text():
    blank = use("read_file", "large.txt")
    blank["content"].insert(0, {"type": "text", "text": "\n\n"})
    Path("large.txt").write_text("x" * 40_000)
    return [blank]


def huge_file():
    Path("large.txt").write_text("x" * 800_000)
    return reads(["large.txt"])


def twenty_files():
    names = [f"large_{n}.txt" for n in range(20)]
    for name in names:
        Path(name).write_text("x" * 40_000)
    return [use("read_file", *names)]


def stop_tool():
    return [use("bash", command="touch pressed; kill -INT $PPID; sleep 1")]


def truncated():
    return [{**use("bash", command="touch half"), "stop_reason": "max_tokens"}]


def ask_first():
    names = "asked", "asked_too"
    return [reply(calls=[("bash", {"command": f"touch {name}"}) for name in names])]


def failing_command():
    Path("two_lines.txt").write_text("One is 607.\nTwo is 809.\n")
    Path("empty.txt").write_text("")
    command = use("bash", command="cat two_lines.txt none.txt")
    return [command, *reads(["empty.txt", "none.txt"])]


EMPTY = (
    Play("an empty reply", lambda: [reply(thinking="Hm.")]),
    Play("a blank text", blank_text),
)
STOPPED = Play("Ctrl-C in a tool", stop_tool, answer="Ctrl-C", presses=True)
HUGE = Play("a huge file", huge_file), Play("twenty large files at once", twenty_files)
BLANK = Play("a blank prompt", list, (" ", "Go."))
TRUNCATED = Play("a truncated call", truncated)
ANSWERS = (
    Play("the answer `maybe`", ask_first, answer="maybe"),
    Play("the answer Enter alone", ask_first, answer=""),
)
FAILING = Play("a command that fails", failing_command, ("Go.",))

# --- What small.py gets wrong ---

FINISHED, OPEN = "Write a.py.", "Now write b.py."
LAST = "That was the last one."
KEY = "sk-ant-not-a-real-key"
WORDS = "Remember the number 42."


def old_outputs():
    """Outputs of commands that can't be had again."""
    once = "cat {0}; : > {0}"
    names = write_files(24, 30_000)
    return [use("bash", command=once.format(n), thinking="Next.") for n in names]


def first_start():
    names = write_files(1, 900)
    count = use("bash", command="echo $((600 + 7)) > new_number.txt")
    return [use("read_file", *names), count, reply("It is there."), reply("Yes.")]


def small_window():
    return [*reads(write_files(20, 9_000)), reply(LAST)]


def one_summary():
    lines = f"# {'x' * 397}\n" * 150
    writes = [
        use("bash", command=f"cat > b{n}.py <<'END'\n{lines}END") for n in range(11)
    ]
    read = use("read_file", *write_files(5, 4_000))
    return [reply("a.py is written."), read, *writes]


def api_fails():
    busy = failure("OverloadedError", "Overloaded", status_code=529)
    lost = failure("APIConnectionError", "Connection error.")
    [name] = write_files(1, 900)
    return [*[busy] * 6, use("read_file", name), *[lost] * 6, reply(LAST)]


def two_reads():
    lines = [f"line {number:05} ".ljust(39, "x") for number in range(2_500)]
    Path("long.txt").write_text("\n".join(lines) + "\n")
    Path(".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    return reads(["long.txt", ".env"])


def stop_command():
    command = "touch half.txt pressed; kill -INT $PPID; sleep 1"
    return [use("bash", command=command)]


def same_id():
    call = use("read_file", *write_files(1, 900))
    return [call, stub.copied(call)]


def first_life():
    """It thinks, reads, forgets, and is stopped by Ctrl-C."""
    read = use("read_file", *write_files(1, 900), thinking="Hm.")
    stop = "touch pressed; kill -INT $PPID; sleep 1"
    again = use("bash", command=stop, thinking="Well.")
    return [read, use("compact"), reply("I will.", thinking="So."), again]


def second_start(*typed, options=()):
    """A start after a conversation, with these options and lines to get it back."""
    talk = (WORDS, "Go on.")
    before = Play("a conversation", first_life, talk, presses=True)
    what, typed = "a second start, after a conversation", (*typed, "Which number?")
    return Play(what, list, typed, options=options, before=before)


START = only("a file to read, and a command", first_start, ("Read it.", "Go on."))
OUTPUTS = Play(
    "long outputs of commands, with thinking before each",
    old_outputs,
    ("Go.",),
    enough=lambda run: len(run.since_clearing) > 2,
)
WINDOW = Play(
    "a window of 16,000 that only a rejection names",
    small_window,
    ("Read all files.", "Go on."),
    window=16_000,
)
PASTE = Play("a paste of 700,000 characters", list, ("word " * 140_000, "Go on."))
LONG = Play(
    "an output of 800,000 characters",
    lambda: [use("bash", command="seq 130000")],
    ("Count.", "Go on."),
)
NEVER = Play(
    "a model that never writes a summary",
    lambda: [reply("A long answer. " * 3_000)] * 16,
    tuple(f"Write part {n}." for n in range(1, 17)),
    summaries=lambda: itertools.repeat(reply(thinking="Hm.")),
)
PASTES = Play(
    "ten pastes of 80,000 characters each",
    list,
    tuple(f"Paste {n}: {'word ' * 16_000}" for n in range(1, 11)),
)
ONE_SUMMARY = Play(
    "a request that is finished, an open one, and a summary",
    one_summary,
    (FINISHED, OPEN),
    summaries=lambda: itertools.repeat("The work goes on."),
    enough=lambda run: bool(run.compactions),
)
STARTS = (
    second_start(),
    second_start(options=("--resume",)),
    second_start(options=("--continue",)),
    second_start("y"),
    second_start("/resume"),
    second_start("/resume 1"),
)
FAILS = Play("an API that fails six times in a row", api_fails, ("Read it.", "Go on."))
READS = Play("a file of 100,000 characters, and .env", two_reads, ("Read both.",))
INTERRUPTED = Play(
    "Ctrl-C while a command runs", stop_command, ("Go.", "What happened?"), presses=True
)
SURROGATE = Play("a prompt with a byte that isn't UTF-8", list, ("caf\udce9", "Go on."))
CUT = Play(
    "an answer that is cut off by max_tokens",
    lambda: [reply("The answer is", stop="max_tokens"), reply("42.")],
    ("What is 6 * 7?",),
)
DECLINED = Play(
    "a prompt that the model declines",
    lambda: [reply(stop="refusal")],
    ("(bad)", "Go on."),
)
SAME_ID = Play("a gateway that uses an id twice", same_id)
