"""Local servers: what Ollama and llama.cpp do when a prompt doesn't fit, and others."""

import itertools
import json
import re
from pathlib import Path

import pytest
import stub
from builders import (
    asks_for_summary,
    did,
    fails,
    goes_on,
    history,
    is_valid,
    layers,
    said,
    shown,
    sized,
    typed,
)
from stub import StubClient, api_error, reply

import agent as program
from agent import take_turn


class Server(StubClient):
    """A local server without a cache, whose model works through some files.

    If it cuts, it reads the newest tokens of a prompt that doesn't fit, as Ollama does.
    Otherwise it rejects the prompt, and names the window or not.
    """

    def __init__(self, window, cuts, error="", files=40):
        super().__init__(always=self.reply_to)
        self.size, self.cuts, self.error, self.files = window, cuts, error, files
        self.number, self.summarised = 0, set()

    def usage(self, body, content):
        return {"input_tokens": self.read, "output_tokens": stub.tokens(content)}

    def reply_to(self, request):
        system, tools, messages = (request[k] for k in ("system", "tools", "messages"))
        while (read := stub.count(system, tools, messages)) > self.size and self.cuts:
            messages = messages[1:]  # as Ollama does, whole messages
        self.read = read
        if read > self.size:
            return api_error(400, self.error)
        if messages[0] != request["messages"][0]:
            return reply("How can I help you with this project?")
        if asks_for_summary(request):
            self.summarised |= {*re.findall(r"FACT-\d+-", str(messages))}
            return reply("<summary>Files are read.</summary>")
        self.number += 1
        name = f"{self.number % self.files}.txt"
        done = self.number > 40
        return reply("Done.") if done else reply(calls=[("read_file", {"path": name})])


# windows, and the tokens in each file; system prompt and tools take a third of 4,096
WINDOWS = {4_096: 300, 8_192: 600, 32_768: 600}


@pytest.fixture
def files(window):
    """Forty files, every other one full of digits."""
    for n in range(40):
        text = "the quick brown fox\n" if n % 2 else "0123456789 98765.4321\n"
        Path(f"{n}.txt").write_text(f"FACT-{n}-\n" + sized(WINDOWS[window], text))


# in llama.cpp's words, without the numbers and with them
TOO_LONG = "the request exceeds the available context size, try increasing it"
NAMED = "request (99999 tokens) exceeds the available context size ({} tokens)"


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("setting", [64_000, 0])
def test_a_job_of_40_requests_ends_well_where_a_prompt_is_cut_silently(
    make, files, window, setting
):
    server = Server(window, cuts=True)
    agent = make(client=server, context_window=setting or window)
    assert take_turn(agent, "Read all files.") == "Done."
    assert server.number == 41
    noticed = [text for text in shown(agent, "layer") if "cut off the beg" in text]
    assert len(noticed) <= 1


@pytest.mark.parametrize("window", [8_192, 32_768])
def test_where_a_prompt_is_cut_silently_each_result_is_read_for_a_summary(
    make, files, window, monkeypatch
):
    monkeypatch.setenv("CLEAR_ABOVE", "1000000")  # layer 1 would clear results
    server = Server(window, cuts=True)
    agent = make(client=server, clear_above=1_000_000)
    assert take_turn(agent, "Read all files.") == "Done."
    kept = {*re.findall(r"FACT-\d+-", str(agent.messages))}
    assert server.summarised | kept == {f"FACT-{n}-" for n in range(40)}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("error", [TOO_LONG, NAMED])
def test_a_job_of_40_requests_ends_well_where_a_prompt_is_rejected(
    make, files, window, error
):
    server = Server(window, cuts=False, error=error.format(window))
    agent = make(client=server, context_window=64_000)
    assert take_turn(agent, "Read all files.") == "Done." and server.number == 41


