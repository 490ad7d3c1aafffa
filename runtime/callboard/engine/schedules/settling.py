"""What becomes of fires that are under way: their turns begin and end, are stopped at a deadline, are tried again.

Each change of the history stands in one commit with what follows from it: the schedule's failures and its pause, the
next try, word to the lead. A process that dies in between finds it undone and does it after its resume.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from callboard.core.budget.tree import Amount
from callboard.core.names import schedule_key
from callboard.core.schedule import paused
from callboard.core.schedule.history import (
    Course,
    after,
    ended,
    envelope_id,
    is_by_hand,
    is_failure,
    retry_at,
    running,
    unended,
)
from callboard.core.schedule.overlap import is_held
from callboard.engine.host import Host
from callboard.engine.schedules.firing import ending, sent, told
from callboard.engine.schedules.following import Followed, OpenFires
from callboard.ports.store import Put, Write
from callboard.words.errors import Conflict, ToolRefused
from callboard.words.schedules import Fire, Schedule

log = structlog.get_logger("callboard.schedules")


class Settling:
    """Brings the open fires of a session on."""

    def __init__(self, host: Host, fires: OpenFires) -> None:
        self._host, self._fires = host, fires

    async def tend(self, now: float) -> None:
        """All that time and the journals have made due by `now`. Raises what `Store.commit` raises but conflicts."""
        for one in list(self._fires):
            await self._tend(one, now)
        for one in list(self._fires):
            if one.fire.id in self._fires and (is_held(one.fire) or self._again(one.fire, now)):
                await self._send(one.fire, now)

    def next_time(self) -> float | None:
        """When time alone makes something due (unix seconds)."""
        times = [at for one in self._fires if (at := self._due_at(one)) is not None]
        return min(times, default=None)

    async def commit(self, *writes: Write) -> bool:
        """Whether it was done. Lost a race: the rows are read again, and the next look decides anew."""
        try:
            numbers = await self._host.commit(*writes)
        except Conflict as lost:
            await self._host.refresh(lost.what)
            await self._fires.reread(lost.what)
            return False
        self._fires.written(writes, numbers)
        self._host.on_change("fire", "")
        return True

    def _due_at(self, one: Followed) -> float | None:
        again = retry_at(one.fire)
        if again is not None:
            return again
        schedule, course = self._schedule(one.fire), one.course
        if schedule is None or schedule.deadline is None or one.fire.outcome != "running":
            return None
        if course is None or not course.own:  # it joined a turn, which is not its to end
            return None
        return (one.fire.began_at or 0.0) + schedule.deadline

    def _schedule(self, fire: Fire) -> Schedule | None:
        return self._host.board.schedule_row(fire.schedule)

    async def _tend(self, one: Followed, now: float) -> None:
        """What its journal says, its schedule's end, its deadline."""
        course = self._course(one, now)
        if course is not None and course.stage == "ended":
            await self._settle(one.fire, course)
        elif course is not None and course.stage == "running" and one.fire.began_at != course.began_at:
            await self.commit(*self._fires.puts(running(one.fire, course)))
        elif course is None and self._gone(one.fire):
            schedule = self._schedule(one.fire)
            why = f"the schedule was {schedule.state}" if schedule else "the schedule is gone"
            await self.commit(*self._fires.puts(_closed(one.fire, "skipped", why, now)))
        due = self._due_at(one)
        if one.fire.outcome == "running" and due is not None and due <= now:
            schedule = self._schedule(one.fire)
            seconds = schedule.deadline if schedule and schedule.deadline is not None else 0.0
            over = one.fire.model_copy(update={"outcome": "timed_out", "why": f"it ran for more than {seconds:g} s"})
            await self.commit(*self._fires.puts(over), *ending(self._host, one.fire, now))

    def _course(self, one: Followed, now: float) -> Course | None:
        """As heard; at its end too where its agent is no more."""
        course = one.course
        if course is None or course.stage == "ended" or one.fire.agent == "lead":
            return course
        row = self._host.board.agent(one.fire.agent)
        if row is not None and row[0].life not in ("stopped", "crashed"):
            return course
        crashed = row is not None and row[0].life == "crashed"
        why = "its agent has crashed, and is parked" if crashed else "its agent has ended"
        return replace(course, stage="ended", ended_at=now, reason="crashed" if crashed else "stopped", why=why)

    def _gone(self, fire: Fire) -> bool:
        """Nothing of it is under way, and its schedule fires no more: nobody waits for it. One by hand is a person's
        word, and goes all the same."""
        schedule = self._schedule(fire)
        return schedule is None or (schedule.state in ("cancelled", "paused") and not is_by_hand(fire))

    async def _settle(self, fire: Fire, course: Course) -> None:
        """Its end in the history, and what follows from that, in one commit."""
        host = self._host
        found = host.board.schedule(fire.schedule)
        over = ended(fire, course, found[0] if found else None, self._used(fire, course))
        writes = self._fires.puts(over)
        if found is not None and not unended(over):
            writes += self._after(found[0], found[1], over, course)
        if over.outcome == "done" or (is_failure(over.outcome, course.reason) and not unended(over)):
            writes += self._words(fire, over, course)
        await self.commit(*writes)
        if over.outcome not in ("done", "waiting"):
            log.warning("a fire ended", fire=fire.id, outcome=over.outcome, why=over.why)

    def _after(self, schedule: Schedule, revision: int, over: Fire, course: Course) -> list[Write]:
        """The schedule's row as it stands after this end; nothing where it stays as it is."""
        row, why = after(schedule, over, course.reason)
        if row is schedule:
            return []
        writes: list[Write] = []
        if why:
            row = paused(row, why)
            words = f"schedule {row.id} ({row.cron}, {row.timezone}) is paused: {why}"
            writes.append(told(self._host, row, f"paused {over.id} {over.attempt}", words))
        return [*writes, Put(schedule_key(self._host.session, row.id), row.encode(), expected=revision)]

    def _words(self, fire: Fire, over: Fire, course: Course) -> list[Write]:
        """What an agent made for this fire said, for the lead's next turn."""
        schedule = self._schedule(fire)
        if schedule is None or schedule.context != "fresh" or fire.agent == "lead":
            return []
        text = f"schedule {schedule.name or schedule.id}, {fire.id} ({fire.agent}): {over.outcome}"
        said = course.text.strip() or over.why
        words = f"{text}\n{said}" if said else text
        return [told(self._host, schedule, f"result {envelope_id(fire)}", words, result=over.outcome == "done")]

    def _used(self, fire: Fire, course: Course) -> Amount:
        """By its turn, and by the agents that it started as far as they are known here."""
        node = self._host.budgets.tree.get(f"fire:{envelope_id(fire)}")
        return node.spent if node is not None and node.spent.steps > course.used.steps else course.used

    def _again(self, fire: Fire, now: float) -> bool:
        at = retry_at(fire)
        return at is not None and at <= now

    async def _send(self, fire: Fire, now: float) -> None:
        """A fire that was held, where nothing else of its schedule is under way; or the next try."""
        schedule = self._schedule(fire)
        if schedule is None or self._gone(fire):
            return
        again = fire.ended_at is not None
        others = [one for one in self._fires.of(fire.schedule) if one.id != fire.id and not is_held(one)]
        if others and not again and not is_by_hand(fire) and schedule.overlap != "parallel":
            return
        going = fire.model_copy(update={"attempt": fire.attempt + 1}) if again else fire
        try:
            going, writes = await sent(self._host, schedule, going, now)
        except ToolRefused as refused:
            await self.commit(*self._fires.puts(_closed(fire, "refused", str(refused), now)))
            return
        await self.commit(*writes, *self._fires.puts(going))


def _closed(fire: Fire, outcome: str, why: str, now: float) -> Fire:
    return fire.model_copy(update={"outcome": outcome, "why": why, "ended_at": now})


def replaced(host: Host, fire: Fire, by: str, now: float) -> tuple[Fire, list[Write]]:
    """The fire whose place a newer one takes, and the word that ends what is under way of it."""
    why = f"{by} took its place"
    if is_held(fire) or retry_at(fire) is not None:
        return _closed(fire, "replaced", why, now), []
    return fire.model_copy(update={"outcome": "replaced", "why": why}), ending(host, fire, now)
