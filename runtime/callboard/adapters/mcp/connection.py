"""One server of a session: one task owns its connection, which it opens, serves, loses and reopens.

    waiting -> connecting -> connected -> (lost) -> connecting ...
                    |                        |
                  failed                 failed; a call, or a person, makes it try again

A lost remote server is retried automatically, five times. A dead process is restarted by its next call, at most three
times in 60 s. In both cases a running call ends with an error that reports its unknown effect, and is never repeated.

A server in the client of a headless run has streams like those of the SDK's own transports (`open_bridge`): its
messages pass through the client's protocol. Each message is carried in a separate task, so that a long call does not
delay others.

A remote server gets the headers of its entry, and those that its `headersHelper` prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from callboard.adapters.mcp.capabilities import ServerCapabilities, offer_of
from callboard.adapters.mcp.session import McpSession, ServerFailed, first_of, handshake
from callboard.adapters.mcp.starting import folder_of
from callboard.adapters.mcp.stdio import tell
from callboard.adapters.mcp.tools import CallInFlight
from callboard.adapters.mcp.transports import ConnectionObservations, ServerEnvironment, Streams, prepare, remote, stdio
from callboard.adapters.processes.programs import find_program, run_program
from callboard.core.mcp import limits as mcp_limits
from callboard.core.mcp.config_entries import header_fault
from callboard.core.mcp.limits import HELPER, McpLimits, wait_before_start
from callboard.core.mcp.results import ResultContent, answer_of, one_line
from callboard.ports.mcp import Bridge
from callboard.ports.notifier import Notifier
from callboard.ports.tool import CallContext
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer, ServerEntry, ServerState, ServerStatus
from callboard.types.records import Json

PONG = 5.0
"""Seconds to answer a ping for a server whose call timed out."""
LOG_LINES = 200
"""Most messages of one server's connection that are logged. The rest is counted."""
LEAVING = 2.0
"""Most seconds for notifying a remote server of the end of the session."""
SETTLE = 0.5
"""Seconds for which changes of a list are collected before it is read again."""
MOST_BYTES = 100_000
"""Most bytes of a helper's output."""


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """State shared by all servers of a session."""

    place: ServerEnvironment
    limits: McpLimits
    clashes: Callable[[ServerConnection, ServerCapabilities], str]
    """Function that returns the reason why a server's offer conflicts with other servers; empty if it does not."""
    changed: Callable[[], None]


