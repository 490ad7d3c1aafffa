"""Rights from settings to agents: of a type, its children, and scheduled turns; a wholly denied tool is absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.shell.policy_judge import PolicyJudge, TurnRights, parse_rules
from callboard.config.settings import LoadedSettings, load_settings, rules_of
from callboard.ports.environment import PermissionQuery
from callboard.ports.tool import Folders, ToolSpec
from callboard.sessions.agent_specs import AgentTypes, LiveTypes
from callboard.sessions.compose import ModelSelection
from callboard.testing import ScriptedModel
from callboard.types.agent_spec import AgentSpec, ModelLimits, PermissionRules
from callboard.types.errors import SettingsError
from callboard.types.records import Cause, PermissionMode, ToolCall

BASH = ToolSpec("bash", "", {}, "unknown")


class SettingsFolders:
    """A person's settings beside a workspace."""

    def __init__(self, folder: Path) -> None:
        self.config, self.workspace = folder / "config" / "callboard", folder / "ws"
        self.config.mkdir(parents=True)
        self.workspace.mkdir()

    def load(self, text: str, **environ: str) -> LoadedSettings:
        (self.config / "settings.yaml").write_text(text)
        return load_settings({"XDG_CONFIG_HOME": str(self.config.parent), **environ}, workspace=self.workspace)

    def types(self, text: str) -> AgentTypes:
        files = ExtensionPaths(workspace=self.workspace, config=self.config, home=self.config, trusted=True)
        chosen = ModelSelection(ScriptedModel({}), "scripted", {"scripted": ModelLimits()}, ())
        return AgentTypes(load_agents(files).items, self.load(text), chosen, attended=True)


@pytest.fixture
def folders(tmp_path: Path) -> SettingsFolders:
    return SettingsFolders(tmp_path)


def test_the_rights_of_a_type_stand_in_settings_and_bind_what_it_starts(folders: SettingsFolders) -> None:
    types = folders.types(
        "permission:\n"
        "  mode: acceptEdits\n"
        "  deny: [WebFetch]\n"
        "  agents:\n"
        "    lead: {allow: ['Bash(make)'], ask: ['Bash(git push:*)'], deny: ['Read(private/**)']}\n"
        "    teammate: {mode: bypassPermissions, allow: ['Bash(npm test)']}\n"
        "    explore: {mode: plan}\n"
    )
    lead = types.lead("lead")
    assert lead.permission_mode == "acceptEdits"
    assert lead.rules == PermissionRules(
        allow=("Bash(make)",), ask=("Bash(git push:*)",), deny=("Read(private/**)", "WebFetch")
    )
    mate = types.spec_of_spawned("teammate", "alice", lead, "teammate")
    assert mate.permission_mode == "acceptEdits"
    assert mate.rules == PermissionRules(
        allow=("Bash(npm test)",), ask=("Bash(git push:*)",), deny=("Read(private/**)", "WebFetch")
    )
    assert types.spec_of_spawned("explore", "sub1", mate, "subagent").permission_mode == "plan"


def test_agents_of_one_reply_differ_in_their_names_only_and_a_changed_type_or_parent_counts_at_once(
    folders: SettingsFolders,
) -> None:
    types = folders.types("")
    files = LiveTypes(types.definitions)
    types = replace(types, definitions=files)
    lead = types.lead("lead")
    first, second = (types.spec_of_spawned("explore", name, lead, "subagent") for name in "ab")
    assert second == first.model_copy(update={"name": "b"})
    files.replace_all({**files, "explore": replace(files["explore"], instructions="Look twice.")})
    assert types.spec_of_spawned("explore", "c", lead, "subagent").instructions == "Look twice."
    elsewhere = lead.model_copy(update={"folder": "/elsewhere"})
    assert types.spec_of_spawned("explore", "d", elsewhere, "subagent").folder == "/elsewhere"
    assert types.spec_of_spawned("explore", "e", lead, "teammate").kind == "teammate"


