"""Worktrees in real repositories: creation, removal, protection of unsaved work, and permissions."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from tests.adapters.git.worktree_world import LEAD, Trees, new_repository, run_git
from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.record import WorktreeRegistry
from callboard.core.keys import agent_key, task_key
from callboard.ports.store import Put, Write
from callboard.ports.worktrees import WorktreeActor
from callboard.types.records import AgentRow, Task
from callboard.types.worktrees import WorktreeNoted

pytestmark = pytest.mark.anyio
PERSON = WorktreeActor("person")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


# Creation


async def test_a_worktree_is_a_folder_of_its_own_on_a_branch_of_its_own(trees: Trees) -> None:
    tree = await trees.keeper.create("one", LEAD)
    folder = trees.keeper.path("one")
    assert (folder / "deep" / "c.txt").read_text() == "c\n"
    assert trees.at("one", "branch", "--show-current") == "wt/one" == tree.branch
    assert trees.git("branch", "--show-current") == "main"
    assert (tree.base, tree.onto) == (trees.git("rev-parse", "HEAD"), "main")
    assert await trees.acts() == ["making", "made"]
    assert (trees.root.stat().st_mode & 0o777) == 0o700


async def test_the_same_call_finds_its_own_worktree_again(trees: Trees) -> None:
    who = WorktreeActor("lead", "s1", "call_1")
    tree = await trees.keeper.create("one", who)
    assert await trees.keeper.create("one", who) == tree
    assert "already exists, created by lead" in await trees.refusal(
        trees.keeper.create("one", WorktreeActor("lead", "s1", "call_2"))
    )
    assert await trees.keeper.name_for("one", "call_1") == "one"
    assert await trees.keeper.name_for("one", "call_3") == "one-2"


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", ".hidden", "a..b", "a.lock", "a.", "-x", "a b", "x" * 65, "a\n", "é"]
)
async def test_what_is_no_name_is_refused(trees: Trees, name: str) -> None:
    assert "name:" in await trees.refusal(trees.keeper.create(name, LEAD))
    assert not trees.root.exists()


async def test_names_that_differ_by_case_alone_are_refused(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    assert "tell from ONE" in await trees.refusal(trees.keeper.create("ONE", LEAD))


async def test_it_begins_at_the_base_that_was_asked_for(trees: Trees) -> None:
    trees.git("checkout", "-qb", "other")
    (trees.workspace / "b.txt").write_text("other\n")
    trees.git("commit", "-qam", "other")
    trees.git("checkout", "-q", "main")
    await trees.keeper.create("one", LEAD, "other")
    assert (trees.root / "one" / "b.txt").read_text() == "other\n"
    for base in ("nowhere", "--all", "-q", "HEAD:a.txt"):
        assert "is not a branch, tag or commit" in await trees.refusal(trees.keeper.create("two", LEAD, base))


@pytest.mark.slow
async def test_a_branch_that_is_there_is_never_taken_over_unasked(trees: Trees) -> None:
    trees.git("branch", "wt/one")
    assert "give base 'wt/one'" in await trees.refusal(trees.keeper.create("one", LEAD))
    await trees.keeper.create("one", LEAD, "wt/one")
    assert trees.at("one", "branch", "--show-current") == "wt/one"


async def test_nothing_that_the_repository_names_runs_when_one_is_made(trees: Trees) -> None:
    trap = trees.base / "sprung"
    hook = trees.workspace / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho sprung > {trap}\n")
    hook.chmod(0o755)
    trees.git("config", "filter.evil.smudge", f"sh -c 'echo x > {trap}; cat'")
    (trees.workspace / ".gitattributes").write_text("*.txt filter=evil\n")
    trees.git("add", ".")
    trees.git("commit", "-qm", "evil")
    trap.unlink(missing_ok=True)
    await trees.keeper.create("one", LEAD)
    await trees.keeper.remove("one", LEAD)
    assert not trap.exists()


# Places without worktrees


async def test_a_folder_without_a_repository_of_its_own_is_told_why(tmp_path: Path) -> None:
    trees = Trees(tmp_path)
    shutil.rmtree(trees.workspace / ".git")
    assert "is not a git repository" in await trees.refusal(trees.keeper.create("one", LEAD))
    run_git(tmp_path, "init", "-q")
    words = await trees.refusal(trees.keeper.create("one", LEAD))
    assert f"is a folder inside the repository {tmp_path}" in words
    assert not trees.root.exists()


async def test_no_commit_no_files_submodules_and_no_git_are_told(trees: Trees, tmp_path: Path) -> None:
    (trees.workspace / ".gitmodules").write_text("")
    assert "submodules" in await trees.refusal(trees.keeper.create("one", LEAD))
    trees.environment = {"PATH": str(tmp_path)}
    assert "git was not found" in await trees.refusal(trees.keeper.create("one", LEAD))
    empty, bare = Trees(tmp_path / "empty"), Trees(tmp_path / "bare")
    for other in (empty, bare):
        shutil.rmtree(other.workspace)
        other.workspace.mkdir()
    run_git(empty.workspace, "init", "-q")
    run_git(bare.workspace, "init", "-q", "--bare")
    assert "no commit yet" in await empty.refusal(empty.keeper.create("one", LEAD))
    assert "bare repository" in await bare.refusal(bare.keeper.create("one", LEAD))


async def test_a_full_disk_is_told_and_leaves_nothing_behind(trees: Trees) -> None:
    script = trees.base / "bin" / "git"
    script.parent.mkdir()
    real = shutil.which("git")
    full = "echo 'fatal: write error: No space left on device' >&2; exit 128"
    script.write_text(f'#!/bin/sh\ncase "$*" in *"worktree add"*) {real} "$@"; {full};; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    trees.environment = ENVIRONMENT | {"PATH": f"{script.parent}:{ENVIRONMENT['PATH']}"}
    assert "the disk is full" in await trees.refusal(trees.keeper.create("one", LEAD))
    assert await trees.keeper.worktrees() == []
    assert not (trees.root / "one").exists()
    assert trees.git("branch", "--format=%(refname:short)") == "main"
    assert len(trees.git("worktree", "list").splitlines()) == 1


# Removal


async def test_an_untouched_worktree_goes_with_its_branch(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    (trees.root / "one" / "deep" / "__pycache__").mkdir()
    (trees.root / "one" / "deep" / "__pycache__" / "c.pyc").write_bytes(b"x")
    removed = await trees.keeper.remove("one", LEAD)
    assert removed.branch == ""
    assert not (trees.root / "one").exists()
    assert trees.git("branch", "--format=%(refname:short)") == "main"
    assert len(trees.git("worktree", "list").splitlines()) == 1
    assert "was removed by lead" in await trees.refusal(trees.keeper.remove("one", LEAD))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("a.txt", "changed: a.txt"),
        ("new.txt", "untracked: new.txt"),
        ("x.log", "ignored: x.log"),
        ("build/o", "ignored: build/o"),
    ],
)
async def test_what_stands_nowhere_else_is_never_removed_unasked(trees: Trees, file: str, line: str) -> None:
    await trees.keeper.create("one", LEAD)
    path = trees.root / "one" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    words = await trees.refusal(trees.keeper.remove("one", LEAD))
    assert f"- {line}\n" in words
    assert path.read_text() == "mine"
    assert (await trees.keeper.losses("one")).lines() == (line,)


@pytest.mark.slow
async def test_unmerged_commits_hold_a_worktree_and_outlive_it(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    commit = trees.commit("one", "b.txt", "mine")
    words = await trees.refusal(trees.keeper.remove("one", LEAD))
    assert f"unmerged: {commit[:7]} change b.txt" in words
    agreed = (await trees.keeper.losses("one")).lines()
    removed = await trees.keeper.remove("one", LEAD, agreed)
    assert removed.branch == "wt/one", "a person who agrees loses files, but never commits"
    assert trees.git("rev-parse", "wt/one") == commit
    assert "its commits are on the branch wt/one" in await trees.refusal(trees.keeper.open("one"))
    await trees.keeper.create("one", LEAD, "wt/one")
    assert (trees.root / "one" / "b.txt").read_text() == "mine"


async def test_commits_on_no_branch_get_one(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    trees.at("one", "checkout", "-q", "--detach")
    commit = trees.commit("one", "b.txt", "mine")
    await trees.keeper.remove("one", LEAD, (await trees.keeper.losses("one")).lines())
    assert commit in trees.git("for-each-ref", "--format=%(objectname)", "refs/heads").split()


@pytest.mark.slow
async def test_of_two_branches_with_the_same_commits_one_stays(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    commit = trees.commit("one", "b.txt", "mine")
    await trees.keeper.create("two", LEAD, "wt/one")
    assert (await trees.keeper.remove("two", LEAD)).branch == ""
    assert "unmerged" in await trees.refusal(trees.keeper.remove("one", LEAD))
    assert trees.git("rev-parse", "wt/one") == commit


async def test_what_nobody_agreed_to_lose_is_not_lost(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    (trees.root / "one" / "a.txt").write_text("mine")
    agreed = (await trees.keeper.losses("one")).lines()
    (trees.root / "one" / "later.txt").write_text("later")
    words = await trees.refusal(trees.keeper.remove("one", LEAD, agreed))
    assert "more than was agreed" in words
    assert "later.txt" in words
    assert "a.txt" not in words
    assert (trees.root / "one" / "a.txt").read_text() == "mine"


async def test_what_is_written_while_it_is_removed_brings_it_back(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trees.keeper.create("one", LEAD)
    keeper = trees.keeper
    note = WorktreeRegistry.note

    async def writes(self: WorktreeRegistry, entry: WorktreeNoted, *writes: Write) -> None:
        await note(self, entry, *writes)
        if entry.act == "removing":
            (trees.root / "one" / "late.txt").write_text("late")

    monkeypatch.setattr(WorktreeRegistry, "note", writes)
    assert "late.txt" in await trees.refusal(keeper.remove("one", LEAD))
    assert (trees.root / "one" / "late.txt").read_text() == "late"
    assert (await keeper.worktrees())[0].standing == "ready"
    assert trees.at("one", "status", "--porcelain") == "?? late.txt"


async def test_what_is_kept_is_removed_by_a_person_only(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    assert (await trees.keeper.keep("one", LEAD)).kept == "lead"
    assert "only a person removes it" in await trees.refusal(trees.keeper.remove("one", LEAD))
    await trees.keeper.remove("one", PERSON)


async def test_a_worktree_in_use_stays(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    row = AgentRow(name="alice", kind="teammate", life="idle", worktree="one")
    task = Task(id="task_1", subject="x", status="in_progress", owner="alice", worktree="one")
    await trees.store.commit(Put(agent_key("s1", "alice"), row.encode()), Put(task_key("s1", "task_1"), task.encode()))
    words = await trees.refusal(trees.keeper.remove("one", LEAD))
    assert "alice holds task_1" in words
    assert "alice (idle) works in it" in words
    await trees.keeper.remove("one", PERSON)  # no process hosts that session, so no agent works there


async def test_no_task_stays_bound_to_a_folder_that_is_gone(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    tasks = [Task(id=f"task_{n}", subject="x", worktree="one") for n in (1, 2)]
    await trees.store.commit(*(Put(task_key(s, t.id), t.encode()) for s, t in zip(("s1", "s2"), tasks, strict=True)))
    removed = await trees.keeper.remove("one", LEAD)
    assert removed.tasks == ("task_1", "task_2")
    for session, task in zip(("s1", "s2"), tasks, strict=True):
        row = await trees.store.get(task_key(session, task.id))
        assert row is not None
        assert Task.model_validate_json(row.value or b"").worktree is None


async def test_a_repeated_call_removes_nothing_twice(trees: Trees) -> None:
    who = WorktreeActor("lead", "s1", "call_9")
    await trees.keeper.create("one", LEAD)
    await trees.keeper.remove("one", who)
    await trees.keeper.create("one", LEAD)
    assert (await trees.keeper.remove("one", who)).branch == ""
    assert (trees.root / "one").exists()
    assert await trees.keeper.outcome("call_9") == "removed"


# Opening


async def test_a_missing_folder_is_made_anew_from_its_branch(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    commit = trees.commit("one", "b.txt", "mine")
    assert await trees.keeper.open("one") == (trees.root / "one", "")
    shutil.rmtree(trees.root / "one")
    path, said = await trees.keeper.open("one")
    assert "was missing, and was created again from wt/one" in said
    assert (path / "b.txt").read_text() == "mine"
    assert trees.at("one", "rev-parse", "HEAD") == commit


async def test_a_worktree_without_folder_and_branch_is_refused_and_frees_its_tasks(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    task = Task(id="task_1", subject="x", worktree="one")
    await trees.store.commit(Put(task_key("s1", "task_1"), task.encode()))
    trees.git("worktree", "remove", "--force", str(trees.root / "one"))
    trees.git("branch", "-D", "wt/one")
    assert "its folder and its branch wt/one are missing" in await trees.refusal(trees.keeper.open("one"))
    row = await trees.store.get(task_key("s1", "task_1"))
    assert row is not None
    assert Task.model_validate_json(row.value or b"").worktree is None
    assert await trees.keeper.worktrees() == []


async def test_a_folder_that_git_forgot_is_not_taken_for_empty(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    shutil.rmtree(trees.workspace / ".git" / "worktrees")
    assert "git no longer knows this folder" in await trees.refusal(trees.keeper.remove("one", LEAD))
    assert (trees.root / "one" / "a.txt").exists()


async def test_the_list_tells_what_each_one_is(trees: Trees) -> None:
    await trees.keeper.create("one", LEAD)
    trees.commit("one", "b.txt", "mine")
    (trees.root / "one" / "new").write_text("x" * 10_000)
    (trees.workspace / "b.txt").write_text("main")
    trees.git("commit", "-qam", "main goes on")
    (facts,) = await trees.keeper.facts()
    assert (facts.ahead, facts.behind, facts.dirty, facts.missing) == (1, 1, 1, False)
    assert facts.bytes > 10_000


async def test_a_dot_git_file_that_points_elsewhere_misleads_nobody(trees: Trees, tmp_path: Path) -> None:
    """An agent in a worktree can write its `.git` file, so the runtime uses git's own folder."""
    await trees.keeper.create("one", LEAD)
    (trees.root / "one" / "mine.txt").write_text("mine")
    elsewhere = new_repository(tmp_path / "elsewhere")
    (trees.root / "one" / ".git").write_text(f"gitdir: {elsewhere / '.git'}\n")
    assert "mine.txt" in await trees.refusal(trees.keeper.remove("one", LEAD))


async def test_many_at_once_are_made_one_after_the_other(trees: Trees) -> None:
    """Git itself fails when two processes add worktrees at the same moment."""
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(trees.keeper.create, f"w{number}", LEAD)
    assert len(await trees.keeper.worktrees()) == 6
    assert len(trees.git("worktree", "list").splitlines()) == 7
    assert {trees.at(f"w{n}", "branch", "--show-current") for n in range(6)} == {f"wt/w{n}" for n in range(6)}
