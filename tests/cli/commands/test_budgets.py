"""The session's budget on the command line: refused before the first call, raised by a resume, kept for later."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

HELLO = """
agents:
  lead:
    - reply: It says hello.
    - reply: It still does.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow
def test_nought_refuses_the_first_call_and_a_resume_raises_it_for_good(command: Command) -> None:
    model = command.scenario(HELLO)
    ran = command.run_inline(
        "run", "--max-budget-usd", "0", "--output-format", "json", "--model", model, "What does it say?"
    )
    result = json.loads(ran.out)
    assert ran.code == 5
    assert (result["subtype"], result["terminal_reason"]) == ("error_max_budget_usd", "budget_exhausted")
    assert "the money budget of the session is used up: $0.0000 of $0.0000" in result["errors"][0]
    assert result["total_cost_usd"] == 0

    ran = command.run_inline("resume")
    assert ran.code == 5, "the budget is kept"
    ran = command.run_inline("resume", "--max-budget-usd", "5")
    assert (ran.code, ran.out) == (0, "It says hello.\n")
    ran = command.run_inline("run", "--continue", "And now?")
    assert (ran.code, ran.out) == (0, "It still does.\n"), "the raised budget is kept too"


WORKS = """
agents:
  lead:
    - reply:
        - text: I look at the file first.
        - tool_use: {name: bash, input: {command: seq 1 40}}
    - repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: seq 1 4000}}
  silent:
    - repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: ls}}
"""
SILENT = WORKS.replace("lead:", "other:").replace("silent:", "lead:")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "flags", "out", "err"),
    [
        (
            WORKS,
            ("--max-turns", "2"),
            "I look at the file first.\n",
            ["the limit of 2 model steps in a turn is reached"],
        ),
        (
            SILENT,
            ("--max-turns", "1"),
            "",
            [
                "the limit of 1 model step in a turn is reached",
                "the lead ended without any text: the session has 1 reply of the model",
            ],
        ),
        (
            WORKS,
            ("--max-budget-usd", "0.001"),
            "",
            [
                "the money budget of the session is too small for the next call",
                "the lead ended without any text: no reply came from the model",
            ],
        ),
    ],
)
def test_a_run_that_a_limit_ends_prints_what_was_said_and_why_it_ended(
    scenario: str, flags: tuple[str, str], out: str, err: list[str], command: Command
) -> None:
    ran = command.run_inline("run", *flags, "--model", command.scenario(scenario), "Look.")
    assert (ran.code, ran.out) == (5, out)
    assert [line for line in err if line not in ran.err] == []
    assert ran.err.count("callboard: ") == 1, "one line gives the reason for the end"
    assert ran.err.count("spent or reserved") == ("--max-budget-usd" in flags), "the numbers of a budget appear once"
    assert ran.err.count("is too small") == ("--max-budget-usd" in flags), "and so does its end"
    assert ran.err.count("resume with a higher --max-budget-usd") == ("--max-budget-usd" in flags)


def test_a_run_without_a_text_counts_the_replies_of_the_model(command: Command) -> None:
    refused = "agents: {lead: [{otherwise: true, fault: {status: 413, times: 9}, reply: Done.}]}"
    ran = command.run_inline("run", "--model", command.scenario(refused), "Look.")
    assert (ran.code, "without any text: no reply came from the model" in ran.err) == (5, True), ran.err
    # A call was made, and refused.
    assert "the service refused the prompt as too long" in ran.err
    assert command.run_inline("run", "--max-turns", "1", "--model", command.scenario(SILENT), "Look.").code == 5
    again = command.run_inline("resume")
    assert "without any text: the session has 2 replies of the model" in again.err


def test_a_run_that_max_seconds_ends_names_its_way_on(command: Command) -> None:
    waits = "agents: {lead: [{otherwise: true, latency_ms: 600000, reply: Done.}]}"
    ran = command.run_inline("run", "--max-seconds", "0.2", "--model", command.scenario(waits), "Look.")
    assert ran.code == 124
    found = re.search(
        r"`callboard (resume \S+)` continues for as long again; add --max-seconds N for another time", ran.err
    )
    assert found is not None, ran.err
    more = command.run_inline(*found[1].split(), "--max-seconds", "0.3")
    assert (more.code, "(0.3 s) is reached" in more.err) == (124, True), more.err


@pytest.mark.slow
def test_a_run_that_max_turns_ends_names_its_way_on_and_a_resume_takes_another_number(command: Command) -> None:
    ran = command.run_inline("run", "--max-turns", "2", "--model", command.scenario(WORKS), "Look.")
    found = re.search(r"`callboard (resume \S+)` continues with as many more; add --max-turns N", ran.err)
    assert found is not None, ran.err
    same = command.run_inline(*found[1].split())
    assert (same.code, "the limit of 2 model steps in a turn" in same.err) == (5, True)
    more = command.run_inline(*found[1].split(), "--max-turns", "3")
    assert (more.code, "the limit of 3 model steps in a turn" in more.err) == (5, True)
    kept = command.run_inline("run", "--continue", "And now?")
    assert "the limit of 3 model steps in a turn" in kept.err, "the new number is kept"
