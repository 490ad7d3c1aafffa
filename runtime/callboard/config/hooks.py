"""Contents of a session's hook registry: bundled hooks, the user's hooks, and those of a trusted workspace.

Each scope has two kinds of files, Callboard's and those written for Claude Code (`settings.json`). A hook that occurs
in several files of a scope runs once. The bytes are those that were read when the settings were loaded and trust was
decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from callboard.adapters.extensions.agents import AgentFile
from callboard.adapters.extensions.claude_settings import ClaudeSettings
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths, broken, builtin
from callboard.adapters.extensions.hook_commands import CommandHandler
from callboard.adapters.extensions.hook_fields import ConditionalHandler, HookOrigin, HttpHandler, HttpLimits
from callboard.adapters.extensions.hook_sandbox import HookSandbox
from callboard.adapters.extensions.hooks import (
    FrontMatter,
    HookEntry,
    HooksRead,
    TrustedHandler,
    front_matter_hooks,
    http_limits,
    joined_limits,
    load_hooks,
    read_hooks,
)
from callboard.adapters.extensions.plugins import MANIFEST
from callboard.adapters.extensions.skills import Skill, load_skills
from callboard.adapters.processes.programs import clean_environment
from callboard.config.settings import LoadedSettings, user_file, workspace_file
from callboard.core.trust.claims import WorkspaceClaims
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.hooks import HookHandler
from callboard.types.errors import SettingsError
from callboard.types.hook_answers import HookSource
from callboard.types.skills import Plugin


def fill_registry(
    loaded: LoadedSettings,
    workspace: Path,
    environ: dict[str, str],
    *,
    trusted: bool,
    workspace_claims: WorkspaceClaims | None = None,
) -> HookRegistry:
    """Return the hooks of a session, in the order of their sources. Raises `SettingsError` for an invalid file.

    `workspace_claims`: the trusted content of the workspace. Its scripts are compared with that before each run. Its
    commands run in the sandbox unless their entries say otherwise (`sandbox_commands`).
    """
    registry = HookRegistry()
    persons = list[HookEntry]()
    for source, read in _read(loaded, workspace, environ):
        if source == "workspace" and not trusted:
            continue
        entries = tuple(entry for entry in read.entries if entry not in persons)  # a handler in two scopes runs once
        persons += entries if source == "person" else ()
        if source == "builtin":
            named = [(entry, entry.handler.name) for entry in entries]
            off = loaded.settings.hooks_off
            entries = tuple(entry for entry, name in named if not any(fnmatchcase(name, pattern) for pattern in off))
        if source == "workspace" and workspace_claims is not None:
            entries = tuple(map(partial(_of_workspace, workspace_claims), entries))
        add_entries(registry, entries, source)
    return registry


def _of_workspace(workspace_claims: WorkspaceClaims, entry: HookEntry) -> HookEntry:
    """Return a hook of the workspace that checks its scripts against the trusted content and runs in the sandbox."""
    return replace(entry, handler=TrustedHandler(changed_command(entry.handler, _inside), workspace_claims))


def _inside(command: CommandHandler) -> CommandHandler:
    return replace(command, sandbox=True) if command.sandbox is None else command


def _set_environment(registry: HookRegistry, loaded: LoadedSettings) -> None:
    """Set the environment of the session for all hooks of the registry.

    Commands receive the variables of settings files, and the headers of calls may name them.
    """
    commands = clean_environment(loaded.environment, loaded.variables)

    def changed(handler: HookHandler) -> HookHandler:
        match handler:
            case CommandHandler(environment=None):
                return replace(handler, environment=commands)
            case HttpHandler(environment=None):
                return replace(handler, environment=loaded.environment)
            case ConditionalHandler() | TrustedHandler():
                return replace(handler, handler=changed(handler.handler))
            case _:
                return handler

    if loaded.variables:
        registry.change_handlers(changed)


def sandbox_commands(registry: HookRegistry, sandbox: HookSandbox, loaded: LoadedSettings) -> None:
    """Set the sandbox and the environment of the session for all commands of the registry."""
    _set_environment(registry, loaded)
    registry.change_handlers(
        lambda handler: changed_command(handler, lambda command: replace(command, session_sandbox=sandbox))
    )


def runs_outside(handler: HookHandler) -> bool:
    """Return True if the entry of a hook asks to run outside the sandbox."""
    while isinstance(handler, ConditionalHandler | TrustedHandler):
        handler = handler.handler
    return isinstance(handler, CommandHandler) and handler.sandbox is False


def changed_command(handler: HookHandler, change: Callable[[CommandHandler], CommandHandler]) -> HookHandler:
    """Return the handler with its command changed, inside any wrappers; unchanged if it is not a command."""
    match handler:
        case CommandHandler():
            return change(handler)
        case ConditionalHandler() | TrustedHandler():
            return replace(handler, handler=changed_command(handler.handler, change))
        case _:
            return handler


def add_entries(registry: HookRegistry, entries: Iterable[HookEntry], source: HookSource) -> None:
    """Register the hooks of a file."""
    for entry in entries:
        registry.add(entry.event, entry.handler, entry.matcher, source=source, terms=entry.terms)


def add_front_matter(
    registry: HookRegistry, loaded: LoadedSettings, files: ExtensionPaths, agents: Iterable[AgentFile]
) -> list[DiscoveryNote]:
    """Register the hooks of agent and skill files. Return notes on the ignored parts."""
    notes: list[DiscoveryNote] = []
    skills = load_skills(files).items.values()
    for source_hooks in front_matter(loaded, agents, skills, str(files.workspace or "")):
        notes += source_hooks.read.notes
        entries = source_hooks.read.entries
        if source_hooks.of_workspace and files.workspace_claims is not None:
            entries = tuple(map(partial(_of_workspace, files.workspace_claims), entries))
        add_entries(registry, entries, source_hooks.source)
    return notes


def front_matter(
    loaded: LoadedSettings, agents: Iterable[AgentFile], skills: Iterable[Skill], project: str
) -> Iterator[FrontMatter]:
    """Yield the hooks of agent and skill files, file by file. `project`: absolute path of the workspace.

    A settings file that switches all hooks off includes these; one of a workspace only its own.
    """
    off = {settings_file.person for settings_file in loaded.claude if _all_off(settings_file, HookOrigin(""))}
    for source_hooks in front_matter_hooks(agents, skills, project, _limits(loaded)):
        quiet = True in off or (source_hooks.of_workspace and bool(off))
        yield replace(source_hooks, read=replace(source_hooks.read, entries=())) if quiet else source_hooks


def add_plugins(registry: HookRegistry, loaded: LoadedSettings, files: ExtensionPaths) -> list[DiscoveryNote]:
    """Register the hooks of plugins, which belong to the user who named them. Return notes on the ignored parts."""
    notes: list[DiscoveryNote] = []
    for plugin in files.plugins:
        for read in plugin_hooks(plugin, str(files.workspace or ""), loaded):
            notes += read.notes
            add_entries(registry, read.entries, "person")
    return notes


def plugin_hooks(plugin: Plugin, project: str, loaded: LoadedSettings | None = None) -> Iterator[HooksRead]:
    """Yield the hooks of a plugin, file by file, and those of its manifest; a note for a file that cannot be read.

    `project`: absolute path of the workspace. `loaded`: settings that limit the addresses of hooks, or switch off the
    hooks of all files if the file is the user's; None: no settings.
    """
    origin = HookOrigin(project, root=str(plugin.root), limits=_limits(loaded) if loaded else HttpLimits())
    quiet = loaded is not None and _off_for_all(loaded)
    for read in _of_plugin(plugin, origin):
        yield replace(read, entries=()) if quiet else read


def _of_plugin(plugin: Plugin, origin: HookOrigin) -> Iterator[HooksRead]:
    for path in plugin.hooks:
        try:
            yield load_hooks(path, origin)
        except SettingsError as error:
            yield HooksRead(notes=(broken(path, error),))
    if plugin.hooks_inline is not None:
        yield read_hooks(plugin.hooks_inline.get("hooks", plugin.hooks_inline), str(plugin.root / MANIFEST), origin)


def hook_notes(loaded: LoadedSettings, workspace: Path, environ: dict[str, str]) -> list[DiscoveryNote]:
    """Return the notes on ignored hook settings, for `doctor`."""
    return [note for source, read in _read(loaded, workspace, environ) if source != "builtin" for note in read.notes]


def hook_entries(loaded: LoadedSettings, workspace: Path, environ: dict[str, str]) -> list[HookEntry]:
    """Return the hooks of the settings files in force, for `doctor`."""
    return [
        entry for source, read in _read(loaded, workspace, environ) if source != "builtin" for entry in read.entries
    ]


def _read(loaded: LoadedSettings, workspace: Path, environ: dict[str, str]) -> Iterator[tuple[HookSource, HooksRead]]:
    """Yield each file of hooks in order. Of equal hooks in one scope only the first is kept."""
    own_origin = HookOrigin(str(workspace), compatible=False)
    bundled = builtin("hooks") / "hooks.json"
    if bundled.is_file():
        yield "builtin", load_hooks(bundled, own_origin)
    claude_origin = HookOrigin(str(workspace), limits=_limits(loaded))
    off = _off_for_all(loaded)
    for source in ("person", "workspace"):
        path = workspace_file(workspace) if source == "workspace" else user_file(environ)
        reads = [read_hooks(loaded.hooks.get(source, {}), str(path), own_origin)]
        reads.append(_own_file(source, path.parent / "hooks" / "hooks.json", own_origin, loaded.hooks_file))
        files = [
            settings_file
            for settings_file in loaded.claude
            if settings_file.raw and settings_file.person == (source == "person")
        ]
        read = [load_hooks(Path(file.path), claude_origin, file.raw) for file in files]
        quiet = off or any(
            file_hooks.all_off for file_hooks in read
        )  # a workspace's file cannot disable the hooks of the user's file
        reads += [replace(file_hooks, entries=()) if quiet else file_hooks for file_hooks in read]
        for file_hooks in _without_repeats(reads):
            yield source, file_hooks


def _own_file(source: HookSource, path: Path, own_origin: HookOrigin, trusted: bytes) -> HooksRead:
    """Read a `hooks/hooks.json` next to the settings: the user's, or the workspace's in its `trusted` form."""
    origin = replace(own_origin, root=str(path.parent.parent))  # as for a plugin: the folder that contains `hooks/`
    try:
        if source == "person":
            return load_hooks(path, origin)
        return load_hooks(path, origin, trusted) if trusted else HooksRead()
    except SettingsError as error:  # reported at the session's start
        return HooksRead(notes=(broken(path, error),))


def _limits(loaded: LoadedSettings) -> HttpLimits:
    """Return the limits of all settings files for the hooks of compatible files."""
    files = [settings_file for settings_file in loaded.claude if settings_file.raw]
    return joined_limits([http_limits(Path(settings_file.path), settings_file.raw) for settings_file in files])


def _off_for_all(loaded: LoadedSettings) -> bool:
    """Return True if a file of the user switches off the hooks of all compatible files."""
    return any(settings_file.person and _all_off(settings_file, HookOrigin("")) for settings_file in loaded.claude)


def _all_off(settings_file: ClaudeSettings, origin: HookOrigin) -> bool:
    return bool(settings_file.raw) and load_hooks(Path(settings_file.path), origin, settings_file.raw).all_off


def _without_repeats(reads: list[HooksRead]) -> Iterator[HooksRead]:
    met: list[HookEntry] = []
    for read in reads:
        entries = tuple(entry for entry in read.entries if entry not in met)
        met += entries
        yield replace(read, entries=entries)
