"""A mapping of texts that never changes in place and is cheap to grow: what an agent knows of its files. Pure.

A copy of a plain dict costs as much as it holds, for each file that a long session looks at. Here the newest entries
stand apart, and only they are copied, until there are enough of them to be worth a copy of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_NEWEST = 64
"""Entries that stand apart."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keyed(Mapping[str, str]):
    """Equal to every mapping of the same entries. Keys stand in the order in which they first came, as in a dict."""

    _old: Mapping[str, str] = field(default_factory=dict[str, str])
    _new: Mapping[str, str] = field(default_factory=dict[str, str])

    def having(self, key: str, value: str) -> Keyed:
        """With this entry."""
        if len(self._new) < _NEWEST:
            return Keyed(self._old, {**self._new, key: value})
        return Keyed({**self._old, **self._new, key: value})

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
        """In a snapshot it is an object."""
        plain = handler(dict[str, str])
        return core_schema.no_info_after_validator_function(
            Keyed, plain, serialization=core_schema.plain_serializer_function_ser_schema(dict, return_schema=plain)
        )
