"""`/config` at the prompt line shows and changes the same settings as `callboard config`."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen
from tests.cli.repl.test_plan_prompt import edit

from callboard.adapters.extensions.yaml import load_yaml
from callboard.adapters.processes.tool_ancestry import TOOL_MARK
from callboard.cli.slash.context import SlashContext
from callboard.cli.slash.registry import perform
from callboard.cli.terminal.terminal import Terminal

SCENARIO = "agents: {lead: [{otherwise: true, reply: I hear you.}]}"


@dataclass(frozen=True)
class Session:
    """The part of a session that `/config` uses."""

    workspace: Path


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("config", "state", "data", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


async def typed(workspace: Path, line: str) -> str:
    """Return the output of a line at the prompt."""
    out = io.StringIO()
    terminal = Terminal(io.StringIO(), out, color="never")
    await perform(line, SlashContext(Session(workspace), edit), terminal)  # only this part of a session is used
    terminal.close()
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_change_is_in_the_workspaces_file_and_listed(workspace: Path) -> None:
    file = workspace / ".callboard" / "settings.yaml"
    assert "every setting has its built-in value" in await typed(workspace, "/config")
    changed = await typed(workspace, "/config set model opus")
    assert changed == (
        f'model = "opus" in {file}\nsessions that begin from now on use it; /model NAME changes this one\n'
    )
    assert file.read_text() == "model: opus\n"
    assert await typed(workspace, "/config get model") == await typed(workspace, "/config model")
    assert (await typed(workspace, "/config model")).startswith("claude-opus-")
    listed = await typed(workspace, "/config")
    assert 'model    "claude-opus-' in listed
    assert "settings have their built-in values: /config list --all" in listed
    assert "limits.steps" in await typed(workspace, "/config list --all")
    assert "model removed" in await typed(workspace, "/config unset model")


@pytest.mark.slow(keep=1)
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("/config set -g limits.steps 50", {"limits": {"steps": 50}}),
        ('/config set -g language "British English"', {"language": "British English"}),
        ("/config set -g language British English", {"language": "British English"}),
        ('/config set -g fallback_models ["opus", haiku]', {"fallback_models": ["opus", "haiku"]}),
        (
            '/config add -g permissions.allow "Bash(git status)" Read',
            {"permission": {"allow": ["Bash(git status)", "Read"]}},
        ),
    ],
)
async def test_values_are_read_as_on_the_command_line(workspace: Path, line: str, values: object) -> None:
    output = await typed(workspace, line)
    assert load_yaml(workspace.parent / "config" / "callboard" / "settings.yaml") == values, output
    assert not (workspace / ".callboard").exists()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/config set", "/config set KEY VALUE"),
        ("/config modle", "model"),
        ("/config set modle opus", "model"),
        ("/config set limits.steps many", "limits.steps"),
        ("/config add model opus", "model is no list"),
        ('/config set language "open', "a quote is not closed"),
    ],
)
async def test_a_mistake_is_named_and_changes_nothing(workspace: Path, line: str, problem: str) -> None:
    assert problem in await typed(workspace, line)
    assert not (workspace / ".callboard" / "settings.yaml").exists()


@pytest.mark.anyio
async def test_a_process_of_an_agents_tool_changes_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOOL_MARK, "1")
    assert "is for a person" in await typed(workspace, "/config set model opus")
    assert not (workspace / ".callboard").exists()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 100])
def test_the_prompt_line_shows_and_changes_settings(tmp_path: Path, columns: int) -> None:
    command = Command(tmp_path)
    screen = PtyScreen(command, "--model", command.scenario(SCENARIO), columns=columns, rows=30)
    try:
        screen.wait(r"^> *$")
        screen.type("/config set language Italian\r")
        screen.wait("sessions that begin from now on use it")
        screen.type("/config language\r")
        screen.wait(r"^Italian$")
        screen.type("/config\r")
        screen.wait(r"^language +\"Italian\" +\.callboard/settings\.yaml:1$")
        assert command.run_inline("config", "get", "language").out == "Italian\n"
    finally:
        screen.close()
