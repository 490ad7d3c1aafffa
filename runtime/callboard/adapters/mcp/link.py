"""One server of a session: it is connected, held, lost, started again, by one task that owns the connection.

    waiting -> connecting -> connected -> (lost) -> connecting ...
                    |                        |
                  failed                 failed; a call, or a person, makes it try again

A remote server that is lost is tried again by itself, five times; a process that died is started again by its next
call, three times in 60 s at most. Either way a call that was under way ends with an error that says so: nobody knows
what it has done, and nothing calls it again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from callboard.adapters.mcp.bridge import bridged
from callboard.adapters.mcp.calls import CallInFlight
from callboard.adapters.mcp.headers import headers_of
from callboard.adapters.mcp.offer import Offer, offer_of
from callboard.adapters.mcp.telling import tell
from callboard.adapters.mcp.transports import Place, Seen, Streams, remote, stdio
from callboard.adapters.mcp.wire import ServerFailed, Wire, first_of, shaken
from callboard.core.mcp import limits as limiting
from callboard.core.mcp.limits import Limits, wait_before_start
from callboard.core.mcp.results import Answer, answer_of
from callboard.core.mcp.texts import one_line
from callboard.ports.mcp import Bridge
from callboard.ports.tool import ToolContext
from callboard.words.errors import ToolRefused
from callboard.words.mcp import AnsweredBack, Asked, ServerEntry, ServerNow, ServerState
from callboard.words.values import Json

PONG = 5.0
"""Seconds that a server which let a call wait too long has to answer a ping."""
LOG_LINES = 200
"""Messages of one server's connection that are logged; the rest is counted."""
LEAVING = 2.0
"""Seconds that a remote server has to be told of the end of the session."""
SETTLE = 0.5
"""Seconds for which changes of a list are collected before it is read again."""


@dataclass(frozen=True, slots=True)
class Around:
    """What all servers of a session share."""

    place: Place
    limits: Limits
    clashes: Callable[[Link, Offer], str]
    """What is wrong with offering that beside the other servers; empty: nothing."""
    changed: Callable[[], None]


