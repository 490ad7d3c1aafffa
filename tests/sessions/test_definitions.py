"""Agents, skills, and plugins in whole sessions: the content of the model's requests, and changes during a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.adapters.extensions.malformed import AGENTS

from callboard.adapters.models.rehearsal.emulator import Emulator, EmulatorOptions, serve
from callboard.adapters.models.rehearsal.scenario_file import load_scenario
from callboard.ports.model import Delta
from callboard.sessions.hosted import HostedSession
from callboard.sessions.inspect.compat_report import compat_reports as compatible
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    ExtensionOptions,
    IdentityOptions,
    LeadOptions,
    ModelOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.places import find_places
from callboard.types.events import Event
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio

SCENARIO = """
agents:
  lead:
    - when: {contains: one more time}
      reply: [{tool_use: {name: task, input: {description: look, prompt: look, agent_type: scout}}}]
    - when: {contains: ask scout}
      reply: [{tool_use: {name: task, input: {description: look, prompt: look, agent_type: scout}}}]
    - otherwise: true
      reply: Done.
  "*":
    - otherwise: true
      reply: Seen.
"""


@dataclass
class SessionFolders:
    """A home, a workspace, and a model service that records its requests."""

    home: Path
    work: Path
    service: Emulator
    notices: list[str] = field(default_factory=list[str])

    def write(self, path: str, text: str) -> Path:
        """Write a file: `~/x` in the home, anything else in the workspace."""
        file = self.home / path[2:] if path.startswith("~/") else self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def bodies(self, agent: str) -> list[dict[str, Any]]:
        """Return the bodies of an agent's requests."""
        return [one.body for one in self.service.calls(agent) if one.body is not None]

    async def run(self, words: str, **asked: Any) -> tuple[str, Sequence[str]]:
        """Run a session to its end, and return its last text, and the notices at its start."""
        async with open_session(SessionOptions(WorkspaceOptions(self.work), **asked), observers=[self]) as session:
            if words:
                await session.say(words)
            end = await session.wait_finished()
            return end.text, session.notes

    def on_event(self, agent: str, seq: int, event: Event) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind == "notice":
            self.notices.append(delta.text)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    service = await serve(load_scenario(tmp_path / "s.yaml"), options=EmulatorOptions())
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", service.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.delenv("CALLBOARD_TOOL", raising=False)
    yield SessionFolders(home, work, service)
    await service.aclose()


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body["system"])


async def test_a_type_brings_model_effort_and_skills_to_its_subagent(folders: SessionFolders) -> None:
    folders.write("~/.claude/skills/maps/SKILL.md", "---\nname: maps\ndescription: d\n---\nRead the legend first.\n")
    folders.write(
        "~/.claude/agents/scout.md",
        "---\nname: scout\ndescription: Looks\nmodel: opus\neffort: low\nskills: maps\ntools: Read\n---\nYou scout.\n",
    )
    assert (await folders.run("ask scout", model=ModelOptions("claude-sonnet-5-5")))[0] == "Done."
    (lead, *_), (scout,) = folders.bodies("lead"), folders.bodies(_scout_of(folders))
    assert (lead["model"], "output_config" in lead) == ("claude-sonnet-5-5", False)
    assert (scout["model"], scout["output_config"]) == ("claude-opus-5-5", {"effort": "low"})
    assert "You scout." in _text(scout)
    assert "Read the legend first." in _text(scout)
    assert [tool["name"] for tool in scout["tools"]] == ["read_file"]


def _scout_of(house: SessionFolders) -> str:
    return next(one.agent for one in house.service.log if one.agent and one.agent.startswith("scout"))


async def test_a_lead_of_a_type_hears_its_first_prompt_and_starts_only_what_it_may(folders: SessionFolders) -> None:
    folders.write(
        "~/.claude/agents/boss.md",
        "---\nname: boss\ndescription: Leads\ntools: Agent(general), Read\ninitialPrompt: Look round.\n---\nLead.\n",
    )
    folders.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\n")
    await folders.run("", lead=LeadOptions("boss", effort="max"), identity=IdentityOptions(prompt="ask scout"))
    first, second, *_ = folders.bodies("lead")
    assert first["output_config"] == {"effort": "max"}
    assert "Look round.\\n\\nask scout" in json.dumps(first["messages"])
    assert "may not be started by you: choose general" in json.dumps(second["messages"])
    (task,) = [tool for tool in first["tools"] if tool["name"] == "task"]
    assert "- general:" in task["description"]
    assert "- scout:" not in task["description"]


