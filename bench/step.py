"""Client CPU of one agent step: ours beside a bare SDK streaming loop, against the same server, in the same run.

A step is one model call and one `read_file` of 2 KB. Both sides are child processes that take turns, so that a machine
that slows down slows both; of each length the median counts, and a run of one step is subtracted, so that start-up
does not. The whole history must reach the server on both sides, or there is no ratio.
Exits 1 when ours costs more than `BOUND` of the bare loop at either length, or grows more steeply.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import child
from bare import MODEL
from server import FILE

BOUND = 1.0
"""Ours over the bare loop, CPU of a step, at 200 and at 1,000 steps; where we are going is 0.2."""

GROWTH_BOUND = 1.0
"""Ours over the bare loop: what each further step adds to the cost of a step."""

LENGTHS = (200, 1_000)
REPEATS = {1: 7, 200: 7, 1_000: 2}
RESULT_BYTES = 2_048
HERE = Path(__file__).parent


class NotComparable(Exception):
    """There is nothing to compare, and why: no number is printed in its place."""


@dataclass(frozen=True)
class Server:
    """Where the model service listens, and what it saw."""

    port: int

    def base_url(self, steps: int, label: str) -> str:
        return f"http://127.0.0.1:{self.port}/{steps}/{label}"

    def seen(self, label: str) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{label}/seen", timeout=10) as answer:
            return json.load(answer)


@dataclass(frozen=True)
class Side:
    """One side's CPU of a step in ms, by length, and the size of its last request in bytes."""

    name: str
    step_ms: dict[int, float]
    last_request: dict[int, int]

    @property
    def growth(self) -> float:
        """ms that a step costs more for each step that came before it, between the two lengths."""
        short, long = LENGTHS
        return (self.step_ms[long] - self.step_ms[short]) / ((long - short) / 2)


Command = Callable[[Path, int], tuple[list[str], dict[str, str]]]
"""From a folder and the number of steps: the command, and what it needs in its environment."""


def bare(folder: Path, steps: int) -> tuple[list[str], dict[str, str]]:
    """The baseline's command."""
    return [sys.executable, str(HERE / "bare.py")], {}


def ours(folder: Path, steps: int) -> tuple[list[str], dict[str, str]]:
    """OURS: a headless session that reads the same file as often, its journal on disk, its history whole.

    Everything a user gets is on. Only compaction must not shorten the history, which the model's window (1,000,000
    tokens) leaves room for: the server counts the results, and a shorter history is no comparison.
    """
    if importlib.util.find_spec("callboard.__main__") is None:
        raise NotComparable("ours is not there yet: the package has no `python -m callboard`")
    command = [sys.executable, "-m", "callboard", "run", "Read the notes, part by part."]
    return [*command, "--model", MODEL, "--max-turns", str(steps + 10), "--output-format", "json"], {
        "CALLBOARD_CONTEXT__PIPELINE": "[]",
        "CALLBOARD_LIMITS__STUCK_AFTER": "1000000",  # the look-out is on, and the same call may go on and on
    }


def measure(sides: Mapping[str, Command], server: Server) -> list[Side]:
    """Run all sides at each length, in turns. Raises `NotComparable` if the server saw another history than it should
    have."""
    totals: dict[tuple[str, int], float] = {}
    sizes: dict[tuple[str, int], int] = {}
    for steps, repeats in REPEATS.items():
        costs: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, command in sides.items():
                costs[name].append(_run(name, command, server, steps))
                sizes[name, steps] = _size(name, server, steps)
        totals |= {(name, steps): statistics.median(each) for name, each in costs.items()}
    return [
        Side(
            name,
            {steps: (totals[name, steps] - totals[name, 1]) / (steps - 1) * 1_000 for steps in LENGTHS},
            {steps: sizes[name, steps] for steps in LENGTHS},
        )
        for name in sides
    ]


def _size(name: str, server: Server, steps: int) -> int:
    """Bytes of the last request of a run."""
    saw = server.seen(name)
    if saw.get("results") != steps:
        raise NotComparable(f"{name}: the last request of {steps} steps held {saw.get('results')} results")
    return saw["bytes"]


def _run(name: str, command: Command, server: Server, steps: int) -> float:
    """CPU seconds of one run in a folder of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        home, folder = Path(temporary, "home"), Path(temporary, "workspace")
        home.mkdir()
        folder.mkdir()
        (folder / FILE).write_text(("All work and no play. " * RESULT_BYTES)[: RESULT_BYTES - 1] + "\n")
        words, extra = command(folder, steps)
        env = child.environment(
            home, ANTHROPIC_BASE_URL=server.base_url(steps, name), ANTHROPIC_API_KEY="not-a-key", **extra
        )
        return child.run(words, env, folder).cpu


@contextmanager
def serving() -> Generator[Server]:
    """The model service in a process of its own, so that its work is not counted."""
    process = subprocess.Popen([sys.executable, str(HERE / "server.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def shown(side: Side) -> list[str]:
    lengths = [f"{side.step_ms[steps]:.2f}" for steps in LENGTHS]
    return [side.name, *lengths, f"{side.growth * 1_000:.1f}", f"{side.last_request[LENGTHS[-1]] / 1e6:.2f}"]


def verdict(baseline: Side, candidate: Side) -> int:
    """Print the ratios; 0 when all are within their bounds, else 1."""
    ratios = {
        f"CPU of a step, {steps} steps": (candidate.step_ms[steps] / baseline.step_ms[steps], BOUND)
        for steps in LENGTHS
    }
    ratios["growth of a step"] = (candidate.growth / baseline.growth, GROWTH_BOUND)
    for what, (ratio, bound) in ratios.items():
        print(f"{what}: {ratio:.2f} of the bare loop (bound {bound:.1f}): {'ok' if ratio <= bound else 'OVER'}")
    return 0 if all(ratio <= bound for ratio, bound in ratios.values()) else 1


def main() -> int:
    head = ["client CPU", *(f"ms/step, {steps} steps" for steps in LENGTHS), "growth, us/step", "last request, MB"]
    with serving() as server:
        try:
            baseline, candidate = measure({"bare": bare, "ours": ours}, server)
        except (NotComparable, child.ChildFailed) as missing:
            print(f"no ratio: {missing}")
            return 1
    print(child.table(head, [shown(baseline), shown(candidate)]))
    return verdict(baseline, candidate)


if __name__ == "__main__":
    sys.exit(main())
