"""The prompt line in a terminal: drafts stay, questions come one at a time, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl import tmux
from tests.cli.repl.screen import Screen, open_screen

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
    - when: {contains: on and on}
      reply:
        - tool_use: {name: bash, input: {command: sleep 20, run_in_background: true}}
    - when: {contains: wait for it}
      reply:
        - tool_use: {name: bash, input: {command: bash wait.sh}}
    - when: {contains: too often}
      reply: Now.
      fault: {status: 429, retry_after: 3600, times: 99}
    - when: {contains: in a moment}
      latency_ms: 2000
      reply: It took a moment.
    - when: {contains: the colour is teal}
      reply: Teal.
    - otherwise: true
      reply: I hear you.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def screen(command: Command) -> Iterator[Screen]:
    with open_screen(command, SCENARIO) as screen:
        yield screen


def talk_and_leave(screen: Screen | tmux.Screen) -> None:
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


def stop_and_leave(screen: Screen | tmux.Screen) -> None:
    screen.type("slowly", "Enter")
    screen.wait(r"^lead +\d+ s +\S+ tokens +thinks(?s:.*)1 working")
    screen.type("C-c")
    screen.wait(r"turn ended: interrupted")
    screen.type("C-c")
    screen.wait(r"^left with 130$")


@pytest.mark.slow
def test_talk_an_empty_line_and_leave(screen: Screen) -> None:
    talk_and_leave(screen)


def test_the_first_ctrl_c_stops_the_turn_and_the_second_leaves(screen: Screen) -> None:
    stop_and_leave(screen)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("person", [talk_and_leave, stop_and_leave])
def test_the_terminal_of_another_program_shows_the_same(
    command: Command, person: Callable[[tmux.Screen], None]
) -> None:
    """`tmux` answers the prompt line's terminal queries, and starts `callboard` as a shell does."""
    with tmux.open_screen(command, SCENARIO) as screen:
        person(screen)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_question_leaves_no_row_behind_in_a_terminal_that_breaks_its_rows(command: Command) -> None:
    with tmux.open_screen(command, SCENARIO) as screen:
        screen.type("make it", "Enter")
        screen.wait(r"allow this\? .*> ?$")
        for columns in (60, 53, 90):
            screen.resize(columns, 40)
            shown = screen.wait(rf"^(?=.{{{columns - 4},{columns - 1}}}$)╭─ lead wants to .* req_[a-z0-9]{{12}}$")
            assert shown.count("╭─ lead wants to") == 1, shown


def test_the_window_and_what_was_cut_from_it(screen: Screen) -> None:
    screen.type("hello", "Enter")
    screen.wait(r"^lead I hear you\.$")
    screen.type("/context", "Enter")
    screen.wait(r"^output reserve +8,000 ")
    screen.wait(r"^compactions: none")
    screen.type("/context explain", "Enter")
    screen.wait(r"^nothing was cut from lead's conversation")
    screen.type("/context undo 3", "Enter")
    screen.wait(r"^there is no edit 3 to undo: there are none")
    screen.type("/context bob", "Enter")
    screen.wait(r"^unknown agent 'bob' in session ")
    screen.type("/cost", "Enter")
    screen.wait(r"^AGENT +CALLS +INPUT +WRITE +READ +OUTPUT +CACHED +COST")
    screen.type("/inbox lead", "Enter")
    screen.wait(r"^no mail waits")
    screen.type("/trace env_none", "Enter")
    screen.wait(r"^unknown envelope 'env_none' of session ")


