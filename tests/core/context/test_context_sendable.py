"""Blocks from outside become blocks that any request may contain: one other block would end the session."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.context.context_histories import text
from tests.core.context.test_context_tokens import image, png

from callboard.core.context.view.sendable import sendable
from callboard.core.context.view.tokens import BASE64, SIDE
from callboard.types.records import Json

MARK: Json = {"cache_control": {"type": "ephemeral"}}
PNG = image(png(4, 4))
FILE: Json = {"type": "image", "source": {"type": "file", "file_id": "f"}}
URL: Json = {"type": "url", "url": "https://example.org/a.png"}


def document(**source: Any) -> Json:
    return {"type": "document", "source": source}


PLAIN = document(type="text", media_type="text/plain", data="hello")


@pytest.mark.parametrize(
    ("block", "sent"),
    [
        (text(" \n"), []),
        ({**text("yes"), "citations": None, **MARK}, [text("yes")]),
        ({"type": "text"}, []),
        (PNG, [PNG]),
        ({**PNG, **MARK, "name": "a.png"}, [PNG]),
        ({"type": "image", "source": {**PNG["source"], "media_type": "image/jpeg"}}, [PNG]),
        ({"type": "image", "source": {**URL, "detail": "high"}}, [{"type": "image", "source": URL}]),
        ({**FILE, **MARK}, [FILE]),
        ({"type": "image"}, [text("[Image left out: it has no source.]")]),
        (image(b"no image"), [text("[Image left out: it is no PNG, JPEG, GIF or WebP.]")]),
        (image(png(4, 4)[:20]), [text("[Image left out: its size cannot be read (image/png).]")]),
        (document(type="text", data="hello"), [PLAIN]),
        ({**PLAIN, **MARK, "title": None, "context": "a letter"}, [{**PLAIN, "context": "a letter"}]),
        ({**PLAIN, "citations": {"enabled": True}}, [{**PLAIN, "citations": {"enabled": True}}]),
        (document(type="text", data=" "), [text("[Document left out: it is empty.]")]),
        (document(type="content", content=[text("")]), [text("[Document left out: it is empty.]")]),
        (document(type="content", content="hello"), [document(type="content", content="hello")]),
        (
            document(type="content", content=[{**text("hello"), **MARK}]),
            [document(type="content", content=[text("hello")])],
        ),
        (
            document(type="base64", data="JVBE\nRi0="),
            [document(type="base64", media_type="application/pdf", data="JVBERi0=")],
        ),
        ({"type": "tool_reference", "tool_name": "x", **MARK}, [{"type": "tool_reference", "tool_name": "x"}]),
    ],
)
def test_a_block_has_the_form_of_the_api_or_is_told_in_words(block: Json, sent: list[Json]) -> None:
    assert list(sendable([block])) == sent
    assert list(sendable([block, text("and this")])) == [*sent, text("and this")]


def test_an_image_that_is_too_large_is_told_in_words_that_say_so() -> None:
    fine, wide, heavy = image(png(SIDE, SIDE)), image(png(SIDE + 1, 10)), image(png(10, 10) + b"\0" * BASE64)
    left = sendable([fine, wide, heavy])
    assert left[0] == fine
    assert left[1]["text"] == (
        "[Image left out: it is 8001 x 10 pixels, and 8000 a side may be sent. Make it smaller to show it.]"
    )
    assert "characters in base64" in left[2]["text"]


KINDS = hy.sampled_from(["text", "image", "document", "base64", "url", "content", "other"])
VALUES = hy.recursive(
    hy.none() | hy.text(max_size=5) | KINDS | hy.sampled_from([base64.b64encode(png(2, 2)).decode()]),
    lambda inner: hy.lists(inner, max_size=2) | hy.fixed_dictionaries({"type": KINDS}, optional={"text": inner}),
    max_leaves=5,
)
BLOCKS = hy.fixed_dictionaries(
    {"type": KINDS},
    optional={
        "text": VALUES,
        "title": VALUES,
        "source": hy.fixed_dictionaries({"type": KINDS}, optional={"data": VALUES, "url": VALUES, "content": VALUES}),
    },
)


@given(hy.lists(BLOCKS, max_size=4))
def test_whatever_the_blocks_are_the_result_stays_as_it_is(blocks: list[Json]) -> None:
    once = sendable(blocks)
    assert sendable(once) == once
    assert not any(block["type"] == "text" and not block["text"].strip() for block in once)
