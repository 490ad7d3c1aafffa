"""Agent of `callboard serve` for the user's launchd on macOS: its property list, its path, and its state.

Keys: launchd.plist(5). The list never contains a key of the model service. launchd reads no file of variables, so the
agent starts a shell that reads it and then becomes Callboard.
"""

from __future__ import annotations

import os
import plistlib
from pathlib import Path

from callboard.adapters.processes.systemd import KEPT, WRITTEN, WorkspaceService, run_tool
from callboard.types.lazy_dataclass import dataclass

_START = 'if [ -r "$0" ]; then set -a; . "$0"; set +a; fi; exec "$@"'
"""Script of the shell. Its arguments are words of their own, so that no path is part of it."""
_LAUNCHCTL = "launchctl"
_OPEN_FILES = 10_240


@dataclass(frozen=True, slots=True)
class LaunchAgent(WorkspaceService):
    """Service of the user's launchd. Its name is the label."""

    home: Path = Path()

    def file(self) -> Path:
        """Return the path of the property list for the user's launchd."""
        return self.home / "Library" / "LaunchAgents" / f"{self.name}.plist"

    def log(self) -> Path:
        """Return the path of its log."""
        return self.home / "Library" / "Logs" / "callboard" / f"{self.name}.log"

    def text(self) -> str:
        """Return the property list as XML. Raises `ValueError` for a path with a control character."""
        content = {
            "Label": self.name,
            "ProgramArguments": ["/bin/sh", "-c", _START, str(self.secrets), *self.line()],
            "EnvironmentVariables": {name: self.environ[name] for name in KEPT if self.environ.get(name)},
            "RunAtLoad": True,
            # Not after an orderly end. launchd cannot tell exit codes 2 and 3 apart, which only a person can fix, so
            # it tries again once a minute.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 60,
            "ExitTimeOut": 30,
            "Umask": 0o077,
            "SoftResourceLimits": {"NumberOfFiles": _OPEN_FILES},
            "HardResourceLimits": {"Core": 0},
            "StandardOutPath": str(self.log()),
            "StandardErrorPath": str(self.log()),
        }
        head, line_end, rest = plistlib.dumps(content, sort_keys=False).decode().partition("\n")
        return f"{head}{line_end}<!-- {WRITTEN} -->\n{rest}"

    def reload(self) -> tuple[int, str] | None:
        """Create the folder of the log. launchd reads the list when the agent is started."""
        self.log().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return 0, ""

    def stop(self) -> tuple[int, str] | None:
        """Stop the agent. Return exit code and first line of `launchctl`; None if it is not installed."""
        return run_tool([_LAUNCHCTL, "bootout", self._target()])

    def states(self) -> dict[str, str | None]:
        """Return what launchd says about the agent, by property; None: unknown."""
        shown = run_tool([_LAUNCHCTL, "print", self._target()])
        active = None if shown is None else "loaded" if shown[0] == 0 else "not loaded"
        return {"enabled": None, "active": active, "linger": None}

    def guide(self) -> list[str]:
        """Return the lines that tell a person how to start it."""
        return [
            f"start it now and at each login:  launchctl bootstrap gui/{os.getuid()} {self.file()}",
            f"stop it:                         launchctl bootout {self._target()}",
            "while you are logged out:        it does not run; launchd ends a user's agents",
            f"its log:                         tail -f {self.log()}",
        ]

    def _target(self) -> str:
        return f"gui/{os.getuid()}/{self.name}"
