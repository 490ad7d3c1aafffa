"""What to do when a model call fails, or its reply is no plain end: a pure state machine for each agent, persisted with
its journal (`RecoveryState`). This is the whole of its table; tests/core/test_recovery.py goes through it row by row.

    what happens                    when                                           action
    ------------------------------  ---------------------------------------------  ------------------------------------
    rate_limited                    the wait asked for is longer than max_wait     park until then, no attempt used
    rate_limited                    a wait is asked for, attempts left             retry after that wait
    rate_limited                    none is asked for (or 0), attempts left         retry after back-off
    overloaded                      the first in a row, attempts left              retry after back-off
    overloaded                      the second in a row, a fallback can            switch
    overloaded                      the second in a row, none can, attempts left   retry after back-off
    server                          attempts left                                  retry after back-off
    connection                      attempts left                                  retry after back-off
    silence                         attempts left                                  retry after back-off
    bad_reply                       attempts left                                  retry after back-off
    invalid                         the service says x-should-retry: true          as server
    any of these                    attempts used up, a fallback can               switch
    any of these                    attempts used up, none can                     end of turn: failed
    any of these                    the service says x-should-retry: false         as if attempts were used up
    lost                            always                                         retry at once, no attempt used
    too_long                        not reacted yet                                react, no attempt used
    too_long                        reacted                                        end of turn: overflow
    not_found                       a fallback can                                 switch
    not_found                       none can                                       end of turn: failed
    spend_limit                     always                                         end of turn: failed
    credentials                     always                                         end of turn: failed
    payment                         always                                         end of turn: failed
    invalid                         always else                                    end of turn: failed
    max_tokens                      below the highest output limit                 drop it, ask with the next limit
    max_tokens                      at the highest, up to 2 in a row               keep its text, ask to go on
    max_tokens                      at the highest, a third in a row               end of turn: limit
    pause_turn                      up to 10 in a row                              send it back as it stands
    compaction                      up to 10 in a row                              send it back as it stands
    pause_turn                      an 11th in a row                               end of turn: limit
    compaction                      an 11th in a row                               end of turn: limit
    model_context_window_exceeded   always                                         as too_long
    refusal                         always                                         end of turn: refused, no call runs
    any other stop reason           always                                         by its blocks: calls run, or the end

`lost`: our process died during the call. *Can*: `fallback.next_model` finds a model after the one in use whose limits
fit what is asked of it; it starts with attempts of its own, and holds until the turn ends. A whole reply sets attempts,
overloads and pauses back, one that ends normally also the output limit and the continuations; the end of the turn sets
all back, the first model too.

Numbers (docs/design.md): base 0.5 s x 2^n up to 32 s, plus up to 25 %; 3 attempts by default (10 unattended);
2 overloads in a row; output 8,000 -> 16,000 -> the model's limit; 2 continuations; 10 pauses (a service pauses a reply
after some ten rounds of its own tools, so that this is a hundred).
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.frozen import replace
from callboard.core.recovery.fallback import Choice, Demand, next_model
from callboard.words.events import CallFailed
from callboard.words.specs import AgentSpec
from callboard.words.steps import Continue, EndTurn, PlanRetry, React, Step, SwitchModel
from callboard.words.values import Fault

BASE_WAIT = 0.5
MAX_BACKOFF = 32.0
JITTER = 0.25
OVERLOADS_TO_SWITCH = 2
MAX_CONTINUATIONS = 2
MAX_PAUSES = 10
GOES_ON = frozenset({"pause_turn", "compaction"})
"""Stop reasons of a reply that the service wants back as it stands, to go on with it."""
KNOWN_STOPS = GOES_ON | {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"}
"""Of a reply that is kept. One with another stop reason is treated by its blocks, and a person is told."""
CONTINUATION_PROMPT = "Output limit reached. Continue exactly where you stopped; do not repeat or apologise."

FINAL: dict[str, str] = {
    "spend_limit": "the spend limit of this key is reached: raise it or use another key, then send a message to go on",
    "credentials": "the key was refused: set ANTHROPIC_API_KEY to a valid one, then resume",
    "payment": "the account of this key cannot be billed: settle that, then resume",
    "not_found": "the service knows no such model: choose another with /model NAME, or resume with --model",
    "invalid": "the service refused the request as invalid: send a message to try again; where that is refused too, "
    "/new --carry begins a fresh conversation with what matters of this one",
}
REFUSED = "the model refused to go on: put it in other words, or begin anew with /new"
_AGAIN = "send a message to try again"
NEXT: dict[str, str] = {
    "rate_limited": f"the key's rate limit holds on: wait a little, then {_AGAIN}",
    "overloaded": f"the service has no room at the moment: {_AGAIN} later, or name other models in fallback_models",
    "server": f"the service fails: {_AGAIN} later, or name other models in fallback_models",
    "connection": f"check the network, the proxy and ANTHROPIC_BASE_URL, then {_AGAIN}",
    "silence": f"{_AGAIN}; recovery.first_byte, recovery.idle and recovery.total say how long a reply is waited for",
    "bad_reply": f"check that ANTHROPIC_BASE_URL names a Messages API, then {_AGAIN}",
}
"""What a person can do once the attempts are used up."""


@dataclass(frozen=True)
class RecoveryState:
    """Where one agent stands with its model calls."""

    attempts: int = 0
    """Failed attempts of the call under way with this model, parking not counted."""
    tried: int = 0
    """The same with all models that were asked."""
    overloads_in_a_row: int = 0
    output_limit: int = 0
    """0: the spec's default."""
    escalated: bool = False
    continuations: int = 0
    pauses: int = 0
    """Replies in a row that the service paused."""
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


