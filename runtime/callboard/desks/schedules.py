"""A person's schedules of a session, kept from any process: the host hears of each change by the store's doorbell."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from callboard.adapters.clock import SystemClock
from callboard.core.names import schedule_key, short_id
from callboard.core.schedule import CronInvalid, describe, next_three, parse_cron, resumed
from callboard.desks.persons import refuse_inside_tool
from callboard.engine.board import SessionBoard
from callboard.engine.sessions import send_prompt
from callboard.ports.store import Put, Store
from callboard.words.errors import UsageError
from callboard.words.schedules import Schedule
from callboard.words.values import Budget


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a schedule may spend: in all, and for each fire."""

    in_all: Budget = Budget()
    each_fire: Budget = Budget()


class CronDesk:
    """The schedules of one session, as an outside process sees them and changes them."""

    def __init__(self, store: Store, session: str, board: SessionBoard) -> None:
        self._store, self._session, self._board, self._clock = store, session, board, SystemClock()

    async def add(
        self, cron: str, prompt: str, timezone: str = "UTC", *, recurring: bool = True, allowed: Allowed = Allowed()
    ) -> Schedule:
        """A new schedule of this session. Raises `UsageError` naming the field of the expression that is wrong."""
        refuse_inside_tool("add a schedule")
        try:
            parse_cron(cron, timezone)
        except CronInvalid as wrong:
            raise UsageError(str(wrong)) from wrong
        if not prompt.strip():
            raise UsageError("a schedule needs a prompt: what is to be done when it fires?")
        now = self._clock.now()
        schedule = Schedule(
            id=short_id("cron", self._session, cron, prompt, secrets.token_hex(8)),
            cron=cron,
            prompt=prompt,
            timezone=timezone,
            recurring=recurring,
            created_at=now,
            budget=allowed.in_all,
            fire_budget=allowed.each_fire,
        )
        await self._store.commit(Put(schedule_key(self._session, schedule.id), schedule.encode(), expected=0))
        return schedule

    async def cancel(self, schedule_id: str) -> None:
        """End a schedule; its row stays, for the history. Raises `UsageError` for an unknown one."""
        refuse_inside_tool("remove a schedule")
        schedule, revision = self._found(schedule_id)
        ended = schedule.model_copy(update={"state": "cancelled", "enabled": False})
        await self._store.commit(Put(schedule_key(self._session, schedule.id), ended.encode(), expected=revision))

    async def resume(self, schedule_id: str, allowed: Allowed = Allowed()) -> Schedule:
        """Let a paused schedule fire again, with these limits in place of its own. Raises `UsageError` for one that
        is unknown, or not paused."""
        refuse_inside_tool("resume a schedule")
        schedule, revision = self._found(schedule_id)
        if schedule.state != "paused":
            raise UsageError(f"{schedule_id} is not paused, it is {schedule.state}")
        active = resumed(schedule, self._clock.now(), allowed.in_all, allowed.each_fire)
        await self._store.commit(Put(schedule_key(self._session, schedule.id), active.encode(), expected=revision))
        return active

    def one(self, schedule_id: str) -> Schedule:
        """One schedule. Raises `UsageError` for an unknown one."""
        return self._found(schedule_id)[0]

    async def run(self, schedule_id: str) -> None:
        """Send a schedule's prompt to the lead now, beside its times."""
        refuse_inside_tool("run a schedule")
        schedule, _ = self._found(schedule_id)
        nonce, now = secrets.token_hex(8), self._clock.now()
        await send_prompt(self._store, self._session, schedule.prompt, to="lead", now=now, nonce=nonce)

    def _found(self, schedule_id: str) -> tuple[Schedule, int]:
        found = self._board.schedule(schedule_id)
        if found is None:
            known = ", ".join(one.id for one in self._board.schedules()) or "none"
            raise UsageError(f"there is no schedule {schedule_id}; there are: {known}")
        return found


def schedule_words(schedule: Schedule, now: float) -> tuple[str, list[float]]:
    """What a schedule says in words, and its next three times (Unix seconds)."""
    cron = parse_cron(schedule.cron, schedule.timezone)
    return describe(cron), next_three(cron, now)
