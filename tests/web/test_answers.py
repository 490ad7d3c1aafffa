"""Answers and messages from the forms of the page, and long transcripts a page at a time."""

from __future__ import annotations

import re
import time

import pytest
from tests.web.page_client import OWN, Page, opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.approvals.requests import open_request
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.core.keys import agent_key, journal, mailbox, request_key, session_key
from callboard.core.mcp.elicitation import question_in, read
from callboard.ports.environment import Answer
from callboard.ports.store import Append, Put, Store
from callboard.types.errors import UsageError
from callboard.types.events import EnvelopeReceived
from callboard.types.mcp import ElicitationAnswer
from callboard.types.records import AgentRow, Envelope, Request, SessionRow
from callboard.web.waiting import answer_in


def request(kind: str, **payload: object) -> Request:
    now = time.time()
    base = {"id": "req_1", "kind": kind, "asked_by": "alice", "payload": payload}
    return open_request(Request.model_validate({**base, "created_at": now, "expires_at": now + 86_400}))


PERMISSION = request("permission", tool="bash", input={"command": "npm test"}, always=["Bash(npm test:*)"])
PLAN = request("plan", plan="1. read", options=["by hand", "by tool"])
QUESTION = request("question", question="Which?", options=["pytest", "unittest"])


@pytest.mark.parametrize(
    ("row", "form", "status", "reason"),
    [
        (PERMISSION, {"choice": "y", "text": ""}, "approved", ""),
        (PERMISSION, {"choice": "y", "text": "1 more thing"}, "approved", "1 more thing"),
        (PERMISSION, {"choice": "n", "text": "yes, but later"}, "rejected", "yes, but later"),
        (PLAN, {"choice": "n", "text": "smaller"}, "rejected", "smaller"),
        (PLAN, {"choice": "a", "text": ""}, "approved", ""),
        (QUESTION, {"choice": "2"}, "answered", "unittest"),
        (QUESTION, {"choice": "", "text": "neither"}, "answered", "neither"),
    ],
)
def test_a_form_means_what_its_button_says(row: Request, form: dict[str, str], status: str, reason: str) -> None:
    answer = answer_in(row, form)
    assert (answer.status, answer.by, answer.reason) == (status, "person", reason)
    assert answer.word.mode == ("acceptEdits" if form["choice"] == "a" else "")


def test_a_plans_option_and_the_scope_of_always_are_taken_from_the_form() -> None:
    assert answer_in(PLAN, {"choice": "2", "text": "go"}).word.option == 2
    always = answer_in(PERMISSION, {"choice": "a", "for": "2h", "this_agent": "1"})
    assert always == Answer("approved", "person", always=AlwaysAllow(7_200.0, agent_only=True))
    assert answer_in(PERMISSION, {"choice": "a", "for": ""}).always == AlwaysAllow()


@pytest.mark.parametrize(
    ("row", "form", "words"),
    [
        (PERMISSION, {}, "no answer that it offers"),
        (PERMISSION, {"choice": "maybe"}, "no answer that it offers"),
        (PLAN, {"choice": "n", "text": " "}, "say what to change"),
        (PLAN, {"choice": "3"}, "no answer that it offers"),
        (QUESTION, {"choice": "", "text": " "}, "the answer is empty"),
    ],
)
def test_a_form_that_means_nothing_answers_nothing(row: Request, form: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        answer_in(row, form)


def test_an_edit_approves_the_edited_text_or_input() -> None:
    plan = answer_in(PLAN, {"choice": "e", "edited": "1. read\r\n2. write", "text": "careful"})
    assert (plan.status, plan.word.plan, plan.word.seen) == ("approved", "1. read\n2. write", PLAN.digest)
    assert plan.reason == "careful"
    command = answer_in(PERMISSION, {"choice": "e", "edited": "npm test -- --ci"})
    assert command.input == {"command": "npm test -- --ci"}
    other = request("permission", tool="mcp__x__y", input={"a": 1})
    assert answer_in(other, {"choice": "e", "edited": '{"a": 2}'}).input == {"a": 2}
    for row, text, reason in (
        (PLAN, "1. read\r\n", "is unchanged"),
        (PLAN, " ", "is empty"),
        (PERMISSION, "npm test", "is unchanged"),
        (PERMISSION, "", "is empty"),
        (other, "{", "is not JSON"),
    ):
        with pytest.raises(UsageError, match=reason):
            answer_in(row, {"choice": "e", "edited": text})


@pytest.mark.anyio
async def test_the_form_of_a_server_is_shown_and_read_field_by_field() -> None:
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}, "rail": {"type": "boolean"}}
    elicited = {"server": "trips", "schema": {"properties": properties, "required": ["city"]}, "url": ""}
    row = request("question", question="Where?", elicit=elicited)
    filled = answer_in(row, {"choice": "", "field-0": "Rome", "field-1": "", "field-2": "yes"})
    elicitation = question_in(row)
    assert elicitation is not None
    assert read(elicitation, filled.reason) == ElicitationAnswer("accept", {"city": "Rome", "rail": True})
    assert answer_in(row, {"choice": "decline", "field-0": "Rome"}).reason == "decline"
    async with opened_page(store=await store_of(row)) as page:
        text = (await page.get("/waiting")).text
        assert all(f'name="field-{number}"' in text for number in range(3))
        assert text.count("(optional)") == 2


