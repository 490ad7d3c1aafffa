"""Record a session, and play it back: `--record FILE`, `--model cassette:FILE`.

An exchange is known by agent, purpose, ordinal and attempt, so agents may run in any order. A replay compares each
request with the recorded one and refuses to go on where they differ, telling the first difference. `Tape` is the rest
of a run that no model decides: what tools returned, what was answered, drawn and delivered (`callboard.adapters.taped`
and `callboard.adapters.course` keep it and give it back).
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

from callboard.adapters.cassette_file import Asked, Asking, LineWriter, Packing, Placeholders, difference, read_lines
from callboard.ports.model import CallFault, CannotCount, Delta, Model, ModelRequest, OnDelta, Reply
from callboard.words.errors import SettingsError
from callboard.words.values import Fault, Json, Usage

Kind = Literal[
    "tool",
    "changes",
    "ruling",
    "command",
    "answer",
    "background",
    "ends",
    "mail",
    "envelope",
    "known",
    "facts",
    "reminders",
    "count",
    "commit",
    "servers",
]
"""tool: how a call ended. changes: what it changed of its agent. ruling: of a call. command: how one in the text of
a skill ended. answer: to a request. background:
how a command ended, by its output file. ends: that file's first and last lines. mail: a delivery. envelope: one that
a schedule sent. known: what the runtime knew at a compaction. facts: what an agent's prompt says of the machine.
reminders: what it was told of its surroundings when a turn began.
count: how long the service found a request. commit: what was checked out for a plan, or at its answer."""
KINDS = get_args(Kind)
_Key = tuple[str, str, int]
"""Agent, purpose, ordinal."""
LONGEST_WAIT = 1.0
"""Seconds that a replay waits where the service had told how long."""


class Tape(Protocol):
    """What a run took from the world besides the model. Recording returns what it is given, playing what was recorded.

    Draws and ids come back in the order in which their taker took them; when they are used up, the real one is
    returned: the next request then tells the difference, if it makes one. Everything else has a key.
    """

    def draw(self, taker: str, real: float) -> float: ...
    def new_id(self, taker: str, real: str) -> str: ...
    def found(self, kind: Kind, key: str) -> Json | None:
        """What was recorded under this key, the last of it; None while recording, or when nothing was."""
        ...

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        """Record it; in a replay nothing. Never raises: the next model call tells of a disk that refused it."""
        ...


class Recording:
    """A cassette being recorded: the model calls of `RecordingModel`, and a `Tape`."""

    def __init__(self, path: Path, places: Placeholders, header: Json) -> None:
        """`header`: see `Cassette`. Raises `UsageError` when the file is there already or cannot be made."""
        self.places = places
        self._lines = LineWriter(path, header)
        self._asking: dict[str, Asking] = defaultdict(lambda: Asking(places))
        self._packing: dict[str, Packing] = defaultdict(Packing)
        self._refused: OSError | None = None

    def call(self, request: ModelRequest, outcome: Json) -> None:
        """Keep one exchange. Raises OSError when the disk refuses it, or has refused anything before."""
        asked = self._asking[request.agent].asked(request)
        self._write(
            {
                "call": request.ordinal,
                "agent": request.agent,
                "purpose": request.purpose,
                "attempt": request.attempt,
                "digest": asked.digest,
                "request": self._packing[request.agent].packed(asked),
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

    def found(self, kind: Kind, key: str) -> Json | None:
        return None

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        self._write(cast("Json", self.places.hide({kind: key, "value": value})))

    def close(self) -> None:
        """No more lines. Idempotent."""
        self._lines.close()

    def _write(self, line: Json) -> None:
        try:
            self._lines.write(line)  # one append to a local file: not worth a thread
        except OSError as error:
            self._refused = self._refused or error


class RecordingModel:
    """A model whose exchanges are recorded, the failed ones too."""

    def __init__(self, inner: Model, recording: Recording) -> None:
        self._inner, self._recording = inner, recording

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """As the inner model. A disk that refuses the line is an `invalid` fault: half a cassette is worth nothing."""
        try:
            reply = await self._inner.complete(request, on_delta)
        except CallFault as failed:
            self._keep(request, {"fault": failed.fault.model_dump(mode="json"), "partial": failed.partial})
            raise
        self._keep(request, {"reply": _plain(reply)})
        return reply

    async def count(self, request: ModelRequest) -> int:
        """As the inner model; that it could not is recorded too."""
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
            raise _fault(f"the recording cannot go on: {error.strerror or error}") from error


class Cassette:
    """A recorded cassette: the exchanges for `CassetteModel`, and a `Tape`."""

    def __init__(self, path: Path, places: Placeholders) -> None:
        """Raises `SettingsError` with file and line for what is no cassette."""
        self.path, self.places = path, places
        self.header: Json = {}
        """`model`, the one that was recorded: its limits (`limits`, with those of the `fallbacks`) hold for the replay.
        `session`: all ids follow from it. `attended`: whether a person was there to answer."""
        self.told = ""
        """The first difference that was told; empty while there is none."""
        self._calls: dict[_Key, list[tuple[int, Asked, Json]]] = defaultdict(list)
        self._played: set[tuple[_Key, int]] = set()
        self._kept: dict[tuple[str, str], Json] = {}
        self._order: dict[str, list[tuple[str, Json]]] = defaultdict(list)
        self._values: dict[tuple[str, str], deque[object]] = defaultdict(deque)
        packing: dict[str, Packing] = defaultdict(Packing)
        for number, line in read_lines(path):
            try:
                self._take(line, packing)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # a line of another shape
                raise SettingsError(f"the cassette is damaged: {error!r}", f"{path}:{number}") from error

    @property
    def model(self) -> str:
        """The model that was recorded."""
        return str(self.header["model"])

    def exchange(self, request: ModelRequest) -> tuple[Asked, Json]:
        """What was recorded for this call. Raises `CallFault` when nothing was, naming what there is.

        Calls of one key (two lives of a name, the parts of a long summary) come back in their order.
        """
        key = (request.agent, request.purpose, request.ordinal)
        recorded = self._calls.get(key, [])
        if not recorded:
            wanted = f"call {request.ordinal} of {request.agent} ({request.purpose})"
            raise self.fault(f"{self.path} holds no {wanted}; it holds {self._holds()}: a replay makes the same calls")
        left = [place for place in range(len(recorded)) if (key, place) not in self._played]
        # A replay may number its attempts anew: then the last one, which is what the call came to.
        fitting = [place for place in left if recorded[place][0] == request.attempt] or [len(recorded) - 1]
        self._played.add((key, fitting[0]))
        return recorded[fitting[0]][1:]

    def fault(self, message: str) -> CallFault:
        """What ends the turn of whoever left the recording. The first message is kept as `told`."""
        self.told = self.told or message
        return _fault(message)

    def unfinished(self) -> str:
        """Why a replay that has come to rest is no replay of the whole recording; empty when it is one, or when the
        person has not yet said all that was said."""
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

    def found(self, kind: Kind, key: str) -> Json | None:
        kept = self._kept.get((kind, cast("str", self.places.hide(key))))
        return None if kept is None else cast("Json", self.places.show(kept))

    def keep(self, kind: Kind, key: str, value: Json) -> None:
        """Nothing: a replay records nothing."""

    def all_of(self, kind: Kind) -> list[tuple[str, Json]]:
        """Everything of a kind, in the order in which it was recorded."""
        return cast("list[tuple[str, Json]]", [self.places.show(list(one)) for one in self._order[kind]])

    def _next(self, kind: str, taker: str, real: object) -> object:
        kept = self._values[kind, taker]
        return kept.popleft() if kept else real

    def _take(self, line: Json, packing: dict[str, Packing]) -> None:
        if "cassette" in line:
            self.header = {**line, "model": str(line["model"])}
        elif "call" in line:
            agent = str(line["agent"])
            asked = packing[agent].unpacked(line["request"])
            outcome: Json = {name: line[name] for name in ("reply", "fault", "partial") if name in line}
            _outcome(outcome)  # a damaged one is told now, not in the middle of the replay
            key = (agent, str(line["purpose"]), int(line["call"]))
            self._calls[key].append((int(line["attempt"]), asked, outcome))
        elif "taker" in line:
            kind = "draw" if "draw" in line else "id"
            self._values[kind, str(line["taker"])].append(line[kind])
        else:
            self._take_kept(line)

    def _take_kept(self, line: Json) -> None:
        for kind in KINDS:
            if kind in line:
                key, value = str(line[kind]), cast("Json", dict(line["value"]))
                self._kept[kind, key] = value
                self._order[kind].append((key, value))

    def _holds(self) -> str:
        ordinals: dict[str, list[int]] = defaultdict(list)
        for agent, purpose, ordinal in self._calls:
            ordinals[f"{agent} ({purpose})"].append(ordinal)
        parts = [f"{who} {min(numbers)} to {max(numbers)}" for who, numbers in sorted(ordinals.items())]
        return ", ".join(parts) or "no calls"


class CassetteModel:
    """Plays a cassette. Needs no key, no network and no time."""

    def __init__(self, cassette: Cassette) -> None:
        self._cassette = cassette
        self._asking: dict[str, Asking] = defaultdict(lambda: Asking(cassette.places))

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """The recorded reply or fault. Raises `CallFault` of kind `invalid` where the replay left the recording."""
        recorded, outcome = self._cassette.exchange(request)
        asked = self._asking[request.agent].asked(request)
        if asked.digest != recorded.digest:
            where = f"call {request.ordinal} of {request.agent} ({request.purpose})"
            told = difference(recorded, asked)
            raise self._cassette.fault(f"the replay differs from {self._cassette.path} at {where}: {told}")
        played = _outcome(cast("Json", self._cassette.places.show(outcome)))
        if isinstance(played, CallFault):
            raise played
        for block in played.blocks:
            _show(block, on_delta)
        return played

    async def count(self, request: ModelRequest) -> int:
        """What the service said then. Raises `CannotCount` where it did not, or was not asked."""
        kept = self._cassette.found("count", _count_key(request))
        if kept is None:  # the recorded run was not answered, or had to wait: another one may stand there
            raise CannotCount("the cassette holds no count of this request", Fault(kind="lost"))
        if "tokens" not in kept:
            fault = Fault.model_validate(kept["fault"]) if "fault" in kept else None
            raise CannotCount(str(kept["why"]), fault)
        return int(kept["tokens"])

    async def aclose(self) -> None:
        """Nothing is held open."""


def _show(block: Json, on_delta: OnDelta) -> None:
    if block["type"] == "text":
        on_delta(Delta("text", block["text"]))
    elif block["type"] == "thinking":
        on_delta(Delta("thinking", block["thinking"]))
    elif block["type"] == "tool_use":
        on_delta(Delta("tool", block["name"]))


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
        if fault.retry_after is not None:  # the service's wish is not for a replay
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
    """`invalid` is never retried: the turn ends and says this."""
    return CallFault(Fault(kind="invalid", message=message))
