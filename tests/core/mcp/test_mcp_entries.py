"""Entries of `mcpServers`: every fault costs its own entry or field, and is told with line and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.mcp.config_entries import Approval, ConfigEntries, expand_variables, off_by, read_document
from callboard.core.trust.yaml_nodes import json_node, node_of
from callboard.types.mcp import ServerEntry


def read(entries: object) -> ConfigEntries:
    return read_document(json_node(json.dumps({"mcpServers": entries}, indent=1)), ".mcp.json", "workspace")


def test_the_fields_of_each_type_are_read() -> None:
    found = read(
        {
            "a": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "timeout": 5000, "alwaysLoad": True},
            "b": {"type": "streamable-http", "url": "https://x/mcp", "headers": {"A": "b"}, "headersHelper": "h"},
            "c": {"type": "sse", "url": "${BASE}/sse"},
        }
    )
    assert found.entries == {
        "a": ServerEntry(
            "a", "stdio", "workspace", ".mcp.json", "npx", ("-y", "x"), {"K": "v"}, timeout=5.0, always_load=True
        ),
        "b": ServerEntry(
            "b", "http", "workspace", ".mcp.json", url="https://x/mcp", headers={"A": "b"}, headers_helper="h"
        ),
        "c": ServerEntry("c", "sse", "workspace", ".mcp.json", url="${BASE}/sse"),
    }
    assert [(fault.field, fault.verdict) for fault in found.faults] == [("mcpServers.c.type", "ignored")]


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ({"url": "https://x"}, "", "url_missing_type"),
        ({"type": "ws", "url": "wss://x"}, ".type", "WebSocket"),
        ({"type": "carrier-pigeon"}, ".type", "unknown type 'carrier-pigeon': choose stdio, http"),
        ({"type": "sdk"}, ".type", "unknown type 'sdk'"),
        ({"type": 5}, ".type", "unknown type 5"),
        ({}, ".command", "missing or empty"),
        ({"command": ["npx"]}, ".command", "is a text"),
        ({"command": "  "}, ".command", "missing or empty"),
        ({"command": "x\0y"}, ".command", "NUL"),
        ({"command": "x", "args": "y"}, ".args", "list of texts"),
        ({"command": "x", "args": ["y", 5]}, ".args[1]", "is a text"),
        ({"command": "x", "env": ["A=b"]}, ".env", "names -> texts"),
        ({"command": "x", "env": {"A": 5}}, ".env.A", "is a text"),
        ({"command": "x", "env": {"A=b": "c"}}, ".env.A=b", "cannot be used as a name"),
        ({"type": "http"}, ".url", "missing or empty"),
        ({"type": "http", "url": "ftp://x"}, ".url", "http://"),
        ({"type": "http", "url": "http://"}, ".url", "with a host"),
        ({"type": "sse", "url": "https:///mcp"}, ".url", "with a host"),
        ({"type": "http", "url": "http://[/"}, ".url", "with a host"),
        ({"type": "http", "url": "https://x", "headers": {"A b": "c"}}, ".headers.A b", "cannot be used as a name"),
        ({"type": "http", "url": "https://x", "headers": {"A": "b\nC: d"}}, ".headers.A", "line break"),
        (5, "", "named fields"),
        (None, "", "named fields"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_with_its_field_and_costs_no_other(
    entry: object, field: str, words: str
) -> None:
    found = read({"good": {"command": "x"}, "bad": entry})
    assert list(found.entries) == ["good"]
    (fault,) = [one for one in found.faults if one.verdict == "refused"]
    assert fault.field == f"mcpServers.bad{field}"
    assert words in fault.why
    assert fault.line > 1


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"timeout": 500}, "timeout", "under 1000"),
        ({"timeout": "5s"}, "timeout", "number of milliseconds"),
        ({"alwaysLoad": "yes"}, "alwaysLoad", "true or false"),
        ({"url": "https://x"}, "url", "says nothing for a server of type stdio"),
        ({"autoApprove": []}, "autoApprove", "not a field of a server"),
        ({"args": [" x"]}, "args[0]", "white space"),
        ({"oauth": {}}, "oauth", "OAuth"),
    ],
)
def test_a_field_that_a_server_can_do_without_is_told_and_the_rest_counts(
    fields: dict[str, object], name: str, words: str
) -> None:
    found = read({"a": {"command": "x", **fields}})
    assert list(found.entries) == ["a"]
    (fault,) = found.faults
    assert fault.field == f"mcpServers.a.{name}"
    assert words in fault.why


@pytest.mark.parametrize("name", ["workspace", "claude-in-chrome", "computer-use", "Claude Preview", " ", "n" * 300])
def test_reserved_and_unusable_names_are_refused(name: str) -> None:
    found = read({name: {"command": "x"}})
    assert not found.entries
    assert found.faults[0].verdict == "refused"


def test_a_name_that_stands_twice_and_a_document_without_servers_are_told() -> None:
    twice = read_document(json_node('{"mcpServers": {"a": {"command": "x"},\n"a": {"command": "y"}}}'), "f", "person")
    assert twice.entries["a"].command == "y"
    assert (twice.faults[0].line, twice.faults[0].verdict) == (2, "ignored")
    for text in ("[]", "{}", '{"servers": {}}', '{"mcpServers": []}', "5"):
        found = read_document(json_node(text), "f", "person")
        assert not found.entries
        assert len(found.faults) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["type", "command", "args", "env", "url", "headers", "timeout", "alwaysLoad", "headersHelper"])


@given(st.dictionaries(st.text(max_size=5), st.dictionaries(FIELDS, JSON | st.sampled_from(["stdio", "http"]))))
def test_whatever_stands_there_is_an_entry_or_a_fault(entries: dict[str, dict[str, object]]) -> None:
    found = read_document(node_of({"mcpServers": entries}, {}), "f", "person")
    for name in entries:
        told = [one for one in found.faults if one.field.startswith(f"mcpServers.{name}") and one.verdict == "refused"]
        assert name in found.entries or told


def test_variables_are_expanded_and_unset_ones_stay_and_are_told() -> None:
    entry = ServerEntry(
        "a",
        "http",
        "person",
        "f",
        "${HOME}/x",
        ("${A:-b}", "${NO:-}", "$A", "${NO}"),
        {"K": "${A}${EMPTY:-d}${EMPTY}"},
        "https://${HOST:-h.example}/",
        {"Authorization": "Bearer ${TOKEN}"},
    )
    filled, unset = expand_variables(entry, {"HOME": "/h", "A": "${HOME}", "EMPTY": ""})
    assert filled.command == "/h/x"
    assert filled.args == ("${HOME}", "", "$A", "${NO}")  # a value is not expanded again
    assert filled.env == {"K": "${HOME}d"}
    assert filled.url == "https://h.example/"
    assert filled.headers == {"Authorization": "Bearer ${TOKEN}"}
    assert unset == ("NO", "TOKEN")


MINE = ServerEntry("a", "stdio", "workspace", ".mcp.json", "npx", ("-y", "x"))
FAR = ServerEntry("far", "http", "person", "f", url="https://mcp.example.com/v1")


@pytest.mark.parametrize(
    ("entry", "key", "value", "off"),
    [
        (MINE, "disabledMcpjsonServers", ["a"], True),
        (FAR, "disabledMcpjsonServers", ["far"], False),
        (MINE, "enabledMcpjsonServers", ["b"], True),
        (MINE, "enabledMcpjsonServers", ["a"], False),
        (MINE, "enabledMcpjsonServers", [], False),
        (FAR, "enabledMcpjsonServers", ["b"], False),
        (FAR, "disabledMcpServers", ["far"], True),
        (MINE, "deniedMcpServers", [{"serverName": "a"}], True),
        (MINE, "deniedMcpServers", [{"serverCommand": ["npx", "-y", "x"]}], True),
        (MINE, "deniedMcpServers", [{"serverCommand": ["npx"]}], False),
        (FAR, "deniedMcpServers", [{"serverUrl": "https://*.example.com/*"}], True),
        (FAR, "allowedMcpServers", [{"serverName": "a"}], True),
        (MINE, "allowedMcpServers", [{"serverName": "a"}], False),
        (MINE, "allowedMcpServers", [], True),
        (MINE, "deniedMcpServers", "a", False),
    ],
)
def test_settings_switch_servers_off_by_name_command_or_address(
    entry: ServerEntry, key: str, value: object, off: bool
) -> None:
    approval = Approval(key, node_of(value, {}), "settings.json:3")
    assert bool(off_by(entry, [approval])) is off
    loosens = key in ("enabledMcpjsonServers", "allowedMcpServers")
    assert bool(off_by(entry, [Approval(key, node_of(value, {}), "p", trusted=False)])) is (off and not loosens)


def test_all_servers_of_a_project_may_be_on_at_once() -> None:
    only_b = Approval("enabledMcpjsonServers", node_of(["b"], {}), "p")
    every = Approval("enableAllProjectMcpServers", node_of(True, {}), "p")
    assert "does not name it (p)" in off_by(MINE, [only_b])
    assert not off_by(MINE, [only_b, every])