async def test_a_plugin_brings_agents_under_its_name_and_its_hooks_run(folders: SessionFolders) -> None:
    folders.write("plug/.claude-plugin/plugin.json", '{"name": "tools"}')
    folders.write("plug/agents/scout.md", "---\nname: scout\ndescription: Looks\nhooks: {}\n---\nYou scout.\n")
    hook = {"type": "command", "command": 'touch "${CLAUDE_PLUGIN_ROOT}/ran"'}
    folders.write("plug/hooks/hooks.json", json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}))
    await folders.run("hello", extensions=ExtensionOptions(plugins=(folders.work / "plug",)))
    (task,) = [tool for tool in folders.bodies("lead")[0]["tools"] if tool["name"] == "task"]
    assert "- tools:scout: Looks" in task["description"]
    assert (folders.work / "plug/ran").exists()


async def _wait_until(so: Callable[[], bool]) -> None:
    with anyio.fail_after(180):
        while not so():
            await anyio.sleep(0.05)


async def _say(session: HostedSession, text: str) -> str:
    await session.say(text)
    return (await session.wait_finished()).text


async def test_an_agent_that_is_written_while_a_session_runs_can_be_started(folders: SessionFolders) -> None:
    async with open_session(SessionOptions(WorkspaceOptions(folders.work)), observers=[folders]) as session:
        await _say(session, "hello")
        tools = folders.bodies("lead")[0]["tools"]
        folders.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nFirst words.\n")
        await _wait_until(lambda: "agents: new scout" in folders.notices)
        assert await _say(session, "ask scout") == "Done."
        assert "First words." in _text(folders.bodies(_scout_of(folders))[0])
        asked = folders.bodies("lead")[-2]
        assert asked["tools"] == tools  # identical bytes, so the cache stays valid
        assert "new: scout: Looks" in json.dumps(asked["messages"])
        folders.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nSecond words.\n")
        await _wait_until(lambda: "agents: changed scout" in folders.notices)
        await _say(session, "one more time")
        newest = [one for one in folders.service.log if one.agent and one.agent.startswith("scout")][-1]
        assert newest.body is not None
        assert "Second words." in _text(newest.body)
        folders.write("~/.claude/skills/maps/SKILL.md", "---\nname: maps\ndescription: d\n---\nBody\n")
        await _wait_until(lambda: "skills: new maps" in folders.notices)


async def test_what_the_workspace_changes_while_a_session_runs_stays_as_it_was_trusted(folders: SessionFolders) -> None:
    file = folders.write(".claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nFirst words.\n")
    async with open_session(SessionOptions(WorkspaceOptions(folders.work, trust=True)), observers=[folders]) as session:
        await _say(session, "hello")
        file.write_text("---\nname: scout\ndescription: Looks\n---\nSecond words.\n", encoding="utf-8")
        await _wait_until(lambda: any("has changed" in one for one in folders.notices))
        await _say(session, "ask scout")
        assert "First words." in _text(folders.bodies(_scout_of(folders))[0])


async def test_a_session_runs_beside_all_malformed_files_and_tells_the_first_of_them(folders: SessionFolders) -> None:
    for number, bad in enumerate(AGENTS):
        folder = folders.home / f".claude/agents/{number}"
        folder.mkdir(parents=True)
        bad.make(folder / "bad.md")
    folders.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\n")
    folders.write("~/.claude/skills/bad/SKILL.md", "---\nname: [\n---\n")
    folders.write("~/config/callboard/hooks/hooks.json", "{")
    folders.write("plug/.claude-plugin/plugin.json", "{")
    text, notes = await folders.run("ask scout", extensions=ExtensionOptions(plugins=(folders.work / "plug",)))
    assert text == "Done."
    assert any("plugin.json" in note for note in notes)
    assert any("callboard doctor --compat" in note for note in notes)
    assert len([note for note in notes if "refused" in note]) <= 7


async def test_a_skill_that_an_agent_has_from_the_start_and_that_is_not_there_is_told(folders: SessionFolders) -> None:
    folders.write(
        "~/.claude/skills/mine/SKILL.md", "---\nname: mine\ndescription: d\ndisable-model-invocation: true\n---\n"
    )
    agent = folders.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: d\nskills: [mine, none]\n---\n")
    told = [f"{one.where} {one.field} {one.why}" for one in compatible(find_places(folders.work))]
    assert f"{agent}:4 skills only a person can start mine" in told
    assert f"{agent}:4 skills there is no skill none" in told
