"""Choice of an agent's next step: `decide(state, facts) -> Step`. The first rule of an ordered list that applies wins.

A rule is a plain function of the state and the facts that returns a step or None. The order is the policy:

    ended -> stop and interrupt -> reassigned tasks -> answers to requests -> work without an owner -> edits to undo ->
    failure of a model call -> its folder -> calls of the reply (barrier, permission, run, settle, merge) ->
    hooks of its beginning -> requested end -> plan pending -> prompt -> count -> compaction -> injections -> mail ->
    repetition -> ask the model (limits first) -> Stop hooks -> end of turn -> board -> idle

A step that starts an operation is never returned twice: the operation is in `facts.running`, or its start is in the
journal. So every call of `decide` makes progress or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callboard.core.agent.changes import lacks_submit_plan
from callboard.core.agent.rules.compaction import COUNT, compact_view, count_tokens, undo_edits
from callboard.core.agent.rules.delivery import (
    await_recorded,
    burst_until,
    deliverable,
    muted_until,
    too_many_tasks,
    too_much_mail,
    waking_envelopes,
)
from callboard.core.agent.rules.final_report import subagent_report
from callboard.core.agent.rules.hooks import BATCH_HOOKS, HOOKS, SKILLS, run_start_hooks
from callboard.core.agent.rules.limits import CallAllowance, end_of_time, next_call, time_is_up
from callboard.core.agent.rules.worktree import prepare_folder
from callboard.core.agent.state import AgentState, Facts, Turn
from callboard.core.agent.stuck_detector import find_pattern
from callboard.core.approvals.plan_gate import NOT_RUN
from callboard.core.budgets.tree import NOTHING
from callboard.core.call_order import judgeable, runnable, without_operation
from callboard.core.context.view.conversation import size
from callboard.core.messaging.authority import is_note, is_user_prompt
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.fallback import ModelDemand, next_model, reader_of
from callboard.core.recovery.refused_blocks import left_out_words, refused_block
from callboard.core.team.unfinished import reminder_due
from callboard.types import steps as st
from callboard.types.operations import Operation
from callboard.types.records import Request

Rule = Callable[[AgentState, Facts], st.Step | None]

MAX_DEPTH = 6
"""Most hops between agents without a message of the user, a schedule, or a change to a task or file."""
MODEL = Operation("model")
SUMMARY = Operation("summary")
REMINDERS = Operation("reminders")
PROMPT = Operation("prompt")
WAITED_FOR = HOOKS | {REMINDERS, COUNT, SKILLS, PROMPT}
"""Operations that must end before the next model call."""


def decide(state: AgentState, facts: Facts) -> st.Step:
    """Return the next step. Some rule always applies: the last one is `idle`."""
    for rule in RULES:
        step = rule(state, facts)
        if step is not None:
            return step
    raise AssertionError("the last rule always returns a step")


def finish_life(state: AgentState, facts: Facts) -> st.Step | None:
    """Finish the life once its last record is in the journal."""
    if state.lifecycle.ended is None:
        return None
    return st.LifeDone(state.lifecycle.ended.outcome, state.lifecycle.ended.result)


def handle_stop(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle a stop, a shutdown or an interrupt: cancel running operations, settle open calls, and end the turn.

    End the life too if requested.
    """
    turn = state.turn
    reason = _why_halt(state, facts)
    if not reason:
        return None
    # An interrupt ends the turn only (test_an_interrupt_ends_the_turn_but_lets_background_commands_run).
    spared = ("end",) if state.lifecycle.stop else ("end", "bg")
    running = tuple(sorted(operation for operation in facts.running if operation.kind not in spared))
    # Operations first: a tool that still runs could change files after its call has a result
    # (test_a_stop_cancels_all_then_answers_all_then_ends_the_turn_then_the_life).
    if running:
        return st.Cancel(running)
    if state.model.call is not None or state.calls.stages - {"settled"} or state.compaction.summary:
        return st.Interrupt("stopped" if state.lifecycle.stop else reason)
    if state.calls:
        return st.Merge()
    if turn is not None:
        if reason == "interrupted" and (unread := _unread_prompt(state)):
            return st.Drop((unread,), "the prompt was not read before the interrupt: send it again", refused=True)
        if state.lifecycle.stop:
            return st.EndTurn("stopped")
        if reason != "limit":
            return _interrupted_end(turn)
        return time_is_up(state, facts)
    if not state.lifecycle.stop:
        return None
    return end_leftover_commands(state, facts) or st.StopAgent("stopped", state.work.reported or state.turns.last_text)