def counting(*counts):
    """A client that reports these tokens for its requests, then the last, no cache."""
    client, left = StubClient(), itertools.chain(counts, itertools.repeat(counts[-1]))
    client.usage = lambda body, content: {"input_tokens": next(left)}
    return client


CALL = reply(calls=[("bash", {"command": "seq 600"})])
SUMMED_UP = reply("<summary>So far so good.</summary>")


def test_a_count_that_no_longer_grows_is_a_silent_cut_and_teaches_the_window(make):
    agent = make(client=counting(4_000, 4_900, 4_950, 900))
    agent.client.enqueue(CALL, CALL, reply("What?"), *[SUMMED_UP] * 2, reply("Done."))
    assert take_turn(agent, "Work.") == "Done."
    assert "What?" not in str(agent.messages)
    [line] = [text for text in shown(agent, "layer") if "cut off the beg" in text]
    assert "CONTEXT_WINDOW" in line and agent.limits.context_window == 4_950


OTHER = {
    "it grows": [4_000, 4_400, 4_900],
    "another tokenizer": [8_000, 8_900, 9_800],
    "counts of a gateway": [3, 3, 3],
    "only what isn't cached": [4_000, 300, 300],
    "a constant": [9_000, 9_000, 9_000],
    "less than any window": [3_400, 3_300, 3_200],
    "none": [None, None, None],
}


@pytest.mark.parametrize("counts", OTHER.values(), ids=OTHER)
def test_other_counts_are_no_cut(make, counts):
    agent = make(client=counting(*counts))
    agent.client.enqueue(CALL, CALL, reply("Done."))
    assert take_turn(agent, "Work.") == "Done." and shown(agent, "layer") == []


class Gateway(StubClient):
    """A server with a dial for what its usage leaves out: nothing here is ever cut."""

    def __init__(self, *replies, leaves_out=()):
        super().__init__(*replies)
        self.leaves_out, self.before = leaves_out, 0

    def usage(self, body, content):
        parts = body["system"], body["tools"]
        size = stub.count(*parts, [*map(self.shorter, body["messages"])])
        count = size - self.before if "cached" in self.leaves_out else size
        self.before = size
        count = 5_000 if "all but a constant" in self.leaves_out else count
        return {"input_tokens": count, "output_tokens": stub.tokens(content)}

    def shorter(self, message):
        kinds = {"thinking"} & {*self.leaves_out}
        content = [b for b in message["content"] if b["type"] not in kinds]
        return {**message, "content": content or [{"type": "text", "text": ""}]}


@pytest.mark.parametrize("leaves_out", ["thinking", "cached", "all but a constant"])
def test_a_server_that_counts_in_another_way_loses_no_window(make, leaves_out):
    thought = {"thinking": sized(900)} if leaves_out == "thinking" else {}
    agent = make(client=Gateway(leaves_out=[leaves_out]))
    for n in range(40):
        Path(f"{n}.txt").write_text(sized(700 + 40 * (n % 9), "a line of text\n"))
        call = ("read_file", {"path": f"{n}.txt"})
        agent.client.enqueue(reply(calls=[call], **thought), reply("Yes.", **thought))
        assert take_turn(agent, f"What is in file {n}?") == "Yes."
    assert agent.limits.context_window == 200_000
    assert "too long" not in str(shown(agent, "layer"))


def test_the_window_learned_from_a_cut_is_the_largest_request_that_got_a_reply(make):
    agent = make(messages=[typed(sized(9_000)), said("Yes."), typed("Go on.")])
    agent.sent, agent.most_sent = (6_000, 1), 9_500  # before a layer changed the list
    given = program.Reply(said("Yes."), "end_turn", 5_000, 9)
    with pytest.raises(program.PromptTooLong) as error:
        program.check_whole(agent, given)
    assert error.value.maximum == 9_500


