"""Pipelines from settings to specs: each agent type gets its own, and custom stages are loaded at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.config.settings import LoadedSettings, load_settings
from callboard.core.context.pipeline import PRESETS
from callboard.sessions.agent_specs import AgentTypes
from callboard.sessions.compose import ModelSelection, own_stages
from callboard.sessions.places import WorkspacePaths
from callboard.testing import ScriptedModel
from callboard.types.agent_spec import ModelLimits
from callboard.types.errors import SettingsError


class SettingsFolders:
    """A person's folder beside a workspace."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config" / "callboard"
        self.workspace = folder / "ws"
        for place in (self.config / "stages", self.workspace):
            place.mkdir(parents=True)
        self.settings = self.config / "settings.yaml"

    def load(self, text: str) -> LoadedSettings:
        self.settings.write_text(text)
        return load_settings({"XDG_CONFIG_HOME": str(self.config.parent)}, workspace=self.workspace, trusted=True)

    def types(self, text: str) -> AgentTypes:
        files = ExtensionPaths(workspace=self.workspace, config=self.config, home=self.config, trusted=True)
        chosen = ModelSelection(ScriptedModel({}), "scripted", {"scripted": ModelLimits()}, ())
        return AgentTypes(load_agents(files).items, self.load(text), chosen, attended=True)

    def stages(self, text: str) -> dict[str, object]:
        places = WorkspacePaths(self.workspace, self.config / "state", self.config / "data", self.config)
        return dict(own_stages(self.load(text), places))


@pytest.fixture
def folders(tmp_path: Path) -> SettingsFolders:
    return SettingsFolders(tmp_path)


def test_lead_subagent_and_teammate_each_get_the_pipeline_of_their_type(folders: SettingsFolders) -> None:
    types = folders.types("context:\n  pipeline: progressive\n  pipelines: {explore: micro, teammate: regional}\n")
    lead = types.lead("lead")
    assert lead.pipeline == PRESETS["progressive"]
    assert types.spec_of_spawned("explore", "sub1", lead, "subagent").pipeline == PRESETS["micro"]
    assert types.spec_of_spawned("teammate", "alice", lead, "teammate").pipeline == PRESETS["regional"]


def test_a_pipeline_for_a_type_that_is_not_there_is_told_with_its_place(folders: SettingsFolders) -> None:
    with pytest.raises(SettingsError) as caught:
        folders.types("context:\n  pipelines:\n    lead: micro\n    explorer: micro\n")
    assert str(caught.value).startswith(f"{folders.settings}:4: context.pipelines.explorer")
    assert "unknown agent type 'explorer': choose " in str(caught.value)


def test_a_persons_own_stages_are_loaded_once_at_the_start(folders: SettingsFolders) -> None:
    (folders.config / "stages" / "mine.py").write_text("def shorten(view, budget, now):\n    return None\n")
    text = "context:\n  pipeline: [{stage: 'mine:shorten'}]\n  pipelines: {explore: [{stage: 'os.path:join'}]}\n"
    assert sorted(folders.stages(text)) == ["mine:shorten", "os.path:join"]
    assert folders.stages("context: {pipeline: micro}\n") == {}


def test_an_own_stage_that_is_missing_is_told_with_its_place(folders: SettingsFolders) -> None:
    with pytest.raises(SettingsError) as caught:
        folders.stages("context:\n  pipelines:\n    explore:\n    - stage: snip_middle\n    - stage: mine:shorten\n")
    assert str(caught.value).startswith(f"{folders.settings}:5: context.pipelines.explore[1]")
    assert "there is no module 'mine'" in str(caught.value)
