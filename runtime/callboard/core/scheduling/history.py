"""Progress of a fire from its slot to the end of its turn, its consequences, and statistics of fires. Pure.

The next times of a schedule are here too.

An agent's journal is folded into the `FireProgress` of the fire's envelope, in the same way live and after a crash. The
end of the course determines the outcome in the history, another attempt, and the schedule's failures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Literal

from callboard.core.approvals.requests import DENIED
from callboard.core.budgets.tree import NOTHING, Amount, amount_of
from callboard.core.keys import END_FIRE
from callboard.core.scheduling.describe import local_time
from callboard.core.scheduling.due import (
    DEFAULT_RULES,
    FAILURES_TO_PAUSE,
    ScheduleDefaults,
    Slot,
    backoff,
    latest,
    retry_wait,
)
from callboard.core.scheduling.fields import InvalidField
from callboard.core.scheduling.fire_times import fires_between
from callboard.core.scheduling.timezones import LAST_MOMENT
from callboard.core.scheduling.trigger import when_of
from callboard.types import events as ev
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, FireOutcome, Schedule

BY_HAND = "run-"
"""Prefix of the last part of the id of a fire that a person started."""
KEPT = 1_000
"""Number of newest fires that are kept for each schedule."""
BEGAN_BY: Mapping[str, FireOutcome] = {
    "end": "done",
    "limit": "done",
    "failed": "failed",
    "overflow": "failed",
    "refused": "failed",
    "interrupted": "failed",
    "blocked": "refused",
    "stopped": "lost",
    "crashed": "failed",
}
"""Outcome of a fire by the end of its turn. A limit is a regular end, with the reason."""


SERVICE = frozenset({"connection", "server", "overloaded", "rate_limited", "silence", "bad_reply"})
"""Temporary faults of the model service. A turn that ends with one says nothing about its schedule."""
LONGEST_SERVICE_WAIT = 300.0
"""Maximum seconds between two attempts of a fire that failed because of the model service: it runs soon after an
outage."""


def decided_fire(
    session: str, slot: Slot, *, now: float, outcome: FireOutcome, reason: str = "", missed: int = 0
) -> Fire:
    """Return the history entry of a slot after its decision.

    A slot that was neither sent nor held has already ended.
    """
    over = outcome not in ("waiting", "running")
    return Fire(
        id=slot.id,
        schedule=slot.schedule,
        session=session,
        nominal=slot.nominal,
        at=now,
        outcome=outcome,
        why=reason,
        ended_at=now if over else None,
        missed=missed,
    )


def envelope_id(fire: Fire, attempt: int | None = None) -> str:
    """Return the envelope id of an attempt; for the first it is the slot's id."""
    attempt = fire.attempt if attempt is None else attempt
    return fire.id if attempt == 1 else f"{fire.id}:try-{attempt}"


def is_unended(fire: Fire) -> bool:
    """Return True if the fire was sent or is held, and has not ended. A fire that is retried has not ended either."""
    return fire.ended_at is None or retry_at(fire) is not None


def is_by_hand(fire: Fire) -> bool:
    """Return True if a person fired it, outside the times of its schedule."""
    return fire.id.rpartition(":")[2].startswith(BY_HAND)


def retry_at(fire: Fire) -> float | None:
    """Return the time of the next attempt (unix seconds); None if there is none."""
    if fire.outcome != "waiting" or fire.ended_at is None:
        return None
    if fire.again_at is not None:
        return fire.again_at
    return fire.ended_at + retry_wait(fire.attempt)


def wait_after(schedule: Schedule, failed_at: float) -> float:
    """Return the time before which a schedule does not fire because its newest fires failed.

    The time is in unix seconds; 0: none failed.
    """
    wait = backoff(schedule.failures) if schedule.failures > 0 else None
    return failed_at + wait if wait is not None else 0.0


