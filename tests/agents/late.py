"""A rule for forgetting: clear old results, but late, rarely, and not the newest."""

from itertools import accumulate

CLEARED = "[Earlier tool result]"
FULL = 300_000  # characters; a shorter list stays as it is
FREED = 80_000  # characters that clearing must free
KEPT = 40_000  # characters of the newest results, which stay: at least three


def forget(messages):
    """Return the messages with placeholders for old results, if that frees enough."""
    results = [b for m in messages for b in blocks(m) if b["type"] == "tool_result"]
    sizes = [len(block["content"]) for block in reversed(results)]
    kept = max(3, sum(size < KEPT for size in accumulate(sizes)))
    old = [b for b in results[: max(0, len(results) - kept)] if len(b["content"]) > 100]
    if len(str(messages)) < FULL or sum(len(b["content"]) for b in old) < FREED:
        return messages
    ids = {block["tool_use_id"] for block in old}
    return [{**m, "content": cleared(m["content"], ids)} for m in messages]


def blocks(message):
    """Return the blocks of a message; a typed one is text and has none."""
    return message["content"] if type(message["content"]) is list else []


def cleared(content, old):
    """Return the content of a message with placeholders in these results."""
    if type(content) is str:
        return content
    gone = {"content": CLEARED}
    return [{**b, **gone} if b.get("tool_use_id") in old else b for b in content]
