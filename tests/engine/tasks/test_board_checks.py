"""A task's check in a hosted team: judged like a call of `bash`, run where that runs, never chosen by a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.tasks.test_board import Workers, made, tasks_of
from tests.engine.team.team_world import TeamWorld, team_world

from callboard.adapters.tools.shell import shell_tools
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer
from callboard.ports.tool import Finished
from callboard.testing import AllowAll, MemoryArchive, NoLauncher, ScriptedModel, say, use
from callboard.types.hook_answers import Deny
from callboard.types.records import Grant, Request, Task

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
"""A folder that there is: a check is run in none that is gone."""


@dataclass
class Shell(NoLauncher):
    """A launcher that plays how commands end."""

    ends: list[int] = field(default_factory=list[int])
    ran: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def run(
        self, command: str, folder: Path, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        await anyio.lowlevel.checkpoint()
        self.ran.append((command, str(folder)))
        return Finished(self.ends.pop(0), f"output of {command}", cut=False, characters=9)

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        raise AssertionError("nothing is started in the background")


class ShellWorld(TeamWorld):
    """A world whose commands are played."""

    shell: Shell

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, launcher=self.shell)
        return runtime


def shell_world(model: ScriptedModel, shell: Shell, **more: object) -> ShellWorld:
    plain = team_world(model, *shell_tools())
    archive = MemoryArchive(HERE)
    world = ShellWorld(model, plain.tools, archive=archive, **more)
    world.shell = shell
    return world


def completing(*tries: str) -> ScriptedModel:
    """A lead that takes `t1` and wants to complete it."""
    calls = [use("complete_task", {"task_id": "t1", "check": check} if check else {"task_id": "t1"}) for check in tries]
    return ScriptedModel({"lead": [use("claim_task", {"task_id": "t1"}), *calls, say("done")]})


async def checked(world: ShellWorld) -> tuple[Task, str]:
    """The task after the lead's turn, and what it was told last."""
    async with world.session() as team:
        await team.team.runtime.commit(made("t1", check="make test", check_by="person"))
        await team.prompt("go")
        await team.quiet()
        return tasks_of(team)["t1"], b"\n".join(world.model.requests[-1].messages).decode()


async def test_a_check_runs_in_the_agents_folder_and_a_second_try_may_pass() -> None:
    shell = Shell([2, 0])
    task, said = await checked(shell_world(completing("", ""), shell))
    assert (task.status, task.owner) == ("completed", "lead")
    assert "output of make test" in (task.evidence or "")
    assert "its check ended with exit code 2" in said
    assert shell.ran == [("make test", str(HERE))] * 2


async def test_a_model_does_not_choose_the_check_that_is_run() -> None:
    shell = Shell([0])
    task, _ = await checked(shell_world(completing("true"), shell))
    assert (task.status, shell.ran) == ("completed", [("make test", str(HERE))])


@dataclass
class Asked:
    """A person who always says the same."""

    says: Literal["approved", "rejected"]
    asked: list[Request] = field(default_factory=list[Request])

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(self.says, "person")


@pytest.mark.parametrize(("status", "ends"), [("approved", "completed"), ("rejected", "in_progress")])
async def test_a_check_asks_as_a_call_of_bash_does_and_the_person_reads_the_command(
    status: Literal["approved", "rejected"], ends: str
) -> None:
    shell, person = Shell([0]), Asked(status)
    task, _ = await checked(shell_world(completing(""), shell, judge=AllowAll(ask=["bash"]), approvers=[person]))
    (asked,) = person.asked
    assert asked.payload["input"] == {"task_id": "t1", "check": "make test"}
    assert "its check `make test`" in asked.subject
    assert (task.status, len(shell.ran)) == (ends, int(status == "approved"))


async def test_a_check_is_denied_where_bash_is() -> None:
    shell = Shell()
    task, said = await checked(shell_world(completing(""), shell, judge=AllowAll(deny=["bash"])))
    assert (task.status, shell.ran) == ("in_progress", [])
    assert "Permission denied: its check `make test`: bash is denied" in said


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a hook runs in a thread, which virtual time does not wait for
async def test_a_hook_on_bash_stops_a_check() -> None:
    hooks = HookRegistry()
    hooks.add("PreToolUse", lambda event: Deny("not today"), matcher="bash")
    shell = Shell()
    task, said = await checked(shell_world(completing(""), shell, hooks=hooks))
    assert (task.status, shell.ran) == ("in_progress", [])
    assert "not today" in said


async def test_who_has_no_shell_takes_no_task_with_a_check_by_itself() -> None:
    model = Workers(1)
    world = team_world(model, Echo(name="write_file"))  # nobody has bash here
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.team.runtime.commit(made("t1", check="make test"), made("t2"))
        await team.quiet()
        board = tasks_of(team)
        assert (board["t1"].status, board["t2"].status) == ("pending", "completed")


async def test_a_closed_gate_lets_no_check_through() -> None:
    shell = Shell()
    model = completing("")
    world = shell_world(model, shell, judge=AllowAll(reads=["bash"]))
    world.spec = {"plan_required": True}
    task, said = await checked(world)
    assert (task.status, shell.ran) == ("pending", [])
    assert "a plan must be approved first" in said
