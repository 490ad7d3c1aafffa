"""`python -m callboard.adapters.rehearsal SCENARIO`: the emulator as a process, until it is interrupted.

Writes one line to stdout once it takes requests: `listening on URL`. Mistakes in the file go to stderr, exit code 3.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from callboard.adapters.rehearsal.chaos import Chaos
from callboard.adapters.rehearsal.emulator import Options, run_server
from callboard.adapters.rehearsal.scenario_file import load_scenario
from callboard.words.errors import CallboardError


def main() -> int:
    """Read the command line, serve, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m callboard.adapters.rehearsal", description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, help="keep what was played here, and go on from it")
    parser.add_argument("--log", type=Path, help="append one line of JSON for each request")
    parser.add_argument("--chaos", metavar="SEED", help="draw faults from this seed")
    given = parser.parse_args()
    options = Options(
        state=given.state,
        log_file=given.log,
        chaos=None if given.chaos is None else Chaos(given.chaos),
        keep_bodies=0,
    )
    try:
        scenario = load_scenario(given.scenario)
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            asyncio.run(run_server(scenario, _announce, host=given.host, port=given.port, options=options))
    except CallboardError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"cannot listen on {given.host}:{given.port}: {error.strerror or error}\n")
        return 3
    return 0


def _announce(url: str) -> None:
    sys.stdout.write(f"listening on {url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
