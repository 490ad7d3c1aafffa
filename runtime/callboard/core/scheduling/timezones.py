"""Clocks of a time zone: conversion between local times and moments, across clock changes.

Moments are unix seconds; local times are datetimes without a zone. A zone's changes are found by checking its offset,
first day by day, then more closely. Days are fine enough: the two closest changes in the tz database of 2026 are 95
hours apart (Africa/Freetown, 1939).
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta
from importlib import resources
from zoneinfo import ZoneInfo

DAY = 86_400
FIRST_MOMENT = int(datetime(1000, 1, 1, tzinfo=UTC).timestamp())
LAST_MOMENT = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
"""First and last moments of any fire: the calendar of the standard library ends in the years 1 and 9999."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local minutes have no zone
_SECOND = timedelta(seconds=1)
_LONGEST_NAME = 100
_NOT_ZONES = ("right/", "posix/", "posixrules")
"""Files next to the zones of some systems: zones with leap seconds, and copies."""


def zone_of(name: str) -> ZoneInfo:
    """Return the zone of that name in the tz database. Raises `ValueError` with a suggestion."""
    if name and not name.startswith(_NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown, malformed, or the name of a folder
            pass
    raise ValueError(f"{quote_text(name)} is not a known time zone: {_suggestion(name)}")


def offset_at(zone: ZoneInfo, at: int) -> int:
    """Return the seconds by which the zone's clocks are ahead of UTC at that moment."""
    return _as_seconds(datetime.fromtimestamp(at, zone).utcoffset())


def local_at(at: int, offset: int) -> datetime:
    """Return the local time at that moment for clocks that are `offset` seconds ahead."""
    return _EPOCH + timedelta(seconds=at + offset)


def seconds_of(local: datetime) -> int:
    """Return the moment at which UTC clocks would show `local`."""
    return (local - _EPOCH) // _SECOND


def moment_of(zone: ZoneInfo, local: datetime) -> int:
    """Return the moment at which the clocks show `local` for the first time.

    For a time inside a gap: the end of the gap.
    """
    first = _as_seconds(local.replace(tzinfo=zone, fold=0).utcoffset())
    second = _as_seconds(local.replace(tzinfo=zone, fold=1).utcoffset())
    at = seconds_of(local) - first
    if first >= second:
        return at
    return _find_change(zone, seconds_of(local) - second, at)


def in_gap(zone: ZoneInfo, local: datetime) -> bool:
    """Return True if the clocks never show `local`."""
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return _as_seconds(before) < _as_seconds(after)


def first_change(zone: ZoneInfo, begin: int, end: int) -> int | None:
    """Return the first second in (begin, end] with an offset different from that at `begin`; None if there is none."""
    offset = offset_at(zone, begin)
    low = begin
    while low < end:
        high = min(low + DAY, end)
        if offset_at(zone, high) != offset:
            return _find_change(zone, low, high)
        low = high
    return None


def quote_text(text: str) -> str:
    """Return foreign text for a message: short, quoted, with control characters and unusual letters escaped."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _find_change(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the second of the change, which is after `low` and not after `high`."""
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


def _suggestion(name: str) -> str:
    """Return a suggestion for an unknown zone name.

    Only names of similar length are compared that begin alike, or whose last parts do: comparing all six hundred would
    take longer than everything else that is done for an expression.
    """
    lowered = name[:_LONGEST_NAME].lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in resources.files("tzdata").joinpath("zones").read_text("ascii").split()}
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    if lowered in zones or lowered in cities:
        return f"did you mean {zones[lowered if lowered in zones else cities[lowered]]}?"
    begins = {lowered[:2], lowered.rpartition("/")[2][:2]}
    near = [
        zone
        for zone in zones
        if abs(len(zone) - len(lowered)) < 8 and (zone[:2] in begins or zone.rpartition("/")[2][:2] in begins)
    ]
    likely = difflib.get_close_matches(lowered, near, n=1)
    return f"did you mean {zones[likely[0]]}?" if likely else "write one such as Europe/Berlin or UTC"
