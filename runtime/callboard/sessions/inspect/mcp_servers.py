"""MCP servers of a workspace for a person: a list, and the effect of adding or removing an entry.

Entries are written completely or not at all, and the rest of the file is unchanged. Nothing is connected here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar, cast

from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.mcp.config import PERSON_FILE, WORKSPACE_FILE, Configured, ServerSources, read_servers
from callboard.config.replaced_file import ReplacedFile
from callboard.config.settings_file import settings_here
from callboard.core.json_depth import check_json_limits
from callboard.core.mcp.config_entries import read_servers_node
from callboard.core.trust.yaml_nodes import node_of
from callboard.sessions.enabled_plugins import plugins_in_force
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry, ServerState
from callboard.types.records import Json
from callboard.types.settings import McpSettings

Changed = TypeVar("Changed")
Scope = Literal["person", "workspace"]

_MOST_BYTES = 4_000_000
_FIELD = "mcpServers"


@dataclass(frozen=True, slots=True)
class ConfiguredServers:
    """Configured MCP servers. `entries`: with expanded variables, for connecting; `shown`: as written, for people."""

    places: WorkspacePaths
    configured: Configured
    shown: Mapping[str, ServerEntry]
    settings: McpSettings

    def state_of(self, name: str) -> tuple[ServerState, str]:
        """Return `waiting` for a server that a session connects; otherwise `off` or `untrusted`, and the reason."""
        return self.configured.held.get(name, ("waiting", ""))

    def entry(self, name: str) -> ServerEntry:
        """Return the entry as written. Raises `UsageError` with the existing names."""
        if name not in self.shown:
            raise UsageError(_unknown(name, self.shown))
        return self.shown[name]


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """Entry that was written, and its file."""

    path: Path
    entry: Json
    """Entry as it is in the file now; for a removed one, as it was."""
    needs_trust: bool
    ignored: tuple[str, ...] = ()
    """A line for each ignored part of the entry."""


def servers_of(
    workspace: Path, *, plugins: Sequence[Path] = (), configs: Sequence[str] = (), trust: bool = False
) -> ConfiguredServers:
    """Return the servers that a session here would have.

    `trust`: as if the workspace were trusted. `configs`: as in `--mcp-config`. Raises `WorkspaceUnusable`,
    `UsageError`.
    """
    places = find_places(workspace, writable=False)
    loaded, now = settings_here(places.workspace, places.config, trust=trust)
    trusted = trust or now.trusted
    enabled, _ = plugins_in_force(loaded, places)
    plugin_files, _ = read_plugins((*plugins, *enabled))

    def read(environment: Mapping[str, str]) -> Configured:
        return read_servers(
            ServerSources(
                places.workspace,
                environment,
                places.config,
                Path.home(),
                workspace_text=now.workspace_claims.text(WORKSPACE_FILE),
                workspace_fault=now.workspace_claims.fault(WORKSPACE_FILE),
                trusted=trusted,
                plugins=plugin_files,
                command_line=tuple(configs),
                folder=Path.cwd(),
                approvals=tuple(server for file in loaded.claude for server in file.servers),
                off=tuple(loaded.settings.mcp.off),
            )
        )

    written = read({}).entries  # variables are not expanded here: a value may be a secret
    return ConfiguredServers(places, read(os.environ), {entry.name: entry for entry in written}, loaded.settings.mcp)


def add_server(workspace: Path, name: str, entry: Json, scope: Scope, *, replace: bool = False) -> WrittenEntry:
    """Write an entry.

    Raises `UsageError` for an invalid entry, and for an invalid or existing name, and `SettingsError` for a file that
    cannot be read or written.
    """
    path = path_of(workspace, scope)
    parsed = read_servers_node(node_of({name: entry}, {}), str(path), scope)
    refused = [fault for fault in parsed.faults if fault.verdict == "refused"]
    if refused or name not in parsed.entries:
        raise UsageError(
            "; ".join(f"{fault.field}: {fault.why}" for fault in refused) or f"{name!r} is not a valid name"
        )

    def adding(servers: dict[str, object]) -> None:
        if name in servers and not replace:
            raise UsageError(
                f"{path} has a server {name!r} already: --replace writes over it, `callboard mcp get` shows it"
            )
        servers[name] = entry

    _change(workspace, scope, adding)
    notes = tuple(f"{fault.field}: {fault.why}" for fault in parsed.faults)
    return WrittenEntry(path, entry, scope == "workspace", notes)


def remove_server(workspace: Path, name: str, scope: Scope | None = None) -> WrittenEntry:
    """Remove an entry; without a scope, from the only one of Callboard's files that contains it.

    Raises `UsageError` with the existing names, `SettingsError`.
    """
    scopes: tuple[Scope, ...] = ("person", "workspace") if scope is None else (scope,)
    paths = {each: path_of(workspace, each) for each in scopes}
    having: dict[Scope, Mapping[str, object]] = {each: _servers_in(workspace, each) for each in scopes}
    holders: list[Scope] = [each for each in scopes if name in having[each]]
    if len(holders) > 1:
        raise UsageError(f"{name!r} is defined in {' and in '.join(str(paths[each]) for each in holders)}: add --scope")
    if not holders:
        where = " or ".join(str(path) for path in paths.values())
        raise UsageError(_unknown(name, [entry for each in scopes for entry in having[each]], where=f"in {where}"))
    (holder,) = holders

    def removing(servers: dict[str, object]) -> Json:
        if name not in servers:  # another process was faster
            raise UsageError(_unknown(name, servers, where=f"in {paths[holder]}"))
        return cast("Json", servers.pop(name))

    return WrittenEntry(paths[holder], _change(workspace, holder, removing), holder == "workspace")


def path_of(workspace: Path, scope: Scope) -> Path:
    """Return the file for entries of a scope. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    return places.config / PERSON_FILE if scope == "person" else places.workspace / WORKSPACE_FILE


