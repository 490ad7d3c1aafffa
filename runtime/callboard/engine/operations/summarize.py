"""Summaries as operations: the transcript first, then the calls, then the edit. A summary never ends the loop.

`core.context.summary` has the request and the use of its answer, `core.context.summary.shared_prefix` the form and the
model, and `core.agent.rules.compaction` the action after a failure. A summary whose process ended is made again from
its beginning (`SummaryBegan` is in the journal). Each wait ends with the operation.

PreCompact hooks may skip a summary, and PostCompact hooks are notified. Hooks cannot skip a summary that the next
request needs to fit: the only alternative would be to cut off the oldest exchanges. A skipped summary is not a failure;
it is requested again when the view has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import anyio

from callboard.core.agent.decide import SUMMARY
from callboard.core.agent.rules.compaction import (
    NextSummary,
    SummaryAttempts,
    after_fault,
    after_stop,
    models_for_summary,
    room,
)
from callboard.core.agent.rules.hooks import COMPACT_HOOKS
from callboard.core.agent.rules.limits import worst_case
from callboard.core.agent.state import AgentState
from callboard.core.budgets.tree import amount_of, used_up
from callboard.core.context.stage_input import REGION_STAGE, budget_of
from callboard.core.context.stages.summarize import region_edits
from callboard.core.context.summary.request import (
    accept_summary,
    halves,
    prompts_of,
    shared_prefix_prompt,
    summary_edits,
    summary_fault,
    summary_request,
)
from callboard.core.context.summary.shared_prefix import (
    ASKING,
    SharingFacts,
    chunk_tokens,
    shared_prefix_messages,
    should_share_prefix,
    unsummarized_replies,
)
from callboard.core.context.view.conversation import message_tokens, size
from callboard.core.context.view.tokens import estimate_json
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.retry_policy import fault_line, learnable, model_in_use, output_limit
from callboard.engine import transcripts
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, notice
from callboard.engine.operations.model_call import (
    call_failed,
    complete,
    effort_of,
    learn_limits,
    thinking_of,
    with_cost,
)
from callboard.engine.operations.skills import restore_skills
from callboard.ports.model import CallFault, Delta, ModelRequest
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types import steps as st
from callboard.types.messages import FROM_THE_START, SummaryWanted, ViewMessage
from callboard.types.records import Fault, Usage

CALLS = 10_000
"""Most calls of one summary. Their numbers begin at that multiple of the summary's own number."""


class _NoSummary(Exception):
    """No summary could be made. The message has the reason."""


async def summarize_view(agent: AgentRuntime, step: st.SummarizeView) -> None:
    """Ask the hooks, write the transcript, record the start of the summary, and make the calls."""
    if not step.begun:
        if agent.runtime.services.hooks.has("PreCompact"):
            agent.start(COMPACT_HOOKS, lambda: _ask_hooks(agent, step.wanted))
            return
        await _record_start(agent, step.wanted)
    agent.start(SUMMARY, lambda: _make_summary(agent))


async def _ask_hooks(agent: AgentRuntime, summary: SummaryWanted) -> None:
    """Ask the hooks. If they let the summary pass, record its start, so that `decide` continues."""
    if not await is_skipped_by_hook(agent, summary):
        await _record_start(agent, summary)


async def _record_start(agent: AgentRuntime, summary: SummaryWanted) -> None:
    transcript = await transcripts.write(agent)
    revision = agent.state.context.conversation.revision
    began = ev.SummaryBegan(at=agent.runtime.clock.now(), wanted=summary, revision=revision, transcript=transcript)
    await agent.record(began)


async def _make_summary(agent: AgentRuntime) -> None:
    summary = agent.state.compaction.summary
    if summary is None:
        return
    calls = _SummaryCalls(agent, summary)
    try:
        now = agent.runtime.clock.now()
        if agent.state.compaction.summary_until > now:
            # After a crash only the rest of the wait remains. The clock may have been set back meanwhile.
            await agent.runtime.clock.sleep_until(
                min(agent.state.compaction.summary_until, now + agent.state.me.max_wait)
            )
        text = await calls.text()
    except _NoSummary as failed:
        await _record_failure(agent, str(failed), calls.usage)
    except anyio.get_cancelled_exc_class():
        if agent.is_cancelled(SUMMARY):  # interrupted by a rule, not by the end of the process
            await _record_failure(agent, "interrupted", calls.usage)
        raise
    else:
        await _put_in_view(agent, summary, text, calls.usage)


