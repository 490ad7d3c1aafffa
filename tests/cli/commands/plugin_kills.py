"""Child of `test_plugin.py`: installs a plugin again and again, and kills each installation at a later step.

    python plugin_kills.py SOURCE

A step is one change of a file or folder, as Python's audit events report it. After each kill a line of JSON says what
is installed: the version in the list, and the content of the file `marker` in its folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import platformdirs

from callboard.__main__ import main
from callboard.adapters.extensions.installed_plugins import own_plugins

STEPS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"})


def install(source: str, steps: int) -> int | None:
    """Install in a process that kills itself after so many steps. Return its exit code; None if it was killed."""
    child = os.fork()
    if not child:
        remaining = steps
        folders = (str(platformdirs.user_data_path("callboard")), str(platformdirs.user_config_path("callboard")))

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal remaining
            if event not in STEPS or not str(arguments[0]).startswith(folders):
                return
            if event == "open" and arguments[1] is not None and "r" in str(arguments[1]):
                return
            remaining -= 1
            if remaining < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        os._exit(main(["plugin", "install", source, "--yes", "-q"]))
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def run(source: str) -> None:
    assert main(["plugin", "list", "-q"]) == 0  # imports, once for all, what an installation imports
    steps = 0
    while True:
        code = install(source, steps)
        listed = own_plugins(platformdirs.user_config_path("callboard")).get("acme")
        marker = Path(listed.path, "marker").read_text() if listed else ""
        record = {"killed": code is None, "code": code, "version": listed.version if listed else "", "marker": marker}
        sys.stderr.write(json.dumps(record) + "\n")
        if code is not None:
            return
        steps += 1


if __name__ == "__main__":
    run(sys.argv[1])
