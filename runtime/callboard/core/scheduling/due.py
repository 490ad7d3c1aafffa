"""Rules for due fires of a schedule: slots, missed runs, jitter, overlaps, the end, and the wait after failures.

The rules are pure functions of a schedule and the time.

A slot is one nominal fire time of one schedule. Its id is the envelope's id, so any number of processes may fire it and
it arrives once. A schedule's `last_slot` is the only state: all slots up to it are decided. If the clock is set back,
nothing is decided twice. The engine writes the commit that moves `last_slot`.

A running fire was sent and has not ended; this includes one that waits for another attempt. A held fire waits for its
turn and was not sent yet. `misfire_cap` limits the held fires, so that thirty minutes of a busy agent never leave
thirty held fires of a schedule that fires every minute.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from callboard.core.scheduling.fire_times import last_fire, next_fire
from callboard.core.scheduling.trigger import OneTime, When, when_of
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, Schedule

PROMPT_SECONDS = 60.0
"""Seconds of delay up to which a slot counts as on time: the process was busy, not absent."""

JITTER_SECONDS = 60.0
JITTER_SHARE = 0.1
BACKOFF_SECONDS = 60.0
LONGEST_BACKOFF_SECONDS = 3_600.0
FAILURES_TO_PAUSE = 3
CLOCK_SKEW = 60.0
"""Seconds by which a decision may lie in the future before the clock counts as set back."""
EXPIRED = "it has expired"
COUNTED = 10_000
"""Maximum count of missed slots, so that a year of minutes is not counted one by one."""


@dataclass(frozen=True, slots=True)
class ScheduleDefaults:
    """Defaults for all schedules of a session that set no own value, in seconds."""

    catch_up: float = 3_600.0
    """Maximum lateness of a slot. A later slot is skipped."""
    jitter: float = 60.0
    """Maximum delay of a fire, never more than a tenth of the period. 0: none."""


DEFAULT_RULES = ScheduleDefaults()


@dataclass(frozen=True, slots=True)
class Slot:
    """One fire of one schedule: `nominal` is the time of the expression, `fire_at` adds the jitter. Unix seconds."""

    schedule: str
    nominal: float
    fire_at: float

    @property
    def id(self) -> str:
        """Return the envelope's id: the same in every process, regardless of jitter."""
        at = datetime.fromtimestamp(self.nominal, UTC)
        return f"schedule:{self.schedule}:{at:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class DueSlots:
    """Slots to fire now, oldest first, and the values to record with them."""

    slots: tuple[Slot, ...]
    last_slot: float | None
    """The schedule's new `last_slot`, to be committed together with the envelopes."""
    missed: Slot | None = None
    """Oldest slot that is skipped and will never run; the person is notified."""
    passed: int = 0
    """Number of skipped slots: `missed` and those after it, at most `COUNTED`."""


def find_due_slots(
    schedule: Schedule,
    now: float,
    *,
    not_before: float = 0.0,
    rules: ScheduleDefaults = DEFAULT_RULES,
    when: When | None = None,
) -> DueSlots:
    """Return the slots to fire at `now`. Raises `CronInvalid` for a schedule whose expression or zone cannot be read.

    `not_before` is the end of the wait after a failure; `when` the parsed expression, if the caller has it. A one-shot
    has one slot, its first: it runs late within the window, and is missed after it; it never runs a year later.
    """
    when = when or when_of(schedule)
    first = next_slot(schedule, rules=rules, when=when)
    if first is None or max(first.fire_at, not_before) > now:
        return DueSlots((), schedule.last_slot)
    ready = _ready(schedule, when, first, now=now, rules=rules)
    runs = tuple(slot for slot in ready if now - slot.fire_at <= latest(schedule, rules))
    if schedule.max_runs is not None:
        runs = runs[: max(0, schedule.max_runs - schedule.fires)]
    last = ready[-1].nominal
    if runs and runs[0] == first:
        return DueSlots(runs, last)
    return DueSlots(
        runs, last, first, _count(when, first.nominal, runs[0].nominal if runs else math.nextafter(last, last + 1))
    )


