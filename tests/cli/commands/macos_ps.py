"""Stand-in of `ps` in the simulation of macOS, with the columns that Callboard asks for."""

from __future__ import annotations

import os
import sys
import time

BEGIN = 1_700_000_000
"""Second that counts as the boot. A fixed one, because the kernel's own may move by a second."""


def row(pid: int, columns: list[str]) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        state, parent, *fields = file.read().rpartition(b")")[2].split()
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    begun = time.gmtime(BEGIN + int(fields[17]) // os.sysconf("SC_CLK_TCK"))
    values = {
        "pid": f"{pid:>5}",
        "ppid": f"{int(parent):>5}",
        "stat": f"{state.decode():<4}",
        "lstart": time.strftime("%a %b %e %H:%M:%S %Y", begun),
        "command": command or "<defunct>",
    }
    return " ".join(values[column] for column in columns)


def main() -> None:
    columns = next(word for word in sys.argv if word.startswith("pid=")).replace("=", "").split(",")
    pids = [int(sys.argv[-1])] if "-p" in sys.argv else [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in sorted(pids):
        try:
            sys.stdout.write(row(pid, columns) + "\n")
        except OSError:
            continue


main()
