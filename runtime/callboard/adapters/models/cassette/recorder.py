"""Recording and replay of a session: `--record FILE`, `--model cassette:FILE`.

An exchange is identified by agent, purpose, ordinal and attempt, so agents may run in any order. A replay compares each
request with the recorded one, stops at the first difference and reports it. `Tape` contains the rest of a run that no
model decides: results of tools, answers, random draws and deliveries (recorded and replayed by `tool_results`,
`wrappers` and `mail_order` of this package).
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

import anyio

from callboard.adapters.models.cassette.format import (
    WHOLE,
    ComparableRequest,
    LineWriter,
    Placeholders,
    RequestNormalizer,
    RequestPacking,
    difference,
    read_lines,
)
from callboard.ports.model import CallFault, CannotCount, Delta, Model, ModelRequest, OnDelta, Reply
from callboard.types.errors import SettingsError
from callboard.types.records import Fault, Json, Usage

Kind = Literal[
    "tool",
    "changes",
    "ruling",
    "command",
    "answer",
    "background",
    "ends",
    "losses",
    "mail",
    "envelope",
    "known",
    "facts",
    "reminders",
    "count",
    "commit",
    "servers",
]
"""Kinds of recorded values.

- tool: the end of a call.
- changes: its changes to its agent.
- ruling: the decision about a call.
- command: the end of a command in the text of a skill.
- answer: the answer to a request.
- background: the end of a command, by its output file.
- ends: the first and last lines of that file.
- losses: the work in the worktree of a subagent at its end.
- mail: a delivery.
- envelope: an envelope sent by a schedule.
- known: the runtime's knowledge at a compaction.
- facts: the description of the machine in an agent's prompt.
- reminders: the reminders of an agent's surroundings at the start of a turn.
- count: the service's token count of a request.
- commit: the commit checked out for a plan, or at its answer.
"""
KINDS = get_args(Kind)
_Key = tuple[str, str, int]
"""Agent, purpose, ordinal."""
LONGEST_WAIT = 1.0
"""Most seconds that a replay waits when the service had stated a wait."""


class Tape(Protocol):
    """Record of everything that a run received from outside besides the model.

    A recording returns the given value, a replay the recorded one.

    Draws and ids are replayed in the order in which their caller took them. When they are used up, the real value is
    returned; the next request then shows any difference. All other values have a key.
    """

    def draw(self, taker: str, real: float) -> float: ...
    def new_id(self, taker: str, real: str) -> str: ...
    def value_of(self, kind: Kind, key: str) -> Json | None:
        """Return the last value recorded under this key; None while recording, or without such a value."""
        ...

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        """Record the value; do nothing in a replay.

        Never raises: if the disk refuses it, the next model call reports that.
        """
        ...


class Recording:
    """A cassette being recorded: the model calls of `RecordingModel`, and a `Tape`."""

    def __init__(self, path: Path, places: Placeholders, header: Json) -> None:
        """Create the cassette.

        Raises `UsageError` if the file exists or cannot be created. `header`: see `Cassette`.
        """
        self.places = places
        self._lines = LineWriter(path, header)
        self._asking: dict[str, RequestNormalizer] = defaultdict(lambda: RequestNormalizer(places))
        self._packing: dict[str, RequestPacking] = defaultdict(RequestPacking)
        self._refused: OSError | None = None

    def call(self, request: ModelRequest, outcome: Json) -> None:
        """Record one exchange. Raises OSError if the disk refuses it, or has refused an earlier line."""
        request_text = self._asking[request.agent].recorded_form(request)
        self._write(
            {
                "call": request.ordinal,
                "agent": request.agent,
                "purpose": request.purpose,
                "attempt": request.attempt,
                "digest": request_text.digest,
                "request": self._packing[request.agent].pack(request_text),
                **cast("Json", self.places.hide(outcome)),
            }
        )
        if self._refused is not None:
            raise self._refused

    def draw(self, taker: str, real: float) -> float:
        self._write({"draw": real, "taker": taker})
        return real

    def new_id(self, taker: str, real: str) -> str:
        self._write({"id": real, "taker": taker})
        return real

    def value_of(self, kind: Kind, key: str) -> Json | None:
        return None

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        self._write(cast("Json", self.places.hide({kind: key, "value": value})))

    def close(self) -> None:
        """Stop recording. Idempotent."""
        self._lines.close()

    def _write(self, line: Json) -> None:
        try:
            self._lines.write(line)  # one append to a local file is too short for a thread
        except OSError as error:
            self._refused = self._refused or error


class RecordingModel:
    """A model whose exchanges are recorded, including failed ones."""

    def __init__(self, inner: Model, recording: Recording) -> None:
        self._inner = inner
        self._recording = recording

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Call the inner model.

        If the disk refuses the line, an `invalid` fault is raised, because an incomplete cassette is useless.
        """
        try:
            reply = await self._inner.complete(request, on_delta)
        except CallFault as failed:
            self._keep(request, {"fault": failed.fault.model_dump(mode="json"), "partial": failed.partial})
            raise
        self._keep(request, {"reply": _plain(reply)})
        return reply

    async def count(self, request: ModelRequest) -> int:
        """Count with the inner model; a failure to count is recorded too."""
        try:
            tokens = await self._inner.count(request)
        except CannotCount as no:
            fault = {"fault": no.fault.model_dump(mode="json")} if no.fault else {}
            self._recording.keep("count", _count_key(request), {"why": str(no), **fault})
            raise
        self._recording.keep("count", _count_key(request), {"tokens": tokens})
        return tokens

    async def aclose(self) -> None:
        """Close the inner model and the cassette."""
        self._recording.close()
        await self._inner.aclose()

    def _keep(self, request: ModelRequest, outcome: Json) -> None:
        try:
            self._recording.call(request, outcome)
        except OSError as error:
            raise _fault(f"the recording cannot continue: {error.strerror or error}") from error


