"""A fake Anthropic client: a queue with a memory and a conscience.

    client = StubClient(reply(calls=[("bash", {"command": "ls"})]), reply("Done."))
    agent_loop(client, ...)
    assert len(client.requests) == 2 and not client.refused

Replies are queued and requests are kept. Each request passes the checks of the API,
with the API's own error messages where we know them:

    request -> settings   known keys, max_tokens, thinking, at most 4 cache markers
               tools      names, schemas, no name twice
               content    known blocks and keys in allowed places, nothing empty
               order      the user first and last; tools sent if any were called
               pairs      each tool_use answered at once, by one tool_result
               thinking   signed with all before it; the latest reply's all or none
               length     "prompt is too long: N tokens > 200000 maximum"
                 |                                    \
               next in the queue                       Refused, TooLong (status 400)
                 |
               reply      thinking signed, tokens counted, cache read and written

Not covered: the maximum number of messages and megabytes, the content of images, and
the lifetime of a cache entry. A request that needs documents, the API's own forgetting
or its server tools is rejected as `Unplayed`: the API may accept it.
"""

import hashlib
import itertools
import json
import re
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

# Not 4, so a program that estimates bytes / 4 must learn the true count from `usage`.
BYTES_PER_TOKEN = 3.2
# Prices per token, relative to an uncached input token. The price of reading is the
# default model's; on most others it is 0.1.
CACHE_WRITE, CACHE_READ, OUTPUT = 1.25, 0.05, 5

REQUIRED = ("model", "max_tokens", "messages")
KNOWN = {*REQUIRED, "system", "tools", "thinking", "cache_control", "tool_choice"}
KNOWN |= {"metadata", "stop_sequences", "output_config", "service_tier", "container"}
KNOWN |= {"diagnostics", "inference_geo", "speed"}
# arguments that the SDK keeps to itself
CLIENT_ONLY = {"timeout", "extra_headers", "extra_query", "extra_body"}

# each block type: its required keys, its optional keys, and its allowed places
BLOCKS = {
    "text": ({"text": str}, {"citations"}, {"system", "user", "assistant", "result"}),
    "image": ({"source": dict}, {"transformations"}, {"user", "result"}),
    "tool_use": (
        {"id": str, "name": str, "input": dict},
        {"caller", "toolset_name"},
        {"assistant"},
    ),
    "tool_result": (
        {"tool_use_id": str},
        {"content", "is_error", "toolset_name"},
        {"user"},
    ),
    "thinking": ({"thinking": str, "signature": str}, set(), {"assistant"}),
    "redacted_thinking": ({"data": str}, set(), {"assistant"}),
}
# what the SDK's `model_dump` adds to a reply, as null, if the API sent no such key
NULLS = {
    "text": ["citations"],
    "tool_use": ["caller", "toolset_name"],
    "message": ["container", "diagnostics"],
    "usage": [
        *("cache_creation", "inference_geo", "output_tokens_details"),
        *("server_tool_use", "service_tier", "speed"),
    ],
}
IN_BLOCKS = [*NULLS["text"], *NULLS["tool_use"]]
# the key of the signature; these blocks cannot carry a cache marker, all others can
SIGNED_IN = {"thinking": "signature", "redacted_thinking": "data"}
# a run of these is one position for the prompt cache, which looks back over so many
RUNS, LOOK_BACK = {"tool_use", "tool_result"}, 20
MARKER = b'"cache_control":{'  # as it is sent; inside a text its quotes are escaped
LEFT_OUT = [b'"cache_control":', *(b'"%b":null' % k.encode() for k in IN_BLOCKS)]
TOOL_KEYS = {"name", "description", "input_schema", "cache_control", "type", "strict"}
TOOL_KEYS |= {"input_examples", "eager_input_streaming", "allowed_callers"}
NO_OBJECT = "Input should be a valid dictionary or object to extract fields from"
TOOL_NAME = "^[a-zA-Z0-9_-]{1,128}$"

# with this beta, a request may ask to leave out thinking that is bound to other messages
BINDING = "thinking-binding-controls-2026-08-01"
DROPS = {"prefix_mismatch_behavior": "drop_block"}

# The API accepts these, but we don't play them: settings, each with a pattern for its
# beta; types of blocks; types of tools, and one of their keys.
BETAS = {
    "context_management": "context-management|compact",
    "compaction": "compact",
    "thread": "message-threads",
    "mcp_servers": "mcp-client",
    "fallbacks": "fallback",
}
OTHER_BLOCKS = "document|search_result|container_upload|browser_state|compaction"
OTHER_BLOCKS += r"|tool_reference|\w+_tool_use|\w+_tool_result"
OTHER_TOOLS, OTHER_KEY = r"\w+_20\d{6}|mcp_toolset", "defer_loading"
# The API's own tools that the agent has to run: their type, and their name.
OWN_TOOLS = {
    "bash_20250124": "bash",
    "memory_20250818": "memory",
    "text_editor_20250124": "str_replace_editor",
    "text_editor_20250429": "str_replace_based_edit_tool",
    "text_editor_20250728": "str_replace_based_edit_tool",
}
NOT_PLAYED = (
    "The stand-in doesn't play {}. If the real API accepts this, leave it out for the "
    "test."
)
FORGETS = "It leaves the forgetting to the API ({}), which the stand-in doesn't play."
NO_THREADS = (
    "The stand-in keeps no threads (`thread`). The SDK's tool runner goes on without one; "
    "other programs have to send the whole conversation."
)

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class APIError(Exception):
    """The SDK's base class for errors of a request, without the SDK."""


