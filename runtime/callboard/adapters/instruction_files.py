"""Reads instruction files: `AGENTS.md`, `CLAUDE.md`, their includes and rules, of the person and of a workspace.

What a workspace brings stays in it: a link or an include that leads out, a secret, a pipe, a file that is no text is
refused and told. Each file is read once, whatever names it has; each text stands once. There are limits on sizes,
numbers and depth, and what they cut says so.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from callboard.adapters.files import LARGEST_FILE, Note
from callboard.adapters.paths import open_beneath, open_folder
from callboard.adapters.tools.globs import matcher
from callboard.adapters.yaml_files import load_front_document
from callboard.core.context.guidance import digest_of
from callboard.core.instructions.includes import includes_in, only_includes
from callboard.core.permission.paths import is_secret
from callboard.words.errors import SettingsError

NAMES = ("AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md")
LOCAL = "CLAUDE.local.md"
RULES = (".claude/rules", ".callboard/rules")
DEEPEST = 5
"""Includes within includes (docs/instructions.md)."""
MOST_FILES = 100
"""Files of one look, included ones too."""
MOST_RULES = 500
"""Entries of a folder of rules that are looked at."""
LONGEST = 60_000
"""Characters of one file; what follows is left out, and the text says so."""
TOGETHER = 200_000
"""Characters of all files of one look."""
_LEADS_OUT = frozenset({errno.EXDEV, errno.ELOOP})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class Ground:
    """A folder whose files are read, and what they are called."""

    root: Path
    """Real: no part of it is a link."""
    shown: str = ""
    """What stands before a path in it where that is shown: `../` for files of the folder above."""
    person: bool = False
    """The person's own: their links and includes may lead anywhere."""

    def name_of(self, relative: str, home: Path) -> str:
        """The path as it is shown."""
        if not self.person:
            return f"{self.shown}{relative}"
        path = Path(os.path.normpath(self.root / relative))
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """One file, as an agent is told of it."""

    path: str
    """As it is shown: relative to the agent's folder, or in the person's home."""
    text: str
    globs: tuple[str, ...] = ()
    """It is about files that one of these fits; empty: about all."""
    by: str = ""
    """The file that includes it."""
    digest: str = ""
    """Tells its whole text from another one of the file."""

    def fits(self, path: str) -> bool:
        """Whether it is about the file at this path, relative to the agent's folder."""
        return any(matcher(glob)(path) for glob in self.globs)