@dataclass(frozen=True, slots=True)
class FireProgress:
    """State of one envelope of a fire, from an agent's journal."""

    envelope: str
    stage: Literal["sent", "running", "ended"] = "sent"
    own: bool = False
    """True if the fire started the turn, which was not running before."""
    began_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    """As in `TurnEnded`; `withdrawn`: before its turn began; `crashed`: its agent is parked."""
    why: str = ""
    text: str = ""
    used: Amount = NOTHING
    unserved: bool = False
    """True if its newest model call failed because of the service."""
    denied: int = 0
    """Number of calls that were denied, or that nobody allowed."""
    denial: str = ""
    """Reason of the newest of them."""

    @property
    def failed(self) -> bool:
        """Return True if the work itself failed.

        Return False for a failure of the service, and an interruption by a person or another fire.
        """
        return self.reason != "interrupted" and not self.unserved


def course_after(course: FireProgress, event: ev.Event) -> FireProgress:
    """Return the course after one more record of the receiving agent."""
    match event:
        case ev.EnvelopeReceived():
            return _received(course, event)
        case ev.TurnBegan() if event.cause == course.envelope and course.stage == "sent":
            return replace(course, stage="running", own=True, began_at=event.at)
        case ev.EnvelopesDelivered() if course.stage == "sent" and course.envelope in event.ids:
            return replace(course, stage="running", began_at=event.at)
        case ev.EnvelopesDropped() if course.envelope in event.ids and not course.own:
            return _ended(course, event.at, "blocked", event.why)
        case ev.EnvelopesDropped() if course.envelope in event.ids:
            return replace(course, why=event.why)
        case _:
            return _turn(course, event) if course.stage == "running" else course


def _received(course: FireProgress, event: ev.EnvelopeReceived) -> FireProgress:
    envelope = event.envelope
    if envelope.id == course.envelope and event.refused:
        return _ended(course, event.at, "blocked", event.refused)
    command = envelope.type == "command" and envelope.metadata.get("action") == END_FIRE
    if command and not event.refused and envelope.content == course.envelope and course.stage == "sent":
        return _ended(course, event.at, "withdrawn", "")
    return course


def _turn(course: FireProgress, event: ev.Event) -> FireProgress:
    match event:
        case ev.TurnEnded():
            reason = "blocked" if course.why and event.reason == "end" else event.reason
            return replace(_ended(course, event.at, reason, event.why or course.why), text=event.text)
        case ev.AgentStopped():
            return _ended(course, event.at, "stopped", event.result)
        case ev.AgentCrashed() if event.again_at is None:
            return _ended(course, event.at, "crashed", "its agent crashed again and again, and is parked")
        case ev.AnswerTaken() | ev.CallJudged():
            return with_denial(course, event)
        case ev.CallFailed() if event.purpose == "turn":
            return replace(course, unserved=event.fault.kind in SERVICE)
        case ev.ModelReplied() | ev.ReplyDropped():
            used = course.used.plus(amount_of(event.usage)) if course.own else course.used
            return replace(course, used=used, unserved=False)
        case _:
            return course


def with_denial(course: FireProgress, event: ev.Event) -> FireProgress:
    """Return the course after a record of the fire's agent, or of one that its turn started: its denied calls count.

    The same object if no call was denied.
    """
    match event:
        case ev.AnswerTaken(kind="permission") if event.void or event.status != "approved":
            return _denied(course, event.void or event.reason or event.status)
        case ev.CallJudged(verdict="deny", why=reason) if reason.startswith(DENIED):
            return _denied(course, reason.removeprefix(DENIED).strip())
        case _:
            return course


def _denied(course: FireProgress, reason: str) -> FireProgress:
    return replace(course, denied=course.denied + 1, denial=reason)


def _ended(course: FireProgress, at: float, reason: str, detail: str) -> FireProgress:
    return replace(course, stage="ended", ended_at=at, reason=reason, why=detail)


def running_fire(fire: Fire, course: FireProgress) -> Fire:
    """Return the history entry of a fire whose turn has begun."""
    outcome = "running" if fire.outcome == "waiting" else fire.outcome
    return fire.model_copy(update={"outcome": outcome, "began_at": course.began_at, "ended_at": None})


