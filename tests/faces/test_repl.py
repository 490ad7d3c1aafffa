"""The prompt line in a real terminal (tmux): drafts stay, questions come one at a time, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.command import Command
from tests.faces.tmux import Screen, talking

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: no terminal to test in")

SCENARIO = """
agents:
  lead:
    - when: {contains: make it}
      latency_ms: 1500
      reply:
        - tool_use: {name: bash, input: {command: touch made.txt}}
    - when: {result_of: bash}
      reply: So it is.
    - when: {contains: slowly}
      latency_ms: 20000
      reply: Too late.
    - otherwise: true
      reply: I hear you.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def screen(command: Command) -> Iterator[Screen]:
    with talking(command, SCENARIO) as screen:
        yield screen


def test_talk_an_empty_line_and_leave(screen: Screen) -> None:
    screen.type("Enter")
    screen.type("hello", "Enter")
    shown = screen.wait(r"^lead I hear you\.$")
    assert shown.count("> hello") == 1
    screen.type("/help", "Enter")
    screen.wait(r"^/approve ID")
    screen.type("/taks", "Enter")
    screen.wait(r"Did you mean /tasks")
    screen.type("C-d")
    screen.wait(r"^left with 0$")


def test_the_window_and_what_was_cut_from_it(screen: Screen) -> None:
    screen.type("hello", "Enter")
    screen.wait(r"^lead I hear you\.$")
    screen.type("/context", "Enter")
    screen.wait(r"^output reserve +8,000 ")
    screen.wait(r"^compactions: none")
    screen.type("/context explain", "Enter")
    screen.wait(r"^nothing was cut from lead's conversation")
    screen.type("/context undo 3", "Enter")
    screen.wait(r"^there is no edit 3 to take back; there are: none")
    screen.type("/context bob", "Enter")
    screen.wait(r"^there is no agent 'bob' in session ")
    screen.type("/cost", "Enter")
    screen.wait(r"^AGENT +CALLS +INPUT +WRITE +READ +OUTPUT +CACHED +COST")
    screen.type("/inbox lead", "Enter")
    screen.wait(r"^no mail waits")
    screen.type("/trace env_none", "Enter")
    screen.wait(r"^'env_none' is no envelope of session ")


def test_a_question_is_asked_in_the_flow_and_the_draft_comes_back(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    screen.type("my drft", "Left", "Left")
    screen.wait(r"allow this\? .*> ?$")
    assert "my drft" not in screen.text().splitlines()[-1]
    time.sleep(0.6)  # what is typed sooner is not taken for an answer
    screen.type("perhaps", "Enter")
    screen.wait(r"y or n, please")
    time.sleep(0.6)
    screen.type("y go on", "Enter")
    screen.wait(r"^lead So it is\.$")
    assert (command.workspace / "made.txt").exists()
    screen.wait(r"^> my drft")
    screen.type("a")
    screen.wait(r"^> my draft")


def test_another_terminal_answers_first_and_the_question_is_taken_back(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    screen.wait(r"req_[a-z0-9]{12}")  # the block with its id may be drawn a moment after the question
    shown = screen.wait(r"allow this\? .*> ?$")
    request = re.findall(r"req_[a-z0-9]+", shown)[-1]
    assert request in command.here("plans").out
    assert command.here("approve", request[:8]).code == 0
    screen.wait(r"answered elsewhere")
    screen.wait(r"^lead So it is\.$")
    screen.wait(r"^> ?$")


def test_the_first_ctrl_c_stops_the_turn_and_the_second_leaves(screen: Screen) -> None:
    screen.type("slowly", "Enter")
    screen.wait(r"lead: thinks \| 1 working")
    screen.type("C-c")
    screen.wait(r"turn ended: interrupted")
    screen.type("C-c")
    screen.wait(r"^left with 130$")


def test_run_asks_in_the_terminal_too(command: Command) -> None:
    screen = Screen(command, "run", "--model", command.scenario(SCENARIO), "make it")
    try:
        screen.type("y", "Enter")  # before the question: thrown away
        screen.wait(r"allow this\? .*> ?$")
        assert not (command.workspace / "made.txt").exists()
        screen.type("y", "Enter")
        screen.wait(r"^So it is\.$")
        screen.wait(r"^left with 0$")
    finally:
        screen.close()
