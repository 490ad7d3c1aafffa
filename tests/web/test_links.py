"""Answer links: one request, one answer, without a sign-in; and nothing for those who lack the secret."""

from __future__ import annotations

import re
import time

import pytest
from tests.web.page_client import HOST, OWN, Page, opened_page
from tests.web.test_answers import PERMISSION, PLAN, QUESTION, store_of, stored
from tests.web.test_guard import TOOL, UNKNOWN
from tests.web.test_inert import check_inert, requests

from callboard.core.approvals.requests import open_request
from callboard.core.keys import LINKS, request_key
from callboard.ports.store import Put
from callboard.sessions.answer_links import LinkedRequest, make_link, revoke_links, void_reason
from callboard.sessions.inspect.inspector import handle_of
from callboard.types.errors import UsageError
from callboard.types.records import AnswerLink, Request
from callboard.web.links import request_document

FOREIGN = {"host": HOST, "sec-fetch-site": "cross-site"}
"""Headers of a request that a link of a chat program causes."""


async def linked(page: Page, row: Request, *, user: str = "", seconds: float = 600.0) -> str:
    """Make a link, and return its secret. The browser is not signed in."""
    page.cookie = ""
    return (await make_link(page.store, "s1", row, seconds=seconds, user=user)).secret


@pytest.mark.anyio
async def test_a_link_shows_its_request_and_asks_before_it_answers() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        secret = await linked(page, PERMISSION, user="Ada")
        for method in ("GET", "HEAD"):
            entry = await page.send(method, "/link", FOREIGN)
            assert (entry.status, "npm test" in entry.text) == (200, False), "a preview shows nothing"
        shown = await page.post("/link", {"secret": secret})
        assert (shown.status, "npm test" in shown.text) == (200, True)
        assert "always" not in shown.text.lower(), "a link makes no rule"
        assert re.findall(r'name="choice" value="(\w*)"', shown.text) == ["y", "n"]
        assert (await stored(page)).status == "pending"
        form = {"secret": secret, "digest": PERMISSION.digest, "choice": "y"}
        done = await page.post("/link/answer", form)
        assert (done.status, "req_1 approved" in done.text) == (200, True), done.text
        answered = await stored(page)
        assert (answered.status, answered.answered_by, answered.history[-1].user) == ("approved", "person", "Ada")
        again = await page.post("/link/answer", {**form, "choice": "n"})
        assert (again.status, "is approved by person already" in again.text) == (403, True)
        assert "is approved by person already" in (await page.post("/link", {"secret": secret})).text


@pytest.mark.anyio
async def test_a_link_opens_no_other_route_and_no_other_link_does() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        secret = await linked(page, PERMISSION)
        form = {"secret": secret, "digest": PERMISSION.digest, "choice": "y"}
        assert (await page.post("/sessions/s1/requests/req_1", form)).status == 401
        assert (await page.get(f"/link?secret={secret}")).status == 200
        for wrong in ("", "x" * 43, secret[:-1], f"{secret}x"):
            refused = await page.post("/link/answer", {**form, "secret": wrong})
            assert (refused.status, "no such answer link" in refused.text) == (403, True)
        for _ in range(6):
            await page.post("/link", {"secret": "guess"})
        assert (await page.post("/link", {"secret": secret})).status == 429, "wrong secrets are counted"
        assert (await stored(page)).status == "pending"


@pytest.mark.anyio
async def test_a_link_is_bound_to_its_content_and_ends_by_time_by_revocation_and_by_another_answer() -> None:
    async with opened_page(store=await store_of(PLAN)) as page:
        signed_in = page.cookie
        secret = await linked(page, PLAN)
        form = {"secret": secret, "digest": PLAN.digest, "choice": "y"}
        changed = open_request(PLAN.model_copy(update={"payload": {**PLAN.payload, "plan": "rm -rf"}}))
        await page.store.commit(Put(request_key("s1", "req_1"), changed.encode()))
        for path in ("/link", "/link/answer"):
            void = await page.post(path, {**form, "digest": changed.digest})
            assert (void.status, "has changed since this link" in void.text) == (403, True)
        await page.store.commit(Put(request_key("s1", "req_1"), PLAN.encode()))
        stale = await page.post("/link/answer", {**form, "digest": "0" * 64})
        assert (stale.status, "has changed since the page" in stale.text) == (403, True)
        assert await revoke_links(page.store, "s1", "req_1") == 1
        assert "was revoked" in (await page.post("/link/answer", form)).text
        assert await revoke_links(page.store, "s1", "req_1") == 0
        late = await linked(page, PLAN, seconds=-1)
        assert "has expired" in (await page.post("/link", {"secret": late})).text
        other = await linked(page, PLAN)
        page.cookie = signed_in
        rejected = {"choice": "n", "text": "smaller", "digest": PLAN.digest}
        assert (await page.post("/sessions/s1/requests/req_1", rejected)).status == 303
        page.cookie = ""
        ended = await page.post("/link/answer", {**form, "secret": other})
        assert (ended.status, "is rejected by person already" in ended.text) == (403, True)
        with pytest.raises(UsageError, match="is rejected by person already"):
            await make_link(page.store, "s1", await stored(page), seconds=60)


