"""Requests are shown to a person in full, with nothing hidden, and unclear answers are asked again."""

from __future__ import annotations

import anyio
import pytest

from callboard.cli.terminal.approver import PersonApprover, PlanPolicy, TakenBack
from callboard.cli.terminal.frame import Frame
from callboard.cli.terminal.terminal import Block
from callboard.cli.views.question import read_answer, request_block
from callboard.ports.environment import Answer
from callboard.types.records import Request

pytestmark = pytest.mark.anyio

PLAN = Request(
    id="req_1", kind="plan", asked_by="alice", subject="Mend the parser", payload={"plan": "1. read\n2. mend"}
)
PERMISSION = Request(
    id="req_2",
    kind="permission",
    asked_by="alice",
    payload={
        "tool": "bash",
        "input": {"command": "ls\x1b[8m; rm -rf build\x1b[0m\nmake"},
        "rule": "R",
        "why": "deletes",
    },
)
QUESTION = Request(
    id="req_3", kind="question", asked_by="alice", payload={"question": "Which?", "options": ["red", "blue"]}
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def text_of(block: Block) -> str:
    return "\n".join(line.text for line in block.lines)


@pytest.mark.parametrize(
    ("request_", "typed", "answer"),
    [
        (PLAN, "y", Answer("approved", "person")),
        (PLAN, " YES, but keep the tests", Answer("approved", "person", "but keep the tests")),
        (PLAN, "n", Answer("rejected", "person")),
        (PLAN, "no too risky", Answer("rejected", "person", "too risky")),
        (PERMISSION, "", Answer("rejected", "person")),
        (PERMISSION, None, Answer("rejected", "person")),
        (PERMISSION, "yesterday", None),
        (PERMISSION, "sure", None),
        (QUESTION, "2", Answer("answered", "person", "blue")),
        (QUESTION, "3", Answer("answered", "person", "3")),
        (QUESTION, "green", Answer("answered", "person", "green")),
    ],
)
def test_words_are_read_as_an_answer_or_not_at_all(request_: Request, typed: str | None, answer: Answer | None) -> None:
    assert read_answer(request_, typed) == answer


def test_a_plan_is_shown_in_full() -> None:
    plan = "\n".join(f"step {number} {'x' * 300}" for number in range(60))
    shown = text_of(request_block(PLAN.model_copy(update={"payload": {"plan": plan}})))
    assert all(line in shown for line in plan.splitlines())


def test_nothing_of_a_command_hides_from_the_one_who_allows_it() -> None:
    shown = text_of(request_block(PERMISSION))
    assert "ls\\x1b[8m; rm -rf build\\x1b[0m" in shown
    assert "make" in shown
    assert "deletes" in shown


async def test_questions_are_asked_one_at_a_time_and_again_until_they_are_answered() -> None:
    asked: list[str] = []
    open_questions = 0

    async def ask(shown: Frame, words: str, taken_back: TakenBack) -> str:
        nonlocal open_questions
        open_questions += 1
        assert open_questions == 1
        await anyio.lowlevel.checkpoint()
        open_questions -= 1
        asked.append(text_of(Block(shown.lines)))
        return "hm" if len(asked) == 1 else "y"

    approver = PersonApprover(ask)
    answers: list[Answer | None] = []

    async def answer(request: Request) -> None:
        answers.append(await approver.answer(request))

    async with anyio.create_task_group() as group:
        group.start_soon(answer, PLAN)
        group.start_soon(answer, PERMISSION)
    assert answers == [Answer("approved", "person")] * 2
    assert "a number, y or n" in asked[1]


async def test_a_person_is_not_asked_for_what_is_not_theirs() -> None:
    async def ask(shown: Frame, words: str, taken_back: TakenBack) -> str:
        raise AssertionError("asked")

    mine = PLAN.model_copy(update={"may_answer": ("lead",)})
    assert await PersonApprover(ask).answer(mine) is None
    assert await PersonApprover(ask, leave_plans=True).answer(PLAN) is None


async def test_yes_approves_plans_and_never_a_permission() -> None:
    assert await PlanPolicy().answer(PLAN) == Answer("approved", "person", "the run was started with --yes")
    policy = PLAN.model_copy(update={"may_answer": ("policy", "person")})
    assert await PlanPolicy().answer(policy) == Answer("approved", "policy", "the run was started with --yes")
    assert await PlanPolicy().answer(PERMISSION) is None
    assert await PlanPolicy().answer(QUESTION) is None
    assert await PlanPolicy().answer(PLAN.model_copy(update={"may_answer": ("lead",)})) is None


@pytest.mark.parametrize(
    ("lead", "asker", "mode"),
    [
        ("plan", "plan", "acceptEdits"),
        ("acceptEdits", "plan", "acceptEdits"),
        ("bypassPermissions", "plan", "acceptEdits"),
        ("default", "plan", ""),
        ("dontAsk", "plan", ""),
        ("acceptEdits", "default", ""),
    ],
)
async def test_unattended_yes_lets_an_agent_leave_plan_mode_for_one_in_which_it_can_edit(
    lead: str, asker: str, mode: str
) -> None:
    modes = {"lead": lead, PLAN.asked_by: asker} if PLAN.asked_by != "lead" else {"lead": asker}
    answer = await PlanPolicy(modes.__getitem__).answer(PLAN)
    assert answer is not None
    assert answer.word.mode == mode
