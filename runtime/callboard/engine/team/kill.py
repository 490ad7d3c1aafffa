"""End of a life that does not end by itself: the user killed it, or it did not stop within the time of its shutdown.

Its task is cancelled, which ends the process groups of its tools. The open items of its journal are then settled by the
same rules as after a stop, by an object that receives no more mail: calls get results, its turn ends, its background
commands end, tasks are freed, requests withdrawn, subagents stopped, and the last record is written.
"""

from __future__ import annotations

import anyio
import structlog

from callboard.core.keys import agent_key
from callboard.engine.loop import AgentRuntime, live
from callboard.engine.operations.cleanup import all_given_back, lead_told
from callboard.engine.operations.receive import hear_out
from callboard.engine.recall import recall
from callboard.engine.runtime import Host
from callboard.engine.step_handlers import begin
from callboard.engine.team.crash_restart import guarded
from callboard.engine.team.member import Member, current, started
from callboard.ports.store import Put
from callboard.types.errors import Conflict
from callboard.types.events import AgentResumed, StopAsked
from callboard.types.records import AgentRow
from callboard.types.steps import Done

GRACE = 10.0
"""Seconds for its operations to end. A process group ends within 2 s. An operation that blocks a thread for longer is
left behind and can record nothing."""
SETTLING = 60.0
"""Seconds for the settling. After that, only the row says that the life is over."""
SETTLINGS = 3
"""Attempts of the settling. After a crash the rest of the work is in the journal for the next attempt."""

log = structlog.get_logger("callboard.team")


async def end_life(host: Host, member: Member, order: StopAsked, pid: int) -> tuple[str, str]:
    """Cancel a life, settle it, write its last record, and return (outcome, result). Raises the exceptions of
    `Store.commit`."""
    # Before the cancellation: the supervisor leaves the end of a killed life to this function.
    member.killed = True
    member.scope.cancel()
    # A thread cannot be cancelled (test_what_cannot_even_be_cancelled_is_left_behind_and_writes_nothing_any_more).
    with anyio.move_on_after(GRACE):
        await member.gone.wait()
    if member.agent is not None:
        member.agent.retire()
    row = current(host, member.row)
    with anyio.move_on_after(SETTLING):
        # Each attempt continues from the journal
        # (test_a_killed_teammate_is_settled_although_its_settling_crashes_once).
        for _ in range(SETTLINGS):
            settled = await guarded(_settle(host, row, order, pid), row.name)
            if not isinstance(settled, Exception):
                return settled
            log.error("a killed agent could not be settled", agent=row.name, exc_info=settled)
    # The row must end in any case, or the session never becomes quiet
    # (test_the_lead_is_told_of_a_killed_teammate_that_could_not_be_settled).
    await _bury(host, row, order)
    return "stopped", f"ended by {order.by}"


async def _settle(host: Host, row: AgentRow, order: StopAsked, pid: int) -> tuple[str, str]:
    """Run the rest of a stopped life from its journal, when none of its operations runs any more."""
    state = await recall(host.ports.store, host.session, row.name, row.incarnation)
    if state.ended is not None:
        return state.ended.outcome, state.ended.result
    agent = AgentRuntime(host, row, state, begin)
    done = list[Done]()
    async with anyio.create_task_group() as group:
        agent.group = group
        # Killed before its first record: it still owes its lead a report
        # (test_a_teammate_that_is_killed_before_its_first_record_is_reported_to_the_lead).
        if state.spec is None:
            await started(agent)
        await hear_out(agent)  # what it never came to read is owed a report too
        resumed = AgentResumed(at=order.at, pid=pid)
        # An earlier attempt may have recorded the order before it crashed.
        already_asked = state.stop == "asked" and (state.stop_by, state.stop_request) == (order.by, order.request_id)
        await agent.record(*([resumed] if already_asked else [order, resumed]))
        done.append(await live(agent))
        group.cancel_scope.cancel()
    return done[0].outcome, done[0].result


async def _bury(host: Host, row: AgentRow, order: StopAsked) -> None:
    """End a life whose journal cannot be continued, in one commit: its row ends, its tasks are freed, and the lead is
    informed. The caller of a subagent learns of it by the end of the wait."""
    ended = {"life": "stopped", "outcome": "stopped", "waiting_for": "", "since": order.at}
    note = f"{row.name} was ended by {order.by}"
    while True:
        buried = current(host, row).model_copy(update=ended)
        writes = all_given_back(host, row, note)
        writes += lead_told(host, row, f"{row.name} ended without a report: {note}", status="stopped", at=order.at)
        try:
            await host.commit(Put(agent_key(host.session, row.name), buried.encode()), *writes)
            return
        except Conflict as lost:
            await host.refresh(lost.what)
