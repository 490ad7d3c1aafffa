"""The captures of `docs/screens.md` are what the real command shows."""

from __future__ import annotations

import shutil

import pytest
from tests.adapters.processes.cage import require_level
from tests.cli.repl.screens_page import PAGE, SITUATIONS, Situation, section


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.title)
def test_a_capture_on_the_page_is_what_the_command_shows(situation: Situation) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed, and the first screen says so")
    require_level(2)  # the captures name it
    assert section(situation) in PAGE.read_text("utf-8"), (
        "run: PYTHONPATH=. .venv/bin/python tests/cli/repl/screens_page.py"
    )


def test_no_capture_is_wider_than_its_screen() -> None:
    lines = PAGE.read_text("utf-8").split("\n")
    wide = [line for line in lines if len(line) > 120]
    assert wide == []
