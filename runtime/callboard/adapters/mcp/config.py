"""Reads which MCP servers a session has: of the command line, the person, the workspace, plugins and agents' files.

What a workspace brings comes as the text that was trusted, or is listed as untrusted and never started. Of two servers
by one name the whole entry of the first source counts: `run`, `local`, `workspace`, `person`, `plugin`. Loads no SDK.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from callboard.adapters.files import Note
from callboard.core.mcp.approvals import KEYS, Approval, off_by
from callboard.core.mcp.entries import Entries, Fault, read_document, read_servers_node
from callboard.core.mcp.expansion import expanded
from callboard.core.trust.nodes import Node, json_node, node_of
from callboard.words.errors import UsageError
from callboard.words.mcp import ServerEntry, ServerScope, ServerState
from callboard.words.plugins import Plugin

WORKSPACE_FILE = ".mcp.json"
PERSON_FILE = "mcp.json"
"""In the person's own folder (`~/.config/callboard`)."""
LARGEST = 64_000_000
"""Bytes of a file: `~/.claude.json` grows with what its program remembers."""
UNTRUSTED = "the workspace brings it, and nobody has trusted what this workspace brings: `callboard trust` decides"


@dataclass(frozen=True, slots=True)
class ServerSources:
    """Where servers may stand. What is left out brings none."""

    workspace: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """The person's: values of `${VAR}`."""
    config: Path | None = None
    """The person's own folder (`~/.config/callboard`)."""
    home: Path | None = None
    """For `~/.claude.json`."""
    brought: str | None = None
    """The text of the workspace's `.mcp.json`; None: there is none."""
    trusted: bool = False
    """A person trusted that text."""
    plugins: tuple[Plugin, ...] = ()
    given: tuple[str, ...] = ()
    """Of `--mcp-config`: JSON texts, and paths of files relative to `folder`."""
    folder: Path | None = None
    """Where the command was given; None: the workspace."""
    strict: bool = False
    """Only what is `given` counts (`--strict-mcp-config`)."""
    approvals: tuple[Approval, ...] = ()
    """Of settings files; those of `~/.claude.json` are read here."""
    off: tuple[str, ...] = ()
    """Names that our own settings switch off (`mcp.off`)."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The servers of a session, in order of precedence, variables expanded."""

    entries: tuple[ServerEntry, ...] = ()
    held: Mapping[str, tuple[ServerState, str]] = field(default_factory=dict[str, tuple[ServerState, str]])
    """Those that are not to be connected -> (`off` or `untrusted`, why)."""
    notes: tuple[Note, ...] = ()


def read_servers(sources: ServerSources) -> Configured:
    """All servers there are. Raises `UsageError` for a `--mcp-config` that cannot be read; all else is a note."""
    reading = _Reading(sources)
    reading.run(sources.given)
    if not sources.strict:
        claude = reading.claude_file()
        reading.local(claude)
        reading.brought()
        reading.person(claude)
        for plugin in sources.plugins:
            reading.plugin(plugin)
    return reading.done()


def inline_servers(
    listed: Iterable[object], path: str, workspace: Path, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Configured]:
    """The `mcpServers` of an agent's file: names of servers that are configured, and entries written out there."""
    names: list[str] = []
    reading = _Reading(ServerSources(workspace, environment))
    for one in listed:
        if isinstance(one, str):
            names.append(one)
        elif isinstance(one, dict):
            node = node_of(cast("object", one), {})
            reading.take(read_servers_node(node, path, "agent"), path)
        else:
            reading.notes.append(
                Note(path, "mcpServers", "refused", f"a name, or a name with an entry, not {one!r:.80}")
            )
    return tuple(names), reading.done()


