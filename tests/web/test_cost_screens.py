"""What sessions cost, on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.core.agent.decisions import prompted
from tests.web.page_client import opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, journal, session_key
from callboard.ports.store import Append, Put, Store
from callboard.types.records import AgentRow, SessionRow, Usage

USED = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)


async def store_with(*sessions: str) -> Store:
    store = MemoryStore()
    for number, name in enumerate(sessions):
        row = SessionRow(id=name, workspace="/w", created_at=float(number), prompt=f"Mend {name}")
        await store.commit(Put(session_key(name), row.encode()))
        await store.commit(Put(agent_key(name, "lead"), AgentRow(name="lead", kind="lead", created_at=1.0).encode()))
        events = prompted().asked().replied(usage=USED).events
        await store.commit(*(Append(journal(name, "lead", 1), event.encode()) for event in events))
    return store


@pytest.mark.anyio
async def test_the_sum_of_all_sessions_and_each_session(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with("s1", "s2")) as page:
        text = (await page.get("/cost")).text
        assert text.count("$0.5000") == 2, "of the day, and of the model"
        assert re.findall(r'href="(/sessions/s./cost)"', text) == ["/sessions/s2/cost", "/sessions/s1/cost"]
        one = (await page.get("/sessions/s1/cost")).text
        assert one.count("$0.2500") == 4, "day, model, agent, and all"
        for path in ("/cost/events", "/sessions/s1/cost/events"):
            assert (await page.get(path)).text.startswith("data: <hx-partial")
        assert (await page.get("/sessions/s3/cost")).status == 409


@pytest.mark.anyio
async def test_older_sessions_are_counted_and_not_read(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(*(f"s{number:02}" for number in range(22)))) as page:
        assert "2 older sessions are not counted here." in (await page.get("/cost")).text
