"""Who asks for a model call, as the governor orders calls: what a person waits for comes first."""

from __future__ import annotations

from callboard.core.rate.lane import Rank
from callboard.core.state import AgentState
from callboard.engine.governor.governor import Asking
from callboard.ports.model import ModelRequest

_BYTES_PER_TOKEN = 4
"""About. The governor learns what a call really counts; only the proportion of one call to another matters."""


def asking_of(state: AgentState, request: ModelRequest) -> Asking:
    """The place of an agent's call. A subagent's caller waits for it: it stands with the teammates."""
    size = len(request.system) + len(request.tools) + sum(map(len, request.messages))
    return Asking(request.model, _rank(state, request), size / _BYTES_PER_TOKEN, _new_prompt(state, request))


def _rank(state: AgentState, request: ModelRequest) -> Rank:
    """Summaries, and whatever a schedule began, are the background."""
    wakes = state.turn.wakes if state.turn is not None else ()
    if request.purpose == "summary" or state.me.charged_to or set(wakes) == {"scheduled"}:
        return "background"
    return "lead" if state.me.kind == "lead" else "teammate"


def _new_prompt(state: AgentState, request: ModelRequest) -> bool:
    """It is the first call of a turn in which a person spoke."""
    turn = state.turn
    return request.purpose == "turn" and turn is not None and turn.steps == 0 and "prompt" in turn.wakes
