"""A conversation that no longer fits ends with exit code 5 and the command that continues it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands.command import Command

OVERFLOW = """
agents:
  lead:
    - reply:
        - text: The leak is in attic.py.
        - tool_use: {name: todo_write, input: {todos: [{content: mend the leak, status: in_progress}]}}
    - when: {result_of: todo_write}
      reply: Never said.
      fault: {status: 400, times: 99, message: "prompt is too long: 9 tokens > 8 maximum"}
    - when: {anywhere: [hand-off note, mend the leak, Never touch the chimney]}
      reply: On I go.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def session(command: Command) -> str:
    """Run a session until its conversation no longer fits, and return its id."""
    ran = command.run_inline("run", "--model", command.scenario(OVERFLOW), "Mend it. Never touch the chimney.")
    assert ran.code == 5, ran.err
    told = ran.err.split("callboard resume ")[1].split()
    assert told[1] == "--carry`"
    return told[0]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("prompt", [(), ("Go on with the roof.",)])
def test_resume_with_carry_goes_on_in_a_fresh_conversation(
    command: Command, session: str, prompt: tuple[str, ...]
) -> None:
    args = ("run", "--resume", session, "--carry", *prompt) if prompt else ("resume", session, "--carry")
    ran = command.run_inline(*args)
    assert (ran.code, ran.out) == (0, "On I go.\n"), ran.err
    notes = list(Path(command.env["XDG_DATA_HOME"]).rglob("*-handoff.md"))
    assert len(notes) == 1
    assert "The leak is in attic.py." in notes[0].read_text()
    assert (command.run_inline("resume", session).code, notes[0].stat().st_mode & 0o777) == (0, 0o600)
    kept = command.run_inline("memory", "show", "hand-off-1", "--session", session)
    assert "The leak is in attic.py." in kept.out, kept.err


def test_a_new_session_has_nothing_to_carry_over(command: Command) -> None:
    ran = command.run_inline("run", "--carry", "go")
    assert ran.code == 2
    assert "--carry requires -c or -r" in ran.err
