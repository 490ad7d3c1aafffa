"""Facts about models: every line of the data file, aliases, and assumptions about unknown models."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from callboard.config.settings import load_settings
from callboard.core.agent.rules.limits import worst_case
from callboard.core.budgets.tree import BudgetNode, fits, used_up
from callboard.types.agent_spec import LEAST_THINKING, ModelFacts, ModelLimits, ThinkingChoice
from callboard.types.errors import SettingsError, UnknownModel
from callboard.types.records import Budget, SessionRule, Usage
from callboard.types.settings import ModelSetting, Settings

LINES: Mapping[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "runtime" / "callboard" / "data" / "models.yaml").read_text("utf-8")
)
SETTINGS = load_settings({}).settings
REQUIRED_FIELDS = {"window", "max_output", "price_input", "price_output"}


@pytest.mark.parametrize("name", LINES)
def test_a_line_states_what_is_needed_and_its_numbers_fit_together(name: str) -> None:
    line = LINES[name]
    ModelSetting.model_validate(line)
    assert set(line) >= REQUIRED_FIELDS
    limits = SETTINGS.limits_of(name.replace("*", ":file"))
    assert 4_096 <= limits.max_output < limits.window <= 1_000_000
    assert 0 < limits.price_read < limits.price_input < limits.price_write < limits.price_output
    assert 256 <= limits.cache_minimum <= 4_096
    assert limits.tools
    assert (limits.long_over is None) == (limits.long_factor == 1.0)


def test_only_models_that_play_a_file_are_covered_by_a_glob() -> None:
    assert {name for name in LINES if set("*?[") & set(name)} == {"rehearsal*", "cassette*"}


def test_no_two_lines_of_equal_length_speak_of_one_model() -> None:
    """The longest matching pattern wins, so two matching patterns must differ in length."""
    for one, other in combinations(LINES, 2):
        both = len(one) == len(other) and (fnmatchcase(one, other) or fnmatchcase(other, one))
        assert not both, f"{one} and {other}"


def test_the_default_model_is_known() -> None:
    assert SETTINGS.model in LINES


@pytest.mark.parametrize(
    ("model", "as_"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("rehearsal:some/file.yaml", "rehearsal"),
        ("rehearsal-small", "rehearsal"),
    ],
)
def test_snapshots_and_aliases_of_a_known_model_are_that_model(model: str, as_: str) -> None:
    assert SETTINGS.limits_of(model) == SETTINGS.limits_of(as_)


@pytest.mark.parametrize(
    ("model", "similar"),
    [
        ("claude-opus-9", "claude-opus-5-5"),
        ("claude-opus-9-20300101", "claude-opus-5-5"),
        ("claude-opus-5-6", "claude-opus-5-5"),
        ("claude-opus-4", "claude-opus-4-1"),
        ("claude-opus-4-20250514", "claude-opus-4-1"),
        ("claude-sonnet-5-5-fast", "claude-sonnet-5-5"),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("my-gateway/claude-haiku-4-5", "claude-haiku-4-5"),
    ],
)
def test_an_unlisted_model_has_the_limits_of_the_most_similar_one_and_no_price(model: str, similar: str) -> None:
    limits, listed = SETTINGS.limits_of(model), SETTINGS.limits_of(similar)
    assert (limits.window, limits.max_output) == (listed.window, listed.max_output)
    assert similar in limits.assumed
    assert limits.cost_of(Usage(input_tokens=1_000_000)) == 0.0
    assert not limits.priced
    assert listed.priced
    assert not listed.assumed


def test_a_model_that_resembles_none_has_modest_limits() -> None:
    limits = SETTINGS.limits_of("gpt-x")
    assert (limits.window, limits.max_output, limits.priced) == (200_000, 32_000, False)
    assert limits.assumed == (
        "the model 'gpt-x' is not listed: assuming 200,000 tokens of context and 32,000 of output (as of most models); "
        "its cost is unknown"
    )
    with pytest.raises(UnknownModel):
        SETTINGS.limits_of("")


def test_the_error_of_a_missing_price_can_be_pasted_once_the_numbers_are_in(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "callboard" / "settings.yaml"
    file.parent.mkdir()
    message = str(load_settings(home).settings.price_needed("claude-opus-9"))
    assert "claude-opus-5" in message, "a typing error still finds its model"
    lines = message.partition("models:\n")[2]
    assert lines == '  "claude-opus-9": {window: ..., max_output: ..., price_input: ..., price_output: ...}'
    file.write_text(f"models:\n{lines}\n")
    with pytest.raises(SettingsError, match=r"settings\.yaml:2"):
        load_settings(home)  # pasted without filling it in
    for number in (9_000, 900, 2.5, 12.5):
        lines = lines.replace("...", str(number), 1)
    file.write_text(f"models:\n{lines}\n")
    limits = load_settings(home).settings.limits_of("claude-opus-9")
    assert (limits.window, limits.max_output, limits.price_input, limits.price_output) == (9_000, 900, 2.5, 12.5)
    assert (limits.price_write, limits.price_read, limits.priced, limits.assumed) == (3.125, 0.25, True, "")


def test_stated_limits_stay_and_only_the_rest_is_assumed() -> None:
    settings = Settings(models={"gpt-x": ModelSetting(window=9_000, price_output=4.5)})
    limits = settings.limits_of("gpt-x")
    assert (limits.window, limits.max_output, limits.priced) == (9_000, 32_000, False)
    line = '"gpt-x": {window: 9000, max_output: ..., price_input: ..., price_output: 4.5}'
    assert str(settings.price_needed("gpt-x")).endswith(line)


ALIASES = [
    ("opus", "claude-opus-5-5"),
    ("Sonnet", "claude-sonnet-5-5"),
    ("haiku", "claude-haiku-5-5"),
    ("fable", "claude-fable-5-1"),
    ("best", "claude-opus-5-5"),
    ("default", "claude-sonnet-5-5"),
    ("opusplan", "claude-sonnet-5-5"),
    ("sonnet[1m]", "claude-sonnet-5-5"),
    ("claude-sonnet-4-5[1m]", "claude-sonnet-4-5[1m]"),
    (" opus [1M] ", "claude-opus-5-5"),
    ("rehearsal:some/file.yaml", "rehearsal:some/file.yaml"),
    ("gpt-x", "gpt-x"),
]


@pytest.mark.parametrize(("name", "model"), ALIASES)
def test_an_alias_is_the_newest_model_of_its_family(name: str, model: str) -> None:
    assert SETTINGS.model_id(name) == model


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"ANTHROPIC_MODEL": "opus"}, "claude-opus-5-5"),
        ({"ANTHROPIC_MODEL": "opus", "MODEL_ID": "haiku"}, "claude-haiku-5-5"),
        ({"ANTHROPIC_MODEL": "opus", "CALLBOARD_MODEL": "sonnet"}, "claude-sonnet-5-5"),
        ({"ANTHROPIC_MODEL": "opus", "ANTHROPIC_DEFAULT_OPUS_MODEL": "my-opus"}, "my-opus"),
        ({"CALLBOARD_MODEL": "fast", "CALLBOARD_MODEL_ALIASES": "{Fast: claude-haiku-4-5}"}, "claude-haiku-4-5"),
        ({"CALLBOARD_MODEL": "opusplan", "CALLBOARD_PERMISSION__MODE": "plan"}, "claude-sonnet-5-5"),
    ],
)
def test_aliases_of_settings_and_environment_become_ids(environ: dict[str, str], model: str) -> None:
    assert load_settings(environ).settings.model == model


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"ANTHROPIC_MODEL": "opusplan"}, "claude-opus-5-5"),
        ({"ANTHROPIC_MODEL": "OpusPlan", "ANTHROPIC_DEFAULT_OPUS_MODEL": "my-opus"}, "my-opus"),
        ({"ANTHROPIC_MODEL": "haiku", "CALLBOARD_PLAN_MODEL": "opus"}, "claude-opus-5-5"),
        ({"ANTHROPIC_MODEL": "opus"}, None),
    ],
)
def test_opusplan_and_a_setting_name_another_model_for_plan_mode(environ: dict[str, str], model: str | None) -> None:
    assert load_settings(environ).settings.plan_model == model


def test_fallbacks_and_the_small_model_may_be_aliases() -> None:
    environ = {"FALLBACK_MODEL_ID": "sonnet, haiku", "ANTHROPIC_SMALL_FAST_MODEL": "haiku"}
    settings = load_settings(environ).settings
    assert settings.fallback_models == ("claude-sonnet-5-5", "claude-haiku-5-5")
    assert settings.small_model == "claude-haiku-5-5"


def test_a_long_window_is_asked_for_by_suffix_and_costs_more() -> None:
    short, long = SETTINGS.limits_of("claude-sonnet-4-5"), SETTINGS.limits_of("claude-sonnet-4-5[1m]")
    assert (short.window, long.window) == (200_000, 1_000_000)
    assert (long.long_over, long.long_factor, long.priced) == (200_000, 2.0, True)


def test_a_call_without_a_price_never_fits_a_budget_in_dollars() -> None:
    limits = SETTINGS.limits_of("gpt-x")
    call = worst_case(limits, 1_000, 1_000)
    rich = BudgetNode("session", budget=Budget(cost_usd=1_000_000.0))
    refusal = fits([BudgetNode("lead"), rich], call, now=0.0)
    assert refusal is not None
    assert (refusal.budget, refusal.kind) == ("session", "price")
    assert "needs a model whose price is known" in used_up(
        refusal.budget, refusal.kind, limit=refusal.limit, spent=0, needed=0
    )
    assert fits([BudgetNode("session", budget=Budget(tokens=5_000))], call, now=0.0) is None


def test_a_narrower_name_wins_over_a_glob_and_a_snapshot_over_its_model() -> None:
    def priced(price: float) -> ModelSetting:
        return ModelSetting(window=9_000, max_output=900, price_input=price, price_output=9.0)

    models = {"my-model-20260101": priced(4), "my-model": priced(3), "my-mod*": priced(2), "my-*": priced(1)}
    settings = Settings(models=models)
    names = ("my-model-20260101", "my-model", "my-modx", "my-x")
    found = {name: settings.limits_of(name).price_input for name in names}
    assert list(found.values()) == [4, 3, 2, 1]
    assert settings.limits_of("my-model-20260202").price_input == 3


def test_what_a_model_lacks_can_be_stated() -> None:
    assert not SETTINGS.limits_of("claude-3-5-haiku").thinking
    lacking = ModelSetting(window=9_000, max_output=900, price_input=1, price_output=2, thinking=False, tools=False)
    limits = Settings(models={"plain": lacking}).limits_of("plain")
    assert (limits.thinking, limits.tools) == (False, False)


def test_a_long_prompt_is_charged_at_the_higher_price_as_a_whole() -> None:
    """Above 100,000 prompt tokens, including cached ones, prices are five times higher, for the reply as well."""
    limits = SETTINGS.limits_of("claude-haiku-5-5")
    short = Usage(input_tokens=40_000, cache_creation_input_tokens=20_000, cache_read_input_tokens=40_000)
    assert limits.cost_of(short) == pytest.approx(0.04 * 0.1 + 0.02 * 0.125 + 0.04 * 0.01)
    long = Usage(input_tokens=40_001, cache_creation_input_tokens=20_000, cache_read_input_tokens=40_000)
    assert limits.cost_of(long.plus(Usage(output_tokens=1_000_000))) == pytest.approx(
        0.040001 * 0.5 + 0.02 * 0.625 + 0.04 * 0.05 + 2.5
    )


@pytest.mark.parametrize("tokens", [1_000, 92_000, 100_001, 900_000])
def test_what_is_held_back_for_a_call_is_never_less_than_it_costs(tokens: int) -> None:
    """Even if the service counts slightly more tokens than Callboard, and charges the prompt as a long one."""
    limits = SETTINGS.limits_of("claude-haiku-5-5")
    held = worst_case(limits, tokens, 8_000).cost_usd
    counted = Usage(cache_creation_input_tokens=tokens, output_tokens=8_000)
    assert held >= limits.cost_of(counted)
    if tokens == 92_000:
        longer = Usage(cache_creation_input_tokens=100_001, output_tokens=8_000)
        assert held >= 0.9 * limits.cost_of(longer)


def test_the_cost_is_each_kind_of_token_at_its_price() -> None:
    limits = ModelLimits(price_input=3, price_write=4, price_read=0.5, price_output=15)
    usage = Usage(input_tokens=10, cache_creation_input_tokens=200, cache_read_input_tokens=3_000, output_tokens=40_000)
    assert limits.cost_of(usage) * 1_000_000 == pytest.approx(10 * 3 + 200 * 4 + 3_000 * 0.5 + 40_000 * 15)


def test_the_window_that_a_service_states_is_not_that_of_the_long_suffix() -> None:
    facts = ModelFacts(window=123_000, max_output=4_000)
    plain, long = (SETTINGS.with_facts(model, facts) for model in ("claude-opus-9", "claude-opus-9[1m]"))
    assert (plain.window, plain.max_output) == (123_000, 4_000)
    assert (long.window, long.max_output) == (SETTINGS.limits_of("claude-opus-9[1m]").window, 4_000)


def test_a_model_that_cannot_think_is_sent_no_thinking() -> None:
    limits = SETTINGS.limits_of("claude-opus-4-8").model_copy(update={"thinking": False})
    assert ThinkingChoice(kind="enabled", budget=2_000).wire(limits, 8_000, 8_000) is None


@pytest.mark.parametrize(
    ("choice", "adaptive", "expected"),
    [
        (ThinkingChoice(kind="disabled"), True, {"type": "disabled"}),
        (ThinkingChoice(kind="enabled", budget=2_000), True, {"type": "adaptive"}),
        (
            ThinkingChoice(kind="adaptive", display="summarized"),
            True,
            {"type": "adaptive", "display": "summarized"},
        ),
        (ThinkingChoice(kind="enabled", budget=2_000), False, {"type": "enabled", "budget_tokens": 2_000}),
        (ThinkingChoice(kind="adaptive"), False, {"type": "enabled", "budget_tokens": 4_000}),
        (ThinkingChoice(kind="enabled", budget=6_976), False, {"type": "enabled", "budget_tokens": 6_976}),
        (ThinkingChoice(kind="enabled", budget=9_000), False, None),
        (ThinkingChoice(kind="enabled", budget=LEAST_THINKING - 1), False, None),
    ],
)
def test_thinking_is_sent_in_the_form_that_the_model_accepts(
    choice: ThinkingChoice, adaptive: bool, expected: dict[str, object] | None
) -> None:
    limits = SETTINGS.limits_of("claude-opus-4-8").model_copy(update={"adaptive_thinking": adaptive})
    assert choice.wire(limits, 8_000, 8_000) == expected


def test_a_rule_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValidationError):
        SessionRule.model_validate(["Bash(ls)"])
