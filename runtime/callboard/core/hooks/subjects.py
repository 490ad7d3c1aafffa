"""What a matcher is compared with: the tool of a call, what began a session, why a turn failed. Pure.

An event that is not named here has no matcher: it is told each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from callboard.core.hooks.rules import Matcher, names_of, never_fits
from callboard.words import hook_events as he
from callboard.words.hook_events import HookEvent
from callboard.words.hooks import TOOL_EVENTS

MATCHED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "PreToolUse": (),
        "PermissionRequest": (),
        "PostToolUse": (),
        "PostToolUseFailure": (),
        "SubagentStart": (),
        "SubagentStop": (),
        "EnvelopeDelivered": (),
        "RequestAnswered": (),
        "BudgetReached": (),
        "SessionStart": (*get_args(he.StartSource), "fork"),
        "SessionEnd": (*get_args(he.EndReason), "resume", "logout"),
        "Notification": (
            *get_args(he.NotificationType),
            *("auth_success", "elicitation_dialog", "elicitation_url_dialog"),
            *("elicitation_complete", "elicitation_response"),
        ),
        "StopFailure": (*get_args(he.FailureKind), "oauth_org_not_allowed"),
        "PreCompact": get_args(he.Trigger),
        "PostCompact": get_args(he.Trigger),
    }
)
"""Events with a matcher, and the values there can be; empty: tools, or names that nobody knows beforehand."""

NEVER_HERE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "SessionStart": frozenset({"fork"}),
        "SessionEnd": frozenset({"resume", "logout"}),
        "Notification": frozenset(set(MATCHED["Notification"]) - set(get_args(he.NotificationType))),
        "StopFailure": frozenset({"oauth_org_not_allowed"}),
    }
)
"""Documented values that do not occur in this runtime."""


def subjects_of(event: HookEvent) -> tuple[str, ...] | None:
    """The values that a matcher may name, any of them; None: the event has no matcher."""
    match event:
        case he.PreToolUse() | he.PermissionRequest() | he.PostToolUse() | he.PostToolUseFailure():
            return names_of(event.call.name)
        case he.SubagentStart() | he.SubagentStop():
            return (event.by.agent_type,)
        case he.SessionStart():
            return (event.source,)
        case he.SessionEnd():
            return (event.reason,)
        case he.Notification():
            return (event.notification_type,)
        case he.StopFailure():
            return (event.error,)
        case he.PreCompact() | he.PostCompact():
            return (event.trigger,)
        case he.EnvelopeDelivered():
            return (event.type,)
        case he.RequestAnswered() | he.BudgetReached():
            return (event.kind,)
        case _:
            return None


def fits_nothing(event: str, matcher: Matcher) -> bool:
    """Whether a matcher of that event can never fit here: no tool, or none of the values that occur."""
    if event in TOOL_EVENTS:
        return never_fits(matcher)
    known = set(MATCHED.get(event, ())) - NEVER_HERE.get(event, frozenset[str]())
    return bool(known) and not any(matcher.fits((value,)) for value in known)
