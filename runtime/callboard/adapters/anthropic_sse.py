"""Server-sent events, read lightly: bytes as they come in, JSON objects out.

Chunks may end anywhere: inside a line, inside a character, between `\\r` and `\\n`. Only `data` fields count, since the
Messages API repeats the event's name in its `type`. Refused with `BadEvent`: data that is not a JSON object, and an
event larger than `MAX_EVENT`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from pydantic_core import from_json

from callboard.words.values import Json

MAX_EVENT = 32_000_000
"""Bytes of one event. The largest legal one is a whole block of a server's tool; more is a fault or an attack."""


class BadEvent(Exception):
    """The stream holds what no Messages API sends; the text says what."""


class EventReader:
    """The state between two chunks of one stream."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        """The line that has not ended yet."""
        self._data: list[bytes] = []
        """The `data` lines of the event that has not ended yet."""

    def feed(self, chunk: bytes) -> Iterator[Json]:
        """The events that end in this chunk. Raises `BadEvent`."""
        text = self._rest + chunk if self._rest else chunk
        lines = text.splitlines(keepends=True)  # of bytes: only at \n, \r\n and \r, as the standard says
        # A lone \r at the end may be the first half of \r\n: it waits for the next chunk.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > MAX_EVENT:
            raise BadEvent(f"an event of more than {MAX_EVENT:,} bytes")
        for line in lines:
            event = self._take(line.rstrip(b"\r\n"))
            if event is not None:
                yield event

    def _take(self, line: bytes) -> Json | None:
        """One whole line; an empty one ends the event."""
        if not line:
            data, self._data = self._data, []
            return _object(b"\n".join(data)) if data else None
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            if len(self._data) > 1 and sum(map(len, self._data)) > MAX_EVENT:
                raise BadEvent(f"an event of more than {MAX_EVENT:,} bytes")
        return None


def _object(data: bytes) -> Json:
    try:
        value: object = _parsed(data)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"an event that is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadEvent("an event that is not a JSON object")
    return cast("Json", value)


def _parsed(data: bytes) -> object:
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)  # slower, and it takes half a surrogate pair, which a stream may cut a character into
