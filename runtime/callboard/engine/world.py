"""Begins what a step asks for. One handler for each step; the table at the end is the whole of it.

A handler records a decision, or starts an operation in the agent's task group. It never waits for the world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from callboard.core.bus.authority import answered, authority_of, cause_of, turn_of, weakest
from callboard.core.bus.mail import injected, sending
from callboard.core.context.stages.persisting import persisted_texts
from callboard.core.context.view.conversation import size
from callboard.core.names import request_envelope_id, request_key, short_id
from callboard.core.stuck import stop_words
from callboard.core.team.standing import farewell, last_words
from callboard.engine import undoing
from callboard.engine.asking import judging, plans
from callboard.engine.asking.requests import overdue_request
from callboard.engine.bus.delivering import delivered
from callboard.engine.hooks import turns as turn_hooks
from callboard.engine.loop import Agent
from callboard.engine.model import counting, summaries, thinking, transcripts
from callboard.engine.reminding import look_round
from callboard.engine.supervision.leaving import (
    children_stopped,
    request_withdrawn,
    requests_withdrawn,
    tasks_freed,
    tasks_kept_freed,
)
from callboard.engine.tasks import claiming
from callboard.engine.tools import background, calling, moving
from callboard.engine.tools.servers import tell_news
from callboard.ports.store import Put, Write
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.errors import Conflict
from callboard.words.values import Envelope

INTERRUPTED = "Interrupted before it finished."


async def begin(agent: Agent, step: st.Step) -> None:
    """Begin one step. Raises what `Store.commit` raises; everything else is an event."""
    await _HANDLERS[type(step)](agent, step)


async def _begin_turn(agent: Agent, step: st.BeginTurn) -> None:
    state = agent.state
    waking = next((e for e in state.mail if e.id == step.cause), None)
    turn = short_id("turn", state.session, agent.name, state.incarnation, state.turns)
    authority = turn_of(waking, authority_of(state), state.me.kind)
    depth = waking.depth if waking else 0
    await agent.note(ev.TurnBegan(at=_now(agent), turn=turn, cause=step.cause, depth=depth, authority=authority))
    look_round(agent)


async def _inject(agent: Agent, step: st.Inject) -> None:
    blocks = tuple(injected(one) for one in agent.state.injections)
    await agent.note(ev.InjectionsDelivered(at=_now(agent), blocks=blocks))


async def _deliver(agent: Agent, step: st.Deliver) -> None:
    """Envelopes into the conversation; what hooks are registered for passes them first."""
    there = {e.id: e for e in agent.state.mail}
    envelopes = [there[one] for one in step.ids]
    if turn_hooks.hooked(agent, envelopes):
        turn_hooks.deliver(agent, envelopes)
        return
    blocks = await delivered(agent, envelopes)
    await agent.note(ev.EnvelopesDelivered(at=_now(agent), ids=step.ids, blocks=blocks))


async def _drop(agent: Agent, step: st.Drop) -> None:
    """What is dropped is told to the lead: nothing goes missing in silence."""
    lead = agent.host.board.agent("lead")
    writes: list[Write] = []
    if lead and agent.name != "lead":
        envelope = Envelope(
            id=short_id("env", *step.ids, "dropped"),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"{len(step.ids)} message(s) to {agent.name} were not delivered: {step.why}",
            caused_by=step.ids[0],
            cause=weakest(cause_of(e) for e in agent.state.mail if e.id in step.ids),
            sent_at=_now(agent),
        )
        writes.append(sending(agent.host.session, envelope))
    await agent.record(ev.EnvelopesDropped(at=_now(agent), ids=step.ids, why=step.why), writes=writes)


async def _skip(agent: Agent, step: st.Skip) -> None:
    await agent.note(
        *(ev.CallJudged(at=_now(agent), call=call, verdict="deny", by=step.by, why=step.why) for call in step.calls)
    )


async def _merge(agent: Agent, step: st.Merge) -> None:
    await tell_news(agent)
    if step.hooks:
        turn_hooks.merge(agent, step.waits)
    else:
        await agent.note(ev.ResultsMerged(at=_now(agent), waits=step.waits))


async def _cancel(agent: Agent, step: st.Cancel) -> None:
    """End operations, then wait for the next change: a tool's process group is gone before anything is said of it."""
    for name in step.operations:
        scope = agent.operations.get(name)
        if scope is not None:
            scope.cancel()
    await agent.begin(st.Wait(None, "cancelled operations"))


