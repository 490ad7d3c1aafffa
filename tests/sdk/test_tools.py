"""Tools from Python functions: their descriptions for the model, the conversion of input, and valid results."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import pytest
from pydantic import BaseModel, Field

from callboard.core.json_schema import check_input
from callboard.sdk.errors import NotTyped
from callboard.sdk.function_tool import outcome_of
from callboard.sdk.signatures import parse_docstring
from callboard.sdk.tools import FunctionTool, Image, ToolContext, ToolResult, tool
from callboard.types.errors import ToolRefused


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Place(TypedDict):
    city: str
    zip: NotRequired[str]


class Order(BaseModel):
    amount: int = Field(ge=1, description="How many")


class Tree(BaseModel):
    kids: list[Tree] = []


def everything(
    colour: Colour,
    point: Point,
    places: list[Place],
    order: Order,
    maybe: Optional[int] = None,  # noqa: UP045 - as users write it
    kind: Literal["a", "b"] = "a",
    counts: dict[str, int] | None = None,
    tree: Tree | None = None,
) -> str:
    """Take everything."""
    return f"{colour.name} {point.x} {places[0]['city']} {order.amount} {maybe} {kind} {counts} {tree}"


WHOLE = {"colour": "red", "point": {"x": 1}, "places": [{"city": "Oslo"}], "order": {"amount": 2}}


def call(made: FunctionTool[..., Any], given: dict[str, Any]) -> Any:
    args, kwargs = made.taken.bind(given)
    return made.function(*args, **kwargs)


def test_types_become_a_schema_and_arguments_become_their_values() -> None:
    made = tool(everything)
    fields = made.input_schema["properties"]
    assert made.input_schema["required"] == ["colour", "point", "places", "order"]
    assert fields["colour"]["enum"] == ["red", "blue"]
    assert fields["point"]["properties"] == {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}
    assert fields["places"]["items"]["required"] == ["city"]
    assert fields["order"]["properties"]["amount"] == {"type": "integer", "minimum": 1, "description": "How many"}
    assert fields["kind"] == {"enum": ["a", "b"], "type": "string", "default": "a"}
    assert check_input(made.input_schema, WHOLE) is None
    assert call(made, WHOLE) == "RED 1 Oslo 2 None a None None"


def test_a_type_that_holds_itself_keeps_its_name_in_the_schema() -> None:
    schema = tool(everything).input_schema
    assert "$ref" in str(schema["properties"]["tree"])
    assert set(schema["$defs"]) == {"Tree"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"order": {"amount": 0}}, "order.amount"),
        ({"colour": "green"}, "colour"),
        ({"places": [{}]}, "places.0.city"),
        ({"more": 1}, "more: there is no such argument"),
    ],
)
def test_an_input_that_does_not_fit_is_told_by_field(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        tool(everything).taken.bind({**WHOLE, **change})


def test_no_name_of_an_argument_hijacks_the_call() -> None:
    def odd(self: int, context: str, name: str, given: str, function: str, args: int, kwargs: int, /, cls: int) -> str:
        return f"{self} {context} {name} {given} {function} {args} {kwargs} {cls}"

    made = tool(odd)
    given = {"self": 1, "context": "c", "name": "n", "given": "g", "function": "f", "args": 2, "kwargs": 3, "cls": 4}
    assert list(made.input_schema["properties"]) == list(given)
    assert call(made, given) == "1 c n g f 2 3 4"


def test_a_parameter_of_the_context_is_known_by_its_type_alone() -> None:
    def who(text: str, me: ToolContext, context: int = 0) -> str:
        return f"{me.agent} {text} {context}"

    made = tool(who)
    assert list(made.input_schema["properties"]) == ["text", "context"]
    with pytest.raises(ValueError, match="no such argument"):
        made.taken.bind({"text": "x", "me": "evil"})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x, "parameter `x` has no type"),
        (lambda *args: args, r"`\*args` cannot be described"),
        (lambda **more: more, r"`\*\*more` cannot be described"),
    ],
)
def test_what_cannot_be_described_is_refused_when_it_is_decorated(function: Callable[..., Any], told: str) -> None:
    with pytest.raises(NotTyped, match=told):
        FunctionTool(function, name="odd")


def test_types_that_are_no_json_are_refused_when_they_are_decorated() -> None:
    def lines(port: socket.socket) -> None: ...
    def back(then: Callable[[int], int]) -> None: ...

    for function, told in ((lines, "socket"), (back, "cannot be expressed in JSON")):
        with pytest.raises(NotTyped, match=told):
            FunctionTool(function)
    for name in ("two words", "mcp__x__y", "", "x" * 65):
        with pytest.raises(NotTyped):
            FunctionTool(everything, name=name)


GOOGLE = """Summary.

