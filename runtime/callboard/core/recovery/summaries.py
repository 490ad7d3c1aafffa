"""What to do when a call of a summary fails. Pure; a summary has a recovery of its own, apart from that of its turn.
This is the whole of its table; tests/core/test_summary_recovery.py goes through it row by row.

    what happens                           when                                         action
    -------------------------------------  -------------------------------------------  ------------------------------
    too_long                               it rides                                     as a request of its own
    too_long                               of its own, its data can be cut              in smaller pieces
    too_long                               of its own, its data cannot be cut           give up
    rate_limited                           attempts left, a wait of up to max_wait      again, after that wait
    rate_limited                           a wait longer than max_wait                  as with no attempts left
    overloaded, server, connection         attempts left                                again, after back-off
    silence, bad_reply, lost               attempts left                                again, after back-off
    invalid                                the service says x-should-retry: true        as server
    any of these                           no attempts left, it rides                   as a request of its own
    any of these                           no attempts left, a model is left            with the next model
    any of these                           no attempts left, no model is left           give up
    any of these                           the service says x-should-retry: false       as with no attempts left
    not_found, invalid, unusable answer    it rides                                     as a request of its own
    not_found, invalid, unusable answer    of its own, a model is left                  with the next model
    not_found, invalid, unusable answer    of its own, no model is left                 give up
    credentials, payment, spend_limit      always                                       give up

An answer that ended where the model's window ends counts as too_long.

*It rides*: the question stands at the end of the conversation, on its cached prefix. Models: the small one, the one
that the agent works with, its fallbacks. Numbers are those of the turn's own calls (`recovery`): waits, attempts, and
the longest wait: what the service asks for beyond that is not waited for, since a summary has a fallback and a parked
agent has none. Giving up means `SummaryFailed`, and `truncate_oldest` serves. Each wait and each change of model is an
event, so that it is seen; a summary that a crash cut off is made anew, and waits for what was left of its wait first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callboard.core.recovery.turns import back_off, is_final, is_too_long, model_in_use
from callboard.core.state import AgentState
from callboard.words.specs import AgentSpec
from callboard.words.values import Fault

KEY = frozenset({"credentials", "payment", "spend_limit"})
"""The key's own faults: no other model helps."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows. `again`: after `wait` seconds; `plain`: as a request of its own; `smaller`: with less data;
    `model`: with the next model; `give_up`: no summary."""

    do: Literal["again", "plain", "smaller", "model", "give_up"]
    wait: float = 0.0
    why: str = ""
    """The fault or the answer, for a person to read."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Where a summary stands with the call that failed."""

    attempts: int
    """Of this call with this model, the failed one included."""
    rides: bool = False
    may_shrink: bool = True
    """Its data can still be cut."""
    models_left: bool = False
    """There is a model that was not asked yet."""


def models_for_summary(state: AgentState) -> tuple[str, ...]:
    """Whom to ask, in order, each once."""
    spec = state.me
    own = model_in_use(state.recovery, spec)
    chain = (spec.model, *spec.fallback_models)
    later = chain[chain.index(own) + 1 :] if own in chain else ()
    return tuple(dict.fromkeys(name for name in (spec.small_model, own, *later) if name))


def after_fault(fault: Fault, tried: Tried, spec: AgentSpec, draw: float) -> Next:
    """The decision on a failed call. `draw` (0..1) is the jitter."""
    if fault.kind in KEY:
        return Next("give_up")
    if fault.kind == "too_long":
        return _too_long(tried)
    if not is_final(fault) and fault.retry is not False and tried.attempts < spec.attempts:
        wait = (fault.retry_after if fault.kind == "rate_limited" else None) or back_off(tried.attempts - 1, draw)
        if wait <= spec.max_wait:
            return Next("again", wait)
    return after_bad_answer(tried)


def after_stop(reason: str, tried: Tried) -> Next:
    """The decision on an answer that is no summary, by its stop reason."""
    return _too_long(tried) if is_too_long(reason) else after_bad_answer(tried)


def _too_long(tried: Tried) -> Next:
    if tried.rides:
        return Next("plain")
    return Next("smaller" if tried.may_shrink else "give_up")


def after_bad_answer(tried: Tried) -> Next:
    """The decision on an answer that is no summary, and on what cannot be tried again with the same model."""
    if tried.rides:
        return Next("plain")
    return Next("model" if tried.models_left else "give_up")
