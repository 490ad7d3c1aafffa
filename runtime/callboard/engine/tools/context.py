"""What a tool is given (`ToolContext`), made from the agent and the host at the moment of the call."""

from __future__ import annotations

from functools import partial

from callboard.core.bus.authority import authority_of
from callboard.core.names import mailbox
from callboard.core.state import Background
from callboard.engine.asking.eliciting import elicit
from callboard.engine.hooks.worktrees import worktrees_for
from callboard.engine.loop import Agent
from callboard.engine.skills.using import use_skill
from callboard.ports.model import Delta
from callboard.ports.tool import BackgroundTask, ToolContext


def tool_context(agent: Agent, call_id: str) -> ToolContext:
    """Everything that the tool of this call may touch."""
    state, host = agent.state, agent.host
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    return ToolContext(
        session=host.session,
        spec=state.me,
        incarnation=state.incarnation,
        call=call_id,
        depth=state.turn.depth if state.turn else 0,
        now=host.clock.now(),
        folders=host.ports.archive.folders(state.me),
        files=state.files,
        board=host.board,
        launcher=host.ports.launcher,
        spawner=agent.spawner,
        skills=host.ports.skills,
        background={one: _task(bg) for one, bg in state.background.items()},
        progress=lambda text: host.streamed(agent.name, Delta("tool", text)),
        authority=authority_of(state),
        caused_by=state.turn.cause if state.turn else "",
        read=state.waits.read,
        assignment=state.assigned,
        mail_of=lambda row: host.mailboxes.load(mailbox(host.session, row.name, row.incarnation)),
        lease=host.fence,
        commit=lambda: commit_in(agent, call_id),
        worktrees=worktrees_for(agent),
        elicit=partial(elicit, agent, call_id),
        use_skill=partial(use_skill, agent, call_id),
    )


async def commit_in(agent: Agent, why: str) -> str:
    """What is checked out where this agent's tools run; empty: nothing, or not known. `why`: what it is asked for."""
    ports = agent.host.ports
    if ports.surroundings is None:
        return ""
    return await ports.surroundings.commit(str(ports.archive.folders(agent.state.me).root), why)


def _task(bg: Background) -> BackgroundTask:
    began = bg.began
    return BackgroundTask(
        began.id, began.command, began.pid, began.started, began.output, bg.status, bg.exit_code, began.boot
    )
