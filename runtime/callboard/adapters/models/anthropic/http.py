"""Calls of the Messages API over any HTTP client: that of the SDK, or that of a rehearsal on a loopback port.

The body and the headers of a call are joined from ready bytes without parsing the JSON of a conversation, and the
events of a reply are parsed lightly (docs/decisions/0003-request-bytes-and-light-parsing.md). This module makes no
retries and follows no redirects, which would send the key elsewhere. Each exception of a library becomes a `CallFault`
here, once. It runs on asyncio only, because the SDK's transport does.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import httpx2  # the SDK's own HTTP library

from callboard.adapters.models.anthropic.faults import ErrorResponse, FaultTexts, fault_of_answer, fault_of_event
from callboard.adapters.models.anthropic.reply import BadEvent, EventReader, ReplyBuilder, ServiceError
from callboard.adapters.models.anthropic.stated_limits import model_facts, rates_of
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.types.agent_spec import ModelFacts
from callboard.types.errors import CredentialsMissing
from callboard.types.model_names import without_long
from callboard.types.rate_limits import Rates
from callboard.types.records import Fault

T = TypeVar("T")

LIMITS = httpx2.Limits(max_connections=1_000, keepalive_expiry=20.0)
TIMEOUT = httpx2.Timeout(None, connect=20.0)
"""Timeouts in seconds. The scope of each call enforces the call's own time limits."""

_CLOSING_S = 0.25
"""Most seconds for reading the end of a stream, or for closing a connection. By then the reply is complete or
abandoned.
"""

_OK = 200
_UNAUTHORIZED = 401
_UNTRUSTED = "If it is your own authority's, name its certificate in SSL_CERT_FILE"
_UNCONNECTED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
"""Exceptions raised when no connection was made: refused, unknown host, TLS failure, or a proxy that fails."""
_UNCONNECTED_POOL = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ConnectionTimeoutError)
"""The same for exceptions of the pool itself."""
_FOREIGN = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, aiohttp.ClientError, OSError)
"""Exceptions of the HTTP libraries. `OSError` covers resets, TLS errors and timeouts of the system."""


class Service(Protocol):
    """Target of the calls. It adds to each request the headers that the service requires."""

    @property
    def secret(self) -> str:
        """Return the key, which no message may contain."""
        ...

    async def renew(self, refused: str = "") -> bool:
        """Replace a key that has expired, or that the service `refused`. Return True if requests need new headers.

        Raises `CredentialsMissing`.
        """
        ...

    async def get(self, path: str) -> httpx2.Response:
        """Send a request without a body, and read the answer. Raises as `post` does."""
        ...

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send a request with these headers and its own. `stream`: do not read the answer's body.

        Raises `RequestRefused` for an answer that is an error, `ConnectionLost`, and the exceptions of the HTTP
        libraries.
        """
        ...

    async def send(
        self, shared: SharedParts, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]
    ) -> ServiceAnswer:
        """Send a request that shares these parts with one that `post` has sent.

        The status of the answer is not checked.

        Raises RuntimeError after the connections are closed, and the exceptions of the HTTP libraries.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        ...


