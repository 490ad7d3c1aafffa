"""The person's own status line, from `statusLine` of their settings for Claude Code, in a real terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

from callboard.cli.terminal.terminal import colored_line, columns

SCENARIO = "agents: {lead: [{otherwise: true, reply: I hear you.}]}"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def opened(command: Command) -> Iterator[Callable[[str], PtyScreen]]:
    """Start the prompt line with a status command."""
    screens: list[PtyScreen] = []

    def start(line: str) -> PtyScreen:
        file = command.workspace.parent / ".claude" / "settings.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"statusLine": {"type": "command", "command": line}, "env": {"TEAM": "blue"}}))
        screens.append(PtyScreen(command, "--model", command.scenario(SCENARIO)))
        screens[-1].wait(r"^> *$")
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def test_a_command_gets_the_state_and_prints_the_line(command: Command, opened: Callable[[str], PtyScreen]) -> None:
    seen = command.workspace.parent / "seen.json"
    screen = opened(f"cat > {seen}.new && mv {seen}.new {seen}; printf '\\033[32mteam %s\\033[0m at work\\nx' $TEAM")
    screen.wait("team blue at work")
    assert re.search(rb"\x1b\[[0-9;]*32[0-9;]*mteam blue", screen.raw), "its color stays"
    state = json.loads(seen.read_text())
    assert (state["hook_event_name"], state["cwd"]) == ("Status", str(command.workspace))
    assert state["workspace"]["project_dir"] == str(command.workspace)
    assert {"session_id", "transcript_path", "model", "version", "output_style", "cost", "context_window"} <= set(state)
    before = state["context_window"]["total_output_tokens"]
    screen.type("hello\r")
    screen.wait("I hear you")
    screen.until(
        lambda: json.loads(seen.read_text())["context_window"]["total_output_tokens"] > before, "a run after a change"
    )


@pytest.mark.parametrize("line", ["exit 3", "sleep 1000", "yes", "/no/such/program"])
def test_a_command_that_fails_or_hangs_leaves_our_own_line_and_a_working_prompt(
    line: str, opened: Callable[[str], PtyScreen]
) -> None:
    screen = opened(line)
    screen.wait("mode default")
    screen.type("hello\r")
    screen.wait("I hear you")
    screen.wait("mode default")


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("plain", 80, "plain"),
        ("\x1b[31mred\x1b[0m", 80, "\x1b[31mred\x1b[0m"),
        ("\x1b[31mred and more", 3, "\x1b[31mred\x1b[0m"),
        ("a\x1b]0;title\x07b\x1b[2Jc\td", 80, "abc d"),
        ("日本語", 5, "日本"),
    ],
)
def test_a_line_keeps_its_colors_and_nothing_else(text: str, width: int, line: str) -> None:
    cut = colored_line(text, width)
    assert cut == line
    assert columns(cut.replace("\x1b[31m", "").replace("\x1b[0m", "")) <= width
