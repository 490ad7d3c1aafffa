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


def anchored(conv: Conversation, cycle: Cycle = _FRESH, prices: Prices = _USUAL) -> list[bytes]:
    """All messages as they are sent, in pieces (`Messages.pieces`), marked at the places of `marks`."""
    wires = {index: with_anchor(conv.messages[index].wire) for index in marks(conv, cycle, prices)}
    return conv.messages.pieces(wires)


def marks(conv: Conversation, cycle: Cycle = _FRESH, prices: Prices = _USUAL) -> list[int]:
    """Indexes of the messages that bear a mark, in order: at most three.

    Always the newest user message, where this call's prefix is stored. Behind an edit: the milestone up to which the
    prefix still stands, and the next one. Else the milestone, which lives on by being used; and the user message before
    the newest, where the newest was stored at the call before: needed if a step added more blocks than the service
    looks back for, and set without need where a mark is left.
    """
    messages = conv.messages
    if not messages:
        return []
    newest = len(messages) - 1 if messages[-1].role == "user" else len(messages) - 2
    kept = messages.find(cycle.fixed) if cycle.fixed else None
    found = [newest]
    if cycle.touched:
        stands = kept is not None and messages[kept].id < cycle.touched
        following = messages.find(milestone(cycle, messages, prices))
        found += [index for index in (kept if stands else None, following) if index is not None]
        return _in_order(conv, found, cycle.overhead_cached)
    ...


def anchored_list(blocks: Sequence[Json], mark: int | None = None) -> bytes:
    """System blocks or a tool list as compact JSON, with a mark on the entry at the index `mark`; None: on the last."""
    at = len(blocks) - 1 if mark is None else mark
    marked = [{**block, "cache_control": MARK} if place == at else block for place, block in enumerate(blocks)]
    return json.dumps(marked, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