class APIStatusError(APIError):
    """The same for errors that the API itself answers with."""


class Refused(APIStatusError):
    """The API would answer this request with status 400; the text is its message.

    It looks like the SDK's own exception, but does not need the SDK.
    """

    status_code, type, request_id = 400, "invalid_request_error", None
    response = SimpleNamespace(headers={})
    details: dict | None = None

    @property
    def api_message(self):
        return str(self)

    @property
    def body(self):
        details = {"details": self.details} if self.details else {}
        error = {"type": self.type, "message": str(self), **details}
        return {"type": "error", "error": error}

    message = api_message


class TooLong(Refused):
    """The request is valid but longer than the context window."""


class Unplayed(Refused):
    """The API itself may accept this request, but the stand-in can't play it."""

    def __init__(self, text, **details):
        super().__init__(text)
        self.details = details


class EmptyQueue(BaseException):
    """No reply was left for a request. `except Exception` does not catch it."""


# --- Replies and errors for the queue ---


def ids():
    """Generate ids of calls, which repeat after ten thousand.

    All have the same length, so token counts do not depend on earlier calls.
    """
    return (f"toolu_{number:04}" for number in itertools.cycle(range(1, 10_000)))


tool_ids = ids()


def reply(text="", calls=(), thinking=None, stop=None, content=None, details=None):
    """Make a reply of the model; `calls` is a sequence of `(tool name, input)`.

    `content`, a list of raw blocks, replaces the text, calls and thinking. `details`, a
    dict, becomes the `stop_details` of a refusal.
    """
    if content is None:
        content = []
        if thinking is not None:
            content.append({"type": "thinking", "thinking": thinking})
        if text:
            content.append({"type": "text", "text": text})
        for name, arguments in calls:
            call = {"type": "tool_use", "id": next(tool_ids), "name": name}
            content.append(call | {"input": arguments})
    called = calls_in({"content": content})
    stop = stop or ("tool_use" if called else "end_turn")
    return {"content": content, "stop_reason": stop, "stop_details": details}


def api_error(status, message, type=None, headers=None, code=None, body=None):
    """Make the exception that the SDK itself raises for this status.

    `code` is the API's own error code, which some errors have. `body`, JSON, replaces
    the whole answer.
    """
    import anthropic
    import httpx2

    default = "api_error" if status >= 500 else "invalid_request_error"
    error = {"type": type or ERROR_TYPES.get(status, default), "message": message}
    if code:
        error["details"] = {"error_code": code}
    body = body or {"type": "error", "error": error}
    answer = httpx2.Response(status, headers=headers, json=body)
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    with anthropic.Anthropic(api_key="test", max_retries=0, http_client=http) as client:
        try:
            client.messages.create(model="stub", max_tokens=1, messages=[])
        except anthropic.APIStatusError as raised:
            return raised.with_traceback(None)
    raise ValueError(f"status {status} is no error")


def echo(request, said, as_text):
    """Make an error that says `said` and quotes the request, as text (vLLM) or in JSON.

    FastAPI checks each type that a content may have, so the reason is in the last error.
    """
    place = ["body", "messages", len(request["messages"]) - 1, "content"]
    value = request["messages"][-1]["content"]
    first = {"type": "string_type", "loc": [*place, "str"], "msg": "Not a valid string"}
    last = {"type": "literal_error", "loc": [*place, "list", 0, "type"], "msg": said}
    errors = [{**first, "input": value}, {**last, "input": request}]
    if not as_text:
        return api_error(422, "", body={"detail": errors})
    lines = "\n".join(f"  {error}" for error in errors)
    text = f"2 validation errors:\n{lines}"
    return api_error(400, "", body={"error": {"message": text, "type": "Bad Request"}})


# --- Reading a request as the API does ---


to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def encoded(value, errors="surrogatepass"):
    """Encode `value` as the SDK sends it: compact JSON in UTF-8, not escaped."""
    return to_json(value).encode(errors=errors)


def copied(value):
    """Copy JSON deeply, four times as fast as `deepcopy`."""
    if isinstance(value, dict):
        return {key: copied(value[key]) for key in value}
    return [*map(copied, value)] if isinstance(value, list) else value


def by_place(make):
    """Return a function that maps `make` over a list of JSON values.

    It remembers what it made for the next list: a conversation grows at its end, so most
    parts of a request stand where they stood before. (It takes 1, 1.0 and true for one
    value, as Python does.)
    """
    last = []

    def mapped(values):
        nonlocal last
        new = [
            old if old and old[0] == value else (copied(value), make(value))
            for value, old in itertools.zip_longest(values, last[: len(values)])
        ]
        last = new + last[len(new) :]
        return [made for _, made in new]

    return mapped


def tokens(value):
    return int(len(encoded(value)) / BYTES_PER_TOKEN)


def count(system, tools, messages):
    """Count the tokens of a request, without our own keys in messages."""
    fixed = len(encoded([system or "", tools or [], []]))
    commas = max(0, len(messages) - 1)
    return int((fixed + sum(lengths_of(messages)) + commas) / BYTES_PER_TOKEN)


