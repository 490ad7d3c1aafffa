"""Rules for an API key that is at fault: refused, unpaid, or over its spend limit. Pure; times are arguments.

    key      call or response                                    result
    -------  --------------------------------------------------  ---------------------------------------------------
    good     any call                                            it is sent
    refused  a call for a new prompt of the user                 it is sent at once: the user may have fixed the key
    refused  any call, 60 s after the refusal or the newest      it is sent alone, as a test
             test
    refused  any other call                                      the known fault; nothing is sent
    refused  a response to a test, even an error                 the key is good again
    refused  a response to a call that was sent before the       the key stays refused
             refusal
    refused  a test is refused                                   the key stays refused, and the 60 s begin again

A key that is refused for one model only (403: it may not use that model) stays good for the others.
"""

from __future__ import annotations

from callboard.types.lazy_dataclass import dataclass
from callboard.types.rate_limits import PROBE_AFTER
from callboard.types.records import Fault

KEY_FAULTS = frozenset({"credentials", "payment", "spend_limit"})
"""Faults of the key itself, for which no other model helps."""
TEST_INTERVAL = PROBE_AFTER
"""Seconds between two calls that test whether a refused key is good again."""
ALL_MODELS = ""
"""Scope of faults that concern the key for every model."""
COUNTS_PREFIX = "count_tokens:"
"""Prefix of a model's name in the limiter for its token counts."""


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """Refusal by the service of a key, or of a key for one model."""

    fault: Fault
    tried_at: float
    newest: int = 0
    """Number of the newest call at that time. A response to that call or to an earlier one proves nothing."""

    def outdated_by(self, call: int) -> bool:
        """Return True if the response to this call shows that the key is good again."""
        return call > self.newest


def count_limiter_name(model: str) -> str:
    """Return the name of the limiter for token counts of a model: services limit them separately from messages."""
    return f"{COUNTS_PREFIX}{model}"


def scope_of(fault: Fault, model: str) -> str | None:
    """Return the calls that a fault concerns: those to `model`, or `ALL_MODELS`; None: no other call."""
    if fault.kind not in KEY_FAULTS:
        return None
    return model if fault.kind == "credentials" and fault.status == 403 else ALL_MODELS


def may_send(refusal: KeyRefusal | None, person: bool, now: float) -> bool:
    """Return True if a call may be sent, False if the known fault refuses it."""
    return refusal is None or person or now >= refusal.tried_at + TEST_INTERVAL


def known_fault(refusal: KeyRefusal) -> Fault:
    """Return the fault for a call that is not sent: it used nothing, and the service has no id for it."""
    return refusal.fault.model_copy(update={"usage": None, "request_id": None})
