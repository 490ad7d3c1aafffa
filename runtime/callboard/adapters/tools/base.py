"""How a class of inputs becomes a tool that waits for something outside the store: files, searches, processes.

A tool states its input once, as an `Input` class; the schema that the model sees and the check are both made from it.
Refuses an input that does not fit, naming the field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from callboard.adapters.tools.store_tool import Input, read_input, schema_of
from callboard.core.schema import check_input
from callboard.ports.tool import Concurrency, Effect, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.values import Json

G = TypeVar("G", bound=Input)


class GivenTool(ABC, Generic[G]):
    """A tool whose input is an `Input` class: it says what it is, and does it in `act`."""

    def __init__(
        self,
        name: str,
        description: str,
        given: type[G],
        effect: Effect,
        concurrency: Concurrency = "exclusive",
        *,
        watches: bool = False,
    ) -> None:
        self._given = given
        self._spec = ToolSpec(name, description, schema_of(given), effect, concurrency, watches=watches)

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    def read(self, given: Json) -> G:
        """The input as its class. Raises `ToolRefused` naming the field that does not fit."""
        problem = check_input(self._spec.input_schema, given)
        if problem:
            raise ToolRefused(problem)
        return read_input(self._given, given)

    def key(self, given: Json) -> str:
        """No two calls of this tool touch one thing, unless the tool says otherwise."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Nothing to note before the effect, unless the tool says otherwise."""
        self.read(given)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        return await self.act(self.read(given), context)

    @abstractmethod
    async def act(self, given: G, context: ToolContext) -> ToolOutcome:
        """Do it. Raises `ToolRefused`."""
        ...

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Run it anew: right for reads, and for what commits with its result."""
        return None


def failed(text: str, **data: Any) -> ToolOutcome:
    """An outcome that tells the model of a failure."""
    return ToolOutcome(text, is_error=True, data=dict(data))
