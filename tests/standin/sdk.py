"""A stand-in for the package anthropic, which need not be installed.

`stub.Refused` is raised for an error with status 400. The other errors exist so that a
program can name them after `except`; each has the base class that it has in the SDK.
"""

from importlib.machinery import ModuleSpec
from types import ModuleType

import stub

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


class BlockType(type):
    """Make blocks of type tool_use instances of the class ToolUseBlock, and so on."""

    def __instancecheck__(cls, block):
        kind = str(getattr(block, "type", ""))
        return kind.replace("_", "") == cls.__name__.lower().removesuffix("block")


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


def package(client, asynchronous):
    """Build the modules for `sys.modules`, whose classes return these clients."""
    makes = {
        "Anthropic": lambda *_, **options: client.with_options(**options),
        "AsyncAnthropic": asynchronous,
    }
    given = {"NOT_GIVEN": NOT_GIVEN, "omit": NOT_GIVEN, "NotGiven": object}
    types = module("anthropic.types", __getattr__=type_named)
    top = module("anthropic", types=types, **makes, **ERRORS, **given)
    return {"anthropic": top, "anthropic.types": types}
