"""The status line: who works, what waits for the person, tokens and cost, the next schedule.

It refuses to draw.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from callboard.app import OpenSession
from callboard.core.schedule import next_wake
from callboard.faces.lines import shorten
from callboard.faces.pages.listings import status_words
from callboard.faces.terminal import plain
from callboard.words.schedules import Schedule

_NAME = 20


class Status:
    """The words for the line below; the next times are worked out anew only when a schedule has changed."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._for: Sequence[Schedule] = ()
        self._next: tuple[float, str] | None = None

    def words(self, doing: str) -> str:
        """In one line. `doing`: what each agent is at."""
        rows = self._session.schedules()
        if rows != self._for:
            self._for, self._next = rows, next_of(rows)
        parts = [doing, status_words(self._session), next_words(self._next, time.time())]
        return plain(" | ".join(part for part in parts if part)).replace("\n", " ")


def next_of(rows: Sequence[Schedule]) -> tuple[float, str] | None:
    """The next slot of all schedules, as unix seconds, and whose it is; None: nothing is to fire."""
    found = [(at, row.name or row.id) for row in rows if (at := next_wake(row)) is not None]
    return min(found, default=None)


def next_words(slot: tuple[float, str] | None, now: float) -> str:
    """`next 09:00 standup`, on this machine's clock; with the day, if it is not today's."""
    if slot is None:
        return ""
    at, name = slot
    then, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone().date()
    when = f"{then:%H:%M}" if then.date() == today else f"{then:%a %d %b %H:%M}"
    return f"next {'now' if at <= now else when} {shorten(name, _NAME)}"
