"""Execution of a statement. Half of its results have unknown types in apsw; this module adds them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

_connection: Any = apsw.Connection
_execute = _connection.execute
_execute_many = _connection.executemany


def run(connection: apsw.Connection, statement: str, bindings: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a statement to its end and return its rows.

    Raises `apsw.Error`. An unfinished statement would keep the log from shrinking.
    """
    return _execute(connection, statement, bindings).fetchall()


def run_many(connection: apsw.Connection, statement: str, bindings: Sequence[Sequence[object]]) -> None:
    """Run a statement without rows once for each of these bindings, in order. Raises `apsw.Error`."""
    _execute_many(connection, statement, bindings)


def each(connection: apsw.Connection, statement: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows one by one, for results that do not fit into memory. Raises `apsw.Error`."""
    yield from _execute(connection, statement)


def pragma(connection: apsw.Connection, name: str) -> int:
    """Return the value of a numeric pragma."""
    return int(run(connection, f"PRAGMA {name}")[0][0])
