"""Counts of the loads of each skill, kept in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog

from callboard.adapters.system.regular_files import read_regular

_MOST_BYTES = 4_000_000


class SkillUses:
    """Counts of loads in one file; None: they are kept only while the process runs."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[str, int] | None = None

    def counts(self) -> Mapping[str, int]:
        """Return skill -> number of times that it was loaded."""
        if self._counts is None:
            self._counts = self._read()
        return self._counts

    def add(self, name: str) -> None:
        """Count one more load."""
        counts = {**self.counts(), name: self.counts().get(name, 0) + 1}
        self._counts = counts
        if self._path is None:
            return
        try:
            part = self._path.with_suffix(".new")
            part.write_text(json.dumps(counts, sort_keys=True))
            part.replace(self._path)
        except OSError as error:  # a full or read-only disk: skills still work
            structlog.get_logger("callboard.skills").warning("skill uses not kept", why=str(error))

    def _read(self) -> dict[str, int]:
        try:
            data: Any = json.loads(read_regular(self._path, _MOST_BYTES)) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        pairs = cast("dict[str, Any]", data).items() if isinstance(data, dict) else ()
        return {name: count for name, count in pairs if isinstance(count, int)}
