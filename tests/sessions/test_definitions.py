"""Agents, skills and plugins in whole sessions: what reaches the model, and what changes while a session runs."""

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
from callboard.sessions.compose import find_places
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
class House:
    """A home, a workspace and a model service that keeps what it was asked."""

    home: Path
    work: Path
    service: Emulator
    notices: list[str] = field(default_factory=list[str])

    def write(self, path: str, text: str) -> Path:
        """`~/x`: in the home; else in the workspace."""
        file = self.home / path[2:] if path.startswith("~/") else self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def bodies(self, agent: str) -> list[dict[str, Any]]:
        """What an agent asked, whole."""
        return [one.body for one in self.service.calls(agent) if one.body is not None]

    async def run(self, words: str, **asked: Any) -> tuple[str, Sequence[str]]:
        """One session to its end: its last text, and what was told at first."""
        async with open_session(SessionOptions(WorkspaceOptions(self.work), **asked), observers=[self]) as session:
            if words:
                await session.say(words)
            end = await session.finished()
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
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
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
    yield House(home, work, service)
    await service.aclose()


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body["system"])


async def test_a_type_brings_model_effort_and_skills_to_its_subagent(house: House) -> None:
    house.write("~/.claude/skills/maps/SKILL.md", "---\nname: maps\ndescription: d\n---\nRead the legend first.\n")
    house.write(
        "~/.claude/agents/scout.md",
        "---\nname: scout\ndescription: Looks\nmodel: opus\neffort: low\nskills: maps\ntools: Read\n---\nYou scout.\n",
    )
    assert (await house.run("ask scout", model=ModelOptions("claude-sonnet-5-5")))[0] == "Done."
    (lead, *_), (scout,) = house.bodies("lead"), house.bodies(_mate(house))
    assert (lead["model"], "output_config" in lead) == ("claude-sonnet-5-5", False)
    assert (scout["model"], scout["output_config"]) == ("claude-opus-5-5", {"effort": "low"})
    assert "You scout." in _text(scout)
    assert "Read the legend first." in _text(scout)
    assert [tool["name"] for tool in scout["tools"]] == ["read_file"]


def _mate(house: House) -> str:
    return next(one.agent for one in house.service.log if one.agent and one.agent.startswith("scout"))


async def test_a_lead_of_a_type_hears_its_first_prompt_and_starts_only_what_it_may(house: House) -> None:
    house.write(
        "~/.claude/agents/boss.md",
        "---\nname: boss\ndescription: Leads\ntools: Agent(general), Read\ninitialPrompt: Look round.\n---\nLead.\n",
    )
    house.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\n")
    await house.run("", lead=LeadOptions("boss", effort="max"), identity=IdentityOptions(prompt="ask scout"))
    first, second, *_ = house.bodies("lead")
    assert first["output_config"] == {"effort": "max"}
    assert "Look round.\\n\\nask scout" in json.dumps(first["messages"])
    assert "may not be started by you; there are: general" in json.dumps(second["messages"])
    (task,) = [tool for tool in first["tools"] if tool["name"] == "task"]
    assert "- general:" in task["description"]
    assert "- scout:" not in task["description"]


async def test_a_plugin_brings_agents_under_its_name_and_its_hooks_run(house: House) -> None:
    house.write("plug/.claude-plugin/plugin.json", '{"name": "tools"}')
    house.write("plug/agents/scout.md", "---\nname: scout\ndescription: Looks\nhooks: {}\n---\nYou scout.\n")
    hook = {"type": "command", "command": 'touch "${CLAUDE_PLUGIN_ROOT}/ran"'}
    house.write("plug/hooks/hooks.json", json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}))
    await house.run("hello", extensions=ExtensionOptions(plugins=(house.work / "plug",)))
    (task,) = [tool for tool in house.bodies("lead")[0]["tools"] if tool["name"] == "task"]
    assert "- tools:scout: Looks" in task["description"]
    assert (house.work / "plug/ran").exists()


async def _until(so: Callable[[], bool]) -> None:
    with anyio.fail_after(180):
        while not so():
            await anyio.sleep(0.05)


async def _say(session: HostedSession, text: str) -> str:
    await session.say(text)
    return (await session.finished()).text


async def test_an_agent_that_is_written_while_a_session_runs_can_be_started(house: House) -> None:
    async with open_session(SessionOptions(WorkspaceOptions(house.work)), observers=[house]) as session:
        await _say(session, "hello")
        tools = house.bodies("lead")[0]["tools"]
        house.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nFirst words.\n")
        await _until(lambda: "agents: new scout" in house.notices)
        assert await _say(session, "ask scout") == "Done."
        assert "First words." in _text(house.bodies(_mate(house))[0])
        asked = house.bodies("lead")[-2]
        assert asked["tools"] == tools  # byte for byte: the cache holds
        assert "new: scout: Looks" in json.dumps(asked["messages"])
        house.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nSecond words.\n")
        await _until(lambda: "agents: changed scout" in house.notices)
        await _say(session, "one more time")
        newest = [one for one in house.service.log if one.agent and one.agent.startswith("scout")][-1]
        assert newest.body is not None
        assert "Second words." in _text(newest.body)
        house.write("~/.claude/skills/maps/SKILL.md", "---\nname: maps\ndescription: d\n---\nBody\n")
        await _until(lambda: "skills: new maps" in house.notices)


async def test_what_the_workspace_changes_while_a_session_runs_stays_as_it_was_trusted(house: House) -> None:
    file = house.write(".claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\nFirst words.\n")
    async with open_session(SessionOptions(WorkspaceOptions(house.work, trust=True)), observers=[house]) as session:
        await _say(session, "hello")
        file.write_text("---\nname: scout\ndescription: Looks\n---\nSecond words.\n", encoding="utf-8")
        await _until(lambda: any("has changed" in one for one in house.notices))
        await _say(session, "ask scout")
        assert "First words." in _text(house.bodies(_mate(house))[0])


async def test_a_session_runs_beside_all_malformed_files_and_tells_the_first_of_them(house: House) -> None:
    for number, bad in enumerate(AGENTS):
        folder = house.home / f".claude/agents/{number}"
        folder.mkdir(parents=True)
        bad.make(folder / "bad.md")
    house.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: Looks\n---\n")
    house.write("~/.claude/skills/bad/SKILL.md", "---\nname: [\n---\n")
    house.write("~/config/callboard/hooks/hooks.json", "{")
    house.write("plug/.claude-plugin/plugin.json", "{")
    text, notes = await house.run("ask scout", extensions=ExtensionOptions(plugins=(house.work / "plug",)))
    assert text == "Done."
    assert any("plugin.json" in note for note in notes)
    assert any("callboard doctor --compat" in note for note in notes)
    assert len([note for note in notes if "refused" in note]) <= 7


async def test_a_skill_that_an_agent_has_from_the_start_and_that_is_not_there_is_told(house: House) -> None:
    house.write(
        "~/.claude/skills/mine/SKILL.md", "---\nname: mine\ndescription: d\ndisable-model-invocation: true\n---\n"
    )
    agent = house.write("~/.claude/agents/scout.md", "---\nname: scout\ndescription: d\nskills: [mine, none]\n---\n")
    told = [f"{one.where} {one.field} {one.why}" for one in compatible(find_places(house.work))]
    assert f"{agent}:4 skills mine is for a person to start" in told
    assert f"{agent}:4 skills there is no skill none" in told
