"""Transport over the older HTTP with server-sent events.

The server's event stream first names the endpoint that takes messages, then carries all answers. Unlike the SDK's
transport of this kind, this one reports each failure at once: an endpoint that cannot be used is the error of the
connection, a message that the server does not take is the error of its call, and the end of the stream ends all calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage

from callboard.adapters.mcp.stdio import LONGEST, InputRate, Sent, error_answer, pass_on
from callboard.core.mcp.results import one_line
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass

BY_STATUS = "Server returned an error response"
"""The SDK's text for an HTTP status of 400 and above whose body has no details; the same is used here."""
NOTICE = 30.0
"""Most seconds for sending a message that is not a request, before the next one is sent."""
_EVENTS = "text/event-stream"
_MOST_REDIRECTS = 5
_UNAUTHORIZED = 401
_SHORT = 65_536
"""Most bytes of the body of a response to a message that are read, so that its connection can be used again."""


@asynccontextmanager
async def event_streams(
    client: httpx2.AsyncClient, url: str, *, refused: Callable[[str], None], ended: Callable[[str], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """Connect to a server, and yield the streams to read from and write to.

    `refused`: called with each event that is not a message. `ended`: called with the reason when the stream ends.
    Raises `ToolRefused` for a response that is no event stream and for an endpoint that cannot be used, and the
    exceptions of httpx2.
    """
    async with _opened(client, url) as response:
        into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        carrier = _Carrier(client, httpx2.URL(url), response, into, refused, ended)
        with into, read, write, outgoing:
            async with carrier.carry_messages(outgoing):
                yield read, write


@asynccontextmanager
async def _opened(client: httpx2.AsyncClient, url: str) -> AsyncGenerator[httpx2.Response]:
    response = await _response(client, "GET", url, headers={"accept": _EVENTS, "cache-control": "no-store"})
    try:
        _check(response)
        yield response
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


@dataclass
class _Carrier:
    """Carrier of the messages of one connection."""

    client: httpx2.AsyncClient
    url: httpx2.URL
    response: httpx2.Response
    into: Sent
    refused: Callable[[str], None]
    ended: Callable[[str], None]
    endpoint: str = ""
    named: anyio.Event = field(default_factory=anyio.Event)
    """Set once the server has named its endpoint."""
    waiting: set[types.RequestId] = field(default_factory=set[types.RequestId])
    """Ids of requests without an answer."""

    @asynccontextmanager
    async def carry_messages(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> AsyncGenerator[None]:
        """Carry messages in both directions for the block."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.read)
            group.start_soon(self.write, outgoing)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    async def read(self) -> None:
        """Pass on the server's messages until its stream ends. Raises `ToolRefused` for a wrong endpoint."""
        reason = "the server closed its event stream"
        try:
            await self._events()
        except httpx2.HTTPError as error:
            reason = f"its event stream failed: {_error_text(error)}"
        if not self.named.is_set():
            raise ToolRefused(f"{reason} before its first event `endpoint`, which names the address for messages")
        async with self.into:
            for number in self.waiting:
                await self.into.send(SessionMessage(error_answer(number, reason, types.CONNECTION_CLOSED)))
        self.ended(reason)

    async def _events(self) -> None:
        pace = InputRate()
        async for event in httpx2.EventSource(self.response, max_event_size=LONGEST):
            if event.event == "endpoint" and not self.named.is_set():
                self.endpoint = _endpoint(self.url, event.data)
                self.named.set()
            elif event.event == "message" and event.data:
                passed = await pass_on(event.data.encode(errors="replace"), self.into, self.refused)
                answers = (
                    message for message in passed if isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
                )
                self.waiting.difference_update(answer.id for answer in answers if answer.id is not None)
            await pace.keep(1, len(event.data))

    async def write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send the SDK's messages, each after the one before it, but no request waits for the response to another."""
        await self.named.wait()
        async with outgoing, anyio.create_task_group() as group:
            async for sent in outgoing:
                if isinstance(sent.message, types.JSONRPCRequest):
                    self.waiting.add(sent.message.id)
                    group.start_soon(self._send, sent.message)
                    continue
                with anyio.move_on_after(NOTICE):
                    await self._send(sent.message)

    async def _send(self, message: types.JSONRPCMessage) -> None:
        """Send a message. A request that the server does not take is answered with an error."""
        body = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        try:
            response = await _response(self.client, "POST", self.endpoint, json=body)
            try:
                await _read_short(response)
                fault = types.INTERNAL_ERROR, _fault_of(response)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            fault = types.CONNECTION_CLOSED, f"the server did not take the message: {_error_text(error)}"
        code, text = fault
        if text and isinstance(message, types.JSONRPCRequest):
            self.waiting.discard(message.id)
            await self.into.send(SessionMessage(error_answer(message.id, text, code)))


def _fault_of(response: httpx2.Response) -> str:
    """Return the error message of a response to a message; empty if the server took it."""
    if response.status_code >= 400:
        return BY_STATUS
    return _redirect(response) if response.next_request is not None else ""


async def _read_short(response: httpx2.Response) -> None:
    """Read a short body, so that its connection can be used again. All answers come in the event stream."""
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= _SHORT:
        await response.aread()


async def _response(client: httpx2.AsyncClient, method: str, url: str, **fields: Any) -> httpx2.Response:
    """Return the open response to a request.

    A redirect is followed only to the same server and with the same method, as the SDK does.
    """
    request = client.build_request(method, url, **fields)
    for _ in range(_MOST_REDIRECTS):
        response = await client.send(request, stream=True, follow_redirects=False)
        onward = response.next_request
        if onward is None or onward.method != method or _origin(onward.url) != _origin(request.url):
            return response
        await response.aclose()
        request = onward
    return await client.send(request, stream=True, follow_redirects=False)


def status_reason(status: int) -> str:
    """Return the failure that an HTTP status of 400 and above means, with a way out if the user has one."""
    reason = f"the server answered with HTTP {status}"
    if status != _UNAUTHORIZED:
        return reason
    return f"{reason}: it wants credentials: name a token in `headers` of its entry (OAuth is not supported)"


def _check(response: httpx2.Response) -> None:
    """Raise `ToolRefused` for a response that is no event stream."""
    if response.status_code >= 400:
        raise ToolRefused(status_reason(response.status_code))
    if response.next_request is not None:
        raise ToolRefused(_redirect(response))
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _EVENTS:
        raise ToolRefused(f"its answer is not an event stream ({_EVENTS}), but {kind or 'has no content type'}")


def _redirect(response: httpx2.Response) -> str:
    assert response.next_request is not None
    target = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
    return f"the server redirects to {target}, which is not followed: write the address that you want into its `url`"


def _endpoint(url: httpx2.URL, written: str) -> str:
    """Return the address that takes messages. Raises `ToolRefused`."""
    try:
        # Messages carry the headers of the entry, which are meant for its server only.
        address = url.join(written).copy_with(userinfo=url.userinfo)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolRefused(f"its event `endpoint` is not an address: {one_line(written, 200)}: {error}") from None
    if _origin(address) != _origin(url):
        where = address.copy_with(userinfo=b"", query=None, fragment=None)
        raise ToolRefused(f"its event `endpoint` names another server: {where}: messages go only to that of its `url`")
    return str(address)


def _error_text(error: httpx2.HTTPError) -> str:
    return one_line(str(error)).rstrip(".") or type(error).__name__


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
