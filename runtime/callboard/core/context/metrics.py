"""What an agent, or a whole session, used: the numbers that logs, listings and JSON results carry. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from callboard.core.context.health import cache_hit_rate
from callboard.core.state import AgentState
from callboard.words.values import Usage


@dataclass(frozen=True, slots=True)
class Metrics:
    """Since the first record of an agent, or of all agents of a session."""

    cache_hit_rate: float = 0.0
    """The share (0..1) of all input tokens that the service read from its prompt cache."""
    compact_count: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often a stage reduced the view, by `stage/trigger`; undoes are not counted."""
    token_usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`input` (neither written nor read), `write`, `read`, `output`."""
    reread_count: int = 0
    """Results that were asked for again after an edit had taken them away."""


def metrics_of(state: AgentState) -> Metrics:
    """One agent's."""
    return _metrics(state.usage, state.compacted, _rereads(state))


def metrics_of_all(states: Iterable[AgentState]) -> Metrics:
    """Those of several agents together: shares are of all their input, not means of shares."""
    usage, compacted, rereads = Usage(), Counter[str](), 0
    for state in states:
        usage = usage.plus(state.usage)
        compacted.update(state.compacted)
        rereads += _rereads(state)
    return _metrics(usage, compacted, rereads)


def _metrics(usage: Usage, compacted: Mapping[str, int], rereads: int) -> Metrics:
    return Metrics(
        cache_hit_rate=round(cache_hit_rate(usage), 4),
        compact_count=dict(sorted(compacted.items())),
        token_usage={
            "input": usage.input_tokens,
            "write": usage.cache_creation_input_tokens,
            "read": usage.cache_read_input_tokens,
            "output": usage.output_tokens,
        },
        reread_count=rereads,
    )


def _rereads(state: AgentState) -> int:
    return 0
