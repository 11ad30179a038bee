"""Local servers: what Ollama and llama.cpp do when a prompt doesn't fit, and others."""

import itertools
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import stub
from builders import (
    LONG_TESTS,
    THOUGHT,
    asks_for_summary,
    bash,
    call,
    did,
    fails,
    flat,
    goes_on,
    history,
    is_valid,
    layers,
    said,
    shown,
    sized,
    turns,
    typed,
)
from stub import BYTES_PER_TOKEN, StubClient, api_error, reply
from wire import mock_client

import agent as program
from agent import take_turn


class FileServer(StubClient):
    """A local server without a cache, whose model works through some files.

    If it cuts, it does so as Ollama: a prompt that doesn't fit loses its oldest messages,
    and the model that was loaded for the first request has a window of this size.
    Otherwise it rejects the prompt, and names the window or not.
    """

    base_url = "http://localhost:11434"

    def __init__(self, window, cuts, error="", files=40):
        super().__init__(always=self.reply_to)
        self.size, self.cuts, self.error, self.files = window, cuts, error, files
        self.number, self.summarised, self.loaded = 0, set(), {}

    def get(self, path, **_):
        assert path == "/api/ps"
        return self.loaded_models()

    def usage(self, body, content):
        return {"input_tokens": self.read, "output_tokens": stub.tokens(content)}

    def reply_to(self, request):
        fixed, messages = (request["system"], request["tools"]), request["messages"]
        if self.cuts:
            self.loaded = {f"{request['model']}:latest": self.size}
            while stub.count(*fixed, messages) > self.size and messages[1:]:
                messages = messages[1:]  # as Ollama does, whole messages
        self.read = stub.count(*fixed, messages)
        if self.read > self.size and not self.cuts:
            return api_error(400, self.error)
        if self.read > self.size or messages[0] != request["messages"][0]:
            return reply("How can I help you with this project?")
        if asks_for_summary(request):
            self.summarised |= {*re.findall(r"FACT-\d+-", str(messages))}
            return reply("<summary>Files are read.</summary>")
        self.number += 1
        name = f"{self.number % self.files}.txt"
        done = self.number > 40
        return reply("Done.") if done else reply(calls=[("read_file", {"path": name})])


# windows, and the tokens in each file; system prompt and tools take a third of 4,096
FILE_TOKENS = {4_096: 300, 8_192: 600, 32_768: 600}


@pytest.fixture
def files(window):
    """Forty files, every other one full of digits."""
    for n in range(40):
        text = "the quick brown fox\n" if n % 2 else "0123456789 98765.4321\n"
        Path(f"{n}.txt").write_text(f"FACT-{n}-\n" + sized(FILE_TOKENS[window], text))


# in llama.cpp's words, without the numbers and with them
WITHOUT_NUMBERS = "the request exceeds the available context size, try increasing it"
WITH_NUMBERS = "request (99999 tokens) exceeds the available context size ({} tokens)"


@pytest.mark.slow
@pytest.mark.parametrize("window", FILE_TOKENS)
@pytest.mark.parametrize("setting", ["", "64000"])
@pytest.mark.parametrize("rules", [0, 6_000])
def test_a_job_of_40_requests_ends_well_where_ollama_cuts_a_prompt_silently(
    make, files, window, setting, rules, monkeypatch
):
    monkeypatch.setenv("CONTEXT_WINDOW", setting)
    Path("AGENTS.md").write_text(sized(rules, "one more rule\n"))
    server = FileServer(window, cuts=True)
    agent = make(client=server, limits=program.configured_limits())
    assert take_turn(agent, "Read all files.") == "Done." and server.number == 41
    [line] = [text for text in shown(agent, "layer") if "[window]" in text]
    assert f"{window:,} tokens" in line and agent.limits.context_window == window


@pytest.mark.slow
@pytest.mark.parametrize("window", [8_192, 32_768])
def test_where_a_prompt_is_cut_silently_each_result_is_read_for_a_summary(
    make, files, window, monkeypatch
):
    monkeypatch.setenv("CLEAR_ABOVE", "1000000")  # layer 1 would clear results
    server = FileServer(window, cuts=True)
    agent = make(client=server, clear_above=1_000_000)
    assert take_turn(agent, "Read all files.") == "Done."
    kept = {*re.findall(r"FACT-\d+-", str(agent.messages))}
    assert server.summarised | kept == {f"FACT-{n}-" for n in range(40)}


