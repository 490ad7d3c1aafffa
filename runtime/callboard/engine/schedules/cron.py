"""The autorun loop: sleeps until the next fire time, then sends the prompt to whom it is for.

The envelope's id is the slot, so any number of processes may fire and it arrives once; the schedule's row, the envelope
and the row of the history are one commit. What cannot be fired is told and stands in the history; nothing fires while
nobody runs this loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import structlog

from callboard.core.names import schedule_key
from callboard.core.schedule import CronInvalid, Slot, When, due, next_wake, when_of
from callboard.core.schedule.due import Due, one_shot, over
from callboard.core.schedule.history import decided, wait_after
from callboard.core.schedule.overlap import Admitted, admit
from callboard.engine.host import Host
from callboard.engine.schedules.firing import sent, told
from callboard.engine.schedules.following import OpenFires
from callboard.engine.schedules.pausing import pause, used_up_schedule
from callboard.engine.schedules.settling import Settling, replaced
from callboard.ports.store import Put, Write
from callboard.words.errors import ToolRefused
from callboard.words.hooks import ScheduleFired
from callboard.words.schedules import Fire, Schedule

SOON = 60.0
"""Seconds of sleep at most: a clock that jumped, or a machine that slept, is noticed within a minute."""

log = structlog.get_logger("callboard.schedules")


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out of a schedule's row, until the row changes."""

    revision: int
    text: tuple[str, str, float]
    when: When
    wake: float | None


@dataclass(slots=True)
class _Decision:
    """One schedule at one moment, and what is to be written of it."""

    schedule: Schedule
    revision: int
    when: When
    now: float
    fires: list[Fire]
    writes: list[Write]


