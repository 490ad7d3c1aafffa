"""`complete_task` with a check in real processes: passing and failing checks, races, and crashes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.processes.launcher import ShellLauncher, find_process
from callboard.adapters.tools.board import board_tools
from callboard.ports.tool import CallContext, Folders, ToolOutcome
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.records import Json, Task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Checks:
    """A board, and `complete_task` in a folder with a real launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = ToolWorld(board_tools())
        self.launcher = ShellLauncher(folder, os.environ)

    async def begin(self, check: str) -> str:
        """Create a task of alice with this check, and return its id."""
        await self.world.join("lead", "lead")
        for name in ("alice", "bob"):
            await self.world.join(name, tools=("bash",))
        made = await self.world.run("create_task", subject="A", check=check)
        await self.world.run("claim_task", "alice", task_id=made.data["task_id"])
        return str(made.data["task_id"])

    async def context(self, call: str = "call_1") -> CallContext:
        found = await self.world.context("alice", call)
        folders = Folders(self.folder, self.folder / "results", self.folder / "transcripts")
        return replace(found, folders=folders, launcher=self.launcher)

    async def complete(self, task: str, check: str, call: str = "call_1", *, commit: bool = True) -> ToolOutcome:
        """Complete a task as the engine does. `check`: the approved command."""
        tool, context = self.world.tools["complete_task"], await self.context(call)
        given: Json = {"task_id": task, "result": "done", "evidence": "I looked", "check": check}
        assert await tool.prepare(given, context) == {"check": check}
        outcome = await tool.run(given, context)
        if commit:
            await self.world.store.commit(*outcome.writes)
        return outcome

    async def task(self, task_id: str) -> Task:
        found = (await self.world.rows()).task(task_id)
        assert found is not None
        return found[0]

    def runs(self) -> int:
        """Return how often the check ran: it writes a line each time."""
        log = self.folder / "ran"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def checks(tmp_path: Path) -> Checks:
    return Checks(tmp_path)


async def test_a_check_that_passes_completes_the_task_and_is_its_evidence(checks: Checks) -> None:
    check = "echo ran >> ran; echo 12 tests pass"
    task = await checks.begin(check)
    outcome = await checks.complete(task, check)
    assert str(outcome.content).startswith(f"Completed {task}. Its check passed.")
    done = await checks.task(task)
    assert (done.status, done.result) == ("completed", "done")
    assert done.evidence == f"I looked\n[check passed] {check}\n12 tests pass"
    assert checks.runs() == 1


async def test_a_check_that_fails_leaves_the_task_with_its_owner_and_tells_how_its_output_ends(checks: Checks) -> None:
    check = "seq 1 5000; echo the last words; exit 3"
    task = await checks.begin(check)
    outcome = await checks.complete(task, check)
    said = str(outcome.content)
    assert (outcome.is_error, outcome.writes, outcome.events) == (True, (), ())
    assert "is not completed: its check ended with exit code 3." in said
    assert "the last words" in said
    assert len(said) < 5_000
    assert (await checks.task(task)).status == "in_progress"


async def test_only_the_command_that_was_judged_is_run(checks: Checks) -> None:
    task = await checks.begin("echo ran >> ran")
    for judged in ("", "true"):
        tool, context = checks.world.tools["complete_task"], await checks.context()
        with pytest.raises(ToolRefused, match="check was changed just now"):
            await tool.run({"task_id": task, "check": judged}, context)
    assert checks.runs() == 0


async def test_who_may_not_complete_runs_no_check(checks: Checks) -> None:
    task = await checks.begin("echo ran >> ran")
    await checks.world.run("update_task", task_id=task, owner="bob")
    tool, context = checks.world.tools["complete_task"], await checks.context()
    for work in (tool.prepare, tool.run):
        with pytest.raises(ToolRefused, match="it is pending"):
            await work({"task_id": task, "check": "echo ran >> ran"}, context)
    assert checks.runs() == 0


async def test_a_check_that_passed_is_not_run_again_because_the_row_was_changed_beside_it(checks: Checks) -> None:
    check = "echo ran >> ran"
    task = await checks.begin(check)
    late = await checks.complete(task, check, commit=False)
    await checks.world.run("update_task", task_id=task, description="more words")
    with pytest.raises(Conflict):
        await checks.world.store.commit(*late.writes)
    await checks.complete(task, check)
    assert ((await checks.task(task)).status, checks.runs()) == ("completed", 1)


async def test_a_check_that_was_changed_while_it_ran_has_not_passed(checks: Checks) -> None:
    check = "echo ran >> ran"
    task = await checks.begin(check)
    late = await checks.complete(task, check, commit=False)
    await checks.world.run("update_task", task_id=task, check="exit 1")
    with pytest.raises(Conflict):
        await checks.world.store.commit(*late.writes)
    with pytest.raises(ToolRefused, match="check was changed"):
        await checks.world.tools["complete_task"].run({"task_id": task, "check": check}, await checks.context())
    assert (await checks.task(task)).status == "in_progress"


async def test_another_call_runs_the_check_again(checks: Checks) -> None:
    check = "echo ran >> ran; test -e mended"
    task = await checks.begin(check)
    assert (await checks.complete(task, check)).is_error
    (checks.folder / "mended").touch()
    assert not (await checks.complete(task, check, "call_2")).is_error
    assert checks.runs() == 2


async def test_after_a_crash_the_check_is_ended_and_neither_run_nor_taken_for_passed(checks: Checks) -> None:
    check = "echo it runs > begun; sleep 60"
    os.mkfifo(checks.folder / "begun")
    task = await checks.begin(check)
    context = await checks.context()
    output = context.folders.tool_results / f"{context.call}.out"
    pid, started = await checks.launcher.start(check, checks.folder, output)
    assert await anyio.Path(checks.folder / "begun").read_text() == "it runs\n"
    tool = checks.world.tools["complete_task"]
    outcome = await tool.repair({"task_id": task, "check": check}, {"check": check}, context)
    assert outcome is not None
    assert outcome.is_error
    assert "It was still running and has been ended." in str(outcome.content)
    assert find_process(output) is None
    assert await checks.launcher.end(pid, started) is False
    assert (await checks.task(task)).status == "in_progress"


async def test_after_a_crash_a_task_without_a_check_is_completed_anew(checks: Checks) -> None:
    task = await checks.begin("")
    tool, context = checks.world.tools["complete_task"], await checks.context()
    assert await tool.prepare({"task_id": task}, context) == {}
    assert await tool.repair({"task_id": task}, {}, context) is None


async def test_a_folder_that_is_gone_is_told_before_anything_is_run(checks: Checks) -> None:
    task = await checks.begin("true")
    context = await checks.context()
    gone = replace(context, folders=replace(context.folders, root=checks.folder / "gone"))
    with pytest.raises(ToolRefused, match="no longer exists"):
        await checks.world.tools["complete_task"].prepare({"task_id": task, "check": "true"}, gone)
