"""Requests of a client to a running session: one function for each subtype of `control_request`.

An impossible request is refused with a reason; none is ignored silently.

The other way, `ClientApprover` puts permissions, plans and questions to the client by `can_use_tool`, in place of the
user. A call that the client allows with another input is checked again before it runs. A client that is gone, fails or
answers unreadably has denied the call.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, cast

import anyio

from callboard.cli.headless.client import Client, ClientGone, ClientRefused
from callboard.cli.headless.messages import server_told
from callboard.cli.terminal.plan_editor import approval
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.core.approvals.session_rules import Always, offered
from callboard.core.hooks.payloads import compatible_name, from_compatible, to_compatible
from callboard.core.mcp.elicitation import Field, asked_of, fields_of, read
from callboard.core.permissions.claude_updates import mode_of, rules_of, suggestions_of
from callboard.core.permissions.rules import parse_rule
from callboard.ports.environment import Answer
from callboard.ports.mcp import Servers
from callboard.sessions.hosted import HostedSession
from callboard.types.errors import UsageError
from callboard.types.mcp import AnsweredBack, Elicitation, ServerNow
from callboard.types.records import Json, Request, ToolCall


@dataclass(slots=True)
class Control:
    """Parts of the run that a client's requests may use."""

    session: HostedSession
    stop: Callable[[], Awaitable[None]]
    """Function that ends the current turn."""
    drop: Callable[[], Sequence[str]]
    """Function that drops the waiting messages and returns their ids."""
    queued: Callable[[], Sequence[str]]
    """Function that returns the ids of the waiting messages."""
    tell: Callable[..., None]
    """Function that sends a `system` message: its subtype and fields."""
    first_model: str
    """The model at the start."""
    may_bypass: bool
    """True if the command line allowed the mode `bypassPermissions`."""

    async def do(self, request: Json) -> Json:
        """Perform a request and return the response. Raises `UsageError` for a refused one."""
        kind = request.get("subtype")
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            names = ", ".join(("initialize", *_HANDLERS))
            raise UsageError(f"there is no control request {kind!r}; there are: {names}")
        return await handler(self, request)

    async def interrupt(self, request: Json) -> Json:
        """End the turn. `cancel_queued`: also drop the waiting messages."""
        cancelled = list(self.drop()) if request.get("cancel_queued") is True else None
        await self.stop()
        response: Json = {"still_queued": list(self.queued())}
        return response if cancelled is None else {**response, "cancelled": cancelled}

    async def set_permission_mode(self, request: Json) -> Json:
        """Change the permission mode of the lead."""
        mode = await self.session.use_mode(str(request.get("mode")), may_bypass=self.may_bypass)
        self.tell("status", status=None, permissionMode=mode)
        return {"mode": mode}

    async def set_model(self, request: Json) -> Json:
        """Switch the model from the next call on."""
        model = request.get("model")
        name = self.first_model if model in (None, "default") else model
        if not isinstance(name, str):
            raise UsageError("`model` is a model's name, or null for the one at the start")
        await self.session.use_model(name)
        return {"model": name}

    async def stop_task(self, request: Json) -> Json:
        """End a working agent."""
        name = str(request.get("task_id"))
        if name == "lead" or all(agent.name != name for agent in self.session.team()):
            raise UsageError(f"there is no agent {name!r} that could be stopped; a command is stopped by its agent")
        await self.session.command("stop", to=name)
        return {}

    async def mcp_status(self, _: Json) -> Json:
        """Return the current state of the MCP servers."""
        servers = self.session.servers
        return {"mcpServers": [_told_now(now) for now in servers.now()] if servers is not None else []}

    async def mcp_reconnect(self, request: Json) -> Json:
        """Reconnect a server."""
        await self._servers().connect(_server_in(request))
        return {}

    async def mcp_toggle(self, request: Json) -> Json:
        """Switch a server off, or on again."""
        servers = self._servers()
        name = _server_in(request)
        await (servers.switch_off(name) if request.get("enabled") is False else servers.connect(name))
        return {}

    async def mcp_message(self, request: Json) -> Json:
        """Handle a message that a server of the client sends by itself: its list has changed."""
        message: Any = request.get("message")
        method = str(cast("Json", message).get("method")) if isinstance(message, dict) else ""
        if method.endswith("/list_changed"):
            await self._servers().connect(str(request.get("server_name") or request.get("serverName")))
        return {}

    def _servers(self) -> Servers:
        if self.session.servers is None:
            raise UsageError("this session has no MCP servers")
        return self.session.servers

    async def get_context_usage(self, _: Json) -> Json:
        """Return the content of the lead's window by source."""
        window = (await self.session.context("lead")).window
        parts = [
            {"name": part.tool or part.source, "tokens": part.tokens, "color": "inactive"} for part in window.parts
        ]
        percentage = round(100 * window.used / window.window, 1) if window.window else 0.0
        return {
            "categories": parts,
            "totalTokens": window.used,
            "maxTokens": window.budget,
            "rawMaxTokens": window.window,
            "percentage": percentage,
            "model": window.model,
            "isAutoCompactEnabled": True,
            "memoryFiles": [],
            "mcpTools": [],
            "agents": [],
            "gridRows": [],
        }