def recover(
    failed: CallFailed, recovery: RecoveryState, spec: AgentSpec, now: float, demand: Demand | None = None
) -> Step:
    """The decision on a failed call, as a step. `demand`: what the next call asks of a model that takes over."""
    fault = failed.fault
    if fault.kind == "too_long":
        if recovery.reacted:
            return EndTurn("overflow", f"the conversation does not fit, even compacted ({_said(failed.fault)})")
        return React(fault.message)
    if fault.kind == "lost":
        return PlanRetry(now, recovery.attempts, parked=False, why=_billed("the process died during the call", fault))
    if is_final(fault):
        other = _other(recovery, spec, demand) if fault.kind == "not_found" else Choice()
        if other.model:
            return SwitchModel(other.model, told_of(fault), other.skipped)
        return EndTurn("failed", f"{FINAL[fault.kind]} ({_said(failed.fault)}){_nobody(other)}")
    return _again(failed, recovery, spec, demand)


def is_too_long(stop_reason: str) -> bool:
    """The reply ended because the window is full: it is void, and treated as a prompt that was too long."""
    return stop_reason == "model_context_window_exceeded"


def is_final(fault: Fault) -> bool:
    """No other try with this model helps."""
    return fault.kind in FINAL and not (fault.kind == "invalid" and fault.retry)


def _again(failed: CallFailed, recovery: RecoveryState, spec: AgentSpec, demand: Demand | None) -> Step:
    """The decision on a fault that may pass."""
    fault, why = failed.fault, told_of(failed.fault)
    wait = (fault.retry_after if fault.kind == "rate_limited" else None) or 0.0
    if wait > spec.max_wait:
        return PlanRetry(failed.at + wait, recovery.attempts, parked=True, why=why)
    used_up = recovery.attempts >= spec.attempts or fault.retry is False
    if used_up or (fault.kind == "overloaded" and recovery.overloads_in_a_row >= OVERLOADS_TO_SWITCH):
        other = _other(recovery, spec, demand)
        if other.model:
            return SwitchModel(other.model, why, other.skipped)
        if used_up:
            return EndTurn("failed", _given_up(failed, recovery) + _nobody(other))
    seconds = wait or back_off(recovery.attempts - 1, failed.draw)  # to be asked to come back at once is no wait
    return PlanRetry(failed.at + seconds, recovery.attempts, parked=False, why=why)


def after_cut(recovery: RecoveryState) -> Step:
    """The newest reply was cut at the highest limit and its text kept: go on, at most twice."""
    if recovery.continuations < MAX_CONTINUATIONS:
        return Continue(recovery.continuations + 1)
    why = "the reply still did not end after two continuations at the highest output limit: ask for it in parts"
    return EndTurn("limit", why)


