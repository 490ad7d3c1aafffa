"""At level 2, commands cannot change files that other tools run later, and such new files take no effect."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from tests.adapters.processes.cage import Cage, create_folders, require_level

from callboard.adapters.processes.sandbox import path_guard
from callboard.adapters.processes.sandbox.path_guard import Grants, MovedPath, PathGuard, describe
from callboard.adapters.processes.sandbox.sandbox_paths import find_repository
from callboard.types.records import PathGrant

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cage")
    create_folders(made)
    return made


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "path",
    [
        *(".git/hooks/post-commit", ".git/config", ".git/info/attributes", ".git/modules/x/config"),
        *(".mcp.json", ".callboard/settings.yaml", ".claude/settings.json", ".vscode/tasks.json", ".envrc"),
    ],
)
async def test_what_other_tools_run_is_not_changed(base: Path, path: str) -> None:
    require_level(2)
    cage = Cage(base, 2)
    before = (cage.workspace / path).read_bytes() if (cage.workspace / path).exists() else None
    top = path.partition("/")[0]
    await cage.run(
        f"mkdir -p $(dirname {path}); echo x > {path}; echo x >> {path}; rm -rf {top}; mv {top} moved;"
        f"echo y > new; mv -fT new {top}; mkdir -p $(dirname {path}); echo x > {path}; rm -f new; rm -rf moved"
    )
    after = (cage.workspace / path).read_bytes() if (cage.workspace / path).exists() else None
    assert after == before


def tree(cage: Cage) -> list[str]:
    """Return all paths in the workspace, without git's objects."""
    return sorted(str(path) for path in cage.workspace.rglob("*") if "objects" not in path.parts)


@pytest.mark.parametrize("level", [1, 2])
async def test_a_listing_shows_what_exists_and_nothing_else_inside_and_outside(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    before = tree(cage)
    os.mkfifo(tmp_path / "outside" / "gate")
    os.mkfifo(cage.workspace / "gate")
    before = tree(cage)
    during = list[list[str]]()

    def look() -> None:
        (cage.workspace / "gate").read_text()
        during.append(tree(cage))
        (cage.workspace / "gate").write_text("go\n")

    listed = list[str]()

    async def run() -> None:
        ran = await cage.run("find . -path ./.git/objects -prune -o -print | sort; echo > gate; cat gate")
        listed.append(ran.output)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, look)
        group.start_soon(run)
    inside = listed[0].splitlines()[:-1]
    assert sorted(f"{cage.workspace}/{name[2:]}" for name in inside if name != "." and "objects" not in name) == before
    assert during == [before]
    assert tree(cage) == before


CREATES = {
    "a file": ("echo x > .mcp.json", ".mcp.json"),
    "a folder": ("mkdir .vscode && echo x > .vscode/tasks.json", ".vscode"),
    "a link": ("ln -s /etc/passwd .envrc", ".envrc"),
    "a moved file": ("echo x > new; mv new .npmrc", ".npmrc"),
    "a part of a new folder": ("mkdir -p .github/workflows; echo x > .github/workflows/a.yml", ".github/workflows"),
    "a part of git": ("echo /tmp > .git/commondir", ".git/commondir"),
    "objects of another repository": (
        "mkdir -p .git/objects/info; echo /tmp > .git/objects/info/alternates",
        ".git/objects/info/alternates",
    ),
    "git's other settings": ("echo x > .git/config.worktree", ".git/config.worktree"),
    "what only some tools read": ("echo x > sitecustomize.py", "sitecustomize.py"),
}


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("kind", CREATES)
async def test_a_protected_path_that_a_command_creates_is_moved_aside_and_reported(
    tmp_path: Path, level: int, kind: str
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage, (command, path) = Cage(tmp_path, level), CREATES[kind]
    ran = await cage.run(command)
    assert not os.path.lexists(cage.workspace / path)
    assert os.path.lexists(cage.workspace / f"{path}.quarantined")
    assert f"{cage.workspace}/{path} was moved to {cage.workspace}/{path}.quarantined" in ran.output


async def test_it_is_moved_aside_while_the_command_still_runs(tmp_path: Path) -> None:
    require_level(1)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 1)
    ran = await cage.run("echo x > .mcp.json; while test -e .mcp.json; do sleep 0.01; done; echo y > .mcp.json")
    assert ran.exit_code == 0
    assert (cage.workspace / ".mcp.json.quarantined").read_text() == "x\n"
    assert (cage.workspace / ".mcp.json.quarantined-2").read_text() == "y\n"


