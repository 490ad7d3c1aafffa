"""A tool that is one function of its input and its context: it reads rows and returns writes, and waits for nothing.

What it changes commits together with its result, so that a cut leaves nothing behind and it simply runs again. The
input is a frozen model: one place says what the model is told (the schema) and what the function gets. Tools that wait
for something, or reach the world outside the store, are no business of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from callboard.ports.tool import Effect, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.values import Json


class Input(BaseModel):
    """Base of the inputs: unknown fields are refused by name, so that a misspelt one is not silently lost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


InputT = TypeVar("InputT", bound=Input)
Act = Callable[[InputT, ToolContext], ToolOutcome]


@dataclass(frozen=True, slots=True)
class StoreTool(Generic[InputT]):
    """A `Tool` made of a function. Built by `store_tool`."""

    spec: ToolSpec
    given: type[InputT]
    act: Act[InputT]

    def key(self, given: Json) -> str:
        """Nothing but the store is touched, and its rows guard themselves."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Refuse a wrong input before the start is recorded."""
        read_input(self.given, given)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """Apply the function. Raises `ToolRefused`."""
        return self.act(read_input(self.given, given), context)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Nothing was done that its result does not tell: run it anew."""
        return None


def store_tool(
    name: str,
    description: str,
    given: type[InputT],
    act: Act[InputT],
    effect: Effect = "store",
    *,
    barrier: bool = False,
) -> StoreTool[InputT]:
    """A tool of that name, run alone."""
    return StoreTool(ToolSpec(name, description, schema_of(given), effect, "exclusive", barrier), given, act)


def look_tool(name: str, description: str, given: type[InputT], act: Act[InputT]) -> StoreTool[InputT]:
    """A tool that changes nothing, not even its agent's own state: it runs beside others, and watches what they do."""
    return StoreTool(ToolSpec(name, description, schema_of(given), "read", "shared", watches=True), given, act)


def read_input(kind: type[InputT], given: Json) -> InputT:
    """The input as a value. Raises `ToolRefused` that names each wrong field."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ToolRefused("; ".join(faults)) from error


def schema_of(kind: type[Input]) -> Json:
    """The JSON schema that the model sees: pydantic's, references written out, titles left out."""
    schema = kind.model_json_schema()
    return cast("Json", _plain(schema, schema.get("$defs", {})))


def _plain(node: Any, definitions: Json) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    found = cast("Json", node)
    if "$ref" in found:
        return _plain(definitions[str(found["$ref"]).rsplit("/", 1)[-1]], definitions)
    plain: Json = {}
    for key, value in found.items():
        if key == "properties":
            plain[key] = {name: _plain(field, definitions) for name, field in value.items()}
        elif not _is_ours_alone(key, found):
            plain[key] = _plain(value, definitions)
    return plain


def _is_ours_alone(key: str, found: Json) -> bool:
    """What pydantic adds for Python's readers: titles, definitions, and a model's docstring."""
    return key in {"$defs", "title"} or (key == "description" and "properties" in found)
