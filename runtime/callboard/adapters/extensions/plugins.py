"""Plugins: each is a folder that the user names with `--plugin`, with a manifest `.claude-plugin/plugin.json`.

Only the manifest's `name` is required; `skills` adds to the folder `skills`, `commands`, `agents` and `outputStyles`
replace their folders; each path begins with `./` and stays in the plugin. A top-level field that is unknown or unused
here is reported. With a value of a wrong type, or text that is not JSON, the plugin is not loaded. A folder without a
manifest is named after itself (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from callboard.adapters.extensions.discovery import LARGEST_FILE, DiscoveryNote
from callboard.adapters.system.regular_files import read_regular
from callboard.core.trust.yaml_nodes import YamlNode, json_node, plain
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.skills import Plugin

MANIFEST = ".claude-plugin/plugin.json"

_NAME = late_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TEXTS = frozenset({"$schema", "name", "displayName", "version", "description", "homepage", "repository", "license"})
_PATHS = frozenset({"skills", "commands", "agents", "outputStyles"})
_KEPT = _TEXTS | {"author", "keywords", "metadata"}
"""Fields that only describe a plugin."""
_UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "defaultEnabled": "a plugin is used where a person names it, and only there",
        "workflows": "workflows are Python here (docs/workflows.md)",
        "lspServers": "language servers are not started",
        "experimental": "themes and monitors are not used",
        "userConfig": "a plugin asks for no settings here",
        "channels": "there are no channels",
        "dependencies": "name each plugin by itself",
    }
)
_UNUSED_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "workflows": _UNUSED["workflows"],
        "themes": "themes are not used",
        "monitors": "monitors are not used",
        "bin": "nothing of it is put on the PATH: name a program by ${CLAUDE_PLUGIN_ROOT}/bin/NAME",
        "settings.json": "a plugin sets nothing",
        ".lsp.json": _UNUSED["lspServers"],
    }
)
_MARKS = ("agents", "skills", "commands", "output-styles", "hooks/hooks.json", "SKILL.md", ".mcp.json")
"""Entries that make a folder without a manifest a plugin: one of them suffices."""


class _Wrong(Exception):
    """Value that prevents the plugin from being loaded: field, line and reason."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(reason)
        self.field = name
        self.line = line


@dataclass
class _Reading:
    """Reading of one manifest."""

    root: Path
    path: Path
    members: Mapping[str, YamlNode]
    notes: list[DiscoveryNote] = field(default_factory=list[DiscoveryNote])

    def note_ignored(self, name: str, reason: str) -> None:
        line = self.members[name].line if name in self.members else 0
        self.notes.append(DiscoveryNote(str(self.path), name, "ignored", reason, line))

    def text(self, name: str) -> str:
        node = self.members.get(name)
        value = None if node is None else plain(node)
        if name == "repository" and isinstance(value, dict):  # package managers write it in this form
            return ""
        if value is not None and not isinstance(value, str):
            raise _Wrong(name, node.line if node else 0, f"write a text, not {_kind(value)}")
        return value or ""


def unusable(folders: Iterable[Path]) -> DiscoveryNote | None:
    """Return the reason why the first of these folders that is no plugin cannot be loaded, or None."""
    names: dict[str, Path] = {}
    for folder in folders:
        plugin, notes = read_plugin(folder)
        if plugin is None:
            return notes[0]
        if names.setdefault(plugin.name, plugin.root) != plugin.root:
            return _duplicate(plugin, names[plugin.name])
    return None


def read_plugins(folders: Iterable[Path]) -> tuple[tuple[Plugin, ...], tuple[DiscoveryNote, ...]]:
    """Return the plugins in these folders in order, and notes on parts without effect.

    Of two with the same name the first counts.
    """
    plugins: dict[str, Plugin] = {}
    notes: list[DiscoveryNote] = []
    for folder in folders:
        plugin, plugin_notes = read_plugin(folder)
        notes += plugin_notes
        if plugin is None or plugin.root in [existing.root for existing in plugins.values()]:
            continue
        if plugin.name in plugins:
            notes.append(_duplicate(plugin, plugins[plugin.name].root))
            continue
        plugins[plugin.name] = plugin
    return tuple(plugins.values()), tuple(notes)


