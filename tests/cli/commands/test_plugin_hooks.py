"""Hooks of plugins in sessions: the settings that limit them or switch them off, and the folder that they know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.extensions.hook_server import respond_with, run_hook_server
from tests.cli.commands.command import Command

SCENARIO = """
agents:
  lead:
    - when: {contains: go}
      reply:
        - tool_use: {name: load_skill, input: {name: "acme:fmt"}}
    - when: {result_of: load_skill}
      reply:
        - tool_use: {name: glob, input: {pattern: "*"}}
    - reply: Done.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def run(command: Command, plugin: Path) -> str:
    """Return what a session with the plugin shows."""
    model = command.scenario(SCENARIO)
    ran = command.run_inline("run", "--model", model, "--plugin", str(plugin), "go")
    assert ran.code == 0, ran
    return ran.out + ran.err


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plugin_in(folder: Path, *handlers: dict[str, object], skill_hooks: str = "") -> Path:
    write(folder / ".claude-plugin/plugin.json", '{"name": "acme"}')
    write(folder / "hooks/hooks.json", json.dumps({"hooks": {"PreToolUse": [{"hooks": handlers}]}}))
    write(folder / "skills/fmt/SKILL.md", f"---\ndescription: Formats\n{skill_hooks}---\nFormat it.\n")
    return folder


def test_the_persons_limits_apply_to_the_hooks_of_plugins_and_front_matter(command: Command, tmp_path: Path) -> None:
    with run_hook_server(respond_with()) as received:
        other = {"type": "http", "url": received.url("/other")}
        of_skill = f"hooks:\n  PreToolUse:\n  - hooks:\n    - {{type: http, url: '{received.url('/skill')}'}}\n"
        plugin = plugin_in(tmp_path / "acme", {"type": "http", "url": received.url()}, other, skill_hooks=of_skill)
        limits = {"allowedHttpHookUrls": [received.url()]}
        write(tmp_path / ".claude/settings.json", json.dumps(limits))
        shown = run(command, plugin)
        report = command.run_inline("doctor", "--compat", "--plugin", str(plugin)).out
        assert set(received.paths) == {"/hook"}
    for text in (shown, report):
        assert text.count("is not among `allowedHttpHookUrls`") == 2


def test_a_person_switches_the_hooks_of_plugins_off(command: Command, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    plugin = plugin_in(tmp_path / "acme", {"type": "command", "command": f"touch '{mark}'"})
    write(tmp_path / ".claude/settings.json", '{"disableAllHooks": true}')
    run(command, plugin)
    assert not mark.exists()
    assert "PreToolUse" not in command.run_inline("doctor", "--compat", "--plugin", str(plugin)).out
    write(tmp_path / ".claude/settings.json", "{}")
    write(command.workspace / ".claude/settings.json", '{"disableAllHooks": true}')
    run(command, plugin)
    assert mark.exists()


def test_a_hook_of_a_plugins_skill_knows_the_folder_of_the_plugin(command: Command, tmp_path: Path) -> None:
    hooks = """hooks:
  PreToolUse:
    - matcher: Glob
      hooks:
        - {type: command, command: '"${CLAUDE_PLUGIN_ROOT}/check.sh"'}
"""
    plugin = plugin_in(tmp_path / "acme", skill_hooks=hooks)
    write(plugin / "check.sh", '#!/bin/sh\necho "checked by $CLAUDE_PLUGIN_ROOT" >&2\nexit 2\n')
    (plugin / "check.sh").chmod(0o755)
    assert f"checked by {plugin}" in run(command, plugin)


def test_policy_explain_names_the_hooks_and_agents_of_installed_plugins(command: Command, tmp_path: Path) -> None:
    plugin = plugin_in(tmp_path / "acme", {"type": "command", "command": "exit 2"})
    write(plugin / "agents/scout.md", "---\nname: scout\ndescription: Finds places\n---\nFind it.\n")
    assert command.run_inline("plugin", "install", str(plugin), "--yes").code == 0
    explained = command.run_inline("policy", "explain", "--agent-type", "acme:scout", "ls")
    assert explained.code == 0, explained.err
    assert "asked before the rules: hook exit 2 (person)" in explained.out


def test_a_folder_that_is_no_plugin_is_refused_before_the_run(command: Command, tmp_path: Path) -> None:
    model = command.scenario("agents: {lead: [{reply: Never.}]}")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "broken/.claude-plugin/plugin.json", "{")
    first, second = plugin_in(tmp_path / "first"), plugin_in(tmp_path / "second")
    cases = {
        ("missing",): "missing: cannot be read: No such file",
        ("empty",): "empty: is not a plugin",
        ("broken",): "plugin.json:1: is not valid JSON",
        ("first", "second"): f"{second}/.claude-plugin/plugin.json: name: the plugin acme is {first} already",
    }
    for names, message in cases.items():
        plugins = [part for name in names for part in ("--plugin", str(tmp_path / name))]
        ran = command.run_inline("run", "--model", model, *plugins, "go")
        assert (ran.code, "Never." in ran.out) == (2, False), ran
        assert message in ran.err
    report = command.run_inline("doctor", "--compat", "--plugin", str(tmp_path / "missing"))
    assert "refused" in report.out, "it reports what cannot be loaded"