def ended_fire(
    fire: Fire,
    course: FireProgress,
    schedule: Schedule | None,
    used: Amount = NOTHING,
    *,
    rules: ScheduleDefaults = DEFAULT_RULES,
) -> Fire:
    """Return the history entry after the end of the newest attempt: ended, or waiting for the next attempt.

    `used`: by the turn and by the turns that it started.

    An attempt that failed because of the model service is repeated as long as the slot is not too late by the
    schedule's rule for missed runs. It does not count as a retry.
    """
    outcome, reason = _outcome(fire, course)
    update: dict[str, object] = {
        "outcome": outcome,
        "why": reason,
        "ended_at": course.ended_at,
        "cost_usd": fire.cost_usd + used.cost_usd,
        "tokens": fire.tokens + used.tokens,
        "steps": fire.steps + used.steps,
    }
    if course.began_at:
        update["began_at"] = course.began_at
    if schedule is None or schedule.state in ("cancelled", "paused"):
        return fire.model_copy(update=update)
    if outcome == "failed" and course.unserved:
        return _tried_again(fire, update, schedule, rules)
    if is_failure(outcome, course) and fire.attempt - fire.unserved <= schedule.retries:
        minutes = retry_wait(fire.attempt) / 60
        cause = f"{outcome}: {reason}" if reason else outcome
        update |= {"outcome": "waiting", "why": f"try {fire.attempt} {cause}; the next follows in {minutes:.0f} min"}
    return fire.model_copy(update=update)


def _tried_again(fire: Fire, update: Mapping[str, object], schedule: Schedule, rules: ScheduleDefaults) -> Fire:
    """Return the fire after an attempt that failed because of the model service.

    The fire waits for the next attempt, or has ended if the next would be too late.
    """
    over = fire.model_copy(update={**update, "unserved": fire.unserved + 1})
    again_at = (over.ended_at or 0.0) + min(retry_wait(over.unserved), LONGEST_SERVICE_WAIT)
    if again_at - fire.nominal > latest(schedule, rules):
        return over
    at = datetime.fromtimestamp(again_at, UTC)
    reason = f"try {fire.attempt} failed: {over.why}; the next follows at {at:%H:%M:%S} UTC"
    return over.model_copy(update={"outcome": "waiting", "why": reason, "again_at": again_at})


def _outcome(fire: Fire, course: FireProgress) -> tuple[FireOutcome, str]:
    if fire.outcome in ("replaced", "timed_out", "skipped"):
        return fire.outcome, fire.why
    outcome = BEGAN_BY.get(course.reason, "lost")
    reason = course.why or ("" if outcome == "done" else _WORDS.get(course.reason, course.reason))
    first = next((line.strip() for line in course.text.splitlines() if line.strip()), "")
    return outcome, "; ".join(part for part in (_denial(course), reason or first) if part)[:500]


def _denial(course: FireProgress) -> str:
    """Return the number of denied calls and the newest reason. A turn can end well although its work was not done."""
    if not course.denied:
        return ""
    calls = "1 call was" if course.denied == 1 else f"{course.denied} calls were"
    return f"{calls} denied: {course.denial[:200]}"


_WORDS: Mapping[str, str] = {
    "interrupted": "it was interrupted",
    "stopped": "its agent was stopped",
    "withdrawn": "it was withdrawn before its turn began",
}


def is_failure(outcome: FireOutcome, course: FireProgress) -> bool:
    """Return True if an end counts against the schedule."""
    return (outcome == "timed_out" and not course.unserved) or (outcome == "failed" and course.failed)


def schedule_after(schedule: Schedule, fire: Fire, course: FireProgress) -> tuple[Schedule, str]:
    """Return the schedule after the end of a fire, and the reason if it is now paused; otherwise empty.

    Three failures in a row pause it; a success resets the count.
    """
    if fire.outcome == "done" and schedule.failures:
        return schedule.model_copy(update={"failures": 0}), ""
    if not is_failure(fire.outcome, course):
        return schedule, ""
    failures = schedule.failures + 1
    failed = schedule.model_copy(update={"failures": failures})
    if failures < FAILURES_TO_PAUSE or schedule.state != "active":
        return failed, ""
    return failed, f"it failed {failures} times in a row, at last: {fire.why}"


