"""A session with requests that wait for a person, and that no process hosts."""

from __future__ import annotations

import os
import time
from unittest import mock

import anyio
from tests.cli.commands.command import Command

from callboard.core.keys import request_key
from callboard.engine.commands import create_session
from callboard.ports.store import Put
from callboard.sessions.compose import find_places, log_notice, open_store
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Request, SessionRow


def put(command: Command, *requests: Request) -> None:
    """Create the session `s1` in which these requests wait, and that nobody hosts."""

    async def write() -> None:
        store = await open_store(find_places(command.workspace), "process", log_notice)
        now = time.time()
        lead = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")
        await create_session(
            store, SessionRow(id="s1", workspace=str(command.workspace), created_at=now), lead, fence=None
        )
        await store.commit(*(Put(request_key("s1", one.id), one.encode(), 0) for one in requests))
        await store.aclose()

    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(write)


def row(command: Command, request_id: str = "req_a1") -> Request:
    """Return the stored request."""
    shown = command.here("show", request_id, "--json")
    assert shown.code == 0, shown.err
    return Request.model_validate_json(shown.out)
