"""Summaries as operations: the transcript first, then the calls, then the edit. A summary never ends the loop.

What is asked and what its answer becomes is decided in `core.context.summary`, by which form and model in
`core.context.summary.riding`, what follows a failure in `core.recovery.summaries`. A summary under way when its process
ended is made again from its beginning (`SummaryBegan` is in the journal); each wait ends with the operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import anyio

from callboard.core.budget.limits import worst_case
from callboard.core.budget.tree import amount_of, used_up
from callboard.core.context.pipeline import budget_of
from callboard.core.context.stages import regions
from callboard.core.context.stages.summarizing import FROM_THE_START
from callboard.core.context.summary.request import (
    accept_summary,
    halves,
    prompts_of,
    riding_text,
    summary_edits,
    summary_fault,
    summary_request,
)
from callboard.core.context.summary.riding import ASKING, Choice, chunk_tokens, replies_behind, rides, riding
from callboard.core.context.view.conversation import size
from callboard.core.context.view.tokens import estimate_json
from callboard.core.decide import SUMMARY
from callboard.core.hooks.moments import COMPACT_HOOKS
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.summaries import Next, Tried, after_fault, after_stop, models_for_summary
from callboard.core.recovery.turns import model_in_use, output_limit, told_of
from callboard.core.state import AgentState
from callboard.engine.hooks.compacting import skipped, summarised
from callboard.engine.loop import Agent
from callboard.engine.memory import history
from callboard.engine.model import transcripts
from callboard.engine.model.thinking import call_failed, complete, priced
from callboard.engine.skills.carrying import carry_skills
from callboard.ports.model import CallFault, Delta, ModelRequest
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.context import Message, SummaryWanted
from callboard.words.values import Fault, Usage

CALLS = 10_000
"""Calls of one summary, at most: their numbers begin at that multiple of the summary's own."""


class _NoSummary(Exception):
    """None could be made; the message says why."""


async def summarise(agent: Agent, step: st.Summarise) -> None:
    """Ask the hooks, write the transcript, record that a summary is wanted, make the calls."""
    if not step.begun:
        if agent.host.ports.hooks.has("PreCompact"):
            agent.start(COMPACT_HOOKS, lambda: _ask_hooks(agent, step.wanted))
            return
        await _began(agent, step.wanted)
    agent.start(SUMMARY, lambda: _summary(agent))


async def _ask_hooks(agent: Agent, wanted: SummaryWanted) -> None:
    """One that a hook lets pass has begun with its record: `decide` goes on with it."""
    if not await skipped(agent, wanted):
        await _began(agent, wanted)


async def _began(agent: Agent, wanted: SummaryWanted) -> None:
    transcript = await transcripts.write(agent)
    revision = agent.state.conversation.revision
    began = ev.SummaryBegan(at=agent.host.clock.now(), wanted=wanted, revision=revision, transcript=transcript)
    await agent.record(began)


async def _summary(agent: Agent) -> None:
    wanted = agent.state.summary
    if wanted is None:
        return
    asking = _Asking(agent, wanted)
    try:
        if agent.state.summary_until > agent.host.clock.now():  # what a crash left of a wait
            await agent.host.clock.sleep_until(agent.state.summary_until)
        text = await asking.text()
    except _NoSummary as none:
        await _failed(agent, str(none), asking.usage)
    except anyio.get_cancelled_exc_class():
        if agent.operations[SUMMARY].cancel_called:  # interrupted by a rule, not by the end of the process
            await _failed(agent, "interrupted", asking.usage)
        raise
    else:
        await _place(agent, wanted, text, asking.usage)


