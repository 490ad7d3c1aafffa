"""Tool for the agent's own todo list: `todo_write` replaces it.

No other agent uses the list, and it is not the task board.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from callboard.adapters.tools.base import ToolInput, store_tool
from callboard.ports.tool import CallContext, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import TodosSet
from callboard.types.records import Todo

_DESCRIPTION = """\
Keep your own list of what is to be done for this request. Each call replaces the whole list. Use it for work of three \
steps or more: write the list before you begin, keep exactly one item in_progress, and mark an item completed as soon \
as it is done and checked, not later. Leave it out for a single simple step. Work that teammates may take belongs on \
the task board (create_task) instead."""


class _Item(ToolInput):
    content: str = Field(min_length=1, description="What is to be done, as an order: 'Run the tests'")
    status: Literal["pending", "in_progress", "completed"]


class _TodoWrite(ToolInput):
    todos: tuple[_Item, ...] = Field(max_length=200, description="The whole list, in the order of work")


def todo_tools() -> tuple[Tool, ...]:
    """Return `todo_write`. Its effect is `read`: it changes only its agent's own state, and may run again."""
    return (store_tool("todo_write", _DESCRIPTION, _TodoWrite, _todo_write, effect="read", concurrency="own"),)


def _todo_write(arguments: _TodoWrite, context: CallContext) -> ToolOutcome:
    todos = tuple(Todo(content=item.content.strip(), status=item.status) for item in arguments.todos)
    if any(not todo.content for todo in todos):
        raise ToolRefused("todos: an item has no content")
    doing = sum(todo.status == "in_progress" for todo in todos)
    if doing > 1:
        raise ToolRefused(f"todos: {doing} items are in_progress: work on one at a time")
    done = sum(todo.status == "completed" for todo in todos)
    text = f"{done} of {len(todos)} done." if todos else "The list is empty."
    return ToolOutcome(text, events=(TodosSet(at=context.now, todos=todos),), data={"done": done, "all": len(todos)})
