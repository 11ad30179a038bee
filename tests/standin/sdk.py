"""A stand-in for the package anthropic, which need not be installed.

`stub.Refused` is raised under every name for an error with status 400. The other errors
exist only so that a program can name them after `except`.
"""

from types import ModuleType

import stub

NOT_GIVEN = object()  # the SDK does not send an argument with this value
REFUSED = "AnthropicError APIError APIStatusError BadRequestError"
NEVER = (
    "APIConnectionError APITimeoutError APIResponseValidationError AuthenticationError "
    "PermissionDeniedError NotFoundError ConflictError UnprocessableEntityError "
    "RequestTooLargeError ContentTooLargeError RateLimitError InternalServerError "
    "ServiceUnavailableError OverloadedError"
)


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


def package(client, asynchronous):
    """Build the modules for `sys.modules`, whose classes return these clients."""
    makes = {"Anthropic": lambda *_, **__: client, "AsyncAnthropic": asynchronous}
    errors = dict.fromkeys(REFUSED.split(), stub.Refused)
    errors |= {name: type(name, (Exception,), {}) for name in NEVER.split()}
    module, types = ModuleType("anthropic"), ModuleType("anthropic.types")
    given = {"NOT_GIVEN": NOT_GIVEN, "omit": NOT_GIVEN, "NotGiven": object}
    vars(module).update(makes, types=types, **errors, **given)
    vars(types).update(__getattr__=type_named)
    return {"anthropic": module, "anthropic.types": types}
