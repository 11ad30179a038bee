"""Errors of the network, the API and the model, through the real SDK.

Each error arrives as it would over a network. The tests check the answer, the messages
that are kept and the lines that the user sees.
"""

import itertools
import json
import re
import threading
from functools import partial

import anthropic
import httpx2
import pytest
import stub
from builders import (
    LONG,
    READ,
    SMALL,
    SUMMARY,
    TASK,
    WRITE,
    any_answer,
    asks_for_summary,
    begins_with,
    fails,
    goes_on,
    layers,
    results,
    said,
    shown,
    typed,
)
from door import event
from stub import StubClient, api_error, reply
from wire import Cut, mock_client, serve

import agent as program
from agent import take_turn

WHOLE = "An answer without a word lost."


@pytest.fixture
def wired(make, notes):
    """wired(*answers, **fields of Agent): an agent over the real SDK (see wire.py)."""
    return lambda *answers, **fields: make(client=mock_client(*answers), **fields)


# ---- transient errors ----


START = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
START |= {"content": [], "stop_reason": None, "stop_sequence": None}
START |= {"usage": {"input_tokens": 5, "output_tokens": 1}}
START = event("message_start", message=START)


def stream_of(*blocks, stop):
    """A stream with the events of these blocks, which ends with a stop reason."""
    usage = {"output_tokens": 9}
    ending = event("message_delta", delta={"stop_reason": stop}, usage=usage)
    return b"".join([START, *blocks, ending, event("message_stop")])


