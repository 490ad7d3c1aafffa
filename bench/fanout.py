"""Run 100, 500, and 1,000 agents in one process, each with five model calls of 200 ms.

A hosted session starts them as subagents in one reply of its lead, with a journal on disk, permissions, the rate
governor, and HTTP to a model service in another process. Wall time counts from that reply to the end of the last agent.
The baseline is as many bare asyncio loops on one aiohttp client (`fanout_bare.py`), in the same run against the same
service. The ideal is the time of the service alone: five times its latency.

- Memory per agent is the growth of the process's peak size, divided by the number of agents.
- Resume is the time to restore the state of an agent of 10,000 events (`resume_side.py`), compared with `json.loads` of
  the same records.

Exit with 1 if 500 agents take more than `BOUND` times the ideal, or if an agent did not make all calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import child
from bare import MODEL
from server import FILE
from step import Server, serving

AGENTS = (100, 500, 1_000)
CALLS, LATENCY_MS = 5, 200
IDEAL = CALLS * LATENCY_MS / 1_000
BOUND, BOUND_AT = 2.5, 500
"""Greatest ratio of wall time to the ideal, and the number of agents that it applies to."""
EVENTS = 10_000
STEPS_OF_EVENTS = 1_300
"""Number of steps of one agent that produce more than `EVENTS` events."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Side:
    """Result of one side for one number of agents."""

    name: str
    agents: int
    wall: float
    cpu: float
    kib: float

    @property
    def shown(self) -> list[str]:
        cpu, size = f"{1_000 * self.cpu / self.agents:.1f}", f"{self.kib / self.agents:.0f}"
        return [f"{self.name}, {self.agents}", f"{self.wall:.2f}", f"{self.wall / IDEAL:.2f}", cpu, size]


def told(command: list[str], folder: Path, url: str) -> Any:
    """Return the one line of JSON that a child prints. Raises `child.ChildFailed`."""
    env = child.environment(
        folder, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key", CALLBOARD_LIMITS__STUCK_AFTER="1000000"
    )
    try:
        ran = subprocess.run(
            command, env=env, cwd=folder, input="\n", capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired as hung:
        raise child.ChildFailed(f"{' '.join(command)}: hangs") from hung
    if ran.returncode != 0 or not ran.stdout.strip():
        raise child.ChildFailed(f"{' '.join(command)}: exit code {ran.returncode}\n{ran.stderr[-2_000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def workspace(place: Path) -> Path:
    place.mkdir()
    (place / FILE).write_text("All work and no play.\n" * 20)
    return place


def bare(server: Server, agents: int, folder: Path) -> Side:
    url = server.base_url(CALLS - 1, f"bare+{LATENCY_MS}ms")
    said = told([sys.executable, str(HERE / "fanout_bare.py"), url, str(agents)], workspace(folder), url)
    return Side("bare", agents, said["wall"], said["cpu"], said["kib"])


def ours(server: Server, agents: int, folder: Path) -> Side:
    url = server.base_url(CALLS - 1, f"ours+{LATENCY_MS}ms+{agents}agents")
    command = [sys.executable, str(HERE / "hosting.py"), MODEL, f"rate.calls_at_once={agents + 1}"]
    said = told(command, workspace(folder), url)
    if said["replies"] != agents * CALLS or said["lives"].get("subagent stopped done") != agents:
        raise child.ChildFailed(f"{agents} agents did not make {CALLS} calls each: {said}")
    return Side("ours", agents, said["fan_out"], said["cpu"], said["kib"])


def resume(server: Server, folder: Path) -> dict[str, float]:
    """Run a session of one agent with `EVENTS` events, then measure restoring its state."""
    url = server.base_url(STEPS_OF_EVENTS, "resume")
    told([sys.executable, str(HERE / "hosting.py"), MODEL], workspace(folder), url)
    return told([sys.executable, str(HERE / "resume_side.py")], folder, url)


def main() -> int:
    with serving() as server, tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        try:
            sides = [
                side(server, agents, place / f"{side.__name__}-{agents}") for agents in AGENTS for side in (bare, ours)
            ]
            again = resume(server, place / "resume")
        except child.ChildFailed as failed:
            print(f"no numbers: {failed}")
            return 1
    head = ["agents", "wall, s", f"of ideal ({IDEAL:g} s)", "CPU ms/agent", "KiB/agent"]
    print(child.table(head, [side.shown for side in sides]))
    if again["events"] < EVENTS:
        print(f"no resume: the journal has {again['events']:.0f} events, not {EVENTS}")
        return 1
    print(
        f"resume of {again['events']:.0f} events: {again['resume']:.2f} s from the newest snapshot, "
        f"{again['fold']:.2f} s by folding all, {again['fold'] / again['json']:.1f} of json.loads alone"
    )
    ratio = next(side.wall for side in sides if side.name == "ours" and side.agents == BOUND_AT) / IDEAL
    print(f"{BOUND_AT} agents: {ratio:.2f} of the ideal (bound {BOUND:g}): {'ok' if ratio <= BOUND else 'OVER'}")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