def read_plugin(folder: Path) -> tuple[Plugin | None, tuple[DiscoveryNote, ...]]:
    """Return the plugin in a folder, and notes on parts without effect.

    None: it cannot be loaded, and the only note has the reason.
    """
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return None, (DiscoveryNote(str(folder), "", "refused", f"cannot be read: {_message(error)}"),)
    if not root.is_dir():
        return None, (DiscoveryNote(str(folder), "", "refused", "a plugin is a folder"),)
    path = root / MANIFEST
    try:
        raw = _bytes(path)
        members = {} if raw is None else _members(raw)
        reading = _Reading(root, path, members)
        plugin = _plugin_from(reading, named=raw is not None)
    except _Wrong as wrong:
        return None, (DiscoveryNote(str(path), wrong.field, "refused", str(wrong), wrong.line),)
    if plugin is None:
        reason = f"is not a plugin: there is no {MANIFEST}, and neither {', '.join(_MARKS[:-1])} nor {_MARKS[-1]}"
        return None, (DiscoveryNote(str(root), "", "refused", reason),)
    return plugin, tuple(reading.notes)


def _duplicate(plugin: Plugin, first: Path) -> DiscoveryNote:
    reason = f"the plugin {plugin.name} is {first} already"
    return DiscoveryNote(str(plugin.root / MANIFEST), "name", "refused", reason)


def _bytes(path: Path) -> bytes | None:
    """Return the manifest; None if there is none. Raises `_Wrong`."""
    try:
        if not path.is_symlink() and not path.exists():
            return None
        if not path.resolve(strict=True).is_relative_to(path.parents[1]):
            raise _Wrong("", 0, "a link leads out of the plugin")
        if not path.is_file():
            raise _Wrong("", 0, "is not a regular file")
        if path.stat().st_size > LARGEST_FILE:
            raise _Wrong("", 0, f"is larger than {LARGEST_FILE:,} bytes")
        return read_regular(path, LARGEST_FILE)
    except (OSError, RuntimeError) as error:
        raise _Wrong("", 0, f"cannot be read: {_message(error)}") from error


