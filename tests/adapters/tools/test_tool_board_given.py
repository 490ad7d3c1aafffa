"""The board's tools with assigned owners, files, and notifications to other agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.tools.board import board_tools
from callboard.ports.store import Fence
from callboard.types.errors import Conflict
from callboard.types.records import Task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> ToolWorld:
    world = ToolWorld(board_tools())
    await world.join("lead", "lead")
    for name in ("alice", "bob"):
        await world.join(name, tools=("bash", "edit_file"))
    return world


async def _task(world: ToolWorld, task_id: str) -> Task:
    found = (await world.rows()).task(task_id)
    assert found is not None
    return found[0]


async def _create(world: ToolWorld, subject: str, by: str = "lead", **more: object) -> str:
    return str((await world.run("create_task", by, subject=subject, **more)).data["task_id"])


async def test_the_lead_gives_a_task_in_progress_to_another_and_the_old_owner_is_told(world: ToolWorld) -> None:
    task = await _create(world, "Write the parser")
    await world.run("claim_task", "alice", task_id=task)
    given = await world.run("update_task", task_id=task, owner="bob")
    assert "kept for bob" in str(given.content)
    (told,) = await world.mail("alice")
    assert (told.sender, told.type, told.mode) == ("lead", "message", "queue")
    assert f"lead took {task} from you: Write the parser. It is now reserved for bob." in told.content
    assert "it is pending" in await world.refusal("complete_task", "alice", task_id=task)
    assert "is reserved for bob" in await world.refusal("claim_task", "alice", task_id=task)
    claimed = await world.run("claim_task", "bob", task_id=task)
    assert "lead took it from alice before it was done." in str(claimed.content)
    assert "it is held by bob" in await world.refusal("complete_task", "alice", task_id=task)


async def test_a_completion_that_began_before_the_task_was_taken_away_is_not_written(world: ToolWorld) -> None:
    task = await _create(world, "Write the parser")
    await world.run("claim_task", "alice", task_id=task)
    late = await world.preview("complete_task", "alice", task_id=task)
    await world.run("update_task", task_id=task, owner="bob")
    with pytest.raises(Conflict):
        await world.store.commit(*late.writes)


async def test_a_teammate_takes_nothing_from_another(world: ToolWorld) -> None:
    task = await _create(world, "A", "bob")
    await world.run("claim_task", "alice", task_id=task)
    assert "only the lead or the person" in await world.refusal("update_task", "bob", task_id=task, owner="bob")


async def test_a_task_is_given_only_to_who_takes_tasks(world: ToolWorld) -> None:
    await world.join("gone", life="stopped")
    await world.join("helper", "subagent")
    task = await _create(world, "A")
    for name in ("gone", "helper", "nobody-here"):
        assert "lead, alice, bob or 'nobody'" in await world.refusal("update_task", task_id=task, owner=name)
    await world.run("update_task", task_id=task, owner="alice")
    await world.run("update_task", task_id=task, owner="nobody")
    assert (await _task(world, task)).reserved_for == ""


async def test_the_lead_cancels_what_is_in_progress_by_taking_it_away_first(world: ToolWorld) -> None:
    task = await _create(world, "A")
    await world.run("claim_task", "alice", task_id=task)
    assert "it is taken from it" in await world.refusal("update_task", task_id=task, status="cancelled")
    await world.run("update_task", task_id=task, owner="nobody", status="cancelled")
    assert (await _task(world, task)).status == "cancelled"
    assert "It is cancelled: it is no longer needed" in (await world.mail("alice"))[0].content


async def test_who_claims_files_that_another_works_on_is_told_and_not_refused(world: ToolWorld) -> None:
    first = await _create(world, "Parser", files=["src/parser.py", "./docs/"])
    second = await _create(world, "Sweep", files=["src/*.py"])
    await world.run("claim_task", "alice", task_id=first)
    claimed = await world.run("claim_task", "bob", task_id=second)
    assert f"alice works on src/parser.py too, for {first}" in str(claimed.content)
    listed = str((await world.run("list_tasks")).content)
    assert listed.splitlines() == [
        f"{first} [in_progress, alice] Parser (src/parser.py, docs)",
        f"  bob works on src/*.py too, for {second}",
        f"{second} [in_progress, bob] Sweep (src/*.py)",
        f"  alice works on src/parser.py too, for {first}",
    ]


async def test_a_claimer_names_files_of_its_own_and_may_name_more_later(world: ToolWorld) -> None:
    task = await _create(world, "A", files=["a.py"])
    await world.run("claim_task", "alice", task_id=task, files=["b.py", "a.py"])
    assert (await _task(world, task)).files == ("a.py", "b.py")
    again = await world.run("claim_task", "alice", task_id=task, files=["c.py"])
    assert (await _task(world, task)).files == ("a.py", "b.py", "c.py")
    assert again.events == ()
    assert "not in the workspace" in await world.refusal("update_task", "alice", task_id=task, files=["../x"])
    assert "may" in await world.refusal("update_task", "bob", task_id=task, files=["x"])


async def test_the_check_of_a_task_is_shown_and_its_owner_does_not_change_it(world: ToolWorld) -> None:
    task = await _create(world, "A", check="make test")
    claimed = await world.run("claim_task", "alice", task_id=task)
    assert "which must pass: make test" in str(claimed.content)
    assert "may not change the check" in await world.refusal("update_task", "alice", task_id=task, check="true")
    shown = str((await world.run("get_task", task_id=task)).content)
    assert "make test\n(set by lead; complete_task runs it)" in shown
    await world.run("update_task", task_id=task, check="make lint")
    assert (await _task(world, task)).check == "make lint"


async def test_a_task_that_a_teammate_rewrote_claims_no_more_than_that_teammate(world: ToolWorld) -> None:
    task = await _create(world, "A")
    assert (await _task(world, task)).cause == "lead"
    await world.run("update_task", "bob", task_id=task, description="do this instead")
    assert (await _task(world, task)).cause == "teammate"


async def test_a_claim_notes_the_lease_of_its_process(world: ToolWorld) -> None:
    task = await _create(world, "A")
    context = replace(await world.context("alice"), lease=Fence("host-s1", 7))
    outcome = await world.tools["claim_task"].run({"task_id": task}, context)
    await world.store.commit(*outcome.writes)
    held = await _task(world, task)
    assert (held.lease, held.lease_number) == ("host-s1", 7)