async def test_a_command_that_goes_on_creating_one_is_ended(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    ran = await cage.run("while :; do test -e .mcp.json || echo x > .mcp.json; done")
    assert not ran.timed_out
    assert "went on creating such files" in ran.output
    assert not (cage.workspace / ".mcp.json").exists()


@pytest.mark.parametrize("path", [".mcp.json", ".vscode/tasks.json"])
async def test_what_a_person_approved_is_left_alone_also_by_a_command_in_the_background(
    tmp_path: Path, path: str
) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    os.mkfifo(cage.workspace / "gate")
    output, keep = cage.base / "data" / "session" / "bg.out", cage.base / "data" / "session" / "call.out"
    pid, started = await cage.launcher.start("echo > gate; cat gate", cage.workspace, output)
    await anyio.to_thread.run_sync((cage.workspace / "gate").read_text)
    grants = (PathGrant(path=str(cage.workspace / path), access="write"),)
    command = f"mkdir -p $(dirname {path}) && echo approved > {path}; echo x > .envrc"
    ran = await cage.launcher.run(command, cage.workspace, timeout=30, keep=keep, grants=grants)
    assert ".envrc.quarantined" in ran.report
    await anyio.to_thread.run_sync((cage.workspace / "gate").write_text, "end\n")
    assert await cage.launcher.wait(pid, started, output) == 0
    assert (cage.workspace / path).read_text() == "approved\n"
    assert ".envrc.quarantined" in cage.launcher.report(output)
    assert path not in ran.report + cage.launcher.report(output)
    await cage.run(f"rm -rf {path}; echo not approved > {path}")  # a grant ends with its command
    assert "not approved" not in ((cage.workspace / path).read_text() if (cage.workspace / path).exists() else "")


async def test_a_link_does_not_lead_the_check_out_of_the_folder(tmp_path: Path) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    (cage.outside / "workflows").mkdir()
    await cage.run(f"ln -s {cage.outside} .github")
    assert (cage.outside / "workflows").exists()


async def test_what_a_person_creates_before_a_command_starts_is_left_alone(tmp_path: Path) -> None:
    """The protected paths are computed a moment before the command starts."""
    guard = PathGuard([f"{tmp_path}//.mcp.json", f"{tmp_path}//.envrc"], Grants(str(tmp_path / "grants")))
    (tmp_path / ".mcp.json").write_text("theirs")
    assert guard.late() == [f"{tmp_path}/.mcp.json"]
    (tmp_path / ".envrc").write_text("of the command")
    guard.check()
    assert [one.path for one in guard.moved] == [f"{tmp_path}/.envrc"]
    guard.close()


@pytest.mark.parametrize("victims", ["our process", "our process and the host"])
async def test_kill_9_leaves_nothing_that_takes_effect(tmp_path: Path, victims: str) -> None:
    """The record of a command outlives it: the process that runs the next command does the check."""
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    os.mkfifo(cage.workspace / "gate")
    before = tree(cage)
    output = cage.base / "data" / "session" / "bg.out"
    pid, started = await cage.launcher.start("echo > gate; sleep 300", cage.workspace, output)
    await anyio.to_thread.run_sync((cage.workspace / "gate").read_text)
    assert tree(cage) == before
    os.kill(pid, signal.SIGSTOP)  # otherwise it would move the files aside at once
    (cage.workspace / ".mcp.json").write_text("as if the command had created it")
    os.kill(pid, signal.SIGKILL)
    if victims == "our process":
        await cage.launcher.wait(pid, started, output)
        text = output.read_text()
    else:
        os.waitpid(pid, 0)
        text = (await cage.run("true")).output
    assert "sleep 300`, which was killed" in text
    assert [name for name in tree(cage) if name not in before] == [f"{cage.workspace}/.mcp.json.quarantined"]


async def test_an_empty_git_folder_is_no_repository(tmp_path: Path) -> None:
    create_folders(tmp_path)
    assert find_repository(str(tmp_path / "work")) is not None
    shutil.rmtree(tmp_path / "work" / ".git")
    (tmp_path / "work" / ".git").mkdir()
    assert find_repository(str(tmp_path / "work")) is None


def test_guards_of_commands_that_overlap_all_report_what_one_of_them_moved(tmp_path: Path) -> None:
    """Whichever guard is quicker: both report the file, and neither reports a failure to move it."""
    path, log = tmp_path / ".envrc", str(tmp_path / "grants")
    for number in range(50):
        guards = [PathGuard([f"{tmp_path}//.envrc"], Grants(log)) for _ in range(2)]
        path.write_text(str(number))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(PathGuard.check, guards))
        assert sum(len(guard.moved) for guard in guards) == 1
        target = f"{path}.quarantined" if not number else f"{path}.quarantined-{number + 1}"
        assert Path(target).read_text() == str(number)
        for guard in guards:
            assert guard.report().count(f"{path} was moved to {target}\n") == 1
            assert "COULD NOT" not in guard.report()
            guard.close()
        assert any("or another one that ran at the same time" in guard.report() for guard in guards)
    (later := PathGuard([f"{tmp_path}//.envrc"], Grants(log))).check()
    assert later.report() == ""
    later.close()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("exists", [False, True])