async def _place(agent: Agent, wanted: SummaryWanted, text: str, usage: Usage) -> None:
    """Put the summary in place of what it covers, in the view as it stands now."""
    regional = wanted.stage == regions.NAME
    told = await history(agent.host.ports.store, agent.state) if regional else ()
    state = agent.state
    if state.summary != wanted:
        return
    spec = state.me
    limits = spec.limits_of(model_in_use(state.recovery, spec))
    budget = budget_of(limits, output_limit(state.recovery, spec), state.conversation.overhead, spec.context_limit)
    transcript, known, view = state.summary_transcript, agent.host.known(state), state.conversation
    if regional:
        edits = regions.region_edits(view, wanted, text, known, transcript, told)
    else:
        edits = summary_edits(view, wanted, text, known, transcript, budget)
    event = ev.ContextEdited(
        at=agent.host.clock.now(),
        stage=wanted.stage,
        trigger=wanted.trigger,
        revision=state.conversation.revision,
        edits=tuple(edits),
        transcript=transcript,
        usage=usage,
        why=wanted.why,
    )
    checked = transcripts.checked(agent, event, known) if edits else None
    if checked is None or not checked.edits:
        await _failed(agent, "it would not make the conversation smaller", usage)
        return
    if await agent.record(checked, unless=lambda now: now.summary != wanted):
        summarised(agent, wanted, text)
        await carry_skills(agent)


async def _failed(agent: Agent, why: str, usage: Usage) -> None:
    failed = ev.SummaryFailed(at=agent.host.clock.now(), why=why, usage=usage)
    await agent.record(failed, unless=lambda state: state.summary is None)


