"""Process that acts on worktrees and kills itself at one of its steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import anyio
from tests.adapters.git.worktree_world import LEAD, Trees, passing

from callboard.adapters.git.git import Git
from callboard.adapters.git.record import WorktreeRegistry
from callboard.adapters.git.worktrees import GitWorktrees
from callboard.adapters.processes.programs import ProgramResult
from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import Write
from callboard.ports.worktrees import WorktreeActor
from callboard.types.worktrees import WorktreeNoted

CALL = WorktreeActor("lead", "s1", "call_1")
CHANGES = frozenset({"worktree", "merge", "commit", "add", "update-ref"})
"""Git commands before, during, and after which the process can be killed."""


@dataclass
class Steps:
    """Counter of steps that kills its process at one of them."""

    at: int
    count: int = 0

    def due(self) -> bool:
        self.count += 1
        return self.count == self.at

    def step(self) -> None:
        if self.due():
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class KilledGit(Git):
    steps: Steps = field(default_factory=lambda: Steps(0))
    orphans: str = ""
    """Folder with a `git` that waits until this process is killed, and then continues."""

    async def run(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        *,
        timeout: float = 30,
        stdin: bytes = b"",
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> ProgramResult:
        if arguments[0] not in CHANGES:
            return await Git.run(self, arguments, folder, timeout=timeout, stdin=stdin, extra=extra)
        self.steps.step()
        git = Git(self.workspace, self.environment)
        if self.steps.due():
            _die_when_git_runs(Path(self.orphans))
            git = Git(self.workspace, {**self.environment, "PATH": f"{self.orphans}:{self.environment['PATH']}"})
        ran = await git.run(arguments, folder, timeout=timeout, stdin=stdin, extra=extra)
        self.steps.step()
        return ran


@dataclass(frozen=True, slots=True)
class KilledRegistry(WorktreeRegistry):
    steps: Steps = field(default_factory=lambda: Steps(0))

    async def note(self, note: WorktreeNoted, *writes: Write) -> None:
        await WorktreeRegistry.note(self, note, *writes)
        self.steps.step()


def make_orphan_git(folder: Path, real: str) -> str:
    """Write a `git` that works only once its parent is dead: it opens a pipe, and reads until no writer is left.

    The script writes no file itself: the sandbox of level 1 would refuse that, and the parent would wait forever.
    """
    folder.mkdir()
    os.mkfifo(folder / "gate")
    script = folder / "git"
    script.write_text(f'#!/bin/sh\nexec 9< {folder}/gate\nread -r x <&9\nexec {real} "$@"\n')
    script.chmod(0o755)
    return str(folder)


def _die_when_git_runs(folder: Path) -> None:
    """Die as soon as the git of that folder runs. It continues when the pipe has no writer left."""

    def wait() -> None:
        os.open(folder / "gate", os.O_WRONLY | os.O_CLOEXEC)  # returns once git has opened the pipe for reading
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def child(base: str, act: str, at: int, orphans: str) -> None:
    """Act until killed at step `at` (0: never), and write the number of steps to a file."""
    anyio.run(_act, Path(base), act, at, orphans)


async def _act(base: Path, act: str, at: int, orphans: str) -> None:
    store = await open_store(base / "state", durability="process")
    try:
        trees, steps = Trees(base, store), Steps(at)
        git = KilledGit(trees.workspace, trees.registry.git.environment, steps=steps, orphans=orphans)
        keeper = GitWorktrees(KilledRegistry(git, trees.root, store, trees.registry.clock, steps=steps))
        await perform(keeper, act, CALL)
        (base / "steps").write_text(str(steps.count))
    finally:
        await store.aclose()


async def perform(keeper: GitWorktrees, act: str, actor: WorktreeActor) -> str:
    """Perform one action, and return its result."""
    match act:
        case "create":
            return (await keeper.create("one", actor)).standing
        case "remove":
            return (await keeper.remove("one", actor)).branch
        case "discard":
            return (await keeper.remove("one", actor, (await keeper.losses("one")).lines())).branch
        case _:
            return (await keeper.merge("one", actor, passing)).how


async def prepare(trees: Trees, act: str) -> str:
    """Prepare the situation of an action, and return the commit of the workspace's branch."""
    if act != "create":
        await trees.keeper.create("one", replace(LEAD, call="call_0"))
    if act in ("merge", "conflict", "discard"):
        trees.commit("one", "b.txt", "mine\n")
        (trees.root / "one" / "a.txt").write_text("one\nmine\nthree\n")
        (trees.root / "one" / "new.txt").write_text("new\n")
    if act in ("merge", "conflict"):
        file = "a.txt" if act == "conflict" else "deep/c.txt"
        (trees.workspace / file).write_text("one\nmain\nthree\n")
        trees.git("commit", "-qam", "main goes on")
    return trees.git("rev-parse", "main")
