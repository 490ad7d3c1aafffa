"""Tools of `callboard mcp serve`: the name, description, input, result and effect of each.

Inputs and results are JSON types, declared here as JSON schemas. A client acts for the person only if the person
allowed it (`--may-approve`). Otherwise an answer is refused, with the command that the person can use.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial, reduce
from typing import Literal

import anyio

from callboard.adapters.mcp.server import OfferedTool, Report
from callboard.cli.views.cost import cost_json
from callboard.cli.views.events import lines_of
from callboard.cli.views.requests import details_of, find_request, request_json
from callboard.cli.views.team import ended_json
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.engine.commands import sessions_of
from callboard.engine.recall import recall
from callboard.sessions.client_sessions import ClientSession, ClientSessions, SharedWorkspace
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.resources import REQUESTS, SESSIONS, agent_record
from callboard.sessions.result import outcome_of
from callboard.types.errors import UsageError
from callboard.types.events import Event
from callboard.types.records import Json, Request, Usage

WAIT_S = 45.0
"""Default seconds of `wait`: clients give a call 60 s."""
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
        self._reported: set[str] = set()
        """Ids of the requests that the client already knows."""

    # Sessions

    async def run(self, arguments: Json, report: Report) -> Json:
        workspace = await self._sessions.open_workspace(_text(arguments, "workspace"))
        hosted = await self._sessions.start(workspace, _text(arguments, "prompt"), arguments.get("max_cost_usd"))
        await self._wait(hosted, float(arguments.get("wait_s", 0)), report)
        return await self._session_state(workspace, hosted.session)

    async def wait(self, arguments: Json, report: Report) -> Json:
        workspace, handle = await self._handle(arguments)
        hosted = await self._sessions.find(workspace, handle.id)
        if hosted is not None:
            await self._wait(hosted, float(arguments.get("wait_s", WAIT_S)), report)
        return await self._session_state(workspace, handle.id)

    async def send(self, arguments: Json, report: Report) -> Json:
        workspace, handle = await self._handle(arguments)
        await handle.say(_text(arguments, "text"), _text(arguments, "to") or "lead")
        await self._sessions.process_input(workspace, handle.id)
        return await self._session_state(workspace, handle.id)

    async def interrupt(self, arguments: Json, report: Report) -> Json:
        workspace, handle = await self._handle(arguments)
        hosted = await handle.host() is not None
        for agent in await handle.summaries() if hosted else ():
            if agent.name == "lead" or agent.life in ("starting", "working", "waiting"):
                await handle.command("interrupt", to=agent.name)
        return await self._session_state(workspace, handle.id)

    async def _wait(self, hosted: ClientSession, seconds: float, report: Report) -> None:
        """Wait until the session rests, a new request arrives, or the time is over. Reports progress while waiting."""
        reported = 0
        with anyio.move_on_after(seconds):
            while hosted.open and not hosted.waiting_requests - self._reported:
                if hosted.line_count != reported:
                    reported = hosted.line_count
                    await report(reported, hosted.last_line)
                    continue
                await hosted.changed.until(partial(_has_news, hosted, reported, self._reported))

    # Queries

    async def status(self, arguments: Json, report: Report) -> Json:
        workspace, handle = await self._handle(arguments)
        return await self._session_state(workspace, handle.id)

    async def sessions(self, arguments: Json, report: Report) -> Json:
        workspace = await self._sessions.open_workspace(_text(arguments, "workspace"))
        rows = await sessions_of(workspace.shared.store)
        return {"sessions": [SESSIONS.summarize(row) for row in rows]}

    async def plans(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        requests = sorted(
            handle.requests(pending_only=not arguments.get("all")), key=lambda request: (request.created_at, request.id)
        )
        self._reported |= {request.id for request in requests}
        return {"session": handle.id, "requests": [REQUESTS.summarize(request) for request in requests]}

    async def show(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        requests = handle.requests(pending_only=False)
        request = find_request(requests, _text(arguments, "request"))
        note = await handle.commit_change(request) if request.status == "pending" else ""
        return {"session": handle.id, "request": request_json(details_of(request, requests, note))}

    async def team(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        team = await handle.agents.look()
        ended = {"ended": ended_json(team.ended)}
        return {"session": handle.id, "agents": [agent_record(agent) for agent in team.agents], **ended}

    async def cost(self, arguments: Json, report: Report) -> Json:
        _, handle = await self._handle(arguments)
        return {"session": handle.id, "cost": cost_json(await handle.cost(), await handle.budgets())}

    # Answers

    async def approve(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "approved", _text(arguments, "why"))

    async def reject(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "rejected", _text(arguments, "why"))

    async def answer(self, arguments: Json, report: Report) -> Json:
        return await self._answered(arguments, "answered", _text(arguments, "text"))

    async def _answered(self, arguments: Json, status: Status, text: str) -> Json:
        workspace, handle = await self._handle(arguments)
        request = find_request(handle.requests(pending_only=False), _text(arguments, "request"))
        if not self.may_approve:
            command = f"{_command(workspace, handle, request, status)}. Ask the person to run it"
            raise UsageError(f"this server may not answer for the person (no --may-approve). Their command: {command}")
        if request.kind == "plan" and status == "rejected" and not text.strip():
            raise UsageError("a rejected plan needs `why`: say what to change")
        digest = _text(arguments, "digest").lower()
        if not request.digest.startswith(digest):
            raise UsageError(f"{request.id}: its content has changed, or the digest is wrong: read it with `show`")
        mode = _text(arguments, "mode")
        details = AnswerDetails(int(arguments.get("option") or 0), "", request.digest if digest else "", mode)
        reason = text if status == "answered" else f"{text} {VIA}".strip()
        refused = await handle.answer(request.id, status, reason, word=details)
        if refused is not None:
            raise UsageError(refused)
        await self._sessions.ensure_hosted(workspace, handle.id)
        handle = await workspace.handle(handle.id)
        now = find_request(handle.requests(pending_only=False), request.id)
        note = await handle.commit_change(request) if status == "approved" else ""
        return {"session": handle.id, "request": REQUESTS.summarize(now), "note": note}

    # State

    async def _handle(self, arguments: Json) -> tuple[SharedWorkspace, SessionHandle]:
        workspace = await self._sessions.open_workspace(_text(arguments, "workspace"))
        session = _text(arguments, "session") or self._sessions.newest.get(workspace.places.workspace)
        return workspace, await workspace.handle(session)

    async def _session_state(self, workspace: SharedWorkspace, session: str) -> Json:
        """Return the state of a session, as a client gets it (`SESSION_STATE`)."""
        handle = await workspace.handle(session)
        lead = next((agent for agent in handle.agents.overview().agents if agent.row.name == "lead"), None)
        row = lead.row if lead is not None else None
        state = await recall(workspace.shared.store, session, "lead", row.incarnation) if row is not None else None
        host = await handle.host()
        pending = handle.requests()
        self._reported |= {request.id for request in pending}
        used = reduce(Usage.plus, (agent.usage for agent in await handle.summaries()), Usage())
        cost = used.stated_cost
        result: Json = {
            "session": session,
            "workspace": str(workspace.places.workspace),
            "state": "waiting" if pending else "working",
            "host": host,
            "text": (state.turn.text if state.turn else state.turns.last_text) if state is not None else "",
            "why": "",
            "exit_code": None,
            "cost_usd": None if cost is None else round(cost, 6),
            "requests": [REQUESTS.summarize(request) for request in pending],
        }
        hosted = self._sessions.find_hosted(session)
        if host is None or (hosted is not None and not hosted.open):
            outcome = outcome_of(row, state, handle.requests(pending_only=False))
            code = outcome.exit_code
            reason = outcome.why
            interrupted = handle.row.ended_at is None or (state is not None and state.turn is not None)
            end = hosted.end if hosted is not None else None
            code, reason = (end.exit_code, end.reason) if end is not None else (handle.row.exit_code or code, reason)
            if interrupted:
                result |= {"state": "stopped", "why": "it was interrupted, and no process hosts it"}
            else:
                result |= {"state": "failed" if code else "done", "exit_code": code, "why": reason}
        if hosted is not None and hosted.fault is not None:
            result |= {"why": str(hosted.fault), "exit_code": hosted.fault.exit_code}
        return {**result, "next": self._next(workspace, handle, str(result["state"]), pending)}

    def _next(self, workspace: SharedWorkspace, handle: SessionHandle, state: str, pending: list[Request]) -> str:
        if state == "waiting" and not self.may_approve:
            commands = "; ".join(_command(workspace, handle, request, "approved") for request in pending[:3])
            return f"ask the person to answer in a terminal: {commands}. Then call wait"
        steps = {
            "waiting": "show the requests to the person (`show` has them in full), then call approve, reject or answer",
            "working": "call wait, or do something else in the meantime",
            "done": "read text; call send to continue",
            "failed": "read why; call send to continue",
            "stopped": f"call send to continue, or the person runs: callboard resume {handle.id}",
        }
        return steps[state]


def _has_news(hosted: ClientSession, reported_lines: int, reported_requests: set[str]) -> bool:
    new_request = bool(hosted.waiting_requests - reported_requests)
    return not hosted.open or hosted.line_count != reported_lines or new_request


def _text(arguments: Json, name: str) -> str:
    return str(arguments.get(name) or "")


def _command(workspace: SharedWorkspace, handle: SessionHandle, request: Request, status: Status) -> str:
    """Return the command for the person to type."""
    verbs: dict[Status, str] = {"approved": "approve", "rejected": "reject", "answered": "answer"}
    verb = "answer" if request.kind == "question" else verbs[status]
    suffix = {"answer": " 'TEXT'", "reject": " --why 'TEXT'"}.get(verb, "")
    where = f"-C {shlex.quote(str(workspace.places.workspace))} --session {handle.id}"
    return f"callboard {verb} {where} {request.id}{suffix}"


LONGEST_WAIT = 3_600
"""Longest wait of one call, in seconds."""


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


def integer_or_null(description: str) -> Json:
    """Return the schema of an integer or null."""
    return {"type": ["integer", "null"], "description": description}


def rows(of: Json, description: str) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": of, "description": description}


def result(**properties: Json) -> Json:
    """Return the schema of a result with all of these fields; later versions may add more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


