"""The context pipeline: its stages by name, its presets, and the choice of the stage to run now. Pure.

A pipeline is a list of stages, cheap before expensive. `react` and `truncate_oldest` follow every pipeline. Unknown
names and parameters are refused. No summary is made while large results that the model has not seen could be written to
files instead.

A stage is a function `(view, budget, situation, params) -> edits | SummaryWanted | None`; None and no edits mean that
the stage does nothing. The budget is the number of tokens for the messages. A stage checks its own threshold. It does
not touch messages that the model has not seen, pins, and blocks that are not compactable. It never returns an edit that
does not make the view smaller.

`PRESETS`: named pipelines, stages with parameters, each of which a custom list can change. `economic` is the default.
The numbers of `progressive`, `micro` and `regional` are those of the systems that made these compositions known, so
that measurements compare like with like. Only the summary after the regions of `regional` is an addition: otherwise
summaries of regions would fill the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from callboard.core.context.stage_input import Batch, Situation
from callboard.core.context.stages.custom import StageRefusal, ask_own, is_own
from callboard.core.context.stages.economic import ECONOMIC, economic
from callboard.core.context.stages.last_resort import IMAGES, NEWEST, drop_old_images, newest_alone, persist_newest
from callboard.core.context.stages.results import CLEAR, PERSIST, clear_old_results, persist_large_results
from callboard.core.context.stages.summarize import (
    REACT,
    REGIONS,
    SUMMARIZE,
    react,
    request_fields,
    summarize_all,
    summarize_regions,
    summary_size,
)
from callboard.core.context.summary.folding import (
    ViewSplit,
    block_of_edit,
    dropped_mark,
    note,
    notes,
    split,
    state_of,
    state_text,
    tail_start,
    text_of,
    tokens_of,
    words_in,
)
from callboard.core.context.view.conversation import Conversation, apply_edits, message_tokens
from callboard.core.context.view.invariants import pins
from callboard.core.context.view.messages import is_result
from callboard.core.context.view.undo import is_spared
from callboard.types.agent_spec import StageSpec
from callboard.types.choices import unknown
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, Placed, SummaryWanted, ViewBlock, ViewMessage
from callboard.types.records import Json

TRUNCATE: Mapping[str, Any] = MappingProxyType({"down_to": 0.7, "force": False})
"""`down_to`: share of the budget. `force` is set by the pipeline: the service has refused the view."""
PRESETS: Mapping[str, tuple[StageSpec, ...]] = MappingProxyType(
    {
        "economic": (
            StageSpec(stage="persist_large_results"),
            StageSpec(stage="economic"),
            StageSpec(stage="summarize_all"),
        ),
        "progressive": (
            StageSpec(stage="persist_large_results"),
            StageSpec(stage="snip_middle"),
            StageSpec(
                stage="clear_old_results",
                params={
                    "keep": 3,
                    "keep_of": "all",
                    "left_alone": 120,
                    "mark": "[Earlier result compacted; run again if needed.]",
                    "over": 0.0,
                    "at_least": 0.0,
                },
            ),
            StageSpec(stage="summarize_all", params={"over_chars": 50_000, "at_least": 0.2, "resummarize": "allow"}),
        ),
        "micro": (
            StageSpec(
                stage="clear_old_results",
                params={
                    "keep": 3,
                    "keep_of": "answered",
                    "preserve_tools": ["read_file"],
                    "left_alone": 100,
                    "mark": "[Previous: used NAME]",
                    "over": 0.0,
                    "at_least": 0.0,
                },
            ),
            StageSpec(stage="summarize_all", params={"over_tokens": 50_000, "at_least": 0.2, "resummarize": "allow"}),
        ),
        "regional": (
            StageSpec(stage="persist_large_results", params={"trigger": "fit", "each": 10_000}),
            StageSpec(stage="summarize_regions", params={"at_least": 0.1}),
            StageSpec(stage="summarize_all", params={"over": 0.9, "at_least": 0.2, "resummarize": "allow"}),
        ),
    }
)
DEFAULT_PIPELINE = PRESETS["economic"]
_FROM_HERE = frozenset({"force", "alone"})


def truncate_oldest(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Drop as many of the oldest exchanges as necessary, and leave a mark.

    Content that survives a summary also survives here.

    Nothing is dropped if that would not bring the view under the budget, unless `force` is true.
    """
    settings = {**TRUNCATE, **params}
    size = message_tokens(view)
    messages = view.messages
    if not messages or (size <= budget and not settings["force"]):
        return None
    # With `force` the service has found the view too long, whatever our estimate of it.
    upto = _truncation_end(messages, size - int(settings["down_to"] * min(size, budget)), budget)
    if not upto:
        return None
    sorted_ = split(messages, upto, budget)
    mark = note(dropped_mark(sorted_.dropped + _turns(messages[:upto], sorted_), situation.transcript))
    state = state_text(situation.state, budget) if situation.state else ""
    blocks = [*sorted_.placed_blocks(), mark, *notes(sorted_, state or state_of(messages[:upto]), "")]
    saved = sum(message.tokens for message in messages[:upto]) - tokens_of(blocks)
    if saved <= 0 or (size - saved > budget and not settings["force"]):
        return None
    return [Edit(kind="dropped", message=messages[0].id, last=messages[upto - 1].id, blocks=tuple(blocks))]


