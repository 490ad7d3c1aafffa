"""`callboard config`: settings in force, and changes of the two settings files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

from callboard.adapters.extensions.yaml import load_yaml
from callboard.config.settings import load_settings


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def _own(command: Command) -> Path:
    return command.workspace.parent / "config" / "callboard" / "settings.yaml"


def _here(command: Command) -> Path:
    return command.workspace / ".callboard" / "settings.yaml"


def test_a_value_is_set_in_the_workspace_and_in_force_at_once(command: Command) -> None:
    ran = command.run_inline("config", "set", "model", "opus")
    assert (ran.code, ran.out, ran.err) == (0, f'model = "opus" in {_here(command)}\n', "")
    assert _here(command).read_text() == "model: opus\n"
    assert command.run_inline("config", "get", "model").out.startswith("claude-opus-")
    assert command.run_inline("trust", "show").out.endswith("\n")
    assert "trusted: content" in command.run_inline("trust", "show").out


def test_a_value_is_set_for_all_workspaces_in_the_users_file(command: Command) -> None:
    ran = command.run_inline("config", "set", "-g", "limits.steps", "50")
    assert (ran.code, ran.out) == (0, f"limits.steps = 50 in {_own(command)}\n")
    assert load_yaml(_own(command)) == {"limits": {"steps": 50}}
    assert stat.S_IMODE(_own(command).stat().st_mode) == 0o600
    assert not _here(command).exists()
    assert command.run_inline("config", "get", "limits.steps").out == "50\n"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("limits.steps", "5", 5),
        ("model_aliases.five", "5", "5"),
        ("skills.commands", "false", False),
        ("ask.deadline", "null", None),
        ("language", "null", "null"),
        ("fallback_models", "opus", ["opus"]),
        ("fallback_models", "[opus, haiku]", ["opus", "haiku"]),
        ("budgets.explore", "{tokens: 5}", {"tokens": 5}),
        ("models.my-4.1.window", "100000", 100_000),
        ("status_line.command", "date: now # yes", "date: now # yes"),
        ("sandbox.level", "2", 2),
    ],
)
def test_a_value_is_read_as_its_setting_needs_it(command: Command, key: str, typed: str, value: object) -> None:
    assert command.run_inline("config", "set", "-g", key, typed).code == 0
    shown = json.loads(command.run_inline("config", "get", "-g", key, "--json").out)
    assert (shown["name"], shown["value"]) == (key, value)
    load_settings({"XDG_CONFIG_HOME": str(_own(command).parents[1])})


def test_the_names_of_claude_code_stand_for_the_settings_here(command: Command) -> None:
    ran = command.run_inline("config", "add", "permissions.allow", "Bash(git status)", "Read")
    assert ran.out == f'permission.allow + "Bash(git status)", "Read" in {_here(command)}\n'
    assert command.run_inline("config", "set", "autoMemoryEnabled", "false").code == 0
    assert command.run_inline("config", "set", "permissions.defaultMode", "plan").code == 0
    assert load_yaml(_here(command)) == {
        "permission": {"allow": ["Bash(git status)", "Read"], "mode": "plan"},
        "memory": {"write": "off"},
    }
    ran = command.run_inline("config", "set", "theme", "dark")
    assert (ran.code, ran.err) == (2, "callboard: theme: concerns the screen of Claude Code, and has no effect here\n")
    ran = command.run_inline("config", "set", "autoMemoryEnabled", "perhaps")
    assert ran.code == 2
    assert "true or false is expected" in ran.err


@pytest.mark.slow
def test_comments_other_values_and_the_mode_of_the_file_stay(command: Command) -> None:
    _own(command).parent.mkdir(parents=True)
    before = "# mine\nlimits: {steps: 5}  # few\n\npermission:\n  allow:\n  - Read  # all\n"
    _own(command).write_text(before)
    _own(command).chmod(0o640)
    assert command.run_inline("config", "add", "-g", "permission.allow", "Bash(git status)").code == 0
    assert command.run_inline("config", "set", "-g", "limits.steps", "6").code == 0
    after = before.replace("steps: 5", "steps: 6") + "  - Bash(git status)\n"
    assert _own(command).read_text() == after
    assert stat.S_IMODE(_own(command).stat().st_mode) == 0o640
    assert command.run_inline("config", "remove", "-g", "permission.allow", "Bash(git status)").code == 0
    assert command.run_inline("config", "unset", "-g", "limits.steps").code == 0
    assert _own(command).read_text() == "# mine\n\npermission:\n  allow:\n  - Read  # all\n"
    assert sorted(path.name for path in _own(command).parent.iterdir()) == ["settings.yaml"]


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("set", "modle", "x"), "unknown setting 'modle': choose model"),
        (("set", "zzz", "x"), "unknown setting 'zzz': `callboard config list --all` lists all of them"),
        (("get", "allow"), "choose permission.allow"),
        (("set", "limits.steps", "many"), "limits.steps: must be a whole number"),
        (("set", "--", "limits.steps", "-1"), "limits.steps: must be greater than or equal to 0"),
        (("set", "permission.mode", "yolo"), "permission.mode: must be"),
        (("set", "context.pipeline", "nice"), "context.pipeline: unknown preset 'nice'"),
        (("set", "fallback_models", "[a"), "is not valid YAML"),
        (("add", "permission.allow", "Bash(x"), "is not a rule"),
        (("add", "model", "x"), "model is no list: callboard config set model VALUE"),
        (("remove", "permission.allow", "Read"), "has no 'Read': nothing was changed"),
        (("unset", "model"), "does not set model: nothing was changed"),
        (("set", "base_url", "https://example.org"), "`callboard config set -g base_url VALUE`"),
        (("set", "permission.mode", "bypassPermissions"), "a workspace may not set this"),
        (("set", "sandbox.level", "0"), "a workspace may not set this"),
        (("set", "language", "\udcff"), "not UTF-8"),
    ],
)
def test_a_wrong_change_is_refused_before_a_byte_is_written(
    command: Command, line: tuple[str, ...], message: str
) -> None:
    ran = command.run_inline("config", *line)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err) < 400
    assert not _here(command).exists()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model: [\n", ":2: is not valid YAML"),
        ("limits:\n  steps: many\n", ":2: limits.steps: must be a whole number"),
        ("- a\n", ": settings are a mapping"),
        ("a: 1\na: 2\n", ":2: a: is written twice"),
    ],
)
def test_a_broken_file_is_refused_with_its_line_and_stays(command: Command, text: str, place: str) -> None:
    _here(command).parent.mkdir()
    _here(command).write_text(text)
    ran = command.run_inline("config", "set", "language", "Latin")
    assert ran.code == 3
    assert f"{_here(command)}{place}" in ran.err
    assert _here(command).read_text() == text


def test_a_wrong_value_can_be_corrected_and_removed(command: Command) -> None:
    _own(command).parent.mkdir(parents=True)
    _own(command).write_text("limits: {steps: many}\nlanguage: Latin\n")
    assert command.run_inline("config", "set", "-g", "limits.steps", "5").code == 0
    assert _own(command).read_text() == "limits: {steps: 5}\nlanguage: Latin\n"


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_in_a_workspace_is_never_followed(command: Command, link: str) -> None:
    outside = command.workspace.parent / "outside"
    outside.mkdir()
    (outside / "settings.yaml").write_text("language: Latin\n")
    if link == "folder":
        _here(command).parent.symlink_to(outside)
    else:
        _here(command).parent.mkdir()
        _here(command).symlink_to(outside / "settings.yaml")
    ran = command.run_inline("config", "set", "language", "Greek")
    assert ran.code == 3
    assert "is a link: edit the file that it leads to" in ran.err
    assert (outside / "settings.yaml").read_text() == "language: Latin\n"


def test_the_users_own_file_may_be_a_link(command: Command) -> None:
    kept = command.workspace.parent / "dotfiles.yaml"
    kept.write_text("language: Latin\n")
    _own(command).parent.mkdir(parents=True)
    _own(command).symlink_to(kept)
    assert command.run_inline("config", "set", "-g", "language", "Greek").code == 0
    assert kept.read_text() == "language: Greek\n"
    assert _own(command).is_symlink()


@pytest.mark.slow
def test_a_trusted_workspace_stays_trusted_and_an_untrusted_one_untrusted(command: Command) -> None:
    assert command.run_inline("config", "set", "language", "Latin").code == 0
    assert command.run_inline("config", "set", "language", "Greek").err == ""
    assert command.run_inline("config", "get", "language").out == "Greek\n"
    (command.workspace / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    ran = command.run_inline("config", "set", "language", "Latin")
    assert "the content of this workspace is used once you trust it: `callboard trust`" in ran.err
    assert command.run_inline("config", "get", "language").out == "\n"
    assert command.run_inline("config", "get", "limits.steps").code == 1


def test_a_tool_changes_no_settings(command: Command) -> None:
    for line in (("set", "model", "x"), ("unset", "model"), ("add", "permission.allow", "x"), ("remove", "hooks", "x")):
        ran = command.run_inline("config", *line, CALLBOARD_TOOL="1")
        assert ran.code == 2
        assert "Changing settings is for a person" in ran.err
    assert command.run_inline("config", "list", CALLBOARD_TOOL="1").code == 0


def test_a_list_has_each_value_with_its_place_and_the_same_as_settings(command: Command) -> None:
    command.run_inline("config", "set", "-g", "language", "Latin")
    command.run_inline("config", "set", "limits.steps", "5")
    ran = command.run_inline("config", "list", CALLBOARD_MODEL="m")
    assert [line.split(maxsplit=2) for line in ran.out.splitlines()] == [
        ["SETTING", "VALUE", "FROM"],
        ["model", '"m"', "CALLBOARD_MODEL"],
        ["limits.steps", "5", ".callboard/settings.yaml:2"],
        ["language", '"Latin"', "~/config/callboard/settings.yaml:1"],
    ]
    assert command.run_inline("settings", CALLBOARD_MODEL="m").out == ran.out
    rows = json.loads(command.run_inline("config", "list", "-g", "--json").out)
    assert rows == [{"name": "language", "value": "Latin", "origin": f"{_own(command)}:1: language"}]
    every = json.loads(command.run_inline("config", "list", "--json").out)
    assert {"name": "ask.deadline", "value": 1800.0, "origin": "default"} in every


def test_a_value_that_is_not_in_force_is_reported(command: Command) -> None:
    ran = command.run_inline("config", "set", "model", "opus", CALLBOARD_MODEL="m")
    assert 'model is "m" nevertheless, set by CALLBOARD_MODEL' in ran.err
    ran = command.run_inline("config", "add", "-g", "permission.deny", "Bassh(x)")
    assert ran.code == 0
    assert "the rule Bassh(x) has no effect" in ran.err


@pytest.mark.slow
def test_secrets_are_never_printed(command: Command) -> None:
    key = "sk-ant-" + "a1B2c3D4e5F6" * 3
    _own(command).parent.mkdir(parents=True)
    _own(command).write_text(
        f"api_key_helper: echo {key}\nbase_url: https://me:pa55w0rd@example.org\n"
        f"hooks: {{Stop: [{{hooks: [{{type: http, url: 'https://example.org', headers: {{X: abc}}}}]}}]}}\n"
    )
    lines = (
        *(("config", "list"), ("config", "list", "--json"), ("config", "list", "-g"), ("settings",)),
        *(("config", "get", "hooks"), ("config", "get", "-g", "api_key_helper"), ("config", "get", "base_url")),
        ("config", "set", "-g", "api_key_helper", f"printf {key}"),
    )
    for line in lines:
        ran = command.run_inline(*line)
        assert ran.code == 0
        assert not [secret for secret in (key, "pa55w0rd", "abc") if secret in ran.out + ran.err]
        assert "(hidden: it looks like a secret)" in ran.out


@pytest.mark.slow
def test_changes_of_two_processes_are_both_kept(command: Command) -> None:
    adding = [command.start("config", "add", "-g", "permission.deny", f"Bash(x{number})") for number in range(4)]
    assert [process.wait(60) for process in adding] == [0, 0, 0, 0]
    loaded = load_settings({"XDG_CONFIG_HOME": str(_own(command).parents[1])})
    assert sorted(loaded.settings.permission.deny) == [f"Bash(x{number})" for number in range(4)]


def test_bypass_is_not_set_where_a_file_disables_it(command: Command) -> None:
    folder = command.workspace.parent / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text('{"permissions": {"disableBypassPermissionsMode": "disable"}}')
    ran = command.run_inline("config", "set", "-g", "permission.mode", "bypassPermissions")
    assert ran.code == 2
    assert "bypassPermissions is switched off by" in ran.err
    assert not _own(command).exists()


def test_a_folder_that_cannot_be_written_is_named(command: Command) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    command.workspace.chmod(0o555)
    ran = command.run_inline("config", "set", "language", "Latin")
    command.workspace.chmod(0o755)
    assert ran.code == 3
    assert f"{_here(command)}: cannot be changed: Permission denied" in ran.err


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        (".callboard/settings.yaml", "model: [unclosed\n", "settings.yaml:1: is not valid YAML"),
        (
            ".callboard/settings.yaml",
            "limits: {steps: many}\n",
            "settings.yaml:1: limits.steps: must be a whole number",
        ),
        (
            ".callboard/settings.yaml",
            "permission: {deny: Bash(rm *)}\n",
            "settings.yaml:1: permission.deny: must be a list",
        ),
        (".callboard/settings.yaml", "base_url: https://x\n", "settings.yaml:1: base_url: a workspace may not set"),
        (".claude/settings.json", "{", "settings.json: is not valid JSON"),
    ],
)
def test_a_fault_in_the_settings_of_an_untrusted_workspace_is_told_and_nothing_applied(
    name: str, text: str, fault: str, command: Command
) -> None:
    file = command.workspace / name
    file.parent.mkdir()
    file.write_text(text)
    listed = command.run_inline("config", "list")
    assert (listed.code, listed.out) == (0, "every setting has its built-in value\n")
    assert fault in listed.err
    assert "Correct this before you trust the workspace" in listed.err
    assert fault not in command.run_inline("config", "list", "-g").err
    checked = json.loads(command.run_inline("doctor", "--json").out)
    (finding,) = [row for row in checked if row["what"] == "settings" and row["state"] != "found"]
    assert finding["state"] == "damaged", "sessions start without these settings"
    assert fault in finding["detail"]
    trusting = command.run_inline("config", "list", "--trust")
    assert (trusting.code, fault in trusting.err) == (3, True)
