"""Our own search, in a process of its own: a pattern that never ends is then ended from outside.

Run as a script with nothing but the standard library. argv: ROOT PATTERN MOST FIRST. Standard input: paths from the
root on, each ended by a NUL. Standard output, for each matching line: path, NUL, line number, newline; at most MOST for
a file, FIRST non-zero: only the first of each file. Opens every file component by component, following no link.
"""
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import os
import re
import stat
import sys

_LONGEST = 1 << 20
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(root: int, path: str) -> int | None:
    """A descriptor of a regular file beneath the root; None for anything else."""
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
    """The numbers of the matching lines; lines longer than 1 MiB are searched up to there."""
    found: list[int] = []
    with open(descriptor, "rb") as file:
        number, begins = 1, True
        while len(found) < most and (piece := file.readline(_LONGEST)):
            if begins and pattern.search(piece.decode("utf-8", "replace").rstrip("\r\n")):
                found.append(number)
            begins = piece.endswith(b"\n")
            number += begins
    return found


def main() -> int:
    """Search them all; 2 for a pattern that is none."""
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