GOOD = "done"
TRIED = frozenset({"done", "failed", "timed_out", "lost"})
"""Outcomes of fires that actually ran. The success rate is calculated from them."""


@dataclass(frozen=True, slots=True)
class FireStats:
    """Statistics of one schedule's fires."""

    schedule: str
    name: str
    fires: int
    """Number of fires in its history, including those that did not run."""
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    success_rate: float | None = None
    """Share (0..1) of successful fires among those that ran to an end; None if there are none."""
    mean_seconds: float | None = None
    last_seconds: float | None = None
    last_outcome: str = ""
    last_at: float | None = None
    """Nominal time of the newest fire, unix seconds."""
    cost_usd: float = 0.0
    tokens: int = 0
    steps: int = 0


def refuse_never(schedule: Schedule, now: float) -> None:
    """Raise `InvalidField` for a new or changed schedule that would never fire from now on, paused or not."""
    active = schedule.model_copy(update={"state": "active", "enabled": True})
    if next_fires(active, now, 1):
        return
    if schedule.max_runs is not None and schedule.fires >= schedule.max_runs:
        raise InvalidField("max_runs", f"it has fired {schedule.fires} times already: write a larger number, or none")
    later = next_fires(active.model_copy(update={"expires": None}), now, 1)
    if later:
        at = local_time(when_of(schedule), later[0])
        raise InvalidField("expires", f"its next time is {at}, which is not before its end: write a later time")
    raise InvalidField("cron", f"{schedule.cron} never fires from now on: write a time that is still to come")


def next_fires(schedule: Schedule, now: float, count: int) -> list[float]:
    """Return the next fire times (unix seconds) after `now`, without jitter, at most `count`.

    Empty once it has reached its number of fires, at or after its end, or while it does not fire. Raises `CronInvalid`.
    """
    if not schedule.enabled or schedule.state != "active":
        return []
    if not schedule.recurring:
        count = min(count, 1)
    if schedule.max_runs is not None:
        count = min(count, max(0, schedule.max_runs - schedule.fires))
    after = max(now, schedule.last_slot or 0.0)
    until = LAST_MOMENT if schedule.expires is None else math.nextafter(schedule.expires, 0)
    return fires_between(when_of(schedule), after, until, cap=count)


def newest_first(fires: Iterable[Fire]) -> list[Fire]:
    """Sort fires by nominal time, and fires of the same time by the time of decision, newest first."""
    return sorted(fires, key=lambda fire: (fire.nominal, fire.at, fire.id), reverse=True)


def seconds_of(fire: Fire) -> float | None:
    """Return the duration of the fire's turn in seconds; None if the turn has not ended, or never began."""
    if fire.began_at is None or fire.ended_at is None:
        return None
    return max(0.0, fire.ended_at - fire.began_at)


def stats_of(schedule: Schedule, fires: Sequence[Fire]) -> FireStats:
    """Return the statistics of these fires of the schedule. An entry for several missed slots counts once for each."""
    ordered = newest_first(fires)
    outcomes = Counter[str]()
    for fire in ordered:
        outcomes[fire.outcome] += max(1, fire.missed)
    tried = sum(outcomes[outcome] for outcome in TRIED)
    took = [seconds for fire in ordered if (seconds := seconds_of(fire)) is not None]
    return FireStats(
        schedule=schedule.id,
        name=schedule.name,
        fires=sum(outcomes.values()),
        outcomes=dict(sorted(outcomes.items())),
        success_rate=outcomes[GOOD] / tried if tried else None,
        mean_seconds=sum(took) / len(took) if took else None,
        last_seconds=took[0] if took else None,
        last_outcome=ordered[0].outcome if ordered else "",
        last_at=ordered[0].nominal if ordered else None,
        cost_usd=sum(fire.cost_usd for fire in ordered),
        tokens=sum(fire.tokens for fire in ordered),
        steps=sum(fire.steps for fire in ordered),
    )
