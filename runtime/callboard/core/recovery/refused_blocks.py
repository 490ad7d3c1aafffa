"""Blocks of a conversation that the service refuses: images, documents, and blocks of unknown kinds in replies. Pure.

A refusal such as `messages.4.content.1.image.source.url: Unable to download the file` names a block. The block is part
of every later request, so the service would refuse each of them. An edit of the view replaces it with a text that says
why; the history keeps it, and a person can undo the edit. Texts, thinking, and calls are never replaced.

A reply may have blocks of kinds that are unknown here: they are kept as they came. A gateway, or another service after
a switch, may refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from callboard.types.late_pattern import late_pattern
from callboard.types.messages import ESSENTIAL, Edit, ViewMessage
from callboard.types.records import Fault, Json

LEFT_OUT = "leave_out_refused"
"""Stage name in the records of these edits."""
_PLACE = late_pattern(r"\bmessages\.(\d+)(?:\.content\.(\d+))?")
_MEDIA = frozenset({"image", "document"})


def names_message(fault: Fault) -> bool:
    """Return True if the service refuses a message of the conversation, not a parameter of the request."""
    return fault.kind == "invalid" and _PLACE.search(fault.message) is not None


def refused_block(fault: Fault, messages: Sequence[ViewMessage], reader: str) -> Edit | None:
    """Return the edit that leaves out the block that a refusal names; None if that block may not be left out.

    `reader`: the model that the request was for. It gets no thinking of other models, so their blocks do not count.
    """
    named = _PLACE.search(fault.message) if fault.kind == "invalid" else None
    if named is None or named[2] is None or int(named[1]) >= len(messages):
        return None
    message = messages[int(named[1])]
    sent = [place for place, block in enumerate(message.blocks) if block.by in ("", reader)]
    if int(named[2]) >= len(sent):
        return None
    number = sent[int(named[2])]
    data = message.blocks[number].data
    if message.role == "assistant":
        kind = "" if data.get("type") in ESSENTIAL else f"block of kind {data.get('type')}"
        texts: list[str] = []
    else:
        parts = _parts(data)
        kind = next((str(part["type"]) for part in parts if part.get("type") in _MEDIA), "")
        texts = [str(part.get("text") or "") for part in parts if part.get("type") == "text"]
    if not kind:
        return None
    note = f"[{kind[0].upper()}{kind[1:]} left out: the service refused it: {fault.message}]"
    return Edit(kind="cleared", message=message.id, last=message.id, block=number, text="\n".join([*texts, note]))


def left_out_words(fault: Fault) -> str:
    """Return the reason of such an edit, for the user."""
    return f"left out what the service refuses to read: {fault.message}"


def _parts(block: Json) -> Sequence[Json]:
    """Return the block, or the parts of a result."""
    if block.get("type") != "tool_result":
        return [block]
    content = block.get("content")
    return cast("list[Json]", content) if isinstance(content, list) else []
