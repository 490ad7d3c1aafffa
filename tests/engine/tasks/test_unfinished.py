"""A teammate whose model ends the turn while it holds a task: reminded once, then the task is released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.tasks.test_board import ASK, made, tasks_of
from tests.engine.team.team_world import spawn, team_world

from callboard.core.keys import mailbox
from callboard.ports.model import Reply
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio

TAKE = use("claim_task", {"task_id": "t1"})
DONE = use("complete_task", {"task_id": "t1"})


async def reports_of(team: HostedSession, name: str = "alice") -> list[Envelope]:
    """The typed words that the lead got of this agent."""
    records = await team.world.store.read(mailbox(team.id, "lead", 1), 0, 1_000)
    mail = [Envelope.model_validate_json(record.data) for record in records]
    return [one for one in mail if one.sender == name and one.type != "message"]


@dataclass(frozen=True)
class Case:
    """What alice replies, how often she is reminded, what becomes of t1, and the report: type, status, words."""

    alice: Sequence[Reply]
    reminders: int
    task: tuple[str, str | None]
    report: tuple[str, str, str]


CASES = {
    "goes on after the reminder": Case(
        [TAKE, say("I think so."), DONE, say("Done.")], 1, ("completed", "alice"), ("result", "done", "Done.")
    ),
    "ends its turn again": Case(
        [TAKE, say("I think so."), say("That is all.")],
        1,
        ("pending", None),
        ("error", "unfinished", "alice ended its turn and did not finish t1 (the t1); the task is free again"),
    ),
    "asked the lead just now": Case(
        [TAKE, ASK, say("I wait.")],
        0,
        ("in_progress", "alice"),
        ("idle_notification", "unfinished", "alice still holds t1 (the t1), which is unfinished, and waits for lead"),
    ),
    "asks after the reminder": Case(
        [TAKE, say("Which database?"), ASK, say("I wait.")],
        1,
        ("in_progress", "alice"),
        ("idle_notification", "unfinished", "waits for lead"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_turn_that_ends_with_a_task_in_hand_is_reminded_or_releases_it(case: Case) -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), *[say("I wait")] * 5], "alice": case.alice})
    async with team_world(model).session() as team:  # without tools that write nobody takes a task by itself
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        with anyio.fail_after(30):
            await team.quiet()
        journal = await team.journal("alice")
        task = tasks_of(team)["t1"]
        assert (journal.count("tasks_reminded"), (task.status, task.owner)) == (case.reminders, case.task)
        (told,) = await reports_of(team)
        kind, status, words = case.report
        assert (told.type, told.metadata["status"]) == (kind, status)
        assert words in told.content
        assert set(team.state("alice").work.tasks) == {"t1"} & ({"t1"} if task.status == "in_progress" else set())


async def test_the_answer_to_a_waiting_owner_lets_it_finish_its_task_and_report() -> None:
    lead = [use(*spawn("alice")), say("I wait"), use("send_message", {"to": "alice", "content": "SQLite"}), say("so")]
    model = ScriptedModel(
        {"lead": [*lead, say("good")], "alice": [TAKE, ASK, say("I wait."), DONE, say("With SQLite.")]}
    )
    async with team_world(model).session() as team:
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        with anyio.fail_after(30):
            await team.quiet()
        last = (await reports_of(team))[-1]
        assert (last.type, last.metadata["status"], last.content) == ("result", "done", "With SQLite.")


async def test_a_task_that_nobody_finishes_has_failed_after_three_tries() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), *[say("I wait")] * 9], "alice": [say("I stop here")] * 9})
    async with team_world(model, Echo(name="write_file")).session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.team.runtime.commit(made("t1"))
        with anyio.fail_after(30):
            await team.quiet()
        task = tasks_of(team)["t1"]
        assert (task.status, task.attempts) == ("failed", 3)
        assert "t1 (the t1); it has failed after 3 tries" in (await reports_of(team))[-1].content
