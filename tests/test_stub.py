"""What the fake client guarantees, so that the other tests may rely on it."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import anthropic
import httpx2
import pytest
import stub
from stub import StubClient, api_error, reply
from wire import cut, event, mock_client, serve, sse

BASH = {"name": "bash", "input_schema": {"type": "object"}}
MARK = {"type": "ephemeral"}


def user(content):
    return {"role": "user", "content": content}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def call(id="toolu_1", **more):
    return {"type": "tool_use", "id": id, "name": "bash", "input": {}, **more}


def result(id="toolu_1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


HELLO = [user("hello")]
USUAL = {"model": "m", "max_tokens": 100, "system": "Be brief.", "tools": [BASH]}


def request(messages=HELLO, **settings):
    return copy.deepcopy(USUAL | {"messages": messages} | settings)


def ask(client, messages=HELLO, **settings):
    """The final message that `client` gives to `messages`."""
    with client.messages.stream(**request(messages, **settings)) as stream:
        return stream.get_final_message()


def plain(message):
    """Its content as plain dicts, as it stands in a history."""
    return [block.to_dict() for block in message.content]


def refusal(messages=HELLO, **settings):
    """Why a request is refused, or "" if it is not."""
    try:
        stub.check(request(messages, **settings), max_output=64_000)
    except stub.Refused as error:
        return str(error)
    return ""


# --- The conscience: requests ---

THOUGHT = {"type": "thinking", "thinking": "", "signature": "", "cache_control": MARK}
ASKED = user("hello"), assistant(call())
ANSWERED = [*ASKED, user([result()])]
BOTH = [user("a"), assistant(call()), assistant(call("b"))]
EXTRA = "Extra inputs are not permitted"
EMPTY = "messages.0: all messages must have non-empty content"
PREFILL = (
    "This model does not support assistant message prefill. The conversation must end "
    "with a user message."
)
OPEN = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately"
ORPHAN = "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks"

BAD_MESSAGES = {
    "none": ([], "messages: at least one message is required"),
    "assistant first": ([assistant(text("a")), user("b")], 'use the "user" role'),
    "assistant last": ([user("a"), assistant(text("b"))], PREFILL),
    "system role": ([{"role": "system", "content": "a"}], 'Unexpected role "system"'),
    "key of our own": ([user("a") | {"tokens": 5}], f"messages.0.tokens: {EXTRA}"),
    "empty string": ([user("")], EMPTY),
    "empty list": ([user([])], EMPTY),
    "empty text": ([user([text("")])], "messages: text content blocks must be non-em"),
    "only spaces": ([user(" \n")], "text content blocks must contain non-whitespace"),
    "spaces inside": ([*ASKED, user([result(content=[text(" ")])])], "non-whitespace"),
    "empty result": ([*ASKED, user([result(content="")])], "non-empty string or list"),
    "no result": ([*ASKED, user([result(content=None)])], "non-empty string or list"),
    "unknown block": ([user([{"type": "video"}])], "messages.0.content.0: Input tag"),
    "an object as text": ([user(["Text()"])], "messages.0.content.0: Input should be"),
    "key in a text": ([user([text("a", x=1)])], f"0.content.0.text.x: {EXTRA}"),
    "key in a call": ([user("a"), assistant(call(x=1))], f"tool_use.x: {EXTRA}"),
    "key in a result": ([*ASKED, user([result(x=1)])], f"tool_result.x: {EXTRA}"),
    "marked thinking": ([user("a"), assistant(THOUGHT)], f"cache_control: {EXTRA}"),
    "key missing": ([user([{"type": "text"}])], "messages.0.content.0.text.text: Fiel"),
    "input is text": ([user("a"), assistant(call(input="{}"))], "use.input: Field"),
    "call by the user": ([user([call()])], "not permitted in `user`"),
    "result by the model": ([user("a"), assistant(result())], "permitted in `assistan"),
    "bad tool name": ([user("a"), assistant(call(name="a b"))], "_use.name: String"),
    "call unanswered": ([*ASKED, user("never mind")], f"{OPEN} after: toolu_1. Each"),
    "call half answered": (
        [*BOTH, user([result("b")])],
        f"{OPEN} after: toolu_1. Each",
    ),
    "late": ([*ASKED, user("a"), assistant(text("b")), user([result()])], OPEN),
    "text before result": ([*ASKED, user([text("a"), result()])], OPEN),
    "message before result": ([*ASKED, user("a"), user([result()])], OPEN),
    "orphan": ([*ASKED, user([result(), result("x")])], f"{ORPHAN}: x. Each"),
    "two results": ([*ASKED, user([result(), result()])], "must have a single result"),
    "one id twice": (ANSWERED * 2, "messages: `tool_use` ids must be unique"),
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_refuses_messages(case):
    messages, wording = BAD_MESSAGES[case]
    assert wording in refusal(messages)


MARKED = text("a", cache_control=MARK)
BAD_SETTINGS = [
    ({"temperature": 1}, f"temperature: {EXTRA}"),
    ({"extra_body": {"top_p": 1}}, f"top_p: {EXTRA}"),
    ({"max_tokens": 0}, "max_tokens: Input should be"),
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"max_tokens": 65_000}, "max_tokens: 65000 > 64000, which is the maximum"),
    ({"thinking": {"type": "enabled"}}, '"thinking.type.enabled" is not supported'),
    ({"thinking": {"type": "disabled"}}, '"thinking.type.disabled" is not supported'),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1}}, f"budget_tokens: {EXTRA}"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: type `any`"),
    ({"tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice: type `tool`"),
    ({"messages": [user([MARKED] * 5)]}, "A maximum of 4 blocks with cache_control"),
    ({"messages": [user([MARKED] * 4)], "cache_control": MARK}, "Found 5."),
    ({"messages": ANSWERED, "tools": []}, "must define tools"),
    ({"tools": [BASH | {"handler": "f"}]}, f"tools.0.custom.handler: {EXTRA}"),
    ({"tools": [BASH | {"name": "a.b"}]}, "tools.0.custom.name: String should match"),
    ({"tools": [{"name": "bash"}]}, "tools.0.custom.input_schema: Field required"),
    ({"tools": [BASH, BASH]}, "tools: Tool names must be unique."),
    ({"system": [text("")]}, "text content blocks must be non-empty"),
]


@pytest.mark.parametrize("settings, wording", BAD_SETTINGS)
def test_refuses_settings(settings, wording):
    assert wording in refusal(**settings)


GOOD_REQUESTS = [
    {},
    {"system": [MARKED], "cache_control": MARK, "messages": [user([MARKED] * 2)]},
    {"thinking": {"type": "adaptive", "display": "summarized"}},
    {"tool_choice": {"type": "none"}, "timeout": httpx2.Timeout(5)},
    {"system": "", "tools": []},
    {"messages": ANSWERED},
    {"messages": [*ANSWERED, user("and now")]},
    {"messages": [user("a"), user([text("b")]), user("c")]},
    {"messages": [*ASKED, user([result(is_error=True, content=[text("no")])])]},
    {"messages": [*BOTH, user([result("b")]), user([result(), text("c")])]},
    {"messages": [user('in a text it is no marker: "cache_control":{}' * 5)]},
]


@pytest.mark.parametrize("settings", GOOD_REQUESTS)
def test_accepts(settings):
    assert refusal(**settings) == ""


def test_refuses_thinking_where_the_model_has_none():
    with pytest.raises(stub.Refused, match="adaptive thinking is not supported"):
        ask(StubClient(adaptive=False), thinking={"type": "adaptive"})


@pytest.mark.parametrize("client", [StubClient(), mock_client()])
@pytest.mark.parametrize(
    "bad, error", [("\ud800", UnicodeEncodeError), (object(), TypeError)]
)
def test_what_the_sdk_cannot_encode_raises_as_it_does_there(client, bad, error):
    with pytest.raises(error):
        ask(client, [user([text(bad)])])
    assert client.refused if isinstance(client, StubClient) else client.requests == []


# --- The conscience: thinking ---


def talk(*replies, client=None):
    """The history after a conversation in which the model gave `replies`."""
    client, messages = client or StubClient(*replies), [user("hello")]
    for _ in replies:
        content = plain(ask(client, messages))
        called = [result(b["id"]) for b in content if b["type"] == "tool_use"]
        messages += [assistant(*content), user(called or "go on")]
    return messages


def thinker(words):
    return reply(thinking=words, calls=[("bash", {"command": words})])


def without(*turns):
    """An edit: the thinking leaves the assistant messages of these numbers (1 to 3)."""
    return lambda messages: [messages[2 * n - 1]["content"].pop(0) for n in turns]


def change(index, key, value):
    """An edit: the first block of a message gets another value."""
    return lambda messages: messages[index]["content"][0].update({key: value})


cleared = change(2, "content", "[cleared]")
# the index of the message whose thinking is refused, or None
THINKING = {
    "as it came": (lambda m: None, None),
    "all removed": (without(1, 2, 3), None),
    "a leading run removed": (without(1, 2), None),
    "a trailing run removed": (without(2, 3), None),
    "one removed from the middle": (without(2), 5),
    "a message added in front": (lambda m: m.insert(0, user("before")), 1),
    "a message appended": (lambda m: m.append(user("more")), None),
    "the first message changed": (lambda m: m[0].update(content="bye"), 1),
    "a string made a block": (lambda m: m[0].update(content=[text("hello")]), None),
    "a result cleared": (cleared, 3),
    "and the later thinking removed": (lambda m: [cleared(m), without(2, 3)(m)], None),
    "the last result cleared": (change(6, "content", "[cleared]"), None),
    "a result marked for the cache": (change(4, "cache_control", MARK), None),
    "thinking rewritten": (change(3, "thinking", "other"), 3),
    "a signature rewritten": (change(3, "signature", "made up"), 3),
}


@pytest.mark.parametrize("case", THINKING)
def test_thinking_is_bound_to_what_came_before(case):
    edit, refused_at = THINKING[case]
    messages = talk(thinker("one"), thinker(""), thinker("three"))
    edit(messages)
    block = f"messages.{refused_at}.content.0: Invalid `signature` in `thinking` block."
    assert refusal(messages)[: len(block)] == (block if refused_at else "")


MARKED_SYSTEM = {"system": [text("Be brief.", cache_control=MARK)], "max_tokens": 5}
NEW_TOOL = {"tools": [BASH | {"description": "new"}]}
BOUND_TO = [({"system": "Be long."}, True), (NEW_TOOL, True), (MARKED_SYSTEM, False)]


@pytest.mark.parametrize("settings, bound", BOUND_TO)
def test_thinking_is_bound_to_the_system_prompt_and_the_tools(settings, bound):
    problem = refusal(talk(thinker("one")), **settings)
    assert ("Invalid `signature`" in problem) == bound


HIDDEN = {"type": "redacted_thinking"}
TWO_THOUGHTS = [{"type": "thinking", "thinking": ""}, text("a"), HIDDEN, call()]


def test_redacted_and_interleaved_thinking_is_signed_too():
    messages = talk(reply(content=TWO_THOUGHTS))
    assert refusal(messages) == ""
    messages[1]["content"][2]["data"] = "made up"
    assert "messages.1.content.2: Invalid `signature` in `redacted_" in refusal(
        messages
    )


def test_new_thinking_continues_the_chain_of_what_was_left():
    messages = talk(thinker("one"), thinker("two"))
    without(1, 2)(messages)
    messages.append(assistant(*plain(ask(StubClient(thinker("new")), messages))))
    messages.append(user([result(messages[-1]["content"][-1]["id"])]))
    assert refusal(messages) == ""


def test_a_removed_block_stays_out():
    messages = talk(thinker("one"))
    kept = copy.deepcopy(messages)
    without(1)(messages)
    answer = assistant(*plain(ask(StubClient(reply("a", thinking="two")), messages)))
    assert "Invalid `signature`" in refusal([*kept, answer, user("go on")])


KINDS = ["thinking", "redacted_thinking"]


@pytest.mark.parametrize("later", [[], [reply("and then")]])
@pytest.mark.parametrize("kept", [[], KINDS[:1], KINDS[1:], KINDS])
def test_the_latest_reply_keeps_all_of_its_thinking_or_none(kept, later):
    messages = talk(reply(content=TWO_THOUGHTS), *later)
    content = messages[1]["content"]
    messages[1]["content"] = [b for b in content if b["type"] not in {*KINDS} - {*kept}]
    wording = "messages.1: `thinking` or `redacted_thinking` blocks in the latest"
    assert refusal(messages).startswith(wording) == (len(kept) == 1 and not later)


def test_an_empty_text_that_is_not_sent_back_is_no_edit():
    content = [text(""), {"type": "thinking", "thinking": "a"}, text("b")]
    messages = talk(reply(content=content))
    del messages[1]["content"][0]
    assert refusal(messages) == ""


# --- The queue and the memory ---


def test_replies_come_in_order():
    client = StubClient(reply("one"))
    client.enqueue(reply("two"))
    assert [ask(client).content[0].text for _ in "12"] == ["one", "two"]


def test_requests_are_kept_as_they_were_when_they_were_made():
    client, asked = StubClient(reply("one")), request()
    with client.messages.stream(**asked):
        asked["messages"][0]["content"] = "changed"
    assert client.requests == [request()]


def test_an_empty_queue_cannot_be_overlooked():
    assert not issubclass(stub.EmptyQueue, Exception)
    with pytest.raises(stub.EmptyQueue, match="request 1: .*hello"):
        ask(StubClient())


def test_a_function_in_the_queue_sees_the_request():
    client = StubClient(lambda request: reply(request["messages"][0]["content"]))
    assert ask(client, [user("echo")]).content[0].text == "echo"


def test_an_exception_in_the_queue_is_raised_when_the_request_is_made():
    client = StubClient(KeyboardInterrupt(), lambda request: OSError("gone"))
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error):
            ask(client)


def test_a_refused_request_is_noted_and_takes_no_reply():
    client = StubClient(reply("still here"))
    with pytest.raises(stub.Refused) as error:
        ask(client, [user("")])
    assert client.refused == [error.value.api_message] and not client.too_long
    assert ask(client).content[0].text == "still here"


def test_a_request_over_the_window_is_too_long_and_not_invalid():
    client = StubClient(window=1000)
    with pytest.raises(stub.TooLong) as error:
        ask(client, [user("x" * 4000)])
    tokens = stub.count("Be brief.", [BASH], [user("x" * 4000)])
    message = f"prompt is too long: {tokens} tokens > 1000 maximum"
    assert error.value.api_message == message
    assert client.too_long == [message] and not client.refused


@pytest.mark.parametrize("messages", [[user("")], [user("x" * 4000)]])
def test_a_refusal_looks_to_a_program_like_the_exception_of_the_sdk(messages):
    made, client = StubClient(window=1000), mock_client(window=1000)
    with pytest.raises(stub.Refused) as ours:
        ask(made, messages)
    with pytest.raises(anthropic.BadRequestError) as theirs:
        ask(client, messages)
    for name in "status_code", "type", "api_message":
        assert getattr(ours.value, name) == getattr(theirs.value, name)
    assert (made.refused, made.too_long) == (client.stub.refused, client.stub.too_long)
    assert "retry-after" not in ours.value.response.headers


STATUSES = [
    (400, anthropic.BadRequestError, "invalid_request_error"),
    (401, anthropic.AuthenticationError, "authentication_error"),
    (403, anthropic.PermissionDeniedError, "permission_error"),
    (404, anthropic.NotFoundError, "not_found_error"),
    (413, anthropic.ContentTooLargeError, "request_too_large"),
    (429, anthropic.RateLimitError, "rate_limit_error"),
    (500, anthropic.InternalServerError, "api_error"),
    (529, anthropic.OverloadedError, "overloaded_error"),
]


@pytest.mark.parametrize("status, error, type", STATUSES)
def test_an_api_error_is_what_the_sdk_would_raise(status, error, type):
    made = api_error(status, "so it is", headers={"retry-after": "7"})
    assert made.__class__ is error
    assert (made.status_code, made.type, made.api_message) == (status, type, "so it is")
    assert made.response.headers["retry-after"] == "7"


# --- Replies ---


LS = ("bash", {"command": "ls"})
REPLIES = [
    (reply("a"), "end_turn", ["text"]),
    (reply(), "end_turn", []),
    (reply(thinking=""), "end_turn", ["thinking"]),
    (reply("a", calls=[LS, LS]), "tool_use", ["text", "tool_use", "tool_use"]),
    (reply("a", stop="max_tokens"), "max_tokens", ["text"]),
    (reply(content=[call()]), "tool_use", ["tool_use"]),
]


@pytest.mark.parametrize("given, stop, types", REPLIES)
def test_a_reply_has_the_blocks_and_the_stop_reason_it_was_given(given, stop, types):
    message = ask(StubClient(given))
    assert message.stop_reason == stop and message.stop_details is None
    assert [block.type for block in message.content] == types


def test_the_ids_of_calls_are_unique():
    given = [reply(calls=[LS, LS])["content"] for _ in "123"]
    assert len({block["id"] for content in given for block in content}) == 6


def test_a_block_gives_a_fresh_dict_each_time():
    block = ask(StubClient(reply(calls=[("bash", {"a": [1]})]))).content[0]
    block.to_dict(mode="json")["input"]["a"].append(2)
    assert block.to_dict()["input"] == {"a": [1]} == block.input


def test_a_refusal_can_say_why():
    given = reply(stop="refusal", details={"explanation": "no"})
    assert ask(StubClient(given)).stop_details.explanation == "no"


@pytest.mark.parametrize("wire", [False, True])
def test_the_models_endpoint_reports_the_limits(wire):
    client = mock_client() if wire else StubClient()
    made = client.stub if wire else client
    made.window, made.max_output, made.adaptive = 1234, 56, False
    info = client.with_options(timeout=5).models.retrieve("some-model", timeout=5)
    assert (info.id, info.max_input_tokens, info.max_tokens) == ("some-model", 1234, 56)
    assert info.capabilities.thinking.types.adaptive.supported is False
    made.info = api_error(404, "no such model")
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("some-model")


# --- Counting ---


def context(usage):
    cached = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return usage.input_tokens + cached


def test_a_count_is_bytes_by_3_2_and_ignores_keys_of_our_own():
    messages = [user("あ" * 1000)]
    tokens = stub.count("", [], messages)
    assert 3000 / 3.2 < tokens < 3100 / 3.2
    assert tokens == stub.count(None, None, [messages[0] | {"tokens": 99}])


def test_a_reply_is_counted_as_output():
    usage = ask(StubClient(reply("x" * 320))).usage
    assert usage.output_tokens == stub.tokens([text("x" * 320)])


NONE, OTHER = {"cache_control": None}, [BASH | {"description": "other"}]


def spend(client, messages, **settings):
    client.enqueue(reply("ok"))
    return ask(client, messages, **({"cache_control": MARK} | settings)).usage


SYSTEM = {"system": [text("s" * 3200, cache_control=MARK)]}
SYSTEM_UNMARKED = {"system": "s" * 3200}
LONG = [user("x" * 3200), assistant(text("y" * 3200)), user("z" * 3200)]
MARKED_FIRST = [user([text("x" * 3200, cache_control=MARK)]), *LONG[1:]]
THINK = {"thinking": {"type": "adaptive"}}
# what comes first, what comes next, and the least and the most that is read, in tokens
CACHE = {
    "the same again": ((LONG, {}), (LONG, {}), 2900, 3100),
    "one more message": ((LONG, {}), ([*LONG, user("w" * 3200)], {}), 2900, 3100),
    "one marker, at the same place": ((MARKED_FIRST, NONE), (LONG, {}), 900, 1100),
    "the last message changed": ((LONG, {}), ([*LONG[:2], user("w")], {}), 0, 0),
    "and the system prompt marked": ((LONG, SYSTEM), (LONG[:1], SYSTEM), 900, 1100),
    "another thinking setting": ((LONG, SYSTEM), (LONG, SYSTEM | THINK), 900, 1100),
    "another tool": ((LONG, SYSTEM), (LONG, SYSTEM | {"tools": OTHER}), 0, 0),
    "another model": ((LONG, SYSTEM), (LONG, SYSTEM | {"model": "other"}), 0, 0),
    "the entry lies behind the marker": ((LONG, {}), (MARKED_FIRST, NONE), 0, 0),
    "no marker": ((LONG, {}), (LONG, NONE), 0, 0),
}


@pytest.mark.parametrize("case", CACHE)
def test_what_is_read_from_the_cache(case):
    first, (messages, settings), least, most = CACHE[case]
    client = StubClient()
    assert spend(client, first[0], **first[1]).cache_read_input_tokens == 0
    usage = spend(client, messages, **settings)
    assert least <= usage.cache_read_input_tokens <= most
    sent = request(messages, **settings)
    assert context(usage) == stub.count(sent["system"], sent["tools"], messages)


@pytest.mark.parametrize("messages, settings", [(LONG, {}), (MARKED_FIRST, NONE)])
def test_what_stands_after_the_last_marker_is_not_cached(messages, settings):
    usage = spend(StubClient(), messages, **SYSTEM, **settings)
    whole = stub.count(SYSTEM["system"], [BASH], messages)
    rest = stub.tokens(messages[1:]) if settings else 3
    assert rest <= usage.input_tokens <= rest + (rest > 3) * 50
    assert usage.cache_creation_input_tokens == whole - usage.input_tokens


@pytest.mark.parametrize("calls", [1, 10])
@pytest.mark.parametrize("blocks, found", [(20, True), (21, False)])
def test_a_marker_looks_back_over_20_positions(calls, blocks, found):
    """Where a run of calls, or of results, is one position."""
    ids = [f"toolu_{n}" for n in range(calls)]
    answers = [*map(result, ids)] + [text("a")] * (blocks - 2)
    client = StubClient()
    spend(client, LONG[:1])
    usage = spend(client, [*LONG[:1], assistant(*map(call, ids)), user(answers)])
    assert (usage.cache_read_input_tokens > 900) == found


@pytest.mark.parametrize("blocks, read", [(20, 1000), (21, 0)])
def test_it_looks_back_into_the_system_prompt(blocks, read):
    client = StubClient()
    spend(client, LONG, **SYSTEM)
    usage = spend(client, [user([text("a")] * blocks)], **SYSTEM_UNMARKED)
    assert abs(usage.cache_read_input_tokens - read) < 100


@pytest.mark.parametrize("settings, read", [(SYSTEM, 1000), (SYSTEM_UNMARKED, 0)])
def test_after_an_edit_far_back_only_a_marked_system_prompt_is_read(settings, read):
    messages = [user("x" * 3200), *[assistant(text("y")), user("z")] * 15]
    client = StubClient()
    for end in range(1, len(messages), 2):
        spend(client, messages[:end], **settings)
    messages[2] = user("changed")
    usage = spend(client, messages, **settings)
    assert abs(usage.cache_read_input_tokens - read) < 100


# --- The wire ---

EVERYTHING = reply("three little pieces 三", [("bash", {"a": "é"}), ("bash", {})], "hm")
REDACTED = reply(content=[HIDDEN, text("a")])
PLAIN = [reply(), reply("a", stop="refusal"), reply(thinking="")]


@pytest.mark.parametrize("given", [EVERYTHING, REDACTED, *PLAIN])
def test_the_real_sdk_makes_the_same_message_of_it(given):
    real, fake = mock_client(given), StubClient(given)
    one, two = ask(real), ask(fake)
    assert plain(one) == plain(two)
    assert one.stop_reason == two.stop_reason
    assert one.usage.to_dict() == vars(two.usage)
    assert real.requests[0]["messages"] == fake.requests[0]["messages"]


def shown(client):
    """The text and thinking that come as events, piece by piece."""
    with client.messages.stream(**request()) as stream:
        events = [e for e in stream if e.type in ("text", "thinking")]
        return [getattr(event, event.type) for event in events]


def test_the_real_sdk_shows_the_same_pieces():
    pieces = shown(StubClient(EVERYTHING))
    assert shown(mock_client(EVERYTHING)) == pieces
    assert len(pieces) > 2 and "".join(pieces) == "hmthree little pieces 三"


def test_a_conversation_over_the_wire_keeps_its_thinking_valid():
    replies = thinker("one"), thinker("two"), reply("done", thinking="")
    assert refusal(talk(*replies, client=mock_client(*replies))) == ""


def test_a_stream_that_ends_early_has_no_stop_reason():
    message = ask(mock_client(cut(reply(calls=[LS]), events=3)))
    assert message.stop_reason is None
    assert message.content[0].input == {}


RATE_LIMIT = {"error": {"type": "rate_limit_error", "message": "slow down"}}
FAULTS = [
    (cut(reply("abc"), 3, httpx2.ReadError("reset")), httpx2.ReadError),
    (cut(reply("abc"), 3, KeyboardInterrupt()), KeyboardInterrupt),
    (cut(reply("abc"), 0), AssertionError),
    (httpx2.ConnectError("refused"), anthropic.APIConnectionError),
    (httpx2.ReadTimeout("slow"), anthropic.APITimeoutError),
    ((429, {"retry-after": "7"}, RATE_LIMIT), anthropic.RateLimitError),
    ((502, {}, b"<html>bad gateway</html>"), anthropic.InternalServerError),
    ((200, {}, b"<html>a login page</html>"), AssertionError),
    (api_error(529, "busy"), anthropic.OverloadedError),
    (b"event: message_start\ndata: {not json\n\n", json.JSONDecodeError),
]


@pytest.mark.parametrize("queued, error", FAULTS)
def test_the_wire_carries_faults(queued, error):
    with pytest.raises(error):
        ask(mock_client(queued))


def test_an_error_event_in_a_stream_raises():
    start = sse(StubClient(reply("abc")).answer(request()))[:3]
    stop = event("error", error={"type": "overloaded_error", "message": "busy"})
    with pytest.raises(anthropic.APIStatusError) as error:
        ask(mock_client(b"".join([*start, stop])))
    assert (error.value.status_code, error.value.type) == (200, "overloaded_error")


# --- The server ---


def connect(url):
    client = httpx2.Client(trust_env=False)  # a proxy would not find this machine
    return anthropic.Anthropic(api_key="a", base_url=url, http_client=client)


def test_the_server_answers_the_real_sdk():
    client = StubClient(EVERYTHING, window=5000)
    with serve(client) as url, connect(url) as real:
        assert plain(ask(real))[1] == EVERYTHING["content"][1]
        assert real.models.retrieve("some-model").max_input_tokens == 5000
    assert client.requests == [request()]


SERVED_FAULTS = [
    (api_error(404, "no such model"), anthropic.NotFoundError),
    (cut(reply("abc"), 3, httpx2.ReadError("reset")), httpx2.RemoteProtocolError),
    (httpx2.ConnectError("gone"), anthropic.APIConnectionError),
]


@pytest.mark.parametrize("queued, error", SERVED_FAULTS)
def test_the_server_carries_faults(queued, error, capfd):
    client = StubClient(queued, queued, queued)
    with serve(client) as url, connect(url) as real, pytest.raises(error):
        ask(real.with_options(max_retries=0))
    assert len(client.requests) == 1 and capfd.readouterr().err == ""


@pytest.mark.parametrize("messages", [[user("")], [user("nothing is queued")]])
def test_the_server_refuses_and_notes_it(messages):
    client = StubClient()
    refused = pytest.raises(anthropic.BadRequestError)
    with serve(client) as url, connect(url) as real, refused:
        ask(real, messages)
    assert len(client.refused) == 1


def test_a_client_that_leaves_is_no_error(capfd):
    client = StubClient(reply("x" * 1_000_000), reply("next"))
    with serve(client, delay=0.01) as url, connect(url) as real:
        with real.messages.stream(**request()) as stream:
            next(iter(stream))
        assert ask(real).content[0].text == "next"
    assert capfd.readouterr().err == ""


PROGRAM = """
import stub
try:
    stub.StubClient().answer({"model": "m", "max_tokens": 9, "messages": []})
except stub.Refused as error:
    print(error)
"""


def test_the_stub_refuses_without_any_package():
    program = [sys.executable, "-S", "-c", PROGRAM]
    folder = Path(stub.__file__).parent
    done = subprocess.run(program, cwd=folder, capture_output=True, check=True)
    assert done.stdout.strip() == b"messages: at least one message is required"
