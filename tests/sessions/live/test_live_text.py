"""Live text of a session through the private socket of its host: joined late, slow, killed, refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog
from tests.cli.commands.command import Command
from tests.simulation.processes import AtTerminal, started
from tests.simulation.streaming_service import MODEL, StreamedReply, StreamingService, streaming_service

from callboard.adapters.processes import tool_ancestry
from callboard.adapters.processes.pids import started_at
from callboard.adapters.processes.private_socket import connect_to, listen_at, peer_of, socket_name
from callboard.core.keys import live_purpose
from callboard.core.live.frames import MOST_WAITING, LiveFrame, LiveRequest, request_line
from callboard.ports.store import LeaseHolder
from callboard.sessions.hosted import HostedSession
from callboard.sessions.live.follower import read_live
from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions

pytestmark = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def service() -> Iterator[StreamingService]:
    with streaming_service() as serving:
        yield serving


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: StreamingService) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return folder


class Heard:
    """Frames of one follower."""

    def __init__(self) -> None:
        self.frames: list[LiveFrame] = []
        self._news = anyio.Event()

    def take(self, frame: LiveFrame) -> None:
        self.frames.append(frame)
        self._news.set()
        self._news = anyio.Event()

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames if frame.kind == "text")

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not holds():
                await self._news.wait()


@asynccontextmanager
async def hosting(workspace: Path) -> AsyncIterator[HostedSession]:
    options = SessionOptions(WorkspaceOptions(workspace), model=ModelOptions(MODEL))
    async with open_session(options) as session:
        yield session


@asynccontextmanager
async def following(session: HostedSession, request: LiveRequest | None = None) -> AsyncIterator[Heard]:
    heard = Heard()
    async with anyio.create_task_group() as group:
        asked = request or LiveRequest()
        group.start_soon(partial(read_live, session.places.live, session.id, me(), asked, take=heard.take))
        yield heard
        group.cancel_scope.cancel()


def me() -> LeaseHolder:
    return LeaseHolder(os.getpid(), started_at(os.getpid()) or 0.0)


def socket_of(session: HostedSession) -> Path:
    name = socket_name(me().pid, me().started, live_purpose(session.id))
    return session.places.live / name


async def asked(service: StreamingService) -> StreamedReply:
    return await anyio.to_thread.run_sync(service.reply)


@pytest.mark.anyio
async def test_a_follower_gets_text_as_it_streams_also_from_the_middle_of_a_reply(
    workspace: Path, service: StreamingService
) -> None:
    async with hosting(workspace) as session:
        path = socket_of(session)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await session.say("Go.")
        reply = await asked(service)
        async with following(session) as first, following(session, LiveRequest(frozenset({"bob"}))) as other:
            reply.think("Hm.")
            reply.open_text()
            reply.more("One, ")
            await first.until(lambda: first.text == "One, ")
            async with following(session, LiveRequest(frozenset({"lead"}))) as late:
                await late.until(lambda: late.text == "One, ")
                reply.more("two \ud83d\ude00.")
                await first.until(lambda: first.text == "One, two \U0001f600.")
                await late.until(lambda: late.text == first.text)
                reply.finish(closes_block=True)
                assert (await session.wait_finished()).text == first.text
        assert [frame.kind for frame in first.frames][:2] == ["thinking", "text"]
        assert len({frame.reply for frame in (*first.frames, *late.frames)}) == 1
        assert other.frames == []
    assert list(path.parent.iterdir()) == []


@pytest.mark.anyio
async def test_a_reader_that_does_not_read_misses_a_reply_and_holds_nobody_up(
    workspace: Path, service: StreamingService
) -> None:
    piece = "x" * 50_000
    async with hosting(workspace) as session:
        idle = connect_to(socket_of(session).parent, socket_of(session).name)
        assert idle is not None
        idle.sendall(request_line(LiveRequest()))
        await session.say("Go.")
        reply = await asked(service)
        async with following(session) as reader:
            reply.open_text()
            for number in range(2 * MOST_WAITING // len(piece)):
                reply.more(piece)
                await reader.until(lambda number=number: len(reader.text) == (number + 1) * len(piece))
            reply.finish(closes_block=True)
            assert len((await session.wait_finished()).text) == len(reader.text)
        received = await anyio.to_thread.run_sync(_all_of, idle)
    assert b'"kind":"lost"' in received
    assert len(received) < MOST_WAITING + 500_000, "what the kernel had taken, and the mark"


def _all_of(connection: socket.socket) -> bytes:
    data = bytearray()
    connection.settimeout(60)
    with connection:
        while True:
            if b'"lost"' in data[-1_000:] or not (part := connection.recv(65_536)):
                return bytes(data)
            data += part


@pytest.mark.anyio
async def test_a_long_path_is_no_obstacle_and_sockets_of_ended_hosts_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40) / "live"
    folder.mkdir(parents=True, mode=0o755)
    dead = socket_name(2**22 + 1, 5.0, "live_dead")
    for name in (dead, "a-note"):
        (folder / name).touch()
    name = socket_name(os.getpid(), started_at(os.getpid()) or 0.0, "live_x")
    with listen_at(folder, name) as listener:
        assert sorted(path.name for path in folder.iterdir()) == sorted([name, "a-note"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        client = connect_to(folder, name)
        assert client is not None
        with client, listener.accept()[0] as connection:
            owner = peer_of(connection)
        assert (owner.origin, owner.pid) == ("person", os.getpid())
        assert connect_to(folder, "other") is None
    assert connect_to(folder, name) is None


def test_an_attached_terminal_shows_text_before_the_reply_is_complete_and_once(
    tmp_path: Path, service: StreamingService
) -> None:
    command = Command(tmp_path)
    command.env.update(service.environment)
    with started(command, "run", "--model", MODEL, "Go.") as host:
        reply = service.reply()
        reply.open_text()
        reply.more("First paragraph.\n\nSecond")
        person = AtTerminal(command, "attach")
        person.wait_for("First paragraph.")
        killed = AtTerminal(command, "attach")
        killed.wait_for("First paragraph.")
        killed.process.send_signal(signal.SIGKILL)
        killed.end()
        reply.more(" paragraph.\n\nThird")
        person.wait_for("Second paragraph.")
        reply.more(" paragraph.")
        reply.finish(closes_block=True)
        assert host.end().out == "First paragraph.\n\nSecond paragraph.\n\nThird paragraph.\n"
        person.wait_for("its host has left the session")
        assert person.end() == 0
    for words in ("First paragraph.", "Second paragraph.", "Third paragraph."):
        assert person.shown.count(words) == 1, person.shown
    assert "Traceback" not in person.shown


def test_void_text_is_marked_and_a_killed_host_ends_its_follower(tmp_path: Path, service: StreamingService) -> None:
    command = Command(tmp_path)
    command.env.update(service.environment)
    with started(command, "run", "--model", MODEL, "Go.") as host:
        reply = service.reply()
        reply.text("Nothing of this.\n\n", "And")
        person = AtTerminal(command, "attach")
        person.wait_for("Nothing of this.")
        reply.fail()
        person.wait_for("partial reply dropped: overloaded")
        again = service.reply()
        again.text("Something.\n\n", "Else")
        person.wait_for("Something.")
        host.signal(signal.SIGKILL)
        host.end()
        person.wait_for("has died")
        assert person.end() == 1


READER = """
import os, socket, sys
folder, name = os.path.split(sys.argv[1])
os.chdir(folder)  # the whole path may be too long
with socket.socket(socket.AF_UNIX) as s:
    s.connect(name)
    try:
        s.sendall(b'{"live":1,"agents":null}\\n')
        got = s.recv(1)
    except ConnectionError:  # it was closed with this line unread
        got = b""
