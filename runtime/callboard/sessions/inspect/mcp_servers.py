"""MCP servers of a workspace for a person: a list, and the effect of adding or removing an entry.

Entries are written completely or not at all, and the rest of the file is unchanged. Nothing is connected here.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, cast

from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.mcp.config import PERSON_FILE, WORKSPACE_FILE, Configured, ServerSources, read_servers
from callboard.adapters.system.regular_files import read_regular
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
    with _locked([path]):
        document = _document(path)
        servers = _servers(document, path)
        if name in servers and not replace:
            raise UsageError(
                f"{path} has a server {name!r} already: --replace writes over it, `callboard mcp get` shows it"
            )
        servers[name] = entry
        _write(path, document)
    notes = tuple(f"{fault.field}: {fault.why}" for fault in parsed.faults)
    return WrittenEntry(path, entry, scope == "workspace", notes)


def remove_server(workspace: Path, name: str, scope: Scope | None = None) -> WrittenEntry:
    """Remove an entry; without a scope, from the only one of Callboard's files that contains it.

    Raises `UsageError` with the existing names, `SettingsError`.
    """
    scopes: tuple[Scope, ...] = ("person", "workspace") if scope is None else (scope,)
    paths = {each: path_of(workspace, each) for each in scopes}
    with _locked(path for path in paths.values() if path.parent.is_dir()):  # a removal makes no folder
        return _removed(name, paths)


def _removed(name: str, paths: Mapping[str, Path]) -> WrittenEntry:
    documents = {scope_name: _document(path) for scope_name, path in paths.items()}
    having = [each for each in paths if name in _servers(documents[each], paths[each])]
    if len(having) > 1:
        raise UsageError(f"{name!r} is defined in {' and in '.join(str(paths[each]) for each in having)}: add --scope")
    if not having:
        names = [each for place in paths for each in _servers(documents[place], paths[place])]
        where = " or ".join(str(path) for path in paths.values())
        raise UsageError(_unknown(name, names, where=f"in {where}"))
    (holder,) = having
    servers = _servers(documents[holder], paths[holder])
    entry = cast("Json", servers.pop(name))
    _write(paths[holder], documents[holder])
    return WrittenEntry(paths[holder], entry, holder == "workspace")


def path_of(workspace: Path, scope: Scope) -> Path:
    """Return the file for entries of a scope. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    return places.config / PERSON_FILE if scope == "person" else places.workspace / WORKSPACE_FILE


def _unknown(name: str, names: Sequence[str] | Mapping[str, object], *, where: str = "") -> str:
    hint = "" if names else ": `callboard mcp add` adds one"
    return unknown("MCP server", name, sorted(names), where=where) + hint


@contextmanager
def _locked(paths: Iterable[Path]) -> Generator[None]:
    """Let one process at a time change the files. Their folders are locked, because the files are replaced.

    Raises `SettingsError`.
    """
    folders = {os.path.dirname(os.path.realpath(path)): path for path in paths}  # noqa: PTH120 - a resolved text
    with ExitStack() as locks:
        for folder in sorted(folders):
            try:
                os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - a resolved text
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as failed:
                raise SettingsError(f"cannot be written: {failed.strerror or failed}", str(folders[folder])) from failed
            locks.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _document(path: Path) -> dict[str, object]:
    """Return the content of the file; an empty document if there is none. Raises `SettingsError`."""
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return {_FIELD: {}}
    except (OSError, ValueError) as failed:
        raise SettingsError(f"cannot be read: {failed}", str(path)) from failed
    try:
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


def _write(path: Path, document: Mapping[str, object]) -> None:
    """Write the file completely or not at all, with the same permissions as before.

    A new file of the person is readable only by them. Raises `SettingsError`.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600 if path.name == PERSON_FILE else 0o644
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".callboard-", delete=False) as new:
            new.write(text.encode("utf-8", "replace"))
            new.flush()
            os.fchmod(new.fileno(), mode)
            os.fsync(new.fileno())
        Path(new.name).replace(target)
    except OSError as failed:
        raise SettingsError(f"cannot be written: {failed.strerror or failed}", str(path)) from failed
