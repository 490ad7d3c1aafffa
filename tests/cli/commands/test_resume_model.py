"""A resume with another model changes the lead's model, and a later resume without a model keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
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


@pytest.mark.slow
def test_a_resume_with_another_model_asks_it_from_then_on(tmp_path: Path) -> None:
    command = Command(tmp_path)
    big = command.scenario(SCENARIO.format(first="big-one"))
    assert command.run_inline("run", "--model", big, "hello").out == "Another one.\n"
    small = command.scenario(SCENARIO.format(first="small-one"))
    assert command.run_inline("run", "--continue", "--model", small, "hello").out == "The small one.\n"
    assert command.run_inline("run", "--continue", "and again").out == "The small one.\n"
