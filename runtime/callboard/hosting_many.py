"""The sessions that a `callboard serve` hosts: each one whose schedules fire, for as long as they do.

Any number of such processes may share a workspace: the lease of each session decides who hosts it, and the others wait
for its end (`taking_over.until_free`), by the death of that process or by its word. New sessions and new schedules are
heard of by the store's doorbell. It answers nothing for a person.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.clock import SystemClock
from callboard.app import open_session
from callboard.core.names import fires_prefix
from callboard.core.schedule import CronInvalid, next_wake
from callboard.desks.serving import fires_again
from callboard.opening import Options, Shared
from callboard.ports.store import Row
from callboard.taking_over import until_free
from callboard.words.errors import CallboardError, Fenced, NobodyCanAct, SessionHosted, SessionTakenOver
from callboard.words.schedules import Fire, Schedule
from callboard.words.values import Json

RETRY, LONGEST_RETRY = 60.0, 3_600.0
"""Seconds until a session that could not be opened is tried again: the first time, and at most, doubled each time."""
_OPEN = frozenset({"waiting", "running"})


@dataclass(frozen=True, slots=True)
class Serving:
    """What a person asked for."""

    workspace: Path
    trust: bool = False
    """Use what the workspace brings, for this run."""
    model: str | None = None
    """Of the session that is kept for schedule files; None: as the settings say."""
    once: bool = False
    """Fire what is due now, wait for its end, and return."""


@dataclass(frozen=True, slots=True)
class Told:
    """One line of the log. `what`: serving, hosting, left, fire, retry, end, missed, paused, note,
    trouble, files."""

    what: str
    words: str
    session: str = ""
    schedule: str = ""
    more: Json = field(default_factory=dict[str, object])
    """Of a fire: its `id`, `nominal`, `outcome`, `cost_usd` and seconds."""
    at: float = field(default_factory=time.time)


Tell = Callable[[Told], None]


@dataclass(slots=True)
class Kept:
    """A session that has, or had, schedules, as this process sees it."""

    session: str
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    open: dict[str, Fire] = field(default_factory=dict[str, Fire])
    """Fires that are not over, by their keys: also of a schedule that fires no more."""
    moved: anyio.Event = field(default_factory=anyio.Event)
    mine: bool = False
    """This process hosts it."""

    def fires(self) -> bool:
        """Whether somebody has to host it. One that lived as long as an earlier process is nobody's."""
        return bool(self.open) or any(one.durable and fires_again(one) for one in self.schedules.values())

    def due(self, now: float) -> bool:
        """Whether something is to be fired by this moment, or is under way."""
        return bool(self.open) or any(one.durable and _is_due(one, now) for one in self.schedules.values())

    def touch(self) -> None:
        """Whoever waits for the schedules looks again."""
        self.moved.set()
        self.moved = anyio.Event()

    async def until(self, so: Callable[[], bool]) -> None:
        """Return when it is so, by the schedules."""
        while not so():
            await self.moved.wait()


def _is_due(schedule: Schedule, now: float) -> bool:
    try:
        wake = next_wake(schedule) if schedule.enabled and schedule.state == "active" else None
    except CronInvalid:
        return True
    return wake is not None and wake <= now