def _truncation_end(messages: Sequence[ViewMessage], surplus: int, budget: int) -> int:
    """Return the number of oldest messages to drop to save `surplus` tokens.

    If that is not possible: the number of all that may be dropped.
    """
    end = tail_start(messages)
    folds = {id(block): block.tokens for block in split(messages, end, budget).folds}
    saved = 0
    for number, message in enumerate(messages[:end]):
        saved += sum(folds.get(id(block), 0) for block in message.blocks)
        after = messages[number + 1] if number + 1 < len(messages) else None
        if saved >= surplus and after is not None and not any(is_result(block) for block in after.blocks):
            return number + 1
    return end if saved else 0


def _turns(gone: Sequence[ViewMessage], sorted_: ViewSplit) -> int:
    """Return the number of turns dropped now; a turn that was already partly dropped is not counted again."""
    turns = {message.turn for message in gone[1:]} if sorted_.dropped else {message.turn for message in gone}
    cut_into = sorted_.dropped and gone[0].blocks[-1].source == "compactor" and gone[0].turn in turns
    return len(turns) - 1 if cut_into else len(turns)


SNIP: Mapping[str, Any] = MappingProxyType({"over": 50, "first": 3, "last": 47, "keep_person": True})
"""Numbers of messages: the number above which the stage acts, and the numbers that it keeps at each end. `keep_person:
false` cuts the person's texts too, as in the classic version."""

_SNIPPED = late_pattern(r"\A\[snipped (\d+) messages\]\Z")


