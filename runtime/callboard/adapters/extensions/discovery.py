"""Discovery of agent and skill files: their places, their order, and the files that are not read.

Both kinds use the same places: bundled, the user's, the workspace's once it is trusted, and the compatible `.claude`
folders. Callboard's own folders take precedence over the compatible ones, and nearer over farther ones. A hidden
definition is reported, never dropped silently. A file that is reached by a link out of its folder is refused, and so is
anything that is not a regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from callboard.adapters.system.regular_files import read_regular
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.core.trust.claims import WorkspaceClaims
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.skills import Plugin

Kind = Literal["agents", "skills", "commands", "hooks", "schedules", "output-styles"]
Scope = Literal["bundled", "person", "workspace"]
"""Origin of a file. A plugin's files count as the user's, because the user named the plugin."""

UNTRUSTED = "nobody has trusted this workspace's content"
"""Reason why a field of a workspace's file has no effect."""
LARGEST_FILE = 1_000_000
"""Most bytes of a file. A text for a model is far smaller; a larger file is a mistake."""
_HIGHEST = 40
"""Most folders from a workspace up to its repository's root. With more it is not a checkout."""
MOST_FILES = 2_000
"""Most files that are checked in one folder, because a link to a home folder must not take minutes."""

Mark = tuple[str, int, int]
"""Data that shows a change of a file: its path, time of last change (ns) and size (bytes)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiscoveryNote:
    """A file, field or rule without effect, and the reason; `honored`: it has a different effect than written.

    `field` is empty if the note is about the whole file.
    """

    path: str
    field: str
    verdict: Literal["honored", "ignored", "refused"]
    reason: str
    line: int = 0
    """Line from 1; 0: the whole file, or unknown."""

    @property
    def where(self) -> str:
        """Return `file:line`, or the file."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def __str__(self) -> str:
        return f"{self.where}: {self.field + ': ' if self.field else ''}{self.verdict}: {self.reason}"


