"""Requests of a client to a running session: one function for each subtype of `control_request`.

An impossible request is refused with a reason; none is ignored silently.

In the other direction, `ClientApprover` asks the client about permissions, plans and questions by `can_use_tool`, in
place of the user. A call that the client allows with another input is checked again before it runs. If the client is
gone, fails or gives an unreadable answer, the call is denied.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import anyio

from callboard import __version__
from callboard.cli.headless.client import Client, ClientGone, ClientRefused
from callboard.cli.headless.initialize import commands_listed, models_json
from callboard.cli.headless.messages import server_json
from callboard.cli.terminal.plan_editor import approval
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.core.approvals.session_rules import AlwaysAllow, offered
from callboard.core.hooks.payloads import compatible_name, from_compatible, to_compatible
from callboard.core.mcp.elicitation import Field, fields_of, question_in, read
from callboard.core.permissions.claude_updates import client_changes, mode_of, suggestions_of
from callboard.core.permissions.rules import parse_rule
from callboard.ports.environment import Answer
from callboard.ports.mcp import Servers
from callboard.sessions.hosted import HostedSession
from callboard.types.agent_spec import ThinkingChoice
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.mcp import Elicitation, ElicitationAnswer, ServerStatus
from callboard.types.records import Json, Request

_UNCHANGED = object()


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
    cancel: Callable[[str], bool]
    """Function that drops a waiting message by its id, and returns True if it was waiting."""
    may_bypass: bool
    """True if the command line allowed the mode `bypassPermissions`."""
    first_thinking: ThinkingChoice | None = None
    """The choice of thinking at the start."""

    async def do(self, request: Json) -> Json:
        """Perform a request and return the response. Raises `UsageError` for a refused one."""
        kind = request.get("subtype")
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            raise UsageError(unknown("control request", kind, ("initialize", *_HANDLERS)))
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

    async def set_max_thinking_tokens(self, request: Json) -> Json:
        """Change how much the lead's model thinks: a budget, 0 for no thinking, null for the choice at the start."""
        state = self.session.state("lead")
        now = state.me.thinking if state is not None and state.identity.spec is not None else None
        budget = request.get("max_thinking_tokens", _UNCHANGED)
        display = request.get("thinking_display", _UNCHANGED)
        if budget is None:
            choice = self.first_thinking
        elif budget is _UNCHANGED:
            choice = now
        elif isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
            choice = ThinkingChoice(kind="enabled" if budget else "disabled", budget=budget or None)
        else:
            raise UsageError("`max_thinking_tokens` is a number of tokens, 0 for no thinking, or null")
        if display is not _UNCHANGED:
            if display not in ("summarized", "omitted", None):
                raise UsageError("`thinking_display` is summarized, omitted, or null")
            base = choice or ThinkingChoice(kind="adaptive")
            choice = base.model_copy(update={"display": display or ""})
        elif choice is not None and now is not None and not choice.display:
            choice = choice.model_copy(update={"display": now.display})
        await self.session.use_thinking(choice)
        return {}

    async def rewind_files(self, request: Json) -> Json:
        """Restore the files that tools have changed since a message."""
        dry = request.get("dry_run") is True
        restores = await self.session.rewind_files(str(request.get("user_message_id")), dry=dry)
        done = [restore for restore in restores if not restore.problem]
        problems = "; ".join(restore.problem for restore in restores if restore.problem)
        if problems and not done:
            raise UsageError(problems)
        return {
            "canRewind": True,
            "filesChanged": [restore.path for restore in done],
            "insertions": sum(restore.insertions for restore in done),
            "deletions": sum(restore.deletions for restore in done),
            **({"error": problems} if problems else {}),
        }

    async def cancel_async_message(self, request: Json) -> Json:
        """Drop a waiting message."""
        return {"cancelled": self.cancel(str(request.get("message_uuid")))}

    async def apply_flag_settings(self, request: Json) -> Json:
        """Change the model or the permission mode, in the format of a settings.json.

        Nothing changes if any other setting is named.
        """
        raw: Any = request.get("settings")
        settings = cast("Json", raw) if isinstance(raw, dict) else {}
        permissions: Any = settings.get("permissions") or {}
        other = sorted({*settings} - {"model", "permissions"}) + [
            f"permissions.{name}" for name in sorted({*permissions} - {"defaultMode"})
        ]
        if other:
            raise UsageError(f"{', '.join(other)} cannot change in a running session: only model and the mode can")
        if "model" in settings:
            await self.set_model({"model": settings["model"]})
        if permissions.get("defaultMode"):
            await self.set_permission_mode({"mode": permissions["defaultMode"]})
        return {}

    async def list_models(self, _: Json) -> Json:
        """Return the models that the session knows."""
        return {"models": models_json(self.session)}

    async def reload_skills(self, _: Json) -> Json:
        """Return the skills and commands, which are read again whenever their files change."""
        return {"skills": commands_listed(self.session)}

    async def rename_session(self, request: Json) -> Json:
        """Give the session a name for lists."""
        title = request.get("title")
        if not isinstance(title, str) or not title.strip():
            raise UsageError("`title` is the new name of the session")
        await self.session.name_session(title, again=True)
        return {}

    async def get_binary_version(self, _: Json) -> Json:
        """Return the version of Callboard."""
        return {"version": __version__}

    async def set_has_subscribers(self, _: Json) -> Json:
        """Do nothing: no output is held back."""
        return {}

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
        return {"mcpServers": [_server_status(now) for now in servers.now()] if servers is not None else []}

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
            {
                "name": part.tool or part.source,
                "tokens": part.tokens,
                "color": "inactive",
                **_KINDS.get(part.source, {"kind": "used"}),
            }
            for part in window.parts
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


