"""Limits of a budget as a command line has them: `cost_usd=1.5`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from callboard.words.errors import UsageError
from callboard.words.values import Budget

_KINDS = ("cost_usd", "tokens", "steps", "seconds")


def limits_given(given: Sequence[str], option: str) -> Budget:
    """`cost_usd=1.5` and the like. Raises `UsageError` naming what is wrong."""
    found: dict[str, float] = {}
    for one in given:
        kind, _, number = one.partition("=")
        if kind not in _KINDS:
            raise UsageError(f"{option} {one}: no such kind; there are {', '.join(_KINDS)}, as in cost_usd=1.5")
        whole = kind in ("tokens", "steps")
        try:
            found[kind] = int(number) if whole else float(number)
        except ValueError:
            found[kind] = math.nan
        if not 0 <= found[kind] < math.inf:
            raise UsageError(f"{option} {one}: {kind} is a {'whole ' if whole else ''}number from 0 on")
    return Budget.model_validate(found)
