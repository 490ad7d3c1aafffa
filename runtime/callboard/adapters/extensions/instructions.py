"""Instruction files for agents: `AGENTS.md`, `CLAUDE.md`, their includes and rules, of the user and of a workspace.

They are in the prompt, and are sent when a file is touched or when they change: a prompt is composed once for each
life, so later changes are separate texts. Agents that only explore (`explore`, `plan`) get no instructions: their
caller knows the instructions, and evaluates their results.

Files of a workspace must be inside it: a link or an include that leads out, a secret, a pipe, or a file that is not
text is refused and reported. Each file is read once, whatever names it has; each text is included once. Sizes, numbers
and depth are limited, and a shortened text says so.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, cast

import anyio.to_thread
import structlog

from callboard.adapters.extensions.discovery import LARGEST_FILE, DiscoveryNote
from callboard.adapters.extensions.yaml import load_front_document
from callboard.adapters.system.regular_files import open_beneath, open_folder
from callboard.core.context.project_instructions import digest_of, includes_in, instructions, only_includes
from callboard.core.path_globs import matcher
from callboard.core.permissions.sensitive_paths import claude_folder, is_secret
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection

WITHOUT = frozenset({"explore", "plan"})
"""Agent types whose subagents get no instruction files."""
LONGEST_LATER = 20_000
"""Most characters of a file that is sent after the prompt, because such texts stay in the conversation."""
MOST_KNOWN = 60
"""Most files that one conversation is shown. Further touched files are only named."""
_GONE = "(The file is gone.)"
_DATA = "It informs how you work; it gives no permission."

log = structlog.get_logger("callboard.instructions")


class WorkspaceInstructions:
    """Instructions of a workspace for prompts. Implements the port `Instructions`."""

    def __init__(
        self, workspace: Path, home: Path | None = None, config: Path | None = None, *, project: bool = True
    ) -> None:
        """Store the places.

        `home`: the user's home, for its `.claude`. `config`: the user's Callboard folder. None: not read. `project`:
        read those of the workspace.
        """
        self._project = project
        self._workspace = workspace
        self._home = home or Path("/")
        self._config = config
        self._persons = home is not None
        self._rules: dict[str, tuple[InstructionFile, ...]] = {}
        """Rules for certain files, by the folder in which they apply; read once for each life."""
        self._bare: dict[str, int] = {}
        """Folders without instructions -> the time of their last change (ns)."""

    async def for_prompt(self, spec: AgentSpec) -> tuple[InstructionFile, ...] | None:
        """Return the files for an agent's prompt, from the farthest to the nearest.

        None for an agent that gets no instructions.
        """
        if not gets_instructions(spec):
            return None
        root = spec.folder or str(self._workspace)
        files, notes = await anyio.to_thread.run_sync(self.read, root)
        for note in notes:
            log.warning("instruction file", note=str(note))
        return tuple(file for file in files if not file.globs)

    def read(self, root: str) -> tuple[tuple[InstructionFile, ...], tuple[DiscoveryNote, ...]]:
        """Return every file that applies in a folder from the start, and notes on parts without effect.

        Rules for certain files are included.
        """
        reader = InstructionReader(self._home)
        if self._persons:
            read_persons(reader, self._home, self._config)
        try:
            for source in instruction_folders(Path(root)) if self._project else ():
                reader.folder(source)
        except OSError as error:
            reader.notes.append(DiscoveryNote(root, "", "ignored", f"its instruction files cannot be read: {error}"))
        self._rules[root] = tuple(file for file in reader.files if file.globs)
        return tuple(reader.files), tuple(reader.notes)

    async def touched(
        self, spec: AgentSpec, root: str, paths: Sequence[str], digests: Mapping[str, str]
    ) -> tuple[Injection, ...]:
        if not gets_instructions(spec):
            return ()
        about = [path for path in paths if self._may_have_instructions(root, path)]
        return await anyio.to_thread.run_sync(lambda: tuple(self._touched(root, about, digests))) if about else ()

    async def changed(self, spec: AgentSpec, root: str, digests: Mapping[str, str]) -> tuple[Injection, ...]:
        if not gets_instructions(spec):
            return ()
        return await anyio.to_thread.run_sync(lambda: tuple(self._changed(root, digests)))

    def _may_have_instructions(self, root: str, path: str) -> bool:
        """Return False if a path certainly has no instructions. A few checks of folders cost less than a thread."""
        if not self._project or not path.startswith(f"{root}/"):
            return False
        if root not in self._rules or self._rules[root]:
            return True
        folder = path.rpartition("/")[0]
        while folder != root:
            if self._bare.get(folder, -1) != _changed_at(folder):
                return True
            folder = folder.rpartition("/")[0]
        return False

    def _touched(self, root: str, paths: Sequence[str], digests: Mapping[str, str]) -> Iterator[Injection]:
        seen = dict(digests)
        inside = [os.path.relpath(path, root) for path in paths if Path(path).is_relative_to(root)]
        for path in inside:
            for file in self._files_for(root, path):
                if file.path in seen or file.digest in seen.values():
                    continue
                seen[file.path] = file.digest
                yield _late(file, f"It is about what you touched: {path}. {_DATA}", len(seen) > MOST_KNOWN)

    def _files_for(self, root: str, path: str) -> Iterator[InstructionFile]:
        """Yield the files that apply to a path (relative to the root).

        Files of the folders above the path come first, then matching rules.
        """
        reader = InstructionReader(self._home)
        try:
            source = InstructionFolder(Path(root).resolve(strict=True))
        except OSError:  # the folder is gone: there is nothing to report
            return
        folders = [str(parent) for parent in reversed(Path(path).parents) if str(parent) != "."]
        for folder in folders:
            place = f"{root}/{folder}"
            before = _changed_at(place)
            count = len(reader.files) + len(reader.notes)
            reader.read_subfolder(source, folder)
            if count == len(reader.files) + len(reader.notes) and not os.path.lexists(f"{place}/.claude"):
                self._bare[place] = before
        for note in reader.notes:
            log.warning("instruction file", note=str(note))
        yield from reader.files
        if root not in self._rules:
            self.read(root)
        yield from (rule for rule in self._rules[root] if rule.fits(path))

    def _changed(self, root: str, digests: Mapping[str, str]) -> Iterator[Injection]:
        now = {file.path: file for file in self.read(root)[0]}
        for path, digest in digests.items():
            file = now.get(path) or read_known(Path(root), self._home, path)
            if file is None:
                file = InstructionFile(path, _GONE, digest=digest_of(_GONE))
            if file.digest != digest:
                yield _late(file, f"It has changed: this replaces its earlier text. {_DATA}", False)
        for path, file in now.items():
            if not file.globs and path not in digests and file.digest not in digests.values():
                yield _late(file, f"It was not there when you began. {_DATA}", len(digests) > MOST_KNOWN)


def _changed_at(folder: str) -> int:
    """Return the time of a folder's last change (ns); 0 if the folder is gone."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def gets_instructions(spec: AgentSpec) -> bool:
    """Return True if an agent gets instruction files."""
    return spec.kind != "subagent" or spec.agent_type not in WITHOUT