def _interrupted_end(turn: Turn) -> st.EndTurn:
    if turn.halted:
        return st.EndTurn("interrupted", f"a hook stopped the turn: {turn.halted}", "hook")
    return st.EndTurn("interrupted", turn.refused)


def _unread_prompt(state: AgentState) -> str:
    """Return the id of the prompt for which the turn began, if the turn has not read it; else empty.

    The prompt would begin the next turn at once: the interrupt would change nothing, and hooks would run twice. Mail of
    agents is never dropped for an interrupt.
    """
    turn = state.turn
    if turn is None or turn.wakes or turn.steps:
        return ""
    unread = (envelope.id for envelope in state.inbox.mail if envelope.sender == "person")
    return turn.cause if turn.cause in unread else ""


def end_leftover_commands(state: AgentState, facts: Facts) -> st.Step | None:
    """End background commands with the life that started them, because no other life would receive their end.

    The next life of a renewed name takes them over.
    """
    if state.lifecycle.renew:
        return None
    running = [command for command, bg in state.work.background.items() if bg.status == "running"]
    unended = tuple(command for command in running if Operation("end", command) not in facts.running)
    if unended:
        return st.EndCommands(unended)
    return st.Wait(None, "background commands") if running else None


def _why_halt(state: AgentState, facts: Facts) -> str:
    if state.lifecycle.stop:
        return "stopped"
    if state.turn is None:
        return "interrupted" if state.compaction.summary_halted and state.compaction.summary else ""
    if state.turn.interrupted:
        return "interrupted"
    return "limit" if time_is_up(state, facts) else ""


