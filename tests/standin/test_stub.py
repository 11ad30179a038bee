"""The guarantees of the fake client, on which the other tests rely."""

import asyncio
import copy
import gzip
import inspect
import itertools
import json
import re

import anthropic
import httpx2
import pytest
import sdk
import stub
import typing_extensions
from anthropic import beta_tool
from builders import typed as user
from door import served
from stub import StubClient, api_error, reply
from wire import Cut, mock_client, serve

BASH_SCHEMA = {"name": "bash", "input_schema": {"type": "object"}}
MARK = {"type": "ephemeral"}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def tool_use(id="toolu_1", **more):
    return {"type": "tool_use", "id": id, "name": "bash", "input": {}, **more}


def result(id="toolu_1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


HELLO = [user("hello")]
REQUEST = {
    "model": "m",
    "max_tokens": 100,
    "system": "Be brief.",
    "tools": [BASH_SCHEMA],
}


def request(messages=HELLO, **settings):
    return copy.deepcopy(REQUEST | {"messages": messages} | settings)


def ask(client, messages=HELLO, **settings):
    """The final message that `client` gives to `messages`."""
    with client.messages.stream(**request(messages, **settings)) as stream:
        return stream.get_final_message()


def plain(message):
    """The content of a message as plain dicts, as a history has it."""
    return [block.to_dict() for block in message.content]


def refusal(messages=HELLO, **settings):
    """The reason why a request is rejected, or ""."""
    try:
        stub.check(request(messages, **settings), max_output=64_000)
    except stub.Refused as error:
        return str(error)
    return ""


# --- The conscience: requests ---

MARKED_THOUGHT = {
    "type": "thinking",
    "thinking": "",
    "signature": "",
    "cache_control": MARK,
}
CALLED = user("hello"), assistant(tool_use())
BARE = {"type": "tool_result", "tool_use_id": "toolu_1"}
ANSWERED = [*CALLED, user([result()])]
BOTH = [user("a"), assistant(tool_use()), assistant(tool_use("b"))]
EXTRA = "Extra inputs are not permitted"
EMPTY_CONTENT = "messages.0: all messages must have non-empty content"
PREFILL = "does not support assistant message prefill. The conversation must end with"
UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately"
)
ORPHAN = "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks"

BAD_MESSAGES = {
    "none": ([], "messages: at least one message is required"),
    "assistant first": ([assistant(text("a")), user("b")], 'use the "user" role'),
    "assistant last": ([user("a"), assistant(text("b"))], PREFILL),
    "no list": ("a", "messages: Input should be a valid list"),
    "no object": (["a"], "messages.0: Input should be a valid dictionary"),
    "no role": ([{"content": "a"}], "messages.0.role: Field required"),
    "no content": ([{"role": "user"}], "messages.0.content: Field required"),
    "system role": ([{"role": "system", "content": "a"}], 'Unexpected role "system"'),
    "key of our own": ([user("a") | {"tokens": 5}], f"messages.0.tokens: {EXTRA}"),
    "empty string": ([user("")], EMPTY_CONTENT),
    "empty list": ([user([])], EMPTY_CONTENT),
    "empty text": ([user([text("")])], "messages: text content blocks must be non-em"),
    "only spaces": ([user(" \n")], "text content blocks must contain non-whitespace"),
    "spaces inside": ([*CALLED, user([result(content=[text(" ")])])], "non-whitespace"),
    "content null": ([*CALLED, user([result(content=None)])], "content: Input should"),
    "unknown block": ([user([{"type": "video"}])], "messages.0.content.0: Input tag"),
    "an object as text": ([user(["Text()"])], "messages.0.content.0: Input should be"),
    "key in a text": ([user([text("a", x=1)])], f"0.content.0.text.x: {EXTRA}"),
    "key in a call": ([user("a"), assistant(tool_use(x=1))], f"tool_use.x: {EXTRA}"),
    "key in a result": ([*CALLED, user([result(x=1)])], f"tool_result.x: {EXTRA}"),
    "marked thinking": (
        [user("a"), assistant(MARKED_THOUGHT)],
        f"cache_control: {EXTRA}",
    ),
    "key missing": ([user([{"type": "text"}])], "messages.0.content.0.text.text: Fiel"),
    "input is text": ([user("a"), assistant(tool_use(input="{}"))], "use.input: Field"),
    "call by the user": ([user([tool_use()])], "not permitted in `user`"),
    "result by the model": ([user("a"), assistant(result())], "permitted in `assistan"),
    "bad tool name": (
        [user("a"), assistant(tool_use(name="a b"))],
        "_use.name: String",
    ),
    "call unanswered": (
        [*CALLED, user("never mind")],
        f"{UNANSWERED} after: toolu_1. Each",
    ),
    "half answered": (
        [*BOTH, user([result("b")])],
        f"{UNANSWERED} after: toolu_1. Each",
    ),
    "late": ([*CALLED, user("a"), assistant(text("b")), user([result()])], UNANSWERED),
    "text before result": ([*CALLED, user([text("a"), result()])], UNANSWERED),
    "message before result": ([*CALLED, user("a"), user([result()])], UNANSWERED),
    "orphan": ([*CALLED, user([result(), result("x")])], f"{ORPHAN}: x. Each"),
    "two results": ([*CALLED, user([result(), result()])], "must have a single result"),
    "one id twice": (ANSWERED * 2, "messages: `tool_use` ids must be unique"),
}
MARKED = text("a", cache_control=MARK)
OWN_BASH = {"type": "bash_20250124", "name": "bash"}
CLEARS = {"edits": [{"type": "clear_tool_uses_20250919"}]}
EDITS, COMPACTS, THREADS = (
    "context-management-2025-06-27",
    "compact-2026-09-04",
    "message-threads-2026-08-12",
)


