"""Blocks and messages of the view: creation, serialisation (once), and predicates. Pure.

A block's `data` never changes, and a message never grows in place. Each change makes a new message with its own bytes
and tokens, so that a request needs no further serialising or counting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal, cast

from callboard.core.context.view.tokens import estimate_block
from callboard.types.messages import Placed, Source, ViewBlock, ViewMessage
from callboard.types.records import Json


def serialise(role: str, blocks: Sequence[ViewBlock]) -> bytes:
    """Return a message as it is sent to the API: compact JSON in UTF-8."""
    body = b",".join(dumped(block.data) for block in blocks)
    return b'{"role":"%s","content":[%s]}' % (role.encode(), body)


def make_message(id: int, role: Literal["user", "assistant"], blocks: tuple[ViewBlock, ...], turn: str) -> ViewMessage:
    """Make a message from these blocks."""
    tokens = sum(block.tokens for block in blocks)
    return ViewMessage(id, role, blocks, tokens, serialise(role, blocks), turn, any(map(is_private, blocks)))


def make_block(
    data: Json, source: Source, at: float, *, pinned: bool = False, compactable: bool = True, by: str = ""
) -> ViewBlock:
    """Make a block with its token estimate. `by`: the model that wrote it; kept only for thinking."""
    return ViewBlock(data, source, estimate_block(data), at, pinned, compactable, by if is_thinking(data) else "")


def is_call(block: ViewBlock) -> bool:
    """Return True for a call of one of the runtime's tools."""
    return block.data.get("type") == "tool_use"


def is_private(block: ViewBlock) -> bool:
    """Return True if the block is not sent to every model (`sending`)."""
    return bool(block.by) or is_service_call(block)


def is_service_call(block: ViewBlock) -> bool:
    """Return True for a call of one of the service's own tools."""
    return block.data.get("type") in ("server_tool_use", "mcp_tool_use")


def is_thinking(data: Json) -> bool:
    """Return True for a block that is sent back only to the model that signed it."""
    return data.get("type") in ("thinking", "redacted_thinking")


def placed_block(item: Placed, at: float, *, pinned: bool) -> ViewBlock:
    """Return the block that an event carries."""
    return make_block(item.data, item.source, at, pinned=pinned, compactable=item.compactable, by=item.by)


def joined(message: ViewMessage, blocks: tuple[ViewBlock, ...], turn: str) -> ViewMessage:
    """Return a message with more blocks after its own. New results are moved up, after the existing results."""
    whole = (*message.blocks, *blocks)
    ordered = results_first(whole)
    if ordered != whole:
        return make_message(message.id, message.role, ordered, turn or message.turn)
    wire = message.wire[:-2] + b"," + b",".join(dumped(block.data) for block in blocks) + b"]}"
    tokens = message.tokens + sum(block.tokens for block in blocks)
    private = message.private or any(map(is_private, blocks))
    return ViewMessage(message.id, message.role, whole, tokens, wire, turn or message.turn, private)


def results_first(blocks: tuple[ViewBlock, ...]) -> tuple[ViewBlock, ...]:
    """Return results, then the rest. Stable: an existing result never changes its index, so an edit keeps its
    target."""
    return (*(b for b in blocks if is_result(b)), *(b for b in blocks if not is_result(b)))


def is_result(block: ViewBlock) -> bool:
    """Return True for the result of a call."""
    return block.data.get("type") == "tool_result"


def is_empty(data: Json) -> bool:
    """Return True for a text block without text: the API rejects it."""
    return data.get("type") == "text" and not str(data.get("text", "")).strip()


def calls_of(message: ViewMessage) -> Iterator[Json]:
    """Yield the calls in a message."""
    return (block.data for block in message.blocks if block.data.get("type") == "tool_use")


def result_text(block: ViewBlock) -> str:
    """Return all text of a result."""
    content = block.data.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def is_plain(block: ViewBlock) -> bool:
    """Return True for a result that contains only text."""
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return isinstance(content, str) or (bool(parts) and all(part.get("type") == "text" for part in parts))


def dumped(data: Json) -> bytes:
    """Return one block as it is sent."""
    # A lone surrogate has no UTF-8: it becomes "?" rather than a request that nobody can read.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
