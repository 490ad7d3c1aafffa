"""A finished reply as the API's bytes: the events of a stream, in its order, or one JSON message.

Pure. A stream is a list of encoded events, so that a fault can stand at any place between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from callboard.adapters.rehearsal.replies import Reply
from callboard.adapters.rehearsal.tokens import Usage

Json = dict[str, object]

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_PIECE = 48
"""Characters of text in one delta."""
_JSON_PIECE = 64


def event(name: str, data: Json) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


def message(reply: Reply, *, message_id: str, model: str, usage: Usage) -> Json:
    """The whole message, for a request that does not stream."""
    blocks = [{name: value for name, value in block.items() if name != "raw_input"} for block in reply.blocks]
    if reply.cut and blocks and blocks[-1]["type"] == "tool_use":
        blocks[-1]["input"] = {}  # what was cut off never became an object
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
        "usage": usage.as_json(reply.output),
    }


def stream(reply: Reply, *, message_id: str, model: str, usage: Usage) -> list[bytes]:
    """The events of a streamed reply, `message_start` to `message_stop`."""
    opening: Json = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage.as_json(1),
    }
    events = [event("message_start", {"type": "message_start", "message": opening})]
    last = len(reply.blocks) - 1
    for index, block in enumerate(reply.blocks):
        events.extend(_block_events(dict(block), index, cut=reply.cut and index == last))
        if index == 0:
            events.insert(2, PING)
    ending = {
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
    }
    totals = usage.as_json(reply.output)
    for name in ("cache_creation", "service_tier"):
        totals.pop(name)
    events.append(event("message_delta", {"type": "message_delta", "delta": ending, "usage": totals}))
    events.append(event("message_stop", {"type": "message_stop"}))
    return events


def _stop_details(reply: Reply) -> Json | None:
    if reply.stop_reason != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": None}


def _block_events(block: Json, index: int, *, cut: bool) -> Iterator[bytes]:
    kind = block["type"]
    deltas: list[Json] = []
    opening: Json = block
    if kind == "text":
        opening = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": part} for part in _pieces(cast("str", block["text"]), _PIECE)]
    elif kind == "thinking":
        opening = {"type": "thinking", "thinking": "", "signature": ""}
        words = _pieces(cast("str", block["thinking"]), _PIECE)
        deltas = [{"type": "thinking_delta", "thinking": part} for part in words]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind == "tool_use":
        opening = {"type": kind, "id": block["id"], "name": block["name"], "input": {}}
        written = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
        raw = cast("str", block.get("raw_input", written))
        raw = raw[: len(raw) // 2] if cut else raw
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *_pieces(raw, _JSON_PIECE)]]
    yield event("content_block_start", {"type": "content_block_start", "index": index, "content_block": opening})
    for delta in deltas:
        yield event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
    yield event("content_block_stop", {"type": "content_block_stop", "index": index})


def _pieces(words: str, size: int) -> list[str]:
    """The text in pieces of about `size`, at most 400 of them: a long text comes in longer pieces."""
    size = max(size, -(-len(words) // 400))
    return [words[at : at + size] for at in range(0, len(words), size)]