class Cassette:
    """Recorded cassette: the exchanges for `CassetteModel`, and a `Tape`."""

    def __init__(self, path: Path, places: Placeholders) -> None:
        """Read the cassette. Raises `SettingsError` with file and line if the file is not a cassette."""
        self.path = path
        self.places = places
        self.header: Json = {}
        """Header of the recording. `model`: the recorded model; its limits (`limits`, with those of the `fallbacks`)
        apply to the replay. `session`: the source of all ids. `attended`: true if a user was present to answer."""
        self.told = ""
        """First reported difference; empty while there is none."""
        self._calls: dict[_Key, list[tuple[int, ComparableRequest, Json]]] = defaultdict(list)
        self._played: set[tuple[_Key, int]] = set()
        self._kept: dict[tuple[str, str], Json] = {}
        self._order: dict[str, list[tuple[str, Json]]] = defaultdict(list)
        self._values: dict[tuple[str, str], deque[object]] = defaultdict(deque)
        packing: dict[str, RequestPacking] = defaultdict(RequestPacking)
        for number, line in read_lines(path):
            try:
                self._take(line, packing)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # a line of another shape
                raise SettingsError(f"the cassette is damaged: {error!r}", f"{path}:{number}") from error
        self._stopped = frozenset(agent for _, value in self.all_of("changes") for agent in stopped_in(value))

    @property
    def model(self) -> str:
        """Return the recorded model."""
        return str(self.header["model"])

    def listed_tools(self) -> Mapping[str, Json]:
        """Return all tools that the recorded requests list, by name."""
        lists = {recorded.tools for calls in self._calls.values() for _, recorded, _ in calls}
        tools = [tool for text in sorted(lists) for tool in json.loads(text or "[]")]
        return {str(tool.get("name")): cast("Json", self.places.show(tool)) for tool in tools}

    def exchange(self, request: ModelRequest) -> tuple[ComparableRequest, Json]:
        """Return the recorded exchange of this call.

        If the call was not recorded, raise `CallFault` with the content of the cassette.

        Calls with the same key (two lives of a name, the parts of a long summary) are returned in their order.
        """
        key = (request.agent, request.purpose, request.ordinal)
        recorded = self._calls.get(key, [])
        if not recorded:
            call_name = f"call {request.ordinal} of {request.agent} ({request.purpose})"
            raise self.fault(
                f"{self.path} holds no {call_name}; it holds {self._holds()}: a replay makes the same calls"
            )
        unplayed = [place for place in range(len(recorded)) if (key, place) not in self._played]
        # A replay may number its attempts differently. The last attempt is then the one with the result of the call.
        fitting = [place for place in unplayed if recorded[place][0] == request.attempt] or [len(recorded) - 1]
        self._played.add((key, fitting[0]))
        return recorded[fitting[0]][1:]

    def is_cut_off(self, request: ModelRequest) -> bool:
        """Return True if the recording has no such call because its agent was stopped in the background before."""
        return request.agent in self._stopped and (request.agent, request.purpose, request.ordinal) not in self._calls

    def has_played(self, agent: str) -> bool:
        """Return True if an agent has made all its recorded calls."""
        return all(
            (key, place) in self._played
            for key, recorded in self._calls.items()
            if key[0] == agent
            for place in range(len(recorded))
        )

    def fault(self, message: str) -> CallFault:
        """Return the fault that ends the turn of an agent that deviated from the recording.

        The first message is kept as `told`.
        """
        self.told = self.told or message
        return _fault(message)

    def unfinished_reason(self) -> str:
        """Return the reason why an idle replay has not replayed the whole recording.

        Empty if it has, or if the user has not yet entered all recorded prompts.
        """
        calls = sum(len(recorded) for recorded in self._calls.values())
        if self._values["id", "person"] or len(self._played) >= calls:
            return ""
        missing = sorted(
            f"{agent} ({purpose}) {ordinal}"
            for (agent, purpose, ordinal), recorded in self._calls.items()
            if any(((agent, purpose, ordinal), place) not in self._played for place in range(len(recorded)))
        )
        return f"the replay ended before {self.path} did: not made were {', '.join(missing[:5])}"

    def draw(self, taker: str, real: float) -> float:
        return cast("float", self._next("draw", taker, real))

    def new_id(self, taker: str, real: str) -> str:
        return cast("str", self._next("id", taker, real))

    def value_of(self, kind: Kind, key: str) -> Json | None:
        recorded = self._kept.get((kind, cast("str", self.places.hide(key))))
        return None if recorded is None else cast("Json", self.places.show(recorded))

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        """Do nothing: a replay records nothing."""

    def all_of(self, kind: Kind) -> list[tuple[str, Json]]:
        """Return all values of a kind, in recorded order."""
        return cast("list[tuple[str, Json]]", [self.places.show(list(entry)) for entry in self._order[kind]])

    def _next(self, kind: str, taker: str, real: object) -> object:
        values = self._values[kind, taker]
        return values.popleft() if values else real

    def _take(self, line: Json, packing: dict[str, RequestPacking]) -> None:
        if "cassette" in line:
            self.header = {**line, "model": str(line["model"])}
            self.places = replace(self.places, whole=line.get("paths") == WHOLE)
        elif "call" in line:
            agent = str(line["agent"])
            request = packing[agent].unpack(line["request"])
            outcome: Json = {name: line[name] for name in ("reply", "fault", "partial") if name in line}
            _outcome(outcome)  # a damaged value is reported now, not in the middle of the replay
            key = (agent, str(line["purpose"]), int(line["call"]))
            self._calls[key].append((int(line["attempt"]), request, outcome))
        elif "taker" in line:
            kind = "draw" if "draw" in line else "id"
            self._values[kind, str(line["taker"])].append(line[kind])
        else:
            self._read_stored(line)

    def _read_stored(self, line: Json) -> None:
        for kind in KINDS:
            if kind in line:
                key = str(line[kind])
                value = cast("Json", dict(line["value"]))
                self._kept[kind, key] = value
                self._order[kind].append((key, value))

    def _holds(self) -> str:
        ordinals: dict[str, list[int]] = defaultdict(list)
        for agent, purpose, ordinal in self._calls:
            ordinals[f"{agent} ({purpose})"].append(ordinal)
        parts = [f"{agent} {min(numbers)} to {max(numbers)}" for agent, numbers in sorted(ordinals.items())]
        return ", ".join(parts) or "no calls"


