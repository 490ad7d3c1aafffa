"""A workspace, a home with keys, an outside folder, the runtime's own folders, and a launcher at a sandbox level.

The outside folder is visible to commands (it is not in /tmp, because each command has its own), so only the sandbox
keeps them from changing it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.processes.pids import open_pid, started_at
from callboard.adapters.processes.sandbox.machine import Machine, examine
from callboard.adapters.processes.sandbox.restrictions import SandboxLimits
from callboard.adapters.processes.sandbox.sandbox import Sandbox, SandboxLevel
from callboard.adapters.processes.sandbox.sandbox_paths import find_sandbox_paths
from callboard.ports.tool import Finished

PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
VISIBLE = Path(__file__).resolve().parents[3] / ".pytest_cache"
"""Ignored by git, and outside /tmp if the checkout is: in /tmp the sandbox would hide it together with the rest."""


@cache
def machine() -> Machine:
    """Return the sandbox features of this machine."""
    return examine(Path("/nowhere"), {"PATH": PATH})


def require_level(level: int) -> None:
    """Skip the test if the machine does not support the level."""
    if machine().best < level:
        pytest.skip(f"level {level}: {machine().reason(level)}")


@dataclass(frozen=True)
class Cage:
    """Folders of an attack and a launcher. `level` 0 shows that the attack works without a sandbox."""

    base: Path
    level: int
    limits: SandboxLimits = SandboxLimits()
    network: bool = False

    @property
    def workspace(self) -> Path:
        return self.base / "work"

    @property
    def outside(self) -> Path:
        return self.base / "outside"

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def claude(self) -> Path:
        return self.base / "claude"

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def launcher(self) -> ShellLauncher:
        environment = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8", "CLAUDE_CONFIG_DIR": str(self.claude)}
        data = self.base / "data"
        sandbox_paths = find_sandbox_paths(
            self.workspace,
            environment,
            own=(self.state, data),
            own_readable=(data / "session",),
            scratch=data / "session" / "tmp",
            locks=self.state / "sandbox",
        )
        sandbox = Sandbox(SandboxLevel(self.level, self.network), machine(), sandbox_paths, self.limits)
        return ShellLauncher(self.workspace, environment, (), sandbox)

    async def run(self, command: str, timeout: float = 20, folder: Path | None = None) -> Finished:
        """Run a command at this level, in the workspace."""
        keep = self.base / "data" / "session" / "call.out"
        return await self.launcher.run(command, folder or self.workspace, timeout=timeout, keep=keep)

    def git(self, *arguments: str) -> str:
        """Run git outside of any sandbox."""
        ran = subprocess.run(["git", *arguments], cwd=self.workspace, capture_output=True, text=True, check=True)
        return ran.stdout


def create_folders(base: Path) -> None:
    """Create the folders, with files to steal and to damage."""
    for name in ("work", "outside", "home/.ssh", "home/.config/gh", "state", "data/session", "data/other", "claude"):
        (base / name).mkdir(parents=True)
    (base / "outside" / "kept").write_text("kept\n")
    (base / "home" / ".ssh" / "id_ed25519").write_text("SECRET of ssh\n")
    (base / "home" / ".config" / "gh" / "hosts.yml").write_text("SECRET of gh\n")
    (base / "home" / ".netrc").write_text("SECRET of netrc\n")
    for folder in ("claude", "home/.claude"):
        (base / folder / "agents").mkdir(parents=True)
        (base / folder / "agents" / "a.md").write_text("SECRET of an agent file\n")
    (base / "home" / ".claude.json").write_text("SECRET of servers\n")
    (base / "state" / "callboard.db").write_text("SECRET of the runtime\n")
    (base / "data" / "other" / "call.out").write_text("SECRET of another session\n")
    (base / "data" / "session" / "early.out").write_text("an earlier result\n")
    work = base / "work"
    (work / "file").write_text("one\n")
    for arguments in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=work, check=True)


def running_processes(mark: str) -> list[int]:
    """Return other processes whose command line contains the mark and that do not end soon."""
    return [pid for pid in _marked(mark) if not _ends_soon(pid)]


def _marked(mark: str) -> list[int]:
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = entry.read_bytes()
        except OSError:
            continue
        if mark.encode() in command_line and int(entry.parent.name) != os.getpid():
            pids.append(int(entry.parent.name))
    return pids


def _ends_soon(pid: int) -> bool:
    """Return whether the process ends; on a busy machine this may take a moment after a kill."""
    started = started_at(pid)
    descriptor = None if started is None else open_pid(pid, started)
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5)[0])
    finally:
        os.close(descriptor)
