"""The MCP servers of a workspace for a person: which there are, what becomes of an entry that is added or removed.

Entries are written whole or not at all, and everything else of the file stays as it is. Nothing is connected here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast

from callboard.adapters.mcp.config import PERSON_FILE, WORKSPACE_FILE, Configured, ServerSources, read_servers
from callboard.adapters.plugins import read_plugins
from callboard.assembly import Places, find_places
from callboard.core.mcp.entries import read_servers_node
from callboard.core.trust.nodes import node_of
from callboard.settings import load_settings
from callboard.trusting import standing
from callboard.words.errors import SettingsError, UsageError
from callboard.words.mcp import ServerEntry, ServerState
from callboard.words.settings_model import McpSettings
from callboard.words.values import Json

Scope = Literal["person", "workspace"]

_FIELD = "mcpServers"


@dataclass(frozen=True, slots=True)
class Servers:
    """What is configured. `entries`: variables expanded, to be connected; `shown`: as they are written, for people."""

    places: Places
    configured: Configured
    shown: Mapping[str, ServerEntry]
    settings: McpSettings

    def state_of(self, name: str) -> tuple[ServerState, str]:
        """`waiting` for one that a session connects; else `off` or `untrusted`, and why."""
        return self.configured.held.get(name, ("waiting", ""))

    def entry(self, name: str) -> ServerEntry:
        """As it is written. Raises `UsageError` with the names there are."""
        if name not in self.shown:
            raise UsageError(f"there is no MCP server {name!r}{_instead(name, self.shown)}")
        return self.shown[name]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and where."""

    path: Path
    entry: Json
    """As it stands there now; for one that was removed, as it stood."""
    needs_trust: bool
    told: tuple[str, ...] = ()
    """What of it is not heeded, a line each."""


def servers_of(
    workspace: Path, *, plugins: Sequence[Path] = (), given: Sequence[str] = (), trust: bool = False
) -> Servers:
    """The servers that a session here would have. `trust`: as if the workspace were trusted. `given`: as
    `--mcp-config`. Raises `WorkspaceUnusable`, `UsageError`."""
    places = find_places(workspace, writable=False)
    now = standing(places.workspace, places.config)
    trusted = trust or now.trusted
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, brought=now.brought)
    found, _ = read_plugins(plugins)

    def read(environment: Mapping[str, str]) -> Configured:
        return read_servers(
            ServerSources(
                places.workspace,
                environment,
                places.config,
                Path.home(),
                brought=now.brought.text(WORKSPACE_FILE),
                trusted=trusted,
                plugins=found,
                given=tuple(given),
                folder=Path.cwd(),
                approvals=tuple(one for file in loaded.claude for one in file.servers),
                off=tuple(loaded.settings.mcp.off),
            )
        )

    written = read({}).entries  # without variables they stay as they are written: a value may be a secret
    return Servers(places, read(os.environ), {one.name: one for one in written}, loaded.settings.mcp)


def add_server(workspace: Path, name: str, entry: Json, scope: Scope, *, replace: bool = False) -> Written:
    """Write an entry. Raises `UsageError` for one that is no entry, a name that cannot be one or is taken, and
    `SettingsError` for a file that cannot be read or written."""
    path = path_of(workspace, scope)
    found = read_servers_node(node_of({name: entry}, {}), str(path), scope)
    refused = [one for one in found.faults if one.verdict == "refused"]
    if refused or name not in found.entries:
        raise UsageError("; ".join(f"{one.field}: {one.why}" for one in refused) or f"{name!r} is no name")
    document = _document(path)
    servers = _servers(document, path)
    if name in servers and not replace:
        raise UsageError(
            f"{path} has a server {name!r} already: --replace writes over it, `callboard mcp get` shows it"
        )
    servers[name] = entry
    _write(path, document)
    told = tuple(f"{one.field}: {one.why}" for one in found.faults)
    return Written(path, entry, scope == "workspace", told)


def remove_server(workspace: Path, name: str, scope: Scope | None = None) -> Written:
    """Take an entry out; without a scope from the one file of ours that has it. Raises `UsageError` with what there is,
    `SettingsError`."""
    there = {one: path_of(workspace, one) for one in (("person", "workspace") if scope is None else (scope,))}
    documents = {one: _document(path) for one, path in there.items()}
    having = [one for one in there if name in _servers(documents[one], there[one])]
    if len(having) > 1:
        raise UsageError(f"{name!r} stands in {' and in '.join(str(there[one]) for one in having)}: say --scope")
    if not having:
        known = [each for one in there for each in _servers(documents[one], there[one])]
        where = " or ".join(str(path) for path in there.values())
        raise UsageError(f"{where} has no server {name!r}{_instead(name, known)}")
    (found,) = having
    servers = _servers(documents[found], there[found])
    entry = cast("Json", servers.pop(name))
    _write(there[found], documents[found])
    return Written(there[found], entry, found == "workspace")


def path_of(workspace: Path, scope: Scope) -> Path:
    """The file that entries of a scope are written to. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    return places.config / PERSON_FILE if scope == "person" else places.workspace / WORKSPACE_FILE


def _instead(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    near = get_close_matches(name, list(known), n=2, cutoff=0.5)
    if near:
        return f". Did you mean {' or '.join(near)}?"
    return f"; there are: {', '.join(sorted(known))}" if known else "; there are none: `callboard mcp add` adds one"


def _document(path: Path) -> dict[str, object]:
    """What the file holds; an empty one where there is none. Raises `SettingsError`."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        return {_FIELD: {}}
    except (OSError, ValueError) as failed:
        raise SettingsError(f"cannot be read: {failed}", str(path)) from failed
    try:
        found: object = json.loads(text or "{}")
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"is not valid JSON, so nothing was changed: {wrong}", str(path)) from wrong
    if not isinstance(found, dict):
        raise SettingsError("is no JSON object, so nothing was changed", str(path))
    return cast("dict[str, object]", found)


def _servers(document: dict[str, object], path: Path) -> dict[str, object]:
    servers = document.setdefault(_FIELD, {})
    if not isinstance(servers, dict):
        raise SettingsError(f"{_FIELD} is no JSON object, so nothing was changed", str(path))
    return cast("dict[str, object]", servers)


def _write(path: Path, document: Mapping[str, object]) -> None:
    """Whole or not at all, readable as it was before; the person's own file by them alone. Raises `SettingsError`."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600 if path.name == PERSON_FILE else 0o644
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".callboard-", delete=False) as new:
            new.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
            new.flush()
            os.fchmod(new.fileno(), mode)
            os.fsync(new.fileno())
        Path(new.name).replace(target)
    except OSError as failed:
        raise SettingsError(f"cannot be written: {failed.strerror or failed}", str(path)) from failed
