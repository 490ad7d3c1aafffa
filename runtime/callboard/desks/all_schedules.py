"""The schedules of a whole workspace, whichever session they belong to.

Each session has its own; a person who names one need not know whose it is.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.agent_files import load_agents
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.trust import read_brought
from callboard.assembly import Places, find_places, open_store
from callboard.core.names import rows_prefix
from callboard.core.schedule.fields import FieldWrong
from callboard.desks.schedule_files import faults_of, files_now
from callboard.desks.schedules import LIVE, CronDesk, names_of
from callboard.desks.serving import firing
from callboard.engine.board import SessionBoard
from callboard.engine.sessions import SERVES, find_session, sessions_of
from callboard.ports.store import Store
from callboard.settings import load_settings
from callboard.words.errors import UsageError
from callboard.words.schedules import Schedule


@dataclass(frozen=True, slots=True)
class Kept:
    """A schedule, and the session that it belongs to."""

    schedule: Schedule
    session: str


class NoSession(UsageError):
    """There is no session in the workspace, so that nothing has schedules."""


class AllSchedules:
    """The schedules of each session, the newest session first; or of the one that was named."""

    def __init__(self, store: Store, places: Places, desks: Sequence[CronDesk]) -> None:
        self.store = store
        self._places, self.desks = places, desks

    @property
    def current(self) -> CronDesk:
        """Of the newest session, or of the one that was named."""
        return self.desks[0]

    def kept(self) -> list[Kept]:
        """All of them, of each session oldest first."""
        return [Kept(one, desk.session) for desk in self.desks for one in desk.all()]

    def desk_of(self, wanted: str) -> CronDesk:
        """Where that name or id is: the current session's first, a live one before one that is over. Raises
        `UsageError` naming those there are."""
        found = [(desk, one) for desk in self.desks if (one := desk.find(wanted)) is not None]
        if not found:
            known = names_of([kept.schedule for kept in self.kept()])
            raise UsageError(f"there is no schedule {wanted}; there are: {known}")
        return next((desk for desk, one in found if one.state in LIVE), found[0][0])

    async def fired_by(self) -> dict[str, str]:
        """Session -> the process that fires its schedules, in words; empty: nothing is running that would."""
        return {desk.session: await firing(self.store, desk.session) for desk in self.desks if desk.all()}

    async def check_type(self, schedule: Schedule) -> None:
        """Refuse an agent type that no file defines, so that it is told now and not at the first fire. Raises
        `FieldWrong`."""
        if schedule.target == "lead":
            return
        known = await anyio.to_thread.run_sync(_agent_types, self._places)
        if schedule.target not in known:
            likely = difflib.get_close_matches(schedule.target, known, n=1)
            hint = f"did you mean {likely[0]}?" if likely else f"there are {', '.join(known)}"
            raise FieldWrong("agent_type", f"no type {schedule.target!r}: {hint}")

    async def faults(self) -> tuple[str, ...]:
        """What is wrong with the schedule files, a line each."""
        found = await anyio.to_thread.run_sync(files_now, self._places)
        return faults_of(found, [kept.schedule for kept in self.kept()])


@asynccontextmanager
async def open_schedules(
    workspace: Path, session: str | None = None, make: Callable[[Store], Awaitable[str]] | None = None
) -> AsyncGenerator[AllSchedules]:
    """Those of all sessions of a workspace, or of the one named.

    `make` makes a session where there is none; without it that raises `NoSession`. Raises `UsageError` for an unknown
    session.
    """
    places = find_places(workspace, writable=False)
    if make is None and not (places.state / "callboard.db").exists():
        raise NoSession(_no_session(places.workspace))
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        ids = await _sessions(store, session)
        if not ids:
            if make is None:
                raise NoSession(_no_session(places.workspace))
            ids = [await make(store)]
        yield AllSchedules(store, places, [await _desk(store, one) for one in ids])
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


def _agent_types(places: Places) -> list[str]:
    """Every type that a file defines, whoever trusts it: only their names are asked for."""
    home = os.environ.get("HOME", "")
    brought = read_brought(places.workspace)
    found = FilePlaces(places.workspace, places.config, Path(home) if home else None, trusted=True, brought=brought)
    return list(load_agents(found).items)


def _no_session(workspace: Path) -> str:
    """What to do where there is nothing that a schedule could belong to."""
    return (
        f"there is no session in {workspace} yet, so there are no schedules: add one with `callboard cron add`, or "
        "write .callboard/schedules/NAME.md and start `callboard serve`"
    )


async def _sessions(store: Store, wanted: str | None) -> list[str]:
    """The newest first, the one that is kept for schedule files last."""
    if wanted is not None:
        return [(await find_session(store, wanted)).id]
    rows = await sessions_of(store)
    return [row.id for row in sorted(rows, key=lambda row: bool(row.settings.get(SERVES)))]


async def _desk(store: Store, session: str) -> CronDesk:
    board = SessionBoard(session, lambda kind, name: None)
    board.take(*await store.keys(f"{rows_prefix(session)}schedule/"))
    return CronDesk(store, session, board)
