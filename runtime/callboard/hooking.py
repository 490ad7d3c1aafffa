"""Fills a session's hook registry: bundled hooks, the person's, the workspace's if a person trusts it."""

from __future__ import annotations

from pathlib import Path

from callboard.adapters.files import Note, builtin
from callboard.adapters.hook_files import HookEntry, HookOrigin, load_hooks, read_hooks
from callboard.engine.hooks.registry import HookRegistry
from callboard.settings import Loaded, user_file, workspace_file
from callboard.words.hooks import HookSource


def fill_registry(loaded: Loaded, workspace: Path, environ: dict[str, str], *, trusted: bool) -> HookRegistry:
    """The hooks of a session, in the order of their sources. Raises `SettingsError` for a file that is none."""
    registry = HookRegistry()
    for source, entries in _sources(loaded, workspace, environ, trusted=trusted):
        for entry in entries:
            registry.add(entry.event, entry.handler, entry.matcher, source=source, fail_open=entry.fail_open)
    return registry


def hook_notes(loaded: Loaded, workspace: Path, environ: dict[str, str]) -> list[Note]:
    """What of the hook settings is not honoured, for the doctor."""
    read = [
        read_hooks(hooks, str(_file_of(source, workspace, environ)), HookOrigin(str(workspace), compatible=False))
        for source, hooks in loaded.hooks.items()
    ]
    return [note for one in read for note in one.notes]


def _sources(
    loaded: Loaded, workspace: Path, environ: dict[str, str], *, trusted: bool
) -> list[tuple[HookSource, tuple[HookEntry, ...]]]:
    origin = HookOrigin(str(workspace), compatible=False)
    bundled = builtin("hooks") / "hooks.json"
    found: list[tuple[HookSource, tuple[HookEntry, ...]]] = []
    if bundled.is_file():
        found.append(("builtin", load_hooks(bundled, HookOrigin(str(workspace), compatible=False)).entries))
    for source, hooks in loaded.hooks.items():
        if source != "workspace" or trusted:
            path = str(_file_of(source, workspace, environ))
            found.append((source, read_hooks(hooks, path, origin).entries))
    return found


def _file_of(source: HookSource, workspace: Path, environ: dict[str, str]) -> Path:
    return workspace_file(workspace) if source == "workspace" else user_file(environ)
