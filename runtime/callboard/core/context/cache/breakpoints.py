"""Prompt-cache marks: sets `cache_control` in messages that are already serialised. Pure.

Sets at most three of the four marks that the API accepts. The end of the tools and of the system prompt have the
others. Parses as little as possible, and changes nothing but the one mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from callboard.core.context.cache.cost import LOOK_BACK
from callboard.core.context.cache.tracker import EditCycle, milestone
from callboard.core.context.view.conversation import Conversation
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import ViewMessage
from callboard.types.records import Json, compact_json

FRESH = EditCycle()
"""State of a view without edits."""

MARK: Json = {"type": "ephemeral"}
_MARK = b',"cache_control":{"type":"ephemeral"}'
_USER = b'{"role":"user"'
_UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})


def with_anchor(wire: bytes) -> bytes:
    """Return the message with a mark on its last block that can have one; unchanged if no block can."""
    if wire.startswith(_USER):  # all blocks of a user message can
        return wire[:-3] + _MARK + wire[-3:]
    blocks = cast("list[Json]", json.loads(wire)["content"])
    end = len(wire) - 2
    for block in reversed(blocks):
        if block.get("type") not in _UNCACHEABLE:
            return wire[: end - 1] + _MARK + wire[end - 1 :]
        # Serialised exactly as when the message was made, so this is its length on the wire.
        end -= len(compact_json(block)) + 1
    return wire


def with_marks(conv: Conversation, indexes: Sequence[int], reader: str = "") -> list[bytes]:
    """Return all messages as they are sent to the model `reader`, with a cache mark at these indexes (`marks`).

    The messages are in pieces (`Messages.pieces`).
    """
    wires = {index: with_anchor(conv.messages[index].wire) for index in indexes}
    return conv.messages.pieces(wires, reader)


def marks(conv: Conversation, cycle: EditCycle = FRESH, limits: ModelLimits | None = None) -> list[int]:
    """Return the indexes of the messages with a mark, in order: at most three. `limits` None: no prefix is too small.

    - The newest user message: this call's prefix is stored there for the next call.
    - The milestone (`EditCycle.fixed`): the prefix that is still found after an edit. It stays cached because each call
      uses it.
    - Right after an edit, the user message before the first change, if a call stored its prefix there recently enough
      that it is still cached. It covers more than the milestone and replaces it. Also the next milestone, to be stored.
    - The user message before the newest, where the previous call stored its prefix. It is needed if more blocks were
      added since than the service looks back for, and also set if a mark is left over.
    """
    messages = conv.messages
    newest = len(messages) - 1 if messages and messages[-1].role == "user" else len(messages) - 2
    if newest < 0:
        return []
    fixed = messages.find(cycle.fixed) if cycle.fixed else None
    indexes = {newest}
    if cycle.touched:
        following = messages.find(milestone(cycle, messages, limits or ModelLimits()))
        standing = _still_standing(conv, cycle, (limits or ModelLimits()).cache_ttl)
        indexes |= {index for index in (standing, following) if index is not None}
    else:
        indexes |= {index for index in (fixed,) if index is not None}
        before = newest - 2
        # The service looks back 20 blocks from a mark, and would not find the prefix of the last call
        # (test_the_message_before_is_marked_as_well_when_more_blocks_came_than_are_looked_back_for).
        if before >= 0 and (len(indexes) < 2 or _blocks(messages[before + 1 : newest + 1]) >= LOOK_BACK):
            indexes.add(before)
    return [index for index in sorted(indexes) if limits is None or _is_long_enough(conv, index, limits)]


def without_mark(listed: bytes) -> bytes:
    """Return a list of `anchored_list` without its mark.

    Messages that need three marks leave only one for the blocks before them.
    """
    # The service refuses a fifth mark (test_a_request_bears_four_marks_at_most_and_three_leave_the_tools_without).
    return listed.removesuffix(_MARK + b"}]") + b"}]" if listed.endswith(_MARK + b"}]") else listed


def _still_standing(conv: Conversation, cycle: EditCycle, ttl: float) -> int | None:
    """Return the index of the last message before the first change at which a prefix is cached.

    Either the newest call that stored one there was less than `ttl` seconds ago, or it is the milestone.
    """
    messages = conv.messages
    changed, _ = messages.span(cycle.touched, cycle.touched)
    before = next((n for n in range(changed - 1, max(-1, changed - 3), -1) if messages[n].role == "user"), None)
    if before is not None and messages[-1].blocks[-1].at - messages[before].blocks[-1].at < ttl:
        return before
    fixed = messages.find(cycle.fixed) if cycle.fixed else None
    return fixed if fixed is not None and fixed < changed else None


def _blocks(messages: Sequence[ViewMessage]) -> int:
    return sum(len(message.blocks) for message in messages)


def _is_long_enough(conv: Conversation, index: int, limits: ModelLimits) -> bool:
    """Return True if the prefix up to this message is not smaller than the service caches."""
    # A mark on a prefix that is too small is wasted (test_a_prefix_smaller_than_is_cached_gets_no_mark).
    if conv.overhead >= limits.cache_minimum:
        return True
    upto = sum(message.tokens for message in conv.messages[: index + 1])
    return conv.overhead + upto >= limits.cache_minimum


def anchored_list(blocks: Sequence[Json], mark: int | None = None) -> bytes:
    """Return system blocks or a tool list as compact JSON, with a mark on the entry at the index `mark`.

    None marks the last entry, -1 none.
    """
    at = len(blocks) - 1 if mark is None else mark
    marked = [{**block, "cache_control": MARK} if place == at else block for place, block in enumerate(blocks)]
    return json.dumps(marked, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
