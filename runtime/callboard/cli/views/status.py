"""State of a session in words: the status line, `/status`, who is at work, which sessions there are.

The status line shows the working agents, pending requests for the person, tokens and cost, and the next schedule.
`StatusLine` decides its parts, and `fitted` what of them fits into its width. Nothing here draws.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

from callboard.cli.terminal.terminal import Block, Line, columns, plain
from callboard.cli.views.events import shorten
from callboard.cli.views.listings import listing
from callboard.core.reports.spending import cost_words, usage_words
from callboard.core.scheduling import next_wake
from callboard.sessions.base import OpenSession
from callboard.sessions.inspect.health import ListedSession
from callboard.sessions.inspect.resources import SESSIONS
from callboard.types.records import SessionRow
from callboard.types.schedules import Schedule


def attached_block(session: OpenSession, host: int) -> Block:
    """Return the words for a person who did not get the session itself, but a place beside its host (a process id)."""
    text = f"process {host} hosts session {session.id}; this screen follows it, and leaving it stops nothing"
    lines = (Line("is at work: a reply is shown here when it is whole", "dim", name) for name in at_work(session))
    return Block((Line(text, "dim"), *lines))


def at_work(session: OpenSession) -> list[str]:
    """Return the agents with a running turn, according to the rows: an open model call is not in a journal yet
    (decision 0007)."""
    return [row.name for row in session.team() if row.life == "working"]


def status_words(session: OpenSession) -> str:
    """Return the state of the session in one line: `2 working, 1 idle | 1 waits for you | 12,345 tokens in, ...`."""
    parts = [lives_words(session), waiting_words(session), *rate_waits(session), usage_words(session.usage())]
    return " | ".join(part for part in parts if part)


def lives_words(session: OpenSession) -> str:
    """Return `2 working, 1 idle`."""
    lives = Counter(row.life for row in session.team() if row.life != "stopped")
    return ", ".join(f"{number} {life}" for life, number in lives.items()) or "no agents yet"


def waiting_words(session: OpenSession) -> str:
    """Return how many requests wait for the person; empty for none."""
    waiting = len(session.requests())
    return f"{waiting} {'waits' if waiting == 1 else 'wait'} for you (/plans)" if waiting else ""


def rate_waits(session: OpenSession) -> list[str]:
    """Return the agents that wait for the service's rate limit, and until when: `lead waits for the rate limit until
    14:05`."""
    states = [(row.name, session.state(row.name)) for row in session.team() if row.waiting_for.startswith("rate")]
    if not states:
        return []
    names = ", ".join(name for name, _ in states)
    ends = [until for _, state in states if state is not None and (until := state.model.recovery.waiting_until)]
    until = f" until {datetime.fromtimestamp(max(ends)).astimezone():%H:%M}" if ends else ""
    return [f"{names} {'wait' if len(states) > 1 else 'waits'} for the rate limit{until} (callboard rate)"]


def setting_words(session: OpenSession) -> str:
    """Return folder, model, mode and sandbox in one line: `~/project, model claude-..., mode default, sandbox 2`."""
    folder = session.workspace
    home = Path.home()
    where = f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) and folder != home else str(folder)
    level = {None: "", 0: ", no sandbox"}.get(session.level, f", sandbox level {session.level}")
    return f"{where}, model {session.model_of()}, mode {session.mode_of()}{level}"


def status_block(session: OpenSession, host: int | None) -> Block:
    """Return what `/status` shows: where the session is, how it runs, and what is open. `host`: the process that
    hosts it, if that is another one.
    """
    open_tasks = sum(task.status in ("pending", "in_progress") for task in session.tasks())
    tasks = f"{open_tasks} open task{'s' if open_tasks != 1 else ''} (/tasks)" if open_tasks else "no open task"
    schedules = len(session.schedules())
    fires = f", {schedules} schedule{'s' if schedules != 1 else ''} (/cron)" if schedules else ""
    hosted = "" if host is None else f", hosted by process {host}"
    return Block(
        (
            Line(f"session {session.id}{hosted}"),
            Line(setting_words(session)),
            Line(status_words(session)),
            Line(f"{tasks}{fires}"),
        )
    )


def sessions_table(rows: Sequence[SessionRow]) -> Block:
    """Return the id, start, end and first words of each session; then the errors of each."""
    listed = listing(SESSIONS, rows)
    troubles = [row.trouble for row in rows if isinstance(row, ListedSession) and row.trouble]
    return Block((*listed.lines, *(Line(trouble, "bad") for trouble in troubles)))


_NAME = 20
_BETWEEN = " | "


@dataclass(frozen=True, slots=True)
class StatusPart:
    """Part of the status line. `rank`: rank 0 is dropped last. `short`: shown instead before the part is dropped."""

    text: str
    rank: int
    short: str = ""


class StatusLine:
    """Texts of the line below; the next times are recomputed only when a schedule has changed."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._for: Sequence[Schedule] = ()
        self._next: tuple[float, str] | None = None

    def text(self, doing: Sequence[str], width: int) -> str:
        """Return the line, at most `width` columns. `doing`: the work of each agent."""
        session = self._session
        rows = self._session.schedules()
        if rows != self._for:
            self._for = rows
            self._next = next_of(rows)
        usage = session.usage()
        parts = [
            *(StatusPart(agent, rank) for agent, rank in zip(doing, count(3), strict=False)),
            StatusPart(f"mode {session.mode_of()}", 1),
            StatusPart(lives_words(session), 50),
            StatusPart(waiting_words(session), 0),
            *(StatusPart(wait, 2) for wait in rate_waits(session)),
            StatusPart(usage_words(usage), 60, short=cost_words(usage)),
            StatusPart(next_words(self._next, time.time()), 70),
        ]
        return fitted(parts, width)


def fitted(parts: Sequence[StatusPart], width: int) -> str:
    """Return the parts in one line. If they are wider than `width` columns, shorten and drop whole parts, the highest
    rank first; only a last part that is too wide by itself is cut."""
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
