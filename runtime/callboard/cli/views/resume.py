"""Texts of a resume: the lines for each agent and of the prompt line, and how to resume a run that was left. Pure.

`WaitingShown` in `cli/headless/run.py` shows the requests that were pending already; the prompt line asks them.
"""

from __future__ import annotations

from callboard.cli.terminal.terminal import Block, Line, block


def resumed_block(agent: str) -> Block:
    """Return the line of an agent that another process hosted before, as progress."""
    return Block((Line("goes on where it was", "dim", agent),), progress=True)


def opened_block(settings: str, session: str) -> Block:
    """Return the first lines of the prompt line, for a new session and a resumed one. `settings`: folder, model, mode
    and sandbox. `session`: its id."""
    return block(f"{settings}\nsession {session}; /help lists the commands", "dim")


def kept_block(session: str) -> Block:
    """Return how to resume the session with this id, for a run that was left before its end."""
    return block(f"the session is kept: `callboard resume {session}` continues it", "dim")
