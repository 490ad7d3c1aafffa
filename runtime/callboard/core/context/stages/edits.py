"""Edits with a reason: the result of a stage that can explain why it acts now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.types.messages import Edit


class Batch(list[Edit]):
    """Edits that belong together."""

    def __init__(self, edits: Iterable[Edit], reason: str) -> None:
        """Create a batch. `reason`: for a person to read."""
        super().__init__(edits)
        self.why = reason