async def store_of(*requests: Request, events: int = 0) -> Store:
    """Return the store of a session with alice, these requests, and as many prompts in the lead's journal."""
    store = MemoryStore()
    await store.commit(Put(session_key("s1"), SessionRow(id="s1", workspace="/w", created_at=1.0).encode()))
    for name in ("lead", "alice"):
        row = AgentRow(name=name, kind="lead" if name == "lead" else "teammate", created_at=1.0, life="idle")
        await store.commit(Put(agent_key("s1", name), row.encode()))
    await store.commit(*(Put(request_key("s1", row.id), row.encode()) for row in requests))
    for number in range(1, events + 1):
        text = f"prompt number {number}."
        envelope = Envelope(
            id=f"env_{number}", sender="person", recipient="lead", type="prompt", content=text, seq=number
        )
        event = EnvelopeReceived(at=float(number), envelope=envelope)
        await store.commit(Append(journal("s1", "lead", 1), event.encode()))
    return store


async def stored(page: Page) -> Request:
    row = await page.store.get(request_key("s1", "req_1"))
    assert row is not None
    return Request.model_validate_json(row.value or b"")


@pytest.mark.anyio
async def test_an_answer_is_bound_to_the_content_that_the_page_showed() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        path = "/sessions/s1/requests/req_1"
        for digest in ("", "0" * 64):
            stale = await page.post(path, {"choice": "y", "digest": digest})
            assert (stale.status, "has changed" in stale.text) == (409, True)
        assert (await stored(page)).status == "pending"
        form = {"choice": "a", "for": "30m", "digest": PERMISSION.digest}
        assert (await page.post(path, form)).status == 303
        assert (await stored(page)).status == "approved"
        again = await page.post(path, form, {**OWN, "hx-request": "true"})
        assert (again.status, again.text.startswith('<p class="bad">')) == (409, True)
        missing = await page.post("/sessions/s1/requests/req_2", form)
        assert (missing.status, "there is no request" in missing.text) == (409, True)


@pytest.mark.anyio
async def test_an_edited_call_is_stored_with_its_new_input() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        assert "npm test</textarea>" in (await page.get("/waiting")).text
        form = {"choice": "e", "digest": PERMISSION.digest, "edited": "npm test -- --ci"}
        sent = await page.post("/sessions/s1/requests/req_1", form, {**OWN, "hx-request": "true"})
        assert (sent.status, "approved as edited" in sent.text) == (200, True), sent.text
        assert (await stored(page)).input == {"command": "npm test -- --ci"}


@pytest.mark.anyio
async def test_what_a_browser_would_not_show_is_not_edited_there() -> None:
    hidden = request("permission", tool="bash", input={"command": "echo \u202eabc"})
    async with opened_page(store=await store_of(hidden)) as page:
        text = (await page.get("/waiting")).text
        assert ("edit it in the terminal" in text, "</textarea>" in text.partition("Edit it first")[2]) == (True, False)


@pytest.mark.anyio
async def test_messages_and_commands_go_to_the_agents_mailbox() -> None:
    async with opened_page(store=await store_of()) as page:
        agent = "/sessions/s1/agents/alice"
        sent = await page.post(f"{agent}/say", {"text": "Use slate."}, {**OWN, "hx-request": "true"})
        assert (sent.status, "No process hosts the session" in sent.text) == (200, True)
        assert (await page.post(f"{agent}/interrupt")).status == 303
        assert (await page.post(f"{agent}/stop", {"text": "enough"})).status == 303
        mail = [
            Envelope.model_validate_json(record.data) for record in await page.store.read(mailbox("s1", "alice", 1))
        ]
        assert [(envelope.type, envelope.sender) for envelope in mail] == [
            ("prompt", "person"),
            ("command", "person"),
            ("command", "person"),
        ]
        assert mail[0].content == "Use slate."
        for path, words in ((f"{agent}/say", "write a message"), ("/sessions/s1/agents/bob/say", "unknown agent")):
            wrong = await page.post(path, {"text": "" if "alice" in path else "x"})
            assert (wrong.status, words in wrong.text) == (409, True), wrong.text
        lead = await page.post("/sessions/s1/agents/lead/stop")
        assert (lead.status, "the lead ends with its session" in lead.text) == (409, True)


def prompts_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"prompt number (\d+)\.", text)]


@pytest.mark.anyio
async def test_a_long_transcript_is_shown_a_page_at_a_time() -> None:
    async with opened_page(store=await store_of(events=450)) as page:
        path = "/sessions/s1/agents/lead"
        newest = await page.get(path)
        assert prompts_in(newest.text) == [*range(251, 451)]
        assert f"{path}/events?after=450" in newest.text
        assert f'href="{path}?before=251"' in newest.text
        earlier = await page.get(f"{path}/entries?before=251")
        assert prompts_in(earlier.text) == [*range(51, 251)]
        whole = await page.get(f"{path}?before=51")
        assert prompts_in(whole.text) == [*range(1, 51)]
        assert "Show earlier" not in whole.text
        assert "events?after=-1" in whole.text, "new events do not follow older ones"
        assert (await page.get(f"{path}?before=x")).status == 409
        assert (await page.get(f"{path}?before={10**30}")).status == 200
        assert (await page.get(f"{path}?before=-{10**30}")).status == 200
        stream = await page.get(f"{path}/events?after=448")
        assert prompts_in(stream.text) == [449, 450]
        assert stream.text.startswith("id: 450\n")
        again = await page.get(f"{path}/events?after=448", {**OWN, "last-event-id": "449"})
        assert prompts_in(again.text) == [450], "a browser continues where its connection was lost"


@pytest.mark.anyio
async def test_a_stream_says_why_it_ends() -> None:
    """A newer Callboard begins to write the session while the page is open."""
    store = await store_of(events=2)
    async with opened_page(store=store) as page:
        newer = b'{"v":99,"t":"from_the_future","at":3.0}'
        await store.commit(Append(journal("s1", "lead", 1), newer))
        for path in ("/sessions/s1/events", "/sessions/s1/agents/lead/events?after=2"):
            text = (await page.get(path)).text
            assert 'hx-target="#reply"' in text, text
            assert "not updated any more" in text
