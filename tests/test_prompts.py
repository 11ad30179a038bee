"""The tutorials' own prompts: what comes of them by their numbers, and by ours."""

import re

import prompts
import pytest
from builders import LONG_TESTS

# of each tutorial: what comes of each prompt by its rule, and by ours
PLAYED = {
    "s06": {
        "requests 13, clearings 9, summaries 0": "requests 13, clearings 0, summaries 0",
        "requests 54, clearings 53, summaries 0": "requests 54, clearings 1, summaries 0",
        "API: This model does not support assistant": "clearings 0, summaries 1",
    },
    "v5": {"clearings 8, summaries 0": "clearings 2, summaries 0"},
    "java": {
        "API: prompt is too long: ": "requests 61, clearings 2, summaries 0",
        "requests 1, clearings 0, summaries 0": "summaries 0",
        "requests 2, clearings 0, summaries 1": "requests 2, clearings 0, summaries 0",
    },
    "s08": {
        "requests 4, clearings 0, summaries 0": "clearings 0, summaries 0",
        "requests 9, clearings 8, summaries 0": "clearings 0, summaries 0",
        "clearings 0, summaries 0, snips 8": "clearings 0, summaries 0",
    },
}


@pytest.mark.parametrize("name", PLAYED if LONG_TESTS else ["s06"])
def test_what_comes_of_the_prompts_of_a_tutorial(name, capsys):
    prompts.play(name)
    shown = re.sub(r"\n {10}", " ", capsys.readouterr().out)
    lines = re.findall(rf"(?m)^  {name} +(.*)\n  ours +(.*)\n  why", shown)
    assert len(lines) == len(PLAYED[name])
    assert ("KEEP_RECENT=1000: requests 58, clearings 0, summaries 4" in shown) == (
        name == "s06"  # where the page says which settings end in a summary
    )
    for (they, we), (said, done) in zip(PLAYED[name].items(), lines):
        assert they in said and we in done
