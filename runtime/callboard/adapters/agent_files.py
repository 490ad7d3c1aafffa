"""Agent files: Markdown whose front matter says what an agent type may do, and whose body is its system prompt.

The fields are those that people already write for Claude Code. Whatever is not honoured is told with file, line and
field; a file without a name, a description or any tool that exists is not loaded. A workspace cannot lift its own
permissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from callboard.adapters.agent_fields import (
    COLOURS,
    EFFORTS,
    ISOLATIONS,
    MEMORIES,
    Reading,
    ToolsRead,
    allowed_tools,
    budget_of,
    flag_of,
    max_turns_of,
    may_spawn_of,
    mode_of,
    model_of,
    one_of,
    servers_of,
    text_of,
    tools_of,
    words_of,
)
from callboard.adapters.files import Loaded, Note, Places, Scope, Shelf, Source, agent_paths, broken, sources, withheld
from callboard.adapters.yaml_files import YamlDocument, load_front_document
from callboard.words.errors import SettingsError
from callboard.words.specs import PermissionMode
from callboard.words.values import Budget

AGENT_TYPE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_NO_NAME = re.compile(r"[^a-z0-9]+")

_NOT_HONOURED: Mapping[str, str] = MappingProxyType(
    {"background": "every agent runs beside its caller already", "color": "agents are told apart by name"}
)
_HONOURED = frozenset(
    {
        *("name", "description", "tools", "disallowedTools", "model", "permissionMode", "maxTurns", "skills", "budget"),
        *("isolation", "hooks", "mcpServers", "memory", "effort", "initialPrompt"),
    }
)


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
    own: tuple[str, ...] | None = None
    """Of the tools of the program that opens the session those that it has; None: with `tools` none, else all."""
    denied: tuple[str, ...] = ()
    mcp: tuple[str, ...] | None = None
    """Of `tools` the entries for tools of MCP servers (`mcp__server`, `mcp__server__*`, `mcp__server__tool`, `mcp__*`).
    None: no list, so all that the session has; empty: a list that names none."""
    mcp_denied: tuple[str, ...] = ()
    """The same of `disallowedTools`."""
    may_spawn: tuple[str, ...] | None = None
    """The types in `Agent(a, b)`: what a lead of this type may start; None: whatever there is."""
    model: str | None = None
    """An id or an alias; None: its parent's."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """How hard the model is asked to think; empty: as the service does by itself."""
    permission_mode: PermissionMode | None = None
    max_turns: int | None = None
    """Model steps in one turn."""
    skills: tuple[str, ...] = ()
    """Skills whose whole text it has from the start."""
    mcp_servers: tuple[object, ...] = ()
    """Names of servers (str) and entries written out ({name: {...}}), as they stand there."""
    memory: Literal["", "user", "project", "local"] = ""
    """Where it keeps notes of its own from session to session; empty: it keeps none."""
    isolation: Literal["", "worktree"] = ""
    """`worktree`: each teammate of this type gets a git worktree of its own."""
    background: bool = False
    color: str = ""
    initial_prompt: str = ""
    """The first words of the person to a lead of this type; empty: none."""
    budget: Budget = Budget()
    """For the whole life of each agent of this type, with all that it starts."""
    hooks: object = None
    """As written, for `adapters.hook_files.read_hooks`."""
    compatible: bool = False
    """It stands in a `.claude` folder: its hooks fail as is documented there."""
    lines: tuple[tuple[str, int], ...] = dataclass_field(default=(), compare=False)
    """The fields that its file states, each with its line, in their order."""
    plugin: str = ""
    """The plugin that brings it; empty: none."""


def load_agents(places: Places) -> Loaded[AgentFile]:
    """Every agent type that these places define, the winning file of each name."""
    shelf = Shelf[AgentFile](notes=withheld("agents", places))
    for source in sources("agents", places):
        found = agent_paths(source)
        shelf.notes.extend(found.notes)
        for path in found.paths:
            agent = _read(path, source, shelf.notes)
            if agent is not None:
                shelf.add(agent.name, agent, path, dict(agent.lines).get("name", 0))
    return shelf.loaded()


def _read(path: Path, source: Source, notes: list[Note]) -> AgentFile | None:
    try:
        document, body = load_front_document(_file(path, source), str(path))
    except SettingsError as error:
        notes.append(broken(path, error))
        return None
    reading = Reading(str(path), source.scope, document, notes, source.plugin)
    if not document.lines and not document.data:
        reading.ignored("", "has no front matter, so it is no agent: begin with `---`, name, description, `---`")
        return None
    if document.mended:
        reading.honoured(document.mended)
    made = _made(reading, body, compatible=source.compatible)
    return made and replace(made, name=_in_plugin(made.name, path, source))


