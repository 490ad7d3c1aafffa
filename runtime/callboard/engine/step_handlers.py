"""Handlers of steps, one for each step. The table at the end is complete.

A handler records a decision, or starts an operation in the agent's task group. It never waits for the outside world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from callboard.core.agent.rules.final_report import life_end_messages, turn_end_messages
from callboard.core.agent.state import AgentState
from callboard.core.agent.stuck_detector import stop_words
from callboard.core.agent.turn_start import turn_began
from callboard.core.approvals.requests import SCHEDULED_WAIT
from callboard.core.budgets.tree import schedule_of
from callboard.core.context.stages.results import persisted_texts
from callboard.core.context.view.conversation import size
from callboard.core.context.view.sendable import with_attachments
from callboard.core.keys import count_words, request_envelope_id, request_key, short_id
from callboard.core.messaging.authority import answer_authority, effective_authority, weakest
from callboard.core.messaging.envelopes import envelope_write, injection_block
from callboard.core.recovery.refused_blocks import LEFT_OUT
from callboard.core.recovery.retry_policy import without_advice
from callboard.core.tasks.board import ready_for
from callboard.core.team.subagents import in_background
from callboard.core.team.unfinished import keeps_tasks
from callboard.engine import transcripts
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.approvals.requests import overdue_request
from callboard.engine.operations import (
    background,
    claim_task,
    model_call,
    permission_check,
    prompt,
    summarize,
    tool_call,
    turn_hooks,
    undo,
    worktree,
)
from callboard.engine.operations.cleanup import (
    children_stopped,
    free_reserved_tasks,
    request_withdrawn,
    requests_withdrawn,
    returned_tasks,
    task_writes,
    tasks_freed,
)
from callboard.engine.operations.mcp_tools import remind_of_changes
from callboard.engine.operations.prompt import start_reminders
from callboard.engine.operations.receive import delivery_blocks
from callboard.ports.store import Put, Write
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.errors import Conflict
from callboard.types.records import Envelope, Task

INTERRUPTED = "Interrupted before it finished."
NOT_BEGUN = "Not run: interrupted before it began."


def begin(agent: AgentRuntime, step: st.Step) -> Awaitable[None]:
    """Begin one step. Raises the exceptions of `Store.commit`; any other failure becomes an event."""
    return _HANDLERS[type(step)](agent, step)


async def _begin_turn(agent: AgentRuntime, step: st.BeginTurn) -> None:
    await agent.note(turn_began(agent.state, step.cause, _now(agent)))
    start_reminders(agent)


async def _inject(agent: AgentRuntime, step: st.Inject) -> None:
    blocks = tuple(injection_block(injection) for injection in agent.state.context.injections)
    await agent.note(ev.InjectionsDelivered(at=_now(agent), blocks=blocks))


async def _deliver(agent: AgentRuntime, step: st.Deliver) -> None:
    """Deliver envelopes to the conversation, through hooks if there are any."""
    mail_by_id = {e.id: e for e in agent.state.inbox.mail}
    envelopes = [mail_by_id[envelope_id] for envelope_id in step.ids]
    if turn_hooks.needs_hooks(agent, envelopes):
        turn_hooks.deliver_with_hooks(agent, envelopes)
        return
    blocks = await delivery_blocks(agent, envelopes)
    placed = (with_attachments(envelope, block) for envelope, block in zip(envelopes, blocks, strict=True))
    visible = tuple(block for row in placed for block in row)
    await agent.note(ev.EnvelopesDelivered(at=_now(agent), ids=step.ids, blocks=visible))


async def _drop_mail(agent: AgentRuntime, step: st.Drop) -> None:
    """Drop envelopes and inform the lead and the agents that sent them, so that nothing is lost silently.

    The lead itself reads of its own mail, and each sender of its message, in its next turn: a message that woke them
    would continue the chain that was too long. A person needs no notice: the person interrupted the turn.
    """
    dropped = [envelope for envelope in agent.state.inbox.mail if envelope.id in step.ids]
    from_others = [envelope for envelope in dropped if envelope.sender != "person"]
    senders = {envelope.sender for envelope in from_others} - {agent.name}
    writes: list[Write] = []
    for name in sorted({"lead", *senders}) if from_others else []:
        found = agent.runtime.rows.agent(name)
        if found is None or found[0].kind == "subagent" or found[0].life == "stopped":
            continue
        concerned = [envelope for envelope in from_others if name in ("lead", envelope.sender)]
        envelope = Envelope(
            id=short_id("env", *step.ids, "dropped", *([] if name == "lead" else [name])),
            sender="runtime",
            recipient=name,
            incarnation=found[0].incarnation,
            type="error",
            mode="wake" if name == "lead" and agent.name != "lead" else "queue",
            content=f"{count_words(len(concerned), 'message')} to {agent.name} not delivered: {step.why}",
            caused_by=step.ids[0],
            cause=weakest(map(effective_authority, dropped)),
            sent_at=_now(agent),
        )
        writes.append(envelope_write(agent.runtime.session, envelope))
    event = ev.EnvelopesDropped(at=_now(agent), ids=step.ids, why=step.why, refused=step.refused)
    await agent.record(event, writes=writes)


async def _skip_calls(agent: AgentRuntime, step: st.Skip) -> None:
    await agent.note(
        *(ev.CallJudged(at=_now(agent), call=call, verdict="deny", by=step.by, why=step.why) for call in step.calls)
    )


async def _merge_results(agent: AgentRuntime, step: st.Merge) -> None:
    await remind_of_changes(agent)
    if step.hooks:
        turn_hooks.merge_with_hooks(agent, step.waits)
    else:
        await agent.note(ev.ResultsMerged(at=_now(agent), waits=step.waits))


async def _cancel_operations(agent: AgentRuntime, step: st.Cancel) -> None:
    """Cancel operations, then wait for the next change.

    The process group of a tool ends before its result is recorded.
    """
    for operation in step.operations:
        task = agent.operations.get(operation)
        if task is not None:
            task.cancel()
    await agent.begin(st.Wait(None, "cancelled operations"))


async def _interrupt_calls(agent: AgentRuntime, step: st.Interrupt) -> None:
    """Give every open call a result and withdraw its requests, in one commit."""
    state = agent.state
    now = _now(agent)
    events: list[ev.Event] = []
    if state.model.call is not None:
        events.append(ev.ReplyInterrupted(at=now, ordinal=state.model.call.ordinal, text=""))
    if state.compaction.summary is not None:
        events.append(ev.SummaryFailed(at=now, why=step.why))
    writes: list[Write] = []
    for call in state.calls:
        if call.stage == "settled":
            continue
        if call.stage == "finished":
            events.append(ev.ToolSettled(at=now, call=call.call.id))
        else:
            text = INTERRUPTED if call.stage == "started" else NOT_BEGUN
            content = ({"type": "text", "text": text},)
            events.append(ev.ToolFinished(at=now, call=call.call.id, content=content, is_error=True, settled=True))
            # In the same commit, because nothing reads the result of a subagent whose call was interrupted
            # (test_an_interrupted_call_stops_its_subagent).
            writes += children_stopped(agent.runtime, agent.name, f"{agent.name} was {step.why}", call.call.id)
        if call.stage == "asking" and call.request_id:
            writes.extend(request_withdrawn(agent.runtime, call.request_id, step.why))
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:
        # The request was answered at the same moment: `decide` runs again
        # (test_an_answer_at_the_very_moment_of_an_interrupt_crashes_nobody).
        await agent.runtime.refresh(lost.what)


async def _handle_deadline(agent: AgentRuntime, step: st.Expire) -> None:
    """Handle a deadline: escalate the request, or reject it."""
    me = agent.state.me
    wait = me.plan_deadline if step.request.kind == "plan" else me.ask_deadline or 0.0
    seconds = SCHEDULED_WAIT if wait is None else wait  # only a request of a scheduled turn has a deadline then
    passed = step.request.expires_at or 0.0
    await overdue_request(agent.runtime, step.request.id, seconds, attended=me.ask_deadline != 0, passed=passed)


async def _plan_retry(agent: AgentRuntime, step: st.PlanRetry) -> None:
    await agent.record(
        ev.RetryPlanned(at=_now(agent), until=step.until, attempt=step.attempt, parked=step.parked, why=step.why)
    )


async def _switch_model(agent: AgentRuntime, step: st.SwitchModel) -> None:
    await agent.record(ev.ModelSwitched(at=_now(agent), model=step.model, why=step.why, skipped=step.skipped))


async def _react(agent: AgentRuntime, step: st.React) -> None:
    await agent.record(ev.ReactAsked(at=_now(agent), why=step.why))


async def _continue_reply(agent: AgentRuntime, step: st.Continue) -> None:
    await agent.record(ev.ContinuationAsked(at=_now(agent), count=step.count, call=step.call))


async def _edit_view(agent: AgentRuntime, step: st.EditView) -> None:
    """Write full texts to files, then record the edit that hides them."""
    view = agent.state.context.conversation
    edited = ev.ContextEdited(
        at=_now(agent),
        stage=step.stage,
        trigger=step.trigger,
        revision=view.revision,
        edits=step.edits,
        tokens_before=size(view),
        why=step.why,
    )
    event = transcripts.checked_edit(agent, edited)
    # Files before the record: after a crash in between, the edit is decided again. In the other order the record could
    # name a file that was never written.
    for path, text in persisted_texts(view, event.edits).items():
        await agent.runtime.services.archive.keep(path, text)
    transcript = await transcripts.write(agent) if step.transcript else ""
    await agent.record(event.model_copy(update={"transcript": transcript}))


async def _leave_out(agent: AgentRuntime, step: st.LeaveOut) -> None:
    event = ev.ContextEdited(
        at=_now(agent),
        stage=LEFT_OUT,
        trigger="reactive",
        revision=agent.state.context.conversation.revision,
        edits=(step.edit,),
        why=step.reason,
    )
    await agent.record(transcripts.with_measurements(agent.state, event))


async def _notice_stuck(agent: AgentRuntime, step: st.NoticeStuck) -> None:
    """Nudge the agent, or end its turn in the same commit."""
    noticed = ev.StuckNoticed(
        at=_now(agent), pattern=step.pattern, count=step.count, what=step.what, action=step.action
    )
    if step.action == "nudge":
        await agent.record(noticed)
    else:
        await _end_turn(agent, st.EndTurn("limit", stop_words(step.what, step.count), "repetition"), noticed)


async def _remind_tasks(agent: AgentRuntime, step: st.RemindTasks) -> None:
    await agent.record(ev.TasksReminded(at=_now(agent), tasks=step.tasks))


async def _continue_after_shutdown(agent: AgentRuntime, step: st.ContinueAfterShutdown) -> None:
    await agent.record(ev.ShutdownRefused(at=_now(agent), request_id=step.request_id, reason=step.reason))


async def _end_turn(agent: AgentRuntime, step: st.EndTurn, *preceding: ev.Event) -> None:
    """Record the end of the turn, with its cause and a teammate's report to its lead, in one commit."""
    state = agent.state
    now = _now(agent)
    assert state.turn is not None, "a turn that ends is under way"
    lead = agent.runtime.rows.agent("lead")
    events: list[ev.Event] = [*preceding]
    released = _tasks_to_release(agent, step)
    continues = state.work.assignment and bool(
        ready_for(agent.runtime.rows.at_stake(), agent.runtime.task_holder(state))
    )
    mail = turn_end_messages(state, step, lead[0] if lead else None, now=now, released=released, continues=continues)
    if any(e.type in ("result", "error") for e in mail):
        status = "done" if step.reason == "end" and not released else "failed"
        events.append(ev.Reported(at=now, status=status, result=mail[0].content))
    text = _final_text(state)
    ended = ev.TurnEnded(at=now, turn=state.turn.id, reason=step.reason, text=text, why=step.why, limit=step.limit)
    events.append(ended)
    writes: list[Write] = [envelope_write(agent.runtime.session, e) for e in mail]
    reports = any(isinstance(event, ev.Reported) for event in events)
    # Otherwise the plan would outlive its turn, and be approved without effect
    # (test_a_plan_is_withdrawn_when_its_turn_ends_at_the_time_limit).
    if reports and state.work.gate.gate == "pending" and state.work.gate.request_id:  # a report resets the gate
        writes += request_withdrawn(
            agent.runtime, state.work.gate.request_id, f"{agent.name} ended its turn: {step.why}"
        )
    if released:
        writes += task_writes(agent.runtime, released)
        events[-1:-1] = [ev.TaskHeld(at=now, task=task.id, subject=task.subject, held=False) for task in released]
    shutdown = agent.runtime.rows.request(state.lifecycle.leaving) if state.lifecycle.leaving else None
    # Written unchanged: if the request was rejected in between, the commit fails and the agent stays.
    if shutdown is not None:
        writes.append(
            Put(request_key(agent.runtime.session, state.lifecycle.leaving), shutdown[0].encode(), expected=shutdown[1])
        )
    # The next step is the end of its life. The scheduler follows the turns of its own subagents, and must not count an
    # end that a crash could undo.
    if state.me.kind == "subagent" and not writes and not schedule_of(state.turn.cause):
        await agent.note(*events, row_waits=True)
        return
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:
        await agent.runtime.refresh(lost.what)  # a row changed meanwhile: `decide` runs again on fresh rows


