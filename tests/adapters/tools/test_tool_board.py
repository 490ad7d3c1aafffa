"""The task board's tools over real rows: their output, their writes, and their refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.todo import todo_tools
from callboard.core.keys import task_key
from callboard.ports.store import Put
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.events import TaskHeld, TodosSet
from callboard.types.records import Task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> ToolWorld:
    world = ToolWorld(board_tools(), todo_tools())
    await world.join("lead", "lead")
    await world.join("alice")
    await world.join("bob")
    return world


async def _task(world: ToolWorld, task_id: str) -> Task:
    found = (await world.rows()).task(task_id)
    assert found is not None
    return found[0]


async def _create(world: ToolWorld, subject: str, *blocked_by: str) -> str:
    outcome = await world.run("create_task", subject=subject, blocked_by=list(blocked_by))
    return str(outcome.data["task_id"])


async def test_a_task_lives_from_creation_to_completion(world: ToolWorld) -> None:
    first = await _create(world, "Write the parser")
    second = await _create(world, "Test the parser", first)

    claimed = await world.run("claim_task", "alice", task_id=first)
    assert claimed.events == (TaskHeld(at=claimed.events[0].at, task=first, subject="Write the parser"),)
    assert (await _task(world, first)).owner == "alice"

    done = await world.run("complete_task", "alice", task_id=first, result="It parses.", evidence="12 tests pass")
    assert done.content == f"Completed {first}. Ready now: {second} Test the parser"
    assert [event.held for event in done.events if isinstance(event, TaskHeld)] == [False]
    finished = await _task(world, first)
    assert (finished.status, finished.result, finished.evidence) == ("completed", "It parses.", "12 tests pass")


async def test_of_two_claims_at_once_one_loses_and_is_then_refused(world: ToolWorld) -> None:
    task = await _create(world, "Write the parser")
    by_alice = await world.preview("claim_task", "alice", task_id=task)
    by_bob = await world.preview("claim_task", "bob", task_id=task)

    await world.store.commit(*by_alice.writes)
    with pytest.raises(Conflict):
        await world.store.commit(*by_bob.writes)
    assert "held by alice" in await world.refusal("claim_task", "bob", task_id=task)


async def test_two_changes_that_close_a_circle_together_cannot_both_be_written(world: ToolWorld) -> None:
    a, b = await _create(world, "A"), await _create(world, "B")
    c = await _create(world, "C", b)
    first = await world.preview("update_task", task_id=a, blocked_by=[c])
    second = await world.preview("update_task", task_id=b, blocked_by=[a])

    await world.store.commit(*first.writes)
    with pytest.raises(Conflict):
        await world.store.commit(*second.writes)
    assert "waits for" in await world.refusal("update_task", task_id=b, blocked_by=[a])


async def test_ids_follow_from_the_call_so_a_repeated_run_makes_the_same_task(world: ToolWorld) -> None:
    tool = world.tools["create_task"]
    context = await world.context(call="call_same")
    first = await tool.run({"subject": "A"}, context)
    again = await tool.run({"subject": "A"}, context)
    other = await tool.run({"subject": "A"}, await world.context())
    assert first.writes == again.writes
    assert first.data != other.data


async def test_nobody_completes_the_task_of_another(world: ToolWorld) -> None:
    task = await _create(world, "Write the parser")
    assert "claim it first" in await world.refusal("complete_task", "bob", task_id=task)
    await world.run("claim_task", "alice", task_id=task)
    for tool, given in (("complete_task", {}), ("fail_task", {"reason": "no"}), ("release_task", {})):
        for who in ("bob", "lead"):
            assert "only its owner may" in await world.refusal(tool, who, task_id=task, **given)


async def test_a_new_life_does_not_hold_what_the_old_one_held(world: ToolWorld) -> None:
    task = await _create(world, "Write the parser")
    await world.run("claim_task", "alice", task_id=task)
    await world.join("alice", incarnation=2)
    assert "an earlier alice" in await world.refusal("complete_task", "alice", task_id=task)


async def test_a_teammate_has_one_task_in_progress_and_the_lead_may_have_more(world: ToolWorld) -> None:
    a, b, c = [await _create(world, subject) for subject in "ABC"]
    await world.run("claim_task", "alice", task_id=a)
    assert f"you have {a} in progress" in await world.refusal("claim_task", "alice", task_id=b)
    await world.run("claim_task", "lead", task_id=b)
    await world.run("claim_task", "lead", task_id=c)


async def test_claiming_what_is_ones_own_already_changes_nothing(world: ToolWorld) -> None:
    task = await _create(world, "A")
    await world.run("claim_task", "alice", task_id=task)
    again = await world.run("claim_task", "alice", task_id=task)
    assert (again.writes, again.events) == ((), ())
    assert "yours already" in str(again.content)


async def test_a_blocked_task_is_refused_with_what_is_ready_instead(world: ToolWorld) -> None:
    a = await _create(world, "A")
    b = await _create(world, "B", a)
    assert await world.refusal("claim_task", "alice", task_id=b) == f"{b} waits for {a}; ready now: {a}"


async def test_the_next_claimer_reads_how_far_the_last_one_came(world: ToolWorld) -> None:
    task = await _create(world, "A")
    await world.run("claim_task", "alice", task_id=task)
    await world.run("release_task", "alice", task_id=task, note="The lexer is done.")
    claimed = await world.run("claim_task", "bob", task_id=task)
    assert "The lexer is done." in str(claimed.content)
    assert (await _task(world, task)).attempts == 2


async def test_a_failed_task_tells_what_still_waits_and_opens_again(world: ToolWorld) -> None:
    a = await _create(world, "A")
    b = await _create(world, "B", a)
    await world.run("claim_task", "alice", task_id=a)
    failed = await world.run("fail_task", "alice", task_id=a, reason="The disk is read-only")
    assert b in str(failed.content)
    assert "only the lead or" in await world.refusal("update_task", "bob", task_id=a, status="pending")
    await world.run("update_task", task_id=a, status="pending")
    assert (await _task(world, a)).status == "pending"


async def test_unknown_ids_are_refused_with_those_there_are(world: ToolWorld) -> None:
    assert "there is none" in await world.refusal("claim_task", "alice", task_id="task_x")
    a = await _create(world, "A")
    assert a in await world.refusal("get_task", task_id="task_x")
    assert a in await world.refusal("create_task", subject="B", blocked_by=["task_x"])


async def test_the_list_shows_what_is_ready_held_and_blocked(world: ToolWorld) -> None:
    a = await _create(world, "A")
    b = await _create(world, "B", a)
    c = await _create(world, "C")
    await world.run("claim_task", "alice", task_id=c)
    listed = await world.run("list_tasks")
    assert listed.content == f"{a} [ready] A\n{b} [pending, waits for {a}] B\n{c} [in_progress, alice] C"
    assert (await world.run("list_tasks", status="ready")).content == f"{a} [ready] A"
    assert (await world.run("list_tasks", status="failed")).content == "No task is failed."


async def test_a_long_list_shows_all_open_tasks_and_the_newest_that_have_ended(world: ToolWorld) -> None:
    open_tasks = [await _create(world, f"Open {n}") for n in range(3)]
    ended = [
        Task(id=f"task_e{n:03}", subject=f"Ended {n}", status="completed", created_at=n, updated_at=9_000 - n)
        for n in range(75)
    ]
    await world.store.commit(*(Put(task_key("s1", task.id), task.encode()) for task in ended))

    listed = await world.run("list_tasks")
    *lines, note = str(listed.content).splitlines()
    newest = [task.id for task in ended[:50]]
    assert [line.split()[0] for line in lines] == [*newest, *open_tasks], "the 50 tasks that ended last"
    assert note == "Older tasks that have ended and are left out: 25. get_task shows one by its id."
    assert len(listed.data["tasks"]) == 53, "the call's journal does not grow with the board"
    assert "left out: 25" in str((await world.run("list_tasks", status="completed")).content)
    assert "left out" not in str((await world.run("list_tasks", status="pending")).content)
    assert (await world.run("get_task", task_id="task_e060")).data["task"]["subject"] == "Ended 60"
    for refusal in (
        await world.refusal("get_task", task_id="task_x"),
        await world.refusal("create_task", subject="B", blocked_by=["task_x"]),
    ):
        assert ", ".join(open_tasks) in refusal, "the message names the open tasks"
        assert refusal.endswith(" and 58 more")


async def test_a_task_is_shown_whole(world: ToolWorld) -> None:
    description = "x" * 5_000
    made = await world.run("create_task", subject="A", description=description)
    shown = await world.run("get_task", "alice", task_id=made.data["task_id"])
    assert description in str(shown.content)


async def test_an_update_of_nothing_is_refused(world: ToolWorld) -> None:
    task = await _create(world, "A")
    assert "nothing to change" in await world.refusal("update_task", task_id=task)


async def test_a_misspelt_field_is_named(world: ToolWorld) -> None:
    assert (await world.refusal("create_task", subject="A", blockedby=["x"])).startswith("blockedby: ")
    assert (await world.refusal("create_task")).startswith("subject: ")


async def test_only_todos_of_the_agent_itself_are_set_and_never_written_to_the_store(world: ToolWorld) -> None:
    todos = [{"content": "Read", "status": "completed"}, {"content": "Write", "status": "in_progress"}]
    outcome = await world.run("todo_write", todos=todos)
    assert outcome.writes == ()
    (event,) = outcome.events
    assert isinstance(event, TodosSet)
    assert [todo.content for todo in event.todos] == ["Read", "Write"]
    assert outcome.content == "1 of 2 done."


async def test_two_todos_in_progress_are_refused(world: ToolWorld) -> None:
    todos = [{"content": name, "status": "in_progress"} for name in "AB"]
    with pytest.raises(ToolRefused, match="one at a time"):
        await world.run("todo_write", todos=todos)


def test_what_the_model_is_told_of_an_input_is_plain_schema() -> None:
    specs = {tool.spec.name: tool.spec for tool in (*board_tools(), *todo_tools())}
    create = specs["create_task"].input_schema
    assert create["required"] == ["subject"]
    assert create["additionalProperties"] is False
    assert set(create["properties"]) == {"subject", "description", "blocked_by", "files", "check"}
    assert create["properties"]["description"]["type"] == "string"
    assert "$ref" not in repr(specs["todo_write"].input_schema)
    assert "title" not in repr(specs["todo_write"].input_schema)
