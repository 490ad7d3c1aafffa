"""MCP servers of a headless run: in the client itself (claude-agent-sdk as published), and as processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.headless.test_agent_sdk import Bench, blocks
from tests.examples.programs import warm_program

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")

SCENARIO = """
agents:
  lead:
    - when: {contains: add them}
      reply:
        - tool_use: {name: mcp__calc__add, input: {a: 2, b: 40}}
    - when: {contains: divide}
      reply:
        - tool_use: {name: call_tool, input: {name: mcp__calc__divide, input: {a: 2, b: 0}}}
    - otherwise: true
      reply: All done.
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.scenario.write_text(SCENARIO)
    with warm_program(made.cli):
        yield made


async def collect(client: Any) -> list[Any]:
    return [one async for one in client.receive_response()]


def calculator() -> Any:
    @sdk.tool("add", "Add two numbers", {"a": float, "b": float})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"The sum is {given['a'] + given['b']:g}"}]}

    @sdk.tool("divide", "Divide two numbers", {"a": float, "b": float})
    async def divide(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "by zero"}], "is_error": True}

    return sdk.create_sdk_mcp_server("calc", tools=[add, divide])


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tools_of_the_client_are_called_through_it(bench: Bench) -> None:
    options = bench.options(mcp_servers={"calc": calculator()}, allowed_tools=["mcp__calc__add", "mcp__calc__divide"])
    async with sdk.ClaudeSDKClient(options) as client:
        await client.query("add them")
        first = await collect(client)
        await client.query("divide them")
        second = await collect(client)
        status = await client.get_mcp_status()
    init = next(one for one in first if isinstance(one, sdk.SystemMessage) and one.subtype == "init")
    assert init.data["mcp_servers"] == [{"name": "calc", "status": "connected"}]
    assert {"mcp__calc__add", "mcp__calc__divide"} <= set(init.data["tools"])
    assert "The sum is 42" in str(first)
    assert "by zero" in str(second)
    calls = [block.name for block in blocks(second, sdk.ToolUseBlock)]
    assert calls == ["mcp__calc__divide"]
    assert status["mcpServers"][0]["status"] == "connected"


def approver(answers: list[str], asked: list[Any]) -> Any:
    @sdk.tool("approve", "Answer permission requests", {"tool_name": str, "input": dict, "tool_use_id": str})
    async def approve(given: dict[str, Any]) -> dict[str, Any]:
        asked.append(given)
        return {"content": [{"type": "text", "text": answers.pop(0)}]}

    return sdk.create_sdk_mcp_server("asker", tools=[approve])


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_tool_of_a_server_answers_permission_requests(bench: Bench) -> None:
    names = ("allowed", "denied", "unreadable")
    calls = [{"tool_use": {"name": "bash", "input": {"command": f"touch {name}.txt"}}} for name in names]
    steps = [*({"reply": [call]} for call in calls), {"otherwise": True, "reply": "All done."}]
    bench.scenario.write_text(json.dumps({"agents": {"lead": steps}}))
    allow = {"behavior": "allow", "updatedInput": {"command": "touch edited.txt"}}
    answers = [json.dumps(allow), json.dumps({"behavior": "deny", "message": "not that one"}), "yes"]
    asked: list[Any] = []
    options = bench.options(
        mcp_servers={"asker": approver(answers, asked)}, permission_prompt_tool_name="mcp__asker__approve"
    )
    async with sdk.ClaudeSDKClient(options) as client:
        await client.query("go")
        messages = await collect(client)
    assert [given["tool_name"] for given in asked] == ["Bash"] * 3
    assert asked[0]["input"] == {"command": "touch allowed.txt"}
    assert asked[0]["tool_use_id"] == blocks(messages, sdk.ToolUseBlock)[0].id
    assert bench.existing("edited.txt", *(f"{name}.txt" for name in names)) == [True, False, False, False]
    results = [str(block.content) for block in blocks(messages, sdk.ToolResultBlock)]
    assert "not that one" in results[1]
    assert "the answer of mcp__asker__approve is not a JSON object" in results[2]


