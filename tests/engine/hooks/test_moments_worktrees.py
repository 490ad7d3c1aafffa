"""Hooks have a say in the worktrees that tools make, and hear of those that are gone and of folders that change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.agent.test_one_agent import texts
from tests.engine.hooks.test_moments import listen, once, told
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.adapters.git.memory import MemoryWorktrees
from callboard.adapters.tools.worktrees import worktree_tools
from callboard.core.keys import task_key
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Put
from callboard.ports.tool import Folders
from callboard.testing import MemoryArchive, ScriptedModel, say, use
from callboard.types import hook_answers as hk
from callboard.types.agent_spec import AgentSpec
from callboard.types.hook_answers import Deny
from callboard.types.records import Task

pytestmark = pytest.mark.anyio
MADE = "create_worktree", {"name": "parser"}
TREES = Path("/data/worktrees")


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time only; hooks are async functions, since a virtual clock jumps while threads run."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Moving(MemoryArchive):
    """Its agents stand in the folder of their spec."""

    def folders(self, spec: AgentSpec) -> Folders:
        there = super().folders(spec)
        return replace(there, root=Path(spec.folder)) if spec.folder else there


class Trees(TeamWorld):
    """A team with worktrees that are only told of; the lead has the tools for them."""

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        return super().spec_of(agent_type, name, parent).model_copy(update={"tools": tuple(sorted(self.tools))})

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, worktrees=MemoryWorktrees(TREES))
        return runtime


def trees(lead: list[object]) -> Trees:
    made = team_world(ScriptedModel({"lead": [*lead, say("ok")]}, end="idle"), *worktree_tools())
    return Trees(made.model, made.tools, archive=Moving())


async def test_a_worktree_that_a_hook_refuses_is_not_made_for_a_tool_or_a_teammate() -> None:
    removal = use("remove_worktree", {"name": "parser"})
    world = trees([use(*MADE), use(*spawn("alice", worktree="parser")), use(*MADE), removal])
    heard = listen(world, "WorktreeCreate", says=lambda event: Deny("no room") if len(heard) < 3 else None)
    gone = listen(world, "WorktreeRemove", says=once(Deny("too late")))
    async with world.session() as team:
        await team.prompt("go")
        await told(gone)
        await team.quiet()
        assert [(one.name, one.by.name) for one in heard] == [("parser", "lead")] * 3
        assert "the worktree parser was not created: no room" in texts(world)
        assert team.team.runtime.rows.agent("alice") is None
        assert [one.path for one in gone] == [str(TREES / "parser")]


async def test_a_folder_that_changes_is_told_with_both() -> None:
    world = trees([use(*MADE), use("claim_task", {"task_id": "task_1"}), use("list_tasks", {})])
    heard: list[hk.CwdChanged] = listen(world, "CwdChanged")
    async with world.session() as team:
        task = Task(id="task_1", subject="Write it", worktree="parser")
        await world.store.commit(Put(task_key("s1", task.id), task.encode()))
        await team.prompt("go")
        await told(heard)
        assert (heard[0].old, heard[0].new) == ("/workspace", str(TREES / "parser"))
        assert heard[0].by.folder == str(TREES / "parser")
