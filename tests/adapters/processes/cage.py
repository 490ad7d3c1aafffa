"""A workspace, a home with keys, a folder outside and the runtime's own folders, and a launcher at a level round them.

The folder outside lies where commands can see it (not in /tmp, of which each has its own), so that only the walls keep
them from changing it.
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
from callboard.adapters.processes.sandbox.ground import find_ground
from callboard.adapters.processes.sandbox.levels import SandboxLimits
from callboard.adapters.processes.sandbox.machine import Machine, examine
from callboard.adapters.processes.sandbox.sandbox import Sandbox, SandboxLevel
from callboard.ports.tool import Finished

PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
VISIBLE = Path(__file__).resolve().parents[3] / ".pytest_cache"
"""Ignored by git, and no part of /tmp where the checkout is none: there the walls shut it beside the rest of /tmp."""


@cache
def machine() -> Machine:
    """What this machine can do."""
    return examine(Path("/nowhere"), {"PATH": PATH})


def need(level: int) -> None:
    """Skip the test where the machine cannot do the level."""
    if machine().best < level:
        pytest.skip(f"level {level}: {machine().reason(level)}")


@dataclass(frozen=True)
class Cage:
    """`level` 0 shows that an attack works where nothing stops it."""

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
        ground = find_ground(
            self.workspace,
            environment,
            own=(self.state, data),
            own_readable=(data / "session",),
            scratch=data / "session" / "tmp",
            locks=self.state / "sandbox",
        )
        sandbox = Sandbox(SandboxLevel(self.level, self.network), machine(), ground, self.limits)
        return ShellLauncher(self.workspace, environment, (), sandbox)

    async def run(self, command: str, timeout: float = 20, folder: Path | None = None) -> Finished:
        """The command at this level, in the workspace."""
        keep = self.base / "data" / "session" / "call.out"
        return await self.launcher.run(command, folder or self.workspace, timeout=timeout, keep=keep)

    def git(self, *words: str) -> str:
        """Git outside of any sandbox."""
        ran = subprocess.run(["git", *words], cwd=self.workspace, capture_output=True, text=True, check=True)
        return ran.stdout


def build(base: Path) -> None:
    """The folders, and what there is to steal and to spoil."""
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
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", *identity, *words], cwd=work, check=True)


def alive(mark: str) -> list[int]:
    """The processes whose command line holds the mark and that do not end in a moment; this one aside."""
    return [pid for pid in _marked(mark) if not _ends(pid)]


def _marked(mark: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


def _ends(pid: int) -> bool:
    """What was killed may take a moment on a busy machine."""
    started = started_at(pid)
    descriptor = None if started is None else open_pid(pid, started)
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5)[0])
    finally:
        os.close(descriptor)
