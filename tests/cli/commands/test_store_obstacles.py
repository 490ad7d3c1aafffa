"""Obstacles to a write, like a stopped process with the lock or a full disk, are named, waited for, and left alone."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen
from tests.simulation.processes import Running, no_traceback, started, until

from callboard import Session
from callboard.adapters.storage.sqlite import open_store
from callboard.adapters.storage.sqlite import writer as writer_module
from callboard.ports.store import Append
from callboard.types.errors import StoreBusy, StoreFull

STOPS_IN_A_COMMIT = """
import os, signal, sys, time, anyio
from pathlib import Path
from callboard.adapters.storage.sqlite import open_store

async def main():
    store = await open_store(Path(sys.argv[1]))
    # the thread may run on for a moment, while the signal stops the others
    await store._writer.do(lambda transaction: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(0.2)))
    await store.aclose()

anyio.run(main)
"""
SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "touch began; until [ -e go ]; do sleep 0.05; done"}}}]
    - reply: Done as asked.
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def stopped_in_a_commit(folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """Start a process that holds the lock and is stopped."""
    child = subprocess.Popen([sys.executable, "-c", STOPS_IN_A_COMMIT, str(folder)])
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield child
    finally:
        child.kill()
        child.wait()


@contextmanager
def start_run(command: Command) -> Generator[Running]:
    """Start a run whose lead waits in a command for a file that does not exist yet."""
    model = command.scenario(SCENARIO)
    with started(command, "run", "--permission-mode", "bypassPermissions", "--model", model, "Hello.") as running:
        until((command.workspace / "began").exists, "the command runs")
        yield running


def store_of(command: Command) -> Path:
    (database,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")
    return database.parent


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_command_gives_up_and_names_the_stopped_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LOCK_WAIT", 0.3)
    store = await open_store(tmp_path / "s")
    with stopped_in_a_commit(tmp_path / "s") as child:
        with pytest.raises(StoreBusy, match=f"process {child.pid} .* is stopped: `kill -CONT {child.pid}`"):
            await store.commit(Append("s", b"one"))
        with pytest.raises(StoreBusy):
            await store.commit(Append("s", b"two"))
        child.send_signal(signal.SIGCONT)
        child.wait()
        await store.commit(Append("s", b"three"))
    assert [record.data for record in await store.read("s")] == [b"three"]
    await store.aclose()
    other = await open_store(tmp_path / "s")  # abandoned waits hold no lock
    await other.commit(Append("s", b"four"))
    await other.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [b"\x03", b"\x04"], ids=["ctrl-c", "ctrl-d"])
def test_the_prompt_line_is_left_while_a_stopped_process_holds_the_lock(command: Command, keys: bytes) -> None:
    model = command.scenario("agents:\n  lead:\n    - otherwise: true\n      reply: I hear you.\n")
    screen = PtyScreen(command, "--model", model)
    try:
        screen.wait(r"^> *$")
        with stopped_in_a_commit(store_of(command)) as child:
            screen.type(b"Hello.\r")
            screen.wait(f"process {child.pid}")
            screen.type(keys)
            if keys == b"\x03":
                screen.wait("Ctrl-C again within 2 s leaves")
                screen.type(keys)
            screen.wait("may not have been written")
            assert screen.process.wait(60) == (130 if keys == b"\x03" else 0)
    finally:
        screen.close()


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_run_waits_for_a_stopped_process_and_can_be_ended(command: Command, goes_on: bool) -> None:
    with start_run(command) as running, stopped_in_a_commit(store_of(command)) as child:
        (command.workspace / "go").touch()
        running.wait_for(f"process {child.pid}")
        running.wait_for("is stopped")
        if goes_on:
            child.send_signal(signal.SIGCONT)
            running.wait_for("free again")
        else:
            running.signal(signal.SIGTERM)
        ended = running.end()
    no_traceback(ended)
    assert ended.code == (0 if goes_on else 143)
    assert ended.out == ("Done as asked.\n" if goes_on else "")
    if not goes_on:
        resumed = command.run("resume")
        assert (resumed.code, resumed.out) == (0, "Done as asked.\n"), resumed.err


@pytest.mark.slow
def test_a_first_ctrl_c_ends_a_run_that_cannot_write(command: Command) -> None:
    with start_run(command) as running, stopped_in_a_commit(store_of(command)):
        running.signal(signal.SIGINT)
        assert running.end().code == 130


@pytest.mark.slow
def test_a_run_waits_for_room_on_the_disk(command: Command) -> None:
    with start_run(command) as running:
        before = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        (command.workspace / "go").touch()
        running.wait_for("cannot be written")
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, before)
        running.wait_for("can be written again")
        ended = running.end()
    no_traceback(ended)
    assert (ended.code, ended.out) == (0, "Done as asked.\n")


@pytest.mark.anyio
async def test_a_full_disk_is_told_at_once_where_nothing_is_hosted(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(StoreFull):
            await store.commit(Append("s", b"x"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await store.commit(Append("s", b"y"))
    await store.aclose()


STOPS_WHILE_OPENING = """
import os, signal, sys
from pathlib import Path
from callboard.adapters.storage.sqlite import opening, place