def betas(*names):
    return {"extra_headers": {"anthropic-beta": ",".join(names)}}


BAD_SETTINGS = [
    ({"temperature": 1}, f"temperature: {EXTRA}"),
    ({"extra_body": {"top_p": 1}}, f"top_p: {EXTRA}"),
    ({"max_tokens": -1}, "max_tokens: Input should be"),
    ({"max_tokens": 0, "thinking": {"type": "enabled"}}, '"thinking.type.enabled" is'),
    ({"max_tokens": 0, "tool_choice": {"type": "any"}}, "tool_choice: type `any`"),
    (
        {"max_tokens": 0, "output_config": {"format": {"type": "json_schema"}}},
        "outputs",
    ),
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"max_tokens": 65_000}, "max_tokens: 65000 > 64000, which is the maximum"),
    ({"thinking": {"type": "enabled"}}, '"thinking.type.enabled" is not supported'),
    ({"thinking": {"type": "disabled"}}, '"thinking.type.disabled" is not supported'),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1}}, f"budget_tokens: {EXTRA}"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: type `any`"),
    ({"messages": [user([MARKED] * 5)]}, "A maximum of 4 blocks with cache_control"),
    ({"messages": [user([MARKED] * 4)], "cache_control": MARK}, "Found 5."),
    ({"cache_control": {"type": "for ever"}}, "cache_control: Input tag 'for ever'"),
    ({"cache_control": True}, "cache_control: Input tag 'None' found using 'type'"),
    ({"cache_control": MARK | {"ttl": "2h"}}, "ephemeral.ttl: Input should be '5m'"),
    (
        {"tools": [BASH_SCHEMA | {"cache_control": {"ttl": "5m"}}]},
        "tools.0.custom.cache_cont",
    ),
    ({"system": [text("a", cache_control=MARK | {"x": 1})]}, f"ephemeral.x: {EXTRA}"),
    ({"messages": ANSWERED, "tools": []}, "must define tools"),
    ({"tools": [BASH_SCHEMA | {"handler": "f"}]}, f"tools.0.custom.handler: {EXTRA}"),
    (
        {"tools": [BASH_SCHEMA | {"name": "a.b"}]},
        "tools.0.custom.name: String should match",
    ),
    ({"tools": [{"name": "bash"}]}, "tools.0.custom.input_schema: Field required"),
    ({"tools": [BASH_SCHEMA, BASH_SCHEMA]}, "tools: Tool names must be unique."),
    (
        {"tools": [BASH_SCHEMA | {"type": "function"}]},
        "tools.0: Input tag 'function' found",
    ),
    ({"tools": [OWN_BASH | {"name": "sh"}]}, "bash_20250124.name: Input should be 'b"),
    ({"context_management": CLEARS}, f"context_management: {EXTRA}"),
    ({"context_management": CLEARS, **betas(THREADS)}, f"context_management: {EXTRA}"),
    ({"thread": {"type": "create"}}, f"thread: {EXTRA}"),
    ({"system": [text("")]}, "text content blocks must be non-empty"),
]


def test_ids_of_calls_all_have_the_same_length():
    found = [*itertools.islice(stub.ids(), 30_000)]
    assert {len(one) for one in found} == {10} and len({*found[-9_000:]}) == 9_000


@pytest.mark.parametrize("case", [*BAD_MESSAGES, *range(len(BAD_SETTINGS))])
def test_rejects(case):
    bad, wording = BAD_MESSAGES.get(case) or BAD_SETTINGS[case]
    assert wording in (refusal(**bad) if isinstance(bad, dict) else refusal(bad))


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_a_client_records_a_request_that_it_rejects(case):
    client, (messages, wording) = StubClient(reply("one")), BAD_MESSAGES[case]
    with pytest.raises(stub.Refused):
        ask(client, messages)
    assert len(client.requests) == 1 and wording in client.refused[0]


