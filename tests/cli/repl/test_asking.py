"""Permissions as a person gives them, with real processes: what a question says, always, two terminals."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen

from callboard.cli.terminal.approver import question_of, read_answer, request_block
from callboard.cli.terminal.terminal import Block
from callboard.cli.views.permission import left_words, read_always, seconds_of, spelled, until_line
from callboard.core.approvals.requests import open_request
from callboard.core.approvals.session_rules import Always
from callboard.ports.environment import Answer
from callboard.types.records import Json, Request

SCENARIO = """
agents:
  lead:
    - when: {contains: make it}
      repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: make one}}
    - when: {contains: again}
      reply:
        - tool_use: {name: bash, input: {command: "make one && make two"}}
    - when: {contains: remove it}
      reply:
        - tool_use: {name: bash, input: {command: rm one}}
    - when: {result_of: bash}
      repeat: forever
      reply: So it is.
    - otherwise: true
      reply: I hear you.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "Makefile").write_text("one two:\n\ttouch $@\n")
    return command


def permission(given: Json | None = None, **payload: Any) -> Request:
    held = {"tool": "bash", "input": given or {"command": "npm test"}, "rule": "X", "why": "runs code", **payload}
    return open_request(Request(id="req_1", kind="permission", asked_by="alice", payload=held))


def said(block: Block) -> str:
    return "\n".join(line.text for line in block.lines)


# What it says


def test_a_question_says_what_by_whom_why_and_what_always_would_allow() -> None:
    request = permission(always=["Bash(npm test:*)"], folder="/ws/wt", agent_type="tester")
    shown = said(request_block(request.model_copy(update={"cause": "schedule"})))
    assert "by: alice (tester), in a turn that a schedule began, in /ws/wt" in shown
    assert "command: npm test" in shown
    assert "rule: X (runs code, or a program that is not known to only read)" in shown
    assert "always would allow, in this session: Bash(npm test:*)" in shown
    assert "a for always" in question_of(request)
    assert "always" not in said(request_block(permission())) + question_of(permission())


def test_nothing_of_a_call_is_invisible() -> None:
    hidden = "a\u200bb\u202ec\u00a0d\x1b[8me\u2028f\ufeffg\U000e0041h\r\x0bi\u3164j\u00adk"
    shown = spelled(hidden)
    assert shown.isprintable()
    assert shown.isascii()
    everything = said(request_block(permission({"command": hidden, hidden: hidden}, rule=hidden, folder=hidden)))
    assert everything.replace("\n", "").isascii()


def test_an_edit_is_shown_as_a_change_and_a_new_file_as_what_comes() -> None:
    edit = permission({"path": "a.py", "old_text": "one\ntwo", "new_text": "one\nTWO"}, tool="edit_file")
    assert said(request_block(edit)).splitlines()[3:7] == ["  path: a.py", "     one", "    -two", "    +TWO"]
    new = permission({"path": "a.py", "content": "one\ntwo"}, tool="write_file")
    assert said(request_block(new)).splitlines()[3:6] == ["  path: a.py", "    +one", "    +two"]
    odd = permission({"path": "a.py", "content": 3}, tool="write_file")
    assert "  content: 3" in said(request_block(odd))
    long = permission({"path": "a", "old_text": "x\n" * 500, "new_text": "y\n" * 500}, tool="edit_file")
    assert said(request_block(long)).count("-x") == said(request_block(long)).count("+y") == 500


