"""Reader of the fields of an agent's front matter, each separately.

An invalid value is reported with file, line and field, and counts as omitted. A value that a file may not set for
itself, such as rights from a workspace for its own agents, is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, TypeVar, cast, get_args

from callboard.adapters.extensions.discovery import UNTRUSTED, DiscoveryNote, Scope, word_list
from callboard.adapters.extensions.yaml import YamlDocument
from callboard.core.tool_access import ALL_TOOLS, COMPATIBLE, our_names
from callboard.types.agent_spec import READ_AS
from callboard.types.choices import choose
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode

EFFORTS: tuple[Literal["low", "medium", "high", "xhigh", "max"], ...] = ("low", "medium", "high", "xhigh", "max")
MEMORIES: tuple[Literal["user", "project", "local"], ...] = ("user", "project", "local")
COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "pink", "cyan")
ISOLATIONS: tuple[Literal["worktree"], ...] = ("worktree",)

MODES = get_args(PermissionMode)
SPAWNERS = frozenset({"Agent", "Task", "task", "spawn_teammate"})
"""Entries of a tools list whose brackets contain the types that may be started."""
_ALL = frozenset({"", "*", "all", "all tools"})
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0", ""})

T = TypeVar("T", bound=str)


@dataclass(frozen=True, slots=True)
class AgentFields:
    """Reading of one file: its fields with their lines, and the notes so far."""

    path: str
    scope: Scope
    document: YamlDocument
    notes: list[DiscoveryNote]
    plugin: str = ""
    """Plugin of the file; empty: none."""
    inert: bool = False
    """True if the workspace of the file is not trusted: fields that grant or run something do not count."""

    def refuses(self, field: str, of_plugin: str) -> bool:
        """Return True if a field that grants or runs something does not count, and add a note if the field is present.

        `of_plugin`: the reason for an agent of a plugin.
        """
        reason = UNTRUSTED if self.inert else of_plugin if self.plugin else ""
        if reason and self.fields.get(field) is not None:
            self.note_ignored(field, reason)
        return bool(reason)

    @property
    def fields(self) -> Mapping[str, object]:
        """Return the front matter, by field."""
        return cast("Mapping[str, object]", self.document.data)

    def note_ignored(self, field: str, reason: str) -> None:
        """Add a note that `field` is ignored."""
        self.notes.append(DiscoveryNote(self.path, field, "ignored", reason, self.line(field)))

    def note_refused(self, field: str, reason: str) -> None:
        """Add a note that `field` requests something forbidden, or makes the file unusable."""
        self.notes.append(DiscoveryNote(self.path, field, "refused", reason, self.line(field)))

    def note_honored(self, fixed: Sequence[str]) -> None:
        """Add a note that these fields, which are not valid YAML, were read as plain text."""
        first, *others = fixed
        also = f" (and {', '.join(others)})" if others else ""
        reason = f"is not valid YAML{also}, and was read as plain text: put it in quotes"
        self.notes.append(DiscoveryNote(self.path, first, "honored", reason, self.line(first)))

    def line(self, field: str) -> int:
        """Return the line of a field, from 1; 0 if the front matter does not have it."""
        lines = self.document.lines
        return lines.get(tuple(field.split(".")), lines.get((field.split(".")[0],), 0))


@dataclass(frozen=True, slots=True)
class ToolsRead:
    """The entries of one list: those for built-in tools, and those for tools of MCP servers, unchanged."""

    tools: tuple[str, ...]
    servers: tuple[str, ...]
    unreadable: bool = False
    """True if nothing in the list is a name: it cannot be known what it restricts."""


def text_of(reading: AgentFields, field: str) -> str:
    """Return a text without surrounding blanks; empty if it is missing.

    A value that is not a text is reported and counts as missing.
    """
    value = reading.fields.get(field)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None:
        reading.note_ignored(field, f"write a text, not {kind_of(value)}")
    return ""


def kind_of(value: object) -> str:
    """Return the type of a value as a text for the user."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else "a number" if isinstance(value, int | float) else "a text"


def words_of(reading: AgentFields, field: str) -> tuple[str, ...]:
    """Return a list of words from a YAML list or separated by commas; entries that are not texts are reported."""
    value = reading.fields.get(field)
    if value is None or isinstance(value, str):
        return word_list(value)
    if not isinstance(value, list | tuple):
        reading.note_ignored(field, f"write names, separated by commas or as a list, not {kind_of(value)}")
        return ()
    names: list[str] = []
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, str):
            names.append(entry.strip())
        else:
            reading.note_ignored(field, f"{str(entry)[:60]} is not a name but {kind_of(entry)}")
    return tuple(entry for entry in names if entry)


def tools_of(reading: AgentFields, field: str) -> ToolsRead:
    """Return the entries that name a tool. The others are reported, each with the names that it resembles."""
    note_count = len(reading.notes)
    entries = words_of(reading, field)
    if not entries and len(reading.notes) > note_count:
        return ToolsRead((), (), unreadable=True)
    servers = tuple(entry for entry in entries if entry.startswith("mcp__"))
    tools = tuple(entry for entry in entries if our_names(entry))
    for entry in entries if tools or servers else ():
        if entry not in (*tools, *servers):
            reading.note_ignored(field, f"there is no tool {entry} here{_suggested((entry,))}")
        elif entry in tools and "(" in entry and (entry.partition("(")[0].strip() not in SPAWNERS or field != "tools"):
            reading.note_ignored(field, f"{entry}: the whole tool is meant, the text in brackets is ignored")
    if entries and not tools and not servers:
        reason = f"none of these is a tool here: {', '.join(entries)}"
        if field == "tools":
            reading.note_refused(field, f"{reason}: the agent has none of its own{_suggested(entries)}")
        else:
            reading.note_ignored(field, f"{reason}{_suggested(entries)}")
    return ToolsRead(tools, servers)