GOOD_REQUESTS = [
    {},
    {"system": [MARKED], "cache_control": MARK, "messages": [user([MARKED] * 2)]},
    {
        "cache_control": MARK | {"ttl": "1h"},
        "tools": [BASH_SCHEMA | {"cache_control": MARK}],
    },
    {"thinking": {"type": "adaptive", "display": "summarized"}},
    {"max_tokens": 0, "thinking": {"type": "adaptive", "display": "summarized"}},
    {"tool_choice": {"type": "none"}, "timeout": httpx2.Timeout(5)},
    {"system": "", "tools": []},
    {"context_management": None, **betas(EDITS)},
    {"tools": [OWN_BASH | {"cache_control": MARK}]},
    {"tools": [BASH_SCHEMA | {"input_examples": [{}], "eager_input_streaming": True}]},
    {"messages": ANSWERED},
    {"messages": [*ANSWERED, user("and now")]},
    {"messages": [user("a"), user([text("b")]), user("c")]},
    {"messages": [*CALLED, user([result(is_error=True, content=[text("no")])])]},
    {"messages": [*BOTH, user([result("b")]), user([result(), text("c")])]},
    {"messages": [*CALLED, user([BARE])]},
    {"messages": [*CALLED, user([result(content="")])]},
    {"messages": [*CALLED, user([result(content=[])])]},
    {"messages": [user('in a text it is no marker: "cache_control":{}' * 5)]},
]


@pytest.mark.parametrize("settings", GOOD_REQUESTS)
def test_accepts(settings):
    assert refusal(**settings) == ""


FORGETTING = "It leaves the forgetting to the API (`co"
WEB = {"type": "web_search_20260318", "name": "web_search"}
UNPLAYED = [
    ({"context_management": CLEARS, **betas("other", EDITS)}, FORGETTING),
    ({"context_management": CLEARS, **betas(COMPACTS)}, FORGETTING),
    ({"compaction": {"type": "summarize"}, **betas(COMPACTS)}, FORGETTING),
    ({"thread": {"type": "create"}, **betas(THREADS)}, "keeps no threads"),
    ({"mcp_servers": [{}], **betas("mcp-client-2025-11-20")}, "play `mcp_servers`. If"),
    ({"tools": [{"type": "mcp_toolset"}]}, "play tools of type `mcp_toolset`. If"),
    (
        {"messages": [*HELLO, assistant({"type": "mcp_tool_use"})]},
        "play blocks of type `mcp_tool_use`. If",
    ),
    (
        {"tools": [BASH_SCHEMA, WEB]},
        "play tools of type `web_search_20260318`. If the real",
    ),
    (
        {"tools": [BASH_SCHEMA | {"defer_loading": True}]},
        "play `defer_loading` in a tool. If",
    ),
    (
        {"messages": [user([{"type": "document"}])]},
        "play blocks of type `document`. If",
    ),
    (
        {"messages": [*HELLO, {"role": "system", "content": "a"}]},
        "play system messages",
    ),
]


@pytest.mark.parametrize("asked, wording", UNPLAYED)
def test_what_only_the_api_can_do_is_no_mistake_of_the_program(asked, wording):
    client = StubClient(reply("one"))
    with pytest.raises(stub.Unplayed) as error:
        ask(client, **asked)
    assert wording in str(error.value) and client.unplayed == [str(error.value)]
    assert not client.refused
    assert ask(client).content[0].text == "one" and not client.unplayed


def test_the_apis_own_tools_and_beta_settings_have_the_sdks_names():
    names = {}
    for name, made in vars(anthropic.types).items():
        if re.fullmatch(r"(Tool(Bash|TextEditor)|MemoryTool)\d+Param", name):
            hints = typing_extensions.get_type_hints(
                made
            )  # strips Required on 3.10, too
            names[hints["type"].__args__[0]] = hints["name"].__args__[0]
    assert stub.OWN_TOOLS.items() <= names.items()
    client = anthropic.Anthropic(api_key="a")
    for create, known in [
        (client.messages.create, False),
        (client.beta.messages.create, True),
    ]:
        given = inspect.signature(create).parameters
        assert [key in given for key in stub.BETAS] == [known] * len(stub.BETAS)


def test_rejects_thinking_if_the_model_has_none():
    with pytest.raises(stub.Refused, match="adaptive thinking is not supported"):
        ask(StubClient(adaptive=False), thinking={"type": "adaptive"})


UNSENDABLE = [("\ud800", UnicodeEncodeError), (object(), TypeError)]


@pytest.mark.parametrize("client", [StubClient(), mock_client()])
@pytest.mark.parametrize("bad, error", UNSENDABLE)
def test_a_value_that_the_sdk_cannot_encode_raises_the_same_error(client, bad, error):
    with pytest.raises(error):
        ask(client, [user([text(bad)])])
    assert client.refused if isinstance(client, StubClient) else client.requests == []


# --- The conscience: thinking ---


def talk(*replies, client=None):
    """The history of a conversation with these `replies`, without empty texts."""
    client, messages = client or StubClient(*replies), [user("hello")]
    for _ in replies:
        content = [b for b in plain(ask(client, messages)) if b.get("text") != ""]
        called = [result(b["id"]) for b in content if b["type"] == "tool_use"]
        messages += [assistant(*content), user(called or "go on")]
    return messages


def thinker(words):
    return reply(thinking=words, calls=[("bash", {"command": words})])


def without(*turns):
    """Make an edit that removes the thinking from these assistant messages (1 to 3)."""
    return lambda messages: [messages[2 * n - 1]["content"].pop(0) for n in turns]


