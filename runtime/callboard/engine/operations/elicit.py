"""Question of an MCP server during a call: one durable request to the user, answered like any other.

Only the server gets the answer. It is never sent as mail, so the model does not see what the user typed. The call waits
for the answer. Ending the call withdraws the question; if the process died, the next process does so. Never raises: if
no one can answer, the answer is that the user declined.
"""

from __future__ import annotations

import anyio

from callboard.core.agent.authority import authority_of
from callboard.core.approvals.requests import open_request
from callboard.core.keys import request_key, short_id
from callboard.core.mcp.elicitation import asked_of, payload_of, read
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.cleanup import request_withdrawn
from callboard.engine.runtime import Host
from callboard.ports.store import Put
from callboard.types.errors import Conflict
from callboard.types.mcp import AnsweredBack, Elicitation
from callboard.types.records import Request

_GONE = "the call that asked has ended"


async def elicit(agent: AgentRuntime, call: str, question: Elicitation) -> AnsweredBack:
    """Ask the user and wait for the answer until the deadline of questions."""
    state = agent.state
    wait = agent.state.me.ask_deadline
    if wait == 0:
        return AnsweredBack("decline")
    now = agent.host.clock.now()
    host = agent.host
    request = open_request(
        Request(
            id=_new_id(host, call),
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
        await host.commit(Put(request_key(host.session, request.id), request.encode(), expected=0))
        return await _answered(agent, request.id)
    except Conflict:
        return AnsweredBack("decline")
    finally:
        # Nobody waits for the answer any more, so the question must go (test_an_interrupt_takes_the_question_back).
        with anyio.CancelScope(shield=True):
            await _taken_back(host, request.id)


async def _answered(agent: AgentRuntime, request_id: str) -> AnsweredBack:
    while (match := agent.host.board.request(request_id)) is not None and match[0].status == "pending":
        await agent.change()
    if match is None or match[0].status != "answered":
        return AnsweredBack("cancel")
    question = asked_of(match[0])
    back = read(question, match[0].reason) if question is not None else ""
    return back if isinstance(back, AnsweredBack) else AnsweredBack("decline")


async def _taken_back(host: Host, request_id: str) -> None:
    """Withdraw a question that nothing waits for."""
    while writes := request_withdrawn(host, request_id, _GONE):
        try:
            await host.commit(*writes)
        except Conflict as lost:
            await host.refresh(lost.what)


async def take_back_orphans(host: Host, name: str) -> None:
    """Withdraw questions of servers whose calls died with their process."""
    own = [request for request in host.board.requests() if request.asked_by == name and request.status == "pending"]
    for request in own:
        if asked_of(request) is not None:
            await _taken_back(host, request.id)


def _new_id(host: Host, call: str) -> str:
    """Return a new request id, because a call may ask several times."""
    number = 0
    while host.board.request(request_id := short_id("req", call, "elicit", number)) is not None:
        number += 1
    return request_id
