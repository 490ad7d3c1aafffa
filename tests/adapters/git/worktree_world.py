"""Worktrees over a real repository: a copy of a shared template, a store, and git as a person runs it."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.git import Git
from callboard.adapters.git.record import WorktreeRegistry
from callboard.adapters.git.worktrees import GitWorktrees
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.clock import SystemClock
from callboard.core.keys import WORKTREES
from callboard.ports.store import Store
from callboard.ports.worktrees import MergeCheck, WorktreeActor
from callboard.types.errors import ToolRefused
from callboard.types.worktrees import WorktreeNoted

LEAD = WorktreeActor("lead", "s1")
FILES = {
    "a.txt": "one\ntwo\nthree\n",
    "b.txt": "b\n",
    "deep/c.txt": "c\n",
    ".gitignore": "*.log\nbuild/\n__pycache__/\n",
}


def run_git(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run git as a person would."""
    person = ["-c", "user.name=P", "-c", "user.email=p@example.com", "-c", "init.defaultBranch=main"]
    environment = ENVIRONMENT | {"HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *person, *arguments], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@functools.cache
def _template() -> Path:
    """Return a repository that is made once for all runs on this machine."""
    name = hashlib.sha256(repr(FILES).encode()).hexdigest()[:12]
    kept = Path(tempfile.gettempdir()) / f"callboard-test-template-{os.getuid()}-{name}"
    if kept.exists():
        return kept
    folder = Path(tempfile.mkdtemp(prefix=f"{kept.name}-"))
    folder.chmod(0o755)
    run_git(folder, "init", "-q")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "first")
    for hook in (folder / ".git" / "hooks").iterdir():
        hook.unlink()
    try:
        folder.rename(kept)
    except OSError:  # another worker was first
        shutil.rmtree(folder)
    return kept


def new_repository(folder: Path) -> Path:
    """Create a repository with one commit on `main`."""
    shutil.copytree(_template(), folder)
    return folder


@dataclass
class Trees:
    """A workspace with a repository, and its worktrees."""

    base: Path
    store: Store = field(default_factory=MemoryStore)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    def __post_init__(self) -> None:
        self.base = self.base.resolve()
        if not self.workspace.exists():
            new_repository(self.workspace)

    @property
    def workspace(self) -> Path:
        return self.base / "work"

    @property
    def root(self) -> Path:
        return self.base / "data" / "worktrees"

    @property
    def registry(self) -> WorktreeRegistry:
        return WorktreeRegistry(
            Git(self.workspace, {**self.environment, "HOME": str(self.base)}), self.root, self.store, SystemClock()
        )

    @property
    def keeper(self) -> GitWorktrees:
        return GitWorktrees(self.registry)

    def git(self, *arguments: str, code: int = 0) -> str:
        """Run git in the workspace; the last newline is removed."""
        return run_git(self.workspace, *arguments, code=code).rstrip("\n")

    def at(self, name: str, *arguments: str, code: int = 0) -> str:
        """Run git in a worktree."""
        return run_git(self.root / name, *arguments, code=code).rstrip("\n")

    def commit(self, name: str, file: str, text: str) -> str:
        """Commit a file in a worktree, and return the commit's id."""
        (self.root / name / file).write_text(text)
        self.at(name, "add", "-f", file)
        self.at(name, "commit", "-qm", f"change {file}")
        return self.at(name, "rev-parse", "HEAD")

    async def acts(self) -> list[str]:
        """Return the recorded actions, in order."""
        records = await self.store.read(WORKTREES)
        return [WorktreeNoted.model_validate_json(record.data).act for record in records]

    async def refusal(self, doing: object) -> str:
        """Return the message of a refusal; fail if there is none."""
        try:
            got = await doing
        except ToolRefused as refusal:
            return str(refusal)
        raise AssertionError(f"not refused: {got}")


async def passing(folder: Path) -> MergeCheck:
    """Test command that passes."""
    assert (folder / "a.txt").exists()
    return MergeCheck(passed=True)


async def failing(folder: Path) -> MergeCheck:
    return MergeCheck(passed=False, output="1 failed")