class ServerConnection:
    """Connection of one server; see the module."""

    def __init__(self, entry: ServerEntry, around: ConnectionContext, bridge: Bridge | None = None) -> None:
        """Store the entry. `bridge`: the connection to the client that runs the server, for the transport `sdk`."""
        self.entry = entry
        self._around = around
        self._bridge = bridge
        self.state: ServerState = "waiting"
        self.why = ""
        self.offer = ServerCapabilities()
        self._wire: McpSession | None = None
        self._calls: list[CallInFlight] = []
        self._changed = Notifier()
        self._wanted = False
        """True if its owner has to connect."""
        self._settled = False
        """True once the newest attempt to connect is over."""
        self._scope: anyio.CancelScope | None = None
        """Cancel scope of the connection that is open or being opened."""
        self._dirty: set[str] = set()
        """Lists of the server that have changed."""
        self._lost = ""
        self._gone = False
        self._closed = False
        self._starts: list[float] = []
        self._logged = 0

    # State for others

    @property
    def now(self) -> ServerStatus:
        """Return the server's present state."""
        visible = self.state in ("connected", "connecting", "failed")
        offer = self.offer if visible else ServerCapabilities()
        return ServerStatus(
            self.entry.name,
            self.entry.transport,
            self.entry.scope,
            self.entry.path,
            self.state,
            self.why,
            offer.version,
            offer.instructions,
            tuple(sorted(offer.tools)),
            offer.prompts,
            offer.resources,
            self.entry.always_load,
        )

    @property
    def usable(self) -> bool:
        """Return True if the server's tools may be called: it is connected, or a call would connect it again."""
        return self.state in ("connected", "connecting", "failed") and bool(self.offer.tools)

    # Commands and requests

    def request_connection(self) -> None:
        """Start to connect, unless it is connected or connecting."""
        if self._wire is not None or (self.state == "connecting" and not self._gone):
            return
        self._settled = False
        self._wanted = True
        self._changed.notify()

    async def wait_settled(self) -> None:
        """Wait until the attempt to connect is over."""
        await self._changed.until(lambda: self._settled)

    def leave(self, state: ServerState, reason: str) -> None:
        """Close its connection until it is wanted again."""
        self.state = state
        self.why = reason
        self.offer = ServerCapabilities()
        self._gone = True
        self._wire = None
        self._wanted = False
        if self._scope is not None:
            self._scope.cancel()
        self._settled = True
        self._changed.notify()
        self._around.changed()

    def close(self, reason: str) -> None:
        """Close its connection permanently: its owner ends too."""
        self._closed = True
        self.leave("off", reason)
        self._wanted = True
        self._changed.notify()

    def quit(self) -> None:
        """Close its connection gracefully at the end of the session: its owner ends too."""
        self._closed = True
        self._wanted = True
        self._lose("")
        if self.state == "connecting" and self._scope is not None:
            self._scope.cancel()

    async def mcp_session(self) -> McpSession:
        """Return the connection; reconnect if it is lost. Raises `ToolRefused`."""
        if self._wire is None:
            if self.state in ("off", "untrusted"):
                raise ToolRefused(f"the MCP server {self.entry.name} is {self.state}: {self.why}")
            self.request_connection()
            await self.wait_settled()
        if self._wire is None:
            raise ToolRefused(f"the MCP server {self.entry.name} cannot be reached: {self.why}")
        return self._wire

    async def ask(self, method: str, params: Json, *, seconds: float | None = mcp_limits.LISTING) -> Json:
        """Send a request that is no call of an agent. `seconds`: its timeout; None: none. Raises `ToolRefused`."""
        mcp_session = await self.mcp_session()
        try:
            with anyio.fail_after(seconds):
                return await mcp_session.request(method, params)
        except ServerFailed as error:
            self._note(error)
            raise ToolRefused(f"the MCP server {self.entry.name}: {error.why}") from None
        except TimeoutError:
            message = f"the MCP server {self.entry.name} did not answer {method} within {seconds:g} s"
            raise ToolRefused(message) from None

    async def call(self, tool: str, tool_input: Json, context: CallContext) -> ResultContent:
        """Call a tool by the server's own name for it. Raises `ToolRefused` with the outcome."""
        for attempt in range(2):
            mcp_session = await self.mcp_session()
            try:
                return await self._call(mcp_session, tool, tool_input, context)
            except ServerFailed as error:
                self._note(error)
                # Only a call that was certainly not sent is made again, because its effect could otherwise happen twice
                # (test_a_status_is_told_and_a_call_that_was_taken_is_not_made_again).
                if not error.unsent or attempt:
                    raise ToolRefused(self._failure_text(error)) from None
        raise AssertionError("the second attempt returns or raises")

    async def _call(self, mcp_session: McpSession, tool: str, tool_input: Json, context: CallContext) -> ResultContent:
        limits = self._around.limits
        own = self.entry.timeout
        call = CallInFlight(self.entry.name, context, limits.call_of(own), limits.idle_of(self.entry.transport, own))
        self._calls.append(call)
        try:
            with call.begin() as scope:
                return answer_of(
                    await mcp_session.request("tools/call", {"name": tool, "arguments": tool_input}, call.show_progress)
                )
        finally:
            self._calls.remove(call)
        assert scope.cancelled_caught
        # A silent call alone is no reason to restart the server: the tool may be slow
        # (test_a_silent_call_ends_and_the_server_is_told, test_a_server_that_answers_no_ping_either_is_started_anew).
        await self._doubt(mcp_session)
        raise ServerFailed(f"{call.reason}. The call was cancelled; what it has done until then is not known")

    def _failure_text(self, error: ServerFailed) -> str:
        ended = ". The effect of the call is unknown, and it was not repeated" if error.lost else ""
        return f"the MCP server {self.entry.name}: {error.why}{ended}"

    async def _doubt(self, mcp_session: McpSession) -> None:
        """Ping a server whose call timed out, and give it up if it does not answer."""
        try:
            with anyio.fail_after(PONG):
                await mcp_session.request("ping", {})
        except TimeoutError:
            self._lose("it did not answer a ping")
        except ServerFailed as error:
            self._note(error)  # an error is an answer, unless it reports that the connection is gone

    def _note(self, error: ServerFailed) -> None:
        if error.lost:
            self._lose(error.why)

    # Messages of the server

    def changed(self, kind: str) -> None:
        """See `Listener`."""
        self._dirty.add(kind)
        self._changed.notify()

    def log(self, level: str, text: str) -> None:
        """See `Listener`."""
        self._logged += 1
        if self._logged <= LOG_LINES:
            tell("server_said", server=self.entry.name, level=level, text=text)

    async def elicit(self, question: Elicitation) -> ElicitationAnswer:
        """See `Listener`.

        The protocol does not state which call a question belongs to, so the newest call is assumed.
        """
        if not self._calls:
            return ElicitationAnswer("decline")
        return await self._calls[-1].ask(question)

    # Owner

    async def own_connection(self) -> None:
        """Own its connection for as long as the session lives. Exactly one task for each server."""
        while not self._closed:
            await self._changed.until(lambda: self._wanted)
            self._wanted = False
            was_connected = not self._closed and await self._one_connection()
            if was_connected and self.entry.transport in ("http", "sse") and self.state == "failed":
                await self._reconnect()

    async def _reconnect(self) -> None:
        """Retry a lost remote server a few times, sooner if a call wants it."""
        pauses = list(mcp_limits.RECONNECTS)
        while pauses and self.state == "failed":
            pause = pauses.pop(0)
            with anyio.move_on_after(pause):
                await self._changed.until(lambda: self._wanted)
            if self.state != "failed" or self._closed:
                return
            self._wanted = False
            began = anyio.current_time()
            # A server that ends each connection at once would be asked for a new one for ever
            # (test_a_stream_that_ends_at_once_each_time_is_not_opened_for_ever).
            if await self._one_connection() and anyio.current_time() - began >= mcp_limits.STEADY:
                pauses = list(mcp_limits.RECONNECTS)

    async def _one_connection(self) -> bool:
        """Connect, serve and clean up. Return True if it was connected. `state` and `why` describe the end."""
        if self.state in ("off", "untrusted"):
            return False
        self._set("connecting", "")
        seen = ConnectionObservations()
        connected = False
        scope = self._scope = anyio.CancelScope()
        try:
            connected = await self._attempt(scope, seen)
        finally:
            self._wire = None
            self._scope = None
        if scope.cancelled_caught and not connected and self.state == "connecting":
            self._lost = f"it was not ready within {self._around.limits.start:g} s (MCP_TIMEOUT)"
        if self.state in ("connected", "connecting"):
            reason = (
                "; ".join(dict.fromkeys(text for text in (self._lost, *seen.reasons()) if text))
                or "the connection ended"
            )
            hint = ". Its next call starts it again" if connected and self.entry.transport == "stdio" else ""
            self._set("failed", reason + hint)
        if not self._wanted:  # else it was wanted again since it was lost: its waiters wait for the next attempt
            self._settled = True
            self._changed.notify()
        return connected

    async def _attempt(self, scope: anyio.CancelScope, seen: ConnectionObservations) -> bool:
        """Run one connection from beginning to end. Return True if it was established."""
        self._lost = ""
        self._gone = False
        self._logged = 0
        self._dirty.clear()
        stood = self.offer
        try:
            with scope:
                await self._check_restart_rate()
                # Set after the pause of `_check_restart_rate`, and removed once the server is connected
                # (test_one_that_never_gets_ready_is_ended_when_its_time_is_over).
                scope.deadline = anyio.current_time() + self._around.limits.start
                async with self._connection(seen) as mcp_session:
                    await self._serve_until_lost(mcp_session, scope)
        except BaseException as error:
            if not self._explained(error):
                raise
        return self.offer is not stood

    async def _serve_until_lost(self, mcp_session: McpSession, scope: anyio.CancelScope) -> None:
        """Read the server's offer, then serve the connection until it is lost."""
        offer = await offer_of(
            mcp_session, self.entry, self._around.limits, call=self.call, before=ServerCapabilities()
        )
        scope.deadline = math.inf
        if wrong := self._around.clashes(self, offer):
            self._lost = wrong
            return
        self._serve_session(mcp_session, offer)
        await self._serve(mcp_session)
        scope.deadline = anyio.current_time() + LEAVING

    def _explained(self, error: BaseException) -> bool:
        """Record why the connection failed and return True; return False for a cancellation."""
        cause = first_of(error)
        if isinstance(cause, ServerFailed):
            self._lost = self._lost or cause.why
        elif isinstance(cause, ToolRefused):
            self._lost = str(cause)
        elif isinstance(cause, Exception):
            # Any exception of the transports: refused connections, TLS, a server that does not speak HTTP.
            tell("connection_failed", server=self.entry.name, error=f"{type(cause).__name__}: {cause}"[:2_000])
            self._lost = self._lost or f"{type(cause).__name__}: {one_line(str(cause))}"
        else:
            return False
        return True

    @asynccontextmanager
    async def _connection(self, seen: ConnectionObservations) -> AsyncGenerator[McpSession]:
        async with AsyncExitStack() as stack:
            streams = await stack.enter_async_context(await self._streams(seen))
            yield await stack.enter_async_context(handshake(streams, self._around.place.workspace, self, seen))

    async def _streams(self, seen: ConnectionObservations) -> AbstractAsyncContextManager[Streams]:
        """Return the streams of its transport. Raises `ServerFailed`."""
        entry = self.entry
        place = self._around.place
        if entry.transport == "stdio":
            return stdio(entry, place, seen, lambda: self._lose(""))
        if entry.transport != "sdk":
            return remote(entry, await headers_of(entry, place), seen, self._lose)
        if self._bridge is None:
            raise ServerFailed("its client no longer serves it")
        return open_bridge(self._bridge)

    async def _check_restart_rate(self) -> None:
        """Refuse to restart a process that ends again and again. Raises `ServerFailed`."""
        if self.entry.transport != "stdio":
            return
        now = anyio.current_time()
        self._starts = [at for at in self._starts if now - at < mcp_limits.RESTARTS_WITHIN]
        # Each call of a model would start the process again
        # (test_one_that_ends_after_each_start_is_not_started_for_ever).
        pause = wait_before_start(self._starts, now)
        if pause is None:
            remaining = mcp_limits.RESTARTS_WITHIN - (now - self._starts[0])
            raise ServerFailed(
                f"it was started {mcp_limits.RESTARTS} times within {mcp_limits.RESTARTS_WITHIN:g} s and ended each"
                f" time; it may be started again in {remaining:.0f} s"
            )
        await anyio.sleep(pause)
        self._starts.append(anyio.current_time())

    def _serve_session(self, mcp_session: McpSession, offer: ServerCapabilities) -> None:
        self._wire = mcp_session
        self.offer = offer
        self._set("connected", offer.wrong)
        self._settled = True
        self._changed.notify()

    async def _serve(self, mcp_session: McpSession) -> None:
        """Read changed lists again until the connection is lost."""
        while not self._gone:
            await self._changed.until(lambda: self._gone or bool(self._dirty))
            if self._dirty and not self._gone:
                # Servers announce each tool of a new list separately; the list is read once.
                await anyio.sleep(SETTLE)
                self._dirty.clear()
                await self._read_again(mcp_session)

    async def _read_again(self, mcp_session: McpSession) -> None:
        """Read its present lists. If they conflict with another server's tools, the old lists stay."""
        try:
            with anyio.fail_after(mcp_limits.LISTING):
                offer = await offer_of(mcp_session, self.entry, self._around.limits, call=self.call, before=self.offer)
        except (TimeoutError, ServerFailed) as error:
            self._set("connected", f"its lists changed and could not be read again: {one_line(str(error))}")
            return
        if wrong := self._around.clashes(self, offer):
            self._set("connected", f"its new list is not used: {wrong}")
            return
        self.offer = offer
        self._set("connected", offer.wrong)

    def _lose(self, reason: str) -> None:
        """Mark the connection as lost, so that its owner cleans up. Running calls get their error from the SDK."""
        self._lost, self._gone, self._wire = self._lost or reason, True, None
        self._changed.notify()

    def _set(self, state: ServerState, reason: str) -> None:
        self.state = state
        self.why = one_line(reason, 1_000)
        self._around.changed()


