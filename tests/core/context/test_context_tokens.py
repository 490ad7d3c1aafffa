"""Estimates: never far under, never six-fold, and corrected by what the service counted."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.context.stage_input import budget_of
from callboard.core.context.view.conversation import (
    Conversation,
    add_assistant,
    add_user,
    apply_edits,
    message_tokens,
    size,
    usage_seen,
)
from callboard.core.context.view.tokens import (
    IMAGE_MOST,
    estimate_block,
    estimate_json,
    estimate_text,
    image_size,
    refusal,
)
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Edit, Placed
from callboard.types.records import Json, Usage

WORDS = hy.text(alphabet="abc déž\n漢字かな한국🦀💥\u200d\ufe0f{}\"':,0129+/=ABC", max_size=60)


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def image(data: bytes, media: str = "image/png") -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}}


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02"


def webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + len(body).to_bytes(4, "little") + body
    return b"RIFF" + (len(chunk) + 4).to_bytes(4, "little") + b"WEBP" + chunk


LOSSY = webp(
    b"VP8 ", b"\0\0\0\x9d\x01\x2a" + (750).to_bytes(2, "little") + (300 | 1 << 14).to_bytes(2, "little") + b"\0" * 4
)
LOSSLESS = webp(b"VP8L", b"\x2f" + (749 | 299 << 14).to_bytes(4, "little") + b"\0" * 8)
EXTENDED = webp(b"VP8X", b"\0" * 4 + (749).to_bytes(3, "little") + (299).to_bytes(3, "little") + b"\0" * 4)


def said(conv: Conversation, words: str, id: int = 1) -> Conversation:
    return add_user(conv, id, [Placed(data=text(words), source="person")], at=0, turn="t")


def test_cjk_counts_neither_six_fold_nor_under() -> None:
    words = "会议记录需要翻译成英文。" * 500
    assert len(words) <= estimate_text(words) <= 2 * len(words)
    escaped = len(json.dumps(words))
    assert estimate_block(text(words)) < escaped / 3, "what is sent is UTF-8, and so is what is counted"
    inside = {"type": "tool_use", "id": "a", "name": "write_file", "input": {"content": words}}
    assert estimate_block(inside) < 1.1 * estimate_text(words)


def test_system_tools_and_the_output_reserve_are_counted() -> None:
    conv = replace(said(Conversation(), "x" * 400), overhead=20_000)
    assert size(conv) == 20_000 + 104
    limits = ModelLimits(window=200_000)
    assert budget_of(limits, 8_000, 20_000, None) == 172_000
    assert budget_of(limits, 8_000, 20_000, 50_000) == 50_000
    assert budget_of(limits, 8_000, 250_000, None) == 0, "never less than nothing"


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ("Plain English words, forty of them. " * 100, 800, 1_000),
        ("Meeting 会议 at 10:00, 三楼 " * 100, 1_000, 1_600),
        ("🦀" * 100, 200, 300),
        ("👩‍👩‍👧‍👦" * 10, 80, 200),
        (json.dumps([{"id": n, "ok": True} for n in range(500)]), 2_500, 6_000),
        (base64.b64encode(random.Random(1).randbytes(3_000)).decode(), 1_000, 3_000),
        ("\ud800" * 40, 10, 40),
        ("\0" * 400, 100, 400),
    ],
)
def test_every_kind_of_text_has_a_sane_estimate(words: str, least: int, most: int) -> None:
    assert least <= estimate_text(words) <= most


@given(WORDS, WORDS)
def test_more_text_never_counts_less_and_two_halves_count_as_the_whole(one: str, other: str) -> None:
    whole, apart = estimate_text(one + other), estimate_text(one) + estimate_text(other)
    assert whole >= max(estimate_text(one), estimate_text(other))
    assert apart - 1 <= whole <= apart, "but for the rounding"
    assert (estimate_text(one) > 0) == bool(one)
    assert estimate_json(one.encode()) == estimate_text(one)


@given(WORDS, WORDS)
def test_no_block_is_free_and_a_longer_one_costs_more(one: str, other: str) -> None:
    def forms(words: str) -> list[Json]:
        return [
            text(words),
            {"type": "tool_use", "id": "a", "name": "n", "input": {"x": words}},
            {"type": "tool_result", "tool_use_id": "a", "content": words},
            {"type": "tool_result", "tool_use_id": "a", "content": [text(words), text("more")]},
            {"type": "thinking", "thinking": words, "signature": ""},
            {"type": "thinking", "thinking": "", "signature": words},
            {"type": "redacted_thinking", "data": words},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words}},
        ]

    for short, long in zip(forms(one), forms(one + other), strict=True):
        assert 0 < estimate_block(short) <= estimate_block(long)
        assert estimate_block(long) >= estimate_text(one + other) or "signature" in long


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (png(750, 300), (750, 300)),
        (b"GIF89a" + (750).to_bytes(2, "little") + (300).to_bytes(2, "little") + b"\0\0\0", (750, 300)),
        (b"\xff\xd8\xff\xe0\x00\x10" + b"J" * 14 + b"\xff\xc2\x00\x11\x08\x01\x2c\x02\xee" + b"\0" * 12, (750, 300)),
        (LOSSY, (750, 300)),
        (LOSSLESS, (750, 300)),
        (EXTENDED, (750, 300)),
        (webp(b"ANIM", b"\0" * 20), None),
        (LOSSLESS[:20] + b"\0" + LOSSLESS[21:], None),
        (LOSSY[:23] + b"\0" + LOSSY[24:], None),
        (b"RIFF", None),
        (b"BM" + b"\0" * 40, None),
    ],
)
def test_an_image_of_any_kind_counts_by_its_pixels(data: bytes, found: tuple[int, int] | None) -> None:
    assert image_size(image(data)) == found
    assert estimate_block(image(data)) == 4 + (300 if found else IMAGE_MOST)


def test_an_image_that_is_a_url_counts_as_the_largest() -> None:
    url: Json = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert estimate_block(url) == 4 + IMAGE_MOST
    assert refusal(url) == ""


# Calibration


def counted(words: str, prompt: int, overhead: int = 100) -> Conversation:
    conv = said(replace(Conversation(), overhead=overhead), words)
    conv = usage_seen(conv, Usage(input_tokens=prompt, output_tokens=10))
    return add_assistant(conv, 2, [text("ok")], at=0, turn="t")


@given(hy.integers(0, 60_000), hy.integers(1, 20_000), hy.integers(0, 20_000))
def test_never_under_the_estimate_and_never_under_what_was_counted(prompt: int, first: int, more: int) -> None:
    conv = counted("x" * first, prompt)
    grown = said(conv, "y" * more, 3)
    assert size(grown) >= grown.overhead + grown.tokens
    assert size(grown) >= prompt + (10 if prompt else 0)
    assert size(grown) - size(conv) >= grown.tokens - conv.tokens, "new text counts at least its estimate"


def test_base64_counts_by_what_the_service_found_of_its_like() -> None:
    blob = base64.b64encode(random.Random(2).randbytes(30_000)).decode()
    conv = counted(blob, 14_000)
    grown = said(conv, blob, 3)
    assert size(grown) >= 14_000 + 13_800, "the second piece at the rate of the first"


@given(hy.integers(2_000, 60_000), hy.integers(100, 7_000))
def test_an_edit_makes_the_view_count_less_by_the_rate_of_the_newest_count(prompt: int, kept: int) -> None:
    conv = counted("x" * 8_000, prompt)
    fold = Placed(data=text("y" * kept), source="compactor")
    less = apply_edits(conv, [Edit(kind="summarised", message=1, last=1, blocks=(fold,))])
    assert less.overhead + less.tokens <= size(less) <= size(conv)
    assert size(less) >= less.overhead + less.tokens * prompt // (conv.overhead + conv.tokens)


def test_held_is_what_the_messages_take() -> None:
    conv = counted("x" * 4_000, 3_000)
    assert message_tokens(conv) == size(conv) - 100
    plain: Any = Conversation()
    assert message_tokens(plain) == 0
