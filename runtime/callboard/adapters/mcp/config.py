"""Reader of the MCP servers of a session: of the command line, the user, the workspace, plugins and agents' files.

A workspace's servers have the text that was trusted, or are listed as untrusted and never started. Of two servers with
one name, the whole entry of the first source counts: `run`, `local`, `workspace`, `person`, `plugin`. Does not import
the SDK.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.discovery import DiscoveryNote
from callboard.adapters.system.regular_files import read_regular
from callboard.core.mcp.config_entries import (
    KEYS,
    Approval,
    ConfigEntries,
    EntryFault,
    expand_variables,
    off_by,
    read_document,
    read_servers_node,
)
from callboard.core.permissions.sensitive_paths import claude_state_file
from callboard.core.trust.yaml_nodes import YamlNode, json_node, node_of
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry, ServerScope, ServerState
from callboard.types.skills import Plugin

WORKSPACE_FILE = ".mcp.json"
PERSON_FILE = "mcp.json"
"""File in the user's own folder (`~/.config/callboard`)."""
LARGEST = 64_000_000
"""Most bytes of a file. `~/.claude.json` grows with the history of its program."""
UNTRUSTED = "the workspace defines it, and its content is not trusted: `callboard trust` decides"


@dataclass(frozen=True, slots=True)
class ServerSources:
    """Sources of server entries. An omitted source has no entries."""

    workspace: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """The user's environment, for the values of `${VAR}`."""
    config: Path | None = None
    """The user's own folder (`~/.config/callboard`)."""
    home: Path | None = None
    """The user's home folder, for `~/.claude.json`."""
    workspace_text: str | None = None
    """Text of the workspace's `.mcp.json`; None: it does not exist, or is not UTF-8."""
    trusted: bool = False
    """True if the user trusted that text."""
    plugins: tuple[Plugin, ...] = ()
    command_line: tuple[str, ...] = ()
    """Values of `--mcp-config`: JSON texts, and paths of files relative to `folder`."""
    folder: Path | None = None
    """Folder in which the command was run; None: the workspace."""
    strict: bool = False
    """True: use only `command_line` (`--strict-mcp-config`)."""
    must_fit: bool = False
    """True if a refused entry of `command_line` raises `UsageError`: a program reads no note about it."""
    approvals: tuple[Approval, ...] = ()
    """Approvals of settings files. Those of `~/.claude.json` are read here."""
    off: tuple[str, ...] = ()
    """Names of servers that Callboard's settings switch off (`mcp.off`)."""
    workspace_fault: str = ""
    """Reason why `workspace_text` is None although the file exists."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The servers of a session in order of precedence, with expanded variables."""

    entries: tuple[ServerEntry, ...] = ()
    held: Mapping[str, tuple[ServerState, str]] = field(default_factory=dict[str, tuple[ServerState, str]])
    """Servers that must not be connected -> `off` or `untrusted`, and the reason."""
    notes: tuple[DiscoveryNote, ...] = ()


def read_servers(sources: ServerSources) -> Configured:
    """Return all configured servers.

    Raises `UsageError` for an unreadable `--mcp-config`, and as `must_fit` says; any other problem is a note.
    """
    reading = _Reading(sources)
    reading.run(sources.command_line)
    if not sources.strict:
        claude = reading.claude_file()
        reading.local(claude)
        reading.workspace_text()
        reading.person(claude)
        for plugin in sources.plugins:
            reading.plugin(plugin)
    return reading.done()


def inline_servers(
    listed: Iterable[object], path: str, workspace: Path, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Configured]:
    """Return the `mcpServers` of an agent's file: names of configured servers, and entries written there."""
    names: list[str] = []
    reading = _Reading(ServerSources(workspace, environment))
    for entry in listed:
        if isinstance(entry, str):
            names.append(entry)
        elif isinstance(entry, dict):
            node = node_of(cast("object", entry), {})
            reading.take(read_servers_node(node, path, "agent"), path)
        else:
            reading.notes.append(
                DiscoveryNote(path, "mcpServers", "refused", f"a name, or a name with an entry, not {entry!r:.80}")
            )
    return tuple(names), reading.done()