def _suggested(entries: Sequence[str]) -> str:
    """Return `; did you mean Read or Bash?`: names of tools that resemble these entries; empty if none does."""
    names = {name.lower(): name for name in (*sorted(ALL_TOOLS), *COMPATIBLE)}  # written as Claude Code does
    written = [entry.partition("(")[0].strip().lower() for entry in entries]
    near = dict.fromkeys(names[name] for entry in written for name in get_close_matches(entry, names, 1, 0.7))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def allowed_tools(reading: AgentFields) -> ToolsRead | None:
    """Return the allowlist; None if the field is omitted: all tools for its kind.

    A list without a known tool gives none. An invalid one is `unreadable`, and reported: a restriction that cannot be
    read must not be dropped.
    """
    value: Any = reading.fields.get("tools")
    if value is None or (isinstance(value, str) and value.strip().lower() in _ALL) or value == ["*"]:
        return None
    if not isinstance(value, str | list | tuple):
        reading.note_refused("tools", f"write names, separated by commas or as a list, not {kind_of(value)}")
        return ToolsRead((), (), unreadable=True)
    return tools_of(reading, "tools")


def may_spawn_of(allowed: ToolsRead | None) -> tuple[str, ...] | None:
    """Return the types in `Agent(a, b)`; None if no list names them."""
    spawners = [entry for entry in (allowed.tools if allowed else ()) if entry.partition("(")[0].strip() in SPAWNERS]
    if not spawners or any("(" not in entry for entry in spawners):
        return None
    return tuple(name for entry in spawners for name in word_list(entry.partition("(")[2].rstrip().removesuffix(")")))


def model_of(reading: AgentFields) -> str | None:
    """Return an id or an alias; None: that of the parent."""
    model = text_of(reading, "model")
    return None if model in {"", "inherit", "default"} else model


def mode_of(reading: AgentFields) -> PermissionMode | None:
    """Return the permission mode.

    A mode `auto` counts as `default`; a workspace cannot give itself `bypassPermissions`.
    """
    written = text_of(reading, "permissionMode")
    if not written:
        return None
    if reading.refuses("permissionMode", "an agent of a plugin says nothing of its rights"):
        return None
    if written == "auto":
        reading.note_ignored("permissionMode", "auto is read as default")
    written = READ_AS.get(written, written)
    if written not in MODES:
        reading.note_ignored("permissionMode", f"{written} is not a mode: write one of {', '.join(MODES)}")
        return None
    if written == "bypassPermissions" and reading.scope == "workspace":
        reading.note_refused("permissionMode", "a workspace cannot lift its own permissions")
        return None
    return cast("PermissionMode", written)


def one_of(reading: AgentFields, field: str, choices: Sequence[T]) -> T | Literal[""]:
    """Return one of a few words; empty if the field is omitted or invalid."""
    written = text_of(reading, field).lower()
    match = next((choice for choice in choices if choice == written), None)
    if written and match is None:
        reading.note_ignored(field, f"{written} is unknown: write {' or '.join(choices)}, or leave it out")
    return match or ""


def flag_of(reading: AgentFields, field: str) -> bool:
    """Return true or false, also in informal notation (yes, on, 1)."""
    value = reading.fields.get(field)
    written = str("" if value is None else value).strip().lower()
    if written not in _YES | _NO:
        reading.note_ignored(field, "write true or false")
    return written in _YES


def max_turns_of(reading: AgentFields) -> int | None:
    """Return a whole number from 1; None if it is omitted."""
    value = reading.fields.get("maxTurns")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        reading.note_ignored("maxTurns", "write a whole number from 1")
        return None
    return value


def budget_of(reading: AgentFields) -> Budget:
    """Return the valid limits; the others are reported."""
    value = reading.fields.get("budget")
    if value is None:
        return Budget()
    if not isinstance(value, dict):
        reading.note_ignored("budget", f"write limits by name: {', '.join(Budget.model_fields)}")
        return Budget()
    limits: dict[str, float] = {}
    for name, limit in cast("dict[object, object]", value).items():
        whole = name not in ("cost_usd", "seconds")
        number = _number(limit)
        if name not in Budget.model_fields:
            reading.note_ignored(f"budget.{name}", f"is not a limit: {choose(Budget.model_fields)}")
        elif number is None or (whole and not number.is_integer()):
            reading.note_ignored(f"budget.{name}", f"write a {'whole ' if whole else ''}number from 0")
        else:
            limits[str(name)] = number
    return Budget.model_validate(limits)


def _number(value: object) -> float | None:
    """Return a finite number from 0; a fraction in a file is a text."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def servers_of(reading: AgentFields) -> tuple[object, ...]:
    """Return names of MCP servers and inline entries (`{name: {...}}`), unchanged."""
    value = reading.fields.get("mcpServers")
    if value is None:
        return ()
    if reading.refuses("mcpServers", "an agent of a plugin brings no servers: the plugin's .mcp.json does"):
        return ()
    if isinstance(value, dict):
        return tuple({name: entry} for name, entry in cast("dict[str, object]", value).items())
    if isinstance(value, str):
        return word_list(value)
    if not isinstance(value, list | tuple):
        reading.note_ignored("mcpServers", f"write a list of names or entries, not {kind_of(value)}")
        return ()
    servers: list[object] = []
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, str | dict):
            servers.append(cast("object", entry))
        else:
            reading.note_ignored("mcpServers", f"{str(entry)[:60]} is neither a name nor an entry")
    return tuple(servers)
