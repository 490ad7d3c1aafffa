"""One answer of the Messages API as bytes on a connection, and every way in which it can go wrong there."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from tests.adapters.models.anthropic_wire import HEAD, Exchange

Json = dict[str, Any]

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STUFFING = PING * 400_000
"""20 MB: more than the buffers of a local connection hold."""
PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


@dataclass
class Talk:
    """The answer to one request: what it would be, and what of it went out."""

    exchange: Exchange
    events: Sequence[Json]
    used: dict[str, int] = field(default_factory=dict[str, int])
    """What the client was told that the call used, which is what is billed."""
    whole: bool = False
    """All of it went out."""
    unread: bool = False
    """Of what went out nobody knows how much the client has read: `used` is billed, and may never have been told."""
    redo: bool = False
    """Its last call is to be asked for once more."""

    @property
    def middle(self) -> int:
        return len(self.events) // 2

    def head(self) -> None:
        self.exchange.writer.write(HEAD)

    async def send(self, first: int = 0, last: int | None = None) -> None:
        """Some of the events."""
        for one in self.events[first:last]:
            await self.exchange.chunk(data_of(one))
            self.used = {**self.used, **used_by(one)}
            self.whole = one["type"] == "message_stop"

    async def raw(self, data: bytes) -> None:
        """Anything, as a chunk of the stream."""
        await self.exchange.chunk(data)

    async def end(self) -> None:
        """The stream ends as HTTP has it."""
        self.exchange.writer.write(b"0\r\n\r\n")
        await self.exchange.writer.drain()

    def reset(self) -> None:
        """The other side sees ECONNRESET, behind what it was sent."""
        socket_of = self.exchange.writer.get_extra_info("socket")
        socket_of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.exchange.reset()

    async def hold(self) -> None:
        """Say nothing until the other side leaves."""
        while await self.exchange.reader.read(1 << 16):
            pass


Play = Callable[[Talk], Awaitable[None]]
"""A way to answer."""


def data_of(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def used_by(event: Json) -> dict[str, int]:
    """The counts that an event tells; a later one replaces an earlier one."""
    message: Json = event.get("message", {})
    usage: Json = event.get("usage") or message.get("usage") or {}
    return {name: usage[name] for name in COUNTS if name in usage}


async def whole(talk: Talk) -> None:
    """No fault at all."""
    talk.head()
    await talk.send()
    await talk.end()


# Answers that are errors


async def error(talk: Talk, status: int, kind: str, message: str, headers: Sequence[str] = ()) -> None:
    await talk.exchange.error(f"{status} Error", kind, message, *headers)


async def page(talk: Talk, status: int) -> None:
    await talk.exchange.answer(f"{status} Error", PAGE, "content-type: text/html")


async def wrong_shape(talk: Talk) -> None:
    await talk.exchange.answer("200 OK", b'{"ok": true, "data": null}', "content-type: application/json")


async def page_for_stream(talk: Talk) -> None:
    await talk.exchange.answer("200 OK", PAGE, "content-type: text/html")


async def short_error(talk: Talk) -> None:
    """The connection is lost inside the body of an error."""
    head = b"HTTP/1.1 500 Error\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
    talk.exchange.writer.write(head + b'{"type": "error", "err')
    talk.exchange.writer.close()


# Connections that are lost


async def reset_at_once(talk: Talk) -> None:
    talk.reset()


async def closed_at_once(talk: Talk) -> None:
    talk.exchange.writer.close()


async def reset_after_head(talk: Talk) -> None:
    talk.head()
    talk.reset()


async def reset_in(talk: Talk, number: int) -> None:
    """Lost inside event `number`: half of it went out."""
    talk.head()
    await talk.send(0, number)
    data = data_of(talk.events[min(number, len(talk.events) - 1)])
    await talk.raw(data[: len(data) // 2])
    await asyncio.sleep(1)  # libraries drop what was not read when the connection is lost
    talk.reset()


async def reset_unread(talk: Talk, read: int = 0) -> None:
    """A reset that overtakes all but the first `read` events of a half: they were sent, and stand behind more than the
    connection takes when it is lost."""
    talk.head()
    await talk.send(0, read)
    await asyncio.sleep(1)
    talk.unread = True
    talk.exchange.writer.write(b"%x\r\n%s\r\n" % (len(STUFFING), STUFFING))
    for one in talk.events[read : talk.middle]:
        talk.exchange.writer.write(b"%x\r\n%s\r\n" % (len(data_of(one)), data_of(one)))
        talk.used = {**talk.used, **used_by(one)}
    talk.reset()


async def ended_before(talk: Talk, number: int) -> None:
    """The stream ends as if that were all, before event `number`."""
    talk.head()
    await talk.send(0, number)
    await talk.end()


async def ended_in(talk: Talk) -> None:
    talk.head()
    await talk.send(0, talk.middle)
    await talk.raw(data_of(talk.events[talk.middle])[:40])
    await talk.end()


# Silence


async def silent_at_once(talk: Talk) -> None:
    await talk.hold()


async def silent_after_head(talk: Talk) -> None:
    talk.head()
    await talk.hold()


async def silent_in(talk: Talk) -> None:
    talk.head()
    await talk.send(0, talk.middle)
    await talk.hold()


async def pings(talk: Talk, before: int) -> None:
    """Pings for an hour, and nothing else."""
    talk.head()
    await talk.send(0, before)
    await every(10.0, 360, talk, PING)


async def trickle(talk: Talk) -> None:
    """A piece of text in time for each time-out but the last: the whole call's."""
    talk.head()
    await talk.send(0, 3)
    piece: Json = {"type": "content_block_delta", "index": 0}
    kind = talk.events[2]["content_block"]["type"]
    piece["delta"] = (
        {"type": "text_delta", "text": "so "} if kind == "text" else {"type": "thinking_delta", "thinking": "so "}
    )
    await every(50.0, 72, talk, data_of(piece))


