"""Checkpoints with real repositories: what they save and leave alone, what a remote refuses, and the way back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import new_repository, run_git
from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.checkpoints import (
    Snapshot,
    bring_to,
    changed_files,
    commit_snapshot,
    fetch,
    make_clone,
    push,
    repository_at,
    take_snapshot,
)
from callboard.adapters.git.git import Git
from callboard.adapters.git.repository import Repository
from callboard.core.checkpoints.rules import PushEnd, branch_name

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # git runs as a process, however its end is awaited


SESSION = "s1"
BRANCH = branch_name(SESSION, "")


class Work:
    """A workspace with a repository, a bare remote, and clones of other hosts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folder = new_repository(base / "work")
        self.remote = base / "remote.git"
        run_git(base, "init", "-q", "--bare", str(self.remote))
        self.previous = ""

    def git_of(self, folder: Path) -> Git:
        return Git(folder, {**ENVIRONMENT, "HOME": str(self.base)})

    @property
    def repo(self) -> Repository:
        return repository_at(self.folder, self.git_of(self.folder))

    def git(self, *arguments: str, code: int = 0) -> str:
        return run_git(self.folder, *arguments, code=code).rstrip("\n")

    def at_remote(self, *arguments: str) -> str:
        return run_git(self.remote, *arguments).rstrip("\n")

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    async def save(self, *, largest: int = 1_000_000) -> Snapshot:
        snapshot = await take_snapshot(self.repo, self.repo.workspace, largest=largest)
        self.previous = await commit_snapshot(
            self.repo, self.repo.workspace, snapshot, session=SESSION, tree="", previous=self.previous
        )
        return snapshot

    async def pushed(self) -> PushEnd:
        return await push(self.repo, str(self.remote), self.previous, BRANCH)

    async def restored(self, snapshot: Snapshot, name: str = "other") -> Path:
        """Return a clone as another host makes it."""
        folder = self.base / name / "work"
        git = self.git_of(folder)
        await make_clone(git, str(self.remote))
        repo = repository_at(folder, git)
        assert await fetch(repo, str(self.remote), "+refs/heads/callboard/s1/*:refs/callboard/remote/*") == PushEnd()
        facts = await bring_to(repo, repo.workspace, self.previous, session=SESSION, tree="")
        assert (facts.head, facts.branch) == (snapshot.head, snapshot.branch)
        return folder


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path.resolve())


