"""An agent's prompt contains the workspace's instruction files, read again for each prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.prompt import WorkspacePrompts
from callboard.adapters.extensions.skills import SkillLibrary
from callboard.adapters.processes.sandbox.sandbox import Sandbox, SandboxLevel
from callboard.ports.tool import ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import joined_blocks

pytestmark = pytest.mark.anyio


async def _compose_prompt(workspace: Path, sandbox: Sandbox | None = None) -> str:
    spec = AgentSpec(name="a", kind="lead", agent_type="lead", model="m")
    sandbox_facts = (sandbox or Sandbox()).description()
    parts = await WorkspacePrompts(
        workspace, SkillLibrary(ExtensionPaths(bundled=False)), sandbox_facts=sandbox_facts
    ).compose(spec, ())
    return joined_blocks(parts.system, parts.own_blocks).decode()


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        (Sandbox(SandboxLevel(1)), "and have no network unless the command itself was approved with it"),
        (Sandbox(SandboxLevel(2)), "and have no network unless the command itself was approved with it"),
        (Sandbox(SandboxLevel(1, sealed=True)), "and have no network."),
        (Sandbox(SandboxLevel(2, network=True)), "and have the machine's network."),
        (
            Sandbox(SandboxLevel(3), hosts=("a.example", "b.example:8080")),
            "and reach a.example, b.example:8080; a command that was approved with other hosts reaches those too",
        ),
        (Sandbox(), ""),
        (Sandbox(SandboxLevel(0, network=True, refusal="none here")), ""),
    ],
)
async def test_an_agent_is_told_of_the_walls_round_its_commands(tmp_path: Path, sandbox: Sandbox, said: str) -> None:
    told = await _compose_prompt(tmp_path, sandbox)
    assert ("Commands run in a sandbox" in told) == bool(said)
    assert said in told


async def test_instruction_files_are_read_when_they_are_there_and_never_through_a_link(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "outside").write_text("elsewhere")
    (workspace / "CLAUDE.md").symlink_to(tmp_path / "outside")
    assert "elsewhere" not in await _compose_prompt(workspace)
    (workspace / "AGENTS.md").write_text("indent with tabs")
    assert "indent with tabs" in await _compose_prompt(workspace)
    (workspace / "CLAUDE.md").unlink()
    (workspace / "CLAUDE.md").write_text("indent with tabs\n")
    assert (await _compose_prompt(workspace)).count("indent with tabs") == 1
    (workspace / "AGENTS.md").unlink()
    (workspace / "AGENTS.md").mkdir()
    assert "CLAUDE.md" in await _compose_prompt(workspace)


async def test_agents_of_a_type_have_the_same_tool_list_until_their_tools_change(tmp_path: Path) -> None:
    prompts = WorkspacePrompts(tmp_path, SkillLibrary(ExtensionPaths(bundled=False)))
    first, second = (AgentSpec(name=name, kind="subagent", agent_type="explore", model="m") for name in "ab")
    tools = (ToolSpec("look", "Look.", {}, "read"),)
    parts = await prompts.compose(first, tools)
    parts_of_second = await prompts.compose(second, tools)
    assert parts_of_second.tools is parts.tools
    assert parts_of_second.system is parts.system
    assert parts_of_second.own_blocks != parts.own_blocks
    longer = await prompts.compose(second, (ToolSpec("look", "Look closely.", {}, "read"),))
    assert b"closely" in longer.tools
    assert longer.tokens > parts_of_second.tokens


async def test_the_shared_part_of_a_prompt_follows_files_and_the_type_at_once(tmp_path: Path) -> None:
    prompts = WorkspacePrompts(tmp_path, SkillLibrary(ExtensionPaths(bundled=False)))

    async def composed(spec: AgentSpec) -> str:
        parts = await prompts.compose(spec, ())
        return joined_blocks(parts.system, parts.own_blocks).decode()

    first = AgentSpec(name="a", kind="teammate", agent_type="t", model="m", instructions="Be brief.")
    before = await composed(first)
    assert await composed(first) == before
    assert (await composed(first.model_copy(update={"name": "b"}))) == before.replace("Your name: a", "Your name: b")
    (tmp_path / "AGENTS.md").write_text("indent with tabs")
    assert "indent with tabs" in await composed(first)
    assert "Be thorough." in await composed(first.model_copy(update={"instructions": "Be thorough."}))
    assert "a subagent with one task" in await composed(first.model_copy(update={"kind": "subagent"}))
    assert "Call `compact`" in await composed(first.model_copy(update={"tools": ("compact",)}))
