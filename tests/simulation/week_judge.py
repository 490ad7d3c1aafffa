"""What holds of a simulated week, found from the history's rows, the journals and the slots that a walk finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.simulation.week_slots import Kind
from tests.simulation.week_world import SESSIONS, Week

from callboard.core.keys import fires_prefix
from callboard.engine.recall import events_of
from callboard.types.events import TurnBegan, TurnEnded
from callboard.types.schedules import Fire, Schedule

ON_TIME = 60.0
JITTER = 60.0
RAN = frozenset({"done", "failed", "timed_out", "replaced", "lost"})
UNRUN = frozenset({"skipped", "missed", "refused"})


async def history(week: Week) -> dict[str, list[Fire]]:
    found: dict[str, list[Fire]] = {}
    for session in SESSIONS:
        for row in await week.store.keys(fires_prefix(session)):
            fire = Fire.model_validate_json(row.value or b"")
            found.setdefault(fire.schedule, []).append(fire)
    return {one: sorted(fires, key=lambda fire: fire.nominal) for one, fires in found.items()}


async def turns(week: Week) -> tuple[Counter[str], dict[str, str]]:
    """How often each envelope began a turn, and the reason with which that ended."""
    began, ended = Counter[str](), dict[str, str]()
    for session in SESSIONS:
        streams = {row.key.rpartition("/")[2] for row in await week.store.keys(f"s/{session}/agent/")}
        for name in sorted(streams):
            cause = ""
            for event in await events_of(week.store, f"j/{session}/{name}.1"):
                if isinstance(event, TurnBegan):
                    cause = event.cause
                    began[cause] += 1
                elif isinstance(event, TurnEnded):
                    ended[cause] = event.reason
    return began, ended


async def broken(week: Week) -> list[str]:
    """All that does not hold; empty for a good week."""
    rows = await history(week)
    began, ended = await turns(week)
    wrong: list[str] = []
    for kind in week.kinds:
        now, fires = week.found[kind.schedule.id], rows.get(kind.schedule.id, [])
        told = [*slots_wrong(week, kind, now, fires), *rows_wrong(now, fires), *turns_wrong(fires, began, ended)]
        wrong += [f"{now.id} ({now.cron}, {now.misfire}, {now.overlap}, {now.context}): {what}" for what in told]
    known = {
        _try(fire.id, attempt) for fires in rows.values() for fire in fires for attempt in range(1, fire.attempt + 1)
    }
    wrong += [
        f"a turn of {cause}, which no row tells of" for cause in began if _scheduled(cause) and cause not in known
    ]
    return wrong


def _scheduled(cause: str) -> bool:
    return cause.startswith("schedule:")


def _try(fire: str, attempt: int) -> str:
    return fire if attempt == 1 else f"{fire}:try-{attempt}"


def slots_wrong(week: Week, kind: Kind, now: Schedule, fires: list[Fire]) -> Iterator[str]:
    """Each slot in one row, or counted in one that was missed; no row without its slot; each decided at its time."""
    last = now.last_slot if now.last_slot is not None else kind.schedule.created_at
    slots = [
        at
        for at in kind.slots(kind.schedule.created_at, max(last, week.ended_at[now.id]))
        if at < (now.expires or 1e18)
    ]
    decided = [at for at in slots if at <= last]
    stood: Counter[float] = Counter()
    for fire in fires:
        if fire.nominal not in slots:
            yield f"{fire.id} is no slot"
            continue
        first = slots.index(fire.nominal)
        for at in slots[first : first + max(1, fire.missed)]:
            stood[at] += 1
    for at in decided:
        if stood[at] != 1:
            yield f"the slot {at} stands {stood[at]} times in the history"
    if extra := [at for at in stood if at > last]:
        yield f"decided beyond last_slot: {extra}"
    overdue = [at for at in slots if last < at <= week.ended_at[now.id] - ON_TIME - JITTER]
    if overdue and now.state == "active" and now.failures == 0:
        yield f"{len(overdue)} slots are overdue"


def rows_wrong(now: Schedule, fires: list[Fire]) -> Iterator[str]:
    """Each row by the policy of its schedule."""
    window = 3_600.0 if now.window is None else now.window
    late = ON_TIME if now.misfire == "skip" else max(window, ON_TIME)
    for fire in fires:
        if fire.ended_at is None or fire.outcome in ("waiting", "running"):
            yield f"{fire.id} is {fire.outcome} at the end"
        if fire.at < fire.nominal:
            yield f"{fire.id} was decided before its time"
        if fire.outcome != "missed" and fire.at - fire.nominal > late + JITTER:
            yield f"{fire.id} is {fire.outcome}, {fire.at - fire.nominal} s late"
        if fire.outcome == "missed" and fire.missed == 1 and fire.at - fire.nominal <= min(late, ON_TIME):
            yield f"{fire.id} is missed, {fire.at - fire.nominal} s late"
        if fire.attempt > now.retries + 1:
            yield f"{fire.id} was tried {fire.attempt} times"
    together = Counter(fire.at for fire in fires if fire.outcome != "missed")
    most = now.misfire_cap if now.misfire == "all" else 1
    if too_many := [at for at, count in together.items() if count > most]:
        yield f"more than {most} decided at once: {too_many}"
    sent = sum(fire.outcome in RAN for fire in fires)
    if sent > now.fires or (now.max_runs is not None and now.fires > now.max_runs):
        yield f"{sent} ran, the row says {now.fires}, max_runs {now.max_runs}"
    if now.recurring is False and sent > 1:
        yield "a one-shot ran twice"


def turns_wrong(fires: list[Fire], began: Counter[str], ended: dict[str, str]) -> Iterator[str]:
    """What ran began one turn for each try; what did not began none."""
    for fire in fires:
        counts = [began[_try(fire.id, attempt)] for attempt in range(1, fire.attempt + 1)]
        if any(count > 1 for count in counts):
            yield f"{fire.id} began {counts} turns"
        if fire.outcome in UNRUN and fire.attempt == 1 and counts != [0]:
            yield f"{fire.id} is {fire.outcome} and began a turn"
        if fire.outcome in ("done", "failed", "timed_out") and counts != [1] * fire.attempt:
            yield f"{fire.id} is {fire.outcome} and began {counts} turns"
        reason = ended.get(_try(fire.id, fire.attempt), "")
        if fire.outcome == "lost" and reason in ("end", "limit"):
            yield f"{fire.id} is lost, its turn ended with {reason!r}"
        if fire.outcome == "done" and reason not in ("end", "limit"):
            yield f"{fire.id} is done, its turn ended with {reason!r}"
