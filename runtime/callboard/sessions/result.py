"""Result of a run, for front ends and scripts: a line for each agent, and the exit code (docs/cli.md)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from callboard.core.agent.state import AgentState
from callboard.core.approvals.requests import DENIED
from callboard.core.approvals.session_rules import offered_rules
from callboard.core.call_words import input_words
from callboard.core.decoding import read_value
from callboard.core.keys import agent_key
from callboard.core.reports.metrics import Metrics, metrics_from, metrics_of
from callboard.core.team.open_work import DeniedCall, OpenWork
from callboard.engine.commands import LEAD_ENDED
from callboard.engine.recall import recall
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.ports.store import Store
from callboard.ports.store_reading import row_of
from callboard.types.events import AnswerTaken, ApprovalNeeded, CallJudged, Event, ModelReplied
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, AgentTotals, Envelope, Request, ToolCall, TurnLimit, Usage

DONE = 0
FAILED = 1
CONFIGURATION = 3
NO_ANSWER = 4
LIMIT = 5
UNAVAILABLE = 6
BUG = 70
TIME_LIMIT = 124
INTERRUPTED = 130

_BY_FAULT = {
    "credentials": CONFIGURATION,
    "payment": CONFIGURATION,
    "spend_limit": LIMIT,
    "not_found": CONFIGURATION,
    "invalid": FAILED,
    "too_long": LIMIT,
}
"""Exit codes by kind of fault. All other faults mean that the service is unavailable."""
ERROR_CODES = frozenset({FAILED, CONFIGURATION, UNAVAILABLE})
"""Exit codes of a turn that a refused model call may have ended."""


_MAIN = ("command", "path", "url", "to", "name")
"""Input fields that identify the subject of a call."""
_TOLD = 3
"""Limit of the requests that the end of a run lists."""
_LONGEST_CALL = 160
"""Limit of the characters of a call in a line."""


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """Summary of one agent, for a line."""

    name: str
    kind: str
    steps: int
    usage: Usage
    life: str
    outcome: str
    what: str
    """Description of the agent's work: its report, its final text, or its role."""
    waiting_for: str = ""
    metrics: Metrics = Metrics()


RunLimit = TurnLimit | Literal["window"]
"""`window`: the conversation does not fit the model's window."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run, by the lead's state: the first fields of `RunEnd`."""

    exit_code: int
    why: str = ""
    limit: RunLimit = ""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """End of a run. `text` is the lead's final text; `why` is the error, empty if there is none."""

    exit_code: int
    text: str
    why: str
    usage: Usage
    agents: list[AgentSummary]
    open: OpenWork = OpenWork()
    """Open work: tasks, requests, agents, worktrees, denied calls."""
    limit: RunLimit = ""
    """Limit that ended the run; empty if none did."""
    advice: str = ""
    """Advice on how to continue after the limit; empty if there is none."""

    @property
    def reason(self) -> str:
        """Return the error, and how to continue."""
        return "; ".join(part for part in (self.why, self.advice) if part)

    def served_report(self, session: str) -> str:
        """Return how the work of a served session ended, and how a person can continue it if it did not end well."""
        if self.exit_code == DONE:
            return f"its work is done, exit code {DONE}"
        raising = "raise the budget, then " if self.limit.startswith("budget_") else ""
        advice = self.advice or f"{raising}`callboard resume {session}` continues it"
        reason = f"{self.why}; {advice}" if self.why else advice
        return f"it ended with exit code {self.exit_code}: {reason}"

    def of_run(self) -> RunEnd:
        """Return the end of a run that nobody will continue.

        The run fails if tasks are open, or if agents were stopped before their work was done.
        """
        reason = self.open.reason()
        return replace(self, exit_code=FAILED, why=reason) if self.exit_code == DONE and reason else self


