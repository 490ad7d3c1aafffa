"""Handling of an answer by the agent that made the request. It first checks whether the situation of a plan or a call
has changed.

Rules (`core.plans`) decide whether an approval is valid. The event has all the values that were used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from callboard.core.agent.state import AgentState
from callboard.core.approvals.plans import Now, answer_record
from callboard.core.approvals.requests import AnswerRefusal, refused
from callboard.core.keys import request_key
from callboard.engine.hooks.caller import gone_from
from callboard.engine.loop import AgentRuntime
from callboard.engine.operations.permission_check import edited_by_person
from callboard.engine.operations.tool_context import commit_in
from callboard.ports.store import Put, Write
from callboard.types import steps as st
from callboard.types.errors import Conflict
from callboard.types.events import AnswerTaken
from callboard.types.operations import Operation
from callboard.types.records import Json, Request


async def take_answer(agent: AgentRuntime, step: st.TakeAnswer) -> None:
    """Record an answer: at once, or in an operation if it must look into a repository."""
    request = step.request
    assert request.status != "pending", "only an answered request is taken"
    if request.kind == "plan" and request.status == "approved" and request.payload.get("base"):
        agent.start(Operation("answer", request.id), partial(_take_approval, agent, request))
    elif request.kind == "permission" and request.status == "approved" and request.input is not None:
        agent.start(Operation("answer", request.id), partial(_take_edited, agent, request, request.input))
    else:
        await _record(agent, request, answer_record(request, _now(agent, digest=_digest(agent.state, request.id))))


def _digest(state: AgentState, request_id: str) -> str:
    return next((call.digest for call in state.calls if call.request_id == request_id), "")


async def _record(
    agent: AgentRuntime, request: Request, event: AnswerTaken, unless: Callable[[AgentState], bool] | None = None
) -> None:
    """Record the answer, and in the request's history that an approval is void. After a lost race `decide` asks
    again."""
    row = agent.host.board.request(request.id)
    writes = list[Write]()
    if event.void and row is not None:
        changed = refused(row[0], "runtime", AnswerRefusal("void", event.void), event.at)
        if changed is not None:
            writes.append(Put(request_key(agent.host.session, request.id), changed.encode(), expected=row[1]))
    try:
        await agent.record(event, writes=writes, unless=unless)
    except Conflict as lost:
        await agent.host.refresh(lost.what)


async def _take_approval(agent: AgentRuntime, request: Request) -> None:
    commit = await commit_in(agent, request.id)
    await _record(agent, request, answer_record(request, _now(agent, commit)), partial(_waits_no_more, request.id))


async def _take_edited(agent: AgentRuntime, request: Request, tool_input: Json) -> None:
    """Check the input with which the user allowed a call against the schema and the rules, then record the answer."""
    event = answer_record(request, _now(agent, digest=_digest(agent.state, request.id)))
    open_call = next((open_call for open_call in agent.state.calls if open_call.request_id == request.id), None)
    if open_call is not None and not event.void:
        edited = await edited_by_person(agent, open_call.call, tool_input)
        void = {"void": f"the input was changed, and {edited.void}"}
        event = event.model_copy(update=void if edited.void else {"input": edited.input, "grants": edited.grants})
    await _record(agent, request, event, None if open_call is None else gone_from(open_call.call.id, "asking"))


def _waits_no_more(request_id: str, state: AgentState) -> bool:
    return (state.work.gate.gate, state.work.gate.request_id) != ("pending", request_id)


def _now(agent: AgentRuntime, commit: str = "", digest: str = "") -> Now:
    state = agent.state
    void = state.me.plan_moved_base == "void"
    folder = str(agent.host.ports.archive.folders(state.me).root)
    return Now(agent.host.clock.now(), tuple(state.work.tasks), commit, void, folder, digest)