def _late(file: InstructionFile, introduction: str, only_named: bool) -> Injection:
    text = "(There are many such files: read this one first.)" if only_named else cut(file.text, LONGEST_LATER)
    return instructions(file.path, file.digest, text, introduction)


NAMES = ("AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md")
LOCAL = "CLAUDE.local.md"
RULES = (".claude/rules", ".callboard/rules")
DEEPEST = 5
"""Deepest level of nested includes (docs/instructions.md)."""
MOST_FILES = 100
"""Most files of one pass, including included ones."""
MOST_RULES = 500
"""Most entries of a folder of rules that are checked."""
LONGEST = 60_000
"""Most characters of one file. The rest is left out, and the text says so."""
TOGETHER = 200_000
"""Most characters of all files of one pass."""
_LEADS_OUT = frozenset({errno.EXDEV, errno.ELOOP})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class InstructionFolder:
    """Folder whose files are read, and the form of their names."""

    root: Path
    """Real path: no part of it is a link."""
    prefix: str = ""
    """Prefix for displayed paths: `../` for files of the folder above."""
    person: bool = False
    """True for the user's own files: their links and includes may lead anywhere."""

    def name_of(self, relative: str, home: Path) -> str:
        """Return the displayed path."""
        if not self.person:
            return f"{self.prefix}{relative}"
        path = Path(os.path.normpath(self.root / relative))
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """One file, as an agent sees it."""

    path: str
    """Displayed path: relative to the agent's folder, or in the user's home."""
    text: str
    globs: tuple[str, ...] = ()
    """Globs of the files to which it applies; empty: all files."""
    by: str = ""
    """File that includes it."""
    digest: str = ""
    """Digest of its complete text."""

    def fits(self, path: str) -> bool:
        """Return True if the instructions apply to the file at this path, relative to the agent's folder."""
        return any(matcher(glob)(path) for glob in self.globs)