def test_it_says_until_when_it_waits() -> None:
    at = 1_800_000_000.0
    assert until_line(permission(), at) == ()
    (line,) = until_line(permission().model_copy(update={"expires_at": at}), at - 1_799)
    assert re.search(r"waits until \d\d:\d\d:\d\d \(29 min left\); then it is refused", line.text)
    question = open_request(Request(id="req_q", kind="question", asked_by="alice", expires_at=at, escalation="policy"))
    (line,) = until_line(question, at)
    assert line.text.endswith("(no time left); then a policy decides, or the agent that asks decides")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "no time left"),
        (0, "no time left"),
        (0.5, "0 s left"),
        (119.9, "119 s left"),
        (120, "2 min left"),
        (3_599, "59 min left"),
        (3_600, "1 h 0 min left"),
        (7_325, "2 h 2 min left"),
    ],
)
def test_the_time_left_is_rounded_down(seconds: float, words: str) -> None:
    assert left_words(seconds) == words


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("a", Answer("approved", "person", always=Always())),
        ("always 2h", Answer("approved", "person", always=Always(7_200.0))),
        ("a agent for 90s go on", Answer("approved", "person", "go on", always=Always(90.0, agent_only=True))),
        ("a for the record", Answer("approved", "person", "for the record", always=Always())),
        ("y", Answer("approved", "person")),
        ("", Answer("rejected", "person")),
        (None, Answer("rejected", "person")),
        ("n use npm ci", Answer("rejected", "person", "use npm ci")),
        ("all", None),
    ],
)
def test_words_to_a_permission(typed: str | None, answer: Answer | None) -> None:
    assert read_answer(permission(always=["Bash(npm test:*)"]), typed) == answer