@pytest.mark.parametrize("cached, is_cut", [(0.0, True), (0.08, False)])
def test_a_count_is_believed_to_be_cut_only_if_the_reply_reports_no_cache(
    make, cached, is_cut
):
    agent = make(messages=[typed(sized(9_000)), said("Yes."), typed("Go on.")])
    agent.sent, agent.cached = (9_000, 1), cached
    given = program.Reply(said("Yes."), "end_turn", 5_000, 9)
    try:
        program.check_whole(agent, given)
    except program.PromptTooLong:
        assert is_cut
    else:
        assert not is_cut


def test_a_count_that_falls_because_a_layer_cleared_results_is_no_cut(make):
    agent = make(client=counting(9_000, 9_500, 5_000), clear_above=10**9)
    agent.client.enqueue(CALL, CALL, reply("Done."))
    agent.limits.keep_recent = agent.limits.keep_tokens = agent.limits.min_savings = 0
    agent.limits.clear_above = 9_400
    assert take_turn(agent, "Work.") == "Done."
    assert layers(agent) == ["micro_compact"]


@pytest.mark.parametrize("sent, is_full", [(7_900, True), (3_000, False)])
def test_a_short_reply_cut_off_in_a_full_window_leads_to_a_compaction(
    make, sent, is_full
):
    messages = history(said(sized(900)), typed("And?"), said("Yes."))
    agent = make(client=counting(sent, sent + 50), messages=messages)
    agent.limits = program.Limits(context_window=8_192)
    more = [SUMMED_UP] * is_full
    agent.client.enqueue(reply("Half", stop="max_tokens"), *more, reply("Done."))
    take_turn(agent, "Go on.")
    assert ("reactive_compact" in layers(agent)) is is_full
    assert ("Half" in str(agent.messages)) is not is_full


def test_no_user_query_found_means_that_the_prompt_is_too_long(make):
    error = api_error(500, "no user query found in messages")
    agent = make(client=counting(5_000, 5_200), context_window=32_000)
    agent.client.enqueue(reply("Hi."), error, reply("Done."))
    assert take_turn(agent, "Hi") == "Hi." and take_turn(agent, "Go on.") == "Done."
    assert agent.limits.context_window == 5_000


def test_a_text_after_another_begins_with_a_blank_line_whatever_usage_says(make):
    """Ollama joins texts without a space; what was sent once stays as it was."""
    agent = make(client=counting(2_900, 3_000))
    agent.client.enqueue(reply("Hi."), reply("Yes."))
    program.commit(agent, typed("Hello"))
    for text in "fix the bug", "go on":
        take_turn(agent, text)
    first, second = (request["messages"] for request in agent.client.bodies)
    sent = [block["text"] for block in first[0]["content"]]
    assert sent[0] == "Hello" and sent[1].startswith("\n\n[The request above")
    assert sent[2] == "\n\nfix the bug" and second[2]["content"][0]["text"] == "go on"
    assert stub.unmarked(stub.encoded(first[0])) == stub.encoded(second[0])


# --- Filters, calls as text, cache markers, and errors that no retry can change ---

FILTERS = [
    api_error(
        400, "DataInspectionFailed: Input data may contain inappropriate content"
    ),
    api_error(400, "The request was rejected because it was considered high risk"),
    api_error(400, "Output blocked by content filtering policy"),
    api_error(400, "The response was filtered by the content management policy"),
    api_error(400, "系统检测到输入或生成内容可能包含不安全或敏感内容 (code 1301)"),
]


@pytest.mark.parametrize("error", FILTERS, ids=str)
def test_what_a_filter_objects_to_is_taken_out(make, error):
    agent = make(reply("Hi."), error)
    take_turn(agent, "Hello")
    line = fails(agent, "Something forbidden")
    assert "declined" in line and "forbidden" not in str(agent.messages)
    assert "removed what was declined" in str(shown(agent, "layer")) and goes_on(agent)


