"""Code that a type checker must reject: each line marked `wrong`, and no other."""

from __future__ import annotations

from callboard import Agent, Session, ToolResult, Workflow, agent, hook, schedule, tool, workflow


@tool
def forecast(city: str, days: int = 1) -> str:
    """The weather."""
    return city * days


@tool(effect="sometimes")  # wrong
def odd(city: str) -> str:
    """Odd."""
    return city


@hook("PreToolUsed")  # wrong
def misspelt(event: object) -> None:
    """Never asked."""


@agent(effort="enormous")  # wrong
def scout() -> str:
    """Looks."""
    return "You look."


@workflow
async def audit(flow: Workflow, paths: list[str]) -> int:
    return len(paths)


def plain(city: str) -> str:
    return city


async def main() -> None:
    forecast(7)  # wrong
    forecast("Oslo", weeks=2)  # wrong
    schedule("@daily", 7)  # wrong
    schedule("@daily", "x", overlap="sometimes")  # wrong
    ToolResult(7)  # wrong
    Agent("a", "b")  # wrong
    async with Session(".", modell="x") as session:  # wrong
        number: int = (await session.run("x")).text  # wrong
        assert (await session.run("x")).value.city  # wrong
        await session.run("x", result=7)  # wrong
        await session.workflow(audit, paths="src")  # wrong
        await session.workflow(audit, folder="src")  # wrong
        await session.workflow(plain, "x")  # wrong
        assert number
    Session(".", tools=[plain])  # wrong
    Session(".", permission_mode="bold")  # wrong
    Session(".", approver=7)  # wrong


@workflow
async def flows(flow: Workflow) -> int:
    await flow.agent("explore")  # wrong
    await flow.agent("explore", "x", key=7)  # wrong
    number: int = await flow.agent("explore", "x")  # wrong
    await flow.step("plain", plain, 7)  # wrong
    await flow.map([1, 2], look)  # wrong
    return number


async def look(flow: Workflow, path: str) -> str:
    return path
