"""While the host waits for a reply, an attached screen streams nothing, and names the working agent."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands.command import Command
from tests.simulation.processes import started

SLOW = """
agents:
  lead:
    - latency_ms: 60000
      reply: At last.
"""


def test_who_is_at_work_is_told_to_a_screen_that_attaches_meanwhile(tmp_path: Path) -> None:
    command = Command(tmp_path)
    with started(command, "run", "--verbose", "--model", command.scenario(SLOW), "Go.") as host:
        host.wait_for("lead: asks rehearsal")
        with started(command, "attach") as follower:
            follower.wait_for("lead: is at work: a reply is shown here when it is complete")
