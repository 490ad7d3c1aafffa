"""Stages after every pipeline, for content that is too large by itself: a newest message, and images. Pure.

`persist_newest` writes the parts of the newest message to files when nothing else makes the view fit: results that the
model has not read, then texts of others, then the person's, and pinned texts last. The file contains the whole text;
beginning and end stay in the view. `drop_old_images` keeps a request within the service's limits for images, and drops
the oldest first. Neither touches content that would not become smaller, or the model's own text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.context.oversize import file_of
from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.results import PERSISTED, persisted_mark, words_of
from callboard.core.context.summary.folding import tail_start
from callboard.core.context.view.conversation import Conversation, message_tokens
from callboard.core.context.view.invariants import pins
from callboard.core.context.view.messages import calls_of, images_of, is_result, result_text
from callboard.core.context.view.tokens import FEW, MOST, SIDE_OF_MANY, estimate_block, image_bytes, image_size
from callboard.core.keys import count_words
from callboard.core.messaging.envelopes import KEPT, file_reference
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Edit, ViewBlock, ViewMessage
from callboard.types.records import Json

NEWEST: Mapping[str, Any] = MappingProxyType({"force": False, "alone": False})
"""Both are set by the pipeline. `force`: the service refused the view. `alone`: the newest exchange alone is over the
budget, so that nothing else could help."""
IMAGES: Mapping[str, Any] = MappingProxyType({"force": False})
LEFT_OUT = "[Older image left out]"
TOGETHER = 24 * 1024 * 1024
"""Characters of all images of a request in base64: the service accepts 32 MB, including text."""
_MOST_OF_LARGE = 600
"""Maximum number of images in a request to a model whose window is over `_LARGE` tokens."""
_LARGE = 200_000
_PREVIEWS = (2_000, 400, 80)
"""Characters of a beginning (and of an end) that stay. The smaller values are used if many parts do not fit
otherwise."""
_SMALL = 2_000
"""Characters up to which content is not written to a file."""
_ENOUGH = 70
"""Percentage of the view, or of the budget, that is kept after a refusal."""


class _Part(NamedTuple):
    """A block that can be written to a file, and its position."""

    message: ViewMessage
    place: int
    block: ViewBlock


def persist_newest(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Write parts of the newest message, and then pinned texts, to files, largest first, until the view fits."""
    settings = {**NEWEST, **params}
    surplus = _surplus(view, budget, settings)
    parts = list(_parts(view.messages)) if surplus > 0 else []
    edits: list[Edit] = []
    for preview in _PREVIEWS:
        edits, saved = _edits_to_files(parts, preview, surplus, situation.folder)
        if saved >= surplus:
            break
    return edits or None


def most_images(limits: ModelLimits) -> int:
    """Return the images that a request to a model may have."""
    return MOST if limits.window <= _LARGE else _MOST_OF_LARGE


