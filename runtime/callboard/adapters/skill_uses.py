"""How often each skill was loaded in a workspace, so that a catalogue that is too long drops what is used least.

A count that is lost costs nothing but a place in that order: the file is written without a lock, and one that cannot be
read counts as empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog


class SkillUses:
    """The counts in one file; None: they last as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[str, int] | None = None

    def counts(self) -> Mapping[str, int]:
        """Skill -> how often it was loaded."""
        if self._counts is None:
            self._counts = self._read()
        return self._counts

    def add(self, name: str) -> None:
        """It was loaded once more."""
        counts = {**self.counts(), name: self.counts().get(name, 0) + 1}
        self._counts = counts
        if self._path is None:
            return
        try:
            beside = self._path.with_suffix(".new")
            beside.write_text(json.dumps(counts, sort_keys=True))
            beside.replace(self._path)
        except OSError as error:  # a full or read-only disk: skills work all the same
            structlog.get_logger("callboard.skills").warning("skill uses not kept", why=str(error))

    def _read(self) -> dict[str, int]:
        try:
            found: Any = json.loads(self._path.read_text()) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        pairs = cast("dict[str, Any]", found).items() if isinstance(found, dict) else ()
        return {name: count for name, count in pairs if isinstance(count, int)}