class _Reading:
    """One pass over all sources."""

    def __init__(self, sources: ServerSources) -> None:
        self._sources = sources
        self._approvals = list(sources.approvals)
        self._entries: dict[str, ServerEntry] = {}
        self._held: dict[str, tuple[ServerState, str]] = {}
        self._untrusted: ConfigEntries | None = None
        self.notes: list[DiscoveryNote] = []

    def run(self, values: Sequence[str]) -> None:
        for value in values:
            path, text = _config_text(value, self._sources.folder or self._sources.workspace)
            try:
                node = json_node(text)
            except (ValueError, RecursionError) as error:
                where = "" if path == "--mcp-config" else f" {path}"
                raise UsageError(f"--mcp-config:{where} is not valid JSON: {error}") from None
            if not any(name == "mcpServers" and member.members is not None for name, member in node.members or ()):
                raise UsageError(
                    "--mcp-config must contain an object `mcpServers`: the name of each server -> its entry"
                )
            entries = read_document(node, path, "run")
            refused = next((fault for fault in entries.faults if fault.verdict == "refused"), None)
            if refused is not None and self._sources.must_fit:
                where = "mcp" if path == "--mcp-config" else f"mcp: {path}:{refused.line}"
                raise UsageError(f"{where}: {refused.field} {refused.why}")
            self.take(entries, path)

    def claude_file(self) -> YamlNode | None:
        """Return `~/.claude.json` if it mentions servers."""
        if self._sources.home is None:
            return None
        path = claude_state_file(self._sources.home, self._sources.environment)
        text = self._text(path)
        if text is None or ("cpServers" not in text and "cpjsonServers" not in text):
            return None
        return self._node(text, str(path))

    def local(self, claude: YamlNode | None) -> None:
        """Read the part of `~/.claude.json` about this workspace."""
        project = _project(claude, self._sources.workspace)
        if project is None or self._sources.home is None:
            return
        path = str(claude_state_file(self._sources.home, self._sources.environment))
        for name, node in project.members or ():
            if name == "mcpServers":
                self.take(read_servers_node(node, path, "local"), path)
            elif name in KEYS:
                self._approvals.append(Approval(name, node, f"{path}:{node.line}"))

    def workspace_text(self) -> None:
        text = self._sources.workspace_text
        if text is None:
            if fault := self._sources.workspace_fault:
                self.notes.append(DiscoveryNote(WORKSPACE_FILE, "", "refused", fault, 0))
            return
        node = self._node(text, WORKSPACE_FILE)
        if node is None:
            return
        entries = read_document(node, WORKSPACE_FILE, "workspace")
        if self._sources.trusted:
            self.take(entries, WORKSPACE_FILE)
        else:
            self._untrusted = entries
            self._report(entries.faults, WORKSPACE_FILE)

    def person(self, claude: YamlNode | None) -> None:
        """Read Callboard's own file, then the entries of `~/.claude.json` for all folders."""
        if self._sources.config is not None:
            path = self._sources.config / PERSON_FILE
            self._file(path, "person")
        if claude is not None and self._sources.home is not None:
            path = claude_state_file(self._sources.home, self._sources.environment)
            servers = dict(claude.members or ()).get("mcpServers")
            if servers is not None:
                self.take(read_servers_node(servers, str(path), "person"), str(path))

    def plugin(self, plugin: Plugin) -> None:
        """Read a plugin's servers. They are named `plugin:NAME:SERVER` and know the plugin's folder."""
        for path in plugin.mcp:
            text = self._text(path)
            node = None if text is None else self._node(text, str(path))
            if node is not None:
                named = "mcpServers" in dict(node.members or ())
                read = read_document if named else read_servers_node
                self.take(_of_plugin(read(node, str(path), "plugin"), plugin), str(path), _root(plugin))
        if plugin.mcp_inline is not None:
            inline = plugin.mcp_inline.get("mcpServers", plugin.mcp_inline)
            node = node_of(inline, {})
            path = str(plugin.root / ".claude-plugin" / "plugin.json")
            self.take(_of_plugin(read_servers_node(node, path, "plugin"), plugin), path, _root(plugin))

    def take(self, entries: ConfigEntries, path: str, extra: Mapping[str, str] | None = None) -> None:
        """Add the result of one source: entries whose names no earlier source has, and its mistakes."""
        self._report(entries.faults, path)
        variables = {**self._sources.environment, "CLAUDE_PROJECT_DIR": str(self._sources.workspace), **(extra or {})}
        for name, entry in entries.entries.items():
            line = entries.lines.get(name, 0)
            at = f"mcpServers.{name}"
            if name in self._entries:
                reason = f"the server of that name in {self._entries[name].path} counts"
                self.notes.append(DiscoveryNote(path, at, "ignored", reason, line))
                continue
            filled, unset = expand_variables(entry, variables)
            for variable in unset:
                reason = f"the variable {variable} is not set and has no default: it stays as it is written"
                self.notes.append(DiscoveryNote(path, at, "ignored", reason, line))
            env = {**(extra or {}), **filled.env} if filled.transport == "stdio" else filled.env
            self._entries[name] = replace(filled, env=env)
            if name in entries.off:
                self._held[name] = "off", entries.off[name]

    def done(self) -> Configured:
        """Return the result. Untrusted servers are listed if no other source brings their names."""
        if self._untrusted is not None:
            for name, entry in self._untrusted.entries.items():
                if name not in self._entries:
                    self._entries[name] = entry
                    self._held[name] = "untrusted", UNTRUSTED
        for name, entry in self._entries.items():
            reason = off_by(entry, self._approvals) if entry.transport != "sdk" else ""
            if name in self._sources.off:
                reason = "settings switch it off (mcp.off)"
            if reason and name not in self._held:
                self._held[name] = "off", reason
        return Configured(tuple(self._entries.values()), self._held, tuple(self.notes))

    def _file(self, path: Path, scope: ServerScope) -> None:
        text = self._text(path)
        node = None if text is None else self._node(text, str(path))
        if node is not None:
            self.take(read_document(node, str(path), scope), str(path))

    def _text(self, path: Path) -> str | None:
        """Return a file's text; None if it does not exist, or cannot be read, which adds a note."""
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.notes.append(DiscoveryNote(str(path), "", "refused", f"cannot be read: {reason}"))
            return None

    def _node(self, text: str, path: str) -> YamlNode | None:
        try:
            return json_node(text)
        except json.JSONDecodeError as error:
            self.notes.append(DiscoveryNote(path, "", "refused", f"is not valid JSON: {error.msg}", error.lineno))
        except (ValueError, RecursionError) as error:
            self.notes.append(DiscoveryNote(path, "", "refused", f"cannot be understood: {error}"))
        return None

    def _report(self, faults: Iterable[EntryFault], path: str) -> None:
        self.notes += [DiscoveryNote(path, fault.field, fault.verdict, fault.why, fault.line) for fault in faults]


