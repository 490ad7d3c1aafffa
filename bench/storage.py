"""Measure durable messages per second on both engines, and the delay from a commit to a reader in another process.

A message is one commit of an envelope and a record of its sender's journal. The writers are agents of one process. The
baseline inserts the same bytes into two plain tables with the same driver, in as many threads with a connection each,
and commits each message. It has no duplicate check, no gapless numbers, no checksums, no fences, and wakes no reader.
The sides take turns, and the median of `RUNS` counts.

The delays: one process commits a thousand messages per second, another one follows them. Beside as many messages of
another process, an idle lead is prompted, by its own process and by another one: the time until the model call with the
prompt counts.

Exit with 1 if Callboard commits less than `LEAST` of the baseline, or if the p99 of a delay is over `MOST_MS`. The
server is a new one of this machine, on its disk, with fsync; without its programs there are no figures of PostgreSQL.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import child

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.postgres_server import PostgresServer, programs

LEAST = 0.5
MOST_MS = 50.0
MESSAGES = {1: 400, 8: 150, 32: 60}
"""Number of writers -> messages of each."""
PACED = 3_000
PROMPTS = 100
LOADED = 30_000
"""Messages of the load, for longer than the prompts take."""
RUNS = 3
SIDE = str(Path(__file__).parent / "storage_side.py")


@contextmanager
def side(kind: str, engine: str, place: str, *, writers: int = 1, count: int) -> Generator[subprocess.Popen[str]]:
    """Start a side, and wait until it is ready. It begins when a line is written to it."""
    line = [sys.executable, SIDE, kind, engine, place, str(writers), str(count)]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, env=child.environment(Path.home()), text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise child.ChildFailed(f"{' '.join(line)}: it did not begin")
        try:
            yield process
        finally:
            process.kill()


def result(process: subprocess.Popen[str]) -> object:
    return json.loads(process.communicate("go\n", timeout=child.LONGEST_SECONDS)[0])


def rate(kind: str, engine: str, place: str, writers: int) -> float:
    """Return the messages per second of all writers together."""
    count = MESSAGES[writers]
    with side(kind, engine, place, writers=writers, count=count) as process:
        took = result(process)
    assert isinstance(took, float)
    return writers * count / took


def delays(engine: str, place: str) -> list[float]:
    """Return the delay in ms of each message to a reader in another process."""
    with (
        side("follow", engine, place, count=PACED) as reader,
        side("send", engine, place, count=PACED) as sender,
    ):
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
        result(sender)
        return cast("list[float]", result(reader))


def call_delays(engine: str, place: str, *, own: bool) -> list[float]:
    """Return the delay in ms from each prompt to the model call that has it, beside a thousand messages per second.

    `own`: the process that hosts the lead sends the prompts.
    """
    with (
        side("send", engine, place, count=LOADED) as load,
        side("host", engine, place, writers=int(own), count=PROMPTS) as host,
        side("prompt", engine, place, writers=int(own), count=PROMPTS) as sender,
    ):
        for process in (load, host, *([] if own else [sender])):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert host.stdout is not None
        return cast("list[float]", json.loads(host.stdout.readline()))


def p50_and_p99(delays: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return cuts[49], cuts[98]


def measure(engine: str, place: str) -> bool:
    """Print the figures of one engine, and return True if all are within their bounds."""
    good = True
    for writers in MESSAGES:
        rates: dict[str, list[float]] = {"bare": [], "ours": []}
        for _ in range(RUNS):
            for kind, found in rates.items():
                found.append(rate(kind, engine, place, writers))
        bare, ours = (statistics.median(rates[kind]) for kind in ("bare", "ours"))
        good = good and ours / bare >= LEAST
        print(f"{engine:<10} {writers:>7} {bare:>9,.0f} {ours:>9,.0f} {ours / bare:>6.2f}")
    measured = {
        "commit to another process": delays(engine, place),
        "prompt to model call, same process": call_delays(engine, place, own=True),
        "prompt to model call, another process": call_delays(engine, place, own=False),
    }
    for name, found in measured.items():
        p50, p99 = p50_and_p99(found)
        good = good and p99 <= MOST_MS
        print(f"{engine:<10} {name}, at 1,000 messages/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return good


def main() -> int:
    print(f"{'engine':<10} {'writers':>7} {'bare/s':>9} {'ours/s':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        good = measure("sqlite", folder)
    if programs() is None:
        print("there are no programs of PostgreSQL: no figures of it")
        return 0 if good else 1
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder), durable=True)
        server.start()
        try:
            good = measure("postgres", server.url) and good
        finally:
            server.stop()
    print("ok" if good else f"OVER: the ratio is below {LEAST}, or p99 over {MOST_MS:g} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
