"""Effects of a command as values: the step between reading a script and deciding on it.

A command is classified by its effects, never by its spelling. `ease` is the authority that may lift an ask: `mode` (the
mode `acceptEdits`), `rule` (an allow rule), `bypass` (only the mode that a person starts to bypass asking), `named` (no
mode: only an allow rule of the settings that names the program), `person` (only a person's answer: the floor). `never`
is a denial.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from callboard.core.permissions.values import Arg, HardRules, LeftOut, Parsed, PathFact, PathQuery
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Ease = Literal["mode", "rule", "bypass", "named", "person", "never"]
Access = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Risk:
    """Effect that is bad or unclear regardless of paths."""

    letter: str
    why: str
    ease: Ease = "rule"


@dataclass(frozen=True, slots=True)
class PathAccess:
    """Access to a path: a command reads, writes or deletes it. The decision depends on the fact about the path."""

    access: Access
    query: PathQuery
    ease: Ease = "mode"
    """Minimum ease: the authority that may lift the ask for a write inside the workspace."""


@dataclass(frozen=True, slots=True)
class GitRead:
    """Read by `git` in this folder. Asks unless the folder belongs to the agent's own repository, by `queries`."""

    folder: str

    @property
    def queries(self) -> Iterator[PathQuery]:
        """Yield the paths to check: the folder, and the files of a separate repository in it or above it."""
        yield PathQuery(self.folder)
        parts = self.folder.split("/")
        for end in range(len(parts), 0, -1):
            if above := "/".join(parts[:end]):
                yield PathQuery(f"{above}/.git")
                yield PathQuery(f"{above}/HEAD")


@dataclass(frozen=True, slots=True)
class RunsProjectFile:
    """Program that runs commands named in one of these files of the workspace.

    Asks if such a file is in its folder or above.
    """

    program: str
    files: tuple[str, ...]
    folder: str = ""

    @property
    def queries(self) -> Iterator[PathQuery]:
        """Yield the paths that must not exist."""
        parts = self.folder.split("/") if self.folder else []
        for end in range(len(parts), -1, -1):
            above = "/".join(parts[:end])
            yield from (PathQuery(f"{above}/{file}" if above else file) for file in self.files)


