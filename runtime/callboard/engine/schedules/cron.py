"""The autorun loop: sleeps until the next fire time, then puts the prompt into the target's mailbox.

The envelope's id is the slot, so any number of processes may fire and it arrives once; the row and the envelope are one
commit. A damaged schedule is told by the store, a failing one backs off; nothing fires while nobody runs this loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio
import structlog

from callboard.core.bus.mail import sending
from callboard.core.names import schedule_key
from callboard.core.schedule import CronInvalid, Slot, delivered, due, next_wake
from callboard.engine.host import Host
from callboard.engine.schedules.pausing import pause, used_up_schedule
from callboard.ports.store import Put, Write
from callboard.words.errors import Conflict
from callboard.words.hooks import ScheduleFired
from callboard.words.schedules import Schedule
from callboard.words.values import Envelope

SOON = 60.0
"""Seconds of sleep at most: a clock that jumped, or a machine that slept, is noticed within a minute."""


log = structlog.get_logger("callboard.schedules")


class Autorun:
    """Fires the schedules of a session. `busy(schedule_id)`: an earlier fire is still under way."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._changed = anyio.Event()

    def heed(self) -> None:
        """A schedule was added, changed or removed."""
        self._changed.set()

    async def run(self) -> None:
        """Fire until cancelled."""
        for schedule in self._host.board.schedules():
            if not schedule.durable and schedule.state == "active":  # it was for the life of an earlier process
                await self._change(schedule.id, {"state": "cancelled", "enabled": False})
        while True:
            self._changed = anyio.Event()
            now = self._host.clock.now()
            active = [one for one in self._host.board.schedules() if one.enabled and one.state == "active"]
            await self._fire_all(active, now)
            wakes = [wake for one in active if (wake := self._wake(one.id)) is not None]
            await self._sleep(min(wakes, default=None))

    async def _fire_all(self, active: Sequence[Schedule], now: float) -> None:
        """One by one; where hooks are asked, together: one that takes its time keeps no other schedule waiting."""
        if not self._host.ports.hooks.has("ScheduleFired"):
            for schedule in active:
                await self._fire(schedule, now)
            return
        async with anyio.create_task_group() as group:
            for schedule in active:
                group.start_soon(self._fire, schedule, now)

    def _wake(self, schedule: str) -> float | None:
        """When it is due next, as its row stands after a fire. One that cannot be read was paused by then."""
        found = self._host.board.schedule(schedule)
        return next_wake(found[0]) if found and found[0].state == "active" else None

    async def _pause(self, schedule: Schedule, why: str, *, wakes: bool) -> None:
        """A schedule that cannot fire does not vanish: it is paused with the reason, and the lead is told."""
        writes = pause(self._host, schedule.id, why, wakes=wakes)
        if writes:
            await self._commit(*writes)

    async def _change(self, schedule_id: str, update: Mapping[str, object], *more: Write) -> None:
        """Change a schedule's row, and commit `more` with it."""
        row = self._host.board.schedule(schedule_id)
        if row is None:
            return
        key = schedule_key(self._host.session, schedule_id)
        changed = row[0].model_copy(update=dict(update))
        await self._commit(*more, Put(key, changed.encode(), expected=row[1]))

    async def _commit(self, *writes: Write) -> None:
        """Lost a race: the row is read again, nothing is done."""
        try:
            await self._host.commit(*writes)
        except Conflict as lost:
            await self._host.refresh(lost.what)

    async def _sleep(self, until: float | None) -> None:
        if until is None:
            await self._changed.wait()
            return
        wait = min(max(0.0, until - self._host.clock.now()), SOON)
        with anyio.move_on_after(wait):
            await self._changed.wait()

    async def _fire(self, schedule: Schedule, now: float) -> None:
        """Everything that is due of one schedule, in one commit. Lost a race: somebody else has fired it."""
        try:
            found = due(schedule, now)
        except CronInvalid as unreadable:
            await self._pause(schedule, str(unreadable), wakes=True)
            return
        if found.last_slot == schedule.last_slot and not found.slots:
            return
        why = used_up_schedule(self._host, schedule) if found.slots else ""
        if why:
            await self._pause(schedule, why, wakes=False)
            return
        slots = found.slots if schedule.overlap in ("queue", "parallel") or not self._busy(schedule.id) else ()
        slots, refused = await self._passed(schedule, slots)
        row = self._host.board.schedule(schedule.id)
        if row is None or row[0].state != "active":
            return  # cancelled while its hooks were asked
        update: dict[str, object] = {"last_slot": found.last_slot, "fires": schedule.fires + len(slots), **refused}
        if not schedule.recurring and found.last_slot is not None:
            update["state"] = "fired"
        await self._change(schedule.id, update, *(self._envelope(schedule, slot, now) for slot in slots))

    async def _passed(self, schedule: Schedule, slots: Sequence[Slot]) -> tuple[Sequence[Slot], Mapping[str, object]]:
        """The fires that no ScheduleFired hook refuses, and what the row is to say of the others. After a crash before
        the commit they are asked again."""
        hooks = self._host.ports.hooks
        if not slots or not hooks.has("ScheduleFired"):
            return slots, {}
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
            due = datetime.fromtimestamp(slot.nominal, UTC)
            why = f"{due:%Y-%m-%d %H:%M} UTC: {verdict.block} ({verdict.by})"
            skips += 1
            log.warning("a hook skipped a fire", schedule=schedule.id, why=why)
        return passed, {"skips": skips, "skipped_why": why} if why else {}

    def _busy(self, schedule_id: str) -> bool:
        return self._host.busy_schedules(schedule_id)

    def _envelope(self, schedule: Schedule, slot: Slot, now: float) -> Write:
        lead = self._host.board.agent("lead")
        envelope = Envelope(
            id=slot.id,
            sender="schedule",
            recipient="lead",
            incarnation=lead[0].incarnation if lead else 1,
            type="scheduled",
            content=schedule.prompt,
            cause="schedule",
            metadata={
                "schedule": schedule.id,
                "deliver": delivered(schedule),
                "fired_at": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "slot": slot.nominal,
            },
            sent_at=now,
        )
        return sending(self._host.session, envelope)
