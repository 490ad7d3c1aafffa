"""Reading of a store that skips damaged values. The store sets them aside and reports them."""

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
            continue  # each read that fails sets one record aside, so that the next one gets farther


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
