"""Transports to a server: a process of the runtime, streamable HTTP, or the older HTTP with server-sent events.

Each is entered and left in the one task that owns the connection (`connection.py`), as the SDK's task groups require.

Each server process has its own session behind `server_child.py`, which ends all its processes with it. The runtime
holds three descriptors: the server's input, its output, and one whose end ends the server. So a killed runtime leaves
no server behind. Standard error goes to a file of limited size.

A server that cuts a text may write half of an emoji as an escape, or a byte that is not UTF-8. The SDK would refuse
such a response as a whole, and the call would lose its result, so the faulty character is replaced before.

The SDK reads a response over HTTP as one message, and takes an answer in JSON only with the id of its request. A server
may send a batch, or an error without an id, for which the call would wait. So JSON is passed on as the events of a
stream, in which the SDK takes each message, and the first answer as that of its request.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from callboard.adapters.kernel.exits import open_process, signal_process
from callboard.adapters.mcp.sse import event_streams, status_reason
from callboard.adapters.mcp.starting import RunsWorkspaceCode, check_code, environment_away, folder_of, words_away
from callboard.adapters.mcp.stdio import LONGEST, error_answer, messages_in, read_lines, write_lines
from callboard.adapters.processes.pids import kill_session, reap
from callboard.adapters.processes.programs import clean_environment
from callboard.adapters.system import release
from callboard.adapters.system.open_files import give_back
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry

PACKED = 2 * 1024 * 1024
"""Most bytes of a response that is compressed although that was not requested: its unpacked size is unknown."""
_ESCAPE = late_pattern(
    rb"\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|u(?P<half>d[89a-f][0-9a-f]{2})|.)",
    re.IGNORECASE | re.DOTALL,
)
"""Escape in JSON: a pair of surrogates, half of one, or another."""
_BATCH = late_pattern(rb"^data: ?(\[[^\r\n]*)", re.MULTILINE)
"""Event with a batch of messages."""
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_ACCEPTED = 202
_BOM = b"\xef\xbb\xbf"
Streams = tuple[Any, Any]
"""Streams that the SDK's dispatcher reads from and writes to."""


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """Workspace, environment and log folder of a session's servers."""

    workspace: Path
    environment: Mapping[str, str]
    """The user's environment, before the allow-list."""
    logs: Path
    """Folder for servers' standard error."""
    digests: Mapping[str, str] | None = None
    """Trusted digests of the workspace's files that servers run. Other files are not run. None: no check."""
    runs_workspace_code: RunsWorkspaceCode = field(kw_only=True)
    """Function that returns True if files of the workspace determine the code that a `headersHelper` runs."""
    variables: Collection[str] = ()
    """Names of further variables that servers receive."""

    @property
    def empty(self) -> Path:
        """Return a folder of Callboard without programs and packages."""
        return self.logs / "empty"


@dataclass(slots=True)
class ConnectionObservations:
    """Observations of one connection, for the error message if it fails."""

    statuses: list[int] = field(default_factory=list[int])
    """HTTP statuses of 400 and above, the newest last."""
    refused: int = 0
    """Number of lines that were not messages."""
    ended: bool = False
    """True if its process has closed its output."""
    exit_code: int | None = None
    log: Path | None = None

    def reasons(self) -> list[str]:
        """Return the observed reasons for the failure of the connection."""
        reasons: list[str] = []
        if self.statuses:
            reasons.append(status_reason(self.statuses[-1]))
        if self.exit_code is not None:
            reasons.append(f"its process ended with exit code {self.exit_code}")
        if self.refused:
            reasons.append(f"{self.refused} line{'s' if self.refused > 1 else ''} of its output were no messages")
        if self.log is not None and (last := last_words(self.log)):
            reasons.append(f"it last said: {last}")
        return reasons


@asynccontextmanager
async def stdio(
    entry: ServerEntry, place: ServerEnvironment, seen: ConnectionObservations, ended: Callable[[], None]
) -> AsyncGenerator[Streams]:
    """Start the server's process and communicate over its pipes. `ended`: called when it closes its output.

    Raises `ToolRefused` for a command that does not exist, OSError.
    """
    environment = await anyio.to_thread.run_sync(prepare, entry, place)
    program = program_of(entry.command, place.workspace, environment["PATH"])
    log = place.logs / f"{_file_name(entry.name)}.log"
    folder = folder_of(entry, place.workspace, place.empty, runs_workspace_code=place.runs_workspace_code)
    started = start(program, words_away(entry, place.empty), folder=folder, environment=environment, log=log)
    seen.log = log
    try:
        async with _pumping(started, seen, ended) as streams:
            yield streams
    finally:
        seen.exit_code = await end(started, died=seen.ended)