@dataclass(frozen=True, slots=True)
class GitContent:
    """Git command that can print the content of tracked files: of all, or of those in its paths.

    Asks if one contains secrets.
    """

    subcommand: str
    paths: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Words that git treats as paths if such a file or folder exists."""
    doubtful: tuple[str, ...] = ()
    """Words that may be paths or values of options. They restrict nothing, and are read if other paths restrict."""
    restricted: bool = False
    """True if only `paths` are read, even if there are none."""
    without: tuple[str, ...] = ()
    """Excluded paths."""
    objects: tuple[tuple[str, str], ...] = ()
    """Names that may mean the content of a file, which no path restricts, each with the path that the name may mean
    instead."""
    trees: tuple[str, ...] = ()
    """Paths from the top of the repository, wherever the repository is: only these and everything beneath them is read.
    """

    @property
    def queries(self) -> Iterator[PathQuery]:
        """Yield the trees that it may read, with the whole repository first."""
        yield WHOLE_REPOSITORY
        yield from map(tracked_in, (*self.paths, *self.words, *self.doubtful))
        for name, path in self.objects:
            yield commit_named(name)
            if path:
                yield tracked_in(path)

    def within(self, folders: Sequence[str]) -> GitContent:
        """Return a copy with the paths resolved in each of the folders in which the command may run."""

        def placed(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(posixpath.join(folder, path) for folder in folders for path in paths)

        without = placed(self.without) if len(folders) == 1 else ()
        return replace(
            self,
            paths=placed(self.paths),
            words=placed(self.words),
            doubtful=placed(self.doubtful),
            without=without,
            objects=tuple(
                (name, posixpath.join(folder, path) if path else "")
                for folder in folders
                for name, path in self.objects
            ),
        )


WHOLE_REPOSITORY = PathQuery("/", tree=True, left_out="untracked")
"""All files that git tracks, also above the workspace."""


def tracked_in(path: str) -> PathQuery:
    """Return the query for the tracked files at or beneath a path."""
    return PathQuery(path, tree=True, left_out="untracked")


def commit_named(name: str) -> PathQuery:
    """Return the query that checks whether a git name certainly means a commit."""
    return PathQuery(name, commit=True)


@dataclass(frozen=True, slots=True)
class NamedInCode:
    """Path in code that an interpreter runs, or in a word of a program. What it does with the path is not known."""

    query: PathQuery


@dataclass(frozen=True, slots=True)
class GitSweep:
    """Git command that changes or deletes files in a folder whose names its words do not show: `clean`, `reset --hard`.

    Asks if the runtime's settings are among them.
    """

    command: str
    folder: str
    tracked: bool
    """True if it changes only files that git tracks; False if it deletes or moves files that git does not track."""

    @property
    def query(self) -> PathQuery:
        """Return the query for the settings in the folder."""
        return tracked_in(posixpath.join(self.folder, SETTINGS_FOLDER)) if self.tracked else PathQuery(self.folder)


SETTINGS_FOLDER = ".callboard"

Effect = Risk | PathAccess | GitRead | GitContent | GitSweep | RunsProjectFile | NamedInCode

_INTERPRETER = late_pattern(
    r"(?:python|pypy)[\d.]*|node|nodejs|deno|bun|perl[\d.]*|ruby[\d.]*|php[\d.]*|lua[\d.]*|Rscript|julia|[gmn]?awk"
)
_PATH_IN_CODE = late_pattern(r"(?<![\w.:/~}])(~|\$HOME|\$\{HOME\})?(/[\w.@+~%=/-]+)")
_SETTINGS_IN_CODE = late_pattern(r"(?<![\w.@+~%/-])(?:\./)*\.callboard(?:/[\w.@+~%=/-]*)?(?![\w.@+~%-])")
_MOST_IN_CODE = 20
"""Most paths in the code of one command that are looked up."""


def named_in_code(program: str, texts: Iterable[str | None], home: str) -> Iterator[NamedInCode]:
    """Yield the absolute paths that the words or the input of an interpreter have inside, and those of the settings.

    A path that the code puts together is not found. A program that is no interpreter yields none.
    """
    if not _INTERPRETER.fullmatch(program):
        return
    code = "\n".join(text for text in texts if text)
    paths = dict.fromkeys(f"{home if match[1] else ''}{match[2]}" for match in _PATH_IN_CODE.finditer(code))
    paths |= dict.fromkeys(match[0] for match in _SETTINGS_IN_CODE.finditer(code))
    yield from (NamedInCode(PathQuery(path)) for path in list(paths)[:_MOST_IN_CODE])


def may_change(args: Iterable[Arg]) -> Iterator[NamedInCode]:
    """Yield the folder in which a program works, and the paths that its words may name.

    Options name paths too: `--to=PATH`, `-dPATH`, `-v PATH:x`.
    """
    yield NamedInCode(PathQuery("."))
    for arg in (arg for arg in args if arg.known and "\n" not in arg.text):
        if arg.glob:
            yield NamedInCode(PathQuery(arg.pattern, glob=True))
            continue
        attached = arg.text[2:] if arg.text.startswith("-") else ""
        texts = dict.fromkeys((arg.text, attached, *re.split(r"[=:,]", arg.text)))
        yield from (NamedInCode(PathQuery(text)) for text in texts if text)


_OWN_FOLDER = late_pattern(r"/+proc/+(?:self|thread-self|\d+)/+(?:task/+\d+/+)?cwd(?:/+(.*))?", re.DOTALL)


def behind_links(effects: Iterable[Effect]) -> Iterator[PathAccess]:
    """Yield what the accesses through a link to the process's own folder (`/proc/self/cwd/x`) mean in that folder.

    The judge would follow the link to its own folder. The accesses are added to those as written, so they only deny or
    ask more.
    """
    for effect in effects:
        if isinstance(effect, PathAccess) and (match := _OWN_FOLDER.fullmatch(effect.query.text)):
            yield replace(effect, query=replace(effect.query, text=match[1] or "."))


def queries_in(effects: Iterable[Effect]) -> Iterator[PathQuery]:
    """Yield every path whose fact is needed to decide on one of these effects."""
    for effect in effects:
        if isinstance(effect, PathAccess | GitSweep | NamedInCode):
            yield effect.query
        elif isinstance(effect, GitRead | GitContent | RunsProjectFile):
            yield from effect.queries


@dataclass(frozen=True, slots=True)
class View:
    """One form of a command: as written, or without wrappers."""

    words: tuple[Arg, ...]
    for_allow: bool
    """True if an allow rule may match this view; deny and ask rules match every view."""


@dataclass(frozen=True, slots=True)
class ScriptPart:
    """One simple command, redirect or assignment of a script with its effects. Rules cover parts by their views."""

    effects: tuple[Effect, ...]
    views: tuple[View, ...] = ()
    words: tuple[str, ...] = ()
    """Every literal word that may name a path, for path rules."""
    folders: tuple[str, ...] = ()
    """Folders in which it may run, relative to the script's; empty: every folder in which the script may work."""
    guessed: bool = False
    """True if it runs only for certain values of unknown words. It can only cause more denials, and is never reported
    as a fact."""


