"""Tools of `callboard mcp serve`. Results consist of JSON types, as this module declares them.

A client acts for the person only if the person allowed it (`--may-approve`). Otherwise an answer is refused, with the
command that the person can use.

Tools that `callboard mcp serve` offers: the name, description, input, result and effect of each.

Declares the input and the result of each tool as JSON schemas. Plain data.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Literal

import anyio

from callboard.adapters.mcp.server import Offered, Report
from callboard.cli.views.cost import cost_json
from callboard.cli.views.events import lines_of
from callboard.cli.views.requests import details_of, find_request, request_json
from callboard.cli.views.team import ended_json
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.engine.commands import sessions_of
from callboard.engine.recall import recall
from callboard.sessions.client_sessions import ClientSessions, Hosted, Room
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.resources import REQUESTS, SESSIONS, agent_record
from callboard.sessions.result import outcome_of
from callboard.types.errors import UsageError
from callboard.types.events import Event
from callboard.types.records import Json, Request

WAIT_S = 45.0
"""Default seconds that `wait` waits: clients give a call 60 s."""
VIA = "(through an MCP client)"
"""Note added to every answer given here, for readers of a request's history."""

Status = Literal["approved", "rejected", "answered"]


def words_of(agent: str, event: Event) -> str:
    """Return an event as one line of progress for a client; empty if it is not shown."""
    rendered = lines_of(agent, event)
    lines = rendered.lines if rendered is not None else ()
    return next((f"{line.name or agent}: {line.text.strip()}" for line in lines if line.text.strip()), "")[:200]


