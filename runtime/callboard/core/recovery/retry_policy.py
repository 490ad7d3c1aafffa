"""Rules for a failed model call and for a reply that does not end normally.

The rules are a pure state machine for each agent, persisted with its journal (`RecoveryState`). The table is complete;
tests/core/recovery/test_recovery.py checks every row. `adapters/models/anthropic/faults.py` names the faults: 429 is
`rate_limited`, 529 is `overloaded`.

    event                           condition                                      action
    ------------------------------  ---------------------------------------------  ------------------------------------
    rate_limited                    a wait longer than max_wait, with a fallback   switch
    rate_limited                    a wait longer than max_wait, without one       park until the next try
    rate_limited                    another wait is requested, attempts left       retry after that wait
    rate_limited                    no wait is requested (or 0), attempts left     retry after back-off
    overloaded                      the first in a row, attempts left              retry after back-off
    overloaded                      the second in a row, with a fallback           switch
    overloaded                      the second, without one, attempts left         retry after back-off
    server                          attempts left                                  retry after back-off
    connection                      attempts left                                  retry after back-off
    silence                         attempts left                                  retry after back-off
    bad_reply                       attempts left                                  retry after back-off
    invalid                         the service says x-should-retry: true          as server
    any of these                    attempts used up, with a fallback              switch
    any of these                    attempts used up, without one                  end of turn: failed
    any of these                    the service says x-should-retry: false         as if attempts were used up
    lost                            always                                         retry at once, no attempt used
    too_long                        it states a smaller window than is known       learn it, then as below
    too_long                        no compaction yet                              compact, no attempt used
    too_long                        already compacted                              end of turn: overflow
    not_found                       with a fallback                                switch
    not_found                       without one                                    end of turn: failed
    spend_limit                     always                                         end of turn: failed
    credentials                     always                                         end of turn: failed
    payment                         always                                         end of turn: failed
    invalid                         it states a lower output limit than is known   learn it, retry, no attempt used
    invalid                         it names an image or document of the view      leave it out, retry, no attempt used
    invalid                         in all other cases                             end of turn: failed
    max_tokens                      below the highest output limit                 drop it, retry with the next limit
    max_tokens                      in a call whose input grew with the limit      ask for smaller parts, up to 2
    max_tokens                      at the highest, up to 2 in a row               keep its text, ask to continue
    max_tokens                      at the highest, a third in a row               end of turn: limit
    pause_turn                      up to 10 in a row                              send it back unchanged
    compaction                      up to 10 in a row                              send it back unchanged
    pause_turn                      an 11th in a row                               end of turn: limit
    compaction                      an 11th in a row                               end of turn: limit
    model_context_window_exceeded   always                                         as too_long
    refusal                         always                                         end of turn: refused, no call runs
    tool_use, no stop reason        the reply has no call                          end of turn, with a warning
    any other stop reason           always                                         warning; calls run, or the turn ends

A parked agent uses up no attempt; its key is tried again after a minute at the latest (`types/rate_limits.py`). `lost`
means that the process died during the call. "With a fallback" means that `fallback.next_model` finds a model after the
current one whose limits meet the demand. The fallback starts with its own attempts and is used until the turn ends.

A complete reply resets attempts, overloads and pauses. One that ends normally also resets the output limit and the
continuations. The end of the turn resets everything, and the first model is used again.

Numbers (docs/design.md): base 0.5 s x 2^n up to 32 s, plus up to 25 %; 3 attempts by default (10 unattended); 2
overloads in a row; output 8,000 -> 16,000 -> the model's limit; 2 continuations; 10 pauses (a service pauses a reply
after about ten rounds of its own tools, so this is about a hundred rounds).
"""

from __future__ import annotations

from callboard.core.frozen import replace
from callboard.core.recovery.fallback import FallbackModel, ModelDemand, first_model, next_model
from callboard.core.recovery.refused_blocks import names_message
from callboard.core.replies import GOES_ON
from callboard.types.agent_spec import AgentSpec
from callboard.types.events_calls import CallFailed
from callboard.types.lazy_dataclass import dataclass
from callboard.types.rate_limits import PROBE_AFTER
from callboard.types.records import Fault
from callboard.types.steps import Continue, EndTurn, LearnLimits, PlanRetry, React, Step, SwitchModel

