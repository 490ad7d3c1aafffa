"""An allow rule that does not stand in settings: of a session, or of a hook that allows one call. A value alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lift:
    """`rule`: as `parse_rule` reads it. `by`: how a verdict names it."""

    rule: str
    by: str
