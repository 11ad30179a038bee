"""Clear rarely, but a lot at a time (v5)."""

KEEP_RECENT = 3
MIN_SAVINGS = 20_000  # tokens
tool_name_map = {}  # tool names by the ids of their calls; the caller fills it


def micro_compact(messages: list) -> list:
    tool_results = []
    for i, msg in enumerate(messages):
        if msg["role"] == "user" and isinstance(msg.get("content"), list):
            for j, part in enumerate(msg["content"]):
                if isinstance(part, dict) and part.get("type") == "tool_result":
                    tool_results.append((i, j, part))
    if len(tool_results) <= KEEP_RECENT:
        return messages
    to_clear = [r for r in tool_results[:-KEEP_RECENT] if r[0] < len(messages) - 1]
    if sum(len(part["content"]) for _, _, part in to_clear) // 4 < MIN_SAVINGS:
        return messages
    for i, _, part in to_clear:
        if len(part.get("content", "")) > 100:
            tool_id = part.get("tool_use_id", "")
            tool_name = tool_name_map.get(tool_id, "unknown")
            part["content"] = f"[Previous: used {tool_name}]"
            for m in messages[i:]:
                if m["role"] == "assistant":
                    m["content"] = [b for b in m["content"] if b["type"] != "thinking"]
    return messages
