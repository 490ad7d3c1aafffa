"""Callboard: a lead agent, its team, a durable message bus, approvals and schedules.

    from callboard import Session

    async with Session(".") as session:
        result = await session.run("Mend the failing test")

What stands here is loaded when it is first used (docs/python.md); events and errors stand in `callboard.api.events` and
`callboard.api.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callboard.api.agents import Agent, agent
    from callboard.api.errors import CallboardError, ToolError
    from callboard.api.hooks import hook
    from callboard.api.results import Result
    from callboard.api.schedules import schedule
    from callboard.api.session import Session
    from callboard.api.tools import Image, Tool, ToolContext, ToolResult, tool
    from callboard.api.workflows.flow import Workflow
    from callboard.api.workflows.running import workflow
    from callboard.words.hooks import AddContext, Allow, Ask, Deny
    from callboard.words.values import Budget, Request

__version__ = "0.1.0"

__all__ = [
    "AddContext",
    "Agent",
    "Allow",
    "Ask",
    "Budget",
    "CallboardError",
    "Deny",
    "Image",
    "Request",
    "Result",
    "Session",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Workflow",
    "__version__",
    "agent",
    "hook",
    "schedule",
    "tool",
    "workflow",
]

_PLACES = (
    ("callboard.api.agents", ("Agent", "agent")),
    ("callboard.api.errors", ("CallboardError", "ToolError")),
    ("callboard.api.hooks", ("hook",)),
    ("callboard.api.results", ("Result",)),
    ("callboard.api.schedules", ("schedule",)),
    ("callboard.api.session", ("Session",)),
    ("callboard.api.tools", ("Image", "Tool", "ToolContext", "ToolResult", "tool")),
    ("callboard.api.workflows.flow", ("Workflow",)),
    ("callboard.api.workflows.running", ("workflow",)),
    ("callboard.words.hooks", ("AddContext", "Allow", "Ask", "Deny")),
    ("callboard.words.values", ("Budget", "Request")),
)
"""The names above and the modules that they are loaded from."""


def __getattr__(name: str) -> object:
    for module, names in _PLACES:
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
