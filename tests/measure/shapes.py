"""Turn a recorded session into its shape: other words, but all else as it was.

    python3 tests/measure/shapes.py RECORDING SHAPE.jsonl.xz
    python3 tests/measure/shapes.py --compare FOLDER

What forgetting costs and loses depends on how long texts are, and on which of them come
again. So a shape replaces each word and each number of three or more digits by another
of the same length in UTF-8 and in the same case, always by the same one. Punctuation,
short numbers, tools' names and the names of their inputs stay, and so do the seconds
between messages. What `recorded.py` ignores, such as thinking, is left out. New words
follow the order in which the old ones appear, so they say nothing about them, and the
same recording always has the same shape.

With --compare, each shape in `shapes/` is compared with its recording, which has the
same name, in FOLDER: which words are left, and whether costs and R are the same.
"""

import json
import lzma
import random
import re
import string
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recorded import (
    OLD_TEXTS,
    SHAPES,
    Session,
    Unusable,
    content_of,
    parts,
    read_messages,
)

# escapes in JSON and code (kept, but for the number), words, and long numbers
TOKEN = re.compile(
    r"(?<=\\)[nrt]|(?<=\\)u(?=[\da-fA-F]{4})|(?<=\\u)[\da-fA-F]{4}|[^\W\d_]+|\d{3,}"
)
MARK = re.compile(r"<persisted-output>|\[Previous: used ")  # layer 1 looks for these
WORD = re.compile(r"[^\W\d_]{3,}")
VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"
OTHERS = {  # by the number of bytes and whether they have a case; lower case
    (2, True): "".join(map(chr, [*range(0xE0, 0xF7), *range(0xF8, 0xFF)])),
    (2, False): "".join(map(chr, range(0x5D0, 0x5EB))),
    (3, True): "".join(map(chr, range(0x1E01, 0x1E96, 2))),
    (3, False): "".join(map(chr, range(0x4E00, 0x4F00))),
    (4, True): "".join(map(chr, range(0x10428, 0x10450))),
    (4, False): "".join(map(chr, range(0x20000, 0x20100))),
}
START = 1_700_000_000  # the time of the first request in a shape, in seconds
TRIES = 500  # to find a new word
# words that stay: the names of keys and blocks, and how results of layer 1 begin
KEPT = "role content type text id name input tool_use_id is_error timestamp user"
KEPT += " assistant tool_use tool_result true false null NaN old_string"
KEPT += " persisted-output previous used"
COMPARED = "nothing", "s06", "v5", "ours"  # policies
SAME_COST, SAME_R = 0.001, 0.005  # relative, absolute


