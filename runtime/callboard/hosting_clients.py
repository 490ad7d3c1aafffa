"""The sessions that a client of this process starts: each is hosted here until it comes to rest, beside the others.

    async with client_sessions(wanted, words) as sessions:
        one = await sessions.start(room, "Mend the failing test")
        await one.settled()

What another process hosts is followed. Leaving the block leaves every session in order: `callboard resume` goes on.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.adapters.clock import SystemClock
from callboard.app import Options, open_session
from callboard.assembly import Places, find_places, open_store
from callboard.attaching import open_attached
from callboard.core.names import host_lease, rows_prefix
from callboard.desks.desk import Desk
from callboard.ending import End
from callboard.engine.board import SessionBoard
from callboard.engine.governor import Governors
from callboard.engine.sessions import find_session
from callboard.opening import Shared
from callboard.ports.model import Delta
from callboard.ports.world import Answer
from callboard.settings import load_settings
from callboard.trusting import decide
from callboard.words.errors import CallboardError, UsageError
from callboard.words.events import Event
from callboard.words.values import Envelope, Request

Words = Callable[[str, Event], str]
"""An agent's event as one line; empty: nothing to tell."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the person said who started the process; clients can narrow it only."""

    workspaces: tuple[Path, ...]
    """The folders that sessions may work in; the first is the usual one."""
    trust: bool = False
    """Use what a workspace brings."""
    model: str | None = None
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings by dotted name (`permission.mode`)."""
    max_cost_usd: float | None = None
    """What one session may cost at most (dollars)."""


@dataclass(frozen=True, slots=True)
class Room:
    """A workspace, with what its sessions share in this process."""

    places: Places
    shared: Shared

    async def desk(self, session: str | None) -> Desk:
        """A desk at a session, the newest if none is named, as it stands now. Raises `UsageError`."""
        store = self.shared.store
        row = await find_session(store, session)
        board = SessionBoard(row.id, lambda kind, name: None)
        board.take(*await store.keys(rows_prefix(row.id)))
        return Desk(store, row, board)


class Hosted:
    """One session, as this process hosts or follows it: an observer, and an approver who answers nothing."""

    def __init__(self, session: str, words: Words, *, mine: bool) -> None:
        self.session, self.mine = session, mine
        self.open, self.again = True, False
        """`again`: there is something new to do for a session that comes to rest."""
        self.begun = False
        self.end: End | None = None
        """How it came to rest the last time."""
        self.fault: CallboardError | None = None
        """Why it cannot be hosted, or is not any more."""
        self.asked: set[str] = set()
        """Requests that wait for a person now."""
        self.count, self.line = 0, ""
        self._words, self._moved = words, anyio.Event()

    def touch(self) -> None:
        """Whoever waits looks again."""
        self._moved.set()
        self._moved = anyio.Event()

    async def until(self, so: Callable[[], bool]) -> None:
        """Return when it is so."""
        while not so():
            await self._moved.wait()

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        line = self._words(agent, event)
        if line:
            self.count, self.line = self.count + 1, line
            self.touch()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Nothing: only what is journalled is told."""

    def on_mail(self, envelope: Envelope) -> None:
        """Nothing: mail is told when it has an effect."""

    async def answer(self, request: Request) -> Answer | None:
        """Know of it for as long as it waits."""
        self.asked.add(request.id)
        self.touch()
        try:
            await anyio.sleep_forever()
        finally:
            self.asked.discard(request.id)
            self.touch()


