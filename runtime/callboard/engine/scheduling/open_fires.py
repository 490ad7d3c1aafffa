"""Unfinished fires of a session: their rows in the history, and their progress until they have ended.

The host keeps the open rows, their number for each schedule, and the progress of running turns from the journals. After
a crash all of it is read again: rows first, then the journals of the agents, so that no fire is lost and none runs
twice. Turns of fires begin and end, are stopped at a deadline, and are tried again.

Each change of the history is in one commit with its effects: failures and a pause of the schedule, the next attempt, a
message to the lead. If the process dies before that commit, the next one makes the change after its resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from callboard.core.budgets.tree import Amount, fire_of, path
from callboard.core.decoding import read_value
from callboard.core.keys import fire_key, fires_prefix, journal, schedule_key
from callboard.core.scheduling import pause_schedule
from callboard.core.scheduling.due import CLOCK_SKEW, is_held
from callboard.core.scheduling.history import (
    KEPT,
    FireProgress,
    course_after,
    ended_fire,
    envelope_id,
    is_by_hand,
    is_failure,
    is_unended,
    retry_at,
    running_fire,
    schedule_after,
    with_denial,
)
from callboard.engine.awake_time import AwakeTime
from callboard.engine.recall import events_of, first_spec
from callboard.engine.runtime import SessionRuntime
from callboard.engine.scheduling.fire import ending_writes, note_for_lead, send_fire
from callboard.ports.store import Delete, Put, Row, Write
from callboard.ports.store_reading import rows_of
from callboard.types import events as ev
from callboard.types.errors import Conflict, SessionUnreadable, ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, Schedule

log = structlog.get_logger("callboard.schedules")

_FIRE_EVENTS = frozenset(
    {
        ev.EnvelopeReceived,
        ev.EnvelopesDelivered,
        ev.EnvelopesDropped,
        ev.TurnBegan,
        ev.TurnEnded,
        ev.AgentStopped,
        ev.AgentCrashed,
        ev.AnswerTaken,
        ev.CallFailed,
        ev.CallJudged,
        ev.ModelReplied,
        ev.ReplyDropped,
    }
)
_OPEN = (b'"waiting"', b'"running"', b'"ended_at":null')
"""Byte patterns: a row that may be open contains at least one. Other rows are not parsed."""


@dataclass(slots=True)
class OpenFire:
    """One unfinished fire."""

    fire: Fire
    revision: int
    course: FireProgress | None = None
    """Progress of its turn; None: nothing was sent, or the fire waits for the next attempt."""
    began: tuple[float, float] | None = None
    """Start time of the turn, by its record and on the clock for time limits."""

    def began_awake(self, time: AwakeTime) -> float:
        """Return the start time of the turn on the clock for time limits."""
        recorded = self.fire.began_at or 0.0
        if self.began is None or self.began[0] != recorded:
            self.began = recorded, time.at(recorded)
        return self.began[1]


class OpenFires:
    """Unfinished fires of a session. `moved`: called when the progress of one has changed."""

    def __init__(self, runtime: SessionRuntime, moved: Callable[[], None]) -> None:
        self._runtime = runtime
        self._moved = moved
        self._open: dict[str, OpenFire] = {}
        self._keys: dict[str, deque[str]] = {}
        """Schedule -> keys of its history, oldest first."""
        self._void: dict[str, int] = {}
        """Slot -> revision of its row, for slots that a clock ahead of time skipped. Their fires replace these rows."""
        self.failed_at: dict[str, float] = {}
        """Schedule -> end of its newest failed fire (Unix seconds)."""
        self.handlers: Mapping[type, Callable[[str, ev.Event], None]] = dict.fromkeys(_FIRE_EVENTS, self._handle_event)
        """Functions for records of an agent of this process, by class."""

    def __iter__(self) -> Iterator[OpenFire]:
        """Iterate over the open fires, oldest first."""
        return iter(
            sorted(
                self._open.values(),
                key=lambda open_fire: (open_fire.fire.nominal, open_fire.fire.at, open_fire.fire.id),
            )
        )

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, fire_id: object) -> bool:
        return fire_id in self._open

    def of(self, schedule: str) -> list[Fire]:
        """Return the open fires of one schedule, oldest first."""
        return [open_fire.fire for open_fire in self if open_fire.fire.schedule == schedule]

    async def load(self) -> None:
        """Read the history once, before any agent of the session starts. Raises `StoreDamaged`."""
        # by key, so that the fires of each schedule come in the order of their slots
        for row in await rows_of(self._runtime.services.store, fires_prefix(self._runtime.session)):
            schedule = row.key.split("/")[2]
            self._keys.setdefault(schedule, deque()).append(row.key)
            self._take(row)
        for open_fire in list(self._open.values()):
            if open_fire.fire.agent and open_fire.fire.ended_at is None:
                open_fire.course = await self._read_course(open_fire.fire)

    def _take(self, row: Row) -> None:
        """Apply a row of the history."""
        value = row.value or b""
        failing = self._runtime.rows.schedule_row(row.key.split("/")[2])
        if not any(mark in value for mark in _OPEN) and not (failing and failing.failures):
            return
        try:
            fire = read_value(Fire, value, row.key)
        except SessionUnreadable as wrong:
            log.warning("a fire of the history cannot be read", key=row.key, why=str(wrong)[:200])
            return
        if is_unended(fire):
            self._open[fire.id] = OpenFire(fire, row.revision)
        elif fire.outcome in ("failed", "timed_out"):
            self.failed_at[fire.schedule] = fire.ended_at or 0.0

    async def take_up(self, fire_id: str) -> None:
        """Add a fire that another process wrote into the history."""
        schedule = fire_id.split(":")[1]
        row = await self._runtime.services.store.get(fire_key(self._runtime.session, schedule, fire_id))
        keys = self._keys.setdefault(schedule, deque())
        if row is None or fire_id in self._open:
            return
        if row.key not in keys:
            keys.append(row.key)
        self._take(row)
        self._moved()

    async def reread(self, key: str) -> None:
        """Read a row of the history again after another process changed it."""
        if not key.startswith(fires_prefix(self._runtime.session)):
            return
        row = await self._runtime.services.store.get(key)
        for fire_id in [
            open_id for open_id in self._open if fire_key(self._runtime.session, open_id.split(":")[1], open_id) == key
        ]:
            del self._open[fire_id]
        if row is not None:
            self._take(row)

    async def is_decided(self, schedule: str, fire_id: str) -> bool:
        """Return True if the slot is already decided.

        A slot that a clock ahead of time skipped does not count as decided.
        """
        row = await self._runtime.services.store.get(fire_key(self._runtime.session, schedule, fire_id))
        if row is None or row.value is None:
            return False
        try:
            fire = Fire.model_validate_json(row.value)
        except ValueError:
            return True
        passed_over = fire.outcome in ("missed", "skipped", "refused")
        if not passed_over or fire.at <= self._runtime.clock.now() + CLOCK_SKEW:
            return True
        # A clock that was ahead of time skipped this slot, so it is still open
        # (test_a_clock_that_was_years_ahead_for_a_moment_silences_no_schedule).
        self._void[fire_id] = row.revision
        return False

    async def _read_course(self, fire: Fire) -> FireProgress:
        """Return the progress of the newest attempt, from its agent's journals."""
        row = self._runtime.rows.agent(fire.agent)
        course = FireProgress(envelope_id(fire))
        for life in range(1, row[0].incarnation + 1 if row else 1):
            for event in await events_of(
                self._runtime.services.store, journal(self._runtime.session, fire.agent, life)
            ):
                if course.stage != "ended" and type(event) in _FIRE_EVENTS:
                    course = course_after(course, event)
        return await self._with_denials_below(fire, course)

    async def _with_denials_below(self, fire: Fire, course: FireProgress) -> FireProgress:
        """Return the course with the denied calls of the agents that the fire's turn started, from their journals."""
        store = self._runtime.services.store
        session = self._runtime.session
        for row in self._runtime.rows.agents():
            if row.name == fire.agent or row.created_at < fire.at:
                continue
            try:
                spec = await first_spec(store, session, row)
            except SessionUnreadable:
                continue  # the agent is reported when it is opened
            if spec.charged_to != fire_of(course.envelope):
                continue
            for event in await events_of(store, journal(session, row.name, row.incarnation)):
                course = with_denial(course, event)
        return course

    def _handle_event(self, agent: str, event: ev.Event) -> None:
        """Apply a record of an agent to its open fires."""
        for open_fire in self._open.values():
            if open_fire.course is None or open_fire.course.stage == "ended":
                continue
            if open_fire.fire.agent != agent:
                open_fire.course = self._after_event_below(open_fire.course, agent, event)
                continue
            course = course_after(open_fire.course, event)
            moved = course.stage != open_fire.course.stage
            open_fire.course = course
            if moved:
                self._moved()

    def _after_event_below(self, course: FireProgress, agent: str, event: ev.Event) -> FireProgress:
        """Return the course after a record of another agent, whose denied calls count if the fire's turn started it."""
        denied = with_denial(course, event)
        if denied is course:
            return course
        started_by = {node.name for node in path(self._runtime.budgets.tree, agent)}
        return denied if fire_of(course.envelope) in started_by else course

    def puts(self, *fires: Fire) -> list[Write]:
        """Return the writes of new or changed fires."""
        writes: list[Write] = []
        for fire in fires:
            open_fire = self._open.get(fire.id)
            key = fire_key(self._runtime.session, fire.schedule, fire.id)
            # Of two processes that fire the same slot, only one can commit.
            expected = open_fire.revision if open_fire else self._void.get(fire.id, 0)
            writes.append(Put(key, fire.encode(), expected=expected))
        return writes

    def pruning_writes(self, schedule: str, count: int) -> list[Write]:
        """Return the writes that remove the oldest finished fires of a schedule, to make room for `count` more."""
        keys = self._keys.get(schedule, deque())
        open_keys = {fire_key(self._runtime.session, schedule, fire_id) for fire_id in self._open}
        surplus = max(0, len(keys) + count - KEPT)
        return [Delete(key) for key in list(keys)[:surplus] if key not in open_keys]

    def written(self, writes: Sequence[Write], revisions: Sequence[int]) -> None:
        """Apply the writes of a finished commit."""
        for write, revision in zip(writes, revisions, strict=True):
            if isinstance(write, Put | Delete) and write.key.startswith(fires_prefix(self._runtime.session)):
                self._written(write, revision)

    def _written(self, write: Put | Delete, revision: int) -> None:
        keys = self._keys.setdefault(write.key.split("/")[2], deque())
        if isinstance(write, Delete):
            keys.remove(write.key)
            return
        fire = Fire.model_validate_json(write.value)
        open_fire = self._open.get(fire.id)
        if open_fire is None and write.key not in keys:
            keys.append(write.key)
        if not is_unended(fire):
            self._open.pop(fire.id, None)
            if fire.outcome in ("failed", "timed_out"):
                self.failed_at[fire.schedule] = fire.ended_at or 0.0
            return
        open_fire = self._open.setdefault(fire.id, OpenFire(fire, revision))
        sent = fire.agent and fire.ended_at is None
        begun = envelope_id(fire)
        if not sent:
            open_fire.course = None
        elif open_fire.course is None or open_fire.course.envelope != begun:
            open_fire.course = FireProgress(begun)
        open_fire.fire = fire
        open_fire.revision = revision


