"""The runtime's own git runs nothing that a repository names, and supplies the facts for reminders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio
import pytest
from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.git import Git, GitFacts
from callboard.adapters.processes.programs import run_program

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as a person would."""
    person = ["-c", "user.name=P", "-c", "user.email=p@example.com", "-c", "init.defaultBranch=main"]
    environment = ENVIRONMENT | {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *person, *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "first")
    return folder


def git(folder: Path) -> Git:
    return Git(folder, ENVIRONMENT | {"HOME": str(folder.parent)})


async def test_a_clean_repository_is_told_in_a_line(repository: Path) -> None:
    facts = await git(repository).facts()
    assert facts is not None
    commit = run_git(repository, "rev-parse", "HEAD").strip()[:10]
    assert facts == GitFacts("main", commit)
    assert facts.describe() == f"Git: branch main, at {commit}, clean"


async def test_what_is_dirty_is_named(repository: Path) -> None:
    (repository / "a.txt").write_text("two\n")
    (repository / "b c.txt").write_text("new\n")
    run_git(repository, "mv", "a.txt", "was a.txt")
    facts = await git(repository).facts()
    assert facts is not None
    assert (facts.changed, facts.untracked) == (("was a.txt",), ("b c.txt",))
    assert facts.describe().endswith("Changed (1): was a.txt\nUntracked (1): b c.txt")


async def test_a_conflict_is_told(repository: Path) -> None:
    run_git(repository, "checkout", "-qb", "other")
    (repository / "a.txt").write_text("theirs\n")
    run_git(repository, "commit", "-qam", "theirs")
    run_git(repository, "checkout", "-q", "main")
    (repository / "a.txt").write_text("ours\n")
    run_git(repository, "commit", "-qam", "ours")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(repository, "merge", "other")
    facts = await git(repository).facts()
    assert facts is not None
    assert facts.conflicts == ("a.txt",)


async def test_before_the_first_commit_and_off_a_branch(tmp_path: Path, repository: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run_git(empty, "init", "-q")
    assert await git(empty).facts() == GitFacts("main", "")
    run_git(repository, "checkout", "-q", "--detach")
    facts = await git(repository).facts()
    assert facts is not None
    assert facts.branch == ""
    assert "detached" in facts.describe()


async def test_no_repository_gives_no_facts(tmp_path: Path, repository: Path) -> None:
    inner = repository / "inner"
    inner.mkdir()
    assert await git(tmp_path).facts() is None
    assert await git(inner).facts() is None, "a repository above the workspace is not described"
    assert await Git(repository, {"PATH": str(tmp_path)}).facts() is None


async def test_nothing_that_a_repository_names_is_run(repository: Path) -> None:
    trap = repository.parent / "sprung"
    script = repository / "evil.sh"
    script.write_text(f"#!/bin/sh\necho $0 $1 >> {trap}\ncat\n")
    script.chmod(0o755)
    (repository / ".gitattributes").write_text("*.txt filter=e=vil diff=evil merge=evil\n")
    hooks = repository / ".git" / "hooks"
    for hook in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction"):
        (hooks / hook).write_text(script.read_text())
        (hooks / hook).chmod(0o755)
    for name in (
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "diff.external",
        "filter.e=vil.clean",
        "filter.e=vil.smudge",
        "filter.e=vil.process",
        "diff.evil.textconv",
        "diff.evil.command",
        "merge.evil.driver",
        "gpg.program",
        "credential.helper",
    ):
        run_git(repository, "config", name, str(script))
    run_git(repository, "config", "filter.e=vil.required", "true")
    run_git(repository, "config", "alias.status", f"!{script}")
    (repository / "a.txt").write_text("two\n")
    trap.unlink(missing_ok=True)
    hardened = git(repository)
    assert await hardened.facts() is not None
    for arguments in (("diff",), ("log", "-p"), ("show", "HEAD"), ("blame", "a.txt"), ("add", "a.txt"), ("ls-files",)):
        assert (await hardened.run(arguments)).code == 0
    commit = ("-c", "user.name=P", "-c", "user.email=p@example.com", "commit", "-qm", "second")
    assert (await hardened.run(("checkout", "-q", "-b", "side"))).code == 0
    assert (await hardened.run(commit)).code != 0 or True
    assert not trap.exists(), trap.read_text()
    subprocess.run(["git", "status"], cwd=repository, env=ENVIRONMENT, check=False, capture_output=True)
    assert trap.exists(), "the trap works"


async def test_variables_that_steer_git_do_not_reach_it(repository: Path, tmp_path: Path) -> None:
    steering = {"GIT_DIR": str(tmp_path), "GIT_WORK_TREE": "/", "GIT_EXTERNAL_DIFF": "false", "GIT_SSH_COMMAND": "x"}
    facts = await Git(repository, ENVIRONMENT | {"HOME": str(tmp_path)} | steering).facts()
    assert facts is not None
    assert facts.branch == "main"


async def test_a_program_is_ended_with_its_group_when_its_time_is_over() -> None:
    with anyio.fail_after(180):
        ran = await run_program(["/bin/sh", "-c", "echo hi; sleep 300 & sleep 300"], ENVIRONMENT, timeout=2.0)
    assert (ran.out, ran.code, ran.timed_out) == (b"hi\n", None, True)


async def test_a_program_that_writes_too_much_is_ended() -> None:
    with anyio.fail_after(180):
        ran = await run_program(["/usr/bin/yes"], ENVIRONMENT, most=100_000)
    assert 100_000 < len(ran.out) < 1_000_000
    assert not ran.timed_out


async def test_a_program_reads_what_it_is_given() -> None:
    given = b"x" * 1_000_000
    assert (await run_program(["/bin/cat"], ENVIRONMENT, stdin=given)).out == given
    assert (await run_program(["/bin/true"], ENVIRONMENT, stdin=given)).code == 0
