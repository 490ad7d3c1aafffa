"""A process that acts on worktrees and kills itself at one of its steps."""

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
from callboard.adapters.git.record import Yard
from callboard.adapters.git.worktrees import GitWorktrees
from callboard.adapters.processes.programs import ProgramResult
from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import Write
from callboard.ports.worktrees import Who
from callboard.types.worktrees import WorktreeNoted

CALL = Who("lead", "s1", "call_1")
CHANGES = frozenset({"worktree", "merge", "commit", "add", "update-ref"})
"""Git commands before, in and after which it can be killed."""


@dataclass
class Steps:
    """Counts the steps, and kills its process at one of them."""

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
    """A folder with a git that waits for this process to be killed, and goes on."""

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
class KilledYard(Yard):
    steps: Steps = field(default_factory=lambda: Steps(0))

    async def note(self, note: WorktreeNoted, *writes: Write) -> None:
        await Yard.note(self, note, *writes)
        self.steps.step()


def make_orphan_git(folder: Path, real: str) -> str:
    """Make a `git` whose starter is dead before it works: it opens the gate, and reads until no process can write.

    It writes nothing itself: the sandbox of level 1 would refuse that, and the starter would wait forever."""
    folder.mkdir()
    os.mkfifo(folder / "gate")
    script = folder / "git"
    script.write_text(f'#!/bin/sh\nexec 9< {folder}/gate\nread -r x <&9\nexec {real} "$@"\n')
    script.chmod(0o755)
    return str(folder)


def _die_when_git_runs(folder: Path) -> None:
    """Be killed as soon as the git of that folder runs. It goes on when the gate has no writer any more."""

    def wait() -> None:
        os.open(folder / "gate", os.O_WRONLY | os.O_CLOEXEC)  # returns once git has opened the gate to read
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def child(base: str, act: str, at: int, orphans: str) -> None:
    """Act until killed at step `at` (0: never), and leave the number of steps in a file."""
    anyio.run(_act, Path(base), act, at, orphans)


async def _act(base: Path, act: str, at: int, orphans: str) -> None:
    store = await open_store(base / "state", durability="process")
    try:
        trees, steps = Trees(base, store), Steps(at)
        git = KilledGit(trees.workspace, trees.yard.git.environment, steps=steps, orphans=orphans)
        keeper = GitWorktrees(KilledYard(git, trees.root, store, trees.yard.clock, steps))
        await do(keeper, act, CALL)
        (base / "steps").write_text(str(steps.count))
    finally:
        await store.aclose()


async def do(keeper: GitWorktrees, act: str, who: Who) -> str:
    """One act; what it came to."""
    match act:
        case "create":
            return (await keeper.create("one", who)).standing
        case "remove":
            return (await keeper.remove("one", who)).branch
        case "discard":
            return (await keeper.remove("one", who, (await keeper.losses("one")).lines())).branch
        case _:
            return (await keeper.merge("one", who, passing)).how


async def prepare(trees: Trees, act: str) -> str:
    """The situation in which an act is done; the commit of the workspace's branch."""
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
