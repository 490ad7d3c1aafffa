"""Permissions from a person, with real processes: the text of a question, "always", and two terminals."""

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

from callboard.cli.terminal.terminal import Block
from callboard.cli.views.permission import read_always, seconds_of, spell_out
from callboard.cli.views.question import choices_of, frame_of, question_of, read_answer, request_block
from callboard.core.approvals.requests import open_request
from callboard.core.approvals.session_rules import AlwaysAllow
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


def text_of(block: Block) -> str:
    return "\n".join(line.text for line in block.lines)


# The question


def test_a_question_says_what_by_whom_why_and_what_always_would_allow() -> None:
    request = permission(always=["Bash(npm test:*)"], folder="/ws/wt", agent_type="tester")
    shown = text_of(request_block(request.model_copy(update={"cause": "schedule"})))
    assert "by: alice (tester), in a turn that a schedule began, in /ws/wt" in shown
    assert "command: npm test" in shown
    assert "rule: X (runs code, or a program that is not known to only read)" in shown
    assert "always would allow, in this session: Bash(npm test:*)" in shown
    assert [choice.text for choice in choices_of(request)][1] == "yes, and always in this session: Bash(npm test:*)"
    assert question_of(request) == "allow this? [1-3, or y/n and why]> "
    assert "always" not in text_of(request_block(permission())) + str(choices_of(permission()))


def test_a_frame_says_what_by_whom_and_why_and_nothing_twice() -> None:
    request = permission(always=["Bash(npm test:*)"], folder="/ws/wt", agent_type="tester")
    frame = frame_of(request.model_copy(update={"cause": "schedule"}), edits=True, home="/ws")
    assert frame.title == "alice (tester) wants to run a command"
    assert [line.text for line in frame.body] == ["npm test"]
    assert [line.text for line in frame.about] == ["runs code (rule X, in a turn that a schedule began, in /ws/wt)"]
    assert [f"{choice.key} {choice.text}" for choice in frame.choices] == [
        "1 yes",
        "2 yes, and always in this session: Bash(npm test:*)",
        "3 no, and say why",
        "4 edit it first",
    ]
    assert "/ws/wt" not in str(frame_of(request, home="/ws/wt").about)


def test_the_numbers_of_the_choices_never_change_their_meaning() -> None:
    assert [choice.key for choice in choices_of(permission())] == ["1", "3"]
    assert question_of(permission(), edits=True) == "allow this? [1,3,4, or y/n and why]> "
    assert read_answer(permission(), "1") == Answer("approved", "person")
    assert read_answer(permission(), "2") is None, "always is not offered"
    assert read_answer(permission(), "3 use npm ci") == Answer("rejected", "person", "use npm ci")
    offered = permission(always=["Bash(npm test:*)"])
    assert read_answer(offered, "2 2h") == Answer("approved", "person", always=AlwaysAllow(7_200.0))


def test_a_call_of_another_tool_is_shown_with_all_its_fields() -> None:
    request = permission({"url": "https://a.example", "depth": 3}, tool="mcp__web__get")
    frame = frame_of(request)
    assert frame.title == "alice wants to use web: get"
    assert [line.text for line in frame.body] == ["url: https://a.example", "depth: 3"]
    timed = frame_of(permission({"command": "one\ntwo", "timeout": 5}))
    assert [line.text for line in timed.body] == ["one", "  two", "timeout: 5"]


def test_nothing_of_a_call_is_invisible() -> None:
    hidden = "a\u200bb\u202ec\u00a0d\x1b[8me\u2028f\ufeffg\U000e0041h\r\x0bi\u3164j\u00adk"
    shown = spell_out(hidden)
    assert shown.isprintable()
    assert shown.isascii()
    everything = text_of(request_block(permission({"command": hidden, hidden: hidden}, rule=hidden, folder=hidden)))
    assert everything.replace("\n", "").isascii()