def blocks(content):
    """Return content as a list of blocks; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or []


def text_of(block):
    """The text of a block, a result or a reply."""
    inner = blocks(block.get("content"))
    return block.get("text") or "".join(part.get("text", "") for part in inner)


def calls_in(given):
    """The calls of a reply, none of an error."""
    content = given["content"] if isinstance(given, dict) else []
    return [block for block in content if block["type"] == "tool_use"]


def merge_turns(messages):
    """Merge neighbouring messages of one role into `(role, blocks)`, like the API."""
    return [
        (role, [block for message in group for block in blocks(message["content"])])
        for role, group in itertools.groupby(messages, key=lambda m: m["role"])
    ]


def with_roles(turns):
    """Each block of these turns, with its role."""
    return [[role, block] for role, content in turns for block in content]


def unmarked(data):
    """Remove cache markers from JSON bytes: they are not part of the conversation.

    Neither are the keys that a reply got as null from the SDK.
    """
    if not any(key in data for key in LEFT_OUT):
        return data
    return encoded(json.loads(data, object_hook=without_marker))


def without_marker(block):
    if not isinstance(block, dict):  # the API rejects it
        return block
    no_key = {"cache_control", *(k for k in IN_BLOCKS if block.get(k, 0) is None)}
    return {key: block[key] for key in block if key not in no_key}


def in_short(message):
    """Drop a message's cache markers, and make a single text block a string."""
    if not isinstance(message, dict) or not {"role", "content"} <= {*message}:
        return message  # the API rejects it
    role, content = message["role"], message["content"]
    if isinstance(content, list):
        content = [*map(without_marker, content)]
        if role == "user" and [*map(set, content)] == [{"type", "text"}]:
            content = content[0]["text"]
    return {"role": role, "content": content}


def compared(part):
    """How the API compares a part: without its markers; and if it has one."""
    data = encoded(part)
    return unmarked(data), MARKER in data


lengths_of = by_place(lambda message: len(encoded(in_short(message))))
markers_in = by_place(lambda part: encoded(part, errors="strict").count(MARKER))
compared_first = by_place(compared)  # all that comes before the messages
compared_blocks = by_place(compared)  # the messages' blocks, each with its role


def one_by_one(messages):
    """Undo the joining of neighbours: yield results and each text in short form."""
    for message in map(in_short, messages):
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else []
        texts = [p for p in parts if isinstance(p, dict) and p.get("type") == "text"]
        if (
            not texts
            or message["role"] != "user"
            or not all("text" in p for p in texts)
        ):
            yield message
            continue
        if results := [part for part in parts if part not in texts]:
            yield {"role": "user", "content": results}
        for before, part in zip([None, *parts], parts):
            if part in texts:
                apart = "\n\n" if before in texts else ""  # as agent.py joins them
                text = part["text"].removeprefix(apart)
                yield {"role": "user", "content": text}


def body_of(request):
    """The body that these arguments of `stream` send."""
    body = {key: request[key] for key in request if key not in CLIENT_ONLY}
    return body | (request.get("extra_body") or {})


# --- The conscience ---


def check(request, window=200_000, max_output=None, adaptive=True):
    """Raise `Refused` if the API would answer 400 to these arguments of `stream`.

    Values that the SDK cannot encode raise the same errors as there:
    `UnicodeEncodeError` for a lone surrogate, `TypeError` for an object that is not
    JSON.
    """
    body = body_of(request)
    messages = body.get("messages")
    parts = [{**body, "messages": []}, *(messages if type(messages) is list else [])]
    found = sum(markers_in(parts))
    betas = str(request.get("extra_headers"))
    for problem in problems(body, max_output, adaptive, betas):
        raise problem if isinstance(problem, Unplayed) else Refused(problem)
    if found > 4:
        most = "A maximum of 4 blocks with cache_control may be provided."
        raise Refused(f"{most} Found {found}.")
    length = count(body.get("system"), body.get("tools"), body["messages"])
    if length > window:
        raise TooLong(f"prompt is too long: {length} tokens > {window} maximum")


def problems(body, max_output, adaptive, betas=""):
    """Yield the problems of a request, texts or `Unplayed`; only the first is certain."""
    yield from in_settings(body, max_output, adaptive, betas)
    yield from in_tools(body.get("tools") or [])
    yield from in_content("system", blocks(body.get("system") or []), "system")
    yield from in_messages(body["messages"])
    turns = merge_turns(body["messages"])
    yield from in_order(turns, body.get("tools"))
    yield from in_pairs(turns)
    drops = (body.get("thinking") or {}).get("block_binding") == DROPS
    for where, block in [] if drops else Chain(body).read(to_last_thinking(turns)):
        yield (
            f"{where}: Invalid `signature` in `{block['type']}` block. The block is "
            "bound to a different conversation. Remove the block, or set `thinking."
            'block_binding.prefix_mismatch_behavior` to "drop_block".'
        )
    yield from in_latest(body["messages"])


def unknown_keys(at, given, known):
    return [f"{at}{k}: Extra inputs are not permitted" for k in given if k not in known]


def in_marker(where, marked):
    """Yield the problems of the cache marker on a request, tool or block."""
    marker = marked.get("cache_control")
    if marker is None:
        return
    kind = marker.get("type") if isinstance(marker, dict) else None
    if kind != "ephemeral":
        yield (
            f"{where}cache_control: Input tag '{kind}' found using 'type' does not "
            "match any of the expected tags: 'ephemeral'"
        )
    where += "cache_control.ephemeral."
    yield from unknown_keys(where, marker, {"type", "ttl"})
    if marker.get("ttl", "5m") not in ("5m", "1h"):
        yield f"{where}ttl: Input should be '5m' or '1h'"


