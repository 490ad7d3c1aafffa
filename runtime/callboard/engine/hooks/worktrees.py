"""The worktrees that an agent's tools are given, where hooks have a say in them.

WorktreeCreate may refuse one before git is asked, WorktreeRemove is told once it is gone; all else is the keeper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from callboard.core.team.worktrees import Worktree
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, Who, WorktreeFacts, WorktreeKeeper
from callboard.words import hooks as hk
from callboard.words.errors import ToolRefused


def worktrees_for(agent: Agent) -> WorktreeKeeper | None:
    """The keeper of the session, behind the hooks where there are any; None: it has no worktrees."""
    keeper, has = agent.host.ports.worktrees, agent.host.ports.hooks.has
    if keeper is None or not (has("WorktreeCreate") or has("WorktreeRemove")):
        return keeper
    return HookedWorktrees(keeper, agent)


class HookedWorktrees:
    """A `WorktreeKeeper` for the calls of one agent."""

    def __init__(self, keeper: WorktreeKeeper, agent: Agent) -> None:
        self._keeper, self._agent = keeper, agent

    async def create(self, name: str, who: Who, base: str = "") -> Worktree:
        """Raises `ToolRefused` with a hook's reason, too. Called again by the same call, the hooks are asked again."""
        hooks = self._agent.host.ports.hooks
        if hooks.has("WorktreeCreate"):
            verdict = await hooks.fire(hk.WorktreeCreate(name, caller(self._agent)))
            notice(self._agent, verdict.notices)
            if verdict.block:
                raise ToolRefused(f"the worktree {name} is not made: {verdict.block} ({verdict.by})")
        return await self._keeper.create(name, who, base)

    async def remove(self, name: str, who: Who, agreed: Sequence[str] | None = None) -> Removed:
        path = str(self._keeper.path(name))
        removed = await self._keeper.remove(name, who, agreed)
        self._agent.host.inform(hk.WorktreeRemove(path, caller(self._agent)))
        return removed

    def path(self, name: str) -> Path:
        return self._keeper.path(name)

    async def known(self) -> Sequence[Worktree]:
        return await self._keeper.known()

    async def name_for(self, wanted: str, call: str) -> str:
        return await self._keeper.name_for(wanted, call)

    async def open(self, name: str) -> tuple[Path, str]:
        return await self._keeper.open(name)

    async def keep(self, name: str, who: Who) -> Worktree:
        return await self._keeper.keep(name, who)

    async def losses(self, name: str) -> Losses:
        return await self._keeper.losses(name)

    async def merge(self, name: str, who: Who, check: Check | None = None) -> MergeEnd:
        return await self._keeper.merge(name, who, check)

    async def outcome(self, call: str) -> str:
        return await self._keeper.outcome(call)

    async def recover(self) -> Sequence[str]:
        return await self._keeper.recover()

    async def facts(self) -> Sequence[WorktreeFacts]:
        return await self._keeper.facts()
