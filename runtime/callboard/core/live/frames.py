"""Protocol of a host's live text: the lines on the private socket between a host and its followers.

A follower sends one line, its request. The host sends one line, its greeting, then a line for each piece of a reply
that streams (`LiveFrame`). Each line is a JSON object. Fields and kinds that a reader does not know are skipped, so
that a later version may add some; `VERSION` rises only if the meaning of an existing one changes.

A follower that comes in the middle of a reply first gets its text so far. Nothing says that a reply has ended: the
journal does.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar, get_args

from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

VERSION = 1
LONGEST_LINE = 1_000_000
"""Limit of the bytes of a line."""
LONGEST_PIECE = 32_000
"""Most characters of text in one frame, each of which takes at most 12 bytes."""
MOST_WAITING = 1_000_000
"""Most bytes that wait for one reader, in addition to one mark for each agent."""
FrameKind = Literal["text", "thinking", "call", "input", "lost"]
"""Part of a reply: text, thinking, the name of a tool that is called, a piece of the call's input. `lost`: this reader
was too slow, and gets no more of this reply; some of its pieces may be missing."""
_KINDS: dict[str, FrameKind] = {kind: kind for kind in get_args(FrameKind)}


class LiveProtocolError(Exception):
    """The other side of the socket sent something that is not this protocol, or another version of it."""


@dataclass(frozen=True, slots=True, order=True)
class LiveReply:
    """One model call of an agent. A later one of the same agent is greater."""

    agent: str
    life: int
    """Incarnation of the agent."""
    position: int
    """End of the agent's journal when the call began. The event of its end comes later."""


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """Piece of a reply."""

    reply: LiveReply
    kind: FrameKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """Request of a follower. `agents`: their names; None: all."""

    agents: frozenset[str] | None = None

    def includes(self, agent: str) -> bool:
        """Return True if the follower gets the replies of an agent."""
        return self.agents is None or agent in self.agents


def request_line(request: LiveRequest) -> bytes:
    """Return the line that a follower sends."""
    agents = None if request.agents is None else sorted(request.agents)
    return _line({"live": VERSION, "agents": agents})


def read_request(line: bytes) -> LiveRequest:
    """Return the request of a follower. Raises `LiveProtocolError`."""
    fields = _fields(line)
    _check_version(fields)
    agents = fields.get("agents")
    if agents is None:
        return LiveRequest()
    if not isinstance(agents, list) or not all(isinstance(name, str) for name in agents):  # pyright: ignore[reportUnknownVariableType] - raw input
        raise LiveProtocolError("the names of agents are not a list of texts")
    return LiveRequest(frozenset(agents))  # pyright: ignore[reportUnknownArgumentType] - checked above


def greeting_line(session: str) -> bytes:
    """Return the line with which a host accepts a follower."""
    return _line({"live": VERSION, "session": session})


def check_greeting(line: bytes, session: str) -> None:
    """Check the host's first line. Raises `LiveProtocolError` for another version or session."""
    fields = _fields(line)
    _check_version(fields)
    if fields.get("session") != session:
        raise LiveProtocolError("this is the stream of another session")


def frame_lines(frames: Iterable[LiveFrame]) -> Iterator[bytes]:
    """Yield the lines of frames. A long piece takes several lines."""
    for frame in frames:
        reply = frame.reply
        head = {"agent": reply.agent, "life": reply.life, "reply": reply.position}
        for at in range(0, max(len(frame.text), 1), LONGEST_PIECE):
            # A call has one name, and what follows it is input.
            kind = "input" if frame.kind == "call" and at else frame.kind
            yield _line({**head, "kind": kind, "text": frame.text[at : at + LONGEST_PIECE]})


def read_frame(line: bytes) -> LiveFrame | None:
    """Return the frame of a line; None for a kind that a later version added. Raises `LiveProtocolError`."""
    fields = _fields(line)
    kind = _KINDS.get(str(fields.get("kind")))
    reply = LiveReply(_field(fields, "agent", str), _field(fields, "life", int), _field(fields, "reply", int))
    return None if kind is None else LiveFrame(reply, kind, _field(fields, "text", str))


class LineReader:
    """Lines of a stream of bytes, however it is cut."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now. Raises `LiveProtocolError` for one that is too long."""
        self._unfinished += data
        *lines, unfinished = self._unfinished.split(b"\n") if b"\n" in data else [self._unfinished]
        self._unfinished = bytearray(unfinished)
        if max(map(len, (*lines, unfinished))) > LONGEST_LINE:
            raise LiveProtocolError("a line is too long")
        return [bytes(line) for line in lines]


class ReaderBuffer:
    """Lines that wait for one reader: bounded, because a slow reader must not hold up its host.

    If a piece does not fit, the rest of its reply is left out for this reader: the pieces that still wait are removed,
    and one piece says so (`lost`). Later replies are sent again. The journal has the whole reply.
    """

    def __init__(self, limit: int = MOST_WAITING) -> None:
        self._limit = limit
        self._waiting: deque[tuple[LiveReply | None, bytes]] = deque()
        """Replies and their lines, the oldest first. None: a line that is never left out."""
        self._sent = 0
        """Bytes of the oldest line that were sent."""
        self._size = 0
        self._lost: dict[str, LiveReply] = {}
        """Newest reply of an agent that is left out. Of its lines only the mark may still wait."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Return the number of bytes that wait."""
        return self._size

    def add_line(self, line: bytes) -> None:
        """Add a line that is no part of a reply."""
        self._append(None, line)

    def add(self, reply: LiveReply, lines: bytes) -> None:
        """Add whole lines of a reply, or leave the rest of it out."""
        if self._lost.get(reply.agent) == reply:
            return
        if self._size + len(lines) <= self._limit:
            self._append(reply, lines)
            return
        self._remove(reply)
        if (earlier := self._lost.get(reply.agent)) is not None:
            self._remove(earlier)
        self._lost[reply.agent] = reply
        self._append(reply, b"".join(frame_lines([LiveFrame(reply, "lost")])))

    def next_bytes(self) -> memoryview:
        """Return the bytes to send next. Call `remove_sent` with the number of those that were."""
        return memoryview(self._waiting[0][1])[self._sent :]

    def remove_sent(self, count: int) -> None:
        """Remove bytes that were sent, at most those of `next_bytes`."""
        self._sent += count
        self._size -= count
        if self._sent == len(self._waiting[0][1]):
            self._waiting.popleft()
            self._sent = 0

    def _append(self, reply: LiveReply | None, lines: bytes) -> None:
        self._waiting.append((reply, lines))
        self._size += len(lines)

    def _remove(self, reply: LiveReply) -> None:
        """Remove lines of a reply, except those that were sent in part: the reader needs their end."""
        begun = [self._waiting.popleft()] if self._sent else []
        self._waiting = deque((*begun, *(entry for entry in self._waiting if entry[0] != reply)))
        self._size = sum(len(lines) for _, lines in self._waiting) - self._sent


def _field(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value: Any = fields.get(name)
    if type(value) is not kind:
        raise LiveProtocolError(f"{name} of a piece of a reply is missing or wrong")
    return value


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise LiveProtocolError("a line is not JSON") from wrong
    if not isinstance(fields, dict):
        raise LiveProtocolError("a line is not an object")
    return fields  # pyright: ignore[reportUnknownVariableType] - raw input


def _check_version(fields: dict[str, Any]) -> None:
    if fields.get("live") != VERSION:
        raise LiveProtocolError(f"the other side speaks version {fields.get('live')!r}, this one version {VERSION}")
