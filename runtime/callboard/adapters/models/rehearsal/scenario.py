"""Scenario: the replies of each agent, in order. Frozen values; `scenario_file` reads them from YAML.

A scenario is played from the top for each agent of each session. The reply is the first unused step whose guard fits
the request. A guarded step that does not fit is skipped and remains available; a step without a guard always fits.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase

from callboard.adapters.models.rehearsal.api import CATALOGUE, ApiError, ModelSpec
from callboard.adapters.models.rehearsal.rates import KeyLimits
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest
from callboard.types.lazy_dataclass import dataclass

Answer = Callable[[SimulatedRequest], "SimulatedReply | ApiError | Awaitable[SimulatedReply | ApiError]"]
"""A model as code. It may wait. Any exception is a bug and reaches the client as a 500."""

FOREVER = None


@dataclass(frozen=True, slots=True)
class StepCondition:
    """Condition of a step. All fields that are set must match. Texts are searched with regular expressions."""

    contains: tuple[re.Pattern[str], ...] = ()
    """Patterns that the newest user message (including its tool results) must contain."""
    not_contains: tuple[re.Pattern[str], ...] = ()
    anywhere: tuple[re.Pattern[str], ...] = ()
    """Patterns that the system prompt or the conversation must contain."""
    result_of: tuple[str, ...] = ()
    """Tools of which the newest user message must contain a result."""
    model: str | None = None
    """Glob that the model's id must match."""

    def fits(self, request: SimulatedRequest) -> bool:
        """Return True if the step fits the request."""
        if self.model is not None and not fnmatchcase(request.model, self.model):
            return False
        if self.result_of and not set(self.result_of) <= {result.tool for result in request.results}:
            return False
        newest = request.newest_text if self.contains or self.not_contains else ""
        if not all(pattern.search(newest) for pattern in self.contains):
            return False
        if any(pattern.search(newest) for pattern in self.not_contains):
            return False
        return not self.anywhere or all(pattern.search(request.all_text) for pattern in self.anywhere)


@dataclass(frozen=True, slots=True)
class Capture:
    """Value from the newest user message: the pattern's first group, or the whole match."""

    name: str
    pattern: re.Pattern[str]
    nth: int = 1
    """Number of the match, from 1."""

    def value(self, request: SimulatedRequest) -> str | None:
        """Return the captured text; None without such a match."""
        matches = list(self.pattern.finditer(request.newest_text))
        if len(matches) < self.nth:
            return None
        match = matches[self.nth - 1]
        return match.group(1) if self.pattern.groups else match.group(0)


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of an agent, and its conditions."""

    reply: SimulatedReply
    guard: StepCondition = field(default_factory=StepCondition)
    captures: tuple[Capture, ...] = ()
    repeat: int | None = 1
    """Number of times that the step is used; None: unlimited."""
    otherwise: bool = False
    """True: used if no other step fits, as often as needed."""
    place: str = ""
    """Place of the step in the file."""


Part = tuple[tuple[str, tuple[Step, ...]], ...]
"""Steps by agent: a name, a glob, or `role:NAME`, as in the file."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All replies of a rehearsed model."""

    name: str
    models: Mapping[str, ModelSpec] = field(default_factory=lambda: dict(CATALOGUE))
    latency_ms: float = 0.0
    agents: Part = ()
    summaries: Part = ()
    """Steps for calls with the purpose of a summary. An agent without any gets a generated summary."""
    rate: KeyLimits = field(default_factory=KeyLimits)
    """Limits of a client per minute, beyond which it gets 429s."""
    end: Step | None = None
    """Reply for an agent without remaining steps; None: an error that says so."""
    answer: Answer | None = None
    """Function that answers every call in place of steps."""

    @property
    def default_model(self) -> str:
        """Return the first model, which is used if the user names none."""
        return next(iter(self.models))

    @classmethod
    def from_callable(
        cls, answer: Answer, *, models: Mapping[str, ModelSpec] | None = None, latency_ms: float = 0.0
    ) -> Scenario:
        """Return a model as code, for tests and benchmarks."""
        name = getattr(answer, "__name__", "callable")
        return cls(name, models or dict(CATALOGUE), latency_ms, answer=answer)

    def steps(self, request: SimulatedRequest) -> tuple[Step, ...] | None:
        """Return the steps of the caller; None if there are none.

        The steps are those of the exact name, else of the first matching glob or role.
        """
        part = self.summaries if request.purpose == "summary" else self.agents
        exact = next((steps for key, steps in part if key == request.agent), None)
        if exact is not None:
            return exact
        role = f"role:{request.role}"
        return next((steps for key, steps in part if key == role or fnmatchcase(request.agent, key)), None)