class FireSettler:
    """Advancement of the open fires of a session."""

    def __init__(self, runtime: SessionRuntime, fires: OpenFires) -> None:
        self._runtime = runtime
        self._fires = fires

    async def advance(self, now: float) -> None:
        """Do everything that is due by `now`, by time or by the journals.

        Raises the exceptions of `Store.commit` except conflicts.
        """
        for open_fire in list(self._fires):
            await self._advance(open_fire, now)
        # Collected once: of a thousand missed slots that wait for each other, each would look at all others.
        busy = {open_fire.fire.schedule for open_fire in self._fires if not is_held(open_fire.fire)}
        for open_fire in list(self._fires):
            fire = open_fire.fire
            is_due = is_held(fire) or self._retry_is_due(fire, now)
            if fire.id in self._fires and is_due and await self._send(fire, now, waits=fire.schedule in busy):
                busy.add(fire.schedule)

    def next_time(self) -> float | None:
        """Return the next time at which something is due (Unix seconds); None: never."""
        times = [at for open_fire in self._fires if (at := self._due_at(open_fire)) is not None]
        return min(times, default=None)

    async def commit(self, *writes: Write) -> bool:
        """Commit the writes and return True.

        After a lost race, read the rows again and return False: the next iteration decides again.
        """
        try:
            numbers = await self._runtime.commit(*writes)
        except Conflict as lost:
            await self._runtime.refresh(lost.what)
            await self._fires.reread(lost.what)
            return False
        self._fires.written(writes, numbers)
        self._runtime.listeners.on_change("fire", "")
        return True

    def _due_at(self, open_fire: OpenFire) -> float | None:
        next_try = retry_at(open_fire.fire)
        if next_try is not None:
            return next_try
        schedule = self._schedule(open_fire.fire)
        course = open_fire.course
        if schedule is None or schedule.deadline is None or open_fire.fire.outcome != "running":
            return None
        if course is None or not course.own:  # it joined the turn of another prompt, and must not end that turn
            return None
        time = self._runtime.awake
        return self._runtime.clock.now() + open_fire.began_awake(time) + schedule.deadline - time.now()

    def _schedule(self, fire: Fire) -> Schedule | None:
        return self._runtime.rows.schedule_row(fire.schedule)

    async def _advance(self, open_fire: OpenFire, now: float) -> None:
        """Apply the changes of a fire that come from its journal, the end of its schedule, or its deadline."""
        course = self._progress(open_fire, now)
        if course is not None and course.stage == "ended":
            await self._record_end(open_fire.fire, course)
        elif course is not None and course.stage == "running" and open_fire.fire.began_at != course.began_at:
            await self.commit(*self._fires.puts(running_fire(open_fire.fire, course)))
        elif course is None and self._is_over(open_fire.fire):
            schedule = self._schedule(open_fire.fire)
            reason = f"the schedule was {schedule.state}" if schedule else "the schedule is gone"
            await self.commit(*self._fires.puts(_closed(open_fire.fire, "skipped", reason, now)))
        due = self._due_at(open_fire)
        if open_fire.fire.outcome == "running" and due is not None and due <= now:
            schedule = self._schedule(open_fire.fire)
            seconds = schedule.deadline if schedule and schedule.deadline is not None else 0.0
            over = open_fire.fire.model_copy(
                update={"outcome": "timed_out", "why": f"it ran for more than {seconds:g} s"}
            )
            await self.commit(*self._fires.puts(over), *ending_writes(self._runtime, open_fire.fire, now))

    def _progress(self, open_fire: OpenFire, now: float) -> FireProgress | None:
        """Return the progress from the journal. If the agent no longer exists, the fire has ended."""
        course = open_fire.course
        if course is None or course.stage == "ended" or open_fire.fire.agent == "lead":
            return course
        row = self._runtime.rows.agent(open_fire.fire.agent)
        if row is not None and row[0].life not in ("stopped", "crashed"):
            return course
        crashed = row is not None and row[0].life == "crashed"
        reason = "its agent has crashed, and is parked" if crashed else "its agent has ended"
        return replace(course, stage="ended", ended_at=now, reason="crashed" if crashed else "stopped", why=reason)

    def _is_over(self, fire: Fire) -> bool:
        """Return True if no part of the fire runs and its schedule no longer fires.

        A fire that a user started continues in any case.
        """
        schedule = self._schedule(fire)
        return schedule is None or (schedule.state in ("cancelled", "paused") and not is_by_hand(fire))

    async def _record_end(self, fire: Fire, course: FireProgress) -> None:
        """Record the end of a fire in the history, with its effects, in one commit."""
        runtime = self._runtime
        match = runtime.rows.schedule(fire.schedule)
        over = ended_fire(fire, course, match[0] if match else None, self._usage(fire, course))
        writes = self._fires.puts(over)
        if match is not None and not is_unended(over):
            writes += self._schedule_writes(match[0], match[1], over, course)
        if over.outcome == "done" or (is_failure(over.outcome, course) and not is_unended(over)):
            writes += self._result_mail(fire, over, course)
        await self.commit(*writes)
        if over.outcome not in ("done", "waiting"):
            log.warning("a fire ended", fire=fire.id, outcome=over.outcome, why=over.why)

    def _schedule_writes(self, schedule: Schedule, revision: int, over: Fire, course: FireProgress) -> list[Write]:
        """Return the write of the schedule's row after this end; none if it is unchanged."""
        row, reason = schedule_after(schedule, over, course)
        if row is schedule:
            return []
        writes: list[Write] = []
        if reason:
            row = pause_schedule(row, reason)
            message = f"schedule {row.id} ({row.cron}, {row.timezone}) is paused: {reason}"
            writes.append(note_for_lead(self._runtime, row, f"paused {over.id} {over.attempt}", message))
        return [*writes, Put(schedule_key(self._runtime.session, row.id), row.encode(), expected=revision)]

    def _result_mail(self, fire: Fire, over: Fire, course: FireProgress) -> list[Write]:
        """Return the final text of an agent that was created for this fire, as mail for the lead's next turn."""
        schedule = self._schedule(fire)
        if schedule is None or schedule.context != "fresh" or fire.agent == "lead":
            return []
        text = f"schedule {schedule.name or schedule.id}, {fire.id} ({fire.agent}): {over.outcome}"
        outcome_text = course.text.strip() or over.why
        message = f"{text}\n{outcome_text}" if outcome_text else text
        return [
            note_for_lead(
                self._runtime, schedule, f"result {envelope_id(fire)}", message, result=over.outcome == "done"
            )
        ]

    def _usage(self, fire: Fire, course: FireProgress) -> Amount:
        """Return the usage of the turn and of the known agents that it started."""
        node = self._runtime.budgets.tree.get(fire_of(course.envelope))
        return node.spent if node is not None and node.spent.steps > course.used.steps else course.used

    def _retry_is_due(self, fire: Fire, now: float) -> bool:
        at = retry_at(fire)
        if at is None or fire.ended_at is None:
            return False
        return at <= now or fire.ended_at > now + CLOCK_SKEW  # the clock was set back since the attempt ended

    async def _send(self, fire: Fire, now: float, *, waits: bool) -> bool:
        """Send a held fire, or the next attempt; return True if it may run now.

        `waits`: another fire of its schedule has not ended. A held fire waits then, unless its schedule is `parallel`.
        """
        schedule = self._schedule(fire)
        if schedule is None or self._is_over(fire):
            return False
        is_retry = fire.ended_at is not None
        if waits and not is_retry and not is_by_hand(fire) and schedule.overlap != "parallel":
            return False
        going = fire.model_copy(update={"attempt": fire.attempt + 1}) if is_retry else fire
        try:
            going, writes = await send_fire(self._runtime, schedule, going, now)
        except ToolRefused as refused:
            await self.commit(*self._fires.puts(_closed(fire, "refused", str(refused), now)))
            return False
        await self.commit(*writes, *self._fires.puts(going))
        return True


def _closed(fire: Fire, outcome: str, reason: str, now: float) -> Fire:
    return fire.model_copy(update={"outcome": outcome, "why": reason, "ended_at": now})


def replace_fire(runtime: SessionRuntime, fire: Fire, by: str, now: float) -> tuple[Fire, list[Write]]:
    """Return the fire as replaced by a newer one, and the writes that end its running part."""
    reason = f"{by} took its place"
    if is_held(fire) or retry_at(fire) is not None:
        return _closed(fire, "replaced", reason, now), []
    return fire.model_copy(update={"outcome": "replaced", "why": reason}), ending_writes(runtime, fire, now)