class Autorun:
    """Fires the schedules of a session."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._changed = anyio.Event()
        self._known: dict[str, _Known] = {}
        self.fires = OpenFires(host, self.heed)
        self._settling = Settling(host, self.fires)
        host.on_course = self.fires.heed

    @property
    def waiting(self) -> bool:
        """Some fire was sent or is held, or is to be tried again: nothing is quiet yet."""
        return len(self.fires) > 0

    def heed(self) -> None:
        """A schedule was added, changed or removed, or a fire came on."""
        self._changed.set()

    async def recall(self) -> None:
        """Read what is under way, before any agent of the session lives here. Raises `StoreDamaged`."""
        await self.fires.load()

    async def take_up(self, fire_id: str) -> None:
        """A person fires a schedule by hand: the fire stands in the history, and waits."""
        await self.fires.take_up(fire_id)

    async def run(self) -> None:
        """Fire until cancelled."""
        for schedule in self._host.board.schedules():
            if not schedule.durable and schedule.state == "active":  # it was for the life of an earlier process
                await self._change(schedule.id, {"state": "cancelled", "enabled": False})
        while True:
            self._changed = anyio.Event()
            now = self._host.clock.now()
            await self._settling.tend(now)
            await self._fire_all(now)
            await self._sleep(self._next_time())

    def _active(self) -> list[Schedule]:
        return [one for one in self._host.board.schedules() if one.enabled and one.state == "active"]

    def _next_time(self) -> float | None:
        wakes = [self._settling.next_time(), *(self._wake(one) for one in self._active())]
        return min((at for at in wakes if at is not None), default=None)

    async def _fire_all(self, now: float) -> None:
        """One by one; where hooks are asked, together: one that takes its time keeps no other schedule waiting."""
        active = [one for one in self._active() if self._is_due(one, now)]
        if not self._host.ports.hooks.has("ScheduleFired"):
            for schedule in active:
                await self._fire(schedule.id, now)
            return
        async with anyio.create_task_group() as group:
            for schedule in active:
                group.start_soon(self._fire, schedule.id, now)

    def _is_due(self, schedule: Schedule, now: float) -> bool:
        """Whether there is something to decide. One that cannot be read is paused by who fires it."""
        wake = self._wake(schedule)
        if wake is None:
            return bool(over(schedule, now, when=self._when(schedule)))
        return wake <= now

    def _wake(self, schedule: Schedule) -> float | None:
        """When it is due next; looked for once, until its row changes. One that cannot be read is paused at once."""
        try:
            known = self._look(schedule)
        except CronInvalid:
            return 0.0
        return known.wake if known is not None else None

    def _when(self, schedule: Schedule) -> When | None:
        known = self._look(schedule)
        return known.when if known is not None else None

    def _look(self, schedule: Schedule) -> _Known | None:
        found = self._host.board.schedule(schedule.id)
        if found is None:
            return None
        known, revision = self._known.get(schedule.id), found[1]
        if known is not None and known.revision == revision:
            return known
        text = (found[0].cron, found[0].timezone, found[0].created_at)
        try:
            when = known.when if known is not None and known.text == text else when_of(found[0])
        except CronInvalid:
            if found[0].state == "active":
                raise
            return None
        wake = next_wake(found[0], not_before=self._not_before(found[0]), when=when)
        self._known[schedule.id] = _Known(revision, text, when, wake)
        return self._known[schedule.id]

    def _not_before(self, schedule: Schedule) -> float:
        """The end of the wait after failures."""
        return wait_after(schedule, self.fires.failed_at.get(schedule.id, 0.0))

    async def _pause(self, schedule: Schedule, why: str, *, wakes: bool) -> None:
        """A schedule that cannot fire does not vanish: it is paused with the reason, and the lead is told."""
        writes = pause(self._host, schedule.id, why, wakes=wakes)
        if writes:
            await self._settling.commit(*writes)

    async def _change(self, schedule_id: str, update: Mapping[str, object]) -> None:
        row = self._host.board.schedule(schedule_id)
        if row is None:
            return
        key = schedule_key(self._host.session, schedule_id)
        changed = row[0].model_copy(update=dict(update))
        await self._settling.commit(Put(key, changed.encode(), expected=row[1]))

    async def _sleep(self, until: float | None) -> None:
        if until is None:
            await self._changed.wait()
            return
        wait = min(max(0.0, until - self._host.clock.now()), SOON)
        with anyio.move_on_after(wait):
            await self._changed.wait()

    async def _fire(self, schedule_id: str, now: float) -> None:
        """Everything that is due of one schedule, in one commit. Lost a race: somebody else has changed or fired it,
        and the next look decides anew."""
        found = self._host.board.schedule(schedule_id)
        if found is None:
            return
        schedule, revision = found
        try:
            when = self._when(schedule) or when_of(schedule)
            decided_on = due(schedule, now, not_before=self._not_before(schedule), when=when)
            why = over(schedule, now, when=when)
        except CronInvalid as unreadable:
            await self._pause(schedule, str(unreadable), wakes=True)
            return
        if why:
            await self._change(schedule_id, {"state": "ended", "paused_why": why})
            return
        if decided_on.last_slot == schedule.last_slot:
            return
        decision = _Decision(schedule, revision, when, now, [], [])
        update = await self._decide(decision, decided_on)
        row = schedule.model_copy(update=update)
        key = schedule_key(self._host.session, schedule_id)
        history = [*self.fires.puts(*decision.fires), *self.fires.pruning(schedule_id, len(decision.fires))]
        await self._settling.commit(Put(key, row.encode(), expected=revision), *decision.writes, *history)

    async def _decide(self, on: _Decision, found: Due) -> dict[str, object]:
        """What becomes of each slot, into the decision; and what changes in the schedule's row."""
        schedule, update = on.schedule, dict[str, object](last_slot=found.last_slot)
        if found.missed is not None:
            await self._miss(on, found.missed, found.passed)
        slots = [one for one in found.slots if not await self.fires.known(schedule.id, one.id)]
        why = used_up_schedule(self._host, schedule) if slots else ""
        if why:
            on.fires += [decided(self._host.session, one, on.now, "refused", why) for one in slots]
            on.writes.append(told(self._host, schedule, f"paused {on.revision}", _paused_words(schedule, why)))
            return {**update, "state": "paused", "paused_why": why}
        slots, refused = await self._passed(on, slots)
        admitted = admit(schedule, slots, self.fires.of(schedule.id))
        fired = await self._admit(on, admitted)
        fires = schedule.fires + fired
        update |= {"fires": fires, **refused}
        if one_shot(schedule, on.when):
            update |= {"state": "fired"} if fired else {"state": "ended", "paused_why": _why_not(on.fires)}
        elif schedule.max_runs is not None and fires >= schedule.max_runs:
            update |= {"state": "ended", "paused_why": f"it has fired {fires} times, as often as it may (max_runs)"}
        return update

    async def _miss(self, on: _Decision, first: Slot, count: int) -> None:
        """Slots that are passed over stand in the history, all in one row; of a one-shot the lead is told."""
        schedule = on.schedule
        late = on.now - first.nominal
        why = f"{late:,.0f} s late: nothing ran that would fire it (misfire {schedule.misfire})"
        log.warning("missed", schedule=schedule.id, slot=first.id, slots=count, why=why)
        if not await self.fires.known(schedule.id, first.id):
            on.fires.append(decided(self._host.session, first, on.now, "missed", why, max(1, count)))
        if one_shot(schedule, on.when):
            words = f"schedule {schedule.id} ({schedule.cron}, {schedule.timezone}) was missed and does not run: {why}"
            on.writes.append(told(self._host, schedule, first.id, words))

    async def _admit(self, on: _Decision, admitted: Admitted) -> int:
        """Send, hold, skip and replace as it says; how many fire."""
        session, now = self._host.session, on.now
        on.fires += [decided(session, one, now, "skipped", admitted.why) for one in admitted.skip]
        for old in admitted.replaced:
            fire, writes = replaced(self._host, old, admitted.send[0].id, now)
            on.fires.append(fire)
            on.writes += writes
        count = 0
        for slot in admitted.send:
            fire = decided(session, slot, now, "waiting")
            try:
                fire, writes = await sent(self._host, on.schedule, fire, now)
            except ToolRefused as refused:
                on.fires.append(decided(session, slot, now, "refused", str(refused)))
                continue
            on.fires.append(fire)
            on.writes += _new(writes, on.writes)
            count += 1
        on.fires += [decided(session, one, now, "waiting") for one in admitted.hold]
        return count + len(admitted.hold)

    async def _passed(self, on: _Decision, slots: Sequence[Slot]) -> tuple[list[Slot], Mapping[str, object]]:
        """The fires that no ScheduleFired hook refuses, and what the row is to say of the others. After a crash before
        the commit they are asked again."""
        hooks, schedule = self._host.ports.hooks, on.schedule
        if not slots or not hooks.has("ScheduleFired"):
            return list(slots), {}
        passed, skips, why = list[Slot](), schedule.skips, ""
        for slot in slots:
            by = self._host.caller_of("lead")
            event = ScheduleFired(schedule.id, schedule.prompt, slot.nominal, schedule.cron, by)
            verdict = await hooks.fire(event)
            for text in verdict.notices:
                log.warning("hook", schedule=schedule.id, notice=text)
            if not verdict.block:
                passed.append(slot)
                continue
            at = datetime.fromtimestamp(slot.nominal, UTC)
            why = f"{at:%Y-%m-%d %H:%M} UTC: {verdict.block} ({verdict.by})"
            on.fires.append(decided(self._host.session, slot, on.now, "refused", f"{verdict.block} ({verdict.by})"))
            skips += 1
            log.warning("a hook skipped a fire", schedule=schedule.id, why=why)
        return passed, {"skips": skips, "skipped_why": why} if why else {}


def _new(writes: Sequence[Write], there: Sequence[Write]) -> list[Write]:
    """Those that do not stand there: an agent that takes several fires of one commit is made once."""
    made = {one.key for one in there if isinstance(one, Put)}
    return [one for one in writes if not (isinstance(one, Put) and one.key in made)]


def _paused_words(schedule: Schedule, why: str) -> str:
    return f"schedule {schedule.id} ({schedule.cron}, {schedule.timezone}) is paused: {why}"


def _why_not(fires: Sequence[Fire]) -> str:
    return next((f"{one.outcome}: {one.why}" for one in fires if one.why), "its time has passed")
