"""When an expression fires: local minutes turned into moments, clock changes included.

A job whose minute or hour begins with a star follows the real clock: nothing is made up inside a gap, and both passes
of a repeated hour run. Any other job runs once right after a gap that it was due in, and only in the first pass of a
repeated hour. Moments are unix seconds; a zone's changes are found by looking at its offset, by days and then closer.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from callboard.core.schedule.cron import Cron, next_local

DAY = 86_400
LAST_MOMENT = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
"""Beyond this nothing fires: the calendar of the standard library ends soon after."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local minutes carry no zone; that is the point of them


def next_fire(cron: Cron, after: datetime | float) -> float | None:
    """The first moment strictly after `after` (aware, or unix seconds) at which the expression fires, as unix seconds.

    None: only where the calendar ends, in the year 9000. Raises `ValueError` for a datetime without a zone.
    """
    begin = math.floor(_unix(after))
    if begin >= LAST_MOMENT:
        return None
    return float(_next_by_clock(cron, begin) if cron.follows_clock else _next_once(cron, begin))


def fires_between(cron: Cron, after: datetime | float, until: datetime | float, cap: int) -> list[float]:
    """The moments after `after` up to and including `until`, oldest first, at most the first `cap` of them."""
    end = _unix(until)
    fires: list[float] = []
    at = next_fire(cron, after)
    while at is not None and at <= end and len(fires) < cap:
        fires.append(at)
        at = next_fire(cron, at)
    return fires


def last_fire(cron: Cron, after: datetime | float, until: datetime | float) -> float | None:
    """The last moment after `after` and not past `until`, found by halving, so that a long time away costs no more."""
    end = _unix(until)
    low = next_fire(cron, after)
    if low is None or low > end:
        return None
    high = math.floor(end)
    while low < high:
        middle = (int(low) + high) // 2
        at = next_fire(cron, middle)
        if at is not None and at <= end:
            low = at
        else:
            high = middle
    return low


def next_three(cron: Cron, after: datetime | float) -> list[float]:
    """The next three moments: what a person is shown when an expression is accepted."""
    return fires_between(cron, after, LAST_MOMENT, cap=3)


def _unix(moment: datetime | float) -> float:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give an aware datetime or unix seconds")
    return moment.timestamp()


def _next_by_clock(cron: Cron, begin: int) -> int:
    """The real clock, stretch by stretch: a stretch is the time between two changes of the zone's offset."""
    at, stretch = begin, begin
    while True:
        offset = _offset(cron.zone, stretch)
        candidate = _seconds(next_local(cron, _local(at, offset))) - offset
        change = _change(cron.zone, stretch, candidate)
        if change is None:
            return candidate
        at, stretch = change - 1, change  # the first second of the new stretch may itself be due


def _next_once(cron: Cron, begin: int) -> int:
    """Each local minute at one moment, in order: `_moment` never runs backwards, so the first one after is the next."""
    local = next_local(cron, _local(begin, _offset(cron.zone, begin)))
    while (at := _moment(cron.zone, local)) <= begin:
        local = next_local(cron, local)
    return at


def _moment(zone: ZoneInfo, local: datetime) -> int:
    """When the clocks show `local` for the first time; for a time inside a gap, when the gap ends."""
    first = _as_seconds(local.replace(tzinfo=zone, fold=0).utcoffset())
    second = _as_seconds(local.replace(tzinfo=zone, fold=1).utcoffset())
    at = _seconds(local) - first
    if first >= second:
        return at
    return _halve(zone, _seconds(local) - second, at)


def _change(zone: ZoneInfo, begin: int, end: int) -> int | None:
    """The first second in (begin, end] whose offset is not the one at `begin`. None: there is none.

    Looks once a day, then halves. No zone has changed there and back within a day.
    """
    offset = _offset(zone, begin)
    low = begin
    while low < end:
        high = min(low + DAY, end)
        if _offset(zone, high) != offset:
            return _halve(zone, low, high)
        low = high
    return None


def _halve(zone: ZoneInfo, low: int, high: int) -> int:
    """The second of the change, given that `low` stands before it and `high` does not."""
    offset = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, at: int) -> int:
    return _as_seconds(datetime.fromtimestamp(at, zone).utcoffset())


def _as_seconds(offset: timedelta | None) -> int:
    assert offset is not None, "every zone of zoneinfo has an offset at every moment"
    return offset // timedelta(seconds=1)


def _local(at: int, offset: int) -> datetime:
    return _EPOCH + timedelta(seconds=at + offset)


def _seconds(local: datetime) -> int:
    return (local - _EPOCH) // timedelta(seconds=1)
