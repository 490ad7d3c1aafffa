"""Sessions of a `callboard serve`: those whose host died, that cannot be opened, that end meanwhile, and its limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.sessions.serving_here import ServingHere, serving_here

from callboard.sessions import serve_sessions

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ServingHere]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setattr(serve_sessions, "LEFT_WITHIN", 0.05)  # no host here removes its row late
    async with serving_here(tmp_path) as here:
        yield here


# A session whose host died


async def test_a_session_of_a_dead_host_ends_with_its_exit_code(here: ServingHere) -> None:
    session = await here.orphan()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
    assert here.texts("left") == ["its work is done, exit code 0"]
    row = await here.row(session)
    assert (row.exit_code, row.ended_at is None) == (0, False)
    assert (await here.is_queued(session), await here.is_hosted(session)) == (False, False)


async def test_a_session_of_a_dead_host_that_is_handed_over_waits_for_another_one(here: ServingHere) -> None:
    here.scenario(latency=100_000)
    session, leaving = await here.orphan(), anyio.Event()
    async with here.serving(here.server(leaving=leaving)):
        await here.until(lambda: bool(here.texts("hosting")))
        leaving.set()
        await here.until(lambda: bool(here.texts("left")))
    assert here.texts("left") == ["handed over: another host continues it"]
    assert await here.is_queued(session)


async def test_a_session_of_a_dead_host_that_cannot_be_opened_still_needs_a_host(here: ServingHere) -> None:
    session = await here.orphan()
    (here.folder / "scenario.yaml").unlink()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("trouble")))
    assert await here.is_queued(session)
