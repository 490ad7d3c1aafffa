"""What to do when a model call fails: a pure state machine for each agent, persisted with its journal.

    what happens                             attempts left            action
    ---------------------------------------  -----------------------  -------------------------------------------------
    rate_limited, wait <= max_wait           yes                      retry after the wait asked for, else back-off
    rate_limited, wait > max_wait            -                        park until then (no attempt is used)
    overloaded, first in a row               yes                      retry after back-off
    overloaded, second in a row              a fallback is set        the next fallback model, attempts start anew
    server, connection, silence, bad_reply   yes                      retry after back-off
    lost (our process died)                  -                        retry at once
    too_long                                 not reacted yet          reactive compaction, then again
    too_long                                 reacted                  the turn ends: overflow
    any of the above                         no                       the turn ends: failed, with the cause
    spend_limit, credentials, payment,
    not_found, invalid                       -                        the turn ends: failed; a person can act

Numbers (docs/design.md): base 0.5 s x 2^n up to 32 s, plus up to 25 %; 3 attempts by default (10 unattended);
2 overloads in a row; output 8,000 -> 16,000 -> the model's limit; 2 continuations.
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.frozen import replace
from callboard.words.events import CallFailed
from callboard.words.specs import AgentSpec
from callboard.words.steps import Continue, EndTurn, PlanRetry, React, Step, SwitchModel

BASE_WAIT = 0.5
MAX_BACKOFF = 32.0
JITTER = 0.25
OVERLOADS_TO_SWITCH = 2
MAX_CONTINUATIONS = 2
CONTINUATION_PROMPT = "Output limit reached. Continue exactly where you stopped; do not repeat or apologise."

FINAL: dict[str, str] = {
    "spend_limit": "the spend limit of this key is reached: raise it or use another key, then send a message to go on",
    "credentials": "the key was refused: set ANTHROPIC_API_KEY to a valid one, then resume",
    "payment": "the account of this key cannot be billed: settle that, then resume",
    "not_found": "the service knows no such model: choose another with --model, then resume",
    "invalid": "the service refused the request as invalid",
}


@dataclass(frozen=True)
class RecoveryState:
    """Where one agent stands with its model calls."""

    attempts: int = 0
    """Failed attempts of the call under way, parking not counted."""
    overloads_in_a_row: int = 0
    output_limit: int = 0
    """0: the spec's default."""
    escalated: bool = False
    continuations: int = 0
    reacted: bool = False
    """A reactive compaction was made since the last successful reply."""
    model: str = ""
    """The fallback in use; empty: the spec's first model."""
    waiting_until: float = 0.0
    parked: bool = False
    failure: CallFailed | None = None
    """A failure that no decision has been recorded for."""
    first_failed_at: float = 0.0
    cut: bool = False
    """The newest reply was cut at the highest output limit."""
    react: bool = False
    """A reactive compaction is due."""


def model_in_use(recovery: RecoveryState, spec: AgentSpec) -> str:
    return recovery.model or spec.model


def output_limit(recovery: RecoveryState, spec: AgentSpec) -> int:
    """Output tokens to ask for now, never above the model's own limit."""
    most = spec.limits_of(model_in_use(recovery, spec)).max_output
    return min(recovery.output_limit or spec.output_tokens, most)


def next_output_limit(recovery: RecoveryState, spec: AgentSpec) -> int | None:
    """The next limit after a reply was cut, None at the highest."""
    now = output_limit(recovery, spec)
    most = spec.limits_of(model_in_use(recovery, spec)).max_output
    steps = [limit for limit in (spec.output_escalated, most) if now < limit <= most]
    return steps[0] if steps else None


def back_off(attempt: int, draw: float) -> float:
    """Seconds before try `attempt` + 1 (`attempt` counts from 0)."""
    return min(BASE_WAIT * 2.0**attempt, MAX_BACKOFF) * (1.0 + JITTER * draw)


