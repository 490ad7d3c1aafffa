"""Calls of the Messages API over an HTTP client, whoever made that client: the SDK, or a rehearsal on a loopback port.

The body is bytes that are ready, and the events are read lightly
(docs/decisions/0003-request-bytes-and-light-parsing.md). Retries are not made here, redirects are not followed (they
would carry the key elsewhere), and whatever a library raises becomes a `CallFault`, once, here.
It runs on asyncio only, because the SDK's transport does.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import anyio
import httpx2  # the SDK's own HTTP library

from callboard.adapters.anthropic_faults import Answer, Wording, fault_of_answer, fault_of_event
from callboard.adapters.anthropic_rates import rates_of
from callboard.adapters.anthropic_reply import ReplyBuilder, ServiceError
from callboard.adapters.anthropic_request import OWN_HEADERS, body_pieces, content_of, headers_of
from callboard.adapters.anthropic_sse import BadEvent, EventReader
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.words.rates import Rates
from callboard.words.values import Fault

LIMITS = httpx2.Limits(max_connections=1_000, keepalive_expiry=20.0)
TIMEOUT = httpx2.Timeout(None, connect=20.0)
"""Seconds. A call's own time limits are the scope of the call."""

_CLOSING_S = 0.25
"""How long the end of a stream, or of a connection, may take: the reply is known, or given up, by then."""

_UNTRUSTED = "If it is your own authority's, name its certificate in SSL_CERT_FILE"
_UNCONNECTED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
    aiohttp.ClientConnectorError,
)
"""What they raise where no connection came about: refused, no such name, no TLS, no way through the proxy."""
_FOREIGN = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, aiohttp.ClientError, OSError)
"""What the HTTP libraries raise. `OSError` holds resets, TLS errors and time-outs of the system."""


