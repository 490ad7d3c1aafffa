"""Measure the memory of a session's process: after the start, in a long session, and for each agent.

- The process after its first reply: private memory (USS), which excludes libraries that other processes share.
- Growth over `STEPS` steps of one agent, each with a `read_file` of 2 KB, with default settings and a window of
  `WINDOW` tokens: the difference of the private memory to that after `EARLY` steps.
- An active agent: `AGENTS[1]` subagents whose first requests are all under way, minus `AGENTS[0]` of them.
- An idle teammate: the Python objects of `MATES[1]` teammates that had one turn, minus `MATES[0]` of them. Objects are
  counted by tracemalloc, because freed memory that Python keeps would hide such small numbers.

Each session is a child process (`memory_side.py`) with the model service in another one (`server.py`). The garbage is
collected before a measurement. The load of the machine changes no number.

Exit with 1 if a number exceeds its bound in `BOUNDS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import child
from bare import MODEL
from server import FILES
from step import Server, serving

AGENTS = (100, 500)
MATES = (10, 50)
EARLY, STEPS = 20, 5_000
WINDOW = 200_000
BOUNDS = {
    "MB after the first reply": 70.0,
    f"MB of growth over {STEPS:,} steps": 30.0,
    "KB for each active agent": 110.0,
    "KB of objects for each idle teammate": 80.0,
}
HERE = Path(__file__).parent


def part_text(number: int) -> str:
    """Return 2 KB of text in four lines, another one for each number."""
    return "".join(f"{number} {line} ".ljust(511, "abcdefgh"[line]) + "\n" for line in range(4))


def hosted(url: str, folder: Path, steps: str, agents: int, *, objects: bool = False) -> Any:
    """Return the memory of a session (`memory_side.py`). Raises `child.ChildFailed`."""
    folder.mkdir()
    longest = max(map(int, filter(None, steps.split(","))), default=0)
    for number in range(longest):
        (folder / FILES.format(number)).write_text(part_text(number))
    command = [sys.executable, str(HERE / "memory_side.py"), MODEL, steps]
    command += ["objects" if objects else "", f"rate.calls_at_once={agents + 1}", f"team.max_agents={agents + 1}"]
    env = child.environment(
        folder, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key", CALLBOARD_LIMITS__STUCK_AFTER="1000000"
    )
    ran = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=child.LONGEST_SECONDS, check=False
    )
    if ran.returncode or not ran.stdout.strip():
        raise child.ChildFailed(f"{' '.join(command)}: exit code {ran.returncode}\n{ran.stderr[-2_000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def session(server: Server, folder: Path) -> dict[str, int]:
    """Return the KiB of private memory in a long session, by the number of replies."""
    url = server.base_url(STEPS, f"memory+{WINDOW}window+files")
    marks = (1, EARLY, STEPS // 4, STEPS // 2, STEPS)
    return hosted(url, folder, ",".join(map(str, marks)), 0)["uss"]


def active(server: Server, folder: Path, agents: int) -> int:
    """Return the KiB of private memory when the requests of all subagents are under way."""
    return hosted(server.base_url(0, f"active-{agents}+{agents}agents+{agents}held"), folder, "", agents)["uss"][
        "active"
    ]


def idle(server: Server, folder: Path, mates: int) -> int:
    """Return the KiB of objects when all teammates wait."""
    told = hosted(server.base_url(0, f"idle-{mates}+{mates}mates"), folder, "", mates, objects=True)
    if told["lives"].get("teammate idle") != mates:
        raise child.ChildFailed(f"{mates} teammates are not idle: {told}")
    return told["objects"]["end"]


def main() -> int:
    with serving() as server, tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        try:
            few, many = (active(server, place / f"active-{agents}", agents) for agents in AGENTS)
            small, large = (idle(server, place / f"idle-{mates}", mates) for mates in MATES)
            at = session(server, place / "session")
        except child.ChildFailed as failed:
            print(f"no numbers: {failed}")
            return 1
    rows = [[f"{int(steps):,}", f"{kib / 1_024:.1f}"] for steps, kib in at.items() if steps.isdigit()]
    print(child.table(["replies of one agent", "MB"], rows))
    numbers = (at["1"] / 1_024, (at[str(STEPS)] - at[str(EARLY)]) / 1_024)
    agents = ((many - few) / (AGENTS[1] - AGENTS[0]), (large - small) / (MATES[1] - MATES[0]))
    measured = dict(zip(BOUNDS, (*numbers, *agents), strict=True))
    for name, number in measured.items():
        print(f"{name}: {number:.1f} (bound {BOUNDS[name]:g}): {'ok' if number <= BOUNDS[name] else 'OVER'}")
    return 0 if all(number <= BOUNDS[name] for name, number in measured.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
