"""The files of a repository show, without git, whether git's reading commands would run part of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.adapters.git.git import Git
from callboard.adapters.git.premise import git_is_quiet, read_index, tracked_paths
from callboard.adapters.git.repository import find_repository
from callboard.types.errors import ToolRefused


def git(folder: Path, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, check=True, env=env, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "sub/deep").mkdir(parents=True)
    for name in ("a.txt", "sub/a.txt", "sub/deep/b.txt", "sub/deep/id_rsa"):
        (root / name).write_text("x")
    git(root, "init", "-q", ".")
    git(root, "add", ".")
    git(root, "commit", "-qm", "x")
    return root


def test_a_fresh_repository_and_a_folder_in_it_are_quiet(repository: Path) -> None:
    assert git_is_quiet(repository)
    assert git_is_quiet(repository / "sub/deep")


def test_the_configuration_of_a_repository_above_counts(repository: Path) -> None:
    git(repository, "config", "core.fsmonitor", "./x")
    assert not git_is_quiet(repository / "sub/deep")


@pytest.mark.parametrize(
    "setting",
    ["remote.origin.promisor", "remote.origin.partialclonefilter", "core.gitproxy", "extensions.partialclone"],
)
def test_a_repository_that_fetches_missing_objects_is_not_quiet(repository: Path, setting: str) -> None:
    git(repository, "config", setting, "true")
    assert not git_is_quiet(repository)


def test_a_nested_repository_that_is_tracked_is_not_quiet(repository: Path) -> None:
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "-q", ".")
    git(repository / "nested", "commit", "-qm", "x", "--allow-empty")
    assert git_is_quiet(repository)
    git(repository, "add", "nested")
    assert not git_is_quiet(repository)


def test_a_hook_that_reading_commands_run_is_not_quiet(repository: Path) -> None:
    (repository / ".git/hooks").mkdir(exist_ok=True)
    (repository / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    assert git_is_quiet(repository)
    (repository / ".git/hooks/post-index-change").write_text("#!/bin/sh\n")
    assert not git_is_quiet(repository)


def test_a_common_folder_that_was_put_beside_the_configuration_is_followed(repository: Path) -> None:
    other = repository.parent / "other"
    other.mkdir()
    (other / "config").write_text("[core]\n\tfsmonitor = ./x\n")
    (repository / ".git/commondir").write_text(str(other))
    assert not git_is_quiet(repository)


def common_folder(git_folder: Path, other: Path) -> None:
    (git_folder / "commondir").write_text(f"{other}\n")


def git_file(git_folder: Path, other: Path) -> None:
    git_folder.rename(git_folder.with_name("before"))
    git_folder.write_text(f"gitdir: {other}\n")


def git_link(git_folder: Path, other: Path) -> None:
    git_folder.rename(git_folder.with_name("before"))
    git_folder.symlink_to(other)


def alternates(git_folder: Path, other: Path) -> None:
    (git_folder / "objects/info/alternates").write_text(f"{other}/objects\n")
    (git_folder / "refs/heads").mkdir(exist_ok=True)
    (git_folder / "HEAD").write_text((other / "refs/heads/private").read_text())


def linked_objects(git_folder: Path, other: Path) -> None:
    (git_folder / "objects").rename(git_folder / "before")
    (git_folder / "objects").symlink_to(other / "objects")
    (git_folder / "HEAD").write_text((other / "refs/heads/private").read_text())


def linked_object_folders(git_folder: Path, other: Path) -> None:
    (git_folder / "HEAD").write_text((other / "refs/heads/private").read_text())
    for folder in (other / "objects").glob("??"):
        shutil.rmtree(git_folder / "objects" / folder.name, ignore_errors=True)
        (git_folder / "objects" / folder.name).symlink_to(folder)


@pytest.mark.parametrize(
    "plant", [common_folder, git_file, git_link, alternates, linked_objects, linked_object_folders]
)
def test_what_leads_git_to_another_repository_is_not_quiet(
    repository: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "private", ".")
    (other / "diary.txt").write_text("dear diary")
    git(other, "add", ".")
    git(other, "commit", "-qm", "private")
    (repository / ".git/HEAD").write_text("ref: refs/heads/private\n")
    assert git_is_quiet(repository)
    plant(repository / ".git", other / ".git")
    shown = subprocess.run(["git", "log", "-p"], cwd=repository, capture_output=True, check=False).stdout
    assert b"dear diary" in shown, "the trap is real: git shows a file from elsewhere"
    assert not git_is_quiet(repository)


def test_a_linked_worktree_is_quiet_and_a_copy_of_its_git_file_is_not(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert git_is_quiet(tmp_path / "tree")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/.git").write_bytes((tmp_path / "tree/.git").read_bytes())
    assert not git_is_quiet(tmp_path / "copy")


def test_a_pipe_in_place_of_the_configuration_is_not_quiet_and_is_not_waited_for(repository: Path) -> None:
    (repository / ".git/config").unlink()
    os.mkfifo(repository / ".git/config")
    assert not git_is_quiet(repository)


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_tracked_paths_are_what_git_lists(repository: Path, version: str) -> None:
    if version == "3":
        (repository / "later.txt").write_text("x")
        git(repository, "add", "--intent-to-add", "later.txt")
    else:
        git(repository, "update-index", "--index-version", version)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, check=True).stdout
    names = listed.decode().split("\0")[:-1]
    assert tracked_paths(repository) == tuple(f"{repository}/{name}" for name in names)
    assert tracked_paths(repository / "sub") == tracked_paths(repository)


def test_a_damaged_index_is_unknown_and_never_raises(repository: Path) -> None:
    raw = (repository / ".git/index").read_bytes()
    for cut in range(0, len(raw), 7):
        read_index(raw[:cut])
    (repository / ".git/index").write_bytes(raw[: len(raw) // 2])
    assert tracked_paths(repository) is None
    assert not git_is_quiet(repository)
    git(repository, "read-tree", "--empty")
    assert tracked_paths(repository) == ()


def test_a_split_index_is_unknown(repository: Path) -> None:
    git(repository, "update-index", "--split-index")
    assert tracked_paths(repository) is None


@pytest.mark.parametrize("name", ["packed-refs", "HEAD", "index", "info/exclude", "objects/info/alternates"])
@pytest.mark.anyio
async def test_git_does_not_wait_for_a_pipe_that_an_agent_left_in_its_folder(repository: Path, name: str) -> None:
    planted = repository / ".git" / name
    planted.unlink(missing_ok=True)
    os.mkfifo(planted)
    with pytest.raises(ToolRefused, match=rf"{planted} is not a regular file, and git would wait for it: remove it"):
        await find_repository(Git(repository, dict(os.environ)))
