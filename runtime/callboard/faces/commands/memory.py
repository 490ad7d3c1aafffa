"""The slash command about notes: listed, shown, or forgotten once it is sure."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from callboard.desks.memory import Asked, MemoryDesk, open_memory
from callboard.faces.commands.here import Here
from callboard.faces.pages.memory import diff_block, note_block, notes_table
from callboard.faces.terminal import Block, Line
from callboard.words.errors import UsageError


async def memory(here: Here, words: str) -> Block:
    return await anyio.to_thread.run_sync(partial(_memory, here, words.split()))


def _memory(here: Here, words: list[str]) -> Block:
    desk = _desk(here)
    match words:
        case []:
            notes, problems = desk.notes()
            return Block((*notes_table(notes).lines, *(Line(problem, "warn") for problem in problems)))
        case ["forget", name]:
            shown = diff_block(desk.without(name).diff)
            return Block((*shown.lines, Line(f"to delete it: /memory forget {name} yes", "dim")))
        case ["forget", name, "yes"]:
            desk.without(name).make()
            return Block((Line(f"the note {name} is deleted", "good"),))
        case [name]:
            return note_block(desk.one(name))
        case _:
            raise UsageError("/memory [NAME | forget NAME]: `callboard memory` does more")


def _desk(here: Here) -> MemoryDesk:
    """The notes of the session, the project and the person."""
    asked = Asked(session=here.session.id)
    try:
        return open_memory(here.session.workspace, asked)
    except UsageError:  # the session has no folder yet, and so no notes
        return open_memory(here.session.workspace, Asked())