def drop_old_images(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Drop images that are too many, too large for their number, or too large together, oldest first.

    A view is checked if its newest message added an image, or if it has too many for the model in use: no other view
    can exceed these limits for the first time. `force`: drop all but the newest message's.
    """
    newest = view.messages.last
    if newest is None or not view.messages.images:
        return None
    force = bool(params.get("force"))
    most = most_images(situation.limits)
    added = any(True for block in newest.blocks for _ in images_of(block))
    if not (force or added or view.messages.images > most):
        return None
    parts = [
        _Part(message, place, block)
        for message in view.messages
        if message.role == "user"
        for place, block in enumerate(message.blocks)
        if any(True for _ in images_of(block))
    ]
    gone = [part for part in parts if part.message is not newest] if force else _too_many(parts, newest, most)
    return [_without_images(part) for part in gone] or None


def blame(view: Conversation, budget: int) -> str:
    """Return a description of the content that is too large, for a person to read."""
    tokens = message_tokens(view)
    if tokens <= budget:
        return f"by our count it has {tokens:,} of {budget:,} tokens that may be sent, but the service counts more"
    if budget <= view.overhead // 10:
        overhead = count_words(view.overhead, "token")
        return f"the system prompt and the tools take {overhead}, which leaves {budget:,} for messages"
    newest = view.messages[tail_start(view.messages) :]
    names = {str(call.get("id")): str(call.get("name")) for message in newest for call in calls_of(message)}
    blocks = [*(block for message in newest for block in message.blocks), *pins(view.messages)]
    largest = max(blocks, key=lambda block: block.tokens, default=None)
    if largest is None:
        return f"it has {count_words(tokens, 'token')}, and at most {budget:,} may be sent"
    of = names.get(str(largest.data.get("tool_use_id")), "")
    subject = (
        f"a result of {of}" if of else f"{'words' if largest.data.get('type') == 'text' else 'a block'} of source "
    )
    subject = subject if of else subject + largest.source
    size = f"it has {count_words(tokens, 'token')}, and at most {budget:,} may be sent"
    return f"{size}; the largest part is {subject} ({count_words(largest.tokens, 'token')})"


def newest_alone(view: Conversation) -> int:
    """Return the tokens of the newest exchange, which can be neither summarised nor dropped."""
    return sum(message.tokens for message in view.messages[tail_start(view.messages) :])


def _surplus(view: Conversation, budget: int, settings: Json) -> int:
    """Return the number of tokens that must be removed."""
    if settings["alone"]:
        return newest_alone(view) - budget // 2 if newest_alone(view) > budget else 0
    size = message_tokens(view)
    return size - min(size, budget) * _ENOUGH // 100 if settings["force"] else size - budget


def _parts(messages: Sequence[ViewMessage]) -> Iterator[_Part]:
    """Yield the parts that can be written to a file, in the order of removal."""
    newest = messages[-1] if messages and messages[-1].role == "user" else None
    own = [_Part(newest, place, block) for place, block in enumerate(newest.blocks)] if newest else []
    marked = {id(block) for block in pins(messages)}
    pinned = [
        _Part(message, place, block)
        for message in messages
        if message is not newest
        for place, block in enumerate(message.blocks)
        if id(block) in marked
    ]
    yield from sorted((part for part in (*own, *pinned) if _is_large(part.block)), key=lambda part: _rank(part, newest))


def _rank(part: _Part, newest: ViewMessage | None) -> tuple[int, int]:
    block = part.block
    if block.pinned or part.message is not newest:
        return 3, -block.tokens
    return (0 if is_result(block) else 2 if block.source == "person" else 1), -block.tokens


def _is_large(block: ViewBlock) -> bool:
    """Return True if the block is unreduced and large enough for a file."""
    if len(words_of(block)) <= _SMALL:
        return False
    if is_result(block):
        return not PERSISTED.match(result_text(block))
    return block.data.get("type") == "text" and block.source != "compactor" and not KEPT.match(words_of(block))


def _edits_to_files(parts: Sequence[_Part], preview: int, surplus: int, folder: str) -> tuple[list[Edit], int]:
    """Return the edits that write parts to files until that is enough, and the tokens that they save."""
    edits: list[Edit] = []
    saved = 0
    for part in parts:
        if saved >= surplus:
            break
        edit, data = _to_file(part, preview, folder)
        saving = part.block.tokens - estimate_block(data)
        if saving > 0:
            edits.append(edit)
            saved += saving
    return edits, saved


def _to_file(part: _Part, preview: int, folder: str) -> tuple[Edit, Json]:
    data = part.block.data
    if is_result(part.block):
        path = f"{folder}/{file_of(str(data.get('tool_use_id')))}"
        text = persisted_mark(path, result_text(part.block)[:preview])
        stays = list(images_of(part.block))
        content: Any = [{"type": "text", "text": text}, *stays] if stays else text
        return _edit(part, "persisted", text, path), {**data, "content": content}
    full_text = words_of(part.block)
    digest = hashlib.sha256(full_text.encode("utf-8", "replace")).hexdigest()[:12]
    path = f"{folder}/words-{part.message.id}-{digest}.txt"
    text = file_reference(str(data.get("text", "")), path, preview)
    return _edit(part, "persisted", text, path), {"type": "text", "text": text}


def _edit(part: _Part, kind: Any, text: str, path: str = "") -> Edit:
    return Edit(kind=kind, message=part.message.id, last=part.message.id, block=part.place, text=text, path=path)


# Images


def _too_many(parts: Sequence[_Part], newest: ViewMessage, most: int) -> list[_Part]:
    """Return the images to drop, oldest first.

    A quarter more than necessary is dropped, so that not every image causes an edit.
    """
    remaining = list(parts)
    over = _count(remaining) > most or _bytes(remaining) > TOGETHER
    while over and len(remaining) > 1 and (_count(remaining) > most * 3 // 4 or _bytes(remaining) > TOGETHER * 3 // 4):
        remaining = remaining[1:]
    if _count(remaining) > FEW and any(map(_is_big, remaining)):
        remaining = [part for part in remaining if part.message is newest or not _is_big(part)]
        while _count(remaining) > FEW and any(map(_is_big, remaining)):
            remaining = remaining[1:]
    standing = {id(part.block) for part in remaining}
    return [part for part in parts if id(part.block) not in standing]


def _count(parts: Sequence[_Part]) -> int:
    return sum(1 for part in parts for _ in images_of(part.block))


def _bytes(parts: Sequence[_Part]) -> int:
    return sum(image_bytes(image) for part in parts for image in images_of(part.block))


def _is_big(part: _Part) -> bool:
    """Return True if an image of the part is too large for a request with many images.

    An image of unknown size counts as too large.
    """
    sizes = [image_size(image) for image in images_of(part.block)]
    return any(size is None or max(size) > SIDE_OF_MANY for size in sizes)


def _without_images(part: _Part) -> Edit:
    text = f"{result_text(part.block)}\n{LEFT_OUT}" if result_text(part.block) else LEFT_OUT
    return _edit(part, "cleared", text)