BASE_WAIT = 0.5
MAX_BACKOFF = 32.0
JITTER = 0.25
OVERLOADS_TO_SWITCH = 2
MAX_CONTINUATIONS = 2
MAX_PAUSES = 10
KNOWN_STOPS = GOES_ON | {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"}
"""Stop reasons of a reply that is kept. A reply with another one is handled by its blocks, and the user is informed."""
SMALLER_PROMPT = (
    "Output limit reached in the middle of your call of `{call}`: it was not run. Its input is too large for one "
    "reply. Do it in smaller parts: for a file, write the first part, then add the others with further calls."
)
CONTINUATION_PROMPT = "Output limit reached. Continue exactly where you stopped; do not repeat or apologise."

FINAL: dict[str, str] = {
    "spend_limit": "the spend limit of this key is reached: raise it or use another key, then send a message to go on",
    "credentials": "the key was refused: set ANTHROPIC_API_KEY to a valid one, then resume",
    "payment": "the account of this key cannot be billed: fix that, then resume",
    "not_found": "the service knows no such model: choose another with /model NAME, or resume with --model",
    "invalid": "the service refused the request as invalid: send a message to try again",
}
_REFUSED_MESSAGE = (
    "the service refuses a message of this conversation as invalid, and each request with it: continue in a fresh "
    "conversation with /new --carry or `callboard resume --carry`"
)
REFUSED = "the model refused to continue: phrase the request differently"
_AGAIN = "send a message to try again"
NEXT: dict[str, str] = {
    "rate_limited": f"the key's rate limit still applies: wait a little, then {_AGAIN}",
    "overloaded": f"the service has no room at the moment: {_AGAIN} later, or name other models in fallback_models",
    "server": f"the service fails: {_AGAIN} later, or name other models in fallback_models",
    "connection": f"check the network, the proxy and ANTHROPIC_BASE_URL, then {_AGAIN}",
    "silence": f"{_AGAIN}; recovery.first_byte, recovery.idle and recovery.total set how long to wait for a reply",
    "bad_reply": f"check that ANTHROPIC_BASE_URL names a Messages API, then {_AGAIN}",
}
"""Advice to the user once the attempts are used up."""


def without_advice(reason: str) -> str:
    """Return the reason for a failed turn, for a model: without advice that only the user can follow."""
    for phrase in (*FINAL.values(), _REFUSED_MESSAGE):
        if reason.startswith(phrase):
            reason = phrase.partition(": ")[0] + reason[len(phrase) :]
    for phrase in NEXT.values():
        reason = reason.replace(f". {phrase[:1].upper()}{phrase[1:]}", "")
    for phrase in (f": {_AGAIN}", ": send a message to go on"):
        reason = reason.removesuffix(phrase)
    return reason


@dataclass(frozen=True)
class RecoveryState:
    """State of one agent's model calls."""

    attempts: int = 0
    """Failed attempts of the current call with this model, without parking."""
    tried: int = 0
    """Failed attempts of the current call with all models."""
    overloads_in_a_row: int = 0
    output_limit: int = 0
    """Output limit in tokens; 0: the spec's default."""
    escalated: bool = False
    continuations: int = 0
    pauses: int = 0
    """Number of replies in a row that the service paused."""
    reacted: bool = False
    """True if a reactive compaction was made since the last successful reply."""
    model: str = ""
    """Current fallback; empty: the spec's first model."""
    waiting_until: float = 0.0
    waiting_since: float = 0.0
    """Time at which the wait was planned. If the clock shows an earlier time, it was set back."""
    parked: bool = False
    failure: CallFailed | None = None
    """Failure without a recorded decision."""
    first_failed_at: float = 0.0
    cut_call: str = ""
    """Tool whose input was cut in the newest reply; empty if it was not cut in a call."""
    cut_characters: int = 0
    cut_text: str = ""
    """Text of a reply that was cut by a full window, until another reply comes."""
    cut: bool = False
    """True if the newest reply was cut at the highest output limit."""
    react: bool = False
    """True if a reactive compaction is due."""
    prompted: bool = False
    """True if the user has sent a prompt since the newest call: the next call tries a parked or refused key at once."""


_CALM = RecoveryState()


def model_in_use(recovery: RecoveryState, spec: AgentSpec) -> str:
    """Return the fallback model in use; without one, the model that the spec names for the present mode."""
    return recovery.model or first_model(spec)


def output_limit(recovery: RecoveryState, spec: AgentSpec) -> int:
    """Return the output tokens to request now, with those for thinking, never above the model's own limit."""
    limits = spec.limits_of(model_in_use(recovery, spec))
    return min((recovery.output_limit or spec.output_tokens) + spec.thinking_beside(limits), limits.max_output)


def next_output_limit(recovery: RecoveryState, spec: AgentSpec) -> int | None:
    """Return the next limit after a reply was cut, None at the highest."""
    most = spec.limits_of(model_in_use(recovery, spec)).max_output
    if output_limit(recovery, spec) >= most:
        return None
    now = min(recovery.output_limit or spec.output_tokens, most)
    steps = [limit for limit in (spec.output_escalated, most) if now < limit <= most]
    return steps[0] if steps else None


def back_off(attempt: int, draw: float) -> float:
    """Return the seconds before attempt `attempt` + 1 (`attempt` counts from 0)."""
    return min(BASE_WAIT * 2.0**attempt, MAX_BACKOFF) * (1.0 + JITTER * draw)


def recover(
    failed: CallFailed, recovery: RecoveryState, spec: AgentSpec, *, now: float, demand: ModelDemand | None = None
) -> Step:
    """Return the decision on a failed call as a step.

    `demand`: requirements of the next call for a model that takes over.
    """
    fault = failed.fault
    if (learned := learnable(failed, spec)) is not None:
        return learned
    if fault.kind == "too_long":
        if recovery.reacted:
            return EndTurn("overflow", f"the conversation does not fit, even compacted ({_fault_text(failed.fault)})")
        return React(fault.message)
    if fault.kind == "lost":
        return PlanRetry(now, recovery.attempts, parked=False, why=_billed("the process died during the call", fault))
    if is_final(fault):
        other = _next_fallback(recovery, spec, demand) if fault.kind == "not_found" else FallbackModel()
        if other.model:
            return SwitchModel(other.model, fault_line(fault), other.skipped)
        advice = _REFUSED_MESSAGE if names_message(fault) else FINAL[fault.kind]
        return EndTurn("failed", f"{advice} ({_fault_text(failed.fault)}){_unavailable_models(other)}")
    return _retried(failed, recovery, spec, demand)


def learnable(failed: CallFailed, spec: AgentSpec) -> LearnLimits | None:
    """Return the limits that a refusal states, if they are lower than the known ones.

    A known limit is left out, so that nothing is learned twice.
    """
    fault = failed.fault
    limits = spec.limits_of(failed.model)
    if fault.kind not in ("invalid", "too_long"):
        return None
    output = fault.max_output if fault.max_output and fault.max_output < limits.max_output else None
    window = fault.window if fault.window and fault.window < limits.window else None
    if output is None and window is None:
        return None
    return LearnLimits(failed.model, output, window, _fault_text(fault))


def on_learned(recovery: RecoveryState) -> RecoveryState:
    """Return the state after a stated limit was adopted: the refusal does not count as an attempt."""
    if recovery.failure is None or recovery.failure.fault.kind != "invalid":
        return recovery  # a prompt that is too long is compacted, now to the window that is known
    return on_left_out(recovery)


def on_left_out(recovery: RecoveryState) -> RecoveryState:
    """Return the state after a refused image or document was left out: the refusal does not count as an attempt."""
    if recovery.failure is None:
        return recovery
    return replace(recovery, failure=None, attempts=recovery.attempts - 1, tried=recovery.tried - 1)


def grows(recovery: RecoveryState, call: str, characters: int) -> bool:
    """Return True if the input of a call that was cut has grown with the output limit.

    A higher limit does not help then.
    """
    return bool(call) and call == recovery.cut_call and characters > recovery.cut_characters


def odd_stop(stop_reason: str, *, calls: bool) -> str:
    """Return a description of an unusual stop reason of a complete reply; empty for a usual one."""
    if stop_reason == "tool_use" and not calls:
        return "the service ended a reply with 'tool_use' and without a call: taken as the end of the turn"
    if not stop_reason:
        return "the service ended a reply without a stop reason: handled by its content"
    if stop_reason not in KNOWN_STOPS:
        return f"the service ended a reply with {stop_reason!r}, which is not known here: handled by its content"
    return ""


def is_too_long(stop_reason: str) -> bool:
    """Return True if the reply ended because the window is full.

    It is handled as a prompt that was too long, and its text is kept only if no other reply follows in its turn.
    """
    return stop_reason == "model_context_window_exceeded"


def is_final(fault: Fault) -> bool:
    """Return True if no other attempt with this model can help."""
    return fault.kind in FINAL and not (fault.kind == "invalid" and fault.retry)


def _retried(failed: CallFailed, recovery: RecoveryState, spec: AgentSpec, demand: ModelDemand | None) -> Step:
    """Return the decision on a fault that may be temporary."""
    fault = failed.fault
    reason = fault_line(failed.fault)
    wait = (fault.retry_after if fault.kind == "rate_limited" else None) or 0.0
    if wait > spec.max_wait:
        other = _next_fallback(recovery, spec, demand)
        if other.model:
            return SwitchModel(other.model, reason, other.skipped)
        reason = f"{reason}; the service asks for a wait of {wait:,.0f} s"
        return PlanRetry(failed.at + min(wait, PROBE_AFTER), recovery.attempts, parked=True, why=reason)
    used_up = recovery.attempts >= spec.attempts or fault.retry is False
    if used_up or (fault.kind == "overloaded" and recovery.overloads_in_a_row >= OVERLOADS_TO_SWITCH):
        other = _next_fallback(recovery, spec, demand)
        if other.model:
            return SwitchModel(other.model, reason, other.skipped)
        if used_up:
            return EndTurn("failed", _final_message(failed, recovery) + _unavailable_models(other))
    seconds = wait or back_off(recovery.attempts - 1, failed.draw)  # zero is not a wait
    return PlanRetry(failed.at + seconds, recovery.attempts, parked=False, why=reason)


def after_cut(recovery: RecoveryState) -> Step:
    """Return the decision after the newest reply was cut at the highest limit and its text kept.

    The turn continues at most twice.
    """
    if recovery.continuations < MAX_CONTINUATIONS:
        return Continue(recovery.continuations + 1, recovery.cut_call)
    if recovery.cut_call:
        reason = (
            f"the input of {recovery.cut_call} never fitted into a reply, also when it was asked for in smaller parts"
        )
        return EndTurn("limit", f"{reason}: ask for less at once", "output")
    reason = "the reply still did not end after two continuations at the highest output limit: ask for it in parts"
    return EndTurn("limit", reason, "output")


def after_pause(recovery: RecoveryState) -> Step | None:
    """Return the decision after the newest reply was paused.

    None: send it back unchanged, because the limit of pauses is not reached.
    """
    if recovery.pauses <= MAX_PAUSES:
        return None
    reason = f"the service paused its reply {recovery.pauses} times in a row without an end: send a message to go on"
    return EndTurn("limit", reason, "output")


def on_failed(recovery: RecoveryState, failed: CallFailed) -> RecoveryState:
    """Count a failed call. A lost call and a prompt that was too long are not attempts; parking is decided later."""
    counts = 0 if failed.fault.kind in ("lost", "too_long") else 1
    overloads = recovery.overloads_in_a_row + 1 if failed.fault.kind == "overloaded" else 0
    return replace(
        recovery,
        failure=failed,
        cut_text=failed.text or recovery.cut_text,
        prompted=False,
        attempts=recovery.attempts + counts,
        tried=recovery.tried + counts,
        overloads_in_a_row=recovery.overloads_in_a_row if failed.fault.kind == "lost" else overloads,
        first_failed_at=recovery.first_failed_at or failed.at,
    )


def waits_until(recovery: RecoveryState, now: float) -> float:
    """Return the time of the next attempt.

    It is never farther away than planned: the wait is over if the clock was set back to a time before the plan.
    """
    return recovery.waiting_until if now >= recovery.waiting_since else 0.0


def on_retry(recovery: RecoveryState, until: float, parked: bool, at: float = 0.0) -> RecoveryState:
    """Return the state after the next attempt was planned at `at`. Parking does not count as an attempt."""
    used = 1 if parked else 0
    return replace(
        recovery,
        failure=None,
        waiting_until=until,
        waiting_since=at,
        parked=parked,
        attempts=recovery.attempts - used,
        tried=recovery.tried - used,
    )


def on_prompt(recovery: RecoveryState) -> RecoveryState:
    """Note a prompt of the user: a parked key is tried at once."""
    if recovery.parked:
        recovery = replace(recovery, parked=False, waiting_until=0.0)
    return replace(recovery, prompted=True)


def on_switched(recovery: RecoveryState, model: str) -> RecoveryState:
    """Start the attempts of another model."""
    return replace(
        recovery, failure=None, model=model, attempts=0, overloads_in_a_row=0, waiting_until=0.0, parked=False
    )


def on_reply(
    recovery: RecoveryState, *, cut: bool, cut_call: str = "", paused: bool = False, react_limit: str = "per_success"
) -> RecoveryState:
    """Apply a complete reply: counters are reset; one that ended normally also resets the output limit.

    `react_limit` as in `AgentSpec`: with `per_turn` a prompt is compacted once, however many replies follow.
    """
    if recovery == _CALM and not (cut or cut_call or paused):
        return recovery
    return replace(
        recovery,
        attempts=0,
        tried=0,
        overloads_in_a_row=0,
        pauses=recovery.pauses + 1 if paused else 0,
        waiting_until=0.0,
        parked=False,
        failure=None,
        prompted=False,
        first_failed_at=0.0,
        reacted=recovery.reacted and react_limit == "per_turn",
        cut=cut,
        cut_text="",
        cut_call=cut_call,
        cut_characters=0 if not cut_call else recovery.cut_characters,
        output_limit=recovery.output_limit if cut else 0,
        escalated=recovery.escalated and cut,
        continuations=recovery.continuations if cut else 0,
    )


def on_turn_end(recovery: RecoveryState) -> RecoveryState:
    """Return the state at the end of a turn: the first model, and no wait."""
    return RecoveryState()


def _next_fallback(recovery: RecoveryState, spec: AgentSpec, demand: ModelDemand | None) -> FallbackModel:
    """Return the model that takes over from the current one."""
    return next_model(model_in_use(recovery, spec), spec, demand or ModelDemand())


def _final_message(failed: CallFailed, recovery: RecoveryState) -> str:
    """Return the final message of a turn that failed.

    The message has the fault, the number of attempts and their duration, the model, and advice for the user.
    """
    fault = failed.fault
    seconds = failed.at - (recovery.first_failed_at or failed.at)
    lasted = f" in {seconds:.0f} s" if seconds >= 0 else ""  # the clock may have been set back meanwhile
    tries = f"{recovery.tried} attempt{'' if recovery.tried == 1 else 's'}{lasted}"
    whom = f", at last with {recovery.model}" if recovery.model else ""
    refused = ", and another would be of no use" if fault.retry is False else ""
    what_next = NEXT.get(fault.kind, _AGAIN)
    return f"model unavailable: {tries}{whom}{refused} ({_fault_text(fault)}). {what_next[:1].upper()}{what_next[1:]}"


def _unavailable_models(other: FallbackModel) -> str:
    """Return the models that could not take over, for the end of the turn."""
    return f". No other model can take over ({'; '.join(other.skipped)})" if other.skipped else ""


def _billed(description: str, fault: Fault) -> str:
    """Return the description with a note on what the wasted attempt may be billed for."""
    used = fault.usage
    if used is not None and (used.prompt_tokens or used.output_tokens):
        return f"{description}; the attempt may be billed: {used.prompt_tokens:,} tokens in, {used.output_tokens:,} out"
    return f"{description}; the attempt may be billed" if fault.may_bill else description


def fault_line(fault: Fault) -> str:
    """Return a fault in one line, with a note on what the attempt may be billed for."""
    return _billed(_fault_text(fault), fault)


def _fault_text(fault: Fault) -> str:
    status = f" {fault.status}" if fault.status else ""
    return f"{fault.type or fault.kind}{status}: {fault.message}".strip().rstrip(":")