def files_of(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Return kind and content of each file of a working tree that git does not ignore, by name."""
    listed = run_git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    files: dict[str, tuple[str, bytes]] = {}
    for name in filter(None, listed.split("\0")):
        path = folder / name
        if path.is_symlink():
            files[name] = "link", os.fsencode(os.readlink(path))
        elif path.exists():
            files[name] = "program" if os.access(path, os.X_OK) else "file", path.read_bytes()
    return files


def state_of(folder: Path) -> Mapping[str, str]:
    """Return what a checkpoint may not touch."""
    git = folder / ".git"
    return {
        "status": run_git(folder, "--no-optional-locks", "status", "--porcelain=v2", "--branch"),
        "branches": run_git(folder, "branch", "--list", "--all", "-v"),
        "stash": run_git(folder, "stash", "list"),
        "reflog": run_git(folder, "reflog"),
        "index": (git / "index").read_bytes().hex(),
        "head": (git / "HEAD").read_text(),
        "config": (git / "config").read_text(),
        "entries": str(sorted(path.name for path in git.iterdir())),
    }


def change_much(work: Work) -> None:
    work.write("a.txt", "one\r\n2\r\n")
    (work.folder / "b.txt").unlink()
    work.write("new/deep.txt", "new")
    work.write("odd \n\t\"näme'.txt", "odd")
    work.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    (work.folder / "link").symlink_to("/etc/hostname")
    work.write("noise.log", "ignored")
    work.write("build/x", "ignored")
    work.write("staged.txt", "first")
    work.git("add", "staged.txt")
    work.write("staged.txt", "second")
    (work.folder / "deep" / "c.txt").unlink()
    (work.folder / "deep").rmdir()
    work.write("deep", "a file now")


async def test_a_checkpoint_moves_every_file_and_touches_nothing_of_the_person(work: Work) -> None:
    change_much(work)
    work.git("status")  # git brings its index up to date
    (work.folder / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("pre-commit", "pre-push", "reference-transaction", "post-index-change"):
        path = work.folder / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {work.base}/{hook}.ran\n")
        path.chmod(0o755)
    work.git("config", "commit.gpgSign", "true")
    work.git("config", "gpg.program", "/bin/false")
    before = state_of(work.folder)
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    assert state_of(work.folder) == before
    assert list(work.base.glob("*.ran")) == []
    assert (snapshot.branch, snapshot.left_out) == ("main", ())
    assert set(snapshot.ignored) == {"noise.log", "build/"}
    folder = await work.restored(snapshot)
    assert files_of(folder) == files_of(work.folder)
    ours = run_git(folder, "status", "--porcelain", "--branch", "--untracked-files=all").splitlines()
    assert ours[0] == "## main"
    assert " M a.txt" in ours
    assert not (folder / "noise.log").exists()
    assert run_git(folder, "remote", "get-url", "origin").strip() == str(work.remote)


async def test_the_same_files_make_no_second_commit_and_a_new_one_needs_no_force(work: Work) -> None:
    work.write("a.txt", "1")
    await work.save()
    first = work.previous
    await work.save()
    assert work.previous == first
    assert await work.pushed() == PushEnd()
    work.git("commit", "-qam", "the agent's own commit")
    work.write("a.txt", "2")
    await work.save()
    assert await work.pushed() == PushEnd()
    assert work.at_remote("log", "-1", "--format=%P", BRANCH).split() == [first, work.git("rev-parse", "HEAD")]
    assert await changed_files(work.repo, first, work.previous) == ("a.txt",)
    snapshot = await work.save()
    folder = await work.restored(snapshot)
    assert run_git(folder, "log", "--format=%s").splitlines() == ["the agent's own commit", "first"]


@pytest.mark.slow
async def test_a_head_that_went_back_stays_back(work: Work) -> None:
    work.write("a.txt", "1")
    work.git("commit", "-qam", "second")
    await work.save()
    work.git("reset", "-q", "--hard", "HEAD~1")
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert run_git(folder, "log", "--format=%s").splitlines() == ["first"]
    assert run_git(folder, "status", "--porcelain") == ""


@pytest.mark.slow
async def test_a_repository_without_a_commit_moves_too(work: Work) -> None:
    empty = work.base / "empty"
    empty.mkdir()
    run_git(empty, "init", "-q")
    work.folder = empty
    work.write("first.txt", "content")
    snapshot = await work.save()
    assert (snapshot.head, snapshot.branch) == ("", "main")
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert files_of(folder) == files_of(empty)
    assert run_git(folder, "symbolic-ref", "HEAD").strip() == "refs/heads/main"


@pytest.mark.slow
async def test_a_detached_head_stays_detached(work: Work) -> None:
    work.git("checkout", "-q", "--detach")
    work.write("a.txt", "1")
    snapshot = await work.save()
    assert snapshot.branch == ""
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    run_git(folder, "symbolic-ref", "-q", "HEAD", code=1)
    assert run_git(folder, "rev-parse", "HEAD").strip() == work.git("rev-parse", "HEAD")
    assert (folder / "a.txt").read_text() == "1"


async def test_what_stays_behind_is_named(work: Work) -> None:
    work.write(".gitattributes", "*.bin filter=lfs\n")
    work.write("film.mov", b"x" * 2_000)
    work.write("weights.bin", "raw")
    inner = work.folder / "inner"
    inner.mkdir()
    run_git(inner, "init", "-q")
    (inner / "x").write_text("x")
    os.mkfifo(work.folder / "pipe")
    snapshot = await work.save(largest=1_000)
    assert sorted(snapshot.left_out) == [
        "film.mov: larger than 1,000 bytes",
        "inner/: a git repository of its own",
        "weights.bin: goes through a filter of the repository (git-lfs), which does not run here",
    ]
    assert work.git("ls-tree", "-r", "--name-only", work.previous).splitlines() == [
        *(".gitattributes", ".gitignore", "a.txt", "b.txt", "deep/c.txt"),
    ]


@pytest.mark.slow
async def test_submodules_are_left_alone(work: Work) -> None:
    other = new_repository(work.base / "library")
    work.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "lib")
    work.git("commit", "-qm", "with a submodule")
    (work.folder / "lib" / "a.txt").write_text("changed in the submodule")
    work.write("a.txt", "changed")
    snapshot = await work.save()
    assert snapshot.left_out == ("lib: a submodule, whose changes stay where they are",)
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert (folder / "a.txt").read_text() == "changed"
    assert list((folder / "lib").iterdir()) == []


@pytest.mark.slow
async def test_line_ends_stay_as_they_are(work: Work) -> None:
    work.write(".gitattributes", "* text=auto\n*.bat eol=crlf\n")
    work.git("add", "--all")
    work.git("commit", "-qm", "attributes")
    work.write("mixed.txt", b"a\r\nb\nc\r")
    work.write("a.txt", b"one\r\ntwo\r\n")
    work.write("x.bat", b"echo 1\n")
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert files_of(folder) == files_of(work.folder)


async def test_a_link_that_leads_out_is_saved_as_a_link(work: Work) -> None:
    secret = work.base / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (work.folder / "deep" / "c.txt").unlink()
    (work.folder / "deep").rmdir()
    (work.folder / "deep").symlink_to(secret)
    await work.save()
    listed = work.git("ls-tree", "-r", work.previous).splitlines()
    assert [line.split()[0] for line in listed if line.endswith("\tdeep")] == ["120000"]
    assert "secret" not in work.git("log", "-p", "--format=", "--all", work.previous).replace(str(secret), "")


async def test_a_checkpoint_never_writes_through_a_link(work: Work) -> None:
    outside = work.base / "outside"
    outside.mkdir()
    (work.folder / "deep" / "c.txt").unlink()
    (work.folder / "deep").rmdir()
    (work.folder / "deep").symlink_to(outside)
    work.git("add", "--all")
    work.git("commit", "-qm", "a link")
    (work.folder / "deep").unlink()
    work.write("deep/new.txt", "inside")
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert (folder / "deep" / "new.txt").read_text() == "inside"
    assert list(outside.iterdir()) == []


async def test_commits_of_others_on_the_branch_are_never_overwritten(work: Work) -> None:
    work.write("a.txt", "1")
    await work.save()
    assert await work.pushed() == PushEnd()
    other = work.base / "person"
    run_git(work.base, "clone", "-q", "-b", BRANCH, str(work.remote), str(other))
    run_git(other, "commit", "-q", "--allow-empty", "-m", "a person's")
    run_git(other, "push", "-q")
    theirs = work.at_remote("rev-parse", BRANCH)
    work.write("a.txt", "2")
    await work.save()
    end = await work.pushed()
    assert end.problem == "diverged"
    assert BRANCH in end.text
    assert work.at_remote("rev-parse", BRANCH) == theirs


async def test_a_branch_that_the_remote_protects_is_reported_with_its_words(work: Work) -> None:
    hook = work.remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho only reviewed branches >&2\nexit 1\n")
    hook.chmod(0o755)
    await work.save()
    end = await work.pushed()
    assert end.problem == "refused"
    assert "only reviewed branches" in end.text
    assert "checkpoint: off" in end.text


async def test_a_remote_that_is_not_there_is_reported_and_the_next_push_has_everything(work: Work) -> None:
    away = work.base / "away.git"
    work.remote.rename(away)
    work.write("a.txt", "1")
    await work.save()
    assert (await work.pushed()).problem == "unreachable"
    away.rename(work.remote)
    work.write("b.txt", "2")
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    folder = await work.restored(snapshot)
    assert files_of(folder) == files_of(work.folder)


async def test_the_repository_cannot_redirect_a_push(work: Work) -> None:
    evil = work.base / "evil.git"
    run_git(work.base, "init", "-q", "--bare", str(evil))
    work.git("config", f"url.{evil}.insteadOf", str(work.remote))
    work.git("config", f"url.{evil}.pushInsteadOf", str(work.remote))
    work.git("config", "core.sshCommand", f"touch {work.base}/ran")
    work.git("config", "credential.helper", f"!touch {work.base}/ran")
    await work.save()
    assert await work.pushed() == PushEnd()
    assert run_git(evil, "branch") == ""
    assert not (work.base / "ran").exists()


@pytest.mark.slow
async def test_a_persons_own_configuration_counts_for_a_push_but_its_hooks_and_tags_do_not(work: Work) -> None:
    hooks = work.base / "hooks"
    hooks.mkdir()
    (hooks / "pre-push").write_text(f"#!/bin/sh\ntouch {work.base}/ran\n")
    (hooks / "pre-push").chmod(0o755)
    (work.base / ".gitconfig").write_text(
        f'[core]\n\thooksPath = {hooks}\n[push]\n\tfollowTags = true\n[url "{work.remote}"]\n\tinsteadOf = ssh://host/x\n'
    )
    work.git("tag", "-a", "v1", "-m", "v1")
    await work.save()
    assert await push(work.repo, "ssh://host/x", work.previous, BRANCH) == PushEnd()
    assert work.at_remote("for-each-ref", "--format=%(refname)") == f"refs/heads/{BRANCH}"
    assert not (work.base / "ran").exists()


@pytest.mark.slow
async def test_many_large_files_are_written_in_parts(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.adapters.git.checkpoints._BATCH", 1_000)
    for number in range(20):
        work.write(f"large/{number}", os.urandom(400))
    work.write("empty", b"")
    snapshot = await work.save()
    assert await work.pushed() == PushEnd()
    assert files_of(await work.restored(snapshot)) == files_of(work.folder)


@pytest.mark.slow
async def test_a_repository_of_sha256_is_saved(tmp_path: Path) -> None:
    work = Work(tmp_path.resolve())
    folder = work.base / "new"
    folder.mkdir()
    tried = subprocess.run(["git", "init", "-q", "--object-format=sha256"], cwd=folder, check=False)
    if tried.returncode:
        pytest.skip("this git knows no sha256")
    work.folder = folder
    work.write("a", "1")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "first")
    (folder / "a").unlink()
    await work.save()
    assert work.git("ls-tree", "-r", work.previous) == ""
