"""Calls of the Messages API: one request, one reply or one fault.

The body and the headers of a call are joined from ready bytes without parsing the JSON of a conversation, and the
events of a reply are parsed lightly (docs/decisions/0003-request-bytes-and-light-parsing.md). Each exception of the
HTTP library becomes a `CallFault` here, once.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import accumulate
from typing import TypeVar
from urllib.parse import quote

import anyio

from callboard.adapters.models.anthropic.faults import ErrorResponse, FaultTexts, fault_of_answer, fault_of_event
from callboard.adapters.models.anthropic.reply import BadEvent, EventReader, ReplyBuilder, ServiceError
from callboard.adapters.models.anthropic.service import (
    LIBRARY_ERRORS,
    ConnectionLost,
    RequestRefused,
    ServiceAnswer,
    ServiceConnections,
    body_of,
    causes,
    lost_connection,
)
from callboard.adapters.models.anthropic.stated_limits import model_facts, rates_of
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.types.agent_spec import ModelFacts
from callboard.types.errors import CredentialsMissing
from callboard.types.model_names import without_long
from callboard.types.rate_limits import Rates
from callboard.types.records import Fault

T = TypeVar("T")

_END_S = 0.25
"""Most seconds for reading the end of a stream. By then the reply is complete."""

_LONG_KEY = 16
"""Fewest characters of a key that is no part of ordinary words."""
_UNAUTHORIZED = 401
_UNTRUSTED = "If it is your own authority's, name its certificate in SSL_CERT_FILE"


class HttpModel:
    """Model service that speaks the Messages API. One object, one connection pool, for all agents of a key."""

    def __init__(self, service: ServiceConnections, *, wording: FaultTexts | None = None) -> None:
        self._service = service
        self._wording = wording or FaultTexts()
        self._limits = _TimeLimits()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call. Raises only `CallFault`."""
        call = _Call(request, ReplyBuilder(on_delta, events=request.events), self._limits)
        rates = None
        try:
            # One scope for all time limits of the call. If it ends without another exception, the deadline has passed.
            with call.scope:
                await self._stream(call)
            if call.reply is not None:
                return call.reply
        except ServiceError as error:
            fault = fault_of_event(error.error, call.request_id, self._wording)
        except BadEvent as error:
            message = f"the service sent {error}"
            fault = Fault(kind="bad_reply", message=message, request_id=call.request_id, may_bill=True)
        except RequestRefused as error:
            fault = self._fault_of_status(error)
            rates = rates_of(error.headers, time.time())
        except (ConnectionLost, *LIBRARY_ERRORS) as error:
            fault = _lost(error, call.request_id)
        except CredentialsMissing as error:
            fault = Fault(kind="credentials", message=str(error))
        else:
            fault = call.silence()
        finally:
            self._limits.end(call)
        raise self._failed(call, fault, rates, on_delta)

    async def count(self, request: ModelRequest) -> int:
        """Count tokens with `/v1/messages/count_tokens`. Raises only `CannotCount`."""
        try:
            with anyio.fail_after(request.total_timeout):
                return await self._with_key(lambda: self._counted(request))
        except RequestRefused as error:
            fault = self._fault_of_status(error)
            reason = f"HTTP {error.status}: {fault.message}"
        except TimeoutError:
            reason = f"no answer within {request.total_timeout:g} s"
            fault = Fault(kind="silence", type="total", message=reason)
        except (ConnectionLost, *LIBRARY_ERRORS) as error:
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
                return model_facts(body_of(await self._with_key(lambda: self._service.get(path))))
        except (RequestRefused, ConnectionLost, TimeoutError, CredentialsMissing, *LIBRARY_ERRORS):
            return ModelFacts()  # many services have no such path

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._limits.close()
        await self._service.aclose()

    async def _with_key(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request with a current key.

        If the service refuses a key that can be renewed, send it once more with a new one: the refused request was not
        accepted, so that nothing is billed twice.
        """
        await self._service.renew()
        used = self._service.secret
        try:
            return await send()
        except RequestRefused as refused:
            # test_a_refused_key_of_a_command_is_replaced_once
            if refused.status != _UNAUTHORIZED or not await self._service.renew(used):
                raise
            return await send()

    async def _stream(self, call: _Call) -> None:
        answer = await self._with_key(lambda: self._send(call.request, "/v1/messages"))
        try:
            call.request_id = answer.headers.get("request-id")
            rates = rates_of(answer.headers, time.time()) if call.request.on_head else None
            if call.request.on_head and rates:
                # As soon as the headers arrive, because other calls decide by these limits while this reply still
                # streams (test_rate_headers_are_told_as_the_head_of_an_answer_comes_and_with_a_refusal).
                call.request.on_head(rates)
            await _read(call, answer.body)
            call.reply = call.builder.reply()
            # A connection whose end has not arrived cannot be used again
            # (test_calls_share_one_connection_one_after_the_other).
            if not answer.is_whole:
                call.ends_soon()
                await _wait_for_end(answer)
        finally:
            answer.let_go()

    async def _send(self, request: ModelRequest, path: str) -> ServiceAnswer:
        """Return the answer, with its body unread. Raises `RequestRefused` for an answer that is an error."""
        pieces = body_pieces(request)
        return await self._service.post(path, headers_of(request, sum(map(len, pieces))), pieces)

    async def _counted(self, request: ModelRequest) -> int:
        answer = await self._send(request, "/v1/messages/count_tokens")
        return _count_in(answer.status, await answer.content())

    def _fault_of_status(self, refused: RequestRefused) -> Fault:
        response = ErrorResponse(refused.status, refused.headers, refused.body, time.time())
        return fault_of_answer(response, self._wording)

    def _unkeyed(self, text: str) -> str:
        """Return the text without the key. A short key, such as `x` of a local service, is replaced only as a word."""
        # Some services quote the key in their errors (test_a_service_that_quotes_the_key_does_not_make_us_show_it).
        secret = self._service.secret
        if not secret or len(secret) >= _LONG_KEY:
            return text.replace(secret, "[key]") if secret else text
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[key]", text)

    def _failed(self, call: _Call, fault: Fault, rates: Rates | None, on_delta: OnDelta) -> CallFault:
        message = self._unkeyed(fault.message)
        fault = fault.model_copy(update={"message": message, "usage": call.builder.usage})
        if call.builder.streamed:
            on_delta(Delta("dropped", f"{fault.kind}: {message}"))
        return CallFault(fault, call.builder.partial, rates)


class _TimeLimits:
    """Time limits of all calls in progress, enforced with one timer.

    The timer stays set while deadlines move away from it, and looks at them when it fires: a reply has hundreds of
    chunks, and to set a timer, or the deadline of a scope, costs as much as to read a chunk
    (test_the_idle_limit_counts_from_the_last_content).
    """

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: _Call) -> None:
        """Enforce the deadline of a call, which is new or earlier than before."""
        self._calls.add(call)
        if self._timer is None or call.deadline < self._timer.when():
            self._set_timer(call.deadline)

    def end(self, call: _Call) -> None:
        """Forget a call. Idempotent."""
        self._calls.discard(call)

    def close(self) -> None:
        """Stop the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_at(when, self._check, when)

    def _check(self, now: float) -> None:
        # The time that the timer was set for, because a loop may call it a little early.
        self._timer = None
        for call in self._calls:
            if call.deadline <= now:
                call.scope.cancel()
        ahead = [call.deadline for call in self._calls if call.deadline > now]
        if ahead:
            self._set_timer(min(ahead))


class _Call:
    """Call in progress. One cancel scope enforces its time limits; the deadline moves when content arrives."""

    def __init__(self, request: ModelRequest, builder: ReplyBuilder, limits: _TimeLimits) -> None:
        self.request = request
        self.builder = builder
        self.request_id: str | None = None
        self.received = 0
        self.reply: Reply | None = None
        """The complete reply, while the end of its stream is still waited for."""
        self.scope = anyio.CancelScope()
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._end = now + request.total_timeout
        self._waiting = request.first_byte_timeout
        self.deadline = min(self._end, now + self._waiting)
        limits.watch(self)

    def content_came(self) -> None:
        """Restart the timeout, because something other than a ping arrived."""
        self._waiting = self.request.idle_timeout
        self._move(min(self._end, self._loop.time() + self._waiting))

    def ends_soon(self) -> None:
        """Wait only a short time from now on, because only the end of the stream is missing."""
        self._move(self._loop.time() + _END_S)

    def _move(self, deadline: float) -> None:
        before, self.deadline = self.deadline, deadline
        if deadline < before:
            self._limits.watch(self)

    def silence(self) -> Fault:
        """Return the fault of the time limit that ended the call.

        `type` names the limit (the setting `recovery.first_byte` ...).
        """
        if self.deadline >= self._end:
            which = "total"
            message = f"the reply took longer than {self.request.total_timeout:g} s"
        elif self.builder.begun:
            which = "idle"
            message = f"no content for {self._waiting:g} s in the middle of the reply"
        else:
            which = "first_byte"
            message = f"no reply within {self._waiting:g} s"
        return Fault(kind="silence", type=which, message=message, request_id=self.request_id, may_bill=True)


async def _read(call: _Call, chunks: AsyncIterator[bytes]) -> None:
    """Read until `message_stop`. Raises `ConnectionLost` when the stream ends before it."""
    reader = EventReader()
    async for chunk in chunks:
        call.received += len(chunk)
        # A service that only pings is silent (test_pings_for_ever_are_silence_too).
        content = call.builder.take(reader.feed(chunk))
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


async def _wait_for_end(answer: ServiceAnswer) -> None:
    """Wait for the end, so that the connection can be reused. Failures here are ignored."""
    try:
        await answer.wait_whole()
    except LIBRARY_ERRORS:
        return  # the reply is complete: a connection lost afterwards is not a fault of the call


def _count_in(status: int, content: bytes) -> int:
    """Return the count in the body of an answer. Raises `CannotCount` for a body of another shape."""
    try:
        tokens: object = json.loads(content)["input_tokens"]
    except (ValueError, KeyError, TypeError):
        tokens = None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise CannotCount(f"HTTP {status} without a count of tokens")
    return tokens


def _lost(error: Exception, request_id: str | None = None) -> Fault:
    """Return the fault for a call without a response. An untrusted certificate fails again until the user acts."""
    lost = lost_connection(error)
    # Only the user can change this (test_a_turn_ends_with_the_certificate_as_its_reason_and_is_not_tried_again).
    untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))
    message = f"{lost}. {_UNTRUSTED}" if untrusted else str(lost)
    retry = False if untrusted else None
    return Fault(kind="connection", message=message, request_id=request_id, may_bill=lost.sent, retry=retry)


