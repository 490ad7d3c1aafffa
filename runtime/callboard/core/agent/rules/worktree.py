"""Folder in which an agent's tools run: the workspace, its own worktree, or that of a task that it holds. Pure.

The folder changes between two replies and never while a call is open, so that a call runs in the folder for which it
was judged. The folder is checked once in each turn, because it can disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from callboard.core.agent.state import AgentState, Facts
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec
from callboard.types.operations import Operation
from callboard.types.records import Task

MOVE = Operation("move")
"""Operation that prepares a folder."""


def worktree_in_use(spec: AgentSpec) -> str:
    """Return the worktree in which the agent's tools run; empty: the workspace."""
    return PurePosixPath(spec.folder).name if spec.folder else ""


def worktree_to_use(spec: AgentSpec, held: Iterable[str], task: Callable[[str], Task | None]) -> str:
    """Return the worktree in which the agent's tools should run.

    The newest task of the agent that has a worktree decides, otherwise the agent's own worktree is used.

    `held`: ids, the oldest first; `task`: function that returns the row of an id.
    """
    rows = [task(task_id) for task_id in held]
    bound = [row.worktree for row in rows if row is not None and row.worktree and row.owner == spec.name]
    return bound[-1] if bound else spec.worktree


def prepare_folder(state: AgentState, facts: Facts) -> st.Step | None:
    """Prepare the folder in which the agent should work, if it changed, or was not checked in this turn."""
    if state.turn is None:
        return None
    current = worktree_in_use(state.me)
    busy = bool(state.calls) or state.model.call is not None or state.compaction.summary is not None
    if (busy and not current) or facts.worktree is None:
        return None
    if MOVE in facts.running:
        return st.Wait(None, "worktree")
    target = current if busy else facts.worktree
    if target == current and (facts.settled or not current):
        return None
    return st.EnterFolder(target)