def broken(path: Path, error: SettingsError, verdict: Literal["ignored", "refused"] = "refused") -> DiscoveryNote:
    """Return the note about a file that cannot be parsed, with line and field from the error."""
    message = str(error).removeprefix(f"{error.where}: ")
    line, _, field = error.where.removeprefix(str(path)).lstrip(":").partition(": ")
    return DiscoveryNote(str(path), field, verdict, message, int(line) if line.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class LoadedItems(Generic[T]):
    """All items by name, sorted by name, and notes on everything that has no effect."""

    items: Mapping[str, T]
    notes: tuple[DiscoveryNote, ...] = ()
    hidden: tuple[tuple[T, str], ...] = ()
    """Definitions whose name was already used, each with the path of the winning one."""


@dataclass(frozen=True, slots=True)
class ExtensionPaths:
    """Folders to search. None: that scope has no folder."""

    workspace: Path | None = None
    config: Path | None = None
    """The user's own Callboard folder (`~/.config/callboard`)."""
    home: Path | None = None
    """The user's home, for its `.claude`."""
    trusted: bool = False
    """True if the user trusted the workspace's files. Until then none of them is read, unless `texts` is set."""
    texts: bool = False
    """True: read the agents, skills and commands of an untrusted workspace as texts, without anything that they grant
    or run."""
    bundled: bool = True
    workspace_claims: WorkspaceClaims | None = None
    """Content of the workspace at the time when it was trusted: only this is read, nothing written later. None: read
    the present files."""
    plugins: tuple[Plugin, ...] = ()
    """Plugins that the user named for this run, in that order. They count as the user's own, and so as trusted."""


@dataclass(frozen=True, slots=True)
class Source:
    """One folder of definitions."""

    folder: Path
    scope: Scope
    root: Path
    """Folder that must contain the source's real folder: the workspace, or the real location of the user's own
    folder."""
    workspace_claims: WorkspaceClaims | None = None
    """Content that was already read, see `ExtensionPaths.workspace_claims`."""
    plugin: str = ""
    """Plugin of this source: its definitions are named `plugin:name`; empty: none."""
    only: str = ""
    """The only file in `folder` to read; empty: all files."""
    name: str = ""
    """Name of the command in the only file; empty: that of the file."""
    inert: bool = False
    """True if it is not trusted: its definitions count without anything that they grant or run."""

    @property
    def compatible(self) -> bool:
        """Return True if it contains files in the compatible format: their hooks fail as documented for that format."""
        return bool(self.plugin) or self.folder.parent.name == ".claude"

    @property
    def may_change(self) -> bool:
        """Return True if its files may change during a session: neither the program's own, nor read already."""
        return self.scope != "bundled" and self.workspace_claims is None

    def read(self, path: Path) -> bytes:
        """Return a file of this source. Raises OSError."""
        if self.workspace_claims is None:
            return read_regular(path, LARGEST_FILE)
        return self.workspace_claims.content[os.path.relpath(path, self.root)]

    def read_files(self, depth: int | None, ending: str) -> SourceFiles:
        """Return the already read files with this ending, at a depth of `depth` folders; None: at any depth."""
        workspace_claims = self.workspace_claims or WorkspaceClaims("")
        inside = os.path.relpath(self.folder, self.root)  # of a folder above the workspace: `../.claude/agents`
        paths = [path for path in workspace_claims.files_below(inside) if f"/{path}".endswith(ending)]
        fitting = [path for path in paths if depth in (None, path.count("/") - inside.count("/") - 1)]
        unread = (
            claim
            for claim in workspace_claims.claims
            if claim.kind == "unread" and claim.path not in workspace_claims.content
        )
        refused = [claim for claim in unread if claim.path.startswith(f"{inside}/")]
        notes = tuple(
            DiscoveryNote(os.path.normpath(self.root / claim.path), "", "refused", claim.text) for claim in refused
        )
        return SourceFiles(tuple(Path(os.path.normpath(self.root / path)) for path in fitting), notes)


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The readable files of one source, in a fixed order."""

    paths: tuple[Path, ...] = ()
    notes: tuple[DiscoveryNote, ...] = ()
    marks: tuple[Mark, ...] = ()
    """One mark for each path."""


@dataclass
class DefinitionCollector(Generic[T]):
    """Collection of definitions. The first one of a name takes precedence, the others are reported."""

    items: dict[str, T] = field(default_factory=dict[str, T])
    paths: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[DiscoveryNote] = field(default_factory=list[DiscoveryNote])
    hidden: list[tuple[T, str]] = field(default_factory=list[Any])
    targets: dict[str, str] = field(default_factory=dict[str, str])
    """Real path of each definition that counts once -> its path."""

    def add(self, name: str, item: T, path: Path, line: int = 0, *, once: bool = False) -> None:
        """Add `item` unless its name is already used. `line`: the line of the name in its file.

        A file that two sources contain, such as a folder that a manifest names beside the usual one, counts once.
        `once`: so does a file that two links lead to, whatever their names.
        """
        if self.paths.get(name) == str(path):
            return
        first = self.targets.setdefault(os.path.realpath(path), str(path)) if once else str(path)
        if first != str(path):
            self.notes.append(DiscoveryNote(str(path), "", "ignored", f"leads to {first}, which counts"))
            return
        if name in self.items:
            self.notes.append(
                DiscoveryNote(str(path), "name", "ignored", f"{name} is defined by {self.paths[name]} already", line)
            )
            self.hidden.append((item, self.paths[name]))
            return
        self.items[name] = item
        self.paths[name] = str(path)

    def loaded_items(self) -> LoadedItems[T]:
        """Return the collected items."""
        return LoadedItems(
            {name: self.items[name] for name in sorted(self.items)}, tuple(self.notes), tuple(self.hidden)
        )


def builtin(kind: Kind) -> Path:
    """Return the folder of Callboard's own definitions: in the installed package, or in the checkout."""
    return _builtin_root() / kind


@cache
def _builtin_root() -> Path:
    package = Path(__file__).resolve().parents[2]
    installed = package / "_builtin"
    return installed if installed.is_dir() else package.parents[1]


def sources(kind: Kind, places: ExtensionPaths) -> list[Source]:
    """Return the readable folders in order of precedence.

    For `.claude` skills, the user's take precedence over the workspace's.
    """
    own = own_sources(kind, places)
    workspaces = _workspace_sources(places, ".claude", kind)
    persons = [Source(_claude(places.home, kind), "person", _claude(places.home, kind))] if places.home else []
    compatible = [*persons, *workspaces] if kind == "skills" else [*workspaces, *persons]
    bundled = [Source(builtin(kind), "bundled", builtin(kind))] if places.bundled else []
    return [*own, *compatible, *(source for plugin in places.plugins for source in _plugins(plugin, kind)), *bundled]


def _plugins(plugin: Plugin, kind: Kind) -> Iterator[Source]:
    """Yield the folders and single files of a plugin with definitions of a kind."""
    folders = {
        "agents": plugin.agents,
        "skills": plugin.skills,
        "commands": plugin.commands,
        "output-styles": plugin.output_styles,
    }
    paths = folders.get(kind, ())
    named = [*(("", path) for path in paths), *(plugin.named_commands if kind == "commands" else ())]
    for name, path in named:
        if path.is_file():
            yield Source(path.parent, "person", plugin.root, plugin=plugin.name, only=path.name, name=name)
        else:
            yield Source(path, "person", plugin.root, plugin=plugin.name)


def folders_above(workspace: Path, home: Path | None = None) -> tuple[Path, ...]:
    """Return the folders above the workspace up to the root of its repository, the nearest first.

    A `.claude` folder there counts too. Empty outside of a repository. The user's home is left out, because it is a
    separate place.
    """
    folders: list[Path] = []
    for folder in (workspace, *workspace.parents)[:_HIGHEST]:
        folders.append(folder)
        if (folder / ".git").exists():
            return tuple(candidate for candidate in folders[1:] if candidate != home)
    return ()


def withheld(kind: Kind, places: ExtensionPaths) -> list[DiscoveryNote]:
    """Return a note for each folder of an untrusted workspace that is not read."""
    if places.trusted or places.texts or places.workspace is None:
        return []
    roots = (places.workspace, *folders_above(places.workspace, places.home))
    folders = [root / name / kind for root in roots for name in (".callboard", ".claude")]
    reason = "not read until a person trusts this workspace"
    return [DiscoveryNote(str(folder), "", "refused", reason) for folder in folders if folder.is_dir()]


def own_sources(kind: Kind, places: ExtensionPaths) -> list[Source]:
    """Return only the sources in Callboard folders: the workspace's (once it is trusted), then the user's."""
    persons = [] if places.config is None else [Source(places.config / kind, "person", places.config / kind)]
    return [*_workspace_sources(places, ".callboard", kind), *persons]


def agent_paths(source: Source) -> SourceFiles:
    """Return the `*.md` files of a source, in folders of any depth."""
    if source.workspace_claims is not None:
        return source.read_files(None, ".md")
    if source.only:
        return _checked(source, iter([(source.folder / source.only, None)]))
    return _checked(source, ((path, None) for path in _files(source.folder) if path.suffix == ".md"))


def skill_paths(source: Source) -> SourceFiles:
    """Return the `SKILL.md` of each folder in a source."""
    if source.workspace_claims is not None:
        return source.read_files(1, "/SKILL.md")
    if source.plugin and (source.folder / "SKILL.md").exists():  # the folder is a skill itself
        return _checked(source, iter([(source.folder / "SKILL.md", None)]))
    try:
        with os.scandir(source.folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)[:MOST_FILES]
    except OSError:  # a missing folder is no error
        return SourceFiles()
    return _checked(source, _skills_in(source.folder, entries))


def _skills_in(folder: Path, entries: Sequence[os.DirEntry[str]]) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Yield each `SKILL.md`, with its status if no link is between it and the source's folder."""
    for entry in entries:
        path = folder / entry.name / "SKILL.md"
        try:
            facts = path.lstat()
        except OSError:  # the folder has none
            continue
        linked = entry.is_symlink() or stat.S_ISLNK(facts.st_mode)
        yield path, None if linked else facts


def read_text(source: Source, path: Path) -> str:
    """Return the text of a file in any encoding: bytes that are not UTF-8 become replacement characters.

    Raises OSError.
    """
    return decode_text(source.read(path))


def decode_text(raw: bytes) -> str:
    """Return the text of a file; bytes that are not UTF-8 become replacement characters."""
    return raw.decode("utf-8-sig", errors="replace")


def invalid_line(raw: bytes) -> int:
    """Return the line, from 1, of the first byte that is not UTF-8; 0 if there is none."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return raw[: error.start].count(b"\n") + 1
    return 0


def body_after_front_matter(text: str) -> str:
    """Return the text after the second `---` line; the whole text if there are fewer than two."""
    lines = text.splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    return "".join(lines[marks[1] + 1 :]) if len(marks) > 1 and marks[0] == 0 else text


def word_list(value: object) -> tuple[str, ...]:
    """Return a list of words from a YAML list or separated by commas; commas inside brackets do not separate."""
    if isinstance(value, (list, tuple)):
        items = (str(item).strip() for item in cast("Sequence[object]", value))
        return tuple(item for item in items if item)
    if not isinstance(value, str):
        return ()
    parts = [""]
    depth = 0
    for character in value:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts if part.strip())


def _claude(home: Path, kind: Kind) -> Path:
    return claude_folder(home, os.environ) / kind


_STYLES = "output-styles"


def _workspace_sources(places: ExtensionPaths, name: str, kind: Kind) -> list[Source]:
    """Return the workspace's sources, then those of the folders above it.

    Schedules and hooks are read from the workspace only.
    """
    definitions = kind in ("agents", "skills", "commands")
    if places.workspace is None or not (places.trusted or (places.texts and (definitions or kind == _STYLES))):
        return []
    above = folders_above(places.workspace, places.home) if definitions else ()
    inert = not places.trusted
    workspace_claims = places.workspace_claims
    own = Source(places.workspace / name / kind, "workspace", places.workspace, workspace_claims, inert=inert)
    # The trusted content was read together with the workspace, so its paths begin there.
    bases = [(root, root if workspace_claims is None else places.workspace) for root in above]
    return [
        own,
        *(Source(root / name / kind, "workspace", base, workspace_claims, inert=inert) for root, base in bases),
    ]


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files below, sorted, without following links to folders."""
    remaining = MOST_FILES
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names)[:remaining]:
            yield Path(parent, name)
        remaining -= len(names)
        if remaining <= 0:
            return


