"""Functions that read a store without its damaged values, which the store sets aside and reports."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.ports.store import Record, Row, Store
from callboard.types.errors import ValueDamaged


async def records_of(store: Store, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
    """Return the readable records after a position."""
    while True:
        try:
            return await store.read(stream, after, limit)
        except ValueDamaged:
            continue  # each failed read sets one record aside, so that the next read gets farther


async def rows_of(store: Store, prefix: str) -> Sequence[Row]:
    """Return the readable rows with a prefix."""
    while True:
        try:
            return await store.keys(prefix)
        except ValueDamaged:
            continue


async def row_of(store: Store, key: str) -> Row | None:
    """Return a row, or None if it does not exist or is damaged."""
    try:
        return await store.get(key)
    except ValueDamaged:
        return None
