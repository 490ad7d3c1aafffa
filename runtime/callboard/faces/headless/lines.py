"""The lines of stdin, as a client writes them: read without holding up the loop, each with its number.

It refuses to know what stands in a line, save that a longer one than `LONGEST` is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import cast

import anyio

from callboard.words.errors import UsageError
from callboard.words.values import Json

LONGEST = 10_000_000
"""Bytes of one line: as much as the protocol lets a client send."""
_PIECE = 1 << 16


async def lines_of(descriptor: int) -> AsyncGenerator[tuple[int, bytes]]:
    """Each line with its number from 1, without its end, until the input ends; the last one may lack an end.

    Raises `UsageError` for a line of more than `LONGEST` bytes.
    """
    rest, number = bytearray(), 0
    while piece := await _piece(descriptor):
        rest += piece
        if b"\n" in piece:
            *whole, tail = rest.split(b"\n")
            rest = bytearray(tail)
            for line in whole:
                number += 1
                yield number, _fitting(bytes(line), number)
        _fitting(rest, number + 1)
    if rest.strip():
        yield number + 1, bytes(rest)


async def _piece(descriptor: int) -> bytes:
    """What there is to be read, as soon as there is something; nothing at the end."""
    try:
        await anyio.wait_readable(descriptor)
    except (OSError, ValueError):
        await anyio.lowlevel.checkpoint()  # a file or /dev/null cannot be waited for, and never makes anyone wait
    try:
        return os.read(descriptor, _PIECE)
    except OSError:
        return b""  # a terminal that has gone: the input has ended


def _fitting(line: bytes | bytearray, number: int) -> bytes:
    if len(line) > LONGEST:
        raise UsageError(f"line {number} of stdin has more than {LONGEST:,} bytes: put what is long into a file")
    return line if isinstance(line, bytes) else b""


def message_in(line: bytes, number: int) -> Json | None:
    """The message in a line; None for an empty one. Raises `UsageError`, with the line's number, for what is none."""
    if not line.strip():
        return None
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of stdin is not JSON: {error}. Each line is one message") from error
    if not isinstance(value, dict) or not isinstance(cast("Json", value).get("type"), str):
        raise UsageError(f"line {number} of stdin is no message: a JSON object with a `type` is expected")
    return cast("Json", value)