def test_always_is_no_answer_where_it_is_not_offered() -> None:
    assert read_answer(permission(), "a") is None
    assert read_answer(permission(always=["Bash"]).model_copy(update={"person_only": True}), "a") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1_800.0), ("1D", 86_400.0), ("0s", None), ("2", None), ("", None)]
)
def test_times(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds
    assert read_always(text)[0] == Always(seconds)


# Nobody is there


def test_a_headless_run_ends_with_4_and_says_which_call_and_how_to_allow_it(command: Command) -> None:
    model = command.scenario(SCENARIO)
    ran = command.run("run", "--model", model, "again")
    assert ran.code == 4
    assert "lead wants to run bash `make one && make two`" in ran.err
    (flags,) = re.findall(r"allow it by a rule: (.*), or permission.allow", ran.err)
    assert flags == "--allowed-tools 'Bash(make one)' --allowed-tools 'Bash(make two)'"
    assert not (command.workspace / "one").exists()
    allowed = command.here(
        "run", "--allowed-tools", "Bash(make one)", "--allowed-tools", "Bash(make two)", "--model", model, "again"
    )
    assert (allowed.code, (command.workspace / "two").exists()) == (0, True)


def test_a_deletion_that_nobody_allowed_names_the_rule_that_would(command: Command) -> None:
    ran = command.here("run", "--model", command.scenario(SCENARIO), "remove it")
    assert ran.code == 4
    assert "To let it through: allow it by a rule: --allowed-tools 'Bash(rm one)'" in ran.err
    ran = command.here("run", "--allowed-tools", "Bash(rm one)", "--model", command.scenario(SCENARIO), "remove it")
    assert ran.code == 0, ran.err


DECIDES = """\
#!/bin/sh
given=$(cat)
printf '%s\\n' "$given" >> '{log}'
case "$given" in
*"make one"* | *rm*)
  echo '{{"hookSpecificOutput":{{"hookEventName":"PermissionRequest","decision":{{"behavior":"allow"}}}}}}' ;;
esac
"""


def test_a_permission_request_hook_of_a_persons_settings_answers_and_never_for_the_floor(command: Command) -> None:
    folder = command.workspace.parent
    hook, log = folder / "hook.sh", folder / "heard"
    hook.write_text(DECIDES.format(log=log))
    hook.chmod(0o755)
    config = folder / "config" / "callboard"
    config.mkdir(parents=True)
    handlers = [{"type": "command", "command": str(hook)}]
    settings = {"hooks": {"PermissionRequest": [{"matcher": "Bash", "hooks": handlers}]}}
    (config / "settings.yaml").write_text(json.dumps(settings))
    model = command.scenario(SCENARIO)
    assert command.here("run", "--model", model, "make it").code == 0
    assert (command.workspace / "one").exists()
    assert command.here("run", "--model", model, "remove it").code == 4
    assert (command.workspace / "one").exists()
    made, removed = [json.loads(line) for line in log.read_text().splitlines()]
    assert made["permission_suggestions"] == [
        {
            "type": "addRules",
            "rules": [{"toolName": "Bash", "ruleContent": "make one"}],
            "behavior": "allow",
            "destination": "session",
        }
    ]
    assert (made["tool_input"]["command"], "tool_use_id" in made) == ("make one", False)
    assert "permission_suggestions" not in removed


# Terminals


@pytest.fixture
def screen(command: Command) -> Iterator[Screen]:
    screen = Screen(command, "--model", command.scenario(SCENARIO))
    try:
        screen.wait(r"^> ?$")
        yield screen
    finally:
        screen.close()


def waiting(screen: Screen) -> str:
    """The id of the request that is asked for on the screen."""
    screen.wait(r"allow this\? .*> ?$")
    shown = screen.wait(r"permission req_[a-z0-9]{12}")  # it may be drawn a moment after the question
    return re.findall(r"permission (req_[a-z0-9]{12})", shown)[-1]


def test_two_terminals_answer_at_once_and_exactly_one_counts(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    request = waiting(screen)
    both = [command.start("approve", request), command.start("reject", request, "--why", "not now")]
    ended = [(one.communicate(None, 60), one.wait()) for one in both]
    codes = [code for _, code in ended]
    assert sorted(codes) == [0, 2], ended
    screen.wait(r"^lead So it is\.$")
    won = "approved" if codes[0] == 0 else "rejected"
    (lost,) = [err for (_, err), code in ended if code]
    assert f"is {won} by person already" in lost
    row = json.loads(command.here("show", request, "--json").out)
    assert (row["status"], [word["what"] for word in row["history"]]) == (won, ["asked", won, "refused"])
    assert (command.workspace / "one").exists() is (won == "approved")


def test_always_is_asked_once_listed_taken_back_and_no_tool_may_do_it(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    request = waiting(screen)
    marked = command.here("approve", request, "--always", CALLBOARD_TOOL="1")
    assert marked.code == 2
    done = command.here("approve", request, "--always", "--for", "2h")
    assert (done.code, "Bash(make one) is allowed here until" in done.out) == (0, True)
    screen.wait(r"^lead So it is\.$")
    screen.type("make it", "Enter")
    screen.wait(r"So it is\.(?s:.*)So it is\.")
    (rule,) = json.loads(command.here("policy", "rules", "--json").out)
    assert (rule["rule"], rule["request_id"], rule["agent"]) == ("Bash(make one)", request, "")
    assert command.here("policy", "revoke", rule["id"], CALLBOARD_TOOL="1").code == 2
    assert command.here("policy", "revoke", rule["id"]).code == 0
    assert "no session rules" in command.here("policy", "rules").out
    assert "revoked" in command.here("policy", "rules", "--all").out
    screen.type("make it", "Enter")
    screen.wait(rf"permission (?!{request})req_[a-z0-9]{{12}}")  # it is asked for again


def test_always_in_the_prompt_line_and_the_next_call_of_another_class_asks(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    waiting(screen)
    time.sleep(0.6)  # what is typed sooner is not taken for an answer
    screen.type("a", "Enter")
    screen.wait(r"^lead So it is\.$")
    screen.type("again", "Enter")
    screen.wait(r"always would allow, in this session: Bash\(make two\)$")


def test_flags_of_always_that_mean_nothing_are_refused(command: Command) -> None:
    assert "go with --always" in command.here("approve", "req_1", "--for", "2h").err
    assert "such as 30m" in command.here("approve", "req_1", "--always", "--for", "soon").err
