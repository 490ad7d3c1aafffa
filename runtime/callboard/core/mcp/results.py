"""What a server answered, as content blocks that any request can carry. Pure, and tolerant: it is a stranger's answer.

Text stays, images become the API's image blocks (by what their bytes are, not by what they are called), all else is
told in words: audio, files, links. Refuses nothing: what cannot be shown is named in its place.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from callboard.core.context.view.images import image_size, refusal
from callboard.core.mcp.texts import clean, one_line
from callboard.words.values import Json

CHARACTERS_PER_TOKEN = 4
SHOWN_TOKENS = 25_000
"""Tokens of a result that are shown unless `MAX_MCP_OUTPUT_TOKENS` says otherwise."""
MOST_OF_ITS_OWN = 500_000
"""Characters that a tool may ask for by its `_meta["anthropic/maxResultSizeChars"]`."""
MOST_BLOCKS = 200
MOST_IMAGES = 20
EMPTY = "(no output)"
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, ready for a request. `structured`: as the server gave it, for hooks."""

    blocks: tuple[Json, ...]
    is_error: bool = False
    structured: Any = None

    @property
    def characters(self) -> int:
        """Of its texts."""
        return sum(len(str(block["text"])) for block in self.blocks if block["type"] == "text")


def answer_of(result: Mapping[str, Any]) -> Answer:
    """The result of a `tools/call`, as the server sent it."""
    content = result.get("content")
    blocks = blocks_of(cast("Sequence[Any]", content) if isinstance(content, list) else ())
    structured = result.get("structuredContent")
    if structured is not None and not any(block["type"] == "text" for block in blocks):
        blocks += (_text(json.dumps(structured, ensure_ascii=False, indent=1)),)
    return Answer(blocks or (_text(EMPTY),), result.get("isError") is True, structured)


def blocks_of(content: Sequence[Any]) -> tuple[Json, ...]:
    """Content blocks of a result, a prompt or a resource. Texts that are empty are left out: the API refuses them."""
    found: list[Json] = []
    images = 0
    for one in content[:MOST_BLOCKS]:
        block = _block(cast("Json", one)) if isinstance(one, Mapping) else _text(f"[Left out: {one_line(repr(one))}]")
        images += block["type"] == "image"
        if images > MOST_IMAGES and block["type"] == "image":
            block = _text(f"[Image left out: only {MOST_IMAGES} of a result are shown.]")
        if block["type"] != "text" or block["text"].strip():
            found.append(block)
    if len(content) > MOST_BLOCKS:
        found.append(_text(f"[{len(content) - MOST_BLOCKS} more blocks left out.]"))
    return tuple(found)


def resource_blocks(contents: Sequence[Any]) -> tuple[Json, ...]:
    """The contents of a `resources/read`."""
    return blocks_of([{"type": "resource", "resource": one} for one in contents])


def shortened(blocks: Sequence[Json], most: int, whole: str) -> tuple[Json, ...]:
    """Head and tail of the texts, `most` characters together, with the file that holds the whole; images stay."""
    text = whole_text(blocks)
    half = most // 2
    mark = f"\n[Result cut: {most:,} of {len(text):,} characters. Whole: {whole}]\n"
    kept = tuple(block for block in blocks if block["type"] != "text")
    return (_text(text[:half] + mark + text[len(text) - half :]), *kept)


def whole_text(blocks: Sequence[Json]) -> str:
    """All texts of a result, in order."""
    return "\n".join(str(block["text"]) for block in blocks if block["type"] == "text")


def _block(one: Json) -> Json:
    kind = one.get("type")
    if kind == "text":
        return _text(clean(one.get("text")))
    if kind == "image":
        return _image(one.get("data"), one.get("mimeType"))
    if kind == "audio":
        return _text(f"[Audio, {one_line(one.get('mimeType'), 80)}, {_size(one.get('data'))}: not shown.]")
    if kind == "resource" and isinstance(one.get("resource"), Mapping):
        return _resource(cast("Json", one["resource"]))
    if kind == "resource_link":
        return _link(one)
    return _text(f"[A block of the kind {one_line(repr(kind), 80)} is not shown.]")


def _resource(found: Json) -> Json:
    uri, kind = one_line(found.get("uri"), 2_000), one_line(found.get("mimeType"), 80)
    named = f"{uri} ({kind})" if kind else uri
    if isinstance(found.get("text"), str):
        return _text(f"[Resource {named}]\n{clean(found['text'])}")
    if kind.startswith("image/"):
        return _image(found.get("blob"), kind)
    return _text(f"[Resource {named}, {_size(found.get('blob'))} that are no text: not shown.]")


def _link(one: Json) -> Json:
    said = [one_line(one.get(name), 300) for name in ("title", "name", "description", "mimeType")]
    more = "; ".join(dict.fromkeys(word for word in said if word))
    return _text(f"[Link to the resource {one_line(one.get('uri'), 2_000)}{f' ({more})' if more else ''}]")


def _image(data: object, called: object) -> Json:
    """An image block, or why it is none."""
    text = "".join(data.split()) if isinstance(data, str) else ""
    found = _kind_of(text)
    if not found:
        return _text(f"[Image left out: {_size(data)} called {one_line(called, 80)} are no PNG, JPEG, GIF or WebP.]")
    block: Json = {"type": "image", "source": {"type": "base64", "media_type": found, "data": text}}
    why = refusal(block) or ("" if image_size(block) else f"its size cannot be read ({found})")
    return _text(f"[Image left out: {why}.]") if why else block


def _kind_of(text: str) -> str:
    """What an image is by its first bytes; empty where it is none that the API takes, or no base64."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ""
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _KINDS if raw.startswith(mark)), "")


def _size(data: object) -> str:
    return f"about {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else "no bytes"


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
