"""The pump between a server's pipes and the SDK: one message a line, every line and every second with a bound.

The SDK reads lines without a limit. Here a line over `LONGEST` is dropped (the call it answered is told so), a line
that is no message is dropped and counted, and a server that floods is read no faster than `A_SECOND` allows: the pipe
fills, and the server waits instead of us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

LONGEST = 16 * 1024 * 1024
"""Bytes of one message."""
A_SECOND = 1_000
"""Messages, or lines that are none, that are read of one server in a second."""
BYTES_A_SECOND = 64 * 1024 * 1024
_CHUNK = 1 << 16
_ENDS = 512
_FIRST_ID = re.compile(rb'^\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\b')
_LAST_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Sent = MemoryObjectSendStream[SessionMessage | Exception]


@dataclass(slots=True)
class Pace:
    """How much came in the second that runs."""

    began: float = 0.0
    lines: int = 0
    bytes: int = 0

    async def keep(self, lines: int, size: int) -> None:
        """Wait for the end of the second when more came in it than may."""
        now = anyio.current_time()
        if now - self.began >= 1:
            self.began, self.lines, self.bytes = now, 0, 0
        self.lines += lines
        self.bytes += size
        if self.lines > A_SECOND or self.bytes > BYTES_A_SECOND:
            await anyio.sleep(self.began + 1 - now)


@dataclass(slots=True)
class Lines:
    """Bytes as they come -> whole lines; what is over `LONGEST` is forgotten but for its two ends."""

    longest: int = LONGEST
    _held: bytearray = field(default_factory=bytearray)
    _over: bytes = b""
    """The beginning of a line that is too long and has not ended."""
    dropped: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Beginning and end of lines that were too long."""

    def take(self, data: bytes) -> list[bytes]:
        """The lines that end in these bytes."""
        whole: list[bytes] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            if self._over:
                self.dropped.append((self._over, bytes(self._held + part)[-_ENDS:]))
                self._over = b""
            else:
                whole.append(bytes(self._held + part))
            self._held.clear()
        self._held += rest
        if self._over:
            del self._held[:-_ENDS]
        elif len(self._held) > self.longest:
            self._over = bytes(self._held[:_ENDS])
            del self._held[:-_ENDS]
        return [line for line in whole if line.strip()]


async def read_lines(stdout: int, into: Sent, refused: Callable[[str], None]) -> None:
    """Pass on what the server writes until it ends. `refused`: hears what was no message. Closes `into`."""
    lines, pace = Lines(), Pace()
    async with into:
        while data := await _read(stdout):
            found = lines.take(data)
            for line in found:
                await _pass_on(line, into, refused)
            while lines.dropped:
                await _answer_dropped(*lines.dropped.pop(), into, refused)
            await pace.keep(len(found), len(data))


async def write_lines(stdin: int, given: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write what the SDK sends until it ends or the server takes no more."""
    async with given:
        async for message in given:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            if not await _write(stdin, data):
                return


async def _pass_on(line: bytes, into: Sent, refused: Callable[[str], None]) -> None:
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        refused(f"a line that is no message: {line[:200].decode(errors='replace')}")
        return
    await into.send(SessionMessage(message))


async def _answer_dropped(first: bytes, last: bytes, into: Sent, refused: Callable[[str], None]) -> None:
    refused(f"a message of over {LONGEST:,} bytes was dropped")
    if answer := _too_long(first, last):
        await into.send(SessionMessage(answer))


def _too_long(first: bytes, last: bytes) -> types.JSONRPCError | None:
    """An answer in place of one that was too long, where its id can be seen at one of its ends."""
    found = _FIRST_ID.search(first) or _LAST_ID.search(last)
    if found is None:
        return None
    words = f"the answer has over {LONGEST:,} bytes and was dropped"
    return types.JSONRPCError(
        jsonrpc="2.0", id=int(found[1]), error=types.ErrorData(code=types.INTERNAL_ERROR, message=words)
    )


async def _read(stdout: int) -> bytes:
    """The next bytes; none at the end. Always lets others run first."""
    while True:
        await anyio.wait_readable(stdout)
        try:
            return os.read(stdout, _CHUNK)
        except BlockingIOError:
            continue  # woken for nothing


async def _write(stdin: int, data: bytes) -> bool:
    """Write all of it; False when nobody reads any more."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(stdin, left) :]
        except BlockingIOError:
            await anyio.wait_writable(stdin)
        except OSError:
            return False
    return True
