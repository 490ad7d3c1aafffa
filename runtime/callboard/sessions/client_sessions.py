"""Sessions that a client of this process starts. Each is hosted here until it comes to rest.

    async with client_sessions(limits, describe) as sessions:
        workspace = await sessions.open_workspace()
        session = await sessions.start(workspace, "Fix the failing test")

A session that another process hosts is followed. Leaving the block leaves every session in order, and `callboard
resume` continues it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.adapters.system.clock import SystemClock
from callboard.config.settings import load_settings
from callboard.config.trust import decide
from callboard.core.keys import host_lease, rows_prefix
from callboard.engine.commands import find_session
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.engine.row_cache import RowCache
from callboard.ports.environment import Answer, Interest
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.sessions.attached import open_attached
from callboard.sessions.handle import SessionHandle
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    ModelOptions,
    PermissionOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.result import RunEnd
from callboard.sessions.stores import log_notice, open_store
from callboard.types.errors import CallboardError, UsageError
from callboard.types.events import Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope, Request

DescribeEvent = Callable[[str, Event], str]
"""Function that returns an agent's event as one line; empty: nothing to report."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Options of the user who started the process; clients can only narrow them."""

    workspaces: tuple[Path, ...]
    """Folders in which sessions may work; the first is the default."""
    trust: bool = False
    """True to use the content of a workspace."""
    model: str | None = None
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings by dotted name (`permission.mode`)."""
    max_cost_usd: float | None = None
    """Cost limit of one session, in US dollars."""
    notice: Notice = log_notice
    """Function that receives the reason why the opening of a store has to wait."""


@dataclass(frozen=True, slots=True)
class SharedWorkspace:
    """A workspace, with the objects that its sessions share in this process."""

    places: WorkspacePaths
    shared: SharedResources

    async def handle(self, session: str | None) -> SessionHandle:
        """Return a session, the newest if none is named, as it is now. Raises `UsageError`."""
        store = self.shared.store
        row = await find_session(store, session)
        rows = RowCache(row.id, lambda kind, name: None)
        rows.take(*await store.keys(rows_prefix(row.id)))
        return SessionHandle(row, store, rows)


class ClientSession:
    """One session that this process hosts or follows: an observer, and an approver that never answers."""

    def __init__(self, session: str, describe: DescribeEvent, *, hosted_here: bool) -> None:
        self.session = session
        self.hosted_here = hosted_here
        self.open = True
        """True while this process hosts or follows the session."""
        self.new_input = False
        """True if a session that comes to rest has something new to do."""
        self.opened = False
        """True once the session was opened in this process."""
        self.end: RunEnd | None = None
        """Result of the session when it last came to rest."""
        self.fault: CallboardError | None = None
        """Reason why the session cannot be hosted, or no longer is."""
        self.waiting_requests: set[str] = set()
        """Ids of the requests that wait for a person now."""
        self.line_count = 0
        """Number of lines of progress up to now."""
        self.last_line = ""
        self._describe = describe
        self.changed = Notifier()
        """Notifier of changes of these attributes."""

    interest = Interest(deltas=frozenset())

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        line = self._describe(agent, event)
        if line:
            self.line_count, self.last_line = self.line_count + 1, line
            self.changed.notify()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing: only journalled events are reported."""

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: mail is reported when it has an effect."""

    async def answer(self, request: Request) -> Answer | None:
        """Remember the request for as long as it waits."""
        self.waiting_requests.add(request.id)
        self.changed.notify()
        try:
            await anyio.sleep_forever()
        finally:
            self.waiting_requests.discard(request.id)
            self.changed.notify()


class ClientSessions:
    """Sessions of a process that serves clients, from `client_sessions`."""

    def __init__(self, limits: ServerLimits, describe: DescribeEvent, group: TaskGroup, stores: AsyncExitStack) -> None:
        self._limits = limits
        self._describe = describe
        self._group = group
        self._stores = stores
        self._workspaces: dict[Path, SharedWorkspace] = {}
        self._opening = anyio.Lock()
        """Lock for opening workspaces: two calls at once would open the store twice."""
        self._hosted: dict[str, ClientSession] = {}
        self.newest: dict[Path, str] = {}
        """The most recently started session, by workspace."""

    async def open_workspace(self, name: str = "") -> SharedWorkspace:
        """Return one of the served folders; empty: the default. Raises `UsageError` for any other."""
        folder = _served(self._limits.workspaces, name)
        async with self._opening:
            if folder not in self._workspaces:
                self._workspaces[folder] = await self._open(folder)
            return self._workspaces[folder]

    async def _open(self, folder: Path) -> SharedWorkspace:
        places = find_places(folder)
        trust = await decide(places.workspace, places.config, flag=self._limits.trust)
        loaded = load_settings(
            os.environ, workspace=places.workspace, trusted=trust.trusted, workspace_claims=trust.workspace_claims
        )
        store = await open_store(places, loaded.settings, self._limits.notice)
        self._stores.push_async_callback(store.aclose)
        return SharedWorkspace(
            places, SharedResources(store, KeyLimiters(SystemClock(), loaded.settings.rate.calls_at_once))
        )

    async def start(self, workspace: SharedWorkspace, prompt: str, max_cost_usd: float | None = None) -> ClientSession:
        """Start a session and return it once it is hosted. Raises the exceptions of `open_session`."""
        cost_limits = [limit for limit in (self._limits.max_cost_usd, max_cost_usd) if limit is not None]
        name = str(uuid.uuid4())
        options = replace(
            self._options(workspace, IdentityOptions(name=name, prompt=prompt)),
            workspace=WorkspaceOptions(workspace.places.workspace, flags=self._limits.flags, trust=self._limits.trust),
            model=ModelOptions(self._limits.model, max_cost_usd=min(cost_limits, default=None)),
        )
        hosted = await self._start_hosting(options, name)
        self.newest[workspace.places.workspace] = name
        return hosted

    async def process_input(self, workspace: SharedWorkspace, session: str) -> ClientSession:
        """Ensure that a host processes the newest input of a session. Raises the exceptions of `start`."""
        hosted = await self.ensure_hosted(workspace, session)
        hosted.new_input = True
        return hosted

    async def ensure_hosted(self, workspace: SharedWorkspace, session: str) -> ClientSession:
        """Host a session, unless a process already does. Raises the exceptions of `start`."""
        hosted = await self.find(workspace, session)
        if hosted is not None:
            return hosted
        return await self._start_hosting(
            self._options(workspace, IdentityOptions(session=session, resume=True)), session
        )

    async def find(self, workspace: SharedWorkspace, session: str) -> ClientSession | None:
        """Return a session that this process hosts, or follows if another one hosts it; None: no process does."""
        hosted = self._hosted.get(session)
        if hosted is not None and hosted.open:
            return hosted
        if await workspace.shared.store.holder(host_lease(session)) is None:
            return None
        hosted = self._hosted[session] = ClientSession(session, self._describe, hosted_here=False)
        options = SessionOptions(
            WorkspaceOptions(workspace.places.workspace),
            identity=IdentityOptions(session=session),
            hosting=HostingOptions(notice=self._limits.notice),
        )
        self._group.start_soon(self._follow, options, hosted)
        return hosted

    def find_hosted(self, session: str) -> ClientSession | None:
        """Return the state of a session that this process hosts, or hosted; None for any other."""
        hosted = self._hosted.get(session)
        return hosted if hosted is not None and hosted.hosted_here else None

    def _options(self, workspace: SharedWorkspace, identity: IdentityOptions) -> SessionOptions:
        """Return the options of any session; a resumed one keeps its own model and settings."""
        return SessionOptions(
            WorkspaceOptions(workspace.places.workspace, trust=self._limits.trust),
            identity=identity,
            permissions=PermissionOptions(answerable=True),
            hosting=HostingOptions(shared=workspace.shared, commands_at_rest="end"),
        )

    async def _start_hosting(self, options: SessionOptions, session: str) -> ClientSession:
        hosted = self._hosted[session] = ClientSession(session, self._describe, hosted_here=True)
        self._group.start_soon(self._host, options, hosted)
        await hosted.changed.until(lambda: hosted.opened or not hosted.open)
        if not hosted.opened and hosted.fault is not None:
            del self._hosted[session]
            raise hosted.fault
        return hosted

    async def _host(self, options: SessionOptions, hosted: ClientSession) -> None:
        """Host a session until it rests and has nothing new to do."""
        hosted.new_input = True
        try:
            while hosted.new_input:
                hosted.new_input = False
                async with open_session(options, observers=[hosted], approvers=[hosted]) as session:
                    hosted.opened = True
                    hosted.changed.notify()
                    hosted.end = await session.wait_finished()
                    await session.mark_ended(hosted.end.exit_code)
                options = SessionOptions(
                    WorkspaceOptions(options.workspace.folder, trust=options.workspace.trust),
                    identity=IdentityOptions(session=hosted.session, resume=True),
                    permissions=PermissionOptions(answerable=True),
                    hosting=options.hosting,
                )
        except CallboardError as error:
            hosted.fault = error
        except Exception as fault:  # noqa: BLE001 - a fault in one session is reported and does not affect the others
            structlog.get_logger("callboard.clients").exception("a session could not be hosted", session=hosted.session)
            hosted.fault = CallboardError(f"session {hosted.session} failed because of a bug in Callboard: {fault}")
        finally:
            hosted.open = False
            hosted.changed.notify()

    async def _follow(self, options: SessionOptions, hosted: ClientSession) -> None:
        """Follow a session until its host has left."""
        try:
            async with open_attached(options, observers=[hosted], approvers=[hosted]) as session:
                hosted.end = await session.wait_finished()
        except CallboardError as error:
            hosted.fault = error
        finally:
            hosted.open = False
            hosted.changed.notify()


def _served(served: Sequence[Path], name: str) -> Path:
    """Return the served folder that the name means; empty: the first. Raises `UsageError`."""
    folder = Path(name).expanduser() if name else served[0]
    for path in served:
        if path == folder or path.resolve() == folder.resolve():
            return path
    names = ", ".join(map(str, served))
    raise UsageError(f"{name} is not served here; served: {names}. `callboard mcp serve --workspace DIR` adds one")


@asynccontextmanager
async def client_sessions(limits: ServerLimits, describe: DescribeEvent) -> AsyncGenerator[ClientSessions]:
    """Yield the sessions of a process. Leaving the block leaves each session in order."""
    async with AsyncExitStack() as stores, anyio.create_task_group() as group:
        yield ClientSessions(limits, describe, group, stores)
        group.cancel_scope.cancel()
