"""With thousands of mutated paths, no tool raises, or shows or changes anything outside, whatever was decided."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.adapters.shell.outside_world import OutsideWorld, text_of

from callboard.adapters.shell.policy_judge import PolicyJudge
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.roots import RootCache
from callboard.adapters.tools.search import Glob
from callboard.ports.environment import PermissionQuery
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import ToolCall

pytestmark = pytest.mark.anyio

OUTSIDE = "what stands outside"
SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m", permission_mode="acceptEdits")
PIECES = (
    *(
        "src",
        "a.py",
        ".env",
        "out",
        "in",
        "pipe",
        "loop",
        "gone",
        "..",
        ".",
        "",
        "~",
        "*",
        "?",
        "{..,src}",
        "[a]",
        "%2e%2e",
    ),
    *("work", "work-other", "secret.txt", "state", "db", ".callboard", ".CALLBOARD", "settings.yaml", ".git", "config"),
    *(
        "proc",
        "self",
        "cwd",
        "root",
        "fd",
        "0",
        "dev",
        "null",
        "zero",
        "etc",
        "passwd",
        "tmp",
        "\u202e",
        "\u200b",
        "e\u0301",
    ),
    *("\ud800", "\0", "\n", " ", "a" * 300, "-rf", "$HOME", "`id`", "\uff0e\uff0e", "\u2215etc", "CON", "a\\..\\b"),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    world = OutsideWorld(tmp_path)
    for name in ("src/a.py", ".env", ".git/config", ".callboard/settings.yaml", "[a]/a.py"):
        world.write(name, "inside")
    for place in ("work-other", "outside"):
        (world.base / place).mkdir(exist_ok=True)
        for name in ("secret.txt", "a.py"):
            (world.base / place / name).write_text(OUTSIDE)
    (world.base / "state/db").write_text(OUTSIDE)
    (world.root / "out").symlink_to(world.base / "outside")
    (world.root / "in").symlink_to("src")
    (world.root / "loop").symlink_to("loop")
    (world.root / "src/out").symlink_to(world.base / "outside/secret.txt")
    os.mkfifo(world.root / "pipe")
    return world


def random_path(dice: Random, base: Path) -> str:
    """Return a path of a few random pieces."""
    start = dice.choice(("", "", "", "/", "//", f"{base}/", f"{base}/work/", f"{base}/work", "~/", "./", "../"))
    path = start + dice.choice(("/", "/", "/", "//", "/./")).join(dice.choices(PIECES, k=dice.randint(1, 6)))
    return path + dice.choice(("", "", "", "/", "/.", "/..", "\0", " "))


async def _fuzz(world: OutsideWorld, seed: int, times: int) -> Counter[str]:
    dice, judge, root_cache = Random(seed), PolicyJudge((), (), ()), RootCache(world.root)
    tools = {tool.spec.name: tool for tool in (*file_tools(root_cache), Glob(root_cache))}
    before = {path: path.read_text() for path in world.base.glob("[!w]*/*")} | {
        path: path.read_text() for path in (world.base / "work-other").iterdir()
    }
    told: Counter[str] = Counter()
    for number in range(times):
        path = random_path(dice, world.base)
        name = dice.choice(("read_file", "read_file", "write_file", "glob"))
        given = {"path": path} | {"write_file": {"content": "made"}, "glob": {"pattern": "*"}}.get(name, {})
        call = ToolCall(id="c", use_id="c", name=name, input=given)
        folders = world.context().folders
        query = PermissionQuery(call=call, tool=tools[name].spec, spec=SPEC, folders=folders, authority="person")
        decision = await judge.judge(query)
        told[decision.decision] += 1
        if name == "glob" and number % 4:
            continue  # it walks in a thread
        outcome = await world.run(tools[name], "", **given)  # as if a person had approved it
        assert OUTSIDE not in text_of(outcome), (seed, path)
        if decision.decision == "allow" and not outcome.is_error and name != "glob" and outcome.data:
            assert Path(str(outcome.data["path"])).is_relative_to(world.root), (seed, path)
    after = {path: path.read_text() for path in before}
    assert after == before
    assert {path.name for path in (world.base / "outside").iterdir()} == {"secret.txt", "a.py"}
    return told


async def test_mutated_paths_show_and_change_nothing_outside(world: OutsideWorld) -> None:
    told = await _fuzz(world, 7, 2_500)
    assert min(told[decision] for decision in ("allow", "ask", "deny")) > 50


@pytest.mark.soak
async def test_very_many_mutated_paths_show_and_change_nothing_outside(world: OutsideWorld, soak: int) -> None:
    for seed in range(10 * soak):
        await _fuzz(world, seed, 10_000)
