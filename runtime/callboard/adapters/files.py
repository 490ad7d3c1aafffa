"""Where agent and skill files are found, in which order, and which of them are not read.

One way for both kinds: bundled, the person's, the workspace's once it is trusted, and the compatible `.claude` folders.
Ours win over the compatible ones, and the nearer over the farther; a name that stands behind another is told, never
dropped in silence. A file that a link leads out of its folder is refused, and so is whatever is no regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from callboard.core.trust.claims import Brought
from callboard.words.errors import SettingsError
from callboard.words.plugins import Plugin

Kind = Literal["agents", "skills", "commands", "hooks", "schedules"]
Scope = Literal["bundled", "person", "workspace"]
"""Whose it is. What a plugin brings is the person's, who named it."""

LARGEST_FILE = 1_000_000
"""Bytes. What a model is told in one file is far smaller; a larger one is a mistake."""
_HIGHEST = 40
"""Folders from a workspace up to its repository's root; more is no checkout."""
MOST_FILES = 2_000
"""Files looked at in one folder: a link to a home folder must not take minutes."""

Mark = tuple[str, int, int]
"""What changes when a file does: its path, the time (ns) of its last change, its size (bytes)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """A file, field or rule that is not honoured, and why; `honoured`: it counts, in another way than it is written.
    `field` is empty when the whole file is meant."""

    path: str
    field: str
    verdict: Literal["honoured", "ignored", "refused"]
    why: str
    line: int = 0
    """From 1; 0: the file as a whole, or it is not known."""

    @property
    def where(self) -> str:
        """`file:line`, or the file."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def __str__(self) -> str:
        return f"{self.where}: {self.field + ': ' if self.field else ''}{self.verdict}: {self.why}"


