"""A team over a real repository: each one's tools, rules and reminders follow the folder that it works in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.git.worktree_world import LEAD, Trees
from tests.adapters.shell.outside_world import ENVIRONMENT
from tests.engine.agent.test_one_agent import Person
from tests.engine.team.supervised import until
from tests.engine.team.team_world import TeamWorld, spawn

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.shell.policy_judge import PolicyJudge
from callboard.adapters.system.archive import FileArchive
from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.plan_and_report import plan_tools
from callboard.adapters.tools.shell import shell_tools
from callboard.adapters.tools.team import team_tools
from callboard.adapters.tools.worktrees import worktree_tools
from callboard.core.keys import task_key
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Put
from callboard.ports.worktrees import WorktreeActor
from callboard.testing import AllowAll, ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Request, Task

pytestmark = pytest.mark.anyio
_FAMILIES = (board_tools, file_tools, plan_tools, shell_tools, team_tools, worktree_tools)


@pytest.fixture
def anyio_backend() -> str:
    """Real processes: no virtual clock."""
    return "asyncio"


class TreeWorld(TeamWorld):
    """A team in a real repository, with real files, shells and git."""

    def __init__(self, base: Path, script: dict[str, list[Any]], mode: str = "", deadline: float = 0) -> None:
        tools = {tool.spec.name: tool for family in _FAMILIES for tool in family()}
        super().__init__(ScriptedModel(script), tools)
        self.trees = Trees(base, self.store)
        self.mode, self.deadline = mode, deadline
        (base / "state").mkdir()

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        spec = super().spec_of(agent_type, name, parent)
        rights = {"permission_mode": self.mode or "default", "ask_deadline": self.deadline}
        return spec.model_copy(update={"tools": tuple(sorted(self.tools)), **rights})

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        trees, own = self.trees, (self.trees.base / "state",)
        runtime.services = replace(
            runtime.services,
            archive=FileArchive(trees.workspace, trees.base / "data" / session, own),
            judge=PolicyJudge((), (), ()) if self.mode else AllowAll(),
            launcher=ShellLauncher(trees.workspace, {**ENVIRONMENT, "HOME": str(trees.base)}),
            worktrees=trees.keeper,
        )
        return runtime

    async def bind(self, worktree: str) -> None:
        task = Task(id="task_1", subject="Write it", worktree=worktree)
        await self.store.commit(Put(task_key("s1", task.id), task.encode()))


def bash(command: str) -> Reply:
    return use("bash", {"command": command})


def results(world: TreeWorld, agent: str) -> str:
    """All that the agent's model was sent."""
    requests = [request for request in world.model.requests if request.agent == agent]
    return b"\n".join(requests[-1].messages).decode() if requests else ""


def seeing(into: list[str], then: Reply) -> Callable[[ModelRequest], Reply]:
    """An entry of a script that keeps what the model was sent."""

    def answer(request: ModelRequest) -> Reply:
        into.append(b"\n".join(request.messages).decode())
        return then

    return answer


async def test_a_teammates_tools_run_in_its_worktree_and_leave_the_workspace_alone(tmp_path: Path) -> None:
    script = {
        "lead": [use(*spawn("alice", worktree="parser")), say("waiting"), say("done")],
        "alice": [
            bash("pwd; git branch --show-current; echo made > shell.txt"),
            use("write_file", {"path": "new.txt", "content": "new"}),
            say("done"),
        ],
    }
    world = TreeWorld(tmp_path, script)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        tree = world.trees.root / "parser"
        assert f"{tree}\\nwt/parser" in results(world, "alice")
        assert (tree / "new.txt").read_text() == "new"
        assert (tree / "shell.txt").exists()
        assert world.trees.git("status", "--porcelain") == ""
        row = team.team.runtime.rows.agent("alice")
        assert row is not None
        assert row[0].worktree == "parser"
        assert team.state("alice").me.folder == str(tree)


@pytest.mark.slow
async def test_a_claimed_task_moves_its_owners_tools_between_replies_and_back(tmp_path: Path) -> None:
    """A call of the same reply as the claim was judged in the old folder, so it runs there."""
    told: list[str] = []
    script = {
        "lead": [
            use("claim_task", {"task_id": "task_1"}, ("bash", {"command": "echo first in $PWD"})),
            seeing(told, bash("echo then in $PWD")),
            use("complete_task", {"task_id": "task_1", "result": "done"}),
            bash("echo last in $PWD"),
            say("done"),
        ]
    }
    world = TreeWorld(tmp_path, script)
    await world.trees.keeper.create("parser", LEAD)
    async with world.session() as team:
        await world.bind("parser")
        await team.prompt("go")
        await team.quiet()
        seen, tree, work = results(world, "lead"), world.trees.root / "parser", world.trees.workspace
        assert f"first in {work}" in seen
        assert f"then in {tree}" in seen
        assert f"last in {work}" in seen
        assert f"now run in the git worktree parser (branch wt/parser): {tree}" in told[0]
        assert "run in the workspace again" in seen


