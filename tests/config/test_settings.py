"""Settings: the source that wins, the origin of each value, and the message for a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard.config.settings import LoadedSettings, load_settings, pipeline_of
from callboard.core.context.pipeline import PRESETS
from callboard.types.errors import SettingsError
from callboard.types.settings import Settings


class SettingsFolders:
    """A person's folder and a workspace, with their settings files."""

    def __init__(self, folder: Path) -> None:
        self.person = folder / "config" / "callboard" / "settings.yaml"
        self.workspace = folder / "ws"
        self.ours = self.workspace / ".callboard" / "settings.yaml"
        self.environ = {"XDG_CONFIG_HOME": str(folder / "config")}
        for file in (self.person, self.ours):
            file.parent.mkdir(parents=True)

    def load(self, *, trusted: bool = True, flags: dict[str, object] | None = None, **environ: str) -> LoadedSettings:
        return load_settings(self.environ | environ, workspace=self.workspace, trusted=trusted, flags=flags)

    def refusal(self, **how: Any) -> str:
        with pytest.raises(SettingsError) as caught:
            self.load(**how)
        return str(caught.value)


@pytest.fixture
def folders(tmp_path: Path) -> SettingsFolders:
    return SettingsFolders(tmp_path)


def test_without_any_file_the_defaults_hold(folders: SettingsFolders) -> None:
    loaded = folders.load()
    assert loaded.settings.model_copy(update={"models": {}}) == Settings()
    assert {origin for name, _, origin in loaded.explain_values() if not name.startswith("models")} == {"default"}


def test_later_sources_win_one_by_one_and_each_value_tells_its_origin(folders: SettingsFolders) -> None:
    def model(**how: Any) -> tuple[object, str]:
        values = {name: (value, origin) for name, value, origin in folders.load(**how).explain_values()}
        return values["model"]

    folders.person.write_text("# mine\nmodel: from-person\n")
    assert model() == ("from-person", f"{folders.person}:2: model")
    folders.ours.write_text("model: from-workspace\n")
    assert model() == ("from-workspace", f"{folders.ours}:1: model")
    assert model(MODEL_ID="from-alias") == ("from-alias", "MODEL_ID")
    how = {"MODEL_ID": "from-alias", "CALLBOARD_MODEL": "from-environment"}
    assert model(**how) == ("from-environment", "CALLBOARD_MODEL")
    assert model(**how, flags={"model": "from-flag", "permission.mode": None}) == ("from-flag", "flag for model")


def test_sections_are_merged_field_by_field(folders: SettingsFolders) -> None:
    folders.person.write_text("limits: {steps: 5, tokens: 100}\nrecovery:\n  attempts: 7\n")
    folders.ours.write_text("limits: {tokens: 200}\n")
    settings = folders.load(CALLBOARD_LIMITS__COST_USD="0.5").settings
    assert (settings.limits.steps, settings.limits.tokens, settings.limits.cost_usd) == (5, 200, 0.5)
    assert (settings.recovery.attempts, settings.recovery.max_wait) == (7, 60.0)


def test_an_untrusted_workspace_is_not_even_read(folders: SettingsFolders) -> None:
    folders.ours.write_text(": this is [ no YAML")
    assert folders.load(trusted=False).settings.model == Settings().model
    assert str(folders.ours) in folders.refusal(trusted=True)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("permission: {deny: Bash(rm *)}", "permission.deny: ignored: write a list of rules"),
        ("permission: [Bash(rm *)]", "permission: ignored: write a mapping of names to values"),
    ],
)
def test_restrictions_of_an_untrusted_workspace_that_cannot_be_read_are_told(
    text: str, note: str, folders: SettingsFolders
) -> None:
    folders.ours.write_text(text)
    assert folders.load(trusted=False).notes == (f"{folders.ours}:1: {note}",)


