"""Values that no command can use: each is refused with what is wrong, and never counts as a limit that is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

SAYING = """
agents:
  lead:
    - reply: Done.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308"])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "x", "--max-budget-usd"),
        ("run", "x", "--max-seconds"),
        ("resume", "--max-budget-usd"),
        ("store", "gc", "--days"),
        ("mcp", "add", "x", "--timeout"),
        ("mcp", "serve", "--max-budget-usd"),
        ("workflow", "run", "w.py:w", "--max-budget-usd"),
        ("serve", "--hand-over"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_option(command: Command, words: tuple[str, ...], value: str) -> None:
    ran = command.run_inline(*words, value)
    assert (ran.code, words[-1] in ran.err) == (2, True), ran.err
    assert "bug" not in ran.err


@pytest.mark.parametrize("option", ["--allowed-tools", "--disallowed-tools"])
@pytest.mark.parametrize("words", [("run", "x"), ("mcp", "serve")])
def test_a_rule_that_is_none_is_refused_with_its_option(command: Command, words: tuple[str, ...], option: str) -> None:
    ran = command.run_inline(*words, option, "Bash(ls) Edit(")
    assert ran.code == 2
    assert f"'{option}'" in ran.err
    assert "'Edit(' is not a rule: write Tool or Tool(specifier)" in ran.err


@pytest.mark.parametrize(
    "option",
    [("--permission-mode", "bypassPermissions"), ("--dangerously-skip-permissions",)],
    ids=lambda words: words[0],
)
def test_a_mode_that_a_file_switches_off_is_refused_as_an_option(command: Command, option: tuple[str, ...]) -> None:
    file = Path(command.env["HOME"]) / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"permissions": {"disableBypassPermissionsMode": "disable"}}')
    ran = command.run_inline("run", "x", *option, "--model", command.scenario(SAYING))
    assert (ran.code, ran.err.startswith("callboard: bypassPermissions is switched off by")) == (2, True), ran.err