def snip_middle(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Keep the first and the last messages, with `[snipped N messages]` between them; N counts over repeated snips."""
    settings = {**SNIP, **params}
    messages = view.messages
    if len(messages) <= settings["over"]:
        return None
    head, tail = _ends(messages, settings["first"], settings["last"])
    places = [number for number in range(tail) if _mark_in(messages[number]) is not None]
    alone = sum(number >= head and _mark_in(messages[number]) == len(messages[number].blocks) - 1 for number in places)
    if tail <= head or len(messages) - alone <= settings["over"]:
        return None
    # An earlier snip may be in the last message of the head, because neighbors of one role become one message.
    start = head - 1 if head - 1 in places else head
    cut = _cut(messages, start, head, tail, keep_person=settings["keep_person"])
    blocks = [*cut.stays, note(f"[snipped {cut.stood} messages]")]
    if tokens_of(blocks) >= sum(message.tokens for message in messages[start:tail]):
        return None
    return [Edit(kind="snipped", message=messages[start].id, last=messages[tail - 1].id, blocks=tuple(blocks))]


class _Cut(NamedTuple):
    stays: list[Placed]
    stood: int
    """Number of messages removed there, now and earlier."""


def _ends(messages: Sequence[ViewMessage], first: int, last: int) -> tuple[int, int]:
    """Return the index where the head ends and the index where the tail begins."""
    head = min(first, len(messages))
    tail = min(len(messages) - last, tail_start(messages))
    while head < len(messages) and _has_results(messages[head]):
        head += 1
    while tail > 0 and _has_results(messages[tail]):
        tail -= 1
    return head, tail


def _cut(messages: Sequence[ViewMessage], start: int, head: int, tail: int, *, keep_person: bool) -> _Cut:
    """Return the kept parts of `messages[start:tail]`.

    Messages before `head` are kept, except for the mark of an earlier snip.
    """
    pinned = pins(messages)
    first = messages[start]
    marked = _mark_in(messages[start])
    whole = first.blocks[:marked] if start < head else ()
    gone = [(message, block) for message in messages[start:tail] for block in message.blocks][len(whole) :]
    retained = {id(block) for block in pinned}
    retained |= {id(block) for block in words_in(gone, messages[-1].turn, pinned)} if keep_person else set()
    stays = [*whole, *(block for _, block in gone if id(block) in retained or _outlives(block))]
    return _Cut([block_of_edit(block, pinned) for block in stays], sum(map(_represented_count, messages[start:tail])))


def _outlives(block: ViewBlock) -> bool:
    """Return True for an earlier summary, and for text that the runtime wrote next to it."""
    return block.source == "compactor" and not _number(block)


def _represented_count(message: ViewMessage) -> int:
    """Return the number of messages that a message of the cut represents.

    The mark's own count is included only if others were joined after it.
    """
    mark = _mark_in(message)
    return 1 if mark is None else _number(message.blocks[mark]) + (mark < len(message.blocks) - 1)


def _has_results(message: ViewMessage) -> bool:
    return any(is_result(block) for block in message.blocks)


def _mark_in(message: ViewMessage) -> int | None:
    """Return the index of the placeholder in a message."""
    places = (n for n, block in enumerate(message.blocks) if block.source == "compactor" and _number(block))
    return next(places, None) if message.role == "user" else None


def _number(block: ViewBlock) -> int:
    match = _SNIPPED.match(text_of(block))
    return int(match[1]) if match else 0


Found = list[Edit] | SummaryWanted | None
Stage = Callable[[Conversation, int, Situation, Json], Found]

STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        "persist_large_results": persist_large_results,
        "snip_middle": snip_middle,
        "clear_old_results": clear_old_results,
        "economic": economic,
        "summarize_regions": summarize_regions,
        "summarize_all": summarize_all,
        "react": react,
        "truncate_oldest": truncate_oldest,
        "persist_newest": persist_newest,
        "drop_old_images": drop_old_images,
    }
)

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "persist_large_results": PERSIST,
        "snip_middle": SNIP,
        "clear_old_results": CLEAR,
        "economic": ECONOMIC,
        "summarize_regions": REGIONS,
        "summarize_all": SUMMARIZE,
        "react": REACT,
        "truncate_oldest": TRUNCATE,
        "persist_newest": NEWEST,
        "drop_old_images": IMAGES,
    }
)
"""Every stage with its parameters, which are described with each stage."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trigger": ("total", "each", "fit"),
        "keep_of": ("answered", "all"),
        "unit": ("results", "turns"),
        "resummarize": ("never", "allow"),
        "input": ("all", "head", "tail", "both"),
        "place": ("system", "user"),
    }
)
"""Parameters with a fixed set of values."""

BEHIND = ("react", "truncate_oldest", "persist_newest", "drop_old_images")
"""Stages that follow every pipeline and are not listed in it."""
LISTED = tuple(name for name in STAGES if name not in BEHIND)

SUMMARIES = frozenset({"summarize_regions", "summarize_all", "react"})
"""Stages that are not run after too many failed summaries."""


def check_pipeline(specs: Sequence[StageSpec]) -> list[str]:
    """Return the errors of a pipeline, for a person to read; empty if it is valid."""
    return [problem for number, spec in enumerate(specs) for problem in _problems(number, spec)]


