"""Compare the client CPU of one agent step with a bare SDK streaming loop, on the same server, in the same run.

A step is one model call and one `read_file` of 2 KB. Both sides are child processes that take turns, so that load
affects both. The median of each length counts, minus a run of one step, which removes the start-up. Both sides must
send the whole history to the server; otherwise there is no ratio. Exit with 1 if Callboard costs more than `BOUND` of
the bare loop at either length, or grows faster. `--peers PYTHON` adds other frameworks (`peers.py`).
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
from functools import partial
from pathlib import Path

import child
import peers
from bare import MODEL
from server import FILE

BOUND = 1.0
"""Greatest ratio of a step's CPU to that of the bare loop, at 200 and at 1,000 steps."""

GROWTH_BOUND = 1.0
"""Greatest ratio of the growth of a step's cost to that of the bare loop."""

LENGTHS = (200, 1_000)
REPEATS = {1: 7, 200: 7, 1_000: 2}
RESULT_BYTES = 2_048
HERE = Path(__file__).parent


class NotComparable(Exception):
    """The sides cannot be compared; the message gives the reason."""


@dataclass(frozen=True)
class Server:
    """Address of the model service, and the requests that it saw."""

    port: int

    def base_url(self, steps: int, label: str) -> str:
        return f"http://127.0.0.1:{self.port}/{steps}/{_word(label)}"

    def seen(self, label: str) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{_word(label)}/seen", timeout=10) as answer:
            return json.load(answer)


def _word(label: str) -> str:
    return label.replace(" ", "-")


@dataclass(frozen=True)
class Side:
    """CPU of a step of one side in ms by length, and the size of its last request in bytes."""

    name: str
    step_ms: dict[int, float]
    last_request: dict[int, int]

    @property
    def growth(self) -> float:
        """Return the ms that each earlier step adds to the cost of a step, between the two lengths."""
        short, long = LENGTHS
        return (self.step_ms[long] - self.step_ms[short]) / ((long - short) / 2)


Command = Callable[[Path, int], tuple[list[str], dict[str, str]]]
"""Function from a folder and a number of steps to a command and its environment."""


def bare(folder: Path, steps: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of the baseline."""
    return [sys.executable, str(HERE / "bare.py")], {}


def ours(folder: Path, steps: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of a headless session that reads the same file as often, with its journal on disk.

    Everything is on, as for a user. The model's window (1,000,000 tokens) is large enough that no compaction shortens
    the history: the server counts the results, and a shorter history cannot be compared.
    """
    if importlib.util.find_spec("callboard.__main__") is None:
        raise NotComparable("`python -m callboard` is not installed")
    command = [sys.executable, "-m", "callboard", "run", "Read the notes, part by part."]
    return [*command, "--model", MODEL, "--max-turns", str(steps + 10), "--output-format", "json"], {
        "CALLBOARD_CONTEXT__PIPELINE": "[]",
        "CALLBOARD_LIMITS__STUCK_AFTER": "1000000",  # the check stays on, but the same call may repeat without limit
    }


def peer(command: list[str], folder: Path, steps: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of another framework."""
    return command, {}


def measure(sides: Mapping[str, Command], server: Server) -> list[Side]:
    """Run all sides at each length, in turns. Raises `NotComparable` if the server saw an unexpected history."""
    totals: dict[tuple[str, int], float] = {}
    sizes: dict[tuple[str, int], int] = {}
    for steps, repeats in REPEATS.items():
        costs: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, command in sides.items():
                costs[name].append(run(name, command, server, steps))
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
    """Return the size of the last request of a run in bytes."""
    saw = server.seen(name)
    if saw.get("results") != steps:
        raise NotComparable(f"{name}: the last request of {steps} steps held {saw.get('results')} results")
    return saw["bytes"]


def run(name: str, command: Command, server: Server, steps: int) -> float:
    """Return the CPU seconds of one run in its own folder."""
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
    """Serve the model in another process, so that its work is not counted."""
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
    """Print the ratios, and return 0 if all are within their bounds, otherwise 1."""
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
    others: dict[str, Command] = {
        name: partial(peer, command) for name, command in peers.commands(peers.asked_for(__doc__)).items()
    }
    with serving() as server:
        try:
            baseline, candidate, *more = measure({"bare": bare, "ours": ours, **others}, server)
        except (NotComparable, child.ChildFailed) as missing:
            print(f"no ratio: {missing}")
            return 1
    print(child.table(head, [shown(side) for side in (baseline, candidate, *more)]))
    return verdict(baseline, candidate)


if __name__ == "__main__":
    sys.exit(main())
