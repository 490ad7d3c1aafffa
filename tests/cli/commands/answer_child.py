"""Answer the pending plans in several ways; run as a script by `test_tool_namespaces.py`. argv: MODEL WAY...

Each way runs in its own process, forked from one that has imported what all ways need, and imports the rest itself.
Prints a JSON object with the output of each way by its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable

from callboard.__main__ import main


async def answer(model: str) -> None:
    """Resume the session and answer as the person."""
    from callboard import Session
    from callboard.types.errors import UsageError

    async with Session.resume(".", "s1", model=model) as session:
        try:
            await session.answer("req_a2", True)
        except UsageError as error:
            sys.stderr.write(f"{error}\n")
        else:
            sys.stdout.write("req_a2 approved\n")


WAYS: dict[str, Callable[[str], object]] = {
    "command line": lambda model: main(["approve", "req_a1"]),
    "message": lambda model: main(["send", "--session", "s1", "go on"]),
    "Python API": lambda model: asyncio.run(answer(model)),
}


def output_of(way: str, model: str) -> str:
    """Run one way in a fork, and return its stdout and stderr."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            WAYS[way](model)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        output.seek(0)
        return output.read().decode()


if __name__ == "__main__":
    results = {way: output_of(way, sys.argv[1]) for way in sys.argv[2:]}
    sys.stdout.write(json.dumps(results))