def broken(path: Path, error: SettingsError, verdict: Literal["ignored", "refused"] = "refused") -> Note:
    """The note about a file whose text cannot be read as what it should be: line and field as the error tells them."""
    what = str(error).removeprefix(f"{error.where}: ")
    line, _, field = error.where.removeprefix(str(path)).lstrip(":").partition(": ")
    return Note(str(path), field, verdict, what, int(line) if line.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """What there is, by name and sorted by it, and what was not honoured on the way."""

    items: Mapping[str, T]
    notes: tuple[Note, ...] = ()
    hidden: tuple[tuple[T, str], ...] = ()
    """Definitions whose name was taken, each with the path of the one that counts."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders to look in. None: that scope has none."""

    workspace: Path | None = None
    config: Path | None = None
    """The person's own folder of ours (`~/.config/callboard`)."""
    home: Path | None = None
    """The person's home, for its `.claude`."""
    trusted: bool = False
    """A person trusted what the workspace brings; until then none of it is read."""
    bundled: bool = True
    brought: Brought | None = None
    """What the workspace brings, as it was when it was trusted: this is read, and nothing that was written since. None:
    its files as they are."""
    plugins: tuple[Plugin, ...] = ()
    """What the person named for this run, in the order of naming: theirs, so trusted."""


@dataclass(frozen=True, slots=True)
class Source:
    """One folder of definitions."""

    folder: Path
    scope: Scope
    root: Path
    """Its real folder must lie in here: the workspace, or wherever the person's own folder really is."""
    brought: Brought | None = None
    """Read already, see `Places.brought`."""
    plugin: str = ""
    """The plugin that brings it: its things go by `plugin:name`; empty: none does."""
    only: str = ""
    """The one file in `folder` that is meant; empty: all of them."""

    @property
    def compatible(self) -> bool:
        """It holds files in the compatible format: its hooks fail as is documented there."""
        return bool(self.plugin) or self.folder.parent.name == ".claude"

    def read(self, path: Path) -> bytes:
        """A file of this source. Raises OSError."""
        if self.brought is None:
            return path.read_bytes()
        return self.brought.content[os.path.relpath(path, self.root)]

    def held(self, depth: int | None, ending: str) -> Found:
        """The files that were read already and end so; at a depth of `depth` folders, None: at any."""
        brought = self.brought or Brought("")
        inside = os.path.relpath(self.folder, self.root)  # of a folder above the workspace: `../.claude/agents`
        paths = [path for path in brought.below(inside) if f"/{path}".endswith(ending)]
        fitting = [path for path in paths if depth in (None, path.count("/") - inside.count("/") - 1)]
        unread = (one for one in brought.claims if one.kind == "unread" and one.path not in brought.content)
        refused = [one for one in unread if one.path.startswith(f"{inside}/")]
        notes = tuple(Note(os.path.normpath(self.root / one.path), "", "refused", one.text) for one in refused)
        return Found(tuple(Path(os.path.normpath(self.root / path)) for path in fitting), notes)


@dataclass(frozen=True, slots=True)
class Found:
    """The files of one source, that may be read, in a fixed order."""

    paths: tuple[Path, ...] = ()
    notes: tuple[Note, ...] = ()
    marks: tuple[Mark, ...] = ()
    """One for each path."""


@dataclass
class Shelf(Generic[T]):
    """Collects definitions; the first of a name stays, the others are told."""

    items: dict[str, T] = field(default_factory=dict[str, T])
    paths: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[Note] = field(default_factory=list[Note])
    hidden: list[tuple[T, str]] = field(default_factory=list[Any])

    def add(self, name: str, item: T, path: Path, line: int = 0) -> None:
        """Take `item` unless its name is taken. `line`: where its file says the name."""
        if name in self.items:
            self.notes.append(
                Note(str(path), "name", "ignored", f"{name} is defined by {self.paths[name]} already", line)
            )
            self.hidden.append((item, self.paths[name]))
            return
        self.items[name] = item
        self.paths[name] = str(path)

    def loaded(self) -> Loaded[T]:
        """What was collected."""
        return Loaded({name: self.items[name] for name in sorted(self.items)}, tuple(self.notes), tuple(self.hidden))


def builtin(kind: Kind) -> Path:
    """The folder of our own definitions: in the installed package, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_builtin" / kind
    return installed if installed.is_dir() else package.parents[1] / kind


def sources(kind: Kind, places: Places) -> list[Source]:
    """The folders that may be read, the winning one first. For `.claude` skills the person's beat the workspace's."""
    ours = own_sources(kind, places)
    workspaces = _workspace_sources(places, ".claude", kind)
    persons = [Source(_claude(places.home, kind), "person", _claude(places.home, kind))] if places.home else []
    theirs = [*persons, *workspaces] if kind == "skills" else [*workspaces, *persons]
    bundled = [Source(builtin(kind), "bundled", builtin(kind))] if places.bundled else []
    return [*ours, *theirs, *(one for plugin in places.plugins for one in _plugins(plugin, kind)), *bundled]


def _plugins(plugin: Plugin, kind: Kind) -> Iterator[Source]:
    """The folders and single files of a plugin that hold definitions of a kind."""
    paths = {"agents": plugin.agents, "skills": plugin.skills, "commands": plugin.commands}.get(kind, ())
    for path in paths:
        if path.is_file():
            yield Source(path.parent, "person", plugin.root, plugin=plugin.name, only=path.name)
        else:
            yield Source(path, "person", plugin.root, plugin=plugin.name)


def folders_above(workspace: Path, home: Path | None = None) -> tuple[Path, ...]:
    """The folders above the workspace up to the root of its repository, the nearest first: what stands in their
    `.claude` counts too. Empty outside of a repository. The person's home is left out: it is a place of its own."""
    found: list[Path] = []
    for folder in (workspace, *workspace.parents)[:_HIGHEST]:
        found.append(folder)
        if (folder / ".git").exists():
            return tuple(one for one in found[1:] if one != home)
    return ()


def withheld(kind: Kind, places: Places) -> list[Note]:
    """What an untrusted workspace brings and is not read."""
    if places.trusted or places.workspace is None:
        return []
    roots = (places.workspace, *folders_above(places.workspace, places.home))
    folders = [root / name / kind for root in roots for name in (".callboard", ".claude")]
    why = "not read until a person trusts this workspace"
    return [Note(str(folder), "", "refused", why) for folder in folders if folder.is_dir()]


def own_sources(kind: Kind, places: Places) -> list[Source]:
    """Of them those in folders of ours: the workspace's (once it is trusted), then the person's."""
    mine = [] if places.config is None else [Source(places.config / kind, "person", places.config / kind)]
    return [*_workspace_sources(places, ".callboard", kind), *mine]


def agent_paths(source: Source) -> Found:
    """The `*.md` files of a source, in folders of any depth."""
    if source.brought is not None:
        return source.held(None, ".md")
    if source.only:
        return _checked(source, iter([(source.folder / source.only, None)]))
    return _checked(source, ((path, None) for path in _files(source.folder) if path.suffix == ".md"))


def skill_paths(source: Source) -> Found:
    """The `SKILL.md` of each folder in a source."""
    if source.brought is not None:
        return source.held(1, "/SKILL.md")
    if source.plugin and (source.folder / "SKILL.md").exists():  # the folder is a skill itself
        return _checked(source, iter([(source.folder / "SKILL.md", None)]))
    try:
        with os.scandir(source.folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)[:MOST_FILES]
    except OSError:  # a missing folder is no error
        return Found()
    return _checked(source, _skills_in(source.folder, entries))


def _skills_in(folder: Path, entries: Sequence[os.DirEntry[str]]) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Each `SKILL.md`, and what it is where no link stands between it and the source's folder."""
    for entry in entries:
        path = folder / entry.name / "SKILL.md"
        try:
            facts = path.lstat()
        except OSError:  # there is none
            continue
        linked = entry.is_symlink() or stat.S_ISLNK(facts.st_mode)
        yield path, None if linked else facts


def read_text(source: Source, path: Path) -> str:
    """The text of a file, whatever its encoding: what is no UTF-8 shows as replacement characters. Raises OSError."""
    return source.read(path).decode("utf-8-sig", errors="replace")


def body_after_front_matter(text: str) -> str:
    """What follows the second `---` line; the whole text when there are not two."""
    lines = text.splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    return "".join(lines[marks[1] + 1 :]) if len(marks) > 1 and marks[0] == 0 else text


def words(value: object) -> tuple[str, ...]:
    """A list of words, written as a YAML list or separated by commas; commas inside brackets do not separate."""
    if isinstance(value, (list, tuple)):
        items = (str(item).strip() for item in cast("Sequence[object]", value))
        return tuple(item for item in items if item)
    if not isinstance(value, str):
        return ()
    parts, depth = [""], 0
    for character in value:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts if part.strip())


