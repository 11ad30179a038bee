"""Layers 1 and 2 grow in steps: each mends what the stand-in says of the one before."""

import re

import pytest
import steps

SIGNED = "request 3: messages.3.content.0: Invalid `signature` in `thinking` block."
PREFILL = "This model does not support assistant message prefill."

# what each step shows that the one before does not
SEEN = {
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
    every = [(layer, n) for layer, numbers in steps.STEPS.items() for n in numbers]
    assert every == [*SEEN]


@pytest.mark.parametrize("layer, number", SEEN)
def test_a_step_shows_what_it_mends(layer, number):
    shown = " ".join(steps.play(layer, number).split())
    assert [words for words in SEEN[layer, number] if words not in shown] == []


@pytest.mark.parametrize(
    "layer, number", [key for key in SEEN if key[1] and key != ("layer1", 5)]
)
def test_a_step_changes_a_few_lines(layer, number):
    changed = re.findall(r"(?m)^[-+].+", steps.changes(layer, number))
    assert 1 <= len(changed) <= 6
