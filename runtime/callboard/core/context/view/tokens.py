"""Estimates of tokens, made once for each block and never again for a conversation. Pure.

Too high is safer than too low: what is estimated too low is refused by the service. A quarter of a token for each byte,
1.5 for each CJK character, 2 for an emoji, images by their size; the exact usage of the newest reply corrects the rest
(`view.size`), of base64 and digests above all, which count about twice this. More text never counts less. It refuses to
look at more than one block: the cost of a step must not grow with the session.
"""

from __future__ import annotations

import json
import re
from typing import cast

from callboard.core.context.view.images import image_size
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
_FOUR = bytes(range(0xF0, 0xF5))
"""First bytes of characters that take four in UTF-8: emoji, where they are no CJK."""


def estimate_text(text: str) -> int:
    """Tokens of a text, rounded up."""
    if text.isascii():
        return -(-len(text) // 4)
    narrow = _CJK.sub("", text)
    data = narrow.encode("utf-8", "replace")
    wide, emoji = len(text) - len(narrow), len(data) - len(data.translate(None, _FOUR))
    return -(-(len(data) + 4 * emoji + 6 * wide) // 4)


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
    return estimate_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