class Tools:
    """Tools of one server. Raises `CallboardError` for errors that a client or its person can fix."""

    def __init__(self, sessions: ClientSessions, *, may_approve: bool) -> None:
        self._sessions = sessions
        self.may_approve = may_approve
        self._told: set[str] = set()
        """Requests that the client already knows."""

    # Sessions

    async def run(self, arguments: Json, report: Report) -> Json:
        room = await self._sessions.room(_text(arguments, "workspace"))
        hosted = await self._sessions.start(room, _text(arguments, "prompt"), arguments.get("max_cost_usd"))
        await self._wait(hosted, float(arguments.get("wait_s", 0)), report)
        return await self._stands(room, hosted.session)

    async def wait(self, arguments: Json, report: Report) -> Json:
        room, handle = await self._handle(arguments)
        hosted = await self._sessions.seen(room, handle.id)
        if hosted is not None:
            await self._wait(hosted, float(arguments.get("wait_s", WAIT_S)), report)
        return await self._stands(room, handle.id)

    async def send(self, arguments: Json, report: Report) -> Json:
        room, handle = await self._handle(arguments)
        await handle.say(_text(arguments, "text"), _text(arguments, "to") or "lead")
        await self._sessions.go_on(room, handle.id)
        return await self._stands(room, handle.id)

    async def interrupt(self, arguments: Json, report: Report) -> Json:
        room, handle = await self._handle(arguments)
        hosted = await handle.host() is not None
        for agent in await handle.summaries() if hosted else ():
            if agent.name == "lead" or agent.life in ("starting", "working", "waiting"):
                await handle.command("interrupt", to=agent.name)
        return await self._stands(room, handle.id)

    async def _wait(self, hosted: Hosted, seconds: float, report: Report) -> None:
        """Wait until the session rests, a new request arrives, or the time is over. Progress is reported in the
        meantime."""
        reported = 0
        with anyio.move_on_after(seconds):
            while hosted.open and not hosted.asked - self._told:
                if hosted.count != reported:
                    reported = hosted.count
                    await report(reported, hosted.line)
                    continue
                await hosted.changed.until(partial(_moved, hosted, reported, self._told))

    # Looking

    async def status(self, arguments: Json, report: Report) -> Json:
        room, handle = await self._handle(arguments)
        return await self._stands(room, handle.id)

    async def sessions(self, arguments: Json, report: Report) -> Json:
        room = await self._sessions.room(_text(arguments, "workspace"))
        rows = await sessions_of(room.shared.store)
        return {"sessions": [SESSIONS.summarize(row) for row in rows]}

    async def plans(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        requests = sorted(
            handle.requests(pending_only=not arguments.get("all")), key=lambda request: (request.created_at, request.id)
        )
        self._told |= {request.id for request in requests}
        return {"session": handle.id, "requests": [REQUESTS.summarize(request) for request in requests]}

    async def show(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        requests = handle.requests(pending_only=False)
        request = find_request(requests, _text(arguments, "request"))
        note = await handle.moved(request) if request.status == "pending" else ""
        return {"session": handle.id, "request": request_json(details_of(request, requests, note))}

    async def team(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        seen = await handle.agents.look()
        ended = {"ended": ended_json(seen.ended)}
        return {"session": handle.id, "agents": [agent_record(agent) for agent in seen.agents], **ended}

    async def cost(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        return {"session": handle.id, "cost": cost_json(await handle.cost(), await handle.budgets())}

    # Answering

    async def approve(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "approved", _text(arguments, "why"))

    async def reject(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "rejected", _text(arguments, "why"))

    async def answer(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "answered", _text(arguments, "text"))

    async def _answered(self, arguments: Json, status: Status, text: str) -> Json:
        room, handle = await self._handle(arguments)
        request = find_request(handle.requests(pending_only=False), _text(arguments, "request"))
        if not self.may_approve:
            way = f"{_command(room, handle, request, status)}. Ask the person to run it"
            raise UsageError(f"this server may not answer for the person: it has no --may-approve. Their way: {way}")
        if request.kind == "plan" and status == "rejected" and not text.strip():
            raise UsageError("a rejected plan needs `why`: say what to change")
        digest = _text(arguments, "digest").lower()
        if not request.digest.startswith(digest):
            raise UsageError(f"{request.id}: its content has changed, or it is another digest: look at it with `show`")
        mode = _text(arguments, "mode")
        word = AnswerDetails(int(arguments.get("option") or 0), "", request.digest if digest else "", mode)
        reason = text if status == "answered" else f"{text} {VIA}".strip()
        refused = await handle.answer(request.id, status, reason, word=word)
        if refused is not None:
            raise UsageError(refused)
        await self._sessions.keep(room, handle.id)
        handle = await room.handle(handle.id)
        now = find_request(handle.requests(pending_only=False), request.id)
        note = await handle.moved(request) if status == "approved" else ""
        return {"session": handle.id, "request": REQUESTS.summarize(now), "note": note}

    # How it stands

    async def _handle(self, arguments: Json) -> tuple[Room, SessionHandle]:
        room = await self._sessions.room(_text(arguments, "workspace"))
        session = _text(arguments, "session") or self._sessions.newest.get(room.places.workspace)
        return room, await room.handle(session)

    async def _stands(self, room: Room, session: str) -> Json:
        handle = await room.handle(session)
        lead = next((agent for agent in handle.agents.seen().agents if agent.row.name == "lead"), None)
        row = lead.row if lead is not None else None
        state = await recall(room.shared.store, session, "lead", row.incarnation) if row is not None else None
        host = await handle.host()
        pending = handle.requests()
        self._told |= {request.id for request in pending}
        cost = sum(agent.usage.cost_usd for agent in await handle.summaries())
        stands: Json = {
            "session": session,
            "workspace": str(room.places.workspace),
            "state": "waiting" if pending else "working",
            "host": host,
            "text": (state.turn.text if state.turn else state.turns.last_text) if state is not None else "",
            "why": "",
            "exit_code": None,
            "cost_usd": round(cost, 6),
            "requests": [REQUESTS.summarize(request) for request in pending],
        }
        hosted = self._sessions.last(session)
        if host is None or (hosted is not None and not hosted.open):
            outcome = outcome_of(row, state, handle.requests(pending_only=False))
            code = outcome.exit_code
            reason = outcome.why
            cut = handle.row.ended_at is None or (state is not None and state.turn is not None)
            end = hosted.end if hosted is not None else None
            code, reason = (end.exit_code, end.reason) if end is not None else (handle.row.exit_code or code, reason)
            ended = {"state": "failed" if code else "done", "exit_code": code, "why": reason}
            stands |= {"state": "stopped", "why": "it was cut short, and no process hosts it"} if cut else ended
        if hosted is not None and hosted.fault is not None:
            stands |= {"why": str(hosted.fault), "exit_code": hosted.fault.exit_code}
        return {**stands, "next": self._next(room, handle, str(stands["state"]), pending)}

    def _next(self, room: Room, handle: SessionHandle, state: str, pending: list[Request]) -> str:
        if state == "waiting" and not self.may_approve:
            ways = "; ".join(_command(room, handle, request, "approved") for request in pending[:3])
            return f"ask the person to answer in a terminal: {ways}. Then call wait"
        steps = {
            "waiting": "put the requests to the person (`show` has them in full), then call approve, reject or answer",
            "working": "call wait, or do something else meanwhile",
            "done": "read text; send gives it more to do",
            "failed": "read why; send has it go on",
            "stopped": f"send has it go on, or the person runs: callboard resume {handle.id}",
        }
        return steps[state]


def _moved(hosted: Hosted, before: int, told_of: set[str]) -> bool:
    return not hosted.open or hosted.count != before or bool(hosted.asked - told_of)


def _text(arguments: Json, name: str) -> str:
    return str(arguments.get(name) or "")


def _command(room: Room, handle: SessionHandle, request: Request, status: Status) -> str:
    """Return the command for the person to type."""
    verbs: dict[Status, str] = {"approved": "approve", "rejected": "reject", "answered": "answer"}
    verb = "answer" if request.kind == "question" else verbs[status]
    suffix = {"answer": " 'TEXT'", "reject": " --why 'TEXT'"}.get(verb, "")
    where = f"-C {shlex.quote(str(room.places.workspace))} --session {handle.id}"
    return f"callboard {verb} {where} {request.id}{suffix}"


LONGEST_WAIT = 3_600
"""Seconds that one call may wait."""


def fields(*required: str, **properties: Json) -> Json:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, **extra: object) -> Json:
    """Return the schema of a text field."""
    return {"type": "string", "description": description, **extra}


def whole(description: str) -> Json:
    """Return the schema of an integer or null."""
    return {"type": ["integer", "null"], "description": description}


def rows(of: Json, description: str) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": of, "description": description}


def result(**properties: Json) -> Json:
    """Return the schema of a result with all of these fields; later versions may add more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


ANY: Json = {"type": "object"}

WORKSPACE = text("The folder that the session works in, one of those that are served. Leave it out for the usual one.")
SESSION = text("A session's id, or a beginning of it. Leave it out for the one that was started last.")
WAIT: Json = {
    "type": "number",
    "minimum": 0,
    "maximum": LONGEST_WAIT,
    "description": "Seconds to wait for the end, or for something that needs an answer; 0 returns at once. Progress is "
    "reported meanwhile. The session goes on when the time is over or the call is cancelled.",
}
REQUEST = text("The request's id, as `plans` tells it, or a beginning of it.", minLength=1)

ASKED = result(
    id=text("Its id, for show, approve, reject and answer."),
    kind=text("plan, permission or question."),
    **{"from": text("The agent that asks.")},
    about=text("In one line."),
    status=text("pending, or how it ended."),
    digest=text("Of its content: give it to approve, and only what you have seen is approved."),
    until={"type": ["number", "null"], "description": "When it ends in no (Unix seconds)."},
)

STANDS = result(
    session=text("The session's id."),
    workspace=text("The folder that it works in."),
    state=text(
        "working; waiting (something needs an answer, see `requests`); done; failed; stopped (cut short, and no "
        "process hosts it: `send` goes on with it).",
        enum=["working", "waiting", "done", "failed", "stopped"],
    ),
    host=whole("The process that hosts it now."),
    text=text("The lead's last words: the result, once the state is done."),
    why=text("What went wrong; empty when nothing did."),
    exit_code=whole(
        "As of `callboard run`: 0 done, 4 nobody answered, 5 budget or limit, 6 model service unavailable."
    ),
    cost_usd={"type": "number", "description": "What it cost so far."},
    requests=rows(ASKED, "What waits for an answer."),
    next=text("What to do now."),
)

LISTED = result(
    sessions=rows(
        result(
            session=text("Its id."),
            began={"type": "number", "description": "Unix seconds."},
            state=text("open, done or failed."),
            prompt=text("The first words of the person."),
            model=text("The lead's model."),
        ),
        "The newest first.",
    )
)


INSTRUCTIONS = """Callboard runs a lead agent and its team on a piece of work in a folder.
`run` starts a session and returns its id; `wait` returns when it is done, or when something waits for an answer;
`status` tells how it stands. Plans and permissions that wait are listed by `plans` and shown whole by `show`: put them
to the person. A session goes on when a call is cancelled, and `callboard resume` goes on with it when this server has
ended."""

_WHERE: dict[str, Json] = {"session": SESSION, "workspace": WORKSPACE}
_DOLLARS = {"type": "number", "minimum": 0, "description": "Dollars that the session may cost at most."}


def offers(tools: Tools) -> Sequence[Offered]:
    """Return all offered tools."""
    return (*_sessions(tools), *_looking(tools), *_requests(tools), *_answering(tools))


def _sessions(tools: Tools) -> Sequence[Offered]:
    prompt = text("What is to be done: the whole of it, the session knows nothing else.", minLength=1)
    message = text("The message.", minLength=1)
    to = text("The agent that it is for; the lead, if left out.")
    return (
        Offered(
            "run",
            "Run a prompt",
            "Start a session: a lead agent does what the prompt asks, with a team where that helps. It returns at once "
            "with the session's id, unless wait_s says otherwise.",
            fields("prompt", prompt=prompt, workspace=WORKSPACE, wait_s=WAIT, max_cost_usd=_DOLLARS),
            STANDS,
            tools.run,
            destructive=True,
        ),
        Offered(
            "wait",
            "Wait for a session",
            "Wait until a session is done or something of it needs an answer, for wait_s seconds at most (45, if left "
            "out); how it stands then. Ask again as often as it takes.",
            fields(**_WHERE, wait_s=WAIT),
            STANDS,
            tools.wait,
            reads=True,
        ),
        Offered(
            "send",
            "Send a message",
            "Say something to the lead of a session or to a teammate, as the person. One at work hears it at its next "
            "step; a session that rests goes on with it.",
            fields("text", text=message, to=to, **_WHERE),
            STANDS,
            tools.send,
            destructive=True,
        ),
        Offered(
            "interrupt",
            "Interrupt a session",
            "Stop what the lead and everybody at work do now. The session stays: `send` goes on with it.",
            fields(**_WHERE),
            STANDS,
            tools.interrupt,
            destructive=True,
            idempotent=True,
        ),
    )


def _looking(tools: Tools) -> Sequence[Offered]:
    return (
        Offered(
            "status",
            "The state of a session",
            "The state of a session: what it does, its last words, what waits for an answer, what it cost.",
            fields(**_WHERE),
            STANDS,
            tools.status,
            reads=True,
        ),
        Offered(
            "sessions",
            "List sessions",
            "The sessions of a workspace, also those that others started.",
            fields(workspace=WORKSPACE),
            LISTED,
            tools.sessions,
            reads=True,
        ),
        Offered(
            "team",
            "Show the team",
            "The agents of a session: what each does or waits for, its tokens and cost.",
            fields(**_WHERE),
            result(session=text("Its id."), agents=rows(ANY, "The lead first.")),
            tools.team,
            reads=True,
        ),
        Offered(
            "cost",
            "Show the cost",
            "What a session spent, by agent and by model, and its budgets.",
            fields(**_WHERE),
            result(session=text("Its id."), cost=ANY),
            tools.cost,
            reads=True,
        ),
    )


def _requests(tools: Tools) -> Sequence[Offered]:
    every = {"type": "boolean", "description": "Also show answered requests."}
    return (
        Offered(
            "plans",
            "What waits for an answer",
            "The plans, permissions and questions of a session that wait for an answer, the oldest first.",
            fields(all=every, **_WHERE),
            result(session=text("Its id."), requests=rows(ASKED, "The oldest first.")),
            tools.plans,
            reads=True,
        ),
        Offered(
            "show",
            "Show a request in full",
            "One plan, permission or question in full: its text, options, what differs from its last revision.",
            fields("request", request=REQUEST, **_WHERE),
            result(session=text("Its id."), request=ANY),
            tools.show,
            reads=True,
        ),
    )


def _answering(tools: Tools) -> Sequence[Offered]:
    digest = text("As `show` or `plans` tells it: only this content is approved. Leave it out to take what is there.")
    option = {"type": "integer", "minimum": 1, "description": "Choose this option of a plan."}
    mode = {"type": "string", "enum": list(PLAN_MODES), "description": "The permission mode to carry a plan out in."}
    reason = text("Message to the agent.")
    instead = text("Reason, or what the agent should do instead; required for a plan.")
    condition = (
        "for the person: only when they have said so to you, and only if the server was started with --may-approve."
        if tools.may_approve
        else "for the person. This server was started without --may-approve: it refuses, and tells the person's way."
    )
    done = result(session=text("Its id."), request=ASKED, note=text("What else to know."))
    return (
        Offered(
            "approve",
            "Approve a plan or allow a tool",
            f"Approve a plan or allow a tool {condition}",
            fields("request", request=REQUEST, option=option, mode=mode, digest=digest, why=reason, **_WHERE),
            done,
            tools.approve,
            destructive=True,
        ),
        Offered(
            "reject",
            "Reject a plan or refuse a tool",
            f"Reject a plan or refuse a tool {condition}",
            fields("request", request=REQUEST, why=instead, **_WHERE),
            done,
            tools.reject,
        ),
        Offered(
            "answer",
            "Answer a question",
            f"Answer an agent's question {condition}",
            fields("request", "text", request=REQUEST, text=text("What it reads.", minLength=1), **_WHERE),
            done,
            tools.answer,
        ),
    )
