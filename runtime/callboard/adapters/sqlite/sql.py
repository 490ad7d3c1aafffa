"""Running a statement. apsw's own types call half of its results unknown; here that is said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import apsw


def run(connection: apsw.Connection, statement: str, bindings: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run it to its end; its rows. Raises `apsw.Error`. A statement left half-way would keep the log from shrinking."""
    return cast(Any, connection).execute(statement, bindings).fetchall()


def each(connection: apsw.Connection, statement: str) -> Iterator[tuple[Any, ...]]:
    """Its rows one by one, for more than fit into memory. Raises `apsw.Error`."""
    yield from cast(Any, connection).execute(statement)


def pragma(connection: apsw.Connection, name: str) -> int:
    """The value of a numeric pragma."""
    return int(run(connection, f"PRAGMA {name}")[0][0])
