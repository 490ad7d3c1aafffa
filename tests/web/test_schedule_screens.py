"""Schedules on the page: what it lists, and changes from its forms."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.web.page_client import OWN, Page, opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.cli.views.schedules import NOBODY
from callboard.core.keys import fire_key, schedule_key, session_key
from callboard.ports.store import Put, Store
from callboard.types.records import SessionRow
from callboard.types.schedules import Fire, Schedule
from callboard.web.schedules import changed_fields, fields_of

PATH = "/sessions/s1/schedules/cron_a"


async def store_with(schedule: Schedule, *fires: Fire) -> Store:
    store = MemoryStore()
    await store.commit(
        Put(session_key("s1"), SessionRow(id="s1", workspace="/w", created_at=1.0, prompt="Mend it.").encode())
    )
    await store.commit(Put(schedule_key("s1", schedule.id), schedule.encode()))
    await store.commit(*(Put(fire_key("s1", fire.schedule, fire.id), fire.encode()) for fire in fires))
    return store


def schedule(**fields: object) -> Schedule:
    base = {"id": "cron_a", "cron": "0 9 * * 1-5", "prompt": "Run the tests.", "created_at": time.time()}
    return Schedule.model_validate({**base, **fields})


async def stored(page: Page) -> Schedule:
    row = await page.store.get(schedule_key("s1", "cron_a"))
    assert row is not None
    return Schedule.model_validate_json(row.value or b"")


async def form_of(page: Page) -> dict[str, str]:
    """Return the fields of the form that edits, as the page fills them."""
    text = (await page.get(PATH)).text
    seen = text.partition('name="seen" value="')[2].partition('"')[0]
    return {**fields_of(await stored(page)), "seen": seen}


@pytest.mark.anyio
async def test_all_schedules_are_listed_with_the_calendar_and_the_newest_runs(tmp_path: Path) -> None:
    fire = Fire(id="schedule:cron_a:100", schedule="cron_a", session="s1", nominal=100.0, at=100.0, outcome="timed_out")
    row = schedule(name="tests", fires=1, cron="59 23 * * 1-5")  # so late that the run of today is not over
    async with opened_page(tmp_path, await store_with(row, fire)) as page:
        text = (await page.get("/schedules")).text
        assert "at 23:59 on weekdays, UTC" in text
        assert text.count('<span class="at">23:59</span>') == 10, "ten weekdays are in 14 days"
        assert "timed out" in text
        assert "No running process would fire them" in text
        assert (await page.get("/schedules/events")).text.startswith("data: <hx-partial")
        one = (await page.get("/sessions/s1/schedules/tests")).text
        assert "Run the tests." in one
        assert one.count("<time") == 6, "the next five times and that of the run"


@pytest.mark.anyio
async def test_the_calendar_has_the_days_of_the_reader(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(schedule(cron="0 23 * * 1"))) as page:
        monday = (await page.get("/schedules")).text
        assert "<h3>Mon " in monday
        cookie = page.cookie
        page.cookie = f"{cookie}; callboard_zone=Asia%2FTokyo"
        tuesday = (await page.get("/schedules")).text
        assert ("<h3>Tue " in tuesday, "<h3>Mon " in tuesday) == (True, False)
        assert '<span class="at">08:00</span>' in tuesday
        page.cookie = f"{cookie}; callboard_zone=..%2Fetc%2Fpasswd"
        assert (await page.get("/schedules")).text == monday


@pytest.mark.anyio
async def test_a_schedule_is_paused_resumed_run_and_removed(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(schedule())) as page:
        assert (await page.post(f"{PATH}/pause", {"text": "until Monday"})).status == 303
        assert ((await stored(page)).state, (await stored(page)).paused_why) == ("paused", "until Monday")
        twice = await page.post(f"{PATH}/pause")
        assert (twice.status, "is not active" in twice.text) == (409, True)
        assert (await page.post(f"{PATH}/resume")).status == 303
        assert (await stored(page)).state == "active"
        assert (await page.post(f"{PATH}/run")).status == 303
        assert len(await page.store.keys("fires/s1/")) == 1
        assert (await page.post(f"{PATH}/remove")).status == 303
        assert (await stored(page)).state == "cancelled"
        unknown = await page.post("/sessions/s1/schedules/cron_b/run")
        assert (unknown.status, "unknown schedule" in unknown.text) == (409, True)


@pytest.mark.anyio
async def test_an_edit_changes_the_fields_that_differ(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(schedule(deadline=1_200.0))) as page:
        form = await form_of(page)
        same = await page.post(f"{PATH}/edit", form)
        assert (same.status, "nothing is changed" in same.text) == (409, True)
        saved = await page.post(f"{PATH}/edit", {**form, "cron": "@daily", "deadline": "", "name": "daily"})
        assert saved.status == 303, saved.text
        after = await stored(page)
        assert (after.cron, after.deadline, after.name, after.prompt) == ("@daily", None, "daily", "Run the tests.")
        stale = await page.post(f"{PATH}/edit", {**form, "cron": "@weekly"})
        assert (stale.status, "has changed since" in stale.text) == (409, True)
        wrong = await page.post(f"{PATH}/edit", {**await form_of(page), "cron": "61 * * * *"})
        assert (wrong.status, "Times: minute" in wrong.text) == (409, True), wrong.text


def test_line_breaks_of_a_browser_change_nothing() -> None:
    before = schedule(prompt="one\ntwo")
    assert changed_fields(before, {"prompt": "one\r\ntwo "}) == {}
    assert changed_fields(before, {"prompt": "one\r\n2"}) == {"prompt": "one\n2"}


@pytest.mark.anyio
async def test_a_schedule_of_a_file_is_not_edited_here(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(schedule(source=".callboard/schedules/a.md"))) as page:
        text = (await page.get(PATH)).text
        assert ("Its file decides" in text, "/edit" in text, "/remove" in text) == (True, False, False)


@pytest.mark.anyio
async def test_a_schedule_is_added_to_a_session(tmp_path: Path) -> None:
    async with opened_page(tmp_path, await store_with(schedule())) as page:
        text = (await page.get("/schedules")).text
        assert 'action="/schedules/add"' in text
        assert '<option value="s1">Mend it. (s1)</option>' in text
        form = {"session": "s1", "name": "daily", "cron": "@daily", "timezone": "UTC", "prompt": "one\r\ntwo"}
        added = await page.post("/schedules/add", {**form, "misfire": "latest", "overlap": "queue", "deadline": "20m"})
        assert (added.status, added.headers["location"].rpartition("/")[0]) == (303, "/sessions/s1/schedules"), (
            added.text
        )
        row = await page.store.get(schedule_key("s1", added.headers["location"].rpartition("/")[2]))
        assert row is not None
        made = Schedule.model_validate_json(row.value or b"")
        assert (made.name, made.cron, made.prompt, made.overlap) == ("daily", "@daily", "one\ntwo", "queue")
        assert (made.deadline, made.state, made.created_at > 0) == (1_200.0, "active", True)
        told = await page.post("/schedules/add", {**form, "name": "other"}, {**OWN, "hx-request": "true"})
        assert ("other</a>" in told.text, NOBODY in told.text) == (True, True), told.text
        for wrong, words in (
            ({"cron": "61 * * * *"}, "Times: minute"),
            ({"cron": " "}, "Times: fill it in"),
            ({"prompt": ""}, "Prompt: fill it in"),
            ({"deadline": "soon"}, "Stop a run after: "),
            ({}, "daily"),
            ({"session": "s2", "name": "x"}, "s2"),
        ):
            refused = await page.post("/schedules/add", {**form, **wrong})
            assert (refused.status, words in refused.text) == (409, True), (wrong, refused.text)
        assert len(await page.store.keys("s/s1/schedule/")) == 3


@pytest.mark.anyio
async def test_without_a_session_no_schedule_is_added(tmp_path: Path) -> None:
    async with opened_page(tmp_path, MemoryStore()) as page:
        text = (await page.get("/schedules")).text
        assert ("/schedules/add" in text, "start one" in text) == (False, True)
        refused = await page.post("/schedules/add", {"cron": "@daily", "prompt": "Go."})
        assert (refused.status, "start one first" in refused.text) == (409, True)