def change(index, key, value):
    """Make an edit that changes a value in the first block of a message."""
    return lambda messages: messages[index]["content"][0].update({key: value})


cleared = change(2, "content", "[cleared]")
DUMPED = {"caller": None, "toolset_name": None}
MARKED_SYSTEM = {"system": [text("Be brief.", cache_control=MARK)], "max_tokens": 5}
# an edit, and the index of the message whose thinking is then rejected
THINKING = {
    "as it came": (lambda m: None, None),
    "all removed": (without(1, 2, 3), None),
    "a leading run removed": (without(1, 2), None),
    "a trailing run removed": (without(2, 3), None),
    "one removed from the middle": (without(2), 5),
    "a message added in front": (lambda m: m.insert(0, user("before")), 1),
    "the first message changed": (lambda m: m[0].update(content="bye"), 1),
    "a string made a block": (lambda m: m[0].update(content=[text("hello")]), None),
    "a result cleared": (cleared, 3),
    "and the later thinking removed": (lambda m: [cleared(m), without(2, 3)(m)], None),
    "the last result cleared": (change(6, "content", "[cleared]"), None),
    "a result marked for the cache": (change(4, "cache_control", MARK), None),
    "thinking rewritten": (change(3, "thinking", "other"), 3),
    "a signature rewritten": (change(3, "signature", "made up"), 3),
    "keys added by model_dump": (lambda m: m[3]["content"][1].update(DUMPED), None),
    "the system prompt changed": (lambda m: {"system": "Be long."}, 1),
    "the system prompt marked": (lambda m: MARKED_SYSTEM, None),
    "a tool changed": (lambda m: {"tools": [BASH_SCHEMA | {"description": "new"}]}, 1),
}


@pytest.mark.parametrize("case", THINKING)
def test_thinking_is_bound_to_the_messages_before_it(case):
    edit, refused_at = THINKING[case]
    replies = thinker("one"), thinker(""), thinker("three")
    replies[0]["content"].insert(0, text(""))  # removing it does not count as an edit
    messages = talk(*replies, client=mock_client(*replies))
    settings = edit(messages)
    settings = settings if isinstance(settings, dict) else {}
    block = f"messages.{refused_at}.content.0: Invalid `signature` in `thinking` block."
    problem = refusal(messages, **settings)
    assert problem[: len(block)] == (block if refused_at else "")


def test_a_request_with_the_beta_may_have_thinking_that_is_bound_to_other_messages():
    messages = talk(thinker("one"), thinker("two"))
    cleared(messages)
    asks = {"thinking": {"type": "adaptive", "block_binding": stub.DROPS}}
    beta = {"extra_headers": {"anthropic-beta": f"other,{stub.BINDING}"}}
    assert "block_binding: Extra inputs" in refusal(messages, **asks)
    assert "Invalid `signature`" in refusal(messages, **beta)
    assert refusal(messages, **asks, **beta) == ""


HIDDEN = {"type": "redacted_thinking"}
TWO_THOUGHTS = [{"type": "thinking", "thinking": ""}, text("a"), HIDDEN, tool_use()]


def test_new_thinking_continues_the_chain_and_a_removed_block_stays_out():
    messages = talk(thinker("one"), thinker("two"))
    before = copy.deepcopy(messages)
    without(1, 2)(messages)
    answer = assistant(*plain(ask(StubClient(reply("a", thinking="new")), messages)))
    assert refusal([*messages, answer, user("go on")]) == ""
    assert "Invalid `signature`" in refusal([*before, answer, user("go on")])


def test_redacted_and_interleaved_thinking_is_signed_too():
    messages = talk(reply(content=TWO_THOUGHTS))
    messages[1]["content"][2]["data"] = "made up"
    wording = "messages.1.content.2: Invalid `signature` in `redacted_thinking` block."
    assert refusal(messages).startswith(wording)


KINDS = ["thinking", "redacted_thinking"]


@pytest.mark.parametrize("later", [[], [reply("and then")]])
@pytest.mark.parametrize("kept", [[], KINDS[:1], KINDS[1:], KINDS])
def test_the_latest_reply_keeps_all_of_its_thinking_or_none(kept, later):
    messages = talk(reply(content=TWO_THOUGHTS), *later)
    content = messages[1]["content"]
    messages[1]["content"] = [b for b in content if b["type"] not in {*KINDS} - {*kept}]
    wording = "messages.1: `thinking` or `redacted_thinking` blocks in the latest"
    assert refusal(messages).startswith(wording) == (len(kept) == 1 and not later)


# --- The queue and the memory ---


def test_replies_come_in_order_and_requests_are_kept_unchanged():
    client, asked = StubClient(reply("one")), request()
    client.enqueue(reply("two"))
    with client.messages.stream(**asked) as stream:
        asked["messages"][0]["content"] = "changed"
    assert stream.get_final_message().content[0].text == "one"
    assert ask(client).content[0].text == "two"
    assert client.requests == [request(), request()]


