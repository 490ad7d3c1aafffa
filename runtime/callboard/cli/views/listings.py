"""Rows of the store as listings: a table for a person, JSON for a script. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TypeVar

from callboard.cli.terminal.terminal import Block, Line, columns
from callboard.cli.views.events import first_line, shorten
from callboard.sessions.inspect.resources import Resource, plain_row

Row = TypeVar("Row")

_CELL = 60
"""Limit of the columns of one cell."""


def as_json(rows: Sequence[object]) -> str:
    """Return a JSON array of the rows. ASCII only: no control character reaches a screen through it."""
    return json.dumps([plain_row(row) for row in rows], indent=2)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Block:
    """Return rows under their heads, aligned; `nothing` is the text if there are none."""
    if not rows:
        return Block((Line(nothing, "dim"),))
    cells = [[shorten(first_line(cell), _CELL) for cell in row] for row in rows]
    widths = [max(columns(row[at]) for row in [list(heads), *cells]) for at in range(len(heads))]
    head = Line(_aligned(heads, widths), "dim")
    return Block((head, *(Line(_aligned(row, widths)) for row in cells)))


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
    return "  ".join(padded).rstrip()
