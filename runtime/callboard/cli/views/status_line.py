"""Status line of the terminal: working agents, requests that wait for the person, tokens and cost, the next schedule.

`StatusLine` decides the parts, and `fit_parts` shortens them to the width. Nothing here draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from callboard.cli.terminal.terminal import colored_line, columns, plain
from callboard.cli.views.agents import tokens_of, working_agents
from callboard.cli.views.events import shorten
from callboard.cli.views.status import lives_words, rate_waits, waiting_words
from callboard.cli.views.team import short_number
from callboard.core.reports.spending import cost_words, usage_words
from callboard.core.scheduling import next_wake
from callboard.sessions.base import OpenSession
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Schedule

_NAME = 20
_DOING_WIDTH = 30
_DOING_SHOWN = 3
_BETWEEN = " | "


@dataclass(frozen=True, slots=True)
class StatusPart:
    """Part of the status line. `rank`: rank 0 is dropped last. `short`: shown instead before the part is dropped."""

    text: str
    rank: int
    short: str = ""


class StatusLine:
    """Texts of the line below; the next times are recomputed only when a schedule has changed."""

    def __init__(self, session: OpenSession, own: Callable[[], str] = str) -> None:
        """Store the session. `own`: function that returns the line of the person's own command; empty: none."""
        self._session = session
        self._own = own
        self._for: Sequence[Schedule] = ()
        self._next: tuple[float, str] | None = None

    def text(self, width: int, *, listed: bool) -> str:
        """Return the line, at most `width` columns.

        `listed`: True if the screen lists the agents at work; otherwise the line names the first ones.
        The line of the person's own command replaces all parts but the requests that wait for the person.
        """
        session = self._session
        if own := self._own():
            waiting = waiting_words(session)
            return colored_line(f"{waiting}{_BETWEEN}{own}" if waiting else own, width)
        rows = self._session.schedules()
        if rows != self._for:
            self._for = rows
            self._next = next_of(rows)
        usage = session.usage()
        parts = [
            *(() if listed else _doing_parts(session)),
            StatusPart(f"mode {session.mode_of()}", 40),
            StatusPart(lives_words(session), 50),
            StatusPart(waiting_words(session), 0),
            *(StatusPart(wait, 2) for wait in rate_waits(session)),
            StatusPart(usage_words(usage), 1, short=f"{short_number(tokens_of(usage))} tokens, {cost_words(usage)}"),
            StatusPart(next_words(self._next, time.time()), 70),
        ]
        return fit_parts(parts, width)


def _doing_parts(session: OpenSession) -> list[StatusPart]:
    agents, others = working_agents(session, _DOING_SHOWN)
    parts = [
        StatusPart(f"{agent.name}: {shorten(agent.activity, _DOING_WIDTH)}", 41 + at) for at, agent in enumerate(agents)
    ]
    return [*parts, *([StatusPart(f"{others} more", 45)] if others else [])]


def fit_parts(parts: Sequence[StatusPart], width: int) -> str:
    """Return the parts in one line.

    If they are wider than `width` columns, shorten and drop whole parts, the highest rank first; only a last part that
    is too wide by itself is cut.
    """
    visible = [StatusPart(plain(part.text).replace("\n", " "), part.rank, part.short) for part in parts if part.text]
    while len(visible) > 1 and columns(_BETWEEN.join(part.text for part in visible)) > width:
        last = max(visible, key=lambda part: (bool(part.short), part.rank))
        at = visible.index(last)
        visible[at : at + 1] = [StatusPart(last.short, last.rank)] if last.short else []
    return shorten(_BETWEEN.join(part.text for part in visible), width)


def next_of(rows: Sequence[Schedule]) -> tuple[float, str] | None:
    """Return the next slot of all schedules, as unix seconds, and the schedule's name; None if none will fire."""
    slots = [(at, row.name or row.id) for row in rows if (at := next_wake(row)) is not None]
    return min(slots, default=None)


def next_words(slot: tuple[float, str] | None, now: float) -> str:
    """Return `next 09:00 standup`, in this machine's time; with the day if it is not today."""
    if slot is None:
        return ""
    at, name = slot
    then = datetime.fromtimestamp(at).astimezone()
    today = datetime.fromtimestamp(now).astimezone().date()
    when = f"{then:%H:%M}" if then.date() == today else f"{then:%a %d %b %H:%M}"
    return f"next {'now' if at <= now else when} {shorten(name, _NAME)}"
