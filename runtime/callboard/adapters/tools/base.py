"""Bases of tools: for tools that wait for something outside the store, and for store tools.

Files, searches and processes are outside the store.

A tool states its input once, as a `ToolInput` class: a frozen model from which both the schema for the model and the
check are made. An input that does not fit is refused with the name of the field.

A store tool is one function of its input and its context: it reads rows, returns writes, and waits for nothing. Its
changes commit together with its result, so a crash leaves no traces and the tool simply runs again.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError

from callboard.core.json_schema import check_input
from callboard.core.validation import faults_of
from callboard.ports.tool import CallContext, Concurrency, Effect, Folders, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_STORED = Path(__file__).parents[2] / "data" / "tool_schemas.json"


class ToolInput(BaseModel):
    """Base of the inputs. Unknown fields are refused by name, so that a misspelt field is not ignored."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=False)


InputT = TypeVar("InputT", bound=ToolInput)
Act = Callable[[InputT, CallContext], ToolOutcome]


@dataclass(frozen=True, slots=True)
class StoreTool(Generic[InputT]):
    """A `Tool` made from a function by `store_tool`."""

    spec: ToolSpec
    input_type: type[InputT]
    act: Act[InputT]

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: the tool only uses the store, whose rows have their own guards."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an invalid input before the start is recorded."""
        read_input(self.input_type, tool_input)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Apply the function. Raises `ToolRefused`."""
        return self.act(read_input(self.input_type, tool_input), context)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again: without a result it has had no effect."""
        return None


def store_tool(
    name: str,
    description: str,
    input_type: type[InputT],
    act: Act[InputT],
    *,
    effect: Effect = "store",
    concurrency: Concurrency = "store",
) -> StoreTool[InputT]:
    """Return a tool with this name.

    `concurrency`: `exclusive` for a tool that also changes the calls that its agent may make next.
    """
    spec = ToolSpec(name, description, schema_of(input_type), effect, concurrency, aliases=aliases_of(input_type))
    return StoreTool(spec, input_type, act)


def look_tool(name: str, description: str, input_type: type[InputT], act: Act[InputT]) -> StoreTool[InputT]:
    """Return a tool that changes nothing, not even its agent's own state.

    It runs concurrently with other tools and can watch them.
    """
    return StoreTool(
        ToolSpec(name, description, schema_of(input_type), "read", "shared", watches=True), input_type, act
    )


def read_input(kind: type[InputT], tool_input: Json) -> InputT:
    """Return the validated input. Raises `ToolRefused` with each invalid field."""
    try:
        return kind.model_validate(tool_input)
    except ValidationError as error:
        raise ToolRefused("; ".join(faults_of(error))) from error


def aliases_of(kind: type[ToolInput]) -> dict[str, str]:
    """Return the aliases of the input's fields, each with the name that the model sees."""
    choices = {name: field.validation_alias for name, field in kind.model_fields.items()}
    return {
        str(other): name
        for name, alias in choices.items()
        if isinstance(alias, AliasChoices)
        for other in alias.choices
        if other != name
    }


def schema_of(kind: type[ToolInput]) -> Json:
    """Return the JSON schema for the model, as `made_schema` makes it."""
    return cast("Json", json.loads(_schema_text(kind)))


def made_schema(kind: type[ToolInput]) -> Json:
    """Return the JSON schema of pydantic, with references inlined and titles removed."""
    schema = kind.model_json_schema()
    return cast("Json", _plain(schema, schema.get("$defs", {})))


def schema_key(kind: type[ToolInput]) -> str:
    """Return the key of a class of inputs in `data/tool_schemas.json`."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _schema_text(kind: type[ToolInput]) -> str:
    """Return the schema as text. Cached, because a session has forty tools, and a process may open many sessions."""
    stored = _stored_schemas().get(schema_key(kind))
    return json.dumps(made_schema(kind) if stored is None else stored)


@functools.cache
def _stored_schemas() -> Mapping[str, Json]:
    """Return the schemas of the package's own tools. To make them takes 60 ms of each start (decision 0040)."""
    return cast("Json", json.loads(_STORED.read_text("utf-8")))


def _plain(node: Any, definitions: Json) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("Json", node)
    if "$ref" in schema:
        return _plain(definitions[str(schema["$ref"]).rsplit("/", 1)[-1]], definitions)
    plain: Json = {}
    for key, value in schema.items():
        if key == "properties":
            plain[key] = {name: _plain(field, definitions) for name, field in value.items()}
        elif not _is_pydantic_key(key, schema):
            plain[key] = _plain(value, definitions)
    return plain


def _is_pydantic_key(key: str, schema: Json) -> bool:
    """Return True for keys that pydantic adds for Python readers: titles, definitions, and a model's docstring."""
    return key in {"$defs", "title"} or (key == "description" and "properties" in schema)


G = TypeVar("G", bound=ToolInput)


class TypedTool(ABC, Generic[G]):
    """Tool whose input is a `ToolInput` class, and whose work is `act`."""

    def __init__(
        self,
        name: str,
        description: str,
        input_type: type[G],
        *,
        effect: Effect,
        concurrency: Concurrency = "exclusive",
        watches: bool = False,
    ) -> None:
        self._input_type = input_type
        self._spec = ToolSpec(name, description, schema_of(input_type), effect, concurrency, watches=watches)
        self._prepared: tuple[Json, G] | None = None
        """Input of the newest call that was prepared and has not run, and the input as its class."""

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    def read(self, tool_input: Json) -> G:
        """Return the input as its class. Raises `ToolRefused` with the invalid field."""
        problem = check_input(self._spec.input_schema, tool_input)
        if problem:
            raise ToolRefused(problem)
        return read_input(self._input_type, tool_input)

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key, unless overridden: no two calls use the same object."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Record nothing before the effect, unless overridden."""
        self._prepared = tool_input, self.read(tool_input)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        # Inputs never change. So the same object needs no second check
        # (test_an_input_is_checked_again_unless_it_is_the_one_that_was_prepared).
        prepared, self._prepared = self._prepared, None
        is_same = prepared is not None and prepared[0] is tool_input
        return await self.act(prepared[1] if prepared and is_same else self.read(tool_input), context)

    @abstractmethod
    async def act(self, arguments: G, context: CallContext) -> ToolOutcome:
        """Do the work. Raises `ToolRefused`."""
        ...

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again, unless overridden: correct for reads, and for effects that commit with the result."""
        return None


def failed_outcome(text: str, **data: Any) -> ToolOutcome:
    """Return an outcome that reports a failure to the model."""
    return ToolOutcome(text, is_error=True, data=dict(data))
