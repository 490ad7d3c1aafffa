"""The course of a fire, from its slot to the end of its turn, and what it means for its schedule. Pure.

What an agent's journal says of the fire's envelope is folded into a `Course`, live and after a crash alike; from its
end follow the outcome in the history, another try, and the schedule's failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from callboard.core.budget.tree import NOTHING, Amount, amount_of
from callboard.core.names import END_FIRE
from callboard.core.schedule.due import FAILURES_TO_PAUSE, Slot, backoff, retry_wait
from callboard.words import events as ev
from callboard.words.schedules import Fire, FireOutcome, Schedule

BY_HAND = "run-"
"""How the last part of the id of a fire begins that a person has set off."""
KEPT = 1_000
"""Fires that are kept of each schedule, the newest."""
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
"""What the end of a turn makes of the fire that began it. A limit is an end as it was ordered, with the reason."""


def decided(session: str, slot: Slot, now: float, outcome: FireOutcome, why: str = "", missed: int = 0) -> Fire:
    """A slot as it stands in the history from its decision on. What was not sent or held has ended with that."""
    over = outcome not in ("waiting", "running")
    return Fire(
        id=slot.id,
        schedule=slot.schedule,
        session=session,
        nominal=slot.nominal,
        at=now,
        outcome=outcome,
        why=why,
        ended_at=now if over else None,
        missed=missed,
    )


def envelope_id(fire: Fire, attempt: int | None = None) -> str:
    """The envelope of a try: the slot's id for the first."""
    attempt = fire.attempt if attempt is None else attempt
    return fire.id if attempt == 1 else f"{fire.id}:try-{attempt}"


def unended(fire: Fire) -> bool:
    """It was sent or is held, and has not come to its end; one that is tried again has not either."""
    return fire.ended_at is None or retry_at(fire) is not None


def is_by_hand(fire: Fire) -> bool:
    """A person fired it, beside the times of its schedule."""
    return fire.id.rpartition(":")[2].startswith(BY_HAND)


def retry_at(fire: Fire) -> float | None:
    """When it is tried again (unix seconds); None: it is not."""
    if fire.outcome != "waiting" or fire.ended_at is None:
        return None
    return fire.ended_at + retry_wait(fire.attempt)


def wait_after(schedule: Schedule, failed_at: float) -> float:
    """The moment before which a schedule whose newest fires failed does not fire (unix seconds); 0: none failed."""
    wait = backoff(schedule.failures) if schedule.failures > 0 else None
    return failed_at + wait if wait is not None else 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """What an agent's journal says of one envelope of a fire."""

    envelope: str
    stage: Literal["sent", "running", "ended"] = "sent"
    own: bool = False
    """The turn is its own, and was not under way before."""
    began_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    """As in `TurnEnded`; `withdrawn`: before its turn began; `crashed`: its agent is parked."""
    why: str = ""
    text: str = ""
    used: Amount = NOTHING


def heard(course: Course, event: ev.Event) -> Course:
    """The course after one more record of the agent that it was sent to."""
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


def _received(course: Course, event: ev.EnvelopeReceived) -> Course:
    envelope = event.envelope
    if envelope.id == course.envelope and event.refused:
        return _ended(course, event.at, "blocked", event.refused)
    command = envelope.type == "command" and envelope.metadata.get("action") == END_FIRE
    if command and not event.refused and envelope.content == course.envelope and course.stage == "sent":
        return _ended(course, event.at, "withdrawn", "")
    return course


def _turn(course: Course, event: ev.Event) -> Course:
    match event:
        case ev.TurnEnded():
            reason = "blocked" if course.why and event.reason == "end" else event.reason
            return replace(_ended(course, event.at, reason, event.why or course.why), text=event.text)
        case ev.AgentStopped():
            return _ended(course, event.at, "stopped", event.result)
        case ev.AgentCrashed() if event.again_at is None:
            return _ended(course, event.at, "crashed", "its agent crashed again and again, and is parked")
        case ev.ModelReplied() | ev.ReplyDropped() if course.own:
            return replace(course, used=course.used.plus(amount_of(event.usage)))
        case _:
            return course


def _ended(course: Course, at: float, reason: str, why: str) -> Course:
    return replace(course, stage="ended", ended_at=at, reason=reason, why=why)


def running(fire: Fire, course: Course) -> Fire:
    """The fire in the history once its turn has begun."""
    outcome = "running" if fire.outcome == "waiting" else fire.outcome
    return fire.model_copy(update={"outcome": outcome, "began_at": course.began_at, "ended_at": None})


def ended(fire: Fire, course: Course, schedule: Schedule | None, used: Amount = NOTHING) -> Fire:
    """The fire in the history once the course of its newest try is over: at its end, or waiting for the next try.
    `used`: by the turn and by those that it started."""
    outcome, why = _outcome(fire, course)
    update: dict[str, object] = {
        "outcome": outcome,
        "why": why,
        "ended_at": course.ended_at,
        "cost_usd": fire.cost_usd + used.cost_usd,
        "tokens": fire.tokens + used.tokens,
        "steps": fire.steps + used.steps,
    }
    if course.began_at:
        update["began_at"] = course.began_at
    again = schedule is not None and schedule.state not in ("cancelled", "paused")
    if again and schedule and is_failure(outcome, course.reason) and fire.attempt <= schedule.retries:
        minutes = retry_wait(fire.attempt) / 60
        said = f"{outcome}: {why}" if why else outcome
        update |= {"outcome": "waiting", "why": f"try {fire.attempt} {said}; the next follows in {minutes:.0f} min"}
    return fire.model_copy(update=update)


def _outcome(fire: Fire, course: Course) -> tuple[FireOutcome, str]:
    if fire.outcome in ("replaced", "timed_out", "skipped"):
        return fire.outcome, fire.why
    outcome = BEGAN_BY.get(course.reason, "lost")
    why = course.why or ("" if outcome == "done" else _WORDS.get(course.reason, course.reason))
    first = next((line.strip() for line in course.text.splitlines() if line.strip()), "")
    return outcome, (why or first)[:500]


_WORDS: Mapping[str, str] = {
    "interrupted": "it was interrupted",
    "stopped": "its agent was stopped",
    "withdrawn": "it was taken back before its turn began",
}


def is_failure(outcome: FireOutcome, reason: str) -> bool:
    """Whether an end counts against the schedule. What a person or another fire interrupted has not failed."""
    return outcome == "timed_out" or (outcome == "failed" and reason != "interrupted")


def after(schedule: Schedule, fire: Fire, reason: str) -> tuple[Schedule, str]:
    """The schedule once a fire has come to its end, and why it is paused now; empty: it is not.

    Three failures in a row pause it; a success sets them back.
    """
    if fire.outcome == "done" and schedule.failures:
        return schedule.model_copy(update={"failures": 0}), ""
    if not is_failure(fire.outcome, reason):
        return schedule, ""
    failures = schedule.failures + 1
    failed = schedule.model_copy(update={"failures": failures})
    if failures < FAILURES_TO_PAUSE or schedule.state != "active":
        return failed, ""
    return failed, f"it failed {failures} times in a row, at last: {fire.why}"
