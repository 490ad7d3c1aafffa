"""Erase the prompt line after the terminal got another width.

Many terminals break the rows on the screen when they become narrower, so that the line has more rows than were drawn.
prompt_toolkit goes up by the rows that it drew, and would leave the first ones behind.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.layout.screen import Screen

REFLOWING_PROGRAMS = frozenset(("ghostty", "iTerm.app", "vscode", "WezTerm", "Apple_Terminal"))
"""Values of `TERM_PROGRAM` for terminals that break rows."""
REFLOWING_VARIABLES = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "WT_SESSION", "KONSOLE_VERSION", "ALACRITTY_WINDOW_ID")
"""Variables that only terminals that break rows set."""


def breaks_rows(environment: Mapping[str, str]) -> bool:
    """Return True if the terminal is known to break rows that are wider than its new width.

    Others cut such rows off (xterm, screen). Going up too far in one of them would erase output.
    """
    known = any(environment.get(name) for name in REFLOWING_VARIABLES)
    return known or environment.get("TERM_PROGRAM") in REFLOWING_PROGRAMS


def rows_above_cursor(widths: Sequence[int], column: int, columns: int) -> int:
    """Return the rows between the first row and the cursor after each row was broken at `columns`.

    `widths`: columns of the rows above the cursor's. `column`: the cursor's column, from 0, in its own row.
    """
    return sum(max(1, -(-width // columns)) for width in widths) + column // columns


class ResizeRepair:
    """Lets a line of prompt_toolkit find its first row after each change of the terminal's width."""

    def __init__(self, app: Application[str]) -> None:
        """`app`: a line on a terminal that breaks rows."""
        self._app = app
        self._erase = app.renderer.erase
        # Each way to the first row: a key may be drawn, and output printed, before the new size is announced.
        app.renderer.erase = self._erase_all
        app.before_render += self._go_up

    def _erase_all(self, leave_alternate_screen: bool = True) -> None:
        self._go_up(self._app)
        self._erase(leave_alternate_screen)

    def _go_up(self, app: Application[str]) -> None:
        """Go up by the rows that the terminal has added. The renderer then goes up by those that it has drawn."""
        screen = app.renderer.last_rendered_screen
        # No public attribute says for which size the renderer drew, and where it left the cursor.
        drawn = app.renderer._last_size  # pyright: ignore[reportPrivateUsage] - see above
        cursor = app.renderer._cursor_pos  # pyright: ignore[reportPrivateUsage] - see above
        columns = app.output.get_size().columns
        if screen is None or drawn is None or columns == drawn.columns:
            return
        widths = [_width(screen, row) for row in range(cursor.y)]
        if added := rows_above_cursor(widths, cursor.x, columns) - cursor.y:
            app.output.cursor_up(added)


def repair_resize(line: PromptSession[str]) -> None:
    """Let the line find its first row again in a terminal that breaks rows. Changes nothing in others."""
    if breaks_rows(os.environ):
        ResizeRepair(line.app)


def _width(screen: Screen, row: int) -> int:
    """Return the columns of a row up to its last visible character."""
    cells = screen.data_buffer[row]
    return max((column + cells[column].width for column in cells if cells[column].char != " "), default=0)