class HttpModel:
    """Model service that speaks the Messages API. One object, one connection pool, for all agents of a key."""

    def __init__(self, service: Service, *, wording: FaultTexts | None = None) -> None:
        self._service = service
        self._wording = wording or FaultTexts()
        self._shared: SharedParts | None = None
        """Shared parts of all requests; set by the first call."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call. Raises only `CallFault`."""
        call = _Call(request, ReplyBuilder(on_delta))
        rates = None
        try:
            # One scope for all time limits of the call. If it ends without another exception, the deadline has passed.
            with call.scope:
                return await self._stream(call)
        except ServiceError as error:
            fault = fault_of_event(error.error, call.request_id, self._wording)
        except BadEvent as error:
            message = f"the service sent {error}"
            fault = Fault(kind="bad_reply", message=message, request_id=call.request_id, may_bill=True)
        except RequestRefused as error:
            fault = self._fault_of_status(error)
            rates = rates_of(error.headers, time.time())
        except (ConnectionLost, *_FOREIGN) as error:
            fault = _lost(error, call.request_id)
        except CredentialsMissing as error:
            fault = Fault(kind="credentials", message=str(error))
        else:
            fault = call.silence()
        raise self._failed(call, fault, rates, on_delta)

    async def count(self, request: ModelRequest) -> int:
        """Count tokens with `/v1/messages/count_tokens`. Raises only `CannotCount`."""
        try:
            with anyio.fail_after(request.total_timeout):
                return _counted(await self._with_key(lambda: self._send_count(request)))
        except RequestRefused as error:
            fault = self._fault_of_status(error)
            reason = f"HTTP {error.status}: {fault.message}"
        except TimeoutError:
            reason = f"no answer within {request.total_timeout:g} s"
            fault = Fault(kind="silence", type="total", message=reason)
        except (ConnectionLost, *_FOREIGN) as error:
            fault = _lost(error)
            reason = fault.message
        except CredentialsMissing as error:
            reason = str(error)
            fault = Fault(kind="credentials", message=reason)
        raise CannotCount(self._unkeyed(reason), fault.model_copy(update={"message": self._unkeyed(fault.message)}))

    async def renew_key(self) -> None:
        """Obtain the key if a command prints it. Raises `CredentialsMissing`."""
        await self._service.renew()

    async def facts_of(self, model: str, timeout: float) -> ModelFacts:
        """Return the limits that the service states for a model in `/v1/models/{id}`; nothing if it states none.

        `timeout`: most seconds to wait.
        """
        path = f"/v1/models/{quote(model, safe='')}"
        try:
            with anyio.fail_after(timeout):
                response = await self._with_key(lambda: self._service.get(path))
                return model_facts(_body_of(response.content))
        except (RequestRefused, ConnectionLost, TimeoutError, CredentialsMissing, *_FOREIGN):
            return ModelFacts()  # many services have no such path

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._service.aclose()

    async def _with_key(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request with a current key.

        If the service refuses a key that can be renewed, send it once more with a new one: the refused request was not
        accepted, so that nothing is billed twice.
        """
        if await self._service.renew():
            self._shared = None
        used = self._service.secret
        try:
            return await send()
        except RequestRefused as refused:
            # test_a_refused_key_of_a_command_is_replaced_once
            if refused.status != _UNAUTHORIZED or not await self._service.renew(used):
                raise
            self._shared = None
            return await send()

    async def _stream(self, call: _Call) -> Reply:
        answer = await self._with_key(lambda: self._send(call.request))
        try:
            call.request_id = answer.headers.get("request-id")
            rates = rates_of(answer.headers, time.time()) if call.request.on_head else None
            if call.request.on_head and rates:
                # As soon as the headers arrive, because other calls decide by these limits while this reply still
                # streams (test_rate_headers_are_told_as_the_head_of_an_answer_comes_and_with_a_refusal).
                call.request.on_head(rates)
            await _read(call, answer.body)
            reply = call.builder.reply()
            # A connection whose end was not read cannot be used again
            # (test_calls_share_one_connection_one_after_the_other).
            await _read_end(answer.body)
            return reply
        finally:
            await answer.let_go()

    async def _send(self, request: ModelRequest) -> ServiceAnswer:
        """Return the answer, with its body unread. Raises `RequestRefused` for an answer that is an error."""
        pieces = body_pieces(request)
        size = sum(map(len, pieces))
        headers = headers_of(request, size)
        content = content_of(pieces, size)
        if self._shared is None:
            response = await self._service.post("/v1/messages", headers, content, stream=True)
            self._shared = SharedParts.of(response.request)
            return ServiceAnswer.of(response)
        # Merging the SDK's options and headers for each call costs a tenth of a whole step
        # (docs/decisions/0003-request-bytes-and-light-parsing.md, test_later_calls_say_what_the_sdk_said_in_the_first).
        try:
            answer = await self._service.send(self._shared, headers, content)
        except RuntimeError as error:  # the client was closed meanwhile
            raise ConnectionLost(str(error), sent=False) from error
        return await accepted(answer)

    async def _send_count(self, request: ModelRequest) -> httpx2.Response:
        pieces = body_pieces(request)
        size = sum(map(len, pieces))
        headers = headers_of(request, size)
        content = content_of(pieces, size)
        return await self._service.post("/v1/messages/count_tokens", headers, content, stream=False)

    def _fault_of_status(self, refused: RequestRefused) -> Fault:
        response = ErrorResponse(refused.status, refused.headers, refused.body, time.time())
        return fault_of_answer(response, self._wording)

    def _unkeyed(self, text: str) -> str:
        """Return the text without the key: some services quote the key."""
        # Some services quote the key in their errors (test_a_service_that_quotes_the_key_does_not_make_us_show_it).
        return text.replace(self._service.secret, "[key]") if self._service.secret else text

    def _failed(self, call: _Call, fault: Fault, rates: Rates | None, on_delta: OnDelta) -> CallFault:
        message = self._unkeyed(fault.message)
        fault = fault.model_copy(update={"message": message, "usage": call.builder.usage})
        if call.builder.streamed:
            on_delta(Delta("dropped", f"{fault.kind}: {message}"))
        return CallFault(fault, call.builder.partial, rates)


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Parts that all requests share, taken from the first one: credentials, headers, URL, time limits."""

    url: httpx2.URL
    headers: Mapping[str, str]
    encoding: str
    """Encoding of the headers. Without it, the library would detect it for each request."""
    extensions: Mapping[str, object]

    @classmethod
    def of(cls, sent: httpx2.Request) -> SharedParts:
        """Return the parts that other requests share with this one."""
        encoding = sent.headers.encoding
        raw = ((name.decode(encoding), value.decode(encoding)) for name, value in sent.headers.raw)
        shared = {name: value for name, value in raw if name.lower() not in OWN_HEADERS}
        return cls(sent.url, shared, encoding, dict(sent.extensions))

    def request(self, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]) -> httpx2.Request:
        """Return another request with its own headers and body.

        Its headers are complete, including `host` and the length, so the library does not look for missing ones.
        """
        encoding = self.encoding
        both = {**self.headers, **headers}.items()
        stream = httpx2.ByteStream(content) if isinstance(content, bytes) else _Pieces(content)
        request = httpx2.Request("POST", self.url, stream=stream, extensions=self.extensions)
        request.headers = httpx2.Headers(
            [(name.encode(encoding), value.encode(encoding)) for name, value in both], encoding
        )
        if isinstance(content, bytes):
            request.read()  # a joined body: the transport sends it with the headers
        return request


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """Answer to a request, with its body unread."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: AsyncIterator[bytes]
    """Chunks without their encoding."""
    close: Callable[[], Awaitable[None]]
    """Function that closes the connection, or returns it to the pool if the body was read to its end."""

    @classmethod
    def of(cls, response: httpx2.Response) -> ServiceAnswer:
        """Return an answer of the SDK's HTTP library."""
        headers = plain_headers(response.headers.raw)
        # The raw bytes avoid a decoder for each chunk, which only a compressed body needs.
        body = response.aiter_bytes() if "content-encoding" in headers else response.aiter_raw()

        async def close() -> None:
            if not response.is_closed:  # its stream did not end
                await body.aclose()
                await response.aclose()

        return cls(response.status_code, headers, body, close)

    async def let_go(self) -> None:
        """Return the connection to the pool, or close it if its stream did not end. Also runs if cancelled."""
        # Also for a cancelled call: otherwise its connection would stay in use
        # (test_cancelling_ends_the_connection_and_leaves_the_pool_whole).
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await self.close()