def _server_in(request: Json) -> str:
    name = request.get("serverName")
    if not isinstance(name, str):
        raise UsageError("`serverName` is the name of an MCP server")
    return name


def _told_now(now: ServerNow) -> Json:
    """Return a server with its tools, and the reason if it is unavailable."""
    server: Json = {**server_told(now), "scope": now.scope, "tools": [{"name": name} for name in now.tools]}
    name, _, version = now.version.rpartition(" ")
    about = {"serverInfo": {"name": name or now.version, "version": version}} if now.version else {}
    return {**server, **about, **({"error": now.why} if now.why else {})}


def _never(reason: str) -> Callable[[Control, Json], Awaitable[Json]]:
    async def refuse(_: Control, __: Json) -> Json:
        raise UsageError(reason)

    return refuse


_HANDLERS: Mapping[str, Callable[[Control, Json], Awaitable[Any]]] = MappingProxyType(
    {
        "interrupt": Control.interrupt,
        "set_permission_mode": Control.set_permission_mode,
        "set_model": Control.set_model,
        "stop_task": Control.stop_task,
        "mcp_status": Control.mcp_status,
        "get_context_usage": Control.get_context_usage,
        "mcp_reconnect": Control.mcp_reconnect,
        "mcp_toggle": Control.mcp_toggle,
        "mcp_message": Control.mcp_message,
        "rewind_files": _never("files are not put back: what agents changed is in git, or in `callboard worktrees`"),
        "register_repo_root": _never("a session works in one workspace: start another with --cwd"),
    }
)


GONE = "the client that would have answered is gone"
_TOOLS = {"plan": "submit_plan", "question": "ask_person"}


class Calls(Protocol):
    """Calls of the session that an approver looks up."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """Return a running tool call of an agent, by its internal id."""
        ...


class ClientApprover:
    """Approver that asks the client everything that the user may answer."""

    def __init__(self, client: Client, reporter: Callable[[str], None], stop: Callable[[], None]) -> None:
        """Create an approver. `reporter`: receives each ignored part of an answer. `stop`: ends the turn if an answer
        says so."""
        self._client = client
        self._told = reporter
        self._stop = stop
        self._calls: Calls | None = None
        self._attached = anyio.Event()

    def attach(self, calls: Calls) -> None:
        """Set the open session, whose calls can now be looked up."""
        self._calls = calls
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """See `Approver.answer`."""
        if "person" not in request.may_answer or request.kind == "shutdown":
            return None
        await self._attached.wait()
        call = self._calls.call(request.asked_by, str(request.payload.get("call_id"))) if self._calls else None
        try:
            response = await self._client.ask(question_of(request, call.use_id if call else request.id))
        except ClientGone:
            return _no(request, GONE)
        except ClientRefused as refused:
            return _no(request, f"the client could not answer: {refused}")
        if response.get("behavior") == "deny":
            if response.get("interrupt") is True:
                self._stop()  # begun when the answer is written
            return _no(request, str(response.get("message") or ""))
        if response.get("behavior") != "allow":
            return _no(request, "the client answered neither `allow` nor `deny`")
        updated = _object(response.get("updatedInput"))
        if request.kind == "permission":
            return self._permission(request, updated, response.get("updatedPermissions"))
        if (form := asked_of(request)) is not None:
            return _filled_in(form, updated)
        if request.kind == "plan":
            return self._plan(request, updated, response.get("updatedPermissions"))
        return _answered(updated)

    def _permission(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        tool = str(request.payload["tool"])
        tool_input = cast("Json", request.payload["input"])
        folder = str(request.payload.get("folder") or "")
        edited = None
        if updated is not None and updated != to_compatible(tool, tool_input, folder):
            changed_input = from_compatible(tool, tool_input, updated, folder)
            edited = changed_input if changed_input != tool_input else None
        return Answer("approved", "person", always=self._always(request, permissions), input=edited)

    def _always(self, request: Request, permissions: object) -> Always | None:
        """Allow all calls of the class if the client accepted the suggestion; report other updates."""
        accepted, ignored = rules_of(permissions)
        rules = {_key(text) for text in offered(request)}
        accepted_keys = {_key(text) for text in accepted}
        takes = bool(rules) and rules <= accepted_keys
        surplus = [text for text in accepted if not takes or _key(text) not in rules]
        for item in (*(f"the rule {text}: only what was suggested can be allowed" for text in surplus), *ignored):
            self._told(f"updatedPermissions is ignored for {item}")
        return Always() if takes else None

    def _plan(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        text = (updated or {}).get("plan")
        mode = self._mode(permissions)
        if not isinstance(text, str) or text == request.payload.get("plan"):
            return Answer("approved", "person", word=AnswerDetails(mode=mode))
        try:
            return Answer("approved", "person", word=replace(approval(request, text), mode=mode))
        except UsageError as refused:
            self._told(f"the edited plan is not taken: {refused}")
            return Answer("rejected", "person", f"the plan was edited, and the edit is not taken: {refused}")

    def _mode(self, permissions: object) -> str:
        """Return the mode for an approved plan; empty: the client named no valid one."""
        chosen = mode_of(permissions)
        if chosen and chosen not in PLAN_MODES:
            self._told(f"updatedPermissions is ignored for the mode {chosen}: {' or '.join(PLAN_MODES)} can be chosen")
        return chosen if chosen in PLAN_MODES else ""


def question_of(request: Request, use_id: str) -> Json:
    """Return the `can_use_tool` that puts a request to the client. `use_id`: the provider's id of the call."""
    permission = request.kind == "permission"
    tool = str(request.payload["tool"]) if permission else _TOOLS[request.kind]
    tool_input = cast("Json", request.payload["input"]) if permission else request.payload
    form = asked_of(request)
    client_input = _form(form) if form else to_compatible(tool, tool_input, str(request.payload.get("folder") or ""))
    question: Json = {
        "subtype": "can_use_tool",
        "tool_name": compatible_name(tool),
        "input": client_input if request.kind != "plan" else {"plan": request.payload.get("plan", "")},
        "permission_suggestions": list(suggestions_of(offered(request))) if permission else None,
        "blocked_path": None,
        "decision_reason": str(request.payload.get("why") or "") or None,
        "title": request.subject,
        "display_name": compatible_name(tool),
        "description": request.subject,
        "tool_use_id": use_id,
    }
    return question if request.asked_by == "lead" else {**question, "agent_id": request.asked_by}


