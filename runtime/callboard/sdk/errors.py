"""Every error that the Python API raises, in one tree. `str(error)` states the problem, its place and the remedy.

    CallboardError
    ├── PersonCanAct          you can fix it: by an argument, a setting, a key, an answer, a larger budget
    │   ├── UsageError            arguments that do not exist or do not fit together
    │   │   ├── NotTyped              a function cannot be a tool, an agent or a workflow as written
    │   │   └── SessionClosed         the session is not open
    │   ├── SettingsError         a settings, agent, skill or scenario file is wrong; `where` names file and field
    │   ├── CredentialsMissing    no key for the model service
    │   ├── UnknownModel          a budget in dollars needs the model's price
    │   ├── WorkspaceUnusable     the workspace or a state folder cannot be read or written
    │   ├── SessionHosted         another live process hosts the session; `pid`
    │   ├── SessionTakenOver      a user moved the session to another process; `pid`
    │   ├── AnswerNeeded          no one can answer, or no one answered in time
    │   ├── LimitReached          a budget is used up; `limit`
    │   ├── RunFailed             the result of a failed run was requested; `result`
    │   ├── WrongResult           an agent did not return the requested type; `errors`, `text`
    │   ├── AgentFailed           an agent of a workflow did not finish; `outcome`, `text`
    │   ├── BudgetSpent           a workflow has used its budget; `spent`, `limit` (US dollars)
    │   ├── WorkflowChanged       a resumed workflow requests another step than before; `step`
    │   └── StepUnknown           the process ended during a step, which may have had its effect; `step`
    ├── ModelCanAct           raised by your tool: an error result that the model reads
    │   └── ToolError
    └── NobodyCanAct          stop and keep the files: StoreDamaged, StoreFull, Fenced, ModelUnavailable

Any other exception is a bug in Callboard, or comes from your own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callboard.types.errors import (
    AnswerNeeded,
    CallboardError,
    CredentialsMissing,
    Fenced,
    LimitReached,
    ModelCanAct,
    ModelUnavailable,
    NobodyCanAct,
    PersonCanAct,
    SessionHosted,
    SessionTakenOver,
    SettingsError,
    StoreDamaged,
    StoreFull,
    ToolRefused,
    UnknownModel,
    UsageError,
    WorkspaceUnusable,
)

__all__ = [
    "AgentFailed",
    "AnswerNeeded",
    "BudgetSpent",
    "CallboardError",
    "CredentialsMissing",
    "Fenced",
    "LimitReached",
    "ModelCanAct",
    "ModelUnavailable",
    "NobodyCanAct",
    "NotTyped",
    "PersonCanAct",
    "RunFailed",
    "SessionClosed",
    "SessionHosted",
    "SessionTakenOver",
    "SettingsError",
    "StepUnknown",
    "StoreDamaged",
    "StoreFull",
    "ToolError",
    "UnknownModel",
    "UsageError",
    "WorkflowChanged",
    "WorkspaceUnusable",
    "WrongResult",
]


class NotTyped(UsageError):
    """A function cannot be a tool, an agent or a workflow as written. The message names the parameter."""


class SessionClosed(UsageError):
    """The session is not open: use it inside `async with Session(...) as session:`."""


class ToolError(ToolRefused):
    """Raise this in a tool to return its text as an error result to the model. No traceback is logged."""


class RunFailed(PersonCanAct):
    """A run failed. `result` is its `Result`."""

    def __init__(self, what: str, result: Any) -> None:
        super().__init__(what)
        self.result: Any = result


class WrongResult(PersonCanAct):
    """An agent did not return a result of the requested type within the allowed attempts.

    `errors`: the error of each attempt, as text. `text`: the agent's last answer.
    """

    def __init__(self, what: str, errors: Sequence[str], text: str) -> None:
        super().__init__(what)
        self.errors = tuple(errors)
        self.text = text


class AgentFailed(PersonCanAct):
    """An agent of a workflow ended before it finished.

    `outcome`: `failed`, `limit`, `stopped` or `blocked`. `text`: its last text. `exit_code`: as of `callboard run`.
    """

    def __init__(self, what: str, outcome: str, text: str, *, exit_code: int = 1) -> None:
        super().__init__(what)
        self.outcome = outcome
        self.text = text
        self.exit_code = exit_code


class BudgetSpent(PersonCanAct):
    """A workflow has used its budget (`spent`, `limit`: US dollars).

    Finished steps are kept: resume it with a larger budget.
    """

    exit_code = 5

    def __init__(self, what: str, spent: float, limit: float) -> None:
        super().__init__(what)
        self.spent = spent
        self.limit = limit


class WorkflowChanged(PersonCanAct):
    """A resumed workflow requested another step than in its first run, because its code or its arguments changed.

    `step` is the id of the step.
    """

    exit_code = 3

    def __init__(self, what: str, step: str) -> None:
        super().__init__(what)
        self.step = step


class StepUnknown(PersonCanAct):
    """The process ended during a step, so its effect is unknown.

    The step never runs again unless you allow it. `step` is the id of the step.
    """

    exit_code = 3

    def __init__(self, what: str, step: str) -> None:
        super().__init__(what)
        self.step = step
