"""Plugins that a person installed: those of `callboard plugin install`, and those of Claude Code.

Callboard's are listed in `plugins/installed.json` in the user's Callboard folder, each with its folder and whether it
is enabled. Those of Claude Code are listed in `plugins/installed_plugins.json` of its folder; the settings say which of
them are enabled. A name is `NAME@MARKETPLACE`, or `NAME` for a plugin from a folder or a git URL. The setting
`enabled_plugins` takes precedence for both.

The files of an installed plugin are a copy without links, in a folder of its own for each content: an installed plugin
never changes. The user's marketplaces are listed in `plugins/marketplaces.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.discovery import DiscoveryNote
from callboard.adapters.system.regular_files import read_regular
from callboard.core.utf8 import strict_json
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

OWN_LIST = "plugins/installed.json"
_CLAUDE_LIST = "plugins/installed_plugins.json"
_MARKETPLACES = "plugins/marketplaces.json"
_LARGEST = 4_000_000
_MOST_FILES = 20_000
_MOST_BYTES = 500_000_000
"""Most files (`_MOST_FILES`) and most bytes of a plugin."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """One installed plugin."""

    name: str
    """`NAME@MARKETPLACE`, or `NAME`."""
    path: str
    """Its folder."""
    version: str = ""
    source: str = ""
    """Origin: a folder, a git URL, or a marketplace file."""
    enabled: bool = True
    own: bool = True
    """True if Callboard installed it."""


def own_plugins(config: Path, notes: list[DiscoveryNote] | None = None) -> dict[str, InstalledPlugin]:
    """Return the plugins that Callboard installed, by name. Raises `UsageError` for a damaged list.

    Wrong entries are added to `notes`.
    """
    file = config / OWN_LIST
    document = _document(file)
    plugins = document.get("plugins", {})
    if not isinstance(plugins, dict):
        raise UsageError(f"{file}: `plugins` is not an object: move the file away, and install the plugins again")
    listed: dict[str, InstalledPlugin] = {}
    for name, entry in cast("dict[str, object]", plugins).items():
        fields = _texts(entry)
        if not fields.get("path"):
            reason = "has no `path`, its folder: `callboard plugin install` installs it again"
            _report(notes, DiscoveryNote(str(file), name, "refused", reason))
            continue
        switch = cast("dict[str, object]", entry).get("enabled", True)
        if not isinstance(switch, bool):
            _report(notes, DiscoveryNote(str(file), f"{name}.enabled", "ignored", "write true or false: it is enabled"))
        listed[name] = InstalledPlugin(
            name, fields["path"], fields.get("version", ""), fields.get("source", ""), switch is not False
        )
    return listed


def _report(notes: list[DiscoveryNote] | None, note: DiscoveryNote) -> None:
    if notes is not None:
        notes.append(note)


def write_own(config: Path, plugins: Mapping[str, InstalledPlugin]) -> None:
    """Replace the list of the plugins that Callboard installed. Raises OSError."""
    entries = {
        name: {key: value for key, value in asdict(plugin).items() if key not in ("name", "own")}
        for name, plugin in sorted(plugins.items())
    }
    _write(config / OWN_LIST, {"version": 1, "plugins": entries})


def marketplaces(config: Path) -> dict[str, str]:
    """Return the origins of the user's marketplaces, by name. Raises `UsageError` for a damaged list."""
    return _texts(_document(config / _MARKETPLACES).get("marketplaces"))


def write_marketplaces(config: Path, origins: Mapping[str, str]) -> None:
    """Replace the list of marketplaces. Raises OSError."""
    _write(config / _MARKETPLACES, {"version": 1, "marketplaces": dict(sorted(origins.items()))})


def copy_plugin(source: Path, target: Path, *, boundary: Path) -> str:
    """Copy a plugin's files into a new folder, and return a digest of them.

    A link is replaced by what it leads to, which must be inside `boundary`. git's own folder is left out. Raises
    `UsageError` for a file that cannot be copied.
    """
    copying = _Copying(boundary.resolve(), target)
    root = source.resolve()
    try:
        target.mkdir(mode=0o700)
        copying.folder(root, target, (root,))
    except (OSError, RuntimeError) as error:
        name = getattr(error, "filename", None) or source
        raise UsageError(f"{name}: cannot be copied: {getattr(error, 'strerror', None) or error}") from error
    return hashlib.sha256(b"".join(copying.rows)).hexdigest()


