"""The path rules of an agent in a worktree apply to the folder in which its tools run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import LEAD, Trees

from callboard.adapters.shell.policy_judge import PolicyJudge
from callboard.adapters.system.archive import FileArchive
from callboard.adapters.tools.roots import RootCache
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.tool import Effect, Folders, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.records import Json, ToolCall

pytestmark = pytest.mark.anyio
SPEC = AgentSpec(name="alice", kind="teammate", agent_type="teammate", model="m")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


# Paths that an agent in a worktree may use


@pytest.fixture
async def setting(trees: Trees) -> tuple[Trees, Folders]:
    for name in ("one", "one-2"):
        await trees.keeper.create(name, LEAD)
    (trees.base / "state").mkdir()
    archive = FileArchive(trees.workspace, trees.base / "data" / "s1", (trees.base / "state",))
    return trees, archive.folders(SPEC.model_copy(update={"folder": str(trees.root / "one")}))


@pytest.mark.parametrize(
    ("path", "decision"),
    [
        ("a.txt", "allow"),
        ("./deep/../a.txt", "allow"),
        ("{tree}/a.txt", "allow"),
        ("../one-2/a.txt", "ask"),
        ("{tree}-2/a.txt", "ask"),
        ("{work}/a.txt", "ask"),
        ("deep/../../../../work/a.txt", "ask"),
        ("out", "ask"),
        ("out/a.txt", "ask"),
        (".env", "ask"),
        ("../../../state/callboard.db", "deny"),
        ("{work}/.git/config", "allow"),
    ],
)
async def test_reading_is_judged_where_the_tool_runs(setting: tuple[Trees, Folders], path: str, decision: str) -> None:
    trees, folders = setting
    (trees.root / "one" / "out").symlink_to(trees.workspace)
    given = path.format(tree=trees.root / "one", work=trees.workspace)
    ruling = await decide(folders, "read_file", {"path": given})
    assert ruling.decision == decision
    ruling = await decide(folders, "bash", {"command": f"cat {given}"})
    assert ruling.decision == decision


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("a.txt", "E"),
        ("{work}/a.txt", "O"),
        ("../one-2/a.txt", "O"),
        ("out/a.txt", "O"),
        (".git", "H"),
        ("AGENTS.md", "H"),
        ("{work}/.git/hooks/pre-commit", "H"),
        ("{work}/.git/config", "H"),
        ("{work}/.git/worktrees/one/config.worktree", "H"),
        (".callboard/settings.yaml", "K"),
    ],
)
async def test_writing_is_judged_where_the_tool_runs(setting: tuple[Trees, Folders], path: str, rule: str) -> None:
    trees, folders = setting
    (trees.root / "one" / "out").symlink_to(trees.workspace)
    given = path.format(tree=trees.root / "one", work=trees.workspace)
    for tool, what in (("write_file", {"path": given, "content": ""}), ("bash", {"command": f"touch {given}"})):
        ruling = await decide(folders, tool, what)
        assert (ruling.decision, ruling.rule) == ("deny" if rule == "K" else "ask", rule), tool


@pytest.mark.parametrize("command", ["git status", "git log", "git diff HEAD~0", "git ls-files"])
async def test_git_reads_in_a_worktree_as_in_the_workspace(setting: tuple[Trees, Folders], command: str) -> None:
    trees, folders = setting
    assert (await decide(folders, "bash", {"command": command})).decision == "allow"
    trees.git("config", "core.fsmonitor", "evil")
    assert (await decide(folders, "bash", {"command": command})).decision == "ask"


async def test_file_tools_stay_in_the_worktree_without_an_approval(setting: tuple[Trees, Folders]) -> None:
    trees, folders = setting
    (trees.root / "one" / "out").symlink_to(trees.workspace)
    for path in (
        "out/a.txt",
        "../one-2/a.txt",
        str(trees.workspace / "a.txt"),
        str(trees.workspace / ".git" / "config"),
    ):
        with pytest.raises(ToolRefused, match="outside your folder"):
            RootCache().find(path, folders)
    assert RootCache().find("a.txt", folders).path == trees.root / "one" / "a.txt"


async def decide(folders: Folders, tool: str, given: Json) -> PermissionDecision:
    effect: Effect = {"bash": "unknown", "read_file": "read"}.get(tool, "reconcile")
    call = ToolCall(id="c", use_id="u", name=tool, input=given)
    spec = ToolSpec(tool, "", {}, effect)
    return await PolicyJudge((), (), ()).judge(
        PermissionQuery(call=call, tool=spec, spec=SPEC, folders=folders, authority="person")
    )