def next_slot(schedule: Schedule, *, rules: ScheduleDefaults = DEFAULT_RULES, when: When | None = None) -> Slot | None:
    """Return the first slot after `last_slot`, due or not. None: it never fires again."""
    if not schedule.enabled or schedule.state != "active" or _run_out(schedule):
        return None
    when = when or when_of(schedule)
    nominal = next_fire(when, _considered(schedule))
    if nominal is None or (schedule.expires is not None and nominal >= schedule.expires):
        return None
    return _slot(schedule, when, nominal, rules)


def next_wake(
    schedule: Schedule, *, not_before: float = 0.0, rules: ScheduleDefaults = DEFAULT_RULES, when: When | None = None
) -> float | None:
    """Return the time at which `find_due_slots` will first return something, or the schedule expires, as unix seconds.

    A past time means now. None: never again.
    """
    slot = next_slot(schedule, rules=rules, when=when)
    if slot is not None:
        return max(slot.fire_at, not_before)
    return schedule.expires if schedule.enabled and schedule.state == "active" and not _run_out(schedule) else None


def over(schedule: Schedule, now: float, *, when: When | None = None) -> str:
    """Return the reason why an active schedule is `ended`; empty if it is not. Raises `CronInvalid`."""
    if schedule.state != "active" or not schedule.enabled:
        return ""
    if _run_out(schedule):
        return f"it has fired {schedule.fires} times, as often as it may (max_runs)"
    if next_slot(schedule, when=when) is not None:
        return ""
    if schedule.expires is None:
        return "it has no further time"
    return EXPIRED if now >= schedule.expires else ""


def backoff(failures: int) -> float | None:
    """Return the seconds to wait after the `failures`-th failure in a row (1, 2, ...).

    None: pause the schedule and notify the person.
    """
    return None if failures >= FAILURES_TO_PAUSE else retry_wait(failures)


def retry_wait(attempt: int) -> float:
    """Return the seconds from the end of the `attempt`-th try (1, 2, ...) until the next.

    The first wait is a minute, each further one is twice as long, and the longest is an hour.
    """
    return min(BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16), LONGEST_BACKOFF_SECONDS)


def clock_corrections(schedule: Schedule, now: float, when: When) -> Mapping[str, object]:
    """Return the changes for a schedule that a fast clock has moved into the future; empty if there are none.

    A slot is decided when it is due, so a decided slot in the future was decided by a clock that was set back since.
    Fired slots are in the history and do not fire again.
    """
    ahead = schedule.last_slot is not None and schedule.last_slot > now + CLOCK_SKEW
    if schedule.state == "active":
        return {"last_slot": now} if ahead else {}
    if schedule.state != "ended" or _run_out(schedule):
        return {}
    back = {"state": "active", "paused_why": ""}
    if one_shot(schedule, when):  # it was missed, because a clock was years ahead
        return {**back, "last_slot": None} if ahead and schedule.fires == 0 else {}
    if schedule.expires is not None and schedule.expires > now + CLOCK_SKEW and schedule.paused_why == EXPIRED:
        return {**back, "last_slot": now} if ahead else back
    return {}


def is_correction(before: Schedule, after: Schedule) -> bool:
    """Return True if the change of a schedule's row is one of `clock_corrections`.

    Nothing else reduces `last_slot`, or lets an ended schedule fire again without any other change.
    """
    if before.last_slot is not None and (after.last_slot is None or after.last_slot < before.last_slot):
        return True
    back = before.model_copy(update={"state": "active", "paused_why": ""})
    return before.state == "ended" and after == back


def one_shot(schedule: Schedule, when: When) -> bool:
    """Return True if the schedule fires once and never again."""
    return not schedule.recurring or isinstance(when, OneTime)


def _run_out(schedule: Schedule) -> bool:
    return schedule.max_runs is not None and schedule.fires >= schedule.max_runs


def latest(schedule: Schedule, rules: ScheduleDefaults = DEFAULT_RULES) -> float:
    """Return the maximum lateness at which a slot still runs, in seconds."""
    window = rules.catch_up if schedule.window is None else schedule.window
    return PROMPT_SECONDS if schedule.misfire == "skip" else max(window, PROMPT_SECONDS)


def _considered(schedule: Schedule) -> float:
    """Return the time up to which slots are decided."""
    return schedule.created_at if schedule.last_slot is None else schedule.last_slot


def _count(when: When, first: float, until: float) -> int:
    """Return the number of fire times from `first` on, before `until`."""
    count = 0
    at = first
    while at < until and count < COUNTED:
        count += 1
        following = next_fire(when, at)
        if following is None:
            break
        at = following
    return count


