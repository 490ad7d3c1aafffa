"""The context of an agent and its mail on the page: what fills the window, what was cut, and the undo."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.core.agent.agent_states import Life
from tests.web.page_client import OWN, Page, opened_page
from tests.web.test_inert import HOSTILE, check_inert

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, journal, mailbox, session_key
from callboard.ports.store import Append, Put, Store
from callboard.types import events as ev
from callboard.types.messages import Edit, Placed
from callboard.types.records import AgentRow, Envelope, SessionRow

PATH = "/sessions/s1/agents/alice"


def cut_life(text: str = "go") -> Life:
    """Return a life whose first reply was removed from its view."""
    life = Life.begun().prompted(text).said(f"said {text} " * 50).on(ev.TurnEnded, turn="turn_0", reason="end")
    reply = list(life.state.context.conversation.messages)[-1].id
    note = Placed(data={"type": "text", "text": "[cut]"}, source="reminder")
    edit = Edit(kind="dropped", message=reply, last=reply, blocks=(note,))
    sizes = {"tokens_before": 500, "tokens_after": 200, "revision": 0}
    return life.on(ev.ContextEdited, stage="snip_middle", edits=(edit,), why=f"because {text}", **sizes)


async def write_life(store: Store, life: Life, *, agent: str = "alice", mail: Sequence[Envelope] = ()) -> None:
    """Write an agent with its journal and its mailbox into session s1."""
    row = AgentRow(name=agent, kind="teammate", created_at=1.0, life="idle")
    await store.commit(Put(agent_key("s1", agent), row.encode()))
    blob = await store.put_blob(b"[]")
    events = [
        event.model_copy(update={"system": blob, "tools": blob}) if isinstance(event, ev.PromptSet) else event
        for event in life.events
    ]
    await store.commit(*(Append(journal("s1", agent, 1), event.encode()) for event in events))
    received = [event.envelope for event in life.events if isinstance(event, ev.EnvelopeReceived)]
    await store.commit(*(Append(mailbox("s1", agent, 1), envelope.encode()) for envelope in (*received, *mail)))


async def store_of(life: Life, *mail: Envelope) -> Store:
    store = MemoryStore()
    await store.commit(Put(session_key("s1"), SessionRow(id="s1", workspace="/w", created_at=1.0).encode()))
    await write_life(store, life, mail=mail)
    return store


@pytest.mark.anyio
async def test_what_was_cut_is_shown_where_it_happened_and_can_be_undone() -> None:
    life = cut_life()
    seq = len(life.events)
    async with opened_page(store=await store_of(life)) as page:
        transcript = (await page.get(PATH)).text
        assert f'href="{PATH}/context#edit-{seq}"' in transcript
        text = (await page.get(f"{PATH}/context")).text
        assert f'id="edit-{seq}"' in text
        assert "because go" in text
        assert "500 → 200 tokens" in text
        undone = await page.post(f"{PATH}/context/undo", {"edit": str(seq)}, {**OWN, "hx-request": "true"})
        assert (undone.status, f"alice undid {seq}" in undone.text) == (200, True), undone.text
        after = (await page.get(f"{PATH}/context")).text
        assert "undone by" in after
        assert "alice undid" not in after
        again = await page.post(f"{PATH}/context/undo", {"edit": str(seq)})
        assert (again.status, "was undone already" in again.text) == (409, True)
        assert (await page.post(f"{PATH}/context/undo", {"edit": "x"})).status == 409
        assert (await page.get(f"{PATH}/context/events")).text.startswith("data: <hx-partial")


@pytest.mark.anyio
async def test_messages_have_their_receipts() -> None:
    mail = Envelope(id="env_9", sender="bob", recipient="alice", type="message", content="one\ntwo", sent_at=5.0, seq=1)
    async with opened_page(store=await store_of(cut_life(), mail)) as page:
        text = (await page.get(f"{PATH}/mail")).text
        assert ("bob" in text, "<summary>one</summary>" in text, "sent" in text) == (True, True, True)
        assert (await page.get(f"{PATH}/mail/events")).text.startswith("data: <hx-partial")


@pytest.mark.anyio
@pytest.mark.parametrize("text", HOSTILE[::37])
async def test_both_screens_are_inert(text: str) -> None:
    mail = Envelope(id="env_9", sender=text, recipient="alice", type="message", content=text, sent_at=5.0, seq=1)
    async with opened_page(store=await store_of(cut_life(text), mail)) as page:
        for path in (f"{PATH}/context", f"{PATH}/mail", PATH):
            check_inert(await shown(page, path))


async def shown(page: Page, path: str) -> str:
    response = await page.get(path)
    assert response.status == 200, response.text
    return response.text