def _final_text(state: AgentState) -> str:
    """Return the final text of the turn. Text of a reply that a full window cut counts if no other reply came."""
    assert state.turn is not None, "a turn ends"
    cut = state.model.recovery.cut_text
    return state.turn.said.with_reply(({"type": "text", "text": cut},), "").text if cut else state.turn.text


def _tasks_to_release(agent: AgentRuntime, step: st.EndTurn) -> list[Task]:
    """Return the unfinished tasks that a teammate releases at the end of its turn."""
    state = agent.state
    if state.me.kind != "teammate" or state.turn is None:
        return []
    if step.reason in ("failed", "limit", "overflow", "refused"):
        # Another agent may be able to do the task (test_a_teammate_that_stops_at_a_limit_gives_its_task_back).
        note = f"{agent.name} stopped before it was done: {without_advice(step.why)}"
    elif step.reason == "blocked" or (step.reason == "interrupted" and state.turn.halted):
        # Nobody continues the work after a hook, while a person who interrupts does
        # (test_a_teammate_that_a_hook_halts_gives_its_task_back).
        note = f"{agent.name} was halted by a hook before it was done: {state.turn.halted or step.why}"
    elif step.reason == "end" and state.work.tasks and not keeps_tasks(state):
        suffix = f" Its last words: {state.turn.text}" if state.turn.text else ""
        note = f"{agent.name} ended its turn before it was done.{suffix}"
    else:
        return []
    return returned_tasks(agent.runtime, agent.runtime.task_holder(state), note)


