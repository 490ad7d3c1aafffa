"""What the tools of `callboard mcp serve` do. Results are JSON's own types, as `schemas.py` declares them.

A client speaks for the person only where they said so (`--may-approve`): else an answer is refused with their own way.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, Literal

import anyio

from callboard.adapters.mcp.serving import Report
from callboard.core.asking.plans import Word
from callboard.desks.desk import Desk
from callboard.ending import exit_code_of
from callboard.engine.memory import recall
from callboard.engine.sessions import sessions_of
from callboard.faces.lines import lines_of
from callboard.faces.pages.cost import cost_json
from callboard.faces.pages.listings import find_request
from callboard.faces.pages.plan import request_json, told
from callboard.faces.pages.team import agent_json
from callboard.hosting_clients import ClientSessions, Hosted, Room
from callboard.words.errors import UsageError
from callboard.words.events import Event
from callboard.words.values import Json, Request

WAIT_S = 45.0
"""Seconds that `wait` waits if nothing else is said: clients give a call 60 s."""
VIA = "(through an MCP client)"
"""Stands with every answer that was given here, for whoever reads the history of a request."""

Status = Literal["approved", "rejected", "answered"]


def words_of(agent: str, event: Event) -> str:
    """An event as the one line that a client is shown as progress; empty: none."""
    found = lines_of(agent, event)
    lines = found.lines if found is not None else ()
    return next((f"{line.name or agent}: {line.text.strip()}" for line in lines if line.text.strip()), "")[:200]


class Tools:
    """One set for one server. Raises `CallboardError` for what a client or its person can mend."""

    def __init__(self, sessions: ClientSessions, *, may_approve: bool) -> None:
        self._sessions, self.may_approve = sessions, may_approve
        self._told: set[str] = set()
        """Requests that the client has been told of."""

    # Sessions

    async def run(self, given: Json, report: Report) -> Json:
        room = await self._sessions.room(_text(given, "workspace"))
        one = await self._sessions.start(room, _text(given, "prompt"), given.get("max_cost_usd"))
        await self._wait(one, float(given.get("wait_s", 0)), report)
        return await self._stands(room, one.session)

    async def wait(self, given: Json, report: Report) -> Json:
        room, desk = await self._desk(given)
        one = await self._sessions.seen(room, desk.session.id)
        if one is not None:
            await self._wait(one, float(given.get("wait_s", WAIT_S)), report)
        return await self._stands(room, desk.session.id)

    async def send(self, given: Json, report: Report) -> Json:
        room, desk = await self._desk(given)
        await desk.send(_text(given, "text"), _text(given, "to") or "lead")
        await self._sessions.go_on(room, desk.session.id)
        return await self._stands(room, desk.session.id)

    async def interrupt(self, given: Json, report: Report) -> Json:
        room, desk = await self._desk(given)
        hosted = await desk.host() is not None
        for one in await desk.team() if hosted else ():
            if one.name == "lead" or one.life in ("starting", "working", "waiting"):
                await desk.command("interrupt", to=one.name)
        return await self._stands(room, desk.session.id)

    async def _wait(self, one: Hosted, seconds: float, report: Report) -> None:
        """Until it rests, something new is asked, or the time is over. What happens is told meanwhile."""
        shown = 0
        with anyio.move_on_after(seconds):
            while one.open and not one.asked - self._told:
                if one.count != shown:
                    shown = one.count
                    await report(shown, one.line)
                    continue
                await one.until(partial(_moved, one, shown, self._told))

    # Looking

    async def status(self, given: Json, report: Report) -> Json:
        room, desk = await self._desk(given)
        return await self._stands(room, desk.session.id)

    async def sessions(self, given: Json, report: Report) -> Json:
        room = await self._sessions.room(_text(given, "workspace"))
        rows = await sessions_of(room.shared.store)
        return {
            "sessions": [
                {
                    "session": row.id,
                    "began": row.created_at,
                    "state": "open" if row.ended_at is None else "failed" if row.exit_code else "done",
                    "prompt": row.prompt,
                    "model": row.model,
                }
                for row in rows
            ]
        }

    async def plans(self, given: Json, report: Report) -> Json:
        _, desk = await self._desk(given)
        found = sorted(desk.requests(pending_only=not given.get("all")), key=lambda one: (one.created_at, one.id))
        self._told |= {one.id for one in found}
        return {"session": desk.session.id, "requests": [_asked(one) for one in found]}

    async def show(self, given: Json, report: Report) -> Json:
        _, desk = await self._desk(given)
        requests = desk.requests(pending_only=False)
        request = find_request(requests, _text(given, "request"))
        note = await desk.moved(request) if request.status == "pending" else ""
        return {"session": desk.session.id, "request": request_json(told(request, requests, note))}

    async def team(self, given: Json, report: Report) -> Json:
        _, desk = await self._desk(given)
        seen = await desk.agents.look()
        return {"session": desk.session.id, "agents": [agent_json(one) for one in seen.agents]}

    async def cost(self, given: Json, report: Report) -> Json:
        _, desk = await self._desk(given)
        return {"session": desk.session.id, "cost": cost_json(await desk.cost(), await desk.budgets())}

    # Answering

    async def approve(self, given: Json, report: Report) -> Json:
        return await self._answered(given, "approved", _text(given, "why"))

    async def reject(self, given: Json, report: Report) -> Json:
        return await self._answered(given, "rejected", _text(given, "why"))

    async def answer(self, given: Json, report: Report) -> Json:
        return await self._answered(given, "answered", _text(given, "text"))

    async def _answered(self, given: Json, status: Status, words: str) -> Json:
        room, desk = await self._desk(given)
        request = find_request(desk.requests(pending_only=False), _text(given, "request"))
        if not self.may_approve:
            way = f"{_command(room, desk, request, status)}. Ask the person to run it"
            raise UsageError(f"this server may not answer for the person: it has no --may-approve. Their way: {way}")
        if request.kind == "plan" and status == "rejected" and not words.strip():
            raise UsageError("a rejected plan needs `why`: say what is to change")
        digest = _text(given, "digest").lower()
        if not request.digest.startswith(digest):
            raise UsageError(f"{request.id}: its content has changed, or it is another digest: look at it with `show`")
        word = Word(int(given.get("option") or 0), "", request.digest if digest else "")
        reason = words if status == "answered" else f"{words} {VIA}".strip()
        refused = await desk.answer(request.id, status, reason, word)
        if refused is not None:
            raise UsageError(refused)
        await self._sessions.keep(room, desk.session.id)
        desk = await room.desk(desk.session.id)
        now = find_request(desk.requests(pending_only=False), request.id)
        note = await desk.moved(request) if status == "approved" else ""
        return {"session": desk.session.id, "request": _asked(now), "note": note}

    # How it stands

    async def _desk(self, given: Json) -> tuple[Room, Desk]:
        room = await self._sessions.room(_text(given, "workspace"))
        wanted = _text(given, "session") or self._sessions.newest.get(room.places.workspace)
        return room, await room.desk(wanted)

    async def _stands(self, room: Room, session: str) -> Json:
        desk = await room.desk(session)
        lead = next((one for one in desk.agents.seen().agents if one.row.name == "lead"), None)
        row = lead.row if lead is not None else None
        state = await recall(room.shared.store, session, "lead", row.incarnation) if row is not None else None
        host = await desk.host()
        pending = desk.requests()
        self._told |= {one.id for one in pending}
        cost = sum(one.usage.cost_usd for one in await desk.team())
        stands: Json = {
            "session": session,
            "workspace": str(room.places.workspace),
            "state": "waiting" if pending else "working",
            "host": host,
            "text": (state.turn.text if state.turn else state.last_text) if state is not None else "",
            "why": "",
            "exit_code": None,
            "cost_usd": round(cost, 6),
            "requests": [_asked(one) for one in pending],
        }
        mine = self._sessions.last(session)
        if host is None or (mine is not None and not mine.open):
            code, why = exit_code_of(row, state, desk.requests(pending_only=False))
            cut = desk.session.ended_at is None or (state is not None and state.turn is not None)
            end = mine.end if mine is not None else None
            code, why = (end.exit_code, end.why) if end is not None else (desk.session.exit_code or code, why)
            ended = {"state": "failed" if code else "done", "exit_code": code, "why": why}
            stands |= {"state": "stopped", "why": "it was cut short, and nobody hosts it"} if cut else ended
        if mine is not None and mine.fault is not None:
            stands |= {"why": str(mine.fault), "exit_code": mine.fault.exit_code}
        return {**stands, "next": self._next(room, desk, str(stands["state"]), pending)}

    def _next(self, room: Room, desk: Desk, state: str, pending: list[Request]) -> str:
        if state == "waiting" and not self.may_approve:
            ways = "; ".join(_command(room, desk, one, "approved") for one in pending[:3])
            return f"ask the person to answer in a terminal: {ways}. Then call wait"
        told = {
            "waiting": "put the requests to the person (`show` has them in full), then call approve, reject or answer",
            "working": "call wait, or do something else meanwhile",
            "done": "read text; send gives it more to do",
            "failed": "read why; send has it go on",
            "stopped": f"send has it go on, or the person runs: callboard resume {desk.session.id}",
        }
        return told[state]


def _moved(one: Hosted, before: int, told_of: set[str]) -> bool:
    return not one.open or one.count != before or bool(one.asked - told_of)


def _text(given: Json, name: str) -> str:
    return str(given.get(name) or "")


def _asked(one: Request) -> dict[str, Any]:
    return {
        "id": one.id,
        "kind": one.kind,
        "from": one.asked_by,
        "about": one.subject,
        "status": one.status,
        "digest": one.digest,
        "until": one.expires_at,
    }


def _command(room: Room, desk: Desk, request: Request, status: Status) -> str:
    """What the person types."""
    verbs: dict[Status, str] = {"approved": "approve", "rejected": "reject", "answered": "answer"}
    verb = "answer" if request.kind == "question" else verbs[status]
    more = {"answer": " 'TEXT'", "reject": " --why 'TEXT'"}.get(verb, "")
    where = f"-C {shlex.quote(str(room.places.workspace))} --session {desk.session.id}"
    return f"callboard {verb} {where} {request.id}{more}"