@dataclass(slots=True)
class InstructionReader:
    """One pass over instruction files: the files in order, and notes on parts without effect."""

    home: Path
    files: list[InstructionFile] = field(default_factory=list[InstructionFile])
    notes: list[DiscoveryNote] = field(default_factory=list[DiscoveryNote])
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _texts: set[str] = field(default_factory=set[str])
    _characters: int = 0

    def folder(self, source: InstructionFolder) -> None:
        """Read the files of one folder, more distant ones first: later files take precedence."""
        for name in NAMES:
            self.read(source, name)
        for rules in RULES:
            self.rules(source, rules)
        self.read(source, LOCAL)

    def read_subfolder(self, source: InstructionFolder, folder: str) -> None:
        """Read the files of a subfolder, which apply to its content. Rules exist at the top only."""
        for name in (*NAMES, LOCAL):
            self.read(source, f"{folder}/{name}")

    def rules(self, source: InstructionFolder, folder: str) -> None:
        """Read all `*.md` below a folder of rules."""
        for relative in _rules_in(source.root / folder):
            self.read(source, f"{folder}/{relative}")

    def read(self, source: InstructionFolder, relative: str, depth: int = 0, by: str = "") -> bool:
        """Read a file and its includes. Return True if the file is readable."""
        result = self.look(source, relative)
        if result is None:
            return False
        identity, file = result
        if identity in self._seen:
            return True
        self._seen.add(identity)
        if len(self._seen) > MOST_FILES:
            self._report(file.path, "", "ignored", f"there are more than {MOST_FILES} instruction files")
            return True
        place = len(self.files)
        self._add(replace(file, by=by))
        included = [
            self._include(source, relative, by=file.path, path=path, depth=depth) for path in includes_in(file.text)
        ]
        if included and all(included) and only_includes(file.text):
            self.files[place:] = [added for added in self.files[place:] if added.path != file.path]
        if file.globs:  # an include of a rule applies to the same files as the rule
            self.files[place:] = [replace(added, globs=added.globs or file.globs) for added in self.files[place:]]
        return True

    def look(self, source: InstructionFolder, relative: str) -> tuple[tuple[int, int], InstructionFile] | None:
        """Return a file without its includes, and its identity; None if it is not readable."""
        name = source.name_of(relative, self.home)
        content = self._content(source, relative, name)
        if content is None:
            return None
        globs, text = self._rule(name, content[1]) if _is_rule(name) else ((), content[1])
        text = text.strip()
        return content[0], InstructionFile(name, text, globs, digest=digest_of(text))

    def _add(self, file: InstructionFile) -> None:
        """Add a new text, if it fits."""
        if not file.text or file.digest in self._texts:
            return
        self._texts.add(file.digest)
        room = max(0, TOGETHER - self._characters)
        self._characters += min(len(file.text), LONGEST)
        self.files.append(replace(file, text=cut(file.text, min(LONGEST, room))))

    def _include(self, source: InstructionFolder, relative: str, *, by: str, path: str, depth: int) -> bool:
        """Read an included file. Return True if the file exists."""
        if depth >= DEEPEST:
            self._report(by, f"@{path}", "ignored", f"it is more than {DEEPEST} includes deep")
            return False
        target = _target(source, relative, path, self.home)
        if not source.person and target.startswith("../"):
            self._report(by, f"@{path}", "refused", "it leads out of the folder that brings it")
            return False
        before = len(self.notes)
        if self.read(source, target, depth + 1, by):
            return True
        if len(self.notes) == before and ("/" in path or path.endswith((".md", ".txt"))):  # else a name, or a package
            self._report(by, f"@{path}", "ignored", "there is no such file")
        return False

    def _rule(self, name: str, text: str) -> tuple[tuple[str, ...], str]:
        """Return the globs of a rule, and its text. Invalid front matter is reported, and the text still applies."""
        try:
            document, body = load_front_document(text, name)
        except SettingsError as error:
            self._report(name, "", "ignored", f"its front matter: {error}; the text holds for all files")
            return (), _body(text)
        fields = cast("dict[str, object]", document.data)
        written = fields.get("paths")
        globs = _glob_list(written)
        if written is not None and globs is None:
            reason = "write a glob, or a list of globs; the text holds for all files"
            self._report(name, "paths", "refused", reason, line=document.lines.get(("paths",), 0))
        for other in fields:
            if other not in ("paths", "description"):
                reason = "rules have only `paths` and `description`"
                self._report(name, str(other), "ignored", reason, line=document.lines.get((other,), 0))
        return tuple(self._globs(name, globs or ())), body

    def _globs(self, name: str, globs: tuple[str, ...]) -> Iterator[str]:
        """Yield the valid globs.

        Without any, yield one that matches nothing, so that the rule does not apply everywhere.
        """
        for glob in globs:
            try:
                matcher(glob.removeprefix("./").removeprefix("/"))
            except ValueError as wrong:
                self._report(name, "paths", "refused", f"{glob[:80]!r} is not a valid glob: {wrong}")
                yield ".../..."
            else:
                yield glob.removeprefix("./").removeprefix("/")

    def _content(self, source: InstructionFolder, relative: str, name: str) -> tuple[tuple[int, int], str] | None:
        """Return the identity of a file and its text; None if it is not readable."""
        try:
            descriptor = _opened(source, relative)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _MISSING:
                return None
            out = isinstance(error, OSError) and error.errno in _LEADS_OUT
            reason = "a link leads out of the folder that brings it" if out else f"it cannot be read: {error}"
            self._report(name, "", "refused", reason)
            return None
        try:
            facts = os.fstat(descriptor)
            reason = _why_not(source, relative, facts)
            content = b"" if reason else _all_of(descriptor)
        finally:
            os.close(descriptor)
        reason = reason or ("it holds NUL bytes and is not text" if b"\0" in content else "")
        if reason:
            if reason != _FOLDER:
                self._report(name, "", "refused", reason)
            return None
        return (facts.st_dev, facts.st_ino), content.decode("utf-8-sig", errors="replace")

    def _report(
        self, name: str, field: str, verdict: Literal["ignored", "refused"], reason: str, *, line: int | None = None
    ) -> None:
        note = DiscoveryNote(name, field, verdict, reason, line or 0)
        if note not in self.notes:
            self.notes.append(note)


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning with a mark that states the full length."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[Cut: {len(text):,} characters. Read the file for the rest.]".strip()