class _Asking:
    """The calls of one summary: what was said so far, what is still to be told, whom to ask."""

    def __init__(self, agent: Agent, wanted: SummaryWanted) -> None:
        self.usage = Usage()
        self._agent, self._wanted = agent, wanted
        # The view at its beginning: mail that comes meanwhile joins the newest message, which is not summarised.
        self._state: AgentState = agent.state
        self._models = deque(models_for_summary(agent.state))
        self._calls = 0

    async def text(self) -> str:
        """The summary. Raises `_NoSummary`."""
        state, spec = self._state, self._state.me
        own = spec.limits_of(model_in_use(state.recovery, spec))
        small = spec.limits_of(spec.small_model) if spec.small_model else None
        choice = Choice(own, small, state.cache, self._agent.host.clock.now())
        if rides(state.conversation, self._wanted, choice):
            text = await self._riding()
            if text is not None:
                return text
        return await self._in_parts()

    async def _riding(self) -> str | None:
        """The summary by the agent's own model at the end of its conversation; None: to be asked for as its own."""
        state, wanted = self._state, self._wanted
        system, tools = await self._agent.prompt_bytes()
        model = model_in_use(state.recovery, state.me)
        kept = replies_behind(state.conversation, wanted.last)
        messages = riding(state.conversation, riding_text(wanted, kept=kept), reader_of(state.me, model))
        request = replace(self._request(model, messages), system=system, tools=tools)
        found = await self._ask(request, Tried(0, rides=True, models_left=bool(self._models)))
        return found if isinstance(found, str) else None

    async def _in_parts(self) -> str:
        """The summary of all that is to be told, piece by piece, each told with the summary of the pieces before."""
        wanted, text, done = self._wanted, "", 0
        pending = deque(await self._pieces())
        while pending:
            prompt = prompts_of(list(pending), wanted, done)[0]
            request = replace(self._request(self._models[0], prompt.messages(text)), system=prompt.system())
            cut = halves(pending[0])
            tried = Tried(0, may_shrink=len(cut) > 1, models_left=len(self._models) > 1)
            found = await self._ask(request, tried)
            if isinstance(found, str):
                pending.popleft()
                text, done = found, done + 1
            elif found.do == "smaller":
                pending = deque(half for piece in pending for half in halves(piece))
            else:
                self._models.popleft()
                now, model = self._agent.host.clock.now(), self._models[0]
                await self._tell(ev.ModelSwitched(at=now, model=model, why=found.why, purpose="summary"))
        return text

    async def _pieces(self) -> list[str]:
        """The data of the calls: as much in each as the smallest window of the models takes."""
        state, wanted = self._state, self._wanted
        told: Sequence[Message] = ()
        if wanted.message == FROM_THE_START:
            told = await history(self._agent.host.ports.store, state)
        most = min(chunk_tokens(state.me.limits_of(model), wanted) for model in self._models)
        prompts = summary_request(state.conversation, wanted, most, told)
        if not prompts:
            raise _NoSummary("there is nothing to summarise")
        return [prompt.data for prompt in prompts]

    def _request(self, model: str, messages: Sequence[bytes]) -> ModelRequest:
        spec = self._state.me
        self._calls += 1
        return ModelRequest(
            session=self._state.session,
            agent=self._agent.name,
            ordinal=self._state.summaries * CALLS + self._calls,
            attempt=1,
            model=model,
            max_tokens=min(self._wanted.max_tokens, spec.limits_of(model).max_output),
            system=b"[]",
            tools=b"[]",
            messages=messages,
            purpose="summary",
            first_byte_timeout=spec.first_byte,
            idle_timeout=spec.idle,
            total_timeout=spec.total,
        )

    async def _ask(self, request: ModelRequest, tried: Tried) -> str | Next:
        """The text of a usable answer, or what is to be done instead. Waits are made here. Raises `_NoSummary`."""
        host = self._agent.host
        while True:
            tried = replace(tried, attempts=tried.attempts + 1)
            found = await self._once(replace(request, attempt=tried.attempts), tried)
            if isinstance(found, str):
                return found
            if found.do == "give_up":
                raise _NoSummary(found.why)
            if found.do != "again":
                return found
            now, number = host.clock.now(), tried.attempts
            until = now + found.wait
            await self._tell(ev.RetryPlanned(at=now, until=until, attempt=number, why=found.why, purpose="summary"))
            await host.clock.sleep_until(until)

    async def _tell(self, event: ev.RetryPlanned | ev.ModelSwitched) -> None:
        """What is done next; not once the summary is over, however it ended."""
        await self._agent.record(event, unless=lambda now: now.summary != self._wanted)

    async def _once(self, request: ModelRequest, tried: Tried) -> str | Next:
        """One call: the text of a usable answer, or what follows its failure."""
        await self._may_call(request.model)
        await self._reserve(request, rides=tried.rides)
        try:
            reply = await complete(self._agent, request, _unheard)
        except CallFault as failed:
            fault, draw = failed.fault, self._agent.host.ports.dice.draw()
            await self._agent.record(self._call_failed(request, fault, draw))
            return replace(after_fault(fault, tried, self._state.me, draw), why=told_of(fault))
        usage = priced(reply.usage, self._state.me.limits_of(request.model))
        self.usage = self.usage.plus(usage)
        self._agent.host.budgets.used(self._agent.state, amount_of(usage))
        text = accept_summary(reply.blocks, reply.stop_reason)
        if text is not None:
            return text
        return replace(after_stop(reply.stop_reason, tried), why=summary_fault(reply.blocks, reply.stop_reason))

    async def _may_call(self, model: str) -> None:
        """Wait while the key is parked, but not for long: a summary has a fallback. Raises `_NoSummary`."""
        host = self._agent.host
        wait = host.governor.parked_until(model) - host.clock.now()
        if wait > self._state.me.max_wait:
            raise _NoSummary(f"the key is parked for {wait:.0f} s more")
        if wait > 0:
            await host.clock.sleep_until(host.governor.parked_until(model))

    async def _reserve(self, request: ModelRequest, *, rides: bool) -> None:
        """Hold back what the call may cost, and say so durably, where a budget holds. Raises `_NoSummary`."""
        agent, budgets = self._agent, self._agent.host.budgets
        conv = self._state.conversation
        if rides:
            tokens = size(conv) + ASKING
        else:
            tokens = sum(estimate_json(piece) for piece in (request.system, *request.messages))
        worst = worst_case(self._state.me.limits_of(request.model), tokens, request.max_tokens)
        while refused := budgets.reserve(agent.state, worst):
            if not refused.waits:
                told = used_up(refused.budget, refused.kind, refused.limit, refused.spent, refused.wanted)
                raise _NoSummary(told)
            await budgets.moved()
        if budgets.path_of(agent.state):
            held = {"reserved_tokens": worst.tokens, "reserved_usd": worst.cost_usd, "used": self.usage}
            await agent.record(self._called(request).model_copy(update=held))

    def _call_failed(self, request: ModelRequest, fault: Fault, draw: float) -> ev.CallFailed:
        return call_failed(self._agent, self._called(request), fault).model_copy(update={"draw": draw})

    def _called(self, request: ModelRequest) -> ev.ModelCalled:
        return ev.ModelCalled(
            at=self._agent.host.clock.now(),
            ordinal=request.ordinal,
            attempt=request.attempt,
            model=request.model,
            max_tokens=request.max_tokens,
            purpose="summary",
        )


def _unheard(delta: Delta) -> None:
    """A summary is not shown while it streams."""