def read(arg: Arg, *, tree: bool = False, left_out: LeftOut = "nothing") -> Effect:
    """Return the effect of reading `arg`. `left_out`: see `PathQuery`."""
    effect = touch("read", arg, tree=tree)
    return replace(effect, query=replace(effect.query, left_out=left_out)) if isinstance(effect, PathAccess) else effect


def write(arg: Arg, ease: Ease = "mode") -> Effect:
    """Return the effect of writing `arg`."""
    return touch("write", arg, ease)


def delete(arg: Arg, ease: Ease = "rule") -> Effect:
    """Return the effect of deleting `arg`."""
    return touch("delete", arg, ease)


def touch(access: Access, arg: Arg, ease: Ease = "mode", *, tree: bool = False) -> Effect:
    """Return a `PathAccess` if the path is known, otherwise an ask.

    `/` followed by an unknown part can still be denied by its known prefix.
    """
    if not arg.known:
        return Risk("L", f"a path that it would {access} is only known when it runs", "rule")
    text = arg.pattern if arg.glob else arg.text
    return PathAccess(access, PathQuery(text, glob=arg.glob, tree=tree), ease)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Effects of a script, and the facts needed to decide on it."""

    source: str
    hard_rules: HardRules
    parts: tuple[ScriptPart, ...]
    queries: frozenset[PathQuery]
    missing: tuple[str, ...]
    """Literal scripts inside it that are not parsed yet."""
    folders: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class CallFacts:
    """Facts about a call, collected before it is judged.

    `scripts` maps each script text of the call (the command itself, and every literal script inside it) to its parsed
    form; `paths` maps each query of the call to its fact. Missing entries count as unknown, and ask.
    """

    scripts: Mapping[str, Parsed] = field(default_factory=dict[str, Parsed])
    paths: Mapping[PathQuery, PathFact] = field(default_factory=dict[PathQuery, PathFact])
    root: str = "/"
    """Absolute path of the agent's folder. Path rules without an anchor are relative to it."""
    home: str = "/root"
    folds: bool = False
    """True if the file system there ignores case."""
    git_quiet: bool = False
    """True if the repository's own git configuration was trusted, or runs no program: the premise of letter G."""
    destructive: bool = False
    """True if the tool's server annotates it as destructive."""
    person_only: bool = False
    """True if the tool's server requires a person's answer: no rule and no mode answers for the person."""
    sandbox: int = 0
    """The sandbox level in force for the agent's commands, 0 to 3."""
    network_open: bool = False
    """True if commands have the machine's network without an approval."""
    remotes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """URLs of each remote of the repository in which the agent works, if the call may use git."""
    analysis: Analysis | None = None
    """The command's analysis by `find_facts`. The judge uses it several times (`analysis_in`)."""