def test_steps_of_a_turn_are_limited_by_the_kind_of_an_agent_and_by_its_file(folders: SettingsFolders) -> None:
    """A teammate has no limit of its own, whatever its type; a `maxTurns` of a file counts for every kind."""
    (folders.config / "agents").mkdir()
    for name, limit in (("free", ""), ("short", "maxTurns: 5\n")):
        (folders.config / "agents" / f"{name}.md").write_text(f"---\nname: {name}\ndescription: D\n{limit}---\nWork.\n")
    types = folders.types("limits: {steps: 7, subagent_steps: 20}\n")
    lead = types.lead("lead")
    steps = {
        (agent_type, kind): types.spec_of_spawned(agent_type, "a", lead, kind).limits.steps
        for agent_type in ("teammate", "general", "free", "short")
        for kind in ("teammate", "subagent")
    }
    assert steps == {
        (agent_type, kind): 5 if agent_type == "short" else 20 if kind == "subagent" else None
        for agent_type, kind in steps
    }
    assert [types.lead(name).limits.steps for name in ("lead", "short")] == [7, 5]
    assert folders.types("").lead("short").limits.steps == 5


def test_a_type_that_is_not_there_is_told_with_its_place(folders: SettingsFolders) -> None:
    with pytest.raises(SettingsError, match=r"settings.yaml:3: permission.agents.explorer: unknown agent type"):
        folders.types("permission:\n  agents:\n    explorer: {mode: plan}\n")


def test_a_rule_of_a_type_that_is_none_is_refused_with_its_place(folders: SettingsFolders) -> None:
    with pytest.raises(SettingsError, match=r"settings.yaml:3: permission.schedules.deny"):
        folders.load("permission:\n  schedules:\n    deny: ['Bash(']\n")
    rules = "permission: {allow: [Read], schedules: {ask: [Edit]}, agents: {lead: {deny: [Bash]}}}"
    assert {address[1:-1]: rule for address, rule in rules_of(folders.load(rules).settings)} == {
        ("allow",): "Read",
        ("schedules", "ask"): "Edit",
        ("agents", "lead", "deny"): "Bash",
    }


def test_a_tool_that_is_denied_as_a_whole_is_not_in_the_models_context(folders: SettingsFolders) -> None:
    types = folders.types(
        "permission: {deny: ['Bash', 'mcp__*', 'Edit(x)', 'Gre*'], agents: {explore: {deny: [Read]}}}"
    )
    lead = types.lead("lead")
    assert not {"bash", "grep"} & set(lead.tools)
    assert {"edit_file", "read_file", "glob"} <= set(lead.tools)
    assert not {"bash", "read_file", "glob", "grep"} & set(
        types.spec_of_spawned("explore", "sub1", lead, "subagent").tools
    )
    assert "bash" in folders.types("permission: {deny: ['Bash(curl:*)']}").lead("lead").tools


def test_modes_of_claude_code_are_read_and_what_is_read_otherwise_is_told(folders: SettingsFolders) -> None:
    assert folders.load("permission: {mode: manual}").settings.permission.mode == "default"
    assert folders.load("permission: {mode: manual}").notes == ()
    auto = folders.load("permission: {mode: sandboxed, agents: {lead: {mode: auto}}}")
    assert (auto.settings.permission.mode, auto.settings.permission.agents["lead"].mode) == ("sandboxed", "default")
    assert len(auto.notes) == 1
    assert "settings.yaml:1: permission.agents.lead.mode: the mode auto is read as default" in auto.notes[0]
    assert "CALLBOARD_PERMISSION__MODE" in folders.load("", CALLBOARD_PERMISSION__MODE="auto").notes[0]


def test_a_rule_that_does_nothing_is_told_with_its_place_and_what_to_write(folders: SettingsFolders) -> None:
    notes = folders.load(
        "permission:\n  allow: ['Bash(make)', 'B*']\n  agents: {lead: {deny: ['Write(src/**)']}}\n"
    ).notes
    assert [note.partition("settings.yaml:")[2] for note in notes] == [
        "2: permission.allow[1]: the rule B* has no effect: "
        "a star in a tool's name is valid only in deny and ask rules",
        "3: permission.agents.lead.deny[0]: the rule Write(src/**) has no effect: "
        "Write with a path is never consulted: write Edit(src/**)",
    ]


