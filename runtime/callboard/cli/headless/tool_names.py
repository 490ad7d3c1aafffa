"""Tools under the names and input fields that clients of this protocol know. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from callboard.cli.headless.messages import Spoken
from callboard.core.hooks.tool_fields import compatible_name, to_compatible
from callboard.types.records import Json

LISTED = {"task": "Task", "spawn_teammate": "Agent"}
"""Older names of the tools that start agents, still used in the tools list of `system/init`."""


def block_told(block: Json, folder: str) -> Json:
    """Return a block of a reply, with calls under the clients' names. `folder`: the absolute path to which relative
    paths in it refer."""
    if block.get("type") != "tool_use":
        return block
    name = str(block["name"])
    tool_input = cast("Json", block["input"])
    return {**block, "name": compatible_name(name), "input": to_compatible(name, tool_input, folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpoken(Spoken):
    """Messages for a client: tools with the names and fields that it knows."""

    folder: str
    """Lead's working folder, absolute."""
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
        renamed: Json = {**call, "tool_name": compatible_name(name)}
        if "tool_input" in call:
            renamed["tool_input"] = to_compatible(name, cast("Json", call["tool_input"]), self.folder)
        return renamed

    def events(self, event: Json) -> Iterable[Json]:
        """See `Spoken.events`."""
        return self.streaming.translate(event)


class EventsTold:
    """Raw events of a streaming reply, with calls under the clients' names. The input of a call is sent in one piece
    when it is complete, since no part of it can be translated alone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._calls: dict[Any, tuple[str, list[str]]] = {}

    def translate(self, event: Json) -> Iterator[Json]:
        """Yield the events that replace this one for clients."""
        index = event.get("index")
        kind = event.get("type")
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
            tool_input = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            return raw
        if not isinstance(tool_input, dict):
            return raw
        return json.dumps(to_compatible(name, cast("Json", tool_input), self._folder))
