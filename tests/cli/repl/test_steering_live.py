"""Steering in a terminal: queued text, interrupts, teammates, several questions, other sessions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen, open_screen

SCENARIO = """
models:
  big-one: {window: 200000}
  small-one: {window: 100000}
agents:
  lead:
    - when: {contains: slowly}
      latency_ms: 20000
      reply: Too late.
    - when: {contains: three mates}
      reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: tests, prompt: write it}}
        - tool_use: {name: spawn_teammate, input: {name: bob, role: tests, prompt: write it}}
        - tool_use: {name: spawn_teammate, input: {name: carol, role: tests, prompt: write it}}
    - when: {model: small-one}
      repeat: forever
      reply: The small one hears you.
    - when: {contains: quickly}
      reply: Quickly it is.
    - otherwise: true
      reply: I hear you.
  '*':
    - when: {contains: write it}
      reply:
        - tool_use: {name: bash, input: {command: "touch ${agent}.txt"}}
    - when: {result_of: bash}
      reply:
        - tool_use: {name: report, input: {status: done, result: "${agent} has written"}}
    - when: {contains: a word}
      reply: A word for me.
    - otherwise: true
      reply: Yes.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def screen(command: Command) -> Iterator[Screen]:
    with open_screen(command, SCENARIO) as screen:
        yield screen


def test_a_word_waits_and_says_so_and_an_exclamation_mark_interrupts(screen: Screen) -> None:
    screen.type("slowly", "Enter")
    screen.wait(r"^lead +\d+ s +\S+ tokens +thinks")
    screen.type("and the tests", "Enter")
    screen.wait(r"^queued: lead reads it at its next step; !@lead TEXT interrupts it")
    screen.type("!@lead quickly", "Enter")
    screen.wait(r"^interrupting lead: it reads this next")
    shown = screen.wait(r"^(lead )?(Quickly it is|I hear you)\.$")
    assert "Too late" not in shown
    assert "turn ended: interrupted" in shown
    screen.type("!", "Enter")
    screen.wait(r"^lead has no turn to interrupt")


@pytest.mark.slow
def test_permissions_lists_the_rules_with_their_places(command: Command) -> None:
    config = Path(command.env["XDG_CONFIG_HOME"]) / "callboard"
    config.mkdir(parents=True, exist_ok=True)
    (config / "settings.yaml").write_text("permission:\n  allow: [Bash(npm test *)]\n  deny: [Bash(wget *)]\n")
    with open_screen(command, SCENARIO) as screen:
        screen.type("/permissions", "Enter")
        shown = screen.wait(r"callboard policy explain")
    unwrapped = "".join(shown.split())  # a path that is longer than a row is broken
    assert "modedefault;denyruleswin" in unwrapped
    assert f"denyBash(wget*)({config}/settings.yaml:3:permission.deny[0])" in unwrapped
    assert f"allowBash(npmtest*)({config}/settings.yaml:2:permission.allow[0])" in unwrapped


@pytest.mark.slow
def test_a_prompt_on_the_command_line_is_the_first_one(command: Command) -> None:
    (command.workspace / "scenario.yaml").write_text(SCENARIO)
    screen = Screen(command, "reply quickly", "--model", "rehearsal:scenario.yaml")
    try:
        shown = screen.wait(r"^(lead )?Quickly it is\.$")
        assert "> reply quickly" in shown
        screen.type("and again", "Enter")
        screen.wait(r"^(lead )?I hear you\.$")
        screen.type("/quit", "Enter")
        screen.wait(r"^left with 0$")
    finally:
        screen.close()


def test_a_wrong_name_sends_nothing_and_the_line_is_the_draft_again(screen: Screen) -> None:
    screen.type("@alise use tabs", "Enter")
    screen.wait(r"^unknown agent 'alise': choose @")
    screen.wait(r"^> @alise use tabs")
    screen.type("C-u", "\\\\@alise is a name", "Enter")
    screen.wait(r"^(lead )?I hear you\.$")


@pytest.mark.slow
def test_three_mates_ask_at_once_and_are_answered_from_here_and_from_another_process(
    screen: Screen, command: Command
) -> None:
    screen.type("three mates", "Enter")
    screen.type("my draft")
    shown = screen.wait(r"1 of 3 +req_[a-z0-9]{12}$")
    screen.wait(r"allow this\? .*> ?$")
    assert shown.count("allow this?") <= 1, "one question at a time"
    mine = re.findall(r"^╭─ (\w+) wants to .* (req_[a-z0-9]+)$", shown, re.MULTILINE)[-1]
    waiting = re.findall(r"^(req_\w+) +permission +(\w+)", command.run_inline("plans").out, re.MULTILINE)
    assert len(waiting) == 3
    others = [(name, request) for request, name in waiting if request != mine[1]]
    (first, elsewhere), (second, last) = others
    assert command.run_inline("approve", elsewhere).code == 0
    wait_for_files(command, f"{first}.txt")
    assert command.run_inline("approve", mine[1]).code == 0
    screen.wait(rf"^{mine[0]} .*: approved by person$")
    screen.wait(rf"^╭─ {second} wants to .* {last}$")
    screen.wait(r"allow this\? .*> ?$")
    time.sleep(0.6)  # keys typed sooner do not count as an answer
    screen.type("y", "Enter")
    wait_for_files(command, f"{mine[0]}.txt", f"{second}.txt")
    screen.wait(r"^> my draft")
    screen.type("C-u", "@alice a word", "Enter")
    screen.wait(r"^(alice )?A word for me\.$")
    screen.type("/stop alic", "Enter")
    screen.wait(r"unknown agent 'alic': choose alice")
    screen.type("/stop alice", "Enter")
    screen.wait(r"^asked alice to stop")
    screen.type("/inbox", "Enter")
    screen.wait(r"^nothing waits for you")


