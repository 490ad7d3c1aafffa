"""Live text of a session for followers in other processes of this machine: the host's end of the private socket.

Replies are sent to followers as they stream, never journalled, and never waited for: what a slow reader does not take
is left out for it (`ReaderBuffer`). While nobody follows, the agents do nothing for this module; a
follower that comes in the middle of a reply gets its text so far from the runtime.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from callboard.adapters.processes.private_socket import first_line, receive_from, socket_name
from callboard.core.keys import live_purpose
from callboard.core.live.frames import (
    FrameKind,
    LiveFrame,
    LiveProtocolError,
    LiveReply,
    LiveRequest,
    ReaderBuffer,
    frame_lines,
    greeting_line,
    read_request,
)
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import Delta, StreamingReply
from callboard.ports.notifier import Notifier
from callboard.sessions.live.admission import (
    REQUEST_WITHIN,
    PeerAdmission,
    listening_if_possible,
    live_log,
    serve_connections,
)
from callboard.types.records import HostRow

GATHERED = 0.03
"""Seconds for which pieces of replies are gathered before they are sent together."""
_MOST_READERS = 64


class LiveReader:
    """One follower: its connection, and what it has not taken yet."""

    def __init__(self, connection: socket.socket, request: LiveRequest) -> None:
        self.request = request
        self.buffer = ReaderBuffer()
        self.scope = anyio.CancelScope()
        self._connection = connection
        self._blocked = Notifier()

    def push(self) -> None:
        """Send what the connection takes now. The rest waits until it takes more."""
        try:
            while self.buffer:
                self.buffer.remove_sent(self._connection.send(self.buffer.next_bytes()))
        except BlockingIOError:
            self._blocked.notify()
        except OSError:
            self.scope.cancel()

    async def run(self) -> None:
        """Send what waits whenever the connection takes more, until the follower leaves."""
        with self.scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_left)
                seen = 0
                while True:
                    seen = await self._blocked.changed(seen)
                    await anyio.wait_writable(self._connection)
                    self.push()

    async def _until_left(self) -> None:
        while await receive_from(self._connection):
            pass  # a later version of a follower may say more
        self.scope.cancel()


class LiveHost:
    """Followers of one session."""

    def __init__(self, runtime: SessionRuntime) -> None:
        self._runtime = runtime
        self._readers: set[LiveReader] = set()
        self._gathered: dict[str, tuple[StreamingReply, list[Delta]]] = {}
        """Pieces of each agent's newest reply that were not sent yet."""
        self._news = Notifier()
        self._admission = PeerAdmission(runtime, "follow the text of replies")

    async def serve(self, folder: Path, row: HostRow, *, task_status: TaskStatus[None]) -> None:
        """Serve followers until cancelled. Without a socket, followers see whole replies."""
        name = socket_name(row.pid, row.started, live_purpose(self._runtime.session))
        with listening_if_possible(folder, name, without="followers see whole replies only") as listener:
            if listener is None:
                task_status.started()
                return
            task_status.started()
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_gathered)
                await serve_connections(listener, self._serve_reader, most=_MOST_READERS)

    async def _serve_reader(self, connection: socket.socket) -> None:
        request = await self._read_request(connection)
        if request is None:
            return
        reader = LiveReader(connection, request)
        self._flush()  # so that the new reader does not get twice what was gathered
        self._send_greeting(reader)
        self._readers.add(reader)
        self._runtime.on_streaming = self._gather
        try:
            await reader.run()
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._runtime.on_streaming = None

    async def _read_request(self, connection: socket.socket) -> LiveRequest | None:
        """Return the request of a follower; None for one that is refused."""
        try:
            if await self._admission.refuses(connection):
                return None
            with anyio.move_on_after(REQUEST_WITHIN):
                return read_request(await first_line(connection))
        except (OSError, LiveProtocolError) as error:
            live_log().info("a follower was refused", error=str(error))
        return None

    def _send_greeting(self, reader: LiveReader) -> None:
        """Send the greeting, and the text so far of all replies that stream now."""
        reader.buffer.add_line(greeting_line(self._runtime.session))
        for reply in self._runtime.replies.values():
            if reply.deltas and reader.request.includes(reply.agent):
                reader.buffer.add(_name_of(reply), _lines_of(reply, reply.deltas))
        reader.push()

    def _gather(self, reply: StreamingReply, delta: Delta) -> None:
        """Note a piece of a reply for the next message. Called for each piece while somebody follows."""
        if delta.kind not in _KINDS:
            return
        gathered = self._gathered.get(reply.agent)
        if gathered is not None and gathered[0] is reply:
            gathered[1].append(delta)
            return
        if gathered is not None:
            self._send(*gathered)
        elif not any(reader.request.includes(reply.agent) for reader in self._readers):
            return
        self._gathered[reply.agent] = reply, [delta]
        self._news.notify()

    async def _send_gathered(self) -> None:
        seen = 0
        while True:
            seen = await self._news.changed(seen)
            await anyio.sleep(GATHERED)
            self._flush()

    def _flush(self) -> None:
        gathered = list(self._gathered.values())
        self._gathered.clear()
        for reply, deltas in gathered:
            self._send(reply, deltas)
        for reader in self._readers:
            reader.push()

    def _send(self, reply: StreamingReply, deltas: Sequence[Delta]) -> None:
        lines = _lines_of(reply, deltas)
        for reader in self._readers:
            if reader.request.includes(reply.agent):
                reader.buffer.add(_name_of(reply), lines)


_KINDS: dict[str, FrameKind] = {"text": "text", "thinking": "thinking", "tool": "input"}


def _name_of(reply: StreamingReply) -> LiveReply:
    return LiveReply(reply.agent, reply.life, reply.position)


def _lines_of(reply: StreamingReply, deltas: Iterable[Delta]) -> bytes:
    """Return the lines of pieces of a reply; those of one kind that follow each other are one piece."""
    return b"".join(frame_lines(_frames_of(_name_of(reply), deltas)))


def _frames_of(reply: LiveReply, deltas: Iterable[Delta]) -> Iterator[LiveFrame]:
    kind: FrameKind | None = None
    texts: list[str] = []
    for delta in deltas:
        following: FrameKind = "call" if delta.names_tool else _KINDS[delta.kind]
        if kind is not None and (following != kind or following == "call"):
            yield LiveFrame(reply, kind, "".join(texts))
            texts.clear()
        kind = following
        texts.append(delta.text)
    if kind is not None:
        yield LiveFrame(reply, kind, "".join(texts))
