"""Options of a session, from those that `run`, `resume`, and the bare `callboard` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, flags_of
from callboard.cli.commands.output import notice_of
from callboard.cli.terminal.keyboard import person_is_there
from callboard.sessions.lease import TakeOver
from callboard.sessions.options import (
    ExtensionOptions,
    HostingOptions,
    IdentityOptions,
    LeadOptions,
    McpOptions,
    ModelOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.types.errors import UsageError
from callboard.types.messages import BranchPoint


def session_options(
    invocation: Invocation, values: Mapping[str, Any], *, resume: bool, session: str | None
) -> SessionOptions:
    """Return the options of a session from those of a command. Raises `UsageError` for options without effect."""
    return SessionOptions(
        WorkspaceOptions(invocation.workspace, flags=flags_of(values), trust=bool(values.get("trust"))),
        identity=IdentityOptions(
            session=session,
            resume=resume,
            carry=bool(values.get("carry")),
            title=" ".join((values.get("title") or "").split()),
            take_over=_take_over(values, resume=resume),
            fork=bool(values.get("fork_session")) and resume,
            point=_branch_point(values, resume=resume),
        ),
        model=ModelOptions(
            values.get("model"),
            record=values.get("record"),
            live_tools=bool(values.get("live_tools")),
            max_cost_usd=values.get("max_budget_usd"),
        ),
        lead=LeadOptions(
            appended=values.get("appended") or "",
            agent_type=values.get("agent") or "",
            effort=values.get("effort") or "",
            worktree=_worktree(values, resume=resume),
        ),
        permissions=PermissionOptions(
            attended=person_is_there(), may_bypass=bool(values.get("allow_dangerously_skip_permissions"))
        ),
        mcp=McpOptions(config=tuple(values.get("mcp_config") or ()), strict=bool(values.get("strict_mcp_config"))),
        extensions=ExtensionOptions(
            plugins=tuple(values.get("plugins") or ()), without_skills=bool(values.get("disable_slash_commands"))
        ),
        hosting=HostingOptions(with_schedules=bool(values.get("with_schedules")), notice=notice_of(invocation)),
    )


def _worktree(values: Mapping[str, Any], *, resume: bool) -> str | None:
    """Return the name of the lead's worktree; empty: any free name. Raises `UsageError` for a resumed session."""
    name = values.get("worktree")
    if name is not None and resume and not values.get("fork_session"):
        raise UsageError("--worktree begins a session; a session that goes on keeps the folder in which it works")
    return name


def _branch_point(values: Mapping[str, Any], *, resume: bool) -> BranchPoint:
    """Return the point of the conversation from which it continues. Raises `UsageError` for options without effect."""
    message = values.get("resume_session_at") or ""
    drops = values.get("resume_drops_turn")
    if (message or drops is not None) and not resume:
        raise UsageError("--resume-session-at requires -c or -r: a new session has no messages")
    if drops is not None and not (drops and message):
        raise UsageError("--resume-drops-turn requires the uuid of a prompt, and --resume-session-at")
    return BranchPoint(message, drops or "")


def _take_over(values: Mapping[str, Any], *, resume: bool) -> TakeOver | None:
    """Return the options of a take-over. Raises `UsageError` for options without effect."""
    if not values.get("take_over"):
        if values.get("force") or values.get("wait") is not None:
            raise UsageError("--force and --wait require --take-over")
        return None
    refuse_inside_tool("--take-over")
    if not resume:
        raise UsageError("--take-over requires -c or -r: a new session has no host to take over from")
    wait = values.get("wait")
    return TakeOver(TakeOver().wait if wait is None else float(wait), bool(values.get("force")))
