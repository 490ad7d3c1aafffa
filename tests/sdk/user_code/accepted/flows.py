"""Workflows as users write them."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from callboard import Budget, Session, Workflow, workflow
from callboard.types.workflows import WorkflowRow


class Finding(BaseModel):
    path: str
    lines: list[int]


def read(path: str) -> str:
    return path


async def publish(text: str, *, loud: bool = False) -> int:
    return len(text) + loud


async def look(flow: Workflow, path: str) -> Finding:
    return await flow.agent("explore", f"Look at {path}", result=Finding, budget=0.5, key=path.replace("/", "-"))


async def shorten(flow: Workflow, finding: Finding) -> str:
    return await flow.agent("general", str(finding.lines), model="claude-haiku-4-5", budget=Budget(tokens=5000))


@workflow
async def audit(flow: Workflow, paths: list[str], strict: bool = False) -> list[Finding]:
    """Look at files."""
    text, number = await flow.parallel(flow.repeatable("read", read, paths[0]), flow.step("publish", publish, "x"))
    assert_type(text, str)
    assert_type(number, int)
    assert_type(await flow.pipeline(paths, look, shorten), list[str])
    assert_type(await flow.now(), float)
    assert_type(flow.random(), float)
    answer = await flow.ask_person("Go on?", ["yes", "no"], seconds=60.0)
    return await flow.map(paths, look, limit=2) if answer == "yes" or strict else []


@workflow(name="all", session={"model": "claude-sonnet-4-5", "budget": 3.0})
async def everything(flow: Workflow) -> int:
    found = await audit(flow, ["a.py"], strict=True)
    assert_type(found, list[Finding])
    return len(found)


async def main() -> None:
    async with Session(".") as session:
        assert_type(await session.workflow(audit, paths=["a.py"]), list[Finding])
        assert_type(await session.workflow(everything.named("nightly", budget=2.0)), int)
        assert_type(await session.resume_workflow(audit, "nightly", redo=["agent#1"]), list[Finding])
        rows = await session.workflows()
        assert_type(rows[0], WorkflowRow)
