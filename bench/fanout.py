"""Run 100, 500, and 1,000 agents in one process, each with five model calls of 200 ms.

A hosted session starts them as subagents in one reply of its lead, with a journal on disk, permissions, the rate
limiter, and HTTP to a model service in another process. Wall time counts from that reply to the end of the last agent.
The baselines are as many streaming loops on the vendor's SDK (`bare.py`), and on an aiohttp client that parses each
event with `json.loads` alone (`fanout_bare.py`), in the same run against the same service. The ideal is the time of the
service alone: five times its latency. `--peers PYTHON` adds other frameworks (`peers.py`).

- Memory per agent is the growth of the process's peak size, divided by the number of agents.
- Resume is the time to restore the state of an agent of 10,000 events (`resume_side.py`), compared with `json.loads` of
  the same records.

Exit with 1 if an agent did not make all calls, or if the CPU of a call is more than `BOUND` of the SDK loop's with 500
agents, or more than `GROWTH` of the own cost with 100.
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
import peers
from bare import MODEL
from server import FILE
from step import Server, serving

AGENTS = (100, 500, 1_000)
CALLS, LATENCY_MS = 5, 200
IDEAL = CALLS * LATENCY_MS / 1_000
BOUND, BOUND_AT = 0.5, 500
"""Greatest ratio of the CPU of a call to that of the SDK loop, and the number of agents that it applies to."""
GROWTH = 1.1
"""Greatest ratio of the CPU of a call with the most agents to that with the fewest."""
LIFE_MS = 3.0
"""Greatest CPU time in ms of a subagent that answers at once."""
EVENTS = 10_000
STEPS_OF_EVENTS = 1_500
"""Number of steps of one agent that produce more than `EVENTS` events."""
WINDOW = 200_000
"""Tokens of the model window in that session, which is compacted."""
HERE = Path(__file__).parent
SDK = "SDK loop"


@dataclass(frozen=True)
class Side:
    """Result of one side for one number of agents."""

    name: str
    agents: int
    wall: float
    cpu: float
    kib: float

    @property
    def call_ms(self) -> float:
        """Return the CPU time of a call in ms, everything included."""
        return 1_000 * self.cpu / self.agents / CALLS

    @property
    def shown(self) -> list[str]:
        size = f"{self.kib / self.agents:.0f}"
        wall, ideal = f"{self.wall:.2f}", f"{self.wall / IDEAL:.2f}"
        return [f"{self.name}, {self.agents}", wall, ideal, f"{self.call_ms:.2f}", size]


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


def aiohttp_loops(server: Server, agents: int, folder: Path) -> Side:
    label = f"aiohttp-{agents}+{LATENCY_MS}ms"
    url = server.base_url(CALLS - 1, label)
    said = told([sys.executable, str(HERE / "fanout_bare.py"), url, str(agents)], workspace(folder), url)
    check_calls(server, label, agents)
    return Side("bare aiohttp", agents, said["wall"], said["cpu"], said["kib"])


def loops(name: str, command: list[str], server: Server, agents: int, folder: Path) -> Side:
    """Measure a program that runs as many agents at once: the SDK loop, or another framework."""
    label = f"{name}-{agents}+{LATENCY_MS}ms"
    url = server.base_url(CALLS - 1, label)
    said = told([*command, str(agents)], workspace(folder), url)
    check_calls(server, label, agents)
    return Side(name, agents, said["wall"], said["cpu"], said["kib"])


def check_calls(server: Server, label: str, agents: int) -> None:
    """Raise `child.ChildFailed` unless the agents of a side have made all their calls."""
    if (replies := server.seen(label).get("replies")) != agents * CALLS:
        raise child.ChildFailed(f"{label}: {agents} agents made {replies} calls, not {CALLS} each")


def ours(server: Server, agents: int, folder: Path, *, calls: int = CALLS) -> Side:
    """Run a session whose lead starts this many subagents at once. `calls`: model calls of each."""
    url = server.base_url(calls - 1, f"ours-{calls}+{LATENCY_MS}ms+{agents}agents")
    command = [sys.executable, str(HERE / "hosting.py"), MODEL, f"rate.calls_at_once={agents + 1}"]
    said = told(command, workspace(folder), url)
    if said["replies"] != agents * calls or said["lives"].get("subagent stopped done") != agents:
        raise child.ChildFailed(f"{agents} agents did not make {calls} calls each: {said}")
    return Side("ours", agents, said["fan_out"], said["cpu"], said["kib"])


def life_ms(server: Server, place: Path) -> float:
    """Return the CPU time in ms of a subagent that answers at once: its birth, one model call, and its end.

    The difference of two fan-outs, so that the start of the session does not count.
    """
    few, many = (ours(server, agents, place / f"lives-{agents}", calls=1) for agents in (AGENTS[0], AGENTS[1]))
    return 1_000 * (many.cpu - few.cpu) / (many.agents - few.agents)


def resume(server: Server, folder: Path) -> dict[str, float]:
    """Run a session of one agent with `EVENTS` events, then measure restoring its state."""
    url = server.base_url(STEPS_OF_EVENTS, f"resume+{WINDOW}window")  # ends by the number of replies, not of results
    told([sys.executable, str(HERE / "hosting.py"), MODEL], workspace(folder), url)
    return told([sys.executable, str(HERE / "resume_side.py")], folder, url)


def measure(server: Server, place: Path, others: dict[str, list[str]]) -> list[Side]:
    """Measure all sides with each number of agents, in turns."""
    sides: list[Side] = []
    for agents in AGENTS:
        sides.append(aiohttp_loops(server, agents, place / f"aiohttp-{agents}"))
        sides.append(loops(SDK, [sys.executable, str(HERE / "bare.py")], server, agents, place / f"sdk-{agents}"))
        sides.append(ours(server, agents, place / f"ours-{agents}"))
        for number, (name, command) in enumerate(others.items()):
            sides.append(loops(name, command, server, agents, place / f"peer-{number}-{agents}"))
    return sides


def main() -> int:
    others = peers.commands(peers.asked_for(__doc__))
    with serving() as server, tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        try:
            sides = measure(server, place, others)
            life = life_ms(server, place)
            again = resume(server, place / "resume")
        except child.ChildFailed as failed:
            print(f"no numbers: {failed}")
            return 1
    head = ["agents", "wall, s", f"of ideal ({IDEAL:g} s)", "CPU ms/call", "KiB/agent"]
    print(child.table(head, [side.shown for side in sides]))
    if again["events"] < EVENTS:
        print(f"no resume: the journal has {again['events']:.0f} events, not {EVENTS}")
        return 1
    print(
        f"resume of {again['events']:.0f} events: {again['resume']:.2f} s from the newest snapshot, "
        f"{again['fold']:.2f} s by folding all, {again['fold'] / again['json']:.1f} of json.loads alone"
    )
    within = "ok" if life <= LIFE_MS else "OVER"
    print(f"CPU of a subagent that answers at once: {life:.1f} ms (bound {LIFE_MS:g}): {within}")
    return max(verdict({(side.name, side.agents): side for side in sides}), int(life > LIFE_MS))


def verdict(sides: dict[tuple[str, int], Side]) -> int:
    """Print the ratios to other sides, and return 0 if both are within their bounds, otherwise 1."""
    mine, sdk = sides["ours", BOUND_AT], sides[SDK, BOUND_AT]
    print(f"{BOUND_AT} agents: wall {mine.wall / sdk.wall:.2f} of the SDK loop")
    ratios = {
        f"CPU of a call, {BOUND_AT} agents": (mine.call_ms / sdk.call_ms, "of the SDK loop", BOUND),
        f"CPU of a call, {AGENTS[-1]:,} agents": (
            sides["ours", AGENTS[-1]].call_ms / sides["ours", AGENTS[0]].call_ms,
            f"of that with {AGENTS[0]}",
            GROWTH,
        ),
    }
    for what, (ratio, of, bound) in ratios.items():
        print(f"{what}: {ratio:.2f} {of} (bound {bound:g}): {'ok' if ratio <= bound else 'OVER'}")
    return 0 if all(ratio <= bound for ratio, _, bound in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