class Server:
    """One `callboard serve`. `tell` takes its lines."""

    def __init__(self, what: Serving, shared: Shared, tell: Tell) -> None:
        self._what, self._shared, self._tell = what, shared, tell
        self._store = shared.store
        self._kept: dict[str, Kept] = {}
        self._seen = 0
        """The newest revision that was read at the start."""
        self._began = SystemClock().now()

    @property
    def kept(self) -> Sequence[Kept]:
        """Every session that has or had schedules."""
        return list(self._kept.values())

    async def look(self) -> None:
        """Read the schedules of all sessions as they stand, and which fires are not over."""
        for row in (*await self._store.keys("s/"), *await self._store.keys(fires_prefix())):
            self._take(row)
            self._seen = max(self._seen, row.revision)

    async def run(self, *beside: Callable[[], Coroutine[object, object, None]]) -> None:
        """Serve until cancelled, with what else runs `beside` it. Raises what nobody can act on; what a person can
        mend of one session is told, and it is tried again."""
        async with anyio.create_task_group() as group:
            for work in beside:
                group.start_soon(work)
            for one in self.kept:
                group.start_soon(self._keep, one)
            group.start_soon(self._follow, fires_prefix(), group)
            await self._follow("s/", group)

    async def _follow(self, prefix: str, group: TaskGroup | None) -> None:
        """Heed what changes, until cancelled. `group`: where sessions that are new are kept; None: they are not."""
        async with self._store.watch(prefix) as rows:
            async for row in rows:
                self._heed((row, *rows.at_hand()), group)

    def _heed(self, rows: Sequence[Row], group: TaskGroup | None) -> None:
        changed = [one for one in rows if one.value is None or one.revision > self._seen]
        new = [kept for one in changed if (kept := self._take(one)) is not None]
        if group is not None:
            for kept in new:
                group.start_soon(self._keep, kept)

    async def once(self) -> int:
        """Fire what is due, each session beside the others; the exit code of the first whose turn did not end well."""
        codes: list[int] = []
        async with anyio.create_task_group() as following:
            for prefix in ("s/", fires_prefix()):
                following.start_soon(self._follow, prefix, None)
            async with anyio.create_task_group() as group:
                for one in [one for one in self.kept if one.due(self._began)]:
                    group.start_soon(self._host_once, one, codes)
            following.cancel_scope.cancel()
        return next((code for code in codes if code), 0)

    async def _host_once(self, kept: Kept, codes: list[int]) -> None:
        try:
            await self._host(kept, codes)
        except SessionHosted as hosted:
            self._say(kept, "left", f"process {hosted.pid} hosts it, and fires its schedules")
        except SessionTakenOver as taken:
            self._say(kept, "left", f"process {taken.pid} takes it over")

    def _take(self, row: Row) -> Kept | None:
        """A row has changed; the session, if it was not known to have schedules."""
        parts = row.key.split("/")
        if parts[0] != "fires" and (len(parts) != 4 or parts[2] != "schedule"):
            return None
        new = parts[1] not in self._kept
        kept = self._kept.setdefault(parts[1], Kept(parts[1]))
        if parts[0] == "fires":
            self._take_fire(kept, row)
        elif row.value is None:
            kept.schedules.pop(parts[3], None)
        else:
            schedule = Schedule.model_validate_json(row.value)
            self._heed_pause(kept, schedule)
            kept.schedules[schedule.id] = schedule
        kept.touch()
        return kept if new else None

    def _take_fire(self, kept: Kept, row: Row) -> None:
        before = kept.open.pop(row.key, None)
        if row.value is None:
            return
        fire = Fire.model_validate_json(row.value)
        if fire.outcome in _OPEN:
            kept.open[row.key] = fire
        again = fire.ended_at is not None and (before is None or before.ended_at != fire.ended_at)
        if kept.mine and (before is None or again or fire.outcome not in _OPEN):
            self._tell_fire(kept, fire)

    def _heed_pause(self, kept: Kept, now: Schedule) -> None:
        before = kept.schedules.get(now.id)
        if kept.mine and now.state == "paused" and (before is None or before.state != "paused"):
            self._say(kept, "paused", now.paused_why or "by a person", now.id)

    # One session

    async def _keep(self, kept: Kept) -> None:
        """Host a session whenever it has schedules that fire and nobody else hosts it, until cancelled."""
        wait = RETRY
        while True:
            await kept.until(kept.fires)
            await self._first(kept, partial(until_free, self._store, kept.session), kept.fires)
            if not kept.fires():
                continue
            try:
                await self._host(kept, [])
            except SessionHosted:
                continue  # another one was faster
            except SessionTakenOver as taken:
                self._say(kept, "left", f"process {taken.pid} takes it over; it is taken again when that one leaves")
            except Fenced:
                self._say(kept, "left", "another process hosts it: this one was held for dead")
            except NobodyCanAct:
                raise
            except CallboardError as error:
                self._say(kept, "trouble", f"cannot be hosted: {error}; tried again in {wait:g} s, or at SIGHUP")
                with anyio.move_on_after(wait):
                    await kept.moved.wait()
                wait = min(2 * wait, LONGEST_RETRY)
                continue
            wait = RETRY

    async def _first(self, kept: Kept, work: Callable[[], Awaitable[None]], so: Callable[[], bool]) -> None:
        """Do the work, but no longer than it is so."""

        async def heed() -> None:
            await kept.until(lambda: not so())
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(heed)
            await work()
            group.cancel_scope.cancel()

    async def _host(self, kept: Kept, codes: list[int]) -> None:
        """Host a session until its schedules have fired for the last time and what they began is over."""
        what = self._what
        options = Options(
            what.workspace,
            session=kept.session,
            resume=True,
            trust=what.trust,
            answerable=True,
            shared=self._shared,
        )
        wanted = partial(kept.due, self._began) if what.once else kept.fires
        async with open_session(options) as session:
            kept.mine = True
            try:
                self._say(kept, "hosting", _count(kept))
                for note in session.notes:
                    self._say(kept, "note", note)
                while wanted():
                    await kept.until(lambda: not wanted())
                    await session.finished()
                codes.append(session.end().exit_code)
            finally:
                kept.mine = False
        self._say(kept, "left", "what was due is done" if what.once else "none of its schedules fires any more")

    def _tell_fire(self, kept: Kept, fire: Fire) -> None:
        more: Json = {"id": fire.id, "nominal": fire.nominal, "outcome": fire.outcome, "agent": fire.agent}
        why = f": {' '.join(fire.why.split())[:200]}" if fire.why else ""
        if fire.outcome in _OPEN and fire.ended_at is not None:
            self._say(
                kept, "retry", f"try {fire.attempt} failed, due {_moment(fire.nominal)}{why}", fire.schedule, more
            )
            return
        if fire.outcome in _OPEN:
            self._say(kept, "fire", f"due {_moment(fire.nominal)}", fire.schedule, more)
            return
        if fire.outcome in ("missed", "skipped", "refused", "replaced"):
            self._say(kept, "missed", f"{fire.outcome}, due {_moment(fire.nominal)}{why}", fire.schedule, more)
            return
        seconds = (fire.ended_at or fire.at) - (fire.began_at or fire.at)
        more |= {"seconds": round(seconds, 3), "cost_usd": fire.cost_usd, "attempt": fire.attempt}
        words = f"{fire.outcome} after {seconds:.1f} s, ${fire.cost_usd:.4f}{why}"
        self._say(kept, "end", words, fire.schedule, more)

    def _say(self, kept: Kept, what: str, words: str, schedule: str = "", more: Json | None = None) -> None:
        self._tell(Told(what, words, kept.session, schedule, more or {}))


def _count(kept: Kept) -> str:
    firing = [one for one in kept.schedules.values() if fires_again(one)]
    wakes = [wake for one in firing if (wake := _wake(one)) is not None]
    first = f", next {_moment(min(wakes))}" if wakes else ""
    return f"{len(firing)} schedule{'s' if len(firing) != 1 else ''}{first}"


def _wake(schedule: Schedule) -> float | None:
    try:
        return next_wake(schedule)
    except CronInvalid:
        return None


def _moment(at: float) -> str:
    """A moment for a person, in the zone of the machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
