"""Hooks from Python functions: `@hook("PreToolUse", matcher="bash")`. What they are told and may answer stands in
`callboard.words.hooks` and docs/hooks.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from callboard.api.errors import UsageError
from callboard.core.hooks.rules import Misfit, read_matcher
from callboard.core.hooks.subjects import MATCHED
from callboard.words.hooks import FITTING
from callboard.words.hooks import hook as marked

Function = TypeVar("Function", bound=Callable[..., Any])

HookEventName = Literal[
    "BudgetReached",
    "CwdChanged",
    "EnvelopeDelivered",
    "Notification",
    "PermissionRequest",
    "PlanSubmitted",
    "PostCompact",
    "PostToolBatch",
    "PostToolUse",
    "PostToolUseFailure",
    "PreCompact",
    "PreToolUse",
    "RequestAnswered",
    "ScheduleFired",
    "SessionEnd",
    "SessionStart",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "TaskCompleted",
    "TaskCreated",
    "TeammateIdle",
    "UserPromptSubmit",
    "WorktreeCreate",
    "WorktreeRemove",
]
"""The moments at which hooks are asked."""


def hook(event: HookEventName, matcher: str = "") -> Callable[[Function], Function]:
    """Mark a function, async or not, as a hook: it gets the event and returns None or one answer (`Deny("...")`).

    `matcher`: which tools (or sources, as the event has them) it is asked about, as in hook files: `bash`,
    `Write|Edit`, a regular expression; empty: all. Give the function to `Session(hooks=[...])`. Raises `UsageError` for
    an event that there is not, and for a matcher that cannot be read or that the event does not have.
    """
    if event not in FITTING:
        raise UsageError(f"there is no hook event {event!r}: there are {', '.join(sorted(FITTING))}")
    if matcher and event not in MATCHED:
        raise UsageError(f"{event} has no matcher: leave out {matcher!r}")
    try:
        read_matcher(matcher)
    except Misfit as error:
        raise UsageError(str(error)) from error
    return marked(event, matcher)
