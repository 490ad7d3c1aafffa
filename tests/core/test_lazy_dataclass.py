"""Data classes with methods compiled at first use behave as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from callboard.types.lazy_dataclass import dataclass

EAGER = dataclasses.dataclass
OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "order": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"eq": False, "repr": False},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda one: "-".join(one) or "none")


def ones() -> list[int]:
    return [1]


def classes(decorator: Callable[..., Any], options: dict[str, bool]) -> type[Any]:
    """A class with each kind of field."""

    @decorator(**options)
    class Sample:
        """A sample."""

        name: str
        size: int = field(default=1, metadata={"unit": "bytes"})
        parts: list[str] = field(default_factory=list[str])
        secret: str = field(default="", repr=False, compare=False)
        late: int = field(init=False, default=7)
        made: list[int] = field(init=False, default_factory=ones, hash=False)
        named: bool = field(default=False, kw_only=True)

        def doubled(self) -> int:
            return self.size * 2

    return Sample


def both(options: dict[str, bool]) -> tuple[type[Any], type[Any]]:
    return classes(dataclass, options), classes(EAGER, options)


def outcome(act: Callable[[], object]) -> object:
    try:
        return act()
    except (TypeError, AttributeError, ValidationError) as error:
        return type(error), str(error)


@each_option
def test_a_value_is_made_with_the_same_parameters_and_errors(options: dict[str, bool]) -> None:
    lazy, eager = both(options)
    calls: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "a", "size": 3, "parts": ["x"], "secret": "s", "named": True},
        {},
        {"name": "a", "other": 1},
        {"name": "a", "late": 1},
    ]
    for values in calls:
        made = [outcome(lambda kind=kind, values=values: dataclasses.asdict(kind(**values))) for kind in (lazy, eager)]
        assert made[0] == made[1]
    assert str(inspect.signature(lazy)) == str(inspect.signature(eager))
    assert outcome(lambda: dataclasses.asdict(lazy("a", 2))) == outcome(lambda: dataclasses.asdict(eager("a", 2)))


@each_option
def test_a_class_is_described_the_same(options: dict[str, bool]) -> None:
    lazy, eager = both(options)
    assert [repr(one) for one in dataclasses.fields(lazy)] == [repr(one) for one in dataclasses.fields(eager)]
    assert repr(lazy.__dataclass_params__) == repr(eager.__dataclass_params__)
    assert lazy.__match_args__ == eager.__match_args__
    assert lazy.__doc__ == eager.__doc__
    assert getattr(lazy, "__slots__", None) == getattr(eager, "__slots__", None)
    assert (lazy.__hash__ is None) == (eager.__hash__ is None)
    assert lazy.__init__.__qualname__ == eager.__init__.__qualname__
    assert {name for name in vars(eager) if name.startswith("__")} == {n for n in vars(lazy) if n.startswith("__")}


@each_option
def test_values_compare_and_hash_the_same(options: dict[str, bool]) -> None:
    compared: list[list[object]] = []
    for kind in both(options):
        values = [kind(name="a"), kind(name="a", secret="s"), kind(name="a", size=2), kind(name="b")]
        hashed = dataclasses.replace(values[0], parts=())
        compared.append(
            [
                [one == other for one in values for other in values],
                [outcome(lambda one=one, other=other: one < other) for one in values for other in values],
                outcome(lambda one=values[0]: (type(hash(one)), hash(one) == object.__hash__(one))),
                outcome(lambda one=hashed: hash(one) == hash(dataclasses.replace(one))),
                values[0] == "other",
            ]
        )
    assert compared[0] == compared[1]


@each_option
def test_values_are_shown_the_same(options: dict[str, bool]) -> None:
    shown = [repr(kind(name="a", parts=["x"], secret="s")).split(" object at ")[0] for kind in both(options)]
    assert shown[0] == shown[1]


@each_option
def test_fields_are_set_and_deleted_or_refused_the_same(options: dict[str, bool]) -> None:
    names = (
        ["size", "late"] if options.get("slots") else ["size", "unknown"]
    )  # `dataclasses` fails at others with slots
    acts = [lambda one, name=name: setattr(one, name, 5) for name in names]
    for act in (*acts, *(lambda one, name=name: delattr(one, name) for name in names)):
        results = [outcome(lambda kind=kind, act=act: act(kind(name="a"))) for kind in both(options)]
        assert results[0] == results[1]


@each_option
def test_copies_and_replaced_values_are_whole(options: dict[str, bool]) -> None:
    for kind in both(options):
        value = kind(name="a", parts=["x"])
        for other in (copy.copy(value), copy.deepcopy(value), dataclasses.replace(value, name="a")):
            assert dataclasses.asdict(other) == dataclasses.asdict(value)


@dataclass(frozen=True, slots=True)
class Pickled:
    """A class that pickle finds by its name."""

    name: str
    size: int = 0


def test_a_value_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled("a", 2))) == Pickled("a", 2)


@each_option
def test_pydantic_builds_the_same_schema(options: dict[str, bool]) -> None:
    lazy, eager = (TypeAdapter(kind) for kind in both(options))
    assert lazy.json_schema() == eager.json_schema()
    text = b'{"name": "a", "size": "4", "parts": ["x"], "named": true}'
    assert lazy.dump_json(lazy.validate_json(text)) == eager.dump_json(eager.validate_json(text))
    assert outcome(lambda: lazy.validate_json(b"{}")) == outcome(lambda: eager.validate_json(b"{}"))


def test_a_method_that_the_class_defines_is_kept() -> None:
    for decorator in (dataclass, EAGER):

        @decorator(frozen=True)
        class Own:
            name: str

            def __init__(self, name: str) -> None:
                object.__setattr__(self, "name", name.upper())

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Own) and self.name[0] == other.name[0]

            def __hash__(self) -> int:
                return hash(self.name[0])

            def __repr__(self) -> str:
                return "own"

        assert Own("ab") == Own("ac")
        assert len({Own("ab"), Own("ac")}) == 1
        assert repr(Own("ab")) == "own"


def test_an_own_equality_alone_leaves_the_hash_of_the_fields() -> None:
    for decorator in (dataclass, EAGER):

        @decorator(frozen=True)
        class Own:  # noqa: PLW1641 - the decorator adds the method
            name: str

            def __eq__(self, other: object) -> bool:
                return True

        assert hash(Own("a")) == hash(("a",))


def test_the_end_of_making_a_value_runs() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

    assert Checked(1).size == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_a_class_variable_is_no_field_and_each_field_keeps_the_text_of_its_type() -> None:
    found: list[object] = []
    for decorator in (dataclass, EAGER):

        @decorator(frozen=True, slots=True)
        class Shared:
            name: str
            most: ClassVar[int] = 3
            few: typing.ClassVar[list[int]] = [4]

        @decorator(frozen=True)
        class Named:
            name: str
            parts: list[Unknown] = field(default_factory=list)  # noqa: F821 - a name that only type checkers need

        kinds: list[Any] = [Shared, Named]
        found.append(
            [
                ([(one.name, one.type) for one in dataclasses.fields(kind)], kind.__annotations__, kind("a"))
                for kind in kinds
            ]
        )
        found[-1] = repr(found[-1])
    assert found[0] == found[1]
    assert "list[Unknown]" in str(found[0])


def test_a_default_value_does_not_compile_the_hash_of_its_class() -> None:
    @dataclass(frozen=True)
    class Part:
        name: str

    @dataclass(frozen=True)
    class Whole:
        part: Part = Part("a")

    assert not inspect.isfunction(vars(Part)["__hash__"])
    assert Part.__hash__(Part("a")) == hash(Whole().part) == hash(("a",))
    assert inspect.isfunction(vars(Part)["__hash__"])
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass
        class _Wrong:
            parts: dict[str, int] = {}  # noqa: RUF012 - what is refused


def test_a_class_inherits_fields_and_methods() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        name: str

    @dataclass(frozen=True, slots=True)
    class Wider(Base):
        size: int = 3

    class Plain(Base):
        """Not decorated."""

    assert Wider("a") == Wider("a", 3) != Wider("a", 4)
    assert Wider("a") != Base("a")
    assert Plain("a").name == "a"
    assert repr(Wider("a")).endswith("Wider(name='a', size=3)")
    with pytest.raises(FrozenInstanceError):
        Wider("a").name = "b"


def test_a_plain_class_may_add_attributes_to_a_frozen_one_and_cannot_change_its_fields() -> None:
    changed: list[list[object]] = []
    for decorator in (dataclass, EAGER):

        @decorator(frozen=True)
        class Base:
            name: str

        class Noted(Base):
            pass

        noted: Any = Noted("a")
        noted.note = "b"
        del noted.note
        refusals = (outcome(lambda act=act, noted=noted: act(noted, "name")) for act in (drop, put))
        changed.append([hasattr(noted, "note"), *refusals])
    assert changed[0] == changed[1]
    assert changed[0][1] == (FrozenInstanceError, "cannot delete field 'name'")


def drop(value: object, name: str) -> None:
    delattr(value, name)


def put(value: object, name: str) -> None:
    setattr(value, name, "")


def test_a_class_of_the_library_may_inherit_from_a_lazy_one() -> None:
    """As a program may do with a public class of ours."""

    @dataclass(frozen=True)
    class Base:
        name: str

    @EAGER(frozen=True)
    class Wider(Base):
        size: int = 3

    assert Wider("a") == Wider("a", 3)


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_and_changeable_classes_do_not_inherit_from_each_other(frozen: bool) -> None:
    @dataclass(frozen=not frozen)
    class Base:
        name: str

    with pytest.raises(TypeError, match="frozen"):

        @dataclass(frozen=frozen)
        class Wider(Base):
            size: int = 3


def test_methods_are_compiled_at_their_first_use() -> None:
    @dataclass(frozen=True, slots=True)
    class Sample:
        name: str

    assert not any(inspect.isfunction(vars(Sample)[name]) for name in ("__init__", "__eq__", "__hash__"))
    assert Sample("a") == Sample("a")
    assert [inspect.isfunction(vars(Sample)[name]) for name in ("__init__", "__eq__", "__hash__")] == [
        True,
        True,
        False,
    ]
    assert hash(Sample("a")) == hash(("a",))


def test_a_value_inside_itself_is_shown_once() -> None:
    @dataclass
    class Node:
        inner: list[Node]

    node = Node([])
    node.inner.append(node)
    assert "..." in repr(node)
