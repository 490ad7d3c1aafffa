"""Errors in a scenario file are reported with their position; chaos depends on its seed; the page is correct."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.models.rehearsal.chaos import KINDS, Chaos
from callboard.adapters.models.rehearsal.replies import DROPS, SimulatedFault
from callboard.adapters.models.rehearsal.scenario_file import (
    FAULT_FIELDS,
    GUARD_FIELDS,
    MODEL_FIELDS,
    RATE_FIELDS,
    STEP_FIELDS,
    TOP_FIELDS,
    load_scenario,
    validate,
)
from callboard.types.errors import SettingsError

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# Errors in a file.


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("agents: {}\n", "s.yaml:1: agents: names the agents and their steps; there are none"),
        ("agents:\n  lead: []\n", "s.yaml:2: agents.lead: is a list of steps"),
        ("agents:\n  lead:\n    - rply: x\n", "s.yaml:3: agents.lead[0].rply: is not a field here: choose when,"),
        ("agents:\n  lead:\n    - repeat: 2\n", "s.yaml:3: agents.lead[0].reply: says what is answered; it is missing"),
        ("agents:\n  lead:\n    - {reply: x, repeat: 0}\n",
         "agents.lead[0].repeat: is a whole number from 1 up, or forever"),
        ("agents:\n  lead:\n    - {reply: x, stop_reason: done}\n",
         "agents.lead[0].stop_reason: is one of: compaction"),
        ("agents:\n  lead:\n    - {reply: x, stop_reason: tool_use}\n", "stop_reason: the API says `tool_use` if"),
        ("agents:\n  lead:\n    - reply: ['']\n", "s.yaml:3: agents.lead[0].reply[0].text: is text that is not empty"),
        ("agents:\n  lead:\n    - reply:\n        - tool_use: {name: a b}\n",
         "s.yaml:4: agents.lead[0].reply[0].tool_use.name"),
        ("agents:\n  lead:\n    - reply:\n        - tool_use: {name: a, input: [1]}\n", "tool_use.input: is a mapping"),
        ("agents:\n  lead:\n    - {reply: x, when: {contains: '('}}\n", "when.contains: is not a regular expression"),
        ("agents:\n  lead:\n    - {reply: x, when: {holds: x}}\n", "when.holds: is not a field here"),
        ("agents:\n  lead:\n    - {reply: x, when: {}, otherwise: true}\n", "an `otherwise` step has no guard"),
        ("agents:\n  lead:\n    - {reply: x, fault: {status: 200}}\n", "fault.status: cannot be 200"),
        ("agents:\n  lead:\n    - {reply: x, fault: {drop: later}}\n", "fault.drop: cannot be 'later': before_headers"),
        ("agents:\n  lead:\n    - {reply: x, fault: {times: 2}}\n", "fault: sets exactly one of: status, drop"),
        ("agents:\n  lead:\n    - {reply: x, capture: {1a: x}}\n", "capture.1a: is a name of letters"),
        ("models: {m: {windw: 1}}\nagents: {lead: [{reply: x}]}\n", "s.yaml:1: models.m.windw: is not a field here"),
        ("models: {m: {window: big}}\nagents: {lead: [{reply: x}]}\n", "models.m.window: is a whole number, not 'big'"),
        ("models: {m: {thinking: [hard]}}\nagents: {lead: [{reply: x}]}\n",
         "models.m.thinking: is a list of: adaptive"),
        ("latency_ms: 5000000000\nagents: {lead: [{reply: x}]}\n",
         "latency_ms: is at most 1,000,000,000, not 5000000000"),
        ("latency_ms: -1\nagents: {lead: [{reply: x}]}\n", "latency_ms: is a number from 0 up, not -1"),
        ("latency_ms: soon\nagents: {lead: [{reply: x}]}\n", "latency_ms: is a number from 0 up, not 'soon'"),
        ("agents:\n  lead:\n    - reply: x\n    - reply: x\n      reply: y\n",
         "s.yaml:5: agents.lead[1].reply: is written twice"),
        ("rate: {requests: few}\nagents: {lead: [{reply: x}]}\n", "rate.requests: is a whole number, not 'few'"),
        ("just text\n", "s.yaml:1: a scenario is a mapping with the field `agents`"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_file_line_and_field(tmp_path: Path, written: str, told: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(written)
    problems = validate(path)
    assert any(told in problem for problem in problems), problems
    with pytest.raises(SettingsError):
        load_scenario(path)


def test_every_mistake_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("nme: x\nagents:\n  lead:\n    - rply: x\n    - {reply: x, repeat: 0}\n")
    assert len(validate(path)) == 4


def test_a_good_file_has_no_mistakes_and_its_models_are_those_it_names(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("models:\n  tiny: {window: 500, prefill: true}\nagents:\n  lead:\n    - {reply: hello, note: n}\n")
    assert validate(path) == []
    read = load_scenario(path)
    assert (read.name, read.default_model, list(read.models)) == ("good", "tiny", ["tiny"])
    assert (read.models["tiny"].window, read.models["tiny"].prefill) == (500, True)


# Chaos.


def test_one_seed_is_one_fate() -> None:
    chaos = Chaos(7, dict.fromkeys(KINDS, 0.08))
    drawn = [chaos.draw("lead", str(n), 1) for n in range(200)]
    assert drawn == [Chaos(7, dict.fromkeys(KINDS, 0.08)).draw("lead", str(n), 1) for n in range(200)]
    assert drawn != [Chaos(8, dict.fromkeys(KINDS, 0.08)).draw("lead", str(n), 1) for n in range(200)]
    assert {fault.kind for fault in drawn if fault} >= {"status", "drop", "html", "bad_json", "slow_s"}


def test_a_call_goes_through_after_as_many_faults_as_are_allowed() -> None:
    chaos = Chaos(1, {"overloaded": 1.0}, at_most=3)
    assert [chaos.draw("a", "1", n) for n in range(1, 6)] == [SimulatedFault(status=529)] * 3 + [None, None]


def test_rates_that_are_no_chances_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown faults 'meteor'"):
        Chaos(1, {"meteor": 0.1})
    with pytest.raises(ValueError, match="chances"):
        Chaos(1, {"overloaded": 0.7, "html": 0.7})


# The page for users.


def page() -> str:
    return (Path(__file__).parents[3] / "docs" / "rehearsal.md").read_text(encoding="utf-8")


def test_every_example_of_the_page_is_a_good_scenario(tmp_path: Path) -> None:
    examples = [part.split("```")[0] for part in re.split(r"```yaml \S+\n", page())[1:]]
    assert len(examples) == 3
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(example if "agents:" in example else f"agents:\n  lead:\n{example}")
        assert validate(path) == []


def test_the_page_names_every_field_and_fault() -> None:
    for field in (*TOP_FIELDS, *STEP_FIELDS, *GUARD_FIELDS, *MODEL_FIELDS, *FAULT_FIELDS, *RATE_FIELDS):
        assert f"`{field}" in page() or f" {field}:" in page(), field
    for drop in DROPS:
        assert f"`drop: {drop}`" in page()
