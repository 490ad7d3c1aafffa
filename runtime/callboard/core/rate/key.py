"""What to do while the key itself is at fault: refused, unpaid, or over its spend limit. Pure; times are given.

    what is known     who asks                                          what follows
    ----------------  ------------------------------------------------  ---------------------------------------------
    nothing wrong     anyone                                            goes
    refused           a person, with a new prompt                       goes, at once: they may just have mended it
    refused           anyone, a minute after the refusal or the last    goes, alone
                      one that went
    refused           anyone else                                       the known fault, and no call goes out
    refused           (one that went is answered, if with an error)     nothing wrong any more
    refused           (one that was under way before is answered)       refused still: it was asked before
    refused           (one that went is refused)                        refused, and the minute begins anew

A key that is refused for one model only (403: it may not use that model) stays good for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.recovery.summaries import KEY
from callboard.words.values import Fault

TRY_AGAIN = 60.0
"""Seconds between two calls that see whether a refused key is good again."""
ALL_MODELS = ""
"""The scope of what concerns the key whatever the model."""
COUNTS = "count_tokens:"
"""Stands before a model's name in the lane of its counts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key, or a key for one model, that the service refuses."""

    fault: Fault
    tried_at: float
    newest: int = 0
    """The newest call when that was heard: an answer to it, or to one before it, proves nothing."""

    def outdated_by(self, call: int) -> bool:
        """Whether the answer to this call says that the key is good again."""
        return call > self.newest


def counts_of(model: str) -> str:
    """The lane of counts of tokens for a model: services limit them apart from its messages."""
    return f"{COUNTS}{model}"


def scope_of(fault: Fault, model: str) -> str | None:
    """Which calls a fault speaks of: those to `model`, or `ALL_MODELS` of the key; None: of no other call."""
    if fault.kind not in KEY:
        return None
    return model if fault.kind == "credentials" and fault.status == 403 else ALL_MODELS


def may_go(refusal: Refusal | None, person: bool, now: float) -> bool:
    """Whether a call may go out, and not be refused with the known fault."""
    return refusal is None or person or now >= refusal.tried_at + TRY_AGAIN


def known_fault(refusal: Refusal) -> Fault:
    """What a call is refused with that does not go out: it used nothing, and the service has no name for it."""
    return refusal.fault.model_copy(update={"usage": None, "request_id": None})
