"""The fires of a session that have not come to their end, and their rows in the history.

Kept in this process while it hosts the session: rows that are open, how many each schedule has, and what the journals
say of those whose turn is under way. After a crash all of it is read again: rows first, then the journals of the
agents concerned, so that no fire is lost and none runs twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from callboard.core.names import fire_key, fires_prefix, journal
from callboard.core.schedule.history import KEPT, Course, envelope_id, heard, unended
from callboard.engine.host import Host
from callboard.engine.memory import events_of
from callboard.ports.store import Delete, Put, Row, Write
from callboard.words import events as ev
from callboard.words.schedules import Fire

log = structlog.get_logger("callboard.schedules")

_HEEDED = frozenset(
    {
        ev.EnvelopeReceived,
        ev.EnvelopesDelivered,
        ev.EnvelopesDropped,
        ev.TurnBegan,
        ev.TurnEnded,
        ev.AgentStopped,
        ev.AgentCrashed,
        ev.ModelReplied,
        ev.ReplyDropped,
    }
)
_OPEN = (b'"waiting"', b'"running"', b'"ended_at":null')
"""What the bytes of a row hold that may be open: the others are not even read."""


@dataclass(slots=True)
class Followed:
    """One fire that has not come to its end."""

    fire: Fire
    revision: int
    course: Course | None = None
    """None: nothing was sent, or it waits to be tried again."""


class OpenFires:
    """All of a session. `moved`: the course of one has changed."""

    def __init__(self, host: Host, moved: Callable[[], None]) -> None:
        self._host, self._moved = host, moved
        self._open: dict[str, Followed] = {}
        self._keys: dict[str, deque[str]] = {}
        """Schedule -> the keys of its history, oldest first."""
        self.failed_at: dict[str, float] = {}
        """Schedule -> when its newest failed fire ended (unix seconds)."""

    def __iter__(self) -> Iterator[Followed]:
        """The open ones, oldest first."""
        return iter(sorted(self._open.values(), key=lambda one: (one.fire.nominal, one.fire.at, one.fire.id)))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, fire_id: object) -> bool:
        return fire_id in self._open

    def of(self, schedule: str) -> list[Fire]:
        """Those of one schedule, oldest first."""
        return [one.fire for one in self if one.fire.schedule == schedule]

    async def load(self) -> None:
        """Read the history once, before any agent of the session lives here. Raises `StoreDamaged`."""
        rows = await self._host.ports.store.keys(fires_prefix(self._host.session))
        for row in sorted(rows, key=lambda row: row.revision):
            schedule = row.key.split("/")[2]
            self._keys.setdefault(schedule, deque()).append(row.key)
            self._take(row)
        for one in list(self._open.values()):
            if one.fire.agent and one.fire.ended_at is None:
                one.course = await self._told(one.fire)

    def _take(self, row: Row) -> None:
        """Heed a row of the history."""
        value = row.value or b""
        failing = self._host.board.schedule_row(row.key.split("/")[2])
        if not any(one in value for one in _OPEN) and not (failing and failing.failures):
            return
        try:
            fire = Fire.model_validate_json(value)
        except ValueError as wrong:
            log.warning("a fire of the history cannot be read", key=row.key, why=str(wrong)[:200])
            return
        if unended(fire):
            self._open[fire.id] = Followed(fire, row.revision)
        elif fire.outcome in ("failed", "timed_out"):
            self.failed_at[fire.schedule] = fire.ended_at or 0.0

    async def take_up(self, fire_id: str) -> None:
        """A fire that another process has put into the history."""
        schedule = fire_id.split(":")[1]
        row = await self._host.ports.store.get(fire_key(self._host.session, schedule, fire_id))
        keys = self._keys.setdefault(schedule, deque())
        if row is None or fire_id in self._open:
            return
        if row.key not in keys:
            keys.append(row.key)
        self._take(row)
        self._moved()

    async def reread(self, key: str) -> None:
        """Somebody else has changed a row of the history: what it says counts."""
        if not key.startswith(fires_prefix(self._host.session)):
            return
        row = await self._host.ports.store.get(key)
        for fire_id in [one for one in self._open if fire_key(self._host.session, one.split(":")[1], one) == key]:
            del self._open[fire_id]
        if row is not None:
            self._take(row)

    async def known(self, schedule: str, fire_id: str) -> bool:
        """Whether that slot was decided upon already."""
        return await self._host.ports.store.get(fire_key(self._host.session, schedule, fire_id)) is not None

    async def _told(self, fire: Fire) -> Course:
        """What the journals of its agent say of the newest try."""
        row = self._host.board.agent(fire.agent)
        course = Course(envelope_id(fire))
        for life in range(1, row[0].incarnation + 1 if row else 1):
            for event in await events_of(self._host.ports.store, journal(self._host.session, fire.agent, life)):
                if course.stage == "ended":
                    return course
                course = heard(course, event) if type(event) in _HEEDED else course
        return course

    def heed(self, agent: str, event: ev.Event) -> None:
        """A record of an agent of this process."""
        if not self._open or type(event) not in _HEEDED:
            return
        for one in self._open.values():
            if one.fire.agent != agent or one.course is None or one.course.stage == "ended":
                continue
            course = heard(one.course, event)
            moved = course.stage != one.course.stage
            one.course = course
            if moved:
                self._moved()

    def puts(self, *fires: Fire) -> list[Write]:
        """The writes by which they stand in the history: new ones, or as they have changed."""
        writes: list[Write] = []
        for fire in fires:
            followed = self._open.get(fire.id)
            key = fire_key(self._host.session, fire.schedule, fire.id)
            writes.append(Put(key, fire.encode(), expected=followed.revision if followed else 0))
        return writes

    def pruning(self, schedule: str, more: int) -> list[Write]:
        """The writes by which the oldest of a schedule make room for `more`. Those that are open stay."""
        keys = self._keys.get(schedule, deque())
        kept = {fire_key(self._host.session, schedule, one) for one in self._open}
        surplus = max(0, len(keys) + more - KEPT)
        return [Delete(key) for key in list(keys)[:surplus] if key not in kept]

    def written(self, writes: Sequence[Write], revisions: Sequence[int]) -> None:
        """A commit is done: what it said of the history is known here."""
        for write, revision in zip(writes, revisions, strict=True):
            if isinstance(write, Put | Delete) and write.key.startswith(fires_prefix(self._host.session)):
                self._written(write, revision)

    def _written(self, write: Put | Delete, revision: int) -> None:
        keys = self._keys.setdefault(write.key.split("/")[2], deque())
        if isinstance(write, Delete):
            keys.remove(write.key)
            return
        fire = Fire.model_validate_json(write.value)
        followed = self._open.get(fire.id)
        if followed is None and write.key not in keys:
            keys.append(write.key)
        if not unended(fire):
            self._open.pop(fire.id, None)
            if fire.outcome in ("failed", "timed_out"):
                self.failed_at[fire.schedule] = fire.ended_at or 0.0
            return
        followed = self._open.setdefault(fire.id, Followed(fire, revision))
        sent = fire.agent and fire.ended_at is None
        begun = envelope_id(fire)
        if not sent:
            followed.course = None
        elif followed.course is None or followed.course.envelope != begun:
            followed.course = Course(begun)
        followed.fire, followed.revision = fire, revision