async def _interrupt(agent: Agent, step: st.Interrupt) -> None:
    """Every open call gets a result, every request of them is withdrawn, in one commit."""
    state, now = agent.state, _now(agent)
    events: list[ev.Event] = []
    if state.call is not None:
        events.append(ev.ReplyInterrupted(at=now, ordinal=state.call.ordinal, text=""))
    if state.summary is not None:
        events.append(ev.SummaryFailed(at=now, why=step.why))
    writes: list[Write] = []
    for one in state.calls:
        if one.stage == "settled":
            continue
        if one.stage != "finished":
            text = ({"type": "text", "text": INTERRUPTED},)
            events.append(ev.ToolFinished(at=now, call=one.call.id, content=text, is_error=True))
            writes += children_stopped(agent.host, agent.name, f"{agent.name} was {step.why}", one.call.id)
        events.append(ev.ToolSettled(at=now, call=one.call.id))
        if one.stage == "asking" and one.request_id:
            writes.extend(request_withdrawn(agent.host, one.request_id, step.why))
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:
        await agent.host.refresh(lost.what)  # it was answered at the same moment: `decide` asks again


async def _expire(agent: Agent, step: st.Expire) -> None:
    """The deadline has come: put it to someone else as well, or refuse."""
    me = agent.state.me
    seconds = me.plan_deadline if step.request.kind == "plan" else me.ask_deadline or 0.0
    await overdue_request(agent.host, step.request.id, seconds, attended=me.ask_deadline != 0)


async def _retry(agent: Agent, step: st.PlanRetry) -> None:
    await agent.record(
        ev.RetryPlanned(at=_now(agent), until=step.until, attempt=step.attempt, parked=step.parked, why=step.why)
    )


async def _switch(agent: Agent, step: st.SwitchModel) -> None:
    await agent.record(ev.ModelSwitched(at=_now(agent), model=step.model, why=step.why, skipped=step.skipped))


async def _react(agent: Agent, step: st.React) -> None:
    await agent.record(ev.ReactAsked(at=_now(agent), why=step.why))


async def _continue(agent: Agent, step: st.Continue) -> None:
    await agent.record(ev.ContinuationAsked(at=_now(agent), count=step.count))


async def _edit_view(agent: Agent, step: st.EditView) -> None:
    """Whole texts go to files before the edit that hides them is recorded."""
    state = agent.state
    transcript = ""
    for path, text in persisted_texts(state.conversation, step.edits).items():
        await agent.host.ports.archive.keep(path, text)
    if step.transcript:
        transcript = await transcripts.write(agent)
    before = size(state.conversation)
    event = ev.ContextEdited(
        at=_now(agent),
        stage=step.stage,
        trigger=step.trigger,
        revision=state.conversation.revision,
        edits=step.edits,
        tokens_before=before,
        transcript=transcript,
        why=step.why,
    )
    await agent.record(transcripts.checked(agent, event))


async def _notice_stuck(agent: Agent, step: st.NoticeStuck) -> None:
    """A word to the agent, or the end of its turn in the same commit."""
    noticed = ev.StuckNoticed(
        at=_now(agent), pattern=step.pattern, count=step.count, what=step.what, action=step.action
    )
    if step.action == "nudge":
        await agent.record(noticed)
    else:
        await _end_turn(agent, st.EndTurn("limit", stop_words(step.what, step.count)), noticed)


async def _end_turn(agent: Agent, step: st.EndTurn, *why: ev.Event) -> None:
    """The turn's last record, with what led to it and what a teammate owes its lead in the same commit."""
    state, now = agent.state, _now(agent)
    assert state.turn is not None, "a turn that ends is under way"
    lead = agent.host.board.agent("lead")
    events: list[ev.Event] = [*why]
    mail = farewell(state, step, lead[0] if lead else None, now)
    if any(e.type in ("result", "error") for e in mail):
        status = "done" if step.reason == "end" else "failed"
        events.append(ev.Reported(at=now, status=status, result=mail[0].content))
    events.append(ev.TurnEnded(at=now, turn=state.turn.id, reason=step.reason, text=state.turn.text, why=step.why))
    writes: list[Write] = [sending(agent.host.session, e) for e in mail]
    reports = any(isinstance(one, ev.Reported) for one in events)
    if reports and state.gate.gate == "pending" and state.gate.request_id:  # a report sets the gate anew
        writes += request_withdrawn(agent.host, state.gate.request_id, f"{agent.name} ended its turn: {step.why}")
    if step.reason in ("failed", "limit", "overflow", "refused") and state.me.kind == "teammate":
        note = f"{agent.name} stopped before it was done: {step.why}"
        writes += tasks_freed(agent.host, agent.host.holder(state), note)
        held = state.tasks.items()
        events[-1:-1] = [ev.TaskHeld(at=now, task=one, subject=what, held=False) for one, what in held]
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:
        await agent.host.refresh(lost.what)  # a row moved under us: `decide` asks again, on fresh rows


