"""A stand-in for the package anthropic, which need not be installed.

`stub.Refused` is raised for an error with status 400. The other errors exist so that a
program can name them after `except`; each has the base class that it has in the SDK.
"""

from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import stub

UNSUPPORTED = "beta_tool", "beta_async_tool", "AnthropicBedrock", "AnthropicVertex"
NOT_GIVEN = object()  # the SDK does not send an argument with this value
ERRORS = {
    "AnthropicError": stub.APIError,
    "APIError": stub.APIError,
    "APIStatusError": stub.APIStatusError,
    "BadRequestError": stub.Refused,
}
OTHERS = {  # the errors that have this base class
    "APIError": "APIConnectionError APIResponseValidationError",
    "APIConnectionError": "APITimeoutError",
    "APIStatusError": (
        "AuthenticationError PermissionDeniedError NotFoundError ConflictError "
        "UnprocessableEntityError ContentTooLargeError RateLimitError "
        "InternalServerError"
    ),
    "InternalServerError": "ServiceUnavailableError OverloadedError",
}
for base, names in OTHERS.items():
    ERRORS |= {name: type(name, (ERRORS[base],), {}) for name in names.split()}
ERRORS["RequestTooLargeError"] = ERRORS["ContentTooLargeError"]


def failure(name, text, **more):
    """Make an error of this name, for a request without an answer of the API."""
    error = ERRORS[name](text)
    response = SimpleNamespace(headers={}, **more)
    vars(error).update(message=text, body=None, response=response, **more)
    return error


def as_json(value):
    """A request as JSON: like the SDK, accept the blocks of a reply as objects."""
    if isinstance(value, str):  # as most values are
        return value
    if isinstance(value, dict):
        given = {key: value[key] for key in value if value[key] is not NOT_GIVEN}
        return {key: as_json(given[key]) for key in given}
    if isinstance(value, list | tuple):
        return [*map(as_json, value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


class BlockType(type):
    """Make blocks of type tool_use instances of the class ToolUseBlock, and so on."""

    def __instancecheck__(cls, block):
        kind = str(getattr(block, "type", ""))
        name = cls.__name__.lower().removeprefix("beta").removesuffix("block")
        return kind.replace("_", "") == name


def type_named(name):
    """Look up a name in `anthropic.types`: dict for parameters, a class for blocks."""
    if name.startswith("_"):
        raise AttributeError(name)
    return dict if name.endswith("Param") else BlockType(name, (), {})


def module(name, **names):
    """Build a module that looks installed."""
    made = ModuleType(name)
    vars(made).update(names, __spec__=ModuleSpec(name, None))
    return made


AT_ONCE = {"stream", "with_options", "copy"}  # an asynchronous client's, not awaited


class Async:
    """Makes the calls of a client or a stream asynchronous."""

    def __init__(self, plain):
        self.plain = plain

    def __getattr__(self, name):
        found = getattr(self.plain, name)
        if not callable(found):
            return as_async(found)

        async def call(*given, **more):
            return as_async(found(*given, **more))

        return (lambda **more: Async(found(**more))) if name in AT_ONCE else call

    async def __aenter__(self):
        return as_async(self.plain.__enter__())

    async def __aexit__(self, *error):
        self.plain.__exit__(*error)

    async def __aiter__(self):
        for one in self.plain:
            yield one


def as_async(found):
    """Wrap what has calls or pieces to wait for; leave a reply as it is."""
    kinds = stub.StubClient, stub.Part, stub.Events, Iterator
    return Async(found) if isinstance(found, kinds) else found


def package(client, asynchronous=None):
    """Build the modules for `sys.modules`, whose classes return this client."""

    def made(name, make):
        return type(name, (), {"__new__": lambda cls, *_, **options: make(**options)})

    asynchronous = asynchronous or (lambda **given: Async(client.with_options(**given)))
    names = {
        "Anthropic": made("Anthropic", client.with_options),
        "AsyncAnthropic": made("AsyncAnthropic", asynchronous),
        "Timeout": made("Timeout", dict),
    }
    names |= {name: partial(client.unsupported, name) for name in UNSUPPORTED}
    names |= {"NOT_GIVEN": NOT_GIVEN, "omit": NOT_GIVEN, "NotGiven": object}
    beta = module("anthropic.types.beta", __getattr__=type_named)
    types = module("anthropic.types", __getattr__=type_named, beta=beta)
    top = module("anthropic", types=types, **names, **ERRORS)
    return {one.__name__: one for one in (top, types, beta)}
