"""Result of a run, and the conversion of an answer into a typed value."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from callboard.core.team.open_work import OpenWork
from callboard.core.utf8 import strict_json
from callboard.core.validation import faults_of
from callboard.sdk.errors import RunFailed
from callboard.sdk.signatures import NOT_FINITE, adapter_of, is_finite, schema_of
from callboard.sessions.result import AgentSummary, RunEnd
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Usage

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """Result of a run."""

    text: str
    """The lead's final text."""
    value: T_co
    """The typed result, if one was requested; otherwise None."""
    exit_code: int
    """0 if the run ended well; otherwise the exit code of the command line (docs/cli.md)."""
    why: str
    """Reason why the run failed; empty if it did not."""
    usage: Usage
    """Usage of all agents of the session: tokens, and US dollars in `cost_usd`."""
    agents: tuple[AgentSummary, ...]
    session: str
    """Id of the session. Use it to resume the session."""
    open: OpenWork = OpenWork()
    """Open work: tasks, requests, agents, worktrees with unmerged work, denied calls."""

    @property
    def ok(self) -> bool:
        """Return True if the run ended well."""
        return self.exit_code == 0

    def check(self) -> Result[T_co]:
        """Return this result if the run ended well. Otherwise raise `RunFailed` with the result."""
        if not self.ok:
            raise RunFailed(f"the run ended with exit code {self.exit_code}: {self.why}", self)
        return self


def result_of(end: RunEnd, session: str, value: T) -> Result[T]:
    """Convert the end of a run, with its typed value, into a result."""
    end = end.of_run()
    return Result(end.text, value, end.exit_code, end.reason, end.usage, tuple(end.agents), session, end.open)


class TypedResult(Generic[T]):
    """Requested type of a result, with the instructions for the agent and the parser of its answer."""

    def __init__(self, kind: Any) -> None:
        """Prepare the schema of `kind`: a pydantic model, dataclass, `TypedDict`, or any type with a JSON schema.

        Raises `NotTyped`.
        """
        self.adapter: TypeAdapter[T] = adapter_of(kind, "result")
        self.schema: Json = schema_of(self.adapter, "result")

    def words(self) -> str:
        """Return the instructions to add to the agent's prompt."""
        return (
            "When you are done, answer with JSON alone, without a fence and without any text around it. It has to fit "
            f"this JSON schema:\n{json.dumps(self.schema)}"
        )

    def read(self, text: str) -> tuple[T | None, str]:
        """Parse an answer. Return its value, and the error, which is empty if the answer is valid."""
        try:
            plain: Any = strict_json(_without_fence(text))
        except (ValueError, RecursionError) as error:
            return None, f"it is not JSON: {error}"
        try:
            value = self.adapter.validate_python(plain)
        except ValidationError as error:
            return None, "; ".join(faults_of(error))
        return (value, "") if is_finite(value) else (None, NOT_FINITE)


def retry_prompt(wrong: str) -> str:
    """Return the prompt for an agent whose answer does not fit its schema."""
    return f"Your answer does not fit: {wrong}. Answer again, with JSON of the schema alone."


def _without_fence(text: str) -> str:
    """Return the text without a code fence and without text before or after the fence."""
    lines = text.strip().splitlines()
    fences = [place for place, line in enumerate(lines) if line.strip().startswith("```")]
    if len(fences) == 2 and fences[1] > fences[0] + 1:
        return "\n".join(lines[fences[0] + 1 : fences[1]])
    return text.strip()
