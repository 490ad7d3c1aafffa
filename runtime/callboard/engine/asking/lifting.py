"""What lifts a question beside the rules of settings: session rules, skills that were started in this turn, and a hook
that allows. They lift the same."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.asking.session_rules import in_force
from callboard.core.bus.authority import authority_of, reaches
from callboard.core.permission.lifts import Lift
from callboard.core.schedule.rights import in_turn, schedule_id
from callboard.engine.loop import Agent
from callboard.words.hooks import PreVerdict
from callboard.words.specs import AgentSpec, PermissionRules


def lifts_of(agent: Agent, tool: str, *hooked: PreVerdict | None) -> tuple[Lift, ...]:
    """What holds for a call of this tool now: the session rules of its turn, the skills that were started in it, then
    the hooks that allow the call."""
    state, host = agent.state, agent.host
    rules = host.board.rules()
    ours = in_force(rules, agent.name, state.incarnation, authority_of(state), host.clock.now()) if rules else ()
    ours = (*ours, *skill_lifts(agent, state.turn.lifts if state.turn else ()))
    return (*ours, *(Lift(tool, one.by) for one in hooked if one is not None and one.decision == "allow"))


def skill_lifts(agent: Agent, rules: Sequence[str]) -> tuple[Lift, ...]:
    """What a skill's `allowed-tools` lift: as session rules, in turns that people and agents began, in no others."""
    if not reaches(authority_of(agent.state), "teammate"):
        return ()
    return tuple(Lift(rule, f"allowed-tools of a skill, {rule}") for rule in rules)


def in_this_turn(agent: Agent) -> AgentSpec:
    """The agent's spec with the rights of the schedule that began its turn, if one did, and without what a skill that
    was started in it takes away."""
    state = agent.state
    turn, me = state.turn, state.me
    if turn is not None and turn.denies:
        me = without(me, turn.denies)
    schedule = schedule_id(turn.cause) if turn is not None else ""
    return in_turn(me, agent.host.board.schedule_row(schedule)) if schedule else me


def without(me: AgentSpec, denies: Sequence[str]) -> AgentSpec:
    """The spec with more deny rules."""
    return me.model_copy(update={"rules": me.rules.joined(PermissionRules(deny=tuple(denies)))})
