"""`callboard hosts`: the processes of a store, their labels and sessions, and the sessions that wait."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.simulation.serving import end, new_session, one_shot, serve, stand_of

from callboard.core.keys import queue_key
from callboard.ports.store import Put
from callboard.types.records import QueuedSession


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


async def _prepare(command: Command, session: str, waiting: str) -> None:
    async with stand_of(command) as stand:
        await stand.put(session, [one_shot(1, time.time() + 3_600)])
        queued = QueuedSession(since=1.0, placement={"gpu": "a100"})
        await stand.store.commit(Put(queue_key(waiting), queued.encode()))


def test_hosts_and_waiting_sessions_are_listed_with_the_reason(command: Command) -> None:
    nothing = command.run_inline("hosts")
    assert "start one with `callboard serve`" in nothing.out
    session = new_session(command)
    anyio.run(_prepare, command, session, "waiting")
    running = serve(command, "--label", "docker", "--sessions", "3")
    try:
        running.wait_for("hosting")
        listed = json.loads(command.run_inline("hosts", "--json").out)
        table = command.run_inline("hosts").out
        unknown = command.run_inline("hosts", "drain", "elsewhere")
    finally:
        end(running)
    (host,) = listed["hosts"]
    assert (host["name"], host["state"]) == (f"{socket.gethostname()}:{running.pid}", "serving")
    assert (host["sessions"], host["limit"], host["labels"]["docker"]) == ([session], 3, "yes")
    (waiting,) = listed["waiting"]
    assert waiting["session"] == "waiting"
    assert "gpu=a100" in waiting["why"]
    assert "1 of 3" in table
    assert "gpu=a100" in table
    assert unknown.code == 2
    assert host["name"] in unknown.err