def in_settings(body, max_output, adaptive, betas):
    yield from [f"{key}: Field required" for key in REQUIRED if body.get(key) is None]
    has_beta = {key for key in BETAS if re.search(BETAS[key], betas)}
    yield from unknown_keys("", body, KNOWN | has_beta)
    yield from [unplayed(key) for key in BETAS if body.get(key)]
    yield from in_marker("", body)
    asked = body["max_tokens"]
    if type(asked) is not int or asked < 0:
        yield "max_tokens: Input should be greater than or equal to 0"
    if asked == 0 and (body.get("output_config") or {}).get("format"):
        yield "max_tokens: 0 is not supported together with structured outputs"
    if max_output and asked > max_output:
        yield (
            f"max_tokens: {asked} > {max_output}, which is the maximum allowed number "
            f"of output tokens for {body['model']}"
        )
    if thinking := body.get("thinking"):
        if (kind := thinking.get("type")) != "adaptive":
            yield f'"thinking.type.{kind}" is not supported for this model.'
        if not adaptive:
            yield "adaptive thinking is not supported on this model"
        known = {"type", "display"} | ({"block_binding"} if BINDING in betas else set())
        yield from unknown_keys("thinking.adaptive.", thinking, known)
    choice = (body.get("tool_choice") or {"type": "auto"}).get("type")
    if choice not in ("auto", "none"):
        yield f"tool_choice: type `{choice}` is not supported for this model."


def unplayed(setting):
    """Make the error for a setting that only the API can play."""
    if setting == "thread":  # the SDK's tool runner then goes on without one
        code = "thread_unsupported_request"
        return Unplayed(NO_THREADS, error_code=code, unsupported=["thread"])
    forgets = setting in ("context_management", "compaction")
    return Unplayed((FORGETS if forgets else NOT_PLAYED).format(f"`{setting}`"))


def in_tools(tools):
    for index, tool in enumerate(tools):
        kind = str(tool.get("type") or "custom")
        where = f"tools.{index}.{kind}."
        if kind in OWN_TOOLS:
            if tool.get("name") != OWN_TOOLS[kind]:
                yield f"{where}name: Input should be '{OWN_TOOLS[kind]}'"
        elif re.fullmatch(OTHER_TOOLS, kind):
            yield Unplayed(NOT_PLAYED.format(f"tools of type `{kind}`"))
        elif kind != "custom":
            yield (
                f"tools.{index}: Input tag '{kind}' found using 'type' does not match "
                "any of the expected tags"
            )
        else:
            yield from in_tool(where, tool)
        yield from in_marker(where, tool)
    if len({tool["name"] for tool in tools}) < len(tools):
        yield "tools: Tool names must be unique."


def in_tool(where, tool):
    """Yield the problems of a tool that the agent has made itself."""
    if tool.get(OTHER_KEY):
        yield Unplayed(NOT_PLAYED.format(f"`{OTHER_KEY}` in a tool"))
    yield from unknown_keys(where, tool, TOOL_KEYS | {OTHER_KEY})
    if not re.fullmatch(TOOL_NAME, str(tool.get("name", ""))):
        yield f"{where}name: String should match pattern '{TOOL_NAME}'"
    if not isinstance(tool.get("input_schema"), dict):
        yield f"{where}input_schema: Field required"


def in_messages(messages):
    if not isinstance(messages, list):
        yield "messages: Input should be a valid list"
    if not messages:
        yield "messages: at least one message is required"
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            yield f"messages.{index}: {NO_OBJECT}"
        for key in ("role", "content"):
            if key not in message:
                yield f"messages.{index}.{key}: Field required"
        role, content = message["role"], message["content"]
        yield from unknown_keys(f"messages.{index}.", message, {"role", "content"})
        if role == "system" and index:
            yield Unplayed(NOT_PLAYED.format("system messages in a conversation"))
        if role not in ("user", "assistant"):
            yield f'messages: Unexpected role "{role}".'
        if not content or not isinstance(content, (str, list)):
            yield (
                f"messages.{index}: all messages must have non-empty content except "
                "for the optional final assistant message"
            )
        yield from in_content(f"messages.{index}.content", blocks(content), role)


def in_content(where, content, place):
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            yield f"{where}.{index}: {NO_OBJECT}"
        kind = str(block.get("type"))
        if re.fullmatch(OTHER_BLOCKS, kind):
            yield Unplayed(NOT_PLAYED.format(f"blocks of type `{kind}`"))
        if kind not in BLOCKS:
            yield f"{where}.{index}: Input tag '{kind}' does not match any expected tag"
        if place not in BLOCKS[kind][2]:
            yield f"{where}.{index}: `{kind}` blocks are not permitted in `{place}`"
        yield from in_block(f"{where}.{index}.{kind}.", block, kind)


def in_block(where, block, kind):
    required, optional, _ = BLOCKS[kind]
    marker = set() if kind in SIGNED_IN else {"cache_control"}
    yield from unknown_keys(where, block, {"type", *required} | optional | marker)
    yield from in_marker(where, block)
    for key, expected in required.items():
        if not isinstance(block.get(key), expected):
            yield f"{where}{key}: Field required, and of the right type"
    if kind == "text" and not block["text"]:
        yield "messages: text content blocks must be non-empty"
    if kind == "text" and not block["text"].strip():
        yield "messages: text content blocks must contain non-whitespace text"
    if kind == "tool_use" and not re.fullmatch(TOOL_NAME, block["name"]):
        yield f"{where}name: String should match pattern '{TOOL_NAME}'"
    if kind == "tool_result" and "content" in block:
        if not isinstance(block["content"], (str, list)):
            yield f"{where}content: Input should be a valid string or list"
        if isinstance(block["content"], list):
            yield from in_content(f"{where}content", block["content"], "result")


