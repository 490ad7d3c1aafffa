"""Servers over the older HTTP with server-sent events: each fault is reported at once, and the next call works."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.adapters.mcp.mcp_world import McpWorld, answer_to, servers
from tests.adapters.mcp.odd_sse_server import odd_sse

from callboard.core.mcp import limits as limiting
from callboard.core.mcp.limits import McpLimits
from callboard.types.mcp import ServerEntry, ServerState

pytestmark = pytest.mark.anyio

PATIENT = McpLimits(start=60.0, call=60.0, idle=60.0)
"""Limits that no test may reach: a fault that is found only by them fails the test."""


def remote(url: str, name: str = "odd") -> ServerEntry:
    return ServerEntry(name, "sse", "run", "a test", url=url)


async def reached(world: McpWorld, state: ServerState) -> None:
    """Wait until the server has been in this state."""
    revision = world.manager.revision
    while world.manager.now()[0].state != state:
        revision = await world.manager.changed(revision)


async def test_a_server_that_cannot_be_used_says_why_at_once(folder: Path) -> None:
    reasons = {
        "elsewhere": "names another server: http://192.0.2.1/messages: messages go only to",
        "no-address": "is not an address: http://127.0.0.1:x/",
        "early-end": "closed its event stream before its first event `endpoint`",
        "page": "not an event stream (text/event-stream), but text/html",
        "moved": "redirects to http://192.0.2.1/sse, which is not followed",
        "401": "the server answered with HTTP 401",
        "deaf": "the server answered with HTTP 503",
    }
    with odd_sse() as (address, _), anyio.fail_after(30):
        entries = [remote(f"{address}/{path}", path) for path in reasons]
        async with servers(folder, *entries, limits=PATIENT) as world:
            told = {status.name: (status.state, status.why) for status in world.manager.now()}
    assert {name: state for name, (state, _) in told.items()} == dict.fromkeys(reasons, "failed")
    for name, reason in reasons.items():
        assert reason in told[name][1], told[name]


@pytest.mark.parametrize("path", ["", "early", "twice"])
async def test_an_endpoint_after_a_message_or_named_twice_is_used(folder: Path, path: str) -> None:
    with odd_sse() as (address, _), anyio.fail_after(30):
        async with servers(folder, remote(f"{address}/{path}"), limits=PATIENT) as world:
            assert await answer_to(world, "hello") == "hello 😀"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("500", "HTTP 500. The effect of the call is unknown"),
        ("end", "the server closed its event stream. The effect of the call is unknown"),
        ("wrong form", "the answer is not a valid message of the protocol"),
        ("too large", "exceeded the 16777216 byte limit. The effect of the call is unknown"),
        ("half an emoji", "half an emoji \ufffd"),
        ("large", "yyy"),
        ("answer and end", "answer and end 😀"),
    ],
)
async def test_a_call_that_goes_wrong_is_told_at_once_and_the_next_one_works(
    folder: Path, what: str, words: str
) -> None:
    with odd_sse() as (address, _), anyio.fail_after(30):
        async with servers(folder, remote(f"{address}/sse"), limits=PATIENT) as world:
            assert words in await answer_to(world, what)
            assert await answer_to(world, "hello") == "hello 😀"


async def test_a_stream_that_ended_between_two_calls_is_opened_again(folder: Path) -> None:
    with odd_sse() as (address, streams), anyio.fail_after(30):
        async with servers(folder, remote(f"{address}/sse"), limits=PATIENT) as world:
            streams[0].put(None)
            await reached(world, "failed")
            assert await answer_to(world, "hello") == "hello 😀"
            assert len(streams) == 2


async def test_a_stream_that_ends_at_once_each_time_is_not_opened_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "RECONNECTS", (0.01, 0.01, 0.01))
    with odd_sse() as (address, streams), anyio.fail_after(30):
        async with servers(folder, remote(f"{address}/short"), limits=PATIENT) as world:
            revision = world.manager.revision
            while len(streams) < 4 or world.manager.now()[0].state != "failed":
                revision = await world.manager.changed(revision)
            with anyio.move_on_after(1):
                await world.manager.changed(world.manager.revision)
            assert "closed its event stream" in world.manager.now()[0].why
            assert len(streams) == 4
