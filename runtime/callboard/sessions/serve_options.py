"""Options of a `callboard serve`, and the lines of its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path

import anyio

from callboard.sessions.result import asked_for
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request
from callboard.types.schedules import Fire

UNFINISHED = frozenset({"waiting", "running"})
"""Outcomes of fires that have not ended."""
_LATE = ("missed", "skipped", "refused", "replaced")
"""Outcomes of fires that did not run to their end, or not at all."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Options of a person for `callboard serve`."""

    workspace: Path
    trust: bool = False
    """True to use the workspace's content for this run."""
    model: str | None = None
    """Model of the session that is kept for schedule files; None for that of the settings."""
    once: bool = False
    """True to fire due schedules now, wait for their end, and return."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of this host, which a session may ask for."""
    handing_over: float = 30.0
    """Seconds that a step may take to its end when this host hands its sessions over."""
    leaving: anyio.Event | None = None
    """Set when this host is to hand its sessions over and leave; None: it leaves only by being cancelled."""
    sessions: int = 0
    """Most sessions to host at once; 0: as many as there are open files for."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    `kind`: serving, hosting, left, fire, retry, end, waits, answer, missed, paused, note, trouble, files,
    web.
    """

    kind: str
    text: str
    session: str = ""
    schedule: str = ""
    details: Json = field(default_factory=dict[str, object])
    """Details of a fire: its `id`, `nominal`, `outcome`, `cost_usd` and seconds. Or those of a request."""
    at: float = field(default_factory=time.time)


Tell = Callable[[LogLine], None]


def fire_line(fire: Fire, session: str) -> LogLine | None:
    """Return the line of a changed fire; None while it is being stopped, because its end has the time and cost."""
    if fire.outcome not in UNFINISHED and fire.ended_at is None:
        return None
    details: Json = {"id": fire.id, "nominal": fire.nominal, "outcome": fire.outcome, "agent": fire.agent}
    suffix = f": {' '.join(fire.why.split())[:200]}" if fire.why else ""
    line = partial(LogLine, session=session, schedule=fire.schedule)
    due = f"due {local_time(fire.nominal)}"
    if fire.outcome in UNFINISHED and fire.ended_at is not None:
        # In full: it names the try, and ends with the time of the next one.
        return line("retry", f"{due}: {' '.join(fire.why.split())}", details=details)
    if fire.outcome in UNFINISHED:
        return line("fire", due, details=details)
    if fire.outcome in _LATE:
        return line("missed", f"{fire.outcome}, {due}{suffix}", details=details)
    seconds = (fire.ended_at or fire.at) - (fire.began_at or fire.at)
    details |= {"seconds": round(seconds, 3), "cost_usd": fire.cost_usd, "attempt": fire.attempt}
    return line("end", f"{fire.outcome} after {seconds:.1f} s, ${fire.cost_usd:.4f}{suffix}", details=details)


def waiting_line(request: Request, session: str) -> LogLine:
    """Return the line of a request that begins to wait for a person."""
    until = "" if request.expires_at is None else f" until {local_time(request.expires_at)}"
    text = f"{request.kind} {request.id} of {request.asked_by} waits for you{until}: {asked_for(request)}"
    return LogLine("waits", text, session, details=_request_details(request) | {"until": request.expires_at})


def ended_line(request: Request, session: str) -> LogLine:
    """Return the line of a request that waited for a person, and waits no longer."""
    by = f" by {request.answered_by}" if request.answered_by else ""
    reason = f": {' '.join(request.reason.split())[:200]}" if request.reason else ""
    text = f"{request.kind} {request.id} of {request.asked_by} is {request.status}{by}{reason}"
    return LogLine("answer", text, session, details=_request_details(request))


def _request_details(request: Request) -> Json:
    return {"request": request.id, "kind": request.kind, "agent": request.asked_by, "status": request.status}


def local_time(at: float) -> str:
    """Return a time for a person, in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