def test_an_edit_is_shown_as_a_change_and_a_new_file_as_what_comes() -> None:
    edit = permission({"path": "a.py", "old_text": "one\ntwo", "new_text": "one\nTWO"}, tool="edit_file")
    change = ["    1   one", "    2 - two", "    2 + TWO"]
    assert text_of(request_block(edit)).splitlines()[3:7] == ["  path: a.py", *change]
    assert frame_of(edit).title == "alice wants to edit a.py"
    assert [f"    {line.text}" for line in frame_of(edit).body] == change
    new = permission({"path": "a.py", "content": "one\ntwo"}, tool="write_file")
    assert text_of(request_block(new)).splitlines()[3:6] == ["  path: a.py", "    1 + one", "    2 + two"]
    odd = permission({"path": "a.py", "content": 3}, tool="write_file")
    assert "  content: 3" in text_of(request_block(odd))
    long = permission({"path": "a", "old_text": "x\n" * 500, "new_text": "y\n" * 500}, tool="edit_file")
    assert text_of(request_block(long)).count("- x") == text_of(request_block(long)).count("+ y") == 500


def test_an_edit_of_the_workspace_is_named_once_and_relative_to_it() -> None:
    edit = permission({"path": "/ws/a/b.py", "old_text": "1", "new_text": "2"}, tool="edit_file", rule="E", why="")
    edit = edit.model_copy(update={"payload": {**edit.payload, "why": "it changes /ws/a/b.py"}})
    assert frame_of(edit, home="/ws").title == "alice wants to edit a/b.py"
    assert frame_of(edit, home="/ws/a/").title == "alice wants to edit b.py"
    assert frame_of(edit, home="/w").title == "alice wants to edit /ws/a/b.py"
    assert frame_of(edit, home="/ws").about == ()
    relative = edit.model_copy(
        update={"payload": {**edit.payload, "input": {"path": "a/b.py", "old_text": "1", "new_text": "2"}}}
    )
    assert frame_of(relative, home="/ws").about == (), "the agent named the file relative to its folder"
    by_schedule = edit.model_copy(update={"cause": "schedule"})
    assert [line.text for line in frame_of(by_schedule, home="/ws").about] == ["in a turn that a schedule began"]
    protected = edit.model_copy(update={"payload": {**edit.payload, "why": "a/b.py is protected", "rule": "P"}})
    assert [line.text for line in frame_of(protected, home="/ws").about] == ["a/b.py is protected (rule P)"]
    assert "rule: E" in text_of(request_block(edit)), "a listing has all of it"


def test_a_diff_has_the_line_numbers_of_the_file_and_hides_no_line_that_looks_like_its_head() -> None:
    diff = "--- a.sql\n+++ a.sql\n@@ -7,4 +7,4 @@\n one\n--- two\n+++ TWO\n three\n@@ -90,2 +90,3 @@\n x\n+y\n z"
    edit = permission({"path": "a.sql", "old_text": "-- two", "new_text": "++ TWO"}, tool="edit_file", diff=diff)
    assert [(line.text, line.style) for line in frame_of(edit).body] == [
        (" 7   one", "dim"),
        (" 8 - -- two", "bad"),
        (" 8 + ++ TWO", "good"),
        (" 9   three", "dim"),
        ("…", "dim"),
        ("90   x", "dim"),
        ("91 + y", "good"),
        ("92   z", "dim"),
    ]
    note = permission({"name": "n", "content": "a"}, tool="remember", diff="new note: n (project, /m)\n+--- a\n++++ b")
    assert [line.text for line in frame_of(note).body[1:]] == ["new note: n (project, /m)", "1 + --- a", "2 + +++ b"]


def test_it_says_until_when_it_waits_and_what_happens_then() -> None:
    assert frame_of(permission()).deadline is None
    deadline = frame_of(permission().model_copy(update={"expires_at": 1_800_000_000.0})).deadline
    assert deadline is not None
    assert re.fullmatch(r"until \d\d:\d\d:\d\d, then it is refused", deadline.text())
    question = Request(id="req_q", kind="question", asked_by="alice", expires_at=1.0, escalation="policy")
    asked = frame_of(open_request(question)).deadline
    assert asked is not None
    assert asked.text().endswith("then a policy decides, or the agent that asks decides")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("a", Answer("approved", "person", always=AlwaysAllow())),
        ("always 2h", Answer("approved", "person", always=AlwaysAllow(7_200.0))),
        ("a agent for 90s go on", Answer("approved", "person", "go on", always=AlwaysAllow(90.0, agent_only=True))),
        ("a for the record", Answer("approved", "person", "for the record", always=AlwaysAllow())),
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
    assert read_always(text)[0] == AlwaysAllow(seconds)


# No person is there