_PIECE = 48 * 1024
"""Bytes of a body that are passed at once: the amount that a socket accepts without keeping a copy (measured: a third
less CPU for two megabytes than in larger pieces). For a single piece above 1 MiB, the transport warns of a blocked
event loop.
"""

LONG_CONTEXT = "context-1m-2025-08-07"
"""The vendor's beta that gives a window of a million tokens to models whose own window is smaller."""


def body_pieces(request: ModelRequest) -> list[bytes]:
    """Return the body of a request in pieces, to be joined without a separator.

    Ready JSON is not parsed, and is copied once. A piece has `_PIECE` bytes or is one message, so that a long history
    costs only this copy and the sending. A small body is one piece.
    """
    head = [f'{{"model":{json.dumps(without_long(request.model)[0])}'.encode()]
    if request.purpose != "count":
        head.append(f',"max_tokens":{request.max_tokens:d},"stream":true'.encode())
        if request.effort:
            head.append(f',"output_config":{{"effort":"{request.effort}"}}'.encode())
        if request.thinking is not None:
            head.append(f',"thinking":{json.dumps(request.thinking)}'.encode())
    if (system := request.system) not in (b"", b"[]"):
        head += (b',"system":', system)
    if request.tools not in (b"", b"[]"):
        head += (b',"tools":', request.tools)
    head.append(b',"messages":[')
    messages = [*request.messages[:-1], *(message + b"]}" for message in request.messages[-1:])] or [b"]}"]
    ends = list(accumulate(map(len, messages)))
    pieces: list[bytes] = []
    begin = 0
    sent = -sum(map(len, head))
    while begin < len(messages):
        end = bisect_left(ends, sent + _PIECE, begin) + 1  # the first message with which the piece is full
        if begin:  # the empty part makes the comma behind the piece before without another copy of this one
            pieces.append(b",".join([b"", *messages[begin:end]]))
        else:
            pieces.append(b"".join([*head, b",".join(messages[:end])]))
        sent = ends[min(end, len(ends)) - 1]
        begin = end
    return pieces


def headers_of(request: ModelRequest, size: int) -> dict[str, str]:
    """Return the headers of one request; the service adds those of all requests."""
    long = {"anthropic-beta": LONG_CONTEXT} if without_long(request.model)[1] else {}
    return {
        **long,
        "content-type": "application/json",
        "content-length": str(size),
        "x-callboard-agent": quote(f"{request.session}/{request.agent}", safe="/:.@"),
        "x-callboard-call": str(request.ordinal),
        "x-callboard-purpose": request.purpose,
    }
