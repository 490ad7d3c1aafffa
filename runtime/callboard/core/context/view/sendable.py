"""Blocks from outside in a form that any request may contain: results of tools and hooks, and attachments. Pure.

The service refuses a request for one block that it does not accept, and so each later request of the conversation.
Therefore blocks have only the fields of the Messages API, texts without words are left out, the media type of an image
is that of its bytes, and a text is in place of what the service would refuse. No block has a `cache_control`: the
runtime sets these marks, and the service accepts four in a request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, cast

from callboard.core.context.view.tokens import image_size, refusal
from callboard.types.messages import Placed
from callboard.types.records import Envelope, Json

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def sendable(blocks: Sequence[Json]) -> tuple[Json, ...]:
    """Return the blocks of a result or a prompt as any request may contain them, without those that say nothing."""
    if all(_is_plain(block) for block in blocks):
        return tuple(blocks)
    return tuple(fit for block in blocks if (fit := _fitting(block)) is not None)


def with_attachments(envelope: Envelope, block: Placed | None) -> tuple[Placed, ...]:
    """Return the block of an envelope with the images and documents of its prompt.

    A prompt without text has only these.
    """
    blocks = cast("list[Json]", envelope.metadata.get("attachments") or [])
    attachments = tuple(Placed(data=data, source="person") for data in sendable(blocks))
    if block is None or (attachments and not envelope.content.strip()):
        return attachments
    return (block, *attachments)


def image_block(data: str) -> Json | str:
    """Return an image block for data in base64, or the reason why the service would refuse it."""
    text = "".join(data.split())
    media_type = _media_type(text)
    if not media_type:
        return "it is no PNG, JPEG, GIF or WebP"
    block: Json = {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": text}}
    if reason := refusal(block):
        return f"{reason}. Make it smaller to show it"
    return block if image_size(block) else f"its size cannot be read ({media_type})"


def _is_plain(block: Json) -> bool:
    text = block.get("text")
    return block.get("type") == "text" and len(block) == 2 and isinstance(text, str) and bool(text.strip())


def _fitting(block: Json) -> Json | None:
    """Return the block as it may be sent; None for one that says nothing."""
    match block.get("type"):
        case "text":
            text = str(block.get("text") or "")
            return {"type": "text", "text": text} if text.strip() else None
        case "image":
            return _image(block)
        case "document":
            return _document(block)
        case _:
            return {name: value for name, value in block.items() if name != "cache_control"}


def _image(block: Json) -> Json:
    source = _source_of(block)
    if source.get("type") == "base64":
        found = image_block(str(source.get("data") or ""))
        return found if isinstance(found, dict) else _left_out("Image", found)
    reference = _reference(source)
    return {"type": "image", "source": reference} if reference else _left_out("Image", "it has no source")


def _document(block: Json) -> Json:
    source = _source_of(block)
    fit: Json | None = _reference(source)
    data = str(source.get("data") or "")
    match source.get("type"):
        case "base64" if data:
            fit = {"type": "base64", "media_type": "application/pdf", "data": "".join(data.split())}
        case "text" if data.strip():
            fit = {"type": "text", "media_type": "text/plain", "data": data}
        case "content":
            content: Any = source.get("content")
            parts = (
                sendable(cast("Sequence[Json]", content)) if isinstance(content, list) else str(content or "").strip()
            )
            fit = {"type": "content", "content": list(parts) if isinstance(parts, tuple) else parts} if parts else None
        case _:
            pass
    if fit is None:
        return _left_out("Document", "it is empty")
    words = {name: block[name] for name in ("title", "context") if isinstance(block.get(name), str) and block[name]}
    cited = {"citations": block["citations"]} if isinstance(block.get("citations"), dict) else {}
    return {"type": "document", "source": fit, **words, **cited}


def _source_of(block: Json) -> Json:
    source = block.get("source")
    return cast("Json", source) if isinstance(source, dict) else {}


def _reference(source: Json) -> Json | None:
    """Return a source that names what the service reads by itself; None for any other."""
    name = {"url": "url", "file": "file_id"}.get(str(source.get("type")), "")
    return {"type": source["type"], name: source[name]} if name and isinstance(source.get(name), str) else None


def _left_out(kind: str, reason: str) -> Json:
    return {"type": "text", "text": f"[{kind} left out: {reason}.]"}


def _media_type(text: str) -> str:
    """Return the media type of an image in base64 by its first bytes; empty if the service does not accept it."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ""
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _SIGNATURES if raw.startswith(mark)), "")
