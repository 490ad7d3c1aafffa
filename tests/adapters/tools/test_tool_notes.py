"""`remember`, `recall`, and `forget` as tools: the preview before each call, and the report after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.extensions.memory import Memories, MemoryPlaces
from callboard.adapters.tools.memory import note_tools
from callboard.ports.tool import Previews, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.records import Json

pytestmark = pytest.mark.anyio
SHIP: Json = {"name": "ship", "description": "How to ship", "content": "make ship"}


class NoteWorld(ToolWorld):
    """World whose tools record note digests before they act."""

    async def preview(self, tool: str, by: str = "lead", **given: object) -> ToolOutcome:
        context, found = await self.context(by), self.tools[tool]
        await found.prepare(dict(given), context)
        return await found.run(dict(given), context)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def memories(tmp_path: Path) -> Memories:
    return Memories(MemoryPlaces(tmp_path / "ws", tmp_path / "home", tmp_path / "config", tmp_path / "data", "s1"))


@pytest.fixture
async def world(memories: Memories) -> ToolWorld:
    made = NoteWorld(note_tools(memories))
    await made.join("lead", "lead")
    return made


def tool(memories: Memories, name: str) -> Tool:
    return next(one for one in note_tools(memories) if one.spec.name == name)


async def base_digest(world: ToolWorld, name: str) -> str:
    told = str((await world.run("recall", name=name)).content)
    return told.partition("base ")[2][:12]


async def test_a_change_is_previewed_line_by_line_and_nothing_is_done(world: ToolWorld, memories: Memories) -> None:
    remember, context = tool(memories, "remember"), await world.context()
    assert isinstance(remember, Previews)
    shown = await remember.preview(SHIP, context)
    assert shown.startswith("new note: ship (project, ")
    assert "+make ship" in shown
    assert memories.of(context.spec)["project"].read().notes == ()
    await world.run("remember", **SHIP)
    change = {"name": "ship", "content": "make ship\nthen watch", "base": await base_digest(world, "ship")}
    lines = (await remember.preview(change, context)).splitlines()
    assert lines[0].startswith("changed note: ship")
    assert [line for line in lines[1:] if line[0] != " "] == ["+then watch"]
    forget = tool(memories, "forget")
    assert isinstance(forget, Previews)
    gone = await forget.preview({"name": "ship", "base": change["base"]}, context)
    assert "-make ship" in gone
    with pytest.raises(ToolRefused, match="not what you know"):
        await forget.preview({"name": "ship", "base": "0"}, context)


@pytest.mark.parametrize("cut", ["before", "between", "after"])
async def test_after_a_crash_the_file_tells_whether_it_was_done(world: ToolWorld, memories: Memories, cut: str) -> None:
    remember, context = tool(memories, "remember"), await world.context()
    marks = await remember.prepare(SHIP, context)
    folder = memories.of(context.spec)["project"]
    if cut != "before":
        await remember.run(SHIP, context)
    if cut == "between":
        (folder.path / "MEMORY.md").unlink()
    outcome = await remember.repair(SHIP, marks, context)
    assert (outcome is None) == (cut == "before")
    if outcome is None:
        outcome = await remember.run(SHIP, context)
    assert "Made the note ship (project)" in str(outcome.content)
    assert "[ship](ship.md)" in (folder.path / "MEMORY.md").read_text()


async def test_after_a_crash_a_note_is_gone_once(world: ToolWorld, memories: Memories) -> None:
    await world.run("remember", **SHIP)
    given: Json = {"name": "ship", "base": await base_digest(world, "ship")}
    forget, context = tool(memories, "forget"), await world.context()
    marks = await forget.prepare(given, context)
    assert await forget.repair(given, marks, context) is None
    await forget.run(given, context)
    outcome: Any = await forget.repair(given, marks, context)
    assert isinstance(outcome, ToolOutcome)
    assert "is deleted" in str(outcome.content)


async def test_what_is_left_out_stays_as_it_was_and_the_place_is_found(world: ToolWorld, memories: Memories) -> None:
    await world.run("remember", **SHIP, type="reference", place="person")
    await world.run("remember", name="ship", content="make ship twice", base=await base_digest(world, "ship"))
    kept = memories.of((await world.context()).spec)["person"].get("ship")
    assert kept is not None
    assert (kept.note.description, kept.note.kind, kept.note.body) == ("How to ship", "reference", "make ship twice")
    await world.run("remember", name="ship", description="mine", content="else", place="session")
    assert "several places: session, person" in await world.refusal("forget", name="ship", base="x")
    assert "you have no notes of 'agent'" in await world.refusal("remember", **SHIP, place="agent")


async def test_notes_are_found_by_words_or_all_listed(world: ToolWorld) -> None:
    assert (await world.run("recall")).content == "There are no notes."
    await world.run("remember", **SHIP)
    assert (await world.run("recall")).content == "- project/ship: How to ship"
    assert "make ship" in str((await world.run("recall", query="how is it shipped?")).content)
    assert "No note is about that" in str((await world.run("recall", query="weather")).content)
    assert "Similar names: ship" in await world.refusal("recall", name="ship-it")


async def test_without_writing_there_is_only_recall(memories: Memories) -> None:
    assert [one.spec.name for one in note_tools(memories, write=False)] == ["recall"]
