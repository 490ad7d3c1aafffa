"""What lifts a question beside the rules of settings: session rules, and a hook that allows. They lift the same."""

from __future__ import annotations

from callboard.core.asking.session_rules import in_force
from callboard.core.bus.authority import authority_of
from callboard.core.permission.lifts import Lift
from callboard.engine.loop import Agent
from callboard.words.hooks import PreVerdict


def lifts_of(agent: Agent, tool: str, *hooked: PreVerdict | None) -> tuple[Lift, ...]:
    """What holds for a call of this tool now: the session rules of its turn, then the hooks that allow the call."""
    state, host = agent.state, agent.host
    rules = host.board.rules()
    ours = in_force(rules, agent.name, state.incarnation, authority_of(state), host.clock.now()) if rules else ()
    return (*ours, *(Lift(tool, one.by) for one in hooked if one is not None and one.decision == "allow"))
