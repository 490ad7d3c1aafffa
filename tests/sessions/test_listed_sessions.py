"""The list of sessions distinguishes an ended session from a continued one."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, session_key
from callboard.ports.store import Put
from callboard.sessions.inspect.health import listed_sessions
from callboard.sessions.inspect.resources import SESSIONS
from callboard.types.records import AgentLife, AgentRow, SessionRow


@pytest.mark.parametrize(
    ("life", "since", "state"),
    [
        ("working", 30.0, "open"),
        ("waiting", 30.0, "open"),
        ("idle", 30.0, "done"),
        ("stopped", 30.0, "done"),
        ("waiting", 15.0, "done"),
    ],
)
def test_a_session_whose_lead_works_again_is_open(life: AgentLife, since: float, state: str) -> None:
    async def listed() -> str:
        store = MemoryStore()
        row = SessionRow(id="s1", workspace="/w", created_at=10.0, ended_at=20.0, exit_code=0)
        lead = AgentRow(name="lead", kind="lead", life=life, since=since)
        await store.commit(Put(session_key("s1"), row.encode()), Put(agent_key("s1", "lead"), lead.encode()))
        return SESSIONS.cells(await listed_sessions(store))[1][0][2]

    assert anyio.run(listed) == state
