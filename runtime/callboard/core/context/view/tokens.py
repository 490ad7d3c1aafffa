"""Token estimates, made once per block and never again for a conversation. Pure.

Too high is safer than too low: a request that is estimated too low is refused by the service. A byte counts as a
quarter of a token, a CJK character as 1.5, an emoji as 2, and images by their size. The exact usage of the newest reply
corrects the rest (`view.size`), above all base64 and digests, which count about twice this. More text never counts
less. Only one block is examined at a time: the cost of a step must not grow with the session.
"""

from __future__ import annotations

import json
import re
from typing import cast

from callboard.core.context.view.images import image_size
from callboard.types.records import Json

_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)

BLOCK_TOKENS = 4
"""Tokens of the structure around one block."""
CALL_TOKENS = 12
"""Additional tokens of the structure around a call or a result."""
IMAGE_MOST = 4_784
"""Tokens of the largest image that is not scaled down for a model. Also used for an image of unknown size."""
_PIXELS_PER_TOKEN = 750
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
    if kind == "thinking":
        # A signature holds the whole thinking, also where the text shown is shortened or empty.
        thinking = str(block.get("thinking", ""))
        signed = str(block.get("signature", ""))
        return BLOCK_TOKENS + max(estimate_text(thinking), -(-len(signed) // 4))
    return BLOCK_TOKENS + _dumped(block)


def image_tokens(block: Json) -> int:
    """Return the tokens of an image block: its pixels over 750, at most `IMAGE_MOST`, which is also used if the size
    cannot be read."""
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
