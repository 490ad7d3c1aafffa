"""The answer to a request, taken by its asker: what has changed round a plan or a call meanwhile is looked at first.

Refuses to judge: whether an approval counts is a rule (`core.plans`), and what is acted on stands in the event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from callboard.core.asking.plans import Now, taken
from callboard.core.asking.requests import Refusal, refused
from callboard.core.names import request_key
from callboard.core.state import AgentState
from callboard.engine.asking.permissions import edited_by_person
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import gone_from
from callboard.engine.tools.context import commit_in
from callboard.ports.store import Put, Write
from callboard.words import steps as st
from callboard.words.errors import Conflict
from callboard.words.events import AnswerTaken
from callboard.words.values import Json, Request


async def take_answer(agent: Agent, step: st.TakeAnswer) -> None:
    """Write an answer down: at once, or where a repository must be looked at for it, by an operation."""
    request = step.request
    assert request.status != "pending", "only an answered request is taken"
    if request.kind == "plan" and request.status == "approved" and request.payload.get("base"):
        agent.start(f"answer:{request.id}", partial(_take_approval, agent, request))
    elif request.kind == "permission" and request.status == "approved" and request.input is not None:
        agent.start(f"answer:{request.id}", partial(_take_edited, agent, request, request.input))
    else:
        await _record(agent, request, taken(request, _now(agent, asked=_digest(agent.state, request.id))))


def _digest(state: AgentState, request_id: str) -> str:
    return next((one.digest for one in state.calls if one.request_id == request_id), "")


async def _record(
    agent: Agent, request: Request, event: AnswerTaken, unless: Callable[[AgentState], bool] | None = None
) -> None:
    """Also in the request's history, where an approval does not count. Lost a race: `decide` asks again."""
    row, writes = agent.host.board.request(request.id), list[Write]()
    if event.void and row is not None:
        kept = refused(row[0], "runtime", Refusal("void", event.void), event.at)
        if kept is not None:
            writes.append(Put(request_key(agent.host.session, request.id), kept.encode(), expected=row[1]))
    try:
        await agent.record(event, writes=writes, unless=unless)
    except Conflict as lost:
        await agent.host.refresh(lost.what)


async def _take_approval(agent: Agent, request: Request) -> None:
    commit = await commit_in(agent, request.id)
    await _record(agent, request, taken(request, _now(agent, commit)), partial(_waits_no_more, request.id))


async def _take_edited(agent: Agent, request: Request, given: Json) -> None:
    """A call that a person allowed with another input: that is held to the schema and the rules before it counts."""
    event = taken(request, _now(agent, asked=_digest(agent.state, request.id)))
    one = next((one for one in agent.state.calls if one.request_id == request.id), None)
    if one is not None and not event.void:
        told, why = await edited_by_person(agent, one.call, given)
        event = event.model_copy(update={"void": f"the input was changed, and {why}"} if why else {"input": told})
    await _record(agent, request, event, None if one is None else gone_from(one.call.id, "asking"))


def _waits_no_more(request_id: str, state: AgentState) -> bool:
    return (state.gate.gate, state.gate.request_id) != ("pending", request_id)


def _now(agent: Agent, commit: str = "", asked: str = "") -> Now:
    state = agent.state
    void = state.me.plan_moved_base == "void"
    folder = str(agent.host.ports.archive.folders(state.me).root)
    return Now(agent.host.clock.now(), tuple(state.tasks), commit, void, folder, asked)
