"""Modes as an order of rights: what a child may have of its parent's, and what a scheduled turn has. Pure.

    plan < dontAsk < default < acceptEdits < bypassPermissions
                     default < sandboxed   < bypassPermissions

`acceptEdits` and `sandboxed` are not ordered: without a sandbox of level 2 `sandboxed` is `default`, with one it is
more than `acceptEdits`. What is within both is `default`.
"""

from __future__ import annotations

from callboard.core.permission.values import Mode
from callboard.words.specs import PermissionRules
from callboard.words.values import Cause

CHAIN: tuple[Mode, ...] = ("plan", "dontAsk", "default", "acceptEdits", "bypassPermissions")
"""The modes by what they let run unasked, the least first; `sandboxed` stands beside `acceptEdits`."""
SANDBOX_NEEDED = 2
"""The level from which `sandboxed` runs commands unasked: below it a command can write outside."""


def within(parent: Mode, own: Mode | None) -> Mode:
    """The mode of an agent that `parent` starts and whose own type says `own`: the most that is in both."""
    if own is None or own == parent:
        return parent
    if {parent, own} == {"acceptEdits", "sandboxed"}:
        return "default"
    return min(parent, own, key=_width)


def _width(mode: Mode) -> int:
    return CHAIN.index("acceptEdits" if mode == "sandboxed" else mode)


def inherited(parent: PermissionRules, own: PermissionRules) -> PermissionRules:
    """The rules of an agent whose parent has `parent` and whose type has `own`: denials and asks come down, what is
    allowed does not."""
    return PermissionRules(ask=parent.ask, deny=parent.deny).joined(own)


def of_turn(own: Mode, profile: Mode | None, authority: Cause) -> Mode:
    """The mode in which the calls of a turn are judged. `profile`: what the settings say of scheduled turns.

    A turn that a schedule began never has the full power of `bypassPermissions` unless its profile says so: it is
    `sandboxed` then, which asks for what leaves the sandbox. Nobody's turn is more than its agent.
    """
    if authority != "schedule":
        return own
    if profile is None:
        return "sandboxed" if own == "bypassPermissions" else own
    return within(own, profile)
