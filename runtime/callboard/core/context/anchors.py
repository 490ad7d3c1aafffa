"""Where the prompt cache is told to remember: `cache_control` set into messages that are serialised already. Pure.

At most two of the four marks that the API takes stand here; the end of the tools and of the system prompt have the
others. It never parses what it can avoid to parse, and never changes anything but the one mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from callboard.core.context.view import Conversation
from callboard.words.values import Json

MARK: Json = {"type": "ephemeral"}
_MARK = b',"cache_control":{"type":"ephemeral"}'
_USER = b'{"role":"user"'
_UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})


def with_anchor(wire: bytes) -> bytes:
    """The message with a mark on its last block that can bear one; unchanged if none can."""
    if wire.startswith(_USER):  # all blocks of a user message can
        return wire[:-3] + _MARK + wire[-3:]
    blocks = cast("list[Json]", json.loads(wire)["content"])
    end = len(wire) - 2
    for block in reversed(blocks):
        if block.get("type") not in _UNCACHEABLE:
            return wire[: end - 1] + _MARK + wire[end - 1 :]
        end -= len(json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode()) + 1
    return wire


def anchored(conv: Conversation) -> list[bytes]:
    """All messages as they are sent, in pieces (`Messages.pieces`), marked at the newest user message and the one before.

    The newest is where this call's prefix is written. The one before was the newest at the call before: it is found
    even when a step added more blocks than the service looks back for (20).
    """
    marked: dict[int, bytes] = {}
    for back, message in enumerate(reversed(conv.messages), start=1):
        if message.role == "user":
            marked[len(conv.messages) - back] = with_anchor(message.wire)
        if len(marked) == 2:
            break
    return conv.messages.pieces(marked)


def anchored_list(blocks: Sequence[Json], mark: int | None = None) -> bytes:
    """System blocks or a tool list as compact JSON, with a mark on the entry at the index `mark`: on the last for
    None, on none for -1."""
    at = len(blocks) - 1 if mark is None else mark
    marked = [{**block, "cache_control": MARK} if place == at else block for place, block in enumerate(blocks)]
    return json.dumps(marked, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