async def _stop(agent: Agent, step: st.Stop) -> None:
    """The last record. Tasks held come free, requests are withdrawn, subagents are stopped, a shutdown is answered, all
    in one commit; its background commands are ended before."""
    state, now, session = agent.state, _now(agent), agent.host.session
    carries = state.renew == "carry"  # the new life takes them over
    note = f"{agent.name} ended before it was done"
    writes = [] if carries else tasks_freed(agent.host, agent.host.holder(state), note)
    writes += [] if state.renew else tasks_kept_freed(agent.host, agent.name)
    kept = ("question",) if carries else ()
    writes += requests_withdrawn(agent.host, agent.name, f"{agent.name} has ended", keep=kept)
    lead = agent.host.board.agent("lead")
    for envelope in last_words(state, lead[0] if lead else None, step.outcome, now):
        writes.append(sending(session, envelope))
    writes += children_stopped(agent.host, agent.name, note)
    for request_id in _shutdowns(agent):
        writes.extend(_shutdown_answer(agent, request_id, now))
    try:
        await agent.record(ev.AgentStopped(at=now, outcome=step.outcome, result=step.result), writes=writes)
    except Conflict as lost:
        await agent.host.refresh(lost.what)  # a row moved under us: `decide` asks again, on fresh rows


def _shutdowns(agent: Agent) -> list[str]:
    """The shutdowns that this life was asked for, heard of or not."""
    asked = [one for one in agent.host.board.requests() if one.kind == "shutdown" and one.status == "pending"]
    life = (agent.name, agent.state.incarnation)
    return [one.id for one in asked if (one.payload.get("teammate"), one.payload.get("incarnation")) == life]


def _shutdown_answer(agent: Agent, request_id: str, now: float) -> list[Write]:
    row = agent.host.board.request(request_id)
    if row is None or row[0].status != "pending":
        return []
    session, request = agent.host.session, row[0]
    agreed = request.model_copy(update={"status": "approved", "answered_by": agent.name})
    asker = agent.host.board.agent(request.asked_by)
    writes: list[Write] = [Put(request_key(session, request_id), agreed.encode(), expected=row[1])]
    if asker:
        envelope = Envelope(
            id=short_id("env", request_id, "shutdown_response"),
            sender=agent.name,
            recipient=asker[0].name,
            incarnation=asker[0].incarnation,
            type="shutdown_response",
            content=f"{agent.name} has stopped.",
            request_id=request_id,
            reply_to=request_envelope_id(request_id, agent.name),
            sender_incarnation=agent.state.incarnation,
            cause=answered(request, agent.name),
            sent_at=now,
        )
        writes.append(sending(session, envelope))
    return writes


def _now(agent: Agent) -> float:
    return agent.host.clock.now()


_HANDLERS: dict[type, Callable[[Agent, Any], Awaitable[None]]] = {
    st.BeginTurn: _begin_turn,
    st.Move: moving.move,
    st.Inject: _inject,
    st.Deliver: _deliver,
    st.Drop: _drop,
    st.AskModel: thinking.ask_model,
    st.ReachBudget: thinking.reach_budget,
    st.CountTokens: counting.count_tokens,
    st.LoseCall: thinking.lose_call,
    st.Judge: judging.judge,
    st.Skip: _skip,
    st.Run: calling.run,
    st.Repair: calling.repair,
    st.Settle: calling.settle,
    st.Merge: _merge,
    st.NoticeStuck: _notice_stuck,
    st.Cancel: _cancel,
    st.Interrupt: _interrupt,
    st.TakeAnswer: plans.take_answer,
    st.Expire: _expire,
    st.PlanRetry: _retry,
    st.SwitchModel: _switch,
    st.React: _react,
    st.Continue: _continue,
    st.EditView: _edit_view,
    st.Summarise: summaries.summarise,
    st.Undo: undoing.undo,
    st.AskStartHooks: turn_hooks.ask_start_hooks,
    st.AskStopHooks: turn_hooks.ask_stop_hooks,
    st.EndTurn: _end_turn,
    st.Claim: claiming.claim,
    st.LetGo: claiming.let_go,
    st.Watch: background.watch,
    st.EndCommands: background.end_commands,
    st.Stop: _stop,
}