@pytest.mark.slow
@pytest.mark.parametrize("window", FILE_TOKENS)
@pytest.mark.parametrize("error", [WITHOUT_NUMBERS, WITH_NUMBERS])
def test_a_job_of_40_requests_ends_well_where_a_prompt_is_rejected(
    make, files, window, error
):
    server = FileServer(window, cuts=False, error=error.format(window))
    agent = make(client=server, context_window=64_000)
    assert take_turn(agent, "Read all files.") == "Done." and server.number == 41


CALLS_SEQ = bash("seq 600")
SUMMED_UP = reply("<summary>So far so good.</summary>")


# For each case: the model's name, the models that are loaded, and the window in use.
LOADED = {
    "no tag": ("qwen3", {"qwen3:8b": 8_000, "qwen3:latest": 24_000}, 24_000),
    "a tag": ("qwen3:8b", {"qwen3:8b": 24_000, "qwen3:latest": 8_000}, 24_000),
    "another model": ("qwen3", {"qwen3-coder:latest": 8_000}, 200_000),
    "a larger window": ("qwen3", {"qwen3:latest": 262_144}, 200_000),
    "a number as text": ("qwen3", {"qwen3:latest": "24000"}, 24_000),
    "less than any agent needs": ("qwen3", {"qwen3:latest": 2_048}, 4_000),
    "no number": ("qwen3", {"qwen3:latest": None}, 200_000),
    "a list": ("qwen3", (200, {}, ["qwen3"]), 200_000),
    "a page": ("qwen3", (200, {"content-type": "text/html"}, b"<html>"), 200_000),
    "a proxy's error": ("qwen3", (502, {}, b"Bad Gateway"), 200_000),
}


@pytest.mark.parametrize("case", LOADED)
@pytest.mark.parametrize("url", ["http://localhost:11434", "https://gateway.example"])
def test_at_the_start_a_server_on_this_machine_is_asked_for_the_window_it_has_loaded(
    make, monkeypatch, case, url
):
    model, loaded, window = LOADED[case]
    client = mock_client()
    client.base_url, client.stub.loaded, client.stub.info = url, loaded, (404, {}, b"")
    monkeypatch.setattr("anthropic.Anthropic", lambda **_: client)
    agent = make(client=None, model=model)
    is_asked = url.startswith("http:")
    assert agent.limits.context_window == (window if is_asked else 200_000)
    lines = [text for text in shown(agent, "layer") if "[window]" in text]
    assert len(lines) == (is_asked and window < 200_000)


def test_a_server_that_hangs_when_it_is_asked_for_its_window_costs_little_time(
    make, monkeypatch
):
    client, given = FileServer(8_192, cuts=True), []
    client.get = lambda path, options, **_: given.append(options["timeout"]) or 1 / 0
    agent = make(client=client)
    turns(agent, *["Read all files."] * 3)
    assert given == [5]  # seconds


class Changing(FileServer):
    """An Ollama that loads the model with another window from time to time.

    Each turn is one request, after a pause of some seconds.
    """

    def __init__(self, monkeypatch, *windows, pause):
        super().__init__(0, cuts=True)
        self.windows, self.seconds, self.pause = [*windows], 1e9, pause
        monkeypatch.setattr(program.time, "time", lambda: self.seconds)

    def reply_to(self, request):
        self.size = self.windows.pop(0)
        self.number, self.seconds = 99, self.seconds + self.pause
        return super().reply_to(request)


def test_the_window_follows_a_model_that_is_loaded_again_with_a_smaller_one(
    make, monkeypatch
):
    sizes = 120_000, 65_536, 90_000, 4_096, 4_096
    agent = make(client=Changing(monkeypatch, *sizes, pause=301))
    used = [turns(agent, "Hi") and agent.limits.context_window for _ in range(4)]
    assert used == [120_000, 65_536, 65_536, 4_096]
    assert agent.client.windows == []  # the last request was sent once more


@pytest.mark.parametrize("lost", [api_error(529, "Overloaded"), KeyboardInterrupt()])
def test_ollama_is_asked_after_the_first_reply_that_arrives(make, lost):
    agent = make(client=FileServer(32_768, cuts=True))
    agent.client.enqueue(lost)
    with suppress(KeyboardInterrupt):
        take_turn(agent, "Hi")
    agent.client.number = 99
    assert take_turn(agent, "Hi") == "Done."
    assert agent.limits.context_window == 32_768


