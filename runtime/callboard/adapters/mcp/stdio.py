"""Messages between a server's pipes and the SDK: one per line, with limits per line and per second.

The SDK reads lines of any length. Here a line over `LONGEST` is dropped. A line that is not a message is dropped and
counted. If such a line is the answer to a call, the call gets an error. A server that floods is read no faster than
`A_SECOND` allows: the pipe fills, and the server waits.

Messages of servers and of the SDK go only into the session's log, because stdout may be a protocol.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, cast

import anyio
import mcp_types as types
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from callboard.core.mcp.results import one_line
from callboard.core.utf8 import storable_json
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

LONGEST = 16 * 1024 * 1024
"""Most bytes of one message."""
A_SECOND = 1_000
"""Most lines, messages or not, that are read from one server per second."""
BYTES_A_SECOND = 64 * 1024 * 1024
_CHUNK = 1 << 16
_ENDS = 512
_FIRST_ID = late_pattern(rb'^\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\b')
_LAST_ID = late_pattern(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Sent = MemoryObjectSendStream[SessionMessage | Exception]


@dataclass(slots=True)
class InputRate:
    """Amount of input in the current second."""

    began: float = 0.0
    lines: int = 0
    bytes: int = 0

    async def keep(self, lines: int, size: int) -> None:
        """Wait for the end of the second if it has had more input than allowed."""
        now = anyio.current_time()
        if now - self.began >= 1:
            self.began = now
            self.lines = 0
            self.bytes = 0
        self.lines += lines
        self.bytes += size
        if self.lines > A_SECOND or self.bytes > BYTES_A_SECOND:
            await anyio.sleep(self.began + 1 - now)


@dataclass(slots=True)
class Lines:
    """Splitter of bytes into whole lines. Of a line over `LONGEST` only the beginning and end are kept."""

    longest: int = LONGEST
    _held: bytearray = field(default_factory=bytearray)
    _over: bytes = b""
    """Beginning of an unfinished line that is too long."""
    dropped: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Beginning and end of lines that were too long."""

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines that end in these bytes."""
        whole: list[bytes] = []
        *ended, remaining = data.split(b"\n")
        for part in ended:
            if self._over:
                self.dropped.append((self._over, bytes(self._held + part)[-_ENDS:]))
                self._over = b""
            else:
                whole.append(bytes(self._held + part))
            self._held.clear()
        self._held += remaining
        if self._over:
            del self._held[:-_ENDS]
        elif len(self._held) > self.longest:
            self._over = bytes(self._held[:_ENDS])
            del self._held[:-_ENDS]
        return [line for line in whole if line.strip()]


async def read_lines(stdout: int, into: Sent, refused: Callable[[str], None]) -> None:
    """Pass on the server's output until it ends, then close `into`.

    `refused`: called with each line that is not a message.
    """
    lines = Lines()
    pace = InputRate()
    async with into:
        while data := await _read(stdout):
            complete = lines.take(data)
            for line in complete:
                await pass_on(line, into, refused)
            while lines.dropped:
                await _answer_dropped(*lines.dropped.pop(), into, refused)
            # Reading pauses to slow the server down: its pipe fills, and it waits.
            await pace.keep(len(complete), len(data))


async def write_lines(stdin: int, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write the SDK's messages until they end or the server accepts no more."""
    async with outgoing:
        async for message in outgoing:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            if not await _write(stdin, data):
                return


async def pass_on(line: bytes, into: Sent, refused: Callable[[str], None]) -> list[types.JSONRPCMessage]:
    """Pass on the messages in a line, or an error in place of an answer in a wrong form. Return what was passed on.

    `refused`: called with a line that is not a message.
    """
    passed: list[types.JSONRPCMessage] = []
    for part in messages_in(line):
        message: types.JSONRPCMessage | None
        try:
            message = _message_in(part)
        except (ValueError, RecursionError) as error:
            refused(f"a line that is not a message: {part[:200].decode(errors='replace')}")
            message = _invalid(part) or _unreadable(part, error)
        if message is not None:
            passed.append(message)
            await into.send(SessionMessage(message))
    return passed


