"""Tools as clients of this protocol know them: their names, and the fields of their inputs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from callboard.core.hooks.names import compatible_name, to_compatible
from callboard.faces.stream_parts import Spoken
from callboard.words.values import Json

LISTED = {"task": "Task", "spawn_teammate": "Agent"}
"""The list of tools in `system/init` still has the older name of the tool that starts agents."""


def block_told(block: Json, folder: str) -> Json:
    """A block of a reply, a call in the clients' words. `folder`: absolute, what paths in it are relative to."""
    if block.get("type") != "tool_use":
        return block
    name, given = str(block["name"]), cast("Json", block["input"])
    return {**block, "name": compatible_name(name), "input": to_compatible(name, given, folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpoken(Spoken):
    """Messages for a client: tools under the names and with the fields that it knows."""

    folder: str
    """Where the lead works: absolute."""
    streaming: EventsTold

    def tools(self, names: Sequence[str]) -> list[str]:
        """See `Spoken.tools`."""
        return list(dict.fromkeys(LISTED.get(name, compatible_name(name)) for name in names))

    def block(self, block: Json) -> Json:
        """See `Spoken.block`."""
        return block_told(block, self.folder)

    def call(self, call: Json) -> Json:
        """See `Spoken.call`."""
        name = str(call["tool_name"])
        told: Json = {**call, "tool_name": compatible_name(name)}
        if "tool_input" in call:
            told["tool_input"] = to_compatible(name, cast("Json", call["tool_input"]), self.folder)
        return told

    def events(self, event: Json) -> Iterable[Json]:
        """See `Spoken.events`."""
        return self.streaming.told(event)


class EventsTold:
    """The raw events of a streaming reply, calls in the clients' words: the input of a call comes in one piece, when it
    is whole, since no part of it can be translated alone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._calls: dict[Any, tuple[str, list[str]]] = {}

    def told(self, event: Json) -> Iterator[Json]:
        """What is told at this event."""
        index, kind = event.get("index"), event.get("type")
        block = cast("Json", event.get("content_block") or {})
        if kind == "message_start":
            self._calls.clear()
        if kind == "content_block_start" and block.get("type") == "tool_use":
            name = str(block.get("name"))
            self._calls[index] = (name, [])
            yield {**event, "content_block": {**block, "name": compatible_name(name), "input": {}}}
        elif kind == "content_block_delta" and index in self._calls:
            self._calls[index][1].append(str(cast("Json", event.get("delta") or {}).get("partial_json") or ""))
        elif kind == "content_block_stop" and index in self._calls:
            name, pieces = self._calls.pop(index)
            delta = {"type": "input_json_delta", "partial_json": self._input(name, "".join(pieces))}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield event
        else:
            yield event

    def _input(self, name: str, raw: str) -> str:
        try:
            given = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            return raw
        if not isinstance(given, dict):
            return raw
        return json.dumps(to_compatible(name, cast("Json", given), self._folder))
