"""Whole sessions with misbehaving servers: the agent gets a clear error, the session continues, no process is left."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.mcp.mcp_world import processes_with
from tests.cli.commands.command import Command, CommandResult
from tests.simulation.processes import no_traceback

ODD = str(Path(__file__).parents[2] / "adapters" / "mcp" / "odd_server.py")
FAULTS = ("rubbish", "wrongids", "fails", "shapeless", "flood", "closing", "huge", "change", "die", "hang", "shut")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.env |= {"MCP_TOOL_TIMEOUT": "5000", "MCP_TIMEOUT": "60000"}
    return command


def entry(mode: str, **env: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", ODD, mode], "env": env}


def scenario(command: Command, *calls: tuple[str, dict[str, Any]], last: str = "All done.") -> str:
    """Write a scenario in which the lead makes these calls in order, whatever their results are."""
    replies: list[dict[str, Any]] = [{"reply": [{"tool_use": {"name": tool, "input": given}}]} for tool, given in calls]
    return command.scenario(json.dumps({"agents": {"lead": [*replies, {"reply": last}]}}))


def run(
    command: Command, model: str, servers: dict[str, dict[str, Any]]
) -> tuple[CommandResult, list[tuple[str, bool]]]:
    """Run, and return each tool result as the model read it: text, and whether it is an error."""
    allowed = [word for name in servers for word in ("--allowed-tools", f"mcp__{name}")]
    config = json.dumps({"mcpServers": servers})
    more = ("--mcp-config", config, "--strict-mcp-config", *allowed, "--output-format", "stream-json")
    ran = command.run("run", "--model", model, *more, "Try the servers", timeout=180)
    blocks = [
        block
        for message in ran.messages
        if message["type"] == "user" and isinstance(message["message"]["content"], list)
        for block in message["message"]["content"]
        if block["type"] == "tool_result"
    ]
    return ran, [(_text(one["content"]), bool(one.get("is_error"))) for one in blocks]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(one.get("text", "") for one in content)


@pytest.mark.slow
def test_a_session_goes_on_whatever_a_server_does_in_the_middle_of_a_call(command: Command) -> None:
    calls = [call for what in FAULTS for call in (("mcp__odd__do", {"what": what}), ("mcp__odd__echo", {"text": what}))]
    model = scenario(command, *calls, ("mcp__good__echo", {"text": "still here"}))
    ran, results = run(command, model, {"odd": entry("good"), "good": entry("good")})
    assert (ran.code, ran.messages[-1]["result"]) == (0, "All done.")
    said = dict(zip(FAULTS, results[0::2], strict=False))
    for what in ("die", "hang", "shut", "huge", "fails"):
        assert said[what][1], said[what]
    for what in ("die", "hang", "shut"):
        assert "known" in said[what][0]
    echoed = dict(zip(FAULTS, results[1::2], strict=False))
    assert {what: text for what, (text, wrong) in echoed.items() if not wrong} == {
        what: what for what in FAULTS if not echoed[what][1]
    }
    assert [what for what in FAULTS if echoed[what][1]] in ([], ["shut"])  # after three starts in a minute, no more
    assert results[-1] == ("still here", False)
    no_traceback(ran)
    assert processes_with(str(command.workspace)) == []


@pytest.mark.slow
def test_servers_that_cannot_start_are_told_in_a_line_and_the_run_is_done(command: Command) -> None:
    modes = ("exits", "silent", "version", "twins", "refuses", "reads-nothing")
    command.env["MCP_TIMEOUT"] = "9000"
    gone = {"name": "mcp__exits__echo", "input": {"text": "x"}}
    model = scenario(command, ("call_tool", gone), ("mcp__good__echo", {"text": "fine"}))
    ran, results = run(command, model, {**{mode: entry(mode) for mode in modes}, "good": entry("noisy")})
    assert (ran.code, ran.messages[-1]["result"]) == (0, "All done.")
    assert results[0][1]
    assert results[1] == ("fine", False)
    for mode in modes:
        assert f"MCP server {mode} failed" in ran.err
    states = {one["name"]: one["status"] for one in ran.messages[0]["mcp_servers"]}
    assert states["good"] in ("connected", "pending")
    assert "\x1b" not in ran.err
    assert processes_with(str(command.workspace)) == []


@pytest.mark.slow
def test_a_servers_words_never_close_the_tag_that_they_stand_in(command: Command) -> None:
    model = scenario(command, ("mcp__tags__do", {"what": "closing"}))
    _, results = run(command, model, {"tags": entry("tags")})
    assert "obey me" in results[0][0]
    (window,) = json.loads(command.run_inline("sessions", "--json").out)
    told = command.run("context", "--session", window["id"], "--json")
    assert told.code == 0


@pytest.mark.slow
def test_a_run_that_is_ended_in_the_middle_of_a_call_leaves_no_server_behind(command: Command) -> None:
    command.env["MCP_TOOL_TIMEOUT"] = "60000"
    model = scenario(command, ("mcp__odd__do", {"what": "deaf"}))
    config = json.dumps({"mcpServers": {"odd": entry("stubborn", ODD_HERE=str(command.workspace))}})
    mark = f"ODD_HERE={command.workspace}"  # only the server's environment contains it
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = command.start(
            "run", "--model", model, "--mcp-config", config, "--allowed-tools", "mcp__odd", "Call it", "-v"
        )
        wait_until(lambda: len(processes_with(mark)) > 0)
        time.sleep(0.5)
        running.send_signal(number)
        running.wait()
        wait_until(lambda: processes_with(mark) == [])


def wait_until(so: Any) -> None:
    ends = time.monotonic() + 180
    while not so():
        assert time.monotonic() < ends
        time.sleep(0.1)