def messages_in(line: bytes) -> list[bytes]:
    """Return the messages of a batch, answers last; the line itself if it is no batch.

    The protocol of 2025-03-26 allows batches.
    """
    if not line.lstrip().startswith(b"["):
        return [line]
    try:
        batch: list[object] = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    batch.sort(key=lambda message: not (isinstance(message, dict) and "method" in message))
    return [json.dumps(message).encode() for message in batch] or [line]


def _message_in(line: bytes) -> types.JSONRPCMessage:
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        # A server that cuts a text may write half of an emoji. The call that waits for its answer must end
        # (test_a_call_that_goes_oddly_gets_an_answer_and_the_next_one_too).
        value = storable_json(json.loads(line.decode(errors="replace")))
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)


def _invalid(line: bytes) -> types.JSONRPCError | None:
    """Return an error response in place of a response in a wrong form; None if the line is no response to a request."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "method" in value or not {"result", "error"} & set(cast("Json", value)):
        return None
    number: object = cast("Json", value).get("id")
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return error_answer(number, f"the answer is not a valid message of the protocol: {one_line(json.dumps(value))}")


def _unreadable(line: bytes, error: Exception) -> types.JSONRPCError | None:
    """Return an error response in place of a response that is not JSON; None unless its id can be read."""
    match = _FIRST_ID.search(line[:_ENDS]) or _LAST_ID.search(line[-_ENDS:])
    if match is None or b'"method"' in line[:_ENDS]:
        return None
    return error_answer(int(match[1]), f"the answer cannot be read: {one_line(str(error))}")


async def _answer_dropped(first: bytes, last: bytes, into: Sent, refused: Callable[[str], None]) -> None:
    refused(f"a message of over {LONGEST:,} bytes was dropped")
    if answer := _too_long(first, last):
        await into.send(SessionMessage(answer))


def _too_long(first: bytes, last: bytes) -> types.JSONRPCError | None:
    """Return an error response in place of a response that was too long.

    None unless the id of the response is visible at its beginning or end.
    """
    # The call that waits for this answer must end too (test_an_answer_that_is_too_long_is_an_error_of_its_own_call).
    match = _FIRST_ID.search(first) or _LAST_ID.search(last)
    if match is None:
        return None
    return error_answer(int(match[1]), f"the answer has over {LONGEST:,} bytes and was dropped")


def error_answer(number: types.RequestId, message: str, code: int = types.INTERNAL_ERROR) -> types.JSONRPCError:
    """Return an error response to a request."""
    return types.JSONRPCError(jsonrpc="2.0", id=number, error=types.ErrorData(code=code, message=message))


async def _read(stdout: int) -> bytes:
    """Return the next bytes; empty at the end. Always lets other tasks run first."""
    while True:
        # A read in a thread could not be cancelled.
        await anyio.wait_readable(stdout)
        try:
            return os.read(stdout, _CHUNK)
        except BlockingIOError:
            continue  # woken without data


async def _write(stdin: int, data: bytes) -> bool:
    """Write all of it. Return False if the reader has gone."""
    remaining = memoryview(data)
    while remaining:
        try:
            remaining = remaining[os.write(stdin, remaining) :]
        except BlockingIOError:
            await anyio.wait_writable(stdin)
        except OSError:
            return False
    return True


_SDK_LOGGERS = ("mcp", "client", "httpx2")
"""Loggers whose messages would reach the terminal without a handler."""


def tell(event: str, *, debug: bool = False, **fields: str) -> None:
    """Write a line to the log, if the session has one.

    The logger is fetched each time, because an older one might print.
    """
    if structlog.is_configured():
        log = structlog.get_logger("callboard.mcp")
        (log.debug if debug else log.info)(event, **fields)


@contextmanager
def words_of_sdk() -> Generator[None]:
    """Redirect the SDK's log lines while the block runs."""
    handler = _ToLog(logging.WARNING)
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in _SDK_LOGGERS:
            logging.getLogger(name).removeHandler(handler)


class _ToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("sdk", debug=True, text=record.getMessage()[:2_000])
