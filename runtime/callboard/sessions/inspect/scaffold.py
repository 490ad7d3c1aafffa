"""Commented starter files for an agent type or a skill. Existing files are never overwritten."""

from __future__ import annotations

import os
from pathlib import Path

from callboard.types.errors import UsageError


def write_starter(path: Path, text: str) -> None:
    """Write a new file and its parent folders. Raises `UsageError` if the file exists or cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UsageError(f"{path} already exists: edit it, or choose another name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
