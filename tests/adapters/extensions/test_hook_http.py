"""HTTP hooks against a real server: each kind of answer, and the data that is never sent."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

import anyio
import pytest
from tests.adapters.extensions.hook_server import respond_with, run_hook_server

from callboard.adapters.extensions.hook_fields import HttpHandler
from callboard.engine.hooks.registry import HookRegistry
from callboard.types.hook_answers import Ask, Deny, HandlerResult, PreToolUse, Rewrite
from callboard.types.records import ToolCall

pytestmark = pytest.mark.anyio

EVENT = {"hook_event_name": "PreToolUse", "cwd": "/w", "tool_name": "Bash", "tool_input": {"command": "ls"}}
CALL = PreToolUse(ToolCall(id="c", use_id="u", name="bash", input={"command": "git push"}))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def decision(**fields: object) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


async def test_the_event_is_posted_and_json_under_2xx_decides() -> None:
    denied = decision(permissionDecision="deny", permissionDecisionReason="not today")
    for status in (200, 201):
        with run_hook_server(respond_with(denied, status)) as server:
            assert await HttpHandler(server.url("/x?y=1")).run(EVENT, 10) == HandlerResult((Deny("not today"),))
        assert server.bodies == [EVENT]
        assert server.paths == ["/x?y=1"]
        assert server.headers[0]["Content-Type"] == "application/json"
    with run_hook_server(respond_with(decision(permissionDecision="ask", updatedInput={"command": "ls -l"}))) as server:
        result = await HttpHandler(server.url()).run(EVENT, 10)
    assert result.answers == (Rewrite({"command": "ls -l"}), Ask(""))


@pytest.mark.parametrize(
    ("body", "status", "fault"),
    [
        ("", 200, ""),
        ("  \n", 204, ""),
        ("plain text", 200, "not a JSON object"),
        ("[1]", 200, "not a JSON object"),
        ("{broken", 200, "not a JSON object"),
        ('{"continue": "no"}', 200, "continue"),
        (decision(permissionDecision="deny"), 403, "status 403"),
        (decision(permissionDecision="deny"), 500, "status 500"),
        ("", 302, "status 302"),
    ],
)
async def test_nothing_else_blocks(body: object, status: int, fault: str) -> None:
    with run_hook_server(respond_with(body, status, Location="http://127.0.0.1:1/")) as server:
        result = await HttpHandler(server.url()).run(EVENT, 10)
    assert result.answers == ()
    assert (fault in result.fault) if fault else (result == HandlerResult())
    assert len(server.paths) == 1, "no redirect is followed, and nothing is sent twice"


async def test_no_connection_no_http_and_silence_are_faults() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = await HttpHandler(f"http://127.0.0.1:{taken.getsockname()[1]}/").run(EVENT, 10)
    assert "cannot be asked" in nobody.fault

    def garbage(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\0\xff no http at all\r\n\r\n")

    def half(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")

    def flood(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 2_000_000)

    for answer in (garbage, half, flood):
        with run_hook_server(answer) as server:
            assert (await HttpHandler(server.url()).run(EVENT, 10)).fault

    ended = threading.Event()

    def silent(request: BaseHTTPRequestHandler) -> None:
        request.connection.recv(1)  # returns when the client has disconnected
        ended.set()

    with run_hook_server(silent) as server:
        with anyio.fail_after(180):
            result = await HttpHandler(server.url()).run(EVENT, 0.2)
            assert "no answer within 0.2 s" in result.fault
            assert await anyio.to_thread.run_sync(ended.wait, 170), "the connection closes at the timeout"


async def test_who_is_cancelled_leaves_no_connection() -> None:
    begun, ended = threading.Event(), threading.Event()

    def silent(request: BaseHTTPRequestHandler) -> None:
        begun.set()
        request.connection.recv(1)
        ended.set()

    with run_hook_server(silent) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(HttpHandler(server.url()).run, EVENT, 600)
            assert await anyio.to_thread.run_sync(begun.wait, 60)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(ended.wait, 170), "the server's thread no longer waits"


async def test_headers_hold_listed_variables_and_no_others() -> None:
    headers = (("Authorization", "Bearer $TOKEN"), ("X-Two", "${TOKEN}/${SECRET}/$"), ("X-Plain", "a"))
    handler = HttpHandler("", headers, ("TOKEN",), environment={"TOKEN": "t0p", "SECRET": "hidden"})
    with run_hook_server(respond_with()) as server:
        at = HttpHandler(server.url(), handler.headers, handler.variables, environment=handler.environment)
        assert await at.run(EVENT, 10) == HandlerResult()
    (sent,) = server.headers
    assert (sent["Authorization"], sent["X-Two"], sent["X-Plain"]) == ("Bearer t0p", "t0p//$", "a")
    assert "hidden" not in str(sent) + at.name
    split = HttpHandler(server.url(), (("A", "$T"),), ("T",), environment={"T": "x\r\nB: y"})
    assert "cannot be asked" in (await split.run(EVENT, 10)).fault, "a value cannot add a header"


async def test_an_address_that_fails_denies_unless_its_file_forgives() -> None:
    with run_hook_server(respond_with("", 500)) as server:
        for fail_open, decision in ((False, "deny"), (True, None)):
            registry = HookRegistry(timeout=10)
            registry.add("PreToolUse", HttpHandler(server.url()), fail_open=fail_open)
            verdict = await registry.pre_tool_use(CALL)
            assert verdict.decision == decision
            assert "status 500" in verdict.notices[0]


def test_its_name_holds_no_secret() -> None:
    assert HttpHandler("https://user:pw@hooks.example/p?key=k").name == "POST https://hooks.example/p"
