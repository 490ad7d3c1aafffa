"""Measure a hundred agents at a service that allows 600 requests a minute, with and without the rate limiter.

The engine with its HTTP client is one process, the service (the rehearsal's emulator, which counts requests) another.
Both sides run at the same time, each with its own service: once with a service that counts in windows of a minute, once
with a bucket that refills continuously, as the real service does. Every agent makes its next call as soon as it has a
reply.

- Useful throughput: replies that agents received, relative to what the service allowed in that time. The service starts
  full: in SECONDS a bucket allows 600 requests plus 10 a second, and windows allow 600 for each window that began.
- 429s: share of all requests that reached the service, as the service counted them.
- Wait: the mean and the longest time of an agent from asking for a call to its reply; a wait that is not over at the
  end counts up to then. The worst agent is compared with the median agent.

Exit with 1 if the governed side exceeds a bound with either service. Without the rate limiter each agent recovers
alone: it waits as long as the service says, and tries again. That side has no bounds.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import child

LIMIT = 600
SECONDS = 80.0
LATENCY_MS = 300
LEAST_USED, MOST_REFUSED, WORST_WAIT = 0.95, 0.02, 3.0
HERE = Path(__file__).parent
SIDES = {"with the rate limiter": "governed", "without": "alone"}


@dataclass(frozen=True)
class Side:
    """Measurements of one side."""

    name: str
    used: float
    """Useful throughput, relative to the allowed throughput."""
    refused: float
    wait: float
    """Mean wait of the median agent, in seconds."""
    worst: float
    """Mean wait of the worst agent, relative to that of the median agent."""
    longest: float
    """Longest wait of the worst agent, relative to that of the median agent."""
    gave_up: int
    """Number of agents whose turn ended with an error."""

    @property
    def holds(self) -> bool:
        return self.used >= LEAST_USED and self.refused <= MOST_REFUSED and max(self.worst, self.longest) <= WORST_WAIT


def allowed(refill: str) -> float:
    """Return the requests that the service allows in `SECONDS`, including its first fill."""
    return LIMIT * math.ceil(SECONDS / 60) if refill == "window" else LIMIT + LIMIT * SECONDS / 60


def measured(name: str, refill: str, replies: Sequence[Sequence[float]], gave_up: int, log: Path) -> Side:
    """Return the measurements of one side."""
    statuses = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    waits = [[b - a for a, b in zip([0.0, *one], [*one, SECONDS], strict=True)] for one in replies]
    means, longest = [statistics.mean(one) for one in waits], [max(one) for one in waits]
    return Side(
        name,
        used=sum(map(len, replies)) / allowed(refill),
        refused=statuses.count(429) / max(1, len(statuses)),
        wait=statistics.median(means),
        worst=max(means) / statistics.median(means),
        longest=max(longest) / statistics.median(longest),
        gave_up=gave_up,
    )


def compare(refill: str) -> list[Side]:
    """Run both sides at the same time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients: list[tuple[str, Path, subprocess.Popen[str]]] = []
        for name, kind in SIDES.items():
            log = folder / f"{kind}.jsonl"
            url = serve(stack, folder, refill, log)
            command = [sys.executable, str(HERE / "herd_side.py"), url, str(SECONDS), kind]
            env = child.environment(folder)
            client = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True)
            stack.callback(child.end, client)
            clients.append((name, log, client))
        sides: list[Side] = []
        for name, log, client in clients:
            said, _ = client.communicate(timeout=SECONDS + 120)
            told = json.loads(said)
            sides.append(measured(name, refill, told["replies"], len(told["ended"]), log))
        return sides


def serve(stack: ExitStack, folder: Path, refill: str, log: Path) -> str:
    """Start a service in its own process, and return its URL."""
    look: dict[str, object] = {"name": "look", "input": {}}
    step = {"reply": [{"tool_use": look}], "repeat": "forever"}
    scenario = {
        "models": {"rehearsal": {"window": 1_000_000}},
        "latency_ms": LATENCY_MS,
        "rate": {"requests": LIMIT, "refill": refill},
        "agents": {"lead": [step]},
    }
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(scenario))  # JSON is YAML
    command = [sys.executable, "-m", "callboard.adapters.models.rehearsal", str(file), "--log", str(log)]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child.environment(folder))
    stack.callback(service.wait)
    stack.callback(service.kill)
    assert service.stdout is not None
    return service.stdout.readline().split()[-1]


def shown(refill: str, side: Side) -> list[str]:
    return [
        f"{refill}, {side.name}",
        f"{side.used:.3f}",
        f"{100 * side.refused:.2f} %",
        f"{side.wait:.1f}",
        f"{side.worst:.2f}",
        f"{side.longest:.2f}",
        str(side.gave_up),
    ]


def main() -> int:
    head = ["", "of the limit", "429s", "median wait, s", "worst / median", "longest / median", "gave up"]
    sides = {refill: compare(refill) for refill in ("window", "bucket")}
    print(child.table(head, [shown(refill, side) for refill, both in sides.items() for side in both]))
    for refill, (governed, _) in sides.items():
        bounds = (
            f"at least {LEAST_USED} of the limit, at most {100 * MOST_REFUSED:g} % 429s, waits within {WORST_WAIT:g}"
        )
        print(f"{refill}: {'ok' if governed.holds else 'OUT OF BOUNDS'} ({bounds} times the median)")
    return 0 if all(governed.holds for governed, _ in sides.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
