"""The answer to a request, taken by its asker: what has changed round a plan or a call meanwhile is looked at first.

Refuses to judge: whether an approval counts is a rule (`core.plans`), and what is acted on stands in the event.
"""

from __future__ import annotations

from functools import partial

from callboard.core.plans import Now, taken
from callboard.core.state import AgentState
from callboard.engine.context import commit_in
from callboard.engine.loop import Agent
from callboard.words import steps as st
from callboard.words.values import Request


async def take_answer(agent: Agent, step: st.TakeAnswer) -> None:
    """Write an answer down: at once, or where a repository must be looked at for it, by an operation."""
    request = step.request
    assert request.status != "pending", "only an answered request is taken"
    if request.kind == "plan" and request.status == "approved" and request.payload.get("base"):
        agent.start(f"answer:{request.id}", partial(_take_approval, agent, request))
    else:
        await agent.record(taken(request, _now(agent)))


async def _take_approval(agent: Agent, request: Request) -> None:
    commit = await commit_in(agent, request.id)
    await agent.record(taken(request, _now(agent, commit)), unless=partial(_waits_no_more, request.id))


def _waits_no_more(request_id: str, state: AgentState) -> bool:
    return (state.gate.gate, state.gate.request_id) != ("pending", request_id)


def _now(agent: Agent, commit: str = "") -> Now:
    state = agent.state
    void = state.me.plan_moved_base == "void"
    folder = str(agent.host.ports.archive.folders(state.me).root)
    return Now(agent.host.clock.now(), tuple(state.tasks), commit, void, folder)
