"""What a command would do, as values: the middle between reading a script and deciding on it.

A command is told apart by what it does, never by how it is spelled. `ease` says who may lift an ask: `mode` (the mode
`acceptEdits`), `rule` (an allow rule), `bypass` (only the mode that a person starts to bypass asking), `person` (nobody
but a person's answer: the floor). `never` is a denial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from callboard.core.permission.values import PathQuery
from callboard.core.permission.words import Arg

Ease = Literal["mode", "rule", "bypass", "person", "never"]
Access = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Does:
    """An effect that is bad or unclear whatever the paths say."""

    letter: str
    why: str
    ease: Ease = "rule"


@dataclass(frozen=True, slots=True)
class Touch:
    """A path that a command reads, writes or deletes. The fact about the path decides."""

    access: Access
    query: PathQuery
    ease: Ease = "mode"
    """At least what lifts a write inside the workspace."""


@dataclass(frozen=True, slots=True)
class GitIn:
    """`git` reads in this folder: asks unless the folder belongs to the agent's own repository, by `queries`."""

    folder: str

    @property
    def queries(self) -> Iterator[PathQuery]:
        """Yield the paths that must be nothing: a repository of its own in the folder or above it, and the folder."""
        yield PathQuery(self.folder)
        parts = self.folder.split("/")
        for end in range(len(parts), 0, -1):
            if above := "/".join(parts[:end]):
                yield PathQuery(f"{above}/.git")
                yield PathQuery(f"{above}/HEAD")


Effect = Does | Touch | GitIn


def queries_in(effects: Iterable[Effect]) -> Iterator[PathQuery]:
    """Yield every path whose fact decides on one of these effects."""
    for effect in effects:
        if isinstance(effect, Touch):
            yield effect.query
        elif isinstance(effect, GitIn):
            yield from effect.queries


@dataclass(frozen=True, slots=True)
class View:
    """One way to see a command: as written, or with wrappers taken off."""

    words: tuple[Arg, ...]
    for_allow: bool
    """Whether an allow rule may match this view; deny and ask rules match every view."""


@dataclass(frozen=True, slots=True)
class Part:
    """One simple command, redirect or assignment of a script with its effects. Rules cover parts by their views."""

    effects: tuple[Effect, ...]
    views: tuple[View, ...] = ()
    words: tuple[str, ...] = ()
    """Every literal word that may name a path, for path rules."""


def read(arg: Arg, *, tree: bool = False) -> Effect:
    """The effect of reading what `arg` names."""
    return touch("read", arg, tree=tree)


def write(arg: Arg, ease: Ease = "mode") -> Effect:
    """The effect of writing what `arg` names."""
    return touch("write", arg, ease)


def delete(arg: Arg, ease: Ease = "rule") -> Effect:
    """The effect of deleting what `arg` names."""
    return touch("delete", arg, ease)


def touch(access: Access, arg: Arg, ease: Ease = "mode", *, tree: bool = False) -> Effect:
    """A `Touch` where the path is known, else an ask. `/` followed by what is unknown stays deniable by its lead."""
    if not arg.known:
        return Does("L", f"a path that it would {access} is only known when it runs", "rule")
    text = arg.pattern if arg.glob else arg.text
    return Touch(access, PathQuery(text, glob=arg.glob, tree=tree), ease)
