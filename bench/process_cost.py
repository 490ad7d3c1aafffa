"""CPU time and memory of the own process, and the cost of agents that run at once, for the sides of `fanout.py`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any


def cpu() -> float:
    """Return the CPU seconds of this process so far, user and system, for all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a living process so far, for all threads (man 5 proc_pid_stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """Return the KiB of resident memory of this process (man 5 proc_pid_statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


async def printed_cost(agents: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the agents at once, and print wall time, CPU time and memory as JSON."""
    size, began, used = resident(), time.monotonic(), cpu()
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent)
    told = {
        "wall": time.monotonic() - began,
        "cpu": cpu() - used,
        "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size,
    }
    sys.stdout.write(json.dumps(told) + "\n")
