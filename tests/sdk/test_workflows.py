"""Workflows in one process: typed results, parallel steps, and messages after changes of code or arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

from callboard import Session, Workflow, workflow
from callboard.sdk.errors import (
    AgentFailed,
    AnswerNeeded,
    BudgetSpent,
    NotTyped,
    UsageError,
    WorkflowChanged,
    WrongResult,
)
from callboard.sdk.workflows.decorator import AnyWorkflow

SCENARIO = """\
agents:
  general*:
    - {when: {contains: "fails"}, fault: {status: 400}}
    - {when: {contains: "it contains NaN"}, reply: '1.5'}
    - {when: {contains: "measured"}, reply: 'NaN'}
    - {when: {contains: "does not fit: score"}, repeat: forever, reply: '{"path": "a", "score": 7}'}
    - {when: {contains: "does not fit"}, repeat: forever, reply: 'no'}
    - {when: {contains: "scored"}, repeat: forever, reply: '{"path": "a"}'}
    - {when: {contains: "never"}, repeat: forever, reply: 'no'}
    - {otherwise: true, reply: "said"}
"""


class Finding(BaseModel):
    path: str
    score: int


effects: list[str] = []


def note(what: str) -> str:
    effects.append(what)
    return what


@pytest.fixture
def work(place: Path) -> Path:
    """A workspace whose agents play the scenario."""
    effects.clear()
    return place


def in_session(place: Path, go: Callable[[Session], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Session(place) as session:
            await go(session)

    asyncio.run(run())


@workflow
async def child(flow: Workflow, what: str) -> str:
    return await flow.step("note", note, what)


@workflow
async def whole(flow: Workflow, count: int = 2) -> list[str]:
    one, two = await flow.parallel(flow.agent("general", "one"), child(flow, "two"))
    numbers = await flow.pipeline(list(range(count)), _first, _second, limit=1)
    chance = [flow.random(), flow.new_id("run"), await flow.now()]
    await flow.sleep(0)
    return [one, two, *numbers, *map(str, chance)]


async def _first(flow: Workflow, number: int) -> str:
    return await flow.step("note", note, str(number))


async def _second(flow: Workflow, text: str) -> str:
    return text + await flow.step("note", note, f"{text}!")


@pytest.mark.slow
def test_a_workflow_that_has_ended_tells_the_same_again_and_does_nothing(work: Path) -> None:
    async def go(session: Session) -> None:
        first = await session.workflow(whole.named("w1"), count=2)
        assert first[:4] == ["said", "two", "00!", "11!"]
        assert effects == ["two", "0", "0!", "1", "1!"]
        assert await session.workflow(whole.named("w1"), count=2) == first
        assert await session.resume_workflow(whole, "w1", redo=["map#1[1]/step#2"]) == first
        assert effects == ["two", "0", "0!", "1", "1!", "1!"], "only that step ran again"
        assert [row.status for row in await session.workflows()] == ["done"]
        assert (await session.workflow(whole, count=0))[:2] == first[:2]

    in_session(work, go)


def test_a_typed_result_is_sent_back_with_what_is_wrong_until_it_fits(work: Path) -> None:
    @workflow
    async def flow(flow: Workflow) -> Finding:
        return await flow.agent("general", "Have it scored", result=Finding)

    @workflow
    async def never(flow: Workflow) -> Finding:
        return await flow.agent("general", "It never fits", result=Finding, tries=2)

    @workflow
    async def measures(flow: Workflow) -> float:
        return await flow.agent("general", "Have it measured", result=float)

    async def go(session: Session) -> None:
        assert await session.workflow(measures) == 1.5
        assert await session.workflow(flow) == Finding(path="a", score=7)
        assert len([one for one in session.team() if one.kind == "subagent"]) == 2, "the same agent fixed it"
        with pytest.raises(WrongResult, match="3 tries"):
            await session.workflow(never)

    in_session(work, go)


def test_where_one_part_fails_the_others_are_ended_and_the_workflow_can_be_tried_again(work: Path) -> None:
    stopped: list[str] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append("waited")

    @workflow
    async def flow(flow: Workflow) -> tuple[str, None]:
        await flow.step("note", note, "once")
        return await flow.parallel(flow.agent("general", "this fails"), flow.repeatable("wait", wait))

    async def go(session: Session) -> None:
        with pytest.raises(AgentFailed) as failed:
            await session.workflow(flow.named("w"))
        assert (failed.value.outcome, stopped) == ("failed", ["waited"])
        assert [row.status for row in await session.workflows()] == ["failed"]
        with pytest.raises(AgentFailed):
            await session.workflow(flow.named("w"))
        assert effects == ["once"]
        assert len([one for one in session.team() if one.kind == "subagent"]) == 2, "it was retried"

    in_session(work, go)


def test_a_part_that_fails_before_the_agents_of_the_others_begin_is_raised_itself(work: Path) -> None:
    async def part(flow: Workflow, number: int) -> str:
        if number == 2:
            raise LookupError("number 2")
        return await flow.agent("general", f"part {number}")

    @workflow
    async def flow(flow: Workflow) -> list[str]:
        return await flow.map([1, 2, 3], part)

    async def go(session: Session) -> None:
        with pytest.raises(LookupError, match="number 2"):
            await session.workflow(flow.named("w"))
        assert [row.status for row in await session.workflows()] == ["failed"]

    in_session(work, go)


def test_changed_code_and_other_arguments_are_told_with_the_step(work: Path) -> None:
    def made(text: str) -> AnyWorkflow:
        @workflow(name="flow")
        async def flow(flow: Workflow, fail: bool) -> str:
            await flow.step("note", note, text)
            if fail:
                raise OSError("not yet")
            return text

        return flow

    async def go(session: Session) -> None:
        with pytest.raises(OSError, match="not yet"):
            await session.workflow(made("a").named("w"), fail=True)
        with pytest.raises(WorkflowChanged, match="pass the same arguments") as changed:
            await session.workflow(made("a").named("w"), fail=False)
        with pytest.raises(WorkflowChanged, match="--redo 'step#1'") as changed:
            await session.resume_workflow(made("b"), "w")
        assert changed.value.step == "step#1"
        with pytest.raises(OSError, match="not yet"):
            await session.resume_workflow(made("b"), "w", redo=["step#1"])
        assert effects == ["a", "b"]
        with pytest.raises(UsageError, match="unknown step 'step#9'"):
            await session.resume_workflow(made("b"), "w", redo=["step#9"])

    in_session(work, go)


def test_budgets_questions_and_values_that_are_no_json_are_refused_in_words(work: Path) -> None:
    @workflow
    async def spends(flow: Workflow) -> None:
        for number in range(9):
            await flow.agent("general", f"number {number}")

    @workflow
    async def asks(flow: Workflow) -> str:
        return await flow.ask_person("Who?")

    @workflow
    async def returns(flow: Workflow) -> None:
        await flow.step("odd", lambda: Finding(path="x", score=1))

    async def go(session: Session) -> None:
        with pytest.raises(AgentFailed, match="money budget"):
            await session.workflow(spends.named("w", budget=0.0000001))
        with pytest.raises(BudgetSpent, match="resume it with a larger budget"):
            await session.workflow(spends.named("none", budget=0))
        with pytest.raises(AnswerNeeded, match="answerable=True"):
            await session.workflow(asks)
        with pytest.raises(UsageError, match="write the type"):
            await session.workflow(returns)
        with pytest.raises(UsageError, match="'nobody'"):
            await session.workflow(nobody)

    in_session(work, go)


@workflow
async def nobody(flow: Workflow) -> str:
    return await flow.agent("nobody", "x")


def test_what_is_no_workflow_is_refused_when_it_is_decorated() -> None:
    def plain(flow: Workflow) -> None: ...
    async def without(path: str) -> None: ...
    async def untyped(flow: Workflow, path) -> None: ...  # wrong on purpose

    for function, told in ((plain, "async def"), (without, "first parameter"), (untyped, "has no type")):
        with pytest.raises(NotTyped, match=told):
            workflow(function)  # wrong on purpose
