"""Pages that stay open for hours, and many of them: nothing stays behind. Time is virtual."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest
from starlette.requests import Request as WebRequest
from tests.web.page_client import HOST, OWN, PORT, Page, opened_page
from tests.web.test_answers import PERMISSION, store_of

from callboard.core.keys import request_key
from callboard.ports.store import Put
from callboard.testing import run_virtual
from callboard.web.guard import cookie_name


async def watch(page: Page, path: str, left: anyio.Event, parts: list[int]) -> None:
    """Follow a stream until `left`. Keeps the sizes of its parts."""
    sent = {**OWN, "cookie": f"{cookie_name(PORT)}={page.cookie}"}
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if asked:
            await left.wait()
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            parts.append(len(message.get("body", b"")))

    scope = {
        **{"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "root_path": ""},
        **{"raw_path": path.encode(), "query_string": b"", "client": ("127.0.0.1", 50_000)},
        "server": ("127.0.0.1", PORT),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    assert WebRequest(scope).headers["host"] == HOST
    await page.app(scope, receive, send)


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.slow
def test_a_page_that_is_open_for_eight_hours_leaves_nothing_behind() -> None:
    async def soak() -> None:
        async with opened_page(store=await store_of(PERMISSION)) as page, anyio.create_task_group() as group:
            left = anyio.Event()
            parts: list[int] = []
            tasks = len(asyncio.all_tasks())
            group.start_soon(watch, page, "/waiting/events", left, parts)
            await anyio.sleep(3_600)
            parts.clear()
            before = objects()
            await anyio.sleep(7 * 3_600)
            assert len(parts) > 1_000
            assert set(parts) == {len(b": still here\n\n")}, "without news, a comment keeps the connection"
            parts.clear()
            assert objects() - before < 500
            left.set()
            await anyio.sleep(10)
            assert len(asyncio.all_tasks()) == tasks
            assert not page.app._streams

    run_virtual(soak)


def test_fifty_open_pages_get_each_change_once_and_end() -> None:
    async def many() -> None:
        async with opened_page(store=await store_of(PERMISSION)) as page, anyio.create_task_group() as group:
            left = anyio.Event()
            seen: list[list[int]] = [[] for _ in range(50)]
            tasks = len(asyncio.all_tasks())
            for parts in seen:
                group.start_soon(watch, page, "/waiting/events", left, parts)
            await anyio.sleep(6)
            quiet = min(map(min, seen))
            for parts in seen:
                parts.clear()
            for number in range(20):  # a burst of changes is one message
                changed = PERMISSION.model_copy(update={"expires_at": 2e9 + 60 * number})
                await page.store.commit(Put(request_key("s1", "req_1"), changed.encode()))
            await anyio.sleep(3)
            assert [1 <= sum(size > quiet for size in parts) <= 2 for parts in seen] == [True] * 50
            left.set()
            await anyio.sleep(10)
            assert len(asyncio.all_tasks()) == tasks
            assert not page.app._streams

    run_virtual(many)
