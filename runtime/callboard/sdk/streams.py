"""The engine's observations as the events and streams that a program reads, and for the program's own observers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

import structlog

from callboard.ports.environment import Answer, Interest, Observer
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.sdk import events as sdk_events
from callboard.types import events as ev
from callboard.types.records import Envelope, Json, Request

REMEMBERED = 10_000
"""Number of envelopes, and of calls, to remember as already reported."""
V = TypeVar("V")

log = structlog.get_logger("callboard.observers")

_QUIET_MAIL = frozenset({"command", "prompt"})


class Stream:
    """Events of a session in order: `async for event in stream`.

    A slow reader loses no event. Leaving the loop does not affect the session. A stream has one reader at a time.
    """

    def __init__(self, begin: Callable[[Stream], None] | None = None, *, raw: bool) -> None:
        self.raw = raw
        self.waits = False
        """True while the turns of earlier prompts last: their events are not those of this stream."""
        self._begin = begin
        self._waiting = deque[sdk_events.Event]()
        self._changed = Notifier()
        self._closed = False
        self._error: Exception | None = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> sdk_events.Event:
        if self._begin is not None:
            self._begin(self)
            self._begin = None
        await self._changed.until(lambda: bool(self._waiting) or self._closed)
        if self._waiting:
            return self._waiting.popleft()
        error, self._error = self._error, None
        raise error or StopAsyncIteration

    def push(self, event: sdk_events.Event) -> None:
        """Add an event. Unread parts of one text are joined."""
        if self._closed or self.waits:
            return
        last = self._waiting[-1] if self._waiting else None
        if (
            isinstance(event, sdk_events.TextDelta)
            and isinstance(last, sdk_events.TextDelta)
            and last.agent == event.agent
        ):
            self._waiting[-1] = sdk_events.TextDelta(event.agent, last.text + event.text)
        else:
            self._waiting.append(event)
        self._changed.notify()

    def fail(self, error: Exception) -> None:
        """Close the stream. The reader gets the error after the waiting events."""
        if not self._closed:
            self._error = error
            self.close()

    def close(self) -> None:
        """Add no more events. Waiting events can still be read."""
        self._closed = True
        self._changed.notify()


class Relay:
    """Observer and approver that forwards to all streams of a session. It never answers a request."""

    interest = Interest(deltas=frozenset({"text", "thinking", "dropped", "notice"}))

    def __init__(self) -> None:
        self._streams = WeakSet[Stream]()
        self._calls: dict[str, str] = {}
        self._asking: dict[str, str] = {}
        """Ids of requests -> ids of the calls that they are about."""
        self._over: dict[str, None] = {}
        self._mail: dict[str, None] = {}

    def add(self, stream: Stream) -> None:
        """Forward to this stream too, as long as it is referenced."""
        self._streams.add(stream)

    def close(self) -> None:
        """Close all streams at the end of the session."""
        for stream in list(self._streams):
            stream.close()

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Forward a record of a journal."""
        entries = list(self._events_of(agent, event))
        for stream in list(self._streams):
            if stream.raw:
                stream.push(sdk_events.Raw(agent, seq, event))
            for entry in entries:
                stream.push(entry)

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Forward a part of a reply, or a notice."""
        match delta.kind:
            case "text":
                self._push(sdk_events.TextDelta(agent, delta.text))
            case "thinking":
                self._push(sdk_events.ThinkingDelta(agent, delta.text))
            case "dropped":
                self._push(sdk_events.ReplyDropped(agent, delta.text))
            case "notice":
                self._push(sdk_events.Notice(agent, delta.text))
            case _:
                pass

    def on_mail(self, envelope: Envelope) -> None:
        """Forward an envelope once, though its sender and its recipient both report it."""
        if envelope.id in self._mail or envelope.type in _QUIET_MAIL:
            return
        _remember(self._mail, envelope.id, None)
        self._push(sdk_events.Message(envelope.sender, envelope.recipient, envelope.type, envelope.content))

    async def answer(self, request: Request) -> Answer | None:
        """Report the request and leave the answer to others."""
        self._push(sdk_events.Asked(request.asked_by, request))
        return None

    def _push(self, event: sdk_events.Event) -> None:
        for stream in list(self._streams):
            stream.push(event)

    def _ended(self, event: sdk_events.ToolEnded) -> Iterator[sdk_events.ToolEnded]:
        """Yield the end of a call once, with the name of its tool."""
        if event.call and event.call not in self._over:
            _remember(self._over, event.call, None)
            yield replace(event, name=self._calls.pop(event.call, ""))

    def _events_of(self, agent: str, event: ev.Event) -> Iterator[sdk_events.Event]:
        match event:
            case ev.TurnBegan():
                yield sdk_events.TurnBegan(agent)
            case ev.ModelReplied():
                yield from self._replied(agent, event)
            case ev.RetryPlanned():
                yield sdk_events.Retrying(agent, event.attempt, event.until, event.why)
            case ev.ContextEdited() if event.edits:
                yield sdk_events.Compacted(agent, event.stage, event.tokens_before, event.tokens_after)
            case ev.TurnEnded():
                yield sdk_events.TurnEnded(agent, event.reason, event.text, event.why)
            case _:
                yield from self._of_call(agent, event)

    def _replied(self, agent: str, event: ev.ModelReplied) -> Iterator[sdk_events.Event]:
        text = _text(event.blocks)
        if text:
            yield sdk_events.Replied(agent, text)
        for call in event.calls:
            _remember(self._calls, call.id, call.name)
            yield sdk_events.ToolCalled(agent, call.id, call.name, call.input)

    def _of_call(self, agent: str, event: ev.Event) -> Iterator[sdk_events.Event]:
        """Yield the events of a call's progress; a denied call ends with the reason."""
        match event:
            case ev.ToolFinished():
                text = _text(event.content)
                content = event.content
                yield from self._ended(
                    sdk_events.ToolEnded(agent, event.call, "", text, event.is_error, event.data, content)
                )
            case ev.CallJudged() if event.verdict == "deny":
                yield from self._ended(sdk_events.ToolEnded(agent, event.call, "", event.why, True))
            case ev.ApprovalNeeded():
                _remember(self._asking, event.request_id, event.call)
            case ev.AnswerTaken():
                yield sdk_events.Answered(agent, event.request_id, event.status, event.by)
                yield from self._refused(agent, event)
            case _:
                pass

    def _refused(self, agent: str, event: ev.AnswerTaken) -> Iterator[sdk_events.Event]:
        call = self._asking.pop(event.request_id, "")
        if event.kind == "permission" and (event.status != "approved" or event.void):
            reason = f"Permission denied: {event.void or event.reason or event.by or event.status}"
            yield from self._ended(sdk_events.ToolEnded(agent, call, "", reason, True))


class ProgramObserver:
    """Observer of the program whose exceptions go to the log.

    An observer decides nothing. The engine reports a record after its commit, so that an exception would crash the
    agent at each record, also after a restart.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Forward a record of a journal."""
        with self._logged():
            self._observer.on_event(agent, seq, event)

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Forward a part of a reply, or a notice."""
        with self._logged():
            self._observer.on_delta(agent, delta)

    def on_mail(self, envelope: Envelope) -> None:
        """Forward an envelope."""
        with self._logged():
            self._observer.on_mail(envelope)

    @contextmanager
    def _logged(self) -> Generator[None]:
        try:
            yield
        except Exception:  # any exception of the program's code
            log.exception("observer failed", observer=type(self._observer).__name__)


def _text(blocks: tuple[Json, ...]) -> str:
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def _remember(entries: dict[str, V], key: str, value: V) -> None:
    entries[key] = value
    if len(entries) > REMEMBERED:
        del entries[next(iter(entries))]
