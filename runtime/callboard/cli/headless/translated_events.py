"""Raw events of a streaming reply, translated for clients while they arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from callboard.core.hooks.payloads import FIELDS, compatible_name, to_compatible
from callboard.types.records import Json


class TranslatedEvents:
    """Raw events of a streaming reply, with calls under the clients' names.

    The input of a call is sent as it arrives, with renamed fields. An input that has another form for clients is sent
    in one piece when it is complete, since no part of it can be translated alone.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._calls: dict[Any, tuple[str, list[str]]] = {}
        self._inputs: dict[Any, PartialInput] = {}

    def translate(self, event: Json) -> Iterator[Json]:
        """Yield the events that replace this one for clients."""
        index = event.get("index")
        kind = event.get("type")
        block = cast("Json", event.get("content_block") or {})
        if kind == "message_start":
            self._calls.clear()
            self._inputs.clear()
        if kind == "content_block_start" and block.get("type") == "tool_use":
            self._begin(index, str(block.get("name")))
            yield {**event, "content_block": {**block, "name": compatible_name(str(block.get("name"))), "input": {}}}
        elif kind == "content_block_delta" and index in self._inputs:
            if piece := self._inputs[index].feed(_piece_of(event)):
                yield {**event, "delta": {"type": "input_json_delta", "partial_json": piece}}
        elif kind == "content_block_delta" and index in self._calls:
            self._calls[index][1].append(_piece_of(event))
        elif kind == "content_block_stop" and index in self._calls:
            name, pieces = self._calls.pop(index)
            delta = {"type": "input_json_delta", "partial_json": self._input(name, "".join(pieces))}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield event
        else:
            yield event

    def _begin(self, index: Any, name: str) -> None:
        if name in _RESHAPED:
            self._calls[index] = (name, [])
            return
        renamed = FIELDS.get(name, {})
        changed = {own: partial(self._value, name, own) for own, other in renamed.items() if other in _CHANGED}
        self._inputs[index] = PartialInput(renamed, changed)

    def _value(self, name: str, field: str, value: object) -> object:
        """Return the value of one field as clients read it."""
        return to_compatible(name, {field: value}, self._folder)[FIELDS[name][field]]

    def _input(self, name: str, raw: str) -> str:
        try:
            tool_input = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            return raw
        if not isinstance(tool_input, dict):
            return raw
        return json.dumps(to_compatible(name, cast("Json", tool_input), self._folder))


_RESHAPED = frozenset({"ask_person", "multi_edit"})
"""Tools whose whole input has another form for clients."""
_CHANGED = frozenset({"file_path", "notebook_path", "timeout"})
"""Fields, under the clients' names, whose values differ for clients."""


def _piece_of(event: Json) -> str:
    return str(cast("Json", event.get("delta") or {}).get("partial_json") or "")


class PartialInput:
    """JSON of one call's input, translated while it arrives.

    A field of the top level is renamed as soon as its name is complete. A value is passed on as it arrives, except the
    value of a field in `changed`, which is replaced once it is complete.
    """

    def __init__(self, names: Mapping[str, str], changed: Mapping[str, Callable[[object], object]]) -> None:
        """`names`: own name -> the clients' name. `changed`: own name -> function that returns the clients' value."""
        self._names = names
        self._changed = changed
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._in_key = False
        self._key: str | None = None
        self._kept: str | None = None

    def feed(self, piece: str) -> str:
        """Return the translation of the next characters, as far as it is known."""
        return "".join(map(self._next, piece))

    def _next(self, character: str) -> str:
        if self._in_string:
            return self._inside(character)
        if character == '"':
            self._in_string = True
            self._in_key = self._depth == 1 and self._key is None
            if self._in_key:
                self._kept = ""
            return self._passed(character)
        self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(character, 0)
        if (character in "}]" and self._depth == 0) or (character == "," and self._depth == 1):
            return self._value() + character
        if character == ":" and self._depth == 1 and self._key in self._changed and self._kept is None:
            self._kept = ""
            return character
        return self._passed(character)

    def _inside(self, character: str) -> str:
        ends = character == '"' and not self._escaped
        self._escaped = character == "\\" and not self._escaped
        self._in_string = not ends
        passed = self._passed(character)
        if not (ends and self._in_key):
            return passed
        self._key = _loaded(self._kept or "")
        self._kept = None
        self._in_key = False
        return json.dumps(self._names.get(self._key, self._key))

    def _passed(self, character: str) -> str:
        if self._kept is None:
            return character
        self._kept += character
        return ""

    def _value(self) -> str:
        """Return the replaced value that has just ended; empty if it was passed on."""
        key = self._key
        kept = self._kept
        self._key = self._kept = None
        if kept is None or key is None:
            return ""
        try:
            return json.dumps(self._changed[key](json.loads(kept)))
        except ValueError:
            return kept


def _loaded(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