def test_another_model_another_session_and_back(screen: Screen) -> None:
    screen.type("hello", "Enter")
    screen.wait(r"^(lead )?I hear you\.$")
    screen.type("/model", "Enter")
    screen.wait(r"^big-one$")
    screen.type("/model huge-one", "Enter")
    screen.wait(r"has no model 'huge-one'; its file has: big-one, small-one")
    screen.type("/model small-one", "Enter")
    screen.wait(r"^the lead uses small-one from its next call on")
    screen.type("hello", "Enter")
    screen.wait(r"^(lead )?The small one hears you\.$")
    shown = screen.wait(r"^session \S+; /help")
    mine = re.findall(r"^session (\S+); /help", shown, re.MULTILINE)[0]
    screen.type("/resume nothing", "Enter")
    screen.wait(r"unknown session 'nothing' of this workspace")
    screen.type(f"/resume {mine}", "Enter")
    screen.wait(rf"^this is session {mine}")
    screen.type("/resume", "Enter")
    screen.wait(rf"^{mine} ")
    screen.wait(rf"^this is {mine}; /resume ID continues another one")


@pytest.mark.slow
def test_resume_goes_on_with_another_session_in_the_same_terminal(command: Command) -> None:
    scenario = command.scenario(SCENARIO)
    assert command.run_inline("run", "--model", scenario, "hello").code == 0
    other = re.findall(r"^(\S+) .*hello", command.run_inline("sessions").out, re.MULTILINE)[0]
    screen = Screen(command, "--model", scenario)
    try:
        screen.wait(r"^> ?$")
        screen.type(f"/resume {other}", "Enter")
        screen.wait(rf"^session {other}; /help")
        screen.type("quickly", "Enter")
        screen.wait(r"^(lead )?Quickly it is\.$")
        screen.type("C-d")
        screen.wait(r"^left with 0$")
    finally:
        screen.close()


@pytest.mark.slow
def test_the_slash_commands_work_where_another_process_is_the_host(screen: Screen, command: Command) -> None:
    screen.type("three mates", "Enter")
    screen.wait(r"1 of 3 ")
    beside = Screen(command, "attach")
    try:
        beside.wait(r"hosts session")
        beside.wait(r"allow this\? .*> ?$")
        for name, request in re.findall(
            r"^(req_\w+) +permission +(\w+)", command.run_inline("plans").out, re.MULTILINE
        ):
            assert command.run_inline("reject", name, "--why", f"not now, {request}").code == 0
        beside.wait(r": rejected by person: not now")
        beside.wait(r"^> ?$")
        for line, shows in (
            ("/help", r"^/approve ID"),
            ("/team", r"^── the team ──(?s:.*)─ alice +idle"),
            ("/team ids", r"^alice +teammate"),
            ("/tasks", r"the board is empty"),
            ("/plans", r"nothing waits"),
            ("/cron", r"no schedules"),
            ("/rules", r"no session rules"),
            ("/permissions", r"hosts the session: callboard settings lists its rules"),
            ("/context", r"output reserve"),
            ("/cost", r"^AGENT +CALLS"),
            ("/model small-one", r"the lead uses small-one from its next call on"),
            ("/resume", r"this is \S+; /resume ID continues"),
            ("/compact the tests", r"asked for a compaction"),
            ("@alice a word", r"^(alice )?A word for me\.$"),
            ("/stop bob", r"asked bob to stop"),
            ("/new", r"^context cleared: "),
            ("hello", r"^(lead )?The small one hears you\.$"),
        ):
            beside.type(line, "Enter")
            beside.wait(shows)
        beside.type("/quit", "Enter")
        beside.wait(r"^left with 0$")
    finally:
        beside.close()


def wait_for_files(command: Command, *names: str, seconds: float = 180) -> None:
    """Wait until these files exist."""
    until(lambda: all((command.workspace / name).exists() for name in names), seconds)


def until(so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a new file sends no event here


@pytest.mark.slow
def test_ctrl_c_at_a_question_is_no_and_stops_who_asked(screen: Screen, command: Command) -> None:
    screen.type("three mates", "Enter")
    screen.type("my draft")
    screen.wait(r"1 of 3 ")
    screen.wait(r"allow this\? .*> ?$")
    screen.type("C-c")
    screen.wait(r"stopping the turn; Ctrl-C again within 2 s leaves")
    screen.wait(r"^> my draft")
    assert not list(command.workspace.iterdir()), "nothing ran"
    screen.type("C-u")
    screen.type("C-c", "C-c", "C-c")
    screen.wait(r"^left with 130$")


FOR_LEAD = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: amy, role: builder, prompt: Build it., plan_required: true}}
    - otherwise: true
      reply: I do not answer it.
  amy:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Build the wall.}}}]
    - otherwise: true
      reply: So be it.
"""


@pytest.mark.slow
def test_a_plan_that_waits_for_the_lead_is_not_said_to_wait_for_the_person(command: Command) -> None:
    config = Path(command.env["XDG_CONFIG_HOME"]) / "callboard"
    config.mkdir(parents=True, exist_ok=True)
    (config / "settings.yaml").write_text("plan:\n  approver: lead\n")
    with open_screen(command, FOR_LEAD) as screen:
        screen.type("go", "Enter")
        screen.wait(r"plan req_\w+ waits for approval")
        shown = screen.wait(r"1 idle, 1 waiting")
        assert "waits for you" not in shown
        screen.type("/plans", "Enter")
        screen.wait(r"^ *waits for lead or policy$")