async def _put_in_view(agent: AgentRuntime, summary: SummaryWanted, text: str, usage: Usage) -> None:
    """Replace the messages that the summary covers in the current view."""
    regional = summary.stage == REGION_STAGE
    history = await transcripts.history_of(agent, agent.state) if regional else ()
    state = agent.state
    # An interrupt or an undo may have arrived while the history was read.
    if state.compaction.summary != summary:
        return
    spec = state.me
    limits = spec.limits_of(model_in_use(state.model.recovery, spec))
    budget = budget_of(
        limits, output_limit(state.model.recovery, spec), state.context.conversation.overhead, spec.context_limit
    )
    transcript = state.compaction.summary_transcript
    block = agent.runtime.state_block(state)
    view = state.context.conversation
    if regional:
        edits = region_edits(view, summary, text, state=block, transcript=transcript, history=history)
    else:
        edits = summary_edits(view, summary, text, state=block, transcript=transcript, budget=budget)
    event = ev.ContextEdited(
        at=agent.runtime.clock.now(),
        stage=summary.stage,
        trigger=summary.trigger,
        revision=state.context.conversation.revision,
        edits=tuple(edits),
        transcript=transcript,
        usage=usage,
        why=summary.why,
    )
    checked_edit = transcripts.checked_edit(agent, event, block) if edits else None
    if checked_edit is None or not checked_edit.edits:
        await _record_failure(agent, "it would not make the conversation smaller", usage)
        return
    if await agent.record(checked_edit, unless=lambda now: now.compaction.summary != summary):
        notify_summarized(agent, summary, text)
        await restore_skills(agent)


async def _record_failure(agent: AgentRuntime, reason: str, usage: Usage) -> None:
    failed = ev.SummaryFailed(at=agent.runtime.clock.now(), why=reason, usage=usage)
    await agent.record(failed, unless=lambda state: state.compaction.summary is None)


