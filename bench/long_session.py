"""Compare the CPU of a step in long sessions with that in a short one, and note the longest pause of the event loop.

A step is one model call and one `read_file` of 2 KB, another file in each step, with default settings and a window of
`WINDOW` tokens, so that the long sessions are compacted many times. A run of one step is subtracted, which removes the
start. The lengths take turns, so that load affects all of them. Pauses are those of `paused.py`.

Exit with 1 if the mean cost of a step in a long session exceeds `GROWTH` of that in the shortest, or if a pause exceeds
`PAUSE_MS`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import child
from bare import MODEL
from bytes import part_text
from server import FILES
from step import NotComparable, Server, serving

LENGTHS = (200, 1_000, 5_000)
REPEATS = {1: 5, 200: 5, 1_000: 2, 5_000: 1}
WINDOW = 200_000
GROWTH = 1.15
"""Greatest ratio of the mean CPU of a step to that in the shortest session."""
PAUSE_MS = 50.0
"""Longest callback of the event loop in ms of CPU."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """CPU seconds of one run, and its longest pauses in ms."""

    cpu: float
    pauses: list[float]


def run(server: Server, steps: int, turn: int) -> Run:
    """Run a session of this many steps in its own folder, the `turn`-th of this length.

    Raises `child.ChildFailed`, or `NotComparable` if the session made another number of steps.
    """
    label = f"long-{steps}-{turn}+{WINDOW}window+files"  # one for each run: the service counts the replies of a label
    with tempfile.TemporaryDirectory() as temporary:
        home, folder, noted = Path(temporary, "home"), Path(temporary, "workspace"), Path(temporary, "pauses")
        home.mkdir()
        folder.mkdir()
        for number in range(steps):
            (folder / FILES.format(number)).write_text(part_text(number))
        command = [sys.executable, str(HERE / "paused.py"), str(noted), "run", "Read the notes, part by part."]
        options = ["--model", MODEL, "--max-turns", str(steps * 2 + 10), "--output-format", "json"]
        env = child.environment(
            home,
            ANTHROPIC_BASE_URL=server.base_url(steps, label),
            ANTHROPIC_API_KEY="not-a-key",
            CALLBOARD_LIMITS__STUCK_AFTER="1000000",
        )
        cost = child.run([*command, *options], env, folder)
        if (replies := server.seen(label).get("replies")) != steps + 1:
            raise NotComparable(f"a session of {steps} steps made {replies} model calls")
        return Run(cost.cpu, json.loads(noted.read_text()))


def measure(server: Server) -> dict[int, list[Run]]:
    """Run all lengths in turns. Raises `child.ChildFailed` and `NotComparable`."""
    runs: dict[int, list[Run]] = {length: [] for length in REPEATS}
    most = max(REPEATS.values())
    for turn, length in [(turn, length) for turn in range(most) for length in REPEATS if turn < REPEATS[length]]:
        runs[length].append(run(server, length, turn))
    return runs


def main() -> int:
    with serving() as server:
        try:
            runs = measure(server)
        except (child.ChildFailed, NotComparable) as failed:
            print(f"no numbers: {failed}")
            return 1
    cpu = {length: statistics.median(each.cpu for each in made) for length, made in runs.items()}
    mean = {length: (cpu[length] - cpu[1]) / (length - 1) * 1_000 for length in LENGTHS}
    pause = {length: max(each.pauses[0] for each in runs[length]) for length in LENGTHS}
    rows = [[f"{length:,}", f"{mean[length]:.2f}", f"{pause[length]:.0f}"] for length in LENGTHS]
    print(child.table(["steps", "CPU ms/step", "longest pause, ms"], rows))
    return verdict(mean, max(pause.values()))


def verdict(mean: dict[int, float], pause: float) -> int:
    """Print the ratios, and return 0 if all are within their bounds, otherwise 1."""
    shortest, *longer = LENGTHS
    held = pause <= PAUSE_MS
    for length in longer:
        ratio = mean[length] / mean[shortest]
        held = held and ratio <= GROWTH
        said = "ok" if ratio <= GROWTH else "OVER"
        print(f"CPU of a step, {length:,} steps: {ratio:.2f} of that with {shortest} (bound {GROWTH:g}): {said}")
    print(f"longest pause: {pause:.0f} ms (bound {PAUSE_MS:g}): {'ok' if pause <= PAUSE_MS else 'OVER'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
