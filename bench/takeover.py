"""Measure how long a session stands still when its host dies: `python bench/takeover.py [ROUNDS] [STEPS]`.

Two processes of `callboard serve` use one PostgreSQL server, each with its own home. One hosts a session that makes a
model call after each `read_file`. It is killed, which frees its lease at once. The time runs from the kill to the first
request of the other host, which must have at least the tool results that the first host sent. STEPS: calls before the
kill, which the other host reads from the journal. No bounds: it prints figures.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import child
import step
from server import FILE

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.postgres_server import PostgresServer, programs

ROUNDS, STEPS = 5, 20
LAST = 100_000
"""Calls of a session, more than any round makes."""
LONGEST = 120.0
"""Seconds to wait for anything."""


class Host:
    """A home, and the `callboard serve` in it. The model service tells the hosts apart by their labels."""

    def __init__(self, name: str, folder: Path, url: str, server: step.Server) -> None:
        self.label = f"{name}+20ms"
        self._server = server
        self._workspace = folder / "workspace"
        home = folder / name
        home.mkdir()
        self._env = child.environment(
            home,
            ANTHROPIC_BASE_URL=server.base_url(LAST, self.label),
            ANTHROPIC_API_KEY="not-a-key",
            CALLBOARD_STORE=url,
            CALLBOARD_CONTEXT__PIPELINE="[]",
            CALLBOARD_LIMITS__STUCK_AFTER="1000000",
        )

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "callboard", "serve"],
            cwd=self._workspace,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "callboard", *words]
        return subprocess.run(
            command, cwd=self._workspace, env=self._env, check=True, capture_output=True, text=True
        ).stdout

    def results(self) -> int:
        """Return the tool results in the newest request of this host; -1 before its first request."""
        return self._server.seen(self.label).get("results", -1)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"no figures: {what} did not happen within {LONGEST:g} s")
        time.sleep(0.005)


def one_round(folder: Path, url: str, server: step.Server, number: int, steps: int) -> float:
    """Return the seconds from the death of the first host to the first request of the second one."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    (workspace / FILE).write_text("All work and no play.\n" * 100)
    first, second = (Host(f"{name}{number}", folder, url, server) for name in ("first", "second"))
    with ExitStack() as stack:
        dying = first.start()
        stack.callback(child.end, dying)
        first.run("run", "--detach", "--model", step.MODEL, "--max-turns", str(LAST), "Read the notes.")
        wait_for(lambda: first.results() >= steps, "the work of the first host")
        stack.callback(child.end, second.start())
        wait_for(lambda: len(serving(second)) == 2, "the start of the second host")
        killed_at = time.monotonic()
        child.end(dying)
        wait_for(lambda: second.results() >= 0, "the request of the second host")
        took = time.monotonic() - killed_at
        if second.results() < first.results():
            raise SystemExit("no figures: the second host has lost results")
    return took


def serving(host: Host) -> list[str]:
    """Return the names of the hosts that are alive and serve."""
    hosts = json.loads(host.run("hosts", "--json"))["hosts"]
    return [entry["name"] for entry in hosts if entry["state"] == "serving"]


def main() -> int:
    if programs() is None:
        print("there are no programs of PostgreSQL: no figures")
        return 0
    rounds, steps = (int(word) for word in (*sys.argv[1:], *map(str, (ROUNDS, STEPS)[len(sys.argv) - 1 :])))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp")))
        folder.chmod(0o755)
        database = folder / "server"
        database.mkdir()
        postgres = PostgresServer(database, durable=True)
        postgres.start()
        stack.callback(postgres.stop)
        server = stack.enter_context(step.serving())
        times = [one_round(folder / str(number), postgres.url, server, number, steps) for number in range(rounds)]
    print(f"from the death of a host to the next request, after {steps} steps, {rounds} rounds: ", end="")
    print(f"median {statistics.median(times):.2f} s, most {max(times):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