@pytest.mark.slow
def test_a_headless_run_ends_with_4_and_says_which_call_and_how_to_allow_it(command: Command) -> None:
    model = command.scenario(SCENARIO)
    ran = command.run("run", "--model", model, "again")
    assert ran.code == 4
    assert "lead wants to run bash `make one && make two`" in ran.err
    (flags,) = re.findall(r"allow it by a rule: (.*), or permission.allow", ran.err)
    assert flags == "--allowed-tools 'Bash(make one)' --allowed-tools 'Bash(make two)'"
    assert not (command.workspace / "one").exists()
    allowed = command.run_inline(
        "run", "--allowed-tools", "Bash(make one)", "--allowed-tools", "Bash(make two)", "--model", model, "again"
    )
    assert (allowed.code, (command.workspace / "two").exists()) == (0, True)


def test_a_deletion_that_nobody_allowed_names_the_rule_that_would(command: Command) -> None:
    ran = command.run_inline("run", "--model", command.scenario(SCENARIO), "remove it")
    assert ran.code == 4
    assert "To let it through: allow it by a rule: --allowed-tools 'Bash(rm one)'" in ran.err
    ran = command.run_inline(
        "run", "--allowed-tools", "Bash(rm one)", "--model", command.scenario(SCENARIO), "remove it"
    )
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
    assert command.run_inline("run", "--model", model, "make it").code == 0
    assert (command.workspace / "one").exists()
    assert command.run_inline("run", "--model", model, "remove it").code == 4
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


def request_on(screen: Screen) -> str:
    """Return the id of the request on the screen."""
    screen.wait(r"allow this\? .*> ?$")
    shown = screen.wait(r"─ req_[a-z0-9]{12}$")
    return re.findall(r"─ (req_[a-z0-9]{12})$", shown, re.MULTILINE)[-1]


def test_two_terminals_answer_at_once_and_exactly_one_counts(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    request = request_on(screen)
    both = [command.start("approve", request), command.start("reject", request, "--why", "not now")]
    ended = [(one.communicate(None, 60), one.wait()) for one in both]
    codes = [code for _, code in ended]
    assert sorted(codes) == [0, 2], ended
    screen.wait(r"^lead So it is\.$")
    won = "approved" if codes[0] == 0 else "rejected"
    (lost,) = [err for (_, err), code in ended if code]
    assert f"is {won} by person already" in lost
    row = json.loads(command.run_inline("show", request, "--json").out)
    assert (row["status"], [word["what"] for word in row["history"]]) == (won, ["asked", won, "refused"])
    assert (command.workspace / "one").exists() is (won == "approved")


def test_always_is_asked_once_listed_taken_back_and_no_tool_may_do_it(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    request = request_on(screen)
    marked = command.run_inline("approve", request, "--always", CALLBOARD_TOOL="1")
    assert marked.code == 2
    done = command.run_inline("approve", request, "--always", "--for", "2h")
    assert (done.code, "Bash(make one) is allowed here until" in done.out) == (0, True)
    screen.wait(r"^lead So it is\.$")
    screen.type("make it", "Enter")
    screen.wait(r"So it is\.(?s:.*)So it is\.")
    (rule,) = json.loads(command.run_inline("policy", "rules", "--json").out)
    assert (rule["rule"], rule["request_id"], rule["agent"]) == ("Bash(make one)", request, "")
    assert command.run_inline("policy", "revoke", rule["id"], CALLBOARD_TOOL="1").code == 2
    assert command.run_inline("policy", "revoke", rule["id"]).code == 0
    assert "no session rule is in force" in command.run_inline("policy", "rules").out
    assert "revoked" in command.run_inline("policy", "rules", "--all").out
    screen.type("make it", "Enter")
    screen.wait(rf"─ (?!{request})req_[a-z0-9]{{12}}$")  # the request is repeated


def test_always_in_the_prompt_line_and_the_next_call_of_another_class_asks(screen: Screen, command: Command) -> None:
    screen.type("make it", "Enter")
    request_on(screen)
    time.sleep(0.6)  # keys typed sooner do not count as an answer
    screen.type("a", "Enter")
    screen.wait(r"^lead So it is\.$")
    screen.type("again", "Enter")
    screen.wait(r"2 yes, and always in this session: Bash\(make two\)$")


def test_flags_of_always_that_mean_nothing_are_refused(command: Command) -> None:
    assert "require --always" in command.run_inline("approve", "req_1", "--for", "2h").err
    assert "such as 30m" in command.run_inline("approve", "req_1", "--always", "--for", "soon").err
