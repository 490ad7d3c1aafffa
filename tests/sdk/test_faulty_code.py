"""Functions, results, and names of a program that are faulty: each fails by itself and never ends the session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callboard import Session, ToolResult, hook, tool
from callboard.sdk import events
from callboard.sdk.errors import UsageError

SCENARIO = """\
agents:
  lead:
    - {reply: [{tool_use: {name: look, input: {}}}]}
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
