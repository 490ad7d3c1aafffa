"""What other tools run later cannot be changed at level 2, nor made; and nothing is left in the workspace."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from tests.adapters.cage import Cage, build, need

from callboard.adapters.sandbox.ground import find_repository

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cage")
    build(made)
    return made


@pytest.mark.parametrize(
    "path",
    [
        *(".git/hooks/post-commit", ".git/config", ".git/info/attributes", ".git/modules/x/config"),
        *(".mcp.json", ".callboard/settings.yaml", ".claude/settings.json", ".vscode/tasks.json", ".envrc"),
    ],
)
async def test_what_other_tools_run_is_not_changed(base: Path, path: str) -> None:
    need(2)
    cage = Cage(base, 2)
    before = (cage.workspace / path).read_bytes() if (cage.workspace / path).exists() else None
    top = path.partition("/")[0]
    await cage.run(
        f"mkdir -p $(dirname {path}); echo x > {path}; echo x >> {path}; rm -rf {top}; mv {top} moved;"
        f"echo y > new; mv -fT new {top}; mkdir -p $(dirname {path}); echo x > {path}; rm -f new; rm -rf moved"
    )
    after = (cage.workspace / path).read_bytes() if (cage.workspace / path).exists() else None
    assert after == before


async def test_nothing_is_left_in_the_workspace(base: Path) -> None:
    need(2)
    cage = Cage(base, 2)
    before = sorted(str(path) for path in cage.workspace.rglob("*") if "objects" not in path.parts)
    ran = await cage.run("ls -a; test -d .mcp.json")
    assert ran.exit_code == 0
    assert sorted(str(path) for path in cage.workspace.rglob("*") if "objects" not in path.parts) == before


async def test_commands_that_overlap_take_no_place_from_each_other(tmp_path: Path) -> None:
    """What stands in a place for one command is no folder of the workspace to the next, and may go at any time."""
    need(2)
    build(tmp_path)
    cage = Cage(tmp_path, 2)
    shutil.rmtree(cage.workspace / ".git")
    done = dict[int, tuple[int | None, str]]()

    async def one(number: int) -> None:
        keep = cage.base / "data" / "session" / f"call{number}.out"
        await anyio.sleep(number * 0.02)
        ran = await cage.launcher.run("sleep 0.05; test -d .git; echo ran", cage.workspace, 60, keep)
        done[number] = (ran.exit_code, ran.output)

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(one, number)
    assert set(done.values()) == {(0, "ran\n")}, done
    assert sorted(path.name for path in cage.workspace.iterdir()) == ["file"]


async def test_an_empty_git_folder_that_stands_in_a_place_is_no_repository(tmp_path: Path) -> None:
    build(tmp_path)
    assert find_repository(str(tmp_path / "work")) is not None
    shutil.rmtree(tmp_path / "work" / ".git")
    (tmp_path / "work" / ".git").mkdir()
    assert find_repository(str(tmp_path / "work")) is None
