"""Data classes that compile their methods when they are first used.

`dataclasses.dataclass` compiles up to eight methods for each class when its module is imported, which takes 0.5 ms: a
third of the CPU time of `callboard sessions`. A process uses few of these methods. Here `__init__`, `__hash__`,
and comparisons are compiled at their first use, once for each class, and the other methods are shared.

Otherwise a class is the same as one of `dataclasses`: `field`, `fields`, `replace`, `asdict`, and `is_dataclass` work,
and pydantic builds the same schema (`tests/core/test_lazy_dataclass.py` compares both). There is no `InitVar`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, field, fields
from dataclasses import dataclass as eager_dataclass
from typing import Any, TypeVar, dataclass_transform, get_origin, overload

T = TypeVar("T")

Method = Callable[..., Any]


@overload
def dataclass(cls: type[T], /) -> type[T]: ...


@overload
def dataclass(
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
    kw_only: bool = False,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(Field, field))
def dataclass(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
    kw_only: bool = False,
) -> Any:
    """Make a data class of `cls`, like the decorator of this name in `dataclasses`.

    Raises `TypeError` where that one does: for example, for a frozen class that inherits from one that is not.
    """

    def decorated(kind: type[Any]) -> type[Any]:
        kind.__doc__ = kind.__doc__ or kind.__name__  # otherwise `dataclasses` inspects the signature for it
        inherits = any("__dataclass_fields__" in base.__dict__ for base in kind.__mro__[1:])
        checked = frozen and inherits  # `dataclasses` compares `frozen` with that of the bases
        annotations, whole = _bare(kind)
        try:
            made = eager_dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only, frozen=checked)(kind)
        finally:
            annotations.update(whole)
        for name, text in whole.items():
            made.__dict__["__dataclass_fields__"][name].type = text
        options = {"init": True, "repr": repr, "eq": eq, "order": order, "frozen": frozen}
        for name, value in options.items():
            setattr(made.__dict__["__dataclass_params__"], name, value)
        _add(made, "__init__", _Compiled(made, "__init__"))
        if repr:
            _add(made, "__repr__", _repr)
        if eq:
            _add_equality(made, frozen=frozen)
        for name in _COMPARISONS if order else ():
            _add(made, name, _Compiled(made, name))
        if frozen and not checked:
            _freeze(made, slots=slots)
        return made

    return decorated if cls is None else decorated(cls)


def _bare(kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the texts of annotations away, and return the annotations of the class, and what they were.

    `dataclasses` compares each text three times with a pattern to find `ClassVar`, `InitVar`, and `KW_ONLY`, which
    takes half the time of a class. A class with one of these keeps its texts.
    """
    annotations: dict[str, Any] = vars(kind).get("__annotations__", {})
    whole = dict(annotations)
    try:
        text = " ".join(annotations.values())
    except TypeError:  # these are no texts
        return annotations, {}
    if "ClassVar" in text or "InitVar" in text or "KW_ONLY" in text:
        return annotations, {}
    annotations.update(dict.fromkeys(whole))
    return annotations, whole


class _Compiled:
    """A method of a class that replaces itself with the compiled one at its first use.

    `dataclasses` looks at `__hash__` of the class of each default value, without a use of it.
    """

    __slots__ = ("_name", "_owner")

    def __init__(self, owner: type[Any], name: str) -> None:
        self._owner = owner
        self._name = name

    def __call__(self, instance: Any) -> Any:
        return self.__get__(instance)()

    def __get__(self, instance: Any, kind: type[Any] | None = None) -> Any:
        owner = self._owner
        name = self._name
        if instance is None and name == "__hash__":
            return self
        method = _COMPILERS[name](owner) if name in _COMPILERS else _comparison(owner, name)
        method.__module__ = owner.__module__
        method.__qualname__ = f"{owner.__qualname__}.{name}"
        setattr(owner, name, method)
        return method if instance is None else method.__get__(instance, kind)


def _add(kind: type[Any], name: str, method: Any) -> None:
    """Add a method, unless the class itself defines it."""
    if name not in kind.__dict__:
        setattr(kind, name, method)


def _add_equality(kind: type[Any], *, frozen: bool) -> None:
    own = kind.__dict__
    if "__hash__" not in own or (own["__hash__"] is None and "__eq__" in own):  # Python sets it to None for an `__eq__`
        setattr(kind, "__hash__", _Compiled(kind, "__hash__") if frozen else None)  # noqa: B010 - a type says `() -> int`
    _add(kind, "__eq__", _Compiled(kind, "__eq__"))


