"""A parked key from the command line: what `rate`, `doctor` and `team` say of it, and `rate reset`."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

PARKED = """
models:
  only: {window: 60000, max_output: 8000}
agents:
  lead:
    - reply: Done.
      fault: [{status: 429, retry_after: 3600, message: slow down, times: 1}]
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def parks(command: Command) -> list[dict[str, object]]:
    shown = command.here("rate", "--json")
    assert shown.code == 0, shown.err
    return json.loads(shown.out)


def test_a_parked_key_is_shown_and_reset_from_another_process(command: Command) -> None:
    assert "no model is parked" in command.here("rate").out
    host = command.start("run", "--model", command.scenario(PARKED), "Go.")
    try:
        until = time.monotonic() + 180
        while not parks(command):
            assert time.monotonic() < until, "the key is not parked"
        [row] = parks(command)
        assert (row["state"], row["reason"]) == ("parked", "rate_limit_error: slow down")
        for shown in (command.here("rate").out, command.here("doctor").out):
            assert "the service asks for a wait of 3,600 s" in shown
            assert "callboard rate reset" in shown
        assert "only is parked (3,600 s); next try at" in command.here("team").out
        assert "try again now" in command.here("rate", "reset").out
        out, _ = host.communicate(timeout=180)
        assert (host.wait(), out.strip()) == (0, "Done.")
    finally:
        host.kill()
    assert "no model is parked" in command.here("rate").out


def test_a_park_holds_no_next_command(command: Command) -> None:
    """The prompt of a new process is tried at once, though an earlier one was parked for an hour and ended."""
    model = command.scenario(PARKED)
    host = command.start("run", "--model", model, "Go.")
    try:
        while not parks(command):
            pass
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=180)
    finally:
        host.kill()
    again = command.run("run", "--model", command.scenario(PARKED.split("      fault")[0]), "Again.")
    assert (again.code, again.out.strip()) == (0, "Done.")


def test_an_agents_tool_resets_nothing(command: Command) -> None:
    assert command.here("rate", "reset", CALLBOARD_TOOL="bash").code == 2
