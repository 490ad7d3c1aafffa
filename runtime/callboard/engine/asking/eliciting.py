"""A question of an MCP server in the middle of a call: one durable request to the person, answered like any other.

The answer goes to the server and to nobody else: it never comes as mail, so the model does not see what the person
typed. The call waits for it; whoever ends the call takes the question back, and so does the next process where this
one died over it. It never raises: where nobody can answer, the person has declined.
"""

from __future__ import annotations

import anyio

from callboard.core.asking.requests import asked as put_up
from callboard.core.bus.authority import authority_of
from callboard.core.mcp.forms import asked_of, payload_of, read
from callboard.core.names import request_key, short_id
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.engine.supervision.leaving import request_withdrawn
from callboard.ports.store import Put
from callboard.words.errors import Conflict
from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.values import Request

_GONE = "the call that asked has ended"


async def elicit(agent: Agent, call: str, asked: Asked) -> AnsweredBack:
    """Ask the person, and wait for the answer until the deadline of questions."""
    state, wait = agent.state, agent.state.me.ask_deadline
    if wait == 0:
        return AnsweredBack("decline")
    now, host = agent.host.clock.now(), agent.host
    request = put_up(
        Request(
            id=_new_id(host, call),
            kind="question",
            asked_by=agent.name,
            incarnation=state.incarnation,
            may_answer=("person",),
            subject=f"the MCP server {asked.server} asks: {asked.message.strip().partition(chr(10))[0][:200]}",
            payload=payload_of(asked, call),
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
        with anyio.CancelScope(shield=True):
            await _taken_back(host, request.id)


async def _answered(agent: Agent, request_id: str) -> AnsweredBack:
    while (found := agent.host.board.request(request_id)) is not None and found[0].status == "pending":
        await agent.change()
    if found is None or found[0].status != "answered":
        return AnsweredBack("cancel")
    asked = asked_of(found[0])
    back = read(asked, found[0].reason) if asked is not None else ""
    return back if isinstance(back, AnsweredBack) else AnsweredBack("decline")


async def _taken_back(host: Host, request_id: str) -> None:
    """Nobody is left with a question that nobody waits for."""
    while writes := request_withdrawn(host, request_id, _GONE):
        try:
            await host.commit(*writes)
        except Conflict as lost:
            await host.refresh(lost.what)


async def take_back_orphans(host: Host, name: str) -> None:
    """Questions of servers whose calls died with the process that made them are asked no more."""
    mine = [one for one in host.board.requests() if one.asked_by == name and one.status == "pending"]
    for request in mine:
        if asked_of(request) is not None:
            await _taken_back(host, request.id)


def _new_id(host: Host, call: str) -> str:
    """A call may ask several times."""
    number = 0
    while host.board.request(found := short_id("req", call, "elicit", number)) is not None:
        number += 1
    return found
