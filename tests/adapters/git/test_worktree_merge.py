"""A worktree's branch is merged whole or not at all: tested first, around a person's changes, and with conflicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from tests.adapters.git.worktree_world import LEAD, Trees, failing, new_repository, passing

from callboard.ports.worktrees import MergeCheck, WorktreeActor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def trees(tmp_path: Path) -> Trees:
    trees = Trees(tmp_path)
    await trees.keeper.create("one", LEAD)
    return trees


def main_moves(trees: Trees, file: str = "b.txt", text: str = "main\n") -> str:
    (trees.workspace / file).write_text(text)
    trees.git("add", file)
    trees.git("commit", "-qm", f"main changes {file}")
    return trees.git("rev-parse", "HEAD")


def is_unchanged(trees: Trees, base: str) -> bool:
    """Return whether the workspace is unchanged, and nothing of a merge remains."""
    assert not (trees.root / ".merging" / "one").exists()
    assert len(trees.git("worktree", "list").splitlines()) == 2
    return trees.git("rev-parse", "main") == base and trees.git("status", "--porcelain") == ""


async def test_a_tested_merge_moves_branch_and_files_of_the_workspace(trees: Trees) -> None:
    commit = trees.commit("one", "a.txt", "mine\n")
    base = main_moves(trees)
    end = await trees.keeper.merge("one", LEAD, passing)
    assert (end.how, end.onto, end.files) == ("merged", "main", ("a.txt",))
    assert trees.git("rev-parse", "main") == end.commit
    assert trees.git("rev-parse", f"{end.commit}^1", f"{end.commit}^2").split() == [base, commit]
    assert (trees.workspace / "a.txt").read_text() == "mine\n"
    assert is_unchanged(trees, end.commit)
    assert (await trees.acts())[-3:] == ["merging", "merging", "merged"]
    assert (await trees.keeper.merge("one", LEAD)).how == "nothing"
    await trees.keeper.remove("one", LEAD)


async def test_the_test_runs_on_the_merged_result_before_the_branch_moves(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    base = main_moves(trees)
    seen: list[str] = []

    async def check(folder: Path) -> MergeCheck:
        seen.extend((folder / name).read_text() for name in ("a.txt", "b.txt"))
        seen.append(trees.git("rev-parse", "main"))
        (folder / "a.txt").write_text("a test that changes what it tests")
        return MergeCheck(passed=True)

    end = await trees.keeper.merge("one", LEAD, check)
    assert seen == ["mine\n", "main\n", base]
    assert trees.git("show", f"{end.commit}:a.txt") == "mine"
    assert (trees.workspace / "a.txt").read_text() == "mine\n"


async def test_a_failing_test_leaves_everything_as_it_was(trees: Trees) -> None:
    commit = trees.commit("one", "a.txt", "mine\n")
    base = trees.git("rev-parse", "main")
    end = await trees.keeper.merge("one", LEAD, failing)
    assert (end.how, end.output) == ("failed", "1 failed")
    assert is_unchanged(trees, base)
    assert trees.git("rev-parse", "wt/one") == commit


async def test_work_that_is_not_committed_is_committed_first(trees: Trees) -> None:
    (trees.root / "one" / "a.txt").write_text("mine\n")
    (trees.root / "one" / "new.txt").write_text("new\n")
    (trees.root / "one" / "x.log").write_text("ignored\n")
    end = await trees.keeper.merge("one", WorktreeActor("lead", "s1", why="Write the parser"))
    assert end.saved == ("a.txt", "new.txt")
    assert (trees.workspace / "new.txt").read_text() == "new\n"
    assert not (trees.workspace / "x.log").exists()
    assert trees.git("log", "-1", "--format=%s%n%b", "wt/one") == "Work in wt/one\nWrite the parser"
    assert trees.git("log", "-1", "--format=%an", "wt/one") == "Callboard", "no user name is configured"


async def test_a_file_that_may_hold_a_secret_is_not_committed_unseen(trees: Trees) -> None:
    (trees.root / "one" / ".env").write_text("KEY=1")
    assert ".env: may hold secrets" in await trees.refusal(trees.keeper.merge("one", LEAD))
    assert trees.at("one", "status", "--porcelain") == "?? .env"


@pytest.mark.slow
async def test_conflicts_are_named_put_into_the_worktree_and_merged_once_solved(trees: Trees) -> None:
    trees.commit("one", "a.txt", "one\nmine\nthree\n")
    base = main_moves(trees, "a.txt", "one\nmain\nthree\n")
    end = await trees.keeper.merge("one", LEAD, passing)
    assert (end.how, end.files) == ("conflict", ("a.txt",))
    assert is_unchanged(trees, base)
    assert "<<<<<<<" in (trees.root / "one" / "a.txt").read_text()
    assert "not solved yet in one: a.txt" in await trees.refusal(trees.keeper.merge("one", LEAD))
    assert "under way: a merge" in (await trees.keeper.losses("one")).lines()
    (trees.root / "one" / "a.txt").write_text("one\nboth\nthree\n")
    end = await trees.keeper.merge("one", LEAD, passing)
    assert end.how == "merged"
    assert (trees.workspace / "a.txt").read_text() == "one\nboth\nthree\n"
    assert is_unchanged(trees, end.commit)
    await trees.keeper.remove("one", LEAD)


async def test_changes_of_the_person_that_are_not_in_the_way_stay_and_are_told(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    (trees.workspace / "b.txt").write_text("a person is at it\n")
    (trees.workspace / "note").write_text("note\n")
    end = await trees.keeper.merge("one", LEAD)
    assert (end.how, end.dirty) == ("merged", ("b.txt", "note"))
    assert (trees.workspace / "b.txt").read_text() == "a person is at it\n"
    assert (trees.workspace / "a.txt").read_text() == "mine\n"


@pytest.mark.parametrize("file", ["a.txt", "new.txt", "x.log"])
async def test_changes_of_the_person_that_are_in_the_way_stop_the_merge(trees: Trees, file: str) -> None:
    """A changed, an untracked, and an ignored file: git itself would overwrite the last one."""
    trees.commit("one", file, "mine\n")
    base = trees.git("rev-parse", "main")
    (trees.workspace / file).write_text("a person is at it\n")
    words = await trees.refusal(trees.keeper.merge("one", LEAD, passing))
    assert f"would overwrite: {file}." in words
    assert (trees.workspace / file).read_text() == "a person is at it\n"
    assert trees.git("rev-parse", "main") == base
    assert (await trees.keeper.worktrees())[0].standing == "ready"


async def test_a_person_who_is_quicker_than_the_tests_wins(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")

    async def check(folder: Path) -> MergeCheck:
        main_moves(trees)
        return MergeCheck(passed=True)

    assert "main has moved" in await trees.refusal(trees.keeper.merge("one", LEAD, check))
    assert (trees.workspace / "a.txt").read_text().startswith("one")

    async def edits(folder: Path) -> MergeCheck:
        (trees.workspace / "a.txt").write_text("a person is at it\n")
        return MergeCheck(passed=True)

    assert "would overwrite: a.txt" in await trees.refusal(trees.keeper.merge("one", LEAD, edits))
    assert (trees.workspace / "a.txt").read_text() == "a person is at it\n"


async def test_where_no_branch_could_move_it_is_said(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    trees.git("checkout", "-q", "--detach")
    assert "detached HEAD" in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.git("checkout", "-q", "main")
    main_moves(trees, "a.txt", "main\n")
    trees.git("merge", "wt/one", code=1)
    assert "in the middle of a merge" in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.git("merge", "--abort")
    trees.at("one", "checkout", "-q", "-b", "other")
    told = "one has other checked out, not wt/one: `git switch wt/one` there"
    assert await trees.refusal(trees.keeper.merge("one", LEAD)) == told
    trees.at("one", "checkout", "-q", "--detach", "wt/one")
    told = "one is on no branch, not wt/one: `git switch wt/one` there"
    assert await trees.refusal(trees.keeper.merge("one", LEAD)) == told


async def test_the_advice_for_a_worktree_off_its_branch_loses_no_commit(trees: Trees) -> None:
    """The advised commands are run as a person would, and then the merge has everything."""
    trees.at("one", "checkout", "-q", "--detach")
    only = trees.commit("one", "a.txt", "only here\n")
    told = f"`git switch wt/one` there, then `git merge {only[:10]}` for the commits that only HEAD has"
    assert told in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.at("one", "switch", "-q", "wt/one")
    trees.at("one", "merge", "-q", only[:10])
    trees.at("one", "branch", "-m", "renamed")
    told = "has renamed checked out, and its branch wt/one is gone: `git branch -m renamed wt/one` there"
    assert told in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.at("one", "branch", "-m", "renamed", "wt/one")
    trees.at("one", "checkout", "-q", "--detach")
    trees.at("one", "branch", "-D", "wt/one")
    told = "is on no branch, and its branch wt/one is gone: `git switch -c wt/one` there"
    assert told in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.at("one", "switch", "-q", "-c", "wt/one")
    main_moves(trees, "a.txt", "main\n")
    trees.at("one", "rebase", "-q", "main", code=1)
    assert "one is in the middle of a rebase: finish or abort" in await trees.refusal(trees.keeper.merge("one", LEAD))
    trees.at("one", "rebase", "--abort")
    assert (await trees.keeper.merge("one", LEAD)).how == "conflict"


async def test_a_worktree_without_its_folder_is_merged_from_its_branch(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    shutil.rmtree(trees.root / "one")
    assert (await trees.keeper.merge("one", LEAD)).how == "merged"
    assert (trees.workspace / "a.txt").read_text() == "mine\n"
    trees.commit("one", "a.txt", "more\n")
    shutil.rmtree(trees.workspace / ".git" / "worktrees" / "one")
    folder = trees.root / "one"
    told = f"git no longer knows the folder {folder}: `git worktree repair {folder}` may help"
    assert await trees.refusal(trees.keeper.merge("one", LEAD)) == told


async def test_a_repository_within_a_worktree_is_not_merged_without_its_files(trees: Trees) -> None:
    (trees.root / "one" / "b.txt").write_text("mine\n")
    new_repository(trees.root / "one" / "made")
    told = await trees.refusal(trees.keeper.merge("one", LEAD))
    assert told.startswith("made/: a git repository of its own, whose files no commit outside it contains")
    shutil.rmtree(trees.root / "one" / "made" / ".git")
    assert (await trees.keeper.merge("one", LEAD)).how == "merged"
    assert (trees.workspace / "made" / "deep" / "c.txt").read_text() == "c\n"


async def test_worktrees_are_merged_and_removed_after_the_repository_got_submodules(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    other = new_repository(trees.base / "other")
    trees.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "lib")
    trees.git("commit", "-qm", "with a submodule")
    assert "the repository has submodules" in await trees.refusal(trees.keeper.create("two", LEAD))
    assert (await trees.keeper.merge("one", LEAD, passing)).how == "merged"
    assert (trees.workspace / "lib" / "a.txt").exists()
    assert (await trees.keeper.remove("one", LEAD)).branch == ""


async def test_an_interrupted_merge_leaves_nothing(trees: Trees) -> None:
    trees.commit("one", "a.txt", "mine\n")
    base = trees.git("rev-parse", "main")
    begun = anyio.Event()

    async def check(folder: Path) -> MergeCheck:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as group:
        group.start_soon(trees.keeper.merge, "one", LEAD, check)
        await begun.wait()
        assert "another act on the worktree one is in progress" in await trees.refusal(trees.keeper.remove("one", LEAD))
        assert await trees.keeper.open("one") == (trees.root / "one", ""), "the worktree's agent can continue"
        group.cancel_scope.cancel()
    assert is_unchanged(trees, base)
    assert (await trees.keeper.worktrees())[0].standing == "ready"
    assert (await trees.acts())[-2:] == ["merging", "undone"]


async def test_two_worktrees_are_merged_one_after_the_other(trees: Trees) -> None:
    await trees.keeper.create("two", LEAD)
    trees.commit("one", "a.txt", "mine\n")
    trees.commit("two", "b.txt", "mine\n")
    assert [(await trees.keeper.merge(name, LEAD, passing)).how for name in ("one", "two")] == ["merged", "merged"]
    assert [(trees.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["mine\n", "mine\n"]


@pytest.mark.slow
async def test_a_merge_cut_in_the_middle_of_the_files_is_taken_back_and_loses_nothing(trees: Trees) -> None:
    """The state after a killed git: some files new, one half written, its lock still present."""
    trees.commit("one", "a.txt", "mine\n")
    trees.commit("one", "b.txt", "mine too\n")
    trees.commit("one", "new.txt", "new\n")
    base = trees.git("rev-parse", "main")

    class Cut(Exception):
        pass

    async def check(folder: Path) -> MergeCheck:
        raise Cut

    with pytest.raises(Cut):
        await trees.keeper.merge("one", LEAD, check)
    merged = trees.git("commit-tree", "wt/one^{tree}", "-p", base, "-p", "wt/one", "-m", "merge")
    registry = trees.registry
    tree = (await trees.keeper.worktrees())[0]
    intent = registry.entry_for(tree, "merging", WorktreeActor("lead", "s1", "call_5"))
    await registry.note(intent.model_copy(update={"base": base, "onto": "main", "commit": merged}))
    (trees.workspace / "a.txt").write_text("mine\n")
    (trees.workspace / "b.txt").write_text("mi")
    (trees.workspace / "new.txt").write_text("ne")
    (trees.workspace / ".git" / "index.lock").write_bytes(b"half an index")
    (trees.workspace / "note").write_text("of the person\n")
    assert await trees.keeper.recover() == ["the merge of wt/one into main was interrupted, and was undone"]
    assert trees.git("status", "--porcelain") == "?? note"
    assert (trees.workspace / "note").read_text() == "of the person\n"
    rescued = trees.git("for-each-ref", "--format=%(refname)", "refs/callboard/rescued")
    assert trees.git("show", f"{rescued}:b.txt") == "mi", "the previous content is kept as well"
    assert await trees.keeper.outcome("call_5") == ""
    assert (await trees.keeper.merge("one", LEAD, passing)).how == "merged"
    assert trees.git("status", "--porcelain") == "?? note"


async def test_files_that_go_through_a_filter_are_left_to_the_person(trees: Trees) -> None:
    trees.git("config", "filter.big.smudge", "cat")
    trees.commit("one", ".gitattributes", "*.bin filter=big\n")
    trees.commit("one", "a.bin", "pointer\n")
    assert "a.bin: goes through a filter" in await trees.refusal(trees.keeper.merge("one", LEAD))
    assert is_unchanged(trees, trees.git("rev-parse", "main"))
