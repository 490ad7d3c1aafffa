"""Denied calls are shown with the rule and the remedy; the lead's words appear where they were said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.terminal import Terminal
from callboard.cli.views.permission import advice_unanswered
from callboard.types.events import ApprovalNeeded, ModelReplied
from callboard.types.records import Envelope

DENIED = {
    ("sudo rm -rf /", "bypassPermissions"): ("gain", "(S). No rule and no mode allows it"),
    ("touch made", "dontAsk"): (
        "(E)",
        "Allow it by a rule (--allowed-tools, permission.allow), or choose another mode",
    ),
    ("touch made", "plan"): ("(E)", "It may run once a plan is approved"),
    ("rm made", "plan"): ("(D)", "It may run once a plan is approved"),
    ("touch made", "default"): (
        "(E)",
        "Nobody can be asked in a run without a terminal; the last lines say how to allow it",
    ),
}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("line", "mode"), DENIED)
def test_a_denied_call_is_one_line_with_its_rule_and_the_way_out(command: Command, line: str, mode: str) -> None:
    call = f"{{tool_use: {{name: bash, input: {{command: {line}}}}}}}"
    scenario = command.scenario(f"agents:\n  lead:\n    - reply: [{call}]\n    - reply: Too bad.\n")
    ran = command.run_inline("run", "--model", scenario, "--permission-mode", mode, "Go.")
    (denied,) = [shown for shown in ran.err.splitlines() if "lead: denied: " in shown]
    assert denied.startswith(f"lead: denied: bash {line}: ")
    for words in DENIED[line, mode]:
        assert words in denied
    ran = command.run_inline("run", "--model", scenario, "--permission-mode", mode, "--output-format", "json", "Go.")
    (told,) = json.loads(ran.out)["permission_denials"]
    assert told["tool_input"]["command"] == line


BY_HOOK = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: touch made}}}]
    - reply: Too bad.
"""
BY_RULE = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: al, role: builder, prompt: Build it., plan_required: true}}
    - reply: He is at work.
      repeat: forever
  al:
    - reply:
        - tool_use: {name: bash, input: {command: touch made}}
        - tool_use: {name: bash, input: {command: mkdir made}}
    - reply: I may not.
      repeat: forever
"""


def test_the_no_of_a_hook_is_not_said_to_wait_for_a_plan(command: Command) -> None:
    hook = {"type": "command", "command": "echo Not on Mondays. >&2; exit 2"}
    settings = Path(command.env["HOME"]) / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
    ran = command.run_inline("run", "--model", command.scenario(BY_HOOK), "--permission-mode", "plan", "Go.")
    (denied,) = [shown for shown in ran.err.splitlines() if "lead: denied: " in shown]
    assert "Not on Mondays." in denied
    assert "once a plan is approved" not in denied


def test_the_no_of_a_rule_before_a_plan_is_not_said_to_wait_for_it(command: Command) -> None:
    ran = command.run_inline("run", "--model", command.scenario(BY_RULE), "--disallowed-tools", "Bash(touch:*)", "Go.")
    by_rule, by_gate = [shown for shown in ran.err.splitlines() if "al: denied: " in shown]
    assert "(rule Bash(touch:*)). To allow it, change that rule" in by_rule
    assert "It may run once a plan is approved" in by_gate


@pytest.mark.parametrize("mode", ["default", "dontAsk", "plan", "bypassPermissions"])
def test_a_fetch_from_this_machine_names_the_one_rule_that_permits_it(command: Command, mode: str) -> None:
    call = "{tool_use: {name: web_fetch, input: {url: 'http://127.0.0.1:1/', prompt: x}}}"
    scenario = command.scenario(f"agents:\n  lead:\n    - reply: [{call}]\n    - reply: Too bad.\n")
    ran = command.run_inline("run", "--model", scenario, "--permission-mode", mode, "Go.")
    (denied,) = [shown for shown in ran.err.splitlines() if "lead: denied: " in shown]
    assert "only an allow rule WebFetch(domain:127.0.0.1) permits it (N). Add that rule by --allowed-tools" in denied
    assert "another mode" not in denied, "no mode permits it"


def test_a_question_that_waited_names_the_command_that_answers_the_next_one() -> None:
    waited = ApprovalNeeded(at=1, call="c", request_id="req_1", rule="E", why="it changes", expires_at=9)
    assert "nobody answered in time" in advice_unanswered(None, waited)
    assert "`callboard approve`" in advice_unanswered(None, waited)
    at_once = waited.model_copy(update={"expires_at": 1})
    assert "`callboard approve`" not in advice_unanswered(None, at_once), (
        "its deadline is over before a person can type it"
    )


def test_the_leads_words_stand_before_what_was_said_after_them() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    screen = Screen(terminal, result_apart=True)
    reply = {"at": 1.0, "ordinal": 1, "stop_reason": "end_turn", "model": "m"}
    for number, (agent, text) in enumerate([("lead", "I wait for alice."), ("alice", "I am done.")]):
        blocks = ({"type": "text", "text": text},)
        screen.on_event(agent, number, ModelReplied.model_validate({**reply, "ordinal": number, "blocks": blocks}))
    mail = Envelope(id="e", sender="alice", recipient="lead", type="result", content="done", cause="person")
    screen.on_mail(mail)
    screen.on_event(
        "lead", 9, ModelReplied.model_validate({**reply, "blocks": ({"type": "text", "text": "All done."},)})
    )
    screen.finish("All done.")
    terminal.close()
    lines = err.getvalue().splitlines()
    assert lines[:2] == ["lead: I wait for alice.", "alice: I am done."]
    assert "All done." not in err.getvalue(), "it is printed as the result"


def test_an_unattended_run_names_the_rule_that_allows_a_deletion_once(command: Command) -> None:
    call = "{tool_use: {name: bash, input: {command: rm gone}}}"
    scenario = command.scenario(f"agents:\n  lead:\n    - reply: [{call}]\n    - reply: Too bad.\n")
    (command.workspace / "gone").touch()
    ran = command.run_inline("run", "--model", scenario, "Go.")
    assert ran.code == 4
    assert ran.err.count("--allowed-tools 'Bash(rm gone)'") == 1, ran.err
    assert "waits for permission" not in ran.err, "no person can answer, so it does not wait"


def test_a_deny_rule_is_named_once(command: Command) -> None:
    call = "{tool_use: {name: bash, input: {command: rm gone}}}"
    scenario = command.scenario(f"agents:\n  lead:\n    - reply: [{call}]\n    - reply: Too bad.\n")
    ran = command.run_inline("run", "--disallowed-tools", "Bash(rm:*)", "--model", scenario, "Go.")
    assert ran.err.count("Bash(rm:*)") == 1, ran.err