@asynccontextmanager
async def _pumping(
    started: ServerProcess, seen: ConnectionObservations, ended: Callable[[], None]
) -> AsyncGenerator[Streams]:
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    def refused(text: str) -> None:
        seen.refused += 1

    async def pump() -> None:
        await read_lines(started.stdout, into, refused)
        seen.ended = True
        ended()

    with into, read, write, outgoing:
        async with anyio.create_task_group() as group:
            group.start_soon(pump)
            group.start_soon(write_lines, started.stdin, outgoing)
            try:
                yield read, write
            finally:
                group.cancel_scope.cancel()


@asynccontextmanager
async def remote(
    entry: ServerEntry, headers: Mapping[str, str], seen: ConnectionObservations, ended: Callable[[str], None]
) -> AsyncGenerator[Streams]:
    """Connect to a server over HTTP. `ended`: called with the reason when its only event stream ends.

    Raises `ToolRefused`, and the exceptions of httpx2.
    """

    async def noted(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            seen.statuses.append(response.status_code)
        body = cast("httpx2.AsyncByteStream", response.stream)
        packed = response.headers.get("content-encoding", "identity") != "identity"
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.encoding = "utf-8"  # the standard allows no other
        else:
            body = BoundedBody(body, PACKED if packed else LONGEST)
        response.stream = body if packed else ValidText(body, LONGEST)
        if not packed and entry.transport == "http" and _answers_in_json(response):
            response.stream = AnswerEvents(response.stream)
            response.headers["content-type"] = "text/event-stream"
            response.encoding = "utf-8"

    def refused(text: str) -> None:
        seen.refused += 1

    client = httpx2.AsyncClient(
        # The size of a compressed body cannot be limited before it is unpacked
        # (test_an_answer_that_is_too_large_is_not_read).
        headers={"accept-encoding": "identity", **headers},
        # The calls limit silence, because they know about progress; a read timeout here would end the connection.
        timeout=httpx2.Timeout(30.0, read=None),
        event_hooks={"response": [noted]},
    )
    async with client:
        if entry.transport == "sse":
            transport = event_streams(client, entry.url, refused=refused, ended=ended)
        else:
            transport = streamable_http_client(entry.url, http_client=client, max_sse_event_size=LONGEST)
        async with transport as streams:
            yield streams


def _answers_in_json(response: httpx2.Response) -> bool:
    """Return True for the JSON with which a server takes a message. Refusals stay as they are: the SDK reads them."""
    kind = response.headers.get("content-type", "").lower()
    taken = response.status_code in range(200, 300) and response.status_code != _ACCEPTED
    return taken and response.request.method == "POST" and kind.startswith("application/json")


def prepare(entry: ServerEntry, place: ServerEnvironment) -> dict[str, str]:
    """Return the environment of a server's process.

    The environment has the allow-list without the workspace on any path, the folder of the project, and the variables
    of the server's entry.

    Raises `ToolRefused` if the entry runs a file that is not the trusted one. Reads the disk.
    """
    if place.digests is not None:
        check_code(entry, place.workspace, place.digests)
    place.empty.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder_of(entry, place.workspace, place.empty, runs_workspace_code=place.runs_workspace_code)
    own = {"CLAUDE_PROJECT_DIR": str(place.workspace), "PWD": str(folder)}
    return (
        environment_away(clean_environment(place.environment, place.variables), entry, place.workspace)
        | own
        | entry.env
    )


def program_of(command: str, workspace: Path, path: str) -> str:
    """Return the program of a command: a path (relative to the workspace), or a name on PATH. Raises `ToolRefused`."""
    if "/" in command:
        candidate = os.path.join(workspace, os.path.expanduser(command))  # noqa: PTH111, PTH118 - a text of a file
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):  # noqa: PTH112 - the text that is returned
            return candidate
        raise ToolRefused(f"its command {command} is not a program that can be run (seen from {workspace})")
    for entry in path.split(os.pathsep):
        candidate = os.path.join(entry, command)  # noqa: PTH118 - text of PATH
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):  # noqa: PTH112 - the text that is returned
            return candidate
    raise ToolRefused(f"its command `{command}` was not found on PATH: install it, or write its whole path")


def _file_name(server: str) -> str:
    """Return a unique file name for a server."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", server)[:100]
    if plain == server:
        return plain
    return f"{plain}-{hashlib.blake2b(server.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


LOG_BYTES = 2_000_000
"""Most bytes of standard error that are kept of one start."""
POLITE = 1.0
"""Seconds that a server has to end by itself after its input is closed, before it is signalled."""
PATIENCE = 6.0
"""Seconds that Callboard's own process has to end the server (TERM, 2 s, KILL) before it is killed itself."""
_CHILD = str(Path(__file__).with_name("server_child.py"))
_CONTROL = 3


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Process of a server. `pid`: that of Callboard's process that watches it. The owner closes the descriptors."""

    pid: int
    watched: int
    control: int
    stdin: int
    stdout: int
    log: Path


