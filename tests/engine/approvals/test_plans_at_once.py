"""Several answer one plan: exactly one counts, and the others are told who was first."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.approvals.plan_world import AtPrompt, answered, pending, planner, reported, rows, taken
from tests.engine.team.team_world import team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.approvals.plans import PLAIN_ANSWER, AnswerDetails, submitted_of
from callboard.core.keys import request_key
from callboard.ports.environment import Answer
from callboard.ports.store import Fence, Put, Row, Write
from callboard.testing import use

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone: half an hour passes here."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def test_an_answer_from_elsewhere_takes_the_question_back_and_the_work_goes_on() -> None:
    person = AtPrompt()
    touch = Echo(name="write_file", effect="reconcile")
    model = planner(use("write_file", {"text": "mended"}), reported())
    async with team_world(model, touch, approvers=[person]).session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        assert [one.id for one in person.asked] == [plan.id]
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert (person.taken_back, person.given) == (1, 0)
        assert touch.ran == [{"text": "mended"}]
        assert [one.by for one in await taken(team)] == ["person"]


async def test_who_answers_at_the_prompt_too_late_is_told_who_was_first() -> None:
    person = AtPrompt(Answer("rejected", "person", "too dear"))
    async with team_world(planner(reported()), approvers=[person]).session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        found = await team.world.store.get(request_key("s1", plan.id))
        assert found is not None
        person.go.set()  # he has typed, and the word of another process is written before his
        first = plan.model_copy(update={"status": "approved", "answered_by": "policy"})
        await team.world.store.commit(Put(found.key, first.encode(), found.revision))
        await team.quiet()
        assert person.given == 1
        assert person.late == [f"{plan.id} is approved by policy already"]


class Dawdling(MemoryStore):
    """A store whose reads and commits take a drawn number of turns of the loop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draws = random.Random(seed)  # reproducible, not secret

    async def get(self, key: str) -> Row | None:
        await self._dawdle()
        return await super().get(key)

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        await self._dawdle()
        return await super().commit(*writes, fence=fence)

    async def _dawdle(self) -> None:
        for _ in range(self._draws.randrange(4)):
            await anyio.lowlevel.checkpoint()


async def of_many_at_once(seed: int) -> tuple[int, str]:
    """How many answers counted of four that are given at the same moment, and how it ended."""
    person = AtPrompt(Answer("rejected", "person", "too dear"))
    world = team_world(planner(reported()), approvers=[person])
    world.store = Dawdling(seed)
    world.spec = {"plan_approver": "either"}
    said: dict[str, str | None] = {}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()

        async def answer(name: str, status: str, by: str, word: AnswerDetails = PLAIN_ANSWER) -> None:
            said[name] = await answered(team, plan, status, by, word)

        async with anyio.create_task_group() as group:
            group.start_soon(answer, "one", "approved", "person", AnswerDetails(plan="# Mend\n1. read\n2. test"))
            group.start_soon(answer, "two", "rejected", "person")
            group.start_soon(answer, "lead", "approved", "lead", AnswerDetails(option=2))
            person.go.set()
        await anyio.wait_all_tasks_blocked()
        (row,) = [one for one in await rows(team) if one.id == plan.id]
        at_prompt = person.given - len(person.late)
        counted = sum(why is None for why in said.values()) + at_prompt
        words = [why for why in said.values() if why is not None] + person.late
        assert all(f"is {row.status} by {row.answered_by} already" in why for why in words), words
        assert person.given + person.taken_back == 1
        assert [one.what for one in row.history if one.what in ("approved", "rejected")] == [row.status]
        assert len([one for one in await taken(team) if one.request_id == plan.id]) == 1
        opened = team.state("alice").work.gate.digest == row.digest
        assert opened is (row.status == "approved" and not team.state("alice").work.reported)
    return counted, f"{row.status} {row.answered_by} {bool(row.choice)} {bool(submitted_of(row))}"


async def test_of_answers_at_once_exactly_one_counts() -> None:
    found = [await of_many_at_once(seed) for seed in range(20)]
    assert {counted for counted, _ in found} == {1}
    assert len({ending for _, ending in found}) > 1, "the same one won each time: nothing was mixed"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
async def test_of_answers_at_once_exactly_one_counts_whatever_the_order(part: int, soak: int) -> None:
    found = [await of_many_at_once(1_000 * part + seed) for seed in range(200 * soak)]
    assert {counted for counted, _ in found} == {1}
