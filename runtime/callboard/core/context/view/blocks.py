"""Blocks and messages of the view: how they are made, serialised once, and told apart. Pure.

A block's `data` is never changed, a message never grows in place: each change makes a new one with its own bytes and
tokens, so that nothing has to be serialised or measured again for a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal, cast

from callboard.core.context.view.tokens import estimate_block
from callboard.words.context import Block, Message, Placed, Source
from callboard.words.values import Json


def serialise(role: str, blocks: Sequence[Block]) -> bytes:
    """A message as the API gets it: compact JSON in UTF-8."""
    body = b",".join(dumped(block.data) for block in blocks)
    return b'{"role":"%s","content":[%s]}' % (role.encode(), body)


def make_message(id: int, role: Literal["user", "assistant"], blocks: tuple[Block, ...], turn: str) -> Message:
    """A message of these blocks."""
    tokens = sum(block.tokens for block in blocks)
    return Message(id, role, blocks, tokens, serialise(role, blocks), turn, any(map(is_private, blocks)))


def make_block(
    data: Json, source: Source, at: float, *, pinned: bool = False, compactable: bool = True, by: str = ""
) -> Block:
    """A block with its estimate. `by`: the model that was asked, kept of thinking only."""
    return Block(data, source, estimate_block(data), at, pinned, compactable, by if is_thinking(data) else "")


def is_call(block: Block) -> bool:
    """A call of one of our tools."""
    return block.data.get("type") == "tool_use"


def is_private(block: Block) -> bool:
    """It is not sent to every model (`sending`)."""
    return bool(block.by) or is_service_call(block)


def is_service_call(block: Block) -> bool:
    """A call of one of the service's own tools."""
    return block.data.get("type") in ("server_tool_use", "mcp_tool_use")


def is_thinking(data: Json) -> bool:
    """A block that only the model that signed it is sent again."""
    return data.get("type") in ("thinking", "redacted_thinking")


def placed_block(item: Placed, at: float, *, pinned: bool) -> Block:
    """The block that an event carries."""
    return make_block(item.data, item.source, at, pinned=pinned, compactable=item.compactable, by=item.by)


def joined(message: Message, blocks: tuple[Block, ...], turn: str) -> Message:
    """A message with more blocks behind its own; results move up, behind the results that are there."""
    whole = (*message.blocks, *blocks)
    ordered = results_first(whole)
    if ordered != whole:
        return make_message(message.id, message.role, ordered, turn or message.turn)
    wire = message.wire[:-2] + b"," + b",".join(dumped(block.data) for block in blocks) + b"]}"
    tokens = message.tokens + sum(block.tokens for block in blocks)
    private = message.private or any(map(is_private, blocks))
    return Message(message.id, message.role, whole, tokens, wire, turn or message.turn, private)


def results_first(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Results, then the rest. Stable: a result never changes its index once it stands, so an edit keeps its target."""
    return (*(b for b in blocks if is_result(b)), *(b for b in blocks if not is_result(b)))


def is_result(block: Block) -> bool:
    """It is the result of a call."""
    return block.data.get("type") == "tool_result"


def is_empty(data: Json) -> bool:
    """A text block that says nothing: the API takes none."""
    return data.get("type") == "text" and not str(data.get("text", "")).strip()


def calls_of(message: Message) -> Iterator[Json]:
    """The calls that stand in a message."""
    return (block.data for block in message.blocks if block.data.get("type") == "tool_use")


def result_text(block: Block) -> str:
    """All text of a result."""
    content = block.data.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def is_plain(block: Block) -> bool:
    """A result that is text and nothing else."""
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return isinstance(content, str) or (bool(parts) and all(part.get("type") == "text" for part in parts))


def dumped(data: Json) -> bytes:
    """One block as it is sent."""
    # A lone surrogate has no UTF-8: it becomes "?" rather than a request that nobody can read.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
