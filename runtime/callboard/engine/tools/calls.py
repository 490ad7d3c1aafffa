"""What the operations of tool calls share: finding a call, saying who calls, telling what hooks say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from callboard.core.state import AgentState, CallState
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.ports.model import Delta
from callboard.words import hooks as hk

log = structlog.get_logger("callboard.tools")


def caller(agent: Agent) -> hk.Caller:
    """Who a hook is told about."""
    return caller_in(agent.host, agent.state)


def caller_in(host: Host, state: AgentState) -> hk.Caller:
    """The same of an agent that may live no more; its life has begun."""
    me = state.me
    folders = host.ports.archive.folders(me)
    return hk.Caller(
        session=host.session,
        name=me.name,
        kind=me.kind,
        agent_type=me.agent_type,
        permission_mode=me.permission_mode,
        folder=str(folders.root),
        transcript=str(folders.transcripts),
        skills=state.skills,
    )


def notice(agent: Agent, notices: Sequence[str]) -> None:
    """What hooks tell the person who looks on: a fault that lets a call proceed, a message of theirs."""
    for text in notices:
        log.warning("hook", agent=agent.name, notice=text)
        agent.host.streamed(agent.name, Delta("notice", text))


def find_call(state: AgentState, call_id: str) -> CallState | None:
    """The pending call of that id, if it is still one of the newest reply."""
    return next((one for one in state.calls if one.call.id == call_id), None)


def gone_from(call_id: str, stage: str) -> Callable[[AgentState], bool]:
    """True when the call is no longer at `stage`: what was to be recorded of it is void."""

    def gone(state: AgentState) -> bool:
        one = find_call(state, call_id)
        return one is None or one.stage != stage

    return gone