@dataclass
class _Copying:
    """Copying of one plugin."""

    boundary: Path
    target: Path
    rows: list[bytes] = field(default_factory=list[bytes])
    """A digest for each copied file: of its path, whether it may be executed, and its content."""
    size: int = 0

    def folder(self, source: Path, target: Path, above: tuple[Path, ...]) -> None:
        """Copy the content of a folder. `above`: the real folders that lead to it."""
        for path in sorted(source.iterdir()):
            if path.name == ".git":
                continue
            real = path.resolve(strict=True)
            if not real.is_relative_to(self.boundary):
                raise UsageError(f"{path}: leads out of {self.boundary}: a plugin contains all of its files")
            copy = target / path.name
            if not real.is_dir():
                self._file(path, real, copy)
            elif real in above:
                raise UsageError(f"{path}: leads to a folder that contains it")
            else:
                copy.mkdir(mode=0o755)
                self.folder(real, copy, (*above, real))

    def _file(self, path: Path, real: Path, copy: Path) -> None:
        content = read_regular(real, _MOST_BYTES - self.size)
        mode = 0o755 if os.access(real, os.X_OK) else 0o644
        self.size += len(content)
        if len(self.rows) >= _MOST_FILES:
            raise UsageError(f"{path}: a plugin has at most {_MOST_FILES:,} files")
        with copy.open("xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        name = os.fsencode(copy.relative_to(self.target))
        self.rows.append(hashlib.sha256(b"%o %s\0%s" % (mode, name, content)).digest())


def _write(file: Path, document: Mapping[str, object]) -> None:
    """Write a list completely or not at all. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(json.dumps(document, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(file)


def claude_plugins(claude: Path, workspace: Path, notes: list[DiscoveryNote]) -> dict[str, InstalledPlugin]:
    """Return the plugins that Claude Code installed for the user or for this workspace, by name.

    The list enables none of them. Wrong entries are added to `notes`. Raises `UsageError` for a damaged list.
    """
    file = claude / _CLAUDE_LIST
    plugins = _document(file).get("plugins", {})
    if not isinstance(plugins, dict):
        raise UsageError(f"{file}: `plugins` is not an object")
    listed: dict[str, InstalledPlugin] = {}
    for name, entry in cast("dict[str, object]", plugins).items():
        for fields in map(_texts, cast("list[object]", entry) if isinstance(entry, list) else [entry]):
            project = fields.get("projectPath", "")
            if not fields.get("installPath"):
                notes.append(DiscoveryNote(str(file), name, "refused", "has no `installPath`, its folder"))
            if fields.get("installPath") and (not project or os.path.realpath(project) == str(workspace)):
                version = fields.get("version", "")
                listed[name] = InstalledPlugin(
                    name, fields["installPath"], version, str(claude), enabled=False, own=False
                )
    return listed


def installed_plugins(
    config: Path, claude: Path, workspace: Path, switches: Mapping[str, bool]
) -> tuple[dict[str, InstalledPlugin], tuple[DiscoveryNote, ...]]:
    """Return all installed plugins by name, and notes on damaged lists and on enabled plugins that are not installed.

    `switches`: the setting `enabled_plugins`.
    """
    plugins: dict[str, InstalledPlugin] = {}
    notes: list[DiscoveryNote] = []
    for file, read in (
        (claude / _CLAUDE_LIST, lambda: claude_plugins(claude, workspace, notes)),
        (config / OWN_LIST, lambda: own_plugins(config, notes)),
    ):
        try:
            plugins |= read()
        except UsageError as error:
            notes.append(DiscoveryNote(str(file), "", "refused", str(error).removeprefix(f"{file}: ")))
    plugins = {name: replace(plugin, enabled=switches.get(name, plugin.enabled)) for name, plugin in plugins.items()}
    for name in sorted(name for name, on in switches.items() if on and name not in plugins):
        notes.append(
            DiscoveryNote(
                "enabled_plugins", name, "refused", "is not installed: `callboard plugin install` installs it"
            )
        )
    return plugins, tuple(notes)


def enabled_folders(plugins: Mapping[str, InstalledPlugin]) -> Iterator[Path]:
    """Yield the folders of the enabled plugins, by name."""
    yield from (Path(plugin.path) for _, plugin in sorted(plugins.items()) if plugin.enabled)


def _document(file: Path) -> dict[str, object]:
    try:
        text = read_regular(file, _LARGEST).decode("utf-8-sig")
        if "\\u0000" in text:
            raise ValueError("it contains a NUL character, which no path has")
        document: object = strict_json(text)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{file}: cannot be read: {reason}: move it away, and install the plugins again") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: is not a JSON object: move it away, and install the plugins again")
    return cast("dict[str, object]", document)


def _texts(entry: object) -> dict[str, str]:
    """Return the texts among the fields of an entry."""
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    return {name: value for name, value in fields.items() if isinstance(value, str)}