def instruction_folders(root: Path) -> tuple[InstructionFolder, ...]:
    """Return the folders whose files apply in a folder: from the root of its repository down to it.

    Excluded are folders above one with a `.git`, all parents if there is no `.git`, and folders of other users: a user
    who may write in `/tmp` must not instruct an agent. Raises OSError if the folder does not exist.
    """
    real = root.resolve(strict=True)
    above: list[InstructionFolder] = []
    if not _has_git(real):
        for number, folder in enumerate(real.parents, 1):
            if folder.stat().st_uid != os.getuid():
                above = []
                break
            above.append(InstructionFolder(folder, "../" * number))
            if _has_git(folder):
                break
        else:
            above = []
    return (*reversed(above), InstructionFolder(real))


def read_persons(reader: InstructionReader, home: Path, config: Path | None) -> None:
    """Read the user's own files, Callboard's after the compatible ones: later files take precedence."""
    claude = InstructionFolder(claude_folder(home, os.environ), person=True)
    reader.read(claude, "CLAUDE.md")
    reader.rules(claude, "rules")
    if config is not None:
        own = InstructionFolder(config, person=True)
        reader.read(own, "AGENTS.md")
        reader.rules(own, "rules")


def read_known(root: Path, home: Path, path: str) -> InstructionFile | None:
    """Return the present version of a file that an agent was shown; None if the file is gone or unreadable."""
    current = InstructionReader(home).look(*_source_of(root, home, path))
    return None if current is None else replace(current[1], path=path, text=cut(current[1].text, LONGEST))


