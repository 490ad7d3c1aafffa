"""A person's words to a teammate: new work for one who rests, a word on the work of one who is at it."""

from __future__ import annotations

import pytest

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, mailbox
from callboard.engine.commands import send_prompt
from callboard.ports.store import Put
from callboard.types.records import AgentLife, AgentRow, Envelope

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "life", "assigns"),
    [
        ("alice", "idle", True),
        ("alice", "crashed", True),
        ("alice", "starting", False),
        ("alice", "working", False),
        ("alice", "waiting", False),
        ("lead", "idle", False),
    ],
)
async def test_a_word_to_one_who_is_at_work_is_no_new_work_that_would_need_a_plan_of_its_own(
    name: str, life: AgentLife, assigns: bool
) -> None:
    store = MemoryStore()
    row = AgentRow(name=name, kind="lead" if name == "lead" else "teammate", life=life)
    await store.commit(Put(agent_key("s", name), row.encode()))
    await send_prompt(store, "s", "use tabs", to=name, now=1.0, nonce="n")
    (sent,) = [Envelope.model_validate_json(one.data) for one in await store.read(mailbox("s", name, 1))]
    assert (sent.content, sent.type, bool(sent.metadata.get("assignment"))) == ("use tabs", "prompt", assigns)
    await store.aclose()