def test_no_except_exception_hides_an_empty_queue():
    assert not issubclass(stub.EmptyQueue, Exception)
    with pytest.raises(stub.EmptyQueue, match=r"request 1: .*hello"):
        ask(StubClient())


ONE_BY_ONE = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
THREE = reply("Look.", [("bash", {"command": name}) for name in "abc"], "Hm.")


@pytest.mark.parametrize("settings, calls", [({}, ["abc"]), (ONE_BY_ONE, [*"abc"])])
def test_a_request_can_forbid_parallel_calls(settings, calls):
    client, messages, made = StubClient(THREE, reply("Done.")), [*HELLO], []
    while called := [b for b in plain(ask(client, messages, **settings)) if "id" in b]:
        messages += [assistant(*called), user([result(b["id"]) for b in called])]
        made.append("".join(block["input"]["command"] for block in called))
    assert made == calls


def test_always_answers_after_the_queue_and_its_requests_are_checked():
    client = StubClient(reply("one"), always=lambda request: reply("more"))
    answers = [ask(client).content[0].text for _ in range(3)]
    assert answers == ["one", "more", "more"]
    with pytest.raises(stub.Refused):
        ask(client, [user("")])


LENGTH = stub.count("Be brief.", [BASH_SCHEMA], [user("x" * 4000)])
REJECTED_LENGTH = f"prompt is too long: {LENGTH} tokens > 1000 maximum"
REFUSED = [
    (user(""), EMPTY_CONTENT, "refused"),
    (user("x" * 4000), REJECTED_LENGTH, "too_long"),
]


@pytest.mark.parametrize("message, wording, noted", REFUSED)
def test_a_rejection_looks_like_the_sdks_and_uses_no_reply(message, wording, noted):
    made, wired = StubClient(reply("one"), window=1000), mock_client(window=1000)
    with pytest.raises(stub.Refused) as ours:
        ask(made, [message])
    with pytest.raises(anthropic.BadRequestError) as theirs:
        ask(wired, [message])
    for name in "status_code", "type", "api_message", "body":
        assert getattr(ours.value, name) == getattr(theirs.value, name)
    assert ours.value.api_message.startswith(wording)
    assert wording in ours.value.message and wording in theirs.value.message
    assert "retry-after" not in ours.value.response.headers
    for client in made, wired.stub:
        assert getattr(client, noted) == [ours.value.api_message]
        assert len(client.refused + client.too_long) == 1
    assert ask(made).content[0].text == "one"


def test_every_name_in_the_stand_in_package_exists_in_the_sdk():
    made = vars(sdk.package(StubClient())["anthropic"])
    names = {name for name in made if not name.startswith("__")}
    assert len(names) > 20 and names <= {*dir(anthropic)}


def test_an_error_is_caught_by_the_same_names_as_in_the_sdk():
    names = sdk.ERRORS.keys() - {"AnthropicError"}  # our APIError is both
    for name, base in itertools.permutations(names, 2):
        ours = issubclass(sdk.ERRORS[name], sdk.ERRORS[base])
        assert ours == issubclass(getattr(anthropic, name), getattr(anthropic, base))


# --- Counting ---


def test_what_stands_where_it_stood_is_not_made_again_unless_it_has_changed():
    made, message = [], user("a")
    mapped = stub.by_place(lambda value: made.append(value) or len(str(value)))
    grows = [[message], [message, user("b")], [message], [message, user("b"), "c"]]
    assert [mapped(value) for value in grows] == [
        [*map(len, map(str, v))] for v in grows
    ]
    assert made == [message, user("b"), "c"]
    message["content"] = "cleared"  # in place, as an agent may do it
    assert mapped([message]) == [len(str(message))] and made[-1] == message


def test_a_count_is_bytes_divided_by_3_2_without_our_own_keys():
    messages = [user("あ" * 1000)]
    tokens = stub.count("", [], messages)
    assert 3000 / 3.2 < tokens < 3100 / 3.2
    assert tokens == stub.count(None, None, [messages[0] | {"tokens": 99}])
    usage = ask(StubClient(reply("x" * 320))).usage
    assert usage.output_tokens == stub.tokens([text("x" * 320)])


NONE, OTHER = {"cache_control": None}, [BASH_SCHEMA | {"description": "other"}]


def spend(client, messages, **settings):
    client.enqueue(reply("ok"))
    return ask(client, messages, **({"cache_control": MARK} | settings)).usage


