"""What other tools run later cannot be changed at level 2, nor made; and nothing is left in the workspace."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.cage import Cage, build, need

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
