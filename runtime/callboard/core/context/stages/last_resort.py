"""What stands behind every pipeline for what is too large by itself: a newest message, and images. Pure.

`persist_newest` sends the parts of the newest message to files when nothing else makes the view fit: results that
nobody has read, then the words of others, then the person's, and pinned words last. All of it stands in the file;
beginning and end stay in the view. `drop_old_images` keeps a request within what the service takes of images, and the
oldest go first.
They refuse to touch what would not become smaller, and what the model said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from callboard.core.bus.mail import KEPT, kept_words
from callboard.core.context.oversize import file_of
from callboard.core.context.situation import Situation
from callboard.core.context.stages.persisting import persisted_mark
from callboard.core.context.stages.results import PERSISTED, words_of
from callboard.core.context.summary.folding import tail_start
from callboard.core.context.view.blocks import calls_of, is_result, result_text
from callboard.core.context.view.conversation import Conversation, held
from callboard.core.context.view.images import FEW, MOST, SIDE_OF_MANY, image_bytes, image_size
from callboard.core.context.view.laws import pins
from callboard.core.context.view.tokens import estimate_block
from callboard.words.context import Block, Edit, Message
from callboard.words.values import Json

NEWEST: Mapping[str, Any] = MappingProxyType({"force": False, "alone": False})
"""Both come from the pipeline. `force`: the service refused the view; `alone`: the newest exchange alone is over the
budget, so that nothing else could help."""
IMAGES: Mapping[str, Any] = MappingProxyType({"force": False})
LEFT_OUT = "[Older image left out]"
TOGETHER = 24 * 1024 * 1024
"""Characters of all images of a request in base64: the service takes 32 MB, text included."""
_MOST_OF_LARGE = 600
"""Images of a request for a model whose window is over `_LARGE` tokens."""
_LARGE = 200_000
_PREVIEWS = (2_000, 400, 80)
"""Characters of a beginning (and of an end) that stay: fewer where there are many and that is not enough."""
_SMALL = 2_000
"""Characters up to which nothing goes to a file."""
_ENOUGH = 70
"""Per cent of the view, or of the budget, that is kept after a refusal."""


class _Part(NamedTuple):
    """A block that can go to a file, and where it stands."""

    message: Message
    place: int
    block: Block


def persist_newest(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Parts of the newest message, and then pinned words, go to files, largest first, until the view fits."""
    given = {**NEWEST, **params}
    surplus = _surplus(view, budget, given)
    parts = list(_parts(view.messages)) if surplus > 0 else []
    edits: list[Edit] = []
    for preview in _PREVIEWS:
        edits, saved = _kept(parts, preview, surplus, situation.folder)
        if saved >= surplus:
            break
    return edits or None


