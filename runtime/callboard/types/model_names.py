"""Names of models: aliases that users type, and the listed model that resembles an unlisted one. Pure.

Aliases are those of Claude Code (https://code.claude.com/docs/en/model-config). `opus`, `sonnet`, `haiku` and `fable`
name the newest listed model of the family, `default` the runtime's default, and `opusplan` sonnet, with opus in plan
mode (`Settings.plan_model_of`). `[1m]` after a name requests a context window of a million tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

DEFAULT_MODEL = "claude-sonnet-5-5"
FAMILIES = ("fable", "opus", "sonnet", "haiku")
OPUS_PLAN = "opusplan"
LONG = "[1m]"
LONG_WINDOW = 1_000_000
"""Size in tokens of the window that `[1m]` requests."""

_DATE = 100_000
"""Numbers from here on are dates, not versions: `claude-opus-4-1-20250805`."""


def without_long(name: str) -> tuple[str, bool]:
    """Return the name without `[1m]`, and True if it had that suffix."""
    name = name.strip()
    return (name[: -len(LONG)].strip(), True) if name.lower().endswith(LONG) else (name, False)


def resolve_alias(name: str, listed: Sequence[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the id that an alias stands for, or any other name unchanged. A suffix `[1m]` is kept.

    `listed`: known models, the newest of a family first. `aliases`: the user's own, which take precedence.
    """
    bare, long = without_long(name)
    alias = bare.lower()
    own = {key.lower(): value for key, value in (aliases or {}).items()}
    if alias == OPUS_PLAN:
        alias = "sonnet"
    elif alias == "best":
        alias = "opus"
    if alias in own:
        bare, suffixed = without_long(own[alias])
        long = long or suffixed
    elif alias == "default":
        bare = DEFAULT_MODEL
    elif alias in FAMILIES:
        bare = newest_of(alias, listed) or bare
    return bare + LONG if long else bare


def newest_of(family: str, listed: Iterable[str]) -> str:
    """Return the first listed model of a family; empty if there is none."""
    return next((name for name in listed if f"-{family}-" in f"{name}-"), "")


def nearest_listed(name: str, listed: Sequence[str]) -> str:
    """Return the listed model whose limits an unlisted one most likely has; empty if no model resembles it.

    A name that contains a listed name is that model at another vendor (`anthropic.claude-sonnet-4-5-20250929-v1:0`).
    Any other name is compared with its family by version.
    """
    lowered = name.lower()
    inside = [model for model in listed if _holds(lowered, model)]
    if inside:
        return max(inside, key=len)
    family = next((family for family in FAMILIES if family in re.split(r"[^a-z]+", lowered)), "")
    relatives = [model for model in listed if family and f"-{family}-" in f"{model}-"]
    version = _version(lowered)
    return min(relatives, key=lambda model: abs(_version(model) - version), default="")


def _holds(name: str, model: str) -> bool:
    """Return True if `name` contains the model's name as a whole: `claude-opus-5` is not part of `claude-opus-5-6`."""
    return re.search(rf"(?<![a-z0-9]){re.escape(model)}(?![a-z0-9]|-\d{{1,2}}(?!\d))", name) is not None


def _version(name: str) -> int:
    """Return `claude-opus-4-5` as 405, which is comparable within a family."""
    numbers = [number for number in map(int, re.findall(r"\d+", name)) if number < _DATE][:2]
    major, minor = (*numbers, 0, 0)[:2]
    return major * 100 + min(minor, 99)
