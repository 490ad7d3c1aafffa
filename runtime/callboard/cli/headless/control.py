"""Requests of a client to a running session: one function for each subtype of `control_request`.

An impossible request is refused with a reason; none is ignored silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from callboard.cli.headless.messages import server_told
from callboard.ports.mcp import Servers
from callboard.sessions.hosted import HostedSession
from callboard.types.errors import UsageError
from callboard.types.mcp import ServerNow
from callboard.types.records import Json


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