@pytest.mark.parametrize(
    ("words", "text", "subject"),
    [
        (("mcp", "add-json", "x"), '{"command": "npx", "args": ["\\ud83d"]}', "the entry"),
        (("mcp", "add-json", "x"), '{"command": "npx", "env": {"\\ud83d": ""}}', "the entry"),
        (("run", "x", "--agents"), '{"a": {"description": "\\ud83d", "prompt": "x"}}', "--agents"),
        (("run", "x", "--json-schema"), '{"title": "\\ud83d"}', "--json-schema"),
        (("run", "x", "--settings"), '{"permissions": {"allow": ["Bash(\\ud83d)"]}}', "--settings"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(command: Command, words: tuple[str, ...], text: str, subject: str) -> None:
    ran = command.run_inline(*words, text)
    assert (ran.code, f"{subject} contains \\ud83d, half of a surrogate pair" in ran.err) == (2, True), ran.err
    assert command.run_inline("mcp", "list", "--json").out == "[]\n"


def test_a_whole_surrogate_pair_is_a_character(command: Command) -> None:
    ran = command.run_inline("mcp", "add-json", "x", '{"command": "npx", "args": ["\\ud83d\\ude00"]}')
    assert ran.code == 0, ran.err
    file = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "mcp.json"
    assert json.loads(file.read_text("utf-8"))["mcpServers"]["x"]["args"] == ["\U0001f600"]


def test_a_very_high_limit_of_the_settings_is_a_limit(command: Command) -> None:
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("budget: {cost_usd: 1.0e+308}\n")
    ran = command.run_inline("run", "--model", command.scenario(SAYING), "Go.")
    assert ran.code == 0, ran.err


def test_restrictions_that_cannot_be_read_stop_a_run(command: Command) -> None:
    managed = '{"permissions": {"deny": ["Bash("]}}'
    ran = command.run_inline("run", "--managed-settings", managed, "--model", command.scenario(SAYING), "Go.")
    assert ran.code == 2
    assert "permissions.deny[0]" in ran.err


@pytest.mark.parametrize(
    "words", [("run", "bad\udcff"), ("send", "\udcff"), ("tasks", "add", "\udcff"), ("-C", "/tmp/\udcff", "sessions")]
)
def test_an_argument_that_is_not_utf_8_is_refused(command: Command, words: tuple[str, ...]) -> None:
    ran = command.run_inline(*words)
    assert (ran.code, "is not UTF-8 text" in ran.err, "\\udcff" in ran.err) == (2, True, True), ran.err


def test_a_folder_whose_path_is_not_utf_8_is_refused(command: Command, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/bad\xff"
    os.mkdir(folder)
    command.workspace = Path(os.fsdecode(folder))
    ran = command.run_inline("sessions")
    assert (ran.code, "its path is not UTF-8 text" in ran.err) == (3, True), ran.err


def test_a_backup_that_cannot_be_written_is_no_bug(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(SAYING), "Go.").code == 0
    ran = command.run_inline("backup", "nowhere/x.tgz")
    assert (ran.code, "nowhere/x.tgz: cannot be written: No such file or directory" in ran.err) == (3, True), ran.err


def test_a_note_is_not_edited_where_no_editor_can_be_shown(command: Command) -> None:
    ran = command.run_inline("memory", "edit", "ship")
    assert (ran.code, "give --text" in ran.err) == (2, True), ran.err


def test_a_removed_schedule_cannot_be_run(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(SAYING), "Go.").code == 0
    assert command.run_inline("cron", "add", "--name", "look", "@daily", "Look.").code == 0
    assert command.run_inline("cron", "remove", "look").code == 0
    ran = command.run_inline("cron", "run", "look")
    assert (ran.code, "is cancelled, and never fires again" in ran.err) == (2, True), ran.err


def test_none_removes_the_budget_of_a_schedule(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(SAYING), "Go.").code == 0
    assert command.run_inline("cron", "add", "--name", "look", "--budget", "cost_usd=1", "@daily", "Look.").code == 0
    ran = command.run_inline("cron", "edit", "look", "--budget", "none")
    assert ran.code == 0, ran.err
    assert "may spend: no limit of its own in all" in command.run_inline("cron", "show", "look").out


def test_a_scenario_in_the_workspace_is_found_from_another_folder(command: Command, tmp_path: Path) -> None:
    (command.workspace / "saying.yaml").write_text(SAYING.lstrip() + "    - reply: Done again.\n")
    assert command.run_inline("run", "--model", "rehearsal:saying.yaml", "Go.").code == 0
    workspace, command.workspace = command.workspace, tmp_path
    ran = command.run_inline("-C", str(workspace), "run", "--continue", "Go on.")
    assert (ran.code, "Done again." in ran.out) == (0, True), ran.err


@pytest.mark.parametrize("model", ["cassette:", "rehearsal:"])
def test_a_model_without_its_file_is_told(command: Command, model: str) -> None:
    for words in (("run", "Hi."), ("serve",), ("run", "--detach", "Hi.")):
        ran = command.run_inline(*words, "--model", model)
        assert (ran.code, ran.err) == (2, f"callboard: the model {model} names no file: write {model}FILE\n")


def test_a_session_that_is_no_replay_cannot_have_a_cassette_as_its_model(command: Command) -> None:
    ran = command.run_inline("serve", "--model", "cassette:old.jsonl")
    assert ran.code == 2
    assert "cassette:old.jsonl is a recorded session, which only a new `callboard run` plays" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("send",), 'there is no text. Say what to send: callboard send "How far are you?" --to NAME'),
        (("run", "--max-turns", "x", "Go."), "Invalid value for '--max-turns': 'x' is not a whole number."),
        (("run", "--max-budget-usd", "x", "Go."), "Invalid value for '--max-budget-usd': 'x' is not a number."),
        (("run", "--max-turns", "0", "Go."), "Invalid value for '--max-turns': 0 is out of range: give 1 or more"),
        (("serve", "--web", "--port", "70000"), "Invalid value for '--port': 70000 is out of range: give 0 to 65535"),
        (("run", "--settings", "gone", "Go."), "--settings gone cannot be read: No such file or directory"),
        (("run", "--system-prompt-file", "binary", "Go."), "--system-prompt-file binary is not UTF-8 text"),
        (
            ("run", "--model", "rehearsal:list.yaml", "Go."),
            "list.yaml:1: a scenario is a mapping with the field `agents`",
        ),
    ],
)
def test_a_wrong_value_is_told_in_plain_english(command: Command, words: tuple[str, ...], message: str) -> None:
    (command.workspace / "binary").write_bytes(b"\xff")
    (command.workspace / "list.yaml").write_text("- a\n")
    ran = command.run_inline(*words)
    assert f"callboard: {message}\n" in ran.err
    assert ran.code in (2, 3)
