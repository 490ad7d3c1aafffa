"""Context of a tool call (`CallContext`), made from the agent and the host at the moment of the call.

A tool's worktrees are subject to hooks: WorktreeCreate may reject one before git runs, and WorktreeRemove is notified
afterwards. The keeper does everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from callboard.core.agent.authority import authority_of
from callboard.core.agent.state import BackgroundCommand
from callboard.core.keys import mailbox
from callboard.core.team.worktrees import Worktree
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, notice
from callboard.ports.tool import BackgroundTask, CallContext, SkillUse
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, WorktreeActor, WorktreeFacts, WorktreeKeeper
from callboard.types import hook_answers as hk
from callboard.types.errors import ToolRefused
from callboard.types.events import Event
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Grant, Request, ToolCall

ImmediateRun = Callable[[AgentRuntime, ToolCall, tuple[Grant, ...]], Awaitable[Sequence[Event]]]
"""Function that runs an allowed call with these approved paths, if the call needs no wait. It returns the records of
the call from its start to its end, or none."""


class Abilities(TypedDict, total=False):
    """Functions that a call may use, besides those for reading."""

    ask: Callable[[Request], Awaitable[str | None]]
    elicit: Callable[[Elicitation], Awaitable[ElicitationAnswer]]
    use_skill: Callable[[str, str], Awaitable[SkillUse]]


def tool_context(
    agent: AgentRuntime, call_id: str, grants: tuple[Grant, ...] | None = None, **abilities: Unpack[Abilities]
) -> CallContext:
    """Return the context of a call. Without `abilities` a tool can neither ask the user nor start a skill.

    `grants`: the approved paths, if the state does not have the decision on the call yet.
    """
    state = agent.state
    if grants is None:
        call_state = state.calls.find(call_id)
        grants = call_state.grants if call_state else ()
    runtime = agent.runtime
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    return CallContext(
        session=runtime.session,
        spec=state.me,
        incarnation=state.identity.incarnation,
        call=call_id,
        depth=state.turn.depth if state.turn else 0,
        now=runtime.clock.now(),
        folders=runtime.services.archive.folders(state.me),
        files=state.work.files,
        board=runtime.rows,
        launcher=runtime.services.launcher,
        spawner=agent.spawner,
        skills=runtime.services.skills,
        background={background_id: _task(bg) for background_id, bg in state.work.background.items()},
        progress=agent.show_progress,
        authority=authority_of(state),
        caused_by=state.turn.cause if state.turn else "",
        read=state.waits.read,
        assignment=state.work.assigned,
        mail_of=lambda row: runtime.mailboxes.load(mailbox(runtime.session, row.name, row.incarnation), agent.name),
        lease=runtime.fence,
        commit=lambda: commit_in(agent, call_id),
        worktrees=worktrees_for(agent),
        foreground=agent.foreground,
        grants=grants,
        **abilities,
    )


async def commit_in(agent: AgentRuntime, call_id: str) -> str:
    """Return the commit checked out in the folder of this agent's tools; empty: none or unknown.

    `call_id`: the id of the lookup.
    """
    services = agent.runtime.services
    if services.surroundings is None:
        return ""
    return await services.surroundings.commit(str(services.archive.folders(agent.state.me).root), call_id)


def _task(bg: BackgroundCommand) -> BackgroundTask:
    began = bg.began
    return BackgroundTask(
        id=began.id,
        command=began.command,
        pid=began.pid,
        started=began.started,
        output=began.output,
        status=bg.status,
        exit_code=bg.exit_code,
        boot=began.boot,
        agent=began.agent,
    )


def worktrees_for(agent: AgentRuntime) -> WorktreeKeeper | None:
    """Return the session's keeper, with hooks if there are any; None if the session has no worktrees."""
    keeper = agent.runtime.services.worktrees
    has = agent.runtime.services.hooks.has
    if keeper is None or not (has("WorktreeCreate") or has("WorktreeRemove")):
        return keeper
    return HookedWorktrees(keeper, agent)


class HookedWorktrees:
    """A `WorktreeKeeper` for the calls of one agent."""

    def __init__(self, keeper: WorktreeKeeper, agent: AgentRuntime) -> None:
        self._keeper = keeper
        self._agent = agent

    async def create(self, name: str, author: WorktreeActor, base: str = "") -> Worktree:
        """Create a worktree.

        Raises `ToolRefused` also with a hook's reason. The hooks run again if the same call is repeated.
        """
        hooks = self._agent.runtime.services.hooks
        if hooks.has("WorktreeCreate"):
            verdict = await hooks.fire(hk.WorktreeCreate(name, caller(self._agent.runtime, self._agent.state)))
            notice(self._agent.runtime, self._agent.name, verdict.notices)
            if verdict.block:
                raise ToolRefused(f"the worktree {name} was not created: {verdict.block} ({verdict.by})")
        return await self._keeper.create(name, author, base)

    async def remove(self, name: str, author: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        path = str(self._keeper.path(name))
        removed = await self._keeper.remove(name, author, agreed)
        self._agent.runtime.listeners.inform(hk.WorktreeRemove(path, caller(self._agent.runtime, self._agent.state)))
        return removed

    def path(self, name: str) -> Path:
        return self._keeper.path(name)

    async def worktrees(self) -> Sequence[Worktree]:
        return await self._keeper.worktrees()

    async def name_for(self, requested: str, call: str) -> str:
        return await self._keeper.name_for(requested, call)

    async def open(self, name: str) -> tuple[Path, str]:
        return await self._keeper.open(name)

    async def keep(self, name: str, author: WorktreeActor) -> Worktree:
        return await self._keeper.keep(name, author)

    async def losses(self, name: str) -> Losses:
        return await self._keeper.losses(name)

    async def merge(self, name: str, author: WorktreeActor, check: Check | None = None) -> MergeEnd:
        return await self._keeper.merge(name, author, check)

    async def outcome(self, call: str) -> str:
        return await self._keeper.outcome(call)

    async def recover(self) -> Sequence[str]:
        return await self._keeper.recover()

    async def facts(self) -> Sequence[WorktreeFacts]:
        return await self._keeper.facts()
