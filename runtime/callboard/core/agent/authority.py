"""Authority that an agent may pass on, from its state. `core/messaging/authority.py` orders the causes. Pure."""

from __future__ import annotations

from callboard.core.agent.state import AgentState
from callboard.core.messaging.authority import authority_in_turn, claimed_authority, weakest
from callboard.types.records import Cause


def authority_of(state: AgentState) -> Cause:
    """Return the authority that an agent may pass on now.

    The authority is that of the agent's turn; between turns, of the newest turn; before the first turn, of its mail.
    """
    if state.turns.count:
        return state.turns.authority
    return weakest(authority_in_turn(envelope, state.me.kind) for envelope in state.inbox.mail)


def own_authority(state: AgentState) -> Cause:
    """Return the authority of the agent's own envelopes and requests now."""
    return claimed_authority(state.me.name, authority_of(state))
