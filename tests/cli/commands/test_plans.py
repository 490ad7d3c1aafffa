"""Plans for a person at a command line: listed, shown in full, approved by option, edited, rejected."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import COMMIT, answered_request, plan, text_of
from tests.simulation.processes import AtTerminal

from callboard.cli.views.events import answer_words
from callboard.cli.views.requests import details_of, request_json, request_page, requests_table
from callboard.core.approvals.plans import PlanBinding, payload_of, submitted_of
from callboard.core.approvals.requests import open_request
from callboard.types.records import Request

# In full


def test_the_page_of_a_plan_holds_all_of_it_and_what_it_stands_on() -> None:
    text = "\n".join(f"step {number} {'x' * 300}" for number in range(60))
    page = text_of(request_page(details_of(plan(text, "by hand", "by tool"), [], "the commit has moved")))
    assert all(line in page for line in text.splitlines())
    for words in ("revision 1; for task_a; in /work/roof at commit c0ffeec0ff", "the commit has moved"):
        assert words in page
    assert "option 2: by tool" in page
    assert "asked by alice" in page
    assert "waits for person or policy until 2" in page
    assert "callboard approve req_a1 [--option N]  |  callboard edit req_a1  |  callboard reject req_a1" in page


def test_the_page_shows_what_differs_from_the_revision_before_and_what_was_said_to_that() -> None:
    first = answered_request(plan("1. read\n2. burn"), "rejected", "too hot")
    second = plan("1. read\n2. mend", id="req_a2", revision=2, created_at=first.created_at + 5)
    other = plan("of bob", id="req_b", asked_by="bob", created_at=first.created_at + 1)
    page = text_of(request_page(details_of(second, [first, other, second])))
    assert "changes since revision 1 (req_a1, rejected by person: too hot)" in page
    assert "    -2. burn\n    +2. mend" in page
    assert "rejected by person: too hot" in text_of(request_page(details_of(first, [first, second])))
    whole = request_json(details_of(second, [first, other, second]))
    assert (whole["id"], whole["previous"], whole["revision"]) == ("req_a2", "req_a1", 2)
    assert whole["diff"].splitlines()[-2:] == ["-2. burn", "+2. mend"]


def test_nothing_of_a_plan_hides_from_who_approves_it() -> None:
    first = plan("1. read")
    second = plan("1. read\x1b[8m rm\x1b[0m", id="req_a2", revision=2, created_at=first.created_at + 1)
    page = request_page(details_of(second, [first]))
    assert "\x1b" not in text_of(page)
    assert text_of(page).count("\\x1b[8m rm") == 2, "in the text, and in the difference"


def test_a_row_of_an_older_version_has_a_page_too() -> None:
    old = Request(id="req_o", kind="plan", asked_by="alice", payload={"plan": "x"}, status="approved", reason="good")
    page = text_of(request_page(details_of(old.model_copy(update={"answered_by": "person"}), [])))
    assert "approved by person: good" in page
    assert "revision 1" in page


def test_a_plan_for_the_lead_alone_does_not_ask_the_person() -> None:
    for_lead = plan(may_answer=("lead", "policy"))
    page = text_of(request_page(details_of(for_lead, [])))
    assert "waits for lead or policy until 2" in page
    assert "callboard approve" not in page, "it would be refused"
    assert answer_words(for_lead) == "waits for lead or policy"
    assert "  (waits for lead or policy) " in text_of(requests_table([for_lead]))
    assert "(waits for" not in text_of(requests_table([plan()]))


# From the command line


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_another_session_that_waits_is_named(command: Command) -> None:
    create_session_with(command, plan(), plan(id="req_b2"), prompt="Mend the roof\nand the door")
    create_session_with(command, plan(may_answer=("lead",)), session="s3")
    create_session_with(command, answered_request(plan(), "rejected", "no"), session="s2")
    ran = command.run_inline("plans")
    assert ran.out.splitlines() == [
        "nothing waits for an answer",
        "another session has 2 requests for you (Mend the roof): callboard plans --session s1",
    ]
    assert json.loads(command.run_inline("plans", "--json").out) == []
    assert "another session" not in command.run_inline("plans", "--session", "s1").out


def test_what_waits_is_listed_oldest_first_and_shown_in_full_by_its_id(command: Command) -> None:
    late = plan("# Of bob", id="req_b2", asked_by="bob", created_at=time.time() + 5)
    create_session_with(command, late, plan(), answered_request(plan(id="req_c3"), "rejected", "no"))
    listed = command.run_inline("plans").out.splitlines()
    assert listed[0].split() == ["REQUEST", "KIND", "FROM", "REV", "SINCE", "UNTIL", "ABOUT"]
    assert [line.split()[:4] for line in listed[1:3]] == [
        ["req_a1", "plan", "alice", "1"],
        ["req_b2", "plan", "bob", "1"],
    ]
    assert listed[3:] == ["in full: callboard show ID"]
    assert "1. read" not in command.run_inline("plans").out, "one line each"
    assert [one["id"] for one in json.loads(command.run_inline("plans", "--json").out)] == ["req_a1", "req_b2"]
    assert "rejected" in command.run_inline("plans", "--all").out
    page = command.run_inline("show", "b2").out
    assert page.startswith("bob: plan req_b2 waits for approval\n")
    assert stored_request(command, "req_c3").status == "rejected"
    assert command.run_inline("show", "nothing").code == 2


def test_one_of_the_options_is_approved(command: Command) -> None:
    create_session_with(command, plan("x", "by hand", "by tool"))
    wrong = command.run_inline("approve", "req_a1", "--option", "3")
    assert (wrong.code, "it has 1 to 2" in wrong.err) == (2, True)
    assert command.run_inline("approve", "req_a1", "--option", "2").out == "req_a1 approved, option 2\n"
    assert (stored_request(command).status, stored_request(command).choice) == ("approved", "by tool")


def test_a_plan_is_rejected_with_its_feedback_only(command: Command) -> None:
    create_session_with(command, plan())
    bare = command.run_inline("reject", "req_a1")
    assert (bare.code, "say what to change" in bare.err) == (2, True)
    assert stored_request(command).status == "pending"
    assert command.run_inline("reject", "req_a1", "--why", "smaller").code == 0
    assert (stored_request(command).status, stored_request(command).reason) == ("rejected", "smaller")
    again = command.run_inline("approve", "req_a1")
    assert (again.code, "req_a1 is rejected by person already" in again.err) == (2, True)


@pytest.mark.parametrize("line", [("approve", "req_a1"), ("edit", "req_a1"), ("reject", "req_a1", "--why", "x")])
def test_no_tool_answers_its_agents_plan(command: Command, line: Sequence[str]) -> None:
    create_session_with(command, plan())
    refused = command.run_inline(*line, CALLBOARD_TOOL="1")
    assert (refused.code, refused.out) == (2, "")
    assert stored_request(command).status == "pending"


def test_a_plan_is_edited_from_a_file_and_keeps_what_was_submitted(command: Command) -> None:
    create_session_with(command, plan())
    file = command.workspace / "plan.md"
    file.write_text("# Mend it well\n1. read\n2. test\n")
    assert (
        command.run_inline("edit", "req_a1", "--file", str(file), "--why", "Test it.").out
        == "req_a1 approved as edited\n"
    )
    after = stored_request(command)
    assert (after.status, after.revision, after.reason) == ("approved", 2, "Test it.")
    assert after.payload["plan"] == "# Mend it well\n1. read\n2. test"
    assert submitted_of(after)["plan"] == "# Mend it\n1. read"
    assert [one.what for one in after.history] == ["asked", "edited", "approved"]
    page = command.run_inline("show", "req_a1").out
    assert "revision 2, edited by a person" in page
    assert "+2. test" in page
    assert "edited by person" in page


@pytest.mark.parametrize(
    ("text", "words"),
    [("# Mend it\n1. read\n", "the plan is unchanged"), (" \n", "the text is empty"), (None, "cannot be read")],
)
def test_an_edit_that_is_none_approves_nothing(command: Command, text: str | None, words: str) -> None:
    create_session_with(command, plan())
    file = command.workspace / "plan.md"
    if text is not None:
        file.write_text(text)
    refused = command.run_inline("edit", "req_a1", "--file", str(file))
    assert (refused.code, words in refused.err) == (2, True)
    assert stored_request(command).status == "pending"


def test_only_a_plan_that_waits_is_edited_and_a_lost_text_is_kept(command: Command) -> None:
    question = open_request(Request(id="req_q", kind="question", asked_by="alice", payload={"question": "Which?"}))
    create_session_with(command, answered_request(plan(), "approved"), question, plan(id="req_l", may_answer=("lead",)))
    file = command.workspace / "plan.md"
    file.write_text("another")
    for request_id, words in (("req_a1", "plan that is approved"), ("req_q", "is a question")):
        refused = command.run_inline("edit", request_id, "--file", str(file))
        assert (refused.code, words in refused.err) == (2, True)
    lost = command.run_inline("edit", "req_l", "--file", str(file), TMPDIR=str(command.workspace))
    assert (lost.code, "not yours to answer" in lost.err) == (2, True)
    kept = Path(lost.err.split("Your text is kept in ")[1].split()[0].rstrip("."))
    assert kept.name.startswith("req_l-")


def test_the_editor_of_the_person_opens_with_the_plan(command: Command) -> None:
    create_session_with(command, plan())
    editor = command.workspace.parent / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "3. test\\n" >> "$1"\n')
    editor.chmod(0o755)
    command.env["EDITOR"] = str(editor)
    command.env.pop("VISUAL", None)
    terminal = AtTerminal(command, "edit", "req_a1")
    terminal.wait_for("req_a1 approved as edited")
    assert terminal.end() == 0
    assert stored_request(command).payload["plan"] == "# Mend it\n1. read\n3. test"


def test_a_commit_that_moved_is_told_to_who_approves(command: Command) -> None:
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(command.workspace))
    for line in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run([*git, *line], check=True, env={**command.env, "GIT_CONFIG_NOSYSTEM": "1"})
    payload = payload_of("x", (), PlanBinding(folder=str(command.workspace), base=COMMIT))
    create_session_with(command, plan(payload=payload))
    assert "has moved from commit c0ffeec0ff to " in command.run_inline("show", "req_a1").out
    assert "has moved from commit" in json.loads(command.run_inline("show", "req_a1", "--json").out)["note"]
    approved = command.run_inline("approve", "req_a1")
    assert (approved.code, "has moved from commit" in approved.out) == (0, True)
