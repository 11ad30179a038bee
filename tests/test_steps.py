"""small.py and two layers grow in steps: each mends what is seen of the one before."""

import re

import pytest
import steps

SIGNED = "request 3: messages.3.content.0: Invalid `signature` in `thinking` block."
PREFILL = "This model does not support assistant message prefill."

EMPTY = "empty reply; the next request: messages.1: all messages must have non-empty"
LARGE = "large file; the next request: prompt is too long"
OPEN = "Ctrl-C in a tool; the next request: messages.1: `tool_use` ids were found"

# what each step shows that the one before does not
SEEN = {
    ("small", 0): ["stopped FileNotFoundError", "files 0 of 24", "on disk 0 messages"],
    ("small", 1): ["stopped prompt is too long", "files 10 of 24", "disk 0 messages"],
    ("small", 2): ["stopped prompt is too long", "files 10 of 24", "disk 43 messages"],
    ("small", 3): ["stopped prompt is too long", "files 17 of 24", "disk 73 messages"],
    ("small", 4): [
        "stopped no",
        "24 of 24",
        "largest 70,835",
        "after it a request has 60,708",
    ],
    ("small", 5): ["after it a request has 60 tokens", EMPTY, OPEN, "run: True", LARGE],
    ("small", 6): [
        "empty reply; the next request: taken",
        "Ctrl-C in a tool; the next request: taken",
        "cut off in a call; it was run: False",
        "large file; the next request: taken",
        "after it a request has 60 tokens",
    ],
    ("layer1", 0): ["seen 3 of the 6 results", f"refused {SIGNED}"],
    ("layer1", 1): ["seen 6 of the 6 results", f"refused {SIGNED}"],
    ("layer1", 2): [
        "refused no",
        "0% from the cache, price 186,000",
        "before 14 of 16",
    ],
    ("layer1", 3): [
        "81% from the cache, price 94,000",
        "before 1 of 16",
        "word: False",
    ],
    ("layer1", 4): ["81% from the cache, price 94,000", "before 1 of 16", "word: True"],
    ("layer1", 5): ["81% from the cache, price 94,000", "before 1 of 16", "word: True"],
    ("layer2", 0): ["ended by AttributeError: 'Block' object has no attribute 'text'"],
    ("layer2", 1): ["summary 0 characters", f"refused {PREFILL}"],
    ("layer2", 2): ["refused no", "5 of 13 results, 0% from the cache, price 25,000"],
    ("layer2", 3): ["13 of 13 results, 92% from the cache", "0 of 13 results are left"],
    ("layer2", 4): ["13 of 13 results are left", "rule in the last request: False"],
    ("layer2", 5): ["13 of 13 results are left", "rule in the last request: True"],
}


def test_what_each_step_shows_is_known():
    every = [
        (layer, n) for layer in steps.STEPS for n in range(len(steps.STEPS[layer]))
    ]
    assert every == [*SEEN]


@pytest.mark.parametrize("layer, number", SEEN)
def test_a_step_shows_what_it_mends(layer, number):
    shown = " ".join(steps.play(layer, number).split())
    assert [words for words in SEEN[layer, number] if words not in shown] == []


# at most so many lines; of those to small.py most are new functions
MOST = {"small": 36, "layer1": 6, "layer2": 6}


@pytest.mark.parametrize(
    "layer, number", [key for key in SEEN if key[1] and key != ("layer1", 5)]
)
def test_a_step_changes_a_few_lines(layer, number):
    changed = re.findall(r"(?m)^[-+].+", steps.changes(layer, number))
    assert 1 <= len(changed) <= MOST[layer]


def patched(lines, changes):
    """These lines after a reader has made the changes, from the top to the bottom."""
    done, rest = [], lines
    for part in changes.split("\n...\n"):
        old = [line[1:] for line in part.split("\n") if line[:1] != "+"]
        new = [line[1:] for line in part.split("\n") if line[:1] != "-"]
        at = next(n for n in range(len(rest)) if rest[n : n + len(old)] == old)
        done += rest[:at] + new
        rest = rest[at + len(old) :]
    return done + rest


def test_the_differences_lead_from_first_to_small():
    first, *between, small = steps.STEPS["small"]
    assert (first.name, small.name, len(between)) == ("first.py", "small.py", 5)
    _, lines = steps.source(first)
    for number in range(1, 7):
        lines = patched(lines, steps.changes("small", number))
    assert lines == steps.source(small)[1]
