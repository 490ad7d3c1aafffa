"""The rule of compaction: asked for, forced by the service, or over the budget, the next stage of the pipeline. Pure.

It refuses to ask a stage twice for the same view: one that brought nothing is recorded as tried, with the revision.
"""

from __future__ import annotations

from typing import Literal

from callboard.core.budget.limits import limit_reached
from callboard.core.context.counting import room
from callboard.core.context.pipeline import StageCall, manual_summary, next_stage, react_stage
from callboard.core.context.situation import Situation
from callboard.core.context.stages.last_resort import blame
from callboard.core.context.view.conversation import held
from callboard.core.recovery import turns as rec
from callboard.core.state import AgentState, Facts
from callboard.words import steps as st


def compaction(state: AgentState, facts: Facts) -> st.Step | None:
    """Asked for, forced by the service, or over the budget: the next stage that was not tried at this revision."""
    if state.compact is not None and (state.turn is None or state.wants_reply):
        spec, in_turn = state.me, state.turn is not None
        wanted = manual_summary(state.conversation, state.compact, in_turn=in_turn, pipeline=spec.pipeline)
        empty = "nothing in it can be summarised" if state.conversation.messages else "the conversation is empty"
        nothing = st.EditView("summarize_all", "manual", (), why=empty)
        return st.Summarise(wanted, begun=False) if wanted else nothing
    if state.turn is None or not state.wants_reply or limit_reached(state, facts):
        return None
    spec, situation, budget = state.me, _situation(state, facts), room(state)
    if state.recovery.react:
        found = react_stage(state.conversation, budget, situation)
        why = f"the conversation does not fit, and nothing in it can be compacted: {blame(state.conversation, budget)}"
        nothing = st.EndTurn("overflow", why)
        return _stage(found, "reactive", state) if found else nothing
    found = next_stage(spec.pipeline, state.conversation, budget, situation)
    return _stage(found, "auto", state) if found else None


def transcript_path(state: AgentState, facts: Facts) -> str:
    """The file for a transcript written at this position of the journal: no two are alike."""
    life = "" if state.incarnation == 1 else f".{state.incarnation}"
    return f"{facts.transcripts}/{state.me.name}{life}-{state.seq}.jsonl"


def _stage(found: StageCall, trigger: Literal["auto", "reactive"], state: AgentState) -> st.Step:
    if found.wanted is not None:
        return st.Summarise(found.wanted, begun=False)
    # Edits that prepare a reactive summary do not answer for it: it is still due. A fault is told once.
    why = "" if found.stage in state.faulty else found.why
    return st.EditView(found.stage, "auto" if found.prepares else trigger, found.edits, found.transcript, why)


def _situation(state: AgentState, facts: Facts) -> Situation:
    spec = state.me
    return Situation(
        now=facts.now,
        folder=facts.folder,
        transcript=transcript_path(state, facts),
        tried=state.tried | state.skipped if held(state.conversation) <= room(state) else state.tried,
        summaries_failed=state.turn.summaries_failed if state.turn else 0,
        state=facts.known,
        limits=spec.limits_of(rec.model_in_use(state.recovery, spec)),
        small=spec.limits_of(spec.small_model) if spec.small_model else None,
        cache=state.cache,
        batch=state.batch,
        cycle=state.cycle,
        forgotten=state.forgotten,
        steps=state.steps,
        spared=state.spared,
        own=facts.stages,
    )