def start(
    program: str, program_arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
) -> ServerProcess:
    """Start a program as a server. Raises OSError. Blocks for one or two milliseconds."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".old"))
    if replaced := release.OURS.replaced_by():
        raise OSError(replaced)
    arguments = [*release.child_python(), _CHILD, str(log), str(LOG_BYTES), str(folder), program, *program_arguments]
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
        server_in, stdin, stdout, server_out, control_read, control = ends
        # Above the numbers that the child gets, so that none of them is overwritten before its use.
        child_ends = [os.dup(end) if end < 4 else end for end in (server_in, server_out, control_read)]
        ends += [end for end in child_ends if end not in ends]
        pid = _spawn(arguments, environment, child_ends)
    except BaseException:
        for end in ends:
            os.close(end)
        raise
    for end in ends:
        if end not in (stdin, stdout, control):
            os.close(end)
    for end in (stdin, stdout):
        os.set_blocking(end, False)
    return ServerProcess(pid, open_process(pid), control, stdin, stdout, log)


def _spawn(arguments: list[str], environment: Mapping[str, str], child_ends: Sequence[int]) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        pairs = zip((*child_ends, null), (0, 1, _CONTROL, 2), strict=True)
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for source, number in pairs],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    finally:
        os.close(null)
    give_back(pid)
    return pid


async def end(started: ServerProcess, *, died: bool = False) -> int | None:
    """End the server and all its processes. Return its exit code if it ended by itself. Closes every descriptor.

    Its input is closed first, as the protocol requires; then TERM, 2 s, KILL. `died`: it has closed its output, so it
    is about to end by itself. Must not be interrupted.
    """
    code = None
    alone = False
    with anyio.CancelScope(shield=True):
        # Read before the input is closed: an exit code counts only if the server ended by itself
        # (test_a_dead_process_tells_its_exit_code_and_comes_back).
        alone = died and await _ended_within(started.watched, POLITE)
        os.close(started.stdin)
        ended = alone or await _ended_within(started.watched, POLITE)
        os.close(started.control)
        if not ended and not await _ended_within(started.watched, PATIENCE):
            _kill(started)
            await anyio.wait_readable(started.watched)
        code = reap(started.pid)
        # The child may have been killed before it could end the server's processes.
        await anyio.to_thread.run_sync(kill_session, started.pid)
        os.close(started.watched)
        os.close(started.stdout)
    return code if alone else None


def last_words(log: Path, most: int = 400) -> str:
    """Return the end of a server's standard error as one line, to explain a failure to the user."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4_000))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    text_lines = [line.strip() for line in lines if line.strip()]
    return " | ".join(text_lines[-3:])[-most:]


async def _ended_within(watched: int, seconds: float) -> bool:
    """Return True if the process ended within this number of seconds."""
    with anyio.move_on_after(seconds) as scope:
        await anyio.wait_readable(watched)
    return not scope.cancelled_caught


def _kill(started: ServerProcess) -> None:
    try:
        signal_process(started.watched, started.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has just ended


class BoundedBody(httpx2.AsyncByteStream):
    """Body of a response, limited to this number of bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int) -> None:
        self._body = body
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for data in self._body:
            read += len(data)
            if read > self._most:
                raise httpx2.StreamError(f"the answer has over {self._most:,} bytes")
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()


class ValidText(httpx2.AsyncByteStream):
    """Body of a response that is JSON, or events with JSON, passed on in whole lines of valid UTF-8.

    A line of over `longest` bytes is passed on in parts, unchanged: its reader refuses it.
    """

    def __init__(self, body: httpx2.AsyncByteStream, longest: int) -> None:
        self._body = body
        self._longest = longest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        first = True
        async for data in self._body:
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if end:
                yield _BATCH.sub(_separated, valid(bytes(held + data[:end]), first=first))
                held.clear()
                first = False
            held += data[end:]
            if len(held) > self._longest:
                yield bytes(held)
                held.clear()
                first = False
        if held:
            yield valid(bytes(held), first=first)

    async def aclose(self) -> None:
        await self._body.aclose()


class AnswerEvents(httpx2.AsyncByteStream):
    """Body of a response that is JSON, passed on as events: one for each of its messages."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        text = bytearray()
        try:
            async for data in self._body:
                text += data
        except httpx2.StreamError as error:
            text[:] = error_answer(0, str(error)).model_dump_json(by_alias=True).encode()
        # Line breaks in JSON are blanks. An empty body is no message either, but would be no event.
        lines = bytes(text).translate(_BREAKS).strip() or b"null"
        yield b"".join(b"data: " + message + b"\n\n" for message in messages_in(lines))

    async def aclose(self) -> None:
        await self._body.aclose()


def _separated(batch: re.Match[bytes]) -> bytes:
    return b"\n\n".join(b"data: " + message for message in messages_in(batch[1]))


def valid(text: bytes, *, first: bool = False) -> bytes:
    """Return JSON with a replacement character for each invalid byte and each half of a surrogate pair.

    `first`: a byte order mark at the beginning is removed.
    """
    text = text.removeprefix(_BOM) if first else text
    text = text.decode(errors="replace").encode()
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["half"] else match[0], text)