def _problems(number: int, spec: StageSpec) -> Iterator[str]:
    where = f"pipeline[{number}]"
    if spec.stage in BEHIND:
        yield f"{where}: `{spec.stage}` stands behind every pipeline and is not listed"
        return
    if is_own(spec.stage):
        return  # its parameters are its own, and its existence is checked when it is loaded
    if spec.stage not in DEFAULTS:
        yield f"{where}: {unknown('stage', spec.stage, LISTED)}"
        return
    defaults = {name: value for name, value in DEFAULTS[spec.stage].items() if name not in _FROM_HERE}
    for name, value in spec.params.items():
        if name not in defaults:
            yield f"{where}.{name}: `{spec.stage}` has no such parameter; it has {', '.join(defaults)}"
        elif wrong := _wrong(name, value, defaults[name]):
            yield f"{where}.{name}: {wrong}, not {value!r}"


def _wrong(name: str, value: Any, default: Any) -> str:
    """Return the valid values of a parameter if its value is invalid; otherwise empty."""
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
    """Result of a stage: edits, or a summary that the engine makes; or the reason why the result is refused."""

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
    """Return the first stage that has something to do.

    None: the model may be called (or it refuses, and `react_stage` is due).

    A stage is skipped at a revision for which it was tried, and a summary after `BREAKER` failures.
    """
    refused = _newest(_IMAGES, conv, budget, situation)
    if refused is not None:  # images that the service would refuse at any size of the request
        return refused
    for spec in pipeline:
        result = _stage_result(spec, conv, budget, situation)
        if isinstance(result, StageRefusal):
            return StageCall(spec.stage, why=result.reason)
        if is_spared(result, situation.spared) and message_tokens(conv) <= budget:
            continue
        if isinstance(result, SummaryWanted):
            return _summary(result, conv, budget, situation, newest=_ALONE)
        if result:
            return StageCall(spec.stage, edits=tuple(result), why=result.why if isinstance(result, Batch) else "")
    if message_tokens(conv) <= budget:
        return None
    return _truncation(conv, budget, situation, force=False) or _newest(_LAST, conv, budget, situation)


def react_stage(conv: Conversation, budget: int, situation: Situation) -> StageCall | None:
    """Return the stage to run after the service refused the prompt as too long, regardless of thresholds.

    None: `ContextOverflow`.

    It is called again after a call that only `prepares`, and after a failed summary, which is then skipped.
    """
    result = _ask(StageSpec(stage="react"), conv, budget, situation)
    if isinstance(result, SummaryWanted):
        return _summary(
            result, conv, budget, situation, newest=_FORCED if newest_alone(conv) * 2 > message_tokens(conv) else _ALONE
        )
    return _without_summary(conv, budget, situation)


def manual_summary(
    conv: Conversation, focus: str, *, in_turn: bool = False, pipeline: Sequence[StageSpec] = ()
) -> SummaryWanted | None:
    """Return the summary that `/compact [focus]` and the `compact` tool request, at any size.

    None: nothing can be summarised.

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
    """Return the summary request.

    If large results that the model has not seen can be persisted first, return that instead. If the newest exchange
    alone is so large (as `newest` judges) that a summary of the rest would not help, return a reduction of that
    exchange.
    """
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
    """Remove large results, answered results and the oldest exchanges, until a good part of the view is gone.

    The newest message is reduced only if the rest is not enough, and then before exchanges are removed: their removal
    can join it with another message, and content that must stay is put back there. So no block has another number then
    (test_a_refusal_hides_what_its_file_holds).
    """
    enough = min(message_tokens(conv), budget) * _ENOUGH // 100
    rereads = (_PERSIST_EACH, _CLEAR_ALL, _OLD_IMAGES)
    found: StageCall | None = None
    for specs in ((*rereads, _truncate(force=True)), (*rereads, _FORCED, _truncate(force=True))):
        view = conv
        edits: list[Edit] = []
        stage = ""
        for spec in specs:
            result = _ask(spec, view, budget, situation)
            if result and not isinstance(result, SummaryWanted) and message_tokens(view) > enough:
                view = apply_edits(view, result)
                stage = spec.stage
                edits += result
        dropped = any(edit.kind == "dropped" for edit in edits)
        found = StageCall(stage, edits=tuple(edits), transcript=dropped) if edits else None
        if message_tokens(view) <= enough:
            break
    return found
