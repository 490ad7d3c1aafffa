"""What becomes of a slot whose time has come while earlier fires of its schedule are under way. Pure.

Under way is a fire that was sent and has not ended, also one that waits to be tried again. One that is held waits for
its turn: nothing was sent yet. `misfire_cap` bounds what may wait, so that thirty busy minutes never leave thirty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.schedule.due import Slot
from callboard.words.schedules import Fire, Schedule


@dataclass(frozen=True, slots=True)
class Admitted:
    """The slots, each in one place, oldest first."""

    send: tuple[Slot, ...] = ()
    hold: tuple[Slot, ...] = ()
    """Sent when nothing is under way any more."""
    skip: tuple[Slot, ...] = ()
    """Never sent."""
    why: str = ""
    """Why those are skipped."""
    replaced: tuple[Fire, ...] = ()
    """Fires that end for it."""


def is_held(fire: Fire) -> bool:
    """Nothing of it was sent yet."""
    return fire.outcome == "waiting" and not fire.agent and fire.ended_at is None


def admit(schedule: Schedule, slots: Sequence[Slot], unended: Sequence[Fire]) -> Admitted:
    """What to do with each slot. `unended`: the schedule's fires that have not come to their end.

    Slots that are made up together (`misfire` all) run one after another, unless `parallel`.
    """
    if not slots:
        return Admitted()
    room = max(1, schedule.misfire_cap) - sum(is_held(one) for one in unended)
    if schedule.overlap == "parallel":
        return _parallel(schedule, slots, unended)
    if not unended:
        return Admitted(send=tuple(slots[:1]), hold=tuple(slots[1:]))
    if schedule.overlap == "replace":
        return Admitted(
            send=tuple(slots[:1]),
            hold=tuple(slots[1:]),
            replaced=tuple(one for one in unended if one.outcome in ("waiting", "running")),
        )
    if schedule.overlap == "skip":
        return Admitted(skip=tuple(slots), why=f"{_newest(unended)} is under way")
    kept = max(0, room)
    why = f"{schedule.misfire_cap} fires wait already" if slots[kept:] else ""
    return Admitted(hold=tuple(slots[:kept]), skip=tuple(slots[kept:]), why=why)


def _parallel(schedule: Schedule, slots: Sequence[Slot], unended: Sequence[Fire]) -> Admitted:
    kept = max(0, max(1, schedule.misfire_cap) - len(unended))
    why = f"{len(unended)} fires are under way already" if slots[kept:] else ""
    return Admitted(send=tuple(slots[:kept]), skip=tuple(slots[kept:]), why=why)


def _newest(unended: Sequence[Fire]) -> str:
    return max(unended, key=lambda one: one.nominal).id