def _in_plugin(name: str, path: Path, source: Source) -> str:
    """`plugin:folder:name` of what a plugin brings; else the name itself."""
    if not source.plugin:
        return name
    return ":".join((source.plugin, *path.relative_to(source.folder).parts[:-1], name))


def given_agents(given: Mapping[str, Mapping[str, object]], place: str) -> tuple[dict[str, AgentFile], list[Note]]:
    """Agent types that somebody brings without files: name -> the same fields, and `prompt` for the body. Beside them,
    what is not honoured. They are the person's own."""
    notes: list[Note] = []
    found: dict[str, AgentFile] = {}
    for name, fields in given.items():
        body = fields.get("prompt")
        rest = {field: value for field, value in fields.items() if field != "prompt" and value is not None}
        where = f"{place}: {name}"
        reading = Reading(where, "person", YamlDocument({**rest, "name": name}, where), notes)
        agent = _made(reading, body if isinstance(body, str) else "", compatible=True)
        if agent is not None:
            found[agent.name] = agent
    return found, notes


def _made(reading: Reading, body: str, *, compatible: bool) -> AgentFile | None:
    fields = reading.fields
    name, description = _name(reading), text_of(reading, "description").replace("\\n", " ")
    if name is None:
        return None
    if not description:
        if not isinstance(fields.get("description"), dict | list):  # and told
            reading.refused("description", "is missing: say when to use this agent")
        return None
    known = len(reading.notes)
    allowed = allowed_tools(reading)
    if allowed == ToolsRead((), ()) and len(reading.notes) > known:
        return None
    denied = tools_of(reading, "disallowedTools")
    made = AgentFile(
        name=name,
        description=" ".join(description.split()),
        instructions=body.strip(),
        path=reading.path,
        scope=reading.scope,
        tools=allowed and allowed.ours,
        denied=denied.ours,
        mcp=allowed and allowed.servers,
        mcp_denied=denied.servers,
        may_spawn=may_spawn_of(allowed),
        model=model_of(reading),
        effort=one_of(reading, "effort", EFFORTS),
        permission_mode=mode_of(reading),
        max_turns=max_turns_of(reading),
        skills=words_of(reading, "skills"),
        mcp_servers=servers_of(reading),
        memory=one_of(reading, "memory", MEMORIES),
        isolation=one_of(reading, "isolation", ISOLATIONS),
        background=flag_of(reading, "background"),
        color=one_of(reading, "color", COLOURS),
        initial_prompt=text_of(reading, "initialPrompt"),
        budget=budget_of(reading),
        hooks=_hooks(reading),
        compatible=compatible,
        lines=tuple((str(name), reading.line(str(name))) for name in fields),
        plugin=reading.plugin,
    )
    _tell_rest(reading)
    return made


def read_name(written: str) -> str:
    """The name that one in capitals, with blanks or underscores stands for."""
    return _NO_NAME.sub("-", written.lower()).strip("-")


def _name(reading: Reading) -> str | None:
    """Its name; None, and told, where there is none. One in capitals or with blanks is read as what it stands for."""
    known = len(reading.notes)
    written = text_of(reading, "name")
    if len(reading.notes) > known:
        reading.notes[-1] = replace(reading.notes[-1], verdict="refused")
        return None
    if not written and reading.plugin:
        written = Path(reading.path).stem
    name = written if AGENT_TYPE.fullmatch(written) else read_name(written)
    if ":" in written or written.startswith("-") or not AGENT_TYPE.fullmatch(name):
        reading.refused("name", "write lower-case letters, digits and hyphens" if written else "is missing")
        return None
    if name != written:
        why = f"{written!r} is read as {name}: write lower-case letters, digits and hyphens"
        reading.notes.append(Note(reading.path, "name", "honoured", why, reading.line("name")))
    return name


def _hooks(reading: Reading) -> object:
    """As written; those of a plugin's agent are not heeded: the plugin has hooks of its own."""
    if reading.plugin and "hooks" in reading.fields:
        reading.ignored("hooks", "an agent of a plugin brings no hooks: the plugin's hooks/hooks.json does")
        return None
    return reading.fields.get("hooks")


def _file(path: Path, source: Source) -> Path | str:
    """What was read of it already, or the file. Raises `SettingsError`."""
    if source.brought is None:
        return path
    raw = source.read(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError("is not UTF-8 text", f"{path}:{raw[: error.start].count(10) + 1}") from error


def _tell_rest(reading: Reading) -> None:
    told = {note.field for note in reading.notes if note.path == reading.path}
    for field in reading.fields:
        if field not in _HONOURED | told:
            reading.ignored(field, _NOT_HONOURED.get(field, "is no field of an agent file"))