@pytest.mark.parametrize("window", [6_000, 32_768])
def test_a_summary_of_a_prompt_that_ollama_cut_silently_is_not_believed(make, window):
    facts = [said(f"FACT-{n}-" + sized(window // 6, "word ")) for n in range(8)]
    talk = [[typed("Go on."), fact] for fact in facts]
    agent = make(client=FileServer(window, cuts=True), messages=history(*talk))
    program.run_command(agent, "/compact")
    kept = {*re.findall(r"FACT-\d+-", str(agent.messages))}
    known = agent.client.summarised | kept
    assert known == {f"FACT-{n}-" for n in range(8)} and agent.summary
    assert agent.limits.context_window == window


def test_no_user_query_found_means_that_ollama_cut_the_prompt(make):
    error = api_error(500, "no user query found in messages")
    talk = history(*[[said(sized(900)), typed("Go on.")] for _ in range(9)])
    agent = make(client=FileServer(8_192, cuts=True), messages=talk)
    agent.client.enqueue(error)
    agent.client.loaded, agent.client.number = {f"{agent.model}:latest": 8_192}, 99
    assert take_turn(agent, "Go on.") == "Done."
    assert agent.limits.context_window == 8_192


def counting(*counts):
    """A client that reports these tokens for its requests, then the last, no cache."""
    client, left = StubClient(), itertools.chain(counts, itertools.repeat(counts[-1]))
    client.usage = lambda body, content: {"input_tokens": next(left)}
    return client


OTHER = {
    "it grows": [4_000, 4_400, 4_900],
    "another tokenizer": [8_000, 8_900, 9_800],
    "two backends by turns": [5_000, 4_000, 6_500, 4_700, 7_800],
    "a router's low count": [9_000, 9_900, 5_000, 11_000],
    "counts of a gateway": [3, 3, 3],
    "only what isn't cached": [4_000, 300, 300],
    "a constant": [9_000, 9_000, 9_000],
    "less than any window": [3_400, 3_300, 3_200],
    "none": [None, None, None],
}


@pytest.mark.parametrize("counts", OTHER.values(), ids=OTHER)
def test_no_count_says_that_a_prompt_was_cut(make, counts):
    agent = make(client=counting(*counts))
    agent.client.enqueue(*[CALLS_SEQ] * 4, reply("Done."))
    assert take_turn(agent, "Work.") == "Done." and shown(agent, "layer") == []
    assert agent.limits == program.Limits()


# For each provider: tokens neither read from a cache nor written to it, read, written.
USAGES = {
    "Anthropic": (3, 5_000, 900),
    "no cache": (5_903, 0, 0),
    "DeepSeek, which writes for nothing": (903, 5_000, 0),
    "SGLang, which counts what it read twice": (5_903, 5_000, 0),
    "nothing but what was read": (0, 5_903, None),
}


@pytest.mark.parametrize("counts", USAGES.values(), ids=USAGES)
def test_each_token_of_a_request_counts_once(make, counts):
    agent = make(reply("Hi."), messages=[typed("Hi")])
    keys = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
    agent.client.usage = lambda body, content: dict(zip(keys, counts, strict=True))
    assert program.ask(agent, agent.messages).sent == 5_903


class OddCounter(StubClient):
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


@pytest.mark.slow
@pytest.mark.parametrize("leaves_out", ["thinking", "cached", "all but a constant"])
def test_a_server_that_counts_in_another_way_loses_no_window(make, leaves_out):
    thought = {"thinking": sized(900)} if leaves_out == "thinking" else {}
    agent = make(client=OddCounter(leaves_out=[leaves_out]))
    for n in range(40):
        Path(f"{n}.txt").write_text(sized(700 + 40 * (n % 9), "a line of text\n"))
        call = ("read_file", {"path": f"{n}.txt"})
        agent.client.enqueue(reply(calls=[call], **thought), reply("Yes.", **thought))
        assert take_turn(agent, f"What is in file {n}?") == "Yes."
    assert agent.limits.context_window == 200_000
    assert "too long" not in str(shown(agent, "layer"))


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


# --- Thinking: signed or not, wanted back or not ---

KIMI = "thinking is enabled but reasoning_content is missing in assistant tool call message"
DEEPSEEK = (
    "The `reasoning_content` in the thinking mode must be passed back to the API."
)
LITELLM = "litellm.BadRequestError: Hosted_vllmException - "
UNSIGNED = {"type": "thinking", "thinking": "so far: {}", "signature": ""}
BARE_THOUGHT = {"type": "thinking", "thinking": "so far: {}"}
SIGNED_THOUGHT = {**UNSIGNED, "signature": "k{}"}
BLANK_THOUGHT = {**UNSIGNED, "thinking": ""}
# For each provider: what it thinks, whether it signs that, and its own check.
PROVIDERS = {
    "Anthropic": (BARE_THOUGHT, True, None),
    "Anthropic, without a text": ({**BARE_THOUGHT, "thinking": ""}, True, None),
    "Kimi": (UNSIGNED, False, stub.wants_thinking(KIMI)),
    "Kimi, signed": (SIGNED_THOUGHT, False, stub.wants_thinking(KIMI)),
    "Kimi, blank": (BLANK_THOUGHT, False, stub.wants_thinking(KIMI)),
    "Kimi, signed and blank": (
        {**SIGNED_THOUGHT, "thinking": ""},
        False,
        stub.wants_thinking(KIMI),
    ),
    "DeepSeek": (UNSIGNED, False, stub.wants_thinking(DEEPSEEK)),
    "DeepSeek, blank": (BLANK_THOUGHT, False, stub.wants_thinking(DEEPSEEK)),
    "LiteLLM": (BLANK_THOUGHT, False, stub.wants_thinking(LITELLM + KIMI, text=True)),
    "LiteLLM, signed": (
        {**SIGNED_THOUGHT, "thinking": ""},
        False,
        stub.wants_thinking(LITELLM + DEEPSEEK, text=True),
    ),
    "Ollama": (BARE_THOUGHT, False, None),
    "llama.cpp": (UNSIGNED, False, None),
    "vLLM": (UNSIGNED, False, None),
    "vLLM 0.14": (UNSIGNED, False, stub.knows_no_thinking),
}
# with each check, and with signed, unsigned, blank and bare thoughts
SOME = "Anthropic", "Kimi", "DeepSeek, blank", "LiteLLM, signed", "Ollama", "vLLM 0.14"


def provider(name):
    """A client of this provider, whose model makes 19 calls, one of them of `compact`."""
    thought, signs, check = PROVIDERS[name]
    numbers = itertools.count(1)

    def work(request):
        if asks_for_summary(request):
            return SUMMED_UP
        number = next(numbers)
        block = {key: thought[key].format(number) for key in thought}
        tool = call("compact") if number == 15 else call("read_file", path="notes.txt")
        called = {**tool, "id": f"bash:{number}"}
        text = {"type": "text", "text": "Done."}
        return reply(content=[block, called if number % 20 else text])

    client = StubClient(always=work)
    client.signs, client.own_check = signs, check
    return client


LOW_LIMITS = {"threshold": 20_000, "clear_above": 6_000, "min_savings": 2_000}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS if LONG_TESTS else SOME)
def test_resuming_or_switching_to_another_provider_costs_one_rejection_at_most(
    make, name
):
    Path("notes.txt").write_text(sized(900, "these are the notes\n"))
    agent = None
    for client in [provider(name), *map(provider, [name, "Anthropic", name])]:
        before, agent = agent, make(client=client, **LOW_LIMITS)
        if before:
            vars(agent).update(vars(program.load(before.transcript)))
        assert take_turn(agent, "Read the notes.") == "Done."
        assert {"micro_compact", "compact"} <= {*layers(agent)}
        assert len(client.rejected) <= 1
    lost = re.findall(r"The thought before \S+ is lost", str(client.bodies[-1]))
    assert len({*lost}) == len(lost)  # each once
    keeps = name != "vLLM 0.14" and PROVIDERS[name][0]["thinking"]
    assert ("so far: 19" in str(client.bodies[-1])) == bool(keeps)


class Hybrid(StubClient):
    """A server that can only go on from the end of the last prompt and its reply.

    `anew` has the tokens that it had to read; it's the size of each other prompt, too.
    """

    def __init__(self, always):
        super().__init__(always=always)
        self.signs, self.seen, self.anew = False, b"", 0

    def usage(self, body, content):
        after = {
            "messages": [*body["messages"], {"role": "assistant", "content": content}]
        }
        prompt, whole = (
            b"".join(map(stub.encoded, flat(body | m))) for m in ({}, after)
        )
        known = len(self.seen) if prompt.startswith(self.seen) else 0
        self.anew, self.seen = self.anew + len(prompt[known:]) / BYTES_PER_TOKEN, whole
        return {"input_tokens": int(len(prompt) / BYTES_PER_TOKEN)}


@pytest.mark.slow
def test_thoughts_without_a_signature_let_a_server_go_on_from_its_cache(make):
    Path("notes.txt").write_text(sized(620, "these are the notes\n"))
    thought = {**UNSIGNED, "thinking": "Which of these notes is it? " * 20}
    calls = [call("read_file", path="notes.txt") | {"id": f"t{n}"} for n in range(60)]
    work = iter([*[reply(content=[thought, each]) for each in calls], reply("Done.")])
    client = Hybrid(lambda body: SUMMED_UP if asks_for_summary(body) else next(work))
    agent = make(client=client, context_window=32_768)
    assert take_turn(agent, "Work.") == "Done." and "micro_compact" in layers(agent)
    assert client.anew < 110_000


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
    agent = make(CALLS_SEQ, FILTERS[0])
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