Into = MemoryObjectSendStream[SessionMessage | Exception]


@asynccontextmanager
async def open_bridge(bridge: Bridge) -> AsyncGenerator[Streams]:
    """Yield streams to the server behind a bridge. A request that cannot be carried is answered with an error."""
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    with into, read, write, outgoing:
        async with anyio.create_task_group() as group:
            group.start_soon(_carry, bridge, outgoing, into)
            try:
                yield read, write
            finally:
                group.cancel_scope.cancel()


async def _carry(bridge: Bridge, outgoing: MemoryObjectReceiveStream[SessionMessage], into: Into) -> None:
    async with anyio.create_task_group() as group:
        async for message in outgoing:
            # A long call must not delay the answer to a ping or a cancellation.
            group.start_soon(_carry_one, bridge, message, into)


async def _carry_one(bridge: Bridge, sent: SessionMessage, into: Into) -> None:
    message = sent.message
    asks = isinstance(message, types.JSONRPCRequest)
    try:
        answer = await bridge(message.model_dump(by_alias=True, mode="json", exclude_unset=True))
        if answer is None:
            if not asks:
                return
            raise ValueError("the client gave no answer")
        back = types.jsonrpc_message_adapter.validate_python(answer, by_name=False)
    except Exception as error:  # noqa: BLE001 - any failure of the other end becomes the answer to this message
        if not isinstance(message, types.JSONRPCRequest):
            return
        data = types.ErrorData(code=types.INTERNAL_ERROR, message=f"the client did not carry it: {error}")
        back = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=data)
    await into.send(SessionMessage(back))