class _Pieces(httpx2.AsyncByteStream):
    """Body that is sent piece by piece."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


class RequestRefused(Exception):
    """An error response. `body` is its JSON, or its text if it is not JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], body: object) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class ConnectionLost(Exception):
    """The response is missing, or its stream ended before the message was complete.

    The text has the reason. `sent`: the request may have reached the service.
    """

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class _Call:
    """Call in progress. One cancel scope enforces its time limits; the deadline moves when content arrives."""

    def __init__(self, request: ModelRequest, builder: ReplyBuilder) -> None:
        now = anyio.current_time()
        self.request = request
        self.builder = builder
        self.request_id: str | None = None
        self.received = 0
        self._end = now + request.total_timeout
        self._waiting = request.first_byte_timeout
        self.scope = anyio.CancelScope(deadline=min(self._end, now + self._waiting))

    def content_came(self) -> None:
        """Restart the timeout, because something other than a ping arrived."""
        self._waiting = self.request.idle_timeout
        self.scope.deadline = min(self._end, anyio.current_time() + self._waiting)

    def silence(self) -> Fault:
        """Return the fault of the time limit that ended the call.

        `type` names the limit (the setting `recovery.first_byte` ...).
        """
        if self.scope.deadline >= self._end:
            which = "total"
            message = f"the reply took longer than {self.request.total_timeout:g} s"
        elif self.builder.begun:
            which = "idle"
            message = f"no content for {self._waiting:g} s in the middle of the reply"
        else:
            which = "first_byte"
            message = f"no reply within {self._waiting:g} s"
        return Fault(kind="silence", type=which, message=message, request_id=self.request_id, may_bill=True)


