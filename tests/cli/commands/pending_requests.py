"""An unhosted session with requests that wait for a person."""

from __future__ import annotations

import os
import time
from unittest import mock

import anyio
from tests.cli.commands.command import Command

from callboard.core.keys import request_key
from callboard.engine.commands import create_session
from callboard.ports.store import Put
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Request, SessionRow
from callboard.types.settings import Settings


def create_session_with(command: Command, *requests: Request, session: str = "s1", prompt: str = "") -> None:
    """Create an unhosted session with these pending requests."""

    async def write() -> None:
        store = await open_store(find_places(command.workspace), Settings(durability="process"), log_notice)
        now = time.time()
        lead = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")
        await create_session(
            store,
            SessionRow(id=session, workspace=str(command.workspace), created_at=now, prompt=prompt),
            lead,
            fence=None,
        )
        await store.commit(*(Put(request_key(session, one.id), one.encode(), 0) for one in requests))
        await store.aclose()

    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(write)


def stored_request(command: Command, request_id: str = "req_a1", *, session: str = "") -> Request:
    """Return the stored request of a session, by default of the newest one."""
    chosen = ("--session", session) if session else ()
    result = command.run_inline("show", request_id, *chosen, "--json")
    assert result.code == 0, result.err
    return Request.model_validate_json(result.out)
