"""Callboard's own search, in a separate process, so that a pattern that never ends can be ended from outside.

Runs as a script with only the standard library. argv: ROOT PATTERN MOST FIRST. Standard input: paths relative to the
root, each ended by a NUL. Standard output, for each matching line: path, NUL, line number, newline; at most MOST for a
file. If FIRST is not zero, only the first line of each file is written. The script opens every file component by
component, following no link.
"""
# ruff: noqa: PTH100, PTH120 - importing pathlib would take longer than the rest of the start

from __future__ import annotations

import os
import re
import stat
import sys

if __name__ == "__main__":  # a package of that name without its `__init__`, which would import unneeded modules
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from callboard.adapters.system import release

_LONGEST = 1 << 20
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(root: int, path: str) -> int | None:
    """Return a descriptor of a regular file beneath the root; None for anything else."""
    folder = os.dup(root)
    try:
        *parts, name = path.split("/")
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def lines_of(descriptor: int, pattern: re.Pattern[str], most: int) -> list[int]:
    """Return the numbers of the matching lines. Only the first 1 MiB of a longer line is searched."""
    numbers: list[int] = []
    with open(descriptor, "rb") as file:
        number = 1
        begins = True
        while len(numbers) < most and (piece := file.readline(_LONGEST)):
            if begins and pattern.search(piece.decode("utf-8", "replace").rstrip("\r\n")):
                numbers.append(number)
            begins = piece.endswith(b"\n")
            number += begins
    return numbers


def main() -> int:
    """Search all files. Return 2 for an invalid regular expression, 3 after an upgrade of Callboard."""
    if differs := release.parent_differs():
        sys.stderr.write(differs)
        return 3
    root_path, text, most, first = sys.argv[1:5]
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(str(error))
        return 2
    root = os.open(root_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in sys.stdin.buffer.read().split(b"\0"):
        descriptor = open_file(root, os.fsdecode(name)) if name else None
        if descriptor is None:
            continue
        for number in lines_of(descriptor, pattern, 1 if first != "0" else int(most)):
            sys.stdout.buffer.write(b"%s\0%d\n" % (name, number))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
