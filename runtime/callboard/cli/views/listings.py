"""Rows of the store as listings: a table for a person, JSON for a script. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from callboard.cli.terminal.terminal import Block, Line, columns
from callboard.cli.views.events import first_line, shorten

_CELL = 60
"""Most columns of one cell."""


def as_json(rows: Sequence[object]) -> str:
    """Return a JSON array of the rows. ASCII only: no control character reaches a screen through it."""
    return json.dumps([plain_row(row) for row in rows], indent=2)


def plain_row(row: object) -> Any:
    """Return a row as JSON types."""
    if isinstance(row, BaseModel):
        return row.model_dump(mode="json")
    if is_dataclass(row) and not isinstance(row, type):
        return {name: plain_row(value) for name, value in asdict(row).items()}
    return row


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Block:
    """Return rows under their heads, aligned; `nothing` is the text if there are none."""
    if not rows:
        return Block((Line(nothing, "dim"),))
    cells = [[shorten(first_line(cell), _CELL) for cell in row] for row in rows]
    widths = [max(columns(row[at]) for row in [list(heads), *cells]) for at in range(len(heads))]
    head = Line(_aligned(heads, widths), "dim")
    return Block((head, *(Line(_aligned(row, widths)) for row in cells)))


def when(at: float | None) -> str:
    """Return a time in this machine's time zone; empty for none."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def by_words(name: str | None) -> str:
    """Return ` by NAME`; empty if nobody answered."""
    return f" by {name}" if name else ""


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()
