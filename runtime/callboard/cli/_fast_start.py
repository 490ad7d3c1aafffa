"""Import of structlog without rich, before the other imports of the command line.

structlog imports rich if it is installed, for tracebacks that are never shown here. That took 100 of the 250 ms in
which `callboard --help` answers (measured on two cores, Python 3.11). Later imports of rich still find it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import cast


def structlog_alone() -> None:
    """Import structlog as if rich were not installed.

    Does nothing if either has been imported, or for commands that log nothing and must be fast: completion, and the
    help and version of the command itself.
    """
    quick = sys.argv[1:2] and (sys.argv[1] in {"_complete", "-h", "--help", "--version"} or sys.argv[1:] == ["-v"])
    if quick or "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = cast("ModuleType", None)  # Python's mark for a missing module
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


structlog_alone()
