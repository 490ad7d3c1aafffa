"""Data classes that compile their methods when they are first used.

`dataclasses.dataclass` compiles up to eight methods for each class when its module is imported, which takes 0.5 ms: a
third of the CPU time of `callboard sessions`. A process uses few of these methods. Here `__init__`, `__hash__`,
and comparisons are compiled at their first use, once for each class, and the other methods are shared.

Otherwise a class is the same as one of `dataclasses`: `field`, `fields`, `replace`, `asdict`, and `is_dataclass` work,
and pydantic builds the same schema (`tests/core/test_lazy_dataclass.py` compares both). There is no `InitVar`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field, fields
from dataclasses import dataclass as eager_dataclass
from typing import Any, TypeVar, dataclass_transform, overload

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
        made = eager_dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only, frozen=checked)(kind)
        asked = {"init": True, "repr": repr, "eq": eq, "order": order, "frozen": frozen}
        for name, value in asked.items():
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


class _Compiled:
    """A method of a class that replaces itself with the compiled one at its first use."""

    __slots__ = ("_name", "_owner")

    def __init__(self, owner: type[Any], name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: Any, kind: type[Any] | None = None) -> Any:
        owner = self._owner
        name = self._name
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
    names = frozenset(one.name for one in fields(kind))

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
    return [getattr(self, one.name) for one in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


class _Made:
    """Default of a parameter whose value a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


def _init(kind: type[Any]) -> Method:
    """Compile `__init__`: its code is that of `dataclasses`."""
    frozen = kind.__dict__["__dataclass_params__"].frozen
    names: dict[str, Any] = {"_made": _MADE, "_set": object.__setattr__}
    positional: list[str] = []
    keyword: list[str] = []
    body: list[str] = []
    every = fields(kind)
    for one in every:
        value = _value(one, names, slots="__slots__" in kind.__dict__)
        if one.init:
            (keyword if one.kw_only else positional).append(one.name + _default(one, names))
        if value:
            body.append(f"_set(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}")
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keyword] if keyword else [])])
    method = _compiled("__init__", parameters, body or ["pass"], names)
    method.__annotations__ = {one.name: one.type for one in every if one.init} | {"return": None}
    return method


def _default(one: Field[Any], names: dict[str, Any]) -> str:
    """Return the default of a parameter of `__init__` as code, with its value in `names`."""
    if one.default is not MISSING:
        names[f"_default_{one.name}"] = one.default
        return f"=_default_{one.name}"
    return "" if one.default_factory is MISSING else "=_made"


def _value(one: Field[Any], names: dict[str, Any], *, slots: bool) -> str:
    """Return the value of a field in `__init__` as code; an empty string for a field that it does not set."""
    if one.default_factory is not MISSING:
        names[f"_factory_{one.name}"] = one.default_factory
        made = f"_factory_{one.name}()"
        return f"{made} if {one.name} is _made else {one.name}" if one.init else made
    if one.init:
        return one.name
    if slots and one.default is not MISSING:  # without slots, the class has it
        names[f"_default_{one.name}"] = one.default
        return f"_default_{one.name}"
    return ""


def _comparison(kind: type[Any], name: str) -> Method:
    compared = [one.name for one in fields(kind) if one.compare]
    ours, others = (_tuple(each, compared) for each in ("self", "other"))
    same = f" return {ours} {_COMPARISONS[name]} {others}"
    return _compiled(name, "self, other", ["if other.__class__ is self.__class__:", same, "return NotImplemented"], {})


def _hash(kind: type[Any]) -> Method:
    hashed = [one.name for one in fields(kind) if (one.compare if one.hash is None else one.hash)]
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