def stopped_in(changes: Json) -> Sequence[str]:
    """Return the subagents in the background that a recorded call stopped. `changes`: those of the call."""
    events = cast("Sequence[Json]", changes.get("events", ()))
    ends = [event for event in events if event.get("t") == "background_ended" and event.get("status") == "stopped"]
    return [str(event["agent"]) for event in ends if event.get("agent")]


class CassetteModel:
    """Model that plays a cassette. Needs no key, no network and no time."""

    def __init__(self, cassette: Cassette) -> None:
        self._cassette = cassette
        self._asking: dict[str, RequestNormalizer] = defaultdict(lambda: RequestNormalizer(cassette.places))

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Return the recorded reply, or raise the recorded fault.

        Raises `CallFault` of kind `invalid` if the replay deviates from the recording.
        """
        if self._cassette.is_cut_off(request):
            await anyio.sleep_forever()  # until the stop, as in the recording
        recorded, outcome = self._cassette.exchange(request)
        current = self._asking[request.agent].recorded_form(request)
        if current.digest != recorded.digest:
            where = f"call {request.ordinal} of {request.agent} ({request.purpose})"
            difference_text = difference(recorded, current)
            raise self._cassette.fault(f"the replay differs from {self._cassette.path} at {where}: {difference_text}")
        played = _outcome(cast("Json", self._cassette.places.show(outcome)))
        if isinstance(played, CallFault):
            raise played
        for block in played.blocks:
            _show(block, on_delta)
        return played

    async def count(self, request: ModelRequest) -> int:
        """Return the recorded count. Raises `CannotCount` if the service returned none, or was not asked."""
        recorded = self._cassette.value_of("count", _count_key(request))
        if recorded is None:  # the recorded run got no answer, or had to wait
            raise CannotCount("the cassette holds no count of this request", Fault(kind="lost"))
        if "tokens" not in recorded:
            fault = Fault.model_validate(recorded["fault"]) if "fault" in recorded else None
            raise CannotCount(str(recorded["why"]), fault)
        return int(recorded["tokens"])

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""


def _show(block: Json, on_delta: OnDelta) -> None:
    if block["type"] == "text":
        on_delta(Delta("text", block["text"]))
    elif block["type"] == "thinking":
        on_delta(Delta("thinking", block["thinking"]))
    elif block["type"] == "tool_use":
        on_delta(Delta("tool", block["name"], names_tool=True))


def _plain(reply: Reply) -> Json:
    return {
        "blocks": list(reply.blocks),
        "stop_reason": reply.stop_reason,
        "usage": reply.usage.model_dump(),
        "model": reply.model,
        "message_id": reply.message_id,
        "bad_inputs": {str(index): reason for index, reason in reply.bad_inputs.items()},
    }


def _outcome(line: Json) -> Reply | CallFault:
    if "fault" in line:
        fault = Fault.model_validate(line["fault"])
        if fault.retry_after is not None:  # a replay does not wait as long as the service requested
            fault = fault.model_copy(update={"retry_after": min(fault.retry_after, LONGEST_WAIT)})
        return CallFault(fault, str(line.get("partial", "")))
    plain: Json = line["reply"]
    return Reply(
        blocks=tuple(plain["blocks"]),
        stop_reason=plain["stop_reason"],
        usage=Usage.model_validate(plain["usage"]),
        model=plain["model"],
        message_id=plain["message_id"],
        bad_inputs={int(index): reason for index, reason in plain["bad_inputs"].items()},
    )


def _count_key(request: ModelRequest) -> str:
    return f"{request.agent} {request.ordinal} {request.attempt}"


def _fault(message: str) -> CallFault:
    """Return an `invalid` fault, which is never retried: the turn ends with this message."""
    return CallFault(Fault(kind="invalid", message=message))
