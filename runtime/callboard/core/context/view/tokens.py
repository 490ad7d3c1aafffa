"""Token estimates of texts and images, made once per block and never again for a conversation. Pure.

An estimate that is too high is safer than one that is too low, because the service refuses a request that turns out too
large. A byte counts as a quarter of a token, a CJK character as 1.5, an emoji as 2, and images by their size. The exact
usage of the newest reply corrects the rest (`conversation.size`), above all base64 and digests, which count about twice
this. More text never counts less. Only one block is examined at a time: the cost of a step must not grow with the
session.

The limits of images are those of the Messages API (its pages "Vision" and "Errors"): 5 MB for an image in base64, 8,000
pixels per side, 2,000 per side in a request with more than 20 images, 100 images and 32 MB in a request. Only the head
of an image is decoded. An image that cannot be read counts as the largest possible.
"""

from __future__ import annotations

import base64
import binascii
from typing import cast

from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json, compact_json

SIDE = 8_000
"""Maximum pixels of the longer side of an image; a larger image is refused."""
SIDE_OF_MANY = 2_000
"""Maximum pixels of the longer side in a request with more than `FEW` images."""
FEW = 20
MOST = 100
"""Maximum images in a request (to models with a window of 200,000 tokens; others accept 600)."""
BASE64 = 5 * 1024 * 1024
"""Maximum characters of an image in base64."""
_HEAD = 65_536
"""Base64 characters that are decoded to find an image's size (in a JPEG, the size follows the metadata)."""
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PNG = b"\x89PNG\r\n\x1a\n"


def image_size(block: Json) -> tuple[int, int] | None:
    """Return the width and height (pixels) of an image block in base64; None if they cannot be read, or for a URL."""
    source = block.get("source")
    image_source = cast("Json", source) if isinstance(source, dict) else {}
    return _dimensions(str(image_source.get("data", ""))[:_HEAD]) if image_source.get("type") == "base64" else None


def image_bytes(block: Json) -> int:
    """Return the number of base64 characters of an image block; 0 for a URL."""
    source = block.get("source")
    return len(str(cast("Json", source).get("data", ""))) if isinstance(source, dict) else 0


def refusal(block: Json) -> str:
    """Return the reason why the API would refuse this image in any request; empty if it would accept the image."""
    if image_bytes(block) > BASE64:
        return f"it has {image_bytes(block):,} characters in base64, and {BASE64:,} may be sent"
    size = image_size(block)
    if size is not None and max(size) > SIDE:
        return f"it is {size[0]} x {size[1]} pixels, and {SIDE} a side may be sent"
    return ""


def _dimensions(text: str) -> tuple[int, int] | None:
    """Return the width and height of a base64 PNG, GIF, WebP or JPEG, or None."""
    try:
        head = base64.b64decode(text[: len(text) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None
    if head[:8] == _PNG and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head[:3] == b"GIF" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp(head)
    return _jpeg(head) if head[:2] == b"\xff\xd8" else None


def _webp(head: bytes) -> tuple[int, int] | None:
    """Read the size from the first chunk: extended, lossless or lossy (the WebP container's specification)."""
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Walk the segments to the frame header."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        if head[at + 1] in _JPEG_SIZES:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


_CJK = late_pattern(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)

BLOCK_TOKENS = 4
"""Tokens of the structure around one block."""
CALL_TOKENS = 12
"""Additional tokens of the structure around a call or a result."""
IMAGE_MOST = 4_784
"""Tokens of the largest image that is not scaled down for a model. Also used for an image of unknown size."""
_PIXELS_PER_TOKEN = 750
PAGE_MOST = 4_600
"""Tokens of one page of a PDF: at most 3,000 for its text, and 1,600 for its image."""
_PAGE_CHARACTERS = 70_000
"""Base64 characters of one page of a PDF, as an estimate, because the number of pages is not read."""
_FOUR = bytes(range(0xF0, 0xF5))
"""First bytes of characters that take four bytes in UTF-8: emoji, unless they are CJK."""


def estimate_text(text: str) -> int:
    """Return the tokens of a text, rounded up."""
    if text.isascii():
        return -(-len(text) // 4)
    narrow = _CJK.sub("", text)
    data = narrow.encode("utf-8", "replace")
    wide = len(text) - len(narrow)
    emoji = len(data) - len(data.translate(None, _FOUR))
    return -(-(len(data) + 4 * emoji + 6 * wide) // 4)


def estimate_json(data: bytes) -> int:
    """Return the tokens of serialised JSON, such as a tool list or a call's input."""
    return -(-len(data) // 4) if data.isascii() else estimate_text(data.decode("utf-8", "replace"))


def estimate_block(block: Json) -> int:
    """Return the tokens of one block of any type in the API's form."""
    kind = block.get("type")
    if kind == "text":
        return BLOCK_TOKENS + estimate_text(str(block.get("text", "")))
    if kind == "tool_result":
        return BLOCK_TOKENS + CALL_TOKENS + _content(block.get("content"))
    if kind == "tool_use":
        named = estimate_text(str(block.get("name", "")))
        return BLOCK_TOKENS + CALL_TOKENS + named + _dumped(block.get("input"))
    if kind == "image":
        return BLOCK_TOKENS + image_tokens(block)
    if kind == "document":
        return BLOCK_TOKENS + _document_tokens(block)
    if kind == "thinking":
        # A signature contains the whole thinking, even if the shown text is shortened or empty.
        thinking = str(block.get("thinking", ""))
        signed = str(block.get("signature", ""))
        return BLOCK_TOKENS + max(estimate_text(thinking), -(-len(signed) // 4))
    return BLOCK_TOKENS + _dumped(block)


def _document_tokens(block: Json) -> int:
    """Return the tokens of a document block: of its text, or of its pages.

    Each page counts as its text and its image.
    """
    source = cast("Json", block.get("source") or {})
    data = source.get("data")
    if source.get("type") == "base64" and isinstance(data, str):
        return max(1, -(-len(data) // _PAGE_CHARACTERS)) * PAGE_MOST
    if source.get("type") == "url":
        return PAGE_MOST
    return _dumped(block)


def image_tokens(block: Json) -> int:
    """Return the tokens of an image block: its pixels over 750, at most `IMAGE_MOST`.

    Return `IMAGE_MOST` if the size cannot be read.
    """
    size = image_size(block)
    if size is None:
        return IMAGE_MOST
    return min(IMAGE_MOST, -(-size[0] * size[1] // _PIXELS_PER_TOKEN))


def _content(content: object) -> int:
    if isinstance(content, str):
        return estimate_text(content)
    if isinstance(content, list):
        return sum(estimate_block(part) for part in cast("list[Json]", content))
    return 0


def _dumped(value: object) -> int:
    return estimate_json(compact_json(value))