def handle_answers(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle requests of this agent that are no longer pending, or past their deadline, and a withdrawn shutdown."""
    leaving = state.lifecycle.leaving
    shutdown = facts.requests.get(leaving) if leaving else None
    if shutdown is not None and shutdown.status in ("rejected", "withdrawn"):
        return st.ContinueAfterShutdown(shutdown.id, f"it is {shutdown.status}")
    for request in _open_requests(state, facts):
        if request.status != "pending" and Operation("answer", request.id) not in facts.running:
            return st.TakeAnswer(request)
        deadline = _deadline(request, facts)
        if request.status == "pending" and deadline is not None and facts.now >= deadline:
            return st.Expire(request)
    return None


def _deadline(request: Request, facts: Facts) -> float | None:
    """Return the deadline of a request on the current clock. Setting the clock back does not lengthen it."""
    end = facts.deadlines.get(request.id)
    if request.expires_at is None or end is None:
        return request.expires_at
    # The earlier one, because each clock can be wrong in one direction
    # (test_a_clock_that_is_set_back_lengthens_no_deadline_and_one_that_is_set_forward_ends_it).
    return min(request.expires_at, facts.now + end - facts.awake)


def _open_requests(state: AgentState, facts: Facts) -> Sequence[Request]:
    gate = state.work.gate
    if "asking" not in state.calls.stages and gate.gate != "pending":
        return ()
    ids = [item.request_id for item in state.calls.at("asking")]
    if gate.gate == "pending":
        ids.append(gate.request_id)
    return [facts.requests[request_id] for request_id in ids if request_id and request_id in facts.requests]


def release_reassigned_tasks(state: AgentState, facts: Facts) -> st.Step | None:
    """Release tasks that the lead or the user reassigned, before the next step."""
    return st.ReleaseTasks(facts.taken) if state.work.tasks and facts.taken else None


def recover_orphans(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle work that the journal lists as running without an operation that owns it, because its process died."""
    if state.model.call is not None and state.model.call.purpose == "turn" and MODEL not in facts.running:
        return st.LoseCall()
    if state.compaction.summary is not None and SUMMARY not in facts.running:
        return st.SummarizeView(state.compaction.summary, begun=True)
    lost = without_operation(state.calls, "started", facts, "tool")
    if lost:
        return st.Repair(lost)
    if not state.work.background:
        return None
    unwatched = tuple(
        command
        for command, bg in state.work.background.items()
        if bg.status == "running" and Operation("bg", command) not in facts.running
    )
    return st.WatchBackground(unwatched) if unwatched else None


def recover_from_failure(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle a failed model call by the recovery rules."""
    recovery = state.model.recovery
    if recovery.failure is None or state.turn is None:
        return None
    fault = recovery.failure.fault
    if fault.kind == "invalid":
        reader = reader_of(state.me, recovery.failure.model)
        if (edit := refused_block(fault, state.context.conversation.messages, reader)) is not None:
            return st.LeaveOut(edit, left_out_words(fault))
    return rec.recover(recovery.failure, recovery, state.me, now=facts.now, demand=_demand(state))


def advance_calls(state: AgentState, facts: Facts) -> st.Step | None:
    """Advance each tool call of the reply as far as possible while others wait."""
    if not state.calls:
        return None
    if state.turn is not None and state.turn.winding_down:
        proposed = tuple(item.call.id for item in state.calls.at("proposed"))
        if proposed:
            return st.Skip(proposed, f"Not run: {state.turn.winding_down}.", "budget")
    stages = state.calls.stages
    step = _proposed(state, facts) if "proposed" in stages else None
    if step is not None:
        return step
    run = runnable(state.calls, facts) if "allowed" in stages else ()
    if run:
        return st.Run(run)
    settle = without_operation(state.calls, "finished", facts, "settle")
    if settle:
        return st.Settle(settle)
    if stages == {"settled"} and BATCH_HOOKS not in facts.running:
        return st.Merge(_only_watches(state, facts), facts.batch)
    asking = state.calls.at("asking")
    until = _next_time(state, facts)
    return st.Wait(until, "permission", asking[0].request_id or "") if asking else st.Wait(until, "tools")


def _proposed(state: AgentState, facts: Facts) -> st.Step | None:
    """Check the calls that no earlier call blocks. Refuse calls after a barrier that has run."""
    barrier = _barrier(state, facts) if len(state.calls) > 1 else None
    after = () if barrier is None else tuple(c.call.id for c in state.calls[barrier + 1 :] if c.stage == "proposed")
    if after:
        return st.Skip(after, f"{NOT_RUN}." if _submits(state, barrier) else "Not run.")
    if (denied := too_much_mail(state, facts) or too_many_tasks(state, facts)) is not None:
        return denied
    judge = judgeable(state.calls, facts)
    return st.CheckPermissions(judge) if judge else None


def _only_watches(state: AgentState, facts: Facts) -> bool:
    """Return True if the calls only watch others, and some of them are working."""
    for name in state.calls.names:
        tool = facts.tools.get(name)
        if tool is None or not tool.watches:
            return False
    return facts.others_at_work or any(command.status == "running" for command in state.work.background.values())


def _submits(state: AgentState, barrier: int | None) -> bool:
    return barrier is not None and state.calls[barrier].call.name == "submit_plan"


def _barrier(state: AgentState, facts: Facts) -> int | None:
    """Return the index of the first call that ran and lets no later call run.

    A barrier that was denied or failed lets them run.
    """
    if not any((tool := facts.tools.get(name)) and tool.barrier for name in state.calls.names):
        return None
    for place, item in enumerate(state.calls):
        tool = facts.tools.get(item.call.name)
        # One that failed has changed nothing, so the calls behind it still make sense
        # (test_a_barrier_that_was_denied_holds_nobody_up).
        if tool is not None and tool.barrier and item.stage == "settled" and not item.is_error:
            return place
    return None


def await_model(state: AgentState, facts: Facts) -> st.Step | None:
    """Wait while a model call, a summary, or an operation of `WAITED_FOR` is running."""
    busy = state.model.call is not None or state.compaction.summary is not None or facts.running & WAITED_FOR
    return st.Wait(_next_time(state, facts), "model") if busy else None


def end_requested_turn(state: AgentState, facts: Facts) -> st.Step | None:
    """End the turn after a tool requested it and its result is merged."""
    if state.turn is None or not state.turn.ending:
        return None
    return st.EndTurn("end")


def handle_cut_reply(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle a reply that was cut at the highest output limit, or paused too often."""
    if state.turn is None or state.turn.winding_down:
        return None
    return rec.after_cut(state.model.recovery) if state.model.recovery.cut else rec.after_pause(state.model.recovery)


def await_plan_answer(state: AgentState, facts: Facts) -> st.Step | None:
    """Wait for the answer to a plan: no model call before it, and mail stays in the mailbox."""
    if state.work.gate.gate != "pending":
        return None
    return st.Wait(_next_time(state, facts), "plan", state.work.gate.request_id)


def compose_prompt(state: AgentState, facts: Facts) -> st.Step | None:
    """Compose the prompt again if the agent entered plan mode and its prompt does not list `submit_plan`."""
    if state.turn is None or not state.context.wants_reply or not lacks_submit_plan(state):
        return None
    return st.SetPrompt()


def inject(state: AgentState, facts: Facts) -> st.Step | None:
    """Add waiting injections to the next user message. They alone do not wake the agent."""
    if state.turn is None or not state.context.injections:
        return None
    return st.Inject() if state.context.wants_reply or deliverable(state, facts) else None


def deliver_mail(state: AgentState, facts: Facts) -> st.Step | None:
    """Deliver all accepted mail in one user message. Mail that wakes the agent begins a turn."""
    if state.turn is not None and state.turn.winding_down:
        return None
    ready = deliverable(state, facts)
    if state.turn is not None and rec.waits_until(state.model.recovery, facts.now) > facts.now:
        # Mail during a back-off would change the request that is to be repeated; a prompt of the user may end a wait
        # (test_a_planned_retry_is_waited_for_and_mail_that_comes_meanwhile_stays_out).
        speaks = state.model.recovery.parked and any(map(is_user_prompt, ready))
        if not speaks:
            return None
    # Two agents that answer each other would never stop
    # (test_a_chain_of_messages_that_is_too_deep_is_dropped_and_told).
    too_deep = tuple(e.id for e in ready if e.depth > MAX_DEPTH and e.type != "shutdown_request")
    if too_deep:
        return st.Drop(too_deep, f"more than {MAX_DEPTH} hops between agents with no task or file changed")
    if state.turn is None and state.context.wants_reply and state.context.injections:
        return st.BeginTurn(state.context.injections[0].key or state.context.injections[0].kind)
    if not ready:
        return await_recorded(state, facts)
    if state.turn is None:
        begins = waking_envelopes(state, ready, facts)
        if begins and (until := burst_until(begins, facts)) is not None:
            return st.Wait(until, "more mail")
        return st.BeginTurn(begins[0].id) if begins else None
    # A note alone would cost a model call, so the next prompt brings it
    # (test_a_note_of_the_person_goes_with_the_next_request_and_makes_none).
    if facts.expected is None and _says_its_last(state) and all(map(is_note, ready)):
        return None  # reading a note alone would cost a model call: it waits for the next prompt
    return st.Deliver(tuple(e.id for e in ready))


def _says_its_last(state: AgentState) -> bool:
    """Return True if the model has replied and nothing in this turn needs another reply."""
    return state.turn is not None and state.turn.steps > 0 and not state.context.wants_reply and not state.calls


def stop_repetition(state: AgentState, facts: Facts) -> st.Step | None:
    """Nudge an agent that repeats itself the first time in a turn, and end the turn the next time.

    A turn that is being wound down keeps its last call in any case.
    """
    turn = state.turn
    if turn is None or not state.context.wants_reply or turn.winding_down:
        return None
    notice = find_pattern(turn.stuck, state.me.stuck_after)
    if notice is None:
        return None
    return st.NoticeStuck(notice.pattern, notice.count, notice.what, "stop" if turn.stuck.nudged else "nudge")


def ask_model(state: AgentState, facts: Facts) -> st.Step | None:
    """Ask the model, unless a limit is reached or the agent must wait."""
    if state.turn is None or not state.context.wants_reply:
        return None
    call = next_call(state, facts)
    if not isinstance(call, CallAllowance):
        return call
    wait = _rate_wait(state, facts)
    if wait > facts.now:
        return _fallback(state, facts) or st.Wait(min(wait, _next_time(state, facts) or wait), "rate")
    reserved = call.worst or NOTHING
    return st.AskModel(
        ordinal=state.model.ordinal + 1,
        attempt=state.model.recovery.attempts + 1,
        model=rec.model_in_use(state.model.recovery, state.me),
        max_tokens=call.max_tokens,
        reserved_tokens=reserved.tokens,
        reserved_usd=reserved.cost_usd,
        wind_down=call.last,
    )


def _rate_wait(state: AgentState, facts: Facts) -> float:
    """Return the time before which no call is made.

    The end of the key's own wait also ends the wait of an agent that it stopped, because another agent's attempt, or
    the user, may have ended it early. A new prompt of the user does not wait for a long time: the limiter sends one
    such call.
    """
    recovery = state.model.recovery
    # The wait that the service named may be over, and the user is waiting
    # (test_a_persons_prompt_waits_for_no_long_park).
    if recovery.prompted and facts.named_until > facts.parked_until:
        return rec.waits_until(recovery, facts.now)
    return facts.parked_until if recovery.parked else max(rec.waits_until(recovery, facts.now), facts.parked_until)


def _fallback(state: AgentState, facts: Facts) -> st.Step | None:
    """Return the step to another model of the chain if the service named a longer wait than the agent accepts."""
    if max(facts.parked_until, facts.named_until) <= facts.now + state.me.max_wait:
        return None
    demand = _demand(state)
    # Each model has limits of its own (test_a_fallback_model_is_used_where_the_service_named_a_long_wait).
    other = next_model(rec.model_in_use(state.model.recovery, state.me), state.me, demand)
    wait = facts.named_until - facts.now
    reason = f"the service asks for a wait of {wait:,.0f} s"
    return st.SwitchModel(other.model, reason, other.skipped) if other.model else None


def _demand(state: AgentState) -> ModelDemand:
    """Return the requirements of the next call for a model that takes over."""
    recovery = state.model.recovery
    return ModelDemand(
        size(state.context.conversation), recovery.output_limit or state.me.output_tokens, recovery.escalated
    )


def end_turn(state: AgentState, facts: Facts) -> st.Step | None:
    """End the turn after the model's last reply: first a reminder of held tasks, then Stop hooks, then the end."""
    turn = state.turn
    if turn is None or (turn.wakes == () and turn.steps == 0):
        if turn is None or not turn.refused:
            return st.EndTurn("end") if turn is not None else None
        return st.EndTurn("blocked", turn.refused, "hook" if turn.refused_by_hook else "")
    if turn.winding_down:
        # Nothing continues a cut last reply, and its text alone does not show that its end is missing.
        cut = "; the last reply was cut off" if state.model.stop_reason == "max_tokens" else ""
        return st.EndTurn("limit", f"{turn.winding_down}{cut}", turn.winding_limit)
    if state.model.stop_reason == "refusal":
        return st.EndTurn("refused", rec.REFUSED)
    if reminder_due(state):
        return st.RemindTasks(tuple(state.work.tasks))
    # A hook that never allows the end would keep the agent working forever
    # (test_stop_hooks_are_asked_once_and_may_go_on_up_to_the_cap).
    if facts.hooks and not turn.stop_asked and turn.stop_blocks < state.me.stop_hook_cap:
        return st.AskStopHooks()
    return st.EndTurn("end")


def rest_between_turns(state: AgentState, facts: Facts) -> st.Step | None:
    """Handle the time between turns.

    A subagent is done, a teammate looks at the board, and any other agent is idle, at most until its muted mail may
    wake it.
    """
    # Queued mail begins no turn: a subagent that waited for another one would keep its caller forever
    # (test_a_subagent_is_done_after_its_turn).
    wakes = any(envelope.mode == "wake" for envelope in state.inbox.mail)
    if state.me.kind == "subagent" and state.turns.count > 0 and not wakes:
        return end_leftover_commands(state, facts) or st.StopAgent(_outcome(state), subagent_report(state))
    if facts.claimable and not state.work.tasks and state.work.gate.gate != "pending":
        return st.ClaimTask(facts.claimable)
    return st.Wait(muted_until(state, facts), "idle")


def _outcome(state: AgentState) -> st.Outcome:
    """Return the outcome of a life that consists of one turn."""
    match state.turns.last_reason:
        case "end":
            return "done"
        case "limit":
            return "limit"
        case "stopped" | "interrupted":
            return "stopped"
        case _:
            return "failed"


def _next_time(state: AgentState, facts: Facts) -> float | None:
    """Return the next time at which the decision may change without an event."""
    times = [_deadline(request, facts) for request in _open_requests(state, facts)]
    times.append(end_of_time(state, facts))
    # A past time has been decided already; waiting for it would repeat the decision at once, forever.
    return min([time for time in times if time is not None and time > facts.now], default=None)


# Why this order, where it is not obvious:
# - `release_reassigned_tasks`: an agent must not continue a task that another one does
#   (test_a_task_that_was_taken_away_is_let_go_before_anything_else_is_done).
# - `handle_answers`: an answer decides which calls run at all (test_an_answer_is_taken_before_anything_else_goes_on).
# - `recover_orphans`: `advance_calls` and `await_model` would wait for an operation that a dead process had
#   (test_work_whose_process_died_is_taken_care_of).
# - `undo_edits`: before the next request is made from the view, and also while tools run
#   (test_it_is_taken_up_while_tools_run_and_while_a_plan_waits).
# - `prepare_folder` before `advance_calls`: calls run in this folder
#   (test_a_claimed_task_moves_its_owners_tools_between_replies_and_back).
# - `end_requested_turn` after `advance_calls`: the result of the report is merged first
#   (test_a_report_ends_the_turn_once_its_result_is_merged).
# - `await_plan_answer`: before everything that leads to a model call, and before mail
#   (test_while_a_plan_waits_the_model_is_not_asked_and_mail_stays).
# - `count_tokens` before `compact_view`: a count may show that no compaction is needed
#   (test_over_the_budget_by_the_estimate_it_is_asked_before_anything_is_compacted).
# - `inject` before `deliver_mail`: reminders come before the words of the user.
# - `stop_repetition` after `deliver_mail`: what arrives may end the repetition
#   (test_each_turn_has_its_own_nudge_and_mail_is_progress).
# - `rest_between_turns` last: the board comes after the mailbox
#   (test_a_teammate_reads_its_mail_before_it_looks_at_the_board).
RULES: tuple[Rule, ...] = (
    finish_life,
    handle_stop,
    release_reassigned_tasks,
    handle_answers,
    recover_orphans,
    undo_edits,
    recover_from_failure,
    prepare_folder,
    advance_calls,
    run_start_hooks,
    await_model,
    end_requested_turn,
    handle_cut_reply,
    await_plan_answer,
    compose_prompt,
    count_tokens,
    compact_view,
    inject,
    deliver_mail,
    stop_repetition,
    ask_model,
    end_turn,
    rest_between_turns,
)
