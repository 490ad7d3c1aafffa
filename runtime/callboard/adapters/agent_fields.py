"""Reads the fields of an agent's front matter, each on its own: a value that is none is told with file, line and field,
and counts as left out. What a file may not say for itself (a workspace its own rights) is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, cast, get_args

from callboard.adapters.files import Note, Scope, words
from callboard.adapters.yaml_files import YamlDocument
from callboard.core.toolset import our_names
from callboard.words.specs import READ_AS, PermissionMode
from callboard.words.values import Budget

EFFORTS: tuple[Literal["low", "medium", "high", "xhigh", "max"], ...] = ("low", "medium", "high", "xhigh", "max")
MEMORIES: tuple[Literal["user", "project", "local"], ...] = ("user", "project", "local")
COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "pink", "cyan")
ISOLATIONS: tuple[Literal["worktree"], ...] = ("worktree",)

MODES = get_args(PermissionMode)
SPAWNERS = frozenset({"Agent", "Task", "task", "spawn_teammate"})
"""Entries of a tools list whose brackets hold the types that may be started."""
_ALL = frozenset({"", "*", "all", "all tools"})
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0", ""})

T = TypeVar("T", bound=str)


@dataclass(frozen=True, slots=True)
class Reading:
    """One file while it is read: its fields with their lines, and the notes taken so far."""

    path: str
    scope: Scope
    document: YamlDocument
    notes: list[Note]
    plugin: str = ""
    """The plugin that brings the file; empty: none."""

    @property
    def fields(self) -> Mapping[str, object]:
        """What stands in the front matter, by field."""
        return cast("Mapping[str, object]", self.document.data)

    def ignored(self, field: str, why: str) -> None:
        """Take a note: `field` is not heeded."""
        self.notes.append(Note(self.path, field, "ignored", why, self.line(field)))

    def refused(self, field: str, why: str) -> None:
        """Take a note: `field` asks for what it may not have, or the file cannot be used for it."""
        self.notes.append(Note(self.path, field, "refused", why, self.line(field)))

    def honoured(self, mended: Sequence[str]) -> None:
        """Take the note that these fields, no YAML as they stand, were read as the texts that they look like."""
        first, *more = mended
        also = f" (and {', '.join(more)})" if more else ""
        why = f"is no YAML as it stands{also}, and was read as a text: put quotes round it"
        self.notes.append(Note(self.path, first, "honoured", why, self.line(first)))

    def line(self, field: str) -> int:
        """Where the field stands, from 1; 0: it is not written."""
        known = self.document.lines
        return known.get(tuple(field.split(".")), known.get((field.split(".")[0],), 0))


@dataclass(frozen=True, slots=True)
class ToolsRead:
    """The entries of one list: those for tools of ours, and those for tools of MCP servers, as written."""

    ours: tuple[str, ...]
    servers: tuple[str, ...]


def text_of(reading: Reading, field: str) -> str:
    """A text, blanks around it cut; empty when there is none. What is no text is told and counts as none."""
    value = reading.fields.get(field)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None:
        reading.ignored(field, f"write a text, not {kind_of(value)}")
    return ""


def kind_of(value: object) -> str:
    """What a value is, in words for people."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else "a number" if isinstance(value, int | float) else "a text"


def words_of(reading: Reading, field: str) -> tuple[str, ...]:
    """A list of words, as a YAML list or separated by commas; entries that are no text are told."""
    value = reading.fields.get(field)
    if value is None or isinstance(value, str):
        return words(value)
    if not isinstance(value, list | tuple):
        reading.ignored(field, f"write names, separated by commas or as a list, not {kind_of(value)}")
        return ()
    found: list[str] = []
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, str):
            found.append(entry.strip())
        else:
            reading.ignored(field, f"{str(entry)[:60]} is no name but {kind_of(entry)}")
    return tuple(entry for entry in found if entry)


def tools_of(reading: Reading, field: str) -> ToolsRead:
    """The entries that stand for a tool; the others are told, unless none is one."""
    entries = words_of(reading, field)
    servers = tuple(entry for entry in entries if entry.startswith("mcp__"))
    ours = tuple(entry for entry in entries if our_names(entry))
    for entry in entries if ours or servers else ():
        if entry not in (*ours, *servers):
            reading.ignored(field, f"there is no tool {entry} here")
        elif entry in ours and "(" in entry and (entry.partition("(")[0].strip() not in SPAWNERS or field != "tools"):
            reading.ignored(field, f"{entry}: the whole tool is meant, what stands in brackets is not heeded")
    if entries and not ours and not servers:
        verdict = reading.refused if field == "tools" else reading.ignored
        verdict(field, f"none of these is a tool here: {', '.join(entries)}")
    return ToolsRead(ours, servers)