def broken_call(*pieces, stop="tool_use"):
    """A stream with a call whose input arrives in these pieces of JSON."""
    block = {"type": "tool_use", "id": "toolu_x", "name": "write_file", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return stream_of(
        event("content_block_start", index=0, content_block=block),
        *(event("content_block_delta", index=0, delta=delta) for delta in deltas),
        event("content_block_stop", index=0),
        stop=stop,
    )


NOT_JSON = {
    "the SDK": broken_call('{"path": "a", "content": "b",}'),
    "Ollama": api_error(
        500,
        'error parsing tool call: raw=\'{"a": "The context window has 8192 tokens\', '
        "err=unexpected end of JSON input",
    ),
}


@pytest.mark.parametrize("broken", NOT_JSON.values(), ids=NOT_JSON)
def test_a_call_that_is_not_json_is_told_to_the_model_at_once(wired, pauses, broken):
    agent = wired(*[broken] * 3, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and pauses == []
    assert agent.messages[1:4] == [program.note(program.CUT_OFF)] * 3
    assert "valid JSON" in program.CUT_OFF and goes_on(agent)
    agent = wired(*[broken] * 4)
    assert "cut off" in fails(agent, "Hi")


def test_a_summary_in_which_a_call_is_not_json_is_a_failed_summary(wired, pauses):
    agent = wired(broken_call("{path: a}"), messages=[typed(LONG), said(LONG * 9)])
    program.compact_history(agent, "compact")
    assert agent.failures == 1 and pauses == []


@pytest.mark.parametrize("stop", [None, "end_turn"])
def test_a_stream_that_has_ended_properly_is_a_reply_whatever_its_stop_reason(
    wired, pauses, stop
):
    block = event(
        "content_block_start", index=0, content_block=said(WHOLE)["content"][0]
    )
    agent = wired(stream_of(block, event("content_block_stop", index=0), stop=stop))
    assert take_turn(agent, "Hi") == WHOLE and pauses == []


@pytest.mark.parametrize("stop", ["tool_use", "tool_calls", "pause_turn"])
def test_a_reply_that_stops_for_a_call_it_does_not_have_is_continued(make, stop):
    agent = make(reply("First I'll", stop=stop), reply(" look."))
    assert take_turn(agent, "Hi") == "First I'll look."
    assert program.note(program.CUT_OFF) in agent.messages
    agent = make(*[reply("First I'll", stop=stop)] * 4)
    assert "cut off" in fails(agent, "Hi")


PARTLY = reply("A partial answer", calls=[WRITE], thinking="a plan")
DROPPED = httpx2.RemoteProtocolError("peer closed connection")
MALFORMED = b'event: message_start\ndata: {"type": "message_start", "mess\n\n'
BUSY = event("error", error={"type": "overloaded_error", "message": "busy"})
# For each case: the error, and a part of the reason that the user is shown.
TRANSIENT = {
    "overloaded": (api_error(529, "Overloaded"), "Overloaded"),
    "a rate limit": (api_error(429, "Too many requests"), "Too many requests"),
    "an internal error": (api_error(500, "Internal server error"), "Internal server"),
    "a bad gateway": ((502, {}, b"<html>\n<h1>Bad Gateway</h1>\n</html>"), ""),
    "an API timeout": (api_error(408, "Request timeout"), "Request timeout"),
    "a conflict": (api_error(409, "Conflict"), "Conflict"),
    "a drop under TLS": (
        httpx2.ConnectError(
            "[SSL] EOF occurred in violation of protocol (_ssl.c:1006)"
        ),
        "EOF occurred in violation of protocol (_ssl.c:1006)",
    ),
    "a refused connection": (httpx2.ConnectError("Connection refused"), "onnection"),
    "a drop in a call": (Cut(PARTLY, 14, DROPPED), "peer closed"),
    "a proxy's bad gateway": (httpx2.ProxyError("502 Bad Gateway"), "502 Bad"),
    "a stall": (Cut(PARTLY, 9, httpx2.ReadTimeout("nothing came")), "nothing came"),
    "a stream that ends at once": (Cut(PARTLY, 0), "broke off"),
    "a stream that ends in a call": (Cut(PARTLY, 14), ""),
    "a stream that ends before the stop reason": (Cut(PARTLY, 16), ""),
    "a malformed chunk": (MALFORMED, ""),
    "an overloaded event": (START + BUSY, "busy"),
}


@pytest.mark.parametrize("case", TRANSIENT)
def test_a_transient_error_costs_time_but_no_text(wired, pauses, case):
    error, reason = TRANSIENT[case]
    agent = wired(*[error] * 4, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE
    assert agent.messages[1:] == [said(WHOLE)] and sum(pauses) == 1 + 2 + 4 + 8
    [line] = [text for text in shown(agent, "layer") if text.startswith("[retry]")]
    assert reason in line and "7 times" in line and "\n" not in line
    assert goes_on(agent)


def test_it_tries_seven_times_with_growing_pauses_and_then_fails_with_one_clear_error(
    wired, pauses
):
    agent = wired(*[api_error(529, "Overloaded")] * 7)
    fails(agent, "Hi")
    assert len(agent.client.requests) == 7
    assert sum(pauses) == 1 + 2 + 4 + 8 + 16 + 32
    assert len(agent.messages) == 1 and goes_on(agent)


# ---- waiting ----


DATE = "Fri, 31 Dec 2100 23:59:59 GMT"


def limited(after, status=429):
    """A rate limit with this retry-after."""
    return api_error(status, "Too many requests", headers={"retry-after": after})


HONOURED = ["1", "7", "60", "0.5"]
UNUSABLE_DELAYS = ["soon", "-5", "nan", "inf", "1e9", "9" * 20, "", "٣", DATE]


@pytest.mark.parametrize("status", [429, 529])
@pytest.mark.parametrize("after", [*HONOURED, *UNUSABLE_DELAYS])
def test_retry_after_is_honoured_up_to_a_minute(wired, pauses, after, status):
    agent = wired(limited(after.encode(), status), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE
    waited = sum(pauses)
    assert waited == pytest.approx(float(after)) if after in HONOURED else waited <= 60


def test_retry_after_0_does_not_use_up_all_tries_at_once(wired, pauses):
    agent = wired(*[limited("0")] * 6, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE
    assert sum(pauses) == 1 + 2 + 4 + 8 + 16 + 32


PLANS = {  # what a provider says of a limit, and how often it's asked
    "usage limit reached for 5 hour. Your limit will reset at 2026-11-30 04:00": 1,
    "You exceeded your current quota, please check your plan and billing details": 1,
    "You exceeded your quota, check your plan and billing. Please retry in 39.6s": 7,
    "Too many requests": 7,
}


@pytest.mark.parametrize("text, tries", PLANS.items())
def test_a_plan_that_is_used_up_is_asked_once(wired, text, tries):
    agent = wired(*[api_error(429, text)] * tries)
    assert text in fails(agent, "Hi")
    assert len(agent.client.requests) == tries and len(agent.messages) == 1


def test_a_plan_that_says_when_to_retry_is_asked_again(wired, pauses):
    used_up = api_error(429, "usage limit reached", headers={"retry-after": "5"})
    agent = wired(used_up, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and sum(pauses) == 5


@pytest.mark.parametrize("after", ["61", "86400", "99999999"])
def test_a_retry_after_over_a_minute_says_when_to_try_again(
    wired, pauses, monkeypatch, after
):
    agent, seconds = wired(limited(after)), float(after)
    monkeypatch.setattr(program.time, "time", lambda: 3e8)
    when = program.time.localtime(3e8 + seconds)
    assert program.time.strftime("after %H:%M:%S.", when) in fails(agent, "Hi")
    assert pauses == [] and len(agent.client.requests) == 1
    assert len(agent.messages) == 1 and goes_on(agent)


def test_a_wait_is_shown_before_it_begins_and_ctrl_c_ends_it(wired, monkeypatch):
    def sleep(seconds):
        assert seconds == 1 and waits[-1] == "try 2 of 7 in 42 s"
        raise KeyboardInterrupt

    agent, waits = wired(reply(calls=[READ]), limited("42")), []
    agent.emit = lambda style, text: waits.append(text)
    with monkeypatch.context() as patch:
        patch.setattr(program.time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            take_turn(agent, "Hi")
    assert len(agent.messages) == 3 and goes_on(agent)


@pytest.mark.parametrize("limit, delay", [(0.3, 0.1), (0.1, 0.3)])
def test_a_stream_times_out_when_it_stalls_but_not_for_being_long(
    run, api, monkeypatch, pauses, limit, delay
):
    goes_on = delay < limit
    hasty = partial(anthropic.Anthropic, timeout=limit)
    monkeypatch.setattr("anthropic.Anthropic", hasty)
    api.enqueue(*[reply(WHOLE)] * (1 if goes_on else 7))
    with serve(api, delay=delay) as url:
        status, out, _ = run("-p", "Hi", ANTHROPIC_BASE_URL=url)
    assert (status, sum(pauses)) == ((0, 0) if goes_on else (1, 63))
    assert out == (WHOLE + "\n") * goes_on


# ---- lasting errors ----

KEY = "a-key-that-nobody-may-see"

# For each case: the error, and a part of the line that reports it.
LASTING = {
    "no valid key": (api_error(401, "no such key"), "no such key. Check ANTHROPIC_API"),
    "no permission": (api_error(403, "not allowed"), "ANTHROPIC_API_KEY"),
    "no such model": (
        api_error(404, "model: opus"),
        "model: opus. Check MODEL_ID, ANTHROPIC_MODEL and ANTHROPIC_BASE_URL",
    ),
    "LiteLLM's reason": (
        api_error(
            400, 'VertexAIException BadRequestError - b\'{"error": "no tools"}\''
        ),
        "no tools",
    ),
    "another server": ((404, {}, b"<html>\n\n<p>Not\nFound</p>"), "ANTHROPIC_BASE_URL"),
    "a bad request": (api_error(400, "Your credit balance is too low"), "credit balan"),
    "a long complaint": (api_error(400, "no good: " + "x\n" * 5_000), "no good"),
    "a page": ((200, {"content-type": "text/html"}, b"<html>Log in</html>"), "Log in"),
    "a reply without a stream": ((200, {}, reply(WHOLE)), "application/json"),
    "no such key": (api_error(401, "no"), "agent.py. Then start again with --resume."),
    "a proxy without a password": (
        httpx2.ProxyError("407 Proxy Authentication Required"),
        "check HTTPS_PROXY",
    ),
    "a proxy that forbids": (httpx2.ProxyError("403 Forbidden"), "check HTTPS_PROXY"),
    "another method": (api_error(405, "method not allowed"), "method not allowed"),
}


@pytest.mark.parametrize("at_work", [0, 1])
@pytest.mark.parametrize("case", LASTING)
def test_a_lasting_error_names_what_to_change(wired, pauses, case, at_work):
    error, named = LASTING[case]
    agent = wired(*[reply(calls=[READ], thinking="hm")] * at_work, error)
    assert named in fails(agent, "Hi")
    assert pauses == [] and len(agent.client.requests) == 1 + at_work
    assert len(agent.messages) == 1 + 2 * at_work and goes_on(agent)


FIREWALL = (
    403,
    {"content-type": "text/html"},
    b"<!DOCTYPE html><HTML>Forbidden</HTML>",
)
NO_RIGHTS = api_error(403, "no access to this model")
# For each case: the error, what is typed after the results, and what is left of them.
FORBIDDEN = {
    "results": (FIREWALL, "", 0),
    "a typed message": (FIREWALL, "And this <script>?", 1),
    "the model": (NO_RIGHTS, "", 1),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_firewall_that_rejects_the_newest_results_costs_only_them(wired, case):
    error, queued, left = FORBIDDEN[case]
    agent = wired(reply(calls=[READ]), error)
    agent.take_queued = lambda: queued
    line = fails(agent, "Look")
    assert ("A firewall rejected the newest tool results" in line) is (left == 0)
    assert ("type /clear" in line) is (left == 1) and agent.messages[0] == typed("Look")
    assert len(results(*agent.messages)) == left and goes_on(agent)


def test_a_firewall_in_front_of_everything_takes_nothing_away(wired):
    agent = wired(FIREWALL, FIREWALL)
    for _ in range(2):
        assert "type /clear" in fails(agent, "Look")
    assert program.user_texts(agent.messages) == ["Look"] * 2 and goes_on(agent)


# Settings, a part of the line that reports each, and the seconds it is retried for.
UNUSABLE = [
    ({"ANTHROPIC_BASE_URL": "ftp://127.0.0.1"}, "unsupported protocol 'ftp://'", 0),
    ({"ANTHROPIC_BASE_URL": "nonsense"}, "missing an 'http://'", 0),
    ({"ANTHROPIC_API_KEY": "a-key-in\ntwo-lines"}, "Illegal header value (", 63),
    ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:port"}, "Invalid port: 'port'", 0),
    ({"ALL_PROXY": "odd://127.0.0.1:1"}, "Unknown scheme for proxy", 0),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("setting, named, seconds", UNUSABLE)
def test_an_unusable_setting_is_explained_in_the_first_line(
    run, pauses, setting, named, seconds
):
    status, out, err = run("-p", "Hi", **setting)
    assert (status, out, sum(pauses)) == (1, "", seconds)
    for line in (err.splitlines()[0], err.splitlines()[-1]):
        assert named in line and "ANTHROPIC_BASE_URL" in line
    assert "two-lines" not in err


def test_an_unknown_certificate_is_not_retried_and_the_line_says_what_to_set(
    wired, pauses
):
    words = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unknown issuer"
    agent = wired(httpx2.ConnectError(words))
    assert "Set SSL_CERT_FILE" in fails(agent, "Hi") and pauses == []
    assert goes_on(agent)


UNREACHABLE = {
    "http://127.0.0.1:1": "Connection refused (http://127.0.0.1:1",
    "http://nobody.invalid": "(http://nobody.invalid",
}


@pytest.mark.parametrize("address", UNREACHABLE)
def test_an_unreachable_address_is_retried_and_then_named(run, pauses, address):
    status, out, err = run("-p", "Hi", ANTHROPIC_BASE_URL=address)
    assert (status, out, sum(pauses)) == (1, "", 63)
    assert UNREACHABLE[address] in err.splitlines()[-1]
    assert "Connection error" not in err


def test_spaces_around_a_key_or_an_address_are_ignored(run, api):
    api.enqueue(reply(WHOLE))
    padded = {"ANTHROPIC_BASE_URL": f" {api.url}", "ANTHROPIC_API_KEY": "test-key\n"}
    assert run("-p", "Hi", **padded)[:2] == (0, WHOLE + "\n")


@pytest.mark.parametrize("status, times", [(400, 1), (401, 1), (529, 7)])
def test_an_error_that_quotes_the_key_never_shows_it(run, api, status, times):
    api.enqueue(*[api_error(status, f"What is {KEY}?")] * times)
    code, out, err = run("-p", "Hi", ANTHROPIC_API_KEY=KEY)
    assert (code, out) == (1, "") and KEY not in err
    redacted = ["What is [redacted]?" in line for line in err.splitlines()]
    assert redacted == [True] * (2 if times == 7 else 1)  # the [retry] line, too


# ---- thinking that the API rejects ----

STALE = {
    "bound": "messages.1.content.0: Invalid `signature` in `thinking` block. The block "
    "is bound to a different conversation. Remove the block, or set `thinking."
    'block_binding.prefix_mismatch_behavior` to "drop_block".',
    "cannot be modified": "messages.1.content.0: `thinking` or `redacted_thinking` "
    "blocks in the latest assistant message cannot be modified.",
}


@pytest.fixture(params=STALE)
def stale(request):
    """The API error for thinking that is no longer valid."""
    return api_error(400, STALE[request.param])


def thoughts(request):
    """The number of thinking blocks in a request."""
    content = [m["content"] for m in request["messages"] if type(m["content"]) is list]
    return sum("thinking" in b["type"] for b in itertools.chain(*content))


@pytest.mark.parametrize("before, after", [(0, 0), (0, 4), (2, 2), (4, 0)])
def test_removing_thinking_does_not_count_as_a_try(wired, stale, pauses, before, after):
    errors = [api_error(529, "Overloaded")] * (before + after)
    errors.insert(before, stale)
    agent = wired(reply(calls=[READ], thinking="one"), *errors)
    agent.client.stub.enqueue(reply(WHOLE, thinking="two"))
    assert take_turn(agent, "Hi") == WHOLE
    assert sum(pauses) == 2 ** (before + after) - 1
    assert goes_on(agent)  # with the new thinking
    sent = [thoughts(request) for request in agent.client.requests]
    assert sent == [0, *[1] * (before + 1), *[0] * (after + 1), 1]


def test_if_it_is_rejected_without_thinking_too_there_is_one_clear_error(wired, stale):
    agent = wired(reply(calls=[READ], thinking="one"), stale, stale)
    fails(agent, "Hi")
    assert len(agent.client.requests) == 3 and goes_on(agent)


def test_a_request_for_a_summary_drops_thinking_too_and_its_text_is_not_shown(
    wired, stale
):
    agent = wired(reply(LONG, thinking="hm"), **SMALL)
    take_turn(agent, "Tell me a story")
    agent.client.stub.enqueue(stale, SUMMARY, reply(WHOLE))
    assert take_turn(agent, "Go on") == WHOLE
    assert [thoughts(request) for request in agent.client.requests] == [0, 1, 0, 0]
    streamed = "".join(shown(agent, "text"))
    assert "All is well." not in streamed and streamed.endswith(WHOLE)
    assert agent.failures == 0 and goes_on(agent)
    lines = [text.partition(":")[0] for text in shown(agent, "layer")]
    assert "[thinking] dropped" in lines


# ---- other providers behind ANTHROPIC_BASE_URL ----

NO_ADAPTIVE = "adaptive thinking is not supported on this model"


@pytest.mark.parametrize(
    "text", [NO_ADAPTIVE, "thinking: Extra inputs are not permitt"]
)
def test_if_thinking_is_rejected_it_is_switched_off_and_reported_once(wired, text):
    rejected = api_error(400, text)
    agent = wired(rejected, reply(calls=[READ]), reply(WHOLE), thinking=True)
    assert take_turn(agent, "Hi") == WHOLE and goes_on(agent)
    asked = ["thinking" in request for request in agent.client.requests]
    assert asked == [True, *[False] * 3]
    assert len([t for t in shown(agent, "layer") if "[thinking]" in t]) == 1


OUTPUT_TOO_LONG = [
    "max_tokens: 32000 > 8192, which is the maximum allowed for claude-3-5-20241022",
    "max_tokens is too large: 32000. This model supports at most 16384 tokens",
    "The maximum tokens you requested (32000) exceeds the model limit of 8192.",
    "max_tokens is too large for mistral-large-2411",
]


@pytest.mark.parametrize("text", OUTPUT_TOO_LONG)
def test_if_long_replies_are_rejected_the_limit_is_halved_until_it_is_accepted(
    wired, text
):
    errors = [api_error(400, text)] * 3
    agent = wired(*errors, reply(calls=[READ]), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and goes_on(agent)
    limits = [request["max_tokens"] for request in agent.client.requests]
    assert limits == [32_000, 16_000, 8_000, *[4_000] * 3]
    assert shown(agent, "layer")[-1] == "[max_tokens] replies are now limited to 4,000"


def test_if_1000_tokens_are_rejected_too_the_turn_ends(wired):
    agent = wired(*[api_error(400, "max_tokens: Extra inputs")] * 6)
    assert "max_tokens" in fails(agent, "Hi")
    assert [r["max_tokens"] for r in agent.client.requests][-2:] == [2_000, 1_000]


def test_what_a_subagent_learns_of_the_limit_holds_for_its_parent_too(wired):
    error = api_error(400, "max_tokens is too large: 32000")
    agent = wired(reply(calls=[TASK]), error, reply("Seen."), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE
    limits = [request["max_tokens"] for request in agent.client.requests]
    assert limits == [32_000, 32_000, 16_000, 16_000]


BACK = "The `content[].thinking` in the thinking mode must be passed back to the API."


def test_a_provider_that_wants_thinking_back_refuses_one_request_at_most(
    run, api, notes
):
    api.signs, api.own_check = False, stub.wants_thinking(BACK)
    api.enqueue(reply(calls=[READ]), reply(calls=[READ]), reply(WHOLE))
    assert run("-p", "Hi")[:2] == (0, WHOLE + "\n")
    assert len(api.rejected) == 1


class Local(StubClient):
    """A local server: no models endpoint, no cache, and what is too long is cut.

    As Ollama does, it drops half of it, says nothing, and counts what is left.
    """

    def __init__(self, *replies, size, **options):
        super().__init__(*replies, window=10**9, **options)
        self.info, self.size, self.cut = (404, {}, b"404 page not found"), size, []

    def usage(self, body, content):
        total = stub.count(body["system"], body["tools"], body["messages"])
        if total > self.size:
            self.cut.append(total)
            total = self.size // 2
        return {"input_tokens": total, "output_tokens": 9}


# the window that the program believes in, and whether the server cuts its requests
@pytest.mark.parametrize("window, is_cut", [("8192", False), ("", True)])
def test_a_server_that_cuts_a_long_prompt_needs_its_own_window_as_a_setting(
    run, notes, window, is_cut
):
    def answer(request):
        return next(work, reply(WHOLE)) if not asks_for_summary(request) else SUMMARY

    work = iter([reply(calls=[READ, READ])] * 20)
    with serve(local := Local(size=8_192, always=answer)) as url:
        settings = {"CONTEXT_WINDOW": window, "ANTHROPIC_BASE_URL": url}
        assert run("-p", "Read the notes.", **settings)[:2] == (0, WHOLE + "\n")
    assert bool(local.cut) is is_cut and local.refused == []


CACHES = [{"cache_from": 1_024}, {"cache_from": 4_096}, {"reports": 0}, {"reports": 3}]


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_each_request_begins_with_the_one_before_it_and_no_thinking_is_lost(
    wired, cache
):
    agent = wired()
    vars(agent.client.stub).update(cache)
    agent.thinking, queued = True, iter(["and the tests", "", "in two lines"] * 9)
    agent.take_queued = lambda: next(queued)
    for text in "word " * 900, "Go on.", "And that?", "Thanks.":
        program.run_own_command(agent, "!echo one; echo two")
        work = [reply("So.", thinking="hm", calls=[READ])] * 2
        agent.client.stub.enqueue(*work, reply("Done.", thinking="so"))
        take_turn(agent, "First of all:", text)
    bodies = agent.client.stub.bodies
    assert all(begins_with(new, old) for old, new in itertools.pairwise(bodies))
    assert str(bodies[-1]).count("'signature'") == 11 and agent.thinking


@pytest.mark.slow
@pytest.mark.parametrize("report", [1, 2_050])
def test_a_count_that_stays_small_does_not_keep_layer_2_from_acting(wired, report):
    agent = wired(**SMALL)
    agent.client.stub.always = any_answer
    agent.client.stub.usage = lambda body, content: {
        "input_tokens": report,
        "output_tokens": 9,
    }
    for _ in range(9):
        take_turn(agent, "word " * 1_500)
    assert "auto_compact" in layers(agent)
    assert agent.client.stub.refused == []


# Errors that mean "too long", and the window that each names: 0 for none or unclear.
MAXIMA = {
    "prompt is too long: 37924 tokens > 32000 maximum": 32000,
    "prompt is too long: 210,000 tokens > 200,000 maximum": 200000,
    "input length and `max_tokens` exceed context limit: 198240 + 32000 > 200000, "
    "decrease input length or `max_tokens` and try again": 200000,
    "input length and `max_tokens` exceed context limit: 190,000 + 21,333 > 200,000": (
        200000
    ),
    "Input is too long for requested model.": 0,
    "The model returned the following errors: Input is too long": 0,
    "This model's maximum context length is 8192 tokens. However, your messages "
    "resulted in 10531 tokens. Please reduce the length of the messages.": 8192,
    "Your input exceeds the context window of this model. Adjust your input.": 0,
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted "
    "in 300120 tokens. Please reduce the length of the messages.": 272000,
    "litellm.ContextWindowExceededError: BadRequestError: OpenAIException": 0,
    "This model's maximum context length is 32768 tokens. However, you requested 56384 "
    "tokens (40000 in the messages, 32000 in the completion).": 32768,
    "You passed 33000 input tokens and requested 32000 output tokens. However, the "
    "model's context length is only 32768 tokens, resulting in a maximum input length "
    "of 32000 tokens.": 32768,
    "The decoder prompt (length 40961) is longer than the maximum model length of "
    "32768. Make sure that `max_model_len` is no smaller than the number of text "
    "tokens.": 32768,
    "The input (40123 tokens) is longer than the model's context length (32768 "
    "tokens).": 32768,
    "Requested token count exceeds the model's maximum context length of 32768 tokens. "
    "You requested a total of 50000 tokens: 33616 from the input.": 32768,
    "request (37924 tokens) exceeds the available context size (32768 tokens), try "
    "increasing it": 32768,
    "the request exceeds the available context size, try increasing it": 0,
    "The input token count (1196265) exceeds the maximum number of tokens allowed "
    "(1048575).": 1048575,
    "This model's maximum prompt length is 131072 but the request contains 537812 "
    "tokens.": 131072,
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 "
    "maximum context length": 0,
    "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens "
    "and 32000 `max_new_tokens`": 8193,
    "Please reduce the length of the messages. code: context_length_exceeded": 0,
    "Please reduce the length of the messages or completion. Current length is 9512 "
    "while limit is 8192. context_length_exceeded": 8192,
    "Range of input length should be [1, 30720]": 0,
    "Prompt exceeds max length": 0,
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - "
    "received 5200. Try using a shorter prompt.": 0,
    "This endpoint's maximum context length is 131072 tokens. However, you requested "
    "about 137000 tokens (120616 of text input, 32000 in the output).": 131072,
    "prompt token count of 130000 exceeds the limit of 128000": 128000,
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum "
    "context length is 131072 tokens and your request has 113460 input tokens.": 131072,
    "'max_tokens' is too large: 32000. This model's context length is 65536.": 65536,
    "max_tokens (10922) + prompt tokens (22107) exceeds the context length": 0,
    "prompt 22107 + max_tokens 10922 exceeds the model's context length 32768": 32768,
    "Invalid request: Your request exceeded model token limit: 131072": 131072,
    "invalid params, context window exceeds limit (2013)": 2013,
    "Trying to keep the first 9100 tokens when context the overflows. However, the "
    "model is loaded with context length of only 8192 tokens": 8192,
    "the input length exceeds the context length": 0,
    "The prompt is too long: 140000, model maximum context length: 131071": 131071,
    "This model's maximum context length is 24000 tokens. However, you requested 32000 "
    "output tokens and your prompt contains at least 7617 input tokens, for a total of "
    "at least 24001 tokens.": 24000,
    "This model's maximum context length is 32000 tokens, and your request has 4900 "
    "input tokens.": 32000,
    "prompt_too_long": 0,
    "prompt too long": 0,
    "input too long for this model": 0,
    "prompt too long; exceeded max context length by 4021 tokens": 0,
    '{"code":20015,"message":"Input is too long"}': 0,
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be "
    "[1, 129024]": 0,
    "Input length 140000 exceeds the maximum allowed input length of 131040 tokens": (
        131040
    ),
    "length of prompt_tokens (57535) must be less than max_seq_len (32768).": 32768,
}


TOO_LONG_ERRORS = [(400, text) for text in MAXIMA]
TOO_LONG_ERRORS += [(status, next(iter(MAXIMA))) for status in (422, 500)]


@pytest.mark.parametrize("status, text", TOO_LONG_ERRORS)
def test_too_long_is_recognised_in_every_providers_wording(wired, pauses, status, text):
    more = f"{'In detail: ' * 40}{text}"  # the user sees only 300 characters of it
    agent = wired(api_error(status, more))
    with pytest.raises(program.PromptTooLong) as error:
        program.ask(agent, [{"role": "user", "content": "Hi"}])
    assert error.value.maximum == MAXIMA[text] and pauses == []


def test_the_maximum_may_be_in_a_field_of_its_own_but_is_never_taken_from_an_id(wired):
    text = "the request exceeds the available context size"
    error = {"code": 400, "message": text, "n_prompt_tokens": 14429, "n_ctx": 8192}
    ids = {"request_id": "c4b0b9b4-4266-4999-8712-426614174000", "at": "2026-11-22"}
    agent = wired((400, {}, {"error": error, **ids}))
    with pytest.raises(program.PromptTooLong) as raised:
        program.ask(agent, [{"role": "user", "content": "Hi"}])
    assert raised.value.maximum == 8192


def test_too_long_is_recognised_in_a_stream_too(wired, pauses):
    error = {"type": "invalid_request_error", "message": "prompt is too long"}
    agent = wired([event("error", error=error)])
    with pytest.raises(program.PromptTooLong):
        program.ask(agent, [{"role": "user", "content": "Hi"}])
    assert pauses == [] and shown(agent, "layer") == ["[too long] prompt is too long."]


# What the program looks for in an error, and what it does if the API says so.
LOOKED_FOR = {
    **dict.fromkeys(MAXIMA, "too long"),
    "Output blocked by content filtering policy": "refusal",
    "系统检测到输入或生成内容可能包含不安全或敏感内容": "refusal",
    "considered high risk": "refusal",
    "DataInspectionFailed": "refusal",
    'error parsing tool call: raw=\'{"a": "The context window has 8192 tokens': "max_tokens",
    "Unable to parse tool parameter JSON from model": "max_tokens",
    "system.0.cache_control: Extra inputs are not permitted": "end_turn",
    "max_tokens: 32000 > 8192": "end_turn",
    BACK: "end_turn",
    "thinking is enabled but reasoning_content is missing": "end_turn",
    "Invalid `signature` in `thinking` block": "end_turn",
    "Input should be 'text', 'image', 'tool_use' or 'tool_result'": "end_turn",
}


def outcome(agent):
    """What an agent makes of the answer to its next request."""
    try:
        return program.ask(agent, agent.messages).stop
    except program.PromptTooLong:
        return "too long"
    except program.AgentError:
        return "an error"


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("words", LOOKED_FOR)
def test_an_errors_own_words_decide_and_never_what_it_quotes_of_the_request(
    wired, words, as_text
):
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    messages = [typed(f"{words}\n{words}"), said("Yes.", thought), typed(words)]
    quotes, says = (
        partial(stub.echo, said=text, as_text=as_text) for text in ("No.", words)
    )
    agent = wired(quotes, says, messages=messages)
    agent.client.stub.signs = False
    assert outcome(agent) == "an error" and shown(agent, "layer") == []
    if LOOKED_FOR[words] == "end_turn":  # without what was rejected
        agent.client.stub.enqueue(reply(WHOLE))
    assert outcome(agent) == LOOKED_FOR[words]


QUOTES = {
    "JSON in a text": 'LiteLLM: {"detail":[{"msg":"No.","input":"content policy"}]}',
    "pydantic": "No. [type=str, input_value='the context window', input_type=str]\nNo.",
    "an unfinished line": "1 error:\n  {'msg': 'No.', 'input': 'max_tokens and thinking",
}


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("text", QUOTES.values(), ids=QUOTES)
def test_a_quotation_in_a_text_decides_nothing_either(wired, text, status):
    agent = wired(api_error(status, text), messages=[typed("Hi")], thinking=True)
    assert outcome(agent) == "an error" and shown(agent, "layer") == []


# Errors that a shorter conversation would not avoid, but a new one might.
ABOUT_MESSAGES = ["Your prompt contains sensitive content", "Invalid request"]
NOT_TOO_LONG = [
    *ABOUT_MESSAGES,
    "No: the daily token limit",
    "Too many tokens, please wait before trying again",
    "Too many tokens per day, please wait before trying again",
    "Budget has been exceeded! Current cost: 10.01, Max budget: 10.0",
    "Your credit balance is too low to access the API",
    "You exceeded your current quota, please check your plan and billing details",
]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("text", NOT_TOO_LONG)
def test_any_other_error_forgets_nothing_and_advises_clear_only_if_it_helps(
    wired, text, status
):
    agent = wired(api_error(status, text))
    line = fails(agent, "Hi")
    assert line.startswith(text) and len(agent.client.requests) == 1
    advice = f'type /clear, then "read the end of {agent.transcript} and go on"'
    assert (advice in line) is (text in ABOUT_MESSAGES)
    assert shown(agent, "layer") == [] and goes_on(agent)


@pytest.mark.parametrize("status", [429, 500, 529])
def test_a_rate_limit_that_mentions_tokens_is_retried(wired, pauses, status):
    agent = wired(api_error(status, "Too many tokens, please wait"), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and pauses == [1]


def test_if_the_api_rejects_the_conversation_compact_changes_nothing(wired):
    agent = wired(reply(calls=[READ]), reply(WHOLE), api_error(400, "No such block."))
    take_turn(agent, "Look")
    before = agent.messages
    program.run_command(agent, "/compact")
    assert re.search(r"No such block.*/clear", shown(agent, "error")[-1])
    assert agent.messages == before and agent.failures == 1 and goes_on(agent)


def test_a_limit_of_tokens_per_minute_is_not_a_window(wired, pauses):
    text = "This request would exceed the limit of 40,000 input tokens per minute"
    agent = wired(api_error(429, text), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and len(pauses) == 1


PICTURE = {"type": "picture", "url": "x"}
UNSIGNED = {"type": "thinking", "thinking": "and so", "signature": ""}


def block_events(block, index=0):
    """The events of a block that arrives in one piece."""
    yield event("content_block_start", index=index, content_block=block)
    yield event("content_block_stop", index=index)


STRAY_BLOCKS = [
    PICTURE,
    {"type": "fallback"},
    {"type": "tool_result", "tool_use_id": "q", "content": "a"},
    {"type": "tool_use", "id": "q", "name": None, "input": {}},
]


@pytest.mark.parametrize("block", STRAY_BLOCKS)
def test_a_block_that_does_not_belong_in_a_reply_is_left_out_without_a_retry(
    wired, pauses, block
):
    text = block_events({"type": "text", "text": WHOLE})
    blocks = [*text, *block_events(block, index=1)]
    agent = wired(stream_of(*blocks, stop="end_turn"))
    assert take_turn(agent, "Hi") == WHOLE and pauses == []
    assert agent.messages[1:] == [said(WHOLE)] and goes_on(agent)


@pytest.mark.parametrize("signature", ["", None, "k1"])
def test_thinking_goes_back_as_it_came_and_without_a_signature_has_an_empty_one(
    wired, signature
):
    thought = {"type": "thinking", "thinking": "hm", "signature": signature}
    thought = {key: thought[key] for key in thought if thought[key] is not None}
    text = block_events({"type": "text", "text": WHOLE}, index=1)
    agent = wired(stream_of(*block_events(thought), *text, stop="end_turn"))
    agent.client.stub.signs = False
    assert take_turn(agent, "Hi") == WHOLE and goes_on(agent)
    sent = agent.client.requests[-1]["messages"][1]["content"][0]
    assert sent == {"signature": "", **thought}


def test_an_api_that_signs_thinking_rejects_what_is_not_signed_only_once(wired):
    text = block_events({"type": "text", "text": WHOLE}, index=1)
    stream = stream_of(*block_events(UNSIGNED), *text, stop="end_turn")
    agent = wired(*[stream] * 3)
    for _ in range(3):
        assert take_turn(agent, "Hi") == WHOLE
    [error] = agent.client.stub.refused
    agent.client.stub.refused.clear()
    assert "signature" in error and "'thinking'" not in str(agent.messages)


def to_bash(timeout):
    """A stream with a call of bash that has this timeout."""
    command = f'{{"command": "true", "timeout": {timeout}}}'
    return broken_call(command).replace(b"write_file", b"bash")


# For each case: the call as it came, and a part of the error that answers it.
ODD_CALLS = {
    "infinity": (to_bash("1e999"), "schema"),
    "not a number": (to_bash("NaN"), "schema"),
    "a list as input": (broken_call('["notes.txt"]'), "schema"),
    "a name with a dot": (broken_call("{}").replace(b"write_f", b"fs.f"), "no tool fs"),
    "an id as Kimi's": (broken_call("{}").replace(b"toolu_x", b"bash:0"), "schema"),
    "no input": (broken_call("null"), "schema"),
    "an empty id": (broken_call("{}").replace(b"toolu_x", b""), "schema"),
}


@pytest.mark.parametrize("case", ODD_CALLS)
def test_a_malformed_call_is_sanitized_and_answered_without_a_retry(
    wired, pauses, case
):
    given, named = ODD_CALLS[case]
    agent = wired(given, given, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and pauses == []
    assert all(
        r["is_error"] and named in r["content"] for r in results(*agent.messages)
    )
    assert len(results(*agent.messages)) == 2 and goes_on(agent)


# For each case: the ids of two calls, as they came and as they go back.
LONG_ID = "toolu_" + "x" * 1_994
IDS = {
    "long, as Gemini's": ([LONG_ID, LONG_ID[:-1] + "y"], [LONG_ID, LONG_ID[:-1] + "y"]),
    "odd, as Kimi's": (["functions.bash:0", "bash:1"], ["functions_bash_0", "bash_1"]),
    "none": (["", ""], ["call", "call_1"]),
    "twice the same": (["a", "a"], ["a", "a_1"]),
}


@pytest.mark.parametrize("case", IDS)
def test_an_id_goes_back_as_it_came_if_the_api_takes_it(wired, case):
    given, sent = IDS[case]
    calls = [broken_call("{}").replace(b"toolu_x", i.encode()) for i in given]
    agent = wired(*calls, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and goes_on(agent)
    assert [r["tool_use_id"] for r in results(*agent.messages)] == sent


# The whole input of a call as text, and what the call gets.
INPUTS_AS_TEXT = {
    '{"pattern": "*"}': {"pattern": "*"},
    '"{\\"pattern\\": \\"*\\"}"': {"pattern": "*"},
    "notes.txt": {"input": "notes.txt"},
    '["notes.txt"]': {"input": ["notes.txt"]},
    "": {},
}


@pytest.mark.parametrize("given", INPUTS_AS_TEXT)
def test_an_input_that_is_an_object_in_json_in_json_is_decoded(wired, given):
    call = broken_call(json.dumps(given)).replace(b"write_file", b"glob")
    agent = wired(call, reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and goes_on(agent)
    [called] = program.blocks(agent.messages[1], "tool_use")
    assert called["input"] == INPUTS_AS_TEXT[given]
    [result] = results(*agent.messages)
    assert result.get("is_error", False) is ("pattern" not in given)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # of the SDK
@pytest.mark.parametrize("count", [12.5, None])
def test_a_token_count_that_is_not_a_whole_number_is_not_believed(wired, count):
    usage = {"input_tokens": 5, "output_tokens": 1}
    odd = {"input_tokens": count, "output_tokens": count}
    block = b"".join(block_events({"type": "text", "text": WHOLE}))
    stream = stream_of(block, stop="end_turn")
    stream = stream.replace(json.dumps(usage).encode(), json.dumps(odd).encode())
    agent = wired(stream)
    assert take_turn(agent, "Hi") == WHOLE
    assert type(agent.counted_tokens) is int and agent.counted_tokens > 500


# ---- replies that end in an unusual way ----


START_OF_THINKING = event("content_block_start", index=0, content_block=UNSIGNED)
END_OF_THINKING = event("content_block_stop", index=0)
INCOMPLETE = {
    "before its input": broken_call(stop="max_tokens"),
    "in a value": broken_call('{"path": "a", ', '"content": "ma', stop="max_tokens"),
    "thinking": stream_of(START_OF_THINKING, END_OF_THINKING, stop="max_tokens"),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_a_call_or_a_thought_that_was_cut_off_is_not_used(wired, workspace, case):
    agent = wired(INCOMPLETE[case], reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE and len(agent.client.requests) == 2
    assert not (workspace / "a").exists() and goes_on(agent)
    assert thoughts(agent.client.requests[-1]) == 0


def test_all_kinds_of_blocks_are_sent_back_as_they_came(wired):
    content = [
        {"type": "redacted_thinking"},
        {"type": "thinking", "thinking": ""},
        {"type": "text", "text": "I look. 日本語 \u2028 \0"},
        {"type": "tool_use", "id": "t1", "name": "glob", "input": {"pattern": "*"}},
    ]
    agent = wired(reply(content=content), reply(WHOLE))
    assert take_turn(agent, "Hi") == WHOLE
    sent = agent.client.requests[-1]["messages"][1]["content"]
    assert [b["type"] for b in sent] == [b["type"] for b in content]
    assert sent[2:] == content[2:] and goes_on(agent)


# ---- the models endpoint ----


@pytest.fixture
def hanging(api):
    """A models endpoint that hangs until the test is over, but at most for 30 s."""
    is_over = threading.Event()
    api.model_info = lambda model: is_over.wait(30) or {"max_input_tokens": 24_000}
    yield
    is_over.set()


NONSENSE = {
    "404": (404, {}, {"type": "error", "error": {"type": "not_found_error"}}),
    "500": (500, {}, b""),
    "another shape": (200, {}, {"object": "list", "data": [{"id": "a"}]}),
    "a page": (200, {"content-type": "text/html"}, b"<html>hello</html>"),
    "not JSON": (200, {"content-type": "application/json"}, b"{nonsense"),
    "a number": (200, {"content-type": "application/json"}, b"7"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_from_the_models_endpoint_means_defaults(run, api, case):
    api.enqueue(reply(WHOLE))
    api.info = NONSENSE[case]
    assert run("-p", "Hi")[:2] == (0, WHOLE + "\n")
    [request] = api.requests
    assert request["max_tokens"] == 32_000 and "thinking" not in request


def test_it_does_not_wait_for_a_models_endpoint_that_hangs(
    run, api, hanging, monkeypatch
):
    monkeypatch.setitem(program.PROBE, "timeout", 0.2)
    api.enqueue(reply(WHOLE))
    assert run("-p", "Hi")[:2] == (0, WHOLE + "\n")
    assert [request["max_tokens"] for request in api.requests] == [32_000]


@pytest.mark.parametrize(
    "window, max_output, expected",
    [(1_000_000, 128_000, 32_000), (24_000, 64_000, 8_000)],
)
@pytest.mark.parametrize("adaptive", [True, False])
def test_limits_and_thinking_follow_the_models_endpoint(
    run, api, window, max_output, expected, adaptive
):
    api.window, api.max_output, api.adaptive = window, max_output, adaptive
    api.enqueue(reply(WHOLE))
    assert run("-p", "Hi")[:2] == (0, WHOLE + "\n")
    [request] = api.requests
    shown = {"type": "adaptive", "display": "summarized"}
    assert request["max_tokens"] == expected
    assert request.get("thinking") == (shown if adaptive else None)


def test_a_client_that_cannot_be_created_is_reported_when_it_is_needed(
    run, monkeypatch
):
    monkeypatch.setattr("anthropic.Anthropic", lambda **_: 1 / 0)
    status, out, _ = run(stdin="/help\nHi\n/clear\nHo\n")
    assert status == 0 and out.count("division by zero") == 2
    assert out.index("/compact") < out.index("division by zero")
    assert run("-p", "Hi")[:2] == (1, "")


def test_a_server_may_read_for_ten_minutes_but_must_be_reached_in_seconds(
    api, monkeypatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
    program.connect(agent := program.Agent())
    assert (agent.client.timeout.connect, agent.client.timeout.read) == (5, 600)
