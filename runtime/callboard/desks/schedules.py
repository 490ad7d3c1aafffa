"""A person's schedules of a session, kept from any process: the host hears of each change by the store's doorbell.

Nothing is changed from inside a tool's process: an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from callboard.adapters.clock import SystemClock
from callboard.core.budget.spending import ScheduleSpent, Spent
from callboard.core.names import by_beginning, fires_prefix, rows_prefix, schedule_key, short_id
from callboard.core.schedule import resumed
from callboard.core.schedule.fields import FieldWrong, with_fields
from callboard.core.schedule.tally import FireStats, newest_first, stats_of, upcoming
from callboard.desks.persons import refuse_inside_tool
from callboard.engine.board import SessionBoard
from callboard.engine.money.spending import session_spending
from callboard.engine.schedules.by_hand import fire_by_hand
from callboard.ports.store import Put, Store
from callboard.words.errors import Conflict, UsageError
from callboard.words.schedules import Fire, Schedule

Fields = Mapping[str, object]
"""As `core.schedule.fields` reads them."""

LIVE = frozenset({"active", "paused"})
"""States of schedules that fire, or will once a person lets them; only among them a name is unique."""
_TRIES = 20
"""A fire may change the row between our look and our write: so often it is looked at again."""


class CronDesk:
    """The schedules of one session, as an outside process sees them and changes them."""

    def __init__(self, store: Store, session: str, board: SessionBoard) -> None:
        self.session = session
        self._store, self._board, self._clock = store, board, SystemClock()

    def all(self) -> Sequence[Schedule]:
        """Oldest first, those that are over included."""
        return self._board.schedules()

    def drafted(self, fields: Fields) -> Schedule:
        """The schedule that `add` would make of these fields: not written. Raises `FieldWrong`, and `UsageError` for a
        name that is taken."""
        made = drafted(self.session, len(self._board.schedules()), fields, self._clock.now())
        self._free(made)
        return made

    async def add(self, drafted: Schedule) -> None:
        """Write what `drafted` made. Raises `UsageError` when another process just made the same."""
        refuse_inside_tool("add a schedule")
        put = Put(schedule_key(self.session, drafted.id), drafted.encode(), expected=0)
        try:
            await self._store.commit(put)
        except Conflict as taken:
            raise UsageError("another process added a schedule in this moment: say it again") from taken

    def edited(self, wanted: str, fields: Fields) -> Schedule:
        """The schedule as `edit` would make it: not written. Raises as `drafted` does, and for one from a file.

        New times count from now on: nothing of them is made up. One that was over fires again once its times, its end
        or its number of runs are changed.
        """
        schedule, now = self.one(wanted), self._clock.now()
        _not_from_file(schedule, "edit")
        if schedule.state == "cancelled":
            raise UsageError(f"{wanted} is cancelled, and never fires again: add a new one")
        changed = with_fields(schedule, fields, now)
        update: dict[str, object] = {}
        if (changed.cron, changed.timezone) != (schedule.cron, schedule.timezone):
            update["last_slot"] = max(now, schedule.last_slot or 0.0)
        if schedule.state in ("fired", "ended") and _reopens(schedule, changed):
            update |= {"state": "active", "enabled": True}
        changed = changed.model_copy(update=update)
        self._free(changed)
        return changed

    async def edit(self, wanted: str, fields: Fields) -> Schedule:
        """Change the fields that are given. Raises as `edited` does."""
        refuse_inside_tool("edit a schedule")
        return await self._change(wanted, lambda _: self.edited(wanted, fields))

    async def cancel(self, wanted: str) -> Schedule:
        """End a schedule; its row stays, for the history. Raises `UsageError` for an unknown one, or one of a file."""
        refuse_inside_tool("remove a schedule")
        _not_from_file(self.one(wanted), "remove")
        return await self._change(wanted, lambda one: one.model_copy(update={"state": "cancelled", "enabled": False}))

    async def pause(self, wanted: str, why: str = "") -> Schedule:
        """Keep it from firing until it is resumed. Raises `UsageError` for one that is unknown or not active."""
        refuse_inside_tool("pause a schedule")

        def pausing(one: Schedule) -> Schedule:
            if one.state != "active":
                raise UsageError(f"{wanted} is not active, it is {one.state}")
            return one.model_copy(update={"state": "paused", "paused_why": why or "by a person"})

        return await self._change(wanted, pausing)

    async def resume(self, wanted: str, fields: Fields) -> Schedule:
        """Let a paused schedule fire again, with these fields (its budgets) changed. Raises `FieldWrong`, and
        `UsageError` for one that is unknown or not paused."""
        refuse_inside_tool("resume a schedule")

        def resuming(one: Schedule) -> Schedule:
            if one.state != "paused":
                raise UsageError(f"{wanted} is not paused, it is {one.state}")
            now = self._clock.now()
            changed = with_fields(one, fields, now) if fields else one
            active = resumed(changed, now, changed.budget, changed.fire_budget)
            return active.model_copy(update={"failures": 0})

        return await self._change(wanted, resuming)

    async def run(self, wanted: str) -> str:
        """Fire it now, beside its times, whatever its state. The id of the fire. Raises `UsageError`."""
        refuse_inside_tool("run a schedule")
        nonce, now = secrets.token_hex(8), self._clock.now()
        return await fire_by_hand(self._store, self.session, self.one(wanted), now=now, nonce=nonce)

    async def history(self, wanted: str | None = None) -> list[Fire]:
        """The fires of one schedule, or of all, newest first. Raises `UsageError` for an unknown one."""
        prefix = fires_prefix(self.session, self.one(wanted).id if wanted else "")
        rows = await self._store.keys(prefix)
        return newest_first(Fire.model_validate_json(row.value or b"") for row in rows)

    async def spent(self, wanted: str) -> ScheduleSpent:
        """What the turns of its fires used, by the journals. Raises `UsageError` for an unknown one."""
        schedule = self.one(wanted)
        self._board.take(*await self._store.keys(rows_prefix(self.session)))
        spending = await session_spending(self._store, self.session, self._board.agents())
        nothing = ScheduleSpent(schedule.id, 0, Spent())
        return next((one for one in spending.schedules if one.id == schedule.id), nothing)

    async def stats(self, wanted: str | None = None) -> list[FireStats]:
        """The fires of each schedule counted, oldest schedule first, or of one. Raises as `history` does."""
        fires = await self.history(wanted)
        schedules = [self.one(wanted)] if wanted else self.all()
        return [stats_of(one, [fire for fire in fires if fire.schedule == one.id]) for one in schedules]

    def one(self, wanted: str) -> Schedule:
        """The schedule of that name or id, or the only one whose id begins so. Raises `UsageError` naming those there
        are. Of several that had the name the live one is meant, else the newest."""
        found = self.find(wanted)
        if found is None:
            raise UsageError(f"there is no schedule {wanted}; there are: {names_of(self.all())}")
        return found

    def find(self, wanted: str) -> Schedule | None:
        """The same; None for an unknown one. Raises `UsageError` for a beginning that fits several."""
        named = [one for one in self.all() if one.name and one.name == wanted]
        if named:
            return max(named, key=lambda one: (one.state in LIVE, one.created_at))
        by_id = {one.id: one for one in self.all()}
        fitting = by_beginning(by_id, wanted)
        if len(fitting) > 1:
            raise UsageError(f"{wanted} fits {len(fitting)} schedules: {', '.join(fitting[:8])}")
        return by_id[fitting[0]] if fitting else None

    def _free(self, wanted: Schedule) -> None:
        """Refuse a name that another live one has. Raises `FieldWrong`."""
        others = [one for one in self.all() if one.id != wanted.id and one.state in LIVE]
        taken = next((one for one in others if wanted.name and one.name == wanted.name), None)
        if taken is not None:
            raise FieldWrong("name", f"{wanted.name} is the name of {taken.id} already: choose another one")

    async def _change(self, wanted: str, act: Callable[[Schedule], Schedule]) -> Schedule:
        """Write what `act` makes of the row as it stands; again when the row was changed meanwhile."""
        key = schedule_key(self.session, self.one(wanted).id)
        for _ in range(_TRIES):
            row = await self._store.get(key)
            if row is None:
                break
            self._board.take(row)
            changed = act(self.one(wanted))
            try:
                await self._store.commit(Put(key, changed.encode(), expected=row.revision))
            except Conflict:
                continue
            return changed
        raise UsageError(
            f"{wanted} could not be changed, since it was changed again and again meanwhile: try once more"
        )


def drafted(session: str, number: int, fields: Fields, now: float) -> Schedule:
    """A new schedule of these fields. Its id, and with it its jitter, follows from them and from how many there are
    (`number`): a dry run shows what would be. Raises `FieldWrong`."""
    origin = sorted((name, str(value)) for name, value in fields.items())
    blank = Schedule(id=short_id("cron", session, origin, number), cron="", prompt="", created_at=now)
    made = with_fields(blank, fields, now)
    if not upcoming(made, now, 1):
        raise FieldWrong("cron", f"{made.cron} never fires from now on: write a time that is still to come")
    return made


def names_of(schedules: Sequence[Schedule]) -> str:
    """Those that a person may mean, by name and id; `none`."""
    live = [one for one in schedules if one.state in LIVE] or list(schedules)
    return ", ".join(f"{one.name} ({one.id})" if one.name else one.id for one in live[:8]) or "none"


def _not_from_file(schedule: Schedule, what: str) -> None:
    """Raises `UsageError` for one that a file describes: the file counts."""
    if schedule.source:
        done = "delete it" if what == "remove" else "change it there"
        raise UsageError(
            f"{schedule.name or schedule.id} comes from {schedule.source}, and the file counts: {done}; "
            "`cron pause` keeps it from firing meanwhile"
        )


def _reopens(old: Schedule, new: Schedule) -> bool:
    times = (old.cron, old.timezone, old.recurring) != (new.cron, new.timezone, new.recurring)
    return times or (old.expires, old.max_runs) != (new.expires, new.max_runs)