def _answered(updated: Json | None) -> Answer:
    """Return the answers to a question: each a text, or a list of texts."""
    answers = _object((updated or {}).get("answers")) or {}
    text = "; ".join(
        ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, list) else str(value)
        for value in answers.values()
    )
    return Answer("answered", "person", text or "(the person gave no answer)")


def _filled_in(form: Elicitation, updated: Json | None) -> Answer:
    """Return the answer to a form of an MCP server: one question for each field, by its text. An invalid answer is a
    no."""
    answers = _object((updated or {}).get("answers")) or {}
    fields = fields_of(form.schema)
    if form.url or not fields:
        reply = next((str(value) for value in answers.values()), "")
        return Answer("answered", "person", reply)
    replies = {field.name: answers.get(field_words(form, field), answers.get(field.name)) for field in fields}
    filled = {name: reply for name, reply in replies.items() if reply not in (None, "")}
    listed = {
        name: ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, list) else str(value)
        for name, value in filled.items()
    }
    text = json.dumps(listed) if listed else ""
    return Answer("answered", "person", text if isinstance(read(form, text), AnsweredBack) else "decline")


def field_words(form: Elicitation, field: Field) -> str:
    """Return the question for a field."""
    return f"{form.message} {field.name}{f' ({field.about})' if field.about else ''}"


def _form(form: Elicitation) -> Json:
    """Return the form as questions of the compatible tool."""
    fields = fields_of(form.schema)
    if form.url or not fields:
        text = f"{form.message} {form.url}".strip()
        return {"questions": [_question(form, text, ("yes", "decline"), several=False)]}
    return {
        "questions": [
            _question(form, field_words(form, field), field.options or _yes_no(field), several=field.kind == "array")
            for field in fields
        ]
    }


def _yes_no(field: Field) -> tuple[str, ...]:
    return ("yes", "no") if field.kind == "boolean" else ()


def _question(form: Elicitation, text: str, options: Sequence[str], *, several: bool) -> Json:
    listed = [{"label": option, "description": ""} for option in options]
    return {"question": text, "header": form.server[:12], "options": listed, "multiSelect": several}


def _no(request: Request, reason: str) -> Answer:
    if asked_of(request) is not None:
        return Answer("answered", "person", "decline")
    if request.kind == "question":
        return Answer("answered", "person", f"(the person gave no answer){f': {reason}' if reason else ''}")
    return Answer("rejected", "person", reason)


def _key(text: str) -> tuple[str, str | None]:
    rule = parse_rule(text)
    return rule.tool, rule.specifier


def _object(value: Any) -> Json | None:
    return cast("Json", value) if isinstance(value, dict) else None
