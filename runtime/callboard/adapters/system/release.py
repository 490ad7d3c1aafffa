"""Check that the Callboard on the disk is still the one that this process runs.

An upgrade replaces the files of the package under a running process. Processes and modules that it starts or imports
afterwards would be of another version. So it checks before it starts one of Callboard's processes, and each such
process checks again: it compares the mark from its parent's start (`-X callboard=MARK`) with the files from which it
was started.

Imports only the standard library, because `launch_child.py` and similar scripts use it too.
"""

from __future__ import annotations

import os
import sys

_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "__init__.py")  # noqa: PTH100, PTH118, PTH120 - importing pathlib takes 5 ms of a child's start
"""File with the version, which each installation writes again."""
_NAME = "callboard"


def mark_of(file: str) -> str:
    """Return the identity of this version of the file: number, time of change and size; empty if it is missing."""
    try:
        status = os.stat(file)  # noqa: PTH116 - importing pathlib takes 5 ms of a child's start
    except OSError:
        return ""
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"


def version_in(file: str) -> str:
    """Return the version in the file; empty if it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123 - importing pathlib takes 5 ms of a child's start
            lines = opened.read().splitlines()
    except OSError:
        return ""
    return next((line.split('"')[1] for line in lines if line.startswith('__version__ = "')), "")


class InstalledRelease:
    """The Callboard with which a process began."""

    def __init__(self, file: str = _FILE, mark: str | None = None, version: str = "") -> None:
        self.file = file
        self.mark = mark_of(file) if mark is None else mark
        self.version = version or version_in(file)

    def is_installed(self) -> bool:
        """Return True if a complete version is installed there, this one or another."""
        return bool(version_in(self.file))

    def replaced_by(self) -> str:
        """Return the description, with the remedy, if another Callboard has replaced this one.

        Empty if it is the same.
        """
        if mark_of(self.file) == self.mark:
            return ""
        version = version_in(self.file)
        if not version:
            return f"Callboard {self.version} is being replaced or removed while this process runs: restart it"
        if version == self.version:
            return f"Callboard {version} was reinstalled while this process runs: restart it"
        return f"Callboard was upgraded from {self.version} to {version} while this process runs: restart it"


OURS = InstalledRelease()
"""Release of this process. It differs in a child that was started from other files than its parent."""


def child_python(*, packages: bool = False) -> tuple[str, ...]:
    """Return the first arguments of a command line that starts one of Callboard's scripts.

    The arguments include the mark of this process. `packages`: the script uses installed packages.
    """
    isolated = ("-I",) if packages else ("-I", "-S")
    return (sys.executable, *isolated, "-X", f"{_NAME}={OURS.mark}/{OURS.version}")


def parent_differs() -> str:
    """Return the reason why this child process must not run; empty if it may.

    A child must not run if its parent is of another Callboard.
    """
    option = sys._xoptions.get(_NAME)  # pyright: ignore[reportPrivateUsage] - documented, under this name alone
    if not isinstance(option, str):
        return ""  # a user runs the script directly
    mark, _, version = option.partition("/")
    return InstalledRelease(mark=mark, version=version).replaced_by()
