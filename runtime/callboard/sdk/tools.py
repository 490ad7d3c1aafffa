"""Tools from Python functions: `@tool` reads the signature and the docstring, and converts return values to results.

    @tool(reads=True)
    async def weather(city: str, days: int = 1) -> str:
        \"\"\"The weather of the next days.

        Args:
            city: Its English name.
            days: How many, from 1 to 7.
        \"\"\"
        return await forecast(city, days)

Rules and hooks apply to such a tool by its name, as to any other. A tool that is not marked as reading needs
permission. The function stays callable, so that tests can call it directly.
"""  # noqa: D214 - the section belongs to the example

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from callboard.core.tool_access import LONGEST_NAME
from callboard.sdk.errors import NotTyped, UsageError
from callboard.sdk.signatures import parameters_of
from callboard.types.choices import unknown
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

P = ParamSpec("P")
R = TypeVar("R")

Effect = Literal["read", "again", "unknown"]
"""Effect of a call that was cut off with its process. `read`: none, so the call runs without a question, and runs
again; `again`: the call may run again; `unknown`: the call never runs again."""

_NAME = late_pattern(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}")


class ToolOptions(TypedDict, total=False):
    """Keyword options of `@tool(...)`."""

    name: str
    """Name of the tool for models, rules and hooks: letters, digits, `_` and `-`, at most 64. Default: the function's
    name."""
    description: str
    """Description of the tool for the model. Default: the docstring, without its sections on parameters."""
    reads: bool
    """True if the tool changes nothing. It then runs without a question, in parallel with other reads, even in plan
    mode. The same as `effect="read"`."""
    effect: Effect
    """Effect of a call that was cut off. Default: `unknown`."""
    concurrency: Literal["shared", "exclusive"]
    """`shared`: several calls of one reply run at once. Default: `shared` for tools that read, otherwise
    `exclusive`."""
    timeout: float | None
    """Time limit of one call in seconds; None: no limit. Default: 600."""
    destructive: bool
    """True if the tool may delete or overwrite. The permission question says so."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Context of a tool call: the caller, and its folder.

    A parameter of this type, whatever its name, receives it; the model never sees that parameter.
    """

    session: str
    """The session's id."""
    agent: str
    """The agent's name: `lead`, `alice`, ..."""
    agent_type: str
    call: str
    """Id of this call. It stays the same if the call runs again after a crash."""
    folder: Path
    """Absolute path of the folder in which the agent works: the workspace, or its worktree."""
    progress: Callable[[str], None] = field(default=lambda text: None, compare=False)
    """Report progress to observers. May be called from any thread that the runtime started."""


@dataclass(frozen=True, slots=True)
class Image:
    """Image in a result, for the model to see."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"

    @classmethod
    def read(cls, path: str | Path) -> Image:
        """Read an image file; its suffix gives the type. Raises `OSError`, and `UsageError` for an unknown suffix."""
        kinds = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif"}
        media_types: dict[str, Any] = {**kinds, "webp": "image/webp"}
        ending = Path(path).suffix.lower().lstrip(".")
        if ending not in media_types:
            raise UsageError(f"{path}: an image ends in {', '.join(media_types)}")
        return cls(Path(path).read_bytes(), media_types[ending])


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool that returns more than one value."""

    content: str | Sequence[str | Image]
    """Content for the model: text and images."""
    is_error: bool = False
    """True if the model is to be informed that the call failed."""
    data: Json = field(default_factory=dict[str, object])
    """Structured form of the result, for hooks and events: a JSON object."""
    ends_turn: bool = False
    """True if this result ends the agent's turn."""


class FunctionTool(Generic[P, R]):
    """Function as a tool. Calling the tool calls the function."""

    def __init__(self, function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> None:
        """Read the function's signature. Raises `NotTyped` for a function whose input cannot be described."""
        name = options.get("name", getattr(function, "__name__", "").replace(".", "_"))
        if not _NAME.fullmatch(name):
            raise NotTyped(f"{name!r} is not a valid tool name: letters, digits, `_` and `-`, at most {LONGEST_NAME}")
        if name.startswith("mcp__"):
            raise NotTyped(f"tool {name!r}: names that begin with mcp__ are those of MCP servers")
        _check(options, name)
        if options.get("reads") and options.get("effect", "read") != "read":
            raise NotTyped(f"tool {name!r}: `reads` and another effect exclude each other: omit one")
        timeout = options.get("timeout", 600.0)
        if timeout is not None and not timeout > 0:
            raise NotTyped(f"tool {name!r}: the time-out is a number of seconds above 0, or None")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.taken = parameters_of(function, f"tool {name!r}", ToolContext)
        self.description = options.get("description", self.taken.summary) or f"Calls {name}."
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
        """Return the JSON schema of the input, as the model sees it."""
        return self.taken.schema

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


def _check(options: ToolOptions, name: str) -> None:
    """Raise `NotTyped` for an option that does not exist, or a value that it cannot have."""
    if extra := [option for option in options if option not in ToolOptions.__annotations__]:
        raise NotTyped(f"tool {name!r}: {unknown('option', extra[0], ToolOptions.__annotations__)}")
    choices: dict[str, tuple[str, ...]] = {"effect": get_args(Effect), "concurrency": ("shared", "exclusive")}
    for option, values in choices.items():
        if options.get(option, values[0]) not in values:
            raise NotTyped(f"tool {name!r}: {unknown(option, str(options.get(option)), values)}")


Tool = FunctionTool
"""Public name of the class."""

AnyTool = FunctionTool[..., Any]
"""Tool with any parameters."""


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool from a function, async or not. A function that is not async runs in a worker thread.

    The input schema comes from the annotations (plain types, `Literal`, enums, `Optional`, lists, dicts, dataclasses,
    `TypedDict`, pydantic models), descriptions from the docstring or from `Annotated[str, "text"]`. The function may
    return a string, any value that is JSON (a model, a dataclass), an `Image`, a list of strings and images, or a
    `ToolResult`. An exception becomes an error result; raise `ToolError` to pass its text to the model unchanged.

    Raises `NotTyped`, naming the parameter, for an input that cannot be described.
    """
    if function is not None:
        return FunctionTool(function)
    return functools.partial(_made, options)


def _made(options: ToolOptions, function: Callable[P, R], /) -> FunctionTool[P, R]:
    return FunctionTool(function, **options)
