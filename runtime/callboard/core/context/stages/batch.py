"""Edits with a reason: what a stage returns that can say why it acts now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.words.context import Edit


class Batch(list[Edit]):
    """Edits that go together."""

    def __init__(self, edits: Iterable[Edit], why: str) -> None:
        """`why`: for a person to read."""
        super().__init__(edits)
        self.why = why
