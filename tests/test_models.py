"""What is known of models: every line of the data file, whom it serves, and what an unknown model is told."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from callboard.core.budget.limits import worst_case
from callboard.settings import load_settings
from callboard.words.errors import SettingsError, UnknownModel
from callboard.words.settings_model import ModelSetting, Settings
from callboard.words.specs import ModelLimits
from callboard.words.values import Usage

LINES: Mapping[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "runtime" / "callboard" / "data" / "models.yaml").read_text("utf-8")
)
SETTINGS = load_settings({}).settings
NEEDED = {"window", "max_output", "price_input", "price_output"}


@pytest.mark.parametrize("name", LINES)
def test_a_line_states_what_is_needed_and_its_numbers_fit_together(name: str) -> None:
    line = LINES[name]
    ModelSetting.model_validate(line)
    assert set(line) >= NEEDED
    limits = SETTINGS.limits_of(name.replace("*", ":file"))
    assert 4_096 <= limits.max_output < limits.window <= 1_000_000
    assert 0 < limits.price_read < limits.price_input < limits.price_write < limits.price_output
    assert 256 <= limits.cache_minimum <= 4_096
    assert limits.tools
    assert (limits.long_over is None) == (limits.long_factor == 1.0)


def test_only_models_that_play_a_file_are_covered_by_a_glob() -> None:
    assert {name for name in LINES if set("*?[") & set(name)} == {"rehearsal*", "cassette*"}


def test_no_two_lines_of_equal_length_speak_of_one_model() -> None:
    """Of two patterns the longer one's word counts: two of one length would leave it to their order."""
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
    "model",
    [
        "claude-opus-9",
        "claude-opus-5-6",
        "claude-sonnet-5-5-1",
        "claude-sonnet-5-5-fast",
        "claude-sonnet-5-5-2025",
        "claude-sonnet",
        "claude-opus-9-20300101",
        "xclaude-sonnet-5-5",
        "gpt-x",
        "",
    ],
)
def test_a_version_that_is_not_listed_is_asked_for_and_never_guessed(model: str) -> None:
    with pytest.raises(UnknownModel, match="not guessed"):
        SETTINGS.limits_of(model)


def test_what_an_unknown_model_is_told_can_be_pasted_once_the_numbers_are_in(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "callboard" / "settings.yaml"
    file.parent.mkdir()
    with pytest.raises(UnknownModel) as told:
        load_settings(home).settings.limits_of("claude-opus-9")
    assert "claude-opus-5" in str(told.value), "a slip of the pen finds its model"
    lines = str(told.value).partition("models:\n")[2]
    assert lines == '  "claude-opus-9": {window: ..., max_output: ..., price_input: ..., price_output: ...}'
    file.write_text(f"models:\n{lines}\n")
    with pytest.raises(SettingsError, match=r"settings\.yaml:2"):
        load_settings(home)  # pasted, and not filled in
    for number in (9_000, 900, 2.5, 12.5):
        lines = lines.replace("...", str(number), 1)
    file.write_text(f"models:\n{lines}\n")
    limits = load_settings(home).settings.limits_of("claude-opus-9")
    assert (limits.window, limits.max_output, limits.price_input, limits.price_output) == (9_000, 900, 2.5, 12.5)
    assert (limits.price_write, limits.price_read) == (3.125, 0.25)


def test_what_is_stated_already_is_kept_in_the_line_to_paste() -> None:
    settings = Settings(models={"gpt-x": ModelSetting(window=9_000, price_output=4.5)})
    with pytest.raises(UnknownModel) as told:
        settings.limits_of("gpt-x")
    line = '"gpt-x": {window: 9000, max_output: ..., price_input: ..., price_output: 4.5}'
    assert str(told.value).endswith(line)


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
    """The vendor's list: over 100,000 tokens of prompt, cached ones included, five times, the reply too."""
    limits = SETTINGS.limits_of("claude-haiku-5-5")
    short = Usage(input_tokens=40_000, cache_creation_input_tokens=20_000, cache_read_input_tokens=40_000)
    assert limits.cost_of(short) == pytest.approx(0.04 * 0.1 + 0.02 * 0.125 + 0.04 * 0.01)
    long = Usage(input_tokens=40_001, cache_creation_input_tokens=20_000, cache_read_input_tokens=40_000)
    assert limits.cost_of(long.plus(Usage(output_tokens=1_000_000))) == pytest.approx(
        0.040001 * 0.5 + 0.02 * 0.625 + 0.04 * 0.05 + 2.5
    )


@pytest.mark.parametrize("tokens", [1_000, 92_000, 100_001, 900_000])
def test_what_is_held_back_for_a_call_is_never_less_than_it_costs(tokens: int) -> None:
    """Also where the service counts the prompt as a little longer than we do, and charges it as a long one."""
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