SYSTEM = {"system": [text("s" * 3200, cache_control=MARK)]}
SYSTEM_UNMARKED = {"system": "s" * 3200}
LONG_CHAT = [user("x" * 3200), assistant(text("y" * 3200)), user("z" * 3200)]
LONG_DUMPED = [LONG_CHAT[0], assistant(text("y" * 3200, citations=None)), LONG_CHAT[2]]
MARKED_FIRST = [user([text("x" * 3200, cache_control=MARK)]), *LONG_CHAT[1:]]
THINK = {"thinking": {"type": "adaptive"}}
# the first request, the next one, and the least and most tokens read from the cache
CACHE = {
    "the same again": ((LONG_CHAT, {}), (LONG_CHAT, {}), 2900, 3100),
    "one more message": (
        (LONG_CHAT, {}),
        ([*LONG_CHAT, user("w" * 3200)], {}),
        2900,
        3100,
    ),
    "one marker, at the same place": ((MARKED_FIRST, NONE), (LONG_CHAT, {}), 900, 1100),
    "the last message changed": (
        (LONG_CHAT, {}),
        ([*LONG_CHAT[:2], user("w")], {}),
        0,
        0,
    ),
    "and the system prompt marked": (
        (LONG_CHAT, SYSTEM),
        (LONG_CHAT[:1], SYSTEM),
        900,
        1100,
    ),
    "another thinking setting": (
        (LONG_CHAT, SYSTEM),
        (LONG_CHAT, SYSTEM | THINK),
        900,
        1100,
    ),
    "another tool": ((LONG_CHAT, SYSTEM), (LONG_CHAT, SYSTEM | {"tools": OTHER}), 0, 0),
    "another model": (
        (LONG_CHAT, SYSTEM),
        (LONG_CHAT, SYSTEM | {"model": "other"}),
        0,
        0,
    ),
    "the entry lies behind the marker": ((LONG_CHAT, {}), (MARKED_FIRST, NONE), 0, 0),
    "no marker": ((LONG_CHAT, {}), (LONG_CHAT, NONE), 0, 0),
    "a key added by model_dump": ((LONG_CHAT, {}), (LONG_DUMPED, {}), 2900, 3100),
}


@pytest.mark.parametrize("case", CACHE)
def test_a_request_reads_the_cached_beginning(case):
    first, (messages, settings), least, most = CACHE[case]
    client = StubClient(cache_from=0)
    assert spend(client, first[0], **first[1]).cache_read_input_tokens == 0
    usage = spend(client, messages, **settings)
    assert least <= usage.cache_read_input_tokens <= most
    sent = request(messages, **settings)
    cached = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    whole = stub.count(sent["system"], sent["tools"], messages)
    assert usage.input_tokens + cached == whole


@pytest.mark.parametrize(
    "messages, settings, least, most",
    [(LONG_CHAT, {}, 3, 3), (MARKED_FIRST, NONE, 2_000, 2_100)],
)
def test_nothing_after_the_last_marker_is_cached(messages, settings, least, most):
    usage = spend(StubClient(), messages, **SYSTEM, **settings)
    whole = stub.count(SYSTEM["system"], [BASH_SCHEMA], messages)
    assert least <= usage.input_tokens <= most
    assert usage.cache_creation_input_tokens == whole - usage.input_tokens


@pytest.mark.parametrize("calls", [1, 10])
@pytest.mark.parametrize("blocks, found", [(20, True), (21, False)])
def test_a_marker_looks_back_over_20_positions(calls, blocks, found):
    """A run of calls, or of results, counts as one position."""
    ids = [f"toolu_{n}" for n in range(calls)]
    answers = [*map(result, ids)] + [text("a")] * (blocks - 2)
    client = StubClient()
    spend(client, LONG_CHAT[:1])
    usage = spend(
        client, [*LONG_CHAT[:1], assistant(*map(tool_use, ids)), user(answers)]
    )
    assert (usage.cache_read_input_tokens > 900) == found


@pytest.mark.parametrize(
    "blocks, settings, read",
    [(20, SYSTEM_UNMARKED, 1000), (21, SYSTEM_UNMARKED, 0), (21, SYSTEM, 1000)],
)
def test_after_an_earlier_edit_only_a_marked_system_prompt_is_read(
    blocks, settings, read
):
    client = StubClient(cache_from=0)
    spend(client, LONG_CHAT, **SYSTEM)
    usage = spend(client, [user([text("a")] * blocks)], **settings)
    assert abs(usage.cache_read_input_tokens - read) < 100


@pytest.mark.parametrize("cache_from, is_cached", [(3_000, True), (3_200, False)])
def test_a_prompt_under_the_smallest_that_is_cached_is_neither_written_nor_read(
    cache_from, is_cached
):
    client = StubClient(cache_from=cache_from)
    first, again = spend(client, LONG_CHAT), spend(client, LONG_CHAT)
    assert (first.cache_creation_input_tokens > 0) is is_cached
    assert (again.cache_read_input_tokens > 0) is is_cached


# --- A request for no tokens, which only reads the prompt into the cache ---


def read_only(client, messages=LONG_CHAT, **settings):
    """Send a request for no tokens, which is not streamed."""
    settings = {"max_tokens": 0, "cache_control": MARK} | settings
    return client.messages.create(**request(messages, **settings))


@pytest.mark.parametrize("make", [StubClient, mock_client])
def test_a_request_for_no_tokens_writes_the_cache_and_uses_no_reply(make):
    client = make(reply("one"))
    written, again = read_only(client), read_only(client)
    assert written.content == [] and written.stop_reason == "max_tokens"
    assert (written.usage.output_tokens, written.usage.cache_read_input_tokens) == (
        0,
        0,
    )
    assert again.usage.cache_read_input_tokens > 2_900
    answer = ask(client, LONG_CHAT, cache_control=MARK)
    assert answer.content[0].text == "one"
    assert answer.usage.cache_read_input_tokens > 2_900
    assert [r["max_tokens"] for r in client.requests] == [0, 0, 100]


