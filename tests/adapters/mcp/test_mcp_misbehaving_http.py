"""Misbehaving remote MCP servers: each fault is reported, none outlasts its timeout, and the next call works."""

from __future__ import annotations

import resource
from pathlib import Path

import anyio
import pytest
from tests.adapters.mcp.mcp_world import MAX_GROWTH_KB, answer_to, servers, status_of
from tests.adapters.mcp.odd_http_server import odd_http

from callboard.core.mcp.limits import McpLimits
from callboard.types.mcp import ServerEntry

pytestmark = pytest.mark.anyio

QUICK = McpLimits(start=30.0, call=6.0, idle=4.0)


def remote(url: str, name: str = "odd") -> ServerEntry:
    return ServerEntry(name, "http", "run", "a test", url=url)


@pytest.mark.slow
async def test_one_that_cannot_be_connected_says_why_and_the_other_is_there(folder: Path) -> None:
    wrong = {"401": "401", "403": "403", "404": "404", "500": "500", "503": "503"} | {"loop": "", "html": ""}
    with odd_http() as address, anyio.fail_after(180):
        entries = [remote(f"{address}/{path}", path) for path in wrong]
        closed = remote("http://127.0.0.1:1/mcp", "closed")
        async with servers(folder, *entries, closed, remote(f"{address}/mcp"), limits=QUICK) as world:
            for path, why in {**wrong, "closed": ""}.items():
                failed = status_of(world, path)
                assert failed.state == "failed", failed
                assert failed.why, failed
                assert why in failed.why, failed
            assert await world.text("mcp__odd__echo", text="hello") == "hello"


async def test_one_that_never_answers_is_left_when_its_time_is_over(folder: Path) -> None:
    with odd_http() as address, anyio.fail_after(180):
        entries = [remote(f"{address}/{path}", path) for path in ("silent", "redirect")]
        async with servers(folder, *entries, limits=McpLimits(start=2.0)) as world:
            assert status_of(world, "silent").state == "failed"
            assert "not ready within" in status_of(world, "silent").why
            assert status_of(world, "redirect").state == "failed"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("half an emoji", "half an emoji \ufffd"),
        ("no UTF-8", "no UTF-8 \ufffd"),
        ("half an emoji in events", "half an emoji in events \ufffd \\ud83d"),
        ("another charset", "another charset 😀 \\ud83d"),
    ],
)
async def test_an_answer_with_an_invalid_character_arrives(folder: Path, what: str, text: str) -> None:
    with odd_http() as address, anyio.fail_after(60):
        async with servers(folder, remote(f"{address}/mcp"), limits=QUICK) as world:
            assert await answer_to(world, what) == text


@pytest.mark.parametrize("what", ["batch", "batch in events", "another id", "error without an id", "in lines"])
async def test_an_answer_in_a_batch_or_with_another_id_is_the_answer_to_its_request(folder: Path, what: str) -> None:
    with odd_http() as address, anyio.fail_after(60):
        async with servers(folder, remote(f"{address}/mcp"), limits=McpLimits(start=30, call=30, idle=30)) as world:
            began = anyio.current_time()
            assert what in await answer_to(world, what)
            assert anyio.current_time() - began < 20
            assert await world.text("mcp__odd__echo", text="hello") == "hello"


@pytest.mark.parametrize("what", ["wrong form", "garbage"])
async def test_an_answer_that_is_no_message_is_told_in_words(folder: Path, what: str) -> None:
    with odd_http() as address, anyio.fail_after(60):
        async with servers(folder, remote(f"{address}/mcp"), limits=QUICK) as world:
            told = await answer_to(world, what)
            assert "its answer is not a valid message of the protocol" in told
            assert "union[" not in told


@pytest.mark.slow
async def test_a_call_that_goes_wrong_is_told_and_the_next_one_works(folder: Path) -> None:
    told = {
        "500": "500",
        "503": "503",
        "401": "401",
        "garbage": "",
        "reset": "",
        "short": "",
        "events": "by events",
        "endless": "known",
        "expire": "expired",
        "404": "",
    }
    with odd_http() as address, anyio.fail_after(120):
        async with servers(folder, remote(f"{address}/mcp"), limits=QUICK) as world:
            for what, words in told.items():
                said = await answer_to(world, what)
                assert said, what
                assert words in said, (what, said)
                assert await world.text("mcp__odd__echo", text=what) == what


@pytest.mark.slow
async def test_an_answer_that_is_too_large_is_not_read(folder: Path) -> None:
    with odd_http() as address, anyio.fail_after(120):
        async with servers(folder, remote(f"{address}/mcp"), limits=McpLimits(start=10, call=30, idle=30)) as world:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            said = await answer_to(world, "huge")
            # The server runs in this process too: its own copies of the answer are 40 MB each.
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB + 160_000
            assert len(said) < 10_000
            assert await world.text("mcp__odd__echo", text="hello") == "hello"
