"""Plugins: a folder with `.claude-plugin/plugin.json` and the folders that it names. A person names it by `--plugin`.

Only the manifest's `name` is required; `skills` adds to the folder `skills`, `commands` and `agents` stand in place of
theirs; each path begins with `./` and stays in the plugin. A top-level field that is unknown, or that nothing here
uses, is told. With a value of a wrong type, or text that is no JSON, the plugin is not loaded. A folder without a
manifest goes by its own name (docs/plugins.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from callboard.adapters.files import LARGEST_FILE, Note
from callboard.core.trust.nodes import Node, json_node, plain
from callboard.words.plugins import Plugin
from callboard.words.values import Json

MANIFEST = ".claude-plugin/plugin.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TEXTS = frozenset({"$schema", "name", "displayName", "version", "description", "homepage", "repository", "license"})
_PATHS = frozenset({"skills", "commands", "agents"})
_KEPT = _TEXTS | {"author", "keywords", "metadata"}
"""Fields that describe a plugin, and have no effect."""
_UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "defaultEnabled": "a plugin is used where a person names it, and only there",
        "workflows": "workflows are Python here (docs/workflows.md)",
        "outputStyles": "there are no output styles",
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
        "output-styles": _UNUSED["outputStyles"],
        "themes": "themes are not used",
        "monitors": "monitors are not used",
        "bin": "nothing of it is put on the PATH: name a program by ${CLAUDE_PLUGIN_ROOT}/bin/NAME",
        "settings.json": "a plugin sets nothing",
        ".lsp.json": _UNUSED["lspServers"],
    }
)
_MARKS = ("agents", "skills", "commands", "hooks/hooks.json", ".mcp.json")
"""What makes a folder without a manifest a plugin."""


class _Wrong(Exception):
    """A value that stops the plugin from being loaded: field, line and why."""

    def __init__(self, name: str, line: int, why: str) -> None:
        super().__init__(why)
        self.field, self.line = name, line


@dataclass
class _Reading:
    """One manifest while it is read."""

    root: Path
    path: Path
    members: Mapping[str, Node]
    notes: list[Note] = field(default_factory=list[Note])

    def ignored(self, name: str, why: str) -> None:
        line = self.members[name].line if name in self.members else 0
        self.notes.append(Note(str(self.path), name, "ignored", why, line))

    def text(self, name: str) -> str:
        node = self.members.get(name)
        value = None if node is None else plain(node)
        if name == "repository" and isinstance(value, dict):  # as package managers write it
            return ""
        if value is not None and not isinstance(value, str):
            raise _Wrong(name, node.line if node else 0, f"write a text, not {_kind(value)}")
        return value or ""


def read_plugins(folders: Iterable[Path]) -> tuple[tuple[Plugin, ...], tuple[Note, ...]]:
    """The plugins in these folders, in their order, and what is not honoured; of two by one name the first counts."""
    found: dict[str, Plugin] = {}
    notes: list[Note] = []
    for folder in folders:
        plugin, told = read_plugin(folder)
        notes += told
        if plugin is None or plugin.root in [one.root for one in found.values()]:
            continue
        if plugin.name in found:
            why = f"the plugin {plugin.name} is {found[plugin.name].root} already"
            notes.append(Note(str(plugin.root / MANIFEST), "name", "refused", why))
            continue
        found[plugin.name] = plugin
    return tuple(found.values()), tuple(notes)


def read_plugin(folder: Path) -> tuple[Plugin | None, tuple[Note, ...]]:
    """The plugin in a folder, and what of it is not honoured. None: it cannot be loaded, and the one note says why."""
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return None, (Note(str(folder), "", "refused", f"cannot be read: {_words(error)}"),)
    if not root.is_dir():
        return None, (Note(str(folder), "", "refused", "a plugin is a folder"),)
    path = root / MANIFEST
    try:
        raw = _bytes(path)
        members = {} if raw is None else _members(raw)
        reading = _Reading(root, path, members)
        plugin = _made(reading, named=raw is not None)
    except _Wrong as wrong:
        return None, (Note(str(path), wrong.field, "refused", str(wrong), wrong.line),)
    if plugin is None:
        why = f"is no plugin: there is no {MANIFEST}, and neither {', '.join(_MARKS[:-1])} nor {_MARKS[-1]}"
        return None, (Note(str(root), "", "refused", why),)
    return plugin, tuple(reading.notes)


def _bytes(path: Path) -> bytes | None:
    """The manifest; None: there is none. Raises `_Wrong`."""
    try:
        if not path.is_symlink() and not path.exists():
            return None
        if not path.resolve(strict=True).is_relative_to(path.parents[1]):
            raise _Wrong("", 0, "a link leads out of the plugin")
        if not path.is_file():
            raise _Wrong("", 0, "is not a regular file")
        if path.stat().st_size > LARGEST_FILE:
            raise _Wrong("", 0, f"is larger than {LARGEST_FILE:,} bytes")
        return path.read_bytes()
    except (OSError, RuntimeError) as error:
        raise _Wrong("", 0, f"cannot be read: {_words(error)}") from error


def _members(raw: bytes) -> dict[str, Node]:
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
    found: dict[str, Node] = {}
    for name, value in node.members:
        if name in found:
            raise _Wrong(name, value.line, "is written twice; keep one of the two")
        found[name] = value
    return found


def _made(reading: _Reading, *, named: bool) -> Plugin | None:
    root = reading.root
    if not named and not any((root / mark).exists() for mark in _MARKS):
        return None
    texts = {name: reading.text(name) for name in sorted(_TEXTS)}
    name = texts["name"].strip() if named else root.name
    if not _NAME.fullmatch(name):
        line = reading.members["name"].line if "name" in reading.members else 0
        raise _Wrong("name", line, "write letters, digits and hyphens" if name else "is missing")
    hooks, hooks_inline = _files(reading, "hooks", "hooks/hooks.json")
    mcp, mcp_inline = _files(reading, "mcpServers", ".mcp.json")
    plugin = Plugin(
        name=name,
        root=root,
        version=texts["version"],
        description=texts["description"],
        agents=_paths(reading, "agents") or _there(root / "agents"),
        skills=(*_there(root / "skills"), *_paths(reading, "skills")),
        commands=_paths(reading, "commands") or _there(root / "commands"),
        hooks=hooks,
        hooks_inline=hooks_inline,
        mcp=mcp,
        mcp_inline=mcp_inline,
    )
    _tell_rest(reading)
    return plugin


def _tell_rest(reading: _Reading) -> None:
    for name, node in reading.members.items():
        value = plain(node)
        if name in _UNUSED:
            reading.ignored(name, _UNUSED[name])
        elif name == "author" and not isinstance(value, str | dict):
            raise _Wrong(name, node.line, f"write {{name, email, url}}, not {_kind(value)}")
        elif name == "keywords" and not _texts(value):
            raise _Wrong(name, node.line, "write a list of texts")
        elif name not in _KEPT | _PATHS | {"hooks", "mcpServers"}:
            reading.ignored(name, "is no field of a plugin")
    for name, why in _UNUSED_FOLDERS.items():
        if (reading.root / name).exists():
            reading.notes.append(Note(str(reading.root / name), "", "ignored", why))


def _paths(reading: _Reading, name: str) -> tuple[Path, ...]:
    """The folders or files that a field names. Raises `_Wrong` for a wrong type; a path that is none is told."""
    node = reading.members.get(name)
    if node is None:
        return ()
    value: Any = plain(node)
    listed: Any = [value] if isinstance(value, str) else value
    if name == "commands" and isinstance(value, dict):  # name -> {source: path}
        inner = cast("dict[str, object]", value).values()
        listed = [cast("Json", one).get("source") if isinstance(one, dict) else one for one in inner]
    if not _texts(listed):
        raise _Wrong(name, node.line, f"write a path or a list of paths, not {_kind(value)}")
    return tuple(path for one in cast("list[str]", listed) if (path := _inside(reading, name, one)) is not None)


def _inside(reading: _Reading, name: str, written: str) -> Path | None:
    """A path of the manifest, absolute; None, and told, where there is none or it leads out of the plugin."""
    if not written.startswith("./") and written != ".":
        reading.ignored(name, f"{written}: a path begins with ./")
        return None
    try:
        path = (reading.root / written).resolve()
        if path.is_relative_to(reading.root):
            path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        reading.ignored(name, f"{written}: {_words(error)}")
        return None
    if not path.is_relative_to(reading.root):
        reading.notes.append(
            Note(str(reading.path), name, "refused", f"{written} leads out of the plugin", reading.members[name].line)
        )
        return None
    return path


def _files(reading: _Reading, name: str, usual: str) -> tuple[tuple[Path, ...], Json | None]:
    """The files of a field and what it holds itself; the usual file counts beside them. Raises `_Wrong`."""
    default = reading.root / usual
    found = [default] if default.exists() or default.is_symlink() else []
    node = reading.members.get(name)
    if node is None:
        return tuple(found), None
    value = plain(node)
    if isinstance(value, dict):
        return tuple(found), cast("Json", value)
    for path in _paths(reading, name):
        if path not in found:
            found.append(path)
    return tuple(found), None


def _there(folder: Path) -> tuple[Path, ...]:
    return (folder,) if folder.is_dir() else ()


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in cast("list[object]", value))


_KINDS: tuple[tuple[Callable[[object], bool], str], ...] = (
    (lambda value: value is None, "null"),
    (lambda value: isinstance(value, bool), "true or false"),
    (lambda value: isinstance(value, str), "a text"),
    (lambda value: isinstance(value, dict), "an object"),
    (lambda value: isinstance(value, list), "a list"),
)


def _kind(value: Any) -> str:
    return next((words for fits, words in _KINDS if fits(value)), "a number")


def _words(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
