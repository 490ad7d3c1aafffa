"""Permissions on the page: a call explained, the rules of the settings, and the decisions of a session."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.core.agent.agent_states import Life
from tests.core.agent.decisions import prompted
from tests.web.page_client import opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, journal, refusals, rule_key, session_key
from callboard.ports.store import Append, Put, Store
from callboard.types import events as ev
from callboard.types.records import AgentRow, RefusedRequest, SessionRow, SessionRule, ToolCall

PATH = "/sessions/s1/decisions"
SETTINGS = """
permission:
  allow: ["Bash(make test)"]
  deny: ["Bash(git push:*)"]
"""


def judged(count: int) -> Life:
    """Return a life with calls, of which every second one was denied."""
    calls = tuple(
        ToolCall(id=f"call_{number}", use_id=f"u{number}", name="bash", input={"command": f"echo {number}."})
        for number in range(count)
    )
    life = prompted().asked().replied(calls=calls)
    for number, call in enumerate(calls):
        verdict = "deny" if number % 2 else "allow"
        fields = {"call": call.id, "verdict": verdict, "by": "mode default", "why": "", "mode": "default", "level": 0}
        life = life.on(ev.CallJudged, **fields)
    return life


async def store_with(events: int) -> Store:
    store = MemoryStore()
    await store.commit(Put(session_key("s1"), SessionRow(id="s1", workspace="/w", created_at=1.0).encode()))
    await store.commit(Put(agent_key("s1", "alice"), AgentRow(name="alice", kind="teammate", created_at=1.0).encode()))
    await store.commit(*(Append(journal("s1", "alice", 1), event.encode()) for event in judged(events).events))
    rule = SessionRule(id="rule_a", rule="Bash(npm test:*)", effect="allow", created_at=time.time())
    await store.commit(Put(rule_key("s1", rule.id), rule.encode()))
    refused = RefusedRequest(at=time.time(), pid=7, program="curl", action="POST /waiting", why="it was a tool")
    await store.commit(Append(refusals("s1"), refused.encode()))
    return store


@pytest.mark.anyio
async def test_a_call_is_explained_under_the_rules_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config" / "callboard"
    config.mkdir(parents=True)
    (config / "settings.yaml").write_text(SETTINGS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    async with opened_page(tmp_path) as page:
        text = (await page.get("/policy")).text
        assert "Bash(git push:*)" in text
        assert "hx-sse:connect" not in text, "nothing changes on it"
        pushed = (await page.get("/policy?call=git+push+origin&agent_type=lead")).text
        assert 'class="line bad">deny  bash  git push origin' in pushed
        assert 'class="line good">allow' in (await page.get("/policy?call=make+test")).text
        wrong = (await page.get("/policy?call=x&tool=bash&agent_type=nobody")).text
        assert "unknown agent type" in wrong
        assert "unknown mode" in (await page.get("/policy?call=x&mode=never")).text


@pytest.mark.anyio
async def test_decisions_are_listed_newest_first_a_page_at_a_time(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(120)) as page:
        text = (await page.get(PATH)).text
        assert text.index("POST /waiting") < text.index("echo 119.") < text.index("echo 118.")
        assert ("echo 20." in text, "1 to 100 of 121" in text) == (False, True)
        assert f'href="{PATH}?skip=100">Older' in text
        older = (await page.get(f"{PATH}?skip=100")).text
        assert ("echo 0." in older, "echo 21." in older, "Newer" in older) == (True, False, True)
        denied = (await page.get(f"{PATH}?denied=1&agent=alice")).text
        assert ("echo 119." in denied, "echo 118." in denied, "POST /waiting" in denied) == (True, False, False)
        assert (await page.get(f"{PATH}?skip=x")).status == 409
        assert (await page.get(f"{PATH}/events?denied=1")).text.startswith("data: <hx-partial")


@pytest.mark.anyio
async def test_a_rule_of_the_session_is_revoked(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(1)) as page:
        assert 'value="rule_a"' in (await page.get(PATH)).text
        assert (await page.post(f"{PATH}/revoke", {"rule": "rule_a"})).status == 303
        after = (await page.get(PATH)).text
        assert ("revoked" in after, 'value="rule_a"' in after) == (True, False)
        again = await page.post(f"{PATH}/revoke", {"rule": "rule_a"})
        assert (again.status, "already revoked" in again.text) == (409, True)