async def ruling(
    root: Path, command: str, judge: PolicyJudge, cause: Cause, mode: PermissionMode = "default", **rules: str
) -> str:
    spec = AgentSpec(
        name="lead",
        kind="lead",
        agent_type="lead",
        model="m",
        permission_mode=mode,
        rules=PermissionRules(**{kind: (text,) for kind, text in rules.items()}),
    )
    folders = Folders(root, root / "results", root / "transcripts")
    call = ToolCall(id="c", use_id="p", name="bash", input={"command": command})
    query = PermissionQuery(call=call, tool=BASH, spec=spec, folders=folders, authority=cause)
    return (await judge.judge(query)).decision


@pytest.mark.anyio
async def test_a_scheduled_turn_has_its_own_profile(tmp_path: Path) -> None:
    profile = TurnRights("acceptEdits", PermissionRules(allow=("Bash(make:*)",), deny=("Bash(git push:*)",)))
    judge = PolicyJudge((), (), (), scheduled=profile)
    assert await ruling(tmp_path, "make all", judge, "person") == "ask"
    assert await ruling(tmp_path, "make all", judge, "schedule") == "allow"
    assert await ruling(tmp_path, "git push", judge, "person", "bypassPermissions") == "allow"
    assert await ruling(tmp_path, "git push", judge, "schedule", "bypassPermissions") == "deny"
    assert await ruling(tmp_path, "npm test", judge, "schedule", "bypassPermissions") == "ask"
    assert await ruling(tmp_path, "make all", judge, "schedule", "plan") == "deny"


@pytest.mark.anyio
async def test_without_a_profile_a_scheduled_turn_is_sandboxed_where_its_agent_would_bypass(tmp_path: Path) -> None:
    for level, decision in ((0, "ask"), (2, "allow")):
        judge = PolicyJudge((), (), (), sandbox=lambda level=level: level)
        assert await ruling(tmp_path, "npm test", judge, "schedule", "bypassPermissions") == decision
        assert await ruling(tmp_path, "npm test", judge, "teammate", "bypassPermissions") == "allow"
        assert await ruling(tmp_path, "ls", judge, "schedule") == "allow"


@pytest.mark.anyio
async def test_rules_of_an_agent_join_those_of_all_and_one_that_cannot_be_read_allows_nothing(tmp_path: Path) -> None:
    judge = PolicyJudge(parse_rules(["Bash(npm:*)"], ""), (), parse_rules(["Bash(npm publish)"], ""))
    assert await ruling(tmp_path, "npm test", judge, "person", deny="Bash(npm test)") == "deny"
    assert await ruling(tmp_path, "npm publish", judge, "person", allow="Bash(npm publish)") == "deny"
    assert await ruling(tmp_path, "make", judge, "person", allow="Bash(make)") == "allow"
    assert await ruling(tmp_path, "make", judge, "person", allow="Bash(make") == "ask"
    assert await ruling(tmp_path, "ls", judge, "person", ask="Bash(ls") == "ask"
    assert await ruling(tmp_path, "ls", judge, "person", deny="Bash(ls") == "deny"


@pytest.mark.parametrize(
    ("attended", "answerable", "plan", "ask"),
    [(True, False, None, None), (False, True, None, None), (False, False, 1_800.0, 0)],
)
def test_requests_wait_without_a_deadline_only_if_the_person_chooses_that_and_someone_can_answer(
    folders: SettingsFolders, *, attended: bool, answerable: bool, plan: float | None, ask: float | None
) -> None:
    types = folders.types("ask: {deadline: null}\nplan: {deadline: null}\n")
    lead = replace(types, attended=attended, answerable=answerable).lead("lead")
    assert (lead.plan_deadline, lead.ask_deadline) == (plan, ask)