def recover(failed: CallFailed, recovery: RecoveryState, spec: AgentSpec, now: float) -> Step:
    """The decision on a failed call, as a step."""
    fault = failed.fault
    if fault.kind in FINAL:
        return EndTurn("failed", f"{FINAL[fault.kind]} ({_said(failed)})")
    if fault.kind == "too_long":
        if recovery.reacted:
            return EndTurn("overflow", f"the conversation does not fit, even compacted ({_said(failed)})")
        return React(fault.message)
    if fault.kind == "lost":
        return PlanRetry(now, recovery.attempts, parked=False, why="the process died during the call")
    wait = fault.retry_after if fault.kind == "rate_limited" else None
    if wait is not None and wait > spec.max_wait:
        return PlanRetry(failed.at + wait, recovery.attempts, parked=True, why=_said(failed))
    switch = _fallback(recovery, spec)
    if fault.kind == "overloaded" and recovery.overloads_in_a_row >= OVERLOADS_TO_SWITCH and switch:
        return SwitchModel(switch, _said(failed))
    if recovery.attempts >= spec.attempts:
        if switch and fault.kind == "overloaded":
            return SwitchModel(switch, _said(failed))
        tried = failed.at - (recovery.first_failed_at or failed.at)
        return EndTurn("failed", f"model unavailable: {recovery.attempts} attempts in {tried:.0f} s ({_said(failed)})")
    seconds = back_off(recovery.attempts - 1, failed.draw) if wait is None else wait
    return PlanRetry(failed.at + seconds, recovery.attempts, parked=False, why=_said(failed))


def after_cut(recovery: RecoveryState) -> Step:
    """The newest reply was cut at the highest limit and its text kept: go on, at most twice."""
    if recovery.continuations < MAX_CONTINUATIONS:
        return Continue(recovery.continuations + 1)
    return EndTurn("limit", "the reply still did not end after two continuations at the highest output limit")


def on_failed(recovery: RecoveryState, failed: CallFailed) -> RecoveryState:
    """A call failed: count it. A lost call and a wait for limits are no attempts; parking is decided later."""
    counts = failed.fault.kind not in ("lost", "too_long")
    overloaded = failed.fault.kind == "overloaded"
    return replace(
        recovery,
        failure=failed,
        attempts=recovery.attempts + (1 if counts else 0),
        overloads_in_a_row=recovery.overloads_in_a_row + 1 if overloaded else 0,
        first_failed_at=recovery.first_failed_at or failed.at,
    )


def on_retry(recovery: RecoveryState, until: float, parked: bool) -> RecoveryState:
    attempts = recovery.attempts - 1 if parked else recovery.attempts
    return replace(recovery, failure=None, waiting_until=until, parked=parked, attempts=attempts)


def on_switched(recovery: RecoveryState, model: str) -> RecoveryState:
    """Another model starts its own attempts."""
    return replace(recovery, failure=None, model=model, attempts=0, overloads_in_a_row=0, waiting_until=0.0)


def on_reply(recovery: RecoveryState, *, cut: bool, react_limit: str = "per_success") -> RecoveryState:
    """A whole reply: counters go back; one that ended normally also sets the output limit back.

    `react_limit` as in `AgentSpec`: with `per_turn` a prompt is compacted once, however many replies follow.
    """
    fresh = replace(
        recovery,
        attempts=0,
        overloads_in_a_row=0,
        waiting_until=0.0,
        parked=False,
        failure=None,
        first_failed_at=0.0,
        reacted=recovery.reacted and react_limit == "per_turn",
        cut=cut,
    )
    return fresh if cut else replace(fresh, output_limit=0, escalated=False, continuations=0)


def on_turn_end(recovery: RecoveryState) -> RecoveryState:
    """Back to the first model; nothing waits any more."""
    return RecoveryState()


def _fallback(recovery: RecoveryState, spec: AgentSpec) -> str:
    """The next model of the chain after the one in use; empty at its end."""
    chain = (spec.model, *spec.fallback_models)
    place = chain.index(model_in_use(recovery, spec)) if model_in_use(recovery, spec) in chain else len(chain)
    return chain[place + 1] if place + 1 < len(chain) else ""


def _said(failed: CallFailed) -> str:
    fault = failed.fault
    status = f" {fault.status}" if fault.status else ""
    return f"{fault.type or fault.kind}{status}: {fault.message}".strip().rstrip(":")