def test_a_question_is_asked_in_the_flow_and_the_draft_comes_back(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    screen.type("my drft", "Left", "Left")
    screen.wait(r"allow this\? .*> ?$")
    assert "my drft" not in screen.text().splitlines()[-1]
    time.sleep(0.6)  # keys typed sooner do not count as an answer
    screen.type("perhaps", "Enter")
    screen.wait(r"a number, y or n")
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
    assert request in command.run_inline("plans").out
    assert command.run_inline("approve", request[:8]).code == 0
    screen.wait(r"^lead bash touch made.txt: approved by person$")
    screen.wait(r"^lead So it is\.$")
    screen.wait(r"^> ?$")


def test_a_shell_line_runs_beside_the_turn_and_the_lead_reads_its_output(screen: Screen, command: Command) -> None:
    (command.workspace / "notes.txt").write_text("the colour is teal\n")
    screen.type("in a moment", "Enter")
    screen.wait(r"^lead +\d+ s +\S+ tokens +thinks(?s:.*)1 working")
    screen.type("!cat notes.txt; exit 3", "Enter")
    screen.wait(r"^the colour is teal\nexit code 3$")
    shown = screen.wait(r"^lead It took a moment\.$")
    assert "interrupted" not in shown
    screen.type("which colour", "Enter")
    screen.wait(r"^lead Teal\.$")
    screen.type("!sleep 100", "Enter")
    screen.wait(r"^> !sleep 100$")
    screen.type("C-c")
    screen.wait(r"^your command was ended")


@pytest.mark.slow
def test_ctrl_d_leaves_at_once_unless_an_agent_is_at_work(screen: Screen) -> None:
    screen.type("slowly", "Enter")
    screen.wait(r"^lead +\d+ s +\S+ tokens +thinks(?s:.*)1 working")
    screen.type("C-d")
    shown = screen.wait(r"^1 agent is still at work: lead$")
    session = re.findall(r"^session (\S+); /help", shown, re.MULTILINE)[0]
    screen.wait(rf"^leaving stops it until `callboard resume {session}`\nCtrl-D again within 2 s leaves$")
    for count in range(2, 30):  # on a slow machine, the next key may come too late, and count as a first one
        screen.type("C-d")
        shown = screen.wait(rf"^left with 0$|(?s:(.*Ctrl-D again within 2 s leaves){{{count}}})")
        if "left with" in shown:
            break
    assert re.search(rf"^the session is kept: `callboard --resume {session}` continues it$", shown, re.MULTILINE)
    assert re.search(r"^left with 0$", shown, re.MULTILINE)


def test_the_first_schedule_of_a_session_at_a_prompt_line_is_fired_by_that_process(
    screen: Screen, command: Command
) -> None:
    screen.type("hello", "Enter")
    screen.wait(r"^lead I hear you\.$")
    added = command.run_inline("cron", "add", "@daily", "water the plants")
    assert re.search(r"^fired by: the process that hosts its session, \d+$", added.err, re.MULTILINE), added.err


@pytest.mark.slow
def test_run_asks_in_the_terminal_too(command: Command) -> None:
    screen = Screen(command, "run", "--model", command.scenario(SCENARIO), "make it")
    try:
        screen.type("y", "Enter")  # before the question: discarded
        screen.wait(r"allow this\? .*> ?$")
        assert not (command.workspace / "made.txt").exists()
        screen.type("y", "Enter")
        screen.wait(r"^So it is\.$")
        screen.wait(r"^left with 0$")
    finally:
        screen.close()


@pytest.mark.slow
def test_a_background_command_of_an_idle_lead_is_named_before_leaving(command: Command) -> None:
    screen = Screen(command, "--permission-mode", "bypassPermissions", "--model", command.scenario(SCENARIO))
    try:
        screen.wait(r"^> ?$")
        screen.type("on and on", "Enter")
        screen.wait(r"^lead So it is\.$")
        screen.type("C-d")
        screen.wait(r"^sleep 20 \(lead\) runs in the background and continues when you leave\nCtrl-D again")
        screen.type("C-d")
        screen.wait(r"^left with 0$")
    finally:
        screen.close()


def test_ctrl_b_moves_a_command_to_the_background(screen: Screen, command: Command) -> None:
    (command.workspace / "wait.sh").write_text("read line < gate\n")
    os.mkfifo(command.workspace / "gate")
    screen.type("ac", "C-b", "b", "Enter")
    screen.wait(r"^> abc$")  # nothing runs, so the key moves the cursor
    screen.type("wait for it", "Enter")
    screen.wait(r"allow this\?")
    time.sleep(0.6)  # keys typed sooner do not count as an answer
    screen.type("1", "Enter")
    screen.wait(r"^lead +\d+ s +\S+ tokens +bash bash wait\.sh")
    screen.type("C-b")
    screen.wait(r"^lead bash bash wait\.sh => goes on in the background as bg_\w+$(?s:.*)^lead So it is\.$")
    (command.workspace / "gate").write_text("go\n")
    screen.wait(r"^lead background bg_\w+ completed \(exit 0\)$(?s:.*)^lead I hear you\.$")


def test_a_rate_limit_that_parks_the_lead_is_in_the_status_line(screen: Screen) -> None:
    screen.type("too often", "Enter")
    screen.wait(r"lead waits for the rate limit until \d\d:\d\d \(callboard rate\)")


def test_a_session_is_chosen_and_shows_how_its_conversation_ended(screen: Screen, command: Command) -> None:
    screen.type("hello", "Enter")
    screen.wait(r"^lead I hear you\.$")
    screen.type("C-d")
    screen.wait(r"^left with 0$")
    again = Screen(command, "--model", f"rehearsal:{command.workspace.parent / 'scenario.yaml'}", "--resume")
    try:
        again.wait(r"^1 .* hello$(?s:.*)^continue which session\? \[1-1, Enter: 1\] ?$")
        again.type("Enter")
        again.wait(r"^> hello$\n^lead I hear you\.$\n^lead continues where it was$")
        again.type("C-d")
        again.wait(r"^left with 0$")
    finally:
        again.close()
