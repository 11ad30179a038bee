"""Runs show the faults of small.py, and agent.py has the functions that fix them."""

import faults
import pytest

import agent as program

# What the run of each fault shows.
SEEN = {
    "paste": "prompt is too long: 218946 tokens > 200000 maximum; again at the next prompt: yes",
    "fixed_threshold": "in a window of 16,000: prompt is too long",
    "no_summaries": "13 of 33 requests ask for a summary, for nothing",
    "long_words": "5 of 14 requests ask for a summary, and none makes room",
    "open_request": "Write a.py. | Now b.py. | (summary)",
    "files": "0 of 5 files that were read are there after a summary",
    "cut_output": "cut: 108,910 characters]; the rest is on disk: no",
    "no_path": "is now [Old result, cleared]",
    "no_thinking": "0 of 3 thoughts are in the last request",
    "japanese": "2,633 tokens; the API counts 3,293",
    "passing_error": "the connection broke: the turn is over after 1 request",
    "stopped_call": "half.txt was written: yes; the model knows: no",
    "surrogate": "surrogates not allowed",
    "cut_answer": '"The answer is" ends the turn',
    "refusal": "it is in the next request: yes",
    "same_id": "`tool_use` ids must be unique; again at the next prompt: yes",
    "no_pages": "a second read shows the same 40,000 characters: yes",
    "secrets": "the key is in the request: yes",
    "no_resume": "the second start sends 1 message",
}


def test_every_fault_is_listed_here():
    assert {fault.__name__ for fault in faults.FAULTS} == {*SEEN}
    assert len(faults.FAULTS) == len(SEEN)


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_run_shows_the_fault_and_agent_py_has_the_fix(fault):
    text = " ".join(faults.shown(fault).split())
    title, fix, _ = fault.__doc__.split(" | ")
    assert text.startswith(title) and SEEN[fault.__name__] in text
    assert [name for name in fix.split(", ") if not hasattr(program, name)] == []


def test_faults_are_sorted_by_chapter(capsys):
    assert faults.main([]) == 0
    shown = capsys.readouterr().out
    head, *parts = shown.strip().split("\n\n")
    assert (
        head
        == "19 of 19 faults of small.py, each with the functions of agent.py that fix it"
    )
    places = [part.partition("\n")[0] for part in parts]
    chapters = [f"Chapter {n}" for n in (3, 4, 5, 6, 7, 8, 10)]
    assert places == [*chapters, "The Reference", faults.PLACES["none"]]
    for fault in faults.FAULTS:
        [part] = [
            part for part in parts if f"\n  {fault.__doc__.split(' | ')[0]}\n" in part
        ]
        assert part.startswith(faults.place(fault))
    assert max(map(len, shown.split("\n"))) < 80


def test_faults_can_be_selected_by_a_word(capsys):
    assert faults.main(["resume"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1 of 19 faults") and "load and resume" in shown
    assert faults.main(["resume", "paste"]) == 2
    assert capsys.readouterr().out == "No fault mentions resume and paste.\n"
