"""What becomes of files that people bring: each file, field and rule honoured, ignored or refused, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from callboard.adapters.agent_files import AgentFile, load_agents
from callboard.adapters.files import Note, Source
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.front_matter_hooks import front_matter_hooks
from callboard.adapters.hook_files import HookEntry
from callboard.adapters.instructions import WorkspaceInstructions
from callboard.adapters.mcp.config import ServerSources, read_servers
from callboard.adapters.plugins import MANIFEST, read_plugins
from callboard.adapters.skill_files import Skill, load_skills
from callboard.adapters.trust import SERVERS
from callboard.adapters.yaml_files import load_front_document
from callboard.agent_types import FAMILIES
from callboard.assembly import Places
from callboard.definitions import missing_skills
from callboard.hooking import hook_entries, hook_notes, plugin_hooks
from callboard.settings import Loaded, load_settings
from callboard.trusting import Trust, standing
from callboard.words.errors import SettingsError, UnknownModel
from callboard.words.plugins import Plugin

FAILS_OPEN = (
    "a crash, a time-out or an exit code but 0 and 2 lets the call proceed, as documented: `onFailure: block` closes it"
)


@dataclass(frozen=True, slots=True)
class Told:
    """One line of `doctor --compat`."""

    where: str
    """`file`, or `file:line`."""
    field: str
    """Empty: the whole file."""
    verdict: str
    """`honoured`, `ignored` or `refused`."""
    why: str = ""


def told(places: Places, plugins: Sequence[Path] = (), *, trust: bool = False) -> list[Told]:
    """Every file, field and rule, as they would be used in this workspace now; what ships with us is left out.
    `trust`: as if the workspace were trusted. Raises `SettingsError`."""
    now, environ = standing(places.workspace, places.config), dict(os.environ)
    trusted = trust or now.trusted
    loaded = load_settings(environ, workspace=places.workspace, trusted=trusted, brought=now.brought)
    named, notes = read_plugins(plugins)
    files = FilePlaces(
        places.workspace, places.config, Path.home(), trusted=trusted, brought=now.brought, plugins=named
    )
    found = [
        *_settings(loaded),
        *_hooks(hook_entries(loaded, places.workspace, environ)),
        *_notes(hook_notes(loaded, places.workspace, environ)),
        *_definitions(files, loaded),
        *_servers(loaded, files, now, trusted=trusted),
        *_instructions(places),
        *(one for plugin in named for one in _plugin(plugin, str(places.workspace))),
        *_notes(notes),
    ]
    return list(dict.fromkeys(found))


def _settings(loaded: Loaded) -> Iterator[Told]:
    for file in loaded.claude:
        yield from (Told(f"{one.path}:{one.line}", one.name, one.verdict, one.why) for one in file.told)
        if file.broken:
            yield Told(file.path, "", "refused", file.broken)


def _definitions(files: FilePlaces, loaded: Loaded) -> Iterator[Told]:
    """Agents, skills and commands: each field of each file."""
    agents, skills = load_agents(files), load_skills(files)
    mine = [one for one in agents.items.values() if one.scope != "bundled"]
    for agent in mine:
        yield Told(agent.path, "", "honoured", f"agent type {agent.name}")
        yield from _fields(agent.path, agent.lines, agents.notes)
        yield from _model(agent, loaded)
    for skill in skills.items.values():
        if skill.source.scope != "bundled":
            yield Told(str(skill.path), "", "honoured", f"{skill.text.kind} {skill.text.name}")
            yield from _fields(str(skill.path), _skill_lines(skill), skills.notes)
    yield from _notes((*agents.notes, *skills.notes, *missing_skills(mine, skills.items)))
    theirs = [one for one in skills.items.values() if one.source.scope != "bundled"]
    for one in front_matter_hooks(mine, theirs, str(files.workspace)):
        yield from (*_hooks(one.read.entries), *_notes(one.read.notes))


def _model(agent: AgentFile, loaded: Loaded) -> Iterator[Told]:
    """A model that nobody knows the limits and prices of is not asked."""
    if agent.model is None or agent.model in FAMILIES:
        return
    try:
        loaded.settings.limits_of(agent.model)
    except UnknownModel:
        line = dict(agent.lines).get("model", 0)
        why = f"{agent.model}: its limits and prices are not known, so its parent's is asked: state them under `models`"
        yield Told(f"{agent.path}:{line}", "model", "ignored", why)


def _fields(path: str, lines: Iterable[tuple[str, int]], notes: Sequence[Note]) -> Iterator[Told]:
    """The fields that are honoured: those of which no note says anything else."""
    other = {note.field.partition(".")[0] for note in notes if note.path == path}
    for name, line in lines:
        if name not in other:
            yield Told(f"{path}:{line}" if line else path, name, "honoured")


def _skill_lines(skill: Skill) -> list[tuple[str, int]]:
    source: Source = skill.source
    try:
        text = source.read(skill.path).decode("utf-8-sig", errors="replace")
        document, _ = load_front_document(text, str(skill.path))
    except (OSError, KeyError, SettingsError):  # told in a note
        return []
    return [(name, document.lines.get((name,), 0)) for name in cast("dict[str, object]", document.data)]


def _servers(loaded: Loaded, files: FilePlaces, now: Trust, *, trusted: bool) -> Iterator[Told]:
    """Servers: which are used, which are held back and why."""
    if files.workspace is None:
        return
    found = read_servers(
        ServerSources(
            files.workspace,
            dict(os.environ),
            files.config,
            files.home,
            brought=now.brought.text(SERVERS),
            trusted=trusted,
            plugins=files.plugins,
            approvals=tuple(one for file in loaded.claude for one in file.servers),
            off=loaded.settings.mcp.off,
        )
    )
    for entry in found.entries:
        state, why = found.held.get(entry.name, ("", ""))
        verdict = "honoured" if not state else "refused" if state == "untrusted" else "ignored"
        yield Told(entry.path, f"mcpServers.{entry.name}", verdict, why)
    yield from _notes(found.notes)


def _instructions(places: Places) -> Iterator[Told]:
    """Files of project instructions: text for models, read whether the workspace is trusted or not."""
    files, notes = WorkspaceInstructions(places.workspace, Path.home(), places.config).read(str(places.workspace))
    for one in files:
        about = f"for files that fit {', '.join(one.globs)}" if one.globs else "instructions"
        yield Told(one.path, "", "honoured", f"{about}, included by {one.by}" if one.by else about)
    yield from _notes(notes)


def _plugin(plugin: Plugin, project: str) -> Iterator[Told]:
    manifest = str(plugin.root / MANIFEST)
    there = Path(manifest).is_file()
    yield Told(manifest if there else str(plugin.root), "", "honoured", f"plugin {plugin.name}")
    for read in plugin_hooks(plugin, project):
        yield from (*_hooks(read.entries), *_notes(read.notes))


def _hooks(entries: Iterable[HookEntry]) -> Iterator[Told]:
    """Each hook; of a guard that a fault of its own opens, what to write."""
    seen: set[tuple[str, str]] = set()
    for one in entries:
        path, field = one.place
        if one.place in seen:
            continue
        seen.add(one.place)
        opens = one.fail_open and one.event == "PreToolUse" and not one.terms.background
        yield Told(path, field, "honoured", FAILS_OPEN if opens else "")


def _notes(notes: Iterable[Note]) -> Iterator[Told]:
    return (Told(note.where, note.field, note.verdict, note.why) for note in notes)
