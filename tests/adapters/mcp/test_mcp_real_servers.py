"""Real servers from the registries, each in a scripted session under a real manager."""

from __future__ import annotations

import contextlib
import http.server
import os
import random
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.adapters.mcp.mcp_world import McpWorld, npm_server, python_server, servers, text_of

from callboard.types.errors import ToolRefused
from callboard.types.mcp import ElicitationAnswer, ServerEntry, Transport

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def _stdio(name: str, program: str, *words: str) -> ServerEntry:
    return ServerEntry(name, "stdio", "run", "a test", npm_server(program), words)


def _free_port() -> int:
    """Return an unused port, for a server that needs a fixed one.

    The port is below the range that the system assigns, so no other process gets it before that server starts.
    """
    while True:
        port = random.SystemRandom().randint(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def _run_server(mode: str, port: int) -> Generator[None]:
    """Run server-everything on a port of this machine."""
    told = {**os.environ, "PORT": str(port)}
    process = subprocess.Popen(
        [npm_server("mcp-server-everything"), mode], env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        while b"port" not in (line := process.stdout.readline()):
            assert line, "server-everything exited before it listened"
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _check_features(world: McpWorld) -> None:
    """Check everything that both transports must support."""
    (now,) = world.manager.now()
    assert (now.state, now.version) == ("connected", "mcp-servers/everything 2.0.0")
    assert 0 < len(now.instructions) <= 2_000
    assert "mcp__all__echo" in now.tools
    assert await world.text("mcp__all__echo", message="hi") == "Echo: hi"
    with pytest.raises(ToolRefused, match="message"):
        await world.call("mcp__all__echo")
    image = await world.call("mcp__all__get-tiny-image")
    assert [block["type"] for block in image.content if not isinstance(block, str)].count("image") == 1
    found = await world.text("mcp__all__get-resource-reference", resourceType="Text", resourceId=1)
    assert "[Resource demo://resource/dynamic/text/1 (text/plain)]" in found
    linked = await world.text("mcp__all__get-resource-links", count=2)
    assert "[Link to the resource demo://" in linked
    structured = await world.call("mcp__all__get-structured-content", location="Chicago")
    assert structured.data["structuredContent"]["temperature"]
    await world.text("mcp__all__trigger-long-running-operation", duration=0.4, steps=2)
    assert world.progress[0].startswith("1/2")
    world.answer = lambda asked: ElicitationAnswer("accept", {"name": "Ada"})
    assert "Name: Ada" in await world.text("mcp__all__trigger-elicitation-request")
    assert world.elicitations[0].server == "all"
    assert "name" in world.elicitations[0].schema["properties"]
    world.answer = lambda asked: ElicitationAnswer("decline")
    assert "declined" in await world.text("mcp__all__trigger-elicitation-request")
    assert str(world.folder) in await world.text("mcp__all__get-roots-list")


async def _prompts_and_resources(world: McpWorld) -> None:
    (now,) = world.manager.now()
    by_name = {prompt.name: prompt for prompt in now.prompts}
    assert ("city", True) in [(name, needed) for name, _, needed in by_name["args-prompt"].arguments]
    said = await world.manager.prompt("all", "args-prompt", {"city": "Delft"})
    assert "Delft" in said[0]["text"]
    with pytest.raises(ToolRefused, match="all"):
        await world.manager.prompt("all", "no-such-prompt", {})
    read = await world.manager.read("all", now.resources[0].uri)
    assert now.resources[0].uri in read[0]["text"]
    with pytest.raises(ToolRefused):
        await world.manager.read("all", "demo://nothing/of/the/kind")


@pytest.mark.slow
async def test_server_everything_over_stdio(workspace: Path) -> None:
    async with servers(workspace, _stdio("all", "mcp-server-everything")) as world:
        await _check_features(world)
        await _prompts_and_resources(world)
        # Tools that depend on client capabilities arrive with a list change: there is none for sampling.
        assert not [name for name in world.manager.tools() if "sampling" in name]


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "mode", "path"), [("http", "streamableHttp", "mcp"), ("sse", "sse", "sse")])
async def test_server_everything_over_http(workspace: Path, transport: Transport, mode: str, path: str) -> None:
    port = _free_port()
    with _run_server(mode, port):
        entry = ServerEntry("all", transport, "run", "a test", url=f"http://127.0.0.1:{port}/{path}")
        async with servers(workspace, entry) as world:
            await _check_features(world)
            await _prompts_and_resources(world)


