"""State of git worktrees, folded from their record: existing worktrees, acts in progress, outcomes of calls. Pure.

    (none) -> making -> ready -> merging -> ready        ready -> joining -> ready
                     -> (none)           ready -> removing -> (none) | ready

Names that git, a file system or a person could misread are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Literal

from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import WORKTREE_NAME
from callboard.types.worktrees import WorktreeNoted

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
    """One worktree, from its record."""

    name: str
    branch: str
    base: str
    """Commit from which it was created."""
    onto: str
    """Branch from which it was created; empty: none was checked out."""
    by: str
    session: str
    call: str
    at: float
    standing: Standing = "making"
    kept: str = ""
    """Author of the order to keep the worktree; empty: there is none."""
    intent: WorktreeNoted | None = None
    """Act in progress."""
    merged: str = ""
    """Commit of its newest merge."""


@dataclass(frozen=True, slots=True)
class Worktrees:
    """State of all worktrees, folded from the record."""

    there: Mapping[str, Worktree] = field(default_factory=dict[str, Worktree])
    done: Mapping[str, WorktreeNoted] = field(default_factory=dict[str, WorktreeNoted])
    """Outcome of each tool call, by the call: a call with an outcome is never repeated."""
    gone: Mapping[str, WorktreeNoted] = field(default_factory=dict[str, WorktreeNoted])
    """Newest removal of each name that no longer exists."""

    def alike(self, name: str) -> str:
        """Return an existing name that differs only in case; empty if there is none."""
        return next((other for other in self.there if other != name and other.casefold() == name.casefold()), "")


def fold(notes: Iterable[WorktreeNoted]) -> Worktrees:
    """Return the state that results from a record."""
    trees: dict[str, Worktree] = {}
    done: dict[str, WorktreeNoted] = {}
    gone: dict[str, WorktreeNoted] = {}
    for note in notes:
        if note.call and note.act in _DONE:
            done[note.call] = note
        tree = _apply_act(trees.get(note.name), note)
        if tree is not None:
            trees[note.name] = tree
            gone.pop(note.name, None)
        elif trees.pop(note.name, None) is not None and note.act == "removed":
            gone[note.name] = note
    return Worktrees(trees, done, gone)


def _apply_act(tree: Worktree | None, note: WorktreeNoted) -> Worktree | None:
    """Return a worktree after one more act; None: it does not exist."""
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
            return None  # a new one never existed; one that was created again from its branch (`tip`) is still known
        case "kept":
            return replace(tree, kept=note.by)
        case "merged":
            return replace(tree, standing="ready", intent=None, merged=note.commit)
        case "saved":
            return tree
        case _:
            return replace(tree, standing="ready", intent=None)


def check_name(name: str) -> None:
    """Raise `ToolRefused` for a name that is not valid for a worktree and a branch `wt/<name>`."""
    if not WORKTREE_NAME.fullmatch(name):
        raise ToolRefused(
            f"name: {name[:80]!r} is not a valid name of a worktree: begin with a letter or digit, "
            "then letters, digits, '.', '_' and '-', at most 64"
        )
    if ".." in name or name.endswith(".") or name.lower().endswith(".lock"):
        raise ToolRefused(f"name: git does not accept the branch wt/{name}: leave '..', a final '.' and '.lock' out")


def branch_of(name: str) -> str:
    """Return the branch of the worktree with this name."""
    return f"wt/{name}"


def free_name(base: str, call: str, worktrees: Worktrees, branches: Iterable[str]) -> str:
    """Return the name for a new worktree.

    The name is the one that this call already created, or the first free one of `base`, `base-2`, and so on.
    `branches`: those of the repository.
    """
    own = [tree.name for tree in worktrees.there.values() if call and tree.call == call]
    if own:
        return own[0]
    used = {
        name.casefold() for name in (*worktrees.there, *(b.removeprefix("wt/") for b in branches if b[:3] == "wt/"))
    }
    numbered = (base if number == 1 else f"{base[:58]}-{number}" for number in range(1, 10_000))
    return next(name for name in numbered if name.casefold() not in used)


def loss_words(lines: Iterable[str], branch: str) -> str:
    """Return the text of the question whether to discard work: one line for each loss."""
    listed = [f"- {line}" for line in lines] or ["nothing would be lost"]
    return "\n".join(["", *listed, f"Commits stay on the branch {branch}."])


def confirmed_losses(text: str) -> tuple[str, ...]:
    """Return the lines with losses from the text that the user read."""
    return tuple(line[2:] for line in text.split("\n") if line.startswith("- "))