async def accepted(answer: ServiceAnswer) -> ServiceAnswer:
    """Return the answer, with its body unread. Raises `RequestRefused` for an error, which it reads and closes."""
    if _OK <= answer.status < _OK + 100:
        return answer
    try:
        content = b"".join([chunk async for chunk in answer.body])
        raise RequestRefused(answer.status, answer.headers, _body_of(content))
    finally:
        await answer.let_go()


async def refuse_errors(response: httpx2.Response) -> httpx2.Response:
    """Return the response. Raises `RequestRefused` for an error, whose body it reads."""
    if not response.is_success:
        await accepted(ServiceAnswer.of(response))
    return response


async def _read(call: _Call, chunks: AsyncIterator[bytes]) -> None:
    """Read until `message_stop`. Raises `ConnectionLost` when the stream ends before it."""
    reader = EventReader()
    async for chunk in chunks:
        call.received += len(chunk)
        content = False
        for event in reader.feed(chunk):
            # A service that only pings is silent (test_pings_for_ever_are_silence_too).
            content = content or event.get("type") != "ping"
            call.builder.take(event)
            # Stop at `message_stop`, because some services keep the connection open
            # (test_the_reply_does_not_wait_for_the_end_of_the_connection).
            if call.builder.complete:
                return
        if content:
            call.content_came()
    # A web page of a proxy, or another API: the user must be told this instead of a lost connection
    # (test_a_200_that_is_no_stream_is_a_bad_reply).
    if call.received and not call.builder.begun:
        raise BadEvent("an answer that is not an event stream")
    raise ConnectionLost("the stream ended before the message was complete")


async def _read_end(chunks: AsyncIterator[bytes]) -> None:
    """Read past the end, so that the connection can be reused. Failures here are ignored."""
    try:
        with anyio.move_on_after(_CLOSING_S):
            async for _ in chunks:
                pass
    except _FOREIGN:
        return  # the reply is complete: a connection lost afterwards is not a fault of the call


def _counted(response: httpx2.Response) -> int:
    """Return the count in a response. Raises `CannotCount` for a response of another shape."""
    try:
        tokens: object = json.loads(response.content)["input_tokens"]
    except (ValueError, KeyError, TypeError):
        tokens = None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise CannotCount(f"HTTP {response.status_code} without a count of tokens")
    return tokens


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _body_of(content: bytes) -> object:
    text = content.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def may_be_sent(error: BaseException) -> bool:
    """Return True if the request may have reached the service, which is impossible without a connection."""
    pool = _pool_error(error)
    if pool is not None:
        # The transport reports a connection that the service closed in the same way as one that was never made
        # (test_a_service_that_closes_the_connection_before_it_answers_may_have_billed_the_call).
        return not isinstance(pool, _UNCONNECTED_POOL)
    return not any(isinstance(cause, _UNCONNECTED) for cause in _causes(error))