class Service(Protocol):
    """Where the calls go, and who says in each request what the service wants to hear."""

    @property
    def secret(self) -> str:
        """The key, which no message may hold."""
        ...

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send a request with these headers and its own; `stream`: do not read the answer's body.

        Raises `Refused` for an answer that is an error, `Lost`, and what the HTTP libraries raise.
        """
        ...

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send one that is like a request that `post` has sent; the answer's body is not read, nor its status heeded.

        Raises RuntimeError once the connections are closed, and what the HTTP libraries raise.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        ...


class HttpModel:
    """A model service that speaks the Messages API. One object, one connection pool, for all agents of a key."""

    def __init__(self, service: Service, *, wording: Wording | None = None) -> None:
        self._service, self._wording = service, wording or Wording()
        self._like: _Like | None = None
        """Set by the first call."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call. Raises `CallFault` and nothing else."""
        call, rates = _Call(request, ReplyBuilder(on_delta)), None
        try:
            with call.scope:
                return await self._stream(call)
        except ServiceError as error:
            fault = fault_of_event(error.error, call.request_id, self._wording)
        except BadEvent as error:
            message = f"the service sent {error}"
            fault = Fault(kind="bad_reply", message=message, request_id=call.request_id, may_bill=True)
        except Refused as error:
            fault = self._fault_of_status(error.response, error.body)
            rates = rates_of(_plain(error.response), time.time())
        except (Lost, *_FOREIGN) as error:
            fault = _lost(error, call.request_id)
        else:
            fault = call.silence()
        raise self._failed(call, fault, rates, on_delta)

    async def count(self, request: ModelRequest) -> int:
        """Ask `/v1/messages/count_tokens`. Raises `CannotCount` and nothing else."""
        try:
            with anyio.fail_after(request.total_timeout):
                return _counted(await self._send_count(request))
        except Refused as error:
            fault = self._fault_of_status(error.response, error.body)
            why = f"HTTP {error.response.status_code}: {fault.message}"
        except TimeoutError:
            why = f"no answer within {request.total_timeout:g} s"
            fault = Fault(kind="silence", type="total", message=why)
        except (Lost, *_FOREIGN) as error:
            fault = _lost(error)
            why = fault.message
        raise CannotCount(self._unkeyed(why), fault.model_copy(update={"message": self._unkeyed(fault.message)}))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._service.aclose()

    async def _stream(self, call: _Call) -> Reply:
        response = await self._send(call.request)
        try:
            headers = _plain(response)
            call.request_id = headers.get("request-id")
            rates = rates_of(headers, time.time()) if call.request.on_head else None
            if call.request.on_head and rates:
                call.request.on_head(rates)
            body = response.aiter_bytes() if "content-encoding" in headers else response.aiter_raw()
            async with aclosing(body) as chunks:
                await _read(call, chunks)
                reply = call.builder.reply()
                await _read_end(chunks)
                return reply
        finally:
            await _let_go(response)

    async def _send(self, request: ModelRequest) -> httpx2.Response:
        """The answer, its body not read yet. Raises `Refused` for one that is an error."""
        pieces = body_pieces(request)
        size = sum(map(len, pieces))
        headers, content = headers_of(request, size), content_of(pieces, size)
        if self._like is None:
            response = await self._service.post("/v1/messages", headers, content, stream=True)
            self._like = _Like.of(response.request)
            return response
        like = self._like.request(headers, content)
        try:
            response = await self._service.send(like)
        except RuntimeError as error:  # the client was closed in the meantime
            raise Lost(str(error), sent=False) from error
        return await accepted(response)

    async def _send_count(self, request: ModelRequest) -> httpx2.Response:
        pieces = body_pieces(request)
        size = sum(map(len, pieces))
        headers, content = headers_of(request, size), content_of(pieces, size)
        return await self._service.post("/v1/messages/count_tokens", headers, content, stream=False)

    def _fault_of_status(self, response: httpx2.Response, body: object) -> Fault:
        return fault_of_answer(Answer(response.status_code, _plain(response), body, time.time()), self._wording)

    def _unkeyed(self, text: str) -> str:
        """Without the key: services have been seen to quote it."""
        return text.replace(self._service.secret, "[key]")

    def _failed(self, call: _Call, fault: Fault, rates: Rates | None, on_delta: OnDelta) -> CallFault:
        message = self._unkeyed(fault.message)
        fault = fault.model_copy(update={"message": message, "usage": call.builder.usage})
        if call.builder.streamed:
            on_delta(Delta("dropped", f"{fault.kind}: {message}"))
        return CallFault(fault, call.builder.partial, rates)


@dataclass(frozen=True, slots=True)
class _Like:
    """What is in every request, taken from the first one: credentials, headers, URL, time limits."""

    url: httpx2.URL
    headers: Sequence[tuple[bytes, bytes]]
    encoding: str
    """Of the headers: the library would find it out anew for each request."""
    extensions: Mapping[str, object]

    @classmethod
    def of(cls, sent: httpx2.Request) -> _Like:
        """What other requests have in common with this one."""
        kept = tuple((name, value) for name, value in sent.headers.raw if name.lower() not in OWN_HEADERS)
        return cls(sent.url, kept, sent.headers.encoding, dict(sent.extensions))

    def request(self, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]) -> httpx2.Request:
        """Another request, with headers and a body of its own.

        Its headers are whole, `host` and the length among them, so the library need not look for those that lack.
        """
        ours = [(name.encode(), value.encode()) for name, value in headers.items()]
        stream = httpx2.ByteStream(content) if isinstance(content, bytes) else _Pieces(content)
        request = httpx2.Request("POST", self.url, stream=stream, extensions=self.extensions)
        request.headers = httpx2.Headers([*self.headers, *ours], self.encoding)
        if isinstance(content, bytes):
            request.read()  # a body in one: the transport sends it with the headers
        return request


