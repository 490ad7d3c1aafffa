"""Agent files: Markdown whose front matter says what an agent type may do, and whose body is its system prompt.

The fields are those that people already write for Claude Code. Whatever is not honoured is told with file and field; a
file without a name, a description or any tool that exists is not loaded. A workspace cannot lift its own permissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast, get_args

from callboard.adapters.files import Loaded, Note, Places, Scope, Shelf, Source, agent_paths, sources, withheld, words
from callboard.adapters.yaml_files import load_front_matter
from callboard.core.toolset import our_names
from callboard.words.errors import SettingsError
from callboard.words.specs import READ_AS, PermissionMode
from callboard.words.values import Budget

AGENT_TYPE = re.compile(r"[a-z][a-z0-9-]{0,63}")

_LATER = "is not honoured in this version"
_NOT_HONOURED: Mapping[str, str] = MappingProxyType(
    {
        "mcpServers": _LATER,
        "memory": _LATER,
        "background": "every agent runs beside its caller already",
        "effort": _LATER,
        "color": "agents are told apart by name",
        "initialPrompt": _LATER,
    }
)
_HONOURED = frozenset(
    {
        *("name", "description", "tools", "disallowedTools", "model", "permissionMode", "maxTurns", "skills", "budget"),
        "isolation",
        "hooks",
    }
)
_MODES = get_args(PermissionMode)


@dataclass(frozen=True, slots=True)
class AgentFile:
    """One agent type, as its file says. `tools`, `denied`: as written, for `core.toolset.tools_for`."""

    name: str
    description: str
    instructions: str
    path: str
    scope: Scope
    tools: tuple[str, ...] | None = None
    """None: all that its kind may have."""
    denied: tuple[str, ...] = ()
    model: str | None = None
    """An id or an alias; None: its parent's."""
    permission_mode: PermissionMode | None = None
    max_turns: int | None = None
    """Model steps in one turn."""
    skills: tuple[str, ...] = ()
    """Skills whose whole text it has from the start."""
    isolation: Literal["", "worktree"] = ""
    """`worktree`: each teammate of this type gets a git worktree of its own."""
    budget: Budget = Budget()
    """For the whole life of each agent of this type, with all that it starts."""
    hooks: object = None
    """As written, for `adapters.hook_files.read_hooks`."""
    compatible: bool = False
    """It stands in a `.claude` folder: its hooks fail as is documented there."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One file while it is read: its fields, and the notes taken so far."""

    path: str
    scope: Scope
    fields: Mapping[str, object]
    notes: list[Note]

    def ignored(self, field: str, why: str) -> None:
        self.notes.append(Note(self.path, field, "ignored", why))

    def refused(self, field: str, why: str) -> None:
        self.notes.append(Note(self.path, field, "refused", why))


def load_agents(places: Places) -> Loaded[AgentFile]:
    """Every agent type that these places define, the winning file of each name."""
    shelf = Shelf[AgentFile](notes=withheld("agents", places))
    for source in sources("agents", places):
        found = agent_paths(source)
        shelf.notes.extend(found.notes)
        for path in found.paths:
            agent = _read(path, source, shelf.notes)
            if agent is not None:
                shelf.add(agent.name, agent, path)
    return shelf.loaded()


def _read(path: Path, source: Source, notes: list[Note]) -> AgentFile | None:
    scope = source.scope
    try:
        fields, body = load_front_matter(_file(path, source), str(path))
    except SettingsError as error:
        notes.append(Note(str(path), "", "refused", str(error).removeprefix(f"{path}: ")))
        return None
    return _made(_Reading(str(path), scope, fields, notes), body, compatible=source.folder.parent.name == ".claude")


def given_agents(given: Mapping[str, Mapping[str, object]], place: str) -> tuple[dict[str, AgentFile], list[Note]]:
    """Agent types that somebody brings without files: name -> the same fields, and `prompt` for the body. Beside them,
    what is not honoured. They are the person's own."""
    notes: list[Note] = []
    found: dict[str, AgentFile] = {}
    for name, fields in given.items():
        body = fields.get("prompt")
        rest = {field: value for field, value in fields.items() if field != "prompt" and value is not None}
        reading = _Reading(f"{place}: {name}", "person", {**rest, "name": name}, notes)
        agent = _made(reading, body if isinstance(body, str) else "", compatible=True)
        if agent is not None:
            found[name] = agent
    return found, notes


