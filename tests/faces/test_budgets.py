"""The session's money on the command line: refused before the first call, raised by a resume, kept for the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faces.command import Command

HELLO = """
agents:
  lead:
    - reply: It says hello.
    - reply: It still does.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_nought_refuses_the_first_call_and_a_resume_raises_it_for_good(command: Command) -> None:
    model = command.scenario(HELLO)
    ran = command.here("run", "--max-budget-usd", "0", "--output-format", "json", "--model", model, "What does it say?")
    result = json.loads(ran.out)
    assert ran.code == 5
    assert (result["subtype"], result["terminal_reason"]) == ("error_max_budget_usd", "budget_exhausted")
    assert "the money budget of the session is used up: $0.0000 of $0.0000" in result["errors"][0]
    assert result["total_cost_usd"] == 0

    ran = command.here("resume")
    assert ran.code == 5, "it is kept"
    ran = command.here("resume", "--max-budget-usd", "5")
    assert (ran.code, ran.out) == (0, "It says hello.\n")
    ran = command.here("run", "--continue", "And now?")
    assert (ran.code, ran.out) == (0, "It still does.\n"), "what it was raised to is kept too"
