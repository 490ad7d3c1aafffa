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
_BETWEEN = "  "


def as_json(rows: Sequence[object]) -> str:
    """Return a JSON array of the rows. ASCII only: no control character reaches a screen through it."""
    return json.dumps([plain_row(row) for row in rows], indent=2)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Block:
    """Return rows under their heads, aligned; `nothing` is the text if there are none.

    On a screen with too few columns, the widest cells are shortened, except those of the first column, which name the
    rows.
    """
    if not rows:
        return Block((Line(nothing, "dim"),))
    cells = [list(heads), *([shorten(first_line(cell), _CELL) for cell in row] for row in rows)]
    return Block(_rows_within(cells, 0), fit=partial(_rows_within, cells))


def _rows_within(cells: Sequence[Sequence[str]], width: int) -> tuple[Line, ...]:
    """Return the lines of a table, the heads first. `width`: columns of the screen; 0: as many as needed."""
    widths = [max(columns(row[at]) for row in cells) for at in range(len(cells[0]))]
    over = sum(widths) + len(_BETWEEN) * (len(widths) - 1) - width
    while width and over > 0 and (widest := max(widths[1:], default=0)) > _NARROWEST:
        at = len(widths) - 1 - widths[::-1].index(widest)
        next_widest = max([each for place, each in enumerate(widths[1:], 1) if place != at], default=0)
        cut = min(over, widest - max(next_widest - 1, _NARROWEST))
        widths[at] -= cut
        over -= cut
    first, *others = ([shorten(cell, room) for cell, room in zip(row, widths, strict=True)] for row in cells)
    return Line(_aligned(first, widths), "dim"), *(Line(_aligned(row, widths)) for row in others)


def listing(resource: Resource[Row], rows: Sequence[Row], only: Collection[str] = (), nothing: str = "") -> Block:
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
