"""Measure durable sends per second, and the delay from a send to the recipient's next model call.

Sends: writer processes start together. Each sends one envelope after another, and each envelope is durable (fsync)
before the next. The baseline writes the same bytes through apsw, with an insert and a commit each, in the same journal
mode and with the same `synchronous`. The baseline has no duplicate check, no gapless numbers, no checksums, and wakes
no reader. The sides take turns, and the median of `RUNS` counts. Eight agents of one process share commits, as in a
session.

Delay: from the call that sends to the start of the recipient's model call with the envelope, in one process, on a store
on disk. A busy recipient reads mail at its next step; the rest of its current step is reported separately.

Exit with 1 if Callboard sends less than `LEAST` of the baseline with one or eight writers, or if the median delay
beyond the current step is over `MOST_MS`, idle or busy.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import child

LEAST = {1: 0.5, 8: 0.7}
"""Least ratio of Callboard to the baseline, by number of writer processes.

The extra work of one writer may cost as much as the disk. Eight writers wait for one lock on both sides, mostly for the
disk.
"""
MOST_MS = 25.0
"""Half of the shortest delay that a person could notice (50 ms)."""
SENDS = {1: 600, 8: 100}
"""Number of envelopes that each writer sends."""
RUNS, WORDS = 3, 100
HERE = Path(__file__).parent


def rate(kind: str, writers: int, tasks: int = 1) -> float:
    """Return the envelopes per second of all writers together, from their start to the end of the last one."""
    with tempfile.TemporaryDirectory() as temporary:
        count = SENDS[max(writers, tasks)]
        line = [sys.executable, str(HERE / "bus_side.py"), kind, temporary, str(count)]
        line += [str(tasks)] if kind == "ours" else []
        env = child.environment(Path(temporary))
        pipe = subprocess.PIPE
        sides = [subprocess.Popen(line, stdin=pipe, stdout=pipe, env=env, text=True) for _ in range(writers)]
        for side in sides:
            assert side.stdout is not None
            if side.stdout.readline() != "ready\n":
                raise child.ChildFailed(f"{' '.join(line)}: it did not begin")
        for side in sides:
            assert side.stdin is not None
            side.stdin.write("go\n")
            side.stdin.flush()
        took = [float(side.communicate(timeout=child.LONGEST_SECONDS)[0]) for side in sides]
        return writers * tasks * count / max(took)


def delays(kind: str) -> list[tuple[float, float]]:
    """Return (delay, rest of the current step) in ms for each envelope."""
    with tempfile.TemporaryDirectory() as temporary:
        line = [sys.executable, str(HERE / "bus_side.py"), kind, temporary, str(WORDS)]
        done = subprocess.run(
            line, env=child.environment(Path(temporary)), capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise child.ChildFailed(f"{' '.join(line)}: exit code {done.returncode}\n{done.stderr[-2_000:]}")
        return [(delay * 1_000, rest * 1_000) for delay, rest in json.loads(done.stdout.splitlines()[-1])]


def quantiles(values: Sequence[float]) -> list[str]:
    """Return p50 and p99."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return [f"{cuts[49]:.1f}", f"{cuts[98]:.1f}"]


def sends() -> bool:
    """Print the table of sends, and return whether the bounds hold."""
    cases = {"1 writer": (1, 1), "8 writers, one process each": (8, 1), "8 agents of one process": (1, 8)}
    rows: list[list[str]] = []
    holds = True
    for name, (writers, tasks) in cases.items():
        pairs = [(rate("ours", writers, tasks), rate("direct", writers)) for _ in range(RUNS)]
        mine, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
        bound = LEAST[writers] if tasks == 1 else None
        holds = holds and (bound is None or mine / plain >= bound)
        shown = f"{bound:.1f}" if bound is not None else ""
        rows.append([name, f"{mine:,.0f}", f"{plain:,.0f}", f"{mine / plain:.2f}", shown])
    print(child.table(["durable sends a second", "ours", "plain SQLite", "ratio", "at least"], rows))
    return holds


def waits() -> bool:
    """Print the table of delays, and return whether the bound holds."""
    rows: list[list[str]] = []
    holds = True
    for kind in ("idle", "busy"):
        found = delays(kind)
        own = [delay - rest for delay, rest in found]
        holds = holds and statistics.median(own) <= MOST_MS
        rows.append([kind, *quantiles([delay for delay, _ in found]), *quantiles(own), f"{MOST_MS:.0f}"])
    heads = ["send to next model call, ms", "p50", "p99", "beyond the step: p50", "p99", "p50 at most"]
    print(child.table(heads, rows))
    return holds


def main() -> int:
    try:
        fast, soon = sends(), waits()
    except child.ChildFailed as failed:
        print(f"no numbers: {failed}")
        return 1
    print("ok" if fast and soon else "OUT OF BOUNDS")
    return 0 if fast and soon else 1


if __name__ == "__main__":
    sys.exit(main())