class DeniedCalls:
    """Observer that collects the calls that were denied while this process hosted the session."""

    interest = Interest(frozenset({ModelReplied, CallJudged, ApprovalNeeded, AnswerTaken}), frozenset())

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, ToolCall]] = {}
        self._asking: dict[str, str] = {}
        self._denied: dict[str, DeniedCall] = {}

    def all(self) -> tuple[DeniedCall, ...]:
        """Return the denied calls, oldest first."""
        return tuple(self._denied.values())

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Record the calls of a reply, and which of them are denied."""
        match event:
            case ModelReplied(calls=calls):
                self._calls[agent] = {call.id: call for call in calls}
            case CallJudged(verdict="deny", why=reason) if reason.startswith(DENIED):
                self._deny(agent, event.call, reason.removeprefix(DENIED).strip())
            case ApprovalNeeded():
                self._asking[event.request_id] = event.call
            case AnswerTaken(kind="permission"):
                call = self._asking.pop(event.request_id, "")
                if event.status != "approved" or event.void:
                    self._deny(agent, call, event.void or event.reason or f"it was {event.status}")
            case _:
                pass

    def on_delta(self, agent: str, delta: Delta) -> None: ...

    def on_mail(self, envelope: Envelope) -> None: ...

    def _deny(self, agent: str, call_id: str, reason: str) -> None:
        call = self._calls.get(agent, {}).get(call_id)
        if call is not None:
            argument = next((call.input[name] for name in _MAIN if isinstance(call.input.get(name), str)), "")
            summary = f"{call.name} {' '.join(str(argument).split())[:_LONGEST_CALL]}".rstrip()
            self._denied[call_id] = DeniedCall(agent, call.name, summary, reason)


def summarise(row: AgentRow, state: AgentState | None) -> AgentSummary:
    """Return an agent's summary. `state`: its folded journal; None to use only the row."""
    if state is None:
        totals = row.totals or AgentTotals()
        return AgentSummary(
            name=row.name,
            kind=row.kind,
            steps=totals.steps,
            usage=totals.usage,
            life=row.life,
            outcome=row.outcome,
            what=totals.said or row.role or row.agent_type,
            metrics=metrics_from(totals.usage, totals.compacted, totals.rereads),
        )
    text = (
        state.work.reported
        or (state.lifecycle.ended.result if state.lifecycle.ended else "")
        or state.turns.last_text
        or row.role
    )
    summary = " ".join(text.split()) or row.agent_type
    return AgentSummary(
        name=row.name,
        kind=row.kind,
        steps=state.turns.steps,
        usage=state.budget.usage,
        life=row.life,
        outcome=row.outcome,
        what=summary,
        waiting_for=row.waiting_for,
        metrics=metrics_of(state),
    )


def outcome_of(row: AgentRow | None, lead: AgentState | None, requests: Sequence[Request]) -> RunOutcome:
    """Return how a run at rest ended."""
    if row is not None and row.life == "crashed":
        return RunOutcome(BUG, "the lead crashed repeatedly: a bug in Callboard; the session's log has the details")
    if lead is None:
        return RunOutcome(FAILED, LEAD_ENDED)
    # An expired shutdown request is not open: the runtime ends the teammate anyway.
    unanswered = [request for request in requests if request.status == "expired" and request.kind != "shutdown"]
    match lead.turns.last_reason:
        case "limit":
            code = TIME_LIMIT if lead.turns.last_limit == "turn_seconds" else LIMIT
            return RunOutcome(code, lead.turns.last_why, lead.turns.last_limit)
        case "overflow":
            return RunOutcome(LIMIT, lead.turns.last_why, "window")
        case "failed":
            window = lead.model.last_fault == "too_long"
            return RunOutcome(
                _BY_FAULT.get(lead.model.last_fault, UNAVAILABLE), lead.turns.last_why, "window" if window else ""
            )
        case "interrupted" if lead.turns.last_limit != "hook":
            return RunOutcome(INTERRUPTED, "interrupted")
        case "interrupted" | "refused" | "stopped" | "blocked":
            return RunOutcome(FAILED, lead.turns.last_why or lead.turns.last_reason, lead.turns.last_limit)
        case _ if row is not None and row.life == "stopped" and not lead.lifecycle.renew:
            # It may have ended before it read the prompt of this run: the last text answers an earlier one.
            return RunOutcome(FAILED, LEAD_ENDED)
        case _:
            return RunOutcome(NO_ANSWER, unanswered_words(unanswered)) if unanswered else RunOutcome(DONE)