_KINDS: Mapping[str, Json] = MappingProxyType(
    {
        "free": {"kind": "free", "id": "free_space"},
        "output reserve": {"kind": "buffer", "id": "autocompact_buffer"},
        "system prompt": {"kind": "used", "id": "system_prompt"},
        "tools": {"kind": "used", "id": "system_tools"},
        "memory": {"kind": "used", "id": "memory_files"},
        "skills": {"kind": "used", "id": "skills"},
    }
)
"""Part of the window -> its kind, and its id if clients know one; all others are used."""


def _server_in(request: Json) -> str:
    name = request.get("serverName")
    if not isinstance(name, str):
        raise UsageError("`serverName` is the name of an MCP server")
    return name


def _server_status(now: ServerStatus) -> Json:
    """Return a server with its tools, and the reason if it is unavailable."""
    server: Json = {**server_json(now), "scope": now.scope, "tools": [{"name": name} for name in now.tools]}
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
        "set_max_thinking_tokens": Control.set_max_thinking_tokens,
        "cancel_async_message": Control.cancel_async_message,
        "apply_flag_settings": Control.apply_flag_settings,
        "list_models": Control.list_models,
        "reload_skills": Control.reload_skills,
        "rename_session": Control.rename_session,
        "get_binary_version": Control.get_binary_version,
        "set_has_subscribers": Control.set_has_subscribers,
        "mcp_status": Control.mcp_status,
        "get_context_usage": Control.get_context_usage,
        "mcp_reconnect": Control.mcp_reconnect,
        "mcp_toggle": Control.mcp_toggle,
        "mcp_message": Control.mcp_message,
        "rewind_files": Control.rewind_files,
        "register_repo_root": _never("a session works in one workspace: start another with --cwd"),
        "mcp_set_servers": _never("servers are named when the session starts: use mcp_toggle to switch them"),
        "reload_plugins": _never("plugins are loaded when the session starts: start another session"),
        "background_tasks": _never("a running call stays in the foreground: the model can start it in the background"),
        "seed_read_state": _never("an agent edits a file only after it has read it: let it read the file"),
        "read_file": _never("files are read by your program itself, in the folder of the session"),
        "get_settings": _never("`callboard settings --json` prints the settings"),
        "update_settings": _never("settings files are not written: change them in your program"),
    }
)


GONE = "the client that would have answered is gone"
_TOOLS = {"plan": "submit_plan", "question": "ask_person"}