@pytest.mark.parametrize("make", [StubClient, mock_client])
def test_a_request_for_no_tokens_is_checked_and_gets_a_queued_error(make):
    client = make(api_error(529, "busy"))
    with pytest.raises(anthropic.OverloadedError):
        read_only(client)
    for messages in [user("")], LONG_CHAT[:2]:
        with pytest.raises(Exception, match=r"non-empty content|must end with a user"):
            read_only(client, messages)
    with pytest.raises(Exception, match="together with `stream`"):
        ask(client, max_tokens=0)
    assert len(getattr(client, "stub", client).refused) == 3


def test_the_server_answers_a_request_for_no_tokens():
    client = StubClient((529, {}, {}))
    with serve(client) as url, connect(url) as real:
        with pytest.raises(anthropic.APIStatusError):
            read_only(real.with_options(max_retries=0))
        read_only(real)
        assert read_only(real).usage.cache_read_input_tokens > 2_900
    assert client.refused == [*client.queue] == []


# --- The wire ---

EVERYTHING = reply("three little pieces 三", [("bash", {"a": "é"}), ("bash", {})], "hm")
REDACTED = reply(content=[HIDDEN, text("a")])
PLAIN = [reply(), reply("a", stop="refusal"), reply(thinking="")]


def streamed(client):
    """Stream a request, and return the events as plain JSON, and the message."""
    with client.messages.stream(**request()) as stream:
        events = [event.to_dict() for event in stream]
        for event in events:
            if event["type"] == "input_json":
                event.pop("snapshot", None)  # parsed, as far as it is JSON
        return events, stream.get_final_message()


def dumps(part):
    """Everything that the SDK's methods make of a reply, a block or a usage."""
    texts = part.to_json(exclude_none=True), part.model_dump_json()
    plain = part.to_dict(), part.model_dump(), part.model_dump(exclude_none=True)
    chosen = part.model_dump(exclude={"content"}), part.model_dump(include={"id"})
    return [*map(json.loads, texts), *plain, *chosen, sorted(dict(part))]


@pytest.mark.parametrize("given", [EVERYTHING, REDACTED, *PLAIN])
def test_the_real_sdk_streams_the_same_events_and_message(given):
    real, fake = mock_client(given), StubClient(given)
    (events, one), (same, two) = streamed(real), streamed(fake)
    assert events == same and plain(one) == plain(two)
    assert [*map(dumps, (one, one.usage))] == [*map(dumps, (two, two.usage))]
    assert real.requests[0]["messages"] == fake.requests[0]["messages"]
    if given is EVERYTHING:
        pieces = [event["text"] for event in events if event["type"] == "text"]
        assert "".join(pieces) == "three little pieces 三" and len(pieces) > 2


def test_an_unstreamed_request_can_ask_for_the_events():
    def ask_for_events(client):
        with client.messages.create(**request(), stream=True) as events:
            return [event.to_dict() for event in events]

    real, fake = mock_client(EVERYTHING), StubClient(EVERYTHING)
    assert ask_for_events(real) == ask_for_events(fake)
    assert real.requests == [request()] == fake.requests


@pytest.mark.parametrize("make", [StubClient, mock_client])
def test_a_streams_text_comes_in_pieces_and_as_a_whole(make):
    client = make(EVERYTHING, EVERYTHING)
    with client.messages.stream(**request()) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_text() == EVERYTHING["content"][1]["text"]
    with client.messages.stream(**request()) as stream:
        stream.until_done()
        assert [*stream] == [] and stream.current_message_snapshot.usage.output_tokens


# --- The package ---

