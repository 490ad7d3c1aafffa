"""A resume that names another model: the lead asks that one, and a resume that names none asks it still."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands.command import Command

SCENARIO = """
models:
  {first}: {{window: 200000}}
agents:
  lead:
    - when: {{model: small-one}}
      repeat: forever
      reply: The small one.
    - otherwise: true
      reply: Another one.
"""


def test_a_resume_with_another_model_asks_it_from_then_on(tmp_path: Path) -> None:
    command = Command(tmp_path)
    big = command.scenario(SCENARIO.format(first="big-one"))
    assert command.here("run", "--model", big, "hello").out == "Another one.\n"
    small = command.scenario(SCENARIO.format(first="small-one"))
    assert command.here("run", "--continue", "--model", small, "hello").out == "The small one.\n"
    assert command.here("run", "--continue", "and again").out == "The small one.\n"
