"""Count the instructions of a step of `step.py`, for both of its sides: `python bench/instructions.py`.

The CPU time of a step varies by half with what else a machine does; this count does not. It leaves out the kernel. It
needs valgrind, and takes minutes, because each side runs fifty times slower. A run of two steps is subtracted, which
removes the start. The start varies by 20 million, so that the count of a step is true to 2 %. `--side ours` counts one
side alone.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path

import child
import step

STEPS, FEW = 102, 2
SIDES: dict[str, step.Command] = {"bare": step.bare, "ours": step.ours}


def counted(server: step.Server, name: str, steps: int) -> int:
    """Return the instructions of a whole run, in all threads."""
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "counts")

        def command(folder: Path, length: int) -> tuple[list[str], dict[str, str]]:
            words, extra = SIDES[name](folder, length)
            return ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={output}", *words], {
                **extra,
                "PYTHONHASHSEED": "0",
            }

        step.run(f"{name} {steps}", command, server, steps)
        found = re.search(r"^(?:summary|totals): (\d+)", output.read_text(), re.MULTILINE)
        assert found is not None, "callgrind writes a summary"
        return int(found[1])


def main() -> int:
    if shutil.which("valgrind") is None or importlib.util.find_spec("callboard") is None:
        print("no counts: valgrind or Callboard is not installed")
        return 1
    asked = sys.argv[sys.argv.index("--side") + 1 :] if "--side" in sys.argv else list(SIDES)
    with step.serving() as server:
        for name in asked:
            step.run(f"{name} first", SIDES[name], server, FEW)  # compiles byte code, which would be counted
        rows = [
            [name, f"{(counted(server, name, STEPS) - counted(server, name, FEW)) / (STEPS - FEW) / 1e6:.2f}"]
            for name in asked
        ]
    print(child.table(["side", "million instructions of a step"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
