"""Open files: the limit of a server and of its programs, and none left open by a session."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from callboard.adapters.storage.sqlite import open_store
from callboard.adapters.system.open_files import give_back, raise_limit
from callboard.ports.store import Put
from callboard.sessions.open import open_session
from callboard.sessions.options import IdentityOptions, ModelOptions, SessionOptions, WorkspaceOptions

SCENARIO = "agents:\n  lead:\n    - repeat: forever\n      reply: Done.\n"


def test_a_server_raises_its_limit_and_gives_programs_the_old_one_back() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        put_back = raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65_536) or hard == resource.RLIM_INFINITY
        words = "import resource, sys; sys.stdin.read(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        with subprocess.Popen(
            [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            give_back(program.pid)
            assert program.communicate("")[0].strip() == str(low)
        put_back()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == low
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_sessions_that_are_opened_and_closed_leave_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    workspace, scenario = tmp_path / "w", tmp_path / "s.yaml"
    workspace.mkdir()
    scenario.write_text(SCENARIO)

    async def opened() -> int:
        async with open_session(
            SessionOptions(
                WorkspaceOptions(workspace),
                identity=IdentityOptions(prompt="Go."),
                model=ModelOptions(f"rehearsal:{scenario}"),
            )
        ) as session:
            await session.wait_finished()
        return len(os.listdir("/proc/self/fd"))

    async def counts() -> list[int]:
        return [await opened() for _ in range(4)]

    gc.disable()
    try:
        found = anyio.run(counts)
    finally:
        gc.enable()
    assert found[1:] == found[:1] * 3


def test_a_follower_goes_on_from_the_newest_revision_of_the_whole_store(tmp_path: Path) -> None:
    """Otherwise an idle session would read everything that a busy one beside it ever wrote, each time."""

    async def reached() -> list[int]:
        store = await open_store(tmp_path, durability="process")
        try:
            async with store.watch("idle/") as rows:
                feed = rows
                for number in range(3):
                    await store.commit(Put(f"busy/{number}", b"x"))
                await store.commit(Put("idle/a", b"x"))
                async for row in feed:
                    assert row.key == "idle/a"
                    break
            from callboard.adapters.storage.sqlite import statements
            from callboard.adapters.storage.sqlite.schema import connect

            connection = connect(tmp_path, durable=False, reading=True)
            try:
                await store.commit(Put("busy/9", b"x"))
                return [statements.changes(connection, "idle/", position)[1] for position in (0, 4)]
            finally:
                connection.close()
        finally:
            await store.aclose()

    assert anyio.run(reached) == [5, 5]