def _members(raw: bytes) -> dict[str, YamlNode]:
    try:
        node = json_node(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _Wrong("", raw[: error.start].count(b"\n") + 1, "is not UTF-8 text") from error
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        raise _Wrong("", line, f"is not valid JSON: {getattr(error, 'msg', error)}") from error
    except RecursionError as error:
        raise _Wrong("", 0, "is nested too deeply") from error
    if node.members is None:
        raise _Wrong("", node.line, "a manifest is an object of fields")
    fields: dict[str, YamlNode] = {}
    for name, value in node.members:
        if name in fields:
            raise _Wrong(name, value.line, "is written twice; keep one of the two")
        fields[name] = value
    return fields


def _plugin_from(reading: _Reading, *, named: bool) -> Plugin | None:
    root = reading.root
    if not named and not any((root / mark).exists() for mark in _MARKS):
        return None
    texts = {name: reading.text(name) for name in sorted(_TEXTS)}
    name = texts["name"].strip() if named else root.name
    if not _NAME.fullmatch(name):
        line = reading.members["name"].line if "name" in reading.members else 0
        raise _Wrong("name", line, "write at most 64 letters, digits and hyphens" if name else "is missing")
    hooks, hooks_inline = _files(reading, "hooks", "hooks/hooks.json")
    named_commands = _named_commands(reading)
    mcp, mcp_inline = _files(reading, "mcpServers", ".mcp.json")
    plugin = Plugin(
        name=name,
        root=root,
        version=texts["version"],
        description=texts["description"],
        agents=_paths(reading, "agents") or _existing_folders(root / "agents"),
        skills=(*_existing_folders(root / "skills"), *_paths(reading, "skills")) or _only_skill(root),
        commands=_paths(reading, "commands") or (() if named_commands else _existing_folders(root / "commands")),
        named_commands=named_commands,
        output_styles=_paths(reading, "outputStyles") or _existing_folders(root / "output-styles"),
        hooks=hooks,
        hooks_inline=hooks_inline,
        mcp=mcp,
        mcp_inline=mcp_inline,
    )
    _report_unknown_fields(reading)
    return plugin


def _only_skill(root: Path) -> tuple[Path, ...]:
    """Return the folder of a plugin that is a skill itself, with its `SKILL.md` beside the manifest."""
    return (root,) if (root / "SKILL.md").is_file() else ()


def _report_unknown_fields(reading: _Reading) -> None:
    for name, node in reading.members.items():
        value = plain(node)
        if name in _UNUSED:
            reading.note_ignored(name, _UNUSED[name])
        elif name == "author" and not isinstance(value, str | dict):
            raise _Wrong(name, node.line, f"write {{name, email, url}}, not {_kind(value)}")
        elif name == "keywords" and not _texts(value):
            raise _Wrong(name, node.line, "write a list of texts")
        elif name not in _KEPT | _PATHS | {"hooks", "mcpServers"}:
            reading.note_ignored(name, "is not a field of a plugin")
    for name, reason in _UNUSED_FOLDERS.items():
        if (reading.root / name).exists():
            reading.notes.append(DiscoveryNote(str(reading.root / name), "", "ignored", reason))


def _paths(reading: _Reading, name: str) -> tuple[Path, ...]:
    """Return the folders or files that a field names. Raises `_Wrong` for a wrong type; an invalid path is reported."""
    node = reading.members.get(name)
    if node is None:
        return ()
    value: Any = plain(node)
    listed: Any = [value] if isinstance(value, str) else value
    if name == "commands" and isinstance(value, dict):
        return ()
    if not _texts(listed):
        raise _Wrong(name, node.line, f"write a path or a list of paths, not {_kind(value)}")
    return tuple(path for entry in cast("list[str]", listed) if (path := _inside(reading, name, entry)) is not None)


def _named_commands(reading: _Reading) -> tuple[tuple[str, Path], ...]:
    """Return the commands of an object, name -> path or {source: path}. Raises `_Wrong` for another type."""
    node = reading.members.get("commands")
    value = None if node is None else plain(node)
    if node is None or not isinstance(value, dict):
        return ()
    named: list[tuple[str, Path]] = []
    for name, written in cast("dict[str, object]", value).items():
        fields: Mapping[str, object] = cast("Json", written) if isinstance(written, dict) else {"source": written}
        source = fields.get("source")
        if "content" in fields and source is None:
            reading.note_ignored("commands", f"{name}: write its content to a file, and name the file as source")
        elif not isinstance(source, str):
            raise _Wrong("commands", node.line, f"{name}: write a path, or {{source}}, not {_kind(source)}")
        elif path := _inside(reading, "commands", source):
            named.append((name, path))
        if others := sorted(set(fields) - {"source", "content"}):
            reading.note_ignored(
                "commands", f"{name}: {', '.join(others)}: write this into the front matter of its file"
            )
    return tuple(named)


def _inside(reading: _Reading, name: str, written: str) -> Path | None:
    """Return a path of the manifest, absolute; None, with a note, if it does not exist or leads out of the plugin."""
    if not written.startswith("./") and written != ".":
        reading.note_ignored(name, f"{written}: a path begins with ./")
        return None
    try:
        path = (reading.root / written).resolve()
        if path.is_relative_to(reading.root):
            path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        reading.note_ignored(name, f"{written}: {_message(error)}")
        return None
    if not path.is_relative_to(reading.root):
        reading.notes.append(
            DiscoveryNote(
                str(reading.path), name, "refused", f"{written} leads out of the plugin", reading.members[name].line
            )
        )
        return None
    return path


def _files(reading: _Reading, name: str, usual: str) -> tuple[tuple[Path, ...], Json | None]:
    """Return the files of a field and its inline content; the default file counts as well. Raises `_Wrong`."""
    default = reading.root / usual
    files = [default] if default.exists() or default.is_symlink() else []
    node = reading.members.get(name)
    if node is None:
        return tuple(files), None
    value = plain(node)
    if isinstance(value, dict):
        return tuple(files), cast("Json", value)
    for path in _paths(reading, name):
        if path not in files:
            files.append(path)
    return tuple(files), None


def _existing_folders(folder: Path) -> tuple[Path, ...]:
    return (folder,) if folder.is_dir() else ()


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in cast("list[object]", value))


_KINDS: tuple[tuple[Callable[[object], bool], str], ...] = (
    (lambda value: value is None, "null"),
    (lambda value: isinstance(value, bool), "true or false"),
    (lambda value: isinstance(value, str), "a text"),
    (lambda value: isinstance(value, dict), "an object"),
    (lambda value: isinstance(value, list), "a list"),
)


def _kind(value: Any) -> str:
    return next((kind for fits, kind in _KINDS if fits(value)), "a number")


def _message(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