def _config_text(value: str, folder: Path) -> tuple[str, str]:
    """Return the location and the text of a `--mcp-config` value. Raises `UsageError`."""
    if value.lstrip().startswith("{"):
        return "--mcp-config", value
    path = folder / Path(value).expanduser()
    try:
        return str(path), _read(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--mcp-config: {path} cannot be read: {reason}") from None


def _read(path: Path) -> str:
    """Return a regular file as text. Raises OSError, ValueError."""
    return read_regular(path, LARGEST).decode("utf-8-sig")


def _project(claude: YamlNode | None, workspace: Path) -> YamlNode | None:
    projects = dict((claude.members if claude is not None else None) or ()).get("projects")
    named = dict((projects.members if projects is not None else None) or ())
    return named.get(str(workspace)) or named.get(os.path.realpath(workspace))


def _of_plugin(source: ConfigEntries, plugin: Plugin) -> ConfigEntries:
    """Return the entries under the names of a plugin's servers."""

    def named(name: str) -> str:
        return f"plugin:{plugin.name}:{name}"

    entries = {named(name): replace(entry, name=named(name)) for name, entry in source.entries.items()}
    lines = {named(name): line for name, line in source.lines.items()}
    return ConfigEntries(entries, source.faults, lines, {named(name): reason for name, reason in source.off.items()})


def _root(plugin: Plugin) -> dict[str, str]:
    return {"CLAUDE_PLUGIN_ROOT": str(plugin.root)}