async def _stop_agent(agent: AgentRuntime, step: st.StopAgent) -> None:
    """Write the last record.

    The same commit frees the tasks, withdraws requests, stops subagents and answers a shutdown. Background commands
    have ended before.
    """
    state = agent.state
    now = _now(agent)
    session = agent.runtime.session
    carries = state.lifecycle.renew == "carry"  # the new life takes them over
    note = f"{agent.name} ended before it was done"
    writes = [] if carries else tasks_freed(agent.runtime, agent.runtime.task_holder(state), note)
    writes += [] if state.lifecycle.renew else free_reserved_tasks(agent.runtime, agent.name)
    # The user may be about to answer (test_a_question_of_the_old_life_is_answered_to_the_new_one).
    kept_kinds = ("question",) if carries else ()
    writes += requests_withdrawn(agent.runtime, agent.name, f"{agent.name} has ended", keep=kept_kinds)
    lead = agent.runtime.rows.agent("lead")
    for envelope in life_end_messages(state, lead[0] if lead else None, step.outcome, now):
        writes.append(envelope_write(session, envelope))
    # The new life watches those in the background (test_a_fresh_conversation_keeps_its_subagents_in_the_background).
    kept = [began.agent for began in in_background(state)] if state.lifecycle.renew else ()
    writes += children_stopped(agent.runtime, agent.name, note, keep=kept)
    for request_id in _shutdown_requests(agent):
        writes.extend(_shutdown_answer(agent, request_id, now))
    try:
        # One commit: after a crash between several, no process would free the tasks of an agent that has ended
        # (test_shutdown_is_a_handshake_and_a_dead_owners_task_comes_free).
        await agent.record(ev.AgentStopped(at=now, outcome=step.outcome, result=step.result), writes=writes)
    except Conflict as lost:
        await agent.runtime.refresh(lost.what)  # a row changed meanwhile: `decide` runs again on fresh rows


