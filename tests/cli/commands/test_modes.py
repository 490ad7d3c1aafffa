"""Permission modes and leaving at the prompt line, in a real terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen
from tests.simulation.processes import AtTerminal

from callboard.cli.commands.options import PERMISSION_MODES
from callboard.cli.repl.draft import TOO_SOON
from callboard.types.agent_spec import READ_AS, PermissionMode

PLAN = """
agents:
  lead:
    - when: {contains: Do it}
      reply: [{tool_use: {name: submit_plan, input: {plan: Thatch the roof.}}}]
    - when: {result_of: submit_plan}
      reply: [{tool_use: {name: write_file, input: {path: roof.txt, content: thatch}}}]
    - {otherwise: true, reply: As you say., repeat: forever}
"""
WAITING = {
    "plan": "[{tool_use: {name: submit_plan, input: {plan: Rebuild the roof.}}}]",
    "permission": "[{tool_use: {name: bash, input: {command: rm roof}}}]",
}
ASKED = {"plan": "approve this plan?", "permission": "allow this?"}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_a_plan_that_an_unattended_run_approves_is_carried_out(command: Command) -> None:
    ran = command.run_inline("run", "--permission-mode", "plan", "--yes", "--model", command.scenario(PLAN), "Do it")
    assert (ran.code, ran.out) == (0, "As you say.\n"), ran.err
    assert (command.workspace / "roof.txt").read_text() == "thatch"


@pytest.mark.slow
def test_a_resume_takes_another_mode_and_keeps_it(command: Command) -> None:
    write = "reply: [{{tool_use: {{name: write_file, input: {{path: {}.txt, content: x}}}}}}]"
    replies = [line for name in ("one", "two", "three", "four") for line in (write.format(name), "reply: Done.")]
    scenario = command.scenario("agents:\n  lead:\n" + "".join(f"    - {reply}\n" for reply in replies))
    assert command.run_inline("run", "--model", scenario, "Go.").code == 4, "no person is asked"
    again = command.run_inline("run", "--continue", "--permission-mode", "acceptEdits", "Again.")
    assert (again.code, again.out) == (0, "Done.\n"), again.err
    kept = command.run_inline("run", "--continue", "And again.")
    assert (kept.code, kept.out) == (0, "Done.\n"), "the new mode is kept"
    session = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
    stricter = command.run_inline("run", "--resume", session, "--permission-mode", "dontAsk", "And now?")
    assert "lead: denied: write_file four.txt" in stricter.err
    assert sorted(path.name for path in command.workspace.glob("*.txt")) == ["three.txt", "two.txt"]


def init_of(command: Command, *args: str) -> tuple[str, bool]:
    """Return the mode in the first message of a run, and whether the message names tools."""
    ran = command.run_inline("run", "--output-format", "stream-json", "--verbose", *args, "Go.")
    assert ran.code == 0, ran.err
    first = ran.messages[0]
    assert (first["type"], first["subtype"]) == ("system", "init")
    return first["permissionMode"], bool(first["tools"])


@pytest.mark.slow
def test_the_first_message_of_a_resumed_run_names_the_mode_of_its_lead(command: Command) -> None:
    scenario = command.scenario("agents: {lead: [{otherwise: true, reply: Done., repeat: forever}]}")
    assert init_of(command, "--permission-mode", "plan", "--model", scenario) == ("plan", True)
    assert init_of(command, "--continue") == ("plan", True)
    assert init_of(command, "--continue", "--permission-mode", "acceptEdits") == ("acceptEdits", True)
    assert init_of(command, "--continue") == ("acceptEdits", True)


@pytest.mark.slow
def test_a_plan_is_approved_with_a_mode_and_shift_tab_changes_it(command: Command) -> None:
    screen = Screen(command, "--model", command.scenario(PLAN), "--permission-mode", "plan")
    try:
        screen.wait(r"mode plan \|")
        screen.type("Do it", "Enter")
        screen.wait(r"approve this plan\? .*> ?$")
        time.sleep(TOO_SOON)
        screen.type("a", "Enter")
        screen.wait(r"^lead As you say\.$")
        assert (command.workspace / "roof.txt").read_text() == "thatch"
        screen.wait(r"mode acceptEdits \|")
        screen.type("BTab", "BTab")
        screen.wait(r"mode default \|")
        screen.type("/mode plan", "Enter")
        screen.wait(r"mode plan \|")
        screen.type("/mode bypassPermissions", "Enter")
        screen.wait(r"must be requested at the start")
        screen.type("/mode", "Enter")
        shown = screen.wait(r"the lead's permission mode; /mode MODE chooses another")
        assert "default, acceptEdits, sandboxed" in shown.replace("dontAsk, ", "")
    finally:
        screen.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("keys", ["\x04", "\x03\x03"], ids=["Ctrl-D", "Ctrl-C twice"])
def test_leaving_an_attached_screen_at_a_question_answers_nothing(command: Command, kind: str, keys: str) -> None:
    (command.workspace / "roof").touch()
    scenario = command.scenario(f"agents:\n  lead:\n    - reply: {WAITING[kind]}\n    - reply: The answer came.\n")
    mode = ("--permission-mode", "plan") if kind == "plan" else ()
    host = AtTerminal(command, "run", *mode, "--model", scenario, "Go.")
    host.wait_for(ASKED[kind])
    person = AtTerminal(command, "attach")
    person.wait_for(ASKED[kind])
    (request,) = json.loads(command.run_inline("plans", "--json").out)
    time.sleep(TOO_SOON)
    for key in keys:
        person.type(key)
        if len(keys) > 1 and key == keys[0]:
            time.sleep(0.2)
    assert person.end() in (0, 130)
    (after,) = json.loads(command.run_inline("plans", "--json").out)
    assert after == request, "still pending, with an unchanged history"
    assert command.run_inline("approve", request["id"]).code == 0
    assert host.end() == 0


def test_the_option_offers_every_mode() -> None:
    """The options name the modes themselves, because `--help` imports them before the types."""
    assert set(PERMISSION_MODES) == {*get_args(PermissionMode), *READ_AS}
