"""Hooks from Python functions: `@hook("PreToolUse", matcher="bash")`.

See `callboard.types.hook_answers` and docs/hooks.md for the inputs and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from callboard.core.hooks.matching import MATCHED
from callboard.core.hooks.merge import InvalidHook, read_matcher
from callboard.sdk.errors import UsageError
from callboard.types.choices import unknown
from callboard.types.hook_answers import FITTING
from callboard.types.hook_answers import hook as marked

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
"""Events that call hooks."""


def hook(event: HookEventName, matcher: str = "") -> Callable[[Function], Function]:
    """Mark a function, async or not, as a hook. It receives the event and returns None or one answer (`Deny("...")`).

    `matcher`: the tools (or sources, depending on the event) that the hook applies to, as in hook files: `bash`,
    `Write|Edit`, or a regular expression; empty: all. Pass the function to `Session(hooks=[...])`. Raises `UsageError`
    for an unknown event, and for a matcher that is invalid or that the event does not support.
    """
    if event not in FITTING:
        raise UsageError(unknown("hook event", event, sorted(FITTING)))
    if matcher and event not in MATCHED:
        raise UsageError(f"{event} has no matcher: leave out {matcher!r}")
    try:
        read_matcher(matcher)
    except InvalidHook as error:
        raise UsageError(str(error)) from error
    return marked(event, matcher)
