"""Models that play a test's script: a list of replies for each agent, or a scenario in YAML (docs/rehearsal.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel

from callboard.adapters.models.rehearsal.api import ApiError
from callboard.adapters.models.rehearsal.player import Player
from callboard.adapters.models.rehearsal.replies import SimulatedFault, SimulatedRequest
from callboard.adapters.models.rehearsal.scenario_file import load_scenario
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.types.errors import UsageError
from callboard.types.records import Fault, FaultKind, Json, Usage

Played = Reply | Fault | Callable[[ModelRequest], "Reply | Fault"]


def say(text: str, stop_reason: str = "end_turn") -> Reply:
    """Return a reply of text."""
    return Reply(({"type": "text", "text": text},), stop_reason, Usage(input_tokens=10, output_tokens=5), "scripted")


def use(name: str, given: Json | None = None, *more: tuple[str, Json], text: str = "") -> Reply:
    """Return a reply that calls one or more tools."""
    calls = [(name, given or {}), *more]
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    blocks += [
        {"type": "tool_use", "id": "", "name": tool_name, "input": tool_input} for tool_name, tool_input in calls
    ]
    return Reply(tuple(blocks), "tool_use", Usage(input_tokens=10, output_tokens=5), "scripted")


def fault(kind: str, **more: object) -> Fault:
    """Return a failed call."""
    return Fault.model_validate({"kind": kind, **more})


class ScriptedModel:
    """Model that plays a list of replies for each agent. A repeated call gets the same reply, even after a crash.

    An entry is a `Reply`, a `Fault` (raised; the next attempt of the call gets the next entry), or a function of the
    request. Once an agent's list is used up, its reply is `end`. `counts`: function that returns the size of a request
    in tokens; None: the model cannot count.
    """

    counts: Callable[[ModelRequest], int] | None = None

    def __init__(self, script: Mapping[str, Sequence[Played]], end: str = "(end of script)", delay: float = 0) -> None:
        """Check and store the script. Raises `UsageError` for an entry that is no reply."""
        self._script = _checked(script)
        self._played: dict[tuple[str, str, int], Played] = {}
        self._end = end
        self._delay = delay
        self.requests: list[ModelRequest] = []
        self.failure: Exception | None = None
        """First exception of a function of the script."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self.requests.append(request)
        if self._delay:
            await anyio.sleep(self._delay)
        else:
            await anyio.lowlevel.checkpoint()
        if request.purpose == "summary":
            return say("The summary.")
        played = self._entry(request)
        if callable(played):
            try:
                played = _reply_of(played, request)
            except Exception as error:
                self.failure = self.failure or error
                raise
        if isinstance(played, Fault):
            raise CallFault(played)
        for block in played.blocks:
            if block.get("type") == "text":
                on_delta(Delta("text", str(block["text"])))
        return _named(played, request)

    async def count(self, request: ModelRequest) -> int:
        await anyio.lowlevel.checkpoint()
        if self.counts is None:
            raise CannotCount("a scripted model counts nothing")
        return self.counts(request)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _entry(self, request: ModelRequest) -> Played:
        key = (request.session, request.agent, request.ordinal)
        if key in self._played:
            return self._played[key]
        script = self._script.get(request.agent, [])
        entry = script.pop(0) if script else say(self._end)
        if not isinstance(entry, Fault):
            self._played[key] = entry
        return entry


def _checked(script: Mapping[str, Sequence[Played]]) -> dict[str, list[Played]]:
    """Return a copy of the script. Raises `UsageError` for a wrong type, of which the test would only see a crash."""
    if not isinstance(cast("object", script), Mapping):
        kind = type(script).__name__
        raise UsageError(f'the script is {kind}: give replies by agent, as in {{"lead": [say("Done.")]}}')
    for name, entries in cast("Mapping[object, object]", script).items():
        if not isinstance(entries, list | tuple):
            raise UsageError(f"the script of {name!r} is {type(entries).__name__}: give a list of replies")
        for number, entry in enumerate(cast("Sequence[object]", entries), 1):
            if not (isinstance(entry, Reply | Fault) or callable(entry)):
                raise UsageError(f"the script of {name!r}: {_NO_REPLY.format(f'entry {number} is {entry!r:.80}')}")
    return {name: list(entries) for name, entries in script.items()}


