"""Many agents in one real process: two hundred at once, and fifty that have nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.cli.commands.command import Command
from tests.warm import PIPE, STDERR, Process

SUBAGENTS, SOAK_SUBAGENTS, LATENCY_S = 40, 200, 0.2
MATES, IDLE_S = 50, 3.0
IDLE_WAKINGS = 60
"""The look at the store once a second is for the whole process: were it for each mate, there would be 150."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@contextmanager
def hosting(command: Command, scenario: object) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """A process that hosts a session on the scenario, once all is quiet there, and what it said of it."""
    file = command.workspace.parent / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario))
    line = [str(Path(__file__).with_name("hosting_child.py")), str(file)]
    child = Process(line, command.workspace, command.env, stdin=PIPE, stderr=STDERR)
    try:
        assert child.stdout is not None
        yield psutil.Process(child.pid), json.loads(child.stdout.readline())
        child.communicate("\n", timeout=180)
        assert child.returncode == 0
    finally:
        child.kill()
        child.communicate()


def wakings(pid: int) -> int:
    """How often the process's threads have woken from a wait, since they began."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def use(name: str, /, **given: object) -> dict[str, object]:
    return {"tool_use": {"name": name, "input": given}}


@pytest.mark.slow
@pytest.mark.parametrize("count", [SUBAGENTS, pytest.param(SOAK_SUBAGENTS, marks=pytest.mark.soak)])
def test_very_many_subagents_at_once_finish(
    command: Command, count: int, record_property: Callable[[str, object], None]
) -> None:
    calls = [
        use("task", description=f"Part {number}", prompt=f"Do part {number}.", agent_type="explore")
        for number in range(count)
    ]
    scenario = {
        "latency_ms": LATENCY_S * 1000,
        "agents": {
            "lead": [{"reply": calls}, {"when": {"result_of": "task"}, "reply": "All parts are done."}],
            "*": [{"reply": [use("glob", pattern="*")]}, {"reply": "A part is done."}],
        },
    }
    with hosting(command, scenario) as (process, said):
        assert (said["code"], said["text"]) == (0, "All parts are done.")
        assert said["lives"] == {"lead idle": 1, "subagent stopped done": count}
        assert process.children() == []
    record_property("seconds", said["seconds"])
    record_property("cpu_seconds", said["cpu_seconds"])


@pytest.mark.slow
def test_an_idle_team_of_fifty_costs_nothing(command: Command) -> None:
    spawns = [
        use("spawn_teammate", name=f"mate-{number}", role="waits", prompt="Say hello.") for number in range(MATES)
    ]
    scenario = {
        "agents": {
            "lead": [{"reply": spawns}, {"reply": "They are there.", "repeat": "forever"}],
            "*": [{"reply": "Hello.", "repeat": "forever"}],
        }
    }
    with hosting(command, scenario) as (process, said):
        assert said["lives"] == {"lead idle": 1, "teammate idle": MATES}
        for _ in range(20):  # on a slow machine, it takes longer to have nothing to do
            before, wrote = wakings(process.pid), process.io_counters()
            time.sleep(IDLE_S)
            woken, writes = wakings(process.pid) - before, process.io_counters()
            if woken < IDLE_WAKINGS and writes.write_count == wrote.write_count:
                break
    assert woken < IDLE_WAKINGS
    assert writes.write_bytes == wrote.write_bytes
    assert writes.write_count == wrote.write_count


def test_importing_the_package_loads_no_sdk() -> None:
    """The SDK alone takes a second; what `import callboard` costs, every tool of a user's pays."""
    script = "import sys, callboard; print(sorted({'anthropic', 'mcp', 'prompt_toolkit'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