@pytest.mark.anyio
async def test_a_link_makes_no_rule_and_answers_a_question_in_words() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        form = {"secret": await linked(page, PERMISSION), "digest": PERMISSION.digest, "choice": "a"}
        refused = await page.post("/link/answer", form)
        assert (refused.status, "makes no rule" in refused.text) == (403, True)
    async with opened_page(store=await store_of(QUESTION)) as page:
        form = {"secret": await linked(page, QUESTION), "digest": QUESTION.digest, "choice": "", "text": "neither"}
        assert (await page.post("/link/answer", form)).status == 200
        answered = await stored(page)
        assert (answered.reason, answered.history[-1].user[:5]) == ("neither", "link_")


@pytest.mark.anyio
async def test_an_agents_process_that_has_the_link_answers_nothing() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        secret = await linked(page, PERMISSION)
        form = {"secret": secret, "digest": PERMISSION.digest, "choice": "y"}
        page.owner = TOOL
        assert (await page.post("/link", form)).status == 403
        assert (await page.post("/link/answer", form)).status == 403
        assert [refusal.path for refusal in page.refusals] == ["/link", "/link/answer"]
        page.owner = UNKNOWN
        doubtful = await page.post("/link", form)
        assert (doubtful.status, 'name="code"' in doubtful.text) == (200, True)
        assert "type the code" in (await page.post("/link/answer", form)).text
        assert (await stored(page)).status == "pending"
        assert (await page.post("/link/answer", {**form, "code": page.access.code})).status == 200


@pytest.mark.anyio
async def test_the_secret_is_stored_nowhere_and_old_links_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        await linked(page, PERMISSION, seconds=-1)
        secret = await linked(page, PERMISSION)
        rows = await page.store.keys("")
        assert not [row for row in rows if secret in row.key or secret.encode() in (row.value or b"")]
        assert len([row for row in rows if row.key.startswith(LINKS)]) == 1
        monkeypatch.setenv("CALLBOARD_TOOL", "1")
        with pytest.raises(UsageError, match="is for a person"):
            await linked(page, PERMISSION)


def test_a_link_without_its_request_and_for_an_agents_request_is_void() -> None:
    now = time.time()
    link = AnswerLink(id="link_a", session="s1", request="req_1", digest="", created_at=now, expires_at=now + 9)
    assert "does not exist" in void_reason(link, None, now)
    of_lead = PLAN.model_copy(update={"may_answer": ("lead",)})
    assert "waits for lead" in void_reason(link, of_lead, now)
    assert "deadline has passed" in void_reason(link, PLAN.model_copy(update={"expires_at": now}), now)


@pytest.mark.anyio
async def test_links_need_the_own_page_as_other_changes_do() -> None:
    async with opened_page(store=await store_of(PERMISSION)) as page:
        form = {"secret": await linked(page, PERMISSION), "digest": PERMISSION.digest, "choice": "y"}
        foreign = {**OWN, "origin": "https://evil.example", "sec-fetch-site": "cross-site"}
        for path in ("/link", "/link/answer"):
            assert (await page.post(path, form, foreign)).status == 403
            assert (await page.post(path, form, kind="text/plain")).status == 415
        assert (await stored(page)).status == "pending"


@pytest.mark.anyio
async def test_hostile_texts_are_inert_on_the_page_of_a_link() -> None:
    rows = list(requests())[:60]
    async with opened_page(store=await store_of(*rows)) as page:
        handle = await handle_of(page.store, "s1")
        for row in rows:
            link = AnswerLink(id="l", session="s1", request=row.id, digest="", created_at=1.0, expires_at=2.0)
            shown = request_document(LinkedRequest(link, row), handle, "secret", needs_code=True)
            check_inert(str(shown))
