"""The worktree tools over real repositories: effects, refusals, messages, and recovery after an interrupted call."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.adapters.git.worktree_world import Trees
from tests.adapters.shell.outside_world import ENVIRONMENT
from tests.adapters.tools.tool_world import SESSION, ToolWorld, spec

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.team import team_tools
from callboard.adapters.tools.worktrees import worktree_tools
from callboard.core import keys as names
from callboard.core.team.worktrees import loss_words
from callboard.ports.tool import CallContext, Folders, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.records import Json, Request, Task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class WorktreeToolWorld(ToolWorld):
    """World whose tools have worktrees and a shell."""

    def __init__(self, base: Path) -> None:
        super().__init__(team_tools({"general": "anything"}), board_tools(), worktree_tools())
        self.trees = Trees(base, self.store)
        self.types["writer"] = spec("x", agent_type="writer", tools=("edit_file",), isolation="worktree")

    async def context(self, name: str = "lead", call: str | None = None) -> CallContext:
        context = await super().context(name, call)
        folders = Folders(self.trees.workspace, self.trees.base / "results", self.trees.base / "transcripts")
        launcher = ShellLauncher(self.trees.workspace, ENVIRONMENT)
        return replace(context, worktrees=self.trees.keeper, launcher=launcher, folders=folders)

    async def task(self, **fields: object) -> str:
        task = Task.model_validate({"id": "task_1", "subject": "Write it", **fields})
        await self.put(names.task_key(SESSION, task.id), task)
        return task.id

    async def assigned_worktree(self) -> str | None:
        found = (await self.rows()).task("task_1")
        assert found is not None
        return found[0].worktree


@pytest.fixture
async def world(tmp_path: Path) -> WorktreeToolWorld:
    world = WorktreeToolWorld(tmp_path)
    await world.join("lead", "lead")
    return world


def text_of(outcome: ToolOutcome) -> str:
    return str(outcome.content)


# Creating and assigning


async def test_a_worktree_is_made_and_a_task_bound_to_it(world: WorktreeToolWorld) -> None:
    await world.task()
    made = await world.run("create_worktree", name="parser", task_id="task_1")
    assert "whoever holds that works there" in text_of(made)
    assert await world.assigned_worktree() == "parser"
    assert (world.trees.root / "parser" / "a.txt").exists()
    assert "bound to the worktree parser already" in await world.refusal(
        "create_worktree", name="other", task_id="task_1"
    )
    assert not (world.trees.root / "other").exists()


async def test_a_task_that_has_ended_or_is_not_there_gets_none(world: WorktreeToolWorld) -> None:
    await world.task(status="completed")
    assert "no agent works on it" in await world.refusal("create_worktree", name="parser", task_id="task_1")
    assert "no task task_9" in await world.refusal("create_worktree", name="parser", task_id="task_9")
    assert not world.trees.root.exists()


async def test_removing_a_worktree_frees_its_tasks_and_refuses_while_one_is_worked_on(world: WorktreeToolWorld) -> None:
    await world.task()
    await world.run("create_worktree", name="parser", task_id="task_1")
    await world.task(status="in_progress", owner="alice", worktree="parser")
    assert "alice holds task_1" in await world.refusal("remove_worktree", name="parser")
    await world.task(worktree="parser")
    assert "No longer bound to it: task_1" in text_of(await world.run("remove_worktree", name="parser"))
    assert await world.assigned_worktree() is None


# Releasing


async def _put_request(world: WorktreeToolWorld, call: str, shown: str, **fields: object) -> None:
    payload: Json = {"tool": "remove_worktree", "call_id": call, "why": shown}
    request = {"id": "req_1", "kind": "permission", "asked_by": "lead", "payload": payload, **fields}
    await world.put(names.request_key(SESSION, "req_1"), Request.model_validate(request))


async def _discard(world: WorktreeToolWorld, call: str) -> ToolOutcome:
    tool, given = world.tools["remove_worktree"], {"name": "parser", "discard_changes": True}
    return await tool.run(cast("Json", given), await world.context(call=call))


async def refusal_of(doing: Awaitable[ToolOutcome]) -> str:
    try:
        outcome = await doing
    except ToolRefused as refused:
        return str(refused)
    raise AssertionError(f"not refused: {outcome.content}")


@pytest.mark.slow
async def test_only_a_person_lets_go_and_only_what_he_was_shown(world: WorktreeToolWorld) -> None:
    await world.run("create_worktree", name="parser")
    (world.trees.root / "parser" / "draft.txt").write_text("draft")
    assert "- untracked: draft.txt" in await world.refusal("remove_worktree", name="parser")
    assert "no person has allowed" in await refusal_of(_discard(world, "call_x"))
    shown = "it throws away work" + loss_words((await world.trees.keeper.losses("parser")).lines(), "wt/parser")
    for by in ("policy", "lead"):
        await _put_request(world, "call_x", shown, status="approved", answered_by=by)
        assert "no person has allowed" in await refusal_of(_discard(world, "call_x"))
    await _put_request(world, "call_other", shown, status="approved", answered_by="person")
    assert "no person has allowed" in await refusal_of(_discard(world, "call_x"))
    await _put_request(world, "call_x", shown, status="approved", answered_by="person")
    (world.trees.root / "parser" / "later.txt").write_text("later")
    assert "later.txt" in await refusal_of(_discard(world, "call_x"))
    (world.trees.root / "parser" / "later.txt").unlink()
    assert "and its branch" in text_of(await _discard(world, "call_x"))
    assert "and its branch" in text_of(await _discard(world, "call_x")), "the repeated call reports the first result"


# Merging


@pytest.mark.slow
async def test_a_merge_runs_its_test_in_the_merged_result(world: WorktreeToolWorld) -> None:
    await world.run("create_worktree", name="parser")
    world.trees.commit("parser", "a.txt", "mine\n")
    end = await world.run("merge_worktree", name="parser", test_command="grep -q mine a.txt && echo fine")
    assert "Merged wt/parser into main" in text_of(end)
    assert "The test command passed first" in text_of(end)
    assert (world.trees.workspace / "a.txt").read_text() == "mine\n"
    assert "nothing to merge" in text_of(await world.run("merge_worktree", name="parser"))


@pytest.mark.slow
async def test_a_failing_test_and_a_conflict_say_what_to_do(world: WorktreeToolWorld) -> None:
    await world.run("create_worktree", name="parser")
    world.trees.commit("parser", "a.txt", "mine\n")
    end = await world.run("merge_worktree", name="parser", test_command="echo {2} failed; exit 3")
    assert end.is_error
    assert "{2} failed\nexit code 3" in text_of(end)
    (world.trees.workspace / "a.txt").write_text("main\n")
    world.trees.git("commit", "-qam", "main")
    end = await world.run("merge_worktree", name="parser")
    assert end.is_error
    assert "changed the same lines in: a.txt" in text_of(end)
    assert "then call merge_worktree again" in text_of(end)


async def test_a_worktree_that_is_worked_in_is_not_merged(world: WorktreeToolWorld) -> None:
    await world.run("create_worktree", name="parser")
    await world.join("alice", life="working")
    found = (await world.rows()).agent("alice")
    assert found is not None
    await world.put(names.agent_key(SESSION, "alice"), found[0].model_copy(update={"worktree": "parser"}))
    assert "alice (working) works in it" in await world.refusal("merge_worktree", name="parser")


async def test_a_cut_merge_is_told_and_its_test_is_not_run_again(world: WorktreeToolWorld) -> None:
    await world.run("create_worktree", name="parser")
    world.trees.commit("parser", "a.txt", "mine\n")
    tool, given = world.tools["merge_worktree"], cast("Json", {"name": "parser", "test_command": "touch ran"})
    context = await world.context(call="call_x")
    cut = await tool.repair(given, {}, context)
    assert cut is not None
    assert cut.is_error
    assert "nothing was merged. Merge again." in text_of(cut)
    assert world.trees.git("log", "--format=%s", "main") == "first"
    await tool.run(given, context)
    done = await tool.repair(given, {}, context)
    assert done is not None
    assert "was merged before the runtime stopped" in text_of(done)


# Teammates


async def test_a_teammate_gets_a_worktree_when_asked_for_or_by_its_type(world: WorktreeToolWorld) -> None:
    spawned = await world.run("spawn_teammate", name="alice", role="x", prompt="do it", worktree="parser")
    assert "works in the git worktree parser" in text_of(spawned)
    assert (world.trees.root / "parser").is_dir()
    await world.run("spawn_teammate", name="bob", role="x", prompt="do it", agent_type="writer")
    assert (world.trees.root / "bob").is_dir()
    await world.run("spawn_teammate", name="carol", role="x", prompt="do it")
    assert [tree.name for tree in await world.trees.keeper.worktrees()] == ["parser", "bob"]


async def test_a_second_life_gets_a_worktree_of_its_own(world: WorktreeToolWorld) -> None:
    await world.run("spawn_teammate", name="bob", role="x", prompt="do it", agent_type="writer")
    world.trees.commit("bob", "a.txt", "unmerged\n")
    found = (await world.rows()).agent("bob")
    assert found is not None
    await world.put(names.agent_key(SESSION, "bob"), found[0].model_copy(update={"life": "stopped"}))
    await world.run("spawn_teammate", name="bob", role="x", prompt="again", agent_type="writer")
    assert [tree.name for tree in await world.trees.keeper.worktrees()] == ["bob", "bob-2"]
    assert (world.trees.root / "bob" / "a.txt").read_text() == "unmerged\n"


async def test_no_two_work_in_one_worktree_and_a_refused_spawn_makes_none(world: WorktreeToolWorld) -> None:
    await world.join("alice")
    found = (await world.rows()).agent("alice")
    assert found is not None
    await world.put(names.agent_key(SESSION, "alice"), found[0].model_copy(update={"worktree": "parser"}))
    given = {"name": "bob", "role": "x", "prompt": "do it"}
    assert "alice works in parser already" in await world.refusal("spawn_teammate", **given, worktree="parser")
    assert "is in the team already" in await world.refusal(
        "spawn_teammate", **{**given, "name": "alice"}, worktree="two"
    )
    assert "name:" in await world.refusal("spawn_teammate", **given, worktree="../x")
    assert not world.trees.root.exists()


async def test_without_a_repository_the_spawn_is_refused_and_says_why(world: WorktreeToolWorld) -> None:
    (world.trees.workspace / ".git").rename(world.trees.base / "gone")
    words = await world.refusal("spawn_teammate", name="bob", role="x", prompt="do it", agent_type="writer")
    assert "is not a git repository" in words
    assert (await world.rows()).agent("bob") is None
