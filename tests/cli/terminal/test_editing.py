"""A plan in an editor at the prompt line, in a terminal: control of the screen, and the saved text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen

SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Thatch the roof.}}}]
    - when: {contains: Slate the roof}
      reply: Slate it is.
    - otherwise: true
      reply: As you say.
"""
EDITOR = """#!/bin/sh
echo OPEN
while [ ! -e "$FOLDER/go" ]; do sleep 0.05; done
sed -i s/Thatch/Slate/ "$1"
echo CLOSED
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    editor = tmp_path / "editor.sh"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    command.env.update(VISUAL=str(editor), FOLDER=str(tmp_path), TMPDIR=str(tmp_path))
    return command


@pytest.fixture
def screen(command: Command) -> Iterator[Screen]:
    """Yield a screen on which a person was asked about a plan, and opened the editor."""
    screen = Screen(command, "--model", command.scenario(SCENARIO), "--permission-mode", "plan")
    try:
        screen.wait(r"^> ?$")
        screen.type("Do it", "Enter")
        screen.wait(r"4 edit it first\n╰ approve this plan\? .*> ?$")
        time.sleep(0.6)  # keys typed sooner do not count as an answer
        screen.type("e", "Enter")
        screen.wait(r"^OPEN$")
        yield screen
    finally:
        screen.close()


def save_and_close(command: Command) -> None:
    """Save and close, as the person."""
    (command.workspace.parent / "go").touch()


def test_the_plan_is_edited_at_its_question_and_the_prompt_line_comes_back(screen: Screen, command: Command) -> None:
    save_and_close(command)
    shown = screen.wait(r"^lead Slate it is\.$")
    assert re.search(r"^OPEN\nCLOSED$", shown, re.MULTILINE)
    screen.type("/plans", "Enter")
    screen.wait(r"^nothing waits for an answer$")


def test_while_the_editor_is_open_nothing_is_printed_and_a_text_that_comes_too_late_is_kept(
    screen: Screen, command: Command
) -> None:
    request = re.findall(r"req_[a-z0-9]{12}", command.run_inline("plans").out)[0]
    assert command.run_inline("reject", request, "--why", "No roof.").code == 0
    log = next((command.workspace.parent / "state").rglob("log/*.jsonl"))
    until = time.monotonic() + 180
    while "turn_ended" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)  # the editor is another process, without an event for this one
    assert "As you say." not in screen.text()
    save_and_close(command)
    shown = screen.wait(r"^lead As you say\.$")
    assert re.search(r"^OPEN\nCLOSED$", shown, re.MULTILINE), "held back until then"
    said = re.sub(r"\s", "", screen.wait(r"Your text is kept in"))  # the path may be wrapped
    assert f"{request}isnolongeropen" in said
    [kept] = command.workspace.parent.glob(f"{request}-*.md")
    assert kept.read_text() == "Slate the roof.\n"
    screen.type("/plans", "Enter")
    screen.wait(r"^nothing waits for an answer$")


def test_ctrl_c_is_the_editors_while_it_is_open(screen: Screen) -> None:
    screen.type("C-c")
    screen.wait(r"(?s)OPEN.*Nothing is approved.*approve this plan")
    screen.wait(r"approve this plan\? .*> ?$")
    time.sleep(0.6)
    screen.type("y", "Enter")
    screen.wait(r"^lead As you say\.$")
