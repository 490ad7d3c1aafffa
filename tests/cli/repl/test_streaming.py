"""Streaming text is printed in whole blocks, each once, and completely in the end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from callboard.cli.repl.live_screen import LONG, PrintablePart, Streamed, whole_until

BLOCKS = [
    "A paragraph\nof two lines.",
    "# A heading",
    "- one\n- two\n\n  more of two\n- three",
    "```python\ndef f():\n\n    return 1\n```",
    "~~~\n``` not the end\n~~~",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "1. first\n\n   ```\n   inner\n\n   ```\n2. second",
    "你好，世界 👩‍👩‍👧",
]
TEXTS = some.lists(some.sampled_from(BLOCKS), min_size=1, max_size=6).map("\n\n".join)


def printed_parts(streamed: Streamed, text: str, sizes: list[int]) -> list[PrintablePart]:
    """Return the parts that are printed while the text arrives in deltas of these sizes, repeated."""
    pieces: list[PrintablePart] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        piece = streamed.add(text[at : at + size])
        pieces += [piece] if piece else []
        at, turn = at + size, turn + 1
    return pieces


@given(TEXTS, some.lists(some.integers(1, 40), min_size=1, max_size=5))
@settings(max_examples=60)
def test_the_pieces_and_the_rest_are_the_text_once(text: str, sizes: list[int]) -> None:
    streamed = Streamed()
    pieces = printed_parts(streamed, text, sizes)
    rest, lost = streamed.end(text)
    assert not lost
    assert "".join(piece.text for piece in [*pieces, *([rest] if rest else [])]).rstrip() == text.rstrip()
    assert (streamed.tail, streamed.begun) == ("", False)


@given(TEXTS, some.lists(some.integers(1, 40), min_size=1, max_size=5))
@settings(max_examples=60)
def test_a_piece_ends_only_where_a_block_does(text: str, sizes: list[int]) -> None:
    """The sample has no long blocks: none is cut in two, and no part begins inside a code block."""
    at = 0
    for piece in printed_parts(Streamed(), text, sizes):
        at += len(piece.text)
        assert piece.inside == ""
        assert any(text[:at].rstrip("\n").endswith(block) for block in BLOCKS), text[:at]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("half a line", ""),
        ("a line\n", ""),
        ("a paragraph\n\n", ""),
        ("a paragraph\n\nB", "a paragraph\n"),
        ("1. one\n\n   still one", ""),
        ("words\n```py\n", "words\n"),
        ("```py\nx = 1\n```\n", "```py\nx = 1\n```\n"),
        ("```py\nx = 1\n\n\ny", ""),
        ("- a\n  ```\n  x\n  ```\n", ""),
    ],
)
def test_where_a_text_is_whole(text: str, whole: str) -> None:
    assert text[: whole_until(text)[0]] == whole


def test_a_long_listing_is_printed_in_parts_that_know_their_language() -> None:
    code = [f"line_{number} = {number}\n" for number in range(3 * LONG)]
    pieces = printed_parts(Streamed(), "```py\n" + "".join(code), [25])
    assert pieces[0].inside == ""
    assert {piece.inside for piece in pieces[1:]} == {"```py"}
    assert len(pieces) >= 3


def test_what_was_lost_on_the_way_is_told_and_said_from_there() -> None:
    text = "First part.\n\nSecond part.\n\nThird part.\n\nFourth part."
    streamed = Streamed()
    assert printed_parts(streamed, text.replace("cond", ""), [7])
    rest, lost = streamed.end(text)
    assert lost
    assert rest == PrintablePart("Second part.\n\nThird part.\n\nFourth part.")


def test_text_blocks_that_streamed_without_a_break_between_them_are_the_same_text() -> None:
    streamed = Streamed()
    pieces = printed_parts(streamed, "One.\n\nTwo.\n\nThree.", [3])
    rest, lost = streamed.end("One.\nTwo.\nThree. And more.")
    assert not lost
    assert rest is not None
    assert ["".join(piece.text.split()) for piece in [*pieces, rest]] == ["One.", "Two.", "Three.Andmore."]


def test_a_reply_that_is_void_leaves_nothing_behind() -> None:
    streamed = Streamed()
    printed_parts(streamed, "One.\n\nTwo.", [4])
    assert streamed.drop()
    assert not streamed.drop()
    assert streamed.end("Else.") == (PrintablePart("Else."), False)
