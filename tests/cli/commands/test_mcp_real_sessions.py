"""Whole sessions with real servers from the registries, configured by the trusted `.mcp.json` of a workspace."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.mcp.mcp_world import npm_server, processes_with
from tests.cli.commands.command import Command, CommandResult
from tests.simulation.processes import no_traceback

Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><p>read by a server</p></body></html>"
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def page() -> Generator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{pages.server_address[1]}/"
        pages.shutdown()


def session(
    command: Command, servers: dict[str, dict[str, Any]], calls: Calls
) -> tuple[CommandResult, list[dict[str, Any]]]:
    """Run in a workspace with these servers, and return the results as the model read them."""
    (command.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    replies: list[dict[str, Any]] = [{"reply": [{"tool_use": {"name": tool, "input": given}}]} for tool, given in calls]
    model = command.scenario(json.dumps({"agents": {"lead": [*replies, {"reply": "All done."}]}}))
    allowed = [word for name in servers for word in ("--allowed-tools", f"mcp__{name}")]
    words = ("--trust", *allowed, "--output-format", "stream-json", "Use them")
    ran = command.run("run", "--model", model, *words, timeout=180)
    no_traceback(ran)
    assert (ran.code, ran.messages[-1].get("result")) == (0, "All done."), ran.err
    assert processes_with(str(command.workspace)) == []
    said: list[Any] = [one["message"]["content"] for one in ran.messages if one["type"] == "user"]
    blocks: list[dict[str, Any]] = [block for content in said if not isinstance(content, str) for block in content]
    return ran, [block for block in blocks if block["type"] == "tool_result"]


def result_text(result: dict[str, Any]) -> str:
    content = result["content"]
    return content if isinstance(content, str) else "\n".join(one.get("text", "") for one in content)


@pytest.mark.soak  # 7 s of CPU to import them; `test_mcp_real_servers.py` calls each of them alone
def test_the_python_servers_in_one_session(command: Command, page: str) -> None:
    workspace = str(command.workspace)
    subprocess.run(["git", "init", "-q", "-b", "main", workspace], check=True)
    (command.workspace / "new.txt").write_text("x", "utf-8")
    servers = {
        "time": {
            "command": "${PYTHON_OF_TESTS}",
            "args": ["-m", "mcp_server_time", "--local-timezone", "${ZONE:-UTC}"],
        },
        "git": {"command": sys.executable, "args": ["-m", "mcp_server_git"]},
        "fetch": {"command": sys.executable, "args": ["-m", "mcp_server_fetch", "--allow-private-ips"]},
    }
    command.env["PYTHON_OF_TESTS"] = sys.executable
    ran, results = session(
        command,
        servers,
        [
            ("mcp__time__get_current_time", {"timezone": "Asia/Tokyo"}),
            ("mcp__git__git_status", {"repo_path": workspace}),
            ("mcp__fetch__fetch", {"url": page}),
            ("mcp__time__get_current_time", {}),
        ],
    )
    assert "Asia/Tokyo" in result_text(results[0])
    assert "new.txt" in result_text(results[1])
    assert "read by a server" in result_text(results[2])
    assert results[3]["is_error"]
    assert "timezone" in result_text(results[3])
    assert {one["name"] for one in ran.messages[0]["mcp_servers"]} == set(servers)


@pytest.mark.slow
def test_server_everything_and_filesystem_in_one_session(command: Command) -> None:
    servers = {
        "all": {"command": npm_server("mcp-server-everything")},
        "files": {"command": npm_server("mcp-server-filesystem"), "args": ["."]},
    }
    _, results = session(
        command,
        servers,
        [
            ("mcp__all__echo", {"message": "hi"}),
            ("mcp__all__get-tiny-image", {}),
            ("mcp__all__get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("mcp__all__trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ("mcp__files__write_file", {"path": f"{command.workspace}/made.txt", "content": "by a server"}),
            ("mcp__files__read_text_file", {"path": f"{command.workspace}/made.txt"}),
            ("mcp__files__read_text_file", {"path": "/etc/hostname"}),
        ],
    )
    assert result_text(results[0]) == "Echo: hi"
    assert [one["type"] for one in results[1]["content"]].count("image") == 1
    assert "[Resource demo://" in result_text(results[2])
    assert "completed" in result_text(results[3])
    assert result_text(results[5]) == "by a server"
    assert results[6]["is_error"]


def test_what_nobody_trusted_is_not_started(command: Command) -> None:
    mark = command.workspace / "started"
    servers = {"bad": {"command": "sh", "args": ["-c", f"touch {mark}"]}}
    (command.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    model = command.scenario(json.dumps({"agents": {"lead": [{"reply": "Done."}]}}))
    ran = command.run("run", "--model", model, "Say something", timeout=180)
    assert ran.code == 0
    assert not mark.exists()
    assert "trust" in ran.err
