"""How a run ended, for faces and scripts: a line for each agent, and the exit code (docs/cli.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.budget.limits import out_of_time
from callboard.core.context.told.metrics import Metrics, metrics_of
from callboard.core.names import agent_key
from callboard.core.state import AgentState
from callboard.engine.memory import recall
from callboard.ports.store import Store
from callboard.words.values import AgentRow, Request, Usage

DONE, FAILED, CONFIGURATION, NO_ANSWER, LIMIT, UNAVAILABLE, BUG, TIME_LIMIT, INTERRUPTED = (
    0,
    1,
    3,
    4,
    5,
    6,
    70,
    124,
    130,
)

_BY_FAULT = {
    "credentials": CONFIGURATION,
    "payment": CONFIGURATION,
    "spend_limit": LIMIT,
    "not_found": CONFIGURATION,
    "invalid": FAILED,
    "too_long": LIMIT,
}
"""What else fails is the service's unavailability."""


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """One agent, in a line."""

    name: str
    kind: str
    steps: int
    usage: Usage
    life: str
    outcome: str
    what: str
    """What it did: its report, its last words, or its role."""
    waiting_for: str = ""
    metrics: Metrics = Metrics()


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run. `text` is the lead's last word; `why` says what went wrong, empty when nothing did."""

    exit_code: int
    text: str
    why: str
    usage: Usage
    agents: list[AgentSummary]


def summarise(row: AgentRow, state: AgentState | None) -> AgentSummary:
    """An agent's line. Without a state it did not live in this process."""
    if state is None:
        return AgentSummary(row.name, row.kind, 0, Usage(), row.life, row.outcome, row.role or row.agent_type)
    said = state.reported or (state.ended.result if state.ended else "") or state.last_text or row.role
    what = " ".join(said.split()) or row.agent_type
    return AgentSummary(
        name=row.name,
        kind=row.kind,
        steps=state.steps,
        usage=state.usage,
        life=row.life,
        outcome=row.outcome,
        what=what,
        waiting_for=row.waiting_for,
        metrics=metrics_of(state),
    )


def exit_code_of(row: AgentRow | None, lead: AgentState | None, requests: Sequence[Request]) -> tuple[int, str]:
    """The exit code of a run that has come to rest, and why it is not 0."""
    if row is not None and row.life == "crashed":
        return BUG, "the lead crashed again and again: a bug of ours; the session's log has the details"
    if lead is None:
        return FAILED, "the lead of this session was stopped: start a new session"
    unanswered = [request for request in requests if request.status == "expired"]
    match lead.last_reason:
        case "limit" | "overflow":
            timed = lead.me.limits.seconds is not None and lead.last_why == out_of_time(lead.me)
            return TIME_LIMIT if timed else LIMIT, lead.last_why
        case "failed":
            return _BY_FAULT.get(lead.last_fault, UNAVAILABLE), lead.last_why
        case "interrupted":
            return INTERRUPTED, "interrupted"
        case "refused" | "stopped" | "blocked":
            return FAILED, lead.last_why or lead.last_reason
        case _:
            if unanswered:
                names = ", ".join(f"{r.id} ({r.subject})" for r in unanswered[:3])
                return NO_ANSWER, f"nobody answered {names}: allow it by a rule, or answer with `callboard approve`"
            return DONE, ""


async def was_cut_short(store: Store, session: str) -> bool:
    """Whether the newest turn of the lead ended before it was done."""
    row = await store.get(agent_key(session, "lead"))
    if row is None or row.value is None:
        return False
    lead = AgentRow.model_validate_json(row.value)
    state = await recall(store, session, lead.name, lead.incarnation)
    return state.turn is None and state.last_reason in ("failed", "limit", "interrupted")
