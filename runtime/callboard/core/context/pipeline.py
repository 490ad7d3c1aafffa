"""Which stage to ask now: the pipeline is a list of stages, cheap before dear. Pure.

`react` and `truncate_oldest` stand behind every pipeline. It refuses names and parameters that it does not know, and to
have a summary made while large results that the model has not seen could go to files instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from callboard.core.context.situation import Situation
from callboard.core.context.stages.batch import Batch
from callboard.core.context.stages.last_resort import newest_alone
from callboard.core.context.stages.own import Refused, ask_own, is_own
from callboard.core.context.stages.summarizing import asked, summary_size
from callboard.core.context.stages.table import BEHIND, CHOICES, DEFAULTS, LISTED, STAGES, SUMMARIES, Found
from callboard.core.context.summary.folding import split, tail_start
from callboard.core.context.view.conversation import Conversation, edited, held
from callboard.core.context.view.spare import is_spared
from callboard.words.context import Edit, SummaryWanted
from callboard.words.specs import ModelLimits, StageSpec

BREAKER = 3
"""Failed summaries in a row after which no more are asked for in the turn."""

_ENOUGH = 70
"""Per cent of the view (or of the budget, if that is less) that a refused view is brought down to, where it can be."""
_FROM_HERE = frozenset({"force", "alone"})
_PERSIST_EACH = StageSpec(stage="persist_large_results", params={"trigger": "each"})
_IMAGES = StageSpec(stage="drop_old_images")
_OLD_IMAGES = StageSpec(stage="drop_old_images", params={"force": True})
_ALONE = StageSpec(stage="persist_newest", params={"alone": True})
_LAST = StageSpec(stage="persist_newest")
_FORCED = StageSpec(stage="persist_newest", params={"force": True})
_CLEAR_ALL = StageSpec(stage="clear_old_results", params={"keep": 0, "over": 0.0, "at_least": 0.0})


@dataclass(frozen=True, slots=True)
class StageCall:
    """What a stage wants: edits, or a summary that the engine has made; or why nothing is taken of it."""

    stage: str
    edits: tuple[Edit, ...] = ()
    wanted: SummaryWanted | None = None
    transcript: bool = False
    """The transcript must be written to `Situation.transcript` before this is recorded."""
    why: str = ""
    """Why the edits come now; without any: why those of a person's own stage are refused. Then it counts as tried, and
    the person is told."""
    prepares: bool = False
    """It makes room for a stage that is to be asked right after it, before the model is."""


def check_pipeline(specs: Sequence[StageSpec]) -> list[str]:
    """What is wrong with a pipeline, for a person to read; empty when nothing is."""
    return [problem for number, spec in enumerate(specs) for problem in _problems(number, spec)]


def budget_of(limits: ModelLimits, output_tokens: int, overhead: int, context_limit: int | None) -> int:
    """Tokens that the messages may take: the window minus output reserve, system and tools; or `context_limit`."""
    room = max(0, limits.window - output_tokens - overhead)
    return room if context_limit is None else max(0, min(room, context_limit))


def next_stage(
    pipeline: Sequence[StageSpec], conv: Conversation, budget: int, situation: Situation
) -> StageCall | None:
    """The first stage that has something to do. None: the model may be asked (or refuses, and `react_stage` is due).

    A stage is passed over at a revision for which it was tried, and a summary after `BREAKER` failures.
    """
    refused = _newest(_IMAGES, conv, budget, situation)
    if refused is not None:  # what the service would not take at any size
        return refused
    for spec in pipeline:
        found = _asked(spec, conv, budget, situation)
        if isinstance(found, Refused):
            return StageCall(spec.stage, why=found.why)
        if is_spared(found, situation.spared) and held(conv) <= budget:
            continue
        if isinstance(found, SummaryWanted):
            return _summary(found, conv, budget, situation, _ALONE)
        if found:
            return StageCall(spec.stage, edits=tuple(found), why=found.why if isinstance(found, Batch) else "")
    if held(conv) <= budget:
        return None
    return _truncation(conv, budget, situation, force=False) or _newest(_LAST, conv, budget, situation)


def react_stage(conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    """After the service refused the prompt as too long, whatever the thresholds say. None: `ContextOverflow`.

    To be asked again after a call that only `prepares`, and after a summary that failed: then it is done without one.
    """
    found = _ask(StageSpec(stage="react"), conv, budget, situation)
    if isinstance(found, SummaryWanted):
        return _summary(found, conv, budget, situation, _FORCED if newest_alone(conv) * 2 > held(conv) else _ALONE)
    return _without_summary(conv, budget, situation)


def manual_summary(
    conv: Conversation, focus: str, *, in_turn: bool = False, pipeline: Sequence[StageSpec] = ()
) -> SummaryWanted | None:
    """What `/compact [focus]` and the `compact` tool ask for, at any size. None: there is nothing to summarise.

    `in_turn`: a reply at the end of the view is a paused one, and stays. It is made as the pipeline's `summarize_all`.
    """
    stated = [spec.params for spec in pipeline if spec.stage == "summarize_all"]
    given = {**DEFAULTS["summarize_all"], **(stated[0] if stated else {})}
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
        **asked(given, summary_size(folded, int(given["max_tokens"]))),
    )


def _asked(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> Found | Refused:
    """What a stage of the pipeline wants, one of the runtime or a person's own."""
    if not is_own(spec.stage):
        return _ask(spec, conv, budget, situation)
    if (spec.stage, conv.revision) in situation.tried or not conv.messages:
        return None
    return ask_own(situation.own.get(spec.stage), conv, budget, situation, spec.params)


