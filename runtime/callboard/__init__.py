"""Callboard: a lead agent, its team, a durable message bus, approvals and schedules.

    from callboard import Session

    async with Session(".") as session:
        result = await session.run("Fix the failing test")

Names are loaded when they are first used (docs/python.md). Events and errors are in `callboard.sdk.events` and
`callboard.sdk.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from callboard._renamed import install

if TYPE_CHECKING:
    from callboard.sdk.agents import Agent, agent
    from callboard.sdk.errors import CallboardError, ToolError
    from callboard.sdk.hooks import hook
    from callboard.sdk.results import Result
    from callboard.sdk.schedules import schedule
    from callboard.sdk.session import Session
    from callboard.sdk.tools import FunctionTool as Tool
    from callboard.sdk.tools import Image, ToolContext, ToolResult, tool
    from callboard.sdk.workflows.decorator import workflow
    from callboard.sdk.workflows.run import Workflow
    from callboard.types.hook_answers import AddContext, Allow, Ask, Deny
    from callboard.types.records import Budget, Request

__version__ = "0.1.0"

install()

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
    ("callboard.sdk.agents", ("Agent", "agent")),
    ("callboard.sdk.errors", ("CallboardError", "ToolError")),
    ("callboard.sdk.hooks", ("hook",)),
    ("callboard.sdk.results", ("Result",)),
    ("callboard.sdk.schedules", ("schedule",)),
    ("callboard.sdk.session", ("Session",)),
    ("callboard.sdk.tools", ("Image", "Tool", "ToolContext", "ToolResult", "tool")),
    ("callboard.sdk.workflows.run", ("Workflow",)),
    ("callboard.sdk.workflows.decorator", ("workflow",)),
    ("callboard.types.hook_answers", ("AddContext", "Allow", "Ask", "Deny")),
    ("callboard.types.records", ("Budget", "Request")),
)
"""Modules and the names above that are loaded from them."""


def __getattr__(name: str) -> object:
    for module, names in _PLACES:
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
