"""The target agent of a call: tools accept `to` and `teammate`, whichever their schema names."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands.command import Command

SWAPPED = """
agents:
  lead:
    - reply: [{tool_use: {name: spawn_teammate, input: {name: bob, role: helps, prompt: Wait for word.}}}]
    - reply:
        - {tool_use: {name: send_message, input: {teammate: bob, content: Look at the roof.}}}
        - {tool_use: {name: request_plan, input: {to: bob, task: Mend the roof.}}}
        - {tool_use: {name: request_shutdown, input: {to: bob}}}
        - {tool_use: {name: send_message, input: {to: bob, teammate: bob, content: Twice.}}}
    - {reply: Done., repeat: forever}
  bob:
    - {reply: I wait., repeat: forever}
"""


def test_either_name_of_the_receiver_is_taken_and_both_are_refused(tmp_path: Path) -> None:
    command = Command(tmp_path)
    ran = command.run_inline(
        "run", "-v", "--permission-mode", "bypassPermissions", "--model", command.scenario(SWAPPED), "Go."
    )
    assert ran.code == 0, ran.err
    refused = [line for line in ran.err.splitlines() if "does not fit" in line]
    assert len(refused) == 1, ran.err
    assert "`teammate` is no field of this tool" in refused[0]
