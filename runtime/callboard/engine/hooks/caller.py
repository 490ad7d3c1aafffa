"""Functions for operations with hooks: the agent as the caller, the call, and messages of hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from callboard.core.agent.open_calls import CallState
from callboard.core.agent.rules.compaction import transcript_of, transcript_path
from callboard.core.agent.state import AgentState
from callboard.engine.runtime import SessionRuntime
from callboard.types import hook_answers as hk

log = structlog.get_logger("callboard.tools")


def caller(runtime: SessionRuntime, state: AgentState) -> hk.Caller:
    """Return an agent in the form for hooks, even if its life has ended. It must have begun."""
    me = state.me
    folders = runtime.services.archive.folders(me)
    return hk.Caller(
        session=runtime.session,
        name=me.name,
        kind=me.kind,
        agent_type=me.agent_type,
        permission_mode=me.permission_mode,
        folder=str(folders.root),
        transcript=transcript_path(state, str(folders.transcripts)),
        main_transcript=_main_transcript(runtime, state, str(folders.transcripts)),
        skills=state.work.skills,
    )


def _main_transcript(runtime: SessionRuntime, state: AgentState, folder: str) -> str:
    """Return the transcript of the lead or teammate above a subagent; empty for any other agent."""
    row = runtime.rows.agent(state.me.name)
    if state.me.kind != "subagent" or row is None:
        return ""
    while row is not None and row[0].kind == "subagent":
        row = runtime.rows.agent(row[0].parent or "lead")
    return transcript_of(row[0].name, row[0].incarnation, folder) if row is not None else ""


def notice(runtime: SessionRuntime, agent: str, notices: Sequence[str]) -> None:
    """Show messages of hooks about an agent to the user: a fault that lets a call proceed, or a hook's own message."""
    for text in notices:
        log.warning("hook", agent=agent, notice=text)
        runtime.notice(agent, text)


def find_call(state: AgentState, call_id: str) -> CallState | None:
    """Return the pending call with this id if it belongs to the newest reply."""
    return state.calls.find(call_id)


def left_stage(call_id: str, stage: str) -> Callable[[AgentState], bool]:
    """Return a condition that is true when the call has left `stage`, so that its record is void."""

    def gone(state: AgentState) -> bool:
        call = find_call(state, call_id)
        return call is None or call.stage != stage

    return gone
