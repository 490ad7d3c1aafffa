"""The monitor of a command hears of a move to the background, also at the very end of the command."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import os, sys
from callboard.adapters.processes.sandbox.command_monitor import CONTROL, Watch

reader, writer = os.pipe()
if sys.argv[1] == "moved":
    os.write(writer, b"m")
if sys.argv[1] != "held":
    os.close(writer)
os.dup2(reader, CONTROL)
watch = Watch(*os.pipe(), os.open(os.devnull, os.O_WRONLY), limit=10, hold=True)
moves = []
watch.on_move = lambda: moves.append("moved")
print(watch.was_moved(), moves)
"""


@pytest.mark.parametrize(
    ("state", "said"), [("moved", "True ['moved']"), ("held", "False []"), ("without a host", "False []")]
)
def test_a_move_after_the_last_look_is_heard_at_the_end_of_the_command(state: str, said: str) -> None:
    ran = subprocess.run([sys.executable, "-c", ASK, state], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == said
