"""The durable values of workflows in code: a row for each run of one, the journal of its steps. All load for ever."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from callboard.words.values import Json, Value

WorkflowStatus = Literal["running", "done", "failed"]


class WorkflowRow(Value):
    """One run of a workflow."""

    id: str
    name: str
    place: str = ""
    """Where its function stands: `FILE:NAME` of the command line, else `module:name`."""
    code: str = ""
    """sha256 (hex) of the function's source; empty: it could not be read."""
    args: Json = Field(default_factory=dict)
    status: WorkflowStatus = "running"
    """`running`: also one that was cut off with its process."""
    created_at: float = 0.0
    ended_at: float | None = None
    result: Any = None
    """What it returned, as JSON."""
    error: str = ""
    """Why it failed."""
    budget_usd: float | None = None
    """What its agents may cost together, in US dollars; None: no limit of its own."""


StepKind = Literal["agent", "step", "ask", "now", "sleep", "workflow"]


class WorkflowNoted(Value):
    """A record of a workflow's journal."""

    v: int = 1
    at: float
    t: Literal["began", "ended", "failed", "dropped"]
    """`dropped`: what stands of this step before counts no more: it runs again."""
    step: str
    """Its id: the place in the workflow, as `map#1[3]/agent#1`."""
    kind: StepKind
    digest: str = ""
    """sha256 (hex) of what was asked for: a resumed workflow has to ask for the same."""
    label: str = ""
    """A few words for a person."""
    value: Any = None
    """With `ended`: what it came to, as JSON; with `failed`: `outcome`, `text`."""
    error: str = ""
    agent: str = ""
    """Whose work it is."""
    again: bool = False
    """It may be run again when it was cut off."""
