"""What a stage may know besides the view, its budget and its parameters. Frozen, and copied from state and facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from callboard.core.context.cache.cycle import Cycle
from callboard.core.context.cache.forgotten import Forgotten
from callboard.core.context.cache.state import CacheState
from callboard.core.context.view.spare import Spared
from callboard.words.context import StateBlock
from callboard.words.specs import ModelLimits

OwnStage = Callable[..., object]
"""A person's own stage: see `own`."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The moment at which a stage is asked."""

    now: float
    """Unix seconds."""
    folder: str
    """Where the agent's large results are written: `tool-results/<agent>`."""
    transcript: str = ""
    """The file that would hold the transcript, if one is written at this position of the journal."""
    tried: frozenset[tuple[str, int]] = frozenset()
    """(stage, revision) that brought nothing, or failed."""
    summaries_failed: int = 0
    """Failed summaries in a row in this turn."""
    state: StateBlock | None = None
    """Rendered by `truncate_oldest`; None: what stands in the view is kept."""
    limits: ModelLimits = ModelLimits()
    """Window and prices of the model in use."""
    small: ModelLimits | None = None
    """Those of the model that summarises, if it is another."""
    cache: CacheState = CacheState()
    cycle: Cycle = Cycle()
    forgotten: Forgotten = Forgotten()
    own: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """A person's own stages, by name."""
    batch: str = ""
    """Stage of the newest edit since the newest reply: it may go on below the threshold at which it began."""
    steps: int = 0
    """Model steps of the agent's life so far."""
    spared: Spared = ()
    """What a person took back: no stage folds it while the view is within the budget."""
