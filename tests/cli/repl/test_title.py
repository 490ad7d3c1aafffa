"""The title of the terminal's window, set by the prompt line in a real terminal and restored on exit."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

from callboard.cli.repl.status_command import is_switched_off

SCENARIO = """
agents:
  lead:
    - when: {contains: fix}
      reply: [{tool_use: {name: bash, input: {command: "until test -e made; do sleep 0.1; done"}}}]
    - otherwise: true
      reply: "I hear you.\\e]0;owned\\a"
"""
TITLES = re.compile(rb"\x1b\]0;([^\x07]*)\x07")
SAVED = b"\x1b[22;0t"
RESTORED = b"\x1b]0;\x07\x1b[23;0t"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def opened(command: Command) -> Iterator[Callable[..., PtyScreen]]:
    """Start the prompt line with these options and variables."""
    screens: list[PtyScreen] = []

    def start(*args: str, **env: str) -> PtyScreen:
        screens.append(PtyScreen(command, "--model", command.scenario(SCENARIO), *args, columns=100, rows=30, **env))
        screens[-1].wait(r"^> *$")
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def titles(screen: PtyScreen) -> list[str]:
    return [title.decode() for title in TITLES.findall(screen.raw)]


def wait_for_title(screen: PtyScreen, title: str) -> None:
    screen.until(lambda: titles(screen)[-1:] == [title], f"the title {title!r}")


@pytest.mark.slow
def test_the_title_is_the_first_words_with_a_mark_while_agents_work_and_restored_on_exit(
    command: Command, opened: Callable[..., PtyScreen]
) -> None:
    screen = opened("--permission-mode", "bypassPermissions")
    wait_for_title(screen, "workspace")
    screen.type("fix the parser\r")
    wait_for_title(screen, "* fix the parser")
    (command.workspace / "made").touch()
    screen.wait("I hear you")
    wait_for_title(screen, "fix the parser")
    screen.type("\x04")
    assert screen.process.wait(180) == 0
    screen.until(lambda: RESTORED in screen.raw, "the earlier title")
    assert (screen.count(SAVED), screen.count(RESTORED), titles(screen)[-1]) == (1, 1, "")
    assert "owned" not in titles(screen)


def test_a_name_is_the_title_and_is_on_the_first_screen(opened: Callable[..., PtyScreen]) -> None:
    screen = opened("-n", "Parser work")
    assert re.search(r"^name     Parser work", "\n".join(screen.rows_now()), re.MULTILINE)
    wait_for_title(screen, "Parser work")
    screen.type("hello\r")
    screen.wait("I hear you")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.process.wait(180) == 143
    screen.until(lambda: screen.raw.count(RESTORED) == 1, "the earlier title")
    assert not any("hello" in title for title in titles(screen))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "env",
    [
        {"CALLBOARD_TERMINAL_TITLE": "false"},
        {"CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1"},
        {"TERM": "dumb"},
        {"TERM": "linux"},
    ],
)
def test_the_title_stays_where_it_is_switched_off_or_unknown(
    env: dict[str, str], opened: Callable[..., PtyScreen]
) -> None:
    screen = opened(**env)
    screen.type("hello\r")
    screen.wait("I hear you")
    screen.type("\x04")
    assert screen.process.wait(180) == 0
    assert (titles(screen), screen.count(SAVED)) == ([], 0)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("true", True), ("", False), ("0", False), ("false", False)])
def test_the_variable_of_claude_code_counts_unless_it_says_no(value: str, off: bool) -> None:
    assert is_switched_off({"CLAUDE_CODE_DISABLE_TERMINAL_TITLE": value}) is off
