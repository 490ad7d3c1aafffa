"""Durable values of workflows from code: a row for each run, and the journal of its steps. All load forever."""

from typing import Any, Literal

from pydantic import Field

from callboard.types.records import Json, Value

WorkflowStatus = Literal["running", "done", "failed"]


class WorkflowRow(Value):
    """One run of a workflow."""

    id: str
    name: str
    place: str = ""
    """Location of the workflow's function: `FILE:NAME` of the command line, else `module:name`."""
    code: str = ""
    """sha256 (hex) of the function's source; empty if it could not be read."""
    args: Json = Field(default_factory=dict)
    status: WorkflowStatus = "running"
    """Status of the run. `running` includes runs that were cut off with their process."""
    created_at: float = 0.0
    ended_at: float | None = None
    result: Any = None
    """Return value of the workflow, as JSON."""
    error: str = ""
    """Reason why the workflow failed."""
    budget_usd: float | None = None
    """Total cost limit of the workflow's agents, in US dollars; None: no limit of its own."""


StepKind = Literal["agent", "step", "ask", "now", "sleep", "workflow"]


class WorkflowNoted(Value):
    """Record of a workflow's journal."""

    v: int = 1
    at: float
    t: Literal["began", "ended", "failed", "dropped"]
    """Kind of the record. `dropped`: earlier records of this step no longer count, and it runs again."""
    step: str
    """Id of the step: its place in the workflow, such as `map#1[3]/agent#1`."""
    kind: StepKind
    digest: str = ""
    """sha256 (hex) of the content of the step. A resumed workflow has to request the same."""
    label: str = ""
    """Short label for users."""
    value: Any = None
    """With `ended`: the result as JSON; with `failed`: `outcome`, `text`, `exit_code`."""
    error: str = ""
    agent: str = ""
    """Agent that did the work."""
    again: bool = False
    """True if the step may run again after it was cut off."""
