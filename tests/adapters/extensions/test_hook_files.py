"""Hook files written for other tools are read, and everything that is dropped is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from callboard.adapters.extensions.hook_commands import CommandHandler
from callboard.adapters.extensions.hook_fields import ConditionalHandler, HookOrigin, HttpHandler, HttpLimits
from callboard.adapters.extensions.hooks import (
    WITHOUT_MOMENT,
    HooksRead,
    http_limits,
    joined_limits,
    load_hooks,
    read_hooks,
)
from callboard.ports.hooks import HookTerms
from callboard.types.errors import SettingsError

COMPATIBLE, OURS = HookOrigin("/w"), HookOrigin("/w", compatible=False)
OK = {"type": "command", "command": "check.sh"}
HTTP = {"type": "http", "url": "https://hooks.example/x"}


def read(hooks: object, origin: HookOrigin = COMPATIBLE) -> HooksRead:
    return read_hooks(hooks, "settings.json", origin)


def load(handler: object, event: str = "PreToolUse", **group: object) -> HooksRead:
    return read({event: [{"hooks": [handler], **group}]})


def test_a_settings_file_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    hooks = {
        "PreToolUse": [{"matcher": "Edit|Write", "hooks": [OK, OK | {"command": "lint.sh", "timeout": 5}]}],
        "UserPromptSubmit": [{"hooks": [OK | {"command": "node", "args": ["a.js"]}]}],
        "Stop": [{"matcher": "*", "hooks": [OK]}],
    }
    path.write_text("\ufeff" + json.dumps({"permissions": {}, "hooks": hooks}, indent="\t"))
    found = load_hooks(path, COMPATIBLE)
    assert found.notes == ()
    assert [(entry.event, entry.matcher, entry.handler.name) for entry in found.entries] == [
        ("PreToolUse", "Edit|Write", "check.sh"),
        ("PreToolUse", "Edit|Write", "lint.sh"),
        ("UserPromptSubmit", "", "node a.js"),
        ("Stop", "", "check.sh"),
    ]
    assert [entry.handler.timeout for entry in found.entries] == [600, 5, 30, 600]
    assert all(entry.fail_open for entry in found.entries)


def test_ours_fail_closed_and_take_the_registrys_time() -> None:
    (entry,) = read({"PreToolUse": [{"hooks": [OK]}]}, OURS).entries
    assert (entry.fail_open, entry.handler.timeout) == (False, None)


def test_identical_handlers_are_equal() -> None:
    first, second = load(OK).entries[0].handler, load(OK, matcher="Bash").entries[0].handler
    assert first == second == CommandHandler("check.sh", "/w", timeout=600)


@pytest.mark.parametrize(
    ("handler", "place", "why"),
    [
        (OK | {"type": "prompt"}, ".type", "would ask a model"),
        (OK | {"type": "agent"}, ".type", "would ask a model"),
        (OK | {"type": "mcp_tool"}, ".type", "past the rules"),
        (OK | {"type": "comand"}, ".type", "no type 'comand'"),
        ({"command": "x"}, ".type", "no type None"),
        ({"type": "command"}, ".command", "not empty"),
        (OK | {"command": "a\0b"}, ".command", "not empty"),
        (OK | {"command": "${CLAUDE_PLUGIN_ROOT}/x"}, ".command", "CLAUDE_PLUGIN_ROOT"),
        (OK | {"args": ["${user_config.a}"]}, ".command", "user_config"),
        (OK | {"args": "x"}, ".args", "list"),
        (OK | {"args": [1]}, ".args", "list of texts"),
        (OK | {"timeout": "5"}, ".timeout", "number"),
        (OK | {"timeout": 0}, ".timeout", "above 0"),
        (OK | {"timeout": True}, ".timeout", "number"),
        (OK | {"if": "Bash(git"}, ".if", "not a rule"),
        (OK | {"if": ["Bash"]}, ".if", "not a rule"),
        (OK | {"if": "Bash(git *) || Read"}, ".if", "not a rule"),
        (OK | {"async": "yes"}, ".async", "true or false"),
        (OK | {"onFailure": "deny"}, ".onFailure", "`block` or `allow`"),
        (HTTP | {"url": "ftp://x"}, ".url", "http://"),
        (HTTP | {"url": "https://"}, ".url", "http://"),
        (HTTP | {"url": "http://a:99999/"}, ".url", "http://"),
        (HTTP | {"url": "http://a/ b"}, ".url", "http://"),
        (HTTP | {"headers": {"A": 1}}, ".headers.A", "not a header"),
        (HTTP | {"headers": {"A B": "x"}}, ".headers.A B", "not a header"),
        (HTTP | {"headers": {"A": "x\r\nB: y"}}, ".headers.A", "not a header"),
        (HTTP | {"allowedEnvVars": "TOKEN"}, ".allowedEnvVars", "list"),
        (OK | {"shell": "powershell"}, ".shell", "bash"),
        ("check.sh", "", "object"),
    ],
)
def test_what_this_version_cannot_do_is_refused_where_it_stands(handler: object, place: str, why: str) -> None:
    found = read({"PreToolUse": [{"hooks": [handler, OK]}]})
    assert len(found.entries) == 1, "the rest of the file is read"
    (note,) = found.notes
    assert (note.path, note.field, note.verdict) == ("settings.json", f"hooks.PreToolUse[0].hooks[0]{place}", "refused")
    assert why in note.reason


@pytest.mark.parametrize("event", [*sorted(WITHOUT_MOMENT), "PreTool", "pretooluse"])
def test_other_events_are_refused(event: str) -> None:
    found = read({event: [{"hooks": [OK]}], "Stop": [{"hooks": [OK]}]})
    assert [entry.event for entry in found.entries] == ["Stop"]
    (note,) = found.notes
    assert note.field == f"hooks.{event}"
    assert ("never happens here" in note.reason) == (event in WITHOUT_MOMENT)


@pytest.mark.parametrize(
    ("hooks", "field"),
    [
        ([], "hooks"),
        ({"Stop": {}}, "hooks.Stop"),
        ({"Stop": ["x"]}, "hooks.Stop[0]"),
        ({"Stop": [{}]}, "hooks.Stop[0].hooks"),
        ({"PreToolUse": [{"matcher": 1, "hooks": [OK]}]}, "hooks.PreToolUse[0].matcher"),
        ({"PreToolUse": [{"matcher": "(", "hooks": [OK]}]}, "hooks.PreToolUse[0].matcher"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_place(hooks: object, field: str) -> None:
    found = read(hooks)
    assert found.entries == ()
    assert [(note.field, note.verdict) for note in found.notes] == [(field, "refused")]


@pytest.mark.parametrize(
    ("found", "field", "why"),
    [
        (load(OK, matcher="mcp__memory"), "hooks.PreToolUse[0].matcher", "never run"),
        (load(OK, "Stop", matcher="Bash"), "hooks.Stop[0].matcher", "has no matcher"),
        (load(OK, "SessionStart", matcher="fork"), "hooks.SessionStart[0].matcher", "never run"),
        (load(OK, "Notification", matcher="idle|nothing"), "hooks.Notification[0].matcher", "never run"),
        (load(OK, "WorktreeCreate"), "hooks.WorktreeCreate", "not used"),
        (load(OK | {"if": "Frobnicate(*.ipynb)"}), "hooks.PreToolUse[0].hooks[0].if", "no tool Frobnicate"),
        (load(OK | {"async": True}), "hooks.PreToolUse[0].hooks[0].async", "no effect"),
        (load(OK | {"url": "http://x"}), "hooks.PreToolUse[0].hooks[0].url", "not a field of type 'command'"),
        (load(HTTP | {"headers": {"A": "Bearer $KEY"}}), "hooks.PreToolUse[0].hooks[0].headers", "$KEY is not allowed"),
        (load(OK, color="red"), "hooks.PreToolUse[0].color", "no such field"),
        (load(OK | {"statusMessage": "…"}), "hooks.PreToolUse[0].hooks[0].statusMessage", "no effect"),
        (load(OK | {"once": True}), "hooks.PreToolUse[0].hooks[0].once", "skill's front matter"),
        (load(OK | {"retries": 3}), "hooks.PreToolUse[0].hooks[0].retries", "no such field"),
    ],
)
def test_what_has_no_effect_is_told(found: HooksRead, field: str, why: str) -> None:
    assert len(found.entries) == 1
    (note,) = found.notes
    assert (note.field, note.verdict) == (field, "ignored")
    assert why in note.reason


def test_if_is_refused_where_it_would_never_run() -> None:
    """On an event without a call such a handler would never run, and nothing would report it."""
    for event in ("Stop", "UserPromptSubmit", "SessionStart"):
        found = load(OK | {"if": "Bash(git *)"}, event)
        assert found.entries == ()
        assert [(note.field, note.verdict) for note in found.notes] == [(f"hooks.{event}[0].hooks[0].if", "refused")]
        assert "never runs" in found.notes[0].reason


def test_what_a_failure_means_can_be_said_of_each_handler() -> None:
    for origin, written, fail_open in (
        (COMPATIBLE, {}, True),
        (COMPATIBLE, {"onFailure": "block"}, False),
        (OURS, {}, False),
        (OURS, {"onFailure": "allow"}, True),
    ):
        (entry,) = read({"PreToolUse": [{"hooks": [OK | written]}]}, origin).entries
        assert entry.terms == HookTerms(fail_open=fail_open)


def test_conditions_and_background_and_times_are_read() -> None:
    (entry,) = load(OK | {"if": "Bash(git *)", "timeout": 7}, "PostToolUse").entries
    assert isinstance(entry.handler, ConditionalHandler)
    assert (entry.handler.condition, entry.handler.name, entry.handler.timeout) == ("Bash(git *)", "check.sh", 7)
    assert load(OK | {"async": True}, "SessionStart").entries[0].terms == HookTerms(fail_open=True, background=True)
    rewakes = load(OK | {"asyncRewake": True}, "SessionStart").entries[0].terms
    assert rewakes == HookTerms(fail_open=True, background=True, wakes=True)
    assert [load(OK, event).entries[0].handler.timeout for event in ("UserPromptSubmit", "SessionEnd")] == [30, 1.5]
    assert load(OK | {"timeout": 600}, "SessionEnd").entries[0].handler.timeout == 60
    assert load(OK | {"timeout": "2.5"}, "Stop").entries[0].handler.timeout == 2.5, "a string, as in front matter"


def test_addresses_are_read_within_what_the_settings_allow(tmp_path: Path) -> None:
    handler = HTTP | {"headers": {"Authorization": "Bearer $KEY"}, "allowedEnvVars": ["KEY", "OTHER"]}
    (entry,) = load(handler).entries
    assert entry.handler == HttpHandler(HTTP["url"], (("Authorization", "Bearer $KEY"),), ("KEY", "OTHER"), 600)
    path = tmp_path / "settings.json"
    settings = {"allowedHttpHookUrls": ["https://hooks.example/*"], "httpHookAllowedEnvVars": ["OTHER"]}
    path.write_text(json.dumps(settings | {"hooks": {"Stop": [{"hooks": [handler, HTTP | {"url": "http://x/"}]}]}}))
    found = load_hooks(path, COMPATIBLE)
    assert [entry.handler.variables for entry in found.entries if isinstance(entry.handler, HttpHandler)] == [
        ("OTHER",)
    ]
    assert [(note.field.rpartition(".")[2], note.verdict) for note in found.notes] == [
        ("headers", "ignored"),
        ("url", "refused"),
    ]
    limits = joined_limits((http_limits(path), HttpLimits(), HttpLimits(urls=("http://x/",))))
    assert limits == HttpLimits(("https://hooks.example/*", "http://x/"), ("OTHER",))
    assert len(load_hooks(path, HookOrigin("/w", limits=limits)).entries) == 2
    path.write_text(json.dumps({"allowedHttpHookUrls": "https://x", "hooks": {"Stop": [{"hooks": [HTTP]}]}}))
    assert load_hooks(path, COMPATIBLE).entries == (), "an invalid limit disables the hook"


def test_front_matter_binds_a_hook_to_its_agent_or_skill() -> None:
    hooks = {"Stop": [{"hooks": [OK]}], "PreToolUse": [{"matcher": "Bash", "hooks": [OK | {"once": True}]}]}
    of_agent = read(hooks, HookOrigin("/w", agent_type="coder"))
    assert [(one.event, one.terms.agent_type, one.terms.once) for one in of_agent.entries] == [
        ("Stop", "coder", False),
        ("SubagentStop", "coder", False),
        ("PreToolUse", "coder", False),
    ]
    of_skill = read(hooks, HookOrigin("/w", skill="release"))
    assert [(one.event, one.terms.skill, one.terms.once) for one in of_skill.entries] == [
        ("Stop", "release", False),
        ("PreToolUse", "release", True),
    ]


def test_a_bundle_knows_its_own_folder() -> None:
    handler = OK | {"command": "${CLAUDE_PLUGIN_ROOT}/check.sh"}
    (entry,) = read({"Stop": [{"hooks": [handler]}]}, HookOrigin("/w", root="/bundle")).entries
    assert isinstance(entry.handler, CommandHandler)
    assert entry.handler.root == "/bundle"


def test_switches_and_doubled_keys_are_told(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert load_hooks(path, COMPATIBLE) == HooksRead()
    path.write_text('{"hooks": {"Stop": []}, "hooks": {}, "allowManagedHooksOnly": true}')
    assert [(note.field, note.verdict) for note in load_hooks(path, COMPATIBLE).notes] == [
        ("hooks", "ignored"),
        ("allowManagedHooksOnly", "ignored"),
    ]
    path.write_text(json.dumps({"disableAllHooks": True, "hooks": {"Stop": [{"hooks": [OK]}]}}))
    found = load_hooks(path, COMPATIBLE)
    assert (found.entries, found.all_off) == ((), True)
    assert found.notes


@pytest.mark.parametrize("text", ["{", "[]", "{\n\n,}", b"\xff\xfe", "[" * 100_000, b"{" + b" " * 1_000_001])
def test_a_file_that_is_no_json_object_is_an_error_that_names_it(tmp_path: Path, text: Any) -> None:
    path = tmp_path / "hooks.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SettingsError, match=r"hooks\.json"):
        load_hooks(path, COMPATIBLE)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_hooks(tmp_path, COMPATIBLE)


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.sampled_from(["", "command", "Bash", "("]),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.sampled_from(["type", "command", "hooks", "matcher", "PreToolUse", "args"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(some.dictionaries(some.sampled_from(["PreToolUse", "Stop", "hooks"]), some.lists(JSON, max_size=3)) | JSON)
def test_nothing_raises_and_nothing_is_dropped_in_silence(hooks: object) -> None:
    found = read(hooks)
    groups = hooks.values() if isinstance(hooks, dict) else ()
    if any(groups) and not found.entries:
        nonempty = [g for g in groups for g in (g if isinstance(g, list) else [g])]
        said_nothing = all(isinstance(g, dict) and g.get("hooks") == [] for g in nonempty)
        assert found.notes or said_nothing
