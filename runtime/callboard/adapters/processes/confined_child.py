"""Child process that restricts itself and becomes a program of the runtime. See `confinement.py`.

Runs as a script with only the standard library. argv: RESTRICTION... -- PROGRAM WORDS... Each RESTRICTION is
`NAME=VALUE`. The process restricts itself and then becomes the program. It runs nothing if a restriction cannot be set
up.
"""
# ruff: noqa: PTH100, PTH120 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # a package of that name without its `__init__`, which would import unneeded modules
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from callboard.adapters.processes.sandbox import isolation
from callboard.adapters.processes.tool_mark import mark_process
from callboard.adapters.system import release

NOT_RUN = 126


def main() -> None:
    """Set up the restrictions and become the program."""
    if differs := release.parent_differs():
        raise RuntimeError(differs)
    end = sys.argv.index("--")
    restrictions = [word.partition("=") for word in sys.argv[1:end]]
    command = sys.argv[end + 1 :]
    values = {
        name: [value for each, _, value in restrictions if each == name] for name in ("abi", "filter", "read", "write")
    }
    mark_process()
    isolation.drop_capabilities()
    isolation.apply_landlock(int(values["abi"][0]), values["read"], values["write"], connect=False)
    isolation.apply_call_filter(bytes.fromhex(values["filter"][0]))
    os.execv(command[0], command)  # noqa: S606 - a program of the runtime's own


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(2, f"the sandbox could not be put up: {error}\n".encode(errors="replace"))
        os._exit(NOT_RUN)
