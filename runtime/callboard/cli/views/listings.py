"""Rows of the store as listings: a table for a person, JSON for a script. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeVar

from callboard.cli.terminal.terminal import Block, Line, columns
from callboard.cli.views.events import first_line, shorten
from callboard.sessions.inspect.resources import Resource, plain_row

Row = TypeVar("Row")

_CELL = 60
"""Limit of the columns of one cell."""
_NARROWEST = 8
"""Columns to which a narrow screen may shorten a cell."""
_TIME = len("2026-12-01 03:00:00")
_BETWEEN = "  "


def as_json(rows: Sequence[object]) -> str:
    """Return a JSON array of the rows. ASCII only: no control character reaches a screen through it."""
    return json.dumps([plain_row(row) for row in rows], indent=2)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Block:
    """Return rows under their heads, aligned; `nothing` is the text if there are none.

    On a screen with too few columns, the widest cells are shortened, except those of the first column, which name the
    rows. A time stays whole as long as the last column, which is free text, can be shortened instead.
    """
    if not rows:
        return Block((Line(nothing, "dim"),))
    cells = [list(heads), *([shorten(first_line(cell), _CELL) for cell in row] for row in rows)]
    return Block(_rows_within(cells, 0), fit=partial(_rows_within, cells))


def _rows_within(cells: Sequence[Sequence[str]], width: int) -> tuple[Line, ...]:
    """Return the lines of a table, the heads first. `width`: columns of the screen; 0: as many as needed."""
    widths = [max(columns(row[at]) for row in cells) for at in range(len(cells[0]))]
    room = width - len(_BETWEEN) * (len(widths) - 1)
    if width and len(widths) > 1:
        _narrow(widths, room, [*(_TIME for _ in widths[1:-1]), _NARROWEST])
        _narrow(widths, room, [_NARROWEST for _ in widths[1:]])
    first, *others = ([shorten(cell, room) for cell, room in zip(row, widths, strict=True)] for row in cells)
    return Line(_aligned(first, widths), "dim"), *(Line(_aligned(row, widths)) for row in others)


def _narrow(widths: list[int], room: int, least: Sequence[int]) -> None:
    """Reduce the widest columns but the first, a step at a time, until all take at most `room`.

    `least`: the columns that each but the first keeps.
    """
    while (over := sum(widths) - room) > 0:
        reducible = [at for at, floor in enumerate(least, 1) if widths[at] > floor]
        if not reducible:
            return
        *others, at = sorted(reducible, key=lambda at: widths[at])
        next_widest = widths[others[-1]] if others else 0
        widths[at] -= min(over, widths[at] - max(next_widest - 1, least[at - 1]))


def render_listing(
    resource: Resource[Row], rows: Sequence[Row], only: Collection[str] = (), nothing: str = ""
) -> Block:
    """Return the rows of a resource as a table.

    `only`: the columns to list; all, if empty. `nothing`: another text for no rows.
    """
    heads, cells = resource.cells(rows, only)
    return table(heads, cells, nothing or resource.nothing)


def by_words(name: str | None) -> str:
    """Return ` by NAME`; empty if no one answered."""
    return f" by {name}" if name else ""


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True)]
    return _BETWEEN.join(padded).rstrip()
