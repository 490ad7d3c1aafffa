"""Measure the start of `callboard --help` and the time to the first request, compared with bare Python and the SDK.

All times are wall time of a fresh process, the median of `RUNS`. The sides take turns, so that load affects all of
them. Byte code exists already, as on a user's second start. Exit with 1 if `--help` takes more than `HELP_BOUND_MS`
longer than `python -c pass`, or the first request more than `REQUEST_BOUND` of the bare SDK loop's time.
"""

from __future__ import annotations

import importlib.util
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import child

HELP_BOUND_MS = 60.0
"""Maximum time of `callboard --help` beyond that of `python -c pass`."""
REQUEST_BOUND = 0.5
"""Greatest ratio of the time to the first request to that of the bare SDK loop."""

RUNS = 11
FIRST_REQUEST_SECONDS = 30.0
"""Seconds to wait for a request."""

PASS = "python -c pass"
IMPORT = 'python -c "import anthropic"'
BARE_REQUEST = "bare SDK loop, to its first request"
HELP = "callboard --help"
OUR_REQUEST = "callboard run, to its first request"

HERE = Path(__file__).parent
OURS = [sys.executable, "-m", "callboard"]


@dataclass(frozen=True)
class Place:
    """Private home and workspace of a child."""

    home: Path
    folder: Path


def to_its_end(command: list[str]) -> Callable[[Place], float]:
    """Measure the seconds from exec to exit."""

    def timed(place: Place) -> float:
        return child.run(command, child.environment(place.home), place.folder).wall

    return timed


def to_first_request(command: list[str]) -> Callable[[Place], float]:
    """Measure the seconds from exec to the first bytes of the first request, then end the child."""

    def timed(place: Place) -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(FIRST_REQUEST_SECONDS)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            env = child.environment(place.home, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key")
            return _until_spoken_to(command, env, place.folder, listener)

    return timed


def _until_spoken_to(command: list[str], env: dict[str, str], folder: Path, listener: socket.socket) -> float:
    log = folder / "child.log"
    with log.open("wb") as out:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(FIRST_REQUEST_SECONDS)
                connection.recv(1)
                return time.perf_counter() - started
        except TimeoutError as silent:
            said = log.read_text(errors="replace")[-2_000:]
            raise child.ChildFailed(f"{' '.join(command)}: no request in {FIRST_REQUEST_SECONDS} s\n{said}") from silent
        finally:
            child.end(process)
            process.wait()


def measures() -> dict[str, Callable[[Place], float]]:
    """Return all measures by name; those of Callboard only if it is installed."""
    found = {
        PASS: to_its_end([sys.executable, "-c", "pass"]),
        IMPORT: to_its_end([sys.executable, "-c", "import anthropic"]),
        BARE_REQUEST: to_first_request([sys.executable, str(HERE / "bare.py")]),
    }
    if importlib.util.find_spec("callboard.__main__") is not None:
        found[HELP] = to_its_end([*OURS, "--help"])
        found[OUR_REQUEST] = to_first_request([*OURS, "run", "Say hello.", "--model", "claude-opus-4-8"])
    return found


def medians(wanted: dict[str, Callable[[Place], float]]) -> dict[str, float]:
    """Return the median of each measure in ms; a first run of each does not count."""
    taken: dict[str, list[float]] = {name: [] for name in wanted}
    for number in range(RUNS + 1):
        for name, timed in wanted.items():
            with tempfile.TemporaryDirectory() as temporary:
                place = Place(Path(temporary, "home"), Path(temporary, "workspace"))
                place.home.mkdir()
                place.folder.mkdir()
                seconds = timed(place)
            if number:
                taken[name].append(seconds * 1_000)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> int:
    try:
        found = medians(measures())
    except child.ChildFailed as failed:
        print(f"no numbers: {failed}")
        return 1
    rows = [[name, f"{ms:.0f}", f"{ms - found[PASS]:.0f}", f"{ms / found[PASS]:.1f}"] for name, ms in found.items()]
    print(child.table(["start", "median ms", f"over {PASS}", "ratio"], rows))
    if HELP not in found:
        print("no ratio: `python -m callboard` is not installed")
        return 1
    first = found[OUR_REQUEST] / found[BARE_REQUEST]
    over = found[HELP] - found[PASS]
    soon, within = first <= REQUEST_BOUND, over <= HELP_BOUND_MS
    print(f"first request: {first:.2f} of the bare SDK loop (bound {REQUEST_BOUND:g}): {'ok' if soon else 'OVER'}")
    print(f"{HELP} over {PASS}: {over:.0f} ms (bound {HELP_BOUND_MS:.0f}): {'ok' if within else 'OVER'}")
    return 0 if soon and within else 1


if __name__ == "__main__":
    sys.exit(main())