print("GOT" if got else "REFUSED")
"""


HIDDEN = """
import os, sys
from callboard.adapters.processes.tool_mark import mark_process
mark_process()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.anyio
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
async def test_a_tools_process_is_refused_also_if_it_hides(workspace: Path) -> None:
    async with hosting(workspace) as session:
        attack = ["-c", READER, str(socket_of(session))]
        plain = {name: value for name, value in os.environ.items() if name != "CALLBOARD_TOOL"}
        said: list[str] = []
        for words, marked in ((attack, {}), (attack, {"CALLBOARD_TOOL": "1"}), (["-c", HIDDEN, *attack], {})):
            ran = await anyio.run_process([sys.executable, *words], env={**plain, **marked})
            said.append(ran.stdout.decode().strip())
    assert said == ["GOT", "REFUSED", "REFUSED"]


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_real_agent_reads_nothing_at_any_level_of_the_sandbox(
    tmp_path: Path, service: StreamingService, level: int
) -> None:
    """Its command looks for the socket of its own session, and drops its variables and its ancestors."""
    command = Command(tmp_path)
    command.env.update(service.environment)
    (command.workspace / "reader.py").write_text(READER)
    words = f"{shlex.quote(sys.executable)} reader.py $socket"
    live = shlex.quote(str(Path(command.env["XDG_STATE_HOME"]) / "callboard"))
    (command.workspace / "attack.sh").write_text(
        f"for socket in {live}/*/live/*; do\n{words} 2>&1 | tail -n 1\nenv -i {words} 2>&1 | tail -n 1\n"
        f"setsid env -i {words} 2>&1 | tail -n 1\ndone\n"
    )
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"sandbox: {{level: {level}, unattended: any}}\n")
    with started(command, "run", "--permission-mode", "bypassPermissions", "--model", MODEL, "Read it.") as host:
        first = service.reply()
        first.call("bash", '{"command": "sh attack.sh"}')
        first.finish()
        second = service.reply()
        result = json.dumps(second.body["messages"][-1])
        second.text("Done.")
        second.finish()
        assert host.end().code == 0
    assert "GOT" not in result
    assert level or result.count("REFUSED") == 6, "the sockets for followers and for announcements: " + result
    if not level:
        session = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
        log = json.loads(command.run_inline("policy", "log", "--session", session, "--json").out)
        assert "web" in {entry["tool"] for entry in log}


@pytest.mark.anyio
async def test_a_follower_without_a_log_prints_nothing_when_the_text_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    holder = me()
    with listen_at(tmp_path, socket_name(holder.pid, holder.started, live_purpose("s1"))) as listener:
        async with anyio.create_task_group() as group:

            async def answer() -> None:
                await anyio.wait_readable(listener)
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"of another version\n")

            group.start_soon(answer)
            assert not await read_live(tmp_path, "s1", holder, LiveRequest(), take=lambda _: None)
    assert capsys.readouterr() == ("", "")
