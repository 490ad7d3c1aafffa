"""Where the prompt cache is told to remember: `cache_control` set into messages that are serialised already. Pure.

At most two of the four marks that the API takes stand here; the end of the tools and of the system prompt have the
others. It never parses what it can avoid to parse, and never changes anything but the one mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from callboard.core.context.cache.cost import LOOK_BACK
from callboard.core.context.cache.cycle import Cycle, milestone
from callboard.core.context.view.conversation import Conversation
from callboard.words.context import Message
from callboard.words.specs import ModelLimits
from callboard.words.values import Json

FRESH = Cycle()
"""Nothing was edited yet."""

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


def anchored(
    conv: Conversation, cycle: Cycle = FRESH, limits: ModelLimits | None = None, reader: str = ""
) -> list[bytes]:
    """All messages as the model `reader` is sent them, in pieces (`Messages.pieces`), a mark at each of `marks`."""
    wires = {index: with_anchor(conv.messages[index].wire) for index in marks(conv, cycle, limits)}
    return conv.messages.pieces(wires, reader)


def marks(conv: Conversation, cycle: Cycle = FRESH, limits: ModelLimits | None = None) -> list[int]:
    """Indexes of the messages that bear a mark, in order: three at most. `limits` None: no prefix is too small.

    - The newest user message: there this call's prefix is stored for the next.
    - The milestone (`Cycle.fixed`): what is found again behind an edit, kept alive by being used at each call.
    - Right after an edit the user message before the first change, if a call stored its prefix there so lately that it
      is still remembered: it covers more than the milestone, and takes its place. And the next milestone, to be stored.
    - The user message before the newest, where the call before stored its prefix: needed if more blocks came since
      than the service looks back for, and set without need where a mark is left over.
    """
    messages = conv.messages
    newest = len(messages) - 1 if messages and messages[-1].role == "user" else len(messages) - 2
    if newest < 0:
        return []
    fixed = messages.find(cycle.fixed) if cycle.fixed else None
    found = {newest}
    if cycle.touched:
        following = messages.find(milestone(cycle, messages, limits or ModelLimits()))
        standing = _still_standing(conv, cycle, (limits or ModelLimits()).cache_ttl)
        found |= {index for index in (standing, following) if index is not None}
    else:
        found |= {index for index in (fixed,) if index is not None}
        before = newest - 2
        if before >= 0 and (len(found) < 2 or _blocks(messages[before + 1 : newest + 1]) >= LOOK_BACK):
            found.add(before)
    return [index for index in sorted(found) if limits is None or _is_long_enough(conv, index, limits)]


def unmarked(listed: bytes) -> bytes:
    """A list of `anchored_list` without its mark: messages that need three leave only one for what stands before."""
    return listed.removesuffix(_MARK + b"}]") + b"}]" if listed.endswith(_MARK + b"}]") else listed


def _still_standing(conv: Conversation, cycle: Cycle, ttl: float) -> int | None:
    """The last message in front of the first change at which a prefix is remembered: the newest call that stored one
    there was less than `ttl` seconds ago, or the milestone."""
    messages = conv.messages
    changed, _ = messages.span(cycle.touched, cycle.touched)
    before = next((n for n in range(changed - 1, max(-1, changed - 3), -1) if messages[n].role == "user"), None)
    if before is not None and messages[-1].blocks[-1].at - messages[before].blocks[-1].at < ttl:
        return before
    fixed = messages.find(cycle.fixed) if cycle.fixed else None
    return fixed if fixed is not None and fixed < changed else None


def _blocks(messages: Sequence[Message]) -> int:
    return sum(len(message.blocks) for message in messages)


def _is_long_enough(conv: Conversation, index: int, limits: ModelLimits) -> bool:
    """The prefix up to this message is not smaller than the service caches."""
    if conv.overhead >= limits.cache_minimum:
        return True
    upto = sum(message.tokens for message in conv.messages[: index + 1])
    return conv.overhead + upto >= limits.cache_minimum


def anchored_list(blocks: Sequence[Json], mark: int | None = None) -> bytes:
    """System blocks or a tool list as compact JSON, with a mark on the entry at the index `mark`: on the last for
    None, on none for -1."""
    at = len(blocks) - 1 if mark is None else mark
    marked = [{**block, "cache_control": MARK} if place == at else block for place, block in enumerate(blocks)]
    return json.dumps(marked, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
