"""A program that opens sessions, as users write them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, TypedDict, assert_type

from pydantic import BaseModel, Field

from callboard import (
    Agent,
    Budget,
    CallboardError,
    Deny,
    Image,
    Request,
    Result,
    Session,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    agent,
    hook,
    schedule,
    tool,
)
from callboard.sdk import errors, events
from callboard.types.hook_answers import AddContext, PostToolUse, PreToolUse


class Unit(Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(TypedDict):
    city: str
    country: str | None


@dataclass
class Forecast:
    city: str
    degrees: float


class Advice(BaseModel):
    clothes: list[str]
    certain: float = Field(ge=0, le=1)


@tool
def forecast(place: Place, unit: Unit = Unit.C, days: Literal[1, 3, 7] = 1) -> Forecast:
    """The weather."""
    return Forecast(place["city"], 7.0 * days if unit is Unit.C else 44.6)


@tool(name="book_room", timeout=5.0, effect="again", concurrency="shared", destructive=False)
async def book(room: Annotated[str, "Its name"], hours: int, context: ToolContext) -> ToolResult:
    """Book a room."""
    if hours > 8:
        raise ToolError("at most 8 hours")
    context.progress("booking")
    return ToolResult([f"{room} is yours, {context.agent}", Image.read("plan.png")], data={"room": room})


@agent(tools=["read_file", forecast], effort="low", max_turns=5)
def scout() -> str:
    """Looks."""
    return "You look."


@agent(name="clerk", permission_mode="plan")
class Clerk:
    """Books."""

    prompt = "You book."


@hook("PreToolUse", matcher="bash")
def guard(event: PreToolUse) -> Deny | None:
    return Deny("no") if "push" in str(event.call.input.get("command")) else None


@hook("PostToolUse")
async def remember(event: PostToolUse) -> AddContext | None:
    return AddContext("so it is") if event.result.is_error else None


def approve(request: Request) -> bool | str | None:
    return "yes" if request.kind == "question" else None


def watch(event: events.Event) -> str:
    match event:
        case events.TextDelta():
            return assert_type(event.text, str)
        case events.ToolEnded(agent=who, name=name, is_error=failed):
            return f"{who} {name} {failed}"
        case events.Asked():
            return event.request.subject
        case events.Rested():
            return event.result.text
        case _:
            return event.agent


async def main() -> None:
    assert_type(forecast({"city": "Oslo", "country": None}), Forecast)
    assert_type(scout, Agent)
    made: Tool[..., Forecast] = forecast
    try:
        async with Session(
            Path("."),
            model="claude-sonnet-4-5",
            agents=[scout, Clerk],
            tools=[made, book],
            hooks=[guard, remember],
            schedules=[schedule("@daily", "Read the mail", timezone="Europe/Berlin", overlap="skip")],
            approver=approve,
            permission_mode="acceptEdits",
            budget=Budget(cost_usd=1.5),
            settings={"limits.seconds": 60},
            mcp={"docs": {"command": "docs-server", "args": ["-v"]}},
        ) as session:
            plain = await session.run("Go")
            assert_type(plain, Result[None])
            typed = await session.run("Go", result=Advice)
            assert_type(typed.value, Advice)
            async for event in session.stream("Watch"):
                watch(event)
            for request in session.requests():
                await session.answer(request, True, "fine")
            assert_type(session.cost().cost_usd, float)
        async with Session.resume(".", session.id, tools=[forecast]) as again:
            (await again.rest()).check()
    except errors.RunFailed as failed:
        raise SystemExit(str(failed)) from failed
    except CallboardError as error:
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    asyncio.run(main())
