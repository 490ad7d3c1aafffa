"""Rules for compaction, for counting tokens, for undoing edits, and for failed calls of a summary. Pure.

Compaction runs when it is requested, when the service forces it, or when the view is over the budget. Then the next
stage of the pipeline runs. A stage never runs twice for the same view: a stage without effect is recorded with the
revision.

Counting: near the limit, if many tokens were never counted, the service counts them before anything is cut. An estimate
may be off by a third; an unnecessary compaction costs a summary and a cached prefix, a late one costs a refused call.
The service counts at most once for the same view, and never in other cases. If it once could not count, it is not asked
again in the agent's life.

Undo of an edit by the user: the command waits in `Compaction.undo` for the record that answers it. That record is a
`ContextEdited` whose `undoes` names the same edits. It has the restored messages, or no edits and the reason.

A summary has its own recovery, separate from that of its turn. The table is complete;
tests/core/agent/test_summary_recovery.py checks every row.

    event                                  condition                                    next attempt
    -------------------------------------  -------------------------------------------  ------------------------------
    too_long                               shared prefix                                as a separate request
    too_long                               separate, its data can be cut                in smaller pieces
    too_long                               separate, its data cannot be cut             none: give up
    rate_limited                           attempts left, a wait of up to max_wait      after that wait
    rate_limited                           a wait longer than max_wait                  as with no attempts left
    overloaded, connection                 attempts left                                after back-off
    server                                 attempts left, at most 4 for a summary       after back-off
    silence, bad_reply, lost               attempts left                                after back-off
    invalid                                the service says x-should-retry: true        as server
    any of these                           no attempts left, shared prefix              as a separate request
    any of these                           no attempts left, a model is left            with the next model
    any of these                           no attempts left, no model is left           none: give up
    any of these                           the service says x-should-retry: false       as with no attempts left
    not_found, invalid, unusable answer    shared prefix                                as a separate request
    not_found, invalid, unusable answer    separate, a model is left                    with the next model
    not_found, invalid, unusable answer    separate, no model is left                   none: give up
    credentials, payment, spend_limit      always                                       none: give up

An answer that ended because the model's window was full counts as too_long.

"Shared prefix" means that the question is at the end of the conversation, on its cached prefix. The models are the
small one, the agent's own, and its fallbacks. Waits, attempts, and the longest wait are those of the turn's calls
(`recovery`), but an internal error of the service may be due to the summary itself: each call is tried 4 times, and
once after a failed summary in the same turn. No longer wait is made, because a summary has a fallback, unlike a parked
agent: giving up means `SummaryFailed`, and `truncate_oldest` is used instead. Each wait and each change of model is an
event. A summary that a crash interrupted is made again, after the rest of its wait.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

from callboard.core.agent.rules.limits import limit_reached
from callboard.core.agent.state import AgentState, Facts
from callboard.core.context.pipeline import StageCall, manual_summary, next_stage, react_stage
from callboard.core.context.stage_input import Situation, budget_of
from callboard.core.context.stages.last_resort import blame
from callboard.core.context.view.conversation import Conversation, message_tokens
from callboard.core.rate_limits.key_state import KEY_FAULTS
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.retry_policy import back_off, is_final, is_too_long, model_in_use
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import ContextEdited
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, Restored
from callboard.types.operations import Operation
from callboard.types.records import Fault


def compact_view(state: AgentState, facts: Facts) -> st.Step | None:
    """Run the next stage that was not tried at this revision, if compaction is due.

    Compaction is due if it is requested or forced, or if the conversation is over the budget.
    """
    if state.compaction.focus is not None and (state.turn is None or state.context.wants_reply):
        spec = state.me
        in_turn = state.turn is not None
        conv = state.context.conversation
        request = manual_summary(conv, state.compaction.focus, in_turn=in_turn, pipeline=spec.pipeline)
        empty = "nothing in it can be summarised" if conv.messages else "the conversation is empty"
        nothing = st.EditView("summarize_all", "manual", (), why=empty)
        return st.SummarizeView(request, begun=False) if request else nothing
    if state.turn is None or not state.context.wants_reply or limit_reached(state, facts):
        return None
    spec = state.me
    budget = room(state)
    situation = _situation(state, facts, budget)
    if state.model.recovery.react:
        stage_call = react_stage(state.context.conversation, budget, situation)
        culprit = blame(state.context.conversation, budget)
        reason = f"the conversation is too large, and nothing more can be cut from it: {culprit}"
        nothing = st.EndTurn("overflow", reason)
        return _stage(stage_call, "reactive", state) if stage_call else nothing
    stage_call = next_stage(spec.pipeline, state.context.conversation, budget, situation)
    return _stage(stage_call, "auto", state) if stage_call else None


def transcript_path(state: AgentState, folder: str) -> str:
    """Return the path of the transcript of a life in that folder. Each compaction appends to it."""
    return transcript_of(state.me.name, state.identity.incarnation, folder)


def transcript_of(name: str, incarnation: int, folder: str) -> str:
    """Return the path of the transcript by name and number of the life."""
    life = "" if incarnation == 1 else f".{incarnation}"
    return f"{folder}/{name}{life}.jsonl"


def _stage(stage_call: StageCall, trigger: Literal["auto", "reactive"], state: AgentState) -> st.Step:
    if stage_call.summary is not None:
        return st.SummarizeView(stage_call.summary, begun=False)
    # Edits that prepare a reactive summary do not replace it: it is still due. A fault is reported once.
    reason = "" if stage_call.stage in state.compaction.faulty else stage_call.why
    return st.EditView(
        stage_call.stage, "auto" if stage_call.prepares else trigger, stage_call.edits, stage_call.transcript, reason
    )


def _situation(state: AgentState, facts: Facts, budget: int) -> Situation:
    spec = state.me
    model = rec.model_in_use(state.model.recovery, spec)
    tried = state.compaction.tried
    # A hook may reject a summary, unless the view does not fit without one.
    if state.compaction.skipped and message_tokens(state.context.conversation) <= budget:
        tried |= state.compaction.skipped
    return Situation(
        now=facts.now,
        folder=facts.folder,
        transcript=transcript_path(state, facts.transcripts),
        # A stage that found nothing would be chosen again at each decision
        # (test_a_stage_that_found_nothing_is_not_asked_again_for_the_same_view).
        tried=tried,
        summaries_failed=state.turn.summaries_failed if state.turn else 0,
        state=facts.known,
        limits=spec.limits_of(model),
        small=spec.limits_of(spec.small_model) if spec.small_model else None,
        thinking=spec.thinking_tokens(model) if spec.thinking else 0,
        cache=state.costs.cache,
        batch=state.compaction.batch,
        cycle=state.costs.cycle,
        forgotten=state.costs.forgotten,
        steps=state.turns.steps,
        spared=state.compaction.spared,
        own=facts.stages,
    )


COUNT = Operation("count")
NEAR = 0.9
"""Share of the budget from which the view is near the limit."""
PART = 0.1
"""Share of the budget that must be uncounted. A smaller part cannot change the decision."""
WORTH = 20_000
"""Uncounted tokens below which a count is not worth a call."""


def count_tokens(state: AgentState, facts: Facts) -> st.Step | None:
    """Ask the service for the size of the request, if that may avoid a compaction or a refused call."""
    if state.turn is None or not state.context.wants_reply or state.model.uncountable:
        return None
    conv = state.context.conversation
    new = tokens_since_count(conv)
    if new < WORTH or facts.now < state.model.uncounted_until or limit_reached(state, facts):
        return None
    if state.model.recovery.react or state.compaction.focus is not None:
        return None  # it is compacted in any case
    # A count takes a request and delays the call (test_far_from_the_limit_it_is_not_asked).
    budget = room(state)
    return st.CountTokens(conv.revision) if message_tokens(conv) >= NEAR * budget and new >= PART * budget else None


def may_later(fault: Fault | None) -> bool:
    """Return True if a token count that failed with this fault may work later.

    Otherwise the service cannot count tokens.
    """
    return fault is not None and fault.kind not in ("not_found", "invalid", "bad_reply")


def room(state: AgentState) -> int:
    """Return the tokens available for messages with the current model."""
    spec = state.me
    limits = spec.limits_of(rec.model_in_use(state.model.recovery, spec))
    output = rec.output_limit(state.model.recovery, spec)
    return budget_of(limits, output, state.context.conversation.overhead, spec.context_limit)


def tokens_since_count(conv: Conversation) -> int:
    """Return the estimated tokens added or removed since the last count by the service; all tokens before the first."""
    return abs(conv.overhead + conv.tokens - conv.counted_base)


def undo_edits(state: AgentState, facts: Facts) -> st.Step | None:
    """Undo edits as soon as no call with the current view is in progress."""
    # A call in progress was made from the current view
    # (test_the_command_waits_for_the_call_that_was_sent_the_view_as_it_is).
    if not state.compaction.undo or state.model.call is not None or state.compaction.summary is not None:
        return None
    return st.Undo(state.compaction.undo[0])


def protect_restored(edit: Edit, edits: Sequence[tuple[int, ContextEdited]], positions: tuple[int, ...]) -> Edit:
    """Return the edit of an undo with the restored blocks marked as not compactable.

    Stages that select single blocks leave them unchanged from now on. Other blocks stay compactable.

    `edits`: all edits of the journal, by position. `positions`: the undone ones.
    """
    folds = list[tuple[int, int]]()
    blocks = set[tuple[int, int | None]]()
    for old in (old for seq, event in edits if seq in positions for old in event.edits):
        if old.kind in ("cleared", "persisted"):
            blocks.add((old.message, old.block))
        else:
            folds.append((old.message, old.last))
    messages = tuple(_spared(message, folds, blocks) for message in edit.messages)
    return edit.model_copy(update={"messages": messages})


def _spared(message: Restored, folds: Sequence[tuple[int, int]], blocks: Set[tuple[int, int | None]]) -> Restored:
    whole = any(first <= message.id <= last for first, last in folds)
    marked = tuple(
        block.model_copy(update={"compactable": False}) if whole or (message.id, place) in blocks else block
        for place, block in enumerate(message.blocks)
    )
    return message.model_copy(update={"blocks": marked})


@dataclass(frozen=True, slots=True)
class NextSummary:
    """Next action after a failed call.

    `again`: after `wait` seconds; `learned`: at once, within the output limit that the service stated, without using an
    attempt; `plain`: as a separate request; `smaller`: with less data; `model`: with the next model; `give_up`: no
    summary.
    """

    do: Literal["again", "learned", "plain", "smaller", "model", "give_up"]
    wait: float = 0.0
    why: str = ""
    """Fault or answer, for the user."""


@dataclass(frozen=True, slots=True)
class SummaryAttempts:
    """Progress of a summary at the call that failed."""

    attempts: int
    """Attempts of this call with this model, including the failed one."""
    rides: bool = False
    may_shrink: bool = True
    """True if its data can still be cut."""
    models_left: bool = False
    """True if a model is left that was not asked yet."""
    failed_before: bool = False
    """True if the previous summary of the turn failed."""


def models_for_summary(state: AgentState) -> tuple[str, ...]:
    """Return the models to ask for a summary, in order, each once."""
    spec = state.me
    own = model_in_use(state.model.recovery, spec)
    chain = (spec.model, *spec.fallback_models)
    later = chain[chain.index(own) + 1 :] if own in chain else ()
    return tuple(dict.fromkeys(name for name in (spec.small_model, own, *later) if name))


SERVER_ATTEMPTS = 4
"""Most attempts of a call that the service answers with an internal error. The turn's own calls may work meanwhile, so
that waiting does not help.
"""


def after_fault(fault: Fault, tried: SummaryAttempts, spec: AgentSpec, draw: float) -> NextSummary:
    """Return the decision on a failed call. `draw` (0..1) is the jitter."""
    if fault.kind in KEY_FAULTS:
        return NextSummary("give_up")
    if fault.kind == "too_long":
        return _too_long(tried)
    most = spec.attempts
    if fault.kind == "server":
        most = 1 if tried.failed_before else min(most, SERVER_ATTEMPTS)
    if not is_final(fault) and fault.retry is not False and tried.attempts < most:
        wait = (fault.retry_after if fault.kind == "rate_limited" else None) or back_off(tried.attempts - 1, draw)
        if wait <= spec.max_wait:
            return NextSummary("again", wait)
    return after_bad_answer(tried)


def after_stop(reason: str, tried: SummaryAttempts) -> NextSummary:
    """Return the decision on an answer that is not a summary, by its stop reason."""
    return _too_long(tried) if is_too_long(reason) else after_bad_answer(tried)


def _too_long(tried: SummaryAttempts) -> NextSummary:
    if tried.rides:
        return NextSummary("plain")
    return NextSummary("smaller" if tried.may_shrink else "give_up")


def after_bad_answer(tried: SummaryAttempts) -> NextSummary:
    """Return the decision on an answer that is not a summary.

    The decision also applies to faults that another attempt with the same model cannot fix.
    """
    if tried.rides:
        return NextSummary("plain")
    return NextSummary("model" if tried.models_left else "give_up")