class Words:
    """Replaces the words and numbers of one recording, each always by the same."""

    def __init__(self, original: set[str]) -> None:
        self.original = original  # words that must not appear, in lower case
        self.random = random.Random(8)
        self.new: dict[str, str] = {}
        self.used: set[str] = set()

    def text(self, text: str) -> str:
        """Replace all words and long numbers in a text."""
        return TOKEN.sub(lambda found: self.token(found[0], found), text)

    def token(self, old: str, found: re.Match[str]) -> str:
        """Replace one of them; the letter of an escape stays."""
        before = found.string[max(0, found.start() - 2) : found.start()]
        if before == "\\u":
            return self.replaced("u" + old, "1000")  # a letter of another script
        if before[-1:] == "\\" and old in ("n", "r", "t", "u"):
            return old
        if old[0].isdecimal():
            return self.replaced(old, old)
        if not old.isascii():
            return self.replaced(old, old)
        new = self.replaced(old.lower(), old.lower())
        return "".join(b.upper() if a.isupper() else b for a, b in zip(old, new))

    def replaced(self, key: str, form: str) -> str:
        """Return what replaces a key; if it's new, make something of this form."""
        if key not in self.new:
            tries = (self.made(form, number) for number in range(TRIES))
            free = (new for new in tries if self.is_free(new, key))
            self.new[key] = next(free, None) or self.made(form, TRIES)
            self.used.add(self.new[key])
        return self.new[key]

    def made(self, form: str, number: int) -> str:
        """Make something with the same kinds of letters and digits."""
        letters = enumerate(form)
        return "".join(self.letter(old, at, number > 50) for at, old in letters)

    def letter(self, old: str, at: int, free: bool) -> str:
        """Return a letter or digit of the same kind; most words are easy to say."""
        if old.isdecimal():
            return chr(ord(old) - int(old) + self.random.randrange(not at, 10))
        if old.isascii():
            return self.random.choice(
                string.ascii_lowercase if free else VOWELS if at % 2 else CONSONANTS
            )
        cased = old.lower() != old.upper()
        new = self.random.choice(OTHERS[len(old.encode()), cased])
        return new.upper() if old.isupper() else new

    def is_free(self, new: str, old: str) -> bool:
        """Return whether a word is new, also if the letter of an escape precedes it."""
        known = any(start + new.lower() in self.original for start in ("", *"nrt"))
        return new != old and new not in self.used and not known

    def value(self, value: Any, keys: set[str]) -> Any:
        """Replace all words in the input of a call, but for these keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(inner, OLD_TEXTS) for inner in value]
        if isinstance(value, dict):
            pairs = value.items()
            named = ((k if k in keys else self.text(k), v) for k, v in pairs)
            return {key: self.value(inner, OLD_TEXTS) for key, inner in named}
        if value is None or isinstance(value, bool):
            return value
        digits = re.compile(r"\d{3,}")
        return json.loads(
            digits.sub(lambda n: self.replaced(n[0], n[0]), json.dumps(value))
        )


def shape_of(messages: list[dict]) -> Iterator[dict]:
    """Yield the lines of a shape."""
    words = Words(words_in(messages))
    ids: dict[str, str] = {}
    for message, after in zip(messages, [*messages[1:], {}]):
        content = message["content"]
        if isinstance(content, str):
            line = {"role": message["role"], "content": words.text(content)}
        else:
            blocks = [block_of(block, words, ids) for block in content]
            line = {"role": message["role"], "content": blocks}
        asked = after.get("time", message.get("time"))
        yield line if asked is None else line | {"timestamp": asked}


def block_of(block: dict, words: Words, ids: dict[str, str]) -> dict:
    """Return the shape of a block; ids become numbers of the same length."""
    if block["type"] == "text":
        return {"type": "text", "text": words.text(block["text"])}
    key = "id" if block["type"] == "tool_use" else "tool_use_id"
    number = ids.setdefault(block[key], f"{len(ids):0{len(block[key])}}")
    if block["type"] == "tool_use":
        given = words.value(block["input"], {*block["input"]})
        return {**block, "id": number, "input": given}
    text, start = block["content"], MARK.match(block["content"])
    kept = start.end() if start else 0
    text = text[:kept] + words.text(text[kept:])
    return {**block, "tool_use_id": number, "content": text}


def words_in(messages: list[dict]) -> set[str]:
    """Return the words of three letters or more in these messages, in lower case."""
    texts = (text for message in messages for text in texts_in(message["content"]))
    return {word for text in texts for word in words_of(text)}


def texts_in(content: Any) -> Iterator[str]:
    """Yield the texts that a shape replaces."""
    if isinstance(content, str):
        yield content
        return
    for block in content:
        yield block.get("text", "") + block.get("content", "")
        given = json.dumps(block.get("input", {}), ensure_ascii=False)
        yield re.sub(r"\\.", " ", given)  # without the escapes


def compressed(lines: list[dict]) -> bytes:
    """Return the lines of a shape as a file; its times begin at START."""
    times = [line["timestamp"] for line in lines if "timestamp" in line]
    for line in lines:
        if "timestamp" in line:
            seconds = START + round(line["timestamp"] - min(times))
            moment = datetime.fromtimestamp(seconds, timezone.utc)
            line["timestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    as_json = (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    data = "".join(as_json).encode(errors="surrogatepass")
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


# --- A shape beside its recording ---


def compare(folder: Path) -> int:
    """Compare the shapes with their recordings; return 1 if any differs, else 0."""
    if not folder.is_dir():
        raise Unusable(f"There is no folder {folder}.")
    status = 0
    for shape in sorted(SHAPES.glob("*.xz")):
        found = [*folder.rglob(f"{shape.stem}*")]
        wrong = differences(found[0], shape) if found else []
        status |= bool(wrong)
        told = "; ".join(wrong) or ("the same" if found else "no recording")
        print(f"{shape.stem}: {told}", flush=True)
    return status


def differences(recording: Path, shape: Path) -> list[str]:
    """Say how a shape differs from its recording; empty if it doesn't."""
    old, new = read_messages(recording), read_messages(shape)
    texts = (content_of(path).decode(errors="replace") for path in (recording, shape))
    left = set.intersection(*map(words_of, texts)) - kept_words(new)
    left = {word for word in left if len(word) > 5}
    some = " ".join(sorted(left)[:10])
    wrong = [f"{len(left)} words are left, such as {some}"] if left else []
    for name, (cost, r), (new_cost, new_r) in zip(COMPARED, figures(old), figures(new)):
        if abs(new_cost / cost - 1) > SAME_COST or abs(new_r - r) > SAME_R:
            wrong.append(f"{name}: cost {cost} -> {new_cost}, R {r} -> {new_r}")
    return wrong


def figures(messages: list[dict]) -> Iterator[tuple[float, float]]:
    """Yield the cost and R of a session with each of the compared policies."""
    import costs  # adds the folders of stub and agent to sys.path

    rules, session = costs.runs(False, []), Session(messages)
    for name in COMPARED:
        row = costs.row("", [rules[name](session)], 1e6)
        yield row["cost"], row["R"]


def words_of(text: str) -> set[str]:
    """Return the words of three letters or more in a text, in lower case."""
    return {word.lower() for word in WORD.findall(text)}


def kept_words(messages: list[dict]) -> set[str]:
    """Return the words that stay in the shape of these messages."""
    calls = [*parts([m for m in messages if m["role"] == "assistant"], "tool_use")]
    named = [key for call in calls for key in (call["name"], *call["input"])]
    return words_of(" ".join([KEPT, *named]))


def main(argv: list[str]) -> int:
    """Make one shape, or compare them all; return the exit status."""
    compares = argv[:1] == ["--compare"]
    if len(argv) != 2 or not (compares or argv[1].endswith(".xz")):
        usage = "shapes.py RECORDING SHAPE.jsonl.xz, or shapes.py --compare FOLDER"
        print(usage, file=sys.stderr)
        return 2
    recording, shape = map(Path, argv)
    try:
        if compares:
            return compare(Path(argv[1]))
        lines = [*shape_of(read_messages(recording))]
        shape.write_bytes(compressed(lines))
    except (Unusable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{shape}: {len(lines):,} messages, {shape.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