def after_pause(recovery: RecoveryState) -> Step | None:
    """The newest reply was paused. None: it goes back as it stands, unless that was done too often."""
    if recovery.pauses <= MAX_PAUSES:
        return None
    why = f"the service paused its reply {recovery.pauses} times in a row without an end: send a message to go on"
    return EndTurn("limit", why)


def on_failed(recovery: RecoveryState, failed: CallFailed) -> RecoveryState:
    """A call failed: count it. A lost call and a wait for limits are no attempts; parking is decided later."""
    counts = 0 if failed.fault.kind in ("lost", "too_long") else 1
    overloads = recovery.overloads_in_a_row + 1 if failed.fault.kind == "overloaded" else 0
    return replace(
        recovery,
        failure=failed,
        attempts=recovery.attempts + counts,
        tried=recovery.tried + counts,
        overloads_in_a_row=recovery.overloads_in_a_row if failed.fault.kind == "lost" else overloads,
        first_failed_at=recovery.first_failed_at or failed.at,
    )


def on_retry(recovery: RecoveryState, until: float, parked: bool) -> RecoveryState:
    """The next try is planned; one that was parked gives its attempt back."""
    used = 1 if parked else 0
    return replace(
        recovery,
        failure=None,
        waiting_until=until,
        parked=parked,
        attempts=recovery.attempts - used,
        tried=recovery.tried - used,
    )


def on_switched(recovery: RecoveryState, model: str) -> RecoveryState:
    """Another model starts its own attempts."""
    return replace(
        recovery, failure=None, model=model, attempts=0, overloads_in_a_row=0, waiting_until=0.0, parked=False
    )


def on_reply(
    recovery: RecoveryState, *, cut: bool, paused: bool = False, react_limit: str = "per_success"
) -> RecoveryState:
    """A whole reply: counters go back; one that ended normally also sets the output limit back.

    `react_limit` as in `AgentSpec`: with `per_turn` a prompt is compacted once, however many replies follow.
    """
    fresh = replace(
        recovery,
        attempts=0,
        tried=0,
        overloads_in_a_row=0,
        pauses=recovery.pauses + 1 if paused else 0,
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


def _other(recovery: RecoveryState, spec: AgentSpec, demand: Demand | None) -> Choice:
    """Who takes over from the model in use."""
    return next_model(model_in_use(recovery, spec), spec, demand or Demand())


def _given_up(failed: CallFailed, recovery: RecoveryState) -> str:
    """What, how often, how long, with whom, and what a person can do."""
    fault = failed.fault
    seconds = failed.at - (recovery.first_failed_at or failed.at)
    tries = f"{recovery.tried} attempt{'' if recovery.tried == 1 else 's'} in {seconds:.0f} s"
    whom = f", at last with {recovery.model}" if recovery.model else ""
    refused = ", and another would be of no use" if fault.retry is False else ""
    what_next = NEXT.get(fault.kind, _AGAIN)
    return f"model unavailable: {tries}{whom}{refused} ({_said(fault)}). {what_next[:1].upper()}{what_next[1:]}"


def _nobody(other: Choice) -> str:
    """Who could not take over, for the end of the turn."""
    return f". No other model can take over ({'; '.join(other.skipped)})" if other.skipped else ""


def _billed(said: str, fault: Fault) -> str:
    """What happened, and what the attempt may be billed for: it was made for nothing, and is made again."""
    used = fault.usage
    if used is not None and (used.prompt_tokens or used.output_tokens):
        return f"{said}; the attempt may be billed: {used.prompt_tokens:,} tokens in, {used.output_tokens:,} out"
    return f"{said}; the attempt may be billed" if fault.may_bill else said


def told_of(fault: Fault) -> str:
    """A fault in a line, with what the attempt may be billed for."""
    return _billed(_said(fault), fault)


def _said(fault: Fault) -> str:
    status = f" {fault.status}" if fault.status else ""
    return f"{fault.type or fault.kind}{status}: {fault.message}".strip().rstrip(":")
