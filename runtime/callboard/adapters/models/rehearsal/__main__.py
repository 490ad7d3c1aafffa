"""Emulator as a process: `python -m callboard.adapters.models.rehearsal SCENARIO` runs until it is interrupted.

Writes one line to stdout once it accepts requests: `listening on URL`. Mistakes in the file go to stderr, with exit
code 3. Ctrl-C ends it with exit code 130, as it ends other commands.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from callboard.adapters.models.rehearsal.chaos import Chaos
from callboard.adapters.models.rehearsal.emulator import EmulatorOptions, run_server
from callboard.adapters.models.rehearsal.scenario_file import load_scenario
from callboard.types.errors import CallboardError, SettingsError

INTERRUPTED = 130


def main() -> int:
    """Read the command line, serve, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m callboard.adapters.models.rehearsal", description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, help="keep what was played here, and go on from it")
    parser.add_argument("--log", type=Path, help="append one line of JSON for each request")
    parser.add_argument("--chaos", metavar="SEED", help="draw faults from this seed")
    arguments = parser.parse_args()
    options = EmulatorOptions(
        state=arguments.state,
        log_file=arguments.log,
        chaos=None if arguments.chaos is None else Chaos(arguments.chaos),
        keep_bodies=0,
    )
    try:
        scenario = load_scenario(arguments.scenario)
        for file in (arguments.state, arguments.log):
            _check_writable(file)
        asyncio.run(run_server(scenario, _announce, host=arguments.host, port=arguments.port, options=options))
    except CallboardError as error:
        sys.stderr.write(f"callboard: {error}\n")
        return error.exit_code
    except OSError as error:
        reason = error.strerror or error
        sys.stderr.write(f"callboard: cannot listen on {arguments.host}:{arguments.port}: {reason}\n")
        return 3
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _check_writable(file: Path | None) -> None:
    """Raise `SettingsError` for a file that cannot be written, because the first request would fail otherwise."""
    if file is None:
        return
    try:
        file.open("ab").close()
    except OSError as error:
        raise SettingsError(f"cannot be written: {error.strerror}", str(file)) from error


def _announce(url: str) -> None:
    sys.stdout.write(f"listening on {url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
