"""Requests of a client to a running session: one function for each subtype of `control_request`.

An impossible request is refused with a reason; none is ignored silently.

In the other direction, `ClientApprover` in `client.py` asks the client.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, cast

from callboard import __version__
from callboard.adapters.mcp.config import inline_servers
from callboard.cli.headless.initialize import agents_listed, commands_listed, models_json
from callboard.cli.headless.messages import plugins_json, server_json
from callboard.ports.mcp import Servers
from callboard.sessions.hosted import HostedSession
from callboard.types.agent_spec import ThinkingChoice
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry, ServerStatus
from callboard.types.records import Json

CHANGES = frozenset({"set_permission_mode", "set_model", "set_max_thinking_tokens", "apply_flag_settings"})
"""Subtypes of the requests that change how the next message is answered."""
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
    choose: Callable[..., None]
    """Function that stores a mode or model for the message at the beginning of the next turn."""
    first_model: str
    """The model at the start."""
    cancel: Callable[[str], bool]
    """Function that drops a waiting message by its id, and returns True if it was waiting."""
    may_bypass: bool
    """True if the command line allowed the mode `bypassPermissions`."""
    first_thinking: ThinkingChoice | None = None
    """The choice of thinking at the start."""
    added: dict[str, object] = field(default_factory=dict[str, object])
    """Entries of the servers that the client added in the session, by name."""

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
        self.choose(permissionMode=mode)
        self.tell("status", status=None, permissionMode=mode)
        return {"mode": mode}

    async def set_model(self, request: Json) -> Json:
        """Switch the model from the next call on."""
        model = request.get("model")
        name = self.first_model if model in (None, "default") else model
        if not isinstance(name, str):
            raise UsageError("`model` is a model's name, or null for the one at the start")
        self.choose(model=(await self.session.use_model(name)).name)
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
        stated: Any = settings.get("permissions")
        if not isinstance(stated, dict | None):
            raise UsageError("`permissions` is an object with the `defaultMode`")
        permissions = cast("Json", stated or {})
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

    async def reload_plugins(self, request: Json) -> Json:
        """Read the agents, skills and commands again, also those of plugins. Hooks and servers stay as they were."""
        if request.get("add_plugins"):
            raise UsageError("plugins are named when the session starts: start another session with them")
        session = self.session
        await session.reread_files()
        listed = plugins_json(session.plugins, session.refused_plugins)
        return {
            "commands": commands_listed(session),
            "agents": agents_listed(session),
            "plugins": listed["plugins"],
            "mcpServers": (await self.mcp_status({}))["mcpServers"],
            "error_count": len(listed.get("plugin_errors", ())),
        }

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

    async def background_tasks(self, request: Json) -> Json:
        """Let calls that wait for a command or subagent go on without it: the one with `tool_use_id`, or all."""
        use_id = str(request.get("tool_use_id") or "")
        moved = self.session.move_to_background(use_id)
        if not moved and not use_id:
            raise UsageError("no call of the lead waits for a command or subagent in the foreground")
        return {"backgrounded": moved}

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

    async def mcp_set_servers(self, request: Json) -> Json:
        """Replace the servers that the client added in the session. Those of the start stay."""
        listed: Any = request.get("servers")
        if not isinstance(listed, dict):
            raise UsageError("`servers` maps the name of each server to its entry")
        entries = cast("dict[str, object]", listed)
        if not entries and not self.added:
            return {"added": [], "removed": [], "errors": {}}
        servers = self._servers()
        own = {now.name for now in servers.now()} - set(self.added)
        removed = [name for name, entry in self.added.items() if entries.get(name) != entry]
        for name in removed:
            await servers.remove(name)
            del self.added[name]
        errors = {name: "a server of this name was named when the session started" for name in entries if name in own}
        candidates = [name for name in entries if name not in own and name not in self.added]
        for name in candidates:
            errors |= await self._add_server(servers, name, entries[name])
        new = [name for name in candidates if name not in errors]
        await servers.ready()
        errors |= {
            now.name: now.why or now.state for now in servers.now() if now.name in new and now.state != "connected"
        }
        return {"added": new, "removed": removed, "errors": errors}

    async def _add_server(self, servers: Servers, name: str, entry: object) -> dict[str, str]:
        """Start to connect a server, and return the reason by its name if its entry is refused."""
        fields = cast("Json", entry) if isinstance(entry, dict) else {}
        if fields.get("type") == "sdk":
            await servers.add(ServerEntry(name, "sdk", "run", "(the client)"))
            self.added[name] = entry
            return {}
        _, read = inline_servers([{name: fields}], "mcp_set_servers", self.session.places.workspace, dict(os.environ))
        if not read.entries:
            return {name: "; ".join(note.reason for note in read.notes) or "its entry is not that of a server"}
        for server in read.entries:
            await servers.add(server)
        self.added[name] = entry
        return {}

    def _servers(self) -> Servers:
        if self.session.servers is None:
            raise UsageError("this session has no MCP servers, and none can be added")
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


def _unsupported(reason: str) -> Callable[[Control, Json], Awaitable[Json]]:
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
        "register_repo_root": _unsupported("a session works in one workspace: start another with --cwd"),
        "mcp_set_servers": Control.mcp_set_servers,
        "reload_plugins": Control.reload_plugins,
        "background_tasks": Control.background_tasks,
        "seed_read_state": _unsupported("an agent edits a file only after it has read it: let it read the file"),
        "read_file": _unsupported("files are read by your program itself, in the folder of the session"),
        "get_settings": _unsupported("`callboard settings --json` prints the settings"),
        "update_settings": _unsupported("settings files are not written: change them in your program"),
    }
)
