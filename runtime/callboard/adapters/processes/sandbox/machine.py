"""Abilities of this machine: Landlock, the system call filter, bubblewrap, Seatbelt. Tested, not guessed.

A kernel may support a feature but deny it to this user (a container, a hardened distribution), so bubblewrap is run as
a test, and on macOS `sandbox-exec`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from callboard.adapters.processes.programs import find_program
from callboard.adapters.processes.sandbox.isolation import landlock_abi
from callboard.adapters.processes.sandbox.seatbelt import SeatbeltArea, SeatbeltRules, seatbelt_profile
from callboard.adapters.processes.sandbox.syscall_filter import INSIDE_FAMILIES, call_filter
from callboard.adapters.processes.tool_ancestry import SEATBELT_MARK
from callboard.types.lazy_dataclass import dataclass

LEAST_ABI = 3
"""Minimum version of Landlock (Linux 6.2): earlier ones could not prevent the truncation of files outside."""
SECONDS = 10.0
"""Most seconds for the one test of a sandbox."""
SANDBOX_EXEC = "/usr/bin/sandbox-exec"
"""Program of macOS that runs a command under a profile. Its path is fixed, so that PATH does not matter."""
_TRY = (
    *("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--disable-userns", "--new-session"),
    *("--die-with-parent", "--cap-drop", "ALL", "--dev", "/dev", "--proc", "/proc", "--", "/bin/sh", "-c", ":"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Detected abilities. `why_not`: by level, the reason why the machine does not support it and the remedy."""

    abi: int = 0
    """Version of Landlock; 0: none."""
    bwrap: str = ""
    """Path of bubblewrap if it works; empty if not."""
    why_not: Mapping[int, str] | None = None
    group: str = ""
    """For root, whose processes the kernel does not count: a control group in which others can be created."""
    seatbelt: str = ""
    """Path of `sandbox-exec` if it works, on macOS; empty if not."""

    @property
    def best(self) -> int:
        """Return the best level. Level 3 differs from level 2 only in the network access."""
        return 3 if self.bwrap or self.seatbelt else 1 if self.abi >= LEAST_ABI else 0

    def reason(self, level: int) -> str:
        """Return the reason why the machine does not support a level, and the remedy."""
        return (self.why_not or {}).get(min(level, 2), "")


def examine(workspace: Path, environment: Mapping[str, str]) -> Machine:
    """Examine the machine, and run the program of its sandbox once (about 10 ms). Blocks."""
    if sys.platform == "darwin":
        return examine_seatbelt()
    abi = landlock_abi() if call_filter(INSIDE_FAMILIES, alone=True) else 0
    reasons: dict[int, str] = {}
    if abi < LEAST_ABI:
        landlock = f"its Landlock is version {abi}" if abi else "it has no Landlock"
        reasons[1] = (
            f"the kernel is too old or was built without it: {landlock}, level 1 needs version 3 (Linux 6.2 or newer)"
        )
    bwrap = find_program("bwrap", workspace, environment.get("PATH"))
    if bwrap is None:
        reasons[2] = "bubblewrap is not installed: install the package `bubblewrap` (0.8 or newer)"
    elif wrong := _tried([bwrap, *_TRY]):
        reasons[2] = (
            f"bubblewrap does not work here ({wrong}): it has to be 0.8 or newer, and unprivileged user namespaces "
            "have to be allowed (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, or the container's "
            "security profile)"
        )
    return Machine(abi, "" if 2 in reasons else bwrap or "", reasons, find_group() if os.geteuid() == 0 else "")


def examine_seatbelt(program: str = SANDBOX_EXEC) -> Machine:
    """Examine a machine with macOS, and run `sandbox-exec` once. Blocks."""
    probe = f"test ! -e {SEATBELT_MARK}"
    profile = seatbelt_profile(SeatbeltRules((SeatbeltArea("/"),)))
    wrong = _tried([program, "-p", profile, "/bin/sh", "-c", probe])
    if not wrong:
        return Machine(seatbelt=program)
    reason = (
        f"{program} does not work here ({wrong}): it is part of macOS, and it cannot be used inside another "
        "sandbox, such as that of an agent's command"
    )
    return Machine(why_not={1: reason, 2: reason})


def find_group() -> str:
    """Return a control group that limits the number of processes; empty if there is none.

    Other groups can be created in it. In version 1 it is the group of this process; in version 2 the parent group,
    because a group with processes has no children.
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


def _tried(command: list[str]) -> str:
    """Run the program of a sandbox as a test, and return its error message; empty if it works."""
    try:
        ran = subprocess.run(
            command,
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
    complaint = " ".join(ran.stderr.split())[:200]
    return "" if ran.returncode == 0 else complaint or f"exit code {ran.returncode}"
