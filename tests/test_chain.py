"""A long life is a chain of compactions: what one of them knew, the next one knows."""

import re
from pathlib import Path

import pytest
import stub
from builders import (
    asks_for_summary,
    history,
    layers,
    outputs,
    said,
    shown,
    sized,
    texts,
    typed,
)
from stub import StubClient, api_error, reply

import agent as program
from agent import take_turn

pytestmark = pytest.mark.slow


class Careful:
    """A model whose summaries have every fact it is shown, behind a hidden window.

    It reads one file after another, page by page, with some calls in each reply, and
    notes which facts it wrote into a summary, and what later requests lack of them.
    """

    def __init__(self, files, window=10**9, calls=1, talk=0):
        self.files, self.window, self.calls = files, window, calls
        self.talk = sized(talk)  # so much comes with each call, and is never cleared
        self.written, self.missing, self.tails = set(), [], []
        self.asked = self.rejected = 0

    def __call__(self, request):
        parts = [request[key] for key in ("system", "tools", "messages")]
        if stub.count(*parts) > self.window:
            self.rejected += 1
            return api_error(400, "Prompt is too long.")
        facts = {*re.findall(r"FACT-\d+-", str(request["messages"]))}
        if asks_for_summary(request):
            self.tails.append("followed by the newest messages" in str(request))
            self.written |= facts
            return reply(f"<summary>{' '.join(sorted(facts))}</summary>")
        self.missing += self.written - facts
        self.asked += 1
        return self.next(request["messages"][-1])

    def next(self, newest):
        """Call for what comes next, or answer; a page that was cut is read again."""
        results = outputs(newest)
        if results and "left out here" not in results[-1]:
            more = re.search(r"continue with offset=(\d+)", results[-1])
            self.offset = int(more[1]) if more else 1
            del self.files[: 0 if more else self.calls]
        elif not results:
            self.offset = 1
        given = [{"path": name, "offset": self.offset} for name in self.files]
        calls = [("read_file", page) for page in given[: self.calls]]
        return reply(self.talk, calls=calls) if calls else reply("Done.")


@pytest.fixture
def files():
    """files(number, tokens): files with a fact each, at their beginning."""

    def build(number, tokens):
        names = [f"{n}.txt" for n in range(number)]
        for n, name in enumerate(names):
            Path(name).write_text(f"FACT-{n}-\n" + sized(tokens, "one more line\n"))
        return names

    return build


@pytest.mark.parametrize("window", [24_000, 40_000, 100_000])
def test_no_request_lacks_a_fact_that_the_model_wrote_down(make, files, window):
    model = Careful(files(24, window // 8), window)
    agent = make(client=StubClient(always=model), max_requests=999)
    assert take_turn(agent, "Read them all.") == "Done."
    assert model.rejected > 0 and len(model.written) > 12
    assert model.missing == []


def test_with_every_default_four_pages_in_a_reply_break_no_chain(make, files):
    model = Careful(files(48, 11_000), window=200_000, calls=4, talk=12_000)
    agent = make(client=StubClient(always=model))
    assert take_turn(agent, "Read them all, four at a time.") == "Done."
    assert layers(agent).count("auto_compact") > 1 and len(model.written) > 12
    assert model.missing == []


@pytest.mark.parametrize("window", [6_000, 24_000])
def test_in_a_hidden_window_every_page_arrives(make, files, window):
    model = Careful(files(6, 15_000), window)
    agent = make(client=StubClient(always=model), max_requests=999)
    assert take_turn(agent, "Read all six.") == "Done."
    assert agent.usage["requests"] <= 150


@pytest.mark.parametrize("calls, window", [(1, 16_000), (3, 16_000), (3, 60_000)])
def test_no_compaction_drops_a_result_that_was_just_asked_for(
    make, files, monkeypatch, window, calls
):
    model = Careful(files(24 * calls, window // 9 // calls), calls=calls)
    never = {"clear_above": 10**9, "context_window": window}
    agent, kept = make(client=StubClient(always=model), **never), []
    rebuild = program.rebuild

    def watched(agent, summary):
        new, told = rebuild(agent, summary)
        kept.append((outputs(agent.messages[-1]), outputs(new[-1]), told))
        return new, told

    monkeypatch.setattr(program, "rebuild", watched)
    assert take_turn(agent, "Read them all.") == "Done."
    assert len(kept) > 1 and all(model.tails)
    for before, after, told in kept:
        assert len(after) == len(before) == calls and "the newest " in told
        starts = [text[:7] for text in before]
        assert [text[:7] for text in after] == starts


LONG_REPLY = said(f"First. {sized(32_000)} The last.")
UNFINISHED = [LONG_REPLY, program.note(program.CUT_OFF)]


@pytest.mark.parametrize(
    "newest", [[LONG_REPLY, typed("Do the last.")], [LONG_REPLY], UNFINISHED]
)
@pytest.mark.parametrize("threshold", [20_000, 60_000, 167_000])
def test_an_answer_that_the_next_message_refers_to_stays(make, newest, threshold):
    messages = [*history(said(sized(3_000)), typed("List them.")), *newest]
    new, _ = program.rebuild(make(messages=messages, threshold=threshold), "Short.")
    [answer, *others] = new[-len(newest) :]
    assert texts(answer)[0].startswith("First. xxx") and others == newest[1:]
    assert texts(answer)[0].endswith("The last.")


def test_what_was_called_before_the_request_stands_before_it(make):
    plan = [("todo_write", {"items": ["[x] bump", "[ ] push the tag"]})]
    agent = make(reply(calls=plan), reply(sized(3_000)), reply("Bumped."))
    take_turn(agent, "Release it.")
    take_turn(agent, "Is it?")
    program.commit(agent, typed("Don't push anything."))
    new, told = program.rebuild(agent, "Short.")
    places = [str(message) for message in new]
    [at] = [n for n, text in enumerate(places) if "push the tag" in text]
    [veto] = [n for n, text in enumerate(places) if "Don't push" in text]
    assert at < veto and "the plan" in told


def test_a_command_of_the_user_since_the_last_reply_stays(make):
    ran = program.note(
        f"{program.OWN_COMMAND}git log]\n{sized(6_000)}\n(exit status 0)"
    )
    before = history(said(sized(9_000)), typed("And?"), said("Yes."))
    agent = make(messages=[*before, ran], threshold=20_000)
    kept = program.rebuild(agent, "Short.")[0][-1]
    assert texts(kept)[0].startswith(program.OWN_COMMAND)
    assert "left out here" in texts(kept)[0] and "(exit status 0)" in texts(kept)[0]


def test_focus_null_asks_for_a_summary_without_a_focus(make):
    call = reply(calls=[("compact", {"focus": None})])
    summary = reply("<summary>So far so good.</summary>")
    agent = make(call, summary, reply("Done."), messages=history(said(sized(2_000))))
    assert take_turn(agent, "Tidy up.") == "Done."
    assert "So far so good." in str(agent.messages)
    assert "Most important" not in str(agent.client.requests[1]["messages"][-1])


def test_a_summary_that_was_discarded_is_not_shown(make):
    long = reply(f"<summary>Shown? {sized(3_000)}</summary>")
    agent = make(long, messages=history(said(sized(2_000)), said("Yes.")))
    program.run_command(agent, "/compact")
    assert "nothing changed" in str(shown(agent, "layer"))
    assert "Shown?" not in str(shown(agent, "note"))
