"""A whole team killed with SIGKILL at many points, and taken up: the same end, nothing lost, nothing twice.

At its widest moment the lead waits, one teammate is in the middle of a tool, one waits for its plan, one has unread
mail and waits for a rate limit, and a command runs in the background. Every effect is a line in a file: a second one
shows.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import Running, left_behind, started, until
from tests.simulation.test_kill_demo import wrong_in_store

HOUSE = """
agents:
  lead:
    - when: {contains: Build the house}
      reply:
        - tool_use: {name: bash, input: {command: "sleep 2; echo shed >> shed.log", run_in_background: true}}
        - tool_use: {name: spawn_teammate, input: {name: walls, role: mason, prompt: Raise the walls.}}
        - tool_use:
            name: spawn_teammate
            input: {name: roof, role: roofer, prompt: Rebuild the roof., plan_required: true}
        - tool_use: {name: spawn_teammate, input: {name: doors, role: joiner, prompt: Hang the doors.}}
        - tool_use: {name: send_message, input: {to: doors, content: Paint them red.}}
    - when: {contains: outcome is unknown}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "sleep 2; grep -q shed shed.log || echo shed >> shed.log"}}
    - when: {anywhere: ["walls stand", "roof is on", "doors are red"]}
      repeat: forever
      reply: The house stands.
    - {reply: I wait., repeat: forever}
  walls:
    - when: {contains: Raise the walls}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "echo began >> walls.log; sleep 1; echo walls >> walls.log"}}
    - when: {contains: outcome is unknown}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "grep -q walls walls.log || echo walls >> walls.log"}}
    - when: {result_of: bash}
      repeat: forever
      reply:
        - tool_use: {name: report, input: {status: done, result: The walls stand.}}
    - {reply: Nothing more., repeat: forever}
  roof:
    - when: {contains: Rebuild the roof}
      repeat: forever
      reply:
        - tool_use: {name: submit_plan, input: {plan: Slate on battens.}}
    - when: {contains: approved}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "grep -q roof roof.log || echo roof >> roof.log"}}
    - when: {contains: outcome is unknown}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "grep -q roof roof.log || echo roof >> roof.log"}}
    - when: {result_of: bash}
      repeat: forever
      reply:
        - tool_use: {name: report, input: {status: done, result: The roof is on.}}
    - {reply: Nothing more., repeat: forever}
  doors:
    - when: {contains: Hang the doors}
      fault: {status: 429, retry_after: 2, message: slow down}
      reply:
        - tool_use: {name: bash, input: {command: "echo doors >> doors.log"}}
    - when: {contains: outcome is unknown}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "grep -q doors doors.log || echo doors >> doors.log"}}
    - when: {anywhere: ["Paint them red"]}
      repeat: forever
      reply:
        - tool_use: {name: report, input: {status: done, result: The doors are red.}}
    - {reply: Where is my mail?, repeat: forever}
"""
FILES = {"shed.log": "shed", "walls.log": "walls", "roof.log": "roof", "doors.log": "doors"}
LONGEST = 8.0
"""Seconds that a run takes which nobody disturbs, on a slow machine."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def begin(command: Command) -> tuple[str, ...]:
    model = command.scenario(HOUSE)
    return ("run", "-v", "--permission-mode", "bypassPermissions", "--model", model, "Build the house.")


def kill(host: Running) -> None:
    host.signal(signal.SIGKILL)
    host.end()


def check(command: Command, *, begun: bool) -> None:
    """Take it up, and look at the end."""
    ran = command.run("resume", "--yes") if begun else command.run(*begin(command)[:-1], "--yes", "Build the house.")
    assert (ran.code, ran.out) == (0, "The house stands.\n"), ran.err
    for name, line in FILES.items():
        lines = Counter((command.workspace / name).read_text().split())
        assert lines[line] == 1, (name, lines)
        assert all(count == 1 for count in lines.values()), (name, lines)
    (database,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")
    assert anyio.run(wrong_in_store, database.parent) == []
    assert left_behind(command) == []


def test_a_team_killed_at_its_widest_moment_goes_on_where_it_was(command: Command) -> None:
    with started(command, *begin(command)) as host:
        host.wait_for("plan req_")
        host.wait_for("doors: retry")
        until((command.workspace / "walls.log").exists, "the tool is under way")
        kill(host)
    check(command, begun=True)


@pytest.mark.slow
def test_a_team_killed_while_it_is_made_is_whole_in_the_end(command: Command) -> None:
    with started(command, *begin(command)) as host:
        host.wait_for("lead -> roof")
        kill(host)
    check(command, begun=True)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20 * int(os.environ.get("SOAK", "1"))))
def test_a_team_killed_again_and_again_comes_to_the_same_end(command: Command, seed: int) -> None:
    draw, begun = random.Random(seed), False
    for attempt in range(draw.randint(1, 3)):
        arguments = ("resume", *(("--yes",) if draw.random() < 0.5 else ())) if begun else begin(command)
        with started(command, *arguments) as host:
            died = draw.uniform(0.8 if attempt == 0 else 0.2, LONGEST / (attempt + 1))
            _wait_out(host, died)
            kill(host)
        begun = command.run("sessions", "--json").out.strip() not in ("", "[]")
    check(command, begun=begun)


def _wait_out(host: Running, seconds: float) -> None:
    """So long, or until it has ended by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        host.process.wait(seconds)