def _shutdown_requests(agent: AgentRuntime) -> list[str]:
    """Return the shutdown requests to this life, whether it has read them or not."""
    shutdowns = [request for request in agent.runtime.rows.pending_requests() if request.kind == "shutdown"]
    life = (agent.name, agent.state.identity.incarnation)
    return [
        shutdown.id
        for shutdown in shutdowns
        if (shutdown.payload.get("teammate"), shutdown.payload.get("incarnation")) == life
    ]


def _shutdown_answer(agent: AgentRuntime, request_id: str, now: float) -> list[Write]:
    row = agent.runtime.rows.request(request_id)
    if row is None or row[0].status != "pending":
        return []
    session = agent.runtime.session
    request = row[0]
    agreed = request.model_copy(update={"status": "approved", "answered_by": agent.name})
    asker = agent.runtime.rows.agent(request.asked_by)
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
            sender_incarnation=agent.state.identity.incarnation,
            cause=answer_authority(request, agent.name),
            sent_at=now,
        )
        writes.append(envelope_write(session, envelope))
    return writes


def _now(agent: AgentRuntime) -> float:
    return agent.runtime.clock.now()


_HANDLERS: dict[type, Callable[[AgentRuntime, Any], Awaitable[None]]] = {
    st.BeginTurn: _begin_turn,
    st.EnterFolder: worktree.enter_folder,
    st.Inject: _inject,
    st.Deliver: _deliver,
    st.Drop: _drop_mail,
    st.SetPrompt: prompt.renew_prompt,
    st.AskModel: model_call.ask_model,
    st.ReachBudget: model_call.reach_budget,
    st.CountTokens: model_call.count_tokens,
    st.LoseCall: model_call.lose_call,
    st.CheckPermissions: partial(
        permission_check.check_permissions,
        runner=permission_check.CallRunner(tool_call.prepare_and_run, tool_call.immediate_runner),
    ),
    st.Skip: _skip_calls,
    st.Run: tool_call.run,
    st.Repair: tool_call.repair,
    st.Settle: tool_call.settle,
    st.Merge: _merge_results,
    st.NoticeStuck: _notice_stuck,
    st.Cancel: _cancel_operations,
    st.Interrupt: _interrupt_calls,
    st.TakeAnswer: permission_check.take_answer,
    st.Expire: _handle_deadline,
    st.PlanRetry: _plan_retry,
    st.SwitchModel: _switch_model,
    st.React: _react,
    st.LearnLimits: model_call.learn_limits,
    st.Continue: _continue_reply,
    st.EditView: _edit_view,
    st.LeaveOut: _leave_out,
    st.SummarizeView: summarize.summarize_view,
    st.Undo: undo.undo,
    st.AskStartHooks: turn_hooks.ask_start_hooks,
    st.ContinueAfterShutdown: _continue_after_shutdown,
    st.RemindTasks: _remind_tasks,
    st.AskStopHooks: turn_hooks.ask_stop_hooks,
    st.EndTurn: _end_turn,
    st.ClaimTask: claim_task.claim_task,
    st.ReleaseTasks: claim_task.release_tasks,
    st.WatchBackground: background.watch,
    st.EndCommands: background.end_commands,
    st.StopAgent: _stop_agent,
}