class _Reading:
    """One look at all sources."""

    def __init__(self, sources: ServerSources) -> None:
        self._sources = sources
        self._approvals = list(sources.approvals)
        self._entries: dict[str, ServerEntry] = {}
        self._held: dict[str, tuple[ServerState, str]] = {}
        self._untrusted: Entries | None = None
        self.notes: list[Note] = []

    def run(self, given: Sequence[str]) -> None:
        for value in given:
            path, text = _given(value, self._sources.folder or self._sources.workspace)
            try:
                node = json_node(text)
            except (ValueError, RecursionError) as error:
                where = "" if path == "--mcp-config" else f" {path}"
                raise UsageError(f"--mcp-config:{where} is not valid JSON: {error}") from None
            if not any(name == "mcpServers" and one.members is not None for name, one in node.members or ()):
                raise UsageError("--mcp-config has an object `mcpServers`: the name of each server -> its entry")
            self.take(read_document(node, path, "run"), path)

    def claude_file(self) -> Node | None:
        """`~/.claude.json`, where it says anything of servers."""
        if self._sources.home is None:
            return None
        path = self._sources.home / ".claude.json"
        text = self._text(path)
        if text is None or ("cpServers" not in text and "cpjsonServers" not in text):
            return None
        return self._node(text, str(path))

    def local(self, claude: Node | None) -> None:
        """What `~/.claude.json` says of this workspace."""
        project = _project(claude, self._sources.workspace)
        if project is None or self._sources.home is None:
            return
        path = str(self._sources.home / ".claude.json")
        for name, node in project.members or ():
            if name == "mcpServers":
                self.take(read_servers_node(node, path, "local"), path)
            elif name in KEYS:
                self._approvals.append(Approval(name, node, f"{path}:{node.line}"))

    def brought(self) -> None:
        text = self._sources.brought
        if text is None:
            return
        node = self._node(text, WORKSPACE_FILE)
        if node is None:
            return
        found = read_document(node, WORKSPACE_FILE, "workspace")
        if self._sources.trusted:
            self.take(found, WORKSPACE_FILE)
        else:
            self._untrusted = found
            self._tell(found.faults, WORKSPACE_FILE)

    def person(self, claude: Node | None) -> None:
        """Ours first, then what `~/.claude.json` has for all folders."""
        if self._sources.config is not None:
            path = self._sources.config / PERSON_FILE
            self._file(path, "person")
        if claude is not None and self._sources.home is not None:
            path = self._sources.home / ".claude.json"
            servers = dict(claude.members or ()).get("mcpServers")
            if servers is not None:
                self.take(read_servers_node(servers, str(path), "person"), str(path))

    def plugin(self, plugin: Plugin) -> None:
        """Its servers go by `plugin:NAME:SERVER`; they know the plugin's folder."""
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

    def take(self, found: Entries, path: str, more: Mapping[str, str] | None = None) -> None:
        """Take what one source says: entries that no source before it has, and what was wrong with it."""
        self._tell(found.faults, path)
        variables = {**self._sources.environment, "CLAUDE_PROJECT_DIR": str(self._sources.workspace), **(more or {})}
        for name, entry in found.entries.items():
            line, at = found.lines.get(name, 0), f"mcpServers.{name}"
            if name in self._entries:
                why = f"the server of that name in {self._entries[name].path} counts"
                self.notes.append(Note(path, at, "ignored", why, line))
                continue
            filled, unset = expanded(entry, variables)
            for variable in unset:
                why = f"the variable {variable} is not set and has no default: it stays as it is written"
                self.notes.append(Note(path, at, "ignored", why, line))
            env = {**(more or {}), **filled.env} if filled.transport == "stdio" else filled.env
            self._entries[name] = replace(filled, env=env)
            if name in found.off:
                self._held[name] = "off", found.off[name]

    def done(self) -> Configured:
        """What came of it. Untrusted servers are listed where nobody else brings their names."""
        if self._untrusted is not None:
            for name, entry in self._untrusted.entries.items():
                if name not in self._entries:
                    self._entries[name] = entry
                    self._held[name] = "untrusted", UNTRUSTED
        for name, entry in self._entries.items():
            why = off_by(entry, self._approvals) if entry.transport != "sdk" else ""
            if name in self._sources.off:
                why = "settings switch it off (mcp.off)"
            if why and name not in self._held:
                self._held[name] = "off", why
        return Configured(tuple(self._entries.values()), self._held, tuple(self.notes))

    def _file(self, path: Path, scope: ServerScope) -> None:
        text = self._text(path)
        node = None if text is None else self._node(text, str(path))
        if node is not None:
            self.take(read_document(node, str(path), scope), str(path))

    def _text(self, path: Path) -> str | None:
        """A file's text; None, and a note for what is there and cannot be read."""
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self.notes.append(Note(str(path), "", "refused", f"cannot be read: {why}"))
            return None

    def _node(self, text: str, path: str) -> Node | None:
        try:
            return json_node(text)
        except json.JSONDecodeError as error:
            self.notes.append(Note(path, "", "refused", f"is not valid JSON: {error.msg}", error.lineno))
        except (ValueError, RecursionError) as error:
            self.notes.append(Note(path, "", "refused", f"cannot be understood: {error}"))
        return None

    def _tell(self, faults: Iterable[Fault], path: str) -> None:
        self.notes += [Note(path, one.field, one.verdict, one.why, one.line) for one in faults]


def _given(value: str, folder: Path) -> tuple[str, str]:
    """Where a `--mcp-config` stands, and its text. Raises `UsageError`."""
    if value.lstrip().startswith("{"):
        return "--mcp-config", value
    path = folder / Path(value).expanduser()
    try:
        return str(path), _read(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--mcp-config: {path} cannot be read: {why}") from None


def _read(path: Path) -> str:
    """A regular file as text. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise ValueError(f"is larger than {LARGEST:,} bytes")
    return raw.decode("utf-8-sig")


def _project(claude: Node | None, workspace: Path) -> Node | None:
    projects = dict((claude.members if claude is not None else None) or ()).get("projects")
    named = dict((projects.members if projects is not None else None) or ())
    return named.get(str(workspace)) or named.get(os.path.realpath(workspace))


def _of_plugin(found: Entries, plugin: Plugin) -> Entries:
    """The same under the names of a plugin's servers."""

    def named(name: str) -> str:
        return f"plugin:{plugin.name}:{name}"

    entries = {named(name): replace(entry, name=named(name)) for name, entry in found.entries.items()}
    lines = {named(name): line for name, line in found.lines.items()}
    return Entries(entries, found.faults, lines, {named(name): why for name, why in found.off.items()})


def _root(plugin: Plugin) -> dict[str, str]:
    return {"CLAUDE_PLUGIN_ROOT": str(plugin.root)}