class _Pieces(httpx2.AsyncByteStream):
    """A body that is sent piece by piece."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


class Refused(Exception):
    """An answer that is an error: `body` is what its JSON says, else its text."""

    def __init__(self, response: httpx2.Response, body: object) -> None:
        super().__init__(f"status {response.status_code}")
        self.response, self.body = response, body


class Lost(Exception):
    """There is no answer, or its stream ended before the message was complete; the words say why. `sent`: the request
    may have reached the service."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class _Call:
    """One call under way: its time limits as one cancel scope, whose deadline moves with the content."""

    def __init__(self, request: ModelRequest, builder: ReplyBuilder) -> None:
        now = anyio.current_time()
        self.request, self.builder = request, builder
        self.request_id: str | None = None
        self.received = 0
        self._end = now + request.total_timeout
        self._waiting = request.first_byte_timeout
        self.scope = anyio.CancelScope(deadline=min(self._end, now + self._waiting))

    def content_came(self) -> None:
        """Something other than a ping arrived: wait anew for what comes next."""
        self._waiting = self.request.idle_timeout
        self.scope.deadline = min(self._end, anyio.current_time() + self._waiting)

    def silence(self) -> Fault:
        """Why the scope ended the call: `type` names the time limit (the setting `recovery.first_byte` ...)."""
        if self.scope.deadline >= self._end:
            which, what = "total", f"the reply took longer than {self.request.total_timeout:g} s"
        elif self.builder.begun:
            which, what = "idle", f"no content for {self._waiting:g} s in the middle of the reply"
        else:
            which, what = "first_byte", f"no reply within {self._waiting:g} s"
        return Fault(kind="silence", type=which, message=what, request_id=self.request_id, may_bill=True)


async def accepted(response: httpx2.Response) -> httpx2.Response:
    """The answer, its body not read yet. Raises `Refused` for one that is an error, which it reads and closes."""
    if response.is_success:
        return response
    try:
        raise Refused(response, _body_of(await response.aread()))
    finally:
        await _let_go(response)


async def _let_go(response: httpx2.Response) -> None:
    """Cancelled or not: the connection goes back to the pool, or is closed if its stream did not end."""
    if response.is_closed:  # its stream ended
        return
    with anyio.move_on_after(_CLOSING_S, shield=True):
        await response.aclose()


async def _read(call: _Call, chunks: AsyncIterator[bytes]) -> None:
    """Read until `message_stop`. Raises `Lost` when the stream ends before it."""
    reader = EventReader()
    async for chunk in chunks:
        call.received += len(chunk)
        content = False
        for event in reader.feed(chunk):
            content = content or event.get("type") != "ping"
            call.builder.take(event)
            if call.builder.complete:
                return
        if content:
            call.content_came()
    if call.received and not call.builder.begun:
        raise BadEvent("an answer that is no event stream")
    raise Lost("the stream ended before the message was complete")


async def _read_end(chunks: AsyncIterator[bytes]) -> None:
    """Read past the end, so that the connection can be used again; whatever happens here no longer matters."""
    try:
        with anyio.move_on_after(_CLOSING_S):
            async for _ in chunks:
                pass
    except _FOREIGN:
        return  # the reply is whole: a connection lost after it is no fault of the call


def _counted(response: httpx2.Response) -> int:
    """The count in an answer. Raises `CannotCount` for one of another shape."""
    try:
        tokens: object = json.loads(response.content)["input_tokens"]
    except (ValueError, KeyError, TypeError):
        tokens = None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise CannotCount(f"HTTP {response.status_code} without a count of tokens")
    return tokens


def _plain(response: httpx2.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}


def _body_of(content: bytes) -> object:
    text = content.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def may_be_sent(error: BaseException) -> bool:
    """Whether the request may have reached the service: it does not where no connection came about."""
    return not any(isinstance(cause, _UNCONNECTED) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, the outermost first."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _lost(error: Exception, request_id: str | None = None) -> Fault:
    """A call without an answer. One whose certificate is not trusted fails again until a person acts."""
    if isinstance(error, Lost):
        why, sent = str(error), error.sent
    else:
        why, sent = words_of(error), may_be_sent(error)
    untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))
    message = f"{why}. {_UNTRUSTED}" if untrusted else why
    retry = False if untrusted else None
    return Fault(kind="connection", message=message, request_id=request_id, may_bill=sent, retry=retry)


def words_of(error: BaseException) -> str:
    """What a library's exception says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
