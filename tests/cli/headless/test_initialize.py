"""What an `initialize` changes in the options of a session."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.headless.client import Client
from callboard.cli.headless.initialize import options_of, schema_of
from callboard.cli.headless.json_result import schema_words
from callboard.sessions.options import LeadOptions, SessionOptions, WorkspaceOptions
from callboard.types.errors import UsageError

SCHEMA = {"type": "object"}
NAMES = st.sampled_from(
    [
        *("type", "path", "description", "prompt", "tools", "model", "matcher", "timeout", "hookCallbackIds"),
        *("onFailure", "PreToolUse", "Stop", "mcpServers", "command", "memory", "effort", "maxTurns", "x", ""),
    ]
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "x", "local", "\0", "Bash", "*("])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
PARTS = ("hooks", "agents", "sdkMcpServers", "skills", "plugins", "mcpServers", "systemPrompt", "jsonSchema", "title")


def extended(request: dict[str, Any], **lead: Any) -> tuple[SessionOptions, tuple[str, ...]]:
    options = SessionOptions(WorkspaceOptions(Path("/work")), lead=LeadOptions(**lead))
    return options_of(request, options, Client(lambda message: None), lambda subtype, about: None)


def test_prompts_and_schema_become_options_of_the_lead() -> None:
    options, notes = extended(
        {
            "systemPrompt": ["You count.", "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__", "Today."],
            "appendSystemPrompt": "In dozens.",
        }
    )
    assert options.lead.instructions.split() == ["You", "count.", "Today."]
    assert options.lead.appended == "In dozens."
    assert not notes
    kept, _ = extended({"systemPrompt": [""]}, instructions="Mine.")
    assert kept.lead.instructions == "Mine.", "an empty prompt changes nothing"
    with_schema, _ = extended({"jsonSchema": SCHEMA})
    assert with_schema.lead.schema == schema_words(SCHEMA)
    once, _ = extended({"jsonSchema": SCHEMA}, schema=schema_words(SCHEMA))
    assert once.lead.schema == schema_words(SCHEMA), "the command line had it already"
    assert schema_of({"jsonSchema": SCHEMA}, None) == SCHEMA


def test_skills_plugins_and_servers_are_added_and_the_rest_is_reported() -> None:
    options, notes = extended(
        {
            "skills": ["fix"],
            "plugins": [{"type": "local", "path": "/plugin"}],
            "mcpServers": {"clock": {"command": "clock"}},
            "toolAliases": {"Bash": "mcp__x__bash"},
        }
    )
    assert options.extensions.skills == ("fix",)
    assert options.extensions.plugins == (Path("/plugin"),)
    assert options.mcp.config == ('{"mcpServers": {"clock": {"command": "clock"}}}',)
    assert [note.partition(" is ignored: ")[0] for note in notes] == ["initialize: toolAliases"]


@pytest.mark.parametrize(
    "request_",
    [
        *({"systemPrompt": [1]}, {"skills": [None]}, {"jsonSchema": []}, {"plugins": [{"type": "git", "path": "x"}]}),
        *({"plugins": [True]}, {"plugins": {}}, {"plugins": [{"type": "local", "path": "a\0b"}]}),
    ],
)
def test_an_invalid_part_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="initialize: "):
        extended(request_)


@given(st.dictionaries(st.sampled_from(PARTS), VALUES, max_size=3))
def test_any_request_is_taken_or_refused(request_: dict[str, Any]) -> None:
    with suppress(UsageError):
        extended(request_)
