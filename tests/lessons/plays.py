"""What happens to a reader's agent: its work with 24 files, and the accidents.

Each `Play` has a script: a function that writes the files and returns the model's replies.
"""

import itertools
from pathlib import Path

from runner import Play  # adds the folder of stub to sys.path
from stage import reads, use, write_files

# isort: split
import sdk
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
WHOLE = {"more": False, "seconds": 30}  # no reply after the script
REPLACED = "xxx"  # in these, which has as many bytes as one such character


def play(what, *typed, **options):
    """Make a play of the function below this, which is its script."""
    return lambda script: Play(what, script, typed or ("Go.", "Go on."), **options)


def summaries():
    """The replies to requests for a summary, whose number is part of the text.

    All begin with thinking; the first has no text, and the third is cut off.
    """
    thinking = "What was it?"
    yield reply(thinking=thinking)
    yield reply(SUMMARY.format(1), thinking=thinking)
    yield reply(CUT_OFF, thinking=thinking, stop="max_tokens")
    yield from (reply(SUMMARY.format(n), thinking=thinking) for n in itertools.count(2))


@play("24 files to read and translate", *TYPED, summaries=summaries, **WHOLE)
def work():
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


@play("24 files to translate", "Translate all files.", **WHOLE)
def translate():
    script = [ask_for_list()]
    for name in write_files(24, 32_000):
        script += [*reads([name], thinking="Next."), write(name)]
    return [*script, use("compact"), reply("All are translated.")]


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


# --- Accidents ---


def large(characters, name="large.txt"):
    """Write a large file; returns its name."""
    Path(name).write_text("x" * characters)
    return name


# a command that presses Ctrl-C, and leaves a file to say so
STOP = "touch pressed; kill -INT $PPID; sleep 0.1"
STOPS, HALF = use("bash", command=STOP), use("bash", command="touch half")
empty_reply = play("an empty reply")(lambda: [reply(thinking="Hm.")])
blank_prompt = play("a blank prompt", " ", "Go.")(list)
stop_tool = play("Ctrl-C in a tool", answer="Ctrl-C")(lambda: [STOPS])
huge_file = play("a huge file")(lambda: reads([large(800_000)]))
truncated = play("a truncated call")(lambda: [{**HALF, "stop_reason": "max_tokens"}])


@play("a blank text")
def blank_text():
    return [reply("\n\n", calls=[("read_file", {"path": large(40_000)})])]


@play("twenty large files at once")
def twenty_files():
    return [use("read_file", *(large(40_000, f"large_{n}.txt") for n in range(20)))]


@play("the answer `maybe`", answer="maybe")
def maybe():
    names = "asked", "asked_too"
    return [reply(calls=[("bash", {"command": f"touch {name}"}) for name in names])]


enter = maybe._replace(what="the answer Enter alone", answer="")


@play("a command that fails", "Go.")
def failing():
    Path("two_lines.txt").write_text("One is 607.\nTwo is 809.\n")
    Path("empty.txt").write_text("")
    command = use("bash", command="cat two_lines.txt none.txt")
    return [command, *reads(["empty.txt", "none.txt"])]


# --- What small.py gets wrong ---

FINISHED, OPEN = "Write a.py.", "Now write b.py."
LAST = "That was the last one."
KEY = "sk-ant-not-a-real-key"
WORDS = "Remember the number 42."
SEQ, DECLINED = use("bash", command="seq 130000"), reply(stop="refusal")
LONG = [reply("A long answer. " * 3_000)] * 16
SHORT = [reply("The answer is", stop="max_tokens"), reply("42.")]
PASTES = [f"Paste {n}: {'word ' * 16_000}" for n in range(1, 11)]
PARTS = [f"Write part {n}." for n in range(1, 17)]
NEVER = {"summaries": lambda: itertools.repeat(reply(thinking="Hm."))}
paste = play("a paste of 700,000 characters", "word " * 140_000, "Go on.")(list)
pastes = play("ten pastes of 80,000 characters each", *PASTES)(list)
surrogate = play("a prompt with a byte that isn't UTF-8", "caf\udce9", "Go on.")(list)
never = play("a model that never writes a summary", *PARTS, **NEVER)(lambda: LONG)
long_output = play("an output of 800,000 characters")(lambda: [SEQ])
cut_answer = play("an answer that is cut off by max_tokens", "And?")(lambda: SHORT)
declined = play("a prompt that the model declines", "(bad)", "Go on.")(
    lambda: [DECLINED]
)


stop_command = play("Ctrl-C while a command runs", "Go.", "What happened?")(
    lambda: [use("bash", command=f"touch half.txt; {STOP}")]
)


@play("a file to read, and a command", "Read it.", "Go on.", **WHOLE)
def start():
    names = write_files(1, 900)
    count = use("bash", command="echo $((600 + 7)) > new_number.txt")
    return [use("read_file", *names), count, reply("It is there."), reply("Yes.")]


@play(
    "long outputs of commands, with thinking before each",
    "Go.",
    enough=lambda run: len(run.since_clearing) > 2,
)
def old_outputs():
    once = "cat {0}; : > {0}"  # can't be had again
    names = write_files(24, 30_000)
    return [use("bash", command=once.format(n), thinking="Next.") for n in names]


@play(
    "a request that is finished, an open one, and a summary",
    *(FINISHED, OPEN),
    summaries=lambda: itertools.repeat(reply("The work goes on.")),
    enough=lambda run: bool(run.compactions),
)
def one_summary():
    text = f"# {'x' * 397}\n" * 150
    commands = [f"cat > b{n}.py <<'END'\n{text}END" for n in range(11)]
    writes = [use("bash", command=command) for command in commands]
    read = use("read_file", *write_files(5, 4_000))
    return [reply("a.py is written."), read, *writes]


@play("a conversation", WORDS, "Go on.")
def first_life():
    """It thinks, reads, forgets, and is stopped by Ctrl-C."""
    first = use("read_file", *write_files(1, 900), thinking="Hm.")
    stop = use("bash", command=STOP, thinking="Well.")
    return [first, use("compact"), reply("I will.", thinking="So."), stop]


def second_start(*typed, options=()):
    """A start after a conversation, with these options and lines to get it back."""
    what, more = "a second start, after a conversation", {"options": options}
    return play(what, *typed, "Which number?", before=first_life, **more)(list)


second_starts = (
    *(second_start(options=given) for given in ((), ("--resume",), ("--continue",))),
    *(second_start(typed) for typed in ("y", "/resume", "/resume 1")),
)


@play("an API that fails six times in a row", "Read it.", "Go on.")
def api_fails():
    busy = sdk.failure("OverloadedError", "Overloaded", status_code=529)
    lost = sdk.failure("APIConnectionError", "Connection error.")
    return [*[busy] * 6, *reads(write_files(1, 900)), *[lost] * 6, reply(LAST)]


@play("a file of 100,000 characters, and .env", "Read both.")
def two_reads():
    lines = [f"line {number:05} ".ljust(39, "x") for number in range(2_500)]
    Path("long.txt").write_text("\n".join(lines) + "\n")
    Path(".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    return reads(["long.txt", ".env"])


@play("a window of 16,000 that only a rejection names", window=16_000)
def small_window():
    return [*reads(write_files(20, 9_000)), reply(LAST)]


@play("a gateway that uses an id twice")
def same_id():
    call = use("read_file", *write_files(1, 900))
    return [call, stub.copied(call)]
