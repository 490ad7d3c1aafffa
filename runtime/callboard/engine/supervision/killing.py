"""Ends a life that does not end by itself: a person said so, or it did not stop in the time of its shutdown.

Its task is cancelled, which ends the process groups of its tools. What then stands open in its journal is settled by
the same rules as after a stop, by an object that hears no more mail: calls get results, its turn ends, its background
commands end, tasks come free, requests are withdrawn, subagents are stopped, and the last record is written.
"""

from __future__ import annotations

import anyio
import structlog

from callboard.core.names import agent_key
from callboard.engine.bus.listening import hear_out
from callboard.engine.host import Host
from callboard.engine.loop import Agent, live
from callboard.engine.memory import recall
from callboard.engine.supervision.leaving import all_given_back, lead_told
from callboard.engine.supervision.members import Member, current, started
from callboard.engine.supervision.restarting import guarded
from callboard.engine.world import begin
from callboard.ports.store import Put
from callboard.words.errors import Conflict
from callboard.words.events import AgentResumed, StopAsked
from callboard.words.steps import Done
from callboard.words.values import AgentRow

GRACE = 10.0
"""Seconds that what it has under way may take to let go. A process group is ended within 2 s; what blocks a thread for
longer is left behind, and can record nothing any more."""
SETTLING = 60.0
"""Seconds for the settling; then only its row says that it is over."""

log = structlog.get_logger("callboard.team")


async def end_life(host: Host, member: Member, why: StopAsked, pid: int) -> tuple[str, str]:
    """Cancel it, settle what it leaves, write its last record: (outcome, result). Raises what `Store.commit` raises."""
    member.killed = True
    member.scope.cancel()
    with anyio.move_on_after(GRACE):
        await member.left.wait()
    if member.agent is not None:
        member.agent.retire()
    row = current(host, member.row)
    with anyio.move_on_after(SETTLING):
        settled = await guarded(_settle(host, row, why, pid), row.name)
        if not isinstance(settled, Exception):
            return settled
        log.error("a killed agent could not be settled", agent=row.name, exc_info=settled)
    await _bury(host, row, why)
    return "stopped", f"ended by {why.by}"


async def _settle(host: Host, row: AgentRow, why: StopAsked, pid: int) -> tuple[str, str]:
    """The rest of its life, from its journal: it was told to stop, and nothing of it runs any more."""
    state = await recall(host.ports.store, host.session, row.name, row.incarnation)
    if state.ended is not None:
        return state.ended.outcome, state.ended.result
    agent, done = Agent(host, row, state, begin), list[Done]()
    async with anyio.create_task_group() as group:
        agent.group = group
        if state.spec is None:
            await started(agent)
        await hear_out(agent)  # what it never came to read is owed a report too
        await agent.record(why, AgentResumed(at=why.at, pid=pid))
        done.append(await live(agent))
        group.cancel_scope.cancel()
    return done[0].outcome, done[0].result


async def _bury(host: Host, row: AgentRow, why: StopAsked) -> None:
    """Its journal cannot be gone on with: its row says that it is over, what it held is given back, and the lead is
    told, all in one commit. A subagent's caller hears of it by the end of the wait."""
    ended = {"life": "stopped", "outcome": "stopped", "waiting_for": "", "since": why.at}
    note = f"{row.name} was ended by {why.by}"
    while True:
        buried = current(host, row).model_copy(update=ended)
        left = all_given_back(host, row, note)
        left += lead_told(host, row, f"{row.name} ended without a report: {note}", "stopped", why.at)
        try:
            await host.commit(Put(agent_key(host.session, row.name), buried.encode()), *left)
            return
        except Conflict as lost:
            await host.refresh(lost.what)
