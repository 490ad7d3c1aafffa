"""What an agent, or a whole session, used: the numbers that logs, listings and JSON results carry. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from callboard.core.context.cache.health import cache_hit_rate
from callboard.core.state import AgentState

_KINDS = ("input", "write", "read", "output")


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
    usage = state.usage
    return Metrics(
        cache_hit_rate=round(cache_hit_rate(usage), 4),
        compact_count=dict(sorted(state.compacted.items())),
        token_usage={
            "input": usage.input_tokens,
            "write": usage.cache_creation_input_tokens,
            "read": usage.cache_read_input_tokens,
            "output": usage.output_tokens,
        },
        reread_count=state.forgotten.rereads,
    )


def together(metrics: Iterable[Metrics]) -> Metrics:
    """Those of several agents: the share is of all their input, not a mean of shares."""
    compacted, used, rereads = Counter[str](), Counter[str](), 0
    for one in metrics:
        compacted.update(one.compact_count)
        used.update(one.token_usage)
        rereads += one.reread_count
    whole = used["input"] + used["write"] + used["read"]
    return Metrics(
        cache_hit_rate=round(used["read"] / whole, 4) if whole else 0.0,
        compact_count=dict(sorted(compacted.items())),
        token_usage={kind: used[kind] for kind in _KINDS},
        reread_count=rereads,
    )
