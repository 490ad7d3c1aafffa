"""What stands outside the store of a team of six: git worktrees, a tool that clings, mates that refuse to stop.

No crash reaches it. What was done there is counted by the call that did it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from tests.simulation.chaos_tools import Draw, Moody, Wilderness
from tests.simulation.outside import Outside, OutsideTool, schema

from callboard.adapters.git.memory import MemoryWorktrees
from callboard.adapters.tools.worktrees import worktree_tools
from callboard.ports.environment import Answer
from callboard.ports.tool import CallContext, Tool, ToolOutcome, ToolSpec
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, WorktreeActor
from callboard.testing import SteadyClock
from callboard.types.errors import ToolRefused
from callboard.types.records import Json, Request

CLINGS = 400.0
"""Seconds for which a tool does not let go that was cancelled: longer than a mate has to stop, and to be killed."""
ROOT = Path("/data/worktrees")


class SixWorktrees(MemoryWorktrees):
    """Worktrees with work in them: merges take time and end in any way, and what is lost is asked for.

    A merge moves the workspace at one instant. Cut before it by whoever lives on, it is taken back; a process that
    dies leaves it as it stands, for `recover` to finish or take back.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(ROOT)
        self._seed = seed
        self.deaths = 0
        """Processes that were killed so far: what they had under way they cannot tidy up."""
        self.moved = Counter[str]()
        """How often a call's merge moved the workspace."""
        self.ends = Counter[str]()
        """How merges and removals ended, and what was found half done."""
        self.agreed: dict[str, str] = {}
        """Call -> the worktree that it removed with work in it."""
        self.merging: dict[str, WorktreeActor] = {}
        """Merges that are under way in a process that lives."""
        self._left: dict[str, WorktreeActor] = {}
        """Merges of processes that died."""

    def _draw(self, *origin: object) -> Draw:
        return Draw(f"{self._seed}/worktree/{origin}")

    async def losses(self, name: str) -> Losses:
        self._tree(name)
        merged = any(note.name == name and note.act == "merged" for note in self._notes)
        lost = not merged and self._draw("losses", name).random() < 0.9
        return Losses(changed=(f"{name}.py",)) if lost else Losses()

    async def remove(self, name: str, who: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        losses = (await self.losses(name)).lines() if who.call not in self._folded().done else ()
        if name in self.merging or self._draw("kept", who.call).random() < 0.2 or set(losses) - set(agreed or ()):
            self.ends["removal refused"] += 1
            raise ToolRefused(f"{name} holds work that is nowhere else")
        if losses:
            self.agreed[who.call] = name
        self.ends["removed"] += 1
        return await super().remove(name, who, agreed)

    async def merge(self, name: str, who: WorktreeActor, check: Check | None = None) -> MergeEnd:
        self._tree(name)
        draw = self._draw("merge", who.call)
        if name in self.merging or draw.random() < 0.2:
            self.ends["merge refused"] += 1
            raise ToolRefused(f"{name} is being worked in: wait for its report, then merge")
        self._note("merging", name, who)
        self.merging[name] = who
        deaths = self.deaths
        try:
            end = await self._merged(name, who, draw, check)
        except BaseException:
            self._cut(name, who, died=self.deaths > deaths)
            raise
        finally:
            del self.merging[name]
        self.ends[end.how] += 1
        return end

    async def _merged(self, name: str, who: WorktreeActor, draw: Draw, check: Check | None) -> MergeEnd:
        await anyio.sleep(draw.choice((0, 3, 200)))
        how = draw.choice(("merged", "merged", "merged", "nothing", "conflict"))
        if how == "merged" and check is not None and not (await check(self.path(name))).passed:
            self._note("undone", name, who)
            return MergeEnd("failed", "main", output="one test failed")
        if how != "merged":
            self._note("undone", name, who)
            return MergeEnd(how, "main", files=("a.py",) if how == "conflict" else ())
        self.moved[who.call] += 1
        await anyio.sleep(draw.choice((0, 1, 60)))  # the workspace has moved; it is not noted yet
        self._note("merged", name, who)
        return MergeEnd("merged", "main", "c0ffee", ("a.py",))

    def _cut(self, name: str, who: WorktreeActor, *, died: bool) -> None:
        if died:
            self._left[name] = who
            return
        self._note("merged" if self.moved[who.call] else "undone", name, who)

    async def recover(self) -> Sequence[str]:
        return self.tidied()

    def tidied(self) -> Sequence[str]:
        """What merges of dead processes came to, a line each."""
        left, self._left = self._left, {}
        for name, who in left.items():
            self._cut(name, who, died=False)
            self.ends["recovered"] += 1
        return [f"the merge of {name} was taken up" for name in left]

    def fates(self) -> dict[str, str]:
        """Call -> what it came to, when nothing is under way any more."""
        self.tidied()
        return {call: note.act for call, note in self._folded().done.items()}


@dataclass
class SixOutside(Wilderness):
    """The wilderness with worktrees, and with a tool that clings to what it does."""

    clung: int = 0
    """How often a tool was cancelled and did not let go."""
    trees: SixWorktrees = field(init=False)

    def open(self, clock: SteadyClock, seed: int) -> None:
        super().open(clock, seed)
        self.worktrees = self.trees = SixWorktrees(seed)

    def tools(self) -> dict[str, Tool]:
        cling = OutsideTool(ToolSpec("grep", "Cling.", schema("pattern"), "read", "shared"), self, _cling)
        return {**super().tools(), "grep": cling, **{tool.spec.name: tool for tool in worktree_tools()}}


async def _cling(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    """It takes its time, and more of it when it is cancelled."""
    assert isinstance(outside, SixOutside)
    try:
        await anyio.sleep(Draw(context.call).choice((5, 3_000, 9_000)))
    except BaseException:
        outside.clung += 1
        with anyio.CancelScope(shield=True):
            await anyio.sleep(CLINGS)
        raise
    return ToolOutcome("found at last")


@dataclass
class SixMoody(Moody):
    """Some mates will not stop: they refuse, sooner or later."""

    async def answer(self, request: Request) -> Answer | None:
        draw = Draw(f"{self.seed}/stops/{request.id}")
        if request.kind != "shutdown" or draw.random() < 0.6:
            return await super().answer(request)
        await anyio.sleep(draw.choice((0, 0, 0.2, 30)))
        return Answer("rejected", str(request.payload["teammate"]), "I am in the middle of it")