@pytest.mark.slow
async def test_a_missing_folder_is_made_anew_at_the_next_turn_and_told(tmp_path: Path) -> None:
    script = {
        "lead": [use(*spawn("alice", worktree="parser")), say("waiting"), say("ok"), say("ok")],
        "alice": [
            bash("echo mine > mine.txt; git add .; git -c user.name=a -c user.email=a@b commit -qm mine"),
            use("report", {"status": "done", "result": "one"}),
            bash("cat mine.txt"),
            say("done"),
        ],
    }
    world = TreeWorld(tmp_path, script)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    shutil.rmtree(world.trees.root / "parser")
    async with world.session(resume=True) as team:
        await team.prompt("go on", to="alice")
        await team.quiet()
        seen = results(world, "alice")
        assert "was missing, and was created again from wt/parser" in seen
        assert seen.rindex('"mine"') > seen.index("was missing")


async def test_an_agent_whose_worktree_is_gone_for_good_stops_and_the_lead_is_told(tmp_path: Path) -> None:
    script = {
        "lead": [use(*spawn("alice", worktree="parser")), say("waiting"), say("ok"), say("I see")],
        "alice": [use("report", {"status": "done", "result": "one"}), bash("echo never > never.txt")],
    }
    world = TreeWorld(tmp_path, script)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        world.trees.git("worktree", "remove", "--force", str(world.trees.root / "parser"))
        world.trees.git("branch", "-D", "wt/parser")
        await team.prompt("go on", to="alice")
        await team.quiet()
        row = team.team.runtime.rows.agent("alice")
        assert row is not None
        assert row[0].life == "stopped"
        assert "alice cannot continue: the worktree parser is gone" in results(world, "lead")
        assert not (world.trees.workspace / "never.txt").exists()


async def test_a_task_whose_worktree_is_gone_for_good_fails_and_is_not_done_elsewhere(tmp_path: Path) -> None:
    script = {
        "lead": [use("claim_task", {"task_id": "task_1"}), use("list_tasks"), say("done")],
    }
    world = TreeWorld(tmp_path, script)
    await world.trees.keeper.create("parser", LEAD)
    world.trees.git("worktree", "remove", "--force", str(world.trees.root / "parser"))
    world.trees.git("branch", "-D", "wt/parser")
    async with world.session() as team:
        await world.bind("parser")
        await team.prompt("go")
        await team.quiet()
        row = team.team.runtime.rows.task("task_1")
        assert row is not None
        assert (row[0].status, row[0].worktree) == ("failed", None)
        assert "Your task has failed: the worktree parser is gone" in results(world, "lead")
        assert team.state("lead").work.tasks == {}


async def test_a_lead_whose_worktree_is_gone_in_the_middle_of_a_call_goes_on_without_it(tmp_path: Path) -> None:
    script = {
        "lead": [use("claim_task", {"task_id": "task_1"}), bash("echo never > never.txt"), say("I see")],
    }
    world = TreeWorld(tmp_path, script, "default", deadline=600.0)
    await world.trees.keeper.create("parser", LEAD)
    async with world.session() as team:
        await world.bind("parser")
        await team.prompt("go")
        await until(team, "lead", "waiting")
    world.trees.git("worktree", "remove", "--force", str(world.trees.root / "parser"))
    world.trees.git("branch", "-D", "wt/parser")
    async with world.session(resume=True) as team:
        await team.quiet()
        row = team.team.runtime.rows.agent("lead")
        assert row is not None
        assert row[0].life == "idle"
        assert team.state("lead").me.folder == ""
        assert "You were interrupted: " in results(world, "lead")
        assert not (world.trees.workspace / "never.txt").exists()
        assert team.state("lead").turns.last_text == "I see"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
@pytest.mark.parametrize("by", ["person", "policy"])
async def test_work_is_let_go_by_a_person_who_has_read_what_it_is(tmp_path: Path, mode: str, by: str) -> None:
    script = {"lead": [use("remove_worktree", {"name": "parser", "discard_changes": True}), say("done")]}
    world = TreeWorld(tmp_path, script, mode, deadline=2.0)
    person = Person(Answer("approved", by))
    world.approvers = [person]
    await world.trees.keeper.create("parser", LEAD)
    (world.trees.root / "parser" / "draft.txt").write_text("draft")
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (request,) = team.team.runtime.rows.requests()
        assert isinstance(request, Request)
        assert request.person_only
        assert "\n- untracked: draft.txt\n" in request.payload["why"]
        assert "\n" not in request.subject
        assert (world.trees.root / "parser" / "draft.txt").exists() == (by != "person")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
async def test_outside_its_worktree_a_teammate_asks_like_anywhere_outside(tmp_path: Path, mode: str) -> None:
    work = tmp_path.resolve() / "work"
    script = {
        "lead": [use(*spawn("alice", worktree="parser")), say("waiting"), say("ok")],
        "alice": [
            use("write_file", {"path": str(work / "a.txt"), "content": "x"}),
            use("read_file", {"path": "../other/a.txt"}),
            bash(f"cat {work}/a.txt"),
            bash(f"echo x > {work}/.git/hooks/pre-commit"),
            bash("git log --format=%s"),
            use("read_file", {"path": "a.txt"}),
            say("done"),
        ],
    }
    world = TreeWorld(tmp_path, script, mode)
    await world.trees.keeper.create("other", WorktreeActor("person"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        seen = results(world, "alice")
        assert seen.count("Permission denied") == 4, seen
        assert "first" in seen, "git's own folder stays usable for reading commands"
        assert "three" in seen
        assert world.trees.git("status", "--porcelain") == ""