def allowed_tools(reading: Reading) -> ToolsRead | None:
    """The allowlist; None when there is none: all that its kind may have. Empty for a list that names nothing, and for
    one that cannot be read, which is told: a restriction that is not understood is none to be dropped."""
    value: Any = reading.fields.get("tools")
    if value is None or (isinstance(value, str) and value.strip().lower() in _ALL) or value == ["*"]:
        return None
    if not isinstance(value, str | list | tuple):
        reading.refused("tools", f"write names, separated by commas or as a list, not {kind_of(value)}")
        return ToolsRead((), ())
    return tools_of(reading, "tools")


def may_spawn_of(allowed: ToolsRead | None) -> tuple[str, ...] | None:
    """The types in `Agent(a, b)`; None: no list says which."""
    spawners = [entry for entry in (allowed.ours if allowed else ()) if entry.partition("(")[0].strip() in SPAWNERS]
    if not spawners or any("(" not in entry for entry in spawners):
        return None
    return tuple(name for entry in spawners for name in words(entry.partition("(")[2].rstrip().removesuffix(")")))


def model_of(reading: Reading) -> str | None:
    """An id or an alias; None: its parent's."""
    model = text_of(reading, "model")
    return None if model in {"", "inherit", "default"} else model


def mode_of(reading: Reading) -> PermissionMode | None:
    """A mode `auto` counts as `default`; a workspace never puts itself into `bypassPermissions`."""
    written = text_of(reading, "permissionMode")
    if not written:
        return None
    if reading.plugin:
        reading.ignored("permissionMode", "an agent of a plugin says nothing of its rights")
        return None
    if written == "auto":
        reading.ignored("permissionMode", "auto is read as default")
    written = READ_AS.get(written, written)
    if written not in MODES:
        reading.ignored("permissionMode", f"{written} is no mode: write one of {', '.join(MODES)}")
        return None
    if written == "bypassPermissions" and reading.scope == "workspace":
        reading.refused("permissionMode", "a workspace cannot lift its own permissions")
        return None
    return cast("PermissionMode", written)


def one_of(reading: Reading, field: str, choices: Sequence[T]) -> T | Literal[""]:
    """One of a few words; empty when it is left out, or is none of them."""
    written = text_of(reading, field).lower()
    found = next((one for one in choices if one == written), None)
    if written and found is None:
        reading.ignored(field, f"{written} is none: write {' or '.join(choices)}, or leave it out")
    return found or ""


def flag_of(reading: Reading, field: str) -> bool:
    """True or false, also as people write it (yes, on, 1)."""
    value = reading.fields.get(field)
    written = str("" if value is None else value).strip().lower()
    if written not in _YES | _NO:
        reading.ignored(field, "write true or false")
    return written in _YES


def max_turns_of(reading: Reading) -> int | None:
    """A whole number from 1; None when it is left out."""
    value = reading.fields.get("maxTurns")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        reading.ignored("maxTurns", "write a whole number from 1")
        return None
    return value


def budget_of(reading: Reading) -> Budget:
    """The limits that are limits; the others are told."""
    value = reading.fields.get("budget")
    if value is None:
        return Budget()
    if not isinstance(value, dict):
        reading.ignored("budget", f"write limits by name: {', '.join(Budget.model_fields)}")
        return Budget()
    limits: dict[str, float] = {}
    for name, limit in cast("dict[object, object]", value).items():
        whole = name not in ("cost_usd", "seconds")
        number = _number(limit)
        if name not in Budget.model_fields:
            reading.ignored(f"budget.{name}", f"is no limit: there are {', '.join(Budget.model_fields)}")
        elif number is None or (whole and not number.is_integer()):
            reading.ignored(f"budget.{name}", f"write a {'whole ' if whole else ''}number from 0")
        else:
            limits[str(name)] = number
    return Budget.model_validate(limits)


def _number(value: object) -> float | None:
    """A finite number from 0; a fraction is a text as it comes out of a file."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def servers_of(reading: Reading) -> tuple[object, ...]:
    """Names of MCP servers and entries written out (`{name: {...}}`), as they stand there."""
    value = reading.fields.get("mcpServers")
    if value is None:
        return ()
    if reading.plugin:
        reading.ignored("mcpServers", "an agent of a plugin brings no servers: the plugin's .mcp.json does")
        return ()
    if isinstance(value, dict):
        return tuple({name: entry} for name, entry in cast("dict[str, object]", value).items())
    if isinstance(value, str):
        return words(value)
    if not isinstance(value, list | tuple):
        reading.ignored("mcpServers", f"write a list of names or entries, not {kind_of(value)}")
        return ()
    found: list[object] = []
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, str | dict):
            found.append(cast("object", entry))
        else:
            reading.ignored("mcpServers", f"{str(entry)[:60]} is neither a name nor an entry")
    return tuple(found)