class _SummaryCalls:
    """State of the calls of one summary: the answers so far, the rest of the input, and the model."""

    def __init__(self, agent: AgentRuntime, summary: SummaryWanted) -> None:
        self.usage = Usage()
        self._agent = agent
        self._summary = summary
        # The view at the start. Mail that arrives meanwhile joins the newest message, which is not summarized.
        self._state: AgentState = agent.state
        self._models = deque(models_for_summary(agent.state))
        self._calls = 0
        turn = self._state.turn
        self._attempts = SummaryAttempts(0, failed_before=turn is not None and turn.summaries_failed > 0)

    async def text(self) -> str:
        """Return the summary. Raises `_NoSummary`."""
        state = self._state
        spec = self._state.me
        model = model_in_use(state.model.recovery, spec)
        own = spec.limits_of(model)
        small = spec.limits_of(spec.small_model) if spec.small_model else None
        now = self._agent.runtime.clock.now()
        facts = SharingFacts(own, small, state.costs.cache, now, spec.thinking_tokens(model))
        if should_share_prefix(state.context.conversation, self._summary, facts):
            text = await self._with_shared_prefix()
            if text is not None:
                return text
        return await self._in_pieces()

    async def _with_shared_prefix(self) -> str | None:
        """Return the summary by the agent's own model at the end of its conversation.

        None if a separate request is necessary.
        """
        state = self._state
        summary = self._summary
        shared, tools = await self._agent.prompt_bytes()
        model = model_in_use(state.model.recovery, state.me)
        replies = unsummarized_replies(state.context.conversation, summary.last)
        messages = shared_prefix_messages(
            state.context.conversation, shared_prefix_prompt(summary, replies_kept=replies), reader_of(state.me, model)
        )
        # The service caches messages separately for each form of thinking and effort.
        most = summary.max_tokens + state.me.thinking_tokens(model)
        request = replace(
            self._request(model, messages),
            shared_system=shared,
            own_blocks=state.context.own_blocks,
            tools=tools,
            max_tokens=most,
            thinking=thinking_of(state, model, most),
            effort=effort_of(state, model),
        )
        tried = replace(self._attempts, rides=True, models_left=bool(self._models))
        answer = await self._call_until_usable(request, tried)
        return answer if isinstance(answer, str) else None

    async def _in_pieces(self) -> str:
        """Summarize the input piece by piece, each with the summary of the previous pieces."""
        summary = self._summary
        text = ""
        done = 0
        pending = deque(await self._pieces())
        while pending:
            prompt = prompts_of(list(pending), summary, done)[0]
            request = replace(self._request(self._models[0], prompt.messages(text)), shared_system=prompt.system())
            cut = halves(pending[0])
            tried = replace(self._attempts, may_shrink=len(cut) > 1, models_left=len(self._models) > 1)
            answer = await self._call_until_usable(request, tried)
            if isinstance(answer, str):
                pending.popleft()
                text, done = answer, done + 1
            elif answer.do == "smaller":
                pending = deque(half for piece in pending for half in halves(piece))
            else:
                self._models.popleft()
                now = self._agent.runtime.clock.now()
                model = self._models[0]
                await self._record_next(ev.ModelSwitched(at=now, model=model, why=answer.why, purpose="summary"))
        return text

    async def _pieces(self) -> list[str]:
        """Return the input of the calls, in pieces that fit the smallest window of the models."""
        state = self._state
        summary = self._summary
        history: Sequence[ViewMessage] = ()
        if summary.message == FROM_THE_START:
            history = await transcripts.history_of(self._agent, state)
        # The smallest window of all candidates, because a fallback must be able to take over any piece
        # (test_what_is_too_long_for_the_model_that_summarises_reaches_it_in_smaller_pieces_all_of_it).
        most = min(chunk_tokens(state.me.limits_of(model), summary) for model in self._models)
        prompts = summary_request(state.context.conversation, summary, most, history)
        if not prompts:
            raise _NoSummary("there is nothing to summarise")
        return [prompt.data for prompt in prompts]

    def _request(self, model: str, messages: Sequence[bytes]) -> ModelRequest:
        spec = self._state.me
        self._calls += 1
        return ModelRequest(
            session=self._state.identity.session,
            agent=self._agent.name,
            ordinal=self._state.compaction.summaries * CALLS + self._calls,
            attempt=1,
            model=model,
            max_tokens=self._summary.max_tokens,
            shared_system=b"[]",
            tools=b"[]",
            messages=messages,
            purpose="summary",
            first_byte_timeout=spec.first_byte,
            idle_timeout=spec.idle,
            total_timeout=spec.total,
        )

    async def _call_until_usable(self, request: ModelRequest, tried: SummaryAttempts) -> str | NextSummary:
        """Return the text of a usable answer, or the next action. Performs the waits. Raises `_NoSummary`."""
        runtime = self._agent.runtime
        while True:
            tried = replace(tried, attempts=tried.attempts + 1)
            answer = await self._call_once(replace(self._with_output_limit(request), attempt=tried.attempts), tried)
            if isinstance(answer, str):
                return answer
            if answer.do == "learned":
                # A learned limit does not count as a failed attempt
                # (test_an_output_limit_that_the_service_states_to_a_summary_is_learned_and_the_summary_is_made).
                tried = replace(tried, attempts=tried.attempts - 1)
                continue
            if answer.do == "give_up":
                raise _NoSummary(answer.why)
            if answer.do != "again":
                return answer
            now = runtime.clock.now()
            number = tried.attempts
            until = now + answer.wait
            await self._record_next(
                ev.RetryPlanned(at=now, until=until, attempt=number, why=answer.why, purpose="summary")
            )
            await runtime.clock.sleep_until(until)

    def _with_output_limit(self, request: ModelRequest) -> ModelRequest:
        """Return the request, limited to the known output limit of its model."""
        most = self._agent.state.me.limits_of(request.model).max_output
        return replace(request, max_tokens=min(request.max_tokens, most))

    async def _record_next(self, event: ev.RetryPlanned | ev.ModelSwitched) -> None:
        """Record the next attempt or model, unless the summary is already over."""
        await self._agent.record(event, unless=lambda now: now.compaction.summary != self._summary)

    async def _call_once(self, request: ModelRequest, tried: SummaryAttempts) -> str | NextSummary:
        """Make one call. Return the text of a usable answer, or the action after its failure."""
        await self._wait_while_parked(request.model)
        await self._reserve(request, shares_prefix=tried.rides)
        try:
            reply = await complete(self._agent, request, _ignore_delta)
        except CallFault as failed:
            fault = failed.fault
            draw = self._agent.runtime.services.dice.draw()
            failure = self._failure_event(request, fault, draw)
            await self._agent.record(failure)
            learned = learnable(failure, self._agent.state.me)
            if learned is not None:
                await learn_limits(self._agent, learned)
                if fault.kind == "invalid":
                    return NextSummary("learned")
            return replace(after_fault(fault, tried, self._state.me, draw), why=fault_line(fault))
        usage = with_cost(reply.usage, self._state.me.limits_of(request.model))
        self.usage = self.usage.plus(usage)
        self._agent.runtime.budgets.count_used(self._agent.state, amount_of(usage))
        text = accept_summary(reply.blocks, reply.stop_reason)
        if text is not None:
            return text
        return replace(after_stop(reply.stop_reason, tried), why=summary_fault(reply.blocks, reply.stop_reason))

    async def _wait_while_parked(self, model: str) -> None:
        """Wait briefly while the key is parked, because a summary has a fallback. Raises `_NoSummary`."""
        runtime = self._agent.runtime
        until = runtime.key_limiter.parked_until(model)
        if until <= runtime.clock.now():
            return
        wait = max(until, runtime.key_limiter.named_until(model)) - runtime.clock.now()
        # Dropping the oldest messages costs less than a long wait
        # (test_an_hour_is_not_waited_for_what_does_not_fit_is_dropped_instead).
        if wait > self._state.me.max_wait:
            raise _NoSummary(f"the service asks for a wait of {wait:,.0f} s")
        if wait > 0:
            await runtime.clock.sleep_until(runtime.key_limiter.parked_until(model))

    async def _reserve(self, request: ModelRequest, *, shares_prefix: bool) -> None:
        """Reserve the cost of the call, durably, if there is a budget. Raises `_NoSummary`."""
        agent = self._agent
        budgets = self._agent.runtime.budgets
        conv = self._state.context.conversation
        if shares_prefix:
            tokens = size(conv) + ASKING
        else:
            tokens = sum(estimate_json(piece) for piece in (request.system, *request.messages))
        worst = worst_case(self._state.me.limits_of(request.model), tokens, request.max_tokens)
        while refused := budgets.reserve(agent.state, worst):
            if not refused.waits:
                reason = used_up(
                    refused.budget, refused.kind, limit=refused.limit, spent=refused.spent, needed=refused.wanted
                )
                raise _NoSummary(reason)
            await budgets.wait_for_room()
        if budgets.path_of(agent.state):
            message_tokens = {"reserved_tokens": worst.tokens, "reserved_usd": worst.cost_usd, "used": self.usage}
            await agent.record(self._call_event(request).model_copy(update=message_tokens))

    def _failure_event(self, request: ModelRequest, fault: Fault, draw: float) -> ev.CallFailed:
        return call_failed(self._agent, self._call_event(request), fault).model_copy(update={"draw": draw})

    def _call_event(self, request: ModelRequest) -> ev.ModelCalled:
        return ev.ModelCalled(
            at=self._agent.runtime.clock.now(),
            ordinal=request.ordinal,
            attempt=request.attempt,
            model=request.model,
            max_tokens=request.max_tokens,
            purpose="summary",
        )


