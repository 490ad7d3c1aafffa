"""Estimates of tokens, made once for each block and never again for a conversation. Pure.

Too high is safer than too low: what is estimated too low is refused by the service. A quarter of a token for each byte,
1.5 for each CJK character, images by their size; the exact usage of the newest reply corrects the rest
(`view.size`). It refuses to look at more than one block: the cost of a step must not grow with the session.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import cast

from callboard.words.values import Json

_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)

BLOCK_TOKENS = 4
"""What the structure round one block costs."""
CALL_TOKENS = 12
"""What the structure round a call or a result costs on top of that."""
IMAGE_MOST = 4_784
"""The largest image that a model sees without it being scaled down; also what an image of unknown size counts."""
_PIXELS_PER_TOKEN = 750
_HEAD = 65_536
"""Base64 characters that are decoded to find an image's size (a JPEG's stands behind its metadata)."""
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def estimate_text(text: str) -> int:
    """Tokens of a text, rounded up."""
    if text.isascii():
        return -(-len(text) // 4)
    narrow = _CJK.sub("", text)
    wide = len(text) - len(narrow)
    return -(-(len(narrow.encode("utf-8", "replace")) + 6 * wide) // 4)


def estimate_json(data: bytes) -> int:
    """Tokens of serialised JSON, such as a tool list or a call's input."""
    return -(-len(data) // 4) if data.isascii() else estimate_text(data.decode("utf-8", "replace"))


def estimate_block(block: Json) -> int:
    """Tokens of one block in the API's form, whatever its type."""
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
    if kind == "thinking":
        # A signature holds the whole thinking, also where the text shown is shortened or empty.
        shown, signed = str(block.get("thinking", "")), str(block.get("signature", ""))
        return BLOCK_TOKENS + max(estimate_text(shown), -(-len(signed) // 4))
    return BLOCK_TOKENS + _dumped(block)


def image_tokens(block: Json) -> int:
    """Tokens of an image block: its pixels over 750, `IMAGE_MOST` at most and where the size can't be read."""
    source = block.get("source")
    found = cast("Json", source) if isinstance(source, dict) else {}
    size = _dimensions(str(found.get("data", ""))[:_HEAD]) if found.get("type") == "base64" else None
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
    return estimate_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _dimensions(text: str) -> tuple[int, int] | None:
    """Width and height of a base64 PNG, GIF or JPEG, or None."""
    try:
        head = base64.b64decode(text[: len(text) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head[:3] == b"GIF" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    return _jpeg(head) if head[:2] == b"\xff\xd8" else None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Walk the segments to the frame header."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        if head[at + 1] in _JPEG_SIZES:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None