FORBIDDEN = "Something forbidden"
SINCE_THE_REPLY = {
    "a line typed meanwhile": [typed("Go on."), *did(FORBIDDEN), typed("And quickly.")],
    "a file piped in before the prompt": [typed(FORBIDDEN), typed("What is this?")],
    "the user's own command": [program.note(FORBIDDEN), typed("What is 1 + 1?")],
}


@pytest.mark.parametrize("new", SINCE_THE_REPLY.values(), ids=SINCE_THE_REPLY)
def test_whatever_came_since_the_last_reply_is_taken_out_with_what_was_declined(
    make, new
):
    agent = make(messages=history(said("Hi."), new))
    program.drop_declined(agent)
    assert FORBIDDEN not in str(agent.messages)
    assert "Hi." in str(agent.messages) and is_valid([*agent.messages, typed("And?")])


def test_results_that_a_filter_objects_to_are_taken_out(make):
    agent = make(CALL, FILTERS[0])
    fails(agent, "Look.")
    assert agent.messages == [typed("Look.")] and goes_on(agent)


AS_TEXT = [
    '<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>',
    'I look.\n<tool_call>\n{"name": "bash"}\n</tool_call>\n',
    "<function=bash>\n<parameter=command>ls</parameter>\n</function>",
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">',
    'Now I look.\n{"name": "bash", "arguments"',
]


@pytest.mark.parametrize("text", AS_TEXT)
def test_a_call_written_as_text_is_a_reply_that_was_cut_off(make, text):
    agent = make(reply(text), reply("Done."))
    assert take_turn(agent, "Look.").endswith("Done.")
    assert program.note(program.CUT_OFF) in agent.messages
    agent = make(*[reply(text)] * 4)
    assert "cut off" in fails(agent, "Look.")


@pytest.mark.parametrize(
    "text", [f"Write:\n```xml\n{AS_TEXT[0]}\n```", "See `</invoke>`."]
)
def test_a_call_in_a_code_block_is_an_answer(make, text):
    agent = make(reply(text))
    assert take_turn(agent, "How?") == text


def test_cache_markers_are_left_out_once_they_are_rejected(make):
    error = api_error(400, "system.0.cache_control: Extra inputs are not permitted")
    agent = make(error, reply("Hi."), reply("Yes."))
    assert [take_turn(agent, text) for text in ("Hello", "And?")] == ["Hi.", "Yes."]
    marked = ["cache_control" in json.dumps(body) for body in agent.client.bodies]
    assert marked == [True, False, False]


class Broken(StubClient):
    """A client of one's own with a mistake in it."""

    def __init__(self, mistake):
        super().__init__()
        self.mistake, self.asked = mistake, 0

    def answer(self, request):
        self.asked += 1
        return self.mistake(request)


MISTAKES = {
    "AttributeError": lambda request: request.no_such_field,
    "KeyError": lambda request: request["gone"],
    "NameError": lambda request: gone,  # noqa: F821
    "TypeError": lambda request: request + 1,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_client_is_named_and_not_retried(make, pauses, name):
    agent = make(client=Broken(MISTAKES[name]))
    assert f"{name}(" in fails(agent, "Hi") and agent.client.asked == 1
    assert pauses == []


def test_half_an_answer_that_filled_the_window_is_discarded(make):
    half = reply("Half of", stop="model_context_window_exceeded")
    agent = make(half, SUMMED_UP, reply("Done."), messages=history(said(sized(2_000))))
    agent.messages += [typed("And?"), said("Yes.")]
    assert take_turn(agent, "Go on.") == "Done."
    styles = [style for style, _ in agent.events]
    assert styles.index("void") > styles.index("text")


def test_only_thinking_that_is_dropped_is_not_called_too_large(make):
    agent = make(
        messages=history(
            {**said("Yes."), "content": [THOUGHT, *said("Yes.")["content"]]}
        )
    )
    program.make_ready(agent)
    [line] = shown(agent, "layer")
    assert line.startswith("[thinking] dropped")


THOUGHT = {"type": "thinking", "thinking": "", "signature": "s"}
