"""A remote server of bare HTTP: headers, statuses, sizes. `test_mcp_real_servers.py` tests the SDK's own servers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.mcp.mcp_world import raw_server, servers, text_of

from callboard.core.mcp.limits import McpLimits
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry

pytestmark = pytest.mark.anyio


@dataclass
class Remote:
    """Behavior of the server, and the requests that it saw."""

    token: str = ""
    """Requests without this token get a 401."""
    status: int = 200
    size: int = 5
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Methods, with the `Authorization` header of each request."""
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    there: Remote

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.there.requests.append((message["method"], self.headers.get("authorization", "")))
        if self.there.token and self.headers.get("authorization") != self.there.token:
            self._answer(401, b"")
        elif "id" not in message:
            self._answer(202, b"")
        elif message["method"] == "tools/call":
            self._called(message)
        else:
            self._result(message, RESULTS[message["method"]])

    def do_GET(self) -> None:
        self._answer(405, b"")

    def _called(self, message: dict[str, Any]) -> None:
        if message["params"]["name"] == "hang":
            self.there.release.wait(60)
        if self.there.status != 200:
            self._answer(self.there.status, b"")
        else:
            self._result(message, {"content": [{"type": "text", "text": "x" * self.there.size}]})

    def _result(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        self._answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def remote() -> Generator[Remote]:
    there = Remote()
    handler = type("Bound", (Handler,), {"there": there})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        there.url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield there
        there.release.set()
        server.shutdown()


TOOL = {"description": "d", "inputSchema": {"type": "object"}}
RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bare", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "get", **TOOL}, {"name": "hang", **TOOL}]},
    "ping": {},
}


def entry(remote: Remote, **fields: Any) -> ServerEntry:
    return ServerEntry("far", "http", "run", "a test", url=remote.url, **fields)


async def test_headers_of_the_entry_go_with_every_request(remote: Remote, tmp_path: Path) -> None:
    remote.token = "Bearer one"
    async with servers(tmp_path, entry(remote, headers={"Authorization": "Bearer one"})) as world:
        assert await world.text("mcp__far__get") == "xxxxx"
    assert {token for _, token in remote.requests} == {"Bearer one"}


async def test_a_helper_gives_headers_anew_when_the_server_takes_the_old_ones_no_more(
    remote: Remote, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    token = work / "token"
    token.write_text("one", "utf-8")
    helper = 'printf \'{"Authorization": "Bearer %s", "X-For": "%s"}\' "$(cat token)" "$CLAUDE_CODE_MCP_SERVER_NAME"'
    remote.token = "Bearer one"
    async with servers(work, entry(remote, headers={"Authorization": "old"}, headers_helper=helper)) as world:
        assert await world.text("mcp__far__get") == "xxxxx"
        token.write_text("two", "utf-8")
        remote.token = "Bearer two"
        assert await world.text("mcp__far__get") == "xxxxx"


async def test_white_space_around_a_header_is_left_out(remote: Remote, tmp_path: Path) -> None:
    remote.token = "Bearer one"  # with a variable whose value was read from a file, line break included
    async with servers(tmp_path, entry(remote, headers={"Authorization": "Bearer one\n"})) as world:
        assert await world.text("mcp__far__get") == "xxxxx"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Authorization": "Bearer sec\nret"}, "the value of its header `Authorization` contains a line break or NUL"),
        ({"X-Key": "sec…ret"}, "the value of its header `X-Key` contains a character that is not ASCII"),
        ({"X Key": "sec-ret"}, "'X Key' cannot be used as the name of a header"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_named_without_its_value(
    remote: Remote, tmp_path: Path, headers: dict[str, str], reason: str
) -> None:
    printed = json.dumps(headers).replace("'", "")
    async with servers(
        tmp_path,
        entry(remote, headers=headers),
        replace(entry(remote, headers_helper=f"cat <<'END'\n{printed}\nEND"), name="helped"),
    ) as world:
        assert [one.why for one in world.manager.now()] == [reason, reason]
    assert remote.requests == []


@pytest.mark.parametrize(
    ("helper", "words"),
    [("exit 3", "exit 3"), ("echo no", "no JSON object of texts"), ("echo '{\"a\": 5}'", "no JSON object of texts")],
)
async def test_a_helper_that_fails_is_told(remote: Remote, tmp_path: Path, helper: str, words: str) -> None:
    async with servers(tmp_path, entry(remote, headers_helper=helper), raw_server("near")) as world:
        states = {one.name: one for one in world.manager.now()}
        assert states["far"].state == "failed"
        assert words in states["far"].why
        assert await world.text("mcp__near__echo") == "{}"


async def test_a_status_is_told_and_a_call_that_was_taken_is_not_made_again(remote: Remote, tmp_path: Path) -> None:
    async with servers(tmp_path, entry(remote)) as world:
        remote.status = 503
        with pytest.raises(ToolRefused, match=r"HTTP 503.*unknown, and it was not repeated"):
            await world.call("mcp__far__get")
        assert [method for method, _ in remote.requests].count("tools/call") == 1
        remote.status = 200
        assert await world.text("mcp__far__get") == "xxxxx"


async def test_an_unauthorized_server_fails_with_its_status_and_says_what_to_set(
    remote: Remote, tmp_path: Path
) -> None:
    remote.token = "Bearer secret"
    async with servers(tmp_path, entry(remote)) as world:
        (now,) = world.manager.now()
        assert now.state == "failed"
        assert "HTTP 401: it wants credentials: name a token in `headers` of its entry" in now.why


async def test_an_answer_without_end_is_cut_off_and_the_next_call_works(remote: Remote, tmp_path: Path) -> None:
    async with servers(tmp_path, entry(remote), limits=McpLimits(shown=1_000)) as world:
        remote.size = 20_000_000
        with pytest.raises(ToolRefused, match="16,777,216 bytes"):
            await world.call("mcp__far__get")
        remote.size = 50_000
        assert "Result cut: 1,000 of 50,000" in text_of(await world.call("mcp__far__get"))


async def test_a_call_that_hangs_ends_by_its_time_out(remote: Remote, tmp_path: Path) -> None:
    async with servers(tmp_path, entry(remote, timeout=3.0)) as world:
        with pytest.raises(ToolRefused, match="took longer than 3 s"):
            await world.call("mcp__far__hang")
        assert await world.text("mcp__far__get") == "xxxxx"
