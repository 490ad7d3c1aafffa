"""Options of a `callboard serve`, and the lines of its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

import anyio

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json


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

    `kind`: serving, hosting, left, fire, retry, end, missed, paused, note, trouble, files,
    web.
    """

    kind: str
    text: str
    session: str = ""
    schedule: str = ""
    details: Json = field(default_factory=dict[str, object])
    """Details of a fire: its `id`, `nominal`, `outcome`, `cost_usd` and seconds."""
    at: float = field(default_factory=time.time)


Tell = Callable[[LogLine], None]
