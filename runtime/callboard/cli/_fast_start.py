"""Faster imports of structlog and pydantic, without the parts that the command line never uses.

structlog imports rich if it is installed, for tracebacks that are never shown here. That took 100 of the 250 ms in
which `callboard --help` answers (measured on two cores, Python 3.11). Later imports of rich still find it.

pydantic looks for plugins in the metadata of every installed package when it builds its first model, which takes 23 ms
of each command in an environment of 126 packages. No plugin has a purpose for the models of Callboard.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import cast

_PLUGINS = "pydantic.plugin._loader"
"""Module of pydantic that finds plugins. It has one function that others use, `get_plugins`."""


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


def pydantic_alone() -> None:
    """Let pydantic find no plugins.

    Does nothing if pydantic has looked already, or for `callboard workflow`: it runs a program of the user's in this
    process, which may use them.
    """
    if _PLUGINS in sys.modules or sys.argv[1:2] == ["workflow"]:
        return
    none = ModuleType(_PLUGINS)
    setattr(none, "get_plugins", tuple)  # noqa: B010 - a module has no such attribute for a type checker
    sys.modules[_PLUGINS] = none


structlog_alone()
pydantic_alone()
