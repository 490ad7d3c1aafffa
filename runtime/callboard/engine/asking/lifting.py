"""What lifts a question beside the rules of settings: session rules, and a hook that allows. They lift the same."""

from __future__ import annotations

from callboard.core.asking.session_rules import in_force
from callboard.core.bus.authority import authority_of
from callboard.core.permission.lifts import Lift
from callboard.core.schedule.rights import in_turn, schedule_id
from callboard.engine.loop import Agent
from callboard.words.hooks import PreVerdict
from callboard.words.specs import AgentSpec


def lifts_of(agent: Agent, tool: str, *hooked: PreVerdict | None) -> tuple[Lift, ...]:
    """What holds for a call of this tool now: the session rules of its turn, then the hooks that allow the call."""
    state, host = agent.state, agent.host
    rules = host.board.rules()
    ours = in_force(rules, agent.name, state.incarnation, authority_of(state), host.clock.now()) if rules else ()
    return (*ours, *(Lift(tool, one.by) for one in hooked if one is not None and one.decision == "allow"))


def in_this_turn(agent: Agent) -> AgentSpec:
    """The agent's spec with the rights of the schedule that began its turn, if one did."""
    state = agent.state
    schedule = schedule_id(state.turn.cause) if state.turn is not None else ""
    return in_turn(state.me, agent.host.board.schedule_row(schedule)) if schedule else state.me