CALLS = {  # what a program calls, and what it then has
    "a client as a context manager": lambda client: client.__enter__() is client,
    "a client with other options": lambda client: (
        client.with_options(timeout=9).messages.create(**request()).stop_reason
    ),
    "a copy of a client": lambda client: client.copy().models.retrieve("m").id,
    "the model": lambda client: client.models.retrieve("m").max_input_tokens,
    "tokens": lambda client: (
        client.messages.count_tokens(model="m", messages=LONG_CHAT).input_tokens
    ),
    "a beta": lambda client: client.beta.messages.create(
        **request(), betas=["a", "b"]
    ).to_dict(),
    "a reply to append": lambda client: dumps(
        client.messages.create(**request()).to_param()["content"][0]
    ),
    "a stream of a beta": lambda client: ask(client.beta).usage.to_dict(),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_client_of_the_stand_in_package_has_the_sdks_calls(what):
    given = reply("Done.")
    real, fake = mock_client(given, window=200_000), StubClient(given)
    made = sdk.package(fake)["anthropic"].Anthropic(api_key="a", max_retries=9)
    assert CALLS[what](made) == CALLS[what](real)
    assert fake.bodies == real.stub.bodies


async def chat(client):
    """Use an asynchronous client in every way, and return what it gives."""
    streams = [client.messages.stream(**request()) for _ in range(3)]
    async with client, streams[0] as first, streams[1] as second, streams[2] as third:
        whole = await client.messages.create(**request())
        sent = await client.beta.messages.create(**request(), stream=True)
        info = await client.with_options(timeout=9).models.retrieve("m")
        events = [event.type async for event in first] + [e.type async for e in sent]
        texts = [piece async for piece in second.text_stream]
        last = plain(await first.get_final_message()), await third.get_final_text()
    return plain(whole), *last, events, texts, info.max_tokens


def test_an_asynchronous_client_of_the_stand_in_package_is_like_the_sdks():
    given = [EVERYTHING] * 5
    made = sdk.package(StubClient(*given))["anthropic"].AsyncAnthropic()
    with served(StubClient(*given)) as url:
        http = httpx2.AsyncClient(trust_env=False)
        real = anthropic.AsyncAnthropic(api_key="a", base_url=url, http_client=http)
        assert asyncio.run(chat(made)) == asyncio.run(chat(real))


NOT_THERE = {
    "client.messages.batches": lambda made: made.Anthropic().messages.batches,
    "client.beta.files": lambda made: made.Anthropic().beta.files,
    "client.beta.messages.tool_runner": lambda made: (
        made.Anthropic().beta.messages.tool_runner()
    ),
    "beta_tool": lambda made: made.beta_tool(len),
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_the_stand_in_package_does_not_have_is_named(name):
    with pytest.raises(AttributeError, match=f"doesn't play `{name}`"):
        NOT_THERE[name](sdk.package(StubClient())["anthropic"])


def test_blocks_are_instances_of_the_sdks_classes():
    made = sdk.package(StubClient())
    types, beta = made["anthropic.types"], made["anthropic.types.beta"]
    block = stub.as_object(tool_use())
    assert isinstance(block, types.ToolUseBlock) and isinstance(
        block, beta.BetaToolUseBlock
    )
    assert not isinstance(block, types.TextBlock)


# --- The server ---


def connect(url):
    client = httpx2.Client(trust_env=False)  # a proxy could not reach this machine
    return anthropic.Anthropic(api_key="a", base_url=url, http_client=client)


@pytest.mark.parametrize("at", [serve, served])
def test_a_server_describes_the_model_and_counts_tokens(at):
    client = StubClient(window=32_000)
    with at(client) as url, connect(url) as real:
        info = real.models.retrieve("some")
        tokens = real.messages.count_tokens(model="m", messages=LONG_CHAT).input_tokens
    assert info.to_dict(mode="json") == client.model_info("some")
    assert info.max_input_tokens == 32_000 and tokens == stub.count("", [], LONG_CHAT)


@pytest.mark.parametrize("at", [serve, served])
def test_a_server_reads_a_compressed_request(at):
    body = gzip.compress(json.dumps(request()).encode())
    headers = {"content-encoding": "gzip", "anthropic-beta": "some"}
    client = StubClient(reply("one"))
    with at(client) as url, httpx2.Client(trust_env=False) as http:
        answer = http.post(f"{url}/v1/messages", content=body, headers=headers)
    assert answer.json()["content"] == [text("one")]
    assert client.requests == [request() | betas("some")]


@beta_tool
def bash(command: str) -> str:
    """Run a command, which has no output here."""
    return ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [serve, served])
def test_the_sdks_tool_runner_goes_on_without_a_thread(at, stream):
    client = StubClient(thinker("ls"), reply("Done."))
    asked = {**request(), "tools": [bash], "stream": stream}
    with at(client) as url, connect(url) as real:
        real.beta.messages.tool_runner(**asked).until_done()
    assert ["thread" in sent for sent in client.requests] == [True, False, False]
    _, said, given = client.requests[-1]["messages"]
    assert given == user([result(said["content"][-1]["id"], "")])
    assert not client.refused and not client.unplayed


BROKEN = Cut(reply("abc"), 3, httpx2.ReadError("reset"))
# the messages, the queue, the client's error, and the recorded rejection
SERVED_FAULTS = [
    (HELLO, [api_error(404, "no such model")], anthropic.NotFoundError, ""),
    (HELLO, [BROKEN], httpx2.RemoteProtocolError, ""),
    (HELLO, [httpx2.ConnectError("gone")], anthropic.APIConnectionError, ""),
    ([user("")], [reply("a")], anthropic.BadRequestError, EMPTY_CONTENT),
    (HELLO, [], anthropic.BadRequestError, "no reply for request 1: "),
]


@pytest.mark.parametrize("messages, queued, error, noted", SERVED_FAULTS)
def test_the_server_passes_on_faults(messages, queued, error, noted, capfd):
    client = StubClient(*queued)
    with serve(client) as url, connect(url) as real, pytest.raises(error):
        ask(real.with_options(max_retries=0), messages)
    assert len(client.requests) == 1
    assert [noted in text for text in client.refused] == [True] * bool(noted)
    assert capfd.readouterr().err == ""