def test_rules_and_hooks_of_all_sources_are_joined_and_other_lists_replaced(folders: SettingsFolders) -> None:
    folders.person.write_text(
        "permission: {deny: [Bash(rm *)]}\nfallback_models: [a]\nhooks: {Stop: [{command: one}]}\n"
    )
    folders.ours.write_text("permission: {deny: [Read(x)]}\nfallback_models: [b]\nhooks: {Stop: [{command: two}]}\n")
    loaded = folders.load(CALLBOARD_PERMISSION__DENY="[Write]")
    assert loaded.settings.permission.deny == ("Bash(rm *)", "Read(x)", "Write")
    assert loaded.settings.fallback_models == ("b",)
    assert loaded.settings.hooks["Stop"] == ({"command": "one"}, {"command": "two"})
    assert loaded.hooks["person"] == {"Stop": [{"command": "one"}]}
    assert loaded.hooks["workspace"] == {"Stop": [{"command": "two"}]}
    assert loaded.origins["permission", "deny", 1] == f"{folders.ours}:1: permission.deny[0]"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("limits:\n  steps: many\n", "2: limits.steps", "limits.steps: must be a whole number"),
        ("limits:\n  steps: -1\n", "2: limits.steps", "greater than or equal to 0"),
        ("recovery: {max_wait: .inf}\n", "1: recovery.max_wait", "number"),
        ("permission:\n  mode: yolo\n", "2: permission.mode", "'default'"),
        ("permission:\n  mode: [plan]\n", "2: permission.mode", "'default'"),
        ("permission:\n  alow: []\n", "2: permission.alow", "choose allow"),
        ("modle: x\n", "1: modle", "unknown setting 'modle': choose model"),
        ("zzz: x\n", "1: zzz", "unknown setting 'zzz': `callboard config list --all`"),
        ("model: ''\n", "1: model", "at least 1 character"),
        ("models:\n  m:\n    window: 5\n", "3: models.m.window", "1000"),
        ("models:\n  m:\n    windw: 5\n", "3: models.m.windw", "choose window"),
        ("permission:\n  deny:\n    - Bash(x\n", "3: permission.deny[0]", "is not a rule"),
        ("context:\n  pipeline: nice\n", "2: context.pipeline", "unknown preset 'nice': choose"),
        ("context:\n  pipeline: [{stage: squeeze}]\n", "2: context.pipeline[0]", "unknown stage 'squeeze'"),
        (
            "context:\n  pipeline:\n  - stage: summarize_all\n  - stage: snip_middle\n    params: {firts: 3}\n",
            "4: context.pipeline[1]",
            "firts: `snip_middle` has no such parameter",
        ),
        (
            "context:\n  pipelines:\n    lead: micro\n    explore: nice\n",
            "4: context.pipelines.explore",
            "unknown preset 'nice': choose",
        ),
        ("context:\n  pipelines: {lead: [{stage: react}]}\n", "2: context.pipelines.lead[0]", "stands behind"),
        ("context:\n  pipelines: micro\n", "2: context.pipelines", "must be an object"),
        ("context:\n  pipeline: 3\n", "2: context.pipeline: ", "must be text or a list"),
        ("context:\n  pipeline: [{stag: x}]\n", "2: context.pipeline[0]: ", "stage is missing"),
        ("limits: 5\n", "1: limits", "must be an object"),
        ("hooks: [a]\n", "1: hooks", "must be an object"),
        ("permission:\n  allow: Bash(ls)\n", "2: permission.allow: ", "must be a list"),
        ("permission:\n  allow:\n    Bash: ls\n", "3: permission.allow: ", "must be a list"),
        ("permission:\n  allow: [[Bash]]\n", "2: permission.allow[0]: ", "must be text"),
        ("permission:\n  examples: [{decision: ask}]\n", "2: permission.examples[0]: ", "call is missing"),
        ("notify: {targets: [ntfy]}\n", "1: notify.targets[0]: ", "must be an object"),
        ("- a\n", "", "mapping"),
        ("a: 1\na: 2\n", "2: a", "twice"),
    ],
)
def test_a_wrong_value_is_told_with_file_line_and_field(
    text: str, where: str, what: str, folders: SettingsFolders
) -> None:
    folders.person.write_text(text)
    told = folders.refusal()
    assert told.startswith(f"{folders.person}:{where}" if where else str(folders.person))
    assert what in told


def test_a_wrong_rule_is_told_in_the_file_that_holds_it(folders: SettingsFolders) -> None:
    folders.person.write_text("permission:\n  deny: [Write, Read]\n")
    folders.ours.write_text("permission:\n  deny:\n  - Edit\n  - (\n")
    assert folders.refusal().startswith(f"{folders.ours}:4: permission.deny[1]")


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("CALLBOARD_LIMITS__STEPS", "many", "must be a whole number"),
        ("CALLBOARD_LIMITS__STEP", "5", "choose steps"),
        ("CALLBOARD_MODLE", "x", "choose CALLBOARD_MODEL"),
        ("CALLBOARD_FALLBACK_MODELS", "[a, ", "not valid YAML"),
    ],
)
def test_a_wrong_variable_is_told_by_its_name(variable: str, value: str, what: str, folders: SettingsFolders) -> None:
    told = folders.refusal(**{variable: value})
    assert variable in told
    assert what in told


def test_variables_of_the_runtime_that_are_no_settings_and_empty_ones_are_passed_over(folders: SettingsFolders) -> None:
    loaded = folders.load(CALLBOARD_CALLER="tool", CALLBOARD_MODEL=" ", MODEL_ID="", CALLBOARD_ASK__DEADLINE="null")
    assert loaded.settings.model == Settings().model
    assert loaded.settings.ask.deadline is None


def test_a_remote_with_a_password_is_refused_without_repeating_it(folders: SettingsFolders) -> None:
    folders.person.write_text("workspace_remote: https://alice:hunter2@example.com/a/b\n")
    told = folders.refusal()
    assert "hunter2" not in told
    assert told.startswith(f"{folders.person}:1: workspace_remote: the address contains")


