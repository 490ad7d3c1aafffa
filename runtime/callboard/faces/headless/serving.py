"""What a client may ask of a session while it runs: one function for each subtype of `control_request`.

What cannot be done is refused in words; nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast, get_args

from callboard.app import Session
from callboard.faces.stream_parts import server_told
from callboard.ports.mcp import Servers
from callboard.words.errors import UsageError
from callboard.words.mcp import ServerNow
from callboard.words.specs import READ_AS, PermissionMode
from callboard.words.values import Json


@dataclass(slots=True)
class Control:
    """What the requests of a client reach."""

    session: Session
    stop: Callable[[], Awaitable[None]]
    """Ends the turn under way."""
    drop: Callable[[], Sequence[str]]
    """Forgets the messages that wait; their ids."""
    queued: Callable[[], Sequence[str]]
    """The ids of the messages that wait."""
    tell: Callable[..., None]
    """A `system` message: its subtype and fields."""
    first_model: str
    """The model at the start."""
    may_bypass: bool
    """The mode `bypassPermissions` was asked for on the command line."""

    async def do(self, request: Json) -> Json:
        """Do what is asked; the response. Raises `UsageError` for what is refused."""
        kind = request.get("subtype")
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            known = ", ".join(("initialize", *_HANDLERS))
            raise UsageError(f"there is no control request {kind!r}; there are: {known}")
        return await handler(self, request)

    async def interrupt(self, request: Json) -> Json:
        """End the turn. `cancel_queued`: and forget what waits behind it."""
        cancelled = list(self.drop()) if request.get("cancel_queued") is True else None
        await self.stop()
        told: Json = {"still_queued": list(self.queued())}
        return told if cancelled is None else {**told, "cancelled": cancelled}

    async def set_permission_mode(self, request: Json) -> Json:
        """Judge the lead's next calls in another mode."""
        asked = str(request.get("mode"))
        mode = READ_AS.get(asked, asked)
        if mode not in get_args(PermissionMode):
            raise UsageError(f"there is no mode {asked!r}; there are: {', '.join(get_args(PermissionMode))}")
        if mode == "bypassPermissions" and not self.may_bypass:
            raise UsageError(
                "bypassPermissions has to be asked for at the start: --permission-mode bypassPermissions or "
                "--allow-dangerously-skip-permissions"
            )
        await self.session.command("mode", text=mode)
        self.tell("status", status=None, permissionMode=mode)
        return {"mode": mode}

    async def set_model(self, request: Json) -> Json:
        """Ask another model from the next call on."""
        wanted = request.get("model")
        name = self.first_model if wanted in (None, "default") else wanted
        if not isinstance(name, str):
            raise UsageError("`model` is a model's name, or null for the one at the start")
        await self.session.use_model(name)
        return {"model": name}

    async def stop_task(self, request: Json) -> Json:
        """End an agent that is at work."""
        name = str(request.get("task_id"))
        if name == "lead" or all(one.name != name for one in self.session.team()):
            raise UsageError(f"there is no agent {name!r} that could be stopped; a command is stopped by its agent")
        await self.session.command("stop", to=name)
        return {}

    async def mcp_status(self, _: Json) -> Json:
        """The MCP servers, as they stand."""
        servers = self.session.servers
        return {"mcpServers": [_told_now(now) for now in servers.now()] if servers is not None else []}

    async def mcp_reconnect(self, request: Json) -> Json:
        """Connect a server anew."""
        await self._servers().connect(_server_in(request))
        return {}

    async def mcp_toggle(self, request: Json) -> Json:
        """Switch a server off, or on again."""
        servers, name = self._servers(), _server_in(request)
        await (servers.switch_off(name) if request.get("enabled") is False else servers.connect(name))
        return {}

    async def mcp_message(self, request: Json) -> Json:
        """A server of the client says something by itself: that its list has changed."""
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
        """What fills the lead's window."""
        found = (await self.session.desk.context("lead")).window
        parts = [{"name": one.tool or one.source, "tokens": one.tokens, "color": "inactive"} for one in found.parts]
        percentage = round(100 * found.used / found.window, 1) if found.window else 0.0
        return {
            "categories": parts,
            "totalTokens": found.used,
            "maxTokens": found.budget,
            "rawMaxTokens": found.window,
            "percentage": percentage,
            "model": found.model,
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
    """A server with its tools, and why it does not serve."""
    told: Json = {**server_told(now), "scope": now.scope, "tools": [{"name": name} for name in now.tools]}
    name, _, version = now.version.rpartition(" ")
    about = {"serverInfo": {"name": name or now.version, "version": version}} if now.version else {}
    return {**told, **about, **({"error": now.why} if now.why else {})}


def _never(why: str) -> Callable[[Control, Json], Awaitable[Json]]:
    async def refuse(_: Control, __: Json) -> Json:
        raise UsageError(why)

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