def _claude(home: Path, kind: Kind) -> Path:
    return home / ".claude" / kind


def _workspace_sources(places: Places, name: str, kind: Kind) -> list[Source]:
    """The workspace's, then those of the folders above it; schedules and hooks are the workspace's alone."""
    if places.workspace is None or not places.trusted:
        return []
    above = folders_above(places.workspace, places.home) if kind in ("agents", "skills", "commands") else ()
    own = Source(places.workspace / name / kind, "workspace", places.workspace, places.brought)
    if places.brought is not None:  # read in one go with the workspace
        return [own, *(Source(root / name / kind, "workspace", places.workspace, places.brought) for root in above)]
    return [own, *(Source(root / name / kind, "workspace", root) for root in above)]


def _files(folder: Path) -> Iterator[Path]:
    """All files below, sorted, links to folders not followed."""
    left = MOST_FILES
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names)[:left]:
            yield Path(parent, name)
        left -= len(names)
        if left <= 0:
            return


def _checked(source: Source, candidates: Iterator[tuple[Path, os.stat_result | None]]) -> Found:
    """Those that may be read; a note for each that may not. With a path comes what is known of a file that is reached
    from its source's folder through no link: it need not be followed."""
    within = _Within(source)
    paths: list[Path] = []
    notes: list[Note] = []
    marks: list[Mark] = []
    for path, known in candidates:
        try:
            facts = within.look(path, known)
        except (OSError, RuntimeError) as error:  # a dangling link; a circle of links
            words = getattr(error, "strerror", None) or "a circle of links"
            notes.append(Note(str(path), "", "refused", f"cannot be read: {words}"))
            continue
        why = "a link leads out of its folder" if facts is None else _why_not(facts)
        if facts is None or why:
            notes.append(Note(str(path), "", "refused", why))
            continue
        paths.append(path)
        marks.append((str(path), facts.st_mtime_ns, facts.st_size))
    return Found(tuple(paths), tuple(notes), tuple(marks))


class _Within:
    """Where one source really lies, found out once for all files of a look at it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ends: tuple[Path, bool] | None = None

    def look(self, path: Path, known: os.stat_result | None) -> os.stat_result | None:
        """What a file is; None when it lies elsewhere. Raises OSError and RuntimeError."""
        if self._ends is None:
            folder = self._source.folder.resolve()
            same = self._source.root == self._source.folder
            self._ends = folder, folder.is_relative_to(folder if same else self._source.root.resolve())
        folder, inside = self._ends
        if known is not None:
            return known if inside else None
        real = path.resolve(strict=True)
        facts = real.stat()
        return facts if inside and real.is_relative_to(folder) else None


def _why_not(facts: os.stat_result) -> str:
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if facts.st_size > LARGEST_FILE:
        return f"is larger than {LARGEST_FILE:,} bytes"
    return ""
