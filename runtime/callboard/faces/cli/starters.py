"""What a person is told once a file to be edited was begun for them."""

from __future__ import annotations

from pathlib import Path

from callboard.core.trust.claims import shown
from callboard.faces.cli.options import Given
from callboard.faces.cli.run import terminal_of
from callboard.faces.terminal import block


def tell_begun(given: Given, path: Path, *, person: bool) -> None:
    """The path, and what is to be done before it counts. `person`: it stands in the person's own folder."""
    with terminal_of(given) as terminal:
        terminal.rows(block(shown(str(path)), "good"))
        if not person:
            terminal.terminal_print(block("edit it, then `callboard trust`: what a workspace brings waits for that"))
