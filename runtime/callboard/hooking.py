"""Fills a session's hook registry: bundled hooks, the person's, the workspace's if a person trusts it.

Each scope has two kinds of files, ours and those written for Claude Code (`settings.json`); a hook that stands in
several of a scope runs once. The bytes are those that were read when the settings were loaded and trust was decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from callboard.adapters.agent_files import AgentFile
from callboard.adapters.claude_settings import ClaudeSettings
from callboard.adapters.files import Note, broken, builtin
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.front_matter_hooks import front_matter_hooks
from callboard.adapters.hook_fields import HookOrigin
from callboard.adapters.hook_files import HookEntry, HooksRead, http_limits, joined_limits, load_hooks, read_hooks
from callboard.adapters.plugins import MANIFEST
from callboard.adapters.skill_files import load_skills
from callboard.adapters.trusted_hooks import TrustedHandler
from callboard.core.trust.claims import Brought
from callboard.engine.hooks.registry import HookRegistry
from callboard.settings import Loaded, user_file, workspace_file
from callboard.words.errors import SettingsError
from callboard.words.hooks import HookSource
from callboard.words.plugins import Plugin


def fill_registry(
    loaded: Loaded, workspace: Path, environ: dict[str, str], *, trusted: bool, brought: Brought | None = None
) -> HookRegistry:
    """The hooks of a session, in the order of their sources. Raises `SettingsError` for a file that is none.

    `brought`: what the workspace brings, as it was trusted; its scripts are held to that before each run.
    """
    registry, persons = HookRegistry(), list[HookEntry]()
    for source, read in _read(loaded, workspace, environ):
        if source == "workspace" and not trusted:
            continue
        entries = tuple(one for one in read.entries if one not in persons)  # the same in two scopes runs once
        persons += entries if source == "person" else ()
        if source == "builtin":
            named = [(one, one.handler.name) for one in entries]
            off = loaded.settings.hooks_off
            entries = tuple(one for one, name in named if not any(fnmatchcase(name, pattern) for pattern in off))
        if source == "workspace" and brought is not None:
            entries = tuple(replace(one, handler=TrustedHandler(one.handler, brought)) for one in entries)
        add_entries(registry, entries, source)
    return registry


def add_entries(registry: HookRegistry, entries: Iterable[HookEntry], source: HookSource) -> None:
    """Register what a file says, as it says it."""
    for entry in entries:
        registry.add(entry.event, entry.handler, entry.matcher, source=source, terms=entry.terms)


def add_front_matter(
    registry: HookRegistry, loaded: Loaded, files: FilePlaces, agents: Iterable[AgentFile]
) -> list[Note]:
    """Register the hooks of agent and skill files. Returns what is not honoured.

    A settings file that switches all hooks off means these too; one of a workspace only those that it brings itself.
    """
    notes: list[Note] = []
    off = {one.person for one in loaded.claude if _all_off(one, HookOrigin(""))}
    for one in front_matter_hooks(agents, load_skills(files).items.values(), str(files.workspace or "")):
        notes += one.read.notes
        entries = one.read.entries
        if one.of_workspace and files.brought is not None:
            entries = tuple(replace(each, handler=TrustedHandler(each.handler, files.brought)) for each in entries)
        if True not in off and not (one.of_workspace and off):
            add_entries(registry, entries, one.source)
    return notes


def add_plugins(registry: HookRegistry, files: FilePlaces) -> list[Note]:
    """Register the hooks of plugins, which are the person's who named them. Returns what is not honoured."""
    notes: list[Note] = []
    for plugin in files.plugins:
        for read in plugin_hooks(plugin, str(files.workspace or "")):
            notes += read.notes
            add_entries(registry, read.entries, "person")
    return notes


def plugin_hooks(plugin: Plugin, project: str) -> Iterator[HooksRead]:
    """The hooks of a plugin, file by file, and those of its manifest; of a file that cannot be read the note.
    `project`: the workspace, absolute."""
    origin = HookOrigin(project, root=str(plugin.root))
    for path in plugin.hooks:
        try:
            yield load_hooks(path, origin)
        except SettingsError as error:
            yield HooksRead(notes=(broken(path, error),))
    if plugin.hooks_inline is not None:
        yield read_hooks(plugin.hooks_inline.get("hooks", plugin.hooks_inline), str(plugin.root / MANIFEST), origin)


def hook_notes(loaded: Loaded, workspace: Path, environ: dict[str, str]) -> list[Note]:
    """What of the hook settings is not honoured, for the doctor."""
    return [note for source, read in _read(loaded, workspace, environ) if source != "builtin" for note in read.notes]


def hook_entries(loaded: Loaded, workspace: Path, environ: dict[str, str]) -> list[HookEntry]:
    """The hooks of the settings files that are honoured, for the doctor."""
    return [one for source, read in _read(loaded, workspace, environ) if source != "builtin" for one in read.entries]


def _read(loaded: Loaded, workspace: Path, environ: dict[str, str]) -> Iterator[tuple[HookSource, HooksRead]]:
    """Each file of hooks, in the order in which they speak; of hooks that are the same in one scope only the first."""
    ours = HookOrigin(str(workspace), compatible=False)
    bundled = builtin("hooks") / "hooks.json"
    if bundled.is_file():
        yield "builtin", load_hooks(bundled, ours)
    limits = joined_limits([http_limits(Path(one.path), one.raw) for one in loaded.claude if one.raw])
    theirs = HookOrigin(str(workspace), limits=limits)
    off = any(one.person and _all_off(one, theirs) for one in loaded.claude)
    for source in ("person", "workspace"):
        path = workspace_file(workspace) if source == "workspace" else user_file(environ)
        found = [read_hooks(loaded.hooks.get(source, {}), str(path), ours)]
        found.append(_own_file(source, path.parent / "hooks" / "hooks.json", ours, loaded.hooks_file))
        files = [one for one in loaded.claude if one.raw and one.person == (source == "person")]
        read = [load_hooks(Path(one.path), theirs, one.raw) for one in files]
        quiet = off or any(one.all_off for one in read)  # no file of a workspace switches off what a person's says
        found += [replace(one, entries=()) if quiet else one for one in read]
        for one in _once(found):
            yield source, one


def _own_file(source: HookSource, path: Path, ours: HookOrigin, trusted: bytes) -> HooksRead:
    """A `hooks/hooks.json` beside the settings: the person's, or the workspace's as it was `trusted`."""
    origin = replace(ours, root=str(path.parent.parent))  # as of a plugin: the folder that holds `hooks/`
    try:
        if source == "person":
            return load_hooks(path, origin)
        return load_hooks(path, origin, trusted) if trusted else HooksRead()
    except SettingsError as error:  # told when the session begins
        return HooksRead(notes=(broken(path, error),))


def _all_off(one: ClaudeSettings, origin: HookOrigin) -> bool:
    return bool(one.raw) and load_hooks(Path(one.path), origin, one.raw).all_off


def _once(found: list[HooksRead]) -> Iterator[HooksRead]:
    met: list[HookEntry] = []
    for read in found:
        entries = tuple(entry for entry in read.entries if entry not in met)
        met += entries
        yield replace(read, entries=entries)
