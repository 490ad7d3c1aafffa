"""Images for the Messages API: their sizes, and the API's limits. Pure.

The numbers are the API's published limits (its pages "Vision" and "Errors"): 5 MB for an image in base64, 8,000 pixels
per side, 2,000 per side in a request with more than 20 images, 100 images and 32 MB in a request. Only the head of an
image is decoded. An image that cannot be read counts as the largest possible.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import cast

from callboard.types.records import Json

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
    """Return the number of characters of its base64; 0 for a URL."""
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


def fitting(content: Sequence[Json]) -> tuple[Json, ...]:
    """Return the blocks of a result or a prompt, with a text in place of each image that no request could contain."""
    if not any(block.get("type") == "image" for block in content):
        return tuple(content)
    return tuple(_or_text(block) for block in content)


def _or_text(block: Json) -> Json:
    reason = refusal(block) if block.get("type") == "image" else ""
    if not reason:
        return block
    return {"type": "text", "text": f"[Image left out: {reason}. Make it smaller to show it.]"}


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
