"""`callboard mcp serve`: the SDK's client runs, watches, answers, and stops sessions, and may leave without loss."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.mcp_client import connect_inline, start_server
from tests.simulation.processes import no_traceback
from tests.warm import PIPE

from callboard.cli.mcp_server.serve import address_of
from callboard.sessions.inspect.inspector import open_handle
from callboard.sessions.stores import log_notice
from callboard.types.errors import UsageError

TALK = """
agents:
  lead:
    - reply: It says hello.
    - reply: Still hello.
"""
TOUCH = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: touch made.txt}}
    - when: {result_of: bash}
      reply: So be it.
"""
PLAN = """
agents:
  lead:
    - reply:
        - tool_use: {name: submit_plan, input: {plan: I touch a file.}}
    - reply: As you like.
"""
SLOW = """
agents:
  lead:
    - latency_ms: 3000
      reply: At last.
"""
LINGERING = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: "echo $$ > pid; sleep 100000", run_in_background: true}}
        - tool_use: {name: bash, input: {command: "until test -s pid; do sleep 0.05; done"}}
    - {reply: Begun., repeat: forever}
"""
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow
def test_a_client_runs_a_prompt_and_gives_the_session_more_to_do(command: Command) -> None:
    async def talking() -> None:
        async with start_server(command, "--model", command.scenario(TALK)) as client:
            tools = {one.name: one for one in (await client.session.list_tools()).tools}
            assert tools["status"].annotations is not None
            assert tools["status"].annotations.read_only_hint
            done = await client.call("run", prompt="What does it say?", wait_s=60)
            assert (done["state"], done["text"], done["exit_code"], done["host"]) == ("done", "It says hello.", 0, None)
            assert any("It says hello." in line for _, line in client.progress)
            assert [at for at, _ in client.progress] == sorted(at for at, _ in client.progress)
            sent = await client.call("send", text="And now?")
            assert sent["session"] == done["session"]
            assert (await client.call("wait", session=done["session"], wait_s=60))["text"] == "Still hello."
            assert [one["session"] for one in (await client.call("sessions"))["sessions"]] == [done["session"]]
            assert (await client.call("cost"))["cost"]["total"]["calls"] == 2
            assert [one["name"] for one in (await client.call("team"))["agents"]] == ["lead"]

    anyio.run(talking)
    assert len(json.loads(command.run_inline("sessions", "--json").out)) == 1


@pytest.mark.slow
def test_a_command_that_outlasts_the_work_is_ended_after_the_time_in_the_settings(command: Command) -> None:
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        "sandbox: {level: 0, unattended: any}\nbackground: {at_end: 0.2}\npermission: {mode: bypassPermissions}\n"
    )

    async def talking() -> None:
        async with start_server(command, "--model", command.scenario(LINGERING)) as client:
            done = await client.call("run", prompt="Begin.", wait_s=40)
            assert (done["state"], done["text"], done["host"]) == ("done", "Begun.", None)

    anyio.run(talking)
    pid = (command.workspace / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}/cwd").exists()


def test_what_a_client_gets_wrong_is_told_and_the_connection_goes_on(command: Command) -> None:
    async def erring() -> None:
        async with connect_inline(command, "rehearsal:none.yaml") as client:
            assert "there is no session" in await client.error_text("status")
            assert "`prompt`" in await client.error_text("run")
            assert "`more`" in await client.error_text("run", prompt="x", more=1)
            assert "is not served here" in await client.error_text("run", prompt="x", workspace="/")
            assert "none.yaml" in await client.error_text("run", prompt="x")
            assert "is no session" in await client.error_text("wait", session="none")

    anyio.run(erring)


def test_nobody_approves_himself_a_client_without_the_persons_word_is_told_their_command(command: Command) -> None:
    async def asking() -> None:
        async with connect_inline(command, command.scenario(TOUCH)) as client:
            begun = await client.call("run", prompt="Touch it")
            told = await client.call("wait", wait_s=60)
            (asked,) = told["requests"]
            assert (told["state"], asked["kind"], begun["session"]) == ("waiting", "permission", told["session"])
            for tool, more in (("approve", {}), ("reject", {"why": "no"}), ("answer", {"text": "yes"})):
                words = await client.error_text(tool, request=asked["id"], **more)
                assert f"--session {told['session']} {asked['id']}" in words
            assert (await client.call("plans"))["requests"] == [asked]
            assert not (command.workspace / "made.txt").exists()
            async with open_handle(command.workspace, notice=log_notice) as handle:
                assert await handle.answer(asked["id"], "approved") is None
            done = await client.call("wait", wait_s=60)
            assert (done["state"], done["text"]) == ("done", "So be it.")

    anyio.run(asking)
    assert (command.workspace / "made.txt").exists()


def test_a_client_that_speaks_for_the_person_approves_what_it_has_seen(command: Command) -> None:
    async def approving() -> None:
        async with connect_inline(command, command.scenario(PLAN), may_approve=True, permission__mode="plan") as client:
            told = await client.call("run", prompt="Plan it", wait_s=60)
            (asked,) = told["requests"]
            shown = await client.call("show", request=asked["id"])
            assert shown["request"]["payload"]["plan"] == "I touch a file."
            assert "has changed" in await client.error_text("approve", request=asked["id"], digest="f" * 64)
            assert "why" in await client.error_text("reject", request=asked["id"])
            done = await client.call("approve", request=asked["id"], digest=asked["digest"][:12])
            assert done["request"]["status"] == "approved"
            assert "approved" in await client.error_text("reject", request=asked["id"], why="too late")
            assert (await client.call("wait", wait_s=60))["text"] == "As you like."

    anyio.run(approving)
    (kept,) = json.loads(command.run_inline("plans", "--all", "--json").out)
    assert (kept["answered_by"], kept["reason"]) == ("person", "(through an MCP client)")


@pytest.mark.slow
def test_a_cancelled_call_ends_the_wait_and_not_the_session_and_eof_leaves_it_to_be_resumed(command: Command) -> None:
    async def leaving() -> str:
        async with start_server(command, "--model", command.scenario(SLOW)) as client:
            begun = await client.call("run", prompt="Take your time")
            assert begun["state"] == "working"
            with anyio.move_on_after(0.2) as waited:
                await client.call("wait", wait_s=600)
            assert waited.cancelled_caught
            now = await client.call("status")
            assert (now["state"], now["host"]) == ("working", begun["host"])
            return begun["session"]

    session = anyio.run(leaving)
    ran = command.run("resume", session)
    assert (ran.code, ran.out) == (0, "At last.\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_at_once_and_stdout_holds_the_protocol_alone(
    command: Command, number: signal.Signals, code: int
) -> None:
    server = command.start("mcp", "serve", "--model", command.scenario(SLOW), stdin=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    run = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run", "arguments": {"prompt": "x"}}}
    for message in (
        "this is not a message",
        json.dumps(HELLO),
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
    ):
        server.stdin.write(message + "\n")
    server.stdin.write(json.dumps(run) + "\n")
    server.stdin.flush()
    assert [json.loads(server.stdout.readline())["id"] for _ in range(2)] == [1, 2]
    server.send_signal(number)
    rest, err = server.communicate(timeout=180)
    assert server.returncode == code
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())
    assert "Traceback" not in err
    (kept,) = json.loads(command.run_inline("sessions", "--json").out)
    assert kept["ended_at"] is None


def test_it_ends_when_there_is_no_client(command: Command) -> None:
    ran = command.run("mcp", "serve")
    assert (ran.code, ran.out) == (0, "")


@pytest.mark.soak
def test_the_inspector_of_npm_lists_and_calls(command: Command, tmp_path: Path) -> None:
    if shutil.which("npx") is None:
        pytest.skip("npx is not installed on this machine")
    words = ["npx", "-y", "@modelcontextprotocol/inspector", "--cli", *command.argv, "mcp", "serve"]
    words += ["-C", str(command.workspace), "--model", command.scenario(TALK)]
    env = {**os.environ, **command.env, "HOME": os.environ.get("HOME", str(tmp_path))}

    def inspected(*more: str) -> dict[str, Any]:
        ran = subprocess.run([*words, *more], capture_output=True, text=True, env=env, timeout=300, check=False)
        if "npm error" in ran.stderr:
            pytest.skip(f"npm could not install the inspector: {ran.stderr[-300:]}")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    assert "run" in {one["name"] for one in inspected("--method", "tools/list")["tools"]}
    run = ("--method", "tools/call", "--tool-name", "run", "--tool-arg", "prompt=hello", "--tool-arg", "wait_s=60")
    assert inspected(*run)["structuredContent"]["text"] == "It says hello."


def test_an_agents_tool_may_not_serve(command: Command) -> None:
    ran = command.run_inline("mcp", "serve", CALLBOARD_TOOL="1")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("words", ["0.0.0.0:80", "example.org:80", "192.168.0.1:80", "127.0.0.1", "127.0.0.1:x", ":"])
def test_http_is_for_this_machine_alone(words: str, command: Command) -> None:
    with pytest.raises(UsageError, match="--http"):
        address_of(words)
    ran = command.run_inline("mcp", "serve", "--http", words)
    assert (ran.code, ran.out) == (2, "")
    no_traceback(ran)


def test_addresses_of_this_machine_are_taken() -> None:
    assert [address_of(one) for one in ("127.0.0.1:1", "localhost:2", "[::1]:3", ":0")] == [
        ("127.0.0.1", 1),
        ("127.0.0.1", 2),
        ("::1", 3),
        ("127.0.0.1", 0),
    ]
