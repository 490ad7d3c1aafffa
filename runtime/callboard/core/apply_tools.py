"""What the events of tool calls change, and what a tool changes in its agent's own state. Pure.

A call goes from judged or asked to started, finished and settled; results are merged when all of a reply are settled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.asking.gate import gate_refuses
from callboard.core.asking.plans import decision, void_of
from callboard.core.bus.mail import defused_parts
from callboard.core.changes import Rule, gate_moved, queue, said_to
from callboard.core.context.prompt import todo_reminder
from callboard.core.frozen import replace
from callboard.core.recovery.turns import on_switched
from callboard.core.state import AgentState, Background, CallState, Gate
from callboard.words import events as ev
from callboard.words.context import Injection, Placed
from callboard.words.values import Json


def _with_call(state: AgentState, call: str, change: Callable[[CallState], CallState]) -> AgentState:
    """Only the changed call is walked to: a lead may have a call under way for each of a thousand subagents."""
    place = next((place for place, one in enumerate(state.calls) if one.call.id == call), None)
    if place is None:
        return state
    changed = change(state.calls[place])
    return replace(state, calls=(*state.calls[:place], changed, *state.calls[place + 1 :]))


def _judged(state: AgentState, e: ev.CallJudged) -> AgentState:
    def change(one: CallState) -> CallState:
        call = one.call if e.input is None else one.call.model_copy(update={"input": e.input})
        context = (*one.context, *e.context)
        if e.verdict == "deny":
            content = (_text(e.why),)
            return replace(
                one, call=call, stage="settled", content=content, is_error=True, denied=True, context=context
            )
        return replace(one, call=call, stage="allowed", context=context, request_id=None)

    return _with_call(state, e.call, change)


def _approval_needed(state: AgentState, e: ev.ApprovalNeeded) -> AgentState:
    def change(one: CallState) -> CallState:
        call = one.call if e.input is None else one.call.model_copy(update={"input": e.input})
        context = (*one.context, *e.context)
        one = replace(one, call=call, stage="asking", context=context)
        return replace(one, request_id=e.request_id, digest=e.digest, expires_at=e.expires_at)

    return _with_call(state, e.call, change)


def _answer_taken(state: AgentState, e: ev.AnswerTaken) -> AgentState:
    if e.kind == "plan":
        return _plan_answered(state, e)
    if e.kind != "permission":
        return state

    def change(one: CallState) -> CallState:
        if one.request_id != e.request_id or one.stage != "asking":
            return one
        closed = gate_refuses(state.gate, one.call.name, reads_only=False)  # it may have closed while the call waited
        void = _void(e, one)
        if e.status == "approved" and closed is None and not void:
            call = one.call if e.input is None else one.call.model_copy(update={"input": e.input})
            return replace(one, call=call, stage="allowed")
        why = closed if e.status == "approved" and closed else f"Permission denied: {void or _refusal(e)}"
        return replace(one, stage="settled", content=(_text(why),), is_error=True, denied=True)

    return replace(state, calls=tuple(change(one) for one in state.calls))


def _void(e: ev.AnswerTaken, one: CallState) -> str:
    """Why an approval is not one of this very call: it serves one call, as it was asked for."""
    if e.status != "approved":
        return ""
    why = e.void or ("what was approved is not what was asked for" if one.digest and e.digest != one.digest else "")
    return f"{e.by or 'somebody'} approved {e.request_id}, and that is void: {why}" if why else ""


def _refusal(e: ev.AnswerTaken) -> str:
    if e.status == "expired":
        return f"nobody answered {e.request_id} in time"
    return f"{e.by or 'nobody'} said no" + (f": {e.reason}" if e.reason else "")


def _plan_answered(state: AgentState, e: ev.AnswerTaken) -> AgentState:
    """Only the answer to the plan that is pending moves the gate, and only an approval of its digest opens it."""
    gate = state.gate
    if gate.gate != "pending" or gate.request_id != e.request_id:
        return state
    void = void_of(e, gate.digest) if e.status == "approved" else ""
    if e.status == "approved" and not void:
        plan = e.plan or gate.plan
        gate = replace(gate, gate="open", digest=e.digest, plan=plan, status="approved", choice=e.choice)
    else:
        gate = Gate("required")
    tag = Injection(kind="plan-decision", text=decision(e, void), key=f"{e.request_id} {'void' if void else e.status}")
    return replace(queue(state, tag), gate=gate, wants_reply=True)


def _tool_started(state: AgentState, e: ev.ToolStarted) -> AgentState:
    def change(one: CallState) -> CallState:
        return replace(one, stage="started", effect=e.effect, marks=e.marks, started_at=e.at)

    return _with_call(state, e.call, change)


def _tool_finished(state: AgentState, e: ev.ToolFinished) -> AgentState:
    return _with_call(
        state,
        e.call,
        lambda one: replace(
            one,
            stage="finished",
            content=e.content,
            is_error=e.is_error,
            ends_turn=e.ends_turn and not e.is_error,
            data=e.data,
            finished_at=e.at,
        ),
    )


def _tool_settled(state: AgentState, e: ev.ToolSettled) -> AgentState:
    def change(one: CallState) -> CallState:
        content = one.content if e.content is None else e.content
        is_error = one.is_error if e.is_error is None else e.is_error
        return replace(one, stage="settled", content=content, is_error=is_error, context=(*one.context, *e.context))

    return _with_call(state, e.call, change)


def _merged(state: AgentState, e: ev.ResultsMerged) -> AgentState:
    placed = [Placed(data=_result_block(one), source="tool") for one in state.calls]
    ends = any(one.ends_turn for one in state.calls)
    notes = [text for one in state.calls for text in one.context]
    state = replace(said_to(state, tuple(placed), e.at), calls=())
    for number, text in enumerate(notes):
        state = queue(state, Injection(kind="post-tool-use-hook", text=text, source="hook", key=str(number)))
    if state.turn and ends:
        state = replace(state, turn=replace(state.turn, ending=True))
    return _reminded(state)


def _reminded(state: AgentState) -> AgentState:
    """Open todos that were not touched for some steps are brought to mind; the count restarts at each reminder."""
    due = state.me.todo_reminder_steps
    if not due or state.steps_since_todo < due or all(todo.status == "completed" for todo in state.todos):
        return state
    note = Injection(kind="system-reminder", text=todo_reminder(state.todos), key="todo")
    return replace(queue(state, note), steps_since_todo=0)


def _result_block(one: CallState) -> Json:
    content: Any = defused_parts(one.content)
    if len(content) == 1 and content[0].get("type") == "text":
        content = content[0]["text"]
    block: Json = {"type": "tool_result", "tool_use_id": one.call.use_id, "content": content or "(no output)"}
    if one.is_error:
        block["is_error"] = True
    return block


def _stop_hook_ran(state: AgentState, e: ev.StopHookRan) -> AgentState:
    turn = state.turn
    if turn is None:
        return state
    if not e.go_on:
        return replace(state, turn=replace(turn, stop_asked=True, stop_blocks=0))
    state = replace(state, turn=replace(turn, stop_blocks=turn.stop_blocks + 1), wants_reply=True)
    return queue(state, Injection(kind="stop-hook", text=e.go_on, source="hook"))


def _todos_set(state: AgentState, e: ev.TodosSet) -> AgentState:
    return replace(state, todos=e.todos, steps_since_todo=0)


def _file_seen(state: AgentState, e: ev.FileSeen) -> AgentState:
    changed = state.changed
    if e.changed and (e.path not in state.files or e.path not in changed):  # a changed one is known: quick for new ones
        changed = (*changed, e.path)
    return replace(state, files=state.files.having(e.path, e.digest), changed=changed)


def _skill_loaded(state: AgentState, e: ev.SkillLoaded) -> AgentState:
    """What it says of calls holds for the turn under way; so does its model, as another one that took over would."""
    skills = state.skills if e.name in state.skills else (*state.skills, e.name)
    texts = {**{k: v for k, v in state.skill_texts.items() if k != e.name}, e.name: e.text} if e.text else None
    turn = state.turn
    if turn is not None and (e.allowed or e.disallowed or e.effort):
        lifts = tuple(dict.fromkeys((*turn.lifts, *e.allowed)))
        denies = tuple(dict.fromkeys((*turn.denies, *e.disallowed)))
        turn = replace(turn, lifts=lifts, denies=denies, effort=e.effort or turn.effort)
    state = replace(state, skills=skills, skill_texts=texts or state.skill_texts, turn=turn)
    return replace(state, recovery=on_switched(state.recovery, e.model)) if e.model and turn is not None else state


def _commands_began(state: AgentState, e: ev.SkillCommandsBegan) -> AgentState:
    return replace(state, commands_begun=state.commands_begun | {e.envelope})


def _gate_set(state: AgentState, e: ev.GateSet) -> AgentState:
    return replace(state, gate=Gate(e.gate, e.request_id, e.digest, e.plan, task=e.task))


def _task_held(state: AgentState, e: ev.TaskHeld) -> AgentState:
    tasks = {task: subject for task, subject in state.tasks.items() if task != e.task}
    if e.held:
        tasks[e.task] = e.subject
    gate = state.gate
    if gate.gate == "open" and gate.task and gate.task not in tasks:
        gate = _after_work(state)
    return replace(gate_moved(state, gate), tasks=tasks)


def _after_work(state: AgentState) -> Gate:
    """The piece of work has ended that a plan was approved for: the approval covers nothing else."""
    return Gate("required") if state.me.plan_required else Gate()


def _reported(state: AgentState, e: ev.Reported) -> AgentState:
    return replace(gate_moved(state, _after_work(state)), assignment=False, assigned="", reported=e.result)


def _bg_started(state: AgentState, e: ev.BackgroundStarted) -> AgentState:
    return replace(state, background={**state.background, e.id: Background(e)})


def _bg_ended(state: AgentState, e: ev.BackgroundEnded) -> AgentState:
    one = state.background.get(e.id)
    if one is None:
        return state
    ended = replace(one, status=e.status, exit_code=e.exit_code)
    return replace(state, background={**state.background, e.id: ended})


def _compact_asked(state: AgentState, e: ev.CompactAsked) -> AgentState:
    return replace(state, compact=e.focus, compact_by=e.by)


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
"""Tool calls, answers, and what tools write into the state."""
