"""Report on files that people provide: each file, field and rule as honored, ignored or refused, with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.agents import AgentFile, load_agents
from callboard.adapters.extensions.claude_fields import Verdict
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths, Source
from callboard.adapters.extensions.hooks import HookEntry
from callboard.adapters.extensions.instructions import WorkspaceInstructions
from callboard.adapters.extensions.output_styles import find_voice
from callboard.adapters.extensions.plugins import MANIFEST, read_plugins
from callboard.adapters.extensions.skills import Skill, load_skills
from callboard.adapters.extensions.trust import SERVERS
from callboard.adapters.extensions.yaml import load_front_document
from callboard.adapters.mcp.config import ServerSources, read_servers
from callboard.config.hooks import front_matter, hook_entries, hook_notes, plugin_hooks, runs_outside
from callboard.config.settings import LoadedSettings, load_settings
from callboard.config.trust import Trust, stored_trust
from callboard.sessions.agent_specs import VENDOR_PREFIX
from callboard.sessions.definitions import missing_skills
from callboard.sessions.enabled_plugins import plugins_in_force
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.skills import Plugin

FAILS_OPEN = (
    "a crash, a time-out or an exit code but 0 and 2 lets the call proceed, as documented: `onFailure: block` closes it"
)

OUTSIDE = "runs outside the sandbox, with your rights: its entry says `sandbox: false`"


@dataclass(frozen=True, slots=True)
class CompatLine:
    """One line of `doctor --compat`."""

    where: str
    """`file`, or `file:line`."""
    field: str
    """Field; empty for the whole file."""
    verdict: Verdict
    why: str = ""


def compat_reports(places: WorkspacePaths, plugins: Sequence[Path] = (), *, trust: bool = False) -> list[CompatLine]:
    """Return every file, field and rule, as they would be used in this workspace now.

    Files that ship with Callboard are left out. `trust`: as if the workspace were trusted. Raises `SettingsError`.
    """
    now = stored_trust(places.workspace, places.config)
    environ = dict(os.environ)
    trusted = trust or now.trusted
    loaded = load_settings(environ, workspace=places.workspace, trusted=trusted, workspace_claims=now.workspace_claims)
    installed, installed_notes = plugins_in_force(loaded, places)
    named, notes = read_plugins((*plugins, *installed))
    files = ExtensionPaths(
        places.workspace,
        places.config,
        Path.home(),
        trusted=trusted,
        workspace_claims=now.workspace_claims,
        plugins=named,
    )
    reports = [
        *_settings(loaded),
        *_hooks(hook_entries(loaded, places.workspace, environ)),
        *_notes(hook_notes(loaded, places.workspace, environ)),
        *_definitions(files, loaded),
        *_servers(loaded, files, now, trusted=trusted),
        *_instructions(places),
        *(report for plugin in named for report in _plugin(plugin, str(places.workspace), loaded)),
        *_notes((*notes, *installed_notes, *_styles(files, loaded))),
    ]
    return list(dict.fromkeys(reports))


def _styles(files: ExtensionPaths, loaded: LoadedSettings) -> Sequence[DiscoveryNote]:
    return find_voice(files, loaded.settings.output_style, loaded.settings.language).notes


def _settings(loaded: LoadedSettings) -> Iterator[CompatLine]:
    for file in loaded.claude:
        yield from (
            CompatLine(f"{note.path}:{note.line}", note.name, note.verdict, note.reason) for note in file.verdicts
        )
        if file.broken:
            yield CompatLine(file.path, "", "refused", file.broken)


def _definitions(files: ExtensionPaths, loaded: LoadedSettings) -> Iterator[CompatLine]:
    """Yield each field of each file of agents, skills and commands."""
    agents = load_agents(files)
    skills = load_skills(files)
    agent_files = [agent for agent in agents.items.values() if agent.scope != "bundled"]
    for agent in agent_files:
        yield CompatLine(agent.path, "", "honored", f"agent type {agent.name}")
        yield from _fields(agent.path, agent.lines, agents.notes)
        yield from _model(agent, loaded)
    for skill in skills.items.values():
        if skill.source.scope != "bundled":
            yield CompatLine(str(skill.path), "", "honored", f"{skill.text.kind} {skill.text.name}")
            yield from _fields(str(skill.path), _skill_lines(skill), skills.notes)
    yield from _notes((*agents.notes, *skills.notes, *missing_skills(agent_files, skills.items)))
    skill_files = [skill for skill in skills.items.values() if skill.source.scope != "bundled"]
    for hooks in front_matter(loaded, agent_files, skill_files, str(files.workspace)):
        yield from (*_hooks(hooks.read.entries), *_notes(hooks.read.notes))


def _model(agent: AgentFile, loaded: LoadedSettings) -> Iterator[CompatLine]:
    """Report a model of another vendor, which is not used unless the settings list it."""
    if agent.model is None or agent.model == "inherit":
        return
    name = loaded.settings.model_id(agent.model)
    if not loaded.settings.is_listed(name) and not name.startswith(VENDOR_PREFIX):
        line = dict(agent.lines).get("model", 0)
        reason = f"{agent.model} is not listed, so the parent's model is used: state its limits under `models`"
        yield CompatLine(f"{agent.path}:{line}", "model", "ignored", reason)


def _fields(path: str, lines: Iterable[tuple[str, int]], notes: Sequence[DiscoveryNote]) -> Iterator[CompatLine]:
    """Yield the honored fields: those without a note that says otherwise."""
    other = {note.field.partition(".")[0] for note in notes if note.path == path}
    for name, line in lines:
        if name not in other:
            yield CompatLine(f"{path}:{line}" if line else path, name, "honored")


def _skill_lines(skill: Skill) -> list[tuple[str, int]]:
    source: Source = skill.source
    try:
        text = source.read(skill.path).decode("utf-8-sig", errors="replace")
        document, _ = load_front_document(text, str(skill.path))
    except (OSError, KeyError, SettingsError):  # reported in a note
        return []
    return [(name, document.lines.get((name,), 0)) for name in cast("dict[str, object]", document.data)]


def _servers(loaded: LoadedSettings, files: ExtensionPaths, now: Trust, *, trusted: bool) -> Iterator[CompatLine]:
    """Yield the servers that are used, and those that are withheld with the reason."""
    if files.workspace is None:
        return
    configured = read_servers(
        ServerSources(
            files.workspace,
            dict(os.environ),
            files.config,
            files.home,
            workspace_text=now.workspace_claims.text(SERVERS),
            workspace_fault=now.workspace_claims.fault(SERVERS),
            trusted=trusted,
            plugins=files.plugins,
            approvals=tuple(server for file in loaded.claude for server in file.servers),
            off=loaded.settings.mcp.off,
        )
    )
    for entry in configured.entries:
        state, reason = configured.held.get(entry.name, ("", ""))
        verdict = "honored" if not state else "refused" if state == "untrusted" else "ignored"
        yield CompatLine(entry.path, f"mcpServers.{entry.name}", verdict, reason)
    yield from _notes(configured.notes)


def _instructions(places: WorkspacePaths) -> Iterator[CompatLine]:
    """Yield the files of project instructions: text for models, read even if the workspace is not trusted."""
    files, notes = WorkspaceInstructions(places.workspace, Path.home(), places.config).read(str(places.workspace))
    for file in files:
        about = f"for files that fit {', '.join(file.globs)}" if file.globs else "instructions"
        yield CompatLine(file.path, "", "honored", f"{about}, included by {file.by}" if file.by else about)
    yield from _notes(notes)


def _plugin(plugin: Plugin, project: str, loaded: LoadedSettings) -> Iterator[CompatLine]:
    manifest = str(plugin.root / MANIFEST)
    has_manifest = Path(manifest).is_file()
    yield CompatLine(manifest if has_manifest else str(plugin.root), "", "honored", f"plugin {plugin.name}")
    for read in plugin_hooks(plugin, project, loaded):
        yield from (*_hooks(read.entries), *_notes(read.notes))


def _hooks(entries: Iterable[HookEntry]) -> Iterator[CompatLine]:
    """Yield each hook; for a guard that its own failure disables, how to write it correctly."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        path, field = entry.place
        if entry.place in seen:
            continue
        seen.add(entry.place)
        opens = entry.fail_open and entry.event == "PreToolUse" and not entry.terms.background
        notes = (FAILS_OPEN if opens else "", OUTSIDE if runs_outside(entry.handler) else "")
        yield CompatLine(path, field, "honored", "; ".join(filter(None, notes)))


def _notes(notes: Iterable[DiscoveryNote]) -> Iterator[CompatLine]:
    return (CompatLine(note.where, note.field, note.verdict, note.reason) for note in notes)
