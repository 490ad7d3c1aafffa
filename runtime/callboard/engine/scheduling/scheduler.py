"""Scheduler loop: it sleeps until the next fire time, then sends the prompt to its agent.

The envelope's id is derived from the slot, so that a prompt arrives once even if several processes fire it. The
schedule's row, the envelope and the row of the history are one commit. A fire that is impossible is reported and
recorded in the history. Nothing fires while no process runs this loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio
import structlog

from callboard.core.keys import schedule_key
from callboard.core.scheduling import CronInvalid, Slot, When, find_due_slots, next_wake, when_of
from callboard.core.scheduling.due import (
    CLOCK_SKEW,
    EXPIRED,
    AdmittedSlots,
    DueSlots,
    admit,
    clock_corrections,
    one_shot,
    over,
)
from callboard.core.scheduling.fields import format_rough_duration
from callboard.core.scheduling.history import decided_fire, wait_after
from callboard.engine.runtime import SessionRuntime
from callboard.engine.scheduling.fire import note_for_lead, pause, send_fire, used_up_schedule
from callboard.engine.scheduling.open_fires import FireSettler, OpenFires, replace_fire
from callboard.ports.notifier import Notifier
from callboard.ports.store import Put, Write
from callboard.types.errors import ToolRefused
from callboard.types.hook_answers import ScheduleFired
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, Schedule

SOON = 60.0
"""Most seconds to sleep, so that a changed clock or a sleep of the machine is noticed within a minute."""

log = structlog.get_logger("callboard.schedules")


@dataclass(frozen=True, slots=True)
class _Timing:
    """Facts derived from a schedule's row, kept until the row changes."""

    revision: int
    text: tuple[str, str, float]
    when: When
    wake: float | None


@dataclass(slots=True)
class _Decision:
    """Decision on one schedule at one moment, with the writes to make."""

    schedule: Schedule
    revision: int
    when: When
    now: float
    fires: list[Fire]
    writes: list[Write]