More.

Args:
    one (str): The one,
        with more.
    two: The two: really.

Returns:
    three: no parameter
"""
NUMPY = """Summary.

More.

Parameters
----------
one : str
    The one,
    with more.
two
    The two: really.

Returns
-------
three
    no parameter
"""
SPHINX = """Summary.

More.

:param str one: The one,
    with more.
:param two: The two: really.
:returns: no parameter
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_a_docstring_of_each_style_describes_the_parameters(text: str) -> None:
    assert parse_docstring(text) == ("Summary.\n\nMore.", {"one": "The one, with more.", "two": "The two: really."})


def test_annotated_wins_over_the_docstring() -> None:
    def say(text: Annotated[str, "What to say"], loud: Annotated[bool, Field(description="Loudly")] = False) -> None:
        """Say it.

        Args:
            text: something else
        """

    fields = tool(say).input_schema["properties"]
    assert (fields["text"]["description"], fields["loud"]["description"]) == ("What to say", "Loudly")


def test_a_field_of_pydantic_as_the_default_is_the_default_and_the_description() -> None:
    @tool
    def book(
        room: str = Field(description="Its name"),
        hours: int = Field(1, ge=1, le=8),
        names: list[str] = Field(default_factory=list),  # noqa: B008 - as users write it
    ) -> str:
        """Book a room."""
        return f"{room} {hours} {names}"

    assert book.input_schema["required"] == ["room"]
    assert book.input_schema["properties"] == {
        "room": {"description": "Its name", "type": "string"},
        "hours": {"default": 1, "maximum": 8, "minimum": 1, "type": "integer"},
        "names": {"default": [], "items": {"type": "string"}, "type": "array"},
    }
    assert call(book, {"room": "Blue"}) == "Blue 1 []"
    with pytest.raises(ValueError, match="hours: must be less than or equal to 8"):
        call(book, {"room": "Blue", "hours": 9})


def test_null_is_accepted_where_it_is_the_default() -> None:
    @tool
    def book(room: str = None, other: Any = None) -> str:  # noqa: RUF013 # pyright: ignore[reportArgumentType] - as users write it
        """Book a room."""
        return f"{room} {other}"

    null = {"type": "null"}
    properties = book.input_schema["properties"]
    assert properties == {"room": {"anyOf": [{"type": "string"}, null], "default": None}, "other": {"default": None}}
    assert call(book, {"room": None, "other": None}) == "None None"


def test_a_decorated_method_is_refused_with_what_to_write() -> None:
    with pytest.raises(NotTyped, match=r"`self` has no type: .* as `tool\(desk\.book\)`"):

        class Desk:
            @tool
            def book(self, room: str) -> str:
                """Book a room."""
                return room


def test_results_of_every_kind_become_blocks_and_data() -> None:
    assert outcome_of("text").content == "text"
    assert outcome_of(None).content == "Done."
    assert outcome_of(Order(amount=2)).data == {"amount": 2}
    assert outcome_of(Point(1)).data == {"x": 1, "y": 0}
    assert outcome_of([1, 2]).data == {"result": [1, 2]}
    seen = outcome_of(["Look", Image(b"GIF89a", "image/gif")]).content
    assert [one["type"] for one in seen if isinstance(one, dict)] == ["text", "image"]
    told = outcome_of(ToolResult("no", is_error=True, data={"a": 1}, ends_turn=True))
    assert (told.content, told.is_error, told.data, told.ends_turn) == ("no", True, {"a": 1}, True)
    with pytest.raises(ToolRefused, match="not JSON"):
        outcome_of(socket.SocketKind)


