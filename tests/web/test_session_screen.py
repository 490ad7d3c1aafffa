"""The screen of a session: who waits for whom, the board, and actions on any of its agents."""

from __future__ import annotations

import pytest
from tests.web.large_session import fill
from tests.web.page_client import OWN, Page, opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, mailbox
from callboard.core.team.waits import WaitEdge, deadlocks
from callboard.ports.store import Put
from callboard.types.records import AgentRow, Budget, Envelope
from callboard.web.sessions import waits_section

PATH = "/sessions/s1"


async def mail_of(page: Page, agent: str) -> list[Envelope]:
    return [Envelope.model_validate_json(record.data) for record in await page.store.read(mailbox("s1", agent, 1))]


@pytest.mark.anyio
async def test_a_session_shows_who_waits_for_whom_and_what_blocks_each_task() -> None:
    store = MemoryStore()
    await fill(store, agents=6)
    async with opened_page(store=store) as page:
        text = (await page.get(PATH)).text
        assert "agent-002 waits for agent-003: an answer to its question req_agent-002; agent-003 waits" in text
        assert '<g class="bad">' in text, "the two are marked"
        assert text.count("<li>") == 4, "each wait is listed"
        assert '<a href="#task-task_3">Mend part 3</a>' in text
        assert "make test" in text
        assert text.count("You cannot answer it.") == 3
        assert text.count("reads your answer later") == 1, "only agent-004 asks the person"
        heads = ("Ready", "Waits", "In progress", "Completed", "Failed")
        assert all(f"<h3>{head} " in text for head in heads)


@pytest.mark.anyio
async def test_actions_reach_the_agent_that_the_form_names() -> None:
    store = MemoryStore()
    await fill(store, agents=3)
    async with opened_page(store=store) as page:
        for form in (
            {"act": "say", "agent": "agent-001", "text": "Use slate."},
            {"act": "interrupt", "agent": "agent-001"},
            {"act": "stop", "agent": "agent-001", "text": "enough"},
            {"act": "kill", "agent": "agent-001"},
            {"act": "budget", "agent": "agent-001", "cost_usd": "3", "tokens": ""},
        ):
            sent = await page.post(f"{PATH}/act", form)
            assert sent.status == 303, sent.text
        kinds = [(envelope.type, envelope.metadata.get("action")) for envelope in await mail_of(page, "agent-001")]
        assert kinds == [("prompt", None), ("command", "interrupt"), ("command", "stop"), ("command", "budget")]
        for form, reason in (
            ({"act": "say", "agent": "agent-001"}, "write a message"),
            ({"act": "kill", "agent": "lead"}, "the lead ends with its session"),
            ({"act": "interrupt", "agent": "nobody"}, "unknown agent"),
            ({"act": "budget", "agent": "agent-002", "cost_usd": "1"}, "can only be raised"),
            ({"act": "budget", "agent": "agent-002", "cost_usd": "nan"}, "is a number from 0 on"),
            ({"act": "budget", "agent": "agent-002"}, "give the new total"),
            ({"act": "dance", "agent": "agent-002"}, "choose one of"),
        ):
            refused = await page.post(f"{PATH}/act", form)
            assert (refused.status, reason in refused.text) == (409, True), refused.text


@pytest.mark.anyio
async def test_the_agents_own_screen_kills_it_and_raises_its_budget() -> None:
    store = MemoryStore()
    await fill(store, agents=2)
    async with opened_page(store=store) as page:
        agent = f"{PATH}/agents/agent-001"
        text = (await page.get(agent)).text
        assert all(f'action="{agent}/{action}"' in text for action in ("say", "interrupt", "stop", "kill", "budget"))
        assert 'data-kind="for">since ' in text, "the page shows for how long it has been in this state"
        lead = (await page.get(f"{PATH}/agents/lead")).text
        assert 'agents/lead/kill"' not in lead
        raised = await page.post(f"{agent}/budget", {"cost_usd": "5"}, {**OWN, "hx-request": "true"})
        assert "may use $5.0000 in all" in raised.text
        assert Budget.model_validate_json((await mail_of(page, "agent-001"))[-1].content) == Budget(cost_usd=5.0)
        row = await page.store.get(agent_key("s1", "agent-001"))
        assert row is not None
        ended = AgentRow.model_validate_json(row.value or b"").model_copy(update={"life": "stopped", "outcome": "done"})
        await page.store.commit(Put(row.key, ended.encode()))
        gone = await page.post(f"{agent}/kill")
        assert (gone.status, "has already stopped" in gone.text) == (409, True)


def edge(who: str, *whom: str) -> WaitEdge:
    return WaitEdge(who, (frozenset(whom),), f"what {who} needs", f"key_{who}")


def test_a_drawing_has_each_name_once_and_too_many_names_are_only_listed() -> None:
    graph = {"a": [edge("a", "b", "c")], "b": [edge("b", "c")], "c": [edge("c", "person")]}
    text = str(waits_section("s1", graph, deadlocks(graph, ())))
    assert (text.count("<rect"), text.count("<path"), 'class="bad"' in text) == (4, 4, False)
    assert str(waits_section("s1", {}, ())) == '<section id="waits"></section>'
    many = {f"a{number}": [edge(f"a{number}", "person")] for number in range(60)}
    text = str(waits_section("s1", many, ()))
    assert ("<svg" in text, text.count("<li>")) == (False, 60)
