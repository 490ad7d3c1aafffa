"""Arguments that are named like our own variables, and tools that go by one name, hijack nothing."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.json_schema import check_input
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, PathFact, PathQuery, ProposedCall, Script
from callboard.core.tool_access import clashes, normalise_name
from callboard.types.records import Json

OURS = sorted(
    {
        *(field.name for kind in (ProposedCall, AgentPolicy, CallFacts) for field in fields(kind)),
        *(name for called in (judge_call, find_facts, check_input) for name in inspect.signature(called).parameters),
        *("self", "cls", "args", "kwargs", "__class__", "__dict__", "__init__", "None", "True", "agent", "tool", "id"),
        *("command", "path", "file_path", "pattern", "agent_type", "discard_changes", "content", "why", "recurring"),
    }
)
"""Names that our own functions, values and tools use."""


def server_tool(given_: Json, name: str = "mcp__shop__list", effect: str = "read") -> ProposedCall:
    return ProposedCall(name, given_, effect)


@pytest.mark.parametrize("name", OURS)
def test_an_argument_named_like_our_own_variable_is_an_argument(name: str) -> None:
    schema: Json = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    assert check_input(schema, {name: "sudo rm -rf /"}) is None
    assert name in (check_input(schema, {name: 1}) or "")
    assert check_input(schema, {}) is not None
    asked: list[object] = []

    def parse(source: str) -> Script:
        asked.append(source)
        return Script(())

    def look(queries: Collection[PathQuery]) -> Mapping[PathQuery, PathFact]:
        asked.extend(queries)
        return {}

    call = server_tool({name: "sudo rm -rf /"})
    facts = find_facts(call, CallFacts(), parse, look)
    assert asked == [], "it is no command and no path of ours"
    plain = judge_call(server_tool({}), AgentPolicy(), CallFacts())
    assert judge_call(call, AgentPolicy(), facts) == plain
    named = AgentPolicy(allow=(parse_rule("mcp__shop__list"),))
    assert (plain.decision, judge_call(call, named, facts).decision) == ("ask", "allow")


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "bypassPermissions"])
@given(st.dictionaries(st.sampled_from(OURS), st.text() | st.booleans() | st.none() | st.integers()))
def test_whatever_its_arguments_say_a_tool_that_changes_things_asks(mode: str, arguments: Json) -> None:
    policy = AgentPolicy(mode, allow=(parse_rule("Bash"), parse_rule("Read"), parse_rule("mcp__other")))
    call = server_tool(arguments, effect="unknown")
    facts = CallFacts(destructive=True)
    assert (
        judge_call(call, policy, facts).decision
        == judge_call(server_tool({}, effect="unknown"), policy, facts).decision
    )


def test_a_rule_about_a_parameter_reads_that_parameter_and_nothing_else() -> None:
    policy = AgentPolicy(deny=(parse_rule("mcp__shop__list(self:yes)"),), allow=(parse_rule("mcp__shop__list"),))
    denied = judge_call(server_tool({"self": "yes"}), policy, CallFacts())
    assert (denied.decision, denied.rule) == ("deny", "rule mcp__shop__list(self:yes)")
    for arguments in ({"self": "no"}, {"name": "yes"}, {"cls": "yes"}, {}):
        assert judge_call(server_tool(arguments), policy, CallFacts()).decision == "allow"


def test_two_tools_that_a_model_could_not_tell_apart_are_told() -> None:
    assert clashes(["bash", "read_file", "mcp__a__b"]) == ()
    assert clashes(["mcp__a.b__c", "mcp__a_b__c", "bash"]) == (("mcp__a.b__c", "mcp__a_b__c"),)
    assert clashes(["bash", "bash"]) == (("bash", "bash"),)
    assert clashes(["x" * 70, "x" * 64]) != ()
    assert clashes(["mcp__a__b\u200b", "mcp__a__b_"]) != ()


@given(st.text(max_size=100))
def test_a_normalised_name_is_one_that_the_service_takes(name: str) -> None:
    found = normalise_name(name)
    assert len(found) <= 64
    assert all(character.isascii() and (character.isalnum() or character in "_-") for character in found)
    assert normalise_name(found) == found
