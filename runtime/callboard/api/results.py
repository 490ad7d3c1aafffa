"""What a run came to, and how an answer becomes a typed value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from callboard.api.errors import RunFailed
from callboard.api.signatures import adapter_of, faults_of, schema_of
from callboard.ending import AgentSummary, End
from callboard.words.values import Json, Usage

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """The end of a run."""

    text: str
    """The lead's last words."""
    value: T_co
    """The typed result, where one was asked for; else None."""
    exit_code: int
    """0: it ended well; else as the command line has it (docs/cli.md)."""
    why: str
    """What went wrong; empty when nothing did."""
    usage: Usage
    """What all agents of the session have used: tokens, and US dollars in `cost_usd`."""
    agents: tuple[AgentSummary, ...]
    session: str
    """The session's id, by which it can be resumed."""

    @property
    def ok(self) -> bool:
        """It ended well."""
        return self.exit_code == 0

    def check(self) -> Result[T_co]:
        """This result, if it ended well. Raises `RunFailed`, which carries it, if not."""
        if not self.ok:
            raise RunFailed(f"the run ended with exit code {self.exit_code}: {self.why}", self)
        return self


def result_of(end: End, session: str, value: T) -> Result[T]:
    """The end of a run with its typed value."""
    return Result(end.text, value, end.exit_code, end.why, end.usage, tuple(end.agents), session)


class Wanted(Generic[T]):
    """A typed result that an agent is asked for: the words for it, and the reading of its answer."""

    def __init__(self, kind: Any) -> None:
        """`kind`: a pydantic model, dataclass, `TypedDict`, or any type with a JSON schema. Raises `NotTyped`."""
        self.adapter: TypeAdapter[T] = adapter_of(kind, "result")
        self.schema: Json = schema_of(self.adapter, "result")

    def words(self) -> str:
        """What the agent is told beside its prompt."""
        return (
            "When you are done, answer with JSON alone, without a fence and without any word round it. It has to fit "
            f"this JSON schema:\n{json.dumps(self.schema)}"
        )

    def read(self, text: str) -> tuple[T | None, str]:
        """The value that an answer holds, and what is wrong with it; empty when it fits."""
        try:
            plain: Any = json.loads(_bare(text))
        except (ValueError, RecursionError) as error:
            return None, f"it is not JSON: {error}"
        try:
            return self.adapter.validate_python(plain), ""
        except ValidationError as error:
            return None, "; ".join(faults_of(error))


def again(wrong: str) -> str:
    """What an agent is told whose answer does not fit."""
    return f"Your answer does not fit: {wrong}. Answer again, with JSON of the schema alone."


def _bare(text: str) -> str:
    """The text without a fence round it, and without words before or behind one."""
    lines = text.strip().splitlines()
    fences = [place for place, line in enumerate(lines) if line.strip().startswith("```")]
    if len(fences) == 2 and fences[1] > fences[0] + 1:
        return "\n".join(lines[fences[0] + 1 : fences[1]])
    return text.strip()