class Named(BaseModel):
    name: str


def test_results_of_every_kind_can_be_recorded() -> None:
    name = "caf\udce9"  # as `os.listdir` returns a name that is not UTF-8
    assert outcome_of(name).content == "caf?"
    assert outcome_of({name: [name, float("nan"), Named(name=name)]}).data == {"caf?": ["caf?", None, {"name": "caf?"}]}
    both = outcome_of(ToolResult([name], data={name: Named(name=name)}))
    assert (both.content, both.data) == ([{"type": "text", "text": "caf?"}], {"caf?": {"name": "caf?"}})
    assert outcome_of(ToolResult(name)).content == "caf?"
    endless: list[object] = []
    endless.append(endless)
    for value in (ToolResult("x", data={"k": object()}), ToolResult("x", data={"k": endless}), endless):
        with pytest.raises(ToolRefused, match="not JSON"):
            outcome_of(value)


def test_a_result_of_other_types_is_refused_with_the_name_of_the_field() -> None:
    made: Any = ToolResult
    for name, value in (("data", [1]), ("data", None), ("data", "x"), ("content", None), ("content", 7)):
        with pytest.raises(ToolRefused, match=f"whose `{name}` is {type(value).__name__}: give a"):
            outcome_of(made(**{"content": "x", name: value}))
    outcome = outcome_of(made("x", is_error=1, data=Order(amount=2), ends_turn=None))
    assert (outcome.is_error, outcome.data, outcome.ends_turn) == (True, {"amount": 2}, False)


class Desk:
    """An object with methods, as a program has them."""

    def __init__(self, city: str) -> None:
        self.city = city

    async def __call__(self, room: str) -> str:
        """Book a room."""
        return f"{room} in {self.city}"


def booked(city: str, room: str, hours: int = 1) -> str:
    """Book a room."""
    return f"{room} in {city} for {hours}"


def test_a_partial_and_an_object_that_can_be_called_are_tools() -> None:
    part = tool(name="book")(functools.partial(booked, "Oslo", hours=2))
    assert part.input_schema["properties"] == {
        "room": {"type": "string"},
        "hours": {"type": "integer", "default": 2},
    }
    assert call(part, {"room": "Blue"}) == "Blue in Oslo for 2"
    desk = tool(name="book")(Desk("Rome"))
    assert list(desk.input_schema["properties"]) == ["room"]
    assert asyncio.run(call(desk, {"room": "Red"})) == "Red in Rome"


def test_a_context_may_be_optional_and_is_there_once() -> None:
    def whose(room: str, context: ToolContext | None = None) -> str:
        return f"{room} for {context.agent if context else 'nobody'}"

    made = tool(whose)
    assert list(made.input_schema["properties"]) == ["room"]
    context = ToolContext("s", "alice", "general", "c", Path("/w"))
    args, kwargs = made.taken.bind({"room": "Blue"}, context)
    assert (made.function(*args, **kwargs), made("Blue")) == ("Blue for alice", "Blue for nobody")

    def twice(one: ToolContext, two: ToolContext) -> None: ...

    with pytest.raises(NotTyped, match="`one` and `two` are both a ToolContext"):
        tool(twice)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"read": True}, "tool 'booked': unknown option 'read': choose"),
        ({"effect": "reads"}, "tool 'booked': unknown effect 'reads': choose"),
        ({"concurrency": "none"}, "tool 'booked': unknown concurrency 'none': choose"),
    ],
)
def test_an_option_of_a_tool_that_does_not_exist_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(NotTyped, match=told):
        tool(**options)(booked)


def test_a_tool_is_still_its_function() -> None:
    @tool(reads=True, timeout=3)
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    assert (double(4), double.name, double.description) == (8, "double", "Twice as much.")
    assert (double.effect, double.concurrency, double.timeout) == ("read", "shared", 3)
