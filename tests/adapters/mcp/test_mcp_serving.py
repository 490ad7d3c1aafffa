"""Plain callables as an MCP server: faults, progress, cancellation, and access over HTTP."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import anyio
import httpx2
import mcp
import pytest
from mcp.shared.exceptions import MCPError

from callboard.adapters.mcp.server import McpService, OfferedTool, Report, server_of, serving_http
from callboard.types.errors import UsageError

pytestmark = pytest.mark.anyio

ANY: dict[str, Any] = {"type": "object"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class Tools:
    """The tools that are served."""

    def __init__(self) -> None:
        self.cancelled = anyio.Event()

    async def add(self, given: dict[str, Any], report: Report) -> dict[str, Any]:
        await report(1, "adding")
        return {"sum": given["a"] + given["b"]}

    async def refuse(self, given: dict[str, Any], report: Report) -> dict[str, Any]:
        raise UsageError("say it in another way")

    async def fail(self, given: dict[str, Any], report: Report) -> dict[str, Any]:
        raise ZeroDivisionError("by zero")

    async def hang(self, given: dict[str, Any], report: Report) -> dict[str, Any]:
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        return {}

    def offered(self) -> Sequence[OfferedTool]:
        number = {"type": "integer"}
        numbers = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        sums = {"type": "object", "properties": {"sum": number}, "required": ["sum"]}
        others = [OfferedTool(one.__name__, "", "", ANY, ANY, one) for one in (self.refuse, self.fail, self.hang)]
        return [OfferedTool("add", "Add", "Adds.", numbers, sums, self.add, reads=True), *others]

    def service(self) -> McpService:
        return McpService("test", "1", "Use it.", self.offered())


def text_of(result: Any) -> str:
    return result.content[0].text


async def test_results_are_structured_and_faults_are_results_too() -> None:
    async with mcp.Client(server_of(Tools().service())) as client:
        told: list[tuple[float, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, message))

        done = await client.call_tool("add", {"a": 1, "b": 2}, progress_callback=note)
        assert (done.structured_content, text_of(done)) == ({"sum": 3}, '{\n  "sum": 3\n}')
        assert told == [(1, "adding")]
        for tool, given, words in (
            ("add", {"a": "one", "b": 2}, "`a` must be integer"),
            ("refuse", {}, "say it in another way"),
            ("fail", {}, "ZeroDivisionError: by zero"),
        ):
            wrong = await client.call_tool(tool, given)
            assert wrong.is_error
            assert words in text_of(wrong)
        with pytest.raises(MCPError, match="unknown tool 'none'"):
            await client.call_tool("none", {})
        assert not (await client.call_tool("add", {"a": 1, "b": 2})).is_error


async def test_a_call_that_the_client_gives_up_is_cancelled_and_the_next_one_works() -> None:
    tools = Tools()
    async with mcp.Client(server_of(tools.service())) as client:
        with anyio.move_on_after(0.1):
            await client.call_tool("hang", {})
        with anyio.fail_after(180):
            await tools.cancelled.wait()
        assert not (await client.call_tool("add", {"a": 1, "b": 2})).is_error


async def test_http_serves_this_machine_and_refuses_what_a_web_page_could_send() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # in the web server's own dependencies
        async with serving_http(Tools().service(), "127.0.0.1", 0) as port:
            address = f"http://127.0.0.1:{port}/mcp"
            async with mcp.Client(address) as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"sum": 3}
            accepts = {"accept": "application/json, text/event-stream"}
            statuses: list[int] = []
            async with httpx2.AsyncClient() as http:
                for more in ({}, {"origin": "http://example.org"}, {"host": "example.org"}):
                    answer = await http.post(address, json=HELLO, headers={**accepts, **more})
                    statuses.append(answer.status_code)
            assert statuses == [200, 403, 421]
    with pytest.raises(httpx2.ConnectError):
        async with httpx2.AsyncClient() as http:
            await http.get(address)
