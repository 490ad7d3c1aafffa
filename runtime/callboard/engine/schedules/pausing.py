"""Pauses a schedule that can fire no more, as writes of one commit: its row with the reason, and word to the lead.

A schedule that is paused stays in the list; a person lets it fire again (`callboard cron resume`).
"""

from __future__ import annotations

from callboard.core.budget.tree import used_up
from callboard.core.bus.mail import sending
from callboard.core.names import schedule_key, short_id
from callboard.core.schedule import no_more_fires, paused
from callboard.engine.host import Host
from callboard.ports.store import Put, Write
from callboard.words import steps as st
from callboard.words.schedules import Schedule
from callboard.words.values import Envelope


def used_up_schedule(host: Host, schedule: Schedule) -> str:
    """Why it cannot pay for another fire; empty while it can."""
    return no_more_fires(host.budgets.of_schedule(schedule.id), host.clock.now())


def pause_for(host: Host, reached: st.ReachBudget) -> tuple[Write, ...]:
    """What goes into the commit of a budget that is reached: for a schedule's own budget its pause, else nothing."""
    kind, _, schedule = reached.budget.partition(":")
    if kind != "schedule" or reached.kind in ("agents", "depth"):
        return ()
    why = used_up(reached.budget, reached.kind, reached.limit, reached.spent, reached.wanted)
    return pause(host, schedule, why, wakes=False)


def pause(host: Host, schedule: str, why: str, *, wakes: bool) -> tuple[Write, ...]:
    """The writes; nothing for one that is not active any more. `wakes`: the lead is to hear of it at once."""
    found = host.board.schedule(schedule)
    if found is None or found[0].state != "active":
        return ()
    row, revision = found
    lead = host.board.agent("lead")
    envelope = Envelope(
        id=short_id("env", row.id, "paused", revision),
        sender="schedule",
        recipient="lead",
        incarnation=lead[0].incarnation if lead else 1,
        type="error",
        mode="wake" if wakes else "queue",
        content=f"schedule {row.id} ({row.cron}, {row.timezone}) is paused: {why}",
        cause="schedule",
        sent_at=host.clock.now(),
    )
    put = Put(schedule_key(host.session, row.id), paused(row, why).encode(), expected=revision)
    return sending(host.session, envelope), put