@pytest.mark.slow
async def test_a_remote_server_that_was_started_anew_is_reached_by_the_next_call(workspace: Path) -> None:
    port = _free_port()
    entry = ServerEntry("all", "http", "run", "a test", url=f"http://127.0.0.1:{port}/mcp")
    with ExitStack() as first:
        first.enter_context(_run_server("streamableHttp", port))
        async with servers(workspace, entry) as world:
            assert await world.text("mcp__all__echo", message="one") == "Echo: one"
            first.close()
            with _run_server("streamableHttp", port):
                # The old server is gone: only the new one can answer within the deadline of the call.
                assert await world.text("mcp__all__echo", message="two") == "Echo: two"


@pytest.mark.slow
async def test_server_filesystem(workspace: Path) -> None:
    (workspace / "notes.txt").write_text("first line\n", encoding="utf-8")
    async with servers(workspace, _stdio("files", "mcp-server-filesystem", str(workspace))) as world:
        assert await world.text("mcp__files__read_text_file", path=str(workspace / "notes.txt")) == "first line\n"
        await world.text("mcp__files__write_file", path=str(workspace / "new.txt"), content="from a tool")
        assert (workspace / "new.txt").read_text(encoding="utf-8") == "from a tool"
        listed = await world.text("mcp__files__list_directory", path=str(workspace))
        assert "new.txt" in listed
        assert "notes.txt" in listed
        outside = await world.call("mcp__files__read_text_file", path="/etc/hostname")
        assert outside.is_error
        assert "denied" in text_of(outside).lower()
        tools = world.manager.tools()
        assert tools["mcp__files__read_text_file"].spec.effect == "read"
        assert tools["mcp__files__write_file"].spec.effect == "unknown"
        assert tools["mcp__files__write_file"].spec.destructive


@pytest.mark.slow
async def test_server_time(workspace: Path) -> None:
    async with servers(workspace, python_server("mcp_server_time")) as world:
        assert '"timezone": "Asia/Tokyo"' in await world.text("mcp__time__get_current_time", timezone="Asia/Tokyo")
        given = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Kolkata"}
        assert "time_difference" in await world.text("mcp__time__convert_time", **given)
        wrong = await world.call("mcp__time__get_current_time", timezone="Mars/Olympus")
        assert wrong.is_error
        assert "Mars/Olympus" in text_of(wrong)


@pytest.mark.slow
async def test_server_git(workspace: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *who, *words], cwd=workspace, check=True, capture_output=True)

    git("init", "-b", "main")
    (workspace / "a.txt").write_text("one\n", encoding="utf-8")
    git("add", "a.txt")
    git("commit", "-m", "the first commit")
    (workspace / "a.txt").write_text("two\n", encoding="utf-8")
    async with servers(workspace, python_server("mcp_server_git", "--repository", str(workspace))) as world:
        where = str(workspace)
        assert "a.txt" in await world.text("mcp__git__git_status", repo_path=where)
        assert "+two" in await world.text("mcp__git__git_diff_unstaged", repo_path=where)
        await world.text("mcp__git__git_add", repo_path=where, files=["a.txt"])
        assert "+two" in await world.text("mcp__git__git_diff_staged", repo_path=where)
        assert "the first commit" in await world.text("mcp__git__git_log", repo_path=where)


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>Callboard</h1><p>read by a server</p></body></html>"
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.slow
async def test_server_fetch(workspace: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{pages.server_address[1]}/"
        try:
            async with servers(workspace, python_server("mcp_server_fetch", "--allow-private-ips")) as world:
                found = await world.text("mcp__fetch__fetch", url=url)
                assert "read by a server" in found
                (now,) = world.manager.now()
                assert [prompt.name for prompt in now.prompts] == ["fetch"]
                said = await world.manager.prompt("fetch", "fetch", {"url": url})
                assert "read by a server" in said[0]["text"]
        finally:
            pages.shutdown()
