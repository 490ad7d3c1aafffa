"""Agent files: Markdown whose front matter defines the rights of an agent type, and whose body is its system prompt.

The fields are those of Claude Code. Everything that has no effect is reported with file, line and field. A file without
a name, a description or any existing tool is not loaded. A workspace cannot raise its own permissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field as dataclass_field
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from callboard.adapters.extensions.agent_fields import (
    COLOURS,
    EFFORTS,
    ISOLATIONS,
    MEMORIES,
    AgentFields,
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
from callboard.adapters.extensions.discovery import (
    DefinitionCollector,
    DiscoveryNote,
    ExtensionPaths,
    LoadedItems,
    Scope,
    Source,
    agent_paths,
    body_after_front_matter,
    broken,
    sources,
    withheld,
)
from callboard.adapters.extensions.yaml import YamlDocument, load_front_document
from callboard.types.errors import SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode

AGENT_TYPE = late_pattern(r"[a-z0-9][a-z0-9-]{0,63}")
_NO_NAME = late_pattern(r"[^a-z0-9]+")

_NOT_HONOURED: Mapping[str, str] = MappingProxyType({"color": "agents are distinguished by name"})
_HONOURED = frozenset(
    {
        *("name", "description", "tools", "disallowedTools", "model", "permissionMode", "maxTurns", "skills", "budget"),
        *("isolation", "hooks", "mcpServers", "memory", "effort", "initialPrompt"),
        *("readOnly", "background"),
    }
)


@dataclass(frozen=True, slots=True)
class AgentFile:
    """One agent type, from its file. `tools`, `denied`: unchanged, for `core.tool_access.tools_for`."""

    name: str
    description: str
    instructions: str
    path: str
    scope: Scope
    tools: tuple[str, ...] | None = None
    """Tools of the type; None: all that are available to its kind."""
    own: tuple[str, ...] | None = None
    """Tools that it has from the program that opens the session; None: none if `tools` is set, else all."""
    denied: tuple[str, ...] = ()
    mcp: tuple[str, ...] | None = None
    """Entries of `tools` for tools of MCP servers (`mcp__server`, `mcp__server__*`, `mcp__server__tool`, `mcp__*`).
    None: no list, so all tools of the session; empty: a list without such entries."""
    mcp_denied: tuple[str, ...] = ()
    """Entries of `disallowedTools` for tools of MCP servers."""
    may_spawn: tuple[str, ...] | None = None
    """Types in `Agent(a, b)`, which a lead of this type may start; None: any."""
    model: str | None = None
    """Id or alias of the model; None: that of the parent."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """Effort requested from the model; empty: the service's default."""
    permission_mode: PermissionMode | None = None
    max_turns: int | None = None
    """Most model steps in one turn."""
    skills: tuple[str, ...] = ()
    """Skills whose complete text is in its prompt from the start."""
    mcp_servers: tuple[object, ...] = ()
    """Names of servers (str) and inline entries ({name: {...}}), unchanged."""
    memory: Literal["", "user", "project", "local"] = ""
    """Scope of the agent's own notes, which remain for later sessions; empty: it has no notes."""
    isolation: Literal["", "worktree"] = ""
    """`worktree`: each teammate of this type gets its own git worktree."""
    read_only: bool = False
    """True if agents of this type only read, in every mode: their commands may only read inside the workspace."""
    background: bool = False
    """True if a call that starts an agent of this type as a subagent never waits for it."""
    color: str = ""
    initial_prompt: str = ""
    """First prompt of the user to a lead of this type; empty: none."""
    budget: Budget = Budget()
    """Budget for the whole life of each agent of this type, including all agents that it starts."""
    hooks: object = None
    """Hooks, unchanged, for `adapters.extensions.hooks.read_hooks`."""
    compatible: bool = False
    """True if it is in a `.claude` folder: its hooks fail as documented for the compatible format."""
    lines: tuple[tuple[str, int], ...] = dataclass_field(default=(), compare=False)
    """Fields of its file, each with its line, in their order."""
    plugin: str = ""
    """Plugin that contains it; empty: none."""


def load_agents(places: ExtensionPaths) -> LoadedItems[AgentFile]:
    """Return every agent type that these places define, with the file that takes precedence for each name."""
    shelf = DefinitionCollector[AgentFile](notes=withheld("agents", places))
    for source in sources("agents", places):
        listing = agent_paths(source)
        shelf.notes.extend(listing.notes)
        for path in listing.paths:
            agent = _read(path, source, shelf.notes)
            if agent is not None:
                shelf.add(agent.name, agent, path, dict(agent.lines).get("name", 0))
    return shelf.loaded_items()


def _read(path: Path, source: Source, notes: list[DiscoveryNote]) -> AgentFile | None:
    try:
        document, body = load_front_document(_file(path, source), str(path))
    except SettingsError as error:
        read = _without_fields(path, source) if source.plugin else None
        if read is None:
            notes.append(broken(path, error))
            return None
        note = broken(path, error, "ignored")
        notes.append(replace(note, reason=f"its front matter is broken, so only its text counts: {note.reason}"))
        document, body = read
    reading = AgentFields(str(path), source.scope, document, notes, source.plugin, inert=source.inert)
    if not document.lines and not document.data:
        reading.note_ignored(
            "", "has no front matter, so it is not an agent: begin with `---`, name, description, `---`"
        )
        return None
    if document.quoted_fields:
        reading.note_honored(document.quoted_fields)
    made = _agent_file(reading, body, compatible=source.compatible)
    return made and replace(made, name=_in_plugin(made.name, path, source))