async def test_a_plugin_keeps_its_data_in_the_folder_of_settings_and_changes_nothing_that_is_loaded(
    tmp_path: Path, level: int, exists: bool
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    folder = cage.workspace / ".claude"
    if exists:
        (folder / "hooks").mkdir(parents=True)
        (folder / "check.sh").write_text("exit 0\n")
    data = "ralph-loop.local.md"
    ran = await cage.run(f"mkdir -p .claude && echo state > .claude/{data} && sed -i s/state/next/ .claude/{data}")
    assert (ran.exit_code, ran.report) == (0, "")
    assert (folder / data).read_text() == "next\n"
    ran = await cage.run(
        "cd .claude; for n in settings.json CLAUDE.local.md settings.local.json; do echo x > $n; done; "
        "mkdir agents commands; rm -rf hooks; mkdir -p rules skills/a; echo x > rules/a.md"
    )
    for name in ("settings.json", "settings.local.json", "CLAUDE.local.md", "agents", "commands", "rules", "skills"):
        assert not os.path.lexists(folder / name), name
        assert f"{folder}/{name} was moved" in ran.report
    assert (folder / data).read_text() == "next\n"
    if exists and level == 2:
        await cage.run("echo x > .claude/check.sh; rm -rf .claude; mv .claude away; mkdir .claude")
        assert (folder / "check.sh").read_text() == "exit 0\n"
        assert (folder / "hooks").is_dir()


@pytest.mark.parametrize("command", ["ln -s hidden .claude", "mkdir x; ln -s ../hidden x/agents; mv x .claude"])
async def test_no_link_leads_around_the_protected_parts_of_a_folder(tmp_path: Path, command: str) -> None:
    require_level(1)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 1)
    await cage.run(f"mkdir -p hidden/agents; echo x > hidden/settings.json; {command}")
    assert not (cage.workspace / ".claude" / "settings.json").exists()
    assert not (cage.workspace / ".claude" / "agents").exists()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("granted", ["outside", "outside/dev/plugin", "outside/dev/plugin/hooks/new.sh"])
async def test_no_approval_lets_a_command_change_a_plugin(tmp_path: Path, level: int, granted: str) -> None:
    """A command with a grant for the plugin, or for a folder above it, may change only the files beside the plugin."""
    require_level(level)
    create_folders(tmp_path)
    hook = tmp_path / "outside/dev/plugin/hooks/guard.sh"
    hook.parent.mkdir(parents=True)
    hook.write_text("echo hook\n")
    cage = Cage(tmp_path, level)
    grants = (PathGrant(path=str(tmp_path / granted), access="write"),)
    attack = (
        f"cd {tmp_path}/outside; cat dev/plugin/hooks/guard.sh; echo evil > dev/plugin/hooks/guard.sh; "
        "echo evil > dev/plugin/hooks/new.sh; rm -f dev/plugin/hooks/guard.sh; mv dev/plugin gone; mv dev gone; "
        "mkdir -p dev/plugin/hooks; echo evil > dev/plugin/hooks/guard.sh; echo mine > kept"
    )
    keep = cage.base / "data" / "session" / "call.out"
    unguarded = cage.launcher
    ran = await unguarded.with_readable((hook.parent.parent,)).run(
        attack, cage.workspace, timeout=30, keep=keep, grants=grants
    )
    assert ran.output.startswith("echo hook\n"), ran.output
    assert hook.read_text() == "echo hook\n"
    assert [path.name for path in hook.parent.iterdir()] == ["guard.sh"]
    assert (cage.outside / "kept").read_text() == ("mine\n" if granted == "outside" else "kept\n")
    await unguarded.run(
        attack, cage.workspace, timeout=30, keep=keep, grants=(PathGrant(path=str(cage.outside), access="write"),)
    )
    assert hook.read_text() == "evil\n", "without the guard the attack works"


def test_guards_that_move_files_at_the_same_time_replace_nothing(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"new-{number}").write_text(str(number))
    folder = os.open(tmp_path, os.O_RDONLY)

    def rename(number: int) -> bool:
        return path_guard.rename_new(folder, f"new-{number}", "target")

    with ThreadPoolExecutor(8) as pool:
        renamed = list(pool.map(rename, range(20)))
    os.close(folder)
    assert renamed.count(True) == 1
    assert (tmp_path / "target").read_text() == str(renamed.index(True))
    assert len(list(tmp_path.glob("new-*"))) == 19


def test_grants_and_moves_are_trimmed_when_no_command_needs_them(tmp_path: Path) -> None:
    grants = tmp_path / "grants"
    path_guard.add_grants(str(tmp_path), (f"/w/{number}" for number in range(10_000)))
    earlier = Grants(str(grants))
    assert path_guard.check_records(str(tmp_path)) == ""
    assert not grants.exists()
    path_guard.add_grants(str(tmp_path), ["/w/new"])
    assert earlier.read() == {"/w/new"}
    assert Grants(str(grants), earlier.mark).read() == {"/w/new"}
    assert Grants(str(grants)).read() == frozenset()


def test_a_path_that_a_command_creates_again_and_again_is_reported_in_one_line() -> None:
    moved = [MovedPath("/w/a", f"/w/a.quarantined{number}") for number in ("", "-2", "-3")] + [MovedPath("/w/b", "")]
    lines = describe(moved).splitlines()
    assert lines[1:3] == [
        "  /w/a was moved to /w/a.quarantined, and 2 more times to such a name",
        "  /w/b COULD NOT BE MOVED: delete it",
    ]
