"""Operations: work of an agent that is in progress in this process, in addition to its journal. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

OperationKind = Literal[
    "model",
    "summary",
    "count",
    "prompt",
    "reminders",
    "skills",
    "move",
    "start-hooks",
    "prompt-hooks",
    "batch-hooks",
    "stop-hooks",
    "compact-hooks",
    "judge",
    "tool",
    "settle",
    "answer",
    "bg",
    "end",
]


class Operation(NamedTuple):
    """One operation. An agent has at most one of a kind for each subject at a time."""

    kind: OperationKind
    subject: str = ""
    """Id of the call (`judge`, `tool`, `settle`), the request (`answer`), or the background command, which is watched
    (`bg`) or being ended (`end`)."""

    @property
    def key(self) -> str:
        """Return the operation as text, for logs and for records of stalls."""
        return f"{self.kind}:{self.subject}" if self.subject else self.kind
