"""The schedules of the simulated week, and when each of them is due: found by walking over minutes, not by the
runtime's own arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from zoneinfo import ZoneInfo

from callboard.types.schedules import Schedule

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = 60.0

Slots = Callable[[float, float], list[float]]
"""(after, until) -> the moments in between, `until` included."""


@dataclass(frozen=True)
class Kind:
    """A schedule, and its slots by a walk."""

    schedule: Schedule
    slots: Slots


def minutes(after: float, until: float) -> Iterator[float]:
    at = (after // MINUTE + 1) * MINUTE
    while at <= until:
        yield at
        at += MINUTE


def each(step: int) -> Slots:
    """`*/step * * * *`, by the real clock."""
    return lambda after, until: [
        at for at in minutes(after, until) if datetime.fromtimestamp(at, UTC).minute % step == 0
    ]


def hourly(minute: int) -> Slots:
    return lambda after, until: [at for at in minutes(after, until) if datetime.fromtimestamp(at, UTC).minute == minute]


def daily(hour: int, minute: int) -> Slots:
    """`minute hour * * *` in Berlin: once a day, after a gap where the time is in it, first of two."""

    def slots(after: float, until: float) -> list[float]:
        day, found = datetime.fromtimestamp(after, BERLIN).date(), list[float]()
        while True:
            wanted = (hour, minute)
            walk = list(minutes(datetime(day.year, day.month, day.day, tzinfo=BERLIN).timestamp() - 60, until + 86_400))
            todays = [at for at in walk[:1_560] if datetime.fromtimestamp(at, BERLIN).date() == day]
            shown = [(datetime.fromtimestamp(at, BERLIN), at) for at in todays]
            same = [at for local, at in shown if (local.hour, local.minute) == wanted]
            later = [at for local, at in shown if (local.hour, local.minute) > wanted]
            at = (same or later)[0]
            if at > until:
                return found
            found += [at] if at > after else []
            day += timedelta(days=1)

    return slots


def period(anchor: float, seconds: float) -> Slots:
    def slots(after: float, until: float) -> list[float]:
        count, found = 1, list[float]()
        while anchor + count * seconds <= until:
            found += [anchor + count * seconds] if anchor + count * seconds > after else []
            count += 1
        return found

    return slots


def once(at: float) -> Slots:
    return lambda after, until: [at] if after < at <= until else []


def kinds(draws: random.Random, count: int, start: float, hours: float) -> Sequence[Kind]:
    """As many schedules, of every misfire, overlap and context."""
    misfires, overlaps = cycle(["latest", "skip", "all"]), cycle(["skip", "queue", "replace", "parallel", "skip"])
    contexts, notes = (
        cycle(["lead", "fresh", "lead", "own", "lead", "lead", "fresh"]),
        cycle(["", "(slow)", "", "(shaky)", "", "", "(bad)", "(slow)", "", "", ""]),
    )
    found: list[Kind] = []
    for number in range(count):
        text, slots, more = _expression(number, draws, start, hours)
        schedule = Schedule.model_validate(
            {
                "id": f"cron_{number:02}",
                "cron": text,
                "timezone": "Europe/Berlin",
                "prompt": f"look around {next(notes)}",
                "misfire": next(misfires),
                "misfire_cap": draws.choice([1, 3, 10]),
                "overlap": next(overlaps),
                "context": next(contexts),
                "target": "general",
                "retries": draws.choice([0, 0, 1, 2]),
                "deadline": draws.choice([None, None, 900.0]),
                "window": draws.choice([None, None, 600.0, 7_200.0]),
                "created_at": start,
                **more,
            }
        )
        found.append(Kind(schedule, slots))
    return found


def _expression(number: int, draws: random.Random, start: float, hours: float) -> tuple[str, Slots, dict[str, object]]:
    match number % 8:
        case 0:
            minute = draws.randrange(60)
            return f"{minute} * * * *", hourly(minute), {}
        case 1:
            step = draws.choice([20, 30])
            return f"*/{step} * * * *", each(step), {}
        case 2:
            at = start + draws.randrange(60, int(hours * 3_600), 60)
            local = datetime.fromtimestamp(at, UTC)
            return f"at {local:%Y-%m-%dT%H:%M}Z", once(at), {"recurring": False}
        case 3:
            return "30 2 * * *", daily(2, 30), {}
        case 4:
            seconds = draws.choice([45, 90, 200]) * 60
            return f"every {seconds // 60}m", period(start, seconds), {}
        case 5:
            hour = draws.randrange(24)
            return f"15 {hour} * * *", daily(hour, 15), {}
        case 6:
            return "@hourly", hourly(0), {"max_runs": draws.choice([3, 40])}
        case _:
            minute = draws.randrange(60)
            return f"{minute} * * * *", hourly(minute), {"expires": start + draws.uniform(0.3, 0.9) * hours * 3_600}