ANY: Json = {"type": "object"}

WORKSPACE = text("Folder of the session, one of the served folders. Default: the first served folder.")
SESSION = text("Id of the session, or a prefix of it. Default: the session that was started last.")
WAIT: Json = {
    "type": "number",
    "minimum": 0,
    "maximum": LONGEST_WAIT,
    "description": "Seconds to wait for the end, or for something that needs an answer; 0 returns at once. Progress is "
    "reported during the wait. The session continues when the time is over or the call is cancelled.",
}
REQUEST = text("Id of the request, from `plans`, or a prefix of it.", minLength=1)

REQUEST_SUMMARY = result(
    id=text("Id for show, approve, reject and answer."),
    kind=text("plan, permission or question."),
    **{"from": text("Agent that asks.")},
    about=text("Subject in one line."),
    status=text("pending, or the outcome."),
    digest=text("Digest of the content. Pass it to approve, so that only the content that you have seen is approved."),
    until={"type": ["number", "null"], "description": "Time of its expiry (Unix seconds)."},
)

SESSION_STATE = result(
    session=text("Id of the session."),
    workspace=text("Folder of the session."),
    state=text(
        "working; waiting (something needs an answer, see `requests`); done; failed; stopped (cut short, and no "
        "process hosts it: `send` continues it).",
        enum=["working", "waiting", "done", "failed", "stopped"],
    ),
    host=integer_or_null("Process that hosts the session now."),
    text=text("The lead's final text: the result, once the state is done."),
    why=text("Reason of the failure; empty if there is none."),
    exit_code=integer_or_null(
        "Exit code of `callboard run`: 0 done, 4 no one answered, 5 budget or limit, 6 model service unavailable."
    ),
    cost_usd={"type": "number", "description": "Cost so far, in US dollars."},
    requests=rows(REQUEST_SUMMARY, "Requests that wait for an answer."),
    next=text("Recommended next step."),
)