class ClientApprover:
    """Approver that asks the client everything that the user may answer."""

    def __init__(
        self, client: Client, reporter: Callable[[str], None], stop: Callable[[], None], *, may_bypass: bool = False
    ) -> None:
        """Create an approver.

        `reporter`: receives each ignored part of an answer. `stop`: ends the turn if an answer says so. `may_bypass`:
        True if an answer may choose the mode `bypassPermissions`.
        """
        self._may_bypass = may_bypass
        self._client = client
        self._told = reporter
        self._stop = stop
        self._session: HostedSession | None = None
        self._attached = anyio.Event()

    def attach(self, session: HostedSession) -> None:
        """Set the open session, whose calls can now be looked up."""
        self._session = session
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """See `Approver.answer`."""
        if "person" not in request.may_answer or request.kind == "shutdown":
            return None
        await self._attached.wait()
        call = self._session.call(request.asked_by, str(request.payload.get("call_id"))) if self._session else None
        try:
            form = question_in(request)
            if form is not None and (answer := await self._elicited(form)) is not None:
                return answer
            response = await self._client.ask(question_of(request, call.use_id if call else request.id))
        except ClientGone:
            return _no(request, GONE)
        except ClientRefused as refused:
            return _no(request, f"the client could not answer: {refused}")
        if response.get("behavior") == "deny":
            if response.get("interrupt") is True:
                self._stop()  # takes effect after the answer is written
            return _no(request, str(response.get("message") or ""))
        if response.get("behavior") != "allow":
            return _no(request, "the client answered neither `allow` nor `deny`")
        return await self._allowed(request, response)

    async def _allowed(self, request: Request, response: Json) -> Answer:
        updated = _object(response.get("updatedInput"))
        if request.kind == "permission":
            return await self._permission(request, updated, response.get("updatedPermissions"))
        if (form := question_in(request)) is not None:
            return _filled_in(form, updated)
        if request.kind == "plan":
            return self._plan(request, updated, response.get("updatedPermissions"))
        return _answered(updated)

    async def _elicited(self, form: Elicitation) -> Answer | None:
        """Put a question of an MCP server to a client that knows such questions; None if it does not.

        Raises `ClientGone`.
        """
        asked: Json = {"subtype": "elicitation", "mcp_server_name": form.server, "message": form.message}
        asked |= {"mode": "url", "url": form.url} if form.url else {"mode": "form", "requested_schema": form.schema}
        try:
            response = await self._client.ask(asked)
        except ClientRefused:
            return None
        action = response.get("action")
        if action not in ("accept", "decline", "cancel"):
            return None
        content = _object(response.get("content")) or {}
        text = json.dumps({name: _field_text(value) for name, value in content.items()}) if content else "yes"
        if action == "accept":
            action = text if isinstance(read(form, text), ElicitationAnswer) else "decline"
        return Answer("answered", "person", action)

    async def _permission(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        tool = str(request.payload["tool"])
        tool_input = cast("Json", request.payload["input"])
        folder = str(request.payload.get("folder") or "")
        edited = None
        if updated is not None and updated != to_compatible(tool, tool_input, folder):
            changed_input = from_compatible(tool, tool_input, updated, folder)
            edited = changed_input if changed_input != tool_input else None
        return Answer("approved", "person", always=await self._changed(request, permissions), input=edited)

    async def _changed(self, request: Request, permissions: object) -> AlwaysAllow | None:
        """Apply the changes that the client requests with its answer, and report those without effect.

        Return the class of calls that the answer allows, if the client accepted the suggestion.
        """
        changes = client_changes(permissions)
        for item in changes.ignored:
            self._told(f"updatedPermissions is ignored for {item}")
        session = self._session
        if session is None:
            return None
        rules = {_key(text) for text in offered(request)}
        takes = bool(rules) and rules <= {_key(text) for text in changes.allowed}
        try:
            for text in changes.allowed:
                if not (takes and _key(text) in rules):
                    await session.rules.add(text)
            for rule in session.rules.standing():
                if _key(rule.rule) in {_key(text) for text in changes.revoked}:
                    await session.rules.revoke(rule.id)
            if changes.mode:
                await session.use_mode(changes.mode, may_bypass=self._may_bypass)
        except UsageError as refused:
            self._told(f"updatedPermissions is ignored: {refused}")
        return AlwaysAllow() if takes else None

    def _plan(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        text = (updated or {}).get("plan")
        mode = self._mode(permissions)
        if not isinstance(text, str) or text == request.payload.get("plan"):
            return Answer("approved", "person", word=AnswerDetails(mode=mode))
        try:
            return Answer("approved", "person", word=replace(approval(request, text), mode=mode))
        except UsageError as refused:
            self._told(f"the edited plan is not accepted: {refused}")
            return Answer("rejected", "person", f"the plan was edited, and the edit is not accepted: {refused}")

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
    form = question_in(request)
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


def _field_text(value: object) -> str:
    """Return the value of a form's field as the text that a person would type."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, list) else str(value)


def _filled_in(form: Elicitation, updated: Json | None) -> Answer:
    """Return the answer to a form of an MCP server: one question for each field, by its text.

    An invalid answer declines the form.
    """
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
    return Answer("answered", "person", text if isinstance(read(form, text), ElicitationAnswer) else "decline")


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
    if question_in(request) is not None:
        return Answer("answered", "person", "decline")
    if request.kind == "question":
        return Answer("answered", "person", f"(the person gave no answer){f': {reason}' if reason else ''}")
    return Answer("rejected", "person", reason)


def _key(text: str) -> tuple[str, str | None]:
    rule = parse_rule(text)
    return rule.tool, rule.specifier


def _object(value: Any) -> Json | None:
    return cast("Json", value) if isinstance(value, dict) else None