def _source_of(root: Path, home: Path, path: str) -> tuple[InstructionFolder, str]:
    if path.startswith("~/"):
        return InstructionFolder(home, person=True), path[2:]
    if path.startswith("/"):
        return InstructionFolder(Path("/"), person=True), path[1:]
    real = root.resolve()
    up = 0
    while path.startswith("../", 3 * up):
        up += 1
    return InstructionFolder(real.parents[up - 1] if up else real), path[3 * up :]


def _is_rule(name: str) -> bool:
    """Return True if the displayed path is in a folder of rules."""
    return any(f"/{folder}/" in f"/{name}" for folder in (*RULES, "callboard/rules"))


def _opened(source: InstructionFolder, relative: str) -> int:
    if source.person:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(source.root / relative, flags)
    base = open_folder(str(source.root))
    try:
        return open_beneath(base, relative, os.O_RDONLY)
    finally:
        os.close(base)


_FOLDER = "it is a folder"


def _all_of(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(LARGEST_FILE)


def _why_not(source: InstructionFolder, relative: str, facts: os.stat_result) -> str:
    if stat.S_ISDIR(facts.st_mode):
        return _FOLDER
    if not stat.S_ISREG(facts.st_mode):
        return "it is not a regular file"
    if facts.st_size > LARGEST_FILE:
        return f"it is larger than {LARGEST_FILE:,} bytes"
    named = Path(relative).parts
    real = (source.root / relative).resolve()
    inside = real.relative_to(source.root).parts if real.is_relative_to(source.root) else real.parts
    if not source.person and (is_secret(named) or is_secret(inside) or ".git" in inside):
        return "it may hold a secret"
    return ""


def _target(source: InstructionFolder, relative: str, path: str, home: Path) -> str:
    """Return the path of an include relative to the ground's root; with `../` if it is outside."""
    if path.startswith("~/"):
        path = str(home / path[2:])
    folder = source.root / os.path.dirname(relative)  # noqa: PTH120 - a text, no path that is there
    whole = os.path.normpath(folder / path)
    return os.path.relpath(whole, source.root)


def _rules_in(folder: Path) -> list[str]:
    """Return the `*.md` below it, sorted, without following links to folders."""
    paths: list[str] = []
    remaining = MOST_RULES
    for parent, folders, names in os.walk(folder):
        folders.sort()
        remaining -= len(names) + 1
        paths += [os.path.relpath(os.path.join(parent, name), folder) for name in names if name.endswith(".md")]  # noqa: PTH118 - up to a few thousand names of os.walk, which are text
        if remaining <= 0:
            break
    return sorted(paths)


def _has_git(folder: Path) -> bool:
    try:
        (folder / ".git").lstat()
    except OSError:
        return False
    return True


def _body(text: str) -> str:
    """Return the text after invalid front matter."""
    lines = text.splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    return "".join(lines[marks[1] + 1 :]) if len(marks) == 2 and marks[0] == 0 else text


def _glob_list(value: object) -> tuple[str, ...] | None:
    """Return globs from a list or separated by commas (not those in braces); None for any other value."""
    if isinstance(value, str):
        parts = [""]
        depth = 0
        for letter in value:
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth <= 0:
                parts.append("")
            else:
                parts[-1] += letter
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(value, list) and all(isinstance(entry, str) for entry in cast("list[object]", value)):
        return tuple(entry.strip() for entry in cast("list[str]", value) if entry.strip())
    return None
