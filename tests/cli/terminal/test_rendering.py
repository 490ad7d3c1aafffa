"""Markdown on the screen: the words stay, colors are added, and no text becomes a control sequence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from callboard.cli.terminal.markdown import render_markdown
from callboard.cli.terminal.terminal import Line, Span, columns, style_lines

SEQUENCES = re.compile(r"\x1b\[[0-9;]*m")
PARTS = [
    *"abc 12\n\n*_`#->|[](){}&;~\t\\",
    "\x1b",
    "\x1b[31m",
    "\x9b",
    "&#27;",
    "\x1b]0;t\x07",
    "\r",
    "你",
    "é",
    "```\n",
]
HOSTILE = some.lists(some.sampled_from(PARTS), max_size=60).map("".join)


def words(text: str, width: int = 60) -> list[str]:
    return [line.text for line in render_markdown(text, width)]


@given(HOSTILE)
@settings(max_examples=80, deadline=None)
def test_no_text_of_a_model_becomes_a_sequence(text: str) -> None:
    shown = style_lines(render_markdown(text, 40), color=True)
    bare = SEQUENCES.sub("", shown)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", bare)
    for found in SEQUENCES.findall(shown):
        assert re.fullmatch(r"\x1b\[([0-9]{1,3}(;[0-9]{1,3})*)m", found)


def test_two_spans_do_not_make_a_sequence_between_them() -> None:
    line = Line("x", spans=(Span("\x1b"), Span("[2J", "1"), Span("\x1b]0;title\x07", "31m\x1b[2J")))
    assert style_lines([line], color=True) == "\x1b[1m[2J\x1b[0m\n"


def test_lists_tables_and_headings_are_set_and_code_keeps_its_lines() -> None:
    long = "x = " + " + ".join(["1"] * 60)
    text = f"# Title\n\n- one\n- **two**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\n{long}\n\nreturn\n```\nafter"
    assert words(text) == [
        *("Title", "", " • one", " • two", "", " a  b", " ────", " 1  2", "", f"  {long}", "", "  return", "", "after")
    ]


def test_colours_stand_where_the_language_has_words() -> None:
    shown = style_lines(render_markdown("```python\ndef f(): pass\n```", 60), color=True)
    assert SEQUENCES.sub("", shown) == "  def f(): pass\n"
    assert SEQUENCES.search(shown)


@pytest.mark.parametrize("width", [20, 33, 80])
def test_prose_fits_the_screen_with_wide_characters(width: int) -> None:
    lines = words("你好世界，" * 40 + "plain words that follow " * 10, width)
    assert max(columns(line) for line in lines) <= width
    assert "".join("".join(lines).split()) == "".join(("你好世界，" * 40 + "plain words that follow " * 10).split())


def test_a_narrow_screen_and_a_huge_text_are_shown_as_they_are() -> None:
    assert words("**a**\nb", 10) == ["**a**", "b"]
    assert len(words("x\n" * 60_000)) == 60_001
