"""Texts of a resume: a line for each agent, and how to resume a run that was left.

Pure. `PendingRequests` in `cli/headless/run.py` shows the requests that were already pending; the prompt line asks
about them.
"""

from __future__ import annotations

from callboard.cli.terminal.terminal import Block, Line, block


def resumed_block(agent: str) -> Block:
    """Return the line of an agent that another process hosted before, as progress."""
    return Block((Line("continues where it was", "dim", agent),), progress=True)


def resume_hint_block(session: str) -> Block:
    """Return how to resume the session with this id, for a run or a prompt line that was left."""
    return block(f"the session is kept: `callboard resume {session}` continues it", "dim")