def _without_fields(path: Path, source: Source) -> tuple[YamlDocument, str] | None:
    """Return a document that only describes an agent, by the first line of its text, and the text.

    For a plugin's agent with broken front matter, which Claude Code names after its file. None if there is no text.
    """
    try:
        text = source.read(path).decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    body = body_after_front_matter(text)
    first = next((line.strip().lstrip("# ") for line in body.splitlines() if line.strip()), "")
    return (
        (YamlDocument({"description": first}, str(path)), body) if first and body != text and "\0" not in text else None
    )


def _in_plugin(name: str, path: Path, source: Source) -> str:
    """Return `plugin:folder:name` for a plugin's agent; else the name itself."""
    if not source.plugin:
        return name
    return ":".join((source.plugin, *path.relative_to(source.folder).parts[:-1], name))


def given_agents(
    definitions: Mapping[str, Mapping[str, object]], place: str
) -> tuple[dict[str, AgentFile], list[DiscoveryNote]]:
    """Return agent types that were passed without files, and notes on everything that has no effect.

    `definitions`: name -> the fields of a file, and `prompt` for the body. The types count as the user's own.
    """
    notes: list[DiscoveryNote] = []
    agents: dict[str, AgentFile] = {}
    for name, fields in definitions.items():
        body = fields.get("prompt")
        front_matter = {field: value for field, value in fields.items() if field != "prompt" and value is not None}
        where = f"{place}: {name}"
        reading = AgentFields(where, "person", YamlDocument({**front_matter, "name": name}, where), notes)
        agent = _agent_file(reading, body if isinstance(body, str) else "", compatible=True)
        if agent is not None:
            agents[agent.name] = agent
    return agents, notes


def _agent_file(reading: AgentFields, body: str, *, compatible: bool) -> AgentFile | None:
    fields = reading.fields
    name = _name(reading)
    description = text_of(reading, "description").replace("\\n", " ")
    if name is None:
        return None
    if not description:
        if not isinstance(fields.get("description"), dict | list):  # and reported
            reading.note_refused("description", "is missing: say when to use this agent")
        return None
    allowed = allowed_tools(reading)
    if allowed is not None and allowed.unreadable:
        return None
    denied = tools_of(reading, "disallowedTools")
    made = AgentFile(
        name=name,
        description=" ".join(description.split()),
        instructions=body.strip(),
        path=reading.path,
        scope=reading.scope,
        tools=allowed and allowed.tools,
        denied=denied.tools,
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
        read_only=flag_of(reading, "readOnly"),
        background=flag_of(reading, "background"),
        color=one_of(reading, "color", COLOURS),
        initial_prompt=text_of(reading, "initialPrompt"),
        budget=budget_of(reading),
        hooks=_hooks(reading),
        compatible=compatible,
        lines=tuple((str(name), reading.line(str(name))) for name in fields),
        plugin=reading.plugin,
    )
    _report_unknown_fields(reading)
    return made


def read_name(written: str) -> str:
    """Return the canonical form of a name with capitals, blanks or underscores."""
    return _NO_NAME.sub("-", written.lower()).strip("-")


def _name(reading: AgentFields) -> str | None:
    """Return its name in canonical form; None, with a note, if it has no usable name."""
    note_count = len(reading.notes)
    written = text_of(reading, "name")
    if len(reading.notes) > note_count:
        reading.notes[-1] = replace(reading.notes[-1], verdict="refused")
        return None
    if not written and reading.plugin:
        written = Path(reading.path).stem
    name = written if AGENT_TYPE.fullmatch(written) else read_name(written)
    if not name and written.isalpha():  # in another script: ids of agents have ASCII letters
        name = read_name(Path(reading.path).stem)
    if ":" in written or written.startswith("-") or not AGENT_TYPE.fullmatch(name):
        reading.note_refused("name", "write lower-case letters, digits and hyphens" if written else "is missing")
        return None
    if name != written:
        reason = f"{written!r} is read as {name}: write lower-case letters, digits and hyphens"
        reading.notes.append(DiscoveryNote(reading.path, "name", "honored", reason, reading.line("name")))
    return name


def _hooks(reading: AgentFields) -> object:
    """Return its hooks unchanged; none for a plugin's agent, because the plugin has separate hooks."""
    if reading.refuses("hooks", "an agent of a plugin brings no hooks: the plugin's hooks/hooks.json does"):
        return None
    return reading.fields.get("hooks")


def _file(path: Path, source: Source) -> Path | str:
    """Return the text if the source was read already, else the path. Raises `SettingsError`."""
    if source.workspace_claims is None:
        return path
    raw = source.read(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError("is not UTF-8 text", f"{path}:{raw[: error.start].count(10) + 1}") from error


def _report_unknown_fields(reading: AgentFields) -> None:
    noted_fields = {note.field for note in reading.notes if note.path == reading.path}
    for field in reading.fields:
        if field not in _HONOURED | noted_fields:
            reading.note_ignored(field, _NOT_HONOURED.get(field, "is not a field of an agent file"))
