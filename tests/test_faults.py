"""What small.py still gets wrong is seen in a run, and agent.py has what mends it."""

import re

import faults
import pytest
from readme import README

import agent as program

# of each fault: what its run shows
SEEN = {
    "paste": "prompt is too long: 218946 tokens > 200000 maximum; and so at each",
    "fixed_threshold": "in a window of 16,000 prompt is too long",
    "no_summaries": "13 of 33 requests ask for one in vain",
    "long_words": "5 of 14 requests ask for a summary, and none makes room",
    "open_request": "Write a.py. | Now b.py. | (summary)",
    "files": "of 5 files that were read 0 are there after a summary",
    "cut_output": "cut: 108,910 characters]; it is on disk: False",
    "no_path": "is now [Old result, cleared]",
    "no_thinking": "of 3 thoughts 0 are in the last request",
    "japanese": "5,258 tokens; the API counts 3,293",
    "passing_error": "the connection broke, after 1 request",
    "stopped_call": "half.txt is there: True; the model knows: False",
    "surrogate": "surrogates not allowed",
    "cut_answer": '"The answer is" ends the turn',
    "refusal": "it is in the next request: True",
    "same_id": "`tool_use` ids must be unique; and at the next prompt: True",
    "no_pages": "the second read shows the same 40,000 characters: True",
    "secrets": "the key is in the request: True",
    "no_resume": "it sends 1 message",
}


def test_each_fault_has_its_run():
    assert [fault.__name__ for fault in faults.FAULTS] == [*SEEN]


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen_and_the_program_has_what_mends_it(fault):
    text = " ".join(faults.shown(fault).split())
    title, mended, _ = fault.__doc__.split(" | ")
    assert text.startswith(title) and SEEN[fault.__name__] in text
    assert [name for name in mended.split(", ") if not hasattr(program, name)] == []


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_the_page_sends_each_fault_to_its_chapter(fault):
    title, mended, chapter = fault.__doc__.split(" | ")
    names = ", ".join(f"`{name}`" for name in mended.split(", "))
    link = "-" if chapter == "-" else rf"\[{chapter}\]\(#{chapter}\S*\)"
    row = rf"(?m)^\| {re.escape(title)} \| {link} \| {names} \|$"
    assert re.search(row, README.read_text("utf-8"))
