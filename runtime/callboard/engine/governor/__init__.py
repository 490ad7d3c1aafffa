"""One governor for all model calls of a key: who goes next, and when (docs/decisions/0014-the-rate-governor.md)."""

from callboard.engine.governor.asking import asking_of
from callboard.engine.governor.governor import CALLS_AT_ONCE, HELD, Asking, Call, Governor, Governors
from callboard.engine.governor.prefixes import LONGEST_WAIT, Prefix
from callboard.engine.governor.sharing import catch_up, share

__all__ = [
    "CALLS_AT_ONCE",
    "HELD",
    "LONGEST_WAIT",
    "Asking",
    "Call",
    "Governor",
    "Governors",
    "Prefix",
    "asking_of",
    "catch_up",
    "share",
]
