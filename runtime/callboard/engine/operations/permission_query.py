"""The question to the permission policy whether a call may run, and permissions in addition to the rules of settings.

Session rules, skills started in this turn, and a hook that allows can each allow a call without asking a person. All
have the same effect. Session rules can also ask or deny: these become rules of the agent.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.agent.authority import authority_of
from callboard.core.agent.state import AgentState
from callboard.core.approvals.session_rules import active_overrides, restrictions
from callboard.core.messaging.authority import is_at_least
from callboard.core.permissions.values import AllowOverride
from callboard.core.scheduling.permissions import judged_in_turn, schedule_id
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PermissionQuery
from callboard.types.agent_spec import AgentSpec, PermissionRules
from callboard.types.hook_answers import PreVerdict
from callboard.types.records import ToolCall


def permission_query(
    runtime: SessionRuntime, state: AgentState, call: ToolCall, *hook_verdicts: PreVerdict | None
) -> PermissionQuery:
    """Return the question to the policy about a call that an agent would make now.

    `hook_verdicts`: the verdicts of hooks on the call.
    """
    services = runtime.services
    me = in_this_turn(runtime, state)
    rules = runtime.rows.rules()
    life = state.me.name, state.identity.incarnation
    if rules:
        me = me.model_copy(update={"rules": me.rules.joined(restrictions(rules, *life, now=runtime.clock.now()))})
    return PermissionQuery(
        call=call,
        tool=services.tools[call.name].spec,
        spec=me,
        folders=services.archive.folders(me),
        authority=authority_of(state),
        names=services.skills.names_of(str(call.input.get("name", ""))) if call.name == "load_skill" else (),
        overrides=(
            *(active_overrides(rules, *life, authority=authority_of(state), now=runtime.clock.now()) if rules else ()),
            *(skill_overrides(runtime, state, state.turn.overrides) if state.turn and state.turn.overrides else ()),
            *(
                AllowOverride(call.name, verdict.by)
                for verdict in hook_verdicts
                if verdict and verdict.decision == "allow"
            ),
        ),
    )


def skill_overrides(runtime: SessionRuntime, state: AgentState, rules: Sequence[str]) -> tuple[AllowOverride, ...]:
    """Return the allow rules of a skill's `allowed-tools`.

    Like session rules, they apply only in turns that users and agents began.
    """
    if not is_at_least(authority_of(state), "teammate"):
        return ()
    return tuple(AllowOverride(rule, f"allowed-tools of a skill, {rule}") for rule in rules)


def in_this_turn(runtime: SessionRuntime, state: AgentState) -> AgentSpec:
    """Return the agent's spec for this turn.

    The spec has the rights of the schedule that began the turn, if any, and lacks the rights that a skill of this turn
    removes.
    """
    turn = state.turn
    me = state.me
    if turn is not None and turn.denies:
        me = with_denies(me, turn.denies)
    schedule = schedule_id(turn.cause) if turn is not None else ""
    return judged_in_turn(me, runtime.rows.schedule_row(schedule)) if schedule else me


def with_denies(me: AgentSpec, denies: Sequence[str]) -> AgentSpec:
    """Return the spec with more deny rules."""
    return me.model_copy(update={"rules": me.rules.joined(PermissionRules(deny=tuple(denies)))})