def _ignore_delta(delta: Delta) -> None:
    """Ignore a delta: a summary is not displayed while it streams."""


NEEDED = "the conversation would not fit without it"


async def is_skipped_by_hook(agent: AgentRuntime, request: SummaryWanted) -> bool:
    """Ask the hooks. If they reject the summary, record it as skipped and return True."""
    event = hk.PreCompact(_trigger(request), request.focus, caller(agent.runtime, agent.state))
    verdict = await agent.runtime.services.hooks.fire(event)
    notice(agent.runtime, agent.name, verdict.notices)
    if not verdict.block:
        return False
    reason = f"{verdict.by or 'a hook'} rejected it: {verdict.block}"
    if _is_needed(agent.state, request):
        notice(agent.runtime, agent.name, (f"{reason}; {NEEDED}",))
        return False
    await agent.record(ev.SummaryFailed(at=agent.runtime.clock.now(), why=reason, skipped=request))
    return True


def _is_needed(state: AgentState, request: SummaryWanted) -> bool:
    """Return True if a summary is needed now.

    A manual one can wait, a reactive one cannot, and any other is needed if the view exceeds its room.
    """
    if request.trigger == "manual":
        return False
    return request.trigger == "reactive" or message_tokens(state.context.conversation) > room(state)


def notify_summarized(agent: AgentRuntime, request: SummaryWanted, text: str) -> None:
    """Notify the hooks of a summary in the view, and run the SessionStart hooks again."""
    runtime = agent.runtime
    life = (agent.name, agent.state.identity.incarnation)
    if runtime.start_hooks_ran.get(life):
        runtime.start_hooks_ran[life] = False
    runtime.listeners.inform(hk.PostCompact(_trigger(request), text, caller(agent.runtime, agent.state)))


def _trigger(request: SummaryWanted) -> hk.Trigger:
    return "manual" if request.trigger == "manual" else "auto"
