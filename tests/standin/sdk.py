"""What a program finds as the package anthropic, which need not be installed.

Of the errors `stub.Refused` is raised, under each name that a status 400 has; the others
are there to be named after `except`.
"""

from types import ModuleType

import stub

NOT_GIVEN = object()  # an argument that the SDK does not send
REFUSED = "AnthropicError APIError APIStatusError BadRequestError"
NEVER = (
    "APIConnectionError APITimeoutError APIResponseValidationError AuthenticationError "
    "PermissionDeniedError NotFoundError ConflictError UnprocessableEntityError "
    "RequestTooLargeError ContentTooLargeError RateLimitError InternalServerError "
    "ServiceUnavailableError OverloadedError"
)


class BlockType(type):
    """The class ToolUseBlock has, as its instances, the blocks of type tool_use."""

    def __instancecheck__(cls, block):
        kind = str(getattr(block, "type", ""))
        return kind.replace("_", "") == cls.__name__.lower().removesuffix("block")


def type_named(name):
    """A name of `anthropic.types`: what is sent is a dict, a block has a class."""
    if name.startswith("_"):
        raise AttributeError(name)
    return dict if name.endswith("Param") else BlockType(name, (), {})


def package(client, asynchronous):
    """The package, as `sys.modules` has it; it makes this client, or the other."""
    makes = {"Anthropic": lambda *_, **__: client, "AsyncAnthropic": asynchronous}
    errors = dict.fromkeys(REFUSED.split(), stub.Refused)
    errors |= {name: type(name, (Exception,), {}) for name in NEVER.split()}
    module, types = ModuleType("anthropic"), ModuleType("anthropic.types")
    given = {"NOT_GIVEN": NOT_GIVEN, "omit": NOT_GIVEN, "NotGiven": object}
    vars(module).update(makes, types=types, **errors, **given)
    vars(types).update(__getattr__=type_named)
    return {"anthropic": module, "anthropic.types": types}
