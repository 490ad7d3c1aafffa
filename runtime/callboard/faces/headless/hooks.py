"""Hooks that a client answers: its `initialize` names callbacks, and each becomes a handler of the one registry.

A callback is told what a command hook would be told, and answers as one does (docs/hooks.md, "Commands"). One that
fails, is too late, or whose client has gone, has failed: that stops the call that it guards, unless its matcher says
`onFailure: continue`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import anyio

from callboard.adapters.hook_files import HookEntry
from callboard.core.hooks.output import output_meaning
from callboard.core.hooks.rules import Misfit, read_matcher
from callboard.core.hooks.subjects import MATCHED
from callboard.faces.headless.client import Client, ClientGone, ClientRefused
from callboard.ports.hooks import Terms
from callboard.words.errors import UsageError
from callboard.words.hooks import FITTING, HandlerResult
from callboard.words.values import Json

SECONDS = 60.0
"""What a callback has for an answer, if its matcher says nothing."""
LONGEST = 86_400.0

Heard = Callable[[str, Json], None]
"""Told of each callback as it begins and ends: the subtype (`hook_started`, `hook_response`) and the fields."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientHook:
    """A `HookHandler` that asks the client."""

    client: Client
    callback: str
    timeout: float | None
    heard: Heard

    @property
    def name(self) -> str:
        """As people know it."""
        return f"callback {self.callback}"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Ask once. See `HookHandler.run`."""
        event = str(event_json.get("hook_event_name"))
        about: Json = {"hook_id": self.callback, "hook_name": f"{event}:{self.callback}", "hook_event": event}
        self.heard("hook_started", about)
        result = HandlerResult(fault=f"no answer within {timeout:g} s")
        outcome: Json = {"output": "", "stdout": "", "stderr": "", "outcome": "error"}
        with anyio.move_on_after(timeout):
            try:
                said = json.dumps(await self._asked(event_json))
            except ClientGone:
                result = HandlerResult(fault="the client that answers it has gone")
            except ClientRefused as refused:
                result = HandlerResult(fault=str(refused))
            else:
                result = output_meaning(event_json, 0, said, "")
                outcome |= {"output": said, "stdout": said}
        ending = {"stderr": result.fault} if result.fault else {"outcome": "success", "exit_code": 0}
        self.heard("hook_response", about | outcome | ending)
        return result

    async def _asked(self, event_json: Json) -> Json:
        request: Json = {"subtype": "hook_callback", "callback_id": self.callback, "input": event_json}
        return await self.client.ask({**request, "tool_use_id": event_json.get("tool_use_id")})


@dataclass(frozen=True, slots=True)
class HooksGiven:
    """The hooks of an `initialize`, and what of them is not taken, a line each."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[str, ...] = ()


def hooks_given(given: object, client: Client, heard: Heard) -> HooksGiven:
    """The hooks that an `initialize` names: event -> groups of `matcher`, `hookCallbackIds`, `timeout` (seconds) and
    `onFailure`. Raises `UsageError` for what is no such mapping."""
    if given is None:
        return HooksGiven()
    entries: list[HookEntry] = []
    notes: list[str] = []
    for event, group in _groups(given):
        if event not in FITTING:
            notes.append(f"the hook event {event} never happens here: its callbacks are not asked")
            continue
        matcher = group.get("matcher") or ""
        if not isinstance(matcher, str):
            raise UsageError(f"initialize: the matcher of a hook of {event} is not a text")
        if matcher and event not in MATCHED:
            notes.append(f"{event} has no matcher: {matcher!r} is not heeded")
            matcher = ""
        try:
            read_matcher(matcher)
        except Misfit as misfit:
            raise UsageError(f"initialize: {misfit}") from misfit
        terms, seconds = Terms(fail_open=group.get("onFailure") == "continue"), _seconds(group.get("timeout"), event)
        for callback in _callbacks(group, event):
            entries.append(HookEntry(event, ClientHook(client, callback, seconds, heard), matcher, terms))
    return HooksGiven(tuple(entries), tuple(notes))


def _groups(given: object) -> Iterator[tuple[str, Json]]:
    for event, groups in cast("dict[str, object]", given).items() if isinstance(given, dict) else [("", None)]:
        if not isinstance(groups, list):
            raise UsageError("initialize: `hooks` maps each event to a list of groups with `hookCallbackIds`")
        for group in cast("list[object]", groups):
            if not isinstance(group, dict):
                raise UsageError(f"initialize: a group of hooks of {event} is an object with `hookCallbackIds`")
            yield event, cast("Json", group)


def _callbacks(group: Json, event: str) -> list[str]:
    listed: Any = group.get("hookCallbackIds")
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in cast("list[object]", listed)):
        raise UsageError(f"initialize: `hookCallbackIds` of {event} is a list of texts")
    return cast("list[str]", listed)


def _seconds(given: object, event: str) -> float:
    if given is None:
        return SECONDS
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST:
        raise UsageError(f"initialize: the timeout of a hook of {event} is a number of seconds above 0, at most a day")
    return float(given)
