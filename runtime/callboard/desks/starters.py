"""Writes the commented files that a person begins an agent type or a skill with. It refuses to overwrite anything."""

from __future__ import annotations

import os
from pathlib import Path

from callboard.words.errors import UsageError


def write_starter(path: Path, text: str) -> None:
    """Write a file that is not there yet, and the folders above it. Raises `UsageError` for one that is there, or that
    cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UsageError(f"{path} is there already: edit it, or take another name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