def _unknown(name: str, names: Sequence[str] | Mapping[str, object], *, where: str = "") -> str:
    hint = "" if names else ": `callboard mcp add` adds one"
    return unknown("MCP server", name, sorted(names), where=where) + hint


def _file(workspace: Path, scope: Scope) -> ReplacedFile:
    path = path_of(workspace, scope)
    return ReplacedFile(path, path.parent if scope == "workspace" else None, _MOST_BYTES)


def _servers_in(workspace: Path, scope: Scope) -> Mapping[str, object]:
    """Return the entries of a scope's file; none if there is no file. Raises `SettingsError`."""
    file = _file(workspace, scope)
    try:
        with file.open_folder(create=False) as folder:
            return _servers(_document(file.read(folder)[0], file.path), file.path)
    except FileNotFoundError:
        return {}


def _change(workspace: Path, scope: Scope, act: Callable[[dict[str, object]], Changed]) -> Changed:
    """Change the entries of a scope's file, one process at a time, and return the result of `act`.

    Raises `SettingsError`, and what `act` raises.
    """
    file = _file(workspace, scope)
    with file.open_folder(create=True) as folder:
        content, mode = file.read(folder)
        document = _document(content, file.path)
        result = act(_servers(document, file.path))
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        file.write(folder, text.encode("utf-8", "replace"), mode)
    return result


def _document(content: bytes, path: Path) -> dict[str, object]:
    """Return a file's content; an empty document for an empty file. Raises `SettingsError`."""
    try:
        text = content.decode("utf-8-sig")
        check_json_limits(text)
        document: object = json.loads(text or "{}")
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"is not valid JSON, so nothing was changed: {wrong}", str(path)) from wrong
    if not isinstance(document, dict):
        raise SettingsError("is not a JSON object, so nothing was changed", str(path))
    return cast("dict[str, object]", document)


def _servers(document: dict[str, object], path: Path) -> dict[str, object]:
    servers = document.setdefault(_FIELD, {})
    if not isinstance(servers, dict):
        raise SettingsError(f"{_FIELD} is not a JSON object, so nothing was changed", str(path))
    return cast("dict[str, object]", servers)
