"""A scenario: which agent answers what, in which order. Frozen values; `scenario_file` reads them from YAML.

A scenario is played from the top for each agent of each session: the first step not yet used up whose guard fits the
request is the reply. A guarded step that does not fit is passed over and stays; a step without a guard always fits.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from callboard.adapters.rehearsal.api import CATALOGUE, ApiError, ModelSpec
from callboard.adapters.rehearsal.rates import Limits
from callboard.adapters.rehearsal.replies import Reply, Request

Answer = Callable[[Request], "Reply | ApiError | Awaitable[Reply | ApiError]"]
"""A model in code. It may wait; what it raises is a bug and reaches the client as a 500."""

FOREVER = None


@dataclass(frozen=True, slots=True)
class Guard:
    """When a step fits. All that is set must hold; texts are searched with regular expressions."""

    contains: tuple[re.Pattern[str], ...] = ()
    """Found in the newest user message (its tool results included)."""
    not_contains: tuple[re.Pattern[str], ...] = ()
    anywhere: tuple[re.Pattern[str], ...] = ()
    """Found in the system prompt or anywhere in the conversation."""
    result_of: tuple[str, ...] = ()
    """The newest user message holds a result of each of these tools."""
    model: str | None = None
    """A glob over the model's id."""

    def fits(self, request: Request) -> bool:
        """Whether the request is one that the step is for."""
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
    """A value taken from the newest user message: the pattern's first group, or all it matched."""

    name: str
    pattern: re.Pattern[str]
    nth: int = 1
    """Which match, from 1."""

    def value(self, request: Request) -> str | None:
        """The captured text, or None when there is no such match."""
        matches = list(self.pattern.finditer(request.newest_text))
        if len(matches) < self.nth:
            return None
        match = matches[self.nth - 1]
        return match.group(1) if self.pattern.groups else match.group(0)


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of an agent, and when it is given."""

    reply: Reply
    guard: Guard = field(default_factory=Guard)
    captures: tuple[Capture, ...] = ()
    repeat: int | None = 1
    """How often it is given; None: for ever."""
    otherwise: bool = False
    """Given when no other step fits, as often as needed."""
    place: str = ""
    """Where it stands in the file."""


Part = tuple[tuple[str, tuple[Step, ...]], ...]
"""Steps by agent: a name, a glob, or `role:NAME`, as written."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a rehearsed model will say."""

    name: str
    models: Mapping[str, ModelSpec] = field(default_factory=lambda: dict(CATALOGUE))
    latency_ms: float = 0.0
    agents: Part = ()
    summaries: Part = ()
    """Steps for calls whose purpose is a summary; an agent without any gets a summary made for it."""
    rate: Limits = field(default_factory=Limits)
    """What a client may use in a minute before it meets 429s."""
    end: Step | None = None
    """Given to whoever has no step left; None: an error that says so."""
    answer: Answer | None = None
    """Answers every call instead of steps."""

    @property
    def default_model(self) -> str:
        """The first model: what a person gets who names none."""
        return next(iter(self.models))

    @classmethod
    def from_callable(
        cls, answer: Answer, *, models: Mapping[str, ModelSpec] | None = None, latency_ms: float = 0.0
    ) -> Scenario:
        """A model in code, for tests and benches."""
        name = getattr(answer, "__name__", "callable")
        return cls(name, models or dict(CATALOGUE), latency_ms, answer=answer)

    def steps(self, request: Request) -> tuple[Step, ...] | None:
        """The steps of whoever asks: by exact name, else the first glob or role that fits; None without any."""
        part = self.summaries if request.purpose == "summary" else self.agents
        exact = next((steps for key, steps in part if key == request.agent), None)
        if exact is not None:
            return exact
        role = f"role:{request.role}"
        return next((steps for key, steps in part if key == role or fnmatchcase(request.agent, key)), None)
