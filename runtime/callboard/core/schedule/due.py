"""What is due now: slots, missed runs, jitter, the end of a schedule, and the wait after failures. Functions of a
schedule and the time.

A slot is one nominal fire time of one schedule; its id is the envelope's id, so that any number of processes may fire
it and it arrives once. A schedule's `last_slot` is the only state: what is not after it was decided upon. A clock that
is put back decides nothing twice. Overlap is `overlap.py`'s, the commit that moves `last_slot` is the engine's.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime

from callboard.core.schedule.fires import last_fire, next_fire
from callboard.core.schedule.when import Once, When, when_of
from callboard.words.schedules import Schedule

PROMPT_SECONDS = 60.0
"""A slot that is taken this much late is still on time: the process was busy, not away."""

JITTER_SECONDS = 60.0
JITTER_SHARE = 0.1
BACKOFF_SECONDS = 60.0
LONGEST_BACKOFF_SECONDS = 3_600.0
FAILURES_TO_PAUSE = 3
COUNTED = 10_000
"""Missed slots are counted up to here: a year of each minute is not walked through."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all schedules of a session that do not say otherwise, in seconds."""

    catch_up: float = 3_600.0
    """A slot that is later than this is passed over."""
    jitter: float = 60.0
    """The most that a fire is put off, and never more than a tenth of the period. 0: none."""


DEFAULT_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Slot:
    """One fire of one schedule: `nominal` is what the expression says, `fire_at` adds the jitter. Unix seconds."""

    schedule: str
    nominal: float
    fire_at: float

    @property
    def id(self) -> str:
        """The envelope's id: the same in every process, whatever its jitter."""
        at = datetime.fromtimestamp(self.nominal, UTC)
        return f"schedule:{self.schedule}:{at:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Due:
    """What to fire now, oldest first, and what to write down with it."""

    slots: tuple[Slot, ...]
    last_slot: float | None
    """The schedule's new `last_slot`, to be committed together with the envelopes."""
    missed: Slot | None = None
    """The oldest slot that is passed over and will never run; a person is told."""
    passed: int = 0
    """How many are: the oldest and those that follow it, `COUNTED` at most."""


def due(
    schedule: Schedule,
    now: float,
    *,
    not_before: float = 0.0,
    rules: Rules = DEFAULT_RULES,
    when: When | None = None,
) -> Due:
    """The slots to fire at `now`. Raises `CronInvalid` for a schedule whose expression or zone cannot be read.

    `not_before` is the end of the wait after a failure; `when` the expression, where the caller has read it. A one-shot
    has one slot, its first: late within the window it runs, later it is missed, and never runs a year on.
    """
    when = when or when_of(schedule)
    first = next_slot(schedule, rules=rules, when=when)
    if first is None or max(first.fire_at, not_before) > now:
        return Due((), schedule.last_slot)
    ready = _ready(schedule, when, first, now, rules)
    runs = tuple(slot for slot in ready if now - slot.fire_at <= _latest(schedule, rules))
    if schedule.max_runs is not None:
        runs = runs[: max(0, schedule.max_runs - schedule.fires)]
    last = ready[-1].nominal
    if runs and runs[0] == first:
        return Due(runs, last)
    return Due(
        runs, last, first, _count(when, first.nominal, runs[0].nominal if runs else math.nextafter(last, last + 1))
    )


def next_slot(schedule: Schedule, *, rules: Rules = DEFAULT_RULES, when: When | None = None) -> Slot | None:
    """The first slot after `last_slot`, whether its time has come or not. None: it never fires again."""
    if not schedule.enabled or schedule.state != "active" or _run_out(schedule):
        return None
    when = when or when_of(schedule)
    nominal = next_fire(when, _considered(schedule))
    if nominal is None or (schedule.expires is not None and nominal >= schedule.expires):
        return None
    return _slot(schedule, when, nominal, rules)


def next_wake(
    schedule: Schedule, *, not_before: float = 0.0, rules: Rules = DEFAULT_RULES, when: When | None = None
) -> float | None:
    """When `due` will first have something to say, or it expires, as unix seconds; a past moment means now. None: never
    again."""
    slot = next_slot(schedule, rules=rules, when=when)
    if slot is not None:
        return max(slot.fire_at, not_before)
    return schedule.expires if schedule.enabled and schedule.state == "active" and not _run_out(schedule) else None


def over(schedule: Schedule, now: float, *, when: When | None = None) -> str:
    """Why an active schedule is `ended`: in words, empty while it is not. Raises `CronInvalid`."""
    if schedule.state != "active" or not schedule.enabled:
        return ""
    if _run_out(schedule):
        return f"it has fired {schedule.fires} times, as often as it may (max_runs)"
    if next_slot(schedule, when=when) is not None:
        return ""
    if schedule.expires is None:
        return "it has no further time"
    return "it has expired" if now >= schedule.expires else ""


def backoff(failures: int) -> float | None:
    """Seconds to wait after the `failures`-th failure in a row (1, 2, ...). None: pause it and tell the person."""
    return None if failures >= FAILURES_TO_PAUSE else retry_wait(failures)


def retry_wait(attempt: int) -> float:
    """Seconds after the end of the `attempt`-th try (1, 2, ...) until the next: a minute, then twice as long each time,
    an hour at most."""
    return min(BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16), LONGEST_BACKOFF_SECONDS)


def one_shot(schedule: Schedule, when: When) -> bool:
    """Whether it fires once and never again."""
    return not schedule.recurring or isinstance(when, Once)


def _run_out(schedule: Schedule) -> bool:
    return schedule.max_runs is not None and schedule.fires >= schedule.max_runs


def _latest(schedule: Schedule, rules: Rules) -> float:
    """How late a slot may be and still run."""
    window = rules.catch_up if schedule.window is None else schedule.window
    return PROMPT_SECONDS if schedule.misfire == "skip" else max(window, PROMPT_SECONDS)


def _considered(schedule: Schedule) -> float:
    """The time up to which slots were decided upon."""
    return schedule.created_at if schedule.last_slot is None else schedule.last_slot


def _count(when: When, first: float, until: float) -> int:
    """How many times there are from `first` on, before `until`."""
    count, at = 0, first
    while at < until and count < COUNTED:
        count += 1
        following = next_fire(when, at)
        if following is None:
            break
        at = following
    return count


def _ready(schedule: Schedule, when: When, first: Slot, now: float, rules: Rules) -> list[Slot]:
    """The newest slots whose time has come, oldest first: at least one, at most as many as may run."""
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


def _slot(schedule: Schedule, when: When, nominal: float, rules: Rules) -> Slot:
    following = None if one_shot(schedule, when) else next_fire(when, nominal)  # a one-shot has no period, no jitter
    if following is None:
        return Slot(schedule.id, nominal, nominal)
    own = schedule.jitter
    most = min(rules.jitter, JITTER_SECONDS) if own is None else own
    most = max(0.0, min(most, (following - nominal) * JITTER_SHARE))
    return Slot(schedule.id, nominal, nominal + most * _fraction(schedule.id))


def _fraction(schedule_id: str) -> float:
    """A number in [0, 1) that follows from the id alone, so that schedules of one minute spread, each the same way."""
    return int.from_bytes(hashlib.blake2b(schedule_id.encode(), digest_size=6).digest()) / 2**48