async def every(seconds: float, times: int, talk: Talk, data: bytes) -> None:
    """The same again and again, until the other side leaves."""
    for _ in range(times):
        with anyio.move_on_after(seconds):
            await talk.hold()
            return
        await talk.raw(data)
    await talk.hold()


async def slow(talk: Talk, first: float, between: float) -> None:
    """Late, but in time."""
    await asyncio.sleep(first)
    talk.head()
    await talk.send(0, talk.middle)
    await asyncio.sleep(between)
    await talk.send(talk.middle)
    await talk.end()


# Streams that are none


async def bad_event(talk: Talk, data: bytes) -> None:
    talk.head()
    await talk.send(0, talk.middle)
    used = talk.used
    await talk.raw(data)
    await talk.send(talk.middle)
    await talk.end()
    talk.used, talk.whole = used, False  # nobody reads what comes after


async def bad_chunk(talk: Talk) -> None:
    talk.head()
    await talk.send(0, talk.middle)
    await asyncio.sleep(1)  # what is read together with bad framing is lost with it
    talk.exchange.writer.write(b"zz\r\nno chunk at all\r\n")
    await talk.hold()


async def error_event(talk: Talk, kind: str, at_end: bool = False) -> None:
    talk.head()
    await talk.send(0, len(talk.events) - 1 if at_end else talk.middle)
    await talk.raw(data_of({"type": "error", "error": {"type": kind, "message": f"in the middle: {kind}"}}))
    await talk.end()


# Whole replies that cannot be used as they are


async def cut_input(talk: Talk) -> None:
    """The stream is whole, but the JSON of its last call is not."""
    await whole(_changed(talk, {}))
    talk.redo = True


async def stopped(talk: Talk, reason: str) -> None:
    """The reply stops early, inside the input of its last call where it has one."""
    await whole(_changed(talk, {"stop_reason": reason}))
    talk.whole = False


def _changed(talk: Talk, delta: Mapping[str, str]) -> Talk:
    """The same answer, its last piece of a call's input left out."""
    pieces = [n for n, one in enumerate(talk.events) if one.get("delta", {}).get("type") == "input_json_delta"]
    kept = [one for n, one in enumerate(talk.events) if n not in pieces[-1:]]
    talk.events = [
        {**one, "delta": {**one["delta"], **delta}} if one["type"] == "message_delta" else one for one in kept
    ]
    return talk
