"""A tool as its server declares it: the effect of its hints, and the permissions that it may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.adapters.mcp.tools import read_declaration
from callboard.ports.tool import ToolSpec


def spec_of(**more: Any) -> ToolSpec:
    found = read_declaration("shop", {"name": "buy", "inputSchema": {"type": "object"}, **more}, 60)
    assert found is not None
    return found.spec


@pytest.mark.parametrize(
    ("hints", "effect", "destructive"),
    [
        ({}, "unknown", False),
        ({"readOnlyHint": True}, "read", False),
        ({"readOnlyHint": "yes"}, "unknown", False),
        ({"readOnlyHint": False, "destructiveHint": True}, "unknown", True),
        ({"readOnlyHint": True, "destructiveHint": True}, "read", False),
        ("nonsense", "unknown", False),
    ],
)
def test_hints_say_how_a_cut_call_is_repaired_and_what_a_question_says(
    hints: object, effect: str, destructive: bool
) -> None:
    spec = spec_of(annotations=hints)
    assert (spec.effect, spec.destructive) == (effect, destructive)
    assert spec.concurrency == ("shared" if effect == "read" else "exclusive")


def test_a_tool_may_ask_for_a_person_and_not_to_be_deferred() -> None:
    asks = spec_of(_meta={"anthropic/requiresUserInteraction": True, "anthropic/alwaysLoad": True})
    assert (asks.person_only, asks.always_load) == (True, True)
    for meta in ({}, None, "x", {"anthropic/requiresUserInteraction": "true", "anthropic/alwaysLoad": 1}):
        plain = spec_of(_meta=meta)
        assert (plain.person_only, plain.always_load) == (False, False)
