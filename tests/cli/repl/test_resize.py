"""Rows of the prompt line after the terminal broke them, and which terminals do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.repl.resize import breaks_rows, rows_above_cursor


def broken(widths: list[int], column: int, columns: int) -> int:
    """Return the row of the cursor on a screen on which each row was written cell by cell."""
    screen = ["".join("#" for _ in range(width)) or " " for width in widths]
    rows = [row[start : start + columns] for row in screen for start in range(0, len(row), columns)]
    return len(rows) + sum(1 for cell in range(1, column + 1) if cell % columns == 0)


@given(st.lists(st.integers(0, 200), max_size=6), st.integers(0, 200), st.integers(1, 200))
def test_the_cursor_is_found_on_a_screen_with_broken_rows(widths: list[int], column: int, columns: int) -> None:
    assert rows_above_cursor(widths, column, columns) == broken(widths, column, columns)


@pytest.mark.parametrize(
    ("environment", "breaks"),
    [
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "screen", "STY": "1.pts"}, False),
        ({"TERM_PROGRAM": "unheard-of"}, False),
        ({"TERM_PROGRAM": "iTerm.app"}, True),
        ({"TMUX": "/tmp/tmux-1000/default,1,0"}, True),
        ({"TMUX": ""}, False),
        ({"VTE_VERSION": "7600"}, True),
    ],
)
def test_only_terminals_that_are_known_to_break_rows_count(environment: dict[str, str], breaks: bool) -> None:
    assert breaks_rows(environment) == breaks
