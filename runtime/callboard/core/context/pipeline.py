"""Choice of the stage to run now. The pipeline is a list of stages, cheap before expensive. Pure.

`react` and `truncate_oldest` follow every pipeline. Unknown names and parameters are refused. No summary is made while
large results that the model has not seen could be written to files instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.custom import StageRefusal, ask_own, is_own
from callboard.core.context.stages.edits import Batch
from callboard.core.context.stages.last_resort import newest_alone
from callboard.core.context.stages.registry import DEFAULTS, STAGES, SUMMARIES, Found
from callboard.core.context.stages.summarize_all import request_fields, summary_size
from callboard.core.context.summary.folding import split, tail_start
from callboard.core.context.view.conversation import Conversation, edited, held
from callboard.core.context.view.undo import is_spared
from callboard.types.agent_spec import StageSpec
from callboard.types.messages import Edit, SummaryWanted

BREAKER = 3
"""Failed summaries in a row after which no more are requested in the turn."""

_ENOUGH = 70
"""Percentage of the view (or of the budget, if that is less) to which a refused view is reduced if possible."""
_PERSIST_EACH = StageSpec(stage="persist_large_results", params={"trigger": "each"})
_IMAGES = StageSpec(stage="drop_old_images")
_OLD_IMAGES = StageSpec(stage="drop_old_images", params={"force": True})
_ALONE = StageSpec(stage="persist_newest", params={"alone": True})
_LAST = StageSpec(stage="persist_newest")
_FORCED = StageSpec(stage="persist_newest", params={"force": True})
_CLEAR_ALL = StageSpec(stage="clear_old_results", params={"keep": 0, "over": 0.0, "at_least": 0.0})


@dataclass(frozen=True, slots=True)
class StageCall:
    """Request of a stage: edits, or a summary that the engine makes; or the reason why the stage's result is
    refused."""

    stage: str
    edits: tuple[Edit, ...] = ()
    summary: SummaryWanted | None = None
    transcript: bool = False
    """True if the transcript must be written to `Situation.transcript` before this is recorded."""
    why: str = ""
    """Reason for the edits. Without edits: the reason why those of a person's own stage are refused; the stage then
    counts as tried, and the person gets a message."""
    prepares: bool = False
    """True if this makes room for a stage that runs right afterwards, before the model call."""


def next_stage(
    pipeline: Sequence[StageSpec], conv: Conversation, budget: int, situation: Situation
) -> StageCall | None:
    """Return the first stage that has something to do. None: the model may be called (or it refuses, and `react_stage`
    is due).

    A stage is skipped at a revision for which it was tried, and a summary after `BREAKER` failures.
    """
    refused = _newest(_IMAGES, conv, budget, situation)
    if refused is not None:  # what the service would not take at any size
        return refused
    for spec in pipeline:
        result = _stage_result(spec, conv, budget, situation)
        if isinstance(result, StageRefusal):
            return StageCall(spec.stage, why=result.reason)
        if is_spared(result, situation.spared) and held(conv) <= budget:
            continue
        if isinstance(result, SummaryWanted):
            return _summary(result, conv, budget, situation, newest=_ALONE)
        if result:
            return StageCall(spec.stage, edits=tuple(result), why=result.why if isinstance(result, Batch) else "")
    if held(conv) <= budget:
        return None
    return _truncation(conv, budget, situation, force=False) or _newest(_LAST, conv, budget, situation)


def react_stage(conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    """Return the stage to run after the service refused the prompt as too long, regardless of thresholds. None:
    `ContextOverflow`.

    Called again after a call that only `prepares`, and after a failed summary, which is then skipped.
    """
    result = _ask(StageSpec(stage="react"), conv, budget, situation)
    if isinstance(result, SummaryWanted):
        return _summary(
            result, conv, budget, situation, newest=_FORCED if newest_alone(conv) * 2 > held(conv) else _ALONE
        )
    return _without_summary(conv, budget, situation)


def manual_summary(
    conv: Conversation, focus: str, *, in_turn: bool = False, pipeline: Sequence[StageSpec] = ()
) -> SummaryWanted | None:
    """Return the summary that `/compact [focus]` and the `compact` tool request, at any size. None: nothing can be
    summarised.

    `in_turn`: a reply at the end of the view is paused, and stays. Uses the settings of the pipeline's `summarize_all`.
    """
    stated = [spec.params for spec in pipeline if spec.stage == "summarize_all"]
    settings = {**DEFAULTS["summarize_all"], **(stated[0] if stated else {})}
    upto = tail_start(conv.messages, between_turns=not in_turn)
    folded = split(conv.messages, upto, conv.tokens).folded_tokens
    if not folded:
        return None
    return SummaryWanted(
        stage="summarize_all",
        trigger="manual",
        message=conv.messages[0].id,
        last=conv.messages[upto - 1].id,
        focus=focus,
        **request_fields(settings, summary_size(folded, int(settings["max_tokens"]))),
    )


def _stage_result(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> Found | StageRefusal:
    """Run a stage of the pipeline, built-in or a person's own. Return its result."""
    if not is_own(spec.stage):
        return _ask(spec, conv, budget, situation)
    if (spec.stage, conv.revision) in situation.tried or not conv.messages:
        return None
    return ask_own(situation.own.get(spec.stage), conv, budget, situation, params=spec.params)


def _ask(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> Found:
    if (spec.stage, conv.revision) in situation.tried:
        return None
    if spec.stage in SUMMARIES and situation.summaries_failed >= BREAKER:
        return None
    return STAGES[spec.stage](conv, budget, situation, spec.params)


def _summary(
    request: SummaryWanted, conv: Conversation, budget: int, situation: Situation, *, newest: StageSpec
) -> StageCall:
    """Return the summary request. If large results that the model has not seen can be persisted first, return that
    instead. If the newest exchange alone is so large (as `newest` judges) that a summary of the rest would not help,
    return a reduction of that exchange."""
    for spec in (_PERSIST_EACH, newest):
        first = _newest(spec, conv, budget, situation)
        if first is not None:
            return replace(first, prepares=True)
    return StageCall(request.stage, summary=request, transcript=True)


def _truncation(conv: Conversation, budget: int, situation: Situation, *, force: bool) -> StageCall | None:
    result = _ask(_truncate(force=force), conv, budget, situation)
    if not result or isinstance(result, SummaryWanted):
        return None
    return StageCall("truncate_oldest", edits=tuple(result), transcript=True)


def _newest(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    result = _ask(spec, conv, budget, situation)
    return StageCall(spec.stage, edits=tuple(result)) if result and not isinstance(result, SummaryWanted) else None


def _truncate(*, force: bool) -> StageSpec:
    return StageSpec(stage="truncate_oldest", params={"force": force})


def _without_summary(conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    """Remove large results, answered results and the oldest exchanges, until a good part of the view is gone."""
    view = conv
    edits = list[Edit]()
    stage = ""
    enough = min(held(conv), budget) * _ENOUGH // 100
    for spec in (_PERSIST_EACH, _CLEAR_ALL, _OLD_IMAGES, _truncate(force=True), _FORCED):
        result = _ask(spec, view, budget, situation)
        if result and not isinstance(result, SummaryWanted) and held(view) > enough:
            view = edited(view, result)
            stage = spec.stage
            edits += result
    dropped = any(edit.kind == "dropped" for edit in edits)
    return StageCall(stage, edits=tuple(edits), transcript=dropped) if edits else None
