"""State changes used by rules of several themes: messages to the model, injections, costs, plan gate, mode. Pure.

The permission mode changes when the user chooses another one, or when a plan is approved. In the mode `plan` an agent
only reads. A lead that enters this mode gets the tool `submit_plan`, like a lead that starts in it: its prompt is
composed again before its next model call. The tool stays listed when the lead leaves the mode, because each change of
the list makes the service read the whole conversation again; calls of the tool are then refused. A reminder announces
the beginning and the end of the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.agent.state import AgentState
from callboard.core.approvals.plan_gate import SUBMIT, PlanGate
from callboard.core.context.project_instructions import instructed_with, with_note
from callboard.core.context.reminders import MODE, with_reminder
from callboard.core.context.view.conversation import add_user
from callboard.core.frozen import replace
from callboard.core.recovery.retry_policy import RecoveryState
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Injection, Placed
from callboard.types.records import PermissionMode, Usage

Rule = Callable[[AgentState, Any], AgentState]
"""Change that one type of event makes to the state."""


def queue(state: AgentState, injection: Injection) -> AgentState:
    """Queue an injection. It replaces an unsent one of the same kind and key."""
    others = tuple(
        other for other in state.context.injections if (other.kind, other.key) != (injection.kind, injection.key)
    )
    return replace(
        state,
        context=replace(
            state.context,
            injections=(*others, injection),
            reminders=with_reminder(state.context.reminders, injection),
            instructions=instructed_with(state.context.instructions, injection),
            notes=with_note(state.context.notes, injection),
        ),
    )


def add_to_user_message(state: AgentState, blocks: tuple[Placed, ...], at: float) -> AgentState:
    """Add blocks for the model to the open user message, or open one."""
    turn = state.turn.id if state.turn else ""
    conversation = add_user(state.context.conversation, state.seq + 1, blocks, at=at, turn=turn)
    return replace(state, context=replace(state.context, conversation=conversation, wants_reply=True))


def with_spec(state: AgentState, spec: AgentSpec) -> AgentState:
    """Return the state with another spec."""
    return replace(state, identity=replace(state.identity, spec=spec))


def with_recovery(state: AgentState, recovery: RecoveryState) -> AgentState:
    """Return the state with another recovery from failed model calls."""
    return replace(state, model=replace(state.model, recovery=recovery))


def add_usage(state: AgentState, usage: Usage) -> AgentState:
    """Return the state with this usage counted for the agent and its turn."""
    turn = replace(state.turn, usage=state.turn.usage.plus(usage)) if state.turn else None
    return replace(state, budget=replace(state.budget, usage=state.budget.usage.plus(usage)), turn=turn)


def gate_moved(state: AgentState, gate: PlanGate) -> AgentState:
    """Set the plan gate. If it has closed, allowed calls that have not started are checked again."""
    if gate.gate == "open":
        return replace(state, work=replace(state.work, gate=gate))
    return replace(state, work=replace(state.work, gate=gate), calls=OpenCalls.of(map(_back_to_proposed, state.calls)))


def _back_to_proposed(item: CallState) -> CallState:
    return replace(item, stage="proposed") if item.stage == "allowed" else item


_PLANNING = """\
You are in plan mode: you only read. Changes and commands that could change something are refused, whoever asks for \
them. Look at all that the work depends on, """
_SUBMITS = """\
then call `submit_plan` with your whole plan. Its approval ends plan mode; do not ask for one in other ways."""
_TELLS = "then say what you would do, step by step."
_OVER = "You are no longer in plan mode: do the work. Permissions are now decided in the mode {mode}."


def mode_after_approval(state: AgentState, chosen: str) -> str:
    """Return the mode of an agent after the approval of its plan; empty: no change."""
    return chosen or ("default" if state.me.permission_mode == "plan" else "")


def in_mode(state: AgentState, mode: str) -> AgentState:
    """Return the agent in another permission mode. Text that is not a mode changes nothing."""
    if mode not in get_args(PermissionMode):
        return state
    me = state.me
    gate = state.work.gate
    tools = set(me.tools)
    if me.kind == "lead" and mode == "plan":
        tools.add(SUBMIT)
    elif me.kind == "lead" and SUBMIT not in state.context.listed:
        tools.discard(SUBMIT)
    state = with_spec(state, me.model_copy(update={"permission_mode": mode, "tools": tuple(sorted(tools))}))
    if mode != "plan" and gate.gate == "required" and not me.plan_required:
        return gate_moved(state, PlanGate())
    return state


def mode_chosen(state: AgentState, mode: str) -> AgentState:
    """Set the mode that the user chose. During a turn the agent is informed with its next request."""
    state = in_mode(state, mode)
    return with_mode_reminder(state) if state.turn is not None else state


def with_mode_reminder(state: AgentState) -> AgentState:
    """Queue the reminder that plan mode has begun or ended, unless the conversation already has it."""
    me = state.me
    newest = state.context.reminders.get(MODE, "")
    if me.permission_mode == "plan":
        text = _PLANNING + (_SUBMITS if SUBMIT in me.tools else _TELLS)
    elif newest.startswith(_PLANNING):
        text = _OVER.format(mode=me.permission_mode)
    else:
        return state
    return state if text == newest else queue(state, Injection(kind="system-reminder", text=text, key=MODE))


def without_mode_reminder(state: AgentState) -> AgentState:
    """Return the state after another text informed the agent of its mode."""
    reminders = {key: text for key, text in state.context.reminders.items() if key != MODE}
    return replace(state, context=replace(state.context, reminders=reminders))


def lacks_submit_plan(state: AgentState) -> bool:
    """Return True if the agent is in plan mode and its prompt does not list its tool `submit_plan`."""
    planning = state.me.permission_mode == "plan" and SUBMIT in state.me.tools
    return planning and bool(state.context.system) and SUBMIT not in state.context.listed
