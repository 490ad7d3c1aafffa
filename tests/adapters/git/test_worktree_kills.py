"""kill -9 at each step of each worktree action: the next process completes or reverts it, and loses nothing.

The steps: before each git call that changes something, right after its start (git then continues without its parent),
after its end, and after each record. A separate process is killed for each step.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

import anyio
import pytest
from tests.adapters.git.worktree_child import CALL, child, make_orphan_git, perform, prepare
from tests.adapters.git.worktree_world import Trees

from callboard.adapters.storage.sqlite import open_store
from callboard.ports.worktrees import WorktreeActor

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.adapters.git.worktree_child"])
STEPS = {"create": 5, "remove": 5, "discard": 2, "merge": 19, "conflict": 20}
_SAMPLE = {("create", 4), ("remove", 4), ("discard", 1), ("merge", 13), ("conflict", 16), ("conflict", 18)}
QUICK = _SAMPLE | {("merge", step) for step in range(15, 20)}
SITUATIONS = [
    pytest.param(act, step, marks=() if (act, step) in QUICK else pytest.mark.soak)
    for act, count in STEPS.items()
    for step in range(1, count + 1)
]


def run_child(base: Path, act: str, step: int, orphans: str) -> int | None:
    process = SERVER.Process(target=child, args=(str(base), act, step, orphans))
    process.start()
    process.join()
    return process.exitcode


async def _prepare_situation(base: Path, act: str) -> str:
    store = await open_store(base / "state", durability="process")
    try:
        return await prepare(Trees(base, store), act)
    finally:
        await store.aclose()


async def _check_recovery(base: Path, act: str, main: str, tip: str) -> None:
    """Recover, check, repeat the action, and check again."""
    store = await open_store(base / "state", durability="process")
    try:
        trees = Trees(base, store)
        keeper = trees.keeper
        await keeper.recover()
        assert await keeper.recover() == [], "one recovery is enough"
        assert [tree.standing for tree in await keeper.worktrees()] in ([], ["ready"])
        _check_intact(trees, await keeper.worktrees() != [])
        if act in ("merge", "conflict"):
            done = await keeper.outcome("call_1") == "merged"
            assert (trees.git("rev-parse", "main") == main) is not done, "merged and recorded, or neither"
        assert not tip or trees.git("for-each-ref", f"--contains={tip}", "refs/heads"), "no commit is lost"
        if act == "discard":
            return  # a person's consent is asked for again
        if act in ("create", "remove"):
            assert await perform(keeper, act, CALL) == ("ready" if act == "create" else "")
        elif await keeper.outcome("call_1") not in ("merged", "joined"):
            assert await perform(keeper, act, WorktreeActor("lead")) == ("merged" if act == "merge" else "conflict")
        if act == "conflict":
            assert "not solved yet" in await trees.refusal(perform(keeper, act, WorktreeActor("lead")))
        _check_intact(trees, act != "remove")
        if act == "merge":
            assert len(trees.git("log", "--merges", "--format=%s", "main").splitlines()) == 1, "merged once"
            assert (trees.workspace / "new.txt").read_text() == "new\n"
    finally:
        await store.aclose()


def _check_intact(trees: Trees, there: bool) -> None:
    """Check that the workspace is clean, git's list matches the folders, and no temporary file remains."""
    assert trees.git("status", "--porcelain") == ""
    assert len(trees.git("worktree", "list").splitlines()) == 1 + there
    assert (trees.root / "one" / ".git").exists() == there
    for folder in (".merging", ".removing", ".gone"):
        assert not (trees.root / folder / "one").exists()
    if there:
        assert trees.at("one", "branch", "--show-current") == "wt/one"


@pytest.mark.soak
@pytest.mark.parametrize("act", STEPS)
def test_no_step_is_left_out(tmp_path: Path, act: str) -> None:
    anyio.run(_prepare_situation, tmp_path, act)
    assert run_child(tmp_path, act, 0, "") == 0
    assert int((tmp_path / "steps").read_text()) == STEPS[act]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(("act", "step"), SITUATIONS)
def test_a_kill_at_each_step_is_mended(tmp_path: Path, act: str, step: int) -> None:
    main = anyio.run(_prepare_situation, tmp_path, act)
    trees = Trees(tmp_path)
    tip = trees.git("rev-parse", "wt/one") if act != "create" else ""
    orphans = make_orphan_git(tmp_path / "bin", str(shutil.which("git")))
    code = run_child(tmp_path, act, step, orphans)
    steps = tmp_path / "steps"
    assert code == -signal.SIGKILL, f"{act} has only {steps.read_text()} steps" if steps.exists() else "it failed"
    anyio.run(_check_recovery, tmp_path, act, main, tip)
