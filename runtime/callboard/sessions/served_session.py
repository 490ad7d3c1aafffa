"""One session as a `callboard serve` sees it: its schedules, its unfinished fires, and its need for a host."""

from __future__ import annotations

from dataclasses import field

from callboard.adapters.system.clock import SystemClock
from callboard.core.scheduling import CronInvalid, next_wake, when_of
from callboard.core.scheduling.due import clock_corrections
from callboard.ports.notifier import Notifier
from callboard.sessions.inspect.serving import fires_again
from callboard.sessions.serve_options import local_time
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import HostRow, QueuedSession
from callboard.types.schedules import Fire, Schedule

_HOST_FIELDS = ("state", "failures", "last_slot", "fires", "paused_why", "skips", "skipped_why")
"""Fields of a schedule that its host changes."""


@dataclass(slots=True)
class ServedSession:
    """Session that has, or had, schedules, or that needs a host, as this process sees it."""

    session: str
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    unfinished_fires: dict[str, Fire] = field(default_factory=dict[str, Fire])
    """Fires that have not ended, by their keys, including those of a schedule that no longer fires."""
    changed: Notifier = field(default_factory=Notifier)
    """Notifier of changes of the schedules."""
    queued: QueuedSession | None = None
    """Its row among the sessions that need a host; None: it needs none, except for its schedules."""
    host: HostRow | None = None
    """Row of another process that hosts it, or has died."""
    hosted_here: bool = False
    """True if this process hosts it."""
    reported_requests: set[str] = field(default_factory=set[str])
    """Requests that wait for a person, and that the log names."""
    useful_changes: int = 0
    """Number of changes after which an opening that failed may succeed. Those that hosting causes do not count."""

    def needs_host(self) -> bool:
        """Return True if a serving host has to host the session while no other process does.

        A process at which a person sits is not replaced, because the person decides how it continues.
        """
        return self.fires() or self.queued is not None or (self.host is not None and self.host.unattended)

    def fires(self) -> bool:
        """Return True if a process has to host the session because of its schedules.

        A schedule that existed only for an earlier process does not count. One that a fast clock ended does: its host
        corrects it.
        """
        return bool(self.unfinished_fires) or bool(self.firing_schedules())

    def firing_schedules(self) -> list[Schedule]:
        """Return the schedules that need a host, as its first look corrects them."""
        now = SystemClock().now()
        durable = [schedule for schedule in self.schedules.values() if schedule.durable]
        return [schedule for row in durable if fires_again(schedule := with_correction(row, now))]

    def why_hosted(self) -> str:
        """Return why a process hosts the session: its schedules with the next time, or its work."""
        firing = self.firing_schedules()
        wakes = [wake for schedule in firing if (wake := _wake(schedule)) is not None]
        first = f", next {local_time(min(wakes))}" if wakes else ""
        if not self.fires():
            return "it has work, and no other host"
        return f"{len(firing)} schedule{'s' if len(firing) != 1 else ''}{first}"

    def set_schedule(self, name: str, schedule: Schedule | None) -> None:
        """Process a changed schedule; None: it is gone, or this version cannot read it."""
        self.useful_changes += _by_person(self.schedules.get(name), schedule)
        if schedule is None:
            self.schedules.pop(name, None)
        else:
            self.schedules[name] = schedule

    def set_queued(self, queued: QueuedSession | None) -> None:
        """Process its row among the sessions that need a host."""
        self.useful_changes += queued != self.queued
        self.queued = queued

    def set_host(self, host: HostRow | None) -> None:
        """Process the row of another process that hosts it; None: none does.

        A person who takes the session up may repair it. Another serving host may fail as this one does: if its row
        counted, the two would try again and again in turn
        (test_two_hosts_that_cannot_open_a_session_do_not_wake_each_other).
        """
        self.useful_changes += host is not None and not host.unattended
        self.host = host

    def is_due(self, by: float, now: float) -> bool:
        """Return True if a fire is due at `by`, or in progress, or a fast clock set a time that has to be corrected."""
        return bool(self.unfinished_fires) or any(
            schedule.durable and (_is_due(schedule, by) or with_correction(schedule, now) is not schedule)
            for schedule in self.schedules.values()
        )


def _is_due(schedule: Schedule, now: float) -> bool:
    try:
        wake = next_wake(schedule) if schedule.enabled and schedule.state == "active" else None
    except CronInvalid:
        return True
    return wake is not None and wake <= now


def _wake(schedule: Schedule) -> float | None:
    try:
        return next_wake(schedule)
    except CronInvalid:
        return None


def with_correction(schedule: Schedule, now: float) -> Schedule:
    """Return the schedule as its host corrects it after a fast clock; the same object if it is right."""
    try:
        update = clock_corrections(schedule, now, when_of(schedule))
    except CronInvalid:
        return schedule
    return schedule.model_copy(update=dict(update)) if update else schedule


def _by_person(before: Schedule | None, now: Schedule | None) -> bool:
    """Return True if a person or an agent changed a schedule, and not its host as it fires."""
    if before is None or now is None:
        return before is not now
    resumed = now.state == "active" != before.state
    same = now.model_copy(update={name: getattr(before, name) for name in _HOST_FIELDS})
    return resumed or same != before
