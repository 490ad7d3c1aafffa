"""Between the check of a path and its use, nothing leads out of the agent's folder, whatever is swapped meanwhile."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.adapters.shell.outside_world import OutsideWorld, text_of

from callboard.adapters.shell.policy_judge import PolicyJudge, parse_rules
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.roots import RootCache
from callboard.adapters.tools.search import search_tools
from callboard.ports.environment import PermissionQuery
from callboard.ports.tool import Tool
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import ToolCall

pytestmark = pytest.mark.anyio

OUTSIDE = "what stands outside"
SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m", permission_mode="acceptEdits")
_AT_FDCWD, _EXCHANGE = -100, 2


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class RaceWorld(OutsideWorld):
    """A workspace, and beside it files that no agent may see or change."""

    def lay_out(self) -> None:
        self.outside = self.base / "outside"
        self.outside.mkdir()
        (self.outside / "a.txt").write_text(f"{OUTSIDE}\n")
        self.write("real/a.txt", "inside\n")
        (self.root / "trap").symlink_to(self.outside)
        (self.root / "real/bait").symlink_to(self.outside / "a.txt")
        (self.root / "real/same").symlink_to("a.txt")
        self.tools: dict[str, Tool] = {
            tool.spec.name: tool
            for root_cache in (RootCache(self.root),)
            for tool in (*file_tools(root_cache), *search_tools(self.root, {}, (), root_cache))
        }
        self.judge = PolicyJudge((), (), ())

    async def call(self, name: str, **given: object) -> tuple[bool, str]:
        """Judge a call, and run it if allowed; return whether it was allowed, and the text that the agent reads."""
        tool, context = self.tools[name], self.context()
        call = ToolCall(id="c", use_id="c", name=name, input=given)
        query = PermissionQuery(call=call, tool=tool.spec, spec=SPEC, folders=context.folders, authority="person")
        decision = await self.judge.judge(query)
        if decision.decision != "allow":
            return False, decision.why
        return True, text_of(await self.run(tool, "", **given))

    @property
    def is_unchanged(self) -> bool:
        return {path.name: path.read_text() for path in self.outside.iterdir()} == {"a.txt": f"{OUTSIDE}\n"}


@pytest.fixture
def world(tmp_path: Path) -> RaceWorld:
    yard = RaceWorld(tmp_path)
    yard.lay_out()
    return yard


@contextmanager
def swap_names(one: Path, other: Path) -> Generator[None]:
    """Swap two names again and again during the block, each time in one step."""
    over, rename = threading.Event(), ctypes.CDLL(None).renameat2
    names = os.fsencode(one), os.fsencode(other)

    def swap() -> None:
        while not over.is_set():
            rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


SWAPS = {
    "a folder and a link out": ("real", "trap", "real/a.txt"),
    "a link inside and a link out": ("real/same", "real/bait", "real/same"),
    "a file and a link out": ("real/a.txt", "real/bait", "real/a.txt"),
}


async def _race(yard: RaceWorld, swap: str, times: int) -> dict[str, set[bool]]:
    one, other, path = SWAPS[swap]
    met: dict[str, set[bool]] = {}
    with swap_names(yard.root / one, yard.root / other):
        for number in range(times):
            calls = {
                "read_file": {"path": path},
                "write_file": {"path": f"real/new{number}.txt", "content": "made"},
                "edit_file": {"path": path, "old_text": "inside", "new_text": "inside"},
                "grep": {"pattern": "stands|inside", "path": "real"},
                "glob": {"pattern": "**/*.txt", "path": "real"},
            }
            for name, given in calls.items():
                if number % 4 and name in ("grep", "glob"):
                    continue  # they start a process or a thread
                allowed, told = await yard.call(name, **given)
                assert OUTSIDE not in told, name
                met.setdefault(name, set()).add(allowed)
            assert yard.is_unchanged
    return met


@pytest.mark.parametrize("swap", SWAPS)
async def test_nothing_outside_is_shown_or_changed_while_links_are_swapped(world: RaceWorld, swap: str) -> None:
    met = await _race(world, swap, 40)
    assert True in met["read_file"], "the race did not occur: nothing was allowed"


@pytest.mark.soak
@pytest.mark.parametrize("swap", SWAPS)
async def test_nothing_outside_is_shown_or_changed_for_long(world: RaceWorld, swap: str, soak: int) -> None:
    met = await _race(world, swap, 2_000 * soak)
    assert met["read_file"] == {True, False}


async def test_a_folder_that_is_put_in_the_place_of_the_agents_own_is_not_looked_into(world: RaceWorld) -> None:
    assert await world.call("read_file", path="real/a.txt") == (True, "     1\tinside")
    (world.outside / "real").mkdir()
    (world.outside / "real/a.txt").write_text(OUTSIDE)
    world.root.rename(world.base / "moved")
    for put in (lambda: world.root.symlink_to(world.outside), lambda: world.outside.rename(world.root)):
        put()
        for name, given in (
            ("read_file", {"path": "real/a.txt"}),
            ("write_file", {"path": "new.txt", "content": "x"}),
            ("grep", {"pattern": "stands"}),
            ("glob", {"pattern": "**"}),
        ):
            allowed, told = await world.call(name, **given)
            assert OUTSIDE not in told
            assert not allowed or "replaced" in told or "outside your folder" in told or "changed while" in told, told
        assert sorted(path.name for path in (world.base / "moved").iterdir()) == ["real", "trap"]
        if world.root.is_symlink():
            world.root.unlink()
    assert not (world.root / "new.txt").exists()


async def test_a_folder_that_was_removed_and_made_anew_is_used(world: RaceWorld) -> None:
    assert (await world.call("read_file", path="real/a.txt"))[0]
    for path in (world.root / "real/bait", world.root / "real/same", world.root / "real/a.txt", world.root / "trap"):
        path.unlink()
    (world.root / "real").rmdir()
    world.root.rmdir()
    world.write("b.txt", "anew")
    assert await world.call("read_file", path="b.txt") == (True, "     1\tanew")


async def test_a_search_leaves_out_what_would_be_asked_for_or_denied_by_itself(world: RaceWorld) -> None:
    world.write(".env", "KEY=stands")
    world.write("secret/plan.md", "stands here")
    world.write("draft.md", "stands too")
    world.write("src/b.txt", "it stands")
    rules = parse_rules(["Read(secret/**)", "Read(./draft.md)", "Edit(src/**)", "Bash"], "")
    world.tools["grep"] = search_tools(world.root, {}, rules[:2])[1]
    told = (await world.call("grep", pattern="stands"))[1]
    assert "src/b.txt:1:it stands" in told
    assert "KEY" not in told
    assert "stands here" not in told
    assert "stands too" not in told
    assert "[3 files that may hold secrets or are not read unasked were left out." in told
    named = await world.run(world.tools["grep"], pattern="KEY", path=".env")
    assert "KEY=stands" in text_of(named)
