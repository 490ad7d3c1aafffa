"""What of the workspace stands in an agent's prompt: its instruction files, read anew for each prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.files import Places
from callboard.adapters.prompting import WorkspacePrompts
from callboard.adapters.skill_files import SkillLibrary
from callboard.words.specs import AgentSpec

pytestmark = pytest.mark.anyio


async def _composed(workspace: Path) -> str:
    spec = AgentSpec(name="a", kind="lead", agent_type="lead", model="m")
    parts = await WorkspacePrompts(workspace, SkillLibrary(Places(bundled=False))).compose(spec, ())
    return parts.system.decode()


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
    assert str(workspace / "CLAUDE.md") in await _composed(workspace)
