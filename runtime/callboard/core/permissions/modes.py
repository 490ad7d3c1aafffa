"""Modes as an order of rights: a child's mode, the mode of a scheduled turn, and a person's choice of modes. Pure.

The mode of a child is below its parent's.

    plan < dontAsk < default < acceptEdits < bypassPermissions
                     default < sandboxed   < bypassPermissions

`acceptEdits` and `sandboxed` are not ordered: without a sandbox of level 2, `sandboxed` equals `default`; with one, it
allows more than `acceptEdits`. The most permissive mode within both is `default`.
"""

from __future__ import annotations

from typing import get_args

from callboard.core.permissions.values import Mode
from callboard.types.agent_spec import BYPASS, PermissionRules
from callboard.types.records import Cause, PermissionMode

CHAIN: tuple[Mode, ...] = ("plan", "dontAsk", "default", "acceptEdits", "bypassPermissions")
"""Modes by the calls that they allow without asking, the least permissive first; `sandboxed` is parallel to
`acceptEdits`."""
SANDBOX_NEEDED = 2
"""Minimum level at which `sandboxed` runs commands without asking: below it a command can write outside."""


def within(parent: Mode, own: Mode | None) -> Mode:
    """Return the mode of an agent that `parent` starts and whose type has the mode `own`.

    The result is the most permissive mode within both.
    """
    if own is None or own == parent:
        return parent
    if {parent, own} == {"acceptEdits", "sandboxed"}:
        return "default"
    return min(parent, own, key=_width)


def _width(mode: Mode) -> int:
    return CHAIN.index("acceptEdits" if mode == "sandboxed" else mode)


def inherit_rules(parent: PermissionRules, own: PermissionRules) -> PermissionRules:
    """Return the rules of an agent whose parent has `parent` and whose type has `own`.

    Denials and asks are inherited, allowances are not.
    """
    return PermissionRules(ask=parent.ask, deny=parent.deny).joined(own)


def of_turn(own: Mode, profile: Mode | None, authority: Cause) -> Mode:
    """Return the mode in which the calls of a turn are judged.

    `profile`: the mode of scheduled turns from the settings.

    A turn started by a schedule has the full power of `bypassPermissions` only if its profile says so. Otherwise it is
    `sandboxed`, which asks for everything that leaves the sandbox. No turn has more rights than its agent.
    """
    if authority != "schedule":
        return own
    if profile is None:
        return "sandboxed" if own == "bypassPermissions" else own
    return within(own, profile)


def selectable_modes(*, may_bypass: bool) -> tuple[str, ...]:
    """Return the permission modes that a person may choose in a session."""
    return tuple(choice for choice in get_args(PermissionMode) if choice != BYPASS or may_bypass)


def next_mode(mode: str, *, may_bypass: bool) -> str:
    """Return the mode that Shift-Tab selects next."""
    circle = ("default", "acceptEdits", "plan", *((BYPASS,) if may_bypass else ()))
    return circle[(circle.index(mode) + 1) % len(circle)] if mode in circle else circle[0]
