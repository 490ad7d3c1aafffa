"""Question of an MCP server during a call: one durable request to the user, answered like any other.

Only the server gets the answer. It is never sent as mail, so the model does not see what the user typed. The call waits
for the answer. The end of the call withdraws the question; after a crash, the next process withdraws it. Nothing here
raises: if no one can answer, the server learns that the user declined.
"""

from __future__ import annotations

import anyio

from callboard.core.agent.authority import authority_of
from callboard.core.approvals.requests import open_request
from callboard.core.keys import request_key, short_id
from callboard.core.mcp.elicitation import payload_of, question_in, read
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.cleanup import request_withdrawn
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Put
from callboard.types.errors import Conflict
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Request

_GONE = "the call that asked has ended"


async def elicit(agent: AgentRuntime, call: str, question: Elicitation) -> ElicitationAnswer:
    """Ask the user and wait for the answer until the deadline of questions."""
    state = agent.state
    wait = agent.state.me.ask_deadline
    if wait == 0:
        return ElicitationAnswer("decline")
    now = agent.runtime.clock.now()
    runtime = agent.runtime
    request = open_request(
        Request(
            id=_new_id(runtime, call),
            kind="question",
            asked_by=agent.name,
            incarnation=state.identity.incarnation,
            may_answer=("person",),
            subject=f"the MCP server {question.server} asks: {question.message.strip().partition(chr(10))[0][:200]}",
            payload=payload_of(question, call),
            cause=authority_of(state),
            created_at=now,
            expires_at=None if wait is None else now + wait,
            person_only=True,
        )
    )
    try:
        await runtime.commit(Put(request_key(runtime.session, request.id), request.encode(), expected=0))
        return await _answered(agent, request.id)
    except Conflict:
        return ElicitationAnswer("decline")
    finally:
        # The call has ended, so the question is withdrawn (test_an_interrupt_takes_the_question_back).
        with anyio.CancelScope(shield=True):
            await _withdraw(runtime, request.id)


async def _answered(agent: AgentRuntime, request_id: str) -> ElicitationAnswer:
    while (match := agent.runtime.rows.request(request_id)) is not None and match[0].status == "pending":
        await agent.change()
    if match is None or match[0].status != "answered":
        return ElicitationAnswer("cancel")
    question = question_in(match[0])
    back = read(question, match[0].reason) if question is not None else ""
    return back if isinstance(back, ElicitationAnswer) else ElicitationAnswer("decline")


async def ask(agent: AgentRuntime, question: Request) -> str | None:
    """Put a question of the agent itself to the user and wait for the answer; None: nobody answered in time.

    A question that an earlier process has put is not put again.
    """
    runtime = agent.runtime
    question = open_request(question)
    try:
        if runtime.rows.request(question.id) is None:
            await runtime.commit(Put(request_key(runtime.session, question.id), question.encode(), expected=0))
        while (match := runtime.rows.request(question.id)) is not None and match[0].status == "pending":
            await agent.change()
    finally:
        with anyio.CancelScope(shield=True):
            await _withdraw(runtime, question.id)
    return match[0].reason if match is not None and match[0].status == "answered" else None


async def _withdraw(runtime: SessionRuntime, request_id: str) -> None:
    """Withdraw a question that nothing waits for."""
    while writes := request_withdrawn(runtime, request_id, _GONE):
        try:
            await runtime.commit(*writes)
        except Conflict as lost:
            await runtime.refresh(lost.what)


async def take_back_orphans(runtime: SessionRuntime, name: str) -> None:
    """Withdraw questions of servers whose calls died with their process."""
    own = [request for request in runtime.rows.requests() if request.asked_by == name and request.status == "pending"]
    for request in own:
        if question_in(request) is not None:
            await _withdraw(runtime, request.id)


def _new_id(runtime: SessionRuntime, call: str) -> str:
    """Return a new request id, because a call may ask several times."""
    number = 0
    while runtime.rows.request(request_id := short_id("req", call, "elicit", number)) is not None:
        number += 1
    return request_id