def _checked(source: Source, candidates: Iterator[tuple[Path, os.stat_result | None]]) -> SourceFiles:
    """Return the readable files, and a note for each other file.

    A path has a status if no link is between it and its source's folder: it then need not be resolved.
    """
    within = _Within(source)
    paths: list[Path] = []
    notes: list[DiscoveryNote] = []
    marks: list[Mark] = []
    for path, status in candidates:
        try:
            facts = within.look(path, status)
        except (OSError, RuntimeError) as error:  # a dangling link; a circle of links
            problem = getattr(error, "strerror", None) or "a circle of links"
            notes.append(DiscoveryNote(str(path), "", "refused", f"cannot be read: {problem}"))
            continue
        reason = "a link leads out of its folder" if facts is None else _why_not(facts)
        if facts is None or reason:
            notes.append(DiscoveryNote(str(path), "", "refused", reason))
            continue
        paths.append(path)
        marks.append((str(path), facts.st_mtime_ns, facts.st_size))
    return SourceFiles(tuple(paths), tuple(notes), tuple(marks))


class _Within:
    """Real location of one source, resolved once for all files of one pass."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ends: tuple[Path, bool] | None = None

    def look(self, path: Path, status: os.stat_result | None) -> os.stat_result | None:
        """Return the status of a file; None if the file lies outside the source. Raises OSError and RuntimeError."""
        if self._ends is None:
            folder = self._source.folder.resolve()
            same = self._source.root == self._source.folder
            self._ends = folder, folder.is_relative_to(folder if same else self._source.root.resolve())
        folder, inside = self._ends
        if status is not None:
            return status if inside else None
        real = path.resolve(strict=True)
        facts = real.stat()
        return facts if inside and real.is_relative_to(folder) else None


def _why_not(facts: os.stat_result) -> str:
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if facts.st_size > LARGEST_FILE:
        return f"is larger than {LARGEST_FILE:,} bytes"
    return ""
