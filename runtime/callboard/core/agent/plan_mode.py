"""Changes of an agent's permission mode: chosen by the user, or with an approved plan.

In the mode `plan` an agent only reads. It leaves the mode when its plan is approved, or when the user chooses another
mode. A lead that enters the mode gets `submit_plan`, like one that starts in it: its prompt is composed again before
its next model call. The tool stays listed when the lead leaves the mode, because each change of the list makes the
service read the whole conversation again; calls of it are refused then. A reminder says that the mode began or ended.
"""

from __future__ import annotations

from typing import get_args

from callboard.core.agent.changes import gate_moved, queue, with_spec
from callboard.core.agent.state import AgentState
from callboard.core.approvals.plan_gate import SUBMIT, PlanGate
from callboard.core.context.reminders import MODE
from callboard.core.frozen import replace
from callboard.types.messages import Injection
from callboard.types.records import PermissionMode

_PLANNING = """\
You are in plan mode: you only read. Changes and commands that could change something are refused, whoever asks for \
them. Look at all that the work depends on, """
_SUBMITS = """\
then call `submit_plan` with your whole plan. Its approval ends plan mode; do not ask for one in other ways."""
_TELLS = "then say what you would do, step by step."
_OVER = "You are not in plan mode any more: do the work. Permissions are decided in the mode {mode} now."


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
    """Queue the reminder that plan mode is on or over, unless the conversation already says so."""
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
