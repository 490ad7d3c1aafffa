"""Frozen values that are cheap to change: copies of dataclasses with some fields changed, and an immutable mapping.

Pure. An agent's state and its parts change many times a step. `dataclasses.replace` calls `__init__` each time;
`replace` costs a tenth of that for classes with a `__dict__` (no slots), and as much for the others. It runs no
`__post_init__` of a class with a `__dict__`.

The mapping of texts serves for an agent's file digests. Copying a plain dict costs as much as its size, for each file
that a long session reads. Here the newest entries are separate, and only they are copied, until there are enough of
them to justify a copy of all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")


class _Open:
    """Class with the layout of the frozen ones, whose objects can be filled."""


def replace(value: T, **changes: Any) -> T:
    """Return a copy of `value` with `changes`. Raises `TypeError` for a name that is not a field."""
    try:
        old = value.__dict__
    except AttributeError:  # it has slots (test_a_class_with_slots_is_copied_as_well)
        return cast("T", dataclasses.replace(cast("Any", value), **changes))
    fields = old | changes
    if len(fields) != len(old):
        raise _unknown(value, changes)
    copy: Any = _Open()  # to fill an object of a frozen class past `__setattr__` takes a quarter longer
    copy.__dict__ = fields
    copy.__class__ = value.__class__
    return copy


def finished(value: T, before: T, **changes: Any) -> T:
    """Return `value` with `changes`. `value`: `before`, or what the caller has just made from it with `replace`.

    A value that was just made is changed itself, because nobody else has it, which costs half of another copy. For
    classes with a `__dict__`. Raises `TypeError` for a name that is not a field.
    """
    if value is before:
        return replace(value, **changes)
    fields = value.__dict__
    size = len(fields)
    fields.update(changes)
    if len(fields) != size:
        raise _unknown(before, changes)
    return value


def _unknown(value: object, changes: Mapping[str, Any]) -> TypeError:
    unknown = sorted(set(changes) - set(value.__dict__))
    return TypeError(f"{type(value).__name__} has no field {', '.join(unknown)}")


_NEWEST = 64
"""Maximum number of separate entries."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PersistentMap(Mapping[str, str]):
    """Mapping that equals every mapping with the same entries. Keys are in insertion order, as in a dict."""

    _old: Mapping[str, str] = field(default_factory=dict[str, str])
    _new: Mapping[str, str] = field(default_factory=dict[str, str])

    def with_item(self, key: str, value: str) -> PersistentMap:
        """Return a copy with this entry."""
        if len(self._new) < _NEWEST:
            return PersistentMap(self._old, {**self._new, key: value})
        return PersistentMap({**self._old, **self._new, key: value})

    def __getitem__(self, key: str) -> str:
        return self._new[key] if key in self._new else self._old[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._old
        yield from (key for key in self._new if key not in self._old)

    def __len__(self) -> int:
        return len(self._old) + sum(key not in self._old for key in self._new)

    def __repr__(self) -> str:
        return f"Keyed({dict(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Serialise as an object in a snapshot."""
        plain = handler(dict[str, str])
        return core_schema.no_info_after_validator_function(
            PersistentMap,
            plain,
            serialization=core_schema.plain_serializer_function_ser_schema(dict, return_schema=plain),
        )
