"""The runtime's own git runs and fetches nothing that a hostile repository or an agent planted, at any level."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import LEAD, Trees, new_repository, passing, run_git
from tests.adapters.processes.cage import Cage, create_folders, require_level
from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.git import Git, NoRepository
from callboard.adapters.git.repository import Repository, find_repository
from callboard.adapters.processes.confinement import Confinement, confinement_of
from callboard.adapters.processes.programs import run_program
from callboard.adapters.processes.sandbox.machine import Machine
from callboard.types.errors import ToolRefused

pytestmark = pytest.mark.anyio


@dataclass
class Hostile:
    """A repository, a program that leaves a mark when it runs, and a port that receives connections."""

    base: Path
    port: int = 0

    @property
    def folder(self) -> Path:
        return self.base / "work"

    @property
    def mark(self) -> Path:
        return self.base / "sprung"

    @property
    def script(self) -> str:
        file = self.base / "evil.sh"
        if not file.exists():
            file.write_text(f"#!/bin/sh\necho $0 $* >> {self.mark}\nexit 1\n")
            file.chmod(0o755)
        return str(file)

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        return run_git(folder or self.folder, *arguments).strip()

    def config(self, *pairs: str, folder: Path | None = None) -> None:
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.git("config", name, value, folder=folder)

    def lose_tree(self) -> None:
        """Delete the tree of HEAD, so that git has to fetch it."""
        tree = self.git("rev-parse", "HEAD^{tree}")
        (self.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()

    def promise(self, *pairs: str) -> None:
        self.config("core.repositoryformatversion", "1", "extensions.partialClone", "origin")
        self.config("remote.origin.promisor", "true", *pairs)
        self.lose_tree()


def proxy(hostile: Hostile) -> None:
    hostile.promise("remote.origin.url", "git://example.invalid/x", "core.gitProxy", hostile.script)


def upload_pack(hostile: Hostile) -> None:
    other = new_repository(hostile.base / "other")
    hostile.promise("remote.origin.url", str(other), "remote.origin.uploadpack", hostile.script)


def ext_protocol(hostile: Hostile) -> None:
    hostile.promise("remote.origin.url", f"ext::{hostile.script} x", "protocol.ext.allow", "always")


def ssh_command(hostile: Hostile) -> None:
    hostile.promise("remote.origin.url", "ssh://example.invalid/x", "core.sshCommand", hostile.script)


def http_promisor(hostile: Hostile) -> None:
    hostile.promise("remote.origin.url", f"http://127.0.0.1:{hostile.port}/x")


def file_monitor(hostile: Hostile) -> None:
    hostile.config("core.fsmonitor", hostile.script)


def filter_clean(hostile: Hostile) -> None:
    hostile.config("filter.e.clean", hostile.script, "filter.e.required", "true")
    (hostile.folder / ".gitattributes").write_text("* filter=e\n")
    (hostile.folder / "a.txt").write_text("ONE\ntwo\nthree\n")


def attributes_of_git(hostile: Hostile) -> None:
    hostile.config("filter.e.process", hostile.script)
    (hostile.folder / ".git" / "info" / "attributes").write_text("* filter=e\n")
    (hostile.folder / "a.txt").write_text("ONE\ntwo\nthree\n")


def included(hostile: Hostile) -> None:
    (hostile.folder / "more").write_text(f"[core]\n\tfsmonitor = {hostile.script}\n")
    hostile.config("include.path", str(hostile.folder / "more"))


def worktree_settings(hostile: Hostile) -> None:
    hostile.config("core.repositoryformatversion", "1", "extensions.worktreeConfig", "true")
    (hostile.folder / ".git" / "config.worktree").write_text(f"[core]\n\tfsmonitor = {hostile.script}\n")


def git_file(hostile: Hostile) -> None:
    (hostile.folder / ".git").rename(hostile.folder / "harmless")
    (hostile.folder / ".git").write_text("gitdir: harmless\n")
    hostile.config("core.fsmonitor", hostile.script)


def common_folder(hostile: Hostile) -> None:
    shutil.copytree(hostile.folder / ".git", hostile.folder / "shared")
    shared = hostile.folder / "shared" / "config"
    shared.write_text(shared.read_text() + f"[core]\n\tfsmonitor = {hostile.script}\n")
    (hostile.folder / ".git" / "commondir").write_text("../shared\n")


def submodule(hostile: Hostile) -> None:
    inner = new_repository(hostile.folder / "sub")
    hostile.git("add", "sub")
    hostile.git("commit", "-qm", "sub")
    hostile.config("core.fsmonitor", hostile.script, folder=inner)
    (inner / "a.txt").write_text("ONE\ntwo\nthree\n")


def submodule_filter(hostile: Hostile) -> None:
    inner = new_repository(hostile.folder / "sub")
    hostile.git("add", "sub")
    hostile.git("commit", "-qm", "sub")
    hostile.config("filter.e.clean", hostile.script, folder=inner)
    (inner / ".gitattributes").write_text("* filter=e\n")
    (inner / "a.txt").write_text("ONE\ntwo\nthree\n")
    (hostile.folder / "a.txt").write_text("ONE\ntwo\nthree\n")


def alternates(hostile: Hostile) -> None:
    other = new_repository(hostile.folder / "other")
    (hostile.folder / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/.git/objects\n")
    hostile.config("core.alternateRefsCommand", hostile.script, "core.fsmonitor", hostile.script)


def hooks(hostile: Hostile) -> None:
    for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-commit", "post-merge"):
        shutil.copy(hostile.script, hostile.folder / ".git" / "hooks" / name)
    os.utime(hostile.folder / "a.txt", (1, 1))  # makes git rewrite its index


def merge_driver(hostile: Hostile) -> None:
    hostile.config("merge.e.driver", hostile.script, "core.fsmonitor", hostile.script)
    (hostile.folder / ".gitattributes").write_text("* merge=e diff=e\n")


ATTACKS: Sequence[Callable[[Hostile], None]] = (
    proxy,
    upload_pack,
    ext_protocol,
    ssh_command,
    http_promisor,
    file_monitor,
    filter_clean,
    attributes_of_git,
    included,
    worktree_settings,
    git_file,
    common_folder,
    submodule,
    submodule_filter,
    alternates,
    hooks,
    merge_driver,
)
LEADS_AWAY = frozenset({common_folder})
"""Attacks that lead git to another repository's references, so that the runtime's git refuses to start."""

NOTHING = Confinement(Machine())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def is_connected(listener: socket.socket) -> bool:
    """Return whether a connection arrived."""
    listener.setblocking(False)
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_looking_at_a_hostile_repository_runs_and_sends_nothing(
    tmp_path: Path, listener: socket.socket, attack: Callable[[Hostile], None]
) -> None:
    hostile = Hostile(tmp_path, listener.getsockname()[1])
    new_repository(hostile.folder)
    attack(hostile)
    hostile.mark.unlink(missing_ok=True)  # the trap may have run while it was set
    for confinement in (NOTHING, None):
        git = Git(hostile.folder, ENVIRONMENT | {"HOME": str(tmp_path)}, confinement)
        await git.facts()
        if attack in LEADS_AWAY:
            continue  # test_a_commondir_in_the_folder_of_git_is_named_as_the_reason
        for arguments in (("rev-parse", "HEAD^{commit}"), ("diff", "HEAD"), ("log", "-p", "-1"), ("ls-files", "-s")):
            await git.run(arguments)
        repository = await find_repository(git)
        await repository.branches()
        if not attack.__name__.startswith("http") and "promise" not in attack.__code__.co_names:
            await repository.status(ignored=True)
        assert not hostile.mark.exists(), hostile.mark.read_text()
        assert not is_connected(listener)
    environment = ENVIRONMENT | {"HOME": str(tmp_path)}
    if attack is http_promisor:
        listener.settimeout(30)
        person = subprocess.Popen(["git", "status"], cwd=hostile.folder, env=environment, stderr=subprocess.DEVNULL)
        listener.accept()[0].close()
        person.kill()
        person.wait()
    else:
        words = ["git", "checkout", "-qb", "side"] if attack is hooks else ["git", "status"]
        subprocess.run(words, cwd=hostile.folder, env=environment, check=False, capture_output=True)
        assert hostile.mark.exists(), "the trap is real: a plain git runs it"


CHANGES = (file_monitor, filter_clean, attributes_of_git, included, worktree_settings, hooks, merge_driver, submodule)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("attack", CHANGES)
async def test_worktrees_of_a_hostile_repository_run_nothing(tmp_path: Path, attack: Callable[[Hostile], None]) -> None:
    trees = Trees(tmp_path)
    hostile = Hostile(tmp_path)
    await trees.keeper.create("one", LEAD)
    attack(hostile)
    if attack is submodule:
        new_repository(trees.root / "one" / "sub2")
        trees.at("one", "add", "sub2")
        hostile.config("core.fsmonitor", hostile.script, folder=trees.root / "one" / "sub2")
    hostile.mark.unlink(missing_ok=True)
    (trees.root / "one" / "new.txt").write_text("new\n")
    (trees.root / "one" / "b.txt").write_text("ONE\ntwo\nthree\n")
    await trees.keeper.create("two", LEAD)
    await trees.keeper.facts()
    with suppress(ToolRefused):  # a file with a filter blocks the merge
        await trees.keeper.merge("one", LEAD, passing)
    await trees.keeper.facts()
    await trees.keeper.remove("two", LEAD)
    assert not hostile.mark.exists(), hostile.mark.read_text()


async def test_nothing_that_a_repository_sets_reaches_the_runtimes_git(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path)
    new_repository(hostile.folder)
    hostile.config("alias.x", "!true", "core.worktree", "/", "remote.origin.promisor", "true", "diff.external", "x")
    (tmp_path / ".gitconfig").write_text("[core]\n\tpager = x\n[alias]\n\ty = !true\n[user]\n\temail = p@x\n")
    git = Git(hostile.folder, ENVIRONMENT | {"HOME": str(tmp_path)})
    ran = await git.run(("config", "--list", "--name-only"))
    names = ran.out.decode().split()
    assert ran.code == 0
    assert "user.email" in names
    assert not {"alias.x", "alias.y", "core.worktree", "remote.origin.promisor", "diff.external"} & set(names)


LEVELS = {"bubblewrap": "bwrap", "landlock": "abi"}


@pytest.fixture(params=LEVELS)
def confinement(request: pytest.FixtureRequest, tmp_path: Path) -> Confinement:
    machine = confinement_of(tmp_path, ENVIRONMENT).machine
    if not getattr(machine, LEVELS[request.param]):
        pytest.skip(f"this machine has no {request.param}")
    only = Machine(bwrap=machine.bwrap) if request.param == "bubblewrap" else Machine(abi=machine.abi)
    return Confinement(only, (str(tmp_path / "secret"), str(tmp_path / "ours")))


async def test_what_a_program_of_the_runtime_started_can_do_is_bounded(
    tmp_path: Path, confinement: Confinement, listener: socket.socket
) -> None:
    for name in ("secret", "ours/open", "work", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secret" / "key").write_text("hunter2")
    (tmp_path / "ours" / "open" / "file").write_text("shown")
    script = (
        f"cat {tmp_path}/secret/key; cat {tmp_path}/ours/open/file; echo x > {tmp_path}/outside/x; "
        f"echo x > {tmp_path}/work/x; echo x > /dev/null && echo fine; "
        f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]} && echo sent"
    )
    words = ["/bin/bash", "-c", script]
    confined = confinement.around(words, read=[str(tmp_path / "ours" / "open")], write=[str(tmp_path / "work")])
    ran = await run_program(confined, ENVIRONMENT)
    assert ran.out.decode() == "shownfine\n", ran
    assert (tmp_path / "work" / "x").exists()
    assert not (tmp_path / "outside" / "x").exists()
    assert not is_connected(listener)


async def test_git_works_at_every_level(tmp_path: Path, confinement: Confinement) -> None:
    trees = Trees(tmp_path)
    git = Git(trees.workspace, ENVIRONMENT | {"HOME": str(tmp_path)}, confinement)
    repository = Repository(git, trees.workspace / ".git", trees.workspace / ".git")
    (trees.workspace / "a.txt").write_text("new\n")
    facts = await git.facts()
    assert facts is not None
    assert facts.changed == ("a.txt",)
    commit = await repository.commit_all(repository.workspace, "second")
    assert commit == trees.git("rev-parse", "HEAD")
    await repository.add_worktree(tmp_path / "tree", "-b", "side", commit)
    assert (tmp_path / "tree" / "a.txt").read_text() == "new\n"
    assert trees.git("worktree", "list", "--porcelain").count("worktree ") == 2
    assert run_git(tmp_path / "tree", "status", "--porcelain") == ""


async def test_a_repository_within_a_worktree_counts_as_a_change(tmp_path: Path) -> None:
    trees = Trees(tmp_path)
    await trees.keeper.create("one", LEAD)
    new_repository(trees.root / "one" / "sub")
    trees.at("one", "add", "sub")
    trees.at("one", "commit", "-qm", "sub")
    assert (await trees.keeper.losses("one")).changed == ("sub",)


async def test_a_commondir_in_the_folder_of_git_is_named_as_the_reason(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path)
    new_repository(hostile.folder)
    common_folder(hostile)
    git = Git(hostile.folder, ENVIRONMENT | {"HOME": str(tmp_path)})
    assert await git.facts() is None
    with pytest.raises(NoRepository, match="commondir leads git to another repository: remove it"):
        await git.run(("rev-parse", "HEAD"))
    with pytest.raises(ToolRefused, match="commondir leads git to another repository: remove it"):
        await find_repository(git)
    assert not hostile.mark.exists()


async def test_a_folder_of_worktrees_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    trees = Trees(tmp_path)
    (tmp_path / "home" / "one").mkdir(parents=True)
    (trees.workspace / ".git" / "worktrees").symlink_to(tmp_path / "home")
    repository = await find_repository(trees.registry.git)
    await repository.forget(trees.root / "one", "one")
    assert (tmp_path / "home" / "one").exists()


@pytest.mark.parametrize("level", [1, 2])
async def test_a_command_that_replaces_the_git_file_of_a_worktree_leads_the_runtimes_git_nowhere(
    tmp_path: Path, level: int
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage, hostile = Cage(tmp_path, level), Hostile(tmp_path / "outside")
    tree = tmp_path / "data" / "tree"
    cage.git("worktree", "add", "-q", "-b", "side", str(tree))
    before = (tree / ".git").read_bytes()
    ran = await cage.run(
        "cp -r $(git rev-parse --git-common-dir) evil; git config -f evil/config core.fsmonitor "
        f"{hostile.script}; echo 'gitdir: evil' > new; mv -f new .git",
        folder=tree,
    )
    assert ((tree / ".git").read_bytes() == before) == (level == 2), ran.output  # Landlock ignores names
    for confinement in (NOTHING, None):
        git = Git(tree, ENVIRONMENT | {"HOME": str(tmp_path)}, confinement)
        await git.facts()
        await git.run(("status",))
    assert not hostile.mark.exists()


async def test_a_repository_that_changes_under_the_runtimes_git_makes_it_run_nothing(tmp_path: Path) -> None:
    trees, hostile = Trees(tmp_path), Hostile(tmp_path)
    await trees.keeper.create("one", LEAD)
    common = trees.workspace / ".git"
    shutil.copytree(common, tmp_path / "evil")
    run_git(trees.workspace, "config", "-f", str(tmp_path / "evil" / "config"), "core.fsmonitor", hostile.script)
    swap = (
        f"while :; do echo {tmp_path}/evil > {common}/commondir; cp {tmp_path}/evil/config {common}/config; "
        f"echo 'gitdir: {tmp_path}/evil' > {trees.root}/one/.git; rm -f {common}/commondir; done"
    )
    with subprocess.Popen(["bash", "-c", swap], stderr=subprocess.DEVNULL) as attacker:
        try:
            for _ in range(10):
                for folder in (trees.workspace, trees.root / "one"):
                    await Git(folder, ENVIRONMENT | {"HOME": str(tmp_path)}).facts()
                with suppress(ToolRefused):  # git reads a `commondir` that is empty for a moment as no repository
                    await trees.keeper.facts()
        finally:
            attacker.kill()
    assert not hostile.mark.exists(), hostile.mark.read_text()