def _ask(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> Found:
    if (spec.stage, conv.revision) in situation.tried:
        return None
    if spec.stage in SUMMARIES and situation.summaries_failed >= BREAKER:
        return None
    return STAGES[spec.stage](conv, budget, situation, spec.params)


def _summary(
    wanted: SummaryWanted, conv: Conversation, budget: int, situation: Situation, newest: StageSpec
) -> StageCall:
    """The summary, unless large results that nobody has seen are to be persisted first; or the newest exchange, where
    it alone is so large (as `newest` judges) that a summary of the rest would not help."""
    for spec in (_PERSIST_EACH, newest):
        first = _newest(spec, conv, budget, situation)
        if first is not None:
            return replace(first, prepares=True)
    return StageCall(wanted.stage, wanted=wanted, transcript=True)


def _truncation(conv: Conversation, budget: int, situation: Situation, *, force: bool) -> StageCall | None:
    found = _ask(_truncate(force=force), conv, budget, situation)
    if not found or isinstance(found, SummaryWanted):
        return None
    return StageCall("truncate_oldest", edits=tuple(found), transcript=True)


def _newest(spec: StageSpec, conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    found = _ask(spec, conv, budget, situation)
    return StageCall(spec.stage, edits=tuple(found)) if found and not isinstance(found, SummaryWanted) else None


def _truncate(*, force: bool) -> StageSpec:
    return StageSpec(stage="truncate_oldest", params={"force": force})


def _without_summary(conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    """Large results, answered results, the oldest exchanges: whatever can go, until a good part of the view is gone."""
    view, edits, stage = conv, list[Edit](), ""
    enough = min(held(conv), budget) * _ENOUGH // 100
    for spec in (_PERSIST_EACH, _CLEAR_ALL, _OLD_IMAGES, _truncate(force=True), _FORCED):
        found = _ask(spec, view, budget, situation)
        if found and not isinstance(found, SummaryWanted) and held(view) > enough:
            view, stage = edited(view, found), spec.stage
            edits += found
    dropped = any(edit.kind == "dropped" for edit in edits)
    return StageCall(stage, edits=tuple(edits), transcript=dropped) if edits else None


def _problems(number: int, spec: StageSpec) -> Iterator[str]:
    where = f"pipeline[{number}]"
    if spec.stage in BEHIND:
        yield f"{where}: `{spec.stage}` stands behind every pipeline and is not listed"
        return
    if is_own(spec.stage):
        return  # its parameters are its own, and whether it is there is seen when it is loaded
    if spec.stage not in DEFAULTS:
        yield f"{where}: no stage is called `{spec.stage}`; there are {', '.join(LISTED)}"
        return
    known = {name: value for name, value in DEFAULTS[spec.stage].items() if name not in _FROM_HERE}
    for name, value in spec.params.items():
        if name not in known:
            yield f"{where}.{name}: `{spec.stage}` has no such parameter; it has {', '.join(known)}"
        elif wrong := _wrong(name, value, known[name]):
            yield f"{where}.{name}: {wrong}, not {value!r}"


def _wrong(name: str, value: Any, default: Any) -> str:
    """What the value of a parameter should be, if it is not."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"must be one of {', '.join(CHOICES[name])}"
    if isinstance(default, str):
        return "" if isinstance(value, str) and value.strip() else "must be a text"
    if isinstance(default, tuple):
        names = cast("list[object]", value) if isinstance(value, list | tuple) else [None]
        return "" if all(isinstance(entry, str) for entry in names) else "must be a list of names"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return "must be a number, 0 or more"
    return "must be a whole number" if isinstance(default, int) and not isinstance(value, int) else ""
