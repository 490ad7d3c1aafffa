"""In which folder an agent's tools run: the workspace, its own worktree, or that of a task which it holds. Pure.

The folder changes between two replies and never while a call is open: so a call runs in the folder in which it was
judged. It is looked at once in each turn, since a folder can go missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from callboard.core.state import AgentState, Facts
from callboard.words import steps as st
from callboard.words.specs import AgentSpec
from callboard.words.values import Task

MOVE = "move"
"""The operation that opens a folder."""


def worktree_in_use(spec: AgentSpec) -> str:
    """The worktree that its tools run in; empty: the workspace."""
    return PurePosixPath(spec.folder).name if spec.folder else ""


def wanted(spec: AgentSpec, held: Iterable[str], task: Callable[[str], Task | None]) -> str:
    """The worktree that its tools should run in: that of the newest task it holds which has one, else its own.

    `held`: ids, the oldest first; `task`: the row of an id."""
    rows = [task(one) for one in held]
    bound = [row.worktree for row in rows if row is not None and row.worktree and row.owner == spec.name]
    return bound[-1] if bound else spec.worktree


def moving(state: AgentState, facts: Facts) -> st.Step | None:
    """The rule: open the folder that it should work in, if that is another one, or was not looked at in this turn."""
    if state.turn is None or facts.worktree is None:
        return None
    if MOVE in facts.running:
        return st.Wait(None, "its worktree")
    here = worktree_in_use(state.me)
    busy = bool(state.calls) or state.call is not None or state.summary is not None
    there = here if busy else facts.worktree
    if there == here and (facts.settled or not here):
        return None
    return st.Move(there)