def _freeze(kind: type[Any], *, slots: bool) -> None:
    """Refuse to set and to delete fields. With slots, copies set their state past this."""
    names = frozenset(entry.name for entry in fields(kind))

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807 - a method
        if type(self) is kind or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(kind, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807 - a method
        if type(self) is kind or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(kind, self).__delattr__(name)

    _add(kind, "__setattr__", __setattr__)
    _add(kind, "__delattr__", __delattr__)
    if slots:
        _add(kind, "__getstate__", _getstate)
        _add(kind, "__setstate__", _setstate)


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, entry.name) for entry in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for entry, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, entry.name, value)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    values = (f"{entry.name}={getattr(self, entry.name)!r}" for entry in fields(self) if entry.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


class _Made:
    """Default of a parameter whose value a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


_FEW = 2
"""Most fields of a frozen class that are set one by one past `__setattr__`."""


def _init(kind: type[Any]) -> Method:
    """Compile `__init__`: its code is that of `dataclasses`, except for frozen classes with slots (`_filled`)."""
    frozen = kind.__dict__["__dataclass_params__"].frozen
    names: dict[str, Any] = {"_made": _MADE, "_set": object.__setattr__}
    positional: list[str] = []
    keyword: list[str] = []
    values: dict[str, str] = {}
    every = fields(kind)
    for entry in every:
        value = _value(entry, names, slots="__slots__" in kind.__dict__)
        if entry.init:
            (keyword if entry.kw_only else positional).append(entry.name + _default(entry, names))
        if value:
            values[entry.name] = value
    body = [f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}" for name, value in values.items()]
    if frozen and "__slots__" in kind.__dict__ and len(values) > _FEW and kind.__bases__ == (object,):
        body = _filled(kind, values, names, body)
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keyword] if keyword else [])])
    method = _compiled("__init__", parameters, body or ["pass"], names)
    method.__annotations__ = {entry.name: entry.type for entry in every if entry.init} | {"return": None}
    return method


def _filled(kind: type[Any], values: Mapping[str, str], names: dict[str, Any], body: Sequence[str]) -> list[str]:
    """Return the code that sets the slots of a frozen class while the object is of an open class of the same layout.

    To set a field past `__setattr__` takes five times as long as to assign it: 10 us in place of 2.6 for 24 fields. An
    object of a subclass, which may have another layout, is filled by `body`.
    """
    names["_kind"] = kind
    names["_become"] = object.__dict__["__class__"].__set__
    names["_open"] = type(kind.__name__, (), {"__slots__": kind.__dict__["__slots__"]})
    return [
        "if self.__class__ is not _kind:",
        *(f" {line}" for line in body),
        "else:",
        " _become(self, _open)",
        *(f" self.{name} = {value}" for name, value in values.items()),
        " self.__class__ = _kind",
    ]


def _default(entry: Field[Any], names: dict[str, Any]) -> str:
    """Return the default of a parameter of `__init__` as code, with its value in `names`."""
    if entry.default is not MISSING:
        names[f"_default_{entry.name}"] = entry.default
        return f"=_default_{entry.name}"
    return "" if entry.default_factory is MISSING else "=_made"


def _value(entry: Field[Any], names: dict[str, Any], *, slots: bool) -> str:
    """Return the value of a field in `__init__` as code; an empty string for a field that it does not set."""
    if entry.default_factory is not MISSING:
        # `dict[str, int]()` makes the same as `dict()`, in ten times as long.
        names[f"_factory_{entry.name}"] = get_origin(entry.default_factory) or entry.default_factory
        made = f"_factory_{entry.name}()"
        return f"{made} if {entry.name} is _made else {entry.name}" if entry.init else made
    if entry.init:
        return entry.name
    if slots and entry.default is not MISSING:  # without slots, the class has it
        names[f"_default_{entry.name}"] = entry.default
        return f"_default_{entry.name}"
    return ""


def _comparison(kind: type[Any], name: str) -> Method:
    compared = [entry.name for entry in fields(kind) if entry.compare]
    left_side, right_side = (_tuple(each, compared) for each in ("self", "other"))
    same = f" return {left_side} {_COMPARISONS[name]} {right_side}"
    return _compiled(name, "self, other", ["if other.__class__ is self.__class__:", same, "return NotImplemented"], {})


def _hash(kind: type[Any]) -> Method:
    hashed = [entry.name for entry in fields(kind) if (entry.compare if entry.hash is None else entry.hash)]
    return _compiled("__hash__", "self", [f"return hash({_tuple('self', hashed)})"], {})


_COMPARISONS = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_COMPILERS = {"__init__": _init, "__hash__": _hash}


def _tuple(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def _compiled(name: str, parameters: str, body: list[str], names: dict[str, Any]) -> Method:
    lines = "".join(f" {line}\n" for line in body)
    made: dict[str, Any] = {}
    exec(f"def {name}({parameters}):\n{lines}", names, made)  # noqa: S102 - names of fields, which are identifiers
    return made[name]