@pytest.mark.slow(keep=1)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("servers", "reason"),
    [({}, "the session has no MCP servers"), ({"calc": calculator()}, "mcp__asker__approve")],
)
async def test_a_missing_tool_for_permission_requests_denies(
    bench: Bench, servers: dict[str, Any], reason: str
) -> None:
    call = {"tool_use": {"name": "bash", "input": {"command": "touch made.txt"}}}
    bench.scenario.write_text(json.dumps({"agents": {"lead": [{"reply": [call]}, {"reply": "All done."}]}}))
    options = bench.options(mcp_servers=servers, permission_prompt_tool_name="mcp__asker__approve")
    messages = [message async for message in sdk.query(prompt="go", options=options)]
    assert bench.existing("made.txt") == [False]
    (result,) = blocks(messages, sdk.ToolResultBlock)
    assert reason in str(result.content)


SERVER = """
from mcp.server import MCPServer
app = MCPServer("calc")
@app.tool()
def add(a: float, b: float) -> str:
    "Add two numbers"
    return f"The sum is {a + b:g}"
app.run()
"""


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_process_of_mcp_config_serves_and_is_switched_off_and_on(bench: Bench, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    entry = {"type": "stdio", "command": sys.executable, "args": [str(server)]}
    (bench.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"other": entry}}))
    options = bench.options(
        mcp_servers={"calc": entry}, allowed_tools=["mcp__calc"], extra_args={"strict-mcp-config": None}
    )
    async with sdk.ClaudeSDKClient(options) as client:
        await client.query("add them")
        said = await collect(client)
        await client.toggle_mcp_server("calc", enabled=False)
        off = await client.get_mcp_status()
        await client.reconnect_mcp_server("calc")
        back = await client.get_mcp_status()
    assert "The sum is 42" in str(said)
    assert [(one["name"], one["status"]) for one in off["mcpServers"]] == [("calc", "disabled")]
    assert [(one["name"], one["status"]) for one in back["mcpServers"]] == [("calc", "connected")]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_servers_are_added_and_removed_in_a_session(bench: Bench, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    entry = {"type": "stdio", "command": sys.executable, "args": [str(server)]}
    call = {"tool_use": {"name": "call_tool", "input": {"name": "mcp__calc__add", "input": {"a": 2, "b": 40}}}}
    steps = [{"when": {"contains": "add them"}, "reply": [call]}, {"otherwise": True, "reply": "Done."}]
    bench.scenario.write_text(json.dumps({"agents": {"lead": steps}}))
    options = bench.options(mcp_servers={"own": calculator()}, allowed_tools=["mcp__calc"])

    async def set_servers(client: Any, servers: dict[str, Any]) -> Any:
        return await client._query._send_control_request({"subtype": "mcp_set_servers", "servers": servers})

    async with sdk.ClaudeSDKClient(options) as client:
        wrong = {
            "own": entry,
            "here": {"type": "sdk", "name": "here"},
            "bad": {"command": 1},
            "gone": {"command": "false"},
        }
        result = await set_servers(client, {"calc": entry, **wrong})
        assert (result["added"], result["removed"]) == (["calc", "here", "gone"], [])
        assert set(result["errors"]) == {"own", "here", "bad", "gone"}
        await client.query("add them")
        said = await collect(client)
        assert "The sum is 42" in str(said)
        assert await set_servers(client, {"calc": entry}) == {"added": [], "removed": ["here", "gone"], "errors": {}}
        assert (await set_servers(client, {}))["removed"] == ["calc"]
        assert [one["name"] for one in (await client.get_mcp_status())["mcpServers"]] == ["own"]
    async with sdk.ClaudeSDKClient(bench.options(allowed_tools=["mcp__calc"])) as client:
        assert await set_servers(client, {}) == {"added": [], "removed": [], "errors": {}}
        with pytest.raises(Exception, match="the session has no MCP servers"):
            await client.toggle_mcp_server("calc", enabled=False)
        await client.query("first")
        await collect(client)
        assert await set_servers(client, {"calc": entry}) == {"added": ["calc"], "removed": [], "errors": {}}
        await client.query("add them")
        said = await collect(client)
        assert "The sum is 42" in str(said)
        assert (await set_servers(client, {}))["removed"] == ["calc"]
