"""Tools from Python functions: `@tool` reads the signature and the docstring, and what a call returns becomes a result.

    @tool(reads=True)
    async def weather(city: str, days: int = 1) -> str:
        \"\"\"The weather of the next days.

        Args:
            city: Its English name.
            days: How many, from 1 to 7.
        \"\"\"
        return await forecast(city, days)

A tool is judged like any other: rules and hooks know it by its name, and what is not said to read asks first. The
function stays callable, so that it can be tested as it stands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from callboard.api.errors import NotTyped, UsageError
from callboard.api.signatures import taken_by
from callboard.core.toolset import LONGEST_NAME
from callboard.words.values import Json

P = ParamSpec("P")
R = TypeVar("R")

Effect = Literal["read", "again", "unknown"]
"""What a call that was cut off with its process leaves behind. `read`: nothing, it is run again, and runs unasked;
`again`: it may be run again all the same; `unknown`: nobody knows, so it is never run again."""

_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}")


class ToolOptions(TypedDict, total=False):
    """What `@tool(...)` takes, all of it by name."""

    name: str
    """What models, rules and hooks call it: letters, digits, `_` and `-`, at most 64. Left out: the function's name."""
    description: str
    """What the model reads of it. Left out: the docstring, without what it says of parameters."""
    reads: bool
    """It changes nothing: it runs unasked, beside other reads, also in plan mode. The same as `effect="read"`."""
    effect: Effect
    """What a cut leaves behind. Left out: `unknown`."""
    concurrency: Literal["shared", "exclusive"]
    """`shared`: several calls of one reply run at once. Left out: shared for what reads, else one after the other."""
    timeout: float | None
    """Seconds that one call may take; None: however long. Left out: 600."""
    destructive: bool
    """It may delete or overwrite. A person who is asked is told."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Who calls a tool, and from where. A parameter of this type, whatever its name, gets it; the model never sees that
    parameter."""

    session: str
    """The session's id."""
    agent: str
    """The agent's name: `lead`, `alice`, ..."""
    agent_type: str
    call: str
    """The id of this call: the same if it is run again after a crash."""
    folder: Path
    """Where the agent works: the workspace, or its worktree. Absolute."""
    progress: Callable[[str], None] = field(default=lambda text: None, compare=False)
    """Tells whoever looks on how far it is. From any thread that the runtime started."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a result, for the model to see."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"

    @classmethod
    def read(cls, path: str | Path) -> Image:
        """An image file, by its ending. Raises `OSError`, and `UsageError` for an ending that is none of these."""
        kinds = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif"}
        known: dict[str, Any] = {**kinds, "webp": "image/webp"}
        ending = Path(path).suffix.lower().lstrip(".")
        if ending not in known:
            raise UsageError(f"{path}: an image ends in {', '.join(known)}")
        return cls(Path(path).read_bytes(), known[ending])


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result that says more than one value can."""

    content: str | Sequence[str | Image]
    """What the model reads and sees."""
    is_error: bool = False
    """The model is told that the call failed."""
    data: Json = field(default_factory=dict[str, object])
    """The structured form, for hooks and events: a JSON object."""
    ends_turn: bool = False
    """The agent's turn ends with this result."""


class Tool(Generic[P, R]):
    """A function as a tool. Calling it calls the function."""

    def __init__(self, function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> None:
        """Raises `NotTyped` for a function whose input cannot be described."""
        given = options.get("name", getattr(function, "__name__", "").replace(".", "_"))
        if not _NAME.fullmatch(given):
            raise NotTyped(f"{given!r} is no name of a tool: letters, digits, `_` and `-`, at most {LONGEST_NAME}")
        if given.startswith("mcp__"):
            raise NotTyped(f"tool {given!r}: names that begin with mcp__ are those of MCP servers")
        if options.get("reads") and options.get("effect", "read") != "read":
            raise NotTyped(f"tool {given!r}: what reads has the effect `read`: leave one of the two out")
        timeout = options.get("timeout", 600.0)
        if timeout is not None and not timeout > 0:
            raise NotTyped(f"tool {given!r}: the time-out is a number of seconds above 0, or None")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = given
        self.taken = taken_by(function, f"tool {given!r}", ToolContext)
        self.description = options.get("description", self.taken.summary) or f"Calls {given}."
        self.effect: Effect = "read" if options.get("reads") else options.get("effect", "unknown")
        shared: Literal["shared", "exclusive"] = "shared" if self.effect == "read" else "exclusive"
        self.concurrency: Literal["shared", "exclusive"] = options.get("concurrency", shared)
        self.timeout = timeout
        self.destructive = options.get("destructive", False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @property
    def input_schema(self) -> Json:
        """The JSON schema of its input, as the model sees it."""
        return self.taken.schema

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


AnyTool = Tool[..., Any]
"""A tool, whatever it takes."""


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function, async or not; one that is not runs in a worker thread.

    The input's schema comes from the annotations (plain types, `Literal`, enums, `Optional`, lists, dicts, dataclasses,
    `TypedDict`, pydantic models), descriptions from the docstring or from `Annotated[str, "text"]`. It may return a
    text, any value that is JSON (a model, a dataclass), an `Image`, a list of texts and images, or a `ToolResult`.
    An exception becomes an error result; raise `ToolError` for one that the model should read as it stands.

    Raises `NotTyped`, naming the parameter, for what cannot be described.
    """
    if function is not None:
        return Tool(function)
    return functools.partial(_made, options)


def _made(options: ToolOptions, function: Callable[P, R], /) -> Tool[P, R]:
    return Tool(function, **options)