LISTED = result(
    sessions=rows(
        result(
            session=text("Its id."),
            began={"type": "number", "description": "Unix seconds."},
            state=text("open, done or failed."),
            prompt=text("First prompt of the person."),
            model=text("The lead's model."),
        ),
        "Sessions, newest first.",
    )
)


INSTRUCTIONS = """Callboard runs a lead agent and its team on a piece of work in a folder.
`run` starts a session and returns its id; `wait` returns when it is done, or when something waits for an answer;
`status` returns its state. `plans` lists waiting plans and permissions, and `show` shows one in full: put them
to the person. A session continues when a call is cancelled, and `callboard resume` continues it when this server has
ended."""

_WHERE: dict[str, Json] = {"session": SESSION, "workspace": WORKSPACE}
_DOLLARS = {"type": "number", "minimum": 0, "description": "Cost limit of the session, in US dollars."}


def offers(tools: Tools) -> Sequence[OfferedTool]:
    """Return all offered tools."""
    return (*_sessions(tools), *_looking(tools), *_requests(tools), *_answering(tools))


def _sessions(tools: Tools) -> Sequence[OfferedTool]:
    prompt = text("The complete task: the session knows nothing else.", minLength=1)
    message = text("The message.", minLength=1)
    to = text("Agent that receives the message. Default: the lead.")
    return (
        OfferedTool(
            "run",
            "Run a prompt",
            "Start a session: a lead agent does what the prompt asks, with a team if that helps. Returns at once "
            "with the session's id, unless wait_s is given.",
            fields("prompt", prompt=prompt, workspace=WORKSPACE, wait_s=WAIT, max_cost_usd=_DOLLARS),
            SESSION_STATE,
            tools.run,
            destructive=True,
        ),
        OfferedTool(
            "wait",
            "Wait for a session",
            "Wait until a session is done or needs an answer, for at most wait_s seconds (default: 45), "
            "and return its state. Repeat as often as necessary.",
            fields(**_WHERE, wait_s=WAIT),
            SESSION_STATE,
            tools.wait,
            reads=True,
        ),
        OfferedTool(
            "send",
            "Send a message",
            "Send a message to the lead of a session or to a teammate, as the person. A working agent reads it at its "
            "next step; a session at rest continues with it.",
            fields("text", text=message, to=to, **_WHERE),
            SESSION_STATE,
            tools.send,
            destructive=True,
        ),
        OfferedTool(
            "interrupt",
            "Interrupt a session",
            "Stop the current work of the lead and of all working agents. The session stays: `send` continues it.",
            fields(**_WHERE),
            SESSION_STATE,
            tools.interrupt,
            destructive=True,
            idempotent=True,
        ),
    )


