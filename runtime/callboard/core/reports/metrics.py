"""Usage of an agent or a whole session: the numbers in logs, listings and JSON results. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from callboard.core.agent.state import AgentState
from callboard.core.context.cache.health import cache_hit_rate
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Usage

_KINDS = ("input", "write", "read", "output")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Totals since the first record of an agent, or of all agents of a session."""

    cache_hit_rate: float = 0.0
    """Share (0..1) of all input tokens that the service read from its prompt cache."""
    compact_count: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of times a stage reduced the view, by `stage/trigger`; undoes are not counted."""
    token_usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`input` (neither written nor read), `write`, `read`, `output`."""
    reread_count: int = 0
    """Number of results that were requested again after an edit had removed them."""


def metrics_of(state: AgentState) -> Metrics:
    """Return the metrics of an agent whose journal was read."""
    return metrics_from(state.budget.usage, state.compaction.by_stage, state.costs.forgotten.rereads)


def metrics_from(usage: Usage, compacted: Mapping[str, int], rereads: int) -> Metrics:
    """Return the metrics of an agent, from its usage, its compactions by `stage/trigger` and its re-reads."""
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


def together(metrics: Iterable[Metrics]) -> Metrics:
    """Return the combined metrics of several agents: the share refers to all their input, not to the mean of shares."""
    compacted = Counter[str]()
    used = Counter[str]()
    rereads = 0
    for entry in metrics:
        compacted.update(entry.compact_count)
        used.update(entry.token_usage)
        rereads += entry.reread_count
    whole = used["input"] + used["write"] + used["read"]
    return Metrics(
        cache_hit_rate=round(used["read"] / whole, 4) if whole else 0.0,
        compact_count=dict(sorted(compacted.items())),
        token_usage={kind: used[kind] for kind in _KINDS},
        reread_count=rereads,
    )
