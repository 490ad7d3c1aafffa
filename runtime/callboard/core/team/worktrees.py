"""What stands in the record of worktrees: which there are, what is under way, what came of a call. Pure.

    (none) -> making -> ready -> merging -> ready        ready -> joining -> ready
                     -> (none)           ready -> removing -> (none) | ready

Refuses names that git, a file system or a person would misread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from callboard.words.errors import ToolRefused
from callboard.words.values import WORKTREE_NAME
from callboard.words.worktrees import WorktreeNoted

Standing = Literal["making", "ready", "merging", "joining", "removing"]
_BEGINS: Mapping[str, Standing] = {
    "making": "making",
    "merging": "merging",
    "joining": "joining",
    "removing": "removing",
}
_DONE = frozenset({"made", "merged", "joined", "removed"})


@dataclass(frozen=True, slots=True)
class Worktree:
    """One worktree, as its record says."""

    name: str
    branch: str
    base: str
    """The commit that it began at."""
    onto: str
    """The branch that it began from; empty: none was checked out."""
    by: str
    session: str
    call: str
    at: float
    standing: Standing = "making"
    kept: str = ""
    """Who wants it kept; empty: nobody."""
    intent: WorktreeNoted | None = None
    """What was begun and is not over."""
    merged: str = ""
    """The commit of its newest merge."""


@dataclass(frozen=True, slots=True)
class Worktrees:
    """The whole record, folded."""

    there: Mapping[str, Worktree] = field(default_factory=dict[str, Worktree])
    done: Mapping[str, WorktreeNoted] = field(default_factory=dict[str, WorktreeNoted])
    """What a tool call came to, by the call: it is never done again."""
    gone: Mapping[str, WorktreeNoted] = field(default_factory=dict[str, WorktreeNoted])
    """The newest removal of a name that there is no longer."""

    def alike(self, name: str) -> str:
        """A name that is another one, and the same where case is not heeded; empty without one."""
        return next((one for one in self.there if one != name and one.casefold() == name.casefold()), "")


def fold(notes: Iterable[WorktreeNoted]) -> Worktrees:
    """The state that a record tells of."""
    there: dict[str, Worktree] = {}
    done: dict[str, WorktreeNoted] = {}
    gone: dict[str, WorktreeNoted] = {}
    for note in notes:
        if note.call and note.act in _DONE:
            done[note.call] = note
        tree = _after(there.get(note.name), note)
        if tree is not None:
            there[note.name] = tree
            gone.pop(note.name, None)
        elif there.pop(note.name, None) is not None and note.act == "removed":
            gone[note.name] = note
    return Worktrees(there, done, gone)


def _after(tree: Worktree | None, note: WorktreeNoted) -> Worktree | None:
    """A worktree after one more act; None: there is none."""
    if note.act == "making":
        began = Worktree(
            note.name, note.branch, note.base, note.onto, note.by, note.session, note.call, note.at, intent=note
        )
        return began if tree is None else replace(tree, standing="making", intent=note)
    if tree is None or note.act == "removed":
        return None
    match note.act:
        case "merging" | "joining" | "removing":
            return replace(tree, standing=_BEGINS[note.act], intent=note)
        case "undone" if tree.standing == "making" and not (tree.intent and tree.intent.tip):
            return None  # it never was; one that was made anew from its branch (`tip`) is still known
        case "kept":
            return replace(tree, kept=note.by)
        case "merged":
            return replace(tree, standing="ready", intent=None, merged=note.commit)
        case "saved":
            return tree
        case _:
            return replace(tree, standing="ready", intent=None)


def check_name(name: str) -> None:
    """Raises `ToolRefused` for what is no name of a worktree, and of a branch `wt/<name>`."""
    if not WORKTREE_NAME.fullmatch(name):
        raise ToolRefused(
            f"name: {name[:80]!r} is no name of a worktree: begin with a letter or digit, then letters, digits, '.', "
            "'_' and '-', at most 64"
        )
    if ".." in name or name.endswith(".") or name.lower().endswith(".lock"):
        raise ToolRefused(f"name: git takes no branch wt/{name}: leave '..', a final '.' and '.lock' out")


def branch_of(name: str) -> str:
    """The branch of a worktree."""
    return f"wt/{name}"


def free_name(wanted: str, call: str, known: Worktrees, branches: Iterable[str]) -> str:
    """The name that a worktree for `wanted` gets: the one this call has made already, else the first that is free of
    `wanted`, `wanted-2`, ... `branches`: those that the repository has."""
    mine = [tree.name for tree in known.there.values() if call and tree.call == call]
    if mine:
        return mine[0]
    taken = {name.casefold() for name in (*known.there, *(b.removeprefix("wt/") for b in branches if b[:3] == "wt/"))}
    numbered = (wanted if number == 1 else f"{wanted[:58]}-{number}" for number in range(1, 10_000))
    return next(name for name in numbered if name.casefold() not in taken)


def loss_words(lines: Iterable[str], branch: str) -> str:
    """What a person reads who is asked to let work go: all of it, a line each."""
    listed = [f"- {line}" for line in lines] or ["nothing would be lost"]
    return "\n".join(["", *listed, f"Commits stay on the branch {branch}."])


def shown_losses(words: str) -> tuple[str, ...]:
    """The lines that stood in what a person read."""
    return tuple(line[2:] for line in words.split("\n") if line.startswith("- "))
