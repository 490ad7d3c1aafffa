"""How a run ended, for faces and scripts: a line for each agent, and the exit code (docs/cli.md)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from callboard.core.asking.session_rules import offered
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


_TOLD = 3
"""Requests that the end of a run tells of."""
_LONGEST_CALL = 160
"""Characters of a call in a line."""


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
                return NO_ANSWER, unanswered_words(unanswered)
            return DONE, ""


def unanswered_words(requests: Sequence[Request]) -> str:
    """Which requests nobody answered, and how a person lets them through the next time."""
    told = "; ".join(f"{one.id} ({_asked_for(one)})" for one in requests[:_TOLD])
    more = f" and {len(requests) - _TOLD} more" if len(requests) > _TOLD else ""
    rules = list(dict.fromkeys(rule for one in requests for rule in offered(one)))
    flags = " ".join(f"--allowed-tools {shlex.quote(rule)}" for rule in rules)
    ways = [f"allow it by a rule: {flags}, or permission.allow in settings"] if rules else []
    if any(one.kind == "permission" and not offered(one) for one in requests):
        ways.append("what no rule allows needs a person: run it in a terminal, or answer with `callboard approve`")
    elif not ways:
        ways.append("answer in a terminal, or with `callboard approve`")
    return f"nobody answered {told}{more}. To let it through: {'; '.join(ways)}"


def _asked_for(request: Request) -> str:
    """The request's one line; of a permission the call too, as far as a line goes."""
    given = request.payload.get("input")
    if request.kind != "permission" or not isinstance(given, dict):
        return request.subject
    fields = cast("dict[str, object]", given)
    what = next((fields[name] for name in ("command", "path") if isinstance(fields.get(name), str)), None)
    text = " ".join(str(json.dumps(fields, default=str) if what is None else what).split())
    shown = text if len(text) <= _LONGEST_CALL else f"{text[:_LONGEST_CALL]}…"
    why = str(request.payload.get("why") or "").partition("\n")[0]
    return f"{request.asked_by} wants to run {request.payload.get('tool')} `{shown}`: {why}"


async def was_cut_short(store: Store, session: str) -> bool:
    """Whether the newest turn of the lead ended before it was done."""
    row = await store.get(agent_key(session, "lead"))
    if row is None or row.value is None:
        return False
    lead = AgentRow.model_validate_json(row.value)
    state = await recall(store, session, lead.name, lead.incarnation)
    return state.turn is None and state.last_reason in ("failed", "limit", "interrupted")
