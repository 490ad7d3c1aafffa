"""`callboard team budget` raises the limit of one agent, from a process that does not host it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands.command import Command

TEAM = """
models:
  big: {window: 60000, max_output: 8000}
agents:
  lead:
    - reply:
        - tool_use:
            name: spawn_teammate
            input: {name: alice, role: looks, prompt: do it, budget: {steps: 2}}
    - repeat: forever
      reply: I see.
  alice:
    - reply:
        - tool_use: {name: list_tasks, input: {}}
    - reply: Cut short.
"""


@pytest.mark.slow
def test_a_raise_is_told_and_kept_and_what_is_none_is_refused(tmp_path: Path) -> None:
    command = Command(tmp_path)
    cut = command.run_inline("run", "--model", command.scenario(TEAM), "Go.")
    assert (cut.code, "the budget of model calls of alice is used up" in cut.err) == (1, True), cut.err
    for args, why in (
        (("alice", "steps=2"), "steps: alice may already use 2; a budget can only be raised"),
        (("alice", "tokens=9"), "alice has no own limit of tokens"),
        (("alice", "moons=9"), "unknown kind 'moons': choose cost_usd, tokens, steps or seconds"),
        (("nobody", "steps=9"), "unknown agent 'nobody'"),
    ):
        ran = command.run_inline("team", "budget", *args)
        assert (ran.code, why in ran.err) == (2, True), ran.err
    inside = command.run_inline("team", "budget", "alice", "steps=9", CALLBOARD_TOOL="1")
    assert (inside.code, "Raising the budget of an agent is for a person" in inside.err) == (2, True), inside.err
    ran = command.run_inline("team", "budget", "alice", "steps=7")
    assert (ran.code, "alice may use 7 calls in all" in ran.out) == (0, True), ran.err
    assert "once a process hosts the session again" in " ".join(ran.out.split())
    assert command.run_inline("send", "--to", "alice", "Go on.").code == 0
    more = TEAM.replace("    - reply: Cut short.\n", "    - reply: Cut short.\n    - reply: Done after all.\n")
    resumed = command.run_inline("run", "-c", "--model", command.scenario(more), "And now?")
    assert resumed.code == 0, resumed.err
    told = command.run_inline("inbox", "lead", "--all")
    assert "Done after all." in told.out, told.out
