"""The stored schemas of tools are those that pydantic makes, and a start makes none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.adapters.tools import base, schemas

STORED = Path(base.__file__).parents[2] / "data" / "tool_schemas.json"


def test_the_stored_schemas_are_those_of_the_inputs() -> None:
    assert STORED.read_text("utf-8") == schemas.stored_schemas(), (
        "run: python -m callboard.adapters.tools.schemas > schemas.json && "
        "mv schemas.json runtime/callboard/data/tool_schemas.json"
    )


def test_no_schema_of_a_tool_of_the_package_is_made_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {base.schema_key(kind): kind for kind in schemas.own_inputs()}
    assert len(kinds) == len(json.loads(STORED.read_text("utf-8"))) > 40
    monkeypatch.setattr(base, "made_schema", lambda kind: pytest.fail(f"{kind} is made"))
    for kind in kinds.values():
        assert json.loads(base._schema_text.__wrapped__(kind))["type"] == "object"


def test_the_schema_of_another_class_is_made() -> None:
    class Own(base.ToolInput):
        number: int

    assert base.schema_of(Own)["properties"] == {"number": {"type": "integer"}}