_NO_REPLY = "{}: write say(...), use(...), fault(...), or a function that returns one"


def _reply_of(function: Callable[[ModelRequest], Reply | Fault], request: ModelRequest) -> Reply | Fault:
    made = function(request)
    if not isinstance(cast("object", made), Reply | Fault):
        raise UsageError(f"the script of {request.agent!r}: {_NO_REPLY.format(f'a function returned {made!r:.80}')}")
    return made


def _named(reply: Reply, request: ModelRequest) -> Reply:
    """Return the reply with ids for its calls; a repeated call gets the same ids."""
    blocks = [
        {**block, "id": f"toolu_{request.agent}_{request.ordinal}_{place}"}
        if block.get("type") == "tool_use"
        else block
        for place, block in enumerate(reply.blocks)
    ]
    return Reply(tuple(blocks), reply.stop_reason, reply.usage, request.model, bad_inputs=reply.bad_inputs)


class ScenarioModel(ScriptedModel):
    """Model that plays a scenario file in memory.

    The file is one that `--model rehearsal:FILE` plays over HTTP (docs/rehearsal.md).

    Replies, guards, captures and the kinds of faults are applied; latencies, rates and limits of models are not.
    """

    def __init__(self, source: str | Path) -> None:
        """Load `source`: a file, or YAML text with several lines. Raises `SettingsError` for an invalid scenario."""
        super().__init__({})
        text = source if isinstance(source, str) and "\n" in source else Path(source).read_text("utf-8")
        self._player = Player(load_scenario(text, "scenario" if text is source else str(source)))

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self.requests.append(request)
        await anyio.lowlevel.checkpoint()
        call = _as_asked(request, self._player)
        played = await self._player.play(call)
        if isinstance(played, ApiError):
            raise CallFault(Fault(kind="invalid", status=played.status, message=played.message))
        planned = self._player.fault(call, played)
        if planned is not None and planned.kind != "slow_s":
            raise CallFault(Fault(kind=_kind_of(planned), status=planned.status, message=planned.message))
        blocks = cast("tuple[Json, ...]", tuple(dict(block) for block in played.blocks))
        for block in blocks:
            if block.get("type") == "text":
                on_delta(Delta("text", str(block["text"])))
        return Reply(blocks, played.stop_reason or "end_turn", Usage(input_tokens=10, output_tokens=5), request.model)


def _as_asked(request: ModelRequest, player: Player) -> SimulatedRequest:
    """Convert the request into the form that a scenario reads."""
    body: Json = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "system": json.loads(request.system),
        "tools": json.loads(request.tools),
        "messages": json.loads(b"[" + b",".join(request.messages) + b"]"),
    }
    caller = (request.session, request.agent, str(request.ordinal))
    attempt = player.attempt(request.session, request.agent, request.purpose, str(request.ordinal))
    return SimulatedRequest(*caller, attempt, request.purpose, "", body)


def _kind_of(planned: SimulatedFault) -> FaultKind:
    """Return the fault kind that a client of the service derives from such a fault (docs/model.md)."""
    if planned.status is not None:
        by_status: dict[int, FaultKind] = {429: "rate_limited", 529: "overloaded", 401: "credentials", 413: "too_long"}
        return by_status.get(planned.status, "server" if planned.status >= 500 else "invalid")
    kinds: dict[str, FaultKind] = {
        "drop": "connection",
        "silence_s": "silence",
        "pings_s": "silence",
        "error_event": "overloaded",
        "bad_json": "bad_reply",
        "wrong_shape": "bad_reply",
    }
    return kinds.get(planned.kind, "server")
