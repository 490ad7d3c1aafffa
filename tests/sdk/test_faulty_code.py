"""Functions, results, and names of a program that are faulty: each fails by itself and never ends the session."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from callboard import Session, ToolResult, hook, tool
from callboard.sdk import events
from callboard.sdk.errors import (
    AgentFailed,
    BudgetSpent,
    CallboardError,
    LimitReached,
    RunFailed,
    SessionHosted,
    SettingsError,
    StepUnknown,
    UsageError,
    WrongResult,
)
from callboard.types.errors import Conflict

SCENARIO = """\
agents:
  lead:
    - {when: {contains: "look"}, repeat: 2, reply: [{tool_use: {name: look, input: {}}}]}
    - {otherwise: true, reply: "Done."}
"""


class Unreadable(Exception):
    """An exception whose text needs an attribute that it lacks, as in the library of a service."""

    def __str__(self) -> str:
        raise AttributeError("response")


def told(place: Path, **options: Any) -> tuple[events.ToolEnded, events.Rested]:
    async def go() -> list[events.Event]:
        async with Session(place, **options) as session:
            return [event async for event in session.stream("look")]

    seen = asyncio.run(go())
    ended = next(event for event in seen if isinstance(event, events.ToolEnded))
    rested = seen[-1]
    assert isinstance(rested, events.Rested)
    return ended, rested


def test_an_agent_that_does_not_exist_cannot_be_interrupted(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            with pytest.raises(UsageError, match="unknown agent 'alise' in session"):
                await session.interrupt("alise")
            await session.interrupt("lead")

    asyncio.run(go())


def test_an_exception_without_a_text_is_an_error_result(place: Path) -> None:
    @tool(reads=True)
    def look() -> str:
        """Looks."""
        raise Unreadable

    ended, rested = told(place, tools=[look])
    assert (ended.is_error, ended.text) == (
        True,
        "Unreadable: its message is missing: its __str__ raised AttributeError",
    )
    assert (rested.result.ok, rested.result.text) == (True, "Done.")


def test_a_result_with_a_faulty_field_is_an_error_result(place: Path) -> None:
    @tool(reads=True)
    def look() -> ToolResult:
        """Looks."""
        rows: Any = [{"id": 1}]
        return ToolResult("one row", data=rows)

    ended, rested = told(place, tools=[look])
    assert (ended.is_error, ended.text) == (
        True,
        "it returned a ToolResult whose `data` is list: give a dict",
    )
    assert rested.result.ok


async def cancel_itself() -> str:
    """Looks."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "too late"


CANCELLED = "AwaitedTaskCancelled: it was cancelled, or a task that it awaited"


def test_a_function_that_cancels_its_own_task_has_failed(place: Path) -> None:
    @tool(reads=True)
    def look() -> Awaitable[str]:
        """Looks."""
        return cancel_itself()

    ended, rested = told(place, tools=[tool(name="look", reads=True)(cancel_itself)])
    assert (ended.is_error, ended.text, rested.result.text) == (True, CANCELLED, "Done.")
    assert told(place, tools=[look])[0].text == CANCELLED

    @hook("PostToolUse")
    async def faulty(event: object) -> None:
        await cancel_itself()

    @tool(name="look", reads=True)
    def see() -> str:
        """Looks."""
        return "here"

    ended, rested = told(place, tools=[see], hooks=[faulty])
    assert (ended.text, rested.result.ok) == ("here", True)


def test_a_client_that_a_tool_opens_stays_open_for_the_next_call(place: Path) -> None:
    """Clients of MCP, and others that use anyio, enter a task group when they are opened: the tool never leaves it."""
    stack = AsyncExitStack()
    clients: list[anyio.abc.TaskGroup] = []

    @tool(reads=True)
    async def look() -> str:
        """Looks."""
        if not clients:
            clients.append(await stack.enter_async_context(anyio.create_task_group()))
        answered = anyio.Event()

        async def answer() -> None:
            answered.set()

        clients[0].start_soon(answer)
        await answered.wait()
        return "answered"

    async def go() -> None:
        async with Session(place, tools=[look]) as session:
            for prompt in ("look", "look again"):
                seen = [event async for event in session.stream(prompt)]
                assert [event.text for event in seen if isinstance(event, events.ToolEnded)] == ["answered"]

    asyncio.run(go())


def test_a_hook_that_raises_an_exception_without_a_text_has_failed(place: Path) -> None:
    @tool(reads=True)
    def look() -> str:
        """Looks."""
        return "here"

    @hook("PostToolUse")
    def faulty(event: object) -> None:
        raise Unreadable

    ended, rested = told(place, tools=[look], hooks=[faulty])
    assert (ended.text, rested.result.ok) == ("here", True)


ERRORS = (
    UsageError("no such agent"),
    SettingsError("is not a number", "settings.yaml:3: limits"),
    LimitReached("the run is at its limit", "steps"),
    SessionHosted("it is hosted", 7, "roof"),
    RunFailed("it failed", {"ok": False}),
    WrongResult("it did not fit", ["not JSON"], "seven"),
    AgentFailed("it failed", "failed", "text", exit_code=5),
    BudgetSpent("it is used up", 2.5, 2.0),
    StepUnknown("its effect is unknown", "step-1"),
    Conflict("s/1", 1, 2),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_goes_from_a_worker_process_to_its_parent(error: CallboardError) -> None:
    """A pool of processes, or a task queue, pickles the error of a worker: one that cannot be read breaks the pool."""
    error.add_note("in job 7")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
        assert other.exit_code == error.exit_code
