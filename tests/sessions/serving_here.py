"""A `callboard serve` in the process of the test, on a store in a file, with sessions whose model is a scenario."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from callboard.adapters.storage.sqlite import open_store
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import host_key, queue_key, session_key
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.ports.notifier import Notifier
from callboard.ports.store import Delete, Put, Store, Write
from callboard.sessions.detached import start_detached
from callboard.sessions.fleet import Fleet
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    ModelOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.serve_options import LogLine, Serving
from callboard.sessions.serve_sessions import Server
from callboard.types.records import HostAbout, HostRow, SessionRow

LIMIT = 120.0
"""Seconds after which something that should have happened counts as hung."""
SCENARIO = "latency_ms: {latency}\nagents:\n  lead:\n    - {{reply: Done as asked., repeat: forever}}\n"
DEAD = HostRow(pid=4_000_000, started=1.0, machine=socket.gethostname(), unattended=True)
"""Row that an unattended host of this machine left when it was killed."""


@dataclass
class ServingHere:
    """A store, its workspace, and everything that the serving process has said."""

    store: Store
    folder: Path
    lines: list[LogLine] = field(default_factory=list[LogLine])
    said: Notifier = field(default_factory=Notifier)

    @property
    def shared(self) -> SharedResources:
        return SharedResources(self.store, KeyLimiters(SystemClock()))

    def scenario(self, name: str = "scenario", *, latency: int = 0) -> Path:
        """Write a scenario; `scenario` is that of all sessions that have no other."""
        file = self.folder / f"{name}.yaml"
        file.write_text(SCENARIO.format(latency=latency))
        return file

    async def detached(self, scenario: Path | None = None) -> str:
        """Create a session that waits for a host; return its id."""
        options = SessionOptions(
            WorkspaceOptions(self.folder / "workspace"),
            model=ModelOptions(f"rehearsal:{scenario or self.folder / 'scenario.yaml'}"),
            identity=IdentityOptions(prompt="Work."),
            hosting=HostingOptions(shared=self.shared),
        )
        return (await start_detached(options)).session

    async def orphan(self) -> str:
        """Create a session as `callboard run` leaves it that is killed before its lead has answered."""
        session = await self.detached()
        await self.store.commit(Delete(queue_key(session)), Put(host_key(session), DEAD.encode()))
        return session

    def server(self, *, sessions: int = 0, once: bool = False, leaving: anyio.Event | None = None) -> Server:
        """Return a serving process that has looked at nothing yet."""
        serving = Serving(self.folder / "workspace", sessions=sessions, once=once, leaving=leaving, handing_over=0.0)
        fleet = Fleet(self.store, HostAbout(serves=True, sessions=sessions))
        self.fleet = fleet
        return Server(serving, self.shared, self.tell, fleet)

    @asynccontextmanager
    async def serving(self, server: Server, *meanwhile: Write) -> AsyncGenerator[None]:
        """Serve during the block, as `callboard serve` does.

        `meanwhile`: what another process writes after this one has looked, and before it follows changes.
        """
        await server.read_rows()
        await self.store.commit(*meanwhile)
        async with self.fleet.announce(), anyio.create_task_group() as group:
            group.start_soon(server.run)
            yield
            group.cancel_scope.cancel()

    def tell(self, line: LogLine) -> None:
        self.lines.append(line)
        self.said.notify()

    def texts(self, kind: str) -> list[str]:
        return [line.text for line in self.lines if line.kind == kind]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that was said."""
        with anyio.fail_after(LIMIT):
            await self.said.until(holds)

    async def row(self, session: str) -> SessionRow:
        row = await self.store.get(session_key(session))
        assert row is not None
        return read_value(SessionRow, row.value or b"", row.key)

    async def is_queued(self, session: str) -> bool:
        return await self.store.get(queue_key(session)) is not None

    async def is_hosted(self, session: str) -> bool:
        return await self.store.get(host_key(session)) is not None


@asynccontextmanager
async def serving_here(folder: Path) -> AsyncGenerator[ServingHere]:
    """Open the store of a new workspace in the folder during the block."""
    (folder / "workspace").mkdir()
    store = await open_store(folder / "store", durability="process")
    try:
        here = ServingHere(store, folder)
        here.scenario()
        yield here
    finally:
        await store.aclose()
