"""Values that stages share: facts, edits with a reason, and the keys of failed summaries. Pure.

The facts are those that stages may use besides view, budget and parameters. The keys are in `Situation.tried`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from callboard.core.context.cache.rereads import RemovedContent
from callboard.core.context.cache.tracker import CacheState, EditCycle
from callboard.types.agent_spec import ModelLimits
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, OwnStage, Spared, StateBlock, SummaryWanted

REGION_STAGE = "summarize_regions"
"""Stage that summarizes single regions. Its failures are recorded for each region."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts at the time of the call of a stage."""

    now: float
    """Time in Unix seconds."""
    folder: str
    """Folder for the agent's large results: `tool-results/<agent>`."""
    transcript: str = ""
    """File for the transcript, if one is written at this position of the journal."""
    tried: frozenset[tuple[str, int]] = frozenset()
    """(stage, revision) pairs that had no effect or failed."""
    summaries_failed: int = 0
    """Failed summaries in a row in this turn."""
    state: StateBlock | None = None
    """State block that `truncate_oldest` renders; None: the block in the view is kept."""
    limits: ModelLimits = ModelLimits()
    """Window and prices of the model in use."""
    small: ModelLimits | None = None
    """Window and prices of the model that makes summaries, if it is a different one."""
    thinking: int = 0
    """Most tokens that the model in use thinks before an answer."""
    cache: CacheState = CacheState()
    cycle: EditCycle = EditCycle()
    forgotten: RemovedContent = RemovedContent()
    own: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """A person's own stages, by name."""
    batch: str = ""
    """Stage of the newest edit since the newest reply. It may continue below the threshold at which it began."""
    steps: int = 0
    """Model steps of the agent's life so far."""
    spared: Spared = ()
    """Ranges that a person restored: no stage folds them while the view is within the budget."""


def region_key(message: int, last: int) -> str:
    """Return the name of a region among the stages that were tried, by its first and last message."""
    return f"{REGION_STAGE} {message}-{last}"


def failed_at(request: SummaryWanted, revision: int) -> tuple[str, int]:
    """Return the key of a failed summary. It identifies a region by its ends, so that other regions are still tried."""
    return (
        (region_key(request.message, request.last), 0) if request.stage == REGION_STAGE else (request.stage, revision)
    )


def still_failed(tried: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """Return the failures that an edit elsewhere does not change.

    The failures are regions that were tried in this turn and did not become smaller.
    """
    return frozenset(key for key in tried if key[0].startswith(f"{REGION_STAGE} "))


def budget_of(limits: ModelLimits, output_tokens: int, overhead: int, context_limit: int | None) -> int:
    """Return the tokens that the messages may take, at most `context_limit`.

    The budget is the window minus output reserve, system and tools.
    """
    room = max(0, limits.window - output_tokens - overhead)
    return room if context_limit is None else max(0, min(room, context_limit))


class Batch(list[Edit]):
    """Edits that belong together."""

    def __init__(self, edits: Iterable[Edit], reason: str) -> None:
        """Create a batch. `reason`: for a person to read."""
        super().__init__(edits)
        self.why = reason