def stop(folder):
    os.kill(os.getpid(), signal.SIGSTOP)

opening._make_or_check = stop
opening.open_folder(Path(sys.argv[1]), durable=False, patience=opening.Patience())
"""


@contextmanager
def stopped_while_opening(command: Command) -> Generator[int]:
    """Yield the id of a process that is stopped while it opens the store of a workspace with one session."""
    assert (
        command.run_inline("run", "--model", command.scenario("agents: {lead: [{reply: Done.}]}"), "Hello.").code == 0
    )
    holder = subprocess.Popen([sys.executable, "-c", STOPS_WHILE_OPENING, str(store_of(command))])
    try:
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


RUN = "run --model rehearsal:{scenario} Hello."


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, signal.SIGINT) for name in ("sessions", RUN, "resume")),
        *((name, signal.SIGTERM) for name in ("sessions", "cron list", "cron next cron_1", RUN, "resume", "attach")),
        *((name, signal.SIGTERM) for name in ("backup", "restore {backup} --replace", "rate", "doctor")),
        *((name, signal.SIGTERM) for name in ("workflow list", "workflow show", "serve", "serve --dry-run")),
        ("service status", signal.SIGTERM),
    ],
)
def test_a_command_names_the_stopped_process_it_waits_for_and_can_be_ended(
    command: Command, number: signal.Signals, name: str, tmp_path: Path
) -> None:
    scenario = tmp_path / "again.yaml"
    scenario.write_text("agents: {lead: [{reply: Done.}]}")
    backup = tmp_path / "backup.tar.gz"
    backup.touch()
    arguments = name.format(scenario=scenario, backup=backup).split()
    with stopped_while_opening(command) as holder, started(command, *arguments) as running:
        running.wait_for(f"process {holder}")
        running.wait_for("is stopped")
        running.signal(number)
        ended = running.end()
    no_traceback(ended)
    assert ended.code == 128 + number
    assert ended.err.count("is stopped") == 1


class MessageWatch(logging.Handler):
    """Handler that signals the first message of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.come.set()


def test_a_program_finds_the_stopped_process_in_its_log(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = MessageWatch()

    async def open_session() -> None:
        async with Session(command.workspace, model="rehearsal:none.yaml"):
            raise AssertionError("the store is still locked")

    async def wait_for_it() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(open_session)
            await anyio.to_thread.run_sync(handler.come.wait)
            group.cancel_scope.cancel()

    log = logging.getLogger("callboard")
    with stopped_while_opening(command) as holder:
        for name, value in command.env.items():
            monkeypatch.setenv(name, value)
        log.addHandler(handler)
        try:
            anyio.run(wait_for_it)
        finally:
            log.removeHandler(handler)
    (message,) = handler.messages
    assert f"process {holder}" in message
    assert "is stopped" in message