def _ready(schedule: Schedule, when: When, first: Slot, *, now: float, rules: ScheduleDefaults) -> list[Slot]:
    """Return the newest due slots, oldest first: at least one, at most as many as may run."""
    if one_shot(schedule, when):
        return [first]
    most = max(1, schedule.misfire_cap) if schedule.misfire == "all" else 1
    slots: list[Slot] = []
    until = now if schedule.expires is None else min(now, math.nextafter(schedule.expires, 0))
    while len(slots) < most:
        nominal = last_fire(when, _considered(schedule), until)
        if nominal is None:
            break
        until = nominal - 1
        slot = _slot(schedule, when, nominal, rules)
        if slot.fire_at <= now:  # only the newest can still be waiting for its jitter
            slots.append(slot)
    return slots[::-1]


def _slot(schedule: Schedule, when: When, nominal: float, rules: ScheduleDefaults) -> Slot:
    following = None if one_shot(schedule, when) else next_fire(when, nominal)  # a one-shot has no period, no jitter
    if following is None:
        return Slot(schedule.id, nominal, nominal)
    own = schedule.jitter
    most = min(rules.jitter, JITTER_SECONDS) if own is None else own
    most = max(0.0, min(most, (following - nominal) * JITTER_SHARE))
    return Slot(schedule.id, nominal, nominal + most * _fraction(schedule.id))


def _fraction(schedule_id: str) -> float:
    """Return a number in [0, 1) that depends only on the id.

    The number spreads schedules of one minute, always in the same way.
    """
    return int.from_bytes(hashlib.blake2b(schedule_id.encode(), digest_size=6).digest()) / 2**48


@dataclass(frozen=True, slots=True)
class AdmittedSlots:
    """Decisions on slots, each slot in one field, oldest first."""

    send: tuple[Slot, ...] = ()
    hold: tuple[Slot, ...] = ()
    """Slots to send once no fire is running."""
    skip: tuple[Slot, ...] = ()
    """Slots that are never sent."""
    why: str = ""
    """Reason why the slots in `skip` are skipped."""
    replaced: tuple[Fire, ...] = ()
    """Fires that are ended in favour of the new one."""


def is_held(fire: Fire) -> bool:
    """Return True if the fire is held: nothing was sent yet."""
    return fire.outcome == "waiting" and not fire.agent and fire.ended_at is None


def admit(schedule: Schedule, slots: Sequence[Slot], unended: Sequence[Fire]) -> AdmittedSlots:
    """Decide on each slot. `unended`: fires of the schedule that have not ended.

    Missed slots that run together later (`misfire` all) run one after another, unless the schedule is `parallel`.
    """
    if not slots:
        return AdmittedSlots()
    room = max(1, schedule.misfire_cap) - sum(is_held(fire) for fire in unended)
    if schedule.overlap == "parallel":
        return _parallel(schedule, slots, unended)
    if not unended:
        return AdmittedSlots(send=tuple(slots[:1]), hold=tuple(slots[1:]))
    if schedule.overlap == "replace":
        return AdmittedSlots(
            send=tuple(slots[:1]),
            hold=tuple(slots[1:]),
            replaced=tuple(fire for fire in unended if fire.outcome in ("waiting", "running")),
        )
    if schedule.overlap == "skip":
        return AdmittedSlots(skip=tuple(slots), why=f"an earlier fire, {_newest(unended)}, is still running")
    held_count = max(0, room)
    reason = f"{schedule.misfire_cap} fires are waiting already" if slots[held_count:] else ""
    return AdmittedSlots(hold=tuple(slots[:held_count]), skip=tuple(slots[held_count:]), why=reason)


def _parallel(schedule: Schedule, slots: Sequence[Slot], unended: Sequence[Fire]) -> AdmittedSlots:
    held_count = max(0, max(1, schedule.misfire_cap) - len(unended))
    reason = f"{len(unended)} fires are running already" if slots[held_count:] else ""
    return AdmittedSlots(send=tuple(slots[:held_count]), skip=tuple(slots[held_count:]), why=reason)


def _newest(unended: Sequence[Fire]) -> str:
    return max(unended, key=lambda fire: fire.nominal).id
