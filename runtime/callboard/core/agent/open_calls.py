"""Tool calls of the newest reply, as an immutable sequence that answers what a step asks without a search. Pure.

A lead may have an open call for each of a thousand subagents, and decides several times for each of them. A search
through all calls at each decision would make a fan-out quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Grant, Json, ToolCall

CallStage = Literal["proposed", "asking", "allowed", "started", "finished", "settled"]


@dataclass(frozen=True)
class CallState:
    """One tool call of the newest reply, until its result is merged."""

    call: ToolCall
    stage: CallStage = "proposed"
    content: tuple[Json, ...] = ()
    is_error: bool = False
    effect: str = ""
    marks: Json = field(default_factory=dict[str, object])
    request_id: str | None = None
    digest: str = ""
    """Digest of the content of its request. An approval of any other content is void."""
    expires_at: float | None = None
    context: tuple[str, ...] = ()
    """Texts of hooks to add to the result."""
    ends_turn: bool = False
    denied: bool = False
    grants: tuple[Grant, ...] = ()
    """Paths outside the agent's bounds that the call may use once it is allowed."""
    data: Json = field(default_factory=dict[str, object])
    """The structured result, for hooks."""
    started_at: float = 0.0
    finished_at: float = 0.0

    @property
    def open(self) -> bool:
        """Return True if the call has no result yet."""
        return self.stage not in ("finished", "settled")

    @property
    def can_move(self) -> bool:
        """Return True if the call waits, or will wait, for what a person may move to the background."""
        return self.stage in ("allowed", "started") and self.call.name in ("bash", "task")


class OpenCalls(tuple[CallState, ...]):
    """Calls in the order of the reply. Create with `OpenCalls.of`, then change one at a time with `with_change`."""

    stages: Set[CallStage] = frozenset()
    """Stages of the calls."""
    names: frozenset[str] = frozenset()
    """Tools of the calls."""
    requests: tuple[str, ...] = ()
    """Ids of the requests for permission of the calls, in the order of the calls."""
    _places: Mapping[str, int] = MappingProxyType({})
    """Place of each call, by its id. Shared by all changes of the same calls, as the order never changes."""
    _counts: Mapping[CallStage, int] = MappingProxyType({})
    """Number of calls at each stage that has any."""

    @classmethod
    def of(cls, calls: Iterable[CallState]) -> OpenCalls:
        """Create the sequence of these calls."""
        made = cls(calls)
        counts: dict[CallStage, int] = {}
        places: dict[str, int] = {}
        for place, item in enumerate(made):
            counts[item.stage] = counts.get(item.stage, 0) + 1
            places.setdefault(item.call.id, place)
        made.stages = frozenset(counts)
        made.names = frozenset([item.call.name for item in made])
        made.requests = _requests(made)
        made._places = places
        made._counts = counts
        return made

    def find(self, call_id: str) -> CallState | None:
        """Return a call by its id, or None if it is not of this reply."""
        place = self._places.get(call_id)
        return None if place is None else self[place]

    def at(self, stage: CallStage) -> Sequence[CallState]:
        """Return the calls at a stage, in order."""
        return [item for item in self if item.stage == stage] if stage in self.stages else ()

    def with_change(self, call_id: str, change: Callable[[CallState], CallState]) -> OpenCalls:
        """Return the calls with one of them changed: its id and its tool stay the same. An unknown id changes nothing.

        The other calls are not copied: a lead may have a running call for each of a thousand subagents.
        """
        place = self._places.get(call_id)
        if place is None:
            return self
        before = self[place]
        now = change(before)
        made = OpenCalls((*self[:place], now, *self[place + 1 :]) if len(self) > 1 else (now,))
        made.names = self.names
        made.requests = self.requests if before.request_id == now.request_id else _requests(made)
        made._places = self._places
        if before.stage == now.stage:
            made.stages = self.stages
            made._counts = self._counts
            return made
        if len(made) == 1:
            made.stages = frozenset((now.stage,))
            made._counts = {now.stage: 1}
            return made
        counts = dict(self._counts)
        counts[before.stage] -= 1
        if not counts[before.stage]:
            del counts[before.stage]
        counts[now.stage] = counts.get(now.stage, 0) + 1
        made.stages = frozenset(counts)
        made._counts = counts
        return made

    def __repr__(self) -> str:
        return f"OpenCalls.of({tuple(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Serialise as a list of calls in a snapshot."""
        plain = handler(tuple[CallState, ...])
        return core_schema.no_info_after_validator_function(
            OpenCalls.of,
            plain,
            serialization=core_schema.plain_serializer_function_ser_schema(tuple, return_schema=plain),
        )


def _requests(calls: Iterable[CallState]) -> tuple[str, ...]:
    return tuple([item.request_id for item in calls if item.request_id])
