"""What of a message is sent to a model: all that stands in it, except thinking of another model. Pure.

A service takes thinking only from the model that signed it. Each thinking block says by whom it is (`Block.by`), and is
left out for everybody else: after a switch to a fallback, and on the way back. Nothing is edited: the journal and the
view keep it, and the same reader is sent the same bytes at every call, so that its cached prefix stands.

The other thing left out is a call of the service's own tools that has no result, once the conversation has gone on
with a user message: the service paused in the middle of it, the reply was given up, and it would refuse the history for
ever. A message with calls of ours is never touched so: there the service may still be at work.
"""

from __future__ import annotations

from callboard.core.context.view.blocks import is_call, is_service_call, serialise
from callboard.words.context import Block, Message

UNANSWERED = ""
"""Stands among the `writers` of a message for a call of the service's that has no result: nobody is sent it."""


def writers(message: Message) -> frozenset[str]:
    """Whose blocks are in a message that are not sent to everybody. Empty for nearly all."""
    if not message.private:
        return frozenset()
    found = {block.by for block in message.blocks if block.by}
    return frozenset({*found, UNANSWERED}) if _unanswered(message) else frozenset(found)


def wire_for(message: Message, reader: str, *, last: bool = False) -> bytes:
    """The message's bytes as `reader` is sent it (empty: as it stands); nothing when nothing of it is left.

    `last`: it ends the conversation, and goes back as it stands: the service wants to go on with it.
    """
    if not reader or not message.private:
        return message.wire
    open_calls = frozenset[str]() if last else _unanswered(message)
    if not open_calls and all(block.by in ("", reader) for block in message.blocks):
        return message.wire
    kept = tuple(block for block in message.blocks if _is_sent(block, reader, open_calls))
    return serialise(message.role, kept) if kept else b""


def _is_sent(block: Block, reader: str, open_calls: frozenset[str]) -> bool:
    if block.by and block.by != reader:
        return False
    return not open_calls or not is_service_call(block) or str(block.data.get("id")) not in open_calls


def _unanswered(message: Message) -> frozenset[str]:
    """Ids of the service's own calls in it that have no result there."""
    if not any(map(is_service_call, message.blocks)) or any(map(is_call, message.blocks)):
        return frozenset()
    asked = {str(block.data.get("id")) for block in message.blocks if is_service_call(block)}
    return frozenset(asked - {str(block.data.get("tool_use_id")) for block in message.blocks})
