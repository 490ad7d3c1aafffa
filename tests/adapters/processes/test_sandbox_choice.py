"""The sandbox level in force, and the messages and refusals when it is lower than it should be."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.adapters.processes.cage import Cage, create_folders, require_level

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.processes.sandbox.machine import Machine
from callboard.adapters.processes.sandbox.restrictions import PROTECTED_NAMES, PROTECTED_SUBFOLDERS
from callboard.adapters.processes.sandbox.sandbox import Sandbox, SandboxLevel, choose
from callboard.core.permissions.sensitive_paths import is_protected
from callboard.types.errors import CommandNotRun, ToolRefused

pytestmark = pytest.mark.anyio
NONE = Machine(0, "", {1: "no Landlock", 2: "install bubblewrap"})
ONE = Machine(7, "", {2: "install bubblewrap"})
BEST = Machine(7, "/usr/bin/bwrap", {})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("machine", "hosts", "attended", "level", "network", "refused", "told"),
    [
        (BEST, (), True, 2, False, False, False),
        (BEST, (), False, 2, False, False, False),
        (BEST, ("example.org",), True, 3, False, False, False),
        (BEST, ("example.org",), False, 3, False, False, False),
        (BEST, ("*",), True, 2, True, False, False),
        (ONE, (), True, 1, False, False, True),
        (ONE, (), False, 1, False, False, True),
        (ONE, ("*",), True, 1, True, False, True),
        (ONE, ("*",), False, 1, False, False, True),
        (NONE, (), True, 0, True, False, True),
        (NONE, (), False, 0, True, True, False),
    ],
)
def test_the_best_level_is_taken_and_nobody_watches_none(
    machine: Machine, hosts: tuple[str, ...], attended: bool, level: int, network: bool, refused: bool, told: bool
) -> None:
    choice = choose(None, machine, hosts, attended=attended, any_level=False)
    assert (choice.level, choice.network, bool(choice.refusal), bool(choice.notice)) == (level, network, refused, told)


def test_a_person_may_let_commands_run_without_walls_where_nobody_is() -> None:
    assert not choose(None, NONE, (), attended=False, any_level=True).refusal
    assert not choose(0, NONE, (), attended=False, any_level=False).refusal


@pytest.mark.parametrize(("wanted", "machine"), [(1, NONE), (2, NONE), (2, ONE), (3, ONE)])
def test_a_level_that_the_machine_cannot_do_is_refused_with_what_to_install(wanted: int, machine: Machine) -> None:
    with pytest.raises(ValueError, match="Landlock" if wanted == 1 else "install bubblewrap"):
        choose(wanted, machine, (), attended=True, any_level=False)


async def test_no_command_runs_where_the_sandbox_is_refused(tmp_path: Path) -> None:
    choice = choose(None, NONE, (), attended=False, any_level=False)
    launcher = ShellLauncher(tmp_path, {"PATH": "/usr/bin:/bin"}, (), Sandbox(choice, NONE))
    with pytest.raises(ToolRefused, match="install bubblewrap"):
        await launcher.run("touch made", tmp_path, timeout=10, keep=tmp_path / "out")
    with pytest.raises(ToolRefused):
        await launcher.start("touch made", tmp_path, tmp_path / "out")
    assert not (tmp_path / "made").exists()


def test_what_is_shut_is_what_the_rules_protect() -> None:
    ours = {".callboard"}  # has a rule of its own
    for name in {*PROTECTED_NAMES, *PROTECTED_SUBFOLDERS} - ours:
        folder = is_protected((*name.split("/"), "x"))
        assert is_protected(name.split("/")) or folder or name in {".lefthook", ".bundle"}, name


@pytest.mark.parametrize("level", [0, 2])
async def test_a_background_command_is_told_and_ended_alike_at_every_level(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    output = tmp_path / "data" / "session" / "bg.out"
    pid, started = await cage.launcher.start("echo begun; exit 3", cage.workspace, output)
    assert await cage.launcher.wait(pid, started, output) == 3
    assert output.read_text() == "begun\n"
    os.mkfifo(cage.workspace / "ready")
    pid, started = await cage.launcher.start("echo > ready; sleep 300", cage.workspace, output)
    await anyio.to_thread.run_sync((cage.workspace / "ready").read_text)
    assert await cage.launcher.end(pid, started)
    assert await cage.launcher.wait(pid, started, output) == 143
    assert not (cage.workspace / ".mcp.json").exists()


async def test_a_background_command_and_another_one_create_nothing_protected(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    output = tmp_path / "data" / "session" / "bg.out"
    (cage.workspace / "gate").touch()
    command = "while [ -e gate ]; do sleep 0.05; done; echo x > .mcp.json"
    pid, started = await cage.launcher.start(command, cage.workspace, output)
    ran = await cage.run("rm gate; echo x > .mcp.json")
    await cage.launcher.wait(pid, started, output)
    assert ".mcp.json was moved to" in ran.output + output.read_text()
    assert not (cage.workspace / ".mcp.json").exists()


async def test_of_a_worktree_only_its_own_part_of_git_can_be_changed(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    tree = tmp_path / "data" / "trees" / "one"
    cage.git("worktree", "add", "-q", "-b", "side", str(tree))
    git = "git -c user.name=n -c user.email=n@example.org"
    ran = await cage.run(f"echo x > new; git add new; {git} commit -qm side; git log --oneline | wc -l", folder=tree)
    assert (ran.exit_code, ran.output) == (0, "2\n")
    assert "side" in cage.git("log", "-1", "--format=%s", "side")
    common = cage.workspace / ".git"
    for path in (
        common / "hooks/x",
        common / "index",
        common / "worktrees/one/commondir",
        tree / ".git",
        cage.workspace / "y",
    ):
        ran = await cage.run(f"echo x > {path}", folder=tree)
        assert ran.exit_code != 0, path
    assert cage.git("status", "--short") == ""


async def test_a_path_that_a_person_opens_is_open(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    launcher = cage.launcher
    assert launcher.sandbox.paths is not None
    opened = (f"{cage.workspace}/.vscode", str(cage.outside))
    sandbox_paths = replace(launcher.sandbox.paths, writable=opened)
    launcher = replace(launcher, sandbox=Sandbox(SandboxLevel(2), launcher.sandbox.machine, sandbox_paths))
    command = f"mkdir .vscode && echo x > .vscode/a && echo x > {cage.outside}/made"
    ran = await launcher.run(command, cage.workspace, timeout=30, keep=tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    assert (cage.outside / "made").exists()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create another user's private folder")


@pytest.fixture
def private() -> Iterator[Path]:
    """Yield a folder of another user, where commands would find it if they could enter it."""
    folder = Path(tempfile.mkdtemp(prefix="callboard-test-", dir="/opt"))
    os.chown(folder, 12345, 12345)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_a_socket_in_the_folder_of_another_user_stops_no_command_of_root(
    tmp_path: Path, private: Path, mode: int
) -> None:
    require_level(2)
    create_folders(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{private}/socket")
        os.chmod(f"{private}/socket", 0o777)
        listening.listen()
        private.chmod(mode)
        ran = await Cage(tmp_path, 2).run(f"test -S {private}/socket || echo hidden")
    assert (ran.exit_code, ran.output) == (0, "hidden\n")


@needs_root
async def test_a_hidden_path_that_no_command_can_reach_stops_none(tmp_path: Path, private: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    (private / "secret").mkdir()
    private.chmod(0o700)
    launcher = Cage(tmp_path, 2).launcher
    assert launcher.sandbox.paths is not None
    sandbox_paths = replace(launcher.sandbox.paths, hidden=(f"{private}/secret",))
    launcher = replace(launcher, sandbox=Sandbox(SandboxLevel(2), launcher.sandbox.machine, sandbox_paths))
    ran = await launcher.run(f"ls {private}/secret", tmp_path / "work", timeout=30, keep=tmp_path / "out")
    assert "Permission denied" in ran.output


async def test_a_sandbox_that_cannot_start_is_no_outcome_of_the_command(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    launcher = Cage(tmp_path, 2).launcher
    broken = replace(launcher.sandbox.machine, bwrap="/bin/false")
    launcher = replace(launcher, sandbox=replace(launcher.sandbox, machine=broken))
    for command in ("true", "exit 3"):
        with pytest.raises(CommandNotRun, match="no test has failed"):
            await launcher.run(command, tmp_path / "work", timeout=30, keep=tmp_path / "out")
    pid, started = await launcher.start("true", tmp_path / "work", tmp_path / "bg")
    assert await launcher.wait(pid, started, tmp_path / "bg") == 125
    assert "was not run" in (tmp_path / "bg").read_text()


@pytest.mark.parametrize("code", [0, 1, 125, 126, 127])
async def test_an_exit_code_of_the_command_is_never_taken_for_that(tmp_path: Path, code: int) -> None:
    require_level(2)
    create_folders(tmp_path)
    assert (await Cage(tmp_path, 2).run(f"exit {code}")).exit_code == code