# Headers of a remote server


async def headers_of(entry: ServerEntry, place: ServerEnvironment) -> Mapping[str, str]:
    """Return the headers for one connection, without white space around their values, as browsers send them.

    Those of the helper take precedence. Raises `ServerFailed` if the helper returns none, or for one that cannot be
    sent: the errors of the HTTP client would show its value.
    """
    helped = await _helped(entry, place) if entry.headers_helper else {}
    headers = {name: value.strip(" \t\r\n") for name, value in (entry.headers | helped).items()}
    if faults := [fault for name, value in headers.items() if (fault := header_fault(name, value))]:
        raise ServerFailed("; ".join(faults))
    return headers


async def _helped(entry: ServerEntry, place: ServerEnvironment) -> dict[str, str]:
    extra = {"CLAUDE_CODE_MCP_SERVER_NAME": entry.name, "CLAUDE_CODE_MCP_SERVER_URL": entry.url}
    shell = find_program("sh", place.workspace, place.environment.get("PATH"))
    if shell is None:
        raise ServerFailed("its headersHelper needs `sh`, which was not found on PATH")
    try:
        environment = await anyio.to_thread.run_sync(prepare, entry, place)
    except ToolRefused as refused:
        raise ServerFailed(str(refused)) from None
    folder = folder_of(entry, place.workspace, place.empty, runs_workspace_code=place.runs_workspace_code)
    ran = await run_program(
        [shell, "-c", f'cd -- "$1" && {{ {entry.headers_helper}\n}}', "sh", str(folder)],
        environment | extra,
        timeout=HELPER,
        most=MOST_BYTES,
    )
    if ran.timed_out:
        raise ServerFailed(f"its headersHelper took longer than {HELPER:g} s")
    if ran.code != 0:
        raise ServerFailed(f"its headersHelper failed (exit {ran.code}): {one_line(ran.err.decode(errors='replace'))}")
    try:
        headers: Any = json.loads(ran.out)
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(
        isinstance(value, str) for value in cast("dict[str, Any]", headers).values()
    ):
        raise ServerFailed("its headersHelper printed no JSON object of texts")
    return cast("dict[str, str]", headers)