class ClientSessions:
    """What `client_sessions` gives."""

    def __init__(self, wanted: Wanted, words: Words, group: TaskGroup, stores: AsyncExitStack) -> None:
        self._wanted, self._words, self._group, self._stores = wanted, words, group, stores
        self._rooms: dict[Path, Room] = {}
        self._opening = anyio.Lock()
        """Of rooms: two calls at once would open the store twice."""
        self._hosted: dict[str, Hosted] = {}
        self.newest: dict[Path, str] = {}
        """The session that was started last, by workspace."""

    async def room(self, workspace: str = "") -> Room:
        """One of the folders that are served; empty: the usual one. Raises `UsageError` for another one."""
        found = _served(self._wanted.workspaces, workspace)
        async with self._opening:
            if found not in self._rooms:
                self._rooms[found] = await self._opened(found)
            return self._rooms[found]

    async def _opened(self, folder: Path) -> Room:
        places = find_places(folder)
        trust = await decide(places.workspace, places.config, flag=self._wanted.trust)
        loaded = load_settings(os.environ, workspace=places.workspace, trusted=trust.trusted, brought=trust.brought)
        store = await open_store(places, loaded.settings.durability)
        self._stores.push_async_callback(store.aclose)
        return Room(places, Shared(store, Governors(SystemClock(), loaded.settings.rate.calls_at_once)))

    async def start(self, room: Room, prompt: str, max_cost_usd: float | None = None) -> Hosted:
        """A new session, once it is hosted. Raises what `open_session` raises before its block."""
        bounds = [one for one in (self._wanted.max_cost_usd, max_cost_usd) if one is not None]
        name = datetime.fromtimestamp(SystemClock().now(), UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        options = replace(
            self._options(room),
            flags=self._wanted.flags,
            model=self._wanted.model,
            name=name,
            prompt=prompt,
            max_cost_usd=min(bounds, default=None),
        )
        one = await self._begin(options, name)
        self.newest[room.places.workspace] = name
        return one

    async def go_on(self, room: Room, session: str) -> Hosted:
        """See to it that what a session has just been given is done. Raises as `start` does."""
        one = await self.keep(room, session)
        one.again = True
        return one

    async def keep(self, room: Room, session: str) -> Hosted:
        """Host a session, unless a process does already. Raises as `start` does."""
        one = await self.seen(room, session)
        return one or await self._begin(replace(self._options(room), session=session, resume=True), session)

    async def seen(self, room: Room, session: str) -> Hosted | None:
        """A session that this process hosts, or follows where another one hosts it; None: nobody does."""
        one = self._hosted.get(session)
        if one is not None and one.open:
            return one
        if await room.shared.store.holder(host_lease(session)) is None:
            return None
        one = self._hosted[session] = Hosted(session, self._words, mine=False)
        self._group.start_soon(self._follow, Options(room.places.workspace, session=session), one)
        return one

    def last(self, session: str) -> Hosted | None:
        """What this process knows of a session that it hosts, or hosted."""
        one = self._hosted.get(session)
        return one if one is not None and one.mine else None

    def _options(self, room: Room) -> Options:
        """Of any session; one that is gone on with keeps its own model and settings."""
        return Options(room.places.workspace, trust=self._wanted.trust, answerable=True, shared=room.shared)

    async def _begin(self, options: Options, session: str) -> Hosted:
        one = self._hosted[session] = Hosted(session, self._words, mine=True)
        self._group.start_soon(self._host, options, one)
        await one.until(lambda: one.begun or not one.open)
        if not one.begun and one.fault is not None:
            del self._hosted[session]
            raise one.fault
        return one

    async def _host(self, options: Options, one: Hosted) -> None:
        """Host it until it rests and nobody has given it more to do."""
        one.again = True
        try:
            while one.again:
                one.again = False
                async with open_session(options, observers=[one], approvers=[one]) as session:
                    one.begun = True
                    one.touch()
                    one.end = await session.finished()
                    await session.mark_ended(one.end.exit_code)
                options = Options(
                    options.workspace,
                    session=one.session,
                    resume=True,
                    trust=options.trust,
                    answerable=True,
                    shared=options.shared,
                )
        except CallboardError as error:
            one.fault = error
        except Exception as fault:  # noqa: BLE001 - a fault in one session is told, and leaves the others alone
            structlog.get_logger("callboard.clients").exception("a session could not be hosted", session=one.session)
            one.fault = CallboardError(f"session {one.session} failed by a fault of callboard itself: {fault}")
        finally:
            one.open = False
            one.touch()

    async def _follow(self, options: Options, one: Hosted) -> None:
        """Follow it until its host has left."""
        try:
            async with open_attached(options, observers=[one], approvers=[one]) as session:
                one.end = await session.finished()
        except CallboardError as error:
            one.fault = error
        finally:
            one.open = False
            one.touch()


def _served(served: Sequence[Path], wanted: str) -> Path:
    """Which of the folders is meant. Raises `UsageError`."""
    folder = Path(wanted).expanduser() if wanted else served[0]
    for one in served:
        if one == folder or one.resolve() == folder.resolve():
            return one
    known = ", ".join(map(str, served))
    raise UsageError(f"{wanted} is not served here, but: {known}. `callboard mcp serve --workspace DIR` adds one")


@asynccontextmanager
async def client_sessions(wanted: Wanted, words: Words) -> AsyncGenerator[ClientSessions]:
    """Sessions live here while the block lasts; leaving it leaves each in order."""
    async with AsyncExitStack() as stores, anyio.create_task_group() as group:
        yield ClientSessions(wanted, words, group, stores)
        group.cancel_scope.cancel()