def _looking(tools: Tools) -> Sequence[OfferedTool]:
    return (
        OfferedTool(
            "status",
            "The state of a session",
            "Return the state of a session: its activity, the lead's final text, waiting requests, and cost.",
            fields(**_WHERE),
            SESSION_STATE,
            tools.status,
            reads=True,
        ),
        OfferedTool(
            "sessions",
            "List sessions",
            "Return the sessions of a workspace, including those that others started.",
            fields(workspace=WORKSPACE),
            LISTED,
            tools.sessions,
            reads=True,
        ),
        OfferedTool(
            "team",
            "Show the team",
            "Return the agents of a session: activity or wait, tokens and cost.",
            fields(**_WHERE),
            result(session=text("Its id."), agents=rows(ANY, "The lead first.")),
            tools.team,
            reads=True,
        ),
        OfferedTool(
            "cost",
            "Show the cost",
            "Return the spending of a session, by agent and by model, and its budgets.",
            fields(**_WHERE),
            result(session=text("Its id."), cost=ANY),
            tools.cost,
            reads=True,
        ),
    )


def _requests(tools: Tools) -> Sequence[OfferedTool]:
    every = {"type": "boolean", "description": "Also show answered requests."}
    return (
        OfferedTool(
            "plans",
            "List waiting requests",
            "Return the plans, permissions and questions of a session that wait for an answer, oldest first.",
            fields(all=every, **_WHERE),
            result(session=text("Its id."), requests=rows(REQUEST_SUMMARY, "The oldest first.")),
            tools.plans,
            reads=True,
        ),
        OfferedTool(
            "show",
            "Show a request in full",
            "Return one plan, permission or question in full: text, options, differences from the previous revision.",
            fields("request", request=REQUEST, **_WHERE),
            result(session=text("Its id."), request=ANY),
            tools.show,
            reads=True,
        ),
    )


def _answering(tools: Tools) -> Sequence[OfferedTool]:
    digest = text("Digest from `show` or `plans`: only this content is approved. Default: the current content.")
    option = {"type": "integer", "minimum": 1, "description": "Choose this option of a plan."}
    mode = {"type": "string", "enum": list(PLAN_MODES), "description": "Permission mode for carrying out the plan."}
    reason = text("Message to the agent.")
    instead = text("Reason, or what the agent should do instead; required for a plan.")
    condition = (
        "for the person: only if they told you to, and only if the server was started with --may-approve."
        if tools.may_approve
        else "for the person. This server was started without --may-approve: it returns the command for the person."
    )
    done = result(session=text("Its id."), request=REQUEST_SUMMARY, note=text("Additional information."))
    return (
        OfferedTool(
            "approve",
            "Approve a plan or allow a tool",
            f"Approve a plan or allow a tool {condition}",
            fields("request", request=REQUEST, option=option, mode=mode, digest=digest, why=reason, **_WHERE),
            done,
            tools.approve,
            destructive=True,
        ),
        OfferedTool(
            "reject",
            "Reject a plan or refuse a tool",
            f"Reject a plan or refuse a tool {condition}",
            fields("request", request=REQUEST, why=instead, **_WHERE),
            done,
            tools.reject,
        ),
        OfferedTool(
            "answer",
            "Answer a question",
            f"Answer an agent's question {condition}",
            fields("request", "text", request=REQUEST, text=text("Text for the agent.", minLength=1), **_WHERE),
            done,
            tools.answer,
        ),
    )