def _pool_error(error: BaseException) -> aiohttp.ClientError | None:
    """Return the exception of the connection pool, which the transport and the SDK wrap."""
    return next((cause for cause in _causes(error) if isinstance(cause, aiohttp.ClientError)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the outermost first."""
    at: BaseException | None = error
    while at is not None:
        yield at
        # The transports wrap the exception that shows if a connection was ever made.
        at = at.__cause__ or at.__context__


def _lost(error: Exception, request_id: str | None = None) -> Fault:
    """Return the fault for a call without a response. An untrusted certificate fails again until the user acts."""
    if isinstance(error, ConnectionLost):
        reason = str(error)
        sent = error.sent
    else:
        reason = words_of(error)
        sent = may_be_sent(error)
    # Only the user can change this (test_a_turn_ends_with_the_certificate_as_its_reason_and_is_not_tried_again).
    untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))
    message = f"{reason}. {_UNTRUSTED}" if untrusted else reason
    retry = False if untrusted else None
    return Fault(kind="connection", message=message, request_id=request_id, may_bill=sent, retry=retry)


def words_of(error: BaseException) -> str:
    """Return the text of a library's exception; a plain sentence for the usual failures of a connection."""
    match _pool_error(error):
        case aiohttp.ClientConnectorError() as failed if not isinstance(failed.os_error, ssl.SSLError):
            return f"cannot connect to {failed.host}:{failed.port}: {_system_words(failed.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the service closed the connection before it answered"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case aiohttp.ClientOSError() as failed if failed.errno is not None and not isinstance(failed, ssl.SSLError):
            return f"the connection was lost: {_system_words(failed)}"
        case _:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _system_words(failure: OSError) -> str:
    system = failure.errno is not None and failure.errno > 0  # numbers of host name lookups are negative
    return os.strerror(failure.errno) if system and failure.errno else failure.strerror or str(failure)


_PIECE = 48 * 1024
"""Bytes of a body that are passed at once: the amount that a socket accepts without keeping a copy (measured: a third
less CPU for two megabytes than in larger pieces). For a single piece above 1 MiB, the transport warns of a blocked
event loop.
"""

OWN_HEADERS = frozenset(
    (
        *("content-type", "content-length", "x-callboard-agent", "x-callboard-call", "x-callboard-purpose"),
        "anthropic-beta",
    )
)
"""Lower-case names of the headers from `headers_of`, which are not copied from one request to another."""
LONG_CONTEXT = "context-1m-2025-08-07"
"""The vendor's beta that gives a window of a million tokens to models whose own window is smaller."""


def body_pieces(request: ModelRequest) -> list[bytes]:
    """Return the body of a request in pieces, to be joined without a separator.

    Ready JSON is not parsed, and is copied once. A piece has `_PIECE` bytes or is one message, so that a long history
    costs only this copy and the sending.
    """
    head = f'{{"model":{json.dumps(without_long(request.model)[0])}'.encode()
    if request.purpose != "count":
        head += f',"max_tokens":{request.max_tokens:d},"stream":true'.encode()
        if request.effort:
            head += f',"output_config":{{"effort":"{request.effort}"}}'.encode()
        if request.thinking is not None:
            head += f',"thinking":{json.dumps(request.thinking)}'.encode()
    if request.system not in (b"", b"[]"):
        head += b',"system":' + request.system
    if request.tools not in (b"", b"[]"):
        head += b',"tools":' + request.tools
    pieces = [head + b',"messages":[']
    messages = request.messages
    ends = list(accumulate(map(len, messages)))
    begin = sent = 0
    while begin < len(messages):
        end = bisect_left(ends, sent + _PIECE, begin) + 1  # the first message with which the piece is full
        # Behind the first piece comes the comma between it and the next one.
        pieces.append((b"," if begin else b"") + b",".join(messages[begin:end]))
        sent = ends[min(end, len(ends)) - 1]
        begin = end
    pieces.append(b"]}")
    return pieces


def content_of(pieces: Sequence[bytes], size: int) -> bytes | AsyncIterator[bytes]:
    """Return the pieces as content for the HTTP library: joined if they are small, else one after the other."""
    return b"".join(pieces) if size <= _PIECE else _one_by_one(pieces)


async def _one_by_one(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def headers_of(request: ModelRequest, size: int) -> dict[str, str]:
    """Return the headers that the runtime adds to those that the SDK sends with every request."""
    long = {"anthropic-beta": LONG_CONTEXT} if without_long(request.model)[1] else {}
    return {
        **long,
        "content-type": "application/json",
        "content-length": str(size),
        "x-callboard-agent": quote(f"{request.session}/{request.agent}", safe="/:.@"),
        "x-callboard-call": str(request.ordinal),
        "x-callboard-purpose": request.purpose,
    }
