"""The question to the permission policy, and the permissions that allow a call without asking a person, in addition to
the rules of settings: session rules, skills started in this turn, and a hook that allows. All have the same effect."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.agent.authority import authority_of
from callboard.core.approvals.session_rules import in_force
from callboard.core.messaging.authority import reaches
from callboard.core.permissions.values import Lift
from callboard.core.scheduling.permissions import judged_in_turn, schedule_id
from callboard.engine.loop import AgentRuntime
from callboard.ports.environment import PermissionQuery
from callboard.types.agent_spec import AgentSpec, PermissionRules
from callboard.types.hook_answers import PreVerdict
from callboard.types.records import ToolCall


def permission_query(agent: AgentRuntime, call: ToolCall, *hooked: PreVerdict | None) -> PermissionQuery:
    """Return the question whether an agent may make a call now. `hooked`: the verdicts of hooks on the call."""
    ports = agent.host.ports
    me = in_this_turn(agent)
    return PermissionQuery(
        call=call,
        tool=ports.tools[call.name].spec,
        spec=me,
        folders=ports.archive.folders(me),
        authority=authority_of(agent.state),
        lifts=(
            *_session_lifts(agent),
            *skill_lifts(agent, agent.state.turn.lifts if agent.state.turn else ()),
            *(Lift(call.name, verdict.by) for verdict in hooked if verdict and verdict.decision == "allow"),
        ),
    )


def _session_lifts(agent: AgentRuntime) -> tuple[Lift, ...]:
    """Return the session rules that apply in the agent's turn."""
    state = agent.state
    host = agent.host
    rules = host.board.rules()
    if not rules:
        return ()
    return in_force(rules, agent.name, state.identity.incarnation, authority=authority_of(state), now=host.clock.now())


def skill_lifts(agent: AgentRuntime, rules: Sequence[str]) -> tuple[Lift, ...]:
    """Return the allow rules of a skill's `allowed-tools`. Like session rules, they apply only in turns that users and
    agents began."""
    if not reaches(authority_of(agent.state), "teammate"):
        return ()
    return tuple(Lift(rule, f"allowed-tools of a skill, {rule}") for rule in rules)


def in_this_turn(agent: AgentRuntime) -> AgentSpec:
    """Return the agent's spec with the rights of the schedule that began its turn, if one did, and without the rights
    that a skill of this turn takes away."""
    state = agent.state
    turn = state.turn
    me = state.me
    if turn is not None and turn.denies:
        me = without(me, turn.denies)
    schedule = schedule_id(turn.cause) if turn is not None else ""
    return judged_in_turn(me, agent.host.board.schedule_row(schedule)) if schedule else me


def without(me: AgentSpec, denies: Sequence[str]) -> AgentSpec:
    """Return the spec with more deny rules."""
    return me.model_copy(update={"rules": me.rules.joined(PermissionRules(deny=tuple(denies)))})
