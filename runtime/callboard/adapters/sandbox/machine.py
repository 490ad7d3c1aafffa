"""What this machine can do: Landlock, the system call filter, bubblewrap. Tried, not guessed.

A kernel may have a thing and not let this user have it (a container, a hardened distribution), so bubblewrap is run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.programs import find_program
from callboard.adapters.sandbox.calls import INSIDE_FAMILIES, call_filter
from callboard.adapters.sandbox.walls import landlock_abi

LEAST_ABI = 3
"""Of Landlock (Linux 6.2): before that it could not keep files outside from being emptied."""
SECONDS = 10.0
"""For the one try of bubblewrap."""
_TRY = (
    *("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--disable-userns", "--new-session"),
    *("--die-with-parent", "--cap-drop", "ALL", "--dev", "/dev", "--proc", "/proc", "--", "/bin/sh", "-c", ":"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What it has. `why_not`: by level, why it has not got that far and what to do."""

    abi: int = 0
    """Of Landlock; 0: none."""
    bwrap: str = ""
    """The program, where it works."""
    why_not: Mapping[int, str] | None = None
    group: str = ""
    """For root, whose processes the kernel does not count: a control group in which others can be made."""

    @property
    def best(self) -> int:
        """The best level, 3 only differing from 2 by what is let through."""
        return 3 if self.bwrap else 1 if self.abi >= LEAST_ABI else 0

    def reason(self, level: int) -> str:
        """Why it cannot do a level, and what to do about that."""
        return (self.why_not or {}).get(min(level, 2), "")


def examine(workspace: Path, environment: Mapping[str, str]) -> Machine:
    """Look, and run bubblewrap once (about 10 ms). Blocks."""
    abi = landlock_abi() if call_filter(INSIDE_FAMILIES, alone=True) else 0
    why: dict[int, str] = {}
    if abi < LEAST_ABI:
        found = f"its Landlock is version {abi}" if abi else "it has no Landlock"
        why[1] = f"the kernel is too old or was built without it: {found}, level 1 needs version 3 (Linux 6.2 or newer)"
    bwrap = find_program("bwrap", workspace, environment.get("PATH"))
    if bwrap is None:
        why[2] = "bubblewrap is not installed: install the package `bubblewrap` (0.8 or newer)"
    elif wrong := _tried(bwrap):
        why[2] = (
            f"bubblewrap does not work here ({wrong}): it has to be 0.8 or newer, and unprivileged user namespaces "
            "have to be allowed (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, or the container's "
            "security profile)"
        )
    return Machine(abi, "" if 2 in why else bwrap or "", why, find_group() if os.geteuid() == 0 else "")


def find_group() -> str:
    """A control group that bounds the number of processes and in which we can make others; empty: there is none.

    Of version 1 it is our own; of version 2 the one around it, since a group that holds processes has no children.
    """
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            return _usable(f"/sys/fs/cgroup/pids{path}")
        if not controllers and "pids" in " ".join(_lines(f"/sys/fs/cgroup{Path(path).parent}/cgroup.subtree_control")):
            return _usable(f"/sys/fs/cgroup{Path(path).parent}")
    return ""


def _usable(folder: str) -> str:
    return folder.rstrip("/") if os.access(folder, os.W_OK) else ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _tried(bwrap: str) -> str:
    """What bubblewrap said; empty: it works."""
    try:
        ran = subprocess.run(
            [bwrap, *_TRY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return str(failed)
    said = " ".join(ran.stderr.split())[:200]
    return "" if ran.returncode == 0 else said or f"exit code {ran.returncode}"
