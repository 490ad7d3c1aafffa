"""Hosts of a store: its processes with their labels and sessions, and the sessions that wait for a host.

    async with open_store(...) as store:
        hosts = await read_hosts(store)

`callboard hosts`, `serve`, and screens read the same facts here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from callboard.core.decoding import read_value
from callboard.core.keys import drain_key, host_key, host_lease, host_name, queue_key
from callboard.core.placement import HostChoice, why_waiting
from callboard.ports.store import PresentProcess, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.inspect.serving import about_of
from callboard.types.errors import SessionUnreadable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import HostRow, QueuedSession

SILENT_AFTER = 3.0
"""Seconds without a sign of life after which a host gets no new session. It gives one each second."""
_HOST_LEASE = host_lease("")


@dataclass(frozen=True, slots=True)
class ListedHost:
    """One process of a store that hosts sessions, or serves those that need a host."""

    name: str
    """`machine:pid`."""
    machine: str
    pid: int
    state: str
    """`serving`, `hosting` (a `callboard run` or a terminal), `draining`, or `silent`."""
    version: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    sessions: tuple[str, ...] = ()
    """Sessions that it hosts."""
    limit: int = 0
    """Most sessions that it hosts; 0: no limit."""
    silent: float = 0.0
    """Seconds since its last sign of life."""
    since: float = 0.0
    """Time at which it began to serve, or to host its first session (Unix seconds)."""


@dataclass(frozen=True, slots=True)
class WaitingSession:
    """Session that needs a host and has none."""

    session: str
    since: float
    placement: dict[str, str]
    why: str
    """Reason; empty while a host is about to take it."""


@dataclass(frozen=True, slots=True)
class StoreHosts:
    """Hosts and waiting sessions of a store."""

    hosts: tuple[ListedHost, ...] = ()
    waiting: tuple[WaitingSession, ...] = ()

    @property
    def serving(self) -> tuple[ListedHost, ...]:
        """Return the hosts that take up sessions."""
        return tuple(host for host in self.hosts if host.state == "serving")


def hosted_by(process: PresentProcess) -> tuple[str, ...]:
    """Return the sessions whose leases a process holds."""
    return tuple(name.removeprefix(_HOST_LEASE) for name in process.leases if name.startswith(_HOST_LEASE))


def name_of(process: PresentProcess) -> str:
    """Return the name of a process among the hosts."""
    return host_name(process.machine, process.holder.pid)


def key_of(process: PresentProcess) -> str:
    """Return the key of the orders to a process, which no other process has."""
    return drain_key(process.machine, process.holder.pid, process.holder.started)


def choices_of(processes: Sequence[PresentProcess]) -> list[HostChoice]:
    """Return the serving hosts as candidates for a session."""
    return [
        HostChoice(
            name_of(process),
            about.labels,
            len(hosted_by(process)),
            about.sessions,
            about.draining,
            key_of(process),
            process.silent >= SILENT_AFTER,
        )
        for process in processes
        if (about := about_of(process)).serves
    ]


async def read_hosts(store: Store) -> StoreHosts:
    """Return the hosts of a store, and the sessions that wait for one."""
    processes = await store.present()
    rows = {row.key: _host_row(row) for row in await rows_of(store, host_key(""))}
    hosts = [_listed_host(process, rows) for process in processes if about_of(process).serves or hosted_by(process)]
    hosted = {session for process in processes for session in hosted_by(process)}
    choices = choices_of(processes)
    waiting = [
        WaitingSession(session, queued.since, queued.placement, why_waiting(queued.placement, choices))
        for session, queued in (await queued_sessions(store)).items()
        if session not in hosted
    ]
    return StoreHosts(tuple(hosts), tuple(sorted(waiting, key=lambda row: row.since)))


ABOUT_TO_TAKE = "a serving host is about to take it"
"""Reason of a session without a host that some living host will take."""


async def waiting_reason(store: Store, session: str) -> str | None:
    """Return why a session that needs a serving host has none yet; None if it needs none. It has no host now."""
    row = await store.get(queue_key(session))
    if row is None or row.value is None:
        return None
    why = why_waiting(read_value(QueuedSession, row.value, row.key).placement, choices_of(await store.present()))
    return f"it waits for a host: {why}" if why else ABOUT_TO_TAKE


async def about_to_take(store: Store, placement: Mapping[str, str]) -> str | None:
    """Return that a serving host is about to take a session that needs one; None if no host can."""
    return None if why_waiting(placement, choices_of(await store.present())) else ABOUT_TO_TAKE


def _host_row(row: Row) -> HostRow | None:
    try:
        return read_value(HostRow, row.value or b"", row.key)
    except SessionUnreadable:
        return None


def _listed_host(process: PresentProcess, rows: dict[str, HostRow | None]) -> ListedHost:
    about = about_of(process)
    sessions = hosted_by(process)
    own = [row for session in sessions if (row := rows.get(host_key(session))) is not None]
    state = "serving" if about.serves else "hosting"
    if about.draining:
        state = "draining"
    if process.silent >= SILENT_AFTER:
        state = "silent"
    return ListedHost(
        name_of(process),
        process.machine,
        process.holder.pid,
        state,
        about.version or next((row.version for row in own), ""),
        about.labels,
        sessions,
        about.sessions,
        round(process.silent, 1),
        about.since or min((row.since for row in own), default=0.0),
    )


async def queued_sessions(store: Store) -> dict[str, QueuedSession]:
    """Return the sessions that need a host, or have one because of that."""
    queued: dict[str, QueuedSession] = {}
    for row in await rows_of(store, queue_key()):
        try:
            queued[row.key.removeprefix(queue_key())] = read_value(QueuedSession, row.value or b"", row.key)
        except SessionUnreadable:
            continue  # its row is reported where the session is hosted
    return queued
