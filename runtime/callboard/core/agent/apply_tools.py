"""State changes by events of tool calls, and by changes that a tool makes to its agent's state. Pure.

A call proceeds from judged or asked to started, finished and settled. Results are merged when all calls of a reply are
settled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.agent.changes import (
    Rule,
    add_to_user_message,
    gate_moved,
    in_mode,
    mode_after_approval,
    queue,
    with_recovery,
    without_mode_reminder,
)
from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.agent.state import AgentState, BackgroundCommand, Turn
from callboard.core.approvals.plan_gate import PlanGate, gate_refusal
from callboard.core.approvals.plans import decision_text, void_reason
from callboard.core.approvals.requests import UNASKED
from callboard.core.context.system_prompt import todo_reminder
from callboard.core.frozen import finished, replace
from callboard.core.messaging.envelopes import defused_parts
from callboard.core.recovery.retry_policy import on_switched
from callboard.types import events as ev
from callboard.types.messages import Injection, Placed
from callboard.types.records import Json

FAILED = "[The call failed, with this result:]"
"""First text of a failed result that has an image or a document, in place of the mark for an error."""


def _with_call(state: AgentState, call: str, change: Callable[[CallState], CallState]) -> AgentState:
    calls = state.calls.with_change(call, change)
    return state if calls is state.calls else replace(state, calls=calls)


def _judged(state: AgentState, e: ev.CallJudged) -> AgentState:
    def change(item: CallState) -> CallState:
        call = item.call if e.input is None else item.call.model_copy(update={"input": e.input})
        context = (*item.context, *e.context)
        if e.verdict == "deny":
            content = (_text(e.why),)
            return replace(
                item, call=call, stage="settled", content=content, is_error=True, denied=True, context=context
            )
        return replace(item, call=call, stage="allowed", context=context, request_id=None, grants=e.grants)

    return _with_call(state, e.call, change)


def _approval_needed(state: AgentState, e: ev.ApprovalNeeded) -> AgentState:
    def change(item: CallState) -> CallState:
        call = item.call if e.input is None else item.call.model_copy(update={"input": e.input})
        context = (*item.context, *e.context)
        item = replace(item, call=call, stage="asking", context=context, grants=e.grants)
        return replace(item, request_id=e.request_id, digest=e.digest, expires_at=e.expires_at)

    return _with_call(state, e.call, change)


def _answer_taken(state: AgentState, e: ev.AnswerTaken) -> AgentState:
    if e.kind == "plan":
        return _plan_answered(state, e)
    if e.kind != "permission":
        return state

    def change(item: CallState) -> CallState:
        if item.request_id != e.request_id or item.stage != "asking":
            return item
        # The gate may have closed while the call waited.
        closed = gate_refusal(state.work.gate, item.call.name, reads_only=False)
        void = _void(e, item)
        if e.status == "approved" and closed is None and not void:
            if e.input is None:
                return replace(item, stage="allowed")
            call = item.call.model_copy(update={"input": e.input})
            return replace(item, call=call, stage="allowed", grants=e.grants)
        reason = closed if e.status == "approved" and closed else f"Permission denied: {void or _refusal(e)}"
        return replace(item, stage="settled", content=(_text(reason),), is_error=True, denied=True)

    return replace(state, calls=OpenCalls.of(map(change, state.calls)))


def _void(e: ev.AnswerTaken, item: CallState) -> str:
    """Return the reason why an approval does not apply to this call: it is valid for one call, exactly as requested."""
    if e.status != "approved":
        return ""
    fault = e.void or ("what was approved is not what was asked for" if item.digest and e.digest != item.digest else "")
    return f"{e.by or 'somebody'} approved {e.request_id}, and that is void: {fault}" if fault else ""


def _refusal(e: ev.AnswerTaken) -> str:
    if e.status == "expired" and e.reason == UNASKED:
        return UNASKED
    if e.status == "expired":
        return f"nobody answered {e.request_id} in time"
    head = f"{e.by} said no" if e.by else f"{e.request_id} was withdrawn"
    return head + (f": {e.reason}" if e.reason else "")


def _plan_answered(state: AgentState, e: ev.AnswerTaken) -> AgentState:
    """Apply the answer to a plan.

    Only the answer to the pending plan changes the gate, and only an approval of its digest opens it.
    """
    gate = state.work.gate
    if gate.gate != "pending" or gate.request_id != e.request_id:
        return state
    void = void_reason(e, gate.digest) if e.status == "approved" else ""
    mode = ""
    if e.status == "approved" and not void:
        mode = mode_after_approval(state, e.mode)
        state = without_mode_reminder(in_mode(state, mode)) if mode else state
        plan = e.plan or gate.plan
        gate = replace(gate, gate="open", digest=e.digest, plan=plan, status="approved", choice=e.choice)
    else:
        gate = PlanGate("required")
    tag = Injection(
        kind="plan-decision", text=decision_text(e, void, mode), key=f"{e.request_id} {'void' if void else e.status}"
    )
    state = queue(state, tag)
    return replace(state, work=replace(state.work, gate=gate), context=replace(state.context, wants_reply=True))


def _tool_started(state: AgentState, e: ev.ToolStarted) -> AgentState:
    def change(item: CallState) -> CallState:
        return replace(item, stage="started", effect=e.effect, marks=e.marks, started_at=e.at)

    return _with_call(state, e.call, change)


def _tool_finished(state: AgentState, e: ev.ToolFinished) -> AgentState:
    return _with_call(
        state,
        e.call,
        lambda item: replace(
            item,
            stage="settled" if e.settled else "finished",
            content=e.content,
            is_error=e.is_error,
            ends_turn=e.ends_turn and not e.is_error,
            data=e.data,
            finished_at=e.at,
        ),
    )


def _tool_settled(state: AgentState, e: ev.ToolSettled) -> AgentState:
    def change(item: CallState) -> CallState:
        content = item.content if e.content is None else e.content
        is_error = item.is_error if e.is_error is None else e.is_error
        return replace(item, stage="settled", content=content, is_error=is_error, context=(*item.context, *e.context))

    return _with_call(state, e.call, change)


def _merged(state: AgentState, e: ev.ResultsMerged) -> AgentState:
    placed: list[Placed] = []
    notes: list[str] = []
    ends = False
    for item in state.calls:
        placed.append(Placed(data=_result_block(item), source="tool"))
        notes += item.context
        ends = ends or item.ends_turn
    state = finished(add_to_user_message(state, tuple(placed), e.at), state, calls=OpenCalls())
    for number, text in enumerate(notes):
        state = queue(state, Injection(kind="post-tool-use-hook", text=text, source="hook", key=str(number)))
    if state.turn and ends:
        state = replace(state, turn=replace(state.turn, ending=True))
    return _reminded(state)


def _reminded(state: AgentState) -> AgentState:
    """Queue a reminder of open todos that were not changed for some steps. Each reminder restarts the count."""
    due = state.me.todo_reminder_steps
    if not due or state.work.steps_since_todo < due or all(todo.status == "completed" for todo in state.work.todos):
        return state
    note = Injection(kind="system-reminder", text=todo_reminder(state.work.todos), key="todo")
    state = queue(state, note)
    return replace(state, work=replace(state.work, steps_since_todo=0))


def _result_block(item: CallState) -> Json:
    content: Any = defused_parts(item.content)
    is_error = item.is_error
    # The service refuses a request whose failed result has more than texts, and so each later request
    # (test_a_failed_result_keeps_its_image_and_says_that_it_failed).
    if is_error and any(part.get("type") != "text" for part in content):
        is_error = False
        content = [_text(FAILED), *content]
    if len(content) == 1 and content[0].get("type") == "text":
        content = content[0]["text"]
    block: Json = {"type": "tool_result", "tool_use_id": item.call.use_id, "content": content or "(no output)"}
    if is_error:
        block["is_error"] = True
    return block


def _stop_hook_ran(state: AgentState, e: ev.StopHookRan) -> AgentState:
    turn = state.turn
    if turn is None:
        return state
    if not e.go_on:
        return replace(state, turn=replace(turn, stop_asked=True, stop_blocks=0))
    state = replace(
        state, turn=replace(turn, stop_blocks=turn.stop_blocks + 1), context=replace(state.context, wants_reply=True)
    )
    return queue(state, Injection(kind="stop-hook", text=e.go_on, source="hook"))


def _todos_set(state: AgentState, e: ev.TodosSet) -> AgentState:
    return replace(state, work=replace(state.work, todos=e.todos, steps_since_todo=0))


def _file_seen(state: AgentState, e: ev.FileSeen) -> AgentState:
    work = state.work
    changed = work.changed
    if e.changed and (e.path not in work.files or e.path not in changed):  # a changed file is in `files`: a quick test
        changed = (*changed, e.path)
    work = replace(work, files=work.files.with_item(e.path, e.digest), changed=changed)
    return replace(state, work=work, turn=_with_first_hop(state) if e.changed else state.turn)


def _with_first_hop(state: AgentState) -> Turn | None:
    """Return the turn with a chain of messages that begins again: a file or a task has changed (`MAX_DEPTH`)."""
    return state.turn if state.turn is None or state.turn.depth == 0 else replace(state.turn, depth=0)


def _skill_loaded(state: AgentState, e: ev.SkillLoaded) -> AgentState:
    """Apply a loaded skill.

    The skill's rules for calls apply to the current turn, and so does its model, like a fallback model.
    """
    skills = state.work.skills if e.name in state.work.skills else (*state.work.skills, e.name)
    texts = {**{k: v for k, v in state.work.skill_texts.items() if k != e.name}, e.name: e.text} if e.text else None
    turn = state.turn
    if turn is not None and (e.allowed or e.disallowed or e.effort):
        overrides = tuple(dict.fromkeys((*turn.overrides, *e.allowed)))
        denies = tuple(dict.fromkeys((*turn.denies, *e.disallowed)))
        turn = replace(turn, overrides=overrides, denies=denies, effort=e.effort or turn.effort)
    state = replace(
        state, work=replace(state.work, skills=skills, skill_texts=texts or state.work.skill_texts), turn=turn
    )
    if not e.model or turn is None:
        return state
    return with_recovery(state, on_switched(state.model.recovery, e.model))


def _commands_began(state: AgentState, e: ev.SkillCommandsBegan) -> AgentState:
    return replace(state, work=replace(state.work, commands_begun=state.work.commands_begun | {e.envelope}))


def _gate_set(state: AgentState, e: ev.GateSet) -> AgentState:
    return replace(state, work=replace(state.work, gate=PlanGate(e.gate, e.request_id, e.digest, e.plan, task=e.task)))


def _task_held(state: AgentState, e: ev.TaskHeld) -> AgentState:
    tasks = {task: subject for task, subject in state.work.tasks.items() if task != e.task}
    if e.held:
        tasks[e.task] = e.subject
    gate = state.work.gate
    if gate.gate == "open" and gate.task and gate.task not in tasks:
        gate = _after_work(state)
    state = gate_moved(state, gate)
    return replace(state, work=replace(state.work, tasks=tasks), turn=_with_first_hop(state))


def _after_work(state: AgentState) -> PlanGate:
    """Return the gate after the end of the work that a plan was approved for: the approval covers nothing else."""
    return PlanGate("required") if state.me.plan_required else PlanGate()


def _reported(state: AgentState, e: ev.Reported) -> AgentState:
    state = gate_moved(state, _after_work(state))
    return replace(state, work=replace(state.work, assignment=False, assigned="", reported=e.result))


def _bg_started(state: AgentState, e: ev.BackgroundStarted) -> AgentState:
    return replace(state, work=replace(state.work, background={**state.work.background, e.id: BackgroundCommand(e)}))


def _bg_ended(state: AgentState, e: ev.BackgroundEnded) -> AgentState:
    command = state.work.background.get(e.id)
    if command is None:
        return state
    ended = replace(command, status=e.status, exit_code=e.exit_code)
    return replace(state, work=replace(state.work, background={**state.work.background, e.id: ended}))


def _compact_asked(state: AgentState, e: ev.CompactAsked) -> AgentState:
    return replace(state, compaction=replace(state.compaction, focus=e.focus, requested_by=e.by))


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


TOOL_RULES: Mapping[type, Rule] = {
    ev.CallJudged: _judged,
    ev.ApprovalNeeded: _approval_needed,
    ev.AnswerTaken: _answer_taken,
    ev.ToolStarted: _tool_started,
    ev.ToolFinished: _tool_finished,
    ev.ToolSettled: _tool_settled,
    ev.ResultsMerged: _merged,
    ev.StopHookRan: _stop_hook_ran,
    ev.TodosSet: _todos_set,
    ev.FileSeen: _file_seen,
    ev.SkillLoaded: _skill_loaded,
    ev.SkillCommandsBegan: _commands_began,
    ev.GateSet: _gate_set,
    ev.TaskHeld: _task_held,
    ev.Reported: _reported,
    ev.BackgroundStarted: _bg_started,
    ev.BackgroundEnded: _bg_ended,
    ev.CompactAsked: _compact_asked,
}
"""Tool calls, answers, and changes of the state by tools."""
