"""Execution of SQL statements, with the types of results that apsw leaves unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

_connection: Any = apsw.Connection
_execute = _connection.execute
_ROWS = 32
"""Most rows of one statement. Each number of rows is a statement of its own, and apsw keeps 100 prepared ones."""


def run(connection: apsw.Connection, statement: str, bindings: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a statement to its end and return its rows.

    Raises `apsw.Error`. An unfinished statement would keep the log from shrinking.
    """
    return _execute(connection, statement, bindings).fetchall()


def insert(connection: apsw.Connection, into: str, rows: Sequence[Sequence[object]], otherwise: str = "") -> None:
    """Insert rows in order, with as few statements as possible. Raises `apsw.Error`.

    `otherwise`: what to do on a conflict.
    """
    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        row = f"({', '.join('?' * len(part[0]))})"
        statement = f"{into} VALUES {', '.join([row] * len(part))} {otherwise}"
        _execute(connection, statement, [value for values in part for value in values])


def each(connection: apsw.Connection, statement: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows one by one, for results that do not fit into memory. Raises `apsw.Error`."""
    yield from _execute(connection, statement)


def pragma(connection: apsw.Connection, name: str) -> int:
    """Return the value of a numeric pragma."""
    return int(run(connection, f"PRAGMA {name}")[0][0])