class SessionScheduler:
    """Scheduler of a session."""

    def __init__(self, runtime: SessionRuntime) -> None:
        self._runtime = runtime
        self._changed = Notifier()
        self._timings: dict[str, _Timing] = {}
        self.fires = OpenFires(runtime, self.handle_change)
        self._settling = FireSettler(runtime, self.fires)

    @property
    def waiting(self) -> bool:
        """Return True while a fire is sent, held, or due for another attempt.

        A parked lead takes no fires: they wait in its mailbox until the user resumes it.
        """
        lead = self._runtime.rows.agent("lead")
        if lead is None or lead[0].life != "crashed":
            return len(self.fires) > 0
        return any(not self._is_for_lead(followed.fire) for followed in self.fires)

    def _is_for_lead(self, fire: Fire) -> bool:
        schedule = self._runtime.rows.schedule_row(fire.schedule)
        return fire.agent == "lead" or (schedule is not None and schedule.context == "lead")

    def handle_change(self) -> None:
        """Handle a schedule that was added, changed or removed, or a fire that progressed."""
        self._changed.notify()

    async def recall(self) -> None:
        """Read the unfinished fires before any agent of the session starts. Raises `StoreDamaged`."""
        await self.fires.load()

    async def take_up(self, fire_id: str) -> None:
        """Take over a fire that the user started by hand. It is already in the history."""
        await self.fires.take_up(fire_id)

    async def run(self) -> None:
        """Fire until cancelled."""
        for schedule in self._runtime.rows.schedules():
            if not schedule.durable and schedule.state == "active":  # it was meant for the life of an earlier process
                await self._change(schedule.id, {"state": "cancelled", "enabled": False})
        while True:
            changes = self._changed.changes
            now = self._runtime.clock.now()
            await self._settling.advance(now)
            # Before the fires, because a last slot in the future would prevent all of them
            # (test_a_clock_that_was_years_ahead_for_a_moment_silences_no_schedule).
            await self._correct(now)
            await self._fire_all(now)
            await self._sleep(self._next_time(), changes)

    async def _correct(self, now: float) -> None:
        """Revert decisions of a clock that was ahead of time. Otherwise a schedule would not fire until that time."""
        for schedule in self._runtime.rows.schedules():
            ahead = schedule.last_slot is not None and schedule.last_slot > now + CLOCK_SKEW
            ended = schedule.state == "ended" and schedule.paused_why == EXPIRED
            match = self._runtime.rows.schedule(schedule.id)
            if not (ahead or ended) or match is None:
                continue
            try:
                update = clock_corrections(schedule, now, self._when(schedule) or when_of(schedule))
            except CronInvalid:
                continue  # the attempt to fire it pauses it with the reason
            if not update:
                continue
            at = datetime.fromtimestamp(max(schedule.last_slot or 0.0, schedule.expires or 0.0), UTC)
            reason = (
                f"the clock of this machine was ahead of time, at {at:%Y-%m-%d %H:%M} UTC or later, and was put back"
            )
            log.warning("a schedule is corrected", schedule=schedule.id, why=reason)
            message = (
                f"schedule {schedule.id} ({schedule.cron}, {schedule.timezone}) is corrected: {reason}. It fires again"
            )
            row = schedule.model_copy(update=dict(update))
            key = schedule_key(self._runtime.session, schedule.id)
            note = note_for_lead(self._runtime, schedule, f"corrected {match[1]}", message)
            await self._settling.commit(Put(key, row.encode(), expected=match[1]), note)

    def _active(self) -> list[Schedule]:
        return [
            schedule for schedule in self._runtime.rows.schedules() if schedule.enabled and schedule.state == "active"
        ]

    def _next_time(self) -> float | None:
        wakes = [self._settling.next_time(), *(self._wake(schedule) for schedule in self._active())]
        return min((at for at in wakes if at is not None), default=None)

    async def _fire_all(self, now: float) -> None:
        """Fire the due schedules one by one.

        Those with hooks run together, so that a slow hook delays no other schedule.
        """
        active = [schedule for schedule in self._active() if self._is_due(schedule, now)]
        if not self._runtime.services.hooks.has("ScheduleFired"):
            for schedule in active:
                await self._fire(schedule.id, now)
            return
        async with anyio.create_task_group() as group:
            for schedule in active:
                group.start_soon(self._fire, schedule.id, now)

    def _is_due(self, schedule: Schedule, now: float) -> bool:
        """Return True if a decision is due. An unreadable schedule counts as due: firing pauses it."""
        wake = self._wake(schedule)
        if wake is None:
            return bool(over(schedule, now, when=self._when(schedule)))
        return wake <= now

    def _wake(self, schedule: Schedule) -> float | None:
        """Return the next due time of the schedule, computed once until its row changes.

        An unreadable schedule is due at once, to be paused.
        """
        try:
            timing = self._timing_of(schedule)
        except CronInvalid:
            return 0.0
        return timing.wake if timing is not None else None

    def _when(self, schedule: Schedule) -> When | None:
        timing = self._timing_of(schedule)
        return timing.when if timing is not None else None

    def _timing_of(self, schedule: Schedule) -> _Timing | None:
        match = self._runtime.rows.schedule(schedule.id)
        if match is None:
            return None
        timing = self._timings.get(schedule.id)
        revision = match[1]
        if timing is not None and timing.revision == revision:
            return timing
        text = (match[0].cron, match[0].timezone, match[0].created_at)
        try:
            when = timing.when if timing is not None and timing.text == text else when_of(match[0])
        except CronInvalid:
            if match[0].state == "active":
                raise
            return None
        wake = next_wake(match[0], not_before=self._not_before(match[0]), when=when)
        self._timings[schedule.id] = _Timing(revision, text, when, wake)
        return self._timings[schedule.id]

    def _not_before(self, schedule: Schedule) -> float:
        """Return the end of the wait after failures.

        A failure in the future was recorded before the clock was set back. It counts as one of now, once: an end that
        moves with the clock is never reached (test_a_clock_that_is_set_back_after_a_failure_ends_the_wait).
        """
        failed_at = self.fires.failed_at.get(schedule.id, 0.0)
        now = self._runtime.clock.now()
        if failed_at > now:
            failed_at = self.fires.failed_at[schedule.id] = now
        return wait_after(schedule, failed_at)

    async def _pause(self, schedule: Schedule, reason: str, *, wakes: bool) -> None:
        """Pause a schedule that cannot fire, with the reason, and inform the lead."""
        writes = pause(self._runtime, schedule.id, reason, wakes=wakes)
        if writes:
            await self._settling.commit(*writes)

    async def _change(self, schedule_id: str, update: Mapping[str, object]) -> None:
        row = self._runtime.rows.schedule(schedule_id)
        if row is None:
            return
        key = schedule_key(self._runtime.session, schedule_id)
        changed = row[0].model_copy(update=dict(update))
        await self._settling.commit(Put(key, changed.encode(), expected=row[1]))

    async def _sleep(self, until: float | None, changes: int) -> None:
        """Wait until this time, or until the number of changes exceeds `changes`."""
        wait = None if until is None else min(max(0.0, until - self._runtime.clock.now()), SOON)
        with anyio.move_on_after(wait):
            await self._changed.changed(changes)

    async def _fire(self, schedule_id: str, now: float) -> None:
        """Fire everything of one schedule that is due, in one commit.

        After a lost race the next iteration decides again.
        """
        match = self._runtime.rows.schedule(schedule_id)
        if match is None:
            return
        schedule, revision = match
        try:
            when = self._when(schedule) or when_of(schedule)
            due_slots = find_due_slots(schedule, now, not_before=self._not_before(schedule), when=when)
            reason = over(schedule, now, when=when)
        except CronInvalid as unreadable:
            await self._pause(schedule, str(unreadable), wakes=True)
            return
        if reason:
            await self._change(schedule_id, {"state": "ended", "paused_why": reason})
            return
        if due_slots.last_slot == schedule.last_slot:
            return
        decision = _Decision(schedule, revision, when, now, [], [])
        update = await self._decide(decision, due_slots)
        row = schedule.model_copy(update=update)
        key = schedule_key(self._runtime.session, schedule_id)
        history = [*self.fires.puts(*decision.fires), *self.fires.pruning_writes(schedule_id, len(decision.fires))]
        await self._settling.commit(Put(key, row.encode(), expected=revision), *decision.writes, *history)

    async def _decide(self, decision: _Decision, due_now: DueSlots) -> dict[str, object]:
        """Add the outcome of each slot to the decision, and return the changes of the schedule's row."""
        schedule = decision.schedule
        update = dict[str, object](last_slot=due_now.last_slot)
        if due_now.missed is not None:
            await self._record_missed(decision, due_now.missed, due_now.passed)
        slots = [slot for slot in due_now.slots if not await self.fires.is_decided(schedule.id, slot.id)]
        reason = used_up_schedule(self._runtime, schedule) if slots else ""
        if reason:
            decision.fires += [
                decided_fire(self._runtime.session, slot, now=decision.now, outcome="refused", reason=reason)
                for slot in slots
            ]
            decision.writes.append(
                note_for_lead(self._runtime, schedule, f"paused {decision.revision}", _paused_words(schedule, reason))
            )
            return {**update, "state": "paused", "paused_why": reason}
        slots, refused = await self._after_hooks(decision, slots)
        admitted = admit(schedule, slots, self.fires.of(schedule.id))
        fired = await self._apply_admitted(decision, admitted)
        fires = schedule.fires + fired
        update |= {"fires": fires, **refused}
        if one_shot(schedule, decision.when):
            update |= {"state": "fired"} if fired else {"state": "ended", "paused_why": _end_reason(decision.fires)}
        elif schedule.max_runs is not None and fires >= schedule.max_runs:
            update |= {"state": "ended", "paused_why": f"it has fired {fires} times, as often as it may (max_runs)"}
        return update

    async def _record_missed(self, decision: _Decision, first: Slot, count: int) -> None:
        """Record skipped slots in the history, all in one row. The lead is informed of a missed one-shot."""
        schedule = decision.schedule
        late = decision.now - first.nominal
        reason = f"{format_rough_duration(late)} late: nothing ran that would fire it (misfire {schedule.misfire})"
        log.warning("missed", schedule=schedule.id, slot=first.id, slots=count, why=reason)
        if not await self.fires.is_decided(schedule.id, first.id):
            decision.fires.append(
                decided_fire(
                    self._runtime.session,
                    first,
                    now=decision.now,
                    outcome="missed",
                    reason=reason,
                    missed=max(1, count),
                )
            )
        if one_shot(schedule, decision.when):
            message = (
                f"schedule {schedule.id} ({schedule.cron}, {schedule.timezone}) was missed and does not run: {reason}"
            )
            decision.writes.append(note_for_lead(self._runtime, schedule, first.id, message))

    async def _apply_admitted(self, decision: _Decision, admitted: AdmittedSlots) -> int:
        """Send, hold, skip and replace fires as decided. Return the number of fires sent."""
        session = self._runtime.session
        now = decision.now
        decision.fires += [
            decided_fire(session, slot, now=now, outcome="skipped", reason=admitted.why) for slot in admitted.skip
        ]
        for old in admitted.replaced:
            fire, writes = replace_fire(self._runtime, old, admitted.send[0].id, now)
            decision.fires.append(fire)
            decision.writes += writes
        count = 0
        for slot in admitted.send:
            fire = decided_fire(session, slot, now=now, outcome="waiting")
            try:
                fire, writes = await send_fire(self._runtime, decision.schedule, fire, now)
            except ToolRefused as refused:
                decision.fires.append(decided_fire(session, slot, now=now, outcome="refused", reason=str(refused)))
                continue
            decision.fires.append(fire)
            decision.writes += _missing_writes(writes, decision.writes)
            count += 1
        decision.fires += [decided_fire(session, slot, now=now, outcome="waiting") for slot in admitted.hold]
        return count + len(admitted.hold)

    async def _after_hooks(self, decision: _Decision, slots: Sequence[Slot]) -> tuple[list[Slot], Mapping[str, object]]:
        """Return the fires that no ScheduleFired hook rejects, and the row's changes for the rejected ones.

        After a crash before the commit the hooks run again.
        """
        hooks = self._runtime.services.hooks
        schedule = decision.schedule
        if not slots or not hooks.has("ScheduleFired"):
            return list(slots), {}
        passed = list[Slot]()
        skips = schedule.skips
        reason = ""
        for slot in slots:
            by = self._runtime.listeners.caller_of("lead")
            event = ScheduleFired(schedule.id, schedule.prompt, slot.nominal, schedule.cron, by)
            verdict = await hooks.fire(event)
            for text in verdict.notices:
                log.warning("hook", schedule=schedule.id, notice=text)
            if not verdict.block:
                passed.append(slot)
                continue
            at = datetime.fromtimestamp(slot.nominal, UTC)
            reason = f"{at:%Y-%m-%d %H:%M} UTC: {verdict.block} ({verdict.by})"
            decision.fires.append(
                decided_fire(
                    self._runtime.session,
                    slot,
                    now=decision.now,
                    outcome="refused",
                    reason=f"{verdict.block} ({verdict.by})",
                )
            )
            skips += 1
            log.warning("a hook skipped a fire", schedule=schedule.id, why=reason)
        return passed, {"skips": skips, "skipped_why": reason} if reason else {}


def _missing_writes(writes: Sequence[Write], existing: Sequence[Write]) -> list[Write]:
    """Return the writes that are not yet among the others.

    Only new writes count, so that an agent that takes several fires of one commit is created once.
    """
    made = {put.key for put in existing if isinstance(put, Put)}
    return [write for write in writes if not (isinstance(write, Put) and write.key in made)]


def _paused_words(schedule: Schedule, reason: str) -> str:
    return f"schedule {schedule.id} ({schedule.cron}, {schedule.timezone}) is paused: {reason}"


def _end_reason(fires: Sequence[Fire]) -> str:
    return next((f"{fire.outcome}: {fire.why}" for fire in fires if fire.why), "its time has passed")
