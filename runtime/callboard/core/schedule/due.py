"""What is due now: slots, missed runs, jitter, and the wait after failures. Functions of a schedule and the time.

A slot is one nominal fire time of one schedule; its id is the envelope's id, so that any number of processes may fire
it and it arrives once. A schedule's `last_slot` is the only state: what is not after it was run or passed over.
Overlap with a running turn is the engine's affair, and so is the commit that moves `last_slot`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from callboard.core.schedule.cron import Cron, parse_cron
from callboard.core.schedule.fires import last_fire, next_fire
from callboard.words.schedules import Schedule

PROMPT_SECONDS = 60.0
"""A slot that is taken this much late is still on time: the process was busy, not away."""

JITTER_SECONDS = 60.0
JITTER_SHARE = 0.1
BACKOFF_SECONDS = 60.0
LONGEST_BACKOFF_SECONDS = 3_600.0
FAILURES_TO_PAUSE = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all schedules of a session, in seconds."""

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


def due(schedule: Schedule, now: float, *, not_before: float = 0.0, rules: Rules = DEFAULT_RULES) -> Due:
    """The slots to fire at `now`. Raises `CronInvalid` for a schedule whose expression or zone cannot be read.

    `not_before` is the end of the wait after a failure. A one-shot has one slot, its first: late within the window it
    runs, later it is missed, and never runs a year on.
    """
    first = next_slot(schedule, rules=rules)
    if first is None or max(first.fire_at, not_before) > now:
        return Due((), schedule.last_slot)
    ready = _ready(schedule, first, now, rules)
    latest = PROMPT_SECONDS if schedule.misfire == "skip" else max(rules.catch_up, PROMPT_SECONDS)
    runs = tuple(slot for slot in ready if now - slot.fire_at <= latest)
    return Due(runs, ready[-1].nominal, None if runs and runs[0] == first else first)


def next_slot(schedule: Schedule, *, rules: Rules = DEFAULT_RULES) -> Slot | None:
    """The first slot after `last_slot`, whether its time has come or not. None: it never fires again."""
    if not schedule.enabled or schedule.state != "active":
        return None
    cron = parse_cron(schedule.cron, schedule.timezone)
    nominal = next_fire(cron, _considered(schedule))
    return None if nominal is None else _slot(schedule, cron, nominal, rules)


def next_wake(schedule: Schedule, *, not_before: float = 0.0, rules: Rules = DEFAULT_RULES) -> float | None:
    """When `due` will first have something to say, as unix seconds; a past moment means now. None: never again."""
    slot = next_slot(schedule, rules=rules)
    return None if slot is None else max(slot.fire_at, not_before)


def backoff(failures: int) -> float | None:
    """Seconds to wait after the `failures`-th failure in a row (1, 2, ...). None: pause it and tell the person."""
    if failures >= FAILURES_TO_PAUSE:
        return None
    return min(BACKOFF_SECONDS * 2 ** (failures - 1), LONGEST_BACKOFF_SECONDS)


def _considered(schedule: Schedule) -> float:
    """The time up to which slots were run or passed over."""
    return schedule.created_at if schedule.last_slot is None else schedule.last_slot


def _ready(schedule: Schedule, first: Slot, now: float, rules: Rules) -> list[Slot]:
    """The newest slots whose time has come, oldest first: at least one, at most as many as may run."""
    if not schedule.recurring:
        return [first]
    cron = parse_cron(schedule.cron, schedule.timezone)
    most = max(1, schedule.misfire_cap) if schedule.misfire == "all" else 1
    slots: list[Slot] = []
    until = now
    while len(slots) < most:
        nominal = last_fire(cron, _considered(schedule), until)
        if nominal is None:
            break
        until = nominal - 1
        slot = _slot(schedule, cron, nominal, rules)
        if slot.fire_at <= now:  # only the newest can still be waiting for its jitter
            slots.append(slot)
    return slots[::-1]


def _slot(schedule: Schedule, cron: Cron, nominal: float, rules: Rules) -> Slot:
    following = next_fire(cron, nominal) if schedule.recurring else None  # a one-shot has no period, and no jitter
    if following is None:
        return Slot(schedule.id, nominal, nominal)
    most = max(0.0, min(rules.jitter, JITTER_SECONDS, (following - nominal) * JITTER_SHARE))
    return Slot(schedule.id, nominal, nominal + most * _fraction(schedule.id))


def _fraction(schedule_id: str) -> float:
    """A number in [0, 1) that follows from the id alone, so that schedules of one minute spread, each the same way."""
    return int.from_bytes(hashlib.blake2b(schedule_id.encode(), digest_size=6).digest()) / 2**48