def in_order(turns, tools):
    if turns[0][0] != "user":
        yield 'messages: first message must use the "user" role'
    if turns[-1][0] != "user":
        yield (
            "This model does not support assistant message prefill. The conversation "
            "must end with a user message."
        )
    kinds = {block["type"] for _, content in turns for block in content}
    if kinds & {"tool_use", "tool_result"} and not tools:
        yield "Requests with `tool_use` or `tool_result` blocks must define tools"


def in_pairs(turns):
    """Yield the calls and results that are not paired, each call with the next turn."""
    calls = [[b["id"] for b in turn if b["type"] == "tool_use"] for _, turn in turns]
    every = [call for called in calls for call in called]
    if len(set(every)) < len(every):
        yield "messages: `tool_use` ids must be unique"
    for index, called in enumerate([[], *calls[:-1]]):
        content = turns[index][1]
        first = itertools.takewhile(lambda b: b["type"] == "tool_result", content)
        answered = {block["tool_use_id"] for block in first}
        if missing := [call for call in called if call not in answered]:
            yield (
                f"messages.{index - 1}: `tool_use` ids were found without "
                f"`tool_result` blocks immediately after: {', '.join(missing)}. Each "
                "`tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        yield from in_results(f"messages.{index}.content", content, called)


def in_results(where, content, called):
    seen = set()
    for index, block in enumerate(content):
        answers = block.get("tool_use_id")
        if answers and answers not in called:
            yield (
                f"{where}.{index}: unexpected `tool_use_id` found in `tool_result` "
                f"blocks: {answers}. Each `tool_result` block must have a "
                "corresponding `tool_use` block in the previous message."
            )
        if answers and answers in seen:
            yield (
                f"{where}.{index}: each `tool_use` must have a single result. Found "
                f"multiple `tool_result` blocks with id: {answers}"
            )
        seen.add(answers)


def in_latest(messages):
    """Yield a problem if the latest reply has lost some, but not all, of its thinking.

    Its signatures say how much it had. They were checked before.
    """
    replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    for index in replies[-1:]:
        content = blocks(messages[index]["content"])
        signed = [b[SIGNED_IN[b["type"]]] for b in content if b["type"] in SIGNED_IN]
        if any(signature.split(".")[2] != str(len(signed)) for signature in signed):
            yield (
                f"messages.{index}: `thinking` or `redacted_thinking` blocks in the "
                "latest assistant message cannot be modified"
            )


def to_last_thinking(turns):
    """The turns up to the last one with thinking; no signature after it can fail."""
    thinks = [any(b["type"] in SIGNED_IN for b in content) for _, content in turns]
    return turns[: len(turns) - thinks[::-1].index(True)] if any(thinks) else []


class Chain:
    """Read a conversation, and know to what a thinking block at its end is bound.

    A signature is `CONTEXT.PREVIOUS.COUNT.CHECKSUM`: a hash of the system prompt, the
    tools and every block before it that is not thinking; a hash of the signature before
    it, or "none"; how many the reply has; a hash of all that and of the thinking. So
    another process can verify it. The first in a request may have any PREVIOUS, because
    leaving out a leading run is allowed.
    """

    def __init__(self, body):
        fixed = [blocks(body.get("system")), body.get("tools") or []]
        self.context = hashlib.sha256(unmarked(encoded(fixed)))
        self.previous = None

    def read(self, turns):
        """Read all blocks, and yield each thinking block that does not belong."""
        data = (data for data, _ in compared_blocks(with_roles(turns)))
        for index, (_, content) in enumerate(turns):
            for position, block in enumerate(content):
                if not self.follow(block, next(data)):
                    yield f"messages.{index}.content.{position}", block

    def follow(self, block, data):
        """Read a block and its unmarked JSON; return False if it doesn't belong here."""
        if block["type"] not in SIGNED_IN:
            # an empty text cannot be sent back, so removing it is allowed
            if block["type"] != "text" or block["text"].strip():
                self.context.update(data)
            return True
        given = block[SIGNED_IN[block["type"]]]
        _, previous, number = [*given.split("."), "", ""][:3]
        valid = given == self.signature(block, self.previous or previous, number)
        self.previous = short_hash(given)
        return valid

    def extend(self, content):
        """Sign the thinking of a new reply, in place."""
        number = sum(block["type"] in SIGNED_IN for block in content)
        for block in content:
            if key := SIGNED_IN.get(block["type"]):
                block[key] = self.signature(block, self.previous or "none", number)
            self.follow(block, encoded(["assistant", block]))

    def signature(self, block, previous, number):
        bound = f"{self.context.hexdigest()[:16]}.{previous}.{number}"
        return f"{bound}.{short_hash(bound + block.get('thinking', ''))}"


def short_hash(text):
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


# --- The client ---


class StubClient:
    """Stands in for `anthropic.Anthropic` wherever a client is an argument.

    `replies` are queued, one for each request. When none is left, a request gets
    `always`, or raises EmptyQueue if that is None.
    `bodies` holds the arguments of every request. `requests` holds them in a shorter
    form: without cache markers, and with each text of the user's side as a message.
    `refused` holds the errors of invalid requests, and `too_long` those of requests
    that exceed the window; a fixture can assert that `refused` is empty. `unplayed`
    holds those that the stand-in can't play, since the last accepted one. A rejected
    request uses no reply, and one that forbids parallel calls gets a reply's calls one
    by one. A request for no tokens (`max_tokens` 0), which only writes
    the cache, uses only a queued error. `cache_from` is the smallest prompt in tokens
    that is cached; the API's is 512 to 4,096, depending on the model. Its usage reports
    the cache in every reply, or in every `reports`th one; 0: in none, as some providers.

    Two dials for other providers: `signs` is False if thinking is neither signed nor
    checked; `own_check` returns an error for a request, or None, and `rejected` has the
    requests that got one.

    A request for which `asks` returns True is kept in `asked`, and gets the next of
    `summaries`, which start over after the last; without any, the next in the queue.
    `usages` has the tokens of each answered request: those neither written to the cache
    nor read from it, those written, and those read. With `in_parts`, `requests` takes
    apart what agent.py has joined to one message; other agents join nothing.
    """

    def __init__(
        self,
        *replies,
        window=200_000,
        max_output=64_000,
        adaptive=True,
        always=None,
        cache_from=1_024,
        reports=1,
        asks=lambda request: False,
        summaries=(),
        in_parts=True,
    ):
        self.queue, self.always = deque(replies), always
        self.window, self.max_output, self.adaptive = window, max_output, adaptive
        self.bodies, self.requests, self.refused, self.too_long = [], [], [], []
        self.unplayed = []
        self.info: Any = None  # replaces `model_info`, see wire.py
        self.loaded: Any = None  # models and their windows, if it's an Ollama
        self.signs, self.own_check, self.rejected = True, None, []
        self.cached, self.cache_from, self.reports = set(), cache_from, reports
        self.asks, self.summaries = asks, itertools.cycle(summaries)
        self.asked, self.usages, self.in_parts = [], [], in_parts
        self.messages = Part(self, "messages", **self.calls())
        self.models = Part(self, "models", retrieve=self.retrieve)

    # --- What an agent calls ---

    @property
    def beta(self):
        """The same calls, which take `betas` as well."""
        calls = {name: partial(with_betas, call) for name, call in self.calls().items()}
        messages = Part(self, "beta.messages", **calls)
        return Part(self, "beta", messages=messages, models=self.models)

    def calls(self):
        names = "create", "stream", "count_tokens"
        return {name: getattr(self, name) for name in names}

    def with_options(self, **_):
        return self

    def copy(self, **options):
        return self.with_options(**options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    close = __exit__

    def unsupported(self, name, *_, **__):
        """Say that the SDK's client has this, but the stand-in hasn't."""
        raise AttributeError(f"The stand-in doesn't play `{name}`.")

    def stream(self, **request):
        return Stream(self, request)

    def create(self, stream=False, **request):
        if stream is True:
            self.check_streamed(request)
        answer = self.answer(request)
        return Events(answer) if stream is True else as_object(answer)

    def retrieve(self, model, **_):
        return as_object(self.model_info(model))

    def count_tokens(self, **request):
        parts = [request.get(key) for key in ("system", "tools", "messages")]
        return Object(input_tokens=count(*parts))

    # --- What a test calls ---

    def enqueue(self, *replies):
        """Add answers for the next requests: a `reply`, an exception, or a function.

        The function is called with the request and returns one of the other two.
        """
        self.queue.extend(replies)

    def model_info(self, model):
        """The answer of the models endpoint, as far as a program may rely on it."""
        types = {"adaptive": {"supported": self.adaptive}}
        return {
            "id": model,
            "type": "model",
            "display_name": model,
            "created_at": "2026-09-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": self.window,
            "max_tokens": self.max_output,
            "capabilities": {"thinking": {"supported": self.adaptive, "types": types}},
        }

    def loaded_models(self):
        """The answer of Ollama's `/api/ps`, which has no model that isn't loaded."""
        sizes = self.loaded.items()
        return {"models": [{"name": n, "context_length": w} for n, w in sizes]}

    def check_streamed(self, request):
        """Raise `Refused` for a request that the API does not stream."""
        if request.get("max_tokens") == 0:
            self.refused.append("max_tokens: 0 is not supported together with `stream`")
            raise Refused(self.refused[-1])

    def answer(self, request):
        """Return the message for `request`, a plain dict; raise like the SDK."""
        return self.finish(request, self.take(request))

    def take(self, request):
        """Record and check `request`; return or raise the next answer in the queue."""
        self.bodies.append(copied(request))
        messages = self.bodies[-1].get("messages")
        shorten = one_by_one if self.in_parts else partial(map, in_short)
        short = [*shorten(messages)] if isinstance(messages, list) else []
        self.requests.append({**self.bodies[-1], "messages": short})
        try:
            self.validate(request)
        except (TypeError, ValueError, Refused) as error:
            kept = {TooLong: self.too_long, Unplayed: self.unplayed}
            kept.get(type(error), self.refused).append(str(error))
            raise
        self.unplayed.clear()
        if request["max_tokens"] == 0 and not is_error(*[*self.queue][:1]):
            return reply(stop="max_tokens")
        given = self.next_for(request)
        if given is None:
            last = str(request["messages"][-1])[:500]
            raise EmptyQueue(f"no reply for request {len(self.requests)}: {last}")
        given = given(request) if callable(given) else given
        if isinstance(given, BaseException):
            raise given
        if (request.get("tool_choice") or {}).get("disable_parallel_tool_use"):
            return self.up_to_first_call(given)
        return given

    def up_to_first_call(self, given):
        """Shorten a reply with several calls, and queue the others as the next reply."""
        content = given["content"] if isinstance(given, dict) else []
        calls = [n for n, block in enumerate(content) if block["type"] == "tool_use"]
        if not calls[1:]:
            return given
        end = calls[0] + 1
        self.queue.appendleft({**given, "content": content[end:]})
        return {**given, "content": content[:end]}

    def validate(self, request):
        """Raise what the API raises if it rejects this request."""
        if self.own_check and (error := self.own_check(request)):
            self.rejected.append(request)
            raise error
        checked = request if self.signs else without_thinking(request)
        check(checked, self.window, self.max_output, self.adaptive)

    def next_for(self, request):
        """The next summary for a request that asks for one, else what is queued."""
        given = None
        if self.asks(request):
            self.asked.append(request)
            given = next(self.summaries, None)
        if given is None:
            given = self.queue.popleft() if self.queue else self.always
        return given

    def finish(self, request, given):
        """Turn `given`, a `reply`, into a message, with signatures and usage."""
        body, content = body_of(request), copied(given["content"])
        if self.signs and any(block["type"] in SIGNED_IN for block in content):
            chain = Chain(body)
            list(chain.read(merge_turns(body["messages"])))
            chain.extend(content)
        return {
            "id": f"msg_{len(self.requests):04}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            **given,
            "content": content,
            "stop_sequence": None,
            "usage": self.usage(body, content),
        }

    def usage(self, body, content):
        """Count the tokens; at least 3 after the last marker are uncached input."""
        total = count(body.get("system"), body.get("tools"), body["messages"])
        least = int(self.cache_from * BYTES_PER_TOKEN)
        known, marked, size = look_up(body, self.cached, least)
        read, ready = (min(total * part // size, total - 3) for part in (known, marked))
        if not self.reports or len(self.bodies) % self.reports:
            read = ready = 0
        self.usages.append([total - ready, ready - read, read])
        return {
            "input_tokens": total - ready,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": ready - read,
            "output_tokens": max(1, tokens(content)) if body["max_tokens"] else 0,
        }


def asks_for_summary(request):
    """Return True if `agent.py` asks for a summary with this request."""
    *_, newest = blocks(request["messages"][-1]["content"])
    return "these nine sections:" in newest.get("text", "")


def without_thinking(request):
    """Remove the thinking from a request, and keep its messages."""
    messages = [
        {
            **m,
            "content": [b for b in blocks(m["content"]) if b["type"] not in SIGNED_IN],
        }
        for m in request["messages"]
    ]
    return {**request, "messages": messages}


def wants_thinking(words, text=False):
    """A check that rejects calls without thinking, or if `text` without a text in it."""

    def check(request):
        for content in (blocks(message["content"]) for message in request["messages"]):
            thoughts = [b["thinking"] for b in content if b["type"] == "thinking"]
            kept = any(thoughts) if text else thoughts
            if not kept and any(block["type"] == "tool_use" for block in content):
                return api_error(400, words)

    return check


def knows_no_thinking(request):
    """The error of vLLM 0.14 for a request with thinking; None for another one."""
    said = "Input should be 'text', 'image', 'tool_use' or 'tool_result'"
    content = [block for m in request["messages"] for block in blocks(m["content"])]
    thinks = any(block["type"] == "thinking" for block in content)
    return echo(request, said, as_text=True) if thinks else None


class Part:
    """A part of the client, such as `client.messages`, with its calls."""

    def __init__(self, client, name, **calls):
        vars(self).update(calls)
        self._unsupported, self._name = client.unsupported, name

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._unsupported(f"client.{self._name}.{name}")


def with_betas(call, betas=None, extra_headers=None, **request):
    """Call with the header in which the SDK sends betas."""
    headers = dict(extra_headers or {})
    if isinstance(betas, list | tuple):
        headers["anthropic-beta"] = ",".join(betas)
    return call(**request, extra_headers=headers) if headers else call(**request)


def is_error(*queued):
    """Return True if the first queued answer is an exception or an error status."""
    return bool(queued) and isinstance(queued[0], (BaseException, tuple))


# --- The prompt cache ---


def look_up(body, cached, least=0):
    """Bytes of a request: read from the cache, up to the last marker, and in total.

    Only markers add an entry to the set `cached`, each for everything before it, if
    that has `least` bytes. A marker finds an entry at most LOOK_BACK positions before it.
    """
    before, running = "", hashlib.sha256()
    beginnings, entries = [], set()
    position = read = marked = size = 0
    parts = [*cache_order(body)]
    for index, (kind, data, is_marked) in enumerate(parts):
        position += bool(kind) and not (kind == before and kind in RUNS)
        before = kind
        size += len(data)
        running.update(data)
        beginnings.append((position, size, running.digest()))
        automatic = index == len(parts) - 1 and body.get("cache_control")
        if size >= least and (automatic or is_marked):
            near = (b for b in beginnings if position - b[0] <= LOOK_BACK)
            read = max([read, *(end for _, end, entry in near if entry in cached)])
            marked = size
            entries.add(running.digest())
    cached |= entries
    return read, marked, size


def cache_order(body):
    """Yield `(type, bytes, if marked)` in the order in which the cache compares parts."""
    first = [("", body["model"])]
    first += [("tool", tool) for tool in body.get("tools") or []]
    first += [("text", block) for block in blocks(body.get("system"))]
    # changing either loses the messages, but not the tools and the system prompt
    first.append(("", [body.get("thinking"), body.get("tool_choice")]))
    told = compared_first([part for _, part in first])
    yield from ((kind, *how) for (kind, _), how in zip(first, told))
    parts = with_roles(merge_turns(body["messages"]))
    told = compared_blocks(parts)
    yield from ((block["type"], *how) for (_, block), how in zip(parts, told))


# --- A reply in pieces ---


def events(message):
    """Yield the events that stream `message`, as plain dicts."""
    ending = "stop_reason", "stop_sequence", "stop_details"
    start = message | dict.fromkeys(ending) | {"content": []}
    output = {k: n for k, n in message["usage"].items() if k == "output_tokens"}
    start["usage"] = message["usage"] | dict.fromkeys(output, 1)
    yield {"type": "message_start", "message": start}
    for at, block in enumerate(message["content"]):
        empty, deltas = in_pieces(block)
        yield {"type": "content_block_start", "index": at, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    delta = {key: message.get(key) for key in ending}
    yield {"type": "message_delta", "delta": delta, "usage": output}
    yield {"type": "message_stop"}


def in_pieces(block):
    """Return a block as it is at first, and the pieces that fill it."""
    empty, deltas, kind = dict(block), [], block["type"]
    if kind in ("text", "thinking"):
        deltas = [{"type": f"{kind}_delta", kind: p} for p in split(block[kind])]
        empty[kind] = ""
    if "signature" in block:  # Ollama's thinking has none
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        empty["signature"] = ""
    if kind == "tool_use":
        pieces = split(json.dumps(block["input"]), 2)
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces]
        empty["input"] = {}
    return empty, deltas


def split(text, parts=3):
    """Split `text` into at most `parts` pieces, none of them empty."""
    size = -(-len(text) // parts)
    return [text[at : at + size] for at in range(0, len(text), size or 1)]


# --- The answer as the SDK gives it ---


class Object(SimpleNamespace):
    """A reply, or a part of one, with what the SDK's objects can do."""

    def __getattr__(self, name):
        if name in self.nulls():
            return None
        what = type(self).__name__
        raise AttributeError(f"'{what}' object has no attribute '{name}'")

    def __iter__(self):
        """Yield keys with their values, as `dict` takes them."""
        yield from (dict.fromkeys(self.nulls()) | vars(self)).items()

    def nulls(self):
        return NULLS.get(str(vars(self).get("type")), [])

    def model_dump(
        self, exclude_unset=False, exclude_none=False, exclude=(), include=None, **_
    ):
        """Return all as plain JSON, including what is None unless told not to."""
        options = {"exclude_unset": exclude_unset, "exclude_none": exclude_none}
        return {
            key: dumped(value, options)
            for key, value in (vars(self).items() if exclude_unset else self)
            if not (value is None and exclude_none)
            and key not in exclude
            and (include is None or key in include)
        }

    def to_dict(self, exclude_unset=True, **options):
        return self.model_dump(exclude_unset=exclude_unset, **options)

    def model_dump_json(self, indent=None, **options):
        style = {"ensure_ascii": False, "indent": indent}
        style["separators"] = (",", ": " if indent else ":")
        return json.dumps(self.model_dump(**options), **style)

    def to_json(self, indent=2, exclude_unset=True, **options):
        return self.model_dump_json(indent, exclude_unset=exclude_unset, **options)

    def to_param(self):
        """Return a reply as the message to append to the conversation."""
        return {"role": self.role, "content": [*self.content]}


class Block(Object):
    """A content block of a reply."""


class Usage(Object):
    """The tokens of a reply."""

    def nulls(self):
        return NULLS["usage"]


def dumped(value, options):
    if isinstance(value, Object):
        return value.model_dump(**options)
    return [dumped(v, options) for v in value] if type(value) is list else copied(value)


class Events:
    """The result of `create(stream=True)`: the events of a reply, as they are sent."""

    response = SimpleNamespace(headers={"content-type": "text/event-stream"})

    def __init__(self, answer):
        self.message = as_object(answer)
        self.left = self.read(events(answer))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    close = __exit__

    def __iter__(self):
        return self.left

    def read(self, sent):
        yield from map(as_object, sent)


class Stream(Events):
    """The result of `messages.stream`: the events, and the SDK's own ones for pieces."""

    def __init__(self, client, request):
        self.client, self.request = client, request

    def __enter__(self):
        if self.request.get("max_tokens") == 0:
            self.client.check_streamed(self.request)
        super().__init__(self.client.answer(self.request))
        return self

    def read(self, sent):
        so_far = ""
        for event in super().read(sent):
            if event.type == "message_stop":
                event.message = self.message
            if event.type == "content_block_stop":
                event.content_block = self.message.content[event.index]
            yield event
            if event.type == "content_block_start":
                so_far = ""
            if event.type == "content_block_delta":
                kind = event.delta.type.removesuffix("_delta")
                [(key, piece)] = event.delta.model_dump(exclude={"type"}).items()
                so_far += piece
                snapshot = {"snapshot": so_far} if kind in ("text", "thinking") else {}
                yield Object(type=kind, **{key: piece}, **snapshot)

    @property
    def text_stream(self):
        return (event.text for event in self if event.type == "text")

    @property
    def current_message_snapshot(self):
        return self.message

    def until_done(self):
        deque(self, 0)

    def get_final_message(self):
        self.until_done()
        return self.message

    def get_final_text(self):
        content = self.get_final_message().content
        return "".join(block.text for block in content if block.type == "text")


def as_object(value: Any) -> Any:
    """Give JSON attribute access, but not a call's input: `{"a": {"b": 1}}` has `.a.b`."""
    if isinstance(value, list):
        return [*map(as_object, value)]
    if not isinstance(value, dict):
        return value
    block = Block if value.get("type") in BLOCKS else Object
    kind = Usage if "output_tokens" in value else block
    return kind(**{k: v if k == "input" else as_object(v) for k, v in value.items()})