def advice_after(session: str, reason: str, limit: RunLimit) -> str:
    """Return how a person can continue a session whose lead a limit stopped; empty if `reason` already says it."""
    resume = f"`callboard resume {session}"
    if reason == "overflow":
        return f"{resume} --carry` continues in a fresh conversation with a hand-off from this one"
    match limit:
        case "turn_steps":
            return f"{resume}` continues with as many more; add --max-turns N for another number"
        case "turn_seconds":
            return f"{resume}` continues for as long again; add --max-seconds N for another time"
        case "turn_tokens" | "turn_cost":
            return f"{resume}` continues with as much again; `limits` in settings.yaml sets another limit"
        case _:
            return ""


def unanswered_words(requests: Sequence[Request]) -> str:
    """Return a line on the unanswered requests, and how a person can allow them the next time."""
    listed = "; ".join(f"{request.id} ({asked_for(request)})" for request in requests[:_TOLD])
    remainder = f" and {len(requests) - _TOLD} more" if len(requests) > _TOLD else ""
    rules = list(dict.fromkeys(rule for request in requests for rule in _rules_for(request)))
    flags = " ".join(f"--allowed-tools {shlex.quote(rule)}" for rule in rules)
    ways = [f"allow it by a rule: {flags}, or permission.allow in settings"] if rules else []
    waited = any(request.expires_at is None or request.expires_at > request.created_at for request in requests)
    kinds = {request.kind for request in requests}
    commands = ["`callboard approve`"] * bool(kinds - {"question"}) + ["`callboard answer`"] * ("question" in kinds)
    by_person = "run it in a terminal" + (f", or answer with {' and '.join(commands)}" if waited else "")
    if not ways:
        ways.append(by_person)
    elif any(request.kind == "permission" and not _rules_for(request) for request in requests):
        ways.append(f"for calls that no rule can allow, {by_person}")
    happened = "nobody answered" if waited else "without a terminal nobody can be asked about"
    aim = "To answer it" if kinds == {"question"} else "To let it through"
    return f"{happened} {listed}{remainder}. {aim}: {'; '.join(ways)}"


def _rules_for(request: Request) -> tuple[str, ...]:
    """Return the rules that would allow a permission. Only a rule in the settings can allow deleting files."""
    tool_input = request.payload.get("input")
    if request.payload.get("rule") != "D" or not isinstance(tool_input, dict):
        return offered_rules(request)
    from callboard.core.permissions.suggest_rules import deletion_rule  # noqa: PLC0415 - a rare case; it takes 15 ms

    rule = deletion_rule(str(request.payload.get("tool")), cast("Mapping[str, object]", tool_input))
    return (rule,) if rule else ()


def asked_for(request: Request) -> str:
    """Return the request in one line; for a permission including the call, as far as it fits."""
    tool_input = request.payload.get("input")
    if request.kind != "permission" or not isinstance(tool_input, dict):
        return request.subject
    fields = cast("dict[str, object]", tool_input)
    main = next((fields[name] for name in ("command", "path") if isinstance(fields.get(name), str)), None)
    text = " ".join(str(input_words(fields) if main is None else main).split())
    excerpt = text if len(text) <= _LONGEST_CALL else f"{text[:_LONGEST_CALL]}…"
    reason = str(request.payload.get("why") or "").partition("\n")[0]
    return f"{request.asked_by} wants to run {request.payload.get('tool')} `{excerpt}`: {reason}"


async def was_cut_short(store: Store, session: str) -> bool:
    """Return True if the newest turn of the lead ended before it was done."""
    row = await row_of(store, agent_key(session, "lead"))
    if row is None or row.value is None:
        return False
    lead = read_value(AgentRow, row.value, row.key)
    state = await recall(store, session, lead.name, lead.incarnation)
    return state.turn is None and state.turns.last_reason in ("failed", "limit", "interrupted")
