"""A rule for forgetting: clear all tool results but the newest three, as s06 does."""

CLEARED = "[Earlier tool result]"


def forget(messages):
    """Return the messages with a placeholder in each older, longer result."""
    results = [b for m in messages for b in blocks(m) if b["type"] == "tool_result"]
    old = {b["tool_use_id"] for b in results[:-3] if len(b["content"]) > 100}
    return [{**m, "content": cleared(m["content"], old)} for m in messages]


def blocks(message):
    """Return the blocks of a message; a typed one is text and has none."""
    return message["content"] if type(message["content"]) is list else []


def cleared(content, old):
    """Return the content of a message with placeholders in these results."""
    if type(content) is str:
        return content
    gone = {"content": CLEARED}
    return [{**b, **gone} if b.get("tool_use_id") in old else b for b in content]
