"""What of the workspace stands in an agent's prompt: its instruction files, read anew for each prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.files import Places
from callboard.adapters.prompting import WorkspacePrompts
from callboard.adapters.sandbox.sandbox import Choice, Sandbox
from callboard.adapters.skill_files import SkillLibrary
from callboard.words.specs import AgentSpec

pytestmark = pytest.mark.anyio


async def _composed(workspace: Path, sandbox: Sandbox | None = None) -> str:
    spec = AgentSpec(name="a", kind="lead", agent_type="lead", model="m")
    walls = (sandbox or Sandbox()).words()
    parts = await WorkspacePrompts(workspace, SkillLibrary(Places(bundled=False)), walls=walls).compose(spec, ())
    return parts.system.decode()


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        (Sandbox(Choice(1)), "and have no network."),
        (Sandbox(Choice(2)), "and have no network."),
        (Sandbox(Choice(2, network=True)), "and have the machine's network."),
        (
            Sandbox(Choice(3), hosts=("a.example", "b.example:8080")),
            "and reach these hosts alone: a.example, b.example:8080.",
        ),
        (Sandbox(), ""),
        (Sandbox(Choice(0, network=True, refusal="none here")), ""),
    ],
)
async def test_an_agent_is_told_of_the_walls_round_its_commands(tmp_path: Path, sandbox: Sandbox, said: str) -> None:
    told = await _composed(tmp_path, sandbox)
    assert ("Commands run in a sandbox" in told) == bool(said)
    assert said in told


async def test_instruction_files_are_read_when_they_are_there_and_never_through_a_link(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "outside").write_text("elsewhere")
    (workspace / "CLAUDE.md").symlink_to(tmp_path / "outside")
    assert "elsewhere" not in await _composed(workspace)
    (workspace / "AGENTS.md").write_text("indent with tabs")
    assert "indent with tabs" in await _composed(workspace)
    (workspace / "CLAUDE.md").unlink()
    (workspace / "CLAUDE.md").write_text("indent with tabs\n")
    assert (await _composed(workspace)).count("indent with tabs") == 1
    (workspace / "AGENTS.md").unlink()
    (workspace / "AGENTS.md").mkdir()
    assert "CLAUDE.md" in await _composed(workspace)