class Link:
    """See the module."""

    def __init__(self, entry: ServerEntry, around: Around, bridge: Bridge | None = None) -> None:
        """`bridge`: to the client that serves it, for the transport `sdk`."""
        self.entry, self._around, self._bridge = entry, around, bridge
        self.state: ServerState = "waiting"
        self.why = ""
        self.offer = Offer()
        self._wire: Wire | None = None
        self._calls: list[CallInFlight] = []
        self._asked, self._settled = anyio.Event(), anyio.Event()
        self._scope: anyio.CancelScope | None = None
        """Of the connection that stands or is being made."""
        self._dirty: set[str] = set()
        self._stir = anyio.Event()
        """Something of the connection wants its owner: a list has changed, or it is lost."""
        self._lost, self._gone, self._closed = "", False, False
        self._starts: list[float] = []
        self._logged = 0

    # What others see.

    @property
    def now(self) -> ServerNow:
        """How it stands."""
        shown = self.state in ("connected", "connecting", "failed")
        offer = self.offer if shown else Offer()
        return ServerNow(
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
        """Whether its tools may be called: it is connected, or a call would connect it again."""
        return self.state in ("connected", "connecting", "failed") and bool(self.offer.tools)

    # What others want of it.

    def want(self) -> None:
        """Connect, if it is not connected and not about to be."""
        if self._wire is not None or (self.state == "connecting" and not self._gone):
            return
        if self._settled.is_set():
            self._settled = anyio.Event()
        self._asked.set()

    async def settled(self) -> None:
        """Wait until the attempt to connect is over."""
        await self._settled.wait()

    def leave(self, state: ServerState, why: str) -> None:
        """End its connection, for good until it is wanted again."""
        self.state, self.why, self.offer = state, why, Offer()
        self._gone, self._wire = True, None  # who wants it again waits for a new one
        self._asked = anyio.Event()
        if self._scope is not None:
            self._scope.cancel()
        self._settled.set()
        self._around.changed()

    def close(self, why: str) -> None:
        """End it for ever: its owner ends with it."""
        self._closed = True
        self.leave("off", why)
        self._asked.set()

    def quit(self) -> None:
        """End it as the session ends: politely, its owner ends with it."""
        self._closed = True
        self._lose("")
        self._asked.set()
        if self.state == "connecting" and self._scope is not None:
            self._scope.cancel()

    async def wire(self) -> Wire:
        """The connection, made anew where it is lost. Raises `ToolRefused`."""
        if self._wire is None:
            if self.state in ("off", "untrusted"):
                raise ToolRefused(f"the MCP server {self.entry.name} is {self.state}: {self.why}")
            self.want()
            await self.settled()
        if self._wire is None:
            raise ToolRefused(f"the MCP server {self.entry.name} cannot be reached: {self.why}")
        return self._wire

    async def ask(self, method: str, params: Json) -> Json:
        """A request that is no call. Raises `ToolRefused`."""
        wire = await self.wire()
        try:
            with anyio.fail_after(limiting.LISTING):
                return await wire.request(method, params)
        except ServerFailed as error:
            self._note(error)
            raise ToolRefused(f"the MCP server {self.entry.name}: {error.why}") from None
        except TimeoutError:
            words = f"the MCP server {self.entry.name} did not answer {method} within {limiting.LISTING:g} s"
            raise ToolRefused(words) from None

    async def call(self, tool: str, given: Json, context: ToolContext) -> Answer:
        """Call a tool by the server's own name for it. Raises `ToolRefused` with what came of it."""
        for attempt in range(2):
            wire = await self.wire()
            try:
                return await self._call(wire, tool, given, context)
            except ServerFailed as error:
                self._note(error)
                if not error.unsent or attempt:
                    raise ToolRefused(self._told(error)) from None
        raise AssertionError("the second attempt returns or raises")

    async def _call(self, wire: Wire, tool: str, given: Json, context: ToolContext) -> Answer:
        limits, own = self._around.limits, self.entry.timeout
        call = CallInFlight(self.entry.name, context, limits.call_of(own), limits.idle_of(self.entry.transport, own))
        self._calls.append(call)
        try:
            with call.begin() as scope:
                return answer_of(await wire.request("tools/call", {"name": tool, "arguments": given}, call.progressed))
        finally:
            self._calls.remove(call)
        assert scope.cancelled_caught
        await self._doubt(wire)
        raise ServerFailed(f"{call.why}. The call was cancelled; what it has done until then is not known")

    def _told(self, error: ServerFailed) -> str:
        ended = ". What the call has done is not known, and it was not made again" if error.lost else ""
        return f"the MCP server {self.entry.name}: {error.why}{ended}"

    async def _doubt(self, wire: Wire) -> None:
        """A server that let a call wait too long answers a ping, or it is given up."""
        try:
            with anyio.fail_after(PONG):
                await wire.request("ping", {})
        except TimeoutError:
            self._lose("it did not answer a ping")
        except ServerFailed as error:
            self._note(error)  # an error is an answer, unless it says that the connection is gone

    def _note(self, error: ServerFailed) -> None:
        if error.lost:
            self._lose(error.why)

    # What the server says by itself.

    def changed(self, what: str) -> None:
        """See `Heard`."""
        self._dirty.add(what)
        self._stir.set()

    def said(self, level: str, text: str) -> None:
        """See `Heard`."""
        self._logged += 1
        if self._logged <= LOG_LINES:
            tell("server_said", server=self.entry.name, level=level, text=text)

    async def asked(self, asked: Asked) -> AnsweredBack:
        """See `Heard`. The protocol does not say which call a question belongs to: the newest one is taken for it."""
        if not self._calls:
            return AnsweredBack("decline")
        return await self._calls[-1].ask(asked)

    # Its owner.

    async def own(self) -> None:
        """Hold its connection for as long as the session lives. One task for each server, and no other."""
        while not self._closed:
            await self._asked.wait()
            self._asked = anyio.Event()
            was_connected = not self._closed and await self._one_connection()
            if was_connected and self.entry.transport in ("http", "sse") and self.state == "failed":
                await self._again()

    async def _again(self) -> None:
        """A remote server was lost: try it again a few times, sooner when a call wants it."""
        left = list(limiting.RECONNECTS)
        while left and self.state == "failed":
            pause = left.pop(0)
            with anyio.move_on_after(pause):
                await self._asked.wait()
            if self.state != "failed" or self._closed:
                return
            self._asked = anyio.Event()
            if await self._one_connection():
                left = list(limiting.RECONNECTS)

    async def _one_connection(self) -> bool:
        """Connect, serve, and clean up; whether it was connected. `state` and `why` tell how it ended."""
        if self.state in ("off", "untrusted"):
            return False
        self._set("connecting", "")
        seen, connected = Seen(), False
        scope = self._scope = anyio.CancelScope()
        try:
            connected = await self._attempt(scope, seen)
        finally:
            self._wire, self._scope = None, None
        if scope.cancelled_caught and not connected and self.state == "connecting":
            self._lost = f"it was not ready within {self._around.limits.start:g} s (MCP_TIMEOUT)"
        if self.state in ("connected", "connecting"):
            told = "; ".join(dict.fromkeys(one for one in (self._lost, *seen.words()) if one)) or "the connection ended"
            again = ". Its next call starts it again" if connected and self.entry.transport == "stdio" else ""
            self._set("failed", told + again)
        if not self._asked.is_set():  # else it was wanted again since it was lost: whoever waits, waits for that
            self._settled.set()
        return connected

    async def _attempt(self, scope: anyio.CancelScope, seen: Seen) -> bool:
        """One connection from its beginning to its end; whether it came to stand."""
        self._lost, self._gone, self._stir, self._logged = "", False, anyio.Event(), 0
        self._dirty.clear()
        stood = self.offer
        try:
            with scope:
                await self._brake()
                scope.deadline = anyio.current_time() + self._around.limits.start
                async with self._connection(seen) as wire:
                    await self._hold(wire, scope)
        except BaseException as error:
            if not self._explained(error):
                raise
        return self.offer is not stood

    async def _hold(self, wire: Wire, scope: anyio.CancelScope) -> None:
        """What it offers, and then all that happens until it is lost."""
        offer = await offer_of(wire, self.entry, self._around.limits, self.call, Offer())
        scope.deadline = math.inf
        if wrong := self._around.clashes(self, offer):
            self._lost = wrong
            return
        self._stand(wire, offer)
        await self._serve(wire)
        scope.deadline = anyio.current_time() + LEAVING

    def _explained(self, error: BaseException) -> bool:
        """Whether this is how connections fail: by anything but a cancellation."""
        found = first_of(error)
        if isinstance(found, ServerFailed):
            self._lost = self._lost or found.why
        elif isinstance(found, ToolRefused):
            self._lost = str(found)
        elif isinstance(found, Exception):
            # Whatever the transports raise: refused connections, TLS, a server that speaks no HTTP.
            tell("connection_failed", server=self.entry.name, error=f"{type(found).__name__}: {found}"[:2_000])
            self._lost = self._lost or f"{type(found).__name__}: {one_line(str(found))}"
        else:
            return False
        return True

    @asynccontextmanager
    async def _connection(self, seen: Seen) -> AsyncGenerator[Wire]:
        async with AsyncExitStack() as stack:
            streams = await stack.enter_async_context(await self._streams(seen))
            yield await stack.enter_async_context(shaken(streams, self._around.place.workspace, self, seen))

    async def _streams(self, seen: Seen) -> AbstractAsyncContextManager[Streams]:
        """By its transport. Raises `ServerFailed`."""
        entry, place = self.entry, self._around.place
        if entry.transport == "stdio":
            return stdio(entry, place, seen, lambda: self._lose(""))
        if entry.transport != "sdk":
            return remote(entry, await headers_of(entry, place), seen)
        if self._bridge is None:
            raise ServerFailed("its client does not serve it any more")
        return bridged(self._bridge)

    async def _brake(self) -> None:
        """A process that dies again and again is not started for ever. Raises `ServerFailed`."""
        if self.entry.transport != "stdio":
            return
        now = anyio.current_time()
        self._starts = [at for at in self._starts if now - at < limiting.RESTARTS_WITHIN]
        pause = wait_before_start(self._starts, now)
        if pause is None:
            left = limiting.RESTARTS_WITHIN - (now - self._starts[0])
            raise ServerFailed(
                f"it was started {limiting.RESTARTS} times within {limiting.RESTARTS_WITHIN:g} s and ended each time; "
                f"it may be started again in {left:.0f} s"
            )
        await anyio.sleep(pause)
        self._starts.append(anyio.current_time())

    def _stand(self, wire: Wire, offer: Offer) -> None:
        self._wire, self.offer = wire, offer
        self._set("connected", offer.wrong)
        self._settled.set()

    async def _serve(self, wire: Wire) -> None:
        """Until it is lost: read again what has changed."""
        while not self._gone:
            await self._stir.wait()
            self._stir = anyio.Event()
            if self._dirty and not self._gone:
                await anyio.sleep(SETTLE)
                self._dirty.clear()
                await self._read_again(wire)

    async def _read_again(self, wire: Wire) -> None:
        """Its lists as they are now. What clashes with another server's tools is left as it was."""
        try:
            with anyio.fail_after(limiting.LISTING):
                offer = await offer_of(wire, self.entry, self._around.limits, self.call, self.offer)
        except (TimeoutError, ServerFailed) as error:
            self._set("connected", f"its lists changed and could not be read again: {one_line(str(error))}")
            return
        if wrong := self._around.clashes(self, offer):
            self._set("connected", f"its new list is not used: {wrong}")
            return
        self.offer = offer
        self._set("connected", offer.wrong)

    def _lose(self, why: str) -> None:
        """The connection is gone: its owner shall clean up. Calls under way get their error from the SDK."""
        self._lost, self._gone, self._wire = self._lost or why, True, None
        self._stir.set()

    def _set(self, state: ServerState, why: str) -> None:
        self.state, self.why = state, one_line(why, 1_000)
        self._around.changed()