def _made(reading: _Reading, body: str, *, compatible: bool) -> AgentFile | None:
    fields = reading.fields
    name, description = _text(reading, "name"), _text(reading, "description")
    if not AGENT_TYPE.fullmatch(name):
        reading.refused("name", "write lower-case letters, digits and hyphens" if name else "is missing")
        return None
    if not description:
        reading.refused("description", "is missing: say when to use this agent")
        return None
    tools = _tools(reading)
    if tools == ():
        reading.refused("tools", f"none of these is a tool here: {', '.join(words(fields['tools']))}")
        return None
    _tell_rest(reading)
    return AgentFile(
        name=name,
        description=" ".join(description.split()),
        instructions=body.strip(),
        path=reading.path,
        scope=reading.scope,
        tools=tools,
        denied=_known(reading, "disallowedTools"),
        model=_model(reading),
        permission_mode=_mode(reading),
        max_turns=_max_turns(reading),
        skills=words(fields.get("skills")),
        budget=_budget(reading),
        isolation=_isolation(reading),
        hooks=fields.get("hooks"),
        compatible=compatible,
    )


def _file(path: Path, source: Source) -> Path | str:
    """What was read of it already, or the file. Raises `SettingsError`."""
    if source.brought is None:
        return path
    try:
        return source.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError("is not UTF-8 text", str(path)) from error


def _text(reading: _Reading, field: str) -> str:
    value = reading.fields.get(field)
    return value.strip() if isinstance(value, str) else "" if value is None else str(value)


def _tools(reading: _Reading) -> tuple[str, ...] | None:
    """The allowlist; None when there is none; empty when nothing in it is a tool of ours."""
    value = reading.fields.get("tools")
    if value is None or value == "*" or not words(value):
        return None
    return _known(reading, "tools")


def _known(reading: _Reading, field: str) -> tuple[str, ...]:
    """The entries that stand for a tool of ours; the others are told."""
    entries = words(reading.fields.get(field))
    for entry in entries:
        if not our_names(entry):
            reading.ignored(field, f"there is no tool {entry} here")
        elif "(" in entry:
            reading.ignored(field, f"{entry}: the whole tool is meant, what stands in brackets is not heeded")
    return tuple(entry for entry in entries if our_names(entry))


def _model(reading: _Reading) -> str | None:
    model = _text(reading, "model")
    return None if model in {"", "inherit"} else model


def _mode(reading: _Reading) -> PermissionMode | None:
    """A mode `auto` counts as `default`; a workspace never puts itself into `bypassPermissions`."""
    written = _text(reading, "permissionMode")
    if not written:
        return None
    if written == "auto":
        reading.ignored("permissionMode", "auto is read as default")
    written = READ_AS.get(written, written)
    if written not in _MODES:
        reading.ignored("permissionMode", f"{written} is no mode: write one of {', '.join(_MODES)}")
        return None
    if written == "bypassPermissions" and reading.scope == "workspace":
        reading.refused("permissionMode", "a workspace cannot lift its own permissions")
        return None
    return cast("PermissionMode", written)


def _isolation(reading: _Reading) -> Literal["", "worktree"]:
    written = _text(reading, "isolation")
    if written in ("", "worktree"):
        return "worktree" if written else ""
    reading.ignored("isolation", f"{written} is none: write worktree, or leave it out")
    return ""


def _max_turns(reading: _Reading) -> int | None:
    value = reading.fields.get("maxTurns")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        reading.ignored("maxTurns", "write a whole number from 1")
        return None
    return value


def _budget(reading: _Reading) -> Budget:
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


def _tell_rest(reading: _Reading) -> None:
    for field in reading.fields:
        if field not in _HONOURED:
            reading.ignored(field, _NOT_HONOURED.get(field, "is no field of an agent file"))
