"""What the clocks of a time zone show: local times turned into moments and back, across their changes.

Moments are unix seconds; local times are datetimes without a zone. A zone's changes are found by looking at its offset,
by days and then closer. Days are fine enough: of all changes in the tz database of 2026 the two that stand closest are
95 hours apart (Africa/Freetown, 1939).
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta
from importlib import resources
from zoneinfo import ZoneInfo

DAY = 86_400
FIRST_MOMENT = int(datetime(1000, 1, 1, tzinfo=UTC).timestamp())
LAST_MOMENT = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
"""Before and beyond these nothing fires: the calendar of the standard library ends in the years 1 and 9999."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local minutes carry no zone; that is the point of them
_SECOND = timedelta(seconds=1)
_LONGEST_NAME = 100
_NOT_ZONES = ("right/", "posix/", "posixrules")
"""Files beside the zones of some systems: with leap seconds counted, and copies."""


def zone_of(name: str) -> ZoneInfo:
    """The zone of that name in the tz database. Raises `ValueError` that says what to write instead."""
    if name and not name.startswith(_NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # zoneinfo's own words for unknown, malformed, and a folder's name
            pass
    raise ValueError(f"{shown(name)} is not a known time zone: {_likely(name)}")


def offset_at(zone: ZoneInfo, at: int) -> int:
    """Seconds that the zone's clocks are ahead of UTC at that moment."""
    return _as_seconds(datetime.fromtimestamp(at, zone).utcoffset())


def local_at(at: int, offset: int) -> datetime:
    """What clocks that are `offset` seconds ahead show at that moment."""
    return _EPOCH + timedelta(seconds=at + offset)


def seconds_of(local: datetime) -> int:
    """The moment at which clocks of UTC would show `local`."""
    return (local - _EPOCH) // _SECOND


def moment_of(zone: ZoneInfo, local: datetime) -> int:
    """When the clocks show `local` for the first time; for a time inside a gap, when the gap ends."""
    first = _as_seconds(local.replace(tzinfo=zone, fold=0).utcoffset())
    second = _as_seconds(local.replace(tzinfo=zone, fold=1).utcoffset())
    at = seconds_of(local) - first
    if first >= second:
        return at
    return _halve(zone, seconds_of(local) - second, at)


def in_gap(zone: ZoneInfo, local: datetime) -> bool:
    """Whether the clocks never show `local`."""
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return _as_seconds(before) < _as_seconds(after)


def first_change(zone: ZoneInfo, begin: int, end: int) -> int | None:
    """The first second in (begin, end] whose offset is not the one at `begin`. None: there is none."""
    offset = offset_at(zone, begin)
    low = begin
    while low < end:
        high = min(low + DAY, end)
        if offset_at(zone, high) != offset:
            return _halve(zone, low, high)
        low = high
    return None


def shown(text: str) -> str:
    """A text of somebody else's inside a message: short, quoted, control characters and odd letters spelled out."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _halve(zone: ZoneInfo, low: int, high: int) -> int:
    """The second of the change, given that `low` stands before it and `high` does not."""
    offset = offset_at(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _as_seconds(offset: timedelta | None) -> int:
    assert offset is not None, "every zone of zoneinfo has an offset at every moment"
    return offset // _SECOND


def _likely(name: str) -> str:
    """What to write instead of a name that no zone has.

    Compared are names of about that length that begin alike, or whose last parts do: all six hundred would take longer
    than everything else that is done for an expression.
    """
    asked = name[:_LONGEST_NAME].lower().replace(" ", "_")
    known = {zone.lower(): zone for zone in resources.files("tzdata").joinpath("zones").read_text("ascii").split()}
    cities = {zone.rpartition("/")[2]: zone for zone in known}
    if asked in known or asked in cities:
        return f"did you mean {known[asked if asked in known else cities[asked]]}?"
    begins = {asked[:2], asked.rpartition("/")[2][:2]}
    near = [
        zone
        for zone in known
        if abs(len(zone) - len(asked)) < 8 and (zone[:2] in begins or zone.rpartition("/")[2][:2] in begins)
    ]
    likely = difflib.get_close_matches(asked, near, n=1)
    return f"did you mean {known[likely[0]]}?" if likely else "write one such as Europe/Berlin or UTC"
