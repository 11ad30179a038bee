"""A rule for forgetting: over 400,000 characters, keep only what was read last."""

KEPT = 100_000  # characters of the newest messages
FULL = 400_000


def forget(messages):
    """Return the user's texts and the newest messages, once there is too much."""
    sizes = [len(str(message["content"])) for message in messages]
    if sum(sizes) <= FULL:
        return messages
    start = len(messages) - 1
    while sum(sizes[start - 1 :]) <= KEPT:
        start -= 1
    if type(messages[start]["content"]) is list and start > 0:
        start -= messages[start]["role"] == "user"  # a result needs its call
    typed = [m for m in messages[:start] if type(m["content"]) is str]
    return [*typed, *messages[start:]]
