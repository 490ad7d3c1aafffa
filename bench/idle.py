"""Measure the cost of an idle team: fifty idle teammates in one process, compared with a sleeping Python thread.

The teammates have each had a turn and wait for mail. Both processes are measured for the same `SECONDS`: CPU of all
threads as the kernel's scheduler counts it (/proc/PID/task/*/schedstat, nanoseconds), the number of wake-ups, and the
bytes written. The baseline is a Python process with one thread that wakes once a second, because Callboard polls the
store once a second in case a notification is lost.
Exit with 1 if the team used more than `CPU_BOUND_MS`, or if anything was written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import child

MATES = 50
SECONDS = 10.0
CPU_BOUND_MS = 50.0
"""Seconds of the measurement, and the maximum CPU in that time; nothing may be written."""
SETTLE_SECONDS = 2.0
"""Seconds to wait after the last turn, until memory is returned and caches and log files are closed."""

SLEEPER = """
import sys, threading, time
def wait():
    while True:
        time.sleep(1)
threading.Thread(target=wait, daemon=True).start()
print("{}", flush=True)
sys.stdin.readline()
"""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Used:
    """Resources that a process used so far, or between two moments."""

    cpu_ms: float
    wakings: int
    written: int
    """Number of bytes passed to write calls of the kernel."""
    writes: int

    def since(self, before: Used) -> Used:
        return Used(
            self.cpu_ms - before.cpu_ms,
            self.wakings - before.wakings,
            self.written - before.written,
            self.writes - before.writes,
        )


def used(pid: int) -> Used:
    """Read the use from /proc (man 5 proc_pid_io, Documentation/scheduler/sched-stats)."""
    tasks = Path(f"/proc/{pid}/task")
    on_cpu = sum(int(stat.read_text().split()[0]) for stat in tasks.glob("*/schedstat"))
    wakings = sum(_field(status, "voluntary_ctxt_switches") for status in tasks.glob("*/status"))
    io = Path(f"/proc/{pid}/io")
    return Used(on_cpu / 1e6, wakings, _field(io, "wchar"), _field(io, "syscw"))


def _field(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{name}:"))


@contextmanager
def sleeping(command: list[str], folder: Path) -> Generator[tuple[int, str]]:
    """Start a child, and return its pid and first line, which it prints when it has no work left."""
    folder.mkdir()
    log = folder / "child.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env=child.environment(folder),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise child.ChildFailed(f"{' '.join(command)}: said nothing\n{log.read_text()[-2_000:]}")
            yield process.pid, line
        finally:
            process.kill()
            process.communicate()


def team(folder: Path) -> list[str]:
    """Start a session whose lead has spawned the teammates, each of which had one turn."""
    spawns = [
        {"tool_use": {"name": "spawn_teammate", "input": {"name": f"mate-{n}", "role": "waits", "prompt": "Hello."}}}
        for n in range(MATES)
    ]
    agents = {
        "lead": [{"reply": spawns}, {"reply": "They are there.", "repeat": "forever"}],
        "*": [{"reply": "Hello.", "repeat": "forever"}],
    }
    scenario = folder / "scenario.yaml"
    scenario.write_text(json.dumps({"agents": agents}))  # JSON is YAML
    return [sys.executable, str(HERE / "hosting.py"), f"rehearsal:{scenario}", f"team.max_agents={MATES + 1}"]


def measure(folder: Path) -> dict[str, Used]:
    """Measure both at once, so that load affects both. Raises `child.ChildFailed` if the team is not idle."""
    ours = sleeping(team(folder), folder / "ours")
    bare = sleeping([sys.executable, "-c", SLEEPER], folder / "bare")
    with ours as (our_pid, said), bare as (bare_pid, _):
        lives = json.loads(said)["lives"]
        if lives != {"lead idle": 1, "teammate idle": MATES}:
            raise child.ChildFailed(f"the team is not idle: {said}")
        time.sleep(SETTLE_SECONDS)
        before = {"bare": used(bare_pid), "ours": used(our_pid)}
        time.sleep(SECONDS)
        return {"bare": used(bare_pid).since(before["bare"]), "ours": used(our_pid).since(before["ours"])}


def shown(name: str, one: Used, bare: Used) -> list[str]:
    ratio = f"{one.cpu_ms / bare.cpu_ms:.1f}"
    return [name, f"{one.cpu_ms:.1f}", ratio, str(one.wakings), str(one.writes), str(one.written)]


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        try:
            found = measure(Path(temporary))
        except child.ChildFailed as failed:
            print(f"no numbers: {failed}")
            return 1
    bare, ours = found["bare"], found["ours"]
    rows = [shown("bare Python, one sleeping thread", bare, bare), shown(f"{MATES} idle mates", ours, bare)]
    print(child.table([f"idle for {SECONDS:g} s", "CPU ms", "ratio", "wakings", "writes", "bytes"], rows))
    within = ours.cpu_ms <= CPU_BOUND_MS and not ours.writes and not ours.written
    verdict = "ok" if within else "OVER"
    print(f"CPU {ours.cpu_ms:.1f} ms (bound {CPU_BOUND_MS:g}), {ours.writes} writes (bound 0): {verdict}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