def test_several_fallback_models_come_from_one_variable(folders: SettingsFolders) -> None:
    assert folders.load(FALLBACK_MODEL_ID="a, b").settings.fallback_models == ("a", "b")


_REDIRECTS = ["base_url: http://evil", "workspace_remote: git@evil:x/y", "workspace_base: evil", "checkpoint: off"]


@pytest.mark.parametrize("text", [*_REDIRECTS, "permission:\n  mode: bypassPermissions"])
def test_a_workspace_cannot_redirect_the_key_nor_lift_the_permissions(text: str, folders: SettingsFolders) -> None:
    folders.ours.write_text(text)
    assert "a workspace may not set this" in folders.refusal()
    folders.person.write_text(text)
    assert folders.load(trusted=False)


def test_the_base_url_comes_from_the_environment(folders: SettingsFolders) -> None:
    assert folders.load(ANTHROPIC_BASE_URL="http://127.0.0.1:1").settings.base_url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4-8",
        "claude-sonnet-5-5",
        "claude-haiku-4-5-20251001",
        "rehearsal:demo",
        "cassette:f",
    ],
)
def test_limits_and_prices_of_known_models_are_sensible(model: str, folders: SettingsFolders) -> None:
    limits = folders.load().settings.limits_of(model)
    assert 8_000 <= limits.max_output < limits.window
    assert 0 < limits.price_read < limits.price_input < limits.price_write < limits.price_output


def test_a_price_of_ones_own_wins_over_the_built_in_one_and_leaves_the_rest(folders: SettingsFolders) -> None:
    before = folders.load().settings.limits_of("claude-opus-4-8")
    folders.person.write_text("models: {claude-opus-4-8: {price_output: 99}}\n")
    after = folders.load().settings.limits_of("claude-opus-4-8")
    assert after == before.model_copy(update={"price_output": 99.0})


def test_a_pipeline_may_be_listed_with_parameters(folders: SettingsFolders) -> None:
    folders.person.write_text(
        "context: {pipeline: [{stage: clear_old_results, params: {keep: 7}}, {stage: summarize_all}]}\n"
    )
    stages = pipeline_of(folders.load().settings)
    assert [stage.stage for stage in stages] == ["clear_old_results", "summarize_all"]
    assert stages[0].params == {"keep": 7}
    assert len(pipeline_of(Settings())) == 3


def test_each_agent_type_may_have_a_pipeline_of_its_own(folders: SettingsFolders) -> None:
    folders.person.write_text(
        "context:\n  pipeline: progressive\n  pipelines: {explore: micro, teammate: [{stage: snip_middle}]}\n"
    )
    settings = folders.load().settings
    assert pipeline_of(settings) == pipeline_of(settings, "lead") == PRESETS["progressive"]
    assert pipeline_of(settings, "explore") == PRESETS["micro"]
    assert [stage.stage for stage in pipeline_of(settings, "teammate")] == ["snip_middle"]


def test_an_agent_type_may_get_its_pipeline_from_another_source(folders: SettingsFolders) -> None:
    folders.person.write_text("context:\n  pipelines: {explore: micro}\n")
    folders.ours.write_text("context:\n  pipelines: {teammate: regional}\n")
    loaded = folders.load(CALLBOARD_CONTEXT__PIPELINES__LEAD="progressive")
    assert loaded.settings.context.pipelines == {"explore": "micro", "teammate": "regional", "lead": "progressive"}
    assert loaded.place(("context", "pipelines", "teammate")) == f"{folders.ours}:2: context.pipelines.teammate"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("context:\n  pipeline:\n  - stage: snip_middle\n  - stage: mine:shorten\n", "4: context.pipeline[1]"),
        ("context:\n  pipelines:\n    explore: [{stage: 'mine:shorten'}]\n", "3: context.pipelines.explore[0]"),
    ],
)
def test_a_persons_own_stage_is_named_by_the_person_and_by_no_workspace(
    text: str, field: str, folders: SettingsFolders
) -> None:
    folders.person.write_text(text)
    assert folders.load().settings.context
    folders.person.unlink()
    folders.ours.write_text(text)
    told = folders.refusal()
    assert told.startswith(f"{folders.ours}:{field}")
    assert "a workspace may not set this" in told


def test_a_file_that_cannot_be_read_is_told(folders: SettingsFolders) -> None:
    folders.person.mkdir()
    assert str(folders.person) in folders.refusal()


def test_flags_may_be_lists(folders: SettingsFolders) -> None:
    settings = folders.load(flags={"permission.allow": ("Bash(ls:*)",), "limits.steps": 3}).settings
    assert settings.permission.allow == ("Bash(ls:*)",)
    assert settings.limits.steps == 3