@dataclass(slots=True)
class Reader:
    """One look at instruction files: what was found, in order, and what was not honoured."""

    home: Path
    files: list[InstructionFile] = field(default_factory=list[InstructionFile])
    notes: list[Note] = field(default_factory=list[Note])
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _texts: set[str] = field(default_factory=set[str])
    _characters: int = 0

    def folder(self, ground: Ground) -> None:
        """The files of one folder, the farther ones first: what comes later counts more."""
        for name in NAMES:
            self.read(ground, name)
        for rules in RULES:
            self.rules(ground, rules)
        self.read(ground, LOCAL)

    def nested(self, ground: Ground, folder: str) -> None:
        """The files of a folder below, which are about what is in it. Rules stand at the top alone."""
        for name in (*NAMES, LOCAL):
            self.read(ground, f"{folder}/{name}")

    def rules(self, ground: Ground, folder: str) -> None:
        """All `*.md` below a folder of rules."""
        for relative in _rules_in(ground.root / folder):
            self.read(ground, f"{folder}/{relative}")

    def read(self, ground: Ground, relative: str, depth: int = 0, by: str = "") -> bool:
        """Read a file and what it includes. Whether there is such a file that may be read."""
        found = self.look(ground, relative)
        if found is None:
            return False
        identity, one = found
        if identity in self._seen:
            return True
        self._seen.add(identity)
        if len(self._seen) > MOST_FILES:
            self._tell(one.path, "", "ignored", f"there are more than {MOST_FILES} instruction files")
            return True
        place = len(self.files)
        self._add(replace(one, by=by))
        included = [self._include(ground, relative, one.path, path, depth) for path in includes_in(one.text)]
        if included and all(included) and only_includes(one.text):
            self.files[place:] = [kept for kept in self.files[place:] if kept.path != one.path]
        if one.globs:  # what a rule includes is about what it is about
            self.files[place:] = [replace(kept, globs=kept.globs or one.globs) for kept in self.files[place:]]
        return True

    def look(self, ground: Ground, relative: str) -> tuple[tuple[int, int], InstructionFile] | None:
        """A file alone, and what tells it from all others; None when there is none, or none that may be read."""
        name = ground.name_of(relative, self.home)
        found = self._content(ground, relative, name)
        if found is None:
            return None
        globs, text = self._rule(name, found[1]) if _is_rule(name) else ((), found[1])
        text = text.strip()
        return found[0], InstructionFile(name, text, globs, digest=digest_of(text))

    def _add(self, one: InstructionFile) -> None:
        """A text that does not stand yet, as far as there is room."""
        if not one.text or one.digest in self._texts:
            return
        self._texts.add(one.digest)
        room = max(0, TOGETHER - self._characters)
        self._characters += min(len(one.text), LONGEST)
        self.files.append(replace(one, text=cut(one.text, min(LONGEST, room))))

    def _include(self, ground: Ground, relative: str, by: str, path: str, depth: int) -> bool:
        """Read what a file includes. Whether there is such a file."""
        if depth >= DEEPEST:
            self._tell(by, f"@{path}", "ignored", f"it stands more than {DEEPEST} includes deep")
            return False
        target = _target(ground, relative, path, self.home)
        if not ground.person and target.startswith("../"):
            self._tell(by, f"@{path}", "refused", "it leads out of the folder that brings it")
            return False
        before = len(self.notes)
        if self.read(ground, target, depth + 1, by):
            return True
        if len(self.notes) == before and ("/" in path or path.endswith((".md", ".txt"))):  # else a name, or a package
            self._tell(by, f"@{path}", "ignored", "there is no such file")
        return False

    def _rule(self, name: str, text: str) -> tuple[tuple[str, ...], str]:
        """What a rule is about, and its text. What cannot be read of its front matter is told; the text holds."""
        try:
            document, body = load_front_document(text, name)
        except SettingsError as error:
            self._tell(name, "", "ignored", f"its front matter: {error}; the text holds for all files")
            return (), _body(text)
        fields = cast("dict[str, object]", document.data)
        written = fields.get("paths")
        globs = _words(written)
        if written is not None and globs is None:
            why = "write a glob, or a list of globs; the text holds for all files"
            self._tell(name, "paths", "refused", why, document.lines.get(("paths",), 0))
        for other in fields:
            if other not in ("paths", "description"):
                why = "rules have `paths` and `description` alone"
                self._tell(name, str(other), "ignored", why, document.lines.get((other,), 0))
        return tuple(self._globs(name, globs or ())), body

    def _globs(self, name: str, globs: tuple[str, ...]) -> Iterator[str]:
        """Those that are globs; where none is, one that fits nothing, so that the rule does not hold everywhere."""
        for glob in globs:
            try:
                matcher(glob.removeprefix("./").removeprefix("/"))
            except ValueError as wrong:
                self._tell(name, "paths", "refused", f"{glob[:80]!r} is no glob: {wrong}")
                yield ".../..."
            else:
                yield glob.removeprefix("./").removeprefix("/")

    def _content(self, ground: Ground, relative: str, name: str) -> tuple[tuple[int, int], str] | None:
        """What tells a file from all others, and its text; None when there is none, or none that may be read."""
        try:
            descriptor = _opened(ground, relative)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _MISSING:
                return None
            out = isinstance(error, OSError) and error.errno in _LEADS_OUT
            why = "a link leads out of the folder that brings it" if out else f"it cannot be read: {error}"
            self._tell(name, "", "refused", why)
            return None
        try:
            facts = os.fstat(descriptor)
            why = _why_not(ground, relative, facts)
            content = b"" if why else _all_of(descriptor)
        finally:
            os.close(descriptor)
        why = why or ("it holds NUL bytes and is no text" if b"\0" in content else "")
        if why:
            if why != _FOLDER:
                self._tell(name, "", "refused", why)
            return None
        return (facts.st_dev, facts.st_ino), content.decode("utf-8-sig", errors="replace")

    def _tell(
        self, name: str, what: str, verdict: Literal["ignored", "refused"], why: str, line: int | None = None
    ) -> None:
        note = Note(name, what, verdict, why, line or 0)
        if note not in self.notes:
            self.notes.append(note)


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a mark that says how much there is."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[Cut: {len(text):,} characters. Read the file for the rest.]".strip()


