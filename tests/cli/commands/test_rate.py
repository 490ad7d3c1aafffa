"""A parked key on the command line: the output of `rate`, `doctor`, and `team`, and `rate reset`."""

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


def parked_keys(command: Command) -> list[dict[str, object]]:
    shown = command.run_inline("rate", "--json")
    assert shown.code == 0, shown.err
    return json.loads(shown.out)


@pytest.mark.slow
def test_a_parked_key_is_shown_and_reset_from_another_process(command: Command) -> None:
    assert "no model is parked" in command.run_inline("rate").out
    host = command.start("run", "--model", command.scenario(PARKED), "Go.")
    try:
        until = time.monotonic() + 180
        while not parked_keys(command):
            assert time.monotonic() < until, "the key is not parked"
        [row] = parked_keys(command)
        assert (row["state"], row["reason"]) == ("parked", "rate_limit_error: slow down")
        for shown in (command.run_inline("rate").out, command.run_inline("doctor").out):
            assert "the service asks for a wait of 3,600 s" in shown
            assert "callboard rate reset" in shown
        assert "only is parked (3,600 s); next try at" in command.run_inline("team").out
        assert "try again now" in command.run_inline("rate", "reset").out
        out, _ = host.communicate(timeout=180)
        assert (host.wait(), out.strip()) == (0, "Done.")
    finally:
        host.kill()
    assert "no model is parked" in command.run_inline("rate").out


@pytest.mark.slow
def test_a_park_holds_no_next_command(command: Command) -> None:
    """A new process sends its prompt at once, even if an earlier one was parked for an hour and ended."""
    model = command.scenario(PARKED)
    host = command.start("run", "--model", model, "Go.")
    try:
        while not parked_keys(command):
            pass
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=180)
    finally:
        host.kill()
    again = command.run("run", "--model", command.scenario(PARKED.split("      fault")[0]), "Again.")
    assert (again.code, again.out.strip()) == (0, "Done.")


def test_an_agents_tool_resets_nothing(command: Command) -> None:
    assert command.run_inline("rate", "reset", CALLBOARD_TOOL="bash").code == 2