def drop_old_images(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Images that are too many, too large for so many, or too heavy together are left out, the oldest first.

    Only a view whose newest message brought an image is looked at: no other can be over these limits for the first
    time. `force`: all but the newest message's.
    """
    newest = view.messages[-1] if view.messages else None
    force = bool(params.get("force"))
    if newest is None or not (force or any(True for block in newest.blocks for _ in _images(block))):
        return None
    found = [
        _Part(message, place, block)
        for message in view.messages
        if message.role == "user"
        for place, block in enumerate(message.blocks)
        if any(True for _ in _images(block))
    ]
    most = MOST if situation.limits.window <= _LARGE else _MOST_OF_LARGE
    gone = [part for part in found if part.message is not newest] if force else _too_many(found, newest, most)
    return [_without_images(part) for part in gone] or None


def blame(view: Conversation, budget: int) -> str:
    """What is too large, for a person to read."""
    if budget <= view.overhead // 10:
        return f"the system prompt and the tools take {view.overhead:,} tokens, which leaves {budget:,} for messages"
    newest = view.messages[tail_start(view.messages) :]
    names = {str(call.get("id")): str(call.get("name")) for message in newest for call in calls_of(message)}
    blocks = [*(block for message in newest for block in message.blocks), *pins(view.messages)]
    largest = max(blocks, key=lambda block: block.tokens, default=None)
    if largest is None:
        return f"{held(view):,} tokens, and {budget:,} fit"
    of = names.get(str(largest.data.get("tool_use_id")), "")
    what = f"a result of {of}" if of else f"{'words' if largest.data.get('type') == 'text' else 'a block'} of source "
    what = what if of else what + largest.source
    return f"{held(view):,} tokens, and {budget:,} fit; the largest part is {what} ({largest.tokens:,} tokens)"


def newest_alone(view: Conversation) -> int:
    """Tokens of the newest exchange: what can neither be summarised nor dropped."""
    return sum(message.tokens for message in view.messages[tail_start(view.messages) :])


def _surplus(view: Conversation, budget: int, given: Json) -> int:
    """How many tokens must go."""
    if given["alone"]:
        return newest_alone(view) - budget // 2 if newest_alone(view) > budget else 0
    size = held(view)
    return size - min(size, budget) * _ENOUGH // 100 if given["force"] else size - budget


def _parts(messages: Sequence[Message]) -> Iterator[_Part]:
    """What can go to a file, in the order in which it goes."""
    newest = messages[-1] if messages and messages[-1].role == "user" else None
    own = [_Part(newest, place, block) for place, block in enumerate(newest.blocks)] if newest else []
    marked = {id(block) for block in pins(messages)}
    rest = [
        _Part(message, place, block)
        for message in messages
        if message is not newest
        for place, block in enumerate(message.blocks)
        if id(block) in marked
    ]
    yield from sorted((part for part in (*own, *rest) if _whole(part.block)), key=lambda part: _rank(part, newest))


def _rank(part: _Part, newest: Message | None) -> tuple[int, int]:
    block = part.block
    if block.pinned or part.message is not newest:
        return 3, -block.tokens
    return (0 if is_result(block) else 2 if block.source == "person" else 1), -block.tokens


def _whole(block: Block) -> bool:
    """It stands whole, and is worth a file."""
    if len(words_of(block)) <= _SMALL:
        return False
    if is_result(block):
        return not PERSISTED.match(result_text(block))
    return block.data.get("type") == "text" and block.source != "compactor" and not KEPT.match(words_of(block))


def _kept(parts: Sequence[_Part], preview: int, surplus: int, folder: str) -> tuple[list[Edit], int]:
    """The edits that send parts to files until that is enough, and what they save."""
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
        stays = list(_images(part.block))
        content: Any = [{"type": "text", "text": text}, *stays] if stays else text
        return _edit(part, "persisted", text, path), {**data, "content": content}
    words = words_of(part.block)
    digest = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:12]
    path = f"{folder}/words-{part.message.id}-{digest}.txt"
    text = kept_words(str(data.get("text", "")), path, preview)
    return _edit(part, "persisted", text, path), {"type": "text", "text": text}


def _edit(part: _Part, kind: Any, text: str, path: str = "") -> Edit:
    return Edit(kind=kind, message=part.message.id, last=part.message.id, block=part.place, text=text, path=path)


# Images


def _images(block: Block) -> Iterator[Json]:
    """The image blocks in it, or itself."""
    if block.data.get("type") == "image":
        yield block.data
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    yield from (part for part in parts if part.get("type") == "image")


def _too_many(found: Sequence[_Part], newest: Message, most: int) -> list[_Part]:
    """Those that must go, oldest first; a quarter more than must, so that not every image makes an edit."""
    kept = list(found)
    over = _count(kept) > most or _bytes(kept) > TOGETHER
    while over and len(kept) > 1 and (_count(kept) > most * 3 // 4 or _bytes(kept) > TOGETHER * 3 // 4):
        kept = kept[1:]
    if _count(kept) > FEW and any(map(_is_big, kept)):
        kept = [part for part in kept if part.message is newest or not _is_big(part)]
        while _count(kept) > FEW and any(map(_is_big, kept)):
            kept = kept[1:]
    standing = {id(part.block) for part in kept}
    return [part for part in found if id(part.block) not in standing]


def _count(parts: Sequence[_Part]) -> int:
    return sum(1 for part in parts for _ in _images(part.block))


def _bytes(parts: Sequence[_Part]) -> int:
    return sum(image_bytes(image) for part in parts for image in _images(part.block))


def _is_big(part: _Part) -> bool:
    """An image of it is too large for a request of many. One whose size cannot be read counts as such."""
    sizes = [image_size(image) for image in _images(part.block)]
    return any(size is None or max(size) > SIDE_OF_MANY for size in sizes)


def _without_images(part: _Part) -> Edit:
    text = f"{result_text(part.block)}\n{LEFT_OUT}" if result_text(part.block) else LEFT_OUT
    return _edit(part, "cleared", text)