def grounds_of(root: Path) -> tuple[Ground, ...]:
    """The folders whose files hold in a folder: from the root of its repository down to it.

    Nothing above a folder with a `.git` in it, nothing without one, and no folder of somebody else's: whoever may write
    in `/tmp` shall not tell an agent what to do. Raises OSError where the folder is not there.
    """
    real = root.resolve(strict=True)
    above: list[Ground] = []
    if not _has_git(real):
        for number, folder in enumerate(real.parents, 1):
            if folder.stat().st_uid != os.getuid():
                above = []
                break
            above.append(Ground(folder, "../" * number))
            if _has_git(folder):
                break
        else:
            above = []
    return (*reversed(above), Ground(real))


def read_persons(reader: Reader, home: Path, config: Path | None) -> None:
    """The person's own files, ours after the compatible ones: what comes later counts more."""
    claude = Ground(home / ".claude", person=True)
    reader.read(claude, "CLAUDE.md")
    reader.rules(claude, "rules")
    if config is not None:
        mine = Ground(config, person=True)
        reader.read(mine, "AGENTS.md")
        reader.rules(mine, "rules")


def known_again(root: Path, home: Path, path: str) -> InstructionFile | None:
    """A file that an agent was told of, as it is now; None when it is gone, or may not be read any more."""
    found = Reader(home).look(*_found_at(root, home, path))
    return None if found is None else replace(found[1], path=path, text=cut(found[1].text, LONGEST))


def _found_at(root: Path, home: Path, path: str) -> tuple[Ground, str]:
    if path.startswith("~/"):
        return Ground(home, person=True), path[2:]
    if path.startswith("/"):
        return Ground(Path("/"), person=True), path[1:]
    real = root.resolve()
    up = 0
    while path.startswith("../", 3 * up):
        up += 1
    return Ground(real.parents[up - 1] if up else real), path[3 * up :]


def _is_rule(name: str) -> bool:
    """A file in a folder of rules, by its path as it is shown."""
    return any(f"/{folder}/" in f"/{name}" for folder in (*RULES, "callboard/rules"))


def _opened(ground: Ground, relative: str) -> int:
    if ground.person:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(ground.root / relative, flags)
    base = open_folder(str(ground.root))
    try:
        return open_beneath(base, relative, os.O_RDONLY)
    finally:
        os.close(base)


_FOLDER = "it is a folder"


def _all_of(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(LARGEST_FILE)


def _why_not(ground: Ground, relative: str, facts: os.stat_result) -> str:
    if stat.S_ISDIR(facts.st_mode):
        return _FOLDER
    if not stat.S_ISREG(facts.st_mode):
        return "it is not a regular file"
    if facts.st_size > LARGEST_FILE:
        return f"it is larger than {LARGEST_FILE:,} bytes"
    named = Path(relative).parts
    real = (ground.root / relative).resolve()
    inside = real.relative_to(ground.root).parts if real.is_relative_to(ground.root) else real.parts
    if not ground.person and (is_secret(named) or is_secret(inside) or ".git" in inside):
        return "it may hold a secret"
    return ""


def _target(ground: Ground, relative: str, path: str, home: Path) -> str:
    """Where an include leads, from the ground's root on; `../` or absolute where that is outside."""
    if path.startswith("~/"):
        path = str(home / path[2:])
    here = ground.root / os.path.dirname(relative)  # noqa: PTH120 - a text, no path that is there
    whole = os.path.normpath(here / path)
    return os.path.relpath(whole, ground.root)


def _rules_in(folder: Path) -> list[str]:
    """The `*.md` below it, sorted, links to folders not followed."""
    found: list[str] = []
    left = MOST_RULES
    for parent, folders, names in os.walk(folder):
        folders.sort()
        left -= len(names) + 1
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in names if name.endswith(".md")]  # noqa: PTH118
        if left <= 0:
            break
    return sorted(found)


def _has_git(folder: Path) -> bool:
    try:
        (folder / ".git").lstat()
    except OSError:
        return False
    return True


def _body(text: str) -> str:
    """What follows a front matter that cannot be read."""
    lines = text.splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    return "".join(lines[marks[1] + 1 :]) if len(marks) == 2 and marks[0] == 0 else text


def _words(value: object) -> tuple[str, ...] | None:
    """Globs, written as a list or separated by commas (not those in braces); None for anything else."""
    if isinstance(value, str):
        parts, depth = [""], 0
        for letter in value:
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth <= 0:
                parts.append("")
            else:
                parts[-1] += letter
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(value, list) and all(isinstance(one, str) for one in cast("list[object]", value)):
        return tuple(one.strip() for one in cast("list[str]", value) if one.strip())
    return None
